"""Reading and writing at an index on raw arrays of any library.

NumPy and libraries like it (`add.at`) do it themselves. Elsewhere the array API standard has neither mixed indices nor
assignment to index arrays, so an index becomes flat positions: reading is one `take`, writing one comparison of all
positions with all places, in blocks (O(k n): correct everywhere, fast nowhere).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from typing import Any

import numpy as np

from xform.core.aval import as_numpy_dtype
from xform.core.backend import SCALAR_TYPES
from xform.core.errors import IndexOperandError
from xform.ops.index_layout import OPERAND, TRUE, Index, is_basic, layout_for, operand_count, plain

__all__ = ["add_into", "copied", "joint_positions", "may_repeat", "read", "set_into", "updated"]

#: an index and its operands
Place = tuple[Index, tuple[Any, ...]]

#: elements of one block of comparisons
BLOCK = 1 << 22


def has_ufuncs(xp: Any) -> bool:
    """Whether a library indexes and updates as NumPy does."""
    return xp is np or hasattr(getattr(xp, "add", None), "at")


def read(xp: Any, x: Any, index: Index, operands: tuple[Any, ...]) -> Any:
    """Return `x[index]`."""
    if type(x) in SCALAR_TYPES:
        x = xp.asarray(x)
    if has_ufuncs(xp):
        return x[plain(index, operands)]
    index, operands = _without_numbers(index, operands)
    if is_basic(index):
        return x[_spelled_out(x, index, operands)]
    places = positions(xp, x, index, operands)
    flat = xp.take(xp.reshape(x, (-1,)), xp.reshape(places, (-1,)), axis=0)
    return xp.reshape(flat, places.shape)


def _without_numbers(index: Index, operands: tuple[Any, ...]) -> Place:
    """Return an index in which operands that are Python ints (the counter of a loop, say) are entries."""
    if not any(type(each) is int for each in operands):
        return index, operands
    left = iter(operands)
    rest: list[Any] = []

    def entry_of(entry: Any) -> Any:
        if type(entry) is tuple:
            return tuple(map(entry_of, entry))
        if entry != OPERAND:
            return entry
        operand = next(left)
        if type(operand) is int:
            return operand
        rest.append(operand)
        return OPERAND

    return tuple(map(entry_of, index)), tuple(rest)


def _spelled_out(x: Any, index: Index, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a basic index as the standard wants it: every axis indexed, slices within bounds."""
    found: list[Any] = []
    values = bound_values(index, operands)
    for entry, at, axis in layout_for(index, len(x.shape), operands).entries:
        found.append(within_bounds(_filled(entry, at, values), x.shape[axis]) if type(entry) is tuple else entry)
    return tuple(found)


def _writable(xp: Any, x: Any, where: tuple[Any, ...], values: Any) -> tuple[tuple[Any, ...], Any]:
    """Return a basic index without its new axes, which the standard does not write through, and the values to match."""
    if None not in where:
        return where, values
    shape = x[where].shape
    kept = tuple(entry for entry in where if entry is not None)
    return kept, xp.reshape(xp.broadcast_to(values, shape), x[kept].shape)


def within_bounds(entry: tuple[Any, ...], length: int) -> slice:
    """Return a slice that selects the same, with bounds that are positions of the axis.

    >>> within_bounds((9, None, -2), 4)
    slice(3, 0, -2)
    """
    steps = range(*slice(*entry).indices(length))
    if not steps:
        return slice(0, 0)
    stop = steps[-1] + (1 if steps.step > 0 else -1)
    return slice(steps.start, None if stop < 0 else stop, steps.step)


def may_repeat(index: Index, operands: tuple[Any, ...]) -> bool:
    """Whether an index may name one place twice: only integer arrays can."""
    if is_basic(index):
        return False
    left = iter(operands)
    found = False
    for entry in index:
        if type(entry) is tuple:
            for _ in range(entry.count(OPERAND)):
                next(left)
        elif entry == OPERAND:
            operand = next(left)
            number = type(operand) in SCALAR_TYPES
            found = found or (not number and len(operand.shape) > 0 and as_numpy_dtype(operand.dtype).kind != "b")
    return found


# ------------------------------------------------------------------ writing


def copied(xp: Any, x: Any) -> Any:
    """Return a copy that can be written to."""
    return np.array(x) if xp is np else xp.asarray(x, copy=True)


def add_into(xp: Any, buffer: Any, index: Index, operands: tuple[Any, ...], values: Any) -> Any:
    """Add values into a buffer at an index, repeated places more than once; return the buffer."""
    if has_ufuncs(xp):
        where = plain(index, operands)
        if not may_repeat(index, operands) or _ascending(xp, operands):
            buffer[where] += values
        else:
            xp.add.at(buffer, where, values)
        return buffer
    index, operands = _without_numbers(index, operands)
    if is_basic(index):
        where, values = _writable(xp, buffer, _spelled_out(buffer, index, operands), _on_device(xp, values, buffer))
        buffer[where] = buffer[where] + values
        return buffer
    return combined(xp, "add", buffer, (index, operands), values)


def set_into(xp: Any, buffer: Any, index: Index, operands: tuple[Any, ...], values: Any) -> Any:
    """Set values into a buffer at an index; return the buffer."""
    if has_ufuncs(xp):
        buffer[plain(index, operands)] = values
    elif is_basic(index):
        where, values = _writable(xp, buffer, _spelled_out(buffer, index, operands), _on_device(xp, values, buffer))
        buffer[where] = values
    else:
        return combined(xp, "set", buffer, (index, operands), values)
    return buffer


def _ascending(xp: Any, operands: tuple[Any, ...]) -> bool:
    """Whether an index array of one axis rises strictly from 0 up: no place is named twice (`add.at` costs 10 x)."""
    if xp is not np:
        return False  # looking would wait for the device
    operands = tuple(each for each in operands if type(each) not in SCALAR_TYPES)
    longest = max((math.prod(each.shape) for each in operands), default=0)
    for each in operands:
        if each.ndim > 1 or each.dtype.kind == "b":
            return False
    for each in operands:
        if each.size == longest and each.ndim == 1:
            return longest == 0 or bool(each[0] >= 0 and (each[1:] > each[:-1]).all())
    return False


def updated(xp: Any, how: str, x: Any, at: Place, values: Any) -> Any:
    """Return a copy of `x` with values set, added, ... at a place; `how` is "set", "add", "mul", "min" or "max"."""
    index, operands = at
    if not has_ufuncs(xp) and not is_basic(index):
        return combined(xp, how, x, at, values)
    out = copied(xp, x)
    if how in ("add", "set"):
        return (add_into if how == "add" else set_into)(xp, out, index, operands, values)
    if has_ufuncs(xp):
        where = plain(index, operands)
    else:
        where, values = _writable(xp, x, _spelled_out(x, index, operands), _on_device(xp, values, x))
    if has_ufuncs(xp) and may_repeat(index, operands):
        getattr(xp, _FUNCTIONS[how]).at(out, where, values)
    else:
        out[where] = getattr(xp, _FUNCTIONS[how])(out[where], values)
    return out


_FUNCTIONS = {"add": "add", "mul": "multiply", "min": "minimum", "max": "maximum"}


def combined(xp: Any, how: str, x: Any, at: Place, values: Any) -> Any:
    """Update with what the standard has: every place looks for the positions that name it."""
    places = positions(xp, x, *at)
    values = xp.broadcast_to(_on_device(xp, values, x), places.shape)
    flat, values = xp.reshape(x, (-1,)), xp.reshape(values, (-1,))
    ids = xp.arange(flat.shape[0], device=x.device)
    last = xp.full(flat.shape, -1, dtype=xp.int64, device=x.device)
    out = flat
    for start, block in _blocks(xp, xp.reshape(places, (-1,)), flat.shape[0]):
        hit = block[:, None] == ids[None, :]
        part = values[start : start + block.shape[0]][:, None]
        if how == "set":
            order = xp.arange(start, start + block.shape[0], device=x.device)[:, None]
            last = xp.maximum(last, xp.max(xp.where(hit, order, -1), axis=0))
        elif how in ("add", "mul"):
            total = (xp.sum if how == "add" else xp.prod)(xp.where(hit, part, int(how == "mul")), axis=0, dtype=x.dtype)
            out = out + total if how == "add" else out * total
        else:
            rows = xp.concat((out[None, :], xp.where(hit, part, out[None, :])))
            out = (xp.min if how == "min" else xp.max)(rows, axis=0)
    if how == "set" and values.shape[0]:
        out = xp.where(last >= 0, xp.take(values, xp.clip(last, 0), axis=0), flat)
    return xp.reshape(out, x.shape)


def _on_device(xp: Any, values: Any, like: Any) -> Any:
    """Return values as an array of the dtype of `like`."""
    if hasattr(values, "shape"):
        return values if values.dtype == like.dtype else xp.astype(values, like.dtype)
    return xp.asarray(values, dtype=like.dtype, device=like.device)


def _blocks(xp: Any, places: Any, size: int) -> Iterator[tuple[int, Any]]:
    count = max(1, BLOCK // max(1, size))
    for start in range(0, places.shape[0], count):
        yield start, places[start : min(start + count, places.shape[0])]


# ------------------------------------------------------------------ flat positions


def positions(xp: Any, x: Any, index: Index, operands: tuple[Any, ...]) -> Any:
    """Return, in the shape of the selection, the position of each selected element in the flattened `x`."""
    layout = layout_for(index, len(x.shape), operands)
    values = bound_values(index, operands)
    total = joint_positions(xp, x, index, operands)
    basic = [(entry, at, axis) for entry, at, axis in layout.entries if entry is None or type(entry) is tuple]
    rank = len(total.shape)
    total = xp.reshape(total, (*[1] * layout.before, *total.shape, *[1] * (len(basic) - layout.before)))
    for place, (entry, at, axis) in enumerate(basic):
        if entry is None:
            continue
        steps = range(*slice(*_filled(entry, at, values)).indices(x.shape[axis]))
        along = xp.arange(steps.start, steps.stop, steps.step, device=x.device) * _stride(x, axis)
        where = place if place < layout.before else place + rank
        total = total + xp.reshape(along, tuple(len(steps) if i == where else 1 for i in range(layout.ndim)))
    return total


def joint_positions(xp: Any, x: Any, index: Index, operands: tuple[Any, ...]) -> Any:
    """Return the flat positions that ints and advanced entries of an index name together, in their joint shape."""
    device = None if xp is np else x.device
    total = xp.zeros((), dtype=xp.int64, device=device)
    for entry, at, axis in layout_for(index, len(x.shape), operands).entries:
        if type(entry) is int:
            total = total + _checked(entry, axis, x.shape[axis]) * _stride(x, axis)
        elif entry == OPERAND and at is not None:
            operand = operands[at]
            mask = as_numpy_dtype(operand.dtype).kind == "b"
            if mask and not operand.shape:
                total = total + xp.nonzero(xp.reshape(operand, (1,)))[0]  # one position 0, or none
                continue
            for offset, along in enumerate(xp.nonzero(operand) if mask else (operand,)):
                total = total + _wrapped(xp, along, axis + offset, x.shape[axis + offset]) * _stride(x, axis + offset)
        elif type(entry) is str:
            total = total + xp.zeros((int(entry == TRUE),), dtype=xp.int64, device=device)
    return total


def _stride(x: Any, axis: int) -> int:
    return math.prod(x.shape[axis + 1 :])


def _checked(position: int, axis: int, size: int) -> int:
    if not -size <= position < size:
        msg = f"GetItem: index {position} is out of bounds for axis {axis} with size {size}"
        raise IndexOperandError(msg, axis=axis, size=size)
    return position + size if position < 0 else position


def _wrapped(xp: Any, along: Any, axis: int, size: int) -> Any:
    along = xp.astype(along, xp.int64)
    if bool(xp.any((along < -size) | (along >= size))):
        msg = f"GetItem: an index array is out of bounds for axis {axis} with size {size}"
        raise IndexOperandError(msg, axis=axis, size=size)
    return xp.where(along < 0, along + size, along)


def bound_values(index: Index, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the operands with those that bound a slice read as ints."""
    if not any(type(entry) is tuple and OPERAND in entry for entry in index):
        return operands
    out: list[Any] = []
    for entry in index:
        bounded = type(entry) is tuple
        own = operands[len(out) : len(out) + operand_count((entry,))]
        out += [operator.index(each) if bounded else each for each in own]
    return tuple(out)


def _filled(entry: tuple[Any, ...], at: int | None, values: tuple[Any, ...]) -> tuple[Any, ...]:
    left = iter(values[at or 0 :])
    return tuple(next(left) if bound == OPERAND else bound for bound in entry)
