"""Layers that rewrite operations, or put them on a device, do so inside of loops and branches."""

from __future__ import annotations

import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from tests.loop_layer_cases import (
    CosForSin,
    HalfSin,
    Seen,
    W,
    X,
    fori,
    nested,
    pairs,
    python_,
    python_nested,
    total,
    while_,
    wraps,
)
from xform import ops
from xform.core.errors import HostReadError, LayerError

pytestmark = pytest.mark.sweep

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
