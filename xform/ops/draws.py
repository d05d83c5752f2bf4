"""Draws of random numbers: pure functions of a key, `uint64[2]`; axes in front of a key's last are batch axes.

Other libraries than NumPy are given the host's draws: the same key gives the same numbers on every device.
"""

from __future__ import annotations

import math
from typing import Any

import attrs
import numpy as np

from xform.core.aval import Aval, aval_of, broadcast_shapes
from xform.core.backend import device_of
from xform.core.devices import move, to_host
from xform.core.errors import DtypeError, OperandError, ShapeError
from xform.core.operator import Operator, interned
from xform.core.rules import batch_rule
from xform.core.stack import apply
from xform.ops.base import constant
from xform.ops.batching import align
from xform.ops.philox import DRAW, FOLD, SPLIT, words
from xform.ops.shapes import front, lanes

__all__ = ["FoldIn", "Integers", "Normal", "Shuffle", "SplitKey", "Uniform"]

Shape = tuple[int, ...]
Array = np.ndarray[Any, Any]
Batched = tuple[Any, int]


def lead_of(op: Operator, key: Aval) -> tuple[int | None, ...]:
    """Return the batch axes of a key; raises `ShapeError` or `DtypeError` where it is none."""
    if key.dtype != np.uint64:
        msg = f"{op!r}: a key has dtype uint64, got {key!r}; make one with xf.random.key(seed)"
        raise DtypeError(msg, op=op, aval=key)
    if not key.shape or key.shape[-1] not in (2, None):
        msg = f"{op!r}: a key has two words, got {key!r}; make one with xf.random.key(seed)"
        raise ShapeError(msg, op=op, aval=key)
    return key.shape[:-1]


def require_integers(op: Operator, *operands: Any) -> None:
    """Raise `DtypeError` for an operand that holds no integers; Python's own may be beyond 64 bits."""
    for operand in operands:
        if operand.dtype.kind not in "iuO":
            msg = f"{op!r}: expected integers, got {operand.dtype}; cast with x.astype(int)"
            raise DtypeError(msg, op=op, value=operand)


class Draw(Operator):
    """An operator whose first operand is a key; `draw` computes it on the host, from keys in rows."""

    __slots__ = ()

    def evaluate(self, xp: Any, key: Any, *others: Any) -> Any:
        """Draw on the host, and bring the result to where the key is."""
        host = to_host(key)
        lead = lead_of(self, aval_of(host))
        rows = np.ascontiguousarray(host.reshape(math.prod(lead), 2))  # type: ignore[arg-type]
        out = self.draw(rows, lead, *map(to_host, others))
        return out if xp is np else move(out, device_of(key))

    def draw(self, keys: Array, lead: Any, *others: Any) -> Array:
        """Return the draws of keys in rows, in the shape `(*lead, ...)`."""
        raise NotImplementedError


@attrs.frozen
class SplitKey(Draw):
    """New keys from one, in an array of a shape; none of them says anything of another."""

    shape: Shape

    def infer(self, key: Aval) -> Aval:
        """One more key for each element of the shape."""
        return Aval((*lead_of(self, key), *self.shape, 2), key.dtype)

    def draw(self, keys: Array, lead: Any, *others: Any) -> Array:
        """Take two words of the stream for splitting for each new key."""
        return words(keys, 2 * math.prod(self.shape), SPLIT).reshape((*lead, *self.shape, 2))


@attrs.frozen
class FoldIn(Draw):
    """A new key from a key and an integer."""

    def infer(self, key: Aval, data: Aval) -> Aval:
        """A key."""
        require_integers(self, data)
        return Aval((*broadcast_shapes(lead_of(self, key), data.shape), 2), key.dtype)

    def draw(self, keys: Array, lead: Any, *others: Any) -> Array:
        """Take the first two words of the stream for this integer."""
        (data,) = others
        require_integers(self, data)
        shape = np.broadcast_shapes(lead, data.shape)
        rows = np.ascontiguousarray(np.broadcast_to(keys.reshape((*lead, 2)), (*shape, 2)).reshape(-1, 2))
        return words(rows, 2, FOLD, np.broadcast_to(in_words(data), shape).reshape(-1)).reshape((*shape, 2))


@attrs.frozen
class Uniform(Draw):
    """Floating numbers in [0, 1), all multiples of the dtype's precision alike."""

    shape: Shape
    dtype: str

    def infer(self, key: Aval) -> Aval:
        """The shape, for each key."""
        return Aval((*lead_of(self, key), *self.shape), np.dtype(self.dtype))

    def draw(self, keys: Array, lead: Any, *others: Any) -> Array:
        """Scale words."""
        found = uniforms(keys, math.prod(self.shape), np.dtype(self.dtype))
        return found.reshape((*lead, *self.shape))


@attrs.frozen
class Normal(Draw):
    """Floating numbers of the normal distribution with mean 0 and variance 1."""

    shape: Shape
    dtype: str

    def infer(self, key: Aval) -> Aval:
        """The shape, for each key."""
        return Aval((*lead_of(self, key), *self.shape), np.dtype(self.dtype))

    def draw(self, keys: Array, lead: Any, *others: Any) -> Array:
        """Transform pairs of uniform numbers."""
        dtype = np.dtype(self.dtype)
        found = normals(keys, math.prod(self.shape), np.dtype(np.float32) if dtype.itemsize < 4 else dtype)
        return found.reshape((*lead, *self.shape)).astype(dtype, copy=False)


@attrs.frozen
class Integers(Draw):
    """Integers from `low` up to, not including, `high`, which broadcast with the shape.

    Probabilities differ by less than `(high - low) / 2**64` of themselves.
    """

    shape: Shape
    dtype: str

    def infer(self, key: Aval, low: Aval, high: Aval) -> Aval:
        """The shape, for each key."""
        require_integers(self, low, high)
        whole = (*lead_of(self, key), *self.shape)
        return Aval(broadcast_shapes(whole, low.shape, high.shape), np.dtype(self.dtype))

    def draw(self, keys: Array, lead: Any, *others: Any) -> Array:
        """Reduce words modulo the number of integers."""
        low, high = others
        require_integers(self, low, high)
        limits = np.iinfo(self.dtype)
        if np.any(low >= high) or np.any(low < limits.min) or np.any(high - 1 > limits.max):
            msg = f"{self!r}: bounds must hold low < high and lie in the range of {self.dtype}, got {low} and {high}"
            raise OperandError(msg, op=self)
        found = words(keys, math.prod(self.shape), DRAW).reshape((*lead, *self.shape))
        start = in_words(low)
        span = in_words(high) - start  # 0 for all integers of 64 bits
        found = np.where(span == 0, found, found % np.maximum(span, np.uint64(1)))
        return (found + start).astype(self.dtype)


@attrs.frozen
class Shuffle(Draw):
    """Random orders: permutations of `0, 1, ..., n - 1` along the last axis of the shape, each as likely as any."""

    shape: Shape

    def infer(self, key: Aval) -> Aval:
        """The shape, for each key."""
        return Aval((*lead_of(self, key), *self.shape), np.dtype(np.int64))

    def draw(self, keys: Array, lead: Any, *others: Any) -> Array:
        """Sort random words: two are equal once in `2**64`."""
        found = words(keys, math.prod(self.shape), DRAW).reshape((*lead, *self.shape))
        return np.argsort(found, axis=-1, kind="stable").astype(np.int64, copy=False)


make_split, make_uniform, make_normal = interned(SplitKey), interned(Uniform), interned(Normal)
make_integers, make_shuffle = interned(Integers), interned(Shuffle)
FOLD_IN = FoldIn()

constant(SplitKey, FoldIn, Uniform, Normal, Integers, Shuffle, why="a key is no number that could vary smoothly")


@batch_rule(SplitKey, Uniform, Normal, Shuffle)
def draw_batch(op: Draw, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> Batched:
    """One more batch axis in front of the keys."""
    return apply(op, front(values[0], axes[0])), 0


@batch_rule(FoldIn)
def fold_in_batch(op: FoldIn, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> Batched:
    """One more batch axis in front of keys and integers."""
    return apply(op, *[lanes(size, value, axis) for value, axis in zip(values, axes, strict=True)]), 0


@batch_rule(Integers)
def integers_batch(op: Integers, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> Batched:
    """One more batch axis in front of the keys; bounds broadcast with the draws behind it."""
    (key, *bounds), (at, *places) = values, axes
    ndim = len(aval_of(key).shape) - (at is not None) - 1 + len(op.shape)
    key = key if at is None else front(key, at)
    placed = [x if axis is None else align(x, axis, ndim) for x, axis in zip(bounds, places, strict=True)]
    return apply(op, key, *placed), 0


# ------------------------------------------------------------------ numbers


def in_words(x: Array) -> Array:
    """Return integers modulo `2**64`; Python's own may be beyond 64 bits.

    >>> in_words(np.array([-1]))
    array([18446744073709551615], dtype=uint64)
    """
    return np.asarray(x % 2**64, np.uint64) if x.dtype == object else x.astype(np.uint64)


def uniforms(keys: Array, count: int, dtype: np.dtype[Any]) -> Array:
    """Return numbers in [0, 1), `count` for each key: the upper bits of words, or of half words."""
    width = 64 if dtype.itemsize == 8 else 32
    raw = words(keys, -(-count * width // 64), DRAW)
    if width == 32:
        raw = raw.astype("<u8", copy=False).view("<u4")[:, :count]
    digits = np.finfo(dtype).nmant + 1
    found: Array = (raw >> raw.dtype.type(width - digits)).astype(dtype)
    found *= dtype.type(2.0**-digits)
    return found


def normals(keys: Array, count: int, dtype: np.dtype[Any]) -> Array:
    """Return normal numbers, `count` for each key.

    Source: G. Box and M. Muller, "A note on the generation of random normal deviates", 1958.
    """
    half = -(-count // 2)
    drawn = uniforms(keys, 2 * half, dtype)
    # contiguous: NumPy's functions of strided arrays may round otherwise, and a batch is to equal a loop
    radius = np.sqrt(-2 * np.log1p(-np.ascontiguousarray(drawn[:, :half])))
    angle = 2 * np.pi * np.ascontiguousarray(drawn[:, half:])
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)[:, :count]
