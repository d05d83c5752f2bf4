"""The paths of a traced function: stretches of its program, and what is read between them.

1. A recording is a list of events: equations, and reads. A read is an operation whose outcome the function has seen:
   `bool(v)`, a shape, or an operation that failed and whose error was caught.
2. `Paths` holds segments. A segment is a Program; after it comes a read, and for each outcome that was met the segment
   that follows, or the outputs of the function. Its inputs are variables of the segments before that are needed still.
3. A run goes from segment to segment; outcomes are taken in the calling context, through `apply`: they are reads of
   whatever records there, and raise where reading is refused.
4. Variables have numbers of their own in all segments of one tree. `Paths` never changes: another path makes another
   one, so that calls in other threads go on with what they have.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from xform import tree
from xform.core.operator import Operator
from xform.core.source import Site, describe
from xform.core.stack import apply
from xform.ops.structural import HostRead
from xform.programs.program import Constant, Equation, Literal, Program, Variable
from xform.transforms.failing import checks
from xform.transforms.signature import typed

__all__ = ["DONE", "Branch", "Paths", "Read", "Result", "Segment", "Unknown", "failure_key", "outcome_key"]

Operand = Variable | Literal


@attrs.frozen(eq=False)
class Read:
    """An operation whose outcome decides what follows; `key` tells the outcome from others, `shown` prints it."""

    op: Operator
    inputs: tuple[Operand, ...]
    key: Any
    shown: str
    site: Site | None

    @property
    def name(self) -> str:
        """What was done, for messages."""
        if not isinstance(self.op, HostRead):
            return repr(self.op)
        return "the shape" if self.op.kind == "shape" else f"{self.op.kind}()"


Event = Equation | Read
#: the key of an operation that did not fail
DONE = ("done",)


def outcome_key(outcome: Any) -> Any:
    """Return what tells what was read from all else, bit for bit: 0.0 is not -0.0, NaN is NaN of the same sign.

    >>> nan = float("nan")
    >>> outcome_key(nan) == outcome_key(nan), outcome_key(0.0) == outcome_key(-0.0)
    (True, False)
    """
    if isinstance(outcome, float | complex):
        return "read", type(outcome), struct.pack("<dd", outcome.real, outcome.imag)
    return "read", typed(outcome, [])


def failure_key(error: BaseException) -> Any:
    """Return what tells an error from other outcomes: its class."""
    return "raised", type(error)


@attrs.frozen(eq=False)
class Result:
    """The outputs of a function, and their containers."""

    outputs: tuple[Operand, ...]
    structure: tree.Structure


@attrs.frozen(eq=False)
class Segment:
    """Equations, and the read or the result after them; `receives` are the results of the operation before them.

    The rest follows from all segments together: the numbers of the variables that are live at its beginning, that its
    program takes and gives (beside the outputs of the function), and the program, None where there is nothing to run.
    What may fail is given though nothing needs it, so that no compiler leaves it out.
    """

    receives: tuple[Variable, ...]
    equations: tuple[Equation, ...]
    end: Read | Result
    children: dict[Any, int]
    shown: tuple[str, ...] = ()  # the outcomes that were met
    live: tuple[int, ...] = ()
    takes: tuple[int, ...] = ()
    gives: tuple[int, ...] = ()
    program: Program | None = None


@attrs.frozen(eq=False)
class Branch:
    """Where a recording leaves the paths that are known: a segment, how many of its equations it shares, and a read.

    `receives` are the results of that read's operation on the new path.
    """

    at: int
    position: int
    read: Read
    receives: tuple[Variable, ...] = ()


@attrs.frozen(eq=False)
class Unknown:
    """An outcome that was not met before, of the read after a segment."""

    at: int
    key: Any
    outcome: Any


class Paths:
    """What is recorded of a function for one signature; `size` is larger than the numbers of all variables."""

    def __init__(
        self, inputs: Sequence[Variable], segments: Sequence[Segment], size: int, derivative: str | None
    ) -> None:
        self.inputs = tuple(inputs)
        self.size = size
        self.derivative = derivative
        self.segments = self._planned(list(segments))
        whole = self.segments[0].program if len(self.segments) == 1 else None
        #: the program of a function that has one path, and what is run where no more is to be done
        self.whole = self.routes()[0][1] if whole is not None and self.segments[0].gives else whole
        self.single = whole if whole is self.whole else None
        self.count = sum(isinstance(segment.end, Result) for segment in self.segments)

    @classmethod
    def recorded(
        cls, inputs: Sequence[Variable], events: Sequence[Event], result: Result, size: int, derivative: str | None
    ) -> Paths:
        """Return the paths of a function that was recorded once."""
        return cls(inputs, chained((), events, result, 0), size, derivative)

    def joined(
        self, branch: Branch, events: Sequence[Event], result: Result, size: int, derivative: str | None
    ) -> Paths:
        """Return these paths and another one, which leaves them at a branch."""
        segments = list(self.segments)
        at, position, read = branch.at, branch.position, branch.read
        old = segments[at]
        if position < len(old.equations):  # an operation among them is one that may fail: what follows is a segment
            rest, outputs = old.equations[position + 1 :], old.equations[position].outputs
            segments.append(attrs.evolve(old, receives=outputs, equations=rest, program=None))
            old = Segment(old.receives, old.equations[:position], read, {DONE: len(segments) - 1}, ("done",))
        children = {**old.children, read.key: len(segments)}
        segments[at] = attrs.evolve(old, children=children, shown=(*old.shown, read.shown))
        segments += chained(branch.receives, events, result, len(segments))
        return Paths(self.inputs, segments, size, self.derivative or derivative)

    # -------------------------------------------------------------- running

    def run(
        self, flat: Sequence[Any], run: Callable[[Program, Sequence[Any]], list[Any]] = Program.run
    ) -> tuple[Any, list[Any]] | Unknown:
        """Run on the flat inputs; return structure and flat outputs, or the outcome after which nothing is known.

        `run(program, flat)` runs the program of a segment.
        """
        if self.single is not None:
            return self.single.out_structure, run(self.single, flat)
        values = {variable.index: value for variable, value in zip(self.inputs, flat, strict=True)}
        at = 0
        while True:
            segment = self.segments[at]
            found: list[Any] = []
            if segment.program is not None:
                found = run(segment.program, [values[index] for index in segment.takes])
            if isinstance(segment.end, Result):
                return segment.end.structure, found[: len(segment.end.outputs)]
            values.update(zip(segment.gives, found, strict=True))
            key, outcome, results = performed(segment.end, values)
            child = segment.children.get(key)
            if child is None:
                return Unknown(at, key, outcome)
            at = child
            segment = self.segments[at]
            values.update(zip([variable.index for variable in segment.receives], results, strict=False))
            values = {index: values[index] for index in segment.live}

    # -------------------------------------------------------------- looking

    def routes(self) -> list[tuple[tuple[str, ...], Program]]:
        """Return, for each path, what its reads gave, and all of its equations as one Program."""
        found = []
        pending: list[tuple[int, tuple[str, ...], tuple[Equation, ...]]] = [(0, (), ())]
        while pending:
            at, told, equations = pending.pop()
            segment = self.segments[at]
            equations += segment.equations
            end = segment.end
            if isinstance(end, Result):
                structures = (None, end.structure)
                program = Program(
                    self.inputs, equations, end.outputs, structures=structures, derivative=self.derivative
                )
                found.append((told, program))
                continue
            for (key, child), shown in reversed(list(zip(segment.children.items(), segment.shown, strict=True))):
                done = (Equation(end.op, end.inputs, self.segments[child].receives),) if key == DONE else ()
                pending.append((child, (*told, f"{end.name} at {describe(end.site)} is {shown}"), equations + done))
        return found

    # -------------------------------------------------------------- what each segment needs

    def _planned(self, segments: list[Segment]) -> list[Segment]:
        results = [v for segment in segments for e in segment.equations for v in e.outputs]
        received = [v for segment in segments for v in segment.receives]
        variables = {variable.index: variable for variable in (*self.inputs, *received, *results)}
        live: dict[int, set[int]] = {}
        for at in reversed(depth_first(segments)):
            segment = segments[at]
            end = segment.end
            after: set[int] = set()
            for child in segment.children.values():
                after |= live[child].difference([variable.index for variable in segments[child].receives])
            made = indices([v for equation in segment.equations for v in equation.outputs])
            takes = indices([v for equation in segment.equations for v in equation.inputs])
            if isinstance(end, Result):
                takes |= indices(end.outputs)
            else:
                after |= indices(end.inputs)
            takes -= made
            live[at] = (after - made) | takes
            given = (after & made) | (indices(end.outputs) if isinstance(end, Result) else set())
            gives = (*sorted(after & made), *checks(segment.equations, given))
            planned = attrs.evolve(
                segment,
                live=tuple(sorted(live[at])),
                takes=tuple([v.index for v in self.inputs]) if at == 0 else tuple(sorted(takes)),
                gives=gives,
            )
            segments[at] = attrs.evolve(planned, program=self._program(at, segment, planned, variables))
        return segments

    def _program(self, at: int, old: Segment, segment: Segment, variables: dict[int, Variable]) -> Program | None:
        """Return the program of a segment, the one that it had if it still does."""
        if old.program is not None and (old.takes, old.gives) == (segment.takes, segment.gives):
            same = len(old.program.equations) == len(segment.equations)
            if same and old.program.derivative == self.derivative:
                return old.program
        inputs = [variables[index] for index in segment.takes]
        equations, end = segment.equations, segment.end
        structure = end.structure if isinstance(end, Result) and not segment.gives else None
        outputs: tuple[Operand, ...] = tuple([variables[index] for index in segment.gives])
        if isinstance(end, Result):
            outputs = (*end.outputs, *outputs)
        elif not equations:
            return None
        if at:
            inputs, equations, outputs = renumbered(inputs, equations, outputs)
        return Program(inputs, equations, outputs, structures=(None, structure), derivative=self.derivative)


def performed(read: Read, values: dict[int, Any]) -> tuple[Any, Any, Sequence[Any]]:
    """Perform what is read; return the key of the outcome, what was read, and the results of an operation."""
    operands = [v.value if isinstance(v, Literal | Constant) else values[v.index] for v in read.inputs]
    try:
        found = apply(read.op, *operands)
    except Exception as error:  # noqa: BLE001  (the function may have caught it: that is what the outcome says)
        return failure_key(error), error, ()
    if isinstance(read.op, HostRead):
        return outcome_key(found), found, ()
    return DONE, "done", found if read.op.multiple_outputs else (found,)


def chained(receives: tuple[Variable, ...], events: Iterable[Event], result: Result, first: int) -> list[Segment]:
    """Return a recording as segments, one after the other; the first of them has the number `first`."""
    segments: list[Segment] = []
    equations: list[Equation] = []
    for event in events:
        if isinstance(event, Equation):
            equations.append(event)
            continue
        child = first + len(segments) + 1
        segments.append(Segment(receives, tuple(equations), event, {event.key: child}, (event.shown,)))
        receives, equations = (), []
    segments.append(Segment(receives, tuple(equations), result, {}))
    return segments


def depth_first(segments: Sequence[Segment]) -> list[int]:
    """Return the numbers of all segments, each after the one that it follows."""
    found, pending = [], [0]
    while pending:
        at = pending.pop()
        found.append(at)
        pending.extend(segments[at].children.values())
    return found


def indices(operands: Iterable[Operand]) -> set[int]:
    """Return the numbers of the variables among operands; a constant is none."""
    return {operand.index for operand in operands if type(operand) is Variable}


def renumbered(
    inputs: Sequence[Variable], equations: Sequence[Equation], outputs: Sequence[Operand]
) -> tuple[list[Variable], tuple[Equation, ...], tuple[Operand, ...]]:
    """Return the parts of a program with variables numbered from 0: an environment is as long as it must be."""
    new: dict[int, Variable] = {}

    def of(operand: Any) -> Any:
        if isinstance(operand, Literal):
            return operand
        if operand.index not in new:
            new[operand.index] = attrs.evolve(operand, index=len(new))
        return new[operand.index]

    taken = [of(variable) for variable in inputs]
    steps = tuple(
        [attrs.evolve(e, inputs=tuple(map(of, e.inputs)), outputs=tuple(map(of, e.outputs))) for e in equations]
    )
    return taken, steps, tuple(map(of, outputs))
