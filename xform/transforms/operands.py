"""What wrapping layers share: how operands and results cross from one layer to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from xform import tree
from xform.core.backend import HOST_TYPES
from xform.core.errors import LayerError
from xform.core.source import Site, user_site
from xform.core.stack import BOTTOM, Level, Transformation, cursor
from xform.core.value import Array, Value
from xform.layers import lifted
from xform.transforms.recording import is_foreign

__all__ = ["DECLARE", "OneBlock", "delivered", "for_rule", "is_bare", "label_of", "site_of", "taken_in", "writeable"]

#: what to do about a leaf that is no array, in messages
DECLARE = "where it is a field of a class of yours, say with xf.tree.register which fields are arrays"


class OneBlock(Transformation):
    """Base of a layer that wraps values and serves one block: its values end with it."""

    effect = "wraps"
    refuses: ClassVar[tuple[str, ...]] = ("rewrites",)
    watches = False

    def __init__(self, name: str, site: Site | None) -> None:
        self.name = name
        self.site = site  # where it was made: for messages
        self._used = False

    def on_register(self) -> None:
        """Remember where the block began."""
        if self._used:
            msg = f"{self!r} has served a block already; make another xf.{type(self).__name__}"
            raise LayerError(msg, layer=self)
        self._used = True
        if self.site is None:
            self.site = user_site()

    def on_unregister(self) -> None:
        """End the block: values can still be read."""
        self.ended = True


def is_bare(level: Level | None) -> bool:
    """Whether nothing stands below (at None: where we are), so that rules may compute on raw arrays."""
    return (cursor.get() if level is None else level) is BOTTOM


def taken_in(x: Any, *, bare: bool) -> Any:
    """Return what a layer holds of a value: raw where nothing stands below, else lifted, so that layers below see it.

    Arrays of other libraries than NumPy are always lifted: their own operators do not give way to values.
    """
    if not bare or is_foreign(x):
        return lifted(x)
    return x.data if type(x) is Array else x


def for_rule(data: list[Any], *, bare: bool) -> tuple[Any, ...]:
    """Return operands for a rule: raw NumPy arrays where nothing stands below, else values.

    Other libraries promote otherwise than NumPy, so their arrays are always values.
    """
    if not bare:
        return tuple([lifted(x) for x in data])
    for x in data:
        if type(x) not in HOST_TYPES:
            if any(map(is_foreign, data)):
                return tuple([lifted(each) for each in data])
            return tuple([each.data if type(each) is Array else each for each in data])
    return tuple(data)


def delivered(results: Any, *, keep: bool) -> Any:
    """The edge rule: values in, values out; where no argument was a value, strip `Array` from every result."""
    if type(results) in HOST_TYPES:
        return lifted(results) if keep else results
    if keep:
        return tree.map(lifted, results)
    if isinstance(results, Value):
        return results.data if type(results) is Array else results
    return tree.map(lambda leaf: leaf.data if type(leaf) is Array else leaf, results)


def writeable(leaf: Any) -> Any:
    """Return a result that its receiver may change: views that repeat one element are copied."""
    raw = leaf.data if type(leaf) is Array else leaf
    if type(raw) is not np.ndarray or raw.flags.writeable:
        return leaf
    return raw.copy() if raw is leaf else lifted(raw.copy())


def site_of(fun: Callable[..., Any]) -> Site | None:
    """Return where a function was written, None for what is not Python: cheaper than a frame walk."""
    code = getattr(fun, "__code__", None)
    return None if code is None else (code.co_filename, code.co_firstlineno)


def label_of(fun: Callable[..., Any]) -> str:
    """Return a function's name, for messages."""
    return str(getattr(fun, "__name__", repr(fun)))
