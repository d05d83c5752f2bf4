"""Custom gradients: a function whose reverse rule is the user's own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import attrs

from xform import tree
from xform.core.aval import Aval
from xform.core.backend import is_raw
from xform.core.errors import EscapedValueError, MissingRuleError, OperandTypeError, RuleError
from xform.core.functions import require_function
from xform.core.operator import Operator
from xform.core.rules import jvp_rule, vjp_rule
from xform.core.stack import BOTTOM, apply, cursor
from xform.core.value import Value
from xform.ops.structural import StopGradient
from xform.programs.program import copied
from xform.transforms.recording import recording_tape
from xform.transforms.trace import eval_shape

__all__ = ["CustomGradient", "SetGradient", "custom_gradient"]


@attrs.frozen(eq=False, repr=False)
class CustomGradient(Operator):
    """A user's function with a user's reverse rule; compares by identity, since it holds functions."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]
    count: int
    multiple_outputs = True
    fills_zeros = False
    backward_name = "CustomBackward"

    @property
    def name(self) -> str:
        """The function's name."""
        return f"CustomGradient[{getattr(self.forward, '__name__', 'forward')}]"

    def __repr__(self) -> str:
        return self.name

    def infer(self, *avals: Aval) -> tuple[Aval, ...]:
        """Trace the forward function abstractly."""
        outs = eval_shape(lambda *xs: outputs_of(self, called(self, *xs))[0], *avals)
        return tuple(outs)

    def evaluate(self, xp: Any, *arrays: Any) -> tuple[Any, ...]:
        """Run the forward function on raw arrays, at the bottom."""
        here = cursor.get()
        cursor.set(BOTTOM)
        try:
            return outputs_of(self, called(self, *arrays))[0]
        finally:
            cursor.set(here)


@attrs.frozen(eq=False)
class SetGradient(Operator):
    """Hands `outs` through, with a derivative of its own: operands are outs, residuals, primals, in this order."""

    custom: CustomGradient
    outs: int
    residuals: Any  # the structure of the residuals
    multiple_outputs = True
    fills_zeros = False
    backward_name = "CustomBackward"

    def infer(self, *avals: Aval) -> tuple[Aval, ...]:
        """The first operands'."""
        return avals[: self.outs]

    def evaluate(self, xp: Any, *arrays: Any) -> tuple[Any, ...]:
        """Return the first operands."""
        return arrays[: self.outs]


@vjp_rule(CustomGradient)
def custom_gradient_vjp(op: CustomGradient, needed: tuple[bool, ...], *primals: Any) -> tuple[Any, Any]:
    """Run `forward` below this tape, and tie its results there to the user's rule too.

    Residuals keep what layers below know of them, so that derivatives of higher order are those of `backward`.
    """
    tape = recording_tape.get()
    with nullcontext() if tape is None else tape.suspended_siblings():
        outs, residuals = outputs_of(op, called(op, *primals))
    if cursor.get() is not BOTTOM:
        leaves, structure = tree.flatten(residuals)
        kept = [leaf for leaf in leaves if isinstance(leaf, Value) or is_raw(leaf)]
        if len(kept) == len(leaves):
            tie = SetGradient(op, len(outs), structure)
            outs = apply(tie, *map(stopped, outs), *leaves, *primals)
    return outs, functools.partial(call_backward, op, residuals, len(primals))


@vjp_rule(SetGradient)
def set_gradient_vjp(op: SetGradient, needed: tuple[bool, ...], *operands: Any) -> tuple[Any, Any]:
    """The user's rule, for a tape below the one that ran `forward`."""
    outs = apply(op, *operands)
    before = op.outs + op.residuals.num_leaves
    leaves, primals = operands[op.outs : before], operands[before:]
    residuals = tree.unflatten(op.residuals, list(leaves))

    def pullback(cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*[None] * before, *call_backward(op.custom, residuals, len(primals), cotangents))

    return outs, pullback


@jvp_rule(CustomGradient, SetGradient)
def custom_gradient_jvp(op: Operator, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
    """Refuse: the user gave a reverse rule alone."""
    msg = (
        f"{op.name}: custom_gradient has a reverse rule alone; use reverse mode (grad, jacrev), or write an "
        "xf.Operator with xf.vjp_rule and xf.jvp_rule"
    )
    raise MissingRuleError(msg, op=op)


def stopped(x: Any) -> Any:
    """Return a value without what tapes below know of it."""
    return apply(StopGradient(), x)


def called(op: CustomGradient, *xs: Any) -> Any:
    """Call the user's forward function."""
    try:
        return op.forward(*xs)
    except EscapedValueError as error:
        raise closed_over(op, "forward", error) from error


def closed_over(op: CustomGradient, which: str, error: EscapedValueError) -> EscapedValueError:
    """Make the error for a tracked value that a user's function takes from around it."""
    msg = (
        f"{op.name}: {which} uses {getattr(error, 'value', 'a tracked value')!r} from outside, where its layer does "
        f"not reach: a value that is tracked must be an argument of the function, with a cotangent (or None) of its "
        f"own from backward. {error}"
    )
    return EscapedValueError(msg, **error.payload)


def outputs_of(op: CustomGradient, result: Any) -> tuple[tuple[Any, ...], Any]:
    """Return outputs (always a tuple) and residuals of a user's forward function."""
    if not isinstance(result, tuple) or len(result) != 2:
        msg = f"{op.name}: forward must return (outs, residuals), got {type(result).__name__}"
        raise RuleError(msg, op=op)
    outs, residuals = result
    outs = tuple(outs) if isinstance(outs, tuple | list) else (outs,)
    for position, out in enumerate(outs):
        if not (isinstance(out, Value) or is_raw(out)):
            msg = f"{op.name}: output {position} of forward is {type(out).__name__}, no array"
            raise RuleError(msg, op=op)
    return outs, residuals


def call_backward(op: CustomGradient, residuals: Any, count: int, cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
    """Call the user's backward function; missing cotangents are None, and it may return None to stop a path."""
    try:
        found = op.backward(residuals, *cotangents)
    except EscapedValueError as error:
        raise closed_over(op, "backward", error) from error
    if count == 1 and not isinstance(found, tuple | list):
        return (found,)
    if not isinstance(found, tuple | list) or len(found) != count:
        got = f"{len(found)} cotangents" if isinstance(found, tuple | list) else type(found).__name__
        msg = f"{op.name}: backward must return a tuple of {count}, one cotangent or None per input; got {got}"
        raise RuleError(msg, op=op)
    return tuple(found)


def custom_gradient(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with a reverse rule of its own.

    `forward(*xs) -> (outs, residuals)` runs on plain values; `backward(residuals, *cotangents)` returns one cotangent,
    or None, per input. A cotangent of an unused output is None. The rule is used as it is, true derivative or not, on
    every tape. A tracked value that either function needs must be an argument: one from outside raises
    `EscapedValueError`. Raises `RuleError` for a wrong structure, `OperandTypeError` for an argument that is no array.

    >>> import numpy as np, xform as xf
    >>> rounded = xf.custom_gradient(lambda x: (np.round(x), None), lambda residuals, t: t)
    >>> xf.grad(lambda x: rounded(x) * 2.0)(1.3)
    2.0
    """
    require_function(forward, "custom_gradient")
    require_function(backward, "custom_gradient")

    @functools.wraps(forward)
    def function(*xs: Any) -> Any:
        for position, x in enumerate(xs):
            if not isinstance(x, Value) and not is_raw(x):
                name = getattr(forward, "__name__", "forward")
                msg = (
                    f"custom_gradient of {name}: argument {position} is {type(x).__name__}, no array; "
                    "bind it with functools.partial; the instance of a method: make both functions inside of the method"
                )
                raise OperandTypeError(msg, value=x)
        single: list[bool] = []

        def noted(*plain: Any) -> Any:
            result = forward(*map(copied, plain))
            if isinstance(result, tuple) and len(result) == 2:
                single[:] = [not isinstance(result[0], tuple | list)]
            return result

        outs = apply(CustomGradient(functools.wraps(forward)(noted), backward, len(xs)), *xs)
        return outs[0] if single and single[0] else outs

    return function

