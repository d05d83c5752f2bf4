"""The reverse rule of loops: the gradient of a loop is a loop that meets the same rounds in the other order.

1. Forward, the loop also gives the histories (`Path`) of those carries that backward needs, and the number of its
   rounds.
2. Backward, the carries are the cotangents of carries. A round reads the carries as they were, computes again what it
   needs of the body, and takes its derivative. What the next carries were is read too, not computed.
3. The cotangent of the last value of a carry is the start, that of a stacked output is read by the counter, that of a
   sum comes in every round. That of a constant is a sum over all rounds; what the body reads of it by an index is added
   there alone.
4. Which carries have cotangents is a fixed point. What nothing flows to has no cotangent, and costs nothing.
5. What must run once (`impure` operators) is not run again: what it gave is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import attrs

from xform.core.aval import Aval
from xform.core.stack import apply
from xform.ops.arithmetic import add
from xform.ops.create import zeros_beside, zeros_like
from xform.ops.index_layout import OPERAND
from xform.ops.indexing import getitem, make_getitem
from xform.programs.holding import quiet
from xform.programs.loop import COUNTER, Loop, Offset
from xform.programs.loop_outputs import All, Count, Last, Marks, Path, Total, strong, values_of
from xform.programs.loop_trim import Trimmed, live_equations, trimmed
from xform.programs.passes.draft import pinned
from xform.programs.program import Equation, Program, Variable
from xform.transforms.loop_bodies import active_carries, dependencies, once, recorded
from xform.transforms.loop_totals import Values
from xform.transforms.recorder import Trace, TraceValue
from xform.transforms.transposition import Transposition

__all__ = ["loop_vjp"]

ROW = make_getitem((OPERAND,))
#: where an operand of the backward loop comes from: what it is, and its number
Source = tuple[str, int]
Mask = tuple[bool, ...]


class Backward(NamedTuple):
    """The backward loop for one set of cotangents."""

    loop: Trimmed
    carries: tuple[int, ...]  # of the forward loop, whose cotangents are carries
    sources: tuple[Source, ...]  # of the constants, in front of trimming
    results: dict[int, int]  # which output is the cotangent of an operand of the forward loop
    saved: frozenset[Source]  # what the forward loop must give

    @property
    def needed(self) -> list[Source]:
        """Where the constants come from that the loop takes."""
        count = len(self.carries)
        return [self.sources[n - count] for n in self.loop.operands if n >= count]


class Forward(NamedTuple):
    """The loop that saves what backward needs: where its outputs are."""

    loop: Loop
    results: tuple[tuple[Source, int], ...]  # of each output of the original loop: what it is, and its place
    saved: dict[Source, int]


def loop_vjp(op: Loop, needed: Mask, *operands: Any) -> tuple[Any, Any]:
    """Run the loop with its histories; the pullback is a loop over the same rounds."""
    wanted = needed[: op.carries + op.constants]
    inexact = with_cotangents(op)
    full = backward_of(op, wanted, inexact, None)
    forward = forward_of(op, full.saved)
    made = apply(forward.loop.of_length(op.length), *operands)
    outs = tuple([without_end(op, made[at]) if kind == "rows" else made[at] for (kind, _), at in forward.results])
    saved = {source: made[at] for source, at in forward.saved.items()}
    starts, constants, count = op.split(operands)
    rounds = [made[-1]] if op.condition is not None else count
    held = {("constant", n): constants[n] for kind, n in full.needed if kind == "constant"} | saved
    likes = {n: starts[n] for n in full.carries}
    total = len(operands)

    def pullback(cotangents: Sequence[Any]) -> tuple[Any, ...]:
        given = tuple([t is not None and each for t, each in zip(cotangents, inexact, strict=True)])
        back = full if given == inexact else backward_of(op, wanted, given, full.saved)
        if not back.results:
            return (None,) * total
        handed_on = [n for made, n in back.loop.results if not made]  # by rounds that leave it as it is
        used = {*back.loop.operands, *handed_on}
        everything = held | {("cotangent", n): t for n, t in enumerate(cotangents)}
        end = 0 if op.reverse else (*rounds, op.length)[0]
        first = [begin(op, n, cotangents, end, likes[n]) if k in used else None for k, n in enumerate(back.carries)]
        rest = [everything[source] if k in used else None for k, source in enumerate(back.sources, len(first))]
        found = back.loop.run([*first, *rest, *rounds], op.length)
        return tuple([found[back.results[n]] if n in back.results else None for n in range(total)])

    return outs, pullback


def with_cotangents(op: Loop) -> Mask:
    """Return which outputs may have cotangents."""
    pairs = zip(op.outputs, op.out_avals, strict=True)
    return tuple([aval.dtype.kind in "fc" and not isinstance(output, Marks) for output, aval in pairs])


def without_end(op: Loop, path: Any) -> Any:
    """Return the values of a carry at the start of each round."""
    return getitem(path, slice(1, None) if op.reverse else slice(None, -1))


def begin(op: Loop, carry: int, cotangents: Sequence[Any], end: Any, like: Any) -> Any:
    """Return the cotangent of a carry after the last round; its last value is the row `end` of its history."""
    total = None
    for output, t in zip(op.outputs, cotangents, strict=True):
        if t is None or not isinstance(output, Last | Path) or output.carry != carry:
            continue
        part = t if isinstance(output, Last) else apply(ROW, t, end)
        total = part if total is None else add(total, part)
    if total is not None:
        return total
    return zeros_beside(next(t for t in cotangents if t is not None), like)  # which reads nothing that was not kept


# ------------------------------------------------------------------ forward


def forward_of(op: Loop, saved: frozenset[Source]) -> Forward:
    """Return the loop that gives, besides its outputs, what is to be saved."""
    found: Forward = once(op, ("saving", saved), lambda: saving(op, saved))
    return found


def saving(op: Loop, saved: frozenset[Source]) -> Forward:
    """Make the loop that saves; a stacked output of a carry is a part of its history."""
    starts = {variable.index: n for n, variable in enumerate(op.body.inputs[1 : 1 + op.carries])}
    values = [*op.body.outputs[op.carries :]]
    stacked = [values[output.value] for output in op.outputs if isinstance(output, All) and output.shown]
    shown = {starts.get(value.index) for value in stacked if isinstance(value, Variable)}
    outputs: list[Any] = [Path(n, n in shown) for kind, n in sorted(saved) if kind == "path"]
    places = {("path", output.carry): at for at, output in enumerate(outputs)}
    made = impure_results(op.body)
    for source in sorted(saved):
        if source[0] == "kept":
            places[source] = len(outputs)
            outputs.append(All(len(values), shown=False))
            values.append(made[source[1]])
    results: list[tuple[Source, int]] = []
    for output in op.outputs:
        value = values[output.value] if isinstance(output, All) else None
        rows = ("path", starts.get(value.index, -1)) if isinstance(value, Variable) else ("path", -1)
        if rows in places:
            results.append((("rows", rows[1]), places[rows]))
        elif isinstance(output, Path) and ("path", output.carry) in places:
            results.append((("path", output.carry), places["path", output.carry]))
        else:
            results.append((("output", len(outputs)), len(outputs)))
            outputs.append(output)
    if op.condition is not None:
        outputs.append(Count())
    body = op.body.evolve(op.body.equations, [*op.body.outputs[: op.carries], *values])
    loop = attrs.evolve(op, body=body, outputs=tuple(outputs), derived={})
    return Forward(loop, tuple(results), places)


def impure_results(body: Program) -> list[Variable]:
    """Return what operators give that must run once."""
    return [out for equation in body.equations if is_kept(equation) for out in equation.outputs]


def is_kept(equation: Equation) -> bool:
    """Whether an operation must run once."""
    return pinned(equation.op) and not equation.op.nests


# ------------------------------------------------------------------ backward


def backward_of(op: Loop, wanted: Mask, given: Mask, saved: frozenset[Source] | None) -> Backward:
    """Return the backward loop; `wanted` operands are to have a cotangent, `given` outputs have one.

    `saved` is what the forward loop has saved, None where that is to be found.
    """
    key = ("backward", wanted, given, saved)
    found: Backward = once(op, key, lambda: Derivation(op, wanted, given, saved).backward())
    return found


class Derivation:
    """How the backward loop is made."""

    def __init__(self, op: Loop, wanted: Mask, given: Mask, saved: frozenset[Source] | None) -> None:
        self.op = op
        self.given = given
        self.saved = saved
        count = op.carries
        depends = once(op, "dependencies", lambda: dependencies(op.body))
        self.wanted = [n for n, each in enumerate(wanted) if each]  # operands of the forward loop
        self.constants = [n - count for n in self.wanted if n >= count]
        active = active_carries(depends, count, [n for n in self.wanted if n < count], self.constants)
        self.carries = sorted(self._with_cotangents(active, depends))
        self.kept = impure_results(op.body)
        self.sources = self._sources()
        self.results: dict[int, int] = {}
        self.nexts: dict[int, Variable] = {}  # of the recomputed next carries, what is read instead
        self.first = self.split = 0  # where the body begins, and where it ends
        self.flows: list[int] = []

    def _with_cotangents(self, active: set[int], depends: Sequence[frozenset[int]]) -> set[int]:
        """Return the carries that have a cotangent in some round, of those that vary."""
        outputs = [output for output, each in zip(self.op.outputs, self.given, strict=True) if each]
        found = {output.carry for output in outputs if isinstance(output, Last | Path)} & active
        reached = set().union(*[depends[self.op.carries + n] for n in values_of(outputs)])
        while True:
            everything = reached.union(*[depends[n] for n in found])
            more = {n for n in active if 1 + n in everything} - found
            if not more:
                return found
            found |= more

    def _sources(self) -> list[Source]:
        op = self.op
        stacked = [
            ("cotangent", n)
            for n, (output, each) in enumerate(zip(op.outputs, self.given, strict=True))
            if each and not isinstance(output, Last)
        ]
        return [
            *[("path", n) for n in range(op.carries)],
            *[("kept", n) for n in range(len(self.kept))],
            *[("constant", n) for n in range(op.constants)],
            *stacked,
        ]

    def _aval(self, source: Source) -> Aval:
        """Return the aval of a constant of the backward loop: it is good for any number of rounds."""
        kind, n = source
        if kind == "constant":
            return self.op.constant_avals[n]
        if kind == "cotangent" and isinstance(self.op.outputs[n], Total):
            return self.op.out_avals[n]
        row = self.op.carry_avals[n] if kind == "path" else self.kept[n].aval if kind == "kept" else None
        if row is None:
            return Aval((None, *self.op.out_avals[n].shape[1:]), self.op.out_avals[n].dtype)
        return Aval((None, *row.shape), row.dtype)

    def backward(self) -> Backward:
        """Make the backward loop."""
        avals = [COUNTER, *[strong(self.op.carry_avals[n]) for n in self.carries], *map(self._aval, self.sources)]
        program = recorded(self._round, avals)
        equations, found = self._without_recomputed(program)
        count = len(self.carries)
        values = Values(equations, found)
        numbers = {variable.index: n for n, variable in enumerate(program.inputs[1 + count :])}
        outputs: list[Any] = []
        for n in self.wanted:
            if n in self.carries:
                self.results[n] = len(outputs)
                outputs.append(Last(self.carries.index(n)))
        for n, out in zip(self.flows, found[count:], strict=True):
            self.results[self.op.carries + n] = len(outputs)
            outputs.append(values.total(out, numbers))
        outs = [*found[:count], *values.outs]
        loop = Loop(
            body=program.evolve(live_equations(equations, outs)[0], outs),
            condition=None,
            carries=count,
            constants=len(self.sources),
            outputs=tuple(outputs),
            reverse=not self.op.reverse,
            checkpoint=self.op.checkpoint,
            label=f"{self.op.label}.Backward",
        )
        short = trimmed(loop)
        used = {self.sources[n - count] for n in short.operands if n >= count}
        saved = frozenset(source for source in used if source[0] in ("path", "kept"))
        return Backward(short, tuple(self.carries), tuple(self.sources), self.results, saved)

    def _round(self, recorder: Trace, inputs: list[Any]) -> list[Any]:
        """Take one round back: from cotangents of the next carries to those of the carries and the constants."""
        op = self.op
        counter, *rest = inputs
        cotangents = dict(zip(self.carries, rest, strict=False))
        given = dict(zip(self.sources, rest[len(self.carries) :], strict=True))
        after = apply(Offset(1), counter)
        at, to = (after, counter) if op.reverse else (counter, after)
        rows = [self._row(given, n, at) for n in range(op.carries)]
        self.reads = [self._next_row(given, n, to) for n in range(op.carries)]
        self.kept_reads = [apply(ROW, given["kept", n], counter) for n in range(len(self.kept))]
        self.first = len(recorder.equations)
        with Transposition() as tape:
            xs = [tape.attach(row) if n in cotangents else row for n, row in enumerate(rows)]
            constants = [given["constant", n] for n in range(op.constants)]
            ks = [tape.attach(k) if n in self.constants else k for n, k in enumerate(constants)]
            outs = quiet(op.body).run([counter, *xs, *ks])
        self.split = len(recorder.equations)
        self._note_nexts([tape.unwrap(out) for out in outs[: op.carries]])
        ys = [outs[n] for n in self.carries]
        dys = [cotangents[n] for n in self.carries]
        values = outs[op.carries :]
        for n, t in self._value_cotangents(given, counter, [tape.unwrap(value) for value in values]):
            ys.append(values[n])
            dys.append(t)
        handles = [xs[n] for n in self.carries] + [ks[n] for n in self.constants]
        found = tape.gradients(ys, handles, dys)
        parts = dict(zip(self.carries, found, strict=False))
        for n, t in self._path_cotangents(given, at):
            if n in parts:
                parts[n] = t if parts[n] is None else add(parts[n], t)
        flows = dict(zip(self.constants, found[len(self.carries) :], strict=True))
        self.flows = [n for n, t in flows.items() if t is not None]
        back = [zeros_like(cotangents[n]) if parts[n] is None else parts[n] for n in self.carries]
        return [*back, *[flows[n] for n in self.flows]]

    def _row(self, given: dict[Source, Any], n: int, at: Any) -> Any:
        """Return a carry at the start of the round."""
        return apply(ROW, given["path", n], at)

    def _next_row(self, given: dict[Source, Any], n: int, to: Any) -> Any:
        """Return what a carry was after the round, None where that is not known."""
        return apply(ROW, given["path", n], to)

    def _note_nexts(self, outs: Sequence[Any]) -> None:
        for n, (out, read) in enumerate(zip(outs, self.reads, strict=True)):
            known = read is not None and (self.saved is None or ("path", n) in self.saved)
            if known and isinstance(out, TraceValue):
                self.nexts.setdefault(out.variable.index, read.variable)

    def _value_cotangents(
        self, given: dict[Source, Any], counter: Any, values: Sequence[Any]
    ) -> list[tuple[int, Any]]:
        """Return the cotangents of the body's values in one round, with their numbers."""
        found = []
        for n, output in enumerate(self.op.outputs):
            t = given.get(("cotangent", n))
            if t is None or isinstance(output, Path):
                continue
            if isinstance(output, All):
                found.append((output.value, apply(ROW, t, counter)))
                continue
            for part in output.parts:  # type: ignore[union-attr]
                operands = [values[number] for number in part.operands]
                each = t if part.index is None else apply(make_getitem(part.index), t, *operands)
                found.append((part.value, each))
        return found

    def _path_cotangents(self, given: dict[Source, Any], at: Any) -> list[tuple[int, Any]]:
        """Return the cotangents that histories give to the carries at the start of a round."""
        return [
            (output.carry, apply(ROW, given["cotangent", n], at))
            for n, output in enumerate(self.op.outputs)
            if isinstance(output, Path) and ("cotangent", n) in given
        ]

    def _without_recomputed(self, program: Program) -> tuple[list[Equation], list[Any]]:
        """Return equations and outputs of a round that reads what was kept, and next carries, and computes the rest."""
        again, back = program.equations[: self.split], program.equations[self.split :]
        kept = iter(self.kept_reads)
        replaced: dict[int, Variable] = {}
        for equation in again[self.first :]:
            for out in equation.outputs:
                if is_kept(equation):
                    replaced[out.index] = next(kept).variable
                elif out.index in self.nexts:
                    replaced[out.index] = self.nexts[out.index]
        forward = [with_operands(equation, replaced) for equation in again if not is_kept(equation)]
        backward = [with_operands(equation, replaced) for equation in back]
        outs = [replaced.get(out.index, out) if isinstance(out, Variable) else out for out in program.outputs]
        equations, used = live_equations(backward, outs)
        again_live = live_equations(forward, [Variable(index, COUNTER) for index in used], pin=False)[0]
        return [*again_live, *equations], outs


def with_operands(equation: Equation, replaced: dict[int, Variable]) -> Equation:
    """Return an equation with other operands."""
    if not any(isinstance(each, Variable) and each.index in replaced for each in equation.inputs):
        return equation
    inputs = [replaced.get(each.index, each) if isinstance(each, Variable) else each for each in equation.inputs]
    return attrs.evolve(equation, inputs=tuple(inputs))

