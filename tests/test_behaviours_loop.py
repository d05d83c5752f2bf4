"""Section 3 of behaviours.md, rows 55 to 70: what MegEngine's tests of its loops check."""

from __future__ import annotations

import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from tests.loop_cases import Called, loops_of
from xform.loops import LoopBuilder, fori_loop, scan, while_loop
from xform.programs.passes import optimised
from xform.testing import check_grads


def rounds_of(condition, x0=0, add=1, test="after"):
    with LoopBuilder(test=test) as loop:
        x = loop.input(x0, assign=True)
        loop.assign(x, x + add)
        loop.condition(condition(x))
        last, counters = loop.output(x, "last"), loop.output(loop.counter, "all")
    return last, np.asarray(counters).tolist()


def powers(x0, count):
    """x0 ** (count + 1), with x0 as a state and as a constant."""
    with LoopBuilder(test="after") as loop:
        x, c = loop.input(x0, assign=True), loop.input(x0)
        loop.assign(x, x * c)
        loop.condition(loop.counter < count - 1)
        return loop.output(x, "last")


# ------------------------------------------------------------------ 55 to 62


def test_55_do_while_runs_once_before_the_condition_counts():
    last, counters = rounds_of(lambda x: x < 3)
    assert (int(last), counters) == (4, [0, 1, 2, 3])
    for condition in (lambda x: x < -5, lambda x: x < 0.0, lambda x: x * -1.5 > 7.0):
        last, counters = rounds_of(condition)
        assert (int(last), counters) == (1, [0])
    last, counters = rounds_of(lambda x: x > -2.5, 0.5, -1.0)
    assert (float(last), counters) == (-3.5, [0, 1, 2, 3])


def test_55_test_first_may_run_no_round_at_all():
    last, counters = rounds_of(lambda x: x < 3, test="before")
    assert (int(last), counters) == (3, [0, 1, 2])
    last, counters = rounds_of(lambda x: x < -1, test="before")
    assert (int(last), counters) == (0, [])
    assert while_loop(lambda x: x < 0.0, lambda x: x * 2.0, 3.0) == 3.0
    assert xf.grad(lambda x: while_loop(lambda y: y < 0.0, lambda y: y * 2.0, x * x))(3.0) == 6.0


def test_56_same_outer_value_as_state_and_as_constant():
    x = np.array([0.5, -1.0, 2.0])
    np.testing.assert_allclose(xf.grad(lambda x: powers(x, 3).sum())(x), 4 * x**3, rtol=1e-14)


def test_57_fed_by_an_expression_and_optimised():
    x = np.array([0.5, -1.0, 2.0])
    gradient = xf.grad(lambda x: powers(2.0 * x, 3).sum())
    np.testing.assert_allclose(gradient(x), 64 * x**3, rtol=1e-14)
    program = xf.make_program(gradient)(x)
    for level in (0, 1, 2):
        np.testing.assert_allclose(optimised(program, level).eval(x), 64 * x**3, rtol=1e-14)
    np.testing.assert_allclose(xf.trace(gradient)(x), 64 * x**3, rtol=1e-14)


@pytest.mark.parametrize("shape", [(), (3,), (2, 4)])
def test_58_one_outer_value_feeds_three_states_and_one_constant(shape):
    def f(v):
        with LoopBuilder() as loop:
            a, b, c = (loop.input(v, assign=True) for _ in range(3))
            k = loop.input(v)
            loop.assign(a, a + b * k)
            loop.assign(b, b * 0.5 + c)
            loop.assign(c, xnp.sin(c) * k)
            loop.condition(loop.counter < 4)
            return loop.output(a * c, "sum")

    v = np.linspace(0.2, 0.9, int(np.prod(shape))).reshape(shape)
    check_grads(f, (v,), order=2)


def test_59_trip_count_at_run_time_without_another_recording():
    runs = []

    def body(i, x):
        runs.append(1)
        return x * 1.1

    f = xf.trace(xf.value_and_grad(lambda x, n: (fori_loop(0, n, body, x) ** 2).sum()))
    x = np.array([0.5, 2.0])
    for n in range(1, 51):
        value, gradient = f(x, np.int64(n))
        np.testing.assert_allclose(value, (x**2).sum() * 1.1 ** (2 * n), rtol=1e-12)
        np.testing.assert_allclose(gradient, 2 * x * 1.1 ** (2 * n), rtol=1e-12)
        np.testing.assert_allclose(fori_loop(0, n, body, x), x * 1.1**n, rtol=1e-12)
    assert len(runs) <= 3
    program = xf.make_program(xf.grad(lambda x: fori_loop(0, 3, body, x).sum()))(xf.Aval((None,), np.dtype(float)))
    for size in (1, 4):
        np.testing.assert_allclose(program(np.ones(size)), np.full(size, 1.1**3), rtol=1e-14)


def test_60_counter_as_output_and_as_factor():
    with LoopBuilder() as loop:
        loop.condition(loop.counter < 4)
        last, everything = loop.output(loop.counter, "last"), loop.output(loop.counter, "all")
    assert int(last) == 3
    assert np.asarray(everything).dtype == np.int64

    def f(x):
        def body(i, carry):
            total, power = carry
            return total + i * power, power * x

        return fori_loop(0, 6, body, (0.0, 1.0))[0]

    assert f(0.7) == pytest.approx(sum(i * 0.7**i for i in range(6)), rel=1e-14)
    assert xf.grad(f)(0.7) == pytest.approx(sum(i * i * 0.7 ** (i - 1) for i in range(6)), rel=1e-14)


@pytest.mark.parametrize("size", [12, 24])
def test_61_a_constant_entered_twice_is_one_and_states_stay_apart(size):
    def f(v):
        with LoopBuilder() as loop:
            c, d = loop.input(v), loop.input(v)
            x, y = loop.input(v, assign=True), loop.input(v, assign=True)
            assert c is d
            assert x is not y
            loop.assign(x, x * c)
            loop.assign(y, y + d)
            loop.condition(loop.counter < 3)
            a, b = loop.output(x, "last"), loop.output(y, "last")
        return (a * b).sum()

    v = np.linspace(-1.0, 1.5, size)
    (loop,) = loops_of(xf.make_program(f)(v))
    assert (loop.carries, loop.constants) == (2, 1)
    assert float(f(v)) == pytest.approx((4 * v**5).sum(), rel=1e-13)
    np.testing.assert_allclose(xf.grad(f)(v), 20 * v**4, rtol=1e-13)


def test_62_an_output_asked_for_twice_is_computed_once():
    def f(v):
        with LoopBuilder() as loop:
            x = loop.input(v, assign=True)
            loop.assign(x, x * x)
            loop.condition(loop.counter < 2)
            first, second = loop.output(x, "last"), loop.output(x, "last")
        return first * 2.0 + second * 3.0

    (loop,) = loops_of(xf.make_program(f)(1.5))
    assert len(loop.outputs) == 1
    assert xf.grad(f)(1.5) == pytest.approx(5 * 4 * 1.5**3, rel=1e-14)


# ------------------------------------------------------------------ 63 to 70


@pytest.mark.parametrize("rounds", [0, 1, 2, 5])
def test_63_assignment_is_simultaneous(rounds):
    def f(a, b):
        with LoopBuilder() as loop:
            x, y = loop.input(a, assign=True), loop.input(b, assign=True)
            loop.assign(x, y)
            loop.assign(y, x)
            loop.condition(loop.counter < rounds)
            first, second = loop.output(x, "last"), loop.output(y, "last")
        return first, second

    a, b = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    wanted = (b, a) if rounds % 2 else (a, b)
    found = f(a, b)
    np.testing.assert_array_equal(np.asarray(found[0]), wanted[0])
    np.testing.assert_array_equal(np.asarray(found[1]), wanted[1])
    gradient = xf.grad(lambda a, b: (f(a, b)[0] * np.array([5.0, 7.0])).sum(), (0, 1))(a, b)
    np.testing.assert_array_equal(gradient[rounds % 2], [5.0, 7.0])
    np.testing.assert_array_equal(gradient[1 - rounds % 2], [0.0, 0.0])


def test_64_coupled_linear_recurrence():
    def f(a, b):
        x, y = fori_loop(0, 5, lambda i, c: (0.5 * c[0] + 0.2 * c[1], c[0] - 0.3 * c[1]), (a, b))
        return (x * y).sum()

    check_grads(f, (np.array([0.3, 1.0]), np.array([-0.4, 0.8])), order=2)


@pytest.mark.parametrize("kind", ["last", "all", "sum"])
def test_65_outputs_of_each_kind(kind):
    def f(v, w):
        with LoopBuilder() as loop:
            x = loop.input(v, assign=True)
            new = x * w
            loop.assign(x, new)
            loop.condition(loop.counter < 3)
            first = loop.output(x, kind)
            second = loop.output(new, "sum") if kind == "last" else loop.output(new, kind)
        return first, second

    v, w = np.array([1.0, 2.0]), np.array([3.0, 0.5])
    first, second = map(np.asarray, f(v, w))
    rows = np.stack([v * w**k for k in range(4)])
    sums = rows[:3].sum(0), rows[1:].sum(0)
    wanted = {"last": (rows[3], sums[1]), "all": (rows[:3], rows[1:]), "sum": sums}
    np.testing.assert_allclose(first, wanted[kind][0], rtol=1e-14)
    np.testing.assert_allclose(second, wanted[kind][1], rtol=1e-14)
    for part in (0, 1):
        check_grads(lambda v, w, part=part: f(v, w)[part], (v, w), order=2)


@pytest.mark.parametrize("dynamic_input", [False, True])
@pytest.mark.parametrize("dynamic_counter", [False, True])
def test_66_slices_of_the_state_by_the_counter(dynamic_input, dynamic_counter):
    def f(x, n):
        def body(i, carry):
            x, total = carry
            part = x[i : i + 2]
            return x * 1.1 + 0.5 * i, total + (part * (i + 0.25)).sum()

        return fori_loop(0, n if dynamic_counter else 3, body, (x, 0.0))[1]

    def plain(x):
        total = 0.0
        for i in range(3):
            x, total = x * 1.1 + 0.5 * i, total + (x[i : i + 2] * (i + 0.25)).sum()
        return total

    def gradient(x):
        if not dynamic_input:
            return xf.value_and_grad(f)(x, np.int64(3))
        aval = xf.Aval((None, *x.shape[1:]), x.dtype)
        return xf.make_program(xf.value_and_grad(f))(aval, np.int64(3))(x, np.int64(3))

    for shape in [(4,), (5,), (4, 2), (6, 1, 3)]:
        x = np.linspace(-1.0, 1.0, int(np.prod(shape))).reshape(shape)
        value, found = gradient(x)
        wanted, slope = xf.value_and_grad(plain)(x)
        np.testing.assert_allclose(value, wanted, rtol=1e-13)
        np.testing.assert_allclose(found, slope, rtol=1e-13)


def test_67_an_output_that_nobody_uses_is_not_computed():
    op = Called()

    def f(v):
        with LoopBuilder() as loop:
            x = loop.input(v, assign=True)
            y = loop.input(v, assign=True)
            loop.assign(x, x * 1.5)
            loop.assign(y, xf.apply(op, y) * x)
            loop.condition(loop.counter < 3)
            xf.apply(op, x)
            last = loop.output(x, "last")
        return last.sum()

    np.testing.assert_allclose(xf.grad(f)(np.ones(2)), np.full(2, 1.5**3))
    assert op.runs == []

    def used_forward_alone(v):
        return scan(lambda x, _: (x * 1.5, xf.apply(op, x)), v, length=3)[0].sum()

    gradient = xf.trace(xf.grad(used_forward_alone))
    np.testing.assert_allclose(gradient(np.ones(2)), np.full(2, 1.5**3))
    op.runs.clear()
    xf.grad(used_forward_alone)(np.ones(2))
    assert len(op.runs) == 3  # forward, where a tape cannot know yet; not backward
    op.runs.clear()
    program = optimised(xf.make_program(xf.grad(used_forward_alone))(np.ones(2)))
    np.testing.assert_allclose(program.eval(np.ones(2)), np.full(2, 1.5**3))
    assert op.runs == []  # the whole program is known


def test_68_gradient_wanted_and_value_not():
    assert xf.grad(lambda x: fori_loop(0, 3, lambda i, y: y * x, x))(2.0) == 32.0


def test_69_stacked_shapes_are_known_ahead_where_they_can_be():
    def f(start, step, n):
        carry, ys = scan(lambda x, _: (x + step, x), start, length=n)
        return carry, ys

    shape = xf.eval_shape(lambda start, step: f(start, step, 5)[1], np.zeros((2, 3)), 0.1)
    assert shape.shape == (5, 2, 3)
    for n in (0, 1, 4):
        start = np.full((2, 3), 0.5)
        gradient = xf.grad(lambda start, step: (f(start, step, n)[1] ** 2).sum(), (0, 1))(start, 0.1)  # noqa: B023
        rows = np.stack([start + 0.1 * k for k in range(n)]) if n else np.zeros((0, 2, 3))
        np.testing.assert_allclose(gradient[0], 2 * rows.sum(0), rtol=1e-13)
        np.testing.assert_allclose(gradient[1], sum(2 * k * row.sum() for k, row in enumerate(rows)), rtol=1e-13)

    def by_shape(x):
        return fori_loop(0, x.shape[0] + 1, lambda i, y: y * 2.0, x)

    np.testing.assert_array_equal(by_shape(np.ones(3)), np.full(3, 16.0))


def test_70_integer_state():
    def f(x):
        with LoopBuilder() as loop:
            n = loop.input(np.int32(3), assign=True)
            loop.assign(n, (n * x * 1.5).astype(np.int32))
            loop.condition(loop.counter < 3)
            return loop.output(n, "last")

    assert np.asarray(f(1.2)).dtype == np.int32
    n = 3
    for _ in range(3):
        n = int(n * 1.2 * 1.5)
    assert int(f(1.2)) == n
    assert xf.grad(lambda x: f(x) * 1.0 + x * 2.0)(1.2) == 2.0
    assert xf.jvp(lambda x: f(x) * 1.0, (1.2,), (1.0,))[1] == 0.0
