"""Bad input: each error names operator, argument and remedy, and the stack is as before."""

import asyncio
import contextlib
import pickle
import re

import attrs
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import xform as xf
import xform.numpy as xnp
from xform.core import errors
from xform.core.errors import EscapedValueError, LayerError, MissingRuleError, RuleError, ShapeError, XformError

X = np.array([[0.3, -1.2, 2.0], [0.7, 1.1, -0.4]])


@attrs.frozen
class NoRules(xf.Operator):
    """An operator without rules."""

    def infer(self, x):
        return x

    def evaluate(self, xp, x):
        return x + 1.0


@attrs.frozen
class Bad(xf.Operator):
    """An operator whose rule is wrong in a way that `kind` names."""

    kind: str

    def infer(self, x):
        return x

    def evaluate(self, xp, x):
        return x * 2.0


@xf.vjp_rule(Bad)
def bad_vjp(op, needed, x):
    if op.kind == "rule raises":
        raise KeyError("in the rule")

    def pullback(t):
        if op.kind == "pullback raises":
            raise KeyError("in the pullback")
        return {"no tuple": t, "too few": (), "shape": (np.ones(7),), "no array": ("text",)}[op.kind]

    return xf.apply(op, x), pullback


def kept_value():
    with xf.Grad(name="mine") as tape:
        x = tape.attach(X)
        return np.sin(x)


def kept_trace():
    with xf.Trace() as recorder:
        return np.sin(recorder.input(X))


def use(kind, function):
    """Call `function` with X as a value of one kind."""
    if kind == "plain":
        return function(xf.array(X))
    if kind == "tape":
        with xf.Grad() as tape:
            return function(tape.attach(X))
    return xf.make_program(function)(X)


SHAPES = {
    "Add": lambda x: x + np.ones(4),
    "Matmul": lambda x: x @ np.ones(4),
    "Reshape": lambda x: x.reshape(4, 4),
    "Concatenate": lambda x: np.concatenate([x, np.ones((3, 5))]),
    "BroadcastTo": lambda x: np.broadcast_to(x, (2, 4)),
    "Where": lambda x: np.where(np.ones(4, bool), x, x),
    "Transpose": lambda x: np.transpose(x, (0, 1, 2)),
    "Sum": lambda x: np.sum(x, axis=5),
    "Squeeze": lambda x: np.squeeze(x, axis=0),
    "Solve": lambda x: np.linalg.solve(x, np.ones(2)),
}


@pytest.mark.parametrize("kind", ["plain", "tape", "abstract"])
@pytest.mark.parametrize("name", SHAPES)
def test_shape_mismatch(name, kind):
    with xf.named_scope("outside"):
        with pytest.raises(ValueError, match=r".") as caught:
            use(kind, SHAPES[name])
        assert xf.current().scopes == ("outside",)
    assert xf.stack() == ()
    message = str(caught.value)
    assert re.search(name, message, re.IGNORECASE), message
    if name in ("Add", "Matmul", "Concatenate", "BroadcastTo", "Where"):
        assert isinstance(caught.value, ShapeError)
        assert re.search(r"2, ?3|\(2, 3\)|\[2,3\]", message), message  # the shape that does not fit
        assert kind == "abstract" or "reshape an operand, or insert axes" in message


@pytest.mark.parametrize("kind", ["plain", "tape"])
def test_the_users_line_is_named(kind):
    with pytest.raises(ShapeError, match=r"test_errors\.py:\d+.*x \+ np\.ones\(4\)"):
        use(kind, lambda x: x + np.ones(4))


@pytest.mark.parametrize("kind", ["plain", "tape", "abstract"])
@pytest.mark.parametrize(("name", "function"), [
    ("BitwiseAnd", lambda x: x & 1),
    ("BitwiseXor", lambda x: x ^ x),
    ("Invert", lambda x: ~x),
    ("Sub", lambda x: xnp.subtract(x > 0, x > 1)),
    ("GetItem|index", lambda x: x[0.5]),
    ("Sin", lambda x: xnp.sin("text")),
    ("Add|operand", lambda x: xnp.add(x, "text")),
    ("Add|operand", lambda x: xnp.add(x, None)),
])  # fmt: skip
def test_dtype_and_kind_mismatch(name, function, kind):
    with pytest.raises((TypeError, IndexError)) as caught:
        use(kind, function)
    assert isinstance(caught.value, XformError)
    assert re.search(name, str(caught.value), re.IGNORECASE), caught.value
    assert xf.stack() == ()


@pytest.mark.parametrize("kind", ["plain", "tape", "abstract"])
def test_an_index_out_of_bounds(kind):
    for index in (5, (0, -4), [0, 7]):
        if kind == "abstract" and index == [0, 7]:
            continue  # the program's index array is data
        with pytest.raises(IndexError, match=r"out of bounds|out of range"):
            use(kind, lambda x, index=index: x[index])
    with pytest.raises(IndexError, match=r"too many indices|3 axes are indexed, but the operand has 2"):
        use(kind, lambda x: x[0, 0, 0])
    assert xf.stack() == ()


def test_missing_rule():
    said = r"NoRules\(\) has no vjp rule; write one with @vjp_rule\(NoRules\)"
    with pytest.raises(MissingRuleError, match=said) as caught:
        xf.grad(lambda x: xf.apply(NoRules(), x).sum())(X)
    assert isinstance(caught.value, NotImplementedError)
    assert caught.value.op == NoRules()
    assert xf.stack() == ()
    assert_array_equal(xf.apply(NoRules(), X), X + 1)


@pytest.mark.parametrize(("kind", "error", "said"), [
    ("rule raises", KeyError, "in the rule"),
    ("pullback raises", KeyError, "in the pullback"),
    ("no tuple", RuleError, r"pullback of Bad\(kind='no tuple'\).*must return a tuple"),
    ("too few", RuleError, r"pullback of Bad\(kind='too few'\) returned 0 cotangents"),
    ("shape", RuleError, r"pullback of Bad\(kind='shape'\).*operand 0.*\(7,\).*\(2, 3\)|\[7\].*\[2,3\]"),
    ("no array", RuleError, r"pullback of Bad\(kind='no array'\).*operand 0.*str"),
])  # fmt: skip
@pytest.mark.parametrize("below", [False, True])
def test_exceptions_in_a_rule(kind, error, said, below):
    class Pass(xf.Observer):
        def observe(self, op, inputs, outputs):
            pass

    layer = Pass() if below else xf.named_scope("s")
    with layer:
        before = xf.stack()
        with pytest.raises(error, match=said):
            xf.grad(lambda x: (xf.apply(Bad(kind), x * 1.0) * 1.0).sum())(X)
        assert xf.stack() == before
        xnp.sin(X)
    assert xf.current().scopes == ()
    assert_array_equal(xf.grad(np.sum)(X), np.ones_like(X))


# ------------------------------------------------------------------ values that outlive their transformation

AFTER = {
    "operator": lambda v: v + 1.0,
    "reflected": lambda v: 2.0 * v,
    "with an ndarray": lambda v: X * v,
    "function": lambda v: np.sin(v),
    "method": lambda v: v.sum(),
    "index": lambda v: v[0],
    "grad": lambda v: xf.grad(lambda x: (x * v).sum())(X),
    "nested grad": lambda v: xf.grad(lambda x: xf.grad(lambda y: (y * x * v).sum())(X).sum())(X),
    "vjp of it": lambda v: xf.vjp(np.sin, v),
    "attach": lambda v: use("tape", lambda x: np.sin(v)),
    "trace": lambda v: xf.trace(lambda x: x * v)(X),
    "input of a trace": lambda v: xf.trace(lambda x: x * 2.0)(v),
    "program": lambda v: xf.make_program(lambda x: x * v)(X),
    "custom gradient": lambda v: xf.custom_gradient(lambda x: (x, None), lambda r, t: t)(v),
}


@pytest.mark.parametrize("name", AFTER)
def test_a_tape_value_used_after_its_block(name):
    value = kept_value()
    with pytest.raises(EscapedValueError) as caught:
        AFTER[name](value)
    message = str(caught.value)
    for part in ("mine", "xf.stop_gradient(v)", "xf.carry", "test_errors.py", "with xf.Grad(name="):
        assert part in message, (part, message)
    assert caught.value.owner.name == "mine"
    assert isinstance(caught.value, RuntimeError)
    assert xf.stack() == ()


@pytest.mark.parametrize("name", AFTER)
def test_a_traced_value_used_after_its_block(name):
    with pytest.raises(EscapedValueError, match=r"Trace.*test_errors\.py") as caught:
        AFTER[name](kept_trace())
    assert "return it" in str(caught.value)
    assert xf.stack() == ()


def test_a_tape_value_can_be_read_after_its_end_and_given_to_gradient():
    with xf.Grad() as tape:
        x = tape.attach(X)
        y = np.sin(x).sum()
    assert float(y) == np.sin(X).sum()
    assert f"{y:.3f}" == f"{np.sin(X).sum():.3f}"
    assert_array_equal(np.asarray(x), X)
    assert x.shape == (2, 3)
    plain = xf.stop_gradient(x)
    assert_array_equal(plain * 2.0, X * 2)
    assert_array_equal(tape.gradient(y, x), np.cos(X))


def test_a_value_leaked_by_an_inner_function_does_not_act_as_a_constant():
    leaked = []

    def inner(y):
        leaked.append(y * 2.0)
        return y * y

    def outer(x):
        xf.grad(inner)(x)
        return x * leaked[0]

    with pytest.raises(EscapedValueError):
        xf.grad(outer)(2.0)
    assert xf.stack() == ()


# ------------------------------------------------------------------ a layer around a yield


class Log(xf.Observer):
    def observe(self, op, inputs, outputs):
        pass


def test_a_layer_around_a_yield_is_refused():
    def generator():
        with Log():
            yield 1

    def fine():
        with Log():
            value = xnp.sin(X)
        yield value

    async def asynchronous():
        with Log():
            yield 1

    async def run():
        return [item async for item in asynchronous()]

    with pytest.raises(LayerError, match="stands around a yield"):
        list(generator())
    assert xf.stack() == ()
    assert_array_equal(next(fine()), np.sin(X))
    with pytest.raises(LayerError, match="stands around a yield"):
        asyncio.run(run())


def test_a_layer_around_the_yield_of_a_context_manager_is_fine():
    @contextlib.contextmanager
    def logged():
        with Log() as layer:
            yield layer
            xnp.sin(X)

    with logged() as layer:
        assert xf.stack() == (layer,)
    assert xf.stack() == ()

    @contextlib.asynccontextmanager
    async def later():
        with Log() as layer:
            yield layer
            xnp.sin(X)

    async def run():
        async with later() as layer:
            assert xf.stack() == (layer,)
        assert xf.stack() == ()

    asyncio.run(run())


# ------------------------------------------------------------------ the family


def test_every_error_is_also_a_builtin_and_can_be_pickled():
    for name in errors.__all__:
        kind = getattr(errors, name)
        assert issubclass(kind, XformError)
        if kind is not XformError:
            builtin = ValueError | TypeError | RuntimeError | NotImplementedError | ArithmeticError | ImportError
            assert issubclass(kind, builtin)
        error = kind("said", op=np.sin)
        assert error.op is np.sin
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is kind
        assert str(again) == "said"


def test_a_real_error_can_be_pickled():
    with pytest.raises(EscapedValueError) as caught:
        kept_value() + 1.0
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)


def test_a_custom_gradient_that_returns_no_pair():
    wrong = xf.custom_gradient(lambda x: x, lambda r, t: t)
    with pytest.raises(RuleError, match=r"forward must return \(outs, residuals\), got ndarray"):
        xf.grad(lambda x: wrong(x).sum())(X)
    assert xf.stack() == ()


def test_an_exception_in_a_callback():
    def fail(t):
        raise KeyError("mine")

    with xf.Grad() as tape:
        x = tape.attach(X, callback=fail)
        y = np.sin(x).sum()
        with pytest.raises(KeyError, match="mine"):
            tape.backward(y)
        assert xf.stack() == (tape,)
    assert xf.stack() == ()
    assert xf.current().phase == "forward"
