"""What a traced function reads of values is a guard: it equals the eager function on every path, or raises."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from typeguard import suppress_type_checks

import xform as xf
import xform.numpy as xnp
from xform.core.errors import HostReadError, OperandError, ProgramError, TooManyPathsError

X = np.array([1.0, -2.0, 3.0, 4.0])
CALLS = [X, -X, X[::-1].copy(), np.array([-1.0, -2.0, -3.0, 0.5]), np.array([4.0, 3.0, -1.0, 2.0]), X * 0.25]


class Count:
    """A function that counts how often Python runs it."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, *args):
        self.calls += 1
        return self.function(*args)


def plain(out):
    """A result of a call with tracked arguments, on the host."""
    return xf.tree.map(lambda leaf: leaf.data if isinstance(leaf, xf.Value) else leaf, out)


def same(have, want):
    assert xf.tree.structure(have) == xf.tree.structure(want)
    for one, other in zip(xf.tree.leaves(have), xf.tree.leaves(want), strict=True):
        assert xf.aval_of(one).dtype == xf.aval_of(other).dtype
        assert_array_equal(one, other)


# ------------------------------------------------------------------ every spelling of a read


def sized(x):
    return np.zeros(int(np.argmax(x)) + 1) + x[0]


def caught(x):
    try:
        return np.linalg.cholesky(x.reshape(2, 2) @ x.reshape(2, 2).T - 4.0 * xnp.eye(2))
    except np.linalg.LinAlgError:
        return x * 7.0


def numbered(x):
    try:
        return x * int(1.0 / x[3])
    except (OverflowError, ValueError) as error:
        return x + len(str(type(error).__name__))


READS = {
    "bool": lambda x: x * 2.0 if x.sum() > 0 else -x,
    "and or not": lambda x: x if (x[0] > 0 and not x[1] > 0) or x[2] > 3 else x + 1.0,
    "while": lambda x: halved(x),
    "int": lambda x: x * int(x.sum()),
    "float": lambda x: x * float(x[0]),
    "item": lambda x: x * x[2].item(),
    "math": lambda x: x * math.exp(x[3] * 0.1),
    "index of a list": lambda x: [1.0, 2.0, 3.0, 4.0][np.argmax(x)] * x,
    "range": lambda x: sum(x[i] * i for i in range(np.argmax(x) + 1)),
    "index of an ndarray": lambda x: np.arange(4.0)[int(np.argmax(x))] * x,
    "zeros": sized,
    "reshape": lambda x: x.reshape(1 + int(x[0] > 0), -1),
    "repeat": lambda x: xnp.repeat(x, (x > 0).astype(int)),
    "tile": lambda x: xnp.tile(x, int(np.argmax(x))),
    "max of two": lambda x: max(x[0], x[1]) * x,
    "sorted": lambda x: xnp.stack(sorted(x)),
    "allclose": lambda x: x if np.allclose(x, X) else x * 3.0,
    "shape": lambda x: x[x > 0] / x[x > 0].shape[0],
    "len": lambda x: x * len(x[x > 0]),
    "size": lambda x: x * x[x > 0].size + np.size(x[x < 0]),
    "iteration": lambda x: sum(v * v for v in x[x > 0]),
    "shape of nonzero": lambda x: xnp.zeros(xnp.nonzero(x > 0)[0].shape) + x[0],
    "median": lambda x: xnp.median(x[x > 0]),
    "deviation": lambda x: x[x > -9.0].std() * x[x > 0].sum(),
    "an error": caught,
    "an error of a read": numbered,
}  # fmt: skip


def halved(x):
    while np.abs(x).sum() > 1.0:
        x = x / 2.0
    return x


@pytest.mark.parametrize("name", READS)
def test_a_traced_function_equals_the_eager_one_on_every_path(name):
    function = READS[name]
    counted = Count(function)
    traced = xf.trace(counted)
    with np.errstate(divide="ignore"):
        for x in CALLS + CALLS[::-1]:
            same(traced(x), plain(function(xf.array(x))))
        runs = counted.calls
        assert runs == len(traced.paths(X)) <= len(CALLS)
        for x in CALLS:
            same(traced(x), plain(function(xf.array(x))))
    assert counted.calls == runs  # replays run no Python
    assert xf.stack() == ()


@pytest.mark.parametrize("name", READS)
def test_paths_in_any_order_are_the_same(name):
    function = READS[name]
    with np.errstate(divide="ignore"):
        wants = [plain(function(xf.array(x))) for x in CALLS]
        for order in ([3, 0, 5, 1, 4, 2], [2, 2, 1, 0, 0, 5, 4, 3]):
            traced = xf.trace(function)
            for k in order:
                same(traced(CALLS[k]), wants[k])


def test_a_function_without_reads_is_one_program_run_directly():
    traced = xf.trace(lambda x: np.sin(x) * 2.0)
    traced(X)
    (kept,) = traced.programs.values()
    assert kept.paths.single is traced.program(X)
    assert_array_equal(traced(-X), np.sin(-X) * 2.0)


def test_a_selection_by_values_alone_is_no_guard():
    counted = Count(lambda x: (x[x > 0].sum(), xnp.cumsum(x[x > 0]), x[x > 0].mean(), x[x > 0][::-1]))
    traced = xf.trace(counted)
    for x in CALLS:
        same(traced(x), plain(counted.function(xf.array(x))))
    assert counted.calls == 1
    slope = Count(xf.grad(lambda x: (x[x > 0] ** 2).mean() + x[x < 0] @ x[x < 0]))
    traced = xf.trace(slope)
    for x in CALLS:
        assert_allclose(traced(x), slope.function(x), rtol=1e-14)
    assert len(traced.paths(X)) == 1


# ------------------------------------------------------------------ outcomes


NUMBERS = [np.nan, -np.nan, 0.0, -0.0, 1.0, np.inf, np.nan, -0.0]


@pytest.mark.parametrize("read", [float, lambda x: x.item(), lambda x: complex(x).real])
def test_outcomes_are_told_apart_bit_for_bit(read):
    counted = Count(lambda x: xnp.ones(2) * math.copysign(1.0, read(x)))
    traced = xf.trace(counted)
    for _ in range(2):
        for number in NUMBERS:
            assert_array_equal(traced(np.float64(number)), np.ones(2) * np.copysign(1.0, number))
    assert counted.calls == len(traced.paths(np.float64(0.0))) == 6


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "longdouble"])
def test_a_path_is_known_by_the_number_that_python_sees(dtype):
    traced = xf.trace(lambda x: x * x[0].item())
    for number in (0.1, 0.2, 0.1):
        x = np.array([number, 3.0], dtype)
        have = traced(x)
        assert have.dtype == dtype
        assert_array_equal(have, x * x[0].item())
    assert len(traced.paths(np.ones(2, dtype))) == 2


def test_true_is_not_one():
    counted = Count(lambda x: xnp.ones(1) * len(repr(x.item())))
    traced = xf.trace(counted)
    for value in (True, 1, 1.0, 1 + 0j):
        x = np.array(value)
        assert_array_equal(traced(x), [len(repr(value))])
    assert counted.calls == 4


def test_a_value_is_read_once_for_each_kind():
    def f(x):
        positive = x.sum() > 0
        for _ in range(3):
            if positive:
                x = x + 1.0
        return x

    traced = xf.trace(f)
    for x in CALLS:
        same(traced(x), f(x))
    assert [len(path.outcomes) for path in traced.paths(X)] == [1, 1]


def test_numbers_as_arguments_are_read_too():
    counted = Count(lambda x, n: x * n if n > 2 else sum([x for _ in range(n)], x))
    traced = xf.trace(counted)
    for n in (1, 3, 2, 4, 1, 2, 7):
        assert_array_equal(traced(X, n), X * n if n > 2 else X * (n + 1))
    assert counted.calls == 3


# ------------------------------------------------------------------ rows


def test_row_39_sizes_that_depend_on_a_value_vary_between_calls():
    traced = xf.trace(lambda x, n: xnp.repeat(x, n))
    wide = xf.trace(lambda x, shape: xnp.broadcast_to(x, shape))
    for n in (1, 3, 2, 3, 5):
        assert_array_equal(traced(X, np.array(n)), np.repeat(X, n))
        assert_array_equal(traced(X, n), np.repeat(X, n))
    for shape in ((2, 2), (3, 2), (2, 2), (1, 2)):
        found = wide(np.array([[1.0, 2.0]]), tuple(map(np.array, shape)))
        assert_array_equal(found, np.broadcast_to([[1.0, 2.0]], shape))


def test_row_40_reading_a_value_gives_what_it_is_at_each_call():
    seen = []

    def f(x):
        y = -x
        seen.append(float(y[0]))
        return -y * seen[-1]

    traced = xf.trace(f)
    for number in (1.0, 2.0, 1.0, 2.0):
        assert_array_equal(traced(X * number), X * number * -number)
    assert seen == [-1.0, -2.0]  # a replay reads without Python
    with pytest.raises(HostReadError, match=r"float\(\) of the traced value .* in make_program of f"):
        xf.make_program(f)(X)


def test_row_45_a_shape_as_a_value():
    is_empty = xf.trace(lambda x: xnp.asarray(x.shape[0] == 0))
    flat = Count(lambda x: x.reshape(x.shape[0], 6))
    traced = xf.trace(flat)
    for _ in range(2):
        for batch in (2, 4, 8, 0):
            x = np.arange(batch * 6.0).reshape(batch, 2, 3)
            assert bool(is_empty(x)) == (batch == 0)
            assert_array_equal(traced(x), x.reshape(batch, 6))
    assert flat.calls == 4


def test_row_45_a_shape_that_values_decide():
    def f(x):
        chosen = x[x > 0]
        rows = chosen.reshape(chosen.shape[0], 1) if chosen.shape[0] % 2 else chosen.reshape(-1, chosen.shape[0])
        return rows / len(chosen)

    traced = xf.trace(f)
    for x in CALLS * 2:
        same(traced(x), f(x))


# ------------------------------------------------------------------ errors


def test_too_many_paths_name_the_line_that_splits():
    def f(x):
        return x * int(x[0])  # splits

    counted = Count(f)
    traced = xf.trace(counted, max_paths=3)
    for number in (1.0, 2.0, 3.0):
        traced(X * number)
    with pytest.raises(TooManyPathsError, match=r"int\(\) at .*# splits has .*: 4, after 1, 2, 3") as e:
        traced(X * 4.0)
    assert e.value.site[0] == __file__
    assert e.value.max_paths == 3
    for remedy in ("static_argnums", r"xnp\.where", r"xf\.while_loop", r"xf\.exclude_from_trace", "max_paths"):
        assert re.search(remedy, str(e.value))
    assert xf.stack() == ()
    for number in (1.0, 2.0, 3.0):  # what is known goes on
        assert_array_equal(traced(X * number), X * number * number)
    assert len(traced.paths(X)) == 3


def test_a_loop_over_values_ends_in_too_many_paths():
    def f(x, tolerance):
        while float(np.abs(x).max()) > tolerance:
            x = x * 0.5
        return x

    traced = xf.trace(f, max_paths=4)
    for tolerance in (1.0, 0.4, 0.1):
        same(traced(X, tolerance), f(X, tolerance))
    traced(X * 1.01, 0.5)
    with pytest.raises(TooManyPathsError, match=r"float\(\) at .*while float"):
        traced(X * 1.02, 0.5)


def test_too_many_paths_that_the_function_catches_are_raised_all_the_same():
    def f(x):
        try:
            return x * int(x[0])
        except xf.XformError:
            return x

    traced = xf.trace(f, max_paths=1)
    traced(X)
    with pytest.raises(TooManyPathsError):
        traced(X * 2.0)


def test_guards_that_are_errors():
    traced = xf.trace(lambda x: x if x[0] > 0 else -x, guards="error")
    for x in (X, -X):
        with pytest.raises(HostReadError, match=r"bool\(\) of the traced value.*xnp\.where"):
            traced(x)
    sizes = xf.trace(lambda x: x[x > 0].shape[0] * x, guards="error")
    with pytest.raises(HostReadError, match="the shape of the traced value"):
        sizes(X)
    quiet = xf.trace(lambda x: x * x.shape[0] if x.ndim == 1 and x.dtype.kind == "f" else x, guards="error")
    assert_array_equal(quiet(X), X * 4)

    def caught(x):
        try:
            return x if x[0] > 0 else -x
        except TypeError:
            return x

    with pytest.raises(HostReadError):
        xf.trace(caught, guards="error")(X)


@pytest.mark.parametrize("options", [
    {"guards": "ignore"}, {"capture": "copy"}, {"max_paths": 0}, {"max_paths": True}, {"max_paths": 2.0},
])  # fmt: skip
def test_options_that_are_none(options):
    (name,) = options
    with suppress_type_checks(), pytest.raises(OperandError, match=f"trace: {name} must be"):
        xf.trace(np.sin, **options)


def test_a_guarded_function_has_no_one_program():
    traced = xf.trace(lambda x: x if x[0] > 0 else -x)
    with pytest.raises(ProgramError, match=r"bool\(\) at .*test_trace_guards.*paths"):
        traced.program(X)
    traced(-X)
    first, second = traced.paths(X)
    assert [path.outcomes[0].split(" is ")[1] for path in (first, second)] == ["True", "False"]
    assert [type(e.op).__name__ for e in second.program.equations] == ["GetItem", "Greater", "Neg"]
    assert_array_equal(second.program(X), -X)


def test_an_error_that_is_not_caught_is_that_of_the_eager_function():
    def f(x):
        return np.linalg.cholesky(x * 1.0)

    traced = xf.trace(f)
    traced(np.eye(2))
    for _ in range(2):
        with pytest.raises(np.linalg.LinAlgError, match="not positive definite") as caught:
            traced(-np.eye(2))
        assert caught.value.__context__ is None
        assert any(entry.name == "f" for entry in caught.traceback)  # the line of the function
        assert xf.stack() == ()
    assert_array_equal(traced(np.eye(2) * 4.0), np.eye(2) * 2.0)
    assert len(traced.paths(np.eye(2))) == 1


def test_any_error_of_an_operator_may_be_caught():
    class Positive(xf.Operator):
        def infer(self, x):
            return x

        def evaluate(self, xp, x):
            if x[0] < 0:
                raise KeyError("negative")
            return x * 2.0

    def caught(x):
        try:
            return xf.apply(Positive(), x) + 1.0
        except KeyError:
            return x * 3.0

    traced = xf.trace(caught)
    for scale in (1.0, -1.0, -1.0, 1.0):
        assert_array_equal(traced(X * scale), caught(X * scale))
    plain = xf.trace(lambda x: xf.apply(Positive(), x) + 1.0)
    assert_array_equal(plain(X), X * 2.0 + 1.0)
    with pytest.raises(KeyError, match="negative"):
        plain(-X)


def test_an_error_that_does_not_come_again_passes_as_the_same_object():
    class Once(xf.Observer):
        def __init__(self):
            self.pending = None

        def observe(self, op, inputs, outputs):
            if self.pending is not None:
                error, self.pending = self.pending, None
                raise error

    layer, traced = Once(), xf.trace(lambda x: np.sin(x) * 2.0)
    traced(X)
    for error in (OperandError("mine"), KeyError("mine"), FloatingPointError("mine")):
        layer.pending = error
        with pytest.raises(type(error), match="mine") as caught, layer:
            traced(xf.array(X))
        assert caught.value is error
        assert_array_equal(traced(X), np.sin(X) * 2.0)


def test_what_shapes_alone_make_fail_is_no_guard():
    def f(x, y):
        try:
            return x @ y
        except ValueError:
            return x @ y.T

    traced = xf.trace(f)
    ones = np.ones((2, 3))
    assert_array_equal(traced(ones, ones), ones @ ones.T)
    assert_array_equal(traced(ones, ones.T), ones @ ones.T)
    assert len(traced.program(ones, ones).equations) == 2


def positive_definite(a):
    try:
        np.linalg.cholesky(a)  # nothing uses it
    except np.linalg.LinAlgError:
        return False
    return True


def within(x, i):
    try:
        x[i]
    except IndexError:
        return False
    return True


ASKING = {
    "cholesky": (lambda a: a + 1.0 if positive_definite(a) else a * 0.0, [(np.eye(2),), (-np.eye(2),)]),
    "index": (lambda x, i: x + 1.0 if within(x, i) else x * 0.0, [(X, 1), (X, 7), (X, -4), (X, -5)]),
    "lengths": (
        lambda x, y: probe(lambda: x[x > 0] + y[y > 0], x),
        [(X, X), (X, -X), (-X, -X[::-1].copy()), (X, X[::-1].copy())],
    ),
    "a part": (lambda a: (a * 2.0, positive_definite(a - 1.0) and positive_definite(a))[0], [(np.eye(2),)] * 2),
}  # fmt: skip


def probe(fun, x):
    try:
        fun()
    except ValueError:
        return x * 0.0
    return x + 1.0


@pytest.mark.parametrize("name", ASKING)
def test_an_operation_is_asked_whether_it_fails_though_nothing_uses_its_result(name):
    function, calls = ASKING[name]
    for order in (calls, calls[::-1]):
        traced = xf.trace(function)
        for args in order * 3:
            same(traced(*args), plain(function(*map(xf.array, args))))
            have, want = [
                xf.grad(lambda x, fun=fun, rest=args[1:]: fun(x, *rest).sum())(args[0]) for fun in (traced, function)
            ]
            assert_array_equal(have, want)


def test_an_operation_that_nothing_uses_raises_as_in_the_eager_function():
    traced = xf.trace(lambda a: (np.linalg.cholesky(a), a + 1.0)[1])
    for _ in range(2):
        assert_array_equal(traced(np.eye(2)), np.eye(2) + 1.0)
        with pytest.raises(np.linalg.LinAlgError):
            traced(-np.eye(2))
    assert [type(equation.op).__name__ for equation in traced.program(np.eye(2)).equations] == ["Cholesky", "Add"]


@pytest.mark.parametrize("order", [[1.0, -1.0], [-1.0, 1.0]])
def test_an_operation_that_fails_for_some_values(order):
    def f(a):
        try:
            r = np.linalg.cholesky(a)
        except np.linalg.LinAlgError:
            return a * 0.0
        return r @ r + a

    counted = Count(f)
    traced = xf.trace(counted)
    for sign in order * 3:
        a = sign * np.array([[2.0, 1.0], [1.0, 2.0]])
        assert_array_equal(traced(a), f(a))
        assert_allclose(xf.grad(lambda a: traced(a).sum())(a), xf.grad(lambda a: f(a).sum())(a), rtol=1e-13)
    assert counted.calls == 2
