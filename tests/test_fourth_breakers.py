"""What fresh readers broke in the fourth round: cotangents that no round changes, powers of small integers, more."""

from __future__ import annotations

import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from xform.programs.passes import LEVELS

X = np.array([1.0, 2.0, 3.0])

# ------------------------------------------------------------------ loops whose rounds leave a cotangent as it is

UNCHANGED = {
    "plus 1": lambda s, a: s + 1.0,
    "minus what is outside": lambda s, a: s - X,
    "plus what varies": lambda s, a: s + a,
    "its real part": lambda s, a: s.real + 0.0,
    "itself": lambda s, a: s,
}
LOOPS = {
    "fori": lambda body, a, **how: xf.fori_loop(0, 3, lambda i, s: body(s, a), a, **how),
    "while": lambda body, a, **how: xf.while_loop(
        lambda s: s[0] < 3, lambda s: (s[0] + 1, body(s[1], a)), (0, a), **how
    )[1],
    "scan": lambda body, a, **how: xf.scan(lambda s, _: (body(s, a), s * 2.0), a, np.zeros(3), **how)[0],
    "two carries": lambda body, a, **how: xf.fori_loop(
        0, 3, lambda i, s: (body(s[0], a), s[1] * 2.0), (a, a), **how
    )[0],
    "no rounds": lambda body, a, **how: xf.fori_loop(0, 0, lambda i, s: body(s, a), a, **how),
}


@pytest.mark.parametrize("checkpoint", [None, 1, "sqrt", "log"])
@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize("body", UNCHANGED.values(), ids=UNCHANGED)
def test_a_cotangent_that_every_round_leaves_as_it_is(body, loop, checkpoint):
    how = {} if checkpoint is None else {"checkpoint": checkpoint}

    def fun(a):
        return loop(body, a, **how)

    forward = xf.jacfwd(fun)(X)
    np.testing.assert_allclose(xf.jacrev(fun)(X), forward)
    np.testing.assert_allclose(xf.grad(lambda a: np.sum(fun(a) * X))(X), X @ forward)
    np.testing.assert_allclose(xf.trace(xf.grad(lambda a: np.sum(fun(a) * X)))(X), X @ forward)
    np.testing.assert_allclose(xf.vmap(xf.grad(lambda a: np.sum(fun(a))))(np.stack([X, X]))[1], forward.sum(axis=0))
    second = xf.hessian(lambda a: np.sum(fun(a) ** 2))(X)
    np.testing.assert_allclose(second, 2.0 * forward.T @ forward)


@pytest.mark.parametrize("index", [None, ..., ()], ids=str)
def test_a_captured_number_that_the_body_indexes(index):
    mapped = lambda w: np.sum(xf.map(lambda x: x * xf.array(w)[index], np.ones((3, 1))))
    powers = lambda w: np.sum(xf.fori_loop(0, 3, lambda i, s: s * xf.array(w)[index], np.ones(1)))
    mixed = lambda w: np.sum(xf.fori_loop(0, 3, lambda i, s: s * xf.array(w)[index] + w, np.ones(1)))
    for fun, want in ((mapped, 3.0), (powers, 12.0), (mixed, 29.0)):
        for gradient in (xf.grad(fun), xf.trace(xf.grad(fun))):
            assert gradient(2.0) == gradient(2.0) == want


# ------------------------------------------------------------------ passes


@pytest.mark.parametrize("level", LEVELS[:1])
@pytest.mark.parametrize("fun", [
    lambda x: -(0 * x), lambda x: (-x) * 0, lambda x: (-x) * False, lambda x: (0 * x) * -1.0, lambda x: -(0.0 * x),
])  # fmt: skip
def test_signs_of_zero(fun, level):
    x = np.array([1.0, -2.0, 0.0, -0.0])
    traced = xf.trace(fun, level=level)
    traced(x)
    np.testing.assert_array_equal(np.signbit(traced(x)), np.signbit(fun(x)))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("fun", "value"), [
    (lambda x: 1e200 * (1e200 * x), 1e-200), (lambda x: (1.5e308 * x) + (1.5e308 * x), 1e-200),
    (lambda x: 2**40 * (2**40 * x), 1e-200), (lambda x: 1e-200 * (1e-200 * x), 1e200), (lambda x: 3 * (2.0 * x), 2.0),
    (lambda x: np.array([2.0, 1e300]) * (np.array([3.0, 1e300]) * x), 1e-300),
])  # fmt: skip
def test_constants_that_may_not_be_multiplied(fun, value, level):
    x = np.array([value])
    traced = xf.trace(fun, level=level)
    traced(x)
    np.testing.assert_allclose(traced(x), fun(x), rtol=1e-14)


@pytest.mark.parametrize("level", LEVELS)
def test_more_elements_than_a_float16_counts(level):
    traced = xf.trace(lambda x: np.sum(xnp.broadcast_to(x, (100_000,))), level=level)
    zero = np.zeros((), np.float16)
    assert traced(zero) == traced(zero) == 0.0


# ------------------------------------------------------------------ powers

SMALL = ["bool", "int8", "uint8", "int16", "uint16", "uint32", "int64", "uint64", "float16", "float32"]


@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize("power", [xnp.power, xnp.float_power])
def test_derivatives_of_powers_of_small_dtypes(power, dtype):
    y = np.array([0, 1, 2, 3]).astype(dtype)
    x = np.array([100.0, 2.0, -1.5, 0.5])
    wide = y.astype(float)
    first = np.where(wide == 0, 0, wide * x ** (wide - 1))
    np.testing.assert_allclose(xf.grad(lambda v: xnp.sum(power(v, y)))(x), first)
    second = np.diag(np.where(wide < 2, 0, wide * (wide - 1) * x ** np.maximum(wide - 2, 0)))
    np.testing.assert_allclose(xf.hessian(lambda v: xnp.sum(power(v, y)))(x), second)
    base = np.array([100, 2, 1, 3]).astype(dtype)
    exponent = np.array([0.7, -0.5, 2.0, 1.5])
    want = base.astype(float) ** exponent * np.log(base.astype(float))
    np.testing.assert_allclose(xf.grad(lambda v: xnp.sum(power(base, v)))(exponent), want, rtol=1e-14)
    np.testing.assert_allclose(xf.jvp(lambda v: power(base, v), (exponent,), (np.ones(4),))[1], want, rtol=1e-14)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8"])
@pytest.mark.parametrize("name", ["power", "fmax", "fmin", "logaddexp", "logaddexp2", "maximum", "multiply", "hypot"])
def test_tangents_have_the_dtype_of_the_result(name, dtype):
    other, one = np.ones(3, dtype), np.array([0.5, 1.0, 2.0], np.float32)
    for fun in (lambda v: getattr(xnp, name)(other, v), lambda v: getattr(xnp, name)(v, other)):
        want = fun(one).dtype
        assert xf.jvp(fun, (one,), (one,))[1].dtype == want
        assert xf.jacfwd(fun)(one).dtype == want
        assert xf.linearize(fun, one)[1](one).dtype == want


# ------------------------------------------------------------------ single functions


def test_trace_and_diagonal_of_linalg_take_the_last_axes():
    x = np.arange(24.0).reshape(2, 3, 4)
    for fun in (xnp.linalg.trace, np.linalg.trace):
        np.testing.assert_array_equal(fun(xf.array(x)).data, np.linalg.trace(x))
    for fun in (xnp.linalg.diagonal, np.linalg.diagonal):
        np.testing.assert_array_equal(fun(xf.array(x), offset=1).data, np.linalg.diagonal(x, offset=1))
    np.testing.assert_array_equal(np.trace(xf.array(x)).data, np.trace(x))
    gradient = xf.grad(lambda v: np.linalg.trace(v)[1])(x)
    np.testing.assert_array_equal(gradient, np.stack([np.zeros((3, 4)), np.eye(3, 4)]))


def test_products_of_booleans_stay_booleans():
    b = np.ones(200, bool)
    for fun, want in ((xnp.vdot, np.vdot), (xnp.vecdot, np.vecdot), (xnp.inner, np.inner)):
        assert fun(b, b) == want(b, b)
        assert np.asarray(fun(b, b)).dtype == bool


def test_differences_of_nothing_have_edges():
    np.testing.assert_array_equal(xnp.diff(np.zeros(0), prepend=1.0, append=2.0), [1.0])
    assert xnp.diff(np.zeros((2, 0)), prepend=1.0, append=2.0).shape == (2, 1)
    assert xf.grad(lambda p: xnp.diff(np.zeros(0), prepend=p, append=3.0 * p).sum())(1.0) == 2.0


@pytest.mark.parametrize("fun", [xnp.std, xnp.var])
@pytest.mark.parametrize("x", [[np.inf, np.inf], [np.nan, np.nan], [np.inf, 0.0]], ids=str)
def test_a_spread_that_is_nan_has_a_nan_gradient(fun, x):
    with np.errstate(invalid="ignore"):
        value, gradient = xf.value_and_grad(fun)(np.array(x))
    assert np.isnan(value)
    assert np.isnan(gradient).any()


def test_clip_promotes_once():
    x = np.arange(3, dtype=np.int8)
    for low, high in ((-1.0, np.ones(3, "f4")), (0, 2), (np.zeros(3, "f4"), 1.0), (-1.0, np.ones(3, "i2"))):
        have, want = xnp.clip(x, low, high), np.clip(x, low, high)
        np.testing.assert_array_equal(have, want)
        assert have.dtype == want.dtype


@pytest.mark.parametrize(("subscripts", "left", "right"), [
    ("ij,ij->", (1, 3), (3, 1)), ("...i,...i->...", (2, 1, 3), (2, 2, 1)), ("bij,bjk->bik", (4, 2, 1), (1, 3, 2)),
    ("i...,i...->...", (1, 3), (2, 1)),
])  # fmt: skip
def test_einsum_whose_operands_are_broadcast_both_ways(subscripts, left, right):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=left), rng.normal(size=right)
    loss = lambda u, v: xnp.sum(xnp.einsum(subscripts, u, v) ** 2)
    for transform in (lambda f: f, xf.trace, xf.checkpoint):
        found = transform(xf.grad(loss, argnums=(0, 1)))(a, b)
        for have, want in zip(found, xf.jacfwd(loss, argnums=(0, 1))(a, b), strict=True):
            np.testing.assert_allclose(have, want)
    lanes = xf.vmap(xf.grad(loss), in_axes=(0, None))(np.stack([a, 2.0 * a]), b)
    np.testing.assert_allclose(lanes[1], xf.grad(loss)(2.0 * a, b))


def test_extrema_of_nothing_have_their_initial_value():
    assert xnp.max(np.zeros(0), initial=1.0) == 1.0
    np.testing.assert_array_equal(xnp.min(np.zeros((2, 0)), axis=1, initial=3.0), [3.0, 3.0])
    assert xnp.max(np.zeros((0, 2)), axis=0, keepdims=True, initial=3.0).shape == (1, 2)
    assert xnp.max(np.zeros((2, 0)), axis=0, initial=3.0).shape == (0,)
    assert xf.grad(lambda i: xnp.max(np.zeros(0), initial=i))(2.0) == 1.0
