"""Algebraic identities.

1. `exact`: the result is the same to the last bit, NaN, infinities and signs of zero included.
2. `rounded`: the same up to rounding, NaN and infinities included.
3. `finite` (level 1): the same up to rounding where all values in between are finite: `y / y` is 1, `log(exp(x))` is
   `x`. Constants move together.
4. `factored` (level 2): the same, of as many operations, with a factor that does not depend on what a loop carries.

Each rule is one line of algebra; a result of another shape or dtype than the original is not taken.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from xform.core.aval import Aval
from xform.core.errors import DtypeError
from xform.core.operator import Operator
from xform.ops.arithmetic import Add, Div, Mul, Neg, Reciprocal, Square, Sub
from xform.ops.broadcast import BroadcastTo, make_broadcast_to
from xform.ops.exponential import Exp, Log, Log1p, Logaddexp
from xform.ops.indexing import ScatterAdd
from xform.ops.joining import make_stack
from xform.ops.powers import Pow, Sqrt
from xform.ops.reductions import Sum
from xform.programs.passes.constants import number_of
from xform.programs.passes.draft import Draft, Inputs, Number, Operand, Rules, is_row
from xform.programs.program import Constant, Literal, aval_at

__all__ = ["exact", "factored", "finite", "rounded"]

exact, rounded, finite, factored = Rules(), Rules(), Rules(), Rules()

#: numbers of a smaller exponent have a reciprocal that is no subnormal number, in each precision
EXPONENTS = {"f": 126, "d": 1022}


def like(draft: Draft, number: Any, operand: Operand) -> Operand:
    """Return a number as a literal where the operand is one, otherwise as a constant of its shape and dtype.

    Raises `DtypeError` for a dtype that need not hold it: the rule then does not apply.
    """
    if isinstance(operand, Literal):
        return Literal(number)
    if operand.aval.dtype.kind not in "fc":
        msg = f"{operand!r} is of a dtype that need not hold {number}"
        raise DtypeError(msg, operand=operand)
    return draft.full(number, operand.aval)


def is_real(number: Any) -> bool:
    """Whether a number is a Python int or float that floats hold."""
    return type(number) is float or (type(number) is int and abs(number) < 1 << 53)


def opposite(number: Any) -> Any:
    """Return a number with the other sign; 0 and False have none, -0.0 does."""
    return -number if number else -float(number)


def scaled(draft: Draft, a: Operand, b: Operand, aval: Aval) -> Operand | None:
    """Return the product of two constants, unless it overflows, or vanishes."""
    one, other = np.asarray(a.value), np.asarray(b.value)  # type: ignore[union-attr]
    with np.errstate(all="ignore"):
        found = np.multiply(one.astype(aval.dtype), other.astype(aval.dtype))
    lost = (np.abs(found) < np.finfo(aval.dtype).tiny) & (one != 0) & (other != 0)
    if lost.any() or not np.isfinite(found).all():
        return None
    both = isinstance(a, Literal) and isinstance(b, Literal)
    return Literal(found.item()) if both else draft.apply(Mul(), a, b)


def negated_of(draft: Draft, operand: Operand, aval: Aval) -> Any:
    """Return the negation that makes an operand, where its sign may move into a result of this aval.

    A sign of integers stays: they wrap around in their own dtype, which the result need not have.
    """
    made = draft.maker(operand, Neg)
    if made is None:
        return None
    dtype = aval_at(made.inputs[0]).dtype
    return made if dtype.kind in "fc" or dtype == aval.dtype else None


def inverted(draft: Draft, op: Operator, inputs: Inputs, aval: Aval) -> Operand | None:
    """Return x / c as a product."""
    x, divisor = inputs
    number = number_of(draft, divisor)
    if not is_real(number) or not number or not math.isfinite(number):
        return None
    if abs(math.frexp(number)[1]) >= EXPONENTS.get(aval.dtype.char, 0):
        return None
    return draft.apply(Mul(), x, like(draft, 1.0 / number, divisor))


# ------------------------------------------------------------------ exact


@exact.on(Mul, given=(Number,))
def mul_one(draft: Draft, op: Operator, inputs: Inputs, aval: Aval) -> Operand | None:
    """1 x = x, and -1 x = -x."""
    for factor, other in (inputs, inputs[::-1]):
        number = number_of(draft, factor)
        if number == 1 and aval.dtype.kind != "c":  # (1 + 0j) inf is NaN
            return other
        if number == -1 and aval.dtype.kind == "f":
            return draft.apply(Neg(), other)
    return None


@exact.on(Mul, given=(Neg,))
def mul_neg(draft: Draft, op: Operator, inputs: Inputs, aval: Aval) -> Operand | None:
    """(-a) b = -(a b), where the sign is not of a smaller array; a constant takes the sign."""
    for operand, other in (inputs, inputs[::-1]):
        negated = negated_of(draft, operand, aval)
        if negated is None or aval.dtype.kind != "f" or aval_at(operand).shape != aval.shape:
            continue
        number = number_of(draft, other)
        if number is not None:
            return draft.apply(Mul(), negated.inputs[0], like(draft, opposite(number), other))
        return draft.apply(Neg(), draft.apply(Mul(), negated.inputs[0], other))
    return None


@exact.on(Neg, given=(Neg, Mul))
def neg_product(draft: Draft, op: Operator, inputs: Inputs, aval: Aval) -> Operand | None:
    """-(-x) = x; -(c x) = (-c) x."""
    made = draft.maker(inputs[0], Neg, Mul)
    if made is None:
        return None
    if type(made.op) is Neg:
        return made.inputs[0]
    if draft.used_once(inputs[0]) and aval.dtype.kind == "f":
        for factor, other in (made.inputs, made.inputs[::-1]):
            number = number_of(draft, factor)
            if number is not None:
                return draft.apply(Mul(), other, like(draft, opposite(number), factor))
    return None


@exact.on(Add, given=(Neg, Number))
def add_neg(draft: Draft, op: Operator, inputs: Inputs, aval: Aval) -> Operand | None:
    """Write a + (-b) as a - b; x + (-0) is x."""
    for operand, other in (inputs, inputs[::-1]):
        negated = negated_of(draft, operand, aval)
        if negated is not None:
            return draft.apply(Sub(), other, negated.inputs[0])
        number = number_of(draft, operand)
        negative = type(number) is float and math.copysign(1.0, number) < 0 and aval.dtype.kind == "f"
        if number == 0 and (negative or aval.dtype.kind in "iu"):
            return other
    return None


@exact.on(Sub, given=(Neg, Number))
def sub_neg(draft: Draft, op: Operator, inputs: Inputs, aval: Aval) -> Operand | None:
    """Write a - (-b) as a + b; x - 0 is x."""
    negated = negated_of(draft, inputs[1], aval)
    if negated is not None:
        return draft.apply(Add(), inputs[0], negated.inputs[0])
    number = number_of(draft, inputs[1])
    positive = type(number) is int or (type(number) is float and math.copysign(1.0, number) > 0)
    return inputs[0] if number == 0 and positive else None


@exact.on(Div, given=(Neg, Number))
def div_exactly(draft: Draft, op: Operator, inputs: Inputs, aval: Aval) -> Operand | None:
    """Write (-a) / b as -(a / b), x / c as (1 / c) x for powers of two; x / 1 is x."""
    number = number_of(draft, inputs[1])
    if number == 1 and aval.dtype.kind != "c":
        return inputs[0]
    negated = negated_of(draft, inputs[0], aval)
    if negated is not None and aval.dtype.kind == "f" and aval_at(inputs[0]).shape == aval.shape:
        return draft.apply(Neg(), draft.apply(Div(), negated.inputs[0], inputs[1]))
    power_of_two = is_real(number) and math.isfinite(number) and abs(math.frexp(number)[0]) == 0.5
    return inverted(draft, op, inputs, aval) if power_of_two else None


# ------------------------------------------------------------------ up to rounding


@rounded.on(Pow, given=(Number,))
def small_powers(draft: Draft, op: Operator, inputs: Inputs, aval: Aval) -> Operand | None:
    """x**2, x**1, x**-1 without a power."""
    x, power = inputs
    number = number_of(draft, power)
    if aval.dtype.kind != "f" or aval_at(x) != aval:
        return None
    if number == 1:
        return x
    return draft.apply({2: Square(), -1: Reciprocal()}[number], x) if number in (2, -1) else None


@rounded.on(Sum, given=(BroadcastTo,))
def sum_of_equal(draft: Draft, op: Sum, inputs: Inputs, aval: Aval) -> Operand | None:
    """The sum of a number that was broadcast is a multiple of it, added to 0."""
    spread = draft.maker(inputs[0], BroadcastTo)
    if spread is None or aval_at(spread.inputs[0]).shape or aval.dtype.kind != "f":  # (3 + 0j) (inf + 0j) has a NaN
        return None
    count = math.prod(aval_at(inputs[0]).shape[axis] for axis in op.axis)  # type: ignore[misc]
    # a sum of nothing is 0, infinities times 0 are not; nor is 0 times what a float16 does not hold
    if not count or count > float(np.finfo(aval.dtype).max):
        return None
    total = draft.apply(Add(), draft.apply(Mul(), spread.inputs[0], Literal(float(count))), Literal(0.0))
    return draft.apply(make_broadcast_to(aval.shape), total) if aval.shape else total


# ------------------------------------------------------------------ up to rounding, where values are finite


@finite.on(Div)
def div_finite(draft: Draft, op: Operator, inputs: Inputs, aval: Aval) -> Operand | None:
    """Write x / c as (1 / c) x; y / y is 1."""
    if aval.dtype.kind not in "fc":
        return None
    return draft.full(1, aval) if inputs[0] is inputs[1] else inverted(draft, op, inputs, aval)


@finite.on(Sub)
def sub_finite(draft: Draft, op: Operator, inputs: Inputs, aval: Aval) -> Operand | None:
    """Write (-a) - b as -(a + b); x - x is 0."""
    if aval.dtype.kind not in "fc":
        return None
    if inputs[0] is inputs[1]:
        return draft.full(0, aval)
    negated = negated_of(draft, inputs[0], aval)
    return None if negated is None else draft.apply(Neg(), draft.apply(Add(), negated.inputs[0], inputs[1]))


@finite.on(Neg, given=(Sub,))
def neg_difference(draft: Draft, op: Operator, inputs: Inputs, aval: Aval) -> Operand | None:
    """-(a - b) = b - a."""
    made = draft.maker(inputs[0], Sub)
    if made is None or not draft.used_once(inputs[0]):
        return None
    return draft.apply(Sub(), made.inputs[1], made.inputs[0])


@finite.on(Add, given=(Number,))
def add_zero(draft: Draft, op: Operator, inputs: Inputs, aval: Aval) -> Operand | None:
    """Leave out + 0."""
    for operand, other in (inputs, inputs[::-1]):
        if number_of(draft, operand) == 0:
            return other
    return None


@finite.on(Add, given=(Mul,))
def add_itself(draft: Draft, op: Operator, inputs: Inputs, aval: Aval) -> Operand | None:
    """Write c x + c x as (2 c) x."""
    made = draft.maker(inputs[0], Mul) if inputs[0] is inputs[1] else None
    if made is None or aval.dtype.kind != "f" or not draft.used_once(inputs[0], times=2):
        return None
    for factor, other in (made.inputs, made.inputs[::-1]):
        if isinstance(factor, Literal | Constant):
            double = scaled(draft, factor, Literal(2.0), aval)
            return None if double is None else draft.apply(Mul(), double, other)
    return None


@finite.on(Mul, given=(Number, Constant))
def mul_constants(draft: Draft, op: Operator, inputs: Inputs, aval: Aval) -> Operand | None:
    """0 x = 0; c (d x) = (c d) x."""
    if aval.dtype.kind not in "fc":
        return None
    for factor, other in (inputs, inputs[::-1]):
        if number_of(draft, factor) == 0:
            return draft.full(0, aval)
        joins = isinstance(factor, Literal | Constant) and draft.used_once(other) and aval_at(other).dtype == aval.dtype
        made = draft.maker(other, Mul) if joins else None
        for inner, x in () if made is None else (made.inputs, made.inputs[::-1]):
            if isinstance(inner, Literal | Constant):
                product = scaled(draft, inner, factor, aval)
                return None if product is None else draft.apply(Mul(), product, x)
    return None


@finite.on(Log, given=(Exp, Add))
def log_of(draft: Draft, op: Operator, inputs: Inputs, aval: Aval) -> Operand | None:
    """log(exp x) = x; log(exp x + exp y), log(1 + exp y): what does not overflow."""
    made = draft.maker(inputs[0], Exp, Add)
    if made is None or aval.dtype.kind != "f":
        return None
    if type(made.op) is Exp:
        return made.inputs[0]
    powers = [exponent(draft, operand) for operand in made.inputs]
    x, y = powers
    return None if x is None or y is None else draft.apply(Logaddexp(), x, y)


def exponent(draft: Draft, operand: Operand) -> Operand | None:
    """Return x of exp(x), and 0 of 1."""
    made = draft.maker(operand, Exp)
    if made is not None:
        return made.inputs[0]
    return like(draft, 0.0, operand) if number_of(draft, operand) == 1 else None


@finite.on(Log1p, given=(Exp,))
def log1p_of(draft: Draft, op: Operator, inputs: Inputs, aval: Aval) -> Operand | None:
    """log(1 + exp x): what does not overflow."""
    made = draft.maker(inputs[0], Exp)
    if made is None or aval.dtype.kind != "f":
        return None
    return draft.apply(Logaddexp(), made.inputs[0], Literal(0.0))


@finite.on(Exp, given=(Log,))
def exp_of_log(draft: Draft, op: Operator, inputs: Inputs, aval: Aval) -> Operand | None:
    """exp(log x) = x."""
    made = draft.maker(inputs[0], Log)
    return made.inputs[0] if made is not None and aval.dtype.kind == "f" else None


@finite.on(Pow, given=(Number,))
def root(draft: Draft, op: Operator, inputs: Inputs, aval: Aval) -> Operand | None:
    """x**0.5 is a square root; at -0 and -inf it is not."""
    x, power = inputs
    is_root = number_of(draft, power) == 0.5 and aval.dtype.kind == "f" and aval_at(x) == aval
    return draft.apply(Sqrt(), x) if is_root else None


@finite.on(ScatterAdd)
def scatter_rows(draft: Draft, op: ScatterAdd, inputs: Inputs, aval: Aval) -> Operand | None:
    """0 + x = x: what is added into each row once is a stack."""
    places = [index[0] if len(index) == 1 and type(index[0]) is int else -1 for index in op.of]
    if not op.shape or sorted(places) != list(range(op.shape[0])) or len(inputs) != len(places):
        return None
    rows = dict(zip(places, inputs, strict=True))
    return draft.apply(make_stack(0), *[rows[place] for place in range(len(rows))])


# ------------------------------------------------------------------ factors


@factored.on(Add, Mul, given=(Add, Mul))
def late_one_last(draft: Draft, op: Operator, inputs: Inputs, aval: Aval) -> Operand | None:
    """(x a) b = x (a b), where x is known later than a and b, one of which is given; and for sums."""
    if aval.dtype.kind != "f" or not is_row(aval):
        return None
    for first, b in (inputs, inputs[::-1]):
        made = draft.maker(first, type(op))
        if made is None or not draft.used_once(first) or aval_at(first) != aval:
            continue
        x, a = sorted(made.inputs, key=draft.depth, reverse=True)
        early = sorted((draft.depth(a), draft.depth(b)))
        if aval_at(x) == aval and draft.depth(x) > early[1] > early[0] == 0:
            return draft.apply(op, x, draft.apply(op, a, b))
    return None


@factored.on(Sub, given=(Mul,))
def one_minus(draft: Draft, op: Operator, inputs: Inputs, aval: Aval) -> Operand | None:
    """Write x - (x a) b as x (1 - a b): the factor does not depend on x, which may be what a loop carries."""
    x, product = inputs
    outer = draft.maker(product, Mul)
    if outer is None or isinstance(x, Literal) or not draft.used_once(product):
        return None
    if not is_row(aval) or aval.dtype.kind not in "fc":
        return None
    for scaled, b in (outer.inputs, outer.inputs[::-1]):
        made = draft.maker(scaled, Mul)
        if made is None or not draft.used_once(scaled) or x not in made.inputs:
            continue
        a = made.inputs[1] if made.inputs[0] is x else made.inputs[0]
        one = draft.full(1, Aval((), aval.dtype))
        factor = draft.apply(Sub(), one, draft.apply(Mul(), a, b))
        return draft.apply(Mul(), x, factor)
    return None
