"""The rules of switches: their derivatives and batches are switches again.

1. Backward, a switch of the same index computes again what it needs of the branch taken, and takes its derivative. What
   must run once (`impure` operators) is not run again: what it gave is kept.
2. Forward, each branch carries tangents along.
3. In a batch whose lanes all take one branch, that branch runs on all lanes. Where lanes differ, each branch that some
   lane takes runs on all of them, and results are chosen. To a lane that does not take it, a branch is shown the
   operands of one that does, so that it never sees what it is not meant for; no derivative flows from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from xform.core.aval import Aval, aval_of
from xform.core.rules import batch_rule, jvp_rule, vjp_rule
from xform.core.stack import apply
from xform.ops.broadcast import astype, broadcast_to
from xform.ops.comparisons import equal, logical_and
from xform.ops.create import zeros, zeros_beside
from xform.ops.reductions import any as any_true
from xform.ops.selection import clip, where
from xform.ops.shapes import front, reshape
from xform.ops.stand_ins import stand_in
from xform.programs.branches import Switch
from xform.programs.holding import quiet
from xform.programs.loop_outputs import strong
from xform.programs.loop_trim import live_equations
from xform.programs.passes.draft import pinned
from xform.programs.program import Constant, Equation, Program, Variable
from xform.transforms.batch import Batch, batched
from xform.transforms.forward import Forward, LinearTrace, dual
from xform.transforms.loop_bodies import dependencies, once, recorded
from xform.transforms.loop_reverse import with_operands
from xform.transforms.recorder import Trace
from xform.transforms.transposition import Transposition

__all__ = ["switch_batch", "switch_jvp", "switch_vjp"]

Mask = tuple[bool, ...]
Numbers = tuple[int, ...]
Axes = tuple[int | None, ...]


def reached(op: Switch, moving: Sequence[int]) -> Numbers:
    """Return the outputs that vary, in some branch, where these operands do."""
    depends = once(op, "dependencies", lambda: [dependencies(branch) for branch in op.branches])
    along = [frozenset().union(*column) for column in zip(*depends, strict=True)]
    return tuple([n for n, each in enumerate(along) if not each.isdisjoint(moving)])


# ------------------------------------------------------------------ reverse mode


class Backward(NamedTuple):
    """The switch that gives cotangents: which operands of the old one it takes, which outputs have cotangents."""

    switch: Switch
    operands: tuple[int, ...]
    seeds: tuple[int, ...]
    results: tuple[int, ...]  # the operands whose cotangents it gives


@vjp_rule(Switch)
def switch_vjp(op: Switch, needed: Mask, index: Any, *operands: Any) -> tuple[Any, Any]:
    """Run the switch; the pullback is a switch of the same index."""
    varies = [each and aval.dtype.kind in "fc" for each, aval in zip(needed[1:], op.in_avals, strict=True)]
    wanted = tuple([n for n, each in enumerate(varies) if each])
    outputs = reached(op, wanted)
    forward = once(op, "forward", lambda: saving(op))
    full = once(op, ("backward", wanted, outputs), lambda: backward_of(op, wanted, outputs))
    made = apply(forward, index, *operands)
    count = len(op.out_avals)
    everything = [*operands, *made[count:]]
    sized = [n for n in wanted if None in op.in_avals[n].shape]  # zeros are made like them
    held = {n: everything[n] for n in {*full.operands, *sized}}

    def pullback(cotangents: Sequence[Any]) -> tuple[Any, ...]:
        given = tuple([n for n in outputs if cotangents[n] is not None])
        back = once(op, ("backward", wanted, given), lambda: backward_of(op, wanted, given))
        parts: list[Any] = [None] * (1 + len(operands))
        if back.results:
            seeds = [cotangents[n] for n in back.seeds]
            found = apply(back.switch, index, *[held[n] for n in back.operands], *seeds)
            for n, part in zip(back.results, found, strict=True):
                parts[1 + n] = part
        return tuple(parts)

    return tuple(made[:count]), pullback


def impure_results(branch: Program) -> list[Variable]:
    """Return what operators give that must run once."""
    return [out for equation in branch.equations if is_kept(equation) for out in equation.outputs]


def is_kept(equation: Equation) -> bool:
    """Whether an operation must run once."""
    return pinned(equation.op) and not equation.op.nests


def saving(op: Switch) -> Switch:
    """Return the switch that also gives what must not be computed again: each branch its own, and zeros for others."""
    kept = [impure_results(branch) for branch in op.branches]
    if not any(kept):
        return op
    branches = []
    for number, branch in enumerate(op.branches):
        rest: list[Any] = []
        for other, variables in enumerate(kept):
            rest += variables if other == number else map(nothing, variables)
        branches.append(renumbered(branch, rest))
    return Switch(tuple(branches), op.label)


def renumbered(branch: Program, more: Sequence[Any]) -> Program:
    """Return a branch with more outputs; constants among them get slots of their own."""
    made: list[Any] = []
    for n, each in enumerate(more):
        made.append(Constant(branch.size + n, each.aval, each.value) if isinstance(each, Constant) else each)
    return branch.evolve(branch.equations, [*branch.outputs, *made])


def nothing(variable: Variable) -> Constant:
    """Return zeros that stand for a value of another branch."""
    aval = variable.aval
    return Constant(-1, strong(aval), zeros([length or 0 for length in aval.shape], aval.dtype))


def backward_of(op: Switch, wanted: Numbers, given: Numbers) -> Backward:
    """Return the switch that gives the cotangents of wanted operands from those of given outputs."""
    kept = [len(impure_results(branch)) for branch in op.branches]
    saved = [strong(v.aval) for branch in op.branches for v in impure_results(branch)]
    avals = [*op.in_avals, *saved, *[strong(op.out_avals[n]) for n in given]]
    flows: set[int] = set()
    programs = []
    for number, branch in enumerate(op.branches):
        begin = len(op.in_avals) + sum(kept[:number])
        back = Pullback(quiet(branch), wanted, given, flows)
        program = recorded(back, avals)
        programs.append(without_repeats(program, back.split, program.inputs[begin : begin + kept[number]]))
    results = [n for n in wanted if n in flows]
    chosen = [wanted.index(n) for n in results]
    short, used = reduced([each.evolve(each.equations, [each.outputs[k] for k in chosen]) for each in programs])
    first = len(avals) - len(given)
    return Backward(
        Switch(short, f"{op.label}.Backward"),
        tuple([n for n in used if n < first]),
        tuple([given[n - first] for n in used if n >= first]),
        tuple(results),
    )


class Pullback:
    """The pullback of one branch, to be recorded: `flows` is told which operands something flows to."""

    def __init__(self, branch: Program, wanted: Numbers, given: Numbers, flows: set[int]) -> None:
        self.branch = branch
        self.wanted = wanted
        self.given = given
        self.flows = flows
        self.split = 0  # how many operations compute the branch again

    def __call__(self, recorder: Trace, inputs: list[Any]) -> list[Any]:
        """Return the cotangents of all wanted operands: zeros where nothing flows."""
        wanted = self.wanted
        xs = inputs[: len(self.branch.inputs)]
        with Transposition() as tape:
            handles = [tape.attach(x) if n in wanted else x for n, x in enumerate(xs)]
            outs = self.branch.run(handles)
        self.split = len(recorder.equations)
        seeds = inputs[len(inputs) - len(self.given) :]
        parts = tape.gradients([outs[n] for n in self.given], [handles[n] for n in wanted], seeds)
        self.flows.update([n for n, part in zip(wanted, parts, strict=True) if part is not None])
        return [
            zeros_beside((*seeds, xs[n])[0], xs[n]) if part is None else part
            for n, part in zip(wanted, parts, strict=True)
        ]


def without_repeats(program: Program, split: int, kept: Sequence[Variable]) -> Program:
    """Return a program that takes, among the operations before `split`, what must run once from `kept`."""
    again, back = program.equations[:split], program.equations[split:]
    made = [out for equation in again if is_kept(equation) for out in equation.outputs]
    replaced = {out.index: variable for out, variable in zip(made, kept, strict=True)}
    equations = [with_operands(each, replaced) for each in (*[e for e in again if not is_kept(e)], *back)]
    outs = [replaced.get(out.index, out) if isinstance(out, Variable) else out for out in program.outputs]
    return program.evolve(equations, outs)


def reduced(programs: Sequence[Program]) -> tuple[tuple[Program, ...], list[int]]:
    """Return programs of the same inputs without what none of them needs, and which inputs are left."""
    live = [live_equations(program.equations, program.outputs) for program in programs]
    used = [
        n
        for n in range(len(programs[0].inputs))
        if any(program.inputs[n].index in names for program, (_, names) in zip(programs, live, strict=True))
    ]
    short = [
        Program([program.inputs[n] for n in used], equations, program.outputs, derivative=program.derivative)
        for program, (equations, _) in zip(programs, live, strict=True)
    ]
    return tuple(short), used


# ------------------------------------------------------------------ forward mode


@jvp_rule(Switch)
def switch_jvp(op: Switch, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """Run the switch with tangents; where tangents alone are recorded (`linearize`), one switch for them."""
    index, *xs = primals
    moving = tuple([n for n, t in enumerate(tangents[1:]) if t is not None])
    outputs = reached(op, moving)
    if not outputs:
        return apply(op, *primals), None
    given = [tangents[1 + n] for n in moving]
    apart = any(isinstance(getattr(t, "owner", None), LinearTrace) for t in given)
    switch, used = once(op, ("dual", moving, outputs, apart), lambda: dual_of(op, moving, outputs, apart=apart))
    operands = [*xs, *given]
    found = apply(switch, index, *[operands[n] for n in used])
    count = len(op.out_avals)
    outs = apply(op, *primals) if apart else found[:count]
    pushed = dict(zip(outputs, found if apart else found[count:], strict=True))
    return tuple(outs), tuple([pushed.get(n) for n in range(count)])


def dual_of(op: Switch, moving: Numbers, outputs: Numbers, *, apart: bool) -> tuple[Switch, list[int]]:
    """Return the switch that gives outputs (unless these are taken `apart`) and tangents, and the operands it takes."""
    avals = [*op.in_avals, *[strong(op.in_avals[n]) for n in moving]]
    count = len(op.in_avals)
    programs = []
    for branch in op.branches:

        def push(recorder: Trace, inputs: list[Any], branch: Program = branch) -> list[Any]:
            with Forward() as layer:
                xs = list(inputs[:count])
                for n, t in zip(moving, inputs[count:], strict=True):
                    xs[n] = dual(layer, xs[n], t)
                outs = (quiet(branch) if apart else branch).run(xs)
            plain = [] if apart else [layer.unwrap(out) for out in outs]
            return [*plain, *[layer.tangent(outs[n]) for n in outputs]]

        programs.append(recorded(push, avals))
    short, used = reduced(programs)
    return Switch(short, op.label), used


# ------------------------------------------------------------------ batches


@batch_rule(Switch)
def switch_batch(op: Switch, size: int, values: tuple[Any, ...], axes: Axes) -> tuple[Any, Any]:
    """Run the branch on all lanes; where lanes take different ones, each that some lane takes, and choose."""
    (index, *operands), (axis, *places) = values, axes
    if axis is None or len(op.branches) == 1:
        switch, along = once(op, ("lanes", size, tuple(places)), lambda: lanes_of(op, size, tuple(places)))
        outs = apply(switch, 0 if axis is not None else index, *operands)
        return tuple(outs), tuple([0 if n in along else None for n in range(len(outs))])
    numbers = clip(astype(index, np.int64), 0, len(op.branches) - 1)
    chosen: list[Any] = []
    for number in range(len(op.branches)):
        taken = equal(numbers, number)
        shown = [x if at is None else shown_to(taken, front(x, at)) for x, at in zip(operands, places, strict=True)]
        inner = tuple([None if at is None else 0 for at in places])
        guarded = once(op, ("some lanes", size, inner, number), partial(some_lanes, op, number, size, inner))
        outs = apply(guarded, any_true(taken), taken, *shown)
        chosen = [chosen_of(taken, out, other) for out, other in zip(outs, chosen or outs, strict=True)]
    return tuple(chosen), 0


def beside(lanes: Any, like: Any) -> Any:
    """Return one truth value per lane, with as many axes as a batch has."""
    return reshape(lanes, (-1, *[1] * (len(aval_of(like).shape) - 1)))


def shown_to(taken: Any, x: Any) -> Any:
    """Return a batch in which lanes that do not take a branch hold what one that does holds."""
    return stand_in(beside(taken, x), x)


def chosen_of(taken: Any, out: Any, other: Any) -> Any:
    """Return a result in the lanes that take its branch, and another one elsewhere."""
    return other if other is out else where(beside(taken, out), out, other)


def lanes_of(op: Switch, size: int, axes: Axes) -> tuple[Switch, frozenset[int]]:
    """Return the switch of all lanes, and which outputs have them, along axis 0: those that do in some branch."""
    found = [lane_program(branch, size, axes, None) for branch in op.branches]
    along = frozenset().union(*[own for _, own in found])
    programs = [
        program if own == along else lane_program(branch, size, axes, along)[0]
        for branch, (program, own) in zip(op.branches, found, strict=True)
    ]
    return Switch(tuple(programs), op.label), along


def lane_program(
    branch: Program, size: int, axes: Axes, along: frozenset[int] | None
) -> tuple[Program, frozenset[int]]:
    """Return the program of all lanes; `along` are the outputs that have them (None: those that differ in lanes)."""
    avals = [
        aval if axis is None else Aval((*aval.shape[:axis], size, *aval.shape[axis:]), aval.dtype)
        for aval, axis in zip(branch.in_avals, axes, strict=True)
    ]
    differ: set[int] = set() if along is None else set(along)

    def run(recorder: Trace, inputs: list[Any]) -> list[Any]:
        with Batch(size) as layer:
            xs = [x if axis is None else batched(layer, x, axis) for x, axis in zip(inputs, axes, strict=True)]
            outs = branch.run(xs)
            if along is None:
                differ.update([n for n, out in enumerate(outs) if layer.owns(out)])
        return [layer.lowered(out) if n in differ else out for n, out in enumerate(outs)]

    return recorded(run, avals), frozenset(differ)


def some_lanes(op: Switch, number: int, size: int, axes: Axes) -> Switch:
    """Return the switch that runs a branch on all lanes if some lane takes it; its first operand says which do."""
    branch = op.branches[number]
    everything = frozenset(range(len(branch.outputs)))
    lanes = lane_program(branch, size, axes, everything)[0]
    avals = [Aval((size,), np.dtype(bool)), *lanes.in_avals]
    run = recorded(lambda recorder, inputs: lanes.run(inputs[1:]), avals)
    if any(None in aval.shape for aval in lanes.out_avals):  # nobody knows how many zeros
        return Switch((run,), op.label)
    outs = [strong(aval) for aval in lanes.out_avals]
    idle = recorded(lambda recorder, inputs: [no_result(inputs[0], aval) for aval in outs], avals)
    return Switch((idle, run), op.label)


def no_result(lanes: Any, aval: Aval) -> Any:
    """Return zeros of an aval on the device of truth values."""
    zero = astype(logical_and(lanes, False), aval.dtype)
    return broadcast_to(reshape(zero, (-1, *[1] * (len(aval.shape) - 1))), aval.shape)
