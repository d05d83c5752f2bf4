"""Elementwise operations on large arrays: in blocks, in threads, and in groups that do not wait for themselves."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

import xform as xf
from xform.core.errors import OperandError
from xform.programs.compiler import compile_program


def spread(x, y, z):
    u = np.tanh(x) * y + np.exp(-x * x) - np.sqrt(np.abs(x) + z)
    return u * 2.0, np.sum(u), np.where(u > 0.0, x, u) / 3.0, np.max(u * y)


SHAPES = [
    ((70_001,), (1,), ()),
    ((70_001,), (70_001,), (70_001,)),
    ((300, 301), (301,), (300, 1)),
    ((2, 50_000), (2, 1), (50_000,)),
    ((3, 5, 7000), (5, 1), (3, 1, 7000)),
    ((1, 80_000), (1, 1), (80_000,)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_large_arrays_run_in_blocks(shapes, threads, dtype):
    rng = np.random.default_rng(0)
    args = [rng.random(shape).astype(dtype) + np.asarray(0.1, dtype) for shape in shapes]
    program = xf.make_program(spread)(*args)
    compiled = compile_program(program, threads=threads)
    assert "def group" in compiled.source
    others = [np.asarray(each * np.asarray(0.5, dtype)) for each in args]
    for _ in range(2):
        for h, w in zip(compiled(*others), program.run(others), strict=True):
            assert (np.shape(h), h.dtype) == (np.shape(w), w.dtype)
            np.testing.assert_allclose(h, w, rtol=1e-10 if dtype == "float64" else 1e-5)


def test_constants_with_axes_are_cut_too():
    c = np.linspace(0.0, 1.0, 70_000)
    program = xf.make_program(lambda x: np.sin(x) * c + c[:1] - np.sum(x * c))(c)
    compiled = compile_program(program)
    assert "def group" in compiled.source
    np.testing.assert_allclose(compiled(c * 2.0)[0], np.sin(c * 2.0) * c + c[:1] - np.sum(c * 2.0 * c))


def test_results_do_not_depend_on_the_number_of_threads():
    x = np.random.default_rng(0).normal(size=200_003)
    program = xf.make_program(lambda x: (np.sum(np.sin(x) * x), np.exp(x) - x))(x)
    one, other = (compile_program(program, threads=n)(x) for n in (1, 4))
    assert one[0] == other[0]
    np.testing.assert_array_equal(one[1], other[1])


def test_errors_in_threads_pass_with_their_place():
    program = xf.make_program(lambda x: np.log(x) * 2.0 + 1.0)(np.ones(100_000))
    compiled = compile_program(program, threads=2)
    x = np.ones(100_000)
    x[77_000] = 0.0
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError) as caught:
        compiled(x)
    assert "Log" in caught.value.__notes__[0]
    with np.errstate(divide="ignore"):
        assert compiled(x)[0][77_000] == -np.inf


def test_the_environment_says_how_many_threads(monkeypatch):
    program = xf.make_program(lambda x: np.sin(x) + 1.0)(np.ones(100_000))
    monkeypatch.setenv("XFORM_NUM_THREADS", "2")
    np.testing.assert_allclose(compile_program(program)(np.zeros(100_000))[0], 1.0)
    monkeypatch.setenv("XFORM_NUM_THREADS", "many")
    with pytest.raises(OperandError, match="XFORM_NUM_THREADS"):
        compile_program(program)
    with pytest.raises(OperandError, match="positive"):
        compile_program(program, threads=0)


def test_groups_do_not_wait_for_themselves():
    """A sum between two elementwise parts, used by the second: two groups."""
    x = np.linspace(0.0, 1.0, 90_000)
    program = xf.make_program(lambda x: np.exp(x - np.max(x)) / np.sum(np.exp(x - np.max(x))) + x * 0.5)(x)
    compiled = compile_program(program)
    assert compiled.source.count("def group") >= 2
    y = x[::-1] * 2.0
    np.testing.assert_allclose(compiled(y)[0], np.exp(y - y.max()) / np.exp(y - y.max()).sum() + y * 0.5)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own():
    """It waited for those of its parent, for ever."""
    traced = xf.trace(lambda x: np.sin(x) + 1.0, threads=2)
    for _ in range(2):
        traced(np.zeros(100_000))
    child = os.fork()
    if not child:
        signal.alarm(20)
        os._exit(0 if np.all(traced(np.zeros(100_000)) == 1.0) else 1)
    assert os.waitpid(child, 0)[1] == 0
