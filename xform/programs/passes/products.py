"""Contractions as matrix products: `dot` on two matrices is the cheapest that NumPy has.

`exactly` does what `np.tensordot` does at each call; `nearly` adds up in another order than einsum.
"""

from __future__ import annotations

import math

from xform.core.aval import Aval, is_static
from xform.ops.einsum import Einsum, split
from xform.ops.products import MATMUL, Matmul, Tensordot, free_axes, make_tensordot
from xform.ops.shapes import make_reshape, make_transpose
from xform.programs.passes.draft import Draft, Inputs, Operand, Rules
from xform.programs.program import aval_at

__all__ = ["exactly", "nearly"]

exactly, nearly = Rules(), Rules()


@exactly.on(Tensordot)
def tensordot_as_product(draft: Draft, op: Tensordot, inputs: Inputs, aval: Aval) -> Operand | None:
    """Bring the axes to be contracted together, and multiply matrices."""
    x, y = inputs
    left, right = aval_at(x), aval_at(y)
    if not is_static(left.shape) or not is_static(right.shape) or 0 in (*left.shape, *right.shape):
        return None
    inner = math.prod(left.shape[axis] for axis in op.x_axes)  # type: ignore[misc]
    rows = draft.apply(make_transpose((*free_axes(left.ndim, op.x_axes), *op.x_axes)), x)
    columns = draft.apply(make_transpose((*op.y_axes, *free_axes(right.ndim, op.y_axes))), y)
    out = draft.apply(
        MATMUL,
        draft.apply(make_reshape((-1, inner)), rows),
        draft.apply(make_reshape((inner, -1)), columns),
    )
    return draft.apply(make_reshape(aval.shape), out)


@nearly.on(Matmul)
def rows_of_all_matrices(draft: Draft, op: Matmul, inputs: Inputs, aval: Aval) -> Operand | None:
    """Many matrices times one are one product."""
    x, y = inputs
    shape = aval_at(x).shape
    if len(shape) < 3 or aval_at(y).ndim != 2 or not is_static(aval.shape) or 0 in (*shape, *aval.shape):
        return None
    flat = draft.apply(make_reshape((-1, shape[-1])), x)
    return draft.apply(make_reshape(aval.shape), draft.apply(MATMUL, flat, y))


@nearly.on(Einsum)
def einsum_as_product(draft: Draft, op: Einsum, inputs: Inputs, aval: Aval) -> Operand | None:
    """Contract two operands whose letters are each summed or kept, as `tensordot` does."""
    letters, out = split(op.subscripts)
    if len(letters) != 2 or any(len(set(each)) < len(each) for each in (*letters, out)):
        return None
    left, right = letters
    summed = [letter for letter in left if letter in right]
    kept = [letter for letter in left + right if letter not in summed]
    shapes = [dict(zip(own, aval_at(x).shape, strict=True)) for own, x in zip(letters, inputs, strict=True)]
    if set(kept) != set(out) or any(shapes[0][letter] != shapes[1][letter] for letter in summed):
        return None
    axes = (tuple(map(left.index, summed)), tuple(map(right.index, summed)))
    product = draft.apply(make_tensordot(*axes), *inputs)
    return draft.apply(make_transpose(tuple(map(kept.index, out))), product)
