"""`xf.cond` and `xf.switch` in traces and stored programs, with custom rules, on devices and in threads."""

from __future__ import annotations

import math
import threading

import attrs
import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from tests.test_branches import X
from xform import cond


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
