"""Batching: `xf.Batch` and `xf.vmap`, against loops over the lanes."""

from __future__ import annotations

import array_api_strict
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import xform as xf
import xform.numpy as xnp
from xform.core.errors import (
    EscapedValueError,
    LayerError,
    OperandTypeError,
    RuleError,
    ShapeError,
)
from xform.core.stack import BOTTOM, cursor
from xform.testing import check_transformation

R = np.random.default_rng(5)
A = R.normal(size=(4, 3))
B = R.normal(size=(3, 4))


def energy(x):
    return (np.exp(-x) * x).sum() / (1.0 + x[0] ** 2)


PROGRAMS = [
    energy,
    np.sin,
    lambda x: x[::-1] * x[0],
    lambda x: np.outer(x, x) @ x,
    lambda x: np.where(x > 0, x, -x),
    lambda x: np.sort(x)[1:] + np.argmax(x),
    lambda x: np.concatenate([x, np.cumsum(x), np.ones(2)]),
    lambda x: np.linalg.inv(np.diag(x * x) + np.ones((3, 3))),
    lambda x: np.stack([x, x * 2.0]).reshape(-1).mean(),
    lambda x: xnp.take(xf.array(np.arange(5.0)), np.argmin(x)) * x,
    lambda x: np.isfinite(x) & (x > 0.1),
    lambda x: x.astype(int) // 2,
]


@pytest.mark.parametrize("fun", PROGRAMS)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_lanes_are_those_of_a_loop(fun, axis):
    whole = np.moveaxis(A, 0, axis)
    out = xf.vmap(fun, in_axes=axis)(whole)
    want = np.stack([np.asarray(xf.to_numpy(fun(xf.array(lane)))) for lane in A])
    assert_allclose(out, want, rtol=1e-13)
    assert out.dtype == want.dtype
    assert type(out) is np.ndarray


@pytest.mark.parametrize("axes", [(0, 0), (1, 0), (0, 1), (-1, -1), (0, None), (None, 1)])
@pytest.mark.parametrize(("left", "right"), [((4, 4), (4, 4)), ((4, 4), (4, 4, 4)), ((4, 4, 4), (4, 4))])
def test_operands_of_different_ranks_are_aligned(axes, left, right):
    x, y = R.normal(size=left), R.normal(size=right)

    def lane(value, axis, k):
        return value if axis is None else np.take(value, k, axis)

    out = xf.vmap(lambda x, y: x * y - x / 2.0, axes)(x, y)
    want = [lane(x, axes[0], k) * lane(y, axes[1], k) - lane(x, axes[0], k) / 2.0 for k in range(4)]
    assert_allclose(out, np.stack(want))


def test_some_arguments_mapped():
    want = np.stack([lane @ B for lane in A])
    assert_allclose(xf.vmap(np.dot, (0, None))(A, B), want)
    assert_allclose(xf.vmap(np.dot, (None, 1))(A, B), np.stack([A @ column for column in B.T]))
    assert_allclose(xf.vmap(np.dot, (0, 1))(A, B), [row @ column for row, column in zip(A, B.T, strict=True)])
    assert_allclose(xf.vmap(np.dot, [0, -1], 0)(A, B), [row @ column for row, column in zip(A, B.T, strict=True)])


def test_containers_and_prefixes():
    def fun(params, x):
        return {"y": params["w"] @ x + params["b"][0], "w": params["w"]}, params["b"]

    params = {"w": R.normal(size=(2, 3)), "b": [R.normal(size=4), R.normal(size=(5, 4))]}
    axes = ({"w": None, "b": [0, 1]}, 0)
    out, b = xf.vmap(fun, axes, ({"y": 0, "w": None}, -1))(params, A)
    want = np.stack([params["w"] @ x + b0 for x, b0 in zip(A, params["b"][0], strict=True)])
    assert_allclose(out["y"], want)
    assert out["w"] is params["w"]
    assert_array_equal(b[0], params["b"][0])
    assert_array_equal(b[1], params["b"][1])
    out, _ = xf.vmap(fun, ({"w": None, "b": [None, 1]}, 0), (1, 0))(params | {"b": [1.0, params["b"][1]]}, A)
    assert out["y"].shape == (2, 4)
    assert_array_equal(out["w"], np.stack([params["w"]] * 4, axis=1))


def test_keyword_arguments_hold_their_lanes_along_axis_0():
    assert_allclose(xf.vmap(lambda x, *, y: x * y.sum())(A, y=A), A * A.sum(1)[:, None])
    assert_allclose(xf.vmap(lambda x, *, y: x * y.sum(), in_axes=1)(A.T, y=A), A * A.sum(1)[:, None])


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_out_axes(axis):
    out = xf.vmap(lambda x: np.outer(x, x), out_axes=axis)(A)
    assert_allclose(out, np.moveaxis(np.stack([np.outer(x, x) for x in A]), 0, axis))


def test_results_that_are_the_same_in_all_lanes():
    constant, number, none = xf.vmap(lambda x: (np.arange(2), 3.0, None))(A)
    assert_array_equal(constant, [[0, 1]] * 4)
    constant[0] = 7  # the receiver's own
    assert_array_equal(constant[1], [0, 1])
    assert_array_equal(number, [3.0] * 4)
    assert none is None
    assert xf.vmap(lambda x: ("text", x), out_axes=(None, 0))(A)[0] == "text"
    with pytest.raises(OperandTypeError, match="an output is str"):
        xf.vmap(lambda x: "text")(A)


def test_axis_size():
    assert_array_equal(xf.vmap(lambda: 2.0, axis_size=3)(), [2.0] * 3)
    assert_array_equal(xf.vmap(lambda x: x, in_axes=None, axis_size=2)(B), np.stack([B, B]))
    assert xf.vmap(energy, axis_size=4)(A).shape == (4,)


def test_no_lanes_and_one_lane():
    assert xf.vmap(lambda x: np.outer(x, x) @ x)(np.zeros((0, 3))).shape == (0, 3)
    assert_allclose(xf.vmap(energy)(A[:1]), [energy(A[0])])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 9])
def test_chunks(size):
    sizes = []

    def fun(x, y):
        sizes.append(1)
        return {"a": x * y[0, 0], "b": 1.0, "c": y}

    out = xf.vmap(fun, (1, None), {"a": 1, "b": 0, "c": None}, chunk_size=size)(A.T, B)
    assert_allclose(out["a"], A.T * B[0, 0])
    assert len(sizes) == -(-4 // size)
    assert out["b"].shape == (4,)
    assert out["c"] is B


def test_chunks_give_what_one_batch_gives():
    for size in (1, 3, 4):
        assert_allclose(xf.vmap(energy, chunk_size=size)(A), xf.vmap(energy)(A), rtol=1e-14)
        assert_allclose(xf.vmap(np.outer, (0, 1), 2, chunk_size=size)(A, B), xf.vmap(np.outer, (0, 1), 2)(A, B))


def test_tracked_in_tracked_out():
    assert type(xf.vmap(energy)(xf.array(A))) is xf.Array
    assert type(xf.vmap(lambda x: x + xf.array(1.0))(A)) is np.ndarray
    assert type(xf.vmap(lambda x, y: x + y, (0, None))(A, xf.array(1.0))) is xf.Array


# ------------------------------------------------------------------ nesting, other layers


def test_batches_nest():
    want = [[energy(a * b) for b in A] for a in A]
    assert_allclose(xf.vmap(lambda a: xf.vmap(lambda b: energy(a * b))(A))(A), want)
    assert_allclose(xf.vmap(xf.vmap(lambda a, b: energy(a * b), (None, 0)), (0, None))(A, A), want)
    cube = R.normal(size=(2, 4, 3))
    assert_allclose(xf.vmap(xf.vmap(energy))(cube), [[energy(x) for x in rows] for rows in cube])
    turned = [[energy(cube[k, i]) for k in range(2)] for i in range(4)]
    assert_allclose(xf.vmap(xf.vmap(energy, 1), 2, 1)(cube.T), turned)


def test_gradients_of_lanes_and_of_batches():
    want = np.stack([xf.grad(energy)(x) for x in A])
    assert_allclose(xf.vmap(xf.grad(energy))(A), want)
    assert_allclose(xf.grad(lambda a: xf.vmap(energy)(a).sum())(A), want)
    values, found = xf.vmap(xf.value_and_grad(energy))(A)
    assert_allclose(values, [energy(x) for x in A])
    assert_allclose(found, want)
    second = np.stack([xf.grad(lambda x: xf.grad(energy)(x).sum())(x) for x in A])
    assert_allclose(xf.vmap(xf.grad(lambda x: xf.grad(energy)(x).sum()))(A), second)
    assert_allclose(xf.grad(lambda a: xf.vmap(xf.grad(energy))(a).sum())(A), second)


def test_gradient_of_what_all_lanes_share():
    def loss(w):
        return xf.vmap(lambda x: np.tanh(x @ w))(A).sum()

    w = B[:, 0]
    assert_allclose(xf.grad(loss)(w), (A * (1 - np.tanh(A @ w) ** 2)[:, None]).sum(0))
    one = xf.vmap(xf.grad(lambda w, x: np.tanh(x @ w)), (None, 0))(w, A)
    assert_allclose(one.sum(0), xf.grad(loss)(w))


def test_perturbations_do_not_mix_with_lanes():
    found = xf.vmap(lambda x: xf.grad(lambda y: (x * y).sum() * xf.grad(lambda z: (z * y).sum())(x).sum())(x))(A)
    want = np.stack([x * x.sum() + (x * x).sum() for x in A])
    assert_allclose(found, want)


def test_with_trace_above_and_below():
    want = [energy(x) for x in A]
    traced = xf.trace(energy)
    assert_allclose([traced(x) for x in A], want)
    assert_allclose(xf.vmap(traced)(A), want)
    assert_allclose(xf.vmap(traced)(A[:2]), want[:2])
    whole = xf.trace(xf.vmap(energy))
    assert_allclose(whole(A), want)
    assert_allclose(whole(A + 0.0), want)
    assert xf.eval_shape(xf.vmap(energy), xf.Aval((7, 3), "float32")) == xf.Aval((7,), np.dtype("float32"))
    assert_allclose(xf.make_program(xf.vmap(xf.grad(energy)))(A)(A), xf.vmap(xf.grad(energy))(A))


def test_observers_below_see_one_operation_and_above_one_lane():
    class Shapes(xf.Observer):
        def __init__(self):
            self.seen = []

        def observe(self, op, inputs, outputs):
            self.seen.append((op.name, xf.aval_of(outputs).shape))

    below, above = Shapes(), Shapes()
    with below:
        xf.vmap(above(lambda x: np.sin(x) * 2.0))(A)
    assert below.seen == [("Sin", (4, 3)), ("Mul", (4, 3))]
    assert above.seen == [("Sin", (3,)), ("Mul", (3,))]


def test_a_rewriter_below_is_refused_and_above_it_counts():
    class Square(xf.Rewriter):
        def rewrite(self, op, values):
            return values[0] * values[0] if op == xf.ops.Sin() else NotImplemented

    with Square(), pytest.raises(LayerError, match="Decorate"):
        xf.vmap(np.sin)(A)
    assert_allclose(xf.vmap(Square()(np.sin))(A), A * A)


def test_other_libraries_and_devices():
    strict = array_api_strict
    a = strict.asarray(A, device=strict.Device("device1"))
    out = xf.vmap(lambda x: xnp.sin(x) * x.sum() + 1.0)(a)
    want = np.sin(A) * A.sum(1)[:, None] + 1.0
    assert out.device == strict.Device("device1")
    assert_allclose(xf.to_numpy(out), want)
    device = xf.Device("array_api_strict:device1")
    assert_allclose(xf.to_numpy(xf.vmap(device(lambda x: xnp.sin(x) * x.sum() + 1.0))(A)), want)
    assert_allclose(xf.to_numpy(device(xf.vmap(lambda x: xnp.sin(x) * x.sum() + 1.0))(A)), want)
    assert_allclose(xf.to_numpy(xf.vmap(xf.grad(lambda x: xnp.sum(x * x)))(a)), 2 * A)


# ------------------------------------------------------------------ users' operators


class Halves(xf.Operator):
    multiple_outputs = True

    def infer(self, x):
        return x, xf.Aval((), x.dtype)

    def evaluate(self, xp, x):
        return x / 2, xp.sum(x)


def test_an_operator_without_a_batch_rule_runs_lane_by_lane():
    calls = []

    class Bare(Halves):
        def evaluate(self, xp, x):
            calls.append(x.shape)
            return super().evaluate(xp, x)

    half, total = xf.vmap(lambda x: xf.apply(Bare(), x), in_axes=1)(A.T)
    assert_allclose(half, A / 2)
    assert_allclose(total, A.sum(1))
    assert calls == [(3,)] * 4
    half, total = xf.vmap(lambda x: xf.apply(Bare(), x))(np.zeros((0, 3)))
    assert (half.shape, total.shape) == ((0, 3), (0,))


def test_lanes_of_different_shapes():
    class Positive(xf.Operator):
        def evaluate(self, xp, x):
            return x[x > 0]

    with pytest.raises(ShapeError, match=r"Positive.*different shapes in different lanes"):
        xf.vmap(lambda x: xf.apply(Positive(), x))(np.array([[1.0, -1.0], [1.0, 1.0]]))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda op, size, values, axes: xf.apply(op, *values), "float64 as the axis of a result"),
        (lambda op, size, values, axes: None, "NoneType; it must return a pair"),
        (lambda op, size, values, axes: (xf.apply(op, *values), (0, 0)), r"a result of shape \(\) with axis 0"),
        (lambda op, size, values, axes: (xf.apply(op, *values), (0,)), "2 results and 1 axes"),
        (lambda op, size, values, axes: (xf.apply(op, *values), (1, None)), r"axis 1, which does not hold the 4 lanes"),
    ],
)
def test_a_wrong_rule_is_an_error_that_names_it(rule, message):
    class Wrong(Halves):
        pass

    xf.batch_rule(Wrong)(rule)
    with pytest.raises(RuleError, match=rf"the batch rule of .*Wrong.*({message})"):
        xf.vmap(lambda x: xf.apply(Wrong(), x))(A)


def test_a_users_rule_may_count_axes_from_the_end_and_give_one_for_all():
    class Own(Halves):
        pass

    @xf.batch_rule(Own)
    def own_batch(op, size, values, axes):
        (x,), (axis,) = values, axes
        x = xnp.moveaxis(x, axis, -1)
        return (x / 2, xnp.sum(x, axis=0)), -1

    half, total = xf.vmap(lambda x: xf.apply(Own(), x))(A)
    assert_allclose(half, A / 2)
    assert_allclose(total, A.sum(1))


# ------------------------------------------------------------------ the layer itself


def test_the_manners_of_the_layer():
    check_transformation(lambda: xf.Batch(3), reusable=False)


def test_the_layer_as_a_block():
    with xf.Batch(4, "mine") as batch:
        x = batch.attach(A)
        y = batch.attach(B, -1) * x
        assert x.shape == (3,)
        assert "mine" in repr(y)
        with pytest.raises(ShapeError, match="does not hold 4 lanes along axis 0"):
            batch.attach(B)
    assert_allclose(batch.lowered(y), A * B.T)
    assert_allclose(batch.lowered(y, 1), A.T * B)
    assert_array_equal(batch.lowered(2.0), [2.0] * 4)
    with pytest.raises(LayerError, match="make another"), batch:
        pass
    with pytest.raises(LayerError, match="not active"):
        batch.attach(A)


def test_row_53_values_kept_after_the_end_raise():
    kept = []
    xf.vmap(lambda x: kept.append(x) or x)(A)
    with pytest.raises(EscapedValueError, match="batch#"):
        kept[0] + 1.0
    with pytest.raises(EscapedValueError):
        xf.vmap(lambda x: x + kept[0])(A)


def test_an_exception_leaves_the_stack_as_it_was():
    with pytest.raises(ZeroDivisionError):
        xf.vmap(lambda x: 1 / 0)(A)
    assert cursor.get() is BOTTOM


def test_the_function_keeps_its_name():
    assert xf.vmap(energy).__name__ == "energy"
    assert xf.layer("batch", size=3).size == 3
