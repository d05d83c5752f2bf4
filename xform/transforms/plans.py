"""How operations are recorded: the steps of the walk backward, what they keep, and the plan of each operator class."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from xform.core.aval import Aval, alike, aval_of
from xform.core.backend import HOST_TYPES, device_of
from xform.core.operator import Operator
from xform.core.rules import Bilinear, Linear, NoRule, Partials, like_of, operand_names, settle, settle_dtype, vjp_rule
from xform.core.stack import concrete
from xform.core.tables import is_builtin
from xform.ops.broadcast import summed_to
from xform.transforms.rule_checks import checked_step, checked_vjp

__all__ = ["Entry", "Plan", "plan_of", "record"]

Entry = tuple[Any, ...]
Step = Callable[[Any, Any], Any]

LEAF, PASS, MANY, CALL, OUTPUT, SCATTER, ADJUST, RESHAPE, SUM, FIRST = range(10)

#: what a code does, and the name of its operator; an entry holds the small integer
steps: list[Step | None] = [None] * FIRST
names: list[str] = ["Leaf", "Identity", "", "", "", "Scatter", "", "", ""]

NOTHING, OUT, SEVERAL = -1, -2, -3
ARRAY_TYPES = HOST_TYPES - {bool, int, float, complex}


def _adjust(cotangent: Any, residual: Any) -> Any:
    """Step of an operand that was broadcast or cast: run its own step, then bring shape and dtype back."""
    code, kept, like = residual
    step = steps[code]
    part = cotangent if step is None else step(cotangent, kept)
    if type(part) is np.ndarray and isinstance(like, Aval) and part.dtype is like.dtype:  # 2 us instead of 12
        return summed_to(np, part, like.shape)  # type: ignore[arg-type]  # `like_of` knows the shape
    return settle(part, like)


def _reshape(cotangent: Any, residual: Any) -> Any:
    """Step of an operand that got further axes of length 1: run its own step, then drop them."""
    code, kept, shape = residual
    step = steps[code]
    return (cotangent if step is None else step(cotangent, kept)).reshape(shape)


def _sum_leading(cotangent: Any, residual: Any) -> Any:
    """Step of an operand that was broadcast along new leading axes, a bias say: run its own step, then add up."""
    code, kept, shape, dtype = residual
    step = steps[code]
    part = cotangent if step is None else step(cotangent, kept)
    if type(part) is np.ndarray and part.dtype is dtype:
        return _add(part, tuple(range(part.ndim - len(shape))))
    return settle(part, Aval(shape, dtype))


_add = np.add.reduce
steps[ADJUST] = _adjust
steps[RESHAPE] = _reshape
steps[SUM] = _sum_leading
#: steps that run that of another code, the first part of their residual
AROUND = (ADJUST, RESHAPE, SUM)


def fitted(code: int, kept: Any, own: Any, out: Any) -> tuple[int, Any]:
    """Return code and residual of an operand whose cotangent is brought to its shape and dtype, where they differ."""
    if own.dtype == out.dtype:
        shape = own.shape
        if own.size == out.size and own.size:
            return (code, kept) if own.ndim == out.ndim else (RESHAPE, (code, kept, shape))
        extra = out.ndim - own.ndim
        if shape == out.shape[extra:] and type(own) is np.ndarray:
            return (SUM, (code, kept, shape, own.dtype)) if extra else (code, kept)
    return ADJUST, (code, kept, Aval(own.shape, own.dtype) if type(own) is np.ndarray else aval_of(own))


def new_code(step: Step, name: str) -> int:
    """Register a step and return its code."""
    steps.append(step)
    names.append(name)
    return len(steps) - 1


class Plan:
    """How operations of one class are recorded.

    `codes[i]` and `saves[i]` belong to operand i: the step, and what it keeps: an operand's position, `OUT`, `NOTHING`,
    or `SEVERAL`. A cotangent that passes unchanged does so under its operator's name there, since something below may
    see the step. `code`, `save`, `right_code`, `right_save`, `keep` are those of the first and the last operand on the
    straight path (of a product: for two matrices); `quick`, where the first keeps nothing, the result or the other
    operand. There operations of one operand that have a general rule are known
    by `single`, those that have none on purpose by `blocked`.
    """

    __slots__ = (
        "blocked", "builtin", "code", "codes", "fast", "holds", "keep", "kernel", "linear", "name", "product", "quick",
        "right_code", "right_save", "rule", "save", "saves", "saves_any", "scatters", "several", "single",
    )  # fmt: skip

    def __init__(self, kind: type[Operator], rule: Any) -> None:
        self.rule = rule
        self.name = kind.__name__
        self.kernel = kind.kernel
        self.builtin = kind.__module__.startswith("xform.ops") and is_builtin(rule)
        self.product = isinstance(rule, Bilinear) and rule.flat is not None
        plain = (
            self.builtin
            and len(operand_names(kind)) == 1
            and not (kind.identity_like or kind.multiple_outputs or kind.attribute_like or kind.crosses_devices)
        )
        self.linear = plain and isinstance(rule, Linear)
        self.scatters = isinstance(rule, Linear) and rule.accumulate is not None
        self.blocked = plain and isinstance(rule, NoRule)
        self.single = plain and inspect.isfunction(rule)
        self.fast = (
            isinstance(rule, Partials)
            and self.builtin
            and not narrows(kind)
            and kind.kernel is not None
            and not (kind.identity_like or kind.multiple_outputs)
            and len(rule.functions) <= 2
            and None not in rule.functions
        )
        self.codes: tuple[int, ...] = ()
        self.saves: tuple[int, ...] = ()
        self.code = self.save = self.right_code = self.right_save = NOTHING
        self.several: Any = None
        self.keep: Any = None
        self.saves_any = self.quick = False
        self.holds = False  # whether what `keep` gives may hold operands themselves
        if isinstance(rule, Partials):
            self.several = self.keep = rule.residual
            pairs = [self._partial(rule, operand, kind.__name__) for operand in range(len(rule.functions))]
            self.saves = tuple(save for _, save in pairs)
            self.code, self.save = pairs[0]
            self.right_code, self.right_save = pairs[-1]
            self.saves_any = {self.save, self.right_save} != {NOTHING}
            self.quick = self.fast and self.save in (NOTHING, OUT, 1)
            passing = new_code(lambda t, _: t, kind.__name__)
            self.codes = tuple(passing if code == PASS else code for code, _ in pairs)
            self.holds = rule.factors is None and SEVERAL in (self.save, self.right_save)
            if (factors := rule.factors) is not None:
                self.code = self.right_code = new_code(_scaled, kind.__name__)
                self.keep = lambda operand, op, primals, out: factors[operand](*primals)
        elif isinstance(rule, Bilinear):
            self.codes = (_bilinear(rule.left, kind.__name__), _bilinear(rule.right, kind.__name__))
            if rule.flat is not None:
                self.kernel, left, right = rule.flat
                self.code, self.right_code = new_code(left, kind.__name__), new_code(right, kind.__name__)
        elif isinstance(rule, Linear):
            self.codes = (_linear(rule, kind.__name__),)
        if not self.builtin:  # what a user's rule returns is checked
            own = [checked_step(steps[code], rule, kind.__name__, operand) for operand, code in enumerate(self.codes)]
            self.codes = tuple([LEAF if step is None else new_code(step, kind.__name__) for step in own])

    @staticmethod
    def _partial(rule: Partials, operand: int, name: str) -> tuple[int, int]:
        fn, needs = rule.functions[operand], rule.needs[operand]
        if fn is None:
            return LEAF, NOTHING
        if not needs:
            if hands_through(fn):
                return PASS, NOTHING
            return new_code(lambda t, _: fn(t), name), NOTHING
        if len(needs) == 1 and needs[0] != "op":
            save = OUT if needs[0] == "out" else rule.names.index(needs[0])
            return new_code(fn, name), save
        return new_code(lambda t, kept: fn(t, *kept), name), SEVERAL


def narrows(kind: type[Operator]) -> bool:
    """Whether a unary operator gives real numbers for complex ones (`abs`): the straight path would have to look."""
    if len(operand_names(kind)) != 1 or not isinstance(kind.kernel, np.ufunc):
        return False
    try:
        return kind.kernel.resolve_dtypes((np.dtype(complex), None))[-1].kind != "c"
    except TypeError:
        return False


def hands_through(fn: Callable[..., Any]) -> bool:
    """Whether a function returns its only argument as it is: the cotangent then passes without a call."""
    code = getattr(fn, "__code__", None)
    return code is not None and code.co_argcount == 1 and code.co_code == _IDENTITY.__code__.co_code


def _IDENTITY(t: Any) -> Any:
    return t


def _scaled(t: Any, factor: Any) -> Any:
    """Step of an operand whose factor was computed forward: NumPy's cast before takes a third of the one inside."""
    return t * factor.astype(t.dtype) if type(t) is np.ndarray and factor.dtype is not t.dtype else t * factor


def _bilinear(side: Callable[..., Any], name: str) -> int:
    def step(cotangent: Any, residual: Any) -> Any:
        op, other, like = residual
        return settle_dtype(side(op, cotangent, other, like), like)

    return new_code(step, name)


def _linear(rule: Linear, name: str) -> int:
    def step(cotangent: Any, residual: Any) -> Any:
        op, likes, operand = residual
        found = rule.transpose(op, cotangent, *likes)
        if isinstance(found, tuple):
            found = found[operand]
        like = likes[operand]
        if type(found) is np.ndarray and found.dtype is like.dtype:
            return found
        return settle_dtype(found, like)

    return new_code(step, name)


def plan_of(op: Operator) -> Plan:
    """Return the plan of an operator's class; raises `MissingRuleError` where it has no reverse rule."""
    plan: Plan | None = op.plan
    if plan is None:
        kind = type(op)
        plan = kind.plan = Plan(kind, vjp_rule.get(op))
    return plan


# ------------------------------------------------------------------ recording, in general


def record(  # noqa: PLR0911  (one return for each form of a rule)
    plan: Plan, op: Operator, data: tuple[Any, ...], parents: list[Any], run: Callable[..., Any]
) -> tuple[Any, tuple[Any, ...] | None]:
    """Compute an operation below a tape; return the result and `(code, residual, *parents)`, or None if untracked.

    `parents[i]` is the entry of a tracked operand, or None; `run(op, data)` is the layer below.
    """
    rule = plan.rule
    if isinstance(rule, NoRule):
        return run(op, data), None
    tracked = [i for i, parent in enumerate(parents) if parent is not None]
    own = [parents[i] for i in tracked]
    if isinstance(rule, Partials):
        out = run(op, data)
        pairs = [elementwise(plan, op, data, out, i) for i in tracked if rule.functions[i] is not None]
        own = [parents[i] for i in tracked if rule.functions[i] is not None]
        return out, _joined(pairs, own)
    if isinstance(rule, Bilinear):
        out = run(op, data)
        return out, _joined([(plan.codes[i], (op, data[1 - i], like_of(data[i]))) for i in tracked], own)
    if isinstance(rule, Linear) and len(tracked) == 1 and not op.multiple_outputs:
        (operand,) = tracked
        out = run(op, data)
        if not rule.is_linear(operand):
            return out, None
        likes = rule.likes(data)
        if rule.accumulate is not None and operand == 0:
            return out, (SCATTER, (op, likes, rule), *own)
        return out, (plan.codes[0], (op, likes, operand), *own)
    needed = tuple(parent is not None for parent in parents)
    found = (rule.vjp if isinstance(rule, Linear) else rule)(op, needed, *data)
    out, pullback = found if plan.builtin else checked_vjp(op, found)
    fill = None
    if op.multiple_outputs and getattr(op, "fills_zeros", True):
        fill = tuple((like_of(each), home_of(each)) for each in out)
    expected = None
    if not plan.builtin:  # what its pullback returns is checked
        expected = tuple([None if parent is None else like_of(x) for x, parent in zip(data, parents, strict=True)])
    return out, (CALL, (pullback, tuple(tracked), op, fill, expected), *own)


def elementwise(plan: Plan, op: Operator, data: tuple[Any, ...], out: Any, operand: int) -> tuple[int, Any]:
    """Return code and residual of one operand of an operator that is declared by its partials."""
    code, save = plan.codes[operand], plan.saves[operand]
    kept: Any = None
    if save == SEVERAL:
        kept = plan.several(operand, op, data, out)
    elif save == OUT:
        kept = out
    elif save != NOTHING:
        kept = data[save]
    own = data[operand]
    if alike(own, out):
        return code, kept
    like = like_of(own)
    if isinstance(like, Aval):
        full = aval_of(out)
        if like.shape == full.shape and like.dtype == full.dtype:
            return code, kept
    return ADJUST, (code, kept, like)


def _joined(pairs: list[tuple[int, Any]], parents: list[Any]) -> tuple[Any, ...] | None:
    if not pairs:
        return None
    if len(pairs) == 1:
        return (*pairs[0], parents[0])
    return (MANY, tuple(part for pair in pairs for part in pair), *parents)


def home_of(value: Any) -> str:
    """Return the device of a value, the host's for an abstract one."""
    raw = concrete(value)
    return "cpu" if raw is None or type(raw) in HOST_TYPES else device_of(raw)
