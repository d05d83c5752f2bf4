"""Derivatives of the updates that are not linear: `x.at[index].mul`, `.min` and `.max`.

1. The factors of a place that an index names several times are laid out on planes, the k-th on the k-th plane; the
   result is `x` times the product over the planes, whose derivative divides by nothing.
2. A derivative of `min` and `max` goes in equal shares to all that equal the result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from xform.core.aval import Aval, aval_of
from xform.core.operator import interned
from xform.core.rules import batch_rule, jvp_rule, like_of, settle, settle_dtype, vjp_rule
from xform.core.stack import apply
from xform.ops.base import Parameterless
from xform.ops.broadcast import astype
from xform.ops.comparisons import isnan
from xform.ops.create import zeros_like
from xform.ops.cumulative import others
from xform.ops.index_batch import arranged, batched, joint_order, reordered
from xform.ops.index_layout import OPERAND, layout_for, selected_shape
from xform.ops.indexing import Indexed, make_getitem
from xform.ops.positions import joint_positions
from xform.ops.shapes import lanes
from xform.ops.updates import IndexMax, IndexMin, IndexMul, make_add, make_set, may_repeat_of, moves

__all__ = ["Occurrence", "Planes"]

Axes = tuple[int | None, ...]


class Occurrence(Indexed):
    """For each entry of the advanced part of an index, how many entries before it name the same place."""

    __slots__ = ()

    def infer(self, x: Aval, *operands: Aval) -> Aval:
        """The joint shape of the advanced entries."""
        layout = layout_for(self.index, len(x.shape), operands)
        shape = selected_shape(self.index, x, operands)
        return Aval(shape[layout.before : layout.before + layout.rank], np.dtype(np.int64))

    def evaluate(self, xp: Any, x: Any, *operands: Any) -> Any:
        """Sort the entries by place, and count within each place."""
        joint = joint_positions(xp, x, self.index, operands)
        flat = xp.reshape(joint, (-1,))
        order = xp.argsort(flat, stable=True)
        rising = xp.take(flat, order)
        device = {} if xp is np else {"device": x.device}
        rank = xp.arange(flat.shape[0], dtype=xp.int64, **device) - xp.searchsorted(rising, rising)
        return xp.reshape(xp.take(rank, xp.argsort(order)), joint.shape)


class Planes(Parameterless):
    """Ones of the first operand's shape, stacked as often as the largest of the second (a count from 0) says."""

    __slots__ = ()

    def infer(self, x: Aval, count: Aval) -> Aval:
        """How many planes there are is not known."""
        return Aval((None, *x.shape), x.dtype)

    def evaluate(self, xp: Any, x: Any, count: Any) -> Any:
        """Make the ones."""
        size = 1 + int(xp.max(count)) if 0 not in count.shape else 1
        device = {} if xp is np else {"device": x.device}
        return xp.ones((size, *x.shape), dtype=x.dtype, **device)


make_occurrence = interned(Occurrence)
for _table in (vjp_rule, jvp_rule):
    _table.none(Occurrence, Planes, why="counts of an index do not depend on numbers")


@batch_rule(Occurrence)
def occurrence_batch(op: Occurrence, size: int, values: tuple[Any, ...], axes: Axes) -> tuple[Any, int | None]:
    """Lanes do not count each other's entries."""
    x = lanes(size, values[0], axes[0])
    found = batched(op.index, size, len(aval_of(x).shape) - 1, values[1:], axes[1:])
    together = all(axis is None for axis in axes[1:])
    return apply(make_occurrence(found.index), x, *found.operands), None if together else 0


@batch_rule(Planes)
def planes_batch(op: Planes, size: int, values: tuple[Any, ...], axes: Axes) -> tuple[Any, int]:
    """As many planes as the lane with most needs."""
    return apply(op, lanes(size, values[0], axes[0]), values[1]), 1


# ------------------------------------------------------------------ mul


def cofactors(op: IndexMul, x: Any, values: Any, operands: tuple[Any, ...]) -> Any:
    """Return, for each value that multiplies, its place in `x` times the other values of that place."""
    if not may_repeat_of(op.index, operands):
        return apply(make_getitem(op.index), x, *operands)
    count = apply(make_occurrence(op.index), x, *operands)
    order = joint_order(layout_for(op.index, len(aval_of(x).shape), operands))
    index = (OPERAND, *op.index)  # the planes are one axis more, in front of the axes of x
    planes = apply(make_set(index), apply(Planes(), x, count), arranged(values, order), count, *operands)
    return reordered(apply(make_getitem(index), others(planes, (0,)) * x, count, *operands), order)


@vjp_rule(IndexMul)
def mul_vjp(op: IndexMul, needed: tuple[bool, ...], x: Any, values: Any, *operands: Any) -> tuple[Any, Any]:
    """The operand gets the product of its factors; a factor the operand times the other factors of its place."""
    out = apply(op, x, values, *operands)
    like = like_of(values)
    kept = x if needed[1] else None

    def pullback(t: Any) -> tuple[Any, ...]:
        to_x = apply(op, t, values, *operands) if needed[0] else None
        to_values = settle(cofactors(op, t * kept, values, operands), like) if needed[1] else None
        return (to_x, to_values, *[None] * len(operands))

    return out, pullback


@jvp_rule(IndexMul)
def mul_jvp(op: IndexMul, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """The product rule, place by place."""
    x, values, *operands = primals
    to_x, to_values = tangents[:2]
    out = apply(op, *primals)
    if not moves(out, tangents):
        return out, None
    start = zeros_like(x) if to_x is None else apply(op, to_x, values, *operands)
    if to_values is None:
        return out, start
    return out, apply(make_add(op.index), start, cofactors(op, x, values, tuple(operands)) * to_values, *operands)


# ------------------------------------------------------------------ min, max


def shares(op: Any, x: Any, values: Any, out: Any, operands: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return the share of each old element and of each value in the derivative of its place."""
    chosen = apply(make_getitem(op.index), out, *operands)
    values = settle_dtype(values, aval_of(out))  # as they were put in: others would equal nothing
    of_x = astype((x == out) | _is_nan(x), aval_of(out).dtype)  # NaN took its place, too
    of_values = astype((values == chosen) | _is_nan(values), aval_of(out).dtype)
    count = apply(make_add(op.index), of_x, of_values, *operands)
    return of_x / count, of_values / apply(make_getitem(op.index), count, *operands)


def _is_nan(x: Any) -> Any:
    return isnan(x) if aval_of(x).dtype.kind in "fc" else False


@vjp_rule(IndexMin, IndexMax)
def extremum_vjp(op: Any, needed: tuple[bool, ...], x: Any, values: Any, *operands: Any) -> tuple[Any, Any]:
    """Each gets its share of what its place receives."""
    out = apply(op, x, values, *operands)
    of_x, of_values = shares(op, x, values, out, operands)
    like = like_of(values)

    def pullback(t: Any) -> tuple[Any, ...]:
        to_x = t * of_x if needed[0] else None
        to_values = settle(apply(make_getitem(op.index), t, *operands) * of_values, like) if needed[1] else None
        return (to_x, to_values, *[None] * len(operands))

    return out, pullback


@jvp_rule(IndexMin, IndexMax)
def extremum_jvp(op: Any, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """Each gives its share."""
    x, values, *operands = primals
    to_x, to_values = tangents[:2]
    out = apply(op, *primals)
    if not moves(out, tangents):
        return out, None
    of_x, of_values = shares(op, x, values, out, tuple(operands))
    start = zeros_like(x) if to_x is None else to_x * of_x
    return out, start if to_values is None else apply(make_add(op.index), start, of_values * to_values, *operands)
