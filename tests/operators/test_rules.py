"""Every rule of every operator, through the rows of all families: the contract, then the numbers, in every dtype."""

from __future__ import annotations

import pytest
from typeguard import suppress_type_checks

from tests.operators.case import Case
from tests.operators.collect import families, operands, operations
from xform.core.rules import batch_rule
from xform.testing import check_grads
from xform.testing.batching import check_batch
from xform.testing.operators import check_contract

ROWS = {f"{family}-{row.name}": row for family, rows in families().items() for row in rows}
DTYPES = ("float64", "float32", "complex128")

#: operators whose batch is no loop over lanes, and why
SHARED = {"StandIn": "what stands in may come from another lane; test_safe_where looks at each lane"}

rows = pytest.mark.parametrize("row", [pytest.param(row, id=label) for label, row in ROWS.items()])
dtypes = pytest.mark.parametrize("dtype", DTYPES)


def skip_where_it_does_not_apply(row: Case, dtype: str) -> None:
    if dtype == "complex128" and not row.complex:
        pytest.skip("real operands only")
    if dtype == "float32" and row.x64_only:
        pytest.skip("double precision only")


@pytest.fixture(autouse=True)
def _types_are_checked_once(request):
    """Let typeguard check the contract in double precision alone: on the numbers it would spend four minutes."""
    if request.node.name.startswith("test_contract") and request.node.name.endswith("float64]"):
        yield
        return
    with suppress_type_checks():
        yield


def test_rows_have_names_of_their_own():
    assert len(ROWS) == sum(map(len, families().values()))


@dtypes
@rows
def test_contract(row: Case, dtype: str):
    skip_where_it_does_not_apply(row, dtype)
    for op, values in operations(row, dtype):
        if not op.attribute_like:
            check_contract(op, values)


@dtypes
@rows
def test_batching(row: Case, dtype: str):
    skip_where_it_does_not_apply(row, dtype)
    for op, values in operations(row, dtype):
        if batch_rule.state(type(op)) == "rule" and op.name not in SHARED:
            check_batch(op, values)


@dtypes
@rows
def test_derivatives(row: Case, dtype: str):
    skip_where_it_does_not_apply(row, dtype)
    if not row.order or not row.modes:
        pytest.skip("no derivative")
    check_grads(row.fun, operands(row, dtype), order=row.order, modes=row.modes)
