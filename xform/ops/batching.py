"""How the batch rule of elementwise operators aligns operands: it needs shapes, which are built on `xform.ops.base`."""

from __future__ import annotations

from typing import Any

from xform.core.aval import aval_of
from xform.ops.base import set_aligner
from xform.ops.shapes import expand_dims, moveaxis

__all__: list[str] = []


def align(value: Any, axis: int, ndim: int) -> Any:
    """Move the batch axis to the front, with `ndim` axes behind it: missing ones have length 1.

    >>> import numpy as np
    >>> align(np.ones((3, 5)), 1, 2).shape
    (5, 1, 3)
    """
    if axis != 0:
        value = moveaxis(value, axis, 0)
    missing = ndim + 1 - len(aval_of(value).shape)
    return expand_dims(value, tuple(range(1, 1 + missing))) if missing else value


set_aligner(align)
