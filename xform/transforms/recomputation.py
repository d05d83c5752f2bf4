"""What a checkpoint computes again in backward, and the walk back through it.

Backward asks for what the derivatives of a journal's operations need, and runs those that give it, each once; no other
is run again.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from xform.core.aval import Aval
from xform.core.operator import Operator
from xform.core.place import Place, place
from xform.core.rules import Bilinear, Linear, Partials
from xform.core.stack import Level, apply, cursor, is_watched
from xform.core.value import Array, Value
from xform.transforms.operands import for_rule, is_bare, taken_in
from xform.transforms.plans import LEAF, OUTPUT, Entry, Plan, plan_of, record
from xform.transforms.regions import Journal, Step, differentiable, kept_of, result_entries, suspended
from xform.transforms.tape import Walk, collect

__all__ = ["nothing", "unrecorded"]


# ------------------------------------------------------------------ what is to be done again


class Task(NamedTuple):
    """A step that is done again.

    `along` are the operands whose derivative is asked for, where its rule may compute the result (`whole`); `results`
    are those of its results that are needed besides. `last` are the values that nothing uses after it.
    """

    step: Step
    along: tuple[int, ...]
    whole: bool
    results: tuple[int, ...]
    last: tuple[int, ...]


class Demand(NamedTuple):
    """What the derivatives of a step ask for: the operands they go along, values of operands, and the result.

    `whole` says that the rule of the operator computes the result itself.
    """

    along: tuple[int, ...]
    values: tuple[int, ...]
    result: bool
    whole: bool


NOTHING = Demand((), (), result=False, whole=False)


class Schedule:
    """The tasks for the derivatives of some values of a journal (`wanted`), and for some values themselves (`needed`).

    What was kept need not be computed. Afterwards `wanted` and `needed` say the same of the inputs.
    """

    def __init__(self, journal: Journal, wanted: Iterable[int], needed: Iterable[int], kept: Iterable[int]) -> None:
        self.journal = journal
        self.wanted = set(wanted)
        self.needed = set(needed)
        self.kept = frozenset(kept)
        self.tasks: list[Task] = []
        used = set(self.needed)
        for step in reversed(journal.steps):
            self._look_at(step, used)
        self.tasks.reverse()

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions of the inputs whose cotangents the outputs give."""
        return tuple([i for i, number in enumerate(self.journal.inputs) if number in self.wanted])

    def _look_at(self, step: Step, used: set[int]) -> None:
        operands, outputs, wanted, needed = step.operands, step.outputs, self.wanted, self.needed
        along, values, result, whole = NOTHING if wanted.isdisjoint(outputs) else self._demand(step)
        wanted.update([operands[i] for i in along])
        needed.update([operands[i] for i in values])
        if result or (whole and self.kept.issuperset(outputs)):  # a rule is told what was kept
            needed.update(outputs)
        results: tuple[int, ...] = ()
        if not (whole or needed.isdisjoint(outputs)):
            results = tuple([number for number in outputs if number in needed and number not in self.kept])
        if results:
            needed.update([operands[i] for i in operands_for(step, results)])
        if along or results:
            touched = {*operands, *outputs}
            self.tasks.append(Task(step, along, whole, results, tuple(touched - used)))
            used |= touched

    def _demand(self, step: Step) -> Demand:
        if isinstance(step.op, Journal):
            inner = Schedule(step.op, self.wanted.intersection(step.outputs), (), ())
            needed = [i for i, number in enumerate(step.op.inputs) if number in inner.needed]
            return Demand(inner.positions, tuple(needed), result=False, whole=False)
        avals, varying = self.journal.avals, self.journal.varying
        tracked = tuple([i for i, number in enumerate(step.operands) if number in varying])
        found = demand_of(plan_of(step.op), step.op.multiple_outputs, tracked, len(step.operands))
        unknown = [i for i, number in enumerate(step.operands) if found.along and None in avals[number].shape]
        return found._replace(values=(*found.values, *unknown)) if unknown else found  # only a value knows its shape


@functools.lru_cache(maxsize=4096)
def demand_of(plan: Plan, several: bool, tracked: tuple[int, ...], count: int) -> Demand:
    """Return what the derivatives of an operator along some of its `count` operands ask for, as `record` keeps it."""
    rule, along = plan.rule, differentiable(plan, tracked)
    if not along:
        return NOTHING
    if several or not isinstance(rule, Partials | Bilinear | Linear):
        return Demand(along, tuple(range(count)), result=False, whole=True)
    if isinstance(rule, Bilinear):
        return Demand(along, tuple([1 - i for i in along]), result=False, whole=False)
    if isinstance(rule, Linear):
        others = [i for i in range(count) if not rule.is_linear(i)]
        return Demand(along, tuple(others), result=False, whole=False)
    names = {name for i in along for name in rule.needs[i]}
    values = [i for i in range(count) if rule.names[i] in names]
    return Demand(along, tuple(values), result="out" in names, whole=False)


def operands_for(step: Step, results: Iterable[int]) -> Iterable[int]:
    """Return which operands some results of a step are computed from."""
    if not isinstance(step.op, Journal):
        return range(len(step.operands))
    needed = Schedule(step.op, (), results, ()).needed
    return [i for i, number in enumerate(step.op.inputs) if number in needed]


# ------------------------------------------------------------------ doing it again


class Recomputation:
    """The values of a journal that are computed again, and the entries of a tape that leads through them."""

    def __init__(self, journal: Journal, inputs: Sequence[Any], kept: dict[int, Any]) -> None:
        self.journal = journal
        self.kept = frozenset(kept)
        self.bare = is_bare(None)
        self.foreign = False  # whether arrays of other libraries than NumPy are among the values
        numbers = (*journal.inputs, *kept)
        self.values = dict(zip(numbers, self._operands([*inputs, *kept.values()]), strict=True))
        self.entries: dict[int, Entry] = {}
        self.sequence = itertools.count().__next__

    @property
    def raw(self) -> bool:
        """Whether all values are raw NumPy arrays."""
        return self.bare and not self.foreign

    def attach(self, positions: Iterable[int]) -> None:
        """Make the inputs at some positions the leaves of the tape."""
        for i in positions:
            self.entries[self.journal.inputs[i]] = (self.sequence(), LEAF, None, None)

    def run(self, tasks: Iterable[Task], keep: dict[int, Any] | None = None) -> None:
        """Do the tasks, at the lines of the forward operations; `keep` takes what the policy of the journal keeps.

        Of floating point errors NumPy has told in the first run.
        """
        start = place.get()
        try:
            with np.errstate(all="ignore"):
                for task in tasks:
                    at = task.step.place
                    if at is not None:
                        at = inside(start, at, self.journal.scopes)
                        place.set(at)
                    outs = dict(zip(task.step.outputs, self._again(task, at), strict=True))
                    if keep is not None:
                        keep.update(kept_of(self.journal.policy, task.step, self._data(task.step), outs))
                    self.values.update({number: out for number, out in outs.items() if number not in self.kept})
                    for number in task.last:
                        self.values.pop(number, None)
        finally:
            place.set(start)

    def _again(self, task: Task, at: Place | None) -> Sequence[Any]:
        """Do one task; return results, or avals in place of those that nobody asks for."""
        step, op, data = task.step, task.step.op, self._data(task.step)
        if isinstance(op, Journal):
            return self._inner(task, op, data, at)
        out: Any = None if task.whole else self.journal.avals[step.outputs[0]]
        if task.results:
            out = apply(op, *data)
        elif self.kept.issuperset(step.outputs):
            kept = tuple([self.values[number] for number in step.outputs])
            out = kept if op.multiple_outputs else kept[0]
        if task.along:
            out = self._recorded(task, data, out, at)
        outs: Sequence[Any] = out if op.multiple_outputs else (out,)
        return [each if isinstance(each, Aval) else taken_in(each, bare=self.bare) for each in outs]

    def _recorded(self, task: Task, data: tuple[Any, ...], out: Any, at: Place | None) -> Any:
        """Make the entries of an operation; `out` is its result where that is known, or stands for it, else None."""
        step, op = task.step, task.step.op
        parents: list[Entry | None] = [None] * len(step.operands)
        for i in task.along:
            parents[i] = self.entries[step.operands[i]]
        here, plan = cursor.get(), plan_of(op)
        if out is not None and (plan.builtin or not task.whole):
            cursor.set(answering(here, op, data, out))
        try:
            out, kept = record(plan, op, data, parents, cursor.get().interpret)
        finally:
            cursor.set(here)
        assert kept is not None  # noqa: S101  (there is a derivative along these operands)
        if op.identity_like:
            self.entries[step.outputs[0]] = kept[-1]
            return out
        entry = (self.sequence(), kept[0], kept[1], at, *kept[2:])
        if not op.multiple_outputs:
            self.entries[step.outputs[0]] = entry
            return out
        for position, number in enumerate(step.outputs):
            self.entries[number] = (self.sequence(), OUTPUT, (position, len(step.outputs)), at, entry)
        return out

    def _inner(self, task: Task, journal: Journal, data: tuple[Any, ...], at: Place | None) -> Sequence[Any]:
        """Do again what an inner region did: its values and its entry, which is a recomputation as well."""
        values: dict[int, Any] = {}
        kept: dict[int, Any] = {}
        if task.results:
            values, kept = unrecorded(journal.label, nothing, evaluated, journal, data, task.results)
        if task.along:
            parents = tuple([self.entries[task.step.operands[i]] for i in task.along])
            rule = pullback_of(journal, list(data), kept, task.along)
            entries = result_entries(self.sequence, journal, rule, parents, at)
            self.entries.update(zip(journal.outputs, entries, strict=True))
        return [values.get(number, journal.avals[number]) for number in journal.outputs]

    def _data(self, step: Step) -> tuple[Any, ...]:
        avals = self.journal.avals
        return self._operands([self.values[n] if n in self.values else avals[n] for n in step.operands])

    def _operands(self, data: Sequence[Any]) -> tuple[Any, ...]:
        """Return operands as a tape gives them to rules; avals stand for what nobody asks for."""
        operands = for_rule(list(data), bare=self.bare)
        self.foreign = self.foreign or any(type(x) is Array for x in operands)
        return operands


def inside(start: Place, forward: Place, outer: tuple[str, ...]) -> Place:
    """Return the place of an operation that is done again: the scopes it was in, within those of now."""
    count = len(outer)
    scopes = forward.scopes[count:] if forward.scopes[:count] == outer else forward.scopes
    return Place((*start.scopes, *scopes), start.phase, forward.site, forward.loop, forward.iteration)


def answering(here: Level, op: Operator, operands: tuple[Any, ...], out: Any) -> Level:
    """Return a level that knows the result of one operation, so that a rule which asks for it does not run it."""

    def answer(other: Operator, values: tuple[Any, ...]) -> Any:
        same = other is op and len(values) == len(operands) and all(map(lambda x, y: x is y, values, operands))
        return out if same else here.interpret(other, values)

    return Level(None, here, answer)


def evaluated(
    journal: Journal, inputs: Sequence[Any], results: tuple[int, ...]
) -> tuple[dict[int, Any], dict[int, Any]]:
    """Return some outputs of a journal, and what its policy keeps, by number."""
    run = Recomputation(journal, inputs, {})
    kept: dict[int, Any] = {}
    run.run(Schedule(journal, (), results, ()).tasks, kept)
    return {number: run.values[number] for number in results}, kept


# ------------------------------------------------------------------ the reverse rule


def reverse(journal: Journal, inputs: list[Any], kept: dict[int, Any]) -> tuple[Callable[..., Any], tuple[int, ...]]:
    """Make the reverse rule of a journal; inputs that no derivative needs are let go."""
    schedule = Schedule(journal, journal.outputs, (), kept)
    held = [
        x if number in schedule.needed else journal.avals[number]
        for x, number in zip(inputs, journal.inputs, strict=True)
    ]
    kept = {number: x for number, x in kept.items() if number in schedule.needed}
    return pullback_of(journal, held, kept, schedule.positions), schedule.positions


def pullback_of(
    journal: Journal, inputs: list[Any], kept: dict[int, Any], positions: tuple[int, ...]
) -> Callable[..., Any]:
    """Return the pullback of a journal; tapes below note it as they note the function."""
    return functools.partial(unrecorded, f"{journal.label}.Backward", nothing, pull, journal, inputs, kept, positions)


def pull(
    journal: Journal,
    inputs: list[Any],
    kept: dict[int, Any],
    positions: tuple[int, ...],
    cotangents: tuple[Any, ...],
) -> tuple[Any, ...]:
    """Return the cotangents of the inputs at some positions: compute again what they need, and walk back."""
    walk = walk_of(journal, inputs, kept, positions, cotangents)
    size = len(walk.entries)
    walk.run(size - 1, len(positions))
    parts = [walk.take(i) if i < size else None for i in range(len(positions))]
    tracked = any(isinstance(t, Value) for t in cotangents)
    return tuple([part.data if type(part) is Array and not tracked else part for part in parts])


def walk_of(
    journal: Journal,
    inputs: list[Any],
    kept: dict[int, Any],
    positions: tuple[int, ...],
    cotangents: tuple[Any, ...],
) -> Walk:
    """Compute again what the walk back from some cotangents needs; the walk alone holds it."""
    asked = {number: t for number, t in zip(journal.outputs, cotangents, strict=True) if t is not None}
    run = Recomputation(journal, inputs, kept)
    run.attach(positions)
    run.run(Schedule(journal, asked, (), kept).tasks)
    walk = Walk(collect([run.entries[number] for number in asked]), raw=run.raw, watched=not run.raw and is_watched())
    for number, t in asked.items():
        walk.seed(run.entries[number][0], taken_in(t, bare=run.raw))
    return walk


def nothing(op: Operator, operands: tuple[Any, ...]) -> bool:
    """Keep nothing."""
    return False


#: calls a function so that tapes compute again, in backward, what they need of it: `(label, policy, fun, *args)`
unrecorded = functools.partial(suspended, reverse)
