"""What tracing, gradients and custom functions refuse: each error names the function, the leaf and the remedy."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from typeguard import suppress_type_checks

import xform as xf
from xform.core.errors import OperandError, OperandTypeError

X = np.array([1.0, 2.0])


def cube(x):
    return (np.sin(x) ** 3).sum()


@pytest.mark.parametrize(
    ("out", "path", "kind"),
    [("text", "", "str"), ((X, "text"), r" \[1\]", "str"), ({"a": [object()]}, r" \['a'\]\[0\]", "object")],
)
def test_an_output_that_is_no_array_is_named(out, path, kind):
    def made(x):
        return out

    for run, what in (
        (xf.trace(made), "trace of made"),
        (xf.make_program(made), "make_program of made"),
        (lambda x: xf.eval_shape(made, x), "eval_shape of made"),
        (lambda x: xf.vjp(made, x), "vjp of made"),
    ):
        with pytest.raises(OperandTypeError, match=rf"{what}: the output{path} is {kind}, no array"):
            run(X)
        assert xf.stack() == ()


def test_a_leaf_of_the_arguments_that_is_no_array_is_named():
    with pytest.raises(OperandTypeError, match=r"grad of f: the leaf \['name'\] is str, no array: 'text'"):
        xf.grad(named("f"))({"name": "text", "w": X})
    with pytest.raises(OperandTypeError, match="grad of f: the argument is str, no array"):
        xf.grad(named("f"))("text")
    with pytest.raises(OperandTypeError, match=r"vjp of f: argument \[0\]\['name'\] is str, no array"):
        xf.vjp(named("f"), {"name": "text"})
    with pytest.raises(TypeError, match="Output was a str"):
        xf.grad(lambda x: "text")(1.0)


def named(label):
    def fun(x):
        return x

    fun.__name__ = label
    return fun


def test_a_programs_argument_that_is_no_array_is_an_operand_error():
    program = xf.make_program(lambda x: x * 2.0)(X)
    with pytest.raises(OperandTypeError, match="input 0 must be an array or a number, got str: 'text'"):
        program("text")


def test_ints_beyond_int64():
    traced = xf.trace(lambda n: n * 2)
    assert traced(3) == 6
    for run in (traced, xf.trace(lambda n: n + 1), xf.make_program(lambda n: n * 2)(1)):
        with pytest.raises(OperandError, match=r"(?s)too large.*int64.*static_argnums"):
            run(2**70)
    assert_array_equal(xf.trace(lambda x, n: x * n)(X, 2**70), X * 2.0**70)
    assert xf.trace(lambda n: n * 2, static_argnums=0)(2**70) == 2**71


def test_arguments_of_grad():
    assert xf.grad(lambda x, y: x * y, np.int64(1))(2.0, 3.0) == 2.0
    assert xf.grad(lambda x, y: x * y, [np.int64(1), 0])(2.0, 3.0) == (2.0, 3.0)
    with suppress_type_checks():
        assert xf.grad(lambda x, y: x * y, np.array([0]))(2.0, 3.0) == (3.0,)
    for make in (
        lambda: xf.grad(cube, "a"),
        lambda: xf.grad(cube, 0.5),
        lambda: xf.grad(cube, argnames=1),
        lambda: xf.grad(3),
        lambda: xf.value_and_grad(None),
        lambda: xf.vjp(3, X),
        lambda: xf.trace(3),
        lambda: xf.make_program(X),
        lambda: xf.custom_gradient(3, cube),
        lambda: xf.custom_gradient(cube, None),
        lambda: xf.Device(None),
        lambda: xf.device_put(X, None),
    ):
        match = "takes a function|argument numbers|argument names|named by text"
        with suppress_type_checks(), pytest.raises(OperandTypeError, match=match):
            make()


def test_a_tracked_value_from_outside_of_a_custom_function():
    def f(v):
        scaled = xf.custom_gradient(lambda x: (x * v, None), lambda residuals, t: t)
        return scaled(v * 1.0)

    with pytest.raises(xf.XformError, match=r"CustomGradient.*forward uses GradValue.*must be an argument") as found:
        xf.grad(f)(2.0)
    assert type(found.value).__name__ == "EscapedValueError"

    def backward(v):
        scaled = xf.custom_gradient(lambda x: (x * 2.0, None), lambda residuals, t: t * v)
        return scaled(v * 1.0)

    with pytest.raises(xf.XformError, match=r"backward uses GradValue.*must be an argument"):
        xf.grad(backward)(2.0)
    with pytest.raises(xf.XformError, match="must be an argument"):
        xf.trace(lambda v: xf.custom_gradient(lambda x: (x * v, None), lambda residuals, t: t)(v * 1.0))(2.0)


def test_a_custom_function_as_a_method_names_a_remedy():
    class Scaled:
        scaled = xf.custom_gradient(lambda self, x: (x, None), lambda residuals, t: t)
        plain = staticmethod(xf.custom_gradient(lambda x: (x * 2.0, None), lambda residuals, t: t))

    with pytest.raises(OperandTypeError, match=r"argument 0 is Scaled, no array.*inside of the method"):
        Scaled().scaled(X)
    assert xf.grad(Scaled().plain)(2.0) == 1.0
