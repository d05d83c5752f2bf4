"""An index with one more axis: the batch.

1. The indexed value has the batch as its first axis. Where no index is batched, a full slice is put in front; where one
   is, an index array that counts the lanes, so that all advanced axes come first.
2. `to_lanes` brings a selection to (batch, axes of one lane); `from_lanes` is its inverse, for what is written.
3. A mask that differs between lanes becomes integer arrays, as long as all lanes select equally many elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn

import attrs
import numpy as np

from xform.core.aval import Aval, aval_of
from xform.core.backend import namespace_of
from xform.core.errors import ShapeError
from xform.core.operator import Operator
from xform.core.rules import batch_rule, jvp_rule, vjp_rule
from xform.core.stack import apply, concrete
from xform.ops.index_layout import FULL, OPERAND, Index, Layout, layout_of, operand_count
from xform.ops.shapes import expand_dims, front, lanes, transpose

__all__ = ["Batched", "LanePositions", "arranged", "batched", "counted", "joint_order", "per_lane", "reordered"]

Axes = Sequence[int | None]


class Batched:
    """An index into a value whose first axis is the batch; `order` brings a selection to (batch, axes of one lane)."""

    __slots__ = ("index", "operands", "order")

    def __init__(self, index: Index, operands: tuple[Any, ...], order: tuple[int, ...]) -> None:
        self.index = index
        self.operands = operands
        self.order = order

    def to_lanes(self, out: Any) -> Any:
        """Bring a selection to (batch, axes of one lane)."""
        return reordered(out, self.order)

    def from_lanes(self, value: Any, axis: int | None) -> Any:
        """Bring a value that broadcasts to one lane's selection, batched at `axis` or not, to the selection's axes."""
        if axis is None:
            return arranged(value, self.order)
        value = front(value, axis)
        missing = len(self.order) - len(aval_of(value).shape)
        if missing:
            value = expand_dims(value, tuple(range(1, 1 + missing)))
        return arranged(value, self.order)


def reordered(value: Any, order: tuple[int, ...]) -> Any:
    """Permute axes, where that changes anything."""
    return value if order == tuple(range(len(order))) else transpose(value, order)


def arranged(value: Any, order: tuple[int, ...]) -> Any:
    """Undo `reordered` on a value that broadcasts to the result."""
    if order == tuple(range(len(order))):
        return value
    missing = len(order) - len(aval_of(value).shape)
    if missing:
        value = expand_dims(value, tuple(range(missing)))
    return transpose(value, tuple(order.index(axis) for axis in range(len(order))))


# ------------------------------------------------------------------ masks that differ between lanes


@attrs.frozen
class LanePositions(Operator):
    """Where a mask is true in each lane, one array of (lanes, count) an axis; `lanes` axes come first.

    Raises where lanes have different counts.
    """

    lanes: int
    multiple_outputs = True

    def infer(self, mask: Aval) -> tuple[Aval, ...]:
        """The count is not known."""
        return tuple(Aval((*mask.shape[: self.lanes], None), np.dtype(np.int64)) for _ in mask.shape[self.lanes :])

    def evaluate(self, xp: Any, mask: Any) -> Any:
        """Find all at once: the lanes come one after another."""
        shape = mask.shape[: self.lanes]
        size = math.prod(shape)
        found = xp.nonzero(mask)
        total = found[0].shape[0]
        counts = xp.sum(xp.astype(xp.reshape(mask, (size, math.prod(mask.shape[self.lanes :]))), xp.int64), axis=1)
        if total and bool(xp.any(counts * size != total)):
            msg = (
                "GetItem: a mask that selects different numbers of elements in different lanes; use "
                "xnp.where(mask, x, 0), or an integer array of fixed length"
            )
            raise ShapeError(msg, mask=mask)
        return tuple(xp.reshape(each, (*shape, total // max(size, 1))) for each in found[self.lanes :])


for _table in (vjp_rule, jvp_rule):
    _table.none(LanePositions, why="its result is positions")


@batch_rule(LanePositions)
def lane_positions_batch(op: LanePositions, size: int, values: tuple[Any, ...], axes: Axes) -> tuple[Any, Any]:
    """One more axis of lanes."""
    mask = lanes(size, values[0], axes[0])
    return apply(LanePositions(op.lanes + 1), mask), (0,) * (len(aval_of(mask).shape) - op.lanes - 1)


def without_masks(index: Index, operands: Sequence[Any], axes: Axes) -> tuple[Index, list[Any], list[int | None]]:
    """Replace masks that differ between lanes by integer arrays; raises for slices that do."""
    entries: list[Any] = []
    new_operands: list[Any] = []
    new_axes: list[int | None] = []
    at = 0
    for entry in index:
        stop = at + operand_count((entry,))
        own, own_axes = list(operands[at:stop]), list(axes[at:stop])
        at = stop
        differs = any(axis is not None for axis in own_axes)
        if differs and type(entry) is tuple:
            refuse(index, "a slice's bound")
        if differs and aval_of(own[0]).dtype.kind == "b":
            mask = front(own[0], own_axes[0])  # type: ignore[arg-type]
            if len(aval_of(mask).shape) == 1:
                refuse(index, "a mask without axes")
            own = list(apply(LanePositions(1), mask))
            own_axes = [0] * len(own)
            entries += [OPERAND] * len(own)
        else:
            entries.append(entry)
        new_operands += own
        new_axes += own_axes
    return tuple(entries), new_operands, new_axes


def refuse(index: Index, what: str) -> NoReturn:
    """Raise for what would give lanes different shapes."""
    msg = (
        f"GetItem(index={index}): {what} that differs between lanes would select different numbers of elements; use "
        "xnp.where(mask, x, 0), or an integer array of fixed length"
    )
    raise ShapeError(msg, index=index)


# ------------------------------------------------------------------ an index for the batch


def batched(index: Index, size: int, ndim: int, operands: Sequence[Any], axes: Axes) -> Batched:
    """Return the index for a value whose first axis is the batch; `ndim` is the rank of one lane."""
    index, operands, axes = without_masks(index, operands, axes)
    layout = lane_layout(index, ndim, operands, axes)
    if all(axis is None for axis in axes):
        at = 0 if layout.contiguous else layout.rank
        order = (at, *[i for i in range(layout.ndim + 1) if i != at])
        return Batched((FULL, *index), tuple(operands), order)
    numbers = counted(size, operands[0])
    if layout.rank:
        numbers = expand_dims(numbers, tuple(range(1, 1 + layout.rank)))
    order = (0, *[axis + 1 for axis in joint_order(layout)])
    return Batched((OPERAND, *index), (numbers, *_aligned(layout.rank, operands, axes)), order)


def joint_order(layout: Layout) -> tuple[int, ...]:
    """Return the order that brings (advanced axes, other axes) to the axes of the selection."""
    rank, before = layout.rank, layout.before
    return (*range(rank, rank + before), *range(rank), *range(rank + before, layout.ndim))


def per_lane(index: Index, ndim: int, operands: Sequence[Any], axes: Axes) -> tuple[Index, tuple[Any, ...], int]:
    """Return a batched index into a value that is not batched, its operands, and the batch axis of the selection."""
    index, operands, axes = without_masks(index, operands, axes)
    layout = lane_layout(index, ndim, operands, axes)
    return index, _aligned(layout.rank, operands, axes), layout.before


def lane_layout(index: Index, ndim: int, operands: Sequence[Any], axes: Axes) -> Layout:
    """Return the layout of one lane."""
    avals = [aval_of(each) for each in operands]
    ranks = tuple(len(aval.shape) - (axis is not None) for aval, axis in zip(avals, axes, strict=True))
    return layout_of(index, ndim, ranks, tuple(aval.dtype.kind == "b" for aval in avals))


def _aligned(rank: int, operands: Sequence[Any], axes: Axes) -> tuple[Any, ...]:
    """Bring the batch axis of index arrays to the front of their joint axes."""
    out = []
    for operand, axis in zip(operands, axes, strict=True):
        if axis is None:
            out.append(operand)
            continue
        moved = front(operand, axis)
        missing = rank + 1 - len(aval_of(moved).shape)
        out.append(expand_dims(moved, tuple(range(1, 1 + missing))) if missing else moved)
    return tuple(out)


def counted(size: int, like: Any) -> Any:
    """Return 0, 1, ..., size - 1 as raw integers, in the library and on the device of a value."""
    raw = concrete(like)
    xp = namespace_of(raw)
    return np.arange(size) if xp is None or xp is np else xp.arange(size, device=raw.device)
