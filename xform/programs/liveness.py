"""How long the values of a program are needed, and which of them share memory."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from xform.core.operator import Operator
from xform.ops.broadcast import BroadcastTo
from xform.ops.shapes import Reshape
from xform.programs.kernels import kernel_of
from xform.programs.program import Constant, Literal, Program, Variable

__all__ = ["Liveness", "Trail", "roots", "trails"]


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
    """What an output is a view of: an input, the result of a computation, or a constant (root -1)."""

    root: int
    maker: Operator | None = None  #: the operator that computes the root
    reach: int = -1  #: the input whose memory the root may be, where its operator may return that
    made: Operator | None = None  #: the operator whose result the output is, maybe a view
    reshapes: int = 0  #: views on the way that may have been copies
    spread: bool = False  #: whether one was a broadcast, which cannot be written to


def trails(program: Program) -> list[Trail]:
    """Return for each output what it is a view of, for sure."""
    known: dict[int, Trail] = {}
    for equation in program.equations:
        if kernel_of(equation).view:
            before = trail_of(equation.inputs[0], known)
            known[equation.outputs[0].index] = attrs.evolve(
                before,
                made=equation.op,
                reshapes=before.reshapes + isinstance(equation.op, Reshape),
                spread=before.spread or isinstance(equation.op, BroadcastTo),
            )
        else:
            known |= {out.index: Trail(out.index, equation.op, made=equation.op) for out in equation.outputs}
    return [
        attrs.evolve(trail_of(out, known), reach=reach)
        for out, reach in zip(program.outputs, roots(program), strict=True)
    ]


def trail_of(operand: Variable | Literal, known: dict[int, Trail]) -> Trail:
    """Return what an operand is a view of: itself, where no equation makes it."""
    return known.get(index_of(operand)) or Trail(index_of(operand))


def index_of(operand: Variable | Literal) -> int:
    """Return the number of a variable, -1 for a constant."""
    return -1 if isinstance(operand, Constant | Literal) else operand.index


def roots(program: Program) -> list[int]:
    """Return for each output the variable whose memory it is: an input, the result of a computation, -1 for a constant.

    Follows views, and what may return its first operand.
    """
    known: dict[int, int] = {}
    for equation in program.equations:
        kernel = kernel_of(equation)
        if equation.inputs and (kernel.view or not kernel.fresh):
            root = index_of(equation.inputs[0])
            root = known.get(root, root)
            known |= {out.index: root for out in equation.outputs}
    return [known.get(index_of(out), index_of(out)) for out in program.outputs]
