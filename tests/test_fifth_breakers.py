"""What fresh readers of layers, rules and `xform.numpy` found to be wrong or silent, as tests of what is right."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from xform.core.errors import DtypeError, GradientError, LayerError, OperandError, OperandTypeError, RuleError
from xform.programs.compiler import compile_program
from xform.programs.passes import LEVELS

X = np.array([1.0, 2.0])


class CosForSin(xf.Transformation):
    def interpret(self, op, values):
        return xf.apply(xf.ops.Cos() if op == xf.ops.Sin() else op, *values)


# ------------------------------------------------------------------ compiled programs


@pytest.mark.parametrize("level", LEVELS)
def test_a_row_of_a_stack_that_is_a_stack_is_written(level):
    """It was named where nobody had written: the result was what had lain in that memory."""
    x = np.ones((2, 3))

    def nested(x):
        return xnp.stack([xnp.stack([xnp.sin(x[0]), xnp.cos(x[1])]), xnp.exp(x)])

    def step(i, x):
        a, b = xnp.unstack(x)
        return xnp.stack([a * b, xnp.sin(a)]) + x * 0.1 + xnp.tanh(x) + xnp.exp(-x)

    garbage = np.full((2, 2, 3), 9.0)
    del garbage
    program = xf.make_program(nested)(x)
    np.testing.assert_allclose(np.stack(compile_program(program, level=level)(x))[0], program(x))
    loop = xf.trace(xf.grad(lambda x: xnp.sum(xf.fori_loop(0, 2, step, x))), level=level)
    unrolled = xf.grad(lambda x: xnp.sum(step(1, step(0, x))))(x)
    for _ in range(2):
        np.testing.assert_allclose(loop(x), unrolled)


# ------------------------------------------------------------------ layers


@pytest.mark.parametrize("x", [0.5, np.float64(0.5), np.array(0.5)])
def test_a_rewriter_reaches_into_custom_functions_of_numbers_too(x):
    """Of Python numbers it did not, but for batches and loops: one function had two values."""
    fun = xf.custom_vjp(np.sin)
    fun.defvjp(lambda x: (np.sin(x), x), lambda x, t: (t * np.sin(x) * 2.0,))
    under = CosForSin()(fun)
    both = xf.value_and_grad(under)
    want = (np.cos(0.5), 2.0 * np.cos(0.5))
    traced = xf.trace(both)
    for found in (both(x), traced(x), traced(x), xf.make_program(both)(x)(x)):
        np.testing.assert_allclose(found, want)
    np.testing.assert_allclose([under(x), xf.vmap(under)(np.array([0.5]))[0]], [want[0]] * 2)
    np.testing.assert_allclose(CosForSin()(lambda x: xf.fori_loop(0, 1, lambda i, c: fun(c), x))(x), want[0])


def test_words_of_layers_are_checked():
    class Mistyped(CosForSin):
        def __init__(self):
            self.effect = "rewrite"

    with pytest.raises(LayerError, match="'rewrite'; it must be one of 'observes'"), Mistyped():
        pass
    for name, word, wrong in (
        ("refuses", ("rewrite",), "a tuple of 'observes'"),
        ("refuses", "rewrites", "a tuple of"),
        ("above", "Profile", "a tuple of names"),
        ("below", "Profile", "a tuple of names"),
    ):
        with pytest.raises(LayerError, match=wrong):
            type("Wrong", (CosForSin,), {name: word})
    with pytest.raises(LayerError, match="would never be called"):
        type("Wrong", (xf.Observer,), {"interpret": lambda self, op, values: None})


def test_one_result_in_place_of_several():
    class First(xf.Transformation):
        def interpret(self, op, values):
            out = xf.apply(op, *values)
            return out[0] if isinstance(out, tuple) else out

    with pytest.raises(RuleError, match=r"returned one Array for Eigh.*a tuple of its results"), First():
        np.linalg.eigh(xf.array(np.diag(X)))
    assert xf.stack() == ()


def test_what_on_register_leaves_on_the_stack_goes():
    class Enters(CosForSin):
        def __init__(self, error):
            self.error = error

        def on_register(self):
            xf.Profile().__enter__()
            if self.error is not None:
                raise self.error

    with pytest.raises(ValueError, match="mine"), Enters(ValueError("mine")):
        pass
    assert xf.stack() == ()
    with Enters(None) as layer:
        assert xf.stack() == (layer,)
    assert xf.stack() == ()


def test_a_scope_around_a_yield_is_refused():
    """It would stay the scope of whoever runs the generator."""

    def rows():
        with xf.named_scope("rows"):
            yield 1

    with pytest.raises(LayerError, match="around a yield"):
        next(rows())
    assert xf.current().scopes == ()


# ------------------------------------------------------------------ rules


def doubling():
    """Make an operator class without rules."""

    @attrs.frozen
    class Twice(xf.Operator):
        def infer(self, x):
            return x

        def evaluate(self, xp, x):
            return x * 2.0

    return Twice


def test_a_replaced_rule_reaches_what_was_traced():
    Twice = doubling()

    def total(x):
        return xf.apply(Twice(), x).sum()

    def looped(x):
        return xf.fori_loop(0, 2, lambda i, c: xf.apply(Twice(), c), x).sum()

    def branched(x):
        return xf.cond(x[0] > 0, lambda x: xf.apply(Twice(), x), lambda x: x, x).sum()

    traced, loop, branch = xf.trace(total), xf.trace(looped), xf.trace(branched)
    recorded = xf.trace(xf.grad(total))
    for k in (3.0, 10.0):
        xf.vjp_rule(Twice)(lambda op, needed, x, k=k: (xf.apply(op, x), lambda t: (t * k,)))
        xf.jvp_rule(Twice)(lambda op, primals, tangents, k=k: (xf.apply(op, *primals), tangents[0] * k))
        xf.batch_rule(Twice)(lambda op, size, values, axes, k=k: (values[0] * k, axes[0]))
        for _ in range(2):
            for gradient in (xf.grad(traced), recorded, xf.grad(branch)):
                np.testing.assert_allclose(gradient(X), [k, k])
            np.testing.assert_allclose(xf.grad(loop)(X), [k * k, k * k])
            np.testing.assert_allclose(xf.jvp(traced, (X,), (X,))[1], 3.0 * k)
            np.testing.assert_allclose(xf.jvp(loop, (X,), (X,))[1], 3.0 * k * k)
            np.testing.assert_allclose(xf.vmap(traced)(np.stack([X, X])), [3.0 * k] * 2)


def test_rules_that_lose_lanes_or_digits_are_refused():
    Twice = doubling()

    def total(x):
        return xf.apply(Twice(), x).sum()

    xf.batch_rule(Twice)(lambda op, size, values, axes: (xf.apply(op, values[0]), None))
    with pytest.raises(RuleError, match="with no batch axis; one lane of Twice is"):
        xf.vmap(total)(np.ones((2, 3)))
    xf.batch_rule(Twice)(lambda op, size, values, axes: (xf.apply(op, values[0])[:, :1], axes[0]))
    with pytest.raises(RuleError, match="along axis 0; one lane of Twice is"):
        xf.vmap(total)(np.ones((2, 3)))
    xf.vjp_rule(Twice)(lambda op, needed, x: (xf.apply(op, x), lambda t: (xnp.astype(t, np.float32) * 2.0,)))
    with pytest.raises(RuleError, match="a cotangent float32"):
        xf.grad(total)(X)
    assert xf.grad(total)(X.astype(np.float32)).dtype == np.float32
    xf.jvp_rule(Twice)(lambda op, primals, ts: (xf.apply(op, *primals), xnp.astype(ts[0], np.float32) * 2.0))
    with pytest.raises(RuleError, match="a tangent float32"):
        xf.jvp(total, (X,), (X,))
    fun = xf.custom_vjp(lambda x: x * 2.0)
    fun.defvjp(lambda x: (x * 2.0, None), lambda _, t: (np.float32(2.0) * xnp.astype(t, np.float32),))
    with pytest.raises(RuleError, match="a cotangent float32"):
        xf.grad(lambda x: fun(x).sum())(X)


# ------------------------------------------------------------------ numbers


@pytest.mark.parametrize("level", LEVELS)
def test_the_sign_of_a_zero_that_fills_an_array(level):
    """An operator of 0.0 was found for -0.0."""

    def both(x):
        return xnp.stack([xnp.full_like(x, -0.0), xnp.full_like(x, 0.0), xnp.pad(x[:0], (0, 2), constant_values=-0.0)])

    traced = xf.trace(both, level=level)
    for found in (both(xf.array(X)).data, traced(X), traced(X), xf.make_program(both)(X)(X)):
        np.testing.assert_array_equal(np.signbit(found), [[True] * 2, [False] * 2, [True] * 2])
    assert xf.make_program(both)(X).equations[0].op != xf.make_program(both)(X).equations[1].op


@pytest.mark.parametrize("made", [lambda x: x, xf.array])
def test_numbers_at_hard_points_are_those_of_numpy(made):
    x = np.array([np.inf, -2.0, -1.5, 3.0, -np.inf, np.nan, -0.0, 0.0])
    for found, want in zip(xnp.modf(made(x)), np.modf(x), strict=True):
        np.testing.assert_array_equal(found, want)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(want))
    for kind in (int, np.int8, bool):
        for found, want in zip(xnp.modf(made(np.array([3, 0], kind))), np.modf(np.array([3, 0], kind)), strict=True):
            np.testing.assert_array_equal(found, want)
            assert found.dtype == want.dtype
    np.testing.assert_allclose(xf.grad(lambda x: xnp.modf(x)[0].sum())(np.array([-2.0, 2.5, 0.0])), 1.0)
    np.testing.assert_array_equal(np.linspace(made(-3.0), 2, 4, dtype=int), [-3, -2, 0, 2])
    for heights in ([0.0, 1.0, np.inf], [0.0, np.inf, 2.0], [np.inf, 1.0, 2.0], [np.nan, 1.0, np.nan]):
        at = np.array([0.0, 0.5, 1.0, 1.5, 2.0])
        with np.errstate(invalid="ignore"):
            table = np.arange(3.0), np.array(heights)
            np.testing.assert_array_equal(xnp.interp(made(at), *table), np.interp(at, *table))
    np.testing.assert_allclose(xf.grad(lambda x: xnp.interp(x, np.arange(3.0), np.array([0.0, 1.0, 5.0])))(1.0), 4.0)
    assert xnp.angle(made(np.array([True]))).dtype == np.angle(np.array([True])).dtype


def test_what_numpy_has_and_xform_has_not_is_named():
    v = xf.array(X)
    with pytest.raises(OperandTypeError, match=r"np\.std with where= .*takes x, axis"):
        np.std(v, where=np.array([True, False]))
    with pytest.raises(OperandTypeError, match=r"np\.quantile with method="):
        np.quantile(v, 0.5, method="nearest")
    np.testing.assert_allclose(np.quantile(v, 0.5, method="linear"), 1.5)
    for fun in (xnp.std, xnp.var):
        with pytest.raises(OperandError, match="imaginary part"):
            fun(1j * X, dtype="float32")


# ------------------------------------------------------------------ linear maps and equations

AFFINE = {
    "a number": lambda p, t: t[0] * 2.0 + 1.0,
    "a part": lambda p, t: xnp.concatenate([t[0][:1], np.ones(1)]),
    "a frame": lambda p, t: xnp.pad(t[0][:1], (0, 1), constant_values=5.0),
    "a choice": lambda p, t: xnp.where(p[0] > 1.5, t[0], 7.0),
    "a place": lambda p, t: xf.array(t[0]).at[0].set(3.0) if isinstance(t[0], np.ndarray) else t[0].at[0].set(3.0),
}
LINEAR = {
    "a difference": lambda p, t: (p[0] + t[0]) * 2.0 - p[0] * 2.0,
    "a part": lambda p, t: xnp.concatenate([t[0][:1], np.zeros(1)]),
    "a frame": lambda p, t: xnp.pad(t[0][:1], (0, 1)),
    "a choice": lambda p, t: xnp.where(p[0] > 1.5, t[0], 0.0),
    "a place": lambda p, t: xnp.where(np.array([True, False]), 0.0, t[0]),
}
WAYS = {
    "eager": lambda gradient: gradient(X),
    "traced": lambda gradient: xf.trace(gradient)(X),
    "batched": lambda gradient: xf.vmap(gradient)(np.stack([X, X]))[0],
    "in a loop": lambda gradient: xf.fori_loop(0, 1, lambda i, x: gradient(x), X),
}


def ruled(rule):
    fun = xf.custom_jvp(lambda x: x * 2.0)
    fun.defjvp(lambda primals, tangents: (primals[0] * 2.0, rule(primals, tangents)))
    return lambda x: fun(x).sum()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", AFFINE)
def test_a_rule_that_adds_something_is_not_linear(name, way):
    """What it adds was dropped where it served the other mode, in silence."""
    with pytest.raises(RuleError, match=r"must be linear in its tangents.*adds something that does not depend on them"):
        WAYS[way](xf.grad(ruled(AFFINE[name])))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", LINEAR)
def test_a_rule_that_adds_zeros_is_linear(name, way):
    loss = ruled(LINEAR[name])
    columns = [xf.jvp(loss, (X,), (each,))[1] for each in np.eye(2)]
    np.testing.assert_allclose(WAYS[way](xf.grad(loss)), columns)


def test_a_linear_rule_that_holds_a_loop_serves_forward_mode_in_a_loop():
    """There are no numbers to try it with, and it was refused."""
    fun = xf.custom_vjp(np.sin)
    fun.defvjp(lambda x: (np.sin(x), x), lambda x, t: (xf.checkpoint(lambda t: t * np.cos(x))(t),))
    looped = lambda x: xf.fori_loop(0, 2, lambda i, y: fun(y), x)
    plain = lambda x: np.sin(np.sin(x))
    np.testing.assert_allclose(xf.jvp(looped, (1.0,), (1.0,)), xf.jvp(plain, (1.0,), (1.0,)))
    np.testing.assert_allclose(xf.hessian(looped)(1.0), xf.hessian(plain)(1.0))


@pytest.mark.parametrize("through", [lambda f: f, xf.trace, lambda f: lambda a: xf.vmap(f)(np.array([a]))[0]])
def test_equations_that_are_not_holomorphic_are_refused(through):
    """Their complex Jacobian does not exist; what took its place was wrong in silence."""
    a = 0.5 + 0.2j

    def conjugated(a):
        return xf.fixed_point(lambda x: a - 0.3 * np.conj(x), 0j)

    for derivative in (xf.grad(lambda a: np.imag(conjugated(a))), lambda a: xf.jvp(conjugated, (a,), (1j * a / a,))[1]):
        with pytest.raises(GradientError, match="not holomorphic"):
            through(derivative)(a)
    neumann = lambda a: xf.fixed_point(lambda x: a - 0.3 * np.conj(x), 0j, linear_solve="neumann")
    np.testing.assert_allclose(xf.jvp(neumann, (a,), (1j,))[1], 1j * 1.3 / 0.91)
    squared = lambda a: xf.fixed_point(lambda x: a - 0.3 * x * x, 0j)
    step = 1e-6
    want = (squared(a + step) - squared(a - step)) / (2 * step)
    np.testing.assert_allclose(through(lambda a: xf.jvp(squared, (a,), (a / a,))[1])(a), want, rtol=1e-6)


def test_equations_are_looked_at_one_by_one_and_in_the_mode_that_is_asked():
    @attrs.frozen
    class Squared(xf.Operator):
        def infer(self, x):
            return x

        def evaluate(self, xp, x):
            return x * x

    xf.vjp_rule(Squared)(lambda op, needed, x: (xf.apply(op, x), lambda t: (t * 2.0 * x,)))

    def newton(f, x):
        for _ in range(40):
            x = x - f(x) / (2.0 * x)
        return x

    found = xf.grad(lambda a: xnp.real(xf.root(lambda y: xf.apply(Squared(), y) - a, 1 + 0.5j, newton)))(2 + 1j)
    np.testing.assert_allclose(found, 0.5 / np.sqrt(2 + 1j))  # there is no forward rule

    def scaled(a):
        equations = lambda y: xnp.stack([1e8 * (y[0] * y[0] - a), xnp.conj(y[1]) - a])
        return xnp.real(xf.root(equations, np.ones(2) + 1j, lambda f, x: np.array([np.sqrt(2 + 1j), 2 - 1j]))[1])

    for derivative in (xf.grad(scaled), lambda a: xf.jvp(scaled, (a,), (1j,))):
        with pytest.raises(GradientError, match="not holomorphic"):
            derivative(2 + 1j)


def test_rules_that_are_linear_up_to_rounding():
    def lost(x):
        return xnp.sqrt(x)

    fun = xf.custom_jvp(lost)
    fun.defjvp(lambda p, t: (lost(p[0]), (p[0] + t[0] - p[0]) / (2.0 * lost(p[0]))))
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(xf.grad(lambda x: fun(x).sum())(np.array([0.0, 4.0])), [np.inf, 0.25])
    scaled = xf.custom_jvp(lambda x: x * 0.3)
    scaled.defjvp(lambda p, t: (p[0] * 0.3, (p[0] + t[0]) * 0.3 - p[0] * 0.1 * 3.0))
    np.testing.assert_allclose(xf.grad(lambda x: scaled(x).sum())(np.array([0.1, 4.3, 0.7])), 0.3)
    real = xf.custom_vjp(xnp.real)
    real.defvjp(lambda z: (xnp.real(z), None), lambda _, t: (t,))
    np.testing.assert_allclose(xf.grad(lambda z: 3.0 * real(z).sum())(np.array([1 + 1j])), [3.0])


@pytest.mark.parametrize("fun", [lambda x: xnp.broadcast_to(x.T, (3, 3)), lambda x: xnp.broadcast_to(x, (3, 3))])
def test_a_view_that_cannot_be_written_to_is_no_argument_when_compiled(fun):
    traced, x = xf.trace(fun), np.zeros((3, 3))
    for _ in range(3):
        result = traced(x)
        if result.flags.writeable:
            result += 1.0
    np.testing.assert_array_equal(x, 0.0)


def test_the_end_of_a_table_with_a_step():
    table = np.array([0.0, 1.0, 1.0]), np.array([0.0, 5.0, 7.0])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(xnp.interp(np.array([1.0]), *table), np.interp(np.array([1.0]), *table))


# ------------------------------------------------------------------ dtypes of NumPy's functions

UNSIGNED, SMALL = np.array([1, 200, 3], np.uint8), np.array([100, -100], np.int8)
IN_DTYPE = {
    "sqrt": (lambda a: np.sqrt(a, dtype=complex), np.array([-4.0, 4.0])),
    "log": (lambda a: np.log(a, dtype=complex), np.array([-4.0, 4.0])),
    "multiply": (lambda a: np.multiply(a, a, dtype=float), UNSIGNED),
    "subtract": (lambda a: np.subtract(a, a[::-1], dtype=np.int64), UNSIGNED),
    "negative": (lambda a: np.negative(a, dtype=int), UNSIGNED),
    "power": (lambda a: np.power(a, 3, dtype=np.int64), SMALL),
    "matmul": (lambda a: np.matmul(a, a, dtype=np.int64), SMALL),
    "add": (lambda a: np.add(a, a, dtype=np.int32), SMALL),
    "exp": (lambda a: np.exp(a, dtype=np.float64), np.array([100.0, 1.0], np.float32)),
    "square": (lambda a: np.square(a, dtype=np.float32), np.array([300.0, 1.0], np.float16)),
    "average": (lambda a: np.average(a, weights=np.array([100, 100, 100], np.uint8)), UNSIGNED),
    "average in single precision": (lambda a: np.average(a, weights=np.ones(3, np.float32)), UNSIGNED),
    "average by itself": (lambda a: np.average(a, axis=0, weights=a), np.array([[2**31 - 1, 5], [7, 2**30]], np.int32)),
    "dot with a number": (lambda a: np.dot(a, 2), UNSIGNED),
    "dot with a small number": (lambda a: np.dot(a, 1e-50), np.array([1e30, 0.1], np.float32)),
    "inner with a number": (lambda a: np.inner(a, 2), UNSIGNED),
    "sum from": (lambda a: np.sum(a, initial=1.5), np.arange(3)),
    "sum from a double": (lambda a: np.sum(a, initial=np.float64(1)), np.ones(2, np.float32)),
    "sum from a number": (lambda a: np.sum(a, initial=3), np.ones(2, np.float32)),
    "prod from": (lambda a: np.prod(a, initial=1.5), np.array([5, 6])),
    "max from": (lambda a: np.max(a, initial=1.5), np.arange(2)),
    "interp of unsigned heights": (lambda a: np.interp(np.array([1.5]), np.array([1, 2]), a), UNSIGNED[1:]),
    "interp of small places": (lambda a: np.interp(1, a, [0.0, 1.0]), np.array([-127, 2], np.int8)),
    "isclose": (lambda a: np.isclose(a, np.array([255], np.uint8), rtol=0, atol=1), np.array([0], np.uint8)),
    "isclose of small": (lambda a: np.isclose(a, np.array([127], np.int8), rtol=0, atol=2), np.array([-128], np.int8)),
    "mean of some": (lambda a: np.mean(a, where=np.array([True, True])), np.array([2**62, 2**62])),
    "trace": (lambda a: np.trace(a, dtype=np.uint8), np.array([[200, 1], [1, 100]], np.uint8)),
    "clip between": (lambda a: np.clip(a, 0.1, np.float32(2)), np.array([0.0, 3.0], np.float16)),
    "clip of a number": (lambda a: np.clip(2**40, a, None), np.array([0.0], np.float16)),
    "average by small weights": (
        lambda a: np.average(a, weights=np.array([1, 2], np.int8)),
        np.array([1, 2], np.float32),
    ),
    "min from": (lambda a: np.min(a, initial=2.7), np.array([5, 6])),
}


@pytest.mark.parametrize("name", IN_DTYPE)
def test_functions_compute_in_the_dtype_that_numpy_computes_in(name):
    fun, given = IN_DTYPE[name]
    want = fun(given)
    traced = xf.trace(fun)
    batched = xf.vmap(fun)(given[None])[0]
    for found in (xf.concrete(fun(xf.array(given))), traced(given), traced(given), batched):
        np.testing.assert_allclose(found, want)
        assert np.asarray(found).dtype == np.asarray(want).dtype


def test_a_dtype_that_numpy_refuses_and_that_of_a_draw():
    with pytest.raises(DtypeError, match=r"np\.add: no meaning for operands of dtype .*with dtype=int64"):
        np.add(xf.array(X), 0.7, dtype=int)
    with pytest.raises(OperandTypeError, match=r"initial=1j is complex"):
        np.sum(xf.array(X), initial=1j)
    value, gradient = xf.value_and_grad(lambda x: np.sum(np.multiply(x, x, dtype=float)))(np.array([1e30], np.float32))
    np.testing.assert_allclose(value, 1e60)
    assert gradient.dtype == np.float32
    key = xf.random.key(0)
    for low, high in ((-1.0, 3.0), (0, 2), (np.float64(0.5), 2.0)):
        drawn = xf.random.uniform(key, (100,), np.float32, low, high)
        assert drawn.dtype == np.float32
        assert drawn.min() >= low
        assert drawn.max() <= high
