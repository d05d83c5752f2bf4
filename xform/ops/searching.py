"""Where elements are true, and where values belong in a sorted array."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from xform.core.aval import Aval, aval_of
from xform.core.backend import SCALAR_TYPES
from xform.core.errors import OperandError, ShapeError
from xform.core.operator import Operator, interned
from xform.core.rules import batch_rule, jvp_rule, vjp_rule
from xform.core.stack import apply
from xform.ops.base import Parameterless
from xform.ops.broadcast import astype
from xform.ops.comparisons import isnan
from xform.ops.indexing import getitem
from xform.ops.shapes import expand_dims, front, lanes, ravel

__all__ = ["Argwhere", "NonZero", "SearchSorted", "argwhere", "flatnonzero", "nonzero", "searchsorted"]

Axes = tuple[int | None, ...]


class NonZero(Parameterless):
    """The positions of the elements that are not zero, one array an axis."""

    __slots__ = ()
    multiple_outputs = True

    def infer(self, x: Aval) -> tuple[Aval, ...]:
        """How many there are is not known."""
        if not x.shape:
            msg = "NonZero: the operand has no axes; use atleast_1d(x)"
            raise ShapeError(msg, aval=x)
        return tuple(Aval((None,), np.dtype(np.int64)) for _ in x.shape)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Find them."""
        self.infer(aval_of(x))
        return tuple(xp.nonzero(x))


class Argwhere(Parameterless):
    """The positions of the elements that are not zero, one row each."""

    __slots__ = ()

    def infer(self, x: Aval) -> Aval:
        """How many there are is not known."""
        return Aval((None, len(x.shape)), np.dtype(np.int64))

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Find them."""
        return np.argwhere(x) if xp is np else xp.stack(xp.nonzero(x), axis=1)


@attrs.frozen
class SearchSorted(Operator):
    """Where values would be inserted into a sorted array, to keep it sorted."""

    side: str

    def infer(self, sorted_values: Aval, values: Aval) -> Aval:
        """An integer for each value."""
        if len(sorted_values.shape) != 1:
            msg = f"SearchSorted: the sorted array must have one axis, not shape {sorted_values.shape}"
            raise ShapeError(msg, aval=sorted_values)
        return Aval(values.shape, np.dtype(np.int64))

    def evaluate(self, xp: Any, sorted_values: Any, values: Any) -> Any:
        """Search."""
        self.infer(aval_of(sorted_values), aval_of(values))
        if xp is np:
            return np.searchsorted(sorted_values, values, side=self.side)  # type: ignore[call-overload]
        if type(values) in SCALAR_TYPES:
            values = xp.asarray(values, dtype=sorted_values.dtype, device=sorted_values.device)
        return xp.searchsorted(sorted_values, values, side=self.side)


for _table in (vjp_rule, jvp_rule):
    _table.none(NonZero, Argwhere, SearchSorted, why="its result is positions")
batch_rule.none(NonZero, Argwhere, why="lanes would have different lengths; use where(condition, x, y)")
make_search = interned(SearchSorted)


@batch_rule(SearchSorted)
def searchsorted_batch(op: SearchSorted, size: int, values: tuple[Any, ...], axes: Axes) -> tuple[Any, Any]:
    """Values alone: the same; a batch of sorted arrays: count what comes before, NaN last."""
    if axes[0] is None:
        return apply(op, *values), axes[1]
    keys = front(values[0], axes[0])
    sought = lanes(size, values[1], axes[1])
    keys = expand_dims(keys, tuple(range(1, len(aval_of(sought).shape))))
    sought = expand_dims(sought, -1)
    last = isnan(sought) & ~isnan(keys) if op.side == "left" else isnan(sought)
    before = (keys < sought if op.side == "left" else keys <= sought) | last
    return astype(before, np.int64).sum(axis=-1), 0


def nonzero(x: Any) -> tuple[Any, ...]:
    """Return the positions of the elements that are not zero, one array an axis; lengths are unknown under tracing.

    Raises `ShapeError` for an array without axes.

    >>> nonzero(np.array([0.0, 3.0, 0.0, 5.0]))
    (array([1, 3]),)
    """
    return apply(NonZero(), x)  # type: ignore[no-any-return]


def argwhere(x: Any) -> Any:
    """Return the positions of the elements that are not zero, one row each.

    >>> argwhere(np.array([[0, 1], [1, 0]]))
    array([[0, 1],
           [1, 0]])
    """
    return apply(Argwhere(), x)


def flatnonzero(x: Any) -> Any:
    """Return the positions, in the flattened array, of the elements that are not zero.

    >>> flatnonzero(np.array([[0, 1], [1, 0]]))
    array([1, 2])
    """
    return nonzero(ravel(x))[0]


def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> Any:
    """Return where values would be inserted into a sorted array of one axis; integers, without derivative.

    `side` "left" puts a value before equal ones, "right" behind them; `sorter` is an `argsort` of `a`.

    >>> searchsorted(np.array([1.0, 2.0, 3.0]), 2.0, side="right")
    np.int64(2)
    """
    if side not in ("left", "right"):
        msg = f'searchsorted: side must be "left" or "right", got {side!r}'
        raise OperandError(msg, side=side)
    v = np.asarray(v) if isinstance(v, list | tuple) else v
    return apply(make_search(side), a if sorter is None else getitem(a, sorter), v)
