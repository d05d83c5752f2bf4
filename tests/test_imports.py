"""What is imported, and in which direction: numpy and attrs alone, and imports only point down."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "xform"

#: from the bottom to the top; a module imports from its own line and the lines above only
LAYERS = (
    ("core",),
    ("tree",),
    ("plugins",),
    ("ops",),
    ("values",),
    ("numpy", "layers"),
    ("programs",),
    ("transforms",),
    ("loops",),
    ("derivatives",),
    ("implicit",),
    ("debug", "random"),
    ("testing",),
    ("cli",),
    ("__main__",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in FILES}
modules = pytest.mark.parametrize("module", MODULES)


def imports(module: str) -> list[tuple[str, int, bool]]:
    """Return the xform modules that a module imports, with the line, and whether inside a function."""
    tree = ast.parse(MODULES[module].read_text())
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}:{node.lineno}: relative import"
            base = node.module or ""
            names = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found += [(name, node.lineno, id(node) in inside) for name in names if name.partition(".")[0] == "xform"]
    return found


def rank(module: str) -> int:
    """Return the height of a module; `xform` itself, which exports all, stands above everything."""
    parts = module.split(".")
    return len(LAYERS) if len(parts) == 1 else RANK[parts[1]]


def test_every_module_has_its_place():
    assert {module.split(".")[1] for module in MODULES if module != "xform"} <= set(RANK)


@modules
def test_imports_point_down(module):
    upward = [f"line {line}: {name}" for name, line, _ in imports(module) if rank(name) > rank(module)]
    assert not upward, f"{module} imports from above: {upward}"


#: modules that name others above them in strings, to import them when they are asked for, and why they may
BY_NAME = {
    "xform.core.devices": ("a backend that is not built in is looked up when its name is asked for", {"xform.plugins"}),
    "xform.values": ("`x.__array_namespace__()` gives the namespace, which stands on values", {"xform.numpy"}),
    "xform.programs.naming": ("a file names loops and branches, which come with their rules", {"xform.loops"}),
    "xform.plugins": (
        "the layers and the engine of xform are known by name, as those of plugins are, and loaded when asked for",
        {
            f"xform.transforms.{name}"
            for name in ("batch", "device", "explain", "forward", "grad", "nan_guard", "profile", "trace")
        }
        | {"xform.programs.engines"},
    ),
}


def named(module: str) -> list[tuple[str, int]]:
    """Return the modules of xform that stand above a module and whose names are strings in it, with the line."""
    tree = ast.parse(MODULES[module].read_text())
    passed = {  # docstrings, and what a name is compared with
        id(argument)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "startswith"
        for argument in node.args
    }
    passed |= {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    strings = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    found = [(n.value.partition(":")[0], n.lineno) for n in strings if id(n) not in passed]
    return [(name, line) for name, line in found if name in MODULES and "." in name and rank(name) > rank(module)]


@modules
def test_no_string_points_up_but_where_it_is_said_why(module):
    why, allowed = BY_NAME.get(module, ("", set()))
    assert {name for name, _ in named(module)} == allowed, why


@pytest.mark.parametrize("module", ["xform.core.bottom", "xform.ops.base"])
def test_a_planted_string_that_points_up_is_found(module, tmp_path, monkeypatch):
    path = tmp_path / "planted.py"
    path.write_text('"""xform.transforms.grad"""\nimport importlib\nimportlib.import_module("xform.transforms.grad")\n')
    monkeypatch.setitem(MODULES, module, path)
    assert named(module) == [("xform.transforms.grad", 3)]


@modules
def test_no_xform_import_hides_in_a_function(module):
    hidden = [f"line {line}: {name}" for name, line, inside in imports(module) if inside]
    assert not hidden, f"{module} imports inside a function: {hidden}"


def test_no_import_cycle():
    graph = {module: {name for name, _, _ in imports(module)} - {module} for module in MODULES}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, f"cycle: {' -> '.join((*path[path.index(module) :], module))}"
        if module not in done:
            for below in sorted(graph.get(module, ())):
                visit(below, (*path, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def sources() -> list[Path]:
    folders = [ROOT / name for name in ("xform", "plugins", "tests", "examples")]
    return [path for folder in folders if folder.exists() for path in sorted(folder.rglob("*.py"))]


def test_files_stay_short():
    long = {str(path.relative_to(ROOT)): count for path in sources() if (count := path.read_text().count("\n")) > 500}
    assert not long


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_numpy_and_attrs_are_all_that_is_brought_in():
    code = (
        "import sys; before = set(sys.modules)\n"
        "import xform, xform.numpy; names = [getattr(xform, name) for name in xform.__all__]\n"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    loaded = set(run(code).split()) - sys.stdlib_module_names - {"attr", "attrs"}
    # compiled parts of NumPy appear under names of their own
    assert {name for name in loaded if not name.startswith(("_", "cython"))} == {"xform", "numpy"}


def test_import_alone_brings_in_neither():
    code = "import sys, xform; print({'numpy', 'attr', 'attrs'} & set(sys.modules))"
    assert run(code).strip() == "set()"


@pytest.mark.parametrize(
    "code",
    [
        "import xform.numpy as xnp; print((xnp.array([1.0, 2.0]) + 1.0).sum())",
        "from xform.transforms.profile import Profile as P; print(P()(lambda x: (x + 1).sum())(np.array([1.0, 2.0])))",
    ],
)
def test_values_behave_whatever_is_imported_first(code):
    assert float(run(f"import numpy as np; {code}")) == 5.0


def test_import_looks_for_no_plugin():
    code = "import sys, xform; xform.grad, xform.layer; print({'importlib.metadata', 'argparse'} & set(sys.modules))"
    assert run(code).strip() == "set()"


def test_public_names_are_there():
    code = "import xform; print(*[name for name in xform.__all__ if not hasattr(xform, name)])"
    assert run(code).split() == []


def test_typeguard_is_on():
    """Without the import hook, annotations would go unchecked in silence."""
    from typeguard import TypeCheckError

    from xform.core.source import describe

    with pytest.raises(TypeCheckError):
        describe("neither a site nor None")
