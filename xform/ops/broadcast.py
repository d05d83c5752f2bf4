"""Broadcasting, its transpose, and casts: what brings a cotangent to the shape and dtype of its primal.

`BroadcastTo` and `BroadcastLike` return read-only views: nobody may write into a cotangent that they were given.
"""

from __future__ import annotations

import math
from typing import Any

import attrs
import numpy as np

from xform.core.aval import Aval, aval_of, broadcast_shapes
from xform.core.backend import HOST_TYPES, SCALAR_TYPES
from xform.core.errors import DtypeError, ShapeError
from xform.core.operator import Operator, interned
from xform.core.rules import jvp_rule, linear, set_settlers
from xform.core.stack import BOTTOM, apply, cursor
from xform.ops.base import Parameterless, native
from xform.ops.create import zeros_like

__all__ = [
    "Astype",
    "BroadcastLike",
    "BroadcastTo",
    "Lead",
    "SumLike",
    "SumTo",
    "astype",
    "broadcast_like",
    "broadcast_to",
    "sum_to_like",
]

Shape = tuple[int, ...]
_ndarray = np.ndarray
_add: Any = np.add.reduce


# ------------------------------------------------------------------ broadcasting


@attrs.frozen
class BroadcastTo(Operator):
    """The operand repeated along new and length-1 axes, to a shape."""

    shape: Shape

    def infer(self, x: Aval) -> Aval:
        """The parameter's shape."""
        fits = len(x.shape) <= len(self.shape)
        if not fits or any(have not in (1, None, want) for have, want in _aligned(x.shape, self.shape)):
            msg = f"BroadcastTo: shape {x.shape} does not broadcast to {self.shape}"
            raise ShapeError(msg, aval=x)
        return Aval(self.shape, x.dtype)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Make a read-only view."""
        return broadcast_view(x, self.shape) if xp is np else xp.broadcast_to(x, self.shape)


@attrs.frozen
class Lead(Operator):
    """The operand repeated along a new axis in front, whatever its own shape is."""

    size: int

    def infer(self, x: Aval) -> Aval:
        """One more axis."""
        return Aval((self.size, *x.shape), x.dtype)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Make the view."""
        x = xp.asarray(x)
        return broadcast_view(x, (self.size, *x.shape)) if xp is np else xp.broadcast_to(x, (self.size, *x.shape))


class BroadcastLike(Parameterless):
    """The first operand broadcast against the shape of the second."""

    def infer(self, x: Aval, like: Aval) -> Aval:
        """Both shapes, broadcast."""
        return Aval(broadcast_shapes(x.shape, like.shape), x.dtype)

    def evaluate(self, xp: Any, x: Any, like: Any) -> Any:
        """Make a read-only view."""
        shape = broadcast_shapes(getattr(x, "shape", ()), getattr(like, "shape", ()))
        return broadcast_view(x, shape) if xp is np else xp.broadcast_to(xp.asarray(x), shape)  # type: ignore[arg-type]


def broadcast_view(x: Any, shape: Shape) -> Any:
    """Return what `np.broadcast_to` does, read-only too, in a seventh of its time where the operand is contiguous.

    What is not contiguous, and small, is copied: that costs less than NumPy's iterator.
    """
    if type(x) in SCALAR_TYPES:
        x = np.asarray(x)
    extra = len(shape) - x.ndim
    if extra < 0 or (x.ndim and not x.nbytes):
        return np.broadcast_to(x, shape)
    if x.ndim and not x.flags.c_contiguous:
        if math.prod(shape) > SMALL:
            return np.broadcast_to(x, shape)
        out: Any = np.empty(shape, x.dtype)
        out[...] = x
        out.setflags(write=False)
        return out
    strides = [0] * extra
    for have, want, stride in zip(x.shape, shape[extra:], x.strides, strict=True):
        if have == want:
            strides.append(stride)
        elif have == 1:
            strides.append(0)
        else:
            return np.broadcast_to(x, shape)  # says what does not fit
    out = _ndarray(shape, x.dtype, x, 0, strides)
    out.setflags(write=False)
    return out


SMALL = 4096


def _aligned(shape: tuple[int | None, ...], target: tuple[int | None, ...]) -> list[tuple[int | None, int | None]]:
    """Pair the axes of a shape with the last axes of a longer one."""
    return list(zip(shape, target[len(target) - len(shape) :], strict=True))


# ------------------------------------------------------------------ the transpose of broadcasting


@attrs.frozen
class SumTo(Operator):
    """The sum over the axes along which a shape was broadcast: the transpose of `BroadcastTo`.

    An axis of length 1 is broadcast instead: where lengths are unknown before run time, either may be due.
    """

    shape: Shape

    def infer(self, x: Aval) -> Aval:
        """The parameter's shape."""
        _check_sum("SumTo", x, self.shape)
        return Aval(self.shape, x.dtype)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Sum, and drop the new axes."""
        return summed_to(xp, x, self.shape)


class SumLike(Parameterless):
    """The first operand summed to the shape of the second: the transpose of `BroadcastLike`."""

    def infer(self, x: Aval, like: Aval) -> Aval:
        """The second operand's shape."""
        _check_sum("SumLike", x, like.shape)
        return Aval(like.shape, x.dtype)

    def evaluate(self, xp: Any, x: Any, like: Any) -> Any:
        """Sum, and drop the new axes."""
        return summed_to(xp, x, tuple(getattr(like, "shape", ())))


def _check_sum(name: str, x: Aval, shape: tuple[int | None, ...]) -> None:
    short, long = sorted((shape, x.shape), key=len)
    if any(1 not in pair and None not in pair and pair[0] != pair[1] for pair in _aligned(short, long)):
        msg = f"{name}: shape {x.shape} is not the broadcast of {shape}"
        raise ShapeError(msg, aval=x)


def summed_to(xp: Any, x: Any, shape: Shape) -> Any:
    """Sum a raw array over the axes along which a shape was broadcast; an axis of length 1 is broadcast instead.

    >>> summed_to(np, np.ones((3, 2)), (1,))
    array([6.])
    """
    if type(x) in SCALAR_TYPES:
        x = xp.asarray(x)
    if x.shape == shape:
        return x
    extra, have = x.ndim - len(shape), x.shape
    axes = tuple([axis for axis in range(extra) if have[axis] != 1])  # no sum of one: 0 + -0 is 0
    axes += tuple([axis for axis, length in enumerate(shape, extra) if length == 1 and axis >= 0 and have[axis] != 1])
    keep = axes != tuple(range(extra))
    if axes:
        dtype = x.dtype
        x = _add(x, axes, native(dtype), None, keep) if xp is np else xp.sum(x, axis=axes, dtype=dtype, keepdims=keep)
    if keep and extra > 0:
        x = xp.reshape(x, x.shape[extra:])
    return x if x.shape == shape else xp.broadcast_to(x, shape)


# ------------------------------------------------------------------ casts


@attrs.frozen
class Astype(Operator):
    """A cast; from complex to real it takes the real part."""

    dtype: str

    def infer(self, x: Aval) -> Aval:
        """The parameter's dtype."""
        return Aval(x.shape, np.dtype(self.dtype))

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Copy into the dtype."""
        if xp is np:
            want = np.dtype(self.dtype)
            if type(x) in SCALAR_TYPES:
                x = np.asarray(x)[()]
            if x.dtype.kind == "c" and want.kind not in "cb":
                x = x.real
            return x.astype(want)
        dtype = getattr(xp, self.dtype)
        if xp.isdtype(x.dtype, "complex floating") and not xp.isdtype(dtype, ("complex floating", "bool")):
            x = xp.real(x)
        return xp.astype(x, dtype)


cast = interned(Astype)
make_sum_to = interned(SumTo)
make_broadcast_to = interned(BroadcastTo)
make_lead = interned(Lead)

linear(BroadcastTo, lambda op, t, x: sum_to_like(t, x))
linear(Lead, lambda op, t, x: sum_to_like(t, x))
linear(SumTo, lambda op, t, x: sum_to_like(t, x))
linear(BroadcastLike, lambda op, t, x, like: sum_to_like(t, x), linear_in=(0,))
linear(SumLike, lambda op, t, x, like: sum_to_like(t, x), linear_in=(0,))
linear(Astype, lambda op, t, x: t)  # brought to the dtype of x by what every linear rule does at its end


@jvp_rule(Astype)
def astype_jvp(op: Astype, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """A cast to integers or booleans has no derivative; any other is linear."""
    out = apply(op, primals[0])
    smooth = np.dtype(op.dtype).kind in "fc" and tangents[0] is not None
    return out, apply(op, tangents[0]) if smooth else None


# ------------------------------------------------------------------ functions


def broadcast_to(x: Any, shape: Any) -> Any:
    """Broadcast to a shape, as a read-only view.

    Raises `ShapeError` where the shapes do not fit.

    >>> broadcast_to(np.ones(2), (3, 2)).shape
    (3, 2)
    """
    several = isinstance(shape, tuple | list) or np.ndim(shape)  # of which a length may be a value
    return apply(make_broadcast_to(tuple(map(int, shape)) if several else (int(shape),)), x)


def astype(x: Any, dtype: Any, /, *, copy: bool = True) -> Any:
    """Cast to a dtype, always into a copy; complex to real takes the real part. The cotangent is cast back.

    Raises `DtypeError` for a dtype that is no number's.

    >>> astype(np.ones(2), "float32").dtype
    dtype('float32')
    """
    foreign = hasattr(dtype, "name") and not isinstance(dtype, np.dtype)
    want = np.dtype(dtype.name if foreign else dtype)
    if want.kind not in "biufc":
        msg = f"astype: values are numbers and booleans, got dtype {want}"
        raise DtypeError(msg, dtype=want)
    return apply(cast(want.name if want.isnative else want.str), x)


def in_floating(x: Any) -> Any:
    """Return integers and booleans in double precision, all else as it is.

    >>> in_floating(np.array([1, 2]))
    array([1., 2.])
    """
    return astype(x, np.float64) if aval_of(x).dtype.kind in "biu" else x


def broadcast_like(x: Any, like: Any) -> Any:
    """Broadcast to the shape of an aval, or of a value whose shape may be unknown.

    >>> broadcast_like(1.0, np.zeros(2))
    array([1., 1.])
    """
    if isinstance(like, Aval):
        if type(x) in HOST_TYPES and cursor.get() is BOTTOM and None not in like.shape:  # every gradient of a sum
            return broadcast_view(x, like.shape)  # type: ignore[arg-type]
        return apply(make_broadcast_to(like.shape), x)
    return apply(BroadcastLike(), x, like)


def sum_to_like(x: Any, like: Any) -> Any:
    """Sum over what was broadcast, to the shape of an aval, or of a value whose shape may be unknown.

    >>> sum_to_like(np.ones((3, 2)), np.zeros(2))
    array([3., 3.])
    """
    if isinstance(like, Aval):
        return apply(make_sum_to(like.shape), x)
    return apply(SumLike(), x, like)


def settle_shape(t: Any, like: Any) -> Any:
    """Bring a tangent or cotangent to the shape of its primal: sum what was broadcast, broadcast what is smaller."""
    if type(t) in SCALAR_TYPES and aval_of(like).shape == ():
        return t
    have, want = aval_of(t).shape, aval_of(like).shape
    if have == want and None not in have:
        return t
    if None in have or None in want:
        return sum_to_like(t, like)  # sums or broadcasts, as the lengths turn out
    if len(have) >= len(want) and all(w in (h, 1) for w, h in _aligned(want, have)):
        return sum_to_like(t, like)
    return broadcast_like(t, like)


set_settlers(settle_shape, astype, zeros_like)
