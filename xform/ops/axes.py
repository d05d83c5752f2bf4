"""Shapes and axes as functions read them: each axis that a user names is checked here, and told from the front."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from xform.core.aval import aval_of, shape_of
from xform.core.errors import IndexOperandError, OperandTypeError, ShapeError
from xform.core.source import describe, user_site
from xform.core.value import Value

__all__: list[str] = []

Axes = tuple[int, ...]


def ndim_of(x: Any) -> int:
    """Return the number of axes of anything that `apply` takes.

    >>> ndim_of(1.0), ndim_of(np.ones((2, 3)))
    (0, 2)
    """
    while isinstance(x, Value) and x.aval is None:
        x = x.data
    return x.ndim if type(x) is np.ndarray else len(shape_of(x))


def axis_of(name: str, axis: Any, ndim: int, x: Any = None) -> int:
    """Return one of `ndim` axes as a non-negative number; `x` is the operand, for the message.

    Raises `IndexOperandError` for one that is out of bounds, `OperandTypeError` for what is no int; they name function,
    operand and line.

    >>> axis_of("flip", -1, 2)
    1
    """
    try:
        found = operator.index(axis)
    except TypeError:
        msg = f"{name}: axis must be an int, got {axis!r} ({place_of(x)})"
        raise OperandTypeError(msg, axis=axis) from None
    if not -ndim <= found < ndim:
        msg = f"{name}: axis {found} is out of bounds for an array of {ndim} dimensions ({place_of(x)})"
        raise IndexOperandError(msg, axis=found, ndim=ndim)
    return found % ndim


def axes_of(name: str, axis: Any, ndim: int, x: Any = None) -> Axes:
    """Return one or several axes as distinct non-negative numbers, in the order given; errors are those of `axis_of`.

    Raises `ShapeError` where one is named twice.

    >>> axes_of("moveaxis", (-1, 0), 2)
    (1, 0)
    """
    given = axis if isinstance(axis, tuple | list) else (axis,)
    found = tuple([axis_of(name, each, ndim, x) for each in given])
    if len(set(found)) != len(found):
        msg = f"{name}: axis {axis} names one axis twice ({place_of(x)})"
        raise ShapeError(msg, axis=axis)
    return found


def reduced_axes(name: str, axis: Any, ndim: int, x: Any = None) -> Axes:
    """Return the axes of a reduction, sorted: None is all of them; errors are those of `axes_of`.

    >>> reduced_axes("Sum", None, 2), reduced_axes("Sum", -1, 2)
    ((0, 1), (1,))
    """
    if axis is None:
        return tuple(range(ndim))
    if isinstance(axis, list):  # as in NumPy
        msg = f"{name}: axis must be None, an int or a tuple of ints, got {axis!r} ({place_of(x)})"
        raise OperandTypeError(msg, axis=axis)
    if ndim == 0 and axis in (0, -1):  # NumPy's reductions take these of a number
        return ()
    return tuple(sorted(axes_of(name, axis, ndim, x)))


def place_of(x: Any) -> str:
    """Return what a message tells of an operand, and the user's line."""
    shown = "" if x is None else f"operand: {aval_of(x)!r}; "
    return f"{shown}at {describe(user_site())}"
