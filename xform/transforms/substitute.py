"""The layer that puts other values in the place of captured ones, where their layers are suspended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xform.core.backend import HOST_TYPES
from xform.core.operator import Operator
from xform.core.stack import BOTTOM, Interpret, Level, Transformation, cursor, levels
from xform.core.value import Value

__all__ = ["Substitute", "is_captured", "substituted"]

_get = cursor.get
_set = cursor.set


def is_captured(value: Any) -> bool:
    """Whether a value belongs to a layer."""
    return type(value) not in HOST_TYPES and isinstance(value, Value) and value.owner is not None


class Substitute(Transformation):
    """The layer that puts other values in the place of captured ones.

    `table` gives them by the identity of the captured value, which its holder keeps alive. A value of a layer that is
    not below and that the table does not have is given to `missing`, where there is one, else it passes.
    """

    effect = "faithful"
    watches = False

    def __init__(self, table: dict[int, Any], missing: Callable[[Value], Any] | None = None) -> None:
        self.table = table
        self.missing = missing

    def bind(self, below: Level) -> Interpret:
        """Return the function that replaces operands and hands the operation down."""
        interpret, replaced = below.interpret, self.replaced
        active = frozenset([id(level.layer) for level in levels(below)])

        def run(op: Operator, values: tuple[Any, ...]) -> Any:
            here = _get()
            _set(below)
            try:
                op = op.within(self) if op.nests else op
                return interpret(op, tuple([replaced(value, active) for value in values]))
            finally:
                _set(here)

        return run

    def replaced(self, value: Any, active: frozenset[int] = frozenset()) -> Any:
        """Return what stands in the place of a value; `active` are the layers whose values pass."""
        if not is_captured(value) or id(value.owner) in active:
            return value
        found = self.table.get(id(value))
        if found is not None:
            return found
        return value if self.missing is None else self.missing(value)


def substituted(value: Value) -> Any:
    """Return what stands in the place of a value of a layer that is not active here, or the value."""
    here = _get()
    try:
        for level in levels():
            if isinstance(level.layer, Substitute):
                _set(level.below or BOTTOM)  # what computes a stand-in is no operation of the layers above
                found = level.layer.replaced(value, frozenset([id(each.layer) for each in levels()]))
                if found is not value:
                    return found
    finally:
        _set(here)
    return value
