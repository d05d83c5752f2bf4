"""The tape's life: suppression, groups, custom rules, freeing, long chains, nesting, scopes."""

import gc
import subprocess
import sys
import weakref

import attrs
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import xform as xf
import xform.numpy as xnp
from xform.core.errors import MissingRuleError, RuleError

X = np.array([0.3, -1.2, 2.0])
ONES = np.ones_like(X)


class Record(xf.Observer):
    """Keeps name, phase, scopes and line of each operation."""

    def __init__(self):
        self.seen = []

    def observe(self, op, inputs, outputs):
        here = xf.current()
        self.seen.append((op.name, here.phase, here.scopes, here.line))

    def names(self, phase):
        return [name for name, where, _, _ in self.seen if where == phase and name not in ("PushScope", "PopScope")]


# ------------------------------------------------------------------ suppressed, groups


def test_suppressed_nests_and_survives_exceptions():
    with xf.Grad() as tape:
        x = tape.attach(X)
        with tape.suppressed():
            with pytest.raises(KeyError), tape.suppressed():
                raise KeyError
            assert not tape.is_attached(np.sin(x))
        with pytest.raises(KeyError), tape.suppressed():
            raise KeyError
        y = np.sin(x)
        with tape.suppressed():
            plain = y * 2.0
        assert tape.is_attached(y)
        assert not tape.is_attached(plain)
        assert_array_equal(xf.concrete(plain), np.sin(X) * 2)
        assert_array_equal(tape.gradient(y * plain, x, ONES), np.cos(X) * np.sin(X) * 2)


def test_a_suppressed_tape_lets_the_one_below_record():
    with xf.Grad() as below, xf.Grad() as tape:
        v = below.attach(X)
        x = tape.attach(v)
        with tape.suppressed():
            y = np.sin(x)
        assert below.is_attached(y)
        assert not tape.is_attached(y)
        assert_array_equal(below.gradient(y, v, ONES), np.cos(X))


def test_the_group_is_suppressed_inside_a_custom_forward():
    names = []

    def forward(x):
        names.append(a.is_attached(np.sin(x)) or b.is_attached(np.sin(x)))
        return np.sin(x), x

    custom = xf.custom_gradient(forward, lambda x, t: t * 10.0)
    with xf.Grad() as a, xf.Grad(group=a) as b:
        xa = a.attach(X)
        xb = b.attach(xa)
        y = custom(xb)
        assert_array_equal(xf.concrete(b.gradient(y, xb, ONES)), 10 * ONES)
        assert_array_equal(a.gradient(y, xa, ONES), 10 * ONES)
    assert names == [False]


def test_custom_rules_pass_on_to_every_tape_below():
    custom = xf.custom_gradient(lambda x: (np.sin(x), None), lambda _, t: t * 10.0)
    with xf.Grad() as a, xf.Grad() as b, xf.Grad() as c:
        xa = a.attach(X)
        xb = b.attach(xa)
        xc = c.attach(xb)
        y = custom(xc)
        for tape, x in ((c, xc), (b, xb), (a, xa)):
            assert_array_equal(xf.concrete(tape.gradient(y, x, ONES)), 10 * ONES)


# ------------------------------------------------------------------ several outputs, rules of users


@attrs.frozen
class Pair(xf.Operator):
    """Two outputs; the rule counts its calls."""

    multiple_outputs = True

    def infer(self, x):
        return x, x

    def evaluate(self, xp, x):
        return xp.sin(x), xp.cos(x)


calls = []


@xf.vjp_rule(Pair)
def pair_vjp(op, needed, x):
    out = xf.apply(op, x)

    def pullback(cotangents):
        calls.append(cotangents)
        a, b = cotangents
        return (a * xnp.cos(x) - b * xnp.sin(x),)

    return out, pullback


xf.jvp_rule.none(Pair, why="a test's own operator")
xf.batch_rule.none(Pair, why="a test's own operator")


def test_missing_cotangents_are_zeros_for_rules_and_no_call_where_all_are_missing():
    calls.clear()
    with xf.Grad() as tape:
        x = tape.attach(X)
        a, _ = xf.apply(Pair(), x)
        unused = xf.apply(Pair(), a)
        blocked = xf.custom_gradient(lambda x: (x * 1.0, None), lambda _, t: None)
        found = tape.gradient(a * 2.0 + blocked(unused[0]) + blocked(unused[1]), x, ONES)
    assert_allclose(found, 2 * np.cos(X))
    assert len(calls) == 1
    assert_array_equal(calls[0][1], np.zeros(3))


class Bare(xf.Operator):
    """An operator without rules."""

    def infer(self, x):
        return x

    def evaluate(self, xp, x):
        return x


def test_a_missing_rule_is_named_and_the_stack_is_as_before():
    with xf.Grad() as tape:
        x = tape.attach(X)
        with pytest.raises(MissingRuleError, match=r"Bare.* has no vjp rule; write one with @vjp_rule\(Bare\)"):
            xf.apply(Bare(), x)
        assert xf.stack() == (tape,)
        assert_array_equal(tape.gradient(np.sin(x), x, ONES), np.cos(X))
    assert_array_equal(xf.apply(Bare(), X), X)


@pytest.mark.parametrize("found", [lambda t: (t, t), lambda t: (), lambda t: [t, t, t]])
def test_a_custom_backward_of_the_wrong_count_is_refused(found):
    custom = xf.custom_gradient(lambda x: (np.sin(x), None), lambda _, t: found(t))
    with pytest.raises(RuleError, match="backward must return a tuple of 1"):
        xf.grad(lambda x: custom(x).sum())(X)
    assert xf.stack() == ()


# ------------------------------------------------------------------ freeing


def test_dead_branches_are_freed_at_once():
    gc.disable()
    try:
        with xf.Grad() as tape:
            x = tape.attach(X)
            h = np.exp(x)  # keeps its output
            data = weakref.ref(h.data)
            dead = np.sin(np.exp(h * h))
            inner = weakref.ref(dead)
            y = x * 2.0
            del h, dead
            assert inner() is None
            assert data() is None
            assert_array_equal(tape.gradient(y, x, ONES), 2 * ONES)
    finally:
        gc.enable()


def test_backward_releases_residuals_as_it_goes():
    gc.disable()
    alive = []
    try:
        with xf.Grad() as tape:
            x = tape.attach(X)
            h = tape.attach(np.exp(x), lambda t: alive.append(data()))
            k = np.exp(h)
            data = weakref.ref(k.data)
            y = np.sin(k)
            del k, h
            assert data() is not None
            found = tape.gradient(y, x, ONES)
        assert alive == [None]
    finally:
        gc.enable()
    assert_allclose(found, np.cos(np.exp(np.exp(X))) * np.exp(np.exp(X)) * np.exp(X))


def run_bare(script):
    """Run a script in a Python of its own, without typeguard, which is 30 times slower."""
    subprocess.run([sys.executable, "-c", "import sys\nimport numpy as np\nimport xform as xf\n" + script], check=True)


MILLION = """
limit = sys.getrecursionlimit()
with xf.Grad() as tape:
    x = tape.attach(1.0)
    y = x
    for _ in range(1_000_000):
        y = y + 1.0
    assert float(xf.concrete(y)) == 1_000_001.0
    assert tape.gradient(y, x, retain=True) == 1.0
del x, y, tape  # frees the chain
with xf.Grad() as tape:
    x = tape.attach(np.array(0.5))
    y = x
    for _ in range(1_000_000):
        y = np.sin(y)
    del y  # freed without a walk
with xf.Grad(), xf.Grad() as tape:  # something stands below
    x = tape.attach(np.array(0.5))
    y = x
    for _ in range(20_000):
        y = y * 1.0001
    assert tape.gradient(y, x) > 1.0
assert sys.getrecursionlimit() == limit
"""


@pytest.mark.slow
def test_a_chain_of_a_million_operations_without_recursion():
    run_bare(MILLION)


# ------------------------------------------------------------------ order, cost


def test_derivatives_of_any_order_by_nesting():
    function = lambda x: np.sin(x) * np.exp(2.0 * x)
    first = xf.grad(function)
    second, third = xf.grad(first), xf.grad(xf.grad(first))
    z = (2.0 + 1j) ** np.arange(4)  # the n-th derivative is the imaginary part of (2 + i)^n e^((2 + i) x)
    want = [(z[n] * np.exp((2.0 + 1j) * 0.4)).imag for n in range(4)]
    assert_allclose([f(0.4) for f in (function, first, second, third)], want, rtol=1e-13)
    with xf.Grad() as a:
        xa = a.attach(X)
        with xf.Grad() as b:
            xb = b.attach(xa)
            with xf.Grad() as c:
                xc = c.attach(xb)
                dc = c.gradient(np.sin(xc), xc, ONES)
            db = b.gradient(dc, xb, ONES)
        da = a.gradient(db, xa, ONES)
    assert_allclose(da, -np.cos(X))


LINEAR = """
import time

def seconds(count):
    x = np.ones(count)
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        found = xf.grad(lambda v: sum(v[i] for i in range(count)))(x)
        best = min(best, time.process_time() - start)
    assert (found == x).all()
    return best

small, large = seconds(2_000), seconds(32_000)
assert large < 16 * small * 2.5, (small, large)  # quadratic would be 256
"""


def test_sum_of_single_elements_is_linear_in_their_number():
    run_bare(LINEAR)


def test_indexing_with_something_below_ends_in_one_scatter():
    with Record() as record, xf.Grad() as tape:
        x = tape.attach(X)
        y = x[0] * 2.0 + x[2] * 3.0 + x[0] * x[1]
        found = tape.gradient(y, x)
    assert_allclose(xf.concrete(found), [2.0 + X[1], X[0], 3.0])
    scatters = [name for name in record.names("backward") if "Scatter" in name]
    assert len(scatters) == 1, record.names("backward")


# ------------------------------------------------------------------ what stands below sees


def test_scope_names_of_the_backward_phase():
    custom = xf.custom_gradient(lambda x: (np.tanh(x), x), lambda x, t: t * 2.0)
    with Record() as record, xf.Grad() as tape:
        x = tape.attach(X)
        with xf.named_scope("layer1"):
            h = np.sin(x)
        y = custom(h)
        tape.gradient(y, x, ONES)
        site = next(line for name, _, _, line in record.seen if name == "Sin")
    scopes = {scope for _, phase, scopes, _ in record.seen if phase == "backward" for scope in scopes}
    assert {"Sin.Backward", "CustomBackward", "layer1"} <= scopes
    of_sin = [(scopes, line) for name, phase, scopes, line in record.seen if name == "Mul" and "Sin.Backward" in scopes]
    assert of_sin
    for where, line in of_sin:
        assert where == ("layer1", "Sin.Backward")
        assert line == site  # the forward line
    assert site[0] == __file__
    assert xf.current().scopes == ()


def test_what_stands_below_sees_every_backward_operation_and_no_other():
    w = np.array([2.0, 3.0, 5.0])
    with Record() as record, xf.Grad() as tape:
        x = tape.attach(X)  # raw arrays are lifted where something stands below: attached, seeds, residuals
        found = tape.gradient(np.sin(x) * w, x, ONES)
    assert sorted(record.names("backward")) == ["Cos", "Mul", "Mul"]  # no cotangent of w, which is not tracked
    assert record.names("forward") == ["Sin", "Mul"]
    assert type(found) is np.ndarray
    assert_allclose(found, np.cos(X) * w)


def test_a_trace_below_shares_variables_between_forward_and_backward():
    with xf.Trace() as recorder:
        x0 = recorder.input(X)
        with xf.Grad() as tape:
            x = tape.attach(x0)
            y = np.exp(x)
            found = tape.gradient(y, x, ONES)
    program = recorder.program((tape.unwrap(y), found))
    names = [type(equation.op).__name__ for equation in program.equations]
    assert names.count("Exp") == 1  # backward multiplies by the very value that forward made
    forward = next(e for e in program.equations if type(e.op).__name__ == "Exp")
    backward = [e for e in program.equations if e.phase == "backward" and type(e.op).__name__ == "Mul"]
    assert any(forward.outputs[0] in e.inputs for e in backward)
    assert all("Exp.Backward" in e.scopes for e in backward)
    assert all(e.site == forward.site for e in backward)
    for out in program(X * 2):
        assert_allclose(out, np.exp(2 * X))


def test_an_error_in_the_backward_names_the_forward_line():
    def backward(_, t):
        raise KeyError("mine")

    custom = xf.custom_gradient(lambda x: (np.sin(x), None), backward)
    for below in (False, True):
        with Record() if below else xf.named_scope("none"), pytest.raises(KeyError, match="mine") as caught:
            xf.grad(lambda x: custom(x).sum())(X)
        notes = " ".join(caught.value.__notes__)
        assert "CustomBackward" in notes
        assert "custom(x).sum()" in notes
        assert xf.stack() == ()


# ------------------------------------------------------------------ buffers


def test_accumulation_never_writes_into_what_users_hold():
    dy, received, copies = ONES * 2.0, [], []

    def keep(cotangent):
        received.append(cotangent)
        copies.append(np.array(cotangent))

    with xf.Grad() as tape:
        x = tape.attach(X)
        h = tape.attach(x * 1.0, keep)
        k = tape.attach(h + 0.0, keep)
        y = k + x  # dy goes to k and to x
        found = tape.gradient([y, k, h], x, [dy, dy, dy])
    assert_array_equal(dy, 2 * ONES)
    for kept, copy in zip(received, copies, strict=True):
        assert_array_equal(kept, copy)
    assert_array_equal(found, 8 * ONES)
    found += 100.0  # a gradient is the caller's
    assert_array_equal(dy, 2 * ONES)


def test_two_gradients_do_not_share_memory():
    with xf.Grad() as tape:
        x, y = tape.attach(X), tape.attach(X)
        dx, dy = tape.gradient(x + y, (x, y), ONES)
    dx += 1.0
    assert_array_equal(dy, ONES)


@pytest.mark.parametrize("lift", [lambda x: x, xf.array])
def test_indexing_an_intermediate_value_with_an_array_as_cotangent(lift):
    """What waits to be scattered into a value that has another consumer was lost where the cotangent was an `Array`."""
    _, pull = xf.vjp(lambda x: (x * 2)[0] * x[1], np.arange(1.0, 4.0))
    np.testing.assert_array_equal(xf.concrete(pull(lift(1.0))[0]), [4.0, 2.0, 0.0])
