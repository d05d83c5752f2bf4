"""`xf.cond` and `xf.switch`: one of several functions, which runs, its values and derivatives."""

from __future__ import annotations

import gc
import itertools
import math
import weakref

import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from xform import cond, switch
from xform.testing import check_grads

X = np.array([0.5, 1.5])


def root_or_zero(x):
    """sqrt where the sum is positive, else 0: the untaken branch has no value there."""
    return xnp.sum(cond(xnp.sum(x) > 0.0, xnp.sqrt, lambda x: x * 0.0, x))


def three(i, x):
    return switch(i, [xnp.sin, lambda x: x * x, xnp.exp], x)


# ------------------------------------------------------------------ behaviours of JAX


@pytest.mark.parametrize("wrap", [lambda f: f, xf.trace], ids=["eager", "traced"])
def test_row_26_gradient_of_the_branch_taken_operands_and_closed_over_values(wrap):
    def f(x, w):
        return cond(x > 0.0, lambda y: w * y * y, lambda y: w * w + y, x)

    both = wrap(xf.value_and_grad(f, (0, 1)))
    for _ in range(2):
        assert both(3.0, 2.0) == (18.0, (12.0, 9.0))
        assert both(-3.0, 2.0) == (1.0, (1.0, 4.0))
    g = wrap(f)
    assert xf.grad(g, (0, 1))(3.0, 2.0) == (12.0, 9.0)
    assert xf.grad(g, (0, 1))(-3.0, 2.0) == (1.0, 4.0)


@pytest.mark.parametrize("wrap", [lambda f: f, xf.trace], ids=["eager", "traced"])
def test_row_26_constant_branch(wrap):
    f = wrap(lambda x: cond(x > 0.0, lambda x: 7.0, lambda x: x * x, x))
    assert f(1.0) == 7.0
    assert f(-3.0) == 9.0
    assert xf.grad(f)(1.0) == 0.0
    assert xf.grad(f)(-3.0) == -6.0
    assert xf.jvp(f, (1.0,), (1.0,)) == (7.0, 0.0)
    assert xf.jvp(f, (-3.0,), (1.0,)) == (9.0, -6.0)


@pytest.mark.parametrize("wrap", [lambda f: f, xf.trace], ids=["eager", "traced"])
def test_row_26_only_what_the_branches_close_over_varies(wrap):
    f = wrap(lambda w: cond(np.bool_(True), lambda: w * 3.0, lambda: w))
    assert f(2.0) == 6.0
    assert xf.grad(f)(2.0) == 3.0
    g = wrap(lambda w, p: cond(p, lambda: w * 3.0, lambda: w))
    assert xf.grad(g)(2.0, np.array(False)) == 1.0
    assert xf.grad(g)(2.0, np.array(True)) == 3.0


@pytest.mark.parametrize("index", [-7, -1, 0, 1, 2, 3, 99])
def test_row_28_an_index_out_of_range_clamps(index):
    want = [math.sin(0.5), 0.25, math.exp(0.5)][min(max(index, 0), 2)]
    for given in (index, np.int32(index), np.array(index), xf.array(index)):
        np.testing.assert_allclose(float(three(given, 0.5)), want)
    np.testing.assert_allclose(float(xf.trace(three)(np.array(index), 0.5)), want)
    np.testing.assert_allclose(xf.vmap(three)(np.full(2, index), np.full(2, 0.5)), want)


@pytest.mark.parametrize("index", [0, 5, np.array(5)])
def test_row_28_one_branch_only(index):
    f = lambda x: switch(index, [xnp.sin], x)
    assert f(0.5) == np.sin(0.5)
    assert xf.grad(f)(0.5) == np.cos(0.5)
    one = lambda i, x: switch(i, [xnp.sin], x)
    assert xf.grad(xf.trace(one), 1)(np.array(index), 0.5) == np.cos(0.5)
    np.testing.assert_allclose(xf.vmap(one)(np.array([0, 4]), np.array([0.5, 1.0])), np.sin([0.5, 1.0]))


@pytest.mark.parametrize("run", [
    lambda x, w: cond(np.bool_(True), lambda x: x * w, lambda x: x, x),
    lambda x, w: xf.grad(lambda x: cond(x[0] > 0.0, lambda x: x * w, lambda x: x, x).sum())(x),
    lambda x, w: xf.trace(lambda x: cond(x[0] > 0.0, lambda x: x * 2.0, lambda x: x, x))(x),
    lambda x, w: xf.vmap(lambda x: cond(x > 0.0, lambda x: x * 2.0, lambda x: x, x))(x),
])  # fmt: skip
def test_row_29_no_leak_of_arrays_from_a_finished_cond(run):
    def refs():
        x, w = np.ones(3), np.ones(3)
        out = run(x, w)
        return [weakref.ref(each) for each in (x, w, out)]

    found = refs()
    gc.collect()
    assert [ref() for ref in found] == [None] * 3


# ------------------------------------------------------------------ which function runs


def test_a_python_bool_calls_the_function_and_no_more():
    calls = []

    def never(x):
        raise AssertionError("not called")

    def taken(x):
        calls.append(type(x))
        return {"a": x, "text": "kept as it is"}

    assert cond(True, taken, never, 1.0) == {"a": 1.0, "text": "kept as it is"}
    assert cond(False, never, taken, 2.0)["a"] == 2.0
    assert switch(1, [never, taken, never], 3.0)["a"] == 3.0
    assert calls == [float] * 3


@pytest.mark.parametrize("pred", [np.bool_(True), np.array(True), xf.array(True), 1, 2.5, np.int8(3), xf.array(0.5)])
def test_a_number_holds_unless_it_is_zero(pred):
    f = lambda p: cond(p, lambda: 1.0, lambda: 2.0)
    assert float(f(pred)) == 1.0
    assert float(f(pred * 0)) == 2.0
    if not isinstance(pred, int | float):
        assert float(xf.trace(f)(pred)) == 1.0
        assert float(xf.trace(f)(pred * 0)) == 2.0


def test_each_function_runs_once_when_it_is_recorded():
    calls = []

    def f(x):
        calls.append("f")
        return x + 1.0

    def h(x):
        calls.append("h")
        return x - 1.0

    traced = xf.trace(lambda x: cond(x > 0.0, f, h, x))
    assert [float(traced(x)) for x in (1.0, -1.0, 2.0)] == [2.0, -2.0, 3.0]
    assert sorted(calls) == ["f", "h"]


def test_raw_arguments_give_raw_results_and_values_give_values():
    f = lambda x: cond(np.bool_(True), lambda x: (x, x * 2.0), lambda x: (x, x), x)
    assert all(type(each) is np.ndarray for each in f(X))
    assert all(type(each) is xf.Array for each in f(xf.array(X)))
    assert type(cond(xf.array(True), lambda: np.ones(2), lambda: np.zeros(2))) is xf.Array


# ------------------------------------------------------------------ values and derivatives


PREDICATES = {
    "eager": lambda f: f,
    "traced": xf.trace,
    "program": lambda f: lambda *args: xf.make_program(f)(*args)(*args),
}


@pytest.mark.parametrize("wrap", PREDICATES.values(), ids=PREDICATES)
@pytest.mark.parametrize("index", [0, 1, 2])
def test_derivatives_of_all_orders_in_both_modes(wrap, index):
    i = np.array(index)
    f = wrap(lambda x: three(i, x))
    g = wrap(lambda x, i: three(i, x))
    plain = [xnp.sin, lambda x: x * x, xnp.exp][index]
    derived = {"rev": xf.grad, "fwd": lambda f: lambda x: xf.jvp(f, (x,), (1.0,))[1]}
    for modes in itertools.product(derived, repeat=3):
        made, want, with_index = f, plain, lambda x: g(x, i)
        for mode in modes:
            made, want, with_index = derived[mode](made), derived[mode](want), derived[mode](with_index)
            np.testing.assert_allclose(made(0.7), want(0.7), rtol=1e-12)
            np.testing.assert_allclose(with_index(0.7), want(0.7), rtol=1e-12)


@pytest.mark.parametrize("wrap", PREDICATES.values(), ids=PREDICATES)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_checked_gradients(wrap, sign):
    w = np.array([[0.3, -0.4], [0.2, 0.9]])

    def f(x, w):
        return cond(xnp.sum(x) > 0.0, lambda x: xnp.tanh(w @ x), lambda x: x * xnp.sum(w * w), x)

    check_grads(wrap(f), (sign * X, w), order=2)


def test_only_the_branch_taken_is_computed():
    with np.errstate(all="raise"):
        for f in (root_or_zero, xf.trace(root_or_zero)):
            for _ in range(20):  # compiled after some runs
                assert f(-X) == 0.0
                np.testing.assert_array_equal(xf.grad(f)(-X), [0.0, 0.0])
                np.testing.assert_array_equal(xf.hessian(f)(-X), np.zeros((2, 2)))
                np.testing.assert_allclose(xf.grad(f)(X), 0.5 / np.sqrt(X))


def test_cotangents_of_containers_and_of_some_outputs():
    def f(p, x):
        out = cond(p, lambda x: {"a": x["u"] * x["v"], "n": 3}, lambda x: {"a": x["u"] + 1.0, "n": 4}, x)
        return out["a"]

    x = {"u": 2.0, "v": 5.0}
    for g in (f, xf.trace(f)):
        assert xf.grad(g, 1)(np.array(True), x) == {"u": 5.0, "v": 2.0}
        assert xf.grad(g, 1)(np.array(False), x) == {"u": 1.0, "v": 0.0}


def test_one_of_two_outputs_has_a_cotangent():
    two = xf.trace(lambda p, x: cond(p, lambda x: (x * x, xnp.sin(x)), lambda x: (x, xnp.exp(x)), x))
    for number, want in ((0, 6.0), (1, math.cos(3.0))):
        assert xf.grad(lambda x, n=number: two(np.array(True), x)[n])(3.0) == want
    _, pull = xf.vjp(lambda x: two(np.array(False), x), 3.0)
    np.testing.assert_allclose(pull((2.0, 0.5))[0], 2.0 + 0.5 * math.exp(3.0))


def test_linearize_computes_the_primal_value_once():
    f = xf.trace(lambda x: cond(x > 0.0, lambda x: x * x, lambda x: -x, x))
    for x, want, slope in ((3.0, 9.0, 6.0), (-3.0, 3.0, -1.0)):
        out, push = xf.linearize(f, x)
        assert (out, push(1.0), push(2.0)) == (want, slope, 2.0 * slope)
    p = xf.trace(lambda p, x: cond(p, lambda x: x * x, lambda x: -x, x))
    out, push = xf.linearize(lambda x: p(np.array(True), x), 3.0)
    assert (out, push(1.0)) == (9.0, 6.0)


def test_nested_conds():
    def f(x):
        return cond(
            x > 0.0,
            lambda x: cond(x > 1.0, lambda x: x * x, lambda x: x, x),
            lambda x: switch(xnp.floor(-x).astype(int), [lambda x: 2.0 * x, xnp.exp], x),
            x,
        )

    want = {2.0: (4.0, 4.0), 0.5: (0.5, 1.0), -0.5: (-1.0, 2.0), -1.5: (math.exp(-1.5),) * 2}
    xs = np.array(list(want))
    for g in (f, xf.trace(f)):
        for x, (value, slope) in want.items():
            np.testing.assert_allclose((g(x), xf.grad(g)(x), xf.jvp(g, (x,), (1.0,))[1]), (value, slope, slope))
        np.testing.assert_allclose(xf.vmap(g)(xs), [value for value, _ in want.values()])
        np.testing.assert_allclose(xf.vmap(xf.grad(g))(xs), [slope for _, slope in want.values()])
        np.testing.assert_allclose(xf.vmap(xf.grad(xf.grad(g)))(xs), [2.0, 0.0, 0.0, math.exp(-1.5)])


def test_a_derivative_inside_of_a_branch():
    f = lambda x: cond(x > 0.0, xf.grad(lambda x: x**3), lambda x: x, x)
    for g in (f, xf.trace(f)):
        assert g(2.0) == 12.0
        assert xf.grad(g)(2.0) == 12.0
        assert xf.grad(xf.grad(g))(2.0) == 6.0
        np.testing.assert_allclose(xf.vmap(g)(np.array([2.0, -1.0])), [12.0, -1.0])


def test_values_of_two_tapes_and_of_a_batch_are_closed_over():
    def f(x, v):
        def inner(y):
            return cond(y > 0.0, lambda: x * y * v, lambda: x + y + v)

        return xf.grad(inner)(x * 2.0)

    # inner = x y v: its derivative at y = 2 x is x v
    assert xf.grad(f)(3.0, 5.0) == 5.0
    np.testing.assert_allclose(xf.vmap(xf.grad(f, 1))(np.array([3.0, -3.0]), np.ones(2)), [3.0, 0.0])
    np.testing.assert_allclose(xf.trace(xf.vmap(xf.grad(f, 1)))(np.array([3.0, -3.0]), np.ones(2)), [3.0, 0.0])


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_dtypes_are_kept(dtype):
    x = X.astype(dtype)
    f = lambda x: cond(xnp.abs(x).sum() > 0.0, lambda x: x * 2.0, lambda x: 0.0 * x, x)
    for g in (f, xf.trace(f)):
        assert g(x).dtype == x.dtype
        found = xf.grad(lambda x, g=g: xnp.real(g(x)).sum())(x)
        assert found.dtype == x.dtype
        np.testing.assert_allclose(found, np.full(2, 2.0))


def test_a_python_number_gives_way_to_an_array():
    f = lambda p, x: cond(p, lambda x: x, lambda x: 0.0, x)
    for g in (f, xf.trace(f)):
        for p in (True, False):
            out = g(np.array(p), np.float32(3.0))
            assert out.dtype == np.float32
            assert out == (3.0 if p else 0.0)
    assert type(xf.trace(lambda p: cond(p, lambda: 1, lambda: 2))(np.array(True))) is int


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (1, 3)])
def test_shapes_of_none_one_and_no_element(shape):
    x = np.full(shape, 2.0)
    f = lambda x: cond(xnp.sum(x) >= 0.0, lambda x: x * x, xnp.exp, x)
    for g in (f, xf.trace(f), lambda x: xf.vmap(f)(x[None])[0]):
        np.testing.assert_array_equal(g(x), x * x)
        np.testing.assert_array_equal(xf.grad(lambda x, g=g: xnp.sum(g(x)))(x), 2.0 * x)
