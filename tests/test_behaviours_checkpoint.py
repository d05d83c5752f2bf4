"""What JAX's tests check of checkpoints, rows 55 and 56 of section 4 of the list of behaviours."""

from __future__ import annotations

import contextlib

import attrs
import numpy as np
import pytest
from numpy.testing import assert_allclose

import xform as xf
import xform.numpy as xnp

X = np.array([0.4, 1.3, -2.1])


def sine_of_sine(x):
    return np.sin(np.sin(x))


# ------------------------------------------------------------------ row 55


def test_row_55_same_value_and_gradient():
    inner = np.sin(X)
    layer = xf.checkpoint(lambda x: (np.sin(np.sin(x)), 3.0))
    value, pullback, constant = xf.vjp(layer, X, has_aux=True)
    assert constant == 3.0
    assert_allclose(value, np.sin(inner), rtol=1e-15)
    assert_allclose(pullback(np.ones(3))[0], np.cos(inner) * np.cos(X), rtol=1e-14)
    value, tangent, _ = xf.jvp(layer, (X,), (np.full(3, 3.0),), has_aux=True)
    assert_allclose(tangent, 3.0 * np.cos(inner) * np.cos(X), rtol=1e-14)


def test_row_55_orders_1_to_3():
    def by_hand(x):
        s, c, inner = np.sin(x), np.cos(x), np.cos(np.sin(x))
        return inner * c, -np.sin(s) * c**2 - inner * s, -inner * c**3 + 3.0 * np.sin(s) * s * c - inner * c

    first = xf.grad(xf.checkpoint(sine_of_sine))
    second = xf.grad(first)
    third = xf.grad(second)
    for x in (0.3, 3.0):
        assert_allclose([first(x), second(x), third(x)], by_hand(x), rtol=1e-12)
        assert_allclose(xf.grad(xf.checkpoint(second))(x), by_hand(x)[2], rtol=1e-12)
        assert_allclose(xf.jvp(first, (x,), (1.0,))[1], by_hand(x)[1], rtol=1e-12)
        assert_allclose(xf.grad(lambda y: xf.jvp(xf.checkpoint(sine_of_sine), (y,), (1.0,))[1])(x), by_hand(x)[1])


@pytest.mark.parametrize("policy", [None, lambda op, *avals: False])
def test_row_55_backward_runs_sin_once_and_cos_twice(policy):
    with xf.Profile() as forward:
        _, pullback = xf.vjp(xf.checkpoint(sine_of_sine, policy=policy), X)
    assert (forward.calls("Sin"), forward.calls()) == (2, 2)
    for _ in range(2):
        with xf.Profile() as backward:
            pullback(np.ones(3))
        assert (backward.calls("Sin"), backward.calls("Cos"), backward.calls("Mul"), backward.calls()) == (1, 2, 2, 5)


def test_row_55_no_redundant_operations():
    layer = xf.checkpoint(lambda x, y: np.sin(x) * y)
    with xf.Profile() as profile:  # sin(x) is a number that y does not reach
        assert_allclose(xf.grad(layer, 1)(2.0, 3.0), np.sin(2.0))
    assert profile.calls("Sin") <= 1
    with xf.Profile() as profile:
        assert_allclose(xf.grad(layer)(2.0, 3.0), 3.0 * np.cos(2.0))
    assert (profile.calls("Sin"), profile.calls("Mul")) == (1, 3)  # a product forward, the two of the derivatives


# ------------------------------------------------------------------ row 56


def test_row_56_values_from_around_the_function():
    def plain(x):
        y = 2.0 * np.sin(x)
        return np.cos(x) * np.sin(y)

    def checkpointed(x):
        y = 2.0 * np.sin(x)
        return xf.checkpoint(lambda z: np.cos(z) * np.sin(y))(x)

    def by_hand(x):
        y = 2.0 * np.sin(x)
        return -np.sin(x) * np.sin(y) + np.cos(x) * np.cos(y) * 2.0 * np.cos(x)

    assert_allclose(xf.grad(checkpointed)(2.0), by_hand(2.0), rtol=1e-14)
    assert_allclose(xf.jvp(checkpointed, (2.0,), (3.0,)), (plain(2.0), 3.0 * by_hand(2.0)), rtol=1e-14)
    assert_allclose(xf.grad(xf.grad(checkpointed))(2.0), xf.grad(by_hand)(2.0), rtol=1e-13)


def test_row_56_inside_and_around_a_python_loop():
    def loop(body, around):
        def run(x):
            for k in range(3):
                x = body(x, k)
            return x

        return around(run)

    def step(x, k):
        return np.sin(x) + 0.1 * k * x

    want = xf.value_and_grad(loop(step, lambda f: f))(4.0)
    inside = xf.checkpoint(step)
    for body, around in [(inside, lambda f: f), (step, xf.checkpoint), (inside, xf.checkpoint)]:
        assert_allclose(xf.value_and_grad(loop(body, around))(4.0), want, rtol=1e-14)


def test_row_56_inside_and_around_scan():
    def scanned(body, around):
        def run(x):
            carry, seen = xf.scan(body, x, np.arange(3.0))
            return carry + xnp.sum(seen)

        return around(run)

    def step(carry, k):
        return np.sin(carry) + 0.1 * k * carry, carry * k

    want = xf.value_and_grad(scanned(step, lambda f: f))(4.0)
    eps = 1e-6
    value = scanned(step, lambda f: f)
    assert_allclose(want[1], (value(4.0 + eps) - value(4.0 - eps)) / (2.0 * eps), rtol=1e-8)
    inside = xf.checkpoint(step)
    for body, around in [(inside, lambda f: f), (step, xf.checkpoint), (inside, xf.checkpoint)]:
        assert_allclose(xf.value_and_grad(scanned(body, around))(4.0), want, rtol=1e-14)


def binomial(funs):
    if len(funs) == 1:
        return funs[0]
    first, second = binomial(funs[: len(funs) // 2]), binomial(funs[len(funs) // 2 :])
    return xf.checkpoint(lambda x: first(second(x)))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8, 13])
def test_row_56_binomial_scheme(n):
    x = want = 0.7
    slope = 1.0
    for _ in range(n):
        slope *= np.cos(want)
        want = np.sin(want)
    assert_allclose(xf.value_and_grad(binomial([np.sin] * n))(x), (want, slope), rtol=1e-13)


def test_row_56_recomputations_of_the_binomial_scheme():
    def again(n):  # the second half once more, and each half by itself
        return 0 if n == 1 else n // 2 + again(n // 2) + again(n - n // 2)

    for n in (2, 4, 8, 16):
        _, pullback = xf.vjp(binomial([np.sin] * n), X)
        with xf.Profile() as backward:
            pullback(np.ones(3))
        assert (backward.calls("Sin"), backward.calls("Cos")) == (again(n), n)


@attrs.frozen
class Successor(xf.Operator):
    """x + 1, with its own result as its derivative."""

    def infer(self, x):
        return x

    def evaluate(self, xp, x):
        COUNTS.append(1)
        return x + 1


COUNTS = []
xf.partials(Successor, lambda t, out: t * out)


def recursive(funs):
    if len(funs) < 3:
        return lambda x: x if not funs else recursive(funs[:-1])(funs[-1](x))
    first, second = recursive(funs[: len(funs) // 2]), recursive(funs[len(funs) // 2 :])
    return lambda x: first(xf.checkpoint(second)(x))


@pytest.mark.parametrize("below", [contextlib.nullcontext, xf.Profile])
@pytest.mark.parametrize(("n", "again"), [(2, 0), (4, 2), (8, 8), (16, 24), (32, 64)])
def test_row_56_recomputations_of_the_recursive_scheme(n, again, below):
    fun = recursive([lambda x: xf.apply(Successor(), x)] * n)
    COUNTS.clear()
    with below():
        _, pullback = xf.vjp(fun, np.ones(()))
        assert len(COUNTS) == n
        COUNTS.clear()
        (slope,) = pullback(np.ones(()))
    assert len(COUNTS) == again
    assert_allclose(slope, np.prod(np.arange(2.0, n + 2.0)), rtol=1e-12)


def test_row_56_more_than_one_argument_and_result():
    pair = xf.checkpoint(lambda state, w: {"x": np.sin(state["x"]) * w, "y": state["y"] + xnp.sum(state["x"])})

    def loss(w):
        state = {"x": X, "y": 0.0}
        for _ in range(3):
            state = pair(state, w)
        return xnp.sum(state["x"]) + state["y"]

    eps = 1e-6
    assert_allclose(xf.grad(loss)(0.8), (loss(0.8 + eps) - loss(0.8 - eps)) / (2 * eps), rtol=1e-8)
