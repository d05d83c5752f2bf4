"""Linear algebra over the last two axes: solve, inv, and chains of products.

Axes before the last two are batch axes. Derivatives of complex functions are the plain transpose, without
conjugation. A singular matrix raises `numpy.linalg.LinAlgError`, as in NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from xform.core.aval import Aval, aval_of, broadcast_shapes, shape_of
from xform.core.errors import DtypeError, OperandError, ShapeError
from xform.core.operator import Operator
from xform.core.rules import batch_rule, jvp_rule, like_of, settle, vjp_rule
from xform.core.stack import apply
from xform.ops.axes import ndim_of
from xform.ops.base import Parameterless
from xform.ops.create import ones_like
from xform.ops.products import batched_matrix, matmul
from xform.ops.shapes import expand_dims, front, matrix_transpose, moveaxis, squeeze
from xform.ops.triangular import tril, triu

__all__ = ["Inv", "Solve", "inv", "matrix_power", "multi_dot", "solve"]


# ------------------------------------------------------------------ types


def square_shape(op: Operator, aval: Aval) -> tuple[int | None, ...]:
    """Return the shape of an operand that must be a square matrix, or a stack of them; raises `ShapeError`."""
    shape = aval.shape
    if len(shape) < 2 or (shape[-1] != shape[-2] and None not in shape[-2:]):
        msg = f"{op!r}: an operand of shape {shape} is no square matrix, nor a stack of them"
        raise ShapeError(msg, op=op, aval=aval)
    return shape


def linalg_dtype(op: Operator, *avals: Aval) -> np.dtype[Any]:
    """Return the dtype that LAPACK computes in: integers count as float64; raises `DtypeError` for a half precision."""
    dtypes = [aval.dtype if aval.dtype.kind in "fc" else np.dtype(np.float64) for aval in avals]
    for dtype in dtypes:
        if dtype.char not in "fdFD":
            msg = f"{op!r}: dtype {dtype} has no linear algebra; cast with x.astype('float32' or 'float64')"
            raise DtypeError(msg, op=op, avals=avals)
    return np.result_type(*dtypes)


def stack_batch(op: Operator, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> tuple[Any, Any]:
    """Batch rule of an operator on stacks of matrices, of one operand: one more batch axis, in front."""
    out = apply(op, front(values[0], axes[0]))
    return out, (0,) * len(out) if op.multiple_outputs else 0


# ------------------------------------------------------------------ solve


class Solve(Parameterless):
    """The solution of `a @ x = b`, where `b` is a vector (1-D) or a matrix."""

    def infer(self, a: Aval, b: Aval) -> Aval:
        """The shape of `b`, batch axes broadcast."""
        shape = square_shape(self, a)
        vector = b.ndim == 1
        rows = b.shape[0 if vector else -2] if b.shape else 0
        if rows != shape[-1] and None not in (rows, shape[-1]):
            msg = f"Solve: a matrix of shape {shape} and a right side of shape {b.shape} do not fit"
            raise ShapeError(msg, op=self, avals=(a, b))
        if vector:
            return Aval(shape[:-1], linalg_dtype(self, a, b))
        return Aval((*broadcast_shapes(shape[:-2], b.shape[:-2]), shape[-1], b.shape[-1]), linalg_dtype(self, a, b))

    def evaluate(self, xp: Any, a: Any, b: Any) -> Any:
        """Compute on raw arrays."""
        return xp.linalg.solve(a, b)


SOLVE = Solve()


def solve(a: Any, b: Any) -> Any:
    """Solve `a @ x = b`: `(..., n, n)` with `(n,)` gives `(..., n)`, with `(..., n, m)` gives `(..., n, m)`.

    Raises `numpy.linalg.LinAlgError` for a singular matrix, `ShapeError` where the operands do not fit.

    >>> solve(np.array([[2.0, 0.0], [0.0, 4.0]]), np.array([2.0, 2.0]))
    array([1. , 0.5])
    """
    return apply(SOLVE, a, b)


@vjp_rule(Solve)
def solve_vjp(op: Solve, needed: tuple[bool, ...], a: Any, b: Any) -> tuple[Any, Any]:
    """The cotangent of `b` solves with the transpose; that of `a` is its outer product with the solution."""
    out = apply(op, a, b)
    vector = ndim_of(b) == 1
    like_a, like_b, kept = like_of(a), like_of(b), out if needed[0] else None

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        left = solve(matrix_transpose(a), expand_dims(cotangent, -1) if vector else cotangent)
        of_a = of_b = None
        if needed[0]:
            of_a = settle(-matmul(left, expand_dims(kept, -2) if vector else matrix_transpose(kept)), like_a)
        if needed[1]:
            of_b = settle(squeeze(left, -1) if vector else left, like_b)
        return of_a, of_b

    return out, pullback


@jvp_rule(Solve)
def solve_jvp(op: Solve, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """`a dx = db - da x`."""
    (a, b), (tangent_a, tangent_b) = primals, tangents
    out = apply(op, a, b)
    vector = ndim_of(b) == 1
    side = None if tangent_b is None else expand_dims(tangent_b, -1) if vector else tangent_b
    if tangent_a is not None:
        moved = matmul(tangent_a, expand_dims(out, -1) if vector else out)
        side = -moved if side is None else side - moved
    if side is None:
        return out, None
    tangent = solve(a, side)
    return out, squeeze(tangent, -1) if vector else tangent


@batch_rule(Solve)
def solve_batch(op: Solve, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> tuple[Any, int]:
    """Batch: one more batch axis; many vectors for one matrix are the columns of one right side."""
    (a, b), (at_a, at_b) = values, axes
    vector = ndim_of(b) - (at_b is not None) == 1
    if vector and at_b is None:
        return solve(front(a, at_a), b), 0
    if vector and at_a is None:
        return solve(a, moveaxis(b, at_b, 1)), ndim_of(a) - 1
    ndim = max(ndim_of(a) - (at_a is not None), ndim_of(b) - (at_b is not None), 2)
    out = solve(batched_matrix(a, at_a, ndim, None), batched_matrix(b, at_b, ndim, -1 if vector else None))
    return squeeze(out, -1) if vector else out, 0


# ------------------------------------------------------------------ inv


class Inv(Parameterless):
    """The inverse of a square matrix."""

    def infer(self, a: Aval) -> Aval:
        """The operand's shape."""
        return Aval(square_shape(self, a), linalg_dtype(self, a))

    def evaluate(self, xp: Any, a: Any) -> Any:
        """Compute on raw arrays."""
        return xp.linalg.inv(a)


INV = Inv()
batch_rule(Inv)(stack_batch)


def inv(a: Any) -> Any:
    """Invert square matrices; raises `numpy.linalg.LinAlgError` for a singular one.

    >>> inv(np.array([[2.0, 0.0], [0.0, 4.0]]))
    array([[0.5 , 0.  ],
           [0.  , 0.25]])
    """
    return apply(INV, a)


@vjp_rule(Inv)
def inv_vjp(op: Inv, needed: tuple[bool, ...], a: Any) -> tuple[Any, Any]:
    """`-out.T @ t @ out.T`."""
    out = apply(op, a)

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        turned = matrix_transpose(out)
        return (-matmul(matmul(turned, cotangent), turned),)

    return out, pullback


@jvp_rule(Inv)
def inv_jvp(op: Inv, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """`-out @ t @ out`."""
    out = apply(op, *primals)
    return out, None if tangents[0] is None else -matmul(matmul(out, tangents[0]), out)


# ------------------------------------------------------------------ made of products


def matrix_power(a: Any, n: Any) -> Any:
    """Raise square matrices to an integer power; a negative one inverts first, 0 gives the identity.

    >>> matrix_power(np.array([[1.0, 1.0], [0.0, 1.0]]), 3)
    array([[1., 3.],
           [0., 1.]])
    """
    if not isinstance(n, int | np.integer):
        msg = f"matrix_power: the exponent must be an integer, got {type(n).__name__}"
        raise DtypeError(msg, argument="n")
    square_shape(INV, aval_of(a))
    if n == 0:
        return tril(triu(ones_like(a)))
    base = inv(a) if n < 0 else a
    n, out = abs(int(n)), None
    while n:
        n, odd = divmod(n, 2)
        if odd:
            out = base if out is None else matmul(out, base)
        if n:
            base = matmul(base, base)
    return out


def multi_dot(arrays: Any) -> Any:
    """Multiply a sequence of matrices in the order that takes the fewest products; the ends may be vectors.

    >>> multi_dot([np.ones((2, 30)), np.ones((30, 3)), np.ones(3)]).shape
    (2,)
    """
    arrays = list(arrays)
    if len(arrays) < 2:
        msg = f"multi_dot: expected two arrays or more, got {len(arrays)}"
        raise OperandError(msg)
    head, tail = ndim_of(arrays[0]) == 1, ndim_of(arrays[-1]) == 1
    if head:
        arrays[0] = expand_dims(arrays[0], 0)
    if tail:
        arrays[-1] = expand_dims(arrays[-1], 1)
    for position, each in enumerate(arrays):
        if ndim_of(each) != 2:
            msg = f"multi_dot: operand {position} has shape {shape_of(each)}; only the ends may be vectors"
            raise ShapeError(msg, argument=position)
    out = _chained(arrays)
    gone = (0,) * head + (1,) * tail
    return squeeze(out, gone) if gone else out


def _chained(arrays: list[Any]) -> Any:
    """Multiply a chain of matrices in the best order (dynamic programming over where to split)."""
    lengths = [shape_of(x)[0] for x in arrays] + [shape_of(arrays[-1])[1]]
    if None in lengths:
        out = arrays[0]
        for each in arrays[1:]:
            out = matmul(out, each)
        return out
    best: dict[tuple[int, int], tuple[int, int]] = {(i, i + 1): (0, i) for i in range(len(arrays))}
    for span in range(2, len(arrays) + 1):
        for i in range(len(arrays) - span + 1):
            j = i + span
            best[i, j] = min(
                (best[i, k][0] + best[k, j][0] + lengths[i] * lengths[k] * lengths[j], k)  # type: ignore[operator]
                for k in range(i + 1, j)
            )

    def product(i: int, j: int) -> Any:
        middle = best[i, j][1]
        return arrays[i] if j == i + 1 else matmul(product(i, middle), product(middle, j))

    return product(0, len(arrays))
