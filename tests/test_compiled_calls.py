"""Compiled programs: whose memory results are, what errors tell, and what must stay in its place."""

from __future__ import annotations

import copy
import gc
import linecache
import pickle
import sys
import threading
import traceback
import weakref

import attrs
import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from tests.compiling import assert_same, compiled_of, recurrent
from xform.core.errors import EngineError, OperandTypeError, ProgramError, ShapeError
from xform.programs.compiler import compile_program
from xform.programs.passes import LEVELS

levels = pytest.mark.parametrize("level", LEVELS)


# ------------------------------------------------------------------ whose memory it is


@levels
def test_results_stay_as_they_are_when_the_program_runs_again(level):
    def fun(x):
        y = np.sin(x) * 2.0
        rows = [y[n] * y[n] for n in range(4)]
        return y.T, y[1:], y.reshape(-1), np.stack(rows), rows[2], np.sum(y, axis=0), np.zeros(3), x * 1.0

    x = np.linspace(0.0, 1.0, 16).reshape(4, 4)
    compiled = compiled_of(fun, x, level=level)
    first = compiled(x)
    kept = [np.array(each) for each in first]
    second = compiled(x + 1.0)
    for each, copy_of in zip(first, kept, strict=True):
        np.testing.assert_array_equal(each, copy_of)
    for one in first:
        assert not any(np.may_share_memory(one, other) for other in second)
        assert not np.may_share_memory(one, x)


@levels
def test_results_can_be_written_to(level):
    x = np.ones(3)
    compiled = compiled_of(lambda x: (x * 1.0, x * 2.0, np.full(3, 7.0), x + x), x, level=level)
    want = [each.copy() for each in compiled(x)]
    for each in compiled(x):
        each[:] = -1.0
    assert_same(compiled(x), want)
    assert x.tolist() == [1.0, 1.0, 1.0]


@levels
def test_equal_results_are_apart_where_eager_ones_are(level):
    x = np.ones(3)
    one, other, same, again = compiled_of(lambda x: (x + 2.0, x + 2.0, *[np.sin(x)] * 2), x, level=level)(x)
    assert not np.may_share_memory(one, other)
    assert same.tolist() == again.tolist()


@levels
def test_a_view_of_an_input_stays_one_as_in_eager(level):
    x = np.arange(6.0).reshape(2, 3)
    turned, same, product = compiled_of(lambda x: (x.T, x, x * 1.0), x, level=level)(x)
    assert np.may_share_memory(turned, x)
    assert same is x
    assert not np.may_share_memory(product, x)


def test_a_call_from_inside_a_call_has_its_own_arrays():
    found = []

    class Again(xf.Observer):
        def observe(self, op, inputs, outputs):
            if op == xf.ops.Sin() and len(found) < 3:
                found.append(None)
                place = len(found) - 1
                found[place] = compiled(np.full(3, 10.0 * (place + 1)))

    def fun(x):
        with Again():
            y = np.sin(xnp.multiply(x, 2.0))
        return y + np.cos(x)

    compiled = compiled_of(fun, np.ones(3))
    x = np.array([0.1, 0.2, 0.3])
    np.testing.assert_allclose(compiled(x)[0], np.sin(2 * x) + np.cos(x))
    np.testing.assert_allclose(found[0][0], np.sin(20.0) + np.cos(10.0))


def test_threads_do_not_meet():
    rng = np.random.default_rng(0)
    args = (rng.normal(size=(4, 4)), rng.normal(size=(4, 3)), rng.normal(size=4), rng.normal(size=(6, 3)))
    program = xf.make_program(xf.value_and_grad(recurrent(xnp), argnums=(0, 1, 2, 3)))(*args)
    compiled = compile_program(program)
    inputs = [[each * (0.1 + 0.05 * n) for each in args] for n in range(8)]
    want = [program.run(each) for each in inputs]
    wrong = []

    def work(n):
        for _ in range(50):
            for h, w in zip(compiled(*inputs[n]), want[n], strict=True):
                if not np.allclose(h, w, rtol=1e-9, atol=1e-12):
                    wrong.append(n)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        workers = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for each in workers:
            each.start()
        for each in workers:
            each.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []


def test_nothing_that_liveness_can_reuse_is_allocated():
    """A chain of 40 operations works in one array, and a second call makes no other than its result."""

    def fun(x):
        for _ in range(40):
            x = np.sin(x) * 0.5
        return x

    compiled = compiled_of(fun, np.ones(1000), level=0)
    names = {word for line in compiled.source.splitlines() for word in line.replace(",", " ").replace("(", " ").split()}
    assert sum(name[0] == "b" and name[1:].isdigit() for name in names) == 1
    assert compiled.source.count("v0 = ") == 1


def test_a_dropped_program_leaves_nothing_behind():
    compiled = compiled_of(lambda x: np.sin(x) * 2.0 + 1.0, np.ones(3))
    compiled(np.ones(3))
    filename = compiled.function.__code__.co_filename
    assert filename in linecache.cache
    gone = weakref.ref(compiled)
    enabled = gc.isenabled()
    gc.disable()
    try:
        del compiled
        assert gone() is None
    finally:
        if enabled:
            gc.enable()
    assert filename not in linecache.cache


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_compiled_programs_copy_and_pickle(again):
    compiled = compiled_of(lambda x: np.sin(x) * 2.0, np.ones(3), level=1)
    x = np.array([0.1, 0.2, 0.3])
    found = again(compiled)
    assert found.source == compiled.source
    np.testing.assert_array_equal(found(x)[0], compiled(x)[0])


# ------------------------------------------------------------------ errors and warnings


@attrs.frozen
class Fails(xf.Operator):
    """Raises an object that the user made."""

    error: Exception = attrs.field(eq=False)

    def infer(self, x):
        return x

    def evaluate(self, xp, x):
        raise self.error


@levels
def test_a_users_exception_passes_as_it_is_and_tells_where(level):
    error = KeyError("mine")

    def fun(x):
        return xf.apply(Fails(error), x * 2.0)  # the line

    compiled = compiled_of(fun, np.ones(2), level=level)
    with pytest.raises(KeyError) as caught:
        compiled(np.ones(2))
    assert caught.value is error
    assert "Fails" in error.__notes__[0]
    assert "# the line" in error.__notes__[0]
    assert "test_compiled_calls.py" in error.__notes__[0]


def test_the_generated_line_stands_in_the_traceback():
    compiled = compiled_of(lambda x: xf.apply(Fails(KeyError("mine")), x) + 1.0, np.ones(2))
    try:
        compiled(np.ones(2))
    except KeyError as error:
        text = "".join(traceback.format_exception(error))
    assert "fails(np, a0)" in text
    assert "<xform program" in text


@levels
def test_an_index_out_of_bounds_is_told_as_in_eager(level):
    program = xf.make_program(lambda x, i: (x * 2.0)[i])(np.ones(3), np.array([0, 1]))
    compiled = compile_program(program, level=level)
    with pytest.raises(IndexError) as eager:
        program.run([np.ones(3), np.array([0, 5])])
    with pytest.raises(type(eager.value), match="GetItem") as caught:
        compiled(np.ones(3), np.array([0, 5]))
    assert "test_compiled_calls.py" in str(caught.value)
    np.testing.assert_array_equal(compiled(np.ones(3), np.array([0, 2]))[0], [2.0, 2.0])


@levels
def test_warnings_and_errstate_are_those_of_eager(level):
    program = xf.make_program(lambda x: (1.0 / x, np.log(x), (np.sum(x) + 1.0) / 0.0))(np.ones(3))
    compiled = compile_program(program, level=level)
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        compiled(np.zeros(3))
    with np.errstate(all="raise"), pytest.raises(FloatingPointError) as caught:
        compiled(np.zeros(3))
    assert "Div" in caught.value.__notes__[0] or "Log" in caught.value.__notes__[0]
    with np.errstate(all="ignore"):
        assert compiled(np.zeros(3))[0].tolist() == [np.inf] * 3


def test_inputs_that_do_not_fit_are_refused():
    compiled = compiled_of(lambda x: x * 2.0, np.ones(3))
    with pytest.raises(ShapeError, match="input 0 was recorded as"):
        compiled(np.ones(4))
    with pytest.raises(ShapeError, match="float32"):
        compiled(np.ones(3, np.float32))
    with pytest.raises(ProgramError, match="takes 1 inputs, got 2"):
        compiled(np.ones(3), 1.0)
    with pytest.raises(OperandTypeError, match="NumPy arrays"):
        compiled([1.0, 2.0, 3.0])
    with pytest.raises(OperandTypeError, match="NumPy arrays"):
        compiled(xf.array(np.ones(3)))


def test_a_program_of_another_device_is_refused_naming_the_operation():
    program = xf.make_program(lambda x: xf.device_put(x * 2.0, "array_api_strict:device1"))(np.ones(3))
    with pytest.raises(EngineError, match="DevicePut"):
        compile_program(program)


# ------------------------------------------------------------------ what must stay in place


class Log(xf.Observer):
    def __init__(self):
        self.seen = []

    def observe(self, op, inputs, outputs):
        self.seen.append((op.name, np.array(outputs), xf.current().scopes, xf.current().phase))


@levels
def test_observers_see_each_operation_once_in_order_with_its_scope(level):
    log = Log()

    def fun(x):
        with log, xf.named_scope("layer"):
            y = np.sin(x * 1.0)
            z = np.sin(x * 1.0)
        return np.log(np.exp(y)) + z

    program = xf.make_program(fun)(np.ones(2))
    log.seen.clear()
    compile_program(program, level=level)(np.array([0.25, 0.5]))
    assert [name for name, *_ in log.seen] == ["Mul", "Sin", "Mul", "Sin"]
    assert {scopes for _, _, scopes, _ in log.seen} == {("layer",)}
    np.testing.assert_array_equal(log.seen[1][1], np.sin([0.25, 0.5]))


@attrs.frozen(eq=False)
class Count(xf.Operator):
    """Counts its runs."""

    runs: list
    impure = True

    def infer(self, x):
        return x

    def evaluate(self, xp, x):
        self.runs.append(np.array(x))
        return x + 0.0


@levels
def test_impure_operators_run_once_each_in_order(level):
    runs: list = []

    def fun(x):
        op = Count(runs)
        xf.apply(op, x * 2.0)
        y = xf.apply(op, x * 2.0)
        z = xf.apply(op, np.ones(2))
        return y * 0.0 + z

    compiled = compiled_of(fun, np.ones(2), level=level)
    runs.clear()
    assert compiled(np.array([1.0, 2.0]))[0].tolist() == [1.0, 1.0]
    assert [each.tolist() for each in runs] == [[2.0, 4.0], [2.0, 4.0], [1.0, 1.0]]


def test_a_kernel_may_return_early():
    """The hook for guards: `leave` returns at once, and gives the workspace back."""
    from xform.programs.kernels import KERNELS, Kernel

    @attrs.frozen
    class Guard(xf.Operator):
        """Stands for a guard."""

        impure = True
        multiple_outputs = True

        def infer(self, x):
            return ()

        def evaluate(self, xp, x):
            return ()

    def guarded(writer, equation, out):
        x = writer.name(equation.inputs[0])
        writer.leave(f"not ({x} > 0.0)", f"('left', {x})")

    def fun(x):
        y = np.sin(x) * 2.0
        xf.apply(Guard(), np.sum(y))
        return y + 1.0

    KERNELS[Guard] = Kernel(guarded)
    try:
        compiled = compiled_of(fun, np.ones(2))
    finally:
        del KERNELS[Guard]
    for _ in range(3):
        assert compiled(np.ones(2))[0].tolist() == (np.sin(np.ones(2)) * 2.0 + 1.0).tolist()
        word, total = compiled(-np.ones(2))
        assert (word, total) == ("left", np.sum(np.sin(-np.ones(2)) * 2.0))
