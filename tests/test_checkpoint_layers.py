"""Checkpoints with other layers, loops, custom rules, and with values that no tape tracks."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from numpy.testing import assert_allclose
from typeguard import suppress_type_checks

import xform as xf
import xform.numpy as xnp
from tests.checkpoint_cases import W, X, agree, backward_of, plainly
from xform import ops

# ------------------------------------------------------------------ with other layers


@attrs.define(eq=False)
class Interval(xf.Transformation):
    """A user's layer whose values hold two values of the layer below."""

    effect = "wraps"

    class Between(xf.Value):
        __slots__ = ("high", "owner")

    def attach(self, low, high):
        value = self.Between()
        value.data, value.high, value.owner = low, high, self
        return value

    def interpret(self, op, values):
        lows, highs = [], []
        for value in values:
            own = type(value) is self.Between
            lows.append(value.data if own else value)
            highs.append(value.high if own else value)
        return self.attach(xf.apply(op, *lows), xf.apply(op, *highs))


def test_a_users_layer_that_wraps_values_above_the_tape():
    def make(ck):
        body = ck(lambda z: np.sin(np.exp(z)) * 2.0)

        def loss(low, high):
            with Interval() as layer:
                out = body(body(layer.attach(low, high)))
            return xnp.sum(out.data * out.data) + 3.0 * xnp.sum(out.high)

        return xf.grad(loss, (0, 1))

    agree(make, X, X + 0.1)


class CosForSin(xf.Transformation):
    def interpret(self, op, values):
        return xf.apply(ops.Cos() if op == ops.Sin() else op, *values)


def test_a_layer_that_rewrites_above_the_tape():
    agree(lambda ck: xf.grad(CosForSin()(lambda x: xnp.sum(ck(lambda z: np.sin(np.sin(z)))(x)))), X)
    assert_allclose(xf.grad(CosForSin()(lambda x: xnp.sum(xf.checkpoint(np.sin)(x))))(X), -np.sin(X))


def test_a_layer_inside_of_the_function():
    def make(ck):
        def body(z):
            with CosForSin():
                h = np.sin(z)
            return h * np.sin(z) + xf.jvp(np.sin, (z,), (h,))[1]

        return xf.grad(lambda x: xnp.sum(ck(body)(x)))

    agree(make, X)


def test_observers_above_the_tape_see_the_run_of_the_function_alone():
    with xf.Profile() as outside:
        inside = xf.Profile()
        xf.grad(inside(xf.checkpoint(lambda z: xnp.sum(np.sin(np.sin(z))))))(X)
    assert (inside.calls("Sin"), inside.calls("Cos")) == (2, 0)
    assert (outside.calls("Sin"), outside.calls("Cos")) == (3, 2)
    with pytest.warns(UserWarning, match="saw no operation"):
        xf.grad(xf.Profile()(lambda x: x))(1.0)


def test_tapes_of_a_group_and_a_paused_tape():
    def make(ck):
        def gradients(x, w):
            body = ck(lambda u, v: np.sin(u * v) * u)
            with xf.Grad() as one, xf.Grad(group=one) as other:
                u, v = one.attach(x), other.attach(w)
                with one.suppressed():
                    y = body(u, v)


                def partly(a):
                    with one.suppressed():
                        h = np.sin(a)
                    return h * a

                z = xnp.sum(body(u, v) * y * ck(partly)(u))
                return one.gradient(z, u), other.gradient(z, v)

        return gradients

    agree(make, X, W)


def test_a_traced_function_inside_captures_values_from_outside():
    def make(ck):
        return xf.grad(lambda x, w: xnp.sum(ck(lambda z: xf.trace(lambda u: np.sin(u * w) * z)(z))(x)), (0, 1))

    agree(make, X, W)


def test_a_checkpointed_trace_is_computed_again_at_each_call():
    def make(ck):
        layer = ck(xf.trace(lambda z: np.sin(np.sin(z))))
        return xf.grad(lambda x: xnp.sum(layer(x)))

    gradient = make(xf.checkpoint)
    for _ in range(2):
        with xf.Profile() as profile:
            gradient(X)
        assert (profile.calls("Sin"), profile.calls("Cos")) == (3, 2)
    agree(make, X)


def newton(f, x):
    for _ in range(30):
        slope = xf.jvp(f, (x,), (np.ones_like(x),))[1]
        x = x - f(x) / slope
    return x


LOOPS = {
    "scan": lambda z, w: sum(map(xnp.sum, xf.scan(lambda c, k: (np.sin(c * w), c * k), z, np.arange(3.0)))),
    "while": lambda z, w: xnp.sum(xf.while_loop(lambda c: xnp.sum(c * c) > 0.5, lambda c: np.sin(c * w) * 0.9, z)),
    "cond": lambda z, w: xnp.sum(xf.cond(xnp.sum(z) > 0.0, lambda u: np.sin(u * w), lambda u: u * w, z)),
    "root": lambda z, w: xnp.sum(xf.root(lambda x: x**3 + x * (1.0 + w * w) - z, np.ones(3), newton)),
    "trace": lambda z, w: xnp.sum(xf.trace(lambda u, v: np.sin(u * v) * u)(z, w)),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_and_solvers_inside(name):
    with suppress_type_checks():
        agree(lambda ck: xf.value_and_grad(lambda x, w: ck(lambda z: LOOPS[name](z, w))(x), (0, 1)), X, W, rtol=1e-9)
        agree(lambda ck: xf.hessian(lambda x: ck(lambda z: LOOPS[name](z, W) * xnp.sum(z))(x)), X, rtol=1e-8)


def test_shapes_that_are_unknown_before_run_time():
    def make(ck):
        def body(z, w):
            return xnp.where(z > 0.0, np.sin(z * w), z) / (3.0 + xnp.sum(z)) + xnp.mean(z)

        def loss(x, w):
            return xnp.sum(ck(body)(x, w)) + ck(lambda z: xnp.sum(z * 2.0))(x)  # there the shape alone is needed

        return xf.grad(loss, (0, 1))

    program = xf.make_program(make(xf.checkpoint))(xf.Aval((None, 3), xnp.float64), xf.Aval((3,), xnp.float64))
    for rows in (1, 4):
        x = np.linspace(-1.0, 1.0, 3 * rows).reshape(rows, 3)
        for found, want in zip(program(x, W), make(plainly)(x, W), strict=True):
            assert_allclose(found, want, rtol=1e-12)


def cubed_rule():
    """A function with deliberately wrong derivatives: the rule must be used, and the rule's own derivative."""
    return xf.custom_gradient(lambda x: (np.sin(x), x), lambda x, t: t * 3.0 * x)


def test_custom_rules_inside():
    wrong = cubed_rule()
    ruled = xf.custom_jvp(np.sin)
    ruled.defjvp(lambda primals, tangents: (ruled(*primals), 5.0 * tangents[0] * primals[0]))
    for rule in (wrong, ruled):
        for derivative in (xf.grad, xf.hessian, lambda f: xf.jacrev(xf.grad(f))):
            agree(lambda ck: derivative(lambda x: xnp.sum(ck(lambda z: rule(z * 2.0) * z)(x))), X)  # noqa: B023
        agree(lambda ck: xf.vmap(xf.grad(lambda x: ck(lambda z: rule(z * 2.0) * z)(x))), X)  # noqa: B023
    assert_allclose(xf.grad(lambda x: xnp.sum(xf.checkpoint(wrong)(x)))(X), 3.0 * X)


def test_a_custom_rule_runs_on_plain_arrays():
    seen = []

    def forward(x):
        seen.append(type(x))
        out = np.empty_like(x)
        np.multiply(x, 2.0, out=out)
        return out, None

    doubled = xf.custom_gradient(forward, lambda residuals, t: seen.append(type(t)) or t * 2.0)
    layer = xf.checkpoint(lambda z: np.sin(doubled(z)))
    assert_allclose(xf.grad(lambda x: xnp.sum(layer(x)))(X), 2.0 * np.cos(2.0 * X))
    assert set(seen) == {np.ndarray}


def test_stop_gradient_and_custom_function_of_no_interest():
    agree(lambda ck: xf.grad(lambda x: xnp.sum(ck(lambda z: z * xf.stop_gradient(np.sin(z)))(x))), X)


# ------------------------------------------------------------------ what the tape does not track


def test_masks_and_indices_are_as_without():
    b = np.array([5.0, 6.0, 7.0])

    def make(ck):
        def body(z):
            mask = z > 0.0
            mask &= z < 1.0
            order = np.argsort(z)
            n = int(np.argmax(z))
            assert isinstance(np.max(order), np.integer)
            y = xnp.where(mask & ~(z == 0.5), np.sin(z), np.exp(-z)) * b[order] + np.sign(z) * n + z[order]
            return {"y": y * xf.stop_gradient(z), "mask": mask, "order": order, "n": n, "any": bool(mask.any())}

        def loss(x):
            first = ck(body)(x)
            second = ck(lambda z: ck(body)(z)["y"] * 2.0)(x)
            return xnp.sum(first.pop("y") * second), first

        return xf.value_and_grad(loss, has_aux=True)

    (_, aux), _ = agree(make, X)
    assert type(aux["mask"]) is np.ndarray


def test_what_an_inner_function_gives_raw_it_gives_raw():
    def loss(x):
        mask, rounded = xf.checkpoint(lambda z: (z > 0.0, np.floor(z)))(x)
        assert type(mask) is type(rounded) is np.ndarray
        mask[0] = False
        return xnp.sum(x * x * mask)

    assert_allclose(xf.grad(loss)(X), [0.0, 0.0, 2.2])

    def twice_around(x):
        mask = xf.checkpoint(xf.checkpoint(lambda z: z > 0.0))(x)
        assert type(mask) is np.ndarray
        return xnp.sum(x * mask)

    assert_allclose(xf.grad(twice_around)(X), [1.0, 0.0, 1.0])


def test_what_an_inner_checkpoint_gives_raw_is_computed_again():
    layer = xf.checkpoint(lambda x: xnp.where(xf.checkpoint(lambda z: z > 0.0)(x), np.sin(x), x))
    assert_allclose(xf.grad(lambda x: xnp.sum(layer(x)))(X), np.where(X > 0.0, np.cos(X), 1.0))
    assert backward_of(layer, X)("Greater") == (1,)


def test_arrays_that_take_the_place_of_others_in_memory():
    def make(ck):
        def body(z):
            w = xf.array(W)
            for k in range(50):
                made = w * 2.0
                del made
                z = z + z * xf.array(np.full(3, 0.01 * k))
            return z

        return xf.grad(lambda x: xnp.sum(ck(body)(x)))

    agree(make, X)


def test_results_of_tracked_arrays_are_computed_again():
    w = xf.array(W)
    layer = xf.checkpoint(lambda x: xnp.sum(np.sin(x * np.exp(np.sin(w)))))
    value, pullback = xf.vjp(layer, X)
    with xf.Profile() as backward:
        (found,) = pullback(1.0)
    assert (backward.calls("Sin"), backward.calls("Exp"), backward.calls("Cos")) == (1, 1, 1)
    assert_allclose(value, np.sum(np.sin(X * np.exp(np.sin(W)))))
    assert_allclose(found, np.cos(X * np.exp(np.sin(W))) * np.exp(np.sin(W)))
