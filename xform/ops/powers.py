"""Powers and roots, and their derivatives as a table.

In each rule `t` is the tangent or the cotangent; the derivative of a holomorphic function is used in both modes.
"""
# Each class is one row: its ufunc and its name in the array API standard.

from __future__ import annotations

import cmath
import math
from typing import Any

import numpy as np

from xform.core.aval import aval_of, dtype_of
from xform.core.backend import SCALAR_TYPES
from xform.core.rules import partials
from xform.core.stack import BOTTOM, cursor
from xform.ops.arithmetic import div, mul, sub, times
from xform.ops.base import Binary, Unary, binary, ufunc_dtype, ufuncs, unary
from xform.ops.broadcast import astype
from xform.ops.create import zeros_like
from xform.ops.exponential import log
from xform.ops.selection import where

__all__ = [
    "Cbrt", "FloatPower", "Hypot", "Ldexp", "Pow", "Sqrt", "cbrt", "float_power", "hypot", "ldexp", "power", "sqrt",
]  # fmt: skip

_get = cursor.get
_ndarray = np.ndarray


# ------------------------------------------------------------------ roots


class Sqrt(Unary):
    """Square root."""

    kernel, function = np.sqrt, "sqrt"


class Cbrt(Unary):
    """Cube root."""

    kernel = np.cbrt

    def portable(self, xp: Any, *arrays: Any) -> Any:
        """Take the root of the magnitude."""
        (x,) = arrays
        return xp.sign(x) * xp.pow(xp.abs(x), xp.full_like(x, 1 / 3))


sqrt = unary(Sqrt(), "Square root; its derivative at 0 is inf.", ((9.0,), 3.0))
cbrt = unary(Cbrt(), "Cube root.", ((-1.0,), -1.0))

partials(Sqrt, lambda t, out: 0.5 * t / out)
partials(Cbrt, lambda t, out: t / (3.0 * out * out))


# ------------------------------------------------------------------ power


def raise_to(x: Any, y: Any) -> Any:
    """Raise raw NumPy operands to a power; small whole exponents of arrays are products (20 times as fast)."""
    if type(x) is _ndarray and type(y) in (int, float) and x.dtype.kind in "fc":
        if y == 2:
            return np.multiply(x, x)
        if y == 3:
            return np.multiply(np.multiply(x, x), x)
        if y == 4:
            x = np.multiply(x, x)
            return np.multiply(x, x)
        if y in (1, 0.5, -1):
            return (np.sqrt if y == 0.5 else np.positive if y == 1 else np.reciprocal)(x)
    return np.power(x, y)


class Pow(Binary):
    """The first operand to the power of the second."""

    kernel, function, ufunc = staticmethod(raise_to), "pow", np.power


class FloatPower(Binary):
    """The first operand to the power of the second, in double precision at least."""

    kernel, function = np.float_power, "pow"


def log_of_base(x: Any, out: Any) -> Any:
    """Return the logarithm, and 0 at 0: there the power does not vary with its exponent.

    It has the dtype of the power: of an int8 the logarithm alone would be a float16.
    """
    if type(x) in (int, float):
        return 0.0 if x == 0 else math.log(x) if x > 0 else math.nan
    if type(x) is complex:
        return cmath.log(x) if x else 0.0
    x = in_dtype(x, dtype_of(out))
    return log(where(x == 0, 1, x))


def in_dtype(x: Any, dtype: np.dtype[Any]) -> Any:
    """Cast what has another dtype; a Python number stays one."""
    return x if type(x) in SCALAR_TYPES or dtype_of(x) == dtype else astype(x, dtype)


def power_by_base(t: Any, x: Any, y: Any, raised: Any) -> Any:
    """Derivative of `x ** y` by `x`: `y * x ** (y - 1)`, and 0 where `y` is 0.

    At (0, 0) the base is replaced, so that `0 * inf` does not arise; elsewhere the factor `y` stays, for the second
    derivatives at `y = 0`, which are ((0, 1/x), (1/x, log(x)**2)).
    """
    if type(y) in SCALAR_TYPES:
        if y == 2:
            return 2.0 * t * x
        if y == 1:
            return t
        if y == 0:
            return zeros_like(t)
        return times(t, times(y, raised(x, y - 1)))
    y = in_dtype(y, ufunc_dtype(np.power, (aval_of(x), aval_of(y))))  # of a uint8 less 1 is 255 where it is 0
    both_zero = (x == 0) & (y == 0)
    return mul(t, mul(y, raised(where(both_zero, 1, x), sub(y, 1))))


POW = Pow()
_EXPONENTS = frozenset({_ndarray, int, float})
ufuncs[np.power] = POW


def power(x: Any, y: Any, /) -> Any:
    """Raise to a power; whole exponents take negative bases.

    Conventions: the derivative of `x**y` by `x` is 0 where `y` is 0, at `x = 0` too; that by `y` is 0 where `x` is 0.

    >>> float(power(-2.0, 3))
    -8.0
    """
    level = _get()
    if level is BOTTOM and type(x) is _ndarray and type(y) in _EXPONENTS:
        try:
            return raise_to(x, y)
        except (TypeError, ValueError):  # said again by the bottom, with operands and line
            pass
    return level.interpret(POW, (x, y))


float_power = binary(FloatPower(), "Power in double precision at least.", ((4, -1), 0.25))

partials(
    Pow,
    lambda t, x, y: power_by_base(t, x, y, power),
    lambda t, x, out: mul(mul(t, out), log_of_base(x, out)),
)
partials(
    FloatPower,
    lambda t, x, y: power_by_base(t, x, y, float_power),
    lambda t, x, out: mul(mul(t, out), log_of_base(x, out)),
)


# ------------------------------------------------------------------ hypot


class Hypot(Binary):
    """Length of the vector of two components."""

    kernel, function = np.hypot, "hypot"


def ratio(x: Any, y: Any) -> Any:
    """Return `x / y`, and the constant 0 where `y` is 0."""
    zero = y == 0
    return where(zero, 0, div(x, where(zero, 1, y)))


class Ldexp(Binary):
    """The first operand times 2 to the power of the second, an integer."""

    kernel = np.ldexp

    def portable(self, xp: Any, *arrays: Any) -> Any:
        """Multiply."""
        x, y = arrays
        return x * xp.pow(xp.full_like(x, 2), xp.astype(y, x.dtype))


ldexp = binary(Ldexp(), "The first operand times 2 to the power of the second, an integer.", ((1.5, 3), 12.0))

partials(Ldexp, lambda t, y: ldexp(t, y), None)  # noqa: PLW0108  (a rule's first parameter is named t)


hypot = binary(Hypot(), "Length of the vector of two components; its derivatives at (0, 0) are 0.", ((3.0, 4.0), 5.0))

partials(Hypot, lambda t, x, out: mul(t, ratio(x, out)), lambda t, y, out: mul(t, ratio(y, out)))
