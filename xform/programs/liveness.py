"""How long the values of a program are needed, and which of them share memory."""

from __future__ import annotations

from collections.abc import Iterable

from xform.programs.kernels import kernel_of
from xform.programs.program import Constant, Literal, Program, Variable

__all__ = ["Liveness", "roots"]


class Liveness:
    """`last`: the position of the equation that needs a variable's memory last; `escapes`: what a caller may keep."""

    def __init__(self, program: Program) -> None:
        end = len(program.equations)
        self.last = dict.fromkeys(indices(program.outputs), end)
        self.escapes = set(self.last)
        for position in range(end - 1, -1, -1):
            equation = program.equations[position]
            made = list(indices(equation.outputs))
            for index in made:
                self.last.setdefault(index, position)
            kernel = kernel_of(equation)
            shares = kernel.view or not kernel.fresh
            reach = max([position, *[self.last[index] for index in made]]) if shares else position
            kept = shares and not self.escapes.isdisjoint(made)
            for index in indices(equation.inputs):
                self.last[index] = max(self.last.get(index, position), reach)
                if kept:
                    self.escapes.add(index)


def indices(operands: Iterable[Variable | Literal]) -> Iterable[int]:
    """Return the numbers of the variables among operands."""
    return [operand.index for operand in operands if not isinstance(operand, Literal)]


def roots(program: Program) -> list[int]:
    """Return for each output the variable whose memory it is: an input, the result of a computation, -1 for a constant.

    Follows views, and what may return its first operand.
    """
    maker = {out.index: equation for equation in program.equations for out in equation.outputs}
    found = []
    for each in program.outputs:
        operand: Variable | Literal = each
        while isinstance(operand, Variable) and operand.index in maker:
            equation = maker[operand.index]
            kernel = kernel_of(equation)
            if not equation.inputs or (kernel.fresh and not kernel.view):
                break
            operand = equation.inputs[0]
        found.append(-1 if isinstance(operand, Constant | Literal) else operand.index)
    return found
