"""Errors of `xf.buffer`, which name slot and line, and after which the buffer is as before."""

from __future__ import annotations

import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from xform.core.errors import (
    DtypeError,
    HostReadError,
    IndexOperandError,
    OperandError,
    OperandTypeError,
    ShapeError,
    WriteError,
)

x = np.array([0.3, -0.7])


def same(got, want):
    assert np.asarray(got).dtype == np.asarray(want).dtype
    np.testing.assert_array_equal(got, want)


def times(text, error):
    """How often an error shows a text, e.g. a comment of this file's lines."""
    return str(error.value).count(text)


def test_no_slot_is_written_twice():
    out = xf.buffer((3, 2))
    out[1] = 5.0  # the first
    with pytest.raises(WriteError, match=r"out\[1, 0\] at .*element \(1, 0\) was written already at") as error:
        out[1, 0] = 6.0  # the second
    assert times("# the first", error) == 1
    assert times("# the second", error) == 1
    assert error.value.element == (1, 0)
    with pytest.raises(WriteError, match=r"out\[:, 1:\] at .*element \(1, 1\) was written already"):
        out[:, 1:] = 6.0
    with pytest.raises(WriteError, match=r"out\[\[2, 1\]\] at .*element \(1, 0\) was written already"):
        out[[2, 1]] = xf.array(6.0)
    out[::2] = 1.0
    same(out.value(), np.array([[1.0, 1.0], [5.0, 5.0], [1.0, 1.0]]))
    alone = xf.buffer(())
    alone[()] = 1.0
    with pytest.raises(WriteError, match=r"out\[\.\.\.\] at .*element \(\) was written already"):
        alone[...] = 2.0


def test_one_write_does_not_name_a_slot_twice():
    out = xf.buffer((3, 2))
    with pytest.raises(WriteError, match=r"out\[\[0, 2, 0\]\] at .*names a slot twice \(entry \(0, 0\)"):
        out[[0, 2, 0]] = 1.0
    with pytest.raises(WriteError, match="names a slot twice"):
        out[np.array([0, -3]), np.array([1, 1])] = np.array([1.0, 2.0])
    out[[0, 2, 1]] = 1.0
    same(out.value(), np.ones((3, 2)))


@pytest.mark.parametrize(
    ("dtype", "index", "value", "kind", "message"),
    [
        (float, 3, 1.0, IndexOperandError, r"out\[3\] at .*out of bounds for axis 0 with size 3"),
        (float, (0, 0, 0), 1.0, IndexOperandError, r"out\[0, 0, 0\] at .*too many indices"),
        (float, "a", 1.0, IndexOperandError, r"out\['a'\] at .*is no index"),
        (float, 1.5, 1.0, IndexOperandError, r"out\[1.5\] at .*integers, slices"),
        (float, np.ones(2, bool), 1.0, IndexOperandError, r"out\[\[True, True\]\] at .*size"),
        (float, 0, np.ones(3), ShapeError, r"out\[0\] at .*shape \(3,\) does not fit slots of shape \(2,\)"),
        (float, slice(0, 2), np.ones((2, 2, 2)), ShapeError, r"out\[0:2\] at .*\(2, 2, 2\) does not fit"),
        (float, (0, 1), np.ones(2), ShapeError, r"out\[0, 1\] at .*shape \(2,\) does not fit slots of shape \(\)"),
        (float, 0, 1j, DtypeError, r"out\[0\] at .*complex128 does not fit .*float64; make it with xf.buffer\(shape,"),
        (int, 0, np.ones(2), DtypeError, r"float64 does not fit a buffer of dtype int64.*v.astype\('int64'\)"),
        (int, 0, 0.5, DtypeError, r"float64 does not fit a buffer of dtype int64"),
        (bool, 0, 1, DtypeError, r"int64 does not fit a buffer of dtype bool"),
        (np.int8, 0, 300, OperandError, r"out\[0\] at .*300 is out of bounds for a buffer of dtype int8"),
        (np.uint8, 0, -1, OperandError, r"-1 is out of bounds for a buffer of dtype uint8"),
        (float, 0, "a", OperandTypeError, r"out\[0\] = str at .*array of numbers, or a number"),
        (float, 0, np.array("a"), OperandTypeError, r"out\[0\] = ndarray at .*array of numbers"),
        (float, 0, [1.0, None], OperandTypeError, r"out\[0\] = ndarray at .*array of numbers"),
        (float, 0, None, OperandTypeError, r"out\[0\] = NoneType at"),
        (float, 0, xf.buffer(2), OperandTypeError, r"out\[0\] = Buffer at .*its value\(\)"),
    ],
)
def test_what_does_not_fit_names_slot_and_line(dtype, index, value, kind, message):
    out = xf.buffer((3, 2), dtype)
    with pytest.raises(kind, match=message) as error:
        out[index] = value
    assert times("out[index] = value", error) == 1
    out[...] = True
    same(out.value(), np.ones((3, 2), dtype))


def test_an_index_that_differs_between_lanes_or_calls():
    def f(i, v):
        out = xf.buffer(3)
        out[i] = v
        return out.value()

    with pytest.raises(HostReadError, match=r"x\.at\[i\]\.set\(v\)"):
        xf.vmap(f)(np.arange(3), np.ones(3))
    with pytest.raises(HostReadError, match=r"x\.at\[i\]\.set\(v\)"):
        xf.trace(f)(np.array(1), 1.0)
    same(np.asarray(f(xf.array(1), 2.0)), np.array([0.0, 2.0, 0.0]))
    same(f(slice(xf.array(1), None), 2.0), np.array([0.0, 2.0, 2.0]))
    same(f([xf.array(2), 0], 2.0), np.array([2.0, 0.0, 2.0]))


def test_a_buffer_is_no_array():
    out = xf.buffer(3)
    out[0] = 1.0
    for use in (lambda: out[0], lambda: list(out), lambda: sum(out)):
        with pytest.raises(OperandTypeError, match=r"out\[0\] at .*test_buffer_errors.*written only.*out\.value\(\)"):
            use()
    with pytest.raises(OperandTypeError, match=r"reading out\[1\]"):
        out[1] += 1.0
    for use in (lambda: np.sum(out), lambda: np.ones(3) * out, lambda: np.asarray(out)):
        with pytest.raises(OperandTypeError, match=r"no array yet, at .*test_buffer_errors.*out\.value\(\)"):
            use()
    with pytest.raises(OperandTypeError, match="Buffer"):
        xnp.sum(out)
    assert (out.shape, out.dtype, out.ndim, len(out)) == ((3,), np.dtype(float), 1, 3)
    assert repr(out) == "Buffer<float64[3], 1 writes>"
    with pytest.raises(OperandTypeError, match="no axes"):
        len(xf.buffer(()))


@pytest.mark.parametrize(
    ("shape", "dtype", "kind", "message"),
    [
        ((3, None), float, ShapeError, "not known before run time"),
        ((3, -1), float, ShapeError, "negative length"),
        (3, object, DtypeError, "numbers and booleans"),
        (3, "U2", DtypeError, "numbers and booleans"),
        (3.0, float, TypeError, "integer"),
    ],
)
def test_what_makes_no_buffer(shape, dtype, kind, message):
    with pytest.raises(kind, match=message):
        xf.buffer(shape, dtype)


def test_shapes():
    for shape in (3, (3,), [3], np.int64(3), (xf.array(3),)):
        assert xf.buffer(shape).shape == (3,)
    assert xf.buffer(()).value().shape == ()


def test_assignments_elsewhere_name_the_buffer():
    with pytest.raises(WriteError, match=r"xf\.buffer\(shape, dtype\)"):
        xf.grad(lambda a: a.__setitem__(0, 1.0))(x)
    plain = np.zeros((2, 2))
    with pytest.raises(HostReadError, match=r"xf\.buffer"):
        xf.grad(lambda a: plain.__setitem__(0, a))(x)
