"""The memory of a loop's gradient: what is kept, what is run again, and that every derivative stays what it is."""

from __future__ import annotations

import functools
import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
from typeguard import suppress_type_checks

import xform as xf
import xform.numpy as xnp
from xform.core.errors import OperandError, OperandTypeError
from xform.programs import loop_marks
from xform.programs.loop_plans import Plan, first_marks, rewound

X = np.array([0.4, 1.3])
W = np.array([0.9, 0.6])
POLICIES = [1, 2, 5, "sqrt", "log"]
policies = pytest.mark.parametrize("policy", POLICIES)


def step(x, w):
    return xnp.sin(x * w) + 0.1 * x


def while_(x, w, xs, n, **plan):
    return xf.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, step(c[1], w)), (0, x), **plan)[1]


def fori(x, w, xs, n, **plan):
    return xf.fori_loop(0, n, lambda i, y: step(y, w) + xnp.take(xs, i, axis=0) * 0.1, x, **plan)


def scan(x, w, xs, n, **plan):
    last, rows = xf.scan(lambda y, row: (step(y, w) + row, y * row), x, xs[:n], **plan)
    return last + xnp.sum(rows)


def scan_back(x, w, xs, n, **plan):
    last, rows = xf.scan(lambda y, row: (step(y, w) + row, y * row), x, xs[:n], reverse=True, **plan)
    return last + xnp.sum(rows)


def built(x, w, xs, n, **plan):
    with xf.LoopBuilder(test="after", **plan) as loop:
        y = loop.input(x, assign=True)
        loop.assign(y, step(y, w))
        loop.condition(loop.counter < n - 1)
        last, sums = loop.output(y, "last"), loop.output(y, "sum")
    return last + sums


LOOPS = {"while": while_, "fori": fori, "scan": scan, "scan back": scan_back, "builder": built}
loops = pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)


def total(loop, n, **plan):
    return lambda x, w, xs: xnp.sum(loop(x, w, xs, n, **plan) ** 2)


def rows(n):
    return np.linspace(0.1, 0.9, 2 * n + 2).reshape(n + 1, 2)


# ------------------------------------------------------------------ derivatives


@loops
@policies
@pytest.mark.parametrize("n", [0, 1, 2, 7, 53])
def test_gradients_are_those_of_the_loop_that_keeps_all(loop, policy, n):
    args = X, W, rows(n)
    want = xf.grad(total(loop, n), (0, 1, 2))(*args)
    f = xf.grad(total(loop, n, checkpoint=policy), (0, 1, 2))
    for g in (f, xf.trace(f)):
        for got, expected in zip(g(*args), want, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.sweep
@loops
@policies
def test_second_derivatives_in_all_modes(loop, policy):
    plain, planned = total(loop, 7), total(loop, 7, checkpoint=policy)
    args = X, W, rows(7)
    derived = {"rev": xf.grad, "fwd": lambda f: lambda x, *rest: xf.jvp(lambda x: f(x, *rest), (x,), (X,))[1]}
    for first, second in itertools.product(derived.values(), repeat=2):
        make = lambda f, first=first, second=second: second(lambda *args: xnp.sum(first(f)(*args)))
        np.testing.assert_allclose(make(planned)(*args), make(plain)(*args), rtol=1e-10)


@loops
@pytest.mark.parametrize("policy", [3, "log"])
def test_in_batches(loop, policy):
    plain, planned = total(loop, 6), total(loop, 6, checkpoint=policy)
    xs = np.stack([X, X * 0.5, -X])
    w, data = W, rows(6)
    want = [xf.grad(plain)(x, w, data) for x in xs]
    np.testing.assert_allclose(xf.vmap(xf.grad(planned), in_axes=(0, None, None))(xs, w, data), want, rtol=1e-10)
    summed = lambda xs: xnp.sum(xf.vmap(lambda x: planned(x, w, data))(xs))
    np.testing.assert_allclose(xf.grad(summed)(xs), want, rtol=1e-10)


@policies
def test_lanes_that_stop_on_their_own(policy):
    def f(x, limit, **plan):
        return xf.while_loop(lambda y: y < limit, lambda y: y * (1.0 + 0.3 * xnp.cos(y) ** 2) + 0.2, x, **plan)

    xs, limits = np.array([0.1, 2.0, 9.0]), np.array([20.0, 3.0, 1.0])
    want = [xf.grad(f)(x, limit) for x, limit in zip(xs, limits, strict=True)]
    np.testing.assert_allclose(xf.vmap(xf.grad(lambda x, limit: f(x, limit, checkpoint=policy)))(xs, limits), want)
    both = lambda xs: xf.vmap(lambda x, limit: f(x, limit, checkpoint=policy))(xs, limits).sum()
    np.testing.assert_allclose(xf.grad(both)(xs), want)


@policies
def test_loops_in_loops(policy):
    def f(x, w, outer, inner):
        def body(i, y):
            return xf.while_loop(lambda c: c[0] < i, lambda c: (c[0] + 1, step(c[1], w)), (0, y), checkpoint=inner)[1]

        return xnp.sum(xf.fori_loop(0, 5, body, x, checkpoint=outer) ** 2)

    want = xf.grad(f, (0, 1))(X, W, None, None)
    for outer, inner in ((policy, None), (None, policy), (policy, policy)):
        np.testing.assert_allclose(xf.grad(lambda x, w, o=outer, i=inner: f(x, w, o, i), (0, 1))(X, W), want)


@policies
@pytest.mark.parametrize("reverse", [False, True])
def test_cotangents_that_stay_in_all_rounds(policy, reverse):
    def total(x, plan):  # what is added up hands its cotangent on as it is, and `kept` hands on the whole carry
        def body(carry, k):
            y, acc, kept = carry
            return (y * xnp.sin(x), acc + k * y, kept), None

        last, _ = xf.scan(body, (x, x * 0.0, x), np.arange(5.0), reverse=reverse, checkpoint=plan)
        return xnp.sum(last[1] + 3.0 * last[2])

    order = range(5)[:: -1 if reverse else 1]
    for derivative in (xf.grad, xf.hessian):
        wanted = derivative(lambda x: xnp.sum(sum(k * x * xnp.sin(x) ** n for n, k in enumerate(order)) + 3.0 * x))(X)
        np.testing.assert_allclose(derivative(lambda x: total(x, policy))(X), wanted, rtol=1e-12)


def test_a_loop_whose_gradient_needs_no_carry_keeps_none():
    f = lambda x: xnp.sum(xf.fori_loop(0, 9, lambda i, y: y * 2.0 + i, x, checkpoint="sqrt"))
    with xf.loop_reports() as reports:
        np.testing.assert_array_equal(xf.grad(f)(X), [512.0, 512.0])
    assert [each.peak_saved_bytes for each in reports] == [0, 0]


def test_float32_and_complex_states():
    def f(x, plan):
        w = W.astype(x.dtype)
        return xnp.sum(xnp.abs(xf.fori_loop(0, 9, lambda i, y: xnp.sin(y) * w, x, checkpoint=plan)))

    for dtype in ("float32", "complex128"):
        x = (X + (0.2j if dtype[0] == "c" else 0.0)).astype(dtype)
        got = xf.grad(functools.partial(f, plan=3))(x)
        assert got.dtype == x.dtype
        np.testing.assert_allclose(got, xf.grad(functools.partial(f, plan=None))(x), rtol=1e-5)


# ------------------------------------------------------------------ what is kept and run again

ROW = X.nbytes


def reports_of(loop, n, **plan):
    with xf.loop_reports() as reports:
        xf.grad(total(loop, n, **plan))(X, W, rows(n))
    forward, backward = reports
    assert (forward.phase, backward.phase) == ("forward", "backward")
    assert forward.rounds == backward.rounds == n
    assert forward.loop == backward.loop
    return forward, backward


@pytest.mark.parametrize("loop", [while_, fori, scan, scan_back])
def test_every_kth_carry_is_kept(loop):
    for n, k in itertools.product((1, 20, 21), (2, 3, 50)):
        forward, backward = reports_of(loop, n, checkpoint=k)
        marks = -(-n // k)
        assert forward.peak_saved_bytes == marks * ROW
        assert backward.recomputed_rounds == n - marks
        assert backward.peak_saved_bytes <= (marks + k) * ROW


@pytest.mark.parametrize("loop", [while_, fori])
def test_sqrt_keeps_about_the_root_and_runs_each_round_once_more(loop):
    for n in (10, 100, 1000):
        forward, backward = reports_of(loop, n, checkpoint="sqrt")
        assert forward.peak_saved_bytes <= 1.5 * math.sqrt(n) * ROW + ROW
        assert backward.peak_saved_bytes <= (3 * math.sqrt(n) + 2) * ROW
        assert backward.recomputed_rounds <= n


@pytest.mark.parametrize("loop", [while_, fori])
def test_log_stays_within_a_few_dozen_carries_at_100_000_rounds(loop):
    forward, backward = reports_of(loop, 100_000, checkpoint="log")
    assert forward.peak_saved_bytes <= 24 * ROW
    assert backward.peak_saved_bytes <= 48 * ROW
    assert backward.recomputed_rounds <= 5 * 100_000


def test_what_a_process_holds_does_not_grow_with_the_rounds():
    code = (
        "import resource, numpy as np, xform as xf, xform.numpy as xnp, sys\n"
        "w, x = np.linspace(0.1, 0.9, 1000), np.ones(1000)\n"
        "body = lambda i, y: xnp.sin(y * w)\n"
        "f = lambda n: xf.grad(lambda x: xf.fori_loop(0, n, body, x, checkpoint='log').sum())(x)\n"
        "f(20)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "f(10_000)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 8_000  # kilobytes; all carries are 80 MB


@functools.cache
def fewest(rounds, places):
    """The fewest rounds that are run again, with so many places besides that of the start."""
    if rounds <= 1:
        return 0
    if not places:
        return rounds * (rounds - 1) // 2
    return min(m + fewest(rounds - m, places - 1) + fewest(m, places) for m in range(1, rounds))


def followed(marks, rounds, places, block=1):
    """Follow a schedule; return how many rounds are run again, and how many carries are held at most."""
    again, peak, here, held, met, left = 0, 0, None, set(), [], len(marks)
    for what, at, to in rewound(marks, rounds, places, block):
        if what == "load":
            here, left = to, at + 1
            assert marks[at] == to
        elif what == "take":
            assert at in held
            here = at
        elif what == "drop":
            held.remove(at)
        else:
            assert here == at
            if what == "go":
                again, here = again + to - at, to
            elif what == "keep":
                held.add(at)
            else:
                again += to - at - 1
                met += range(to - 1, at - 1, -1)
                peak = max(peak, left + len(held) + to - at - 1)
        peak = max(peak, left + len(held))
    assert met == list(range(rounds))[::-1]
    assert not held
    return again, peak


@pytest.mark.parametrize("places", [1, 2, 3, 5, 8])
def test_the_binomial_schedule_runs_as_few_rounds_again_as_can_be(places):
    for rounds in range(50):
        marks = first_marks(rounds, places)
        again, peak = followed(marks, rounds, places)
        first = marks[-1] if marks else 0  # what the forward loop has run on its way
        assert again + first == fewest(rounds, places - 1)
        assert peak <= places


@pytest.mark.parametrize("kind", ["sqrt", "log"])
@pytest.mark.parametrize("known", [True, False])
def test_schedules_of_many_rounds(kind, known):
    for rounds in (0, 1, 2, 3, 17, 999, 20_000):
        plan = Plan(kind=kind)
        marks = plan.marks(rounds, known=known)
        places, block = plan.places(rounds, known=known), plan.block(rounds)
        _, peak = followed(marks, rounds, places, block)
        assert peak <= places + block


@pytest.mark.parametrize("plan", [Plan(), Plan(3), Plan(kind="sqrt"), Plan(kind="log")])
def test_marks_that_are_kept_as_rounds_go_by_are_those_of_the_plan(plan):
    for rounds in (0, 1, 2, 9, 31, 32, 33, 100, 1000):
        for known in (True, False):
            kept = loop_marks.MarkRows(np, xf.Aval((), np.dtype(float)), plan, rounds if known else None)
            for at in range(rounds):
                kept.note(np.float64(at))
            assert kept.whole().tolist() == plan.marks(rounds, known=known)


def test_a_policy_is_a_function_of_rounds_and_bytes():
    asked = []

    def policy(rounds, nbytes):
        asked.append((rounds, nbytes))
        return 4

    assert reports_of(fori, 12, checkpoint=policy)[0].peak_saved_bytes == 3 * ROW
    assert reports_of(while_, 12, checkpoint=policy)[0].peak_saved_bytes == 3 * ROW
    assert asked == [(12, 16), (None, 24)]
    assert reports_of(fori, 12, checkpoint=lambda rounds, nbytes: None)[1].recomputed_rounds == 0


# ------------------------------------------------------------------ reports


def test_reports_of_a_loop_without_a_plan():
    forward, backward = reports_of(fori, 9)
    assert forward.peak_saved_bytes == backward.peak_saved_bytes == 10 * ROW
    assert backward.recomputed_rounds == 0
    assert "9 rounds" in str(forward)
    with xf.loop_reports() as reports:
        fori(X, W, rows(9), 9)
    assert [(each.rounds, each.peak_saved_bytes) for each in reports] == [(9, 0)]


def test_reports_say_what_stopped_a_loop():
    f = lambda most: xf.while_loop(lambda x: x < 10.0, lambda x: x + 1.0, 0.0, max_steps=most)
    with xf.loop_reports() as outer, xf.loop_reports() as reports:
        assert [float(f(most)) for most in (3, 10, 11, None)] == [3.0, 10.0, 10.0, 10.0]
    assert [each.rounds for each in reports] == [3, 10, 10, 10]
    assert [each.stopped_by_max_steps for each in reports] == [True, False, False, False]
    assert outer == reports
    f(3)
    assert len(reports) == 4


@pytest.mark.parametrize(("rounds", "most", "stopped"), [(3, 3, False), (4, 3, True), (2, 3, False), (1, 0, True)])
def test_reports_say_what_stopped_a_loop_that_asks_behind_each_round(rounds, most, stopped):
    def run(x):
        with xf.LoopBuilder(test="after", max_steps=most) as loop:
            y = loop.input(x, assign=True)
            loop.assign(y, y * 2.0)
            loop.condition(loop.counter < rounds - 1)
            return loop.output(y)

    for call in (run, xf.grad(run), lambda x: xf.vmap(run)(np.array([x, x]))):
        with xf.loop_reports() as reports:
            call(1.0)
        assert (reports[0].rounds, reports[0].stopped_by_max_steps) == (min(rounds, most), stopped)


def test_reports_of_a_batch_count_all_lanes():
    run = lambda x: xf.while_loop(lambda y: y < 1000.0, lambda y: y * y + 1.0, x)
    with xf.loop_reports() as reports:
        xf.vmap(xf.grad(run))(np.array([1.0, 8.0, 20.0]))
    history = 3 * 6 * 8  # a number of each lane, before and after 5 rounds
    assert [(each.phase, each.peak_saved_bytes) for each in reports] == [("forward", history), ("backward", history)]


def test_reports_of_loops_in_loops_and_of_replays():
    f = xf.trace(lambda x: xf.fori_loop(0, 3, lambda i, y: xf.fori_loop(0, i, lambda j, z: z + 1.0, y), x))
    f(0.0)
    with xf.loop_reports() as reports:
        assert f(0.0) == 3.0
    assert [each.rounds for each in reports] == [0, 1, 2, 3]


# ------------------------------------------------------------------ devices


@loops
@pytest.mark.parametrize("plan", [
    {"swap_interval": 4}, {"swap_interval": 100}, {"checkpoint": 2, "swap_interval": 2},
    {"checkpoint": "sqrt", "swap_interval": 2}, {"checkpoint": "log", "swap_interval": 3}, {"checkpoint": 3},
])  # fmt: skip
def test_states_of_another_device(loop, plan, monkeypatch):
    pytest.importorskip("array_api_strict")
    moves = []

    def move(array, device):
        moves.append((array.shape[0], device))
        return original(array, device)

    original = loop_marks.move
    monkeypatch.setattr(loop_marks, "move", move)
    n, home = 11, "array_api_strict:device1"
    args = X, W, rows(n)
    want = xf.grad(total(loop, n), (0, 1))(*args)
    f = xf.grad(total(loop, n, **plan), (0, 1))
    for g in (f, xf.trace(f)):
        moves.clear()
        for got, expected in zip(g(*xf.device_put(args, home)), want, strict=True):
            assert str(got.device) == "array_api_strict.Device('device1')"
            np.testing.assert_allclose(xf.to_numpy(got), expected, rtol=1e-10)
        away = [count for count, device in moves if device == "cpu"]
        back = [count for count, device in moves if device == home]
        if plan == {"swap_interval": 4}:
            assert away == [4, 4, 3]
            assert back == [3, 4, 4]
        elif "swap_interval" not in plan:
            assert moves == []
        else:
            assert sum(away) == sum(back) > 0
    for got, expected in zip(f(*args), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-10)


# ------------------------------------------------------------------ programs, errors


@pytest.mark.parametrize("policy", [3, "log"])
def test_gradients_with_marks_are_stored(policy, tmp_path):
    program = xf.make_program(xf.grad(total(while_, 9, checkpoint=policy)))(X, W, rows(9))
    assert [type(e.op).__name__ for e in program.equations].count("Rewind") == 1
    program.save(tmp_path / "f")
    loaded = xf.load_program(tmp_path / "f")
    np.testing.assert_array_equal(loaded(X, W, rows(9)), program(X, W, rows(9)))
    np.testing.assert_allclose(xf.jacfwd(loaded)(X, W, rows(9)), xf.hessian(total(while_, 9))(X, W, rows(9)), rtol=1e-9)


@pytest.mark.parametrize(("plan", "error", "words"), [
    ({"checkpoint": "cube"}, OperandError, '"sqrt", "log"'),
    ({"checkpoint": 0}, OperandError, "checkpoint must be at least 1"),
    ({"checkpoint": -3}, OperandError, "checkpoint must be at least 1"),
    ({"checkpoint": 2.5}, OperandTypeError, "checkpoint must be a number of rounds, got float"),
    ({"checkpoint": True}, OperandTypeError, "checkpoint must be a number of rounds, got bool"),
    ({"checkpoint": lambda rounds, nbytes: "most"}, OperandError, '"sqrt", "log"'),
    ({"swap_interval": 0}, OperandError, "swap_interval must be at least 1"),
])  # fmt: skip
@loops
@suppress_type_checks
def test_plans_that_are_none(loop, plan, error, words):
    with pytest.raises(error, match=words):
        loop(X, W, rows(3), 3, **plan)
    assert xf.stack() == ()
