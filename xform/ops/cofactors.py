"""Cofactors: the derivative of the determinant, and its derivative, without division.

1. Cofactors are multiplicative: with the singular values `a = u @ diag(s) @ vh` they are those of `diag(s)`, turned by
   `det(u) conj(u)` and `det(vh) conj(vh)`. Those of `diag(s)` are products of the other singular values. So they are
   right for singular matrices too.
2. A well conditioned matrix takes the cheaper way `det(a) * inv(a).T`.
3. The second derivative, `CofactorTangent`, is symmetric in its two directions, so it is its own transpose. The third
   divides by the matrix.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from xform.core.aval import Aval, broadcast_shapes
from xform.core.rules import batch_rule, jvp_rule, vjp_rule
from xform.core.stack import apply
from xform.ops.axes import ndim_of
from xform.ops.base import Parameterless
from xform.ops.linalg import linalg_dtype, square_shape, stack_batch
from xform.ops.products import batched_matrix

__all__ = ["Cofactor", "CofactorTangent", "cofactor"]

#: above this condition the inverse would lose too many digits
WELL_CONDITIONED = 1e4


class Cofactor(Parameterless):
    """The matrix of cofactors: the transposed adjugate."""

    def infer(self, a: Aval) -> Aval:
        """The operand's shape."""
        return Aval(square_shape(self, a), linalg_dtype(self, a))

    def evaluate(self, xp: Any, a: Any) -> Any:
        """Compute on raw arrays."""
        found = inverse_of(xp, a)
        if found is not None:
            determinant, turned = found
            return determinant[..., None, None] * turned
        scale, u, s, vh = singular_parts(xp, a)
        return scale * ((u * products_without(xp, s, 1)[..., None, :]) @ vh)


class CofactorTangent(Parameterless):
    """The derivative of the cofactors of `a` in the direction `e`."""

    def infer(self, a: Aval, e: Aval) -> Aval:
        """The operands' shape."""
        return Aval(broadcast_shapes(square_shape(self, a), square_shape(self, e)), linalg_dtype(self, a, e))

    def evaluate(self, xp: Any, a: Any, e: Any) -> Any:
        """Compute on raw arrays."""
        found = inverse_of(xp, a)
        if found is not None:
            determinant, turned = found
            trace = xp.sum(turned * e, axis=(-2, -1))[..., None, None]
            return determinant[..., None, None] * (trace * turned - turned @ swapped(xp, e) @ turned)
        scale, u, s, vh = singular_parts(xp, a)
        seen = swapped(xp, u) @ e @ swapped(xp, vh)  # u and vh are conjugated already
        others = products_without(xp, s, 2)
        diagonal = xp.sum(seen * eye_like(xp, s), axis=-1)
        on_diagonal = (others @ diagonal[..., None]) * eye_like(xp, s)
        return scale * (u @ (on_diagonal - others * swapped(xp, seen)) @ vh)


def inverse_of(xp: Any, a: Any) -> tuple[Any, Any] | None:
    """Return determinant and transposed inverse of well conditioned NumPy matrices; of others, None."""
    if xp is not np or not a.size:  # elsewhere, asking for the condition would wait for the device
        return None
    with np.errstate(all="ignore"):
        try:
            inverse = np.linalg.inv(a)
        except np.linalg.LinAlgError:
            return None
        condition = np.abs(a).sum(-1).max(-1) * np.abs(inverse).sum(-1).max(-1)
    if not np.all(condition < WELL_CONDITIONED):
        return None
    return np.asarray(np.linalg.det(a)), inverse.swapaxes(-2, -1)


def swapped(xp: Any, x: Any) -> Any:
    """Swap the last two axes."""
    return xp.permute_dims(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def singular_parts(xp: Any, a: Any) -> tuple[Any, Any, Any, Any]:
    """Return the turn's determinant, the conjugated factors, and the singular values."""
    u, s, vh = xp.linalg.svd(a)
    scale = (xp.linalg.det(u) * xp.linalg.det(vh))[..., None, None]
    if s.dtype != u.dtype:  # complex
        u, s, vh = xp.conj(u), xp.astype(s, u.dtype), xp.conj(vh)
    return scale, u, s, vh


def eye_like(xp: Any, s: Any) -> Any:
    """Return the identity matrix of as many rows as `s` has columns, in its dtype, on its device."""
    index = xp.arange(s.shape[-1], device=s.device)
    return xp.astype(index[:, None] == index[None, :], s.dtype)


def products_without(xp: Any, s: Any, count: int) -> Any:
    """Return, for each index (`count=1`) or each pair of two (`count=2`), the product of the other elements.

    On the diagonal of the pairs stands 0.
    """
    eye = eye_like(xp, s)
    if count == 1:
        return xp.prod(s[..., None, :] * (1 - eye) + eye, axis=-1)
    left, right = eye[:, None, :], eye[None, :, :]
    out = left + right - left * right
    return xp.prod(s[..., None, None, :] * (1 - out) + out, axis=-1) * (1 - eye)


batch_rule(Cofactor)(stack_batch)


def cofactor(a: Any) -> Any:
    """Return the matrices of cofactors: the gradient of the determinant.

    >>> cofactor(np.array([[1.0, 2.0], [3.0, 4.0]])).round(9)
    array([[ 4., -3.],
           [-2.,  1.]])
    """
    return apply(Cofactor(), a)


def cofactor_tangent(a: Any, e: Any) -> Any:
    """Return the derivative of the cofactors in a direction."""
    return apply(CofactorTangent(), a, e)


@vjp_rule(Cofactor)
def cofactor_vjp(op: Cofactor, needed: tuple[bool, ...], a: Any) -> tuple[Any, Any]:
    """The second derivative of the determinant is symmetric: the rule of forward mode serves."""
    return apply(op, a), lambda cotangent: (cofactor_tangent(a, cotangent),)


@jvp_rule(Cofactor)
def cofactor_jvp(op: Cofactor, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """The second derivative of the determinant."""
    (a,), (tangent,) = primals, tangents
    return apply(op, a), None if tangent is None else cofactor_tangent(a, tangent)


@batch_rule(CofactorTangent)
def cofactor_tangent_batch(
    op: CofactorTangent, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]
) -> tuple[Any, int]:
    """Batch: one more batch axis, in front."""
    ndim = max(ndim_of(x) - (at is not None) for x, at in zip(values, axes, strict=True))
    return apply(op, *[batched_matrix(x, at, ndim, None) for x, at in zip(values, axes, strict=True)]), 0
