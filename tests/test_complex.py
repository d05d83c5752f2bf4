"""Complex numbers in derivatives: one convention, `holomorphic=`, dtypes of cotangents and tangents, integer leaves."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from xform.core.errors import GradientError, XformError

z = np.array([1 + 2j, 3 - 1j, -0.5 + 0.25j])
r = np.array([0.5, 2.0, -1.5])
w = np.array([0.3 - 0.8j, 1.1 + 0.2j, -0.7 + 0.4j])


def same(got, want):
    """Equal in dtype, and close in numbers."""
    assert np.asarray(got).dtype == np.asarray(want).dtype
    np.testing.assert_allclose(got, want, rtol=1e-6 if np.asarray(want).dtype.itemsize < 16 else 1e-12)


# ------------------------------------------------------------------ the convention


REAL_FUNCTIONS = {
    "abs squared": (lambda z: abs(z) ** 2, lambda z: 2 * np.conj(z)),
    "abs": (lambda z: abs(z), lambda z: np.conj(z) / abs(z)),
    "real": (lambda z: xnp.real(z), lambda z: 1 + 0 * z),
    "imag": (lambda z: xnp.imag(z), lambda z: -1j + 0 * z),
    "product": (lambda z: xnp.real(z) * xnp.imag(z), lambda z: z.imag - 1j * z.real),
    "real of square": (lambda z: xnp.real(z * z), lambda z: 2 * z),
    "imag of square": (lambda z: xnp.imag(z * z), lambda z: -2j * z),
    "real of conj square": (lambda z: xnp.real(xnp.conj(z) ** 2), lambda z: 2 * z),
    "z conj z": (lambda z: xnp.real(z * xnp.conj(z)), lambda z: 2 * np.conj(z)),
    "log abs": (lambda z: xnp.log(abs(z)), lambda z: 1 / z),
    "angle": (lambda z: xnp.angle(z), lambda z: -1j / z),
    "exp": (lambda z: xnp.real(xnp.exp(z)), np.exp),
}
functions = pytest.mark.parametrize(("fun", "want"), REAL_FUNCTIONS.values(), ids=REAL_FUNCTIONS)


points = [1 + 2j, np.array(1 + 1j), np.complex64(3 - 1j), np.complex128(-0.5 + 0.25j)]


@functions
@pytest.mark.parametrize("point", points, ids=repr)
def test_the_gradient_of_a_real_function_is_dx_minus_i_dy(fun, want, point):
    found = xf.grad(fun)(point)
    same(found, np.asarray(want(np.asarray(point)), np.asarray(point).dtype))
    assert type(found) is type(point)
    eps = 1e-6
    at = complex(point)
    by_x = (fun(at + eps) - fun(at - eps)) / (2 * eps)
    by_y = (fun(at + 1j * eps) - fun(at - 1j * eps)) / (2 * eps)
    np.testing.assert_allclose(found, by_x - 1j * by_y, rtol=1e-5, atol=1e-5)


@functions
def test_the_gradient_belongs_to_the_tangent(fun, want):
    """The change along dz is Re(gradient * dz), in every mode and nesting."""
    change = (want(z) * w).real
    same(xf.jvp(fun, (z,), (w,))[1], change)
    same(xf.linearize(fun, z)[1](w), change)
    same(xf.vjp(fun, z)[1](r)[0], r * want(z))
    same(xf.vmap(xf.grad(fun))(z), want(z))
    same(xf.jacrev(fun)(z), np.diag(want(z)))
    same(xf.grad(xf.trace(lambda z: fun(z).sum()))(z), want(z))
    same(xf.trace(xf.grad(lambda z: fun(z).sum()))(z), want(z))
    with xf.Profile():
        same(xf.grad(lambda z: fun(z).sum())(z), want(z))


def test_the_row_of_the_convention():
    assert xf.grad(lambda z: abs(z) ** 2)(1 + 2j) == 2 - 4j
    assert xf.grad(lambda z: abs(z) ** 2)(1 + 1j) == 2 - 2j


def test_descent_goes_along_the_conjugate():
    at = 2 + 1j
    for _ in range(60):
        at -= 0.2 * np.conj(xf.grad(lambda z: abs(z - (1 - 3j)) ** 2)(at))
    np.testing.assert_allclose(at, 1 - 3j)


def test_products_of_the_hessian_of_a_real_function():
    same(xf.hvp(lambda z: (abs(z) ** 2).sum(), (z,), (w,)), 2 * np.conj(w))
    same(xf.hvp(lambda z: xnp.real(z**3).sum(), (z,), (w,)), 6 * z * w)
    by_r = xf.hvp(lambda a, b: (abs(a) ** 2 * b**2).sum(), (z, r), (w, r))[1]
    same(by_r, 4 * r * (z.conj() * w).real + 2 * abs(z) ** 2 * r)


# ------------------------------------------------------------------ holomorphic


HOLOMORPHIC = {
    "cube": (lambda z: z**3, lambda z: 3 * z**2, lambda z: 6 * z),
    "exp": (lambda z: xnp.exp(z), np.exp, np.exp),
    "sin": (lambda z: xnp.sin(z), np.cos, lambda z: -np.sin(z)),
    "log": (lambda z: xnp.log(z), lambda z: 1 / z, lambda z: -1 / z**2),
    "ratio": (lambda z: 1j / (z + 2), lambda z: -1j / (z + 2) ** 2, lambda z: 2j / (z + 2) ** 3),
    "sqrt": (lambda z: xnp.sqrt(z), lambda z: 0.5 / np.sqrt(z), lambda z: -0.25 * z**-1.5),
}
rows = pytest.mark.parametrize(("fun", "first", "second"), HOLOMORPHIC.values(), ids=HOLOMORPHIC)


@rows
@pytest.mark.parametrize("dtype", ["complex128", "complex64"])
def test_holomorphic_derivatives(fun, first, second, dtype):
    at, along = z.astype(dtype), w.astype(dtype)
    total = lambda z: fun(z).sum()
    value, gradient = xf.value_and_grad(total, holomorphic=True)(at)
    same(value, total(at))
    same(gradient, first(at))
    same(xf.grad(total, holomorphic=True)(at), first(at))
    for jacobian in (xf.jacfwd, xf.jacrev, xf.jacobian):
        same(jacobian(fun, holomorphic=True)(at), np.diag(first(at)))
    same(xf.hessian(total, holomorphic=True)(at), np.diag(second(at)))
    same(xf.hvp(total, (at,), (along,), holomorphic=True), second(at) * along)
    same(xf.jvp(fun, (at,), (along,))[1], first(at) * along)
    same(xf.vjp(fun, at)[1](along)[0], first(at) * along)
    same(xf.vmap(xf.grad(fun, holomorphic=True))(at), first(at))
    twice = xf.grad(lambda z: xf.grad(total, holomorphic=True)(z).sum(), holomorphic=True)
    same(twice(at), second(at))
    same(xf.trace(xf.grad(total, holomorphic=True))(at), first(at))
    same(xf.grad(xf.trace(total), holomorphic=True)(at), first(at))


def test_holomorphic_of_numbers_containers_and_with_aux():
    found = xf.grad(lambda z: z**3, holomorphic=True)(1 + 2j)
    assert (type(found), found) == (complex, -9 + 12j)
    tree = {"a": z, "b": (w, 2j)}
    gradient = xf.grad(lambda t: (t["a"] * t["b"][0] * t["b"][1]).sum(), holomorphic=True)(tree)
    same(gradient["a"], w * 2j)
    same(gradient["b"][0], z * 2j)
    same(gradient["b"][1], (z * w).sum())
    by_name = xf.grad(lambda a, *, b: (a * b).sum(), argnames=("b",), holomorphic=True)(z, b=w)
    same(by_name["b"], z)
    found, aux = xf.grad(lambda z: ((z * z).sum(), abs(z)), has_aux=True, holomorphic=True)(z)
    same(found, 2 * z)
    same(aux, abs(z))
    (value, aux), found = xf.value_and_grad(lambda z: ((z * z).sum(), 7), has_aux=True, holomorphic=True)(z)
    same(value, (z * z).sum())
    assert aux == 7


WITH_HOLOMORPHIC = {
    name: getattr(xf, name) for name in ("grad", "value_and_grad", "jacfwd", "jacrev", "jacobian", "hessian")
} | {"hvp": lambda fun, **flags: lambda x: xf.hvp(fun, (x,), (x,), **flags)}
transformations = pytest.mark.parametrize("transformation", WITH_HOLOMORPHIC.values(), ids=WITH_HOLOMORPHIC)


@pytest.mark.parametrize("name", [name for name in WITH_HOLOMORPHIC if name != "jacfwd"])
def test_a_complex_output_is_refused(name):
    with pytest.raises(GradientError, match=r"dtype complex128; take its real part.*pass holomorphic=True"):
        WITH_HOLOMORPHIC[name](lambda x: (x * 1j).sum())(r)


def test_a_complex_output_of_real_arguments_has_a_forward_jacobian():
    same(xf.jacfwd(lambda x: np.exp(x * 1j))(r), np.diag(1j * np.exp(r * 1j)))
    same(xf.jacfwd(lambda x: (x * 1j).sum())(r.astype("float32")), np.full(r.shape, 1j, "complex64"))


@pytest.mark.parametrize("name", ["grad", "value_and_grad", "jacrev", "jacobian", "hvp"])
def test_a_complex_output_of_a_complex_argument_is_refused(name):
    with pytest.raises(GradientError, match=r"dtype complex128; take its real part.*pass holomorphic=True"):
        WITH_HOLOMORPHIC[name](lambda x: (x * x).sum())(z)


@transformations
def test_holomorphic_needs_complex_arguments_and_outputs(transformation):
    with pytest.raises(GradientError, match=r"argument has dtype float64; holomorphic=True needs complex arguments"):
        transformation(lambda x: (x * 1j).sum(), holomorphic=True)(r)
    with pytest.raises(GradientError, match=r"dtype float64; holomorphic=True needs (a )?complex output"):
        transformation(lambda x: (abs(x) ** 2).sum(), holomorphic=True)(z)


@pytest.mark.parametrize("name", ["grad", "value_and_grad", "jacfwd", "jacrev", "jacobian", "hessian"])
def test_holomorphic_names_the_real_leaf(name):
    what = "grad" if name == "value_and_grad" else name
    with pytest.raises(GradientError, match=rf"{what} of .*leaf \['b'\] has dtype float64; holomorphic=True needs"):
        getattr(xf, name)(lambda t: (t["a"] * t["b"]).sum(), holomorphic=True)({"a": z, "b": r})


@pytest.mark.parametrize("name", ["jacfwd", "hessian"])
def test_forward_jacobians_of_complex_arguments_need_the_flag(name):
    with pytest.raises(GradientError, match=rf"{name} of .*dtype complex128; pass holomorphic=True, or take jacrev"):
        getattr(xf, name)(lambda z: (abs(z) ** 2).sum())(z)


# ------------------------------------------------------------------ complex and real leaves together


class Pair(NamedTuple):
    a: object
    b: object


def test_heterogeneous_arguments():
    found = xf.grad(lambda t: (abs(t.a) ** 2).sum() + (t.b**2).sum())(Pair(np.array(1 + 1j), np.array(2.0)))
    same(found.a, np.array(2 - 2j))
    same(found.b, np.array(4.0))
    by_z, by_r = xf.grad(lambda a, b: (abs(a * b) ** 2).sum(), (0, 1))(z, r)
    same(by_z, 2 * np.conj(z) * r**2)
    same(by_r, 2 * abs(z) ** 2 * r)


def test_vjp_and_jvp_of_heterogeneous_leaves():
    fun = lambda t: {"product": t.a * t.b, "size": abs(t.a) * t.b}
    out, pullback = xf.vjp(fun, Pair(z, r))
    ct = {"product": w, "size": r}
    (found,) = pullback(ct)
    same(found.a, w * r + r * r * np.conj(z) / abs(z))
    same(found.b, (w * z).real + r * abs(z))
    same_out, tangent = xf.jvp(fun, (Pair(z, r),), (Pair(w, r),))
    for name in ("product", "size"):
        same(same_out[name], out[name])
    same(tangent["product"], w * r + z * r)
    same(tangent["size"], (np.conj(z) / abs(z) * w).real * r + abs(z) * r)
    # the two are each other's transpose, in the real part
    left = (ct["product"] * tangent["product"]).sum().real + (ct["size"] * tangent["size"]).sum()
    right = (found.a * w).sum().real + (found.b * r).sum()
    np.testing.assert_allclose(left, right)


def test_a_real_argument_on_a_complex_path():
    # d Re(exp(i k x)) / dx = -k sin(k x)
    same(xf.grad(lambda x: xnp.real(xnp.exp(3j * x)).sum())(r), -3 * np.sin(3 * r))
    same(xf.hvp(lambda x: xnp.real(xnp.exp(3j * x)).sum(), (r,), (r,)), -9 * np.cos(3 * r) * r)
    fourier = np.exp(-2j * np.pi * np.outer(np.arange(3), np.arange(3)) / 3)
    np.testing.assert_allclose(xf.hessian(lambda x: (abs(fourier @ x) ** 2).sum())(r), 6 * np.eye(3), atol=1e-12)


def test_cotangents_and_tangents_that_do_not_fit():
    out, pullback = xf.vjp(lambda a, b: abs(a) * b, z, r)
    with pytest.raises(GradientError, match=r"cotangent is complex128\[3\], the output float64\[3\]"):
        pullback(z)
    _, pullback = xf.vjp(lambda a, b: a * b, z, r)
    with pytest.raises(GradientError, match=r"cotangent is float64\[3\], the output complex128\[3\]"):
        pullback(out)
    with pytest.raises(GradientError, match=r"leaf \[1\]: the tangent has dtype complex128, its primal float64"):
        xf.jvp(lambda a, b: a * b, (z, r), (z, z))
    with pytest.raises(GradientError, match=r"leaf \[0\]: the tangent has dtype float64, its primal complex128"):
        xf.jvp(lambda a, b: a * b, (z, r), (r, r))


# ------------------------------------------------------------------ dtypes: the primal's, always


DTYPES = ("float16", "float32", "float64", "complex64", "complex128")


@pytest.mark.parametrize("right", DTYPES)
@pytest.mark.parametrize("left", DTYPES)
@pytest.mark.parametrize("watched", [False, True])
def test_products_of_two_dtypes(left, right, watched):
    a, b = np.array([1.5, -2.0]).astype(left), np.array([0.5, 4.0]).astype(right)
    promoted = np.result_type(a, b)

    def check():
        out, pullback = xf.vjp(lambda a, b: a * b, a, b)
        assert out.dtype == promoted
        to_a, to_b = pullback(np.ones(2, promoted))
        same(to_a, b.real.astype(left))
        same(to_b, a.real.astype(right))
        tangent = xf.jvp(lambda a, b: a * b, (a, b), (a, b))[1]
        same(tangent, (2 * a * b).astype(promoted))
        found = xf.grad(lambda a, b: xnp.real(xnp.sum(a * b * b)), (0, 1))(a, b)
        same(found[0], (b * b).real.astype(left))
        same(found[1], (2 * a * b).real.astype(right))
        second = xf.hvp(lambda a, b: xnp.real(xnp.sum(a * b * b)), (a, b), (a, b))
        assert (second[0].dtype, second[1].dtype) == (a.dtype, b.dtype)

    if watched:
        with xf.Profile():
            check()
    else:
        check()


def test_a_strong_tangent_of_a_python_number():
    """A number is weak: its product with an array keeps the array's dtype, and so does the tangent."""
    a = np.ones(2, np.float32)
    for tangent in (1.0, np.float64(1.0), np.array(1.0)):
        out, found = xf.jvp(lambda a, s: a * s, (a, 2.0), (a, tangent))
        same(out, 2 * a)
        same(found, 3 * a)


@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_gradients_have_the_dtype_too(dtype):
    x = np.ones(2, dtype)
    same(xf.grad(lambda x, y: y)(x, xf.array(1.0)), np.zeros(2, dtype))
    same(xf.jvp(lambda x: x * 0 + 1, (x,), (x,))[1], np.zeros(2, dtype))
    same(xf.vjp(lambda x: np.ones(3), x)[1](np.ones(3))[0], np.zeros(2, dtype))


# ------------------------------------------------------------------ integer leaves


INTEGERS = {"int64": np.array([1, 2, 3]), "uint8": np.ones(3, np.uint8), "bool": np.array([True, False, True])}


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", ["grad", "value_and_grad", "jacfwd", "jacrev", "jacobian", "hessian"])
def test_an_integer_leaf_is_named_with_its_dtype(name, dtype):
    fun = lambda t: (t["a"] * t["b"][0]).sum()
    what = "grad" if name == "value_and_grad" else name
    with pytest.raises(GradientError, match=rf"{what} of .*leaf \['b'\]\[0\] has dtype {dtype}; .*x\.astype\(float\)"):
        getattr(xf, name)(fun)({"a": r, "b": [INTEGERS[dtype]]})
    with pytest.raises(GradientError, match=rf"the argument has dtype {dtype}"):
        getattr(xf, name)(lambda x: (x * 1.0).sum())(INTEGERS[dtype])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_an_integer_leaf_of_vjp_and_of_tangents(dtype):
    fun = lambda t: (t["a"] * t["b"][0]).sum()
    tree = {"a": r, "b": [INTEGERS[dtype]]}
    with pytest.raises(GradientError, match=rf"vjp of .*\[0\]\['b'\]\[0\] has dtype {dtype}"):
        xf.vjp(fun, tree)
    does_not_vary = rf"leaf \[0\]\['b'\]\[0\]: the primal has dtype {dtype}, which does not vary"
    with pytest.raises(GradientError, match=rf"jvp of .*{does_not_vary}"):
        xf.jvp(fun, (tree,), (tree,))
    with pytest.raises(GradientError, match=rf"linear map of .*{does_not_vary}"):
        xf.linearize(fun, tree)[1](tree)
    with pytest.raises(GradientError, match=does_not_vary):
        xf.hvp(fun, (tree,), (tree,))
    along = {"a": r, "b": [None]}
    same(xf.jvp(fun, (tree,), (along,))[1], (r * INTEGERS[dtype]).sum())


@pytest.mark.parametrize("number", [3, True])
def test_python_integers(number):
    with pytest.raises(GradientError, match=r"dtype (int64|bool); .*float\(x\)"):
        xf.grad(lambda x: x * 1.0)(number)
    with pytest.raises(XformError):
        xf.jvp(lambda x: x * 1.0, (number,), (1.0,))
