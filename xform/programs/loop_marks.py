"""Where the marks of a loop come together: its carries at the start of some rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from xform.core.aval import Aval
from xform.core.backend import HOST_TYPES
from xform.core.devices import move
from xform.ops.indexing import blank
from xform.programs.loop_plans import Plan
from xform.programs.loop_stores import no_rows

__all__ = ["MarkRows", "Marked", "row_of"]


class MarkRows:
    """The marks of one carry. `note` is told the carry at the start of each round, and copies those that are kept."""

    __slots__ = ("apart", "aval", "moved", "plan", "rows", "told", "wanted", "xp")

    def __init__(self, xp: Any, aval: Aval, plan: Plan, rounds: int | None) -> None:
        self.xp = xp
        self.aval = aval
        self.plan = plan
        self.wanted = None if rounds is None else frozenset(plan.marks(rounds, known=True))
        self.apart = plan.every
        self.rows: list[Any] = []
        self.moved: list[Any] = []  # stacks of rows that are on the host now
        self.told = 0

    def note(self, carry: Any) -> None:
        """Keep the carry, if it is one of those that are kept."""
        at = self.told
        self.told = at + 1
        if at % self.apart if self.wanted is None else at not in self.wanted:
            return
        self.rows.append(np.array(carry, self.aval.dtype) if type(carry) in HOST_TYPES else carry)
        if self.wanted is None and self.plan.kind is not None and len(self.rows) > self.plan.most(self.apart):
            del self.rows[1::2]
            self.apart *= 2
        if self.plan.swap is not None and len(self.rows) >= self.plan.swap and self.plan.kind is None:
            self.swap()

    def swap(self) -> None:
        """Move rows to the host."""
        if self.rows and type(self.rows[0]) is not np.ndarray:
            self.moved.append(move(self.xp.stack(self.rows), "cpu"))
            self.rows = []

    @property
    def nbytes(self) -> int:
        """The bytes of what is kept."""
        found = [*self.rows, *self.moved]
        return sum(int(np.prod(each.shape)) for each in found) * self.aval.dtype.itemsize

    def whole(self) -> Any:
        """Return the marks, stacked."""
        if self.plan.swap is not None:
            self.swap()
        if self.moved:
            return np.concatenate(self.moved)
        if self.rows:
            rows, self.rows = self.rows, []
            return self.xp.stack(rows)
        return blank(self.xp, no_rows(self.aval), self.aval.dtype.name, ())


class Marked:
    """The marks of several carries; those that were moved to the host come back in parts."""

    def __init__(self, marks: Sequence[Any], device: str, part: int | None) -> None:
        self.marks = marks
        self.device = device
        self.part = part
        self._first = -1
        self._rows: list[Any] = []

    def __getitem__(self, number: int) -> list[Any]:
        """Return the carries of one mark."""
        if self.part is None:
            return [row_of(each, number) for each in self.marks]
        first = number - number % self.part
        if first != self._first:
            self._first = first
            self._rows = self.rows(first, min(first + self.part, self.marks[0].shape[0]))
        return [row_of(rows, number - first) for rows in self._rows]

    def parts(self, count: int) -> Iterator[tuple[int, int]]:
        """Yield the first mark, and that behind the last, of each part, from the last part to the first."""
        part = count if self.part is None else self.part
        for first in range((count - 1) // max(part, 1) * part, -1, -max(part, 1)) if count else ():
            yield first, min(first + part, count)

    def rows(self, first: int, stop: int, *, reverse: bool = False) -> list[Any]:
        """Return some marks, stacked, where the loop runs; with `reverse`, in the other order."""
        found = [each[first:stop, ...] for each in self.marks]
        if self.device != "cpu":
            found = [move(each, self.device) for each in found]
        return [each[::-1, ...] for each in found] if reverse else found


def row_of(stack: Any, number: int) -> Any:
    """Return a row of an array of any library.

    >>> row_of(np.arange(3.0), 1)
    np.float64(1.0)
    """
    return stack[number] if type(stack) is np.ndarray else stack[number, ...]
