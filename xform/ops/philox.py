"""Random bits on the host: Philox4x64-10, a pure function of a key and a counter.

1. A key is two words of 64 bits, `uint64[2]`. Its stream is a sequence of blocks of four words: block `i` (from 0) of
   the stream with number `purpose` and datum `datum` is Philox's output for the counter `(i + 1, datum, 0, purpose)`.
2. NumPy's generator computes it (20 ns a word); many keys that need a few words each are computed at once by the same
   function written in array operations (0.3 us a block, and not 5 us a key). Both give the same words.

Source: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

__all__ = ["DRAW", "FOLD", "SPLIT", "words"]

#: what a stream is for: draws, keys that are split off, keys that a number is folded into
DRAW, SPLIT, FOLD = range(3)

MANY_KEYS, FEW_WORDS, CHUNK = 64, 16, 8192

Array = np.ndarray[Any, Any]


class Streams(threading.local):
    """NumPy's generator, one for each thread: setting its state costs 3 us, making one 20 us."""

    def __init__(self) -> None:
        self.generator = np.random.Philox(key=0)

    def read(self, key: Array, counter: Array, count: int) -> Any:
        """Return the first words of the stream that begins behind a counter."""
        state: Any = {
            "bit_generator": "Philox", "state": {"counter": counter, "key": key}, "buffer": ZEROS, "buffer_pos": 4,
            "has_uint32": 0, "uinteger": 0,
        }  # fmt: skip
        self.generator.state = state
        return self.generator.random_raw(count)


ZEROS = np.zeros(4, np.uint64)
_streams = Streams()


def words(keys: Array, count: int, purpose: int, data: Array | None = None) -> Array:
    """Return the first `count` words of the streams of keys, `uint64[n, 2]` to `uint64[n, count]`.

    `data` gives each key a datum, `uint64[n]`, zero where there are none.

    >>> words(np.array([[5, 7]], np.uint64), 2, DRAW).shape
    (1, 2)
    """
    size = len(keys)
    found = np.empty((size, count), np.uint64)
    if size > MANY_KEYS and count <= FEW_WORDS:
        for start in range(0, size, CHUNK):
            part = slice(start, start + CHUNK)
            found[part] = at_once(keys[part], count, purpose, None if data is None else data[part])
        return found
    counter = np.array([0, 0, 0, purpose], np.uint64)
    for row in range(size):
        if data is not None:
            counter[1] = data[row]
        found[row] = _streams.read(keys[row], counter, count)
    return found


# ------------------------------------------------------------------ in array operations

HALF, LOW = np.uint64(32), np.uint64(0xFFFFFFFF)
MULTIPLIERS = (np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157))
STEPS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B))


def at_once(keys: Array, count: int, purpose: int, data: Array | None) -> Array:
    """Return what `words` does, with one operation for all keys."""
    blocks = -(-count // 4)
    shape = (len(keys), blocks)
    first = np.broadcast_to(np.arange(1, blocks + 1, dtype=np.uint64), shape)
    second = np.broadcast_to(np.zeros(1, np.uint64) if data is None else data[:, None], shape)
    counter = (first, second, np.zeros(shape, np.uint64), np.full(shape, purpose, np.uint64))
    block = philox(counter, (keys[:, :1], keys[:, 1:]))
    return np.stack(block, axis=-1).reshape(len(keys), 4 * blocks)[:, :count]


def philox(counter: tuple[Array, ...], key: tuple[Array, Array]) -> tuple[Array, ...]:
    """Return one block for each counter: ten rounds of two products, whose halves change places."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high, low = product(MULTIPLIERS[0], c0)
        other_high, other_low = product(MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = other_high ^ c1 ^ k0, other_low, high ^ c3 ^ k1, low
        k0, k1 = k0 + STEPS[0], k1 + STEPS[1]
    return c0, c1, c2, c3


def product(a: np.uint64, b: Array) -> tuple[Array, Array]:
    """Return the high and the low word of a product of 128 bits.

    >>> [int(half[0]) for half in product(np.uint64(2**63), np.array([6], np.uint64))]
    [3, 0]
    """
    a_low, a_high, b_low, b_high = a & LOW, a >> HALF, b & LOW, b >> HALF
    left, right = a_high * b_low, a_low * b_high
    middle = ((a_low * b_low) >> HALF) + (left & LOW) + (right & LOW)
    return a_high * b_high + (left >> HALF) + (right >> HALF) + (middle >> HALF), a * b
