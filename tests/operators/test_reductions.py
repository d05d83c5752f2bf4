"""Reductions: NumPy's values, dtypes and errors; hard points; batches, unknown shapes, other libraries."""

from __future__ import annotations

import itertools
import warnings

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
from xform.core.errors import IndexOperandError, OperandTypeError, ShapeError
from xform.core.rules import batch_rule, jvp_of
from xform.core.stack import apply

DTYPES = (
    "bool",
    "int8",
    "uint8",
    "int32",
    "uint16",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)
SHAPES = ((), (4,), (2, 1, 3), (0, 3))
AXES = (None, 0, -1, 1, (0,), (0, 1), (-1, 0), ())
NAMES = ("sum", "prod", "mean", "var", "std", "max", "min", "all", "any", "count_nonzero", "ptp", "argmax", "argmin")
ORDERED = ("max", "min", "ptp", "argmax", "argmin")


def sample(shape, dtype):
    rng = np.random.default_rng(len(shape))
    numbers = rng.integers(-3, 4, shape) if np.dtype(dtype).kind in "if" else rng.integers(0, 4, shape)
    x = np.asarray(numbers).astype(dtype)
    return np.asarray(x * (1 + 0.5j)).astype(dtype) if np.dtype(dtype).kind == "c" else x


def outcome(function, *args, **kwargs):
    """Return what a call gives: a result, or the class of its error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return function(*args, **kwargs)
        except (ValueError, TypeError, IndexError) as error:
            return ValueError if isinstance(error, ValueError) else TypeError


def assert_same(got, want):
    assert type(got) is type(want) or isinstance(want, int), (type(got), type(want))
    assert np.shape(got) == np.shape(want)
    if isinstance(want, np.ndarray | np.generic):
        assert got.dtype == want.dtype
    np.testing.assert_allclose(
        np.asarray(got), np.asarray(want), rtol=3e-3 if aval_of(want).dtype == np.float16 else 1e-6
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_values_dtypes_and_errors_are_numpys(name, dtype):
    mine, theirs = getattr(xnp, name), getattr(np, name)
    for shape, axis, keepdims in itertools.product(SHAPES, AXES, (False, True)):
        if name.startswith("arg") and isinstance(axis, tuple):
            continue
        if shape == () and axis is not None and name in ("mean", "var", "std"):
            continue  # NumPy refuses axis=0 of a number here and takes it in sum; so do we, everywhere
        x = sample(shape, dtype)
        want = outcome(theirs, x, axis=axis, keepdims=keepdims)
        for given_x in (x, xf.array(x)):
            got = outcome(mine, given_x, axis=axis, keepdims=keepdims)
            got = got.data if isinstance(got, xf.Array) else got
            if isinstance(want, type):
                assert got is want, (shape, axis, got, want)
            else:
                assert_same(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "kind", ["Sum", "Prod", "Mean", "Var", "Std", "Max", "Min", "AllTrue", "AnyTrue", "CountNonzero", "LogSumExp"]
)
def test_infer_equals_evaluate(kind, dtype):
    for shape, keepdims in itertools.product(((4,), (2, 3), (2, 1, 3)), (False, True)):
        x = sample(shape, dtype)
        for count in range(len(shape) + 1):
            for axis in itertools.combinations(range(len(shape)), count):
                op = getattr(ops, kind)(axis, keepdims)
                out = op.evaluate(np, x)
                assert op.infer(aval_of(x)) == Aval(np.shape(out), out.dtype), (op, shape)
                unknown = op.infer(Aval((None,) * len(shape), x.dtype))
                assert len(unknown.shape) == np.ndim(out)
                assert unknown.dtype == out.dtype


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("number", [True, 3, -2.5, np.float32(1.5)])
def test_numbers(name, number):
    if name == "ptp" and number is True:
        pytest.skip("NumPy does not subtract booleans")
    assert_same(getattr(xnp, name)(number), getattr(np, name)(number))


@given(
    hnp.arrays(np.float64, hnp.array_shapes(min_dims=0, max_dims=4, max_side=4), elements=st.floats(-4, 4)),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_any_axes(x, data):
    axis = data.draw(
        st.none() | st.sets(st.integers(0, x.ndim - 1), max_size=x.ndim).map(tuple) if x.ndim else st.none()
    )
    keepdims = data.draw(st.booleans())
    for name in ("sum", "prod", "mean", "max", "var", "any"):
        want = getattr(np, name)(x, axis=axis, keepdims=keepdims)
        np.testing.assert_allclose(getattr(xnp, name)(x, axis=axis, keepdims=keepdims), want, atol=1e-12)
        tracked = getattr(xnp, name)(xf.array(x), axis=axis, keepdims=keepdims)
        np.testing.assert_allclose(tracked.data, want, atol=1e-12)


def test_dtype_initial_and_where():
    x = np.array([[1, 2, 3], [4, 5, 6]], np.int32)
    mask = x % 2 == 0
    for name in ("sum", "prod"):
        mine, theirs = getattr(xnp, name), getattr(np, name)
        for keywords in (
            {"dtype": np.int32},
            {"dtype": np.float32},
            {"initial": 7},
            {"where": mask},
            {"where": mask, "initial": 2},
        ):
            for axis in (None, 1):
                assert_same(mine(x, axis, **keywords), theirs(x, axis, **keywords))
    assert_same(xnp.mean(x, dtype=np.float32), np.mean(x, dtype=np.float32))
    assert_same(xnp.mean(x / 2.0, axis=0, where=mask | (x < 3)), np.mean(x / 2.0, axis=0, where=mask | (x < 3)))
    assert_same(xnp.max(x, axis=1, initial=5), np.max(x, axis=1, initial=5))
    assert_same(xnp.min(x, axis=1, initial=9, where=mask), np.min(x, axis=1, initial=9, where=mask))
    assert_same(xnp.all(x, axis=0, where=mask), np.all(x, axis=0, where=mask))
    assert_same(xnp.any(x > 5, axis=0, where=mask), np.any(x > 5, axis=0, where=mask))
    assert_same(xnp.var(x, dtype=np.float32, ddof=1), np.var(x, dtype=np.float32, ddof=1))
    assert_same(xnp.std(x, axis=0, correction=1), np.std(x, axis=0, ddof=1))


def test_float16_is_averaged_in_float32_as_numpy_does():
    x = np.full(5000, 60.0, np.float16)
    assert_same(xnp.mean(x), np.mean(x))
    assert xnp.mean(x) == 60.0


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize("name", NAMES)
def test_errors_name_the_operator(name):
    shown = {
        "all": "AllTrue",
        "any": "AnyTrue",
        "count_nonzero": "CountNonzero",
        "argmax": "ArgMax",
        "argmin": "ArgMin",
    }
    label = shown.get(name, "Max" if name == "ptp" else name.capitalize())
    for x in (np.ones((2, 3)), xf.array(np.ones((2, 3)))):
        with pytest.raises(
            IndexOperandError, match=rf"{label}: axis 2 is out of bounds for an array of 2 dim"
        ) as caught:
            getattr(xnp, name)(x, axis=2)
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, IndexError)
        with pytest.raises(OperandTypeError, match=f"{label}: axis must be"):
            getattr(xnp, name)(x, axis=[0])
        with pytest.raises(OperandTypeError, match=f"{label}: axis must be"):
            getattr(xnp, name)(x, axis=1.5)
        if not name.startswith("arg"):
            with pytest.raises(ShapeError, match=f"{label}: axis .* names one axis twice"):
                getattr(xnp, name)(x, axis=(0, 0))


def test_what_is_no_array_is_refused():
    for name in NAMES:
        with pytest.raises(OperandTypeError):
            getattr(xnp, name)([1.0, 2.0])


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_nothing_has_no_extremum(name):
    for x in (np.zeros((0, 3)), xf.array(np.zeros((0, 3)))):
        with pytest.raises(ShapeError, match=r"M(ax|in)"):
            getattr(xnp, name)(x, axis=0)
    assert getattr(xnp, name)(np.zeros((0, 3)), axis=1).shape == (0,)
    op = {"max": ops.Max, "min": ops.Min, "argmax": ops.ArgMax, "argmin": ops.ArgMin}[name]((0,))
    with pytest.raises(ShapeError, match=f"{op.name}: shape"):
        op.infer(Aval((0, 3), np.dtype(float)))


def test_empty_means_warn_as_numpys():
    for name in ("mean", "var"):
        for x in (np.zeros(0), xf.array(np.zeros(0))):
            with pytest.warns(RuntimeWarning) as caught:
                out = getattr(xnp, name)(x)
            assert np.isnan(xf.to_numpy(out) if isinstance(out, xf.Array) else out)
            assert len(caught) >= 1


# ------------------------------------------------------------------ derivatives at hard points


def gradient(f, x):
    """Return the gradient of the sum of what a function gives."""
    return xf.grad(lambda v: xnp.sum(f(v)))(x)


def test_ties_share_equally():
    x = np.array([3.0, 1.0, 3.0, 3.0])
    np.testing.assert_array_equal(gradient(xnp.max, x), [1 / 3, 0, 1 / 3, 1 / 3])
    np.testing.assert_array_equal(gradient(xnp.min, -x), [1 / 3, 0, 1 / 3, 1 / 3])
    table = np.array([[1.0, 1.0], [2.0, 0.0]])
    np.testing.assert_array_equal(gradient(lambda v: xnp.max(v, axis=1), table), [[0.5, 0.5], [1.0, 0.0]])
    np.testing.assert_array_equal(gradient(xnp.ptp, np.ones(4)), np.zeros(4))
    out, tangent = jvp_of(ops.Max((0,)))(ops.Max((0,)), (x,), (np.array([1.0, 5.0, 2.0, 3.0]),))
    assert (out, tangent) == (3.0, 2.0)


def test_extremum_with_nan_or_infinity():
    x = np.array([1.0, np.nan, 2.0, np.nan])
    np.testing.assert_array_equal(gradient(xnp.max, x), [0.0, 0.5, 0.0, 0.5])
    np.testing.assert_array_equal(gradient(xnp.max, np.array([1.0, np.inf])), [0.0, 1.0])
    np.testing.assert_array_equal(gradient(lambda v: xnp.max(v, axis=0), np.zeros((2, 0))), np.zeros((2, 0)))


def test_std_of_constants_has_gradient_zero():
    for x in (np.full(3, 0.1), np.zeros(4), np.array([2.5]), np.full((2, 3), 1e-200), np.full(3, 0.1, np.float32)):
        np.testing.assert_array_equal(gradient(xnp.std, x), np.zeros(x.shape))
        second = xf.grad(lambda v: xnp.sum(xf.grad(xnp.std)(v) ** 2))(x)
        np.testing.assert_array_equal(second, np.zeros(x.shape))
        assert second.dtype == x.dtype
        op = ops.Std(tuple(range(x.ndim)))
        assert jvp_of(op)(op, (x,), (np.ones_like(x),))[1] == 0
    rows = np.array([[1.0, 1.0], [1.0, 3.0]])
    np.testing.assert_allclose(gradient(lambda v: xnp.std(v, axis=1), rows), [[0.0, 0.0], [-0.5, 0.5]])


def test_variance_of_complex_numbers_is_real():
    z = np.array([1 + 2j, -0.5j, 2.0 + 0j])
    out = xnp.var(z)
    assert out.dtype == np.float64
    found = xf.grad(xnp.var)(z)
    np.testing.assert_allclose(found, 2 * np.conj(z - z.mean()) / 3)  # JAX's convention
    step, delta = 1e-6, np.array([0.3, -0.2j, 0.1 + 0.4j])
    slope = (np.var(z + step * delta) - np.var(z - step * delta)) / (2 * step)
    assert np.isclose(np.sum(found * delta).real, slope)
    assert np.isclose(jvp_of(ops.Var((0,)))(ops.Var((0,)), (z,), (delta,))[1], slope)


def test_logsumexp_is_stable():
    assert xnp.logsumexp(np.array([1000.0, 1000.0])) == pytest.approx(1000 + np.log(2))
    assert xnp.logsumexp(np.array([-1000.0, -1001.0])) == pytest.approx(-1000 + np.log1p(np.exp(-1)))
    x = np.array([[-np.inf, -np.inf], [-np.inf, 2.0], [1.0, 1.0]])
    np.testing.assert_allclose(xnp.logsumexp(x, axis=1), [-np.inf, 2.0, 1.0 + np.log(2)])
    np.testing.assert_allclose(gradient(lambda v: xnp.logsumexp(v, axis=1), x), [[0, 0], [0, 1], [0.5, 0.5]])
    assert xnp.logsumexp(np.array([np.inf, 1.0])) == np.inf
    assert np.isnan(xnp.logsumexp(np.array([np.nan, 1.0])))
    assert xnp.logsumexp(np.zeros(0)) == -np.inf
    assert xnp.logsumexp(np.float32(3.0)).dtype == np.float32
    assert xnp.logsumexp(np.array([1, 2])) == pytest.approx(np.log(np.exp(1) + np.exp(2)))
    assert xnp.logsumexp(np.ones((2, 3, 4), np.float32), (0, 2), keepdims=True).shape == (1, 3, 1)


def test_gradients_of_the_dtype_of_the_primal():
    for dtype in ("float16", "float32", "float64", "complex64"):
        x = np.arange(1, 7).reshape(2, 3).astype(dtype)
        for name in ("sum", "mean", "prod", "var", "std", "logsumexp", "cumsum", "cumprod"):
            out, pullback = xf.vjp(getattr(xnp, name), x)
            assert pullback(np.ones_like(out))[0].dtype == x.dtype, name


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "max", "var", "std", "logsumexp", "cumsum", "cumprod"])
def test_derivatives_of_a_number(name):
    want = {"var": 0.0, "std": 0.0}.get(name, 1.0)
    for number in (1.5, np.float64(1.5), np.array(1.5)):
        assert xf.grad(lambda v: xnp.sum(getattr(xnp, name)(v)))(number) == want
        assert xf.grad(xf.grad(lambda v: xnp.sum(getattr(xnp, name)(v * v))))(number) == 2 * want


def test_plain_numpy_functions_differentiate():
    x = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]])
    for f in (
        lambda v: np.sum(np.mean(v * v, axis=0) * np.max(v, axis=0)),
        lambda v: np.prod(v) + np.std(v, ddof=1) * np.ptp(v),
        lambda v: np.sum(np.cumprod(v) * np.argmax(v)) + np.add.reduce(v, axis=None),
        lambda v: np.median(v) + np.sum(np.sort(v, axis=1)[:, 0] ** 2) + v.min() * v.var(),
    ):
        step, found = 1e-6, xf.grad(f)(x)
        for i in np.ndindex(x.shape):
            delta = np.zeros_like(x)
            delta[i] = step
            assert found[i] == pytest.approx((f(x + delta) - f(x - delta)) / (2 * step), abs=1e-7)


def test_a_broadcast_cotangent_is_not_written():
    x = np.ones((2, 3))
    found = xf.grad(lambda v: xnp.sum(v) + xnp.sum(v) + xnp.mean(v * v))(x)
    np.testing.assert_allclose(found, 2 + 2 * x / 6, rtol=1e-14)


# ------------------------------------------------------------------ batches, unknown shapes, other libraries


@pytest.mark.parametrize(
    "op",
    [kind(axis, keep) for kind in (ops.Sum, ops.Mean, ops.Prod, ops.Max, ops.Var, ops.Std, ops.LogSumExp, ops.AllTrue)
     for axis in ((), (0,), (1,), (0, 1)) for keep in (False, True)],
    ids=repr,
)  # fmt: skip
def test_batch_equals_a_loop(op):
    x = np.random.default_rng(1).normal(size=(4, 2, 3))
    want = np.stack([op.evaluate(np, each) for each in x])
    for axis in range(3):
        moved = np.moveaxis(x, 0, axis)
        out, out_axis = batch_rule.get(op)(op, 4, (moved,), (axis,))
        np.testing.assert_allclose(np.moveaxis(np.asarray(out), out_axis, 0), want)


@pytest.mark.parametrize(
    "op", [ops.ArgMax((1,)), ops.ArgMin((0,), keepdims=True), ops.CountNonzero((0, 1)), ops.AnyTrue((1,))], ids=repr
)
def test_batch_of_indices_and_counts(op):
    x = np.random.default_rng(1).integers(0, 3, (4, 2, 3))
    for axis in range(3):
        out, out_axis = batch_rule.get(op)(op, 4, (np.moveaxis(x, 0, axis),), (axis,))
        np.testing.assert_array_equal(np.moveaxis(out, out_axis, 0), np.stack([op.evaluate(np, each) for each in x]))


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "max", "var", "std", "logsumexp", "cumsum", "cumprod", "sort"])
@pytest.mark.parametrize("axis", [None, 1])
def test_rules_need_no_shape(name, axis):
    """Under a layer whose values have unknown lengths, derivatives are the same: no rule bakes a shape."""
    x = np.random.default_rng(2).normal(size=(2, 3))

    def f(v):
        return xnp.sum(getattr(xnp, name)(v * v, axis=axis) ** 2)

    want = xf.grad(f)(x)
    with Hide() as hide:
        np.testing.assert_allclose(hide.shown(xf.grad(f)(hide.hidden(x))), want)


@pytest.mark.parametrize(
    "name", ["sum", "mean", "prod", "max", "min", "var", "std", "logsumexp", "all", "any", "count_nonzero", "argmax"]
)
def test_array_api_on_a_device(name):
    device = strict.Device("device1")
    for dtype in ("float64", "float32", "int32", "bool"):
        x = sample((2, 3), dtype)
        y = strict.asarray(x, device=device)
        for axis in (None, 1):
            want = getattr(xnp, name)(x, axis)
            got = getattr(xnp, name)(y, axis)
            assert got.device == device
            np.testing.assert_allclose(
                np.from_dlpack(strict.asarray(got, device=strict.Device("CPU_DEVICE"))), want, rtol=1e-6
            )
            assert str(got.dtype).rpartition(".")[2] == str(np.asarray(want).dtype)
        if dtype.startswith("float") and name not in ("all", "any", "count_nonzero", "argmax"):
            found = xf.grad(lambda v: xnp.sum(getattr(xnp, name)(v * v, 1)))(y)
            assert found.device == device
            want = xf.grad(lambda v: xnp.sum(getattr(xnp, name)(v * v, 1)))(x)
            np.testing.assert_allclose(
                np.from_dlpack(strict.asarray(found, device=strict.Device("CPU_DEVICE"))), want, rtol=1e-5
            )


def test_apply_takes_an_operator_as_it_is():
    assert apply(ops.Sum((0,)), np.ones(3)) == 3.0
    assert repr(ops.Sum((0,))) == "Sum(axis=(0,), keepdims=False)"
    assert ops.Sum((0,)) != ops.Mean((0,))
    assert ops.Sum((0,)) == ops.Sum((0,))
