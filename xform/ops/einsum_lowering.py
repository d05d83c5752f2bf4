"""Einsum in the words of the array API standard, for libraries that have none: diagonals, sums and matrix products."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["contract_all", "embed"]


def contract_all(xp: Any, inputs: tuple[str, ...], out: str, arrays: tuple[Any, ...]) -> Any:
    """Contract operands one after the other, from the left."""
    arrays = with_dtype(xp, arrays)
    letters, found = inputs[0], arrays[0]
    for position, (term, array) in enumerate(zip(inputs[1:], arrays[1:], strict=True), 1):
        later = out + "".join(inputs[position + 1 :])
        letters, found = reduced(xp, found, letters, later + term)
        term, array = reduced(xp, array, term, later + letters)  # noqa: PLW2901
        letters, found = contract_pair(xp, (letters, found), (term, array), later)
    letters, found = reduced(xp, found, letters, out)
    return xp.permute_dims(found, tuple(letters.index(letter) for letter in out))


def with_dtype(xp: Any, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """Make arrays of Python numbers and bring all operands to their common dtype."""
    first = next(array for array in arrays if hasattr(array, "dtype"))
    made = [a if hasattr(a, "dtype") else xp.asarray(a, device=getattr(first, "device", None)) for a in arrays]
    dtype = xp.result_type(*made)
    return tuple(xp.astype(array, dtype, copy=False) for array in made)


def reduced(xp: Any, x: Any, letters: str, wanted: str) -> tuple[str, Any]:
    """Take the diagonals of repeated letters, and sum over those that nothing else wants."""
    for letter in dict.fromkeys(letters):
        while letters.count(letter) > 1:
            first, second = letters.index(letter), letters.rindex(letter)
            x = xp.sum(on_diagonal(xp, x, first, second), axis=second, dtype=x.dtype)
            letters = letters[:second] + letters[second + 1 :]
    gone = tuple(i for i, letter in enumerate(letters) if letter not in wanted)
    if gone:
        x = xp.sum(x, axis=gone, dtype=x.dtype)
    return "".join(letter for letter in letters if letter in wanted), x


def on_diagonal(xp: Any, x: Any, first: int, second: int) -> Any:
    """Return an array with zeros where its indices along two axes differ; an axis of length 1 broadcasts."""
    length = max(x.shape[first], x.shape[second])
    index = xp.arange(length, device=x.device)

    def along(axis: int) -> Any:
        return xp.reshape(index, tuple(length if i == axis else 1 for i in range(x.ndim)))

    return xp.where(along(first) == along(second), x, xp.zeros_like(x))


def contract_pair(xp: Any, left: tuple[str, Any], right: tuple[str, Any], later: str) -> tuple[str, Any]:
    """Contract two operands as a stack of matrix products."""
    (a, x), (b, y) = left, right
    shared = [letter for letter in a if letter in b]
    batch = "".join(letter for letter in shared if letter in later)
    summed = "".join(letter for letter in shared if letter not in later)
    rows = "".join(letter for letter in a if letter not in b)
    columns = "".join(letter for letter in b if letter not in a)
    x = xp.permute_dims(x, tuple(a.index(letter) for letter in batch + rows + summed))
    y = xp.permute_dims(y, tuple(b.index(letter) for letter in batch + summed + columns))
    count, depth = len(batch), len(summed)
    tails = [max(n, m) for n, m in zip(x.shape[x.ndim - depth :], y.shape[count : count + depth], strict=True)]
    x = xp.broadcast_to(x, (*x.shape[: x.ndim - depth], *tails))
    y = xp.broadcast_to(y, (*y.shape[:count], *tails, *y.shape[count + depth :]))
    above, beside = x.shape[count : count + len(rows)], y.shape[count + depth :]
    n, k, m = math.prod(above), math.prod(tails), math.prod(beside)
    out = xp.matmul(xp.reshape(x, (*x.shape[:count], n, k)), xp.reshape(y, (*y.shape[:count], k, m)))
    shape = (*out.shape[:count], *above, *beside)
    return batch + rows + columns, xp.reshape(out, shape)


def embed(xp: Any, x: Any, out: str) -> Any:
    """Lay an array, whose axes are the distinct letters of `out`, on the diagonal of zeros of all of `out`."""
    unique = "".join(dict.fromkeys(out))
    if xp is np:
        full = np.zeros([np.shape(x)[unique.index(letter)] for letter in out], np.asarray(x).dtype)
        np.einsum(f"{out}->{unique}", full)[...] = x
        return full
    first = {letter: out.index(letter) for letter in unique}
    order = sorted(unique, key=out.index)
    x = xp.permute_dims(x, tuple(unique.index(letter) for letter in order))
    sizes = dict(zip(order, x.shape, strict=True))
    x = xp.reshape(x, tuple(sizes[letter] if first[letter] == i else 1 for i, letter in enumerate(out)))
    for i, letter in enumerate(out):
        if first[letter] != i:
            x = on_diagonal(xp, x, first[letter], i)
    return x
