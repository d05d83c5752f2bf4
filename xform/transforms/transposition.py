"""Linear maps run backward.

The tangent map of a forward rule gives the reverse rule, and the pullback of a reverse rule the forward one. The map is
recorded on abstract inputs, so that nothing is computed for it, and walked as a tape is. Where a device matters or a
length is unknown, the inputs are zeros: abstract values are on no device, and broadcasting needs a value then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xform import tree
from xform.core.aval import aval_of
from xform.core.devices import to_host
from xform.core.errors import EscapedValueError, HostReadError, RuleError
from xform.core.operator import Operator
from xform.core.stack import concrete
from xform.ops.create import zeros_like
from xform.transforms.affine import adds_something
from xform.transforms.forward import LinearTrace
from xform.transforms.grad import Grad
from xform.transforms.operands import is_bare, taken_in
from xform.transforms.plans import CALL, home_of
from xform.transforms.recorder import TraceValue
from xform.transforms.recording import is_inexact
from xform.transforms.regions import Journal
from xform.transforms.straight import GradValue
from xform.transforms.tape import collect

__all__ = ["Transposition", "transposed"]

LinearMap = Callable[[list[Any]], tuple[Any, Sequence[Any]]]
Pull = Callable[[Sequence[Any]], list[Any]]
#: how large the numbers are that tell whether a map is linear
SIZES = (1.0, 1000.0)
#: what rounding may do to them, as a part of the largest
TOLERANCE = {"e": 0.05, "f": 1e-4, "d": 1e-9, "g": 1e-9, "F": 1e-4, "D": 1e-9, "G": 1e-9}


class Transposition(Grad):
    """The tape that a linear map is recorded on: what nothing flows to gets None instead of zeros."""

    def _delivered(self, leaf: GradValue, cotangent: Any) -> Any:
        return cotangent

    def has_programs(self, outs: Sequence[Any]) -> bool:
        """Whether outs come from an operation that holds others: a loop, an equation, a checkpoint."""
        entries = collect([own.entry for out in outs if (own := self._own(out)) is not None])
        ops = [entry[2][2] for entry in entries if entry is not None and entry[1] == CALL]
        return any(op.nests or isinstance(op, Journal) for op in ops)


def transposed(linear: LinearMap, likes: Sequence[Any], wrong: str, *, placed: bool) -> tuple[Any, Pull]:
    """Record `linear(inputs) -> (extra, outs)`; return `extra`, and the function from cotangents of outs to inputs'.

    An input is abstract, of shape and dtype of its `like`; None for a `like` of None or of integers. Outs and
    cotangents may be None for zero, and so may what comes back. `placed` says that the map runs under a layer of its
    own, a device say. Raises `RuleError`, which begins with `wrong`, where it reads its inputs or is not linear.
    """
    recorder = LinearTrace(abstract=True)
    with recorder, Transposition() as tape:
        inputs = [
            None if like is None or not is_inexact(like) else tape.attach(start(recorder, like, placed=placed))
            for like in likes
        ]
        try:
            extra, outs = linear(inputs)
        except HostReadError as error:
            if getattr(getattr(error, "value", None), "owner", None) not in (recorder, tape):
                raise
            msg = f"{wrong} reads one: {error}"
            raise RuleError(msg, **error.payload) from error
    plain = [each for out in outs if isinstance(each := tape.unwrap(out), TraceValue)]
    if (op := adds_something(recorder.equations, [each.variable for each in plain], linear, likes)) is not None:
        raise RuleError(f"{wrong} adds something that does not depend on them, in {op!r}")
    if not placed and tape.has_programs(outs):
        if is_linear(linear, likes) is False:  # None inside of what is recorded: there are no numbers to try it with
            raise RuleError(f"{wrong} does not take sums to sums")
        return transposed(linear, likes, wrong, placed=True)  # what a loop saves of its rounds has to be computed
    tape.foreign = True  # the residuals are lifted, so the walk goes through `apply`
    handles = [x for x in inputs if x is not None]
    rows = [place for place, out in enumerate(outs) if tape.is_attached(out)]

    def pull(cotangents: Sequence[Any]) -> list[Any]:
        given = [cotangents[place] for place in rows]
        try:
            found = iter(tape.gradients([outs[place] for place in rows], handles, given, retain=True))
        except EscapedValueError as error:
            if getattr(error, "owner", None) is not recorder:
                raise
            raise RuleError(f"{wrong} has {operator_of(error)}, which is not linear", **error.payload) from error
        bare = is_bare(None)
        parts = [None if x is None else next(found) for x in inputs]
        return [None if part is None else taken_in(part, bare=bare) for part in parts]

    return tree.map(tape.unwrap, extra), pull


def start(recorder: LinearTrace, like: Any, *, placed: bool) -> Any:
    """Return an input of a linear map, of shape and dtype of a value."""
    aval = aval_of(like)
    if placed or None in aval.shape or home_of(like) != "cpu":
        return zeros_like(like)
    return recorder.input(aval)


def is_linear(linear: LinearMap, likes: Sequence[Any]) -> bool | None:
    """Whether a map takes sums of random numbers, small and large, to sums; None where it gives no numbers.

    Each operation of a record is known to be linear or not; a loop is one operation, and so is what runs again.
    """
    rng = np.random.default_rng(0)

    def drawn(size: float) -> list[Any]:
        return [None if like is None or not is_inexact(like) else random_like(like, size, rng) for like in likes]

    def added(xs: list[Any], ys: list[Any]) -> list[Any]:
        return [None if x is None else x + y for x, y in zip(xs, ys, strict=True)]

    first = drawn(1.0)
    parts = linear(first)[1]
    for size in SIZES:
        second = drawn(size)
        for x, y, both in zip(parts, linear(second)[1], linear(added(first, second))[1], strict=True):
            fits = is_sum(x, y, both)
            if not fits:
                return fits
    return True


def is_sum(x: Any, y: Any, both: Any) -> bool | None:
    """Whether numbers are the sum of two others, up to rounding; None where they are none, or not finite."""
    if x is None and y is None and both is None:
        return True
    raw = [concrete(each) for each in (x, y, both)]
    if any(each is None for each in raw):
        return None
    first, second, have = [np.asarray(to_host(each)) for each in raw]
    want = first + second
    if not np.isfinite(want).all():
        return None
    largest = max(np.max(np.abs(each), initial=0.0) for each in (first, second, want))
    fits = have.shape == want.shape and np.max(np.abs(have - want), initial=0.0) <= largest * TOLERANCE[want.dtype.char]
    return bool(fits)


def random_like(like: Any, size: float, rng: np.random.Generator) -> Any:
    """Return random numbers of shape and dtype of a value, on its device."""
    shape = tuple([1 if length is None else length for length in aval_of(like).shape])
    return zeros_like(like) + np.asarray(rng.normal(size=shape) * size, aval_of(like).dtype)


def operator_of(error: EscapedValueError) -> str:
    """Return the name of the operator that an error speaks of."""
    op = getattr(error, "op", None)
    return op.name if isinstance(op, Operator) else "an operator"
