"""Products that are made of `matmul`, `tensordot` and `*`: dot, inner, outer, kron, cross, and their like."""

from __future__ import annotations

from typing import Any

import numpy as np

from xform.core.aval import shape_of
from xform.core.backend import SCALAR_TYPES
from xform.core.errors import ShapeError
from xform.ops.arithmetic import mul
from xform.ops.axes import ndim_of
from xform.ops.base import is_complex
from xform.ops.complexes import conj
from xform.ops.flipping import roll
from xform.ops.products import contract, matmul
from xform.ops.shapes import expand_dims, moveaxis, read_shape, reshape, squeeze

__all__ = ["cross", "dot", "inner", "kron", "matvec", "multiply_outer", "outer", "vdot", "vecdot", "vecmat"]


def dot(a: Any, b: Any) -> Any:
    """Dot product with NumPy's meaning: `*` with a scalar, `@` up to 2-D, else last axis with last but one.

    >>> import numpy as np
    >>> dot(np.ones((2, 3)), np.ones((4, 3, 5))).shape
    (2, 4, 5)
    """
    left, right = ndim_of(a), ndim_of(b)
    if left == 0 or right == 0:
        return mul(strong(a), strong(b))
    if right == 1 or (left < 3 and right < 3):
        return matmul(a, b)
    return contract(a, b, (left - 1,), (right - 2,))


def inner(a: Any, b: Any) -> Any:
    """Sum products over the last axes.

    >>> import numpy as np
    >>> inner(np.ones((2, 3)), np.ones((4, 3))).shape
    (2, 4)
    """
    left, right = ndim_of(a), ndim_of(b)
    if left == 0 or right == 0:
        return mul(strong(a), strong(b))
    if left == 1 and right == 1:
        return matmul(a, b)
    return contract(a, b, (left - 1,), (right - 1,))


def strong(x: Any) -> Any:
    """Return a Python number as NumPy's array of it, which is of 64 bits: products take their operands as arrays."""
    return np.asarray(x) if type(x) in SCALAR_TYPES else x


def vdot(a: Any, b: Any) -> Any:
    """Dot product of the flattened operands, the first one conjugated.

    >>> import numpy as np
    >>> complex(vdot(np.array([1j, 2.0]), np.array([1j, 1.0])))
    (3+0j)
    """
    return matmul(conjugated(reshape(a, (-1,))), reshape(b, (-1,)))


def conjugated(x: Any) -> Any:
    """Conjugate complex numbers; of booleans NumPy's function makes int8."""
    return conj(x) if is_complex(x) else x


def outer(a: Any, b: Any) -> Any:
    """Products of every element of `a` with every element of `b`, both flattened: `(a.size, b.size)`.

    >>> import numpy as np
    >>> outer(np.arange(2.0), np.arange(3.0)).shape
    (2, 3)
    """
    return mul(reshape(a, (-1, 1)), reshape(b, (1, -1)))


def kron(a: Any, b: Any) -> Any:
    """Kronecker product: blocks of `b` scaled by the elements of `a`; the shorter shape gets leading ones.

    >>> import numpy as np
    >>> kron(np.ones((2, 3)), np.ones((4, 5))).shape
    (8, 15)
    """
    ndim = max(ndim_of(a), ndim_of(b))
    a = expand_dims(a, tuple(range(ndim - ndim_of(a)))) if ndim_of(a) < ndim else a
    b = expand_dims(b, tuple(range(ndim - ndim_of(b)))) if ndim_of(b) < ndim else b
    lengths = [-1 if n is None or m is None else n * m for n, m in zip(read_shape(a), read_shape(b), strict=True)]
    spread = mul(expand_dims(a, tuple(range(1, 2 * ndim, 2))), expand_dims(b, tuple(range(0, 2 * ndim, 2))))
    return reshape(spread, tuple(lengths))


def vecdot(x: Any, y: Any, /, *, axis: int = -1) -> Any:
    """Dot products along one axis, the first operand conjugated; the other axes broadcast.

    >>> import numpy as np
    >>> vecdot(np.ones((5, 3)), np.ones(3))
    array([3., 3., 3., 3., 3.])
    """
    if axis != -1:
        x, y = moveaxis(x, axis, -1), moveaxis(y, axis, -1)
    return squeeze(vecmat(x, expand_dims(y, -1)), -1)


def matvec(x: Any, y: Any, /) -> Any:
    """Matrices times vectors: `(..., n, k)` and `(..., k)` give `(..., n)`.

    >>> import numpy as np
    >>> matvec(np.ones((5, 2, 3)), np.ones((5, 3))).shape
    (5, 2)
    """
    return squeeze(matmul(x, expand_dims(y, -1)), -1)


def vecmat(x: Any, y: Any, /) -> Any:
    """Vectors, conjugated, times matrices: `(..., k)` and `(..., k, m)` give `(..., m)`.

    >>> import numpy as np
    >>> vecmat(np.ones((5, 3)), np.ones((3, 2))).shape
    (5, 2)
    """
    return squeeze(matmul(conjugated(expand_dims(x, -2)), y), -2)


def multiply_outer(a: Any, b: Any) -> Any:
    """Products of every element of `a` with every element of `b`, of shape `a.shape + b.shape`.

    >>> import numpy as np
    >>> multiply_outer(np.ones((2, 3)), np.ones(4)).shape
    (2, 3, 4)
    """
    ndim = ndim_of(b)
    return mul(expand_dims(a, tuple(range(-ndim, 0))) if ndim else a, b)


def cross(  # noqa: PLR0917  (NumPy's signature)
    a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> Any:
    """Cross products of vectors of length 3 along an axis; the other axes broadcast.

    Raises `ShapeError` for vectors of another length.

    >>> import numpy as np
    >>> cross(np.array([1.0, 0.0, 0.0]), np.array([0.0, 1.0, 0.0]))
    array([0., 0., 1.])
    """
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = moveaxis(a, axisa, -1), moveaxis(b, axisb, -1)
    for position, each in enumerate((a, b)):
        if shape_of(each)[-1] not in (3, None):
            msg = f"cross: operand {position} has vectors of length {shape_of(each)[-1]}; they must have length 3"
            raise ShapeError(msg, argument=position)
    out = mul(roll(a, -1, -1), roll(b, -2, -1)) - mul(roll(a, -2, -1), roll(b, -1, -1))
    return moveaxis(out, -1, axisc)
