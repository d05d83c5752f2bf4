"""Sums over rounds, as their terms: what is added at an index goes straight into the one buffer.

Of `total = total + (a + ScatterAdd(b at i))` comes `buffer += a; buffer[i] += b`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xform.core.aval import Aval
from xform.ops.arithmetic import Add
from xform.ops.indexing import ScatterAdd, ScatterAddLike, parts_of
from xform.programs.loop_outputs import Part, Total, strong
from xform.programs.program import Equation, Literal, Variable, aval_at

__all__ = ["Values"]

Operand = Variable | Literal


class Values:
    """The values that a body gives, numbered as they are asked for; one that is asked for twice is given once."""

    def __init__(self, equations: Sequence[Equation], outputs: Sequence[Operand]) -> None:
        self.outs: list[Operand] = []
        self._numbers: dict[int, int] = {}
        self._makers = {out.index: equation for equation in equations for out in equation.outputs}
        self._uses: dict[int, int] = {}
        for operand in [*[each for equation in equations for each in equation.inputs], *outputs]:
            if isinstance(operand, Variable):
                self._uses[operand.index] = self._uses.get(operand.index, 0) + 1

    def number(self, operand: Operand) -> int:
        """Return the number of a value."""
        if isinstance(operand, Literal):
            self.outs.append(operand)
            return len(self.outs) - 1
        if operand.index not in self._numbers:
            self._numbers[operand.index] = len(self.outs)
            self.outs.append(operand)
        return self._numbers[operand.index]

    def _maker(self, operand: Operand) -> Equation | None:
        """Return the equation that makes a value, None where it is an input or a number."""
        return self._makers.get(operand.index) if isinstance(operand, Variable) else None

    def total(self, operand: Operand, constants: dict[int, int]) -> Total:
        """Return the output that sums a value over all rounds; `constants` are the numbers of constants by variable."""
        aval = strong(aval_at(operand))
        parts: list[Part] = []
        like = None
        for term in self._terms(operand, aval):
            made = self._maker(term)
            if made is not None and type(made.op) is ScatterAdd:
                parts += self._scattered(made.op.of, made.inputs)
            elif made is not None and type(made.op) is ScatterAddLike and made.inputs[0].index in constants:  # type: ignore[union-attr]
                like = constants[made.inputs[0].index]  # type: ignore[union-attr]
                parts += self._scattered(made.op.of, made.inputs[1:])
            else:
                parts.append(Part(self.number(term)))
        parts.sort(key=lambda part: part.index is not None)
        return Total(tuple(parts), aval, like)

    def _scattered(self, of: Any, operands: Sequence[Operand]) -> list[Part]:
        return [
            Part(self.number(value), index, tuple(map(self.number, others)))
            for index, value, others in parts_of(of, operands)
        ]

    def _terms(self, operand: Operand, aval: Aval) -> list[Operand]:
        """Return the terms of a sum of values of one aval, each used in it alone."""
        found: list[Operand] = []
        pending = [operand]
        while pending:
            term = pending.pop()
            made = self._maker(term)
            once = isinstance(term, Variable) and self._uses.get(term.index) == 1
            if made is not None and once and type(made.op) is Add and all(is_alike(each, aval) for each in made.inputs):
                pending += reversed(made.inputs)
            else:
                found.append(term)
        return found


def is_alike(operand: Operand, aval: Aval) -> bool:
    """Whether an operand is a variable of an aval."""
    return isinstance(operand, Variable) and operand.aval == aval
