"""A function that runs again, held against what was recorded of it: operation by operation, read by read."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Sequence
from types import CellType, FunctionType, MethodType
from typing import Any, NoReturn

import attrs

from xform.core.errors import TooManyPathsError, TraceMismatchError
from xform.core.operator import Operator
from xform.core.source import describe
from xform.core.stack import Transformation
from xform.core.value import Value
from xform.programs.compare import same_value
from xform.programs.program import Constant, Equation, Literal, Program, Variable
from xform.transforms.paths import DONE, Branch, Event, Operand, Paths, Read, Result

__all__ = ["Departure", "Follower", "same_operator", "too_many"]


class Departure(enum.StrEnum):
    """How a function departs from what was recorded of it; the value says it in words.

    >>> Departure.EXTRA.value
    'an operation more'
    """

    OPERATOR = "another operation"
    CONSTANT = "another constant"
    STOPS_EARLY = "it stops early"
    EXTRA = "an operation more"
    GIVEN_FOR_MADE = "an argument or a constant in place of a result"
    MADE_FOR_GIVEN = "a result in place of an argument or a constant"
    OPERAND = "another operand"
    OUTPUT = "another output"


REMEDIES = {
    Departure.CONSTANT: "pass what changes between calls as an argument",
    Departure.OUTPUT: "return the same values at each call",
}
REMEDY = (
    "what decides otherwise at another call (a counter, a global, a random draw) must be an argument, or stand inside "
    "xf.exclude_from_trace()"
)


class Follower:
    """Goes along the paths that are known while a function runs.

    1. `take(event)` compares what happens with the record. Raises `TraceMismatchError` where they differ.
    2. At an outcome that was not met before the function leaves the paths; `events` holds what it does from there on,
       in variables of the tree. Raises `TooManyPathsError` where no further path may be recorded.
    3. `finish(outputs)` returns the paths, with the new one if there is one.
    """

    def __init__(self, paths: Paths, what: str, max_paths: int) -> None:
        self.paths = paths
        self.what = what
        self.max_paths = max_paths
        self.branch: Branch | None = None
        self.events: list[Event] = []
        self._at = 0
        self._position = 0
        self._size = paths.size
        self._given = {variable.index for variable in paths.inputs}
        self._known = {variable.index: variable for variable in paths.inputs}  # which stand first in every recording

    def take(self, event: Event) -> None:
        """Compare an event with the record, or add it to the new path."""
        if self.branch is not None:
            self.events.append(self._renamed(event))
            return
        segment = self.paths.segments[self._at]
        if self._position < len(segment.equations):
            self._inside(segment.equations[self._position], event)
        elif isinstance(segment.end, Read):
            self._at_read(segment.end, event)
        else:
            self.depart(Departure.EXTRA, None, event)

    def mark(self) -> Any:
        """Return where the function is, for `rewind`."""
        return self.branch, self._at, self._position, len(self.events)

    def rewind(self, mark: Any) -> None:
        """Go back to a mark: nothing else holds values of what came after it."""
        self.branch, self._at, self._position, count = mark
        del self.events[count:]

    def finish(self, result: Result, derivative: str | None) -> Paths:
        """Compare the outputs, or add the new path; return all paths."""
        if self.branch is not None:
            outputs = tuple([self._of(out) for out in result.outputs])
            return self.paths.joined(
                self.branch, self.events, Result(outputs, result.structure), self._size, derivative
            )
        segment = self.paths.segments[self._at]
        if self._position < len(segment.equations):
            self.depart(Departure.STOPS_EARLY, segment.equations[self._position], None)
        if isinstance(segment.end, Read):
            self.depart(Departure.STOPS_EARLY, segment.end, None)
        known = segment.end
        if known.structure != result.structure:
            self.depart(Departure.OUTPUT, known.structure, result.structure)
        for old, new in zip(known.outputs, result.outputs, strict=True):
            if self._operand(old, new) is not None:
                self.depart(Departure.OUTPUT, old, new)
        return self.paths

    # -------------------------------------------------------------- along the record

    def _inside(self, recorded: Equation, event: Event) -> None:
        reason = self._differs(recorded, event)
        if reason is not None:
            self.depart(reason, recorded, event)
        if isinstance(event, Read):  # the same operation has failed this time
            self._leave(Branch(self._at, self._position, self._renamed(event)))
            return
        self._learn(event.outputs, recorded.outputs)
        self._position += 1

    def _at_read(self, recorded: Read, event: Event) -> None:
        reason = self._differs(recorded, event)
        if reason is not None:
            self.depart(reason, recorded, event)
        key = DONE if isinstance(event, Equation) else event.key
        outputs = event.outputs if isinstance(event, Equation) else ()
        child = self.paths.segments[self._at].children.get(key)
        if child is not None:
            self._learn(outputs, self.paths.segments[child].receives)
            self._at, self._position = child, 0
            return
        shown = "done" if isinstance(event, Equation) else event.shown
        read = attrs.evolve(recorded, key=key, shown=shown)
        self._leave(Branch(self._at, self._position, read, tuple(map(self._fresh, outputs))))

    def _leave(self, branch: Branch) -> None:
        if self.paths.count >= self.max_paths:
            raise too_many(self.what, self.paths, branch.at, branch.read, self.max_paths)
        self.branch = branch

    def _differs(self, recorded: Event, event: Event) -> Departure | None:
        """Return how an operation differs from the recorded one, None where it does not."""
        if not same_operator(recorded.op, event.op) or len(recorded.inputs) != len(event.inputs):
            return Departure.OPERATOR
        for old, new in zip(recorded.inputs, event.inputs, strict=True):
            reason = self._operand(old, new)
            if reason is not None:
                return reason
        return None

    def _operand(self, old: Operand, new: Operand) -> Departure | None:
        if isinstance(old, Literal | Constant) and isinstance(new, Literal | Constant):
            if not same_value(old.value, new.value):
                return Departure.CONSTANT
            if isinstance(new, Constant) and isinstance(old, Constant):
                self._known[new.index] = old
            return None
        made = [self._is_made(old), not isinstance(new, Literal) and self._is_made(self._known.get(new.index, new))]
        if made[0] != made[1]:
            return Departure.GIVEN_FOR_MADE if made[0] else Departure.MADE_FOR_GIVEN
        same = isinstance(old, Variable) and isinstance(new, Variable) and self._known.get(new.index) is old
        return None if same else Departure.OPERAND

    def _is_made(self, operand: Operand) -> bool:
        """Whether an operand is the result of an operation."""
        return type(operand) is Variable and operand.index not in self._given

    # -------------------------------------------------------------- the new path, in variables of the tree

    def _learn(self, new: Sequence[Variable], old: Sequence[Variable]) -> None:
        self._known.update(zip([variable.index for variable in new], old, strict=True))

    def _fresh(self, variable: Variable) -> Variable:
        made = self._known[variable.index] = attrs.evolve(variable, index=self._size)
        self._size += 1
        return made

    def _of(self, operand: Operand) -> Operand:
        if isinstance(operand, Literal):
            return operand
        return self._known.get(operand.index) or self._fresh(operand)

    def _renamed(self, event: Any) -> Any:
        inputs = tuple(map(self._of, event.inputs))
        if isinstance(event, Read):
            return attrs.evolve(event, inputs=inputs)
        return attrs.evolve(event, inputs=inputs, outputs=tuple(map(self._fresh, event.outputs)))

    # -------------------------------------------------------------- departures

    def depart(self, reason: Departure, recorded: Any, found: Any) -> NoReturn:
        """Raise `TraceMismatchError` for what differs, with both operations and their lines."""
        msg = (
            f"{self.what} departs from what was recorded: {reason.value}. Recorded: {told(recorded)}; now: "
            f"{told(found)}. Where nothing that it reads of its arguments differs, a traced function must do the same "
            f"at each call: {REMEDIES.get(reason, REMEDY)}"
        )
        site = getattr(found, "site", None) or getattr(recorded, "site", None)
        raise TraceMismatchError(msg, reason=reason, recorded=recorded, found=found, site=site)


def told(event: Any) -> str:
    """Return an operation, an output or a structure as text, with its line."""
    if event is None:
        return "nothing"
    if isinstance(event, Equation | Read):
        name = event.name if isinstance(event, Read) else repr(event.op)
        return f"{name} at {describe(event.site)}"
    return repr(event)


def too_many(what: str, paths: Paths, at: int, read: Read, max_paths: int) -> TooManyPathsError:
    """Make the error for an outcome that would be one path too many."""
    shown = paths.segments[at].shown
    listed = ", ".join(shown if len(shown) <= 8 else (*shown[:7], "..."))
    msg = (
        f"{what}: {max_paths} paths are recorded for arguments of these shapes and dtypes, and {read.name} at "
        f"{describe(read.site)} has another outcome again: {read.shown}, after {listed}. Each outcome of what the "
        "function reads is recorded as a path of its own. Mark a number that Python needs by static_argnums, write "
        "xnp.where(cond, a, b) or xf.cond in place of if and xf.while_loop for a loop whose length depends on values, "
        "return the value and read it outside, read it inside xf.exclude_from_trace(), or give a larger max_paths"
    )
    return TooManyPathsError(msg, function=what, site=read.site, read=read, max_paths=max_paths)


# ------------------------------------------------------------------ operators that hold functions


def same_operator(old: Operator, new: Operator) -> bool:
    """Whether two operators do the same: by value, or, where they hold functions, by what these are made of.

    >>> from xform import ops
    >>> same_operator(ops.Sin(), ops.Sin()), same_operator(ops.Sin(), ops.Cos())
    (True, False)
    """
    return old is new or old == new or same_part(old, new, 12)


def same_part(old: Any, new: Any, depth: int) -> bool:
    """Whether two parts of operators are made alike; layers and values are told apart by their class alone."""
    if old is new or not depth:
        return True
    if type(old) is not type(new):
        return False
    if isinstance(old, Transformation | Value):
        return True
    parts = parts_of(old)
    if parts is None:
        return same_value(old, new)
    others = parts_of(new)
    assert others is not None  # noqa: S101  (the classes are the same)
    return len(parts) == len(others) and all(
        same_part(ours, theirs, depth - 1) for ours, theirs in zip(parts, others, strict=True)
    )


def parts_of(x: Any) -> Sequence[Any] | None:
    """Return what an object is made of, None for one that is compared by value."""
    for kind, parts in PARTS.items():
        if isinstance(x, kind):
            return parts(x)
    if attrs.has(type(x)):
        return [getattr(x, f.name) for f in attrs.fields(type(x)) if f.metadata.get("stored", True)]
    identity: Any = object.__hash__
    if type(x).__hash__ is identity and not callable(x):
        return [*vars(x).values()] if hasattr(x, "__dict__") else ()
    return None


def contents(cell: CellType) -> Sequence[Any]:
    """Return what a variable of a closure holds, nothing for one that is not set yet."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


PARTS: dict[type, Callable[[Any], Sequence[Any]]] = {
    FunctionType: lambda x: (x.__code__, x.__defaults__, x.__kwdefaults__, *(x.__closure__ or ())),
    CellType: contents,
    MethodType: lambda x: (x.__func__, x.__self__),
    functools.partial: lambda x: (x.func, x.args, x.keywords),
    tuple: lambda x: x,
    list: lambda x: x,
    dict: lambda x: [*x.keys(), *x.values()],
    Program: lambda x: (x.equations, x.outputs),
}
