"""The examples in the docstrings of every public module run and give what they show."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil

import pytest

import xform

MODULES = sorted(
    info.name
    for info in pkgutil.walk_packages(xform.__path__, "xform.")
    if not any(part.startswith("_") for part in info.name.split("."))
)


class Finder(doctest.DocTestFinder):
    """Finds the examples of decorated functions too."""

    def _from_module(self, module, object):
        return super()._from_module(module, inspect.unwrap(object) if inspect.isroutine(object) else object)


@pytest.mark.parametrize("name", ["xform", *MODULES])
def test_docstrings(name):
    module = importlib.import_module(name)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for test in Finder().find(module, name):
        runner.run(test, out=report.append)
    assert not runner.failures, "".join(report)
