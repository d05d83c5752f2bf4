"""An error of a thousandth, planted in a rule of any form, is caught at the order where it first shows."""

from __future__ import annotations

import numpy as np
import pytest

import xform as xf
from xform import ops
from xform.core.operator import Operator
from xform.core.rules import batch_rule, bilinear, jvp_rule, linear, partials, vjp_rule
from xform.core.stack import apply
from xform.ops.base import elementwise_batch
from xform.testing import check_grads, check_operator

X = np.array([0.4, -1.1, 2.3])
Y = np.array([1.5, 0.7, -0.9])


def off(x, order, size=1e-3):
    """Return x, where the derivative of that order (0: the value) is off by a thousandth of x, and no lower one."""
    if order is None:
        return x
    if order == 0:
        return x * (1.0 + size)
    still = xf.stop_gradient(x)
    return x + ((x - still) if order == 1 else (x - still) * (x - still) / still) * size


def of_partials(place):
    class Wrong(Operator):
        def infer(self, x):
            return x

        def evaluate(self, xp, x):
            return x * x * x

    partials(Wrong, lambda t, x: off(t * x * x * 3.0, place))
    batch_rule(Wrong)(elementwise_batch)
    return Wrong(), (X,)


def of_linear(place):
    class Wrong(Operator):
        def infer(self, x):
            return x

        def evaluate(self, xp, x):
            return x * 3.0

    linear(Wrong, lambda op, t, like: off(t * 3.0, place))
    batch_rule(Wrong)(elementwise_batch)
    return Wrong(), (X,)


def of_bilinear(place):
    class Wrong(Operator):
        def infer(self, x, y):
            return ops.Mul().infer(x, y)

        def evaluate(self, xp, x, y):
            return x * y

    bilinear(Wrong, lambda op, t, y, like: t * y, lambda op, t, x, like: off(t * x, place))
    batch_rule(Wrong)(elementwise_batch)
    return Wrong(), (X, Y)


def of_rules(reverse=None, forward=None, batch=None):
    """A linear operator with rules written out; its batch rule is one of a function of its own."""

    class Wrong(Operator):
        def infer(self, x):
            return x

        def evaluate(self, xp, x):
            return x * 3.0

    vjp_rule(Wrong)(lambda op, needed, x: (apply(op, x), lambda t: (off(t * 3.0, reverse),)))
    jvp_rule(Wrong)(lambda op, primals, tangents: (apply(op, *primals), off(tangents[0] * 3.0, forward)))
    batch_rule(Wrong)(lambda op, size, values, axes: (off(values[0], batch) * 3.0, axes[0]))
    return Wrong(), (X,)


PLANTED = {
    "partials": of_partials,
    "linear": of_linear,
    "bilinear": of_bilinear,
    "vjp": lambda place: of_rules(reverse=place),
    "jvp": lambda place: of_rules(forward=place),
}


@pytest.mark.parametrize("form", PLANTED)
def test_rules_without_an_error_pass(form):
    op, operands = PLANTED[form](None)
    check_operator(op, *operands)


# `off` plants at the value of a cotangent or tangent, which is a derivative of order 1, or at its derivative: order 2
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("form", PLANTED)
def test_an_error_in_a_reverse_or_a_forward_rule(form, order):
    op, operands = PLANTED[form](order - 1)
    with pytest.raises(AssertionError, match=rf"Wrong.*(disagree|order {order})"):
        check_operator(op, *operands)


@pytest.mark.parametrize("form", ["linear", "vjp", "jvp"])
def test_an_error_of_order_2_in_a_linear_operator_shows_between_curved_functions_alone(form):
    op, operands = PLANTED[form](1)
    check_operator(op, *operands, order=1)
    check_grads(lambda *xs: apply(op, *xs), operands, order=2)
    with pytest.raises(AssertionError, match=r"curved before and behind: .* mode, order 2"):
        check_operator(op, *operands, order=2)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_an_error_in_a_batch_rule(order):
    op, operands = of_rules(batch=order)
    with pytest.raises(AssertionError, match=rf"(?s)batch rule.*{'a loop gives' if order == 0 else f'order {order}'}"):
        check_operator(op, *operands)
    check_operator(of_rules()[0], *operands)


def test_integers_are_compared_exactly():
    """A batch rule that is off by one where float64 has no place for it."""

    class Next(Operator):
        def infer(self, x):
            return x

        def evaluate(self, xp, x):
            return x + 1

    def rule(error):
        return lambda op, size, values, axes: (values[0] + (1 + error), axes[0])

    for kind in (vjp_rule, jvp_rule):
        kind.none(Next, why="integers do not vary")
    large = np.array([2**60, 5], np.uint64)
    batch_rule.rules[Next] = rule(0)
    check_operator(Next(), large)
    batch_rule.rules[Next] = rule(1)
    with pytest.raises(AssertionError, match=r"(?s)batch rule.*a loop gives"):
        check_operator(Next(), large[:1])
