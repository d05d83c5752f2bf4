"""A loop run round by round on values of the current stack, for layers that have no rule for it.

Each operation of a round goes through `apply`, each truth value of the condition is read through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xform.core.place import Place, place
from xform.core.stack import apply
from xform.ops.arithmetic import add
from xform.ops.create import zeros, zeros_like
from xform.ops.stacking import stack
from xform.ops.updates import IndexAdd
from xform.programs.loop_outputs import All, Count, Last, Marks, Path, Total

__all__ = ["run_steps"]


def run_steps(loop: Any, values: Sequence[Any]) -> tuple[Any, ...]:
    """Run a loop operation by operation, on top of the current stack."""
    carries, constants, count = loop.split(values)
    length = loop.length if not count else max(int(count[0]), 0)
    rounds = Rounds(loop, carries, constants)
    start = place.get()
    try:
        for counter in loop.numbers(length):
            place.set(Place(start.scopes, start.phase, start.site, loop.origin, counter))
            if not rounds.run(counter):
                break
    finally:
        place.set(start)
    return tuple([rounds.result(n, output) for n, output in enumerate(loop.outputs)])


class Rounds:
    """The state of a loop that runs round by round."""

    def __init__(self, loop: Any, carries: list[Any], constants: list[Any]) -> None:
        self.loop = loop
        self.carries = carries
        self.constants = constants
        self.count = 0
        #: by the number of the output: what was stacked, or the sum
        self.rows: list[list[Any]] = [[self.carries[o.carry]] if isinstance(o, Path) else [] for o in loop.outputs]
        self.sums: dict[int, Any] = {}

    def run(self, counter: int) -> bool:
        """Run one round; return whether the loop goes on."""
        loop, given = self.loop, [counter, *self.carries, *self.constants]
        if loop.condition is not None and loop.test == "before" and not loop.condition.run(given)[0]:
            return False
        results = loop.body.run(given)
        self.carries, values = results[: loop.carries], results[loop.carries :]
        self.count += 1
        for n, output in enumerate(loop.outputs):
            if isinstance(output, All):
                self.rows[n].append(values[output.value])
            elif isinstance(output, Path):
                self.rows[n].append(self.carries[output.carry])
            elif isinstance(output, Marks):
                self.rows[n].append(given[1 + output.carry])
            elif isinstance(output, Total):
                for part in output.parts:
                    self._add(n, output, part, values)
        return loop.condition is None or loop.test == "before" or bool(loop.condition.run(given)[0])

    def _add(self, number: int, output: Total, part: Any, values: Sequence[Any]) -> None:
        if part.index is not None:
            total = self.sums[number] if number in self.sums else self._zeros(output)
            operands = [values[n] for n in part.operands]
            self.sums[number] = apply(IndexAdd(part.index), total, values[part.value], *operands)
        elif number in self.sums:
            self.sums[number] = add(self.sums[number], values[part.value])
        else:
            self.sums[number] = values[part.value]

    def _zeros(self, output: Total) -> Any:
        aval = output.aval
        return zeros(aval.shape, aval.dtype) if output.like is None else zeros_like(self.constants[output.like])

    def result(self, number: int, output: Any) -> Any:
        """Return an output."""
        if isinstance(output, Last):
            return self.carries[output.carry]
        if isinstance(output, Count):
            return self.count
        if isinstance(output, Total):
            return self.sums[number] if number in self.sums else self._zeros(output)
        rows = self.rows[number]
        if isinstance(output, Marks):
            rows = [rows[n] for n in output.plan.marks(self.count, known=self.loop.condition is None)]
        elif self.loop.reverse:
            rows = rows[::-1]
        if rows:
            return stack(rows, 0)
        aval = self.loop.value_avals[output.value] if isinstance(output, All) else self.loop.carry_avals[output.carry]
        return zeros((0, *[length or 0 for length in aval.shape]), aval.dtype)
