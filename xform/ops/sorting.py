"""Sorting; the derivative follows the permutation. Sorts are stable, so ties keep their order in both modes."""

from __future__ import annotations

from typing import Any

import numpy as np

from xform.core.aval import Aval
from xform.core.errors import OperandError
from xform.core.operator import interned
from xform.core.rules import batch_rule, jvp_rule, vjp_rule
from xform.core.stack import apply
from xform.ops import shapes
from xform.ops.axes import axis_of, ndim_of
from xform.ops.cumulative import OneAxis, along_batch
from xform.ops.gather import take_along_axis
from xform.ops.indexing import getitem

__all__ = ["Argsort", "Sort", "argsort", "sort", "top_k"]


class Sort(OneAxis):
    """The elements in rising order along an axis, NaN last; with `reverse` in falling order."""

    __slots__ = ()

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Sort."""
        if xp is np and not self.reverse:
            return np.sort(x, axis=self.axis, kind="stable")
        if xp is np:
            return np.take_along_axis(x, falling(x, self.axis), self.axis)
        return xp.sort(x, axis=self.axis, descending=self.reverse, stable=True)


class Argsort(OneAxis):
    """The indices that sort along an axis."""

    __slots__ = ()

    def infer(self, x: Aval) -> Aval:
        """Indices."""
        return Aval(x.shape, np.dtype(np.intp))

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Sort indices."""
        if xp is np:
            return falling(x, self.axis) if self.reverse else np.argsort(x, axis=self.axis, kind="stable")
        return xp.argsort(x, axis=self.axis, descending=self.reverse, stable=True)


def falling(x: Any, axis: int) -> Any:
    """Return the indices that sort in falling order, ties in their order, NaN first."""
    found = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    return x.shape[axis] - 1 - np.flip(found, axis)


make_sort = interned(Sort)
make_argsort = interned(Argsort)
batch_rule(Sort, Argsort)(along_batch)
vjp_rule.none(Argsort, why="its result is indices")
jvp_rule.none(Argsort, why="its result is indices")


@vjp_rule(Sort)
def sort_vjp(op: Sort, needed: tuple[bool, ...], x: Any) -> tuple[Any, Any]:
    """Put each cotangent back where its element came from; the permutation alone is kept."""
    order = apply(make_argsort(op.axis, op.reverse), x)
    out = take_along_axis(x, order, op.axis)
    return out, lambda t: (take_along_axis(t, apply(make_argsort(op.axis), order), op.axis),)


@jvp_rule(Sort)
def sort_jvp(op: Sort, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """Permute the tangents as the elements."""
    (x,), (t,) = primals, tangents
    if t is None:
        return apply(op, x), None
    order = apply(make_argsort(op.axis, op.reverse), x)
    return take_along_axis(x, order, op.axis), take_along_axis(t, order, op.axis)


# ------------------------------------------------------------------ functions


def sort(x: Any, axis: Any = -1, kind: Any = None, *, stable: Any = None, descending: bool = False) -> Any:
    """Sort along an axis (None: the flattened array), NaN last; `kind` and `stable` change nothing: sorts are stable.

    Raises `IndexOperandError` for an axis that is out of bounds.

    >>> sort(np.array([3.0, 1.0, 2.0]))
    array([1., 2., 3.])
    """
    return _sorted(make_sort, x, axis, descending)


def argsort(x: Any, axis: Any = -1, kind: Any = None, *, stable: Any = None, descending: bool = False) -> Any:
    """Indices that sort along an axis (None: the flattened array), ties in their order.

    Raises `IndexOperandError` for an axis that is out of bounds.

    >>> argsort(np.array([3.0, 1.0, 2.0]))
    array([1, 2, 0])
    """
    if axis is not None and ndim_of(x) == 0 and axis in (0, -1):
        axis = None
    return _sorted(make_argsort, x, axis, descending)


def _sorted(make: Any, x: Any, axis: Any, descending: bool) -> Any:
    if axis is None:
        x, axis = shapes.reshape(x, (-1,)), 0
    return apply(make(axis_of(make.__wrapped__.__name__, axis, ndim_of(x), x), bool(descending)), x)


def top_k(x: Any, k: int, axis: int = -1) -> tuple[Any, Any]:
    """Return the `k` largest elements along an axis in falling order, and their indices.

    Raises `OperandError` where the axis has fewer than `k` elements.

    >>> top_k(np.array([3.0, 1.0, 2.0]), 2)
    (array([3., 2.]), array([0, 2]))
    """
    ndim = ndim_of(x)
    at = axis_of("top_k", axis, ndim, x)
    full = argsort(x, at, descending=True)
    have = full.shape[at]
    if k < 0 or (have is not None and k > have):
        msg = f"top_k: k={k}, but axis {at} has {have} elements"
        raise OperandError(msg, k=k)
    order = getitem(full, (slice(None),) * at + (slice(0, k),))
    return take_along_axis(x, order, at), order
