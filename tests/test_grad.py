"""The tape as a user meets it: callbacks, attaching, walking, and what gradients are."""

import gc
import weakref

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import xform as xf
import xform.numpy as xnp
from xform.core.errors import GradientError, LayerError, OperandTypeError, TapeConsumedError

X = np.array([0.3, -1.2, 2.0])
ONES = np.ones_like(X)


# ------------------------------------------------------------------ freezing


def test_freeze_stops_recording_and_keeps_what_was_recorded():
    with xf.Grad() as tape:
        x = tape.attach(X)
        y = np.sin(x)
        tape.freeze()
        z = y * 2.0
        assert not tape.is_attached(z)
        assert not isinstance(z, xf.Value) or z.owner is None
        assert_array_equal(xf.concrete(z), np.sin(X) * 2)
        assert_array_equal(tape.gradient(y, x, ONES), np.cos(X))


def test_freezing_keeps_the_record_of_values_that_have_gone():
    received = []
    with xf.Grad() as tape:
        x = tape.attach(X, received.append)
        h = np.sin(x)
        y = h * x
        closure = tape.backward_closure(y)
        del y, h
        gc.collect()
        closure(ONES)
    assert_allclose(received, [np.cos(X) * X + np.sin(X)])


def test_a_frozen_tape_on_the_stack_is_transparent():
    with xf.Grad() as below, xf.Grad() as tape:
        v = below.attach(X)
        x = tape.attach(v)
        tape.freeze()
        y = np.sin(x)
        assert not tape.is_attached(y)
        assert below.is_attached(y)
        assert_array_equal(below.gradient(y, v, ONES), np.cos(X))


# ------------------------------------------------------------------ callbacks


def order_of(build):
    """Return the names of callbacks in the order in which they ran."""
    ran = []
    with xf.Grad() as tape:
        y = build(tape, lambda name: lambda t: ran.append(name))
        tape.backward(y, np.ones(y.shape))
    return ran


def test_callbacks_run_last_attached_first():
    def chain(tape, called):
        x = tape.attach(X, called("x"))
        y = tape.attach(np.sin(x), called("y"))
        return tape.attach(y * y, called("z"))

    assert order_of(chain) == ["z", "y", "x"]


def test_a_callback_fires_once_for_a_value_used_twice():
    def squared(tape, called):
        x = tape.attach(X, called("x"))
        return x * x

    assert order_of(squared) == ["x"]


def test_a_callback_fires_when_its_last_living_consumer_has_run():
    """A kept branch that no cotangent reached counts as run; a freed one leaves the count."""

    def kept(tape, called):
        x = tape.attach(X, called("x"))
        kept.side = np.cos(x)
        return np.sin(x)

    def freed(tape, called):
        x = tape.attach(X, called("x"))
        np.cos(x)
        return np.sin(x)

    assert order_of(kept) == ["x"]
    assert order_of(freed) == ["x"]


def test_a_callback_gets_the_sum_over_all_consumers():
    received = []
    with xf.Grad() as tape:
        x = tape.attach(X, received.append)
        y = np.sin(x) + x * 3.0 + x * x
        tape.backward(y, ONES)
    assert len(received) == 1
    assert_allclose(received[0], np.cos(X) + 3 + 2 * X)


def test_no_gradient_no_callback():
    def build(tape, called):
        tape.attach(X, called("unused"))
        blocked = tape.attach(X, called("blocked"))
        return np.sin(tape.attach(X, called("x"))) + xf.stop_gradient(blocked)

    assert order_of(build) == ["x"]


def test_a_callback_runs_before_the_steps_of_earlier_operators():
    events = []

    class Log(xf.Observer):
        def observe(self, op, inputs, outputs):
            if xf.current().phase == "backward" and op.name not in ("PushScope", "PopScope"):
                events.append(xf.current().scopes[-1])

    with Log(), xf.Grad() as tape:
        x = tape.attach(X)
        h = tape.attach(np.sin(x), callback=lambda t: events.append("callback"))
        tape.backward(np.exp(h), ONES)
    assert "callback" in events
    at = events.index("callback")
    assert set(events[:at]) == {"Exp.Backward"}
    assert "Sin.Backward" not in events[:at]
    assert "Sin.Backward" in events[at:]


def test_a_callback_runs_inside_the_scope_of_the_step_and_goes_through_apply():
    seen, places = [], []

    class Names(xf.Observer):
        def observe(self, op, inputs, outputs):
            seen.append(op.name)

    def callback(cotangent):
        places.append(xf.current())
        return np.tanh(cotangent)  # an operation of its own; what it returns is ignored

    with Names(), xf.Grad() as tape:
        x = tape.attach(X, callback)
        found = tape.gradient(np.sin(x), x, ONES)
    assert seen.count("Tanh") == 1
    assert places[0].phase == "backward"
    assert places[0].scopes == ("Sin.Backward",)
    assert_array_equal(xf.concrete(found), np.cos(X))


def test_a_target_that_is_attached_gets_dy():
    received = []
    with xf.Grad() as tape:
        x = tape.attach(X, received.append)
        found = tape.gradient(x, x, ONES * 5.0)
    assert_array_equal(found, ONES * 5)
    assert_array_equal(received[0], ONES * 5)


class See(xf.Observer):
    def observe(self, op, inputs, outputs):
        pass


@pytest.mark.parametrize("below", [See, lambda: xf.named_scope("nothing below")])
def test_an_exception_in_a_callback_leaves_the_stack_and_releases_the_rest(below):
    def fail(cotangent):
        raise KeyError("mine")

    gc.disable()
    try:
        with xf.named_scope("outside"), below(), xf.Grad() as tape:
            x = tape.attach(X)
            h = x * 2.0
            h = np.exp(h)
            early = weakref.ref(xf.concrete(h))
            y = np.sin(tape.attach(h, callback=fail))
            del h
            before, scopes = xf.stack(), xf.current().scopes
            with pytest.raises(KeyError, match="mine"):
                tape.backward(y, ONES)
            assert xf.stack() == before
            assert xf.current().scopes == scopes
            assert early() is None
            with pytest.raises(TapeConsumedError):
                tape.backward(y, ONES)
    finally:
        gc.enable()


# ------------------------------------------------------------------ attaching


def test_attach_keeps_the_link_of_the_upper_tape():
    with xf.Grad() as lower, xf.Grad() as upper:
        x = upper.attach(X)
        y = x * x
        z = lower.attach(y)
        assert upper.is_attached(z)
        assert lower.is_attached(z)
        out = z * z
        assert_allclose(lower.gradient(out, z, ONES, retain=True), 2 * X**2)
        assert_allclose(xf.concrete(upper.gradient(out, x, ONES)), 4 * X**3)


def test_attach_outside_the_block_and_a_tape_used_twice_are_refused():
    tape = xf.Grad()
    with pytest.raises(LayerError, match="inside its with block"):
        tape.attach(X)
    with tape:
        x = tape.attach(X)
        y = np.sin(x)
    with pytest.raises(LayerError, match="inside its with block"):
        tape.attach(X)
    with pytest.raises(LayerError, match=r"make another Grad\(\)"), tape:
        pass
    assert_array_equal(tape.gradient(y, x, ONES), np.cos(X))


@pytest.mark.parametrize("what", ["text", [1.0, 2.0], None, object()])
def test_attach_refuses_what_is_no_array(what):
    with xf.Grad() as tape, pytest.raises(OperandTypeError, match="attach"):
        tape.attach(what)


def test_an_intermediate_handle_keeps_its_cotangent_until_gradient_returns():
    with xf.Grad() as tape:
        x = tape.attach(X)
        a = tape.attach(np.sin(x))
        b = tape.attach(a * a)
        c = b * x
        da, db, dx = tape.gradient(c, (a, b, x), ONES)
    s = np.sin(X)
    assert_allclose(db, X)
    assert_allclose(da, 2 * s * X)
    assert_allclose(dx, 2 * s * X * np.cos(X) + s * s)


# ------------------------------------------------------------------ outputs and their cotangents


def test_repeated_outputs_add_and_untracked_ones_are_ignored():
    with xf.Grad() as tape:
        x = tape.attach(X)
        y = np.sin(x)
        found = tape.gradient([y, y, X, 3.0, xf.stop_gradient(y)], x, [ONES, 2 * ONES, ONES, 1.0, ONES])
    assert_allclose(found, 3 * np.cos(X))


def test_only_untracked_outputs_give_zeros():
    with xf.Grad() as tape:
        x = tape.attach(X)
        with pytest.warns(UserWarning, match="none of the outputs depends on what it has attached"):
            assert_array_equal(tape.gradient(X * 2, x, ONES), np.zeros(3))


def test_an_output_that_depends_on_nothing_is_told_so_before_and_after_a_walk():
    with xf.Grad() as tape:
        x = tape.attach(X)
        y, constant = (x * x).sum(), xf.array(X).sum()
        for _ in range(2):
            with pytest.warns(UserWarning, match="none of the outputs depends"):
                assert_array_equal(tape.gradient(constant, x, retain=True), np.zeros(3))
            assert_allclose(tape.gradient([y, constant], x, retain=True), 2 * X)


def test_what_is_computed_after_the_first_walk_is_told():
    """It is not recorded, so that zeros came out in silence."""
    with xf.Grad() as tape:
        x = tape.attach(X)
        cubes = (x**3).sum()
        assert_allclose(tape.gradient(cubes, x, retain=True), 3 * X**2)
        for late in ((x**2).sum(), [(x**2).sum(), 1.0]):
            with pytest.raises(GradientError, match="after its first walk is not recorded"):
                tape.gradient(late, x, retain=True)
        with pytest.raises(GradientError, match="is not recorded"):
            tape.backward((x**2).sum(), retain=True)
        with pytest.warns(UserWarning, match=r"does not track the outputs \[1\]"):
            found = tape.gradient([cubes, (x**2).sum()], x, retain=True)
        assert_allclose(found, 3 * X**2)
        assert_allclose(tape.gradient(cubes, x), 3 * X**2)


def test_outputs_that_no_cotangent_reaches_come_out_untracked():
    with xf.Grad() as tape:
        x = tape.attach(X)
        for out in (np.argmax(x), x > 0, np.isnan(x), x.astype(int), xnp.ones_like(x), xf.stop_gradient(x)):
            assert not tape.is_attached(out)


def test_identity_like_operators_share_the_slot():
    with xf.Grad() as tape:
        x = tape.attach(X)
        assert xf.name(x, "h").entry is x.entry
        with xf.named_scope("scope"):
            assert xf.ops.name(x, "h").entry is x.entry
        received = tape.gradient(xf.name(x, "h"), x, ONES)
    assert_array_equal(received, ONES)


def test_wrong_cotangents_are_refused():
    with xf.Grad() as tape:
        x = tape.attach(X)
        y = np.sin(x)
        with pytest.raises(GradientError, match=r"shape \(3,\) needs its cotangent"):
            tape.gradient(y, x)
        with pytest.raises(ValueError, match=r"the cotangent has shape \(2,\), its output \(3,\)"):
            tape.gradient(y, x, np.ones(2))
        with pytest.raises(GradientError, match="complex128"):
            tape.gradient(y, x, ONES * 1j)
        with pytest.raises(GradientError, match="1 outputs but 2 cotangents"):
            tape.gradient(y, x, [ONES, ONES])
        with pytest.raises(GradientError, match="not tracked by this tape"):
            tape.gradient(y, X, ONES)
        assert_array_equal(tape.gradient(y, x, ONES), np.cos(X))  # nothing was consumed


# ------------------------------------------------------------------ once, or retained


def test_the_first_walk_consumes_the_tape():
    with xf.Grad() as tape:
        x = tape.attach(X)
        y = np.sin(x)
    first = tape.gradient(y, x, ONES, retain=True)
    assert_array_equal(tape.gradient(y, x, ONES * 2), 2 * first)
    for call in (lambda: tape.gradient(y, x, ONES), lambda: tape.backward(y, ONES)):
        with pytest.raises(TapeConsumedError, match="retain=True") as caught:
            call()
        assert isinstance(caught.value, RuntimeError)


def test_backward_closure_freezes_and_can_be_called_many_times():
    received = []
    with xf.Grad() as tape:
        x = tape.attach(X, received.append)
        y = np.sin(x)
        closure = tape.backward_closure(y)
        assert not tape.is_attached(np.cos(x))
        closure(ONES)
    closure(3 * ONES)
    assert_allclose(received[0], np.cos(X))
    assert_allclose(received[1], 3 * np.cos(X))


def test_on_backward_runs_when_the_walk_passes():
    events = []
    with xf.Grad() as tape:
        x = tape.attach(X, lambda t: events.append("x"))
        tape.on_backward(lambda: events.append("first"))
        h = tape.attach(np.sin(x), lambda t: events.append("h"))
        tape.on_backward(lambda: events.append("second"))
        y = np.exp(h)
        tape.on_backward(lambda: events.append("after y"))
        tape.backward(y, ONES)
    # a callback runs within the step of the value's first consumer
    assert events == ["after y", "h", "second", "x", "first"]


# ------------------------------------------------------------------ what a gradient is


@pytest.mark.parametrize("value", [
    2.0, np.float64(2.0), np.float32(2.0), np.array(2.0), X, X.astype("float32"), 1.0 + 2.0j,
])  # fmt: skip
def test_gradient_returns_the_kind_that_was_attached(value):
    with xf.Grad() as tape:
        x, unused = tape.attach(value), tape.attach(value)
        found, zero = tape.gradient(x * 3.0, (x, unused), np.ones_like(value))
    for each in (found, zero):
        assert not isinstance(each, xf.Value)
        assert isinstance(each, float | complex) == isinstance(value, float | complex)
        assert np.asarray(each).dtype == np.asarray(value).dtype
        assert np.shape(each) == np.shape(value)
    assert_array_equal(zero, np.zeros_like(value))


def test_gradient_of_an_array_is_an_array_and_of_a_value_a_value():
    with xf.Grad() as below, xf.Grad() as tape:
        x, y = tape.attach(xf.array(X)), tape.attach(below.attach(X))
        dx, dy = tape.gradient(x * y, (x, y), ONES)
        assert below.is_attached(dx)  # it is the value that `below` tracks
        assert type(dy) is xf.Array
        assert_array_equal(dy.data, X)
    with xf.Grad() as tape:
        x = tape.attach(xf.array(X))
        found = tape.gradient(np.sin(x), x, ONES)
    assert type(found) is xf.Array
    assert_array_equal(found.data, np.cos(X))


def test_gradient_returns_the_structure_of_xs():
    with xf.Grad() as tape:
        tree = {"w": tape.attach(X), "b": [tape.attach(1.0), (tape.attach(2.0),)]}
        y = (tree["w"] * tree["b"][0]).sum() * tree["b"][1][0]
        found = tape.gradient(y, tree)
    assert xf.tree.structure(found) == xf.tree.structure(tree)
    assert_allclose(found["w"], 2 * ONES)
    assert_allclose(found["b"][1][0], X.sum())
