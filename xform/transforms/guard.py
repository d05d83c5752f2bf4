"""The guard of saved arrays: an array that a tape holds and NumPy has changed before backward gives an error.

1. A tape holds arrays of its user where an operation saves an attached array, or an operand that it does not track, and
   where a user's rule saves whatever it likes; and a result of its own where `stop_gradient` or `vjp` gives it away.
2. `"sample"` remembers some of their elements (64 of a large array), once an array and tape; `"full"` remembers a
   checksum of every array that is saved, results of the tape's own operations included, and the line of each.
3. The check stands before each walk. An array that has changed raises only where the walk would read it.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any
from weakref import ref

import numpy as np

from xform.core.aval import aval_of
from xform.core.errors import GradientError, SavedArrayError
from xform.core.operator import Operator
from xform.core.source import Site, Spot, Spots, describe, site_of
from xform.core.stack import Interpret, Transformation, concrete
from xform.core.value import Value
from xform.transforms.plans import Entry
from xform.transforms.tape import entry_name

__all__ = ["Guard"]

MODES = ("off", "sample", "full")
COUNT = 64


#: what a guard remembers of an array: a reference, its content, the name of the operator that saved it, and where; an
#: operator may hold values of the tape, which would then hold itself
Saved = tuple[ref[np.ndarray[Any, Any]], Any, str, Spot | None]
Change = tuple[np.ndarray[Any, Any], str, Spot | None]


class Guard:
    """What one tape remembers of the arrays that it holds."""

    __slots__ = ("content_of", "full", "saved", "spots")

    def __init__(self, mode: str) -> None:
        if mode not in MODES:
            msg = f"guard must be one of {', '.join(map(repr, MODES))}, got {mode!r}"
            raise GradientError(msg, value=mode)
        self.full = mode == "full"
        self.content_of: Callable[[Any], Any] = checksum if self.full else sampled
        self.saved: dict[int, Saved] = {}  # by identity of the array
        self.spots = Spots()

    def note(self, array: Any, by: Operator | str, depth: int = 3) -> None:
        """Remember an array, the first time: an operation saves it, or a function gives it to its user."""
        key, saved = id(array), self.saved
        known = saved.get(key)
        if (known is None or known[0]() is not array) and isinstance(array, np.ndarray):  # another had its number
            name = by if type(by) is str else by.name  # type: ignore[union-attr]
            saved[key] = (ref(array), self.content_of(array), name, self.spots.spot(depth))

    def look(self, value: Any, op: Operator, residual: Any, out: Any = None) -> None:
        """Remember the array beneath a value that an operation takes in, where it is saved, or a result is its view."""
        array = concrete(value)
        if not isinstance(array, np.ndarray) or ((known := self.saved.get(id(array))) and known[0]() is array):
            return
        holds = residual is value or any(held is array for held in arrays_in(residual, deep=False))
        if holds or is_viewed(array, out):
            self.note(array, op)

    def look_read(self, values: Iterable[Any], op: Operator, out: Any) -> None:
        """Remember the arrays that a user reads: where a result is one of them, or a view."""
        for value in values:
            array = concrete(value)
            if isinstance(array, np.ndarray) and is_viewed(array, out):
                self.note(array, op)

    def note_all(self, op: Operator, residual: Any) -> None:
        """Remember all arrays in what is saved, as for a user's rule, which may save what is no operand."""
        for array in arrays_in(residual):
            self.note(array, op)

    def noting(self, general: Interpret, entries_of: Callable[[Any], Iterable[Entry]]) -> Interpret:
        """Return the function that interprets, and remembers all that the entries it makes have saved."""

        def interpret(op: Operator, values: tuple[Any, ...]) -> Any:
            out = general(op, values)
            for entry in entries_of(out):
                self.note_all(op, entry[2])
            return out

        return interpret

    def changes(self) -> list[Change]:
        """Return what is not as it was: the arrays, and what saved each first, and where."""
        content_of = self.content_of
        return [
            (array, operator, spot)
            for reference, content, operator, spot in self.saved.values()
            if (array := reference()) is not None and content_of(array) != content
        ]

    def refuse(self, changes: Iterable[Change], entries: Iterable[Entry | None], tape: Any) -> None:
        """Raise `SavedArrayError` where one of these entries holds an array that has changed."""
        for array, operator, spot in changes:
            for entry in entries:
                if entry is not None and any(shares(array, held) for held in arrays_in(entry[2])):
                    raise self.changed(array, operator, site_of(spot), entry, tape)

    def changed(self, array: Any, operator: str, site: Site | None, entry: Entry, tape: Any) -> SavedArrayError:
        """Make the error for an array that has changed."""
        name = entry_name(entry)
        by = "saved" if name == operator else f"first saved by {operator}"
        took = f"{by} at {describe(site)}"
        more = "" if self.full else '; xf.Grad(guard="full") names every array and line'
        msg = (
            f"the array {aval_of(array)!r} that {name} has saved for backward was changed since ({took}): its gradient "
            f"would be wrong. Change a copy, write x = x + v in place of x += v, or walk back before the change{more}"
        )
        return SavedArrayError(msg, layer=tape, value=array, operator=name, site=site)


def no_note(array: Any, by: Operator | str, depth: int = 3) -> None:
    """Remember nothing: what a tape without a guard does."""


def sampled(array: Any) -> bytes:
    """Return the bytes of some elements of an array, all where it is small; one array costs 1 us."""
    if type(array) is not np.ndarray:
        array = np.asarray(array)
    size = array.size
    if size > COUNT:
        array = (array.reshape(-1) if array.flags.c_contiguous else array.flat)[:: size // COUNT | 1]
    found: bytes = array.tobytes()
    return found


def checksum(array: Any) -> tuple[tuple[int, ...], int]:
    """Return shape and checksum of an array; of objects the addresses."""
    array = np.asarray(array)
    if array.dtype.hasobject:
        return array.shape, zlib.crc32(array.tobytes())
    return array.shape, zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")


def shares(array: Any, held: Any) -> bool:
    """Whether an array that an entry holds is this one, or has elements in the same places."""
    if held is array or not np.may_share_memory(array, held):
        return held is array
    try:
        return np.shares_memory(array, held, max_work=10_000)  # type: ignore[arg-type]  # any number, says its docstring
    except np.exceptions.TooHardError:
        return True


def is_viewed(array: Any, out: Any) -> bool:
    """Whether one of the results is this array, or a view of it."""
    for each in out if isinstance(out, tuple) else (out,):
        raw = concrete(each)
        if raw is array or (isinstance(raw, np.ndarray) and raw.base is not None and np.may_share_memory(raw, array)):
            return True
    return False


#: how many objects are looked at in what one entry has saved: a user's may hold a whole program
MOST = 10_000


def arrays_in(residual: Any, *, deep: bool = True) -> Iterator[np.ndarray[Any, Any]]:  # noqa: C901  (one case a kind)
    """Yield the NumPy arrays in what an entry has saved: in containers, values, and what a pullback holds.

    With `deep` in objects of a user too; xform's own rules have none (a product of gradients: 10 % less without).
    """
    pending: list[Any] = [residual]
    seen: set[int] = set()
    while pending and len(seen) < MOST:
        each = pending.pop()
        if isinstance(each, np.ndarray):
            yield each
            continue
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, tuple | list | set | frozenset):
            pending.extend(each)
        elif isinstance(each, dict):
            pending.extend(each.values())
        elif isinstance(each, Value):
            pending.append(each.data)
        elif isinstance(each, functools.partial):
            pending.extend((each.func, each.args, each.keywords))
        elif isinstance(each, MethodType):
            pending.extend((each.__func__, each.__self__))
        elif (cells := getattr(each, "__closure__", None)) is not None:
            pending.extend(map(contents, cells))
        elif deep and not is_opaque(each):
            pending.extend(attributes_of(each))


def is_opaque(each: Any) -> bool:
    """Whether a derivative reads no arrays of an object's: its class says so, or it is code, an operator or a layer."""
    known = isinstance(each, type | ModuleType | FunctionType | Transformation | Operator)
    return known or bool(getattr(type(each), "opaque", False))


def attributes_of(each: Any) -> list[Any]:
    """Return what an object holds, in its dict and its slots."""
    slots = [name for kind in type(each).__mro__ for name in vars(kind).get("__slots__", ())]
    return [*getattr(each, "__dict__", {}).values(), *[getattr(each, name, None) for name in slots]]


def contents(cell: Any) -> Any:
    """Return what a closure holds of a variable, None before its assignment."""
    try:
        return cell.cell_contents
    except ValueError:
        return None
