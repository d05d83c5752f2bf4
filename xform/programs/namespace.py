"""The objects that generated source refers to, by name."""

from __future__ import annotations

import keyword
from types import MethodType
from typing import Any

import numpy as np

__all__ = ["Namespace", "protected"]

#: what the text of a function uses itself, besides names like a0, b12
RESERVED = frozenset({"another", "give", "np", "out", "part", "program", "take", "w"})


class Namespace:
    """Objects by name; one object has one name."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {"np": np}
        self._names: dict[Any, str] = {}
        self._numbers: dict[Any, Any] = {}

    def bind(self, value: Any, hint: str) -> str:
        """Return the name of an object: the hint itself, or with a number."""
        key = repr(value) if isinstance(value, slice | tuple) else value if isinstance(value, MethodType) else id(value)
        name = self._names.get(key)
        if name is None:
            word = hint if hint.isidentifier() and not keyword.iskeyword(hint) else "op"
            local = word in RESERVED or (word[0] in "abov" and word[1:].isdigit())
            name = f"{word}_{len(self.objects)}" if local or word in self.objects else word
            self.objects[name] = value
            self._names[key] = name
        return name

    def number(self, array: Any) -> str:
        """Return the name of an array without axes; equal ones are one."""
        return self.bind(self._numbers.setdefault((array.dtype, array.tobytes()), array), "k")


def protected(value: Any) -> Any:
    """Return a constant as a view that cannot be written to, or as a number."""
    if type(value) is not np.ndarray:
        return value
    if not value.ndim and value.dtype.isnative:  # a number has no byte order
        return value[()]
    view = value.view()
    view.setflags(write=False)
    return view
