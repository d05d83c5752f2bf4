"""Exponentials and logarithms, and their derivatives as a table.

In each rule `t` is the tangent or the cotangent; the derivative of a holomorphic function is used in both modes.
"""
# Each class is one row: its ufunc and its name in the array API standard.

from __future__ import annotations

import math
from typing import Any

import numpy as np

from xform.core.backend import SCALAR_TYPES
from xform.core.rules import partials
from xform.ops.arithmetic import mul
from xform.ops.base import Binary, Unary, binary, unary
from xform.ops.comparisons import isinf
from xform.ops.selection import where

__all__ = [
    "Exp", "Exp2", "Expm1", "Log", "Log1p", "Log2", "Log10", "Logaddexp", "Logaddexp2", "exp", "exp2", "expm1", "log",
    "log1p", "log2", "log10", "logaddexp", "logaddexp2",
]  # fmt: skip

LN2 = math.log(2.0)
LN10 = math.log(10.0)


class Exp(Unary):
    """Exponential function."""

    kernel, function = np.exp, "exp"


class Exp2(Unary):
    """Power of 2."""

    kernel = np.exp2

    def portable(self, xp: Any, *arrays: Any) -> Any:
        """Raise 2 to the operand."""
        (x,) = arrays
        return xp.pow(xp.full_like(x, 2), x)


class Expm1(Unary):
    """Exponential function minus 1, exact near 0."""

    kernel, function = np.expm1, "expm1"


class Log(Unary):
    """Natural logarithm."""

    kernel, function = np.log, "log"


class Log2(Unary):
    """Logarithm to base 2."""

    kernel, function = np.log2, "log2"


class Log10(Unary):
    """Logarithm to base 10."""

    kernel, function = np.log10, "log10"


class Log1p(Unary):
    """Natural logarithm of 1 + x, exact near 0."""

    kernel, function = np.log1p, "log1p"


exp = unary(Exp(), "Exponential function.", ((0.0,), 1.0))
exp2 = unary(Exp2(), "Power of 2.", ((3.0,), 8.0))
expm1 = unary(Expm1(), "Exponential function minus 1, exact near 0.", ((1e-20,), 1e-20))
log = unary(Log(), "Natural logarithm.", ((1.0,), 0.0))
log2 = unary(Log2(), "Logarithm to base 2.", ((8.0,), 3.0))
log10 = unary(Log10(), "Logarithm to base 10.", ((100.0,), 2.0))
log1p = unary(Log1p(), "Natural logarithm of 1 + x, exact near 0.", ((1e-20,), 1e-20))

partials(Exp, lambda t, out: t * out)
partials(Exp2, lambda t, out: LN2 * t * out)
partials(Expm1, lambda t, x: t * exp(x))
partials(Log, lambda t, x: t / x)
partials(Log2, lambda t, x: t / (LN2 * x))
partials(Log10, lambda t, x: t / LN10 / x)
partials(Log1p, lambda t, x: t / (1.0 + x))


# ------------------------------------------------------------------ sums of exponentials


class Logaddexp(Binary):
    """Logarithm of the sum of the exponentials of two operands."""

    kernel, function = np.logaddexp, "logaddexp"


class Logaddexp2(Binary):
    """Logarithm to base 2 of the sum of two powers of 2."""

    kernel = np.logaddexp2

    def portable(self, xp: Any, *arrays: Any) -> Any:
        """Convert to base e and back."""
        x, y = arrays
        return xp.logaddexp(x * LN2, y * LN2) / LN2


logaddexp = binary(Logaddexp(), "Logarithm of the sum of two exponentials.", ((0.0, 0.0), LN2))
logaddexp2 = binary(Logaddexp2(), "Logarithm to base 2 of the sum of two powers of 2.", ((3.0, 3.0), 4.0))


def part_of_sum(t: Any, x: Any, y: Any, out: Any, power: Any) -> Any:
    """Return `t` times an exponential's share in the sum: all where it is infinite, nothing where the sum is 0.

    The share is that of the difference: the sum itself is rounded to the last digit of a logarithm that may be large.
    """
    infinite = isinf(out)
    ahead = unless_infinite(infinite, x) - unless_infinite(infinite, y)
    first = ahead >= 0
    less = power(where(first, -ahead, ahead))
    return mul(t, where(infinite, (x == out) & (out > 0), where(first, 1, less) / (1 + less)))


def unless_infinite(infinite: Any, x: Any) -> Any:
    """Return `x`, and 0 where the sum is infinite; a Python number stays one, and weak."""
    if type(x) in SCALAR_TYPES:
        return 0 if x == math.inf else x
    return where(infinite, 0, x)


partials(
    Logaddexp,
    lambda t, x, y, out: part_of_sum(t, x, y, out, exp),
    lambda t, x, y, out: part_of_sum(t, y, x, out, exp),
)
partials(
    Logaddexp2,
    lambda t, x, y, out: part_of_sum(t, x, y, out, exp2),
    lambda t, x, y, out: part_of_sum(t, y, x, out, exp2),
)
