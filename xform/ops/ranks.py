"""Functions that bring several operands to one rank or one shape."""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np

from xform.core.aval import broadcast_shapes, shape_of
from xform.core.errors import OperandError, ShapeError
from xform.ops.axes import axis_of
from xform.ops.broadcast import broadcast_like, broadcast_to
from xform.ops.create import zeros_like
from xform.ops.shapes import expand_dims, moveaxis

__all__ = ["atleast_1d", "atleast_2d", "atleast_3d", "broadcast_arrays", "meshgrid", "rollaxis"]


def atleast_1d(*arrays: Any) -> Any:
    """Return each operand with one axis at least; several operands give a tuple.

    >>> atleast_1d(np.float64(3.0)).shape
    (1,)
    """
    return _each(lambda x: x if shape_of(x) else expand_dims(x, 0), arrays)


def atleast_2d(*arrays: Any) -> Any:
    """Return each operand with two axes at least, new ones in front; several operands give a tuple.

    >>> atleast_2d(np.ones(3)).shape
    (1, 3)
    """
    return _each(lambda x: expand_dims(x, tuple(range(2 - len(shape_of(x))))) if len(shape_of(x)) < 2 else x, arrays)


def atleast_3d(*arrays: Any) -> Any:
    """Return each operand with three axes at least, as NumPy places them; several operands give a tuple.

    >>> atleast_3d(np.ones(3)).shape, atleast_3d(np.ones((3, 4))).shape
    ((1, 3, 1), (3, 4, 1))
    """
    new = ((0, 1, 2), (0, 2), (2,))
    return _each(lambda x: expand_dims(x, new[len(shape_of(x))]) if len(shape_of(x)) < 3 else x, arrays)


def _each(function: Any, arrays: tuple[Any, ...]) -> Any:
    out = tuple(function(np.asarray(x) if isinstance(x, tuple | list) else x) for x in arrays)
    return out[0] if len(out) == 1 else out


def broadcast_arrays(*arrays: Any) -> tuple[Any, ...]:
    """Broadcast the operands to one shape; raises `ShapeError` where they do not fit.

    >>> [x.shape for x in broadcast_arrays(np.ones((2, 1)), np.ones(3))]
    [(2, 3), (2, 3)]
    """
    shape = broadcast_shapes(*[shape_of(x) for x in arrays])
    if None not in shape:
        return tuple(x if shape_of(x) == shape else broadcast_to(x, shape) for x in arrays)
    like = functools.reduce(operator.add, [zeros_like(x) for x in arrays])
    return tuple(broadcast_like(x, like) for x in arrays)


def rollaxis(a: Any, axis: int, start: int = 0) -> Any:
    """Move an axis to before the axis `start`; `moveaxis` is easier to read.

    Raises `IndexOperandError` for an axis that is out of bounds.

    >>> rollaxis(np.ones((3, 4, 5)), 2).shape
    (5, 3, 4)
    """
    ndim = len(shape_of(a))
    moved = axis_of("rollaxis", axis, ndim, a)
    before = ndim if start == ndim else axis_of("rollaxis", start, ndim, a)
    return moveaxis(a, moved, before - (moved < before))


def meshgrid(*arrays: Any, sparse: bool = False, indexing: str = "xy") -> tuple[Any, ...]:
    """Return coordinate grids of one-dimensional operands; `sparse` leaves them to broadcast.

    Raises `OperandError` for another indexing than "xy" and "ij", `ShapeError` for an operand of more axes than one.

    >>> x, y = meshgrid(np.arange(3), np.arange(2))
    >>> x.shape, y[:, 0]
    ((2, 3), array([0, 1]))
    """
    if indexing not in ("xy", "ij"):
        msg = f'meshgrid: indexing={indexing!r} must be "xy" or "ij"'
        raise OperandError(msg, indexing=indexing)
    count = len(arrays)
    order = list(range(count))
    if indexing == "xy" and count > 1:
        order[:2] = [1, 0]
    grids = []
    for position, each in enumerate(arrays):
        x = atleast_1d(each)
        if len(shape_of(x)) != 1:
            msg = f"meshgrid: operand {position} has shape {shape_of(x)}; it takes one axis"
            raise ShapeError(msg, argument=position)
        grids.append(expand_dims(x, tuple(axis for axis in range(count) if axis != order[position])))
    return tuple(grids) if sparse else broadcast_arrays(*grids)
