"""Layers as decorators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from xform import tree, values
from xform.core.backend import SCALAR_TYPES, is_raw
from xform.core.functions import is_coroutine, refuse_generator, refuse_lazy, require_function
from xform.core.source import boundary
from xform.core.stack import Transformation, set_maker
from xform.core.value import Array, Value

__all__ = ["decorated", "lifted", "values"]


def decorated(layer: Transformation, fun: Callable[..., Any]) -> Callable[..., Any]:
    """Run each call of a function under a layer: array leaves of the arguments are lifted, results lowered.

    A coroutine function is awaited under the layer. Raises `LayerError` for a generator function, `OperandTypeError`
    for what is no function.
    """
    require_function(fun, f"{layer!r} as a decorator", computes=False)
    refuse_generator(fun, layer)

    def raised(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, bool]:
        keep = any(isinstance(leaf, Value) for leaf in tree.leaves((args, kwargs)))
        return *tree.map(lifted_argument, (args, kwargs)), keep

    def lowered(out: Any, *, keep: bool) -> Any:
        out = tree.map(layer.unwrap, out)
        return out if keep else tree.map(lambda leaf: leaf.data if type(leaf) is Array else leaf, out)

    if is_coroutine(fun):

        @boundary
        @functools.wraps(fun)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            lifted_args, lifted_kwargs, keep = raised(args, kwargs)
            with layer:
                out = await fun(*lifted_args, **lifted_kwargs)
            return lowered(out, keep=keep)

        return awaited

    @boundary
    @functools.wraps(fun)
    def under(*args: Any, **kwargs: Any) -> Any:
        lifted_args, lifted_kwargs, keep = raised(args, kwargs)
        with layer:
            out = fun(*lifted_args, **lifted_kwargs)
            refuse_lazy(out, fun, layer)
        return lowered(out, keep=keep)

    return under


def lifted_argument(x: Any) -> Any:
    """Lift an argument of a decorated function: arrays, and numbers that a computation may start from.

    An int or a bool stays what it is: it may be a count, an axis or a flag.
    """
    if type(x) in (float, complex):
        out = Array()
        out.data = x
        return out
    return lifted(x)


def lifted(x: Any) -> Any:
    """Lift a raw array to `Array`, so that layers see what is done with it; Python numbers and all else stay."""
    if isinstance(x, Value) or type(x) in SCALAR_TYPES or not is_raw(x):
        return x
    out = Array()
    out.data = x
    return out


set_maker("decorate", decorated)
