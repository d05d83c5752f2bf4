"""Functional updates: `x.at[index].set(values)` and its relatives give a new array.

1. The result has the shape and dtype of `x`; values broadcast to what the index selects.
2. Where an index names a place twice, the last value is set; all are added, multiplied, compared.
3. Overwritten places of `x` have derivative 0, and of several values set into one place the winner alone has one.
4. Ties of `min` and `max` share the derivative equally, the old value among them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import attrs
import numpy as np

from xform.core.aval import Aval, aval_of
from xform.core.errors import DtypeError, OperandTypeError, ShapeError
from xform.core.operator import Operator, interned
from xform.core.rules import batch_rule, jvp_rule, like_of, linear, settle, vjp_rule
from xform.core.stack import apply
from xform.ops.arithmetic import add, mul
from xform.ops.broadcast import astype
from xform.ops.create import ones_like, zeros_like
from xform.ops.index_batch import Batched, batched, counted
from xform.ops.index_layout import ELLIPSIS, FULL, OPERAND, Index, encode, layout_for, layout_of, selected_shape
from xform.ops.indexing import Indexed, blank, getitem, make_getitem
from xform.ops.positions import may_repeat, read, updated
from xform.ops.powers import power
from xform.ops.selection import maximum, minimum, where
from xform.ops.shapes import expand_dims, lanes, reshape, squeeze
from xform.ops.stacking import nested

__all__ = ["At", "IndexAdd", "IndexMax", "IndexMin", "IndexMul", "IndexPick", "IndexPlace", "IndexSet"]

Axes = tuple[int | None, ...]


class IndexUpdate(Indexed):
    """Base: the first operand with values put in at the index."""

    __slots__ = ()
    #: what happens to the old value
    how: ClassVar[str]

    def infer(self, x: Aval, values: Aval, *operands: Aval) -> Aval:
        """The first operand's; raises where the values do not fit the selection."""
        check_dtype(self, x, values)
        selected = selected_shape(self.index, x, operands)
        own = selected[len(selected) - len(values.shape) :]
        if len(values.shape) > len(selected) or any(
            length not in (1, None, place) and place is not None
            for length, place in zip(values.shape, own, strict=True)
        ):
            msg = f"{self!r}: values of shape {values.shape} do not broadcast to the selection's {selected}"
            raise ShapeError(msg, op=self)
        return Aval(x.shape, x.dtype)

    def evaluate(self, xp: Any, x: Any, values: Any, *operands: Any) -> Any:
        """Update a copy."""
        check_dtype(self, aval_of(x), aval_of(values))
        return updated(xp, self.how, x, (self.index, operands), values)


class IndexSet(IndexUpdate):
    """Values in place of what the index selects."""

    __slots__ = ()
    how = "set"


class IndexAdd(IndexUpdate):
    """Values added to what the index selects."""

    __slots__ = ()
    how = "add"


class IndexMul(IndexUpdate):
    """What the index selects, times values."""

    __slots__ = ()
    how = "mul"


class IndexMin(IndexUpdate):
    """The smaller of what the index selects and values."""

    __slots__ = ()
    how = "min"


class IndexMax(IndexUpdate):
    """The larger of what the index selects and values."""

    __slots__ = ()
    how = "max"


make_set, make_add, make_mul = interned(IndexSet), interned(IndexAdd), interned(IndexMul)
make_min, make_max = interned(IndexMin), interned(IndexMax)


def check_dtype(op: IndexUpdate, x: Aval, values: Aval) -> None:
    """Raise `DtypeError` where values would lose their imaginary part, or their fraction outside of `set`."""
    if (values.dtype.kind == "c" and x.dtype.kind != "c") or (
        op.how != "set" and values.dtype.kind == "f" and x.dtype.kind in "iub"
    ):
        msg = (
            f"{op.name}: values of dtype {values.dtype} do not fit an array of dtype {x.dtype}; write "
            f"x.astype({str(values.dtype)!r}) first"
        )
        raise DtypeError(msg, op=op)


# ------------------------------------------------------------------ set


class IndexPick(Indexed):
    """What an index selects, 0 where a later entry of the index names the same place: the transpose of `IndexSet`."""

    __slots__ = ()

    def infer(self, x: Aval, *operands: Aval) -> Aval:
        """The selection's."""
        return Aval(selected_shape(self.index, x, operands), x.dtype)

    def evaluate(self, xp: Any, x: Any, *operands: Any) -> Any:
        """Number the entries, let the last one win, and see who did."""
        selected = read(xp, x, self.index, operands)
        order = xp.reshape(counted(math.prod(selected.shape), x), selected.shape)
        last = updated(xp, "set", blank(xp, x.shape, "int64", (x,)), (self.index, operands), order)
        winner = read(xp, last, self.index, operands)
        return xp.where(winner == order, selected, xp.zeros_like(selected))


make_pick = interned(IndexPick)


def picked(index: Index, t: Any, operands: tuple[Any, ...]) -> Any:
    """Return, from the cotangent of an `IndexSet`, that of its values."""
    return apply(make_pick(index) if may_repeat_of(index, operands) else make_getitem(index), t, *operands)


def may_repeat_of(index: Index, operands: tuple[Any, ...]) -> bool:
    """Whether an index may name one place twice, for values."""
    return may_repeat(index, tuple(aval_of(each) for each in operands))


@attrs.frozen
class IndexPlace(Operator):
    """Zeros of a shape with values set at an index: the transpose of `IndexPick`."""

    index: Index
    shape: tuple[int, ...]
    dtype: str

    def infer(self, values: Aval, *operands: Aval) -> Aval:
        """The parameters' shape and dtype."""
        return Aval(self.shape, np.dtype(self.dtype))

    def evaluate(self, xp: Any, values: Any, *operands: Any) -> Any:
        """Set into zeros."""
        zeros = blank(xp, self.shape, self.dtype, (values, *operands))
        return updated(xp, "set", zeros, (self.index, operands), values)


def placed(index: Index, values: Any, operands: tuple[Any, ...], like: Any) -> Any:
    """Return zeros like an aval or value, with values set at an index."""
    if isinstance(like, Aval):
        return apply(IndexPlace(index, like.shape, like.dtype.name), values, *operands)  # type: ignore[arg-type]
    return apply(make_set(index), zeros_like(like), values, *operands)


linear(IndexPick, lambda op, t, x, *operands: placed(op.index, t, operands, x), linear_in=(0,))
linear(IndexPlace, lambda op, t, values, *operands: settle(picked(op.index, t, operands), values), linear_in=(0,))


@batch_rule(IndexPick)
def pick_batch(op: IndexPick, size: int, values: tuple[Any, ...], axes: Axes) -> tuple[Any, int]:
    """Lanes do not overwrite each other: each has a part of its own, also of a value that is not batched."""
    x = lanes(size, values[0], axes[0])
    found = batched(op.index, size, len(aval_of(x).shape) - 1, values[1:], axes[1:])
    return found.to_lanes(apply(make_pick(found.index), x, *found.operands)), 0


@batch_rule(IndexPlace)
def place_batch(op: IndexPlace, size: int, values: tuple[Any, ...], axes: Axes) -> tuple[Any, int]:
    """The batch is the first axis of the zeros."""
    found = batched(op.index, size, len(op.shape), values[1:], axes[1:])
    place = IndexPlace(found.index, (size, *op.shape), op.dtype)
    return apply(place, found.from_lanes(values[0], axes[0]), *found.operands), 0


@vjp_rule(IndexSet)
def set_vjp(op: IndexSet, needed: tuple[bool, ...], x: Any, values: Any, *operands: Any) -> tuple[Any, Any]:
    """Overwritten places give 0 to the operand, and what they receive to the value that won."""
    out = apply(op, x, values, *operands)
    like = like_of(values)

    def pullback(t: Any) -> tuple[Any, ...]:
        to_x = apply(op, t, 0, *operands) if needed[0] else None
        to_values = settle(picked(op.index, t, operands), like) if needed[1] else None
        return (to_x, to_values, *[None] * len(operands))

    return out, pullback


@jvp_rule(IndexSet)
def set_jvp(op: IndexSet, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """The same on the tangents, 0 for a missing one."""
    x, _, *operands = primals
    out = apply(op, *primals)
    if not moves(out, tangents):
        return out, None
    to_x, to_values = tangents[:2]
    start = zeros_like(x) if to_x is None else to_x
    return out, apply(op, start, 0 if to_values is None else to_values, *operands)


def moves(out: Any, tangents: tuple[Any, ...]) -> bool:
    """Whether a result has a tangent: it is no integer, and the array or the values have one."""
    return aval_of(out).dtype.kind in "fc" and not (tangents[0] is None and tangents[1] is None)


# ------------------------------------------------------------------ add


@vjp_rule(IndexAdd)
def add_vjp(op: IndexAdd, needed: tuple[bool, ...], x: Any, values: Any, *operands: Any) -> tuple[Any, Any]:
    """The operand gets the cotangent as it is, each value what its place receives."""
    out = apply(op, x, values, *operands)
    like = like_of(values)

    def pullback(t: Any) -> tuple[Any, ...]:
        to_values = settle(apply(make_getitem(op.index), t, *operands), like) if needed[1] else None
        return (t if needed[0] else None, to_values, *[None] * len(operands))

    return out, pullback


@jvp_rule(IndexAdd)
def add_jvp(op: IndexAdd, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """The same on the tangents, 0 for a missing one."""
    x, _, *operands = primals
    out = apply(op, *primals)
    if not moves(out, tangents):
        return out, None
    to_x, to_values = tangents[:2]
    if to_values is None:
        return out, to_x
    return out, apply(op, zeros_like(x) if to_x is None else to_x, to_values, *operands)


@batch_rule(IndexSet, IndexAdd, IndexMul, IndexMin, IndexMax)
def update_batch(op: Any, size: int, values: tuple[Any, ...], axes: Axes) -> tuple[Any, int]:
    """Each lane has an array of its own."""
    x = lanes(size, values[0], axes[0])
    if has_lane_mask(op.index, values[2:], axes[2:]):
        out = masked_batch(op, x, values[1], axes[1], lanes(size, values[2], axes[2]))
        if out is not None:
            return out, 0
    found = batched(op.index, size, len(aval_of(x).shape) - 1, values[2:], axes[2:])
    return apply(type(op)(found.index), x, found.from_lanes(values[1], axes[1]), *found.operands), 0


COMBINE: dict[str, Any] = {
    "set": lambda x, values: values, "add": add, "mul": mul, "min": minimum, "max": maximum,
}  # fmt: skip


def has_lane_mask(index: Index, operands: Sequence[Any], axes: Axes) -> bool:
    """Whether an index is full slices and one mask, which differs between lanes."""
    rest = [entry for entry in index if entry not in (FULL, ELLIPSIS)]
    return rest == [OPERAND] and axes[0] is not None and aval_of(operands[0]).dtype.kind == "b"


def masked_batch(op: Any, x: Any, values: Any, axis: int | None, mask: Any) -> Any:
    """Update where a mask holds that differs between lanes, and may select more elements in one than in another.

    Returns None where there is a value of its own for each selected element.
    """
    ndim, rank = len(aval_of(x).shape) - 1, len(aval_of(mask).shape) - 1
    layout = layout_of(op.index, ndim, (rank,), (True,))
    found = Batched((FULL, *op.index), (), tuple(range(layout.ndim + 1)))
    values = found.from_lanes(values, axis)
    shape = aval_of(values).shape
    joint = layout.before - layout.ndim  # counted from the end: values may have fewer axes
    if len(shape) >= -joint and shape[joint] != 1:
        return None
    if len(shape) >= -joint:
        at = len(shape) + joint
        values = expand_dims(values, tuple(range(at, at + rank - 1))) if rank else squeeze(values, at)
    behind = 1 + layout.before + rank
    mask = expand_dims(mask, (*range(1, 1 + layout.before), *range(behind, 1 + ndim)))
    return astype(where(mask, COMBINE[op.how](x, values), x), aval_of(x).dtype)


# ------------------------------------------------------------------ what users call


class At:
    """What `x.at` is, and what `x.at[index]` is: methods give a copy of `x` with some places changed.

    >>> import xform as xf
    >>> xf.array(np.zeros(3)).at[1].set(2.0)
    Array<float64[3]: [0. 2. 0.]>
    """

    __slots__ = ("_index", "_x")

    def __init__(self, x: Any, index: Any = None) -> None:
        self._x = x
        self._index = index

    def __getitem__(self, index: Any) -> At:
        return At(self._x, (index,))

    def __repr__(self) -> str:
        return f"{self._x!r}.at" + ("" if self._index is None else f"[{self._index[0]!r}]")

    def _given(self) -> Any:
        if self._index is None:
            msg = "x.at needs an index: x.at[i].set(values), x.at[...].add(values)"
            raise OperandTypeError(msg, value=self._x)
        return self._index[0]

    def _updated(self, make: Any, values: Any) -> Any:
        entries, operands = encode(self._given(), self._x)
        return apply(make(entries), self._x, fitted(self._x, entries, operands, values), *operands)

    def get(self) -> Any:
        """Return what the index selects: `x[index]`."""
        return getitem(self._x, self._given())

    def set(self, values: Any) -> Any:
        """Return a copy with values in place of what the index selects; of values for one place, the last is kept."""
        return self._updated(make_set, values)

    def add(self, values: Any) -> Any:
        """Return a copy with values added; a place named twice gets both."""
        return self._updated(make_add, values)

    def subtract(self, values: Any) -> Any:
        """Return a copy with values subtracted; a place named twice loses both."""
        return self._updated(make_add, -values)

    def mul(self, values: Any) -> Any:
        """Return a copy multiplied by values; a place named twice is multiplied by both."""
        return self._updated(make_mul, values)

    multiply = mul

    def divide(self, values: Any) -> Any:
        """Return a copy divided by values; a place named twice is divided by both. Raises `DtypeError` for integers."""
        self._require_inexact("divide")
        return self._x / At(ones_like(self._x), self._index).mul(values)

    def power(self, values: Any) -> Any:
        """Return a copy raised to values; a place named twice is raised to both. Raises `DtypeError` for integers."""
        self._require_inexact("power")
        return power(self._x, At(ones_like(self._x), self._index).mul(values))

    def _require_inexact(self, name: str) -> None:
        dtype = aval_of(self._x).dtype
        if dtype.kind not in "fc":
            msg = f"x.at[...].{name}: the result would not keep the array's dtype {dtype}; write x.astype(float) first"
            raise DtypeError(msg, value=self._x)

    def min(self, values: Any) -> Any:
        """Return a copy with the smaller of old value and new ones; ties share the derivative equally."""
        return self._updated(make_min, values)

    def max(self, values: Any) -> Any:
        """Return a copy with the larger of old value and new ones; ties share the derivative equally."""
        return self._updated(make_max, values)


def fitted(x: Any, index: Index, operands: list[Any], values: Any) -> Any:
    """Return values without leading axes of length 1 that the selection lacks, as NumPy's assignment takes them."""
    values = nested(values)
    shape = aval_of(values).shape
    if not shape:
        return values
    extra = len(shape) - layout_for(index, len(aval_of(x).shape), tuple(operands)).ndim
    if extra > 0 and all(length == 1 for length in shape[:extra]):
        return reshape(values, shape[extra:])
    return values
