"""Continues test_branches."""

from __future__ import annotations

import math
import threading

import attrs
import numpy as np
import pytest
from typeguard import suppress_type_checks

import xform as xf
import xform.numpy as xnp
from tests.test_branches import Tallied, X, three
from xform import cond, switch
from xform.core.errors import HostReadError, OperandError, OperandTypeError


def test_a_branch_that_no_lane_takes_is_not_run():
    op = Tallied()
    f = lambda p, x: cond(p, lambda x: xf.apply(op, x), lambda x: x, x)
    xs = np.array([1.0, 2.0])
    for g in (xf.vmap(f), xf.trace(xf.vmap(f)), xf.vmap(xf.trace(f))):
        np.testing.assert_array_equal(g(np.array([False, False]), xs), xs)
        np.testing.assert_array_equal(xf.grad(lambda xs, g=g: g(np.zeros(2, bool), xs).sum())(xs), [1.0, 1.0])
        assert op.runs == []
        np.testing.assert_array_equal(g(np.array([True, False]), xs), [2.0, 2.0])
        np.testing.assert_array_equal(op.runs.pop(), [1.0, 1.0])  # the other lane was shown this one's operand
        assert op.runs == []


def test_where_all_lanes_take_one_branch_it_alone_is_in_the_program():
    f = lambda p, x: cond(p, lambda x: xnp.sin(x), lambda x: x, x)
    program = xf.make_program(xf.vmap(f, in_axes=(None, 0)))(np.array(True), np.ones(3))
    assert [type(e.op).__name__ for e in program.equations] == ["Switch"]
    for p in (True, False):
        want = np.sin(np.ones(3)) if p else np.ones(3)
        np.testing.assert_array_equal(xf.vmap(lambda x, p=p: f(np.array(p), x))(np.ones(3)), want)
        np.testing.assert_array_equal(program(np.array(p), np.ones(3)), want)


def test_only_the_predicate_differs_in_lanes():
    f = lambda p, x: cond(p, lambda x: x * x, lambda x: -x, x)
    ps = np.array([True, False, True])
    for g in (f, xf.trace(f)):
        np.testing.assert_array_equal(xf.vmap(g, in_axes=(0, None))(ps, 3.0), [9.0, -3.0, 9.0])
        assert xf.grad(lambda x, g=g: xf.vmap(g, in_axes=(0, None))(ps, x).sum())(3.0) == 11.0


def test_an_output_that_no_branch_changes_stays_the_same_in_all_lanes():
    f = lambda p, x, c: cond(p, lambda x: (x, c * 2.0), lambda x: (-x, c), x)
    p = np.array(False)
    out = xf.vmap(lambda x: xf.trace(f)(p, x, 5.0), out_axes=(0, None))(np.ones(2))
    np.testing.assert_array_equal(out[0], [-1.0, -1.0])
    assert out[1] == 5.0


def test_a_batch_of_no_lane():
    f = xf.vmap(lambda x: cond(x > 0.0, xnp.sqrt, lambda x: x * 0.0, x))
    assert f(np.zeros(0)).shape == (0,)
    assert xf.grad(lambda xs: f(xs).sum())(np.zeros(0)).shape == (0,)


def test_a_switch_of_batched_integers():
    index, xs = np.array([-3, 0, 1, 2, 7]), np.linspace(0.1, 0.9, 5)
    want = [np.sin(xs[0]), np.sin(xs[1]), xs[2] ** 2, np.exp(xs[3]), np.exp(xs[4])]
    slopes = [np.cos(xs[0]), np.cos(xs[1]), 2.0 * xs[2], np.exp(xs[3]), np.exp(xs[4])]
    for dtype in ("int64", "int8", "uint8"):
        given = np.clip(index, 0, 9).astype(dtype) if dtype == "uint8" else index.astype(dtype)
        np.testing.assert_allclose(xf.vmap(three)(given, xs), want)
        np.testing.assert_allclose(xf.vmap(xf.grad(three, 1))(given, xs), slopes)


# ------------------------------------------------------------------ programs


def test_a_trace_records_one_equation_and_replays_it():
    f = xf.trace(lambda x: cond(x.sum() > 0.0, lambda x: xnp.sin(x) * 2.0, lambda x: x, x))
    for x in (X, -X, X):
        np.testing.assert_array_equal(f(x), np.sin(x) * 2.0 if x.sum() > 0.0 else x)
    names = [type(e.op).__name__ for e in f.program(X).equations]
    assert names == ["Sum", "Greater", "Switch"]
    assert len(f.paths(X)) == 1


def test_a_known_predicate_leaves_the_branch_in_the_program():
    program = xf.make_program(lambda x: cond(np.bool_(True), xnp.sin, xnp.cos, x))(X)
    assert [type(e.op).__name__ for e in program.equations] == ["Sin"]


def test_a_compiled_program_runs_it():
    compiled = pytest.importorskip("xform.programs.compiler").compile_program
    program = xf.make_program(lambda x: xnp.exp(cond(x.sum() > 0.0, xnp.sin, xnp.cos, x * 2.0)))(X)
    runs = compiled(program)
    for _ in range(12):
        np.testing.assert_allclose(runs(X)[0], np.exp(np.sin(2.0 * X)))
        np.testing.assert_allclose(runs(-X)[0], np.exp(np.cos(2.0 * X)))


def test_results_of_compiled_branches_are_the_callers():
    f = xf.trace(lambda x: cond(x.sum() > 0.0, lambda x: xnp.sin(x) + 1.0, lambda x: x, x))
    kept = [f(X * n) for n in range(1, 15)]
    for n, out in enumerate(kept, 1):
        np.testing.assert_allclose(out, np.sin(X * n) + 1.0)


def test_programs_with_branches_are_stored(tmp_path):
    w = np.array([2.0, 3.0])
    f = xf.trace(lambda x: cond(x.sum() > 0.0, lambda x: x * w, lambda x: cond(x[0] < -1.0, xnp.sin, xnp.cos, x), x))
    for name, program in {"f": f.program(X), "gradient": xf.make_program(xf.grad(lambda x: f(x).sum()))(X)}.items():
        program.save(tmp_path / name)
        loaded = xf.load_program(tmp_path / name)
        assert str(loaded) == str(program)
        for x in (X, -X, -4.0 * X):
            np.testing.assert_array_equal(loaded(x), program(x))
    loaded = xf.load_program(tmp_path / "f")
    np.testing.assert_array_equal(xf.grad(lambda x: loaded(x).sum())(X), w)
    np.testing.assert_allclose(xf.grad(lambda x: loaded(x).sum())(-X), np.sin(X))
    np.testing.assert_allclose(xf.vmap(loaded)(np.stack([X, -X])), [X * w, np.cos(X)])


def test_a_stored_program_runs_in_a_fresh_process(tmp_path):
    import subprocess
    import sys

    f = xf.trace(lambda x: cond(x.sum() > 0.0, lambda x: x * x, xnp.cos, x))
    f.program(X).save(tmp_path / "f")
    code = (
        "import numpy as np, xform as xf\n"
        f"f = xf.load_program({str(tmp_path / 'f')!r})\n"
        "print(xf.grad(lambda x: f(x).sum())(np.array([0.5, 1.5])).tolist())\n"
        "with xf.Profile() as p: f(xf.array(np.ones(2)))\n"
        "print(p.calls('Mul'))\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split("\n") == ["[1.0, 3.0]", "1", ""]


def test_custom_rules_hold_inside_of_branches():
    wrong = xf.custom_vjp(lambda x: x * x)
    wrong.defvjp(lambda x: (x * x, x), lambda x, t: (t * 100.0,))
    f = lambda x: cond(x > 0.0, wrong, lambda x: x, x)
    for g in (f, xf.trace(f)):
        assert xf.grad(g)(3.0) == 100.0
        assert xf.grad(g)(-3.0) == 1.0
        np.testing.assert_array_equal(xf.vmap(xf.grad(g))(np.array([3.0, -3.0])), [100.0, 1.0])


@attrs.frozen(eq=False)
class Draw(xf.Operator):
    """Adds another number each time that it runs."""

    numbers: list
    impure = True

    def infer(self, x):
        return x

    def evaluate(self, xp, x):
        self.numbers.append(len(self.numbers) + 1.0)
        return x * self.numbers[-1]


@xf.vjp_rule(Draw)
def draw_vjp(op, needed, x):
    out = xf.apply(op, x)
    return out, lambda t: (t * out / x,)


def test_what_must_run_once_is_not_run_again_in_backward():
    op = Draw([])
    f = xf.trace(lambda p, x: cond(p, lambda x: xnp.exp(xf.apply(op, x)), lambda x: x * 3.0, x))
    for n in (1.0, 2.0, 3.0):
        np.testing.assert_allclose(xf.grad(f, 1)(np.array(True), 0.5), n * math.exp(n * 0.5))
        assert len(op.numbers) == n
        assert xf.grad(f, 1)(np.array(False), 0.5) == 3.0
        assert len(op.numbers) == n


# ------------------------------------------------------------------ devices, threads


@pytest.mark.parametrize("wrap", [lambda f: f, xf.trace], ids=["eager", "traced"])
def test_arrays_of_another_library(wrap):
    pytest.importorskip("array_api_strict")
    x = xf.device_put(X, "array_api_strict:device1")
    f = wrap(lambda x: xnp.sum(cond(xnp.sum(x) > 0.0, xnp.sqrt, lambda x: x * 3.0, x)))
    for sign in (1.0, -1.0):
        found = xf.grad(f)(x * sign)
        assert str(found.device) == str(x.device)
        want = 0.5 / np.sqrt(X) if sign > 0 else np.full(2, 3.0)
        np.testing.assert_allclose(xf.to_numpy(found), want)
    both = xf.device_put(np.stack([X, -X]), "array_api_strict:device1")
    np.testing.assert_allclose(xf.to_numpy(xf.vmap(f)(both)), [np.sqrt(X).sum(), -3.0 * X.sum()])
    found = xf.vmap(xf.grad(f))(both)
    np.testing.assert_allclose(xf.to_numpy(found), [0.5 / np.sqrt(X), [3.0, 3.0]])
    assert str(found.device) == str(x.device)


def test_one_switch_runs_in_several_threads():
    f = xf.trace(lambda x: cond(x.sum() > 0.0, lambda x: xnp.sin(x) * 2.0 + x, lambda x: x * x - x, x))
    f(X)
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(40):
            x = rng.normal(size=2)
            want = np.sin(x) * 2.0 + x if x.sum() > 0.0 else x * x - x
            slope = 2.0 * np.cos(x) + 1.0 if x.sum() > 0.0 else 2.0 * x - 1.0
            got = xf.grad(lambda x: f(x).sum())(x)
            if not (np.allclose(f(x), want) and np.allclose(got, slope)):
                wrong.append((x, got))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("true_fun", "false_fun", "words"),
    [
        (lambda x: x, lambda x: (x, x), ("float64[2]", "(float64[2], float64[2])", "same structure")),
        (lambda x: {"a": x}, lambda x: {"b": x}, ("'a'", "'b'", "same structure")),
        (lambda x: x, lambda x: x[:1], ("float64[2]", "float64[1]", "same shapes and dtypes")),
        (lambda x: x, lambda x: x.astype("float32"), ("float64[2]", "float32[2]", "astype")),
        (lambda x: (x, x), lambda x: (x, x > 0.0), ("float64[2]", "bool[2]", "[1]")),
    ],
)
def test_branches_must_return_the_same(true_fun, false_fun, words):
    for run in (
        lambda x: cond(np.bool_(True), true_fun, false_fun, x),
        xf.trace(lambda x: cond(x.sum() > 0.0, true_fun, false_fun, x)),
    ):
        with pytest.raises(OperandTypeError) as caught:
            run(X)
        for word in ("cond", "true_fun", "false_fun", *words):
            assert word in str(caught.value)


def test_a_switch_names_its_branches():
    with pytest.raises(TypeError, match=r"switch: branch 0 returns .* and branch 2 returns"):
        switch(np.array(1), [xnp.sin, xnp.cos, lambda x: x > 0.0], X)


@pytest.mark.parametrize("pred", [X > 0.0, "yes", None, [True], (True,), np.array(1j)])
def test_what_is_no_truth_value(pred):
    with pytest.raises(OperandTypeError, match="cond: pred must be one truth value"):
        cond(pred, xnp.sin, xnp.cos, X)


@pytest.mark.parametrize("index", [1.0, np.array(0.5), True, np.bool_(True), np.array([1]), "1", None])
def test_what_is_no_index(index):
    with pytest.raises(OperandTypeError, match="switch: index must be one integer"):
        switch(index, [xnp.sin, xnp.cos], X)


@suppress_type_checks
def test_other_arguments_that_are_wrong():
    with pytest.raises(OperandTypeError, match="cond: false_fun takes a function, got float"):
        cond(True, xnp.sin, 1.0)
    with pytest.raises(OperandTypeError, match="switch: branch 1 takes a function"):
        switch(0, [xnp.sin, None])
    with pytest.raises(OperandError, match="at least one"):
        switch(0, [])
    with pytest.raises(OperandTypeError, match="list of at least one"):
        switch(0, xnp.sin)
    with pytest.raises(OperandTypeError, match=r"operand \[1\]\['a'\] is str"):
        cond(np.bool_(True), lambda x, y: x, lambda x, y: x, 1.0, {"a": "text"})
    with pytest.raises(OperandTypeError, match=r"false_fun .* of cond.* is str"):
        cond(np.bool_(True), lambda x: x, lambda x: "text", 1.0)


def test_a_branch_that_reads_its_values():
    def f(x):
        return x if x > 0.0 else -x

    for run in (lambda x: cond(np.bool_(True), f, xnp.sin, x), xf.trace(lambda x: cond(x > 0.0, f, xnp.sin, x))):
        with pytest.raises(HostReadError, match=r"true_fun \(f\) of cond.*another cond") as caught:
            run(1.0)
        assert xf.stack() == ()
        assert "test_branches_more.py" in str(caught.value)


def test_an_error_inside_of_a_branch_passes():
    mine = KeyError("mine")

    def f(x):
        raise mine

    with xf.Grad() as tape:
        x = tape.attach(2.0)
        with pytest.raises(KeyError) as caught:
            cond(x > 0.0, lambda x: x, f, x)
        assert caught.value is mine
        assert xf.stack() == (tape,)
        assert tape.gradient(cond(x > 0.0, lambda x: x * x, xnp.exp, x), x) == 4.0
