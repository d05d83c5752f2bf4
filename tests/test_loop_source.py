"""Generated source of loops against the same loops run round by round: memory, and what is returned."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from tests.loop_cases import loops_of
from xform.loops import LoopBuilder, fori_loop, scan, while_loop
from xform.programs import loop as loop_module
from xform.programs.loop_rounds import run_rounds
from xform.programs.loop_stores import resized

pytestmark = pytest.mark.sweep

X = np.array([[0.3, 0.8], [1.4, -0.5]])


def both(fun, *args):
    """The outputs of the only loop of a function by generated source, and round by round."""
    program = xf.make_program(fun)(*args)
    (equation,) = [each for each in program.equations if isinstance(each.op, loop_module.Loop)]
    known = dict(zip([v.index for v in program.inputs], xf.tree.leaves(args), strict=True))
    operands = [known[v.index] if hasattr(v, "index") and v.index in known else v.value for v in equation.inputs]
    assert equation.op.written is not None
    return equation.op.evaluate(np, *operands), run_rounds(equation.op, np, operands)


def alike(found, wanted):
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13)
        assert np.asarray(a).dtype == np.asarray(b).dtype


CARRIES = {
    "swapped": lambda a, b: (b, a),
    "rotated with a new one": lambda a, b: (b, a + b),
    "a view of the other": lambda a, b: (b.T, a * 0.9),
    "a view of a new one": lambda a, b: ((a * 0.9).T, b + a),
    "one value for both": lambda a, b: (a * 0.5 + b,) * 2,
    "a part of a new one": lambda a, b: (a @ b * 0.4, (a @ b * 0.4)[::-1]),
    "each from both": lambda a, b: (a * b * 0.5, (a + b) * 0.4),
    "a constant": lambda a, b: (xnp.asarray(X), a * 0.5),
    "a part of itself": lambda a, b: (a.reshape(-1)[::-1].reshape(2, 2), b * 0.5),
    "broadcast": lambda a, b: (xnp.broadcast_to(a[0], (2, 2)), b + a),
}
carries = pytest.mark.parametrize("step", CARRIES.values(), ids=CARRIES)


@carries
@pytest.mark.parametrize("rounds", [0, 1, 2, 5])
def test_carries_that_share_memory(step, rounds):
    def f(a, b):
        return fori_loop(0, rounds, lambda i, c: step(*c), (a, b))

    a, b = X.copy(), X[::-1].copy()
    found = f(a, b)
    want = (a, b)
    for _ in range(rounds):
        want = step(*want)
    alike(found, want)
    np.testing.assert_array_equal(a, X)
    np.testing.assert_array_equal(b, X[::-1])


@carries
def test_histories_and_sums_of_carries_that_share_memory(step):
    def f(a, b):
        with LoopBuilder() as loop:
            x, y = loop.input(a, assign=True), loop.input(b, assign=True)
            new = step(x, y)
            loop.assign(x, new[0])
            loop.assign(y, new[1])
            loop.condition(loop.counter < 21)
            kinds = [loop.output(x, kind) for kind in ("last", "all", "sum")]
            return [*kinds, loop.output(y, "all"), loop.output(new[1] * 2.0, "all"), loop.output(new[0], "sum")]

    found, wanted = both(f, X, X[::-1])
    alike(found, wanted)
    first = xf.grad(lambda a, b: sum((out * out).sum() for out in f(a, b)), (0, 1))(X * 0.3, X[::-1] * 0.3)

    def plain(a, b):
        rows = [(a, b)]
        for _ in range(21):
            rows.append(step(*rows[-1]))
        stack = [np.stack([row[k] for row in part]) for part, k in [(rows[:-1], 0), (rows[:-1], 1), (rows[1:], 1)]]
        last, news = rows[-1][0], sum(row[0] for row in rows[1:])
        return [last, stack[0], stack[0].sum(0), stack[1], stack[2] * 2.0, news]

    wanted = xf.grad(lambda a, b: sum((out * out).sum() for out in plain(a, b)), (0, 1))(X * 0.3, X[::-1] * 0.3)
    for a, b in zip(first, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


def test_results_belong_to_the_caller():
    def f(x):
        return scan(lambda c, x: (c * x, c + x), np.ones(2), x)

    x = np.array([[1.0, 2.0], [3.0, 4.0]])
    last, rows = f(x)
    kept = last.copy(), rows.copy()
    again = f(x * 2.0)
    np.testing.assert_array_equal(last, kept[0])
    np.testing.assert_array_equal(rows, kept[1])
    again[0][...] = 0.0
    again[1][...] = 0.0
    alike(f(x), kept)
    value, pullback = xf.vjp(lambda x: f(x)[0], x)
    first = pullback(np.ones(2))[0]
    second = pullback(np.ones(2))[0]
    assert not np.shares_memory(first, second)
    value[...] = 0.0
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("test", ["before", "after"])
@pytest.mark.parametrize("rounds", [1, 15, 16, 17, 20, 21, 100])
def test_rows_whose_number_is_not_known(test, rounds):
    def f(x):
        with LoopBuilder(test=test) as loop:
            y, n = loop.input(x, assign=True), loop.input(0, assign=True)
            loop.assign(y, np.sin(y) + 0.1)
            loop.assign(n, n + 1)
            loop.condition(n < rounds - (test == "after"))
            whole = loop.output(y, "all"), loop.output(n, "all")
            return *whole, loop.output(y, "last"), loop.output(loop.counter, "last")

    found, wanted = both(f, X)
    alike(found, wanted)
    assert found[0].shape == (rounds, 2, 2)
    assert int(f(X)[3]) == rounds - 1


def test_room_grows_in_place_and_by_copies():
    box = [np.arange(6.0).reshape(3, 2)[:].copy()]
    grown = resized(box, 5)
    assert not box
    assert grown.shape == (5, 2)
    np.testing.assert_array_equal(grown[:3], np.arange(6.0).reshape(3, 2))
    watched = np.arange(4.0)
    view = watched[1:]
    other = resized([watched], 6)
    assert other is not watched
    np.testing.assert_array_equal(other[:4], np.arange(4.0))
    np.testing.assert_array_equal(view, [1.0, 2.0, 3.0])


# ------------------------------------------------------------------ sums of products


@pytest.mark.parametrize("rounds", [0, 1, 3, 63, 64, 65, 200])
@pytest.mark.parametrize("rank", [1, 2])
def test_sums_of_products(rounds, rank):
    rng = np.random.default_rng(0)
    shape = (4,) if rank == 1 else (2, 4)
    xs, w = rng.normal(size=(rounds, *shape[:-1], 3)), rng.normal(size=(3, 4))
    u, b = rng.normal(size=(4, 4)) * 0.3, X[0, 0]

    def f(w, u, b):
        h = scan(lambda h, x: (np.tanh(x @ w + h @ u + b), None), np.zeros(shape), xs)[0]
        return (h * h).sum()

    def plain(w, u, b):
        h = np.zeros(shape)
        for x in xs:
            h = np.tanh(x @ w + h @ u + b)
        return (h * h).sum()

    bias = np.full(4, b)
    found, wanted = xf.grad(f, (0, 1, 2))(w, u, bias), xf.grad(plain, (0, 1, 2))(w, u, bias)
    for a, c in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, c, rtol=1e-10, atol=1e-12)
    program = xf.make_program(xf.grad(f, (0, 1, 2)))(w, u, bias)
    backward = loops_of(program)[-1]
    assert "add_products" in backward.written.source
    assert "add_rows" in backward.written.source


def test_a_term_that_is_there_twice_counts_twice():
    def f(w):
        def body(i, h):
            y = np.tanh(h @ w)
            return y + y @ w * 0.1

        return fori_loop(0, 9, body, X).sum()

    def plain(w):
        h = X
        for _ in range(9):
            y = np.tanh(h @ w)
            h = y + y @ w * 0.1
        return h.sum()

    np.testing.assert_allclose(xf.grad(f)(X * 0.5), xf.grad(plain)(X * 0.5), rtol=1e-12)
    np.testing.assert_allclose(xf.hessian(f)(X * 0.5), xf.hessian(plain)(X * 0.5), rtol=1e-11)


# ------------------------------------------------------------------ other kinds of bodies


def test_large_arrays_run_in_blocks():
    x = np.linspace(0.0, 1.0, 200_000)

    def f(x):
        return fori_loop(0, 3, lambda i, x: np.sin(x) * np.cos(x) + 0.1 * x - np.exp(-x), x)

    want = x
    for _ in range(3):
        want = np.sin(want) * np.cos(want) + 0.1 * want - np.exp(-want)
    np.testing.assert_allclose(f(x), want, rtol=1e-13)
    np.testing.assert_allclose(
        xf.grad(lambda x: f(x).sum())(x), xf.grad(lambda x: f(f_once(f_once(x)) * 0.0 + x).sum())(x), rtol=1e-12
    )


def f_once(x):
    return np.sin(x)


def test_numbers_integers_booleans_and_empty_arrays():
    def f(x, n, flag, nothing):
        def body(c):
            x, n, flag, nothing = c
            return x * 1.5, n + 2, xnp.logical_not(flag), nothing * 2.0

        return while_loop(lambda c: c[1] < 9, body, (x, n, flag, nothing))

    x, n, flag, nothing = f(2.0, np.int32(0), np.bool_(True), np.zeros((0, 3)))
    assert (float(x), int(n), bool(flag)) == (2.0 * 1.5**5, 10, False)
    assert (x.dtype, n.dtype, flag.dtype, nothing.shape) == (np.float64, np.int32, np.bool_, (0, 3))
    assert isinstance(x, np.float64)


def test_reductions_sorts_and_indices_in_a_body():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(5, 4))

    def step(x, i):
        order = xnp.argsort(x[0])
        x = xnp.take(x, order, axis=1) * 0.9 + xnp.cumsum(x, axis=0) * 0.01
        return xf.array(x).at[i % 5].set(x.max(axis=0) - x.mean(axis=0))

    want = x
    for i in range(7):
        want = np.asarray(step(want, i))
    np.testing.assert_allclose(fori_loop(0, 7, lambda i, x: step(x, i), x), want, rtol=1e-12)

    def unrolled(x):
        for i in range(7):
            x = step(x, i)
        return (x * x).sum()

    found = xf.grad(lambda x: (fori_loop(0, 7, lambda i, x: step(x, i), x) ** 2).sum())(x)
    np.testing.assert_allclose(found, xf.grad(unrolled)(x), rtol=1e-11)


def test_errors_tell_operation_and_line():
    def f(x):
        return fori_loop(0, 9, lambda i, y: y + xnp.take(x, i), 0.0)

    with pytest.raises(IndexError) as caught:
        f(np.ones(3))
    assert "GetItem" in str(caught.value)
    assert any("test_loop_source.py" in note for note in [str(caught.value), *getattr(caught.value, "__notes__", [])])
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError) as caught:
        fori_loop(0, 3, lambda i, y: xnp.log(y) - y, np.zeros(2))
    assert any("Log" in note and "test_loop_source.py" in note for note in caught.value.__notes__)
    np.testing.assert_allclose(f(np.ones(9)), 9.0)  # the workspace is as before


# ------------------------------------------------------------------ memory


def test_memory_a_round():
    c = np.linspace(0.5, 1.5, 100)

    def f(x):
        return fori_loop(0, 2000, lambda i, x: x - 0.1 * (x - c * np.sin(x)), x).sum()

    gradient = xf.grad(f)
    gradient(c)
    tracemalloc.start()
    try:
        gradient(c)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 800 * 2000 <= peak <= 1200 * 2000


def test_memory_of_a_loop_whose_length_is_not_known():
    def f(x):
        return while_loop(lambda c: c[0] < 3000, lambda c: (c[0] + 1, np.sin(c[1]) + 0.1), (0, x))[1].sum()

    gradient = xf.grad(f)
    gradient(np.ones(100))
    tracemalloc.start()
    try:
        gradient(np.ones(100))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= 1.35 * 800 * 3000  # a quarter more than the rows
