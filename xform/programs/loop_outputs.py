"""What a loop gives: the outputs that an operator `Loop` may have.

Rounds are numbered by the counter. A loop that counts down meets the same numbers in the other order, and what it
stacks lies where the number says, so that a loop and its gradient read and write one history by one index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from xform.core.aval import Aval
from xform.ops.index_layout import Index
from xform.programs.loop_plans import Plan

__all__ = ["All", "Count", "Last", "Marks", "Output", "Part", "Path", "Total", "strong"]


@attrs.frozen
class Last:
    """A carry after the last round; its start where there was none."""

    carry: int


@attrs.frozen
class Path:
    """All values of a carry, from its start to its end: one more than there are rounds.

    In the round with counter c, a carry goes from row c to row c + 1; where the loop counts down, from c + 1 to c.
    Under a batch whose lanes differ in their number of rounds, rows of rounds that a lane did not run mean nothing; of
    one that is `shown` to the user lanes must not differ.
    """

    carry: int
    shown: bool = False


@attrs.frozen
class Marks:
    """The values of a carry at the start of those rounds that a plan keeps, in the order of the rounds, stacked.

    They serve the gradient, and have no derivative.
    """

    carry: int
    plan: Plan
    shown: bool = False


@attrs.frozen
class All:
    """A value of the body in every round, stacked."""

    value: int
    shown: bool = True


@attrs.frozen
class Part:
    """A value of the body that is added to a total; where an index is given, at the places that it names.

    `operands` are the values of the body that belong to the index.
    """

    value: int
    index: Index | None = None
    operands: tuple[int, ...] = ()


@attrs.frozen
class Total:
    """The sum of values over all rounds, in one buffer: zeros where there was no round.

    `aval` is that of the buffer; where a dimension is unknown, the buffer is like the constant with the number `like`.
    """

    parts: tuple[Part, ...]
    aval: Aval
    like: int | None = None


@attrs.frozen
class Count:
    """The number of rounds."""


Output = Last | Path | Marks | All | Total | Count

COUNT_AVAL = Aval((), np.dtype(np.int64))


def strong(aval: Aval) -> Aval:
    """Return the aval of an array, where it was that of a Python number."""
    return Aval(aval.shape, aval.dtype) if aval.weak else aval


def output_aval(output: Output, carries: Sequence[Aval], values: Sequence[Aval], length: int | None) -> Aval:
    """Return the aval of an output, from those of the carries and of the values of the body, and the trip count."""
    if isinstance(output, Last):
        return carries[output.carry]
    if isinstance(output, Path):
        aval = carries[output.carry]
        return Aval((None if length is None else length + 1, *aval.shape), aval.dtype)
    if isinstance(output, Marks):
        aval = carries[output.carry]
        return Aval((None if length is None else len(output.plan.marks(length, known=True)), *aval.shape), aval.dtype)
    if isinstance(output, All):
        aval = values[output.value]
        return Aval((length, *aval.shape), aval.dtype)
    return output.aval if isinstance(output, Total) else COUNT_AVAL


def values_of(outputs: Sequence[Any]) -> set[int]:
    """Return the numbers of the values of the body that outputs need."""
    found: set[int] = set()
    for output in outputs:
        if isinstance(output, All):
            found.add(output.value)
        elif isinstance(output, Total):
            for part in output.parts:
                found.update((part.value, *part.operands))
    return found
