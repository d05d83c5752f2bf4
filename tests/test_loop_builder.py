"""What `LoopBuilder` refuses, and what loops do at the edges."""

from __future__ import annotations

import numpy as np
import pytest

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


@pytest.mark.parametrize(("block", "error", "match"), [
    (assigned_twice, RuntimeError, "input 0 is assigned twice"),
    (never_assigned, RuntimeError, "input 0 has assign=True, but is never assigned"),
    (without_condition, RuntimeError, "no condition"),
    (two_conditions, RuntimeError, "a second condition"),
    (another_dtype, TypeError, "input 0 must keep its dtype float32; it is assigned float64"),
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
