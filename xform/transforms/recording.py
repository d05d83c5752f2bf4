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

from xform.core.aval import dtype_of
from xform.core.backend import HOST_TYPES, namespace_of
from xform.core.bottom import escaped
from xform.core.operator import Operator
from xform.core.place import place
from xform.core.rules import like_of
from xform.core.stack import BOTTOM, Interpret, Level, concrete, cursor, is_watched
from xform.core.value import Array, Value
from xform.layers import lifted
from xform.ops.structural import refuse_tracked
from xform.transforms.plans import LEAF, MANY, OUTPUT, SCATTER, Entry, elementwise, plan_of, record
from xform.transforms.straight import GradValue, bind_binary, bind_unary, tracked

__all__ = ["GradValue", "is_inexact", "place_on", "recording_tape", "tracked"]

_get = cursor.get
_set = cursor.set
#: the tape that runs a user's rule at the moment
recording_tape: ContextVar[Any] = ContextVar("xform recording tape", default=None)


def place_on(tape: Any, below: Level) -> Level:
    """Return the level at which a tape records on top of `below`.

    Operations of one or two operands take a straight path: compute, decide what is tracked, make one tuple.
    """
    general = _bind_general(tape, below)
    if tape.guard is not None and tape.guard.full:
        return Level(tape, below, tape.guard.noting(general, functools.partial(entries_of, tape)))
    if below is BOTTOM:
        unary, binary = bind_unary(tape, general), bind_binary(tape, general)
    else:
        unary, binary = _bind_above(tape, below, general)

    def interpret(op: Operator, values: tuple[Any, ...]) -> Any:
        count = len(values)
        if count == 1:
            return unary(op, values[0])
        return binary(op, *values) if count == 2 else general(op, values)

    level = Level(tape, below, interpret, unary, binary)
    if below is BOTTOM:
        tape.straight = level
    return level


def entries_of(tape: Any, out: Any) -> list[Entry]:
    """Return the entries of the results of one operation, that of the operation itself where it has several."""
    results = out if isinstance(out, tuple) else (out,)
    own = [each.entry for each in results if type(each) is GradValue and each.owner is tape]
    return [entry[4] if entry[1] == OUTPUT else entry for entry in own]


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
            look(own, op, kept, out)
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


def _bind_general(tape: Any, below: Level) -> Interpret:  # noqa: C901, PLR0915  (it holds `general`)
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
            tape.missed = tape.walked
            out = interpret(op, tuple(data))
            if look is not None:  # the user may write into what is read here
                tape.guard.look_read(data, op, out)
            return out
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
            if look is not None and any(concrete(out) is concrete(each) for each in operands):
                tape.guard.note(concrete(out), op)  # stop_gradient gives it to the user
            return out
        if look is not None and plan.builtin:
            for parent, each in zip(parents, operands, strict=True):
                if parent is None or parent[1] == LEAF:
                    look(each, op, kept[1], out)
        elif look is not None:
            tape.guard.note_all(op, kept[1])
        if op.identity_like:
            return tracked(tape, out, own.entry)
        # a frame walk costs 500 ns: only where something below can see the line, or where a user's rule may raise
        site = None if unseen and plan.builtin and not tape.foreign else place.get().located()
        return _outputs(tape, op, out, kept, site)

    return general


def look_of(tape: Any) -> Callable[..., None] | None:
    """Return what looks for an array in what is saved, on the other paths; a full guard looks for itself."""
    return None if tape.guard is None or tape.guard.full else tape.guard.look


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
