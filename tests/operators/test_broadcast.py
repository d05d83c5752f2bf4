"""Broadcasting, its transpose, casts, and how cotangents are brought to their primals."""

from __future__ import annotations

import itertools

import array_api_strict as strict
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import xform as xf
import xform.numpy as xnp
from tests.operators.unknown_shapes import Hide
from xform import ops
from xform.core.aval import Aval, aval_of
from xform.core.errors import DtypeError, ShapeError
from xform.core.rules import batch_rule, jvp_of
from xform.core.stack import apply
from xform.ops.broadcast import broadcast_view, settle_shape


@given(hnp.mutually_broadcastable_shapes(num_shapes=1, max_dims=4, max_side=3, min_side=0), st.booleans())
@settings(max_examples=80, deadline=None)
def test_views_are_numpys(shapes, transposed):
    (own,), target = shapes
    x = np.arange(float(np.prod(own))).reshape(own)
    x = np.asfortranarray(x)[::1] if transposed and x.ndim else x
    want = np.broadcast_to(x, target.result_shape if hasattr(target, "result_shape") else target)
    got = broadcast_view(x, want.shape)
    np.testing.assert_array_equal(got, want)
    assert got.shape == want.shape
    assert not got.flags.writeable


def test_broadcast_to():
    assert xnp.broadcast_to(3.0, 2).tolist() == [3.0, 3.0]
    assert xnp.broadcast_to(np.float32(3), (2,)).dtype == np.float32
    assert xnp.broadcast_to(np.array([[1], [2]]), (2, 2)).tolist() == [[1, 1], [2, 2]]
    np.testing.assert_array_equal(xnp.broadcast_to(np.arange(3.0)[::-1], (2, 3)), [[2, 1, 0]] * 2)
    for shape, target in (((2,), (3,)), ((2, 3), (3,)), ((3,), (1,))):
        with pytest.raises(ShapeError, match="BroadcastTo"):
            xnp.broadcast_to(np.ones(shape), target)
        with pytest.raises(ShapeError, match="BroadcastTo"):
            ops.BroadcastTo(target).infer(Aval(shape, np.dtype(float)))
    assert ops.BroadcastTo((2, 3)).infer(Aval((None,), np.dtype(float))) == Aval((2, 3), np.dtype(float))


def test_sum_to():
    x = np.arange(12.0).reshape(2, 2, 3)
    for shape, want in (
        ((2, 3), x.sum(0)),
        ((1, 3), x.sum((0, 1))[None]),
        ((), x.sum()),
        ((2, 1, 3), x.sum(1, keepdims=True)),
        (x.shape, x),
    ):
        for op, others in ((ops.SumTo(shape), ()), (ops.SumLike(), (np.ones(shape),))):
            got = apply(op, x, *others)
            np.testing.assert_array_equal(got, want)
            assert op.infer(aval_of(x), *map(aval_of, others)) == aval_of(got)
    assert apply(ops.SumTo((1,)), np.ones((3, 1), np.int8)).dtype == np.int8
    for bad in ((2,), (5, 2, 3), (2, 2, 2)):
        with pytest.raises(ShapeError, match="SumTo"):
            ops.SumTo(bad).infer(aval_of(x))


DTYPES = ("bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64", "complex128")


def test_astype_is_numpys():
    for have, want in itertools.product(DTYPES, DTYPES):
        x = np.array([0, 1, 2, 3]).astype(have)
        got = xnp.astype(x, want)
        np.testing.assert_array_equal(got, x.real.astype(want) if np.dtype(want).kind not in "cb" else x.astype(want))
        assert got.dtype == want
        assert ops.Astype(want).infer(aval_of(x)) == aval_of(got)
    x = np.ones(2)
    assert xnp.astype(x, float) is not x
    assert xnp.astype(2.7, int) == 2
    assert type(xnp.astype(np.float64(2.7), np.float32)) is np.float32
    assert xnp.astype(1 + 2j, float) == 1.0
    with pytest.raises(DtypeError, match="astype"):
        xnp.astype(x, str)
    with pytest.raises(DtypeError, match="astype"):
        xnp.astype(x, object)


def test_derivatives_of_casts():
    x = np.array([1.5, -2.0], np.float32)
    found = xf.grad(lambda v: xnp.sum(xnp.astype(v, np.float64) ** 2))(x)
    np.testing.assert_array_equal(found, 2 * x)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(xf.grad(lambda v: xnp.sum(v * xnp.astype(v, int)))(x), [1.0, -2.0])
    op = ops.Astype("int64")
    assert jvp_of(op)(op, (x,), (x,))[1] is None
    op = ops.Astype("float64")
    assert jvp_of(op)(op, (x,), (x,))[1].dtype == np.float64
    real = ops.Astype("float64")
    out, tangent = jvp_of(real)(real, (np.array([1 + 2j]),), (np.array([3 + 4j]),))
    assert (out, tangent) == (1.0, 3.0)


# ------------------------------------------------------------------ batches


PAIRS = [((3,), (2, 3)), ((2, 1), (2, 3)), ((), (2,)), ((2, 1), (4, 2, 3)), ((2, 3), (2, 3)), ((1,), (3, 2, 4))]


def loop(op, size, values, axes):
    each = [[v if a is None else np.take(v, k, a) for v, a in zip(values, axes, strict=True)] for k in range(size)]
    return np.stack([op.evaluate(np, *arrays) for arrays in each])


def batched(op, values, axes):
    out, out_axis = batch_rule.get(op)(op, 5, tuple(values), tuple(axes))
    return np.moveaxis(np.asarray(out), out_axis, 0)


@pytest.mark.parametrize(("small", "large"), PAIRS)
def test_batch_equals_a_loop(small, large):
    rng = np.random.default_rng(0)
    for axis in range(len(small) + 1):
        x = rng.normal(size=(*small[:axis], 5, *small[axis:]))
        op = ops.BroadcastTo(large)
        np.testing.assert_array_equal(batched(op, (x,), (axis,)), loop(op, 5, (x,), (axis,)))
    for axis in range(len(large) + 1):
        x = rng.normal(size=(*large[:axis], 5, *large[axis:]))
        op = ops.SumTo(small)
        np.testing.assert_allclose(batched(op, (x,), (axis,)), loop(op, 5, (x,), (axis,)))


@pytest.mark.parametrize(("small", "large"), PAIRS)
def test_batch_of_a_sum_that_broadcasts_equals_a_loop(small, large):
    for axis in range(len(small) + 1):
        x = np.random.default_rng(0).normal(size=(*small[:axis], 5, *small[axis:]))
        op = ops.SumTo(large)
        np.testing.assert_array_equal(batched(op, (x,), (axis,)), loop(op, 5, (x,), (axis,)))
        for like, like_axis in ((np.ones(large), None), (np.ones((*large, 5)), len(large))):
            values, axes = (x, like), (axis, like_axis)
            np.testing.assert_array_equal(batched(ops.SumLike(), values, axes), loop(ops.SumLike(), 5, values, axes))


@pytest.mark.parametrize(("small", "large"), PAIRS)
def test_batch_of_likes_equals_a_loop(small, large):
    rng = np.random.default_rng(0)

    def operand(shape, axis):
        return rng.normal(size=shape if axis is None else (*shape[:axis], 5, *shape[axis:]))

    for first, second in itertools.product((None, *range(len(small) + 1)), (None, *range(len(large) + 1))):
        if first is None and second is None:
            continue
        narrow, wide = operand(small, first), operand(large, second)
        for op, values, axes in (
            (ops.BroadcastLike(), (narrow, wide), (first, second)),
            (ops.SumLike(), (wide, narrow), (second, first)),
        ):
            np.testing.assert_allclose(batched(op, values, axes), loop(op, 5, values, axes), err_msg=f"{op} {axes}")


# ------------------------------------------------------------------ settling


def test_settle_shape():
    t = np.ones((2, 3))
    for shape in ((3,), (1, 3), (2, 1), (), (2, 3)):
        assert np.shape(settle_shape(t, Aval(shape, t.dtype))) == shape
    assert settle_shape(np.ones((2, 1)), Aval((2, 3), t.dtype)).shape == (2, 3)
    assert settle_shape(2.0, Aval((), t.dtype)) == 2.0
    assert settle_shape(t, Aval((2, 3), t.dtype)) is t


@pytest.mark.parametrize(
    ("own", "other"), [((3,), (2, 3)), ((1, 3), (2, 3)), ((2, 3), (2, 1)), ((), (2,)), ((1,), (4,))]
)
def test_unknown_lengths_are_settled_at_run_time(own, other):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=own), rng.normal(size=other)

    def f(a, b):
        return xnp.sum(a * b * b)

    want = xf.grad(f, (0, 1))(x, y)
    with Hide() as hide:
        for hidden in itertools.product((False, True), repeat=2):
            args = [hide.hidden(v) if h else v for v, h in zip((x, y), hidden, strict=True)]
            for got, each in zip(xf.grad(f, (0, 1))(*args), want, strict=True):
                np.testing.assert_allclose(hide.shown(got), each)


def test_array_api_on_a_device():
    device = strict.Device("device1")
    y = strict.asarray(np.ones((2, 1)), device=device)
    assert xnp.broadcast_to(y, (3, 2, 4)).shape == (3, 2, 4)
    assert xnp.astype(y, "float32").dtype == strict.float32
    assert apply(ops.SumTo((1,)), y).device == device
    z = strict.asarray(np.ones(2) * (1 + 2j), device=device)
    assert float(xnp.astype(z, "float64")[0]) == 1.0
    found = xf.grad(lambda v: xnp.sum(xnp.broadcast_to(v, (2, 3)) * 2.0))(y)
    assert found.device == device
    assert found.shape == (2, 1)
