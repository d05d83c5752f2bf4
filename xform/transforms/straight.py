"""The straight paths of a tape with nothing below: operations of one or two NumPy operands.

Compute, decide what is tracked, make one tuple. Whatever is not so simple is handed to the general path, which makes
the same entries (`transforms.recording`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from xform.core.aval import Aval
from xform.core.backend import HOST_TYPES
from xform.core.operator import Operator
from xform.core.stack import BOTTOM, Interpret, cursor
from xform.core.value import Array, Value
from xform.transforms.plans import ARRAY_TYPES, CALL, LEAF, MANY, NOTHING, OUT, SCATTER, SEVERAL, Entry, fitted

__all__ = ["GradValue", "bind_binary", "bind_unary", "tracked"]

_get = cursor.get
_set = cursor.set


class GradValue(Value):
    """A value that a tape tracks: the value below, the tape, and the entry that made it."""

    __slots__ = ("entry", "owner")
    entry: Entry
    owner: Any

    def __deepcopy__(self, seen: dict[int, Any]) -> GradValue:
        """Return the value itself: a copy of its tape would not be on the stack."""
        return self


def tracked(tape: Any, data: Any, entry: Entry) -> GradValue:
    """Return a value of a tape."""
    value = GradValue()
    value.data = data
    value.owner = tape
    value.entry = entry
    return value


def note_of(tape: Any) -> Callable[[Any, Operator], None]:
    """Return what remembers an array that an operation saves, on the straight paths."""
    return no_note if tape.guard is None else tape.guard.note


def no_note(value: Any, op: Operator) -> None:
    """Remember nothing."""


def bind_unary(  # noqa: C901  (straight paths: a call costs 60 ns)
    tape: Any, general: Interpret
) -> Callable[[Operator, Any], Any]:
    """Return the function that records an operation of one operand."""
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
            if (out := bottom(op, (own,))) is own:  # stop_gradient gives it to the user
                note(own, op)
            return out
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


def bind_binary(  # noqa: C901, PLR0915  (four straight paths: a call among them costs 60 ns)
    tape: Any, general: Interpret
) -> Callable[[Operator, Any, Any], Any]:
    """Return the function that records an operation of two operands."""
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
            if right is matrix and (save == 1 or (save == SEVERAL and plan.holds)):
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
            if left is matrix and (save == 0 or (save == SEVERAL and plan.holds)):
                note(x, op)
        else:
            return general(op, (x, y))
        if parent[1] == LEAF and (kept is own or (save == SEVERAL and plan.holds)):
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
        save, code, several = plan.save, plan.code, plan.holds
        kept = None if save == NOTHING else y if save == 1 else x if save == 0 else out
        if save == SEVERAL:
            kept = plan.keep(0, op, (x, y), out)
        save, right_code = plan.right_save, plan.right_code
        other = None if save == NOTHING else x if save == 0 else y if save == 1 else out
        if save == SEVERAL:
            other = plan.keep(1, op, (x, y), out)
        if left.entry[1] == LEAF and (kept is x or other is x or several):
            note(x, op)
        if right.entry[1] == LEAF and (kept is y or other is y or several):
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
