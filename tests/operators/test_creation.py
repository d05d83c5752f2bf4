"""Arrays from data, from a shape, like another; dtypes, constants and questions, as NumPy has them."""

from __future__ import annotations

import array_api_strict
import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from xform.core.errors import HostReadError, OperandError, OperandTypeError, ShapeError

DEVICE = array_api_strict.Device("device1")


def same(found, wanted):
    assert isinstance(found, xf.Array)
    raw = np.asarray(found.data)
    assert raw.shape == wanted.shape
    assert raw.dtype == wanted.dtype
    np.testing.assert_array_equal(raw, wanted)


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.array([[1, 2], [3, 4]]),
        lambda m: m.array([1, 2], dtype="float32"),
        lambda m: m.array(3, dtype="int32"),
        lambda m: m.array([1.0, 2.0], ndmin=3),
        lambda m: m.asarray((1.0, 2.0)),
        lambda m: m.zeros(3),
        lambda m: m.zeros((2, 3), int),
        lambda m: m.ones((2, 3), dtype="float32"),
        lambda m: m.ones(()),
        lambda m: m.full((2, 2), 7),
        lambda m: m.full(2, 1.5, dtype="complex64"),
        lambda m: m.full((2, 2), [1, 2]),
        lambda m: m.eye(3),
        lambda m: m.eye(2, 4, k=1, dtype=int),
        lambda m: m.identity(2),
        lambda m: m.tri(3, 4, -1),
        lambda m: m.arange(4),
        lambda m: m.arange(1, 9, 3),
        lambda m: m.arange(5, 0, -2),
        lambda m: m.arange(0.0, 1.0, 0.25),
        lambda m: m.arange(3, dtype="float32"),
        lambda m: m.linspace(0, 1, 5),
        lambda m: m.linspace(0.0, 1.0, 5, endpoint=False),
        lambda m: m.linspace(np.zeros(2), np.ones(2), 3, axis=1),
        lambda m: m.linspace(0, 10, 4, dtype=int),
        lambda m: m.logspace(0, 2, 3),
        lambda m: m.zeros_like(np.ones((2, 3), "float32")),
        lambda m: m.ones_like([1, 2]),
        lambda m: m.full_like(np.ones(2), 4, dtype="int8"),
        lambda m: m.full_like(np.ones((2, 3)), np.arange(3.0)),
    ],
)
def test_creation_gives_arrays_equal_to_numpys(call):
    same(call(xnp), call(np))


def test_empty_has_shape_and_dtype():
    for made in (xnp.empty((2, 3), "int8"), xnp.empty_like(np.ones((2, 3), "int8"))):
        assert made.shape == (2, 3)
        assert made.dtype == "int8"


@pytest.mark.parametrize("num", [0, 1, 2, 5])
@pytest.mark.parametrize("endpoint", [True, False])
@pytest.mark.parametrize(
    "bounds", [(0.3, 2.7), (1.0, 1.0), (np.array([0.5, 2.0]), 3.0), (np.float32(0.3), np.float32(9.0))]
)
def test_linspace_of_values_equals_numpys(bounds, num, endpoint):
    wanted = np.linspace(*bounds, num, endpoint=endpoint)
    found = xnp.linspace(xf.array(bounds[0]), xf.array(bounds[1]), num, endpoint=endpoint)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(np.asarray(found), wanted)


def test_linspace_returns_the_step():
    out, step = xnp.linspace(xf.array(1.0), 3.0, 5, retstep=True)
    assert float(step) == 0.5
    assert out.shape == (5,)
    assert xf.grad(lambda a: xnp.linspace(a, 3.0, 5, retstep=True)[1])(1.0) == -0.25
    out, step = xnp.linspace(1.0, 3.0, 5, retstep=True)
    assert step == 0.5


def test_linspace_gradients_reach_both_bounds():
    weights = np.array([1.0, 2.0, 4.0])
    found = xf.grad(lambda a, b: (np.linspace(a, b, 3) * weights).sum(), (0, 1))(0.0, 1.0)
    assert found == (2.0, 5.0)


def test_array_keeps_values_and_memory():
    a = xf.array(np.ones(2))
    assert xnp.array(a) is a
    raw = np.ones(2)
    assert xnp.array(raw).data is raw
    assert xnp.asarray(raw, copy=True).data is not raw
    assert xnp.array(a, dtype="float32").dtype == "float32"
    assert xf.grad(lambda x: xnp.array(x, dtype="float32").sum())(raw).dtype == "float64"
    assert xnp.array(2.0).data == 2.0
    assert xf.aval_of(xnp.array(2.0)).weak


def test_like_functions_follow_device_and_dtype():
    raw = array_api_strict.ones((2, 3), device=DEVICE)
    for made in (xnp.zeros_like(raw), xnp.ones_like(xf.array(raw)), xnp.full_like(raw, 3), xnp.empty_like(raw)):
        assert made.data.device == DEVICE
        assert made.shape == (2, 3)
    assert xnp.zeros_like(raw, dtype="int32").dtype == "int32"


def test_creation_on_a_named_device():
    assert xnp.zeros(2, device="array_api_strict:device1").data.device == DEVICE
    assert xnp.array([1.0], device="array_api_strict:device1").data.device == DEVICE


def test_like_functions_have_no_derivative():
    assert xf.grad(lambda x: (xnp.ones_like(x) * x + np.zeros_like(x)).sum())(np.ones(3)).tolist() == [1.0, 1.0, 1.0]


def test_full_like_of_a_value():
    found = xf.grad(lambda c: xnp.full_like(np.ones((2, 3)), c).sum())(2.0)
    assert found == 6.0
    assert xf.grad(lambda c: xnp.full((2, 3), c * c).sum())(2.0) == 24.0


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: xnp.array("text"), OperandTypeError, "numbers"),
        (lambda: xnp.array([object()]), OperandTypeError, "numbers"),
        (lambda: xnp.array(np.array(["a"])), OperandTypeError, "numbers"),
        (lambda: xnp.array([[1.0], [1.0, 2.0]]), ShapeError, "array"),
        (lambda: xnp.linspace(0, 1, -1), OperandError, "negative"),
        (lambda: xf.grad(lambda v: xnp.arange(v).sum() * v)(3.0), HostReadError, "item"),
    ],
    ids=lambda each: "" if callable(each) else None,
)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()


# ------------------------------------------------------------------ dtypes and questions


def test_constants_and_dtypes_are_numpys():
    for name in ("pi", "e", "inf", "newaxis", "euler_gamma", "float32", "float64", "complex64", "complex128", "bool"):
        assert getattr(xnp, name) is getattr(np, name)
    assert np.isnan(xnp.nan)


def test_namespace_of_values():
    a = xf.array(np.ones(2, "float32"))
    assert a.__array_namespace__() is xnp
    assert xnp.isdtype(a.dtype, "real floating")
    assert xnp.astype(a, xnp.float64).dtype == "float64"


def test_questions_take_values():
    a = xf.array(np.ones((2, 3), "float32"))
    assert xnp.result_type(a, 1.0) == "float32"
    assert xnp.result_type(a, np.float64) == "float64"
    assert xnp.result_type(xf.array(1.0), np.ones(2, "float32")) == "float32"
    assert xnp.result_type("int8", "uint8") == xnp.promote_types("int8", "uint8") == "int16"
    assert xnp.can_cast(a, "float64")
    assert not xnp.can_cast(np.float64, a.dtype)
    assert xnp.finfo(a).eps == np.finfo("float32").eps
    assert xnp.finfo(xnp.float64).eps == np.finfo("float64").eps
    assert xnp.iinfo(np.int8).max == 127
    assert (xnp.shape(a), xnp.ndim(a), xnp.size(a), xnp.size(a, -1)) == ((2, 3), 2, 6, 3)
    assert xnp.shape([[1, 2], [3, 4]]) == (2, 2)
    assert (np.shape(a), np.ndim(a), np.size(a)) == ((2, 3), 2, 6)
    assert not xnp.iscomplexobj(a)
    assert xnp.isrealobj(a)
