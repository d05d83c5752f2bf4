"""What was found by trying to break operators: dtypes, byte order, extreme magnitudes; each was wrong once."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import xform as xf
import xform.numpy as xnp
from tests.operators.collect import families, operands
from xform.core.aval import aval_of

X = np.array([1.0, 2.0])


# ------------------------------------------------------------------ parts of real numbers

PARTS = {
    "imag": np.imag,
    "product": lambda v: v.imag * v,
    "angle": lambda v: np.angle(v + 0.0),
    "nan_to_num": lambda v: np.imag(np.nan_to_num(v)),
    "of a real part": lambda v: np.imag(np.real(v * 1j)),
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_imaginary_part_of_real_numbers_has_derivative_zero(name, dtype):
    x = X.astype(dtype)
    found = xf.grad(lambda v: np.sum(PARTS[name](v)))(x)
    assert_array_equal(found, np.zeros(2))
    assert found.dtype == dtype
    second = xf.grad(lambda v: np.sum(xf.grad(lambda u: np.sum(PARTS[name](u)))(v)))(x)
    assert_array_equal(second, np.zeros(2))
    out, tangent = xf.jvp(PARTS[name], (x,), (np.ones_like(x),))
    assert_array_equal(tangent, np.zeros(2))
    assert tangent.dtype == out.dtype


@pytest.mark.parametrize("name", PARTS)
def test_a_python_float_keeps_a_float_as_gradient(name):
    found = xf.grad(PARTS[name])(1.5)
    assert (type(found), found) == (float, 0.0)


def test_a_complex_factor_leaves_the_gradient_of_a_number_real():
    assert xf.grad(lambda v: np.imag(v * 1j))(1.5) == 1.0
    assert type(xf.grad(lambda v: np.imag(v * 1j))(1.5)) is float
    out, tangent = xf.jvp(lambda v: np.angle(v * (1 + 1j)), (1.0,), (1.0,))
    assert (out, tangent) == (pytest.approx(np.pi / 4), 0.0)
    assert tangent.dtype == float


# ------------------------------------------------------------------ float16

MANY = 70000
AVERAGES = {
    "mean": np.mean,
    "mean of rows": lambda v: np.mean(v.reshape(1, -1), axis=1)[0],
    "average": np.average,
    "weighted": lambda v: np.average(v, weights=v),
    "where": lambda v: np.mean(v, where=np.ones(MANY, bool)),
    "nanmean": np.nanmean,
    "max": np.max,
    "min": np.min,
    "logsumexp": xnp.logsumexp,
}


@pytest.mark.parametrize("name", AVERAGES)
def test_float16_of_more_elements_than_it_can_count(name):
    x = np.ones(MANY, np.float16)
    value, found = xf.value_and_grad(AVERAGES[name])(x)
    assert np.isfinite(value)
    assert found.dtype == np.float16
    assert_allclose(found, 1 / MANY, rtol=1e-2)
    tangent = xf.jvp(AVERAGES[name], (x,), (x,))[1]
    assert tangent.dtype == np.float16
    assert tangent == pytest.approx(1.0, rel=1e-2)


def test_float16_spreads_and_norms_are_computed_in_float32():
    x = np.tile(np.array([1.0, 3.0], np.float16), MANY // 2)
    assert (np.var(xf.array(x)).data, np.std(xf.array(x)).data) == (1.0, 1.0)
    assert_allclose(xf.grad(np.std)(x)[:2], [-1 / MANY, 1 / MANY], rtol=1e-2)
    assert_allclose(xf.grad(np.var)(x)[:2], [-2 / MANY, 2 / MANY], rtol=1e-2)
    assert_allclose(xf.grad(np.linalg.norm)(x)[:2], np.array([1, 3]) / np.sqrt(5.0 * MANY), rtol=1e-2)
    assert xf.jvp(np.std, (x,), (x,))[1] == pytest.approx(1.0, rel=1e-2)
    assert xf.jvp(np.linalg.norm, (x,), (x,))[1] == pytest.approx(np.sqrt(5.0 * MANY), rel=1e-2)
    assert np.var(xf.array(np.array([300.0, -300.0], np.float16) / 2)).data == 22500.0


def test_average_of_mixed_precision_has_numpys_dtype():
    x, w = np.ones(3, np.float32), np.ones(3, np.float16)
    assert xnp.average(x, weights=w).dtype == np.float32
    assert xnp.average(w, weights=x).dtype == np.float32
    assert xnp.average(w, weights=w).dtype == np.float16


# ------------------------------------------------------------------ byte order

ROWS = [row for rows in families().values() for row in rows if row.order and "rev" in row.modes]


@pytest.mark.parametrize("order", [">", "<"])
@pytest.mark.parametrize("name", ["min", "max", "ptp", "prod", "cumsum", "cumprod", "sum", "std", "median", "sort"])
def test_a_gradient_has_the_byte_order_of_its_primal(name, order):
    x = np.array([[3.0, 1.0, 2.5], [2.0, 5.0, 4.0]])
    loss = lambda v: np.sum(getattr(np, name)(v) * 1.5)
    for code in ("f4", "f8"):
        found = xf.grad(loss)(x.astype(order + code))
        assert found.dtype.str == np.dtype(order + code).str
        assert_allclose(found, xf.grad(loss)(x), rtol=1e-5)
        assert xf.grad(loss)(xf.array(x.astype(order + code))).data.dtype.str == found.dtype.str
    point = np.array(2.0, order + "f8")
    assert xf.grad(lambda v: np.sin(v * v))(point).dtype.str == point.dtype.str


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in ROWS])
def test_rows_in_the_other_byte_order(row):
    args = operands(row, "float64")
    swapped = xf.tree.map(
        lambda x: x.astype(x.dtype.newbyteorder(">")) if isinstance(x, np.ndarray) and x.dtype.kind in "fc" else x, args
    )
    for have, want in zip(gradients(row.fun, swapped), gradients(row.fun, args), strict=True):
        assert_allclose(have[1], want[1], rtol=1e-12, atol=1e-12)
        assert have[1].dtype == have[0].dtype


def gradients(fun, args):
    """Return pairs of a floating array among the operands and its gradient, of a function with any outputs."""
    leaves, structure = xf.tree.flatten(args)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "fc"]

    def loss(*xs):
        full = list(leaves)
        for i, x in zip(places, xs, strict=True):
            full[i] = x
        outs = xf.tree.leaves(fun(*xf.tree.unflatten(structure, full)))
        total = np.sum(np.abs(xs[0]))
        for out in outs:
            if aval_of(out).dtype.kind in "fc":
                total = total + np.sum(np.abs(out) * 1.0)
        return total

    found = xf.grad(loss, tuple(range(len(places))))(*[leaves[i] for i in places]) if places else ()
    return [(leaves[i], each) for i, each in zip(places, found, strict=True)]


# ------------------------------------------------------------------ large and small numbers


@pytest.mark.parametrize(("dtype", "level"), [("float16", 300.0), ("float32", 3e4), ("float64", 1e12)])
def test_shares_of_large_exponentials_add_up_to_one(dtype, level):
    x = np.full(3, level, dtype)
    found = xf.grad(xnp.logsumexp)(x)
    tight = 2 * float(np.finfo(dtype).eps)
    assert_allclose(found, 1 / 3, rtol=tight)
    assert xf.jvp(xnp.logsumexp, (x,), (np.ones_like(x),))[1] == pytest.approx(1.0, rel=tight)
    for pair in (np.logaddexp, np.logaddexp2):
        left, right = xf.grad(lambda a, b, pair=pair: np.sum(pair(a, b)), (0, 1))(x, x - dtype_one(dtype))
        assert left.dtype == dtype
        assert_allclose(left + right, 1.0, rtol=tight)
        assert_allclose(xf.grad(lambda v, pair=pair: np.sum(pair(v, x)))(x), 0.5)
    second = xf.hessian(lambda v: np.logaddexp(v[0], v[1]))(x[:2])
    assert_allclose(second, [[0.25, -0.25], [-0.25, 0.25]], rtol=tight)


def dtype_one(dtype):
    return np.ones((), dtype)


@pytest.mark.parametrize(("name", "slope"), [
    ("arctan", lambda x: 0.0), ("arcsinh", lambda x: 1 / abs(x)), ("log10", lambda x: 1 / x / np.log(10)),
])  # fmt: skip
@pytest.mark.parametrize(("dtype", "large"), [("float16", 6e4), ("float32", 3e38), ("float64", 1.7e308)])
def test_no_overflow_far_out(name, slope, dtype, large):
    x = np.array([large], dtype)
    found = xf.grad(lambda v: np.sum(getattr(np, name)(v)))(x)
    assert_allclose(found, slope(float(x[0])), rtol=1e-2, atol=np.finfo(dtype).tiny)
    assert np.isfinite(xf.grad(lambda v: np.sum(xf.grad(lambda u: np.sum(getattr(np, name)(u)))(v)))(x)).all()


@pytest.mark.parametrize("name", ["arctan", "arcsinh", "arcsin", "arccos", "arctanh"])
def test_no_overflow_far_out_in_the_complex_plane(name):
    for z in (1e200 + 1e100j, 1e200j, -1e200 - 1j):
        found = xf.grad(lambda v: np.real(getattr(np, name)(v)))(np.complex128(z))
        assert abs(found) <= 2e-200


def test_a_spread_too_small_for_its_square_has_gradient_zero():
    assert_array_equal(xf.grad(np.std)(np.array([1e-200, 2e-200])), [0.0, 0.0])
    assert xf.jvp(np.std, (np.array([1e-200, 2e-200]),), (X,))[1] == 0.0
    rows = np.array([[1e-200, 2e-200], [1.0, 3.0]])
    assert_array_equal(xf.grad(lambda v: np.sum(np.std(v, axis=1)))(rows), [[0, 0], [-0.5, 0.5]])


@pytest.mark.filterwarnings("ignore:Degrees of freedom:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:(invalid value|divide by zero) encountered:RuntimeWarning")
@pytest.mark.parametrize("name", ["var", "std"])
def test_no_degree_of_freedom_gives_nan(name):
    for x, ddof in (([3.0], 1), ([1.0, 2.0], 2), ([1.0, 2.0], 3), ([[1.0], [2.0]], 1)):
        axis = 1 if np.ndim(x) == 2 else None
        fun = lambda v, axis=axis, ddof=ddof: np.sum(getattr(np, name)(v, axis=axis, ddof=ddof))
        assert np.isnan(xf.grad(fun)(np.array(x))).all()
        assert np.isnan(xf.jvp(fun, (np.array(x),), (np.ones(np.shape(x)),))[1])


# ------------------------------------------------------------------ functions that were missing

FUNCTIONS = {
    "append": lambda v: np.append(v, [1.0, 2.0]),
    "append axis": lambda v: np.append(v[None], [[1.0, 2.0, 3.0, 4.0]], axis=0),
    "block": lambda v: np.block([[v[None], np.ones((1, 2))], [np.zeros((1, 4)), v[None, :2]]]),
    "block of numbers": lambda v: np.block([v, v[0], 2.0]),
    "copy": np.copy,
    "cumulative_sum": lambda v: np.cumulative_sum(v, include_initial=True),
    "cumulative_sum axis": lambda v: np.cumulative_sum(v.reshape(2, 2), axis=1, include_initial=True),
    "ediff1d": lambda v: np.ediff1d(v, to_begin=[1.0], to_end=2.0),
    "interp": lambda v: np.interp(v, [0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 4.0, 9.0], left=-1.0),
    "interp heights": lambda v: np.interp([0.3, 1.2, 7.0, -1.0], [0.0, 1.0, 2.0, 3.0], v),
    "interp places": lambda v: np.interp([0.3, 1.2], np.sort(v), [1.0, 3.0, 2.0, 5.0]),
    "interp one": lambda v: np.interp(v, [0.5], [2.0], right=3.0),
    "iscomplex": lambda v: v * np.iscomplex(v),
    "isreal": lambda v: v * np.isreal(v),
    "nanmax": lambda v: np.nanmax(np.append(v, np.nan)),
    "nanmean": lambda v: np.nanmean(np.stack([v, np.full(4, np.nan), v * v]), axis=0),
    "nanmin": lambda v: np.nanmin(np.append(v, np.nan)),
    "nansum": lambda v: np.nansum(np.stack([v, np.full(4, np.nan)]), axis=1),
    "percentile": lambda v: np.percentile(v, [20, 50]),
    "percentile one": lambda v: np.percentile(v, 30.0),
    "rollaxis": lambda v: np.rollaxis(v.reshape(1, 2, 2), 2),
    "rollaxis end": lambda v: np.rollaxis(v.reshape(1, 2, 2), 0, 3),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_equal_numpys_and_differentiate(name):
    fun, x = FUNCTIONS[name], np.array([0.9, 2.1, -0.4, 1.3])
    want = fun(x)
    for dtype in ("float64", "float32"):
        out = fun(xf.array(x.astype(dtype)))
        assert isinstance(out, xf.Array)
        assert_allclose(out.data, fun(x.astype(dtype)), rtol=1e-6)
        assert out.dtype == np.asarray(fun(x.astype(dtype))).dtype or name == "percentile"  # NumPy's is a float64
    weights = np.cos(np.arange(np.size(want))).reshape(np.shape(want))
    loss = lambda v: np.sum(fun(v) * weights)
    xf.testing.check_grads(loss, (x,))
    assert_allclose(xf.trace(loss)(x), loss(x))
    assert_allclose(xf.vmap(loss)(np.stack([x, x + 0.01])), [loss(x), loss(x + 0.01)])


@pytest.mark.filterwarnings("ignore:All-NaN:RuntimeWarning")
def test_nothing_but_nan():
    x = np.array([[np.nan, np.nan], [1.0, np.nan]])
    for name in ("nansum", "nanmax", "nanmin"):
        assert_array_equal(getattr(np, name)(xf.array(x), axis=1).data, getattr(np, name)(x, axis=1))
        assert_array_equal(xf.grad(lambda v, name=name: np.sum(getattr(np, name)(v, axis=1)))(x), [[0, 0], [1, 0]])
    for name in ("nansum", "nanmax", "nanmin", "nanmean"):
        assert getattr(xnp, name)(np.array([1, 3])) == getattr(np, name)(np.array([1, 3]))


def test_functions_refuse():
    with pytest.raises(ValueError, match="table must have two rows"):
        np.interp(xf.array(X), [1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match=r"x % period"):
        np.interp(xf.array(X), [1.0, 2.0], [1.0, 2.0], period=2.0)
    with pytest.raises(ValueError, match="needs axis="):
        np.cumulative_sum(xf.array(np.ones((2, 2))))
    with pytest.raises(ValueError, match="same depth"):
        np.block([[xf.array(X)], xf.array(X)])
    with pytest.raises(ValueError, match="rollaxis"):
        np.rollaxis(xf.array(X), 3)


def test_interp_at_and_beyond_its_points():
    xp, fp = np.array([0.0, 1.0, 3.0]), np.array([0.0, 2.0, 1.0])
    x = np.array([-np.inf, -1.0, 0.0, 0.5, 1.0, 3.0, 4.0, np.inf, np.nan])
    assert_array_equal(xnp.interp(x, xp, fp), np.interp(x, xp, fp))
    assert_array_equal(xf.grad(lambda v: np.sum(xnp.interp(v, xp, fp)))(x)[:-1], [0, 0, 2, 2, -0.5, -0.5, 0, 0])
    assert np.isfinite(xf.grad(lambda f: np.sum(xnp.interp(x[:-1], xp, f)))(fp)).all()
