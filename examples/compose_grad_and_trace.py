"""Gradient and trace in either order: a recorded gradient, the gradient of a record, and both equal to the eager one.

    python examples/compose_grad_and_trace.py

`trace(grad(f))` records forward and backward into one Program; `grad(trace(f))` differentiates the replay of a Program.
Neither layer knows of the other.
"""

import numpy as np

import xform as xf

runs = 0


def f(w, x):
    """Return the mean square error of a small model, and count how often Python runs this text."""
    global runs  # noqa: PLW0603  (a count is all it is for)
    runs += 1
    with xf.named_scope("model"):
        guess = np.tanh(x @ w)
    return np.mean((guess - 1.0) ** 2)


rng = np.random.default_rng(0)
w, x = rng.normal(size=3), rng.normal(size=(4, 3))
eager = xf.grad(f)(w, x)
print("eager grad(f):  ", eager)

traced_gradient = xf.trace(xf.grad(f))
runs = 0
for _ in range(5):
    assert np.allclose(traced_gradient(w, x), eager)
print("trace(grad(f)): ", traced_gradient(w, x), f"  Python ran f {runs} time for 6 calls")

traced = xf.trace(f)
traced(w, x)
runs = 0
found = xf.grad(traced)(w, x)
assert np.allclose(found, eager)
print("grad(trace(f)): ", found, f"  Python ran f {runs} times: the tape saw the replay")

program = traced_gradient.program(w, x)
print(f"\ntrace(grad(f)) is a Program of {len(program.equations)} equations, forward and backward in one:")
print(program)

print("\neach equation knows its phase, its scope, and its line (in backward that of the forward operation):")
for equation in program.equations:
    if equation.op == xf.ops.Tanh() or "Tanh.Backward" in equation.scopes:
        print(f"  {equation.op!r:10} {equation.phase:8}  {'/'.join(equation.scopes):22}  line {equation.site[1]}")

# A Program runs through apply: it can be differentiated, profiled, and traced again.
hessian_vector = xf.grad(lambda w: traced_gradient(w, x) @ np.ones(3))(w)
check = (xf.grad(f)(w + 1e-6, x) - xf.grad(f)(w - 1e-6, x)) / 2e-6
print("\nHessian times ones, grad of trace(grad(f)):", hessian_vector)
print("                  by central differences:  ", check)
with xf.Profile() as profile:
    traced_gradient(xf.array(w), x)
forward, backward = profile.calls(phase="forward"), profile.calls(phase="backward")
print(f"profile of a replay: {forward} operations forward, {backward} backward")

# Another shape is another signature, recorded anew. What a function reads of a value is a guard, never a constant that
# is wrong: another outcome is another path.
runs = 0
traced_gradient(w, x[:2])
print(f"another shape of x: Python ran f {runs} time")
absolute = xf.trace(lambda v: v if v > 0 else -v)
found = [float(absolute(v)) for v in (1.0, -2.0, 3.0)]
print("branching on a traced value:", found, "in", len(absolute.paths(1.0)), "paths")
