"""Differences of neighbours, and what they undo: the running sum from 0, the integral by the trapezoidal rule."""

from __future__ import annotations

from typing import Any

import numpy as np

from xform.core.aval import Aval, aval_of, shape_of
from xform.core.backend import SCALAR_TYPES
from xform.core.errors import ShapeError
from xform.core.rules import like_of
from xform.ops import shapes
from xform.ops.axes import axis_of, ndim_of
from xform.ops.broadcast import astype, broadcast_like
from xform.ops.comparisons import not_equal
from xform.ops.create import zeros_like
from xform.ops.cumulative import cumsum, part_along
from xform.ops.indexing import getitem
from xform.ops.padding import pad
from xform.ops.reductions import sum as sum_
from xform.ops.stacking import concatenate

__all__ = ["cumulative_sum", "diff", "ediff1d", "trapezoid"]


def diff(x: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """Differences of neighbours along an axis, `n` times; booleans give "unequal".

    Raises `ShapeError` for a number, or a negative `n`.

    >>> diff(np.array([1.0, 4.0, 9.0]))
    array([3., 5.])
    """
    ndim = ndim_of(x)
    if ndim == 0 or n < 0:
        msg = f"diff: takes an array of at least one axis and n >= 0, got {aval_of(x)!r} and n={n}"
        raise ShapeError(msg, n=n)
    at = axis_of("diff", axis, ndim, x)
    if n and not (prepend is None and append is None):
        parts = [_edge(prepend, x, at), x, _edge(append, x, at)]
        x = concatenate([part for part in parts if part is not None], axis=at)
    unequal = aval_of(x).dtype.kind == "b"
    for _ in range(n):
        later, earlier = getitem(x, part_along(ndim, at, 1, None)), getitem(x, part_along(ndim, at, None, -1))
        x = not_equal(later, earlier) if unequal else later - earlier
    return x


def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    """Differences of neighbours in the flattened array, with numbers put before and behind them.

    >>> ediff1d(np.array([[1.0, 4.0], [9.0, 16.0]]), to_begin=0.0)
    array([0., 3., 5., 7.])
    """
    steps = diff(shapes.ravel(ary))
    ends = [None if end is None else astype(shapes.ravel(end), aval_of(steps).dtype) for end in (to_begin, to_end)]
    parts = [part for part in (ends[0], steps, ends[1]) if part is not None]
    return parts[0] if len(parts) == 1 else concatenate(parts)


def cumulative_sum(x: Any, /, *, axis: Any = None, dtype: Any = None, include_initial: bool = False) -> Any:
    """Running sum along an axis, which an array of one axis need not name; with `include_initial` from 0.

    Raises `ShapeError` for several axes and none named.

    >>> cumulative_sum(np.array([1.0, 2.0]), include_initial=True)
    array([0., 1., 3.])
    """
    ndim = ndim_of(x)
    if axis is None and ndim != 1:
        msg = f"cumulative_sum: an array of {ndim} axes needs axis="
        raise ShapeError(msg)
    out = cumsum(x, 0 if axis is None else axis, dtype)
    if not include_initial:
        return out
    widths = [(0, 0)] * ndim
    widths[axis_of("cumulative_sum", 0 if axis is None else axis, ndim, x)] = (1, 0)
    return pad(out, widths)


def _edge(value: Any, x: Any, axis: int) -> Any:
    """Give a number that is put before or behind the shape that it needs there; it is as strong as in NumPy."""
    if value is None or ndim_of(value):
        return value
    shape = shape_of(x)
    if shape[axis] == 0 and None not in shape:  # of nothing no part has the shape
        dtype = aval_of(value).dtype if type(value) not in SCALAR_TYPES else np.asarray(value).dtype
        return broadcast_like(value, Aval((*shape[:axis], 1, *shape[axis + 1 :]), dtype))
    part = getitem(x, part_along(ndim_of(x), axis, None, 1))
    if type(value) in SCALAR_TYPES:
        return zeros_like(part, np.asarray(value).dtype) + value
    return broadcast_like(value, like_of(part))


def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    """Integral along an axis by the trapezoidal rule, over points `x` or at distance `dx`.

    >>> trapezoid(np.array([1.0, 2.0, 3.0]))
    np.float64(4.0)
    """
    ndim = ndim_of(y)
    at = axis_of("trapezoid", axis, ndim, y)
    if x is None:
        step = dx
    elif ndim_of(x) == 1:
        step = shapes.expand_dims(diff(x), tuple(range(1, ndim - at))) if ndim - at > 1 else diff(x)
    else:
        step = diff(x, axis=axis)
    later, earlier = getitem(y, part_along(ndim, at, 1, None)), getitem(y, part_along(ndim, at, None, -1))
    return sum_(step * (later + earlier) / 2.0, axis=at)
