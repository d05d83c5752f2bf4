"""Derivatives of traced functions by some of their outputs, results of replays, and static values that look alike."""

from __future__ import annotations

import datetime as dt
import itertools
from decimal import Decimal

import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp

ROOT = np.array([4.0, 0.0])
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


def several(x, y):
    a = xnp.sin(x) * y
    b = xnp.sqrt(x)
    return a, b, xnp.sum(a * y), xnp.exp(y), x * 3.0, y


@pytest.fixture(autouse=True)
def _quiet():
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("used", [c for n in (1, 2, 3, 6) for c in itertools.combinations(range(6), n)], ids=str)
def test_outputs_that_nothing_uses_have_no_zeros(used):
    traced = xf.trace(several)
    x, y = ROOT, np.array([0.5, 2.0])
    traced(x, y)

    def loss(f):
        return lambda x, y: sum(xnp.sum(each * each) for each in (f(x, y)[n] for n in used))

    for argnums in (0, 1, (0, 1)):
        have, want = (xf.grad(loss(f), argnums=argnums)(x, y) for f in (traced, several))
        for one, other in zip(xf.tree.leaves(have), xf.tree.leaves(want), strict=True):
            np.testing.assert_allclose(one, other)
    lanes = [xf.vmap(xf.grad(loss(f)))(np.stack([x, x + 1.0]), np.stack([y, y])) for f in (traced, several)]
    np.testing.assert_allclose(*lanes)
    np.testing.assert_allclose(xf.hessian(loss(traced))(x + 1.0, y), xf.hessian(loss(several))(x + 1.0, y))


def by_path(y):
    s, z = xnp.sum(y), xnp.sum(xnp.sqrt(y))
    return s if s > 0 else z


def by_guard(y):
    return xnp.sum(y) * int(xnp.sum(xnp.sqrt(y)))


@pytest.mark.parametrize("fun", [by_path, by_guard])
def test_what_other_paths_need_is_not_differentiated(fun):
    traced = xf.trace(fun)
    traced(ROOT)
    traced(0.0 * ROOT)
    for _ in range(3):
        np.testing.assert_array_equal(xf.grad(traced)(ROOT), xf.grad(fun)(ROOT))


def test_a_path_with_an_excluded_region_after_one_without():
    @xf.trace
    def fun(x):
        if x.sum() > 0:
            return x * 2.0
        with xf.exclude_from_trace():
            return -x

    x = np.array([1.0, 2.0])
    for sign in (1.0, -1.0, -1.0, 1.0):
        np.testing.assert_array_equal(fun(sign * x), 2.0 * x if sign > 0 else x)


@pytest.mark.parametrize("fun", [
    lambda x: ((x + 1.0).T, (x + 1.0).real), lambda x: ((x + 1.0)[::-1], (x + 1.0).real, x + 1.0),
    lambda x: ((x * 2.0).real, (x * 2.0).real), lambda x: (xnp.real(x + 1.0), xnp.positive(x + 1.0)),
])  # fmt: skip
def test_results_of_replays_share_no_more_than_eager_ones(fun):
    traced, x = xf.trace(fun), np.array([1.0, 2.0])
    traced(x)
    have, want = traced(x), fun(x)
    for (a, b), (c, d) in zip(itertools.combinations(have, 2), itertools.combinations(want, 2), strict=True):
        assert np.shares_memory(c, d) or not np.shares_memory(a, b)


@pytest.mark.parametrize(("first", "second", "read"), [
    (Decimal("1.0"), Decimal("1.000"), lambda v: len(str(v))),
    (range(0, 3, 2), range(0, 4, 2), lambda v: v.stop),
    (NOON, NOON.replace(fold=1), lambda v: v.fold + 1),
], ids=["Decimal", "range", "datetime"])  # fmt: skip
def test_static_values_that_are_equal_and_not_the_same(first, second, read):
    traced = xf.trace(lambda x, v: x * read(v), static_argnums=1)
    for value in (first, second, first):
        np.testing.assert_array_equal(traced(np.ones(2), value), np.full(2, float(read(value))))


# ------------------------------------------------------------------ loops and branches, of which some outputs are used


LOOPS = {
    "fori": lambda x: xf.fori_loop(0, 3, lambda i, c: c * x, x),
    "while": lambda x: xf.while_loop(lambda c: xnp.sum(c) < 50.0, lambda c: c * 2.0, x),
    "scan": lambda x: xf.scan(lambda c, _: (c * x, c), x, np.zeros(2))[1],
    "map": lambda x: xf.map(lambda v: v * x, x),
}


@pytest.mark.parametrize("fun", LOOPS.values(), ids=LOOPS)
def test_linearize_gives_the_values_of_loops(fun):
    x = np.array([1.0, 2.0, 3.0])
    out, pushed, aux = xf.linearize(lambda v: (fun(v), fun(2.0 * v)), x, has_aux=True)
    np.testing.assert_allclose(out, fun(x))
    np.testing.assert_allclose(aux, fun(2.0 * x))
    np.testing.assert_allclose(pushed(x), xf.jvp(fun, (x,), (x,))[1])
    np.testing.assert_allclose(xf.grad(lambda v: xf.linearize(fun, v)[0].sum())(x), xf.grad(lambda v: fun(v).sum())(x))
    lanes = np.stack([x, x + 1.0])
    np.testing.assert_allclose(xf.vmap(lambda v: xf.linearize(fun, v)[0])(lanes), xf.vmap(fun)(lanes))
    swapped = lambda v: xnp.sum(xf.fori_loop(0, 1, lambda i, c: (c[1], c[0]), (v, v))[1])
    value, pushed = xf.linearize(xf.grad(swapped), x)
    np.testing.assert_array_equal([value, pushed(x)], [np.ones(3), np.zeros(3)])


def test_branches_of_which_one_output_is_used():
    x, y = np.ones(3), np.full(3, 2.0)
    loss = lambda a, b, p: xnp.sum(xf.cond(p, lambda: (b, a), lambda: (a, b))[1])
    for p in (np.True_, np.False_):
        want = xf.grad(loss, (0, 1))(x, y, p)
        for fun in (xf.grad(xf.trace(loss), (0, 1)), xf.trace(xf.grad(loss, (0, 1)))):
            for _ in range(2):
                np.testing.assert_array_equal(fun(x, y, p), want)
    lanes = xf.vmap(xf.grad(loss, (0, 1)))(np.stack([x, x]), np.stack([y, y]), np.array([True, False]))
    np.testing.assert_array_equal(lanes, [[[1, 1, 1], [0, 0, 0]], [[0, 0, 0], [1, 1, 1]]])


def test_a_batch_of_loops_with_operations_that_no_output_needs():
    def built(v, w):
        with xf.LoopBuilder() as loop:
            c, d = loop.input(v, assign=True), loop.input(w, assign=True)
            loop.assign(c, c * 2.0)
            loop.assign(d, d * 3.0 + w * 2.0)
            loop.condition(loop.counter < 1)
            outs = [loop.output(c, "last")]
        return outs[0]

    v = np.arange(6.0).reshape(2, 3)
    for axes, w in (((0, 0), v), ((0, None), v[0])):
        np.testing.assert_array_equal(xf.vmap(built, in_axes=axes)(v, w), 2.0 * v)
        gradient = xf.vmap(xf.grad(lambda a, b: built(a, b).sum()), in_axes=axes)
        np.testing.assert_array_equal(gradient(v, w), np.full((2, 3), 2.0))


def test_loops_that_count_beside_loops_that_do_not():
    x = np.array([0.5, 1.5, 2.0])
    fun = lambda v, n: xnp.sum(xf.map(lambda y: xf.fori_loop(0, n, lambda i, d: d * y, y), v))
    for gradient in (xf.trace(xf.grad(fun)), xf.grad(fun), xf.grad(xf.trace(fun)), xf.grad(fun)):
        np.testing.assert_allclose(gradient(x, 3), 4.0 * x**3)
        np.testing.assert_allclose(gradient(x, 2), 3.0 * x**2)


def test_jacobians_with_values_of_a_batch_that_has_ended():
    """Where a gradient does not vary, its zeros are made from its shape: its value may be of a batch that is over."""

    def loss(x):
        with xf.LoopBuilder() as loop:
            c = loop.input(x, assign=True)
            loop.assign(c, c + 1.0)
            loop.condition(loop.counter < 2)
            out = [loop.output(c, "last")]
        return xnp.sum(out[0])

    np.testing.assert_array_equal(xf.hessian(loss)(np.ones(3)), np.zeros((3, 3)))
    np.testing.assert_array_equal(xf.jacfwd(xf.grad(loss))(np.ones(3)), np.zeros((3, 3)))
