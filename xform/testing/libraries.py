"""An operator on another array library: array-api-strict, which takes nothing for granted."""

from __future__ import annotations

from typing import Any

import numpy as np

from xform.core.backend import SCALAR_TYPES
from xform.core.operator import Operator
from xform.testing.numeric import require_equal

__all__ = ["check_library"]

STANDARD = "?bhilqBHILQfdFD"


def strict_library() -> Any:
    """Return array-api-strict, or None where it is not installed."""
    try:
        import array_api_strict  # noqa: PLC0415  (optional, lazy)
    except ImportError:
        return None
    return array_api_strict


def check_library(op: Operator, arrays: tuple[Any, ...], out: tuple[Any, ...]) -> None:
    """Hold `evaluate` on a device of array-api-strict against NumPy's results; dtypes outside the standard pass."""
    xp = strict_library()
    kinds = [x for x in (*arrays, *out) if type(x) not in SCALAR_TYPES]
    if xp is None or any(x.dtype.char not in STANDARD for x in kinds) or all(type(x) in SCALAR_TYPES for x in arrays):
        return
    device = xp.Device("device1")
    moved = [x if type(x) in SCALAR_TYPES else xp.asarray(np.asarray(x), device=device) for x in arrays]
    try:
        found = op.evaluate(xp, *moved)
    except Exception as error:
        raise AssertionError(f"{op!r}: evaluate failed on array_api_strict: {error!r}") from error
    for position, (each, want) in enumerate(zip(found if op.multiple_outputs else (found,), out, strict=True)):
        if getattr(each, "device", None) != device:
            raise AssertionError(f"{op!r}: result {position} left its device: {type(each).__name__} on {each!r:.60}")
        got = np.asarray(each.to_device(xp.Device("CPU_DEVICE")))
        require_equal(f"{op!r}: result {position} on array_api_strict", got, want, "on NumPy")
