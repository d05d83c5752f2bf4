"""`check_operator`: the contract of an operator and of its rules first, then the numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from xform.core.aval import Aval, aval_of
from xform.core.errors import XformError
from xform.core.operator import Operator
from xform.core.rules import RuleTable, batch_rule, jvp_of, jvp_rule, vjp_of, vjp_rule
from xform.core.stack import apply
from xform.testing.batching import check_batch
from xform.testing.gradients import Problem, check_problem, curved, is_floating
from xform.testing.libraries import check_library
from xform.testing.numeric import cotangent_like, numbers, require_equal, tangent_at, tolerance

__all__ = ["check_contract", "check_operator"]

Arrays = tuple[Any, ...]
Pair = tuple[Arrays, Arrays]


def check_operator(op: Operator, *arrays: Any, order: int = 2, libraries: bool = True) -> None:
    """Check an operator on operands within its domain; raises `AssertionError` naming operator, operand, mode, order.

    1. `infer` gives shape and dtype of what `evaluate` gives, in single and double precision, also where a dimension is
       unknown.
    2. The reverse rule returns one cotangent for each operand, of the operand's shape and dtype; the forward rule a
       tangent of the result's; the two agree: <ct, J t> = <J^T ct, t>.
    3. Both agree with finite differences, up to `order`; from the second order on also between two curved functions,
       where errors in the derivatives of linear rules show.
    4. The batch rule equals a loop, whichever operands are batched, and so do its derivatives, up to `order`.
    5. `evaluate` gives the same on array-api-strict, where that is installed (`libraries=False` leaves it out).

    A rule that is none on purpose is not checked; one that is missing is an error.

    >>> import numpy as np, xform as xf
    >>> check_operator(xf.ops.Mul(), np.array([1.0, 2.0]), np.array(3.0))
    """
    for variant in variants(arrays):
        check_contract(op, variant, libraries=libraries)
    modes = tuple(mode for mode, table in (("fwd", jvp_rule), ("rev", vjp_rule)) if table.state(type(op)) == "rule")
    if modes and differentiable(op, arrays):
        check_problem(problem_of(op, arrays), order, modes)
        if order > 1:
            check_problem(curved(problem_of(op, arrays)), order, modes)
    if has_rule(op, batch_rule):
        for variant in variants(arrays):
            check_batch(op, variant, order)


def check_contract(op: Operator, arrays: Arrays, *, libraries: bool = True) -> None:
    """Check types, the structure of the derivatives, and the other library, on these operands alone."""
    out = results(op, op.evaluate(np, *arrays))
    check_infer(op, arrays, out)
    has_vjp, has_jvp = has_rule(op, vjp_rule), has_rule(op, jvp_rule)
    if differentiable(op, arrays):
        pulled = check_vjp(op, arrays, out) if has_vjp else None
        pushed = check_jvp(op, arrays, out) if has_jvp else None
        if pulled is not None and pushed is not None:
            check_transposed(op, arrays, pulled, pushed)
    if libraries and not op.attribute_like:
        check_library(op, arrays, out)


def fail(op: Operator, what: str) -> NoReturn:
    """Raise, naming the operator."""
    raise AssertionError(f"{op!r}: {what}")


def results(op: Operator, out: Any) -> Arrays:
    """Return the results of an operator as a tuple."""
    if not op.multiple_outputs:
        return (out,)
    if not isinstance(out, tuple):
        fail(op, f"multiple_outputs is True, but it returned {type(out).__name__}, no tuple")
    return out


def variants(arrays: Arrays) -> Iterator[Arrays]:
    """Give the operands as they are, and with floating arrays in the other of single and double precision."""
    yield arrays
    others = {"f": "d", "d": "f", "F": "D", "D": "F"}
    other = tuple(
        x.astype(others[x.dtype.char]) if isinstance(x, np.ndarray | np.generic) and x.dtype.char in others else x
        for x in arrays
    )
    if any(a is not b for a, b in zip(arrays, other, strict=True)):
        yield other


def differentiable(op: Operator, arrays: Arrays) -> bool:
    """Whether an operand and a result are floating."""
    return any(map(is_floating, arrays)) and any(map(is_floating, results(op, op.evaluate(np, *arrays))))


def problem_of(op: Operator, arrays: Arrays) -> Problem:
    """Return an operator as a function of its floating operands."""
    places = [i for i, x in enumerate(arrays) if is_floating(x)]

    def flat(*xs: Any) -> Arrays:
        full = list(arrays)
        for i, x in zip(places, xs, strict=True):
            full[i] = x
        return tuple(filter(is_floating, results(op, apply(op, *full))))

    count = len(flat(*[arrays[i] for i in places]))
    outputs = ("the result",) if count == 1 else tuple(f"result {i}" for i in range(count))
    return Problem(repr(op), flat, tuple(arrays[i] for i in places), tuple(f"operand {i}" for i in places), outputs)


# ------------------------------------------------------------------ the contract, part by part


def has_rule(op: Operator, table: RuleTable) -> bool:
    """Whether a table has a rule; raises where it is missing, or none without a reason."""
    kind = type(op)
    state = table.state(kind)
    if state == "missing":
        none = f"{table.name}_rule.none({kind.__name__}, why=...)"
        fail(op, f"has no {table.name} rule; write one, or say why not: {none}")
    if state == "none" and not table.rules[kind].why.strip():
        fail(op, f"{table.name}_rule.none needs a reason: why=...")
    return state == "rule"


def check_infer(op: Operator, arrays: Arrays, out: Arrays) -> None:
    """Hold `infer` against `evaluate`, with all dimensions known and with those of one operand unknown."""
    avals = tuple(map(aval_of, arrays))
    wanted = tuple(map(aval_of, out))
    if op.kernel is not None:
        for want, each in zip(wanted, results(op, type(op).kernel(*arrays)), strict=True):  # type: ignore[misc]
            if not same(aval_of(each), want):
                fail(op, f"kernel gives {aval_of(each)!r}, evaluate {want!r}")
    inferred = results(op, op.infer(*avals))
    if len(inferred) != len(wanted):
        fail(op, f"infer gives {len(inferred)} results, evaluate {len(wanted)}")
    for position, (got, want) in enumerate(zip(inferred, wanted, strict=True)):
        if not fits(got, want):
            fail(op, f"infer gives {got!r} for result {position}, evaluate {want!r} (operands {avals})")
    for operand, aval in enumerate(avals):
        if aval.shape:
            check_unknown(op, avals, operand, wanted)


def check_unknown(op: Operator, avals: tuple[Aval, ...], operand: int, wanted: tuple[Aval, ...]) -> None:
    """Check that `infer` claims nothing wrong where the shape of one operand is unknown."""
    blank = Aval((None,) * avals[operand].ndim, avals[operand].dtype)
    try:
        inferred = results(op, op.infer(*avals[:operand], blank, *avals[operand + 1 :]))
    except XformError:  # an operator may need a shape, and say so
        return
    except Exception as error:  # noqa: BLE001  (any other error is a flaw of infer, whatever its type)
        fail(op, f"infer raised {error!r} where the shape of operand {operand} is unknown: {blank!r}")
    for got, want in zip(inferred, wanted, strict=True):
        if not fits(got, want):
            fail(op, f"infer gives {got!r} where the shape of operand {operand} is unknown; it may be {want!r}")


def fits(got: Aval, want: Aval) -> bool:
    """Whether what was inferred is true; what depends on the data (the length of a mask's selection) may be unknown."""
    if len(got.shape) != len(want.shape) or got.dtype != want.dtype:
        return False
    return all(g in (None, w) for g, w in zip(got.shape, want.shape, strict=True))


def same(got: Aval, want: Aval) -> bool:
    """Whether two avals have the same shape and dtype."""
    return got.shape == want.shape and got.dtype == want.dtype


def same_numbers(op: Operator, what: str, got: Sequence[Any], want: Sequence[Any]) -> None:
    """Raise where a rule computes another result than the operator."""
    if len(got) != len(want):
        fail(op, f"{what} gives {len(got)} results, evaluate {len(want)}")
    for mine, theirs in zip(got, want, strict=True):
        require_equal(f"{op!r}: the result of {what}", mine, theirs, "of evaluate")


def check_vjp(op: Operator, arrays: Arrays, out: Arrays) -> tuple[Arrays, Arrays]:
    """Check what the reverse rule returns, for all operands and for one at a time; return cotangents in and out."""
    floating = [i for i, x in enumerate(arrays) if is_floating(x)]
    rng = np.random.default_rng(5)
    given = tuple(cotangent_like(each, rng) if is_floating(each) else np.zeros_like(each) for each in out)
    found = pullback_of(op, arrays, floating, out)(given if op.multiple_outputs else given[0])
    check_cotangents(op, arrays, floating, found)
    for alone in floating if len(floating) > 1 else ():
        part = pullback_of(op, arrays, [alone], out)(given if op.multiple_outputs else given[0])
        check_cotangents(op, arrays, [alone], part)
        if part[alone] is not None and found[alone] is not None:
            same_numbers(op, f"the vjp rule with operand {alone} alone needed", [part[alone]], [found[alone]])
    return given, found


def pullback_of(op: Operator, arrays: Arrays, places: Sequence[int], out: Arrays) -> Callable[[Any], Any]:
    """Run the reverse rule with some operands needed, and return its pullback."""
    rule = vjp_of(op)
    made = rule(op, tuple(i in places for i in range(len(arrays))), *arrays)
    if not isinstance(made, tuple) or len(made) != 2 or not callable(made[1]):
        fail(op, f"the vjp rule must return (out, pullback), got {made!r:.80}")
    same_numbers(op, "the vjp rule", results(op, made[0]), out)
    return made[1]  # type: ignore[no-any-return]


def check_cotangents(op: Operator, arrays: Arrays, places: Sequence[int], found: Any) -> None:
    """Check that there is one cotangent for each operand, of its shape and dtype."""
    if not isinstance(found, tuple):
        fail(op, f"the pullback must return a tuple, got {type(found).__name__}")
    if len(found) != len(arrays):
        fail(op, f"the pullback returned {len(found)} cotangents for {len(arrays)} operands")
    for i in places:
        if found[i] is not None and not same(aval_of(found[i]), aval_of(arrays[i])):
            fail(op, f"the cotangent of operand {i} is {aval_of(found[i])!r}, its primal {aval_of(arrays[i])!r}")


def check_jvp(op: Operator, arrays: Arrays, out: Arrays) -> tuple[Arrays, Arrays]:
    """Check what the forward rule returns, for all operands and for one at a time; return tangents in and out."""
    rng = np.random.default_rng(6)
    tangents = tuple(tangent_at(x, rng) if is_floating(x) else None for x in arrays)
    floating = [i for i, t in enumerate(tangents) if t is not None]
    found = pushed(op, arrays, tangents, out)
    for alone in floating if len(floating) > 1 else ():
        pushed(op, arrays, tuple(t if i == alone else None for i, t in enumerate(tangents)), out)
    return tangents, found


def pushed(op: Operator, arrays: Arrays, tangents: Arrays, out: Arrays) -> Arrays:
    """Run the forward rule, and return one tangent or None for each result."""
    made = jvp_of(op)(op, arrays, tangents)
    if not isinstance(made, tuple) or len(made) != 2:
        fail(op, f"the jvp rule must return (out, tangent), got {made!r:.80}")
    same_numbers(op, "the jvp rule", results(op, made[0]), out)
    found: Arrays = (None,) * len(out) if made[1] is None else results(op, made[1])
    if len(found) != len(out):
        fail(op, f"the jvp rule returned {len(found)} tangents for {len(out)} results")
    for position, (tangent, each) in enumerate(zip(found, out, strict=True)):
        if tangent is not None and is_floating(each) and not same(aval_of(tangent), aval_of(each)):
            fail(op, f"the tangent of result {position} is {aval_of(tangent)!r}, its primal {aval_of(each)!r}")
    return found


def check_transposed(op: Operator, arrays: Arrays, pulled: Pair, pushed: Pair) -> None:
    """Check <cotangent, J tangent> = <J^T cotangent, tangent>."""
    (cotangents, found), (tangents, moved) = pulled, pushed
    left, left_scale = product(cotangents, moved)
    right, right_scale = product(found, tangents)
    rtol = tolerance([x for x in arrays if is_floating(x)])
    if not abs(left - right) <= rtol * max(left_scale, right_scale, 1e-3):
        fail(op, f"vjp and jvp rule disagree: <ct, J t> = {left}, <J^T ct, t> = {right}")


def product(these: Arrays, those: Arrays) -> tuple[float, float]:
    """Return the sum of the products of two tuples, and the sum of their magnitudes; None is zero."""
    parts = [numbers(a) * numbers(b) for a, b in zip(these, those, strict=True) if a is not None and b is not None]
    return float(sum(np.sum(p).real for p in parts)), float(sum(np.sum(np.abs(p)) for p in parts))
