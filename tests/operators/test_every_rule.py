"""No rule goes unchecked: each is exercised by a row, in every precision, and an error in it of a thousandth is caught.

The rows themselves are checked in test_rules; here every rule of every operator is made wrong, and some row must tell.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache

import numpy as np
import pytest
from typeguard import suppress_type_checks

import xform as xf
import xform.numpy as xnp
from tests.operators.case import Case
from tests.operators.collect import families, in_dtype, operations
from tests.operators.test_completeness import CLASSES, WITHOUT_ROW
from xform import ops
from xform.core.rules import Bilinear, Linear, Partials, batch_rule, jvp_rule, vjp_rule
from xform.testing import check_grads
from xform.testing.batching import check_batch
from xform.testing.gradients import check_problem, curved, flattened

ROWS = {f"{family}-{row.name}": row for family, rows in families().items() for row in rows}
SMOOTH = {label: row for label, row in ROWS.items() if row.order > 1}
TABLES = {"rev": vjp_rule, "fwd": jvp_rule}
WITH_RULE = [kind for kind in CLASSES if any(table.state(kind) == "rule" for table in TABLES.values())]
DEVICES = {"DevicePut": "it moves an array and computes nothing", "PutLike": "it moves an array and computes nothing"}
#: operators whose rules are not asked, or checked elsewhere, and why
UNCHECKED = {**DEVICES, "Name": "a tape and forward mode share the slot of what it names"}


@pytest.fixture(autouse=True, scope="module")
def _types_are_checked_elsewhere():
    with suppress_type_checks():
        yield


# ------------------------------------------------------------------ every row between two curved functions


@pytest.mark.parametrize("row", [pytest.param(row, id=label) for label, row in SMOOTH.items()])
def test_second_derivatives_between_curved_functions(row: Case):
    """Linear operators have second derivatives here, so that the derivatives of their own rules count."""
    check_problem(curved(flattened(row.name, row.fun, row.args)), 2, row.modes)


# ------------------------------------------------------------------ every rule has a row


@cache
def rows_of(dtype: str) -> dict[str, list[str]]:
    """Return the rows of second order by the operators that they meet: forward first, then in their backward alone."""
    direct, behind = defaultdict(list), defaultdict(list)
    for label, row in SMOOTH.items():
        if (dtype == "float32" and row.x64_only) or (dtype == "complex128" and not row.complex):
            continue
        met = {op.name for op, values in operations(row, dtype) if floats_in(values, dtype)}
        backward = operations(row, dtype, backward=True) if "rev" in row.modes else []
        for name in met:
            direct[name].append(label)
        for name in {op.name for op, values in backward if floats_in(values, dtype)} - met:
            behind[name].append(label)
    return {name: direct[name] + behind[name] for name in {**direct, **behind}}


def floats_in(values, dtype):
    kinds = "c" if dtype == "complex128" else "fc"
    return any(xf.aval_of(value).dtype.kind in kinds for value in values)


@pytest.mark.parametrize("kind", WITH_RULE, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_rule_is_exercised_at_second_order(kind, dtype):
    assert (kind.__name__ in rows_of(dtype)) != (kind.__name__ in DEVICES)


#: what NumPy computes on real numbers alone
REAL = {
    "Arctan2", "Cbrt", "Copysign", "Deg2rad", "Fabs", "Fmod", "Heaviside", "Hypot", "Ldexp", "Logaddexp", "Logaddexp2",
    "Rad2deg", "Remainder",
}  # fmt: skip
X = in_dtype(np.array([[-1.3, -0.4, 0.7], [0.2, 1.1, 2.3]]), "complex128")
Y = in_dtype(np.array([[0.9, -1.7, 0.3], [-0.6, 1.9, -2.2]]), "complex128")
AT = np.array([1, 0])
#: complex numbers in the order of their real parts, which array-api-strict does not have: no rows, but these
ORDERED = {
    "Maximum": lambda a, b: xnp.maximum(a * a, b), "Minimum": lambda a, b: xnp.minimum(a * a, b),
    "Fmax": lambda a, b: xnp.fmax(a * a, b), "Fmin": lambda a, b: xnp.fmin(a * a, b),
    "Max": lambda a, b: xnp.max(a * b, axis=1), "Min": lambda a, b: xnp.min(a * b, axis=0),
    "Sort": lambda a, b: xnp.sort(a * b, axis=0), "AtMost": lambda a, b: xnp.clip(a * b, max=0.9),
    "AtLeast": lambda a, b: xnp.clip(a * b, -0.3), "IndexMax": lambda a, b: ops.At(a * a)[AT].max(b * b),
    "IndexMin": lambda a, b: ops.At(a * a)[AT].min(b * b),
}  # fmt: skip


@pytest.mark.parametrize("kind", WITH_RULE, ids=lambda kind: kind.__name__)
def test_every_rule_that_applies_to_complex_numbers_is_exercised_with_them(kind):
    name = kind.__name__
    assert [name in rows_of("complex128"), name in REAL, name in ORDERED, name in DEVICES].count(True) == 1


@pytest.mark.parametrize("name", ORDERED)
def test_rules_of_ordered_complex_numbers(name):
    check_grads(ORDERED[name], (X, Y), order=2)


# ------------------------------------------------------------------ every rule made wrong


def off(value, order):
    """Return a cotangent or tangent that is off by a thousandth (order 1), or whose derivative is (order 2)."""
    if value is None or order == 1:
        return None if value is None else value * 1.001
    return value * 1.001 - xf.stop_gradient(value) * 0.001


def wrong_vjp(rule, order):
    reverse = rule.vjp if isinstance(rule, Partials | Linear | Bilinear) else rule

    def wrong(op, needed, *primals):
        out, pullback = reverse(op, needed, *primals)
        return out, lambda cotangent: tuple(off(each, order) for each in pullback(cotangent))

    return wrong


def wrong_jvp(rule, order):
    forward = rule.jvp if isinstance(rule, Partials | Linear | Bilinear) else rule

    def wrong(op, primals, tangents):
        out, found = forward(op, primals, tangents)
        return out, tuple(off(t, order) for t in found) if isinstance(found, tuple) else off(found, order)

    return wrong


WRONG = {"rev": wrong_vjp, "fwd": wrong_jvp}


def tells(row: Case, mode: str, order: int) -> bool:
    """Whether a row, by itself or between curved functions, fails."""
    problem = flattened(row.name, row.fun, row.args)
    try:
        check_problem(curved(problem) if order > 1 else problem, order, (mode,))
        check_problem(problem, order, (mode,))
    except AssertionError:
        return True
    return False


CHECKED = [kind for kind in WITH_RULE if kind.__name__ not in UNCHECKED]


@pytest.mark.parametrize("kind", CHECKED, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("mode", TABLES)
def test_an_error_of_a_thousandth_in_any_rule_is_caught(kind, mode, order):
    table = TABLES[mode]
    if table.state(kind) != "rule":
        pytest.skip("none on purpose")
    rule = table.rules[kind]
    table.rules[kind] = WRONG[mode](rule, order)
    try:
        rows = [SMOOTH[label] for label in rows_of("float64")[kind.__name__]]
        assert any(tells(row, mode, order) for row in rows if mode in row.modes)
    finally:
        table.rules[kind] = rule


def wrong_batch(rule, order):
    def wrong(op, size, values, axes):
        out, at = rule(op, size, values, axes)
        return (tuple(off_batch(each, order) for each in out) if op.multiple_outputs else off_batch(out, order)), at

    return wrong


def off_batch(out, order):
    kind = xf.aval_of(out).dtype.kind
    if kind in "fc":
        return off(out, order + 1)
    return ~out if kind == "b" else out + 1


@cache
def met() -> dict[str, list]:
    """Return operations by the names of their operators, from all rows."""
    found = defaultdict(list)
    for row in ROWS.values():
        for op, values in operations(row, "float64", backward=bool(row.order and "rev" in row.modes)):
            found[op.name].append((op, values))
    return found


def tells_in_batch(op, values):
    try:
        with np.errstate(all="ignore"):
            check_batch(op, values)
    except AssertionError:
        return True
    return False


BATCHED = [kind for kind in CLASSES if batch_rule.state(kind) == "rule" and kind.__name__ not in WITHOUT_ROW]


@pytest.mark.parametrize("kind", BATCHED, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("order", [0, 1])
def test_an_error_of_a_thousandth_in_any_batch_rule_is_caught(kind, order):
    """In its value, and in its derivative where it has one."""
    if order and kind not in CHECKED:
        pytest.skip("no derivative")
    rule = batch_rule.rules[kind]
    batch_rule.rules[kind] = wrong_batch(rule, order)
    try:
        if order and kind.only_composed:
            assert any(tells_in_lanes(SMOOTH[label]) for label in rows_of("float64")[kind.__name__])
        else:
            assert any(tells_in_batch(op, values) for op, values in met()[kind.__name__])
    finally:
        batch_rule.rules[kind] = rule


def check_lanes(row):
    """Check the derivatives of a row that runs on two lanes."""
    lanes = xf.tree.map(lambda x: np.stack([x, x * 1.001 if xf.aval_of(x).dtype.kind in "fc" else x]), row.args)
    check_grads(lambda *xs: xf.vmap(row.fun)(*xs), lanes, order=1, modes=row.modes)


def tells_in_lanes(row):
    try:
        check_lanes(row)
    except AssertionError:
        return True
    return False


COMPOSED = sorted({label for kind in CHECKED if kind.only_composed for label in rows_of("float64")[kind.__name__]})


@pytest.mark.parametrize("label", COMPOSED)
def test_derivatives_of_lanes_where_an_operator_alone_has_none(label):
    check_lanes(SMOOTH[label])
