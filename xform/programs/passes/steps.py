"""Steps of an unrolled loop are done together where they do not depend on each other.

    d_t = 1 - h_t * h_t  for each t     ->     D = 1 - H * H,  H the stack of all h_t

1. Equations that could be done together with others (the same operator on operands of the same shapes) are put off
   until something needs one of them. Then all that can be computed by then are, at once.
2. All others stay in their order. So what is done together never waits for itself.
3. Operands that differ are stacked, those that all steps share are broadcast. A stack is made only where it needs no
   copy (see `xform.programs.slabs`): of constants, of results that can be computed where they lie, or of what was done
   together before.

In the literature: on-the-fly batching of operations, as in DyNet (Neubig, Goldberg and Dyer, 2017), lazily.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from xform.core.aval import is_static
from xform.ops.base import Elementwise, Parameterless
from xform.ops.indexing import GetItem
from xform.ops.joining import Stack, Unstack, make_stack, make_unstack
from xform.ops.products import MATMUL, Matmul
from xform.ops.shapes import make_reshape, make_transpose
from xform.programs.kernels import written_by
from xform.programs.passes.constants import folding
from xform.programs.passes.draft import LARGEST_STACK, Draft, Operand, is_row, pinned, use_counts
from xform.programs.passes.views import views
from xform.programs.program import Constant, Equation, Literal, Program, Variable
from xform.programs.slabs import Slabs

__all__ = ["join_steps"]

#: steps that are worth doing together
FEWEST = 3


class Steps:
    """The order in which equations are done, some of them together."""

    def __init__(self, program: Program) -> None:
        self.program = program
        equations = program.equations
        self.maker = {out.index: n for n, e in enumerate(equations) for out in e.outputs}
        self.needed = [sorted(self._needed(equation)) for equation in equations]
        self.users: list[list[int]] = [[] for _ in equations]
        self.missing = [0] * len(equations)
        self.first_use: dict[int, int] = {}
        for number, equation in enumerate(equations):
            self.missing[number] = len(self.needed[number])
            for each in self.needed[number]:
                self.users[each].append(number)
            for operand in equation.inputs:
                if isinstance(operand, Variable):
                    self.first_use.setdefault(operand.index, number)
        self.writable = {out.index for e in equations if written_by(e) for out in e.outputs}
        uses = use_counts(program)
        given = {variable.index for variable in program.inputs}
        given |= {constant.index for constant in program.constants if uses[constant.index] > 1}
        kinds = [kind_of(equation, given) for equation in equations]
        counts = Counter(kinds)
        #: what the equations that are put off have in common, else None
        self.kinds = [kind if kind is not None and counts[kind] >= FEWEST else None for kind in kinds]
        self.done = [False] * len(equations)
        self.ready: dict[Any, list[int]] = {}
        self.order: list[list[int]] = []
        self.slabs = Slabs()
        self.joined: dict[int, tuple[Any, int]] = {}  # which group a result belongs to, and its place there
        self._join_rows()
        for number in range(len(equations)):
            if not self.missing[number]:
                self._becomes_ready(number)

    def _join_rows(self) -> None:
        """Let rows that are taken from one array belong together."""
        groups: dict[int, list[int]] = {}  # one list for each array: what belongs together has the same one
        for equation in self.program.equations:
            op: Any = equation.op
            if type(op) is GetItem and len(op.index) == 1 and type(op.index[0]) is int and op.index[0] >= 0:
                first = op.index[0]
            elif type(op) is Unstack and op.axis == 0:
                first = 0
            else:
                continue
            whole = equation.inputs[0]
            group = groups.setdefault(-1 if isinstance(whole, Literal) else whole.index, [])
            self.joined |= {out.index: (group, first + n) for n, out in enumerate(equation.outputs)}

    def _needed(self, equation: Equation) -> set[int]:
        return {self.maker[v.index] for v in equation.inputs if not isinstance(v, Literal) and v.index in self.maker}

    def _becomes_ready(self, number: int) -> None:
        kind = self.kinds[number]
        if kind is not None:  # what lies in another group, or in none, is not stacked with it (see `_stackable`)
            inputs = self.program.equations[number].inputs
            groups = [self.joined.get(operand.index) for operand in inputs if isinstance(operand, Variable)]
            kind = self.kinds[number] = (kind, *[None if group is None else id(group[0]) for group in groups])
            self.ready.setdefault(kind, []).append(number)

    def run(self) -> list[list[int]]:
        """Return the numbers of the equations in their new order; those in one list are done together."""
        for equation in self.program.equations:
            if type(equation.op) is Stack and equation.op.axis == 0:
                self.slabs.place([v.index for v in equation.inputs if isinstance(v, Variable)])
        for number, kind in enumerate(self.kinds):
            if kind is None:
                self._demand(number)
        for out in self.program.outputs:
            if isinstance(out, Variable) and out.index in self.maker:
                self._demand(self.maker[out.index])
        return self.order

    def _demand(self, number: int) -> None:
        """Do an equation, and before it what it needs; what was made last first, so that all steps are there."""
        pending = [number]
        while pending:
            top = pending[-1]
            if self.done[top]:
                pending.pop()
            elif self.missing[top]:
                pending += [each for each in self.needed[top] if not self.done[each]]
            else:
                pending.pop()
                self._do(self._together(top))

    def _do(self, group: list[int]) -> None:
        self.order.append(group)
        for place, number in enumerate(group):
            self.done[number] = True
            if len(group) > 1:
                self.joined[self.program.equations[number].outputs[0].index] = (group, place)
        for number in group:
            for user in self.users[number]:
                self.missing[user] -= 1
                if not self.missing[user]:
                    self._becomes_ready(user)

    def _together(self, number: int) -> list[int]:
        """Return the equations to be done together with one that is needed."""
        kind = self.kinds[number]
        if kind is None:
            return [number]
        waiting = [each for each in self.ready[kind] if not self.done[each]]
        group = self._alike(number, waiting)
        equations = [self.program.equations[each] for each in group]
        size = equations[0].outputs[0].aval.size * len(group)
        worth = len(group) >= FEWEST and size <= LARGEST_STACK and self._stackable(equations)
        if not worth and len(waiting) >= FEWEST:
            for each in waiting:  # looked at once
                self.kinds[each] = None
        group = group if worth else [number]
        self.ready[kind] = [each for each in waiting if each not in set(group)] if len(waiting) > len(group) else []
        return group

    def _alike(self, number: int, waiting: list[int]) -> list[int]:
        """Return those that share with the equation what it shares with any, in the order of their first use."""
        equations = self.program.equations
        mine = equations[number]
        group = waiting
        for place, operand in enumerate(mine.inputs):
            if isinstance(operand, Literal) or len(group) < FEWEST:
                continue
            theirs = [equations[each].inputs[place].index for each in group]  # type: ignore[union-attr]
            counts = Counter(theirs)
            shared = counts[operand.index] > 1
            group = [
                each
                for each, index in zip(group, theirs, strict=True)
                if (index == operand.index if shared else counts[index] == 1)
            ]
        return self._sorted(group)

    def _sorted(self, group: list[int]) -> list[int]:
        """Return equations in the order in which operands lie already, else in that of their first use."""
        equations = [self.program.equations[number] for number in group]
        for column in zip(*[equation.inputs for equation in equations], strict=True):
            places = [self._place(operand) for operand in column]
            if None not in places and len({id(whole) for whole, _ in places}) == 1:  # type: ignore[misc]
                order = sorted(zip([at for _, at in places], group, strict=True))  # type: ignore[misc]
                return [number for _, number in order]
        last = len(self.users)
        uses = [self.first_use.get(equation.outputs[0].index, last) for equation in equations]
        return [number for _, number in sorted(zip(uses, group, strict=True))]

    def _place(self, operand: Operand) -> tuple[Any, int] | None:
        """Return where an operand lies: in a slab, or in what was done together."""
        if isinstance(operand, Literal):
            return None
        return self.slabs.places.get(operand.index) or self.joined.get(operand.index)

    def _stackable(self, group: list[Equation]) -> bool:
        """Whether operands that differ can be stacked without a copy."""
        for column in zip(*[equation.inputs for equation in group], strict=True):
            first = column[0]
            if isinstance(first, Literal) or all(operand is first for operand in column):
                continue
            if all(isinstance(operand, Constant) for operand in column):
                continue
            indices = [operand.index for operand in column]
            if is_run([self.joined.get(index) for index in indices]):
                continue
            lies = all(
                isinstance(operand, Constant) or (operand.index in self.writable and operand.index not in self.joined)
                for operand in column
            )
            if not lies or self.slabs.place(indices) is None:
                return False
        return True


def is_run(places: list[Any]) -> bool:
    """Whether places are one after the other in one group."""
    if None in places:
        return False
    group, start = places[0]
    return all(whole is group and place == start + n for n, (whole, place) in enumerate(places))


def kind_of(equation: Equation, given: set[int]) -> Any:
    """Return what equations that can be done together have in common, or None; `given` are operands that stay alone."""
    op = equation.op
    if pinned(op) or not written_by(equation) or not is_row(equation.outputs[0].aval):
        return None
    inputs = equation.inputs
    if isinstance(op, Elementwise):
        seen: dict[int, int] = {}
        operands: list[Any] = []
        for place, operand in enumerate(inputs):
            if isinstance(operand, Literal):
                operands.append((type(operand.value), repr(operand.value)))
            elif operand.index in given:
                operands.append(operand.index)
            else:
                operands.append((operand.aval, seen.setdefault(operand.index, place)))
        return (type(op) if isinstance(op, Parameterless) else (op, repr(op)), *operands)
    if type(op) is Matmul:
        x, y = (operand for operand in inputs if isinstance(operand, Variable))
        if y.aval.ndim == 2 and is_static(x.aval.shape):  # rows times one matrix
            return (op, x.aval, y.index)
        if x.aval.ndim == 2 and y.aval.ndim == 1:  # one matrix times columns
            return (op, x.index, y.aval)
    return None


# ------------------------------------------------------------------ the pass


def join_steps(program: Program) -> Program:
    """Do together what the steps of an unrolled loop do each for itself."""
    steps = Steps(program)
    if not any(kind is not None for kind in steps.kinds):
        return program
    order = steps.run()
    if all(len(group) == 1 for group in order):
        return program
    draft = Draft(program, (folding, views))
    for group in order:
        equations = [program.equations[number] for number in group]
        if len(group) == 1:
            draft.take(equations[0])
        else:
            together(draft, equations)
    return draft.finish()


def together(draft: Draft, group: list[Equation]) -> None:
    """Add one equation in place of many, and the parts of its result."""
    draft.origin = group[0]
    op, aval = group[0].op, group[0].outputs[0].aval
    operands: list[Any] = []
    columns = list(zip(*[equation.inputs for equation in group], strict=True))
    for column in columns:
        if isinstance(column[0], Literal) or all(operand is column[0] for operand in column):
            operands.append(draft.operand(column[0]))
        else:
            stack = draft.apply(make_stack(0), *[draft.operand(operand) for operand in column])
            operands.append(stack if type(op) is Matmul else aligned(draft, stack, aval.ndim))
    if type(op) is Matmul:
        x, matrix = operands
        if columns[0][0] is columns[0][-1]:
            x, matrix = matrix, draft.apply(make_transpose((1, 0)), x)
        flat = draft.apply(make_reshape((-1, x.aval.shape[-1])), x)
        out = draft.apply(make_reshape((len(group), *aval.shape)), draft.apply(MATMUL, flat, matrix))
    else:
        out = draft.apply(op, *operands)
    parts = draft.apply_many(make_unstack(0), out)
    for equation, part in zip(group, parts, strict=True):
        draft.replace(equation.outputs[0], part)


def aligned(draft: Draft, stack: Variable, ndim: int) -> Variable:
    """Give the rows of a stack as many axes as the results have."""
    count, *row = stack.aval.shape
    lacking = ndim - len(row)
    return draft.apply(make_reshape((count, *[1] * lacking, *row)), stack) if lacking > 0 else stack
