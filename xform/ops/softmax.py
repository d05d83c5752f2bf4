"""The logarithm of a sum of exponentials, and each one's share in the sum."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from xform.core.aval import Aval, aval_of
from xform.core.operator import interned
from xform.core.rules import batch_rule, jvp_rule, like_of, vjp_rule
from xform.core.stack import apply
from xform.ops.base import native
from xform.ops.reductions import (
    HALF,
    Batched,
    Reduction,
    in_single,
    make_sum,
    narrowed,
    reduce,
    reduction_batch,
    whole,
    widened,
)

__all__ = ["LogSumExp", "Softmax", "logsumexp"]


def floating(xp: Any, x: Any) -> Any:
    """Return a raw array in a floating dtype of the machine's byte order."""
    if xp is np:
        dtype = aval_of(x).dtype
        return np.asarray(x, float if dtype.kind in "biu" else native(dtype))
    return x if xp.isdtype(x.dtype, ("real floating", "complex floating")) else xp.astype(x, xp.float64)


def exponentials(xp: Any, op: Reduction, x: Any) -> tuple[Any, Any]:
    """Return `exp(x - largest)`, and the largest real part along the axes, kept: 0 where that is not finite."""
    real = xp.real(x) if aval_of(x).dtype.kind == "c" else x
    if 0 in x.shape:
        return x, xp.sum(real, axis=op.axis, keepdims=True)
    largest = xp.max(real, axis=op.axis, keepdims=True)
    largest = xp.where(xp.isfinite(largest), largest, xp.zeros_like(largest))
    return xp.exp(x - largest), largest


class Softmax(Reduction):
    """The share of each element's exponential in the sum along some axes, which are kept; 0 where all are -inf."""

    __slots__ = ()

    def infer(self, x: Aval) -> Aval:
        """The operand's; integers and booleans give float64."""
        return Aval(x.shape, np.dtype(float) if x.dtype.kind in "biu" else native(x.dtype))

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Divide the exponentials by their own sum: one of them is 1 where a real x is finite."""
        if aval_of(x).dtype.char == HALF:
            return narrowed(xp, self.evaluate(xp, widened(xp, x)), x)
        powers, _ = exponentials(xp, self, floating(xp, x))
        total = xp.sum(powers, axis=self.axis, keepdims=True)
        return powers / xp.where(total == 0, xp.ones_like(total), total)


make_softmax = interned(Softmax)


@batch_rule(Softmax)
def softmax_batch(op: Softmax, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> Batched:
    """Shift the axes past the batch axis, which keeps its place."""
    return apply(make_softmax(tuple(i + (i >= axes[0]) for i in op.axis)), values[0]), axes[0]


def softmax_change(op: Softmax, out: Any, t: Any) -> Any:
    """Return the derivative of the shares, which is its own transpose."""
    return in_single(lambda out, t: out * (t - apply(make_sum(op.axis, keepdims=True), out * t)), out, t)


@vjp_rule(Softmax)
def softmax_vjp(op: Softmax, needed: tuple[bool, ...], x: Any) -> tuple[Any, Any]:
    """The cotangent minus its average, by the shares."""
    out = apply(op, x)
    return out, lambda t: (softmax_change(op, out, t),)


@jvp_rule(Softmax)
def softmax_jvp(op: Softmax, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """The tangent minus its average, by the shares."""
    out = apply(op, primals[0])
    return out, None if tangents[0] is None else softmax_change(op, out, tangents[0])


# ------------------------------------------------------------------ log-sum-exp


class LogSumExp(Reduction):
    """The logarithm of the sum of exponentials along some axes."""

    __slots__ = ()

    def dtype_of(self, x: Aval) -> np.dtype[Any]:
        """Integers and booleans give float64."""
        return np.dtype(float) if x.dtype.kind in "biu" else native(x.dtype)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Take the largest element out first, where it is finite."""
        if aval_of(x).dtype.char == HALF:
            return narrowed(xp, self.evaluate(xp, widened(xp, x)), x)
        x = floating(xp, x)
        if 0 in [x.shape[i] for i in self.axis]:
            return xp.sum(x, axis=self.axis, keepdims=self.keepdims) - math.inf
        powers, largest = exponentials(xp, self, x)
        total = xp.sum(powers, axis=self.axis, keepdims=self.keepdims)
        if not self.keepdims:
            largest = xp.reshape(largest, tuple(total.shape))
        if xp is not np:
            return xp.log(total) + largest
        with np.errstate(divide="ignore"):  # the logarithm of 0 is -inf here, and no accident
            return np.log(total) + largest


batch_rule(LogSumExp)(reduction_batch)


@vjp_rule(LogSumExp)
def logsumexp_vjp(op: LogSumExp, needed: tuple[bool, ...], x: Any) -> tuple[Any, Any]:
    """Give each element its share; where all are -inf, nothing."""
    like = like_of(x)
    return apply(op, x), lambda t: (whole(t, op, like) * apply(make_softmax(op.axis), x),)


@jvp_rule(LogSumExp)
def logsumexp_jvp(op: LogSumExp, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """Add up the tangents by their shares."""
    (x,), (t,) = primals, tangents
    out = apply(op, x)
    if t is None:
        return out, None
    total = make_sum(op.axis, op.keepdims)
    return out, in_single(lambda t, shares: apply(total, t * shares), t, apply(make_softmax(op.axis), x))


def logsumexp(x: Any, axis: Any = None, keepdims: Any = False) -> Any:
    """Logarithm of the sum of exponentials along axes, without overflow; of nothing, or of -inf alone, it is -inf.

    Raises `IndexOperandError` for an axis that is out of bounds.

    >>> logsumexp(np.array([1000.0, 1000.0]))
    np.float64(1000.6931471805599)
    """
    return reduce(LogSumExp, x, axis, keepdims)
