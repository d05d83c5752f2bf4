"""Cases of indexing, functional updates, and picking by position."""

from __future__ import annotations

import numpy as np

import xform.numpy as xnp
from tests.operators.case import case
from xform import ops
from xform.core.stack import apply
from xform.ops.index_batch import LanePositions

x = np.array([[0.5, -1.25, 2.0, 0.25], [1.5, 0.75, -0.25, -2.0], [-0.5, 1.0, 0.3, -0.7]])
v = np.array([0.5, -1.5, 2.0, 0.75, -0.25])
cube = np.linspace(-1.0, 1.6, 24).reshape(2, 3, 4) ** 3 + 0.1
s = np.float64(1.5)
pair = np.array([2.0, 0.5])
i = np.array([0, 2])
twice = np.array([1, 1, 0])
grid = np.array([[0, 1], [2, 1]])
mask = x > 0.28
rows = np.array([True, False, True])
far = slice(None)
full = (None, None, None)


def index(name, at, array=x, *operands, complex=True):
    """A row that reads at an index; operands of the index are arguments, so that batches reach them."""

    def read(a, *more):
        return ops.getitem(a, at(*more) if more else at) ** 2

    return case(f"getitem {name}", read, array, *operands, complex=complex)


READS = [
    index("int", 1),
    index("negative", -1),
    index("ints", (1, 2)),
    index("slice", slice(1, None)),
    index("step", (far, slice(None, None, -2))),
    index("empty", slice(2, 1)),
    index("ellipsis", (..., 0)),
    index("newaxis", (None, far, None, 1)),
    index("nothing", ()),
    index("scalar", (), s),
    index("array", lambda j: j, x, i),
    index("scalar array", lambda j: j, x, np.array(2)),
    index("repeated", lambda j: j, x, twice),
    index("matrix", lambda j: j, v, grid),
    index("columns", lambda j: (far, j), x, twice),
    index("columns, negative", lambda j: (far, j), x, -1 - i),
    index("two arrays", lambda j, k: (j, k), x, i, twice[:2]),
    index("two arrays that broadcast", lambda j, k: (j[:, None], k), x, i, twice),
    index("array and int", lambda j: (1, j), x, twice),
    index("apart", lambda j, k: (j, far, k), cube, np.array([0, 1, 1]), twice),
    index("apart by ellipsis", lambda j, k: (j, ..., k), cube, np.array([0, 1, 1]), twice),
    index("apart from int", lambda j: (0, far, j), cube, twice),
    index("in the middle", lambda j: (far, j, slice(1, 3)), cube, twice),
    index("behind newaxis", lambda j: (None, j, None), x, twice),
    index("mask", lambda m: m, x, mask),
    index("mask of rows", lambda m: m, x, rows),
    index("mask behind slice", lambda m: (far, m), cube, mask),
    index("mask and array", lambda m, j: (m, j), x, rows, i),
    index("mask of nothing", lambda m: m, x, np.zeros(3, bool)),
    index("True", (True, slice(0, 1))),
    index("False", (False, slice(0, 1))),
    index("True and array", lambda j: (True, j), x, twice),
    index("no rows", lambda j: j, x, np.zeros(0, int)),
    case("getitem list", lambda a: a[[0, 2]] * a[[1, 1]], x, complex=True),
    case("getitem list of values", lambda a, j: a[[j, 1]] ** 2, x, np.array(2), complex=True),
    case("getitem loop", lambda a: sum(a[k] * a[k] for k in range(3)), x, complex=True),
    case("iteration", lambda a: xnp.stack([row * row for row in a]), x, complex=True),
]

SCATTERS = [
    case(
        "scatter add",
        lambda a, b, j: apply(ops.ScatterAdd((("@",), (1, full)), (3, 4), str(a.dtype)), a * a, j, b),
        x,
        v[:4],
        twice,
        complex=True,
    ),
    case(
        "scatter add, columns",
        lambda a, j: apply(ops.ScatterAdd(((full, "@"),), (3, 5), str(a.dtype)), a * a, j),
        x,
        np.array([0, 4, 4, 1]),
        complex=True,
    ),
    case(
        "scatter add like",
        lambda a, b, j: apply(ops.ScatterAddLike((("@",), (1,))), xnp.zeros_like(a), a * a, j, b),
        x,
        v[:4],
        twice,
        complex=True,
    ),
    case("pick", lambda a, j: apply(ops.IndexPick((full, "@")), a * a, j), x, twice, complex=True),
    case(
        "pick apart",
        lambda a, j, k: apply(ops.IndexPick(("@", full, "@")), a * a, j, k),
        cube,
        np.array([0, 1, 1]),
        twice,
        complex=True,
    ),
    case(
        "place",
        lambda a, j: apply(ops.IndexPlace((full, "@"), (3, 5), str(a.dtype)), a * a, j),
        x,
        np.array([0, 4, 4, 1]),
        complex=True,
    ),
    case("lane positions", lambda m: apply(LanePositions(1), m), np.array([rows, rows[::-1]]), order=0),
]


def update(name, how, at, values, array=x, *operands, complex=None):
    """A row that updates at an index, squared before and after, so that both arguments have second derivatives."""
    smooth = how not in ("min", "max") if complex is None else complex
    return case(
        f"at {name} {how}",
        lambda a, b, *more: getattr(ops.At(a * a)[at(*more) if more else at], how)(b * b + 0.25 * b) ** 2,
        array,
        values,
        *operands,
        complex=smooth,
    )


PLACES = [
    ("int", 1, v[:4], x),
    ("scalar value", 1, s, x),
    ("slice", (far, slice(1, 3)), x[:, 1:3] + 0.3, x),
    ("broadcast", (far, slice(1, 3)), pair, x),
    ("array", lambda j: j, x[:2] + 0.3, x, i),
    ("repeated", lambda j: j, np.array([[0.4], [-1.2], [0.9]]), x, twice),
    ("repeated columns", lambda j: (far, j), x[:, :3] + 0.3, x, twice),
    ("apart", lambda j, k: (j, far, k), cube[0, :, :3] + 0.3, cube, np.array([0, 1, 1]), twice),
    ("mask", lambda m: m, s, x, mask),
    ("mask of rows", lambda m: (m, slice(0, 2)), pair, x, rows),
    ("mask, values", lambda m: m, v[:2][:, None] * np.ones(4), x, rows),
    ("False", (False, slice(0, 1)), s, x),
]
UPDATES = [
    update(name, how, at, values, array, *operands)
    for name, at, values, array, *operands in PLACES
    for how in ("set", "add", "mul", "min", "max")
]
UPDATES += [
    update("array", "subtract", lambda j: j, x[:2] + 0.3, x, i),
    update("array", "divide", lambda j: j, x + 3.0, x, twice),
    case("at array power", lambda a, b, j: ops.At(a)[j].power(b), x * x + 0.5, x, twice),
    case("at get", lambda a, j: ops.At(a)[j].get() ** 2, x, twice, complex=True),
    case("at set zero factor", lambda a, b, j: ops.At(a)[j].mul(b), v, np.array([0.0, 2.0, 3.0]), twice, complex=True),
    case("at set zero factors", lambda a, b, j: ops.At(a)[j].mul(b), v, np.array([0.0, 0.0, 3.0]), twice, complex=True),
    case("at extra axes", lambda a, b: ops.At(a * a)[1].set(b * b), x, v[None, None, :4], complex=True),
    case("at set in float32", lambda a, b: ops.At(a * a)[1].set(b * b), x, v[:4].astype("float32"), complex=True),
]

order = np.argsort(x, axis=1)
PICKS = [
    case("take", lambda a, j: xnp.take(a * a, j), x, np.array([0, 5, 5, -1]), complex=True),
    case("take axis", lambda a, j: xnp.take(a * a, j, axis=1), x, twice, complex=True),
    case("take matrix", lambda a, j: xnp.take(a * a, j, axis=-2), x, grid, complex=True),
    case("take clip", lambda a, j: xnp.take(a * a, j, axis=0, mode="clip"), x, np.array([-4, 1, 9]), complex=True),
    case("take wrap", lambda a, j: xnp.take(a * a, j, axis=0, mode="wrap"), x, np.array([-4, 1, 9]), complex=True),
    case("take_along_axis", lambda a, j: xnp.take_along_axis(a * a, j, 1), x, order, complex=True),
    case("take_along_axis row", lambda a, j: xnp.take_along_axis(a * a, j, 0), x[:, :2], -grid[:1], complex=True),
    case("take_along_axis broadcast", lambda a, j: xnp.take_along_axis(a * a, j, 0), v[:3, None], grid, complex=True),
    case("take_along_axis flat", lambda a, j: xnp.take_along_axis(a * a, j, None), x, twice, complex=True),
    case(
        "add along axis",
        lambda a, j: apply(ops.AddAlongAxis(1, (3, 5), str(a.dtype)), a * a, j),
        x,
        np.array([[0, 4, 4, 1], [2, 2, 2, 2], [-1, 0, 1, 3]]),
        complex=True,
    ),
    case(
        "add along axis like",
        lambda a, j, b: apply(ops.AddAlongAxis(1, None, str(a.dtype)), a * a, j, xnp.zeros_like(b)),
        x,
        np.array([[0, 1, 1, 1], [2, 2, 2, 2], [-1, 0, 1, 3]]),
        x,
        complex=True,
    ),
    case("choose", lambda j, a, b: xnp.choose(j, (a * a, b)), np.array([1, 0, 1, 1]), v[:4], x, complex=True),
    case("compress", lambda a: xnp.compress([True, False, True], a * a, axis=1), x, complex=True),
    case("extract", lambda a: xnp.extract(mask, a * a), x, complex=True),
    case("select", lambda a, b: xnp.select([mask, ~rows[:, None]], [a * a, b], a), x, v[:4], complex=True),
    case("ix_", lambda a, j, k: (a * a)[xnp.ix_(j, k)], x, i, twice, complex=True),
    case("unravel_index", lambda a, j: (a * a)[xnp.unravel_index(j, (3, 4))], x, 5 * i, complex=True),
    case("one_hot", lambda j: xnp.one_hot(j, 4), grid, order=0),
    case("nonzero", lambda a: xnp.nonzero(a), x, order=0),
    case("argwhere", lambda a: xnp.argwhere(a), x, order=0),
    case("flatnonzero", lambda a: xnp.flatnonzero(a), x, order=0),
    case("searchsorted", lambda a, b: xnp.searchsorted(a, b), np.sort(v), x, order=0),
    case("searchsorted right", lambda a, b: xnp.searchsorted(a, b, side="right"), np.sort(v), v, order=0),
]

CASES = READS + SCATTERS + UPDATES + PICKS
