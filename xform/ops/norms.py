"""Norms of vectors and matrices. Where a norm is 0 its derivative is 0, the minimum-norm subgradient."""

from __future__ import annotations

import math
from typing import Any

import attrs
import numpy as np

from xform.core.aval import Aval, aval_of
from xform.core.errors import OperandError
from xform.core.operator import Operator, interned
from xform.core.rules import batch_rule, jvp_rule, vjp_rule
from xform.core.stack import apply
from xform.ops.axes import axes_of, ndim_of
from xform.ops.base import is_complex, native
from xform.ops.broadcast import astype
from xform.ops.complexes import abs as abs_
from xform.ops.complexes import conj, real, real_dtype, sign
from xform.ops.decompositions import svdvals
from xform.ops.extrema import max as max_
from xform.ops.extrema import min as min_
from xform.ops.reductions import HALF, in_single, narrowed, reduced_shape, widened
from xform.ops.reductions import sum as sum_
from xform.ops.shapes import expand_dims, front, moveaxis, squeeze

__all__ = ["VectorNorm", "matrix_norm", "norm", "vector_norm"]


@attrs.frozen
class VectorNorm(Operator):
    """The norm of order `ord`, finite and not 0, over some axes: `sum(abs(x) ** ord) ** (1 / ord)`."""

    ord: float
    axis: tuple[int, ...]
    keepdims: bool = False

    def infer(self, x: Aval) -> Aval:
        """Drop the axes; a norm is real."""
        dtype = real_dtype(native(x.dtype)) if x.dtype.kind in "fc" else np.dtype(np.float64)
        return Aval(reduced_shape(x.shape, self.axis, self.keepdims), dtype)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Compute on raw arrays."""
        if xp is not np:
            out = xp.linalg.vector_norm(widened(xp, x), axis=self.axis, keepdims=self.keepdims, ord=self.ord)
            return narrowed(xp, out, x)
        x = np.asarray(x)
        if x.dtype.char == HALF:
            return narrowed(np, self.evaluate(np, widened(np, x)), x)
        if x.dtype.kind not in "fc":
            x = x.astype(np.float64)
        if self.ord == 2:
            squares = np.square(x) if x.dtype.kind == "f" else np.square(x.real) + np.square(x.imag)
            return np.sqrt(total(squares, axis=self.axis, keepdims=self.keepdims))
        return total(np.abs(x) ** self.ord, axis=self.axis, keepdims=self.keepdims) ** (1 / self.ord)


total: Any = np.add.reduce
make_vector_norm = interned(VectorNorm)


def slope(op: VectorNorm, x: Any, out: Any) -> tuple[Any, Any]:
    """Return two factors, of the shape of `x` and of `out` with its axes kept, of the derivative by `x`."""
    if not op.keepdims:
        out = expand_dims(out, op.axis)
    nonzero = out != 0
    divisor = out + (out == 0)
    if op.ord == 2:
        return conj(x), nonzero / divisor
    magnitude = abs_(x) + (x == 0)  # where x is 0, its sign is
    return conj(sign(x)) * (magnitude / divisor) ** (op.ord - 1), astype(nonzero, aval_of(out).dtype)


@vjp_rule(VectorNorm)
def vector_norm_vjp(op: VectorNorm, needed: tuple[bool, ...], x: Any) -> tuple[Any, Any]:
    """The operand over the norm."""
    out = apply(op, x)

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        full, reduced = slope(op, x, out)
        return ((cotangent if op.keepdims else expand_dims(cotangent, op.axis)) * reduced * full,)

    return out, pullback


@jvp_rule(VectorNorm)
def vector_norm_jvp(op: VectorNorm, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """The operand over the norm, times the tangent, summed."""
    (x,), (tangent,) = primals, tangents
    out = apply(op, x)
    if tangent is None:
        return out, None
    full, reduced = slope(op, x, out)
    change = in_single(lambda f, r, t: sum_(f * t, op.axis, keepdims=True) * r, full, reduced, tangent)
    change = real(change) if is_complex(x) else change
    return out, change if op.keepdims else squeeze(change, op.axis)


@batch_rule(VectorNorm)
def vector_norm_batch(op: VectorNorm, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> tuple[Any, int]:
    """The same axes, behind the batch axis."""
    shifted = make_vector_norm(op.ord, tuple(axis + 1 for axis in op.axis), op.keepdims)
    return apply(shifted, front(values[0], axes[0])), 0


# ------------------------------------------------------------------ functions


def floating(x: Any) -> Any:
    """Return integers and booleans as float64."""
    return x if aval_of(x).dtype.kind in "fc" else astype(x, np.float64)


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """Norm of vectors or of matrices, with NumPy's meaning of `ord`.

    One axis (or a 1-D operand): None, 2, 1, 0, inf, -inf, or any other order. Two axes (or a 2-D operand): None and
    "fro", 1, -1, inf, -inf, 2, -2, "nuc". Without `ord` and `axis`, all elements are one vector. Raises `OperandError`
    for another order or number of axes.

    >>> norm(np.array([3.0, 4.0])), norm(np.array([[1.0, -2.0], [3.0, 4.0]]), 1)
    (np.float64(5.0), np.float64(6.0))
    """
    ndim = ndim_of(x)
    if axis is None and ord is None:
        return _vector(floating(x), 2, tuple(range(ndim)), keepdims)
    axes = tuple(range(ndim)) if axis is None else axes_of("norm", axis, ndim, x)
    if len(axes) == 1:
        return _vector(floating(x), ord, axes, keepdims)
    if len(axes) == 2:
        return _matrix(floating(x), ord, axes, keepdims)
    msg = f"norm: {len(axes)} axes; give one axis for vectors, two for matrices"
    raise OperandError(msg, axis=axis)


def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: float = 2) -> Any:
    """Norm of vectors along one or several axes, which count as one; without `axis`, of all elements.

    >>> vector_norm(np.ones((2, 2, 2)), axis=(0, 1))
    array([2., 2.])
    """
    ndim = ndim_of(x)
    axes = tuple(range(ndim)) if axis is None else axes_of("vector_norm", axis, ndim, x)
    return _vector(floating(x), ord, axes, keepdims)


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """Norm of the matrices in the last two axes.

    Raises `IndexOperandError` where there are fewer.

    >>> matrix_norm(np.ones((3, 2, 2)))
    array([2., 2., 2.])
    """
    return _matrix(floating(x), ord, axes_of("matrix_norm", (-2, -1), ndim_of(x), x), keepdims)


def _vector(x: Any, ord: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    if ord is None or ord == 2:
        return apply(make_vector_norm(2.0, tuple(sorted(axes)), keepdims), x)
    if isinstance(ord, str):
        msg = f"norm: order {ord!r} is for matrices; a vector takes a number"
        raise OperandError(msg, ord=ord)
    if ord == math.inf:
        return max_(abs_(x), axes, keepdims)
    if ord == -math.inf:
        return min_(abs_(x), axes, keepdims)
    if ord == 0:
        return sum_(astype(x != 0, real_dtype(aval_of(x).dtype)), axes, keepdims=keepdims)
    if ord == 1:
        return sum_(abs_(x), axes, keepdims=keepdims)
    return apply(make_vector_norm(float(ord), tuple(sorted(axes)), keepdims), x)


def _matrix(x: Any, ord: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    if ord is None or ord == "fro":
        return apply(make_vector_norm(2.0, tuple(sorted(axes)), keepdims), x)
    rows, columns = axes
    if ord in (1, -1, math.inf, -math.inf):
        first, second = (rows, columns) if abs(ord) == 1 else (columns, rows)
        sums = sum_(abs_(x), first, keepdims=keepdims)
        return (max_ if ord > 0 else min_)(sums, second - (first < second and not keepdims), keepdims=keepdims)
    if ord in ("nuc", 2, -2):
        values = svdvals(moveaxis(x, axes, (-2, -1)))
        out = sum_(values, -1) if ord == "nuc" else (max_ if ord > 0 else min_)(values, -1)
        return expand_dims(out, tuple(sorted(axes))) if keepdims else out
    msg = f'norm: no matrix norm of order {ord!r}; there are "fro", "nuc", 1, -1, 2, -2, inf, -inf'
    raise OperandError(msg, ord=ord)
