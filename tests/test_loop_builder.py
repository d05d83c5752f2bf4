"""What `LoopBuilder` refuses, and what loops do at the edges."""

from __future__ import annotations

import numpy as np
import pytest
from typeguard import suppress_type_checks

import xform as xf
from xform.loops import LoopBuilder, while_loop


def assigned_twice(loop):
    x = loop.input(1.0, assign=True)
    loop.assign(x, x * 2.0)
    loop.assign(x, x * 3.0)


def never_assigned(loop):
    loop.condition(loop.input(1.0, assign=True) < 3.0)


def without_condition(loop):
    x = loop.input(1.0, assign=True)
    loop.assign(x, x * 2.0)


def another_dtype(loop):
    x = loop.input(np.float32(1.0), assign=True)
    loop.assign(x, x * np.float64(2.0))


def another_shape(loop):
    x = loop.input(np.ones(2), assign=True)
    loop.assign(x, x * np.ones((3, 2)))


def last_of_no_input(loop):
    loop.output(loop.input(1.0, assign=True) * 2.0, "last")


def output_inside(loop):
    x = loop.input(1.0, assign=True)
    loop.assign(x, loop.output(x) * 2.0)


def two_conditions(loop):
    loop.condition(loop.counter < 2)
    loop.condition(loop.counter < 3)


def other_builder(loop):
    x = loop.input(1.0, assign=True)
    with LoopBuilder() as inner:
        inner.assign(x, x)


def start_from_the_block(loop):
    loop.input(loop.input(1.0) * 2.0, assign=True)


def part_of_a_number(loop):
    loop.assign(loop.input(1, assign=True), 2.5)


def complex_for_float(loop):
    loop.assign(loop.input(1.0, assign=True), loop.counter * 1j)


@pytest.mark.parametrize(("block", "error", "match"), [
    (assigned_twice, RuntimeError, "input 0 is assigned twice"),
    (never_assigned, RuntimeError, "input 0 has assign=True, but is never assigned"),
    (without_condition, RuntimeError, "no condition"),
    (two_conditions, RuntimeError, "a second condition"),
    (another_dtype, TypeError, "input 0 must keep its dtype float32; it is assigned float64"),
    (part_of_a_number, TypeError, "input 0 must keep its dtype int64; it is assigned float64"),
    (complex_for_float, TypeError, "input 0 must keep its dtype float64; it is assigned complex128"),
    (start_from_the_block, RuntimeError, "takes a start that was computed inside the block"),
    (another_shape, ValueError, r"input 0 must keep its shape \(2,\); it is assigned \(3, 2\)"),
    (lambda loop: loop.assign(loop.input(1.0), 2.0), RuntimeError, "no input with assign=True"),
    (last_of_no_input, RuntimeError, r'output\(..., "last"\).*no input with assign=True'),
    (other_builder, RuntimeError, "takes an input of another loop"),
    (output_inside, RuntimeError, "an output has its value after the block"),
    (lambda loop: loop.output(loop.counter, "mean"), ValueError, "an output is one of"),
    (lambda loop: loop.condition(loop.counter * 2), TypeError, "condition must be one boolean"),
    (lambda loop: loop.input("text"), TypeError, "input takes arrays and numbers"),
])  # fmt: skip
def test_errors_name_the_part(block, error, match):
    def run():
        with LoopBuilder() as loop:
            block(loop)

    with pytest.raises(error, match=match):
        run()


@pytest.mark.parametrize("start", [1.5, np.float32(1.5), 1.5j, np.uint8(7)], ids=lambda x: type(x).__name__)
def test_a_python_number_takes_the_dtype_of_the_carry(start):
    for new, wanted in ((3, 3), (None, 1)):  # a number, and the counter
        with LoopBuilder() as loop:
            x = loop.input(start, assign=True)
            loop.assign(x, loop.counter if new is None else new)
            loop.condition(loop.counter < 2)
            last = loop.output(x)
        assert xf.to_numpy(last) == wanted
        assert last.dtype == np.asarray(start).dtype


@pytest.mark.parametrize(("most", "error", "match"), [
    (-1, ValueError, "max_steps must be at least 0, got -1"),
    (2.5, TypeError, "max_steps must be a number of rounds, got float: 2.5"),
    (True, TypeError, "max_steps must be a number of rounds, got bool: True"),
])  # fmt: skip
def test_max_steps_is_a_number_of_rounds(most, error, match):
    with suppress_type_checks(), pytest.raises(error, match=f"while_loop of .*{match}"):
        while_loop(lambda x: x < 5.0, lambda x: x + 1.0, 0.0, max_steps=most)
    with suppress_type_checks(), pytest.raises(error, match=f"LoopBuilder: {match}"):
        LoopBuilder(max_steps=most)


def test_a_block_that_has_ended():
    with LoopBuilder() as loop:
        x = loop.input(1.0, assign=True)
        loop.assign(x, x * 2.0)
        loop.condition(x < 3.0)

    def run():
        with LoopBuilder() as other:
            other.output(x, "sum")

    with pytest.raises(RuntimeError, match="takes a value of another loop"):
        run()
    with pytest.raises(RuntimeError, match="block has ended"):
        loop.output(x)
    with pytest.raises(ValueError, match='test must be "before" or "after"'):
        LoopBuilder(test="first")


def test_all_under_vmap_with_lanes_of_unequal_length():
    def f(x):
        with LoopBuilder() as loop:
            y = loop.input(x, assign=True)
            loop.assign(y, y * 2.0)
            loop.condition(y < 10.0)
            everything = loop.output(y, "all")
        return everything.sum()

    assert f(1.0) == 15.0
    assert xf.grad(f)(1.0) == 15.0
    for each in (f, xf.grad(f)):
        with pytest.raises(ValueError, match=r"stacks what every round gives \('all'\)"):
            xf.vmap(each)(np.array([1.0, 3.0]))


def test_max_steps_stops_though_the_condition_holds():
    f = lambda x: while_loop(lambda y: y > 0.0, lambda y: y * 2.0, x, max_steps=5)
    assert f(1.0) == 32.0
    assert xf.grad(f)(1.0) == 32.0
    np.testing.assert_array_equal(xf.vmap(f)(np.array([1.0, -1.0])), [32.0, -1.0])
    np.testing.assert_array_equal(xf.vmap(xf.grad(f))(np.array([1.0, -1.0])), [32.0, 1.0])


def test_a_finished_lane_never_leaves_its_domain():
    def f(x):  # the root would be of a negative number one round later
        return while_loop(lambda y: y > 1.0, lambda y: np.sqrt(y - 1.0), x)

    xs = np.array([1.2, 3.0, 9.0, 0.5])
    wanted = []
    for x in xs:
        y = x
        while y > 1.0:
            y = np.sqrt(y - 1.0)
        wanted.append(y)
    np.testing.assert_allclose(xf.vmap(f)(xs), wanted)
    one = [xf.grad(f)(x) for x in xs]
    np.testing.assert_allclose(xf.vmap(xf.grad(f))(xs), one)
    np.testing.assert_allclose(xf.grad(lambda xs: xf.vmap(f)(xs).sum())(xs), one)
    np.testing.assert_allclose(xf.vmap(xf.hessian(f))(xs), [xf.hessian(f)(x) for x in xs])

    def with_constant(x, c):
        return while_loop(lambda y: y > c, lambda y: np.sqrt(y - c), x)

    cs = np.array([1.0, 0.5, 2.0, 1.0])
    wanted = [xf.value_and_grad(with_constant, (0, 1))(x, c) for x, c in zip(xs, cs, strict=True)]
    values, (a, b) = xf.vmap(xf.value_and_grad(with_constant, (0, 1)))(xs, cs)
    np.testing.assert_allclose(values, [value for value, _ in wanted])
    np.testing.assert_allclose(a, [pair[0] for _, pair in wanted])
    np.testing.assert_allclose(b, [pair[1] for _, pair in wanted])
