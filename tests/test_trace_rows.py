"""Tracing, one behaviour a test, numbered as in the list of behaviours: what the other files on traces leave out."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import xform as xf
import xform.numpy as xnp
from xform import random
from xform.core.errors import HostReadError

X = np.array([[0.3, -1.2, 2.0], [0.7, 1.1, -0.4]])


class Count:
    """A function that counts how often Python runs it."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, *args):
        self.calls += 1
        return self.function(*args)


def test_row_42_a_stored_program_holds_the_backward_pass(tmp_path):
    def fun(x, w):
        y, pullback = xf.vjp(lambda x: np.tanh(x * w) * x, x)
        (slope,) = pullback(xnp.ones_like(y))
        return y, slope

    w = X[::-1].copy()
    want = fun(X, w)
    traced = xf.trace(fun)
    traced(X, w)
    path = tmp_path / "fun.xf"
    traced.program(X, w).save(path)
    stored = xf.load_program(path)
    assert {equation.phase for equation in stored.equations} == {"forward", "backward"}
    for have, each in zip(stored(X, w), want, strict=True):
        assert_array_equal(have, each)
    for have, each in zip(stored(X + 1.0, w), fun(X + 1.0, w), strict=True):
        assert_array_equal(have, each)


def test_row_42_each_path_of_a_guarded_function_is_a_program_of_its_own(tmp_path):
    traced = xf.trace(xf.grad(lambda x: (np.sin(x) if x[0, 0] > 0 else x**3).sum()))
    for x in (X, -X):
        traced(x)
    wants = [np.cos(X), 3.0 * X**2]
    for n, ((outcomes, program), want) in enumerate(zip(traced.paths(X), wants, strict=True)):
        assert outcomes[0].startswith("bool() at ")
        program.save(tmp_path / f"{n}.xf")
        np.testing.assert_allclose(xf.load_program(tmp_path / f"{n}.xf")(X), want, rtol=1e-14)


@pytest.mark.parametrize("function", [
    lambda x: x[:, 1::2], lambda x: x.T, lambda x: x[::-1, ::-1], lambda x: np.swapaxes(x[None] * 1.0, 0, 2),
])  # fmt: skip
def test_row_50_results_that_are_not_contiguous(function):
    traced = xf.trace(function)
    want = function(X)
    for call in range(3):
        y = traced(X + call)
        assert_array_equal(y, function(X + call))
        assert_array_equal(y + y, 2.0 * function(X + call))
        assert (y.shape, y.dtype) == (want.shape, want.dtype)
    assert_array_equal(xf.trace(lambda x: traced(x) * 2.0)(X), want * 2.0)


def test_row_51_clip_with_bounds_that_cross():
    traced = xf.trace(xnp.clip)
    for low, high in ((0.0, 1.0), (5.0, 4.0), (1.0, 0.0), (-1.0, 0.5)):
        for _ in range(2):
            assert_array_equal(traced(X, np.array([low]), np.array([high])), np.clip(X, low, high))


@pytest.mark.parametrize("shape", [(3, 1, 1), (1, 4, 1), (1, 1, 5)])
def test_row_51_broadcast_to_a_wider_shape(shape):
    traced = xf.trace(lambda x: xnp.broadcast_to(x, (3, 4, 5)))
    x = np.random.default_rng(0).normal(size=shape)
    for call in range(3):
        assert_array_equal(traced(x + call), np.broadcast_to(x + call, (3, 4, 5)))


@pytest.mark.parametrize("draw", [random.uniform, random.normal, lambda key, shape: random.randint(key, shape, 0, 9)])
def test_row_51_draws_have_known_shapes(draw):
    shapes = []

    def fun(key):
        out = draw(key, (10, 4))
        shapes.append(out.shape)
        return out * len(out)

    traced = xf.trace(fun)
    for seed in (0, 1, 0):
        assert_array_equal(traced(random.key(seed)), draw(random.key(seed), (10, 4)) * 10)
    assert shapes == [(10, 4)]
    assert xf.eval_shape(lambda key: draw(key, (10, 4)), random.key(0)).shape == (10, 4)


def test_row_52_replays_equal_checked_ones():
    def fun(x, w):
        y = np.tanh(x @ w)
        return (y * y.sum() if y[0, 0] > 0 else y - 1.0), xf.grad(lambda w: (x @ w).sum())(w)

    fast, checked = xf.trace(fun), xf.trace(fun, check=True)
    for call in range(6):
        x, w = X * (-1) ** call, X.T + call
        for one, other, want in zip(fast(x, w), checked(x, w), fun(x, w), strict=True):
            assert_array_equal(one, other)
            np.testing.assert_allclose(one, want, rtol=1e-14)


def test_row_58_of_jax_both_orders_run_python_once():
    for make in (lambda f: xf.trace(xf.grad(f)), lambda f: xf.grad(xf.trace(f))):
        counted = Count(lambda x: (np.sin(x) * x).sum())
        slope = make(counted)
        for call in range(4):
            x = X + call
            np.testing.assert_allclose(slope(x), np.cos(x) * x + np.sin(x), rtol=1e-13)
        assert counted.calls == 1


def test_abstract_values_have_no_truth():
    def decide(x):
        return x if x.sum() > 0 else -x  # decides

    for make in (xf.make_program, lambda f: lambda x: xf.eval_shape(f, x)):
        for argument in (xf.Aval((2, 3), np.dtype(float)), X):
            with pytest.raises(HostReadError) as caught:
                make(decide)(argument)
            for part in ("bool()", "of decide", "# decides", "test_trace_rows.py", "it has no data", "xnp.where"):
                assert part in str(caught.value)
    assert xf.eval_shape(lambda x: x.reshape(x.shape[1], -1), xf.Aval((2, 3), np.dtype("float32"))).shape == (3, 2)
