"""The forward rules at work: just enough of forward mode to check them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from xform import tree
from xform.core.operator import Operator
from xform.core.rules import NoRule, jvp_of
from xform.core.stack import Transformation, apply
from xform.core.value import Array, Value
from xform.ops.create import zeros_like

__all__ = ["jvp"]


class Dual(Value):
    """A value with the tangent that goes with it."""

    __slots__ = ("owner", "tangent")
    owner: Forward
    tangent: Any


class Forward(Transformation):
    """Gives every operation its forward rule."""

    effect = "wraps"
    refuses: ClassVar[tuple[str, ...]] = ("rewrites",)

    def owns(self, value: Any) -> bool:
        """Whether this layer made a value."""
        return isinstance(value, Dual) and value.owner is self

    def interpret(self, op: Operator, values: tuple[Any, ...]) -> Any:
        """Unwrap; apply the rule below; rewrap."""
        if not any(map(self.owns, values)):
            return apply(op, *values)
        primals = tuple(map(self.unwrap, values))
        refuse = getattr(op, "refuse_tracked", None)
        if refuse is not None:
            refuse(next(filter(self.owns, values)))
        if op.attribute_like:
            return apply(op, *primals)
        rule = jvp_of(op)
        if isinstance(rule, NoRule):
            return apply(op, *primals)
        out, tangent = rule(op, primals, tuple(v.tangent if self.owns(v) else None for v in values))
        if tangent is None:
            return out
        return tuple(map(self.lift, out, tangent)) if op.multiple_outputs else self.lift(out, tangent)

    def lift(self, data: Any, tangent: Any) -> Any:
        """Pair a value with its tangent."""
        if tangent is None:
            return data
        value = Dual()
        value.data, value.owner, value.tangent = data, self, tangent
        return value

    def tangent_of(self, value: Any) -> Any:
        """Return the tangent, zeros where there is none."""
        return value.tangent if self.owns(value) else zeros_like(value)


def jvp(fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """Return `(out, out_tangent)` of a function at `primals` along `tangents`.

    >>> out, tangent = jvp(lambda x: x * x, (3.0,), (1.0,))
    >>> float(out), float(tangent)
    (9.0, 6.0)
    """
    keep = any(isinstance(leaf, Value) for leaf in (*primals, *tangents))
    layer = Forward()
    with layer:
        out = fun(*map(layer.lift, primals, tangents))
    found = tree.map(layer.unwrap, out), tree.map(layer.tangent_of, out)
    return found if keep else tree.map(lambda leaf: leaf.data if type(leaf) is Array else leaf, found)
