"""Indexing: NumPy's values and shapes for every kind of index, gradients that add up, costs, errors, libraries."""

from __future__ import annotations

import operator

import array_api_strict as strict
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import xform as xf
import xform.numpy as xnp
from xform import ops
from xform.core.aval import Aval, aval_of
from xform.core.errors import HostReadError, IndexOperandError, OperandError, OperandTypeError, ShapeError
from xform.core.rules import batch_rule
from xform.ops.index_layout import encode
from xform.ops.indexing import make_getitem, scatter

x = np.arange(12.0).reshape(3, 4)
cube = np.arange(60.0).reshape(3, 4, 5)
DEVICE = strict.Device("device1")

INDICES = [
    0, -1, slice(None), slice(1, None), slice(None, None, -1), slice(10, -10, -2), slice(2, 1), ..., None, (),
    True, False, (0, 1), (0, ..., 2), (..., 0), (None, 0, None), (slice(1), slice(None, None, 2)),
    (1, None, slice(0, 2)), np.array([0, 2, 2]), [0, 1], [[0, 1], [2, -1]], np.array(1), np.int32(2),
    np.array([], int), [], (slice(None), [0, 0, 3]), ([0, 1], [1, 2]), ([[0], [1]], [1, 2]),
    ([0, 1], slice(None), [1, 4]), (0, slice(None), [1, 4]), ([0, 1], ..., [1, 4]), (..., [1, 4], None),
    (None, [0, 1], None, [2, 2]), ([0, 1], 2), (2, [0, 1]), (0, [0, 1], [1, 1]), (slice(None), 0, [1, 1]),
    (slice(None), [1, 1], 0), (0, ..., [1, 1], 0), (np.array(1), slice(None), np.array([0, 1])), cube > 30.0,
    np.array([True, False, True]), (slice(None), np.array([True, False, True, True])), (np.ones((3, 4), bool), 0),
    (np.array([True, False, True]), [0, 1]), (0, np.ones((4, 5), bool)), (slice(None), np.ones((4, 5), bool)),
    np.zeros((3, 4, 5), bool), np.bool_(True), np.array(False), (True, slice(0, 1)), (False, slice(0, 1)),
    (True, [0, 1]), (slice(None), True, [0, 1]), (slice(None), 0, True), (0, slice(None), True),
    (np.array([0, 1], np.uint8), np.array([1, 2], np.int16)), ([True, False, True],),
]  # fmt: skip


def same(got, want):
    assert np.shape(got) == np.shape(want)
    assert np.asarray(got).dtype == np.asarray(want).dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_values_and_shape_are_numpys(index):
    want = cube[index]
    same(ops.getitem(cube, index), want)
    out = xf.array(cube)[index]
    assert isinstance(out, xf.Array)
    same(out.data, want)
    entries, operands = encode(index, cube)
    hash(entries)
    inferred = make_getitem(entries).infer(aval_of(cube), *map(aval_of, operands))
    fits = [got in (None, length) for got, length in zip(inferred.shape, want.shape, strict=True)]
    assert all(fits)
    assert inferred.dtype == want.dtype
    assert None not in inferred.shape or any(aval_of(each).dtype.kind == "b" for each in operands)


@st.composite
def shapes_and_indices(draw):
    """A small array and an index of mixed kinds into it, as NumPy takes it."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    joint = draw(st.lists(st.integers(1, 3), max_size=2))
    index, axis = [], 0
    dotted = False
    while axis < len(shape):
        kind = draw(st.sampled_from(["int", "slice", "new", "dots", "array", "array", "mask", "stop"]))
        length = shape[axis]
        if kind == "stop":
            break
        if kind == "new":
            index.append(None)
            if len(index) > 7:
                break
            continue
        if kind == "dots":
            if dotted:
                continue
            dotted = True
            index.append(Ellipsis)
            shape_left = draw(st.integers(0, len(shape) - axis))
            shape = shape[:axis] + shape[axis + shape_left :]
            joint_skipped = shape_left
            index[-1] = (Ellipsis, joint_skipped)
            continue
        if kind == "int":
            index.append(draw(st.integers(-length, length - 1)))
        elif kind == "slice":
            bound = st.none() | st.integers(-6, 6)
            index.append(slice(draw(bound), draw(bound), draw(st.sampled_from([None, 1, 2, -1, -3]))))
        elif kind == "array":
            own = [draw(st.sampled_from([1, n])) for n in joint]
            own = own[draw(st.integers(0, len(own))) :]
            count = int(np.prod(own, dtype=int))
            numbers = draw(st.lists(st.integers(-length, length - 1), min_size=count, max_size=count))
            index.append(np.array(numbers, int).reshape(own))
        else:
            index.append(np.array(draw(st.lists(st.booleans(), min_size=length, max_size=length))))
        axis += 1
    full_shape, plain, at = [], [], 0
    for entry in index:
        if isinstance(entry, tuple):
            full_shape += [2] * entry[1]
            plain.append(Ellipsis)
        else:
            if entry is not None:
                full_shape.append(shape[at])
                at += 1
            plain.append(entry)
    full_shape += shape[at:]
    return tuple(full_shape), tuple(plain)


def numpys(array, index):
    try:
        return array[index]
    except IndexError:
        return None


@given(shapes_and_indices())
@settings(max_examples=300, deadline=None)
def test_any_index_reads_and_spreads_as_in_numpy(drawn):
    shape, index = drawn
    array = np.arange(float(np.prod(shape, dtype=int))).reshape(shape)
    want = numpys(array, index)
    if want is None:  # masks and arrays whose lengths do not broadcast
        with pytest.raises(IndexError):
            ops.getitem(array, index)
        return
    same(ops.getitem(array, index), want)
    entries, operands = encode(index, array)
    inferred = make_getitem(entries).infer(aval_of(array), *map(aval_of, operands))
    assert len(inferred.shape) == want.ndim
    assert all(got in (None, length) for got, length in zip(inferred.shape, want.shape, strict=True))
    cotangent = np.cos(np.arange(float(want.size))).reshape(want.shape)
    spread = np.zeros(shape)
    np.add.at(spread, index, cotangent)
    _, pullback = xf.vjp(lambda a: ops.getitem(a, index), array)
    np.testing.assert_allclose(pullback(cotangent)[0], spread)
    moved = [strict.asarray(each, device=DEVICE) for each in operands]
    there = make_getitem(entries).evaluate(strict, strict.asarray(array, device=DEVICE), *moved)
    assert there.device == DEVICE
    same(np.from_dlpack(strict.asarray(there, device=strict.Device("CPU_DEVICE"))), want)


@given(shapes_and_indices(), st.data())
@settings(max_examples=200, deadline=None)
def test_batches_equal_a_loop_whatever_is_batched(drawn, data):
    shape, index = drawn
    array = np.arange(float(np.prod(shape, dtype=int))).reshape(shape)
    if numpys(array, index) is None:
        return
    entries, operands = encode(index, array)
    values, axes = [], []
    for each in (array, *operands):
        able = each.dtype.kind != "b"
        axis = data.draw(st.none() | st.integers(0, each.ndim)) if able else None
        lanes = [np.roll(each, k).reshape(each.shape) for k in range(2)]
        values.append(each if axis is None else np.stack(lanes, axis))
        axes.append(axis)
    if all(axis is None for axis in axes):
        return
    op = make_getitem(entries)
    lanes = [[v if a is None else np.take(v, k, a) for v, a in zip(values, axes, strict=True)] for k in range(2)]
    out, axis = batch_rule.get(op)(op, 2, tuple(values), tuple(axes))
    same(np.moveaxis(out, axis, 0), np.stack([op.evaluate(np, *lane) for lane in lanes]))


# ------------------------------------------------------------------ derivatives


def test_a_place_named_twice_gets_both():
    np.testing.assert_array_equal(xf.grad(lambda a: a[[0, 0, 2]].sum())(np.zeros(3)), [2.0, 0.0, 1.0])
    np.testing.assert_array_equal(xf.grad(lambda a: a[[1, -2], [0, -4]].sum())(x), [[0] * 4, [2, 0, 0, 0], [0] * 4])


def test_bool_scalars():
    np.testing.assert_array_equal(xf.grad(lambda a: a[True, 0:1].sum())(x), [[1] * 4, [0] * 4, [0] * 4])
    np.testing.assert_array_equal(xf.grad(lambda a: a[False, 0:1].sum())(x), np.zeros((3, 4)))


def test_gradient_keeps_dtype():
    for dtype in ("float32", "float64", "complex64"):
        found = xf.vjp(lambda a: a[[0, 0]], x.astype(dtype))[1](np.ones((2, 4), dtype))[0]
        assert found.dtype == dtype


def test_second_order_through_repeated_indices():
    hessian_row = xf.grad(lambda a: xf.grad(lambda b: (b[[0, 0, 1]] ** 3).sum())(a)[0])(np.array([2.0, 5.0]))
    np.testing.assert_allclose(hessian_row, [24.0, 0.0])


def test_scatter_is_one_operation_for_many_parts_and_differentiable():
    parts = [(make_getitem((k,)), float(k), ()) for k in range(4)]
    np.testing.assert_array_equal(scatter(parts, Aval((5,), np.dtype(float))), [0, 1, 2, 3, 0])

    def total(cotangents):
        first = make_getitem((0,)), cotangents[0], ()
        rest = make_getitem(("@",)), cotangents, (np.array([0, 3, 3]),)
        return scatter([first, rest], Aval((4,), np.dtype(float)))

    ct = np.array([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(total(ct), [2.0, 0.0, 0.0, 5.0])
    np.testing.assert_array_equal(xf.vjp(total, ct)[1](np.array([1.0, 10.0, 100.0, 1000.0]))[0], [2.0, 1000.0, 1000.0])


# ------------------------------------------------------------------ values as indices


def test_values_as_indices_are_operands():
    seen = []

    class Watch(xf.Observer):
        def observe(self, op, inputs, outputs):
            seen.append((op, len(inputs)))

    with Watch():
        out = xf.array(x)[xf.array(1), :, None]
        cut = xf.array(x)[xf.array(1) :]
    assert seen == [(make_getitem(("@", (None, None, None), None)), 2), (make_getitem((("@", None, None),)), 2)]
    same(out.data, x[1, :, None])
    same(cut.data, x[1:])


def test_a_tracked_integer_indexes_and_has_no_derivative():
    def f(a):
        place = xnp.argmax(a)
        return a[place] ** 2 + x[1, 2] * xnp.take(x, place).sum()

    np.testing.assert_array_equal(xf.grad(f)(np.array([1.0, 3.0, 2.0])), [0.0, 6.0, 0.0])


def test_raw_arrays_are_indexed_by_values():
    same(ops.getitem(x, xf.array(np.array([0, 2]))).data, x[[0, 2]])
    same(xnp.take(x, xf.array(np.array(2)), axis=1).data, x[:, 2])


def test_lists_of_values():
    out = xf.array(x)[[xf.array(1), 2]]
    same(out.data, x[[1, 2]])


def test_iteration_and_numpy_functions():
    assert [float(row.sum()) for row in xf.array(x)] == [6.0, 22.0, 38.0]
    same(np.take(xf.array(x), [0, 0], axis=1).data, x[:, [0, 0]])


def test_unknown_lengths():
    a = Aval((None, 4), np.dtype(float))
    get = lambda index: make_getitem(encode(index, None)[0]).infer(a)
    assert get(0).shape == (4,)
    assert get(slice(1, None)).shape == (None, 4)
    assert get(slice(None)).shape == (None, 4)
    assert get((None, slice(None), 1)).shape == (1, None)
    with pytest.raises(IndexOperandError, match=r"axis 1 with size 4"):
        get((0, 4))


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (3, "index 3 is out of bounds for axis 0 with size 3"),
        ((0, -5), "index -5 is out of bounds for axis 1 with size 4"),
        ([0, 7], "index 7 is out of bounds for axis 0 with size 3"),
        ((slice(None), np.array([0, -9])), "index -9 is out of bounds for axis 1 with size 4"),
        ((0, 0, 0), "too many indices"),
        (np.ones(4, bool), "boolean index did not match"),
        (([0, 1], [0, 1, 2]), "could not be broadcast together"),
        ((..., ...), "single ellipsis"),
    ],
    ids=str,
)
def test_what_does_not_fit_raises_our_index_error(index, message):
    for array in (x, xf.array(x)):
        with pytest.raises(IndexOperandError, match=message) as caught:
            ops.getitem(array, index)
        assert "GetItem" in str(caught.value)
    entries, operands = encode(index, x)
    if not any(isinstance(each, np.ndarray) and each.dtype.kind == "i" for each in operands) or "broadcast" in message:
        with pytest.raises(IndexOperandError, match="GetItem"):
            make_getitem(entries).infer(aval_of(x), *map(aval_of, operands))


@pytest.mark.parametrize(
    "index", [1.0, "a", [0.5], np.array([1.0]), {}, (0, 1.5), slice(0.5, None), np.float32(1)], ids=repr
)
def test_what_is_no_index(index):
    for array in (x, xf.array(x)):
        with pytest.raises((IndexOperandError, OperandTypeError), match=r"index|slice|dtype"):
            ops.getitem(array, index)


def test_a_float_value_as_index_names_the_remedy():
    with pytest.raises(IndexOperandError, match=r"astype\(int\)"):
        xf.array(x)[xf.array(1.0)]


def test_zero_step():
    with pytest.raises((OperandError, ValueError), match="zero"):
        xf.array(x)[::0]
    with pytest.raises(ShapeError, match="zero"):
        make_getitem(((None, None, 0),)).infer(aval_of(x))


def test_lanes_may_not_select_different_numbers():
    op = make_getitem(("@",))
    masks = np.array([[True, False, True], [True, True, True]])
    with pytest.raises(ShapeError, match="lanes"):
        batch_rule.get(op)(op, 2, (x, masks), (None, 0))
    op = make_getitem((("@", None, None),))
    with pytest.raises(ShapeError, match="lanes"):
        batch_rule.get(op)(op, 2, (x, np.array([0, 1])), (None, 0))


# ------------------------------------------------------------------ another library


def there(a):
    return strict.asarray(a, device=DEVICE)


def back(a):
    return np.from_dlpack(strict.asarray(a, device=strict.Device("CPU_DEVICE")))


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_array_api_strict(index):
    index_there = xf.tree.map(lambda i: there(i) if isinstance(i, np.ndarray) else i, index)
    moved = operator.getitem(xf.array(there(cube)), index_there)
    same(back(moved.data), cube[index])
    assert moved.data.device == DEVICE


def test_gradient_on_array_api_strict():
    y = there(np.arange(5.0))
    found = xf.grad(lambda a: (a[there(np.array([0, 0, 3]))] ** 2).sum() + a[1] * a[1:].sum())(y)
    assert found.device == DEVICE
    np.testing.assert_allclose(back(found), [0.0, 11.0, 1.0, 7.0, 1.0])


def test_out_of_bounds_on_array_api_strict():
    with pytest.raises(IndexOperandError, match="axis 1 with size 4"):
        ops.getitem(there(x), (slice(None), [0, 4]))


def test_abstract_slices_by_values_cannot_be_read():
    with pytest.raises(HostReadError):
        ops.HostRead("index").infer(aval_of(1))
