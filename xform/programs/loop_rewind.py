"""The gradient of a loop of which some carries were kept: rounds are run again from these marks.

It meets the rounds from the last to the first, some at a time, as `xform.programs.loop_plans` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from xform.core.aval import Aval
from xform.core.backend import HOST_TYPES, device_of, shared_namespace
from xform.core.errors import OperandError
from xform.core.operator import Operator
from xform.core.place import place
from xform.core.rules import batch_rule
from xform.core.stack import BOTTOM, apply, cursor
from xform.ops.arithmetic import sub
from xform.ops.base import constant, elementwise_batch
from xform.ops.index_layout import OPERAND
from xform.programs.holding import NOT_STORED, HoldsPrograms, Programs
from xform.programs.kernels import KERNELS, Kernel, Writer, operands
from xform.programs.loop import Loop, as_array
from xform.programs.loop_marks import Marked, row_of
from xform.programs.loop_outputs import All, Last, Output, Part, Path, Total, values_of
from xform.programs.loop_plans import Plan, rewound
from xform.programs.loop_reports import LoopReport, is_asked, nbytes, report
from xform.programs.loop_stores import Sum
from xform.programs.program import Equation

__all__ = ["ELSEWHERE", "OffsetBy", "Rewind"]

ELSEWHERE = -1


@attrs.frozen
class OffsetBy(Operator):
    """A counter that begins elsewhere, where that is known when the loop runs: a Python int stays one."""

    def infer(self, x: Aval, by: Aval) -> Aval:
        """The counter's."""
        return x

    def evaluate(self, xp: Any, x: Any, by: Any) -> Any:
        """Add."""
        return x + by


constant(OffsetBy, why="it counts")
batch_rule(OffsetBy)(elementwise_batch)


def shifted(writer: Writer, equation: Equation, out: str | None) -> str:
    """Write the sum as Python's own."""
    return " + ".join(operands(writer, equation))


KERNELS[OffsetBy] = Kernel(shifted)


@attrs.frozen(eq=False, repr=False)
class Rewind(HoldsPrograms):
    """The rounds of a loop from the last to the first.

    1. `walk` runs rounds of the loop again: its carries are the states of which there are marks, its last constant says
       where its counter begins, its outputs are the histories of all states.
    2. `back` is a loop over the same rounds in the other order. Its inputs behind the carries are, as `reads` says, the
       rows of states at the start of each round, or constants; the last one says where its counter begins.
    3. Operands: the first states, the other constants of `walk`, the marks, the first carries of `back`, its other
       constants, the number of rounds. The outputs are `outputs`, of the values and carries of `back`.
    """

    walk: Loop
    back: Loop
    reads: tuple[int, ...]  # for each constant of `back` but the last: the number of a state, or `ELSEWHERE`
    outputs: tuple[Last | Total, ...]
    keeping: Plan
    known: bool  # whether the number of rounds was known when marks were kept
    derived: dict[Any, Any] = attrs.field(factory=dict, metadata=NOT_STORED)
    crosses_devices = True  # marks may be on the host

    @property
    def name(self) -> str:
        """That of the loop back."""
        return self.back.name

    def __repr__(self) -> str:
        return f"{self.name}({len(self.back.body.equations)} operations a round, from marks)"

    @property
    def programs(self) -> Programs:
        """The bodies of both loops."""
        return self.walk.body, self.back.body

    def with_programs(self, programs: Programs, derived: dict[Any, Any]) -> Rewind:
        """Return the same with other bodies."""
        walk, back = (
            loop.with_programs((body,), derived.setdefault(name, {}))
            for name, loop, body in zip(("walk", "back"), (self.walk, self.back), programs, strict=True)
        )
        return attrs.evolve(self, walk=walk, back=back, derived=derived)

    @property
    def staying(self) -> range:  # type: ignore[override]
        """The operands that a device leaves where they are: the marks."""
        start = self.walk.carries + self.walk.constants - 1
        return range(start, start + self.walk.carries)

    def split(self, operands: Sequence[Any]) -> list[list[Any]]:
        """Return first states, constants, marks, first carries, constants of `back`, and a list of the count."""
        states, others = self.walk.carries, self.reads.count(ELSEWHERE)
        found, start = [], 0
        for count in (states, self.walk.constants - 1, states, self.back.carries, others, 1):
            found.append(list(operands[start : start + count]))
            start += count
        if start != len(operands):
            raise OperandError(f"{self!r} takes {start} operands, got {len(operands)}", op=self)
        return found

    def infer(self, *avals: Aval) -> tuple[Aval, ...]:
        """Those of the carries, and of the sums."""
        self.split(avals)
        own = self.back.carry_avals
        return tuple([own[output.carry] if isinstance(output, Last) else output.aval for output in self.outputs])

    def inputs(self, states: Sequence[Any], others: Sequence[Any]) -> list[Any]:
        """Return the constants of `back` but the last."""
        rest = iter(others)
        return [next(rest) if number == ELSEWHERE else states[number] for number in self.reads]

    def evaluate(self, xp: Any, *arrays: Any) -> tuple[Any, ...]:
        """Run the rounds on raw arrays."""
        here, start = cursor.get(), place.get()
        cursor.set(BOTTOM)
        try:
            return Run(self, arrays).results()
        finally:
            cursor.set(here)
            place.set(start)

    def steps(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Compute the same by operations of the current stack: loops that keep all states."""
        starts, constants, _, carries, others, (count,) = self.split(values)
        walked = sub(count, 1)  # the state at the end is not needed
        paths = apply(self.walk, *starts, *constants, int(self.walk.reverse), walked)
        whole = self.derived.get("whole")
        if whole is None:
            whole = self.derived["whole"] = attrs.evolve(self.back, outputs=self.outputs, derived={})
        return apply(whole, *carries, *self.inputs(paths, others), 0, count)  # type: ignore[no-any-return]

    def parts(self) -> tuple[Loop, Loop, Loop]:
        """Return the loops that give the last states, all states, and what a few rounds back give."""
        found = self.derived.get("parts")
        if found is None:
            lasts = tuple([Last(n) for n in range(self.walk.carries)])
            paths = tuple([Path(n) for n in range(self.walk.carries)])
            found = self.derived["parts"] = (
                attrs.evolve(self.walk, outputs=lasts, derived={}),
                attrs.evolve(self.walk, outputs=paths, derived={}),
                attrs.evolve(self.back, outputs=tuple(partial_outputs(self.outputs, self.back.carries)), derived={}),
            )
        return found


def partial_outputs(outputs: Sequence[Last | Total], carries: int) -> list[Output]:
    """Return what the loop back over a few rounds gives: carries, dense sums, and values that are added at an index."""
    found: list[Output] = [Last(n) for n in range(carries)]
    for total in outputs:
        if isinstance(total, Total):
            dense = tuple([part for part in total.parts if part.index is None])
            if dense:
                found.append(attrs.evolve(total, parts=dense))
    found += [All(n) for n in sorted(placed_values(outputs))]
    return found


def placed_values(outputs: Sequence[Any]) -> set[int]:
    """Return the values that are added at an index, and those that belong to the index."""
    placed = [part for total in outputs if isinstance(total, Total) for part in total.parts if part.index is not None]
    return values_of([Total(tuple(placed), Aval((), np.dtype(float)))])


class Run:
    """One run: the states where it is, those that are held, and the carries."""

    def __init__(self, op: Rewind, arrays: Sequence[Any]) -> None:
        states, self.own, marks, carries, self.others, (count,) = op.split(arrays)
        self.op = op
        self.rounds = max(int(count), 0)
        self.states = [as_array(x, aval) for x, aval in zip(states, op.walk.carry_avals, strict=True)]
        self.carries = [as_array(x, aval) for x, aval in zip(carries, op.back.carry_avals, strict=True)]
        given = [*self.states, *self.own, *self.carries, *self.others]
        self.xp = np if all(type(x) in HOST_TYPES for x in given) else shared_namespace(op.name, given)
        self.go_on, self.keep_all, self.go_back = op.parts()
        self.marked = Marked(marks, device_of(next(iter(self.states), 0.0)), op.keeping.swap)
        self.held: dict[int, list[Any]] = {}
        self.totals = Totals(op, self.xp, op.inputs([None] * op.walk.carries, self.others))
        self.lengths: dict[tuple[int, int], Loop] = {}
        self.again = 0
        self.bytes = self.peak = sum(map(nbytes, marks))

    def results(self) -> tuple[Any, ...]:
        """Meet all rounds; return the outputs."""
        if self.op.keeping.keeps_all:
            for start, stop in self.marked.parts(self.rounds):
                self.meet(start, stop, self.marked.rows(start, stop, reverse=self.op.walk.reverse))
        else:
            self._follow(self.op.keeping)
        if is_asked():
            report(LoopReport(self.op.back.origin, "backward", self.rounds, self.peak, self.again))
        return tuple([
            self.carries[output.carry] if isinstance(output, Last) else self.totals.whole(k)
            for k, output in enumerate(self.op.outputs)
        ])  # fmt: skip

    def _follow(self, plan: Plan) -> None:
        """Do what a plan says."""
        known, rounds = self.op.known, self.rounds
        marks, places = plan.marks(rounds, known=known), plan.places(rounds, known=known)
        for what, at, to in rewound(marks, rounds, places, plan.block(rounds)):
            if what == "meet":
                paths = self.run(self.keep_all, at, to - 1, self.states)
                self.again += to - 1 - at
                self.meet(at, to, paths)
            elif what == "go":
                self.states = list(self.run(self.go_on, at, to, self.states))
                self.again += to - at
            elif what == "load":
                self.states = self.marked[at]
            elif what == "keep":
                self.held[at] = self.states
                self.note(self.states)
            elif what == "take":
                self.states = self.held[at]
            else:
                self.bytes -= sum(map(nbytes, self.held.pop(at)))

    def run(self, loop: Loop, start: int, stop: int, states: Sequence[Any]) -> tuple[Any, ...]:
        """Run rounds of the loop again."""
        base = self.rounds - stop if loop.reverse else start
        return self.of(loop, stop - start).run(self.xp, (*states, *self.own, base), base)

    def of(self, loop: Loop, length: int) -> Loop:
        """Return a loop of so many rounds: most of them are alike."""
        key = (id(loop), length)
        found = self.lengths.get(key)
        if found is None:
            found = self.lengths[key] = attrs.evolve(loop, length=length)
        return found

    def note(self, arrays: Sequence[Any]) -> None:
        """Count what is held."""
        self.bytes += sum(map(nbytes, arrays))
        self.peak = max(self.peak, self.bytes)

    def meet(self, start: int, stop: int, paths: Sequence[Any]) -> None:
        """Meet rounds, with the states at the start of each."""
        self.peak = max(self.peak, self.bytes + sum(map(nbytes, paths)))
        back = self.go_back
        base = start if back.reverse else self.rounds - stop
        operands = (*self.carries, *self.op.inputs(paths, self.others), base)
        found = self.of(back, stop - start).run(self.xp, operands, base)
        self.carries = list(found[: back.carries])
        self.totals.add(found[back.carries :], range(stop - start))


class Totals:
    """The sums over all rounds, of which each loop back gives a part."""

    def __init__(self, op: Rewind, xp: Any, constants: Sequence[Any]) -> None:
        self.constants = constants
        self.numbers = sorted(placed_values(op.outputs))
        self.sums: dict[int, Sum] = {}
        self.dense: list[Sum] = []
        self.placed: list[tuple[Sum, Part]] = []
        for k, output in enumerate(op.outputs):
            if isinstance(output, Total):
                made = self.sums[k] = Sum(xp, output, constants)
                placed = [part for part in output.parts if part.index is not None]
                self.placed += [(made, part) for part in placed]
                if len(placed) < len(output.parts):
                    self.dense.append(made)

    def add(self, found: Sequence[Any], rounds: range) -> None:
        """Add what a loop back gave: sums, and stacked values."""
        for total, part in zip(self.dense, found, strict=False):
            total.add_dense(part)
        stacks: list[Any] = [None] * (self.numbers[-1] + 1 if self.numbers else 0)
        for n, stack in zip(self.numbers, found[len(self.dense) :], strict=True):
            stacks[n] = stack
        for total, part in self.placed:
            if part.index == (OPERAND,) and len(stacks[part.operands[0]].shape) == 1:
                total.add_at(part, stacks)  # rows: all rounds at once
                continue
            for at in rounds:
                total.add_at(part, [None if stack is None else row_of(stack, at) for stack in stacks])

    def whole(self, number: int) -> Any:
        """Return a sum."""
        return self.sums[number].whole(self.constants)
