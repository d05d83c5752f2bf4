"""Small programs to run under a layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["KINDS", "POINT", "PROGRAMS", "scalar"]

#: where the programs are run
POINT = (np.array([0.3, 0.8, 1.7]), np.array([1.1, 0.6, 0.9]))


def elementwise(x: Any, y: Any) -> Any:
    """Arithmetic and functions, element by element."""
    return np.sin(x) * y + np.exp(-x) / (y + 2.0)


def reduction(x: Any, y: Any) -> Any:
    """Broadcasting, and sums along axes."""
    return (x[:, None] * y[None, :]).sum(axis=0) / 2.0


def product(x: Any, y: Any) -> Any:
    """A matrix product."""
    return (x[:, None] * y[None, :]) @ x


def recurrence(x: Any, y: Any) -> Any:
    """A Python loop."""
    for _ in range(3):
        x = x * 0.5 + np.cos(x * y)
    return x


def mixed(x: Any, y: Any) -> Any:
    """Operations that keep a dtype, or change it."""
    return np.maximum(x, y) * 2 + np.tanh(x) - (x > y)


#: operands of other dtypes
KINDS = {
    "whole numbers": (np.array([3, -1, 4]), np.array([2, 7, 1])),
    "single precision": tuple(x.astype(np.float32) for x in POINT),
    "complex numbers": tuple(x * (1 + 0.5j) for x in POINT),
}
PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "elementwise": elementwise,
    "reduction": reduction,
    "product": product,
    "recurrence": recurrence,
    "mixed": mixed,
}


def scalar(program: Callable[..., Any]) -> Callable[..., Any]:
    """Return a program with one number as its result."""

    def total(*args: Any) -> Any:
        out = program(*args)
        return (out * out).sum()

    return total
