"""Reshaping and permuting: the same elements in another arrangement."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import attrs
import numpy as np

from xform.core.aval import Aval, aval_of, shape_of
from xform.core.errors import OperandError, ShapeError
from xform.core.operator import Operator, interned
from xform.core.rules import batch_rule, linear
from xform.core.stack import BOTTOM, apply, cursor
from xform.ops.axes import axes_of, axis_of
from xform.ops.base import Parameterless
from xform.ops.broadcast import make_lead

__all__ = [
    "ExpandDims", "Reshape", "ReshapeLike", "Squeeze", "Transpose", "expand_dims", "flatten", "matrix_transpose",
    "moveaxis", "permute_dims", "ravel", "reshape", "reshape_like", "squeeze", "swapaxes", "transpose",
]  # fmt: skip

Axes = tuple[int, ...]
Shape = tuple[int | None, ...]

_ndarray = np.ndarray
_get = cursor.get


# ------------------------------------------------------------------ what all functions on axes share


def read_shape(x: Any) -> Shape:
    """Return the shape, for functions that cannot do without: what an abstract look does not tell is read by the host.

    >>> read_shape(np.ones(3))
    (3,)
    """
    shape = shape_of(x)
    return x.shape if None in shape else shape


def front(value: Any, axis: int) -> Any:
    """Return a batched value with its batch axis in front."""
    return value if axis == 0 else moveaxis(value, axis, 0)


def lanes(size: int, value: Any, axis: int | None) -> Any:
    """Return a value with a batch axis of length `size` in front; one that has none is repeated."""
    if axis is not None:
        return front(value, axis)
    return apply(make_lead(size), value)


@attrs.frozen
class OverAxes(Operator):
    """An operator over some axes (not negative)."""

    axes: Axes


# ------------------------------------------------------------------ Reshape


@attrs.frozen
class Reshape(Operator):
    """The same elements in another shape; one length may be -1."""

    shape: Axes

    def infer(self, x: Aval) -> Aval:
        """The parameter's shape, -1 replaced where the operand's size is known."""
        return Aval(resolved_shape(self.shape, x), x.dtype)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Compute on raw arrays."""
        return x.reshape(self.shape) if type(x) is _ndarray else xp.reshape(x, self.shape)


def resolved_shape(shape: Axes, x: Aval) -> Shape:
    """Return the shape that `Reshape(shape)` gives; raises `ShapeError` where the sizes differ."""
    known = math.prod(length for length in shape if length >= 0)
    if None in x.shape:
        return tuple(None if length < 0 else length for length in shape)
    size = x.size
    if -1 in shape and known and size % known == 0:
        return tuple(size // known if length < 0 else length for length in shape)
    if -1 in shape or size != known:
        msg = f"Reshape: an operand of shape {x.shape} has {size} elements, which do not fill shape {shape}"
        raise ShapeError(msg, aval=x, shape=shape)
    return shape


class ReshapeLike(Parameterless):
    """The elements of the first operand in the shape of the second."""

    def infer(self, x: Aval, like: Aval) -> Aval:
        """The second operand's shape."""
        if None not in x.shape and None not in like.shape:
            resolved_shape(like.shape, x)  # type: ignore[arg-type]
        return Aval(like.shape, x.dtype)

    def evaluate(self, xp: Any, x: Any, like: Any) -> Any:
        """Compute on raw arrays."""
        return xp.reshape(x, np.shape(like) if xp is np else like.shape)


make_reshape = interned(Reshape)
linear(Reshape, lambda op, t, x: reshape_like(t, x))
linear(ReshapeLike, lambda op, t, x, like: reshape_like(t, x), linear_in=(0,))


@batch_rule(Reshape)
def reshape_batch(op: Reshape, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> tuple[Any, int]:
    """Reshape behind the batch axis."""
    x = front(values[0], axes[0])
    shape = op.shape
    if -1 in shape:  # with no lanes, -1 would be ambiguous
        lane = resolved_shape(shape, Aval(shape_of(x)[1:], aval_of(x).dtype))
        shape = tuple(-1 if length is None else length for length in lane)
    return apply(make_reshape((size, *shape)), x), 0


@batch_rule(ReshapeLike)
def reshape_like_batch(op: ReshapeLike, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> tuple[Any, int]:
    """Reshape behind the batch axis, both operands batched."""
    x, like = (lanes(size, value, axis) for value, axis in zip(values, axes, strict=True))
    return reshape_like(x, like), 0


def reshape(x: Any, shape: Any, order: str = "C") -> Any:
    """Give the elements of an array another shape; one length may be -1.

    Takes a shape as an int or a sequence; rows stay rows (`order="C"`, the only one). Raises `ShapeError` where the
    sizes differ, `OperandError` for another order.

    >>> reshape(np.arange(6), (2, -1)).shape
    (2, 3)
    """
    if type(x) is _ndarray and order == "C" and _get() is BOTTOM:
        try:
            return x.reshape(shape)
        except (TypeError, ValueError):  # said again below, in our words
            pass
    if order != "C":
        msg = f'reshape: order={order!r} is not supported; order="F" is reshape(x.T, shape[::-1]).T'
        raise OperandError(msg, order=order)
    return apply(make_reshape(known_lengths(tuple(shape) if type(shape) is list else shape)), x)


def known_lengths(shape: Any) -> Axes:
    """Return the lengths of a shape as `lengths_of` does, looked up where it holds plain numbers."""
    try:
        hash(shape)
    except TypeError:  # a length is a value
        return lengths_of(shape)
    return _lengths(shape)


def lengths_of(shape: Any) -> Axes:
    """Return a shape given as an int or a sequence, with one -1 at most; raises `ShapeError`."""
    if isinstance(shape, tuple | list) and None in shape:
        msg = f"reshape: shape {tuple(shape)} has a length that is not known before run time; write -1 in its place"
        raise ShapeError(msg, shape=shape)
    try:
        found = (operator.index(shape),)
    except TypeError:
        found = tuple(operator.index(length) for length in shape)  # type: ignore[assignment]
    negative = [length for length in found if length < 0]
    if len(negative) > 1 or any(length != -1 for length in negative):
        msg = f"reshape: shape {found} may hold -1 once, and no other negative length"
        raise ShapeError(msg, shape=found)
    return found


_lengths = functools.lru_cache(maxsize=1024)(lengths_of)


def reshape_like(x: Any, like: Any) -> Any:
    """Give an array the shape of an aval, or of a value whose shape may be unknown.

    >>> reshape_like(np.arange(4), np.ones((2, 2))).shape
    (2, 2)
    """
    shape = like.shape if isinstance(like, Aval) else shape_of(like)
    if None in shape:
        return apply(ReshapeLike(), x, like)
    return apply(make_reshape(shape), x)


def ravel(x: Any, order: str = "C") -> Any:
    """Give all elements of an array one axis.

    >>> ravel(np.ones((2, 3))).shape
    (6,)
    """
    return reshape(x, -1, order)


flatten = ravel  # the name of the method


# ------------------------------------------------------------------ Transpose


class Transpose(OverAxes):
    """Permuted axes: axis i of the result is axis `axes[i]` of the operand."""

    __slots__ = ()

    def infer(self, x: Aval) -> Aval:
        """Permute the shape."""
        if len(x.shape) != len(self.axes):
            msg = f"Transpose: axes {self.axes} do not permute the axes of an operand of shape {x.shape}"
            raise ShapeError(msg, aval=x, axes=self.axes)
        return Aval(tuple(x.shape[axis] for axis in self.axes), x.dtype)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Compute on raw arrays."""
        if xp is np:
            return x.transpose(self.axes) if type(x) is _ndarray else np.transpose(x, self.axes)
        return xp.permute_dims(x, self.axes)


make_transpose = interned(Transpose)


@functools.lru_cache(maxsize=1024)
def inverse(axes: Axes) -> Transpose:
    """Return the operator that undoes `Transpose(axes)`."""
    return make_transpose(tuple(axes.index(axis) for axis in range(len(axes))))


linear(Transpose, lambda op, t, x: apply(inverse(op.axes), t))


@batch_rule(Transpose)
def transpose_batch(op: Transpose, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> tuple[Any, int]:
    """One permutation that also brings the batch axis to the front."""
    (batch,) = axes
    return apply(make_transpose((batch, *[axis + (axis >= batch) for axis in op.axes])), values[0]), 0


def transpose(x: Any, axes: Any = None) -> Any:
    """Permute axes; without `axes`, reverse them.

    Raises `OperandError` where `axes` is no permutation.

    >>> transpose(np.ones((2, 3))).shape, transpose(np.ones((2, 3, 4)), (0, 2, 1)).shape
    ((3, 2), (2, 4, 3))
    """
    ndim = len(shape_of(x))
    if axes is None:
        return apply(make_transpose(tuple(range(ndim))[::-1]), x)
    found = axes_of("transpose", axes, ndim, x)
    if len(found) != ndim:
        msg = f"transpose: axes {found} do not permute the {ndim} axes of the operand"
        raise OperandError(msg, axes=found)
    return apply(make_transpose(found), x)


permute_dims = transpose  # the name in the array API standard


def matrix_transpose(x: Any) -> Any:
    """Swap the last two axes; raises `ShapeError` where there are fewer.

    >>> matrix_transpose(np.ones((5, 2, 3))).shape
    (5, 3, 2)
    """
    ndim = len(shape_of(x))
    if ndim < 2:
        msg = f"matrix_transpose: the operand has shape {shape_of(x)}; it needs two axes"
        raise ShapeError(msg)
    return apply(make_transpose((*range(ndim - 2), ndim - 1, ndim - 2)), x)


def moveaxis(x: Any, source: Any, destination: Any) -> Any:
    """Move axes to other positions; the others keep their order.

    >>> moveaxis(np.ones((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    ndim = len(shape_of(x))
    source, destination = axes_of("moveaxis", source, ndim, x), axes_of("moveaxis", destination, ndim, x)
    if len(source) != len(destination):
        msg = f"moveaxis: {len(source)} axes in source but {len(destination)} in destination"
        raise OperandError(msg)
    return apply(moving(source, destination, ndim), x)


@functools.lru_cache(maxsize=1024)
def moving(source: Axes, destination: Axes, ndim: int) -> Transpose:
    """Return the operator that moves axes of an operand of `ndim`."""
    order = [axis for axis in range(ndim) if axis not in source]
    for to, axis in sorted(zip(destination, source, strict=True)):
        order.insert(to, axis)
    return make_transpose(tuple(order))


def swapaxes(x: Any, axis1: Any, axis2: Any) -> Any:
    """Swap two axes.

    >>> swapaxes(np.ones((2, 3, 4)), 0, 2).shape
    (4, 3, 2)
    """
    ndim = len(shape_of(x))
    first, second = axis_of("swapaxes", axis1, ndim, x), axis_of("swapaxes", axis2, ndim, x)
    order = list(range(ndim))
    order[first], order[second] = second, first
    return apply(make_transpose(tuple(order)), x)


# ------------------------------------------------------------------ axes of length 1


class ExpandDims(OverAxes):
    """New axes of length 1 at these positions of the result (sorted)."""

    __slots__ = ()

    def infer(self, x: Aval) -> Aval:
        """Insert the axes."""
        return Aval(expanded_shape(x.shape, self.axes), x.dtype)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Compute on raw arrays."""
        x = np.asarray(x) if xp is np else x
        return xp.reshape(x, expanded_shape(x.shape, self.axes))


class Squeeze(OverAxes):
    """These axes (sorted), of length 1, dropped."""

    __slots__ = ()

    def infer(self, x: Aval) -> Aval:
        """Drop the axes."""
        for axis in self.axes:
            if x.shape[axis] not in (1, None):
                msg = f"Squeeze: axis {axis} of an operand of shape {x.shape} has length {x.shape[axis]}, not 1"
                raise ShapeError(msg, aval=x, axis=axis)
        return Aval(squeezed_shape(x.shape, self.axes), x.dtype)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Compute on raw arrays."""
        if xp is np:
            return np.squeeze(x, self.axes)
        return xp.squeeze(x, axis=self.axes)


def expanded_shape(shape: Shape, axes: Axes) -> Shape:
    """Return a shape with axes of length 1 inserted."""
    found = list(shape)
    for axis in axes:
        found.insert(axis, 1)
    return tuple(found)


def squeezed_shape(shape: Shape, axes: Axes) -> Shape:
    """Return a shape without some axes."""
    return tuple(length for axis, length in enumerate(shape) if axis not in axes)


make_expand_dims = interned(ExpandDims)
make_squeeze = interned(Squeeze)
linear(ExpandDims, lambda op, t, x: apply(make_squeeze(op.axes), t))
linear(Squeeze, lambda op, t, x: apply(make_expand_dims(op.axes), t))


@batch_rule(ExpandDims, Squeeze)
def shifted_axes_batch(op: Any, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> tuple[Any, int]:
    """The same axes, behind the batch axis."""
    make: Any = make_expand_dims if type(op) is ExpandDims else make_squeeze
    return apply(make(tuple(axis + 1 for axis in op.axes)), front(values[0], axes[0])), 0


def expand_dims(x: Any, axis: Any) -> Any:
    """Insert axes of length 1 at these positions of the result.

    >>> expand_dims(np.ones(3), 0).shape, expand_dims(np.ones(3), (0, -1)).shape
    ((1, 3), (1, 3, 1))
    """
    count = len(axis) if isinstance(axis, tuple | list) else 1
    axes = axes_of("expand_dims", axis, len(shape_of(x)) + count, x)
    return apply(make_expand_dims(tuple(sorted(axes))), x)


def squeeze(x: Any, axis: Any = None) -> Any:
    """Drop axes of length 1, all of them or those given; raises `ShapeError` for another length.

    >>> squeeze(np.ones((1, 3, 1))).shape, squeeze(np.ones((1, 3, 1)), -1).shape
    ((3,), (1, 3))
    """
    if axis is not None:
        return apply(make_squeeze(tuple(sorted(axes_of("squeeze", axis, len(shape_of(x)), x)))), x)
    shape = read_shape(x)
    if None in shape:
        msg = f"squeeze: shape {shape} has lengths that are not known before run time; name the axes to drop"
        raise ShapeError(msg)
    return apply(make_squeeze(tuple(i for i, length in enumerate(shape) if length == 1)), x)
