"""Programs in files: parameters, numbers and constants come back bit for bit, and what cannot be stored says so."""

from __future__ import annotations

import collections
import math
import struct
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import numpy as np
import pytest

import xform as xf
from xform.core.errors import ProgramFormatError
from xform.programs.codec import Decoder, Encoder
from xform.programs.program import Constant, Equation, Literal, Program, Variable


def again(program: Program, path: Path) -> Program:
    program.save(path)
    return xf.load_program(path)


def same(x: Any, y: Any) -> bool:
    """Bit for bit, in kind, dtype and shape."""
    a, b = np.asarray(x), np.asarray(y)
    return type(x) is type(y) and (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


# ------------------------------------------------------------------ parameters


NAN = struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0]  # with a sign and a payload


@attrs.frozen
class Settings:
    """A record beside operators: a parameter of several values."""

    count: int
    rest: Any = None


VALUES = [
    None,
    True,
    False,
    0,
    -1,
    2**70,
    1.5,
    -0.0,
    1e-310,
    math.inf,
    -math.inf,
    NAN,
    1 + 2j,
    complex(NAN, -0.0),
    "",
    "a\0é\ud800",
    (),
    (1,),
    ((1, (None,)), "x"),
    [1, [2.0]],
    {"a": 1, (1, 2): [3]},
    frozenset({1, 2}),
    b"\x00\xff",
    slice(None, 3, -1),
    slice((1,), 2.5),
    ...,
    np.dtype("float32"),
    np.dtype(">i4"),
    np.float32(1.5),
    np.float64(NAN),
    np.int8(-3),
    np.bool_(True),
    np.complex64(1 + 2j),
    np.float64,
    np.int32,
    int,
    complex,
    xf.Aval((2, None), np.dtype(int)),
    xf.Aval((), np.dtype(float), True),
    xf.ops.Sum((0,), keepdims=True),
    Settings(2, (1, None)),
    (Settings(1), [Settings(3, Settings(4))]),
    xf.tree.structure({"b": [1, None], "a": (2,)}),
]


def exactly(x: Any, y: Any) -> bool:
    if isinstance(x, tuple | list):
        return type(x) is type(y) and len(x) == len(y) and all(map(exactly, x, y))
    if isinstance(x, complex) and not isinstance(x, np.generic):
        return type(y) is complex and exactly(x.real, y.real) and exactly(x.imag, y.imag)
    if isinstance(x, float | np.generic):
        return type(x) is type(y) and np.asarray(x).tobytes() == np.asarray(y).tobytes()
    return type(x) is type(y) and x == y


@attrs.frozen
class Keeps(xf.Operator):
    """The operand itself; it keeps a value of any kind."""

    kept: Any
    _private: int = 3
    made: int = attrs.field(init=False, default=7)

    def infer(self, x):
        return x

    def evaluate(self, xp, x):
        return x * 1

    def __hash__(self):
        return 0


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:40].encode("ascii", "replace").decode())
def test_parameters_come_back_bit_for_bit(value, tmp_path):
    program = xf.make_program(lambda x: xf.apply(Keeps(value, 5), x))(np.ones(2))
    (equation,) = again(program, tmp_path / "p.xf").equations
    assert exactly(equation.op.kept, value)
    assert (equation.op._private, equation.op.made) == (5, 7)


def test_operators_that_are_equal_but_not_alike_stay_apart(tmp_path):
    fills = (0.0, -0.0, 0, False)
    program = xf.make_program(lambda x: tuple(xf.apply(Keeps(fill), x) for fill in fills))(np.ones(2))
    kept = [equation.op.kept for equation in again(program, tmp_path / "p.xf").equations]
    assert all(map(exactly, kept, fills))


@attrs.frozen(eq=False)
class Runs(xf.Operator):
    """Runs a program, and compares by identity, as loops do."""

    body: Program
    count: int = 1

    def infer(self, x):
        return self.body.out_avals[0]

    def evaluate(self, xp, x):
        for _ in range(self.count):
            (x,) = self.body.run([x])
        return x


class Plain(xf.Operator):
    """Written without attrs: it keeps what it is made with under the names of its arguments."""

    def __init__(self, factor, **options):
        self.factor = factor
        self.options = options

    def infer(self, x):
        return x

    def evaluate(self, xp, x):
        return x * self.factor + self.options.get("shift", 0)


def test_operators_that_hold_programs(tmp_path):
    body = xf.make_program(lambda x: x * 2.0)(np.ones(2))
    deeper = xf.make_program(lambda x: xf.apply(Runs(body, 2), x))(np.ones(2))
    shared, other = Runs(deeper), Runs(deeper, 3)

    def fun(x):
        return xf.apply(shared, x) + xf.apply(other, x) + xf.apply(shared, x + 1.0)

    program = xf.make_program(fun)(np.ones(2))
    loaded = again(program, tmp_path / "p.xf")
    x = np.array([1.0, 3.0])
    np.testing.assert_array_equal(loaded(x), 4 * x + 64 * x + 4 * (x + 1.0))
    ops = [equation.op for equation in loaded.equations if isinstance(equation.op, Runs)]
    assert ops[0] is ops[2]
    assert ops[0] is not ops[1]
    assert ops[0].body is ops[1].body  # a program is stored once, whoever holds it
    with zipfile.ZipFile(tmp_path / "p.xf") as archive:
        assert archive.read("program.json").count(b'"equations"') == 3


def test_a_chain_of_programs_that_are_used_twice_grows_by_steps(tmp_path):
    program = xf.make_program(lambda x: x + 1.0)(np.ones(2))
    for _ in range(20):
        inner = program
        program = xf.make_program(lambda x, p=inner: xf.apply(Runs(p), xf.apply(Runs(p), x)))(np.ones(2))
    program.save(tmp_path / "p.xf")
    assert (tmp_path / "p.xf").stat().st_size < 5000


def test_classes_without_fields(tmp_path):
    op = Plain(3.0, shift=1.0)
    loaded = again(xf.make_program(lambda x: xf.apply(op, x))(np.ones(2)), tmp_path / "p.xf")
    np.testing.assert_array_equal(loaded(np.array([1.0, 2.0])), [4.0, 7.0])


# ------------------------------------------------------------------ numbers, constants


def test_literals_come_back_with_their_types(tmp_path):
    values = (2, True, 2.5, -0.0, math.inf, NAN, 1 - 2j)
    a = Variable(0, xf.Aval((2,), np.dtype(complex)))
    equations, at = [], a
    for number, value in enumerate(values, 1):
        made = Variable(number, xf.Aval((2,), np.dtype(complex)))
        equations.append(Equation(xf.ops.Mul(), (at, Literal(value)), (made,)))
        at = made
    loaded = again(Program([a], equations, [at, Literal(3)]), tmp_path / "p.xf")
    assert all(exactly(e.inputs[1].value, value) for e, value in zip(loaded.equations, values, strict=True))
    assert loaded.outputs[1] == Literal(3)


CONSTANTS = [
    np.arange(6.0).reshape(2, 3),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.arange(12.0).reshape(3, 4)[::2, ::-1],
    np.array(2.5),
    np.zeros((0, 3)),
    np.array([True, False]),
    np.arange(3, dtype=">i4"),
    np.array([1 + 2j], "complex64"),
    np.array([NAN, -0.0, np.inf]),
    np.arange(3, dtype=np.float16),
    np.float32(1.5),
    np.int64(7),
    np.longdouble(1) / 3,
]


@pytest.mark.parametrize(
    "value", CONSTANTS, ids=lambda value: f"{value.dtype} {value.shape} {value.flags.c_contiguous}"
)
def test_constants_come_back_bit_for_bit(value, tmp_path):
    constant = Constant(0, xf.aval_of(value), value)
    out = Variable(1, xf.Aval(value.shape, xf.ops.Neg().infer(xf.Aval((), value.dtype)).dtype)
                   if value.dtype.kind != "b" else xf.Aval(value.shape, value.dtype))  # fmt: skip
    op = xf.ops.LogicalNot() if value.dtype.kind == "b" else xf.ops.Neg()
    loaded = again(Program([], [Equation(op, (constant,), (out,))], [out, constant]), tmp_path / "p.xf")
    (back,) = loaded.constants
    assert same(back.value, value)
    assert back.aval == xf.aval_of(value)
    if isinstance(value, np.ndarray):
        assert back.value.flags.owndata
        assert back.value.flags.writeable


def test_an_array_that_two_constants_share_is_stored_once(tmp_path):
    value = np.arange(3.0)
    constants = [Constant(n, xf.aval_of(value), value) for n in range(2)]
    out = Variable(2, xf.aval_of(value))
    program = Program([], [Equation(xf.ops.Add(), tuple(constants), (out,))], [out])
    program.save(tmp_path / "p.xf")
    with zipfile.ZipFile(tmp_path / "p.xf") as archive:
        assert len(archive.namelist()) == 2
    np.testing.assert_array_equal(xf.load_program(tmp_path / "p.xf")(), [0.0, 2.0, 4.0])


# ------------------------------------------------------------------ what cannot be stored


@attrs.frozen
class Mute(xf.Operator):
    """It has no `infer`."""

    def evaluate(self, xp, x):
        return x * 2.0


@attrs.frozen
class Liar(xf.Operator):
    """Its `infer` says something else than it does."""

    def infer(self, x):
        return xf.Aval((7,), x.dtype)

    def evaluate(self, xp, x):
        return x * 2.0


class Forgets(xf.Operator):
    def __init__(self, factor):
        self.kept_otherwise = factor

    def infer(self, x):
        return x


def local_operator():
    @attrs.frozen
    class Local(xf.Operator):
        def infer(self, x):
            return x

        def evaluate(self, xp, x):
            return x * 1.0

    return Local()


def local_container():
    class Pair(NamedTuple):
        x: Any

    return Pair


def recorded(fun, *args):
    with xf.Trace() as recorder:
        out = fun(*map(recorder.input, args))
    return recorder.program(out)


def observed(x):
    with xf.Profile():
        return x * 2.0


def foreign(x):
    xp = pytest.importorskip("array_api_strict")
    return x + xp.asarray([1.0, 2.0])


class Matrix(np.ndarray):
    pass


REFUSED = {
    "a function": (
        lambda x: xf.custom_gradient(lambda x: (x * 2.0, None), lambda r, t: t)(x),
        r"parameter '\w+' is .*no \w+",
    ),
    "an observer": (observed, r"Observe cannot be stored: its parameter 'observer' is Profile"),
    "a class in a function": (lambda x: xf.apply(local_operator(), x), "define it at the top level of a module"),
    "a container in a function": (lambda x: local_container()(x * 1.0), "define it at the top level of a module"),
    "no infer": (
        lambda x: xf.apply(Mute(), x),
        r"Mute\(\) takes no float64\[2\] at .*test_storage_values.py:\d+.*: Mute has no infer",
    ),
    "a wrong infer": (
        lambda x: xf.apply(Liar(), x),
        r"Liar\(\) of \[float64\[2\]\] gives \[float64\[7\]\], not \[float64\[2\]\]",
    ),
    "a set of functions": (
        lambda x: xf.apply(Keeps((len,)), x),
        "Keeps cannot be stored: its parameter 'kept' is .*len",
    ),
    "an array as a parameter": (lambda x: xf.apply(Keeps(np.ones(2)), x), "'kept' is array.*no ndarray"),
    "deep nesting": (lambda x: xf.apply(Keeps(nest(200)), x), "nests deeper than 64"),
    "a long int": (lambda x: xf.apply(Keeps(10**5000), x), "cannot be stored: .*digits"),
    "an odd class": (lambda x: xf.apply(Keeps(Path), x), "none of numbers"),
    "a text dtype": (lambda x: xf.apply(Keeps(np.dtype("U3")), x), "dtype <U3 cannot be stored"),
    "no such attribute": (lambda x: (x, xf.apply(Forgets(2.0), x))[0] * 1.0, "does not keep the argument 'factor'"),
}


def nest(depth):
    value = ()
    for _ in range(depth):
        value = (value,)
    return value


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_file_cannot_hold(what, tmp_path):
    fun, message = REFUSED[what]
    program = recorded(fun, np.ones(2)) if what != "no such attribute" else xf.make_program(fun)(np.ones(2))
    with pytest.raises(ProgramFormatError, match=message) as caught:
        program.save(tmp_path / "p.xf")
    assert str(caught.value).startswith("the program cannot be stored: ")
    assert not (tmp_path / "p.xf").exists()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.array(["text"]), "dtype <U4 cannot be stored"),
        (np.ones(2).view(Matrix), "is Matrix, and a file holds NumPy arrays"),
        (np.array([None]), "dtype object cannot be stored"),
    ],
)
def test_constants_that_a_file_cannot_hold(value, message, tmp_path):
    constant = Constant(0, xf.Aval(value.shape, value.dtype), value)
    with pytest.raises(ProgramFormatError, match=message):
        Program([], [], [constant]).save(tmp_path / "p.xf")


def test_constants_of_other_libraries(tmp_path):
    program = recorded(lambda x: xf.device_put(x, "array_api_strict:device1") + xf.device_put(np.ones(2), "array_api_strict:device1"), np.ones(2))  # fmt: skip  # noqa: E501
    if any(not isinstance(each.value, np.ndarray) for each in program.constants):
        with pytest.raises(ProgramFormatError, match=r"bring it to the host with xf\.to_numpy"):
            program.save(tmp_path / "p.xf")
    strict = pytest.importorskip("array_api_strict")
    value = strict.asarray([1.0])
    constant = Constant(0, xf.aval_of(value), value)
    with pytest.raises(ProgramFormatError, match=r"bring it to the host with xf\.to_numpy"):
        Program([], [], [constant]).save(tmp_path / "p.xf")


def test_a_factory_that_is_a_function(tmp_path):
    program = xf.make_program(lambda x: collections.defaultdict(lambda: 0, a=x * 2.0))(np.ones(2))
    with pytest.raises(ProgramFormatError, match=r"a defaultdict of <function .*: a file holds no functions"):
        program.save(tmp_path / "p.xf")


def test_plain_data_has_one_meaning():
    def refuse(program):
        raise AssertionError

    encoder, decoder = Encoder(refuse), Decoder(refuse)
    for value in VALUES:
        written = encoder.value(value)
        assert exactly(decoder.value(written), value)
        assert encoder.value(decoder.value(written)) == written
