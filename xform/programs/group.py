"""An operator for many elementwise operations on large arrays of one shape, to be run in cache-sized blocks."""

from __future__ import annotations

from typing import Any

import attrs

from xform.core.aval import Aval
from xform.core.operator import Operator
from xform.programs.program import Program

__all__ = ["Group"]


@attrs.frozen(eq=False, repr=False)
class Group(Operator):
    """Elementwise operations whose results have one shape, and sums and extrema over all of it.

    `program` has one input for each operand; operands broadcast to the shape.
    """

    program: Program
    shape: tuple[int, ...]
    multiple_outputs = True

    def __repr__(self) -> str:
        return f"Group({', '.join(equation.op.name for equation in self.program.equations)})"

    def infer(self, *avals: Aval) -> tuple[Aval, ...]:
        """The program's."""
        return self.program.out_avals

    def evaluate(self, xp: Any, *arrays: Any) -> tuple[Any, ...]:
        """Run the operations one after the other."""
        return tuple(self.program.run(arrays))
