"""Batches beyond the built-in rules: operators run lane by lane, and the check of what a user's batch rule returns."""

from __future__ import annotations

from typing import Any

from xform.core.aval import Aval, aval_of
from xform.core.errors import RuleError, ShapeError
from xform.core.operator import Operator
from xform.core.stack import apply
from xform.ops.create import zeros
from xform.ops.indexing import getitem
from xform.ops.stacking import stack
from xform.transforms.axes import is_axis

__all__ = ["check_rule", "lane_by_lane"]


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


def check_rule(op: Operator, size: int, found: Any) -> None:
    """Raise `RuleError` where a user's batch rule gave something of a wrong structure or shape."""
    wrong = f"the batch rule of {op!r} returned"
    if not isinstance(found, tuple) or len(found) != 2:
        msg = f"{wrong} {type(found).__name__}; it must return a pair (out, out_axis)"
        raise RuleError(msg, op=op)
    out, axis = found
    outs = out if op.multiple_outputs else (out,)
    axes = axis if op.multiple_outputs and isinstance(axis, tuple | list) else (axis,) * len(outs)
    if len(axes) != len(outs):
        msg = f"{wrong} {len(outs)} results and {len(axes)} axes"
        raise RuleError(msg, op=op)
    for each, at in zip(outs, axes, strict=True):
        shape = aval_of(each).shape
        if at is not None and not is_axis(at):
            msg = f"{wrong} {type(at).__name__} as the axis of a result; it must be an int or None"
            raise RuleError(msg, op=op)
        if at is not None and (not -len(shape) <= at < len(shape) or shape[at] not in (size, None)):
            msg = f"{wrong} a result of shape {shape} with axis {at}, which does not hold the {size} lanes"
            raise RuleError(msg, op=op)
