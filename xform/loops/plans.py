"""What users say of the memory of a loop's gradient: `checkpoint` and `swap_interval`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xform.core.aval import aval_of
from xform.core.errors import OperandError, OperandTypeError
from xform.programs.loop_plans import Plan

__all__ = ["count_of", "plan_for"]


def plan_for(checkpoint: Any, swap_interval: Any, what: str, rounds: int | None, carries: Sequence[Any]) -> Plan | None:
    """Return the plan that a user asks for, None where all carries are kept where they are.

    `checkpoint` is None, a number of rounds, "sqrt", "log", or a function that says one of these for the number of
    rounds (None where it is not known beforehand) and the bytes of all carries of one round (None where these are not).

    >>> plan_for(lambda rounds, nbytes: "log" if nbytes > 1e6 else None, None, "scan", 10, [1.0])
    """
    if callable(checkpoint):
        checkpoint = checkpoint(rounds, bytes_of(carries))
    swap = count_of(swap_interval, f"{what}: swap_interval")
    if checkpoint in ("sqrt", "log") and isinstance(checkpoint, str):
        return Plan(kind=checkpoint, swap=swap)
    if isinstance(checkpoint, str):
        msg = f'{what}: checkpoint is None, a number of rounds, "sqrt", "log" or a function, got {checkpoint!r}'
        raise OperandError(msg, value=checkpoint)
    every = count_of(checkpoint, f"{what}: checkpoint")
    plan = Plan(every or 1, swap=swap)
    return None if plan == Plan() else plan


def count_of(value: Any, what: str, least: int = 1) -> int | None:
    """Return a number of rounds; raises where it is none."""
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        msg = f"{what} must be a number of rounds, got {type(value).__name__}: {value!r:.60}"
        raise OperandTypeError(msg, value=value)
    if value.__index__() < least:
        raise OperandError(f"{what} must be at least {least}, got {value}", value=value)
    return int(value)


def bytes_of(carries: Sequence[Any]) -> int | None:
    """Return the bytes of carries, None where a length is not known."""
    avals = [aval_of(x) for x in carries]
    if any(None in aval.shape for aval in avals):
        return None
    return sum(aval.size * aval.dtype.itemsize for aval in avals)
