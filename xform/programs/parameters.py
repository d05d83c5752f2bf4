"""What operators are made with: their parameters by name, and what those may be."""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from types import NoneType, UnionType
from typing import Any

import attrs
import numpy as np

from xform.core.errors import ProgramFormatError
from xform.core.operator import Operator
from xform.programs.program import Program

__all__ = ["Record", "is_a", "is_record", "parameter_names", "parameters", "programs_in", "types_of"]


@functools.lru_cache(maxsize=1024)
def parameter_names(kind: Any) -> dict[str, str]:
    """Return the names of an operator's parameters: of its attributes, and as its class takes them.

    A class without fields keeps the arguments of its `__init__` under their names; `"**"` is what takes any others.
    """
    if attrs.has(kind):
        stored = [each for each in attrs.fields(kind) if each.init and each.metadata.get("stored", True)]
        return {each.name: each.alias or each.name for each in stored}
    if kind.__init__ is object.__init__:
        return {}
    taken = list(inspect.signature(kind.__init__).parameters.values())[1:]
    return {each.name: "**" if each.kind is each.VAR_KEYWORD else each.name for each in taken}


def parameters(op: Operator) -> dict[str, Any]:
    """Return what an operator was made with, by the names that its class takes.

    >>> from xform import ops
    >>> parameters(ops.Reshape((2, 3)))
    {'shape': (2, 3)}
    """
    kind: Any = type(op)
    found: dict[str, Any] = {}
    for name, alias in parameter_names(kind).items():
        value: Any = getattr(op, name, NotImplemented)
        if value is NotImplemented:
            msg = f"{op!r} cannot be stored: it does not keep the argument {name!r} of its class under this name"
            raise ProgramFormatError(f"{msg}; write the class with @attrs.frozen", op=op)
        found |= value if alias == "**" else {alias: value}
    return found


def programs_in(op: Operator) -> dict[str, Program]:
    """Return the programs that an operator holds, by parameter: `body`, `branches[0]`."""
    kind: Any = type(op)
    found: dict[str, Program] = {}
    for name in parameter_names(kind):
        value = getattr(op, name, None)
        several = isinstance(value, tuple)
        for number, each in enumerate(value if isinstance(value, tuple) else (value,)):
            if isinstance(each, Program):
                found[f"{name}[{number}]" if several else name] = each
    return found


class Record:
    """Stands for the classes of records, see `is_record`."""


def is_record(kind: type, wanted: Any) -> bool:
    """Whether a class is one of records that operators have as parameters: attrs classes beside operators."""
    if wanted is not Record or not attrs.has(kind):
        return False
    if kind.__module__.startswith(("xform.ops.", "xform.programs.")):
        return True
    names = vars(sys.modules.get(kind.__module__, object)).values()
    return any(isinstance(each, type) and issubclass(each, Operator) for each in names)


@functools.lru_cache(maxsize=1024)
def types_of(kind: Any) -> dict[str, Any]:
    """Return the types of the parameters of an operator of xform; those of others are their own matter.

    >>> from xform import ops
    >>> types_of(ops.Round)
    {'decimals': <class 'int'>}
    """
    if not kind.__module__.startswith("xform."):
        return {}
    hints = typing.get_type_hints(kind)
    return {parameter: hints[parameter] for parameter in parameter_names(kind).values() if parameter in hints}


def is_a(value: Any, wanted: Any) -> bool:
    """Whether a value is of an annotated type, as far as numbers, text and tuples go; an int serves as a float.

    >>> is_a((1, None), tuple[int | None, ...]), is_a(True, int), is_a(1, float)
    (True, False, True)
    """
    kind, origin = type(value), typing.get_origin(wanted)
    if origin is typing.Union or origin is UnionType:
        return any(is_a(value, each) for each in typing.get_args(wanted))
    if origin is tuple:
        items = typing.get_args(wanted)
        if items[1:] == (...,):
            return kind is tuple and all(is_a(each, items[0]) for each in value)
        return kind is tuple and len(value) == len(items) and all(map(is_a, value, items))
    if isinstance(wanted, type) and (attrs.has(wanted) or issubclass(wanted, Program | Operator)):
        return isinstance(value, wanted)
    return wanted not in _ACCEPTED or kind in _ACCEPTED[wanted]


_ACCEPTED: dict[Any, tuple[type, ...]] = {
    NoneType: (NoneType,), bool: (bool, np.bool_), int: (int,), float: (float, int), complex: (complex, float, int),
    str: (str,), tuple: (tuple,),
}  # fmt: skip
