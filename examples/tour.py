"""The system in one sitting: gradients, tapes, programs, observers, devices, and a layer of your own.

    python examples/tour.py

Every operation is `apply(op, *values)` and goes through the stack of layers that are active; each section adds one.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

import xform as xf

x = np.array([0.5, 1.0, 2.0])


def f(x):
    return np.sum(np.sin(x) * x)  # plain NumPy: it dispatches once an argument is tracked


print("1. gradients: raw arrays in, raw arrays out")
print("grad(f)(x)  =", xf.grad(f)(x), "  by hand:", np.cos(x) * x + np.sin(x))
second = xf.grad(xf.grad(lambda s: np.sin(s) * s))
print("twice, 0.5  =", second(0.5), "  by hand:", 2 * np.cos(0.5) - 0.5 * np.sin(0.5))
model = {"weight": np.eye(3), "bias": np.zeros(3)}
value, slopes = xf.value_and_grad(lambda m: np.mean((x @ m["weight"] + m["bias"]) ** 2))(model)
print(f"value {value:.3f}, and the gradient has the model's structure:", xf.tree.map(np.shape, slopes))
y, pull = xf.vjp(np.tanh, x)
print("vjp(tanh): each row of the Jacobian with one call, e.g.", pull(np.array([0.0, 1.0, 0.0]))[0])

print("\n2. the same by hand: a tape is a layer, callbacks fire during backward")
with xf.Grad() as tape:
    a = tape.attach(x, callback=lambda cotangent: print("callback: dy/da =", cotangent))
    y = f(a) + np.sum(xf.stop_gradient(a))  # the second term counts as a constant
print("gradient    =", tape.gradient(y, a))

print("\n3. a gradient of your own: rounding that lets the cotangent pass")
rounded = xf.custom_gradient(lambda v: (np.round(v), None), lambda residuals, cotangent: cotangent)
print("rounded     =", rounded(x), "  its gradient:", xf.grad(lambda v: np.sum(rounded(v) * v))(x))

print("\n4. programs: recorded, printed, replayed")
print(xf.make_program(lambda v: np.exp(v) + 1.0)(x))
print("shapes alone:", xf.eval_shape(lambda v: v @ v[:, None], xf.Aval((3,), np.dtype("float32"))))
fast = xf.trace(xf.grad(f))  # recorded at the first call, replayed afterwards
print("trace(grad(f)) equals grad(f):", np.array_equal(fast(x), xf.grad(f)(x)))

print("\n5. observers: who took the time, who made the NaN")
with xf.Profile() as profile, xf.named_scope("first layer"):
    xf.grad(f)(x)
for phase in ("forward", "backward"):
    print(f"{phase}: {profile.calls(phase=phase)} operations, {profile.calls('Mul', phase=phase)} of them Mul")
try:
    with xf.NanGuard(), np.errstate(invalid="ignore"):
        np.sqrt(xf.array(x) - 1.0)
except xf.XformError as error:
    print("NanGuard:", error)

print("\n6. devices: arrays move there once, results stay there")
device = xf.Device("cpu")  # or "cupy:0", or any array library that has a backend
print("gradient    =", xf.to_numpy(device(xf.grad(f))(x)), " ", device.report())

print("\n7. values are what layers pass on: NumPy's functions and Python's operators, but no writing in place")
v = xf.array(x)
print(repr(v), "->", v.at[0].set(9.0), " beneath:", xf.concrete(v), " type:", xf.aval_of(v))
try:
    v[0] = 9.0
except xf.XformError as error:
    print("WriteError:", error)

print("\n8. a layer of your own, above grad and below it")


class Names(xf.Observer):
    """Collects the names of the operations that it sees."""

    def __init__(self):
        self.seen = []

    def observe(self, op, inputs, outputs):
        if not op.attribute_like:  # scopes and reads compute nothing
            self.seen.append(op.name)


above = Names()
xf.grad(above(f))(x)
print("above grad it sees your operations:  ", *above.seen)
xf.register("names", Names)  # by name: for the command line, and for other people's code
with xf.layer("names") as below, ThreadPoolExecutor(1) as pool:
    print("the stack, top first:                ", *map(repr, xf.stack()))
    pool.submit(xf.carry(xf.grad(f)), x).result()  # a thread starts with an empty stack; carry brings this one along
print("below grad it sees the backward, too:", *below.seen)
print("all layers by name:", *xf.transformations())
