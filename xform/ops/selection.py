"""Choosing between operands: where, maximum, minimum, clip.

In each rule `t` is the tangent or the cotangent. Equal operands of `maximum` and `minimum` share it in halves; the
interval of `clip` is closed, so that its derivative at a bound is 1.
"""
# Each class is one row: its ufunc and its name in the array API standard.

from __future__ import annotations

from typing import Any

import numpy as np

from xform.core.aval import Aval, aval_of, dtype_of, result_dtype
from xform.core.backend import SCALAR_TYPES
from xform.core.errors import OperandError
from xform.core.rules import partials
from xform.core.stack import apply
from xform.ops.arithmetic import mul, positive
from xform.ops.base import Binary, Ternary, binary, cast_raw, constant, follows_numpy
from xform.ops.broadcast import astype
from xform.ops.comparisons import isnan

__all__ = [
    "AtLeast", "AtMost", "Fmax", "Fmin", "Maximum", "Minimum", "Share", "Where", "clip", "fmax", "fmin", "maximum",
    "minimum", "where",
]  # fmt: skip


# ------------------------------------------------------------------ where


class Where(Ternary):
    """The second operand where the first is true, else the third."""

    kernel = staticmethod(np.where)

    def infer(self, *avals: Aval) -> Aval:
        """Broadcast shapes, and the promoted dtype of the two choices."""
        condition, x, y = avals
        return Aval(self.broadcast(condition, x, y), result_dtype(x, y))

    def evaluate(self, xp: Any, condition: Any, x: Any, y: Any) -> Any:
        """Compute on raw arrays."""
        if xp is np or (follows_numpy(xp) and type(condition) not in SCALAR_TYPES):
            return xp.where(condition, x, y)
        like = next(each for each in (condition, x, y) if type(each) not in SCALAR_TYPES)
        if type(condition) in SCALAR_TYPES:
            condition = xp.asarray(bool(condition), device=getattr(like, "device", None))
        elif aval_of(condition).dtype.kind != "b":
            condition = condition != 0
        dtype = result_dtype(aval_of(x), aval_of(y))
        return xp.where(condition, cast_raw(xp, x, dtype, like), cast_raw(xp, y, dtype, like))


# a choice, not a product: 0 * inf in the branch that was not taken must not reach its operand
partials(Where, None, lambda t, condition: where(condition, t, 0), lambda t, condition: where(condition, 0, t))


def where(condition: Any, x: Any = None, y: Any = None, /) -> Any:
    """Return `x` where the condition is true, else `y`.

    The three broadcast together. Raises `OperandError` without `x` and `y`: the positions of true elements have a shape
    that depends on data.

    >>> import numpy as np, xform as xf
    >>> xf.where(np.array([True, False]), 1.0, 2.0)
    array([1., 2.])
    """
    if x is None or y is None:
        msg = (
            "where: give both choices, where(condition, x, y); for positions, whose number depends on data, "
            "use np.nonzero(np.asarray(xf.stop_gradient(condition)))"
        )
        raise OperandError(msg, operator="Where")
    return apply(WHERE, condition, x, y)


WHERE = Where()


# ------------------------------------------------------------------ maximum and minimum


class Maximum(Binary):
    """The greater of two operands; NaN where one is NaN."""

    kernel, function = np.maximum, "maximum"


class Minimum(Binary):
    """The lesser of two operands; NaN where one is NaN."""

    kernel, function = np.minimum, "minimum"


class Fmax(Binary):
    """The greater of two operands, the other where one is NaN."""

    kernel = np.fmax

    def portable(self, xp: Any, *arrays: Any) -> Any:
        """Choose the other operand first where one is NaN."""
        x, y = arrays
        return xp.maximum(xp.where(x != x, y, x), xp.where(y != y, x, y))  # noqa: PLR0124  (NaN differs from itself)


class Fmin(Binary):
    """The lesser of two operands, the other where one is NaN."""

    kernel = np.fmin

    def portable(self, xp: Any, *arrays: Any) -> Any:
        """Choose the other operand first where one is NaN."""
        x, y = arrays
        return xp.minimum(xp.where(x != x, y, x), xp.where(y != y, x, y))  # noqa: PLR0124  (NaN differs from itself)


class Share(Binary):
    """What the first operand takes of a maximum's cotangent: 1 where it is greater, 1/2 where equal, else 0."""

    def infer(self, *avals: Aval) -> Aval:
        """Broadcast shapes, and a real floating dtype of the operands' precision."""
        x, y = avals
        return Aval(self.broadcast(x, y), share_dtype(x, y))

    def evaluate(self, xp: Any, x: Any, y: Any) -> Any:
        """Compute on raw arrays."""
        if type(x) is np.ndarray and x.dtype.kind == "f" and type(y) in (int, float):  # relu: 4 us less a call
            dtype = x.dtype
        else:
            dtype = share_dtype(aval_of(x), aval_of(y))
        if xp is np:
            out = np.asarray(np.greater(x, y), dtype)
            equal = np.equal(x, y)
            if np.count_nonzero(equal):  # 1 us of 32,000 elements, where any() takes 20
                out[equal] = 0.5
            return out
        like = y if type(x) in SCALAR_TYPES else x
        kind = result_dtype(aval_of(x), aval_of(y))
        x, y = cast_raw(xp, x, kind, like), cast_raw(xp, y, kind, like)
        return cast_raw(xp, x > y, dtype, like) + 0.5 * cast_raw(xp, x == y, dtype, like)


def share_dtype(x: Aval, y: Aval) -> np.dtype[Any]:
    """Return the real floating dtype of the operands' precision."""
    dtype = result_dtype(x, y)
    if dtype.kind == "c":
        return np.dtype(f"f{dtype.itemsize // 2}")
    return dtype if dtype.kind == "f" else np.dtype(np.float64)


maximum = binary(Maximum(), "The greater of two operands; equal ones share the derivative.", ((1.0, 2.0), 2.0))
minimum = binary(Minimum(), "The lesser of two operands; equal ones share the derivative.", ((1.0, 2.0), 1.0))
fmax = binary(Fmax(), "The greater of two operands, the other where one is NaN.", ((1.0, 2.0), 2.0))
fmin = binary(Fmin(), "The lesser of two operands, the other where one is NaN.", ((1.0, 2.0), 1.0))


def share(x: Any, y: Any) -> Any:
    """Return 1 where `x` is greater than `y`, 1/2 where they are equal, else 0."""
    return apply(SHARE, x, y)


SHARE = Share()
INFINITY = float("inf")


def unless_nan(y: Any, other: float) -> Any:
    """Replace NaN by a number; a Python number stays one, and weak."""
    if type(y) in SCALAR_TYPES:
        return y if y == y else other  # noqa: PLR0124  (NaN differs from itself)
    if dtype_of(y).kind not in "fc":
        return y
    return where(isnan(y), other, y)


constant(Share, why="it is constant between its jumps: its derivative is 0")


def small_share(x: Any, y: Any) -> Any:
    """Return the share of raw operands as booleans where no two are equal: a quarter of the memory, or less."""
    return SHARE.evaluate(np, x, y) if np.count_nonzero(np.equal(x, y)) else np.greater(x, y)


def small_other(x: Any, y: Any) -> Any:
    """Return the other operand's share."""
    return small_share(y, x)


partials(
    Maximum,
    lambda t, x, y: mul(t, share(x, y)),
    lambda t, x, y: mul(t, share(y, x)),
    factors=(small_share, small_other),
)
partials(
    Minimum,
    lambda t, x, y: mul(t, share(y, x)),
    lambda t, x, y: mul(t, share(x, y)),
    factors=(small_other, small_share),
)
partials(
    Fmax,
    lambda t, x, y: mul(t, share(x, unless_nan(y, -INFINITY))),
    lambda t, x, y: mul(t, share(y, unless_nan(x, -INFINITY))),
)
partials(
    Fmin,
    lambda t, x, y: mul(t, share(unless_nan(y, INFINITY), x)),
    lambda t, x, y: mul(t, share(unless_nan(x, INFINITY), y)),
)


# ------------------------------------------------------------------ clip


class AtLeast(Binary):
    """The first operand, or the lower bound where that is greater: at the bound the operand counts as inside."""

    kernel, function = np.maximum, "maximum"


class AtMost(Binary):
    """The first operand, or the upper bound where that is less: at the bound the operand counts as inside."""

    kernel, function = np.minimum, "minimum"


at_least = binary(AtLeast(), "The first operand, or the lower bound where that is greater.", register=False)
at_most = binary(AtMost(), "The first operand, or the upper bound where that is less.", register=False)

partials(AtLeast, lambda t, x, y: mul(t, x >= y), lambda t, x, y: mul(t, x < y))
partials(AtMost, lambda t, x, y: mul(t, x <= y), lambda t, x, y: mul(t, x > y))


def clip(x: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None) -> Any:
    """Limit values to an interval; a bound that is None is open.

    The bounds broadcast with `x`, and may be differentiated; where they cross, the upper one holds. The derivative at a
    bound is 1. `min` and `max` are other names of the bounds; raises `OperandError` where both names are given.

    >>> import numpy as np
    >>> clip(np.array([-1.0, 0.5, 2.0]), 0.0, 1.0)
    array([0. , 0.5, 1. ])
    """
    if (min is not None and a_min is not None) or (max is not None and a_max is not None):
        msg = "clip: a bound is given twice, as min and a_min or as max and a_max"
        raise OperandError(msg, operator="clip")
    lower, upper = a_min if min is None else min, a_max if max is None else max
    if lower is None and upper is None:
        return positive(x)
    x = np.asarray(x) if type(x) in SCALAR_TYPES else x  # NumPy makes an array of it first
    if lower is not None and upper is not None:  # all three decide on the dtype
        dtype = result_dtype(aval_of(x), aval_of(lower), aval_of(upper))
        x = x if dtype_of(x) == dtype else astype(x, dtype)
    out = x if lower is None else at_least(x, lower)
    return out if upper is None else at_most(out, upper)
