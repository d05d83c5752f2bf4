"""The reverse rule of loops; of those that keep some of their carries, as a plan says.

1. Forward, such a loop also gives marks, and the number of its rounds. Backward, `Rewind` runs rounds again from the
   marks. A loop whose gradient needs no carries, or whose plan is to keep all, does without.
2. The derivatives of `Rewind`, and its batches, are those of what it stands for: a loop that keeps all carries, and a
   loop over the same rounds in the other order. They take the memory of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import attrs

from xform.core.aval import Aval
from xform.core.rules import batch_rule, jvp_rule, vjp_rule
from xform.core.stack import apply
from xform.ops.create import zeros_like
from xform.programs.holding import quiet
from xform.programs.loop import COUNTER, Loop
from xform.programs.loop_outputs import All, Count, Marks, Path, strong
from xform.programs.loop_rewind import ELSEWHERE, OffsetBy, Rewind
from xform.programs.loop_trim import Trimmed, trimmed
from xform.programs.program import Equation, Program, Variable
from xform.transforms.batch import vmap
from xform.transforms.forward import jvp
from xform.transforms.loop_bodies import once, recorded
from xform.transforms.loop_reverse import (
    ROW,
    Backward,
    Derivation,
    Mask,
    Source,
    begin,
    impure_results,
    is_kept,
    loop_vjp,
    with_cotangents,
)
from xform.transforms.recorder import Trace
from xform.transforms.recording import is_inexact
from xform.transforms.reverse import vjp

__all__ = ["planned_vjp"]


@vjp_rule(Loop)
def planned_vjp(op: Loop, needed: Mask, *operands: Any) -> tuple[Any, Any]:
    """Keep what the plan of the loop says."""
    if op.checkpoint is None:
        return loop_vjp(op, needed, *operands)
    wanted, inexact = needed[: op.carries + op.constants], with_cotangents(op)
    full = once(op, ("rows", wanted, inexact), lambda: RowDerivation(op, wanted, inexact, None).backward())
    if not any(kind == "path" for kind, _ in full.saved):
        return loop_vjp(op, needed, *operands)
    return from_marks(op, wanted, inexact, full, operands)


class Replay(NamedTuple):
    """How rounds are run again: the body, which carries are its states, and where its constants come from."""

    body: Program
    states: tuple[int, ...]
    sources: tuple[Source, ...]


class RowDerivation(Derivation):
    """The derivation of a backward round that is given the carries at its start, and not their histories."""

    def _aval(self, source: Source) -> Aval:
        kind, n = source
        return strong(self.op.carry_avals[n]) if kind == "path" else super()._aval(source)

    def _row(self, given: dict[Source, Any], n: int, at: Any) -> Any:
        return given["path", n]

    def _next_row(self, given: dict[Source, Any], n: int, to: Any) -> Any:
        return None


def from_marks(op: Loop, wanted: Mask, inexact: Mask, full: Backward, operands: Sequence[Any]) -> tuple[Any, Any]:
    """Run the loop with its marks; the pullback goes back from them."""
    replay = once(op, ("replay", full.saved), lambda: replay_of(op, full.saved))
    forward, places = once(op, ("marking", full.saved, op.checkpoint), lambda: marking(op, replay, full))
    made = apply(attrs.evolve(forward, length=op.length), *operands)
    starts, constants, count = op.split(operands)
    rounds = made[-1] if op.condition is not None else count[0] if count else op.length
    known = {source: made[at] for source, at in places.items() if source[0] == "kept"}
    marks = [made[places["mark", n]] for n in replay.states]

    def pullback(cotangents: Sequence[Any]) -> tuple[Any, ...]:
        given = tuple([t is not None and each for t, each in zip(cotangents, inexact, strict=True)])
        key = ("rows", wanted, given, full.saved)
        back: Backward = full
        if given != inexact:
            back = once(op, key, lambda: RowDerivation(op, wanted, given, full.saved).backward())
        if not back.results:
            return (None,) * len(operands)
        everything = known | {("constant", n): x for n, x in enumerate(constants)}
        everything |= {("cotangent", n): t for n, t in enumerate(cotangents)}
        end = 0 if op.reverse else rounds
        everything |= {
            ("begin", k): begin(op, back.carries[k], cotangents, end, starts[back.carries[k]]) for k in begun(back)
        }
        rewind = once(op, ("rewind", *key, op.checkpoint), lambda: rewind_of(op, back, replay))
        first, others = sources_of(back)
        rest = [everything[source] for source in (*first, *others) if source[0] != "path"]
        own = [everything[source] for source in replay.sources]
        outs = apply(rewind, *[starts[n] for n in replay.states], *own, *marks, *rest, rounds)
        found = [outs[n] if made else everything["begin", n] for made, n in back.loop.results]
        at = back.results
        return tuple([found[at[n]] if n in at else None for n in range(len(operands))])

    return tuple(made[: len(op.outputs)]), pullback


def begun(back: Backward) -> set[int]:
    """Return the carries of the backward loop, in front of trimming, whose starts it takes or hands on."""
    numbers = {*back.loop.operands, *[n for made, n in back.loop.results if not made]}
    return {n for n in numbers if n < len(back.carries)}


def sources_of(back: Backward) -> tuple[list[Source], list[Source]]:
    """Return where carries and constants of the trimmed backward loop come from; a carry that stays is a constant."""
    count, carries = len(back.carries), back.loop.loop.carries
    found = [("begin", n) if n < count else back.sources[n - count] for n in back.loop.operands]
    return found[:carries], found[carries:]


# ------------------------------------------------------------------ what is run


def replay_of(op: Loop, saved: frozenset[Source]) -> Replay:
    """Return how rounds are run again for the carries that backward needs; what must run once is read."""
    kept = impure_results(op.body)
    inputs = [Variable(op.body.size + n, Aval((None, *v.aval.shape), v.aval.dtype)) for n, v in enumerate(kept)]
    rows = iter(inputs)
    equations = []
    for equation in quiet(op.body).equations:
        if is_kept(equation):
            equations += [Equation(ROW, (next(rows), op.body.inputs[0]), (out,)) for out in equation.outputs]
        else:
            equations.append(equation)
    body = Program([*op.body.inputs, *inputs], equations, op.body.outputs, derivative=op.body.derivative)
    paths = tuple([Path(n) for kind, n in sorted(saved) if kind == "path"])
    count = op.constants + len(kept)
    loop = attrs.evolve(op, body=body, condition=None, constants=count, outputs=paths, length=0, derived={})
    short = trimmed(loop)
    states = [n for n in short.operands if n < op.carries]
    rest = [n - op.carries for n in short.operands if n >= op.carries]
    sources = [("constant", n) if n < op.constants else ("kept", n - op.constants) for n in rest]
    inner = short.loop.body
    return Replay(inner.evolve(inner.equations, inner.outputs[: len(states)]), tuple(states), tuple(sources))


def marking(op: Loop, replay: Replay, full: Backward) -> tuple[Loop, dict[Source, int]]:
    """Return the loop that also gives marks, what must not be run again, and the number of its rounds."""
    assert op.checkpoint is not None  # noqa: S101  (it is why we are here)
    outputs: list[Any] = list(op.outputs)
    places: dict[Source, int] = {}
    for n in replay.states:
        places["mark", n] = len(outputs)
        outputs.append(Marks(n, op.checkpoint))
    made, values = impure_results(op.body), [*op.body.outputs[op.carries :]]
    for source in sorted({*full.saved, *replay.sources}):
        if source[0] == "kept":
            places[source] = len(outputs)
            outputs.append(All(len(values), shown=False))
            values.append(made[source[1]])
    if op.condition is not None:
        outputs.append(Count())
    body = op.body.evolve(op.body.equations, [*op.body.outputs[: op.carries], *values])
    return attrs.evolve(op, body=body, outputs=tuple(outputs), derived={}), places


def rewind_of(op: Loop, back: Backward, replay: Replay) -> Rewind:
    """Return the operator that meets the rounds in the other order."""
    assert op.checkpoint is not None  # noqa: S101
    short: Trimmed = back.loop
    loop, (_, sources) = short.loop, sources_of(back)
    reads = tuple([replay.states.index(n) if kind == "path" else ELSEWHERE for kind, n in sources])
    states = len(replay.states)
    walk = Loop(
        body=shifted(replay.body),
        condition=None,
        carries=states,
        constants=len(replay.sources) + 1,
        outputs=tuple([Path(n) for n in range(states)]),
        reverse=op.reverse,
        label=op.origin,
    )
    rows = {1 + loop.carries + k for k, number in enumerate(reads) if number != ELSEWHERE}
    inner = attrs.evolve(
        loop, body=shifted(loop.body, rows), constants=loop.constants + 1, checkpoint=None, length=None, derived={}
    )
    return Rewind(walk, inner, reads, loop.outputs, op.checkpoint, op.condition is None)


def shifted(body: Program, rows: frozenset[int] | set[int] = frozenset()) -> Program:
    """Return a body whose last input says where its counter begins; of the inputs `rows`, it reads one of a stack."""
    avals = [Aval((None, *aval.shape), aval.dtype) if n in rows else aval for n, aval in enumerate(body.in_avals)]

    def run(recorder: Trace, inputs: list[Any]) -> list[Any]:
        counter, *rest, base = inputs
        given = [apply(ROW, x, counter) if n in rows else x for n, x in enumerate(rest, 1)]
        return body.run([apply(OffsetBy(), counter, base), *given])

    return recorded(run, [*avals, COUNTER])


# ------------------------------------------------------------------ what it stands for


def apart(op: Rewind, operands: Sequence[Any], flags: Sequence[bool]) -> tuple[list[int], Callable[..., Any]]:
    """Return the numbers of flagged operands but the marks, which follow from the rest, and the function of those."""
    marks = range(op.walk.carries + op.walk.constants - 1, 2 * op.walk.carries + op.walk.constants - 1)
    chosen = [n for n, each in enumerate(flags) if each and n not in marks]

    def run(*given: Any) -> tuple[Any, ...]:
        full = list(operands)
        for n, x in zip(chosen, given, strict=True):
            full[n] = x
        return op.steps(tuple(full))

    return chosen, run


@vjp_rule(Rewind)
def rewind_vjp(op: Rewind, needed: Mask, *operands: Any) -> tuple[Any, Any]:
    """That of what it stands for."""
    wanted, run = apart(op, operands, [each and is_inexact(x) for each, x in zip(needed, operands, strict=True)])
    outs, pull = vjp(run, *[operands[n] for n in wanted])

    def pullback(cotangents: Sequence[Any]) -> tuple[Any, ...]:
        given = tuple([zeros_like(out) if t is None else t for t, out in zip(cotangents, outs, strict=True)])
        found = dict(zip(wanted, pull(given), strict=True))
        return tuple([found.get(n) for n in range(len(operands))])

    return outs, pullback


@jvp_rule(Rewind)
def rewind_jvp(op: Rewind, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """That of what it stands for."""
    wanted, run = apart(op, primals, [t is not None for t in tangents])
    if not wanted:
        return apply(op, *primals), None
    outs, found = jvp(run, [primals[n] for n in wanted], [tangents[n] for n in wanted])
    return outs, found


@batch_rule(Rewind)
def rewind_batch(op: Rewind, size: int, values: tuple[Any, ...], axes: tuple[int | None, ...]) -> tuple[Any, Any]:
    """That of what it stands for."""
    batched, run = apart(op, values, [True] * len(values))
    outs = vmap(run, in_axes=tuple([axes[n] for n in batched]), axis_size=size)(*[values[n] for n in batched])
    return tuple(outs), 0
