"""Cases of linear algebra: solve, inv, determinants, norms, factorizations."""

from __future__ import annotations

import numpy as np

import xform.numpy as xnp
from tests.operators.case import case
from xform import ops
from xform.core.stack import apply

rng = np.random.default_rng(5)


def matrix(*shape: int) -> np.ndarray:
    """Matrices that are far from singular."""
    return rng.uniform(-0.5, 0.5, shape) + 2.0 * np.eye(*shape[-2:])


def array(*shape: int) -> np.ndarray:
    """Numbers between -1.2 and 1.4, none of them near 0, no two alike."""
    size = int(np.prod(shape))
    return rng.permutation(np.linspace(-1.2, 1.4, size) + 0.05).reshape(shape)


def symmetric(a):
    """The Hermitian part, which the functions of symmetric matrices read."""
    return (a + xnp.conj(xnp.matrix_transpose(a))) * 0.5


la = xnp.linalg
SPREAD = np.diag([1.0, 2.5, 4.5])
RANK_TWO = array(3, 2) @ array(2, 3)

SOLVE = [
    case("solve vector", la.solve, matrix(3, 3), array(3), complex=True),
    case("solve matrix", la.solve, matrix(3, 3), array(3, 2), complex=True),
    case("solve stack for a vector", la.solve, matrix(2, 2, 2), array(2), complex=True),
    case("solve stack", la.solve, matrix(2, 2, 2), array(2, 2, 1), complex=True),
    case("solve broadcast", la.solve, matrix(2, 1, 2, 2), array(3, 2, 1), complex=True),
    case("inv", la.inv, matrix(3, 3), complex=True),
    case("inv stack", la.inv, matrix(2, 2, 2), complex=True),
    case("matrix_power 3", lambda a: la.matrix_power(a, 3), matrix(2, 2), complex=True),
    case("matrix_power -2", lambda a: la.matrix_power(a, -2), matrix(2, 2, 2), complex=True),
    case("matrix_power 0", lambda a: la.matrix_power(a, 0) * a, matrix(2, 2), complex=True),
    case("multi_dot", lambda *xs: la.multi_dot(xs), array(2), array(2, 3), array(3, 1), order=1, complex=True),
]


def bent(a, e):
    """The derivative of the cofactors, times the matrix: without it second derivatives would be rounding alone."""
    return apply(ops.CofactorTangent(), a, e) * a


DETERMINANTS = [
    case("det", la.det, matrix(3, 3), complex=True),
    case("det third order", la.det, matrix(3, 3), order=3, x64_only=True),
    case("det stack", la.det, matrix(2, 2, 2), complex=True),
    case("det 1 x 1", la.det, array(1, 1), complex=True),
    case("det singular", la.det, RANK_TWO, order=2, complex=True, x64_only=True),
    case("det of zeros", la.det, np.zeros((3, 3)), order=2),
    case("det of rank one", la.det, np.outer([1.0, 2.0, -1.0], [0.5, 1.0, 2.0]), order=2, x64_only=True),
    case("cofactor tangent", bent, matrix(3, 3), array(3, 3), complex=True),
    case("slogdet", lambda a: la.slogdet(a).logabsdet, matrix(3, 3), complex=True),
    case("slogdet both", lambda a: tuple(la.slogdet(a)), matrix(2, 2, 2), complex=True),
]

VECTOR = array(2, 3)
NORMS = [
    case("norm", la.norm, VECTOR, complex=True),
    case("norm axis", lambda a: la.norm(a, axis=1), VECTOR, complex=True),
    case("norm kept", lambda a: la.norm(a, axis=0, keepdims=True), VECTOR, complex=True),
    case("norm 1", lambda a: la.norm(a, 1, axis=-1), VECTOR, complex=True),
    case("norm 3", lambda a: la.norm(a, 3, axis=-1), VECTOR, complex=True),
    case("norm 1.5", lambda a: la.norm(a, 1.5, axis=0, keepdims=True), VECTOR, complex=True),
    case("norm -2", lambda a: la.norm(a, -2, axis=0), VECTOR, complex=True),
    case("norm inf", lambda a: la.norm(a, np.inf, axis=-1), VECTOR, complex=True),
    case("norm -inf", lambda a: la.norm(a, -np.inf, axis=-1), VECTOR, complex=True),
    case("norm 0", lambda a: la.norm(a, 0, axis=-1) * a[:, 0], VECTOR),
    case("norm fro", lambda a: la.norm(a, "fro", axis=(2, 0)), array(2, 2, 3), complex=True),
    case("norm matrix 1", lambda a: la.norm(a, 1), VECTOR, complex=True),
    case("norm matrix -1", lambda a: la.norm(a, -1, axis=(1, 0), keepdims=True), VECTOR, complex=True),
    case("norm matrix inf", lambda a: la.norm(a, np.inf, axis=(0, 2)), array(2, 2, 3), complex=True),
    case("norm matrix 2", lambda a: la.norm(a, 2), matrix(3, 3) + SPREAD, complex=True),
    case("norm matrix -2", lambda a: la.norm(a, -2, keepdims=True), matrix(3, 3) + SPREAD, complex=True),
    case("norm nuc", lambda a: la.norm(a, "nuc", axis=(0, 2)), array(2, 2, 2), complex=True),
    case("vector_norm", lambda a: la.vector_norm(a, axis=(0, 1)), array(2, 2, 3), complex=True),
    case("matrix_norm", la.matrix_norm, array(2, 2, 3), complex=True),
]


def function_of_matrix(a):
    """A function that does not depend on the choice of eigenvectors."""
    w, v = la.eigh(symmetric(a))
    return (v * xnp.sin(w)) @ xnp.conj(v.mT)


def low_rank(a):
    """A function that does not depend on the choice of singular vectors."""
    u, s, vh = la.svd(a, full_matrices=False)
    return (u * (s * s)) @ vh


def projector(a):
    """A function that does not depend on the signs in a QR decomposition."""
    q, r = la.qr(a)
    return q @ xnp.conj(q.mT), xnp.conj(r.mT) @ r


FACTORIZATIONS = [
    case("cholesky", lambda a: la.cholesky(symmetric(a)), matrix(3, 3), complex=True),
    case("cholesky upper", lambda a: la.cholesky(symmetric(a), upper=True), matrix(2, 2, 2), complex=True),
    case("eigvalsh", lambda a: la.eigvalsh(symmetric(a)), matrix(3, 3) + SPREAD, complex=True),
    case("eigh", lambda a: tuple(la.eigh(symmetric(a), "U")), matrix(3, 3) + SPREAD),
    case("eigh stack", lambda a: tuple(la.eigh(symmetric(a))), matrix(2, 2, 2) + SPREAD[:2, :2]),
    case("function of a matrix", function_of_matrix, matrix(3, 3) + SPREAD, complex=True),
    case("svd", lambda a: tuple(la.svd(a)), matrix(3, 3) + SPREAD),
    case("svd tall", lambda a: tuple(la.svd(a, full_matrices=False)), array(3, 2)),
    case("svd wide stack", lambda a: tuple(la.svd(a, full_matrices=False)), array(2, 2, 3)),
    case("svdvals", la.svdvals, array(3, 2), complex=True),
    case("low rank", low_rank, array(3, 2), complex=True),
    case("low rank wide", low_rank, array(2, 3), complex=True),
    case("qr", lambda a: tuple(la.qr(a)), matrix(3, 3)),
    case("qr tall", lambda a: tuple(la.qr(a)), matrix(3, 2)),
    case("qr wide", lambda a: la.qr(a, "r"), matrix(2, 3)),
    case("qr stack", lambda a: tuple(la.qr(a)), matrix(2, 2, 2)),
    case("projector", projector, matrix(3, 2), complex=True),
    case("pinv tall", la.pinv, matrix(3, 2), complex=True),
    case("pinv wide stack", la.pinv, matrix(2, 2, 3), complex=True),
    case("pinv of rank one", lambda a, b: la.pinv(xnp.outer(a, b), rcond=1e-4), array(2), array(2), x64_only=True),
]

CASES = [*SOLVE, *DETERMINANTS, *NORMS, *FACTORIZATIONS]
