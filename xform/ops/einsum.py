"""Einsum: sums of products of any number of operands, over named axes.

1. The operator's subscripts are explicit: letters for every axis (an ellipsis was replaced), and an output.
2. A letter that an operand repeats takes the diagonal. The operator also takes what `np.einsum` does not: an output
   that repeats a letter lies on the diagonal, with zeros beside it. So the transpose of an einsum is an einsum.
3. Lengths of one letter are equal or 1, as in NumPy.
4. The order of contraction is that of `np.einsum_path`, found once for each set of shapes, or the plain loop where the
   whole is small.
"""

from __future__ import annotations

import functools
import math
import string
from typing import Any

import attrs
import numpy as np

from xform.core.aval import Aval, shape_of
from xform.core.errors import OperandError, ShapeError
from xform.core.operator import Operator, interned
from xform.core.rules import batch_rule, jvp_rule, like_of, settle, vjp_rule
from xform.core.stack import apply
from xform.ops.broadcast import broadcast_like
from xform.ops.create import ones_like
from xform.ops.einsum_lowering import contract_all, embed
from xform.ops.reductions import Sum
from xform.ops.shapes import expand_dims, front

__all__ = ["Einsum", "einsum"]

LETTERS = string.ascii_letters
#: below so many products the plain loop is faster than any plan (measured: 10 us of planning)
SMALL = 8192


@attrs.frozen
class Einsum(Operator):
    """Sums of products; `subscripts` are explicit, `optimize` is False, True, "greedy", "optimal" or a path."""

    subscripts: str
    optimize: Any = True

    def infer(self, *avals: Aval) -> Aval:
        """The lengths of the output's letters, and NumPy's dtype of the product."""
        inputs, out = split(self.subscripts)
        lengths = lengths_of(self.subscripts, inputs, [aval.shape for aval in avals])
        return Aval(tuple(lengths[letter] for letter in out), np.result_type(*[aval.dtype for aval in avals]))

    def evaluate(self, xp: Any, *arrays: Any) -> Any:
        """Compute on raw arrays."""
        inputs, out = split(self.subscripts)
        unique = "".join(dict.fromkeys(out))
        if hasattr(xp, "einsum"):
            plain = self.subscripts if unique == out else f"{','.join(inputs)}->{unique}"
            found = xp.einsum(plain, *arrays, optimize=self.path(plain, arrays))
        else:
            found = contract_all(xp, inputs, unique, arrays)
        return found if unique == out else embed(xp, found, out)

    def path(self, plain: str, arrays: tuple[Any, ...]) -> Any:
        """Return what `np.einsum` takes as `optimize`."""
        if self.optimize is False or len(arrays) == 1:
            return False
        return contraction_path(plain, self.optimize, tuple([np.shape(array) for array in arrays]))


make_einsum = interned(Einsum)


@functools.lru_cache(maxsize=1024)
def contraction_path(subscripts: str, optimize: Any, shapes: tuple[tuple[int, ...], ...]) -> Any:
    """Return the order of contraction for these shapes, or False where the plain loop is best."""
    if isinstance(optimize, tuple):
        return list(optimize)
    lengths = lengths_of(subscripts, split(subscripts)[0], list(shapes))
    if math.prod(lengths.values()) <= SMALL:  # type: ignore[arg-type]
        return False
    stand_ins = [np.broadcast_to(np.float64(0), shape) for shape in shapes]
    return np.einsum_path(subscripts, *stand_ins, optimize=optimize)[0]


@functools.lru_cache(maxsize=1024)
def split(subscripts: str) -> tuple[tuple[str, ...], str]:
    """Return the letters of each operand, and of the output.

    >>> split("ij,jk->ik")
    (('ij', 'jk'), 'ik')
    """
    left, out = subscripts.split("->")
    return tuple(left.split(",")), out


def lengths_of(subscripts: str, inputs: tuple[str, ...], shapes: list[tuple[Any, ...]]) -> dict[str, int | None]:
    """Return the length of each letter; raises `ShapeError` naming the operand that does not fit."""
    lengths: dict[str, int | None] = {}
    if len(inputs) != len(shapes):
        msg = f"einsum: subscripts {subscripts!r} name {len(inputs)} operands, {len(shapes)} were given"
        raise OperandError(msg, subscripts=subscripts)
    for position, (letters, shape) in enumerate(zip(inputs, shapes, strict=True)):
        if len(letters) != len(shape):
            msg = f"einsum: operand {position} has {len(shape)} axes, {subscripts!r} names {len(letters)}: {letters!r}"
            raise ShapeError(msg, subscripts=subscripts)
        own: dict[str, int | None] = {}
        for letter, length in zip(letters, shape, strict=True):
            have = own.get(letter)
            if have is not None and length is not None and have != length:
                msg = f"einsum: operand {position} has lengths {have} and {length} for {letter!r} ({subscripts!r})"
                raise ShapeError(msg, subscripts=subscripts)
            own[letter] = have if length is None else length
        for letter, length in own.items():
            have = lengths.get(letter, 1)
            if have == 1 or (have is None and length != 1):
                lengths[letter] = length
            elif length not in (1, None, have):
                msg = f"einsum: operand {position} has length {length} for {letter!r}, others {have} ({subscripts!r})"
                raise ShapeError(msg, subscripts=subscripts)
    return lengths


# ------------------------------------------------------------------ subscripts as users write them


@functools.lru_cache(maxsize=1024)
def explicit(subscripts: str, ndims: tuple[int, ...]) -> str:
    """Return subscripts with an output and without ellipses; raises `OperandError` for what is no einsum.

    >>> explicit("ij,jk", (2, 2)), explicit("b...a->...", (3,))
    ('ij,jk->ik', 'bZa->Z')
    """
    text = subscripts.replace(" ", "")
    left, arrow, out = text.partition("->")
    terms = left.split(",")
    unknown = set(text.replace("...", "")) - set(LETTERS) - set(",->")
    if unknown or out.count(",") or "-" in left or ">" in left or len(terms) != len(ndims):
        why = f"{sorted(unknown)} are no letters" if unknown else f"{len(ndims)} operands were given"
        msg = f"einsum: cannot read subscripts {subscripts!r}: {why}"
        raise OperandError(msg, subscripts=subscripts)
    extra = [_ellipsis_length(*each) for each in zip(terms, ndims, range(len(terms)), strict=True)]
    most = max(extra, default=0)
    spare = [letter for letter in reversed(LETTERS) if letter not in text][:most]
    filler = "".join(sorted(spare))
    if len(filler) < most:
        msg = f"einsum: {subscripts!r} needs more than {len(LETTERS)} letters"
        raise OperandError(msg, subscripts=subscripts)
    named = [term.replace("...", filler[most - count :]) for term, count in zip(terms, extra, strict=True)]
    if not arrow:
        counted = "".join(terms).replace("...", "")
        out = filler + "".join(sorted(letter for letter in set(counted) if counted.count(letter) == 1))
    elif "..." in out:
        out = out.replace("...", filler)
    elif most:
        msg = f"einsum: {subscripts!r}: the operands have axes under '...'; write '...' in the output too"
        raise OperandError(msg, subscripts=subscripts)
    check_output(subscripts, "".join(named), out)
    return f"{','.join(named)}->{out}"


def _ellipsis_length(term: str, ndim: int, position: int) -> int:
    """Return how many axes an ellipsis stands for."""
    letters = term.replace("...", "", 1)
    if "." in letters or (len(letters) > ndim if "..." in term else len(letters) != ndim):
        msg = f"einsum: operand {position} has {ndim} axes, its subscripts are {term!r}"
        raise ShapeError(msg, subscripts=term)
    return ndim - len(letters)


def check_output(subscripts: str, given: str, out: str) -> None:
    """Raise `OperandError` for an output letter that no operand has, or that stands twice."""
    wrong = [letter for letter in out if letter not in given or out.count(letter) > 1]
    if wrong:
        msg = f"einsum: output letter {wrong[0]!r} of {subscripts!r} stands twice, or in no operand"
        raise OperandError(msg, subscripts=subscripts, letter=wrong[0])


def from_sublists(arguments: tuple[Any, ...]) -> tuple[str, list[Any]]:
    """Turn `(x, [0, 1], y, [1, 2], [0, 2])` into subscripts and operands."""
    arguments, out = (arguments[:-1], arguments[-1]) if len(arguments) % 2 else (arguments, None)

    def term(labels: Any) -> str:
        return "".join("..." if label is Ellipsis else LETTERS[label] for label in labels)

    text = ",".join(term(labels) for labels in arguments[1::2])
    return (text if out is None else f"{text}->{term(out)}"), list(arguments[::2])


def einsum(*operands: Any, optimize: Any = True) -> Any:
    """Sum products of operands over named axes: `einsum("ij,jk->ik", x, y)`.

    Ellipses broadcast, a repeated letter takes a diagonal, an output left out is the letters that stand once, sorted;
    the form `einsum(x, [0, 1], y, [1, 2])` works too. `optimize` is False, True, "greedy", "optimal" or a path of
    `np.einsum_path`. Raises `ShapeError` and `OperandError` naming the operand.

    >>> einsum("ij,kj->ik", np.ones((2, 3)), np.ones((4, 3))).shape
    (2, 4)
    """
    if not operands:
        msg = 'einsum: give subscripts and operands, as in einsum("ij,jk->ik", x, y)'
        raise OperandError(msg)
    subscripts, values = (operands[0], list(operands[1:])) if isinstance(operands[0], str) else from_sublists(operands)
    text = explicit(subscripts, tuple([len(shape_of(x)) for x in values]))
    return apply(make_einsum(text, tuple(optimize) if isinstance(optimize, list) else optimize), *values)


# ------------------------------------------------------------------ rules


@vjp_rule(Einsum)
def einsum_vjp(op: Einsum, needed: tuple[bool, ...], *primals: Any) -> tuple[Any, Any]:
    """Each cotangent is the einsum of the output's and the other operands."""
    inputs = split(op.subscripts)[0]
    kept = [x if any(need for j, need in enumerate(needed) if j != i) else None for i, x in enumerate(primals)]
    # an operand that takes a diagonal is kept: its cotangent lies on the diagonal of its own shape
    likes = [
        x if need and len(set(letters)) < len(letters) else like_of(x) if need else None
        for x, letters, need in zip(primals, inputs, needed, strict=True)
    ]

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        return tuple(cotangent_of(op, i, cotangent, kept, likes[i]) if need else None for i, need in enumerate(needed))

    return apply(op, *primals), pullback


def cotangent_of(op: Einsum, operand: int, t: Any, values: list[Any], like: Any) -> Any:
    """Return the cotangent of one operand."""
    inputs, out = split(op.subscripts)
    own = inputs[operand]
    terms = [out, *(letters for i, letters in enumerate(inputs) if i != operand)]
    others = [x for i, x in enumerate(values) if i != operand]
    optimize = op.optimize if not isinstance(op.optimize, tuple) else True
    if len(set(own)) < len(own):
        terms.append(own)
        others.append(ones_like(like))
    at_hand = set("".join(terms))
    absent = tuple(i for i, letter in enumerate(own) if letter not in at_hand)
    target = "".join(letter for letter in own if letter in at_hand)
    subscripts = f"{','.join(terms)}->{target}"
    found = t if subscripts == f"{target}->{target}" else apply(make_einsum(subscripts, optimize), t, *others)
    if absent:
        found = broadcast_like(expand_dims(found, absent), like)
    lengths = list(enumerate(zip(shape_of(found), shape_of(like), strict=True)))
    summed = tuple([axis for axis, (have, want) in lengths if want == 1 and have not in (1, None)])
    if summed and any(have == 1 and want not in (1, None) for _, (have, want) in lengths):
        found = broadcast_like(apply(Sum(summed, keepdims=True), found), like)
    return settle(found, like)


@jvp_rule(Einsum)
def einsum_jvp(op: Einsum, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """The product rule."""
    total = None
    for i, tangent in enumerate(tangents):
        if tangent is not None:
            part = apply(op, *primals[:i], tangent, *primals[i + 1 :])
            total = part if total is None else total + part
    return apply(op, *primals), total


@batch_rule(Einsum)
def einsum_batch(op: Einsum, size: int, values: tuple[Any, ...], axes: tuple[int | None, ...]) -> tuple[Any, int]:
    """Batch: one more letter, in front."""
    inputs, out = split(op.subscripts)
    letter = next(each for each in LETTERS if each not in op.subscripts)
    terms = [letters if at is None else letter + letters for letters, at in zip(inputs, axes, strict=True)]
    moved = [x if at is None else front(x, at) for x, at in zip(values, axes, strict=True)]
    optimize = op.optimize if not isinstance(op.optimize, tuple) else True
    return apply(make_einsum(f"{','.join(terms)}->{letter}{out}", optimize), *moved), 0
