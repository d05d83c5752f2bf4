"""What a function holds: objects by identity, so that a change of what it takes from around it is seen.

1. Held are the function itself, what its closure, its defaults and the globals that it names refer to, and what
   functions, containers and plain objects among those hold.
2. Two calls hold the same where every object is the same one, and every number, text or type is equal. What an array
   holds is no part of it: arrays from outside are operands, as they are at the call.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from xform import tree
from xform.core.value import Value

__all__ = ["held"]

PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, np.dtype)
#: compared by identity, and not looked into
OPAQUE = (type, ModuleType, BuiltinFunctionType, np.ufunc, np.ndarray, Value)
LIBRARIES = ("xform.", "numpy")
#: how deep objects are looked into
DEPTH = 4


def held(functions: tuple[Callable[..., Any], ...]) -> tuple[Any, list[Any]]:
    """Return a key for what functions hold, and weak references to the objects in it: it is good while they live."""
    refs: list[Any] = []
    seen: dict[int, int] = {}
    return tuple([token(function, refs, seen, 0) for function in functions]), refs


def token(value: Any, refs: list[Any], seen: dict[int, int], depth: int) -> Any:
    """Return what tells one held object from another."""
    if isinstance(value, PLAIN):
        return type(value), repr(value)
    if isinstance(value, tree.Structure):
        return value
    if id(value) in seen:
        return seen[id(value)]
    seen[id(value)] = len(seen)
    name = identity(value, refs)
    if isinstance(value, OPAQUE) or depth >= DEPTH or str(getattr(value, "__module__", "")).startswith(LIBRARIES):
        return name
    return name, *[token(part, refs, seen, depth + 1) for part in parts_of(value)]


def identity(value: Any, refs: list[Any]) -> Any:
    """Return the number of an object; containers are known by what they hold."""
    if isinstance(value, dict | list | tuple | MethodType | functools.partial):
        return type(value)
    try:
        refs.append(weakref.ref(value))
    except TypeError:
        return type(value), id(value)
    return id(value)


def parts_of(value: Any) -> list[Any]:
    """Return the objects that an object refers to, as far as a function may use them."""
    if isinstance(value, FunctionType):
        return parts_of_function(value)
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    leaves, structure = tree.flatten(value)
    if structure.container is not None:
        return [structure, *leaves]
    return list(getattr(value, "__dict__", {}).values())


def parts_of_function(function: FunctionType) -> list[Any]:
    """Return what a function takes from around it."""
    parts: list[Any] = [function.__code__, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        try:
            parts.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            parts.append(None)
    names = function.__globals__
    parts += [names[name] for name in function.__code__.co_names if name in names]
    return parts
