"""One row of the operators' table of cases: a function, operands within its safe domain, and what to check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

__all__ = ["Case", "case"]


@attrs.frozen(eq=False)
class Case:
    """A function of its operands alone, which every operator rule it goes through must differentiate right.

    `order` is the highest order of derivative to check; `complex` says that complex128 operands are in the domain
    (they are made by turning each operand by a small angle); `x64_only` leaves out float32, where rounding would hide
    the answer. Operands that are not floating (indices, masks) stay as they are in every dtype.
    """

    name: str
    fun: Callable[..., Any]
    args: tuple[Any, ...]
    order: int = 2
    complex: bool = False
    modes: tuple[str, ...] = ("fwd", "rev")
    x64_only: bool = False

    def __str__(self) -> str:
        return self.name


def case(
    name: str,
    fun: Callable[..., Any],
    *args: Any,
    order: int = 2,
    complex: bool = False,
    modes: tuple[str, ...] = ("fwd", "rev"),
    x64_only: bool = False,
) -> Case:
    """Return a row: `case("hypot", xnp.hypot, x, y)`; both modes, second order, unless told otherwise."""
    return Case(name, fun, args, order, complex, modes, x64_only)
