"""Arrays that a compiled program keeps between calls, and how to make another set of them.

Blocks of memory are shared by liveness: what is free is given to the next array of the same size, the last one freed
first, since it is in the cache still. Large results are kept too, and given again once nobody else holds them.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["LARGE", "Recycled", "Workspace"]

Make = Callable[[list[Any]], Any]
#: blocks begin at, and are multiples of, so many bytes
LINE = 64
#: results of so many bytes are recycled: the C library asks the system for new pages for them, each of which is cleared
#: first (W4: 11 ms of 84, W2: 2 %)
LARGE = 1 << 17
#: how many arrays of one result are kept: of `x = step(x)` one is in use
KEPT = 2


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


class Recycled:
    """Arrays for one large result: `recycled()` gives one that the caller has let go of, or a new one.

    What a view, a memoryview or another library still holds is counted by Python, and is not given; what has weak
    references is forgotten, so that they see it go. Threads that call at once get different arrays: one takes an array
    out of the list while it looks.

    >>> recycled = Recycled((2,), np.dtype(float))
    >>> first, second = recycled(), recycled()
    >>> place, first = id(first), None
    >>> id(recycled()) == place, id(recycled()) == id(second)
    (True, False)
    """

    __slots__ = ("_dtype", "_kept", "_shape")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._shape = shape
        self._dtype = dtype
        self._kept: list[Any] = []

    def __call__(self) -> Any:
        """Return an array whose content does not matter."""
        kept = self._kept
        for _ in range(len(kept) if COUNTED else 0):
            try:
                array = kept.pop(0)
            except IndexError:  # another thread looks at it
                break
            free = sys.getrefcount(array) == HERE
            if free and (weakref.getweakrefcount(array) or not self._is_whole(array)):
                continue
            kept.append(array)
            if free:
                return array
        array = np.empty(self._shape, self._dtype)
        kept.append(array)
        del kept[:-KEPT]
        return array

    def _is_whole(self, array: Any) -> bool:
        """Whether the caller has left the array as it was but for its content."""
        flags = array.flags
        as_made = array.shape == self._shape and array.dtype is self._dtype
        return as_made and flags.c_contiguous and flags.owndata and flags.writeable


def counted() -> int:
    """Return how many references an object has that a variable alone holds: the argument may be another, or be lent."""
    array = object()
    return sys.getrefcount(array)


HERE = counted() if hasattr(sys, "getrefcount") else 0
#: whether references are counted, and counts can be relied on: not where threads run without the interpreter's lock
COUNTED = hasattr(sys, "getrefcount") and bool(getattr(sys, "_is_gil_enabled", lambda: True)())
