"""What `xf.vmap` refuses, and how it says so: axes that do not fit, reads of batched values."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose

import xform as xf
import xform.numpy as xnp
from xform.core.errors import (
    HostReadError,
    MissingRuleError,
    OperandError,
    OperandTypeError,
    ShapeError,
    TreeError,
    XformError,
)

R = np.random.default_rng(5)
A = R.normal(size=(4, 3))
B = R.normal(size=(3, 4))


# ------------------------------------------------------------------ errors: row 52


def fun(*args):
    return args[0]


@pytest.mark.parametrize(
    ("axes", "args", "kind", "message"),
    [
        (0, (A, B), ShapeError, r"differ in .*: 4 along axis 0 of args\[0\] float64\[4,3\]; 3 along .* of args\[1\]"),
        (0, ({"a": A, "b": [B]},), ShapeError, r"4 along axis 0 of args\[0\]\['a'\].*3 along .* args\[0\]\['b'\]\[0\]"),
        (True, (A,), OperandTypeError, "in_axes must be an int.*got bool"),
        ((True,), (A,), OperandTypeError, r"in_axes\[0\] must be an int.*bool"),
        (np.array(0), (A,), OperandTypeError, "in_axes must be an int.*got ndarray"),
        (0.0, (A,), OperandTypeError, "got float"),
        ("a", (A,), OperandTypeError, "got str"),
        ({"a": 0}, (A,), OperandTypeError, "got dict"),
        ((0, 0), (A,), OperandError, "2 entries, but there are 1 positional"),
        ((0,), (A, A), OperandError, "1 entries, but there are 2 positional"),
        (([0, 0],), ([A],), TreeError, r"in_axes\[0\] = \[0, 0\] is not a prefix of args\[0\]"),
        (({"b": 0},), ({"a": A},), TreeError, "lacks"),
        (0, (), OperandError, "without an array"),
        (0, ((),), OperandError, "without an array"),
        (None, (A,), OperandError, "in_axes is None for all arguments"),
        ((None,), (A,), OperandError, "in_axes is None for all arguments"),
        (0, (1.0,), ShapeError, r"args\[0\] is to be mapped along axis 0.*scalar: give its in_axes as None"),
        (0, (np.float32(1),), ShapeError, "scalar"),
        (2, (A,), ShapeError, "along axis 2.*it has 2 axes"),
        (-3, (A,), ShapeError, "along axis -3"),
        (0, ("text",), OperandTypeError, r"args\[0\] is str, no array"),
    ],
)  # fmt: skip
def test_row_52_wrong_axes(axes, args, kind, message):
    with pytest.raises(kind, match=f"vmap of fun: .*{message}"):
        xf.vmap(fun, axes)(*args)


@pytest.mark.parametrize(
    ("axes", "kind", "message"),
    [
        (None, ShapeError, "differs between lanes.*out_axes is None"),
        (3, ShapeError, "out_axes has 3"),
        (-3, ShapeError, "out_axes has -3"),
        ((0, 0), TreeError, "out_axes = .* is not a prefix of the output"),
        (True, OperandTypeError, "bool"),
        ("a", OperandTypeError, "str"),
    ],
)
def test_wrong_out_axes(axes, kind, message):
    with pytest.raises(kind, match=f"vmap of fun: .*{message}"):
        xf.vmap(fun, 0, axes)(A)


@pytest.mark.parametrize("count", [-1, True, 2.0, "a"])
def test_wrong_counts(count):
    with pytest.raises((OperandTypeError, ShapeError), match="axis_size must be"):
        xf.vmap(fun, 0, 0, count)
    with pytest.raises((OperandTypeError, ShapeError), match="chunk_size must be"):
        xf.vmap(fun, chunk_size=count)


def test_axis_size_that_differs():
    with pytest.raises(ShapeError, match=r"4 along axis 0 of args\[0\].*; 3 by axis_size"):
        xf.vmap(fun, axis_size=3)(A)


# ------------------------------------------------------------------ reading, control flow


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (lambda x: x if x.sum() > 0 else -x, r"bool\(\).*its 4 lanes may differ.*xnp.where"),
        (lambda x: float(x[0]) * x, r"float\(\)"),
        (lambda x: x[0].item() * x, r"item\(\)"),
        (lambda x: [1.0, 2.0][np.argmax(x)], r"index\(\).*xnp.take"),
        (lambda x: B[np.argmax(x)], r"asarray.*xnp.take\(B, i\)"),
        (lambda x: range(int(x[0])), r"int\(\)"),
        (lambda x: np.zeros(3).__setitem__(slice(None), x), "asarray|float"),
    ],
)
def test_reads_raise(program, message):
    with pytest.raises(HostReadError, match=message):
        xf.vmap(program)(A)


def test_what_is_the_same_in_all_lanes_can_be_read():
    out = xf.vmap(lambda x, n: x * 2 if n > 1 else x * float(n), (0, None))(A, np.array(2))
    assert_allclose(out, 2 * A)


def test_printing_shows_the_aval():
    shown = []
    xf.vmap(lambda x: shown.append((str(x), f"{x[0]:.2f}", x.shape, x.size, len(x), x.dtype)) or x)(A)
    assert shown[0][2:] == ((3,), 3, 3, np.dtype(float))
    assert "float64[3]" in shown[0][0]
    assert "BatchValue<float64[]" in shown[0][1]


def test_operators_that_have_no_meaning_in_a_batch():
    with pytest.raises(MissingRuleError, match=r"NonZero.*lanes would have different lengths"):
        xf.vmap(np.nonzero)(A)


REFUSED = {
    "matmul": (xnp.matmul, (), (3,)),
    "dot": (xnp.dot, (1,), (4, 2, 3)),
    "inner": (xnp.inner, (1,), (2, 2)),
    "tensordot": (lambda x, y: xnp.tensordot(x, y, 1), (), (3,)),
    "solve": (xnp.linalg.solve, (3,), (3,)),
    "inv": (xnp.linalg.inv, (3,)),
    "det": (xnp.linalg.det, (3,)),
    "slogdet": (xnp.linalg.slogdet, (3,)),
    "eigh": (xnp.linalg.eigh, (3,)),
    "qr": (xnp.linalg.qr, (2,)),
    "pinv": (xnp.linalg.pinv, (2,)),
    "matrix_norm": (xnp.linalg.matrix_norm, (2,)),
    "searchsorted": (xnp.searchsorted, (2, 3), ()),
}


@pytest.mark.parametrize("at", [0, -1])
@pytest.mark.parametrize("name", REFUSED)
def test_the_batch_is_no_axis_of_a_lane(name, at):
    """Three lanes, each of a shape that the function refuses: together they have a shape that it would take."""
    fun, *shapes = REFUSED[name]
    lanes = [np.ones(shape) for shape in shapes]
    with pytest.raises(XformError) as alone:
        fun(*map(xf.array, lanes))
    for axes in itertools.product((at, None), repeat=len(lanes)):
        if axes == (None,) * len(lanes):
            continue
        args = [x if axis is None else np.stack([x] * 3, axis) for x, axis in zip(lanes, axes, strict=True)]
        with pytest.raises(type(alone.value)):
            xf.vmap(fun, in_axes=axes)(*args)
        assert xf.stack() == ()
