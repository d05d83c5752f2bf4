"""Forward mode: `xf.Forward`, `xf.jvp`, `xf.linearize`, against closed forms and finite differences."""

from __future__ import annotations

from typing import NamedTuple

import array_api_strict
import attrs
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import xform as xf
import xform.numpy as xnp
from xform.core.errors import (
    EscapedValueError,
    GradientError,
    HostReadError,
    LayerError,
    MissingRuleError,
    OperandTypeError,
    RuleError,
)
from xform.core.stack import BOTTOM, cursor
from xform.testing import check_transformation

X = np.array([0.3, 0.8, 1.7])
T = np.array([1.0, -0.5, 2.0])


def difference(fun, x, t, eps=1e-6):
    """Central finite difference of a function along a direction."""
    return (np.asarray(fun(x + eps * t)) - np.asarray(fun(x - eps * t))) / (2 * eps)


def loop(x):
    for _ in range(3):
        x = x * 0.5 + np.cos(x * x)
    return x


def mixed(x):
    outer = x[:, None] * x[None, :]
    return np.concatenate([outer @ x, np.sort(x)[::-1] / x.sum(), np.where(x > 1.0, x**3, np.exp(-x))])


def reduced(x):
    return np.linalg.norm(np.outer(x, x) + np.eye(3)) * x.max() + x.prod()


PROGRAMS = [np.sin, loop, mixed, reduced, lambda x: x, lambda x: x[1], lambda x: np.linalg.inv(np.diag(x) + 0.1)]


@pytest.mark.parametrize("fun", PROGRAMS)
def test_tangents_are_those_of_finite_differences(fun):
    out, tangent = xf.jvp(fun, (X,), (T,))
    assert_array_equal(out, fun(X))
    assert_allclose(tangent, difference(fun, X, T), rtol=1e-7, atol=1e-9)
    assert not isinstance(out, xf.Value)
    assert np.shape(tangent) == np.shape(out)


@pytest.mark.parametrize("fun", PROGRAMS)
def test_second_order_by_nesting(fun):
    def first(x):
        return xf.jvp(fun, (x,), (T,))[1]

    assert_allclose(xf.jvp(first, (X,), (X,))[1], difference(first, X, X), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("fun", PROGRAMS)
def test_linearize_is_jvp_and_runs_the_function_once(fun):
    calls = []

    def counted(x):
        calls.append(1)
        return fun(x)

    out, push = xf.linearize(counted, X)
    for t in (T, 2 * T, X):
        assert_allclose(push(t), xf.jvp(fun, (X,), (t,))[1], rtol=1e-14)
    assert_array_equal(out, fun(X))
    assert calls == [1]


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_dtype_of_the_tangent_is_that_of_the_result(dtype):
    x, t = X.astype(dtype), T.astype(dtype)
    out, tangent = xf.jvp(lambda x: np.exp(2.0 * x) / (1.0 + x), (x,), (t,))
    assert out.dtype == tangent.dtype == dtype
    assert_allclose(tangent, t * np.exp(2 * x) * (1 + 2 * x) / (1 + x) ** 2, rtol=1e-5)


def test_holomorphic_functions_give_the_complex_derivative():
    z, t = np.array([1 + 2j, 0.5 - 1j]), np.array([1j, 2.0])
    assert_allclose(xf.jvp(lambda z: z**3 + np.sin(z), (z,), (t,))[1], (3 * z**2 + np.cos(z)) * t)


# ------------------------------------------------------------------ arguments and results


class Pair(NamedTuple):
    a: object
    b: object


@attrs.frozen
class Point:
    x: object
    y: object


def test_containers_in_and_out():
    def fun(params, scale):
        return Pair(params["w"] * scale, [params["p"].x + params["p"].y, {"c": 3.0}])

    params = {"w": X, "p": Point(2.0, np.float32(1.5))}
    tangents = {"w": T, "p": Point(0.5, np.float32(1.0))}
    out, tangent = xf.jvp(fun, (params, 2.0), (tangents, 1.0))
    assert isinstance(tangent, Pair)
    assert_allclose(out.a, 2 * X)
    assert_allclose(tangent.a, 2 * T + X)
    assert tangent.b[0] == 1.5
    assert tangent.b[1] == {"c": 0.0}


def test_has_aux():
    _, tangent, aux = xf.jvp(lambda x: (x * x, {"half": x / 2, "text": "kept"}), (X,), (T,), has_aux=True)
    assert_allclose(tangent, 2 * X * T)
    assert_allclose(aux["half"], X / 2)
    assert aux["text"] == "kept"
    _, push, aux = xf.linearize(lambda x: (x * x, x + 1), X, has_aux=True)
    assert_allclose(push(T), 2 * X * T)
    assert_array_equal(aux, X + 1)
    with pytest.raises(GradientError, match="must return a pair"):
        xf.jvp(np.sin, (X,), (T,), has_aux=True)


def test_row_50_constant_results_have_real_zero_tangents():
    def fun(x):
        return x, np.ones(2, np.float32), np.arange(2)

    for tangent in (xf.jvp(fun, (X,), (T,))[1], xf.linearize(fun, X)[1](T)):
        assert_array_equal(tangent[1] + 1, np.ones(2))
        assert tangent[1].dtype == np.float32
        assert_array_equal(tangent[2] + 1, [1, 1])
        assert tangent[2].dtype == np.arange(2).dtype


FLOAT0 = np.zeros(3, [("float0", np.void, 0)])


@pytest.mark.parametrize("none", [None, np.zeros(3, int), np.zeros(3), FLOAT0], ids=["None", "int", "float", "float0"])
def test_integer_arguments_do_not_vary(none):
    n = np.array([1, 2, 3])
    out, tangent = xf.jvp(lambda x, n: (x * n, n), (X, n), (T, none))
    assert_allclose(tangent[0], T * n)
    assert_array_equal(tangent[1], np.zeros(3))
    assert_array_equal(out[1], n)
    assert_allclose(xf.linearize(lambda x, n: x * n, X, n)[1](T, none), T * n)


def test_none_is_a_zero_tangent():
    assert_allclose(xf.jvp(lambda x, y: x * y, (X, T), (None, X))[1], X * X)
    assert_allclose(xf.linearize(lambda x, y: x * y, X, T)[1](None, X), X * X)
    assert_array_equal(xf.jvp(np.sin, (X,), (None,))[1], np.zeros(3))


def test_a_python_number_takes_the_dtype_of_its_primal():
    assert list(map(float, xf.jvp(lambda x: x * x, (3.0,), (1,)))) == [9.0, 6.0]
    assert xf.jvp(lambda x: x * 2, (np.float32(3.0),), (1.0,))[1].dtype == np.float32


def test_tracked_in_tracked_out():
    out, tangent = xf.jvp(np.sin, (xf.array(X),), (T,))
    assert type(out) is type(tangent) is xf.Array
    out, tangent = xf.jvp(lambda x: x + xf.array(1.0), (X,), (T,))
    assert type(out) is type(tangent) is np.ndarray


def test_the_tangent_returned_is_the_receivers_own():
    given = T.copy()
    _, tangent = xf.jvp(lambda x: x, (X,), (given,))
    tangent[...] = 7.0
    assert_array_equal(given, T)
    pushed = xf.linearize(lambda x: (x, x), X)[1](given)
    pushed[0][...] = 7.0
    assert_array_equal(given, T)
    assert_array_equal(pushed[1], T)


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("primals", "tangents", "message"),
    [
        (X, T, "primals must be a tuple or list"),
        ((X,), T, "tangents must be a tuple or list"),
        ((X,), (), "tangents do not have the structure.*expected tuple with 1 child"),
        ((X,), (T, T), "tangents do not have the structure"),
        (({"a": X},), ({"b": X},), "lacks"),
        ((X,), (T[:2],), r"leaf \[0\]: the tangent has shape \(2,\), its primal \(3,\)"),
        ((X,), (1.0,), r"the tangent has shape \(\)"),
        ((X,), (T.astype(np.float32),), r"dtype float32, its primal float64.*astype\('float64'\)"),
        ((X,), (T + 0j,), "dtype complex128"),
        ((2.0,), (1j,), "dtype complex128"),
        ((np.arange(3),), (np.ones(3),), "dtype int64, which does not vary"),
        ((X,), ("text",), "the tangent is str, no array"),
        ((X,), ([1.0, 2.0, 3.0],), "the tangent is list, no array"),
    ],
)
def test_tangents_that_do_not_fit(primals, tangents, message):
    def named(x):
        return x

    with pytest.raises(GradientError, match=f"jvp of named: .*{message}"):
        xf.jvp(named, primals, tangents)


def test_the_linear_map_checks_its_tangents_and_names_the_function():
    _, push = xf.linearize(loop, X)
    for bad, message in [((T[:2],), r"shape \(2,\)"), ((), "structure"), ((T, T), "structure"), ((T + 0j,), "complex")]:
        with pytest.raises(GradientError, match=f"the linear map of loop: .*{message}"):
            push(*bad)


@pytest.mark.parametrize("bad", ["text", object(), np.array(["a"]), np.array([None])], ids=["str", "object", "U", "O"])
def test_row_41_arguments_that_are_no_arrays(bad):
    with pytest.raises(TypeError):
        xf.jvp(lambda x: x, (bad,), (bad,))
    with pytest.raises(TypeError):
        xf.linearize(lambda x: x, bad)[1](bad)


def test_an_output_that_is_no_array():
    with pytest.raises(GradientError, match=r"jvp of .*the output \['b'\] is str.*has_aux"):
        xf.jvp(lambda x: {"a": x, "b": "text"}, (X,), (T,))


def test_a_reverse_rule_alone_is_transposed():
    rounded = xf.custom_gradient(lambda x: (np.round(x), None), lambda residuals, t: 3.0 * t)
    out, tangent = xf.jvp(rounded, (X,), (T,))
    assert_allclose(out, np.round(X))
    assert_allclose(tangent, 3.0 * T)


def test_an_exception_leaves_the_stack_as_it_was():
    with pytest.raises(ZeroDivisionError):
        xf.jvp(lambda x: 1 / 0, (X,), (T,))
    assert cursor.get() is BOTTOM


# ------------------------------------------------------------------ reading values


def test_reads_that_choose_work_and_have_no_derivative():
    def fun(x):
        total = x * 2 if x.sum() > 0 else -x
        for _ in range(int(x[2])):
            total = total * x
        return total + [10.0, 20.0, 30.0][int(x[0])]

    assert_allclose(xf.jvp(fun, (X,), (T,))[1], 4 * X * T)


@pytest.mark.parametrize("read", [float, complex, lambda v: v.item(), np.asarray, lambda v: np.full(2, v)])
def test_reads_that_would_drop_the_tangent_raise(read):
    with pytest.raises(HostReadError, match="would drop its derivative"):
        xf.jvp(lambda x: read(x[0]) * x, (X,), (T,))
    out, tangent = xf.jvp(lambda x: float(xf.stop_gradient(x[0])) * x, (X,), (T,))
    assert_allclose(out, X[0] * X)
    assert_allclose(tangent, X[0] * T)


def test_printing_works():
    shown = []
    xf.jvp(lambda x: shown.append(f"{x[0]:.2f} {x}") or x, (X,), (T,))
    assert shown == [f"0.30 {X}"]


def test_writing_raises():
    buffer = np.zeros(3)
    with pytest.raises((TypeError, ValueError)):
        xf.jvp(lambda x: buffer.__setitem__(0, x[0]), (X,), (T,))
    assert not buffer.any()


# ------------------------------------------------------------------ nesting


def test_perturbations_do_not_mix():
    assert xf.jvp(lambda x: x * xf.jvp(lambda y: x + y, (1.0,), (1.0,))[1], (2.0,), (1.0,))[1] == 1.0
    assert xf.jvp(lambda x: x * xf.jvp(lambda y: x * y, (3.0,), (1.0,))[1], (2.0,), (1.0,))[1] == 4.0
    assert xf.grad(lambda x: x * xf.jvp(lambda y: x + y, (1.0,), (1.0,))[1])(2.0) == 1.0
    assert xf.jvp(lambda x: x * xf.grad(lambda y: x * y)(1.0), (3.0,), (1.0,))[1] == 6.0


def test_grad_and_jvp_either_way_round():
    def fun(x):
        return (np.sin(x) * x).sum()

    product = (2 * np.cos(X) - X * np.sin(X)) * T
    assert_allclose(xf.jvp(xf.grad(fun), (X,), (T,))[1], product)
    assert_allclose(xf.grad(lambda x: xf.jvp(fun, (x,), (T,))[1])(X), product)
    assert_allclose(xf.grad(lambda x: xf.linearize(fun, x)[1](T))(X), product)
    assert_allclose(xf.linearize(xf.grad(fun), X)[1](T), product)
    _, pull = xf.vjp(xf.linearize(loop, X)[1], X)
    assert_allclose(pull(T)[0], xf.vjp(loop, X)[1](T)[0])


def test_with_trace_above_and_below():
    def fun(x, t):
        return xf.jvp(loop, (x,), (t,))

    traced = xf.trace(fun)
    for x in (X, X + 0.1):
        for _ in range(2):
            assert_allclose(traced(x, T), fun(x, T), rtol=1e-14)
            assert_allclose(xf.jvp(xf.trace(loop), (x,), (T,)), fun(x, T), rtol=1e-14)
    program = xf.make_program(fun)(X, T)
    assert_allclose(program(X, T), fun(X, T))
    single = xf.Aval((3,), np.dtype("float32"))
    assert xf.eval_shape(fun, single, single) == (single, single)


def test_a_profile_below_sees_the_operations_on_tangents():
    with xf.Profile() as profile:
        xf.jvp(np.sin, (X,), (T,))
    assert (profile.calls("Sin"), profile.calls("Cos"), profile.calls("Mul")) == (1, 1, 1)
    with xf.Profile() as profile:
        _, push = xf.linearize(np.sin, X)
        before = profile.calls("Mul")
        push(T)
        push(T)
    assert (profile.calls("Sin"), before, profile.calls("Mul")) == (1, 0, 2)


class Square(xf.Rewriter):
    def rewrite(self, op, values):
        return values[0] * values[0] if op == xf.ops.Sin() else NotImplemented


def test_a_rewriter_below_is_refused_and_above_it_counts():
    push = xf.linearize(np.sin, X)[1]
    with Square(), pytest.raises(LayerError, match="Decorate"):
        xf.jvp(np.sin, (X,), (T,))
    with Square(), pytest.raises(LayerError, match="Decorate"):
        push(T)
    assert_allclose(xf.jvp(Square()(np.sin), (X,), (T,))[1], 2 * X * T)


def test_device_above_and_below():
    name = "array_api_strict:device1"
    device = xf.Device(name)
    strict = array_api_strict
    x = strict.asarray(X, device=strict.Device("device1"))
    t = strict.asarray(T, device=strict.Device("device1"))
    want = T * np.cos(X) * 2.0
    for out in (
        xf.jvp(device(lambda x: xnp.sin(x) * 2.0), (X,), (T,))[1],
        device(lambda x, t: xf.jvp(lambda x: xnp.sin(x) * 2.0, (x,), (t,))[1])(X, T),
        xf.jvp(lambda x: xnp.sin(x) * 2.0, (x,), (t,))[1],
        xf.linearize(lambda x: xnp.sin(x) * 2.0, x)[1](t),
    ):
        assert xf.device_put(out, "cpu") is not None
        assert_allclose(np.asarray(xf.to_numpy(out)), want)


# ------------------------------------------------------------------ the layer itself


def test_the_layer_as_a_block():
    with xf.Forward("mine") as forward:
        x = forward.attach(X, T)
        y = np.exp(x) * 2.0
        assert x.shape == (3,)
        assert "mine" in repr(y)
    assert_allclose(forward.unwrap(y), 2 * np.exp(X))
    assert_allclose(forward.tangent(y), 2 * np.exp(X) * T)
    assert_array_equal(forward.tangent(X), np.zeros(3))
    with pytest.raises(LayerError, match=r"make another xf\.Forward"), forward:
        pass
    with pytest.raises(LayerError, match="not active"):
        forward.attach(X, T)


def test_row_53_values_kept_after_the_end_raise():
    kept = []
    xf.jvp(lambda x: kept.append(x) or x, (X,), (T,))
    with pytest.raises(EscapedValueError, match=r"forward#.*stop_gradient"):
        kept[0] + 1.0
    with pytest.raises(EscapedValueError):
        xf.jvp(lambda x: x + kept[0], (X,), (T,))
    assert_array_equal(xf.stop_gradient(kept[0]), X)


def test_the_manners_of_the_layer():
    check_transformation(xf.Forward, reusable=False)


def test_layers_made_by_name():
    assert isinstance(xf.layer("forward"), xf.Forward)


class Twice(xf.Operator):
    def infer(self, x):
        return x

    def evaluate(self, xp, x):
        return x * 2


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda op, primals, tangents: xf.apply(op, *primals), "must return a pair"),
        (lambda op, primals, tangents: (xf.apply(op, *primals), tangents[0].sum()), r"a tangent float64\[\]"),
        (lambda op, primals, tangents: (xf.apply(op, *primals), "t"), "as tangent str, no array"),
    ],
)
def test_a_wrong_rule_is_an_error_that_names_it(rule, message):
    class Wrong(Twice):
        pass

    xf.jvp_rule(Wrong)(rule)
    with pytest.raises(RuleError, match=rf"the jvp rule of .*Wrong.*{message}"):
        xf.jvp(lambda x: xf.apply(Wrong(), x), (X,), (T,))


def test_a_users_rule_serves_and_its_tangent_gets_the_dtype_of_the_result():
    class Own(Twice):
        pass

    xf.jvp_rule(Own)(lambda op, primals, tangents: (xf.apply(op, *primals), (tangents[0] * 2).astype("float64")))
    out, tangent = xf.jvp(lambda x: xf.apply(Own(), x), (X.astype("float32"),), (T.astype("float32"),))
    assert out.dtype == tangent.dtype == np.float32
    assert_allclose(tangent, 2 * T)


def test_a_missing_rule_names_what_to_write():
    class Bare(Twice):
        pass

    with pytest.raises(MissingRuleError, match="jvp_rule"):
        xf.jvp(lambda x: xf.apply(Bare(), x), (X,), (T,))


def test_arguments_that_are_not_arrays_are_named():
    with pytest.raises(OperandTypeError, match=r"linearize of loop: leaf \[0\]: the primal is str"):
        xf.linearize(loop, "text")
