"""What a function holds: objects by identity, so that a change of what it takes from around it is seen.

1. Held are the function itself, what its closure, its defaults and the globals that it names refer to (of modules, the
   attributes that it names), and what functions, classes, containers and plain objects among those hold. Installed
   packages are taken to stay as they are.
2. Two calls hold the same where every object is the same one, and every number, text or type is equal. What an array
   holds is no part of it: arrays from outside are operands, as they are at the call. Only where a function has computed
   with an array in Python (`x * table[0]`), its content counts: see `contents_read`.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from xform import tree
from xform.core.memory import owner_of
from xform.core.value import Array, Value
from xform.transforms.guard import checksum

__all__ = ["Content", "contents_read", "held", "is_as_read", "references"]

PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, np.dtype)
#: compared by identity, and not looked into
OPAQUE = (ModuleType, BuiltinFunctionType, np.ufunc, Value, CodeType)
#: known by what they hold, in place of by identity
CONTAINERS = (dict, list, tuple, set, frozenset, deque, bytearray, MethodType, functools.partial)
#: objects that are looked into; a function that holds more is recorded at each call
MOST, DEEPEST = 2000, 100

#: an array by reference, and its checksum
Content = tuple[Callable[[], Any], Any]


def held(functions: tuple[Callable[..., Any], ...]) -> tuple[Any, list[Any]]:
    """Return a key for what functions hold, and (weak) references to the objects in it: it is good while they live.

    Raises `TypeError` where they are too many.
    """
    refs: list[Any] = []
    seen: dict[int, tuple[int, Any]] = {}
    return tuple([token(function, refs, seen, 0) for function in functions]), refs


def token(value: Any, refs: list[Any], seen: dict[int, tuple[int, Any]], depth: int) -> Any:
    """Return what tells one held object from another."""
    if isinstance(value, PLAIN):
        if isinstance(value, np.generic):
            refs.append(lambda: value)
        return type(value), repr(value)
    if isinstance(value, tree.Structure):
        return value
    if id(value) in seen:
        return seen[id(value)][0]
    if len(seen) >= MOST or depth >= DEEPEST:
        msg = f"a function holds more than {MOST} objects, or some that are nested more than {DEEPEST} deep"
        raise TypeError(msg)
    seen[id(value)] = len(seen), value  # alive until all are known, so that its number is its own
    name = identity(value, refs)
    if isinstance(value, OPAQUE):
        return name
    return name, *[token(part, refs, seen, depth + 1) for part in parts_of(value)]


def identity(value: Any, refs: list[Any]) -> Any:
    """Return the number of an object; containers are known by what they hold."""
    if isinstance(value, CONTAINERS):
        return type(value)
    try:
        refs.append(weakref.ref(value))
    except TypeError:
        return type(value), id(value)
    return id(value)


# ------------------------------------------------------------------ what refers to what


def parts_of(value: Any) -> Iterable[Any]:
    """Return the objects that an object refers to, as far as a function may use them."""
    if isinstance(value, FunctionType | type) and is_installed(value.__module__):
        return ()
    for kind, parts in PARTS.items():
        if isinstance(value, kind):
            return parts(value)
    leaves, structure = tree.flatten(value)
    return parts_of_instance(value) if structure.container is None else (structure, *leaves)


def parts_of_function(function: FunctionType) -> Iterator[Any]:
    """Yield what a function takes from around it."""
    yield function.__code__
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            yield None
    known, names = function.__globals__, names_in(function.__code__)
    for name in names:
        if name in known:
            yield from with_attributes(known[name], names)


def with_attributes(value: Any, names: Sequence[str]) -> Iterator[Any]:
    """Yield a value; of a module, also those attributes that have one of these names."""
    pending = [value]
    while pending:
        each = pending.pop()
        yield each
        if isinstance(each, ModuleType) and not is_installed(each.__name__):
            pending += [vars(each)[name] for name in names if name in vars(each) and vars(each)[name] is not each]


@functools.lru_cache(maxsize=4096)
def names_in(code: CodeType) -> tuple[str, ...]:
    """Return the names of globals and attributes in a code, and in the codes of functions that it makes."""
    inner = [name for each in code.co_consts if isinstance(each, CodeType) for name in names_in(each)]
    return tuple(dict.fromkeys([*code.co_names, *inner]))


def parts_of_class(kind: type) -> Iterator[Any]:
    """Yield the bases of a class, and what is defined in it."""
    yield from kind.__bases__
    for name, each in list(vars(kind).items()):
        if isinstance(each, staticmethod | classmethod):
            yield each.__func__
        elif isinstance(each, property):
            yield each.fget
        elif isinstance(each, FunctionType) or not name.startswith("__"):
            yield each


def parts_of_instance(value: Any) -> Iterator[Any]:
    """Yield the attributes of an object, and its class; of one of xform's own, the function that it wraps."""
    kind = type(value)
    if is_installed(kind.__module__):
        yield getattr(value, "__wrapped__", None)
        if kind.__module__.partition(".")[0] in ("xform", "numpy"):
            return
    yield kind
    yield from list(getattr(value, "__dict__", {}).values())
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        yield from [getattr(value, name, None) for name in ((slots,) if isinstance(slots, str) else slots)]


#: what objects of a class refer to
PARTS: dict[Any, Callable[[Any], Iterable[Any]]] = {
    FunctionType: parts_of_function,
    MethodType: lambda method: (method.__func__, method.__self__),
    functools.partial: lambda made: (made.func, *made.args, *made.keywords.values()),
    type: parts_of_class,
    np.ndarray: lambda array: array.flat if array.dtype.hasobject else (),
    (set, frozenset, deque, bytearray): lambda several: several,
}


@functools.lru_cache(maxsize=4096)
def is_installed(module: str | None) -> bool:
    """Whether a module belongs to Python, to xform, or to an installed package.

    >>> is_installed("math"), is_installed("numpy.linalg"), is_installed("__main__")
    (True, True, False)
    """
    name = str(module).partition(".")[0]
    if name == "__main__":
        return False
    if name in ("xform", "numpy", "builtins") or name in sys.stdlib_module_names:
        return True
    return "site-packages" in str(getattr(sys.modules.get(name), "__file__", None))


# ------------------------------------------------------------------ what was captured, and what was read


def references(objects: Sequence[Any], refs: Sequence[Callable[[], Any]]) -> list[Callable[[], Any]]:
    """Return functions that give some objects: those that are held are not kept alive."""
    known = {}
    for ref in refs:
        each = ref()
        known[id(each)] = ref
        if type(each) is Array:
            known[id(each.data)] = functools.partial(data_of, ref)
    return [known.get(id(each)) or functools.partial(itself, each) for each in objects]


def data_of(ref: Callable[[], Any]) -> Any:
    """Return what an `Array` holds, None where it is no more."""
    return getattr(ref(), "data", None)


def itself(x: Any) -> Any:
    """Return an object."""
    return x


def contents_read(refs: Sequence[Any], operands: Sequence[Any]) -> tuple[Content, ...]:
    """Return the contents of held arrays that a recording may depend on, given what it has captured as operands.

    Such are arrays that are held and are no operand: NumPy has computed with them, or Python has looked at them; and
    all of them where an operand was made of something while it was recorded.
    """
    objects = [(ref, ref()) for ref in refs]
    known = {id(owner_of(each)) for _, each in objects if isinstance(each, np.ndarray | np.generic)}
    used = {id(owner_of(x)) for x in operands if isinstance(x, np.ndarray | np.generic)}
    if not used <= known:
        used = set()
    arrays = [(ref, each) for ref, each in objects if isinstance(each, np.ndarray) and not each.dtype.hasobject]
    return tuple([(ref, checksum(each)) for ref, each in arrays if id(owner_of(each)) not in used])


def is_as_read(contents: Sequence[Content]) -> bool:
    """Whether arrays hold what they held."""
    return all((array := ref()) is not None and checksum(array) == found for ref, found in contents)
