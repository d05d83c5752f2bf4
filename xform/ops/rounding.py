"""Rounding, and division with remainder: results that are constant almost everywhere, and what is left over."""
# Each class is one row: its ufunc and its name in the array API standard.

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from xform.core.aval import Aval, aval_of
from xform.core.operator import Operator, interned
from xform.core.rules import batch_rule, partials
from xform.core.stack import apply
from xform.ops.arithmetic import mul, sub
from xform.ops.base import Binary, Unary, binary, constant, elementwise_batch, loop_dtypes, native, unary
from xform.ops.broadcast import astype
from xform.ops.comparisons import isinf, signbit
from xform.ops.selection import where

__all__ = [
    "Ceil", "Floor", "FloorDivide", "Fmod", "Remainder", "Rint", "Round", "Trunc", "around", "ceil", "divmod", "fix",
    "floor", "floor_divide", "fmod", "modf", "remainder", "rint", "round", "trunc",
]  # fmt: skip


class Floor(Unary):
    """The greatest integer that is not greater."""

    kernel, function = np.floor, "floor"


class Ceil(Unary):
    """The least integer that is not less."""

    kernel, function = np.ceil, "ceil"


class Trunc(Unary):
    """The nearest integer towards zero."""

    kernel, function = np.trunc, "trunc"


class Rint(Unary):
    """The nearest integer, the even one at ties."""

    kernel, function = np.rint, "round"


floor = unary(Floor(), "The greatest integer that is not greater; its derivative is 0.", ((1.5,), 1.0))
ceil = unary(Ceil(), "The least integer that is not less; its derivative is 0.", ((1.5,), 2.0))
trunc = unary(Trunc(), "The nearest integer towards zero; its derivative is 0.", ((-1.5,), -1.0))
rint = unary(Rint(), "The nearest integer, the even one at ties; its derivative is 0.", ((2.5,), 2.0))
fix = trunc


@attrs.frozen
class Round(Operator):
    """The operand rounded to a number of decimals, to even at ties."""

    decimals: int

    def infer(self, x: Aval) -> Aval:
        """The operand's, without weakness."""
        return Aval(x.shape, np.dtype("float16") if x.dtype == np.dtype(bool) else native(x.dtype))

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Compute on raw arrays."""
        if xp is np:
            return np.round(x, self.decimals)
        if self.decimals == 0 or aval_of(x).dtype.kind in "iu":
            return xp.round(x)
        scale = 10.0 ** abs(self.decimals)
        return xp.round(x * scale) / scale if self.decimals > 0 else xp.round(x / scale) * scale


batch_rule(Round)(elementwise_batch)
make_round = interned(Round)


def round(x: Any, decimals: int = 0) -> Any:
    """Round to a number of decimals, to even at ties; its derivative is 0.

    >>> float(round(2.675, 1))
    2.7
    """
    return apply(make_round(int(decimals)), x)


around = round

constant(Floor, Ceil, Trunc, Rint, Round, why="it is constant between its jumps: its derivative is 0")


# ------------------------------------------------------------------ division with remainder


class FloorDivide(Binary):
    """The quotient, rounded down."""

    kernel, function = np.floor_divide, "floor_divide"


class Remainder(Binary):
    """What a quotient that is rounded down leaves: it has the divisor's sign."""

    kernel, function = np.remainder, "remainder"


class Fmod(Binary):
    """What a quotient that is rounded towards zero leaves: it has the dividend's sign."""

    kernel = np.fmod

    def portable(self, xp: Any, *arrays: Any) -> Any:
        """Take the remainder of magnitudes, with the dividend's sign."""
        x, y = arrays
        left = xp.remainder(xp.abs(x), xp.abs(y))
        return xp.where(x < 0, -left, left)


floor_divide = binary(FloorDivide(), "The quotient, rounded down; its derivative is 0.", ((7.0, -2.0), -4.0))
remainder = binary(Remainder(), "The remainder of `floor_divide`, with the divisor's sign.", ((7.0, -2.0), -1.0))
fmod = binary(Fmod(), "The remainder of a division that rounds towards zero.", ((7.0, -2.0), 1.0))

constant(FloorDivide, why="it is constant between its jumps: its derivative is 0")
partials(Remainder, lambda t: t, lambda t, x, y: -mul(t, floor_divide(x, y)))
# rounded, since (x - out) / y is the whole number of times that y was taken out, but for the last bits
partials(Fmod, lambda t: t, lambda t, x, y, out: -mul(t, rint(sub(x, out) / y)))


def divmod(x: Any, y: Any, /) -> tuple[Any, Any]:
    """Return `(x // y, x % y)`.

    >>> [float(each) for each in divmod(7.0, 2.0)]
    [3.0, 1.0]
    """
    return floor_divide(x, y), remainder(x, y)


def modf(x: Any, /) -> tuple[Any, Any]:
    """Return the fractional and the whole part, both with the operand's sign; of an infinity it is 0.

    >>> [float(each) for each in modf(-1.5)]
    [-0.5, -1.0]
    """
    dtype = loop_dtypes(np.modf, (aval_of(x),))[0]
    x = x if aval_of(x).dtype == dtype else astype(x, dtype)
    finite = where(isinf(x), 0.0, x)
    whole = trunc(finite)
    fraction = where(signbit(x), -(whole - finite), finite - whole)  # -0.0 of negative whole numbers
    return fraction[()] if type(fraction) is np.ndarray else fraction, trunc(x)
