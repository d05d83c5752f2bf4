"""Reductions that leave NaN out: compositions of the plain ones. What was left out has derivative 0."""

from __future__ import annotations

from typing import Any

import numpy as np

from xform.core.aval import aval_of
from xform.ops.comparisons import isnan, logical_not
from xform.ops.extrema import max as max_
from xform.ops.extrema import min as min_
from xform.ops.reductions import all as all_
from xform.ops.reductions import mean
from xform.ops.reductions import sum as sum_
from xform.ops.selection import where

__all__ = ["nanmax", "nanmean", "nanmin", "nansum"]


def nansum(x: Any, axis: Any = None, dtype: Any = None, keepdims: Any = False) -> Any:
    """Sum over axes of what is not NaN; 0 where all is.

    >>> nansum(np.array([1.0, np.nan, 2.0]))
    np.float64(3.0)
    """
    return sum_(_filled(x, 0), axis, dtype, keepdims)


def nanmean(x: Any, axis: Any = None, dtype: Any = None, keepdims: Any = False) -> Any:
    """Arithmetic mean over axes of what is not NaN; NaN where all is.

    >>> nanmean(np.array([1.0, np.nan, 2.0]))
    np.float64(1.5)
    """
    if aval_of(x).dtype.kind not in "fc":
        return mean(x, axis, dtype, keepdims)
    return mean(x, axis, dtype, keepdims, where=logical_not(isnan(x)))


def nanmax(x: Any, axis: Any = None, keepdims: Any = False) -> Any:
    """Largest element along axes that is not NaN; NaN where all is. Ties share the derivative equally.

    Raises `ShapeError` where there is no element.

    >>> nanmax(np.array([1.0, np.nan, 2.0]))
    np.float64(2.0)
    """
    return _extremum(max_, x, -np.inf, axis, keepdims)


def nanmin(x: Any, axis: Any = None, keepdims: Any = False) -> Any:
    """Smallest element along axes that is not NaN; NaN where all is. Ties share the derivative equally.

    Raises `ShapeError` where there is no element.

    >>> nanmin(np.array([1.0, np.nan, 2.0]))
    np.float64(1.0)
    """
    return _extremum(min_, x, np.inf, axis, keepdims)


def _extremum(reduce: Any, x: Any, fill: float, axis: Any, keepdims: Any) -> Any:
    out = reduce(_filled(x, fill), axis, keepdims)
    if aval_of(x).dtype.kind not in "fc":
        return out
    out = where(all_(isnan(x), axis, keepdims), np.nan, out)
    return out[()] if type(out) is np.ndarray else out


def _filled(x: Any, fill: float) -> Any:
    return where(isnan(x), fill, x) if aval_of(x).dtype.kind in "fc" else x
