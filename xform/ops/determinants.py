"""Determinants over the last two axes: det and slogdet."""

from __future__ import annotations

from typing import Any, NamedTuple

from xform.core.aval import Aval
from xform.core.rules import batch_rule, jvp_rule, vjp_rule
from xform.core.stack import apply
from xform.ops.base import Parameterless, is_complex
from xform.ops.cofactors import CofactorTangent, cofactor, cofactor_tangent
from xform.ops.complexes import imag, real, real_dtype
from xform.ops.linalg import inv, linalg_dtype, square_shape, stack_batch
from xform.ops.products import matmul
from xform.ops.reductions import sum as sum_
from xform.ops.shapes import expand_dims, matrix_transpose

__all__ = ["Det", "Slogdet", "SlogdetResult", "det", "slogdet"]


class Det(Parameterless):
    """The determinant; its derivative is the matrix of cofactors, which singular matrices have too."""

    def infer(self, a: Aval) -> Aval:
        """The batch axes."""
        return Aval(square_shape(self, a)[:-2], linalg_dtype(self, a))

    def evaluate(self, xp: Any, a: Any) -> Any:
        """Compute on raw arrays."""
        return xp.linalg.det(a)


batch_rule(Det)(stack_batch)


def det(a: Any) -> Any:
    """Determinant of square matrices: `(..., n, n)` gives `(...)`; its gradient is right for singular matrices too.

    >>> import numpy as np, xform as xf
    >>> xf.grad(det)(np.ones((2, 2)))
    array([[ 1., -1.],
           [-1.,  1.]])
    """
    return apply(Det(), a)


@vjp_rule(Det)
def det_vjp(op: Det, needed: tuple[bool, ...], a: Any) -> tuple[Any, Any]:
    """The cofactors, scaled."""
    return apply(op, a), lambda cotangent: (expand_dims(cotangent, (-2, -1)) * cofactor(a),)


@jvp_rule(Det)
def det_jvp(op: Det, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """The tangent's product with the cofactors."""
    (a,), (tangent,) = primals, tangents
    return apply(op, a), None if tangent is None else sum_(cofactor(a) * tangent, (-2, -1))


class SlogdetResult(NamedTuple):
    """What `slogdet` returns: `sign * exp(logabsdet)` is the determinant."""

    sign: Any
    logabsdet: Any


class Slogdet(Parameterless):
    """The sign (or phase) of the determinant, and the logarithm of its absolute value."""

    multiple_outputs = True

    def infer(self, a: Aval) -> tuple[Aval, Aval]:
        """The batch axes, twice; the logarithm is real."""
        shape, dtype = square_shape(self, a)[:-2], linalg_dtype(self, a)
        return Aval(shape, dtype), Aval(shape, real_dtype(dtype))

    def evaluate(self, xp: Any, a: Any) -> Any:
        """Compute on raw arrays."""
        return tuple(xp.linalg.slogdet(a))


batch_rule(Slogdet)(stack_batch)


def slogdet(a: Any) -> SlogdetResult:
    """Sign and logarithm of the absolute value of the determinant: `(sign, logabsdet)`, each of shape `(...)`.

    The gradient raises `numpy.linalg.LinAlgError` for a singular matrix, whose logarithm is -inf.

    >>> import numpy as np
    >>> slogdet(np.diag([2.0, -1.0])).sign
    np.float64(-1.0)
    """
    return SlogdetResult(*apply(Slogdet(), a))


@vjp_rule(Slogdet)
def slogdet_vjp(op: Slogdet, needed: tuple[bool, ...], a: Any) -> tuple[Any, Any]:
    """The transposed inverse, scaled; the phase of a complex matrix turns with the imaginary part of the trace."""
    sign, logabsdet = apply(op, a)
    phase = sign if is_complex(a) else None

    def pullback(cotangents: Any) -> tuple[Any, ...]:
        of_sign, scale = cotangents
        if phase is not None and of_sign is not None:
            turn = 1j * imag(of_sign * phase)
            scale = turn if scale is None else scale + turn
        return (None if scale is None else expand_dims(scale, (-2, -1)) * matrix_transpose(inv(a)),)

    return (sign, logabsdet), pullback


@jvp_rule(Slogdet)
def slogdet_jvp(op: Slogdet, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """The trace of the inverse times the tangent: its real part, and its imaginary part as a turn of the phase."""
    (a,), (tangent,) = primals, tangents
    sign, logabsdet = apply(op, a)
    if tangent is None:
        return (sign, logabsdet), (None, None)
    change = sum_(matrix_transpose(inv(a)) * tangent, (-2, -1))
    if not is_complex(a):
        return (sign, logabsdet), (None, change)
    return (sign, logabsdet), (sign * (1j * imag(change)), real(change))


# ------------------------------------------------------------------ the third derivative, which needs the determinant


@vjp_rule(CofactorTangent)
def cofactor_tangent_vjp(op: CofactorTangent, needed: tuple[bool, ...], a: Any, e: Any) -> tuple[Any, Any]:
    """In `e` the operator is its own transpose; in `a`, the third derivative."""

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        return (
            third_derivative(a, e, cotangent) if needed[0] else None,
            cofactor_tangent(a, cotangent) if needed[1] else None,
        )

    return apply(op, a, e), pullback


@jvp_rule(CofactorTangent)
def cofactor_tangent_jvp(op: CofactorTangent, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """The third derivative of the determinant, and the operator itself on a tangent of the direction."""
    (a, e), (tangent_a, tangent_e) = primals, tangents
    total = None if tangent_a is None else third_derivative(a, e, tangent_a)
    if tangent_e is not None:
        part = cofactor_tangent(a, tangent_e)
        total = part if total is None else total + part
    return apply(op, a, e), total


def third_derivative(a: Any, e: Any, f: Any) -> Any:
    """Return the third derivative of the determinant in two directions, as a matrix; `a` must not be singular."""
    m = matrix_transpose(inv(a))

    def scalar(x: Any) -> Any:
        return expand_dims(sum_(x, (-2, -1)), (-2, -1))

    def turned(x: Any) -> Any:
        return -matmul(matmul(m, matrix_transpose(x)), m)

    of_e, of_f = scalar(e * m), scalar(f * m)
    both = -scalar(f * turned(e))
    mixed = turned(matmul(matmul(f, matrix_transpose(m)), e)) + turned(matmul(matmul(e, matrix_transpose(m)), f))
    inside = m * (of_e * of_f - both) + of_f * turned(e) + of_e * turned(f) - mixed
    return expand_dims(det(a), (-2, -1)) * inside
