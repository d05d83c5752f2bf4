"""Arithmetic, and its derivatives as a table.

In each rule `t` is the tangent or the cotangent.
"""
# Each class is one row: its ufunc and its name in the array API standard.

from __future__ import annotations

from typing import Any

import numpy as np

from xform.core.rules import partials
from xform.ops.base import Binary, Unary, binary, unary

__all__ = [
    "Add", "Div", "Mul", "Neg", "Positive", "Reciprocal", "Square", "Sub", "add", "div", "mul", "neg", "positive",
    "reciprocal", "square", "sub",
]  # fmt: skip


class Add(Binary):
    """Sum of two operands."""

    kernel, function = np.add, "add"


class Sub(Binary):
    """Difference of two operands."""

    kernel, function = np.subtract, "subtract"


class Mul(Binary):
    """Product of two operands."""

    kernel, function = np.multiply, "multiply"


class Div(Binary):
    """Quotient of two operands."""

    kernel, function = np.true_divide, "divide"


class Neg(Unary):
    """Negation."""

    kernel, function = np.negative, "negative"


class Positive(Unary):
    """The operand itself."""

    kernel, function = np.positive, "positive"


class Square(Unary):
    """The operand times itself."""

    kernel, function = np.square, "square"


class Reciprocal(Unary):
    """One divided by the operand."""

    kernel, function = np.reciprocal, "reciprocal"


add = binary(Add(), "Sum of two operands.", ((1.0, 2.0), 3.0))
sub = binary(Sub(), "Difference of two operands.", ((1.0, 2.0), -1.0))
mul = binary(Mul(), "Product of two operands.", ((3.0, 2.0), 6.0))
div = binary(Div(), "Quotient of two operands; of integers it is a float.", ((1, 2), 0.5))
neg = unary(Neg(), "Negation.", ((1.0,), -1.0))
positive = unary(Positive(), "The operand itself, as another array.", ((1.0,), 1.0))
square = unary(Square(), "The operand times itself.", ((3.0,), 9.0))
reciprocal = unary(Reciprocal(), "One divided by the operand; of integers it is an integer.", ((4.0,), 0.25))


# Python's operators are the fastest way on raw NumPy arrays. A library that mixes no kinds refuses them for a float and
# an integer: there the operator serves, which casts.


def times(t: Any, y: Any) -> Any:
    """Derivative of `x * y` by `x`: the product, in any library."""
    try:
        return t * y
    except TypeError:
        return mul(t, y)


def mul_by_y(t: Any, x: Any) -> Any:
    """Derivative of `x * y` by `y`."""
    try:
        return t * x
    except TypeError:
        return mul(t, x)


def div_by_x(t: Any, y: Any) -> Any:
    """Derivative of `x / y` by `x`."""
    try:
        return t / y
    except TypeError:
        return div(t, y)


partials(Add, lambda t: t, lambda t: t)
partials(Sub, lambda t: t, lambda t: -t)
partials(Mul, times, mul_by_y)
partials(Div, div_by_x, lambda t, y, out: -t * out / y)
partials(Neg, lambda t: -t)
partials(Positive, lambda t: t)
partials(Square, lambda t, x: 2.0 * t * x)
partials(Reciprocal, lambda t, out: -t * out * out)
