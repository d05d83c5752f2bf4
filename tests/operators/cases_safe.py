"""Rows of `xf.safe_where`."""

from __future__ import annotations

import numpy as np

import xform as xf
import xform.numpy as xnp
from tests.operators.case import case

x = np.array([[0.5, -1.25, 2.0], [1.5, -0.75, -0.25]])
mask = np.array([[True, False, True], [True, False, False]])
rows = np.array([[True], [False]])
s = np.array(0.6)


def root(a):
    return xnp.sqrt(a) * a


def parts(a):
    return a / a.sum(-1, keepdims=True)


CASES = [
    case("safe_where", lambda a: xf.safe_where(a > 0, root, a, 0.0), x),
    case("safe_where mask", lambda m, a, b: xf.safe_where(m, xnp.log, a, b * b), mask, x, x, complex=True),
    case("safe_where columns", lambda m, a: xf.safe_where(m, xnp.log, a, a), mask[0], abs(x), complex=True),
    case("safe_where rows", lambda m, a: xf.safe_where(m, parts, a, 0.5), rows, x, complex=True),
    case("safe_where of a scalar", lambda m, a, b: xf.safe_where(m, lambda v: v * a, b, x), mask, x, s, complex=True),
    case("safe_where nowhere", lambda a, b: xf.safe_where(a > 9, root, a, b), x, s),
    case("safe_where true", lambda a: xf.safe_where(True, xnp.exp, a, 0.5), x, complex=True),
]
