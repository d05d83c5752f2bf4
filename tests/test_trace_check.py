"""A traced function held against its record: departures, captured arrays, arguments that are no arrays."""

from __future__ import annotations

import functools
import pickle

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import xform as xf
import xform.numpy as xnp
from xform.core.errors import CaptureError, OperandTypeError, TraceMismatchError, XformError
from xform.transforms.departures import Departure, same_operator

A, B, C = np.array([1, 2, 3, 4]), np.array([5, 6, 7, 8]), np.array([9, 0, 1, 2])
TABLE = np.array([1.0, 2.0, 3.0, 4.0])

#: what is recorded, what the function does instead, and what that is called
DEPARTURES = {
    "another operator": (lambda a, b, c: a + b + c, lambda a, b, c: a + b - c, Departure.OPERATOR),
    "another parameter": (lambda a, b, c: a[1:] + 0, lambda a, b, c: a[2:] + 0, Departure.OPERATOR),
    "another constant": (lambda a, b, c: a + b + 1, lambda a, b, c: a + b + 2, Departure.CONSTANT),
    "another kind of constant": (lambda a, b, c: a + 1, lambda a, b, c: a + 1.0, Departure.CONSTANT),
    "another array": (lambda a, b, c: a * TABLE, lambda a, b, c: a * (TABLE + 1.0), Departure.CONSTANT),
    "stops early": (lambda a, b, c: (a + b, b + c)[0], lambda a, b, c: a + b, Departure.STOPS_EARLY),
    "no read": (lambda a, b, c: a + b if a[0] > 0 else a, lambda a, b, c: (a[0] > 0, a + b)[1], Departure.OPERATOR),
    "outer for inner": (lambda a, b, c: a + b + c, lambda a, b, c: c + (a + b), Departure.GIVEN_FOR_MADE),
    "inner for outer": (lambda a, b, c: c + (a + b), lambda a, b, c: a + b + c, Departure.MADE_FOR_GIVEN),
    "constant for inner": (lambda a, b, c: (a + b) * c, lambda a, b, c: [a + b, 2 * c][1], Departure.GIVEN_FOR_MADE),
    "an operator more": (lambda a, b, c: a + b + c, lambda a, b, c: a + b + c + c, Departure.EXTRA),
    "another output": (lambda a, b, c: (a + b, b + c)[1], lambda a, b, c: (a + b, b + c)[0], Departure.OUTPUT),
    "another container": (lambda a, b, c: (a + b, c), lambda a, b, c: [a + b, c], Departure.OUTPUT),
    "another operand": (
        lambda a, b, c: (a + b, b + c)[1] + a, lambda a, b, c: (a + b, b + c)[0] + a, Departure.OPERAND,
    ),
    "another argument": (lambda a, b, c: a + b, lambda a, b, c: a + c, Departure.OPERAND),
}  # fmt: skip


def run_with(normal, other, options):
    """A traced function that does one thing or another, by a switch that is no argument."""

    def fun(a, b, c):
        return (other if switch else normal)(a, b, c)

    switch: list[bool] = []
    return xf.trace(fun, **options), switch


@pytest.mark.parametrize("name", DEPARTURES)
def test_row_46_a_replay_that_departs_from_the_record_is_caught(name):
    normal, other, reason = DEPARTURES[name]
    traced, switch = run_with(normal, other, {"check": True})
    rng = np.random.default_rng(0)
    found = 0
    for call in range(20):
        switch[:] = [True] if call and rng.random() > 0.6 else []
        if switch:
            with pytest.raises(TraceMismatchError, match="trace of fun departs from what was recorded") as caught:
                traced(A, B, C)
            assert caught.value.reason is reason
            assert reason.value in str(caught.value)
            assert xf.stack() == ()
            found += 1
        else:
            have, want = traced(A, B, C), normal(A, B, C)
            for one, two in zip(xf.tree.leaves(have), xf.tree.leaves(want), strict=True):
                assert_array_equal(one, two)
    assert found > 3
    assert len(traced.paths(A, B, C)) == 1


def test_row_46_the_eight_kinds_are_told_apart():
    assert {reason for _, _, reason in DEPARTURES.values()} == set(Departure)
    assert len({reason.value for reason in Departure}) == len(Departure) == 8


def test_a_departure_names_the_first_operation_and_both_lines():
    def fun(x):
        y = np.sin(x)
        if switch:
            return np.cos(y)  # now
        return np.exp(y) * 2.0  # recorded

    switch = False
    traced = xf.trace(fun, check=True)
    traced(TABLE)
    switch = True
    with pytest.raises(
        TraceMismatchError, match=r"(?s)Recorded: Exp\(\) at .*# recorded; now: Cos\(\) at .*# now"
    ) as e:
        traced(TABLE)
    assert (e.value.recorded.op, e.value.found.op) == (xf.ops.Exp(), xf.ops.Cos())
    assert e.value.site == e.value.found.site
    assert e.value.site[0] == __file__
    assert "xf.exclude_from_trace" in str(e.value)
    assert str(pickle.loads(pickle.dumps(e.value))) == str(e.value)


def test_a_departure_that_the_function_catches_is_raised_all_the_same():
    def fun(x):
        try:
            return np.cos(x) if switch else np.sin(x)
        except XformError:
            return np.sin(x)

    switch = []
    traced = xf.trace(fun, check=True)
    traced(TABLE)
    switch.append(1)
    with pytest.raises(TraceMismatchError):
        traced(TABLE)


def test_without_check_departures_are_not_seen():
    traced, switch = run_with(*DEPARTURES["another operator"][:2], {})
    traced(A, B, C)
    switch.append(True)
    assert_array_equal(traced(A, B, C), A + B + C)


def test_a_second_path_must_begin_as_the_first():
    def fun(x):
        y = x * next(draws)  # drawn
        return y if y[0] > 0 else -y

    draws = iter([2.0, 3.0, 2.0])
    traced = xf.trace(fun)
    assert_array_equal(traced(TABLE), TABLE * 2.0)
    with pytest.raises(TraceMismatchError, match=r"another constant.*# drawn.*pass what changes") as caught:
        traced(-TABLE)
    assert caught.value.reason is Departure.CONSTANT
    assert_array_equal(traced(TABLE), TABLE * 2.0)
    assert_array_equal(traced(-TABLE), TABLE * 2.0)  # the third draw is the first again


def test_check_follows_guards():
    def fun(x):
        return np.sin(x) if x[0] > 0 else x[: int(-x[0])]

    runs = []
    traced = xf.trace(lambda x: runs.append(1) or fun(x), check=True)
    for x in (TABLE, -TABLE, -2.0 * TABLE, TABLE, -TABLE):
        assert_array_equal(traced(x), fun(x))
    assert len(runs) == 5
    assert len(traced.paths(TABLE)) == 3


def test_check_of_a_gradient_names_the_backward_operation():
    def fun(x):
        return (np.sin(x) if switch else np.tanh(x)).sum()

    switch = []
    traced = xf.trace(xf.grad(fun), check=True)
    for _ in range(3):
        assert_array_equal(traced(TABLE), xf.grad(fun)(TABLE))
    switch.append(1)
    with pytest.raises(TraceMismatchError, match=r"Recorded: Tanh\(\).*now: Sin\(\)"):
        traced(TABLE)


def test_check_takes_functions_that_make_functions():
    """Operators that hold functions are new at each run: they are known by what these are made of."""

    def fun(x, scale):
        twice = xf.custom_gradient(lambda v: (v * scale, None), lambda _, t: t * 10.0)
        with xf.Profile():
            return twice(np.sin(x)).sum()

    traced = xf.trace(xf.grad(fun), check=True, static_argnums=1)
    for _ in range(3):
        assert_array_equal(traced(TABLE, 2.0), xf.grad(fun)(TABLE, 2.0))
    branching = xf.trace(xf.grad(lambda x: fun(x, 2.0) if x[0] > 0 else fun(-x, 2.0) * fun(x, 3.0)))
    for x in (TABLE, -TABLE, TABLE, -TABLE):
        want = xf.grad(lambda x: fun(x, 2.0) if x[0] > 0 else fun(-x, 2.0) * fun(x, 3.0))(x)
        np.testing.assert_allclose(branching(x), want, rtol=1e-14)


@pytest.mark.parametrize("options", [{}, {"check": True}])
def test_a_loop_of_programs_is_one_operation_on_every_path(options):
    def with_loop(x):
        y = xf.while_loop(lambda y: np.abs(y).max() > 1.0, lambda y: y / 2.0, x)
        return (y * y).sum() if y[0] > 0 else (y**3).sum()

    def eager(x):
        y = x
        while np.abs(y).max() > 1.0:
            y = y / 2.0
        return (y * y).sum() if y[0] > 0 else (y**3).sum()

    traced, slope = xf.trace(with_loop, **options), xf.trace(xf.grad(with_loop), **options)
    for trips in range(6):
        for x in (TABLE * 3.0**trips, -TABLE * 3.0**trips):
            assert_array_equal(traced(x), eager(x))
            np.testing.assert_allclose(slope(x), xf.grad(eager)(x), rtol=1e-12)
    assert len(traced.paths(TABLE)) == len(slope.paths(TABLE)) == 2


def test_operators_that_hold_functions_differ_by_what_these_hold():
    def op_of(scale, base=np.sin):
        program = []

        class Keep(xf.Transformation):
            effect = "observes"

            def interpret(self, op, values):
                program.append(op)
                return xf.apply(op, *values)

        with Keep():
            xf.custom_gradient(lambda v: (base(v) * scale, None), lambda _, t: t)(xf.array(TABLE))
        return next(op for op in program if "CustomGradient" in repr(op))

    assert same_operator(op_of(2.0), op_of(2.0))
    assert not same_operator(op_of(2.0), op_of(3.0))
    assert not same_operator(op_of(2.0), op_of(2.0, np.cos))
    assert not same_operator(op_of(TABLE), op_of(TABLE + 1.0))
    assert same_operator(op_of(TABLE), op_of(TABLE.copy()))
    assert same_operator(op_of(functools.partial(max, 1.0)(2.0)), op_of(2.0))


@pytest.mark.parametrize("options", [{}, {"check": True}])
def test_row_47_the_users_exception_passes_unchanged_with_guards_too(options):
    mine = KeyError("mine")

    def fun(x):
        y = np.sin(x)
        if y[0] > 0:
            raise mine
        return y * 2.0

    traced = xf.trace(fun, **options)
    for _ in range(3):
        with pytest.raises(KeyError, match="mine") as caught:
            traced(TABLE)
        assert caught.value is mine
        assert xf.stack() == ()
        assert_array_equal(traced(-TABLE), np.sin(-TABLE) * 2.0)
    assert len(traced.paths(-TABLE)) == 1


# ------------------------------------------------------------------ captured arrays


def test_row_41_captured_arrays_are_constants():
    w = np.array([1.0, 2.0, 3.0, 4.0])
    traced = xf.trace(lambda x: x * w)
    assert_array_equal(traced(TABLE), TABLE * w)
    first = w.copy()
    w += 1.0
    for _ in range(2):
        assert_array_equal(traced(TABLE), TABLE * first)
    (constant,) = traced.program(TABLE).constants
    assert_array_equal(constant.value, first)


CAPTURES = {
    "ndarray": lambda w: lambda x: x * w,
    "value": lambda w: lambda x: xf.array(w) * x,
    "made inside": lambda w: lambda x: x + xnp.arange(4.0),
    "index": lambda w: lambda x: x[np.array([0, 2])],
    "output": lambda w: lambda x: (x, w),
    "in a gradient": lambda w: xf.grad(lambda x: (x * w).sum()),
    "read": lambda w: lambda x: x * float(xf.array(w)[0]),
    "caught": lambda w: lambda x: attempt(lambda: x * w, x),
}


def attempt(fun, otherwise):
    try:
        return fun()
    except XformError:
        return otherwise


@pytest.mark.parametrize("name", CAPTURES)
def test_row_41_without_the_option_a_captured_array_is_an_error_that_names_it(name):
    fun = CAPTURES[name](np.array([1.0, 2.0, 3.0, 4.0]))
    traced = xf.trace(fun, capture="error")
    for _ in range(2):
        with pytest.raises(CaptureError, match=r'(?s)neither an argument.*test_trace_check\.py.*capture="constant"'):
            traced(TABLE)
        assert xf.stack() == ()
    assert len(xf.trace(fun).paths(TABLE)) == 1


def test_row_41_numbers_and_arguments_are_no_captured_arrays():
    half = np.float32(0.5)
    fun = xf.value_and_grad(lambda x, w: ((x * w) ** 2 * half + 1.0).sum() * 2)
    traced = xf.trace(fun, capture="error")
    for _ in range(2):
        for have, want in zip(traced(TABLE, TABLE), fun(TABLE, TABLE), strict=True):
            assert_array_equal(have, want)


def test_row_41_a_value_of_another_layer_is_captured_too():
    def outer(w):
        return xf.trace(lambda x: x * w, capture="error")(TABLE).sum()

    with pytest.raises(CaptureError, match="neither an argument"):
        xf.grad(outer)(TABLE)


# ------------------------------------------------------------------ arguments and results that are no arrays


def test_row_54_arguments_that_are_no_arrays_are_known_by_value_or_refused():
    traced = xf.trace(lambda x, mode: x + 1.0 if mode == "up" else x)
    assert_array_equal(traced(TABLE, "up"), TABLE + 1.0)
    assert_array_equal(traced(TABLE, "down"), TABLE)
    message = r"trace of <lambda>: the argument at \[1\]\['mode'\] is set, no array, and cannot be hashed: {1}"
    with pytest.raises(OperandTypeError, match=message):
        traced(TABLE, {"mode": {1}})
    with pytest.raises(OperandTypeError, match=r"at \[1\] is bytearray, no array"):
        traced(TABLE, bytearray(b"up"))
    with pytest.raises(OperandTypeError, match="holds no numbers"):
        traced(np.array(["text"]), "up")
    with pytest.raises(OperandTypeError, match="a static argument must be hashable"):
        xf.trace(lambda x, n: x, static_argnums=1)(TABLE, [1])
    for make in (xf.make_program, xf.eval_shape):
        with pytest.raises(OperandTypeError, match="expected an array or a number, got str"):
            make(lambda x: x, "text") if make is xf.eval_shape else make(lambda x: x)("text")


@pytest.mark.parametrize("make", [xf.trace, xf.make_program, lambda f: lambda x: xf.eval_shape(f, x)])
def test_row_54_results_that_are_no_arrays_are_refused(make):
    with pytest.raises(OperandTypeError, match=r"of <lambda>: the output \[1\] is str, no array: 'text'; return"):
        make(lambda x: (x, "text"))(TABLE)


@pytest.mark.parametrize("nothing", [None, (), {"a": []}])
def test_row_54_a_function_without_outputs_has_no_program_to_store(nothing, tmp_path):
    traced = xf.trace(lambda x: nothing)
    for _ in range(2):
        assert traced(TABLE) == nothing
        with pytest.raises(XformError, match="trace of <lambda>: it has no outputs"):
            traced.program(TABLE).save(tmp_path / "nothing.xf")
    assert list(tmp_path.iterdir()) == []
