"""A loop without what nobody needs: carries, constants, values and operations that no output depends on.

1. A carry is needed where an output or the condition needs it, or the next value of a needed one: a fixed point.
2. A carry that the body hands on unchanged is a constant; after the last round it is what it was at the start.
3. What must run (`impure` operators) runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import attrs

from xform.core.stack import apply
from xform.programs.loop_outputs import All, Last, Marks, Part, Path, Total, values_of
from xform.programs.passes.draft import pinned
from xform.programs.program import Equation, Literal, Program, Variable

__all__ = ["Trimmed", "live_equations", "pruned", "trimmed"]


class Trimmed(NamedTuple):
    """A loop, which operands of the old one it takes, and where the old outputs are found.

    `results` has, for each old output, `(True, number)` of a new output, or `(False, number)` of an old operand.
    """

    loop: Any
    operands: tuple[int, ...]
    results: tuple[tuple[bool, int], ...]

    def run(self, operands: Sequence[Any], length: int | None = None) -> list[Any]:
        """Send the loop to the stack; operands and results are those of the old loop.

        `length` is the number of rounds, where it is known and no operand.
        """
        loop = self.loop if length is None else self.loop.of_length(length)
        given = [operands[number] for number in self.operands]
        if loop.counts:
            given.append(operands[-1])
        outs = apply(loop, *given) if loop.outputs or loop.impure else ()
        return [outs[number] if made else operands[number] for made, number in self.results]


def live_equations(
    equations: Sequence[Equation], outputs: Iterable[Any], *, pin: bool = True
) -> tuple[list[Equation], set[int]]:
    """Return the equations that outputs depend on (with `pin`, and those that must run), and the variables they use."""
    live = {out.index for out in outputs if not isinstance(out, Literal)}
    kept = []
    for equation in reversed(equations):
        if (pin and pinned(equation.op)) or any(out.index in live for out in equation.outputs):
            kept.append(equation)
            live.update([each.index for each in equation.inputs if not isinstance(each, Literal)])
    return kept[::-1], live


def needed_carries(loop: Any) -> set[int]:
    """Return the carries that outputs, the condition, or what must run depend on."""
    body = loop.body
    carries, values = body.outputs[: loop.carries], body.outputs[loop.carries :]
    numbers = {variable.index: n for n, variable in enumerate(body.inputs[1 : 1 + loop.carries])}
    found = {output.carry for output in loop.outputs if isinstance(output, Last | Path | Marks)}
    wanted: list[Any] = [values[n] for n in values_of(loop.outputs)]
    if loop.condition is not None:
        used = live_equations(loop.condition.equations, loop.condition.outputs)[1]
        found |= {n for n, variable in enumerate(loop.condition.inputs[1 : 1 + loop.carries]) if variable.index in used}
    while True:
        used = live_equations(body.equations, [*wanted, *[carries[n] for n in found]])[1]
        more = {numbers[index] for index in used if index in numbers} - found
        if not more:
            return found
        found |= more


def trimmed(loop: Any) -> Trimmed:
    """Return a loop without what none of its outputs needs, and how its operands and outputs belong to the old ones."""
    body, count = loop.body, loop.carries
    starts, constants = body.inputs[1 : 1 + count], body.inputs[1 + count :]
    needed = needed_carries(loop)
    paths = {output.carry for output in loop.outputs if isinstance(output, Path | Marks)}
    fixed = {n for n in needed if body.outputs[n] is starts[n] and n not in paths}
    carries = sorted(needed - fixed)
    kept_values = sorted(values_of(loop.outputs))
    outs = [*[body.outputs[n] for n in carries], *[body.outputs[count + n] for n in kept_values]]
    equations, used = live_equations(body.equations, outs)
    if loop.condition is not None:
        places = {v.index: k for k, v in enumerate(loop.condition.inputs)}
        asks, asked = live_equations(loop.condition.equations, loop.condition.outputs)
        used = used | {body.inputs[places[index]].index for index in asked if index in places}
    likes = {output.like for output in loop.outputs if isinstance(output, Total) and output.like is not None}
    given = [1 + n for n in sorted(fixed) if starts[n].index in used]
    given += [1 + count + n for n, variable in enumerate(constants) if variable.index in used or n in likes]
    order = [0, *[1 + n for n in carries], *given]
    if order == list(range(len(body.inputs))) and len(outs) == len(body.outputs):
        return Trimmed(loop, tuple(range(len(order) - 1)), tuple([(True, n) for n in range(len(loop.outputs))]))
    renumbered = {
        "carries": {n: new for new, n in enumerate(carries)},
        "values": {n: new for new, n in enumerate(kept_values)},
        "constants": {place - 1 - count: new for new, place in enumerate(given)},
    }
    made: list[Any] = []
    results = []
    for output in loop.outputs:
        if isinstance(output, Last) and output.carry in fixed:
            results.append((False, output.carry))
        else:
            results.append((True, len(made)))
            made.append(moved(output, **renumbered))
    short = attrs.evolve(
        loop,
        body=reduced(body, order, equations, outs),
        condition=None if loop.condition is None else reduced(loop.condition, order, asks, loop.condition.outputs),
        carries=len(carries),
        constants=len(given),
        outputs=tuple(made),
        derived={},
    )
    return Trimmed(short, tuple([place - 1 for place in order[1:]]), tuple(results))


def pruned(loop: Any, used: Sequence[bool]) -> tuple[Any, tuple[int, ...]] | None:
    """Return a loop of some of the outputs, and which operands it takes; None where one of them is an operand now."""
    outputs = tuple([output for output, each in zip(loop.outputs, used, strict=True) if each])
    short = trimmed(attrs.evolve(loop, outputs=outputs, derived={}))
    if not all(made for made, _ in short.results):
        return None
    count = (loop.carries + loop.constants,) if loop.counts else ()
    return short.loop, (*short.operands, *count)


def reduced(
    program: Program, order: Sequence[int], equations: Sequence[Equation] | None = None, outputs: Any = None
) -> Program:
    """Return a program of some of its inputs, with other equations and outputs."""
    inputs: list[Variable] = [program.inputs[place] for place in order]
    found = program.equations if equations is None else equations
    outs = program.outputs if outputs is None else outputs
    return Program(inputs, found, outs, derivative=program.derivative)


def moved(output: Any, carries: dict[int, int], values: dict[int, int], constants: dict[int, int]) -> Any:
    """Return an output with the new numbers of what it speaks of."""
    if isinstance(output, Last | Path | Marks):
        return attrs.evolve(output, carry=carries[output.carry])
    if isinstance(output, All):
        return attrs.evolve(output, value=values[output.value])
    if isinstance(output, Total):
        parts = [
            Part(values[part.value], part.index, tuple([values[n] for n in part.operands])) for part in output.parts
        ]
        return Total(tuple(parts), output.aval, None if output.like is None else constants[output.like])
    return output
