"""Recording: what a tape does with an operation that reaches it.

With nothing below and NumPy operands, operations of one or two operands take a straight path: compute, decide what is
tracked, make one tuple. Everything else takes the general one. Both make the same entries.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import numpy as np

from xform.core.aval import Aval, aval_of, dtype_of
from xform.core.backend import HOST_TYPES, namespace_of
from xform.core.operator import Operator
from xform.core.place import place
from xform.core.stack import BOTTOM, Interpret, Level, cursor
from xform.core.value import Array, Value
from xform.layers import lifted
from xform.ops.structural import refuse_tracked
from xform.transforms.plans import (
    ADJUST,
    ARRAY_TYPES,
    MANY,
    NOTHING,
    OUT,
    OUTPUT,
    Entry,
    fast_plans,
    linear_plans,
    plan_of,
    product_plans,
    record,
)

__all__ = ["GradValue", "is_inexact", "place_on", "recording_tape", "tracked"]

_get = cursor.get
_set = cursor.set
#: the tape that runs a user's rule at the moment
recording_tape: ContextVar[Any] = ContextVar("xform recording tape", default=None)


class GradValue(Value):
    """A value that a tape tracks: the value below, the tape, and the entry that made it."""

    __slots__ = ("entry", "owner")
    entry: Entry
    owner: Any


def place_on(tape: Any, below: Level) -> Level:
    """Return the level at which a tape records on top of `below`.

    With nothing below and NumPy operands, operations of one or two operands take the straight path: compute, decide
    what is tracked, make one tuple.
    """
    general = _bind_general(tape, below)
    if below is not BOTTOM:
        return Level(tape, below, general)
    unary, binary = _bind_unary(tape, general), _bind_binary(tape, general)

    def interpret(op: Operator, values: tuple[Any, ...]) -> Any:
        count = len(values)
        if count == 1:
            return unary(op, values[0])
        return binary(op, *values) if count == 2 else general(op, values)

    return Level(tape, below, interpret, unary, binary)


def _bind_unary(tape: Any, general: Interpret) -> Callable[[Operator, Any], Any]:
    sequence, arrays, fast, linear = tape.sequence, ARRAY_TYPES, fast_plans, linear_plans

    def unary(op: Operator, x: Any) -> Any:
        plan = fast.get(type(op))
        if plan is None or type(x) is not GradValue or x.owner is not tape or tape.paused:
            return linearly(op, x)
        own = x.data
        if type(own) not in arrays:
            return general(op, (x,))
        out = plan.kernel(own)
        save = plan.saves[0]
        kept = own if save == 0 else out if save == OUT else None if save == NOTHING else plan.several(0, op, (own,), out)
        value = GradValue()
        value.data = out
        value.owner = tape
        value.entry = (sequence(), plan.codes[0], kept, None, x.entry)
        return value

    def linearly(op: Operator, x: Any) -> Any:
        plan = linear.get(type(op))
        if plan is None or type(x) is not GradValue or x.owner is not tape or tape.paused or type(x.data) not in arrays:
            return general(op, (x,))
        own = x.data
        try:
            out = op.evaluate(np, own)
        except (TypeError, ValueError, IndexError):  # said again with operator, operands and line
            return general(op, (x,))
        if out.dtype is not own.dtype:
            return general(op, (x,))
        residual = (op, (Aval(own.shape, own.dtype),), 0)
        return tracked(tape, out, (sequence(), plan.codes[0], residual, None, x.entry))

    return unary


def _bind_binary(tape: Any, general: Interpret) -> Callable[[Operator, Any, Any], Any]:
    sequence, arrays, host, fast, products = tape.sequence, ARRAY_TYPES, HOST_TYPES, fast_plans, product_plans

    def binary(op: Operator, x: Any, y: Any) -> Any:
        plan = fast.get(type(op))
        if plan is None or tape.paused:
            return product(op, x, y)
        left = type(x) is GradValue and x.owner is tape
        right = type(y) is GradValue and y.owner is tape
        if left == right:
            return both(op, plan, x, y) if left else general(op, (x, y))
        if left:
            operand, parent, own, other = 0, x.entry, x.data, y.data if type(y) is Array else y
            first, second = own, other
        else:
            operand, parent, own, other = 1, y.entry, y.data, x.data if type(x) is Array else x
            first, second = other, own
        if type(own) not in arrays or type(other) not in host:
            return general(op, (x, y))
        try:
            out = plan.kernel(first, second)
        except (TypeError, ValueError):  # said again with operator, operands and line
            return general(op, (x, y))
        save = plan.saves[operand]
        if save == NOTHING:
            kept = None
        elif save >= 0:
            kept = second if save else first
        else:
            kept = out if save == OUT else plan.several(operand, op, (first, second), out)
        # same bytes and axes: same shape and dtype, since promotion and broadcasting only ever widen
        if own.nbytes == out.nbytes and own.ndim == out.ndim and own.nbytes:
            entry: Entry = (sequence(), plan.codes[operand], kept, None, parent)
        else:
            entry = _adjusted((sequence(), plan.codes[operand], kept, None, parent), own, out)
        value = GradValue()
        value.data = out
        value.owner = tape
        value.entry = entry
        return value

    def both(op: Operator, plan: Any, left: GradValue, right: GradValue) -> Any:
        x, y = left.data, right.data
        if type(x) not in arrays or type(y) not in arrays:
            return general(op, (left, right))
        try:
            out = plan.kernel(x, y)
        except (TypeError, ValueError):  # said again with operator, operands and line
            return general(op, (left, right))
        pairs = (_pair(plan, 0, op, x, y, out), _pair(plan, 1, op, x, y, out))
        return tracked(tape, out, (sequence(), MANY, pairs, None, left.entry, right.entry))

    def product(op: Operator, x: Any, y: Any) -> Any:
        """Record a product of two matrices: each step keeps the other operand alone (W3: 4.2 x without)."""
        plan = products.get(type(op))
        left = x.entry if type(x) is GradValue and x.owner is tape else None
        right = y.entry if type(y) is GradValue and y.owner is tape else None
        a = x.data if left is not None or type(x) is Array else x
        b = y.data if right is not None or type(y) is Array else y
        if (
            plan is None
            or tape.paused
            or left is right
            or type(a) is not np.ndarray
            or type(b) is not np.ndarray
            or a.ndim != 2
            or b.ndim != 2
            or a.dtype is not b.dtype
        ):
            return general(op, (x, y))
        try:
            out = plan.kernel(a, b)  # type: ignore[misc]
        except (TypeError, ValueError):  # said again with operator, operands and line
            return general(op, (x, y))
        if right is None:
            return tracked(tape, out, (sequence(), plan.saves[0], b, None, left))
        if left is None:
            return tracked(tape, out, (sequence(), plan.saves[1], a, None, right))
        pairs = ((plan.saves[0], b), (plan.saves[1], a))
        return tracked(tape, out, (sequence(), MANY, pairs, None, left, right))

    return binary


def _bind_general(tape: Any, below: Level) -> Interpret:
    """Return the function that interprets any operation at this place."""
    interpret, raw = below.interpret, below is BOTTOM

    def general(op: Operator, values: tuple[Any, ...]) -> Any:
        parents: list[Any] = []
        data: list[Any] = []
        own = None
        for value in values:
            if type(value) is GradValue and value.owner is tape:
                own = value
                parents.append(value.entry)
                data.append(value.data)
            else:
                parents.append(None)
                data.append(value if raw else lifted(value))
        if own is None:
            return interpret(op, values)
        if tape.paused:
            return interpret(op, tuple(data))
        if raw and any(map(is_foreign, data)):  # rules on values: such libraries promote otherwise than NumPy
            data = [lifted(value) for value in data]
            tape.foreign = True
        elif raw:  # rules on raw arrays: an `Array` among the operands would come out in a raw walk
            data = [value.data if type(value) is Array else value for value in data]
        operands = tuple(data)
        if op.attribute_like:
            refuse_tracked(op, own)
            return interpret(op, operands)
        plan = plan_of(op)
        here = _get()
        _set(below)
        if not plan.builtin:
            recording_tape.set(tape)
        try:
            out, kept = record(plan, op, operands, parents, interpret)
        finally:
            _set(here)
        if kept is None:
            return out
        if op.identity_like:
            return tracked(tape, out, own.entry)
        # a frame walk costs 500 ns: only where something below can see the line, or where a user's rule may raise
        site = None if raw and plan.builtin and not tape.foreign else place.get().located()
        return _outputs(tape, op, out, kept, site)

    return general


def tracked(tape: Any, data: Any, entry: Entry) -> GradValue:
    """Return a value of a tape."""
    value = GradValue()
    value.data = data
    value.owner = tape
    value.entry = entry
    return value


def _outputs(tape: Any, op: Operator, out: Any, kept: tuple[Any, ...], here: Any) -> Any:
    """Make the entry, with the forward place where something can see it, and the tracked results."""
    entry = (tape.sequence(), kept[0], kept[1], here, *kept[2:])
    if not op.multiple_outputs:
        return tracked(tape, out, entry) if is_inexact(out) else out
    count = len(out)
    return tuple(
        tracked(tape, each, (tape.sequence(), OUTPUT, (position, count), here, entry)) if is_inexact(each) else each
        for position, each in enumerate(out)
    )


def _pair(plan: Any, operand: int, op: Operator, x: Any, y: Any, out: Any) -> tuple[int, Any]:
    """Return code and residual of one operand of two that are tracked."""
    save, code, own = plan.saves[operand], plan.codes[operand], y if operand else x
    if save == NOTHING:
        kept: Any = None
    elif save >= 0:
        kept = y if save else x
    else:
        kept = out if save == OUT else plan.several(operand, op, (x, y), out)
    if own.nbytes == out.nbytes and own.ndim == out.ndim and own.nbytes:
        return code, kept
    like = aval_of(own)
    if like.shape == out.shape and like.dtype == out.dtype:
        return code, kept
    return ADJUST, (code, kept, like)


def _adjusted(entry: Entry, own: Any, out: Any) -> Entry:
    """Return an entry whose cotangent is brought to the operand's shape and dtype, where they differ."""
    like, full = aval_of(own), aval_of(out)
    if like.shape == full.shape and like.dtype == full.dtype:
        return entry
    return (entry[0], ADJUST, (entry[1], entry[2], like), *entry[3:])


def is_foreign(x: Any) -> bool:
    """Whether a value is an array of another library than NumPy, raw or in an `Array`."""
    if type(x) is Array:
        x = x.data
    return type(x) not in HOST_TYPES and not isinstance(x, Value) and namespace_of(x) not in (None, np)


def is_inexact(x: Any) -> bool:
    """Whether a value has a floating or complex dtype."""
    return dtype_of(x).kind in "fc"
