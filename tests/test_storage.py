"""Programs in files: what is stored comes back as it was, in this process and in others."""

from __future__ import annotations

import collections
import dataclasses
import importlib
import math
import os
import pkgutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from tests.operators.collect import families, operations
from tests.zoo import ZOO
from xform.core.errors import ProgramFormatError
from xform.programs.naming import class_name, loaded_class
from xform.programs.program import Program

ROOT = Path(__file__).parent.parent


def again(program: Program, path: Path) -> Program:
    program.save(path)
    return xf.load_program(path)


def same(x: Any, y: Any) -> bool:
    """Bit for bit, in kind, dtype and shape."""
    a, b = np.asarray(x), np.asarray(y)
    return type(x) is type(y) and (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def assert_alike(program: Program, loaded: Program) -> None:
    assert loaded.text(lines=True) == program.text(lines=True)
    assert not xf.diff(program, loaded)
    for first, second in zip(program.equations, loaded.equations, strict=True):
        assert (first.scopes, first.phase, first.site) == (second.scopes, second.phase, second.site)


# ------------------------------------------------------------------ whole programs


def total(fun):
    return lambda *args: sum(xnp.sum(leaf) for leaf in xf.tree.leaves(fun(*args)))


MADE = {"itself": lambda fun: fun, "gradient": lambda fun: xf.grad(total(fun)), "batch": xf.vmap}
STORABLE = [each for each in ZOO if not each.reads and not each.custom]


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("specimen", STORABLE, ids=lambda each: each.name)
def test_a_program_comes_back_as_it_was(specimen, made, tmp_path):
    args = specimen.args()
    if made == "batch":
        args = xf.tree.map(lambda x: np.stack([x, x]), args)
    program = xf.make_program(MADE[made](specimen.fun))(*args)
    loaded = again(program, tmp_path / "p.xf")
    assert_alike(program, loaded)
    for x, y in zip(xf.tree.leaves(program(*args)), xf.tree.leaves(loaded(*args)), strict=True):
        assert same(x, y)
    loaded.save(tmp_path / "again.xf")
    assert (tmp_path / "p.xf").read_bytes() == (tmp_path / "again.xf").read_bytes()


def rows():
    return [row for each in families().values() for row in each]


def test_every_operator_of_the_cases_comes_back(tmp_path):
    """Each class with up to three of its parameter sets, as it is met forward and backward."""
    met = collections.Counter()
    seen = set()
    for row in rows():
        for backward in (False, True):
            try:
                found = operations(row, "float64", backward=backward)
            except (xf.XformError, TypeError, ValueError):  # a row without a pullback
                continue
            for op, values in found:
                if op.attribute_like or op in seen or met[type(op)] == 3:
                    continue
                seen.add(op)
                met[type(op)] += 1
                with xf.Trace() as recorder:
                    out = xf.apply(op, *map(recorder.input, values))
                program = recorder.program(out)
                loaded = again(program, tmp_path / "op.xf")
                (equation,) = loaded.equations
                assert equation.op == op
                assert type(equation.op) is type(op)
                for x, y in zip(program.run(values), loaded.run(values), strict=True):
                    assert same(x, y)
    assert len(met) > 150


def newton(a):
    return xf.while_loop(lambda c: xnp.sum(abs(c * c - a)) > 1e-12, lambda c: 0.5 * (c + a / c), a)


def horner(x):
    return xf.scan(lambda c, x: (c * x + 1.0, c), 1.0, x)


LOOPS = {
    "while": newton,
    "scan": horner,
    "counted": lambda x: xf.fori_loop(0, 5, lambda i, c: c * x + i, x),
    "gradient of while": xf.grad(total(newton)),
    "gradient of scan": xf.grad(total(horner)),
    "tangent": lambda x: xf.jvp(newton, (x,), (x,)),
    "batch": lambda x: xf.vmap(newton)(x[:, None]),
    "branches": lambda x: xf.loops.cond(x.sum() > 0, np.sin, lambda x: x * 2.0, x),
    "gradient of branches": xf.grad(total(lambda x: xf.loops.cond(x.sum() > 0, np.sin, lambda x: x * 2.0, x))),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_and_branches_come_back(name, tmp_path):
    x = np.array([2.0, 3.0])
    program = xf.make_program(LOOPS[name])(x)
    wanted = program(x)  # what is compiled and derived at the first run is not stored
    loaded = again(program, tmp_path / "p.xf")
    assert_alike(program, loaded)
    for a, b in zip(xf.tree.leaves(wanted), xf.tree.leaves(loaded(x)), strict=True):
        assert same(a, b)
    found, expected = (xf.grad(total(each))(x) for each in (loaded, program))
    np.testing.assert_array_equal(found, expected)


def test_it_is_an_npz_of_its_constants_and_a_text(tmp_path):
    table = np.arange(6.0).reshape(2, 3)
    program = xf.make_program(lambda x: x @ table)(np.ones(2))
    program.save(tmp_path / "p.xf")
    np.testing.assert_array_equal(np.load(tmp_path / "p.xf", allow_pickle=False)["constants/0"], table)
    with zipfile.ZipFile(tmp_path / "p.xf") as archive:
        assert archive.namelist() == ["program.json", "constants/0.npy"]
        assert archive.read("program.json").startswith(b'{"format":"xform program","version":1,')


def test_a_loaded_program_composes_and_its_constants_are_its_own(tmp_path):
    table = np.array([1.0, 2.0, 3.0])
    loaded = again(xf.make_program(lambda x: xnp.sum(x * x * table))(np.ones(3)), tmp_path / "p.xf")
    x = np.array([1.0, -2.0, 0.5])
    np.testing.assert_allclose(xf.grad(loaded)(x), 2 * x * table, rtol=1e-15)
    np.testing.assert_allclose(
        xf.vmap(loaded)(np.stack([x, 2 * x])), [(x * x * table).sum(), 4 * (x * x * table).sum()]
    )
    out = again(xf.make_program(lambda x: (x, xnp.asarray(table) * 1.0))(np.ones(3)), tmp_path / "q.xf")(x)[1]
    out += 1.0
    assert loaded(x) == (x * x * table).sum()


def test_scopes_phases_lines_and_the_mark_of_a_derivative(tmp_path):
    def loss(x):
        with xf.named_scope("outer"), xf.named_scope("inner"):
            return xnp.sum(x**3)

    with xf.Trace() as recorder:
        out = xf.grad(loss)(recorder.input(np.ones(2)))
    loaded = again(recorder.program(out), tmp_path / "p.xf")
    assert {equation.phase for equation in loaded.equations} == {"forward", "backward"}
    assert ("outer", "inner") in {equation.scopes for equation in loaded.equations}
    assert {equation.site[0] for equation in loaded.equations} == {__file__}
    assert loaded.derivative == "Grad"

    class Half(xf.Transformation):
        def interpret(self, op, values):
            return xf.apply(op, *values) * 0.5

    with Half(), pytest.raises(xf.XformError, match="derivative"):
        loaded(np.ones(2))


def test_lengths_that_are_not_known(tmp_path):
    program = xf.make_program(lambda x: xnp.sum(xnp.sin(x), axis=0))(xf.Aval((None, 3), np.dtype(float)))
    loaded = again(program, tmp_path / "p.xf")
    assert loaded.in_avals == (xf.Aval((None, 3), np.dtype(float)),)
    np.testing.assert_allclose(loaded(np.ones((4, 3))), np.full(3, 4 * np.sin(1.0)))


# ------------------------------------------------------------------ containers


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class Layer:
    w: Any
    b: Any = None

    def __post_init__(self):
        assert not isinstance(self.w, int), "containers are rebuilt without __init__"


@attrs.frozen
class Model:
    layers: Any
    scale: Any


class Registered:
    def __init__(self, low, high, closed):
        self.low, self.high, self.closed = low, high, closed


xf.tree.register(
    Registered,
    lambda r: ((r.low, r.high), ("closed", r.closed)),
    lambda aux, ends: Registered(*ends, aux[1]),
    ("low", "high"),
)
ones = np.ones(2)
TREES = [
    (),
    (ones,),
    ([ones, (None, ones)], {"b": ones, "a": [], "c": {1: ones, (2, "x"): None}}),
    ({"z": ones, "a": ones},),
    ({2: ones, "two": ones, None: ones, True: ones},),
    (collections.OrderedDict(b=ones, a=ones),),
    (collections.defaultdict(list, b=ones),),
    (Point(ones, Point(ones, None)),),
    (Layer(ones), Model([Layer(ones, ones)], 2.0)),
    (Registered(ones, [ones], True),),
]


@pytest.mark.parametrize("args", TREES, ids=lambda args: str(xf.tree.structure(args))[:60])
def test_containers_come_back(args, tmp_path):
    program = xf.make_program(lambda *xs: (xf.tree.map(lambda x: x * 2.0, xs), xs))(*args)
    loaded = again(program, tmp_path / "p.xf")
    assert loaded.in_structure == program.in_structure
    out = loaded(*args)
    assert xf.tree.structure(out) == program.out_structure
    assert [list(d) for d in find_dicts(out)] == [list(d) for d in find_dicts(program(*args))]  # their order, too
    for x, y in zip(xf.tree.leaves(out[0]), xf.tree.leaves(args), strict=True):
        np.testing.assert_array_equal(x, 2.0 * y)


def find_dicts(node):
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    if isinstance(node, tuple | list):
        for child in node:
            yield from find_dicts(child)


# ------------------------------------------------------------------ other processes


def test_another_process_loads_operators_that_it_has_not_used(tmp_path):
    program = xf.make_program(lambda x: xnp.linalg.norm(xnp.linalg.inv(x) @ x))(np.eye(3))
    program.save(tmp_path / "p.xf")
    code = (
        "import sys, numpy as np\nfrom xform import load_program\n"
        "print(float(load_program(sys.argv[1])(2 * np.eye(3))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "p.xf"], capture_output=True, text=True, cwd=ROOT, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.strip() == str(math.sqrt(3.0)), done.stderr


def test_operators_of_yours_are_found_where_their_module_is_imported(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import attrs, xform as xf\n@attrs.frozen\nclass Twice(xf.Operator):\n"
        "    def infer(self, x):\n        return x\n    def evaluate(self, xp, x):\n        return x + x\n"
    )
    use = "import numpy as np, xform as xf, mine\n"
    save = f"{use}xf.make_program(lambda x: xf.apply(mine.Twice(), x))(np.ones(2)).save('p.xf')"
    load = "import numpy as np, xform as xf\n{}print(xf.load_program('p.xf')(np.ones(2)))"

    def run(code):
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}", "XFORM_FULL_TRACEBACK": "0"}
        command = [sys.executable, "-c", code]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)

    assert run(save).stderr == ""
    assert run(load.format("import mine\n")).stdout.strip() == "[2. 2.]"
    assert "there is no operator 'mine:Twice' here; if it is yours, import the module" in run(load.format("")).stderr


#: modules whose operators hold functions, or serve the checking kit: no file can hold them
WITHOUT = {"xform.transforms", "xform.implicit", "xform.testing"}


def test_every_operator_of_xform_that_can_be_stored_is_found_by_its_name():
    for info in pkgutil.walk_packages(xf.__path__, "xform."):
        importlib.import_module(info.name)
    classes = [xf.Operator]
    for kind in classes:  # it grows while it is read
        classes += kind.__subclasses__()
    # no doctest's
    classes = [kind for kind in classes if getattr(sys.modules[kind.__module__], kind.__name__, None) is kind]
    homes = [(kind, ".".join(kind.__module__.split(".")[:2])) for kind in classes]
    names = {class_name(kind) for kind, home in homes if home.startswith("xform.") and home not in WITHOUT}
    names.discard("xform.programs.holding:HoldsPrograms")  # the base of loops and branches, no operator itself
    assert len(names) > 150
    code = (
        "import sys; from xform.core.operator import Operator; from xform.programs.naming import loaded_class\n"
        "for name in sys.argv[1:]: loaded_class(name, Operator, 'operator')"
    )
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stderr == ""


def test_classes_are_looked_up_and_never_imported():
    sine = "xform.ops.trigonometric:sin"
    for name in ("antigravity:x", "os:system", sine, "xform.core.aval:Aval", "builtins:int", "no", ":"):
        with pytest.raises(ProgramFormatError, match="there is no operator"):
            loaded_class(name, xf.Operator, "operator")
    assert "antigravity" not in sys.modules
