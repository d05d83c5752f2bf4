"""Trigonometric and hyperbolic functions, their inverses, and their derivatives as a table.

In each rule `t` is the tangent or the cotangent; the derivative of a holomorphic function is used in both modes.
"""
# Each class is one row: its ufunc and its name in the array API standard.

from __future__ import annotations

import math
from typing import Any

import numpy as np

from xform.core.rules import partials
from xform.ops.arithmetic import mul
from xform.ops.base import Binary, Unary, binary, is_complex, ufuncs, unary
from xform.ops.powers import hypot, ratio, sqrt

__all__ = [
    "Arccos", "Arccosh", "Arcsin", "Arcsinh", "Arctan", "Arctan2", "Arctanh", "Cos", "Cosh", "Deg2rad", "Rad2deg",
    "Sin", "Sinh", "Tan", "Tanh", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "cos",
    "cosh", "deg2rad", "rad2deg", "sin", "sinh", "tan", "tanh",
]  # fmt: skip


# ------------------------------------------------------------------ circular functions


class Sin(Unary):
    """Sine."""

    kernel, function = np.sin, "sin"


class Cos(Unary):
    """Cosine."""

    kernel, function = np.cos, "cos"


class Tan(Unary):
    """Tangent."""

    kernel, function = np.tan, "tan"


class Arcsin(Unary):
    """Inverse sine."""

    kernel, function = np.arcsin, "asin"


class Arccos(Unary):
    """Inverse cosine."""

    kernel, function = np.arccos, "acos"


class Arctan(Unary):
    """Inverse tangent."""

    kernel, function = np.arctan, "atan"


class Arctan2(Binary):
    """Angle of the vector with components y (first) and x."""

    kernel, function = np.arctan2, "atan2"


sin = unary(Sin(), "Sine of an angle in radians.", ((0.0,), 0.0))
cos = unary(Cos(), "Cosine of an angle in radians.", ((0.0,), 1.0))
tan = unary(Tan(), "Tangent of an angle in radians.", ((0.0,), 0.0))
arcsin = unary(Arcsin(), "Inverse sine, in radians.", ((0.0,), 0.0))
arccos = unary(Arccos(), "Inverse cosine, in radians.", ((1.0,), 0.0))
arctan = unary(Arctan(), "Inverse tangent, in radians.", ((0.0,), 0.0))
arctan2 = binary(
    Arctan2(), "Angle of the vector (second, first) in radians; its derivatives at (0, 0) are 0.", ((0.0, 1.0), 0.0)
)

partials(Sin, lambda t, x: t * cos(x))
partials(Cos, lambda t, x: -t * sin(x))
partials(Tan, lambda t, out: t * (1.0 + out * out))


def arcsin_by_x(t: Any, x: Any) -> Any:
    """Return `t / sqrt(1 - x**2)`: `(1 - x)(1 + x)` keeps digits near 1, and far out two roots do not overflow."""
    return t / (sqrt(1.0 - x) * sqrt(1.0 + x) if is_complex(x) else sqrt((1.0 - x) * (1.0 + x)))


partials(Arcsin, arcsin_by_x)
partials(Arccos, lambda t, x: -arcsin_by_x(t, x))


def arctan_by_x(t: Any, x: Any) -> Any:
    """Return `t / (1 + x**2)`, in two steps: the square overflows where the quotient is a number."""
    if is_complex(x):
        return t / (1.0 + x * 1j) / (1.0 - x * 1j)
    length = hypot(1.0, x)
    return t / length / length


def arcsinh_by_x(t: Any, x: Any) -> Any:
    """Return `t / sqrt(1 + x**2)` without the square; of two roots, whose product is on the branch of arcsinh."""
    return t / (sqrt(1.0 + x * 1j) * sqrt(1.0 - x * 1j) if is_complex(x) else hypot(1.0, x))


partials(Arctan, arctan_by_x)


def turning(t: Any, x: Any, y: Any) -> Any:
    """Return `t * x / (x**2 + y**2)`, and 0 at (0, 0); through the radius, whose square would over- or underflow."""
    radius = hypot(x, y)
    return mul(t, ratio(ratio(x, radius), radius))


partials(Arctan2, lambda t, x, y: turning(t, y, x), lambda t, x, y: -turning(t, x, y))


# ------------------------------------------------------------------ hyperbolic functions


class Sinh(Unary):
    """Hyperbolic sine."""

    kernel, function = np.sinh, "sinh"


class Cosh(Unary):
    """Hyperbolic cosine."""

    kernel, function = np.cosh, "cosh"


class Tanh(Unary):
    """Hyperbolic tangent."""

    kernel, function = np.tanh, "tanh"


class Arcsinh(Unary):
    """Inverse hyperbolic sine."""

    kernel, function = np.arcsinh, "asinh"


class Arccosh(Unary):
    """Inverse hyperbolic cosine."""

    kernel, function = np.arccosh, "acosh"


class Arctanh(Unary):
    """Inverse hyperbolic tangent."""

    kernel, function = np.arctanh, "atanh"


sinh = unary(Sinh(), "Hyperbolic sine.", ((0.0,), 0.0))
cosh = unary(Cosh(), "Hyperbolic cosine.", ((0.0,), 1.0))
tanh = unary(Tanh(), "Hyperbolic tangent.", ((0.0,), 0.0))
arcsinh = unary(Arcsinh(), "Inverse hyperbolic sine.", ((0.0,), 0.0))
arccosh = unary(Arccosh(), "Inverse hyperbolic cosine.", ((1.0,), 0.0))
arctanh = unary(Arctanh(), "Inverse hyperbolic tangent.", ((0.0,), 0.0))

partials(Sinh, lambda t, x: t * cosh(x))
partials(Cosh, lambda t, x: t * sinh(x))
partials(Tanh, lambda t, out: t - t * out * out)  # 1.0 - out * out would cost twice as much on a small array
partials(Arcsinh, arcsinh_by_x)
# two roots: the branch of their product is that of arccosh in the whole complex plane
partials(Arccosh, lambda t, x: t / (sqrt(x - 1.0) * sqrt(x + 1.0)))
partials(Arctanh, lambda t, x: t / (1.0 - x) / (1.0 + x))


# ------------------------------------------------------------------ units


class Deg2rad(Unary):
    """Radians of an angle in degrees."""

    kernel = np.deg2rad

    def portable(self, xp: Any, *arrays: Any) -> Any:
        """Multiply."""
        return arrays[0] * RADIANS


class Rad2deg(Unary):
    """Degrees of an angle in radians."""

    kernel = np.rad2deg

    def portable(self, xp: Any, *arrays: Any) -> Any:
        """Multiply."""
        return arrays[0] * DEGREES


RADIANS = math.pi / 180.0
DEGREES = 180.0 / math.pi

deg2rad = unary(Deg2rad(), "Radians of an angle in degrees.", ((180.0,), math.pi))
rad2deg = unary(Rad2deg(), "Degrees of an angle in radians.", ((math.pi,), 180.0))
ufuncs[np.radians] = Deg2rad()
ufuncs[np.degrees] = Rad2deg()

partials(Deg2rad, lambda t: t * RADIANS)
partials(Rad2deg, lambda t: t * DEGREES)
