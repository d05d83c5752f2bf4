"""`xf.buffer`: arrays that a Python loop fills, under every layer, at linear cost, each slot once."""

from __future__ import annotations

import threading

import array_api_strict
import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from tests.operators.unknown_shapes import Hide
from xform import ops
from xform.core.aval import aval_of
from xform.core.errors import EscapedValueError, ShapeError, WriteError
from xform.ops import buffers

x = np.array([0.3, -0.7])


def powers(a, n=4):
    """a, a**2, ..., a**n along a new first axis."""
    out, h = xf.buffer((n, *np.shape(a))), 1.0
    for i in range(n):
        h = h * a
        out[i] = h
    return out.value()


def total(a):
    return powers(a).sum()


def slope(a):
    return 1 + 2 * a + 3 * a**2 + 4 * a**3


def curvature(a):
    return 2 + 6 * a + 12 * a**2


def same(got, want):
    assert np.asarray(got).dtype == np.asarray(want).dtype
    np.testing.assert_array_equal(got, want)


# ------------------------------------------------------------------ what it gives


def test_raw_in_raw_out():
    got = powers(x)
    assert type(got) is np.ndarray
    np.testing.assert_allclose(got, [x, x**2, x**3, x**4])
    assert type(powers(xf.array(x))) is xf.Array
    np.testing.assert_allclose(powers(xf.array(x)), [x, x**2, x**3, x**4])


def test_slots_that_are_not_written_are_zeros():
    out = xf.buffer((3, 2), np.float32)
    out[1] = 2.0
    same(out.value(), np.array([[0, 0], [2, 2], [0, 0]], np.float32))
    same(xf.buffer(2).value(), np.zeros(2))
    same(xf.buffer((2, 0), bool).value(), np.zeros((2, 0), bool))


def test_the_values_are_those_that_were_written_bit_for_bit():
    out = xf.buffer(4)
    for i, v in enumerate((-0.0, np.nan, np.inf, 5e-324)):
        out[i] = v
    assert out.value().tobytes() == np.array([-0.0, np.nan, np.inf, 5e-324]).tobytes()


INDICES = [
    3, -1, slice(1, 4), slice(None, None, -2), slice(5, None, -1), (slice(None), 1), (..., 2), (2, -1), (None, 4), ...,
    (), (..., None, 1), [0, 3], [[0, 1], [2, 5]], (np.array([0, 1]), np.array([2, 2])), (np.array([[1], [2]]), [0, 2]),
    (slice(None), np.array([2, 0])), np.array([True, False, True, False, False, True]), np.int64(2), (1, np.array(2)),
    np.arange(18).reshape(6, 3) % 3 == 0, slice(2, 2), np.array([], int), True, False,
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=repr)
@pytest.mark.parametrize("track", [np.asarray, xf.array], ids=["raw", "tracked"])
def test_every_index_that_numpy_has(index, track):
    want = np.zeros((6, 3))
    values = 1.0 + np.arange(want[index].size).reshape(want[index].shape)
    want[index] = values
    out = xf.buffer((6, 3))
    out[index] = track(values)
    same(out.value(), want)

    def f(v):
        out = xf.buffer((6, 3))
        out[index] = v * v
        return (out.value() * np.arange(18.0).reshape(6, 3)).sum()

    weights = np.arange(18.0).reshape(6, 3)[index]
    np.testing.assert_allclose(xf.grad(f)(values), 2 * values * weights)
    np.testing.assert_allclose(xf.jvp(f, (values,), (values,))[1], (2 * values**2 * weights).sum())


def test_values_broadcast_and_their_cotangents_are_summed():
    def f(a, b):
        out = xf.buffer((3, 2))
        out[:2] = a
        out[2:] = b
        return out.value()

    got = f(x, np.ones((1, 1, 1)))
    np.testing.assert_array_equal(got, [x, x, [1, 1]])
    weights = np.arange(6.0).reshape(3, 2)
    to_a, to_b = xf.grad(lambda a, b: (f(a, b) * weights).sum(), (0, 1))(x, np.ones((1, 1, 1)))
    same(to_a, weights[:2].sum(0))
    same(to_b, weights[2:].sum().reshape(1, 1, 1))


def test_lists_of_numbers_and_of_values():
    out = xf.buffer((2, 2))
    out[0] = [1.0, 2]
    out[1] = [xf.array(3.0), 4.0]
    same(np.asarray(out.value()), np.array([[1.0, 2.0], [3.0, 4.0]]))


def test_an_assignment_copies():
    row, at = np.zeros(2), np.array([0])
    kept = xf.array(row)
    out = xf.buffer((3, 2))
    out[at] = row
    out[1] = kept
    row[:], at[:] = 7.0, 2
    same(np.asarray(out.value()), np.zeros((3, 2)))


def test_value_can_be_called_again_and_ends_the_writing():
    out = xf.buffer(3)
    out[0] = 1.0
    first = out.value()
    assert out.value() is first
    with pytest.raises(WriteError, match=r"out\[1\] at .*test_buffer.*value\(\) was called"):
        out[1] = 2.0
    same(out.value(), np.array([1.0, 0, 0]))
    assert repr(out) == "Buffer<float64[3], finished>"


# ------------------------------------------------------------------ dtypes


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64", "int8", "bool", int, np.float64, None])
def test_the_dtype_is_the_buffers(dtype):
    out = xf.buffer(2, dtype)
    out[0] = np.array(True)
    same(out.value(), np.array([1, 0]).astype(dtype))
    assert xf.buffer(2, dtype).dtype == np.dtype(dtype)


def test_dtypes_of_other_libraries_and_byte_orders():
    assert xf.buffer(1, array_api_strict.float32).dtype == np.float32
    same(xf.buffer(1, ">f4").value(), np.zeros(1, "float32"))


def test_cotangents_have_the_dtype_of_what_was_written():
    def f(a, b, c):
        out = xf.buffer(3, np.complex64)
        out[0], out[1], out[2] = a, b, c
        return out.value()

    primals = (np.float32(2), np.array(1 + 1j), 3.0)
    out, pullback = xf.vjp(f, *primals)
    found = pullback(np.array([1 + 2j, 3 + 4j, 5 + 6j], np.complex64))
    same(out, np.array([2, 1 + 1j, 3], np.complex64))
    same(found[0], np.float32(1))
    same(found[1], np.array(3 + 4j))
    assert found[2] == 5.0
    assert type(found[2]) is float
    tangent = xf.jvp(f, primals, (np.float32(1), np.array(2j), 3.0))[1]
    same(tangent, np.array([1, 2j, 3], np.complex64))


def test_integers_have_no_derivative():
    def f(a):
        out = xf.buffer(2, int)
        out[0] = (a > 0).astype(int)
        return out.value() * a

    same(xf.jvp(f, (np.array(2.0),), (np.array(1.0),))[1], np.array([1.0, 0.0]))


# ------------------------------------------------------------------ derivatives and layers


def test_derivatives_in_both_modes_and_of_second_order():
    np.testing.assert_allclose(xf.grad(total)(x), slope(x))
    np.testing.assert_allclose(xf.jvp(total, (x,), (x,))[1], (slope(x) * x).sum())
    np.testing.assert_allclose(xf.hessian(total)(x), np.diag(curvature(x)))
    np.testing.assert_allclose(xf.hvp(total, (x,), (x,)), curvature(x) * x)
    np.testing.assert_allclose(xf.grad(lambda a: (xf.grad(total)(a) * x).sum())(x), curvature(x) * x)
    np.testing.assert_allclose(xf.linearize(total, x)[1](x), (slope(x) * x).sum())
    np.testing.assert_allclose(xf.jacfwd(powers)(x), xf.jacrev(powers)(x))
    np.testing.assert_allclose(xf.jacfwd(powers)(2.0), [1, 4, 12, 32])


def test_a_batched_value_in_a_buffer_that_is_not():
    def f(a, b):
        out = xf.buffer((3, 2))
        out[0], out[[2, 1], [1, 0]] = a, b
        return out.value()

    a, b = np.arange(8.0).reshape(4, 2), np.arange(2.0)
    want = np.stack([f(each, b) for each in a])
    same(xf.vmap(f, (0, None))(a, b), want)
    same(xf.vmap(f, (1, 0), 2)(a.T, np.stack([b] * 4)), np.moveaxis(want, 0, 2))
    np.testing.assert_allclose(xf.vmap(xf.grad(total))(a), slope(a))
    np.testing.assert_allclose(xf.grad(lambda a: xf.vmap(total)(a).sum())(a), slope(a))
    np.testing.assert_allclose(xf.vmap(xf.hessian(total))(a), np.stack([np.diag(c) for c in curvature(a)]))


def test_a_trace_records_one_operation():
    program = xf.make_program(powers)(xf.Aval((2,), np.dtype(float)))
    assert [type(equation.op).__name__ for equation in program.equations] == ["Mul"] * 4 + ["Fill"]
    traced = xf.trace(powers)
    for a in (x, 2 * x, x - 1):
        np.testing.assert_allclose(traced(a), [a, a**2, a**3, a**4])
    np.testing.assert_allclose(xf.grad(xf.trace(total))(x), slope(x))
    np.testing.assert_allclose(xf.trace(xf.grad(total))(x), slope(x))
    np.testing.assert_allclose(xf.vmap(xf.trace(xf.grad(total)))(np.stack([x, 2 * x])), slope(np.stack([x, 2 * x])))


def test_values_of_several_layers_in_one_buffer():
    def f(a, b):
        def g(c):
            out = xf.buffer(4)
            out[0], out[1], out[2], out[3] = a, b * c, c * c, 1.5
            return (out.value() ** 2).sum()

        return xf.grad(g)(2.0) + a * 0.0

    # d/dc (b c)^2 + c^4 = 2 b^2 c + 4 c^3
    assert f(1.0, 3.0) == 2 * 9 * 2 + 32
    assert xf.grad(f, 1)(1.0, 3.0) == 4 * 3 * 2
    assert xf.jvp(lambda b: f(1.0, b), (3.0,), (1.0,))[1] == 4 * 3 * 2
    same(xf.vmap(f, (None, 0))(1.0, np.array([3.0, 0.0])), np.array([68.0, 32.0]))


def test_layers_that_watch_and_layers_of_users():
    class Through(xf.Transformation):
        def interpret(self, op, values):
            return xf.apply(op, *values)

    with xf.Profile() as profile, xf.NanGuard():
        np.testing.assert_allclose(xf.grad(total)(x), slope(x))
    assert profile.calls("Fill") == 1
    np.testing.assert_allclose(xf.grad(Through()(total))(x), slope(x))


def test_values_of_unknown_lengths():
    def f(a):
        out = xf.buffer((3, 2))
        out[0], out[1:] = a, a * a
        return xnp.sum(out.value())

    with Hide() as hide:
        found = xf.grad(f)(hide.hidden(x))
    np.testing.assert_allclose(hide.shown(found), 1 + 4 * x)
    with Hide() as hide, pytest.raises(ShapeError, match="not known before run time"):
        powers(hide.hidden(x))


@pytest.mark.parametrize("index", [[2, 0], (slice(None, None, 2),), np.array([True, False, True])], ids=repr)
def test_devices(index):
    def f(a):
        out = xf.buffer((3, 2))
        out[index] = a * a
        out[1] = 2.0
        return xnp.sum(out.value() * out.value())

    a = np.array([[0.5, 1.0], [1.5, -2.0]])
    on_device = array_api_strict.asarray(a, device=array_api_strict.Device("device1"))
    found = xf.grad(f)(on_device)
    assert found.device == on_device.device
    np.testing.assert_allclose(xf.to_numpy(found), 4 * a**3)
    np.testing.assert_allclose(xf.grad(f)(a), 4 * a**3)
    np.testing.assert_allclose(xf.grad(xf.Device("array_api_strict:device1")(f))(a), 4 * a**3)
    with xf.Device("array_api_strict:device1"):
        assert xf.array(xf.buffer(2).value()).shape == (2,)
        np.testing.assert_allclose(xf.to_numpy(xf.grad(f)(a)), 4 * a**3)


def test_raw_arrays_of_other_libraries():
    on_device = array_api_strict.asarray(x, device=array_api_strict.Device("device1"), copy=True)
    out = xf.buffer((3, 2))
    out[0] = on_device
    out[2] = 1.0
    on_device[0] = 9.0
    got = out.value()
    assert got.device == on_device.device
    same(xf.to_numpy(got), np.array([x, [0, 0], [1, 1]]))


def test_threads_fill_buffers_of_their_own():
    found = {}

    def work(k):
        found[k] = xf.grad(total)(x * k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, got in found.items():
        np.testing.assert_allclose(got, slope(x * k))
    assert len(found) == 4


def test_a_value_whose_tape_has_ended():
    out = xf.buffer(2)
    with xf.Grad() as tape:
        out[0] = tape.attach(1.0)
    with pytest.raises(EscapedValueError, match="Fill"):
        out.value()
    with pytest.raises(EscapedValueError, match="Fill"):  # and it is as before
        out.value()


# ------------------------------------------------------------------ cost


class Counting(xf.Observer):
    """Counts operations, and the elements that they read and give; of what is indexed, only the selection is read."""

    def __init__(self):
        self.operations = self.elements = 0

    def observe(self, op, inputs, outputs):
        self.operations += 1
        if not op.attribute_like:
            touched = (inputs[1:] if isinstance(op, ops.GetItem) else inputs, outputs)
            self.elements += sum(aval_of(each).size for each in xf.tree.leaves(touched))


def recurrence(a, n):
    """A chain of n steps, and the sum of the squares of all of them."""
    out, h = xf.buffer(n), a
    for i in range(n):
        h = h * 0.99
        out[i] = h
    return (out.value() ** 2).sum()


RUNS = {
    "value": lambda n: recurrence(xf.array(1.0), n),
    "grad": lambda n: xf.grad(recurrence)(1.0, n),
    "jvp": lambda n: xf.jvp(lambda a: recurrence(a, n), (1.0,), (1.0,))[1],
    "hvp": lambda n: xf.hvp(lambda a: recurrence(a, n), (1.0,), (1.0,)),
    "reverse over reverse": lambda n: xf.grad(xf.grad(recurrence))(1.0, n),
    "batch": lambda n: xf.vmap(lambda a: xf.grad(recurrence)(a, n))(np.ones(3)),
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_filling_is_linear_with_something_below(run):
    counts = {}
    for size in (50, 100, 200):
        with Counting() as count:
            run(size)
        counts[size] = (count.operations, count.elements)
    for part in (0, 1):
        assert counts[200][part] - counts[100][part] <= 2.1 * (counts[100][part] - counts[50][part])
    assert counts[200][1] < 200 * 200


def test_filling_makes_one_array_on_an_empty_stack(monkeypatch):
    made, written, read = [], [], []
    blank, set_into, evaluate = buffers.blank, buffers.set_into, ops.GetItem.evaluate

    def counting_blank(xp, shape, *rest):
        made.append(shape)
        return blank(xp, shape, *rest)

    def counting_set(xp, out, index, operands, value):
        written.append(np.size(value))
        return set_into(xp, out, index, operands, value)

    def counting_read(self, xp, a, *operands):
        out = evaluate(self, xp, a, *operands)
        read.append(np.size(out))
        return out

    monkeypatch.setattr(buffers, "blank", counting_blank)
    monkeypatch.setattr(buffers, "set_into", counting_set)
    monkeypatch.setattr(ops.GetItem, "evaluate", counting_read)
    decay = 0.99 ** np.arange(1, 301)
    np.testing.assert_allclose(xf.grad(recurrence)(1.0, 300), (2 * decay**2).sum())
    assert made == [(300,)]
    assert written == [1] * 300
    assert read == [1] * 300
