"""Equations that nothing needs are left out."""

from __future__ import annotations

import attrs

from xform.programs.passes.draft import pinned
from xform.programs.program import Equation, Literal, Program

__all__ = ["drop_dead"]


def drop_dead(program: Program) -> Program:
    """Leave out what no output, and nothing that must stay, depends on."""
    live = {out.index for out in program.outputs if not isinstance(out, Literal)}
    kept = []
    for equation in reversed(program.equations):
        used = tuple([out.index in live for out in equation.outputs])
        if pinned(equation.op) or any(used):
            if not all(used):
                equation = pruned(equation, used)  # noqa: PLW2901
            kept.append(equation)
            live.update([each.index for each in equation.inputs if not isinstance(each, Literal)])
    return program.evolve(kept[::-1])


def pruned(equation: Equation, used: tuple[bool, ...]) -> Equation:
    """Return an operation without the outputs that nothing uses, where it can be had without them."""
    found = equation.op.pruned(used)
    if found is None:
        return equation
    op, operands = found
    outputs = tuple([out for out, each in zip(equation.outputs, used, strict=True) if each])
    return attrs.evolve(equation, op=op, inputs=tuple([equation.inputs[n] for n in operands]), outputs=outputs)
