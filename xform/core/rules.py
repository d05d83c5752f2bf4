"""Rule tables, and the forms in which one derivative is written once and serves both modes.

1. A table maps operator classes to rules and knows three states: a rule; none on purpose, with the reason; missing.
2. `partials(Op, fn, ...)` declares an elementwise operator: one function per operand, linear in its first argument `t`
   (a tangent or a cotangent). The names of its further arguments say what it needs, and so what a tape keeps: operands
   by their name in `evaluate`, `out` for the result, `op` for the operator.
3. `linear(Op, transpose)` declares an operator that is linear in its operands.
4. `bilinear(Op, left, right)` declares a product: linear in each of two operands.
5. Everything else: `@vjp_rule(Op) def op_vjp(op, needed, *primals) -> (out, pullback)` and
   `@jvp_rule(Op) def op_jvp(op, primals, tangents) -> (out, out_tangent)`.
6. One rule text serves raw arrays (where nothing stands below) and values (through `apply`).
7. Rules never bake a shape that may be unknown: a `like` argument is an `Aval` where the shape is known, and the
   operand itself where it is not.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import CodeType
from typing import Any

from xform.core.aval import Aval, aval_of, dtype_of
from xform.core.backend import SCALAR_TYPES
from xform.core.errors import MissingRuleError
from xform.core.operator import Operator
from xform.core.stack import apply
from xform.core.value import Value

__all__ = [
    "Bilinear",
    "Linear",
    "NoRule",
    "Partials",
    "RuleTable",
    "batch_rule",
    "bilinear",
    "jvp_rule",
    "like_of",
    "linear",
    "partials",
    "vjp_rule",
]

Rule = Callable[..., Any]
OperatorClass = type[Operator]


class NoRule:
    """States that an operator has no rule on purpose, and why."""

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why

    def __repr__(self) -> str:
        return f"NoRule({self.why!r})"


class Rules(dict[OperatorClass, Any]):
    """Rules by operator class; setting or deleting one forgets the plan that a tape made of it."""

    def __setitem__(self, kind: OperatorClass, rule: Any) -> None:
        super().__setitem__(kind, rule)
        kind.plan = None

    def __delitem__(self, kind: OperatorClass) -> None:
        super().__delitem__(kind)
        kind.plan = None


class RuleTable:
    """Rules of one kind by operator class; a plugin's transformation owns a table of its own.

    `missing="raise"` raises `MissingRuleError` for an operator without a rule; `"unwrap"` gives None, so that the layer
    can pass the operation on with plain values.

    >>> table = RuleTable("cost")
    >>> @table(Operator)
    ... def operator_cost(op, *avals): return 1
    >>> table.state(Operator)
    'rule'
    """

    def __init__(self, name: str, missing: str = "raise") -> None:
        if missing not in ("raise", "unwrap"):
            msg = f'missing must be "raise" or "unwrap", got {missing!r}'
            raise ValueError(msg)
        self.name = name
        self.missing = missing
        self.rules = Rules()

    def __call__(self, *kinds: OperatorClass) -> Callable[[Rule], Rule]:
        """Register the decorated function as the rule of these operator classes, in place of the one they had."""

        def register(rule: Rule) -> Rule:
            for kind in kinds:
                self.rules[kind] = rule
            return rule

        return register

    def none(self, *kinds: OperatorClass, why: str) -> None:
        """State that these operators have no rule on purpose."""
        for kind in kinds:
            self.rules[kind] = NoRule(why)

    def state(self, kind: OperatorClass) -> str:
        """Return `"rule"`, `"none"` or `"missing"`."""
        rule = self.rules.get(kind)
        if rule is None:
            return "missing"
        return "none" if isinstance(rule, NoRule) else "rule"

    def get(self, op: Operator) -> Any:
        """Return the rule, a `NoRule`, or None where the table unwraps; raises `MissingRuleError`."""
        rule = self.rules.get(type(op))
        if rule is None and self.missing == "raise":
            name = type(op).__name__
            declare = " declare the operator with partials or linear," if self in (vjp_rule, jvp_rule) else ""
            msg = (
                f"{op!r} has no {self.name} rule; write one with @{self.name}_rule({name}),{declare} "
                f"or say why there is none: {self.name}_rule.none({name}, why=...)"
            )
            raise MissingRuleError(msg, op=op, table=self)
        return rule

    def __repr__(self) -> str:
        return f"RuleTable({self.name!r}, {len(self.rules)} rules)"


vjp_rule = RuleTable("vjp")
jvp_rule = RuleTable("jvp")
batch_rule = RuleTable("batch")


def like_of(value: Any) -> Any:
    """Return the aval where the shape is known, so that the operand itself can be freed; else the operand."""
    aval = aval_of(value)
    return value if None in aval.shape else aval


def operand_names(kind: OperatorClass) -> tuple[str, ...]:
    """Return the names of the operands, as `evaluate(self, xp, ...)` gives them."""
    code: CodeType = inspect.unwrap(kind.evaluate).__code__
    return code.co_varnames[2 : code.co_argcount]


class Partials:
    """The local derivatives of an elementwise operator, one function per operand (None: no derivative)."""

    __slots__ = ("factors", "functions", "kind", "names", "needs")

    def __init__(
        self, kind: OperatorClass, functions: tuple[Rule | None, ...], factors: tuple[Rule, ...] | None = None
    ) -> None:
        self.kind = kind
        self.functions = functions
        self.factors = factors
        self.names = operand_names(kind)
        self.needs = tuple(
            () if fn is None else fn.__code__.co_varnames[1 : fn.__code__.co_argcount] for fn in functions
        )
        first = {fn.__code__.co_varnames[0] for fn in functions if fn is not None and fn.__code__.co_argcount}
        if not first.isdisjoint(self.names):
            msg = (
                f"partials({kind.__name__}): a function takes first what comes from the other side (a cotangent or a "
                f"tangent), then operands by name: lambda t, {self.names[0]}: ...; got {sorted(first)}"
            )
            raise TypeError(msg)
        if len(self.names) != len(functions):
            msg = f"{kind.__name__} has operands {self.names}; partials() got {len(functions)} functions"
            raise TypeError(msg)
        unknown = {name for needs in self.needs for name in needs} - {*self.names, "out", "op"}
        if unknown:
            msg = f"partials({kind.__name__}): {sorted(unknown)} are neither operands {self.names} nor 'out' nor 'op'"
            raise TypeError(msg)

    def residual(self, operand: int, op: Operator, primals: tuple[Any, ...], out: Any) -> tuple[Any, ...]:
        """Return what the function of one operand needs."""
        at = self.names.index
        return tuple(
            [out if name == "out" else op if name == "op" else primals[at(name)] for name in self.needs[operand]]
        )

    def vjp(self, op: Operator, needed: tuple[bool, ...], *primals: Any) -> tuple[Any, Rule]:
        """The reverse rule."""
        out = apply(op, *primals)
        kept = [
            (fn, self.residual(i, op, primals, out), like_of(primals[i])) if need and fn is not None else None
            for i, (fn, need) in enumerate(zip(self.functions, needed, strict=True))
        ]

        def pullback(cotangent: Any) -> tuple[Any, ...]:
            return tuple(None if each is None else settle(each[0](cotangent, *each[1]), each[2]) for each in kept)

        return out, pullback

    def jvp(self, op: Operator, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        """The forward rule."""
        out = apply(op, *primals)
        total = None
        for i, (fn, tangent) in enumerate(zip(self.functions, tangents, strict=True)):
            if tangent is None or fn is None:
                continue
            part = fn(tangent, *self.residual(i, op, primals, out))
            total = part if total is None else total + part
        return out, None if total is None else settle(total, out)


class Linear:
    """An operator that is linear in its operands; `transpose(op, cotangent, *likes)` -> one cotangent per operand.

    With one operand the transpose returns that one cotangent. `linear_in` restricts to some operands, the others
    (indices, conditions) are given to the transpose as they are, after the cotangent, and have no derivative.

    An operator that picks elements of operand 0 may add its cotangent into one buffer instead of making a dense array:
    `accumulate(op, buffer, cotangent, *others)` writes into a raw NumPy buffer, and `scatter([(op, cotangent, others),
    ...], like)` is one operation for many of them.
    """

    __slots__ = ("accumulate", "kind", "linear_in", "scatter", "transpose")

    def __init__(
        self,
        kind: OperatorClass,
        transpose: Rule,
        linear_in: tuple[int, ...] | None,
        accumulate: Rule | None = None,
        scatter: Rule | None = None,
    ) -> None:
        self.kind = kind
        self.transpose = transpose
        self.linear_in = linear_in
        self.accumulate = accumulate
        self.scatter = scatter

    def is_linear(self, operand: int) -> bool:
        """Whether the operator is linear in this operand."""
        return self.linear_in is None or operand in self.linear_in

    def likes(self, primals: tuple[Any, ...]) -> tuple[Any, ...]:
        """What the transpose needs to know of the operands."""
        return tuple(like_of(x) if self.is_linear(i) else x for i, x in enumerate(primals))

    def vjp(self, op: Operator, needed: tuple[bool, ...], *primals: Any) -> tuple[Any, Rule]:
        """The reverse rule."""
        out = apply(op, *primals)
        likes = self.likes(primals)
        transpose = self.transpose

        def pullback(cotangent: Any) -> tuple[Any, ...]:
            found = transpose(op, cotangent, *likes)
            found = found if isinstance(found, tuple) else (found,)
            padded = (*found, *[None] * (len(likes) - len(found)))
            return tuple(
                settle_dtype(each, like) if need and each is not None else None
                for each, like, need in zip(padded, likes, needed, strict=True)
            )

        return out, pullback

    def jvp(self, op: Operator, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        """The forward rule: the operator itself, on the tangents."""
        out = apply(op, *primals)
        if all(t is None for i, t in enumerate(tangents) if self.is_linear(i)):
            return out, None
        filled = tuple(
            x if not self.is_linear(i) else _settlers[0][2](x) if t is None else t
            for i, (x, t) in enumerate(zip(primals, tangents, strict=True))
        )
        return out, apply(op, *filled)


class Bilinear:
    """A product of two operands: `left(op, cotangent, y, like_x)` and `right(op, cotangent, x, like_y)`.

    `flat` is a short way for two NumPy matrices, where a tape need not keep `like`:
    `(kernel(x, y), left(t, y), right(t, x))`.
    """

    __slots__ = ("flat", "kind", "left", "right")

    def __init__(self, kind: OperatorClass, left: Rule, right: Rule, *, flat: tuple[Any, ...] | None) -> None:
        self.kind = kind
        self.left = left
        self.right = right
        self.flat = flat

    def vjp(self, op: Operator, needed: tuple[bool, ...], *primals: Any) -> tuple[Any, Rule]:
        """The reverse rule."""
        x, y = primals
        out = apply(op, x, y)
        like_x, like_y = like_of(x), like_of(y)
        kept_y, kept_x = (y if needed[0] else None), (x if needed[1] else None)

        def pullback(cotangent: Any) -> tuple[Any, ...]:
            return (
                settle_dtype(self.left(op, cotangent, kept_y, like_x), like_x) if needed[0] else None,
                settle_dtype(self.right(op, cotangent, kept_x, like_y), like_y) if needed[1] else None,
            )

        return out, pullback

    def jvp(self, op: Operator, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        """The forward rule: the product rule."""
        (x, y), (tangent_x, tangent_y) = primals, tangents
        out = apply(op, x, y)
        parts = []
        if tangent_x is not None:
            parts.append(apply(op, tangent_x, y))
        if tangent_y is not None:
            parts.append(apply(op, x, tangent_y))
        if not parts:
            return out, None
        return out, parts[0] if len(parts) == 1 else parts[0] + parts[1]


def partials(kind: OperatorClass, *functions: Rule | None, factors: tuple[Rule, ...] | None = None) -> None:
    """Declare both derivatives of an elementwise operator, one function per operand.

    A function takes `t`, the cotangent of the result or the tangent of the operand, then operands by their names in
    `infer`, the result as `out`, the operator as `op`, and returns `t` times the local derivative. Raises `TypeError`
    for other names.

    `factors`, for an operator whose derivatives are constant between jumps: one function of the raw operands per
    operand, which gives what `t` is multiplied by in a small dtype; a tape with nothing below keeps that instead of the
    operands.

    >>> import xform as xf
    >>> partials(xf.ops.Square, lambda t, x: 2.0 * t * x)
    """
    rule = Partials(kind, functions, factors)
    vjp_rule.rules[kind] = rule
    jvp_rule.rules[kind] = rule


def linear(
    kind: OperatorClass,
    transpose: Rule,
    linear_in: tuple[int, ...] | None = None,
    *,
    accumulate: Rule | None = None,
    scatter: Rule | None = None,
) -> None:
    """Declare both derivatives of an operator that is linear in its operands."""
    rule = Linear(kind, transpose, linear_in, accumulate, scatter)
    vjp_rule.rules[kind] = rule
    jvp_rule.rules[kind] = rule


def bilinear(kind: OperatorClass, left: Rule, right: Rule, *, flat: tuple[Any, ...] | None = None) -> None:
    """Declare both derivatives of a product; see `Bilinear`."""
    rule = Bilinear(kind, left, right, flat=flat)
    vjp_rule.rules[kind] = rule
    jvp_rule.rules[kind] = rule


def vjp_of(op: Operator) -> Any:
    """Return the reverse rule as a function `(op, needed, *primals) -> (out, pullback)`, or a `NoRule`."""
    rule = vjp_rule.get(op)
    return rule.vjp if isinstance(rule, Partials | Linear | Bilinear) else rule


def jvp_of(op: Operator) -> Any:
    """Return the forward rule as a function `(op, primals, tangents) -> (out, out_tangent)`, or a `NoRule`."""
    rule = jvp_rule.get(op)
    return rule.jvp if isinstance(rule, Partials | Linear | Bilinear) else rule


# ------------------------------------------------------------------ shape and dtype of a cotangent
# What reduces and casts is an operator, which this layer does not know: `xform.ops` installs it.

_settlers: list[tuple[Rule, Rule, Rule]] = []


def set_settlers(shape: Rule, dtype: Rule, zeros_like: Rule) -> None:
    """Install the operators that bring a cotangent to the shape and dtype of its primal, and zeros like a primal."""
    _settlers[:] = [(shape, dtype, zeros_like)]


def settle(cotangent: Any, like: Any) -> Any:
    """Bring a cotangent (or tangent) to the shape and dtype of its primal: sum or broadcast, and cast."""
    return settle_dtype(_settlers[0][0](cotangent, like), like)


def settle_dtype(cotangent: Any, like: Any) -> Any:
    """Bring a cotangent to the dtype of its primal; a complex one gives a real primal its real part."""
    if type(cotangent) in SCALAR_TYPES and not isinstance(like, Value):
        return cotangent.real if type(cotangent) is complex and dtype_of(like).kind != "c" else cotangent
    want = like.dtype if isinstance(like, Aval) else dtype_of(like)
    have = dtype_of(cotangent)
    return cotangent if have is want or have == want else _settlers[0][1](cotangent, want)
