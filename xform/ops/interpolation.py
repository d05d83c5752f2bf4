"""Interpolation between points of a table."""

from __future__ import annotations

from typing import Any

import numpy as np

from xform.core.aval import shape_of
from xform.core.errors import OperandError, ShapeError
from xform.ops.broadcast import in_floating
from xform.ops.comparisons import isnan
from xform.ops.gather import take
from xform.ops.indexing import getitem
from xform.ops.searching import searchsorted
from xform.ops.selection import clip, where

__all__ = ["interp"]


def interp(  # noqa: PLR0917  (NumPy's signature)
    x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None
) -> Any:
    """Interpolate between the points `(xp, fp)` of a table, linearly; outside it is `left` and `right`, or the ends.

    `xp` rises. At a point of the table the derivative is that of the piece on its right. Raises `ShapeError` for a
    table that is not two equal rows, `OperandError` for a `period`.

    >>> interp(2.5, np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 0.0]))
    np.float64(1.0)
    """
    if period is not None:
        msg = "interp: period= has no meaning on values; wrap x yourself: interp(x % period, xp, fp)"
        raise OperandError(msg, period=period)
    x, xp, fp = in_floating(x), in_floating(xp), in_floating(fp)
    shape, heights = shape_of(xp), shape_of(fp)
    if len(shape) != 1 or shape != heights or not shape[0]:
        msg = f"interp: the table must have two rows of one known length, not of shapes {shape} and {heights}"
        raise ShapeError(msg)
    first, last = getitem(xp, 0), getitem(xp, -1)
    below, above = x < first, x > last
    safe = where(below | above, first, x)
    if shape[0] == 1:
        out = getitem(fp, 0) + (safe - first)
    else:
        upper = clip(searchsorted(xp, safe, side="right"), 1, shape[0] - 1)
        start, base, end, top = take(xp, upper - 1), take(fp, upper - 1), take(xp, upper), take(fp, upper)
        slope = (top - base) / (end - start)
        out = base + slope * (safe - start)
        other = where((safe == start) | (base == top), base, top + slope * (safe - end))
        other = where(safe == end, top, other)
        out = where(isnan(out), other, out)  # beside a height that is not finite, as NumPy has it
    out = where(below, getitem(fp, 0) if left is None else left, out)
    out = where(above, getitem(fp, -1) if right is None else right, out)
    return out[()] if type(out) is np.ndarray else out
