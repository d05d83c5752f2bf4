"""Padding, and its transpose."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from xform.core.aval import Aval, aval_of, shape_of
from xform.core.errors import OperandError, ShapeError
from xform.core.operator import Operator, interned, is_negative_zero
from xform.core.rules import batch_rule, jvp_rule, linear, vjp_rule
from xform.core.stack import apply
from xform.ops.axes import axis_of
from xform.ops.broadcast import astype, broadcast_like
from xform.ops.create import zeros_like
from xform.ops.joining import make_concatenate, make_split
from xform.ops.picking import gather, sum_back
from xform.ops.shapes import front

__all__ = ["Pad", "Unpad", "pad"]

Widths = tuple[tuple[int, int], ...]
Number = int | float | complex
Pullback = Callable[[Any], tuple[Any, ...]]

MODES = ("constant", "edge", "reflect", "symmetric", "wrap")


@attrs.frozen
class Pad(Operator):
    """The operand with elements before and after it along each axis: of one number, or its own by `mode`."""

    widths: Widths
    mode: str = "constant"
    fill: Number = attrs.field(default=0, eq=repr)

    def infer(self, x: Aval) -> Aval:
        """Add the widths."""
        if len(x.shape) != len(self.widths):
            msg = f"{self!r}: the operand has shape {x.shape}, not {len(self.widths)} axes"
            raise ShapeError(msg, aval=x)
        if self.mode != "constant" and any(n == 0 and sum(w) for n, w in zip(x.shape, self.widths, strict=True)):
            msg = f'Pad: mode {self.mode!r} cannot extend an empty axis of shape {x.shape}; use mode="constant"'
            raise ShapeError(msg, aval=x)
        shape = tuple(None if n is None else n + sum(w) for n, w in zip(x.shape, self.widths, strict=True))
        return Aval(shape, x.dtype)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Compute on raw arrays."""
        x = np.asarray(x) if xp is np else x
        if self.mode == "constant":
            return framed(xp, x, self.widths, self.fill)
        for axis, (before, after) in enumerate(self.widths):
            if before or after:
                x = gather(xp, x, padded_index(x.shape[axis], before, after, self.mode), axis)
        return x


@attrs.frozen
class Unpad(Operator):
    """What padding added, summed back to where it came from: the transpose of `Pad` without a fill."""

    widths: Widths
    mode: str = "constant"

    def infer(self, x: Aval) -> Aval:
        """Take off the widths."""
        shape = tuple(None if n is None else n - sum(w) for n, w in zip(x.shape, self.widths, strict=True))
        if any(n is not None and n < 0 for n in shape):
            msg = f"{self!r}: an operand of shape {x.shape} is smaller than its padding"
            raise ShapeError(msg, aval=x)
        return Aval(shape, x.dtype)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Compute on raw arrays."""
        if self.mode == "constant":
            return x[inside(x.shape, self.widths)]
        for axis, (before, after) in enumerate(self.widths):
            if before or after:
                length = x.shape[axis] - before - after
                x = sum_back(xp, x, padded_index(length, before, after, self.mode), length, axis)
        return x


@functools.lru_cache(maxsize=256)
def padded_index(length: int, before: int, after: int, mode: str) -> tuple[int, ...]:
    """Return from which element of an axis each element of the padded axis comes.

    >>> padded_index(3, 2, 1, "reflect")
    (2, 1, 0, 1, 2, 1)
    """
    return tuple(np.pad(np.arange(length), (before, after), mode).tolist())  # type: ignore[call-overload]


def inside(shape: tuple[int, ...], widths: Widths) -> tuple[slice, ...]:
    """Return where the operand lies in an array of this (padded) shape."""
    return tuple(slice(before, length - after) for length, (before, after) in zip(shape, widths, strict=True))


def framed(xp: Any, x: Any, widths: Widths, fill: Number) -> Any:
    """Return an array with a frame of one number."""
    shape = tuple(length + sum(width) for length, width in zip(x.shape, widths, strict=True))
    if xp is np:
        out = np.full(shape, fill, x.dtype) if fill or is_negative_zero(fill) else np.zeros(shape, x.dtype)
    else:
        out = xp.full(shape, fill, dtype=x.dtype, device=x.device)
    if widths:
        out[inside(shape, widths)] = x
        return out
    return x


make_pad = interned(Pad)
make_unpad = interned(Unpad)
linear(Unpad, lambda op, t, x: apply(make_pad(op.widths, op.mode), t))


@vjp_rule(Pad)
def pad_vjp(op: Pad, needed: tuple[bool, ...], x: Any) -> tuple[Any, Pullback]:
    """Sum back what was added; a fill has no part in it."""
    out = apply(op, x)
    return out, lambda t: (apply(make_unpad(op.widths, op.mode), t),)


@jvp_rule(Pad)
def pad_jvp(op: Pad, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """Pad the tangent with zeros, or by the mode."""
    out = apply(op, primals[0])
    return out, None if tangents[0] is None else apply(make_pad(op.widths, op.mode), tangents[0])


@batch_rule(Pad)
def pad_batch(op: Pad, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> tuple[Any, int]:
    """Pad behind the batch axis."""
    return apply(make_pad(((0, 0), *op.widths), op.mode, op.fill), front(values[0], axes[0])), 0


@batch_rule(Unpad)
def unpad_batch(op: Unpad, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> tuple[Any, int]:
    """Unpad behind the batch axis."""
    return apply(make_unpad(((0, 0), *op.widths), op.mode), front(values[0], axes[0])), 0


# ------------------------------------------------------------------ the function


def pad(x: Any, pad_width: Any, mode: str = "constant", *, constant_values: Any = 0) -> Any:
    """Add elements before and after an array along its axes.

    `pad_width` is a number, a pair (before, after), one pair per axis, or a dict of them by axis. Modes: "constant" (of
    `constant_values`, given as the widths are; values are differentiable), "edge", "reflect", "symmetric", "wrap".
    Raises `OperandError` for other modes and negative widths, `ShapeError` where widths do not fit the axes.

    >>> pad(np.array([1, 2, 3]), (1, 2), "reflect"), pad(np.array([1, 2]), 1, constant_values=9)
    (array([2, 1, 2, 3, 2, 1]), array([9, 1, 2, 9]))
    """
    if mode not in MODES:
        msg = f"pad: mode={mode!r} is not supported; the modes are {', '.join(MODES)}"
        raise OperandError(msg, mode=mode)
    ndim = len(shape_of(x))
    widths = widths_of(pad_width, ndim, x)
    if mode != "constant":
        return apply(make_pad(widths, mode), x)
    fills = pairs_of("constant_values", constant_values, ndim)
    numbers = {number_of(each) for pair in fills for each in pair}
    if len(numbers) <= 1 and None not in numbers:
        return apply(make_pad(widths, mode, numbers.pop() if numbers else 0), x)
    for axis, (width, fill) in enumerate(zip(widths, fills, strict=True)):
        x = padded_axis(x, axis, width, fill)
    return x


def number_of(fill: Any) -> Number | None:
    """Return a fill as a Python number, or None for a value and for another library's array."""
    if isinstance(fill, np.generic | np.ndarray):
        return fill.item()  # type: ignore[no-any-return]
    return fill if isinstance(fill, int | float | complex) else None


def padded_axis(x: Any, axis: int, width: tuple[int, int], fill: tuple[Any, Any]) -> Any:
    """Pad one axis on both sides, each with its own fill."""
    parts = [x]
    empty = apply(make_split((0,), axis), x)[0]
    for side, (count, each) in enumerate(zip(width, fill, strict=True)):
        if not count:
            continue
        widths = tuple((count, 0) if i == axis else (0, 0) for i in range(len(shape_of(x))))
        number = number_of(each)
        slab = apply(make_pad(widths, "constant", 0 if number is None else number), empty)
        if number is None:
            slab = broadcast_like(astype(each, aval_of(x).dtype), zeros_like(slab))
        parts.insert(0 if side == 0 else len(parts), slab)
    return x if len(parts) == 1 else apply(make_concatenate(axis), *parts)


def widths_of(pad_width: Any, ndim: int, x: Any) -> Widths:
    """Return the widths as one pair per axis."""
    if isinstance(pad_width, dict):
        by_axis = {axis_of("pad", axis, ndim, x): width for axis, width in pad_width.items()}
        given = [pairs_of("pad_width", by_axis.get(axis, 0), 1)[0] for axis in range(ndim)]
    else:
        given = pairs_of("pad_width", pad_width, ndim)
    found = tuple((operator.index(before), operator.index(after)) for before, after in given)
    if any(before < 0 or after < 0 for before, after in found):
        msg = f"pad: pad_width may not be negative, got {found}"
        raise OperandError(msg, pad_width=found)
    return found


def pairs_of(name: str, given: Any, ndim: int) -> list[tuple[Any, Any]]:
    """Return what is given once, as one pair for all axes, or per axis, as one pair per axis."""
    if isinstance(given, np.ndarray):
        given = given.tolist()
    if not isinstance(given, tuple | list):
        return [(given, given)] * ndim
    rows = list(given)
    if not any(isinstance(row, tuple | list) for row in rows):
        rows = [rows] if len(rows) == 2 else rows
    rows = [row if isinstance(row, tuple | list) else (row,) for row in rows]
    rows = [tuple(row) * (2 if len(row) == 1 else 1) for row in rows]
    if len(rows) == 1:
        rows *= ndim
    if len(rows) != ndim or any(len(row) != 2 for row in rows):
        msg = f"pad: {name}={given!r} does not give a pair for each of {ndim} axes"
        raise ShapeError(msg)
    return rows


