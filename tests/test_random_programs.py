"""Programs made at random compute the same after all passes."""

from __future__ import annotations

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
]  # fmt: skip
BINARY = [
    xnp.add, xnp.subtract, xnp.multiply, xnp.divide, xnp.maximum,
    lambda a, b: xnp.where(a > b, a, b),
    lambda a, b: xnp.where(b > 0.0, a, 0.0),
]  # fmt: skip
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
                if np.ndim(a):
                    values.append(UNARY[which](a))
            else:
                b = values[second % len(values)]
                try:
                    np.broadcast_shapes(np.shape(a), np.shape(b))
                except ValueError:
                    continue
                values.append(BINARY[which](a, b))
        return [values[(len(values) - 1 - out) % len(values)] for out in outs]

    return fun


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
    with np.errstate(all="ignore"):
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
    with np.errstate(all="ignore"):
        program = xf.make_program(built(recipe))(*traced)
        compiled = compile_program(program, level=level)
        args = [np.asarray(rng.uniform(0.3, 1.7, np.shape(each)), dtype) for each in traced]
        for have, want in zip(compiled(*args), program.run(args), strict=True):
            assert np.shape(have) == np.shape(want)
            assert np.asarray(have).dtype == np.asarray(want).dtype
            finite = np.isfinite(want) & (np.abs(want) < 1e100)
            scale = np.max(np.abs(np.asarray(want)[finite]), initial=1.0)
            np.testing.assert_allclose(np.asarray(have)[finite], np.asarray(want)[finite], rtol=1e-9, atol=1e-9 * scale)
