"""Running sums and products, and the product of an array, whose derivative they give.

Nothing here divides, so zeros are as good as any number. The derivative of a running product is the linear recurrence
`s[k] = a[k] * s[k - 1] + b[k]`, and the derivatives of a recurrence are recurrences: derivatives of any order exist.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from xform.core.aval import Aval, broadcast_shapes, result_dtype
from xform.core.operator import Operator, interned
from xform.core.rules import batch_rule, jvp_rule, like_of, linear, settle, vjp_rule
from xform.core.stack import apply
from xform.ops import shapes
from xform.ops.axes import axis_of, ndim_of
from xform.ops.broadcast import astype
from xform.ops.reductions import (
    Batched,
    Reduction,
    cast_back,
    chosen,
    first_in,
    make_sum,
    numeric,
    reduce,
    reduction_batch,
    total_dtype,
    whole,
)

__all__ = ["CumProd", "CumSum", "Prod", "Recurrence", "Shift", "cumprod", "cumsum", "prod"]


_multiply: Any = np.multiply.reduce


@attrs.frozen
class OneAxis(Operator):
    """Base of what runs along one axis and keeps the shape; `reverse` runs from the end."""

    axis: int
    reverse: bool = False

    def infer(self, x: Aval) -> Aval:
        """The operand's."""
        return Aval(x.shape, x.dtype)


def along_batch(op: Any, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> Batched:
    """Shift the axis past the batch axis."""
    return apply(attrs.evolve(op, axis=op.axis + (op.axis >= axes[0])), values[0]), axes[0]


def part_along(ndim: int, axis: int, start: int | None, stop: int | None, step: int | None = None) -> tuple[slice, ...]:
    """Return the index of a part along one axis."""
    return (slice(None),) * axis + (slice(start, stop, step),) + (slice(None),) * (ndim - axis - 1)


def _flipped(x: Any, axis: int, reverse: bool) -> Any:
    return x[part_along(x.ndim, axis, None, None, -1)] if reverse else x


# ------------------------------------------------------------------ shift and recurrence


@attrs.frozen
class Shift(Operator):
    """The elements moved along an axis by one place, forward or backward; the free place holds `fill`."""

    axis: int
    backward: bool = False
    fill: int = 0

    def infer(self, x: Aval) -> Aval:
        """The operand's."""
        return Aval(x.shape, x.dtype)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Copy into an array that is filled."""
        if x.shape[self.axis] == 0:
            return x
        ahead, behind = part_along(x.ndim, self.axis, 1, None), part_along(x.ndim, self.axis, None, -1)
        first = part_along(x.ndim, self.axis, None, 1)
        free = xp.full_like(x[first], self.fill)
        parts = [x[ahead], free] if self.backward else [free, x[behind]]
        return np.concatenate(parts, axis=self.axis) if xp is np else xp.concat(parts, axis=self.axis)


make_shift = interned(Shift)
batch_rule(Shift)(along_batch)


@vjp_rule(Shift)
def shift_vjp(op: Shift, needed: tuple[bool, ...], x: Any) -> tuple[Any, Any]:
    """Shift back."""
    return apply(op, x), lambda t: (apply(make_shift(op.axis, not op.backward), t),)


@jvp_rule(Shift)
def shift_jvp(op: Shift, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """Shift the tangent, and fill with zero."""
    t = tangents[0]
    return apply(op, primals[0]), None if t is None else apply(make_shift(op.axis, op.backward), t)


class Recurrence(OneAxis):
    """The sequence `s[k] = a[k] * s[k - 1] + b[k]` along an axis, `s[-1] = 0`; or the same from the end."""

    __slots__ = ()

    def infer(self, a: Aval, b: Aval) -> Aval:  # type: ignore[override]
        """Both shapes, broadcast."""
        return Aval(broadcast_shapes(a.shape, b.shape), result_dtype(a, b))

    def evaluate(self, xp: Any, a: Any, b: Any) -> Any:
        """Run in log2(n) rounds; where those overflow, which a step at a time need not, take the n steps."""
        shape = broadcast_shapes(a.shape, b.shape)
        a = _flipped(xp.broadcast_to(a, shape), self.axis, self.reverse)
        b = _flipped(xp.broadcast_to(b, shape), self.axis, self.reverse)
        if xp is not np:
            return _flipped(recur_in_rounds(xp, a, b, self.axis), self.axis, self.reverse)
        with np.errstate(all="ignore"):
            out = recur_in_rounds(np, a, b, self.axis)
        if not np.isfinite(out).all():
            out = recur_in_steps(a, b, self.axis)
        return _flipped(out, self.axis, self.reverse)


def recur_in_rounds(xp: Any, a: Any, b: Any, axis: int) -> Any:
    """Let each element take in what the one 1, 2, 4, ... places before it has gathered."""
    done, ndim, length = 1, b.ndim, b.shape[axis]
    while done < length:
        head, later = part_along(ndim, axis, None, done), part_along(ndim, axis, done, None)
        earlier = part_along(ndim, axis, None, -done)
        b = _joined(xp, b[head], a[later] * b[earlier] + b[later], axis)
        if 2 * done < length:
            a = _joined(xp, a[head], a[later] * a[earlier], axis)
        done *= 2
    return b


def recur_in_steps(a: Any, b: Any, axis: int) -> Any:
    """Take one element after the other."""
    out = np.array(b, np.result_type(a, b))
    a_first, out_first = np.moveaxis(a, axis, 0), np.moveaxis(out, axis, 0)
    for k in range(1, b.shape[axis]):
        out_first[k] += a_first[k] * out_first[k - 1]
    return out


def _joined(xp: Any, head: Any, tail: Any, axis: int) -> Any:
    return np.concatenate((head, tail), axis=axis) if xp is np else xp.concat([head, tail], axis=axis)


make_recurrence = interned(Recurrence)


@vjp_rule(Recurrence)
def recurrence_vjp(op: Recurrence, needed: tuple[bool, ...], a: Any, b: Any) -> tuple[Any, Any]:
    """The recurrence from the other end, with the coefficients of the next elements."""
    out = apply(op, a, b)
    like_a, like_b = like_of(a), like_of(b)
    previous = apply(make_shift(op.axis, op.reverse), out) if needed[0] else None

    def recurrence_pullback(t: Any) -> tuple[Any, Any]:
        inner = apply(make_recurrence(op.axis, not op.reverse), apply(make_shift(op.axis, not op.reverse), a), t)
        return (
            settle(inner * previous, like_a) if needed[0] else None,
            settle(inner, like_b) if needed[1] else None,
        )

    return out, recurrence_pullback


@jvp_rule(Recurrence)
def recurrence_jvp(op: Recurrence, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """The same recurrence, fed with what the tangents bring in."""
    (a, b), (tangent_a, tangent_b) = primals, tangents
    out = apply(op, a, b)
    if tangent_a is None and tangent_b is None:
        return out, None
    fed = None if tangent_a is None else tangent_a * apply(make_shift(op.axis, op.reverse), out)
    fed = tangent_b if fed is None else fed if tangent_b is None else fed + tangent_b
    return out, settle(apply(op, a, fed), out)


@batch_rule(Recurrence)
def recurrence_batch(op: Recurrence, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> Batched:
    """Bring the batch to the front of both operands, with length 1 where one has none."""
    fronted = [
        shapes.expand_dims(v, 0) if axis is None else shapes.moveaxis(v, axis, 0)
        for v, axis in zip(values, axes, strict=True)
    ]
    return apply(make_recurrence(op.axis + 1, op.reverse), *fronted), 0


# ------------------------------------------------------------------ running sum and product


class CumSum(OneAxis):
    """The running sum along an axis."""

    __slots__ = ()

    def infer(self, x: Aval) -> Aval:
        """Small integers and booleans widen."""
        return Aval(x.shape, total_dtype(x))

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Accumulate."""
        x = _flipped(x, self.axis, self.reverse)
        if xp is np:
            return _flipped(np.add.accumulate(x, self.axis, total_dtype(x)), self.axis, self.reverse)
        return _flipped(xp.cumulative_sum(numeric(xp, x), axis=self.axis), self.axis, self.reverse)


class CumProd(OneAxis):
    """The running product along an axis."""

    __slots__ = ()

    def infer(self, x: Aval) -> Aval:
        """Small integers and booleans widen."""
        return Aval(x.shape, total_dtype(x))

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Accumulate."""
        x = _flipped(x, self.axis, self.reverse)
        if xp is np:
            return _flipped(np.multiply.accumulate(x, self.axis, total_dtype(x)), self.axis, self.reverse)
        return _flipped(xp.cumulative_prod(numeric(xp, x), axis=self.axis), self.axis, self.reverse)


make_cumsum = interned(CumSum)
make_cumprod = interned(CumProd)
linear(CumSum, lambda op, t, x: apply(make_cumsum(op.axis, not op.reverse), t))
batch_rule(CumSum, CumProd)(along_batch)


def product_before(op: CumProd, out: Any) -> Any:
    """Return the product of the elements before each one, from the running product."""
    return apply(make_shift(op.axis, op.reverse, 1), out)


@vjp_rule(CumProd)
def cumprod_vjp(op: CumProd, needed: tuple[bool, ...], x: Any) -> tuple[Any, Any]:
    """The derivative is a recurrence whose coefficients are the elements."""
    out = apply(op, x)

    def cumprod_pullback(t: Any) -> tuple[Any]:
        following = apply(make_shift(op.axis, not op.reverse), x)
        return (apply(make_recurrence(op.axis, not op.reverse), following, t) * product_before(op, out),)

    return out, cumprod_pullback


@jvp_rule(CumProd)
def cumprod_jvp(op: CumProd, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """The derivative is a recurrence whose coefficients are the elements."""
    (x,), (t,) = primals, tangents
    out = apply(op, x)
    if t is None:
        return out, None
    return out, apply(make_recurrence(op.axis, op.reverse), x, t * product_before(op, out))


# ------------------------------------------------------------------ product


class Prod(Reduction):
    """The product over some axes."""

    __slots__ = ()

    def dtype_of(self, x: Aval) -> np.dtype[Any]:
        """Small integers and booleans widen."""
        return total_dtype(x)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Multiply."""
        if xp is np:
            return _multiply(x, self.axis, None, None, self.keepdims)
        return xp.prod(numeric(xp, x), axis=self.axis, keepdims=self.keepdims)


make_prod = interned(Prod)
batch_rule(Prod)(reduction_batch)


def others(x: Any, axes: tuple[int, ...]) -> Any:
    """Return, for each element, the product of all others along the axes; without dividing.

    >>> others(np.array([2.0, 0.0, 3.0]), (0,))
    array([0., 6., 0.])
    """
    axis, rest = axes[0], axes[1:]
    before, after = make_cumprod(axis), make_cumprod(axis, reverse=True)
    found = product_before(before, apply(before, x)) * product_before(after, apply(after, x))
    return found * others(apply(make_prod((axis,), keepdims=True), x), rest) if rest else found


@vjp_rule(Prod)
def prod_vjp(op: Prod, needed: tuple[bool, ...], x: Any) -> tuple[Any, Any]:
    """Each element's derivative is the product of the others."""
    out = apply(op, x)
    return out, lambda t: (whole(t, op, like_of(x)) * others(x, op.axis) if op.axis else t,)


@jvp_rule(Prod)
def prod_jvp(op: Prod, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """Each element's derivative is the product of the others."""
    (x,), (t,) = primals, tangents
    out = apply(op, x)
    if t is None or not op.axis:
        return out, t
    return out, apply(make_sum(op.axis, op.keepdims), t * others(x, op.axis))


# ------------------------------------------------------------------ functions


def cumsum(x: Any, axis: Any = None, dtype: Any = None) -> Any:
    """Running sum along an axis, or of the flattened array; small integers and booleans widen.

    Raises `IndexOperandError` for an axis that is out of bounds.

    >>> cumsum(np.array([1.0, 2.0, 3.0]))
    array([1., 3., 6.])
    """
    return _accumulate(CumSum, x, axis, dtype)


def cumprod(x: Any, axis: Any = None, dtype: Any = None) -> Any:
    """Running product along an axis, or of the flattened array; its derivatives are right at zeros too.

    Raises `IndexOperandError` for an axis that is out of bounds.

    >>> cumprod(np.array([1.0, 2.0, 3.0]))
    array([1., 2., 6.])
    """
    return _accumulate(CumProd, x, axis, dtype)


def _accumulate(kind: type[OneAxis], x: Any, axis: Any, dtype: Any) -> Any:
    ndim = ndim_of(x)
    if dtype is not None:
        x = astype(x, dtype)
    if axis is None or ndim == 0:
        x, ndim = (shapes.reshape(x, (-1,)) if ndim != 1 else x), 1
    make = make_cumsum if kind is CumSum else make_cumprod
    out = apply(make(axis_of(kind.__name__, 0 if axis is None else axis, ndim, x)), x)
    return out if dtype is None else cast_back(out, dtype)


def prod(
    x: Any, axis: Any = None, dtype: Any = None, keepdims: Any = False, *, initial: Any = None, where: Any = None
) -> Any:
    """Product over axes; its derivatives are right with any number of zeros, in both modes and at any order.

    Raises `IndexOperandError` for an axis that is out of bounds.

    >>> prod(np.array([2.0, 3.0]))
    np.float64(6.0)
    """
    if dtype is not None:
        x = astype(x, dtype)
    if where is not None:
        x = chosen(where, x, 1)
    out = reduce(Prod, x, axis, keepdims)
    if initial is not None:
        out = out * first_in(initial, out)
    return out if dtype is None else cast_back(out, dtype)
