"""Storage of values; what they can do (operators, NumPy protocols) is installed by `xform.values`."""

from __future__ import annotations

from typing import Any

__all__ = ["Array", "Value"]


class Value:
    """Base of all tracked values: what a transformation wraps around a value of the layer below.

    `data` is the value as the layer below knows it, `owner` the layer that made it (`None` for a plain `Array`); `aval`
    is its type where that is not the data's (an abstract value, a batch).
    """

    __slots__ = ("__weakref__", "data")
    data: Any
    owner: Any = None
    aval: Any = None
    axis: Any = None  # where the lanes of a batch lie


class Array(Value):
    """A tracked concrete array: no layer owns it, its operators go through `apply`.

    Values are made without `__init__` (70 ns an operation): `v = Array(); v.data = raw`.
    """

    __slots__ = ()
