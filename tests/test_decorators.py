"""Layers and scopes around coroutines and generators; the user's line in warnings and errors; copies of layers."""

from __future__ import annotations

import asyncio
import copy
import functools
import gc
import inspect
import pickle
import traceback
import warnings
import weakref

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from typeguard import suppress_type_checks

import xform as xf
import xform.numpy as xnp
from xform.core.errors import LayerError, OperandTypeError

X = np.array([1.0, 2.0])


class CosForSin(xf.Transformation):
    def interpret(self, op, values):
        return xf.apply(xf.ops.Cos() if op == xf.ops.Sin() else op, *values)


LAYERS = [CosForSin, lambda: xf.named_scope("s"), xf.Profile, lambda: xf.Device("cpu")]


async def sine(x):
    await asyncio.sleep(0)
    return np.sin(x)


class AsyncCall:
    async def __call__(self, x):
        return await sine(x)

    async def method(self, x):
        return await sine(x)


@pytest.mark.parametrize("fun", [sine, functools.partial(sine), AsyncCall(), AsyncCall().method])
def test_a_coroutine_function_is_awaited_under_the_layer(fun):
    decorated = CosForSin()(fun)
    assert inspect.iscoroutinefunction(decorated)

    async def main():
        found = await asyncio.gather(decorated(X), sine(X), CosForSin()(fun)(X * 2))
        assert xf.stack() == ()
        return found

    rewritten, plain, other = asyncio.run(main())
    assert_array_equal(rewritten, np.cos(X))
    assert type(rewritten) is np.ndarray
    assert_array_equal(plain, np.sin(X))
    assert_array_equal(other, np.cos(X * 2))


def test_a_coroutine_function_runs_inside_a_scope_and_on_a_device():
    async def scopes(x):
        before = xf.current().scopes
        await asyncio.sleep(0)
        return [before, xf.current().scopes]

    async def both():
        return await asyncio.gather(xf.named_scope("a")(scopes)(X), xf.named_scope("b")(scopes)(X))

    assert asyncio.run(both()) == [[("a",)] * 2, [("b",)] * 2]
    pytest.importorskip("array_api_strict")
    device = xf.Device("array_api_strict:device1")
    y = asyncio.run(device(sine)(X))
    assert (str(y.device), device.transfers) == ("array_api_strict.Device('device1')", 1)


def test_an_error_in_a_coroutine_has_the_users_frames_alone(monkeypatch):
    monkeypatch.setenv("XFORM_FULL_TRACEBACK", "0")

    async def fails(x):
        await asyncio.sleep(0)
        return x + xf.array(np.ones(3))

    async def main():
        with pytest.raises(ValueError, match="Add") as caught:
            await CosForSin()(fails)(X)
        return [entry.name for entry in traceback.extract_tb(caught.value.__traceback__)]

    assert asyncio.run(main()) == ["main", "fails", "interpret"]


def steps(x):
    yield np.sin(x)


async def later(x):
    yield np.sin(x)


@pytest.mark.parametrize("make", LAYERS)
@pytest.mark.parametrize("fun", [steps, later, functools.partial(steps)])
def test_a_generator_function_is_refused_at_decoration(make, fun):
    with pytest.raises(LayerError, match=r"cannot decorate the generator function .*inside each step"):
        make()(fun)


@pytest.mark.parametrize("make", LAYERS)
@pytest.mark.filterwarnings("ignore:.*saw no operation")
def test_what_runs_after_the_call_is_refused_when_it_is_returned(make):
    for fun in (lambda x: steps(x), lambda x: sine(x), lambda x: later(x)):
        with pytest.raises(LayerError, match="its body would run after the call"):
            make()(fun)(X)
        assert xf.stack() == ()


@pytest.mark.parametrize("fun", [steps, later, sine])
def test_functions_that_record_take_functions_that_return(fun):
    makers = (xf.trace, xf.make_program, xf.grad, xf.value_and_grad)
    for make in (*makers, lambda f: xf.vjp(f, X), lambda f: xf.custom_gradient(f, f), lambda f: xf.eval_shape(f, X)):
        with pytest.raises(OperandTypeError, match="takes a function that returns arrays"):
            make(fun)


@pytest.mark.parametrize("make", LAYERS)
def test_what_is_no_function_is_refused_at_decoration(make):
    with suppress_type_checks(), pytest.raises(OperandTypeError, match="as a decorator takes a function, got int: 3"):
        make()(3)


# ------------------------------------------------------------------ the user's line


@pytest.mark.parametrize(
    ("fails", "text"),
    [
        (lambda v: np.full_like(X, v[0]), "np.full_like(X, v[0])"),
        (lambda v: np.linalg.norm(X * 1.0) + np.r_[v, X[None]], "np.r_[v, X[None]]"),
        (lambda v: np.column_stack([v, np.ones((3, 3))]), "np.column_stack"),
    ],
)
def test_numpys_files_are_not_the_users_line(fails, text):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        xf.grad(lambda v: fails(v).sum())(X)
    message = str(caught.value)
    assert "numpy/" not in message
    if "test_decorators.py" in message:
        assert text in message


def test_the_line_of_an_operation_inside_numpy():
    class Lines(xf.Observer):
        def observe(self, op, inputs, outputs):
            lines.append(xf.current().line)

    lines = []
    with Lines():
        np.r_[xf.array(X), xf.array(X)]
        here = inspect.currentframe().f_lineno - 1
    assert lines
    assert set(lines) == {(__file__, here)}


class Broken(xf.Transformation):
    effect = "faithful"

    def interpret(self, op, values):
        return xf.apply(op, *values)

    def on_unregister(self):
        raise RuntimeError("broken")


@pytest.mark.parametrize("make", [xf.Profile, xf.NanGuard, xf.Observer, Broken])
@pytest.mark.parametrize("way", ["block", "decorator", "derived"])
def test_warnings_name_the_users_line(make, way):
    class Derived(make):
        pass

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        if way == "decorator":
            fun = make()(lambda: 3)
            fun(); here = inspect.currentframe().f_lineno  # noqa: E702
        else:
            layer = make() if way == "block" else Derived()
            with layer: here = inspect.currentframe().f_lineno  # noqa: E701
    (warning,) = found
    assert (warning.filename, warning.lineno) == (__file__, here)
    assert "saw no operation" in str(warning.message) or "on_unregister raised" in str(warning.message)


def test_a_warning_is_told_once_a_line_and_can_be_filtered_by_module():
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        for _ in range(3):
            with xf.Profile():
                pass
        assert len(found) == 1
        warnings.filterwarnings("ignore", module=__name__.replace(".", r"\."))
        with xf.Profile():
            pass
        assert len(found) == 1


# ------------------------------------------------------------------ lifetimes and copies


def test_a_device_goes_without_the_collector():
    pytest.importorskip("array_api_strict")
    gc.collect()
    gc.disable()
    try:
        device = xf.Device("array_api_strict:device1")
        with device:
            xnp.sin(xf.array(X))
            xnp.sin(xf.array(X))
        assert device.repeats == 1
        moved = weakref.ref(device._moved)
        gone = weakref.ref(device)
        del device
        assert gone() is None
        assert moved() is None
        assert gc.collect() == 0
    finally:
        gc.enable()


COPIES = [copy.deepcopy, copy.copy, lambda layer: pickle.loads(pickle.dumps(layer))]


@pytest.mark.parametrize("duplicate", COPIES)
def test_a_profile_and_a_guard_can_be_copied(duplicate):
    with xf.Profile() as profile, xf.NanGuard(mode="warn") as guard:
        np.sin(xf.array(X))
    other, spare = duplicate(profile), duplicate(guard)
    assert other.calls("Sin") == 1
    assert spare.report() == guard.report()
    fresh = copy.deepcopy(other)
    with fresh, spare:
        np.sin(xf.array(X))
    assert (fresh.calls("Sin"), profile.calls("Sin")) == (2, 1)
    assert fresh._lock is not profile._lock


@pytest.mark.parametrize("duplicate", COPIES)
def test_a_tape_says_that_it_cannot_be_copied(duplicate):
    with pytest.raises(TypeError, match=r"Grad\(mine\) cannot be pickled or copied"):
        duplicate(xf.Grad("mine"))


@pytest.mark.parametrize("duplicate", COPIES)
def test_a_device_is_copied_by_its_name(duplicate):
    assert duplicate(xf.Device("cpu")).name == "cpu"
