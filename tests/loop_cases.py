"""What the tests of loops share."""

from __future__ import annotations

import attrs

import xform as xf
from xform.programs.loop import Loop
from xform.programs.loop_outputs import All, Path


def loops_of(program):
    return [equation.op for equation in program.equations if isinstance(equation.op, Loop)]


def saved_by(fun, *args):
    """The histories and stacked outputs of the forward loop of a gradient."""
    forward = loops_of(xf.make_program(xf.grad(fun))(*args))[0]
    return [output for output in forward.outputs if isinstance(output, Path | All)]


@attrs.frozen
class Called(xf.Operator):
    """Hands its operand through, and counts how often it is run."""

    runs: list[int] = attrs.field(factory=list, eq=False, hash=False)
    impure = False

    def infer(self, x):
        return x

    def evaluate(self, xp, x):
        self.runs.append(1)
        return xp.asarray(x) * 1.0


xf.linear(Called, lambda op, t, x: xf.apply(op, t))
