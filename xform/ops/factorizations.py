"""Factorizations of symmetric (Hermitian) matrices in the last two axes: cholesky and eigh.

1. The lower triangle is read, as in NumPy; the derivative is that of the function on symmetric matrices, so the
   gradient is symmetric too.
2. Where eigenvalues coincide, their vectors have no derivative: it is NaN, but where nothing uses them. A function of
   the eigenvalues alone has the right gradient there, if it treats them alike, and NaN as its second derivative.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from xform.core.aval import Aval
from xform.core.errors import OperandError
from xform.core.rules import batch_rule, jvp_rule, vjp_rule
from xform.core.stack import apply
from xform.ops.base import Parameterless, is_complex
from xform.ops.complexes import conj, real, real_dtype
from xform.ops.linalg import linalg_dtype, solve, square_shape, stack_batch
from xform.ops.products import matmul
from xform.ops.selection import where
from xform.ops.shapes import expand_dims, matrix_transpose
from xform.ops.triangular import diagonal, tril

__all__ = ["Cholesky", "Eigh", "EighResult", "cholesky", "eigh", "eigvalsh"]


def adjoint(x: Any) -> Any:
    """Return the conjugated transpose."""
    return matrix_transpose(conj(x) if is_complex(x) else x)


def hermitian(x: Any) -> Any:
    """Return the Hermitian part."""
    return (x + adjoint(x)) * 0.5


def conjugated(x: Any) -> Any:
    """Conjugate what is complex: cotangents are the plain transpose, textbook formulas the conjugated one."""
    return conj(x) if is_complex(x) else x


def product(*factors: Any) -> Any:
    """Multiply matrices from the left."""
    out = factors[0]
    for factor in factors[1:]:
        out = matmul(out, factor)
    return out


# ------------------------------------------------------------------ cholesky


class Cholesky(Parameterless):
    """The lower triangular factor of a positive definite matrix: `a = out @ adjoint(out)`."""

    only_composed = True

    def infer(self, a: Aval) -> Aval:
        """The operand's shape."""
        return Aval(square_shape(self, a), linalg_dtype(self, a))

    def evaluate(self, xp: Any, a: Any) -> Any:
        """Compute on raw arrays."""
        return xp.linalg.cholesky(a)


batch_rule(Cholesky)(stack_batch)


def cholesky(a: Any, /, *, upper: bool = False) -> Any:
    """Cholesky factor of positive definite matrices, of which one triangle is read; the gradient is symmetric.

    Raises `numpy.linalg.LinAlgError` for a matrix that is not positive definite.

    >>> import numpy as np
    >>> cholesky(np.array([[4.0, 2.0], [2.0, 2.0]]))
    array([[2., 0.],
           [1., 1.]])
    """
    return adjoint(apply(Cholesky(), adjoint(a))) if upper else apply(Cholesky(), a)


def lower_half(x: Any) -> Any:
    """Return the lower triangle, its diagonal halved."""
    return (tril(x) + tril(x, -1)) * 0.5


@vjp_rule(Cholesky)
def cholesky_vjp(op: Cholesky, needed: tuple[bool, ...], a: Any) -> tuple[Any, Any]:
    """Turn the cotangent by the factor, take the lower half, turn it back."""
    out = apply(op, a)

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        inner = lower_half(matmul(adjoint(out), conjugated(cotangent)))
        left = solve(adjoint(out), inner)
        return (conjugated(hermitian(matrix_transpose(solve(matrix_transpose(out), matrix_transpose(left))))),)

    return out, pullback


@jvp_rule(Cholesky)
def cholesky_jvp(op: Cholesky, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """`out @ lower_half(inv(out) @ t @ inv(adjoint(out)))`."""
    out = apply(op, *primals)
    if tangents[0] is None:
        return out, None
    half = solve(out, hermitian(tangents[0]))
    return out, matmul(out, lower_half(adjoint(solve(out, adjoint(half)))))


# ------------------------------------------------------------------ eigh


class EighResult(NamedTuple):
    """What `eigh` returns: eigenvalues in ascending order, and eigenvectors as columns."""

    eigenvalues: Any
    eigenvectors: Any


class Eigh(Parameterless):
    """Eigenvalues, ascending, and eigenvectors of a symmetric (Hermitian) matrix, read by its lower triangle."""

    multiple_outputs = True
    only_composed = True
    fills_zeros = False  # what does not use the vectors has a derivative where they have none

    def infer(self, a: Aval) -> tuple[Aval, Aval]:
        """Real eigenvalues, and vectors in the operand's shape."""
        shape, dtype = square_shape(self, a), linalg_dtype(self, a)
        return Aval(shape[:-1], real_dtype(dtype)), Aval(shape, dtype)

    def evaluate(self, xp: Any, a: Any) -> Any:
        """Compute on raw arrays."""
        return tuple(xp.linalg.eigh(a))


batch_rule(Eigh)(stack_batch)


def eigh(a: Any, UPLO: str = "L") -> EighResult:
    """Eigenvalues and eigenvectors of symmetric (Hermitian) matrices: `(..., n)`, ascending, and `(..., n, n)`.

    `UPLO` says which triangle is read; the gradient is symmetric. Vectors of coinciding eigenvalues have NaN as their
    derivative, where it is used.

    >>> import numpy as np
    >>> eigh(np.array([[2.0, 1.0], [1.0, 2.0]])).eigenvalues.round(9)
    array([1., 3.])
    """
    if UPLO.upper() not in ("L", "U"):
        msg = f'eigh: UPLO must be "L" or "U", got {UPLO!r}'
        raise OperandError(msg, argument="UPLO")
    return EighResult(*apply(Eigh(), a if UPLO.upper() == "L" else adjoint(a)))


def eigvalsh(a: Any, UPLO: str = "L") -> Any:
    """Eigenvalues of symmetric (Hermitian) matrices, ascending.

    >>> import numpy as np
    >>> eigvalsh(np.diag([3.0, 1.0]))
    array([1., 3.])
    """
    return eigh(a, UPLO).eigenvalues


def over(x: Any, y: Any) -> Any:
    """Return `x / y`; where `y` is 0, 0 for what is 0 itself, else NaN.

    Of a vector without a derivative nothing flows where nothing uses it; what else is there is a limit of 0 / 0 that
    belongs to the function, and no rule of the operator knows it.
    """
    none = y == 0
    return where(none, where(x == 0, x, float("nan")), x / where(none, 1.0, y))


def over_gaps(w: Any, x: Any) -> Any:
    """Return `x[i, j] / (w[j] - w[i])`, 0 on the diagonal."""
    return over(x - tril(x - tril(x, -1)), expand_dims(w, -2) - expand_dims(w, -1))


@vjp_rule(Eigh)
def eigh_vjp(op: Eigh, needed: tuple[bool, ...], a: Any) -> tuple[Any, Any]:
    """In the frame of the vectors: values on the diagonal, vectors over the gaps beside it."""
    w, v = apply(op, a)

    def pullback(cotangents: Any) -> tuple[Any, ...]:
        of_w, of_v = cotangents
        inner = None
        if of_v is not None:
            inner = matmul(over_gaps(w, matmul(adjoint(v), conjugated(of_v))), adjoint(v))
        if of_w is not None:
            scaled = expand_dims(of_w, -1) * adjoint(v)
            inner = scaled if inner is None else inner + scaled
        return (None if inner is None else conjugated(hermitian(matmul(v, inner))),)

    return (w, v), pullback


@jvp_rule(Eigh)
def eigh_jvp(op: Eigh, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """In the frame of the vectors, the diagonal moves the values, the rest turns the vectors."""
    w, v = apply(op, *primals)
    if tangents[0] is None:
        return (w, v), (None, None)
    seen = product(adjoint(v), hermitian(tangents[0]), v)
    moved = diagonal(seen, axis1=-2, axis2=-1)
    return (w, v), (real(moved) if is_complex(v) else moved, matmul(v, over_gaps(w, seen)))
