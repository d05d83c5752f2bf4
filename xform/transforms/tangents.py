"""Tangents as users give them: brought to the dtype of their primals, or refused by name."""

from __future__ import annotations

from typing import Any

from xform import tree
from xform.core.aval import aval_of, is_numeric
from xform.core.backend import HOST_TYPES, SCALAR_TYPES, namespace_of
from xform.core.errors import GradientError, OperandTypeError, TreeError
from xform.core.stack import concrete
from xform.ops.broadcast import astype
from xform.transforms.operands import DECLARE
from xform.transforms.rule_checks import is_array, same_shape

__all__ = ["fitted_tangent", "tangents_for"]


def fitted_tangent(x: Any, t: Any, where: str) -> Any:
    """Return a tangent in the dtype of its primal, or None for zero; raises `GradientError` where it does not fit."""
    if not is_array(x):
        kind = type(x).__name__
        msg = f"{where}: the primal is {kind}, no array; close over it, or convert it with xform.numpy.array; {DECLARE}"
        raise OperandTypeError(msg, value=x)
    want = aval_of(x)
    if not is_numeric(want.dtype):
        msg = f"{where}: the primal has dtype {want.dtype}, which holds no numbers; close over it"
        raise OperandTypeError(msg, value=x)
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
    if have.dtype == want.dtype:  # a number stays one, weak: a product with an array keeps the array's dtype
        return type(x)(t) if type(x) in SCALAR_TYPES and type(t) in HOST_TYPES else t
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
