"""A layer whose values have no known lengths: what a rule bakes in at record time fails here."""

from __future__ import annotations

from typing import Any

import xform as xf
from xform.core.aval import Aval, aval_of
from xform.core.value import Value


class Hidden(Value):
    """A value that keeps its numbers, and hides the length of every axis."""

    __slots__ = ("aval", "owner")


class Hide(xf.Transformation):
    """Computes as below; its values know dtype and rank alone."""

    effect = "faithful"

    def interpret(self, op: Any, values: tuple[Any, ...]) -> Any:
        if getattr(op, "kind", "") == "shape":
            return aval_of(values[0]).shape
        out = xf.apply(op, *[self.shown(v) for v in values])
        if op.attribute_like:
            return out
        return tuple(map(self.hidden, out)) if op.multiple_outputs else self.hidden(out)

    def hidden(self, x: Any) -> Any:
        value = Hidden()
        value.data = x
        value.owner = self
        aval = aval_of(x)
        value.aval = Aval((None,) * aval.ndim, aval.dtype)
        return value

    def shown(self, value: Any) -> Any:
        value = value.data if isinstance(value, Hidden) else value
        return value.data if isinstance(value, xf.Array) else value
