"""Implicit differentiation: derivatives of solutions against closed forms and finite differences, under every layer."""

from __future__ import annotations

import itertools

import mpmath
import numpy as np
import pytest
import scipy.optimize
import scipy.sparse.linalg
from numpy.testing import assert_allclose, assert_array_equal
from typeguard import suppress_type_checks

import xform as xf
import xform.numpy as xnp
from xform.core.errors import ConvergenceError
from xform.testing import check_grads

RNG = np.random.default_rng(3)
B = np.array([0.3, -0.7, 1.1])
W = 0.3 * RNG.normal(size=(3, 3))


@pytest.fixture(autouse=True)
def _types_are_checked_on_few(request):
    """Let typeguard check some tests alone: on all of the numbers it would spend a minute."""
    if request.node.name.startswith(("test_branches", "test_the_user_method", "test_fixed_point", "test_the_s")):
        yield
        return
    with suppress_type_checks():
        yield


def newton(f, x):
    """Newton's method with Python's control flow, on numbers and on arrays of any shape."""
    for _ in range(60):
        y = f(x)
        if float(np.max(np.abs(y))) < 1e-14:
            break
        if np.ndim(x):
            jacobian = xf.jacobian(f, holomorphic=x.dtype.kind == "c")(x).reshape(x.size, x.size)
            x = x - np.linalg.solve(jacobian, y.ravel()).reshape(x.shape)
        else:
            x = x - y / xf.grad(f)(x)
    return x


def along(f):
    return lambda a: xf.jvp(f, (a,), (1.0,))[1]


def sqrt(a):
    return xf.root(lambda x: x * x - a, 1.0, newton)


def plain_cg(matvec, b):
    """Conjugate gradients, stopped by a test on a number."""
    x, r = 0 * b, b
    p = r
    for _ in range(3 * b.size):
        if float(r @ r) < 1e-30:
            break
        product = matvec(p)
        step = (r @ r) / (p @ product)
        x, left = x + step * p, r - step * product
        p, r = left + (left @ left) / (r @ r) * p, left
    return x


def columnwise(matvec, b):
    """A dense solve that sees the matrix through products alone, containers included."""
    leaves, structure = xf.tree.flatten(b)
    size = sum(leaf.size for leaf in leaves)
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]

    def split(v):
        parts = zip(np.split(v, ends), leaves, strict=True)
        return xf.tree.unflatten(structure, [part.reshape(leaf.shape) for part, leaf in parts])

    def joined(x):
        return np.concatenate([np.ravel(leaf) for leaf in xf.tree.leaves(x)])

    matrix = np.stack([joined(matvec(split(row))) for row in np.eye(size)], axis=1)
    return split(np.linalg.solve(matrix, joined(b)))


# ------------------------------------------------------------------ closed forms


@pytest.mark.parametrize("modes", [m for n in (1, 2, 3) for m in itertools.product((xf.grad, along), repeat=n)])
def test_sqrt_by_newton_in_every_order_and_mode(modes):
    derivative = sqrt
    for mode in modes:
        derivative = mode(derivative)
    factor = {1: 0.5, 2: -0.25, 3: 0.375}[len(modes)]
    assert derivative(4.0) == pytest.approx(factor * 4.0 ** (0.5 - len(modes)), rel=1e-13)


def kepler(e, m):
    return xf.root(lambda x: x - e * np.sin(x) - m, m, newton)


def test_kepler_against_mpmath():
    def exact(e, m):
        return mpmath.findroot(lambda x: x - e * mpmath.sin(x) - m, m)

    e, m = 0.6, 0.8
    for n_e, n_m in itertools.product(range(4), range(4)):
        if 1 <= n_e + n_m <= 3:
            derivative = kepler
            for mode, argnum, count in ((xf.grad, 0, n_e), (xf.grad, 1, n_m)):
                for _ in range(count):
                    derivative = mode(derivative, argnum)
            with mpmath.workdps(40):
                want = float(mpmath.diff(exact, (e, m), (n_e, n_m)))
            assert derivative(e, m) == pytest.approx(want, rel=1e-11)


def matrix_root(a):
    return xf.root(lambda x: x @ x - a, np.eye(3), newton)


SQUARE = np.eye(3) + 0.1 * RNG.normal(size=(3, 3))


@pytest.mark.parametrize("jacobian", [xf.jacfwd, xf.jacrev])
def test_square_root_of_a_matrix_against_sylvester(jacobian):
    a = SQUARE @ SQUARE
    assert_allclose(matrix_root(a), SQUARE, rtol=1e-13)
    eye = np.eye(3)
    want = np.linalg.inv(np.kron(SQUARE, eye) + np.kron(eye, SQUARE.T)).reshape(3, 3, 3, 3)
    assert_allclose(jacobian(matrix_root)(a), want, rtol=1e-11, atol=1e-13)


def test_square_root_of_a_matrix_against_finite_differences():
    check_grads(matrix_root, (SQUARE @ SQUARE,), order=2)


def test_third_order_of_a_vector():
    """d^3/ds^3 of sum(sqrt(s * c)) by all mixtures of modes."""
    c = np.array([1.0, 2.0, 4.0])

    def total(s):
        return xnp.sum(xf.root(lambda x: x * x - s * c, np.ones(3), newton))

    want = 0.375 * np.sum(np.sqrt(c)) * 3.0**-2.5
    for modes in itertools.product((xf.grad, along), repeat=3):
        derivative = total
        for mode in modes:
            derivative = mode(derivative)
        assert derivative(3.0) == pytest.approx(want, rel=1e-12)


# ------------------------------------------------------------------ fixed points, and methods for the linear systems


def equilibrium(w, b, **options):
    return xf.fixed_point(lambda x: np.tanh(w @ x + b), np.zeros(3), **options)


METHODS = [None, "neumann", columnwise]
methods = pytest.mark.parametrize("method", METHODS, ids=["matrix", "neumann", "user"])


@methods
def test_equilibrium_network(method):
    def closed_over(w, b):
        return equilibrium(w, b, linear_solve=method)

    def explicit(w, b):
        return xf.fixed_point(lambda x, p: np.tanh(p["w"] @ x + p["b"]), np.zeros(3), {"w": w, "b": b})

    x = closed_over(W, B)
    assert_allclose(x, np.tanh(W @ x + B), rtol=1e-11)
    check_grads(closed_over, (W, B), order=2)
    slope = 1 - x * x
    inverse = np.linalg.inv(np.eye(3) - slope[:, None] * W)
    for jacobian in (xf.jacfwd, xf.jacrev):
        by_w, by_b = jacobian(closed_over, (0, 1))(W, B)
        assert_allclose(by_b, inverse * slope, rtol=1e-10, atol=1e-13)
        assert_allclose(by_w, np.einsum("ij,k->ijk", inverse * slope, x), rtol=1e-10, atol=1e-13)
    assert_allclose(xf.hessian(lambda b: np.sum(closed_over(W, b) ** 2))(B), explicit_hessian(explicit), rtol=1e-9)


def explicit_hessian(explicit):
    return xf.jacrev(xf.grad(lambda b: np.sum(explicit(W, b) ** 2)))(B)


@pytest.mark.parametrize("linear_solve", [plain_cg, lambda f, b: scipy_cg(f, b)], ids=["cg", "scipy"])
def test_conjugate_gradients_for_a_symmetric_jacobian(linear_solve):
    a = np.eye(3) + W @ W.T

    def solution(s, b, method):
        return xf.root(lambda x: a @ x + s * x**3 - b, np.zeros(3), newton, linear_solve=method)

    def loss(s, b, method):
        return np.sum(solution(s, b, method) ** 2)

    for derivative in (xf.grad, lambda f: xf.grad(xf.grad(f)), lambda f: along(xf.grad(f)), lambda f: along(along(f))):
        found, want = (derivative(lambda s, m=m: loss(s, B, m))(0.4) for m in (linear_solve, None))
        assert found == pytest.approx(want, rel=1e-9)
    assert_allclose(xf.hessian(lambda b: loss(0.4, b, None))(B), xf.hessian(lambda b: loss(0.4, b, plain_cg))(B))
    if linear_solve is plain_cg:
        check_grads(lambda s, b: solution(s, b, plain_cg), (0.4, B), order=2)


def scipy_cg(matvec, b):
    operator = scipy.sparse.linalg.LinearOperator((3, 3), matvec=lambda v: np.asarray(matvec(v)), dtype=float)
    return scipy.sparse.linalg.cg(operator, np.asarray(b), rtol=1e-13)[0]


def test_the_user_method_is_given_containers_and_the_transposed_product():
    seen = []
    m = np.array([[2.0, 1.0], [0.0, 3.0]])

    def method(matvec, b):
        seen.append((sorted(b), matvec({"u": np.array([1.0, 0.0]), "v": np.zeros(1)})["u"]))
        return columnwise(matvec, b)

    def solution(a):
        return xf.root(
            lambda x: {"u": m @ x["u"] - a, "v": x["v"] - x["u"][:1]},
            {"u": np.zeros(2), "v": np.zeros(1)},
            lambda f, x: {"u": np.linalg.solve(m, a0), "v": np.linalg.solve(m, a0)[:1]},
            linear_solve=method,
        )

    a0 = np.array([1.0, 2.0])
    gradient = xf.grad(lambda a: np.sum(solution(a)["u"]) + np.sum(solution(a)["v"]))(a0)
    assert_allclose(gradient, np.linalg.inv(m).T @ [2.0, 1.0])
    assert seen[0][0] == ["u", "v"]
    assert_array_equal(seen[0][1], m.T @ [1.0, 0.0])
    assert_allclose(xf.jacfwd(lambda a: solution(a)["v"])(a0), np.linalg.inv(m)[:1])
    assert_array_equal(seen[-1][1], m @ [1.0, 0.0])


def test_fixed_point_stops_at_the_tolerance_that_it_states():
    for tolerance, scale in ((1e-3, 1.0), (1e-6, 1.0), (1e-3, 100.0)):
        steps = []

        def f(x, steps=steps, scale=scale):
            steps.append(np.max(np.abs(x)))
            return 0.5 * x + scale * np.array([0.5, 0.25])

        x = xf.fixed_point(f, np.zeros(2), tolerance=tolerance)
        bound = tolerance * max(1.0, scale)
        assert np.max(np.abs(x - f(x))) <= bound / 2
        assert scale * 0.5 ** (len(steps) - 1) <= bound < scale * 0.5 ** (len(steps) - 3)
    for dtype, tolerance in ((np.float32, 6.5e-6), (np.float64, 1.9e-12)):
        x = xf.fixed_point(np.cos, dtype(1.0))
        assert x.dtype == dtype
        assert abs(x - np.cos(x)) <= tolerance


def test_fixed_point_raises_where_it_does_not_converge():
    with pytest.raises(ConvergenceError, match=r"after 7 iterations x changes by 1 .*damped") as caught:
        xf.fixed_point(lambda x: 1.0 - x, 0.0, max_iterations=7)
    assert isinstance(caught.value, RuntimeError)
    assert (caught.value.iterations, caught.value.change) == (7, 1.0)
    with pytest.raises(ConvergenceError, match="after 2 iterations x changes by nan"), np.errstate(invalid="ignore"):
        xf.fixed_point(lambda x: xnp.log(x) - 1.0, 0.5)


# ------------------------------------------------------------------ parameters: closed over, explicit, found late


class Model:
    def __init__(self, w):
        self.w = {"deep": [w]}

    def residual(self, x):
        return x**3 - self.w["deep"][0]


def test_parameters_may_stand_anywhere():
    third = 8.0 ** (-2 / 3) / 3
    assert xf.grad(lambda w: xf.root(Model(w).residual, 1.0, newton))(8.0) == pytest.approx(third)
    assert xf.grad(lambda w: xf.root(lambda x, p, n: x**n - p[0], 1.0, newton, [w], 3))(8.0) == pytest.approx(third)
    found = xf.grad(lambda w, v: xf.root(lambda x, p: x**3 - p * v, 1.0, newton, w), (0, 1))(4.0, 2.0)
    assert found == pytest.approx((2 * third, 4 * third))

    def made_before(w):
        square = w * w
        return xf.root(lambda x: x**3 - square, 1.0, newton)

    assert xf.grad(made_before)(8.0**0.5) == pytest.approx(2 * 8.0**0.5 * third)


def test_the_start_has_no_derivative():
    assert xf.grad(lambda x0: xf.root(lambda x: x * x - 4.0, x0, newton))(1.0) == 0.0
    assert xf.jvp(lambda x0: xf.fixed_point(np.cos, x0), (1.0,), (1.0,))[1] == 0.0
    assert xf.grad(lambda a: xf.root(lambda x: x * x - a, a * 0.5, newton))(4.0) == pytest.approx(0.25)


def test_branches_of_python_and_values_met_late():
    def solution(a, c):
        return xf.root(lambda x: x - a if x > 0 else x - c, 1.0, newton)

    assert xf.grad(solution, (0, 1))(3.0, -5.0) == (1.0, 0.0)
    assert xf.grad(solution, (0, 1))(-3.0, -5.0) == (0.0, 1.0)
    assert_array_equal(xf.vmap(solution)(np.array([3.0, -3.0]), np.array([-5.0, -5.0])), [3.0, -5.0])


def test_the_solver_may_use_tracked_values_too():
    def solution(a, start):
        return xf.root(lambda x: x * x - a, 1.0, lambda f, x: newton(f, x + start))

    assert xf.grad(solution, (0, 1))(4.0, 0.5) == pytest.approx((0.25, 0.0))
    assert xf.grad(lambda a: xf.root(lambda x: x - a, 1.0, lambda f, x: a))(3.0) == 1.0


def test_scipy_solves_under_grad_and_jvp():
    def brentq(f, x0):
        return scipy.optimize.brentq(f, 0.0, 10.0, xtol=1e-14)

    def solution(a):
        return xf.root(lambda x: x * x - a, 1.0, brentq)

    assert xf.grad(solution)(4.0) == pytest.approx(0.25)
    assert along(along(solution))(4.0) == pytest.approx(-1 / 32)
    assert_allclose(xf.vmap(xf.grad(solution))(np.array([4.0, 9.0])), [1 / 4, 1 / 6])

    def hybrid(f, x0):
        return scipy.optimize.root(f, x0, tol=1e-13).x

    jacobian = xf.jacrev(lambda b: xf.root(lambda x: x + 0.1 * np.sin(x) - b, np.zeros(3), hybrid))(B)
    x = hybrid(lambda x: x + 0.1 * np.sin(x) - B, np.zeros(3))
    assert_allclose(jacobian, np.diag(1 / (1 + 0.1 * np.cos(x))), rtol=1e-10)


def test_a_minimum_is_a_root_of_a_gradient():
    def minimum(c):
        return xf.root(xf.grad(lambda x: xnp.sum((x - c) ** 2) + 0.25 * xnp.sum(x**4)), np.zeros(3), newton)

    x = minimum(B)
    assert_allclose(2 * (x - B) + x**3, 0.0, atol=1e-13)
    for jacobian in (xf.jacfwd, xf.jacrev):
        assert_allclose(jacobian(minimum)(B), np.diag(2 / (2 + 3 * x * x)), rtol=1e-12)


def test_a_root_within_a_root():
    """With `z = sqrt(a y)`, `z = y - a` has the solution `a (3 + sqrt 5) / 2`."""

    def solution(a):
        return xf.root(lambda y: xf.root(lambda z: z * z - a * y, 1.0, newton) - y + a, 3.0, newton)

    golden = (3 + 5**0.5) / 2
    assert xf.grad(solution)(2.0) == pytest.approx(golden)
    assert along(solution)(2.0) == pytest.approx(golden)
    assert xf.grad(along(solution))(2.0) == pytest.approx(0.0, abs=1e-12)
    assert_allclose(xf.vmap(xf.grad(solution))(np.array([1.0, 2.0])), golden)
    traced = xf.trace(xf.grad(solution))
    assert [traced(2.0), traced(5.0)] == pytest.approx([golden, golden])


def test_containers_keep_their_structure():
    def f(x):
        return {"a": x["a"] * P["k"] - 1.0, "b": (x["b"][0] ** 2 - P["m"] * x["a"].sum(),)}

    def solver(f, x):
        def vector(x):
            return np.concatenate([x["a"], x["b"][0].ravel()])

        def back(v):
            return {"a": v[:2], "b": (v[2:].reshape(2, 1),)}

        return back(newton(lambda v: vector(f(back(v))), vector(x)))

    P = {"k": np.array([2.0, 4.0]), "m": np.array([[1.5], [2.5]])}
    start = {"a": np.ones(2), "b": (np.ones((2, 1)),)}
    found = xf.root(f, start, solver)
    assert_allclose(found["a"], [0.5, 0.25])
    assert_allclose(found["b"][0], np.sqrt(0.75 * P["m"]))

    def of(p):
        return xf.root(
            lambda x, p: {"a": x["a"] * p["k"] - 1.0, "b": (x["b"][0] ** 2 - p["m"] * x["a"].sum(),)}, start, solver, p
        )

    check_grads(of, (P,), order=2)
