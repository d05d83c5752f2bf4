"""Linear algebra: NumPy's values, types and errors; conventions at hard points; symmetric operands; other libraries."""

from __future__ import annotations

import subprocess
import sys

import array_api_strict as strict
import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from tests.operators.unknown_shapes import Hide
from xform import ops
from xform.core.aval import Aval, aval_of
from xform.core.errors import DtypeError, OperandError, ShapeError
from xform.core.rules import batch_rule
from xform.core.stack import apply
from xform.ops.cofactors import cofactor
from xform.testing import check_grads
from xform.testing.operators import check_contract

la = xnp.linalg
rng = np.random.default_rng(2)
DTYPES = ("float32", "float64", "complex64", "complex128", "int64", "bool")


def regular(*shape, dtype="float64"):
    x = rng.uniform(-0.5, 0.5, shape) + 2.0 * np.eye(*shape[-2:])
    if np.dtype(dtype).kind == "c":
        x = x + 0.3j * rng.uniform(-1, 1, shape)
    return (np.eye(*shape[-2:]) + np.zeros(shape) if np.dtype(dtype).kind in "ib" else x).astype(dtype)


def positive(n, *, imaginary=0.0):
    x = regular(n, n)
    if imaginary:
        x = x + imaginary * 1j * rng.uniform(-1, 1, (n, n))
    return x @ x.conj().T + np.eye(n)


def assert_like(got, want, rtol=None):
    assert np.shape(got) == np.shape(want)
    assert got.dtype == want.dtype
    single = np.finfo(want.dtype).eps > 1e-8
    np.testing.assert_allclose(got, want, rtol=rtol or (2e-4 if single else 1e-9), atol=1e-5 if single else 1e-12)


# ------------------------------------------------------------------ NumPy's values, types and errors


@pytest.mark.parametrize("name", ["inv", "det", "slogdet", "pinv", "svdvals", "norm"])
@pytest.mark.parametrize("shape", [(3, 3), (2, 2, 2), (0, 2, 2), (2, 1, 1, 1)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_of_one_matrix_are_numpys(name, shape, dtype):
    a = regular(*shape, dtype=dtype)
    if name == "norm" and not a.size:
        a = regular(2, 2, dtype=dtype)
    want, got = getattr(np.linalg, name)(a), getattr(la, name)(a)
    tracked = getattr(np.linalg, name)(xf.array(a))
    if name != "slogdet":
        want, got, tracked = (want,), (got,), (tracked,)
    for each, other, value in zip(got, want, tracked, strict=True):
        assert_like(each, other)
        assert_like(value.data, other)


@pytest.mark.parametrize(
    ("left", "right"),
    [((2, 2), (2,)), ((2, 2), (2, 3)), ((4, 2, 2), (2,)), ((4, 2, 2), (4, 2, 1)), ((1, 2, 2), (4, 2, 3))],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_solve_is_numpys(left, right, dtype):
    a, b = regular(*left, dtype=dtype), rng.integers(-3, 4, right).astype("float32")
    want = np.linalg.solve(a, b)
    assert_like(la.solve(a, b), want)
    assert_like(np.linalg.solve(xf.array(a), b).data, want)
    assert ops.Solve().infer(aval_of(a), aval_of(b)) == aval_of(want)


@pytest.mark.parametrize("op", [ops.Inv(), ops.Det(), ops.Slogdet(), ops.Svd(), ops.Qr(), ops.Pinv(), ops.Cofactor()])
@pytest.mark.parametrize("dtype", DTYPES)
def test_infer_is_evaluate(op, dtype):
    for shape in ((2, 2), (3, 2, 2)):
        a = regular(*shape, dtype=dtype)
        out, avals = op.evaluate(np, a), op.infer(aval_of(a))
        for each, aval in zip(*((out, avals) if op.multiple_outputs else ((out,), (avals,))), strict=True):
            assert aval_of(each) == aval


def test_unknown_lengths():
    f = np.dtype("float64")
    assert ops.Solve().infer(Aval((None, None), f), Aval((3, 2), f)) == Aval((None, 2), f)
    assert ops.Svd().infer(Aval((3, None), f))[1] == Aval((None,), f)
    assert ops.Inv().infer(Aval((None, 2), f)).shape == (None, 2)


@pytest.mark.parametrize("order", [None, 1, 2, 3, 0, -1, -2, 0.5, 1.5, np.inf, -np.inf])
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_vector_norms_are_numpys(order, axis):
    for dtype in ("float32", "float64", "complex128", "int32"):
        x = (rng.integers(1, 9, (2, 3)) * (1 + 1j if dtype == "complex128" else 1)).astype(dtype)
        for keepdims in (False, True):
            want = np.linalg.norm(x, order, axis, keepdims)
            assert_like(la.norm(x, order, axis, keepdims), want, rtol=1e-6)


@pytest.mark.parametrize("order", [None, "fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf])
@pytest.mark.parametrize("axis", [None, (0, 1), (1, 0), (-1, 0), (2, 1)])
def test_matrix_norms_are_numpys(order, axis):
    x = rng.normal(size=(2, 3) if axis is None else (2, 3, 4))
    for keepdims in (False, True):
        want = np.linalg.norm(x, order, axis, keepdims)
        assert_like(np.asarray(la.norm(x, order, axis, keepdims)), np.asarray(want))


def test_norms_of_the_array_api():
    x = rng.normal(size=(2, 3, 4))
    assert_like(la.vector_norm(x, axis=(0, 2), ord=3), np.linalg.vector_norm(x, axis=(0, 2), ord=3))
    assert_like(la.vector_norm(x, keepdims=True), np.asarray(np.linalg.vector_norm(x, keepdims=True)))
    assert_like(la.matrix_norm(x, ord=1), np.linalg.matrix_norm(x, ord=1))


@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, -1, -3])
def test_matrix_power_is_numpys(n):
    a = regular(2, 3, 3)
    assert_like(la.matrix_power(a, n), np.linalg.matrix_power(a, n))
    assert_like(np.linalg.matrix_power(xf.array(a), n).data, np.linalg.matrix_power(a, n))


def test_multi_dot_is_numpys():
    xs = [rng.normal(size=s) for s in ((4,), (4, 30), (30, 2), (2, 9), (9,))]
    for chain in (xs, xs[1:], xs[:-1], xs[1:-1], xs[1:3]):
        assert_like(np.asarray(la.multi_dot(chain)), np.asarray(np.linalg.multi_dot(chain)))
    with pytest.raises(OperandError, match="two arrays"):
        la.multi_dot(xs[:1])
    with pytest.raises(ShapeError, match="operand 1"):
        la.multi_dot([xs[1], xs[0], xs[2]])


def test_factorizations_are_numpys():
    for a in (positive(3), positive(3, imaginary=1.0)):
        assert_like(la.cholesky(a), np.linalg.cholesky(a))
        assert_like(la.cholesky(a, upper=True), np.linalg.cholesky(a, upper=True))
        assert_like(la.eigvalsh(a), np.linalg.eigvalsh(a))
        for got, want in zip(la.eigh(a), np.linalg.eigh(a), strict=True):
            assert_like(got, want)
    lower = np.tril(positive(3))
    assert_like(la.eigh(lower).eigenvalues, np.linalg.eigh(lower).eigenvalues)
    assert_like(la.eigh(lower.T, "U").eigenvalues, np.linalg.eigh(lower).eigenvalues)
    for shape in ((3, 3), (4, 2), (2, 4), (5, 3, 2)):
        a = rng.normal(size=shape)
        for got, want in zip(la.svd(a, full_matrices=False), np.linalg.svd(a, full_matrices=False), strict=True):
            assert_like(got, want)
        for got, want in zip(la.qr(a), np.linalg.qr(a), strict=True):
            assert_like(got, want)
        assert_like(la.qr(a, mode="r"), np.linalg.qr(a, mode="r"))
        assert_like(la.svd(a, compute_uv=False), np.linalg.svd(a, compute_uv=False))
    assert la.svd(a, full_matrices=False)._fields == ("U", "S", "Vh")
    assert np.linalg.slogdet(xf.array(np.eye(2))).sign == 1.0


SINGULAR = np.array([[1.0, 2.0], [2.0, 4.0]])


def test_singular_matrices_raise_numpys_error():
    for call in (la.inv, lambda a: la.solve(a, np.ones(2)), xf.grad(lambda a: la.slogdet(a).logabsdet)):
        with pytest.raises(np.linalg.LinAlgError, match="Singular"):
            call(SINGULAR)
    with pytest.raises(np.linalg.LinAlgError, match="Singular"):
        np.linalg.inv(xf.array(SINGULAR))
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        la.cholesky(-np.eye(2))


def test_refusals():
    with pytest.raises(ShapeError, match="no square matrix"):
        ops.Inv().infer(aval_of(np.ones((2, 3))))
    with pytest.raises(ShapeError):
        la.inv(np.ones((2, 3)))
    with pytest.raises(ShapeError, match="do not fit"):
        ops.Solve().infer(aval_of(np.ones((2, 2))), aval_of(np.ones(3)))
    with pytest.raises(DtypeError, match="float16"):
        ops.Inv().infer(Aval((2, 2), np.dtype("float16")))
    with pytest.raises(DtypeError, match="exponent"):
        la.matrix_power(np.eye(2), 0.5)
    with pytest.raises(OperandError, match="order 'x'"):
        la.norm(np.eye(2), "x")
    with pytest.raises(OperandError, match="for matrices"):
        la.norm(np.ones(2), "fro")
    with pytest.raises(OperandError, match="3 axes"):
        la.norm(np.ones((2, 2, 2)), 2)
    with pytest.raises(OperandError, match="full_matrices=False"):
        la.svd(np.ones((2, 3)))
    with pytest.raises(OperandError, match="UPLO"):
        la.eigh(np.eye(2), "x")
    with pytest.raises(OperandError, match="complete"):
        la.qr(np.eye(2), "complete")
    with pytest.raises(AttributeError, match="nothing"):
        xnp.nothing
    with pytest.raises(AttributeError, match="Nothing"):
        ops.Nothing


# ------------------------------------------------------------------ conventions at hard points


@pytest.mark.parametrize("order", [None, 1, 2, 3, 1.5, np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_norm_at_zero_has_gradient_zero(order, dtype):
    z = np.zeros(3, dtype)
    found = xf.grad(lambda x: la.norm(x, order))(z)
    assert found.dtype == z.dtype
    assert not found.any()


def test_norm_of_a_zero_row_and_its_second_derivative():
    x = np.array([[3.0, 4.0], [0.0, 0.0]])
    found = xf.grad(lambda a: xnp.sum(la.norm(a, axis=1)))(x)
    np.testing.assert_allclose(found, [[0.6, 0.8], [0.0, 0.0]], rtol=1e-15)
    curved = xf.grad(lambda a: xnp.sum(xf.grad(lambda b: xnp.sum(la.norm(b, axis=1)))(a) * x))(x)
    np.testing.assert_allclose(curved, np.zeros((2, 2)), atol=1e-15)
    second = xf.grad(lambda a: xf.grad(la.norm)(a)[0])(np.zeros(2))
    assert second.tolist() == [0.0, 0.0]


def test_frobenius_norm_at_zero():
    assert not xf.grad(lambda a: la.norm(a, "fro"))(np.zeros((2, 2))).any()


def minors(a):
    """Cofactors by their definition."""
    n = len(a)
    return np.array(
        [[(-1) ** (i + j) * np.linalg.det(np.delete(np.delete(a, i, 0), j, 1)) for j in range(n)] for i in range(n)]
    )


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("rank", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("imaginary", [0.0, 1.0])
def test_gradient_of_det_is_the_cofactors_at_any_rank(n, rank, imaginary):
    left = rng.normal(size=(n, rank)) + imaginary * 1j * rng.normal(size=(n, rank))
    a = left @ rng.normal(size=(rank, n))
    np.testing.assert_allclose(cofactor(a), minors(a), atol=1e-9)
    found = xf.vjp(la.det, a)[1](np.asarray(1.0, a.dtype))[0]
    np.testing.assert_allclose(found, minors(a), atol=1e-9)


def test_gradient_of_det_of_exactly_singular_and_of_ill_conditioned_matrices():
    assert xf.grad(la.det)(SINGULAR).round(12).tolist() == [[4.0, -2.0], [-2.0, 1.0]]
    hilbert = 1.0 / (np.arange(6)[:, None] + np.arange(6) + 1.0)
    want = np.linalg.det(hilbert) * np.linalg.inv(hilbert).T
    np.testing.assert_allclose(xf.grad(la.det)(hilbert), want, rtol=1e-5)
    batch = np.stack([SINGULAR, np.eye(2)])
    np.testing.assert_allclose(
        xf.grad(lambda a: xnp.sum(la.det(a)))(batch), [[[4.0, -2.0], [-2.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]], atol=1e-12
    )
    assert xf.grad(la.det)(SINGULAR.astype("float32")).dtype == np.float32


def test_second_derivative_of_det_at_rank_one():
    a, e, f = np.outer([1.0, 2.0, -1.0], [2.0, 0.5, 1.0]), rng.normal(size=(3, 3)), rng.normal(size=(3, 3))
    found = np.sum(f * xf.grad(lambda x: xnp.sum(xf.grad(la.det)(x) * e))(a))
    step = 1e-3
    corners = [s * t * np.linalg.det(a + step * (s * e + t * f)) for s in (1, -1) for t in (1, -1)]
    np.testing.assert_allclose(found, sum(corners) / (4 * step * step), rtol=1e-5)


def test_phase_of_a_complex_determinant():
    a = regular(3, 3, dtype="complex128")
    e = rng.normal(size=(3, 3)) + 1j * rng.normal(size=(3, 3))
    step = 1e-6
    sign = (np.linalg.slogdet(a + step * e).sign - np.linalg.slogdet(a - step * e).sign) / (2 * step)
    log = (np.linalg.slogdet(a + step * e).logabsdet - np.linalg.slogdet(a - step * e).logabsdet) / (2 * step)
    pull = xf.vjp(lambda x: tuple(la.slogdet(x)), a)[1]
    np.testing.assert_allclose(np.sum(pull((0.3 + 1j, 0.0))[0] * e).real, ((0.3 + 1j) * sign).real, rtol=1e-6)
    np.testing.assert_allclose(np.sum(pull((0j, 1.0))[0] * e).real, log, rtol=1e-6)


def test_gradients_on_symmetric_matrices_are_symmetric():
    a = positive(3)
    by_factor = xf.grad(lambda x: 2.0 * xnp.sum(xnp.log(xnp.diagonal(la.cholesky(x)))))(a)
    np.testing.assert_allclose(by_factor, np.linalg.inv(a), rtol=1e-9)
    by_values = xf.grad(lambda x: xnp.sum(xnp.log(la.eigvalsh(x))))(a)
    np.testing.assert_allclose(by_values, np.linalg.inv(a), rtol=1e-9)


def test_equal_eigenvalues_and_singular_values():
    for values in (la.eigvalsh, la.svdvals):
        found = xf.grad(lambda x, values=values: xnp.sum(xnp.sqrt(values(x))))(4.0 * np.eye(3))
        np.testing.assert_allclose(found, np.eye(3) / 4.0, atol=1e-12)
    low = np.diag([2.0, 0.0, 0.0])
    assert np.isfinite(xf.grad(lambda x: la.norm(x, "nuc"))(low)).all()


@pytest.mark.parametrize("through", [lambda f: f, xf.trace, lambda f: lambda x: xf.vmap(f)(x[None])[0]])
def test_vectors_of_equal_values_have_no_derivative(through):
    """NaN, as in JAX: what a function of them has there is its own limit of 0 / 0, which no rule knows."""
    weights = np.array([[1.0, 2.0], [3.0, 5.0]])

    def squared(a):
        w, v = la.eigh(a)
        return xnp.sum(weights * ((v * w * w) @ v.T))

    def cubed(a):
        u, s, vh = la.svd(a)
        return xnp.sum(weights * ((u * s**3) @ vh))

    for fun in (squared, cubed):
        gradient = through(xf.grad(fun))
        for _ in range(2):
            assert np.isnan(gradient(np.eye(2))).all()
            assert np.isfinite(gradient(np.diag([1.0, 2.0]))).all()
    for values in (la.eigvalsh, la.svdvals):
        total = lambda x, values=values: xnp.sum(values(x) ** 2)
        np.testing.assert_allclose(through(xf.grad(total))(np.eye(2)), 2.0 * np.eye(2))
        np.testing.assert_allclose(xf.jvp(through(total), (np.eye(2),), (np.eye(2),))[1], 4.0)
        assert np.isnan(through(xf.hessian(total))(np.eye(2))).any()  # it is 2 on the diagonal, which cannot be seen
    tall = np.diag([2.0, 1.0, 0.0])[:, :2] * [1.0, 0.0]  # one value is 0
    for column, known in ((0, True), (1, False)):
        vector = xf.grad(lambda a, column=column: la.svd(a, full_matrices=False).U[:, column] @ np.arange(1.0, 4.0))
        assert np.isfinite(through(vector)(tall)).all() == known


@pytest.mark.parametrize("through", [lambda f: f, xf.trace, lambda f: lambda x: xf.vmap(f)(x[None])[0]])
def test_a_vector_of_its_own_value_has_a_derivative_beside_equal_ones(through):
    """The largest one, say, of a matrix whose others coincide: nothing flows from vectors that nothing uses."""
    symmetric, tall = np.diag([1.0, 1.0, 5.0]), np.zeros((4, 3))
    tall[0, 0], tall[1, 1] = 2.0, 1.0
    largest = lambda a: xnp.sum(la.eigh(a).eigenvectors[:, 2] ** 3)

    def rank_1(a):
        u, s, vh = la.svd(a, full_matrices=False)
        return xnp.sum(((u[:, :1] * s[:1]) @ vh[:1]) ** 2 * np.arange(12.0).reshape(4, 3))

    for fun, at in ((largest, symmetric), (rank_1, tall)):
        rng = np.random.default_rng(0)
        found = through(xf.grad(fun))(at)
        for _ in range(3):
            step = 1e-6 * rng.normal(size=at.shape)
            step = step + step.T if fun is largest else step
            np.testing.assert_allclose(np.sum(found * step) * 2, fun(at + step) - fun(at - step), atol=1e-12)


@pytest.mark.parametrize("op", [ops.Svd(), ops.Qr(), ops.Eigh(), ops.Cholesky(), ops.Pinv()])
@pytest.mark.parametrize("imaginary", [0.0, 1.0])
def test_both_modes_of_factorizations_are_transposes_of_each_other(op, imaginary):
    check_contract(op, (positive(3, imaginary=imaginary),))
    if op in (ops.Svd(), ops.Qr(), ops.Pinv()):
        check_contract(op, (regular(4, 2) + imaginary * 1j * rng.normal(size=(4, 2)),))


def test_complex_factorizations_of_what_does_not_depend_on_phases():
    a = regular(3, 3, dtype="complex128") + np.diag([0.0, 1.0, 3.0])

    def moduli(x):
        u, s, vh = la.svd(x)
        w, v = la.eigh(x @ xnp.conj(x.mT))
        return xnp.abs(u) ** 2, s, xnp.abs(vh) ** 2, w, xnp.abs(v) ** 2

    check_grads(moduli, (a,), order=1)


# ------------------------------------------------------------------ batches, unknown shapes, other libraries, import


@pytest.mark.parametrize("op", [ops.Solve(), ops.CofactorTangent()])
@pytest.mark.parametrize("axes", [(0, None), (None, 0), (2, 1), (1, 0)])
def test_batches_of_two_operands(op, axes):
    pair = [regular(2, 2), rng.normal(size=(2, 2))]
    lanes = [[x * (1 + 0.1 * k) if at is not None else x for x, at in zip(pair, axes, strict=True)] for k in range(3)]
    values = tuple(
        x if at is None else np.stack([each[i] for each in lanes], at)
        for i, (x, at) in enumerate(zip(pair, axes, strict=True))
    )
    out, axis = batch_rule.get(op)(op, 3, values, axes)
    np.testing.assert_allclose(np.moveaxis(out, axis, 0), np.stack([apply(op, *each) for each in lanes]))


@pytest.mark.parametrize(
    "fun",
    [
        lambda a, b: la.solve(a, b),
        lambda a, b: la.solve(a, b[0]),
        lambda a, b: la.inv(a) @ b,
        lambda a, b: la.det(a) * b,
        lambda a, b: la.slogdet(a).logabsdet * b,
        lambda a, b: la.norm(a, axis=0) * b,
        lambda a, b: la.norm(a, 1) * la.norm(b, np.inf),
        lambda a, b: la.cholesky(a @ a.mT) * b,
        lambda a, b: la.eigvalsh(a @ a.mT) * b,
        lambda a, b: la.svdvals(a) * b,
        lambda a, b: la.matrix_power(a, 2) * la.pinv(b),
    ],
)
def test_rules_bake_no_length(fun):
    a, b = regular(3, 3) + np.diag([0.0, 1.0, 3.0]), rng.normal(size=(3, 3))
    want = xf.grad(lambda x, y: xnp.sum(xnp.sin(fun(x, y))), (0, 1))(a, b)
    with Hide() as hide:
        got = xf.grad(lambda x, y: xnp.sum(xnp.sin(fun(x, y))), (0, 1))(hide.hidden(a), hide.hidden(b))
    for each, wanted in zip(got, want, strict=True):
        np.testing.assert_allclose(hide.shown(each), wanted, atol=1e-11)


@pytest.mark.parametrize(
    "fun",
    [
        lambda a: la.solve(a, a[:, 0]),
        la.inv,
        la.det,
        lambda a: la.slogdet(a).logabsdet,
        lambda a: la.norm(a, axis=1),
        lambda a: la.norm(a, 3, axis=1),
        lambda a: la.norm(a, 2),
        lambda a: la.cholesky(a @ a.mT),
        lambda a: la.eigvalsh(a @ a.mT),
        lambda a: la.qr(a, "r"),
        la.pinv,
        lambda a: la.matrix_power(a, -2),
        lambda a: la.matrix_power(a, 0),
    ],
)
def test_on_another_library(fun):
    device = strict.Device("device1")
    a = regular(3, 3) + np.diag([0.0, 1.0, 3.0])
    other = strict.asarray(a, device=device)

    def home(x):
        assert x.device == device
        return np.from_dlpack(strict.asarray(x, device=strict.Device("CPU_DEVICE")))

    np.testing.assert_allclose(home(fun(other)), fun(a))
    want, got = (xf.grad(lambda x: xnp.sum(fun(x) ** 2))(x) for x in (a, other))
    np.testing.assert_allclose(home(got), want, atol=1e-9)


def test_linear_algebra_is_loaded_when_asked_for():
    code = (
        "import sys, numpy as np, xform as xf, xform.numpy as xnp\n"
        "assert not [m for m in sys.modules if m.startswith('xform') and m.endswith(('linalg', 'norms'))]\n"
        "assert float(np.linalg.norm(xf.array(np.array([3.0, 4.0])))) == 5.0\n"
        "assert xf.ops.Solve() == xf.ops.linalg.SOLVE\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
