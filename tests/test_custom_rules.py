"""Custom rules: `custom_vjp`, `custom_jvp` and `custom_gradient` at every order, under and over every layer.

The rules of `TWICE` are wrong on purpose, by a factor of 2: what comes through is the user's rule, and nothing else.
"""

import functools
import gc
import threading
import weakref

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import xform as xf
import xform.numpy as xnp
from xform.core.errors import LayerError

X = np.array([0.3, -1.2, 2.0])
DEVICE = "array_api_strict:device1"


def vjp_through_itself():
    f = xf.custom_vjp(lambda x: np.sin(x))
    f.defvjp(lambda x: (f(x), np.cos(x)), lambda c, t: (2.0 * c * t,))
    return f


def vjp_alone():
    f = xf.custom_vjp(lambda x: np.sin(x))
    f.defvjp(lambda x: (np.sin(x), {"x": x}), lambda kept, t: (2.0 * np.cos(kept["x"]) * t,))
    return f


def jvp_through_itself():
    f = xf.custom_jvp(lambda x: np.sin(x))
    f.defjvp(lambda primals, tangents: (f(*primals), 2.0 * np.cos(primals[0]) * tangents[0]))
    return f


def jvp_alone():
    f = xf.custom_jvp(lambda x: np.sin(x))
    f.defjvp(lambda primals, tangents: (np.sin(*primals), 2.0 * np.cos(primals[0]) * tangents[0]))
    return f


def both():
    f = vjp_through_itself()
    f.defjvp(lambda primals, tangents: (f(*primals), 2.0 * np.cos(primals[0]) * tangents[0]))
    return f


def gradient():
    return xf.custom_gradient(lambda x: (np.sin(x), x), lambda x, t: 2.0 * np.cos(x) * t)


def pullback_as_residual():
    f = xf.custom_vjp(lambda x: np.sin(x))
    f.defvjp(lambda x: xf.vjp(lambda v: np.sin(v), x), lambda pull, t: tuple(2.0 * part for part in pull(t)))
    return f


REVERSE = {
    "vjp, fwd calls f": vjp_through_itself, "vjp": vjp_alone, "gradient": gradient,
    "pullback, as residual": pullback_as_residual,
}  # fmt: skip
FORWARD = {"jvp, rule calls f": jvp_through_itself, "jvp": jvp_alone, "both": both}
TWICE = {name: make() for name, make in {**REVERSE, **FORWARD}.items()}
every = pytest.mark.parametrize("f", list(TWICE.values()), ids=list(TWICE))
with_forward = pytest.mark.parametrize("f", [TWICE[name] for name in FORWARD], ids=list(FORWARD))
reverse_alone = pytest.mark.parametrize("f", [TWICE[name] for name in REVERSE], ids=list(REVERSE))


# The square of f, by the rule f' = 2 cos: its derivatives of order 1 to 3.
def first(x):
    return 2.0 * np.sin(x) * 2.0 * np.cos(x)


def second(x):
    return 2.0 * (2.0 * np.cos(x)) ** 2 - 4.0 * np.sin(x) ** 2


def third(x):
    return -28.0 * np.sin(x) * np.cos(x)


def square(f):
    return lambda x: f(x) ** 2


def total(f):
    return lambda x: (f(x) ** 2).sum()


# ------------------------------------------------------------------ every order


@every
def test_the_users_rule_is_used_at_every_order(f):
    assert_allclose(f(0.7), np.sin(0.7), rtol=1e-15)
    assert_allclose(xf.grad(f)(0.7), 2.0 * np.cos(0.7))
    assert_allclose(xf.grad(xf.grad(f))(0.7), -2.0 * np.sin(0.7))
    h = square(f)
    assert_allclose(xf.grad(h)(0.7), first(0.7))
    assert_allclose(xf.grad(xf.grad(h))(0.7), second(0.7))
    assert_allclose(xf.grad(xf.grad(xf.grad(h)))(0.7), third(0.7))


@every
def test_forward_over_reverse(f):
    h = square(f)
    assert_allclose(xf.hessian(h)(0.7), second(0.7))
    assert_allclose(xf.hessian(total(f))(X), np.diag(second(X)))
    assert_allclose(xf.jacfwd(xf.grad(h))(0.7), second(0.7))
    assert_allclose(xf.hvp(total(f), (X,), (X,)), second(X) * X)
    assert_allclose(xf.linearize(xf.grad(h), 0.7)[1](3.0), 3.0 * second(0.7))
    assert_allclose(xf.jvp(xf.hessian(h), (0.7,), (1.0,))[1], third(0.7))
    assert_allclose(xf.jacfwd(xf.hessian(h))(0.7), third(0.7))
    assert_allclose(xf.grad(xf.hessian(h))(0.7), third(0.7))


@with_forward
def test_forward_mode(f):
    out, tangent = xf.jvp(f, (X,), (X,))
    assert_array_equal(out, np.sin(X))
    assert_allclose(tangent, 2.0 * np.cos(X) * X)
    assert_allclose(xf.linearize(f, 0.7)[1](3.0), 6.0 * np.cos(0.7))
    assert_allclose(xf.jacfwd(square(f))(0.7), first(0.7))
    pushed = lambda x: xf.jvp(square(f), (x,), (1.0,))[1]
    assert_allclose(pushed(0.7), first(0.7))
    assert_allclose(xf.jvp(pushed, (0.7,), (1.0,))[1], second(0.7))
    assert_allclose(xf.grad(pushed)(0.7), second(0.7))


@reverse_alone
def test_a_reverse_rule_serves_forward_mode(f):
    once, twice = 2.0 * np.cos(0.7), -2.0 * np.sin(0.7)
    assert_allclose(xf.jvp(f, (0.7,), (3.0,))[1], 3.0 * once)
    assert_allclose(xf.jvp(xf.vmap(f), (X,), (X,))[1], X * 2.0 * np.cos(X))
    assert_allclose(xf.jvp(xf.trace(f), (0.7,), (1.0,))[1], once)
    assert_allclose(xf.linearize(f, 0.7)[1](2.0), 2.0 * once)
    assert_allclose(xf.grad(lambda x: xf.jvp(f, (x,), (1.0,))[1])(0.7), twice)
    assert_allclose(xf.jacfwd(xf.jacfwd(f))(0.7), twice)
    assert_allclose(xf.hessian(lambda x: xf.fori_loop(0, 1, lambda i, v: f(v), x))(0.7), twice)
    pushed = xf.jvp(lambda x: xf.fori_loop(0, 2, lambda i, v: f(v), x), (0.7,), (1.0,))[1]
    assert_allclose(pushed, once * 2.0 * np.cos(np.sin(0.7)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@every
def test_dtypes_and_shapes_stay(f, dtype):
    for x in (X.astype(dtype), np.zeros((0, 3), dtype), np.array(0.7, dtype)):
        for found in (
            xf.grad(lambda v: f(v).sum())(x),
            xf.vmap(xf.grad(f))(x.reshape(-1)).reshape(x.shape),
            xf.grad(lambda v: xf.vmap(f)(v).sum())(x.reshape(-1)).reshape(x.shape),
            xf.grad(lambda v: xf.grad(total(f))(v).sum())(x) * 0.0 + 2.0 * np.cos(x),
        ):
            assert found.dtype == dtype
            assert_allclose(found, 2.0 * np.cos(x), rtol=1e-5)
    assert type(xf.grad(f)(0.7)) is float
    assert xf.hessian(total(f))(X.astype(dtype)).dtype == dtype


@pytest.mark.parametrize("name", ["vjp", "jvp"])
def test_complex_numbers(name):
    if name == "vjp":
        f = xf.custom_vjp(lambda z: z * z * 1j)
        f.defvjp(lambda z: (f(z), z), lambda z, t: (2j * z * t,))
    else:
        f = xf.custom_jvp(lambda z: z * z * 1j)
        f.defjvp(lambda primals, tangents: (f(*primals), 2j * primals[0] * tangents[0]))
    z = np.array([1.0 + 2.0j, -0.5j])
    plain = lambda v: v * v * 1j
    length = lambda g: lambda v: xnp.sum(xnp.abs(g(v)) ** 2)
    assert_allclose(xf.grad(length(f))(z), xf.grad(length(plain))(z))
    assert_allclose(xf.jacrev(f, holomorphic=True)(z), np.diag(2j * z))
    assert_allclose(xf.jacfwd(xf.jacrev(f, holomorphic=True), holomorphic=True)(z)[0, 0], [2j, 0.0])
    real = lambda x: xnp.sum(xnp.real(f(x * (1.0 + 1.0j))))  # of real x: -2 x^2
    assert_allclose(xf.grad(real)(X), -4.0 * X)
    assert_allclose(xf.hessian(real)(X), np.diag([-4.0] * 3))


# ------------------------------------------------------------------ other layers


@every
def test_row_59_batches(f):
    assert_array_equal(xf.vmap(f)(X), np.sin(X))
    assert_array_equal(xf.vmap(xf.vmap(f))(X[None]), np.sin(X)[None])
    assert_allclose(xf.vmap(xf.grad(f))(X), 2.0 * np.cos(X))
    assert_allclose(xf.grad(lambda x: xf.vmap(f)(x).sum())(X), 2.0 * np.cos(X))
    assert_allclose(xf.vmap(xf.grad(lambda x: xf.vmap(f)(x).sum()))(X[None]), 2.0 * np.cos(X)[None])
    assert_allclose(xf.jacrev(xf.vmap(f))(X), np.diag(2.0 * np.cos(X)))
    assert_allclose(xf.hessian(total(xf.vmap(f)))(X), np.diag(second(X)))
    assert_allclose(xf.vmap(xf.hessian(square(f)))(X), second(X))


@with_forward
def test_batches_of_tangents(f):
    assert_allclose(xf.jvp(xf.vmap(f), (X,), (X,))[1], 2.0 * np.cos(X) * X)
    assert_allclose(xf.vmap(lambda x: xf.jvp(f, (x,), (x,))[1])(X), 2.0 * np.cos(X) * X)
    assert_allclose(xf.jacfwd(xf.vmap(f))(X), np.diag(2.0 * np.cos(X)))


@every
def test_a_batch_runs_function_and_rules_once(f):
    lanes, calls = [], []

    class Seen(xf.Observer):
        def observe(self, op, inputs, outputs):
            calls.append(op.name)

    @functools.partial(xf.custom_gradient, backward=lambda kept, t: lanes.append(t.shape) or t)
    def counted(x):
        lanes.append(x.shape)
        return f(x), None

    found = xf.grad(lambda x: xf.vmap(counted)(x).sum())(np.ones((5, 2)))
    assert lanes == [(2,), (2,)]  # forward and backward, each on one lane's shape, for all five
    assert_array_equal(found, np.ones((5, 2)))
    with Seen():
        xf.vmap(f)(X)
    assert calls == [f"{f.definition.label}"]


@every
def test_traces(f):
    for _ in range(2):
        for name, fun, want in (
            ("trace of grad", xf.trace(xf.grad(square(f))), first(0.7)),
            ("grad of trace", xf.grad(xf.trace(square(f))), first(0.7)),
            ("trace of hessian", xf.trace(xf.hessian(square(f))), second(0.7)),
            ("hessian of trace", xf.hessian(xf.trace(square(f))), second(0.7)),
            ("vmap of trace", lambda x: xf.vmap(xf.trace(xf.grad(square(f))))(X), first(X)),
        ):
            for _ in range(3):  # recorded, then replayed
                assert_allclose(fun(0.7), want, err_msg=name)
    traced = xf.trace(xf.grad(square(f)))
    traced(0.7)
    for later in (xf.grad(traced), xf.jacfwd(traced)):  # what was recorded is differentiated
        assert_allclose(later(0.2), second(0.2))
    assert_allclose(xf.make_program(xf.hessian(square(f)))(0.7)(0.2), second(0.2))
    assert xf.eval_shape(xf.grad(total(f)), X) == xf.aval_of(X)


@every
def test_profiles(f):
    with xf.Profile() as below:
        assert_allclose(xf.grad(total(f))(X), first(X))
    assert below.calls("Cos") == 1  # the rule's operations
    with xf.Profile() as plain:
        assert_array_equal(f(X), np.sin(X))
    assert plain.calls() == plain.calls(f.definition.label) == 1  # one operator
    above = xf.Profile()
    assert_allclose(xf.grad(above(total(f)))(X), first(X))
    assert above.calls(f.definition.label) == 1


@every
def test_checkpoints(f):
    h = xf.checkpoint(square(f))
    assert_allclose(xf.grad(h)(0.7), first(0.7))
    assert_allclose(xf.grad(xf.grad(h))(0.7), second(0.7))
    assert_allclose(xf.hessian(h)(0.7), second(0.7))
    assert_allclose(xf.grad(xf.checkpoint(xf.grad(square(f))))(0.7), second(0.7))
    assert_allclose(xf.vmap(xf.grad(h))(X), first(X))


@pytest.mark.parametrize("device", ["cpu", DEVICE])
@every
def test_devices(f, device):
    host, put = xf.to_numpy, xf.Device
    assert_allclose(host(put(device)(f)(X)), np.sin(X))
    assert_allclose(host(put(device)(xf.grad(total(f)))(X)), first(X))
    assert_allclose(host(xf.grad(put(device)(total(f)))(X)), first(X))
    assert_allclose(host(put(device)(xf.hessian(total(f)))(X)), np.diag(second(X)))
    assert_allclose(host(xf.hessian(put(device)(total(f)))(X)), np.diag(second(X)))
    assert_allclose(host(put(device)(xf.vmap(f))(X)), np.sin(X))
    assert_allclose(host(xf.vmap(put(device)(f))(X)), np.sin(X))


@pytest.mark.parametrize("order", ["inside", "outside"])
def test_what_a_function_takes_from_the_host_is_moved(order):
    weights = np.array([1.0, 2.0, 3.0])
    f = xf.custom_vjp(lambda x: x * weights)
    f.defvjp(lambda x: (f(x), None), lambda _, t: (t * weights,))
    g = lambda x: (f(x) ** 2).sum()
    layer = xf.Device(DEVICE)
    found = xf.grad(layer(g)) if order == "inside" else layer(xf.grad(g))
    assert_allclose(xf.to_numpy(found(X)), 2.0 * X * weights**2)
    assert_allclose(xf.to_numpy(layer(f)(X)), X * weights)


@every
def test_a_rewriter_reaches_into_the_function(f):
    class CosForSin(xf.Rewriter):
        def rewrite(self, op, values):
            return xf.apply(xf.ops.Cos(), *values) if op == xf.ops.Sin() else NotImplemented

    assert_array_equal(CosForSin()(f)(X), np.cos(X))
    rewritten = xf.value_and_grad(CosForSin()(lambda x: f(x).sum()))
    if f is TWICE["pullback, as residual"]:
        with pytest.raises(LayerError, match=r"rewrites values below Grad"):  # the tape of its own
            rewritten(X)
        return
    value, gradient = rewritten(X)
    assert_allclose(value, np.cos(X).sum())
    assert_allclose(gradient, 2.0 * np.cos(X))  # the rule, as it stands


def test_threads_and_groups():
    f, found = TWICE["vjp, fwd calls f"], {}

    def work(n):
        for _ in range(20):
            found[n] = xf.hessian(square(f))(0.1 * n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_allclose([found[n] for n in range(4)], [second(0.1 * n) for n in range(4)])
    with xf.Grad() as a, xf.Grad(group=a) as b:
        xa = a.attach(0.7)
        xb = b.attach(xa)
        y = f(xb)
        assert_allclose(xf.concrete(b.gradient(y, xb)), 2.0 * np.cos(0.7))
        assert_allclose(a.gradient(y, xa), 2.0 * np.cos(0.7))


def test_a_forward_rule_is_not_seen_by_the_tapes_of_a_group():
    attached = []

    def rule(primals, tangents):
        attached.append(a.is_attached(np.cos(primals[0])))
        return np.sin(*primals), 2.0 * np.cos(primals[0]) * tangents[0]

    f = xf.custom_jvp(np.sin)
    f.defjvp(rule)
    with xf.Grad() as a, xf.Grad(group=a) as b:
        xb = b.attach(a.attach(0.7))
        assert_allclose(xf.concrete(b.gradient(f(xb), xb)), 2.0 * np.cos(0.7))
    assert set(attached) == {False}


@every
def test_a_pullback_is_called_again(f):
    for fun in (f, xf.vmap(f)):
        _, pull = xf.vjp(fun, X)
        for t in (X, 2.0 * X, X):
            assert_allclose(pull(t)[0], 2.0 * np.cos(X) * t)


def test_what_is_recorded_of_a_rule():
    for name, ties in (("vjp, fwd calls f", 0), ("vjp", 1), ("jvp, rule calls f", 0), ("jvp", 1), ("gradient", 1)):
        program = xf.make_program(xf.grad(total(TWICE[name])))(X)
        assert str(program).count("SetGradient") == ties, name  # what the function itself gave has its rules already
    product = xf.custom_jvp(lambda x, y: x * y)
    product.defjvp(lambda primals, tangents: (product(*primals), tangents[0] * primals[1] + primals[0] * tangents[1]))
    backward = []
    for argnums in (0, (0, 1)):
        program = xf.make_program(xf.grad(lambda x, y: product(x, y).sum(), argnums))(X, X)
        backward.append([e.op.name for e in program.equations if e.phase == "backward"].count("Mul"))
    assert backward == [1, 2]  # nothing for an argument that is not tracked


def test_residuals_on_other_devices():
    f = xf.custom_vjp(lambda x: x * 1.0)
    f.defvjp(lambda x: (x * x * 0.5, (x, np.array([3.0]))), lambda kept, t: (t * kept[0] * float(kept[1][0]),))
    x = xf.device_put(X, DEVICE)
    slope = lambda v: xnp.sum(xf.grad(lambda u: xnp.sum(f(u) ** 2))(v))
    assert_allclose(xf.to_numpy(xf.grad(slope)(x)), 21.0 * X**2)  # of f squared, with the rule f' = 3 x


@every
def test_a_tape_is_freed_without_the_collector(f):
    def once():
        with xf.Grad() as tape:
            x = tape.attach(X)
            found = tape.gradient(f(x), x, np.ones(3))
        assert_allclose(found, 2.0 * np.cos(X))
        return weakref.ref(tape)

    once()
    gc.collect()
    gc.disable()
    try:
        assert once()() is None
    finally:
        gc.enable()
