"""Names in texts: the README has every public name, and what it and the errors tell people to write is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import xform as xf
import xform.numpy as xnp

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
FILES = sorted((ROOT / "xform").rglob("*.py"))


def names_in(text: str) -> set[str]:
    """Return the dotted names of xform that a text has: `xf.tree.map`, `xnp.where`."""
    found = re.findall(r"(?<![\w.])(xf|xnp|xform\.numpy)((?:\.[A-Za-z_]\w*)+)", text)
    return {f"{'xf' if module == 'xf' else 'xnp'}{rest}" for module, rest in found}


def is_there(name: str) -> bool:
    """Whether a name can be read; below a class that fills its instances alone, the class is enough."""
    first, *rest = name.split(".")
    at: object = {"xf": xf, "xnp": xnp}[first]
    for part in rest:
        if not hasattr(at, part):
            return False
        at = getattr(at, part)
    return True


def strings_of(path: Path) -> list[str]:
    """Return the string constants of a file: messages, parts of f-strings, and docstrings."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def test_the_readme_has_every_public_name():
    listed = README.split("\n## All public names\n")[1].split("\n## ")[0]
    assert {f"xf.{name}" for name in xf.__all__} - names_in(listed) == set()


def test_every_name_in_the_readme_is_there():
    found = names_in(README)
    assert len(found) > 40
    assert {name for name in found if not is_there(name)} == set()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_name_in_a_message_is_there(path):
    assert {name for text in strings_of(path) for name in names_in(text) if not is_there(name)} == set()


@pytest.mark.parametrize(("text", "want"), [
    ("use xf.stop_gradient(v), np.stack or xnp.array", {"xf.stop_gradient", "xnp.array"}),
    ("in xform.numpy.linalg.det.", {"xnp.linalg.det"}),
    ("self.xf.grad and x.xf.y", set()),
    ("`xf.float32x`", {"xf.float32x"}),
])  # fmt: skip
def test_names_are_found(text, want):
    assert names_in(text) == want
    assert [is_there(name) for name in sorted(want)] == [name != "xf.float32x" for name in sorted(want)]
