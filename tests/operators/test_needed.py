"""Every reverse rule asked for the cotangent of one operand at a time gives that one, and None for the others."""

from __future__ import annotations

from typing import Any

import pytest
from typeguard import suppress_type_checks

from tests.operators.case import Case
from tests.operators.collect import families, operations
from xform import ops
from xform.core.aval import aval_of
from xform.core.operator import Operator
from xform.core.rules import vjp_of, vjp_rule

ROWS = {f"{family}-{row.name}": row for family, rows in families().items() for row in rows}


def asked(op: Operator, values: tuple[Any, ...], wanted: int) -> list[Any]:
    """Return the cotangents of all operands, where only that of one is wanted."""
    needed = tuple(position == wanted for position in range(len(values)))
    out, pullback = vjp_of(op)(op, needed, *values)
    ones = tuple(map(ops.ones_like, out)) if op.multiple_outputs else ops.ones_like(out)
    found = pullback(ones)
    assert isinstance(found, tuple)
    return [*found, *[None] * (len(values) - len(found))]


@pytest.mark.parametrize("row", [pytest.param(row, id=label) for label, row in ROWS.items()])
def test_only_the_cotangent_that_is_needed_is_computed(row: Case):
    with suppress_type_checks():
        for op, values in operations(row, "float64"):
            if vjp_rule.state(type(op)) != "rule" or len(values) < 2:
                continue
            for wanted, value in enumerate(values):
                if aval_of(value).dtype.kind in "fc":
                    given = [at for at, t in enumerate(asked(op, values, wanted)) if t is not None]
                    assert given in ([wanted], []), f"{op!r}: asked for {wanted}, got cotangents of {given}"
