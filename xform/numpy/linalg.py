"""`numpy.linalg` on values: `xform.numpy.linalg`."""

from xform.ops.decompositions import pinv, qr, svd, svdvals
from xform.ops.determinants import det, slogdet
from xform.ops.dots import cross, outer, vecdot
from xform.ops.factorizations import cholesky, eigh, eigvalsh
from xform.ops.linalg import inv, matrix_power, multi_dot, solve
from xform.ops.norms import matrix_norm, norm, vector_norm
from xform.ops.products import matmul, tensordot
from xform.ops.shapes import matrix_transpose
from xform.ops.triangular import diagonal, trace

__all__ = [
    "cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "matmul", "matrix_norm", "matrix_power",
    "matrix_transpose", "multi_dot", "norm", "outer", "pinv", "qr", "slogdet", "solve", "svd", "svdvals", "tensordot",
    "trace", "vecdot", "vector_norm",
]  # fmt: skip
