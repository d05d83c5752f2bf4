"""How an index is written as plain data, and where NumPy puts the axes of what it selects.

1. An index becomes a tuple of entries and a list of operands. Entries: an int; `(start, stop, step)` for a slice;
   `"..."`; `None` for a new axis; `"True"` and `"False"` for bool scalars; `"@"` for an operand (an integer array or
   value, or a mask), also as a bound of a slice.
2. Integer arrays, masks and bool scalars are *advanced*: they broadcast together, ints among them too, and the axes of
   that broadcast stand where the first of them stood, or in front where a slice, a new axis or `...` separates them.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np

from xform.core.aval import Aval, aval_of, broadcast_shapes
from xform.core.backend import namespace_of
from xform.core.errors import IndexOperandError, OperandTypeError, ShapeError
from xform.core.stack import concrete
from xform.core.value import Value
from xform.ops.stacking import nested

__all__ = [
    "Index", "Layout", "encode", "from_sequence", "is_basic", "layout_for", "layout_of", "operand_count", "plain",
    "selected_shape",
]  # fmt: skip

#: one entry per item, see the module's docstring
Index = tuple[Any, ...]
Shape = tuple[int | None, ...]

OPERAND = "@"
ELLIPSIS = "..."
TRUE, FALSE = "True", "False"
FULL = (None, None, None)

_REMEDY = "use integers, slices, ..., None, and integer or boolean arrays"


# ------------------------------------------------------------------ from Python's index to entries and operands


def encode(index: Any, x: Any) -> tuple[Index, list[Any]]:
    """Return the entries and the operands of an index into `x`.

    Raises `IndexOperandError` for what is no index.

    >>> encode((0, slice(1, None), ..., np.array([0, 2])), None)
    ((0, (1, None, None), '...', '@'), [array([0, 2])])
    """
    operands: list[Any] = []
    items = index if type(index) is tuple else (index,)
    return tuple([_entry(item, operands, x) for item in items]), operands


def _entry(item: Any, operands: list[Any], x: Any) -> Any:
    kind = type(item)
    if kind is int or item is None:
        return item
    if kind is slice:
        return (_bound(item.start, operands), _bound(item.stop, operands), _bound(item.step, operands))
    if item is Ellipsis:
        return ELLIPSIS
    if kind is bool or kind is np.bool_:
        return TRUE if item else FALSE
    if isinstance(item, list | tuple):
        item = from_sequence(item, x)
    elif not isinstance(item, Value) and isinstance(item, np.ndarray | np.integer) and item.ndim == 0:
        return (TRUE if item else FALSE) if item.dtype.kind == "b" else _integer(item)
    return _array_entry(item, operands)


def _array_entry(item: Any, operands: list[Any]) -> Any:
    try:
        dtype = aval_of(item).dtype
    except OperandTypeError:
        return _integer(item)
    if dtype.kind not in "iub":
        msg = f"GetItem: an index of dtype {dtype}: {item!r:.60}; {_REMEDY}, e.g. i.astype(int)"
        raise IndexOperandError(msg, index=item)
    operands.append(item)
    return OPERAND


def _integer(item: Any) -> int:
    try:
        return operator.index(item)
    except TypeError:
        msg = f"GetItem: {item!r:.60} ({type(item).__name__}) is no index; {_REMEDY}"
        raise IndexOperandError(msg, index=item) from None


def _bound(bound: Any, operands: list[Any]) -> Any:
    if bound is None or type(bound) is int:
        return bound
    if isinstance(bound, Value) and aval_of(bound).dtype.kind in "iu" and aval_of(bound).shape == ():
        operands.append(bound)
        return OPERAND
    return _integer(bound)


def from_sequence(item: Any, x: Any) -> Any:
    """Return the array that a list stands for, in the library and on the device of `x`."""
    array = nested(item)
    if not isinstance(array, np.ndarray):
        return array
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(np.intp)
    raw = concrete(x)
    xp = namespace_of(raw)
    return array if xp is None or xp is np else xp.asarray(array, device=raw.device)


# ------------------------------------------------------------------ from entries to an index of arrays


@functools.lru_cache(maxsize=4096)
def _template(index: Index) -> tuple[tuple[Any, ...], tuple[int, ...], bool]:
    """Return the index as libraries take it, where its operands go, and whether slices hold operands too."""
    items: list[Any] = []
    places = []
    bounds = False
    for entry in index:
        if type(entry) is tuple:
            bounds = bounds or OPERAND in entry
            items.append(entry if bounds else slice(*entry))
        elif type(entry) is str:
            items.append({ELLIPSIS: Ellipsis, TRUE: True, FALSE: False, OPERAND: None}[entry])
            if entry == OPERAND:
                places.append(len(items) - 1)
        else:
            items.append(entry)
    return tuple(items), tuple(places), bounds


def plain(index: Index, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the index as an array library takes it."""
    items, places, bounds = _template(index)
    if not operands:
        return items
    if bounds:
        return _with_bounds(index, operands)
    filled = list(items)
    for place, operand in zip(places, operands, strict=True):
        filled[place] = operand
    return tuple(filled)


def _with_bounds(index: Index, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    left = iter(operands)
    filled: list[Any] = []
    for entry in index:
        if type(entry) is tuple:
            filled.append(slice(*[operator.index(next(left)) if bound == OPERAND else bound for bound in entry]))
        else:
            filled.append(next(left) if entry == OPERAND else _template((entry,))[0][0])
    return tuple(filled)


@functools.lru_cache(maxsize=4096)
def operand_count(index: Index) -> int:
    """Return how many operands an index takes.

    >>> operand_count((0, "@", ("@", None, None)))
    2
    """
    return sum(entry.count(OPERAND) if type(entry) is tuple else entry == OPERAND for entry in index)


@functools.lru_cache(maxsize=4096)
def is_basic(index: Index) -> bool:
    """Whether an index holds only ints, slices, `...` and new axes: what it selects is a view."""
    return not any(type(entry) is str and entry != ELLIPSIS for entry in index)


# ------------------------------------------------------------------ where axes go


class Layout:
    """Where the axes of a selection go, from the ranks alone.

    `entries` are the index with `...` spelled out as slices, each `(entry, operand position or None, first axis of x)`;
    `rank` is the number of axes that the advanced entries broadcast to, `before` the number of axes of the result in
    front of them.
    """

    __slots__ = ("advanced", "before", "contiguous", "entries", "ndim", "rank")

    def __init__(self, index: Index, ndim: int, ranks: tuple[int, ...], masks: tuple[bool, ...]) -> None:
        count = operand_count(index)
        if count != len(ranks):
            msg = f"GetItem(index={index}): {count} index operands belong to it, got {len(ranks)}"
            raise ShapeError(msg, index=index)
        self.entries: list[tuple[Any, int | None, int]] = []
        self.advanced = not is_basic(index)
        spelled = self._spelled(index, ndim, ranks, masks)
        self.rank = max((_rank(entry, at, ranks, masks) for entry, at, _ in self.entries), default=0)
        self._placed(spelled)

    def _spelled(self, index: Index, ndim: int, ranks: tuple[int, ...], masks: tuple[bool, ...]) -> list[Any]:
        """Fill `entries`; return them with a mark wherever `...` stood, however short."""
        used, position = 0, 0
        taken = []
        for entry in index:
            at = None
            if type(entry) is tuple:
                at, position = position, position + entry.count(OPERAND)
            elif entry == OPERAND:
                at, position = position, position + 1
            width = _width(entry, at, ranks, masks)
            used += width
            taken.append((entry, at, width))
        if used > ndim:
            msg = f"GetItem(index={index}): {used} axes are indexed, but the operand has {ndim}"
            raise IndexOperandError(msg, index=index)
        if index.count(ELLIPSIS) > 1:
            msg = f"GetItem(index={index}): an index can have one ellipsis ('...') only"
            raise IndexOperandError(msg, index=index)
        spelled: list[Any] = []
        axis = 0
        for entry, at, width in taken if ELLIPSIS in index else [*taken, (ELLIPSIS, None, 0)]:
            repeat = ndim - used if entry == ELLIPSIS else 1
            if entry == ELLIPSIS:
                spelled.append(None)
            for _ in range(repeat):
                each = (FULL if entry == ELLIPSIS else entry, at, axis)
                self.entries.append(each)
                spelled.append(each)
                axis += 1 if entry == ELLIPSIS else width
        return spelled

    def _placed(self, spelled: list[Any]) -> None:
        """Decide where the axes of the advanced entries go."""
        self.before = 0
        self.contiguous = True
        state, basic = "before", 0
        for each in spelled:
            entry = None if each is None else each[0]
            joined = self.advanced and each is not None and (type(entry) is int or type(entry) is str)
            if joined:
                if state == "before":
                    state, self.before = "in", basic
                elif state == "after":
                    self.contiguous = False
                continue
            state = "after" if state == "in" else state
            basic += each is not None and type(entry) is not int
        if not self.contiguous:
            self.before = 0
        self.ndim = basic + self.rank


def _width(entry: Any, at: int | None, ranks: tuple[int, ...], masks: tuple[bool, ...]) -> int:
    """Return how many axes of the operand an entry uses."""
    if type(entry) is int or type(entry) is tuple:
        return 1
    if entry == OPERAND and at is not None:
        return ranks[at] if masks[at] else 1
    return 0


def _rank(entry: Any, at: int | None, ranks: tuple[int, ...], masks: tuple[bool, ...]) -> int:
    if entry == OPERAND and at is not None:
        return 1 if masks[at] else ranks[at]
    return int(entry in (TRUE, FALSE))


@functools.lru_cache(maxsize=4096)
def layout_of(index: Index, ndim: int, ranks: tuple[int, ...] = (), masks: tuple[bool, ...] = ()) -> Layout:
    """Return the layout of an index into an operand of `ndim` axes; the ranks and kinds of its operands are given."""
    return Layout(index, ndim, ranks, masks)


def layout_for(index: Index, ndim: int, operands: tuple[Any, ...]) -> Layout:
    """Return the layout of an index with these operands (values, raw arrays or avals)."""
    avals = [aval_of(each) for each in operands]
    return layout_of(index, ndim, tuple(len(a.shape) for a in avals), tuple(a.dtype.kind == "b" for a in avals))


# ------------------------------------------------------------------ lengths


def selected_shape(index: Index, x: Aval, operands: tuple[Aval, ...]) -> Shape:
    """Return the shape of a selection; what depends on a mask's or a bound's value is unknown.

    Raises `IndexOperandError` for an int out of bounds, naming axis and size.

    >>> selected_shape((0, (1, None, None)), Aval((2, 5), np.dtype(float)), ())
    (4,)
    """
    found = layout_for(index, len(x.shape), operands)
    basic: list[int | None] = []
    advanced: list[Shape] = []
    for entry, at, axis in found.entries:
        if entry is None:
            basic.append(1)
        elif type(entry) is tuple:
            basic.append(_slice_length(entry, x.shape[axis]))
        elif type(entry) is int:
            check_bounds(index, entry, axis, x.shape[axis])
        elif at is not None:
            advanced.append(_operand_shape(index, operands[at], axis, x.shape))
        else:
            advanced.append((int(entry == TRUE),))
    try:
        joint = broadcast_shapes(*advanced)
    except ShapeError as error:
        msg = f"GetItem(index={index}): index arrays do not broadcast together: {error}"
        raise IndexOperandError(msg, index=index) from error
    return (*basic[: found.before], *joint, *basic[found.before :])


def _operand_shape(index: Index, operand: Aval, axis: int, shape: Shape) -> Shape:
    if operand.dtype.kind != "b":
        return operand.shape
    for offset, length in enumerate(operand.shape):
        size = shape[axis + offset]
        if None not in (length, size) and length != size:
            msg = (
                f"GetItem(index={index}): a mask of shape {operand.shape} does not fit: its axis {offset} has size "
                f"{length}, axis {axis + offset} of the operand has size {size}"
            )
            raise IndexOperandError(msg, index=index, axis=axis + offset)
    return (None,)


def _slice_length(entry: tuple[Any, ...], length: int | None) -> int | None:
    if entry[2] == 0:
        msg = "GetItem: the step of a slice cannot be zero"
        raise ShapeError(msg, index=entry)
    if entry in {FULL, (None, None, -1)}:
        return length
    if length is None or OPERAND in entry:
        return None
    return len(range(*slice(*entry).indices(length)))


def check_bounds(index: Index, position: int, axis: int, size: int | None) -> None:
    """Raise `IndexOperandError` for an int that is out of bounds."""
    if size is not None and not -size <= position < size:
        msg = f"GetItem(index={index}): index {position} is out of bounds for axis {axis} with size {size}"
        raise IndexOperandError(msg, index=index, axis=axis, size=size)
