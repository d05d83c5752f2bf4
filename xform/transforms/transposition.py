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
from xform.transforms.forward import LinearTrace
from xform.transforms.grad import Grad
from xform.transforms.operands import is_bare, taken_in
from xform.transforms.plans import CALL, home_of
from xform.transforms.recording import is_inexact
from xform.transforms.regions import Journal
from xform.transforms.straight import GradValue
from xform.transforms.tape import collect

__all__ = ["Transposition", "transposed"]

LinearMap = Callable[[list[Any]], tuple[Any, Sequence[Any]]]
Pull = Callable[[Sequence[Any]], list[Any]]
#: what numbers are multiplied by, to see whether a map is linear
FACTORS = (-2.0, 4096.0)


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
    if not placed and tape.has_programs(outs):
        if is_linear(linear, likes) is False:
            raise not_linear(wrong, "a product of them")
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
            raise not_linear(wrong, operator_of(error), **error.payload) from error
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
    """Whether a map of random numbers, small and large and of both signs, grows as they do; None where it gives none.

    Each operation of a record is known to be linear or not; a loop is one operation, and so is what runs again.
    """
    rng = np.random.default_rng(0)
    drawn = [None if like is None or not is_inexact(like) else random_like(like, rng) for like in likes]
    once = linear(drawn)[1]
    for factor in FACTORS:
        scaled = linear([None if x is None else x * factor for x in drawn])[1]
        for first, second in zip(once, scaled, strict=True):
            if first is None and second is None:
                continue
            raw = concrete(first), concrete(second)
            if raw[0] is None or raw[1] is None:
                return None
            want, have = factor * np.asarray(to_host(raw[0])), np.asarray(to_host(raw[1]))
            if not np.isfinite(want).all():
                return None
            bound = np.max(np.abs(want), initial=0.0) * np.sqrt(np.finfo(want.dtype).eps)
            if have.shape != want.shape or not np.max(np.abs(have - want), initial=0.0) <= bound:
                return False
    return True


def random_like(like: Any, rng: np.random.Generator) -> Any:
    """Return random numbers of shape and dtype of a value, on its device."""
    zeros = zeros_like(like)
    shape = tuple([1 if length is None else length for length in aval_of(like).shape])
    return zeros + np.asarray(rng.normal(size=shape), aval_of(like).dtype)


def not_linear(wrong: str, operator: str, **payload: Any) -> RuleError:
    """Make the error for a map that multiplies its inputs."""
    return RuleError(f"{wrong} has {operator}, which is not linear", **payload)


def operator_of(error: EscapedValueError) -> str:
    """Return the name of the operator that an error speaks of."""
    op = getattr(error, "op", None)
    return op.name if isinstance(op, Operator) else "an operator"
