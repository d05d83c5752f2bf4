"""The memory of large results: used again once the caller has let go of it, and never while something holds it."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from xform.programs.compiler import compile_program
from xform.programs.workspace import KEPT, LARGE, Recycled

COUNT = LARGE // 8 * 5  # above the size from which operations are joined into groups


def smooth(x):
    return np.exp(-x * x) * x + np.sqrt(np.abs(x) + 1.0)


def compiled(fun=smooth, x=None):
    return compile_program(xf.make_program(fun)(np.ones(COUNT) if x is None else x))


def one(value):
    return np.full(COUNT, float(value))


def test_a_large_result_is_used_again_and_a_small_one_is_not():
    program, x = compiled(), one(1)
    places = {id(program(x)[0]) for _ in range(5)}
    assert len(places) == 1
    assert "recycled()" in program.source
    assert "recycled" not in compile_program(xf.make_program(smooth)(np.ones(LARGE // 8 - 1))).source


def test_products_and_gradients_too():
    a = np.random.default_rng(0).normal(size=(200, 200))
    step = xf.trace(xf.grad(lambda w: xnp.sum(xnp.tanh(w @ a))))
    step(a)  # recorded, not yet compiled
    first = step(a)
    want, place = first.copy(), id(first)
    del first
    again = step(a)
    assert id(again) == place
    np.testing.assert_array_equal(again, want)


HOLDERS = {
    "the array": lambda result: result,
    "a list": lambda result: [result],
    "a view": lambda result: result[3:5],
    "a view of a view": lambda result: result[3:9].reshape(2, 3)[1:],
    "a memoryview": memoryview,
    "another type": lambda result: result.view(np.int64),
    "a value": xf.array,
    "the buffer": lambda result: np.frombuffer(result, np.uint8)[:16],
}


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_what_is_held_is_not_written(hold):
    program = compiled()
    held = hold(program(one(1))[0])
    before = np.array(held.data if isinstance(held, xf.Value) else held, copy=True)
    for value in range(2, 6):
        program(one(value))
    np.testing.assert_array_equal(np.asarray(held.data if isinstance(held, xf.Value) else held), before)


def test_a_result_that_is_the_next_argument():
    program = compiled()
    x, want = one(1), one(1)
    for _ in range(6):
        (x,), want = program(x), smooth(want)
        np.testing.assert_allclose(x, want, rtol=1e-14)


def test_a_tape_that_has_saved_a_result():
    fast = xf.trace(smooth)
    with xf.Grad() as tape:
        v = tape.attach(2.0)
        y = sum((fast(one(k)) * v).sum() for k in range(1, 5))
    want = sum(smooth(one(k)).sum() for k in range(1, 5))
    np.testing.assert_allclose(tape.gradient(y, v), want)


CHANGES = {
    "shape": lambda x: setattr(x, "shape", (-1, 5)),
    "read-only": lambda x: x.setflags(write=False),
    "dtype": lambda x: setattr(x, "dtype", np.int64),
    "resized": lambda x: x.resize(3, refcheck=False),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_array_that_its_owner_has_changed_is_not_used_again(change):
    program, x = compiled(), one(2)
    want = smooth(x)
    result = program(x)[0]
    change(result)
    del result
    for _ in range(3):
        np.testing.assert_allclose(program(x)[0], want, rtol=1e-14)


def test_no_more_is_kept_than_it_says_and_it_goes_with_the_program():
    recycled = Recycled((COUNT,), np.dtype(float))
    given = [recycled() for _ in range(KEPT + 3)]
    gone = [weakref.ref(each) for each in given]
    given.clear()
    gc.collect()
    assert sum(each() is not None for each in gone) == KEPT
    del recycled
    assert not any(each() is not None for each in gone)


def test_threads_get_different_arrays():
    recycled, wrong = Recycled((LARGE,), np.dtype(np.uint8)), []

    def work(mark):
        for _ in range(3000):
            array = recycled()
            array[:8] = mark
            second = recycled()
            second[:8] = mark + 100
            if not (array[:8] == mark).all() or array is second:
                wrong.append(mark)
            del array, second

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(mark,)) for mark in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    finally:
        sys.setswitchinterval(switch)
    assert not wrong


def test_an_error_on_the_way_leaves_nothing_behind():
    program = compile_program(xf.make_program(lambda x, i: (smooth(x), xnp.take(np.ones(3), i)))(one(1), np.array([0])))
    with pytest.raises(IndexError):
        program(one(1), np.array([7]))
    np.testing.assert_allclose(program(one(2), np.array([1]))[0], smooth(one(2)), rtol=1e-14)


# ------------------------------------------------------------------ the arrays of a block


def test_results_serve_as_scratch_before_they_are_written():
    """Of three results of one group, written at different places, none disturbs another."""

    def several(x, y):
        a = np.tanh(x) * y
        b = np.exp(-a * a) + np.sqrt(np.abs(x) + y * y)
        c = np.sin(b) * a - np.cos(x * y)
        return a, b * c, c / (1.0 + b * b) - a

    x, y = np.random.default_rng(0).normal(size=(2, COUNT))
    program = compile_program(xf.make_program(several)(x, y))
    other = x[::-1].copy(), y * 0.5
    for have, want in zip(program(*other), several(*other), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-13)
    body = program.source[program.source.index("def group") : program.source.index("return ()")]
    first = body.splitlines()[1]
    assert "o0)" in first or "o1)" in first or "o2)" in first, first


def test_few_arrays_are_alive_at_once():
    """What is needed last is computed last: 2 arrays beside the result, where the order of the trace takes 5."""
    loss = xf.grad(lambda x: xnp.sum(xnp.tanh(x) * x + xnp.exp(-x * x) - xnp.sqrt(xnp.abs(x) + 1.0)))
    source = compiled(loss).source
    assert source.splitlines()[0].count(" b") == 2, source
