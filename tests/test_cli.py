"""The command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import xform as xf
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
    assert ["engine", "numpy", "built-in"] in lines
    assert {line[0] for line in lines[1:]} <= {"layer", "operator", "backend", "engine"}


def test_version(tmp_path):
    done = xform("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"xform {xf.__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "script.py", "--with", "profiel"), "there is no layer 'profiel'; known are:"),
        (("run", "script.py", "--with", "grad:nmae=3"), "it is made as Grad("),
        (("run", "script.py", "--with", "grad:a,b,c"), "too many positional arguments; it is made as Grad("),
        (("run", "script.py", "--with", "grad:name=x,y"), "'y' stands behind an option; write grad:value,key=value"),
        (("run", "script.py", "--with", "device"), "missing a required argument: 'name'"),
        (("run", "script.py", "--with", "device:no_library:0"), "no backend is named 'no_library'"),
        (("run", "script.py", "--with", "device:array_api_strict:device9"), "is not at hand"),
        (("explain", "nowhere.py"), "there is no script 'nowhere.py'"),
        (("explain", "script.py", "--with", "profiel"), "there is no layer 'profiel'"),
        (("program", "show", "nowhere.xf"), "No such file or directory: 'nowhere.xf'"),
        (("program", "show", "script.py"), "script.py: not a program of xform, or damaged"),
        (("program", "show", "script.py", "--import", "no_such_module"), "No module named 'no_such_module'"),
        (("program", "diff", "script.py"), "the following arguments are required: FILE"),
        (("program",), "required: look"),
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
        ("profile", ("profile", [], {})),
        ("profile:save=trace.json", ("profile", [], {"save": "trace.json"})),
        ("a:x=1,y=2.5,z=None,w='b,c'", ("a", [], {"x": 1, "y": 2.5, "z": None, "w": "b,c"})),
        ("a:x=(1, 2),y=[3,4],z={'k': 5}", ("a", [], {"x": (1, 2), "y": [3, 4], "z": {"k": 5}})),
        ("device:name=cupy:0", ("device", [], {"name": "cupy:0"})),
        ("device:cupy:0", ("device", ["cupy:0"], {})),
        ("device:cpu", ("device", ["cpu"], {})),
        ("a:1,'b,c',x=2", ("a", [1, "b,c"], {"x": 2})),
        ("a:path=x=y", ("a", [], {"path": "x=y"})),
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


def test_a_device_stands_around_a_script_by_its_name_alone(script, tmp_path):
    pytest.importorskip("array_api_strict")
    path = script("import numpy as np, xform as xf; print(np.sin(xf.array(np.ones(2))).device)")
    for text in ("device:array_api_strict:device1", "device:name=array_api_strict:device1"):
        done = xform("run", path, "--with", text, cwd=tmp_path)
        assert done.stdout.splitlines()[0] == "array_api_strict:device1"
        assert done.stdout.splitlines()[2].startswith("Device('array_api_strict:device1'): 1 transfers")
    assert xform("run", path, "--with", "device:cpu", cwd=tmp_path).stdout.splitlines()[0] == "cpu"


@pytest.mark.parametrize("command", ["run", "explain"])
def test_a_device_that_is_not_at_hand_ends_without_a_traceback(script, tmp_path, command):
    path = script("print('ran')")
    done = xform(command, path, "--with", "device:no_library:0", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert str(ROOT / "xform") not in done.stderr
    assert "no backend is named 'no_library'" in done.stderr
    path = script("import numpy as np, xform as xf\nxf.device_put(np.ones(2), 'no_library:0')")
    done = xform(command, path, cwd=tmp_path)
    assert done.returncode == 1
    assert "line 2, in <module>" in done.stderr
    assert str(ROOT / "xform") not in done.stderr


# ------------------------------------------------------------------ explain


def test_explain_prints_the_tree_of_each_operation_when_it_has_ended(script, tmp_path):
    path = script(
        """
        import sys, numpy as np, xform as xf
        x = xf.array(np.ones(2))
        y = np.sin(x) * 2.0
        print("between", sys.argv[1:])
        xf.grad(lambda x: (x * x).sum())(np.ones(2))
        x + np.ones(3)
        """
    )
    done = xform("explain", path, "--with", "nan_guard", "a", cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Sin at script.py:4: y = np.sin(x) * 2.0")
    assert lines[1] == "  NanGuard(mode='raise', inf=True): Sin(Array<float64[2]: [1. 1.]>)"
    assert lines[2].startswith("    bottom: Sin(Array<float64[2]: [1. 1.]>) -> Array<float64[2]")
    assert "between ['a']" in lines
    after = lines[lines.index("between ['a']") :]
    assert any(line.startswith("  Grad(grad#1): Mul(GradValue<float64[2], grad#1>") for line in after)
    assert any(line.startswith("Mul (backward) at script.py:6") for line in after)
    assert "raised ShapeError" in done.stdout
    assert done.returncode == 1
    assert "ShapeError: Add()" in done.stderr


def test_explain_of_a_script_that_tracks_nothing_says_so(script, tmp_path):
    done = xform("explain", script("import numpy as np; np.sin(np.ones(2))"), cwd=tmp_path)
    assert done.stdout == "Explain\nno operation reached the stack: track the inputs with xf.array(x)\n"


# ------------------------------------------------------------------ stored programs


@pytest.fixture
def files(tmp_path):
    one = xf.make_program(lambda x: np.sin(x) * 2.0)(np.ones(3))
    other = xf.make_program(lambda x: np.cos(x) * 2.0)(np.ones(3))
    one.save(tmp_path / "one.xf")
    other.save(tmp_path / "other.xf")
    return tmp_path


def test_show_prints_the_program_with_its_lines(files, capsys):
    assert cli.main(["program", "show", str(files / "one.xf")]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "program(a: float64[3]):"
    assert "b: float64[3] = Sin(a)  # tests/test_cli.py:" in out.replace(str(ROOT) + os.sep, "")


def test_source_prints_numpy(files, capsys):
    assert cli.main(["program", "source", str(files / "one.xf")]) == 0
    compile(capsys.readouterr().out, "source", "exec")


def test_diff_tells_by_its_status(files, capsys):
    one, other = str(files / "one.xf"), str(files / "other.xf")
    assert cli.main(["program", "diff", one, one]) == 0
    assert capsys.readouterr().out == "the programs do not differ\n"
    assert cli.main(["program", "diff", one, other]) == 1
    assert capsys.readouterr().out.startswith("equation 0 differs: the operator\n  left   b: float64[3] = Sin(a)\n")


@pytest.mark.parametrize(
    ("arguments", "starts"),
    [
        ((), "digraph program {"),
        (("--as", "mermaid"), "flowchart TD"),
        (("--as", "svg"), "<svg "),
        (("--as", "html"), "<div "),
        (("-o", "p.svg"), "<svg "),
        (("-o", "p.mmd"), "flowchart TD"),
        (("-o", "p.html"), "<div "),
        (("-o", "p.dot"), "digraph program {"),
        (("-o", "p.txt", "--as", "svg"), "<svg "),
    ],
)
def test_draw(files, arguments, starts, capsys, monkeypatch):
    monkeypatch.chdir(files)
    assert cli.main(["program", "draw", "one.xf", *arguments]) == 0
    out = capsys.readouterr().out
    if "-o" in arguments:
        assert out == ""
        out = (files / arguments[1]).read_text()
    assert out.startswith(starts)
    assert "Sin(a)" in out


def test_a_drawing_whose_form_is_not_known_is_refused(files, capsys, monkeypatch):
    monkeypatch.chdir(files)
    with pytest.raises(SystemExit, match="2"):
        cli.main(["program", "draw", "one.xf", "-o", "p.png"])
    assert "p.png is none of .dot, .gv, .svg, .html, .mmd; name the form with --as" in capsys.readouterr().err
    assert not (files / "p.png").exists()


def test_a_reader_that_has_seen_enough_is_no_error(files):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "xform", "program", "show", str(files / "one.xf")]
    with os.fdopen(writer, "w") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, check=False, cwd=ROOT)
    assert done.stderr == b""
    assert done.returncode == 1


def test_a_program_with_operators_of_your_own(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import attrs, xform as xf\n@attrs.frozen\nclass Twice(xf.Operator):\n"
        "    def infer(self, x):\n        return x\n    def evaluate(self, xp, x):\n        return x + x\n"
    )
    make = tmp_path / "make.py"
    make.write_text(
        "import numpy as np, xform as xf, mine\n"
        "xf.make_program(lambda x: xf.apply(mine.Twice(), x))(np.ones(2)).save('p.xf')\n"
    )
    assert xform("run", make, cwd=tmp_path).stderr == ""
    done = xform("program", "show", "p.xf", cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no operator 'mine:Twice' here" in done.stderr
    done = xform("program", "show", "p.xf", "--import", "mine", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "b: float64[2] = Twice(a)" in done.stdout
