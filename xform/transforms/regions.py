"""Regions: stretches of a program of which tapes note the operations, and keep nothing of what they computed.

1. A region stands in the place of a tape, in this context alone: the levels above it are placed anew, and every layer
   sees every operation as without it. Each tape of the stack gets a region of its own.
2. What the region tracks are values of the tape with an entry that leads nowhere yet. At the end those that are still
   alive, whoever holds them (results, what layers above have made of them, closures), get the entry of one
   recomputation. All others have gone, and what they held with them.
3. What an operation takes in and the region did not make is an input of the recomputation, be it an argument or taken
   from around the function.
4. Results that the tape does not track are computed again too, if they are values: they are known by identity. Arrays
   that the tape would give raw (a mask) are lifted until the region ends.
5. A region inside of a region is one step of the outer one.
6. An operation that must not be repeated ends a region, is recorded, and begins another one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn

import numpy as np

from xform import tree
from xform.core.aval import aval_of
from xform.core.errors import LayerError
from xform.core.operator import Operator
from xform.core.place import Place, place
from xform.core.rules import Linear, NoRule, Partials
from xform.core.stack import Level, apply, concrete, cursor, is_watched, levels
from xform.core.value import Array, Value
from xform.layers import lifted
from xform.ops.structural import refuse_tracked
from xform.transforms.grad import Grad
from xform.transforms.operands import for_rule, is_bare
from xform.transforms.plans import CALL, LEAF, OUTPUT, Entry, Plan, plan_of, record
from xform.transforms.recording import GradValue, is_inexact, recording_tape, tracked

__all__ = ["Journal", "Policy", "Reverse", "Step", "differentiable", "result_entries", "suspended"]

_get = cursor.get
_set = cursor.set

#: says of an operation and its operands whether what it gives is to be kept
Policy = Callable[[Operator, tuple[Any, ...]], bool]


class Step(NamedTuple):
    """An operation that was noted (or a `Journal`), the numbers of operands and results, and where it was."""

    op: Operator
    operands: tuple[int, ...]
    outputs: tuple[int, ...]
    place: Place | None  # None where nothing sees it


class Journal(Operator):
    """What a region has noted: how outputs come from inputs, without a value of either.

    It stands in the entry of a tape for the operator, and in the journal of an outer region for one; no layer gets it.
    `varying` are the numbers of values that the tape tracks.
    """

    __slots__ = ("avals", "inputs", "label", "outputs", "policy", "scopes", "steps", "varying")
    multiple_outputs = True

    def __init__(self, region: Region, outputs: tuple[int, ...]) -> None:
        self.label = region.label
        self.policy = region.policy
        self.scopes = region.scopes
        self.outputs = outputs
        self.steps = tuple(region.steps)
        used = {number for step in self.steps for number in step.operands}
        self.inputs = tuple([number for number in region.given if number in used])
        self.avals = {number: aval_of(region.given[number]) for number in self.inputs}
        self.avals.update({number: region.avals[number] for step in self.steps for number in step.outputs})
        self.varying = frozenset([number for number in self.avals if region.varies(number)])

    @property
    def name(self) -> str:
        """The function's name, as profiles and errors show it."""
        return f"checkpoint[{self.label}]"

    def __repr__(self) -> str:
        return self.name


def kept_of(policy: Policy, step: Step, operands: tuple[Any, ...], outs: dict[int, Any]) -> dict[int, Any]:
    """Return what a policy keeps of the results of a step, by number."""
    if isinstance(step.op, Journal) or not policy(step.op, operands):
        return {}
    # the value under its name is the value before
    return outs | {step.operands[0]: outs[step.outputs[0]]} if step.op.identity_like else outs


#: makes the reverse rule of a journal from its inputs and what was kept: `(pullback, positions)`; the pullback takes
#: one cotangent, or None, per output and gives one per input at the positions
Reverse = Callable[[Journal, list[Any], dict[int, Any]], tuple[Callable[..., Any], tuple[int, ...]]]


def differentiable(plan: Plan, operands: Iterable[int]) -> tuple[int, ...]:
    """Return those of the operands along which an operator has a derivative."""
    rule = plan.rule
    if isinstance(rule, NoRule):
        return ()
    if isinstance(rule, Partials):
        return tuple([i for i in operands if rule.functions[i] is not None])
    if isinstance(rule, Linear):
        return tuple([i for i in operands if rule.is_linear(i)])
    return tuple(operands)


def has_rule_of_users(op: Operator) -> bool:
    """Whether the reverse rule of an operator may be another function than the operator."""
    return op.runs_python or not type(op).__module__.startswith("xform.")


class Region:
    """The operations that reach the place of one tape while a function runs."""

    multiple_outputs = False

    def __init__(
        self, tape: Grad, below: Level, outer: Region | None, reverse: Reverse, *, label: str, policy: Policy
    ) -> None:
        self.tape = tape
        self.outer = outer
        self.reverse = reverse
        self.label = label
        self.policy = policy
        self.bare = is_bare(below)
        self.watched = is_watched(below)
        self.scopes = place.get().scopes
        self.ended = False
        self.lifted: dict[int, weakref.ref[Array]] = {}  # what would be raw without the region, by identity
        self.begin()

    def begin(self) -> None:
        """Note from here on."""
        self.steps: list[Step] = []
        self.avals: dict[int, Any] = {}  # of results
        self.given: dict[int, Any] = {}  # inputs, by number
        self.kept: dict[int, Any] = {}  # what the policy keeps, as the layer below knows it
        self.made: dict[int, weakref.ref[GradValue]] = {}  # results that the tape tracks
        self.known: dict[int, tuple[Callable[[], Any], int]] = {}  # other values by identity, and their numbers

    @property
    def name(self) -> str:
        """The function's name, as errors show it."""
        return f"checkpoint[{self.label}]"

    def refuse(self, cotangent: Any) -> NoReturn:
        """Raise for a walk that reaches a value of the region."""
        msg = (
            f"the walk back of {self.tape!r} came into checkpoint of {self.label}, whose operations are not recorded: "
            "attach values, and ask for gradients of this tape, outside of the function; or return the values from it"
        )
        raise LayerError(msg, layer=self.tape)

    def level(self, below: Level) -> Level:
        """Return the level that stands in the place of the tape's."""

        def run(op: Operator, values: tuple[Any, ...]) -> Any:
            if self.ended:
                msg = (
                    f"{op!r} reached checkpoint of {self.label} when it had returned; a function that xf.carry bound "
                    "inside of it must end before it does: wait for the thread, or call xf.carry outside"
                )
                raise LayerError(msg, layer=self.tape, op=op)
            here = _get()
            _set(below)
            try:
                return self.interpret(op, values)
            finally:
                _set(here)

        vars(run)["region"] = self
        return Level(self.tape, below, run)

    def interpret(self, op: Operator, values: tuple[Any, ...]) -> Any:
        """Run the operation below, as the tape would, and note it."""
        tape = self.tape
        own = [i for i, value in enumerate(values) if type(value) is GradValue and value.owner is tape]
        data = list(values)
        for i in own:
            data[i] = values[i].data
        if op.attribute_like and own:
            refuse_tracked(op, values[own[-1]])
        if tape.paused or op.attribute_like or not any(isinstance(value, Value) for value in values):
            return apply(op, *data)
        if op.impure:
            return self.recorded(op, values) if own else apply(op, *values)
        operands = tuple(map(self.number, values))
        if not own:
            raw = all(map(self.is_lifted, [value for value in values if isinstance(value, Value)]))
            return self.noted(op, operands, values, apply(op, *values), varies=False, raw=raw)
        given = for_rule(data, bare=self.bare)
        plan = plan_of(op)
        out = self.by_rule(plan, op, values, given) if has_rule_of_users(op) else apply(op, *given)
        return self.noted(op, operands, given, out, varies=bool(differentiable(plan, own)))

    def by_rule(self, plan: Plan, op: Operator, values: tuple[Any, ...], data: tuple[Any, ...]) -> Any:
        """Run a user's rule: its result, and what it does for the layers below, are not those of the operator."""
        parents = [value.entry if type(value) is GradValue and value.owner is self.tape else None for value in values]
        token = recording_tape.set(self.tape)
        try:
            return record(plan, op, data, parents, _get().interpret)[0]
        finally:
            recording_tape.reset(token)

    def recorded(self, op: Operator, values: tuple[Any, ...]) -> Any:
        """Have an operation recorded, in between what is noted."""
        self.end()
        self.begin()
        self.ended = False
        if self.outer is not None:
            return self.outer.interpret(op, values)
        return self.tape.place_on(_get()).interpret(op, values)

    def noted(
        self,
        op: Operator,
        operands: tuple[int, ...],
        data: tuple[Any, ...],
        out: Any,
        *,
        varies: bool,
        raw: bool = False,
    ) -> Any:
        """Note a step; return its results as the region knows them; `raw` says that they would be raw without it."""
        outs = out if op.multiple_outputs else (out,)
        numbers = tuple([self.tape.sequence() for _ in outs])
        step = Step(op, operands, numbers, place.get().located() if self.watched else None)
        self.steps.append(step)
        self.kept.update(kept_of(self.policy, step, data, dict(zip(numbers, outs, strict=True))))
        outs = tuple([each.data if raw and type(each) is Array else each for each in outs])
        results = tuple([self.result(each, n, varies=varies) for each, n in zip(outs, numbers, strict=True)])
        return results if op.multiple_outputs else results[0]

    def result(self, data: Any, number: int, *, varies: bool) -> Any:
        """Return one result as the region knows it."""
        self.avals[number] = aval_of(data)
        if varies and is_inexact(data):
            value = tracked(self.tape, data, (number, CALL, (self.refuse, (0,), self, None, None), None))
            self.made[number] = weakref.ref(value)
            return value
        if type(data) is np.ndarray:
            data = lifted(data)
            self.lifted[id(data)] = weakref.ref(data)
        if isinstance(data, Value):
            self.known[id(data)] = weakref.ref(data), number
        return data

    def number(self, value: Any) -> int:
        """Return the number of an operand; one that the region did not make is an input."""
        if type(value) is GradValue and value.owner is self.tape:
            number: int = value.entry[0]
            if number not in self.made:
                self.given.setdefault(number, value)
            return number
        at = self.known.get(id(value))
        if at is None or at[0]() is not value:
            at = self.known[id(value)] = (lambda: value), self.tape.sequence()
            self.given[at[1]] = value
        return at[1]

    def is_lifted(self, value: Any) -> bool:
        """Whether a value is an array that would be raw without the region."""
        at = self.lifted.get(id(value))
        return (at is not None and at() is value) or (self.outer is not None and self.outer.is_lifted(value))

    def varies(self, number: int) -> bool:
        """Whether the tape tracks a value."""
        return number in self.made or self.owns(self.given.get(number))

    def owns(self, value: Any) -> bool:
        """Whether the tape tracks what is an input."""
        return type(value) is GradValue and value.owner is self.tape

    # -------------------------------------------------------------- the end

    def end(self) -> None:
        """Give what is still alive the entry of the recomputation, or a place among the values of the outer region."""
        self.ended = True
        alive = {number: value for number, ref in self.made.items() if (value := ref()) is not None}
        if self.outer is not None:
            self.into_outer(self.outer, alive)
        elif alive:
            self.into_tape(alive)

    def into_tape(self, alive: dict[int, GradValue]) -> None:
        """Make the entries of the tape: the recomputation, and one for each value."""
        tape, at = self.tape, place.get().located()
        journal = Journal(self, tuple(alive))
        inputs = [self.given[number] for number in journal.inputs]
        data = [value.data if self.owns(value) else value for value in inputs]
        pullback, positions = self.reverse(journal, data, self.kept)
        parents = tuple([inputs[i].entry for i in positions])
        entries = result_entries(tape.sequence, journal, pullback, parents, at)
        for value, entry in zip(alive.values(), entries, strict=True):
            value.entry = entry
        if tape.guard is not None:
            for value in inputs:
                if not self.owns(value) or value.entry[1] == LEAF:
                    tape.guard.note(concrete(value), journal)

    def into_outer(self, outer: Region, alive: dict[int, GradValue]) -> None:
        """Make one step of the outer region; it knows other values that are alive as well."""
        plain = {
            number: value
            for ref, number in self.known.values()
            if number not in self.given and (value := ref()) is not None
        }
        if not alive and not plain:
            return
        journal = Journal(self, (*alive, *plain))
        operands = tuple([outer.number(self.given[number]) for number in journal.inputs])
        at = place.get().located() if self.watched else None
        outer.steps.append(Step(journal, operands, journal.outputs, at))
        outer.avals.update({number: self.avals[number] for number in journal.outputs})
        outer.made.update({number: weakref.ref(value) for number, value in alive.items()})
        outer.known.update({id(value): (weakref.ref(value), number) for number, value in plain.items()})
        outer.lifted |= self.lifted


def result_entries(
    sequence: Callable[[], int], journal: Journal, pullback: Callable[..., Any], parents: tuple[Entry, ...], at: Any
) -> list[Entry]:
    """Return the entries of a journal's outputs, which have one parent: the recomputation."""
    count = len(journal.outputs)
    residual = (pullback, tuple(range(len(parents))), journal, None, None)
    shared = (sequence(), CALL, residual, at, *parents)
    return [(sequence(), OUTPUT, (position, count), at, shared) for position in range(count)]


# ------------------------------------------------------------------ the stack


def suspended(
    reverse: Reverse, label: str, policy: Policy, fun: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Call a function while the tapes of the current stack note what it does, in place of recording it.

    `reverse` makes the reverse rule of what was noted. After an error too, what is alive is as it should be.
    """
    here = _get()
    top, regions = in_regions(here, reverse, label, policy)
    if not regions:
        return fun(*args, **kwargs)
    _set(top)
    try:
        out = fun(*args, **kwargs)
    finally:
        _set(here)
        tell_observers(here, top)
        for region in regions:
            region.end()
    outermost = [region for region in regions if region.outer is None and region.lifted]
    return tree.map(lambda x: x.data if any(each.is_lifted(x) for each in outermost) else x, out) if outermost else out


def in_regions(top: Level, reverse: Reverse, label: str, policy: Policy) -> tuple[Level, list[Region]]:
    """Return the stack with a region in the place of each tape that records, and the regions, the topmost first."""
    regions: list[Region] = []
    at: Level | None = None
    for level in reversed(levels(top)):
        layer = level.layer
        below = level.below if at is None else at
        assert layer is not None  # noqa: S101  (only the bottom has none)
        assert below is not None  # noqa: S101  (nor has it anything below)
        if isinstance(layer, Grad) and not layer.paused:
            outer = getattr(level.interpret, "region", None)
            regions.insert(0, Region(layer, below, outer, reverse, label=label, policy=policy))
            at = regions[0].level(below)
        elif at is not None:
            at = layer.place_on(at)
    return top if at is None else at, regions


def tell_observers(old: Level, new: Level) -> None:
    """Let observers know at their own places what they saw at those that stood in for them."""
    for before, after in zip(levels(old), levels(new), strict=True):
        seen, found = getattr(before.interpret, "seen", None), getattr(after.interpret, "seen", None)
        if seen is not None and seen is not found and found:
            seen.append(True)
