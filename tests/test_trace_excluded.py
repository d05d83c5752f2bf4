"""Regions of traced functions that run in Python at each call."""

from __future__ import annotations

import asyncio
import pickle
import threading

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from typeguard import suppress_type_checks

import xform as xf
import xform.numpy as xnp
from xform.core.errors import HostReadError, LayerError, OperandTypeError, ProgramError, ShapeError
from xform.transforms import excluded

X = np.array([1.0, -2.0, 3.0, 4.0])


def stretches_of(traced):
    (kept,) = traced.programs.values()
    return kept.stretches.programs


def test_row_37_a_branch_on_a_counter_is_honoured():
    @xf.trace
    def f(x):
        x = -x
        with xf.exclude_from_trace():
            if count % 2:
                x = -x
        return -x

    for call in range(6):
        count = call // 2
        assert_array_equal(f(X), -X if count % 2 else X)
    assert xf.stack() == ()


def test_row_37_values_can_be_read_in_the_region_at_each_call():
    seen, inside = [], []

    @xf.trace
    def f(x):
        y = np.exp(x) * 2.0
        with xf.exclude_from_trace():
            seen.append((float(y[0]), np.asarray(y).copy(), f"{y}", y.shape, bool(y[0] > 1)))
            inside.append(type(y * 1.0))
        return y + 1.0

    for x in (X, -X, X * 0.5):
        assert_array_equal(f(x), np.exp(x) * 2.0 + 1.0)
    for x, (first, array, text, shape, positive) in zip((X, -X, X * 0.5), seen, strict=True):
        want = np.exp(x) * 2.0
        assert first == want[0]
        assert_array_equal(array, want)
        assert text == str(want)
        assert (shape, positive) == ((4,), want[0] > 1)
    assert inside == [xf.Array] * 3


def test_a_region_may_give_arrays_numbers_and_values():
    state = {"scale": np.ones(4), "shift": 1.0}

    @xf.trace
    def f(x):
        y = x * 2.0
        with xf.exclude_from_trace():
            total = float(y.sum())
            host = np.asarray(y) ** 2  # a plain array
            tracked = np.sin(y)
            state["scale"] = state["scale"] + 1.0
            state["shift"] += 0.5
        out = y * total + host * tracked
        return out * state["scale"] + state["shift"]

    for call in range(1, 6):
        x = X * call
        y = 2.0 * x
        want = (y * y.sum() + y**2 * np.sin(y)) * (call + 1.0) + (1.0 + call * 0.5)
        assert_allclose(f(x), want, rtol=1e-14)
    assert len(stretches_of(f)) == 2  # numbers are inputs of the stretches: one before the region, one behind it


def test_programs_are_kept_and_few():
    @xf.trace
    def f(x):
        for k in range(4):
            x = np.sin(x) + k
            with xf.exclude_from_trace():
                if count % 3 == k:
                    x = x * 2.0
        return x

    def eager(x):
        for k in range(4):
            x = np.sin(x) + k
            if count % 3 == k:
                x = x * 2.0
        return x

    for number in range(12):
        count = number
        assert_allclose(f(X), eager(X), rtol=1e-14)
    assert len(stretches_of(f)) <= 6


def test_memory_is_bounded_where_every_call_does_something_else(monkeypatch):
    monkeypatch.setattr(excluded, "MOST_PROGRAMS", 8)

    @xf.trace
    def f(x):
        with xf.exclude_from_trace():
            times = count
        for _ in range(times):
            x = x + 1.0
        return x

    for count in range(1, 24):
        assert_array_equal(f(X), X + count)
    assert len(stretches_of(f)) == 8


def test_control_flow_outside_of_regions_is_pythons():
    @xf.trace
    def f(x):
        with xf.exclude_from_trace():
            tolerance = 1.0
        while np.abs(x).max() > tolerance:
            x = x / 1.1
        return x[x > 0] * x[x > 0].shape[0]

    def eager(x):
        while np.abs(x).max() > 1.0:
            x = x / 1.1
        return x[x > 0] * x[x > 0].shape[0]

    for call in range(30):
        assert_array_equal(f(X * (1.0 + 0.3 * call)), eager(X * (1.0 + 0.3 * call)))


def test_arrays_that_the_function_writes_into_are_taken_as_they_were():
    @xf.trace
    def f(x):
        with xf.exclude_from_trace():
            pass
        c = np.zeros(4)
        for _ in range(3):
            c += 1
            x = x * c + xf.array(c)
        return x, c

    want, c = X, np.zeros(4)
    for _ in range(3):
        c = c + 1
        want = want * c + c
    for _ in range(3):
        have, last = f(X)
        assert_array_equal(have, want)
        assert_array_equal(last, c)


# ------------------------------------------------------------------ compositions


COUNTER = [0]


def model(x):
    y = np.exp(x * 0.3) * 2.0
    with xf.exclude_from_trace():
        if COUNTER[0] % 2:
            y = y * y
    return (y * np.sin(x)).sum()


def eager_model(x):
    y = np.exp(x * 0.3) * 2.0
    if COUNTER[0] % 2:
        y = y * y
    return (y * np.sin(x)).sum()


TRACED = xf.trace(model)
COMPOSED = {
    "trace": (xf.trace(model), eager_model),
    "nothing": (model, eager_model),
    "grad trace": (xf.grad(TRACED), xf.grad(eager_model)),
    "trace grad": (xf.trace(xf.grad(model)), xf.grad(eager_model)),
    "trace grad trace": (xf.trace(xf.grad(xf.trace(model))), xf.grad(eager_model)),
    "trace trace": (xf.trace(lambda x: TRACED(x) + TRACED(-x)), lambda x: eager_model(x) + eager_model(-x)),
    "jvp": (lambda x: xf.jvp(TRACED, (x,), (x,))[1], lambda x: xf.jvp(eager_model, (x,), (x,))[1]),
    "linearize": (lambda x: xf.linearize(TRACED, x)[1](x), lambda x: xf.jvp(eager_model, (x,), (x,))[1]),
    "hessian": (xf.hessian(TRACED), xf.hessian(eager_model)),
    "vmap": (
        lambda x: xf.vmap(TRACED)(np.stack([x, x + 1.0])),
        lambda x: np.stack([eager_model(x), eager_model(x + 1.0)]),
    ),
    "trace vmap": (xf.trace(xf.vmap(model)), lambda x: np.stack([eager_model(row) for row in x])),
    "checkpoint": (xf.grad(xf.checkpoint(TRACED)), xf.grad(eager_model)),
    "device": (
        lambda x: xf.to_numpy(xf.Device("array_api_strict:device1")(TRACED)(x)),
        eager_model,
    ),
    "profile": (xf.Profile()(TRACED), eager_model),
    "check": (xf.trace(model, check=True), eager_model),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_regions_in_compositions(name):
    composed, eager = COMPOSED[name]
    x = np.stack([X, -X]) if name == "trace vmap" else X
    for COUNTER[0] in (0, 1, 1, 0, 3, 2):
        for shift in (0.0, 0.5):
            assert_allclose(composed(x + shift), eager(x + shift), rtol=1e-10, atol=1e-12)
    assert xf.stack() == ()


def test_an_observer_around_and_inside_sees_every_operation():
    class Seen(xf.Observer):
        def __init__(self):
            self.names = []

        def observe(self, op, inputs, outputs):
            self.names.append((op.name, xf.concrete(outputs) is not None))

    inner = Seen()

    @xf.trace
    def f(x):
        with inner:
            y = np.sin(x)
            with xf.exclude_from_trace():
                y = np.cos(y)
            return y * 2.0

    outer = Seen()
    for _ in range(3):
        with outer:
            f(xf.array(X))
    for seen in (inner, outer):
        assert seen.names == [("Sin", True), ("Cos", True), ("Mul", True)] * 3


def test_scopes_and_lines_of_what_was_put_off():
    class Lines(xf.Observer):
        def observe(self, op, inputs, outputs):
            if not op.attribute_like:
                places.append((op.name, xf.current().scopes, xf.current().line))

    @xf.trace
    def f(x):
        with xf.exclude_from_trace():
            pass
        with xf.named_scope("own"):
            y = np.sin(x)
        return y * 2.0

    places = []
    for _ in range(3):
        with Lines(), xf.named_scope("around"):
            f(xf.array(X))
    first, later = places[:2], places[2:]
    assert later == first * 2
    assert [scopes for _, scopes, _ in first] == [("around", "own"), ("around",)]


# ------------------------------------------------------------------ errors


def test_programs_cannot_leave_a_region_out():
    def f(x):
        with xf.exclude_from_trace():  # begins
            return x * 2.0

    traced = xf.trace(f)
    traced(X)
    for method in (traced.program, traced.paths):
        with pytest.raises(ProgramError, match="a region of it runs in Python"):
            method(X)
    with pytest.raises(ProgramError, match=r"make_program of f: the region excluded at .*# begins.*runs in Python"):
        xf.make_program(f)(X)
    with xf.Trace() as recorder:
        y = f(recorder.input(X))
    with pytest.raises(ProgramError, match="the region excluded at"):
        recorder.program(y)
    assert xf.eval_shape(f, X) == xf.aval_of(X)
    assert_array_equal(f(X), X * 2.0)  # nothing is traced


def test_errors_pass_and_leave_things_as_they_were():
    mine = ValueError("mine")

    @xf.trace
    def f(x, y):
        z = x + y
        with xf.exclude_from_trace():
            if fail:
                raise mine
        return z * 2.0

    for fail in (False, True, False, True):
        if fail:
            with pytest.raises(ValueError, match="mine") as caught:
                f(X, X)
            assert caught.value is mine
        else:
            assert_array_equal(f(X, X), X * 4.0)
        assert xf.stack() == ()
    fail = False
    with pytest.raises(ShapeError, match="Add"):
        f(X, np.ones(3))
    f(X, X)


def test_operands_that_do_not_fit_raise_at_their_line():
    @xf.trace
    def f(x):
        with xf.exclude_from_trace():
            width = wide
        try:
            return x + xnp.ones(width)  # adds
        except ShapeError as error:
            notes.extend(error.__notes__)
            return x

    notes = []
    for wide in (4, 4, 3, 4):
        assert_array_equal(f(X), X if wide == 3 else X + 1.0)
    assert len(notes) == 1
    assert "# adds" in notes[0]


def test_what_fails_for_some_values_fails_at_its_line():
    @xf.trace
    def f(a):
        with xf.exclude_from_trace():
            pass
        b = a * 1.0
        try:
            np.linalg.cholesky(b)  # asks
        except np.linalg.LinAlgError:
            return b * 0.0
        return b + 1.0

    for sign in (1.0, -1.0, 1.0, -1.0, 2.0):
        a = sign * np.eye(2)
        assert_array_equal(f(a), a + 1.0 if sign > 0 else a * 0.0)


def test_results_that_are_no_arrays_are_refused_at_each_call():
    @xf.trace
    def f(x):
        with xf.exclude_from_trace():
            return "text"

    for _ in range(2):
        with pytest.raises(OperandTypeError, match="the output is str, no array"):
            f(X)


def test_reads_outside_of_regions_with_guards_that_are_errors():
    @xf.trace
    def guarded(x):
        with xf.exclude_from_trace():
            pass
        return x if x[0] > 0 else -x

    strict = xf.trace(guarded.fun, guards="error")
    for x in (X, -X, X):
        assert_array_equal(guarded(x), x if x[0] > 0 else -x)
        with pytest.raises(HostReadError, match=r"bool\(\)"):
            strict(x)
    for _ in range(2):
        with pytest.raises(HostReadError, match=r"np\.asarray"):
            xf.trace(lambda x: (xf.exclude_from_trace()(lambda: None)(), np.asarray(x))[1])(X)


def test_lanes_stay_unread_in_a_region():
    def f(x):
        with xf.exclude_from_trace():
            return x if x[0] > 0 else -x

    for _ in range(2):
        with pytest.raises(HostReadError, match="batched value"):
            xf.vmap(xf.trace(f))(np.stack([X, -X]))


def test_a_region_does_not_stand_around_a_yield():
    def steps(x):
        with xf.exclude_from_trace():
            yield x

    with pytest.raises(LayerError, match="stands around a yield"):
        next(steps(X))
    with pytest.raises(LayerError, match="generator function"):
        xf.exclude_from_trace()(steps)
    with pytest.raises(LayerError, match="returned a generator"):
        xf.exclude_from_trace()(lambda x: steps(x))(X)


# ------------------------------------------------------------------ as a decorator, in threads


def test_as_a_decorator():
    calls = []

    @xf.exclude_from_trace()
    def log(x):
        """Log."""
        calls.append(float(x.sum()))
        return x * 2.0

    traced = xf.trace(lambda x: log(np.sin(x)) + 1.0)
    for call in range(3):
        assert_array_equal(traced(X + call), np.sin(X + call) * 2.0 + 1.0)
    assert calls == [np.sin(X + call).sum() for call in range(3)]
    assert log.__doc__ == "Log."
    assert repr(xf.exclude_from_trace()) == "exclude_from_trace()"

    @xf.exclude_from_trace()
    async def later(x):
        return x + 1.0

    assert_array_equal(asyncio.run(later(X)), X + 1.0)


def test_regions_nest_and_one_can_be_used_again():
    region = xf.exclude_from_trace()

    @xf.trace
    def f(x):
        with region:
            x = x * 2.0
            with region, xf.exclude_from_trace():
                x = x + float(x[0])
        with region:
            return x - COUNTER[0]

    for k in range(3):
        COUNTER[0] = k
        assert_array_equal(f(X), 2.0 * X + 2.0 * X[0] - k)


def test_a_trace_inside_of_a_region_records():
    inner = xf.trace(lambda x: np.sin(x) * 2.0)

    @xf.trace
    def f(x):
        with xf.exclude_from_trace():
            return inner(x)

    for _ in range(3):
        assert_array_equal(f(X), np.sin(X) * 2.0)
    assert len(inner.program(X).equations) == 2


def test_threads_have_regions_of_their_own():
    @xf.trace
    def f(x, k):
        y = np.sin(x)
        with xf.exclude_from_trace():
            y = y * float(k)
        return y + x

    wrong = []

    def work(k):
        wants = [np.sin(X + call) * k + (X + call) for call in range(20)]
        wrong.extend(call for call, want in enumerate(wants) if not np.array_equal(f(X + call, k), want))

    with suppress_type_checks():
        threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_a_traced_function_with_regions_pickles():
    copy = pickle.loads(pickle.dumps(TRACED))
    assert_allclose(copy(X), eager_model(X), rtol=1e-14)
