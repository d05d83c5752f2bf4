"""Every example runs, and prints what is true; the README shows the first one and its output as they are."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))
X = np.array([0.5, 1.0, 2.0])
GRADIENT = np.cos(X) * X + np.sin(X)  # of sum(sin(x) * x)


def example(name, *arguments, cwd):
    """Run an example as a user does, with warnings as errors; returns what it prints."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "plugins")])
    environment = {**os.environ, "PYTHONPATH": paths, "TMPDIR": str(cwd), "XFORM_FULL_TRACEBACK": "0"}
    script = Path("examples" if cwd == ROOT else ROOT / "examples", f"{name}.py")
    command = [sys.executable, "-W", "error", str(script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


def line_of(out, label):
    """Return what stands after a label, on the one line that begins with it."""
    (found,) = [line.removeprefix(label).strip() for line in out.splitlines() if line.startswith(label)]
    return found


def numbers(text):
    return [float(number) for number in re.findall(r"-?\d+\.?\d*(?:e[-+]\d+)?", text)]


def close(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=2e-7, atol=1e-8)  # NumPy prints eight digits


def readme_blocks(language):
    text = (ROOT / "README.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def section(title):
    """Return the first block of Python code below a heading of the README."""
    text = (ROOT / "README.md").read_text().split(f"\n## {title}\n")[1]
    return re.search(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)[1]


# ------------------------------------------------------------------ the examples


def test_there_is_a_test_for_each_example_and_the_readme_names_it():
    tested = set(re.findall(r'example\("(\w+)"', Path(__file__).read_text()))
    assert tested == set(EXAMPLES)
    text = (ROOT / "README.md").read_text()
    assert [name for name in EXAMPLES if f"{name}.py" not in text] == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_says_what_it_shows_and_uses_public_names_only(name):
    tree = ast.parse((ROOT / "examples" / f"{name}.py").read_text())
    assert ast.get_docstring(tree)
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    ours = {module for module in imported if module.split(".")[0] == "xform"}
    assert ours <= {"xform", "xform.numpy", "xform.testing"}
    private = [n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and re.match(r"_[a-z]", n.attr)]
    assert private == []


def test_digits(tmp_path):
    out = example("digits", tmp_path / "traces", cwd=tmp_path)
    seconds, accuracy = numbers(line_of(out, "trained in"))
    assert accuracy >= 0.97
    assert seconds < 60
    progress = re.findall(r"^epoch +(\d+)  loss ([\d.]+)  test accuracy ([\d.]+)$", out, flags=re.MULTILINE)
    assert len(progress) >= 4
    losses = [float(loss) for _, loss, _ in progress]
    assert losses == sorted(losses, reverse=True)
    assert re.search(r"^Matmul +backward +5 ", out, flags=re.MULTILINE)
    assert re.search(r"^Matmul +forward +3 ", out, flags=re.MULTILINE)
    events = json.loads((tmp_path / "traces" / "digits-trace.json").read_text())["traceEvents"]
    assert sum(event["name"] == "Matmul" for event in events) == 8
    assert "layer0" in {event["name"] for event in events}
    assert re.search(r"is a program of \d+ equations", out)


def test_tour(tmp_path):
    out = example("tour", cwd=tmp_path)
    close(numbers(line_of(out, "grad(f)(x)  =")), [*GRADIENT, *GRADIENT])
    close(numbers(line_of(out, "twice, 0.5  =")), [2 * np.cos(0.5) - 0.5 * np.sin(0.5)] * 2)
    assert line_of(out, "value 1.750").endswith("the model's structure: {'weight': (3, 3), 'bias': (3,)}")
    close(numbers(line_of(out, "vjp(tanh):")), [0.0, 1.0 - np.tanh(1.0) ** 2, 0.0])
    close(numbers(line_of(out, "callback: dy/da =")), GRADIENT)
    first, second = [numbers(line.split("=")[1])[:3] for line in out.splitlines() if line.startswith("gradient    =")]
    close(first, GRADIENT)
    close(second, GRADIENT)
    close(numbers(line_of(out, "rounded     =")), [0.0, 1.0, 2.0, *(X + np.round(X))])
    assert "  b: float64[3] = Exp(a)\n  c: float64[3] = Add(b, 1.0)\n  return c\n" in out
    assert line_of(out, "trace(grad(f)) equals grad(f):") == "True"
    assert line_of(out, "forward:") == "3 operations, 1 of them Mul"
    assert line_of(out, "NanGuard:").startswith("Sqrt made nan at (0,), in 1 of 3 elements, in the forward phase at ")
    assert "[9. 1. 2.]  beneath: [0.5 1.  2. ]  type: float64[3]" in out
    assert "x = x.at[i].set(v)" in line_of(out, "WriteError:")
    assert line_of(out, "above grad it sees your operations:") == "Sin Mul Sum"
    assert line_of(out, "the stack, top first:") == "Names()"
    assert line_of(out, "below grad it sees the backward, too:").startswith("Sin Mul Sum ")
    assert "Cos" in line_of(out, "below grad it sees the backward, too:").split()
    assert line_of(out, "all layers by name:") == "batch device explain forward grad names nan_guard profile trace"


def test_script_with_apply(tmp_path):
    out = example("script_with_apply", cwd=tmp_path)
    x = np.array([0.0, 1.0, 2.0])
    assert line_of(out, "formula:") == "['x', Sin(), 'x', Mul(), 0.5, Add(), Sum(axis=(0,), keepdims=False)]"
    close(numbers(line_of(out, "value:")), [np.sum(np.sin(x) * x + 0.5)] * 2)
    assert line_of(out, "equal:") == "True   and not: False"
    assert line_of(out, "infer:") == "float32[3]   evaluate: [2. 2. 2.]"
    close(numbers(line_of(out, "gradient:")), [*(np.cos(x) * x + np.sin(x))] * 2)
    assert "  e: float64[] = Sum(axis=(0,), keepdims=False)(d)\n  return e\n" in out
    assert line_of(out, "Sin and Mul were applied:") == "2 and 2 times"
    close(numbers(line_of(out, "sin -> exp:")), [np.sum(np.exp(x) * x + 0.5)])
    message = line_of(out, "an error names operator, operands and line:")
    assert message.startswith("Mul(): ")
    assert "operand 0: float64[3], operand 1: float64[2]" in message
    assert "script_with_apply.py:" in message


def test_compose_grad_and_trace(tmp_path):
    out = example("compose_grad_and_trace", cwd=tmp_path)
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=3), rng.normal(size=(4, 3))
    t = np.tanh(x @ w)
    gradient = (2 * (t - 1) * (1 - t**2)) @ x / 4
    close(numbers(line_of(out, "eager grad(f):")), gradient)
    close(numbers(line_of(out, "trace(grad(f)):"))[:3], gradient)
    close(numbers(line_of(out, "grad(trace(f)):"))[:3], gradient)
    assert "Python ran f 1 time for 6 calls" in out
    assert "Python ran f 0 times: the tape saw the replay" in out
    assert "\n  d: float64[4] = Tanh(c)\n" in out
    assert re.search(r"^  Tanh\(\) +forward +model +line (\d+)$", out, flags=re.MULTILINE)
    assert re.search(r"^  Mul\(\) +backward +model/Tanh\.Backward +line (\d+)$", out, flags=re.MULTILINE)
    second = (1 - t**2) * (2 * (1 - t**2) - 4 * (t - 1) * t)
    close(numbers(line_of(out, "Hessian times ones, grad of trace(grad(f)):")), (second * x.sum(axis=1)) @ x / 4)
    equations, forward, backward = (
        int(re.search(pattern, out)[1])
        for pattern in (r"Program of (\d+) equations", r"(\d+) operations forward", r"forward, (\d+) backward")
    )
    assert forward + backward == equations
    assert line_of(out, "another shape of x:") == "Python ran f 1 time"
    assert line_of(out, "branching on a traced value:") == "[1.0, 2.0, 3.0] in 2 paths"


def test_write_a_transformation(tmp_path):
    out = example("write_a_transformation", cwd=tmp_path)
    assert line_of(out, "height:") == "2.774 m^1"
    assert line_of(out, "nonsense raises:") == "Add of m^1 s^-1 and m^1 s^-2"
    assert line_of(out, "no rule for it:").startswith("Exp() has no unit rule; write one with @unit_rule(Exp)")
    assert line_of(out, "d height / d t:") == "3.095 m^1 s^-1"  # 8 - 9.81 / 2
    assert line_of(out, "d2 height / d t2:") == "-9.81 m^1 s^-2"
    assert line_of(out, "the same, replayed:") == "3.095 m^1 s^-1"
    assert line_of(out, "profiled operations:") == "5"
    assert line_of(out, "check_transformation(Units):") == "passed"


def test_write_an_operator(tmp_path):
    out = example("write_an_operator", cwd=tmp_path)
    x = np.array([-2.0, 0.0, 3.0])
    logistic = 1 / (1 + np.exp(-x))
    close(numbers(line_of(out, "softplus(x)   =")), np.logaddexp(0, x))
    close(numbers(line_of(out, "no overflow   =")), [0.0, 1000.0])
    close(numbers(line_of(out, "gradient      =")), [*logistic, *logistic])
    assert line_of(out, "second, at 0  =") == "0.25   exactly 1/4"
    assert "  b: float64[3] = Softplus(sharpness=2.0)(a)\n" in out
    assert line_of(out, "profiled      =") == "1 call of Softplus"
    assert line_of(out, "check_operator:") == "passed"


def test_write_a_backend(tmp_path):
    out = example("write_a_backend", cwd=tmp_path)
    x = np.array([0.0, 1.0, 2.0])
    gradient = np.cos(x) * x + np.sin(x)
    assert line_of(out, "gradient:").endswith("'south')")
    close(numbers(line_of(out, "gradient:")), gradient)
    close(numbers(line_of(out, "back on the host:")), [*gradient, *gradient])
    counts = ast.literal_eval(line_of(out, "calls of the library:"))
    assert counts["sin"] == counts["cos"] == counts["sum"] == 1
    assert line_of(out, "Device('bank:south'):").startswith("1 transfers (0.000 MB), 0 of them")
    close(numbers(line_of(out, "traced:")), gradient)
    message = line_of(out, "DeviceMismatchError:")
    assert "bank:south" in message
    assert "cpu" in message
    assert "there are the banks north and south, not 'east'" in line_of(out, "DeviceUnavailableError:")


def test_profile_a_script(tmp_path):
    out = example("profile_a_script", cwd=tmp_path)
    assert re.search(r"^Matmul +backward +2 ", out, flags=re.MULTILINE)
    assert line_of(out, "calls of Matmul:") == "3  in the backward: 2"
    assert re.search(r"^centre +forward +1 ", out, flags=re.MULTILINE)
    (slope,) = numbers(line_of(out, "slope"))
    assert abs(slope - 2.0) < 0.01
    assert "Tanh ran 100 times, in scope 'model'" in line_of(out, "the trace has")
    assert "saw no operation" in line_of(out, "UserWarning:")
    (folder,) = tmp_path.iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["fit.json", "fit.py", "layer.json"]


def test_fit_ode(tmp_path):
    out = example("fit_ode", cwd=tmp_path)

    def rows(pattern):
        return re.findall(f"^{pattern}$", out, flags=re.MULTILINE)

    def agree(found, checked):
        np.testing.assert_allclose(numbers(found), numbers(checked), rtol=1e-4, atol=2e-6)  # six digits are printed

    checked = rows("finite differences: +(.*)")
    agree(line_of(out, "gradient at the start:"), checked[0])
    losses = [float(loss) for loss in rows(r"round +\d+  loss ([\d.]+)  \d+ steps tried")]
    assert len(losses) == 5
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.05**2  # the noise
    fitted = rows(r"  \w+ +([\d.]+)  \(true ([\d.]+)\)")
    assert len(fitted) == 5
    assert all(abs(float(found) / float(true) - 1.0) < 0.1 for found, true in fitted)
    runs = rows(r"checkpoint=(\S+): +(\d+) rounds, +(\d+) run again, +(\d+) bytes kept, gradient (.*)")
    assert [policy for policy, *_ in runs] == ["None", "10", "'sqrt'", "'log'"]
    again, kept = ([int(run[column]) for run in runs] for column in (2, 3))
    assert again == sorted(again)
    assert again[0] == 0
    assert kept == sorted(kept, reverse=True)
    assert kept[0] > 20 * kept[3]
    for *_, gradient in runs:
        agree(gradient, checked[1])
    agree(line_of(out, "settled:"), line_of(out, "closed form:"))
    for name in ("hares:", "lynxes:"):
        agree(*line_of(out, name).split("finite differences:"))
    assert numbers(line_of(out, "hares:"))[:2] == [0.0, 0.0]  # growth and capacity move the lynxes alone


# ------------------------------------------------------------------ the README


def test_the_readme_opens_with_layers_that_compose():
    source = (ROOT / "examples" / "layers_that_compose.py").read_text()
    docstring = ast.parse(source).body[0]
    after = "".join(source.splitlines(keepends=True)[docstring.end_lineno :]).lstrip("\n")
    assert readme_blocks("python")[0] == after
    assert len(after.splitlines()) <= 45


def test_the_readme_shows_the_output_of_layers_that_compose():
    out = example("layers_that_compose", cwd=ROOT)
    assert readme_blocks("text")[0] == out
    value, closed_form = numbers(line_of(out, "grad(layer(f))(x) =").replace("cos x - x sin x", ""))
    assert value == closed_form == round(np.cos(0.5) - 0.5 * np.sin(0.5), 6)


def test_in_one_sitting_runs(capsys):
    code = section("In one sitting")
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    out = capsys.readouterr().out
    assert "  b: float64[3] = Exp(a)\n  c: float64[3] = Add(b, 1.0)\n  return c\n" in out
    assert re.search(r"^Tanh +forward +1 ", out, flags=re.MULTILINE)
    value, gradient = names["step"](np.array([1.0, 2.0, 3.0]), np.eye(3))
    close(value, 14 / 3)
    close(gradient, np.array([1.0, 2.0, 3.0]) * 2 / 3)
    assert names["xf"].grad(lambda x: names["rounded"](x) * 2.0)(1.3) == 2.0


def test_the_layer_of_the_readme_runs():
    import xform as xf

    names = {"np": np, "xf": xf}
    exec(section("Your own layer"), names)
    with names["Flops"]() as flops:
        gradient = xf.grad(lambda x: np.sum(np.sin(x) * x))(X)
    close(gradient, GRADIENT)
    assert flops.count >= 3 + 3 + 1  # sin, product and sum, and the backward's


def test_the_programs_of_the_readme_are_stored_compared_and_drawn(tmp_path, monkeypatch, capsys):
    import xform as xf

    monkeypatch.chdir(tmp_path)
    names = {"np": np, "xf": xf}
    exec(section("Programs as data"), names)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "the programs do not differ"
    assert lines[1].startswith("cpu and array_api_strict:device1 do not differ (by more than ")
    w = np.array([0.1, 0.2, 0.3])
    value, gradient = names["loaded"](w, np.eye(3))
    close(value, np.tanh(w).sum())
    close(gradient, 1 - np.tanh(w) ** 2)
