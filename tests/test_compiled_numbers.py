"""Compiled programs compute with elements of arrays as with numbers, in Python; the values are those of NumPy."""

from __future__ import annotations

import operator
import re

import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp

ELEMENTS = {
    "float64": [3.0, -1.0, np.nan, np.inf],
    "float32": [0.1, -0.1, np.nan, 3e38],
    "int64": [3, -1, 0, 2**62],
    "uint8": [3, 1, 0, 255],
    "bool": [True, False, True, False],
}
COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]


def compiled(f, *args):
    return xf.compile_program(xf.make_program(f)(*args))


def calls(source):
    """Return the names of the functions that a source calls, save those that manage memory."""
    return set(re.findall(r"(\w+)\(", source)) - {"program", "take", "another", "give"}


def agree(f, *args):
    """Compare a compiled function with what it gives for NumPy's arrays."""
    with np.errstate(all="ignore"):
        for found, want in zip(compiled(f, *args)(*args), xf.tree.leaves(f(*args)), strict=True):
            np.testing.assert_array_equal(found, want)
            assert isinstance(found, np.generic)
            assert found.dtype == np.asarray(want).dtype


@pytest.mark.parametrize("dtype", ELEMENTS)
def test_comparisons_and_choices_of_elements(dtype):
    x = np.array(ELEMENTS[dtype], dtype)
    for i in range(4):
        agree(lambda x, i=i: [compare(x[i], x[j]) for compare in COMPARISONS for j in range(4)], x)
        agree(lambda x, i=i: [compare(x[i], 1) for compare in COMPARISONS], x)
        agree(lambda x, i=i: [np.where(x[0] == x[i], x[i], x[j]) for j in range(4)], x)
        agree(lambda x, i=i: [np.where(x[0] == x[i], 1, x[i]), np.where(x[i], x[i], 0)], x)


def test_elements_are_chosen_by_an_integer_that_is_known_at_run_time():
    x = np.arange(6.0).reshape(2, 3)
    f = lambda x, i, j: x[i, j] * x[1, j] + x[i][2]
    program = compiled(f, x, np.int64(0), np.int8(1))
    for i, j in ((0, 1), (1, 2), (-1, -2)):
        assert program(x, np.int64(i), np.int8(j))[0] == x[i, j] * x[1, j] + x[i, 2]


def test_arithmetic_of_elements_calls_no_ufunc():
    def rates(z):
        hares, lynxes = z
        caught = xnp.where(hares * lynxes > 0.1, hares * lynxes, 0.0)
        return hares * (1.0 - hares / 4.0) - caught, -lynxes + caught

    z = np.array([1.5, 0.5])
    program = compiled(rates, z)
    assert program(z) == [1.5 * (1.0 - 1.5 / 4.0) - 0.75, -0.5 + 0.75]
    assert calls(program.source) == set()


def test_an_element_is_no_part_of_an_array_that_is_written_again():
    def f(x):
        y = xnp.exp(x)
        first = y[0]
        z = xnp.stack([y * 2.0, y * 3.0])
        return xnp.sum(xnp.sin(z) * first), first

    x = np.array([0.5, 0.25, 0.125])
    y = np.exp(x)
    program = compiled(f, x)
    for _ in range(2):
        total, first = program(x)
        np.testing.assert_allclose(total, (np.sin(2.0 * y) + np.sin(3.0 * y)).sum() * y[0])
        assert first == y[0]


def test_an_index_without_a_number_gives_a_view_as_before():
    agree(lambda x: xnp.sum(x[1:3] * x[None, 0]) + x[..., 1] * 2.0, np.arange(4.0))
