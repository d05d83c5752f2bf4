"""Repetition: tile and repeat, and their transpose, the sum over the copies."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import attrs
import numpy as np

from xform.core.aval import Aval, shape_of
from xform.core.errors import OperandError, ShapeError
from xform.core.operator import Operator, interned
from xform.core.rules import batch_rule, linear
from xform.core.stack import apply
from xform.ops.axes import axis_of
from xform.ops.base import native
from xform.ops.broadcast import broadcast_like, sum_to_like
from xform.ops.joining import merged_shape
from xform.ops.picking import gather, sum_back
from xform.ops.shapes import expand_dims, front, ravel

__all__ = ["Fold", "Repeat", "RepeatEach", "SumEach", "Tile", "repeat", "tile"]

Axes = tuple[int, ...]
Shape = tuple[int | None, ...]


def times(length: int | None, count: int) -> int | None:
    """Return a length times a count, where it is known."""
    return 0 if count == 0 else None if length is None else length * count


@attrs.frozen
class Tile(Operator):
    """The operand laid out `reps[i]` times along axis i."""

    reps: Axes

    def infer(self, x: Aval) -> Aval:
        """Multiply the lengths."""
        if len(x.shape) != len(self.reps):
            msg = f"{self!r}: the operand has shape {x.shape}, not {len(self.reps)} axes"
            raise ShapeError(msg, aval=x)
        return Aval(tuple(times(length, rep) for length, rep in zip(x.shape, self.reps, strict=True)), x.dtype)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Compute on raw arrays."""
        return np.tile(x, self.reps) if xp is np else copies(xp, x, self.reps, inner=False)


@attrs.frozen
class Repeat(Operator):
    """Each element of an axis `count` times in succession."""

    count: int
    axis: int

    def reps(self, ndim: int) -> Axes:
        """How often along each axis."""
        return tuple(self.count if axis == self.axis else 1 for axis in range(ndim))

    def infer(self, x: Aval) -> Aval:
        """Multiply the length."""
        if len(x.shape) <= self.axis:
            msg = f"{self!r}: the operand has shape {x.shape}, which has no such axis"
            raise ShapeError(msg, aval=x)
        reps = self.reps(len(x.shape))
        return Aval(tuple(times(length, rep) for length, rep in zip(x.shape, reps, strict=True)), x.dtype)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Compute on raw arrays."""
        return np.repeat(x, self.count, self.axis) if xp is np else copies(xp, x, self.reps(x.ndim), inner=True)


def copies(xp: Any, x: Any, reps: Axes, *, inner: bool) -> Any:
    """Lay out copies of an array along its axes, as wholes or (inner) element by element."""
    pairs = [(1, length) for length in x.shape], [(rep, length) for rep, length in zip(reps, x.shape, strict=True)]
    one, many = (itertools.chain.from_iterable(p[::-1] if inner else p for p in part) for part in pairs)
    out = xp.broadcast_to(xp.reshape(x, tuple(one)), tuple(many))
    return xp.reshape(out, tuple(rep * length for rep, length in pairs[1]))


@attrs.frozen
class Fold(Operator):
    """The sum over the copies that `Tile(reps)` makes, or (inner) `Repeat`; no entry of `reps` is 0."""

    reps: Axes
    inner: bool

    def infer(self, x: Aval) -> Aval:
        """Divide the lengths; raises `ShapeError` where one is no multiple."""
        for length, rep in zip(x.shape, self.reps, strict=True):
            if length is not None and length % rep:
                msg = f"{self!r}: shape {x.shape} does not consist of that many copies"
                raise ShapeError(msg, aval=x)
        shape = tuple(None if n is None else n // rep for n, rep in zip(x.shape, self.reps, strict=True))
        return Aval(shape, x.dtype)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Compute on raw arrays."""
        pairs = [(rep, length // rep) for length, rep in zip(x.shape, self.reps, strict=True)]
        split = tuple(itertools.chain.from_iterable(pair[::-1] if self.inner else pair for pair in pairs))
        axes = tuple(range(1 if self.inner else 0, 2 * x.ndim, 2))
        return xp.sum(xp.reshape(x, split), axis=axes, dtype=native(x.dtype) if xp is np else x.dtype)


make_tile = interned(Tile)
make_repeat = interned(Repeat)
make_fold = interned(Fold)


def unfolded(reps: Axes, t: Any, like: Any, *, inner: bool) -> Any:
    """Return the sum over copies, of the shape of `like`; zeros where there are no copies."""
    if 0 in reps:
        nothing = sum_to_like(t, Aval((), np.dtype(float)))
        return broadcast_like(nothing, like)
    return apply(make_fold(reps, inner), t)


linear(Tile, lambda op, t, x: unfolded(op.reps, t, x, inner=False))
linear(Repeat, lambda op, t, x: unfolded(op.reps(len(shape_of(x))), t, x, inner=True))


@batch_rule(Tile)
def tile_batch(op: Tile, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> tuple[Any, int]:
    """Tile behind the batch axis."""
    return apply(make_tile((1, *op.reps)), front(values[0], axes[0])), 0


@batch_rule(Repeat)
def repeat_batch(op: Repeat, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> tuple[Any, int]:
    """Repeat behind the batch axis."""
    return apply(make_repeat(op.count, op.axis + 1), front(values[0], axes[0])), 0


@batch_rule(Fold)
def fold_batch(op: Fold, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> tuple[Any, int]:
    """Fold behind the batch axis."""
    return apply(make_fold((1, *op.reps), op.inner), front(values[0], axes[0])), 0


def fold_transpose(op: Fold, t: Any, x: Any) -> Any:
    """Lay out the copies again."""
    if not op.inner:
        return apply(make_tile(op.reps), t)
    for axis, rep in enumerate(op.reps):
        if rep != 1:
            t = apply(make_repeat(rep, axis), t)
    return t


linear(Fold, fold_transpose)


# ------------------------------------------------------------------ a count for each element


@attrs.frozen
class RepeatEach(Operator):
    """Element i of an axis `counts[i]` times in succession."""

    counts: Axes
    axis: int

    def infer(self, x: Aval) -> Aval:
        """Add the counts."""
        merged_shape(repr(self), (x, Aval(replaced(x.shape, self.axis, len(self.counts)), x.dtype)))
        return Aval(replaced(x.shape, self.axis, sum(self.counts)), x.dtype)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Compute on raw arrays."""
        if xp is np:
            return np.repeat(x, self.counts, self.axis)
        return gather(xp, x, index_of(self.counts), self.axis)


@attrs.frozen
class SumEach(Operator):
    """The sums over runs of an axis, `counts[i]` elements long: the transpose of `RepeatEach`."""

    counts: Axes
    axis: int

    def infer(self, x: Aval) -> Aval:
        """One element per count."""
        return Aval(replaced(x.shape, self.axis, len(self.counts)), x.dtype)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Compute on raw arrays."""
        return sum_back(xp, x, index_of(self.counts), len(self.counts), self.axis)


def replaced(shape: Shape, axis: int, length: int) -> Shape:
    """Return a shape with another length of one axis."""
    return (*shape[:axis], length, *shape[axis + 1 :])


def index_of(counts: Axes) -> Axes:
    """Return from which element each copy comes."""
    return tuple(itertools.chain.from_iterable((place,) * count for place, count in enumerate(counts)))


make_repeat_each = interned(RepeatEach)
make_sum_each = interned(SumEach)
linear(RepeatEach, lambda op, t, x: apply(make_sum_each(op.counts, op.axis), t))
linear(SumEach, lambda op, t, x: apply(make_repeat_each(op.counts, op.axis), t))


@batch_rule(RepeatEach, SumEach)
def repeat_each_batch(op: Any, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> tuple[Any, int]:
    """The same, behind the batch axis."""
    make: Any = make_repeat_each if type(op) is RepeatEach else make_sum_each
    return apply(make(op.counts, op.axis + 1), front(values[0], axes[0])), 0


# ------------------------------------------------------------------ functions


def counts_of(name: str, counts: Any) -> Axes:
    """Return counts given as an int or a sequence; raises `OperandError` for a negative one."""
    try:
        found = (operator.index(counts),)
    except TypeError:
        found = tuple(operator.index(count) for count in counts)  # type: ignore[assignment]
    if any(count < 0 for count in found):
        msg = f"{name}: counts may not be negative, got {found}"
        raise OperandError(msg, counts=found)
    return found


def tile(x: Any, reps: Any) -> Any:
    """Lay out copies of an array along its axes; more counts than axes add axes in front.

    >>> tile(np.array([1, 2]), 2), tile(np.array([1, 2]), (2, 1)).shape
    (array([1, 2, 1, 2]), (2, 2))
    """
    found = counts_of("tile", reps)
    ndim = len(shape_of(x))
    if len(found) > ndim:
        x = expand_dims(x, tuple(range(len(found) - ndim)))
    return apply(make_tile((1,) * (ndim - len(found)) + found), x)


def repeat(x: Any, repeats: Any, axis: int | None = None) -> Any:
    """Repeat each element of an axis; without an axis, of the flattened operand.

    `repeats` is a count, or one count per element. Raises `ShapeError` where their number does not fit.

    >>> repeat(np.array([1, 2]), 2), repeat(np.array([1, 2]), [1, 3])
    (array([1, 1, 2, 2]), array([1, 2, 2, 2]))
    """
    if axis is None:
        x, axis = ravel(x), 0
    shape = shape_of(x)
    axis = axis_of("repeat", axis, len(shape), x)
    counts = counts_of("repeat", repeats)
    if len(counts) == 1:
        return apply(make_repeat(counts[0], axis), x)
    if shape[axis] not in (None, len(counts)):
        msg = f"repeat: {len(counts)} counts for axis {axis} of an operand of shape {shape}"
        raise ShapeError(msg, counts=counts)
    return apply(make_repeat_each(counts, axis), x)
