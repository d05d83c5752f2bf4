"""Rules for operations that only arrange elements: fewer of them, and arithmetic before broadcasting.

They hold where shapes are known, and change no element.
"""

from __future__ import annotations

import math

import numpy as np

from xform.core.aval import Aval, broadcast_shapes, is_static
from xform.core.operator import Operator
from xform.ops.arithmetic import Add, Div
from xform.ops.base import Elementwise
from xform.ops.broadcast import Astype, BroadcastLike, BroadcastTo, Lead, SumLike, SumTo, make_broadcast_to, make_sum_to
from xform.ops.create import FullLike
from xform.ops.index_layout import is_basic
from xform.ops.indexing import GetItem, ScatterAdd, ScatterAddLike, make_getitem
from xform.ops.joining import Stack
from xform.ops.reductions import EXACT, Mean, Sum, make_sum
from xform.ops.shapes import (
    ExpandDims,
    Reshape,
    ReshapeLike,
    Squeeze,
    Transpose,
    make_reshape,
    make_transpose,
)
from xform.ops.structural import Identity, Name, StopGradient
from xform.programs.passes.draft import Draft, Inputs, Number, Operand, Rules
from xform.programs.program import Literal, aval_at

__all__ = ["views"]

#: they change no element
views = Rules()


@views.on(Elementwise, given=(BroadcastTo,))
def slide(draft: Draft, op: Operator, inputs: Inputs, aval: Aval) -> Operand | None:
    """Compute an elementwise operation before its operands are broadcast, as far as it can be."""
    if not is_static(aval.shape):
        return None
    makers = [draft.maker(operand, BroadcastTo) for operand in inputs]
    if not any(makers):
        return None
    narrow = [operand if made is None else made.inputs[0] for operand, made in zip(inputs, makers, strict=True)]
    if broadcast_shapes(*[aval_at(operand).shape for operand in narrow]) == aval.shape:
        return draft.apply(op, *narrow)
    return draft.apply(make_broadcast_to(aval.shape), draft.apply(op, *narrow))


# ------------------------------------------------------------------ no operation at all


@views.on(Identity, Name, StopGradient)
def itself(draft: Draft, op: Operator, inputs: Inputs, aval: Aval) -> Operand:
    """The operand: only layers tell them apart."""
    return inputs[0]


@views.on(Astype)
def cast_to_itself(draft: Draft, op: Astype, inputs: Inputs, aval: Aval) -> Operand | None:
    """A cast to the dtype that is there already."""
    return inputs[0]


@views.on(BroadcastTo, SumTo, Reshape)
def same_shape(draft: Draft, op: Operator, inputs: Inputs, aval: Aval) -> Operand | None:
    """A change of shape to the shape that is there already."""
    return inputs[0] if is_static(aval.shape) else None


@views.on(Transpose)
def unmoved(draft: Draft, op: Transpose, inputs: Inputs, aval: Aval) -> Operand | None:
    """A permutation that moves nothing; two, one after the other, are one."""
    if op.axes == tuple(range(len(op.axes))):
        return inputs[0]
    before = draft.maker(inputs[0], Transpose)
    if before is None:
        return None
    first: tuple[int, ...] = before.op.axes  # type: ignore[attr-defined]
    return draft.apply(make_transpose(tuple([first[axis] for axis in op.axes])), before.inputs[0])


# ------------------------------------------------------------------ shapes that are known


@views.on(FullLike)
def filled(draft: Draft, op: FullLike, inputs: Inputs, aval: Aval) -> Operand | None:
    """One number, broadcast."""
    if not is_static(aval.shape):
        return None
    if aval.weak:
        return Literal(op.evaluate(np, {"b": False, "i": 0, "f": 0.0, "c": 0j}[aval.dtype.kind]))
    return draft.full(op.fill, aval)


@views.on(BroadcastLike)
def broadcast_to_known(draft: Draft, op: Operator, inputs: Inputs, aval: Aval) -> Operand | None:
    """The shape as a parameter, so that the second operand is not needed."""
    return draft.apply(make_broadcast_to(aval.shape), inputs[0]) if is_static(aval.shape) else None


@views.on(SumLike)
def sum_to_known(draft: Draft, op: Operator, inputs: Inputs, aval: Aval) -> Operand | None:
    """The shape as a parameter, so that the second operand is not needed."""
    return draft.apply(make_sum_to(aval.shape), inputs[0]) if is_static(aval.shape) else None


@views.on(ScatterAddLike)
def scatter_into_known(draft: Draft, op: ScatterAddLike, inputs: Inputs, aval: Aval) -> Operand | None:
    """Shape and dtype as parameters, so that the first operand is not needed."""
    if not is_static(aval.shape):
        return None
    return draft.apply(ScatterAdd(op.of, aval.shape, aval.dtype.name), *inputs[1:])  # type: ignore[arg-type]


@views.on(ReshapeLike, ExpandDims, Squeeze)
def reshape_to_known(draft: Draft, op: Operator, inputs: Inputs, aval: Aval) -> Operand | None:
    """One way to write a change of shape."""
    if not is_static(aval.shape) or not is_static(aval_at(inputs[0]).shape):
        return None
    return draft.apply(make_reshape(aval.shape), inputs[0])


@views.on(Reshape, given=(Reshape,))
def reshaped_twice(draft: Draft, op: Reshape, inputs: Inputs, aval: Aval) -> Operand | None:
    """Two changes of shape, one after the other, are one."""
    before = draft.maker(inputs[0], Reshape)
    if before is None or not is_static(aval.shape):
        return None
    return draft.apply(make_reshape(aval.shape), before.inputs[0])


@views.on(Lead)
def lead_to_known(draft: Draft, op: Lead, inputs: Inputs, aval: Aval) -> Operand | None:
    """A repetition along a new axis in front is a broadcast."""
    return draft.apply(make_broadcast_to(aval.shape), inputs[0]) if is_static(aval.shape) else None


@views.on(BroadcastTo, given=(BroadcastTo, Number))
def broadcast_once(draft: Draft, op: BroadcastTo, inputs: Inputs, aval: Aval) -> Operand | None:
    """Two broadcasts, one after the other, are one; a number is broadcast as an array of its dtype."""
    (x,) = inputs
    if isinstance(x, Literal):
        return draft.full(x.value, aval)
    before = draft.maker(x, BroadcastTo)
    return None if before is None else draft.apply(op, before.inputs[0])


@views.on(Reshape, Transpose, GetItem, given=(BroadcastTo,))
def arranged_number(draft: Draft, op: Operator, inputs: Inputs, aval: Aval) -> Operand | None:
    """Any arrangement of a number that was broadcast is that number, broadcast."""
    before = draft.maker(inputs[0], BroadcastTo)
    if before is None or aval_at(before.inputs[0]).shape or not is_static(aval.shape):
        return None
    if isinstance(op, GetItem) and not is_basic(op.index):
        return None
    return draft.apply(make_broadcast_to(aval.shape), before.inputs[0])


@views.on(Stack)
def stacked_again(draft: Draft, op: Stack, inputs: Inputs, aval: Aval) -> Operand | None:
    """Rows of one array, one after the other, upwards or downwards, are a part of it."""
    rows = [draft.row_of(operand) for operand in inputs]
    if op.axis or rows[0] is None or None in rows:
        return None
    (whole, start), count = rows[0], len(rows)
    step = rows[1][1] - start if count > 1 else 1  # type: ignore[index]
    if abs(step) != 1 or any(row[0] is not whole or row[1] != start + step * n for n, row in enumerate(rows)):  # type: ignore[index]
        return None
    if step == 1 and aval_at(whole).shape[0] == count:
        return whole
    stop = start + step * count
    return draft.apply(make_getitem(((start, stop if stop >= 0 else None, step),)), whole)


# ------------------------------------------------------------------ sums


@views.on(SumTo)
def sum_over_known(draft: Draft, op: SumTo, inputs: Inputs, aval: Aval) -> Operand | None:
    """A sum over named axes, and a change of shape."""
    have = aval_at(inputs[0])
    extra = len(have.shape) - len(op.shape)
    if not is_static(have.shape) or extra < 0 or have.dtype.kind not in "fc":
        return None
    if any(n not in (1, have.shape[i + extra]) for i, n in enumerate(op.shape)):
        return None  # an axis of length 1 is broadcast
    target = (*[1] * extra, *op.shape)
    axes = tuple([axis for axis, n in enumerate(target) if n == 1 and have.shape[axis] != 1])
    if not axes:
        return draft.apply(make_reshape(op.shape), inputs[0])
    return draft.apply(make_reshape(op.shape), draft.apply(make_sum(axes, keepdims=False), inputs[0]))


@views.on(Sum)
def sum_of_one(draft: Draft, op: Sum, inputs: Inputs, aval: Aval) -> Operand | None:
    """A sum over axes of length 1 adds each element to 0: -0 becomes 0."""
    have = aval_at(inputs[0])
    if not is_static(have.shape) or any(have.shape[axis] != 1 for axis in op.axis):
        return None
    total = draft.apply(Add(), inputs[0], Literal(0.0)) if have.dtype.kind in "fc" else inputs[0]
    return draft.apply(make_reshape(aval.shape), total)


@views.on(Mean)
def mean_as_sum(draft: Draft, op: Mean, inputs: Inputs, aval: Aval) -> Operand | None:
    """What NumPy computes: a sum, divided by the count."""
    have = aval_at(inputs[0])
    if not is_static(have.shape) or have.dtype.char not in EXACT or 0 in have.shape:
        return None
    count = math.prod(have.shape[axis] for axis in op.axis)  # type: ignore[misc]
    return draft.apply(Div(), draft.apply(make_sum(op.axis, op.keepdims), inputs[0]), Literal(count))
