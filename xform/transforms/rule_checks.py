"""What the rules of users return, checked: the error names the rule, the operator and the operand.

The rules of xform's own operators are held to the same by tests alone, so that they cost nothing here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from xform.core.aval import Aval, aval_of, dtype_of, shape_of
from xform.core.backend import SCALAR_TYPES, is_raw
from xform.core.errors import RuleError
from xform.core.operator import Operator
from xform.core.rules import Linear, Partials
from xform.core.value import Value
from xform.ops.broadcast import astype

__all__ = [
    "checked_batch", "checked_cotangents", "checked_jvp", "checked_step", "checked_vjp", "fitted_part", "is_array",
    "same_shape",
]  # fmt: skip


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array, a number or a value."""
    return isinstance(leaf, Value) or is_raw(leaf)


def same_shape(have: Aval, want: Aval) -> bool:
    """Whether two shapes are the same, as far as they are known."""
    return len(have.shape) == len(want.shape) and all(
        n == m or n is None or m is None for n, m in zip(have.shape, want.shape, strict=True)
    )


def refuse(said: str, **payload: Any) -> NoReturn:
    """Raise `RuleError`."""
    raise RuleError(said, **payload)


def fitted_part(part: Any, like: Any, wrong: str, kind: str = "cotangent", *, exact: bool = False) -> Any:
    """Return a tangent or cotangent that a rule gave, in the dtype of its value; raises `RuleError` for one unfit.

    A higher precision is cast, with `exact` refused; a lower one has lost digits already, and is refused. Python
    numbers fit always. `wrong` begins the error.
    """
    if not is_array(part):
        refuse(f"{wrong} as {kind} {type(part).__name__}, no array; return an array, or None for zero", value=part)
    have, want = aval_of(part), aval_of(like)
    if not same_shape(have, want):
        refuse(f"{wrong} a {kind} {have!r}; it must be {want!r}: sum or broadcast it to that shape", value=part)
    if have.dtype == want.dtype:
        return part
    real = have.dtype.kind == "c" and want.dtype.kind == "f"
    higher = have.dtype.kind in "fc" and precision(have.dtype) >= precision(want.dtype)
    if real or not (have.weak or want.weak or (higher and not exact)):
        remedy = "take its real part" if real else f"cast it with .astype({want.dtype.name!r})"
        refuse(f"{wrong} a {kind} {have!r}; it must be {want!r}: {remedy}", value=part)
    if type(part) in SCALAR_TYPES and want.weak:
        return complex(part) if want.dtype.kind == "c" else float(part)
    return astype(part, want.dtype)


def precision(dtype: np.dtype[Any]) -> int:
    """Return the bytes of a floating number, of a complex one those of a part."""
    return dtype.itemsize // (2 if dtype.kind == "c" else 1)


def outputs_of(op: Operator, out: Any, wrong: str) -> tuple[Any, ...]:
    """Return the results that a rule gave, as a tuple; raises `RuleError` where they are not what the operator has."""
    if op.multiple_outputs and not isinstance(out, tuple):
        refuse(f"{wrong} {type(out).__name__} as results; {op.name} has several: return a tuple", op=op)
    outs = out if op.multiple_outputs else (out,)
    for position, each in enumerate(outs):
        if not is_array(each):
            which = f"result {position}" if op.multiple_outputs else "the result"
            refuse(f"{wrong} {type(each).__name__} as {which}, no array", op=op)
    return outs


def pair_of(op: Operator, found: Any, wrong: str, wanted: str) -> tuple[Any, Any]:
    """Return the pair that a rule gave."""
    if not isinstance(found, tuple) or len(found) != 2:
        got = f"a tuple of {len(found)}" if isinstance(found, tuple) else type(found).__name__
        refuse(f"{wrong} {got}; it must return a pair {wanted}", op=op)
    return found


# ------------------------------------------------------------------ reverse mode


def checked_vjp(op: Operator, found: Any) -> tuple[Any, Callable[..., Any]]:
    """Return results and pullback that a user's reverse rule gave."""
    wrong = f"the vjp rule of {op!r} returned"
    out, pullback = pair_of(op, found, wrong, "(out, pullback)")
    outputs_of(op, out, wrong)
    if not callable(pullback):
        refuse(f"{wrong} {type(pullback).__name__} as pullback, no function", op=op)
    return out, pullback


def checked_cotangents(op: Operator, found: Any, likes: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the cotangents that a user's pullback gave, in the dtypes of the operands; `likes` has None for others."""
    wrong = f"the pullback of {op!r} returned"
    count = len(likes)
    if not isinstance(found, tuple) or len(found) != count:
        got = f"{len(found)} cotangents" if isinstance(found, tuple) else type(found).__name__
        refuse(f"{wrong} {got}; it must return a tuple of {count}, one cotangent or None per operand", op=op)
    return tuple([
        None if part is None or like is None else fitted_part(part, like, f"{wrong} for operand {operand}")
        for operand, (part, like) in enumerate(zip(found, likes, strict=True))
    ])  # fmt: skip


def checked_step(step: Callable[[Any, Any], Any] | None, rule: Any, name: str, operand: int) -> Any:
    """Return the step of a rule that a user declared by partials, linear or bilinear, with what it gives checked.

    A partial derivative gives what is then summed or broadcast to its operand, so it has the shape of the result.
    """
    if step is None:
        return None

    def checked(cotangent: Any, residual: Any) -> Any:
        part, place = step(cotangent, residual), operand
        if isinstance(rule, Partials):
            like = Aval(shape_of(cotangent), dtype_of(part if is_array(part) else cotangent))
        elif isinstance(rule, Linear):
            place = residual[2]
            like = residual[1][place]
        else:
            like = residual[2]
        return fitted_part(part, like, f"the rule declared for {name} returned for operand {place}")

    return checked


# ------------------------------------------------------------------ forward mode


def checked_jvp(op: Operator, found: Any) -> tuple[Any, Any]:
    """Return what a user's forward rule gave, tangents in the dtypes of their results."""
    wrong = f"the jvp rule of {op!r} returned"
    out, tangent = pair_of(op, found, wrong, "(out, out_tangent)")
    outs = outputs_of(op, out, wrong)
    if tangent is None:
        return out, None
    if not op.multiple_outputs:
        return out, checked_tangent(out, tangent, wrong)
    if not isinstance(tangent, tuple | list) or len(tangent) != len(outs):
        refuse(
            f"{wrong} {len(outs)} results and as tangents {tangent!r:.60}; return a tuple of one per result, or None",
            op=op,
        )
    pairs = enumerate(zip(outs, tangent, strict=True))
    return out, tuple([checked_tangent(each, t, f"{wrong} for result {n}") for n, (each, t) in pairs])


def checked_tangent(out: Any, tangent: Any, wrong: str) -> Any:
    """Return one tangent; None for a result of integers, which does not vary."""
    if tangent is None or aval_of(out).dtype.kind not in "fc":
        return None
    return fitted_part(tangent, out, wrong, "tangent")


# ------------------------------------------------------------------ batches


def checked_batch(op: Operator, size: int, found: Any, lane: Any) -> tuple[Any, Any]:
    """Return results and their batch axes that a user's batch rule gave; `lane` is what one lane has, if known."""
    wrong = f"the batch rule of {op!r} returned"
    out, axis = pair_of(op, found, wrong, "(out, out_axis)")
    several = op.multiple_outputs and isinstance(axis, tuple | list)
    for at in axis if several else (axis,):
        if at is not None and (isinstance(at, bool) or not isinstance(at, int | np.integer)):
            refuse(f"{wrong} {type(at).__name__} as the axis of a result; it must be an int or None", op=op)
    outs = outputs_of(op, out, wrong)
    axes = axis if several else (axis,) * len(outs)
    if len(axes) != len(outs):
        refuse(f"{wrong} {len(outs)} results and {len(axes)} axes", op=op)
    wanted = (None,) * len(outs) if lane is None else lane if op.multiple_outputs else (lane,)
    for each, at, want in zip(outs, axes, wanted, strict=True):
        shape = aval_of(each).shape
        if at is not None and (not -len(shape) <= at < len(shape) or shape[at] not in (size, None)):
            refuse(f"{wrong} a result of shape {shape} with axis {at}, which does not hold the {size} lanes", op=op)
        rest = shape if at is None else [n for k, n in enumerate(shape) if k != at % len(shape)]
        if want is not None and not same_shape(Aval(tuple(rest), want.dtype), want):
            whole = "with no batch axis" if at is None else f"with the lanes along axis {at}"
            refuse(f"{wrong} a result of shape {shape} {whole}; one lane of {op.name} is {want!r}", op=op)
    return out, axis
