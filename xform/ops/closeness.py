"""Replacing and comparing numbers that may be infinite or NaN: compositions of elementwise operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from xform.core.aval import aval_of
from xform.ops.arithmetic import positive, sub
from xform.ops.broadcast import in_floating
from xform.ops.comparisons import equal, isfinite, isinf, isnan, logical_and, logical_or, not_equal
from xform.ops.complexes import abs, imag, real, real_dtype
from xform.ops.reductions import all
from xform.ops.selection import where

__all__ = [
    "allclose", "array_equal", "isclose", "iscomplex", "isneginf", "isposinf", "isreal", "nan_to_num",
]


def isreal(x: Any, /) -> Any:
    """Whether the imaginary part is 0; a real number has none.

    >>> isreal(np.array([1.0, 1j])).tolist()
    [True, False]
    """
    return equal(imag(x), 0)


def iscomplex(x: Any, /) -> Any:
    """Whether the imaginary part is not 0.

    >>> iscomplex(np.array([1.0, 1j])).tolist()
    [False, True]
    """
    return not_equal(imag(x), 0)


def isposinf(x: Any, /) -> Any:
    """Whether a real number is positive infinity.

    >>> bool(isposinf(np.inf))
    True
    """
    return logical_and(isinf(x), x > 0)


def isneginf(x: Any, /) -> Any:
    """Whether a real number is negative infinity.

    >>> bool(isneginf(np.inf))
    False
    """
    return logical_and(isinf(x), x < 0)


def nan_to_num(
    x: Any, copy: bool = True, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Any:
    """Replace NaN by a number and infinities by the greatest finite ones, or by `posinf` and `neginf`.

    The derivative is 1 where the operand is finite, else 0. `copy` is NumPy's; nothing is ever written into `x`.

    >>> nan_to_num(np.array([1.0, np.nan, np.inf]), posinf=9.0)
    array([1., 0., 9.])
    """
    dtype = aval_of(x).dtype
    if dtype.kind not in "fc":
        return positive(x) if dtype.kind != "b" else x
    if dtype.kind == "c":
        return nan_to_num(real(x), copy, nan, posinf, neginf) + nan_to_num(imag(x), copy, nan, posinf, neginf) * 1j
    greatest = float(np.finfo(real_dtype(dtype)).max)
    high, low = greatest if posinf is None else posinf, -greatest if neginf is None else neginf
    out = where(isnan(x), nan, x)
    return where(isposinf(x), high, where(isneginf(x), low, out))


def isclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    """Whether two operands are equal within `atol + rtol * abs(b)`, element by element.

    >>> isclose(np.array([1.0, 2.0]), 1.0 + 1e-9)
    array([ True, False])
    """
    b = in_floating(b)
    finite = logical_and(isfinite(a), isfinite(b))
    x, y = where(finite, a, 0), where(finite, b, 0)  # inf - inf must not arise
    close = logical_or(logical_and(abs(sub(x, y)) <= atol + rtol * abs(y), finite), equal(a, b))
    return logical_or(close, logical_and(isnan(a), isnan(b))) if equal_nan else close


def allclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    """Whether two operands are equal everywhere within `atol + rtol * abs(b)`.

    >>> bool(allclose(np.ones(2), 1.0 + 1e-9))
    True
    """
    return all(isclose(a, b, rtol, atol, equal_nan))


def array_equal(a: Any, b: Any, equal_nan: bool = False) -> Any:
    """Whether two operands have the same shape and elements.

    >>> bool(array_equal(np.ones(2), np.ones(3)))
    False
    """
    if aval_of(a).shape != aval_of(b).shape:
        return False
    same = equal(a, b)
    if equal_nan:
        same = logical_or(same, logical_and(isnan(a), isnan(b)))
    return all(same)
