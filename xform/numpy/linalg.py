"""`numpy.linalg` on values: `xform.numpy.linalg`."""

from typing import Any

from xform.ops import triangular
from xform.ops.decompositions import pinv, qr, svd, svdvals
from xform.ops.determinants import det, slogdet
from xform.ops.dots import cross, outer, vecdot
from xform.ops.factorizations import cholesky, eigh, eigvalsh
from xform.ops.linalg import inv, matrix_power, multi_dot, solve
from xform.ops.norms import matrix_norm, norm, vector_norm
from xform.ops.products import matmul, tensordot
from xform.ops.shapes import matrix_transpose

__all__ = [
    "cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "matmul", "matrix_norm", "matrix_power",
    "matrix_transpose", "multi_dot", "norm", "outer", "pinv", "qr", "slogdet", "solve", "svd", "svdvals", "tensordot",
    "trace", "vecdot", "vector_norm",
]  # fmt: skip


def diagonal(x: Any, /, *, offset: int = 0) -> Any:
    """Return the diagonals of matrices, which the last two axes hold; `xform.numpy.diagonal` takes the first two.

    >>> import numpy as np
    >>> diagonal(np.zeros((2, 3, 4))).shape
    (2, 3)
    """
    return triangular.diagonal(x, offset, -2, -1)


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    """Return the sums of the diagonals of matrices, which the last two axes hold.

    >>> import numpy as np
    >>> trace(np.ones((2, 3, 3)))
    array([3., 3.])
    """
    return triangular.trace(x, offset, -2, -1, dtype)
