"""What a decorator must know of the function that it is given."""

from __future__ import annotations

import functools
import inspect
from types import AsyncGeneratorType, CodeType, CoroutineType, GeneratorType
from typing import Any

from xform.core.errors import LayerError, OperandTypeError

__all__ = ["is_coroutine", "refuse_generator", "refuse_lazy", "require_function"]

_GENERATOR = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
_LAZY_TYPES = (GeneratorType, AsyncGeneratorType, CoroutineType)


def flags_of(fun: Any) -> int:
    """Return the flags of the code that a call runs, 0 where it is not Python's."""
    while isinstance(fun, functools.partial):
        fun = fun.func
    code = getattr(fun, "__code__", None)
    if not isinstance(code, CodeType):
        code = getattr(getattr(type(fun), "__call__", None), "__code__", None)  # noqa: B004  (its code, not whether)
    return code.co_flags if isinstance(code, CodeType) else 0


def is_coroutine(fun: Any) -> bool:
    """Whether a call gives a coroutine.

    >>> async def fetch(): ...
    >>> is_coroutine(fetch), is_coroutine(len)
    (True, False)
    """
    return bool(flags_of(fun) & inspect.CO_COROUTINE)


def require_function(fun: Any, what: str, *, computes: bool = True) -> None:
    """Raise `OperandTypeError` for what is no function; with `computes`, for one that gives no result when called.

    >>> require_function(3, "grad")
    Traceback (most recent call last):
    ...
    xform.core.errors.OperandTypeError: grad takes a function, got int: 3
    """
    if not callable(fun):
        msg = f"{what} takes a function, got {type(fun).__name__}: {fun!r:.60}"
        raise OperandTypeError(msg, value=fun)
    if computes and flags_of(fun) & (_GENERATOR | inspect.CO_COROUTINE):
        kind = "a generator function" if flags_of(fun) & _GENERATOR else "a coroutine function"
        msg = f"{what} takes a function that returns arrays; {fun!r} is {kind}, which runs later: return a list"
        raise OperandTypeError(msg, value=fun)


def refuse_generator(fun: Any, layer: Any) -> None:
    """Raise `LayerError` where a layer (or what is named) decorates a generator function: its body runs later."""
    if flags_of(fun) & _GENERATOR:
        label = getattr(fun, "__qualname__", repr(fun))
        msg = (
            f"{layer if type(layer) is str else repr(layer)} cannot decorate the generator function {label}: "
            "its body runs after the call, when it is "
            "iterated. Enter it inside each step (with layer: ... and then yield), or decorate what the loop calls"
        )
        raise LayerError(msg, layer=layer)


def refuse_lazy(out: Any, fun: Any, layer: Any) -> None:
    """Raise `LayerError` where a decorated function returned a generator or a coroutine, which would run outside."""
    if isinstance(out, _LAZY_TYPES):
        if isinstance(out, CoroutineType):
            out.close()
        label = getattr(fun, "__qualname__", repr(fun))
        msg = (
            f"{layer!r} decorates {label}, which returned a {type(out).__name__}: its body would run after the call, "
            f"without the layer. Decorate the function that makes it, or enter the layer inside of it"
        )
        raise LayerError(msg, layer=layer)
