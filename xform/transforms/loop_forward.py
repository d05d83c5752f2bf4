"""The forward rule of loops: the same rounds, with tangents beside the carries.

Which carries come to have a tangent is a fixed point. Conditions see the carries alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from xform.core.aval import Aval
from xform.core.rules import jvp_rule
from xform.ops.create import zeros_like
from xform.programs.loop import Loop
from xform.programs.loop_outputs import All, Count, Last, Marks, Part, Path, Total, strong
from xform.programs.loop_trim import Trimmed, trimmed
from xform.programs.program import Program, Variable
from xform.transforms.forward import Forward, dual
from xform.transforms.loop_bodies import active_carries, dependencies, once, recorded
from xform.transforms.recorder import Trace

__all__ = ["loop_jvp"]

Mask = tuple[bool, ...]


@jvp_rule(Loop)
def loop_jvp(op: Loop, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """Run the dual loop."""
    given = tuple([t is not None for t in tangents[: op.carries + op.constants]])
    loop, moving, places = once(op, ("dual", given), lambda: Dual(op, given).loop())
    starts, constants, count = op.split(primals)
    first = [zeros_like(starts[n]) if tangents[n] is None else tangents[n] for n in moving]
    rest = [t for t in tangents[op.carries :] if t is not None]
    outs = loop.run([*starts, *first, *constants, *rest, *count], op.length)
    if all(place is None for place in places):
        return tuple(outs[: len(op.outputs)]), None
    return tuple(outs[: len(op.outputs)]), tuple([None if place is None else outs[place] for place in places])


class Dual:
    """How the loop with tangents is made: body `(counter, carries, tangents of carries, constants, theirs)`."""

    def __init__(self, op: Loop, given: Mask) -> None:
        self.op = op
        depends = once(op, "dependencies", lambda: dependencies(op.body))
        self.constants = [n for n in range(op.constants) if given[op.carries + n]]
        starts = [n for n in range(op.carries) if given[n]]
        self.moving = sorted(active_carries(depends, op.carries, starts, self.constants))
        self.pushed: list[int] = []  # values of the body that have a tangent

    def loop(self) -> tuple[Trimmed, list[int], list[int | None]]:
        """Return the loop, the carries that have tangents, and for each output the place of its tangent."""
        op = self.op
        avals = [
            op.body.in_avals[0],
            *op.carry_avals,
            *[strong(op.carry_avals[n]) for n in self.moving],
            *op.constant_avals,
            *[op.constant_avals[n] for n in self.constants],
        ]
        body = recorded(self._round, avals)
        outputs: list[Any] = list(op.outputs)
        places: list[int | None] = []
        for output in op.outputs:
            tangent = self._tangent(output)
            places.append(None if tangent is None else len(outputs))
            if tangent is not None:
                outputs.append(tangent)
        made = Loop(
            body=body,
            condition=None if op.condition is None else self._condition(op.condition),
            carries=op.carries + len(self.moving),
            constants=op.constants + len(self.constants),
            outputs=tuple(outputs),
            test=op.test,
            reverse=op.reverse,
            max_steps=op.max_steps,
            checkpoint=op.checkpoint,
            label=op.label,
        )
        return trimmed(made), self.moving, places

    def _round(self, recorder: Trace, inputs: list[Any]) -> list[Any]:
        op, count = self.op, self.op.carries
        ends = [1 + count, 1 + count + len(self.moving), 1 + count + len(self.moving) + op.constants]
        carries, pushed, constants, rest = split_at(inputs[1:], [end - 1 for end in ends])
        with Forward() as layer:
            tangents = dict(zip(self.moving, pushed, strict=True))
            xs = [dual(layer, x, tangents[n]) if n in tangents else x for n, x in enumerate(carries)]
            others = dict(zip(self.constants, rest, strict=True))
            ks = [dual(layer, k, others[n]) if n in others else k for n, k in enumerate(constants)]
            outs = op.body.run([inputs[0], *xs, *ks])
        plain = [layer.unwrap(out) for out in outs]
        nexts = [layer.tangent(outs[n]) for n in self.moving]
        self.pushed = [n for n, out in enumerate(outs[count:]) if layer.owns(out)]
        return [*plain[:count], *nexts, *plain[count:], *[layer.tangent(outs[count + n]) for n in self.pushed]]

    def _condition(self, condition: Program) -> Program:
        """Return the condition as a program of the inputs of the dual body."""
        count = 1 + self.op.carries
        new = iter(range(condition.size, condition.size + len(self.moving) + len(self.constants)))

        def unused(avals: Sequence[Aval], numbers: list[int]) -> list[Variable]:
            return [Variable(next(new), avals[n]) for n in numbers]

        inputs = [
            *condition.inputs[:count],
            *unused([strong(aval) for aval in self.op.carry_avals], self.moving),
            *condition.inputs[count:],
            *unused(self.op.constant_avals, self.constants),
        ]
        return Program(inputs, condition.equations, condition.outputs, derivative=condition.derivative)

    def _tangent(self, output: Any) -> Any:
        """Return the output that is the tangent of an output, None where that does not vary."""
        op, values = self.op, len(self.op.value_avals)
        if isinstance(output, Last | Path):
            if output.carry not in self.moving:
                return None
            return attrs.evolve(output, carry=op.carries + self.moving.index(output.carry))
        if isinstance(output, Count | Marks):
            return None
        numbers = {n: values + place for place, n in enumerate(self.pushed)}
        if isinstance(output, All):
            return All(numbers[output.value], output.shown) if output.value in numbers else None
        parts = [Part(numbers[p.value], p.index, p.operands) for p in output.parts if p.value in numbers]
        return Total(tuple(parts), output.aval, output.like) if parts else None


def split_at(values: list[Any], ends: Sequence[int]) -> list[list[Any]]:
    """Return the parts of a list between these ends.

    >>> split_at([1, 2, 3], [0, 2])
    [[], [1, 2], [3]]
    """
    starts = [0, *ends]
    return [values[start:end] for start, end in zip(starts, [*ends, len(values)], strict=True)]
