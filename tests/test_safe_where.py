"""`xf.safe_where`: a function applied only where it is defined, so that no value and no derivative is poisoned.

Warnings are errors here as everywhere, so a function that saw an element outside of its domain would raise.
"""

from __future__ import annotations

import array_api_strict
import numpy as np
import pytest
from typeguard import suppress_type_checks

import xform as xf
import xform.numpy as xnp
from tests.operators.unknown_shapes import Hide
from xform import ops
from xform.core.errors import HostReadError, OperandTypeError, ShapeError
from xform.core.rules import batch_rule

x = np.array([0.0, 2.0, -1.0, 0.5])
inside = x > 0

#: functions with a singular or undefined point outside of x > 0, their derivatives of orders 1 and 2
FUNCTIONS = {
    "log": (lambda x: xnp.log(x), lambda x: 1 / x, lambda x: -1 / x**2),
    "sqrt": (lambda x: xnp.sqrt(x), lambda x: 0.5 / np.sqrt(x), lambda x: -0.25 * x**-1.5),
    "ratio": (lambda x: 1 / x, lambda x: -1 / x**2, lambda x: 2 / x**3),
    "power": (lambda x: x**-0.5, lambda x: -0.5 * x**-1.5, lambda x: 0.75 * x**-2.5),
    "x log x": (lambda x: x * xnp.log(x), lambda x: np.log(x) + 1, lambda x: 1 / x),
    "log of a cube": (lambda x: xnp.log(x**3), lambda x: 3 / x, lambda x: -3 / x**2),
}
functions = pytest.mark.parametrize(("fn", "first", "second"), FUNCTIONS.values(), ids=FUNCTIONS)


def chosen(fn, at=x, otherwise=0.0):
    """What a loop gives."""
    return np.array([fn(each) if each > 0 else otherwise for each in at])


# ------------------------------------------------------------------ values and derivatives


@functions
def test_values_and_derivatives_of_every_order_in_both_modes(fn, first, second):
    f = lambda x: xf.safe_where(x > 0, fn, x, 0.0)
    total = lambda x: f(x).sum()
    along = np.array([1.0, 2.0, 3.0, -1.0])
    with xf.NanGuard():
        np.testing.assert_allclose(f(x), chosen(fn))
        np.testing.assert_allclose(xf.grad(total)(x), chosen(first))
        np.testing.assert_allclose(xf.jvp(f, (x,), (along,))[1], chosen(first) * along)
        np.testing.assert_allclose(xf.linearize(f, x)[1](along), chosen(first) * along)
        np.testing.assert_allclose(xf.jacfwd(f)(x), np.diag(chosen(first)))
        np.testing.assert_allclose(xf.jacrev(f)(x), np.diag(chosen(first)))
        np.testing.assert_allclose(xf.hessian(total)(x), np.diag(chosen(second)))
        np.testing.assert_allclose(xf.hvp(total, (x,), (along,)), chosen(second) * along)
        np.testing.assert_allclose(xf.grad(lambda x: (xf.grad(total)(x) * along).sum())(x), chosen(second) * along)
        np.testing.assert_allclose(xf.jvp(xf.jacfwd(f), (x,), (along,))[1], np.diag(chosen(second) * along))
        np.testing.assert_allclose(xf.vmap(f)(x), chosen(fn))
        np.testing.assert_allclose(xf.vmap(xf.grad(f))(x), chosen(first))
        np.testing.assert_allclose(xf.vmap(xf.hessian(f))(x), chosen(second))
        np.testing.assert_allclose(xf.grad(lambda x: xf.vmap(f)(x).sum())(x), chosen(first))


@functions
def test_traced(fn, first, second):
    f = lambda x: xf.safe_where(x > 0, fn, x, 0.0)
    total = lambda x: f(x).sum()
    points = (x, -x, x + 3.0, x - 3.0)  # one of them outside everywhere: there a program calls fn on ones
    for transformed, want in (
        (xf.trace(f), fn),
        (xf.trace(xf.grad(total)), first),
        (xf.grad(xf.trace(total)), first),
        (xf.vmap(xf.trace(xf.grad(f))), first),
        (xf.trace(xf.vmap(f)), fn),
    ):
        for point in points:
            np.testing.assert_allclose(transformed(point), chosen(want, point))
    program = xf.make_program(f)(x)
    for point in points:
        np.testing.assert_allclose(program.run([point])[0], chosen(fn, point))


def test_a_plain_where_is_poisoned():
    """What this is for: without it the derivative is 0 * inf."""
    with np.errstate(all="ignore"):
        assert np.isnan(xf.grad(lambda x: xnp.where(x > 0, xnp.sqrt(x) * x**-0.5, 0.0).sum())(x)[0])


def test_derivatives_of_what_the_function_closes_over():
    def f(p, at):
        return xf.safe_where(at > p, lambda v: xnp.sqrt(v - p), at, p).sum()

    at = np.array([1.0, 2.0, 5.0, 0.0])
    # d sqrt(v - p) / dp = -1 / (2 sqrt(v - p)) inside, 1 outside
    want = sum(-0.5 / np.sqrt(v - 1.5) if v > 1.5 else 1.0 for v in at)
    second = sum(-0.25 * (v - 1.5) ** -1.5 if v > 1.5 else 0.0 for v in at)
    with xf.NanGuard():
        np.testing.assert_allclose(xf.grad(f)(1.5, at), want)
        np.testing.assert_allclose(xf.jvp(lambda p: f(p, at), (1.5,), (1.0,))[1], want)
        np.testing.assert_allclose(xf.hessian(f)(1.5, at), second)
        np.testing.assert_allclose(xf.grad(lambda p: xf.vmap(lambda v: f(p, v))(at).sum())(1.5), want)
        np.testing.assert_allclose(xf.grad(f)(9.0, at), 4.0)
        np.testing.assert_allclose(xf.grad(lambda p: xf.vmap(lambda v: f(p, v))(at).sum())(9.0), 4.0)


def test_derivatives_of_the_other_value():
    to_x, to_other = xf.grad(lambda x, y: xf.safe_where(x > 0, xnp.log, x, y * y).sum(), (0, 1))(x, np.array(3.0))
    np.testing.assert_allclose(to_x, chosen(lambda v: 1 / v))
    assert to_other == 2 * 3.0 * 2
    np.testing.assert_allclose(
        xf.grad(lambda y: xf.safe_where(x > 0, xnp.log, x, y).sum())(np.ones(4)), np.where(inside, 0.0, 1.0)
    )


# ------------------------------------------------------------------ what the function sees


class Seen:
    """A function that keeps what it was given."""

    def __init__(self, fn=xnp.log):
        self.fn = fn
        self.numbers = []

    def __call__(self, v):
        raw = xf.concrete(v)
        if raw is not None:
            self.numbers.append(np.asarray(raw))
        return self.fn(v)


def runs():
    seen = Seen()
    f = lambda x: xf.safe_where(x > 0, seen, x, 0.0)
    total = lambda x: f(x).sum()
    return seen, {
        "value": lambda: f(x),
        "tracked": lambda: f(xf.array(x)),
        "grad": lambda: xf.grad(total)(x),
        "jvp": lambda: xf.jvp(f, (x,), (x,)),
        "hessian": lambda: xf.hessian(total)(x),
        "vmap": lambda: xf.vmap(f)(x),
        "vmap of grad": lambda: xf.vmap(xf.grad(f))(x),
        "vmap of rows": lambda: xf.vmap(f)(np.stack([x, -x])),
        "trace": lambda: xf.trace(f)(x),
    }


@pytest.mark.parametrize("name", runs()[1])
def test_the_function_sees_elements_from_inside_alone(name):
    seen, all_runs = runs()
    all_runs[name]()
    assert len(seen.numbers) == 1
    assert set(seen.numbers[0].ravel()) <= set(x[inside]) | set(-x[x < 0])


OUTSIDE = [np.array([-1.0, 0.0]), np.array(-1.0), -1.0, np.zeros((0, 3)), np.float32(-1)]


@pytest.mark.parametrize("outside", OUTSIDE, ids=repr)
def test_where_the_condition_holds_nowhere_nothing_is_computed(outside):
    seen = Seen(lambda v: xnp.log(v - 2))  # undefined at 1 as well
    f = lambda x: xf.safe_where(x > 5, seen, x, 0.25)
    with xf.Profile() as profile, xf.NanGuard():
        got = f(xf.array(outside))
        np.testing.assert_array_equal(np.asarray(got), np.full(np.shape(outside), 0.25))
        assert np.asarray(got).dtype == np.asarray(outside).dtype
        np.testing.assert_array_equal(xf.grad(lambda x: xnp.sum(f(x)))(outside), np.zeros(np.shape(outside)))
        np.testing.assert_array_equal(xf.jvp(f, (outside,), (outside,))[1], np.zeros(np.shape(outside)))
        np.testing.assert_array_equal(xf.hessian(lambda x: xnp.sum(f(x)))(outside), np.zeros(np.shape(outside) * 2))
        if np.ndim(outside):
            np.testing.assert_array_equal(xf.vmap(f)(outside), np.full(np.shape(outside), 0.25))
    assert profile.calls("Log") == 0
    assert seen.numbers == []


def test_the_shape_is_right_though_nothing_is_computed():
    v = np.array([3.0, 4.0])
    unit = lambda v: v / xnp.sqrt((v * v).sum())
    size = lambda v: xnp.sqrt((v * v).sum())
    f = lambda v, fn: xf.safe_where((v * v).sum() > 0, fn, v, 0.0)
    for at, want_unit, want_size in ((v, v / 5, 5.0), (0 * v, 0 * v, 0.0)):
        np.testing.assert_allclose(f(at, unit), want_unit)
        assert f(at, size).shape == ()
        np.testing.assert_allclose(f(at, size), want_size)
        np.testing.assert_allclose(xf.grad(f)(at, size), want_unit)
        np.testing.assert_allclose(xf.jacfwd(f)(at, unit), np.eye(2) / 5 - np.outer(v, v) / 125 if at is v else 0.0)
    assert xf.safe_where(False, lambda k: xnp.log(k), np.array([1, 2]), 0).dtype == np.float64


def test_a_function_that_reads_numbers_sees_ones_where_there_is_nothing_else():
    def fn(v):
        return xnp.log(v) if float(xf.stop_gradient(v)) > 0.5 else v

    f = lambda v: xf.safe_where(v > 0, fn, v, 7.0)
    assert f(np.array(-1.0)) == 7.0
    assert xf.grad(f)(-1.0) == 0.0
    assert xf.grad(f)(2.0) == 0.5


# ------------------------------------------------------------------ conditions, shapes, dtypes


def test_conditions_broadcast():
    matrix = np.array([[1.0, -2.0], [4.0, 3.0], [-1.0, 9.0]])
    rows, columns = np.array([[False], [True], [False]]), np.array([False, False])
    np.testing.assert_allclose(xf.safe_where(rows, np.sqrt, matrix, 0.0), [[0, 0], [2, np.sqrt(3)], [0, 0]])
    np.testing.assert_allclose(xf.safe_where(columns, np.sqrt, matrix, 0.0), np.zeros((3, 2)))
    np.testing.assert_allclose(xf.safe_where(rows, np.sqrt, np.array([4.0, 9.0]), 0.0), [[0, 0], [2, 3], [0, 0]])
    np.testing.assert_allclose(xf.safe_where(matrix > 0, lambda v: v * 2, 3.0, matrix), np.where(matrix > 0, 6, matrix))
    np.testing.assert_allclose(xf.safe_where(True, np.sqrt, 4.0, 0.0), 2.0)
    np.testing.assert_allclose(xf.safe_where(np.array([2.0, 0.0]), np.sqrt, np.array([4.0, -1.0]), 0.0), [2.0, 0.0])
    np.testing.assert_allclose(xf.safe_where(inside, np.sqrt, abs(x), np.ones((2, 4)))[:, 0], 1.0)
    to_scalar = xf.grad(lambda v: xf.safe_where(matrix > 0, xnp.log, v, 0.0).sum())(2.0)
    np.testing.assert_allclose(to_scalar, 4 / 2.0)
    with pytest.raises(ShapeError, match="StandIn"):
        xf.safe_where(np.ones(3, bool), np.sqrt, np.ones(2), 0.0)


def test_a_condition_that_chooses_rows():
    v = np.array([[3.0, 4.0], [0.0, 0.0], [0.0, -2.0]])

    def unit(v):
        size = (v * v).sum(-1, keepdims=True)
        return xf.safe_where(size > 0, lambda v: v / xnp.sqrt((v * v).sum(-1, keepdims=True)), v, 0.0)

    def one(v):
        return xf.safe_where((v * v).sum() > 0, lambda v: v / xnp.sqrt((v * v).sum()), v, 0.0)

    want = np.array([[0.6, 0.8], [0.0, 0.0], [0.0, -1.0]])
    with xf.NanGuard():
        np.testing.assert_allclose(unit(v), want)
        np.testing.assert_allclose(xf.vmap(one)(v), want)
        np.testing.assert_allclose(xf.vmap(one)(v[::-1]), want[::-1])
        jacobians = xf.vmap(xf.jacrev(one))(v)
        np.testing.assert_allclose(jacobians[1], np.zeros((2, 2)))
        np.testing.assert_allclose(jacobians[2], [[0.5, 0.0], [0.0, 0.0]])
        np.testing.assert_allclose(xf.grad(lambda v: (unit(v) * v).sum())(v), want, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_dtypes(dtype):
    at = x.astype(dtype)
    f = lambda v: xf.safe_where(inside, xnp.log, v, 0.0)
    got, tangent = xf.jvp(f, (at,), (at,))
    assert (got.dtype, tangent.dtype) == (at.dtype, at.dtype)
    np.testing.assert_allclose(tangent, inside.astype(dtype))
    found = xf.vjp(f, at)[1](np.ones(4, dtype))[0]
    assert found.dtype == at.dtype
    np.testing.assert_allclose(found, chosen(lambda v: 1 / v), rtol=1e-6)


def test_raw_in_raw_out():
    assert type(xf.safe_where(inside, np.log, x, 0.0)) is np.ndarray
    assert type(xf.safe_where(inside, np.log, xf.array(x), 0.0)) is xf.Array
    np.testing.assert_array_equal(xf.safe_where(inside, lambda k: k + 1, np.array([1, 2, 3, 4]), 0), [0, 3, 0, 5])


# ------------------------------------------------------------------ layers


def test_devices():
    at = array_api_strict.asarray(x, device=array_api_strict.Device("device1"))
    f = lambda v: xf.safe_where(v > 0, xnp.log, v, 0.0)
    total = lambda v: xnp.sum(f(v))
    for points, want in ((at, chosen(lambda v: 1 / v)), (at - 9.0, np.zeros(4))):
        found = xf.grad(total)(points)
        assert found.device == at.device
        np.testing.assert_allclose(xf.to_numpy(found), want)
    np.testing.assert_allclose(xf.to_numpy(f(at)), chosen(np.log))
    np.testing.assert_allclose(xf.grad(xf.Device("array_api_strict:device1")(total))(x), chosen(lambda v: 1 / v))
    rows = array_api_strict.asarray(np.array([[True], [False]]), device=at.device)
    got = xf.safe_where(rows, xnp.sqrt, array_api_strict.asarray(abs(x), device=at.device), 0.0)
    np.testing.assert_allclose(xf.to_numpy(got), [np.sqrt(abs(x)), np.zeros(4)])


def test_layers_of_users_and_unknown_lengths():
    class Through(xf.Transformation):
        def interpret(self, op, values):
            return xf.apply(op, *values)

    total = lambda v: xnp.sum(xf.safe_where(v > 0, xnp.log, v, 0.0))
    np.testing.assert_allclose(xf.grad(Through()(total))(x), chosen(lambda v: 1 / v))
    for points, want in ((x, chosen(lambda v: 1 / v)), (x - 9.0, np.zeros(4))):
        with Hide() as hide:
            found = xf.grad(total)(hide.hidden(points))
        np.testing.assert_allclose(hide.shown(found), want)


def test_abstract_values():
    f = lambda v: xf.safe_where(v > 0, xnp.log, v, 0.0)
    assert xf.eval_shape(f, xf.Aval((3, 2), np.dtype("float32"))) == xf.Aval((3, 2), np.dtype("float32"))
    assert xf.eval_shape(f, xf.Aval((None,), np.dtype("float32"))).shape == (None,)


def lanes(condition, values, axes, size):
    found, axis = batch_rule.get(ops.StandIn())(ops.StandIn(), size, (condition, values), axes)
    return np.moveaxis(np.asarray(found), axis, 0)


def test_stand_ins_of_lanes():
    """Inside each lane keeps its own; outside another lane's element from inside may stand in."""
    mask = np.array([[False, False], [False, True], [True, True]])
    values = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    for at in (0, 1):
        got = lanes(np.moveaxis(mask, 0, at), np.moveaxis(values, 0, at), (at, at), 3)
        np.testing.assert_array_equal(got[mask], values[mask])
        assert set(got[~mask]) <= set(values[mask])
    shared = lanes(mask, values[0], (0, None), 3)
    np.testing.assert_array_equal(shared, [[2, 2], [2, 2], [1, 2]])
    rows = lanes(mask.any(1), values, (0, 0), 3)  # one condition a lane: a whole lane stands in
    np.testing.assert_array_equal(rows, [[3, 4], [3, 4], [5, 6]])


def test_stand_ins():
    stand_in = ops.stand_in
    np.testing.assert_array_equal(stand_in(inside, x), [2.0, 2.0, 2.0, 0.5])
    np.testing.assert_array_equal(stand_in(np.zeros(4, bool), x), np.ones(4))
    np.testing.assert_array_equal(stand_in(False, x), np.ones(4))
    np.testing.assert_array_equal(stand_in(True, x), x)
    assert stand_in(inside, x.astype("float32")).dtype == np.float32
    assert stand_in(np.zeros(0, bool), 3.0).shape == (0,)
    np.testing.assert_array_equal(stand_in(np.array([[[False]], [[True]]]), x), np.stack([[x], [x]]))


# ------------------------------------------------------------------ errors


def test_what_the_function_may_be_and_return():
    with suppress_type_checks(), pytest.raises(OperandTypeError, match="safe_where takes a function, got float"):
        xf.safe_where(inside, 1.0, x, 0.0)

    def pair(v):
        return v, v

    for condition in (inside, x > 9):
        with pytest.raises(OperandTypeError, match=r"safe_where: pair returned tuple.*return one array"):
            xf.safe_where(condition, pair, x, 0.0)
    with pytest.raises(OperandTypeError, match="StandIn"):
        xf.safe_where(inside, np.log, {"a": x}, 0.0)


def test_errors_of_the_function_pass_unchanged():
    wrong = KeyError("mine")

    def fail(v):
        raise wrong

    for condition in (inside, x > 9):
        with pytest.raises(KeyError) as error:
            xf.safe_where(condition, fail, x, 0.0)
        assert error.value is wrong
    with pytest.raises(HostReadError):
        xf.vmap(lambda v: xf.safe_where(v > 0, lambda v: v if v > 1 else -v, v, 0.0))(x)
