"""Parts of complex numbers, magnitudes and signs, and their derivatives as a table.

In each rule `t` is the tangent or the cotangent. A cotangent of a complex operand is the plain transpose, without
conjugation (JAX's convention): the gradient of `abs(z)**2` is `2 * conj(z)`.
"""
# Each class is one row: its kernel and its name in the array API standard.

from __future__ import annotations

import math
from typing import Any

import numpy as np

from xform.core.aval import Aval, aval_of
from xform.core.backend import SCALAR_TYPES
from xform.core.operator import Operator
from xform.core.rules import jvp_rule, partials, vjp_rule
from xform.core.stack import apply
from xform.ops.arithmetic import mul
from xform.ops.base import Binary, Unary, binary, is_complex, unary
from xform.ops.broadcast import astype
from xform.ops.comparisons import signbit
from xform.ops.powers import ratio
from xform.ops.selection import where
from xform.ops.trigonometric import DEGREES, arctan2

__all__ = [
    "Abs", "Conj", "Copysign", "Fabs", "Heaviside", "Imag", "Real", "Sign", "abs", "angle", "conj", "copysign",
    "fabs", "heaviside", "imag", "real", "sign",
]  # fmt: skip


# ------------------------------------------------------------------ parts


def real_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the parts of a complex number; a real dtype as it is.

    >>> real_dtype(np.dtype("complex64"))
    dtype('float32')
    """
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


class Part(Unary, base=True):
    """A part of a complex number. It has no kernel: a tape must see that the dtype changes."""

    def infer(self, *avals: Aval) -> Aval:
        """The operand's shape, and the dtype of its parts."""
        (x,) = avals
        return Aval(x.shape, real_dtype(x.dtype))


class Real(Part):
    """The real part."""

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Compute on raw arrays; a real operand is its own real part."""
        if xp is np:
            return np.asarray(x).real[()]
        return xp.real(x) if is_complex(x) else x


class Imag(Part):
    """The imaginary part."""

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Compute on raw arrays; a real operand has the imaginary part 0."""
        if xp is np:
            return np.asarray(x).imag[()]
        return xp.imag(x) if is_complex(x) else xp.zeros_like(x)


class Conj(Unary):
    """The complex conjugate."""

    kernel, function = np.conjugate, "conj"

    def portable(self, xp: Any, *arrays: Any) -> Any:
        """A real operand is its own conjugate."""
        return arrays[0]


conj = unary(Conj(), "Complex conjugate; a real operand as it is.", ((1 + 2j,), 1 - 2j), "conj")

REAL, IMAG = Real(), Imag()


def real(x: Any, /) -> Any:
    """Return the real part; a real operand as it is.

    >>> float(real(1 + 2j))
    1.0
    """
    return apply(REAL, x)


def imag(x: Any, /) -> Any:
    """Return the imaginary part; 0 of a real operand.

    >>> float(imag(1 + 2j))
    2.0
    """
    return apply(IMAG, x)


partials(Real, lambda t: t)
partials(Conj, lambda t: conj(t))  # noqa: PLW0108  (a rule's first parameter is named t)


@vjp_rule(Imag)
def imag_vjp(op: Operator, needed: tuple[bool, ...], *primals: Any) -> tuple[Any, Any]:
    """Of a real number the imaginary part is constant; of a complex one the transpose multiplies by -i."""
    (x,) = primals
    if is_complex(x):
        return apply(op, x), lambda cotangent: (mul(cotangent, -1j),)
    return apply(op, x), lambda cotangent: (None,)


@jvp_rule(Imag)
def imag_jvp(op: Operator, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """The imaginary part of the tangent, where the operand has one."""
    (x,), (tangent,) = primals, tangents
    return apply(op, x), None if tangent is None or not is_complex(x) else apply(op, tangent)


def angle(z: Any, deg: bool = False) -> Any:
    """Return the angle of a complex number in radians, or with `deg` in degrees; its derivative at 0 is 0.

    >>> float(angle(1j, deg=True))
    90.0
    """
    z = astype(z, float) if aval_of(z).dtype.kind == "b" else z  # as NumPy has it
    found = arctan2(imag(z), real(z))
    return found * DEGREES if deg else found


# ------------------------------------------------------------------ magnitude and sign


class Abs(Unary):
    """Magnitude."""

    kernel, function = np.absolute, "abs"


class Fabs(Unary):
    """Magnitude of a real number, as a float."""

    kernel, function = np.fabs, "abs"


class Sign(Unary):
    """Sign: -1, 0 or 1; of a complex number the number of magnitude 1 and of the same angle, or 0."""

    kernel, function = np.sign, "sign"


abs = unary(Abs(), "Magnitude; its derivative at 0 is 0.", ((-2.0,), 2.0), "abs")
fabs = unary(Fabs(), "Magnitude of a real number, as a float; its derivative at 0 is 0.", ((-2,), 2.0))
sign = unary(Sign(), "Sign: -1, 0 or 1, and z / abs(z) of a complex number; its derivative at 0 is 0.", ((-2.0,), -1.0))


def abs_by_x(t: Any, x: Any) -> Any:
    """Derivative of the magnitude: the minimum-norm subgradient, 0 at 0."""
    direction = sign(x)
    return t * (conj(direction) if is_complex(x) else direction)


partials(Abs, abs_by_x)
partials(Fabs, lambda t, x: t * sign(x))


@vjp_rule(Sign)
def sign_vjp(op: Operator, needed: tuple[bool, ...], *primals: Any) -> tuple[Any, Any]:
    """Of real numbers the sign is constant; of complex ones it turns with the angle."""
    (x,) = primals
    out = apply(op, x)
    if not is_complex(x):
        return out, lambda cotangent: (None,)

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        return (mul(ratio(imag(cotangent * out), abs(x)), 1j) * conj(out),)

    return out, pullback


@jvp_rule(Sign)
def sign_jvp(op: Operator, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """Of real numbers the sign is constant; of complex ones it turns with the angle."""
    (x,), (tangent,) = primals, tangents
    out = apply(op, x)
    if tangent is None or not is_complex(x):
        return out, None
    return out, mul(ratio(imag(tangent * conj(out)), abs(x)), 1j) * out


# ------------------------------------------------------------------ signs of two operands


class Copysign(Binary):
    """The first operand's magnitude with the second's sign."""

    kernel, function = np.copysign, "copysign"


class Heaviside(Binary):
    """0 below 0, 1 above, the second operand at 0."""

    kernel = np.heaviside

    def portable(self, xp: Any, *arrays: Any) -> Any:
        """Choose."""
        x, y = arrays
        step = xp.where(x < 0, xp.zeros_like(x), xp.where(x > 0, xp.ones_like(x), x))
        return xp.where(x == 0, y, step)


copysign = binary(Copysign(), "The first operand's magnitude with the second's sign.", ((2.0, -0.0), -2.0))
heaviside = binary(Heaviside(), "0 below 0, 1 above, the second operand at 0.", ((0.0, 0.5), 0.5))


def with_sign(t: Any, y: Any) -> Any:
    """Return `t` with its sign turned where `y` is negative, -0.0 included."""
    if type(y) in SCALAR_TYPES:
        return -t if math.copysign(1.0, y) < 0 else t
    return where(signbit(y), -t, t)


partials(Copysign, lambda t, x, y: with_sign(t, y) * sign(x), None)
partials(Heaviside, None, lambda t, x: mul(t, x == 0))
