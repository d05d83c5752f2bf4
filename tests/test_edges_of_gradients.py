"""What was found by trying to break the tape: each was wrong once."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import xform as xf
import xform.numpy as xnp
from xform.core.errors import EscapedValueError, GradientError

X = np.array([1.0, 2.0])


class Seen(xf.Observer):
    def __init__(self):
        self.names = []

    def observe(self, op, inputs, outputs):
        self.names.append(op.name)


def test_a_replay_under_an_observer_leaves_the_stack_alone():
    inner, outer = Seen(), Seen()
    traced = xf.trace(inner(lambda x: np.sin(x) * 2.0))
    traced(X)
    with outer:
        traced(X)
        assert xf.stack() == (outer,)
        traced(X)
    assert outer.names == ["Sin", "Mul"] * 2
    assert inner.names == ["Sin", "Mul"] * 3


def test_an_observer_between_a_trace_and_a_device():
    pytest.importorskip("array_api_strict")
    seen = Seen()
    run = xf.trace(seen(xf.Device("array_api_strict:device1")(np.sin)))
    for count in (1, 2):
        assert_allclose(xf.to_numpy(run(X)), np.sin(X))
        assert seen.names.count("Sin") == count


@pytest.mark.parametrize("argnums", [(0, 0), (1, -1)])
def test_an_argument_named_twice_is_refused(argnums):
    with pytest.raises(GradientError, match="twice"):
        xf.grad(lambda a, b: a * b, argnums)(2.0, 3.0)


@pytest.mark.parametrize("out", [lambda a: (a * 2.0, None), lambda a: {"h": a * 2.0, "m": None}])
def test_vjp_of_an_output_that_holds_none(out):
    value, pullback = xf.vjp(out, X)
    assert_array_equal(pullback(value)[0], 4.0 * X)


def test_missing_cotangents_are_none():
    with xf.Grad() as tape:
        x = tape.attach(X)
        y, z = np.sin(x), x * x
    assert_allclose(tape.gradient((y, z), x, (None, np.ones(2))), 2 * X)


def test_what_a_rule_hands_out_stays_its_own():
    rule = xf.custom_gradient(lambda a: (np.sum(a * a), 2 * a), lambda residual, t: residual)
    _, pullback = xf.vjp(rule, X)
    (first,) = pullback(np.float64(1.0))
    first *= 100
    assert_array_equal(pullback(np.float64(1.0))[0], 2 * X)


def test_a_callback_cannot_write_into_the_cotangent():
    dy = np.ones(2)
    with xf.Grad() as tape:
        a = tape.attach(X, callback=lambda t: t.__imul__(10))
        y = a + 0.0
    with pytest.raises(ValueError, match="read-only"):
        tape.gradient(y, a, dys=dy)
    assert_array_equal(dy, [1.0, 1.0])


def test_a_rule_cannot_write_into_the_cotangent_of_another_path():
    def backward(residual, t):
        t *= 2
        return t

    rule = xf.custom_gradient(lambda a: (a * 1.0, None), backward)
    with pytest.raises(ValueError, match="read-only"):
        xf.grad(lambda v: np.sum((rule(v) + v) * X))(X)


def test_a_gradient_through_a_callback_is_free_to_write():
    with xf.Grad() as tape:
        a = tape.attach(X, callback=lambda t: None)
        y = xnp.sum(a * X)
    gradient = tape.gradient(y, a)
    gradient += 1.0
    assert_array_equal(gradient, X + 1.0)
    assert_array_equal(X, [1.0, 2.0])


def test_a_tape_that_has_ended_does_not_record_through_a_carried_stack():
    with xf.Grad() as tape:
        a = tape.attach(X)
        carried = xf.carry(lambda: a * 2.0)
        read = xf.carry(lambda: xf.stop_gradient(a))
    with pytest.raises(EscapedValueError):
        carried()
    assert_array_equal(read(), X)


class CosForSin(xf.Transformation):
    def interpret(self, op, values):
        return xf.apply(xf.ops.Cos() if op == xf.ops.Sin() else op, *values)


@pytest.mark.parametrize("x", [0.5, 0.5 + 1j, np.float64(0.5), np.array(0.5)])
def test_a_decorated_layer_sees_python_numbers(x):
    out = CosForSin()(lambda v: np.sin(v) * v)(x)
    assert not isinstance(out, xf.Value)
    assert_allclose(out, np.cos(x) * x)


def test_a_decorated_layer_leaves_counts_and_flags_alone():
    def repeated(x, count, *, flag):
        assert type(count) is int
        assert flag is True
        for _ in range(count):
            x = np.sin(x)
        return x

    assert_allclose(CosForSin()(repeated)(0.5, 2, flag=True), np.cos(np.cos(0.5)))
