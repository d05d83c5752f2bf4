"""Tracing, one behaviour a test, numbered: first calls record and later ones replay, whatever the arguments are."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import xform as xf
import xform.numpy as xnp
from xform.core.errors import ShapeError

X = np.array([[0.3, -1.2, 2.0], [0.7, 1.1, -0.4]])

CONTAINERS = {
    "single": lambda x: np.sin(x) * 2.0,
    "tuple": lambda x: (np.sin(x), x + 1.0),
    "list": lambda x: [np.sin(x), x + 1.0],
    "dict": lambda x: {"s": np.sin(x), "p": x + 1.0},
    "nested": lambda x: {"a": [np.sin(x), (x, None)], "b": 3.0},
}


def same(have, want):
    """The same containers, and the same values."""
    assert xf.tree.structure(have) == xf.tree.structure(want)
    for one, other in zip(xf.tree.leaves(have), xf.tree.leaves(want), strict=True):
        assert type(one) is type(other)
        assert_array_equal(one, other)


class Count:
    """A function that counts how often Python runs it."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, *args):
        self.calls += 1
        return self.function(*args)


@pytest.mark.parametrize("mode", ["recording", "symbolic"])
@pytest.mark.parametrize("name", CONTAINERS)
def test_row_34_first_call_records_later_calls_replay(name, mode):
    counted = Count(CONTAINERS[name])
    traced = xf.trace(counted) if mode == "recording" else xf.make_program(counted)(X)
    for call in range(4):
        x = X + call
        same(traced(x), CONTAINERS[name](x))
    assert counted.calls == 1


def loss_of(w, x, y):
    return xnp.mean(xnp.square(xnp.tanh(x @ w) - y))


def step(w, x, y):
    loss, slope = xf.value_and_grad(loss_of)(w, x, y)
    return loss, w - 0.1 * slope


@pytest.mark.parametrize("mode", ["recording", "symbolic"])
def test_row_35_whole_training_step(mode):
    rng = np.random.default_rng(0)
    w, x, y = rng.normal(size=(3, 2)), rng.normal(size=(5, 3)), rng.normal(size=(5, 2))
    traced = xf.trace(step) if mode == "recording" else xf.make_program(step)(w, x, y)
    eager_w, traced_w, losses = w, w, []
    for _ in range(3):
        eager_loss, eager_w = step(eager_w, x, y)
        traced_loss, new_w = traced(traced_w, x, y)
        assert_array_equal(traced_loss, eager_loss)  # bit for bit
        assert_array_equal(new_w, eager_w)
        assert not np.array_equal(new_w, traced_w)
        traced_w = new_w
        losses.append(float(traced_loss))
    assert losses[0] > losses[1] > losses[2]


@pytest.mark.parametrize("function", [
    lambda x: xf.stop_gradient(x * 2.0) + x,
    lambda x: xf.grad(lambda v: (xf.stop_gradient(v) * v).sum())(x),
])  # fmt: skip
def test_row_36_stop_gradient_inside_a_trace(function):
    traced = xf.trace(function)
    for call in range(3):
        assert_array_equal(traced(X + call), function(X + call))
    assert_array_equal(xf.make_program(function)(X)(X), function(X))
    slope = xf.grad(lambda x: traced(x).sum())(X)
    assert_array_equal(slope, xf.grad(lambda x: function(x).sum())(X))


def test_row_43_profile_of_a_traced_function():
    traced = xf.trace(lambda x: np.sin(x) * 2.0)
    traced(X)
    with xf.Profile() as profile:
        traced(X)
        traced(X + 1.0)
    assert profile.calls("Sin") == 2
    assert profile.calls("Mul") == 2
    assert "Sin" in profile.table()


def test_row_47_the_users_exception_passes_unchanged():
    mine = ValueError("mine")

    def function(x, fail):
        y = np.sin(x)
        if fail:
            raise mine
        return y

    traced = xf.trace(function, static_argnums=1)
    for _ in range(2):
        with pytest.raises(ValueError, match="mine") as caught:
            traced(X, True)
        assert caught.value is mine
        assert xf.stack() == ()
        assert_array_equal(traced(X, False), np.sin(X))


def test_row_48_wrong_shape_at_replay():
    program = xf.make_program(lambda x: x + np.ones(3))(X)
    with pytest.raises(ShapeError, match=r"input 0 was recorded as float64\[2,3\], got float64\[2,4\]"):
        program(np.ones((2, 4)))
    assert_array_equal(program(X), X + 1)
    traced = xf.trace(lambda x: x + np.ones(3))
    assert_array_equal(traced(X), X + 1)
    with pytest.raises(ShapeError, match="Add"):
        traced(np.ones((2, 4)))
    assert xf.stack() == ()
    assert_array_equal(traced(X), X + 1)


DATA = np.arange(60.0).reshape(3, 4, 5)
VECTORS = [np.array(v) for v in ([0, 2], [1, 1], [-1, 0], [2, 0])]
MASKS = [np.array(m) for m in ([True, False, True], [False] * 3, [True] * 3, [False, True, False])]
INDEXED = {
    "int": (lambda x, i: x[i], [(0,), (2,), (-1,), (1,)]),
    "int array scalar": (lambda x, i: x[i], [(np.array(k),) for k in (0, 2, -1, 1)]),
    "int on a later axis": (lambda x, i: x[:, i], [(0,), (3,), (-1,), (1,)]),
    "start": (lambda x, i: x[i:], [(0,), (1,), (-1,), (2,)]),
    "start and stop": (lambda x, i, j: x[:, i:j], [(0, 2), (1, 4), (-3, -1), (2, 2)]),
    "vector": (lambda x, v: x[v], [(v,) for v in VECTORS]),
    "two vectors": (lambda x, v, w: x[v, w], [(v, np.array([3, 0])) for v in VECTORS]),
    "vectors apart": (lambda x, v, w: x[v, :, w], [(v, np.array([3, 0])) for v in VECTORS]),
    "mask": (lambda x, m: x[m], [(k < DATA,) for k in (5, 5, 20, 70)]),
    "mask of the first axis": (lambda x, m: x[m], [(m,) for m in MASKS]),
    "mixed": (lambda x, v, i: x[v, 1:3, i], list(zip(VECTORS, (0, 4, -2, 3), strict=True))),
    "newaxis and ellipsis": (lambda x, v: x[..., None, v], [(v,) for v in VECTORS]),
    "mask mixed": (lambda x, m, i: x[m, i], list(zip(MASKS, (0, -1, 1, 2), strict=True))),
}  # fmt: skip


@pytest.mark.parametrize("name", INDEXED)
def test_row_49_all_index_kinds_as_traced_inputs(name):
    function, calls = INDEXED[name]
    counted = Count(function)
    traced = xf.trace(counted)
    for call, indices in enumerate(calls):
        x = DATA + call
        assert_array_equal(traced(x, *indices), function(x, *indices))
    assert xf.stack() == ()


@pytest.mark.parametrize("name", ["int", "vector", "two vectors", "vectors apart", "mixed", "newaxis and ellipsis"])
def test_row_49_indices_of_one_shape_record_once(name):
    function, calls = INDEXED[name]
    counted = Count(function)
    traced = xf.trace(counted)
    for indices in calls:
        traced(DATA, *indices)
    assert counted.calls == 1
    slopes = [xf.grad(lambda x, i=indices: (traced(x, *i) ** 2).sum())(DATA) for indices in calls]
    wants = [xf.grad(lambda x, i=indices: (function(x, *i) ** 2).sum())(DATA) for indices in calls]
    for slope, want in zip(slopes, wants, strict=True):
        assert_array_equal(slope, want)


def test_row_53_traced_function_inside_a_recorded_region():
    counted = Count(lambda x, w: xnp.tanh(x * w) * x)
    traced = xf.trace(counted)
    w = np.array([1.0, -2.0, 0.5])
    want = None
    for call in range(4):
        with xf.Grad() as tape:
            x, v = tape.attach(X), tape.attach(w)
            y = (np.exp(x) * traced(np.sin(x), v)).sum()
        found = tape.gradient(y, (x, v))
        if want is None:
            want = xf.grad(lambda x, w: (np.exp(x) * counted.function(np.sin(x), w)).sum(), (0, 1))(X, w)
        assert_allclose(found[0], want[0], rtol=1e-14, err_msg=f"call {call}")
        assert_allclose(found[1], want[1], rtol=1e-14)
    assert counted.calls == 1
    replayed = [xf.grad(lambda x: traced(x, w).sum())(X) for _ in range(4)]
    for each in replayed[1:]:
        assert_array_equal(each, replayed[0])


def test_grad_of_trace_and_trace_of_grad_equal_eager():
    def function(x):
        return (np.sin(x) * np.exp(x[0])).sum()

    want = xf.grad(function)(X)
    second = xf.grad(lambda x: xf.grad(function)(x).sum())(X)
    traced = xf.trace(function)
    for _ in range(3):
        assert_array_equal(xf.grad(traced)(X), want)
        # passes may round otherwise
        assert_allclose(xf.grad(lambda x: xf.grad(traced)(x).sum())(X), second, rtol=1e-14)
    of_grad = xf.trace(xf.grad(function))
    for _ in range(3):
        assert_array_equal(of_grad(X), want)
        assert_allclose(xf.grad(lambda x: of_grad(x).sum())(X), second, rtol=1e-14)
    assert_allclose(xf.trace(xf.grad(xf.trace(function)))(X), want, rtol=1e-14)


def test_reading_a_traced_value_where_it_cannot_be_a_guard_raises_and_names_the_remedy():
    for read, remedy in ((bool, "xnp.where"), (float, "outside"), (np.asarray, "np.stack"), (int, "x.shape")):
        for make in (lambda f: xf.trace(f, guards="error"), xf.make_program):
            with pytest.raises(TypeError, match=remedy):
                make(lambda x, read=read: read(x[0, 0]) or x)(X)
            assert xf.stack() == ()
    with pytest.raises(TypeError, match=r"np\.stack"):
        xf.trace(lambda x: np.asarray(x[0, 0]) * x)(X)


def test_program_prints_lines_scopes_and_constants():
    offset = np.array([1.0, 2.0, 3.0])

    def function(x):
        with xf.named_scope("shift"):
            return x * 2.0 + offset

    program = xf.make_program(function)(X)
    assert [type(equation.op).__name__ for equation in program.equations] == ["Mul", "Add"]
    (constant,) = program.constants
    assert constant.value is not offset
    assert_array_equal(constant.value, offset)
    assert "  c: float64[3] = constant [1. 2. 3.]\n" in program.text()
    assert [equation.scopes for equation in program.equations] == [("shift",), ("shift",)]
    text = program.text(lines=True)
    assert "[shift] " in text
    assert "return x * 2.0 + offset" in text
    assert program.in_avals == (xf.aval_of(X),)
    assert_array_equal(program(X), X * 2 + offset)


def test_trace_below_a_tape_has_forward_and_backward():
    with xf.Trace() as recorder:
        x0 = recorder.input(X)
        with xf.Grad() as tape:
            x = tape.attach(x0)
            y = np.exp(np.sin(x)).sum()
        slope = tape.gradient(y, x)
    program = recorder.program((tape.unwrap(y), slope))
    phases = {equation.phase for equation in program.equations}
    assert phases == {"forward", "backward"}
    value, found = program(X + 1.0)
    assert_allclose(value, np.exp(np.sin(X + 1)).sum())
    assert_allclose(found, np.exp(np.sin(X + 1)) * np.cos(X + 1))


class Seen(xf.Observer):
    """Keeps what it saw."""

    def __init__(self):
        self.seen = []

    def observe(self, op, inputs, outputs):
        self.seen.append((op.name, outputs))


@pytest.mark.parametrize("make", [xf.trace, xf.make_program])
def test_an_observer_above_a_recorder_sees_replays(make):
    observer = Seen()

    def f(x):
        with observer:
            y = np.sin(x)
        return y * 2.0

    run = make(f) if make is xf.trace else make(f)(np.ones(2))
    run(np.ones(2))
    run(np.zeros(2))
    names, values = zip(*observer.seen, strict=True)
    assert names == ("Sin", "Sin")
    np.testing.assert_array_equal(values[0], np.sin(np.ones(2)))
    np.testing.assert_array_equal(values[1], np.zeros(2))


def test_a_profile_inside_a_traced_function_counts_replays():
    profile = xf.Profile()

    def f(x):
        with profile:
            return np.sin(x) * 2.0

    run = xf.trace(f)
    for count in (1, 2, 3):
        run(np.ones(2))
        assert profile.calls("Sin") == profile.calls("Mul") == count


def test_an_observer_within_a_gradient_within_a_trace_sees_replays():
    observer = Seen()

    def f(x):
        with observer:
            return np.sum(np.sin(x))

    run = xf.trace(xf.grad(f))
    np.testing.assert_allclose(run(np.ones(2)), np.cos(np.ones(2)))
    np.testing.assert_allclose(run(np.zeros(2)), np.ones(2))
    assert [name for name, _ in observer.seen] == ["Sin", "Sum"] * 2
