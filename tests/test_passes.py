"""Passes: what they make of small programs, and that programs made at random compute the same after them."""

from __future__ import annotations

import math

import attrs
import numpy as np
import pytest
from typeguard import suppress_type_checks

import xform as xf
import xform.numpy as xnp
from xform import ops
from xform.core.errors import ProgramError
from xform.programs.compiler import compile_program
from xform.programs.passes import LEVELS, PASSES, RULES, optimised, simplify
from xform.programs.passes.cleaning import drop_dead
from xform.programs.passes.draft import Rules, sweep
from xform.programs.passes.groups import join_elementwise
from xform.programs.passes.steps import join_steps
from xform.programs.passes.sums import join_sums
from xform.programs.program import Constant

levels = pytest.mark.parametrize("level", LEVELS)
x3 = np.array([0.5, -1.25, 2.0])


def names(program):
    return [equation.op.name for equation in program.equations]


def after(fun, *args, level=0):
    """The operators that are left of a function."""
    return names(optimised(xf.make_program(fun)(*args), level))


# ------------------------------------------------------------------ small programs


def test_what_nothing_needs_is_left_out():
    program = xf.make_program(lambda x: (np.sin(x), np.cos(np.exp(x)))[0])(x3)
    assert names(program) == ["Sin", "Exp", "Cos"]
    assert names(drop_dead(program)) == ["Sin"]


def test_equal_operations_are_one():
    program = xf.make_program(lambda x, y: np.sin(x * y) + np.sin(y * x) + np.cos(x * y))(x3, x3)
    assert names(sweep(program)) == ["Mul", "Sin", "Add", "Cos", "Add"]


def test_numbers_that_python_takes_for_equal_are_not():
    program = xf.make_program(lambda x: (x * 0.0, x * -0.0, x + True, x + 1, x + 1.0))(x3)
    assert len(sweep(program).equations) == 5


def test_the_first_of_two_zeros_stays_the_first():
    """The greater of 0 and -0 is the first: operands must not be swapped."""
    program = xf.make_program(lambda x, y: (xnp.maximum(x, y), xnp.maximum(y, x)))(x3, x3)
    assert len(optimised(program).equations) == 2


def test_what_does_not_depend_on_the_inputs_is_computed_once():
    c = np.array([1.0, 2.0, 3.0])
    program = xf.make_program(lambda x: x + np.sin(xnp.multiply(c, 2.0)) @ c)(x3)
    final = optimised(program, 0)
    assert names(final) == ["Add"]
    (constant,) = final.constants
    assert constant.value == pytest.approx(np.sin(c * 2.0) @ c)


def test_what_warns_is_left_to_warn_at_each_call():
    def fun(x):
        return x + xf.apply(ops.Div(), np.ones(3), np.zeros(3))

    program = xf.make_program(fun)(x3)
    assert names(optimised(program, 1)) == ["Div", "Add"]
    compiled = compile_program(program)
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="divide by zero"):
            compiled(x3)


def test_constants_do_not_grow():
    program = xf.make_program(lambda x: x + xnp.broadcast_to(xf.apply(ops.Sin(), np.ones(3)), (300_000, 3)))(x3)
    assert sum(constant.value.nbytes for constant in optimised(program).constants) <= 24


@pytest.mark.parametrize(
    ("fun", "left"),
    [
        (lambda x: x * 1.0, []),
        (lambda x: 1.0 * x / 1.0 - 0.0, []),
        (lambda x: np.negative(-x), []),
        (lambda x: x + (-np.sin(x)), ["Sin", "Sub"]),
        (lambda x: np.cos(x) - (-np.sin(x)), ["Cos", "Sin", "Add"]),
        (lambda x: (-x) * np.sin(x) + 1.5, ["Sin", "Mul", "Sub"]),
        (lambda x: xf.stop_gradient(xf.name(x, "h")) * 2.0, ["Mul"]),
        (lambda x: x.T.T.reshape(3, 1).reshape(3), []),
        (lambda x: np.mean(x), ["Sum", "Div"]),
        (lambda x: x / 4.0, ["Mul"]),
        (lambda x: np.zeros_like(x) + x[0], ["GetItem", "Add", "BroadcastTo"]),
        (lambda x: x.astype(float), []),
        (lambda x: x**2 + x**-1, ["Square", "Reciprocal", "Add"]),
    ],
)
def test_exact_identities(fun, left):
    assert after(fun, x3, level=0) == left


@pytest.mark.parametrize(
    ("fun", "left"),
    [
        (lambda x: x + 0.0, ["Add"]),
        (lambda x: x * 0.0, ["Mul"]),
        (lambda x: x / x, ["Div"]),
        (lambda x: x - x, ["Sub"]),
        (lambda x: np.log(np.exp(x)), ["Exp", "Log"]),
        (lambda x: x / 3.0, ["Div"]),
    ],
)
def test_level_0_keeps_what_is_not_exact(fun, left):
    assert after(fun, x3, level=0) == left
    assert after(fun, x3, level=1) != left


def test_row_44_rewrites_by_level():
    """behaviours.md 2, 44: y / y and log(exp x + exp y) at level 1 or above only; log(exp x): two operators fewer."""
    y = np.array([0.0, np.inf, np.nan, 2.0])
    quotient = xf.make_program(lambda y: y / y)(np.ones(4))
    with np.errstate(invalid="ignore"):
        assert np.isnan(compile_program(quotient, level=0)(y)[0]).tolist() == [True, True, True, False]
    for level in (1, 2):
        assert compile_program(quotient, level=level)(y)[0].tolist() == [1.0] * 4

    logs = xf.make_program(lambda x, y: np.log(np.exp(x) + np.exp(y)))(x3, x3)
    large = np.array([1000.0, -1000.0, 3.0])
    with np.errstate(over="ignore", divide="ignore"):
        assert np.isinf(compile_program(logs, level=0)(large, large)[0]).tolist() == [True, True, False]
    for level in (1, 2):
        (found,) = compile_program(logs, level=level)(large, large)
        np.testing.assert_allclose(found, large + math.log(2.0))

    inverse = xf.make_program(lambda x: np.sin(np.log(np.exp(x))))(x3)
    assert len(inverse.equations) - len(optimised(inverse, 1).equations) == 2
    assert len(optimised(inverse, 0).equations) == 3


def test_softplus_does_not_overflow_at_level_1():
    for fun in (lambda x: np.log(1.0 + np.exp(x)), lambda x: np.log1p(np.exp(x))):
        compiled = compile_program(xf.make_program(fun)(x3), level=1)
        np.testing.assert_allclose(compiled(np.array([1000.0, 0.0, -1000.0]))[0], [1000.0, math.log(2.0), 0.0])


def test_the_program_itself_stays_as_it_is():
    program = xf.make_program(lambda x: np.log(np.exp(x)) * 1.0)(x3)
    text = program.text()
    optimised(program, 1)
    assert program.text() == text
    np.testing.assert_array_equal(program(x3), np.log(np.exp(x3)))


def test_scopes_and_lines_stay_with_equations():
    def fun(x):
        with xf.named_scope("layer"):
            return np.sin(x) + (-np.cos(x))  # here

    (*_, last) = optimised(xf.make_program(fun)(x3)).equations
    assert last.op == ops.Sub()
    assert last.scopes == ("layer",)
    assert last.site[0].endswith("test_passes.py")


def test_contractions_are_matrix_products():
    a, b = np.linspace(0.0, 1.0, 24).reshape(2, 3, 4), np.linspace(-1.0, 1.0, 12).reshape(4, 3)

    def fun(a, b):
        return (
            np.tensordot(a, b, axes=((2, 1), (0, 1))),
            xnp.einsum("ijk,kl->lij", a, b),
            a @ b,
            xnp.einsum("ij,kj->ik", b, b),
            xnp.einsum("ij,ij->i", b, b),
        )

    program = xf.make_program(fun)(a, b)
    for level in LEVELS:
        found = compile_program(program, level=level)(a * 0.5, b + 1.0)
        for have, want in zip(found, fun(a * 0.5, b + 1.0), strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-12)
    assert "Tensordot" not in names(optimised(program, 0))
    assert names(optimised(program, 1)).count("Einsum") == 1


# ------------------------------------------------------------------ sums and steps


def test_a_sum_of_outer_products_is_one_product():
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(8, 5))

    def fun(w):
        total = 0.0
        for column in columns:
            total = total + np.sum(np.sin(w @ column))
        return total

    w = rng.normal(size=(3, 5))
    final = optimised(xf.make_program(xf.grad(fun))(w))
    assert names(final).count("Matmul") == 2
    assert len(final.equations) <= 8
    np.testing.assert_allclose(final(w), sum(np.outer(np.cos(w @ c), c) for c in columns))


def test_signs_of_terms():
    def fun(x, y):
        total = x * y
        for n in range(1, 9):
            term = np.sin(x * float(n)) * y
            total = total - term if n % 2 else term + total
        return -total

    program = xf.make_program(fun)(x3, x3)
    joined = drop_dead(join_sums(program))
    assert names(joined).count("Stack") == 2
    np.testing.assert_allclose(joined(x3, x3 + 1.0), program(x3, x3 + 1.0))


def test_a_partial_sum_that_is_used_elsewhere_stays():
    def fun(x):
        terms = [np.sin(x * float(n)) for n in range(1, 12)]
        half = sum(terms[1:6], terms[0])
        return sum(terms[6:], half) * half

    program = xf.make_program(fun)(x3)
    np.testing.assert_allclose(compile_program(program)(x3 * 2.0)[0], program(x3 * 2.0))


def test_broadcast_terms_and_numbers_in_a_sum():
    def fun(x, s):
        total = 0
        for n in range(6):
            total = total + x * s + s + 1.5 * float(n)
        return total

    program = xf.make_program(fun)(x3, np.float64(0.5))
    for level in LEVELS:
        (found,) = compile_program(program, level=level)(x3, np.float64(2.0))
        np.testing.assert_allclose(found, program(x3, np.float64(2.0)))


def steps_of(fun, *args):
    return names(optimised(xf.make_program(fun)(*args)))


def test_rows_times_one_matrix_are_one_product():
    w = np.linspace(-1.0, 1.0, 6).reshape(2, 3)
    rows = np.linspace(0.0, 1.0, 10).reshape(5, 2)
    found = steps_of(lambda w: [np.sin(row @ w) for row in rows], w)
    assert found.count("Matmul") == 1
    assert found.count("Sin") == 1
    found = steps_of(lambda w, rows: [np.sin(w.T @ rows[n]) for n in range(5)], w, rows)
    assert found.count("Matmul") == 1
    assert "Stack" not in found


def test_steps_that_depend_on_each_other_stay_in_order():
    def fun(x):
        for _ in range(5):
            x = np.sin(x) * 2.0
        return x

    program = xf.make_program(fun)(x3)
    assert names(join_steps(program)) == names(program)


def test_large_steps_are_not_stacked():
    x = np.ones(20_000)
    assert steps_of(lambda x: [np.sin(x * float(n)) for n in range(2, 7)], x).count("Sin") == 5


def test_derivatives_of_all_steps_are_computed_together():
    def fun(x):
        y = x
        for _ in range(12):
            y = np.tanh(y * 1.5 + 0.25)
        return np.sum(y)

    program = xf.make_program(xf.value_and_grad(fun))(x3)
    final = optimised(program, 2)
    assert len(final.equations) <= len(optimised(program, 1).equations) - 24
    for have, want in zip(compile_program(program)(x3 * 0.5), program.run([x3 * 0.5]), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-12)


@attrs.frozen(eq=False)
class Note(xf.Operator):
    """Impure: keeps what it was given."""

    seen: list
    impure = True

    def infer(self, x):
        return x

    def evaluate(self, xp, x):
        self.seen.append(np.array(x))
        return x


@levels
def test_pinned_operators_keep_their_order_among_groups_and_stacks(level):
    """Large elementwise parts around operators that must not move."""
    seen: list = []
    note = Note(seen)

    def fun(x):
        a = xf.apply(note, np.sin(x) + 1.0)
        b = xf.apply(note, np.cos(x) * 2.0)
        c = np.exp(a - b) * np.sin(x)
        return xf.apply(note, c) * 0.5 + np.cos(a)

    x = np.linspace(0.0, 1.0, 70_000)
    program = xf.make_program(fun)(x)
    seen.clear()
    (have,) = compile_program(program, level=level)(x)
    assert len(seen) == 3
    np.testing.assert_allclose(seen[0], np.sin(x) + 1.0)
    np.testing.assert_allclose(seen[1], np.cos(x) * 2.0)
    np.testing.assert_allclose(have, seen[2] * 0.5 + np.cos(seen[0]))


def test_groups_hold_what_belongs_together():
    x = np.linspace(0.0, 1.0, 70_000)
    program = join_elementwise(xf.make_program(lambda x: np.sum(np.exp(np.sin(x) * 2.0)) + np.ones(3))(x))
    assert names(program) == ["Group", "Add"]
    assert names(program.equations[0].op.program) == ["Sin", "Mul", "Exp", "Sum"]
    np.testing.assert_allclose(program(x), np.exp(np.sin(x) * 2.0).sum() + np.ones(3))


# ------------------------------------------------------------------ rules


def test_a_rule_whose_result_is_of_another_type_is_not_taken():
    wrong = Rules()

    @wrong.on(ops.Sin)
    def halve(draft, op, inputs, aval):
        """Take a part."""
        return draft.apply(ops.GetItem(((0, 1, None),)), inputs[0])

    program = xf.make_program(lambda x: np.sin(x) * 2.0)(x3)
    assert names(sweep(program, wrong)) == ["Sin", "Mul"]


def test_all_passes_are_listed_with_levels():
    assert [level for level, _ in RULES] == sorted(level for level, _ in RULES)
    assert {level for level, _ in RULES} == set(LEVELS)
    assert simplify in PASSES
    for wrong in (3, -1, "O3"):
        with suppress_type_checks(), pytest.raises(ProgramError, match="level must be one of 0, 1, 2"):
            compile_program(xf.make_program(np.sin)(x3), level=wrong)
        with suppress_type_checks(), pytest.raises(ProgramError, match="level must be one of 0, 1, 2"):
            xf.trace(np.sin, level=wrong)


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: np.exp(np.log(x)),
        lambda x: np.log(np.exp(x)),
        lambda x: x / x,
        lambda x: x - x,
        lambda x: 0.0 * x,
        lambda x: np.log1p(np.exp(x)),
        lambda x: x * 2.0 / 2.0,
        lambda x: x**2 - x**0.5 + x**-1.0,
        lambda x: np.broadcast_to(x[0], (0,)).sum() + np.broadcast_to(x[1], (5,)).sum() * x,
        lambda x: 1.0 / (x + 0.0) + 1.0 / -(x - x),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_trace_keeps_nan_and_infinities(fun):
    x = np.array([-1.0, 2.0, 0.0, -0.0, np.inf, -np.inf, np.nan, 1.7e308, 800.0])
    for turned in (fun, xf.grad(lambda x: fun(x).sum())):
        want, traced = turned(x), xf.trace(turned)
        for _ in range(3):
            np.testing.assert_allclose(traced(x), want, rtol=1e-14)


def test_constants_of_a_final_program_are_arrays_or_numbers():
    final = optimised(xf.make_program(lambda x: x * np.ones(3) + np.float32(2.0))(x3))
    assert all(isinstance(each, Constant) for each in final.constants)
    assert all(isinstance(each.value, np.ndarray | np.generic) for each in final.constants)


@pytest.mark.parametrize("turned", [lambda fun: fun, lambda fun: xf.grad(lambda x: fun(x).sum())], ids=["out", "grad"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 3), (3, 1), (1, 1, 2), (1, 0)], ids=str)
@pytest.mark.parametrize("axis", [None, 0, -1, ()], ids=str)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_sum_of_one_number_is_added_to_zero(shape, axis, turned):
    """NumPy's sum of -0 alone is 0, whose reciprocal is another infinity."""
    if shape == () and axis is not None and axis != ():
        return
    fun = turned(lambda x: 1.0 / np.sum(x, axis=axis) + 0.0 * x)
    x = np.full(shape, -0.0)
    np.testing.assert_array_equal(compile_program(xf.make_program(fun)(x))(x)[0], fun(x))


@pytest.mark.parametrize("number", [-0.0, np.inf, complex(np.inf, 2.0), complex(-0.0, np.inf)], ids=str)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_sum_of_a_number_that_was_broadcast(number):
    x = np.array(number)
    out = compile_program(xf.make_program(lambda x: np.broadcast_to(x, (3,)).sum())(x))(x)[0]
    np.testing.assert_array_equal(out, np.full(3, number).sum())
    np.testing.assert_array_equal(np.signbit(out.real), np.signbit(np.full(3, number).sum().real))


@pytest.mark.parametrize("have", [(1,), (1, 3), (2, 1, 3), (1, 1, 1), (2, 3)], ids=str)
def test_a_cotangent_summed_to_a_shape_is_the_eager_one(have):
    """To the sign of zero: along an axis of length 1 nothing is added."""
    for to in {have[1:], (1,), (), have, (1, *have[1:])}:
        gradient = xf.grad(lambda y, x: np.sum(y * x))
        y, x = np.zeros(to), np.full(have, -0.0)
        want, out = gradient(y, x), compile_program(xf.make_program(gradient)(y, x))(y, x)[0]
        np.testing.assert_array_equal(np.signbit(out), np.signbit(want))
        np.testing.assert_array_equal(np.signbit(ops.SumTo(to).evaluate(np, x)), np.signbit(want))
