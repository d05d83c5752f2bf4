"""Cases of products: matmul of every rank pair, tensordot, einsum, and what is made of them."""

from __future__ import annotations

import numpy as np

import xform.numpy as xnp
from tests.operators.case import case
from xform.core.stack import apply
from xform.ops.einsum import make_einsum

rng = np.random.default_rng(11)


def array(*shape: int) -> np.ndarray:
    """Numbers between -1.2 and 1.4, none of them near 0."""
    size = int(np.prod(shape))
    return rng.permutation(np.linspace(-1.2, 1.4, max(size, 1))[:size] + 0.05).reshape(shape)


RANK_PAIRS = (
    ((3,), (3,)), ((3,), (3, 2)), ((3,), (2, 3, 2)), ((3,), (2, 1, 3, 2)),
    ((2, 3), (3,)), ((2, 3), (3, 2)), ((2, 3), (2, 3, 2)), ((2, 3), (2, 1, 3, 2)),
    ((2, 2, 3), (3,)), ((2, 2, 3), (3, 2)), ((1, 2, 3), (2, 3, 2)), ((2, 2, 3), (2, 1, 3, 2)),
    ((2, 1, 2, 3), (3,)), ((2, 1, 2, 3), (3, 2)), ((2, 1, 2, 3), (2, 3, 1)), ((1, 2, 2, 3), (2, 1, 3, 2)),
)  # fmt: skip

# the rules tell ranks 1, 2 and more apart: a fourth axis is checked to the first order
MATMUL = [
    case(
        f"matmul {left} {right}",
        xnp.matmul,
        array(*left),
        array(*right),
        order=2 if max(len(left), len(right)) < 4 else 1,
        complex=True,
    )
    for left, right in RANK_PAIRS
] + [
    case("matmul both transposed", lambda a, b: a.T @ b.T, array(3, 2), array(2, 3), complex=True),
    case("matmul of itself", lambda a: a @ a.mT @ a, array(2, 2, 3), complex=True),
    case("matmul reflected", lambda a: np.ones((2, 3)) @ a, array(3, 2), complex=True),
    case("matmul of mixed dtypes", lambda a: a @ np.array([[1, 2], [3, 4]]), array(2, 2), complex=True),
]

# made of matmul, tensordot and mul, which are checked to the second order
DOTS = [
    case("dot scalars", xnp.dot, array(2, 2), np.float64(1.5), order=1, complex=True),
    case("dot vectors", xnp.dot, array(3), array(3), order=1, complex=True),
    case("dot 3-D 3-D", xnp.dot, array(2, 2, 3), array(2, 3, 2), order=1, complex=True),
    case("dot 1-D 3-D", xnp.dot, array(3), array(2, 3, 2), order=1, complex=True),
    case("inner", xnp.inner, array(2, 3), array(2, 2, 3), order=1, complex=True),
    case("inner scalar", xnp.inner, array(2, 3), np.float64(0.5), order=1, complex=True),
    case("vdot", xnp.vdot, array(2, 3), array(3, 2), order=1, complex=True),
    case("outer", xnp.outer, array(2, 2), array(3), order=1, complex=True),
    case("multiply.outer", xnp.multiply_outer, array(2, 2), array(3), order=1, complex=True),
    case("kron", xnp.kron, array(2, 2), array(3), order=1, complex=True),
    case("kron 3-D", xnp.kron, array(2, 1, 2), array(1, 2), order=1, complex=True),
    case("vecdot", xnp.vecdot, array(2, 1, 3), array(2, 3), order=1, complex=True),
    case("vecdot axis", lambda a, b: xnp.vecdot(a, b, axis=0), array(3, 2), array(3, 1), order=1, complex=True),
    case("matvec", xnp.matvec, array(2, 3), array(2, 3), order=1, complex=True),
    case("vecmat", xnp.vecmat, array(2, 3), array(3, 2), order=1, complex=True),
    case("cross", xnp.cross, array(2, 3), array(3), order=1, complex=True),
    case("cross axes", lambda a, b: xnp.cross(a, b, axisa=0, axisc=0), array(3, 2), array(2, 3), order=1, complex=True),
]

TENSORDOT = [
    case("tensordot", xnp.tensordot, array(2, 2, 3), array(2, 3, 2), complex=True),
    case("tensordot 0", lambda a, b: xnp.tensordot(a, b, 0), array(2), array(1, 2), complex=True),
    case("tensordot 1", lambda a, b: xnp.tensordot(a, b, 1), array(2, 3), array(3, 1, 2), complex=True),
    case("tensordot all", lambda a, b: xnp.tensordot(a, b, ((1, 0), (0, 1))), array(2, 3), array(3, 2), complex=True),
    case(
        "tensordot crossed",
        lambda a, b: xnp.tensordot(a, b, axes=((0, -1), (2, 0))),
        array(2, 3, 4),
        array(4, 1, 2),
        complex=True,
    ),
]


def einsum_case(subscripts: str, *shapes: tuple[int, ...], order: int = 1):
    return case(
        f"einsum {subscripts} {shapes}",
        lambda *operands: xnp.einsum(subscripts, *operands),
        *[array(*shape) for shape in shapes],
        order=order,
        complex=True,
    )


EINSUM = [
    einsum_case("ij,jk->ik", (2, 3), (3, 2), order=2),
    einsum_case("ij,jk", (2, 3), (3, 2)),
    einsum_case("ba", (2, 3)),
    einsum_case("ii", (3, 3)),
    einsum_case("ii->i", (3, 3)),
    einsum_case("iji->j", (2, 3, 2), order=2),
    einsum_case("ij->", (2, 3)),
    einsum_case("ij->i", (2, 3)),
    einsum_case("ij,k->i", (2, 3), (2,), order=2),
    einsum_case("ii,ij->j", (2, 2), (2, 3)),
    einsum_case("i,i,i->", (3,), (3,), (3,), order=2),
    einsum_case("ij,jk,kl->il", (2, 3), (3, 2), (2, 1)),
    einsum_case("...ij,...jk", (2, 2, 3), (3, 2), order=2),
    einsum_case("i...,...->...i", (2, 3), (4, 1)),
    einsum_case(",ij->ji", (), (2, 3)),
    einsum_case("i,i->i", (1,), (3,), order=2),
    einsum_case("ij,ij,j->j", (2, 3), (2, 1), (3,)),
    einsum_case("ii,i->", (3, 3), (1,), order=2),
    case(
        "einsum of sublists",
        lambda a, b: xnp.einsum(a, [0, 1], b, [1, 2], [2, 0]),
        array(2, 3),
        array(3, 2),
        complex=True,
    ),
    case("einsum onto a diagonal", lambda a: apply(make_einsum("ij->iij"), a), array(2, 3), complex=True),
    case(
        "einsum with a path",
        lambda a, b, c: xnp.einsum("ij,jk,k", a, b, c, optimize=["einsum_path", (1, 2), (0, 1)]),
        array(2, 3),
        array(3, 2),
        array(2),
        order=1,
        complex=True,
    ),
]

CASES = [*MATMUL, *DOTS, *TENSORDOT, *EINSUM]
