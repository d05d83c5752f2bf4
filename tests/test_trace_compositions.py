"""Guards in compositions of transformations, in threads, under observers, and in programs that chance has made."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from typeguard import suppress_type_checks

import xform as xf
from xform.core.errors import HostReadError

X = np.array([1.0, -2.0, 3.0, 4.0])
CALLS = [X, -X, X[::-1].copy(), np.array([-1.0, -2.0, -3.0, 0.5]), np.array([4.0, 3.0, -1.0, 2.0]), X * 0.25]


def branching(x):
    y = x * 2.0
    y = np.sin(y) if y.sum() > 0 else y**2
    n = int(np.argmax(y))
    return (y[: n + 1] * y[0]).sum()


def bound(use, *functions):
    """A function of x that uses functions made once."""
    return lambda x: use(x, *functions)


def device_of(fun):
    return xf.Device("array_api_strict:device1")(fun)


def tangent(x, fun):
    return xf.jvp(fun, (x,), (x,))[1]


def by_sign(s, y):
    return s * 2.0 if y.sum() > 0 else s * 3.0


INNER = xf.trace(branching, max_paths=64)
COMPOSITIONS = {
    "trace": (lambda: xf.trace(branching), branching),
    "grad trace": (lambda: xf.grad(xf.trace(branching)), xf.grad(branching)),
    "trace grad": (lambda: xf.trace(xf.grad(branching)), xf.grad(branching)),
    "trace grad trace": (lambda: xf.trace(xf.grad(xf.trace(branching))), xf.grad(branching)),
    "value and grad": (lambda: xf.trace(xf.value_and_grad(branching)), xf.value_and_grad(branching)),
    "trace of a new trace": (lambda: xf.trace(lambda x: xf.trace(branching)(x) * 2.0), lambda x: branching(x) * 2.0),
    "trace of a trace": (lambda: xf.trace(lambda x: INNER(x) + INNER(-x)), lambda x: branching(x) + branching(-x)),
    "guards of both": (
        lambda: xf.trace(bound(lambda x, f: f(x) if f(x) > 0.5 else f(x * 3.0), xf.trace(branching))),
        lambda x: branching(x) if branching(x) > 0.5 else branching(x * 3.0),
    ),
    "jvp": (lambda: bound(tangent, xf.trace(branching)), bound(tangent, branching)),
    "trace jvp": (lambda: xf.trace(bound(tangent, branching)), bound(tangent, branching)),
    "hessian": (lambda: xf.hessian(xf.trace(branching)), xf.hessian(branching)),
    "trace hessian": (lambda: xf.trace(xf.hessian(branching)), xf.hessian(branching)),
    "grad trace grad trace": (
        lambda: xf.grad(bound(lambda x, f: f(x).sum(), xf.trace(xf.grad(xf.trace(branching))))),
        xf.grad(lambda x: xf.grad(branching)(x).sum()),
    ),
    "checkpoint": (lambda: xf.grad(xf.checkpoint(xf.trace(branching))), xf.grad(branching)),
    "check": (lambda: xf.trace(branching, check=True), branching),
    "check grad": (lambda: xf.trace(xf.grad(branching), check=True), xf.grad(branching)),
    "device": (lambda: bound(lambda x, f: xf.to_numpy(f(x)), device_of(xf.trace(branching))), branching),
    "device within": (lambda: bound(lambda x, f: xf.to_numpy(f(x)), xf.trace(device_of(branching))), branching),
    "profile": (lambda: xf.Profile()(xf.trace(branching)), branching),
    "a batch whose lanes are not read": (
        lambda: bound(lambda x, f: xf.vmap(f, (0, None))(x, x), xf.trace(by_sign)),
        lambda x: by_sign(x, x),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_guards_in_compositions(name):
    make, eager = COMPOSITIONS[name]
    composed = make()
    for x in CALLS * 2 + CALLS[::-1]:
        have, want = composed(x), eager(x)
        for one, other in zip(xf.tree.leaves(have), xf.tree.leaves(want), strict=True):
            assert_allclose(one, other, rtol=1e-12, atol=1e-14)
    assert xf.stack() == ()


def test_an_inner_path_that_is_new_is_a_guard_of_the_outer_trace():
    """The inner function is replayed, broken off, and recorded; the outer record holds this once."""
    inner = xf.trace(lambda flag, x: x * 2.0 if flag else -x)
    sizes = xf.trace(lambda y: y * y.shape[0])
    for order in ((True, False), (False, True)):
        outer = xf.trace(lambda flag, x: inner(flag, x) + 1.0 if flag else inner(flag, x))
        plain = xf.trace(lambda flag, x: inner(flag, x))
        for flag in order * 3:
            want = X * 2.0 if flag else -X
            assert_array_equal(plain(np.array(flag), X), want)
            assert_array_equal(outer(np.array(flag), X), want + flag)
        inner.programs.clear()
    chosen = xf.trace(lambda x: sizes(x[x > 0]) / x[x > 0].shape[0])
    twice = xf.trace(lambda y: (sizes(y), y * y.shape[0]))
    through = xf.trace(lambda x: twice(x[x > 0]))
    for x in CALLS * 2:
        positive = x[x > 0]
        assert_allclose(chosen(x), positive, rtol=1e-14)
        for found in through(x):
            assert_array_equal(found, positive * len(positive))


def test_a_guard_under_batch_raises_as_the_eager_function_does():
    stacked = np.stack([X, -X])
    for function in (xf.trace(branching), branching):
        with pytest.raises(HostReadError, match=r"bool\(\) of the batched value"):
            xf.vmap(function)(stacked)
    known = xf.trace(branching)
    known(X)
    with pytest.raises(HostReadError, match=r"bool\(\) of the batched value"):
        xf.vmap(known)(stacked)
    with pytest.raises(HostReadError, match=r"bool\(\) of the batched value"):
        xf.trace(xf.vmap(branching))(stacked)
    assert_array_equal(known(X), branching(X))


def test_a_number_read_under_a_tape_raises_as_the_eager_function_does():
    def f(x):
        return (x * float(x[0])).sum()

    traced = xf.trace(f)
    traced(X)
    for function in (traced, xf.trace(f), f):
        with pytest.raises(HostReadError, match="would drop its derivative"):
            xf.grad(function)(X)
    stopped = xf.trace(lambda x: (x * float(xf.stop_gradient(x[0]))).sum())
    for x in (X, X * 2.0, X):
        assert_array_equal(xf.grad(stopped)(x), np.full(4, x[0]))
    within = xf.trace(xf.grad(lambda x: (x * float(xf.stop_gradient(x[0]))).sum()))
    for x in (X, X * 2.0, X):
        assert_array_equal(within(x), np.full(4, x[0]))


def test_a_read_of_a_captured_value_is_good_for_this_call_alone():
    def outer(x):
        inner = xf.trace(lambda y: y * 2.0 if x[0] > 0 else y * 3.0)
        return inner(x) + inner(x)

    traced = xf.trace(outer)
    for x in (X, -X, X):
        assert_array_equal(traced(x), outer(x))
        assert_array_equal(xf.grad(lambda x: traced(x).sum())(x), np.full(4, 4.0 if x[0] > 0 else 6.0))


def test_a_traced_function_that_calls_itself():
    @xf.trace
    def factorial(n):
        return n * 0 + 1 if n == 0 else n * factorial(n - 1)

    assert [int(factorial(n)) for n in (3, 5, 0, 3, 1, 5)] == [6, 120, 1, 6, 1, 120]
    assert len(factorial.paths(3)) == 4


class Seen(xf.Observer):
    """Keeps the names of what it saw."""

    def __init__(self):
        self.names = []

    def observe(self, op, inputs, outputs):
        self.names.append(op.name)


def test_observers_inside_see_what_the_eager_function_does():
    def f(x):
        with observer:
            y = np.sin(x)
        if y[0] > 0:
            with observer:
                return y * 2.0
        with observer:
            return np.cos(y) + 1.0

    observer = eager = Seen()
    for x in CALLS * 2:
        f(xf.array(x))
    observer = Seen()
    traced = xf.trace(f)
    for x in CALLS * 2:
        traced(x)
    assert observer.names == eager.names


def test_observers_inside_of_an_inner_trace_see_what_the_eager_function_does():
    def inner(x):
        with observer:
            y = np.sin(x)
        return y * 2.0 if y[0] > 0 else y

    def outer(x, inner):
        y = inner(x)
        wave = np.cos if y[1] > 0 else np.exp
        with observer:
            return wave(y)

    observer = eager = Seen()
    wants = [outer(xf.array(x), inner).data for x in CALLS * 3]
    observer = Seen()
    traced = xf.trace(bound(outer, xf.trace(inner)))
    for x, want in zip(CALLS * 3, wants, strict=True):
        assert_array_equal(traced(x), want)
    assert observer.names == eager.names


def test_a_profile_of_a_guarded_function():
    traced = xf.trace(lambda x: np.sin(x) if x[0] > 0 else np.cos(x))
    for x in (X, -X):
        traced(x)
    with xf.Profile() as profile:
        for x in (X, X, -X):
            traced(xf.array(x))
    assert (profile.calls("Sin"), profile.calls("Cos"), profile.calls("Greater")) == (2, 1, 3)


def test_methods_with_guards():
    class Model:
        def __init__(self, w):
            self.w = w

        @xf.trace
        def __call__(self, x):
            return x * self.w if x[0] > 0 else x + self.w

    one, other = Model(2.0), Model(3.0)
    for x in CALLS * 2:
        assert_array_equal(one(x), x * 2.0 if x[0] > 0 else x + 2.0)
        assert_array_equal(other(x), x * 3.0 if x[0] > 0 else x + 3.0)


def test_threads_record_paths_together():
    def f(x):
        total = x * 0.0
        for i in range(int(x[0])):
            total = total + np.sin(x) * i
        return total + x if x.sum() > 3 else total - x

    traced = xf.trace(f, max_paths=40)
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(30):
            x = rng.integers(0, 5, 3).astype(float)
            if not np.array_equal(traced(x), f(x)):
                wrong.append(x)

    with suppress_type_checks():
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert len(traced.paths(np.ones(3))) <= 10


def test_many_guards_in_a_row():
    def f(x):
        for _ in range(600):
            if x[0] > 1e9:
                return x
            x = x + 1.0
        return x

    with suppress_type_checks():
        traced = xf.trace(f)
        for x in (X, -X, X + 1e9 - 300.0, X):
            assert_array_equal(traced(x), f(x))
        assert len(traced.paths(X)) == 2


# ------------------------------------------------------------------ programs that chance has made


def steps_of(rng, depth):
    """A function of a vector, of a few steps; most of them read it."""
    steps = [MAKERS[rng.choice(sorted(MAKERS))](rng, depth) for _ in range(rng.integers(2, 5))]

    def run(x):
        for step in steps:
            x = step(x)
        return x

    return run


def made_smooth(rng, depth):
    scale, shift = rng.normal(size=2)
    return lambda x: np.sin(x * scale) + shift * x


def made_branch(rng, depth):
    at, one, other = rng.normal(), *[steps_of(rng, depth - 1) if depth else lambda x: x * 1.5 for _ in range(2)]
    return lambda x: one(x) if x.sum() > at else other(x)


def made_count(rng, depth):
    most = int(rng.integers(2, 4))

    def step(x):
        for k in range(int(abs(x[0] * 3.0)) % most):
            x = x * 0.9 + k
        return x

    return step


def made_loop(rng, depth):
    def step(x):
        while np.abs(x).max() > 2.5:
            x = x * 0.5
        return x

    return step


def made_selection(rng, depth):
    at = rng.normal()

    def step(x):
        chosen = x[x > at]
        return x * (chosen.sum() / len(chosen)) if chosen.shape[0] else x - 0.5

    return step


def made_failing(rng, depth):
    at = rng.normal()

    def step(x):
        try:
            return x + np.linalg.cholesky(np.stack([x[:2] + 1.0, x[1:3]]) * 0.1 + at * np.eye(2))[1, 0]
        except np.linalg.LinAlgError:
            return x * 0.7

    return step


def made_rounded(rng, depth):
    return lambda x: x * (1.0 + round(float(xf.stop_gradient(x[1]))) % 3)


def made_indexed(rng, depth):
    table = [float(number) for number in rng.normal(size=4)]
    return lambda x: x + table[np.argmax(x)]


def made_nested(rng, depth):
    return xf.trace(steps_of(rng, depth - 1), max_paths=10_000) if depth else made_smooth(rng, depth)


MAKERS = {name.removeprefix("made_"): made for name, made in list(globals().items()) if name.startswith("made_")}


@pytest.mark.parametrize("seed", range(14))
def test_programs_that_chance_has_made(seed):
    rng = np.random.default_rng(seed)
    steps = steps_of(rng, 2)

    def fun(x):
        return (steps(x) ** 2).sum()

    many = {"max_paths": 10_000}
    slope, pushed = xf.grad(fun), lambda x: xf.jvp(fun, (x,), (x,))[1]
    traced = xf.trace(fun, **many)
    pairs = [
        (traced, fun), (xf.trace(fun, check=True, **many), fun), (xf.trace(traced, **many), fun),
        (xf.trace(slope, **many), slope), (xf.grad(traced), slope), (xf.grad(xf.trace(fun, **many)), slope),
        (xf.trace(slope, check=True, **many), slope), (xf.trace(pushed, **many), pushed),
    ]  # fmt: skip
    inputs = list(rng.normal(size=(6, 4)))
    with suppress_type_checks():
        for x in inputs + inputs[::-1]:
            for found, want in pairs:
                assert_allclose(found(x), want(x), rtol=1e-10, atol=1e-12)
    assert xf.stack() == ()
