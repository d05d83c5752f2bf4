"""Checkpoints in threads, and their errors."""

from __future__ import annotations

import functools
import sys
import threading

import attrs
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from typeguard import suppress_type_checks

import xform as xf
import xform.numpy as xnp
from tests.checkpoint_cases import W, X, agree
from xform.core.errors import EscapedValueError, HostReadError, LayerError, NanError, SavedArrayError

# ------------------------------------------------------------------ threads


def test_threads_that_share_nothing_and_threads_that_share_a_tape():
    want = xf.grad(xf.grad(lambda x: np.sin(np.sin(x) * x)))(0.7)
    wrong = []

    def work():
        layer = xf.checkpoint(lambda x: np.sin(xf.checkpoint(np.sin)(x) * x))
        found = [xf.grad(xf.grad(layer))(0.7) for _ in range(20)]
        wrong.extend(each for each in found if not np.isclose(each, want, rtol=1e-12))

    def in_threads(targets):
        threads = [threading.Thread(target=target) for target in targets]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with suppress_type_checks():
            in_threads([work] * 8)
            with xf.Grad() as tape:
                x, outs = tape.attach(X), {}

                def one(k):
                    layer = xf.checkpoint(np.sin) if k % 2 else np.sin
                    outs[k] = xnp.sum(layer(x * k) * x)

                in_threads([xf.carry(functools.partial(one, k)) for k in range(8)])
                out = sum(outs[k] for k in range(8))
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
    assert_allclose(tape.gradient(out, x), sum(np.sin(X * k) + X * k * np.cos(X * k) for k in range(8)), rtol=1e-12)


def test_a_thread_inside_of_the_function():
    def body(z):
        found = []
        thread = threading.Thread(target=xf.carry(lambda: found.append(np.sin(z))))
        thread.start()
        thread.join()
        return found[0] * z

    agree(lambda ck: xf.grad(lambda x: xnp.sum(ck(body)(x))), X)


def test_a_carried_function_that_outlives_the_function_is_refused():
    late = []

    def body(z):
        late.append(xf.carry(lambda: np.sin(z)))
        return z * 2.0

    with xf.Grad() as tape:
        x = tape.attach(X)
        xf.checkpoint(body)(x)
        with pytest.raises(LayerError, match="checkpoint of body when it had returned"):
            late[0]()
        assert xf.stack() == (tape,)


# ------------------------------------------------------------------ errors


class BoomError(Exception):
    """An error of the user's own."""


def test_an_error_of_the_function_passes_and_the_stack_is_as_before():
    error = BoomError()

    def body(z):
        np.sin(z)
        raise error

    with xf.Grad() as tape:
        x = tape.attach(X)
        with pytest.raises(BoomError) as caught:
            xf.checkpoint(body)(x)
        assert caught.value is error
        assert xf.stack() == (tape,)
        out = xnp.sum(np.sin(x))
    assert_allclose(tape.gradient(out, x), np.cos(X))


@pytest.mark.parametrize("watched", [False, True])
def test_an_error_of_the_recomputation_names_the_function(watched):
    runs = []

    @attrs.frozen
    class FailsLater(xf.Operator):
        def infer(self, x):
            return x

        def evaluate(self, xp, x):
            runs.append(1)
            if len(runs) > 1:
                raise BoomError
            return x * 2.0

    xf.partials(FailsLater, lambda t, out: t * out)

    def a_layer(z):
        return xf.apply(FailsLater(), z)

    def gradient():
        return xf.grad(lambda x: xnp.sum(xf.checkpoint(a_layer)(x)))(X)

    with pytest.raises(BoomError) as caught:
        xf.Profile()(gradient)() if watched else gradient()
    assert any("in the backward of checkpoint[a_layer]" in note for note in caught.value.__notes__)
    assert xf.stack() == ()
    assert xf.current().phase == "forward"


def test_floating_point_errors_are_told_once():
    def body(z):
        with np.errstate(over="ignore"):
            factor = xf.stop_gradient(np.exp(z * 1e4))
        return np.minimum(factor, 5.0) * z

    with np.errstate(all="raise"):
        assert_array_equal(xf.grad(lambda x: xnp.sum(xf.checkpoint(body)(x)))(np.ones(2)), [5.0, 5.0])
        with pytest.raises(FloatingPointError):
            xf.grad(lambda x: xnp.sum(xf.checkpoint(np.exp)(x)))(np.full(2, 1e4))


def test_a_nan_is_reported_where_it_is_made():
    with np.errstate(all="ignore"), xf.NanGuard(), pytest.raises(NanError, match="Log made nan"):
        xf.grad(lambda x: xnp.sum(xf.checkpoint(lambda z: np.sin(np.log(z)))(x)))(-np.ones(2))


@pytest.mark.parametrize("way", ["attach", "gradient"])
def test_the_tape_outside_cannot_be_used_inside(way):
    def body(z):
        y = np.sin(z)
        if way == "gradient":
            tape.gradient(xnp.sum(y), x)
        return xnp.sum(tape.attach(y))

    with xf.Grad() as tape:
        x = tape.attach(X)
        with pytest.raises(LayerError, match=r"came into checkpoint of body.* outside of the function"):
            tape.gradient(xf.checkpoint(body)(x), x)
    assert xf.stack() == ()


def test_a_leaf_attached_inside():
    made = []

    def body(z):
        made.append(tape.attach(W.copy()))
        return xnp.sum(np.sin(z * made[0]))

    with xf.Grad() as tape:
        x = tape.attach(X)
        out = xf.checkpoint(body)(x)
    for found, want in zip(tape.gradient(out, [x, made[0]]), (W, X), strict=True):
        assert_allclose(found, want * np.cos(X * W))


def test_a_value_is_of_no_use_after_its_tape():
    kept = []
    xf.grad(lambda x: xnp.sum(xf.checkpoint(lambda z: kept.append(np.sin(z)) or z)(x)))(X)
    with pytest.raises(EscapedValueError, match="not active"):
        np.sin(kept[0])


def test_a_tape_that_has_ended_is_not_taken_for_a_constant():
    with xf.Grad() as tape:
        x = tape.attach(X)
        late = xf.carry(lambda: xf.checkpoint(np.sin)(x))
    with pytest.raises(EscapedValueError, match="not active"):
        late()


def test_a_read_that_would_drop_a_derivative_is_refused():
    with pytest.raises(HostReadError, match="would drop its derivative"):
        xf.grad(xf.checkpoint(lambda z: z * float(np.sin(z))))(0.5)


@pytest.mark.parametrize("captured", [False, True])
def test_an_array_that_changes_before_backward_is_noticed(captured):
    w, x0 = W.copy(), X.copy()
    with xf.Grad() as tape:
        x = tape.attach(x0)
        out = xnp.sum(xf.checkpoint(lambda z: np.sin(z * w))(x))
    (w if captured else x0)[...] = 0.0
    with pytest.raises(SavedArrayError, match=r"checkpoint\[<lambda>\] has saved"):
        tape.gradient(out, x)
