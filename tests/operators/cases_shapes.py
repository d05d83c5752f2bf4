"""Cases of reshaping, joining, splitting, padding, repeating, reordering, triangles, diagonals, and creation."""

from __future__ import annotations

import numpy as np

import xform.numpy as xnp
from tests.operators.case import case
from xform import ops
from xform.core.stack import apply

x = np.array([[0.5, -1.25, 2.0], [1.5, 0.75, -0.25]])
v = np.array([0.5, -1.5, 2.0, 0.75])
w = np.array([1.25, 0.25])
s = np.float64(1.5)
cube = np.linspace(-1.0, 1.6, 24).reshape(2, 3, 4) ** 3 + 0.1
square = np.linspace(-1.0, 1.6, 9).reshape(3, 3) ** 3 + 0.1
thin = np.array([[[0.5], [-1.5]]])
empty = np.zeros((2, 0))

RESHAPES = [
    case("reshape", lambda a: xnp.reshape(a * a, (3, 2)), x, complex=True),
    case("reshape -1", lambda a: xnp.reshape(a * a, (-1, 2)), x, complex=True),
    case("reshape int", lambda a: xnp.reshape(a * a, 6), x, complex=True),
    case("reshape scalar", lambda a: xnp.reshape(a * a, (1, 1)), s, complex=True),
    case("reshape to scalar", lambda a: xnp.reshape(a * a, ()), np.array([1.5]), complex=True),
    case("reshape like", lambda a: apply(ops.ReshapeLike(), a * a, np.ones((3, 2))), x, complex=True),
    case("ravel", lambda a: xnp.ravel(a) * xnp.ravel(a), x, complex=True),
    case("transpose", lambda a: xnp.transpose(a * a), x, complex=True),
    case("transpose axes", lambda a: xnp.transpose(a * a, (2, 0, 1)), cube, complex=True),
    case("moveaxis", lambda a: xnp.moveaxis(a * a, 0, -1), cube, complex=True),
    case("moveaxis several", lambda a: xnp.moveaxis(a * a, (0, 1), (-1, 0)), cube, complex=True),
    case("swapaxes", lambda a: xnp.swapaxes(a * a, 0, -1), cube, complex=True),
    case("matrix_transpose", lambda a: xnp.matrix_transpose(a * a), cube, complex=True),
    case("expand_dims", lambda a: xnp.expand_dims(a * a, (0, -1)), x, complex=True),
    case("expand_dims scalar", lambda a: xnp.expand_dims(a * a, 0), s, complex=True),
    case("squeeze", lambda a: xnp.squeeze(a * a), thin, complex=True),
    case("squeeze axis", lambda a: xnp.squeeze(a * a, -1), thin, complex=True),
    case("atleast_3d", lambda a: xnp.atleast_3d(a * a), v, complex=True),
    case("broadcast_arrays", lambda a, b: xnp.multiply(*xnp.broadcast_arrays(a, b)), x[:, :1], v, complex=True),
    case("meshgrid", lambda a, b: xnp.multiply(*xnp.meshgrid(a, b)), v, w, complex=True),
]

JOINS = [
    case("concatenate", lambda a, b: xnp.concatenate([a * a, b, a]), v, w, complex=True),
    case("concatenate axis", lambda a, b: xnp.concatenate((a * a, b), axis=-1), x, x[:, :1], complex=True),
    case("concatenate flat", lambda a, b: xnp.concatenate([a, b * b], axis=None), x, v, complex=True),
    case("concatenate constant", lambda a: xnp.concatenate([a * a, np.array([2, 3]), a[:0]]), v, complex=True),
    case("concatenate one", lambda a: xnp.concatenate([a * a]), v, complex=True),
    case("concatenate mixed", lambda a, b: xnp.concatenate([a * a, b]), v, w.astype("float32"), complex=True),
    case("stack", lambda a, b: xnp.stack([a * a, b], axis=1), v, v + 1.0, complex=True),
    case("stack scalars", lambda a, b: xnp.stack([a * a, 2.0, b, a]), s, s + 1.0, complex=True),
    case("stack one tracked", lambda a: xnp.stack([np.ones(4), a * a], axis=-1), v, complex=True),
    case("array of values", lambda a, b: xnp.array([[a * a, 1.0], [b, a]]), s, s + 1.0, complex=True),
    case("array of rows", lambda a: xnp.array([a * a, [1.0, 2.0, 3.0, 4.0]]), v, complex=True),
    case("hstack", lambda a, b: xnp.hstack([a * a, b]), v, w, complex=True),
    case("vstack", lambda a: xnp.vstack([a * a, a]), v, complex=True),
    case("dstack", lambda a: xnp.dstack([a * a, a]), x, complex=True),
    case("column_stack", lambda a, b: xnp.column_stack([a * a, b]), w, x, complex=True),
    case("split", lambda a: xnp.multiply(*xnp.split(a, 2)), v, complex=True),
    case("split points", lambda a: xnp.split(a * a, [1, 3], axis=1)[1], cube, complex=True),
    case("split out of order", lambda a: xnp.concatenate(xnp.split(a * a, [3, 1])), v, complex=True),
    case("array_split", lambda a: xnp.array_split(a * a, 3)[0], v, complex=True),
    case("split like", lambda a: apply(ops.SplitLike(0), a, np.ones(1), np.ones(3)), v, complex=True),
    case("unstack", lambda a: xnp.multiply(*xnp.unstack(a)), x, complex=True),
    case("unstack axis", lambda a: xnp.unstack(a * a, axis=-1)[1], cube, complex=True),
    case("unstack to scalars", lambda a: xnp.unstack(a)[0] * xnp.unstack(a)[2], v, complex=True),
]

PADS = [
    case("pad", lambda a: xnp.pad(a * a, ((1, 2), (0, 1))), x, complex=True),
    case("pad constant", lambda a: xnp.pad(a * a, 1, constant_values=3.0), x, complex=True),
    case("pad empty", lambda a: xnp.pad(a * a, ((0, 0), (1, 1))), empty, complex=True),
    case("pad tracked", lambda a, c: xnp.pad(a * a, (1, 2), constant_values=c * c), x, s, complex=True),
    case("pad sides", lambda a, c: xnp.pad(a, ((1, 2), (2, 0)), constant_values=((c, 1), (2, 0))), x, s, complex=True),
    case("pad edge", lambda a: xnp.pad(a * a, ((2, 1), (0, 3)), "edge"), x, complex=True),
    case("pad reflect", lambda a: xnp.pad(a * a, ((1, 3), (2, 5)), "reflect"), x, complex=True),
    case("pad symmetric", lambda a: xnp.pad(a * a, ((3, 1), (2, 4)), "symmetric"), x, complex=True),
    case("pad wrap", lambda a: xnp.pad(a * a, ((3, 1), (2, 4)), "wrap"), x, complex=True),
    case("pad one element", lambda a: xnp.pad(a * a, 3, "reflect"), np.array([0.5]), complex=True),
    case("tile", lambda a: xnp.tile(a * a, (2, 3)), x, complex=True),
    case("tile more axes", lambda a: xnp.tile(a * a, (2, 1, 2)), v, complex=True),
    case("tile fewer axes", lambda a: xnp.tile(a * a, 2), x, complex=True),
    case("tile none", lambda a: xnp.tile(a * a, (0, 2)), x, complex=True),
    case("repeat", lambda a: xnp.repeat(a * a, 3, axis=1), x, complex=True),
    case("repeat flat", lambda a: xnp.repeat(a * a, 2), x, complex=True),
    case("repeat none", lambda a: xnp.repeat(a * a, 0, axis=0), x, complex=True),
    case("repeat each", lambda a: xnp.repeat(a * a, [2, 0, 3], axis=1), x, complex=True),
]

REORDERINGS = [
    case("flip", lambda a: xnp.flip(a * a), x, complex=True),
    case("flip axis", lambda a: xnp.flip(a * a, (0, -1)), cube, complex=True),
    case("flipud fliplr", lambda a: xnp.flipud(xnp.fliplr(a * a)), x, complex=True),
    case("roll", lambda a: xnp.roll(a * a, 2), x, complex=True),
    case("roll axes", lambda a: xnp.roll(a * a, (1, -2), axis=(0, 2)), cube, complex=True),
    case("rot90", lambda a: xnp.rot90(a * a, 3, (1, 2)), cube, complex=True),
    case("triu", lambda a: xnp.triu(a * a, 1), cube, complex=True),
    case("tril", lambda a: xnp.tril(a * a, -1), square, complex=True),
    case("triu of a row", lambda a: xnp.triu(a * a), v, complex=True),
    case("diag of a row", lambda a: xnp.diag(a * a, 1), v, complex=True),
    case("diag of a matrix", lambda a: xnp.diag(a * a, -1), x, complex=True),
    case("diagonal", lambda a: xnp.diagonal(a * a, 1, 2, 0), cube, complex=True),
    case("diagonal outside", lambda a: xnp.diagonal(a * a, 7), x, complex=True),
    case("from diagonal like", lambda a: apply(ops.FromDiagonalLike(1), a * a, np.ones((2, 3))), w, complex=True),
    case("diagflat", lambda a: xnp.diagflat(a * a), x, complex=True),
    case("trace", lambda a: xnp.trace(a * a), square, complex=True),
    case("trace axes", lambda a: xnp.trace(a * a, 1, 1, -1), cube, complex=True),
]

CREATIONS = [
    case("full of a value", lambda a: xnp.full((2, 3), a * a), s, complex=True),
    case("full_like of a value", lambda a: xnp.full_like(np.ones((2, 2)), a * a), s),
    case("zeros_like", lambda a: a * a + xnp.zeros_like(a), x, complex=True),
    case("ones_like", lambda a: a * xnp.ones_like(a) * a, x, complex=True),
    case("linspace", lambda a, b: xnp.linspace(a * a, b, 5), s, s + 1.0, complex=True),
    case("linspace rows", lambda a, b: xnp.linspace(a * a, b, 4, endpoint=False, axis=1), v, s, complex=True),
    case("logspace", lambda a: xnp.logspace(a, 0.5, 4, base=2.0), s, complex=True),
]

CASES = RESHAPES + JOINS + PADS + REORDERINGS + CREATIONS
