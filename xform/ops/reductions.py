"""Reductions: sums, means, logical reductions and counts; what all reductions share.

1. A reduction's axes are normalised and sorted; the reduced axes are kept with length 1 or dropped.
2. `axis` is None (all), an int or a tuple of ints; negative axes count from the end. An axis that is out of bounds
   raises `IndexOperandError`, which is a ValueError and an IndexError as NumPy's AxisError is.
3. Under batch only the axes shift: nothing is moved, nothing is copied.
"""

from __future__ import annotations

import builtins
import functools
import math
from typing import Any, TypeVar

import attrs
import numpy as np

from xform.core.aval import Aval, aval_of, result_dtype, shape_of
from xform.core.errors import OperandTypeError, ShapeError
from xform.core.operator import Operator, interned
from xform.core.rules import batch_rule, jvp_rule, linear, vjp_rule
from xform.core.stack import BOTTOM, apply, cursor
from xform.ops import selection, shapes
from xform.ops.axes import ndim_of, reduced_axes
from xform.ops.base import native
from xform.ops.broadcast import astype, broadcast_like, in_floating
from xform.ops.create import ones_like

__all__ = ["AllTrue", "AnyTrue", "CountNonzero", "Mean", "Sum", "all", "any", "count_nonzero", "mean", "sum"]

Axes = tuple[int, ...]
Batched = tuple[Any, int]
_get = cursor.get
_ndarray = np.ndarray
_add: Any = np.add.reduce
_and: Any = np.logical_and.reduce
_or: Any = np.logical_or.reduce
#: dtypes that NumPy adds up as they are (float16 goes through float32)
EXACT = "fdgFDG"
HALF = "e"
#: how far float16 holds every whole number
EXACT_HALF = 2048


# ------------------------------------------------------------------ what reductions share


@attrs.frozen
class Reduction(Operator):
    """Base of all reductions: `axis` is normalised and sorted, the reduced axes are kept with length 1 or dropped."""

    axis: Axes
    keepdims: bool = False

    def infer(self, x: Aval) -> Aval:
        """Drop the axes."""
        return Aval(reduced_shape(x.shape, self.axis, self.keepdims), self.dtype_of(x))

    def dtype_of(self, x: Aval) -> np.dtype[Any]:
        """Return the dtype of the result."""
        return native(x.dtype)


R = TypeVar("R", bound=Operator)


def reduced_shape(shape: tuple[int | None, ...], axis: Axes, keepdims: bool) -> tuple[int | None, ...]:
    """Return the shape after a reduction.

    >>> reduced_shape((2, 3), (1,), False), reduced_shape((2, 3), (1,), True)
    ((2,), (2, 1))
    """
    if keepdims:
        return tuple(1 if i in axis else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in axis)


@functools.lru_cache(maxsize=4096, typed=True)  # 1.0 is no axis
def reduction(kind: Any, axis: Any, keepdims: Any, ndim: int) -> Any:
    """Make a reduction from a user's axis; the same for the same."""
    return kind(reduced_axes(kind.__name__, axis, ndim), bool(keepdims))


def reduce(kind: Any, x: Any, axis: Any, keepdims: Any) -> Any:
    """Apply a reduction over a user's axis."""
    ndim = ndim_of(x)
    try:
        op = reduction(kind, axis, keepdims, ndim)
    except (TypeError, ValueError):  # said again below, with the operand
        op = None
    if op is None:
        op = kind(reduced_axes(kind.__name__, axis, ndim, x), bool(keepdims))
    return _get().unary(op, x)


def whole(t: Any, op: Reduction, like: Any) -> Any:
    """Give what a reduction returned its reduced axes back, with length 1."""
    if op.keepdims or not op.axis or len(op.axis) == like.ndim:
        return t
    if type(t) is _ndarray and isinstance(like, Aval):  # 1 us, where the operator takes 9
        return t.reshape([1 if axis in op.axis else length for axis, length in enumerate(like.shape)])
    return shapes.expand_dims(t, op.axis)


def spread(t: Any, op: Reduction, like: Any) -> Any:
    """Broadcast what a reduction returned to the shape of its operand: the transpose of a sum."""
    return broadcast_like(whole(t, op, like), like) if op.axis else t


def count_of(like: Any, axis: Axes) -> Any:
    """Return how many elements a reduction takes together: an int, or a value where the shape is unknown."""
    shape = shape_of(like)
    lengths = [shape[i] for i in axis]
    if None in lengths:
        ones = ones_like(like, np.float32) if like.dtype.char == HALF else ones_like(like)
        return apply(Sum(axis, keepdims=True), ones)
    return math.prod(lengths)


@functools.lru_cache(maxsize=4096)
def shifted(op: Reduction, batch_axis: int) -> tuple[Reduction, int]:
    """Return the reduction of an operand with one more axis, and where that axis is in the result."""
    axis = tuple(i + (i >= batch_axis) for i in op.axis)
    before = 0 if op.keepdims else len([i for i in axis if i < batch_axis])
    return attrs.evolve(op, axis=axis), batch_axis - before


def reduction_batch(op: Reduction, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> Batched:
    """Shift the axes past the batch axis."""
    wider, out_axis = shifted(op, axes[0])
    return apply(wider, values[0]), out_axis


def total_dtype(x: Any) -> np.dtype[Any]:
    """Return the dtype of the sum of an array or aval: small integers and booleans widen, as in NumPy."""
    if x.dtype.kind == "b":
        return np.dtype(int)
    wide = np.dtype(np.uint) if x.dtype.kind == "u" else np.dtype(int)
    return wide if x.dtype.kind in "iu" and x.dtype.itemsize < wide.itemsize else native(x.dtype)


def widened(xp: Any, x: Any) -> Any:
    """Return float16 as float32, to add up in: sums and counts of many elements are no float16; the rest as it is."""
    if aval_of(x).dtype.char != HALF:
        return x
    return np.asarray(x, np.float32) if xp is np else xp.astype(x, xp.float32)


def narrowed(xp: Any, out: Any, like: Any) -> Any:
    """Return what was computed from `widened(x)` in the precision of x."""
    if aval_of(like).dtype.char != HALF:
        return out
    return np.asarray(out).astype(np.float16)[()] if xp is np else xp.astype(out, like.dtype)


def in_single(compute: Any, *operands: Any) -> Any:
    """Compute on values in float32 where the first is float16, and cast the result back; otherwise as they are."""
    if aval_of(operands[0]).dtype.char != HALF:
        return compute(*operands)
    wide = [astype(x, np.float32) if aval_of(x).dtype.char == HALF else x for x in operands]
    return astype(compute(*wide), np.float16)


def shared_out(t: Any, count: int) -> Any:
    """Divide a cotangent by a number of elements, which need not be a float16."""
    if count > EXACT_HALF:
        return in_single(lambda wide: wide / count, t)
    return t / count if count > 1 else t


def numeric(xp: Any, x: Any) -> Any:
    """Turn booleans into integers where a library's arithmetic refuses them."""
    return xp.astype(x, xp.int64) if x.dtype == xp.bool else x


# ------------------------------------------------------------------ sum and mean


class Sum(Reduction):
    """The sum over some axes."""

    __slots__ = ()

    def dtype_of(self, x: Aval) -> np.dtype[Any]:
        """Small integers and booleans widen."""
        return total_dtype(x)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Add up."""
        if xp is np:
            return _add(x, self.axis, None, None, self.keepdims)
        return xp.sum(numeric(xp, x), axis=self.axis, keepdims=self.keepdims)


class Mean(Reduction):
    """The arithmetic mean over some axes."""

    __slots__ = ()

    def dtype_of(self, x: Aval) -> np.dtype[Any]:
        """Integers and booleans give float64."""
        return np.dtype(float) if x.dtype.kind in "biu" else native(x.dtype)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Add up and divide."""
        if xp is np:
            if type(x) is not _ndarray or x.dtype.char not in EXACT or not x.size:
                return np.mean(x, axis=self.axis, keepdims=self.keepdims)
            out = _add(x, self.axis, None, None, self.keepdims)
            out /= math.prod([x.shape[i] for i in self.axis])
            return out
        if not xp.isdtype(x.dtype, ("real floating", "complex floating")):
            x = xp.astype(x, xp.float64)
        if xp.isdtype(x.dtype, "complex floating"):  # the standard's mean takes real numbers alone
            return xp.sum(x, axis=self.axis, keepdims=self.keepdims) / math.prod([x.shape[i] for i in self.axis])
        return xp.mean(x, axis=self.axis, keepdims=self.keepdims)


make_sum = interned(Sum)


def mean_transpose(op: Mean, t: Any, x: Any) -> Any:
    """Share the cotangent among the elements: divide while it is small, then broadcast a view."""
    count = count_of(x, op.axis)
    if isinstance(count, int):
        return spread(shared_out(t, count), op, x)
    return broadcast_like(whole(t, op, x) / count, x)


linear(Sum, lambda op, t, x: spread(t, op, x))
linear(Mean, mean_transpose)


def sum(
    x: Any, axis: Any = None, dtype: Any = None, keepdims: Any = False, *, initial: Any = None, where: Any = None
) -> Any:
    """Sum over axes; small integers and booleans are added up as int64 or uint64.

    `x` has any shape; the result lacks the axes, or has them with length 1 (`keepdims`). Only elements where `where` is
    true count, and `initial` is added. Raises `IndexOperandError` for an axis that is out of bounds.

    >>> sum(np.ones((2, 3)), axis=0)
    array([2., 2., 2.])
    """
    if dtype is None and initial is None and where is None:
        if type(x) is _ndarray and _get() is BOTTOM:
            try:
                return _add(x, axis, None, None, keepdims)
            except (TypeError, ValueError):  # said again below, with the operator's name
                pass
        return reduce(Sum, x, axis, keepdims)
    if dtype is not None:
        x = astype(x, dtype)
    if where is not None:
        x = chosen(where, x, 0)
    out = reduce(Sum, x, axis, keepdims)
    if initial is not None:
        out = out + first_in(initial, out)
    return out if dtype is None else cast_back(out, dtype)


def first_in(initial: Any, out: Any) -> Any:
    """Return an initial value in the dtype of what is reduced, as NumPy casts it.

    >>> first_in(1.5, np.ones(2, int)), first_in(1.5, np.ones(2))
    (np.int64(1), 1.5)
    """
    aval = aval_of(out)
    if aval_of(initial).dtype.kind == "c" != aval.dtype.kind:
        msg = f"initial={initial!r:.60} is complex, and what is reduced {aval.dtype}; convert that with astype(complex)"
        raise OperandTypeError(msg, value=initial)
    return initial if result_dtype(aval, aval_of(initial)) == aval.dtype else astype(initial, aval.dtype)


def chosen(where: Any, x: Any, fill: Any) -> Any:
    """Return `x`, with `fill` where `where` is false, as for a reduction of the rest.

    Raises `ShapeError` where the mask has more elements than `x`, whose elements would count many times.

    >>> chosen(np.array([True, False]), np.ones(2), 0)
    array([1., 0.])
    """
    out = selection.where(where, x, fill)
    have, want = shape_of(out), shape_of(x)
    if len(have) != len(want) or not builtins.all(m in (n, None) or n is None for m, n in zip(have, want, strict=True)):
        msg = f"where= is a mask over {aval_of(x)!r}, and does not broadcast to its shape: together they have {have}"
        raise ShapeError(msg, shapes=(have, want))
    return out


def cast_back(out: Any, dtype: Any) -> Any:
    """Cast a result to the dtype that was asked for, where it differs."""
    return out if aval_of(out).dtype == np.dtype(dtype) else astype(out, dtype)


def mean(x: Any, axis: Any = None, dtype: Any = None, keepdims: Any = False, *, where: Any = None) -> Any:
    """Arithmetic mean over axes; integers and booleans give float64.

    Raises `IndexOperandError` for an axis that is out of bounds.

    >>> mean(np.array([1.0, 3.0]))
    np.float64(2.0)
    """
    if where is not None and dtype is None:
        x = in_floating(x)
    plain = type(x) is _ndarray and dtype is None and where is None and _get() is BOTTOM
    if plain and x.dtype.char in EXACT and x.size:
        try:
            out = _add(x, axis, None, None, keepdims)
            out /= x.size // out.size
            return out
        except (TypeError, ValueError):  # said again below, with the operator's name
            pass
    if dtype is not None:
        x = astype(x, dtype)
    if where is not None:
        return in_single(lambda v: _mean_where(v, axis, keepdims, where), x)
    out = reduce(Mean, x, axis, keepdims)
    return out if dtype is None else cast_back(out, dtype)


def _mean_where(x: Any, axis: Any, keepdims: Any, where: Any) -> Any:
    counted = chosen(where, ones_like(x), 0)
    return sum(chosen(where, x, 0), axis, None, keepdims) / sum(counted, axis, None, keepdims)


# ------------------------------------------------------------------ logical reductions, counts


class AllTrue(Reduction):
    """Whether all elements are true."""

    __slots__ = ()

    def dtype_of(self, x: Aval) -> np.dtype[Any]:
        """A boolean."""
        return np.dtype(bool)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Reduce by "and"."""
        if xp is np:
            return _and(x, self.axis, None, None, self.keepdims)
        return xp.all(x, axis=self.axis, keepdims=self.keepdims)


class AnyTrue(Reduction):
    """Whether any element is true."""

    __slots__ = ()

    def dtype_of(self, x: Aval) -> np.dtype[Any]:
        """A boolean."""
        return np.dtype(bool)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Reduce by "or"."""
        if xp is np:
            return _or(x, self.axis, None, None, self.keepdims)
        return xp.any(x, axis=self.axis, keepdims=self.keepdims)


class CountNonzero(Reduction):
    """How many elements are not zero."""

    __slots__ = ()

    def dtype_of(self, x: Aval) -> np.dtype[Any]:
        """An index."""
        return np.dtype(np.intp)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Count."""
        if xp is np:
            return _add(np.not_equal(x, 0), self.axis, np.intp, None, self.keepdims)
        chosen = x if x.dtype == xp.bool else x != 0
        return xp.sum(xp.astype(chosen, xp.int64), axis=self.axis, keepdims=self.keepdims)


batch_rule(Sum, Mean, AllTrue, AnyTrue, CountNonzero)(reduction_batch)
vjp_rule.none(AllTrue, AnyTrue, CountNonzero, why="booleans and counts do not vary smoothly")
jvp_rule.none(AllTrue, AnyTrue, CountNonzero, why="booleans and counts do not vary smoothly")


def all(x: Any, axis: Any = None, keepdims: Any = False, *, where: Any = None) -> Any:
    """Whether all elements along axes are true; NaN is true.

    >>> all(np.array([True, False]))
    np.False_
    """
    return reduce(AllTrue, x if where is None else chosen(where, x, True), axis, keepdims)


def any(x: Any, axis: Any = None, keepdims: Any = False, *, where: Any = None) -> Any:
    """Whether any element along axes is true; NaN is true.

    >>> any(np.array([True, False]))
    np.True_
    """
    return reduce(AnyTrue, x if where is None else chosen(where, x, False), axis, keepdims)


def count_nonzero(x: Any, axis: Any = None, *, keepdims: Any = False) -> Any:
    """Count the elements along axes that are not zero.

    >>> count_nonzero(np.array([1.0, 0.0, 2.0]))
    np.int64(2)
    """
    return reduce(CountNonzero, x, axis, keepdims)
