"""Operators that a pullback alone applies, and derivatives at operands that a row of cases cannot hold."""

from __future__ import annotations

import array_api_strict as strict
import numpy as np
import pytest
from typeguard import suppress_type_checks

import xform as xf
import xform.numpy as xnp
from tests.operators.case import Case
from tests.operators.collect import families, operands, operations
from xform import ops
from xform.testing import check_grads
from xform.testing.batching import check_batch
from xform.testing.operators import check_contract

TIES = np.array([[1.0, 2.0, 2.0, 0.0], [0.5, 0.5, 0.5, 0.5], [3.0, -1.0, 0.0, 1.0]])
ROWS = {f"{family}-{row.name}": row for family, rows in families().items() for row in rows}
REVERSE = {label: row for label, row in ROWS.items() if row.order and "rev" in row.modes}
PLACES = [row for row in families()["indexing"] if row.order and "rev" in row.modes]


@pytest.mark.parametrize("row", [pytest.param(row, id=label) for label, row in REVERSE.items()])
def test_pullbacks_in_lanes_equal_a_loop(row: Case):
    leaves, structure = xf.tree.flatten(operands(row, "float64"))
    places = [i for i, leaf in enumerate(leaves) if not isinstance(leaf, bool) and xf.aval_of(leaf).dtype.kind in "fc"]

    def pulled(*xs):
        def function(*ys):
            full = dict(enumerate(leaves)) | dict(zip(places, ys, strict=True))
            return row.fun(*xf.tree.unflatten(structure, list(full.values())))

        out, pullback = xf.vjp(function, *xs)
        return pullback(xf.tree.map(lambda each: ops.ones_like(each) * 0.5, out))

    with suppress_type_checks():
        lanes = [[np.asarray(leaves[i] * scale) for i in places] for scale in (1.0, 1.001)]
        want = [pulled(*lane) for lane in lanes]
        found = xf.vmap(pulled)(*map(np.stack, zip(*lanes, strict=True)))
    assert len(found) == len(places)
    for have, each in zip(found, zip(*want, strict=True), strict=True):
        np.testing.assert_allclose(have, np.stack(each), rtol=1e-9, atol=1e-11)


def test_counts_of_places_keep_their_contract():
    met = set()
    for row in PLACES:
        for op, values in operations(row, "float64", backward=True):
            if type(op).__name__ in ("Occurrence", "Planes"):
                met.add(type(op).__name__)
                check_contract(op, values)
                check_batch(op, values)
    assert met == {"Occurrence", "Planes"}


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_ties_share_by_lanes_as_in_a_loop(axes):
    def slope(x):
        return xf.vjp(lambda v: xnp.max(v, axis=axes), x)[1](np.ones_like(x.max(axis=axes)))[0]

    stacked = np.stack([TIES, -TIES, TIES[::-1]])
    want = np.stack([slope(each) for each in stacked])
    largest = stacked.max(axis=tuple(axis + 1 for axis in axes), keepdims=True)
    ties = stacked == largest
    np.testing.assert_array_equal(want, ties / ties.sum(axis=tuple(axis + 1 for axis in axes), keepdims=True))
    pulled = xf.vmap(lambda x: xf.grad(lambda v: xnp.sum(xnp.max(v, axis=axes)))(x))(stacked)
    np.testing.assert_array_equal(pulled, want)
    shares = ops.Shares(axes)
    lanes = xf.vmap(lambda x: xf.apply(shares, x, xnp.max(x, axis=axes, keepdims=True)))(stacked)
    np.testing.assert_array_equal(lanes, want)
    for dtype in (np.float32, np.float64):
        check_contract(shares, (TIES.astype(dtype), TIES.astype(dtype).max(axis=axes, keepdims=True)))


@pytest.mark.parametrize("function", [
    lambda z: xnp.sort(z * z, axis=0),
    lambda z: xnp.sort(z + z**3, descending=True),
    lambda z: xnp.sort(z**3, axis=None),
])  # fmt: skip
def test_complex_numbers_are_sorted_by_real_part_and_differentiated(function):
    z = np.array([[0.5 + 0.2j, -1.25 - 0.3j, 2.0 + 1.0j], [1.5 - 0.7j, 0.75 + 0.1j, -0.25 + 0.4j]])
    check_grads(function, (z,), order=2)
    np.testing.assert_array_equal(xnp.sort(z, axis=0), np.sort(z, axis=0))


def test_sorting_complex_numbers_is_refused_where_the_library_has_no_order_for_them():
    z = strict.asarray(np.array([1.0 + 1j, 0.5]), device=strict.Device("device1"))
    with pytest.raises(TypeError, match="real numeric"):
        xnp.sort(z)
