"""Arrays made from data or from a shape: each gives an `Array`."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from xform.core.aval import aval_of, shape_of
from xform.core.backend import HOST_TYPES, SCALAR_TYPES, is_raw
from xform.core.errors import OperandError, OperandTypeError, ShapeError
from xform.core.stack import apply
from xform.core.value import Array, Value
from xform.ops.broadcast import astype, broadcast_like, broadcast_to
from xform.ops.create import make_full_like
from xform.ops.placement import device_put
from xform.ops.rounding import floor
from xform.ops.shapes import expand_dims, moveaxis
from xform.ops.stacking import concatenate, holds_array, nested
from xform.ops.structural import HostRead

__all__ = [
    "arange",
    "array",
    "asarray",
    "copy",
    "empty",
    "empty_like",
    "eye",
    "full",
    "full_like",
    "identity",
    "linspace",
    "logspace",
    "ones",
    "ones_like",
    "tri",
    "zeros",
    "zeros_like",
]


READ = HostRead("item")


def tracked(raw: Any, device: Any = None) -> Any:
    """Return a raw array as an `Array`, moved to a device where one is named; a value as it is."""
    if isinstance(raw, Value):
        out = raw
    else:
        out = Array()
        out.data = raw
    return out if device is None else device_put(out, device)


def array(object: Any, dtype: Any = None, *, ndmin: int = 0, device: Any = None) -> Any:
    """Return a tracked concrete array of raw data, or of nested lists of numbers, arrays and values.

    A value is returned as it is, a raw array is not copied. Raises `OperandTypeError` for what makes no array of
    numbers, `ShapeError` for lists of unequal lengths.

    >>> import xform as xf
    >>> xf.array([[1.0, 2.0], [3.0, 4.0]]).shape
    (2, 2)
    >>> xf.grad(lambda x: xf.array([[x, 1.0], [2.0, x]]).sum())(3.0)
    2.0
    """
    out = object
    if isinstance(object, tuple | list) and holds_array(object):
        out = nested(object)
    elif not isinstance(object, Value) and not is_raw(object):
        out = _from_data(object, dtype)
    if type(out) is np.ndarray and out.dtype.kind not in "biufc":
        msg = f"array: {type(object).__name__} gives an array of dtype {out.dtype}; it takes numbers and booleans"
        raise OperandTypeError(msg, value=object)
    if dtype is not None and (type(out) in SCALAR_TYPES or aval_of(out).dtype != np.dtype(dtype)):
        out = np.asarray(out, dtype) if type(out) in HOST_TYPES else astype(out, dtype)
    missing = ndmin - len(shape_of(out)) if ndmin else 0
    if missing > 0:
        out = expand_dims(out, tuple(range(missing)))
    return tracked(out, device)


def _from_data(data: Any, dtype: Any) -> Any:
    try:
        return np.asarray(data, dtype)
    except ValueError as error:
        msg = f"array: {error}"
        raise ShapeError(msg, value=data) from error


def asarray(object: Any, dtype: Any = None, *, copy: bool | None = None, device: Any = None) -> Any:
    """Return data as an `Array`, a value as it is; with `copy=True`, of its own memory.

    >>> asarray([1, 2]).shape
    (2,)
    """
    has_memory = isinstance(object, np.ndarray | Value)
    return array(object.copy() if copy and has_memory else object, dtype, device=device)


def copy(a: Any, order: Any = "K", subok: bool = False) -> Any:
    """Return an array of its own memory, as an `Array`.

    >>> copy([1, 2]).shape
    (2,)
    """
    return asarray(a, copy=True)


# ------------------------------------------------------------------ from a shape


def zeros(shape: Any, dtype: Any = float, *, device: Any = None) -> Any:
    """Return zeros of a shape.

    >>> zeros((2, 3)).shape
    (2, 3)
    """
    return tracked(np.zeros(shape, _dtype(dtype)), device)


def ones(shape: Any, dtype: Any = float, *, device: Any = None) -> Any:
    """Return ones of a shape.

    >>> ones(2).tolist()
    [1.0, 1.0]
    """
    return tracked(np.ones(shape, _dtype(dtype)), device)


def empty(shape: Any, dtype: Any = float, *, device: Any = None) -> Any:
    """Return an array of a shape whose numbers mean nothing (they are zeros).

    >>> empty(2).shape
    (2,)
    """
    return zeros(shape, dtype, device=device)


def full(shape: Any, fill_value: Any, dtype: Any = None, *, device: Any = None) -> Any:
    """Return an array of a shape, of one number or of a value broadcast to it; derivatives reach the value.

    >>> full((2, 2), 7.0).tolist()
    [[7.0, 7.0], [7.0, 7.0]]
    """
    fill_value = nested(fill_value)
    if isinstance(fill_value, Value):
        out = fill_value if dtype is None else astype(fill_value, dtype)
        return tracked(broadcast_to(out, shape), device)
    return tracked(np.full(shape, fill_value, dtype), device)


def _dtype(dtype: Any) -> Any:
    return float if dtype is None else dtype


# ------------------------------------------------------------------ like another value


def full_like(x: Any, fill_value: Any, dtype: Any = None, *, shape: Any = None, device: Any = None) -> Any:
    """Return an array of one number (or of a value broadcast), of the shape, dtype and device of `x`.

    >>> full_like(np.zeros(2), 5).tolist()
    [5.0, 5.0]
    """
    x, fill_value = nested(x), nested(fill_value)
    lengths = None if shape is None else np.broadcast_to(0, shape).shape
    if type(fill_value) not in SCALAR_TYPES:
        like = apply(make_full_like(0, _name(dtype), lengths), tracked(x))
        return tracked(broadcast_like(astype(fill_value, aval_of(like).dtype), like), device)
    return tracked(apply(make_full_like(fill_value, _name(dtype), lengths), tracked(x)), device)


def zeros_like(x: Any, dtype: Any = None, *, shape: Any = None, device: Any = None) -> Any:
    """Return zeros of the shape, dtype and device of `x`.

    >>> zeros_like(np.ones(2)).tolist()
    [0.0, 0.0]
    """
    return full_like(x, 0, dtype, shape=shape, device=device)


def ones_like(x: Any, dtype: Any = None, *, shape: Any = None, device: Any = None) -> Any:
    """Return ones of the shape, dtype and device of `x`.

    >>> ones_like(np.zeros(2)).tolist()
    [1.0, 1.0]
    """
    return full_like(x, 1, dtype, shape=shape, device=device)


def empty_like(x: Any, dtype: Any = None, *, shape: Any = None, device: Any = None) -> Any:
    """Return an array of the shape, dtype and device of `x` whose numbers mean nothing (they are zeros).

    >>> empty_like(np.zeros(2)).shape
    (2,)
    """
    return full_like(x, 0, dtype, shape=shape, device=device)


def _name(dtype: Any) -> str | None:
    return None if dtype is None else np.dtype(dtype).name


# ------------------------------------------------------------------ matrices and ranges


def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = float, *, device: Any = None) -> Any:
    """Return a matrix with ones on the diagonal `k` places above the main one.

    >>> eye(2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    return tracked(np.eye(N, M, k, _dtype(dtype)), device)


def identity(n: int, dtype: Any = None) -> Any:
    """Return the identity matrix of `n` rows.

    >>> identity(1).tolist()
    [[1.0]]
    """
    return tracked(np.identity(n, dtype))


def tri(N: int, M: int | None = None, k: int = 0, dtype: Any = float) -> Any:
    """Return a matrix with ones on and below the diagonal `k` places above the main one.

    >>> tri(2).tolist()
    [[1.0, 0.0], [1.0, 1.0]]
    """
    return tracked(np.tri(N, M, k, _dtype(dtype)))


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None, *, device: Any = None) -> Any:
    """Return evenly spaced numbers from `start` up to, not including, `stop`.

    >>> arange(3).tolist(), arange(1, 2, 0.5).tolist()
    ([0, 1, 2], [1.0, 1.5])
    """
    start, stop, step = (apply(READ, each) if isinstance(each, Value) else each for each in (start, stop, step))
    bounds = (start,) if stop is None and step == 1 else (0, start, step) if stop is None else (start, stop, step)
    return tracked(np.arange(*bounds, dtype=dtype), device)


def linspace(  # noqa: PLR0917  (NumPy's signature)
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
    *,
    device: Any = None,
) -> Any:
    """Return `num` evenly spaced numbers between two bounds, which may be arrays or values; derivatives reach them.

    Raises `OperandError` for a negative number.

    >>> linspace(0.0, 1.0, 3).tolist()
    [0.0, 0.5, 1.0]
    """
    num = operator.index(num)
    if num < 0:
        msg = f"linspace: num={num} may not be negative"
        raise OperandError(msg, num=num)
    start, stop = nested(start), nested(stop)
    if not isinstance(start, Value) and not isinstance(stop, Value):
        out: Any = np.linspace(start, stop, num, endpoint, retstep, dtype, axis)  # type: ignore[call-overload]
        return (tracked(out[0], device), out[1]) if retstep else tracked(out, device)
    out, step = _spaced(start, stop, num, endpoint=endpoint)
    if axis != 0:
        out = moveaxis(out, 0, axis)
    if dtype is not None:
        out = astype(floor(out) if np.dtype(dtype).kind in "iu" else out, dtype)  # as NumPy rounds
    out = tracked(out, device)
    return (out, step) if retstep else out


def _spaced(start: Any, stop: Any, num: int, *, endpoint: bool) -> tuple[Any, Any]:
    """Return the numbers along a new first axis, and the step; the last number is `stop` itself."""
    count = num - 1 if endpoint else num
    start, stop = start * 1.0, stop * 1.0
    span = stop - start
    step = span / count if count > 0 else math.nan
    aval = aval_of(span)
    ramp = np.arange(min(num, max(count, 1)), dtype=aval.dtype).reshape(-1, *[1] * aval.ndim)
    out = ramp * (step if count > 0 else span) + start
    if endpoint and num > 1:
        last = astype(broadcast_like(stop, span), aval.dtype)  # a Python number is no array of doubles
        out = concatenate([out, expand_dims(last, 0)])
    return out, step


def logspace(  # noqa: PLR0917  (NumPy's signature)
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, base: Any = 10.0, dtype: Any = None, axis: int = 0
) -> Any:
    """Return numbers evenly spaced on a logarithmic scale, from `base**start` to `base**stop`.

    >>> logspace(0, 2, 3).tolist()
    [1.0, 10.0, 100.0]
    """
    out = base ** linspace(start, stop, num, endpoint, axis=axis)
    return out if dtype is None else astype(out, dtype)
