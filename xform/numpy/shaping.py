"""NumPy's names of functions that shape, join, split, pad, repeat and reorder, and those of the array API standard."""

from xform.ops.flipping import flip, fliplr, flipud, roll, rot90
from xform.ops.padding import pad
from xform.ops.ranks import atleast_1d, atleast_2d, atleast_3d, broadcast_arrays, meshgrid, rollaxis
from xform.ops.shapes import (
    expand_dims,
    matrix_transpose,
    moveaxis,
    permute_dims,
    ravel,
    reshape,
    squeeze,
    swapaxes,
    transpose,
)
from xform.ops.stacking import (
    append,
    array_split,
    block,
    column_stack,
    concat,
    concatenate,
    dsplit,
    dstack,
    hsplit,
    hstack,
    split,
    stack,
    unstack,
    vsplit,
    vstack,
)
from xform.ops.tiling import repeat, tile
from xform.ops.triangular import diag, diagflat, diagonal, trace, tril, triu

__all__ = [
    "append", "array_split", "atleast_1d", "atleast_2d", "atleast_3d", "block", "broadcast_arrays", "column_stack",
    "concat", "concatenate", "diag", "diagflat", "diagonal", "dsplit", "dstack", "expand_dims", "flip", "fliplr",
    "flipud", "hsplit", "hstack", "matrix_transpose", "meshgrid", "moveaxis", "pad", "permute_dims", "ravel", "repeat",
    "reshape", "roll", "rollaxis", "rot90", "row_stack", "split", "squeeze", "stack", "swapaxes", "tile", "trace",
    "transpose", "tril", "triu", "unstack", "vsplit", "vstack",
]  # fmt: skip

row_stack = vstack
