"""Random numbers as pure functions of a key: the same key always gives the same numbers.

1. A key is a plain array `uint64[2]`, the key of the generator Philox4x64-10; `key(seed)` is `[seed, 0]`. So it can be
   an argument, traced, batched, carried through a loop, and stored as any array.
2. Use a key once. `split` makes new ones of it, `fold_in` one for each number; a draw and a split of the same key share
   nothing, two draws of the same key do.
3. Draws are operators: a replay or a loop draws again from the keys that it is given, and a gradient takes them as
   constants. `vmap` over keys gives exactly what a loop over them gives, and every device gets the same numbers.
4. Numbers stay the same from version to version, up to rounding in the last digits of `normal`.

Source: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from xform import layers as _layers  # noqa: F401  (gives values their behaviour, where nothing else has loaded it)
from xform.core.aval import aval_of, broadcast_shapes
from xform.core.backend import SCALAR_TYPES
from xform.core.errors import DtypeError, OperandError, OperandTypeError, ShapeError
from xform.core.stack import apply
from xform.ops.arithmetic import add, mul, sub
from xform.ops.axes import axis_of
from xform.ops.broadcast import astype
from xform.ops.draws import FOLD_IN, make_integers, make_normal, make_shuffle, make_split, make_uniform
from xform.ops.gather import take, take_along_axis
from xform.ops.shapes import moveaxis, read_shape
from xform.ops.stacking import stack, unstack

__all__ = ["fold_in", "key", "normal", "permutation", "randint", "split", "uniform"]

Shape = tuple[int, ...]


def key(seed: Any) -> Any:
    """Return the key `uint64[2]` of a seed: an integer of 64 bits, which may be traced or batched.

    Raises `DtypeError` for what is no integer, `OperandError` for one beyond 64 bits.

    >>> from xform import random
    >>> random.key(42)
    array([42,  0], dtype=uint64)
    """
    if isinstance(seed, int) and not isinstance(seed, bool):
        if not -(2**63) <= seed < 2**64:
            msg = f"random.key: the seed must fit into 64 bits, got {seed}"
            raise OperandError(msg, value=seed)
        return np.array([seed % 2**64, 0], np.uint64)
    aval = aval_of(seed)
    if aval.dtype.kind not in "iu" or aval.shape != ():
        msg = f"random.key: the seed must be one integer, got {aval!r}"
        raise DtypeError(msg, value=seed)
    return stack([astype(seed, np.uint64), np.zeros((), np.uint64)])


def split(key: Any, num: Any = 2) -> Any:
    """Return `num` new keys, `uint64[num, 2]`; with a shape for `num`, keys in that shape.

    >>> from xform import random
    >>> first, second = random.split(random.key(0))
    >>> random.split(first, (3, 4)).shape
    (3, 4, 2)
    """
    return apply(make_split(shape_from(num, "split: num")), checked(key, "split"))


def fold_in(key: Any, data: Any) -> Any:
    """Return a new key of a key and an integer of 64 bits, such as the number of a step or a layer.

    >>> from xform import random
    >>> random.fold_in(random.key(0), 7).shape
    (2,)
    """
    return apply(FOLD_IN, checked(key, "fold_in"), data)


def uniform(key: Any, shape: Any = (), dtype: Any = float, minval: Any = 0.0, maxval: Any = 1.0) -> Any:
    """Draw floating numbers from `minval` up to, not including, `maxval`; these may be arrays that broadcast.

    The interval is half open up to rounding where it is not [0, 1). Differentiable by the bounds. Raises `DtypeError`
    for a dtype that is not real and floating.

    >>> from xform import random
    >>> random.uniform(random.key(0), (3,), np.float32).dtype
    dtype('float32')
    """
    lengths, name = shape_from(shape, "uniform: shape"), floating(dtype, "uniform", "f")
    out = apply(make_uniform(lengths, name), checked(key, "uniform"))
    if type(minval) in SCALAR_TYPES and type(maxval) in SCALAR_TYPES and (minval, maxval) == (0.0, 1.0):
        return out
    low, high = (in_shape(x, lengths, "uniform", label) for x, label in ((minval, "minval"), (maxval, "maxval")))
    low, high = (astype(x, name) for x in (low, high))  # a difference of Python numbers would be of 64 bits
    return add(low, mul(out, sub(high, low)))


def normal(key: Any, shape: Any = (), dtype: Any = float) -> Any:
    """Draw floating numbers of the normal distribution with mean 0 and variance 1.

    For a complex dtype real and imaginary part have variance 1/2 each. Raises `DtypeError` for another dtype.

    >>> from xform import random
    >>> random.normal(random.key(0), (2, 3)).shape
    (2, 3)
    """
    lengths, name = shape_from(shape, "normal: shape"), floating(dtype, "normal", "fc")
    if np.dtype(name).kind == "f":
        return apply(make_normal(lengths, name), checked(key, "normal"))
    part = "float32" if name == "complex64" else "float64"
    pair = mul(apply(make_normal((2, *lengths), part), checked(key, "normal")), 0.5**0.5)
    real, imaginary = unstack(pair)
    return add(real, mul(imaginary, 1j))


def randint(key: Any, shape: Any, minval: Any, maxval: Any, dtype: Any = int) -> Any:
    """Draw integers from `minval` up to, not including, `maxval`; these may be arrays that broadcast to the shape.

    Every integer is as likely as any, up to a factor of `1 + (maxval - minval) / 2**64`. Raises `DtypeError` for a
    dtype that is no integer, `OperandError` where `minval` is not below `maxval` or the dtype does not hold them.

    >>> from xform import random
    >>> random.randint(random.key(0), (5,), 0, 10).dtype
    dtype('int64')
    """
    lengths, name = shape_from(shape, "randint: shape"), np.dtype(dtype).name
    if np.dtype(name).kind not in "iu":
        msg = f"random.randint: dtype must be one of integers, got {name}"
        raise DtypeError(msg, dtype=dtype)
    bounds = [in_shape(x, lengths, "randint", label) for x, label in ((minval, "minval"), (maxval, "maxval"))]
    return apply(make_integers(lengths, name), checked(key, "randint"), *bounds)


def permutation(key: Any, x: Any, axis: int = 0, independent: bool = False) -> Any:
    """Return an array with its parts along an axis in a random order, every order as likely as any.

    An integer `x` stands for `arange(x)`. With `independent`, elements along the axis are shuffled for each place along
    the other axes by itself. Differentiable by `x`.

    >>> from xform import random
    >>> sorted(random.permutation(random.key(0), 4).tolist())
    [0, 1, 2, 3]
    """
    key = checked(key, "permutation")
    if isinstance(x, int | np.integer) and not isinstance(x, bool):
        return apply(make_shuffle(shape_from(x, "permutation: x")), key)
    shape = read_shape(x)
    axis = axis_of("permutation", axis, len(shape), x)
    if None in (shape if independent else shape[axis : axis + 1]):
        msg = f"random.permutation: the length of {x!r} along axis {axis} is not known before run time"
        raise ShapeError(msg, value=x)
    if not independent:
        return take(x, apply(make_shuffle((shape[axis],)), key), axis=axis)
    order = apply(make_shuffle((*shape[:axis], *shape[axis + 1 :], shape[axis])), key)
    return take_along_axis(x, moveaxis(order, -1, axis), axis)


# ------------------------------------------------------------------ arguments


def checked(key: Any, name: str) -> Any:
    """Return a key; raises where it is none, or more than one."""
    what = f"random.{name}"
    try:
        aval = aval_of(key)
    except OperandTypeError:
        msg = f"{what}: expected a key, got {type(key).__name__}: {key!r:.60}; make one with xf.random.key(seed)"
        raise OperandTypeError(msg, value=key) from None
    if aval.dtype != np.uint64 or not aval.shape or aval.shape[-1] not in (2, None):
        msg = f"{what}: a key is uint64[2], got {aval!r}; make one with xf.random.key(seed)"
        raise DtypeError(msg, value=key)
    if len(aval.shape) > 1:
        msg = f"{what}: takes one key, uint64[2], got {aval!r}; for many, xf.vmap a function of one"
        raise ShapeError(msg, value=key)
    return key


def shape_from(shape: Any, what: str) -> Shape:
    """Return a shape, given as an int or a sequence of ints; raises `ShapeError` for a negative length."""
    try:
        lengths = (operator.index(shape),)
    except TypeError:
        try:
            lengths = tuple([operator.index(length) for length in shape])  # type: ignore[assignment]
        except TypeError:
            msg = f"random.{what} must be an int or a tuple of ints, got {shape!r:.60}"
            raise OperandTypeError(msg, value=shape) from None
    if any(length < 0 for length in lengths):
        msg = f"random.{what} must not be negative, got {lengths}"
        raise ShapeError(msg, value=shape)
    return lengths


def floating(dtype: Any, name: str, kinds: str) -> str:
    """Return the name of a dtype that can be drawn; raises `DtypeError`."""
    found: np.dtype[Any] = np.dtype(dtype)
    if found.kind not in kinds or found.itemsize > (16 if found.kind == "c" else 8):
        allowed = "float16, float32, float64" + (", complex64, complex128" if "c" in kinds else "")
        msg = f"random.{name}: dtype must be one of {allowed}, got {found}"
        raise DtypeError(msg, dtype=dtype)
    return found.name


def in_shape(x: Any, shape: Shape, name: str, label: str) -> Any:
    """Return a bound; raises `ShapeError` where it does not broadcast to the shape."""
    if type(x) not in SCALAR_TYPES and broadcast_shapes(aval_of(x).shape, shape) != shape:
        msg = f"random.{name}: {label} has shape {aval_of(x).shape}, which does not broadcast to {shape}"
        raise ShapeError(msg, value=x)
    return x
