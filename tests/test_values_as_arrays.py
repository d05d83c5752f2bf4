# ruff: noqa: RUF005  (v + [1, 2] is the spelling under test)
"""Values where NumPy's spellings meet them: lists as operands, None, methods of an ndarray, printing."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import xform as xf
import xform.numpy as xnp
from xform.core.errors import OperandTypeError, WriteError

X = np.array([1.5, 2.25])

SPELLINGS = {
    "add": lambda v: v + [1, 2],
    "radd": lambda v: [1, 2] + v,
    "tuple": lambda v: v * (1, 2),
    "rsub": lambda v: (3, 1) - v,
    "pow": lambda v: v ** [2, 3],
    "rpow": lambda v: [2, 3] ** v,
    "mod": lambda v: divmod(v, [1, 2])[1],
    "greater": lambda v: v * (v > [2, 2]),
    "matmul": lambda v: v @ [1, 2],
    "rmatmul": lambda v: [[1, 2], [3, 4]] @ v,
    "values in it": lambda v: v + [v[0], 2.0],
    "np.add": lambda v: np.add(v, [1, 2]),
    "np.hypot": lambda v: np.hypot([1, 2], v),
    "np.maximum": lambda v: np.maximum(v, [2, 2]),
    "np.matmul": lambda v: np.matmul([1, 2], v),
    "dtype=": lambda v: np.add(v, [1, 2], dtype="float64"),
    "outer of a ufunc": lambda v: np.multiply.outer([1, 2], v),
    "dot": lambda v: np.dot([1, 2], v),
    "dot method": lambda v: v.dot([1, 2]),
    "where": lambda v: np.where([True, False], v, [1, 2]),
    "inner": lambda v: np.inner(v, [1, 2]),
    "outer": lambda v: np.outer([1, 2], v),
    "vdot": lambda v: np.vdot([1, 2], v),
    "kron": lambda v: np.kron(v, [1, 2]),
    "tensordot": lambda v: np.tensordot(v, [1, 2], 1),
    "einsum": lambda v: np.einsum("i,i", v, [1, 2]),
    "clip": lambda v: np.clip(v, [1, 2], 3),
    "clip method": lambda v: v.clip([1, 2], [3, 4]),
    "average": lambda v: np.average(v, weights=[1, 2]),
    "trapezoid": lambda v: np.trapezoid([1, 2], v),
    "solve": lambda v: np.linalg.solve([[1, 2], [3, 4.0]], v),
    "compress": lambda v: np.compress([True, False], v),
    "extract": lambda v: np.extract([True, False], v),
    "diff": lambda v: np.diff(v, prepend=[1], append=[2]),
    "sum where": lambda v: np.sum(v, where=[True, False]),
    "isclose": lambda v: v * np.isclose(v, [1.5, 2]),
    "searchsorted": lambda v: v * np.searchsorted([1, 2], v),
    "equals None": lambda v: v * (v == None),  # noqa: E711  (the spelling under test)
    "differs from None": lambda v: v * (v != None),  # noqa: E711
    "round": lambda v: v * v.round(),
    "round decimals": lambda v: v * v.round(1),
    "argsort": lambda v: v * v.argsort(),
    "nonzero": lambda v: v[v.nonzero()],
    "conjugate": lambda v: v.conjugate(),
    "mean by place": lambda v: np.mean(v, 0, None, None, True),
    "max by place": lambda v: np.max(v, 0, None, True),
    "std by place": lambda v: np.std(v, 0, None, None, 1),
    "median by place": lambda v: np.median(v, 0, None, False, True),
    "cumsum by place": lambda v: np.cumsum(v, 0, None, None),
    "clip by place": lambda v: np.clip(v, 1, 2, None),
    "take by place": lambda v: np.take(v, [0], 0, None, "clip"),
    "round by place": lambda v: np.round(v, 1, None),
    "dot by place": lambda v: np.dot(v, v, None),
    "sum by name": lambda v: np.sum(a=v),
    "out=None": lambda v: np.sum(v, out=None) + v.sum(out=None) + v.mean(axis=0, out=None),
    "casting=": lambda v: np.concatenate([v, v], casting="same_kind"),
    "vecdot along an axis": lambda v: np.vecdot(v, v, axis=0),
    "average along an axis": lambda v: np.average(v, axis=np.int64(0), weights=[1, 2]),
    "searchsorted method": lambda v: v * v.searchsorted([1, 2]),
    "compress method": lambda v: v.compress([True, False]),
    "itemsize": lambda v: v * v.itemsize,
    "nbytes": lambda v: v * v.nbytes,
}


class Seen(xf.Observer):
    def __init__(self):
        self.count = 0

    def observe(self, op, inputs, outputs):
        self.count += 1


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_spelling_gives_what_numpy_gives(name):
    fun = SPELLINGS[name]
    want = np.asarray(fun(X))
    out = fun(xf.array(X))
    assert isinstance(out, xf.Array)
    assert_allclose(out.data, want)
    assert out.dtype == want.dtype
    weights = np.cos(np.arange(want.size)).reshape(want.shape)
    loss = lambda v: np.sum(fun(v) * weights)
    found = xf.grad(loss)(X)
    step = 1e-6
    numeric = [(loss(X + step * e) - loss(X - step * e)) / (2 * step) for e in np.eye(2)]
    if not name.startswith(("round", "isclose")):  # they jump
        assert_allclose(found, numeric, atol=1e-6)
    assert_allclose(xf.jvp(loss, (X,), (np.ones(2),))[1], found.sum())
    assert xf.grad(lambda u: np.sum(xf.grad(loss)(u) * u))(X).shape == (2,)
    if name != "nonzero":
        assert_allclose(xf.trace(loss)(X), loss(X))
        assert_allclose(xf.vmap(loss)(np.stack([X, X])), [loss(X)] * 2)
    with Seen() as seen:
        assert_allclose(loss(xf.array(X)).data, loss(X))
    assert seen.count


def test_apply_and_functions_refuse_lists():
    v = xf.array(X)
    for call in (lambda: xf.apply(xf.ops.Add(), v, [1, 2]), lambda: xnp.add(v, [1, 2])):
        with pytest.raises(OperandTypeError, match="operand 1 is list, no array"):
            call()
    for other in (None, "text", object()):
        with pytest.raises(OperandTypeError, match=rf"operand 1 is {type(other).__name__}, no array"):
            v + other
    with pytest.raises(OperandTypeError, match="operand 0 is NoneType"):
        None + v
    with pytest.raises(ValueError, match="inhomogeneous"):
        v + [[1.0], [2.0, 3.0]]


def test_none_on_a_device_and_without_data():
    strict = pytest.importorskip("array_api_strict")
    d = xf.array(strict.asarray(X, device=strict.Device("device1")))
    found = d == None  # noqa: E711
    assert found.device == d.device
    assert xf.to_numpy(found).tolist() == [False, False]
    with xf.Trace(abstract=True) as recorder:
        abstract = recorder.input(X) != None  # noqa: E711
        assert (abstract.shape, abstract.dtype) == ((2,), np.dtype(bool))


@pytest.mark.parametrize(("name", "remedy"), [
    ("sort", "np.sort(x)"), ("fill", "np.full_like(x, value)"), ("put", "x.at[indices].set(values)"),
    ("partition", "np.sort(x)"), ("resize", "np.reshape(x, shape)"), ("setfield", "x.at[i].set(values)"),
])  # fmt: skip
def test_methods_that_write_are_refused(name, remedy):
    def write(v):
        with pytest.raises(WriteError, match="values do not change in place") as caught:
            getattr(v, name)()
        assert remedy in str(caught.value)
        assert "test_values_as_arrays.py" in str(caught.value)
        return np.sum(v)

    assert_array_equal(xf.grad(write)(X), [1.0, 1.0])
    write(xf.array(X))


def test_an_unsupported_function_is_named_in_full():
    v = xf.array(X)
    for call, shown in (
        (lambda: np.fft.fft(v), r"np\.fft\.fft has no meaning"),
        (lambda: np.spacing(v), r"np\.spacing has no meaning"),
        (lambda: np.add.reduceat(v, [0]), r"np\.add\.reduceat has no meaning"),
        (lambda: np.partition(v, 1), r"np\.partition has no meaning"),
        (lambda: np.emath.sqrt(v), r"np\.lib\.scimath\.sqrt has no meaning"),
    ):
        with pytest.raises(OperandTypeError, match=shown):
            call()
    special = pytest.importorskip("scipy.special")
    with pytest.raises(OperandTypeError, match=r"scipy\.special\.erf has no meaning"):
        special.erf(v)


def test_printing():
    v = xf.array(X)
    shown = []

    def show(u):
        shown.extend([np.array_repr(u), np.array_str(u), np.array2string(u, precision=1), f"{u[0]:.3f}"])
        return np.sum(u)

    xf.grad(show)(X)
    show(v)
    assert shown == [np.array_repr(X), np.array_str(X), np.array2string(X, precision=1), "1.500"] * 2
    with xf.Trace(abstract=True) as recorder:
        assert "float64[2]" in np.array_repr(recorder.input(X))
    strict = pytest.importorskip("array_api_strict")
    d = xf.array(strict.asarray(X, device=strict.Device("device1")))
    assert f"{d[0]:.2f}" == "1.50"
    assert f"{d[0]:>8}" == "     1.5"
    assert np.array_repr(d) == repr(X)


@pytest.mark.parametrize("make", [
    lambda x: np.ma.masked_array(x, x > 3.0), lambda x: np.ndarray.__new__(np.matrix, x.shape),
], ids=["masked", "matrix"])  # fmt: skip
@pytest.mark.parametrize("take", [
    xf.array, xf.grad(np.sum), xf.trace(np.sum), xf.vmap(np.sum), lambda x: xf.jvp(np.sum, (x,), (x,)),
    lambda x: xf.apply(xf.ops.Sin(), x),
], ids=["array", "grad", "trace", "vmap", "jvp", "apply"])  # fmt: skip
def test_masked_arrays_and_matrices_are_refused_where_their_operations_would_be_others(take, make):
    x = make(np.arange(1.0, 7.0).reshape(2, 3))
    with pytest.raises(OperandTypeError, match=r"is no plain array; pass (x\.filled\(0\)|np\.asarray\(x\))"):
        take(x)
