"""A program as one operation: compiled at the bottom, with rules of its own on the way there."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from xform.core.aval import Aval
from xform.core.errors import OperandError, ShapeError
from xform.core.operator import Operator
from xform.programs.compiler import Compiled, compile_program
from xform.programs.program import Program, fits

__all__ = ["Call"]


class Call(Operator):
    """Runs a program as one operation: operands and results are its flat inputs and outputs.

    It compares by identity. `derived` holds the programs of its derivatives, each made once.
    """

    __slots__ = ("compiled", "derived", "is_plain", "options", "program")
    multiple_outputs = True
    fills_zeros = False

    def __init__(self, program: Program, **options: Any) -> None:
        self.program = program
        self.options = options
        self.compiled: Compiled | None = None
        self.derived: dict[Any, Any] = {}
        #: whether it computes on NumPy arrays alone, and no operation needs the place that it was recorded at, as what
        #: tells an observer does, or data for its rules, as custom functions do
        ops = [each.op for each in program.equations]
        self.is_plain = not any(op.impure or op.crosses_devices or op.runs_python for op in ops)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(Call, **self.options), (self.program,)  # what was compiled and derived is made again

    def __repr__(self) -> str:
        return f"Call({len(self.program.equations)} equations)"

    def infer(self, *avals: Aval) -> tuple[Aval, ...]:
        """Those that were recorded, for operands as they were recorded."""
        if len(avals) != len(self.program.inputs):
            msg = f"{self!r} takes {len(self.program.inputs)} operands, got {len(avals)}"
            raise OperandError(msg, op=self, avals=avals)
        for position, (have, want) in enumerate(zip(avals, self.program.in_avals, strict=True)):
            if not fits(want, have):
                msg = f"{self!r}: operand {position} was recorded as {want!r}, got {have!r}"
                raise ShapeError(msg, op=self, operand=position)
        return self.program.out_avals

    def evaluate(self, xp: Any, *arrays: Any) -> tuple[Any, ...]:
        """Run the compiled program; on other libraries' arrays, operation by operation."""
        return tuple(self.run(arrays) if xp is np else self.program.run(arrays))

    def run(self, arrays: Any) -> list[Any]:
        """Run the compiled program on NumPy arrays; it is compiled at the first run."""
        if self.compiled is None:
            self.compiled = compile_program(self.program, **self.options)
        found: list[Any] = self.compiled.checked(arrays)
        return found
