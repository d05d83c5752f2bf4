"""Factorizations of any matrices in the last two axes: svd and qr, and the pseudo-inverse.

1. Where singular values coincide, their vectors have no derivative: it is NaN, but where nothing uses them. So have the
   vectors of the longer side where one is 0. A function of the values alone has the right gradient.
2. The textbook formulas in the rules are for conjugated cotangents, hence `conjugated` at both ends.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import attrs

from xform.core.aval import Aval, shape_of
from xform.core.errors import OperandError, ShapeError
from xform.core.operator import Operator
from xform.core.rules import batch_rule, jvp_rule, vjp_rule
from xform.core.stack import apply
from xform.ops.base import Parameterless, is_complex
from xform.ops.complexes import imag, real, real_dtype
from xform.ops.create import zeros_like
from xform.ops.einsum import make_einsum
from xform.ops.factorizations import adjoint, conjugated, over, over_gaps, product
from xform.ops.indexing import getitem
from xform.ops.linalg import linalg_dtype, solve, stack_batch
from xform.ops.products import matmul
from xform.ops.shapes import expand_dims, matrix_transpose, read_shape
from xform.ops.stacking import concatenate
from xform.ops.triangular import diagonal, tril

__all__ = ["Pinv", "QRResult", "Qr", "SVDResult", "Svd", "pinv", "qr", "svd", "svdvals"]


class SVDResult(NamedTuple):
    """What `svd` returns: `a = (U * S[..., None, :]) @ Vh`."""

    U: Any
    S: Any
    Vh: Any


class Svd(Parameterless):
    """The singular value decomposition, reduced: `u` and `vh` have as many columns and rows as there are values."""

    multiple_outputs = True
    only_composed = True
    fills_zeros = False  # what does not use the vectors has a derivative where they have none

    def infer(self, a: Aval) -> tuple[Aval, Aval, Aval]:
        """The shorter of the last two axes is the number of singular values."""
        (*batch, n, m), dtype = matrix_shape(self, a), linalg_dtype(self, a)
        k = None if n is None or m is None else min(n, m)
        return Aval((*batch, n, k), dtype), Aval((*batch, k), real_dtype(dtype)), Aval((*batch, k, m), dtype)

    def evaluate(self, xp: Any, a: Any) -> Any:
        """Compute on raw arrays."""
        return tuple(xp.linalg.svd(a, full_matrices=False))


batch_rule(Svd)(stack_batch)


def matrix_shape(op: Operator, aval: Aval) -> tuple[int | None, ...]:
    """Return the shape of an operand that must be a matrix, or a stack of them; raises `ShapeError`."""
    if aval.ndim < 2:
        msg = f"{op!r}: an operand of shape {aval.shape} is no matrix, nor a stack of them"
        raise ShapeError(msg, op=op, aval=aval)
    return aval.shape


def svd(a: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False) -> Any:
    """Singular value decomposition, reduced: `U (..., n, k)`, `S (..., k)` descending, `Vh (..., k, m)`.

    Write `full_matrices=False`: the further columns of the full one have no derivative, so it is refused for matrices
    that are not square. Singular values and vectors that belong to distinct values are differentiable; vectors of
    coinciding ones have NaN as their derivative, where it is used.

    >>> import numpy as np
    >>> svd(np.diag([3.0, 4.0]), full_matrices=False).S
    array([4., 3.])
    """
    if not compute_uv:
        return svdvals(a)
    shape = shape_of(a)
    if full_matrices and None in shape[-2:]:
        shape = read_shape(a)
    if full_matrices and shape[-2:-1] != shape[-1:]:
        msg = f"svd: full_matrices=True of shape {shape} has columns without a derivative; write full_matrices=False"
        raise OperandError(msg, argument="full_matrices")
    return SVDResult(*apply(Svd(), a))


def svdvals(a: Any, /) -> Any:
    """Singular values, descending.

    >>> import numpy as np
    >>> svdvals(np.diag([3.0, -4.0]))
    array([4., 3.])
    """
    return apply(Svd(), a)[1]


def reciprocal(s: Any) -> Any:
    """Return `1 / s`, 0 where `s` is 0."""
    return (s != 0) / (s + (s == 0))


def beside(u: Any, x: Any, row: Any) -> Any:
    """Return the part of the columns of `x` that is orthogonal to those of `u`, over the values; NaN where one is 0.

    Where `u` is square there is no such part.
    """
    n, k = shape_of(u)[-2:]
    if n is not None and n == k:
        return zeros_like(x)
    return over(x - matmul(u, matmul(adjoint(u), x)), row)


@jvp_rule(Svd)
def svd_jvp(op: Svd, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """In the frame of the vectors, the diagonal moves the values, the rest turns the vectors."""
    (a,), (tangent,) = primals, tangents
    u, s, vh = apply(op, a)
    if tangent is None:
        return (u, s, vh), (None, None, None)
    v, row, column = adjoint(vh), expand_dims(s, -2), expand_dims(s, -1)
    seen = product(adjoint(u), tangent, v)
    moved, inverse = diagonal(seen, axis1=-2, axis2=-1), reciprocal(row)
    turn_u = over_gaps(s * s, seen * row + column * adjoint(seen))
    turn_v = over_gaps(s * s, column * seen + adjoint(seen) * row)
    of_u = matmul(u, turn_u) + beside(u, matmul(tangent, v), row)
    of_v = matmul(v, turn_v) + beside(v, matmul(adjoint(tangent), u), row)
    if is_complex(a):  # a phase is free; it goes to u
        of_u = of_u + u * (expand_dims(1j * imag(moved), -2) * inverse)
        moved = real(moved)
    return (u, s, vh), (of_u, moved, adjoint(of_v))


@vjp_rule(Svd)
def svd_vjp(op: Svd, needed: tuple[bool, ...], a: Any) -> tuple[Any, Any]:
    """The transpose of the forward rule, part by part."""
    u, s, vh = apply(op, a)

    def pullback(cotangents: Any) -> tuple[Any, ...]:
        of_u, of_s, of_vh = cotangents
        parts = []
        if of_s is not None:
            parts.append(matmul(u * expand_dims(of_s, -2), vh))
        if of_u is not None:
            parts.append(left_part(u, s, vh, conjugated(of_u)))
        if of_vh is not None:  # the adjoint of a is decomposed by vh and u, changed over
            parts.append(adjoint(left_part(adjoint(vh), s, adjoint(u), adjoint(conjugated(of_vh)), phase=False)))
        total = None
        for part in parts:
            total = part if total is None else total + part
        return (None if total is None else conjugated(total),)

    return (u, s, vh), pullback


def left_part(u: Any, s: Any, vh: Any, t: Any, *, phase: bool = True) -> Any:
    """Return what a cotangent of the left vectors gives to the matrix."""
    row = expand_dims(s, -2)
    seen = matmul(adjoint(u), t)
    turned = over_gaps(s * s, seen)
    within = (turned + adjoint(turned)) * row
    if phase and is_complex(u):
        within = within + diagonal_matrix(1j * imag(diagonal(seen, axis1=-2, axis2=-1)) * reciprocal(s))
    return matmul(matmul(u, within) + beside(u, t, row), vh)


def diagonal_matrix(x: Any) -> Any:
    """Return matrices with these diagonals."""
    letters = "abcdefghijklmnopqrstuvwxyz"[: len(shape_of(x))]
    return apply(make_einsum(f"{letters}->{letters}{letters[-1]}"), x)


# ------------------------------------------------------------------ qr


class QRResult(NamedTuple):
    """What `qr` returns: orthonormal columns and an upper triangle, `a = Q @ R`."""

    Q: Any
    R: Any


class Qr(Parameterless):
    """The reduced QR decomposition of a matrix with at least as many rows as columns."""

    multiple_outputs = True
    only_composed = True

    def infer(self, a: Aval) -> tuple[Aval, Aval]:
        """The operand's shape, and a square."""
        (*batch, n, m), dtype = matrix_shape(self, a), linalg_dtype(self, a)
        if n is not None and m is not None and n < m:
            msg = f"{self!r}: shape {a.shape} has fewer rows than columns; xform.numpy.linalg.qr splits it"
            raise ShapeError(msg, op=self, aval=a)
        return Aval((*batch, n, m), dtype), Aval((*batch, m, m), dtype)

    def evaluate(self, xp: Any, a: Any) -> Any:
        """Compute on raw arrays."""
        return tuple(xp.linalg.qr(a, mode="reduced"))


batch_rule(Qr)(stack_batch)


def qr(a: Any, mode: str = "reduced") -> Any:
    """QR decomposition: `Q (..., n, k)` with orthonormal columns and the upper triangle `R (..., k, m)`.

    `mode` is "reduced", or "r" for the triangle alone. Derivatives need the first `k` columns to be independent.

    >>> import numpy as np
    >>> qr(np.array([[0.0, 2.0], [1.0, 0.0]])).R.round(9)
    array([[-1.,  0.],
           [ 0., -2.]])
    """
    if mode not in ("reduced", "r"):
        msg = f'qr: mode {mode!r} has no derivative; use "reduced" or "r"'
        raise OperandError(msg, argument="mode")
    shape = shape_of(a)
    if len(shape) > 1 and None not in shape[-2:] and shape[-2] < shape[-1]:  # type: ignore[operator]
        q, square = apply(Qr(), getitem(a, (Ellipsis, slice(None, shape[-2]))))
        r = concatenate([square, matmul(adjoint(q), getitem(a, (Ellipsis, slice(shape[-2], None))))], -1)
    else:
        q, r = apply(Qr(), a)
    return r if mode == "r" else QRResult(q, r)


def right_divided(x: Any, r: Any) -> Any:
    """Return `x @ inv(r)`."""
    return matrix_transpose(solve(matrix_transpose(r), matrix_transpose(x)))


@jvp_rule(Qr)
def qr_jvp(op: Qr, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """What lies below the diagonal in the frame of `q` turns it, the rest moves `r`."""
    q, r = apply(op, *primals)
    if tangents[0] is None:
        return (q, r), (None, None)
    scaled = right_divided(tangents[0], r)
    seen = matmul(adjoint(q), scaled)
    below = tril(seen, -1)
    turn = below - adjoint(below)
    if is_complex(q):
        turn = turn + diagonal_matrix(1j * imag(diagonal(seen, axis1=-2, axis2=-1)))
    return (q, r), (matmul(q, turn) + scaled - matmul(q, seen), matmul(seen - turn, r))


@vjp_rule(Qr)
def qr_vjp(op: Qr, needed: tuple[bool, ...], a: Any) -> tuple[Any, Any]:
    """The transpose of the forward rule."""
    q, r = apply(op, a)

    def pullback(cotangents: Any) -> tuple[Any, ...]:
        of_q, of_r = (None if each is None else conjugated(each) for each in cotangents)
        if of_q is None and of_r is None:
            return (None,)
        seen = None if of_r is None else matmul(r, adjoint(of_r))
        if of_q is not None:
            part = matmul(adjoint(of_q), q)
            seen = -part if seen is None else seen - part
        below = tril(seen, -1)
        middle = diagonal(seen, axis1=-2, axis2=-1)
        inside = below + adjoint(below) + diagonal_matrix(real(middle) if is_complex(q) else middle)
        total = matmul(q, inside)
        total = total if of_q is None else total + of_q
        return (conjugated(right_divided(total, adjoint(r))),)

    return (q, r), pullback


# ------------------------------------------------------------------ the pseudo-inverse


@attrs.frozen
class Pinv(Operator):
    """The pseudo-inverse; singular values up to `rcond` times the largest count as 0."""

    rcond: float | None = None
    only_composed = True

    def infer(self, a: Aval) -> Aval:
        """The last two axes change places."""
        *batch, n, m = matrix_shape(self, a)
        return Aval((*batch, m, n), linalg_dtype(self, a))

    def evaluate(self, xp: Any, a: Any) -> Any:
        """Compute on raw arrays."""
        return xp.linalg.pinv(a) if self.rcond is None else xp.linalg.pinv(a, rtol=self.rcond)


batch_rule(Pinv)(stack_batch)


def pinv(a: Any, rcond: float | None = None, hermitian: bool = False, *, rtol: float | None = None) -> Any:
    """Pseudo-inverse of matrices: `(..., n, m)` gives `(..., m, n)`; its derivative is that at constant rank.

    >>> import numpy as np
    >>> pinv(np.array([[2.0], [0.0]]))
    array([[0.5, 0. ]])
    """
    return apply(Pinv(rcond if rtol is None else rtol), a)


@jvp_rule(Pinv)
def pinv_jvp(op: Pinv, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """`-p t p`, and what moves the two null spaces."""
    (a,), (tangent,) = primals, tangents
    p = apply(op, a)
    if tangent is None:
        return p, None
    turned = adjoint(tangent)
    left = product(p, adjoint(p), turned)
    right = product(turned, adjoint(p), p)
    return p, left - product(left, a, p) + right - product(p, a, right) - product(p, tangent, p)


@vjp_rule(Pinv)
def pinv_vjp(op: Pinv, needed: tuple[bool, ...], a: Any) -> tuple[Any, Any]:
    """The transpose of the forward rule."""
    p = apply(op, a)

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        t = conjugated(cotangent)
        turned, ph = adjoint(t), adjoint(p)
        left, right = product(turned, p, ph), product(ph, p, turned)
        total = left - product(a, p, left) + right - product(right, p, a) - product(ph, t, ph)
        return (conjugated(total),)

    return p, pullback
