"""Tangents as users and their rules give them: brought to the dtype of their primals, or refused by name."""

from __future__ import annotations

from typing import Any

from xform import tree
from xform.core.aval import Aval, aval_of
from xform.core.backend import SCALAR_TYPES, is_raw, namespace_of
from xform.core.errors import GradientError, OperandTypeError, RuleError, TreeError
from xform.core.operator import Operator
from xform.core.rules import settle_dtype
from xform.core.stack import concrete
from xform.core.value import Value
from xform.ops.broadcast import astype
from xform.transforms.recording import is_inexact

__all__ = ["checked", "fitted_tangent", "is_array", "tangents_for"]

def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array, a number or a value."""
    return isinstance(leaf, Value) or is_raw(leaf)


# ------------------------------------------------------------------ what a user's rule returns


def checked(op: Operator, found: Any) -> tuple[Any, Any]:
    """Return what a user's forward rule gave, tangents in the dtype of their results; raises `RuleError`."""
    wrong = f"the jvp rule of {op!r} returned"
    if not isinstance(found, tuple) or len(found) != 2:
        msg = f"{wrong} {type(found).__name__}; it must return a pair (out, out_tangent)"
        raise RuleError(msg, op=op)
    out, tangent = found
    if tangent is None:
        return out, None
    if not op.multiple_outputs:
        return out, checked_tangent(op, out, tangent, wrong)
    if not isinstance(tangent, tuple | list) or len(tangent) != len(out):
        msg = f"{wrong} {len(out)} results and as tangents {tangent!r:.60}; return a tuple of one per result, or None"
        raise RuleError(msg, op=op)
    pairs = zip(out, tangent, strict=True)
    return out, tuple([checked_tangent(op, each, t, f"{wrong} for result {i}") for i, (each, t) in enumerate(pairs)])


def checked_tangent(op: Operator, out: Any, tangent: Any, wrong: str) -> Any:
    """Return one tangent in the dtype of its result, None for a result of integers; raises where it does not fit."""
    if tangent is None or not is_inexact(out):
        return None
    if not is_array(tangent):
        msg = f"{wrong} as tangent {type(tangent).__name__}, no array; return an array, or None for no tangent"
        raise RuleError(msg, op=op)
    have, want = aval_of(tangent), aval_of(out)
    if not same_shape(have, want):
        msg = f"{wrong} a tangent {have!r}; its result is {want!r}: sum or broadcast it to that shape"
        raise RuleError(msg, op=op)
    return settle_dtype(tangent, out)


def same_shape(have: Aval, want: Aval) -> bool:
    """Whether two shapes are the same, as far as they are known."""
    return len(have.shape) == len(want.shape) and all(
        n == m or n is None or m is None for n, m in zip(have.shape, want.shape, strict=True)
    )


# ------------------------------------------------------------------ tangents as users give them


def fitted_tangent(x: Any, t: Any, where: str) -> Any:
    """Return a tangent in the dtype of its primal, or None for zero; raises `GradientError` where it does not fit."""
    if not is_array(x):
        msg = f"{where}: the primal is {type(x).__name__}, no array; convert it with xform.numpy.array"
        raise OperandTypeError(msg, value=x)
    want = aval_of(x)
    if t is None:
        return None
    if not is_array(t):
        msg = f"{where}: the tangent is {type(t).__name__}, no array; its primal is {want!r}"
        raise GradientError(msg, value=t)
    have = aval_of(t)
    if not same_shape(have, want):
        msg = f"{where}: the tangent has shape {have.shape}, its primal {want.shape}"
        raise GradientError(msg, value=t)
    if want.dtype.kind not in "fc":
        if have.dtype.kind != "V" and not is_zero(t):
            msg = f"{where}: the primal has dtype {want.dtype}, which does not vary; give None or zeros as its tangent"
            raise GradientError(msg, value=t)
        return None
    if have.dtype == want.dtype:
        return t
    if not have.weak or (have.dtype.kind == "c" and want.dtype.kind == "f"):
        cast = f"t.astype({str(want.dtype)!r})"
        msg = f"{where}: the tangent has dtype {have.dtype}, its primal {want.dtype}; cast one: {cast}"
        raise GradientError(msg, value=t)
    return type(x)(t) if type(x) in SCALAR_TYPES and type(t) in SCALAR_TYPES else astype(t, want.dtype)


def is_zero(t: Any) -> bool:
    """Whether all elements of a value are known to be zero."""
    raw = concrete(t)
    if raw is None:
        return False
    if type(raw) in SCALAR_TYPES:
        return not raw
    return not bool(namespace_of(raw).any(raw != 0))


def tangents_for(structure: tree.Structure, primals: list[Any], tangents: Any, what: str) -> list[Any]:
    """Return one fitted tangent, or None, per leaf of the primals; raises `GradientError` naming function and leaf."""
    try:
        given = tree.flatten_up_to(structure, tangents)
    except TreeError as error:
        msg = f"{what}: the tangents do not have the structure of the primals: {error}"
        raise GradientError(msg) from error
    paths = structure.paths()
    return [
        fitted_tangent(x, t, f"{what}: leaf {path}") for x, t, path in zip(primals, given, paths, strict=True)
    ]
