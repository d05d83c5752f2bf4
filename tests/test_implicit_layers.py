"""Solutions of equations in compositions: batches, traces, rewriting layers, devices, threads; dtypes and errors."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import xform as xf
import xform.numpy as xnp
from tests.test_implicit import (
    METHODS,
    B,
    W,
    _types_are_checked_on_few,  # noqa: F401  (a fixture of this module too)
    along,
    equilibrium,
    newton,
    plain_cg,
    sqrt,
)
from xform.core.errors import (
    ConvergenceError,
    DtypeError,
    EscapedValueError,
    GradientError,
    HostReadError,
    NanError,
    OperandError,
    OperandTypeError,
    RuleError,
)
from xform.testing import check_grads

DEVICE = "array_api_strict:device1"
AREAS = np.array([1.0, 4.0, 9.0])

# ------------------------------------------------------------------ batches


def test_a_batch_of_roots():
    assert_allclose(xf.vmap(sqrt)(AREAS), [1, 2, 3])
    assert_allclose(xf.vmap(xf.grad(sqrt))(AREAS), [1 / 2, 1 / 4, 1 / 6])
    assert_allclose(xf.grad(lambda a: np.sum(xf.vmap(sqrt)(a)))(AREAS), [1 / 2, 1 / 4, 1 / 6])
    assert_allclose(xf.vmap(along(xf.grad(sqrt)))(AREAS), -0.25 * AREAS**-1.5)
    assert_allclose(
        xf.vmap(xf.hessian(lambda p: sqrt(p[0] * p[1])))(np.stack([AREAS, AREAS[::-1]], 1)).shape, (3, 2, 2)
    )
    assert xf.vmap(sqrt)(np.zeros(0)).shape == (0,)


@pytest.mark.parametrize("method", METHODS, ids=["matrix", "neumann", "user"])
def test_a_batch_of_fixed_points_is_the_loop(method):
    def loss(w, b):
        return np.sum(equilibrium(w, b, linear_solve=method) ** 2)

    ws, bs = np.stack([W, 0.5 * W, -W]), np.stack([B, -2 * B, B**2])
    lanes = list(zip(ws, bs, strict=True))
    assert_allclose(xf.vmap(equilibrium)(ws, bs), [equilibrium(w, b) for w, b in lanes], rtol=1e-14)
    for found, want in zip(
        xf.vmap(xf.grad(loss, (0, 1)))(ws, bs),
        zip(*[xf.grad(loss, (0, 1))(w, b) for w, b in lanes], strict=True),
        strict=True,
    ):
        assert_allclose(found, want, rtol=1e-12)
    shared, own = xf.grad(lambda w, bs: np.sum(xf.vmap(loss, (None, 0))(w, bs)), (0, 1))(W, bs)
    each = [xf.grad(loss, (0, 1))(W, b) for b in bs]
    assert_allclose(shared, sum(by_w for by_w, _ in each), rtol=1e-12)
    assert_allclose(own, [by_b for _, by_b in each], rtol=1e-12)
    pushed = xf.jvp(lambda bs: xf.vmap(loss, (None, 0))(W, bs), (bs,), (bs,))[1]
    assert_allclose(pushed, np.sum(own * bs, axis=1), rtol=1e-11)
    grid = xf.vmap(xf.vmap(xf.grad(loss), (None, 0)), (0, None))(ws, bs)
    assert_allclose(grid[2, 1], xf.grad(loss)(ws[2], bs[1]), rtol=1e-12)
    assert_allclose(xf.vmap(xf.hessian(loss, 1))(ws, bs)[1], xf.hessian(loss, 1)(ws[1], bs[1]), rtol=1e-10)


def test_lanes_stop_by_themselves():
    """Each lane takes as many steps as alone, and is not touched afterwards: `f` here never comes to rest exactly."""

    def solution(rate):
        return xf.fixed_point(lambda x: rate * x + 1.0, 0.0, tolerance=1e-2)

    rates = np.array([0.1, 0.5, 0.9])
    assert_array_equal(xf.vmap(solution)(rates), [solution(rate) for rate in rates])
    with pytest.raises(ConvergenceError):
        xf.vmap(solution)(np.array([0.1, 1.5]))
    assert xf.vmap(solution)(np.zeros(0)).shape == (0,)


# ------------------------------------------------------------------ traces


def test_a_trace_holds_one_equation_and_solves_again():
    traced = xf.trace(sqrt)
    assert traced(np.array(4.0)) == pytest.approx(2.0)
    program = traced.program(np.array(4.0))
    assert str(program).count("\n") == 2
    assert "Root[<lambda>](1.0, a)" in str(program)
    for run in (traced, program, xf.make_program(sqrt)(np.array(4.0))):
        assert run(np.array(9.0)) == pytest.approx(3.0)
        assert xf.grad(run)(np.array(9.0)) == pytest.approx(1 / 6)
        assert xf.hessian(run)(np.array(9.0)) == pytest.approx(-0.25 / 27)
        assert_allclose(xf.vmap(run)(AREAS), [1, 2, 3])
    assert xf.eval_shape(sqrt, np.float32(1.0)) == xf.Aval((), np.dtype(float))


@pytest.mark.parametrize(("transform", "points"), [
    (xf.grad, (4.0, 9.0)),
    (along, (4.0, 9.0)),
    (lambda f: along(xf.grad(f)), (4.0, 9.0)),
    (lambda f: xf.vmap(xf.grad(f)), (AREAS, 2 * AREAS)),
])  # fmt: skip
def test_traced_derivatives_equal_eager_ones(transform, points):
    derivative = transform(sqrt)
    traced = xf.trace(derivative)
    for point in points:
        assert_allclose(traced(point), derivative(point), rtol=1e-14)
    assert len(traced.programs) == 1


def test_a_traced_solver_takes_other_paths_on_replay():
    steps = []

    def solver(f, x):
        steps.append(x)
        return newton(f, x) if len(steps) == 1 else 3.0

    traced = xf.trace(lambda a: xf.root(lambda x: x * x - a, 1.0, solver))
    assert [traced(4.0), traced(5.0)] == pytest.approx([2.0, 3.0])
    assert len(steps) == 2


# ------------------------------------------------------------------ layers that rewrite, observe, move, wrap


class CosForSin(xf.Transformation):
    def interpret(self, op, values):
        return xf.apply(xf.ops.Cos() if op == xf.ops.Sin() else op, *values)


def with_sin(b):
    return xf.root(lambda x: 2 * x + np.sin(x) * b - b, np.zeros(3), newton)


def with_cos(b):
    return xf.root(lambda x: 2 * x + np.cos(x) * b - b, np.zeros(3), newton)


def test_a_layer_that_rewrites_reaches_into_the_function():
    rewritten = CosForSin()(with_sin)
    assert not np.allclose(with_sin(B), with_cos(B))
    for transform in (lambda f: f, xf.jacrev, xf.jacfwd, lambda f: xf.hessian(lambda b: np.sum(f(b))), xf.trace):
        assert_allclose(transform(rewritten)(B), transform(with_cos)(B), rtol=1e-12)
    assert_allclose(xf.vmap(rewritten)(np.stack([B, -B])), [with_cos(B), with_cos(-B)])
    with CosForSin():
        assert_array_equal(with_sin(B), with_cos(B))


def test_a_layer_that_rewrites_reaches_into_a_replay():
    traced = xf.trace(with_sin)
    with CosForSin():
        assert_array_equal(traced(B), with_cos(B))
        assert_array_equal(traced(2 * B), with_cos(2 * B))
    assert_array_equal(traced(B), with_sin(B))
    inside = xf.trace(CosForSin()(with_sin))
    inside(B)
    assert_array_equal(inside(2 * B), with_cos(2 * B))


def test_observers_see_the_solution_and_what_is_inside():
    with xf.Profile() as profile:
        with_sin(B)
    assert profile.calls("Root[<lambda>]") == 1
    assert profile.calls("Sin") > 2
    with xf.NanGuard(), np.errstate(invalid="ignore"), pytest.raises(NanError, match="Log made nan"):
        xf.root(lambda x: np.log(x - 3.0), 1.0, lambda f, x: f(x))


def test_a_device_holds_the_unknowns():
    eager = xf.value_and_grad(lambda b: xnp.sum(with_sin(b)))(B)
    with xf.Device(DEVICE):
        found = xf.value_and_grad(lambda b: xnp.sum(with_sin(b)))(B)
    assert_allclose(xf.to_numpy(found[0]), eager[0])
    assert_allclose(xf.to_numpy(found[1]), eager[1])


def fixed(b):
    return xf.fixed_point(lambda x: 0.3 * xnp.sin(x) * b + b, b * 0)


@pytest.mark.parametrize("transform", [
    lambda f: f,
    xf.jacrev,
    xf.jacfwd,
    lambda f: xf.hessian(lambda b: xnp.sum(f(b))),
    lambda f: xf.vmap(f, axis_size=1, in_axes=None),
    lambda f: lambda b: xf.vmap(f)(xnp.stack([b, 2 * b])),
    lambda f: lambda b: xf.grad(lambda c: xnp.sum(xf.vmap(f)(xnp.stack([c, 2 * c]))))(b),
])  # fmt: skip
def test_arrays_of_a_device_stay_there(transform):
    found = transform(fixed)(xf.device_put(B, DEVICE))
    assert xf.array(found).device == DEVICE
    assert_allclose(xf.to_numpy(found), transform(fixed)(B), rtol=1e-12)


class Wrapped(xf.Value):
    __slots__ = ("owner",)


class Wraps(xf.Transformation):
    """A user's layer with values of its own."""

    effect = "wraps"

    def interpret(self, op, values):
        out = xf.apply(op, *[self.unwrap(value) for value in values])
        return tuple(map(self.wrap, out)) if op.multiple_outputs else out if op.attribute_like else self.wrap(out)

    def wrap(self, x):
        value = Wrapped()
        value.owner = self
        value.data = x if isinstance(x, xf.Value) else xf.array(x)
        return value


def test_values_of_a_user_layer_are_parameters_too():
    with Wraps() as layer:
        found = sqrt(layer.wrap(np.array(4.0)))
        assert type(found) is Wrapped
        assert float(layer.unwrap(found)) == pytest.approx(2.0)
        gradient = xf.grad(sqrt)(layer.wrap(np.array(4.0)))
        assert float(layer.unwrap(gradient)) == pytest.approx(0.25)


def test_a_custom_rule_inside_serves_the_mode_that_it_has():
    sin = xf.custom_gradient(lambda x: (np.sin(x), x), lambda x, t: t * np.cos(x))

    def solution(a):
        return xf.root(lambda x: x - 0.5 * sin(x) - a, 1.0, newton)

    assert xf.grad(solution)(0.5) == pytest.approx(1 / (1 - 0.5 * np.cos(solution(0.5))))


@pytest.mark.parametrize("transform", [xf.grad, along, lambda f: xf.grad(xf.grad(f)), lambda f: along(xf.grad(f))])
def test_checkpoints_and_custom_rules_around_and_inside(transform):
    want = transform(sqrt)(4.0)
    assert transform(xf.checkpoint(sqrt))(4.0) == pytest.approx(want)
    inside = xf.checkpoint(lambda x, a: x * x - a)
    assert transform(lambda a: xf.root(lambda x: inside(x, a), 1.0, newton))(4.0) == pytest.approx(want)
    closed = xf.checkpoint(lambda c: xf.root(lambda x: x * x - c, 1.0, newton))
    assert transform(lambda a: closed(a))(4.0) == pytest.approx(want)
    square = xf.custom_jvp(lambda x: x * x)
    square.defjvp(lambda primals, tangents: (square(primals[0]), 2.0 * primals[0] * tangents[0]))
    assert transform(lambda a: xf.root(lambda x: square(x) - a, 1.0, newton))(4.0) == pytest.approx(want)


#: functions of which 2 * a**2 is the fixed point, which record what they do, or derive something from it
RECORDING = {
    "while_loop": lambda a: lambda x: xf.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, 0.5 * c[1] + a * a), (0, x)
    )[1],
    "fori_loop": lambda a: lambda x: xf.fori_loop(0, 3, lambda n, x: 0.5 * x + a * a, x),
    "scan": lambda a: lambda x: xf.scan(lambda x, k: (0.5 * x + k * a * a, None), x, np.ones(3))[0],
    "map": lambda a: lambda x: 0.5 * x + xf.map(lambda k: k * a * a, np.ones(2))[0],
    "cond": lambda a: lambda x: xf.cond(x > -9.0, lambda x: 0.5 * x + a * a, lambda x: x, x),
    "cond in a loop": lambda a: lambda x: xf.fori_loop(
        0, 2, lambda n, x: xf.cond(n > 0, lambda x: x + a * a, lambda x: 0.5 * x, x), x
    ),
    "gradient of a loop": lambda a: lambda x: (
        0.5 * x + xf.grad(lambda y: xf.fori_loop(0, 2, lambda n, y: y * a, y))(1.0)
    ),
    "trace": lambda a: xf.trace(lambda x: 0.5 * x + a * a),
    "vmap": lambda a: lambda x: xf.vmap(lambda k: 0.5 * x + k * a * a)(np.ones(2))[0],
    "linearize": lambda a: lambda x: xf.linearize(lambda x: 0.25 * x * x + a * a * x, x)[1](1.0),
}


@pytest.mark.parametrize("name", RECORDING)
def test_what_is_recorded_inside_of_an_equation_sees_the_parameters(name):
    def solution(a):
        return xf.fixed_point(RECORDING[name](a), 1.0)

    assert_allclose(solution(3.0), 18.0)
    assert_allclose(xf.grad(solution)(3.0), 12.0)
    assert_allclose(along(solution)(3.0), 12.0)
    assert_allclose(along(xf.grad(solution))(3.0), 4.0)
    assert_allclose(xf.vmap(solution)(np.array([1.0, 3.0])), [2.0, 18.0])
    assert_allclose(xf.vmap(xf.grad(solution))(np.array([1.0, 3.0])), [4.0, 12.0])
    traced = xf.trace(xf.grad(solution))
    assert_allclose([traced(a) for a in (3.0, 1.0, 2.0)], [12.0, 4.0, 8.0])


def test_a_root_of_a_function_with_draws():
    def solution(a, k):
        return xf.root(lambda x: x * x - a * (1.0 + xf.random.uniform(k)), 1.0, newton)

    keys = xf.random.split(xf.random.key(0), 3)
    want = [0.25 * np.sqrt(1.0 + xf.random.uniform(k)) for k in keys]
    assert_allclose(xf.vmap(xf.grad(solution), (None, 0))(4.0, keys), want)
    assert_allclose([xf.trace(xf.grad(solution))(4.0, k) for k in keys], want)


def test_threads_and_memory():
    found = []

    def work():
        found.extend(xf.grad(sqrt)(area) * 2 * area**0.5 for area in np.linspace(1.0, 9.0, 10))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_allclose(found, np.ones(40))
    gc.disable()
    try:
        w = np.ones(5)
        kept = weakref.ref(w)
        xf.grad(lambda w: xf.root(lambda x: x * x - np.sum(w * w), 1.0, newton))(w)
        xf.vmap(xf.grad(lambda w: xf.fixed_point(lambda x: 0.5 * x + np.sum(w), 0.0)))(np.stack([w, w]))
        del w
        assert kept() is None
    finally:
        gc.enable()


# ------------------------------------------------------------------ dtypes


def test_complex_unknowns_of_holomorphic_functions():
    z = np.array([1 + 2j, -0.5 + 0.3j])

    def csqrt(a):
        return xf.root(lambda x: x * x - a, np.ones(2) + 1j, newton)

    assert_allclose(csqrt(z), np.sqrt(z))
    for jacobian in (xf.jacfwd, xf.jacrev):
        assert_allclose(jacobian(csqrt, holomorphic=True)(z), np.diag(0.5 / np.sqrt(z)), atol=1e-14)
    check_grads(csqrt, (z,), order=2)
    real = xf.grad(lambda a: np.sum(np.abs(csqrt(a)) ** 2))(z)
    assert_allclose(real, xf.grad(lambda a: np.sum(np.abs(np.sqrt(a)) ** 2))(z))
    of_real = xf.grad(lambda s: np.sum(xf.root(lambda x: x * x + s, np.array([1j, 2j]), newton).imag))
    assert of_real(4.0) == pytest.approx(0.5)
    for method in (None, lambda matvec, b: b / matvec(b / b)):
        pushed = along(lambda s, m=method: xf.root(lambda x: x * x + s, np.array([2j]), newton, linear_solve=m))(4.0)
        assert_allclose(pushed, [0.25j])


def test_the_solution_has_the_dtype_of_the_start():
    for start, parameter in ((np.float32(1), 4.0), (np.float32(1), np.float32(4)), (1.0, np.float32(4))):
        solution = xf.root(lambda x, a: x * x - a, start, lambda f, x: np.float64(2.0), parameter)
        assert solution.dtype == np.asarray(start).dtype
        gradient = xf.grad(lambda a, s=start: xf.root(lambda x: x * x - a, s, lambda f, x: 2.0))(parameter)
        assert gradient == 0.25
        assert type(gradient) is type(parameter)
        out, tangent = xf.jvp(
            lambda a, s=start: xf.root(lambda x: x * x - a, s, lambda f, x: 2.0), (parameter,), (1.0,)
        )
        assert (out.dtype, tangent.dtype, tangent) == (solution.dtype, solution.dtype, 0.25)
    mixed = {"a": np.ones(2, np.float32), "b": np.ones(2)}

    def solver(f, x):
        return {"a": np.full(2, 3.0, np.float32), "b": np.ones(2)}

    found = xf.jacfwd(lambda c: xf.root(lambda x: {"a": x["a"] - c, "b": x["b"] * x["a"] - c}, mixed, solver))(
        np.full(2, 3.0)
    )
    assert (found["a"].dtype, found["b"].dtype) == (np.float32, np.float64)
    assert_allclose(found["a"], np.eye(2))
    assert_allclose(found["b"], np.zeros((2, 2)), atol=1e-7)


def test_nothing_to_solve_for():
    assert xf.root(lambda x: x * 2, np.zeros(0), lambda f, x: f(x)).shape == (0,)
    assert xf.fixed_point(lambda x: {"a": x["a"] * 2, "b": []}, {"a": np.zeros((0, 3)), "b": []})["a"].shape == (0, 3)
    for jacobian in (xf.jacfwd, xf.jacrev):
        assert jacobian(lambda a: xf.fixed_point(lambda x: x * a, np.zeros(0)))(2.0).shape == (0,)


# ------------------------------------------------------------------ errors

IDENTITY = (lambda x: x, 1.0, lambda f, x: x)


@pytest.mark.parametrize(("call", "kind", "message"), [
    (lambda: xf.root(3, 1.0, newton), OperandTypeError, "root takes a function, got int"),
    (lambda: xf.root(lambda x: x, 1.0, 3), OperandTypeError, "root: solver takes a function"),
    (lambda: xf.root(*IDENTITY, linear_solve=3), OperandTypeError, "linear_solve takes a function"),
    (lambda: xf.root(lambda x: x, 1, newton), DtypeError, r"x0 has dtype int64; .* pass float\(x0\)"),
    (lambda: xf.root(lambda x: x, {"a": [np.arange(2)]}, newton), DtypeError, r"x0\['a'\]\[0\] has dtype int64"),
    (lambda: xf.root(lambda x: x, ["s"], newton), OperandTypeError, r"x0\[0\] is str, no array"),
    (lambda: xf.root(lambda x: (x, x), 1.0, lambda f, x: f(x)), OperandError, r"structure of x0, .* returned"),
    (lambda: xf.root(lambda x: x * np.ones(2), 1.0, lambda f, x: f(x)), OperandError, r"returned float64\[2\] for"),
    (lambda: xf.root(lambda x: x, 1.0, lambda f, x: f([x])), OperandError, "it was called with"),
    (lambda: xf.root(lambda x: x, 1.0, lambda f, x: (x,)), RuleError, "the solver must return the structure of x0"),
    (lambda: xf.root(lambda x: x, 1.0, lambda f, x: np.ones(2)), RuleError, r"returned float64\[2\], but x0"),
    (lambda: xf.root(lambda x: x, 1.0, lambda f, x: 1j), RuleError, "but x0 is weak float64"),
    (lambda: xf.root(lambda x: x, 1.0, lambda f, x: "s"), RuleError, "returned str, no plain array"),
    (lambda: xf.fixed_point(lambda x: x, 1.0, max_iterations=0), OperandError, "must be at least 1"),
    (lambda: xf.fixed_point(lambda x: x, 1.0, max_iterations=1.5), OperandTypeError, "must be an int"),
    (lambda: xf.fixed_point(lambda x: x, 1.0, tolerance=-1), OperandError, "not negative"),
    (lambda: xf.fixed_point(lambda x: x, 1.0, tolerance="a"), OperandTypeError, "a number or None"),
    (lambda: xf.fixed_point(lambda x: x, 1.0, linear_solve="lu"), OperandError, '"neumann" or None'),
    (lambda: xf.grad(lambda a: xf.root(lambda x: (x - a) ** 2, 1.0, lambda f, x: 2.0))(2.0),
     np.linalg.LinAlgError, "Singular"),
    (lambda: xf.grad(lambda a: xf.root(lambda x: 1j * x * a, 1.0, lambda f, x: x))(2.0), GradientError, "both complex"),
    (lambda: xf.grad(lambda a: xf.root(lambda x: x - float(a), 1.0, newton))(2.0), HostReadError, "would drop its"),
    (lambda: xf.vmap(lambda a: xf.fixed_point(lambda x: max(x, a), 1.0))(AREAS), HostReadError, "lanes may differ"),
    (lambda: xf.make_program(lambda a: xf.root(lambda x: max(x, a), 1.0, newton))(1.0), HostReadError, "bool"),
    (lambda: xf.root(lambda x: 1 / 0, 1.0, lambda f, x: f(x)), ZeroDivisionError, "division"),
])  # fmt: skip
def test_errors_name_what_is_wrong(call, kind, message):
    with pytest.raises(kind, match=message):
        call()
    assert xf.stack() == ()


def test_real_and_complex_unknowns_do_not_mix():
    def f(a):
        return xf.root(lambda x: {"r": x["r"] - a, "c": x["c"] - 1j * a}, {"r": 1.0, "c": 1j}, lambda f, x: x)["r"]

    with pytest.raises(GradientError, match="some unknowns are real and some complex"):
        xf.grad(f)(2.0)


def test_a_value_that_has_escaped_is_named():
    with xf.Grad() as tape:
        escaped = tape.attach(2.0)
    for transform in (lambda f: f, xf.grad, xf.trace):
        with pytest.raises(EscapedValueError, match=r"Take xf\.stop_gradient"):
            transform(lambda a: xf.root(lambda x: x * a - escaped, 1.0, newton))(1.0)


def test_a_singular_jacobian_is_explained():
    with pytest.raises(np.linalg.LinAlgError) as caught:
        xf.jvp(lambda a: xf.root(lambda x: (x - a) ** 2, 1.0, lambda f, x: 2.0), (2.0,), (1.0,))
    assert any("the Jacobian is singular at the solution" in note for note in caught.value.__notes__)
    assert plain_cg(lambda v: 2 * v, np.ones(2)).tolist() == [0.5, 0.5]
