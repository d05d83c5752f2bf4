"""`grad`, `value_and_grad` and `vjp` as functions: arguments, containers, dtypes, the edge rule, errors, nesting."""

import dataclasses
import functools
from typing import Any, NamedTuple

import attrs
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import xform as xf
import xform.numpy as xnp
from xform.core.errors import GradientError, OperandTypeError

X = np.array([0.3, -1.2, 2.0])


def three(x, y, z=1.0, *, scale=1.0):
    return x * x * y * z * scale


# ------------------------------------------------------------------ which arguments


@pytest.mark.parametrize(("argnums", "want"), [
    (0, 12.0), (1, 4.0), (2, 12.0), (-1, 12.0), (-3, 12.0),
    ((0,), (12.0,)), ((2, 0), (12.0, 12.0)), ((1, -1), (4.0, 12.0)), ([0, 1], (12.0, 4.0)), ((), ()),
])  # fmt: skip
def test_argnums(argnums, want):
    found = xf.grad(three, argnums)(2.0, 3.0, 1.0)
    assert found == want
    assert type(found) is type(want)
    assert xf.value_and_grad(three, argnums=argnums)(2.0, 3.0, 1.0) == (12.0, want)


@pytest.mark.parametrize(("argnames", "want"), [
    ("z", 12.0), ("scale", 12.0), (("z",), {"z": 12.0}), (("scale", "z"), {"scale": 12.0, "z": 12.0}),
])  # fmt: skip
def test_argnames(argnames, want):
    assert xf.grad(three, argnames=argnames)(2.0, 3.0, z=1.0, scale=1.0) == want


def test_argnums_and_argnames_together():
    positional, named = xf.grad(three, (0, 1), argnames=("z",))(2.0, 3.0, z=1.0)
    assert positional == (12.0, 4.0)
    assert named == {"z": 12.0}


def test_wrong_argnums_and_argnames():
    with pytest.raises(GradientError, match=r"grad of three: argnums=3, but it was called with 2 positional"):
        xf.grad(three, 3)(2.0, 3.0)
    with pytest.raises(GradientError, match=r"argnums=-3"):
        xf.grad(three, (0, -3))(2.0, 3.0)
    with pytest.raises(GradientError, match=r"argnames has 'q'; pass it by keyword \(got \['z'\]\)"):
        xf.grad(three, argnames="q")(2.0, 3.0, z=1.0)
    assert xf.stack() == ()


def test_other_arguments_pass_through_untouched():
    def function(x, label, flags, *rest, key=None, **more):
        assert label == "label"
        assert flags == [True, None]
        assert rest == (np.sum,)
        assert key == {"a": 1}
        assert more == {"n": 3}
        return rest[0](x) * more["n"]

    assert_array_equal(xf.grad(function)(X, "label", [True, None], np.sum, key={"a": 1}, n=3), [3.0, 3.0, 3.0])
    bound = functools.partial(function, n=3, key={"a": 1})
    assert_array_equal(xf.grad(bound)(X, "label", [True, None], np.sum), [3.0] * 3)


def test_has_aux():
    aux_of = lambda x: (np.sum(x * x), {"x": x, "n": 3, "s": "text"})
    slope, aux = xf.grad(aux_of, has_aux=True)(X)
    assert_array_equal(slope, 2 * X)
    assert type(aux["x"]) is np.ndarray
    assert aux["n"] == 3
    (value, aux), slope = xf.value_and_grad(aux_of, has_aux=True)(X)
    assert value == np.sum(X * X)
    assert_array_equal(aux["x"], X)
    out, pullback, aux = xf.vjp(aux_of, X, has_aux=True)
    assert out == value
    assert type(aux["x"]) is np.ndarray
    assert_array_equal(pullback(2.0)[0], 4 * X)
    for function in (xf.grad, xf.value_and_grad):
        with pytest.raises(GradientError, match=r"must return a pair \(out, aux\)"):
            function(np.sum, has_aux=True)(X)


# ------------------------------------------------------------------ containers


class Pair(NamedTuple):
    w: Any
    b: Any


@dataclasses.dataclass
class Data:
    w: Any
    b: Any


@attrs.frozen
class Frozen:
    w: Any
    b: Any


@pytest.mark.parametrize(("made", "read"), [
    (dict(w=X, b=2.0), lambda p: (p["w"], p["b"])),
    ([X, 2.0], tuple),
    ((X, 2.0), tuple),
    (Pair(X, 2.0), tuple),
    (Data(X, 2.0), lambda p: (p.w, p.b)),
    (Frozen(X, 2.0), lambda p: (p.w, p.b)),
    ({"deep": [Pair(X, {"b": (2.0, None)})]}, lambda p: (p["deep"][0].w, p["deep"][0].b["b"][0])),
])  # fmt: skip
def test_containers(made, read):
    def loss(p, x):
        w, b = read(p)
        return np.sum(np.sin(w) * x) * b

    found = xf.grad(loss)(made, X)
    assert type(found) is type(made)
    assert xf.tree.structure(found) == xf.tree.structure(made)
    dw, db = read(found)
    assert_allclose(dw, np.cos(X) * X * 2)
    assert_allclose(db, np.sum(np.sin(X) * X))
    _, pullback = xf.vjp(loss, made, X)
    dp, dx = pullback(1.0)
    assert_allclose(read(dp)[0], dw)
    assert_allclose(dx, np.sin(X) * 2)


# ------------------------------------------------------------------ dtypes and kinds


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_gradient_has_the_dtype_of_its_primal(dtype):
    x, other = X.astype(dtype), X.astype("float64")
    value, slope = xf.value_and_grad(lambda x: (np.sin(x) * x + 2.0 * x**2).sum())(x)
    assert value.dtype == slope.dtype == dtype
    tolerance = {"float16": 5e-3, "float32": 1e-6, "float64": 1e-13}[dtype]
    assert_allclose(slope, np.cos(X) * X + np.sin(X) + 4 * X, rtol=tolerance)
    mixed = xf.grad(lambda x: (x * other).sum())(x)
    assert mixed.dtype == dtype
    assert xf.grad(xf.grad(lambda v: v**3))(np.dtype(dtype).type(2.0)).dtype == dtype


def test_raw_in_raw_out_and_array_in_array_out():
    held = xf.array(X)
    function = lambda x: (np.sum(np.sin(x) * held), {"held": held, "x": x})
    (value, aux), slope = xf.value_and_grad(function, has_aux=True)(X)
    for each in (value, slope, aux["held"], aux["x"]):
        assert not isinstance(each, xf.Value)  # closed-over ones too
    (value, aux), slope = xf.value_and_grad(function, has_aux=True)(xf.array(X))
    for each in (value, slope, aux["held"], aux["x"]):
        assert type(each) is xf.Array
    assert type(xf.value_and_grad(lambda x, k: np.sum(x) * k)(X, xf.array(2.0))[0]) is xf.Array
    assert type(xf.grad(lambda x: x * x)(2.0)) is float
    assert type(xf.grad(lambda x: np.sin(x) * x)(2.0)) is float
    assert isinstance(xf.value_and_grad(lambda x: x * x)(2.0)[0], float)
    out, pullback = xf.vjp(lambda x: [x * held, held], X)
    assert [type(each) for each in out] == [np.ndarray] * 2
    assert type(pullback([X, X])[0]) is np.ndarray
    assert type(xf.vjp(np.sin, xf.array(X))[0]) is xf.Array


def test_no_dependence_is_zero_and_constants_are_outputs():
    assert xf.grad(lambda x: 3.0)(2.0) == 0.0
    assert_array_equal(xf.grad(lambda x: np.float64(3.0))(X), np.zeros(3))
    assert_array_equal(xf.grad(lambda x, y: y)(X, 2.0), np.zeros(3))
    out, pullback = xf.vjp(lambda x: (x, np.ones(2)), X)
    assert_array_equal(pullback((X, np.ones(2)))[0], X)
    assert_array_equal(out[1], np.ones(2))


def test_vjp_can_be_called_many_times_and_later():
    out, pullback = xf.vjp(lambda x, y: {"s": np.sin(x) * y}, X, 2.0)
    assert_allclose(out["s"], np.sin(X) * 2)
    xf.grad(np.sum)(X)
    for k in (1.0, 3.0, 1.0):
        dx, dy = pullback({"s": k * np.ones(3)})
        assert_allclose(dx, k * np.cos(X) * 2)
        assert_allclose(dy, k * np.sin(X).sum())
    assert xf.vjp(lambda: 3.0)[1](1.0) == ()


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(("out", "said"), [
    (lambda x: x, r"had shape: \(3,\)"),
    (lambda x: x[:1], r"had shape: \(1,\).*out\[0\]"),
    (lambda x: x[None, :1], r"had shape: \(1, 1\)"),
    (lambda x: (x.sum(), x.sum()), "was a tuple"),
    (lambda x: (), "was a tuple"),
    (lambda x: [x.sum()], "was a list"),
    (lambda x: {"loss": x.sum()}, "was a dict"),
    (lambda x: None, "was a NoneType"),
    (lambda x: x.sum() * 1j, "complex128"),
    (lambda x: np.argmax(x), "int64"),
    (lambda x: x.sum() > 0, "bool"),
    (lambda x: np.zeros(2), r"had shape: \(2,\)"),
    (lambda x: 3, "int64"),
])  # fmt: skip
def test_outputs_that_are_no_real_scalar(out, said):
    for function in (xf.grad, xf.value_and_grad):
        with pytest.raises(GradientError, match=r"Gradient only defined for scalar-output.*" + said) as caught:
            function(out)(X)
        assert isinstance(caught.value, TypeError)
        assert xf.stack() == ()


def test_an_output_that_is_no_array():
    with pytest.raises(TypeError, match="str"):
        xf.grad(lambda x: "text")(X)
    assert xf.stack() == ()


@pytest.mark.parametrize(("argument", "said"), [
    (3, "int64"),
    (np.arange(3), "int64"),
    ({"w": [1.0, np.int32(2)]}, r"\['w'\]\[1\].*int32"),
    (Data(X, True), r"\.b.*bool"),
    ((X, np.zeros(2, "uint8")), r"\[1\].*uint8"),
])  # fmt: skip
def test_integer_leaves_are_refused_by_path_and_dtype(argument, said):
    with pytest.raises(GradientError, match="grad of function.*" + said):
        xf.grad(named("function"))(argument)
    with pytest.raises(GradientError, match="vjp.*" + said):
        xf.vjp(named("function"), argument)
    assert xf.stack() == ()


def named(name):
    def function(p):
        return 1.0

    function.__name__ = name
    return function


@pytest.mark.parametrize("argument", ["text", np.array(["a"]), np.array([object()]), object(), {"w": "text"}])
def test_arguments_that_are_no_numbers(argument):
    for call in (lambda: xf.grad(named("f"))(argument), lambda: xf.vjp(named("f"), argument)):
        with pytest.raises(TypeError) as caught:
            call()
        assert isinstance(caught.value, OperandTypeError | GradientError)
        assert xf.stack() == ()


@pytest.mark.parametrize(("cotangents", "said"), [
    ((np.ones(2),), r"float64\[2\].*float64\[3\]"),
    ((np.ones(3, "float32"),), "float32"),
    ((np.ones(3, complex),), "complex128"),
    (([np.ones(3)],), "structure"),
    ((), "takes one cotangent"),
    ((np.ones(3), np.ones(3)), "takes one cotangent"),
])  # fmt: skip
def test_wrong_cotangents_name_the_function(cotangents, said):
    _, pullback = xf.vjp(np.sin, X)
    with pytest.raises(GradientError, match="pullback of sin.*" + said):
        pullback(*cotangents)
    assert_allclose(pullback(np.ones(3))[0], np.cos(X))


def test_an_exception_of_the_function_passes_unchanged():
    mine = ValueError("mine")

    def function(x):
        np.sin(x)
        raise mine

    for call in (lambda: xf.grad(function)(X), lambda: xf.vjp(function, X), lambda: xf.grad(xf.grad(function))(1.0)):
        with pytest.raises(ValueError, match="mine") as caught:
            call()
        assert caught.value is mine
        assert xf.stack() == ()


# ------------------------------------------------------------------ perturbation confusion


@pytest.mark.parametrize(("function", "at", "want"), [
    (lambda x: x * xf.grad(lambda y: x + y)(1.0), 1.0, 1.0),
    (lambda x: x * xf.grad(lambda y: x * y)(2.0), 3.0, 6.0),
    (lambda x: x * xf.grad(lambda y: x * y * y)(x), 2.0, 24.0),  # x * 2 x x -> 6 x^2
    (lambda x: xf.grad(lambda y: xf.grad(lambda z: x * y * z)(1.0) * y)(x), 3.0, 4 * 3.0),  # 2 x y at y = x
    (lambda x: xf.grad(lambda y: xf.stop_gradient(x) * y * y)(x), 3.0, 6.0),
    (lambda x: xf.vjp(lambda y: x * y, x)[1](x)[0], 3.0, 6.0),
    (lambda x: xf.vjp(np.sin, x)[1](x * x)[0], 0.5, np.cos(0.5) - 0.25 * np.sin(0.5)),
    (lambda x: xf.grad(lambda y: x)(1.0) + x, 3.0, 1.0),
    (lambda x: xf.value_and_grad(lambda y: x * np.sin(y))(x)[0], 0.5, np.sin(0.5) + 0.5 * np.cos(0.5)),
])  # fmt: skip
def test_perturbations_are_not_confused(function, at, want):
    assert_allclose(xf.grad(function)(at), want, rtol=1e-14)


def test_a_pullback_made_outside_is_differentiated_inside():
    _, pullback = xf.vjp(lambda x: x**3, 2.0)
    assert xf.grad(lambda t: pullback(t)[0])(1.0) == 12.0
    assert xf.grad(lambda t: pullback(t * t)[0])(3.0) == 72.0


def test_second_derivatives_with_closures():
    def energy(x, k):
        return np.sum(k * x**4)

    def force(x, k):
        return -xf.grad(energy)(x, k)

    jacobian = np.stack([xf.vjp(lambda x: force(x, 2.0), X)[1](row)[0] for row in np.eye(3)])
    assert_allclose(jacobian, np.diag(-24 * X**2))
    assert_allclose(xf.grad(lambda k: np.sum(force(X, k)))(2.0), np.sum(-4 * X**3))


def test_kwargs_are_differentiated_only_when_named():
    function = lambda x, *, w: xnp.sum(x * w)
    assert_array_equal(xf.grad(function)(X, w=X), X)
    assert_array_equal(xf.grad(function, argnames="w")(X, w=X), X)
