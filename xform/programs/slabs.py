"""Stacks that need no copy: their rows are computed where they lie.

A slab is a run of rows of one shape in one array. A stack whose rows are the next rows of a slab, upwards or downwards,
is a view of it; a value may lie in one slab only, so what cannot be placed is copied.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Run", "Slab", "Slabs"]


class Slab:
    """Rows by position, from `first` to `last`; positions may be negative."""

    __slots__ = ("first", "last", "rows")

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.first = 0
        self.last = -1


class Run:
    """Rows of a slab one after the other, from `start`, by `step` 1 or -1."""

    __slots__ = ("slab", "start", "step")

    def __init__(self, slab: Slab, start: int, step: int) -> None:
        self.slab = slab
        self.start = start
        self.step = step


class Slabs:
    """Which slab, and where in it, each value lies in."""

    def __init__(self) -> None:
        self.places: dict[int, tuple[Slab, int]] = {}

    def place(self, rows: Sequence[int]) -> Run | None:
        """Give values places one after the other; None, and nothing is changed, where some lie elsewhere.

        >>> slabs = Slabs()
        >>> slabs.place([3, 4, 5]) is not None, slabs.place([5, 4, 3, 2]).step, slabs.place([3, 5])
        (True, -1, None)
        """
        if len(set(rows)) < len(rows):
            return None
        run = self._run(rows)
        if run is None:
            return None
        slab = run.slab
        for offset, row in enumerate(rows):
            position = run.start + run.step * offset
            slab.rows[position] = row
            self.places[row] = (slab, position)
        ends = (run.start, run.start + run.step * (len(rows) - 1))
        slab.first, slab.last = min(slab.first, *ends), max(slab.last, *ends)
        return run

    def _run(self, rows: Sequence[int]) -> Run | None:
        """Return where rows would lie, or None where those that have a place do not allow it."""
        known = [(offset, *self.places[row]) for offset, row in enumerate(rows) if row in self.places]
        if not known:
            return Run(Slab(), 0, 1)
        offset, slab, position = known[0]
        step = 1
        if len(known) > 1:
            step = (known[1][2] - position) // (known[1][0] - offset) or 1
        elif len(rows) > 1 and slab.first != slab.last:  # one end of a longer slab: go on beyond it
            step = 1 if position == (slab.last if offset == 0 else slab.first) else -1
        run = Run(slab, position - step * offset, step)
        if abs(step) != 1:
            return None
        for at in range(len(rows)):
            row = slab.rows.get(run.start + step * at)
            if row is not None and row != rows[at]:
                return None
        fits = all(at is slab and run.start + step * where == place for where, at, place in known)
        return run if fits else None
