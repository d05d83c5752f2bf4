"""Where two programs differ."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

import attrs

from xform.core.backend import namespace_of
from xform.core.devices import to_host
from xform.core.errors import ProgramFormatError
from xform.core.operator import Operator
from xform.core.source import describe
from xform.core.value import Value
from xform.programs.parameters import parameters, programs_in
from xform.programs.program import Constant, Equation, Literal, Program, Variable

__all__ = ["Difference", "diff"]


@attrs.frozen(eq=False, repr=False)
class Difference:
    """The first place where two programs differ; false where they do not. It prints both sides with their lines.

    `what` says what differs ("" for nothing), `position` is the number of the equation (None for what stands before and
    after the equations), `left` and `right` are the two equations, variables or values.
    """

    what: str = ""
    position: int | None = None
    left: Any = None
    right: Any = None
    __tree_leaf__ = True

    def __bool__(self) -> bool:
        return bool(self.what)

    def __repr__(self) -> str:
        if not self:
            return "the programs do not differ"
        place = "the programs" if self.position is None else f"equation {self.position}"
        sides = [f"  {side}  {shown(value)}" for side, value in (("left ", self.left), ("right", self.right))]
        return "\n".join([f"{place} differ{'' if self.position is None else 's'}: {self.what}", *sides])


def shown(side: Any) -> str:
    """Return one side of a difference as text; an equation with its line beneath."""
    if side is None:
        return "nothing: the program has ended"
    return f"{side!r}\n         {describe(side.site)}" if isinstance(side, Equation) else str(side)


def diff(left: Program, right: Program) -> Difference:
    """Return the first place where two programs differ, as an object that prints both source lines; false if nowhere.

    Names of variables, scopes and lines do not count. Operators and their parameters, operands, shapes, dtypes, values
    of constants (bit for bit), outputs, and the containers of arguments and results do.

    >>> import numpy as np, xform as xf
    >>> p = xf.make_program(lambda x: np.sin(x) + 1.0)(np.ones(3))
    >>> q = xf.make_program(lambda x: np.cos(x) + 1.0)(np.ones(3))
    >>> xf.diff(p, q).what, xf.diff(p, q).position, bool(xf.diff(p, p))
    ('the operator', 0, False)
    """
    matching: dict[int, int] = {}
    if len(left.inputs) != len(right.inputs):
        return Difference("the number of inputs", None, len(left.inputs), len(right.inputs))
    for ours, theirs in zip(left.inputs, right.inputs, strict=True):
        if ours.aval != theirs.aval:
            return Difference("an input", None, ours, theirs)
        matching[ours.index] = theirs.index
    for position, (first, second) in enumerate(zip(left.equations, right.equations, strict=False)):
        what = between(first, second, matching)
        if what:
            return Difference(what, position, first, second)
        matching |= {v.index: w.index for v, w in zip(first.outputs, second.outputs, strict=True)}
    counts = [len(program.equations) for program in (left, right)]
    if counts[0] != counts[1]:
        rest = [program.equations[min(counts)] if count > min(counts) else None
                for program, count in zip((left, right), counts, strict=True)]  # fmt: skip
        return Difference("only one of them goes on", min(counts), *rest)
    return around(left, right, matching)


def around(left: Program, right: Program, matching: dict[int, int]) -> Difference:
    """Return the difference in what stands after the equations."""
    if len(left.outputs) != len(right.outputs):
        return Difference("the number of outputs", None, len(left.outputs), len(right.outputs))
    for ours, theirs in zip(left.outputs, right.outputs, strict=True):
        if not same_operand(ours, theirs, matching):
            return Difference("an output", None, ours, theirs)
    for what, name in (("the containers of arguments", "in_structure"), ("the containers of results", "out_structure"),
                       ("the layer that recorded a derivative", "derivative")):  # fmt: skip
        ours, theirs = getattr(left, name), getattr(right, name)
        if ours != theirs:
            return Difference(what, None, repr(ours), repr(theirs))
    return Difference()


def between(first: Equation, second: Equation, matching: dict[int, int]) -> str:
    """Return what differs between two equations, "" for nothing."""
    if type(first.op) is not type(second.op):
        return "the operator"
    changed = differing_parameter(first.op, second.op)
    if changed:
        return changed
    if len(first.inputs) != len(second.inputs):
        return "the number of operands"
    for number, (ours, theirs) in enumerate(zip(first.inputs, second.inputs, strict=True)):
        if not same_operand(ours, theirs, matching):
            return f"operand {number}"
    if [v.aval for v in first.outputs] != [v.aval for v in second.outputs]:
        return "shape or dtype of the result"
    return ""


def differing_parameter(first: Operator, second: Operator) -> str:
    """Return which parameter differs between two operators of one class, "" for none."""
    if first is second:
        return ""
    try:
        ours, theirs = parameters(first), parameters(second)
    except ProgramFormatError:  # parameters that are no fields
        return "" if first == second else "the operator"
    inner, other = programs_in(first), programs_in(second)
    for name in inner.keys() & other.keys():
        found = diff(inner[name], other[name])
        if found:
            return f"the parameter {name}, a program:\n{textwrap.indent(repr(found), '    ')}"
    for name in ours | theirs:
        if name not in ours or name not in theirs or not same_value(ours[name], theirs[name]):
            return f"the parameter {name}"
    return ""


def same_operand(ours: Variable | Literal, theirs: Variable | Literal, matching: dict[int, int]) -> bool:
    """Whether two operands are the same: numbers and constants by value, variables by where they come from."""
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, Literal | Constant):
        return same_value(ours.value, theirs.value)  # type: ignore[union-attr]
    return matching.get(ours.index) == theirs.index  # type: ignore[union-attr]


def same_value(x: Any, y: Any) -> bool:
    """Whether two parameters or constants are the same, bit for bit: NaN is NaN, 1 is not 1.0, 0.0 is not -0.0.

    >>> same_value((1, float("nan")), (1, float("nan"))), same_value(0.0, -0.0), same_value(1, True)
    (True, False, False)
    """
    if x is y or type(x) is not type(y):
        return x is y
    if attrs.has(type(x)) and not isinstance(x, Operator):
        x, y = ([getattr(each, field.name) for field in attrs.fields(type(x))] for each in (x, y))
    if isinstance(x, tuple | list):
        return len(x) == len(y) and all(map(same_value, x, y))
    if isinstance(x, dict):
        return x.keys() == y.keys() and all(same_value(value, y[key]) for key, value in x.items())
    if isinstance(x, Operator | Program):
        return not (diff(x, y) if isinstance(x, Program) else differing_parameter(x, y))
    if not isinstance(x, Value | bool | int) and namespace_of(x) is not None:
        a, b = to_host(x), to_host(y)
        return (a.shape, a.dtype) == (b.shape, b.dtype) and a.tobytes() == b.tobytes()
    return inspect.unwrap(x) is inspect.unwrap(y) if callable(x) else bool(x == y)
