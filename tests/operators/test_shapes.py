"""Reshaping, joining, splitting, padding, repeating, reordering: values, dtypes and errors as NumPy has them."""

from __future__ import annotations

import itertools
import pickle

import array_api_strict
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import xform as xf
import xform.numpy as xnp
from xform import ops
from xform.core.aval import Aval
from xform.core.errors import IndexOperandError, OperandError, OperandTypeError, ShapeError

DTYPES = ("bool", "int8", "int64", "uint16", "float32", "float64", "complex64", "complex128")
DEVICE = array_api_strict.Device("device1")

x = np.arange(6.0).reshape(2, 3)
v = np.arange(4.0)
cube = np.arange(24.0).reshape(2, 3, 4)


def number(dtype, shape=(2, 3, 4)):
    return (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 5).astype(dtype)


def same(found, wanted):
    """Equal values, shape and dtype; lists and tuples part by part."""
    if isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other)
        return
    found, wanted = np.asarray(xf.concrete(found)), np.asarray(wanted)
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


CALLS = {
    "reshape": lambda m, a: m.reshape(a, (4, -1)),
    "reshape flat": lambda m, a: m.reshape(a, -1),
    "ravel": lambda m, a: m.ravel(a),
    "transpose": lambda m, a: m.transpose(a),
    "transpose axes": lambda m, a: m.transpose(a, (1, -1, 0)),
    "permute_dims": lambda m, a: m.permute_dims(a, (1, 2, 0)),
    "moveaxis": lambda m, a: m.moveaxis(a, (0, 1), (-1, 0)),
    "moveaxis one": lambda m, a: m.moveaxis(a, -1, 0),
    "swapaxes": lambda m, a: m.swapaxes(a, 0, -1),
    "matrix_transpose": lambda m, a: m.matrix_transpose(a),
    "expand_dims": lambda m, a: m.expand_dims(a, (0, -2)),
    "expand_dims one": lambda m, a: m.expand_dims(a, -1),
    "squeeze": lambda m, a: m.squeeze(a[:, :1]),
    "squeeze axis": lambda m, a: m.squeeze(a[:1, :, :1], (0, -1)),
    "atleast_1d": lambda m, a: m.atleast_1d(a[0, 0, 0]),
    "atleast_2d": lambda m, a: m.atleast_2d(a[0, 0], a),
    "atleast_3d": lambda m, a: m.atleast_3d(a[0, 0], a[0], a, a[0, 0, 0]),
    "broadcast_arrays": lambda m, a: m.broadcast_arrays(a[:, :1], a[0], a[0, 0, 0]),
    "meshgrid": lambda m, a: m.meshgrid(a[0, 0], a[0, :, 0], a[:, 0, 0]),
    "meshgrid ij": lambda m, a: m.meshgrid(a[0, 0], a[0, :, 0], indexing="ij"),
    "meshgrid sparse": lambda m, a: m.meshgrid(a[0, 0], a[0, :, 0], sparse=True),
    "concatenate": lambda m, a: m.concatenate([a, a[:1], a], axis=0),
    "concatenate negative": lambda m, a: m.concatenate((a, a[..., :2]), axis=-1),
    "concatenate flat": lambda m, a: m.concatenate([a, a[0, 0]], axis=None),
    "concat": lambda m, a: m.concat([a, a], axis=1),
    "stack": lambda m, a: m.stack([a, a]),
    "stack last": lambda m, a: m.stack([a, a], axis=-1),
    "stack scalars": lambda m, a: m.stack([a[0, 0, 0], a[1, 2, 3]]),
    "hstack": lambda m, a: m.hstack([a, a[:, :1]]),
    "hstack rows": lambda m, a: m.hstack([a[0, 0], a[0, 0, :2]]),
    "vstack": lambda m, a: m.vstack([a[0], a[0, 0]]),
    "dstack": lambda m, a: m.dstack([a[0], a[1]]),
    "column_stack": lambda m, a: m.column_stack([a[0, :, 0], a[0]]),
    "split": lambda m, a: m.split(a, 2),
    "split points": lambda m, a: m.split(a, [1, 2], axis=-1),
    "split beyond": lambda m, a: m.split(a, [1, 9], axis=1),
    "split negative": lambda m, a: m.split(a, [-3, -1], axis=2),
    "split out of order": lambda m, a: m.split(a, [3, 1], axis=2),
    "split nowhere": lambda m, a: m.split(a, []),
    "array_split": lambda m, a: m.array_split(a, 3, axis=2),
    "array_split more": lambda m, a: m.array_split(a, 6, axis=2),
    "hsplit": lambda m, a: m.hsplit(a, 3),
    "hsplit row": lambda m, a: m.hsplit(a[0, 0], [1]),
    "vsplit": lambda m, a: m.vsplit(a, 2),
    "dsplit": lambda m, a: m.dsplit(a, [1, 2]),
    "unstack": lambda m, a: m.unstack(a),
    "unstack axis": lambda m, a: m.unstack(a, axis=-1),
    "flip": lambda m, a: m.flip(a),
    "flip axis": lambda m, a: m.flip(a, (0, -1)),
    "flipud": lambda m, a: m.flipud(a),
    "fliplr": lambda m, a: m.fliplr(a),
    "roll": lambda m, a: m.roll(a, 5),
    "roll axis": lambda m, a: m.roll(a, -1, axis=-1),
    "roll axes": lambda m, a: m.roll(a, (1, 2), axis=(0, 2)),
    "roll axis twice": lambda m, a: m.roll(a, (1, 2), axis=(2, 2)),
    "roll one shift": lambda m, a: m.roll(a, 1, axis=(0, 1)),
    "rot90 0": lambda m, a: m.rot90(a, 0),
    "rot90 1": lambda m, a: m.rot90(a),
    "rot90 2": lambda m, a: m.rot90(a, 2, (0, 2)),
    "rot90 3": lambda m, a: m.rot90(a, -1, (2, 1)),
    "tile": lambda m, a: m.tile(a, (2, 1, 3)),
    "tile more": lambda m, a: m.tile(a, (2, 1, 2, 1)),
    "tile fewer": lambda m, a: m.tile(a, 2),
    "tile none": lambda m, a: m.tile(a, (0, 2)),
    "tile scalar": lambda m, a: m.tile(a[0, 0, 0], 3),
    "repeat": lambda m, a: m.repeat(a, 2),
    "repeat axis": lambda m, a: m.repeat(a, 3, axis=-2),
    "repeat each": lambda m, a: m.repeat(a, [1, 0, 2], axis=1),
    "repeat array": lambda m, a: m.repeat(a, np.array([2, 1]), axis=0),
    "repeat one count": lambda m, a: m.repeat(a, [2], axis=0),
    "pad": lambda m, a: m.pad(a, ((1, 0), (0, 2), (1, 1))),
    "pad number": lambda m, a: m.pad(a, 1),
    "pad pair": lambda m, a: m.pad(a, (2, 1)),
    "pad value": lambda m, a: m.pad(a, (2, 1), constant_values=1),
    "pad values": lambda m, a: m.pad(a, 1, constant_values=((1, 0), (0, 1), (1, 1))),
    "pad value pair": lambda m, a: m.pad(a, 2, constant_values=(1, 0)),
    "pad edge": lambda m, a: m.pad(a, (2, 3), "edge"),
    "pad reflect": lambda m, a: m.pad(a, (5, 3), "reflect"),
    "pad symmetric": lambda m, a: m.pad(a, (5, 3), "symmetric"),
    "pad wrap": lambda m, a: m.pad(a, (5, 3), "wrap"),
    "triu": lambda m, a: m.triu(a, 1),
    "triu row": lambda m, a: m.triu(a[0, 0]),
    "tril": lambda m, a: m.tril(a, -1),
    "diag matrix": lambda m, a: m.diag(a[0], 1),
    "diag row": lambda m, a: m.diag(a[0, 0], -2),
    "diagflat": lambda m, a: m.diagflat(a[0], 1),
    "diagonal": lambda m, a: m.diagonal(a, -1),
    "diagonal axes": lambda m, a: m.diagonal(a, 1, 2, 0),
    "trace": lambda m, a: m.trace(a),
    "trace dtype": lambda m, a: m.trace(a, 1, 1, 2, dtype="complex128"),
    "zeros_like": lambda m, a: m.zeros_like(a),
    "ones_like": lambda m, a: m.ones_like(a, dtype="float32"),
    "full_like": lambda m, a: m.full_like(a, 3),
    "full_like shape": lambda m, a: m.full_like(a, 3, shape=(2, 2)),
}

calls = pytest.mark.parametrize("call", [pytest.param(call, id=label) for label, call in CALLS.items()])


@pytest.mark.parametrize("dtype", DTYPES)
@calls
def test_values_are_numpys(call, dtype):
    a = number(dtype)
    same(call(xnp, a), call(np, a))


@calls
def test_numpys_own_functions_reach_values(call):
    a = number("float64")
    found = call(np, xf.array(a))
    for each in found if isinstance(found, list | tuple) else [found]:
        assert isinstance(each, xf.Array)
    same(found, call(np, a))


@pytest.mark.parametrize("name", sorted(CALLS))
def test_values_on_a_device(name):
    a = number("float64")
    found = CALLS[name](xnp, xf.array(array_api_strict.asarray(a, device=DEVICE)))
    wanted = CALLS[name](np, a)
    flat = found if isinstance(found, list | tuple) else [found]
    for each, want in zip(flat, wanted if isinstance(wanted, list | tuple) else [wanted], strict=True):
        raw = xf.concrete(each)
        assert raw.device == DEVICE
        same(np.asarray(array_api_strict.asarray(raw, device=array_api_strict.Device("CPU_DEVICE"))), want)


def shapes_of(avals):
    return [each.shape for each in avals] if isinstance(avals, tuple) else avals.shape


@settings(max_examples=60, deadline=None)
@given(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3), st.data())
def test_any_shape(shape, data):
    a = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    ndim = len(shape)
    order = data.draw(st.permutations(range(ndim)))
    same(xnp.transpose(a, order), np.transpose(a, order))
    same(xnp.ravel(a), np.ravel(a))
    same(xnp.squeeze(a), np.squeeze(a))
    same(xnp.flip(a), np.flip(a))
    same(xnp.roll(a, 2), np.roll(a, 2))
    new = data.draw(st.integers(-ndim - 1, ndim))
    same(xnp.expand_dims(a, new), np.expand_dims(a, new))
    same(xnp.stack([a, a], new), np.stack([a, a], new))
    reps = data.draw(st.lists(st.integers(0, 3), max_size=5))
    same(xnp.tile(a, reps), np.tile(a, reps))
    widths = data.draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=ndim, max_size=ndim))
    if ndim:
        same(xnp.pad(a, widths), np.pad(a, widths))
        axis = data.draw(st.integers(-ndim, ndim - 1))
        same(xnp.concatenate([a, a], axis), np.concatenate([a, a], axis))
        same(xnp.unstack(a, axis), np.unstack(a, axis=axis))
        counts = data.draw(st.lists(st.integers(0, 3), min_size=shape[axis], max_size=shape[axis]))
        if len(counts) != 1:
            same(xnp.repeat(a, counts, axis), np.repeat(a, np.array(counts, int), axis))
        sections = data.draw(st.integers(1, 4))
        same(xnp.array_split(a, sections, axis), np.array_split(a, sections, axis))
        points = data.draw(st.lists(st.integers(-4, 4), max_size=4))
        same(xnp.split(a, points, axis), np.split(a, points, axis))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 5), st.integers(0, 9), st.integers(0, 9), st.sampled_from(["edge", "reflect", "symmetric", "wrap"])
)
def test_pad_modes_and_their_transpose(length, before, after, mode):
    a = np.arange(1.0, 1.0 + length)
    same(xnp.pad(a, (before, after), mode), np.pad(a, (before, after), mode))
    t = np.arange(1.0, 1.0 + length + before + after) ** 2
    matrix = np.stack([np.pad(row, (before, after), mode) for row in np.eye(length)])
    _, pullback = xf.vjp(lambda a: xnp.pad(a, (before, after), mode), a)
    np.testing.assert_allclose(pullback(t)[0], matrix @ t)
    strict = ops.Unpad(((before, after),), mode).evaluate(array_api_strict, array_api_strict.asarray(t))
    np.testing.assert_allclose(np.asarray(strict), matrix @ t)


# ------------------------------------------------------------------ shapes that are not known


def inferred(op, *shapes):
    avals = op.infer(*[Aval(shape, np.dtype("float32")) for shape in shapes])
    return shapes_of(avals)


@pytest.mark.parametrize(
    ("op", "shapes", "wanted"),
    [
        (ops.Reshape((-1, 3)), [(None, 3)], (None, 3)),
        (ops.Reshape((2, 3)), [(None, 3)], (2, 3)),
        (ops.ReshapeLike(), [(6,), (None, 3)], (None, 3)),
        (ops.Transpose((1, 0)), [(None, 3)], (3, None)),
        (ops.ExpandDims((0, 2)), [(None,)], (1, None, 1)),
        (ops.Squeeze((0,)), [(None, 3)], (3,)),
        (ops.Concatenate(0), [(None, 3), (2, 3)], (None, 3)),
        (ops.Concatenate(1), [(None, 3), (2, 3)], (2, 6)),
        (ops.Stack(1), [(None, 3), (2, 3)], (2, 2, 3)),
        (ops.Stack(0), [(None, 3)], (1, None, 3)),
        (ops.Unstack(1), [(None, 2)], [(None,), (None,)]),
        (ops.Split((1,), 0), [(None, 2)], [(None, 2), (None, 2)]),
        (ops.SplitLike(0), [(None,), (2,), (None,)], [(2,), (None,)]),
        (ops.Pad(((1, 1), (0, 2))), [(None, 3)], (None, 5)),
        (ops.Unpad(((1, 1), (0, 2))), [(None, 3)], (None, 1)),
        (ops.Tile((2, 3)), [(None, 2)], (None, 6)),
        (ops.Repeat(2, 0), [(None, 2)], (None, 2)),
        (ops.Fold((2, 3), False), [(None, 6)], (None, 2)),
        (ops.RepeatEach((1, 2), 0), [(None, 3)], (3, 3)),
        (ops.Flip((0,)), [(None, 3)], (None, 3)),
        (ops.Triu(0), [(None, 3)], (None, 3)),
        (ops.Diagonal(0), [(None, 3)], (None,)),
        (ops.FromDiagonal(1), [(None,)], (None, None)),
        (ops.FromDiagonalLike(1), [(2,), (None, 3)], (None, 3)),
    ],
    ids=repr,
)
def test_infer_with_unknown_lengths(op, shapes, wanted):
    assert inferred(op, *shapes) == wanted


def test_operators_print_compare_and_pickle():
    some = [ops.Concatenate(1), ops.Stack(1), ops.Triu(2), ops.Tril(2), ops.Transpose((1, 0)), ops.Squeeze((0,))]
    assert [repr(op) for op in some[:3]] == ["Concatenate(axis=1)", "Stack(axis=1)", "Triu(offset=2)"]
    assert pickle.loads(pickle.dumps(some)) == some
    assert all(a != b for a, b in itertools.combinations(some, 2))
    assert len(set(some)) == len(some)


# ------------------------------------------------------------------ derivatives where they need care


def test_reshape_as_a_method():
    a = xf.array(x)
    assert a.reshape(3, 2).shape == a.reshape((3, 2)).shape == np.reshape(a, (3, 2)).shape == (3, 2)
    assert a.reshape(-1).shape == a.ravel().shape == a.flatten().shape == (6,)
    assert a.T.shape == a.mT.shape == a.swapaxes(0, 1).shape == a.transpose(1, 0).shape == a.transpose().shape == (3, 2)


def test_pad_with_an_infinity_makes_no_nan():
    out, pullback = xf.vjp(lambda a: xnp.pad(a, 1, constant_values=np.inf), v)
    np.testing.assert_array_equal(out, [np.inf, 0.0, 1.0, 2.0, 3.0, np.inf])
    np.testing.assert_array_equal(pullback(np.arange(6.0))[0], [1.0, 2.0, 3.0, 4.0])


def test_pad_with_a_tracked_number_sums_over_the_frame():
    assert xf.grad(lambda c: xnp.pad(x, (1, 2), constant_values=c).sum())(2.0) == 5 * 6 - 6
    found = xf.grad(lambda c: xnp.pad(v, (1, 2), constant_values=(c, 3 * c)).sum())(2.0)
    assert found == 1 + 2 * 3


def test_joining_keeps_infinities_out_of_tangents():
    from xform.core.rules import jvp_of

    op = ops.Concatenate(0)
    _, tangent = jvp_of(op)(op, (np.array([np.inf]), v), (None, v))
    np.testing.assert_array_equal(tangent, [0.0, 0.0, 1.0, 2.0, 3.0])


def test_only_operands_that_are_tracked_get_a_cotangent():
    op = ops.Concatenate(0)
    from xform.core.rules import vjp_of

    _, pullback = vjp_of(op)(op, (False, True), v, v)
    first, second = pullback(np.arange(8.0))
    assert first is None
    np.testing.assert_array_equal(second, [4.0, 5.0, 6.0, 7.0])


def test_cotangents_keep_the_dtype_of_their_primal():
    single = np.ones(2, "float32")
    out, pullback = xf.vjp(lambda a, b: xnp.concatenate([a, b]), single, np.ones(2))
    assert out.dtype == "float64"
    assert [t.dtype for t in pullback(np.ones(4))] == ["float32", "float64"]
    assert xf.grad(lambda a: xnp.stack([a, 1.0]).sum())(np.float32(2.0)).dtype == "float32"


def test_parts_that_nothing_uses_get_zeros():
    found = xf.grad(lambda a: (xnp.split(a, [1, 3])[1] ** 2).sum())(v)
    np.testing.assert_array_equal(found, [0.0, 2.0, 4.0, 0.0])
    found = xf.grad(lambda a: xnp.unstack(a)[2] ** 2)(v)
    np.testing.assert_array_equal(found, [0.0, 0.0, 4.0, 0.0])


def test_gradient_of_plain_numpy_code():
    def fun(a):
        rows = np.vstack([a, np.flip(a), np.roll(a, 1)])
        return (np.triu(rows[:, :3]) * np.tile(np.arange(1.0, 4.0), (3, 1))).sum() + np.trace(np.diag(a) * 2.0)

    wanted = np.array([1.0 + 2, 2.0 + 2, 3.0 + 6 + 2, 2])
    eps = 1e-6
    numeric = [(fun(v + eps * d) - fun(v - eps * d)) / (2 * eps) for d in np.eye(4)]
    found = xf.grad(fun)(v)
    np.testing.assert_allclose(found, numeric, rtol=1e-8)
    assert found.shape == wanted.shape


# ------------------------------------------------------------------ lists of values


def test_nested_lists_of_values_and_numbers():
    def fun(a, b):
        out = xnp.array([[a, 1.0], [b, a * b]])
        assert out.shape == (2, 2)
        return (out * np.array([[1.0, 2.0], [3.0, 4.0]])).sum()

    assert xf.grad(fun, (0, 1))(2.0, 5.0) == (1.0 + 4.0 * 5.0, 3.0 + 4.0 * 2.0)


def test_lists_of_rows_and_mixed_depths():
    a = xf.array(np.array([1.0, 2.0]))
    same(xnp.array([a, [3.0, 4.0]]), np.array([[1.0, 2.0], [3.0, 4.0]]))
    same(xnp.array([[a, a], [a, [5.0, 6.0]]]), np.array([[[1.0, 2.0], [1.0, 2.0]], [[1.0, 2.0], [5.0, 6.0]]]))
    same(xnp.stack([a, [a[1], 7.0]]), np.array([[1.0, 2.0], [2.0, 7.0]]))
    same(np.concatenate([a, [a[0]], np.array([9.0])]), np.array([1.0, 2.0, 1.0, 9.0]))


@pytest.mark.parametrize("left", [np.float32(1), np.float64(1), np.int64(2), np.uint8(1), np.bool(1), 1, 2.0, 1j, True])
@pytest.mark.parametrize("right", [np.float32(3), np.int8(3), 3, 2.5, 1j, False])
def test_scalars_stack_to_the_dtype_that_numpy_gives(left, right):
    same(xnp.stack([left, right]), np.stack([left, right]))
    assert xf.aval_of(xnp.array([xf.array(left), right])).dtype == np.array([left, right]).dtype
    op = ops.Stack(0)
    assert op.infer(xf.aval_of(left), xf.aval_of(right)).dtype == np.stack([left, right]).dtype


def test_a_list_of_another_librarys_arrays():
    one = array_api_strict.asarray([1.0, 2.0], device=DEVICE)
    out = xnp.stack([one, one])
    assert out.device == DEVICE
    assert out.shape == (2, 2)
    mixed = xnp.stack([xf.array(one)[0], 3.0])
    assert xf.concrete(mixed).device == DEVICE


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: xnp.reshape(x, (4, 2)), ShapeError, "Reshape"),
        (lambda: xnp.reshape(x, (-1, -1)), ShapeError, "-1 once"),
        (lambda: xnp.reshape(x, (2, 3), order="F"), OperandError, "order"),
        (lambda: xnp.reshape(x, (None, 3)), ShapeError, "write -1"),
        (lambda: xnp.transpose(x, (0, 0)), OperandError, "twice"),
        (lambda: xnp.transpose(x, (0,)), OperandError, "permute"),
        (lambda: xnp.transpose(x, (0, 2)), IndexOperandError, "axis 2"),
        (lambda: xnp.moveaxis(x, (0, 1), 0), OperandError, "moveaxis"),
        (lambda: xnp.swapaxes(x, 0, 5), IndexOperandError, "swapaxes"),
        (lambda: xnp.matrix_transpose(v), ShapeError, "two axes"),
        (lambda: xnp.squeeze(x, 0), ValueError, "Squeeze"),
        (lambda: xnp.expand_dims(x, 5), IndexOperandError, "expand_dims"),
        (lambda: xnp.concatenate([]), OperandError, "at least one"),
        (lambda: xnp.concatenate([x, v]), ShapeError, "Concatenate"),
        (lambda: xnp.concatenate([x, x[:, :2]]), ShapeError, "Concatenate"),
        (lambda: xnp.concatenate([1.0, 2.0]), ShapeError, "stack"),
        (lambda: xnp.stack([x, v]), ShapeError, "Stack"),
        (lambda: xnp.split(v, 3), OperandError, "array_split"),
        (lambda: xnp.split(v, 0), OperandError, "sections"),
        (lambda: xnp.vsplit(v, 2), ShapeError, "2 axes"),
        (lambda: xnp.hsplit(np.float64(1.0), 2), ShapeError, "hsplit"),
        (lambda: xnp.fliplr(v), ShapeError, "two axes"),
        (lambda: xnp.roll(x, (1, 2, 3), (0, 1)), OperandError, "3 shifts"),
        (lambda: xnp.tile(x, -1), OperandError, "negative"),
        (lambda: xnp.repeat(x, [1, 2], axis=1), ShapeError, "2 counts"),
        (lambda: xnp.pad(x, 1, "median"), OperandError, "modes are"),
        (lambda: xnp.pad(x, -1), OperandError, "negative"),
        (lambda: xnp.pad(x, ((1, 1), (1, 1), (1, 1))), ShapeError, "pair for each"),
        (lambda: xnp.pad(np.zeros(0), 1, "edge"), ValueError, "Pad"),
        (lambda: xnp.diag(cube), ShapeError, "diag"),
        (lambda: xnp.diagonal(x, 0, 1, 1), OperandError, "both"),
        (lambda: xnp.diagonal(v), IndexOperandError, "axis 1"),
        (lambda: xnp.triu(np.float64(1.0)), ShapeError, "triu"),
        (lambda: xnp.meshgrid(x), ShapeError, "meshgrid"),
        (lambda: xnp.meshgrid(v, indexing="yx"), OperandError, "indexing"),
        (lambda: xnp.broadcast_arrays(x, v), ShapeError, "broadcast"),
        (lambda: xnp.reshape([1.0, 2.0], (2, 1)), OperandTypeError, "list"),
    ],
    ids=lambda each: "" if callable(each) else None,
)
def test_errors_name_what_is_wrong(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        (ops.Reshape((4, 2)), [(2, 3)]),
        (ops.Reshape((4, -1)), [(2, 3)]),
        (ops.Transpose((0, 1)), [(2,)]),
        (ops.Squeeze((0,)), [(2,)]),
        (ops.Concatenate(0), [(2, 3), (2, 2)]),
        (ops.Concatenate(1), [(2,)]),
        (ops.Stack(0), [(2, 3), (2, 2)]),
        (ops.Stack(0), [(2, 3), (2,)]),
        (ops.Unstack(0), [(None,)]),
        (ops.Split((1,), 1), [(3,)]),
        (ops.Pad(((1, 1),)), [(2, 3)]),
        (ops.Pad(((1, 1),), "edge"), [(0,)]),
        (ops.Unpad(((1, 1),)), [(1,)]),
        (ops.Tile((2,)), [(2, 3)]),
        (ops.Repeat(2, 1), [(3,)]),
        (ops.Fold((2,), False), [(3,)]),
        (ops.RepeatEach((1, 2), 0), [(3,)]),
        (ops.Triu(0), [(3,)]),
        (ops.FromDiagonal(0, 2, 2), [(3,)]),
    ],
    ids=repr,
)
def test_infer_refuses_what_evaluate_refuses(op, shapes):
    with pytest.raises(ShapeError):
        inferred(op, *shapes)
