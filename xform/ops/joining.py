"""Operators that join arrays along an axis, and their transposes, which split them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from xform.core.aval import Aval, aval_of
from xform.core.backend import SCALAR_TYPES
from xform.core.errors import OperandError, ShapeError
from xform.core.operator import Operator, interned
from xform.core.rules import batch_rule, jvp_rule, settle_dtype, vjp_rule
from xform.core.stack import apply
from xform.ops.create import zeros_like
from xform.ops.shapes import front, lanes, squeeze

__all__ = [
    "Concatenate",
    "Split",
    "SplitLike",
    "Stack",
    "Unstack",
]

Shape = tuple[int | None, ...]
Pullback = Callable[[Any], tuple[Any, ...]]


# ------------------------------------------------------------------ what operands have in common


def joined_dtype(avals: tuple[Aval, ...]) -> np.dtype[Any]:
    """Return the dtype of joined arrays: a Python number counts as NumPy's default array of its kind."""
    return np.result_type(*[aval.dtype for aval in avals])


def of_one_dtype(xp: Any, arrays: tuple[Any, ...]) -> list[Any]:
    """Return arrays of a library that does not promote by itself, cast to their common dtype."""
    avals = tuple(aval_of(array) for array in arrays)
    dtype = joined_dtype(avals)
    own = getattr(xp, dtype.name)
    device = next((array.device for array in arrays if type(array) not in SCALAR_TYPES), None)
    return [
        xp.asarray(array, dtype=own, device=device)
        if type(array) in SCALAR_TYPES
        else array
        if aval.dtype == dtype
        else xp.astype(array, own)
        for array, aval in zip(arrays, avals, strict=True)
    ]


def merged_shape(name: str, avals: tuple[Aval, ...], skipped: int | None = None) -> list[int | None]:
    """Return the one shape of all operands, one axis left out of the comparison; raises `ShapeError`."""
    if not avals:
        msg = f"{name}: needs at least one array"
        raise OperandError(msg)
    merged = list(avals[0].shape)
    for position, aval in enumerate(avals[1:], 1):
        fits = len(aval.shape) == len(merged)
        for axis, length in enumerate(aval.shape if fits else ()):
            if axis == skipped or length is None:
                continue
            fits = fits and merged[axis] in (None, length)
            merged[axis] = length
        if not fits:
            msg = f"{name}: operand {position} has shape {aval.shape}, operand 0 {avals[0].shape}"
            raise ShapeError(msg, argument=position, avals=avals)
    return merged


# ------------------------------------------------------------------ Concatenate


@attrs.frozen
class AlongAxis(Operator):
    """An operator along one axis (not negative)."""

    axis: int


class Concatenate(AlongAxis):
    """Arrays one after the other along an axis."""

    __slots__ = ()

    def infer(self, *avals: Aval) -> Aval:
        """Add the lengths."""
        if avals and len(avals[0].shape) <= self.axis:
            msg = f"{self!r}: operand 0 has shape {avals[0].shape}, which has no such axis"
            raise ShapeError(msg, avals=avals)
        shape = merged_shape(repr(self), avals, self.axis)
        lengths = [aval.shape[self.axis] for aval in avals]
        shape[self.axis] = None if None in lengths else sum(lengths)  # type: ignore[arg-type]
        return Aval(tuple(shape), joined_dtype(avals))

    def evaluate(self, xp: Any, *arrays: Any) -> Any:
        """Compute on raw arrays."""
        if xp is np:
            return np.concatenate(arrays, self.axis)
        return xp.concat(of_one_dtype(xp, arrays), axis=self.axis)


make_concatenate = interned(Concatenate)


@vjp_rule(Concatenate)
def concatenate_vjp(op: Concatenate, needed: tuple[bool, ...], *primals: Any) -> tuple[Any, Pullback]:
    """Split the cotangent; of one operand alone, take its part."""
    out = apply(op, *primals)
    avals = [aval_of(x) for x in primals]
    lengths = [aval.shape[op.axis] for aval in avals]
    likes = primals if None in lengths else None

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        if likes is None:
            parts = parts_of(cotangent, lengths, op.axis, needed)  # type: ignore[arg-type]
        else:
            parts = apply(make_split_like(op.axis), cotangent, *likes)
        return tuple(
            settle_dtype(part, aval) if need else None for part, aval, need in zip(parts, avals, needed, strict=True)
        )

    return out, pullback


def parts_of(x: Any, lengths: list[int], axis: int, needed: tuple[bool, ...]) -> tuple[Any, ...]:
    """Cut an array into parts of these lengths; of one part alone, only that one."""
    ends = list(itertools.accumulate(lengths))
    if sum(needed) > 1:
        return apply(make_split(tuple(ends[:-1]), axis), x)  # type: ignore[no-any-return]
    which = needed.index(True)
    part = apply(make_split((ends[which] - lengths[which], ends[which]), axis), x)[1]
    return tuple(part if need else None for need in needed)


@jvp_rule(Concatenate)
def concatenate_jvp(op: Any, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """Join the tangents, zeros where there is none."""
    out = apply(op, *primals)
    if all(t is None for t in tangents):
        return out, None
    return out, apply(op, *[zeros_like(x) if t is None else t for x, t in zip(primals, tangents, strict=True)])


@batch_rule(Concatenate)
def concatenate_batch(op: Concatenate, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> tuple[Any, int]:
    """Join behind the batch axis."""
    rows = [lanes(size, value, axis) for value, axis in zip(values, axes, strict=True)]
    return apply(make_concatenate(op.axis + 1), *rows), 0


# ------------------------------------------------------------------ Stack and Unstack


class Stack(AlongAxis):
    """Arrays of one shape along a new axis; Python numbers are taken too."""

    __slots__ = ()

    def infer(self, *avals: Aval) -> Aval:
        """Insert the number of operands."""
        shape = merged_shape(repr(self), avals)
        shape.insert(self.axis, len(avals))
        return Aval(tuple(shape), joined_dtype(avals))

    def evaluate(self, xp: Any, *arrays: Any) -> Any:
        """Compute on raw arrays."""
        if xp is not np:
            return xp.stack(of_one_dtype(xp, arrays), axis=self.axis)
        if any(type(array) is np.ndarray for array in arrays):
            return np.stack(arrays, self.axis)
        alike = len(set(map(type, arrays))) == 1
        return np.array(arrays, None if alike else joined_dtype(tuple(aval_of(array) for array in arrays)))


class Unstack(AlongAxis):
    """The arrays that lie along an axis, each without it."""

    __slots__ = ()
    multiple_outputs = True

    def infer(self, x: Aval) -> tuple[Aval, ...]:
        """As many as the axis is long; raises `ShapeError` where that is not known."""
        length = x.shape[self.axis]
        if length is None:
            msg = f"Unstack: the length of axis {self.axis} of {x!r} is not known before run time"
            raise ShapeError(msg, aval=x)
        return (Aval((*x.shape[: self.axis], *x.shape[self.axis + 1 :]), x.dtype),) * length

    def evaluate(self, xp: Any, x: Any) -> tuple[Any, ...]:
        """Compute on raw arrays."""
        if x.ndim == 1:
            return tuple(x[place] for place in range(x.shape[0]))
        before = (slice(None),) * self.axis
        return tuple(x[(*before, place, ...)] for place in range(x.shape[self.axis]))


make_stack = interned(Stack)
make_unstack = interned(Unstack)
jvp_rule(Stack)(concatenate_jvp)


@vjp_rule(Stack)
def stack_vjp(op: Stack, needed: tuple[bool, ...], *primals: Any) -> tuple[Any, Pullback]:
    """Unstack the cotangent; of one operand alone, take its part."""
    out = apply(op, *primals)
    avals = [aval_of(x) for x in primals]

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        if sum(needed) > 1:
            parts = apply(make_unstack(op.axis), cotangent)
        else:
            parts = parts_of(cotangent, [1] * len(needed), op.axis, needed)
            parts = [None if part is None else squeeze(part, op.axis) for part in parts]
        return tuple(
            settle_dtype(part, aval) if need else None for part, aval, need in zip(parts, avals, needed, strict=True)
        )

    return out, pullback


@batch_rule(Stack)
def stack_batch(op: Stack, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> tuple[Any, int]:
    """Stack behind the batch axis."""
    rows = [lanes(size, value, axis) for value, axis in zip(values, axes, strict=True)]
    return apply(make_stack(op.axis + 1), *rows), 0


@vjp_rule(Unstack)
def unstack_vjp(op: Unstack, needed: tuple[bool, ...], x: Any) -> tuple[Any, Pullback]:
    """Stack the cotangents; with no parts, zeros."""
    out = apply(op, x)
    return out, lambda cotangents: (apply(make_stack(op.axis), *cotangents),)


@batch_rule(Unstack)
def unstack_batch(op: Unstack, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> tuple[Any, Any]:
    """Unstack behind the batch axis."""
    out = apply(make_unstack(op.axis + 1), front(values[0], axes[0]))
    return out, (0,) * len(out)


# ------------------------------------------------------------------ Split


@attrs.frozen
class Split(Operator):
    """The parts of an array between these points (ascending, not negative) of an axis."""

    points: tuple[int, ...]
    axis: int
    multiple_outputs = True

    def infer(self, x: Aval) -> tuple[Aval, ...]:
        """One part more than there are points."""
        if self.axis >= len(x.shape):
            msg = f"{self!r}: the operand has shape {x.shape}, which has no such axis"
            raise ShapeError(msg, aval=x)
        length = x.shape[self.axis]
        ends: list[int | None] = [None] * (len(self.points) + 1)
        if length is not None:
            cuts = [0, *[min(point, length) for point in self.points], length]
            ends = [stop - start for start, stop in itertools.pairwise(cuts)]
        before, after = x.shape[: self.axis], x.shape[self.axis + 1 :]
        return tuple(Aval((*before, end, *after), x.dtype) for end in ends)

    def evaluate(self, xp: Any, x: Any) -> tuple[Any, ...]:
        """Compute on raw arrays."""
        return cut(x, [0, *self.points, x.shape[self.axis]], self.axis)


class SplitLike(AlongAxis):
    """The first operand in parts that are as long, along an axis, as the other operands."""

    __slots__ = ()
    multiple_outputs = True

    def infer(self, x: Aval, *likes: Aval) -> tuple[Aval, ...]:
        """The lengths of the others."""
        before, after = x.shape[: self.axis], x.shape[self.axis + 1 :]
        return tuple(Aval((*before, like.shape[self.axis], *after), x.dtype) for like in likes)

    def evaluate(self, xp: Any, x: Any, *likes: Any) -> tuple[Any, ...]:
        """Compute on raw arrays."""
        ends = itertools.accumulate(like.shape[self.axis] for like in likes)
        return cut(x, [0, *ends], self.axis)


def cut(x: Any, points: list[int], axis: int) -> tuple[Any, ...]:
    """Return the slices between successive points of an axis."""
    before = (slice(None),) * axis
    return tuple(x[(*before, slice(start, stop), ...)] for start, stop in itertools.pairwise(points))


make_split = interned(Split)
make_split_like = interned(SplitLike)


@vjp_rule(Split)
def split_vjp(op: Split, needed: tuple[bool, ...], x: Any) -> tuple[Any, Pullback]:
    """Join the cotangents of the parts."""
    out = apply(op, x)
    return out, lambda cotangents: (apply(make_concatenate(op.axis), *cotangents),)


@vjp_rule(SplitLike)
def split_like_vjp(op: SplitLike, needed: tuple[bool, ...], x: Any, *likes: Any) -> tuple[Any, Pullback]:
    """Join the cotangents of the parts."""
    out = apply(op, x, *likes)
    join = make_concatenate(op.axis)
    return out, lambda cotangents: (apply(join, *cotangents) if needed[0] else None, *[None] * len(likes))


@jvp_rule(Split, SplitLike, Unstack)
def split_jvp(op: Any, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """Split the tangent alike."""
    x, *likes = primals
    out = apply(op, x, *likes)
    return out, None if tangents[0] is None else apply(op, tangents[0], *likes)


@batch_rule(Split)
def split_batch(op: Split, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> tuple[Any, Any]:
    """Split behind the batch axis."""
    out = apply(make_split(op.points, op.axis + 1), front(values[0], axes[0]))
    return out, (0,) * len(out)


@batch_rule(SplitLike)
def split_like_batch(op: SplitLike, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> tuple[Any, Any]:
    """Split behind the batch axis."""
    rows = [lanes(size, value, axis) for value, axis in zip(values, axes, strict=True)]
    out = apply(make_split_like(op.axis + 1), *rows)
    return out, (0,) * len(out)
