"""Indexing, and its transpose: adding cotangents into the places that were read.

Index arrays, masks and traced positions are operands; ints, slices, `...` and new axes are parameters, as plain data
(see `xform.ops.index_layout`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from xform.core.aval import Aval, aval_of
from xform.core.operator import Operator, interned
from xform.core.rules import batch_rule, jvp_rule, like_of, linear, settle, vjp_rule
from xform.core.stack import BOTTOM, apply, concrete, cursor
from xform.core.value import Array
from xform.ops.index_batch import batched, per_lane
from xform.ops.index_layout import Index, encode, operand_count, selected_shape
from xform.ops.positions import add_into, read
from xform.ops.shapes import front, lanes

__all__ = ["GetItem", "ScatterAdd", "ScatterAddLike", "getitem"]

_get = cursor.get
_ndarray = np.ndarray
#: what NumPy takes as it is
PLAIN = frozenset({int, slice, type(None), type(...)})
#: bounds of a slice that are no operands
BOUNDS = frozenset({int, type(None)})
Part = tuple[Any, Any, tuple[Any, ...]]
Axes = tuple[int | None, ...]


@attrs.frozen
class Indexed(Operator):
    """An operator at an index; the operands that belong to the index come last."""

    index: Index


class GetItem(Indexed):
    """What an index selects."""

    __slots__ = ()

    def infer(self, x: Aval, *operands: Aval) -> Aval:
        """NumPy's shape; unknown where a mask decides."""
        return Aval(selected_shape(self.index, x, operands), x.dtype)

    def evaluate(self, xp: Any, x: Any, *operands: Any) -> Any:
        """Read at the index."""
        return read(xp, x, self.index, operands)


make_getitem = interned(GetItem)


# ------------------------------------------------------------------ the transpose of many selections at once


@attrs.frozen
class ScatterAdd(Operator):
    """Zeros, into which cotangents are added at the places named by `of`, one index a part.

    Operands: for each part its cotangent and the operands of its index.
    """

    of: tuple[Index, ...]
    shape: tuple[int, ...]
    dtype: str

    def infer(self, *operands: Aval) -> Aval:
        """The parameters' shape and dtype."""
        return Aval(self.shape, np.dtype(self.dtype))

    def evaluate(self, xp: Any, *operands: Any) -> Any:
        """Add all parts into one buffer."""
        return _filled(xp, blank(xp, self.shape, self.dtype, operands), self.of, operands)


@attrs.frozen
class ScatterAddLike(Operator):
    """As `ScatterAdd`, of the shape and dtype of the first operand."""

    of: tuple[Index, ...]

    def infer(self, like: Aval, *operands: Aval) -> Aval:
        """The first operand's."""
        return Aval(like.shape, like.dtype)

    def evaluate(self, xp: Any, like: Any, *operands: Any) -> Any:
        """Add all parts into one buffer."""
        return _filled(xp, xp.zeros_like(like), self.of, operands)


def blank(xp: Any, shape: tuple[int, ...], dtype: str, beside: Sequence[Any]) -> Any:
    """Return raw zeros in a library, on the device of the first array among `beside`."""
    if xp is np:
        return np.zeros(shape, dtype)
    device = next((array.device for array in beside if hasattr(array, "device")), None)
    return xp.zeros(shape, dtype=getattr(xp, dtype), device=device)


def _filled(xp: Any, buffer: Any, of: tuple[Index, ...], operands: tuple[Any, ...]) -> Any:
    for index, cotangent, others in parts_of(of, operands):
        buffer = add_into(xp, buffer, index, others, cotangent)
    return buffer


def parts_of(of: tuple[Index, ...], operands: Sequence[Any]) -> list[tuple[Index, Any, tuple[Any, ...]]]:
    """Return `(index, cotangent, operands of the index)` of each part."""
    parts = []
    at = 0
    for index in of:
        stop = at + 1 + operand_count(index)
        parts.append((index, operands[at], tuple(operands[at + 1 : stop])))
        at = stop
    return parts


def scatter(parts: Sequence[Part], like: Any) -> Any:
    """Add the cotangents of many selections into zeros like the value they were selected from, in one operation."""
    of = tuple(op.index for op, _, _ in parts)
    operands = [each for _, cotangent, others in parts for each in (cotangent, *others)]
    return scattered(of, operands, like)


def scattered(of: tuple[Index, ...], operands: Sequence[Any], like: Any) -> Any:
    """Apply `ScatterAdd` where the shape is known, else `ScatterAddLike`."""
    if isinstance(like, Aval):
        return apply(ScatterAdd(of, like.shape, like.dtype.name), *operands)  # type: ignore[arg-type]
    return apply(ScatterAddLike(of), like, *operands)


def accumulate(op: GetItem, buffer: Any, cotangent: Any, *operands: Any) -> None:
    """Add a cotangent into a raw buffer, in place."""
    add_into(np, buffer, op.index, tuple(concrete(each) for each in operands), cotangent)


linear(
    GetItem,
    lambda op, t, x, *operands: scatter([(op, t, operands)], x),
    linear_in=(0,),
    accumulate=accumulate,
    scatter=scatter,
)


def _scatter_vjp(of: tuple[Index, ...], needed: Sequence[bool], operands: Sequence[Any]) -> Any:
    """Return the pullback to the operands of the parts: read where they were added."""
    parts = parts_of(of, operands)
    wanted = [need for _, need, _ in parts_of(of, needed)]
    kept = [
        (index, like_of(ct), others) if want else None for (index, ct, others), want in zip(parts, wanted, strict=True)
    ]
    counts = [len(others) for _, _, others in parts]

    def pullback(t: Any) -> list[Any]:
        found: list[Any] = []
        for each, count in zip(kept, counts, strict=True):
            found.append(None if each is None else settle(apply(make_getitem(each[0]), t, *each[2]), each[1]))
            found += [None] * count
        return found

    return pullback


@vjp_rule(ScatterAdd)
def scatter_add_vjp(op: ScatterAdd, needed: tuple[bool, ...], *operands: Any) -> tuple[Any, Any]:
    """A cotangent of a part is what its index selects."""
    out = apply(op, *operands)
    pullback = _scatter_vjp(op.of, needed, operands)
    return out, lambda t: tuple(pullback(t))


@vjp_rule(ScatterAddLike)
def scatter_add_like_vjp(op: ScatterAddLike, needed: tuple[bool, ...], like: Any, *operands: Any) -> tuple[Any, Any]:
    """As for `ScatterAdd`; the first operand gives its shape only."""
    out = apply(op, like, *operands)
    pullback = _scatter_vjp(op.of, needed[1:], operands)
    return out, lambda t: (None, *pullback(t))


def _scatter_jvp(of: tuple[Index, ...], operands: Sequence[Any], tangents: Sequence[Any], like: Any) -> Any:
    parts = zip(parts_of(of, operands), parts_of(of, tangents), strict=True)
    moving = [(index, (t, *others)) for (index, _, others), (_, t, _) in parts if t is not None]
    if not moving:
        return None
    return scattered(tuple(index for index, _ in moving), [each for _, group in moving for each in group], like)


@jvp_rule(ScatterAdd)
def scatter_add_jvp(op: ScatterAdd, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """The same on the tangents of the parts that have one."""
    out = apply(op, *primals)
    return out, _scatter_jvp(op.of, primals, tangents, Aval(op.shape, np.dtype(op.dtype)))


@jvp_rule(ScatterAddLike)
def scatter_add_like_jvp(op: ScatterAddLike, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """The same on the tangents of the parts that have one."""
    out = apply(op, *primals)
    return out, _scatter_jvp(op.of, primals[1:], tangents[1:], primals[0])


# ------------------------------------------------------------------ batches


@functools.lru_cache(maxsize=1024)
def _plain_batch(index: Index, ndim: int) -> tuple[GetItem, Any]:
    """Return the operator with the batch as first axis, of an index without operands, and the order of its result."""
    found = batched(index, 0, ndim, (), ())
    return make_getitem(found.index), found


@batch_rule(GetItem)
def getitem_batch(op: GetItem, size: int, values: tuple[Any, ...], axes: Axes) -> tuple[Any, int]:
    """The batch axis is one more axis: a full slice, or beside batched indices an index array of its own."""
    x, *operands = values
    if axes[0] is None:
        index, aligned, out_axis = per_lane(op.index, len(aval_of(x).shape), operands, axes[1:])
        return apply(make_getitem(index), x, *aligned), out_axis
    ndim = len(aval_of(x).shape) - 1
    if not operands:  # the same for every size
        with_lanes, found = _plain_batch(op.index, ndim)
        return found.to_lanes(apply(with_lanes, front(x, axes[0]))), 0
    found = batched(op.index, size, ndim, operands, axes[1:])
    out = apply(make_getitem(found.index), front(x, axes[0]), *found.operands)
    return found.to_lanes(out), 0


def _scatter_batch(
    of: tuple[Index, ...], ndim: int, size: int, operands: Sequence[Any], axes: Sequence[int | None]
) -> tuple[tuple[Index, ...], list[Any]]:
    """Return the indices and the operands of the parts for a buffer whose first axis is the batch."""
    new_of, new_operands = [], []
    both = zip(parts_of(of, operands), parts_of(of, axes), strict=True)
    for (index, cotangent, others), (_, axis, other_axes) in both:
        found = batched(index, size, ndim, others, other_axes)
        new_of.append(found.index)
        new_operands += [found.from_lanes(cotangent, axis), *found.operands]
    return tuple(new_of), new_operands


@batch_rule(ScatterAdd)
def scatter_add_batch(op: ScatterAdd, size: int, values: tuple[Any, ...], axes: Axes) -> tuple[Any, int]:
    """One buffer with the batch as its first axis."""
    of, operands = _scatter_batch(op.of, len(op.shape), size, values, axes)
    return apply(type(op)(of, (size, *op.shape), op.dtype), *operands), 0


@batch_rule(ScatterAddLike)
def scatter_add_like_batch(op: ScatterAddLike, size: int, values: tuple[Any, ...], axes: Axes) -> tuple[Any, int]:
    """One buffer with the batch as its first axis."""
    like = lanes(size, values[0], axes[0])
    of, operands = _scatter_batch(op.of, len(aval_of(like).shape) - 1, size, values[1:], axes[1:])
    return apply(ScatterAddLike(of), like, *operands), 0


# ------------------------------------------------------------------ what users call


def getitem(x: Any, index: Any) -> Any:
    """Return `x[index]`, for every kind of index that NumPy has.

    Takes ints, slices, `...`, None, bools, integer arrays, masks, lists, and values of these. Raises
    `IndexOperandError` out of bounds and for what is no index. Where a mask is traced the result's length is unknown.

    >>> import xform as xf
    >>> getitem(xf.array(np.arange(6).reshape(2, 3)), (1, slice(None, None, 2)))
    Array<int64[2]: [3 5]>
    """
    level = _get()
    kind = type(index)
    if level is BOTTOM and (kind is int or kind is slice or (kind is tuple and PLAIN.issuperset(map(type, index)))):
        try:
            if type(x) is Array and type(x.data) is _ndarray:
                out = Array()
                out.data = x.data[index]
                return out
            if type(x) is _ndarray:
                return x[index]
        except (IndexError, TypeError, ValueError):  # said again below, with operator and line
            pass
    if kind is int:
        return level.unary(make_getitem((index,)), x)
    if kind is slice:
        bounds = (index.start, index.stop, index.step)
        if BOUNDS.issuperset(map(type, bounds)):
            return level.unary(make_getitem((bounds,)), x)
    entries, operands = encode(index, x)
    return level.interpret(make_getitem(entries), (x, *operands))
