"""Where a profile's time goes: self times and its own overhead make up the time from first to last."""

import time

import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from xform.core.rules import Partials, vjp_rule
from xform.transforms.plans import Plan


def shares(profile):
    """Return self time of all rows, overhead, and the time from first to last, in ns."""
    return sum(row.own for row in profile.rows), profile._overhead, profile._ended - profile._began


@pytest.mark.parametrize("size", [3, 20_000], ids=["small", "large"])
def test_self_times_and_overhead_are_the_wall_time(size):
    with xf.Profile() as profile, xf.named_scope("all"):
        x = xf.array(np.full(size, 0.5))
        for _ in range(400):
            with xf.named_scope("step"):
                x = xnp.sin(x) * 1.5
    own, overhead, wall = shares(profile)
    assert profile.calls() == 800
    assert 0.9 * wall < own + overhead < 1.02 * wall, (own, overhead, wall)
    if size == 3:
        assert overhead > 0.1 * own


def test_overhead_does_not_contain_what_waits_inside_an_operation():
    class Slow(xf.Operator):
        def infer(self, x):
            return x

        def evaluate(self, xp, x):
            time.sleep(0.01)
            return x

    with xf.Profile() as profile, xf.named_scope("s"):
        for _ in range(5):
            xf.apply(Slow(), xf.array(1.0))
        time.sleep(0.02)
    own, overhead, wall = shares(profile)
    assert own >= 69e6
    assert overhead < wall - 69e6
    assert own + overhead == pytest.approx(wall, rel=0.05)


def test_below_a_first_gradient_there_is_no_operation_that_nobody_asked_for():
    """How an operator is recorded is found out at its first use, without an operation."""
    type(xf.ops.Conj()).plan = None
    with xf.Profile() as profile:
        found = xf.grad(lambda z: xnp.real(xnp.conj(z)))(1.0 + 2.0j)
    assert found == 1.0
    names = sorted((row.name, row.phase) for row in profile.rows if row.kind == "operator" for _ in range(row.calls))
    assert [name for name, phase in names if phase == "forward"] == ["Conj", "Real"]
    assert [name for name, phase in names if phase == "backward"].count("Conj") == 1


def test_finding_out_how_operators_are_recorded_applies_none():
    class Fail(xf.Transformation):
        effect = "observes"

        def interpret(self, op, values):
            pytest.fail(f"{op!r} was applied")

    kinds = [(kind, rule) for kind, rule in vjp_rule.rules.items() if isinstance(rule, Partials)]
    assert len(kinds) > 50
    with Fail():
        for kind, rule in kinds:
            Plan(kind, rule)
