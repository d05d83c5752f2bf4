"""How dtypes, types of arrays and classes are named in a file, and found again by their names.

Names are looked up, never run: a dtype in a table, a class among those that are loaded.
"""

from __future__ import annotations

import importlib
import math
import sys
from types import ModuleType
from typing import Any

import numpy as np

import xform.ops  # noqa: F401  (with it the operators are loaded that a file may name)
from xform.core.aval import Aval
from xform.core.errors import ProgramFormatError

__all__ = [
    "MAX_SIZE", "class_name", "decode_aval", "dtype_named", "dtype_text", "encode_aval", "importable_name",
    "loaded_class", "wrong",
]  # fmt: skip

#: the largest array that a variable may stand for, in elements, and the most axes that it may have
MAX_SIZE, MAX_NDIM = 2**40, 64
#: modules of xform that hold operators and that `import xform.ops` leaves for later
OWN_MODULES = (
    "xform.ops.cofactors", "xform.ops.decompositions", "xform.ops.determinants", "xform.ops.draws",
    "xform.ops.factorizations", "xform.ops.linalg", "xform.ops.norms", "xform.programs.call", "xform.programs.group",
)  # fmt: skip
#: modules whose operators have their rules elsewhere, with which they come
WITH_RULES = dict.fromkeys(
    [f"xform.programs.{name}" for name in ("branches", "loop", "loop_counter", "loop_rewind", "loop_source")],
    "xform.loops",
)

# by name: NumPy has two dtypes of one name, `long` and `long long`, whose numbers are of two types
_NATIVE = {name: np.dtype(name) for name in {np.dtype(code).name: None for code in "?bhilqBHILQefdgFDG"}}
#: the dtypes that a file may hold; those of the other byte order by their code
DTYPES = _NATIVE | {dtype.newbyteorder().str: dtype.newbyteorder() for dtype in _NATIVE.values() if dtype.itemsize > 1}
_TEXTS = {dtype: text for text, dtype in DTYPES.items()}


def wrong(message: str) -> ProgramFormatError:
    """Make the error for a file that holds something else than it should."""
    return ProgramFormatError(f"not a program of xform, or damaged: {message}")


def dtype_text(dtype: np.dtype[Any]) -> str:
    """Return how a dtype is written: its name, or its code where the byte order is the other one.

    >>> dtype_text(np.dtype("float32")), dtype_text(np.dtype("float32").newbyteorder())
    ('float32', '>f4')
    """
    text = _TEXTS.get(dtype)
    if text is None:
        raise ProgramFormatError(f"arrays of dtype {dtype} cannot be stored: a file holds bools and numbers")
    return text


def dtype_named(text: Any) -> np.dtype[Any]:
    """Return the dtype that is written so."""
    dtype = DTYPES.get(text) if type(text) is str else None
    if dtype is None:
        raise wrong(f"there is no dtype {text!r:.40}")
    return dtype


def encode_aval(aval: Aval) -> list[Any]:
    """Return an aval as plain data.

    >>> encode_aval(Aval((2, None), np.dtype(float)))
    ['float64', [2, None]]
    """
    weak = [True] if aval.weak else []
    return [dtype_text(aval.dtype), [None if n is None else int(n) for n in aval.shape], *weak]


def decode_aval(data: Any) -> Aval:
    """Return the aval that plain data stands for."""
    if type(data) is not list or len(data) not in (2, 3) or data[2:] not in ([], [True]):
        raise wrong(f"{data!r:.60} is no type of an array")
    dtype, shape = dtype_named(data[0]), data[1]
    if type(shape) is not list or len(shape) > MAX_NDIM:
        raise wrong(f"{shape!r:.60} is no shape")
    if not all(n is None or (type(n) is int and n >= 0) for n in shape):
        raise wrong(f"{shape!r:.60} is no shape")
    if math.prod([n for n in shape if n]) > MAX_SIZE:
        raise wrong(f"an array of shape {shape} is larger than a program may have")
    return Aval(tuple(shape), dtype, len(data) == 3)


def class_name(kind: type) -> str:
    """Return how a class is written: `"module:name"`."""
    return f"{kind.__module__}:{kind.__qualname__}"


def loaded_class(name: Any, base: type, what: str) -> type:
    """Return the class of a name, among those that are loaded; nothing is imported but modules of xform.

    >>> loaded_class("xform.core.aval:Aval", object, "class")
    <class 'xform.core.aval.Aval'>
    """
    if type(name) is not str:
        raise wrong(f"{name!r:.60} is no name of an {what}")
    module, _, path = name.partition(":")
    if module in OWN_MODULES or module in WITH_RULES:
        importlib.import_module(WITH_RULES.get(module, module))
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = vars(found).get(part) if isinstance(found, ModuleType | type) else None
    if isinstance(found, type) and issubclass(found, base) and class_name(found) == name:
        return found
    msg = (
        f"there is no {what} {name!r:.120} here; if it is yours, import the module that defines it before the program "
        "is loaded (a file never imports one)"
    )
    raise ProgramFormatError(msg, name=name)


def importable_name(kind: type, what: str) -> str:
    """Return the name of a class that can be found by it; raises for one that is defined inside a function."""
    name = class_name(kind)
    try:
        if loaded_class(name, kind, what) is kind:
            return name
    except ProgramFormatError:
        pass
    msg = f"the {what} {kind.__qualname__} cannot be stored: define it at the top level of a module"
    raise ProgramFormatError(msg, kind=kind)
