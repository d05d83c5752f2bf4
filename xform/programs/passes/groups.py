"""Elementwise operations on large arrays of one shape become one operator, which runs them block by block.

Two belong together where no path from one to the other leads through anything else. They have a common stage: the
number of times that a path to them leaves a group of another shape or stage.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any

import attrs

from xform.ops.base import Elementwise
from xform.ops.extrema import Max, Min
from xform.ops.reductions import Sum
from xform.programs.group import Group
from xform.programs.kernels import written_by
from xform.programs.passes.draft import pinned
from xform.programs.program import Constant, Equation, Literal, Program, Variable

__all__ = ["SMALLEST", "join_elementwise"]

#: elements of arrays that are run in blocks; smaller ones stay in the cache as they are
SMALLEST = 1 << 16
Key = tuple[tuple[int, ...], int]


class Stages:
    """The group of each equation that is in one."""

    def __init__(self, program: Program, smallest: int, joins: Callable[[Equation], bool]) -> None:
        self.smallest = smallest
        self.joins = joins
        self.stage: dict[int, int] = {}  # of variables
        self.highest = 0
        self.group: dict[int, Key] = {}  # of variables that are elements of a group
        self.keys: list[Key | None] = [self._key(equation) for equation in program.equations]

    def _key(self, equation: Equation) -> Key | None:
        inputs = [each for each in equation.inputs if isinstance(each, Variable) and not isinstance(each, Constant)]
        key = None if pinned(equation.op) else self._joins(equation, inputs)
        stage = max([self._after(each) for each in inputs], default=0) if key is None else key[1]
        if pinned(equation.op):  # what it makes belongs to no group before it, whose order it keeps
            stage = self.highest + 1
        self.highest = max(self.highest, stage)
        for out in equation.outputs:
            self.stage[out.index] = stage
            if key is not None and out.aval.shape == key[0]:
                self.group[out.index] = key
        return key

    def _after(self, operand: Variable) -> int:
        return self.stage.get(operand.index, 0) + (operand.index in self.stage)

    def _joins(self, equation: Equation, inputs: list[Variable]) -> Key | None:
        """Return the group that an equation belongs to."""
        if len(equation.outputs) != 1:
            return None
        shape = equation.outputs[0].aval.shape
        if is_total(equation):
            return self.group.get(inputs[0].index) if inputs and self.joins(equation) else None
        fits = isinstance(equation.op, Elementwise) and written_by(equation)
        if not fits or not is_large(shape, self.smallest) or not self.joins(equation):
            return None
        stage = 0
        for operand in inputs:
            beside = self.group.get(operand.index)
            same = beside is not None and beside[0] == shape
            stage = max(stage, self.stage.get(operand.index, 0) if same else self._after(operand))
        return shape, stage  # type: ignore[return-value]


def is_large(shape: tuple[int | None, ...], smallest: int) -> bool:
    """Whether an array has so many elements."""
    return None not in shape and math.prod(shape) >= smallest  # type: ignore[arg-type]


def is_total(equation: Equation) -> bool:
    """Whether an equation sums, or takes the extremum of, all elements."""
    op = equation.op
    return type(op) in (Sum, Max, Min) and equation.outputs[0].aval.shape == () and not equation.inputs[0].aval.weak  # type: ignore[union-attr]


# ------------------------------------------------------------------ the pass


def join_elementwise(
    program: Program, smallest: int = SMALLEST, joins: Callable[[Equation], bool] = lambda equation: True
) -> Program:
    """Put elementwise operations on large arrays into groups; `joins` says which may be in one."""
    if not any(out.aval.shape and is_large(out.aval.shape, smallest) for e in program.equations for out in e.outputs):
        return program
    keys = Stages(program, smallest, joins).keys
    members: dict[Key, list[int]] = {}
    for number, key in enumerate(keys):
        if key is not None:
            members.setdefault(key, []).append(number)
    units = [group for group in members.values() if len(group) > 1]
    if not units:
        return program
    together = {number for group in units for number in group}
    units += [[number] for number in range(len(keys)) if number not in together]
    needed = needed_outside(program, units)
    order = ordered(program, units)
    equations = []
    for unit in order:
        found = [program.equations[number] for number in unit]
        equations.append(found[0] if len(unit) == 1 else grouped(found, needed))
    return program.evolve(equations)


def grouped(equations: list[Equation], needed: set[int]) -> Equation:
    """Return one equation for many."""
    made = {out.index: out for equation in equations for out in equation.outputs}
    inputs: dict[int, Variable] = {}
    for equation in equations:
        for operand in equation.inputs:
            if isinstance(operand, Variable) and operand.index not in made and not is_number(operand):
                inputs[operand.index] = operand
    outputs = [out for index, out in made.items() if index in needed]
    inside = {index: Variable(index, variable.aval) for index, variable in inputs.items()}

    def within(operand: Variable | Literal) -> Variable | Literal:
        """Return what stands for an operand in the group: constants with axes are inputs of it."""
        return operand if isinstance(operand, Literal) else inside.get(operand.index, operand)

    own = [attrs.evolve(each, inputs=tuple(map(within, each.inputs))) for each in depth_first(equations)]
    inner = Program(list(inside.values()), own, outputs)
    shapes: list[Any] = [equation.outputs[0].aval.shape for equation in equations]
    first = equations[0]
    group = Group(inner, max(shapes, key=math.prod))
    return Equation(group, tuple(inputs.values()), tuple(outputs), first.scopes, first.phase, first.site)


def depth_first(equations: list[Equation]) -> list[Equation]:
    """Return equations so that few of their results are alive at once: each soon after what it needs.

    Of the operands of an operation the one that needs the most arrays comes first, as registers are numbered by Sethi
    and Ullman (1970). W4 takes 4 arrays in place of 6, which is 5 % where they fill the cache.
    """
    maker = {out.index: number for number, equation in enumerate(equations) for out in equation.outputs}
    needs: list[list[int]] = []
    width: list[int] = []  # how many arrays an equation and what it needs take
    for equation in equations:
        own = {maker[each.index] for each in equation.inputs if isinstance(each, Variable) and each.index in maker}
        operands = sorted(own, key=lambda number: width[number])  # the last is taken first
        width.append(max([1, *[width[each] + place for place, each in enumerate(reversed(operands))]]))
        needs.append(operands)
    used = {number for operands in needs for number in operands}
    pending = [number for number in reversed(range(len(equations))) if number not in used]
    found: list[Equation] = []
    done = [False] * len(equations)
    while pending:
        number = pending[-1]
        waiting = [each for each in needs[number] if not done[each]]
        if waiting and not done[number]:
            pending.extend(waiting)
            continue
        pending.pop()
        if not done[number]:
            done[number] = True
            found.append(equations[number])
    return found


def is_number(operand: Variable) -> bool:
    """Whether an operand is a constant without axes, which the group holds itself."""
    return isinstance(operand, Constant) and operand.aval.shape == ()


def needed_outside(program: Program, units: list[list[int]]) -> set[int]:
    """Return the variables that another unit needs than the one that makes them, or a caller."""
    unit_of = {out.index: n for n, unit in enumerate(units) for m in unit for out in program.equations[m].outputs}
    needed = {out.index for out in program.outputs if not isinstance(out, Literal)}
    for number, unit in enumerate(units):
        for member in unit:
            for operand in program.equations[member].inputs:
                if not isinstance(operand, Literal) and unit_of.get(operand.index, number) != number:
                    needed.add(operand.index)
    return needed


def ordered(program: Program, units: list[list[int]]) -> list[list[int]]:
    """Return the units so that each comes after what it needs, else in the order of the program."""
    maker = {out.index: n for n, unit in enumerate(units) for m in unit for out in program.equations[m].outputs}
    needs: list[set[int]] = [set() for _ in units]
    before: int | None = None  # the last that is pinned
    for number in sorted(range(len(units)), key=lambda n: units[n][0]):
        for member in units[number]:
            equation = program.equations[member]
            needs[number] |= {maker[v.index] for v in equation.inputs if isinstance(v, Variable) and v.index in maker}
            if pinned(equation.op):
                needs[number] |= set() if before is None else {before}
                before = number
        needs[number].discard(number)
    users: list[list[int]] = [[] for _ in units]
    for number, each in enumerate(needs):
        for other in each:
            users[other].append(number)
    missing = [len(each) for each in needs]
    heap = [(units[number][0], number) for number in range(len(units)) if not missing[number]]
    heapq.heapify(heap)
    found = []
    while heap:
        _, number = heapq.heappop(heap)
        found.append(units[number])
        for user in users[number]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(heap, (units[user][0], user))
    return found
