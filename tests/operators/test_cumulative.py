"""Running sums and products, the product, differences: NumPy's values, and derivatives that never divide."""

from __future__ import annotations

import itertools
import math

import array_api_strict as strict
import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from tests.operators.test_reductions import assert_same, outcome, sample
from xform import ops
from xform.core.aval import aval_of
from xform.core.errors import IndexOperandError, ShapeError
from xform.core.rules import batch_rule, jvp_of
from xform.core.stack import apply

DTYPES = ("bool", "int8", "uint16", "int64", "uint64", "float16", "float32", "float64", "complex64")
SHAPES = ((), (1,), (4,), (2, 3), (2, 1, 3), (0,), (0, 3))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_accumulations_are_numpys(name, dtype):
    for shape, axis in itertools.product(SHAPES, (None, 0, -1, 1)):
        x = sample(shape, dtype)
        want = outcome(getattr(np, name), x, axis)
        for each in (x, xf.array(x)):
            got = outcome(getattr(xnp, name), each, axis)
            got = got.data if isinstance(got, xf.Array) else got
            if isinstance(want, type):
                assert got is want
            else:
                assert_same(got, want)
        if x.ndim and not isinstance(want, type):
            for reverse in (False, True):
                op = (ops.CumSum if name == "cumsum" else ops.CumProd)(0, reverse)
                assert op.infer(aval_of(x)) == aval_of(op.evaluate(np, x))
    assert_same(
        getattr(xnp, name)(np.arange(4, dtype=np.int8), dtype=np.float32),
        getattr(np, name)(np.arange(4), dtype=np.float32),
    )
    assert_same(getattr(xnp, name)(np.arange(4), 0, np.int8), getattr(np, name)(np.arange(4), 0, np.int8))
    with pytest.raises(IndexOperandError, match=r"CumSum|CumProd"):
        getattr(xnp, name)(np.ones((2, 3)), axis=2)


def products_of_others(x):
    return np.array([math.prod(x[:i]) * math.prod(x[i + 1 :]) for i in range(len(x))])


def hessian_of_product(x):
    def pair(i, j):
        return 0.0 if i == j else math.prod(v for k, v in enumerate(x) if k not in (i, j))

    return np.array([[pair(i, j) for j in range(len(x))] for i in range(len(x))])


@pytest.mark.parametrize("zeros", range(5))
def test_prod_with_zeros_in_both_modes_and_orders(zeros):
    x = np.array([2.0, -3.0, 0.5, 4.0, 1.5])
    x[:zeros] = 0.0
    np.testing.assert_array_equal(xf.grad(xnp.prod)(x), products_of_others(x))
    rows = [xf.grad(lambda v, k=k: xf.grad(xnp.prod)(v) @ np.eye(5)[k])(x) for k in range(5)]
    np.testing.assert_allclose(np.stack(rows), hessian_of_product(x), atol=1e-14)
    op = ops.Prod((0,))
    for k in range(5):
        assert jvp_of(op)(op, (x,), (np.eye(5)[k],))[1] == products_of_others(x)[k]


def test_prod_over_axes_with_zeros():
    x = np.array([[[2.0, 0.0], [3.0, 1.0]], [[0.5, 2.0], [4.0, 0.0]]])
    found = xf.grad(lambda v: xnp.sum(xnp.prod(v, axis=(0, 2))))(x)
    want = np.zeros_like(x)
    for j in range(2):
        want[:, j, :] = products_of_others(x[:, j, :].ravel()).reshape(2, 2)
    np.testing.assert_allclose(found, want)
    np.testing.assert_array_equal(xf.grad(xnp.prod)(np.ones((0,))), np.ones(0))
    assert xf.grad(xnp.prod)(3.0) == 1.0


@pytest.mark.parametrize("zeros", [(), (1,), (0, 2), (0, 1, 2, 3)])
def test_cumprod_with_zeros(zeros):
    x = np.array([2.0, -3.0, 0.5, 4.0])
    x[list(zeros)] = 0.0
    want = np.zeros((4, 4))  # want[k, i]: derivative of output k by element i
    for k in range(4):
        want[k, : k + 1] = products_of_others(x[: k + 1])
    for k in range(4):
        np.testing.assert_allclose(xf.grad(lambda v, k=k: xnp.cumprod(v) @ np.eye(4)[k])(x), want[k], atol=1e-15)
        for reverse in (False, True):
            op = ops.CumProd(0, reverse)
            flip = slice(None, None, -1) if reverse else slice(None)
            moved = jvp_of(op)(op, (x[flip],), (np.eye(4)[k][flip],))[1]
            np.testing.assert_allclose(moved[flip], want[:, k], atol=1e-15)


def test_cumprod_third_derivative():
    def f(v):
        return xnp.sum(xnp.cumprod(v))

    x = np.array([0.0, 3.0, 0.0, 2.0])

    def by(g, k):
        return xf.grad(lambda v: g(v) @ np.eye(4)[k])

    third = by(by(xf.grad(f), 0), 1)(x)  # d3/dx0 dx1 dx: only outputs 2 and 3 hold three factors or more
    np.testing.assert_allclose(third, [0.0, 0.0, 1.0 + x[3], x[2]])


def test_recurrence_is_what_it_says_and_does_not_overflow_on_the_way():
    rng = np.random.default_rng(4)
    for shape, axis, reverse in itertools.product(((1,), (5,), (3, 4), (2, 3, 7)), (0, -1), (False, True)):
        at = axis % len(shape)
        a, b = rng.normal(size=shape), rng.normal(size=shape)
        want = np.array(b)
        steps = range(shape[at])[::-1] if reverse else range(shape[at])
        views = [np.moveaxis(v, at, 0) for v in (a, want)]
        for k, before in zip(list(steps)[1:], list(steps), strict=False):
            views[1][k] += views[0][k] * views[1][before]
        np.testing.assert_allclose(apply(ops.Recurrence(at, reverse), a, b), want)
    big = np.full(8, 1e200)
    np.testing.assert_array_equal(apply(ops.Recurrence(0), big, np.eye(8)[7]), np.eye(8)[7])
    np.testing.assert_array_equal(
        jvp_of(ops.CumProd(0))(ops.CumProd(0), (big * np.eye(8)[7],), (np.zeros(8),))[1], np.zeros(8)
    )
    assert apply(ops.Recurrence(0), np.zeros((0, 2)), np.zeros((0, 2))).shape == (0, 2)
    with pytest.raises(ShapeError, match="broadcast"):
        apply(ops.Recurrence(0), np.ones(3), np.ones(4))


def test_shift():
    x = np.array([[1.0, 2.0, 3.0]])
    np.testing.assert_array_equal(apply(ops.Shift(1), x), [[0, 1, 2]])
    np.testing.assert_array_equal(apply(ops.Shift(1, backward=True, fill=1), x), [[2, 3, 1]])
    np.testing.assert_array_equal(apply(ops.Shift(0, fill=1), x), [[1, 1, 1]])
    assert apply(ops.Shift(0), np.zeros((0, 2))).shape == (0, 2)


@pytest.mark.parametrize(
    "op", [ops.CumSum(0), ops.CumProd(1, reverse=True), ops.Shift(1, fill=1), ops.Sort(0), ops.Argsort(1)], ids=repr
)
def test_batch_equals_a_loop(op):
    x = np.random.default_rng(1).normal(size=(4, 2, 3))
    for axis in range(3):
        out, out_axis = batch_rule.get(op)(op, 4, (np.moveaxis(x, 0, axis),), (axis,))
        np.testing.assert_array_equal(np.moveaxis(out, out_axis, 0), np.stack([op.evaluate(np, each) for each in x]))


@pytest.mark.parametrize("axes", [(0, None), (None, 1), (2, 0)])
def test_batch_of_recurrence(axes):
    op = ops.Recurrence(1)
    rng = np.random.default_rng(1)
    full = [rng.normal(size=(4, 2, 3)) for _ in range(2)]
    plain = [v[0] if axis is None else v for v, axis in zip(full, axes, strict=True)]
    given = [v if axis is None else np.moveaxis(v, 0, axis) for v, axis in zip(plain, axes, strict=True)]
    out, out_axis = batch_rule.get(op)(op, 4, tuple(given), axes)
    for k in range(4):
        each = [v if axis is None else v[k] for v, axis in zip(plain, axes, strict=True)]
        np.testing.assert_allclose(np.take(out, k, out_axis), op.evaluate(np, *each))


def test_diff_is_numpys():
    x = np.random.default_rng(0).normal(size=(3, 4))
    for n, axis in itertools.product(range(5), (0, -1)):
        assert_same(xnp.diff(x, n, axis), np.diff(x, n, axis))
    assert_same(xnp.diff(x, prepend=0.0, append=x[:, :2]), np.diff(x, prepend=0.0, append=x[:, :2]))
    assert_same(xnp.diff(x > 0, axis=0), np.diff(x > 0, axis=0))
    assert_same(xnp.diff(np.array([3, 1, 4], np.int32), prepend=0), np.diff(np.array([3, 1, 4], np.int32), prepend=0))
    for bad in (lambda: xnp.diff(3.0), lambda: xnp.diff(x, -1)):
        with pytest.raises(ShapeError, match="diff"):
            bad()


def test_trapezoid_is_numpys():
    rng = np.random.default_rng(0)
    y, p = rng.normal(size=(3, 4)), np.cumsum(rng.uniform(size=3))
    for axis in (0, -1):
        np.testing.assert_allclose(xnp.trapezoid(y, dx=0.25, axis=axis), np.trapezoid(y, dx=0.25, axis=axis))
    np.testing.assert_allclose(xnp.trapezoid(y, p, axis=0), np.trapezoid(y, p, axis=0))
    np.testing.assert_allclose(xnp.trapezoid(y, y * 2.0), np.trapezoid(y, y * 2.0))


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "prod", "diff"])
def test_array_api_on_a_device(name):
    device = strict.Device("device1")
    x = np.array([[1.0, 0.0, 3.0], [0.5, 2.0, 0.0]])
    y = strict.asarray(x, device=device)

    def f(v):
        return xnp.sum(getattr(xnp, name)(v, axis=1) ** 2)

    found = xf.grad(f)(y)
    assert found.device == device
    np.testing.assert_allclose(np.from_dlpack(strict.asarray(found, device=strict.Device("CPU_DEVICE"))), xf.grad(f)(x))
