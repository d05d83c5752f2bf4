"""Elementwise derivatives at hard points (ties, zeros, bounds, infinities), in both modes, and of complex numbers."""

from __future__ import annotations

import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from xform.transforms.forward import jvp


def slopes(fun, *args):
    """Return the derivatives by every argument, in reverse mode; forward mode must agree."""
    found = xf.grad(fun, tuple(range(len(args))))(*args)
    for place in range(len(args)):
        tangents = tuple(float(place == i) for i in range(len(args)))
        assert jvp(fun, args, tangents)[1] == pytest.approx(found[place], nan_ok=True)
    return found


HARD_POINTS = [
    ("abs", xnp.abs, (0.0,), (0.0,)),
    ("fabs", xnp.fabs, (0.0,), (0.0,)),
    ("sign", xnp.sign, (0.0,), (0.0,)),
    ("copysign", xnp.copysign, (0.0, -1.0), (0.0, 0.0)),
    ("copysign of a negative", xnp.copysign, (-2.0, -0.0), (1.0, 0.0)),
    ("maximum tie", xnp.maximum, (2.0, 2.0), (0.5, 0.5)),
    ("minimum tie", xnp.minimum, (2.0, 2.0), (0.5, 0.5)),
    ("maximum of infinities", xnp.maximum, (np.inf, np.inf), (0.5, 0.5)),
    ("fmax tie", xnp.fmax, (2.0, 2.0), (0.5, 0.5)),
    ("fmax beside NaN", xnp.fmax, (2.0, np.nan), (1.0, 0.0)),
    ("fmin beside NaN", xnp.fmin, (np.nan, 2.0), (0.0, 1.0)),
    ("clip at the lower bound", lambda x: xnp.clip(x, 0.0, 1.0), (0.0,), (1.0,)),
    ("clip at the upper bound", lambda x: xnp.clip(x, 0.0, 1.0), (1.0,), (1.0,)),
    ("clip inside", xnp.clip, (0.5, 0.0, 1.0), (1.0, 0.0, 0.0)),
    ("clip below", xnp.clip, (-1.0, 0.0, 1.0), (0.0, 1.0, 0.0)),
    ("clip above", xnp.clip, (2.0, 0.0, 1.0), (0.0, 0.0, 1.0)),
    ("clip with crossed bounds", xnp.clip, (0.0, 2.0, 1.0), (0.0, 0.0, 1.0)),
    ("hypot", xnp.hypot, (0.0, 0.0), (0.0, 0.0)),
    ("hypot on an axis", xnp.hypot, (0.0, 2.0), (0.0, 1.0)),
    ("arctan2", xnp.arctan2, (0.0, 0.0), (0.0, 0.0)),
    ("arctan2 far out", xnp.arctan2, (0.0, 1e200), (1e-200, 0.0)),
    ("arctan2 close in", xnp.arctan2, (0.0, 1e-200), (1e200, 0.0)),
    ("sinc", xnp.sinc, (0.0,), (0.0,)),
    ("power 0 of 0", xnp.power, (0.0, 0.0), (0.0, 0.0)),
    ("power 1 of 0", xnp.power, (0.0, 1.0), (1.0, 0.0)),
    ("power 2 of 0", xnp.power, (0.0, 2.0), (0.0, 0.0)),
    ("power 3 of 0", xnp.power, (0.0, 3.0), (0.0, 0.0)),
    ("power 0 of 2", xnp.power, (2.0, 0.0), (0.0, np.log(2.0))),
    ("where", lambda x: xnp.where(x > 0, x, 3.0), (0.0,), (0.0,)),
    ("logaddexp of nothing", xnp.logaddexp, (-np.inf, -np.inf), (0.0, 0.0)),
    ("logaddexp with nothing", xnp.logaddexp, (1.0, -np.inf), (1.0, 0.0)),
    ("logaddexp tie", xnp.logaddexp, (1.0, 1.0), (0.5, 0.5)),
    ("logaddexp of much", xnp.logaddexp, (np.inf, 1.0), (1.0, 0.0)),
    ("logaddexp2 of nothing", xnp.logaddexp2, (-np.inf, -np.inf), (0.0, 0.0)),
    ("heaviside", xnp.heaviside, (0.0, 0.5), (0.0, 1.0)),
    ("nan_to_num of NaN", xnp.nan_to_num, (np.nan,), (0.0,)),
    ("floor", xnp.floor, (1.5,), (0.0,)),
    ("round", lambda x: xnp.round(x, 1), (1.55,), (0.0,)),
    ("remainder, both signs", xnp.remainder, (-7.5, 2.0), (1.0, 4.0)),
    ("remainder, negative divisor", xnp.remainder, (7.5, -2.0), (1.0, 4.0)),
    ("remainder, both negative", xnp.remainder, (-7.5, -2.0), (1.0, -3.0)),
    ("fmod", xnp.fmod, (-7.5, 2.0), (1.0, 3.0)),
    ("floor_divide", xnp.floor_divide, (7.5, 2.0), (0.0, 0.0)),
    ("arctan far out", xnp.arctan, (np.inf,), (0.0,)),
    ("tanh far out", xnp.tanh, (1e3,), (0.0,)),
    ("expm1 far down", xnp.expm1, (-40.0,), (np.exp(-40.0),)),
    ("angle", xnp.angle, (0.0,), (0.0,)),
]


@pytest.mark.parametrize(("fun", "args", "want"), [pytest.param(*row[1:], id=row[0]) for row in HARD_POINTS])
@pytest.mark.parametrize("kind", ["number", "0-d array", "array"])
def test_hard_points(fun, args, want, kind):
    if kind == "number":
        assert slopes(fun, *args) == pytest.approx(want)
        return
    shape = () if kind == "0-d array" else (2,)
    given = tuple(np.full(shape, arg) for arg in args)
    found = xf.grad(lambda *xs: fun(*xs).sum(), tuple(range(len(args))))(*given)
    for each, wanted in zip(found, want, strict=True):
        np.testing.assert_allclose(each, np.full(shape, wanted))


def test_sqrt_at_0_is_steep():
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        assert xf.grad(xnp.sqrt)(0.0) == np.inf


@pytest.mark.parametrize("exponent", [2, 2.0, np.int64(2), np.float64(2.0), np.array(2), np.array(2.0)])
@pytest.mark.parametrize("base", [-3.0, 0.0, 2.0])
def test_whole_exponents_of_every_kind(base, exponent):
    assert xf.grad(lambda x: x**exponent)(base) == 2.0 * base
    assert xf.grad(xf.grad(lambda x: x**exponent))(base) == 2.0
    assert xf.grad(xf.grad(xf.grad(lambda x: x**exponent)))(base) == 0.0


@pytest.mark.parametrize("exponents", [np.arange(4), np.arange(4.0)])
def test_an_array_of_exponents_at_0(exponents):
    """x**0 + x + x**2 + x**3 has the slope 1 and the curvature 2 at 0."""
    assert xf.grad(lambda x: (x**exponents).sum())(0.0) == 1.0
    assert xf.grad(xf.grad(lambda x: (x**exponents).sum()))(0.0) == 2.0
    assert xf.grad(xf.grad(xf.grad(lambda x: (x**exponents).sum())))(0.0) == 6.0


@pytest.mark.parametrize("x", [0.5, 2.0, 3.0])
def test_second_derivatives_of_power_at_exponent_0(x):
    by_x, by_y = xf.grad(xnp.power, 0), xf.grad(xnp.power, 1)
    assert xf.grad(by_x, 0)(x, 0.0) == pytest.approx(0.0)
    assert xf.grad(by_x, 1)(x, 0.0) == pytest.approx(1 / x)
    assert xf.grad(by_y, 0)(x, 0.0) == pytest.approx(1 / x)
    assert xf.grad(by_y, 1)(x, 0.0) == pytest.approx(np.log(x) ** 2)


def test_negative_base_with_a_whole_float():
    x = np.array([-2.0, -0.5])
    np.testing.assert_allclose(xf.grad(lambda x: (x**3.0).sum())(x), 3 * x**2)
    np.testing.assert_allclose(xf.grad(lambda x: (x ** np.array([3.0, 2.0])).sum())(x), [12.0, -1.0])


def test_sinc_has_exact_higher_derivatives_near_0():
    derivative = xnp.sinc
    for order in range(9):
        for x in (0.0, 1e-9, 1e-4, 0.01, 0.3, 0.7, 2.5):
            want = sinc_series(x, order)
            assert float(derivative(x)) == pytest.approx(want, rel=1e-9, abs=1e-9 * np.pi**order)
        derivative = xf.grad(derivative)


def sinc_series(x, order):
    """Return a derivative of sinc from its power series, in 60 digits."""
    import mpmath

    with mpmath.workdps(60):
        u, total = mpmath.pi * mpmath.mpf(x), mpmath.mpf(0)
        for k in range((order + 1) // 2, 60):
            power = 2 * k - order
            total += (-1) ** k * u**power / ((2 * k + 1) * mpmath.factorial(power))
        return float(total * mpmath.pi**order)


def test_where_keeps_an_infinite_cotangent_out_of_the_other_branch():
    x = np.array([4.0, 1.0])
    with np.errstate(divide="ignore"):
        found = xf.grad(lambda x: xnp.where(x > 2, x, xnp.sqrt(x - 4.0 + 3.0)).sum())(x)
    np.testing.assert_array_equal(found, [1.0, np.inf])


# ------------------------------------------------------------------ complex numbers: the plain transpose


def test_complex_conventions():
    z = 1 + 2j
    assert xf.grad(lambda z: xnp.abs(z) ** 2)(z) == pytest.approx(2 - 4j)
    assert xf.grad(xnp.real)(z) == 1
    assert xf.grad(xnp.imag)(z) == -1j
    assert xf.grad(lambda z: xnp.real(xnp.conj(z)))(z) == 1
    assert xf.grad(lambda z: xnp.imag(xnp.conj(z)))(z) == 1j
    assert xf.grad(xnp.abs)(z) == pytest.approx(np.conj(z) / abs(z))
    assert xf.grad(xnp.angle)(z) == pytest.approx(-1j / z)
    assert xf.grad(lambda z: xnp.real(z * z * 1j))(z) == pytest.approx(2j * z)


@pytest.mark.parametrize("function", [xnp.abs, xnp.angle, lambda z: xnp.real(xnp.sign(z))])
def test_complex_zero_has_slope_0(function):
    assert xf.grad(function)(0j) == 0
    assert xf.grad(lambda x: function(x * (1 + 1j)))(0.0) == 0


@pytest.mark.parametrize("function", [xnp.exp, xnp.sin, xnp.arccosh, xnp.arcsin, xnp.arctanh, xnp.log, xnp.sqrt])
@pytest.mark.parametrize("z", [0.3 + 0.4j, -1.7 + 0.6j, -0.6 - 1.2j, 1.4 - 0.3j])
def test_holomorphic_derivatives_in_all_quadrants(function, z):
    want = (function(z + 1e-6) - function(z - 1e-6)) / 2e-6
    assert xf.grad(lambda z: xnp.real(function(z)))(z) == pytest.approx(want, rel=1e-7)
    assert jvp(function, (z,), (1j,))[1] == pytest.approx(1j * want, rel=1e-7)
