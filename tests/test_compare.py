"""Where two programs differ, and where a program differs between devices."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from tests.zoo import ZOO
from xform.core.errors import DeviceUnavailableError, OperandError
from xform.programs.compare import same_value
from xform.programs.program import Constant, Equation, Literal, Program, Variable

pytest.importorskip("array_api_strict")
DEVICE = "array_api_strict:device1"
PAIR = ("cpu", DEVICE)
ones = np.ones(3)


def made(fun, *args: Any) -> Program:
    return xf.make_program(fun)(*(args or (ones,)))


# ------------------------------------------------------------------ two programs


@pytest.mark.parametrize("specimen", [each for each in ZOO if not each.reads], ids=lambda each: each.name)
def test_a_program_recorded_twice_does_not_differ(specimen):
    first, second = [made(specimen.fun, *specimen.args(seed)) for seed in (0, 1)]
    found = xf.diff(first, second)
    assert not found
    assert repr(found) == "the programs do not differ"


def test_names_lines_and_scopes_do_not_count():
    def scoped(x):
        with xf.named_scope("a"):
            return np.sin(x) + 1.0

    plain = made(lambda x: np.sin(x) + 1.0)
    assert not xf.diff(plain, made(scoped))
    shifted = Program(
        [Variable(7, plain.in_avals[0])],
        [
            Equation(xf.ops.Sin(), (Variable(7, plain.in_avals[0]),), (v := Variable(3, plain.in_avals[0]),)),
            Equation(xf.ops.Add(), (v, Literal(1.0)), (w := Variable(9, plain.in_avals[0]),)),
        ],
        [w],
        structures=(plain.in_structure, plain.out_structure),
    )
    assert not xf.diff(plain, shifted)


TABLE = np.arange(3.0)
DIFFERENCES = {
    "the operator": (lambda x: np.sin(x) * 2.0, lambda x: np.cos(x) * 2.0, 0),
    "the parameter decimals": (lambda x: np.round(x, 1), lambda x: np.round(x, 2), 0),
    "operand 1": (lambda x: np.sin(x) * 2.0, lambda x: np.sin(x) * 3.0, 1),
    "operand 0": (lambda x: np.exp(np.sin(x)), lambda x: (np.sin(x), np.exp(x))[1], 1),
    "only one of them goes on": (lambda x: np.sin(x), lambda x: np.exp(np.sin(x)), 1),
    "an output": (lambda x: (np.sin(x), np.exp(x)), lambda x: (np.sin(x), np.exp(x))[::-1], None),
    "the number of outputs": (lambda x: (x * 1.0, x), lambda x: x * 1.0, None),
    "the containers of results": (lambda x: [x * 2.0], lambda x: (x * 2.0,), None),
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_the_first_difference_is_named(what):
    left, right, position = DIFFERENCES[what]
    found = xf.diff(made(left), made(right))
    assert found
    assert (found.what, found.position) == (what, position)
    back = xf.diff(made(right), made(left))
    assert (back.what, back.position) == (what, position)


def test_both_lines_are_shown():
    def left(x):
        y = np.sin(x)
        return y * 2.0

    def right(x):
        y = np.sin(x)
        return y / 2.0

    text = repr(xf.diff(made(left), made(right)))
    assert text.splitlines()[0] == "equation 1 differs: the operator"
    assert "left   c: float64[3] = Mul(b, 2.0)" in text
    assert "right  c: float64[3] = Div(b, 2.0)" in text
    assert "test_compare.py" in text
    assert "return y * 2.0" in text
    assert "return y / 2.0" in text
    ended = repr(xf.diff(made(lambda x: np.sin(x)), made(right)))
    assert "left   nothing: the program has ended" in ended


def test_inputs_shapes_constants_and_marks():
    assert xf.diff(made(np.sin, ones), made(np.sin, np.ones(2))).what == "an input"
    assert xf.diff(made(lambda x, y: x, ones, ones), made(lambda x: x, ones)).what == "the number of inputs"
    one, other = made(lambda x: x + TABLE), made(lambda x: x + TABLE * 2)
    assert xf.diff(one, other).what == "operand 1"
    assert not xf.diff(one, made(lambda x: x + TABLE.copy()))
    assert xf.diff(made(lambda x: x + TABLE), made(lambda x: x + np.float32(1.0))).what == "operand 1"
    a = Variable(0, xf.aval_of(ones))
    marked = Program([a], [], [a], derivative="Grad")
    assert xf.diff(marked, Program([a], [], [a])).what == "the layer that recorded a derivative"
    bare = Program([a], [], [a], structures=(xf.tree.structure((1,)), None))
    assert xf.diff(bare, Program([a], [], [a])).what == "the containers of arguments"


def program_of(value) -> Program:
    constant = Constant(0, xf.aval_of(value), value)
    return Program([], [], [constant])


def test_constants_are_compared_bit_for_bit():
    nan, payload = np.array([np.nan]), np.array([np.nan])
    payload.view(np.uint8)[0] = 7
    assert not xf.diff(program_of(nan), program_of(nan.copy()))
    assert xf.diff(program_of(nan), program_of(payload))
    assert xf.diff(program_of(np.zeros(1)), program_of(-np.zeros(1)))


@attrs.frozen
class Keeps(xf.Operator):
    kept: Any

    def infer(self, x):
        return x


def test_values_that_are_equal_but_not_alike():
    for x, y in [(0.0, -0.0), (1, True), (1, 1.0), (1.0, np.float64(1.0)), (np.float32(1), np.float64(1))]:
        assert x == y
        assert not same_value(x, y), (x, y)
    for x, y in [(float("nan"), float("nan")), ({"a": (1, 2.0)}, {"a": (1, 2.0)}), (slice(1), slice(1)), (len, len)]:
        assert same_value(x, y), (x, y)
    assert not same_value({"a": 1}, {"b": 1})
    assert not same_value(len, max)
    assert not same_value(Keeps((1.0, Keeps(0.0))), Keeps((1.0, Keeps(-0.0))))


@attrs.frozen(eq=False)
class Runs(xf.Operator):
    body: Program

    def infer(self, x):
        return self.body.out_avals[0]

    def evaluate(self, xp, x):
        return self.body.run([x])[0]


def test_a_difference_inside_an_operator():
    def holder(fun):
        op = Runs(made(fun))
        return made(lambda x: xf.apply(op, x) * 2.0)

    assert not xf.diff(holder(np.sin), holder(np.sin))
    found = xf.diff(holder(lambda x: np.sin(x) + 1.0), holder(lambda x: np.sin(x) - 1.0))
    assert found.position == 0
    assert found.what.startswith("the parameter body, a program:\n    equation 1 differs: the operator\n")


class Plain(xf.Operator):
    """Without fields, and with a parameter that not all of them have."""

    def __init__(self, **options):
        self.options = options

    def infer(self, x):
        return x


class Secret(xf.Operator):
    """Its parameters cannot be found: it is what its `==` says."""

    def __init__(self, factor):
        self._factor = factor

    def __eq__(self, other):
        return type(other) is Secret and other._factor == self._factor

    __hash__ = None

    def infer(self, x):
        return x


def test_operators_without_fields():
    def holder(op):
        return made(lambda x: xf.apply(op, x))

    assert not xf.diff(holder(Plain(level=1)), holder(Plain(level=1)))
    assert xf.diff(holder(Plain(level=1)), holder(Plain(level=2))).what == "the parameter level"
    assert xf.diff(holder(Plain()), holder(Plain(level=1))).what == "the parameter level"
    assert xf.diff(holder(Plain(level=1)), holder(Plain())).what == "the parameter level"
    assert not xf.diff(holder(Secret(1)), holder(Secret(1)))
    assert xf.diff(holder(Secret(1)), holder(Secret(2))).what == "the operator"


def test_loops_are_compared_by_their_bodies():
    def looped(fun):
        return made(lambda x: xf.while_loop(lambda c: xnp.sum(c) < 9.0, fun, x))

    assert not xf.diff(looped(lambda c: c + 1.0), looped(lambda c: c + 1.0))
    found = xf.diff(looped(lambda c: c + 1.0), looped(lambda c: c * 2.0))
    assert found.what.startswith("the parameter body, a program:\n")
    assert "Add(" in found.what
    assert "Mul(" in found.what


def test_branches_are_compared_one_by_one():
    def branched(fun):
        return made(lambda x: xf.loops.cond(x.sum() > 0, np.sin, fun, x))

    assert not xf.diff(branched(np.exp), branched(np.exp))
    assert xf.diff(branched(np.exp), branched(np.cos)).what.startswith("the parameter branches[0], a program:\n")


# ------------------------------------------------------------------ two devices


def total(fun):
    return lambda *args: sum(xnp.sum(leaf) for leaf in xf.tree.leaves(fun(*args)))


@pytest.mark.parametrize("specimen", [each for each in ZOO if not each.reads], ids=lambda each: each.name)
def test_the_zoo_and_its_gradients_agree_between_devices(specimen):
    args = specimen.args()
    for fun in (specimen.fun, xf.grad(total(specimen.fun))):
        found = xf.replay_compare(made(fun, *args), args)
        assert not found
        assert found.largest < 1e-13
        assert repr(found).startswith(f"cpu and {DEVICE} do not differ (by more than ")


@attrs.frozen
class Off(xf.Operator):
    """A planted fault: on other libraries than NumPy it is off by `error`, `kind` says how."""

    error: float
    kind: str = "add"

    def infer(self, x):
        return x

    def evaluate(self, xp, x):
        if xp is np:
            return x * 1.0 if x.dtype.kind == "f" else x + 0
        if self.kind == "nan":
            return x * xp.nan
        if self.kind == "dtype":
            return xp.astype(x, xp.float32)
        if self.kind == "shape":
            return x[:1]
        if self.kind == "raise":
            raise NotImplementedError("no kernel")
        return x + self.error


def faulty(error, kind="add"):
    return lambda x: np.exp(xf.apply(Off(error, kind), np.sin(x))) + 1.0


def test_a_planted_fault_is_found_where_it_is():
    program = made(faulty(1e-6))
    x = np.array([0.5, 1.0, 1.5])
    found = xf.replay_compare(program, (x,))
    assert found
    assert (found.position, found.equation.op, found.devices) == (1, Off(1e-6), PAIR)
    np.testing.assert_array_equal(found.left, np.sin(x))
    np.testing.assert_array_equal(found.right, np.sin(x) + 1e-6)
    text = repr(found)
    assert f"equation 1 differs between cpu and {DEVICE}: c: float64[3] = Off(" in text
    assert "test_compare.py" in text
    assert "of the largest one (2.22e-13 is allowed): at (" in text
    assert "the operation itself differs: on the operands that cpu had, too" in text


def test_tolerances():
    program = made(faulty(1e-6))
    x = np.array([0.5, 1.0, 1.5])
    assert not xf.replay_compare(program, (x,), rtol=1e-4)
    assert xf.replay_compare(program, (x,), rtol=1e-8)
    assert not xf.replay_compare(made(faulty(1e-14)), (x,))
    half = np.array([0.5, 1.0], np.float32)
    assert not xf.replay_compare(made(faulty(1e-6), half), (half,))  # rounding of float32 allows more
    assert xf.replay_compare(made(faulty(1e-3), half), (half,))


def test_a_difference_that_grew_on_the_way():
    """sin near pi takes all digits away: its operand was off by less than is allowed."""
    program = made(lambda x: np.sin(xf.apply(Off(1e-14), x)), np.ones(1))
    found = xf.replay_compare(program, (np.array([np.pi]),))
    assert found.position == 1
    assert "not on equal operands: they differed before it, by" in repr(found)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("nan", "3 of 3 elements have NaN or infinity in one of them alone, first at (0,)"),
        ("dtype", f"it gives float64[3] on cpu, float32[3] on {DEVICE}"),
        ("shape", f"it gives float64[3] on cpu, float64[1] on {DEVICE}"),
        ("raise", f"{DEVICE} raises NotImplementedError: no kernel"),
    ],
)
def test_other_differences(kind, message):
    found = xf.replay_compare(made(faulty(0.0, kind)), (ones,))
    assert found.position == 1
    assert message in repr(found)


def test_integers_are_compared_exactly():
    n = np.arange(4)
    found = xf.replay_compare(made(lambda n: xf.apply(Off(1), n), n), (n,))
    assert "4 of 4 elements differ, first at (0,) 0 on cpu, 1 on" in repr(found)
    empty = np.zeros((0, 3))
    assert not xf.replay_compare(made(lambda x: xf.apply(Off(1.0), x), empty), (empty,))


def test_nan_and_infinity_in_the_same_places_are_equal():
    x = np.array([0.0, -1.0, 1.0])
    with np.errstate(all="ignore"):
        assert not xf.replay_compare(made(lambda x: (np.log(x), 1.0 / x, xnp.sqrt(x + 0j))), (x,))


def test_containers_numbers_and_tracked_arguments():
    def fun(p, s):
        return p["a"] * s + p["b"][0]

    args = ({"a": ones, "b": [xf.array(ones)]}, 2.0)
    assert not xf.replay_compare(made(fun, *args), args)


def test_moves_and_observers_in_the_program_are_left_out():
    seen = []

    class Watch(xf.Observer):
        def observe(self, op, inputs, outputs):
            seen.append(op)

    with xf.Trace() as recorder:
        x = recorder.input(ones)
        with Watch():
            y = np.sin(xf.device_put(x, "cpu")) + xf.array(ones)
        out = xf.device_put(y, "cpu")
    program = recorder.program(out)
    assert any(equation.op.observes for equation in program.equations)
    seen.clear()
    assert not xf.replay_compare(program, (ones,))
    assert seen == []


def test_wrong_calls():
    program = made(lambda x: x * 2.0)
    with pytest.raises(OperandError, match="1 inputs and two devices are needed"):
        xf.replay_compare(program, (ones, ones))
    with pytest.raises(OperandError, match="two devices are needed"):
        xf.replay_compare(program, (ones,), devices=("cpu",))
    with pytest.raises(xf.XformError, match="was recorded as"):
        xf.replay_compare(program, (np.ones(4),))
    with pytest.raises(DeviceUnavailableError):
        xf.replay_compare(program, (ones,), devices=("cpu", "array_api_strict:device7"))

    @attrs.frozen
    class Breaks(xf.Operator):
        def infer(self, x):
            return x

        def evaluate(self, xp, x):
            raise RuntimeError("broken everywhere")

    with pytest.raises(RuntimeError, match="broken everywhere"):
        xf.replay_compare(made(lambda x: xf.apply(Breaks(), x)), (ones,))


def test_more_than_two_devices_are_compared_with_the_first():
    found = xf.replay_compare(made(np.sin), (ones,), devices=("cpu", "cpu", DEVICE, "array_api_strict:device2"))
    assert not found
    assert len(found.devices) == 4


def test_layers_around_see_nothing():
    with pytest.warns(UserWarning, match="saw no operation"), xf.Profile() as profile:
        xf.replay_compare(made(np.sin), (ones,))
    assert profile.calls("Sin") == 0
