"""Sorting, order statistics and weighted averages."""

from __future__ import annotations

import itertools

import array_api_strict as strict
import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from tests.operators.test_reductions import assert_same, outcome
from xform import ops
from xform.core.errors import IndexOperandError, OperandError, ShapeError

TABLE = np.array([[3.0, 1.0, 3.0], [np.nan, 2.0, -1.0]])


@pytest.mark.parametrize("name", ["sort", "argsort"])
def test_sorts_are_numpys(name):
    arrays = (
        TABLE,
        TABLE[0],
        np.arange(6)[::-1].reshape(2, 3) % 4,
        np.array([True, False]),
        np.zeros((0, 3)),
        np.float64(3.0),
    )
    for x, axis in itertools.product(arrays, (-1, 0, 1, None)):
        want = outcome(getattr(np, name), x, axis, kind="stable")
        got = outcome(getattr(xnp, name), x, axis)
        if isinstance(want, type):
            assert got is want, (x, axis)
        else:
            assert_same(got, want)
    with pytest.raises(IndexOperandError, match="ort: axis 2"):
        getattr(xnp, name)(TABLE, 2)


def test_falling_order_keeps_ties_in_order():
    x = np.array([1.0, 3.0, 3.0, 2.0])
    np.testing.assert_array_equal(xnp.argsort(x, descending=True), [1, 2, 3, 0])
    np.testing.assert_array_equal(xnp.sort(x, descending=True), [3, 3, 2, 1])
    values, order = ops.top_k(np.stack([x, -x]), 2)
    np.testing.assert_array_equal(values, [[3, 3], [-1, -2]])
    np.testing.assert_array_equal(order, [[1, 2], [0, 3]])
    np.testing.assert_array_equal(ops.top_k(np.stack([x, -x]), 1, axis=0)[0], [x])
    for k in (-1, 5):
        with pytest.raises(OperandError, match="top_k"):
            ops.top_k(x, k)


def test_gradient_of_sort_follows_the_permutation():
    x = np.array([[3.0, 1.0, 3.0], [0.0, 2.0, -1.0]])
    weight = np.array([[10.0, 20.0, 30.0], [1.0, 2.0, 3.0]])
    np.testing.assert_array_equal(xf.grad(lambda v: xnp.sum(xnp.sort(v) * weight))(x), [[20, 10, 30], [2, 3, 1]])
    np.testing.assert_array_equal(xf.grad(lambda v: xnp.sum(xnp.sort(v, 0) * weight))(x), [[1, 20, 3], [10, 2, 30]])
    assert xf.grad(lambda v: xnp.sum(xnp.sort(v, 0)))(np.zeros((0, 2))).shape == (0, 2)


def test_median_and_quantile_are_numpys():
    rng = np.random.default_rng(2)
    for shape, axis, keepdims in itertools.product(((5,), (4, 3), (2, 3, 4)), (None, 0, -1), (False, True)):
        x = rng.normal(size=shape)
        np.testing.assert_allclose(xnp.median(x, axis, keepdims), np.median(x, axis, keepdims=keepdims))
        for q in (0.0, 0.3, 1.0, [0.25, 0.5], [[0.1, 0.9]]):
            np.testing.assert_allclose(xnp.quantile(x, q, axis, keepdims), np.quantile(x, q, axis, keepdims=keepdims))
    np.testing.assert_allclose(xnp.median(rng.normal(size=(2, 3, 4)), axis=(0, 2)).shape, (3,))
    np.testing.assert_array_equal(xnp.median(TABLE, axis=1), [3.0, np.nan])
    assert xnp.median(np.array([1, 2, 3, 4])) == 2.5
    assert xnp.median(np.array([-np.inf, 1.0, np.inf])) == 1.0
    assert xnp.median(np.array([1.0, 2.0], np.float32)).dtype == np.float32
    with pytest.raises(ShapeError, match="quantile"):
        xnp.median(np.zeros(0))
    with pytest.raises(OperandError, match="between 0 and 1"):
        xnp.quantile(TABLE, 1.5)


def test_average_is_numpys():
    x, w = np.arange(6.0).reshape(2, 3), np.array([1.0, 2.0, 5.0])
    np.testing.assert_allclose(xnp.average(x), np.average(x))
    np.testing.assert_allclose(xnp.average(x, 1, w), np.average(x, 1, w))
    np.testing.assert_allclose(xnp.average(x, weights=x + 1.0), np.average(x, weights=x + 1.0))
    np.testing.assert_allclose(xnp.average(x, -1, w, keepdims=True), np.average(x, -1, w, keepdims=True))
    with pytest.raises(ShapeError, match="average"):
        xnp.average(x, 0, w)


def test_array_api_on_a_device():
    device = strict.Device("device1")
    x = np.array([[3.0, 1.0, 2.0], [0.0, 2.0, -1.0]])
    y = strict.asarray(x, device=device)
    for f in (xnp.sort, lambda v: xnp.sort(v, 0, descending=True)):
        found = xf.grad(lambda v, f=f: xnp.sum(f(v) ** 3))(y)
        assert found.device == device
        np.testing.assert_allclose(np.from_dlpack(strict.asarray(found, device=strict.Device("CPU_DEVICE"))), 3 * x * x)
    assert xnp.argsort(y).device == device
