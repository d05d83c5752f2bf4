"""Derivatives by finite differences: the independent value that rules are held against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xform.core.aval import aval_of
from xform.core.backend import SCALAR_TYPES
from xform.core.value import Value

__all__ = ["cotangent_like", "directional", "numbers", "require_equal", "tangent_at", "tolerance", "upcast"]

Flat = Callable[..., tuple[Any, ...]]

# Central stencils of order 8 and 6: weights of (f(x + k h t) - f(x - k h t)) / h for k = 1, 2, ...
_ORDER_8 = (4 / 5, -1 / 5, 4 / 105, -1 / 280)
_ORDER_6 = (3 / 4, -3 / 20, 1 / 60, 0.0)
# Step, and the relative tolerance that goes with it, by the number of bytes of a real number.
_STEPS = {2: 0.2, 4: 0.03, 8: 1e-3, 16: 1e-3}
_TOLERANCES = {2: 3e-2, 4: 3e-4, 8: 1e-6, 16: 1e-6}


def numbers(x: Any) -> np.ndarray[Any, Any]:
    """Return the NumPy array of a result, also of one that is still wrapped."""
    while isinstance(x, Value):
        x = x.data
    return np.asarray(x)


def precision(values: Sequence[Any]) -> int:
    """Return the bytes of a real number in the least precise of some floating values."""
    sizes = [(dtype := aval_of(x).dtype).itemsize // (2 if dtype.kind == "c" else 1) for x in values]
    return min(sizes, default=8)


def tolerance(values: Sequence[Any]) -> float:
    """Return the relative tolerance that fits the least precise of some values."""
    return _TOLERANCES[precision(values)]


def require_equal(what: str, got: Any, want: Any, whose: str) -> None:
    """Raise `AssertionError` where two results differ in shape, dtype, or by more than rounding."""
    have, aval = aval_of(got), aval_of(want)
    if have.shape != aval.shape or have.dtype != aval.dtype:
        raise AssertionError(f"{what} is {have!r}, {whose} {aval!r}")
    a, b = numbers(got), numbers(want)
    if aval.dtype.kind in "fc":
        rtol, scale = tolerance([want]) * 1e-2, float(np.max(np.abs(b), initial=0.0, where=np.isfinite(b)))
        same = np.allclose(a, b, rtol=rtol, atol=rtol * scale, equal_nan=True)
    else:  # np.allclose computes in float64, which does not tell large integers apart
        same = np.array_equal(a, b)
    if not same:
        raise AssertionError(f"{what} is {a!r}, {whose} {b!r}")


def upcast(x: Any) -> Any:
    """Return a value in double precision, where finite differences are worth more than in single."""
    if type(x) in SCALAR_TYPES:
        return x
    x = np.asarray(x)
    wide = {"e": np.float64, "f": np.float64, "F": np.complex128}.get(x.dtype.char)
    return x if wide is None else x.astype(wide)


def tangent_at(x: Any, rng: np.random.Generator) -> Any:
    """Return a random direction that is about proportional to `x`, so that a small step stays on its side of zero."""
    scale = np.clip(np.abs(numbers(x)), 0.1, 10.0)
    return _of_kind(_signs(x, rng) * scale, x)


def cotangent_like(x: Any, rng: np.random.Generator) -> Any:
    """Return random numbers between 1/2 and 1 in magnitude, of the shape and dtype of `x`."""
    return _of_kind(_signs(x, rng), x)


def _signs(x: Any, rng: np.random.Generator) -> Any:
    like = numbers(x)
    size = rng.uniform(0.5, 1.0, like.shape)
    if like.dtype.kind == "c":
        return size * np.exp(2j * np.pi * rng.random(like.shape))
    return size * rng.choice((-1.0, 1.0), like.shape)


def _of_kind(found: Any, x: Any) -> Any:
    return type(x)(found) if type(x) in SCALAR_TYPES else np.asarray(found).astype(aval_of(x).dtype)


def directional(
    fun: Flat, args: Sequence[Any], tangents: Sequence[Any], step: float | None = None
) -> tuple[list[Any], list[Any]]:
    """Return the derivative of every output along the tangents, and how much it is uncertain.

    The eighth-order central stencil computes in double precision; the uncertainty is its distance from the sixth-order
    one. Where `fun` itself computes in less than that, the step is longer.
    """
    wide, along = [upcast(x) for x in args], [upcast(t) for t in tangents]
    if step is None:
        step = _STEPS[precision(fun(*wide))]
    differences = []
    for k in (1, 2, 3, 4):
        plus = fun(*[x + (k * step) * t for x, t in zip(wide, along, strict=True)])
        minus = fun(*[x - (k * step) * t for x, t in zip(wide, along, strict=True)])
        differences.append([upcast(numbers(p)) - upcast(numbers(m)) for p, m in zip(plus, minus, strict=True)])
    best = [sum(w * d for w, d in zip(_ORDER_8, each, strict=True)) / step for each in zip(*differences, strict=True)]
    rough = [sum(w * d for w, d in zip(_ORDER_6, each, strict=True)) / step for each in zip(*differences, strict=True)]
    return best, [np.abs(b - r) for b, r in zip(best, rough, strict=True)]
