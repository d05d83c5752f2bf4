"""Where a map that should be linear adds something: found in its record, and then tried at zero.

A record shows which operations add, or put in place, what does not depend on the inputs. Whether that is lost on the
way (`f(x + t) - f(x)` of a linear `f` adds `x`, and is linear) the numbers tell, where there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xform.core.devices import to_host
from xform.core.operator import Operator
from xform.core.stack import concrete
from xform.ops.arithmetic import Add, Sub
from xform.ops.create import zeros_like
from xform.ops.joining import Concatenate, Stack
from xform.ops.padding import Pad
from xform.ops.selection import Where
from xform.ops.updates import IndexAdd, IndexSet
from xform.programs.program import Constant, Equation, Literal, Variable
from xform.transforms.recording import is_inexact

__all__ = ["adds_something"]

#: operations that add their operands, or put one beside the other: from the first of them to the last
ADDING: dict[type[Operator], tuple[int, int | None]] = {
    Add: (0, 2), Sub: (0, 2), Where: (1, 3), Concatenate: (0, None), Stack: (0, None), IndexAdd: (0, 2),
    IndexSet: (0, 2),
}  # fmt: skip


def adds_something(
    equations: Sequence[Equation], outs: Sequence[Any], linear: Callable[[list[Any]], Any], likes: Sequence[Any]
) -> Operator | None:
    """Return the operation by which a recorded map is not zero at zero, up to rounding; None where it is."""
    added = [(each.op, size) for each in reached(equations, outs) if (size := adds(each))]
    if not added:
        return None
    zeros = [None if like is None or not is_inexact(like) else zeros_like(like) for like in likes]
    found = [each for each in linear(zeros)[1] if each is not None]
    rounding = 1e-6 * max(size for _, size in added)
    return added[0][0] if any(concrete(each) is None or size_of(each) > rounding for each in found) else None


def reached(equations: Sequence[Equation], outs: Sequence[Any]) -> list[Equation]:
    """Return the equations that some of the outputs need."""
    needed = {out.index for out in outs}
    found = []
    for equation in reversed(equations):
        if any(out.index in needed for out in equation.outputs):
            needed.update(each.index for each in equation.inputs if isinstance(each, Variable))
            found.append(equation)
    return found[::-1]


def adds(equation: Equation) -> float:
    """Return how large what is no input is that an operation adds to one."""
    op = equation.op
    if isinstance(op, Pad):
        return size_of(op.fill) if op.mode == "constant" else 0.0
    place = ADDING.get(type(op))
    if place is None:
        return 0.0
    others = [each for each in equation.inputs[slice(*place)] if isinstance(each, Literal | Constant)]
    return max([size_of(each.value) for each in others], default=0.0)


def size_of(value: Any) -> float:
    """Return the largest magnitude of a value that is known, NaN left out."""
    raw = None if value is None else concrete(value)
    if raw is None:
        return 0.0
    sizes = np.abs(np.asarray(to_host(raw)))
    return float(np.max(sizes, initial=0.0, where=sizes == sizes))  # noqa: PLR0124  (NaN differs from itself)
