"""What holds under every layer that enters a loop: side effects, memory, copies, errors."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import attrs
import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from tests.loop_layer_cases import (
    CosForSin,
    HalfSin,
    Seen,
    W,
    X,
    fori,
    nested,
)
from xform.ops.structural import HostRead

pytestmark = pytest.mark.sweep


@attrs.frozen(eq=False)
class Ring(xf.Operator):
    """Hands a value on, and notes that it did."""

    rung: list
    impure = True

    def infer(self, x):
        return x

    def evaluate(self, xp, x):
        at = xf.current()
        self.rung.append((at.loop is not None, at.iteration))
        return x


xf.linear(Ring, lambda op, t, x: t)
xf.batch_rule(Ring)(lambda op, size, values, axes: (xf.apply(op, *values), axes[0]))


def test_a_side_effect_happens_once_a_round_and_not_again_backward():
    op = Ring([])

    def f(x):
        return xf.fori_loop(0, 3, lambda i, y: xnp.sin(xf.apply(op, y)), x)

    rounds = [(True, 0), (True, 1), (True, 2)]
    for g in (f, xf.trace(f), xf.grad(f), xf.trace(xf.grad(f)), xf.Profile()(f), xf.grad(xf.Profile()(f))):
        op.rung.clear()
        g(0.5)
        assert op.rung == rounds
    op.rung.clear()
    xf.vmap(f)(X)
    assert op.rung == rounds


@pytest.mark.parametrize("layer", [Seen, CosForSin, HalfSin, xf.Profile, xf.NanGuard])
def test_a_layer_and_the_loop_that_it_entered_are_freed(layer):
    def run():
        f, made = xf.trace(nested), layer()
        f(X, W)
        with made:
            f(xf.array(X), W)
        return [weakref.ref(each) for each in (made, f, f.program(X, W))]

    found = run()
    gc.collect()
    assert [ref() for ref in found] == [None] * 3


@pytest.mark.parametrize("layer", [CosForSin, HalfSin, xf.Profile, xf.NanGuard])
def test_a_layer_that_has_entered_a_loop_is_pickled_and_copied(layer):
    made = layer()
    made(fori)(X, W)
    for other in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made), copy.copy(made)):
        assert type(other) is layer
        np.testing.assert_allclose(other(fori)(X, W), made(fori)(X, W))


def test_an_error_inside_of_a_round_leaves_everything_as_it_was():
    @attrs.frozen(eq=False)
    class Fails(xf.Operator):
        def infer(self, x):
            return x

        def evaluate(self, xp, x):
            raise KeyError("mine")

    op = Fails()
    with xf.Profile() as profile, Seen() as seen:
        with pytest.raises(KeyError, match="mine"):
            xf.fori_loop(0, 3, lambda i, y: xf.apply(op, xnp.sin(y)), xf.array(X))
        assert xf.stack() == (seen, profile)
        assert xf.current().iteration is None
        fori(xf.array(X), W)
    assert seen.rounds("Sin") == [0, 0, 1, 2, 3]


def test_host_reads_of_values_from_outside_pass():
    def f(x):
        first = xf.stop_gradient(x[0])
        with HalfSin():
            return xf.fori_loop(0, 3, lambda i, y: xnp.sin(y) * float(first), x)

    want = X
    for _ in range(3):
        want = np.sin(want) * 0.5 * X[0]
    np.testing.assert_allclose(xf.to_numpy(f(xf.array(X))), want)
    assert HostRead("float").attribute_like
