"""Nested tapes and custom gradients, one behaviour a test, numbered 23 to 33; the first 22 are test_behaviours_tape."""

import copy

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import xform as xf
from xform.core.errors import GradientError

X = np.array([[0.3, -1.2, 2.0], [0.7, 1.1, -0.4]])
ONES = np.ones_like(X)


@pytest.mark.parametrize("grouped", [True, False])
def test_row_23_two_tapes_as_one_group(grouped):
    with xf.Grad() as a, xf.Grad(group=a if grouped else None) as b:
        xa = a.attach(X)
        xb = b.attach(xa)
        y = np.cos(xb)
        db = b.gradient(y, xb, ONES)
        da = a.gradient([y, db], [xa], [ONES, ONES])[0]
    plain = xf.concrete(db)
    assert_allclose(plain, -np.sin(X))
    second = np.zeros_like(X) if grouped else -np.cos(X)
    assert_allclose(da + plain, -2 * np.sin(X) + second)


def test_row_24_only_an_outer_tape_records_an_inner_backward():
    with xf.Grad() as outer, xf.Grad() as inner:
        xo = outer.attach(X)
        xi = inner.attach(xo)
        y = np.cos(xi)
        do = outer.gradient(y, xo, ONES)
        assert not inner.is_attached(do)
        assert_allclose(do, -np.sin(X))
        with pytest.warns(UserWarning, match="nothing flows"):
            found = inner.gradient(do, xi, ONES)
        assert_array_equal(xf.concrete(found), np.zeros_like(X))


@pytest.mark.parametrize("function", [np.cos, np.sin, lambda v: 2.5 * v + 3.0], ids=["cos", "sin", "affine"])
def test_row_25_forward_mode_by_two_reverse_passes(function):
    direction = np.random.default_rng(2).normal(size=X.shape)
    _, transpose = xf.vjp(lambda u: xf.vjp(function, X)[1](u)[0], np.zeros_like(X))
    step = 1e-6
    expected = (function(X + step * direction) - function(X - step * direction)) / (2 * step)
    assert_allclose(transpose(direction)[0], expected, rtol=1e-8)


def test_row_26_custom_backward_that_calls_another_custom_function():
    kinds = []

    def forward(function):
        return lambda x: (kinds.append(isinstance(x, xf.Value)) or function(x), x)

    sine = xf.custom_gradient(forward(np.sin), lambda x, t: t * cosine(x))
    cosine = xf.custom_gradient(forward(np.cos), lambda x, t: -t * sine(x))
    assert_allclose(xf.grad(cosine)(0.3), -np.sin(0.3))
    assert kinds == [False, False]
    assert_allclose(xf.grad(xf.grad(cosine))(0.3), -np.cos(0.3))
    assert_allclose(xf.grad(xf.grad(xf.grad(cosine)))(0.3), np.sin(0.3))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "bool"])
def test_row_27_integer_inputs_are_refused(dtype):
    with xf.Grad() as tape, pytest.raises(GradientError, match=dtype):
        tape.attach(np.ones(2, dtype))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_row_27_floats_are_taken(dtype):
    with xf.Grad() as tape:
        x = tape.attach(np.ones(2, dtype))
        found = tape.gradient((x * x).sum(), x)
    assert found.dtype == dtype
    assert_array_equal(found, [2, 2])


def test_row_28_the_users_rule_is_used_though_wrong():
    one = xf.custom_gradient(lambda x: (x * 1.0, None), lambda _, t: t * 2.0)
    assert xf.grad(one)(1.0) == 2.0
    two_in = xf.custom_gradient(lambda x, y: (x + y, None), lambda _, t: (t * 2.0, t * 3.0))
    assert xf.grad(two_in, (0, 1))(1.0, 1.0) == (2.0, 3.0)
    two_out = xf.custom_gradient(lambda x: ((x * 1.0, x * 1.0), None), lambda _, t, u: (t * 2.0 + u * 3.0,))
    assert xf.grad(lambda x: sum(two_out(x)))(1.0) == 5.0
    with xf.Grad() as outer:
        xo = outer.attach(2.0)
        with xf.Grad() as inner:
            xi = inner.attach(xo)
            y = two_in(xi, xi * 1.0)
            assert xf.concrete(inner.gradient(y, xi)) == 5.0
        assert outer.gradient(y, xo) == 5.0
    cubed = xf.custom_gradient(lambda x: (x * 1.0, x), lambda x, t: t * x * x)
    assert xf.grad(xf.grad(cubed))(3.0) == 6.0


def test_row_29_backward_unrelated_to_the_cotangent():
    fixed = xf.custom_gradient(lambda x: (x * 2.0, None), lambda _, t: np.full((2, 3), 7.0))
    assert_array_equal(xf.vjp(fixed, X)[1](ONES * 123.0)[0], np.full((2, 3), 7.0))


def test_row_30_straight_through():
    rounded = xf.custom_gradient(lambda x: (np.round(x), None), lambda _, t: t)
    out, pullback = xf.vjp(rounded, X)
    assert_array_equal(out, np.round(X))
    assert_array_equal(pullback(X)[0], X)


def test_row_31_none_in_and_none_out():
    seen = []

    def backward(_, *cotangents):
        seen.append(cotangents)
        return cotangents[0], None

    pair = xf.custom_gradient(lambda x, y: ((x * 2.0, y * 3.0), None), backward)
    assert xf.grad(lambda x, y: pair(x, y)[0], (0, 1))(1.0, 1.0) == (1.0, 0.0)
    assert len(seen) == 1
    assert seen[0][0] == 1.0
    assert seen[0][1] is None
    with xf.Grad() as tape:
        x = tape.attach(1.0)
        first, second = pair(x, x)
        stopped = xf.custom_gradient(lambda x: (x * 1.0, None), lambda _, t: None)
        assert tape.gradient(x * 5.0 + stopped(first) + stopped(second), x) == 5.0
    assert len(seen) == 1  # reached, and not called when every cotangent is missing


def test_row_32_one_path_blocked_the_other_counted():
    blocked = xf.custom_gradient(lambda x: (x * 1.0, None), lambda _, t: None)
    for block in (blocked, xf.stop_gradient):
        assert xf.grad(lambda x, block=block: 3.0 * block(x) + 4.0 * x)(2.0) == 4.0


class Model:
    """An object with a custom function and weights."""

    def __init__(self, activation, weights):
        self.activation, self.weights, self.last = activation, weights.copy(), None

    def __call__(self, x):
        return self.activation(x) * self.weights


def test_row_33_deepcopy_wrong_argument_and_forward_in_place():
    square = xf.custom_gradient(lambda x: (x * x, x), lambda x, t: t * 2.0 * x)
    model = Model(square, X)
    with xf.Grad() as tape:
        model.last = tape.attach(X)  # a tracked value that the object holds on to
        model(model.last)
        copied = copy.deepcopy(model)
        assert copied is not model
        assert copied.weights is not model.weights
        assert_array_equal(copied.weights, X)
        assert copied.last is model.last
        assert_allclose(tape.gradient(copied(copied.last), copied.last, ONES), 2 * X * X)  # residuals survive
    model.weights[:] = np.nan  # the copy has its own
    assert_allclose(xf.vjp(copied, X)[1](ONES)[0], 2 * X * copied.weights)
    assert_allclose(xf.grad(lambda x: xf.grad(lambda y: copied(y).sum())(x).sum())(X), 2 * copied.weights)
    assert_array_equal(copied.weights, X)
    with pytest.raises(TypeError, match="argument 1 is str"):
        xf.custom_gradient(lambda x, y: (x, None), lambda _, t: (t, None))(X, "text")

    def in_place(x):
        x += 1.0
        return x, None

    given = X.copy()
    shifted = xf.custom_gradient(in_place, lambda _, t: t)
    out, pullback = xf.vjp(shifted, given)
    assert_array_equal(out, X + 1)
    assert_array_equal(pullback(ONES)[0], ONES)
    assert_array_equal(given, X)  # the caller's array is the caller's
