"""Programs: what is kept under which key, what an observer sees of a replay, and what a run holds."""

import gc
import weakref

import attrs
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import xform as xf
import xform.numpy as xnp
from xform.core.errors import ProgramError

X = np.array([0.3, -1.2, 2.0])


class Record(xf.Observer):
    """Keeps name, scopes, phase and line of each operation."""

    def __init__(self):
        self.seen = []

    def observe(self, op, inputs, outputs):
        if op.name not in ("PushScope", "PopScope"):
            here = xf.current()
            self.seen.append((op.name, here.scopes, here.phase, here.line))


# ------------------------------------------------------------------ what is kept


def test_a_function_that_closes_over_a_tapes_value_is_recorded_anew_each_time():
    calls, programs = [], []

    def outer(x):
        def scaled(v):
            calls.append(1)
            return np.sum(v * x)

        traced.fun = scaled
        return traced(X)

    traced = xf.trace(lambda v: v)
    for factor in (1.0, 10.0, -3.0):
        x = X * factor
        value, slope = xf.value_and_grad(outer)(x)
        assert_allclose(value, np.sum(X * x))
        assert_array_equal(slope, X)
        programs.append(len(traced.programs))
    assert len(calls) == 3
    assert programs == [0, 0, 0]


def test_one_traced_function_called_from_two_gradients():
    box = []
    traced = xf.trace(lambda v: np.sum(np.sin(v) * box[-1] ** 2))

    def f(x):
        box.append(x)
        return traced(X)

    for x in (np.array([1.0, 2.0, 3.0]), np.array([-4.0, 0.5, 0.0])):
        assert_allclose(xf.grad(f)(x), 2 * x * np.sin(X))
    with xf.Grad() as tape:
        box.append(tape.attach(X))
        with pytest.raises(ProgramError, match="captures a value of an active layer; its program is not kept"):
            traced.program(X)
    box.append(2.0)
    assert_allclose(traced(X), 4 * np.sum(np.sin(X)))
    assert_allclose(traced(X * 2), 4 * np.sum(np.sin(X * 2)))


def test_two_values_of_a_static_name_are_two_programs():
    calls = []

    def power(x, *, order, scale=1.0):
        calls.append(order)
        out = x
        for _ in range(order - 1):
            out = out * x
        return out * scale

    traced = xf.trace(power, static_argnames="order")
    for _ in range(2):
        for order in (2, 3):
            assert_allclose(traced(X, order=order), X**order, rtol=1e-15)
    assert calls == [2, 3]
    assert len(traced.programs) == 2
    names = [[e.op.name for e in traced.program(X, order=order).equations] for order in (2, 3)]
    assert names == [["Mul", "Mul"], ["Mul", "Mul", "Mul"]]
    assert_allclose(xf.grad(lambda x: traced(x, order=3).sum())(X), 3 * X * X, rtol=1e-15)
    assert calls == [2, 3]


# ------------------------------------------------------------------ what a replay tells


def layered(x):
    with xf.named_scope("first"):
        h = np.sin(x)
        with xf.named_scope("inside"):
            h = h * 2.0
    return np.sum(h + x)


@pytest.mark.parametrize("make", [
    lambda f: xf.trace(f),
    lambda f: xf.make_program(f)(X),
], ids=["trace", "make_program"])  # fmt: skip
@pytest.mark.parametrize("function", [layered, xf.value_and_grad(layered)], ids=["value", "gradient"])
def test_an_observer_around_a_replay_sees_scopes_phase_and_line_as_recorded(make, function):
    with Record() as eager:
        function(xf.array(X))
    run = make(function)
    run(X)
    with Record() as replay:
        run(X + 1.0)
    program = run.program(X) if isinstance(run, xf.trace) else run
    recorded = [(e.op.name, e.scopes, e.phase, e.site) for e in program.equations]
    assert replay.seen == recorded
    if function is layered:
        assert replay.seen == eager.seen
        assert [seen[:3] for seen in replay.seen] == [
            ("Sin", ("first",), "forward"),
            ("Mul", ("first", "inside"), "forward"),
            ("Add", (), "forward"),
            ("Sum", (), "forward"),
        ]
    else:
        assert {phase for _, _, phase, _ in replay.seen} == {"forward", "backward"}
        scopes = {scopes for _, scopes, phase, _ in replay.seen if phase == "backward"}
        assert ("first", "Sin.Backward") in scopes
        assert {line for name, _, _, line in replay.seen if name in ("Sin", "Cos")} == {
            line for name, _, _, line in eager.seen if name == "Sin"
        }
    assert {line[0] for _, _, _, line in replay.seen} == {__file__}
    lines = [line[1] for name, _, phase, line in replay.seen if name in ("Sin", "Mul", "Add") and phase == "forward"]
    first = layered.__code__.co_firstlineno
    assert lines == [first + 2, first + 4, first + 5]


def test_a_replay_in_a_scope_and_a_backward_phase_adds_what_is_around_it():
    run = xf.trace(layered)
    run(X)
    with Record() as record, xf.named_scope("around"):
        xf.grad(run)(X)
    forward = [scopes for _, scopes, phase, _ in record.seen if phase == "forward"]
    assert forward == [("around", "first"), ("around", "first", "inside"), ("around",), ("around",)]
    assert ("around", "first", "Sin.Backward") in {s for _, s, phase, _ in record.seen if phase == "backward"}
    assert xf.current().scopes == ()


# ------------------------------------------------------------------ what a run holds


def test_eval_goes_past_all_layers():
    program = xf.make_program(lambda x: np.sin(x) * 2.0)(X)
    with Record() as record:
        xf.array(X) + 1.0
        before = list(record.seen)
        assert_array_equal(program.eval(X), np.sin(X) * 2)
        assert record.seen == before
        assert_array_equal(program(X), np.sin(X) * 2)
        assert [name for name, *_ in record.seen[len(before) :]] == ["Sin", "Mul"]
        assert xf.stack() == (record,)
        with pytest.raises(ValueError, match="was recorded as"):
            program.eval(np.ones(2))
        assert xf.stack() == (record,)


made, alive = [], []


@attrs.frozen
class Made(xf.Operator):
    """Gives a new array, and keeps a weak reference to it."""

    def infer(self, x):
        return x

    def evaluate(self, xp, x):
        out = x + 1.0
        made.append(weakref.ref(out))
        return out


@attrs.frozen
class Look(xf.Operator):
    """Hands through, and tells which of the arrays made so far live."""

    def infer(self, x):
        return x

    def evaluate(self, xp, x):
        alive.append([ref() is not None for ref in made])
        return x * 1.0


@pytest.mark.parametrize("run", ["call", "eval", "trace"])
def test_an_intermediate_dies_after_its_last_use(run):
    def function(x):
        first = xf.apply(Made(), x)
        second = xf.apply(Made(), first)  # the last use of first
        third = second * 2.0 + 0.0
        looked = xf.apply(Look(), third)  # second is used below
        out = second * looked  # its last use
        return xf.apply(Look(), out), third

    program = xf.make_program(function)(X)
    traced = xf.trace(function)
    traced(X)
    gc.collect()
    gc.disable()
    made.clear()
    alive.clear()
    try:
        found = {"call": program, "eval": program.eval, "trace": traced}[run](X)
    finally:
        gc.enable()
    assert alive == [[False, True], [False, False]]
    third = (X + 2.0) * 2.0
    assert_allclose(found[0], (X + 2.0) * third)
    assert_allclose(found[1], third)


def test_an_output_that_is_an_input_or_a_later_operand_is_kept():
    program = xf.make_program(lambda x: (x, xnp.exp(x), x + 1.0))(X)
    for have, want in zip(program(X), (X, np.exp(X), X + 1.0), strict=True):
        assert_array_equal(have, want)
