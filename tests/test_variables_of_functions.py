"""Functions that run again after the call (root, fixed_point, custom rules) see variables and arrays of the call."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from typeguard import suppress_type_checks

import xform as xf
from xform.core.cells import as_they_are
from xform.core.errors import HostReadError

RATES = (1.0, 2.0)


@pytest.fixture(autouse=True)
def _types_are_checked_on_few(request):
    """Let typeguard leave out the iterations: on all of their numbers it would spend a minute."""
    if "custom" in request.node.name or "loop" not in request.node.name:
        yield
        return
    with suppress_type_checks():
        yield


def picard(f, x):
    for _ in range(60):
        x = x + f(x)
    return x


def solve_scalar(matvec, b):
    return b / matvec(np.ones_like(b))


def of_fixed_points(**options):
    def loss(v):
        total = 0.0
        for k in RATES:
            total = total + xf.fixed_point(lambda u: 0.1 * k * np.cos(u * v), 0.0, **options)  # noqa: B023
        return total

    return loss


def of_roots(v):
    total = 0.0
    for k in RATES:
        total = total + xf.root(lambda u: 0.1 * k * np.cos(u * v) - u, 0.0, picard)  # noqa: B023
    return total


def of_solvers(v):
    total = 0.0
    for k in RATES:  # the solver takes k steps of Newton's method for u * u = v, from 1

        def newton(f, u):
            for _ in range(int(k)):  # noqa: B023
                u = u - f(u) / (2.0 * u)
            return u

        total = total + xf.root(lambda u: u * u - v, 1.0, newton)
    return total


def of_nested(v):
    total = 0.0
    for k in RATES:

        def outer(u):
            return 0.1 * xf.fixed_point(lambda w: 0.2 * k * np.cos(w * u * v), 0.0) + 0.3  # noqa: B023

        total = total + xf.fixed_point(outer, 0.0)
    return total


def of_tracked(v):
    total = 0.0
    for k in (v, 2.0 * v):
        total = total + xf.fixed_point(lambda u: 0.1 * k * np.cos(u), 0.0)  # noqa: B023
    return total


def of_lanes(v):
    total = 0.0
    for k in RATES:
        mapped = xf.vmap(lambda w: xf.fixed_point(lambda u: 0.1 * k * np.cos(u * w), 0.0))  # noqa: B023
        total = total + mapped(v * np.array([1.0, 0.5, 0.2])).sum()
    return total


def of_custom(make):
    def loss(v):
        total = 0.0
        for k in RATES:
            if make == "gradient":
                f = xf.custom_gradient(
                    lambda u: (np.sin(u * k), u),  # noqa: B023
                    lambda u, t: t * k * np.cos(u * k),  # noqa: B023
                )
            elif make == "jvp":
                f = xf.custom_jvp(lambda u: np.sin(u * k))  # noqa: B023
                f.defjvp(lambda p, t: (f(*p), t[0] * k * np.cos(p[0] * k)))  # noqa: B023
            else:
                f = xf.custom_vjp(lambda u: np.sin(u * k))  # noqa: B023
                f.defvjp(lambda u: (f(u), u), lambda u, t: (t * k * np.cos(u * k),))  # noqa: B023
            total = total + f(v)
        return total

    return loss


CASES = {
    "fixed_point": of_fixed_points(),
    "fixed_point, series": of_fixed_points(linear_solve="neumann"),
    "fixed_point, user": of_fixed_points(linear_solve=solve_scalar),
    "root": of_roots,
    "nested": of_nested,
    "a tracked variable": of_tracked,
    "lanes": of_lanes,
    "custom_gradient": of_custom("gradient"),
    "custom_jvp": of_custom("jvp"),
    "custom_vjp": of_custom("vjp"),
}


def slope(f, x, h=1e-5):
    return (f(x + h) - f(x - h)) / (2.0 * h)


@pytest.mark.parametrize("name", CASES)
def test_variables_of_a_loop_are_those_of_the_call(name):
    loss = CASES[name]
    x, value, first = 0.7, loss(0.7), slope(loss, 0.7)
    assert_allclose(xf.grad(loss)(x), first, rtol=1e-7)
    second = slope(xf.grad(loss), x)
    assert_allclose(xf.grad(xf.grad(loss))(x), second, rtol=1e-6)
    traced = xf.trace(loss)
    assert_allclose([traced(x) for _ in range(3)], value, rtol=1e-12)
    assert_allclose([xf.grad(traced)(x) for _ in range(2)], first, rtol=1e-7)
    assert_allclose(xf.make_program(xf.grad(loss))(0.3)(x), first, rtol=1e-7)

    kept = xf.checkpoint(lambda v: np.exp(loss(v)))  # backward repeats the operations
    assert_allclose(xf.grad(kept)(x), np.exp(value) * first, rtol=1e-7)


def test_the_variables_of_a_solver_are_those_of_the_call():
    v = 4.0
    one = (1.0 + v) / 2.0
    wanted = one + (one + v / one) / 2.0  # Heron's method, one step and two
    traced = xf.trace(of_solvers)
    # u - f(u) / 2u is Heron's step
    assert_allclose([of_solvers(v), traced(v), traced(v)], wanted, rtol=1e-14)


@pytest.mark.parametrize("find", [
    lambda f, x: xf.fixed_point(f, x), lambda f, x: xf.root(lambda u: f(u) - u, x, picard),
], ids=["fixed_point", "root"])  # fmt: skip
def test_arrays_that_change_before_backward_are_as_they_were(find):
    v, rates = np.array([1.0, 2.0, 3.0]), np.array([0.1, 0.2, 0.3])
    with xf.Grad() as tape:
        x = tape.attach(v)
        y = find(lambda u: rates * np.cos(u * x), np.zeros(3)).sum()
    rates[...] = 9.0
    u = np.zeros(3)
    rates = np.array([0.1, 0.2, 0.3])
    for _ in range(200):
        u = rates * np.cos(u * v)
    sine = rates * np.sin(u * v)
    assert_allclose(tape.gradient(y, x), -sine * u / (1.0 + sine * v), rtol=1e-9)


def test_a_function_that_counts_its_calls_still_does():
    def counted(a):
        calls = 0

        def f(x):
            nonlocal calls
            calls += 1
            return a * np.cos(x)

        return xf.fixed_point(f, 0.1), calls

    assert xf.grad(counted, has_aux=True)(0.3)[1] >= counted(0.3)[1] > 5


def test_reads_in_a_function_decide_but_do_not_drop_derivatives():
    def by_number(v):  # beyond 1 the solution is 2 v
        return xf.fixed_point(lambda u: 0.5 * u + v if float(xf.stop_gradient(u)) > 1.0 else 0.3 * u + v, 0.0)

    assert xf.grad(by_number)(3.0) == pytest.approx(2.0)
    assert xf.grad(lambda v: xf.fixed_point(lambda u: 0.5 * u + v if u > 1.0 else 0.3 * u, 2.0))(3.0) == pytest.approx(
        2
    )
    with pytest.raises(HostReadError, match="would drop its derivative"):
        xf.grad(lambda v: xf.fixed_point(lambda u: 0.5 * u + float(v), 0.0))(3.0)


def test_an_excluded_region_in_an_equation_keeps_its_derivative():
    def solution(v):
        def f(u):
            with xf.exclude_from_trace():
                return 0.5 * u * v

        return xf.fixed_point(lambda u: f(u) + 1.0, 0.0)

    assert xf.grad(solution)(0.5) == pytest.approx(0.5 / 0.75**2)  # u = 1 / (1 - v / 2)


def test_functions_are_bound_with_what_they_call():
    def outer():
        k = 1

        def inner():
            return k

        def both(n):
            return 10 * inner() + k if n == 0 else both(n - 1)

        found = as_they_are(both, inner, len)
        k = 2
        return found, both(3)

    (both, inner, length), now = outer()
    assert (both(3), inner(), now, length) == (11, 1, 22, len)
    assert (both.__name__, both.__qualname__) == (
        "both",
        "test_functions_are_bound_with_what_they_call.<locals>.outer.<locals>.both",
    )
