"""Products, as NumPy names them."""

from xform.ops.dots import cross, dot, inner, kron, matvec, multiply_outer, outer, vdot, vecdot, vecmat
from xform.ops.einsum import einsum
from xform.ops.products import matmul, tensordot

__all__ = [
    "cross", "dot", "einsum", "inner", "kron", "matmul", "matvec", "multiply_outer", "outer", "tensordot", "vdot",
    "vecdot", "vecmat",
]  # fmt: skip
