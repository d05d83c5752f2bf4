"""Whose memory the results of compiled programs are: the caller's, as from a run of the program."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from xform.programs.compiler import compile_program
from xform.programs.passes import LEVELS

levels = pytest.mark.parametrize("level", LEVELS)


def first_of(out):
    return xf.tree.leaves(out)[0]


# each copies what it is given, and passes leave the copy out
COPIED = {
    "split": lambda x: xnp.split(x * 1.0, 2),
    "unstack": lambda x: xnp.unstack(x * 1.0),
    "split of a copy": lambda x: xnp.split(xnp.copy(x), 2),
    "split of a stack": lambda x: xnp.split(xnp.stack(xnp.unstack(x)), 2),
    "real": lambda x: xnp.real(x * 1.0),
    "real of a cast": lambda x: xnp.real(xnp.astype(x, np.float64)),
    "cond": lambda x: xf.cond(xnp.sum(x) > 0.0, lambda y: y, lambda y: -y, x * 1.0),
    "cond of two": lambda x: xf.cond(xnp.sum(x) < 0, lambda a, b: a, lambda a, b: b, x, xnp.stack(xnp.unstack(x))),
    "no rounds": lambda x: xf.fori_loop(0, 0, lambda i, y: y * 2.0, x * 1.0),
    "no rounds of two": lambda x: xf.fori_loop(0, 0, lambda i, c: (c[1], c[0]), (xnp.sin(x), x * 1.0))[1],
}


@levels
@pytest.mark.parametrize("name", COPIED)
def test_a_result_is_no_argument_where_the_function_copies(name, level):
    traced, given = xf.trace(COPIED[name], level=level), np.ones((2, 2))
    traced(given)
    result = first_of(traced(given))
    kept = result.copy()
    given += 1.0
    np.testing.assert_array_equal(result, kept)
    first_of(traced(given))[...] = -7.0
    np.testing.assert_array_equal(given, 2.0)


# both results are computed once
TWICE = {
    "a power": lambda x: (y := xnp.sin(x), y**1),
    "loops": lambda x: tuple([xf.fori_loop(0, 3, lambda i, y: xnp.sin(y), x) for _ in range(2)]),
    "cumsum": lambda x: (xnp.cumsum(x), xnp.cumsum(x)),
    "sort": lambda x: (xnp.sort(x), xnp.sort(x)),
    "pad": lambda x: (xnp.pad(x, 1), xnp.pad(x, 1)),
    "tril": lambda x: (xnp.tril(x[None] * x), xnp.tril(x[None] * x)),
    "a place": lambda x: (xnp.copy(x).at[0].set(2.0), xnp.copy(x).at[0].set(2.0)),
    "a part": lambda x: (y := xnp.sin(x), xnp.real(y * 1.0)),
}


@levels
@pytest.mark.parametrize("name", TWICE)
def test_two_results_are_two_arrays_where_the_function_makes_two(name, level):
    traced, x = xf.trace(TWICE[name], level=level), np.arange(3.0)
    traced(x)
    first, second = traced(x)
    assert not np.shares_memory(first, second)
    kept = second.copy()
    first[...] = -7.0
    np.testing.assert_array_equal(second, kept)


@levels
def test_results_that_share_in_the_function_may_share(level):
    traced = xf.trace(lambda x: (y := xnp.sin(x), y[1:], y.reshape(-1), x), level=level)
    x = np.arange(4.0)
    for _ in range(2):
        whole, part, flat, given = traced(x)
        assert np.shares_memory(whole, part)
        assert given is x
        np.testing.assert_array_equal(flat, whole)


@levels
def test_results_made_of_constants_may_be_written_to(level):
    halves = xf.trace(lambda x: xnp.split(xnp.zeros_like(x), 2), level=level)
    branch = xf.trace(lambda x: xf.cond(xnp.sum(x) > 0.0, lambda y: y, lambda y: y + 1, xnp.zeros_like(x)), level=level)
    for traced in (halves, branch):
        for _ in range(3):
            result = first_of(traced(np.ones((2, 2))))
            np.testing.assert_array_equal(result, 0.0)
            result[...] = 1.0


NUMBERS = {
    "where": lambda x: xnp.where(x > 0.0, x, -x),
    "where of two": lambda x: xnp.where(x > 0.0, -x, x) * -1.0,
    "times 1": lambda x: x * 1.0,
    "to the first": lambda x: x**1,
    "by 1": lambda x: x / 1.0,
    "twice negative": lambda x: xnp.negative(-x),
}


@levels
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_no_arrays_that_were_given(name, level):
    fun = NUMBERS[name]
    traced, given = xf.trace(fun, level=level), np.array(3.0)
    for _ in range(2):
        result = traced(given)
        given[...] = 9.0
        assert result == 3.0
        assert isinstance(result, type(fun(given))) or name.startswith("where")  # which gives 0-d arrays itself
        given[...] = 3.0


def test_long_chains_of_operators_that_may_return_an_operand():
    """Whose memory a result may be is found in linear time, and without recursion."""

    def updated(x):
        for n in range(3000):
            x = x.at[n % 5].set(n * 0.5)
        return x

    def chosen(x):
        for n in range(40):  # each may return the one before by two ways
            x = xf.cond(xnp.sum(x) > 0, lambda a, b: a, lambda a, b: b, x, x[::-1] if n % 2 else x)
        return x

    for fun in (updated, chosen):
        program, x = xf.make_program(fun)(np.arange(5.0)), np.arange(5.0)
        (found,) = compile_program(program)(x)
        np.testing.assert_array_equal(found, program.run([x])[0])
        np.testing.assert_array_equal(x, np.arange(5.0))


def test_a_result_is_copied_before_its_memory_is_given_to_another_call():
    compiled = compile_program(xf.make_program(lambda x: xnp.stack([xnp.sin(x), x * 2.0]))(np.ones(2)))
    space = compiled.function.__globals__
    copied = space["copied"]

    def interrupted(x):  # what another thread may do between any two lines
        space["copied"] = copied
        compiled(np.full(2, 5.0))
        return copied(x)

    space["copied"] = interrupted
    np.testing.assert_allclose(compiled(np.ones(2))[0], [np.sin([1.0, 1.0]), [2.0, 2.0]])


def test_results_in_several_threads():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    traced, wrong = xf.trace(lambda x: xnp.stack([xnp.sin(x), x * 2.0])), []
    traced(np.ones(500)), traced(np.ones(500))

    def work(k):
        x = np.full(500, float(k))
        want = np.stack([np.sin(x), x * 2.0])
        wrong.extend(k for _ in range(1500) if not np.array_equal(traced(x), want))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []
