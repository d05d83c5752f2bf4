"""What the tests of checkpoints share: a run with checkpoints beside one without, and what a backward runs."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_allclose

import xform as xf

__all__ = ["W", "X", "agree", "backward_of", "plainly"]

X = np.array([0.3, -0.7, 1.1])
W = np.array([1.0, 0.4, -0.5])


def plainly(fun, policy=None):
    """What stands for `checkpoint` in the run that a checkpointed one is compared with."""
    return fun


def agree(make, *args, rtol=1e-12):
    """Assert that what is made with checkpoints and without gives the same, types included; return it."""
    found, want = make(xf.checkpoint)(*args), make(plainly)(*args)
    assert xf.tree.structure(found) == xf.tree.structure(want)
    for have, expected in zip(xf.tree.leaves(found), xf.tree.leaves(want), strict=True):
        assert type(have) is type(expected)
        assert_allclose(xf.concrete(have), xf.concrete(expected), rtol=rtol, atol=1e-14)
    return found


def backward_of(fun, *args):
    """Return how often operators run in backward, as a function of their names."""
    out, pullback = xf.vjp(fun, *args)
    with xf.Profile() as profile:
        pullback(xf.tree.map(np.ones_like, out))
    return lambda *names: tuple(profile.calls(name) for name in names)
