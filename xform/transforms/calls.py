"""Calls of compiled programs under layers: each derivative is a program itself, derived once and compiled.

1. With nothing on the stack a call runs compiled. Where every layer has a rule for it (tape, forward, batch) it is one
   operation, `Call`; where one gives a meaning to each operation (an observer, a recorder, a device, a user's layer),
   the program runs operation by operation.
2. The reverse rule derives two programs from one record: forward gives the outputs and what backward reads of it,
   backward takes that and the cotangents. The forward rule runs a program of primals and tangents, the batch rule one
   of all lanes. They are derived on an empty stack, for a pattern of operands each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from xform.core.aval import Aval
from xform.core.backend import HOST_TYPES
from xform.core.operator import Operator
from xform.core.rules import Bilinear, Linear, batch_rule, jvp_rule, vjp_rule
from xform.core.stack import BOTTOM, apply, cursor, levels, on_empty_stack
from xform.core.value import Array
from xform.ops.arithmetic import Add, Div, Mul, Neg, Square
from xform.programs.call import Call
from xform.programs.program import Constant, Literal, Program, Variable, aval_at
from xform.transforms.batch import Batch, vmap
from xform.transforms.forward import Forward, jvp
from xform.transforms.grad import Grad
from xform.transforms.loop_bodies import once
from xform.transforms.recorder import Trace
from xform.transforms.recording import is_inexact
from xform.transforms.transposition import Transposition

__all__ = ["called"]

WITH_RULES = (Grad, Forward, Batch)


def called(call: Call, flat: Sequence[Any]) -> list[Any]:
    """Run a program on flat inputs at this place of the stack; returns its flat outputs."""
    here = cursor.get()
    if not call.is_plain:
        return call.program.run(flat)
    if here is BOTTOM:
        if all(type(each) in HOST_TYPES for each in flat):
            return call.run(flat)
        if any(type(each) not in HOST_TYPES and type(each) is not Array for each in flat):
            return call.program.run(flat)
        return list(apply(call, *flat))
    if all(type(level.layer) in WITH_RULES for level in levels() if level.layer is not None):
        return list(apply(call, *flat))
    return call.program.run(flat)


# ------------------------------------------------------------------ reverse mode


@vjp_rule(Call)
def call_vjp(op: Call, needed: tuple[bool, ...], *primals: Any) -> tuple[Any, Any]:
    """Run the forward program; the pullback runs the backward one."""
    halves = once(op, ("vjp", needed), lambda: on_empty_stack(Halves, op, needed))
    found = called(halves.forward, primals)
    count = len(op.program.outputs)
    saved = (*found[count:], *[primals[position] for position in halves.inputs])
    total = len(primals)

    def call_pullback(cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        absent = tuple([n for n, position in enumerate(halves.seeded) if cotangents[position] is None])
        backward, reached = halves.without(op, absent)
        seeds = [cotangents[position] for position in halves.seeded if cotangents[position] is not None]
        out: list[Any] = [None] * total
        for position, part in zip(reached, called(backward, [*saved, *seeds]), strict=True):
            out[position] = part
        return tuple(out)

    return tuple(found[:count]), call_pullback


class Halves:
    """The two programs of a reverse rule: `forward(*primals)` and `backward(*saved, *inputs, *cotangents)`."""

    def __init__(self, call: Call, needed: tuple[bool, ...]) -> None:
        program = call.program
        with Trace(abstract=True) as recorder:
            primals = [recorder.input(aval) for aval in program.in_avals]
            with Transposition() as tape:
                handles = [tape.attach(x) if need else x for x, need in zip(primals, needed, strict=True)]
                outs = program.run(handles)
                tracked = [position for position, out in enumerate(outs) if tape.is_attached(out)]
                ends = [outs[position] for position in tracked]
                seeds = [recorder.input(program.out_avals[position]) for position in tracked]
                wanted = [x for x, need in zip(handles, needed, strict=True) if need]
                parts = tape.gradients(ends, wanted, seeds) if ends else []
        joint = recorder.program(([*map(tape.unwrap, outs)], [part for part in parts if part is not None]))
        self.seeded = tuple(tracked)
        places = [position for position, need in enumerate(needed) if need] if ends else []
        self.reached = tuple([place for place, part in zip(places, parts, strict=True) if part is not None])
        self._split(call, joint, len(primals))

    def _split(self, call: Call, joint: Program, count: int) -> None:
        primals, seeds = joint.inputs[:count], joint.inputs[count:]
        outs, parts = joint.outputs[: len(call.program.outputs)], joint.outputs[len(call.program.outputs) :]
        late = {seed.index for seed in seeds}
        first, second = [], []
        for equation in joint.equations:
            if any(index_of(each) in late for each in equation.inputs):
                second.append(equation)
                late.update(each.index for each in equation.outputs)
            else:
                first.append(equation)
        operands = [*(each for equation in second for each in equation.inputs), *parts]
        read = {each.index: each for each in operands if type(each) is Variable}
        crossing = [each for index, each in read.items() if index not in late]
        own = {each.index: position for position, each in enumerate(primals)}
        saved = [each for each in crossing if each.index not in own]
        self.inputs = tuple(own[each.index] for each in crossing if each.index in own)
        self.forward = Call(Program(primals, first, (*outs, *saved)), **call.options)
        inputs = (*saved, *[primals[position] for position in self.inputs], *seeds)
        self.backward = Call(Program(inputs, second, parts, derivative="Grad"), **call.options)


    def without(self, call: Call, absent: tuple[int, ...]) -> tuple[Call, tuple[int, ...]]:
        """Return the backward program, and which operands it reaches, without cotangents that are absent.

        An output that nothing uses has no zeros, which would be NaN times what is infinite.
        """
        if not absent:
            return self.backward, self.reached
        key = ("without", self.seeded, self.reached, self.inputs, absent)
        return once(call, key, lambda: on_empty_stack(self._without, call, absent))  # type: ignore[no-any-return]

    def _without(self, call: Call, absent: tuple[int, ...]) -> tuple[Call, tuple[int, ...]]:
        program = self.backward.program
        first = len(program.inputs) - len(self.seeded)
        gone = {program.inputs[first + n].index for n in absent}
        short, left = vanished(program, gone)
        return Call(short, **call.options), tuple([self.reached[n] for n in left])


def vanished(program: Program, zero: set[int]) -> tuple[Program, list[int]]:
    """Return a program without inputs that are zero and what vanishes with them; and which of the outputs are left."""
    inputs = [each for each in program.inputs if each.index not in zero]
    same: dict[int, Variable | Literal] = {}
    equations = []
    size = program.size
    for equation in program.equations:
        operands = [same.get(each.index, each) if type(each) is Variable else each for each in equation.inputs]
        zeros = {n for n, each in enumerate(operands) if index_of(each) in zero}
        if zeros and len(equation.outputs) == 1:
            out = equation.outputs[0]
            other = operands[1 - min(zeros)] if len(operands) == 2 else None
            if vanishes(equation.op, len(operands), zeros):
                zero.add(out.index)
                continue
            if type(equation.op) is Add and aval_at(other) == out.aval:  # type: ignore[arg-type]
                same[out.index] = other  # type: ignore[assignment]
                continue
        for n in zeros:
            aval = operands[n].aval  # type: ignore[union-attr]
            known = None not in aval.shape
            operands[n] = Constant(size, aval, np.zeros(aval.shape, aval.dtype)) if known else Literal(0.0)
            size += 1
        equations.append(attrs.evolve(equation, inputs=tuple(operands)))
    outs = [same.get(each.index, each) if type(each) is Variable else each for each in program.outputs]
    left = [n for n, each in enumerate(outs) if index_of(each) not in zero]
    return Program(inputs, equations, [outs[n] for n in left], derivative=program.derivative), left


def vanishes(op: Operator, count: int, zeros: set[int]) -> bool:
    """Whether the result of an operation is zero where these of its operands are."""
    rule = vjp_rule.rules.get(type(op))
    if isinstance(rule, Linear):
        return all(n in zeros for n in range(count) if rule.is_linear(n))
    return isinstance(rule, Bilinear) or type(op) in (Mul, Neg, Square) or (type(op) is Div and 0 in zeros)


def index_of(each: Variable | Literal) -> int | None:
    """Return where a variable stands in the environment, None for a number and for a constant."""
    return each.index if type(each) is Variable else None


# ------------------------------------------------------------------ forward mode and batches


@jvp_rule(Call)
def call_jvp(op: Call, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """Run a program of the primals and the tangents."""
    moving = tuple(position for position, tangent in enumerate(tangents) if tangent is not None)

    def dual(*flat: Any) -> Any:
        primals, given = list(flat[: len(op.program.inputs)]), flat[len(op.program.inputs) :]

        def varied(*moved: Any) -> tuple[Any, ...]:
            for position, x in zip(moving, moved, strict=True):
                primals[position] = x
            return tuple(op.program.run(primals))

        outs, parts = jvp(varied, [primals[position] for position in moving], given)
        return tuple(outs), tuple(part for out, part in zip(outs, parts, strict=True) if is_inexact(out))

    avals = op.program.in_avals
    derived = derive(op, ("jvp", moving), dual, [*avals, *[avals[position] for position in moving]])
    found = called(derived, [*primals, *[tangents[position] for position in moving]])
    count = len(op.program.outputs)
    parts = iter(found[count:])
    return tuple(found[:count]), tuple([next(parts) if is_inexact(out) else None for out in found[:count]])


@batch_rule(Call)
def call_batch(op: Call, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> tuple[Any, Any]:
    """Run a program of all lanes; what is the same in all of them is computed once, and has no axis."""
    out_axes = once(op, ("lanes", axes), lambda: lane_axes(op.program, axes))

    def lanes(*flat: Any) -> Any:
        every = vmap(lambda *each: tuple(op.program.run(each)), in_axes=axes, out_axes=out_axes, axis_size=size)
        return every(*flat)

    avals = [
        aval if axis is None else Aval((*aval.shape[:axis], size, *aval.shape[axis:]), aval.dtype)
        for aval, axis in zip(op.program.in_avals, axes, strict=True)
    ]
    derived = derive(op, ("batch", size, axes), lanes, avals)
    return tuple(called(derived, values)), out_axes


def lane_axes(program: Program, axes: Sequence[Any]) -> tuple[int | None, ...]:
    """Return for each output 0 where it depends on an input with lanes, None where it is the same in all of them."""
    varying = {index_of(x) for x, axis in zip(program.inputs, axes, strict=True) if axis is not None}
    for equation in program.equations:
        if any(index_of(each) in varying for each in equation.inputs):
            varying.update(each.index for each in equation.outputs)
    return tuple([0 if index_of(out) in varying else None for out in program.outputs])


def derive(op: Call, key: Any, fun: Callable[..., Any], avals: Sequence[Aval]) -> Call:
    """Return the call of a program that is recorded from a function, once for a key."""

    def make() -> Call:
        with Trace(abstract=True) as recorder:
            outputs = fun(*map(recorder.input, avals))
        program = recorder.program(outputs)
        flat = Program(program.inputs, program.equations, program.outputs, derivative=program.derivative)
        return Call(flat, **op.options)

    found: Call = once(op, key, lambda: on_empty_stack(make))
    return found
