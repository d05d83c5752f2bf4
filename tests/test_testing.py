"""The tester is tested: what is planted wrong is caught, and the message says where."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

import xform as xf
from xform import ops
from xform.core.operator import Operator
from xform.core.rules import batch_rule, jvp_rule, partials, vjp_rule
from xform.core.stack import apply
from xform.testing import check_grads, check_operator
from xform.testing.numeric import directional
from xform.transforms.forward import jvp

X = np.array([0.4, 1.1, 2.3])
Y = np.array([1.5, 0.7, 0.9])


class Planted(Operator):
    """x**2 * y, all of it right; subclasses go wrong in one place."""

    def infer(self, x, y):
        return ops.Mul().infer(x, y)

    def evaluate(self, xp, x, y):
        return x * x * y


def planted(*, vjp=1.0, vjp_2=1.0, jvp=1.0, jvp_2=1.0, batch=1.0, batch_1=1.0, base=Planted):
    """Return an operator class with factors at the places where a derivative is made, `_2`: in the second alone."""

    class Wrong(base):
        def __eq__(self, other):
            return type(self) is type(other)

        def __hash__(self):
            return hash(type(self))

        def __repr__(self):
            return "Wrong()"

    def off(x, factor):
        """x, with a derivative that is off by a factor."""
        return x * factor + xf.stop_gradient(x) * (1.0 - factor)

    @vjp_rule(Wrong)
    def wrong_vjp(op, needed, x, y):
        def pullback(cotangent):
            return cotangent * y * off(x, vjp_2) * (2.0 * vjp), cotangent * x * x

        return apply(op, x, y), pullback

    @jvp_rule(Wrong)
    def wrong_jvp(op, primals, tangents):
        (x, y), (tx, ty) = primals, tangents
        parts = [] if tx is None else [tx * y * off(x, jvp_2) * (2.0 * jvp)]
        parts += [] if ty is None else [ty * x * x]
        return apply(op, x, y), sum(parts[1:], parts[0])

    @batch_rule(Wrong)
    def wrong_batch(op, size, values, axes):
        x, y = (v if a in (0, None) else ops.moveaxis(v, a, 0) for v, a in zip(values, axes, strict=True))
        return apply(op, off(x, batch_1), y) * batch, 0

    return Wrong()


def test_a_right_operator_passes():
    check_operator(planted(), X, Y)
    check_operator(planted(), X[:, None] + 0.2j, Y[:, None] * 1j)
    check_operator(planted(), 2.0, 3.0)


def test_a_cotangent_that_was_not_summed_is_caught():
    with pytest.raises(AssertionError, match=r"cotangent of operand 0 is float64\[3\], its primal weak float64\[\]"):
        check_operator(planted(), 2.0, Y)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("vjp", "vjp and jvp rule disagree"),
        ("jvp", "vjp and jvp rule disagree"),
        ("vjp_2", "order 2 (of the rev derivative): .*operand 0"),
        ("jvp_2", "order 2 (of the fwd derivative): .*operand 0"),
        ("batch", "batch rule, operands batched at (0, None): result 0, the batch axis first, is "),
        ("batch_1", "batch rule: fwd mode, order 1: tangent of result 0.* along operand 0"),
    ],
)
@pytest.mark.parametrize("error", [1.001, 0.999])
def test_a_planted_error_of_a_thousandth_is_caught(place, message, error):
    with pytest.raises(AssertionError, match=r"Wrong\(\)") as caught:
        check_operator(planted(**{place: error}), X, Y)
    for part in message.split(".*"):
        assert part in str(caught.value)


@pytest.mark.parametrize("mode", ["rev", "fwd"])
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
def test_check_grads_catches_a_thousandth_in_either_mode(mode, order, dtype):
    place = {"rev": "vjp", "fwd": "jvp"}[mode] + ("" if order == 1 else "_2")
    right, wrong = planted(), planted(**{place: 1.001})
    args = (X.astype(dtype), Y.astype(dtype))
    check_grads(lambda x, y: apply(right, x, y), args, order=order, modes=(mode,))
    if order == 2:
        check_grads(lambda x, y: apply(wrong, x, y), args, order=1, modes=(mode,))
    with pytest.raises(AssertionError, match=rf"{mode} mode, order {order}.* args\[0\].*got .*expected"):
        check_grads(lambda x, y: apply(wrong, x, y), args, order=order, modes=(mode,))


def test_errors_of_both_rules_alike_are_caught_by_the_numbers():
    with pytest.raises(AssertionError, match=r"fwd mode, order 1: tangent of the result\[0\] along operand 0: got"):
        check_operator(planted(vjp=1.001, jvp=1.001), X, Y)


# ------------------------------------------------------------------ the contract


def broken(rule):
    """Return an operator whose reverse rule is replaced."""
    op = planted()
    vjp_rule.rules[type(op)] = rule
    return op


@pytest.mark.parametrize(
    ("pullback", "message"),
    [
        (lambda t: (t,), "the pullback returned 1 cotangents for 2 operands"),
        (lambda t: [t, t], "the pullback must return a tuple, got list"),
        (lambda t: (t[:2], t), r"the cotangent of operand 0 is float64\[2\], its primal float64\[3\]"),
        (lambda t: (t, t.astype("float32")), r"the cotangent of operand 1 is float32\[3\], its primal float64\[3\]"),
        (lambda t: (None, t * X * X), "vjp and jvp rule disagree"),
    ],
)
def test_cotangents_of_the_wrong_count_shape_and_dtype_are_caught(pullback, message):
    op = broken(lambda op, needed, x, y: (apply(op, x, y), pullback))
    with pytest.raises(AssertionError, match=message):
        check_operator(op, X, Y)


def test_a_missing_cotangent_is_caught_by_the_numbers_where_there_is_no_other_mode():
    op = broken(lambda op, needed, x, y: (apply(op, x, y), lambda t: (None, t * x * x)))
    jvp_rule.none(type(op), why="left out here")
    with pytest.raises(AssertionError, match=r"rev mode, order 1: cotangent of operand 0.*got 0\.0"):
        check_operator(op, X, Y)


def test_a_rule_that_computes_another_result_is_caught():
    op = broken(lambda op, needed, x, y: (apply(op, x, y) * 1.001, lambda t: (t * x * y * 2.0, t * x * x)))
    with pytest.raises(AssertionError, match=r"the result of the vjp rule is"):
        check_operator(op, X, Y)


def test_a_missing_rule_and_a_reason_left_out_are_caught():
    op = planted()
    del batch_rule.rules[type(op)]
    with pytest.raises(AssertionError, match=r"has no batch rule; write one, or say why not: batch_rule.none\(Wrong"):
        check_operator(op, X, Y)
    batch_rule.none(type(op), why=" ")
    with pytest.raises(AssertionError, match=r"needs a reason"):
        check_operator(op, X, Y)
    batch_rule.none(type(op), why="left out here")
    check_operator(op, X, Y)


@pytest.mark.parametrize(
    ("infer", "message"),
    [
        (lambda self, x, y: xf.Aval((9,), x.dtype), r"infer gives float64\[9\] for result 0, evaluate float64\[3\]"),
        (lambda self, x, y: xf.Aval(x.shape, np.dtype("float32")), r"infer gives float32\[3\].*evaluate float64\[3\]"),
        (lambda self, x, y: xf.Aval((3,), x.dtype), r"infer gives float64\[3\] .*unknown; it may be float64\[3,1\]"),
        (lambda self, x, y: xf.Aval((x.shape[0] + 0, *x.shape[1:]), x.dtype), "infer raised TypeError"),
    ],
)
def test_what_infer_says_is_held_against_evaluate(infer, message):
    class Inferred(Planted):
        pass

    Inferred.infer = infer
    column = "3,1" in message
    if column:  # right for what is known, wrong for what is not
        Inferred.infer = lambda self, x, y: x if None not in (*x.shape, *y.shape) else xf.Aval((3,), x.dtype)
    with pytest.raises(AssertionError, match=message):
        check_operator(planted(base=Inferred), *((X[:, None], Y[:, None]) if column else (X, Y)))


def test_single_precision_is_checked_too():
    class Drifts(Planted):
        def evaluate(self, xp, x, y):
            return x * x * y * (np.float64(1.0) if xp is np else 1.0)

    with pytest.raises(AssertionError, match=r"infer gives float32\[3\] for result 0, evaluate float64\[3\]"):
        check_operator(planted(base=Drifts), X, Y)


def test_the_other_library_is_checked():
    pytest.importorskip("array_api_strict")

    class OnlyNumpy(Planted):
        def evaluate(self, xp, x, y):
            return np.multiply(x * x, y)

    with pytest.raises(AssertionError, match=r"evaluate failed on array_api_strict"):
        check_operator(planted(base=OnlyNumpy), X, Y)
    check_operator(planted(base=OnlyNumpy), X, Y, libraries=False)

    class OtherThere(Planted):
        def evaluate(self, xp, x, y):
            return x * x * y if xp is np else x * x * y * 1.001

    with pytest.raises(AssertionError, match=r"result 0 on array_api_strict is"):
        check_operator(planted(base=OtherThere), X, Y)


def test_operators_with_several_results_and_with_integers():
    @attrs.frozen
    class Split(Operator):
        multiple_outputs = True

        def infer(self, x):
            return x, xf.Aval(x.shape, np.dtype(bool))

        def evaluate(self, xp, x):
            return x * x, x > 1.0

    vjp_rule(Split)(lambda op, needed, x: (apply(op, x), lambda cotangents: (cotangents[0] * x * 2.0,)))
    jvp_rule(Split)(lambda op, primals, tangents: (apply(op, *primals), (tangents[0] * primals[0] * 2.0, None)))
    batch_rule(Split)(lambda op, size, values, axes: (apply(op, *values), (axes[0], axes[0])))
    check_operator(Split(), X)
    check_operator(ops.Add(), np.array([1, 2]), np.array([[3], [4]]))
    check_operator(ops.Less(), np.array([1.0, 2.0]), np.array(1.5))


# ------------------------------------------------------------------ check_grads


def test_check_grads_takes_containers_constants_and_python_numbers():
    def model(parameters, n, scale):
        return {"out": parameters["w"] * scale ** 2 + n, "count": n}

    check_grads(model, ({"w": X, "name": None}, 3, 2.0), order=3)


def test_check_grads_says_when_there_is_nothing_to_check():
    with pytest.raises(AssertionError, match=r"no argument is floating"):
        check_grads(lambda n: n, (3,))
    with pytest.raises(AssertionError, match=r"no result is floating"):
        check_grads(lambda x: 3, (X,))
    with pytest.raises(ValueError, match=r"modes are 'fwd' and 'rev'"):
        check_grads(lambda x: x, (X,), modes=("reverse",))


def test_check_grads_says_where_the_difference_itself_is_uncertain():
    near = np.array([1e-4])
    with pytest.raises(AssertionError, match=r"kink or the edge of the domain"):
        check_grads(lambda x: ops.maximum(x, 1e-5), (near,), order=1)
    check_grads(lambda x: ops.maximum(x, 1e-5), (near,), order=1, eps=1e-5)


def test_finite_differences_are_good_to_ten_digits():
    best, doubt = directional(lambda x: (np.exp(x), np.log(x)), [X], [np.ones(3)])
    np.testing.assert_allclose(best[0], np.exp(X), rtol=1e-10)
    np.testing.assert_allclose(best[1], 1 / X, rtol=1e-10)
    assert max(map(np.max, doubt)) < 1e-9


def test_the_kits_forward_mode():
    out, tangent = jvp(lambda x, y: {"a": x * y, "b": y}, (X, Y), (np.ones(3), np.zeros(3)))
    np.testing.assert_array_equal(out["a"], X * Y)
    np.testing.assert_array_equal(tangent["a"], Y)
    np.testing.assert_array_equal(tangent["b"], np.zeros(3))
    # perturbations of two nested runs stay apart: d/dx (x * d/dy (x + y)) = 1
    nested = jvp(lambda x: x * jvp(lambda y: x + y, (1.0,), (1.0,))[1], (2.0,), (1.0,))
    assert nested == (2.0, 1.0)


@pytest.mark.parametrize("wrong", [{"order": 0}, {"modes": ()}])
def test_a_check_of_nothing_is_refused(wrong):
    with pytest.raises(ValueError, match="would check nothing"):
        check_grads(lambda x: x * x, (2.0,), **wrong)


def test_a_batch_rule_that_is_wrong_for_one_lane_alone_is_caught():
    @attrs.frozen
    class Twice(Operator):
        def infer(self, x):
            return x

        def evaluate(self, xp, x):
            return x * 2.0

    partials(Twice, lambda t: t * 2.0)
    batch_rule(Twice)(lambda op, size, values, axes: (values[0] * (2.0 if size > 1 else 3.0), axes[0]))
    with pytest.raises(AssertionError, match=r"Twice\(\): batch rule, operands batched at \(0,\)"):
        check_operator(Twice(), np.ones(3))


def test_a_partial_of_wrong_parameters_is_refused():
    with pytest.raises(TypeError, match=r"partials\(Square\): a function takes first what comes from the other side"):
        xf.partials(ops.Square, lambda x: 2.0 * x)
    with pytest.raises(TypeError, match=r"partials\(Square\): \['y'\] are neither operands \('x',\)"):
        xf.partials(ops.Square, lambda t, y: 2.0 * t * y)
    assert xf.grad(np.square)(3.0) == 6.0


def test_partials_of_several_outputs_are_refused():
    from xform.testing.layers import HalfAndDouble

    with pytest.raises(TypeError, match=r"HalfAndDouble has several outputs.*write @vjp_rule\(HalfAndDouble\)"):
        partials(HalfAndDouble, lambda t: t)


def test_partials_are_checked_through_both_modes():
    class Cube(Operator):
        def infer(self, x):
            return x

        def evaluate(self, xp, x):
            return x * x * x

    partials(Cube, lambda t, x: t * x * x * 3.003)
    batch_rule.none(Cube, why="left out here")
    with pytest.raises(AssertionError, match=r"order 1"):
        check_operator(Cube(), X)
