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

    `root` is what it is a view of, for sure; `may` is all that it may be memory of, where operators may return an
    operand, and `path` is how: what is built alike shares alike. Of such an operator `reach` is where its first operand
    is from.
    """

    root: int
    may: frozenset[int]
    path: Any = None
    reach: int = -1
    made: Operator | None = None  #: the operator whose result the output is, maybe a view
    reshapes: int = 0  #: views on the way that may have been copies
    spread: bool = False  #: whether one was a broadcast, which cannot be written to


def trails(program: Program) -> list[Trail]:
    """Return for each output whose memory it is, or may be."""
    known: dict[int, Trail] = {}
    for equation in program.equations:
        kernel, op = kernel_of(equation), equation.op
        if kernel.view:
            before = trail_of(equation.inputs[0], known)
            known[equation.outputs[0].index] = attrs.evolve(
                before,
                made=op,
                reshapes=before.reshapes + isinstance(op, Reshape),
                spread=before.spread or isinstance(op, BroadcastTo),
            )
            continue
        path, lent, reach = None, frozenset[int](), -1
        if equation.inputs and not kernel.fresh:
            found = [trail_of(each, known) for each in equation.inputs]
            found = found if returns_any(op) else found[:1]
            path = (type(op), *[each.path for each in found])
            lent, reach = lent.union(*[each.may for each in found]), found[0].reach
        for out in equation.outputs:
            own = out.index
            known[own] = Trail(own, lent | {own}, path, own if path is None else reach, made=op)
    return [trail_of(out, known) for out in program.outputs]


def returns_any(op: Operator) -> bool:
    """Whether an operator may return any of its operands, not the first alone: it holds functions, or is a user's."""
    return op.nests or op.runs_python or not type(op).__module__.startswith("xform.ops")


def trail_of(operand: Variable | Literal, known: dict[int, Trail]) -> Trail:
    """Return whose memory an operand is: its own, where no equation makes it."""
    index = index_of(operand)
    return known.get(index) or Trail(index, frozenset([index]), index, index)


def index_of(operand: Variable | Literal) -> int:
    """Return the number of a variable, -1 for a constant."""
    return -1 if isinstance(operand, Constant | Literal) else operand.index
