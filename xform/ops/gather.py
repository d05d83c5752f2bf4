"""Picking by position: `take` and its relatives, and positions in other forms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from xform.core.aval import Aval, aval_of, broadcast_shapes, result_dtype, shape_of
from xform.core.errors import DtypeError, IndexOperandError, OperandError, ShapeError
from xform.core.operator import Operator, interned
from xform.core.rules import batch_rule, linear, settle
from xform.core.stack import apply
from xform.core.value import Value
from xform.ops.axes import axis_of
from xform.ops.broadcast import astype, broadcast_to
from xform.ops.index_batch import counted
from xform.ops.index_layout import OPERAND, from_sequence
from xform.ops.indexing import getitem
from xform.ops.positions import add_into
from xform.ops.rounding import floor_divide, remainder
from xform.ops.searching import nonzero
from xform.ops.selection import clip, where
from xform.ops.shapes import expand_dims, front, lanes, ravel, read_shape, reshape
from xform.ops.stacking import nested, sequence_of, stack

__all__ = [
    "AddAlongAxis", "TakeAlongAxis", "choose", "compress", "extract", "ix_", "one_hot", "select", "take",
    "take_along_axis", "unravel_index",
]  # fmt: skip

Shape = tuple[int | None, ...]
Axes = tuple[int | None, ...]


def take(x: Any, indices: Any, axis: int | None = None, mode: str = "raise") -> Any:
    """Return elements by their positions along an axis, or of the flattened array.

    `indices` are integers of any shape, which takes the axis's place. `mode` says what becomes of one that is out of
    bounds: "raise" raises `IndexOperandError`, "clip" takes the nearest, "wrap" counts round.

    >>> take(np.array([4.0, 5.0, 6.0]), [0, 2, 2])
    array([4., 6., 6.])
    """
    if axis is None:
        x, axis = ravel(x), 0
    ndim = len(shape_of(x))
    axis = axis_of("take", axis, ndim, x)
    indices = from_sequence(indices, x) if isinstance(indices, list | tuple) else indices
    size = None if mode == "raise" else read_shape(x)[axis]
    return getitem(x, (*[slice(None)] * axis, within(indices, size, mode, "take")))


def within(indices: Any, size: int | None, mode: str, name: str) -> Any:
    """Return integer indices as a mode makes them; raises `OperandError`, and `ShapeError` for an unknown size."""
    indices = nested(indices)
    if isinstance(indices, np.ndarray) and not indices.size:
        indices = indices.astype(np.intp)
    if aval_of(indices).dtype.kind not in "iu":
        msg = f"{name}: indices of dtype {aval_of(indices).dtype}; they must be integers"
        raise DtypeError(msg, value=indices)
    if mode == "raise":
        return indices
    if mode not in ("clip", "wrap"):
        msg = f'{name}: mode must be "raise", "clip" or "wrap", got {mode!r}'
        raise OperandError(msg, mode=mode)
    if size is None:
        msg = f'{name}: mode={mode!r} needs the length of the axis, not known before run time; use mode="raise"'
        raise ShapeError(msg)
    return clip(indices, 0, size - 1) if mode == "clip" else remainder(indices, size)


# ------------------------------------------------------------------ along an axis


@attrs.frozen
class TakeAlongAxis(Operator):
    """Elements by their positions along an axis, row by row; the other axes of both operands broadcast."""

    axis: int

    def infer(self, x: Aval, indices: Aval) -> Aval:
        """Broadcast, with the indices' length along the axis."""
        return Aval(along_shape(self, x.shape, indices), x.dtype)

    def evaluate(self, xp: Any, x: Any, indices: Any) -> Any:
        """Take row by row."""
        along_shape(self, x.shape, aval_of(indices))
        if xp is np:
            return np.take_along_axis(x, indices, self.axis)
        rows = broadcast_shapes(*[_with_length(each.shape, self.axis, 1) for each in (x, indices)])
        x = xp.broadcast_to(x, _with_length(rows, self.axis, x.shape[self.axis]))
        indices = xp.broadcast_to(indices, _with_length(rows, self.axis, indices.shape[self.axis]))
        return xp.take_along_axis(x, indices, axis=self.axis)


@attrs.frozen
class AddAlongAxis(Operator):
    """Zeros of a shape, into which the first operand is added at positions along an axis: `TakeAlongAxis`, transposed.

    Where the shape is not known (None), a third operand has it.
    """

    axis: int
    shape: tuple[int, ...] | None
    dtype: str

    def infer(self, t: Aval, indices: Aval, *like: Aval) -> Aval:
        """The shape of the zeros."""
        return Aval(like[0].shape if self.shape is None else self.shape, np.dtype(self.dtype))

    def evaluate(self, xp: Any, t: Any, indices: Any, *like: Any) -> Any:
        """Add row by row."""
        shape = like[0].shape if self.shape is None else self.shape
        device = {} if xp is np else {"device": indices.device}
        out = xp.zeros(shape, dtype=self.dtype if xp is np else getattr(xp, self.dtype), **device)
        places = []
        for axis, length in enumerate(shape):
            along = xp.reshape(xp.arange(length, **device), (length, *[1] * (len(shape) - 1 - axis)))
            places.append(indices if axis == self.axis else along)
        return add_into(xp, out, (OPERAND,) * len(shape), tuple(places), t)


def along_shape(op: Any, shape: Shape, indices: Aval) -> Shape:
    """Return the shape of a selection along an axis; raises where the operands do not fit."""
    if len(shape) != len(indices.shape):
        msg = f"{op.name}: the indices have shape {indices.shape}, the operand {shape}: they need as many axes"
        raise ShapeError(msg, op=op)
    if indices.dtype.kind not in "iu":
        msg = f"{op.name}: indices of dtype {indices.dtype}; they must be integers"
        raise DtypeError(msg, op=op)
    rows = broadcast_shapes(_with_length(shape, op.axis, 1), _with_length(indices.shape, op.axis, 1))
    return _with_length(rows, op.axis, indices.shape[op.axis])


def _with_length(shape: Shape, axis: int, length: int | None) -> Shape:
    return (*shape[:axis], length, *shape[axis + 1 :])


def add_along(axis: int, t: Any, indices: Any, like: Any) -> Any:
    """Add a cotangent at positions along an axis, into zeros like an aval or a value."""
    if isinstance(like, Aval):
        return apply(make_add_along(axis, like.shape, like.dtype.name), t, indices)
    return apply(make_add_along(axis, None, aval_of(like).dtype.name), t, indices, like)


make_take_along, make_add_along = interned(TakeAlongAxis), interned(AddAlongAxis)
linear(TakeAlongAxis, lambda op, t, x, indices: add_along(op.axis, t, indices, x), linear_in=(0,))
linear(
    AddAlongAxis,
    lambda op, t, values, indices, *like: settle(apply(make_take_along(op.axis), t, indices), values),
    linear_in=(0,),
)


@batch_rule(TakeAlongAxis)
def take_along_batch(op: TakeAlongAxis, size: int, values: tuple[Any, ...], axes: Axes) -> tuple[Any, int]:
    """The batch is one more row axis; what has none broadcasts."""
    moved = [_row(value, axis) for value, axis in zip(values, axes, strict=True)]
    return apply(make_take_along(op.axis + 1), *moved), 0


@batch_rule(AddAlongAxis)
def add_along_batch(op: AddAlongAxis, size: int, values: tuple[Any, ...], axes: Axes) -> tuple[Any, int]:
    """The batch is one more row axis; what has none broadcasts."""
    moved = [_row(value, axis) for value, axis in zip(values[:2], axes[:2], strict=True)]
    if op.shape is not None:
        return apply(make_add_along(op.axis + 1, (size, *op.shape), op.dtype), *moved), 0
    return apply(make_add_along(op.axis + 1, None, op.dtype), *moved, lanes(size, values[2], axes[2])), 0


def _row(value: Any, axis: int | None) -> Any:
    return expand_dims(value, 0) if axis is None else front(value, axis)


def take_along_axis(x: Any, indices: Any, axis: int | None = -1) -> Any:
    """Return elements by their positions along an axis, row by row; `axis=None` takes both operands flattened.

    Other axes broadcast. Raises `ShapeError` where the operands differ in their number of axes, `IndexOperandError` out
    of bounds. It undoes `argsort` and reads what `argmax(keepdims=True)` found.

    >>> take_along_axis(np.array([[3.0, 1.0]]), np.array([[1, 0]]), 1)
    array([[1., 3.]])
    """
    if axis is None:
        if len(shape_of(indices)) != 1:
            msg = f"take_along_axis: with axis=None the indices must have one axis, not shape {shape_of(indices)}"
            raise ShapeError(msg)
        x, axis = ravel(x), 0
    return apply(make_take_along(axis_of("take_along_axis", axis, len(shape_of(x)), x)), x, indices)


# ------------------------------------------------------------------ choices


def compress(condition: Any, a: Any, axis: int | None = None) -> Any:
    """Return the slices along an axis where a condition of one axis holds; it may be shorter than the axis.

    >>> compress([True, False, True], np.array([1.0, 2.0, 3.0]))
    array([1., 3.])
    """
    condition = nested(condition)
    if len(shape_of(condition)) != 1:
        msg = f"compress: the condition must have one axis, not shape {shape_of(condition)}"
        raise ShapeError(msg)
    return take(a, nonzero(condition)[0], axis)


def extract(condition: Any, arr: Any) -> Any:
    """Return the elements where a condition holds, both flattened.

    >>> extract(np.array([[True, False]]), np.array([[1.0, 2.0]]))
    array([1.])
    """
    return take(ravel(arr), nonzero(ravel(condition))[0])


def choose(a: Any, choices: Any, mode: str = "raise") -> Any:
    """Return, for each element of the integers `a`, that of the choice which it numbers; all broadcast together.

    >>> choose(np.array([1, 0]), (np.array([1.0, 2.0]), np.array([10.0, 20.0])))
    array([10.,  2.])
    """
    parts = sequence_of("choose", choices)
    shape = broadcast_shapes(read_shape(a), *[read_shape(part) for part in parts])
    stacked = stack([broadcast_to(part, shape) for part in parts])
    return take_along_axis(stacked, expand_dims(broadcast_to(within(a, len(parts), mode, "choose"), shape), 0), 0)[0]


def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Any:
    """Return, element by element, the choice whose condition is the first to hold, else the default.

    Raises `OperandError` where the lists differ in length or are empty.

    >>> select([np.array([True, False])], [np.array([1.0, 2.0])], 9.0)
    array([1., 9.])
    """
    if len(condlist) != len(choicelist) or not len(condlist):
        msg = f"select: {len(condlist)} conditions for {len(choicelist)} choices; each needs one, and one is needed"
        raise OperandError(msg)
    out = default
    for condition, choice in zip(reversed(condlist), reversed(choicelist), strict=True):
        if aval_of(condition).dtype.kind != "b":
            msg = f"select: a condition of dtype {aval_of(condition).dtype}; conditions are boolean"
            raise DtypeError(msg, value=condition)
        out = where(condition, choice, out)
    dtype = result_dtype(*[aval_of(each) for each in (*choicelist, default)])
    return out if aval_of(out).dtype == dtype else astype(out, dtype)  # two weak numbers may have met first


# ------------------------------------------------------------------ positions in other forms


def ix_(*args: Any) -> tuple[Any, ...]:
    """Return index arrays that select rows and columns crosswise: each of the operands along an axis of its own.

    >>> np.arange(9).reshape(3, 3)[ix_([0, 2], [1])]
    array([[1],
           [7]])
    """
    out = []
    for place, arg in enumerate(args):
        arg = nested(arg)  # noqa: PLW2901  (a list is an array here)
        if len(shape_of(arg)) != 1:
            msg = f"ix_: operand {place} has shape {shape_of(arg)}; each needs one axis"
            raise ShapeError(msg, argument=place)
        if aval_of(arg).dtype.kind == "b":
            arg = nonzero(arg)[0]  # noqa: PLW2901
        elif shape_of(arg) == (0,):
            arg = astype(arg, np.intp)  # noqa: PLW2901
        out.append(reshape(arg, [-1 if axis == place else 1 for axis in range(len(args))]))
    return tuple(out)


def unravel_index(indices: Any, shape: Any) -> tuple[Any, ...]:
    """Return the position along each axis of elements numbered in a flattened array of a shape.

    Raises `IndexOperandError` out of bounds, where the numbers are at hand.

    >>> unravel_index(np.array([5]), (2, 3))
    (array([1]), array([2]))
    """
    lengths = (shape,) if isinstance(shape, int) else tuple(shape)
    left = within(indices, None, "raise", "unravel_index")
    if not isinstance(left, Value):
        size = math.prod(lengths)
        host = isinstance(left, np.ndarray | np.integer | int)
        if host and np.size(left) and (np.min(left) < 0 or np.max(left) >= size):
            msg = f"unravel_index: an index is out of bounds for shape {lengths} of size {size}"
            raise IndexOperandError(msg)
    out = []
    for length in reversed(lengths):
        out.append(remainder(left, length))
        left = floor_divide(left, length)
    return tuple(reversed(out))


def one_hot(indices: Any, num_classes: int, dtype: Any = float) -> Any:
    """Return rows that are 1 at the position that an integer names, 0 elsewhere; all 0 where it is out of bounds.

    >>> one_hot(np.array([2, 0]), 3)
    array([[0., 0., 1.],
           [1., 0., 0.]])
    """
    numbers = within(indices, num_classes, "raise", "one_hot")
    return astype(expand_dims(numbers, -1) == counted(num_classes, numbers), dtype)
