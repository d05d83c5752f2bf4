"""Batches beyond the rules: operators that have none run lane by lane."""

from __future__ import annotations

from typing import Any

from xform.core.aval import Aval, aval_of
from xform.core.errors import ShapeError
from xform.core.operator import Operator
from xform.core.stack import apply
from xform.ops.create import zeros
from xform.ops.indexing import getitem
from xform.ops.stacking import stack

__all__ = ["lane_by_lane"]


def lane_by_lane(op: Operator, size: int, values: tuple[Any, ...], axes: tuple[int | None, ...]) -> tuple[Any, Any]:
    """Run an operator that has no batch rule once for each lane, and stack what it gives."""
    if not size:
        return empty_lanes(op, values, axes)
    rows = []
    for k in range(size):
        lane = [v if axis is None else one_lane(v, axis, k) for v, axis in zip(values, axes, strict=True)]
        rows.append(apply(op, *lane))
    if not op.multiple_outputs:
        return stacked(op, rows), 0
    return tuple([stacked(op, list(column)) for column in zip(*rows, strict=True)]), 0


def one_lane(value: Any, axis: int, k: int) -> Any:
    """Return one lane of a value."""
    return getitem(value, (slice(None),) * axis + (k,))


def stacked(op: Operator, rows: list[Any]) -> Any:
    """Stack the results of the lanes; raises `ShapeError` where they differ in shape."""
    shapes = {aval_of(row).shape for row in rows}
    if len(shapes) > 1:
        listed = ", ".join(sorted(map(str, shapes)))
        msg = f"{op!r} gives results of different shapes in different lanes: {listed}; pad them to one"
        raise ShapeError(msg, op=op)
    return stack(rows, 0)


def empty_lanes(op: Operator, values: tuple[Any, ...], axes: tuple[int | None, ...]) -> tuple[Any, Any]:
    """Return results without lanes."""
    found = op.infer(*[lane_aval(v, axis) for v, axis in zip(values, axes, strict=True)])
    made = [zeros((0, *aval.shape), aval.dtype) for aval in (found if op.multiple_outputs else (found,))]
    return (tuple(made), 0) if op.multiple_outputs else (made[0], 0)


def lane_aval(value: Any, axis: int | None) -> Aval:
    """Return the aval of one lane."""
    whole = aval_of(value)
    return whole if axis is None else Aval((*whole.shape[:axis], *whole.shape[axis + 1 :]), whole.dtype)
