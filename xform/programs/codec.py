"""How operators, their parameters and containers are written in a file: as JSON that holds plain data alone.

1. None, bools, ints, text, finite floats and tuples (as arrays) stand for themselves; all else is an object with one
   key that says what it is: `{"slice": [0, null, 2]}`. A float that JSON lacks is written as its bits.
2. Classes are written `"module:name"` and looked for among those that are loaded. Nothing is imported because a file
   names it, and nothing is called but constructors of operators and what `xform.tree` rebuilds containers with.
3. Everything that is read is checked: `ProgramFormatError` says what is wrong.
"""

from __future__ import annotations

import math
import struct
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from types import NoneType
from typing import Any

import numpy as np

from xform import tree
from xform.core.aval import Aval
from xform.core.backend import HOST_TYPES
from xform.core.errors import ProgramFormatError
from xform.core.operator import Operator
from xform.programs.naming import (
    decode_aval,
    dtype_named,
    dtype_text,
    encode_aval,
    importable_name,
    loaded_class,
    wrong,
)
from xform.programs.parameters import Record, is_a, is_record, parameter_names, parameters, types_of
from xform.programs.program import Program

__all__ = ["Decoder", "Encoder", "parts", "sequence_of"]

#: how deep values, containers and programs may nest
MAX_DEPTH = 64
#: classes of numbers, which operators may have as parameters
_TYPES = {f"{kind.__module__}.{kind.__name__}": kind for kind in HOST_TYPES if kind is not np.ndarray}
_TYPE_NAMES = {kind: name for name, kind in _TYPES.items()}
#: mappings, and what makes missing entries of a `defaultdict`
_MAPPINGS: tuple[Any, ...] = (dict, OrderedDict, defaultdict)
_FACTORIES = {kind.__name__: kind for kind in (bool, int, float, complex, str, list, tuple, dict, set)} | {"None": None}


# ------------------------------------------------------------------ writing


class Encoder:
    """Turns values into plain data; `nested(program)` gives the number of a program that an operator holds."""

    def __init__(self, nested: Callable[[Program], int]) -> None:
        self.nested = nested

    def operator(self, op: Operator) -> list[Any]:
        """Return an operator as its class and its parameters."""
        name = importable_name(type(op), "operator")
        written = {}
        for parameter, value in parameters(op).items():
            try:
                written[parameter] = self.value(value)
            except ProgramFormatError as error:
                msg = f"{type(op).__name__} cannot be stored: its parameter {parameter!r} is {value!r:.80}: {error}"
                raise ProgramFormatError(msg, op=op) from error
        return [name, written]

    def value(self, x: Any, depth: int = 0) -> Any:
        """Return a parameter as plain data."""
        kind = type(x)
        if kind in (NoneType, bool, int, str):
            return x
        if kind is float:
            return x if math.isfinite(x) else {"float": struct.pack(">d", x).hex()}
        if depth > MAX_DEPTH:
            raise ProgramFormatError(f"it nests deeper than {MAX_DEPTH}")
        if kind is tuple:
            return [self.value(each, depth + 1) for each in x]
        for wanted, tag, encode in _WRITERS:
            if issubclass(kind, wanted) if wanted in _WITH_SUBCLASSES else kind is wanted or is_record(kind, wanted):
                return {tag: encode(self, x, depth + 1)}
        msg = f"a file holds numbers, text, tuples, slices, dtypes, operators and programs, no {kind.__qualname__}"
        raise ProgramFormatError(msg, value=x)

    def record(self, x: Any, depth: int) -> list[Any]:
        """Return a record of parameters as its class and its fields."""
        kind: Any = type(x)
        fields = {alias: self.value(getattr(x, name), depth) for name, alias in parameter_names(kind).items()}
        return [importable_name(kind, "record"), fields]

    def sequence(self, xs: Any, depth: int) -> list[Any]:
        """Return the items of a sequence as plain data."""
        return [self.value(each, depth) for each in xs]

    def structure(self, node: tree.Structure, depth: int = 0) -> Any:
        """Return a structure as plain data: `"*"` is a leaf, `null` is None."""
        container = node.container
        if depth > MAX_DEPTH:
            raise ProgramFormatError(f"the arguments or results of the program nest deeper than {MAX_DEPTH}")
        children = [self.structure(child, depth + 1) for child in node.children]
        if container is None or container is NoneType:
            return "*" if container is None else None
        if container is list or container is tuple:
            return {container.__name__: children}
        if container in _MAPPINGS:
            return {container.__name__: self.mapping(node.aux, children)}
        return {"class": [importable_name(container, "container"), self.value(node.aux), children]}

    def mapping(self, aux: Any, children: list[Any]) -> list[Any]:
        """Return factory and entries of a mapping, in its own order."""
        if aux.factory not in _FACTORIES.values():
            raise ProgramFormatError(f"a defaultdict of {aux.factory!r} cannot be stored: a file holds no functions")
        by_key = dict(zip(aux.keys, children, strict=True))
        order = aux.keys if aux.order is None else aux.order
        return [getattr(aux.factory, "__name__", "None"), [[self.value(key), by_key[key]] for key in order]]


_WITH_SUBCLASSES = (np.generic, np.dtype, Operator, Program)
_WRITERS: tuple[tuple[Any, str, Callable[[Encoder, Any, int], Any]], ...] = (
    (np.generic, "number", lambda to, x, depth: [dtype_text(x.dtype), x.tobytes().hex()]),
    (complex, "complex", lambda to, x, depth: [to.value(x.real), to.value(x.imag)]),
    (slice, "slice", lambda to, x, depth: to.sequence((x.start, x.stop, x.step), depth)),
    (type(...), "ellipsis", lambda to, x, depth: None),
    (list, "list", lambda to, x, depth: to.sequence(x, depth)),
    (dict, "dict", lambda to, x, depth: [to.sequence(item, depth) for item in x.items()]),
    (frozenset, "set", lambda to, x, depth: sorted(to.sequence(x, depth), key=repr)),
    (bytes, "bytes", lambda to, x, depth: x.hex()),
    (type, "type", lambda to, x, depth: type_name(x)),
    (np.dtype, "dtype", lambda to, x, depth: dtype_text(x)),
    (Aval, "aval", lambda to, x, depth: encode_aval(x)),
    (tree.Structure, "structure", lambda to, x, depth: to.structure(x, depth)),
    (Operator, "operator", lambda to, x, depth: to.operator(x)),
    (Program, "program", lambda to, x, depth: to.nested(x)),
    (Record, "record", lambda to, x, depth: to.record(x, depth)),
)


def type_name(kind: type) -> str:
    """Return how a class of numbers is written."""
    if kind not in _TYPE_NAMES:
        raise ProgramFormatError(f"the class {kind.__qualname__} cannot be stored: it is none of numbers")
    return _TYPE_NAMES[kind]


# ------------------------------------------------------------------ reading


class Decoder:
    """Turns plain data into values; `nested(number)` gives a program that was read before."""

    def __init__(self, nested: Callable[[Any], Program]) -> None:
        self.nested = nested

    def operator(self, data: Any, depth: int = 0) -> Operator:
        """Return the operator that plain data stands for."""
        name, given = parts(data, 2, "an operator")
        made: Operator = self.made(loaded_class(name, Operator, "operator"), given, depth)
        return made

    def record(self, data: Any, depth: int) -> Any:
        """Return the record of parameters that plain data stands for."""
        name, given = parts(data, 2, "a record")
        kind = loaded_class(name, object, "record")
        if not is_record(kind, Record):
            raise wrong(f"{name} is no record of parameters")
        return self.made(kind, given, depth)

    def made(self, kind: Any, given: Any, depth: int) -> Any:
        """Return an object of a class, made from its parameters."""
        name = kind.__name__
        if type(given) is not dict:
            raise wrong(f"the parameters of {name} are {given!r:.60}")
        values = {parameter: self.value(value, depth + 1) for parameter, value in given.items()}
        for parameter, wanted in types_of(kind).items():
            if parameter in values and not is_a(values[parameter], wanted):
                raise wrong(f"{name} has the parameter {parameter}={values[parameter]!r:.60}")
        try:
            found = kind(**values)
            hash(found)
        except Exception as error:
            raise wrong(f"{name} does not take the parameters {values!r:.120}: {error}") from error
        return found

    def value(self, data: Any, depth: int = 0) -> Any:
        """Return the value that plain data stands for."""
        if data is None or type(data) in (bool, int, float, str):
            return data
        if depth > MAX_DEPTH:
            raise wrong(f"a value nests deeper than {MAX_DEPTH}")
        if type(data) is list:
            return tuple(self.sequence(data, depth + 1))
        tag, content = tagged(data)
        read = _READERS.get(tag)
        if read is None:
            raise wrong(f"there is no kind of value {tag!r:.40}")
        return read(self, content, depth + 1)

    def sequence(self, data: Any, depth: int) -> list[Any]:
        """Return the values of an array."""
        if type(data) is not list:
            raise wrong(f"expected an array, found {data!r:.60}")
        return [self.value(each, depth) for each in data]

    def dictionary(self, data: Any, depth: int) -> dict[Any, Any]:
        """Return a dict from its items."""
        items = [self.sequence(parts(item, 2, "an item"), depth) for item in sequence_of(data)]
        found = dict(items)
        if len(found) < len(items):
            raise wrong("a key stands twice")
        return found

    def float(self, data: Any) -> float:
        """Return a float from a number or its bits."""
        found = self.value(data, MAX_DEPTH - 1)
        if type(found) is not float:
            raise wrong(f"expected a float, found {data!r:.60}")
        return found

    def structure(self, data: Any, depth: int = 0) -> tree.Structure:
        """Return the structure that plain data stands for."""
        if depth > MAX_DEPTH:
            raise wrong(f"containers nest deeper than {MAX_DEPTH}")
        if data == "*" or data is None:
            return tree.structure(0 if data else None)
        tag, content = tagged(data)
        if tag in ("list", "tuple"):
            children = tuple(self.structure(child, depth + 1) for child in sequence_of(content))
            return tree.restore(list if tag == "list" else tuple, None, children)
        for container in _MAPPINGS:
            if tag == container.__name__:
                return self.mapping(container, content, depth + 1)
        if tag != "class":
            raise wrong(f"there is no container {tag!r:.40}")
        name, aux, below = parts(content, 3, "a container")
        kind = loaded_class(name, object, "container")
        children = tuple(self.structure(child, depth + 1) for child in sequence_of(below))
        return tree.restore(kind, self.value(aux, depth + 1), children)

    def mapping(self, container: Any, data: Any, depth: int) -> tree.Structure:
        """Return the structure of a mapping."""
        factory, entries = parts(data, 2, "a mapping")
        pairs = [parts(entry, 2, "an entry") for entry in sequence_of(entries)]
        children = {self.value(key, depth): self.structure(child, depth) for key, child in pairs}
        if type(factory) is not str or factory not in _FACTORIES or len(children) < len(pairs):
            raise wrong(f"{data!r:.60} is no mapping")
        sample = dict.fromkeys(children, 0)
        whole = defaultdict(_FACTORIES[factory], sample) if container is defaultdict else container(sample)
        aux = tree.structure(whole).aux
        return tree.restore(container, aux, tuple(children[key] for key in aux.keys))


def parts(data: Any, count: int, what: str) -> list[Any]:
    """Return an array of a known length."""
    if type(data) is not list or len(data) != count:
        raise wrong(f"{data!r:.60} is not {what}")
    return data


def sequence_of(data: Any) -> list[Any]:
    """Return an array."""
    if type(data) is not list:
        raise wrong(f"expected an array, found {data!r:.60}")
    return data


def tagged(data: Any) -> tuple[str, Any]:
    """Return key and content of an object with one key."""
    if type(data) is not dict or len(data) != 1:
        raise wrong(f"{data!r:.60} is no value")
    ((tag, content),) = data.items()
    return tag, content


def text_of(data: Any) -> str:
    """Return text."""
    if type(data) is not str:
        raise wrong(f"expected text, found {data!r:.60}")
    return data


def number_of(data: Any) -> Any:
    """Return a NumPy number from its dtype and its bytes."""
    dtype, content = parts(data, 2, "a number")
    found, raw = dtype_named(dtype), bytes.fromhex(text_of(content))
    if len(raw) != found.itemsize:
        raise wrong(f"a number of dtype {dtype} has {len(raw)} bytes")
    return np.frombuffer(raw, found)[0]


def entry(table: dict[str, Any], data: Any) -> Any:
    """Return an entry of a table."""
    if text_of(data) not in table:
        raise wrong(f"{data!r:.60} is none of {', '.join(table)}")
    return table[data]


_READERS: dict[str, Callable[[Decoder, Any, int], Any]] = {
    "float": lambda of, data, depth: struct.unpack(">d", bytes.fromhex(text_of(data)))[0],
    "number": lambda of, data, depth: number_of(data),
    "complex": lambda of, data, depth: complex(*[of.float(each) for each in parts(data, 2, "a complex number")]),
    "slice": lambda of, data, depth: slice(*of.sequence(parts(data, 3, "a slice"), depth)),
    "ellipsis": lambda of, data, depth: ...,
    "list": lambda of, data, depth: of.sequence(data, depth),
    "dict": lambda of, data, depth: of.dictionary(data, depth),
    "set": lambda of, data, depth: frozenset(of.sequence(data, depth)),
    "bytes": lambda of, data, depth: bytes.fromhex(text_of(data)),
    "type": lambda of, data, depth: entry(_TYPES, data),
    "dtype": lambda of, data, depth: dtype_named(data),
    "aval": lambda of, data, depth: decode_aval(data),
    "structure": lambda of, data, depth: of.structure(data, depth),
    "operator": lambda of, data, depth: of.operator(data, depth),
    "program": lambda of, data, depth: of.nested(data),
    "record": lambda of, data, depth: of.record(data, depth),
}
