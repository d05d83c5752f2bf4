"""Batch rules of broadcasting: they need shapes and sums, which are built on `xform.ops.broadcast`."""

from __future__ import annotations

from typing import Any

from xform.core.aval import aval_of
from xform.core.rules import batch_rule
from xform.core.stack import apply
from xform.ops.broadcast import (
    Astype,
    BroadcastLike,
    BroadcastTo,
    Lead,
    SumLike,
    SumTo,
    broadcast_like,
    broadcast_to,
    make_broadcast_to,
    make_sum_to,
)
from xform.ops.reductions import sum as sum_
from xform.ops.shapes import expand_dims, moveaxis

__all__: list[str] = []

Batched = tuple[Any, int]


@batch_rule(Lead)
def lead_batch(op: Lead, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> Batched:
    """The batch axis moves back by the new axis."""
    return apply(op, values[0]), axes[0] + 1


@batch_rule(BroadcastTo)
def broadcast_to_batch(op: BroadcastTo, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> Batched:
    """Axis i of the operand meets axis `i + extra` of the result; so does the batch axis."""
    (x,), (axis,) = values, axes
    at = len(op.shape) - (len(aval_of(x).shape) - 1) + axis
    return apply(make_broadcast_to((*op.shape[:at], size, *op.shape[at:])), x), at


@batch_rule(SumTo)
def sum_to_batch(op: SumTo, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> Batched:
    """Bring the batch axis behind those that are summed away."""
    (x,), (axis,) = values, axes
    x, at = _behind_extra(x, axis, len(op.shape))
    return apply(make_sum_to((*op.shape[:at], size, *op.shape[at:])), x), at


@batch_rule(BroadcastLike)
def broadcast_like_batch(op: BroadcastLike, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> Batched:
    """Give both operands the same rank and a batch axis in front, of length 1 where one has none."""
    rank = max(len(aval_of(v).shape) - (axis is not None) for v, axis in zip(values, axes, strict=True))
    fronted = [_fronted(v, axis, rank) for v, axis in zip(values, axes, strict=True)]
    return apply(op, *fronted), 0


@batch_rule(SumLike)
def sum_like_batch(op: SumLike, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> Batched:
    """Sum away the new axes; then the shapes are aligned behind a batch axis in front."""
    (x, like), (axis, like_axis) = values, axes
    rank = len(aval_of(like).shape) - (like_axis is not None)
    if axis is None:
        x, axis = broadcast_to(x, (size, *aval_of(x).shape)), 0
    extra = len(aval_of(x).shape) - 1 - rank
    if extra > 0:
        x, axis = _behind_extra(x, axis, rank)
        x = sum_(x, axis=tuple(range(extra)))
    x = _fronted(x, axis, rank)
    like = _fronted(like, like_axis, rank)
    if like_axis is None:  # a column of the batch's length keeps that axis from being summed
        like = broadcast_like(like, sum_(x, axis=tuple(range(1, rank + 1)), keepdims=True))
    return apply(op, x, like), 0


@batch_rule(Astype)
def astype_batch(op: Astype, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> Batched:
    """The batch axis stays where it is."""
    return apply(op, values[0]), axes[0]


def _behind_extra(x: Any, axis: int, rank: int) -> tuple[Any, int]:
    """Move a batch axis behind the axes that summing to `rank` axes drops; return it and its place in the result."""
    extra = len(aval_of(x).shape) - 1 - rank
    return (x, axis - extra) if axis >= extra else (moveaxis(x, axis, extra), 0)


def _fronted(x: Any, axis: int | None, rank: int) -> Any:
    """Bring the batch axis (or a new one of length 1) to the front, and give the rest `rank` axes."""
    ndim = len(aval_of(x).shape)
    if axis is None:
        return expand_dims(x, tuple(range(rank + 1 - ndim)))
    front = x if axis == 0 else moveaxis(x, axis, 0)
    missing = rank + 1 - ndim
    return expand_dims(front, tuple(range(1, missing + 1))) if missing else front
