"""`xf.cond` and `xf.switch` in batches, whose lanes take different branches."""

from __future__ import annotations

import attrs
import numpy as np

import xform as xf
import xform.numpy as xnp
from tests.test_branches import root_or_zero, three
from xform import cond


def test_lanes_take_different_branches():
    xs = np.array([[1.0, 4.0], [-1.0, -4.0], [9.0, 1.0]])
    with np.errstate(all="raise"):
        for f in (root_or_zero, xf.trace(root_or_zero)):
            np.testing.assert_allclose(xf.vmap(f)(xs), [3.0, 0.0, 4.0])
            want = np.where(xs > 0.0, 0.5 / np.sqrt(np.abs(xs)), 0.0)
            np.testing.assert_allclose(xf.vmap(xf.grad(f))(xs), want)
            np.testing.assert_allclose(xf.grad(lambda xs, f=f: xf.vmap(f)(xs).sum())(xs), want)
            np.testing.assert_allclose(xf.jvp(xf.vmap(f), (xs,), (xs,))[1], (want * xs).sum(1))
            second = np.where(xs > 0.0, -0.25 * np.abs(xs) ** -1.5, 0.0)
            np.testing.assert_allclose(xf.vmap(xf.hessian(f))(xs), second[:, :, None] * np.eye(2), atol=1e-12)
            np.testing.assert_allclose(xf.vmap(f, in_axes=1)(xs.T), [3.0, 0.0, 4.0])


def test_lanes_of_a_batch_in_a_batch():
    xs = np.array([[1.0, -1.0, 4.0], [-4.0, -9.0, -1.0]])
    f = lambda x: cond(x > 0.0, xnp.sqrt, lambda x: 0.0 * x, x)
    with np.errstate(all="raise"):
        np.testing.assert_allclose(xf.vmap(xf.vmap(f))(xs), [[1.0, 0.0, 2.0], [0.0, 0.0, 0.0]])
        want = np.where(xs > 0.0, 0.5 / np.sqrt(np.abs(xs)), 0.0)
        np.testing.assert_allclose(xf.vmap(xf.vmap(xf.grad(f)))(xs), want)
        np.testing.assert_allclose(xf.vmap(xf.grad(lambda x: xf.vmap(f)(x).sum()))(xs), want)
        np.testing.assert_allclose(xf.vmap(xf.vmap(f), in_axes=(1,), out_axes=1)(xs), xf.vmap(xf.vmap(f))(xs))


@attrs.frozen
class Tallied(xf.Operator):
    """Doubles, and counts how often it ran."""

    runs: list = attrs.field(factory=list, eq=False, hash=False)

    def infer(self, x):
        return x

    def evaluate(self, xp, x):
        self.runs.append(x)
        return x * 2.0


@xf.batch_rule(Tallied)
def tallied_batch(op, size, values, axes):
    return xf.apply(op, *values), axes[0]


xf.linear(Tallied, lambda op, t, x: t * 2.0)


def test_a_branch_that_no_lane_takes_is_not_run():
    op = Tallied()
    f = lambda p, x: cond(p, lambda x: xf.apply(op, x), lambda x: x, x)
    xs = np.array([1.0, 2.0])
    for g in (xf.vmap(f), xf.trace(xf.vmap(f)), xf.vmap(xf.trace(f))):
        np.testing.assert_array_equal(g(np.array([False, False]), xs), xs)
        np.testing.assert_array_equal(xf.grad(lambda xs, g=g: g(np.zeros(2, bool), xs).sum())(xs), [1.0, 1.0])
        assert op.runs == []
        np.testing.assert_array_equal(g(np.array([True, False]), xs), [2.0, 2.0])
        np.testing.assert_array_equal(op.runs.pop(), [1.0, 1.0])  # the other lane was shown this one's operand
        assert op.runs == []


def test_where_all_lanes_take_one_branch_it_alone_is_in_the_program():
    f = lambda p, x: cond(p, lambda x: xnp.sin(x), lambda x: x, x)
    program = xf.make_program(xf.vmap(f, in_axes=(None, 0)))(np.array(True), np.ones(3))
    assert [type(e.op).__name__ for e in program.equations] == ["Switch"]
    for p in (True, False):
        want = np.sin(np.ones(3)) if p else np.ones(3)
        np.testing.assert_array_equal(xf.vmap(lambda x, p=p: f(np.array(p), x))(np.ones(3)), want)
        np.testing.assert_array_equal(program(np.array(p), np.ones(3)), want)


def test_only_the_predicate_differs_in_lanes():
    f = lambda p, x: cond(p, lambda x: x * x, lambda x: -x, x)
    ps = np.array([True, False, True])
    for g in (f, xf.trace(f)):
        np.testing.assert_array_equal(xf.vmap(g, in_axes=(0, None))(ps, 3.0), [9.0, -3.0, 9.0])
        assert xf.grad(lambda x, g=g: xf.vmap(g, in_axes=(0, None))(ps, x).sum())(3.0) == 11.0


def test_an_output_that_no_branch_changes_stays_the_same_in_all_lanes():
    f = lambda p, x, c: cond(p, lambda x: (x, c * 2.0), lambda x: (-x, c), x)
    p = np.array(False)
    out = xf.vmap(lambda x: xf.trace(f)(p, x, 5.0), out_axes=(0, None))(np.ones(2))
    np.testing.assert_array_equal(out[0], [-1.0, -1.0])
    assert out[1] == 5.0


def test_a_batch_of_no_lane():
    f = xf.vmap(lambda x: cond(x > 0.0, xnp.sqrt, lambda x: x * 0.0, x))
    assert f(np.zeros(0)).shape == (0,)
    assert xf.grad(lambda xs: f(xs).sum())(np.zeros(0)).shape == (0,)


def test_a_switch_of_batched_integers():
    index, xs = np.array([-3, 0, 1, 2, 7]), np.linspace(0.1, 0.9, 5)
    want = [np.sin(xs[0]), np.sin(xs[1]), xs[2] ** 2, np.exp(xs[3]), np.exp(xs[4])]
    slopes = [np.cos(xs[0]), np.cos(xs[1]), 2.0 * xs[2], np.exp(xs[3]), np.exp(xs[4])]
    for dtype in ("int64", "int8", "uint8"):
        given = np.clip(index, 0, 9).astype(dtype) if dtype == "uint8" else index.astype(dtype)
        np.testing.assert_allclose(xf.vmap(three)(given, xs), want)
        np.testing.assert_allclose(xf.vmap(xf.grad(three, 1))(given, xs), slopes)
