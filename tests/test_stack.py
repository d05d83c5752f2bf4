"""The stack: apply, layers in every form, order and cursor, what may stand where, exceptions, scopes, observers."""

import contextlib
import warnings

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import xform as xf
import xform.numpy as xnp
from xform.core.errors import LayerError, LayerOrderError, OperandTypeError, RuleError
from xform.ops.structural import PopScope, PushScope

X = np.array([0.3, -1.2, 2.0])


class Log(xf.Transformation):
    """Passes everything on, and writes down what it sees."""

    effect = "faithful"

    def __init__(self, name="log", log=None):
        self.name, self.log = name, [] if log is None else log

    def interpret(self, op, values):
        if not isinstance(op, PushScope):
            self.log.append((self.name, op.name))
        return xf.apply(op, *values)


class CosForSin(xf.Transformation):
    def interpret(self, op, values):
        return xf.apply(xf.ops.Cos() if op == xf.ops.Sin() else op, *values)


class Seen(xf.Observer):
    def __init__(self):
        self.names = []

    def observe(self, op, inputs, outputs):
        self.names.append(op.name)


# ------------------------------------------------------------------ apply


@pytest.mark.parametrize("value", [1.0, 2, True, 1j, np.float32(3), np.array(2.0), X, X.astype("float32")])
def test_apply_on_an_empty_stack_is_raw(value):
    out = xf.apply(xf.ops.Sin(), value)
    want = np.sin(value)
    assert type(out) is type(want)
    assert out.dtype == want.dtype
    assert_array_equal(out, want)


def test_apply_with_layers_but_no_tracked_input_is_raw_and_walks_the_stack():
    with Log() as layer:
        out = xf.apply(xf.ops.Sin(), X)
        assert type(out) is np.ndarray
        assert type(xnp.sin(xf.array(X))) is xf.Array
    assert layer.log == [("log", "Sin")] * 2


@pytest.mark.parametrize("value", ["text", None, [1.0], object(), {"a": 1.0}])
def test_apply_refuses_what_is_no_array(value):
    for layers in (contextlib.nullcontext(), Log(), xf.Grad()):
        with layers, pytest.raises(OperandTypeError, match=r"Add: operand 1 is .*no array"):
            xf.apply(xf.ops.Add(), X, value)
        assert xf.stack() == ()


def test_several_outputs_are_a_tuple():
    class Both(xf.Operator):
        multiple_outputs = True

        def evaluate(self, xp, x):
            return xp.sin(x), xp.cos(x)

    for layers in (contextlib.nullcontext(), Log(), Seen()):
        with layers:
            out = xf.apply(Both(), X)
            assert type(out) is tuple
            assert_array_equal(out[1], np.cos(X))


# ------------------------------------------------------------------ order and cursor


def test_the_layer_activated_last_sees_the_operation_first():
    log = []
    with Log("below", log), Log("above", log):
        xnp.sin(X)
    assert log == [("above", "Sin"), ("below", "Sin")]


def test_inside_interpret_apply_means_below():
    class Twice(xf.Transformation):
        def interpret(self, op, values):
            assert self not in xf.stack()
            out = xf.apply(op, *values)
            return out + out if op == xf.ops.Sin() else out  # the operator goes below too

    log = []
    with Log("below", log), Twice() as twice, Log("above", log):
        out = xnp.sin(xf.array(X))
        assert xf.stack()[1] is twice
    assert_array_equal(out.data, 2 * np.sin(X))
    assert log == [("above", "Sin"), ("below", "Sin"), ("below", "Add")]


def test_attribute_like_operators_and_scopes_pass_through_layers():
    class All(xf.Transformation):
        def __init__(self):
            self.ops = []

        def interpret(self, op, values):
            self.ops.append((op.name, len(values)))
            return xf.apply(op, *values)

    with All() as layer, xf.named_scope("a"):
        assert float(xf.array(2.0)) == 2.0
        assert bool(xf.array(1.0) > 0)
    assert ("PushScope", 0) in layer.ops
    assert ("PopScope", 0) in layer.ops
    assert ("HostRead", 1) in layer.ops


def test_a_layer_as_decorator_lifts_and_lowers():
    layer = Log()

    @layer
    def function(p, n, *, k):
        assert type(p["x"]) is xf.Array
        assert type(n) is int
        assert k == "text"
        return {"out": np.sin(p["x"]) * n, "p": p}

    found = function({"x": X}, 3, k="text")
    assert type(found["out"]) is np.ndarray
    assert type(found["p"]["x"]) is np.ndarray
    assert_array_equal(found["out"], np.sin(X) * 3)
    assert layer.log == [("log", "Sin"), ("log", "Mul")]
    assert type(function({"x": xf.array(X)}, 3, k="text")["out"]) is xf.Array
    assert function.__name__ == "function"
    assert xf.stack() == ()


def test_layers_nest_and_can_be_used_again():
    layer, other = Log("a"), Log("b")
    for _ in range(2):
        with layer, other:
            assert xf.stack() == (other, layer)
            with Log("c") as third:
                assert xf.stack() == (third, other, layer)
        assert xf.stack() == ()
    with other, layer:
        assert xf.stack() == (layer, other)


def test_by_registered_name():
    xf.register("test-log", Log)
    with xf.layer("test-log", name="n") as layer:
        xnp.sin(X)
    assert layer.log == [("n", "Sin")]
    assert "test-log" in xf.transformations()


# ------------------------------------------------------------------ what may stand where


def test_a_rewriting_layer_below_a_tape_is_refused_when_the_tape_is_pushed():
    with CosForSin() as layer:
        with pytest.raises(LayerError, match=r"CosForSin.*Grad.*grad\(layer\(f\)\)"), xf.Grad():
            pass
        assert xf.stack() == (layer,)
        with pytest.raises(LayerError, match=r"CosForSin.*Grad.*grad\(layer\(f\)\)"):
            xf.grad(lambda x: np.sin(x).sum())(X)
        assert xf.stack() == (layer,)


def test_a_rewriting_layer_is_refused_when_a_gradient_is_computed_under_it():
    _, pullback = xf.vjp(np.sin, X)
    with xf.Grad() as tape:
        x = tape.attach(X)
        y = np.sin(x)
    with CosForSin() as layer:
        with pytest.raises(LayerError, match=r"CosForSin.*Grad.*grad\(layer\(f\)\)"):
            pullback(np.ones(3))
        with pytest.raises(LayerError, match=r"CosForSin.*Grad"):
            tape.gradient(y, x, np.ones(3))
        assert xf.stack() == (layer,)
    assert_array_equal(pullback(np.ones(3))[0], np.cos(X))
    assert_array_equal(tape.gradient(y, x, np.ones(3)), np.cos(X))  # the refusal consumed nothing


def test_above_a_tape_a_rewriting_layer_gives_the_derivative_of_what_ran():
    assert_array_equal(xf.grad(lambda x: CosForSin()(np.sin)(x).sum())(X), -np.sin(X))
    with xf.Grad() as tape:
        x = tape.attach(X)
        with CosForSin():
            y = np.sin(x)
    assert_array_equal(tape.gradient(y, x, np.ones(3)), -np.sin(X))


def test_faithful_and_observing_layers_may_stand_below():
    for layer in (Log(), Seen()):
        with layer:
            assert_array_equal(xf.grad(lambda x: np.sin(x).sum())(X), np.cos(X))


def test_above_and_below_constraints():
    class Roof(Log):
        above = ("Wall",)  # it must stand above every Wall

    class Floor(Log):
        below = ("Wall",)

    class Wall(Log):
        pass

    with Floor(), Wall(), Roof():
        pass
    with Roof(), pytest.raises(LayerError, match=r"Wall\(\) must stand below Roof\(\)"), Wall():
        pass
    with Wall(), pytest.raises(LayerError, match=r"Floor\(\) must stand below Wall\(\)"), Floor():
        pass
    assert xf.stack() == ()


def test_a_layer_twice_on_one_stack_is_refused():
    layer = Log()
    with layer:
        with pytest.raises(LayerError, match="on this stack already"), layer:
            pass
        with Log(), pytest.raises(LayerError, match="on this stack already"):
            layer(np.sin)(X)
        assert xf.stack() == (layer,)


def test_out_of_order():
    first, second = Log("first"), Log("second")
    first.__enter__()
    second.__enter__()
    with pytest.raises(LayerOrderError, match="was left while"):
        first.__exit__(None, None, None)
    assert xf.stack() == ()
    with pytest.raises(LayerOrderError, match="not on this stack"):
        second.__exit__(None, None, None)


# ------------------------------------------------------------------ exceptions


class Fails(xf.Transformation):
    effect = "faithful"

    def interpret(self, op, values):
        if op.name == "Exp":
            raise KeyError("mine")
        return xf.apply(op, *values)


def test_exceptions_leave_the_stack_as_before():
    with Log() as low, Fails() as layer, Log() as high:
        for call in (lambda: xnp.exp(X), lambda: xf.grad(lambda x: np.exp(x).sum())(X)):
            with xf.named_scope("s"), pytest.raises(KeyError, match="mine"):
                call()
            assert xf.stack() == (high, layer, low)
            assert xf.current().scopes == ()
    with pytest.raises(KeyError, match="mine"), Log(), Fails():
        xnp.exp(X)
    assert xf.stack() == ()


def test_on_register_and_on_unregister():
    events = []

    class Hooks(xf.Transformation):
        def interpret(self, op, values):
            return xf.apply(op, *values)

        def on_register(self):
            events.append(("in", xf.stack()))

        def on_unregister(self):
            events.append(("out", xf.stack()))
            raise KeyError("late")

    with Log() as low:
        with pytest.warns(UserWarning, match="on_unregister raised KeyError"), Hooks():
            pass
        assert events == [("in", (low,)), ("out", (low,))]
        assert xf.stack() == (low,)


def test_interpret_that_returns_none_is_named():
    class Forgot(xf.Transformation):
        def interpret(self, op, values):
            xf.apply(op, *values)

    with Forgot(), pytest.raises(RuleError, match=r"Forgot.interpret returned None for Sin\(\)"):
        xnp.sin(X)


# ------------------------------------------------------------------ scopes, observers


def test_named_scope_as_context_manager_and_decorator():
    @xf.named_scope("f")
    def function(depth):
        return xf.current().scopes if not depth else function(depth - 1)

    with xf.named_scope("a"):
        assert function(2) == ("a", "f", "f", "f")
    with pytest.raises(KeyError), xf.named_scope("a"):
        raise KeyError
    assert xf.current().scopes == ()
    here = xf.current()
    assert (here.phase, here.loop, here.iteration) == ("forward", None, None)
    assert here.line[0] == __file__


def test_observer_hooks():
    events = []

    class Hooks(xf.Observer):
        def before(self, op, inputs):
            events.append(("before", op.name, xf.stack()))
            return len(events)

        def after(self, token, op, inputs, outputs):
            events.append(("after", op.name, token, xf.concrete(outputs).shape))

        def failed(self, token, op, inputs, error):
            events.append(("failed", op.name, token, type(error)))

    with Log() as low, Fails(), Hooks():
        xnp.sin(X)
        with pytest.raises(KeyError):
            xnp.exp(X)
    assert [event[0] for event in events] == ["before", "after", "before", "failed"]
    assert [event[1] for event in events] == ["Sin", "Sin", "Exp", "Exp"]
    assert low in events[0][2]
    assert events[1][2:] == (1, (3,))
    assert events[3][2:] == (3, KeyError)


def test_an_observer_that_saw_nothing_warns_and_says_why():
    with pytest.warns(UserWarning, match=r"saw no operation.*xf\.array\(x\)"), Seen():
        np.sin(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KeyError), Seen():
            raise KeyError
        layer = Seen()
        with layer:
            np.sin(xf.array(X))
    with pytest.warns(UserWarning, match="saw no operation"), layer:  # what it saw before is another block
        pass
    assert layer.names == ["Sin"]
    assert isinstance(PopScope("s"), PushScope)
