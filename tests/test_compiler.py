"""Compiled programs: equal to eager ones on other inputs, whoever calls them, and nobody's memory but the caller's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from tests.compiling import assert_same, moved, recurrent
from tests.operators.collect import families, operands
from tests.zoo import ZOO
from xform.programs.compiler import compile_program
from xform.programs.passes import LEVELS

levels = pytest.mark.parametrize("level", LEVELS)
ROWS = [(family, row) for family, rows in families().items() for row in rows]


def check(fun, args, others, wanted_levels=LEVELS):
    """Trace with some arguments, run with others, several times."""
    program = xf.make_program(fun)(*args)
    flat = xf.tree.leaves(others)
    want = program.run(flat)
    for level in wanted_levels:
        compiled = compile_program(program, level=level)
        for _ in range(2):
            assert_same(compiled(*flat), want)


# ------------------------------------------------------------------ equal to eager


@pytest.mark.parametrize(("family", "row"), ROWS, ids=lambda each: str(each))
def test_every_operator_compiles(family, row):
    for dtype in ("float64", "float32", "complex128"):
        if (dtype == "complex128" and not row.complex) or (dtype == "float32" and row.x64_only):
            continue
        args = operands(row, dtype)
        check(row.fun, args, xf.tree.map(moved, args), LEVELS if dtype == "float64" else (0,))


@pytest.mark.parametrize("specimen", [each for each in ZOO if not each.reads], ids=lambda each: each.name)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_zoo(specimen, dtype):
    check(specimen.fun, specimen.args(0, dtype), specimen.args(1, dtype))


@pytest.mark.parametrize("specimen", [each for each in ZOO if not each.reads], ids=lambda each: each.name)
def test_gradients_of_the_zoo(specimen):
    leaves, structure = xf.tree.flatten(specimen.args(0))
    floating = [n for n, leaf in enumerate(leaves) if leaf.dtype.kind == "f"]

    def pulled(*args):
        flat = xf.tree.leaves(args)

        def fun(*chosen):
            full = list(flat)
            for n, value in zip(floating, chosen, strict=True):
                full[n] = value
            return specimen.fun(*xf.tree.unflatten(structure, full))

        out, pullback = xf.vjp(fun, *[flat[n] for n in floating])
        return out, pullback(xf.tree.map(lambda leaf: leaf * 0.5 + 1.25, out))

    check(pulled, specimen.args(0), specimen.args(1))


def rosenbrock(x):
    a = x[1:] - x[:-1] * x[:-1]
    e = 1.0 - x[:-1]
    return np.sum(100.0 * a * a + e * e)


@pytest.mark.parametrize("transform", [xf.grad, xf.jacfwd, xf.hessian])
def test_derivatives_of_rosenbrock(transform):
    x = np.linspace(0.5, 1.5, 7)
    check(transform(rosenbrock), (x,), (x[::-1] * 1.25,))


def test_hessian_is_that_of_the_closed_form():
    x = np.linspace(0.5, 1.5, 5)
    compiled = compile_program(xf.make_program(xf.hessian(rosenbrock))(x))
    y = x[::-1].copy()
    (have,) = compiled(y)
    want = np.zeros((5, 5))
    for i in range(4):
        want[i, i] += 1200 * y[i] ** 2 - 400 * y[i + 1] + 2
        want[i + 1, i + 1] += 200
        want[i, i + 1] = want[i + 1, i] = -400 * y[i]
    np.testing.assert_allclose(have, want)


def test_gradient_of_an_unrolled_recurrence_against_differences():
    rng = np.random.default_rng(3)
    args = (rng.normal(size=(4, 4)) * 0.4, rng.normal(size=(4, 3)), rng.normal(size=4), rng.normal(size=(6, 3)))
    program = xf.make_program(xf.value_and_grad(recurrent(xnp), argnums=(0, 1, 2, 3)))(*args)
    others = [each * 0.75 for each in args]
    value, *found = compile_program(program)(*others)
    assert value == pytest.approx(recurrent(np)(*others))
    for position, cotangent in enumerate(found):
        direction = rng.normal(size=cotangent.shape)
        near = [list(others), list(others)]
        near[0][position] = others[position] + 1e-6 * direction
        near[1][position] = others[position] - 1e-6 * direction
        slope = (recurrent(np)(*near[0]) - recurrent(np)(*near[1])) / 2e-6
        assert np.sum(cotangent * direction) == pytest.approx(slope, rel=1e-6)


@levels
def test_numbers_in_numbers_out(level):
    program = xf.make_program(lambda x, y: (x * 2.0 + y, x / y, -x, 3.0))(np.float32(1.5), np.float32(2.0))
    found = compile_program(program, level=level)(np.float32(0.5), np.float32(4.0))
    assert found == [5.0, 0.125, -0.5, 3.0]
    assert [type(each) for each in found] == [np.float32, np.float32, np.float32, float]


@levels
def test_python_numbers_stay_weak(level):
    program = xf.make_program(lambda x, n: x * n + 1)(np.ones(2, np.float32), 2.0)
    (found,) = compile_program(program, level=level)(np.ones(2, np.float32), 3.0)
    assert found.dtype == np.float32
    assert found.tolist() == [4.0, 4.0]


@levels
def test_a_python_number_for_one_of_numpys_divides_as_that(level):
    compiled = compile_program(xf.make_program(lambda x: 1.0 / x)(np.float64(2.0)), level=level)
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        assert compiled(0.0) == [np.inf]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64", "bool"])
@levels
def test_integers_and_booleans(dtype, level):
    def fun(x, y):
        return x + y, x * y, x & y, x == y, np.sum(x), np.where(x > y, x, y), x / 3, x * 1.0, np.maximum(x, y)

    x, y = np.array([1, 0, 1, 3]).astype(dtype), np.array([[1], [2]]).astype(dtype)
    program = xf.make_program(fun)(x, y)
    compiled = compile_program(program, level=level)
    for each in ((x, y), (y[0, 0] * x, y)):
        have, want = compiled(*each), program.run(each)
        for h, w in zip(have, want, strict=True):
            assert (h.dtype, h.shape) == (w.dtype, w.shape)
            np.testing.assert_array_equal(h, w)


@levels
def test_unknown_lengths(level):
    shape = xf.Aval((None, 3), np.dtype(float))
    program = xf.make_program(lambda x: (np.exp(x - np.mean(x, axis=0)), x.T @ x, np.sum(x)))(shape)
    compiled = compile_program(program, level=level)
    for length in (1, 4, 7):
        x = np.linspace(-1.0, 1.0, 3 * length).reshape(length, 3)
        assert_same(compiled(x), program.run([x]))
        np.testing.assert_allclose(compiled(x)[1], x.T @ x)


@levels
def test_empty_arrays(level):
    program = xf.make_program(lambda x: (x * 2.0, np.sum(x), np.concatenate([x, x + 1.0])))(np.zeros((0, 3)))
    assert_same(compile_program(program, level=level)(np.zeros((0, 3))), program.run([np.zeros((0, 3))]))


@levels
def test_inputs_of_any_layout(level):
    program = xf.make_program(lambda x: (np.sin(x) @ x.T, x[::2] + 1.0, x.reshape(-1) * 2.0))(np.ones((4, 4)))
    compiled = compile_program(program, level=level)
    whole = np.linspace(-1.0, 1.0, 64).reshape(8, 8)
    turned, repeated = np.asfortranarray(whole[:4, :4]), np.broadcast_to(whole[:1, :4], (4, 4))
    for x in (whole[::2, ::2], turned, repeated, whole[3::-1, :4]):
        before = x.copy()
        assert_same(compiled(x), program.run([x]))
        np.testing.assert_array_equal(x, before)


def test_row_38_the_gradient_of_an_optimised_program():
    """behaviours.md 2, 38: graph optimisation does not change the gradient's value."""
    w = np.array([0.5, -1.5, 2.0])
    compiled = compile_program(xf.make_program(xf.value_and_grad(lambda w: np.sqrt(np.sum(w * w)) / 3.0))(w))
    other = np.array([3.0, 0.0, 4.0])
    value, cotangent = compiled(other)
    assert value == pytest.approx(5.0 / 3.0)
    np.testing.assert_allclose(cotangent, other / 15.0)


def test_row_35_a_training_step_gives_the_same_losses():
    """behaviours.md 2, 35: the whole step, gradient and update, in one program."""

    def step(w, x, y):
        value, cotangent = xf.value_and_grad(lambda w: np.mean((np.tanh(x @ w) - y) ** 2))(w)
        return value, w - 0.1 * cotangent

    rng = np.random.default_rng(0)
    w, x, y = rng.normal(size=3), rng.normal(size=(5, 3)), rng.normal(size=5)
    compiled = compile_program(xf.make_program(step)(w, x, y))
    eager = fast = w
    for _ in range(4):
        want, eager = step(eager, x, y)
        have, fast = compiled(fast, x, y)
        assert have == pytest.approx(want, rel=1e-12)
    assert not np.array_equal(fast, w)


# ------------------------------------------------------------------ the source


def test_source_of_a_program():
    source = xf.make_program(lambda x: np.tanh(x * 2.0))(np.ones(3)).source()
    assert source.startswith("def program(a0):")
    assert "multiply(a0, " in source
    assert "    out = [v0]\n    give(w)\n    return out\n" in source


COUNTING = """
import sys
import numpy as np, xform as xf, xform.numpy as xnp
from xform.programs.compiler import compile_program

def chain(length):
    def fun(x):
        y = x
        for n in range(length):
            y = np.sin(y) * x + 0.5 - y * x[n % 3]
        return np.sum(y)
    return xf.make_program(xf.value_and_grad(fun))(np.ones(3))

def products(length):
    def fun(x):
        y = x
        for _ in range(length):
            y = np.sin(y) * x + 0.5
        return np.sum(y)
    return xf.make_program(xf.value_and_grad(fun))(np.ones(10))

def recurrence(length):
    def fun(w, x):
        y, total = x, 0.0
        for n in range(length):
            y = np.tanh(w @ y + x * float(n)) - 0.5 * y
            total = total + np.sum(y * y)
        return total
    return xf.make_program(xf.grad(fun))(np.eye(3), np.ones(3))

def large(length):
    def fun(x):
        for n in range(length):
            x = np.exp(np.sin(x) - np.max(x)) * 0.5 + np.sum(x)
        return x
    return xf.make_program(fun)(np.ones(70_000))

def views(length):
    def fun(x):
        outs = [x * 2.0]
        for _ in range(3 * length):
            outs.append(outs[-1].T)
        return outs
    return xf.make_program(fun)(np.ones((2, 2)))

def calls(program):
    count = 0
    def profile(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")
    sys.setprofile(profile)
    compile_program(program)
    sys.setprofile(None)
    return count

make = globals()[sys.argv[1]]
calls(make(20))  # fills caches
for length in (40, 400):
    program = make(length)
    print(calls(program), len(program.equations))
"""


@pytest.mark.parametrize("kind", ["chain", "products", "recurrence", "large", "views"])
def test_compile_time_is_linear_in_the_number_of_equations(kind):
    """Counted in function calls, not by the clock, in a process without the checks of typeguard."""
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", COUNTING, kind], capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == 0, done.stderr
    (few, small), (many, large) = (map(int, line.split()) for line in done.stdout.splitlines())
    assert large > 1000
    assert many / few < 1.15 * large / small


def test_the_readme_runs():
    text = (Path(__file__).parent.parent / "README.md").read_text().split("\n## Compiled programs\n")[1]
    names = {"np": np, "xf": xf}
    exec(compile(re.search(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)[1], "README.md", "exec"), names)
    value, *gradients = xf.value_and_grad(names["loss"], argnums=(0, 1, 2))(*names["args"])
    assert names["value"] == pytest.approx(value)
    for have, want in zip(names["gradients"], gradients[0], strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-10)
