"""Rules of the operators that hold programs or functions of users: equations, custom rules, calls, branches, loops.

What these do is the user's, so that no row of the operators' table holds them. Their rules are held to the same: both
modes, orders 1 and 2, in every precision, against finite differences; batches against a loop; and an error of a
thousandth in any of them is caught.
"""

from __future__ import annotations

import numpy as np
import pytest
from typeguard import suppress_type_checks

import xform as xf
import xform.numpy as xnp
from tests.operators.case import Case, case
from tests.operators.collect import operands
from tests.operators.test_completeness import ELSEWHERE, GIVEN_TO_NO_LAYER
from xform.core.rules import batch_rule, jvp_rule, vjp_rule
from xform.testing import check_grads
from xform.testing.gradients import check_problem, curved, flattened

A = np.array([[0.3, -0.2, 0.1], [0.05, 0.25, -0.15], [0.2, 0.1, -0.3]])
X = np.array([0.4, -0.9, 1.3])
Y = np.array([0.8, 0.5, -0.6])


@pytest.fixture(autouse=True, scope="module")
def _types_are_checked_elsewhere():
    with suppress_type_checks():
        yield


# ------------------------------------------------------------------ one program for each operator


def newton(f, y):
    for _ in range(9):
        y = y - f(y) / (3.0 * y * y + 1.0)
    return y


@xf.custom_vjp
def by_reverse(a, b):
    return xnp.exp(a) * b


def by_reverse_bwd(saved, t):
    exp, b = saved
    return t * exp * b, t * exp


by_reverse.defvjp(lambda a, b: (by_reverse(a, b), (xnp.exp(a), b)), by_reverse_bwd)


@xf.custom_jvp
def by_forward(a, b):
    return xnp.sin(a) * b


@by_forward.defjvp
def by_forward_jvp(primals, tangents):
    (a, b), (s, t) = primals, tangents
    return by_forward(a, b), xnp.cos(a) * b * s + xnp.sin(a) * t


plain_reverse = xf.custom_gradient(lambda a, b: (xnp.exp(a) * b, (xnp.exp(a), b)), by_reverse_bwd)
plain_forward = xf.custom_jvp(lambda a, b: xnp.sin(a) * b)


@plain_forward.defjvp
def plain_forward_jvp(primals, tangents):
    """Does not call the function that it is a rule of, so that what it returns is tied to the rule afterwards."""
    return xnp.sin(primals[0]) * primals[1], by_forward_jvp(primals, tangents)[1]


def step(a):
    return lambda i, y: xnp.sin(a @ y) + y * y * 0.2


def running(c, y):
    c = c * y + 0.3 * c * c
    return c, c * y


def counting(s):
    return s[0] + 1, s[1] * xnp.sin(s[1])


def by_sign(a, b):
    return xf.cond(np.real(a[0]) < 0, lambda y: y, lambda y: xnp.exp(y) * b, a)


def by_largest(a):
    return xf.switch(np.argmax(np.real(a)), [xnp.exp, xnp.cos, lambda y: y * y * y], a)


CASES = {
    "Root": [
        case("root", lambda a, b: xf.root(lambda y: y * y * y + y - a * b, a, newton), X, Y, complex=True),
        case("fixed point", lambda a, b: xf.fixed_point(lambda y: xnp.sin(a @ y) + b, b), A, X, complex=True),
    ],
    "CustomCall": [
        case("custom_vjp", by_reverse, X, Y, complex=True, modes=("rev",)),
        case("custom_jvp", by_forward, X, Y, complex=True),
    ],
    "Call": [case("traced", xf.trace(lambda a, b: xnp.tanh(a @ b) * b), A, X, complex=True)],
    "Switch": [
        case("cond", lambda a, b: xf.trace(by_sign)(a, b), X, Y, complex=True),
        case("switch", lambda a: xf.trace(by_largest)(a), X, complex=True),
    ],
    "Loop": [
        case("for", lambda a, b: xf.fori_loop(0, 4, step(a), b), A, X, complex=True),
        case("while", lambda a: xf.while_loop(lambda s: s[0] < 3, counting, (0, a)), X, complex=True),
        case("scan", lambda a, b: xf.scan(running, a, b), X[1], Y, complex=True),
    ],
    "Rewind": [
        case("some states", lambda a, b: xf.fori_loop(0, 6, step(a), b, checkpoint=2), A, X, complex=True),
        case("few states", lambda a, b: xf.fori_loop(0, 6, step(a), b, checkpoint="log"), A, X, complex=True),
    ],
    "SetGradient": [
        case("custom_gradient", plain_reverse, X, Y, complex=True, modes=("rev",)),
        case("custom_jvp without itself", plain_forward, X, Y, complex=True),
    ],
}  # fmt: skip
#: operators that a rule makes, so that their derivatives show in derivatives of the next order alone
LATER = ("Rewind", "SetGradient")
ROWS = {row.name: row for rows in CASES.values() for row in rows}
KINDS = {kind.__name__: kind for kind in ELSEWHERE if kind.__name__ not in {*GIVEN_TO_NO_LAYER, "Offset", "OffsetBy"}}
rows = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)


def test_every_operator_has_a_program():
    assert CASES.keys() == KINDS.keys() - {"HalfAndDouble", "Throws"}  # of the kit of layers


@rows
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
def test_derivatives(row: Case, dtype: str):
    check_grads(row.fun, operands(row, dtype), order=2, modes=row.modes)


@rows
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
def test_lanes_are_those_of_a_loop_and_so_are_their_derivatives(row: Case, dtype: str):
    args = operands(row, dtype)
    check_lanes(row, args, rtol=2e-5 if dtype == "float32" else 1e-11)
    lanes = [np.stack([x, x * x.dtype.type(1.01)]) for x in args]
    check_grads(lambda *xs: xf.vmap(row.fun)(*xs), lanes, order=1, modes=row.modes)


def check_lanes(row, args, rtol=1e-11):
    """Hold a batch, of the function and of its gradient, against one call for each lane."""

    def slope(*xs):
        out, pullback = xf.vjp(row.fun, *xs)
        return out, pullback(xf.tree.map(lambda y: y * y, out))

    lanes = [[x * x.dtype.type(1.0 + 0.01 * k) for x in args] for k in range(3)]
    row.fun(*lanes[0])  # a traced function is recorded, and one operation from here on
    found = xf.tree.leaves(xf.vmap(slope)(*map(np.stack, zip(*lanes, strict=True))))
    each = zip(*[xf.tree.leaves(slope(*lane)) for lane in lanes], strict=True)
    for have, want in zip(found, map(np.stack, each), strict=True):
        assert have.dtype == want.dtype
        np.testing.assert_allclose(have, want, rtol=rtol, atol=rtol * np.max(np.abs(want)))


# ------------------------------------------------------------------ every rule made wrong


def off(value, order):
    """Return a number that is off by a thousandth (order 1), or whose derivative is (order 2); others as they are."""
    if value is None or xf.aval_of(value).dtype.kind not in "fc":
        return value
    return value * 1.001 - (xf.stop_gradient(value) * 0.001 if order == 2 else 0.0)


def wrong_vjp(rule, order):
    def wrong(op, needed, *primals):
        out, pullback = rule(op, needed, *primals)
        return out, lambda cotangents: tuple(off(each, order) for each in pullback(cotangents))

    return wrong


def wrong_jvp(rule, order):
    def wrong(op, primals, tangents):
        out, found = rule(op, primals, tangents)
        return out, None if found is None else tuple(off(each, order) for each in found)

    return wrong


def wrong_batch(rule, order):
    def wrong(op, size, values, axes):
        out, at = rule(op, size, values, axes)
        return tuple(off(each, order) for each in out), at

    return wrong


WRONG = {"rev": (vjp_rule, wrong_vjp), "fwd": (jvp_rule, wrong_jvp), "batch": (batch_rule, wrong_batch)}


def tells(row, mode, order):
    try:
        if mode == "batch":
            check_lanes(row, operands(row, "float64"))
        else:
            check_problem(curved(flattened(row.name, row.fun, row.args)), order, mode)
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize(("mode", "order"), [("rev", 1), ("rev", 2), ("fwd", 1), ("fwd", 2), ("batch", 1)])
def test_an_error_of_a_thousandth_in_any_rule_is_caught(kind, mode, order):
    table, wrong = WRONG[mode]
    rule = table.rules[KINDS[kind]]
    rows = [row for row in CASES[kind] if mode in (*row.modes, "batch")]
    table.rules[KINDS[kind]] = wrong(rule, order)
    try:
        if kind in LATER and mode != "batch":
            assert any(tells(row, ("rev", mode), order + 1) for row in rows)
        else:
            assert any(tells(row, mode if mode == "batch" else (mode,), order) for row in rows)
    finally:
        table.rules[KINDS[kind]] = rule
