"""Functions made from functions: what `grad(f)` and its like return."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import MethodType
from typing import Any, Self

__all__ = ["Transformed", "global_name"]


def global_name(made: Any) -> str:
    """Return the name by which an object that wraps a function is found in its module, "" where it is not.

    A decorated function stands where the function that it decorates would be looked for.
    """
    name = getattr(made, "__qualname__", "")
    found: Any = sys.modules.get(made.__module__)
    for part in name.split("."):
        found = getattr(found, part, None)
    return name if found is made else ""


class Transformed(functools.partial[Any]):
    """The function that a transformation makes of `fun`: a call is `run(*bound, *args, **kwargs)`.

    1. It has name and docstring of `fun`, and its signature; as an attribute of a class it is a method.
    2. It pickles and copies wherever `fun` does: a function by its name, a decorated one by the name that it took.

    `run` takes what is bound by position alone, so that it shares no keyword with `fun`.

    >>> def scaled(fun, factor, /, *args):
    ...     return factor * fun(*args)
    >>> double = Transformed(scaled, abs, abs, 2.0)
    >>> double(-3.0), double
    (6.0, <scaled of abs>)
    """

    def __new__(cls, run: Callable[..., Any], fun: Callable[..., Any], *bound: Any) -> Self:
        """Bind what `run` takes before the arguments of a call."""
        made = super().__new__(cls, run, *bound)
        functools.update_wrapper(made, fun)
        return made

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __reduce__(self) -> str | tuple[Any, ...]:
        return global_name(self) or (Transformed, (self.func, vars(self)["__wrapped__"], *self.args))

    def __repr__(self) -> str:
        return f"<{self.func.__name__} of {getattr(self, '__qualname__', repr(vars(self)['__wrapped__']))}>"
