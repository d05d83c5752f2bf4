"""The user's line, and tracebacks without xform's own frames."""

from __future__ import annotations

import linecache
import os
import subprocess
import sys
import textwrap
import traceback
from pathlib import Path

import numpy as np
import pytest

import xform as xf
from xform.core.errors import NanError, ShapeError
from xform.core.source import boundary, hide_frames, install_hook, visible

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _hiding_is_on(monkeypatch):
    monkeypatch.delenv("XFORM_FULL_TRACEBACK", raising=False)


def frames(error):
    return [entry.filename for entry in traceback.extract_tb(error.__traceback__)]


def own(error):
    return [name for name in frames(error) if name.startswith(str(ROOT / "xform"))]


def caught(fun, *args):
    try:
        fun(*args)
    except Exception as error:  # noqa: BLE001
        return error
    raise AssertionError("it did not raise")


class Pass(xf.Transformation):
    effect = "faithful"

    def interpret(self, op, values):
        return xf.apply(op, *values)


class Mine(Exception):  # noqa: N818
    pass


MINE = Mine("the user's own")


def raises(x):
    raise MINE


def mismatch(x):
    return x + xf.array(np.ones(3))


def in_layer(x):
    with Pass():
        return mismatch(xf.array(x))


ENTRIES = {
    "with layer": in_layer,
    "layer(f)": Pass()(mismatch),
    "grad": xf.grad(mismatch),
    "value_and_grad": xf.value_and_grad(mismatch),
    "vjp": lambda x: xf.vjp(mismatch, x),
    "grad of grad": xf.grad(lambda x: xf.grad(mismatch)(x)),
    "layer(grad)": Pass()(lambda x: xf.grad(mismatch)(x)),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_error_of_an_operation_shows_the_users_frames_only(entry):
    error = caught(ENTRIES[entry], np.ones(2))
    assert isinstance(error, ValueError)
    assert own(error) == []
    assert frames(error)[-1] == __file__  # the line where the operation was written
    assert error.__cause__ is None or own(error.__cause__) == []


@pytest.mark.parametrize("make", [Pass(), xf.grad, xf.value_and_grad, lambda fun: lambda x: xf.vjp(fun, x)])
def test_the_users_own_exception_is_the_same_object_and_keeps_its_frames(make):
    error = caught(make(raises), np.ones(2))
    assert error is MINE
    assert own(error) == []
    assert traceback.extract_tb(error.__traceback__)[-1].name == "raises"


def test_errors_of_the_arguments_are_raised_at_the_callers_line():
    for error in (caught(xf.grad(lambda x: x), 3), caught(xf.vjp(lambda x: x, 3.0)[1], np.ones(9))):
        assert own(error) == []
        assert {entry.name for entry in traceback.extract_tb(error.__traceback__)} == {"caught"}


def test_users_frames_between_xforms_are_kept():
    class Fails(xf.Transformation):
        def interpret(self, op, values):
            raise Mine

    def inside():
        with Fails():
            xf.array(1.0) + 1.0

    error = caught(inside)
    names = [entry.name for entry in traceback.extract_tb(error.__traceback__)]
    assert names == ["caught", "inside", "interpret"]


def test_the_full_traceback_on_request(monkeypatch):
    monkeypatch.setenv("XFORM_FULL_TRACEBACK", "1")
    assert own(caught(ENTRIES["grad"], np.ones(2)))
    monkeypatch.setenv("XFORM_FULL_TRACEBACK", "0")
    assert not own(caught(ENTRIES["grad"], np.ones(2)))


def test_causes_contexts_and_groups_are_cut_too():
    def fails():
        try:
            xf.ops.add(np.ones(2), np.ones(3))
        except ValueError as error:
            raise ExceptionGroup("several", [error]) from error

    error = caught(fails)
    hide_frames(error)
    assert own(error.exceptions[0]) == []
    error.__cause__ = error.exceptions[0]
    error.__cause__.__context__ = error  # a cycle ends
    hide_frames(error)


def test_a_traceback_without_own_frames_is_left_as_it_is():
    error = caught(raises, 0)
    assert visible(error.__traceback__) is error.__traceback__
    assert visible(None) is None


def test_a_boundary_keeps_name_docstring_and_result():
    @boundary
    def double(x):
        """Twice."""
        return 2 * x

    assert (double(3), double.__name__, double.__doc__) == (6, "double", "Twice.")


def test_the_hook_is_chained_and_installed_once(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "excepthook", lambda *found: seen.append(found))
    install_hook()
    hook = sys.excepthook
    install_hook()
    assert sys.excepthook is hook
    error = caught(lambda: xf.ops.add(np.ones(2), np.ones(3)))
    assert own(error)  # no layer, no boundary: the hook is what is left
    hook(type(error), error, error.__traceback__)
    ((kind, found, shown),) = seen
    assert (kind, found) == (type(error), error)
    assert own(error) == []
    assert shown is error.__traceback__


def test_at_the_top_of_a_program():
    code = textwrap.dedent(
        """
        import numpy as np, xform as xf
        def user(x):
            return xf.ops.add(x, np.ones(3))
        user(np.ones(2))
        """
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for value, expected in (("0", False), ("1", True)):
        environment["XFORM_FULL_TRACEBACK"] = value
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert "ShapeError" in done.stderr
        assert "in user" in done.stderr
        assert (str(ROOT / "xform") in done.stderr) is expected


def test_pytest_is_told_to_hide_the_frames(monkeypatch):
    from xform.core import bottom, stack

    for module in (bottom, stack):
        assert module.__tracebackhide__() is True
        monkeypatch.setenv("XFORM_FULL_TRACEBACK", "1")
        assert module.__tracebackhide__() is False
        monkeypatch.delenv("XFORM_FULL_TRACEBACK")


# ------------------------------------------------------------------ cells of a notebook

CELL = """import xform as xf
import xform.numpy as xnp
def slanted(x):
    return xnp.log(x) + np.ones(4)  # the cell's own line
"""


@pytest.fixture(params=["<ipython-input-1>", "ipykernel_77/1234.py"])
def cell(request, monkeypatch):
    """A function of a cell, compiled as notebooks do: no such file is there, the text is in the cache of lines."""
    lines = CELL.splitlines(keepends=True)
    monkeypatch.setitem(linecache.cache, request.param, (len(CELL), None, lines, request.param))
    names = {"np": np}
    exec(compile(CELL, request.param, "exec"), names)
    return request.param, names["slanted"]


def test_an_error_shows_the_line_of_a_cell(cell):
    filename, slanted = cell
    with pytest.raises(ShapeError) as raised:
        xf.grad(slanted)(np.ones(3))
    text = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
    assert f"{filename}:4: return xnp.log(x) + np.ones(4)  # the cell's own line" in text


def test_the_nan_guard_and_a_program_show_the_line_of_a_cell(cell):
    filename, slanted = cell
    want = f"{filename}:4: return xnp.log(x) + np.ones(4)  # the cell's own line"
    with pytest.raises(NanError) as raised, np.errstate(divide="ignore"), xf.NanGuard():
        slanted(xf.array(np.zeros(4)))
    assert want in str(raised.value)
    assert raised.value.site == (filename, 4)
    assert want in xf.make_program(slanted)(np.ones(4)).text(lines=True)


def test_a_warning_is_told_at_the_line_of_a_cell(cell):
    filename, slanted = cell
    with pytest.warns(RuntimeWarning) as warned, np.errstate(divide="ignore"), xf.NanGuard(mode="warn"):
        slanted(xf.array(np.zeros(4)))
    assert [(each.filename, each.lineno) for each in warned] == [(filename, 4)]
