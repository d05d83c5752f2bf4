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
from xform.ops.products import Matmul
from xform.transforms.plans import ARRAY_TYPES, CALL, LEAF, MANY, NOTHING, OUT, SCATTER, SEVERAL, Entry, fitted
from xform.values import BINARY

__all__ = ["GradValue", "bind_binary", "bind_unary", "tracked"]

_get = cursor.get
_set = cursor.set
matrix = np.ndarray


class GradValue(Value):
    """A value that a tape tracks: the value below, the tape, and the entry that made it."""

    __slots__ = ("entry", "owner")
    entry: Entry
    owner: Any


def tracked(tape: Any, data: Any, entry: Entry) -> GradValue:
    """Return a value of a tape."""
    value = GradValue()
    value.data = data
    value.owner = tape
    value.entry = entry
    return value


def bind_unary(  # noqa: C901  (straight paths: a call costs 60 ns)
    tape: Any, general: Interpret
) -> Callable[[Operator, Any], Any]:
    """Return the function that records an operation of one operand."""
    sequence, arrays, bottom, note = tape.sequence, ARRAY_TYPES, BOTTOM.interpret, tape.note

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
        if plan.single:
            if x.entry[1] == LEAF:
                note(own, op)
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
            if getattr(out, "dtype", None) is not own.dtype:  # of objects a sum may be anything
                return general(op, (x,))
            if out.base is not None and x.entry[1] == LEAF:  # a view, of which others may save a part
                note(own, op)
            likes = (Aval(own.shape, out.dtype),)
            code, residual = (SCATTER, (op, likes, plan.rule)) if plan.scatters else (plan.codes[0], (op, likes, 0))
        else:
            return general(op, (x,))
        if out.dtype.kind not in "fc":
            return out
        return tracked(tape, out, (sequence(), code, residual, None, x.entry))

    return unary


def bind_binary(tape: Any, general: Interpret) -> Callable[[Operator, Any, Any], Any]:
    """Return the function that records an operation of two operands."""

    def binary(op: Operator, x: Any, y: Any) -> Any:
        found = record_binary(tape, op, x, y, 6)
        return general(op, (x, y)) if found is NotImplemented else found

    return binary


# Each of the following computes an operation and records it, or returns NotImplemented: the general path then says what
# is wrong, with operator, operands and line. `depth` is how far above the guard's look for the user's line the user is
# at least: a frame that is looked at costs 100 ns.


def record_binary(tape: Any, op: Operator, x: Any, y: Any, depth: int) -> Any:
    """Record an operation of two operands."""
    plan = op.plan
    if plan is None or tape.paused:
        return NotImplemented
    left, right = type(x) is GradValue and x.owner is tape, type(y) is GradValue and y.owner is tape
    if type(x) is Array:
        x = x.data
    if type(y) is Array:
        y = y.data
    if plan.fast:
        if left:
            return record_both(tape, op, plan, x, y, depth) if right else record_one(tape, op, plan, x, y, 0, depth)
        return record_one(tape, op, plan, y, x, 1, depth) if right else NotImplemented
    return product(tape, plan, x, y, depth) if plan.product and (left or right) else NotImplemented


def record_one(  # noqa: PLR0917  (one straight path)
    tape: Any, op: Operator, plan: Any, value: GradValue, other: Any, position: int, depth: int
) -> Any:
    """Record an operation of a tracked operand, at this position, and another one."""
    own = value.data
    if type(other) not in HOST_TYPES or type(own) not in ARRAY_TYPES:
        return NotImplemented
    operands = (other, own) if position else (own, other)
    try:
        out = plan.kernel(*operands)
    except (TypeError, ValueError):
        return NotImplemented
    code, save = (plan.right_code, plan.right_save) if position else (plan.code, plan.save)
    parent, holds = value.entry, False
    if save >= 0:
        kept = operands[save]
    elif save == SEVERAL:
        kept, holds = plan.keep(position, op, operands, out), plan.holds
    else:
        kept = out if save == OUT else None
    if type(other) is matrix and (kept is other or holds):
        tape.note(other, plan.name, depth)
    if parent[1] == LEAF and (kept is own or holds):
        tape.note(own, plan.name, depth)
    made = GradValue()
    made.data = out
    made.owner = tape
    # same bytes and axes: same shape and dtype, since promotion and broadcasting only ever widen
    size = own.nbytes
    if size != out.nbytes or not size or own.ndim != out.ndim:
        code, kept = fitted(code, kept, own, out)
    made.entry = (tape.sequence(), code, kept, None, parent)
    return made


def record_both(  # noqa: C901, PLR0917
    tape: Any, op: Operator, plan: Any, left: GradValue, right: GradValue, depth: int
) -> Any:
    """Record an operation whose two operands are tracked."""
    x, y = left.data, right.data
    if type(x) not in ARRAY_TYPES or type(y) not in ARRAY_TYPES:
        return NotImplemented
    try:
        out = plan.kernel(x, y)
    except (TypeError, ValueError):
        return NotImplemented
    first, second = left.entry, right.entry
    code, right_code = plan.code, plan.right_code
    kept = other = None
    if plan.saves_any:
        save = plan.save
        if save == SEVERAL:
            kept = plan.keep(0, op, (x, y), out)
        elif save != NOTHING:
            kept = y if save == 1 else x if save == 0 else out
        save = plan.right_save
        if save == SEVERAL:
            other = plan.keep(1, op, (x, y), out)
        elif save != NOTHING:
            other = x if save == 0 else y if save == 1 else out
        if first[1] == LEAF and (kept is x or other is x or plan.holds):
            tape.note(x, plan.name, depth)
        if second[1] == LEAF and (kept is y or other is y or plan.holds):
            tape.note(y, plan.name, depth)
    size, ndim = out.nbytes, out.ndim
    if x.nbytes != size or x.ndim != ndim or not size:
        code, kept = fitted(code, kept, x, out)
    if y.nbytes != size or y.ndim != ndim or not size:
        right_code, other = fitted(right_code, other, y, out)
    made = GradValue()
    made.data = out
    made.owner = tape
    made.entry = (tape.sequence(), MANY, (code, kept, right_code, other), None, first, second)
    return made


def product(tape: Any, plan: Any, x: Any, y: Any, depth: int) -> Any:  # noqa: C901
    """Record a product of two matrices: each step keeps the other operand alone (W3: 4.2 x without)."""
    first: Entry | None = None
    second: Entry | None = None
    a, b = x, y
    if type(x) is GradValue and x.owner is tape:
        first, a = x.entry, x.data
    if type(y) is GradValue and y.owner is tape:
        second, b = y.entry, y.data
    if type(a) is not matrix or type(b) is not matrix or a.ndim != 2 or b.ndim != 2 or a.dtype is not b.dtype:
        return NotImplemented
    try:
        out = plan.kernel(a, b)
    except (TypeError, ValueError):
        return NotImplemented
    noted = tape.noted
    if first is None or first[1] == LEAF:
        known = noted.get(id(a))
        if known is None or known[0]() is not a:
            tape.note(a, plan.name, depth)
    if second is None or second[1] == LEAF:
        known = noted.get(id(b))
        if known is None or known[0]() is not b:
            tape.note(b, plan.name, depth)
    made = GradValue()
    made.data = out
    made.owner = tape
    if second is None:
        made.entry = (tape.sequence(), plan.code, b, None, first)
    elif first is None:
        made.entry = (tape.sequence(), plan.right_code, a, None, second)
    else:
        made.entry = (tape.sequence(), MANY, (plan.code, b, plan.right_code, a), None, first, second)
    return made


# ------------------------------------------------------------------ Python's operators on tracked values


def methods_of(op: Operator, name: str) -> dict[str, Callable[[Any, Any], Any]]:  # noqa: C901  (it holds the methods)
    """Return a binary operator's method of tracked values, and its reflection, by name.

    On top of the stack they record at once, without the way through `Level.binary`; whatever is not so simple is left
    to the methods of all values.
    """
    general, reflection = getattr(Value, f"__{name}__"), getattr(Value, f"__r{name}__")

    def method(self: GradValue, other: Any) -> Any:
        tape, plan = self.owner, op.plan
        if _get() is not tape.straight or plan is None or tape.paused:
            return general(self, other)
        own, plain, save = self.data, other.data if type(other) is Array else other, plan.save
        if plan.quick and type(plain) is type(own) is matrix:  # what `record_one` does, 150 ns an operation sooner
            try:
                out = plan.kernel(own, plain)
            except (TypeError, ValueError):
                return general(self, other)
            kept = None
            if save == 1:
                kept = plain
                known = tape.noted.get(id(plain))
                if known is None or known[0]() is not plain:
                    tape.note(plain, plan.name, 3)
            elif save == OUT:
                kept = out
            made = GradValue()
            made.data = out
            made.owner = tape
            size = own.nbytes
            if size == out.nbytes and size and own.ndim == out.ndim:
                made.entry = (tape.sequence(), plan.code, kept, None, self.entry)
            else:
                made.entry = (tape.sequence(), *fitted(plan.code, kept, own, out), None, self.entry)
            return made
        if plan.fast and type(other) is GradValue and other.owner is tape:
            found = record_both(tape, op, plan, self, other, 4)
        else:
            found = record_binary(tape, op, self, other, 5)
        return general(self, other) if found is NotImplemented else found

    def reflected(self: GradValue, other: Any) -> Any:
        found = record_binary(self.owner, op, other, self, 5) if _get() is self.owner.straight else NotImplemented
        return reflection(self, other) if found is NotImplemented else found

    return {f"__{name}__": method, f"__r{name}__": reflected}


def product_methods(op: Operator) -> dict[str, Callable[[Any, Any], Any]]:
    """Return the method of a matrix product of tracked values by name; its reflection is that of all values."""
    general = getattr(Value, "__matmul__")  # noqa: B009  (`xform.values` installs it)

    def method(self: GradValue, other: Any) -> Any:
        tape, plan, found = self.owner, op.plan, NotImplemented
        if _get() is tape.straight and plan is not None and plan.product and not tape.paused:
            found = product(tape, plan, self, other.data if type(other) is Array else other, 4)
        return general(self, other) if found is NotImplemented else found

    return {"__matmul__": method}


for _behaviour in (product_methods(Matmul()), *[methods_of(_op, _name) for _name, _op in BINARY.items()]):
    for _name, _method in _behaviour.items():
        setattr(GradValue, _name, _method)
