"""What fresh readers broke in the third round: stacks in workspaces, signs of integers, what the guard did not see."""

from __future__ import annotations

import types
import weakref

import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from xform.core.errors import DtypeError, RuleError, SavedArrayError
from xform.programs.passes import LEVELS

# ------------------------------------------------------------------ stacks, whose rows lie in the workspace

VIEWS = {
    "itself": lambda s: s,
    "transposed": lambda s: s.T,
    "flat": lambda s: s.reshape(-1),
    "a row": lambda s: s[0],
    "a column": lambda s: s[:, 1],
    "reversed": lambda s: s[::-1],
    "axes swapped": lambda s: np.swapaxes(s, 0, 1),
    "broadcast": lambda s: np.broadcast_to(s, (2, *s.shape)),
    "a view of a view": lambda s: s.T[1:].reshape(-1),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("row", [False, True])
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_a_returned_view_of_a_stack_or_row_is_the_callers(view, row, level):
    def fun(a):
        x, y = a * 2.0, a * 3.0
        s = np.stack([x, y])
        return np.sum(s * s), view(x if row else s)

    a = np.arange(9.0).reshape(3, 3)
    traced = xf.trace(fun, level=level)
    traced(a)
    result = traced(a)[1]
    want = fun(a)[1]
    np.testing.assert_array_equal(result, want)
    other = traced(a * 100.0)[1]
    np.testing.assert_array_equal(result, want)
    assert not np.shares_memory(result, other)


BODIES = {
    "a stack": lambda c: np.stack([c[0] * 2.0, c[1] + 1.0]),
    "reversed": lambda c: np.stack([c[0] * 2.0, c[1] + 1.0])[::-1],
    "a part": lambda c: np.stack([c[0] * 2.0, c[1] + 1.0, c[0] - c[1]])[1:],
    "turned": lambda c: np.stack([c[:, 0] * 0.5, c[:, 1] + 1.0]).T[:, ::-1],
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_loops_whose_carry_is_a_stack(body):
    start = np.arange(4.0).reshape(2, 2)
    want = start
    for _ in range(5):
        want = body(want)
    step = xf.trace(body)
    have = start
    for _ in range(5):
        have = step(have)
    np.testing.assert_allclose(have, want)
    np.testing.assert_allclose(xf.fori_loop(0, 5, lambda i, c: body(c), start), want)
    np.testing.assert_allclose(xf.trace(lambda c: xf.fori_loop(0, 5, lambda i, c: body(c), c))(start), want)
    np.testing.assert_allclose(xf.scan(lambda c, _: (body(c), c.sum()), start, np.zeros(5))[0], want)
    counted = xf.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, body(s[1])), (0, start))
    np.testing.assert_allclose(counted[1], want)


def test_scans_that_stack_and_carry_rows_of_a_stack():
    a = np.arange(3.0)
    stacked = xf.scan(lambda c, _: (c + 1.0, np.stack([c * 2.0, c * 3.0])), a, np.zeros(2))[1]
    np.testing.assert_array_equal(stacked, [np.stack([a * 2, a * 3]), np.stack([(a + 1) * 2, (a + 1) * 3])])

    def body(c, _):
        x = c * 2.0
        s = np.stack([x, c * 3.0])
        return x, np.sum(s * s, axis=0)

    np.testing.assert_array_equal(xf.scan(body, a, np.zeros(2))[1], [13 * a * a, 52 * a * a])
    loss = lambda v: np.sum(xf.scan(body, v, np.zeros(2))[1])
    np.testing.assert_allclose(xf.grad(loss)(a), 130 * a)


# ------------------------------------------------------------------ signs of integers that wrap around

SIGNS = {
    "1 - (-x)": lambda x: 1.0 - (-x),
    "(-x) 2": lambda x: -x * 2.0,
    "(-x) + 1": lambda x: -x + 1.0,
    "(-x) (-1)": lambda x: -x * -1.0,
    "(-x) / (-1)": lambda x: -x / -1.0,
    "x 1.5 - (-x)": lambda x: x * 1.5 - (-x),
    "(-x) (-y)": lambda x: (-x) * (-(x * 1.0)),
    "-(x - y)": lambda x: -(x - x[::-1]) * 1.0,
    "(-x) - 0.5": lambda x: -x - 0.5,
    "(3 x) 0.5": lambda x: 0.5 * (3 * x),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint64", "int8", "int64"])
@pytest.mark.parametrize("fun", SIGNS.values(), ids=SIGNS)
def test_signs_stay_where_integers_wrap(fun, dtype, level):
    x = np.array([1, 5, 100, 128, 255]).astype(dtype)
    traced = xf.trace(fun, level=level)
    traced(x)
    np.testing.assert_allclose(traced(x), fun(x), rtol=1e-15)


# ------------------------------------------------------------------ the guard

MATRIX = np.arange(1.0, 10.0).reshape(3, 3)
SHOWN = {
    "transposed": lambda x: x.T,
    "reshaped": lambda x: x.reshape(9),
    "a slice": lambda x: x[1:],
    "a row": lambda x: x[1],
    "reversed": lambda x: x[::-1],
    "ravelled": np.ravel,
    "squeezed": lambda x: np.squeeze(x[None]),
    "swapped": lambda x: np.swapaxes(x, 0, 1),
    "expanded": lambda x: np.expand_dims(x, 0),
    "broadcast": lambda x: xnp.broadcast_to(x, (2, 3, 3)),
    "a diagonal": lambda x: xnp.diagonal(x),
    "split": lambda x: np.split(x, 3)[1],
    "iterated": lambda x: next(iter(x)),
    "real": lambda x: x.real,
    "a device": lambda x: xf.device_put(x, "cpu"),
}


@pytest.mark.parametrize("guard", ["sample", "full"])
@pytest.mark.parametrize("below", [None, xf.Profile, xf.NanGuard], ids=["bare", "Profile", "NanGuard"])
@pytest.mark.parametrize("view", SHOWN.values(), ids=SHOWN)
def test_a_view_of_an_attached_array_that_is_saved(view, below, guard):
    for _ in range(2):  # the first use of an operator takes the general path
        a = MATRIX.copy()
        with below() if below else xf.named_scope("bare"), xf.Grad(guard=guard) as tape:
            x = tape.attach(a)
            h = view(x)
            y = (h * h).sum()
        a *= 3.0
        with pytest.raises(SavedArrayError, match="Mul"):
            tape.gradient(y, x)


def test_a_handle_in_mid_recording_holds_the_same_array():
    a = np.ones(3)
    with xf.Grad() as tape:
        x = tape.attach(a)
        h = tape.attach(x)
        y = (h * h).sum()
    a[...] = 5.0
    with pytest.raises(SavedArrayError):
        tape.gradient(y, x)


@pytest.mark.parametrize("guard", ["sample", "full"])
@pytest.mark.parametrize("use", [lambda x, w: x * w, lambda x, w: w * x, lambda x, w: x @ w, lambda x, w: x / w])
def test_an_array_at_the_place_of_one_that_has_died(use, guard):
    for _ in range(5):
        with xf.Grad(guard=guard) as tape:
            x = tape.attach(np.ones(3))
            use(x, np.full(3, 2.0))
            w = np.full(3, 3.0)
            y = use(x, w).sum()
        w[:] = 100.0
        with pytest.raises(SavedArrayError):
            tape.gradient(y, x)


READS = {
    "asarray": np.asarray,
    "to_numpy": xf.to_numpy,
    "a slice": lambda h: np.asarray(h[:]),
    "reshaped": lambda h: np.asarray(h.reshape(3, 1)),
    "stop_gradient": lambda h: np.asarray(xf.stop_gradient(h)),
}


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_what_is_read_while_the_tape_pauses(read, frozen):
    with xf.Grad() as tape:
        x = tape.attach(np.ones(3))
        h = np.exp(x)
        y = (h * h).sum()
        if frozen:
            tape.freeze()
            a = read(h)
        else:
            with tape.suppressed():
                a = read(h)
        a[...] = 7.0
    with pytest.raises(SavedArrayError):
        tape.gradient(y, x)


class Own(np.ndarray):
    """An array type of a user."""


class Scaled:
    """A user's rule in a class: its pullback is a method."""

    def __init__(self, a):
        self.a = a

    def backward(self, kept, t):
        return t * self.a


def test_subclasses_methods_and_objects_hold_arrays_too():
    def changed(make):
        a = np.full(3, 2.0)
        with xf.Grad() as tape:
            x = tape.attach(np.ones(3))
            y = make(x, a).sum()
        a[...] = 50.0
        with pytest.raises(SavedArrayError):
            tape.gradient(y, x)

    changed(lambda x, a: x * a.view(Own))
    changed(lambda x, a: a.view(Own) * x)
    changed(lambda x, a: xf.custom_gradient(lambda v: (v * a, ()), Scaled(a).backward)(x))
    by_object = lambda kept, t: t * kept.a
    changed(lambda x, a: xf.custom_gradient(lambda v: (v * a, types.SimpleNamespace(a=a)), by_object)(x))


def test_an_array_beside_the_one_that_was_changed():
    base = np.arange(1.0, 7.0).reshape(3, 2)
    first, second = base[:, 0], base[:, 1]
    with xf.Grad() as tape:
        x = tape.attach(np.ones(3))
        assert tape.is_attached(x * first)  # and dropped
        y = (x * second).sum()
    first[...] = 9.0
    np.testing.assert_array_equal(tape.gradient(y, x), [2.0, 4.0, 6.0])


def test_recycled_results_are_no_changes():
    n = 70_000
    fast = xf.trace(lambda x: np.sin(x) * 2.0)
    fast(np.ones(n))

    def search(w):
        for i in range(1, 6):
            y = w * fast(np.full(n, float(i)))
        return y.sum()

    np.testing.assert_allclose(xf.grad(search)(np.ones(n)), 2.0 * np.sin(5.0))


def test_weak_references_see_results_go():
    fast = xf.trace(lambda x: np.sin(x) * 2.0)
    x = np.ones(70_000)
    fast(x)
    known = weakref.WeakValueDictionary()
    for k in range(1, 6):
        result = fast(x * k)
        known[k] = result
        del result
    assert set(known) <= {5}


def test_outputs_share_memory_only_where_the_functions_do():
    def fun(x):
        y = np.sin(x)
        return y, y.reshape(-1)

    for size in (10, 200, 300):
        traced = xf.trace(fun)
        x = np.asfortranarray(np.random.default_rng(0).random((size, size)))
        traced(x)
        assert not np.shares_memory(*traced(x))


# ------------------------------------------------------------------ rules of users for xform's operators


@pytest.fixture
def sine():
    """Let a test give Sin another rule."""
    before = xf.vjp_rule.rules[xf.ops.Sin], xf.jvp_rule.rules[xf.ops.Sin]
    yield xf.ops.Sin
    xf.vjp_rule.rules[xf.ops.Sin], xf.jvp_rule.rules[xf.ops.Sin] = before


@pytest.mark.parametrize("wrong", [lambda t, x: np.ones(5), lambda t, x: "none"])
def test_partials_of_a_user_for_a_built_in_operator_are_checked(sine, wrong):
    xf.partials(sine, wrong)
    x = np.ones(3)
    with pytest.raises(RuleError, match="declared for Sin"):
        xf.grad(lambda v: np.sin(v).sum())(x)
    with pytest.raises(RuleError, match="declared for Sin"):
        xf.jvp(lambda v: np.sin(v), (x,), (x,))
    with pytest.raises(RuleError, match="declared for Sin"):
        xf.grad(lambda v: xf.grad(lambda w: np.sin(w).sum())(v).sum())(x)
    xf.partials(sine, lambda t, x: 2.0 * t * np.cos(x))
    np.testing.assert_array_equal(xf.grad(lambda v: np.sin(v).sum())(np.zeros(3)), np.full(3, 2.0))
    np.testing.assert_array_equal(xf.jvp(lambda v: np.sin(v), (np.zeros(3),), (x,))[1], np.full(3, 2.0))


def test_arrays_of_objects_are_refused_by_name():
    with pytest.raises(DtypeError, match="object"):
        xf.grad(lambda x: (x * np.array([1.0, 2.0, 3.0], dtype=object)).sum())(np.ones(3))
