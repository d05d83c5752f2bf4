"""What a traced function takes for the same call, what it keeps of the world around it, and what it refuses."""

from __future__ import annotations

import dataclasses
import gc
import weakref

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from typeguard import suppress_type_checks

import xform as xf
import xform.numpy as xnp
from xform.core.errors import LayerError, OperandError, OperandTypeError

X = np.array([1.0, 2.0])


# ------------------------------------------------------------------ static arguments


@dataclasses.dataclass(frozen=True)
class Config:
    n: object
    __tree_leaf__ = True


NAN = float("nan")
STATICS = [
    (1, True, 1.0, 1 + 0j, np.int64(1), np.float32(1), np.bool_(True)),
    (0.0, -0.0, 0, False, np.float64(-0.0), np.float64(0.0)),
    (complex(0.0, 0.0), complex(0.0, -0.0)),
    ((1, 2), (True, 2), (1.0, 2), ((1,), 2)),
    ((0.0,), (-0.0,)),
    (((1,),), ((True,),)),
    (frozenset([1]), frozenset([True]), frozenset([1.0])),
    (Config(1), Config(True), Config((1.0,)), Config((1,))),
    (slice(0, 1), slice(False, 1), slice(0, 1, 1)),
    ("1", b"1", None),
]


@pytest.mark.parametrize(("values", "way"), [
    *((values, way) for values in STATICS for way in ("position", "name")), (("1", b"1", True), "leaf"),
])  # fmt: skip
def test_static_values_of_other_types_are_other_calls(values, way):
    def f(x, n):
        seen.append(n)
        return x * 2.0

    seen = []
    options = {"position": {"static_argnums": 1}, "name": {"static_argnames": "n"}, "leaf": {}}[way]
    traced = xf.trace(f, **options)
    for _ in range(2):
        for value in values:
            traced(X, value)
    assert [(type(n), repr(n)) for n in seen] == [(type(n), repr(n)) for n in values]


def test_nan_is_one_static_value():
    traced = xf.trace(lambda x, n: x * 2.0, static_argnums=1)
    for _ in range(3):
        traced(X, float("nan"))
        traced(X, (NAN, np.float64("nan")))
    assert len(traced.programs) == 2


def test_static_values_decide_what_is_recorded():
    traced = xf.trace(lambda x, n: x + 1.0 if n is True else x / n, static_argnums=1)
    with np.errstate(divide="ignore"):
        for n in (True, 1, 1.0, 0.0, -0.0):
            assert_array_equal(traced(X, n), X + 1.0 if n is True else X / np.float64(n))


def test_keys_of_dicts_hold_their_types():
    traced = xf.trace(lambda d: {type(key).__name__: value * 2.0 for key, value in d.items()})
    assert list(traced({1: X})) == ["int"]
    assert list(traced({True: X})) == ["bool"]
    assert list(traced({1: X})) == ["int"]


def test_static_arguments_follow_the_signature():
    calls = []

    def f(x, n=2, *, mode="a"):
        calls.append((n, mode))
        return x * n if mode == "a" else x + n

    for options in ({"static_argnums": 1}, {"static_argnames": "n"}, {"static_argnums": (np.int64(-1),)}):
        traced = xf.trace(f, **options)
        for args, kwargs in (((X, 3), {}), ((X,), {"n": 3}), ((X,), {}), ((), {"n": 4, "x": X})):
            assert_array_equal(traced(*args, **kwargs), f(*args, **kwargs))
            assert_array_equal(traced(*args, **kwargs), f(*args, **kwargs))
        assert all(type(n) is int for n, _ in calls)  # never traced
    traced = xf.trace(f, static_argnames=("n", "mode"))
    assert_array_equal(traced(X, 3, mode="b"), X + 3)
    assert_array_equal(traced(X, mode="b", n=5), X + 5)


def test_static_arguments_of_varied_signatures():
    last = xf.trace(lambda *args: args[0] * 2.0 if args[-1] == "double" else args[0], static_argnums=-1)
    assert_array_equal(last(X, "double"), X * 2)
    assert_array_equal(last(X, X, "single"), X)
    named = xf.trace(lambda x, **options: x * options["k"], static_argnames="k")
    assert_array_equal(named(X, k=3), X * 3)
    many = xf.trace(lambda x, *rest: x * sum(rest), static_argnums=(2, 1))
    assert_array_equal(many(X, 1, 2), X * 3)
    assert_array_equal(many(X), X * 0)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"static_argnums": 2}, OperandError, r"trace of f: static_argnums=2, but it takes 2 positional"),
        ({"static_argnums": -3}, OperandError, "static_argnums=-3"),
        ({"static_argnames": "m"}, OperandError, r"static_argnames='m', but it has the parameters \['x', 'n'\]"),
        ({"static_argnums": "n"}, OperandTypeError, "argument numbers are an int"),
        ({"static_argnums": 1.0}, OperandTypeError, "argument numbers are an int"),
        ({"static_argnames": 1}, OperandTypeError, "argument names are a string"),
    ],
)
def test_static_arguments_that_are_none_raise_at_once(options, error, message):
    def f(x, n):
        return x

    with suppress_type_checks(), pytest.raises(error, match=message):
        xf.trace(f, **options)


# ------------------------------------------------------------------ order


def test_order_of_keywords_and_of_keys_is_that_of_the_call():
    named = xf.trace(lambda **arrays: [array * 2.0 for array in arrays.values()])
    keyed = xf.trace(lambda arrays: {key: array * 2.0 for key, array in arrays.items()})
    nested = xf.trace(lambda pair: [next(iter(pair[0].values())) * 2.0, pair[1]])
    for _ in range(2):
        for order in ("ab", "ba"):
            arrays = {key: np.array(float(ord(key))) for key in order}
            assert [float(out) for out in named(**arrays)] == [2.0 * ord(key) for key in order]
            assert list(keyed(arrays)) == list(order)
            assert float(nested((arrays, 1.0))[0]) == 2.0 * ord(order[0])


def test_keywords_keep_their_order_around_static_ones():
    traced = xf.trace(
        lambda **options: xf.stop_gradient(X) * len(str(list(options))) + options["x"] * 0.0, static_argnames="n"
    )
    assert_array_equal(traced(n=1, x=X), X * len(str(["n", "x"])))
    seen = []
    traced = xf.trace(lambda **options: seen.append(list(options)) or options["x"] * 1.0, static_argnames="n")
    traced(n=1, x=X)
    traced(x=X, n=1)
    assert seen == [["n", "x"], ["x", "n"]]


def test_a_dict_by_keyword_is_no_dict_by_position():
    traced = xf.trace(lambda *args, **kwargs: len(args) * 10.0 + len(kwargs) + X)
    assert_array_equal(traced((X,), {"a": X}), 20 + X)
    assert_array_equal(traced(X, a=X), 11 + X)


# ------------------------------------------------------------------ constants


@pytest.mark.parametrize("make", [xf.trace, lambda f: xf.make_program(f)(X)])
def test_constants_are_those_of_the_recording(make):
    array = np.array([1.0, np.nan])

    def f(v):
        return v * array + np.sin(xf.array(array))

    want = f(X)
    replay = make(f)
    assert_array_equal(replay(X), want)
    array[:] = 7.0
    assert_array_equal(replay(X), want)


@pytest.mark.parametrize("make", [xf.trace, lambda f: xf.make_program(f)(X)])
def test_work_in_place_inside_the_function_is_recorded_step_by_step(make):
    def f(v):
        c = np.zeros(2)
        for _ in range(3):
            c += 1
            v = v * c
        return v, c, xf.array(c)

    replay = make(f)
    for call in range(3):
        for have, want in zip(replay(X + call), f(X + call), strict=True):
            assert_array_equal(have, want)


def test_an_unchanged_array_is_one_constant_nan_or_not():
    array = np.array([1.0, np.nan])
    program = xf.make_program(lambda v: v * array + array - array)(X)
    assert len(program.constants) == 1
    signed = np.zeros(2)

    def f(v):
        out = v / signed
        signed[:] = -0.0
        return out, v / signed

    with np.errstate(divide="ignore"):
        positive, negative = xf.make_program(f)(X)(X)
    assert np.all(positive == np.inf)
    assert np.all(negative == -np.inf)


def test_constants_of_other_libraries_are_copies_too():
    strict = pytest.importorskip("array_api_strict")
    array = strict.asarray([1.0, np.nan])

    def f(v):
        out = v + array
        array[:] = 5.0
        return out, v + array, array

    program = xf.make_program(f)(strict.asarray([1.0, 2.0]))
    for _ in range(2):
        out, then, same = program(strict.asarray([0.0, 0.0]))
        assert_array_equal(np.from_dlpack(out), [1.0, np.nan])
        assert_array_equal(np.from_dlpack(then), [5.0, 5.0])
        same[:] = 9.0


def test_linearize_keeps_its_constants():
    array = np.array([1.0, 2.0])
    _, push = xf.linearize(lambda v: v * array, X)
    array[:] = 7.0
    assert_array_equal(push(np.ones(2)), [1.0, 2.0])


OUTPUTS = {
    "constant": lambda v, c: c,
    "array": lambda v, c: xf.array(c),
    "reshaped": lambda v, c: xnp.reshape(xf.array(c), (2, 1)),
    "view": lambda v, c: xf.array(c)[::-1],
    "in a container": lambda v, c: {"c": (c, v * c)}["c"][0],
}


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("make", [xf.trace, lambda f: xf.make_program(f)(X)])
def test_writing_into_an_output_leaves_the_program_as_it_is(name, make):
    def f(v):
        c = np.array([3.0, 4.0])
        return OUTPUTS[name](v, c), v * c

    replay = make(f)
    want = f(X)
    for _ in range(4):
        for have, expected in zip(replay(X), want, strict=True):
            assert_array_equal(have, expected)
            (have.data if isinstance(have, xf.Value) else have)[...] = -1.0


def test_two_outputs_that_are_one_constant_are_two_arrays():
    c = np.ones(2)
    one, other = xf.make_program(lambda v: (c, c))(X)(X)
    one[:] = 5.0
    assert_array_equal(other, np.ones(2))


def test_a_program_prints_its_constants():
    big, small = np.arange(1e6).reshape(1000, 1000), np.array([0.0, 1.0])
    program = xf.make_program(lambda x: (x * small, x[0] + big))(X)
    lines = program.text().splitlines()
    assert lines[1] == "  b: float64[2] = constant [0. 1.]"
    (line,) = [line for line in lines if "float64[1000,1000] = constant" in line]
    assert "..." in line
    assert len(line) < 150
    assert repr(program.constants[0]) == "b: float64[2] = constant [0. 1.]"


# ------------------------------------------------------------------ a derivative above a layer that rewrites


class CosForSin(xf.Transformation):
    def interpret(self, op, values):
        return xf.apply(xf.ops.Cos() if op == xf.ops.Sin() else op, *values)


def cube(x):
    return (np.sin(x) ** 3).sum()


def recorded_gradients():
    traced = xf.trace(xf.grad(cube))
    traced(X)
    outer = xf.trace(lambda x: traced(x) * 1.0)
    outer(X)
    forward = xf.trace(lambda x: xf.jvp(cube, (x,), (X,))[1])
    forward(X)
    return {
        "trace": traced,
        "make_program": xf.make_program(xf.grad(cube))(X),
        "trace of trace": outer,
        "program of program": xf.make_program(xf.make_program(xf.grad(cube))(X))(X),
        "vjp": xf.make_program(lambda x: xf.vjp(cube, x)[1](1.0)[0])(X),
        "jvp": forward,
        "second": xf.make_program(lambda x: xf.grad(lambda v: xf.grad(cube)(v).sum())(x))(X),
    }


@pytest.mark.parametrize("name", [
    "trace", "make_program", "trace of trace", "program of program", "vjp", "jvp", "second",
])  # fmt: skip
def test_a_recorded_derivative_refuses_a_rewriter_below(name):
    run = recorded_gradients()[name]
    want = run(X)
    other = "Forward" if name == "jvp" else "Grad"
    with pytest.raises(LayerError, match=rf"(?s)CosForSin\(\) rewrites.*{other}.*Decorate the function"):
        CosForSin()(run)(X)
    with CosForSin(), pytest.raises(LayerError, match="Decorate the function"):
        run(xf.array(X))
    assert_array_equal(run(X), want)
    with xf.Profile():
        assert_array_equal(run(xf.array(X)).data, want)


def test_without_a_derivative_a_rewriter_below_is_welcome():
    traced = xf.trace(np.sin)
    traced(X)
    assert_array_equal(CosForSin()(traced)(X), np.cos(X))
    rewritten = xf.trace(xf.grad(CosForSin()(cube)))  # above the tape, as the message says
    for _ in range(2):
        np.testing.assert_allclose(rewritten(X), -3 * np.cos(X) ** 2 * np.sin(X))


def test_a_function_recorded_in_a_backward_pass_is_no_derivative():
    traced = xf.trace(lambda x: np.sin(x) * 2.0)
    custom = xf.custom_gradient(lambda x: (x * 1.0, None), lambda residuals, t: traced(t))
    xf.grad(lambda x: custom(x).sum())(X)
    assert len(traced.programs) == 1
    assert {equation.phase for equation in traced.program(X).equations} == {"forward"}
    np.testing.assert_allclose(CosForSin()(traced)(X), np.cos(X) * 2.0)


def test_scopes_around_a_recording_are_not_told_twice():
    class Seen(xf.Observer):
        def observe(self, op, inputs, outputs):
            if op.name == "Mul":
                scopes.append(xf.current().scopes)

    def f(x):
        with xf.named_scope("own"):
            return x * 2.0

    scopes = []
    traced = xf.trace(f)
    for _ in range(2):
        with Seen(), xf.named_scope("around"):
            traced(X)
    assert scopes == [("around", "own")] * 2


# ------------------------------------------------------------------ methods


class Model:
    def __init__(self, w):
        self.w = w
        self.calls = 0

    @xf.trace
    def __call__(self, x):
        self.calls += 1
        return x * self.w

    method = xf.trace(lambda self, x, n: x * self.w + n, static_argnums=2)


def test_trace_decorates_methods():
    one, other = Model(2.0), Model(np.array([3.0, 4.0]))
    for _ in range(2):
        assert_array_equal(one(X), X * 2)
        assert_array_equal(other(X), X * other.w)
        assert_array_equal(one.method(X, 1), X * 2 + 1)
        assert_array_equal(one.method(X, n=True), X * 2 + 1)
    assert (one.calls, other.calls) == (1, 1)
    assert_array_equal(xf.grad(lambda x: one(x).sum())(X), [2.0, 2.0])
    assert repr(Model.method) == "trace(<lambda>)"


def test_a_method_keeps_no_instance_alive():
    model = Model(2.0)
    model(X)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    Model(3.0)(X)  # a recording lets go of the programs of what has gone
    Model(4.0)(X)
    programs = vars(Model)["__call__"].programs
    assert sum(any(ref() is None for ref in kept.refs) for kept in programs.values()) == 1


def test_instances_that_are_containers_are_traced():
    @dataclasses.dataclass
    class Linear:
        w: np.ndarray

        @xf.trace
        def __call__(self, x):
            return x * self.w

    model = Linear(np.array([2.0, 3.0]))
    assert_array_equal(model(X), [2.0, 6.0])
    model.w = np.array([1.0, 1.0])
    assert_array_equal(model(X), X)
    slopes = xf.grad(lambda m: m(X).sum())(model)
    assert_array_equal(slopes.w, X)
