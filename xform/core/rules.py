"""The forms in which one derivative is written once and serves both modes; the tables are in `xform.core.tables`.

1. `partials(Op, fn, ...)` declares an elementwise operator: one function per operand, linear in its first argument `t`
   (a tangent or a cotangent). The names of its further arguments say what it needs, and so what a tape keeps: operands
   by their name in `evaluate`, `out` for the result, `op` for the operator.
2. `linear(Op, transpose)` declares an operator that is linear in its operands.
3. `bilinear(Op, left, right)` declares a product: linear in each of two operands.
4. Everything else: `@vjp_rule(Op) def op_vjp(op, needed, *primals) -> (out, pullback)` and
   `@jvp_rule(Op) def op_jvp(op, primals, tangents) -> (out, out_tangent)`.
5. One rule text serves raw arrays (where nothing stands below) and values (through `apply`).
6. Rules never bake a shape that may be unknown: a `like` argument is an `Aval` where the shape is known, and the
   operand itself where it is not.
"""

from __future__ import annotations

import inspect
from types import CodeType
from typing import Any

from xform.core.aval import Aval, aval_of, broadcast_shapes, dtype_of
from xform.core.backend import SCALAR_TYPES
from xform.core.errors import OperandTypeError, RuleError, ShapeError
from xform.core.operator import Operator
from xform.core.stack import apply
from xform.core.tables import NoRule, OperatorClass, Rule, RuleTable, are_builtin, batch_rule, jvp_rule, vjp_rule
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

    __slots__ = ("builtin", "factors", "functions", "kind", "names", "needs")

    def __init__(
        self, kind: OperatorClass, functions: tuple[Rule | None, ...], factors: tuple[Rule, ...] | None = None
    ) -> None:
        self.kind = kind
        self.functions = functions
        self.factors = factors
        self.builtin = are_builtin(functions)
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
        if kind.multiple_outputs:
            msg = (
                f"{kind.__name__} has several outputs, and partials() declares operators of one; write "
                f"@vjp_rule({kind.__name__}) and @jvp_rule({kind.__name__})"
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
            if not self.builtin:
                refuse_misfit(part, out, f"the rule declared for {op.name} returned for operand {i}")
            total = part if total is None else total + part
        return out, None if total is None else settle(total, out)


def refuse_misfit(part: Any, out: Any, wrong: str) -> None:
    """Raise `RuleError` where a part of a tangent is no array, or does not broadcast to the result's shape."""
    want = aval_of(out)
    try:
        have = aval_of(part)
        if broadcast_shapes(have.shape, want.shape) == want.shape:
            return
    except OperandTypeError as error:
        raise RuleError(f"{wrong} as tangent {type(part).__name__}, no array") from error
    except ShapeError:
        pass
    raise RuleError(f"{wrong} a tangent {have!r}; it must be {want!r}, or broadcast to that shape")


class Linear:
    """An operator that is linear in its operands, or in some of them; see `linear`."""

    __slots__ = ("accumulate", "builtin", "kind", "linear_in", "scatter", "transpose")

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
        self.builtin = are_builtin((transpose,))

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
    """A product of two operands; see `bilinear`."""

    __slots__ = ("builtin", "flat", "kind", "left", "right")

    def __init__(self, kind: OperatorClass, left: Rule, right: Rule, *, flat: tuple[Any, ...] | None) -> None:
        self.kind = kind
        self.left = left
        self.right = right
        self.flat = flat
        self.builtin = are_builtin((left, right))

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
    >>> xf.partials(xf.ops.Square, lambda t, x: 2.0 * t * x)
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
    """Declare both derivatives of an operator that is linear in its operands; the forward rule is the operator itself.

    `transpose(op, cotangent, *operands)` gives the cotangent of the operand, or a tuple of them, one for each operand;
    in the place of an operand that it is linear in stands its `Aval` (where the shape is known), which the tape keeps
    instead of the array. `linear_in` names the operands by number where the others are constants, indices say; those
    reach `transpose` as they are.

    An operator that picks elements of operand 0 may add its cotangent into one buffer instead of making a dense array:
    `accumulate(op, buffer, cotangent, *others)` writes into a raw NumPy buffer, and `scatter([(op, cotangent, others),
    ...], like)` is one operation for many of them.

    >>> import attrs, xform as xf
    >>> @attrs.frozen
    ... class Twice(xf.Operator):
    ...     def infer(self, x):
    ...         return x
    ...     def evaluate(self, xp, x):
    ...         return x + x
    >>> xf.linear(Twice, lambda op, cotangent, x: xf.apply(op, cotangent))
    >>> xf.grad(lambda x: xf.apply(Twice(), x))(3.0), xf.jvp(lambda x: xf.apply(Twice(), x), (3.0,), (1.0,))
    (2.0, (6.0, 2.0))
    """
    rule = Linear(kind, transpose, linear_in, accumulate, scatter)
    vjp_rule.rules[kind] = rule
    jvp_rule.rules[kind] = rule


def bilinear(kind: OperatorClass, left: Rule, right: Rule, *, flat: tuple[Any, ...] | None = None) -> None:
    """Declare both derivatives of a product, which is linear in each of two operands; the forward rule is Leibniz's.

    `left(op, cotangent, y, like_x)` gives the cotangent of `x`, `right(op, cotangent, x, like_y)` that of `y`, each of
    the shape of its `like`, an `Aval` (the operand itself where the shape is unknown). `flat` is a short way for two
    NumPy matrices: `(kernel(x, y), left(t, y), right(t, x))`.

    >>> import attrs, numpy as np, xform as xf
    >>> @attrs.frozen
    ... class Outer(xf.Operator):
    ...     def infer(self, x, y):
    ...         return xf.Aval((*x.shape, *y.shape), x.dtype)
    ...     def evaluate(self, xp, x, y):
    ...         return x[:, None] * y
    >>> xf.bilinear(Outer, lambda op, t, y, like_x: t @ y, lambda op, t, x, like_y: x @ t)
    >>> xf.grad(lambda x: xf.apply(Outer(), x, np.array([1.0, 2.0])).sum())(np.ones(3))
    array([3., 3., 3.])
    """
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
