"""Engines by name, what they take, and Numba's, checked against NumPy's where Numba is installed."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from tests.operators.collect import families, operands
from tests.zoo import ZOO
from xform import plugins
from xform.core.errors import EngineError, PluginError
from xform.programs.compiler import compile_program

x = np.linspace(0.1, 1.0, 12).reshape(3, 4)


class Recording(xf.Engine):
    """Computes groups by NumPy, and keeps them; it does not take exponentials."""

    name = "recording"
    smallest = 2

    def __init__(self):
        self.groups = []

    def takes(self, op, inputs, output):
        return op != xf.ops.Exp()

    def group(self, group, threads):
        self.groups.append(group)

        def run(*arrays):
            count = len(group.program.inputs)
            found = group.evaluate(np, *arrays[:count])
            outs = iter(arrays[count:])
            totals = []
            for each, variable in zip(found, group.program.outputs, strict=True):
                if variable.aval.shape:
                    next(outs)[...] = each
                else:
                    totals.append(each)
            return tuple(totals)

        return run


class Whole(xf.Engine):
    """Takes whole programs."""

    name = "whole"

    def program(self, program, threads):
        return lambda *flat: program.run(list(flat))


@pytest.fixture
def recording():
    engine = Recording()
    xf.register_engine("recording", engine)
    yield engine
    plugins._engines.registered.pop("recording")


def test_an_engine_gets_the_groups(recording):
    program = xf.make_program(lambda x, y: (np.sin(x) * y + 1.0, np.sum(np.cos(x) * 2.0), x @ x.T))(x, x[0])
    have = compile_program(program, engine="recording")(x * 0.5, x[0])
    for h, w in zip(have, program.run([x * 0.5, x[0]]), strict=True):
        np.testing.assert_allclose(h, w)
    (group,) = recording.groups
    assert {equation.op.name for equation in group.program.equations} == {"Sin", "Mul", "Add", "Cos", "Sum"}


def test_what_an_engine_does_not_take_is_named(recording):
    program = xf.make_program(lambda x: np.exp(np.sin(x) * 2.0) + 1.0)(x)  # the line
    with pytest.raises(EngineError, match=r"'recording' does not take Exp\(\w+\).*# the line.*fallback=True"):
        compile_program(program, engine="recording")
    have = compile_program(program, engine="recording", fallback=True)(x)
    np.testing.assert_allclose(have[0], np.exp(np.sin(x) * 2.0) + 1.0)
    assert all(equation.op.name != "Exp" for group in recording.groups for equation in group.program.equations)


def test_an_engine_may_take_the_whole_program():
    xf.register_engine("whole", Whole())
    try:
        compiled = compile_program(xf.make_program(lambda x: np.sin(x) * 2.0)(x), engine="whole")
        np.testing.assert_allclose(compiled(x)[0], np.sin(x) * 2.0)
        assert compiled.source == ""
    finally:
        plugins._engines.registered.pop("whole")


def test_unknown_engines_and_what_is_none():
    program = xf.make_program(lambda x: np.sin(x))(x)
    with pytest.raises(PluginError, match=r"there is no engine 'no_such'; known are: .*numpy"):
        compile_program(program, engine="no_such")
    with pytest.raises(PluginError, match="built in"):
        xf.register_engine("numpy", Whole())
    xf.register_engine("wrong", object())
    try:
        with pytest.raises(EngineError, match="'wrong' is"):
            compile_program(program, engine="wrong")
    finally:
        plugins._engines.registered.pop("wrong")
    assert plugins.engines()["numpy"] == "built-in"


# ------------------------------------------------------------------ Numba

needs_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="Numba is not installed")


@pytest.fixture
def numba_engine():
    xf.register_engine("numba-here", "xform_numba:engine")
    yield "numba-here"
    plugins._engines.registered.pop("numba-here")


def test_numba_where_it_is_missing(numba_engine, monkeypatch):
    import xform_numba

    monkeypatch.setitem(sys.modules, "numba", None)
    program = xf.make_program(lambda x: np.sin(x) * 2.0)(x)
    with pytest.raises(EngineError, match=r"needs Numba .*pip install"):
        xform_numba.compile_part(program)


def compare(fun, args, others, engine):
    program = xf.make_program(fun)(*args)
    compiled = compile_program(program, engine=engine, fallback=True)
    flat = xf.tree.leaves(others)
    for h, w in zip(compiled(*flat), program.run(flat), strict=True):
        assert (np.shape(h), np.asarray(h).dtype) == (np.shape(w), np.asarray(w).dtype)
        bound = 1e-4 if np.asarray(w).dtype == np.float32 else 1e-9
        np.testing.assert_allclose(h, w, rtol=bound, atol=bound)


@needs_numba
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numba_on_every_elementwise_operator(numba_engine, dtype):
    """All rows in one program: one compilation."""
    rows = [row for row in families()["elementwise"] if not (dtype == "float32" and row.x64_only)]
    args = tuple(operands(row, dtype) for row in rows)
    compare(lambda *groups: [row.fun(*own) for row, own in zip(rows, groups, strict=True)], args, args, numba_engine)


@needs_numba
@pytest.mark.slow
@pytest.mark.parametrize("specimen", [each for each in ZOO if not each.reads], ids=lambda each: each.name)
def test_numba_on_the_zoo(numba_engine, specimen):
    compare(specimen.fun, specimen.args(0), specimen.args(1), numba_engine)


@needs_numba
def test_numba_keeps_nan_infinities_and_broadcasting(numba_engine):
    def fun(a, b):
        return xnp.maximum(a, b) / b, np.where(a > b, a, 0.0), np.sign(a) + np.abs(b), np.sum(a * b)

    program = xf.make_program(fun)(np.ones((2, 4)), np.ones(4))
    a = np.array([[np.nan, np.inf, -np.inf, 0.0], [1.0, -1.0, 0.0, 2.0]])
    b = np.array([0.0, 1.0, np.nan, -0.0])
    with np.errstate(all="ignore"):
        want = program.run([a, b])
        have = compile_program(program, engine=numba_engine)(a, b)
    for h, w in zip(have, want, strict=True):
        np.testing.assert_array_equal(h, w)


@needs_numba
def test_numba_refuses_what_it_does_not_compute(numba_engine):
    program = xf.make_program(lambda n: n * 2 + 1)(np.arange(3))
    with pytest.raises(EngineError, match="does not take Mul"):
        compile_program(program, engine=numba_engine)
    assert compile_program(program, engine=numba_engine, fallback=True)(np.arange(3))[0].tolist() == [1, 3, 5]
