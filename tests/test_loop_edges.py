"""Loops and branches at the edges: no lanes, narrow integers, Python numbers, values that are handed back."""

from __future__ import annotations

import numpy as np
import pytest

import xform as xf
from xform.loops import fori_loop, scan, while_loop

X = np.array([0.4, 1.3])


@pytest.mark.parametrize("of", [lambda f: f, xf.grad], ids=["value", "gradient"])
def test_a_batch_of_no_lanes(of):
    empty, bounds = np.zeros(0), np.zeros(0, int)
    found = xf.vmap(of(lambda x: while_loop(lambda y: y < 3.0, lambda y: y * 2.0, x)))(empty)
    assert (found.shape, found.dtype) == ((0,), np.float64)
    found = xf.vmap(of(lambda x, n: fori_loop(0, n, lambda i, y: y * x, x)))(empty, bounds)
    assert (found.shape, found.dtype) == ((0,), np.float64)


@pytest.mark.parametrize(("dtype", "lower", "upper"), [("int8", -100, 100), ("uint8", 3, 250), ("uint64", 1, 4)])
def test_bounds_of_narrow_integers(dtype, lower, upper):
    lowers, uppers = np.array([lower, upper], dtype), np.array([upper, lower], dtype)  # the second has no rounds
    total = lambda a, b: fori_loop(a, b, lambda i, x: x + i, 0)
    wanted = [sum(range(lower, upper)), 0]
    assert [total(a, b) for a, b in zip(lowers, uppers, strict=True)] == wanted
    np.testing.assert_array_equal(xf.vmap(total)(lowers, uppers), wanted)
    np.testing.assert_array_equal(xf.vmap(xf.trace(total))(lowers, uppers), wanted)


@pytest.mark.parametrize(("body", "start", "wanted"), [
    (lambda i, c: (c[1], c[2], c[2] * np.float32(2)), (1.0, 2.0, 3.0), (np.float32(6), np.float32(12), np.float32(24))),
    (lambda i, c: (c[1], c[2] + 0.5, c[2]), (1, 2, 3), (np.float64(3.5), np.float64(3.5), np.int64(3))),
    (lambda i, c: (c[1], c[0]), (1, 2.5), (np.float64(2.5), np.float64(1.0))),
    (lambda i, c: c * 2, 1, np.int64(8)),
])  # fmt: skip
def test_python_numbers_take_the_dtype_that_they_get_over_several_carries(body, start, wanted):
    found = fori_loop(0, 3, body, start)
    assert found == wanted
    assert [np.asarray(x).dtype for x in xf.tree.leaves(found)] == [x.dtype for x in xf.tree.leaves(wanted)]


@pytest.mark.parametrize("lift", [lambda x: x, xf.array], ids=["raw", "tracked"])
def test_a_value_from_outside_that_is_handed_back_as_it_is(lift):
    w, v = lift(np.array([2.0, 3.0])), lift(np.array([5.0, 7.0]))
    found = while_loop(lambda c: c[1] < 3, lambda c: (w, c[1] + 1), (np.zeros(2), 0))[0]
    np.testing.assert_allclose(xf.to_numpy(found), np.array([2.0, 3.0]))
    np.testing.assert_allclose(xf.to_numpy(scan(lambda c, _: (c, w), 0.0, length=2)[1]), np.array([[2.0, 3.0]] * 2))
    chosen = lambda x: xf.cond(x > 0.0, lambda: w, lambda: v)
    np.testing.assert_allclose(xf.to_numpy(xf.vmap(chosen)(np.array([1.0, -1.0]))), np.array([[2.0, 3.0], [5.0, 7.0]]))
    np.testing.assert_allclose(xf.to_numpy(xf.trace(chosen)(-1.0)), np.array([5.0, 7.0]))


def test_gradient_of_what_is_handed_back_as_it_is():
    def looped(w):
        return while_loop(lambda c: c[1] < 3, lambda c: (w, c[1] + 1), (np.zeros(2), 0))[0]

    def chosen(x, w):
        return xf.cond(x > 0.0, lambda: w, lambda: np.ones(2)).sum() * x

    np.testing.assert_allclose(xf.grad(lambda w: (looped(w) ** 2).sum())(X), 2 * X)
    np.testing.assert_allclose(xf.jacfwd(looped)(X), np.eye(2))
    xs = np.array([2.0, -3.0])
    dx, dw = xf.vmap(xf.grad(chosen, (0, 1)), in_axes=(0, None))(xs, X)
    np.testing.assert_allclose(dx, [X.sum(), 2.0])
    np.testing.assert_allclose(dw, [[2.0, 2.0], [0.0, 0.0]])
