"""Elementwise operators: values and types are NumPy's, conventions at hard points, errors, other libraries."""

from __future__ import annotations

import doctest
import itertools
import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import xform as xf
import xform.numpy as xnp
import xform.numpy.elementwise as elementwise_names
from xform import ops
from xform.core.aval import Aval, aval_of
from xform.core.errors import DtypeError, OperandError, OperandTypeError, ShapeError
from xform.core.rules import NoRule, jvp_of
from xform.ops.base import Elementwise, ufuncs

KINDS = ("?", "i1", "u1", "i4", "i8", "f2", "f4", "f8", "c8", "c16")
NUMBERS = (1, 1.0, 1j, True)
ELEMENTWISE = [ufunc for ufunc, op in ufuncs.items() if isinstance(op, Elementwise)]
by_ufunc = pytest.mark.parametrize("ufunc", ELEMENTWISE, ids=lambda ufunc: ufunc.__name__)


def attempt(function, *operands):
    """Return a result, or the kind of the error."""
    try:
        return function(*operands)
    except TypeError:
        return TypeError


@by_ufunc
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_values_and_types_are_numpys(ufunc):
    op = ufuncs[ufunc]
    operands = [np.array([0, 1, 1]).astype(kind) for kind in KINDS] + list(NUMBERS)
    for values in itertools.product(operands, repeat=ufunc.nin):
        want = attempt(ufunc, *values)
        got = attempt(xf.apply, op, *values)
        inferred = attempt(op.infer, *map(aval_of, values))
        if want is TypeError:
            assert got is TypeError
            assert inferred is TypeError
            continue
        np.testing.assert_array_equal(got, want, strict=True)
        assert (inferred.shape, inferred.dtype) == (want.shape, want.dtype)


@by_ufunc
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 1, 3)])
@pytest.mark.parametrize("kind", ["f8", "i8", "?"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_shapes_are_numpys(ufunc, shape, kind):
    x = np.ones(shape, kind)
    values = (x, np.ones((3,) if shape[-1:] in ((1,), (3,)) else (1,), kind))[: ufunc.nin]
    want = attempt(ufunc, *values)
    got = attempt(xf.apply, ufuncs[ufunc], *values)
    if want is TypeError:
        assert got is TypeError
        return
    np.testing.assert_array_equal(got, want, strict=True)
    assert ufuncs[ufunc].infer(*map(aval_of, values)) == Aval(want.shape, want.dtype)


@by_ufunc
def test_an_unknown_dimension_stays_unknown(ufunc):
    dtype = np.dtype("i4" if "bit" in ufunc.__name__ or "shift" in ufunc.__name__ else "f4")
    if ufunc.__name__ == "invert":
        dtype = np.dtype("?")
    second = Aval((3,), np.dtype("i4") if ufunc is np.ldexp else dtype)
    out = ufuncs[ufunc].infer(*(Aval((2, None, 1), dtype), second)[: ufunc.nin])
    assert out.shape == ((2, None, 3) if ufunc.nin == 2 else (2, None, 1))


@by_ufunc
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_numpys_own_function_on_values_is_the_operator(ufunc):
    x = np.array([1, 2, 3])
    values = (x / 2, x)[: ufunc.nin]
    if attempt(ufunc, *values) is TypeError:  # bits are integers'
        values = (x, x)[: ufunc.nin]
    want = ufunc(*values)
    for place in range(ufunc.nin):
        mixed = [xf.array(v) if i == place else v for i, v in enumerate(values)]
        found = ufunc(*mixed)
        assert type(found) is xf.Array
        np.testing.assert_array_equal(found.data, want, strict=True)


FUNCTIONS = {
    "sinc": [(np.array([0.0, 0.5, -1.5], kind),) for kind in ("f4", "f8", "c16")] + [(np.arange(3),), (0.25,)],
    "real": [(np.array([1 + 2j]),), (np.array([1.0], "f4"),), (np.array([1, 2]),), (3.0,), (1 + 2j,)],
    "imag": [(np.array([1 + 2j], "c8"),), (np.array([1.0], "f4"),), (np.array([1, 2]),), (1 + 2j,)],
    "angle": [(np.array([1 + 2j, -1, 0]),), (np.array([1.0, -2.0]),), (1j, True)],
    "round": [(np.array([1.25, 2.5, -0.5]),), (np.array([1.255, -3.14159]), 2), (np.array([1234, 55]), -2), (2.5,)],
    "nan_to_num": [
        (np.array([1.0, np.nan, np.inf, -np.inf], kind),) for kind in ("f2", "f4", "f8")
    ] + [(np.array([complex(np.nan, np.inf), 1 + 1j]),), (np.arange(3),), (np.array([True]),)],
    "isposinf": [(np.array([1.0, np.inf, -np.inf, np.nan]),)],
    "isneginf": [(np.array([1.0, np.inf, -np.inf, np.nan]),)],
    "where": [
        (np.array([True, False]), np.array([1, 2]), np.array([0.5, 1.5], "f4")),
        (np.array([[1], [0]]), np.array([1, 2]), 3),
        (np.array([1.0, 0.0]), np.array([1.0, 2.0], "f4"), 0.0),
        (True, 1, 2),
    ],
    "clip": [
        (np.array([-1.0, 0.5, 2.0]), 0, 1),
        (np.array([-1.0, 0.5, 2.0], "f4"), np.array([0.0, 1.0, 3.0], "f4"), 1.0),
        (np.array([1, 2, 3]), None, 2),
        (np.array([1, 2, 3]), 2, None),
        (np.array([-1.0, 0.5, 2.0]), 1.0, 0.0),
        (np.array([1.0, np.nan]), 0.0, 2.0),
    ],
    "divmod": [(np.array([7.0, -7.0]), 2.0), (np.array([7, -7]), np.array([-2, 2]))],
    "modf": [(np.array([1.5, -2.25, 3.0]),)],
    "isclose": [
        (np.array([1.0, np.inf, -np.inf, np.nan, 2.0]), np.array([1.0 + 1e-9, np.inf, np.inf, np.nan, 3.0])),
        (np.array([1.0, np.nan]), np.array([1.1, np.nan]), 0.2, 0.0, True),
        (np.array([1, 2]), np.array([1, 3])),
    ],
    "allclose": [(np.ones(3), np.ones(3) + 1e-9), (np.ones(3), 1.001), (np.ones(3), np.array([1.0, 1, np.inf]))],
    "array_equal": [(np.ones(2), np.ones(2)), (np.ones(2), np.ones(3)), (np.array([np.nan]), np.array([np.nan]), True)],
}  # fmt: skip


@pytest.mark.parametrize(("name", "args"), [(name, args) for name, rows in FUNCTIONS.items() for args in rows])
def test_other_functions_are_numpys(name, args):
    want = getattr(np, name)(*args)
    for found in (getattr(xnp, name)(*args), xf.concrete(getattr(xnp, name)(*map(tracked, args)))):
        pairs = zip(found, want, strict=True) if isinstance(want, tuple) else [(found, want)]
        for part, other in pairs:
            each = xf.concrete(part)
            np.testing.assert_allclose(each, other, rtol=1e-15, atol=0)
            assert np.asarray(each).dtype == np.asarray(other).dtype
            assert np.shape(each) == np.shape(other)


def tracked(x):
    return xf.array(x) if isinstance(x, np.ndarray) else x


arrays = hnp.arrays(
    np.float64, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3), elements=st.floats(-4, 4)
)


@settings(max_examples=60, deadline=None)
@given(arrays, st.integers(-4, 6))
def test_whole_powers_are_numpys(x, n):
    with np.errstate(all="ignore"):
        want = np.power(x, float(n))
        np.testing.assert_allclose(xnp.power(x, n), want, rtol=4e-15)
        np.testing.assert_allclose(np.asarray(xf.array(x) ** n), want, rtol=4e-15)


@settings(max_examples=60, deadline=None)
@given(hnp.mutually_broadcastable_shapes(num_shapes=3, max_dims=3, max_side=3))
def test_three_operands_broadcast(shapes):
    rng = np.random.default_rng(0)
    x, y, z = (rng.normal(size=shape) for shape in shapes.input_shapes)
    np.testing.assert_array_equal(xnp.where(x > 0, y, z), np.where(x > 0, y, z))
    np.testing.assert_array_equal(xnp.clip(x, y, z), np.clip(x, y, z))
    assert ops.Where().infer(*map(aval_of, (x, y, z))).shape == shapes.result_shape


# ------------------------------------------------------------------ dtypes of derivatives


@by_ufunc
@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "c8"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_cotangent_has_the_dtype_of_its_primal_beside_numbers(ufunc, kind):
    x = np.array([0.5, 0.75]).astype(kind)
    for place in range(ufunc.nin):
        for number in (2.0, 3) if ufunc.nin == 2 else (None,):
            values = [x if i == place else number for i in range(ufunc.nin)]
            want = attempt(ufunc, *values)
            if want is TypeError or want.dtype.kind not in "fc":
                continue
            left, right = values[:place], values[place + 1 :]
            out, pullback = xf.vjp(lambda x, left=left, right=right: ufunc(*left, x, *right), x)
            (cotangent,) = pullback(np.ones_like(out))
            assert (cotangent.dtype, cotangent.shape) == (x.dtype, x.shape)
            rule = jvp_of(ufuncs[ufunc])
            if isinstance(rule, NoRule):
                continue
            tangent = rule(ufuncs[ufunc], tuple(values), tuple(x if v is x else None for v in values))[1]
            assert tangent is None or tangent.dtype == out.dtype


# ------------------------------------------------------------------ errors


def test_errors_name_operator_and_operands():
    with pytest.raises(ShapeError, match=r"Add.*\(2,\).*\(3,\)"):
        ops.Add().infer(Aval((2,), np.dtype("f8")), Aval((3,), np.dtype("f8")))
    with pytest.raises(ShapeError, match=r"Add.*float64\[2\].*float64\[3\]"):
        xnp.add(np.ones(2), np.ones(3))
    with pytest.raises(ShapeError, match=r"Where.*\(2,\)"):
        ops.Where().infer(*[Aval((n,), np.dtype("f8")) for n in (2, 2, 3)])
    with pytest.raises(DtypeError, match=r"BitwiseAnd.*float64"):
        ops.BitwiseAnd().infer(*[Aval((2,), np.dtype("f8"))] * 2)
    with pytest.raises(OperandTypeError, match=r"BitwiseAnd.*float64"):
        xnp.bitwise_and(np.ones(2), np.ones(2))
    with pytest.raises(OperandTypeError, match=r"list.*xform.numpy.array"):
        xnp.sin([1.0])
    with pytest.raises(OperandError, match="where"):
        xnp.where(np.array([True]))
    with pytest.raises(OperandError, match="clip"):
        xnp.clip(np.ones(2), 0.0, min=0.0)
    with pytest.raises(ShapeError, match="negative integer powers"):
        xnp.power(np.array([2, 3]), -1)


# ------------------------------------------------------------------ batching


@pytest.mark.parametrize("axes", [(0, None), (1, None), (None, 0), (0, 0), (1, 0), (2, 1), (0, 1)])
@pytest.mark.parametrize("name", ["add", "power", "maximum", "arctan2"])
def test_batching_where_ranks_differ(name, axes):
    function = getattr(xnp, name)
    rng = np.random.default_rng(0)
    x, y = rng.uniform(0.5, 2, (3, 4)), rng.uniform(0.5, 2, (4,))
    given = [
        value if axis is None else np.stack([value * (1 + 0.1 * k) for k in range(5)], axis)
        for value, axis in zip((x, y), axes, strict=True)
    ]
    lanes = [
        function(*[v if a is None else np.take(v, k, a) for v, a in zip(given, axes, strict=True)]) for k in range(5)
    ]
    op = ufuncs[getattr(np, name)]
    out, axis = xf.batch_rule.get(op)(op, 5, tuple(given), axes)
    np.testing.assert_allclose(np.moveaxis(out, axis, 0), np.stack(lanes))


# ------------------------------------------------------------------ another library, one device


def test_rules_run_on_another_library_without_a_transfer():
    strict = pytest.importorskip("array_api_strict")
    device = strict.Device("device1")
    x, y = (strict.asarray(values, device=device) for values in ([0.5, -1.5, 2.0], [1.5, 0.5, -2.0]))
    whole = strict.asarray([2, 3, -1], device=device)

    def fun(x, y):
        z = xnp.maximum(x, y) * xnp.sin(x) / (1 + y**2) + xnp.hypot(x, y) ** 1.5 - xnp.clip(x, -1.0, 1.0)
        z = z + xnp.where(x > y, x, 0.0) + xnp.logaddexp(x, y) + xnp.arctan2(y, x) + xnp.remainder(x, 0.7)
        z = z * whole + xnp.power(xnp.abs(x), y) + xnp.abs(x) % y + xnp.sinc(x) + xnp.copysign(x, y)
        z = z + xnp.divide(whole, y)
        return xnp.sum(z + xnp.deg2rad(x) + xnp.exp2(x) + xnp.cbrt(y) + xnp.fmod(x, y) + xnp.fmax(x, y))

    found = xf.grad(fun, (0, 1))(x, y)
    cpu = strict.Device("CPU_DEVICE")
    plain = tuple(np.asarray(v.to_device(cpu)) for v in (x, y))
    whole = np.asarray(whole.to_device(cpu))
    for each, want in zip(found, xf.grad(fun, (0, 1))(*plain), strict=True):
        assert each.device == device
        np.testing.assert_allclose(np.asarray(each.to_device(cpu)), want)


@pytest.mark.parametrize("x", [[1, 2], [True, False], [0.5, 1.5]])
@pytest.mark.parametrize("y", [[1, 2], [True, False], [0.5, 1.5], 2, 0.5])
@pytest.mark.parametrize("function", [operator.add, operator.mul, operator.truediv, operator.gt, operator.eq])
def test_kinds_mix_on_another_library_as_in_numpy(function, x, y):
    strict = pytest.importorskip("array_api_strict")
    device = strict.Device("device1")
    with np.errstate(all="ignore"):
        want = function(np.asarray(x), np.asarray(y) if isinstance(y, list) else y)
        there = [strict.asarray(v, device=device) if isinstance(v, list) else v for v in (x, y)]
        found = xf.concrete(function(xf.array(there[0]), there[1]))
    assert found.device == device
    np.testing.assert_array_equal(np.asarray(found.to_device(strict.Device("CPU_DEVICE"))), want, strict=True)


# ------------------------------------------------------------------ names and docstrings

NAMES = sorted(elementwise_names.__all__)


@pytest.mark.parametrize("name", NAMES)
def test_every_function_has_an_example_that_runs(name):
    function = getattr(xnp, name)
    names = {**vars(ops), "np": np, "xf": xf}
    found = doctest.DocTestFinder().find(function, name, module=False, globs=names)
    (example,) = found
    assert example.examples, f"{name}: no example"
    out = []
    failed = doctest.DocTestRunner().run(example, out=out.append).failed
    assert not failed, "".join(out)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_names_are_numpys(name):
    other = getattr(np, name)
    same = [each for each in NAMES if getattr(np, each) is other]
    assert len({getattr(xnp, each) for each in same}) == 1
    if isinstance(other, np.ufunc) and other in ufuncs:
        x = np.array([True, False]) if "logical" in name else np.array([1, 2, 3])
        operands = (x, x)[: other.nin]
        np.testing.assert_array_equal(getattr(xnp, name)(*operands), other(*operands), strict=True)
