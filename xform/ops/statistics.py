"""Spread and location: variance, standard deviation, median, quantile, average."""

from __future__ import annotations

import math
from typing import Any, SupportsIndex

import attrs
import numpy as np

from xform.core.aval import Aval, aval_of, result_dtype
from xform.core.backend import SCALAR_TYPES
from xform.core.errors import OperandError, ShapeError
from xform.core.rules import batch_rule, jvp_rule, like_of, vjp_rule
from xform.core.stack import apply
from xform.ops import shapes
from xform.ops.axes import axis_of, ndim_of, reduced_axes
from xform.ops.base import is_complex, native
from xform.ops.broadcast import astype, broadcast_like
from xform.ops.comparisons import not_equal
from xform.ops.complexes import conj, real, real_dtype
from xform.ops.indexing import getitem
from xform.ops.reductions import (
    HALF,
    Batched,
    Mean,
    Reduction,
    cast_back,
    count_of,
    in_single,
    make_sum,
    mean,
    narrowed,
    reduction_batch,
    whole,
    widened,
)
from xform.ops.reductions import sum as sum_
from xform.ops.selection import where
from xform.ops.sorting import sort
from xform.ops.stacking import stack

__all__ = [
    "Constant", "Std", "Var", "average", "median", "percentile", "quantile", "std", "var",
]  # fmt: skip


# ------------------------------------------------------------------ variance and standard deviation


@attrs.frozen
class Spread(Reduction):
    """Base of `Var` and `Std`; sums are divided by the number of elements minus `correction`."""

    correction: float = 0

    def dtype_of(self, x: Aval) -> np.dtype[Any]:
        """Real; integers and booleans give float64."""
        if x.dtype.kind in "biu":
            return np.dtype(float)
        return real_dtype(native(x.dtype))


class Var(Spread):
    """The variance along some axes: the mean of the squared distances from the mean."""

    __slots__ = ()

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Compute on raw arrays."""
        if aval_of(x).dtype.char == HALF:
            return narrowed(xp, self.evaluate(xp, widened(xp, x)), x)
        if xp is np:
            return np.var(x, axis=self.axis, ddof=self.correction, keepdims=self.keepdims)
        if xp.isdtype(x.dtype, "complex floating"):
            return self.evaluate(xp, xp.real(x)) + self.evaluate(xp, xp.imag(x))
        x = x if xp.isdtype(x.dtype, "real floating") else xp.astype(x, xp.float64)
        return xp.var(x, axis=self.axis, correction=self.correction, keepdims=self.keepdims)


class Std(Spread):
    """The standard deviation along some axes: the square root of the variance."""

    __slots__ = ()

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Compute on raw arrays."""
        if aval_of(x).dtype.char == HALF:
            return narrowed(xp, self.evaluate(xp, widened(xp, x)), x)
        if xp is np:
            return np.std(x, axis=self.axis, ddof=self.correction, keepdims=self.keepdims)
        return xp.sqrt(Var(self.axis, self.keepdims, self.correction).evaluate(xp, x))


class Constant(Reduction):
    """Whether all elements along some axes are equal, so that they do not spread; the axes are kept."""

    __slots__ = ()

    def infer(self, x: Aval) -> Aval:
        """A boolean."""
        shape = tuple(1 if i in self.axis else n for i, n in enumerate(x.shape))
        return Aval(shape, np.dtype(bool))

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Compare with the first."""
        x = np.asarray(x) if xp is np else x
        first = x[tuple(slice(0, 1) if i in self.axis else slice(None) for i in range(x.ndim))]
        return xp.all(x == first, axis=self.axis, keepdims=True)


batch_rule(Var, Std)(reduction_batch)
vjp_rule.none(Constant, why="its result is boolean")
jvp_rule.none(Constant, why="its result is boolean")


@batch_rule(Constant)
def constant_batch(op: Constant, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> Batched:
    """Shift the axes past the batch axis, which keeps its place."""
    return apply(Constant(tuple(i + (i >= axes[0]) for i in op.axis)), values[0]), axes[0]


def slope(op: Spread, x: Any, out: Any) -> Any:
    """Return the derivative by each element: of the variance `2 (x - mean) / n`, of its root that over `2 out`.

    The root has derivative 0 where it is 0, or would be but for rounding: where all elements are equal. With no degree
    of freedom left the derivative is NaN, as the value is. By JAX's convention for complex numbers it is conjugate.
    """
    like = like_of(x)
    distance = x - apply(Mean(op.axis, keepdims=True), x)
    if aval_of(x).dtype.kind == "c":
        distance = conj(distance)
    count = count_of(like, op.axis) - op.correction
    if type(count) in SCALAR_TYPES and count <= 0:
        count = math.nan
    if isinstance(op, Var):
        return distance * (2.0 / count)
    root = whole(out, op, like)
    flat = (apply(Constant(op.axis), x) & (root == root)) | (root == 0)  # noqa: PLR0124  (of infinities it is NaN)
    return where(flat, 0, distance) / (where(flat, 1, root) * count)


@vjp_rule(Var, Std)
def spread_vjp(op: Spread, needed: tuple[bool, ...], x: Any) -> tuple[Any, Any]:
    """Pull away from the mean."""
    out = apply(op, x)
    return out, lambda t: (in_single(lambda v, t, out: whole(t, op, like_of(v)) * slope(op, v, out), x, t, out),)


@jvp_rule(Var, Std)
def spread_jvp(op: Spread, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """Add up the tangents along the distances from the mean."""
    (x,), (t,) = primals, tangents
    out = apply(op, x)
    if t is None:
        return out, None
    return out, in_single(lambda *each: _spread_tangent(op, *each), x, t, out)


def _spread_tangent(op: Spread, x: Any, t: Any, out: Any) -> Any:
    part = slope(op, x, out) * t
    return apply(make_sum(op.axis, op.keepdims), real(part) if aval_of(part).dtype.kind == "c" else part)


# ------------------------------------------------------------------ functions


def var(
    x: Any,
    axis: Any = None,
    dtype: Any = None,
    ddof: float = 0,
    keepdims: Any = False,
    *,
    correction: float | None = None,
) -> Any:
    """Variance along axes; sums are divided by n - `ddof` (or `correction`, its name in the array API standard).

    Raises `IndexOperandError` for an axis that is out of bounds.

    >>> var(np.array([1.0, 3.0]))
    np.float64(1.0)
    """
    return _spread(Var, x, axis, dtype, keepdims, _correction("var", ddof, correction))


def std(
    x: Any,
    axis: Any = None,
    dtype: Any = None,
    ddof: float = 0,
    keepdims: Any = False,
    *,
    correction: float | None = None,
) -> Any:
    """Standard deviation along axes; its derivative is 0 where all elements are equal.

    Raises `IndexOperandError` for an axis that is out of bounds.

    >>> std(np.array([1.0, 3.0]))
    np.float64(1.0)
    """
    return _spread(Std, x, axis, dtype, keepdims, _correction("std", ddof, correction))


def _correction(name: str, ddof: float, correction: float | None) -> float:
    if correction is not None and ddof:
        msg = f"{name}: ddof and correction are two names of one number; give one of them"
        raise OperandError(msg)
    return ddof if correction is None else correction


def _spread(kind: type[Spread], x: Any, axis: Any, dtype: Any, keepdims: Any, correction: float) -> Any:  # noqa: PLR0917
    if dtype is not None:
        kept = "fc" if not is_complex(x) else "c"
        if np.dtype(dtype).kind not in kept:
            lost = "cut x to whole numbers" if np.dtype(dtype).kind not in "fc" else "drop the imaginary part of x"
            wanted = "complex" if kept == "c" else "floating"
            msg = f"{kind.__name__.lower()}: dtype={np.dtype(dtype)} would {lost}; give a {wanted} dtype"
            raise OperandError(msg, dtype=np.dtype(dtype))
        x = astype(x, dtype)
    axes = reduced_axes(kind.__name__, axis, ndim_of(x), x)
    out = apply(kind(axes, bool(keepdims), correction), x)
    return out if dtype is None else cast_back(out, real(np.zeros((), dtype)).dtype)


def average(x: Any, axis: Any = None, weights: Any = None, *, keepdims: Any = False) -> Any:
    """Average along axes, weighted by `weights`: of the shape of `x`, or one number per element of the one axis.

    Raises `ShapeError` where the weights have another shape.

    >>> average(np.array([1.0, 3.0]), weights=np.array([3.0, 1.0]))
    np.float64(1.5)
    """
    if weights is None:
        return mean(x, axis, None, keepdims)
    shape, given = shapes.read_shape(x), shapes.read_shape(weights)
    if given != shape:
        at = axis_of("average", axis, len(shape), x) if isinstance(axis, SupportsIndex) else None
        if len(given) != 1 or at is None or given[0] != shape[at]:
            msg = f"average: weights of shape {given} do not fit an array of shape {shape} with axis={axis}"
            raise ShapeError(msg)
        weights = shapes.reshape(weights, (1,) * at + (-1,) + (1,) * (len(shape) - at - 1))
        weights = broadcast_like(weights, like_of(x))
    dtype = result_dtype(aval_of(x), aval_of(weights))
    if aval_of(x).dtype.kind in "biu":  # as NumPy has it: in double precision
        dtype = np.result_type(dtype, np.float64)
    x, weights = (v if aval_of(v).dtype == dtype else astype(v, dtype) for v in (x, weights))
    x, weights = (astype(v, np.float32) if aval_of(v).dtype.char == HALF else v for v in (x, weights))
    out = sum_(x * weights, axis, None, keepdims) / sum_(weights, axis, None, keepdims)
    return astype(out, dtype) if dtype.char == HALF else out


def median(x: Any, axis: Any = None, keepdims: Any = False) -> Any:
    """Median along axes: the middle element, or the mean of the two in the middle; NaN where there is one.

    Raises `ShapeError` where there is no element.

    >>> median(np.array([3.0, 1.0, 2.0, 10.0]))
    np.float64(2.5)
    """
    return quantile(x, 0.5, axis, keepdims)


def quantile(x: Any, q: Any, axis: Any = None, keepdims: Any = False) -> Any:
    """Quantiles along axes, with linear interpolation; `q` are plain numbers from 0 to 1, their axis comes first.

    Raises `ShapeError` where there is no element, `OperandError` for a `q` outside 0 to 1.

    >>> quantile(np.array([1.0, 2.0, 3.0]), 0.25)
    np.float64(1.5)
    """
    if aval_of(x).dtype.kind in "biu":
        x = astype(x, float)
    axes = reduced_axes("quantile", axis, ndim_of(x), x)
    ordered, length = _sorted_last(x, axes)
    points = np.asarray(q, float)
    if not ((points >= 0) & (points <= 1)).all():
        msg = f"quantile: q must lie between 0 and 1, got {q}"
        raise OperandError(msg, q=q)
    out = [_interpolated(ordered, float(point) * (length - 1)) for point in points.ravel()]
    if keepdims:
        out = [shapes.expand_dims(each, axes) for each in out]
    if points.ndim == 0:
        return out[0]
    stacked = stack(out)
    return shapes.reshape(stacked, (*points.shape, *aval_of(stacked).shape[1:])) if points.ndim > 1 else stacked


def percentile(x: Any, q: Any, axis: Any = None, keepdims: Any = False) -> Any:
    """Percentiles along axes, with linear interpolation: quantiles for `q` from 0 to 100.

    Raises as `quantile` does.

    >>> percentile(np.array([1.0, 2.0, 3.0]), 25)
    np.float64(1.5)
    """
    return quantile(x, np.asarray(q, float) / 100.0, axis, keepdims)


def _sorted_last(x: Any, axes: tuple[int, ...]) -> tuple[Any, int]:
    """Sort the elements of the axes, joined into one in front, and return how many they are."""
    shape = shapes.read_shape(x)
    kept = tuple(i for i in range(len(shape)) if i not in axes)
    length = math.prod([shape[i] for i in axes])  # type: ignore[misc]
    if length == 0:
        msg = f"quantile: shape {shape} has no element along axes {axes}"
        raise ShapeError(msg)
    joined = shapes.reshape(shapes.transpose(x, (*axes, *kept)), (length, *[shape[i] for i in kept]))
    return sort(joined, axis=0), length


def _interpolated(ordered: Any, position: float) -> Any:
    """Return the element at a position between two, or NaN where the last one is."""
    low = math.floor(position)
    share = position - low
    out = getitem(ordered, low)
    if share:
        out = out * (1.0 - share) + getitem(ordered, low + 1) * share
    last = getitem(ordered, -1)
    out = where(not_equal(last, last), last, out)
    return out[()] if type(out) is np.ndarray else out
