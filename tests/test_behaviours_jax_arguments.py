"""What JAX's tests check, rows 38 to 58 of section 4 of the list of behaviours: arguments, outputs, errors, reuse.

Long sweeps of rows 41, 46, 47, 50, 52, 53 are in the tests of forward mode, of batching and of the derivatives.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from typeguard import suppress_type_checks

import xform as xf
from xform.core.errors import EscapedValueError, GradientError, OperandTypeError, ShapeError, TreeError

X = np.array([0.4, 1.3, 2.1])


class Pair(NamedTuple):
    a: object
    b: object


# ------------------------------------------------------------------ arguments


def product(x, y, z, *, power=1, shift=0.0):
    return x * y**power * z + shift


@pytest.mark.parametrize(("argnums", "want"), [
    (0, 15.0), (1, 10.0), (2, 6.0), (-1, 6.0), (-3, 15.0),
    ((0,), (15.0,)), ((0, 1), (15.0, 10.0)), ((2, 0), (6.0, 15.0)), ((-1, 1), (6.0, 10.0)), ([1, 2], (10.0, 6.0)),
    (np.int64(1), 10.0),
])  # fmt: skip
def test_row_38_argnums(argnums, want):
    assert xf.grad(product, argnums)(2.0, 3.0, 5.0) == want
    assert xf.value_and_grad(product, argnums)(2.0, 3.0, 5.0) == (30.0, want)
    assert xf.trace(xf.grad(product, argnums))(2.0, 3.0, 5.0) == want


def test_row_38_keyword_arguments_pass_through():
    assert xf.grad(product, 1)(2.0, 3.0, 5.0, power=2) == 60.0
    assert xf.grad(product)(2.0, 3.0, z=5.0) == 15.0
    assert xf.grad(product, argnames="z")(2.0, 3.0, z=5.0) == 6.0
    assert xf.grad(product, argnames=("shift", "z"))(2.0, 3.0, z=5.0, shift=1.0) == {"shift": 1.0, "z": 6.0}
    assert xf.vmap(xf.grad(product, 1), (0, None, None))(np.array([1.0, 2.0]), 3.0, 5.0).tolist() == [5.0, 10.0]


@pytest.mark.parametrize("argnums", [3, -4, (0, 3)])
def test_row_38_argnums_out_of_range(argnums):
    with pytest.raises(GradientError, match=r"grad of product: argnums=.*3 positional"):
        xf.grad(product, argnums)(2.0, 3.0, 5.0)


@pytest.mark.parametrize("argnums", ["x", 1.0, (0, 1.0)])
def test_row_38_argnums_that_are_no_numbers(argnums):
    with suppress_type_checks(), pytest.raises(TypeError, match=r"grad of product: .*int or a tuple of ints"):
        xf.grad(product, argnums)(2.0, 3.0, 5.0)


# ------------------------------------------------------------------ outputs


@pytest.mark.parametrize(("out", "hint"), [
    (lambda x: (x[0], x[1]), r"a tuple.*return one scalar, or use has_aux=True"),
    (lambda x: (x[0],), r"a tuple"),
    (lambda x: (), r"a tuple"),
    (lambda x: {"loss": x[0]}, r"a dict"),
    (lambda x: None, r"a NoneType"),
    (lambda x: x, r"had shape: \(3,\); sum it, or use vjp or jacobian"),
    (lambda x: x[:, None] * x, r"had shape: \(3, 3\); sum it"),
    (lambda x: x[:1], r"had shape: \(1,\); take its single element with out\[0\]"),
    (lambda x: x[:1, None], r"had shape: \(1, 1\); take its single element"),
    (lambda x: x[:0], r"had shape: \(0,\); sum it"),
    (lambda x: np.argmax(x), r"had dtype int64; gradients need a floating point output"),
    (lambda x: x[0] > 0, r"had dtype bool"),
    (lambda x: "loss", r"a str"),
])  # fmt: skip
def test_row_40_outputs_that_are_no_real_scalar(out, hint):
    for derivative in (xf.grad, xf.value_and_grad):
        for wrapped in (derivative(out), xf.trace(derivative(out))):
            with pytest.raises(TypeError, match=rf"only defined for scalar-output functions\. Output .*{hint}"):
                wrapped(X)
    assert xf.stack() == ()


@pytest.mark.parametrize("out", [lambda x: 3.0, lambda x: np.float32(3.0), lambda x: np.array(3.0)])
def test_row_40_a_constant_output_has_a_zero_gradient(out):
    assert_array_equal(xf.grad(out)(X), np.zeros(3))


# ------------------------------------------------------------------ arguments that are no arrays of floats


DATE = np.array([np.datetime64(0, "s")])
BAD = ["text", np.array(["a", "b"]), np.array([1.0, None], object), object(), b"bytes", DATE]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: getattr(getattr(bad, "dtype", None), "name", type(bad).__name__))
@pytest.mark.parametrize("use", [
    lambda fun, x: xf.grad(fun)(x), lambda fun, x: xf.value_and_grad(fun)(x), lambda fun, x: xf.vjp(fun, x),
    lambda fun, x: xf.jvp(fun, (x,), (x,)), lambda fun, x: xf.linearize(fun, x), lambda fun, x: xf.jacfwd(fun)(x),
    lambda fun, x: xf.jacrev(fun)(x), lambda fun, x: xf.hessian(fun)(x), lambda fun, x: xf.hvp(fun, (x,), (x,)),
    lambda fun, x: xf.vmap(fun)(x), lambda fun, x: xf.make_program(fun)(x),
])  # fmt: skip
def test_row_41_strings_and_objects_are_a_type_error(use, bad):
    def fun(x):
        pytest.fail("the function ran")

    with pytest.raises(TypeError, match=r"(of fun|^trace): .*(no array|dtype|expected an array)"):
        use(fun, bad)
    assert xf.stack() == ()


@pytest.mark.parametrize("bad", [3, np.arange(3), np.ones(2, bool), {"a": X, "b": [1]}])
def test_row_41_integers_are_named_with_path_and_dtype(bad):
    where = r"leaf \['b'\]\[0\]" if isinstance(bad, dict) else "argument"
    with pytest.raises(GradientError, match=rf"grad of <lambda>: the {where} has dtype (int64|bool)"):
        xf.grad(lambda x: 1.0)(bad)


# ------------------------------------------------------------------ Jacobians and Hessians


def test_row_46_forward_and_reverse_jacobians_agree():
    def fun(p, x):
        return {"y": np.tanh(p["w"] @ x) * p["s"], "n": Pair(np.sum(x), np.outer(x, p["s"] * x))}

    args = {"w": np.arange(6.0).reshape(2, 3) / 5, "s": np.array(0.7)}, X
    forward, reverse = xf.jacfwd(fun, (0, 1))(*args), xf.jacrev(fun, (0, 1))(*args)
    assert xf.tree.structure(forward) == xf.tree.structure(reverse)
    for have, want in zip(xf.tree.leaves(forward), xf.tree.leaves(reverse), strict=True):
        assert (have.shape, have.dtype) == (want.shape, want.dtype)
        assert_allclose(have, want, rtol=1e-13, atol=1e-15)
    slope = (1 - np.tanh(args[0]["w"] @ X) ** 2) * 0.7
    assert_allclose(reverse["y"][0]["w"], np.einsum("i,ij,k->ijk", slope, np.eye(2), X))
    rows, columns = (np.einsum(spelled, np.eye(3), X) for spelled in ("ik,j->ijk", "jk,i->ijk"))
    assert_allclose(reverse["n"].b[1], 0.7 * (rows + columns))


def test_row_47_hessian_of_a_container_has_nested_blocks():
    def fun(p):
        return np.sum(p["a"] ** 2) * p["b"][0]

    found = xf.hessian(fun)({"a": X, "b": [np.array(2.0)]})
    assert_allclose(found["a"]["a"], 4 * np.eye(3))
    assert_allclose(found["a"]["b"][0], 2 * X)
    assert_allclose(found["b"][0]["a"], 2 * X)
    assert_array_equal(found["b"][0]["b"][0], 0.0)
    z = np.array([0.5 + 1j, -1.0 + 0.3j])
    assert_allclose(xf.hessian(lambda z: np.sum(z**3), holomorphic=True)(z), np.diag(6 * z))


# ------------------------------------------------------------------ pullbacks and linear maps


def two_results(x, n):
    return {"y": np.sin(x) * n, "z": np.sum(x)}


@pytest.mark.parametrize(("cotangents", "message"), [
    (({"y": np.ones(2), "z": 1.0},), r"the cotangent is float64\[2\], the output float64\[3\]"),
    (({"y": np.ones((3, 1)), "z": 1.0},), r"the cotangent is float64\[3,1\], the output float64\[3\]"),
    (({"y": 1.0, "z": 1.0},), r"the cotangent is weak float64\[\], the output float64\[3\]"),
    (({"y": np.ones(3, np.float32), "z": 1.0},), r"the cotangent is float32\[3\], the output float64\[3\]"),
    (({"y": np.ones(3) * 1j, "z": 1.0},), r"the cotangent is complex128\[3\], the output float64\[3\]"),
    (({"y": np.ones(3, int), "z": 1.0},), r"the cotangent is int64\[3\], the output float64\[3\]"),
    (({"y": np.ones(3)},), "the cotangent has structure"),
    ((np.ones(3),), "the cotangent has structure"),
    (((np.ones(3), 1.0),), "the cotangent has structure"),
    ((np.ones(3), 1.0), "takes one cotangent.*got 2"),
    ((), "takes one cotangent.*got 0"),
])  # fmt: skip
def test_row_49_a_pullback_given_what_does_not_fit(cotangents, message):
    _, pullback = xf.vjp(two_results, X, 2.0)
    with pytest.raises(TypeError, match=f"the pullback of two_results.*{message}"):
        pullback(*cotangents)
    found = pullback({"y": np.ones(3), "z": 1.0})  # the call that fits works afterwards
    assert_allclose(found[0], 2 * np.cos(X) + 1)
    assert_allclose(found[1], np.sum(np.sin(X)))


@pytest.mark.parametrize(("tangents", "message"), [
    ((np.ones(2), 1.0), r"leaf \[0\]: the tangent has shape \(2,\)"),
    ((np.ones(3),), "structure"), ((np.ones(3), 1.0, 1.0), "structure"),
    ((np.ones(3, np.float32), 1.0), "float32"), (((np.ones(3),), 1.0), r"leaf \[0\]: the tangent is tuple, no array"),
])  # fmt: skip
def test_row_49_tangents_that_do_not_fit(tangents, message):
    _, linear = xf.linearize(two_results, X, 2.0)
    with pytest.raises(TypeError, match=f"two_results.*{message}"):
        linear(*tangents)
    with pytest.raises(TypeError, match=f"jvp of two_results.*{message}"):
        xf.jvp(two_results, (X, 2.0), tangents)


def test_row_50_the_tangent_of_a_constant_output_is_a_zero_to_add_to():
    def fun(x):
        return {"varies": x * 2.0, "constant": np.ones((2, 2), np.float32), "number": 3.0, "count": 3}

    (out, tangent), linear = xf.jvp(fun, (X,), (np.ones(3),)), xf.linearize(fun, X)[1]
    for found in (tangent, linear(np.ones(3))):
        for name, value in out.items():
            zero = found[name]
            assert np.shape(zero) == np.shape(value)
            if name not in ("varies", "count"):
                assert np.asarray(zero).dtype == np.asarray(value).dtype
                assert_array_equal(zero + np.asarray(value), value)
        found["constant"] += 1.0
        assert found["constant"].sum() == 4.0


# ------------------------------------------------------------------ batches


A, B = np.ones((4, 3)), np.ones((3, 4))


@pytest.mark.parametrize(("axes", "args", "kind", "message"), [
    (0, (A, B), ShapeError, r"4 along axis 0 of args\[0\] float64\[4,3\]; 3 along axis 0 of args\[1\] float64\[3,4\]"),
    (True, (A,), OperandTypeError, "got bool"),
    (np.array(0), (A,), OperandTypeError, "got ndarray"),
    ((0, 0), (A,), ValueError, "2 entries, but there are 1 positional"),
    (({"b": 0},), ({"a": A},), TreeError, "is not a prefix of args"),
    (0, (), ValueError, "without an array"),
    (0, (1.0,), ShapeError, "scalar: give its in_axes as None"),
])  # fmt: skip
def test_row_52_errors_of_a_batch(axes, args, kind, message):
    for run in (xf.vmap(product, axes), xf.trace(xf.vmap(product, axes)), xf.Profile()(xf.vmap(product, axes))):
        with pytest.raises(kind, match=f"vmap of product: .*{message}"):
            run(*args)
    assert xf.stack() == ()


# ------------------------------------------------------------------ values that escape


def escapes_of(transform):
    """Return a value that a transformation made, kept after its end."""
    kept = []

    def fun(x):
        kept.append(x)
        return np.sum(x * x)

    transform(fun)
    return kept[0]


ESCAPES = {
    "grad": lambda fun: xf.grad(fun)(X),
    "jvp": lambda fun: xf.jvp(fun, (X,), (X,)),
    "vmap": lambda fun: xf.vmap(fun)(A),
    "trace": lambda fun: xf.trace(fun)(X),
    "make_program": lambda fun: xf.make_program(fun)(X),
    "vjp": lambda fun: xf.vjp(fun, X),
    "linearize": lambda fun: xf.linearize(fun, X),
    "jacfwd": lambda fun: xf.jacfwd(fun)(X),
    "hessian": lambda fun: xf.hessian(fun)(X),
}


@pytest.mark.parametrize("name", ESCAPES)
@pytest.mark.parametrize("use", [
    lambda v: v + 1.0, lambda v: 1.0 - v, np.sin, lambda v: X * v, lambda v: v[0], lambda v: np.stack([v, v]),
    *[lambda v, again=again: again(lambda x: np.sum(x * v)) for again in ESCAPES.values()],
])  # fmt: skip
def test_row_53_a_value_kept_after_its_transformation_is_a_clear_error(name, use):
    """Used plainly, and inside a sibling of the transformation that made it."""
    value = escapes_of(ESCAPES[name])
    with pytest.raises(EscapedValueError, match=r"is not active.*xf\.stop_gradient\(v\).*return it"):
        use(value)
    assert xf.stack() == ()


# ------------------------------------------------------------------ how often Python runs


def counted(fun):
    calls = []

    def counting(*args):
        calls.append(1)
        return fun(*args)

    return counting, calls


def on_lanes(run):
    """Return the function of one lane that a function of all lanes makes."""
    return lambda x: run(np.stack([x, x]))[1]


ONCE = {
    "trace of grad": lambda fun: xf.trace(xf.grad(fun)),
    "grad of trace": lambda fun: xf.grad(xf.trace(fun)),
    "trace of grad of trace": lambda fun: xf.trace(xf.grad(xf.trace(fun))),
    "jacfwd of trace": lambda fun: xf.jacfwd(xf.trace(fun)),
    "trace of jacfwd": lambda fun: xf.trace(xf.jacfwd(fun)),
    "vmap of grad of trace": lambda fun: on_lanes(xf.vmap(xf.grad(xf.trace(fun)))),
    "trace of vmap of grad": lambda fun: on_lanes(xf.trace(xf.vmap(xf.grad(fun)))),
}


@pytest.mark.parametrize("make", ONCE.values(), ids=ONCE)
def test_row_58_python_runs_once_for_repeated_calls(make):
    fun, calls = counted(lambda x: np.sum(np.sin(x) * 2.0))
    run = make(fun)
    for k in range(4):
        assert_allclose(run(X + k), 2 * np.cos(X + k))
    assert len(calls) == 1
    for other in (X.astype(np.float32), np.array([0.3, 0.4])):  # another dtype, another shape: another program
        for _ in range(2):
            assert_allclose(run(other), 2 * np.cos(other), rtol=1e-6)
    assert len(calls) == 3
