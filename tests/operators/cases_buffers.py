"""Rows of the operator that fills a buffer."""

from __future__ import annotations

import numpy as np

import xform as xf
import xform.numpy as xnp
from tests.operators.case import case

x = np.array([[0.5, -1.25, 2.0], [1.5, 0.75, -0.25]])
row = np.array([0.3, -0.7, 1.1])
s = np.array(0.6)


def filled(shape, *places):
    """Return a function that writes the square of each operand at one of the places."""

    def fill(*values):
        out = xf.buffer(shape, complex if any(xf.aval_of(v).dtype.kind == "c" for v in values) else float)
        for at, v in zip(places, values, strict=True):
            out[at] = v * v
        return out.value() * (1.0 + xnp.arange(out.value().size).reshape(shape))

    return fill


CASES = [
    case("buffer ints", filled(4, 0, -1, 2), s, s + 1.0, s - 2.0, complex=True),
    case("buffer rows", filled((3, 3), 0, slice(1, None)), row, x, complex=True),
    case("buffer columns", filled((2, 4), (..., slice(None, 3)), (0, 3)), x, s, complex=True),
    case("buffer broadcast", filled((4, 3), slice(None, None, 2), (1, slice(None))), row, s, complex=True),
    case("buffer arrays", filled((4, 3), [2, 0], ([1, 3], [2, 0])), x, row[:2], complex=True),
    case("buffer mask", filled(5, np.array([True, False, True, True, False]), 1), row, s, complex=True),
    case("buffer newaxis", filled((2, 3), None), x, complex=True),
    case("buffer without axes", filled((), ()), s, complex=True),
]
