"""Loops against the same loops unrolled in Python: values, derivatives of orders 1 to 3 in both modes, layers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from xform.loops import fori_loop, scan, while_loop

trips = pytest.mark.parametrize("trips", [0, *[pytest.param(n, marks=pytest.mark.sweep) for n in (1, 2, 100)], 7])
X = np.array([0.3, 0.8, 1.4])
W = np.array([0.9, 0.5, 1.1])


# ------------------------------------------------------------------ the same loop in three spellings


def step(x, w):
    return x + 0.1 * np.sin(x) * w - 0.02 * x * x


def unrolled(x, w, trips):
    for _ in range(trips):
        x = step(x, w)
    return x


def looped(x, w, trips):
    def body(carry):
        n, x = carry
        return n + 1, step(x, w)

    return while_loop(lambda carry: carry[0] < trips, body, (0, x))[1]


def counted(x, w, trips):
    return fori_loop(0, trips, lambda i, x: step(x, w), x)


def scanned(x, w, trips):
    return scan(lambda x, _: (step(x, w), None), x, length=trips)[0]


LOOPS = {"while_loop": looped, "fori_loop": counted, "scan": scanned}
spellings = pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)


def total(loop, trips):
    """A scalar function of both arguments, with a loss that is not linear in the result."""
    return lambda x, w: (loop(x, w, trips) ** 2).sum() + x[0] * w[1]


def close(found, wanted, rtol=1e-10):
    found, wanted = xf.tree.leaves(found), xf.tree.leaves(wanted)
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=1e-12)


@trips
@spellings
def test_value(loop, trips):
    out = loop(X, W, trips)
    assert type(out) is np.ndarray
    close(out, unrolled(X, W, trips), 1e-13)


@trips
@spellings
def test_gradient(loop, trips):
    close(xf.value_and_grad(total(loop, trips), (0, 1))(X, W), xf.value_and_grad(total(unrolled, trips), (0, 1))(X, W))


@trips
@spellings
def test_tangent(loop, trips):
    direction = (np.array([1.0, -0.5, 2.0]), np.array([0.3, 0.1, -1.0]))
    close(xf.jvp(total(loop, trips), (X, W), direction), xf.jvp(total(unrolled, trips), (X, W), direction))


SECOND = {
    "forward over reverse": lambda f: xf.jacfwd(xf.jacrev(f, (0, 1)), (0, 1)),
    "reverse over reverse": lambda f: xf.jacrev(xf.jacrev(f, (0, 1)), (0, 1)),
    "reverse over forward": lambda f: xf.jacrev(xf.jacfwd(f, (0, 1)), (0, 1)),
    "forward over forward": lambda f: xf.jacfwd(xf.jacfwd(f, (0, 1)), (0, 1)),
}


@trips
@pytest.mark.parametrize("second", SECOND.values(), ids=SECOND)
def test_second_derivatives(second, trips):
    close(second(total(looped, trips))(X, W), second(total(unrolled, trips))(X, W), 1e-8)


@pytest.mark.parametrize("loop", [counted, scanned])
@pytest.mark.parametrize("second", SECOND.values(), ids=SECOND)
def test_second_derivatives_of_counted_loops(loop, second):
    close(second(total(loop, 3))(X, W), second(total(unrolled, 3))(X, W), 1e-8)


def along(f, modes):
    """The derivative of a function of one number, once for each mode, the first innermost."""
    for mode in modes:
        f = xf.grad(f) if mode == "r" else pushed(f)
    return f


def pushed(f):
    return lambda t: xf.jvp(f, (t,), (1.0,))[1]


@pytest.mark.parametrize("modes", ["".join(modes) for modes in itertools.product("rf", repeat=3)])
@pytest.mark.parametrize("trips", [2, *[pytest.param(n, marks=pytest.mark.sweep) for n in (0, 1, 7)]])
def test_third_derivatives_in_all_modes(modes, trips):
    def scalar(loop):
        return lambda t: (loop(X * t, W + t, trips) ** 2).sum()

    close(along(scalar(looped), modes)(0.7), along(scalar(unrolled), modes)(0.7), 1e-8)


def test_third_derivative_of_a_hundred_rounds():
    def scalar(loop):
        return lambda t: loop(X * t, W + t, 100).sum()

    close(along(scalar(looped), "rrr")(0.7), along(scalar(unrolled), "rrr")(0.7), 1e-7)


# ------------------------------------------------------------------ under vmap and trace

LANES = np.stack([X, X * 0.5, X + 0.2, 1.0 - 0.5 * X])


@trips
@spellings
def test_vmap(loop, trips):
    close(xf.vmap(lambda x: loop(x, W, trips))(LANES), np.stack([unrolled(x, W, trips) for x in LANES]))


@trips
@spellings
def test_gradient_under_vmap_and_vmap_under_gradient(loop, trips):
    one = xf.grad(total(unrolled, trips))
    wanted = np.stack([one(x, W) for x in LANES])
    close(xf.vmap(xf.grad(total(loop, trips)), in_axes=(0, None))(LANES, W), wanted)
    close(xf.grad(lambda xs: xf.vmap(total(loop, trips), in_axes=(0, None))(xs, W).sum())(LANES), wanted)


@pytest.mark.parametrize("loop", [looped, counted])
def test_lanes_with_trip_counts_of_their_own(loop):
    trips = np.array([0, 1, 2, 7])
    found = xf.vmap(loop, in_axes=(0, None, 0))(LANES, W, trips)
    close(found, np.stack([unrolled(x, W, n) for x, n in zip(LANES, trips, strict=True)]))

    def loss(loop):
        return lambda x, w, n: (loop(x, w, n) ** 2).sum()

    wanted = [xf.grad(loss(unrolled), (0, 1))(x, W, n) for x, n in zip(LANES, trips, strict=True)]
    found = xf.vmap(xf.grad(loss(loop), (0, 1)), in_axes=(0, None, 0))(LANES, W, trips)
    close(found, (np.stack([a for a, _ in wanted]), np.stack([b for _, b in wanted])))
    together = xf.grad(lambda xs, w: xf.vmap(loss(loop), in_axes=(0, None, 0))(xs, w, trips).sum(), (0, 1))(LANES, W)
    close(together, (np.stack([a for a, _ in wanted]), sum(b for _, b in wanted)))
    hessians = xf.vmap(xf.hessian(loss(loop)), in_axes=(0, None, 0))(LANES, W, trips)
    close(hessians, np.stack([xf.hessian(loss(unrolled))(x, W, n) for x, n in zip(LANES, trips, strict=True)]), 1e-8)


@trips
@spellings
def test_trace(loop, trips):
    f = xf.trace(lambda x, w: loop(x, w, trips))
    program = f.program(X, W)
    assert [type(equation.op).__name__ for equation in program.equations] == ["Loop"]
    for x in (X, X * 0.5):
        close(f(x, W), unrolled(x, W, trips))


@trips
@spellings
def test_gradient_under_trace_and_trace_under_gradient(loop, trips):
    wanted = xf.grad(total(unrolled, trips), (0, 1))
    traced = xf.trace(xf.grad(total(loop, trips), (0, 1)))
    inner = xf.grad(xf.trace(total(loop, trips)), (0, 1))
    for x in (X, X * 0.5):
        close(traced(x, W), wanted(x, W))
        close(inner(x, W), wanted(x, W))


def test_hessian_under_trace_and_vmap():
    wanted = xf.hessian(total(unrolled, 3))
    close(xf.trace(xf.hessian(total(looped, 3)))(X, W), wanted(X, W), 1e-8)
    close(
        xf.vmap(xf.trace(xf.hessian(total(looped, 3))), in_axes=(0, None))(LANES, W),
        np.stack([wanted(x, W) for x in LANES]),
        1e-8,
    )


# ------------------------------------------------------------------ nested loops


def nested_unrolled(x, y, limit):
    """Two deep, the number of inner rounds decided by the data; returns how many there were, too."""
    counts = []
    while float(xf.stop_gradient(x).sum()) < limit:
        z, n = y, 0
        while float(xf.stop_gradient(z).max()) < float(xf.stop_gradient(x).max()) + 1.0:
            z = z * 1.3 + 0.1 * np.cos(x)
            n += 1
        counts.append(n)
        x = x + 0.3 * z
        y = y * 0.95 + 0.05 * np.sin(z)
    return x * y, counts


def nested_looped(x, y, limit):
    def inner(x, y):
        return while_loop(lambda z: z.max() < x.max() + 1.0, lambda z: z * 1.3 + 0.1 * np.cos(x), y)

    def body(carry):
        x, y = carry
        z = inner(x, y)
        return x + 0.3 * z, y * 0.95 + 0.05 * np.sin(z)

    x, y = while_loop(lambda carry: carry[0].sum() < limit, body, (x, y))
    return x * y


Y = np.array([0.4, 0.6, 0.5])
limits = pytest.mark.parametrize("limit", [1.0, 4.0, 9.0, 20.0])


@limits
def test_nested_value_and_gradients(limit):
    value, counts = nested_unrolled(X, Y, limit)
    assert len(counts) == {1.0: 0, 4.0: 1, 9.0: 3, 20.0: 6}[limit]
    assert limit < 9 or len(set(counts)) > 1
    close(nested_looped(X, Y, limit), value)

    def loss(f):
        return lambda x, y: (f(x, y, limit) ** 2).sum()

    plain = loss(lambda *args: nested_unrolled(*args)[0])
    close(xf.grad(loss(nested_looped), (0, 1))(X, Y), xf.grad(plain, (0, 1))(X, Y))
    close(xf.jacfwd(loss(nested_looped), (0, 1))(X, Y), xf.grad(plain, (0, 1))(X, Y))
    close(xf.trace(xf.grad(loss(nested_looped), (0, 1)))(X, Y), xf.grad(plain, (0, 1))(X, Y))


def test_nested_second_derivatives():
    def loss(f):
        return lambda x, y: (f(x, y, 9.0) ** 2).sum()

    plain = loss(lambda *args: nested_unrolled(*args)[0])
    wanted = xf.hessian(plain, (0, 1))(X, Y)
    close(xf.hessian(loss(nested_looped), (0, 1))(X, Y), wanted, 1e-8)
    close(xf.jacrev(xf.jacrev(loss(nested_looped), (0, 1)), (0, 1))(X, Y), wanted, 1e-8)


def test_nested_under_vmap():
    xs, ys = np.stack([X, X * 0.9, X * 0.2, X + 8.0]), np.stack([Y, Y * 0.8, Y, Y * 1.5])

    def loss(f):
        return lambda x, y: (f(x, y, 9.0) ** 2).sum()

    plain = loss(lambda *args: nested_unrolled(*args)[0])
    pairs = list(zip(xs, ys, strict=True))
    close(xf.vmap(loss(nested_looped))(xs, ys), np.stack([plain(x, y) for x, y in pairs]))
    wanted = [xf.grad(plain, (0, 1))(x, y) for x, y in pairs]
    wanted = np.stack([a for a, _ in wanted]), np.stack([b for _, b in wanted])
    close(xf.vmap(xf.grad(loss(nested_looped), (0, 1)))(xs, ys), wanted)
    close(xf.grad(lambda xs, ys: xf.vmap(loss(nested_looped))(xs, ys).sum(), (0, 1))(xs, ys), wanted)


# ------------------------------------------------------------------ kinds of arrays


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_dtypes(dtype):
    x = X.astype(dtype)
    w = W.astype(dtype) * (1 + 0.5j if dtype[0] == "c" else 1)
    w = w.astype(dtype)
    out = looped(x, w, 3)
    assert out.dtype == dtype
    rtol = 1e-4 if dtype in ("float32", "complex64") else 1e-10
    close(out, unrolled(x, w, 3), rtol)

    def loss(loop):
        return lambda x, w: xnp.abs(loop(x, w, 3)).sum()

    found = xf.grad(loss(looped), (0, 1))(x, w)
    assert [each.dtype for each in found] == [dtype, dtype]
    close(found, xf.grad(loss(unrolled), (0, 1))(x, w), rtol)


@pytest.mark.parametrize("x", [np.array(0.5), np.float64(0.5), 0.5, np.zeros((0,)), np.ones((2, 1, 3))])
def test_shapes(x):
    def f(loop):
        return lambda x: xnp.sum(loop(x, 0.7, 4) ** 2)

    close(f(looped)(x), f(unrolled)(x))
    close(xf.grad(f(looped))(x), xf.grad(f(unrolled))(x))
    assert type(xf.grad(f(looped))(x)) is type(xf.grad(f(unrolled))(x))


@spellings
def test_other_libraries(loop):
    strict = pytest.importorskip("array_api_strict")
    x, w = strict.asarray(X), strict.asarray(W)

    def body(loop):
        return lambda x, w: xnp.sum(loop(x, w, 4) ** 2)

    def step_of(x, w):
        return x + 0.1 * xnp.sin(x) * w - 0.02 * x * x

    def run(x, w, trips):
        if loop is looped:
            start = xf.array(strict.asarray(0)), x
            return while_loop(lambda c: c[0] < trips, lambda c: (c[0] + 1, step_of(c[1], w)), start)[1]
        if loop is counted:
            return fori_loop(0, trips, lambda i, x: step_of(x, w), x)
        return scan(lambda x, _: (step_of(x, w), None), x, length=trips)[0]

    found = xf.value_and_grad(body(run), (0, 1))(x, w)
    close(xf.tree.map(xf.to_numpy, found), xf.value_and_grad(body(unrolled), (0, 1))(X, W))


def test_values_in_values_out():
    out = looped(xf.array(X), W, 3)
    assert isinstance(out, xf.Array)
    assert type(looped(X, W, 3)) is np.ndarray
    with xf.Profile():
        assert type(looped(X, W, 3)) is np.ndarray


def test_threads():
    from concurrent.futures import ThreadPoolExecutor

    wanted = xf.grad(total(unrolled, 7), (0, 1))(X, W)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: xf.grad(total(looped, 7), (0, 1))(X, W), range(16)):
            close(found, wanted)
