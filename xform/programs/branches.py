"""The operator of `cond` and `switch`: one of several Programs, chosen when it runs.

1. All branches take the same operands, and give outputs of the same shapes and dtypes. What they need from outside is
   an operand, so that every layer sees it.
2. The first operand says which branch runs: an integer, which is clamped to the numbers that there are, or a boolean.
3. Only that branch runs, also in derivatives; in a batch whose lanes differ, each branch that some lane takes.

Its derivatives and batches are switches again: see `xform.transforms.branch_rules`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from xform.core.aval import Aval, result_dtype
from xform.core.backend import HOST_TYPES
from xform.core.errors import DtypeError, OperandError, ShapeError
from xform.core.stack import on_empty_stack
from xform.ops.broadcast import cast
from xform.programs.compiler import compile_program
from xform.programs.holding import NOT_STORED, HoldsPrograms, Programs
from xform.programs.loop import fits
from xform.programs.program import Equation, Program, Variable, aval_at

__all__ = ["Switch", "common_aval", "with_avals"]

#: runs of a branch before it is compiled: that takes as long as some ten runs
FEWEST_RUNS = 8


@attrs.frozen(eq=False, repr=False)
class Switch(HoldsPrograms):
    """One of several Programs; compares by identity, since it holds Programs."""

    branches: tuple[Program, ...]
    label: str = "switch"
    derived: dict[Any, Any] = attrs.field(factory=dict, metadata=NOT_STORED)

    @property
    def name(self) -> str:
        """The kind of switch."""
        return f"Switch[{self.label}]"

    def __repr__(self) -> str:
        counts = ", ".join(str(len(branch.equations)) for branch in self.branches)
        return f"{self.name}({counts} operations)"

    @property
    def programs(self) -> Programs:
        """The branches."""
        return self.branches

    def with_programs(self, programs: Programs, derived: dict[Any, Any]) -> Switch:
        """Return a switch of other branches."""
        return Switch(programs, self.label, derived)

    @property
    def in_avals(self) -> tuple[Aval, ...]:
        """The avals of the operands behind the first."""
        return self.branches[0].in_avals

    @property
    def out_avals(self) -> tuple[Aval, ...]:
        """The avals of the outputs: a length that branches differ in is not known."""
        columns = zip(*[branch.out_avals for branch in self.branches], strict=True)
        return tuple([common_aval(column) for column in columns])

    def infer(self, index: Aval, *avals: Aval) -> tuple[Aval, ...]:
        """The avals of the branches."""
        if index.shape != () or index.dtype.kind not in "biu":
            msg = f"{self!r}: the first operand chooses the branch: one integer or boolean, not {index!r}"
            raise (ShapeError if index.shape != () else DtypeError)(msg, op=self)
        if len(avals) != len(self.in_avals):
            msg = f"{self!r} takes {1 + len(self.in_avals)} operands, got {1 + len(avals)}"
            raise OperandError(msg, op=self)
        for position, (aval, wanted) in enumerate(zip(avals, self.in_avals, strict=True)):
            if not fits(aval, wanted):
                msg = f"{self!r}: operand {1 + position} is {aval!r}; the branches were recorded for {wanted!r}"
                raise ShapeError(msg, op=self)
        return self.out_avals

    def chosen(self, index: Any) -> int:
        """Return the number of the branch that a number on the host chooses."""
        return min(max(int(index), 0), len(self.branches) - 1)

    def evaluate(self, xp: Any, index: Any, *arrays: Any) -> tuple[Any, ...]:
        """Run the branch on raw arrays."""
        return tuple(on_empty_stack(self._run, self.chosen(index), arrays))

    def steps(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Run the branch operation by operation."""
        return tuple(self.branches[self.chosen(values[0])].run(values[1:]))

    def _run(self, number: int, arrays: tuple[Any, ...]) -> list[Any]:
        branch = self.branches[number]
        if not all(type(x) in HOST_TYPES for x in arrays):
            return branch.run(arrays)
        count, compiled = self.derived.get(("run", number), (0, None))
        if compiled is None:
            if count >= FEWEST_RUNS:
                compiled = compile_program(branch, level=0)
            self.derived["run", number] = (count + 1, compiled)
        return branch.run(arrays) if compiled is None else compiled.run(arrays)


def common_aval(avals: Sequence[Aval]) -> Aval:
    """Return the aval that values of several branches have in common; Python numbers give way to arrays.

    Raises `ShapeError` or `DtypeError` where they have none.

    >>> import numpy as np
    >>> common_aval([Aval((2, None), np.dtype("float32")), Aval((2, 3), np.dtype("float32"))])
    float32[2,?]
    """
    first = avals[0]
    if all(aval == first for aval in avals):
        return first
    if len({aval.ndim for aval in avals}) > 1:
        raise ShapeError("their numbers of axes differ")
    lengths = [set(column) for column in zip(*[aval.shape for aval in avals], strict=True)]
    if any(len(each - {None}) > 1 for each in lengths):
        raise ShapeError("their shapes differ")
    dtype = result_dtype(*avals)
    if any(aval.dtype != dtype and not aval.weak for aval in avals):
        raise DtypeError("their dtypes differ")
    return Aval(tuple([each.pop() if len(each) == 1 else None for each in lengths]), dtype)


def with_avals(program: Program, avals: Sequence[Aval]) -> Program:
    """Return a program whose outputs have these dtypes: Python numbers become arrays."""
    equations, outputs = list(program.equations), list(program.outputs)
    size = program.size
    for n, (out, aval) in enumerate(zip(outputs, avals, strict=True)):
        have = aval_at(out)
        if have.dtype == aval.dtype and have.weak == aval.weak:
            continue
        outputs[n] = Variable(size, Aval(have.shape, aval.dtype))
        equations.append(Equation(cast(aval.dtype.name), (out,), (outputs[n],)))  # type: ignore[arg-type]
        size += 1
    return program.evolve(equations, outputs)
