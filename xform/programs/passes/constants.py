"""What does not depend on the inputs is computed once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from xform.core.aval import Aval
from xform.core.backend import HOST_TYPES
from xform.core.operator import Operator
from xform.ops.base import Elementwise
from xform.ops.broadcast import BroadcastTo, Lead
from xform.programs.passes.draft import Draft, Inputs, Number, Operand, Rules
from xform.programs.program import Constant, Literal

__all__ = ["folding", "known_value", "number_of"]

#: a constant may be larger than what it was computed from up to this size
LARGEST_BYTES = 1 << 20
#: views of constants cost nothing, and rules see through them
KEPT = frozenset({BroadcastTo, Lead})


folding = Rules()


@folding.on(Operator, given=(Constant, Number))
def fold(draft: Draft, op: Operator, inputs: Inputs, aval: Aval) -> Operand | None:
    """Compute an operation on constants now, unless it warns or raises, which it then does at each call."""
    if type(op) in KEPT or None in aval.shape:
        return None
    values = []
    spread = not isinstance(op, Elementwise)  # elementwise operations are computed before they are broadcast
    for operand in inputs:
        value = known_value(draft, operand, spread=spread)
        if value is None:
            return None
        values.append(value)
    if aval.size * aval.dtype.itemsize > max(LARGEST_BYTES, sum(getattr(value, "nbytes", 0) for value in values)):
        return None
    try:
        with np.errstate(all="raise"):
            return draft.constant(op.evaluate(np, *values))
    except Exception:  # noqa: BLE001  (a user's operator may raise anything)
        return None


def known_value(draft: Draft, operand: Operand, *, spread: bool) -> Any:
    """Return the number or NumPy array of an operand that is known now, with `spread` also a broadcast; or None."""
    if isinstance(operand, Literal):
        return operand.value
    if isinstance(operand, Constant):
        return operand.value if type(operand.value) in HOST_TYPES else None
    made = draft.maker(operand, BroadcastTo) if spread else None
    if made is not None and isinstance(made.inputs[0], Constant) and small(operand.aval):
        return made.op.evaluate(np, made.inputs[0].value)
    return None


def small(aval: Aval) -> bool:
    """Whether an array of this aval is a small constant."""
    return math.prod(aval.shape) * aval.dtype.itemsize <= LARGEST_BYTES  # type: ignore[arg-type]


def number_of(draft: Draft, operand: Operand) -> Any:
    """Return the Python number that all elements of an operand are known to be, or None.

    Sees through a broadcast. Only numbers that Python holds exactly as NumPy does are told.
    """
    spread = draft.maker(operand, BroadcastTo)
    if spread is not None:
        operand = spread.inputs[0]
    if isinstance(operand, Literal):
        return operand.value
    if isinstance(operand, Constant) and operand.aval.shape == () and operand.aval.dtype.char in "?bhilqBHILQefdFD":
        value = operand.value
        return value.item() if hasattr(value, "item") else value
    return None
