"""A function's operations at one point, in place of its Python code.

Backward comes later than the call: a loop variable that the function closes over, a global, or an array that it reads
may have changed by then. So what a derivative needs of the function is recorded when the solution is found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from xform import tree
from xform.core.operator import Operator
from xform.core.stack import apply
from xform.layers import lifted
from xform.ops.structural import HostRead, refuse_tracked
from xform.programs.program import Equation, Program
from xform.transforms.closure import Closure
from xform.transforms.loop_bodies import varying
from xform.transforms.operands import is_bare
from xform.transforms.recorder import Trace, TraceValue, outside

__all__ = ["Record", "recorded"]


class PointTrace(Trace):
    """A recorder of a function at one point: control flow may read values there, and no region is passed over.

    A read that would drop a derivative raises, as it does on a tape.
    """

    records = False

    def __init__(self) -> None:
        super().__init__()
        self._varying: set[int] = set()  # variables with a derivative along some input

    def input(self, x: Any) -> TraceValue:
        """Return a traced value, along which there is a derivative if it is no integer."""
        value = super().input(x)
        if value.aval.dtype.kind in "fc":
            self._varying.add(value.variable.index)
        return value

    def append(self, equation: Equation) -> None:
        """Take an operation into the record, and note whether its results vary."""
        super().append(equation)
        if any(equation.inputs[n].index in self._varying for n in varying(equation)):  # type: ignore[union-attr]
            self._varying.update([out.index for out in equation.outputs if out.aval.dtype.kind in "fc"])

    def interpret(self, op: Operator, values: tuple[Any, ...]) -> Any:
        """Record the operation, in a region that other recorders pass over as well."""
        passed = outside.get()
        if self not in passed:
            return super().interpret(op, values)
        token = outside.set(tuple([each for each in passed if each is not self]))
        try:
            return super().interpret(op, values)
        finally:
            outside.reset(token)

    def _read(self, op: HostRead, value: Any) -> Any:
        if self.owns(value) and value.variable.index in self._varying:
            refuse_tracked(op, value)
        return apply(op, self.unwrap(value))


@attrs.frozen(eq=False)
class Record:
    """What `Closure` is to an equation, good at the point where it was recorded, for values of any layer."""

    fun: Callable[..., Any]
    structure: tree.Structure
    program: Program

    def __call__(self, xs: Sequence[Any], params: Sequence[Any]) -> list[Any]:
        """Run the operations on the leaves of `x` and the parameters."""
        given = [*xs, *params]
        return self.program.run(given if is_bare(None) else [lifted(each) for each in given])


def recorded(closure: Closure, xs: Sequence[Any], params: Sequence[Any]) -> Record:
    """Return what a function computes at a point, with copies of the arrays that it takes from around it."""
    with PointTrace() as recorder:
        point = [recorder.input(each) for each in (*xs, *params)]
        ys = closure(point[: len(xs)], point[len(xs) :])
    return Record(closure.fun, closure.structure, recorder.program(ys))
