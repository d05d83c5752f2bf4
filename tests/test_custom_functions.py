"""Custom functions as functions: names, keywords, methods; what they take from outside; control flow; linearity."""

import copy
import functools
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from typeguard import suppress_type_checks

import xform as xf
import xform.numpy as xnp
from xform.core.errors import EscapedValueError, HostReadError, MissingRuleError, OperandTypeError, RuleError
from xform.testing import check_grads

X = np.array([0.3, -1.2, 2.0])


@xf.custom_jvp
def decorated(x, y=2.0):
    """A product."""
    return x * y


@decorated.defjvp
def decorated_jvp(primals, tangents):
    (x, y), (tx, ty) = primals, tangents
    return decorated(x, y), tx * y + 3.0 * x * ty


made_of_it = xf.custom_gradient(decorated_jvp, decorated_jvp)


def test_they_are_functions():
    assert (decorated.__name__, decorated.__doc__) == ("decorated", "A product.")
    assert repr(decorated) == "custom_jvp(decorated)"
    assert copy.deepcopy({"f": decorated})["f"] is decorated
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    assert pickle.loads(pickle.dumps(made_of_it)).definition.forward is decorated_jvp
    assert decorated.defjvp(decorated_jvp) is decorated_jvp
    assert xf.custom_vjp(np.sin)(0.7) == np.sin(0.7)
    with pytest.raises(MissingRuleError, match=r"CustomVjp\[sin\]: custom_vjp has no rule; for reverse mode"):
        xf.grad(xf.custom_vjp(np.sin))(0.7)
    with pytest.raises(MissingRuleError, match="has no rule; for forward mode"):
        xf.jvp(xf.custom_jvp(np.sin), (0.7,), (1.0,))
    for wrong in (lambda: xf.custom_vjp(3), lambda: decorated.defjvp(3), lambda: xf.custom_vjp(np.sin).defvjp(3, 4)):
        with suppress_type_checks(), pytest.raises(OperandTypeError, match="takes a function"):
            wrong()


def test_keywords_and_defaults_become_positional():
    assert decorated(3.0) == decorated(x=3.0) == decorated(y=2.0, x=3.0) == 6.0
    assert xf.grad(lambda x: decorated(x, y=x))(2.0) == 2.0 + 6.0
    assert xf.grad(decorated)(5.0) == 2.0
    assert xf.grad(decorated, argnames="y")(5.0, y=4.0) == 15.0
    with pytest.raises(OperandTypeError, match=r"custom_jvp\(decorated\): missing a required argument: 'x'"):
        decorated(y=1.0)
    named = xf.custom_jvp(lambda x, *, power=2: x**power)
    assert named(3.0) == 9.0
    with pytest.raises(OperandTypeError, match=r"keyword-only arguments \['power'\] have no place in its rules"):
        named(3.0, power=3)
    partial = functools.partial(lambda x, y, a: x + y * a, a=0.1)
    f = xf.custom_jvp(partial)
    f.defjvp(lambda primals, tangents: xf.jvp(partial, primals, tangents))
    assert xf.grad(lambda args: f(*args))((1.0, 2.0)) == (1.0, 0.1)


@pytest.mark.parametrize("fixed", [0, (0,), -2])
def test_arguments_that_are_not_differentiated(fixed):
    @functools.partial(xf.custom_jvp, nondiff_argnums=fixed)
    def applied(fun, x):
        return fun(x)

    applied.defjvp(lambda fun, primals, tangents: (applied(fun, *primals), 3.0 * tangents[0]))
    assert xf.jvp(lambda x: applied(lambda y: 2.0 * y, x), (1.0,), (1.0,)) == (2.0, 3.0)
    assert xf.grad(lambda x: applied(lambda y: 2.0 * y, x))(1.0) == 3.0
    applied.defvjp(lambda fun, x: (applied(fun, x), np.cos(x)), lambda fun, c, t: (c * t * fun(1.0),))
    assert_allclose(xf.grad(lambda x: applied(lambda y: 2.0 * y, x))(1.0), 2.0 * np.cos(1.0))
    assert_allclose(xf.vmap(xf.grad(lambda x: applied(lambda y: 2.0 * y, x)))(X), 2.0 * np.cos(X))
    with pytest.raises(OperandTypeError, match=r"argument 0, one of its nondiff_argnums, is tracked"):
        xf.grad(lambda x: applied(x, x))(1.0)


def test_methods():
    class Scaled:
        factor = 3.0

        @functools.partial(xf.custom_vjp, nondiff_argnums=0)
        def scaled(self, x):
            return self.factor * x

        scaled.defvjp(lambda self, x: (self.factor * x, None), lambda self, _, t: (2.0 * self.factor * t,))

    assert Scaled().scaled(2.0) == 6.0
    assert xf.grad(Scaled().scaled)(2.0) == 6.0


def test_the_readme_runs():
    text = (Path(__file__).parent.parent / "README.md").read_text().split("\n## Your own derivatives\n")[1]
    names = {"np": np, "xf": xf}
    exec(compile(re.search(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)[1], "README.md", "exec"), names)
    check_grads(names["log1pexp"], (X,), order=2)


# ------------------------------------------------------------------ values from outside


def test_row_59_values_from_outside_where_a_layer_does_not_reach():
    def outer(v):
        f = xf.custom_vjp(lambda x: x * v)
        f.defvjp(lambda x: (f(x), None), lambda _, t: (t * v,))
        g = xf.custom_jvp(lambda x: x * v)
        g.defjvp(lambda primals, tangents: (g(*primals), tangents[0] * v))
        return f, g

    for fun, label in ((lambda v: outer(v)[0](v), "CustomVjp"), (lambda v: outer(v)[1](v), "CustomJvp")):
        with pytest.raises(EscapedValueError, match=rf"{label}.*uses GradValue.*must be an argument"):
            xf.grad(fun)(2.0)
    with pytest.raises(EscapedValueError, match=r"CustomJvp.*its jvp rule <lambda> uses DualValue|uses DualValue"):
        xf.jvp(lambda v: outer(v)[1](v), (2.0,), (1.0,))
    assert xf.stack() == ()


def test_row_59_values_from_outside_where_their_layer_reaches():
    scaled = lambda v: xf.custom_vjp(lambda x: x * v)(3.0)
    assert_array_equal(xf.vmap(scaled)(X), 3.0 * X)
    assert (xf.grad(scaled)(2.0), xf.trace(scaled)(2.0), xf.jvp(scaled, (2.0,), (1.0,))) == (3.0, 6.0, (6.0, 3.0))

    def derivative(v):  # the rules run above the layer of v
        f = xf.custom_vjp(lambda x: v * x)
        f.defvjp(lambda x: (f(x), v), lambda kept, t: (2.0 * np.cos(v) * t + kept * 0.0,))
        return xf.grad(f)(1.0)

    assert_allclose(xf.trace(derivative)(2.0), 2.0 * np.cos(2.0))
    assert_allclose(xf.vmap(derivative)(X), 2.0 * np.cos(X))
    assert_allclose(xf.grad(derivative)(4.0), -2.0 * np.sin(4.0))
    assert_allclose(xf.hessian(derivative)(4.0), -2.0 * np.cos(4.0))


def test_row_59_a_pullback_as_residual_of_another_rule():
    outer = xf.custom_vjp(lambda x: x**2)
    outer.defvjp(lambda x: xf.vjp(lambda v: v**2, x), lambda pull, t: pull(t))
    assert xf.vjp(outer, 1.0)[1](1.0) == (2.0,)
    assert xf.trace(lambda x: xf.vjp(outer, x)[1](3.0))(1.0) == (6.0,)
    for order, want in enumerate((4.0 * X**3, 12.0 * X**2, 24.0 * X)):  # of the square of it
        fun = lambda x: outer(x) ** 2
        for _ in range(order + 1):
            fun = xf.grad(fun)
        assert_allclose(xf.vmap(fun)(X), want)
    assert_allclose(xf.hessian(lambda x: (xf.vmap(outer)(x) ** 2).sum())(X), np.diag(12.0 * X**2))


def test_a_backward_that_calls_other_custom_functions():
    sine_ = xf.custom_gradient(lambda x: (np.sin(x), x), lambda x, t: t * cosine(x))
    cosine = xf.custom_gradient(lambda x: (np.cos(x), x), lambda x, t: -t * sine_(x))
    h = lambda x: sine_(x) ** 2  # (sin^2)'' = 2 cos 2x
    assert_allclose(xf.hessian(h)(0.3), 2.0 * np.cos(0.6))
    assert_allclose(xf.jacfwd(xf.hessian(h))(0.3), -4.0 * np.sin(0.6))
    assert_allclose(xf.grad(xf.hessian(h))(0.3), -4.0 * np.sin(0.6))


def test_a_rule_that_applies_the_function_to_tangents():
    f = xf.custom_jvp(lambda x: -x)
    f.defjvp(lambda primals, tangents: (f(*primals), f(*tangents)))
    assert xf.grad(f)(3.0) == -1.0
    assert xf.jvp(f, (3.0,), (2.0,)) == (-3.0, -2.0)
    assert xf.hessian(lambda x: f(x) ** 2)(3.0) == 2.0
    assert xf.grad(xf.grad(lambda x: f(x) ** 2))(3.0) == 2.0
    assert_array_equal(xf.grad(lambda x: xf.vmap(f)(x).sum())(X), [-1.0] * 3)
    assert xf.linearize(f, 3.0)[1](2.0) == -2.0


def test_row_59_python_control_flow_which_batches_run_lane_by_lane():
    f = xf.custom_vjp(lambda x: np.sin(x) if x > 0 else np.cos(x))
    f.defvjp(lambda x: (f(x), x), lambda x, t: (2.0 * t,) if x > 0 else (3.0 * t,))
    g = xf.custom_jvp(lambda x: np.sin(x) if x > 0 else np.cos(x))
    g.defjvp(lambda primals, tangents: (g(*primals), (2.0 if primals[0] > 0 else 3.0) * tangents[0]))
    smooth = xf.custom_vjp(lambda x: xnp.where(x > 0, np.sin(x), np.cos(x)))
    smooth.defvjp(lambda x: (smooth(x), x), lambda x, t: (2.0 * t,) if x > 0 else (None,))
    want = np.where(X > 0, np.sin(X), np.cos(X))
    for fun, slope in ((f, 3.0), (g, 3.0), (smooth, 0.0)):
        assert_array_equal([fun(x) for x in X], want)
        assert_array_equal([xf.grad(fun)(x) for x in X], np.where(X > 0, 2.0, slope))
        assert_array_equal(xf.vmap(fun)(X), want)
        assert_array_equal(xf.grad(lambda x, fun=fun: xf.vmap(fun)(x).sum())(X), np.where(X > 0, 2.0, slope))
        assert_array_equal(xf.grad(xf.trace(fun))(-2.0), slope)
    assert_array_equal(xf.jvp(xf.vmap(g), (X,), (X,))[1], np.where(X > 0, 2.0, 3.0) * X)
    with pytest.raises(HostReadError, match=r"bool\(\) of the batched value"):
        xf.vmap(xf.grad(f))(X)  # the rule runs in the caller's batch
    assert xf.stack() == ()


def test_a_rule_must_be_linear_to_serve_the_other_mode():
    clipped = xf.custom_vjp(lambda x: x)
    clipped.defvjp(lambda x: (x, None), lambda _, t: (np.clip(t, -1.0, 1.0),))
    assert xf.grad(lambda x: 10.0 * clipped(x))(2.0) == 1.0
    with pytest.raises(RuleError, match=r"CustomVjp.*bwd rule <lambda> must be linear.*forward mode.*not linear"):
        xf.hessian(lambda x: clipped(x) ** 2)(2.0)
    squared = xf.custom_jvp(lambda x: x)
    squared.defjvp(lambda primals, tangents: (squared(*primals), tangents[0] ** 2))
    with pytest.raises(RuleError, match=r"CustomJvp.*jvp rule <lambda> must be linear in its tangents.*not linear"):
        xf.grad(squared)(2.0)
    reads = xf.custom_jvp(lambda x: x)
    reads.defjvp(lambda primals, tangents: (reads(*primals), tangents[0] if tangents[0] > 0 else 0.0))
    with pytest.raises(RuleError, match=r"jvp rule <lambda> must be linear in its tangents.*but it reads one"):
        xf.grad(reads)(2.0)
    assert xf.stack() == ()


def test_code_that_needs_plain_arrays():
    def table(x):  # nothing that a layer could see
        return np.array([np.exp(v) for v in np.asarray(x).tolist()])

    f = xf.custom_vjp(table)
    f.defvjp(lambda x: (f(x),) * 2, lambda y, t: (2.0 * t * y,))
    square = lambda x: (f(x) ** 2).sum()
    slope, second = 4.0 * np.exp(2.0 * X), 16.0 * np.exp(2.0 * X)  # of f squared, with the rule f' = 2 f
    assert_allclose(xf.grad(square)(X), slope)
    assert_allclose(xf.grad(lambda x: xf.grad(square)(x).sum())(X), second)
    assert_allclose(xf.hessian(square)(X), np.diag(second))
    assert_allclose(xf.trace(xf.grad(square))(X), slope)
    traced = xf.trace(f)
    for x in (X, 2.0 * X):
        assert_array_equal(traced(x), np.exp(x))
        assert_allclose(xf.grad(lambda v: (traced(v) ** 2).sum())(x), 4.0 * np.exp(2.0 * x))
    rows = np.stack([X, X + 1.0])
    assert_array_equal(xf.vmap(f)(rows), np.exp(rows))
    assert_allclose(xf.grad(lambda x: (xf.vmap(f)(x) ** 2).sum())(rows), 4.0 * np.exp(2.0 * rows))
    with xf.Profile() as profile:
        assert_allclose(xf.grad(square)(X), slope)
    assert profile.calls("CustomVjp[table]") == 1
    raw = xf.custom_gradient(lambda x: (np.frombuffer(x.tobytes()).copy(), None), lambda _, t: t)
    assert_array_equal(xf.trace(raw)(X), X)
