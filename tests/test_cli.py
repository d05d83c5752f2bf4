"""The command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from xform import cli

ROOT = Path(__file__).parent.parent


@pytest.fixture
def script(tmp_path):
    def write(code, name="script.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(code))
        return path

    return write


def xform(*arguments, cwd, full=False):
    paths = os.pathsep.join([str(ROOT), str(ROOT / "plugins")])
    environment = {**os.environ, "PYTHONPATH": paths, "XFORM_FULL_TRACEBACK": "1" if full else "0"}
    command = [sys.executable, "-m", "xform", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False)


def test_a_script_runs_as_main_with_its_arguments_and_its_folder(script, tmp_path):
    script("VALUE = 3", "beside.py")
    path = script("import sys, beside; print(__name__, sys.argv, beside.VALUE)")
    done = xform("run", path, "--epochs", "3", "-v", cwd=ROOT)
    assert done.stdout.split("\n")[0] == f"__main__ {[str(path), '--epochs', '3', '-v']} 3"
    assert (done.returncode, done.stderr) == (0, "")


def test_layers_stand_around_it_in_the_order_given(script, tmp_path):
    path = script(
        """
        import numpy as np, xform as xf, xform.numpy as xnp
        y = xnp.sin(xf.array(np.ones(3)))
        print([type(layer).__name__ for layer in xf.stack()])
        """
    )
    done = xform("run", "--with", "nan_guard", path, "a", "--with", "profile:save=trace.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "['Profile', 'NanGuard']" in done.stdout
    events = json.loads((tmp_path / "trace.json").read_text())
    assert "Sin" in json.dumps(events)


OPERATION = "import numpy as np, xform as xf; np.sin(xf.array(np.ones(3)))"


@pytest.mark.parametrize("end", ["", "; import sys; sys.exit(0)", "; raise ValueError"])
def test_layers_print_what_they_found_at_the_end(script, tmp_path, end):
    path = script(OPERATION + end)
    done = xform("run", path, "--with", "profile", cwd=tmp_path)
    assert "operator" in done.stdout
    assert re.search(r"^Sin +forward +1 ", done.stdout, re.MULTILINE)
    done = xform("run", path, "--with", "nan_guard:mode=warn", cwd=tmp_path)
    assert done.stdout == "NanGuard\nno NaN and no infinity was made\n"


def test_layers_that_saved_or_raise_print_nothing(script, tmp_path):
    path = script(OPERATION)
    done = xform("run", path, "--with", "profile:save=trace.json", "--with", "nan_guard", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("", "")


def test_exit_status_and_exceptions_pass_through_without_xforms_frames(script, tmp_path):
    assert xform("run", script("import sys; sys.exit(7)"), cwd=tmp_path).returncode == 7
    path = script(
        """
        import numpy as np, xform as xf

        def fails():
            return xf.array(np.ones(2)) + xf.array(np.ones(3))

        fails()
        """
    )
    done = xform("run", path, "--with", "grad", cwd=tmp_path)
    assert done.returncode == 1
    assert "ShapeError: Add()" in done.stderr
    assert "in fails" in done.stderr
    assert str(ROOT / "xform") not in done.stderr
    full = xform("run", path, "--with", "grad", cwd=tmp_path, full=True)
    assert str(ROOT / "xform") in full.stderr


def test_list_shows_names_and_where_they_come_from(tmp_path):
    done = xform("list", cwd=tmp_path)
    lines = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    assert lines[0] == ["kind", "name", "from"]
    assert ["layer", "profile", "built-in"] in lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "script.py", "--with", "profiel"), "there is no layer 'profiel'; known are:"),
        (("run", "script.py", "--with", "grad:nmae=3"), "it is made as Grad("),
        (("run", "script.py", "--with", "grad:name"), "'name' is no option; write grad:key=value"),
        (("run", "script.py", "--with"), "expected one argument"),
        (("run", "nowhere.py"), "there is no script 'nowhere.py'"),
        ((), "required: command"),
    ],
)
def test_mistakes_end_with_status_2_and_say_what_to_write(script, arguments, message, monkeypatch, capsys):
    monkeypatch.chdir(script("print('ran')").parent)
    try:
        status = cli.main(arguments)
    except SystemExit as end:
        status = end.code
    out, error = capsys.readouterr()
    assert (status, out) == (2, "")
    assert message in error


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("profile", ("profile", {})),
        ("profile:save=trace.json", ("profile", {"save": "trace.json"})),
        ("a:x=1,y=2.5,z=None,w='b,c'", ("a", {"x": 1, "y": 2.5, "z": None, "w": "b,c"})),
        ("a:x=(1, 2),y=[3,4],z={'k': 5}", ("a", {"x": (1, 2), "y": [3, 4], "z": {"k": 5}})),
        ("device:name=cupy:0", ("device", {"name": "cupy:0"})),
        ("a:path=x=y", ("a", {"path": "x=y"})),
    ],
)
def test_options_of_a_layer(text, expected):
    assert cli.parse_layer(text) == expected


def test_what_follows_two_dashes_is_the_scripts(script, tmp_path):
    path = script("import sys; print(sys.argv[1:])")
    done = xform("run", path, "a", "--", "--with", "profile", cwd=tmp_path)
    assert done.stdout.strip() == "['a', '--with', 'profile']"


def test_main_leaves_argv_and_path_as_they_were(script, capsys):
    argv, paths = list(sys.argv), list(sys.path)
    assert cli.main(["run", str(script("import sys; print(sys.argv[1:])")), "x"]) == 0
    assert capsys.readouterr().out == "['x']\n"
    assert (sys.argv, sys.path) == (argv, paths)
