"""Arrays that a compiled program keeps between calls, and how to make another set of them.

Blocks of memory are shared by liveness: what is free is given to the next array of the same size, the last one freed
first, since it is in the cache still.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["Workspace"]

Make = Callable[[list[Any]], Any]
#: blocks begin at, and are multiples of, so many bytes
LINE = 64


class Workspace:
    """Blocks and the arrays in them, by number; the first set exists as soon as it is described."""

    def __init__(self) -> None:
        self.arrays: list[Any] = []
        self._makers: list[Make] = []
        self._free: dict[int, list[int]] = {}
        self._views: dict[Any, int] = {}

    def _add(self, make: Make) -> int:
        self._makers.append(make)
        self.arrays.append(make(self.arrays))
        return len(self.arrays) - 1

    def block(self, size: int) -> int:
        """Return a free block for so many bytes."""
        size = -(-size // LINE) * LINE
        free = self._free.get(size)
        return free.pop() if free else self._add(lambda arrays: aligned(size))

    def release(self, block: int) -> None:
        """Give a block back."""
        self._free.setdefault(self.arrays[block].nbytes, []).append(block)

    def array(self, block: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
        """Return an array that begins where a block does."""
        key = (block, shape, dtype)
        if key not in self._views:
            count = math.prod(shape) * dtype.itemsize
            self._views[key] = self._add(lambda arrays: arrays[block][:count].view(dtype).reshape(shape))
        return self._views[key]

    def view(self, of: int, take: Callable[[Any], Any]) -> int | None:
        """Return a view of an array; None where `take` would copy."""
        if not np.may_share_memory(self.arrays[of], take(self.arrays[of])):
            return None
        return self._add(lambda arrays: take(arrays[of]))

    def first(self, numbers: list[int]) -> tuple[Any, ...]:
        """Return the arrays of these numbers of the first set, which is kept here no longer."""
        arrays, self.arrays = self.arrays, []
        return tuple([arrays[number] for number in numbers])

    def another(self, numbers: list[int]) -> tuple[Any, ...]:
        """Make another set; return the arrays of these numbers."""
        arrays: list[Any] = []
        for make in self._makers:
            arrays.append(make(arrays))
        return tuple([arrays[number] for number in numbers])


def aligned(size: int) -> Any:
    """Return so many bytes that begin at a cache line."""
    raw = np.empty(size + LINE, np.uint8)
    start = -raw.__array_interface__["data"][0] % LINE
    return raw[start : start + size]
