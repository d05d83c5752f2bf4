"""Recording: what a tape does with an operation that reaches it.

Operations of one or two operands take a straight path, one with nothing below and NumPy operands, one above another
layer: compute, decide what is tracked, make one tuple. Everything else takes the general one. All make the same
entries.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import numpy as np

from xform.core.aval import Aval, dtype_of
from xform.core.backend import HOST_TYPES, namespace_of
from xform.core.bottom import escaped
from xform.core.operator import Operator
from xform.core.place import place
from xform.core.rules import like_of
from xform.core.stack import BOTTOM, Interpret, Level, cursor, is_watched
from xform.core.value import Array, Value
from xform.layers import lifted
from xform.ops.structural import refuse_tracked
from xform.transforms.plans import (
    ARRAY_TYPES,
    CALL,
    LEAF,
    MANY,
    NOTHING,
    OUT,
    OUTPUT,
    SCATTER,
    SEVERAL,
    Entry,
    elementwise,
    fitted,
    plan_of,
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

    def __deepcopy__(self, seen: dict[int, Any]) -> GradValue:
        """Return the value itself: a copy of its tape would not be on the stack."""
        return self


def place_on(tape: Any, below: Level) -> Level:
    """Return the level at which a tape records on top of `below`.

    Operations of one or two operands take a straight path: compute, decide what is tracked, make one tuple.
    """
    general = _bind_general(tape, below)
    if tape.guard is not None and tape.guard.full:
        return Level(tape, below, tape.guard.noting(general, functools.partial(entries_of, tape)))
    if below is BOTTOM:
        unary, binary = _bind_unary(tape, general), _bind_binary(tape, general)
    else:
        unary, binary = _bind_above(tape, below, general)

    def interpret(op: Operator, values: tuple[Any, ...]) -> Any:
        count = len(values)
        if count == 1:
            return unary(op, values[0])
        return binary(op, *values) if count == 2 else general(op, values)

    return Level(tape, below, interpret, unary, binary)


def entries_of(tape: Any, out: Any) -> list[Entry]:
    """Return the entries of the results of one operation, that of the operation itself where it has several."""
    results = out if isinstance(out, tuple) else (out,)
    own = [each.entry for each in results if type(each) is GradValue and each.owner is tape]
    return [entry[4] if entry[1] == OUTPUT else entry for entry in own]


def _bind_unary(  # noqa: C901  (straight paths: a call costs 60 ns)
    tape: Any, general: Interpret
) -> Callable[[Operator, Any], Any]:
    sequence, arrays, bottom, note = tape.sequence, ARRAY_TYPES, BOTTOM.interpret, note_of(tape)

    def unary(op: Operator, x: Any) -> Any:
        plan = op.plan
        if plan is None or type(x) is not GradValue or x.owner is not tape or tape.paused:
            return general(op, (x,))
        own = x.data
        if type(own) not in arrays:
            return general(op, (x,))
        if not plan.fast:
            return slower(op, plan, x, own)
        out = plan.kernel(own)
        save = plan.save
        kept = own if save == 0 else out if save == OUT else None if save == NOTHING else plan.keep(0, op, (own,), out)
        parent = x.entry
        if parent[1] == LEAF and save != OUT:
            note(own, op)
        value = GradValue()
        value.data = out
        value.owner = tape
        value.entry = (sequence(), plan.code, kept, None, parent)
        return value

    def slower(op: Operator, plan: Any, x: GradValue, own: Any) -> Any:
        """Record what has no kernel: 3 us where the general path takes 8."""
        residual: tuple[Any, ...]
        if plan.blocked:
            return bottom(op, (own,))
        if x.entry[1] == LEAF:
            note(own, op)
        if plan.single:
            here = _get()
            _set(BOTTOM)
            try:
                out, pullback = plan.rule(op, (True,), own)
            finally:
                _set(here)
            code, residual = CALL, (pullback, (0,), op, None, None)
        elif plan.linear:
            try:
                out = op.evaluate(np, own)
            except (TypeError, ValueError, IndexError):  # said again with operator, operands and line
                return general(op, (x,))
            if out.dtype is not own.dtype:
                return general(op, (x,))
            likes = (Aval(own.shape, own.dtype),)
            code, residual = (SCATTER, (op, likes, plan.rule)) if plan.scatters else (plan.codes[0], (op, likes, 0))
        else:
            return general(op, (x,))
        if out.dtype.kind not in "fc":
            return out
        return tracked(tape, out, (sequence(), code, residual, None, x.entry))

    return unary


def _bind_binary(  # noqa: C901, PLR0915  (four straight paths: a call among them costs 60 ns)
    tape: Any, general: Interpret
) -> Callable[[Operator, Any, Any], Any]:
    sequence, arrays, host, matrix, note = tape.sequence, ARRAY_TYPES, HOST_TYPES, np.ndarray, note_of(tape)

    def binary(op: Operator, x: Any, y: Any) -> Any:  # noqa: C901, PLR0911, PLR0912  (one straight path: a call costs 60 ns)
        plan = op.plan
        if plan is None or tape.paused:
            return general(op, (x, y))
        if not plan.fast:
            return product(op, plan, x, y) if plan.product else general(op, (x, y))
        left, right = type(x), type(y)
        if left is GradValue and x.owner is tape:
            if right is GradValue and y.owner is tape:
                return both(op, plan, x, y)
            own = x.data
            if right is Array:
                y = y.data
                right = type(y)
            if right not in host or type(own) not in arrays:
                return general(op, (x, y))
            try:
                out = plan.kernel(own, y)
            except (TypeError, ValueError):  # said again with operator, operands and line
                return general(op, (x, y))
            save = plan.save
            kept = None if save == NOTHING else y if save == 1 else own if save == 0 else out
            if save == SEVERAL:
                kept = plan.keep(0, op, (own, y), out)
            code = plan.code
            parent = x.entry
            if save == 1 and right is matrix:
                note(y, op)
        elif right is GradValue and y.owner is tape:
            own = y.data
            if left is Array:
                x = x.data
                left = type(x)
            if left not in host or type(own) not in arrays:
                return general(op, (x, y))
            try:
                out = plan.kernel(x, own)
            except (TypeError, ValueError):
                return general(op, (x, y))
            save = plan.right_save
            kept = None if save == NOTHING else x if save == 0 else own if save == 1 else out
            if save == SEVERAL:
                kept = plan.keep(1, op, (x, own), out)
            code = plan.right_code
            parent = y.entry
            if save == 0 and left is matrix:
                note(x, op)
        else:
            return general(op, (x, y))
        if kept is own and parent[1] == LEAF:
            note(own, op)
        value = GradValue()
        value.data = out
        value.owner = tape
        # same bytes and axes: same shape and dtype, since promotion and broadcasting only ever widen
        size = own.nbytes
        if size == out.nbytes and size and own.ndim == out.ndim:
            value.entry = (sequence(), code, kept, None, parent)
        else:
            value.entry = (sequence(), *fitted(code, kept, own, out), None, parent)
        return value

    def both(op: Operator, plan: Any, left: GradValue, right: GradValue) -> Any:
        x, y = left.data, right.data
        if type(x) not in arrays or type(y) not in arrays:
            return general(op, (left, right))
        try:
            out = plan.kernel(x, y)
        except (TypeError, ValueError):
            return general(op, (left, right))
        save, code = plan.save, plan.code
        kept = None if save == NOTHING else y if save == 1 else x if save == 0 else out
        if save == SEVERAL:
            kept = plan.keep(0, op, (x, y), out)
        save, right_code = plan.right_save, plan.right_code
        other = None if save == NOTHING else x if save == 0 else y if save == 1 else out
        if save == SEVERAL:
            other = plan.keep(1, op, (x, y), out)
        if left.entry[1] == LEAF and (kept is x or other is x):
            note(x, op)
        if right.entry[1] == LEAF and (kept is y or other is y):
            note(y, op)
        size, ndim = out.nbytes, out.ndim
        if x.nbytes != size or x.ndim != ndim or not size:
            code, kept = fitted(code, kept, x, out)
        if y.nbytes != size or y.ndim != ndim or not size:
            right_code, other = fitted(right_code, other, y, out)
        residual = (code, kept, right_code, other)
        return tracked(tape, out, (sequence(), MANY, residual, None, left.entry, right.entry))

    def product(op: Operator, plan: Any, x: Any, y: Any) -> Any:  # noqa: C901
        """Record a product of two matrices: each step keeps the other operand alone (W3: 4.2 x without)."""
        left = right = None
        a, b = x, y
        if type(x) is GradValue and x.owner is tape:
            left, a = x.entry, x.data
        elif type(x) is Array:
            a = x.data
        if type(y) is GradValue and y.owner is tape:
            right, b = y.entry, y.data
        elif type(y) is Array:
            b = y.data
        if type(a) is not matrix or type(b) is not matrix or a.ndim != 2 or b.ndim != 2 or a.dtype is not b.dtype:
            return general(op, (x, y))
        try:
            out = plan.kernel(a, b)
        except (TypeError, ValueError):
            return general(op, (x, y))
        if left is None or left[1] == LEAF:
            note(a, op)
        if right is None or right[1] == LEAF:
            note(b, op)
        if right is None:
            if left is None:
                return general(op, (x, y))
            return tracked(tape, out, (sequence(), plan.code, b, None, left))
        if left is None:
            return tracked(tape, out, (sequence(), plan.right_code, a, None, right))
        return tracked(tape, out, (sequence(), MANY, (plan.code, b, plan.right_code, a), None, left, right))

    return binary


def _bind_above(  # noqa: C901  (straight paths: a call costs 60 ns)
    tape: Any, below: Level, general: Interpret
) -> tuple[Callable[[Operator, Any], Any], Callable[[Operator, Any, Any], Any]]:
    """Return the straight paths above another layer: half of the 8 us that the general path takes."""
    sequence, lower_unary, lower_binary, unseen = tape.sequence, below.unary, below.binary, not is_watched(below)
    look = look_of(tape)

    def unary(op: Operator, x: Any) -> Any:
        if type(x) is not GradValue or x.owner is not tape:
            return lower_unary(op, x)
        plan = op.plan
        if plan is None or tape.paused or not (plan.fast or plan.linear):
            return general(op, (x,))
        own = x.data
        out = lower_unary(op, own)
        if plan.fast:
            code, kept = elementwise(plan, op, (own,), out, 0)
        elif is_inexact(out):
            likes = (like_of(own),)
            code, kept = (SCATTER, (op, likes, plan.rule)) if plan.scatters else (plan.codes[0], (op, likes, 0))
        else:
            return out
        if look is not None and x.entry[1] == LEAF:
            look(own, op, kept)
        site = None if unseen else place.get().located()
        return tracked(tape, out, (sequence(), code, kept, site, x.entry))

    def binary(op: Operator, x: Any, y: Any) -> Any:
        left, right = type(x) is GradValue and x.owner is tape, type(y) is GradValue and y.owner is tape
        if not left and not right:
            return lower_binary(op, x, y)
        plan = op.plan
        if plan is None or tape.paused or not plan.fast:
            return general(op, (x, y))
        data = a, b = x.data if left else lifted(x), y.data if right else lifted(y)
        out = lower_binary(op, a, b)
        site = None if unseen else place.get().located()
        entry: Entry
        if left and right:
            residual = (*elementwise(plan, op, data, out, 0), *elementwise(plan, op, data, out, 1))
            entry = (sequence(), MANY, residual, site, x.entry, y.entry)
        elif left:
            entry = (sequence(), *elementwise(plan, op, data, out, 0), site, x.entry)
        else:
            entry = (sequence(), *elementwise(plan, op, data, out, 1), site, y.entry)
        if look is not None:
            if not left or x.entry[1] == LEAF:
                look(a, op, entry[2])
            if not right or y.entry[1] == LEAF:
                look(b, op, entry[2])
        return tracked(tape, out, entry)

    return unary, binary


def _bind_general(tape: Any, below: Level) -> Interpret:  # noqa: C901  (it holds `general`)
    """Return the function that interprets any operation at this place."""
    interpret, raw, unseen = below.interpret, below is BOTTOM, not is_watched(below)
    look = look_of(tape)

    def general(op: Operator, values: tuple[Any, ...]) -> Any:  # noqa: C901, PLR0912  (one straight path: a call costs 60 ns)
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
            if tape.ended and not op.peels:  # reached through a carried or copied stack
                raise escaped(op, own)
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
        outer = None if plan.builtin else recording_tape.set(tape)
        try:
            out, kept = record(plan, op, operands, parents, interpret)
        finally:
            _set(here)
            if outer is not None:
                recording_tape.reset(outer)
        if kept is None:
            return out
        if look is not None:
            for parent, each in zip(parents, operands, strict=True):
                if parent is None or parent[1] == LEAF:
                    look(each, op, kept[1])
        if op.identity_like:
            return tracked(tape, out, own.entry)
        # a frame walk costs 500 ns: only where something below can see the line, or where a user's rule may raise
        site = None if unseen and plan.builtin and not tape.foreign else place.get().located()
        return _outputs(tape, op, out, kept, site)

    return general


def note_of(tape: Any) -> Callable[[Any, Operator], None]:
    """Return what remembers an array that an operation saves, on the straight paths."""
    return no_note if tape.guard is None else tape.guard.note


def look_of(tape: Any) -> Callable[[Any, Operator, Any], None] | None:
    """Return what looks for an array in what is saved, on the other paths; a full guard looks for itself."""
    return None if tape.guard is None or tape.guard.full else tape.guard.look


def no_note(value: Any, op: Operator) -> None:
    """Remember nothing."""


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


def is_foreign(x: Any) -> bool:
    """Whether a value is an array of another library than NumPy, raw or in an `Array`."""
    if type(x) is Array:
        x = x.data
    return type(x) not in HOST_TYPES and not isinstance(x, Value) and namespace_of(x) not in (None, np)


def is_inexact(x: Any) -> bool:
    """Whether a value has a floating or complex dtype."""
    return dtype_of(x).kind in "fc"
