"""Programs made at random compute the same after all passes."""

from __future__ import annotations

import contextlib
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from xform.programs.compiler import compile_program
from xform.programs.passes import LEVELS

pytestmark = pytest.mark.sweep

UNARY = [
    xnp.sin, xnp.tanh, xnp.negative, xnp.abs, xnp.square, xnp.exp, xnp.ones_like, np.mean,
    lambda a: a.T,
    lambda a: a * 1.0,
    lambda a: -a,
    lambda a: a / 2.0,
    lambda a: a + 0.0,
    lambda a: a - 0.0,
    lambda a: a[..., None],
    lambda a: a.reshape(-1),
    lambda a: np.sum(a, axis=0),
    lambda a: xnp.unstack(a)[0],
    lambda a: xnp.unstack(a)[-1],
    lambda a: xnp.stack(xnp.unstack(a)[::-1]),
    lambda a: xnp.flip(a, 0),
]  # fmt: skip
BINARY = [
    xnp.add, xnp.subtract, xnp.multiply, xnp.divide, xnp.maximum,
    lambda a, b: xnp.where(a > b, a, b),
    lambda a, b: xnp.where(b > 0.0, a, 0.0),
    lambda a, b: xnp.stack(xnp.broadcast_arrays(a, b)),
    lambda a, b: xnp.stack([xnp.sin(a) + b, a * b, a - b]),
    lambda a, b: a + b + xnp.exp(a) + xnp.tanh(b) + a * b,  # longer sums are stacked
]  # fmt: skip
#: the last of them may make arrays larger and larger
LARGEST = 200
SHAPES = [(), (3,), (2, 3), (2, 1)]
NUMBERS = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, np.inf, -np.inf, np.nan, 1e300])


@st.composite
def recipes(draw):
    """Steps, each an operation on earlier values by number."""
    steps = []
    for _ in range(draw(st.integers(1, 14))):
        two = draw(st.booleans())
        which = draw(st.integers(0, len(BINARY if two else UNARY) - 1))
        steps.append((which, draw(st.integers(0, 99)), draw(st.integers(0, 99)) if two else None))
    return steps, draw(st.lists(st.integers(0, 99), min_size=1, max_size=3))


def built(recipe):
    """The function of a recipe; operations that do not fit their operands are passed over."""
    steps, outs = recipe

    def fun(*args):
        values = [*args, 2.0]
        for which, first, second in steps:
            a = values[first % len(values)]
            if second is None:
                if np.ndim(a) and np.size(a) <= LARGEST:
                    values.append(UNARY[which](a))
            else:
                b = values[second % len(values)]
                try:
                    if math.prod(np.broadcast_shapes(np.shape(a), np.shape(b))) > LARGEST:
                        continue
                except ValueError:
                    continue
                values.append(BINARY[which](a, b))
        return [values[(len(values) - 1 - out) % len(values)] for out in outs]

    return fun


@contextlib.contextmanager
def poisoned():
    """Fill the memory of workspaces and results: what is read before it is written is seen."""
    make = np.empty

    def empty(shape, dtype=float):
        out = make(shape, dtype)
        if out.dtype.kind in "ufc":
            out.fill(0x7B)  # bytes of workspaces: as a float64 7.9e288, as a float32 1.3e36
        return out

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "empty", empty)
        yield


def arguments(draw, dtype):
    found = []
    for shape in SHAPES:
        count = math.prod(shape)
        found.append(np.array(draw(st.lists(NUMBERS, min_size=count, max_size=count))).astype(dtype).reshape(shape))
    return found


@hypothesis.given(recipe=recipes(), data=st.data(), dtype=st.sampled_from(["float64", "float32"]))
@hypothesis.settings(max_examples=100, deadline=None)
def test_random_programs_at_level_0_are_exact(recipe, data, dtype):
    """NaN, infinities and the sign of zero included, on numbers other than those that were traced with."""
    traced = [np.ones(shape, dtype) for shape in SHAPES]
    with np.errstate(all="ignore"), poisoned():
        program = xf.make_program(built(recipe))(*traced)
        compiled = compile_program(program, level=0)
        for _ in range(2):
            args = arguments(data.draw, dtype)
            for have, want in zip(compiled(*args), program.run(args), strict=True):
                assert np.shape(have) == np.shape(want)
                assert np.asarray(have).dtype == np.asarray(want).dtype
                np.testing.assert_array_equal(have, want)
                known = ~np.isnan(want)
                np.testing.assert_array_equal(np.signbit(have)[known], np.signbit(want)[known])


@hypothesis.given(
    recipe=recipes(),
    seed=st.integers(0, 2**31),
    level=st.sampled_from(LEVELS),
    dtype=st.sampled_from(["float64", "complex128"]),
)
@hypothesis.settings(max_examples=100, deadline=None)
def test_random_programs_agree_where_values_are_finite(recipe, seed, level, dtype):
    rng = np.random.default_rng(seed)
    if dtype == "complex128":
        recipe = ([step for step in recipe[0] if not (step[2] is not None and step[0] >= 4)], recipe[1])
    traced = [np.ones(shape, dtype) for shape in SHAPES]
    with np.errstate(all="ignore"), poisoned():
        program = xf.make_program(built(recipe))(*traced)
        compiled = compile_program(program, level=level)
        args = [np.asarray(rng.uniform(0.3, 1.7, np.shape(each)), dtype) for each in traced]
        for have, want in zip(compiled(*args), program.run(args), strict=True):
            assert np.shape(have) == np.shape(want)
            assert np.asarray(have).dtype == np.asarray(want).dtype
            finite = np.isfinite(want) & (np.abs(want) < 1e100)
            scale = np.max(np.abs(np.asarray(want)[finite]), initial=1.0)
            np.testing.assert_allclose(np.asarray(have)[finite], np.asarray(want)[finite], rtol=1e-9, atol=1e-9 * scale)


def stacked_program(rng):
    """A function of random operations that take arrays apart and stack them again, of shapes `(..., 3)`."""
    steps = [(str(rng.choice(STEPS)), rng.integers(0, 1000, 4)) for _ in range(rng.integers(3, 12))]

    def fun(x):
        values = [x]
        for step, numbers in steps:
            a = values[-1 - numbers[0] % min(4, len(values))]
            alike = [each for each in values if each.shape == a.shape]
            others = [alike[number % len(alike)] for number in numbers[1:]]
            if step == "unstack" and a.ndim > 1:
                values += xnp.unstack(a)[: 1 + numbers[1] % 3]
            elif step == "stack" and a.size < 50:
                values.append(xnp.stack([a, *others[: numbers[2] % 3], xnp.cos(a)]))
            elif step == "sum":
                values.append(a + xnp.sin(others[0]) + xnp.exp(-others[1] * others[1]) + xnp.tanh(others[2]) + a * 0.5)
            elif step == "flip":
                values.append(xnp.flip(a, 0))
            elif step == "row":
                values.append(a[numbers[1] % a.shape[0]] if a.ndim > 1 else a * 2.0)
            elif step == "rows":
                values.append(xnp.stack([xnp.sin(a), others[0] * 2.0, others[1] * 3.0]))
            else:
                values.append(xnp.tanh(a) * others[0])
        return sum((xnp.sum(xnp.sin(value)) for value in values[1:]), 0.0), values[-1]

    return fun


STEPS = ("unstack", "unstack", "stack", "stack", "rows", "sum", "sum", "flip", "row", "tanh")


@pytest.mark.parametrize("seed", range(8))
def test_random_programs_of_stacks_read_what_was_written(seed):
    """Rows of stacks are computed where they lie: a row that is a stack itself has no place of its own."""
    rng = np.random.default_rng(seed)
    for _ in range(4):
        fun, x, other = stacked_program(rng), rng.normal(size=(2, 3)), rng.normal(size=(2, 3))
        for each in (fun, xf.grad(lambda x, fun=fun: fun(x)[0])):
            program = xf.make_program(each)(x)
            want = program.run([other])
            for level in LEVELS:
                with poisoned():
                    found = compile_program(program, level=level)(other)
                for have, right in zip(xf.tree.leaves(found), want, strict=True):
                    np.testing.assert_allclose(have, right, rtol=1e-9, atol=1e-9)
