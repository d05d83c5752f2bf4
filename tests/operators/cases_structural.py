"""Rows of the operators that pass a value on."""

from __future__ import annotations

import numpy as np

import xform as xf
from tests.operators.case import case
from xform import ops

x = np.array([[0.4, -1.2, 2.0], [0.9, 1.7, -0.3]])

CASES = [
    case("identity", lambda a: ops.identity(a * a), x, complex=True),
    case("name", lambda a: xf.name(a * a, "squared"), x, complex=True),
    case("lead", lambda a: xf.apply(ops.Lead(2), a) * a, x, complex=True),
    case("named_scope", lambda a: scoped(a), x, complex=True),
]


def scoped(a):
    with xf.named_scope("a scope"):
        return a * a * a
