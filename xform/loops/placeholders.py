"""Values that exist before they are known: what `LoopBuilder.output` returns, in its block.

Which layer will own a value can be told beforehand: the topmost one that wraps values of its kind. So the value is made
as one of that layer, and gets its content when the loop has run.
"""

from __future__ import annotations

from typing import Any

from xform.core.aval import Aval
from xform.core.errors import LayerError
from xform.core.stack import Level, Transformation, apply, levels
from xform.core.value import Array, Value
from xform.ops.broadcast import make_lead
from xform.ops.create import zeros_like
from xform.ops.structural import Identity
from xform.transforms.batch import Batch, BatchValue, batched
from xform.transforms.forward import DualValue, Forward, dual
from xform.transforms.grad import Grad
from xform.transforms.recorder import Trace, TraceValue
from xform.transforms.recording import GradValue

__all__ = ["fill", "placeholder"]


def placeholder(level: Level, owner: Transformation, aval: Aval) -> Value:
    """Return a value of the layer that will own what has this aval; until it is filled, it belongs to `owner`."""
    kind, layer = kind_at(level, inexact=aval.dtype.kind in "fc")
    value = kind()
    value.data = layer
    if kind is not Array:
        value.owner = owner
    return value


def kind_at(level: Level, *, inexact: bool) -> tuple[type[Value], Any]:
    """Return the class of values at a place of the stack, and the layer that they belong to."""
    for each in levels(level):
        layer = each.layer
        if isinstance(layer, Forward) and inexact:
            return DualValue, layer
        if isinstance(layer, Grad) and inexact and not layer.paused:
            return GradValue, layer
        if isinstance(layer, Batch):
            return BatchValue, layer
        if isinstance(layer, Trace) and layer.records:
            return TraceValue, layer
    return Array, None


def fill(value: Any, result: Any) -> None:
    """Give a placeholder its content."""
    layer, kind = value.data, type(value)
    if type(result) is not kind or result.owner is not layer:
        result = owned(kind, layer, result)
    for base in kind.__mro__:
        for slot in getattr(base, "__slots__", ()):
            if slot != "__weakref__" and not slot.startswith("__"):
                setattr(value, slot, getattr(result, slot))


def owned(kind: type[Value], layer: Any, result: Any) -> Any:
    """Return a result as a value of a layer: one that did not depend on it is the same for it, and does not vary."""
    if kind is GradValue:
        return layer.attach(result)
    if kind is DualValue:
        return dual(layer, result, zeros_like(result))
    if kind is BatchValue:
        return batched(layer, apply(make_lead(layer.size), result), 0)
    if kind is TraceValue:
        return apply(Identity(), result)
    if isinstance(result, Value):
        msg = f"LoopBuilder: its outputs belong to {result.owner!r}, a layer that it does not know; use xf.while_loop"
        raise LayerError(msg, layer=result.owner)
    out = Array()
    out.data = result
    return out
