"""Triangles and diagonals of matrices."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from xform.core.aval import Aval, shape_of
from xform.core.errors import OperandError, ShapeError
from xform.core.operator import Operator, interned
from xform.core.rules import batch_rule, linear
from xform.core.stack import apply
from xform.ops.axes import axis_of
from xform.ops.broadcast import broadcast_to
from xform.ops.reductions import sum as sum_of
from xform.ops.shapes import front, lanes, moveaxis, ravel, read_shape
from xform.ops.stacking import nested

__all__ = [
    "Diagonal",
    "FromDiagonal",
    "FromDiagonalLike",
    "Tril",
    "Triu",
    "diag",
    "diagflat",
    "diagonal",
    "trace",
    "tril",
    "triu",
]


@attrs.frozen
class OnDiagonal(Operator):
    """An operator on the matrices in the last two axes, and the diagonal `offset` places above the main one."""

    offset: int

    def matrix(self, x: Aval) -> tuple[int | None, int | None]:
        """Return the lengths of the last two axes; raises `ShapeError` where there are fewer."""
        if len(x.shape) < 2:
            msg = f"{self!r}: the operand has shape {x.shape}; it needs two axes"
            raise ShapeError(msg, aval=x)
        return x.shape[-2], x.shape[-1]


class Triu(OnDiagonal):
    """The matrix with zeros below a diagonal."""

    __slots__ = ()

    def infer(self, x: Aval) -> Aval:
        """The operand's shape."""
        self.matrix(x)
        return Aval(x.shape, x.dtype)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Compute on raw arrays."""
        return xp.triu(x, k=self.offset)


class Tril(Triu):
    """The matrix with zeros above a diagonal."""

    __slots__ = ()

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Compute on raw arrays."""
        return xp.tril(x, k=self.offset)


class Diagonal(OnDiagonal):
    """A diagonal of the matrix, as the last axis."""

    __slots__ = ()

    def infer(self, x: Aval) -> Aval:
        """The diagonal's length in place of the last two axes."""
        rows, columns = self.matrix(x)
        length = None if rows is None or columns is None else diagonal_length(rows, columns, self.offset)
        return Aval((*x.shape[:-2], length), x.dtype)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Compute on raw arrays."""
        if xp is np:
            return np.diagonal(x, self.offset, -2, -1)
        *lead, rows, columns = x.shape
        return xp.reshape(x, (*lead, rows * columns))[..., places(rows, columns, self.offset)]


class FromDiagonalLike(OnDiagonal):
    """A matrix of the shape of the second operand, zero but for a diagonal, which is the first."""

    __slots__ = ()

    def infer(self, x: Aval, like: Aval) -> Aval:
        """The second operand's shape."""
        return Aval((*x.shape[:-1], *self.matrix(like)), x.dtype)

    def evaluate(self, xp: Any, x: Any, like: Any) -> Any:
        """Compute on raw arrays."""
        return placed(xp, x, like.shape[-2], like.shape[-1], self.offset)


@attrs.frozen
class FromDiagonal(Operator):
    """A matrix, zero but for a diagonal, which is the operand; without `rows` and `columns`, the smallest square."""

    offset: int
    rows: int | None = None
    columns: int | None = None

    def infer(self, x: Aval) -> Aval:
        """Two axes in place of the last one."""
        length = x.shape[-1]
        square = None if length is None else length + abs(self.offset)
        if self.rows is None or self.columns is None:
            return Aval((*x.shape[:-1], square, square), x.dtype)
        if length not in (None, diagonal_length(self.rows, self.columns, self.offset)):
            msg = f"{self!r}: the diagonal of that matrix is not of length {length}"
            raise ShapeError(msg, aval=x)
        return Aval((*x.shape[:-1], self.rows, self.columns), x.dtype)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Compute on raw arrays."""
        square = x.shape[-1] + abs(self.offset)
        rows, columns = (square if n is None else n for n in (self.rows, self.columns))
        return placed(xp, x, rows, columns, self.offset)


def diagonal_length(rows: int, columns: int, offset: int) -> int:
    """Return how many elements a diagonal has.

    >>> diagonal_length(2, 3, 1), diagonal_length(2, 3, -2)
    (2, 0)
    """
    return max(0, min(rows + min(offset, 0), columns - max(offset, 0)))


def places(rows: int, columns: int, offset: int) -> slice:
    """Return where a diagonal lies in the matrix written row after row."""
    length = diagonal_length(rows, columns, offset)
    if length == 0:
        return slice(0, 0)
    start = max(offset, 0) + max(-offset, 0) * columns
    return slice(start, start + (length - 1) * (columns + 1) + 1, columns + 1)


def placed(xp: Any, x: Any, rows: int, columns: int, offset: int) -> Any:
    """Write a diagonal into zeros."""
    lead = x.shape[:-1]
    where = {} if xp is np else {"device": x.device}
    out = xp.zeros((*lead, rows * columns), dtype=x.dtype, **where)
    if x.shape[-1]:
        out[..., places(rows, columns, offset)] = x
    return xp.reshape(out, (*lead, rows, columns))


make_triu = interned(Triu)
make_tril = interned(Tril)
make_diagonal = interned(Diagonal)
make_from_diagonal = interned(FromDiagonal)
make_from_diagonal_like = interned(FromDiagonalLike)


def diagonal_transpose(op: Diagonal, t: Any, x: Any) -> Any:
    """Write the cotangent into zeros of the operand's shape."""
    rows, columns = shape_of(x)[-2:]
    if rows is None or columns is None:
        return apply(make_from_diagonal_like(op.offset), t, x)
    return apply(make_from_diagonal(op.offset, rows, columns), t)


linear(Triu, lambda op, t, x: apply(op, t))
linear(Tril, lambda op, t, x: apply(op, t))
linear(Diagonal, diagonal_transpose)
linear(FromDiagonal, lambda op, t, x: apply(make_diagonal(op.offset), t))
linear(FromDiagonalLike, lambda op, t, x, like: apply(make_diagonal(op.offset), t), linear_in=(0,))


@batch_rule(Triu, Tril, Diagonal, FromDiagonal)
def last_axes_batch(op: Operator, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> tuple[Any, int]:
    """The same operator: it works on the last axes, and the batch axis is in front."""
    return apply(op, front(values[0], axes[0])), 0


@batch_rule(FromDiagonalLike)
def diagonal_like_batch(op: Operator, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> tuple[Any, int]:
    """The same operator, both operands batched in front."""
    return apply(op, *[lanes(size, value, axis) for value, axis in zip(values, axes, strict=True)]), 0


# ------------------------------------------------------------------ functions


def triu(x: Any, k: int = 0) -> Any:
    """Return a matrix with zeros below the diagonal `k` places above the main one.

    >>> triu(np.ones((2, 2)))
    array([[1., 1.],
           [0., 1.]])
    """
    return apply(make_triu(int(k)), _matrix("triu", x))


def tril(x: Any, k: int = 0) -> Any:
    """Return a matrix with zeros above the diagonal `k` places above the main one.

    >>> tril(np.ones((2, 2)))
    array([[1., 0.],
           [1., 1.]])
    """
    return apply(make_tril(int(k)), _matrix("tril", x))


def _matrix(name: str, x: Any) -> Any:
    shape = shape_of(x)
    if not shape:
        msg = f"{name}: the operand has no axes"
        raise ShapeError(msg)
    return broadcast_to(x, (*read_shape(x), *read_shape(x))) if len(shape) == 1 else x  # as NumPy does


def diagonal(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """Return a diagonal over two axes, as the last axis of the result.

    >>> diagonal(np.array([[1, 2], [3, 4]]))
    array([1, 4])
    """
    ndim = len(shape_of(x))
    first, second = axis_of("diagonal", axis1, ndim, x), axis_of("diagonal", axis2, ndim, x)
    if first == second:
        msg = f"diagonal: axis1 and axis2 are both {first}"
        raise OperandError(msg)
    if (first, second) != (ndim - 2, ndim - 1):
        x = moveaxis(x, (first, second), (-2, -1))
    return apply(make_diagonal(int(offset)), x)


def diag(v: Any, k: int = 0) -> Any:
    """Return the diagonal of a matrix, or the matrix of a diagonal; raises `ShapeError` for other ranks.

    >>> diag(np.array([1, 2]))
    array([[1, 0],
           [0, 2]])
    """
    v = nested(v)
    ndim = len(shape_of(v))
    if ndim == 1:
        return apply(make_from_diagonal(int(k)), v)
    if ndim != 2:
        msg = f"diag: the operand has shape {shape_of(v)}; it takes one or two axes"
        raise ShapeError(msg)
    return diagonal(v, k)


def diagflat(v: Any, k: int = 0) -> Any:
    """Return the matrix whose diagonal is the flattened operand.

    >>> diagflat(np.array([[1, 2]])).shape
    (2, 2)
    """
    return diag(ravel(nested(v)), k)


def trace(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Any:
    """Return the sum of a diagonal over two axes.

    >>> int(trace(np.array([[1, 2], [3, 4]])))
    5
    """
    line = diagonal(x, offset, axis1, axis2)
    return sum_of(line, axis=-1, dtype=dtype)
