"""The operator for loops: rounds of one Program, whose number may be known at run time only.

1. The body takes `(counter, *carries, *constants)` and gives `(*carries, *values)`; all carries change at once.
2. A loop with a condition goes on while it holds: a Program of the body's inputs, asked before each round, or with
   `test="after"` after it, with the inputs that this round had. Without one, the number of rounds is `length`, or where
   that is None the last operand; then the loop may count down (`reverse`).
3. Operands: the starts of the carries, the constants, and the number of rounds where it is one. Everything that the
   body needs from outside is a constant, so that every layer sees it.
4. What comes out is a list of outputs, see `xform.programs.loop_outputs`.

Its derivatives and batches are loops again: see `xform.transforms.loop_reverse`, `loop_forward`, `loop_batch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import numpy as np

from xform.core.aval import Aval
from xform.core.backend import HOST_TYPES, SCALAR_TYPES
from xform.core.errors import OperandError, ShapeError
from xform.core.place import place
from xform.core.stack import BOTTOM, cursor
from xform.ops.broadcast import cast
from xform.programs.holding import NOT_STORED, HoldsPrograms, Programs
from xform.programs.loop_counter import COUNTER, Offset
from xform.programs.loop_outputs import Count, Last, Output, Part, Total, output_aval
from xform.programs.loop_plans import Plan
from xform.programs.loop_reports import is_asked, report_loop
from xform.programs.loop_rounds import run_rounds
from xform.programs.loop_source import LoopSource, joint, written_loop
from xform.programs.loop_steps import run_steps
from xform.programs.loop_trim import pruned
from xform.programs.program import Equation, Program, Variable

__all__ = ["COUNTER", "Loop", "Offset"]

MISSING = object()
#: loops that differ in their number of rounds alone, and are remembered
MOST_LENGTHS = 64


@attrs.frozen(eq=False, repr=False)
class Loop(HoldsPrograms):
    """Rounds of a body; compares by identity, since it holds Programs."""

    body: Program
    condition: Program | None
    carries: int
    constants: int
    outputs: tuple[Output, ...]
    test: str = "before"
    reverse: bool = False
    length: int | None = None
    max_steps: int | None = None
    checkpoint: Plan | None = None
    label: str = "loop"
    #: what was derived from the body, by rule; loops that differ in their number of rounds share it
    derived: dict[Any, Any] = attrs.field(factory=dict, metadata=NOT_STORED)

    @property
    def name(self) -> str:
        """The kind of loop."""
        return f"Loop[{self.label}]"

    def __repr__(self) -> str:
        rounds = "while" if self.condition is not None else "count" if self.length is None else str(self.length)
        return f"{self.name}({rounds}, {len(self.body.equations)} operations a round)"

    def of_length(self, length: int | None) -> Loop:
        """Return the loop of so many rounds, the same one at each call."""
        if length == self.length:
            return self
        known: dict[int | None, Loop] = self.derived.setdefault("lengths", {})
        found = known.get(length)
        if found is None:
            found = attrs.evolve(self, length=length)
            if len(known) < MOST_LENGTHS:
                known[length] = found
        return found

    @property
    def counts(self) -> bool:
        """Whether the number of rounds is the last operand."""
        return self.condition is None and self.length is None

    @property
    def carry_avals(self) -> tuple[Aval, ...]:
        """The avals of the carries."""
        return self.body.in_avals[1 : 1 + self.carries]

    @property
    def constant_avals(self) -> tuple[Aval, ...]:
        """The avals of the constants."""
        return self.body.in_avals[1 + self.carries :]

    @property
    def value_avals(self) -> tuple[Aval, ...]:
        """The avals of the values that the body gives besides the carries."""
        return self.body.out_avals[self.carries :]

    @property
    def out_avals(self) -> tuple[Aval, ...]:
        """The avals of the outputs."""
        carries, values = self.carry_avals, self.value_avals
        return tuple([output_aval(output, carries, values, self.length) for output in self.outputs])

    @property
    def programs(self) -> Programs:
        """The body, and the condition where there is one."""
        return (self.body,) if self.condition is None else (self.body, self.condition)

    def with_programs(self, programs: Programs, derived: dict[Any, Any]) -> Loop:
        """Return a loop of another body and condition."""
        return attrs.evolve(self, body=programs[0], condition=programs[1] if programs[1:] else None, derived=derived)

    @property
    def origin(self) -> str:
        """The name of the loop that this one is the gradient of, or its own."""
        return self.label.partition(".Backward")[0]

    def steps(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Run round by round, operation by operation."""
        return run_steps(self, values)

    def pruned(self, used: tuple[bool, ...]) -> tuple[Loop, tuple[int, ...]] | None:
        """Return the loop without what only other outputs need."""
        key = ("pruned", used, self.counts)  # loops that count share `derived` with those that do not
        if key not in self.derived:
            self.derived[key] = pruned(self, used)
        found: tuple[Loop, tuple[int, ...]] | None = self.derived[key]
        return None if found is None else (found[0].of_length(self.length), found[1])

    def split(self, operands: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Return starts, constants, and a list of the number of rounds, empty where that is no operand."""
        end = self.carries + self.constants
        return list(operands[: self.carries]), list(operands[self.carries : end]), list(operands[end:])

    def infer(self, *avals: Aval) -> tuple[Aval, ...]:
        """The body's avals; stacked outputs have the number of rounds in front, where it is known."""
        if len(avals) != self.carries + self.constants + self.counts:
            msg = f"{self!r} takes {self.carries + self.constants + self.counts} operands, got {len(avals)}"
            raise OperandError(msg, op=self)
        for position, (aval, wanted) in enumerate(zip(avals, self.body.in_avals[1:], strict=False)):
            if not fits(aval, wanted):
                msg = f"{self!r}: operand {position} is {aval!r}; the body was recorded for {wanted!r}"
                raise ShapeError(msg, op=self)
        return self.out_avals

    def evaluate(self, xp: Any, *arrays: Any) -> tuple[Any, ...]:
        """Run the rounds on raw arrays."""
        return self._told(xp, arrays) if is_asked() else self.run(xp, arrays)

    def _told(self, xp: Any, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """Run the rounds, and report what they were."""
        told = self.derived.get("told")
        if told is None:
            told = self.derived["told"] = told_of(self)
        found = attrs.evolve(told, length=self.length, max_steps=self.max_steps).run(xp, arrays)
        count = len(self.outputs)
        report_loop(self, found[:count], found[count:-1], int(found[-1]), self.split(arrays)[1])
        return found[:count]

    def run(self, xp: Any, arrays: tuple[Any, ...], base: int = 0) -> tuple[Any, ...]:
        """Run the rounds by generated source, or one by one; who watches is told that they begin at `base`."""
        if not SCALAR_TYPES.isdisjoint(map(type, arrays[: self.carries])):
            arrays = (*map(as_array, arrays, self.carry_avals), *arrays[self.carries :])
        written = self.written if xp is np and HOST_TYPES.issuperset(map(type, arrays)) else None
        here, start = cursor.get(), place.get()
        if written is not None and here is BOTTOM:
            return written(self, arrays)
        cursor.set(BOTTOM)
        try:
            return run_rounds(self, xp, arrays, base) if written is None else written(self, arrays)
        finally:
            cursor.set(here)
            place.set(start)

    @property
    def written(self) -> LoopSource | None:
        """The loop as a function of NumPy arrays, made at its first run, where it can be written as one."""
        found = self.derived.get("written", MISSING)
        if found is MISSING:
            found = self.derived["written"] = written_loop(self)
        return found  # type: ignore[no-any-return]

    def numbers(self, length: int | None) -> Iterable[int]:
        """Return the counters of the rounds."""
        if length is None:
            return range(1 << 62 if self.max_steps is None else self.max_steps)
        return range(length - 1, -1, -1) if self.reverse else range(length)


def told_of(loop: Loop) -> Loop:
    """Return a loop that also tells what a report needs: the number of rounds, and whether its condition held.

    That is asked of its last carries; where it is asked after a round, it is in how many rounds it held.
    """
    if loop.test == "before" or loop.condition is None:
        return attrs.evolve(loop, outputs=(*loop.outputs, *map(Last, range(loop.carries)), Count()), derived={})
    body = joint(loop)
    held = Variable(body.size, Aval((), np.dtype(np.int64)))
    equations = [*body.equations, Equation(cast("int64"), (body.outputs[-1],), (held,))]
    total = Total((Part(len(loop.value_avals)),), held.aval)
    body = body.evolve(equations, [*body.outputs[:-1], held])
    return attrs.evolve(loop, body=body, outputs=(*loop.outputs, total, Count()), derived={})


def fits(have: Aval, want: Aval) -> bool:
    """Whether a value may stand where another was recorded; a Python number fits into any dtype of its kind."""
    alike = have.dtype == want.dtype or (have.weak and have.dtype.kind == want.dtype.kind)
    pairs = zip(have.shape, want.shape, strict=False)
    return alike and len(have.shape) == len(want.shape) and all(n == m or n is None or m is None for n, m in pairs)


def as_array(x: Any, aval: Aval) -> Any:
    """Return a Python number as one of NumPy, of the dtype that it has in the rounds."""
    return aval.dtype.type(x) if type(x) in SCALAR_TYPES and not aval.weak else x
