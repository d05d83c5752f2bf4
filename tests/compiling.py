"""What the tests of compiled programs share."""

from __future__ import annotations

import numpy as np

import xform as xf
from xform.programs.compiler import compile_program

__all__ = ["assert_same", "compiled_of", "moved", "recurrent"]

TOLERANCE = {"float32": 2e-4, "complex64": 2e-4, "float16": 2e-2}


def moved(x):
    """Other numbers, of the same dtype, within the same domain."""
    if isinstance(x, np.ndarray | np.generic) and x.dtype.kind in "fc":
        return (x * x.dtype.type(1.03125)).astype(x.dtype)
    return x


def assert_same(have, want):
    assert len(have) == len(want)
    for h, w in zip(have, want, strict=True):
        assert np.shape(h) == np.shape(w)
        assert np.asarray(h).dtype == np.asarray(w).dtype
        bound = TOLERANCE.get(str(np.asarray(w).dtype), 1e-9)
        np.testing.assert_allclose(h, w, rtol=bound, atol=bound)


def compiled_of(fun, *args, level=0):
    return compile_program(xf.make_program(fun)(*args), level=level)


def recurrent(library):
    def loss(w, u, b, xs):
        h = np.zeros(4)
        for n in range(6):
            h = library.tanh(w @ h + u @ xs[n] + b)
        return (h * h).sum()

    return loss
