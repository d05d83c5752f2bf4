"""Comparisons, logic, bits and tests of numbers: boolean and integer results, without derivatives on purpose."""
# Each class is one row: its ufunc and its name in the array API standard.

from __future__ import annotations

from typing import Any

import numpy as np

from xform.core.aval import aval_of
from xform.ops.base import Binary, Unary, binary, constant, unary

__all__ = [
    "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Equal", "Greater", "GreaterEqual", "Invert", "IsFinite", "IsInf",
    "IsNan", "LeftShift", "Less", "LessEqual", "LogicalAnd", "LogicalNot", "LogicalOr", "LogicalXor", "NotEqual",
    "RightShift", "Signbit", "bitwise_and", "bitwise_or", "bitwise_xor", "equal", "greater", "greater_equal",
    "invert", "isfinite", "isinf", "isnan", "left_shift", "less", "less_equal", "logical_and", "logical_not",
    "logical_or", "logical_xor", "not_equal", "right_shift", "signbit",
]  # fmt: skip


# ------------------------------------------------------------------ comparisons


class Less(Binary):
    """Whether the first operand is less."""

    kernel, function = np.less, "less"


class LessEqual(Binary):
    """Whether the first operand is less or equal."""

    kernel, function = np.less_equal, "less_equal"


class Greater(Binary):
    """Whether the first operand is greater."""

    kernel, function = np.greater, "greater"


class GreaterEqual(Binary):
    """Whether the first operand is greater or equal."""

    kernel, function = np.greater_equal, "greater_equal"


class Equal(Binary):
    """Whether two operands are equal."""

    kernel, function = np.equal, "equal"


class NotEqual(Binary):
    """Whether two operands differ."""

    kernel, function = np.not_equal, "not_equal"


less = binary(Less(), "Whether the first operand is less.", ((1.0, 2.0), True))
less_equal = binary(LessEqual(), "Whether the first operand is less or equal.", ((2.0, 2.0), True))
greater = binary(Greater(), "Whether the first operand is greater.", ((1.0, 2.0), False))
greater_equal = binary(GreaterEqual(), "Whether the first operand is greater or equal.", ((1.0, 2.0), False))
equal = binary(Equal(), "Whether two operands are equal.", ((1, 1.0), True))
not_equal = binary(NotEqual(), "Whether two operands differ.", ((1, 1.0), False))

constant(Less, LessEqual, Greater, GreaterEqual, Equal, NotEqual, why="its result is boolean")


# ------------------------------------------------------------------ logic: an operand counts as true where it is not 0


class Logical(Binary, base=True):
    """A logical operation of two operands."""

    def portable(self, xp: Any, *arrays: Any) -> Any:
        """Compare with 0 first: the standard's logic takes booleans alone."""
        return getattr(xp, self.kernel.__name__)(*[a if aval_of(a).dtype.kind == "b" else a != 0 for a in arrays])  # type: ignore[union-attr]


class LogicalAnd(Logical):
    """Whether both operands are true."""

    kernel = np.logical_and


class LogicalOr(Logical):
    """Whether an operand is true."""

    kernel = np.logical_or


class LogicalXor(Logical):
    """Whether exactly one operand is true."""

    kernel = np.logical_xor


class LogicalNot(Unary):
    """Whether the operand is not true."""

    kernel = np.logical_not

    def portable(self, xp: Any, *arrays: Any) -> Any:
        """Compare with 0: the standard's logic takes booleans alone."""
        (x,) = arrays
        return xp.logical_not(x) if aval_of(x).dtype.kind == "b" else x == 0


logical_and = binary(LogicalAnd(), "Whether both operands are true.", ((True, False), False))
logical_or = binary(LogicalOr(), "Whether an operand is true.", ((True, False), True))
logical_xor = binary(LogicalXor(), "Whether exactly one operand is true.", ((True, False), True))
logical_not = unary(LogicalNot(), "Whether the operand is not true.", ((True,), False))

constant(LogicalAnd, LogicalOr, LogicalXor, LogicalNot, why="its result is boolean")


# ------------------------------------------------------------------ bits


class BitwiseAnd(Binary):
    """Bits that are set in both operands."""

    kernel, function = np.bitwise_and, "bitwise_and"


class BitwiseOr(Binary):
    """Bits that are set in an operand."""

    kernel, function = np.bitwise_or, "bitwise_or"


class BitwiseXor(Binary):
    """Bits that are set in exactly one operand."""

    kernel, function = np.bitwise_xor, "bitwise_xor"


class Invert(Unary):
    """Bits that are not set."""

    kernel, function = np.invert, "bitwise_invert"


class LeftShift(Binary):
    """The first operand's bits moved left by the second."""

    kernel, function = np.left_shift, "bitwise_left_shift"


class RightShift(Binary):
    """The first operand's bits moved right by the second."""

    kernel, function = np.right_shift, "bitwise_right_shift"


bitwise_and = binary(BitwiseAnd(), "Bits that are set in both operands.", ((6, 3), 2))
bitwise_or = binary(BitwiseOr(), "Bits that are set in an operand.", ((6, 3), 7))
bitwise_xor = binary(BitwiseXor(), "Bits that are set in exactly one operand.", ((6, 3), 5))
invert = unary(Invert(), "Bits that are not set.", ((6,), -7))
left_shift = binary(LeftShift(), "The first operand's bits moved left by the second.", ((3, 2), 12))
right_shift = binary(RightShift(), "The first operand's bits moved right by the second.", ((12, 2), 3))

constant(BitwiseAnd, BitwiseOr, BitwiseXor, Invert, why="its operands are integers or booleans")
constant(LeftShift, RightShift, why="its operands are integers")


# ------------------------------------------------------------------ tests of numbers


class IsNan(Unary):
    """Whether the operand is not a number."""

    kernel, function = np.isnan, "isnan"


class IsInf(Unary):
    """Whether the operand is infinite."""

    kernel, function = np.isinf, "isinf"


class IsFinite(Unary):
    """Whether the operand is a finite number."""

    kernel, function = np.isfinite, "isfinite"


class Signbit(Unary):
    """Whether the operand's sign is negative, -0.0 included."""

    kernel, function = np.signbit, "signbit"

    def portable(self, xp: Any, *arrays: Any) -> Any:
        """Compare, and tell -0.0 by its reciprocal."""
        (x,) = arrays
        return (x < 0) | ((x == 0) & (1 / x < 0))


isnan = unary(IsNan(), "Whether the operand is not a number.", ((1.0,), False))
isinf = unary(IsInf(), "Whether the operand is infinite.", ((1.0,), False))
isfinite = unary(IsFinite(), "Whether the operand is a finite number.", ((1.0,), True))
signbit = unary(Signbit(), "Whether the operand's sign is negative, -0.0 included.", ((-0.0,), True))

constant(IsNan, IsInf, IsFinite, Signbit, why="its result is boolean")
