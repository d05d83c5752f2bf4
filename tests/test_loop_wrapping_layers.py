"""Layers that wrap values and have no rule for loops are given the rounds one by one."""

from __future__ import annotations

import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from tests.loop_layer_cases import (
    Operations,
    W,
    X,
    fori,
    nested,
    pairs,
    python_,
    python_nested,
    step,
)
from xform.core.errors import HostReadError


@pytest.mark.parametrize("wrap", [lambda f: f, xf.trace], ids=["eager", "traced"])
@pairs
def test_a_wrapping_layer_without_a_rule_gets_the_rounds_one_by_one(loop, unrolled, wrap):
    f = wrap(loop)
    f(X, W)
    with Operations() as layer:
        got = f(layer.track(xf.array(X)), W)
        want = unrolled(layer.track(xf.array(X)), W)
    assert got.owner is layer
    np.testing.assert_allclose(xf.concrete(got), xf.concrete(want))
    assert got.count >= want.count > 4


def test_stacked_values_of_a_wrapping_layer():
    with Operations() as layer:
        x = layer.track(xf.array(np.arange(6.0).reshape(3, 2)))
        last, rows = xf.scan(lambda c, row: (c + row, c * row), xf.array(np.ones(2)), x)
        reverse = xf.scan(lambda c, row: (c + row, c * row), xf.array(np.ones(2)), x, reverse=True)[1]
    np.testing.assert_allclose(xf.concrete(last), [7.0, 10.0])
    np.testing.assert_allclose(xf.concrete(rows), [[0.0, 1.0], [2.0, 6.0], [12.0, 25.0]])
    np.testing.assert_allclose(xf.concrete(reverse), [[0.0, 9.0], [10.0, 18.0], [4.0, 5.0]])
    assert rows.owner is reverse.owner is layer


@pytest.mark.parametrize("checkpoint", [None, 2, "log"])
def test_a_gradient_above_a_wrapping_layer(checkpoint):
    xs = np.linspace(0.1, 0.9, 10).reshape(5, 2)

    def f(x, w, xs):
        last, rows = xf.scan(lambda y, row: (step(y, w) + row, y * row), x, xs, checkpoint=checkpoint)
        return xnp.sum(last**2) + xnp.sum(rows)

    want = xf.grad(f, (0, 1, 2))(X, W, xs)
    with Operations() as layer:
        got = xf.grad(f, (0, 1, 2))(*[layer.track(xf.array(each)) for each in (X, W, xs)])
    for each, expected in zip(got, want, strict=True):
        assert each.owner is layer
        np.testing.assert_allclose(xf.concrete(each), expected)


def test_a_loop_of_no_rounds_under_a_wrapping_layer():
    with Operations() as layer:
        x = layer.track(xf.array(X))
        last, rows = xf.scan(lambda c, _: (c * 2.0, c), x, length=0)
        assert xf.while_loop(lambda c: False, lambda c: c * 2.0, x).owner is layer
    np.testing.assert_array_equal(xf.concrete(last), X)
    assert xf.concrete(rows).shape == (0, 2)


def test_a_wrapping_layer_over_a_tape_and_over_a_profile():
    def f(x):
        with Operations() as layer:
            return layer.unwrap(xnp.sum(nested(layer.track(x), W)))

    np.testing.assert_allclose(xf.grad(f)(X), xf.grad(lambda x: xnp.sum(python_nested(x, W)))(X))
    with xf.Profile() as profile:
        f(xf.array(X))
    assert profile.calls("Sin") == 6
    assert [profile.calls("Sin", iteration=n) for n in range(4)] == [3, 2, 1, 0]


def test_a_wrapping_layer_with_a_rule_takes_the_loop_whole():
    seen = []

    class Taking(Operations):
        def takes(self, op):
            return True

        def interpret(self, op, values):
            seen.append(op.name)
            return super().interpret(op, values)

    with Taking() as layer:
        out = fori(layer.track(xf.array(X)), W)
    np.testing.assert_allclose(xf.concrete(out), python_(X, W))
    assert [name.split("[")[0] for name in seen] == ["Loop"]
    assert out.count == 1


def test_a_wrapping_layer_above_an_abstract_recorder_says_what_it_needs():
    def f(x):
        with Operations() as layer:
            return layer.unwrap(xf.cond(xnp.sum(layer.track(x)) > 0.0, xnp.sin, xnp.cos, layer.track(x)))

    with pytest.raises(HostReadError) as caught:
        xf.make_program(f)(X)
    assert any("takes" in note for note in caught.value.__notes__)
