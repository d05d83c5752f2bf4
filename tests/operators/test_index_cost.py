"""What indexing costs: loops over elements are linear, plain indices are cheap, memory is bounded."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import xform as xf
from xform.core.aval import aval_of
from xform.ops import positions
from xform.ops.indexing import make_getitem

x = np.arange(12.0).reshape(3, 4)


def same(got, want):
    assert np.asarray(got).dtype == np.asarray(want).dtype
    np.testing.assert_array_equal(got, want)


class Counting(xf.Observer):
    """Counts operations and the elements they give."""

    def __init__(self):
        self.operations = self.elements = 0

    def observe(self, op, inputs, outputs):
        self.operations += 1
        self.elements += aval_of(outputs).size if not op.attribute_like else 0


def loop(a):
    return sum(a[k] * a[k] for k in range(len(a)))


def test_a_loop_over_elements_is_linear_with_something_below():
    counts = {}
    for size in (50, 100, 200):
        with Counting() as count:
            np.testing.assert_allclose(xf.grad(loop)(np.ones(size)), 2.0)
        counts[size] = (count.operations, count.elements)
    assert counts[200][0] - counts[100][0] <= 2.1 * (counts[100][0] - counts[50][0])
    assert counts[200][1] - counts[100][1] <= 2.1 * (counts[100][1] - counts[50][1])
    assert counts[200][1] < 200 * 20


MODES = {
    "grad": lambda n: xf.grad(plain)(np.ones(n)),
    "jvp": lambda n: xf.jvp(plain, (np.ones(n),), (np.ones(n),))[1],
    "batched gradient": lambda n: xf.vmap(xf.grad(plain))(np.ones((3, n))),
    "gradient of a batch": lambda n: xf.grad(lambda a: xf.vmap(plain)(a).sum())(np.ones((3, n))),
    "replayed gradient": lambda n: xf.make_program(xf.grad(plain))(np.ones(n)).run([xf.array(np.ones(n))])[0],
}


def plain(a):
    return sum(a[i] for i in range(len(a)))


@pytest.mark.parametrize("run", MODES.values(), ids=MODES)
def test_a_sum_over_elements_is_linear_in_every_mode(run):
    counts = {}
    for size in (50, 100, 200):
        with Counting() as count:
            np.testing.assert_allclose(run(size), size if run is MODES["jvp"] else 1.0)
        counts[size] = (count.operations, count.elements)
    for part in (0, 1):
        assert counts[200][part] - counts[100][part] <= 2.1 * (counts[100][part] - counts[50][part])
    assert counts[200][1] < 200 * 50


def test_a_loop_over_elements_is_linear_in_second_order():
    counts = {}
    for size in (50, 100, 200):
        with Counting() as count:
            found = xf.grad(lambda a: (xf.grad(loop)(a) * np.arange(len(a))).sum())(np.ones(size))
        np.testing.assert_allclose(found, 2.0 * np.arange(size))
        counts[size] = (count.operations, count.elements)
    assert counts[200][0] - counts[100][0] <= 2.1 * (counts[100][0] - counts[50][0])
    assert counts[200][1] - counts[100][1] <= 2.1 * (counts[100][1] - counts[50][1])


def test_a_loop_over_elements_makes_one_buffer_on_an_empty_stack(monkeypatch):
    made, written = [], []
    zeros, add_into = np.zeros, positions.add_into

    def watched(xp, buffer, index, operands, values):
        made.append(id(buffer))
        written.append(np.size(values))
        return add_into(xp, buffer, index, operands, values)

    monkeypatch.setattr("xform.ops.indexing.add_into", watched)
    counted = []

    def counting(shape, *rest, **more):
        counted.append(shape)
        return zeros(shape, *rest, **more)

    monkeypatch.setattr("numpy.zeros", counting)
    np.testing.assert_allclose(xf.grad(loop)(np.ones(300)), 2.0)
    assert len(set(made)) == 1
    assert sum(written) == 2 * 300
    assert counted.count((300,)) <= 1


def test_plain_indices_are_cheap_on_an_empty_stack():
    calls = []
    a = xf.array(x)
    assert type(a[1]) is xf.Array
    assert np.shares_memory(a[1:].data, x)  # a view, as in NumPy
    with Counting() as count:
        calls.append(a[1])
    assert count.operations == 1


def test_the_memory_of_operators_is_bounded():
    for k in range(10_000):
        make_getitem((k,))
    assert make_getitem.cache_info().currsize <= 4096
    assert make_getitem((1,)) is make_getitem((1,))
    assert make_getitem((1,)) != make_getitem(("True",))


def test_rising_indices_are_added_without_at():
    buffer = np.zeros(5)
    assert positions._ascending(np, (np.array([0, 2, 4]),))
    assert not positions._ascending(np, (np.array([0, 2, 2]),))
    assert not positions._ascending(np, (np.array([-1, 4]),))
    assert positions._ascending(np, (np.arange(3), np.array([1, 1, 0])))
    for index in itertools.product(range(-2, 5), repeat=2):
        buffer[:] = 0
        want = np.zeros(5)
        np.add.at(want, list(index), [1.0, 2.0])
        same(positions.add_into(np, buffer, ("@",), (np.array(index),), np.array([1.0, 2.0])), want)
