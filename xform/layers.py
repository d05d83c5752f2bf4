"""Layers as decorators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from xform import tree, values
from xform.core.backend import SCALAR_TYPES, is_raw
from xform.core.source import boundary
from xform.core.stack import Transformation, set_maker
from xform.core.value import Array, Value

__all__ = ["decorated", "lifted", "values"]


def decorated(layer: Transformation, fun: Callable[..., Any]) -> Callable[..., Any]:
    """Run each call of a function under a layer: array leaves of the arguments are lifted, results lowered."""

    @boundary
    @functools.wraps(fun)
    def under(*args: Any, **kwargs: Any) -> Any:
        keep = any(isinstance(leaf, Value) for leaf in tree.leaves((args, kwargs)))
        lifted_args, lifted_kwargs = tree.map(lifted, (args, kwargs))
        with layer:
            out = fun(*lifted_args, **lifted_kwargs)
        out = tree.map(layer.unwrap, out)
        return out if keep else tree.map(lambda leaf: leaf.data if type(leaf) is Array else leaf, out)

    return under


def lifted(x: Any) -> Any:
    """Lift a raw array to `Array`, so that layers see what is done with it; Python numbers and all else stay."""
    if isinstance(x, Value) or type(x) in SCALAR_TYPES or not is_raw(x):
        return x
    out = Array()
    out.data = x
    return out


set_maker("decorate", decorated)
