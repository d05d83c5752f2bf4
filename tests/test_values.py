"""Values: what works where as one table, NumPy's protocols, Python's operators, refused writes."""

import contextlib
import io
import math
import operator
import re

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import xform as xf
import xform.numpy as xnp
from xform.core.errors import HostReadError, WriteError

X = np.array([1.5, -0.25, 2.75])
Y = np.array([0.5, 2.0, -1.25])


# ------------------------------------------------------------------ the table

READ = {
    "bool": lambda x: bool(x[0]),
    "int": lambda x: int(x[0]),
    "index": lambda x: "abc"[np.argmax(x)],
    "range": lambda x: list(range(np.argmax(x))),
}
NUMBER = {
    "float": lambda x: float(x[0]),
    "complex": lambda x: complex(x[0]),
    "item": lambda x: x[0].item(),
    "math": lambda x: math.exp(x[0]),
    "percent": lambda x: "%8.3f" % x[0],  # noqa: UP031  (the spelling under test)
}
ARRAY = {
    "asarray": np.asarray,
    "array": np.array,
    "array of list": lambda x: np.array([x[0], x[1]]),
    "full": lambda x: np.full(2, x[0]),
    "min of list": lambda x: np.min([x[0], x[1]]),
    "c_": lambda x: np.c_[x, x],
    "tolist": lambda x: x.tolist(),
}


def item_assignment(a, x):
    a[0] = x[0]


def slice_assignment(a, x):
    a[:] = x


WRITE = {
    "iadd": lambda a, x: operator.iadd(a, x),
    "imul": lambda a, x: operator.imul(a, x),
    "itruediv": lambda a, x: operator.itruediv(a, x),
    "out": lambda a, x: np.add(x, x, out=a),
    "out of a function": lambda a, x: np.sum(np.stack([x, x]), axis=0, out=a),
    "item assignment": item_assignment,
    "slice assignment": slice_assignment,
    "copyto": lambda a, x: np.copyto(a, x),
}


def printed(x):
    """Return what `print` writes."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        print(x)
    return out.getvalue().removesuffix("\n")


PRINT = {"str": str, "print": printed, "format": lambda x: f"{x[0]:.3f}", "whole": lambda x: f"{x}"}
COMPARE = {"compare": lambda x: x > 0.0, "equal": lambda x: x == X}

#: what the error under a tape names
REMEDIES = {
    "float": (r"float\(xf\.stop_gradient\(v\)\)", r"np\.exp", r"x\.at\[i\]\.set\(v\)", r"xf\.buffer"),
    "math": (r"float\(xf\.stop_gradient\(v\)\)", r"np\.exp"),
    "percent": (r"float\(xf\.stop_gradient\(v\)\)",),
    "complex": (r"complex\(xf\.stop_gradient\(v\)\)",),
    "item": (r"xf\.stop_gradient\(v\)\.item\(\)",),
    **dict.fromkeys(ARRAY, (r"np\.stack", r"xnp\.array|xform\.numpy\.array")),
    **dict.fromkeys(WRITE, (r"x\.at\[i\]\.set\(v\)", r"xf\.buffer")),
    **dict.fromkeys(("iadd", "imul", "itruediv", "out"), (r"a = a \+ v", r"x\.at\[i\]\.set\(v\)", r"xf\.buffer")),
}
AT = r"x\.at\[i\]\.set\(v\)"
#: what the error under a trace names
TRACED = {
    **dict.fromkeys(READ, (r"xnp\.where\(cond, a, b\)", r"x\.shape", "outside the traced function")),
    **dict.fromkeys(("index", "range"), (r"xnp\.take\(B, i\)", r"xf\.array\(B\)\[i\]", r"x\.shape")),
    **dict.fromkeys(NUMBER, ("outside the traced function",)),
    **dict.fromkeys(ARRAY, (r"np\.stack", r"xnp\.array")),
    **dict.fromkeys(WRITE, (AT, r"np\.stack")),
    **dict.fromkeys(("iadd", "imul", "itruediv", "out"), (r"a = a \+ v", AT, r"xf\.buffer")),
}
GROUPS = {"read": READ, "number": NUMBER, "array": ARRAY, "write": WRITE, "print": PRINT, "compare": COMPARE}
#: group -> on a plain Array, under a tape, under a trace, abstract
TABLE = {
    "read": ("works", "works", "error", "error"),
    "number": ("works", "error", "error", "error"),
    "array": ("works", "error", "error", "error"),
    "write": ("works", "error", "error", "error"),
    "print": ("works", "works", "works", "aval"),
    "compare": ("works", "works", "value", "value"),
}
KINDS = ("plain", "tape", "trace", "abstract")


def under(kind, use):
    """Call `use` with a value of one kind, inside its transformation."""
    if kind == "plain":
        return use(xf.array(X))
    if kind == "tape":
        with xf.Grad() as tape:
            return use(tape.attach(X))
    with xf.Trace(abstract=kind == "abstract") as recorder:
        return use(recorder.input(X))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("group", "name"), [(group, name) for group, names in GROUPS.items() for name in names])
def test_reading_and_writing(group, name, kind):
    spelling, expected = GROUPS[group][name], TABLE[group][KINDS.index(kind)]
    target, want_target = np.full(3, 7.0), np.full(3, 7.0)

    def use(value):
        return spelling(target, value) if group == "write" else spelling(value)

    if expected == "error":
        with pytest.raises((TypeError, ValueError)) as caught:
            under(kind, use)
        error = caught.value
        if not isinstance(error, HostReadError | WriteError):  # NumPy's own stands, ours is its cause
            assert name == "item assignment"
            error = error.__cause__
        assert isinstance(error, HostReadError | WriteError)
        for remedy in (REMEDIES if kind == "tape" else TRACED)[name]:
            assert re.search(remedy, str(error)), (remedy, str(error))
        assert_array_equal(target, want_target)
    else:
        found = under(kind, use)
        if expected == "aval":
            assert found == f"TraceValue<float64[{'' if name == 'format' else 3}], Trace(abstract)>"
        elif group == "write":
            spelling(want_target, X)
            assert_array_equal(target, want_target)
        elif expected == "value":
            assert isinstance(found, xf.Value)
            assert found.dtype == bool
        else:
            want = spelling(X)
            assert type(found) is type(want) or isinstance(found, xf.Value)
            assert_array_equal(xf.concrete(found), want)
            assert group != "print" or "1.5" in found
    assert xf.stack() == ()


def test_a_read_that_works_under_a_tape_has_no_derivative():
    assert xf.grad(lambda x: x[int(x[0])] * (x[0] > 0) * 2.0)(X).tolist() == [0.0, 2.0, 0.0]
    assert xf.grad(lambda x: x[0] * 3.0 if bool(x[0] > 0) else x[1])(X).tolist() == [3.0, 0.0, 0.0]


@pytest.mark.parametrize("kind", ["trace", "abstract"])
def test_a_raw_ndarray_indexed_by_a_traced_integer(kind):
    def use(value):
        return X[np.argmax(value)]

    with pytest.raises(HostReadError, match=r"xnp\.take\(B, i\).*xf\.array\(B\)\[i\]"):
        under(kind, use)
    assert under("plain", use) == 2.75
    assert_array_equal(xf.make_program(lambda x: xf.array(Y)[np.argmax(x)])(X)(X), -1.25)
    assert_array_equal(xf.make_program(lambda x: xnp.take(Y, np.argmax(x)))(X)(X), -1.25)


# ------------------------------------------------------------------ plain NumPy functions

W = np.array([[2.0, 0.3, -0.1], [0.2, 1.5, 0.4], [-0.3, 0.1, 1.2]])
FUNCTIONS = {
    "exp": lambda x: np.exp(x).sum(),
    "logaddexp": lambda x: np.logaddexp(x, Y).sum(),
    "np.sum": lambda x: np.sum(np.sin(x)),
    "mean var std": lambda x: np.mean(x) * np.var(x) + np.std(x, ddof=1),
    "prod": np.prod,
    "cumsum": lambda x: np.sum(np.cumsum(x) * Y),
    "add.reduce": lambda x: np.add.reduce(x * x),
    "multiply.outer": lambda x: np.sum(np.multiply.outer(x, Y) * W),
    "maximum.reduce": lambda x: np.maximum.reduce(x * x),
    "maximum": lambda x: np.sum(np.maximum(x, 0.1) * np.minimum(x, Y)),
    "where": lambda x: np.sum(np.where(x > 0, np.sqrt(np.abs(x)), x**3)),
    "clip": lambda x: np.sum(np.clip(x, -1.0, 2.0) ** 2),
    "concatenate": lambda x: np.sum(np.concatenate([x, Y, x * x]) ** 2),
    "stack": lambda x: np.sum(np.stack([x[0], x[1] * x[2]]) ** 3),
    "einsum": lambda x: np.einsum("i,ij,j->", x, W, x),
    "dot matmul": lambda x: np.dot(x, W @ x) + np.matmul(x, x) + np.inner(x, Y) + np.vdot(x, Y),
    "outer tensordot": lambda x: np.sum(np.outer(x, x) * W) + np.tensordot(x, W, 1).sum(),
    "reshape": lambda x: np.sum(np.reshape(x, (3, 1)) * np.transpose(np.expand_dims(x, 0)) * W),
    "broadcast": lambda x: np.sum(np.broadcast_to(x, (2, 3)) ** 2),
    "flip roll": lambda x: np.sum(np.flip(x) * Y),
    "take": lambda x: np.sum(np.take(x, [0, 0, 2]) ** 2),
    "take_along_axis": lambda x: np.sum(np.take_along_axis(x, np.argsort(Y), 0) * Y),
    "diag trace triu": lambda x: np.trace(np.diag(x) @ W) + np.sum(np.triu(np.outer(x, x)) + np.tril(np.outer(x, Y))),
    "pad tile repeat": lambda x: np.sum(np.pad(x, 1) ** 2) + np.sum(np.tile(x, 2) ** 2) + np.sum(np.repeat(x, 2) ** 3),
    "split": lambda x: np.sum(np.split(x, 3)[1] ** 2),
    "norm": lambda x: np.linalg.norm(x),
    "solve": lambda x: np.sum(np.linalg.solve(W + np.diag(x), Y)),
    "inv det": lambda x: np.linalg.det(np.linalg.inv(W + np.outer(x, x))),
    "real imag": lambda x: np.real(x).sum() + np.sum(np.conj(x) ** 2),
    "power": lambda x: np.sum(np.power(np.abs(x), 2.5)) + np.sum(np.float_power(np.abs(x), 2.0)),
    "max argmax": lambda x: np.max(x) * x[np.argmax(x)] + np.amin(x),
    "astype": lambda x: x.astype("float64").sum() * 2.0,
    "arctan2 hypot": lambda x: np.sum(np.arctan2(x, Y) + np.hypot(x, Y)),
    "np.stack of rows": lambda x: np.sum(np.vstack([x, Y]) * np.stack([Y, x])),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_plain_numpy_functions_differentiate(name):
    function = FUNCTIONS[name]
    value, slope = xf.value_and_grad(function)(X)
    assert_allclose(value, function(X), rtol=1e-13)
    step = 1e-6
    want = [(function(X + step * row) - function(X - step * row)) / (2 * step) for row in np.eye(3)]
    assert_allclose(slope, want, rtol=2e-7, atol=1e-9)
    assert_allclose(xf.concrete(function(xf.array(X))), function(X), rtol=1e-13)
    assert_allclose(xf.make_program(function)(X)(X), function(X), rtol=1e-13)


def test_what_numpy_function_has_no_meaning_is_named():
    for call in (lambda x: np.frexp(x), lambda x: np.unwrap(x), lambda x: np.add(x, x, where=X > 0)):
        with pytest.raises(TypeError, match=r"np\.(frexp|unwrap|add).*(has|have) no meaning"):
            under("tape", call)
        assert xf.stack() == ()


# ------------------------------------------------------------------ Python's operators

OPERATORS = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.floordiv, operator.mod,
    operator.matmul, operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne,
]  # fmt: skip


#: no cotangent passes them: what they give is untracked
FLAT = (operator.floordiv, operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)


@pytest.mark.parametrize("kind", ["plain", "tape", "trace"])
@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.__name__)
def test_operators_with_an_ndarray_on_either_side(op, kind):
    for other in (np.abs(Y), 2.0, np.float64(2.0), xf.array(np.abs(Y))):
        if op is operator.matmul and np.ndim(xf.concrete(other)) == 0:
            continue
        plain = xf.concrete(other)
        for reflected, want in ((False, op(np.abs(X), plain)), (True, op(plain, np.abs(X)))):
            sides = (lambda x, y: op(y, x)) if reflected else op
            found = under(kind, lambda x, sides=sides, other=other: sides(np.abs(x), other))
            assert isinstance(found, xf.Value) or (kind == "tape" and op in FLAT)
            assert found.dtype == np.asarray(want).dtype
            assert_array_equal(xf.concrete(found), want)


def test_operators_on_integers_and_bools():
    a, b = np.array([5, -3, 12]), np.array([3, 2, 10])
    v = xf.array(a)
    for op in (operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift):
        for found in (op(v, b), op(v, xf.array(b))):
            assert_array_equal(xf.concrete(found), op(a, b))
        assert_array_equal(xf.concrete(op(b, xf.array(np.abs(a)))), op(b, np.abs(a)))
    assert_array_equal(xf.concrete(~v), ~a)
    assert_array_equal(xf.concrete(~(v > 0)), ~(a > 0))
    quotient, rest = divmod(v, 4)
    assert_array_equal(xf.concrete(quotient), a // 4)
    assert_array_equal(xf.concrete(rest), a % 4)


@pytest.mark.parametrize("kind", ["plain", "tape", "trace"])
@pytest.mark.parametrize("op", ["iadd", "isub", "imul", "itruediv", "ipow", "imatmul"])
def test_augmented_assignment_rebinds(op, kind):
    other = W if op == "imatmul" else 2.0

    def use(x):
        before = x
        x = getattr(operator, op)(x, other)
        assert x is not before
        assert_array_equal(xf.concrete(before), X)
        return x

    assert_array_equal(xf.concrete(under(kind, use)), getattr(operator, op[1:])(X, other))
    assert_array_equal(X, [1.5, -0.25, 2.75])


@pytest.mark.parametrize("kind", KINDS)
def test_iteration_len_and_unpacking(kind):
    def use(x):
        a, b, c = x
        assert len(x) == 3
        assert [part.shape for part in x] == [()] * 3
        return a * b + sum(x) * c + next(iter(x))

    found = under(kind, use)
    if kind != "abstract":
        assert xf.concrete(found) == X[0] * X[1] + X.sum() * X[2] + X[0]
    for call in (len, list, iter):
        with pytest.raises(TypeError, match=r"0-d|no axes"):
            under(kind, lambda x, call=call: call(x[0]))


@pytest.mark.parametrize("kind", KINDS)
def test_assignment_into_a_value_is_refused(kind):
    def assign(x):
        x[0] = 1.0

    def shrink(x):
        del x[0]

    at, copyto, put = lambda x: np.add.at(x, [0], 1.0), lambda x: np.copyto(x, 1.0), lambda x: np.put(x, [0], 1.0)
    for write in (assign, shrink, at, copyto, put):
        with pytest.raises(TypeError) as caught:
            under(kind, write)
        if write is assign:
            assert isinstance(caught.value, WriteError)
            assert "x.at[i].set(v)" in str(caught.value)
            assert "x[0] = 1.0" in str(caught.value)  # the user's line
        assert_array_equal(X, [1.5, -0.25, 2.75])
        assert xf.stack() == ()


def test_attributes_and_creation():
    v = xf.array([[1, 2, 3], [4, 5, 6]])
    assert type(v) is xf.Array
    assert (v.shape, v.ndim, v.size, v.dtype, v.T.shape) == ((2, 3), 2, 6, np.dtype(int), (3, 2))
    assert xf.array(v) is v
    assert v.__array_namespace__() is xnp
    assert repr(xf.array(2.0)).startswith("Array<")
    x, y = xf.array(1.0), xf.array(2.0)
    for found in (xnp.array([[x, y], [y, 3.0]]), np.stack([np.stack([x, y]), np.stack([y, 3.0])])):
        assert_array_equal(xf.concrete(found), [[1, 2], [2, 3]])
    assert xf.grad(lambda x: xnp.array([x, [x * x][0]])[1])(3.0) == 6.0
    with pytest.raises(TypeError, match="unhashable"):
        hash(v)
