"""Rule tables: what an operator means to a transformation.

A table maps operator classes to rules and knows three states: a rule; none on purpose, with the reason; missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from xform.core.errors import MissingRuleError
from xform.core.operator import Operator

__all__ = [
    "NoRule", "OperatorClass", "Rule", "RuleTable", "Rules", "are_builtin", "batch_rule", "is_builtin", "jvp_rule",
    "vjp_rule",
]  # fmt: skip

Rule = Callable[..., Any]
OperatorClass = type[Operator]


class NoRule:
    """States that an operator has no rule on purpose, and why."""

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why

    def __repr__(self) -> str:
        return f"NoRule({self.why!r})"


def is_builtin(rule: Any) -> bool:
    """Whether a rule is xform's own; a user's is checked (its module is None in a namespace without a name)."""
    form = getattr(rule, "__self__", rule)  # of a declared form, both rules are methods
    known = getattr(form, "builtin", None)
    return (rule.__module__ or "").startswith("xform.") if known is None else bool(known)


def are_builtin(functions: Iterable[Rule | None]) -> bool:
    """Whether all functions that a rule was declared with are xform's own."""
    return all(is_builtin(getattr(each, "func", each)) for each in functions if each is not None)


class Rules(dict[OperatorClass, Any]):
    """Rules by operator class; setting or deleting one forgets the plan that a tape made of it.

    `revision` counts the rules of all tables that were replaced: what was derived with rules is good for one number.
    """

    revision: ClassVar[int] = 0

    def __setitem__(self, kind: OperatorClass, rule: Any) -> None:
        if kind in self:
            Rules.revision += 1
        super().__setitem__(kind, rule)
        kind.plan = None

    def __delitem__(self, kind: OperatorClass) -> None:
        super().__delitem__(kind)
        Rules.revision += 1
        kind.plan = None


class RuleTable:
    """Rules of one kind by operator class; a plugin's transformation owns a table of its own.

    `@table(Op)` registers a function as the rule of `Op`, in place of the one it had; `table.none(Op, why=...)` says
    that there is none on purpose; `table.get(op)` gives the rule. `missing="raise"` raises `MissingRuleError` for an
    operator without a rule; `"unwrap"` gives None, so that the layer can pass the operation on with plain values. `doc`
    is what `help` shows. Raises `ValueError` for another `missing`.

    >>> import xform as xf
    >>> cost = xf.RuleTable("cost")
    >>> @cost(xf.ops.Sin, xf.ops.Cos)
    ... def trigonometric_cost(op, x):
    ...     return 20 * x.size
    >>> cost.get(xf.ops.Sin())(xf.ops.Sin(), xf.aval_of(0.5)), cost.state(xf.ops.Exp)
    (20, 'missing')
    """

    def __init__(self, name: str, missing: str = "raise", doc: str | None = None) -> None:
        if missing not in ("raise", "unwrap"):
            msg = f'missing must be "raise" or "unwrap", got {missing!r}'
            raise ValueError(msg)
        if doc is not None:
            self.__doc__ = doc
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


vjp_rule = RuleTable(
    "vjp",
    doc="""The rules of reverse mode: `@xf.vjp_rule(Op)` registers `rule(op, needed, *primals) -> (out, pullback)`.

    `needed` says of each operand whether its cotangent is wanted. `pullback(cotangent)` returns a tuple with one
    cotangent for each operand, of its shape and dtype, or None for zero. Of an operator with several outputs `out` is a
    tuple, and so is `cotangent`, with None for an output that is not used. What a pullback uses is what the tape keeps.
    Both run with what stands below the tape: derivatives of higher order differentiate their operations.

    `xf.vjp_rule.none(Op, why=...)` says that results of `Op` are constants to a gradient. A rule that returns something
    else raises `RuleError`, an operator without a rule `MissingRuleError`. `xf.partials`, `xf.linear` and `xf.bilinear`
    declare reverse and forward rule at once.

    >>> import attrs, xform as xf
    >>> @attrs.frozen
    ... class Cube(xf.Operator):
    ...     def infer(self, x):
    ...         return x
    ...     def evaluate(self, xp, x):
    ...         return x * x * x
    >>> @xf.vjp_rule(Cube)
    ... def cube_vjp(op, needed, x):
    ...     return xf.apply(op, x), lambda cotangent: (3.0 * x * x * cotangent,)
    >>> cube = lambda x: xf.apply(Cube(), x)
    >>> xf.grad(cube)(2.0), xf.grad(xf.grad(cube))(2.0)
    (12.0, 12.0)
    """,
)
jvp_rule = RuleTable(
    "jvp",
    doc="""The rules of forward mode: `@xf.jvp_rule(Op)` registers `rule(op, primals, tangents) -> (out, out_tangent)`.

    `primals` and `tangents` are tuples, one entry for each operand; a tangent has shape and dtype of its primal, or is
    None for zero, and so is `out_tangent`. Of an operator with several outputs both results are tuples. The rule runs
    with what stands below the forward layer. `none` and errors are those of `xf.vjp_rule`.

    >>> import attrs, xform as xf
    >>> @attrs.frozen
    ... class Cube(xf.Operator):
    ...     def infer(self, x):
    ...         return x
    ...     def evaluate(self, xp, x):
    ...         return x * x * x
    >>> @xf.jvp_rule(Cube)
    ... def cube_jvp(op, primals, tangents):
    ...     (x,), (t,) = primals, tangents
    ...     return xf.apply(op, x), 3.0 * x * x * t
    >>> xf.jvp(lambda x: xf.apply(Cube(), x), (2.0,), (1.0,))
    (8.0, 12.0)
    """,
)
batch_rule = RuleTable(
    "batch",
    doc="""The rules of `xf.vmap`: `@xf.batch_rule(Op)` registers `rule(op, size, values, axes) -> (out, axis)`.

    `values` hold all `size` lanes of the operands, `axes` where each of them has its lanes: an axis, or None for an
    operand that is the same in all lanes. `axis` is where the result has them, of several outputs a tuple. The rule
    runs with what stands below the batch layer. An operator without a rule is run lane by lane; `none` is for one that
    cannot be batched, and then raises `MissingRuleError`.

    >>> import attrs, numpy as np, xform as xf
    >>> @attrs.frozen
    ... class Reverse(xf.Operator):  # of the last axis
    ...     def infer(self, x):
    ...         return x
    ...     def evaluate(self, xp, x):
    ...         return xp.flip(x, axis=-1)
    >>> @xf.batch_rule(Reverse)
    ... def reverse_batch(op, size, values, axes):
    ...     return xf.apply(op, np.moveaxis(values[0], axes[0], 0)), 0  # any axis but the last will do
    >>> xf.vmap(lambda x: xf.apply(Reverse(), x))(np.array([[1, 2, 3], [4, 5, 6]]))
    array([[3, 2, 1],
           [6, 5, 4]])
    """,
)
#: what doctest runs beside functions and classes
__test__ = {table.name: table.__doc__ for table in (vjp_rule, jvp_rule, batch_rule)}
