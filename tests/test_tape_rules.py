"""Rules on a tape: when they are called, what they are asked for, in which order contributions add, what they free."""

import contextlib
import copy
import gc
import subprocess
import sys
import weakref

import attrs
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import xform as xf
import xform.numpy as xnp
from xform.core.errors import LayerError

X = np.array([0.3, -1.2, 2.0])
ONES = np.ones_like(X)


class See(xf.Observer):
    """Something that stands below."""

    def observe(self, op, inputs, outputs):
        pass


BELOW = {"nothing": contextlib.nullcontext, "an observer": See, "a tape": xf.Grad}
everywhere = pytest.mark.parametrize("below", list(BELOW.values()), ids=list(BELOW))
blocked = xf.custom_gradient(lambda x: (x * 1.0, None), lambda _, t: None)


# ------------------------------------------------------------------ when rules are called, and what for


@attrs.frozen
class Pair(xf.Operator):
    """Two outputs of two operands."""

    multiple_outputs = True

    def infer(self, x, y):
        return x, x

    def evaluate(self, xp, x, y):
        return x * y, x + y


@attrs.frozen
class Scaled(xf.Operator):
    """One output of two operands."""

    def infer(self, x, y):
        return x

    def evaluate(self, xp, x, y):
        return x * y


asked, called = [], []


@xf.vjp_rule(Pair)
def pair_vjp(op, needed, x, y):
    asked.append(needed)

    def pullback(cotangents):
        called.append(op)
        a, b = cotangents
        return a * y + b, a * x + b

    return xf.apply(op, x, y), pullback


@xf.vjp_rule(Scaled)
def scaled_vjp(op, needed, x, y):
    asked.append(needed)

    def pullback(cotangent):
        called.append(op)
        return cotangent * y, cotangent * x

    return xf.apply(op, x, y), pullback


for _operator in (Pair, Scaled):
    xf.jvp_rule.none(_operator, why="a test's own operator")
    xf.batch_rule.none(_operator, why="a test's own operator")


@everywhere
def test_a_rule_is_not_called_where_the_backward_above_it_gave_no_cotangent(below):
    called.clear()
    inner = []
    custom = xf.custom_gradient(lambda x: ((x * 1.0, x * 2.0), None), lambda _, *ts: inner.append(ts))
    with below(), xf.Grad() as tape:
        x = tape.attach(X)
        a, b = xf.apply(Pair(), x, x)
        c = xf.apply(Scaled(), x, 3.0)
        d, e = custom(x)
        y = blocked(a) + blocked(b) * 2.0 + blocked(c) + blocked(d) + blocked(e) + x * 5.0
        found = tape.gradient(y, x, ONES)
    assert called == []
    assert inner == []
    assert_array_equal(xf.concrete(found), 5 * ONES)


@everywhere
def test_a_rule_is_called_once_where_one_of_two_cotangents_is_there(below):
    called.clear()
    with below(), xf.Grad() as tape:
        x = tape.attach(X)
        a, b = xf.apply(Pair(), x, 3.0)
        found = tape.gradient(blocked(a) + b * 2.0, x, ONES)
    assert called == [Pair()]
    assert_array_equal(xf.concrete(found), 2 * ONES)


@everywhere
@pytest.mark.parametrize("operator", [Pair, Scaled])
@pytest.mark.parametrize("tracked", [(True, False), (False, True), (True, True)])
def test_a_rule_is_told_which_operands_are_tracked(below, operator, tracked):
    asked.clear()
    with below(), xf.Grad() as tape:
        operands = [tape.attach(X) if each else X for each in tracked]
        xf.apply(operator(), *operands)
    assert asked == [tracked]


def test_cotangents_of_operands_that_are_not_tracked_are_not_computed():
    a, b = np.diag([2.0, 3.0, 4.0]), np.eye(3)
    programs = []
    for which in (0, 1):
        with xf.Trace() as recorder:
            given = [recorder.input(a), recorder.input(b)]
            with xf.Grad() as tape:
                given[which] = tape.attach(given[which])
                out = tape.gradient(xnp.linalg.solve(*given), given[which], b)
        programs.append(recorder.program(out))
    of_matrix, of_side = [[e.op.name for e in p.equations if e.phase == "backward"] for p in programs]
    assert "Matmul" in of_matrix  # the outer product with the solution
    assert "Matmul" not in of_side


# ------------------------------------------------------------------ the order of contributions


@everywhere
@pytest.mark.parametrize(("factors", "want"), [
    ((1.0, -1e16, 1e16), 1.0),  # of the last consumer first: (1e16 - 1e16) + 1
    ((-1e16, 1.0, 1e16), 0.0),  # (1e16 + 1) - 1e16
    ((-1e16, 1e16, 1.0), 0.0),
])  # fmt: skip
def test_contributions_add_up_from_the_last_consumer_to_the_first(below, factors, want):
    for operations in (lambda x: [x * f for f in factors], lambda x: [xnp.sum(x * f) for f in factors]):
        with below(), xf.Grad() as tape:
            x = tape.attach(np.ones(1))
            parts = operations(x)
            found = tape.gradient(parts, x, [np.ones(np.shape(part)) for part in parts])
        assert_array_equal(xf.concrete(found), [want])


def test_a_contribution_is_added_to_what_is_there():
    with xf.Trace() as recorder:
        x0 = recorder.input(X)
        with xf.Grad() as tape:
            x = tape.attach(x0)
            y = np.sin(x) + np.exp(x) * 1.0
            found = tape.gradient(y, x, ONES)
    program = recorder.program(found)
    (total,) = [e for e in program.equations if e.phase == "backward" and e.op.name == "Add"]
    made_by = {e.outputs[0]: e.scopes[-1] for e in program.equations if e.phase == "backward"}
    assert [made_by[variable] for variable in total.inputs] == ["Exp.Backward", "Sin.Backward"]


# ------------------------------------------------------------------ freeing


@everywhere
def test_backward_releases_residuals_as_it_goes(below):
    gc.disable()
    alive = []
    try:
        with below(), xf.Grad() as tape:
            x = tape.attach(X)
            h = tape.attach(np.exp(x), lambda t: alive.append(data()))
            k = np.exp(h)
            data = weakref.ref(xf.concrete(k))
            y = np.sin(k)
            del k, h
            assert data() is not None
            found = tape.gradient(y, x, ONES)
        assert alive == [None]
    finally:
        gc.enable()
    assert_allclose(xf.concrete(found), np.cos(np.exp(np.exp(X))) * np.exp(np.exp(X)) * np.exp(X))


FAILING = """
import gc, contextlib, weakref
import numpy as np
import xform as xf

class See(xf.Observer):
    def observe(self, op, inputs, outputs):
        pass

def backward(_, t):
    part = t * 2.0
    waiting.append(weakref.ref(xf.concrete(part)))
    return part

def fail(t):
    raise KeyError("mine")

custom = xf.custom_gradient(lambda x: (x * 2.0, None), backward)
gc.disable()
for below in (contextlib.nullcontext, See, xf.Grad):
    waiting, errors = [], []
    with below(), xf.Grad() as tape:
        x = tape.attach(np.ones(3))
        h = x * 1.0
        a = tape.attach(np.exp(h), fail) * 3.0
        y = a + custom(h)  # its cotangent of h waits for that of exp
        try:
            tape.backward(y, np.ones(3))
        except KeyError as error:
            errors.append(error)
        assert errors[0].__traceback__ is not None
        assert [each() for each in waiting] == [None], below
"""


def test_an_exception_does_not_keep_cotangents_that_wait():
    """The traceback, still at hand, holds frames of the walk; what they hold is let go."""
    subprocess.run([sys.executable, "-c", FAILING], check=True)  # typeguard keeps what frames held


@everywhere
def test_a_closure_keeps_the_record_when_nothing_else_does(below):
    received = []
    with below(), xf.Grad() as tape:
        x = tape.attach(X, lambda t: received.append(xf.concrete(t)))
        h = np.sin(x)
        y = h * x
        closure = tape.backward_closure(y)
        del y, h, x
        gc.collect()
        closure(ONES)
        closure(2 * ONES)
    want = np.cos(X) * X + np.sin(X)
    assert_allclose(received, [want, 2 * want])


@everywhere
def test_a_tape_with_a_custom_gradient_is_freed_without_the_collector(below):
    custom = xf.custom_gradient(lambda x: (np.sin(x), x), lambda x, t: t * np.cos(x))

    def once():
        with below(), xf.Grad() as tape:
            x = tape.attach(X)
            found = tape.gradient(custom(x) * 2.0, x, ONES)
        assert_allclose(xf.concrete(found), 2 * np.cos(X))
        return weakref.ref(tape)

    once()
    gc.collect()
    gc.disable()
    try:
        assert once()() is None
    finally:
        gc.enable()


# ------------------------------------------------------------------ the edges of a tape


class Marked(xf.Value):
    """A value of `Wrapping`."""

    __slots__ = ("owner",)


class Wrapping(xf.Transformation):
    """A user's layer with values of its own: it computes below and wraps again."""

    effect = "wraps"

    def wrap(self, data):
        value = Marked()
        value.data = data
        value.owner = self
        return value

    def interpret(self, op, values):
        return self.wrap(xf.apply(op, *[self.unwrap(value) for value in values]))


def test_attaching_to_a_lower_tape_keeps_the_link_of_a_trace_above():
    with xf.Grad() as tape, xf.Trace() as recorder:
        x = recorder.input(X)
        y = x * x
        z = tape.attach(y)
        assert z.owner is recorder
        assert z.variable is y.variable
        out = np.sin(z)
        assert_allclose(xf.concrete(tape.gradient(out, z, ONES)), np.cos(X * X))
    program = recorder.program(out)
    assert [equation.op.name for equation in program.equations] == ["Mul", "Sin"]
    assert_allclose(program(X + 1.0), np.sin((X + 1.0) ** 2))


def test_attaching_to_a_lower_tape_keeps_the_link_of_a_users_layer_above():
    with xf.Grad() as tape, Wrapping() as layer:
        x = layer.wrap(xf.array(X))
        z = tape.attach(x * x)
        assert type(z) is Marked
        assert z.owner is layer
        assert tape.is_attached(z)
        assert not tape.is_attached(x)
        out = np.sin(z)
        assert type(out) is Marked
        found = tape.gradient(out, z, ONES)
    assert_allclose(xf.concrete(found), np.cos(X * X))


def test_on_backward_outside_the_block_is_refused():
    tape = xf.Grad()
    with pytest.raises(LayerError, match="inside its with block"):
        tape.on_backward(lambda: None)
    with tape:
        tape.on_backward(lambda: None)
    with pytest.raises(LayerError, match="inside its with block"):
        tape.on_backward(lambda: None)


def test_a_deep_copy_of_a_tracked_value_is_the_value():
    with xf.Grad() as tape:
        x = tape.attach(X)
        y = np.sin(x)
        copied = copy.deepcopy({"y": y, "w": X})
        assert copied["y"] is y
        assert copied["w"] is not X
        assert_allclose(tape.gradient(copied["y"] * 2.0, x, ONES), 2 * np.cos(X))


def test_has_aux_by_position():
    gradient, aux = xf.grad(lambda x: (x**3, "aux"), 0, True)(2.0)
    assert (gradient, aux) == (12.0, "aux")
    (value, aux), gradient = xf.value_and_grad(lambda x, y: (x * y, x + y), (0, 1), True)(2.0, 3.0)
    assert (value, aux, gradient) == (6.0, 5.0, (3.0, 2.0))
