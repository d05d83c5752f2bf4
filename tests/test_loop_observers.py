"""Observers, profiles and the NaN guard see each operation inside of a loop, with its round."""

from __future__ import annotations

import threading
from collections import Counter

import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from tests.loop_layer_cases import (
    HalfSin,
    Seen,
    W,
    X,
    fori,
    nested,
    pairs,
    scan_back,
    step,
    total,
    while_,
    wraps,
)
from xform.core.errors import NanError
from xform.core.place import place

pytestmark = pytest.mark.sweep

# ------------------------------------------------------------------ observers


@pairs
@wraps
def test_an_observer_sees_each_operation_with_its_data(loop, unrolled, wrap):
    f = wrap(loop)
    f(X, W)
    with Seen() as plain:
        unrolled(xf.array(X), W)
    for _ in range(2):
        with Seen() as seen:
            f(xf.array(X), W)
        want = [each[4] for each in plain.seen if each[0] == "Sin"]
        got = [each[4] for each in seen.seen if each[0] == "Sin"]
        assert len(got) == len(want)
        np.testing.assert_allclose(got, want)
        assert xf.current().iteration is None


@pytest.mark.parametrize("loop", [while_, fori])
@wraps
def test_rounds_count_from_0_forward_and_backward(loop, wrap):
    f = wrap(total(loop))
    for _ in range(2):
        with Seen() as seen:
            xf.grad(f)(xf.array(X), W)
        assert seen.rounds("Sin") == [0, 1, 2, 3]
        assert seen.rounds("Cos", "backward") == [3, 2, 1, 0]
        assert seen.rounds("Sin", "backward") == []
        assert {each[2] for each in seen.seen} == {seen.seen[0][2]}
        assert isinstance(seen.seen[0][2], str)


def test_a_loop_that_counts_down_tells_its_counter():
    with Seen() as seen:
        xf.grad(total(scan_back))(xf.array(X), W)
    assert seen.rounds("Sin") == [3, 2, 1, 0]
    assert seen.rounds("Cos", "backward") == [0, 1, 2, 3]


def test_the_loop_inside_of_a_loop_tells_its_own_rounds():
    with Seen() as seen:
        xf.grad(total(nested))(xf.array(X), W)
    assert seen.rounds("Sin") == [0, 0, 1, 0, 1, 2]
    assert seen.rounds("Cos", "backward") == [2, 1, 0, 1, 0, 0]


@pairs
@wraps
def test_above_a_tape_an_observer_sees_the_forward_operations_alone(loop, unrolled, wrap):
    seen, plain = Seen(), Seen()
    got = xf.grad(seen(wrap(total(loop))))(X, W)
    want = xf.grad(plain(total(unrolled)))(X, W)
    np.testing.assert_allclose(got, want)
    assert Counter(each[:2] for each in seen.seen) == Counter(each[:2] for each in plain.seen)
    assert all(phase == "forward" for _, phase, *_ in seen.seen)


@pairs
def test_observers_above_and_below_a_batch(loop, unrolled):
    xs = np.stack([X, X + 0.05, X - 0.1])
    above, below = Seen(), Seen()
    with below:
        got = xf.vmap(above(loop), in_axes=(0, None))(xf.array(xs), W)
    want = [unrolled(x, W) for x in xs]
    np.testing.assert_allclose(xf.to_numpy(got), want)
    assert above.seen
    assert below.seen
    assert {each[4].shape for each in below.seen} == {xs.shape}


def test_an_observer_inside_of_a_traced_loop_works_on_replay():
    seen = Seen()
    f = xf.trace(seen(fori))
    f(X, W)
    assert seen.rounds("Sin") == [0, 1, 2, 3]
    f(X, W)
    assert seen.rounds("Sin") == [0, 1, 2, 3] * 2
    xf.grad(lambda x: f(x, W).sum())(X)
    assert seen.rounds("Sin") == [0, 1, 2, 3] * 3
    assert [type(e.op).__name__ for e in f.program(X, W).equations] == ["Loop", "Observe"]


def test_two_observers_see_the_same():
    with Seen() as below, Seen() as above:
        fori(xf.array(X), W)
    assert above.rounds("Sin") == below.rounds("Sin") == [0, 1, 2, 3]


def test_observers_see_rounds_that_are_run_again():
    def f(x):
        return xnp.sum(xf.fori_loop(0, 7, lambda i, y: step(y, W), x, checkpoint=3))

    with Seen() as seen:
        xf.grad(f)(xf.array(X))
    assert seen.rounds("Sin") == list(range(7))
    assert seen.rounds("Cos", "backward") == list(range(6, -1, -1))
    assert sorted(seen.rounds("Sin", "backward")) == [0, 1, 3, 4]


def test_one_observer_in_several_threads():
    with Seen() as seen:
        work = xf.carry(lambda: fori(xf.array(X), W))
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert Counter(seen.rounds("Sin")) == dict.fromkeys(range(4), 4)


# ------------------------------------------------------------------ profile, NaN guard, explain


@wraps
def test_a_profile_attributes_by_loop_and_round(wrap):
    f = wrap(total(while_))
    f(X, W)
    with xf.Profile() as profile:
        xf.grad(f)(xf.array(X), W)
    assert profile.calls("Sin") == 4
    assert [profile.calls("Sin", iteration=n) for n in range(5)] == [1, 1, 1, 1, 0]
    assert [profile.calls("Cos", iteration=n, phase="backward") for n in range(5)] == [1, 1, 1, 1, 0]
    (name,) = {row.loop for row in profile.rows} - {None}
    assert profile.calls("Sin", loop=name) == 4
    assert profile.calls("Sin", loop="another") == 0
    by_loop = profile.table(by="loop").splitlines()
    assert by_loop[0].split() == [
        "loop",
        "phase",
        "calls",
        "self",
        "ms",
        "self",
        "%",
        "total",
        "ms",
        "MB",
        "operations",
    ]
    assert sorted(line.split()[:2] for line in by_loop[1:3]) == [[name, "backward"], [name, "forward"]]
    rows = [line.split() for line in profile.table(by="round", limit=None, sort="name").splitlines()[1:-1]]
    found = {(row[1], row[2]): int(row[3]) for row in rows}
    assert {key for key in found if key[1] == "backward"} == {(f"[{n}]", "backward") for n in range(4)}
    assert found["[0]", "forward"] == found["[1]", "forward"] == found["[2]", "forward"]


def test_the_time_of_operations_in_a_loop_is_their_own():
    big = np.full((200, 200), 0.01)

    def f(x):
        return xf.fori_loop(0, 20, lambda i, y: xnp.tanh(y @ big), x)

    with xf.Profile() as profile:
        f(xf.array(big))
    own = {row.name: row.own for row in profile.rows}
    loop = next(row for row in profile.rows if row.name.startswith("Loop"))
    assert own["Matmul"] > loop.own
    assert sum(row.own for row in profile.rows) <= 1.05 * loop.total
    times = [event for event in profile.events if event.name == "Matmul"]
    assert [event.iteration for event in times] == list(range(20))


def test_a_profile_that_is_full_still_counts():
    with xf.Profile(max_events=5) as profile:
        fori(xf.array(X), W)
    assert profile.calls("Sin") == 4
    assert len(profile.events) == 5


def test_a_nan_guard_tells_the_round_forward():
    def f(x):
        return xf.fori_loop(0, 60, lambda i, y: y + xnp.sqrt(37.5 - i), x)

    for g in (f, xf.trace(f), lambda x: xf.jvp(f, (x,), (1.0,))):
        with np.errstate(all="ignore"), pytest.raises(NanError) as caught, xf.NanGuard():
            g(xf.array(1.0))
        assert "Sqrt made nan" in str(caught.value)
        assert "iteration 38" in str(caught.value)
        assert "test_loop_observers.py" in str(caught.value)
        assert caught.value.origin.place.iteration == 38
        assert xf.stack() == ()
        assert xf.current().iteration is None


def test_a_nan_guard_tells_the_round_backward():
    with np.errstate(all="ignore"), pytest.raises(NanError) as caught, xf.NanGuard():
        xf.grad(lambda x: xf.fori_loop(37, 60, lambda i, y: y + xnp.sqrt(x * (i - 37)), 0.0))(xf.array(1.0))
    assert caught.value.phase == "backward"
    assert "iteration 0" in str(caught.value)
    assert "backward phase" in str(caught.value)
    assert place.get().iteration is None


def test_a_nan_guard_that_warns_goes_on():
    def f(x):
        return xf.fori_loop(0, 5, lambda i, y: y + xnp.log(x * (i - 3.0) ** 2), x)

    guarded = xf.NanGuard(mode="warn")
    with np.errstate(all="ignore"), guarded as guard, pytest.warns(RuntimeWarning, match="iteration 3"):
        f(xf.array(1.0))
    assert [origin.place.iteration for origin in guard.producers] == [3]
    assert guard.propagators["Add"] > 0


def test_explain_shows_what_a_layer_makes_of_a_loop():
    with xf.Explain() as explain, HalfSin():
        fori(xf.array(X), W)
    text = explain.report()
    assert "HalfSin(): Loop" in text
    assert "bottom: Loop" in text
