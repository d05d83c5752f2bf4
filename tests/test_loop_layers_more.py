"""Continues test_loop_layers."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import attrs
import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from tests.test_loop_layers import (
    CosForSin,
    HalfSin,
    Operations,
    Seen,
    W,
    X,
    fori,
    nested,
    pairs,
    python_,
    python_nested,
    step,
    total,
    while_,
    wraps,
)
from xform import ops
from xform.core.errors import HostReadError, LayerError
from xform.ops.structural import HostRead

pytestmark = pytest.mark.sweep


def test_a_nan_guard_that_warns_goes_on():
    def f(x):
        return xf.fori_loop(0, 5, lambda i, y: y + xnp.log(x * (i - 3.0) ** 2), x)

    guarded = xf.NanGuard(mode="warn")
    with np.errstate(all="ignore"), guarded as guard, pytest.warns(RuntimeWarning, match="iteration 3"):
        f(xf.array(1.0))
    assert [origin.place.iteration for origin in guard.producers] == [3]
    assert guard.propagators["Add"] > 0


def test_explain_shows_what_a_layer_makes_of_a_loop():
    with xf.Explain() as explain, HalfSin():
        fori(xf.array(X), W)
    text = explain.report()
    assert "HalfSin(): Loop" in text
    assert "bottom: Loop" in text


# ------------------------------------------------------------------ layers that rewrite


@pairs
@wraps
@pytest.mark.parametrize("layer", [CosForSin, HalfSin])
def test_a_rewriter_rewrites_the_body(loop, unrolled, wrap, layer):
    want = layer()(unrolled)(X, W)
    assert not np.allclose(want, unrolled(X, W))
    slope = xf.grad(total(layer()(unrolled)))(X, W)
    decorated = layer()(wrap(loop))
    np.testing.assert_allclose(decorated(X, W), want)
    np.testing.assert_allclose(decorated(X, W), want)
    with layer():
        np.testing.assert_allclose(xf.to_numpy(wrap(loop)(xf.array(X), W)), want)
    np.testing.assert_allclose(wrap(decorated)(X, W), want)
    np.testing.assert_allclose(xf.grad(total(decorated))(X, W), slope)
    np.testing.assert_allclose(xf.jvp(total(decorated), (X, W), (X, 0.0 * W))[1], slope @ X)
    np.testing.assert_allclose(xf.vmap(decorated, in_axes=(0, None))(np.stack([X, X]), W), [want, want])


def test_a_rewriter_below_a_derivative_is_refused():
    with CosForSin(), pytest.raises(LayerError, match="CosForSin"):
        xf.grad(total(fori))(xf.array(X), W)


def test_three_layers_at_once():
    seen = Seen()
    with seen, HalfSin(), CosForSin():
        got = fori(xf.array(X), W)
    want = HalfSin()(CosForSin()(python_))(X, W)
    np.testing.assert_allclose(xf.to_numpy(got), want)
    assert seen.rounds("Cos") == [0, 1, 2, 3]
    assert seen.rounds("Sin") == []


def test_second_derivatives_of_rewritten_loops():
    layer = HalfSin()
    want = xf.hessian(total(HalfSin()(python_)))(X, W)
    np.testing.assert_allclose(xf.hessian(total(layer(while_)))(X, W), want, rtol=1e-9)
    np.testing.assert_allclose(
        xf.hessian(total(layer(nested)))(X, W), xf.hessian(total(HalfSin()(python_nested)))(X, W), rtol=1e-9
    )


class Counting(xf.Transformation):
    """Counts the operations that it interprets."""

    def __init__(self):
        self.count = 0

    def interpret(self, op, values):
        self.count += 1
        return xf.apply(op, *values)


@pairs
def test_a_body_is_recorded_under_a_layer_once(loop, unrolled):
    layer = Counting()
    f = xf.trace(loop)
    f(X, W)
    layer(f)(X, W)
    first = layer.count
    layer(f)(X, W)
    again = layer.count - first
    layer(f)(X, W)
    assert layer.count == first + 2 * again
    assert again < first
    assert again <= len(f.program(X, W).equations)


def test_a_layer_that_changes_a_dtype_is_named():
    class Single(xf.Transformation):
        def interpret(self, op, values):
            out = xf.apply(op, *values)
            return out.astype("float32") if op == ops.Sin() else out

    class Shorter(xf.Transformation):
        def interpret(self, op, values):
            out = xf.apply(op, *values)
            return out[:1] if op == ops.Sin() else out

    single = lambda x: xf.fori_loop(0, 3, lambda i, y: xnp.sin(y), x)
    for layer in (Single(), Shorter()):
        with pytest.raises(LayerError, match=f"{type(layer).__name__}.*must keep shapes and dtypes"):
            layer(single)(X)
        assert xf.stack() == ()


def test_a_layer_that_reads_a_value_inside_of_a_loop_is_told_of_observers():
    class Reading(xf.Transformation):
        def interpret(self, op, values):
            if op == ops.Sin():
                float(values[0].sum())
            return xf.apply(op, *values)

    with pytest.raises(HostReadError) as caught:
        Reading()(fori)(X, W)
    assert any("xf.Observer" in note for note in caught.value.__notes__)
    assert xf.stack() == ()


# ------------------------------------------------------------------ device


@pairs
@wraps
def test_a_device_runs_the_rounds(loop, unrolled, wrap):
    pytest.importorskip("array_api_strict")
    want, slope = unrolled(X, W), xf.grad(total(unrolled))(X, W)
    device = xf.Device("array_api_strict:device1")
    for _ in range(2):
        got = device(wrap(loop))(X, W)
        assert str(got.device) == "array_api_strict.Device('device1')"
        np.testing.assert_allclose(xf.to_numpy(got), want)
    np.testing.assert_allclose(xf.to_numpy(device(xf.grad(wrap(total(loop))))(X, W)), slope)
    found = xf.grad(device(wrap(total(loop))))(X, W)
    assert type(found) is np.ndarray
    np.testing.assert_allclose(found, slope)


def test_the_moves_of_a_device_do_not_grow_with_the_rounds():
    pytest.importorskip("array_api_strict")
    counts = []
    for rounds in (2, 50):
        device = xf.Device("array_api_strict:device1")
        device(lambda x, n=rounds: xf.fori_loop(0, n, lambda i, y: xnp.sin(y * W) + i, x))(X)
        counts.append(device.transfers)
    assert counts[0] == counts[1]


# ------------------------------------------------------------------ layers that wrap


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


# ------------------------------------------------------------------ what stays


@attrs.frozen(eq=False)
class Ring(xf.Operator):
    """Hands a value on, and notes that it did."""

    rung: list
    impure = True

    def infer(self, x):
        return x

    def evaluate(self, xp, x):
        at = xf.current()
        self.rung.append((at.loop is not None, at.iteration))
        return x


xf.linear(Ring, lambda op, t, x: t)
xf.batch_rule(Ring)(lambda op, size, values, axes: (xf.apply(op, *values), axes[0]))


def test_a_side_effect_happens_once_a_round_and_not_again_backward():
    op = Ring([])

    def f(x):
        return xf.fori_loop(0, 3, lambda i, y: xnp.sin(xf.apply(op, y)), x)

    rounds = [(True, 0), (True, 1), (True, 2)]
    for g in (f, xf.trace(f), xf.grad(f), xf.trace(xf.grad(f)), xf.Profile()(f), xf.grad(xf.Profile()(f))):
        op.rung.clear()
        g(0.5)
        assert op.rung == rounds
    op.rung.clear()
    xf.vmap(f)(X)
    assert op.rung == rounds


@pytest.mark.parametrize("layer", [Seen, CosForSin, HalfSin, xf.Profile, xf.NanGuard])
def test_a_layer_and_the_loop_that_it_entered_are_freed(layer):
    def run():
        f, made = xf.trace(nested), layer()
        f(X, W)
        with made:
            f(xf.array(X), W)
        return [weakref.ref(each) for each in (made, f, f.program(X, W))]

    found = run()
    gc.collect()
    assert [ref() for ref in found] == [None] * 3


@pytest.mark.parametrize("layer", [CosForSin, HalfSin, xf.Profile, xf.NanGuard])
def test_a_layer_that_has_entered_a_loop_is_pickled_and_copied(layer):
    made = layer()
    made(fori)(X, W)
    for other in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made), copy.copy(made)):
        assert type(other) is layer
        np.testing.assert_allclose(other(fori)(X, W), made(fori)(X, W))


def test_an_error_inside_of_a_round_leaves_everything_as_it_was():
    @attrs.frozen(eq=False)
    class Fails(xf.Operator):
        def infer(self, x):
            return x

        def evaluate(self, xp, x):
            raise KeyError("mine")

    op = Fails()
    with xf.Profile() as profile, Seen() as seen:
        with pytest.raises(KeyError, match="mine"):
            xf.fori_loop(0, 3, lambda i, y: xf.apply(op, xnp.sin(y)), xf.array(X))
        assert xf.stack() == (seen, profile)
        assert xf.current().iteration is None
        fori(xf.array(X), W)
    assert seen.rounds("Sin") == [0, 0, 1, 2, 3]


def test_host_reads_of_values_from_outside_pass():
    def f(x):
        first = xf.stop_gradient(x[0])
        with HalfSin():
            return xf.fori_loop(0, 3, lambda i, y: xnp.sin(y) * float(first), x)

    want = X
    for _ in range(3):
        want = np.sin(want) * 0.5 * X[0]
    np.testing.assert_allclose(xf.to_numpy(f(xf.array(X))), want)
    assert HostRead("float").attribute_like
