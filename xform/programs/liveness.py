"""How long the values of a program are needed, and which of them share memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from xform.core.operator import Operator
from xform.ops.broadcast import BroadcastTo
from xform.ops.shapes import Reshape
from xform.programs.kernels import kernel_of
from xform.programs.program import Constant, Literal, Program, Variable

__all__ = ["Liveness", "Trail", "trails"]


class Liveness:
    """How long values are needed, by the positions of equations.

    `used`: the last that has a variable as an operand, or makes it; `last`: the last that needs its memory, maybe
    through a view; `escapes`: what a caller may keep; `viewed`: what a caller may keep a view of.
    """

    def __init__(self, program: Program) -> None:
        end = len(program.equations)
        self.last = dict.fromkeys(indices(program.outputs), end)
        self.used = dict(self.last)
        self.escapes = set(self.last)
        self.viewed: set[int] = set()
        for position in range(end - 1, -1, -1):
            equation = program.equations[position]
            made = list(indices(equation.outputs))
            for index in made:
                self.last.setdefault(index, position)
                self.used.setdefault(index, position)
            kernel = kernel_of(equation)
            shares = kernel.view or not kernel.fresh
            reach = max([position, *[self.last[index] for index in made]]) if shares else position
            kept = shares and not self.escapes.isdisjoint(made)
            for index in indices(equation.inputs):
                self.last[index] = max(self.last.get(index, position), reach)
                self.used.setdefault(index, position)
                if kept:
                    self.escapes.add(index)
                    self.viewed.add(index)


def indices(operands: Iterable[Variable | Literal]) -> Iterable[int]:
    """Return the numbers of the variables among operands."""
    return [operand.index for operand in operands if not isinstance(operand, Literal)]


@attrs.frozen(eq=False)
class Trail:
    """Whose memory an output is: of an input, of the result of a computation, or of a constant (-1).

    `root` is what it is a view of, for sure; `may` is what else it may be memory of, where operators may return an
    operand, and `path` a number for how: what is built alike shares alike. Of such an operator `reach` is where its
    first operand is from.
    """

    root: int
    may: frozenset[int]
    path: int | None = None
    reach: int = -1
    made: Operator | None = None  #: the operator whose result the output is, maybe a view
    reshapes: int = 0  #: views on the way that may have been copies
    spread: bool = False  #: whether one was a broadcast, which cannot be written to


def trails(program: Program, paths: dict[Any, int]) -> list[Trail]:
    """Return for each output whose memory it is, or may be; `paths` numbers the ways, for programs to be compared."""
    known: dict[int, Trail] = {}

    def of(operand: Variable | Literal) -> Trail:
        """Return whose memory an operand is: its own, where no equation makes it."""
        index = index_of(operand)
        return known.get(index) or Trail(index, frozenset([index]), paths.setdefault(index, len(paths)), index)

    for equation in program.equations:
        kernel, op = kernel_of(equation), equation.op
        if kernel.view:
            before = of(equation.inputs[0])
            known[equation.outputs[0].index] = attrs.evolve(
                before,
                made=op,
                reshapes=before.reshapes + isinstance(op, Reshape),
                spread=before.spread or isinstance(op, BroadcastTo),
            )
            continue
        if equation.inputs and not kernel.fresh:
            found = list(map(of, equation.inputs if returns_any(op) else equation.inputs[:1]))
            may = found[0].may.union(*[each.may for each in found])
            path = paths.setdefault((type(op), *[each.path for each in found]), len(paths))
            known |= {out.index: Trail(out.index, may, path, found[0].reach, op) for out in equation.outputs}
        else:
            known |= {
                out.index: Trail(out.index, frozenset([out.index]), None, out.index, op) for out in equation.outputs
            }
    return list(map(of, program.outputs))


def returns_any(op: Operator) -> bool:
    """Whether an operator may return any of its operands, not the first alone: it holds functions, or is a user's."""
    return op.nests or op.runs_python or not type(op).__module__.startswith("xform.ops")


def index_of(operand: Variable | Literal) -> int:
    """Return the number of a variable, -1 for a constant."""
    return -1 if isinstance(operand, Constant | Literal) else operand.index
