"""Picking by position: NumPy's values, modes, unknown lengths, errors, other libraries."""

from __future__ import annotations

import array_api_strict as strict
import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from xform import ops
from xform.core.aval import Aval, aval_of
from xform.core.errors import DtypeError, IndexOperandError, OperandError, ShapeError
from xform.core.rules import batch_rule
from xform.ops.gather import make_take_along
from xform.ops.searching import make_search

x = np.array([[3.0, 1.0, 2.0, 0.0], [0.0, 5.0, 4.0, 1.0], [2.0, 0.0, 0.0, 9.0]])
DEVICE = strict.Device("device1")


def there(a):
    return strict.asarray(a, device=DEVICE)


def back(a):
    return np.from_dlpack(strict.asarray(a, device=strict.Device("CPU_DEVICE")))


def same(got, want):
    got = got.data if isinstance(got, xf.Array) else got
    assert np.shape(got) == np.shape(want)
    assert np.asarray(got).dtype == np.asarray(want).dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("indices", [0, -1, [0, 2, 2], [[1], [0]], np.zeros((0, 2), int), []], ids=str)
def test_take(indices, axis):
    same(xnp.take(x, indices, axis), np.take(x, np.asarray(indices, int), axis))
    same(xf.array(x).take(indices, axis), np.take(x, np.asarray(indices, int), axis))
    same(np.take(xf.array(x), indices, axis), np.take(x, np.asarray(indices, int), axis))
    moved = there(indices) if isinstance(indices, np.ndarray) else indices
    same(back(xnp.take(there(x), moved, axis)), np.take(x, np.asarray(indices, int), axis))


@pytest.mark.parametrize("mode", ["clip", "wrap"])
def test_take_modes(mode):
    indices = np.array([-9, -1, 2, 3, 17])
    for axis in (None, 0, 1):
        same(xnp.take(x, indices, axis, mode), np.take(x, indices, axis, mode=mode))


def test_take_says_what_is_wrong():
    with pytest.raises(IndexOperandError, match="axis 1 with size 4"):
        xnp.take(x, [0, 4], axis=1)
    with pytest.raises(IndexOperandError, match="axis 2"):
        xnp.take(x, [0], axis=2)
    with pytest.raises(DtypeError, match="float64"):
        xnp.take(x, 1.0)
    with pytest.raises(OperandError, match='"raise", "clip" or "wrap"'):
        xnp.take(x, [0], mode="bounce")


@pytest.mark.parametrize("axis", [0, 1, -1, None])
def test_take_along_axis(axis):
    order = np.argsort(x, axis=axis)
    same(xnp.take_along_axis(x, order, axis), np.take_along_axis(x, order, axis))
    if axis is not None:
        same(back(xnp.take_along_axis(there(x), there(order), axis)), np.sort(x, axis))


def test_take_along_axis_broadcasts():
    a, b = x[:, :1], np.array([[0, 2, 1, 1]])
    same(xnp.take_along_axis(a, b, 0), np.take_along_axis(a, b, 0))
    same(back(xnp.take_along_axis(there(a), there(b), 0)), np.take_along_axis(a, b, 0))
    found = xf.vjp(lambda a: xnp.take_along_axis(a, b, 0), a)[1](np.array([[1.0, 10.0, 100.0, 1000.0]]))[0]
    same(found, np.array([[1.0], [1100.0], [10.0]]))


def test_take_along_axis_says_what_is_wrong():
    with pytest.raises(ShapeError, match="as many axes"):
        xnp.take_along_axis(x, np.array([0]), 1)
    with pytest.raises(DtypeError, match="integers"):
        xnp.take_along_axis(x, x, 1)
    with pytest.raises(IndexOperandError):
        xnp.take_along_axis(x, np.full((3, 1), 4), 1)
    with pytest.raises(ShapeError, match="one axis"):
        xnp.take_along_axis(x, np.zeros((1, 1), int), None)


def test_where_elements_are_true():
    for got, want in zip(xnp.nonzero(x), np.nonzero(x), strict=True):
        same(got, want)
    same(xnp.argwhere(x), np.argwhere(x))
    same(xnp.argwhere(np.float64(2.0)), np.argwhere(np.float64(2.0)))
    same(xnp.flatnonzero(xf.array(x)), np.flatnonzero(x))
    same(np.argwhere(xf.array(x)), np.argwhere(x))
    assert [a.shape for a in ops.NonZero().infer(aval_of(x))] == [(None,), (None,)]
    assert ops.Argwhere().infer(aval_of(x)).shape == (None, 2)
    for got, want in zip(xnp.nonzero(there(x)), np.nonzero(x), strict=True):
        same(back(got), want)
    with pytest.raises(ShapeError, match="atleast_1d"):
        xnp.nonzero(np.float64(1.0))


@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted(side):
    a = np.array([0.0, 1.0, 1.0, 2.5])
    v = np.array([[1.0, -1.0], [9.0, 2.5], [np.nan, 0.5]])
    same(xnp.searchsorted(a, v, side), np.searchsorted(a, v, side))
    same(xnp.searchsorted(xf.array(a), 1.0, side), np.searchsorted(a, 1.0, side))
    same(xnp.searchsorted(a[::-1].copy(), v, side, np.arange(4)[::-1]), np.searchsorted(a, v, side))
    same(back(xnp.searchsorted(there(a), there(v), side)), np.searchsorted(a, v, side))
    rows = np.array([a, a + 0.5, [0.0, 1.0, np.nan, np.nan]])
    op = make_search(side)
    out, axis = batch_rule.get(op)(op, 3, (rows, v), (0, None))
    same(np.moveaxis(out, axis, 0), np.stack([np.searchsorted(row, v, side) for row in rows]))
    out, axis = batch_rule.get(op)(op, 3, (rows, v), (0, 0))
    same(np.moveaxis(out, axis, 0), np.stack([np.searchsorted(r, each, side) for r, each in zip(rows, v, strict=True)]))


def test_searchsorted_says_what_is_wrong():
    with pytest.raises(ShapeError, match="one axis"):
        xnp.searchsorted(x, 1.0)
    with pytest.raises(OperandError, match="side"):
        xnp.searchsorted(x[0], 1.0, side="middle")


def test_choices():
    a, choices = np.array([[0, 2, 1, 1]]), [x, x[0], 7.0]
    same(xnp.choose(a, choices), np.choose(a, choices))
    same(xnp.choose(a + 2, choices, mode="wrap"), np.choose(a + 2, choices, mode="wrap"))
    same(xnp.choose(a + 2, choices, mode="clip"), np.choose(a + 2, choices, mode="clip"))
    same(xnp.compress([False, True], x), np.compress([False, True], x))
    same(xnp.compress([False, True], x, axis=1), np.compress([False, True], x, axis=1))
    same(xnp.extract(x > 1.0, x), np.extract(x > 1.0, x))
    conditions = [x > 2.0, x > 1.0]
    same(xnp.select(conditions, [x, -x], 5.0), np.select(conditions, [x, -x], 5.0))
    same(xnp.select(conditions, [x.astype("float32"), 1.0]), np.select(conditions, [x.astype("float32"), 1.0]))
    with pytest.raises(OperandError, match="1 conditions for 2 choices"):
        xnp.select([x > 1.0], [x, x])
    with pytest.raises(DtypeError, match="boolean"):
        xnp.select([x], [x])
    with pytest.raises(ShapeError, match="one axis"):
        xnp.compress(x > 1.0, x)
    with pytest.raises(IndexOperandError):
        xnp.choose(np.array([3]), [x[0], x[1]])


def test_positions_in_other_forms():
    rows, columns = [0, 2], [True, False, True, True]
    for got, want in zip(xnp.ix_(rows, columns), np.ix_(rows, columns), strict=True):
        same(got, want)
    numbers = np.array([0, 7, 11])
    for got, want in zip(xnp.unravel_index(numbers, (3, 4)), np.unravel_index(numbers, (3, 4)), strict=True):
        same(got, want)
    same(xf.array(x)[xnp.ix_([0, 2], [1])], x[np.ix_([0, 2], [1])])
    same(xnp.one_hot(np.array([[2], [0]]), 3, "float32"), np.eye(3, dtype="float32")[[[2], [0]]])
    same(xnp.one_hot(np.array([3, -1]), 3), np.zeros((2, 3)))
    with pytest.raises(IndexOperandError, match=r"shape \(3, 4\) of size 12"):
        xnp.unravel_index(np.array([12]), (3, 4))
    with pytest.raises(ShapeError, match="ix_: operand 1"):
        xnp.ix_([0], x)


def test_unknown_lengths():
    a, i = Aval((None, 4), np.dtype(float)), Aval((2, 3), np.dtype(int))
    assert make_take_along(1).infer(a, i).shape == (2, 3)
    assert make_take_along(0).infer(Aval((5, None), np.dtype(float)), Aval((2, 1), np.dtype(int))).shape == (2, None)
    with pytest.raises(ShapeError, match="do not broadcast"):
        make_take_along(0).infer(a, i)
