"""Functional updates: NumPy's values, who gets the derivative, dtypes, errors, other libraries."""

from __future__ import annotations

import array_api_strict as strict
import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from tests.operators.cases_indexing import PLACES
from xform import ops
from xform.core.aval import Aval, aval_of
from xform.core.errors import DtypeError, IndexOperandError, OperandTypeError, ShapeError
from xform.core.rules import batch_rule
from xform.core.stack import apply
from xform.ops.updates import make_add, make_max, make_min, make_mul, make_set

x = np.arange(12.0).reshape(3, 4)
DEVICE = strict.Device("device1")


def written(how, array, index, values):
    out = array.copy()
    if how == "set":
        out[index] = values
    else:
        {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}[how].at(out, index, values)
    return out


def there(a):
    return strict.asarray(a, device=DEVICE)


def back(a):
    return np.from_dlpack(strict.asarray(a, device=strict.Device("CPU_DEVICE")))


@pytest.mark.parametrize("how", ["set", "add", "mul", "min", "max"])
@pytest.mark.parametrize("row", PLACES, ids=lambda row: row[0])
def test_values_are_numpys(row, how):
    _, at, values, array, *operands = row
    index = at(*operands) if operands else at
    want = written(how, array, index, values)
    out = getattr(xf.array(array).at[index], how)(values)
    assert isinstance(out, xf.Array)
    assert out.dtype == array.dtype
    np.testing.assert_array_equal(out.data, want)
    moved = at(*map(there, operands)) if operands else at
    found = getattr(ops.At(there(array))[moved], how)(there(values))
    assert found.device == DEVICE
    np.testing.assert_allclose(back(found), want, rtol=1e-13)


def test_the_array_itself_stays():
    a = xf.array(x.copy())
    a.at[0].set(7.0)
    a.at[[0, 1]].add(7.0)
    np.testing.assert_array_equal(a.data, x)


def test_other_methods():
    a = xf.array(x + 1.0)
    np.testing.assert_array_equal(a.at[1].get().data, x[1] + 1.0)
    np.testing.assert_array_equal(a.at[[0, 0]].subtract(1.0).data[0], x[0] - 1.0)
    np.testing.assert_array_equal(a.at[[0, 0]].multiply(3.0).data[0], 9.0 * (x[0] + 1.0))
    np.testing.assert_array_equal(a.at[[0, 0]].divide(2.0).data[0], (x[0] + 1.0) / 4.0)
    np.testing.assert_array_equal(a.at[[0, 0]].power(2.0).data[0], (x[0] + 1.0) ** 4)


def test_lists_and_leading_axes_of_length_one():
    np.testing.assert_array_equal(xf.array(x).at[1].set([[1.0, 2.0, 3.0, 4.0]]).data[1], [1, 2, 3, 4])
    out = xf.array(x).at[0, :2].set([xf.array(5.0), 6.0])
    np.testing.assert_array_equal(out.data[0], [5, 6, 2, 3])


# ------------------------------------------------------------------ derivatives


def both(fun, *args):
    return xf.vjp(fun, *args)


def test_set_gives_zero_to_what_is_overwritten_and_the_rest_to_the_source():
    out, pullback = both(lambda a, b: a.at[1].set(b), x, np.ones(4))
    ct = np.arange(12.0).reshape(3, 4) + 1.0
    to_x, to_values = pullback(ct)
    np.testing.assert_array_equal(to_x, [[1, 2, 3, 4], [0] * 4, [9, 10, 11, 12]])
    np.testing.assert_array_equal(to_values, [5, 6, 7, 8])
    assert out.shape == (3, 4)


def test_of_values_set_into_one_place_the_last_wins_and_has_the_derivative():
    values = np.array([1.0, 2.0, 3.0, 4.0])
    index = np.array([0, 2, 0, 2])
    out, pullback = both(lambda b: xf.array(np.zeros(4)).at[index].set(b), values)
    np.testing.assert_array_equal(out, [3.0, 0.0, 4.0, 0.0])
    np.testing.assert_array_equal(pullback(np.array([5.0, 6.0, 7.0, 8.0]))[0], [0.0, 0.0, 5.0, 7.0])


def test_negative_and_positive_names_of_one_place():
    _, pullback = both(lambda b: xf.array(np.zeros(4)).at[np.array([-1, 3])].set(b), np.array([1.0, 2.0]))
    np.testing.assert_array_equal(pullback(np.ones(4))[0], [0.0, 1.0])


def test_add_with_repeats():
    _, pullback = both(lambda a, b: a.at[np.array([1, 1])].add(b), np.zeros(3), np.array([1.0, 2.0]))
    to_x, to_values = pullback(np.array([1.0, 5.0, 1.0]))
    np.testing.assert_array_equal(to_x, [1.0, 5.0, 1.0])
    np.testing.assert_array_equal(to_values, [5.0, 5.0])


def test_mul_with_repeats_and_zeros_divides_by_nothing():
    def f(a, b):
        return a.at[np.array([0, 0, 0, 1])].mul(b).sum()

    to_x, to_values = xf.grad(f, (0, 1))(np.array([2.0, 3.0]), np.array([0.0, 5.0, 7.0, 0.0]))
    np.testing.assert_array_equal(to_x, [0.0, 0.0])
    np.testing.assert_array_equal(to_values, [70.0, 0.0, 0.0, 3.0])
    fixed = xf.array(np.array([2.0, 3.0]))
    mixed = xf.grad(lambda b: xf.grad(lambda c: f(fixed, c))(b)[0])(np.array([0.0, 5.0, 7.0, 0.0]))
    np.testing.assert_array_equal(mixed, [0.0, 14.0, 10.0, 0.0])


@pytest.mark.parametrize("how", ["min", "max"])
def test_ties_share_equally(how):
    def f(a, b):
        return getattr(a.at[np.array([0, 0, 1])], how)(b).sum()

    to_x, to_values = xf.grad(f, (0, 1))(np.array([1.0, 2.0, 5.0]), np.array([1.0, 1.0, 2.0]))
    np.testing.assert_allclose(to_x, [1 / 3, 1 / 2, 1.0])
    np.testing.assert_allclose(to_values, [1 / 3, 1 / 3, 1 / 2])


def test_nan_elsewhere_does_no_harm():
    a = np.array([np.nan, 2.0])
    np.testing.assert_array_equal(xf.grad(lambda b: b.at[1].max(1.0).sum())(a), [1.0, 1.0])


def test_gradient_keeps_dtypes():
    to_x, to_values = both(lambda a, b: a.at[1].set(b), x.astype("float32"), np.ones(4))[1](np.ones((3, 4), "float32"))
    assert (to_x.dtype, to_values.dtype) == ("float32", "float64")
    to_values = both(lambda b: xf.array(x.astype(complex)).at[1].set(b), np.ones(4))[1](np.full((3, 4), 1 + 2j))[0]
    assert to_values.dtype == "float64"
    np.testing.assert_array_equal(to_values, np.ones(4))


def test_an_integer_array_gives_no_derivative():
    np.testing.assert_array_equal(xf.grad(lambda b: xf.array(np.arange(3)).at[0].set(b)[0] * 1.0 + b)(2.0), 1.0)


def test_bubble_of_updates():
    def f(a):
        out = xnp.zeros_like(a)
        for k in range(1, len(a)):
            out = out.at[k].set(out[k - 1] + a[k] * a[k])
        return out[-1]

    np.testing.assert_allclose(xf.grad(f)(np.array([1.0, 2.0, 3.0])), [0.0, 4.0, 6.0])


# ------------------------------------------------------------------ batches with masks of their own


MAKERS = {"set": make_set, "add": make_add, "mul": make_mul, "min": make_min, "max": make_max}


@pytest.mark.parametrize("how", MAKERS)
@pytest.mark.parametrize(
    "values", [np.float64(2.5), np.array([2.5, -1.0, 0.5, 7.0])[:, None, None], np.full((1, 1), 3.0)]
)
def test_masks_that_select_more_in_one_lane_than_in_another(how, values):
    masks = np.arange(48).reshape(4, 3, 4) % np.array([2, 3, 5, 7])[:, None, None] == 0
    batched = np.ndim(values) == 3
    op = MAKERS[how](((None, None, None), "@"))
    arrays = np.stack([x, x])
    out, axis = batch_rule.get(op)(op, 4, (arrays, values, masks), (None, 0 if batched else None, 0))
    for k in range(4):
        want = written(how, arrays, (slice(None), masks[k]), values[k] if batched else values)
        np.testing.assert_array_equal(np.take(out, k, axis), want)


# ------------------------------------------------------------------ dtypes and errors


def test_dtype_of_the_array_is_kept():
    assert xf.array(x.astype("float32")).at[0].set(1.5).dtype == "float32"
    assert xf.array(x.astype("float32")).at[0].add(np.float64(1.5)).dtype == "float32"
    assert xf.array(np.arange(3)).at[0].set(1.7).data[0] == 1


@pytest.mark.parametrize(
    ("how", "array", "values"),
    [("set", x, 1j), ("add", np.arange(3), 0.5), ("mul", np.arange(3), 0.5), ("max", np.arange(3), 0.5),
     ("divide", np.arange(3), 2), ("power", np.arange(3), 2)],
)  # fmt: skip
def test_values_that_would_lose_something(how, array, values):
    with pytest.raises(DtypeError, match="dtype"):
        getattr(xf.array(array).at[0], how)(values)


def test_shapes_that_do_not_fit():
    with pytest.raises(ShapeError, match="IndexSet"):
        xf.array(x).at[0].set(np.ones(3))
    with pytest.raises(ShapeError, match=r"values of shape \(3,\) do not broadcast to the selection's \(4,\)"):
        make_set((0,)).infer(aval_of(x), aval_of(np.ones(3)))
    with pytest.raises(ShapeError, match="IndexAdd"):
        make_add((0,)).infer(aval_of(x), aval_of(np.ones((2, 4))))
    assert make_set((0,)).infer(Aval((None, None), np.dtype(float)), aval_of(np.ones(3))).shape == (None, None)


def test_out_of_bounds_names_operator_axis_and_size():
    with pytest.raises(IndexOperandError, match=r"IndexAdd.*axis 1 with size 4"):
        xf.array(x).at[0, 4].add(1.0)


def test_at_without_an_index():
    assert ".at" in repr(xf.array(x).at)
    with pytest.raises(OperandTypeError, match="needs an index"):
        xf.array(x).at.set(1.0)


def test_place_into_a_value_of_unknown_shape():
    out = apply(ops.ScatterAddLike(((0,),)), x, np.ones(4))
    np.testing.assert_array_equal(out, [[1] * 4, [0] * 4, [0] * 4])
