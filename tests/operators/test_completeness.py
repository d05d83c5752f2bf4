"""No operator without rules, without a type rule, or without a row: what is missing on purpose says why."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from typeguard import suppress_type_checks

import xform
from tests.operators.collect import families, operations
from xform.core.operator import Operator
from xform.core.rules import batch_rule, jvp_rule, vjp_rule
from xform.ops.base import Elementwise, Parameterless

for _module in pkgutil.walk_packages(xform.__path__, "xform."):
    if not _module.name.endswith("__main__"):
        importlib.import_module(_module.name)

#: operators that no row goes through, and why
WITHOUT_ROW = {
    "DevicePut": "it moves between devices and computes nothing; test_device_put moves",
    "Observe": "it tells an observer and computes nothing; test_behaviours_trace replays it",
    "Print": "it prints and computes nothing; test_debug_print reads what",
    "PutLike": "it moves between devices and computes nothing; test_device_put moves",
    "StopGradient": "finite differences see through it; test_behaviours_nesting asks for its zero",
}


#: operators outside of `xform.ops` that no layer is given, and why; without a rule a layer that met one would raise
GIVEN_TO_NO_LAYER = {
    "Group": "it stands in compiled programs, and a call of one has rules as a whole",
    "Halt": "it stands in loops that are written as source, and a loop has rules as a whole",
    "Journal": "it stands in the entries of a tape, which has walked through it when a layer gets its operations",
}


def operator_classes(base: type[Operator] = Operator) -> set[type[Operator]]:
    found = set()
    for kind in base.__subclasses__():
        found |= operator_classes(kind)
        current = getattr(sys.modules[kind.__module__], kind.__name__, None) is kind  # attrs makes classes anew
        if kind.__module__.startswith("xform.") and current and not is_base(kind):
            found.add(kind)
    return found


def is_base(kind: type[Operator]) -> bool:
    """Whether a class only holds what operators of a family share: nobody makes an operator of it."""
    if kind in (Elementwise, Parameterless):
        return True
    below = [other for other in kind.__subclasses__() if other.__module__.startswith("xform.")]
    return bool(below) and all(table.state(kind) == "missing" for table in (vjp_rule, jvp_rule, batch_rule))


EVERYWHERE = sorted(operator_classes(), key=lambda kind: kind.__name__)
CLASSES = [kind for kind in EVERYWHERE if kind.__module__.startswith("xform.ops")]
ELSEWHERE = [kind for kind in EVERYWHERE if kind not in CLASSES]
classes = pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)


def test_there_are_operators_and_their_names_differ():
    names = [kind.__name__ for kind in EVERYWHERE]
    assert len(names) > 20
    assert len(set(names)) == len(names)


@classes
@pytest.mark.parametrize("table", [vjp_rule, jvp_rule, batch_rule], ids=lambda table: table.name)
def test_rule_or_reason(kind, table):
    state = table.state(kind)
    assert state != "missing", f"{kind.__name__} has no {table.name} rule"
    if state == "none":
        assert len(table.rules[kind].why.split()) >= 2


@pytest.mark.parametrize("kind", ELSEWHERE, ids=lambda kind: kind.__name__)
def test_rule_or_reason_outside_of_ops(kind):
    missing = [table.name for table in (vjp_rule, jvp_rule, batch_rule) if table.state(kind) == "missing"]
    assert bool(missing) == (kind.__name__ in GIVEN_TO_NO_LAYER), missing


@classes
def test_type_rule_and_meaning(kind):
    assert kind.infer is not Operator.infer
    assert kind.evaluate is not Operator.evaluate or kind.kernel is not None
    assert kind.__doc__


@pytest.fixture(scope="module")
def met() -> set[str]:
    """Names of the operators that the rows go through, forward and backward."""
    found = set()
    for rows in families().values():
        for row in rows:
            backward = bool(row.order and "rev" in row.modes)
            with suppress(Exception), suppress_type_checks():  # a row that fails is red elsewhere
                found |= {type(op).__name__ for op, _ in operations(row, "float64", backward=backward)}
    return found


def test_reasons_name_tests_that_are_there():
    tests = {path.stem: path.read_text() for path in Path(__file__).parent.parent.rglob("test_*.py")}
    for kind, why in WITHOUT_ROW.items():
        for name in re.findall(r"test_\w+", why):
            spelled = re.sub(r"(?<!^)(?=[A-Z])", "_", kind).lower()
            assert kind in tests[name] or spelled in tests[name], f"{kind}: {name} does not speak of it"


@classes
def test_row_or_reason(kind, met):
    name = kind.__name__
    assert (name in met) != (name in WITHOUT_ROW), f"{name}: give it a row, or a reason (not both)"
