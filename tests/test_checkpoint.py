"""Checkpoints: what they compute, of functions of every kind, in every composition."""

from __future__ import annotations

import functools

import attrs
import numpy as np
import pytest
from numpy.testing import assert_allclose
from typeguard import suppress_type_checks

import xform as xf
import xform.numpy as xnp
from tests.checkpoint_cases import W, X, agree, plainly
from tests.operators.collect import families, operands

# ------------------------------------------------------------------ derivatives


def floating(x):
    return xf.aval_of(x).dtype.kind in "fc"


def total(fun, args):
    """A number out of a row of the operators' cases, of its floating operands alone."""
    leaves, structure = xf.tree.flatten(args)
    places = [i for i, leaf in enumerate(leaves) if floating(leaf)]

    def number(*xs):
        full = list(leaves)
        for i, x in zip(places, xs, strict=True):
            full[i] = x
        outs = [leaf for leaf in xf.tree.leaves(fun(*xf.tree.unflatten(structure, full))) if floating(leaf)]
        weights = [np.cos(np.arange(np.prod(xf.aval_of(y).shape, dtype=int)) + n) for n, y in enumerate(outs)]
        weighed = [(y, w.reshape(xf.aval_of(y).shape)) for y, w in zip(outs, weights, strict=True)]
        return sum([xnp.sum(xnp.real(y * y * w) + 0.3 * xnp.real(y) * w) for y, w in weighed], 0.0)

    return number, [leaves[i] for i in places]


@pytest.mark.parametrize("below", [False, True], ids=["bottom", "above a layer"])
@pytest.mark.parametrize("family", families())
def test_every_operator_has_the_derivative_it_has_without(family, below):
    """What is not computed again is not needed: a rule that meets the aval of an operand in its place would raise."""
    count = 0
    with suppress_type_checks():
        for row in families()[family]:
            args = operands(row, "complex128" if row.complex else "float64")
            plain, xs = total(row.fun, args)
            if "rev" not in row.modes or not xs or not floating(plain(*xs)):
                continue
            want = xf.grad(plain, tuple(range(len(xs))))(*xs)
            for fun in (xf.checkpoint(plain), total(xf.checkpoint(row.fun), args)[0]):
                found = xf.grad(fun, tuple(range(len(xs))))
                found = xf.NanGuard(mode="warn", inf=False)(found)(*xs) if below else found(*xs)
                for have, expected in zip(found, want, strict=True):
                    assert xf.aval_of(have) == xf.aval_of(expected), row
                    assert_allclose(have, expected, rtol=1e-10, atol=1e-12, err_msg=str(row))
            count += 1
    assert count


def deep(ck):
    """A program that takes values from around its checkpoints, at several levels."""

    def fun(x, w):
        h = np.sin(w) * 2.0

        def outer(z):
            shift = np.cos(z) * w
            return ck(lambda u: np.tanh(u * h) * shift + w)(z) + ck(np.sin)(z)

        return ck(outer)(ck(outer)(x))

    return fun


DERIVATIVES = {
    "grad": lambda f: xf.grad(f, (0, 1)),
    "grad of the second": lambda f: xf.grad(f, 1),
    "jvp": lambda f: lambda x, w: xf.jvp(f, (x, w), (w, x)),
    "forward over reverse": lambda f: lambda x, w: xf.jvp(xf.grad(f, (0, 1)), (x, w), (w, x)),
    "reverse over forward": lambda f: xf.grad(lambda x, w: xf.jvp(f, (x, w), (w, x))[1], (0, 1)),
    "reverse over reverse": lambda f: xf.grad(lambda x, w: xnp.sum(xf.grad(f)(x, w) * xf.grad(f, 1)(x, w)), (0, 1)),
    "mixed": lambda f: lambda x, w: xf.grad(lambda v: xnp.sum(xf.grad(lambda u: f(u, v))(x) ** 2))(w),
    "third": lambda f: xf.grad(lambda x, w: xnp.sum(xf.grad(lambda u, v: xnp.sum(xf.grad(f)(u, v) * v))(x, w) ** 2)),
    "hessian": xf.hessian,
    "hvp": lambda f: lambda x, w: xf.hvp(f, (x, w), (w, x)),
    "vmap of grad": lambda f: lambda x, w: xf.vmap(xf.grad(f, (0, 1)), (0, None))(np.stack([x, w]), w),
    "grad of vmap": lambda f: xf.grad(lambda x, w: xnp.sum(xf.vmap(f, (None, 0))(x, xnp.stack([w, w * 0.5]))), (0, 1)),
    "trace of grad": lambda f: twice(xf.trace(xf.grad(f, (0, 1)))),
    "grad of trace": lambda f: twice(xf.grad(xf.trace(f), (0, 1))),
    "program": lambda f: lambda x, w: xf.make_program(xf.grad(f, (0, 1)))(x, w)(x, w),
    "profile above": lambda f: xf.grad(xf.Profile()(f), (0, 1)),
    "profile below": lambda f: xf.Profile()(xf.grad(f, (0, 1))),
    "guard of all arrays": lambda f: guarded(f),
    "device above": lambda f: xf.grad(xf.Device("array_api_strict:device1")(f), (0, 1)),
    "device below": lambda f: xf.Device("array_api_strict:device1")(xf.grad(f, (0, 1))),
}


def twice(fun):
    """Call a function for a signature, and again: a trace records, and then replays."""

    def second(x, w):
        fun(x * 0.5, w)
        return fun(x, w)

    return second


def guarded(fun):
    def gradients(x, w):
        with xf.Grad(guard="full") as tape:
            u, v = tape.attach(x), tape.attach(w)
            y = fun(u, v)
        return tape.gradient(y, (u, v))

    return gradients


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_in_every_composition(name):
    made = DERIVATIVES[name]

    def make(ck):
        def number(x, w):
            y = deep(ck)(x, w)
            return xnp.sum(y * y * 0.5 + y)

        def on_host(x, w):
            return xf.tree.map(xf.to_numpy, made(number)(x, w))

        return on_host if "device" in name else made(number)

    with suppress_type_checks():
        agree(make, X, W, rtol=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("shape", [(), (3,), (0,), (2, 0)])
def test_dtypes_and_shapes(dtype, shape):
    x = (np.arange(np.prod(shape)).reshape(shape) * 0.3 + 0.2).astype(dtype)
    x = x * np.exp(0.3j).astype(dtype) if x.dtype.kind == "c" else x

    def make(ck):
        body = ck(lambda z: np.sin(z * 2.0) * np.exp(-z))
        return xf.grad(lambda z: xnp.sum(xnp.abs(body(body(z))) ** 2))

    assert agree(make, x, rtol=1e-6 if x.dtype.itemsize < 8 + 4 * (x.dtype.kind == "c") else 1e-12).dtype == x.dtype


@pytest.mark.parametrize("x", [0.5, np.float32(0.5), np.array(0.5), xf.array(0.5), xf.array(X)])
def test_numbers_and_tracked_arrays(x):
    agree(lambda ck: xf.value_and_grad(lambda z: xnp.sum(ck(lambda u: u * np.sin(u))(z))), x)
    agree(lambda ck: xf.grad(xf.grad(lambda z: xnp.sum(ck(lambda u: u * np.sin(u))(z)))), 0.5)


def test_arrays_of_another_library():
    strict = pytest.importorskip("array_api_strict")
    x = strict.asarray([0.3, -0.7, 1.1])

    def make(ck, around=plainly):
        body = ck(lambda z: xnp.where(z > 0.0, xnp.sin(z), z * z) * 2.0)
        return xf.grad(around(lambda z: xnp.sum(body(body(z)))))

    for around in (plainly, xf.checkpoint):  # in the second nothing but the recomputation knows of the library
        found = make(xf.checkpoint, around)(x)
        assert type(found) is type(x)
        assert_allclose(np.asarray(found), make(plainly)(X), rtol=1e-12)


def test_containers_keywords_and_results_that_are_no_arrays():
    def make(ck):
        def body(state, *, scale, **rest):
            h = np.sin(state["h"]) * scale + rest["shift"]
            return {"h": h, "seen": [h * 2.0, (h[0],)]}, "text", 3, None

        def loss(x, w):
            state, text, three, nothing = ck(body)({"h": x}, scale=w, shift=1.0)
            assert (text, three, nothing) == ("text", 3, None)
            (again, *_), (first,) = state["seen"], state["seen"][1]
            return xnp.sum(state["h"] * again) + first

        return xf.value_and_grad(loss, (0, 1))

    agree(make, X, W)


def test_methods_and_partials():
    @attrs.define(eq=False)
    class Layer:
        w: object

        @xf.checkpoint
        def __call__(self, x):
            """Run the layer."""
            return np.sin(x * self.w)

    layer = Layer(W)
    assert_allclose(xf.grad(lambda x: xnp.sum(layer(x)))(X), W * np.cos(X * W))
    assert Layer.__call__.__doc__ == "Run the layer."
    bound = xf.checkpoint(functools.partial(lambda w, x: np.sin(x * w), W))
    assert_allclose(xf.grad(lambda x: xnp.sum(bound(x)))(X), W * np.cos(X * W))


# ------------------------------------------------------------------ one run of the function


def test_the_function_runs_once_and_loops_bind_late():
    ran = []

    def make(ck):
        def loss(x):
            scales = [1.0, 2.0, 3.0]
            for k in range(3):
                x = ck(lambda z: ran.append(k) or np.sin(z * scales[k]) + k)(x)  # noqa: B023  (bound late on purpose)
            scales[:] = [0.0, 0.0, 0.0]
            return xnp.sum(x)

        return xf.grad(loss)

    agree(make, X)
    assert ran == [0, 1, 2] * 2  # with checkpoints, and without


def test_random_numbers_are_those_of_the_call():
    rng = np.random.default_rng(0)
    drawn = []

    def noisy(x):
        drawn.append(rng.normal(size=3))
        return np.sin(x * drawn[-1])

    found = xf.grad(lambda x: xnp.sum(xf.checkpoint(noisy)(x)))(X)
    assert len(drawn) == 1
    assert_allclose(found, drawn[0] * np.cos(X * drawn[0]))


def test_control_flow_on_values():
    def make(ck):
        def body(z):
            rounds = 0
            while xnp.sum(z * z) > 0.3 and rounds < 10:
                z, rounds = np.sin(z) * 0.9, rounds + 1
            return z * float(xf.stop_gradient(z[0])) if z[1] < 0 else z, rounds

        def loss(x):
            y, rounds = ck(body)(x)
            return xnp.sum(y), rounds

        return xf.value_and_grad(loss, has_aux=True)

    (_, rounds), _ = agree(make, X)
    assert rounds > 1
    agree(make, -X)


DRAWN = []


@attrs.frozen
class Draw(xf.Operator):
    """A product with another number at each call."""

    impure = True

    def infer(self, x):
        return x

    def evaluate(self, xp, x):
        DRAWN.append(len(DRAWN) + 2.0)
        return x * DRAWN[-1]


@xf.vjp_rule(Draw)
def draw_vjp(op, needed, x):
    out = xf.apply(op, x)
    factor = DRAWN[-1]
    return out, lambda t: (t * factor,)


@pytest.mark.parametrize("order", [1, 2])
def test_an_operation_that_must_not_be_repeated_is_not(order):
    def make(ck):
        def body(z):
            h = np.sin(z)
            return np.sin(xf.apply(Draw(), h) * xf.apply(Draw(), xf.array(W)) * h)

        def gradient(x):
            DRAWN.clear()
            fun = lambda u: xnp.sum(ck(lambda z: ck(body)(np.cos(z)) * z)(u) ** 2)
            found = xf.grad(fun if order == 1 else lambda u: xnp.sum(xf.grad(fun)(u) ** 2))(x)
            assert DRAWN == [2.0, 3.0]
            return found

        return gradient

    agree(make, X)


def test_values_that_leave_the_function_by_another_way_keep_their_derivatives():
    def make(ck):
        def loss(x):
            kept = []

            def body(z):
                kept.append(np.sin(z))
                return kept[-1] ** 2, lambda u: u * kept[-1]

            y, closure = ck(body)(x)
            out, pullback = ck(lambda z: xf.vjp(lambda u: np.sin(u * z) * z, z))(y)
            return xnp.sum(closure(y) * kept[0] + out * pullback(x * x)[0])

        return xf.grad(loss)

    agree(make, X)


def test_what_is_left_behind_by_an_error_has_its_derivative_too():
    kept = []

    def failing(z):
        kept.append(np.sin(z))
        raise ZeroDivisionError

    def loss(x):
        with pytest.raises(ZeroDivisionError):
            xf.checkpoint(failing)(x)
        return xnp.sum(kept[-1])

    assert_allclose(xf.grad(loss)(X), np.cos(X))
    assert xf.stack() == ()
