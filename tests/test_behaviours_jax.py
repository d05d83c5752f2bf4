"""What JAX's tests check, rows 31 to 37 of section 4 of the list of behaviours: powers, remainder, sorting, scattering.

Rows 38 to 58 are in test_behaviours_jax_arguments; loops, custom rules, checkpoints, complex numbers elsewhere.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import xform as xf
import xform.numpy as xnp
from xform import ops
from xform.core.errors import GradientError
from xform.testing import check_grads

X = np.array([0.4, 1.3, 2.1])


def by_reverse(fun, argnums=0):
    return xf.grad(fun, argnums)


def by_forward(fun, argnums=0):
    return xf.jacfwd(fun, argnums)


both_modes = pytest.mark.parametrize("derivative", [by_reverse, by_forward])


# ------------------------------------------------------------------ powers


@pytest.mark.parametrize("outer", [xf.jacfwd, xf.jacrev])
@pytest.mark.parametrize("inner", [xf.jacfwd, xf.jacrev])
@pytest.mark.parametrize("y", [0.0, np.array(0.0)])
def test_row_31_second_derivatives_of_a_power_at_exponent_0(outer, inner, y):
    for x in (0.7, 3.0):
        found = outer(inner(xnp.power, (0, 1)), (0, 1))(x, y)
        assert_allclose(found, [[0.0, 1 / x], [1 / x, np.log(x) ** 2]], rtol=1e-12)


@both_modes
@pytest.mark.parametrize(("exponent", "slope"), [
    (0, 0.0), (0.0, 0.0), (np.array(0), 0.0), (np.array(0.0), 0.0),
    (np.arange(2), 1.0), (np.arange(2.0), 1.0), (1, 1.0), (1.0, 1.0), (2, 0.0), (2.0, 0.0),
])  # fmt: skip
def test_row_32_slope_of_a_power_of_zero(derivative, exponent, slope):
    with np.errstate(all="raise"):
        assert derivative(lambda x: np.sum(x**exponent))(0.0) == slope
        single = derivative(lambda x: np.sum(np.power(x, exponent)).astype(np.float32))(np.float32(0.0))
        assert (single, single.dtype) == (slope, np.float32)
        # at another base: n x**(n - 1)
        assert_allclose(derivative(lambda x: np.sum(x**exponent))(3.0), np.sum(exponent * 3.0 ** (exponent - 1.0)))


@both_modes
def test_row_32_exponent_and_second_order_at_zero_to_the_zero(derivative):
    with np.errstate(all="raise"):
        assert_array_equal(derivative(xnp.power, (0, 1))(0.0, 0.0), (0.0, 0.0))
        assert_array_equal(derivative(xnp.power, (0, 1))(0.0, 2.0), (0.0, 0.0))
        for outer in (by_reverse, by_forward):
            assert outer(derivative(lambda x: x**0))(0.0) == 0.0
            assert outer(derivative(lambda x: x**0.0))(0.0) == 0.0
            assert outer(derivative(lambda x: x**2.0))(0.0) == 2.0


@pytest.mark.parametrize(("shape", "other"), [((4,), (4,)), ((3, 1), (1, 4)), ((), (4,)), ((2, 4), ())])
def test_row_34_remainder_with_both_signs_broadcast_both_ways(shape, other):
    def away_from_jumps(count):
        return np.array([5.3, -4.6, 3.9, -2.4, 6.7, -3.2, 1.3, -5.9])[:count]

    x = away_from_jumps(int(np.prod(shape))).reshape(shape)
    for sign in (1.0, -1.0):
        y = np.full(other, sign * 1.7)
        assert_array_equal(xnp.remainder(x, y), np.remainder(x, y))
        check_grads(xnp.remainder, (x, y), order=2)
        dx, dy = xf.grad(lambda x, y: np.sum(x % y), (0, 1))(x, y)
        assert_array_equal(dx, np.full(shape, np.broadcast(x, y).size / x.size))
        assert_array_equal(dy, (-np.floor(x / y)).reshape(-1, *other).sum(axis=0))


# ------------------------------------------------------------------ sorting, scattering


def test_row_35_sort_of_an_empty_array():
    for empty in (np.zeros(0), np.zeros((3, 0)), np.zeros((0, 3))):
        assert xf.grad(lambda x: np.sum(np.sort(x)))(empty).shape == empty.shape
        assert xf.jvp(np.sort, (empty,), (empty,))[1].shape == empty.shape
        assert xf.vmap(np.sort)(np.zeros((2, 0))).shape == (2, 0)


@pytest.mark.parametrize("axis", [0, 1, -1, None])
def test_row_35_sort_and_sort_by_key(axis):
    keys = np.array([[3.0, -1.0, 2.0], [0.5, 7.0, -4.0]])
    values = np.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])
    weights = np.arange(6.0).reshape(values.shape if axis is not None else -1)
    check_grads(lambda x: np.sort(x**3, axis=axis), (keys,), order=2)
    order = np.argsort(keys, axis=axis)

    def by_key(k, v):
        return np.take_along_axis(v, np.argsort(k, axis=axis), axis=axis)

    assert_array_equal(by_key(keys, values), np.take_along_axis(values, order, axis=axis))
    dk, dv = xf.grad(lambda k, v: np.sum(by_key(k, v) * weights), (0, 1))(keys, values)
    want = np.zeros(values.shape if axis is not None else 6)
    np.put_along_axis(want, order, weights, axis=-1 if axis is None else axis)
    assert_array_equal(dv, want.reshape(values.shape))
    assert_array_equal(dk, np.zeros_like(keys))
    assert_array_equal(xf.jvp(by_key, (keys, values), (keys, values))[1], by_key(keys, values))


@pytest.mark.parametrize("k", [0, 1, 3, 5])
def test_row_35_top_k(k):
    x = np.array([[3.0, -1.0, 2.0, 9.0, 0.5], [0.25, 7.0, -4.0, 1.0, 6.0]])
    values, places = ops.top_k(x, k)
    assert_array_equal(values, -np.sort(-x)[:, :k])
    assert_array_equal(np.take_along_axis(x, places, 1), values)
    want = np.zeros_like(x)
    np.put_along_axis(want, np.argsort(-x)[:, :k], np.arange(1.0, k + 1), axis=1)
    assert_array_equal(xf.grad(lambda x: np.sum(ops.top_k(x, k)[0] * np.arange(1.0, k + 1)))(x), want)
    if k:
        check_grads(lambda x: ops.top_k(x**3, k)[0], (x,), order=2)


AT = np.array([2, 0, 2])
U = np.array([0.5, -1.0, 2.5])


def scattered(how):
    return lambda x, u: getattr(ops.At(x)[AT], how)(u)


# what comes back of a cotangent of [1, 2, 3] for x = [0.4, 1.3, 2.1] and u = U at places 2, 0, 2
@pytest.mark.parametrize(("how", "value", "dx", "du"), [
    ("add", [-0.6, 1.3, 5.1], [1, 2, 3], [3, 1, 3]),
    ("set", [-1.0, 1.3, 2.5], [0, 2, 0], [0, 1, 3]),  # the last write to a place is the one that counts
    ("max", [0.4, 1.3, 2.5], [1, 2, 0], [0, 0, 3]),
    ("min", [-1.0, 1.3, 0.5], [0, 2, 0], [3, 1, 0]),
])  # fmt: skip
def test_row_37_scatter(how, value, dx, du):
    out, pullback = xf.vjp(scattered(how), X, U)
    assert_allclose(out, value, rtol=1e-15)
    found = pullback(np.array([1.0, 2.0, 3.0]))
    assert_array_equal(found[0], dx)
    assert_array_equal(found[1], du)
    check_grads(scattered(how), (X, U), order=2)


@pytest.mark.parametrize("how", ["add", "set", "max", "min", "mul"])
def test_row_37_scatter_of_a_constant_update_and_into_a_constant(how):
    """One operand alone varies; the other has no tangent at all."""
    for fun, arg in ((lambda x: scattered(how)(x, U), X), (lambda u: scattered(how)(X, u), U)):
        check_grads(fun, (arg,), order=2)
        assert_array_equal(xf.jacfwd(fun)(arg), xf.jacrev(fun)(arg))
    assert_array_equal(xf.grad(lambda x: np.sum(scattered(how)(X, np.zeros(3)) * x))(X), scattered(how)(X, np.zeros(3)))


@pytest.mark.parametrize("read", [
    lambda x, at: x[at], lambda x, at: np.take(x, at), lambda x, at: np.take_along_axis(x, at, 0),
])  # fmt: skip
def test_row_37_a_gathers_cotangent_is_accumulated_in_its_own_dtype(read):
    """Sums of ones in half precision stop at 2048. A cotangent has the dtype of its primal, so the cast decides."""
    x, at = np.zeros(3, np.float16), np.zeros(4096, int)
    found = xf.grad(lambda x: np.sum(read(x.astype(np.float32), at)))(x)
    assert found.dtype == np.float16
    assert_array_equal(found, [4096.0, 0.0, 0.0])
    _, pullback = xf.vjp(lambda x: read(x, at), x)
    with pytest.raises(GradientError, match=r"the cotangent is float32\[4096\], the output float16\[4096\]"):
        pullback(np.ones(4096, np.float32))
    with xf.Grad() as tape:
        handle = tape.attach(x)
        y = read(handle, at[:3])
        found = tape.gradient(y, handle, np.ones(3, np.float32))
    assert found.dtype == np.float16
    assert_array_equal(found, [3.0, 0.0, 0.0])
