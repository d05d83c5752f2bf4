"""Loops that were recorded alike are one: what was derived from it, and its generated source, serve again.

A lambda is another function at each call of what makes it, so its body is recorded at each call; the record is mostly
the same. Programs of built-in operators are compared whole, operations and lines included.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from xform.ops.base import Parameterless
from xform.programs.holding import HoldsPrograms
from xform.programs.loop import Loop
from xform.programs.loop_trim import Trimmed
from xform.programs.program import Constant, Literal, Program

__all__ = ["shared"]

#: loops that are remembered
MOST = 256
_known: OrderedDict[Any, Trimmed] = OrderedDict()


def shared(made: Trimmed) -> Trimmed:
    """Return a loop that was made before and is equal to this one, or this one."""
    loop: Loop = made.loop
    programs = [text_of(program) for program in (loop.body, loop.condition) if program is not None]
    rest = (loop.carries, loop.constants, loop.outputs, loop.test, loop.reverse, loop.max_steps, loop.checkpoint)
    key = (*programs, *rest, loop.label, made.operands, made.results)
    try:
        found = None if None in programs else _known.setdefault(key, made)
    except TypeError:  # an operator without a hash
        found = None
    if found is None:
        return made
    _known.move_to_end(key)
    while len(_known) > MOST:
        _known.popitem(last=False)
    return found


def text_of(program: Program) -> tuple[Any, ...] | None:
    """Return what equal programs have in common; None for one that holds what is not xform's own."""
    numbers: dict[int, int] = {}
    parts: list[Any] = []
    for variable in program.inputs:
        numbers[variable.index] = len(numbers)
        parts.append(variable.aval)
    for equation in program.equations:
        op = equation.op
        if not (type(op).__module__.startswith("xform.ops.") or isinstance(op, HoldsPrograms)):
            return None
        operands = [name_of(each, numbers) for each in equation.inputs]
        for out in equation.outputs:
            numbers[out.index] = len(numbers)
        label = type(op) if isinstance(op, Parameterless) else (op, repr(op))
        avals = [out.aval for out in equation.outputs]
        parts.append((label, *operands, *avals, equation.scopes, equation.phase, equation.site))
    outs = [name_of(each, numbers) for each in program.outputs]
    if any(isinstance(each, Constant) for equation in program.equations for each in equation.inputs):
        return None
    return (*parts, *outs, program.derivative)


def name_of(operand: Any, numbers: dict[int, int]) -> Any:
    """Return a number for a variable, type and text for a Python number."""
    return (type(operand.value), repr(operand.value)) if isinstance(operand, Literal) else numbers.get(operand.index)
