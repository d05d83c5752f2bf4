"""Largest and smallest elements, and where they are. Ties share a derivative equally."""

from __future__ import annotations

from typing import Any

import numpy as np

from xform.core.aval import Aval, aval_of, shape_of
from xform.core.errors import ShapeError
from xform.core.rules import batch_rule, jvp_rule, like_of, vjp_rule
from xform.core.stack import BOTTOM, apply, cursor
from xform.ops import shapes
from xform.ops.axes import axis_of, ndim_of, reduced_axes
from xform.ops.base import native
from xform.ops.batching import align
from xform.ops.broadcast import astype, broadcast_like
from xform.ops.reductions import (
    HALF,
    Batched,
    Reduction,
    chosen,
    first_in,
    make_sum,
    narrowed,
    reduce,
    reduced_shape,
    reduction,
    reduction_batch,
    whole,
    widened,
)
from xform.ops.selection import maximum, minimum

__all__ = ["ArgMax", "ArgMin", "Max", "Min", "Shares", "amax", "amin", "argmax", "argmin", "max", "min", "ptp"]

_get = cursor.get
_ndarray = np.ndarray
_maximum: Any = np.maximum.reduce
_minimum: Any = np.minimum.reduce
_add: Any = np.add.reduce


class Extremum(Reduction):
    """Base of `Max` and `Min`."""

    __slots__ = ()

    def infer(self, x: Aval) -> Aval:
        """Drop the axes; an empty one has no extremum."""
        shape = reduced_shape(x.shape, self.axis, self.keepdims)
        if 0 not in shape and 0 in x.shape:
            msg = f"{self.name}: shape {x.shape} has no element along axis {self.axis}"
            raise ShapeError(msg, aval=x)
        return Aval(shape, native(x.dtype))


class Max(Extremum):
    """The largest element along some axes; NaN where there is one."""

    __slots__ = ()

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Reduce by the larger of two."""
        if xp is np:
            return _maximum(x, self.axis, None, None, self.keepdims)
        reducer = xp.any if x.dtype == xp.bool else xp.max
        return reducer(x, axis=self.axis, keepdims=self.keepdims)


class Min(Extremum):
    """The smallest element along some axes; NaN where there is one."""

    __slots__ = ()

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Reduce by the smaller of two."""
        if xp is np:
            return _minimum(x, self.axis, None, None, self.keepdims)
        reducer = xp.all if x.dtype == xp.bool else xp.min
        return reducer(x, axis=self.axis, keepdims=self.keepdims)


class Shares(Reduction):
    """The share of each element in the extremum along some axes: 1 / (number of ties), or 0.

    The second operand is the extremum with the reduced axes kept. Where it is NaN, the NaNs share.
    """

    __slots__ = ()

    def infer(self, x: Aval, extremum: Aval) -> Aval:  # type: ignore[override]
        """The first operand's."""
        return Aval(x.shape, x.dtype)

    def evaluate(self, xp: Any, x: Any, extremum: Any) -> Any:
        """Compare, count, divide."""
        if xp is np:
            x = np.asarray(x)
            chosen = np.equal(x, extremum)
            counted = np.dtype(np.float32) if x.dtype.char == HALF else native(x.dtype)
            count = _add(chosen, self.axis, counted, None, True)
            if not np.logical_and.reduce(count, None):
                chosen = chosen | np.not_equal(x, x)
                count = _add(chosen, self.axis, counted, None, True)
            return narrowed(np, chosen / count, x)
        chosen = widened(xp, xp.astype((x == extremum) | (x != x), x.dtype))  # noqa: PLR0124  (a NaN differs from itself)
        return narrowed(xp, chosen / xp.sum(chosen, axis=self.axis, keepdims=True), x)


vjp_rule.none(Shares, why="it is piecewise constant")
jvp_rule.none(Shares, why="it is piecewise constant")


@batch_rule(Shares)
def shares_batch(op: Shares, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> Batched:
    """Bring the batch to the front of both operands; an extremum of everything is a number in each lane."""
    ndim = ndim_of(values[0]) - (axes[0] is not None)
    fronted = [
        shapes.expand_dims(v, 0) if axis is None else align(v, axis, ndim) for v, axis in zip(values, axes, strict=True)
    ]
    return apply(Shares(tuple(i + 1 for i in op.axis)), *fronted), 0


def shares(op: Extremum, x: Any, out: Any) -> Any:
    """Return each element's share in the extremum that `op` gave."""
    return apply(Shares(op.axis), x, whole(out, op, like_of(x)))


@vjp_rule(Max, Min)
def extremum_vjp(op: Extremum, needed: tuple[bool, ...], x: Any) -> tuple[Any, Any]:
    """Give each element its share."""
    out = apply(op, x)

    def extremum_pullback(t: Any) -> tuple[Any]:
        return (whole(t, op, like_of(x)) * shares(op, x, out),)

    return out, extremum_pullback


@jvp_rule(Max, Min)
def extremum_jvp(op: Extremum, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """Add up the tangents by their shares."""
    (x,), (t,) = primals, tangents
    out = apply(op, x)
    return out, None if t is None else apply(make_sum(op.axis, op.keepdims), t * shares(op, x, out))


# ------------------------------------------------------------------ where they are


class ArgExtremum(Reduction):
    """Base of `ArgMax` and `ArgMin`; `axis` has one axis."""

    __slots__ = ()

    def infer(self, x: Aval) -> Aval:
        """Indices."""
        shape = reduced_shape(x.shape, self.axis, self.keepdims)
        if x.shape[self.axis[0]] == 0 and 0 not in shape:
            msg = f"{self.name}: shape {x.shape} has no element along axis {self.axis[0]}"
            raise ShapeError(msg, aval=x)
        return Aval(shape, np.dtype(np.intp))


class ArgMax(ArgExtremum):
    """The index of the first largest element along one axis, or of the first NaN."""

    __slots__ = ()

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Search."""
        return xp.argmax(_ordered(xp, x), axis=self.axis[0], keepdims=self.keepdims)


class ArgMin(ArgExtremum):
    """The index of the first smallest element along one axis, or of the first NaN."""

    __slots__ = ()

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Search."""
        return xp.argmin(_ordered(xp, x), axis=self.axis[0], keepdims=self.keepdims)


def _ordered(xp: Any, x: Any) -> Any:
    return xp.astype(x, xp.int8) if xp is not np and x.dtype == xp.bool else x


batch_rule(Max, Min, ArgMax, ArgMin)(reduction_batch)
vjp_rule.none(ArgMax, ArgMin, why="its result is an index")
jvp_rule.none(ArgMax, ArgMin, why="its result is an index")


# ------------------------------------------------------------------ functions


def max(x: Any, axis: Any = None, keepdims: Any = False, *, initial: Any = None, where: Any = None) -> Any:
    """Largest element along axes; NaN where there is one. Ties share the derivative equally.

    Raises `ShapeError` where there is no element, `IndexOperandError` for an axis that is out of bounds.

    >>> max(np.array([1.0, 3.0, 2.0]))
    np.float64(3.0)
    """
    if type(x) is _ndarray and initial is None and where is None and _get() is BOTTOM:
        try:
            return _maximum(x, axis, None, None, keepdims)
        except (TypeError, ValueError):  # said again below, with the operator's name
            pass
    initial = None if initial is None else first_in(initial, x)
    if where is not None:
        x = chosen(where, x, _required(initial, "max"))
    if initial is not None and 0 in shape_of(x):
        x = _begun(Max, x, axis, initial)
    out = reduce(Max, x, axis, keepdims)
    return out if initial is None else maximum(out, initial)


def min(x: Any, axis: Any = None, keepdims: Any = False, *, initial: Any = None, where: Any = None) -> Any:
    """Smallest element along axes; NaN where there is one. Ties share the derivative equally.

    Raises `ShapeError` where there is no element, `IndexOperandError` for an axis that is out of bounds.

    >>> min(np.array([1.0, 3.0, 2.0]))
    np.float64(1.0)
    """
    if type(x) is _ndarray and initial is None and where is None and _get() is BOTTOM:
        try:
            return _minimum(x, axis, None, None, keepdims)
        except (TypeError, ValueError):  # said again below, with the operator's name
            pass
    initial = None if initial is None else first_in(initial, x)
    if where is not None:
        x = chosen(where, x, _required(initial, "min"))
    if initial is not None and 0 in shape_of(x):
        x = _begun(Min, x, axis, initial)
    out = reduce(Min, x, axis, keepdims)
    return out if initial is None else minimum(out, initial)


amax, amin = max, min


def _begun(kind: Any, x: Any, axis: Any, initial: Any) -> Any:
    """Return what is reduced, with an initial value along those of the axes that have no elements."""
    axes, aval = reduced_axes(kind.__name__, axis, ndim_of(x), x), aval_of(x)
    shape = tuple([1 if n == 0 and at in axes else n for at, n in enumerate(aval.shape)])
    return x if shape == aval.shape else broadcast_like(astype(initial, aval.dtype), Aval(shape, aval.dtype))


def _required(initial: Any, name: str) -> Any:
    if initial is None:
        msg = f"{name}: with where= there may be no element; give initial= as well"
        raise ShapeError(msg)
    return initial


def argmax(x: Any, axis: Any = None, *, keepdims: Any = False) -> Any:
    """Index of the first largest element along an axis, or of the flattened array; NaN counts as the largest.

    >>> argmax(np.array([1.0, 3.0, 2.0]))
    np.int64(1)
    """
    return _search(ArgMax, x, axis, keepdims)


def argmin(x: Any, axis: Any = None, *, keepdims: Any = False) -> Any:
    """Index of the first smallest element along an axis, or of the flattened array; NaN counts as the smallest.

    >>> argmin(np.array([2.0, 1.0, 3.0]))
    np.int64(1)
    """
    return _search(ArgMin, x, axis, keepdims)


def _search(kind: Any, x: Any, axis: Any, keepdims: Any) -> Any:
    ndim = ndim_of(x)
    if axis is None or ndim == 0:
        if ndim == 0 and axis is not None:
            axis_of(kind.__name__, axis, 1, x)
        out = apply(reduction(kind, 0, False, 1), shapes.reshape(x, (-1,)))
        return shapes.reshape(out, (1,) * ndim) if keepdims and ndim else out
    return apply(reduction(kind, axis_of(kind.__name__, axis, ndim, x), bool(keepdims), ndim), x)


def ptp(x: Any, axis: Any = None, keepdims: Any = False) -> Any:
    """Range of the elements along axes: largest minus smallest.

    >>> ptp(np.array([1.0, 3.0, 2.0]))
    np.float64(2.0)
    """
    return max(x, axis, keepdims) - min(x, axis, keepdims)
