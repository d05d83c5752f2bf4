"""What a rule returns is checked: `RuleError` names the rule, the function or operator, and the operand."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import xform as xf
from xform.core.errors import RuleError

X = np.array([0.3, -1.2, 2.0])
ONES = np.ones(3)


class See(xf.Observer):
    def observe(self, op, inputs, outputs):
        pass


def refused(call, match):
    """The call raises, with nothing below and with an observer there, and the stack is as before."""
    for below in (xf.named_scope("none"), See()):
        with below:
            before = xf.stack()
            with pytest.raises(RuleError, match=match) as found:
                call()
            assert isinstance(found.value, TypeError)
            assert xf.stack() == before
            np.sin(xf.array(1.0))


# ------------------------------------------------------------------ custom functions


def my_fwd(x, p):
    return x * p["w"], (x, p)


def my_bwd(kept, t):
    x, p = kept
    return t * p["w"], {"w": t * x, "b": None}


ARGS = X, {"w": X + 1.0, "b": X[:2]}


@pytest.mark.parametrize(("fwd", "message"), [
    (lambda x, p: x, r"its fwd rule <lambda> must return \(outs, residuals\), got ndarray|got Array"),
    (lambda x, p: (x, p, None), r"must return \(outs, residuals\), got a tuple of 3"),
    (lambda x, p: [x, p], r"must return \(outs, residuals\), got list"),
    (lambda x, p: ({"y": "text"}, None), r"output \['y'\] of its fwd rule <lambda> is str, no array"),
    (lambda x, p: (object(), None), r"output of its fwd rule <lambda> is object, no array"),
])  # fmt: skip
def test_row_59_a_wrong_fwd(fwd, message):
    f = xf.custom_vjp(lambda x, p: x * p["w"])
    f.defvjp(fwd, my_bwd)
    refused(lambda: xf.grad(lambda x: f(x, ARGS[1]).sum())(X), rf"CustomVjp\[<lambda>\]: .*({message})")


@pytest.mark.parametrize(("bwd", "message"), [
    (lambda kept, t: t, "must return a tuple of 2, one cotangent or None per input; got (ndarray|Array|BatchValue)"),
    (lambda kept, t: (t,), "must return a tuple of 2, .*got 1 cotangents"),
    (lambda kept, t: (t, None, t), "must return a tuple of 2, .*got 3 cotangents"),
    (lambda kept, t: None, "must return a tuple of 2, .*got NoneType"),
    (lambda kept, t: (t, t), r"for argument 1 a cotangent that does not fit it: Structure\(\*\) for Structure\(\{'b"),
    (lambda kept, t: (t, {"w": t}), r"for argument 1 a cotangent that does not fit it"),
    (lambda kept, t: (t, [t, t]), r"for argument 1 a cotangent that does not fit it"),
    (lambda kept, t: ((t, t), None), r"for argument 0 as cotangent tuple, no array"),
    (lambda kept, t: ("text", None), r"for argument 0 as cotangent str, no array"),
    (lambda kept, t: (t.sum(), None), r"for argument 0 a cotangent float64\[\]; it must be float64\[3\]: sum or"),
    (lambda kept, t: (t, {"w": t, "b": t}), r"for argument 1\['b'\] a cotangent float64\[3\]; it must be float64\[2\]"),
    (lambda kept, t: (t.astype(int), None), r"for argument 0 a cotangent int64\[3\].*astype\('float64'\)"),
    (lambda kept, t: (t * 1j, None), r"for argument 0 a cotangent complex128\[3\].*take its real part"),
])  # fmt: skip
def test_row_59_a_wrong_bwd(bwd, message):
    f = xf.custom_vjp(lambda x, p: x * p["w"])
    f.defvjp(my_fwd, bwd)
    for fun, x in ((f, X), (xf.vmap(f, (0, None)), np.stack([X, X]))):
        slope = xf.grad(lambda x, fun=fun: fun(x, ARGS[1]).sum())
        refused(lambda slope=slope, x=x: slope(x), rf"CustomVjp.*its bwd rule <lambda> .*{message}")


@pytest.mark.parametrize(("rule", "message"), [
    (lambda x, t: x["y"], r"must return \(out, tangent_out\), got (ndarray|Array)"),
    (lambda x, t: (x, t, t), "must return .*got a tuple of 3"),
    (lambda x, t: (x, [t, t]), r"a tangent that does not fit its output: Structure\(\[\*, \*\]\) for"),
    (lambda x, t: (x, {"z": t}), "a tangent that does not fit its output"),
    (lambda x, t: (x, {"y": t.sum()}), r"for output \['y'\] a tangent float64\[\]; it must be float64\[3\]"),
    (lambda x, t: (x, {"y": t.astype("float32")}), r"for output \['y'\] a tangent float32\[3\].*astype\('float64'\)"),
    (lambda x, t: (x, {"y": t * 1j}), r"for output \['y'\] a tangent complex128\[3\].*take its real part"),
    (lambda x, t: (x, {"y": "text"}), r"for output \['y'\] as tangent str, no array"),
    (lambda x, t: ("text", {"y": t}), "output of its jvp rule <lambda> is str, no array"),
])  # fmt: skip
def test_row_59_a_wrong_jvp(rule, message):
    f = xf.custom_jvp(lambda x: {"y": x * 2.0})
    f.defjvp(lambda primals, tangents: rule(f(*primals), tangents[0]))
    for call in (lambda: xf.jvp(f, (X,), (X,)), lambda: xf.grad(lambda x: f(x)["y"].sum())(X)):
        refused(call, rf"CustomJvp\[<lambda>\]: .*{message}")


def test_a_wrong_custom_gradient():
    for back, message in (
        (lambda _, t: (t, t), "backward must return a tuple of 1, one cotangent or None per input; got 2 cotangents"),
        (lambda _, t: t.sum(), r"backward returned for argument 0 a cotangent float64\[\]; it must be float64\[3\]"),
    ):
        f = xf.custom_gradient(lambda x: (x * 2.0, None), back)
        refused(lambda f=f: xf.grad(lambda x: f(x).sum())(X), rf"CustomGradient\[<lambda>\]: {message}")
    wrong = xf.custom_gradient(lambda x: x, lambda _, t: t)
    refused(lambda: wrong(X), r"forward must return \(outs, residuals\), got (ndarray|Array)")


def test_outputs_of_another_structure_than_before():
    f = xf.custom_vjp(lambda x: x)
    f.defvjp(lambda x: ((x, x), None), lambda _, t: (t[0],))
    program = xf.make_program(f)(2.0)
    refused(lambda: xf.grad(program)(2.0), r"its fwd rule <lambda> gives outputs of structure Structure\(\(\*")


def test_precisions_are_cast_in_reverse_mode():
    f = xf.custom_vjp(lambda x: x * 2)
    f.defvjp(lambda x: (f(x), None), lambda _, t: (t.astype("float64") * 2.0,))
    found = xf.grad(lambda x: f(x).sum())(X.astype("float32"))
    assert found.dtype == "float32"
    assert_array_equal(found, 2.0 * ONES)
    f.defvjp(lambda x: (f(x), None), lambda _, t: (2,))
    assert xf.grad(f)(3.0) == 2.0
    assert type(xf.grad(f)(np.float32(3.0))) is np.float32


# ------------------------------------------------------------------ rules of operators


def operator(*, several=False, **rules):
    """An operator of two operands with some rules."""

    class Own(xf.Operator):
        multiple_outputs = several

        def infer(self, x, y):
            return (x, x) if several else x

        def evaluate(self, xp, x, y):
            return (x * 2.0, x * y) if several else x * y

    for table in (xf.vjp_rule, xf.jvp_rule, xf.batch_rule):
        if table.name in rules:
            table(Own)(rules[table.name])
    return Own()


def reverse(op):
    return lambda: xf.grad(lambda x, y: xf.tree.leaves(xf.apply(op, x, y))[-1].sum(), (0, 1))(X, X + 1.0)


def forward(op):
    return lambda: xf.jvp(lambda x, y: xf.apply(op, x, y), (X, X), (X, X))


def batched(op):
    return lambda: xf.vmap(lambda x, y: xf.apply(op, x, y))(X, X + 1.0)


def back(fun):
    """A reverse rule with a pullback."""
    return lambda op, needed, *primals: (xf.apply(op, *primals), fun)


@pytest.mark.parametrize(("several", "rule", "message"), [
    (False, lambda op, needed, *xs: xf.apply(op, *xs), r"the vjp rule of .*Own.* returned (ndarray|Array); it must"),
    (False, lambda op, needed, *xs: None, "the vjp rule of .* returned NoneType; it must return a pair"),
    (False, lambda op, needed, *xs: (xf.apply(op, *xs), None, None), "returned a tuple of 3; it must return a pair"),
    (False, lambda op, needed, *xs: (xf.apply(op, *xs), 3), "returned int as pullback, no function"),
    (False, lambda op, needed, *xs: ("text", len), "returned str as the result, no array"),
    (False, lambda op, needed, *xs: ((xf.apply(op, *xs),), len), "returned tuple as the result, no array"),
    (True, lambda op, needed, *xs: (xf.apply(op, *xs)[0], len), "as results; Own has several: return a tuple"),
    (False, back(lambda t: (t,)), "the pullback of .*Own.* returned 1 cotangents; it must return a tuple of 2"),
    (False, back(lambda t: (t, t, t)), "returned 3 cotangents; it must return a tuple of 2"),
    (False, back(lambda t: [t, t]), "returned list; it must return a tuple of 2"),
    (False, back(lambda t: (t, t.sum())), r"the pullback .* for operand 1 a cotangent float64\[\]; it must"),
    (False, back(lambda t: (t, t[:2])), r"for operand 1 a cotangent float64\[2\]; it must be float64\[3\]: sum or"),
    (False, back(lambda t: ("text", t)), "for operand 0 as cotangent str, no array"),
    (False, back(lambda t: (t > 0, t)), r"for operand 0 a cotangent bool\[3\].*astype\('float64'\)"),
    (False, back(lambda t: (t * 1j, t)), r"for operand 0 a cotangent complex128\[3\].*take its real part"),
    (True, back(lambda ts: (ts[0], ts[1].sum())), r"for operand 1 a cotangent float64\[\]"),
])  # fmt: skip
def test_a_wrong_vjp_rule(several, rule, message):
    refused(reverse(operator(several=several, vjp=rule)), message)


@pytest.mark.parametrize(("several", "rule", "message"), [
    (False, lambda op, xs, ts: xf.apply(op, *xs), r"the jvp rule of .*Own.* returned (ndarray|Array); it must"),
    (False, lambda op, xs, ts: (xf.apply(op, *xs), ts[0].sum()), r"a tangent float64\[\]; it must be float64\[3\]"),
    (False, lambda op, xs, ts: (xf.apply(op, *xs), ts[0] > 0), r"a tangent bool\[3\].*astype\('float64'\)"),
    (False, lambda op, xs, ts: (xf.apply(op, *xs), ts[0] * 1j), r"a tangent complex128\[3\].*take its real part"),
    (False, lambda op, xs, ts: ((1.0, 2.0), ts[0]), "returned tuple as the result, no array"),
    (True, lambda op, xs, ts: (xf.apply(op, *xs)[0], ts[0]), "as results; Own has several: return a tuple"),
    (True, lambda op, xs, ts: (xf.apply(op, *xs), ts[:1]), "returned 2 results and as tangents"),
    (True, lambda op, xs, ts: (xf.apply(op, *xs), (ts[0], ts[0][:1])), r"for result 1 a tangent float64\[1\]"),
])  # fmt: skip
def test_a_wrong_jvp_rule(several, rule, message):
    refused(forward(operator(several=several, jvp=rule)), message)


@pytest.mark.parametrize(("several", "rule", "message"), [
    (False, lambda op, size, xs, axes: xf.apply(op, *xs), r"the batch rule of .*Own.* returned (ndarray|Array)"),
    (False, lambda op, size, xs, axes: (xf.apply(op, *xs), 1), r"a result of shape \(3,\) with axis 1, which does"),
    (False, lambda op, size, xs, axes: (xf.apply(op, *xs)[:2], 0), r"a result of shape \(2,\) with axis 0"),
    (False, lambda op, size, xs, axes: (xf.apply(op, *xs), 0.0), "float as the axis of a result"),
    (False, lambda op, size, xs, axes: ("text", 0), "returned str as the result, no array"),
    (True, lambda op, size, xs, axes: (xf.apply(op, *xs)[0], 0), "as results; Own has several: return a tuple"),
    (True, lambda op, size, xs, axes: (xf.apply(op, *xs), (0,)), "returned 2 results and 1 axes"),
])  # fmt: skip
def test_a_wrong_batch_rule(several, rule, message):
    refused(batched(operator(several=several, batch=rule)), message)


# ------------------------------------------------------------------ rules in place of others


def test_a_rule_registered_again_replaces_the_first_on_every_layer():
    op = operator(
        vjp=lambda op, needed, x, y: (xf.apply(op, x, y), lambda t: (t * y, t * x)),
        jvp=lambda op, xs, ts: (xf.apply(op, *xs), ts[0] * xs[1] + xs[0] * ts[1]),
        batch=lambda op, size, xs, axes: (xf.apply(op, *xs), 0),
    )
    assert_allclose(reverse(op)()[0], X + 1.0)
    assert_allclose(forward(op)()[1], 2.0 * X * X)
    assert_array_equal(batched(op)(), X * (X + 1.0))
    xf.vjp_rule(type(op))(lambda op, needed, x, y: (xf.apply(op, x, y), lambda t: (t * 7.0, None)))
    assert_array_equal(reverse(op)()[0], 7.0 * ONES)
    xf.jvp_rule(type(op))(lambda op, xs, ts: (xf.apply(op, *xs), ts[0] * 5.0))
    assert_array_equal(forward(op)()[1], 5.0 * X)
    xf.batch_rule(type(op))(lambda op, size, xs, axes: (xf.apply(op, *xs) + 1.0, 0))
    assert_array_equal(batched(op)(), X * (X + 1.0) + 1.0)
    xf.bilinear(type(op), lambda op, t, y, like: t * y, lambda op, t, x, like: t * x)
    assert_allclose(reverse(op)()[1], X)
    xf.vjp_rule.none(type(op), why="a test")
    with xf.Grad() as tape:
        assert not tape.is_attached(xf.apply(op, tape.attach(X), X))


def test_the_rule_of_a_built_in_operator_can_be_replaced_and_is_then_checked():
    before = xf.vjp_rule.rules[xf.ops.Tanh]
    slope = lambda x: xf.grad(lambda v: np.tanh(v).sum())(x)
    assert_allclose(slope(X), 1.0 - np.tanh(X) ** 2)
    try:
        xf.vjp_rule(xf.ops.Tanh)(lambda op, needed, x: (xf.apply(op, x), lambda t: (t * 3.0,)))
        assert_array_equal(slope(X), 3.0 * ONES)
        xf.vjp_rule(xf.ops.Tanh)(lambda op, needed, x: (xf.apply(op, x), lambda t: (t.sum(),)))
        refused(lambda: slope(X), r"the pullback of Tanh\(\) returned for operand 0 a cotangent float64\[\]")
    finally:
        xf.vjp_rule.rules[xf.ops.Tanh] = before
    assert_allclose(slope(X), 1.0 - np.tanh(X) ** 2)


def test_a_plugins_table_takes_rules_for_any_operator():
    table = xf.RuleTable("cost", missing="unwrap")

    class Cost(xf.Observer):
        def __init__(self):
            self.total = 0

        def observe(self, op, inputs, outputs):
            rule = table.get(op)
            self.total += 0 if rule is None else rule(op, *map(xf.aval_of, inputs))

    def cost():
        layer = Cost()
        layer(lambda x: np.sin(x) * x)(X)
        return layer.total

    assert cost() == 0
    table(xf.ops.Sin)(lambda op, x: 10 * x.size)
    table(xf.ops.Mul)(lambda op, x, y: x.size)
    assert cost() == 33
    table(xf.ops.Sin)(lambda op, x: x.size)
    assert cost() == 6


@pytest.mark.parametrize(("declare", "message"), [
    (lambda kind: xf.partials(kind, lambda t, y: t.sum(), lambda t, x: t * x), r"operand 0 a cotangent float64\[\]"),
    (lambda kind: xf.partials(kind, lambda t, y: t * y, lambda t, x: "text"), "operand 1 as cotangent str, no array"),
    (lambda kind: xf.bilinear(kind, lambda op, t, y, x: t * y, lambda op, t, x, y: t[:1]),
     r"operand 1 a cotangent float64\[1\]; it must be float64\[3\]"),
    (lambda kind: xf.linear(kind, lambda op, t, x, y: t.sum(), (0,)), r"operand 0 a cotangent float64\[\]"),
])  # fmt: skip
def test_a_wrong_declaration(declare, message):
    op = operator()
    declare(type(op))
    call = reverse(op) if "operand 1" in message else lambda: xf.grad(lambda x: xf.apply(op, x, X).sum())(X)
    refused(call, rf"the rule declared for Own returned for {message}")
