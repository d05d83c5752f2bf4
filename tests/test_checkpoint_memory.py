"""Checkpoints: what backward runs again, what a policy keeps, and what memory holds."""

from __future__ import annotations

import gc
import tracemalloc
import weakref

import attrs
import numpy as np
import pytest
from numpy.testing import assert_allclose
from typeguard import suppress_type_checks

import xform as xf
import xform.numpy as xnp
from tests.checkpoint_cases import W, X, agree, backward_of
from xform.core.errors import OperandTypeError

# ------------------------------------------------------------------ what is computed again


def test_only_what_derivatives_need_is_computed_again():
    ran = backward_of(xf.checkpoint(lambda x: np.sin(x) + np.cos(np.exp(x)) * 3.0), X)
    assert ran("Sin", "Cos", "Exp", "Add") == (1, 1, 1, 1)  # sin(exp x), cos(x), exp(x), one sum of cotangents
    ran = backward_of(xf.checkpoint(lambda x: xnp.sum(x.reshape(3, 1) * 2.0 + 1.0)), X)
    assert ran("Reshape", "Add", "Sum") == (1, 0, 0)  # linear: nothing but the transposes
    ran = backward_of(xf.checkpoint(lambda x: (np.exp(np.sin(x)), np.log(x + 9.0))), X)
    assert ran("Exp", "Sin", "Cos", "Log", "Add") == (1, 1, 1, 0, 2)  # exp needs its result, log its operand


def test_results_that_nothing_uses_are_not_computed_again():
    layer = xf.checkpoint(lambda x: (np.sin(np.sin(x)), np.cos(np.cos(x))))
    with xf.Profile() as profile:
        assert_allclose(xf.grad(lambda x: xnp.sum(layer(x)[0]))(X), np.cos(np.sin(X)) * np.cos(X))
    assert (profile.calls("Sin"), profile.calls("Cos")) == (3, 4)


def test_of_inner_checkpoints_only_what_is_needed():
    inner = xf.checkpoint(lambda x: (np.sin(np.sin(x)), np.exp(np.exp(x * 0.1))))
    ran = backward_of(xf.checkpoint(lambda x: xnp.sum(np.cos(inner(x)[0]))), X)
    assert ran("Sin", "Cos", "Exp") == (4, 2, 0)  # sin of the cosine; the inner twice, and once by itself
    ran = backward_of(xf.checkpoint(lambda x: inner(x)[0] + 1.0), X)
    assert ran("Sin", "Cos", "Exp", "Add") == (1, 2, 0, 0)


def test_second_order_computes_again_too():
    layer = xf.checkpoint(lambda x: xnp.sum(np.sin(np.sin(x))))

    def slope(x):
        return xnp.sum(xf.grad(layer)(x) ** 2)

    with xf.Profile() as profile:
        found = xf.grad(slope)(X)
    h = 1e-6
    parts = [(slope(X + h * e) - slope(X - h * e)) / (2.0 * h) for e in np.eye(3)]
    assert_allclose(found, parts, rtol=1e-7)
    # forward and backward 3 sines, 2 cosines; of backward again sin x and both cosines, and three derivatives
    assert (profile.calls("Sin"), profile.calls("Cos")) == (3 + 1 + 2, 2 + 2 + 1)


def test_phase_scope_and_line():
    @xf.checkpoint
    def layer(x):
        with xf.named_scope("inner"):
            return np.sin(np.sin(x))  # the line

    class Places(xf.Observer):
        def before(self, op, inputs):
            places.append((op.name, xf.current()))

    places = []
    with Places(), xf.named_scope("outer"):
        xf.grad(lambda x: xnp.sum(layer(x)))(X)
    sines = [at for name, at in places if name == "Sin"]
    assert [at.phase for at in sines] == ["forward", "forward", "backward"]
    assert [at.scopes for at in sines] == [("outer", "inner")] * 2 + [("outer", "checkpoint[layer].Backward", "inner")]
    assert len({at.line for at in sines}) == 1
    cosines = [at for name, at in places if name == "Cos"]
    assert {at.phase for at in cosines} == {"backward"}
    assert {at.scopes for at in cosines} == {("outer", "checkpoint[layer].Backward", "inner", "Sin.Backward")}
    assert {at.line for at in cosines} == {sines[0].line}


# ------------------------------------------------------------------ policies


def three(x):
    h = xf.name(np.sin(x), "h")
    k = xf.name(np.exp(h), "k")
    return np.sin(np.sin(k))


@pytest.mark.parametrize(("policy", "sines", "exponentials"), [
    (None, 2, 1), ("h", 1, 1), (["k"], 1, 0), ({"h", "k"}, 1, 0), (("h", "other"), 1, 1),
    (lambda op, *avals: op.name == "Sin", 0, 1), (lambda op, *avals: True, 0, 0), (lambda op, *avals: False, 2, 1),
    (lambda op, aval: op.name == "Exp" and aval.shape == (3,), 1, 0),
])  # fmt: skip
def test_what_a_policy_keeps_is_not_computed_again(policy, sines, exponentials):
    want = xf.grad(lambda x: xnp.sum(three(x)))(X)
    layer = xf.checkpoint(three, policy=policy)
    assert_allclose(xf.grad(lambda x: xnp.sum(layer(x)))(X), want, rtol=1e-14)
    ran = backward_of(layer, X)
    assert ran("Sin", "Exp", "Cos") == (sines, exponentials, 3)
    assert_allclose(xf.hessian(lambda x: xnp.sum(layer(x)))(X), xf.hessian(lambda x: xnp.sum(three(x)))(X), rtol=1e-12)


def test_a_kept_result_of_a_rule_that_computes_it():
    m = np.array([[2.0, 0.3], [0.1, 1.5]])

    def solved(a, b):
        return np.sin(xf.name(xnp.linalg.solve(a, b), "solution"))

    ran = backward_of(xf.checkpoint(solved, policy="solution"), m, X[:2])
    assert ran("Sin", "Cos", "Solve") == (0, 1, 1)  # that of the derivative
    agree(lambda ck: xf.grad(lambda a, b: xnp.sum(ck(solved, policy="solution")(a, b)), (0, 1)), m, X[:2])


def test_policies_of_inner_checkpoints_hold_in_the_recomputation_of_the_outer():
    def nested(policy):
        inner = xf.checkpoint(lambda x: np.sin(xf.name(np.exp(np.sin(x)), "k")), policy=policy)
        return xf.checkpoint(lambda x: np.cos(inner(x)))

    assert backward_of(nested(None), X)("Exp") == (2,)
    assert backward_of(nested("k"), X)("Exp") == (1,)
    assert_allclose(*[xf.grad(lambda x: xnp.sum(nested(p)(x)))(X) for p in (None, "k")], rtol=1e-15)  # noqa: B023


def test_a_name_for_what_an_inner_checkpoint_gives():
    def fun(ck):
        def body(x):
            y = ck(lambda z: np.exp(np.sin(z)))(x)
            return np.cos(y) * xf.name(y, "h")

        return ck(body, policy="h")

    agree(lambda ck: xf.grad(lambda x: xnp.sum(fun(ck)(x))), X)
    ran = backward_of(fun(xf.checkpoint), X)
    assert ran("Sin", "Exp", "Cos") == (2, 1, 2)  # exp and its operand once, inside; sin(y), cos(y), cos(x)


@pytest.mark.parametrize("policy", [3, ["h", 1], True])
def test_a_policy_of_another_kind_is_refused(policy):
    with pytest.raises(OperandTypeError, match=r"checkpoint of three: policy is names .* got "):
        xf.checkpoint(three, policy=policy)


@pytest.mark.parametrize("fun", [3, None])
def test_what_is_no_function_is_refused(fun):
    with suppress_type_checks(), pytest.raises(OperandTypeError, match="checkpoint takes a function"):
        xf.checkpoint(fun)


# ------------------------------------------------------------------ memory


ALIVE: list[weakref.ref] = []


@attrs.frozen
class Noted(xf.Operator):
    """The sine, with a weak reference to each result, and its result as what its derivative keeps."""

    def infer(self, x):
        return x

    def evaluate(self, xp, x):
        out = np.sin(x)
        ALIVE.append(weakref.ref(out))
        return out


xf.partials(Noted, lambda t, x, out: t * np.cos(x) + 0.0 * out)


def noted(x):
    return xf.apply(Noted(), x)


def alive():
    return [ref() is not None for ref in ALIVE]


@pytest.fixture
def _no_collector():
    ALIVE.clear()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize(("policy", "want"), [(None, [False, False, True]), ("h", [False, True, True])])
def test_intermediate_values_die_when_the_function_returns(policy, want):
    layer = xf.checkpoint(lambda x: noted(xf.name(noted(noted(x)), "h")), policy=policy)
    with xf.Grad() as tape:
        x = tape.attach(X.copy())
        y = layer(x)
        assert alive() == want
        out = np.sum(y)
        del y
        assert alive() == [*want[:2], False]  # nothing needs it again
    gradient = tape.gradient(out, x)
    s, t = np.sin(X), np.sin(np.sin(X))
    assert_allclose(gradient, np.cos(X) * np.cos(s) * np.cos(t))
    del out
    assert not any(alive())


@pytest.mark.usefixtures("_no_collector")
def test_they_are_kept_without_a_checkpoint():
    with xf.Grad() as tape:
        y = noted(noted(noted(tape.attach(X.copy()))))
        assert alive() == [True, True, True]
    del y


@pytest.mark.usefixtures("_no_collector")
def test_a_loop_keeps_its_carries_alone():
    body = xf.checkpoint(lambda z: noted(noted(noted(z))))
    with xf.Grad() as tape:
        z = x = tape.attach(X.copy())
        for _ in range(5):
            z = body(z)
        assert alive() == [False, False, True] * 5
        out = np.sum(z)
    want = X
    slope = np.ones(3)
    for _ in range(15):
        slope, want = slope * np.cos(want), np.sin(want)
    assert_allclose(tape.gradient(out, x), slope, rtol=1e-12)
    del z, out
    assert not any(alive())


@pytest.mark.usefixtures("_no_collector")
def test_every_tape_of_the_stack_keeps_inputs_alone():
    layer = xf.checkpoint(lambda z: noted(noted(noted(z))))
    with xf.Grad() as below:
        u = below.attach(X.copy())
        with xf.Grad() as tape:
            x = tape.attach(u)
            out = xnp.sum(layer(x))
        assert not any(alive())
        first = tape.gradient(out, x)
        del out, x
        assert not any(alive())  # nor does the lower tape keep what the upper one computed again
        total = xnp.sum(first * first)
    found = below.gradient(total, u)
    assert_allclose(found, xf.grad(lambda x: xnp.sum(xf.grad(lambda z: xnp.sum(np.sin(np.sin(np.sin(z)))))(x) ** 2))(X))
    del total, first
    assert not any(alive())


@pytest.mark.usefixtures("_no_collector")
def test_what_is_computed_again_dies_after_its_last_use():
    most = []

    @attrs.frozen
    class Next(xf.Operator):
        def infer(self, x):
            return x

        def evaluate(self, xp, x):
            most.append(sum(alive()))
            out = x + 1.0
            ALIVE.append(weakref.ref(out))
            return out

    xf.linear(Next, lambda op, t, x: t)

    def body(z):
        for _ in range(10):
            z = xf.apply(Next(), z)
        return np.sin(z)

    assert_allclose(xf.grad(lambda x: xnp.sum(xf.checkpoint(body)(x)))(X), np.cos(X + 10.0))
    assert len(most) == 20
    assert max(most) <= 2


def test_an_input_that_no_derivative_needs_is_let_go():
    @xf.checkpoint
    def shifted(z, c):
        return z * 2.0 + c

    big = np.ones(1000)
    ref = weakref.ref(big)
    with xf.Grad() as tape:
        x = tape.attach(np.zeros(1000))
        y = shifted(x, big)
        del big
        assert ref() is None
        out = np.sum(y)
    assert_allclose(tape.gradient(out, x), 2.0 * np.ones(1000))


@pytest.mark.parametrize(("policy", "arrays"), [(None, 1), ("h", 2)])
def test_memory_of_a_loop_in_arrays(policy, arrays):
    count, size = 20, 20_000

    def body(z):
        h = xf.name(np.cos(np.sin(z)), "h")
        h = xnp.where(h > 0.7, h * h, 0.5 * h)
        return np.sin(np.tanh(h))

    def peaks(fun):
        gc.collect()
        tracemalloc.start()
        with xf.Grad() as tape:
            z = x = tape.attach(np.linspace(0.0, 1.0, size))
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(count):
                z = fun(z)
            out = xnp.sum(z)
            held = tracemalloc.get_traced_memory()[0] - before
            tracemalloc.reset_peak()
            tape.gradient(out, x)
            peak = tracemalloc.get_traced_memory()[1] - before
        tracemalloc.stop()
        return held / (8 * size), peak / (8 * size)

    with suppress_type_checks():
        held, peak = peaks(xf.checkpoint(body, policy=policy))
        without, _ = peaks(body)
    assert count * arrays <= held <= count * (arrays + 0.2) + 1
    assert peak <= held + 12  # of one body
    assert without > 4 * count


def test_no_cycles():
    def run():
        layer = xf.checkpoint(lambda z: xf.checkpoint(np.sin)(z) * W)
        xf.grad(lambda x: xnp.sum(layer(x) * xf.grad(lambda u: xnp.sum(layer(u)))(x)))(X)

    with suppress_type_checks():
        run()
        gc.collect()
        gc.disable()
        try:
            counts = []
            for _ in range(3):
                run()
                counts.append(len(gc.get_objects()))
        finally:
            gc.enable()
    assert counts[0] == counts[1] == counts[2]


def test_many_and_deeply_nested_checkpoints():
    def loss(x):
        for _ in range(2000):
            x = body(x)
        return x

    body = xf.checkpoint(lambda z: np.sin(z) * 1.0001)
    nested = np.sin
    for _ in range(30):
        nested = xf.checkpoint(lambda z, fun=nested: fun(z) * 1.01)
    with suppress_type_checks():
        assert 0.0 < xf.grad(loss)(0.5) < 1.0
        assert_allclose(xf.grad(nested)(0.5), np.cos(0.5) * 1.01**30, rtol=1e-12)
