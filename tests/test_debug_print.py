"""`debug.print`: the numbers of tracked values, as often as the program runs, under every transformation."""

from __future__ import annotations

import numpy as np
import pytest
from typeguard import suppress_type_checks

import xform as xf
from xform.core.errors import OperandError, OperandTypeError

X = np.array([1.0, 4.0])


def loud(x):
    xf.debug.print("x = {}, sum {total:.1f}", x, total=np.sum(x))
    return np.sum(np.sqrt(x))


def looped(**options):
    def body(i, x):
        xf.debug.print("{}: {}", i, x)
        return np.sqrt(x)

    return lambda x: np.sum(xf.fori_loop(0, 2, body, x, **options))


def twice(fun):
    return lambda x: [fun(x), fun(x)]


ONCE = "x = [1. 4.], sum 5.0\n"
ROUNDS = "0: [1. 4.]\n1: [1. 2.]\n"
PRINTED = {
    "plain": (loud, ONCE),
    "tracked": (lambda x: loud(xf.array(x)), ONCE),
    "grad": (xf.grad(loud), ONCE),
    "jvp": (lambda x: xf.jvp(loud, (x,), (x,)), ONCE),
    "linearize": (lambda x: xf.linearize(loud, x)[1](x), ONCE),
    "hessian": (xf.hessian(loud), ONCE),
    "grad of grad": (xf.grad(lambda x: np.sum(xf.grad(loud)(x))), ONCE),
    "checkpoint": (xf.grad(xf.checkpoint(loud)), ONCE),
    "profile": (xf.Profile()(loud), ONCE),
    "NaN guard": (xf.NanGuard()(loud), ONCE),
    "device": (xf.Device("array_api_strict:device1")(loud), ONCE),
    "trace": (twice(xf.trace(loud)), ONCE * 2),
    "trace of grad": (twice(xf.trace(xf.grad(loud))), ONCE * 2),
    "grad of trace": (twice(xf.grad(xf.trace(loud))), ONCE * 2),
    "trace of profile": (twice(xf.trace(xf.Profile()(loud))), ONCE * 2),
    "program": (lambda x: twice(xf.make_program(loud)(x))(x), ONCE * 2),
    "compiled": (lambda x: twice(xf.compile_program(xf.make_program(loud)(x)))(x), ONCE * 2),
    "branch": (xf.trace(lambda x: xf.cond(x[0] > 0.0, loud, np.sum, x)), ONCE),
    "other branch": (xf.trace(lambda x: xf.cond(x[0] < 0.0, loud, np.sum, x)), ""),
    "loop": (looped(), ROUNDS),
    "grad of loop": (xf.grad(looped()), ROUNDS),
    "grad of loop with few states": (xf.grad(looped(checkpoint="log")), ROUNDS),
    "vmap": (lambda x: xf.vmap(loud)(np.stack([x, x])), "x = [[1. 4.]\n [1. 4.]], sum [5.0 5.0]\n"),
}


@pytest.mark.parametrize("name", PRINTED)
def test_what_is_printed_and_how_often(name, capsys):
    run, wanted = PRINTED[name]
    run(X)
    assert capsys.readouterr().out == wanted


def test_values_and_derivatives_are_those_without():
    np.testing.assert_allclose(xf.grad(loud)(X), 0.5 / np.sqrt(X))
    np.testing.assert_allclose(xf.hessian(xf.trace(loud))(X), np.diag(-0.25 * X**-1.5))


def test_a_stored_program_prints(tmp_path, capsys):
    xf.make_program(loud)(X).save(tmp_path / "loud.xf")
    assert capsys.readouterr().out == ""
    assert xf.load_program(tmp_path / "loud.xf")(X) == 3.0
    assert capsys.readouterr().out == ONCE


def test_containers_and_their_parts(capsys):
    xf.debug.print("{0[a]} {0[b][1]:+d}; {rest}", {"a": xf.array(2.0), "b": (1, 2)}, rest=[X[:1]])
    assert capsys.readouterr().out == "2.0 +2; [array([1.])]\n"


@pytest.mark.parametrize(("template", "args", "kind", "message"), [
    ("{} {}", (1.0,), OperandError, "does not fit 1 arguments"),
    ("{x}", (1.0,), OperandError, "KeyError"),
    ("{", (), OperandError, "does not fit 0"),
    ("{}", ("text",), OperandTypeError, r"argument \[0\]\[0\] is str, no array"),
    (X, (), OperandTypeError, "the template must be a str"),
])  # fmt: skip
def test_errors(template, args, kind, message):
    with suppress_type_checks(), pytest.raises(kind, match=f"debug.print: .*{message}"):
        xf.debug.print(template, *args)
    assert xf.stack() == ()
