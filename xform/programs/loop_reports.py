"""What loops did: how many rounds, what they kept, what they ran again."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import attrs

__all__ = ["LoopReport", "is_asked", "loop_reports", "nbytes", "report", "report_loop"]


@attrs.frozen
class LoopReport:
    """One run of a loop, or of its gradient."""

    loop: str
    phase: str
    rounds: int
    peak_saved_bytes: int
    recomputed_rounds: int = 0
    stopped_by_max_steps: bool = False

    def __str__(self) -> str:
        more = f", {self.recomputed_rounds} rounds run again" if self.recomputed_rounds else ""
        more += ", stopped by max_steps" if self.stopped_by_max_steps else ""
        return f"{self.loop} {self.phase}: {self.rounds} rounds, {self.peak_saved_bytes} bytes saved at most{more}"


_open: ContextVar[tuple[list[LoopReport], ...]] = ContextVar("xform loop reports", default=())


@contextmanager
def loop_reports() -> Iterator[list[LoopReport]]:
    """Collect a report of each run of a loop inside the block, of this thread, in the order in which they end.

    A report has `loop` (its name), `phase` ("forward" or "backward"), `rounds`, `peak_saved_bytes` (the most bytes that
    were held at a time for a derivative: forward, what was kept; backward, what was there to be read by the round),
    `recomputed_rounds` (rounds that backward ran again to get carries that were not kept), and `stopped_by_max_steps`
    (whether the condition still held).

    >>> import xform as xf
    >>> with xf.loop_reports() as reports:
    ...     slope = xf.grad(lambda x: xf.while_loop(lambda x: x < 100.0, lambda x: x * x, x))(3.0)
    >>> [(each.phase, each.rounds, each.peak_saved_bytes) for each in reports]
    [('forward', 3, 32), ('backward', 3, 32)]
    """
    found: list[LoopReport] = []
    token = _open.set((*_open.get(), found))
    try:
        yield found
    finally:
        _open.reset(token)


def is_asked() -> bool:
    """Whether somebody collects reports."""
    return bool(_open.get())


def report_loop(loop: Any, outs: Sequence[Any], told: Sequence[Any], rounds: int, constants: Sequence[Any]) -> None:
    """Report a run of a loop: forward what it keeps, backward what it reads.

    `told` are its last carries, or, where the condition is asked after a round, the number of rounds in which it held.
    """
    if loop.origin == loop.label:
        kept = [out for out, each in zip(outs, loop.outputs, strict=True) if not getattr(each, "shown", True)]
        stopped = rounds == loop.max_steps
        if stopped and loop.test == "after":
            stopped = int(told[0]) == rounds
        elif stopped:
            stopped = bool(loop.condition.run([rounds, *told, *constants])[0])
        made = LoopReport(loop.label, "forward", rounds, sum(map(nbytes, kept)), 0, stopped)
    else:
        pairs = zip(constants, loop.constant_avals, strict=True)
        read = [x for x, aval in pairs if None in aval.shape]  # histories; lanes may lie in front
        made = LoopReport(loop.origin, "backward", rounds, sum(map(nbytes, read)))
    report(made)


def report(made: LoopReport) -> None:
    """Give a report to all who collect them."""
    for found in _open.get():
        found.append(made)


def nbytes(x: Any) -> int:
    """Return the bytes of an array of any library.

    >>> nbytes(1.0)
    8
    """
    known = getattr(x, "nbytes", None)
    return known if type(known) is int else 8 * math.prod(getattr(x, "shape", ()))
