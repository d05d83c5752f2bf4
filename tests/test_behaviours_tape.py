"""The tape, one behaviour a test, numbered 1 to 22: walking, freeing, identity, indexing, broadcasting, callbacks."""

import contextlib
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
from xform.core.errors import TapeConsumedError

X = np.array([[0.3, -1.2, 2.0], [0.7, 1.1, -0.4]])
ONES = np.ones_like(X)


@attrs.frozen
class Relu(xf.Operator):
    """Keeps its output, not its input."""

    def infer(self, x):
        return x

    def evaluate(self, xp, x):
        return xp.maximum(x, xp.zeros_like(x))


xf.partials(Relu, lambda t, out: t * (out > 0))
xf.batch_rule.none(Relu, why="a test's own operator")


def test_row_01_backward_with_explicit_cotangent():
    out, pullback = xf.vjp(np.cos, X)
    assert_allclose(out, np.cos(X))
    assert_allclose(pullback(ONES)[0], -np.sin(X))
    with xf.Grad() as tape:
        x = tape.attach(X)
        assert_allclose(tape.gradient(np.cos(x), x, ONES), -np.sin(X))


def test_row_02_value_used_twice_twice_over():
    with xf.Grad() as tape:
        x = tape.attach(X)
        y = (x * x) * (x * x)
    assert_allclose(tape.gradient(y, x, ONES), 4 * X**3)


def test_row_03_gradient_recorded_by_an_outer_tape():
    parts = []
    with xf.Grad() as outer:
        above = outer.attach(X, callback=parts.append)
        with xf.Grad() as inner:
            x = inner.attach(above, callback=parts.append)
            inner.backward(np.cos(x), ONES)
        assert_allclose(xf.concrete(parts[0]), -np.sin(X))
        outer.backward(parts[0], ONES)
    assert len(parts) == 2
    assert_allclose(xf.concrete(parts[1]), -np.cos(X))
    assert_allclose(xf.concrete(parts[0]) + xf.concrete(parts[1]), -np.sin(X) - np.cos(X))
    assert_allclose(xf.grad(xf.grad(np.cos))(0.3), -np.cos(0.3))


@pytest.mark.parametrize("inside", [True, False])
def test_row_04_attach_in_the_middle(inside):
    seen = {}
    with xf.Grad() as tape:
        x = tape.attach(X, callback=lambda t: seen.update(x=t))
        y = tape.attach(x * x, callback=lambda t: seen.update(y=t))
        z = y * y
        if inside:
            dx, dy = tape.gradient(z, [x, y], ONES)
    if not inside:
        dx, dy = tape.gradient(z, [x, y], ONES)
    assert_allclose(dy, 2 * X**2)
    assert_allclose(dx, 4 * X**3)
    assert_allclose(seen["y"], 2 * X**2)
    assert_allclose(seen["x"], 4 * X**3)


@pytest.mark.parametrize("attach_x", [True, False])
def test_row_05_a_copy_gets_no_gradient(attach_x):
    called = []
    with xf.Grad() as tape:
        x = tape.attach(X) if attach_x else X
        y = x * x
        tape.attach(y.copy(), callback=called.append)
        z = y * y
        if attach_x:
            assert_allclose(tape.gradient(z, x, ONES), 4 * X**3)
        else:
            with pytest.warns(UserWarning, match="nothing flows"):
                tape.backward(z, ONES)
    assert called == []


ROUNDS = """
import gc
import numpy as np
import xform as xf

X = np.ones((2, 3))

def one_round(kind):
    with xf.Grad() as tape:
        x = tape.attach(X, callback=lambda t: None)
        y = (np.sin(x) * x + x[0]).sum()
        if kind == "backward":
            tape.gradient(y, x)
        elif kind == "nested":
            xf.grad(lambda v: xf.grad(lambda w: np.sum(np.sin(w) * w))(v).sum())(X)
    if kind == "after":
        tape.gradient(y, x)

for kind in ("backward", "nested", "after", "no backward"):
    for _ in range(3):
        one_round(kind)
    gc.collect()
    gc.disable()
    counts = []
    for _ in range(4):
        one_round(kind)
        counts.append(len(gc.get_objects()))
    gc.enable()
    assert counts[1] == counts[2] == counts[3], (kind, counts)
"""


def test_row_06_live_objects_stay_constant_without_the_collector():
    subprocess.run([sys.executable, "-c", ROUNDS], check=True)  # typeguard's own cycles stay out of the count


def test_row_07_augmented_assignment():
    with xf.Grad() as tape:
        x = tape.attach(X)
        y = x * x
        y *= y
    assert_allclose(tape.gradient(y, x, ONES), 4 * X**3)
    assert_allclose(xf.concrete(y), X**4)


@pytest.mark.parametrize("same", [xf.ops.identity, lambda v: xf.name(v, "h"), lambda v: v.copy()])
def test_row_08_identity_passes_bit_for_bit(same):
    cotangent = np.random.default_rng(0).normal(size=X.shape)
    cotangent[0, 0] = -0.0
    with xf.Grad() as tape:
        x = tape.attach(X)
        found = tape.gradient(same(x), x, cotangent)
    assert found.tobytes() == cotangent.tobytes()


FREEING = {
    "add": (lambda h: h + np.ones((4, 2, 3)), np.full((2, 3), 24.0)),
    "reshape": (lambda h: xnp.reshape(h, (3, 2)), np.full((2, 3), 6.0)),
    "slicing": (lambda h: h[:, 1:], np.array([[0.0, 6, 6], [0, 6, 6]])),
    "fancy indexing": (lambda h: h[[0, 0, 1], [1, 1, 2]], np.array([[0.0, 12, 0], [0, 0, 6]])),
    "expand_dims": (lambda h: xnp.expand_dims(h, 1), np.full((2, 3), 6.0)),
    "squeeze": (lambda h: xnp.squeeze(h[None]), np.full((2, 3), 6.0)),
    "newaxis": (lambda h: h[:, None], np.full((2, 3), 6.0)),
    "transpose": (lambda h: h.T, np.full((2, 3), 6.0)),
    "sum": (lambda h: xnp.sum(h, axis=0), np.full((2, 3), 6.0)),
}


@pytest.mark.parametrize("below", [False, True])
@pytest.mark.parametrize("name", FREEING)
def test_row_09_operands_not_needed_die_before_backward(name, below):
    function, expected = FREEING[name]
    gc.disable()
    try:
        with xf.Grad() if below else contextlib.nullcontext(), xf.Grad() as tape:
            x = tape.attach(X)
            h = x * 2.0
            value, data = weakref.ref(h), weakref.ref(xf.concrete(h))
            y = function(h) * 3.0  # a new array: what indexing and reshape return are views
            del h
            assert value() is None
            assert data() is None
            found = tape.gradient(y, x, np.ones(y.shape))
    finally:
        gc.enable()
    assert_allclose(xf.concrete(found), expected)


def test_row_10_an_operator_keeps_its_output():
    gc.disable()
    try:
        with xf.Grad() as tape:
            x = tape.attach(np.array([1.0, -1.0]))
            h = x * 1.0
            data = weakref.ref(h.data)
            y = xf.apply(Relu(), h)
            kept = weakref.ref(y.data)
            z = y + 1.0
            del h, y
            assert data() is None
            assert kept() is not None
            assert_array_equal(tape.gradient(z, x, np.array([2.0, 2.0])), [2.0, 0.0])
    finally:
        gc.enable()


def test_row_11_bool_scalars_as_indices():
    with xf.Grad() as tape:
        x = tape.attach(X)
        y, z = x[True, 0:1], x[False, 0:1]
        assert y.shape == X[True, 0:1].shape
        assert z.shape == X[False, 0:1].shape
        dy = tape.gradient(y, x, np.full(y.shape, 2.0), retain=True)
        dz = tape.gradient(z, x, np.ones(z.shape))
    assert_array_equal(dy, [[2.0, 2.0, 2.0], [0.0, 0.0, 0.0]])
    assert_array_equal(dz, np.zeros_like(X))


def test_row_12_repeated_index_pairs_accumulate():
    _, pullback = xf.vjp(lambda x: x[np.array([0, 0, 1]), np.array([1, 1, 2])], X)
    assert_array_equal(pullback(np.ones(3))[0], [[0.0, 2.0, 0.0], [0.0, 0.0, 1.0]])


def test_row_13_broadcast_sum_mean_dot():
    _, pullback = xf.vjp(lambda x, b: x * 2.0 + b, X, X[0])
    dx, db = pullback(ONES * [[1.0], [3.0]])
    assert_allclose(dx, ONES * [[2.0], [6.0]])
    assert_allclose(db, [4.0, 4.0, 4.0])
    assert_allclose(xf.grad(np.sum)(X), ONES)
    assert_allclose(xf.grad(np.mean)(X), ONES / 6)
    _, pullback = xf.vjp(lambda x: np.mean(x, axis=1), X)
    assert_allclose(pullback(np.array([1.0, 6.0]))[0], [[1 / 3] * 3, [2.0] * 3])
    assert_allclose(xf.grad(np.dot, (0, 1))(X[0], X[1])[0], X[1])
    assert_allclose(xf.grad(np.dot, (0, 1))(X[0], X[1])[1], X[0])
    _, pullback = xf.vjp(lambda x: np.broadcast_to(x, (4, 2, 3)), X)
    assert_allclose(pullback(np.ones((4, 2, 3)))[0], 4 * ONES)


RANKS = {1: (3,), 2: (3, 3), 3: (2, 3, 3), 4: (4, 2, 3, 3)}


def reduced(cotangent, shape):
    """Sum over the leading batch axes that broadcasting added."""
    return cotangent.sum(axis=tuple(range(cotangent.ndim - len(shape)))).reshape(shape)


@pytest.mark.parametrize("flip_x", [False, True])
@pytest.mark.parametrize("flip_y", [False, True])
@pytest.mark.parametrize("rank_x", RANKS)
@pytest.mark.parametrize("rank_y", RANKS)
def test_row_14_matmul_of_every_rank_pair(rank_x, rank_y, flip_x, flip_y):
    def turned(v, flip):
        return np.swapaxes(v, -1, -2) if flip and v.ndim > 1 else v

    rng = np.random.default_rng(rank_x + 5 * rank_y)
    x, y = rng.normal(size=RANKS[rank_x]), rng.normal(size=RANKS[rank_y])
    out, pullback = xf.vjp(lambda a, b: np.matmul(turned(a, flip_x), turned(b, flip_y)), x, y)
    assert_allclose(out, np.matmul(turned(x, flip_x), turned(y, flip_y)))
    cotangent = rng.normal(size=np.shape(out))
    dx, dy = pullback(cotangent)
    left = turned(x, flip_x)[None, :] if rank_x == 1 else turned(x, flip_x)
    right = turned(y, flip_y)[:, None] if rank_y == 1 else turned(y, flip_y)
    full = np.reshape(cotangent, np.matmul(left, right).shape)
    want_x = turned(reduced(full @ np.swapaxes(right, -1, -2), left.shape), flip_x and rank_x > 1)
    want_y = turned(reduced(np.swapaxes(left, -1, -2) @ full, right.shape), flip_y and rank_y > 1)
    assert_allclose(dx, want_x.reshape(x.shape))
    assert_allclose(dy, want_y.reshape(y.shape))


def test_row_15_get_and_set_by_one_hot_index():
    index = np.array([2, 0])
    _, pullback = xf.vjp(lambda x: x[np.arange(2), index], X)
    assert_array_equal(pullback(np.array([5.0, 7.0]))[0], [[0, 0, 5], [7, 0, 0]])
    out, pullback = xf.vjp(lambda x, v: x.at[np.arange(2), index].set(v), X, np.array([9.0, 8.0]))
    want = X.copy()
    want[np.arange(2), index] = [9.0, 8.0]
    assert_array_equal(out, want)
    cotangent = np.arange(1.0, 7.0).reshape(2, 3)
    dx, dv = pullback(cotangent)
    assert_array_equal(dx, [[1, 2, 0], [0, 5, 6]])
    assert_array_equal(dv, [3.0, 4.0])


def test_row_16_explicit_form_equals_the_context_form():
    def explicit():
        tape = xf.Grad()
        with contextlib.ExitStack() as scope:
            scope.enter_context(tape)
            x = tape.attach(X)
            y = np.sin(x)
        first = tape.gradient(y, x, ONES, retain=True)
        return first, tape.gradient(y, x, ONES), tape, (y, x)

    for _ in range(2):
        first, second, tape, (y, x) = explicit()
        assert_array_equal(first, np.cos(X))
        assert_array_equal(second, first)
        with pytest.raises(TapeConsumedError, match="retain=True"):
            tape.gradient(y, x, ONES)


def test_row_17_gradients_are_linear_in_dy():
    dy = np.random.default_rng(1).normal(size=X.shape)

    def pulled(cotangent):
        with xf.Grad() as tape:
            x, w = tape.attach(X), tape.attach(X[0])
            return tape.gradient(np.sin(x) * w, (x, w), cotangent)

    for one, scaled in zip(pulled(dy), pulled(-2.5 * dy), strict=True):
        assert_allclose(scaled, -2.5 * one)
    assert_allclose(pulled(dy)[0], dy * np.cos(X) * X[0])


def test_row_18_callback_gets_the_gradient_and_temporaries_are_released():
    gc.disable()
    try:
        for _ in range(3):
            received, refs = [], []
            with xf.Grad() as tape:
                x = tape.attach(X.copy(), callback=lambda *arguments, kept=received: kept.append(arguments))
                temporary = tape.attach(x * 2.0, callback=lambda t: None)
                refs += [weakref.ref(temporary), weakref.ref(temporary.data), weakref.ref(x), weakref.ref(tape)]
                y = temporary * 3.0
                tape.backward(y, ONES)
            assert [len(arguments) for arguments in received] == [1]
            assert_allclose(received[0][0], 6 * ONES)
            del x, y, temporary, tape
            assert [ref() for ref in refs] == [None] * 4
    finally:
        gc.enable()


def test_row_19_attaching_twice_gives_two_leaves_in_order():
    with xf.Grad() as tape:
        first, second = tape.attach(X), tape.attach(X)
        found = tape.gradient(first * 2.0 + second * 5.0, [second, first, second], ONES)
    assert [each[0, 0] for each in found] == [5.0, 2.0, 5.0]
    assert first is not second


def test_row_20_attached_but_unused():
    called = []
    with xf.Grad() as tape:
        x, unused = tape.attach(X), tape.attach(X[0], callback=called.append)
        y = x * 3.0
        side = np.cos(x) * unused  # an unneeded consumer of both
        dx, du = tape.gradient(y, [x, unused], ONES)
    assert_array_equal(dx, 3 * ONES)
    assert_array_equal(du, np.zeros(3))
    assert called == []
    assert side.shape == (2, 3)


def test_row_21_backward_from_what_is_not_last():
    with xf.Grad() as tape:
        x = tape.attach(X)
        y = x * x
        later = [np.sin(y), y + x, np.exp(x)]
        dx = tape.gradient(y, x, ONES)
    assert_allclose(dx, 2 * X)
    assert len(later) == 3


def test_row_22_where_with_the_condition_all_false():
    never = np.zeros(X.shape, bool)
    _, pullback = xf.vjp(lambda a, b: np.where(never, a, b), X, X + 1)
    da, db = pullback(ONES)
    assert_array_equal(da, np.zeros_like(X))
    assert_array_equal(db, ONES)
