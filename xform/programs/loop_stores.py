"""Where the outputs of a loop come together, round by round, on raw arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xform.core.aval import Aval, is_static
from xform.core.backend import SCALAR_TYPES
from xform.core.errors import ShapeError
from xform.ops.indexing import blank
from xform.ops.positions import add_into
from xform.programs.loop_outputs import Part, Total

__all__ = ["Rows", "Sum", "resized"]


class Rows:
    """Arrays of one shape, stacked; where their number is not known, room for them grows by a quarter at a time.

    `set` copies, so that what a row was made of may change.
    """

    __slots__ = ("aval", "count", "known", "parts", "room", "xp")

    def __init__(self, xp: Any, aval: Aval, count: int | None) -> None:
        self.xp = xp
        self.aval = aval
        self.known = count is not None
        self.count = count or 0
        self.room: Any = None
        self.parts: dict[int, Any] = {}  # of other libraries, which cannot all write into an array
        if xp is np and self.known and is_static(aval.shape):
            self.room = np.empty((self.count, *aval.shape), aval.dtype)

    def set(self, at: int, row: Any) -> None:
        """Put a row at its place."""
        if self.xp is not np:
            self.parts[at] = row
            self.count = max(self.count, at + 1)
            return
        if self.room is None:
            capacity = self.count if self.known else 16
            self.room = np.empty((capacity, *np.shape(row)), self.aval.dtype)
        elif at >= len(self.room):
            self.grow(at + 1)
        if self.room.shape[1:] != np.shape(row):
            msg = f"a loop stacks values of one shape; it met {self.room.shape[1:]} and then {np.shape(row)}"
            raise ShapeError(msg)
        self.room[at] = row
        if at >= self.count:
            self.count = at + 1

    def grow(self, count: int) -> None:
        """Make room for at least so many rows, by a quarter more than there is."""
        count = max(count, len(self.room) + len(self.room) // 4)
        box, self.room = [self.room], None
        self.room = resized(box, count)

    def whole(self) -> Any:
        """Return all rows."""
        if self.xp is not np:
            rows = [self.parts[at] for at in range(self.count)]
            if rows:
                return self.xp.stack([self.xp.asarray(row) for row in rows])
            return blank(self.xp, no_rows(self.aval), self.aval.dtype.name, ())
        if self.room is None:
            return np.empty(no_rows(self.aval), self.aval.dtype)
        if len(self.room) > self.count:
            box, self.room = [self.room], None
            self.room = resized(box, self.count)
        return self.room


def no_rows(aval: Aval) -> tuple[int, ...]:
    """Return the shape of a stack of nothing; lengths that no round has told are 0."""
    return (0, *[length or 0 for length in aval.shape])


def resized(box: list[Any], count: int) -> Any:
    """Return the array in a list, which is emptied, with more or fewer rows.

    It is the same memory where it can grow, and where nobody else looks at the array.
    """
    array = box.pop()
    try:
        array.resize((count, *array.shape[1:]))
    except ValueError:  # something refers to it, a debugger say
        larger = np.empty((count, *array.shape[1:]), array.dtype)
        kept = min(count, len(array))
        larger[:kept] = array[:kept]
        return larger
    return array


class Sum:
    """The sum of parts over all rounds, in one buffer: the first dense part is written, all others are added."""

    __slots__ = ("buffer", "own", "parts", "total", "xp")

    def __init__(self, xp: Any, total: Total, constants: Sequence[Any]) -> None:
        self.xp = xp
        self.total = total
        self.parts = total.parts
        self.own = False  # whether the buffer may be written
        self.buffer: Any = None
        if any(part.index is not None for part in self.parts):
            self.buffer, self.own = self.zeros(constants), True

    def zeros(self, constants: Sequence[Any]) -> Any:
        """Return zeros like the total."""
        aval, like = self.total.aval, self.total.like
        if is_static(aval.shape):
            return blank(self.xp, aval.shape, aval.dtype.name, constants)  # type: ignore[arg-type]
        if like is None:
            msg = f"a loop of no rounds: the shape of a sum, {aval!r}, is not known before the first one"
            raise ShapeError(msg, aval=aval)
        return self.xp.zeros_like(constants[like])

    def add(self, values: Sequence[Any]) -> None:
        """Add the parts of one round."""
        for part in self.parts:
            if part.index is None:
                self.add_dense(values[part.value])
            else:
                self.add_at(part, values)

    def add_dense(self, value: Any) -> None:
        """Add a value to the whole buffer; the second one makes a buffer that is ours."""
        if self.buffer is None:
            self.buffer = value
        elif self.own and type(self.buffer) is np.ndarray:
            self.buffer += value
        else:
            self.buffer = self.buffer + value
            self.own = True

    def add_at(self, part: Part, values: Sequence[Any]) -> None:
        """Add a value at the places that an index names."""
        operands = tuple([values[number] for number in part.operands])
        self.buffer = add_into(self.xp, self.buffer, part.index, operands, values[part.value])  # type: ignore[arg-type]

    def whole(self, constants: Sequence[Any]) -> Any:
        """Return the sum; one of a single round is a copy."""
        if self.buffer is None:
            return self.zeros(constants)
        if type(self.buffer) in SCALAR_TYPES:
            return self.total.aval.dtype.type(self.buffer)
        return self.buffer if self.own or not isinstance(self.buffer, np.ndarray) else self.buffer.copy()
