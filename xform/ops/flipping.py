"""Reversing, rolling and rotating along axes."""

from __future__ import annotations

import operator
from typing import Any

import attrs

from xform.core.aval import Aval, shape_of
from xform.core.errors import OperandError, ShapeError
from xform.core.operator import Operator, interned
from xform.core.rules import batch_rule, linear
from xform.core.stack import apply
from xform.ops.axes import axes_of, axis_of
from xform.ops.shapes import OverAxes, front, ravel, reshape_like, swapaxes

__all__ = ["Flip", "Roll", "flip", "fliplr", "flipud", "roll", "rot90"]

Axes = tuple[int, ...]


class Flip(OverAxes):
    """The elements in reverse order along these axes."""

    __slots__ = ()

    def infer(self, x: Aval) -> Aval:
        """The operand's shape."""
        return Aval(x.shape, x.dtype)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Compute on raw arrays."""
        return xp.flip(x, axis=self.axes)


@attrs.frozen
class Roll(Operator):
    """The elements moved along axes, those pushed out coming in at the other end."""

    shifts: Axes
    axes: Axes

    def infer(self, x: Aval) -> Aval:
        """The operand's shape."""
        return Aval(x.shape, x.dtype)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Compute on raw arrays."""
        return xp.roll(x, self.shifts, axis=self.axes)


make_flip = interned(Flip)
make_roll = interned(Roll)
linear(Flip, lambda op, t, x: apply(op, t))
linear(Roll, lambda op, t, x: apply(make_roll(tuple(-shift for shift in op.shifts), op.axes), t))


@batch_rule(Flip)
def flip_batch(op: Flip, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> tuple[Any, int]:
    """The same axes, behind the batch axis."""
    return apply(make_flip(tuple(axis + 1 for axis in op.axes)), front(values[0], axes[0])), 0


@batch_rule(Roll)
def roll_batch(op: Roll, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> tuple[Any, int]:
    """The same axes, behind the batch axis."""
    return apply(make_roll(op.shifts, tuple(axis + 1 for axis in op.axes)), front(values[0], axes[0])), 0


def flip(x: Any, axis: Any = None) -> Any:
    """Reverse the order of the elements along some axes, all of them by default.

    >>> import numpy as np
    >>> flip(np.array([[1, 2], [3, 4]]), 1)
    array([[2, 1],
           [4, 3]])
    """
    ndim = len(shape_of(x))
    axes = tuple(range(ndim)) if axis is None else tuple(sorted(axes_of("flip", axis, ndim, x)))
    return apply(make_flip(axes), x)


def flipud(x: Any) -> Any:
    """Reverse the order of the rows.

    >>> import numpy as np
    >>> flipud(np.array([1, 2]))
    array([2, 1])
    """
    return flip(x, 0)


def fliplr(x: Any) -> Any:
    """Reverse the order of the columns; raises `ShapeError` where there are none.

    >>> import numpy as np
    >>> fliplr(np.array([[1, 2]]))
    array([[2, 1]])
    """
    if len(shape_of(x)) < 2:
        msg = f"fliplr: the operand has shape {shape_of(x)}; it needs two axes"
        raise ShapeError(msg)
    return flip(x, 1)


def roll(x: Any, shift: Any, axis: Any = None) -> Any:
    """Move the elements along axes, those pushed out coming in at the other end; without an axis, flattened.

    >>> import numpy as np
    >>> roll(np.arange(4), 1)
    array([3, 0, 1, 2])
    """
    if axis is None:
        total = sum(operator.index(each) for each in (shift if isinstance(shift, tuple | list) else (shift,)))
        return reshape_like(apply(make_roll((total,), (0,)), ravel(x)), x)
    axes = axis if isinstance(axis, tuple | list) else (axis,)
    shifts = shift if isinstance(shift, tuple | list) else (shift,) * len(axes)
    if len(axes) == 1:
        axes = tuple(axes) * len(shifts)
    if len(shifts) == 1:
        shifts = tuple(shifts) * len(axes)
    if len(axes) != len(shifts):
        msg = f"roll: {len(shifts)} shifts for {len(axes)} axes"
        raise OperandError(msg)
    total_by_axis: dict[int, int] = {}
    ndim = len(shape_of(x))
    for each, by in zip(axes, shifts, strict=True):
        place = axis_of("roll", each, ndim, x)
        total_by_axis[place] = total_by_axis.get(place, 0) + operator.index(by)
    return apply(make_roll(tuple(total_by_axis.values()), tuple(total_by_axis)), x)


def rot90(x: Any, k: int = 1, axes: Any = (0, 1)) -> Any:
    """Rotate by `k` quarter turns, from the first towards the second of two axes.

    >>> import numpy as np
    >>> rot90(np.array([[1, 2], [3, 4]]))
    array([[2, 4],
           [1, 3]])
    """
    ndim = len(shape_of(x))
    found = axes_of("rot90", tuple(axes), ndim, x)
    if len(found) != 2:
        msg = f"rot90: needs two axes, got {found}"
        raise OperandError(msg)
    first, second = found
    turns = k % 4
    if turns == 0:
        return x
    if turns == 2:
        return flip(x, (first, second))
    if turns == 1:
        return swapaxes(flip(x, second), first, second)
    return flip(swapaxes(x, first, second), second)
