"""Picking along one axis by an index known beforehand, and its transpose, summing back; in every array library."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from xform.ops.base import native

__all__ = ["gather", "sum_back"]

Index = tuple[int, ...]


def gather(xp: Any, x: Any, index: Index, axis: int) -> Any:
    """Return the elements of `x` at these places of an axis.

    >>> gather(np, np.array([5, 6]), (0, 1, 1), 0)
    array([5, 6, 6])
    """
    if xp is np:
        return np.take(x, np.asarray(index, np.intp), axis)
    return xp.take(x, xp.asarray(index, dtype=xp.int64, device=x.device), axis=axis)


def sum_back(xp: Any, x: Any, index: Index, length: int, axis: int) -> Any:
    """Add the elements of `x` to the places of an axis of this length that `gather` took them from.

    >>> sum_back(np, np.array([1.0, 2.0, 3.0]), (0, 1, 1), 2, 0)
    array([1., 5.])
    """
    if xp is np:
        return _sum_back_numpy(x, index, length, axis)
    places = _places(index, length)
    rows = xp.concat([x, xp.zeros_like(x[(*(slice(None),) * axis, slice(0, 1), ...)])], axis=axis)
    if not index:  # nothing to take one row of
        shape = (*x.shape[:axis], length, *x.shape[axis + 1 :])
        return xp.zeros(shape, dtype=x.dtype, device=x.device)
    taken = xp.take(rows, xp.asarray(places.reshape(-1).tolist(), dtype=xp.int64, device=x.device), axis=axis)
    taken = xp.reshape(taken, (*x.shape[:axis], *places.shape, *x.shape[axis + 1 :]))
    return xp.sum(taken, axis=axis + 1, dtype=x.dtype)


def _sum_back_numpy(x: Any, index: Index, length: int, axis: int) -> Any:
    order, present, starts = _runs(index)
    out = np.zeros((*x.shape[:axis], length, *x.shape[axis + 1 :]), x.dtype)
    if index:
        rows = x if order is None else np.take(x, order, axis)
        out[(*(slice(None),) * axis, present)] = np.add.reduceat(rows, starts, axis, dtype=native(x.dtype))
    return out


@functools.lru_cache(maxsize=256)
def _runs(index: Index) -> tuple[Any, Any, Any]:
    """Return the order that sorts the index (None where it is sorted), its distinct places, and where each begins."""
    flat = np.asarray(index, np.intp)
    order = np.argsort(flat, kind="stable")
    present, starts = np.unique(flat[order], return_index=True)
    return (None if bool(np.all(flat[1:] >= flat[:-1])) else order), present, starts


@functools.lru_cache(maxsize=256)
def _places(index: Index, length: int) -> Any:
    """Return, for each place, where the index names it: one row per place, filled up with the number after the last."""
    flat = np.asarray(index, np.intp)
    counts = np.bincount(flat, minlength=length)
    places = np.full((length, max(1, int(counts.max(initial=0)))), flat.size)
    order = np.argsort(flat, kind="stable")
    column = np.arange(flat.size) - np.repeat(np.cumsum(counts) - counts, counts)
    places[flat[order], column] = order
    return places
