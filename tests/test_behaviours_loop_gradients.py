"""Section 3 of behaviours.md, rows 71 to 80: what MegEngine's tests of the gradients of its loops check."""

from __future__ import annotations

import math

import attrs
import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from tests.loop_cases import Called, loops_of, saved_by
from xform.loops import fori_loop, scan, while_loop
from xform.programs.loop_outputs import Path, Total
from xform.programs.passes import optimised
from xform.testing import check_grads

# ------------------------------------------------------------------ 71 to 75


def test_71_only_states_whose_history_backward_needs_are_saved():
    w = np.array([0.5, 2.0])
    x = np.array([1.0, 3.0])
    assert saved_by(lambda x: fori_loop(0, 4, lambda i, x: x * w + 1.0, x).sum(), x) == []
    (path,) = saved_by(lambda x: fori_loop(0, 4, lambda i, x: np.sin(x), x).sum(), x)
    assert isinstance(path, Path)

    def two(x):  # y needs the history of x, and nothing that of y
        return fori_loop(0, 4, lambda i, c: (np.sin(c[0]), c[1] * 2.0 + c[0]), (x, x))[1].sum()

    assert len(saved_by(two, x)) == 1

    def stacked(x):  # the output is the history
        ys = scan(lambda x, _: (np.sin(x), x), x, length=4)[1]
        return ys.sum()

    (path,) = saved_by(stacked, x)
    assert isinstance(path, Path)
    assert saved_by(lambda v: fori_loop(0, 4, lambda i, c: (np.sin(c[0]), c[1] * v), (x, v))[1].sum(), w) != []
    assert len(saved_by(lambda v: fori_loop(0, 4, lambda i, c: (np.sin(c[0]), c[1] * v), (x, v))[1].sum(), w)) == 1


def test_72_inputs_without_a_gradient():
    def f(a, b, c, d):
        def body(i, carry):
            x, y = carry
            return x * a + xf.stop_gradient(b) * y, y * 0.9

        return (fori_loop(0, 3, body, (a, xf.stop_gradient(c)))[0] + 0.0 * d).sum()

    args = tuple(np.array([v, v + 0.1]) for v in (0.5, 0.7, 0.9, 1.1))
    found = xf.grad(f, (0, 1, 2, 3))(*args)
    for zero in found[1:]:
        np.testing.assert_array_equal(zero, np.zeros(2))
    with xf.Grad() as tape:
        a, b, c, d = (tape.attach(v) for v in args)
        out = f(a, b, c, d)
    check = xf.grad(lambda a: f(a, *args[1:]))(args[0])
    np.testing.assert_allclose(tape.gradient(out, [a])[0], check)
    check_grads(lambda a: f(a, *args[1:]), (args[0],), order=2)
    backward = loops_of(xf.make_program(xf.grad(f))(*args))[-1]
    assert len([each for each in backward.outputs if isinstance(each, Total)]) == 1  # that of the constant a
    assert backward.carries == 1  # y has no cotangent


def test_73_constants_have_no_gradient():
    table = np.array([1.0, 2.0, 4.0])
    assert fori_loop(0, 3, lambda i, x: x + table[1] * xnp.take(table, i), 0.0) == 14.0
    assert xf.grad(lambda x: fori_loop(0, 3, lambda i, y: y * xnp.take(table, i), x))(1.0) == 8.0


@pytest.mark.parametrize("index", ["slice", "array", "one"])
def test_74_reads_of_a_constant_scatter_into_one_buffer(index):
    size = 50

    def part(x, i):
        return {"slice": lambda: x[i : i + 2], "array": lambda: x[xnp.stack([i, i + 2])], "one": lambda: x[i]}[index]()

    def f(x):
        x = xf.array(x)  # a raw array takes no traced index
        return fori_loop(0, 20, lambda i, total: total + (part(x, i) ** 2).sum() * (i + 1.0), 0.0)

    x = np.linspace(0.5, 1.5, size)
    wanted = np.zeros(size)
    for i in range(20):
        for place in {"slice": (i, i + 1), "array": (i, i + 2), "one": (i,)}[index]:
            wanted[place] += 2 * x[place] * (i + 1.0)
    np.testing.assert_allclose(xf.grad(f)(x), wanted, rtol=1e-13)
    backward = loops_of(xf.make_program(xf.grad(f))(x))[-1]
    (total,) = [each for each in backward.outputs if isinstance(each, Total)]
    assert [part.index is not None for part in total.parts] == [True]
    assert all(out.aval.shape != (size,) for equation in backward.body.equations for out in equation.outputs)
    check_grads(f, (x,), order=2)


@attrs.frozen
class Effect(Called):
    """Has an effect: it must run once a round, whatever asks for its result."""

    impure = True


xf.linear(Effect, lambda op, t, x: t)


def test_75_a_side_effect_happens_once_a_round():
    op = Effect()

    def f(x):
        def body(i, y):
            xf.apply(op, y)
            return np.sin(xf.apply(op, y))

        return fori_loop(0, 4, body, x).sum()

    f(np.ones(2))
    assert len(op.runs) == 8
    op.runs.clear()
    wanted = xf.grad(lambda x: fori_loop(0, 4, lambda i, y: np.sin(y), x).sum())(np.ones(2))
    np.testing.assert_allclose(xf.grad(f)(np.ones(2)), wanted)
    assert len(op.runs) == 8


# ------------------------------------------------------------------ 76 to 80


@pytest.mark.parametrize("n", [0, 1, 5])
def test_76_identity_multiples_and_powers(n):
    x = np.array([0.5, 1.5])
    identity = xf.grad(lambda x: fori_loop(0, n, lambda i, y: y, x).sum())(x)
    np.testing.assert_array_equal(identity, np.ones(2))
    multiple = xf.grad(lambda x: fori_loop(0, n, lambda i, y: y + x, xnp.zeros_like(x)).sum())(x)
    np.testing.assert_array_equal(multiple, np.full(2, float(n)))
    by_state = xf.grad(lambda x: fori_loop(0, n, lambda i, y: y * x, xnp.ones_like(x)).sum())(x)
    by_carry = xf.grad(lambda x: fori_loop(0, n, lambda i, c: (c[0], c[1] * c[0]), (x, xnp.ones_like(x)))[1].sum())(x)
    np.testing.assert_allclose(by_state, n * x ** (n - 1) if n else np.zeros(2), rtol=1e-14)
    np.testing.assert_allclose(by_carry, by_state, rtol=1e-14)


def test_77_a_gradient_of_the_users_own_in_the_body():
    tripled = xf.custom_vjp(lambda x: x * 1.0)
    tripled.defvjp(lambda x: (x * 1.0, None), lambda residuals, t: (3.0 * t,))

    def f(x):
        return fori_loop(0, 2, lambda i, y: tripled(y) * 2.0, x).sum()

    x = np.array([1.0, 2.0])
    np.testing.assert_array_equal(f(x), (4 * x).sum())
    np.testing.assert_array_equal(xf.grad(f)(x), np.full(2, 36.0))
    np.testing.assert_array_equal(xf.trace(xf.grad(f))(x), np.full(2, 36.0))
    np.testing.assert_array_equal(xf.grad(xf.trace(f))(x), np.full(2, 36.0))
    np.testing.assert_array_equal(optimised(xf.make_program(xf.grad(f))(x)).eval(x), np.full(2, 36.0))


@attrs.frozen
class Draw(xf.Operator):
    """A new number at each run."""

    generator: np.random.Generator = attrs.field(eq=False, hash=False)
    seen: list[float] = attrs.field(factory=list, eq=False, hash=False)
    impure = True

    def infer(self, like):
        return xf.Aval((), np.dtype(float))

    def evaluate(self, xp, like):
        self.seen.append(self.generator.uniform(0.5, 1.5))
        return np.float64(self.seen[-1])


xf.vjp_rule.none(Draw, why="a draw does not vary")
xf.jvp_rule.none(Draw, why="a draw does not vary")


def test_78_backward_reuses_the_draws():
    op = Draw(np.random.default_rng(0))
    value, gradient = xf.value_and_grad(lambda x: fori_loop(0, 5, lambda i, y: np.sin(y) * xf.apply(op, y), x))(0.7)
    assert len(op.seen) == 5
    y, slope = 0.7, 1.0
    for draw in op.seen:
        y, slope = math.sin(y) * draw, slope * math.cos(y) * draw
    assert (value, gradient) == (pytest.approx(y, rel=1e-13), pytest.approx(slope, rel=1e-13))

    def with_key(x):
        def body(carry, i):
            key, y = carry
            key, other = xf.random.split(key)
            return (key, y * (1.0 + xf.random.uniform(other))), None

        return scan(body, (xf.random.key(3), x), length=4)[0][1]

    assert xf.grad(with_key)(2.0) == pytest.approx(with_key(2.0) / 2.0, rel=1e-13)


def taylor(x, first, power):
    """Sum of a series until all terms are small, at most 100: sin for first=1, power=2; exp for first=0, power=1."""

    def condition(carry):
        return xnp.abs(carry[1]).max() > 1e-14

    def body(carry):
        n, term, total = carry
        new = -term * x * x / ((n + 1.0) * (n + 2.0)) if power == 2 else term * x / (n + 1.0)
        return n + power, new, total + term

    start = x if first else xnp.ones_like(x)
    return while_loop(condition, body, (float(first), start, xnp.zeros_like(x)), max_steps=100)[2]


@pytest.mark.parametrize("size", [1, 23])
def test_79_trip_count_decided_by_data(size):
    x = np.linspace(-2.0, 2.5, size)
    np.testing.assert_allclose(taylor(x, 1, 2), np.sin(x), atol=1e-13)
    np.testing.assert_allclose(xf.grad(lambda x: taylor(x, 1, 2).sum())(x), np.cos(x), atol=1e-12)
    np.testing.assert_allclose(xf.grad(lambda x: taylor(x, 0, 1).sum())(x), np.exp(x), atol=1e-11)
    np.testing.assert_allclose(xf.vmap(xf.grad(lambda x: taylor(x, 1, 2)))(x), np.cos(x), atol=1e-12)


@pytest.mark.parametrize("start", [(0.8, 0.5), (0.0, 1.2), (1.7, 0.0)])
def test_80_nested_loops_coupled_in_two_variables(start):
    def inner(x, y):
        def step(c):
            return c[0] + 0.4 + 0.1 * x, c[1] * 0.9 + c[0] * x

        return while_loop(lambda c: c[0] < y + 2.0, step, (x * 0.5, y))

    def looped(x, y):
        def body(carry):
            x, y = carry
            a, b = inner(x, y)
            return x + 0.3 * a, y + 0.1 * xnp.sin(b)

        x, y = while_loop(lambda c: c[0] < 4.0, body, (x, y))
        return x * y + y * y

    def plain(x, y):
        value = lambda v: float(xf.stop_gradient(v))
        while value(x) < 4.0:
            a, b = x * 0.5, y
            while value(a) < value(y) + 2.0:
                a, b = a + 0.4 + 0.1 * x, b * 0.9 + a * x
            x, y = x + 0.3 * a, y + 0.1 * xnp.sin(b)
        return x * y + y * y

    x, y = (np.float64(v) for v in start)
    assert looped(x, y) == pytest.approx(plain(x, y), rel=1e-13)
    found, wanted = xf.grad(looped, (0, 1))(x, y), xf.grad(plain, (0, 1))(x, y)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    sine = xf.grad(lambda x: fori_loop(0, 2, lambda i, y: taylor(y, 1, 2), x).sum())(np.array([0.0, 0.7]))
    np.testing.assert_allclose(sine, np.cos(np.sin([0.0, 0.7])) * np.cos([0.0, 0.7]), rtol=1e-11)
