"""Functions with the variables around them as they are now: what runs a function later sees no later values.

Python's functions read the variables of the functions around them when they run. The lambda of a loop
`for k in ...: x = xf.root(lambda x: x - k, ...)` has another `k` when a replay, or backward, runs it.
"""

from __future__ import annotations

import dis
import functools
from types import CellType, CodeType, FunctionType
from typing import Any

__all__ = ["as_they_are"]


def as_they_are(*funs: Any) -> list[Any]:
    """Return functions that read the variables around them as they are now.

    A variable that one of them assigns (`nonlocal`) stays the one that it is, and so does what is no Python function;
    an object made of functions says what they are by `held_functions()` and `with_functions(held, copy)`.

    >>> k = 1
    >>> (lambda: (lambda k: [as_they_are(lambda: k)[0], k])(2))()[0]()
    2
    """
    if not any(map(sees_variables, funs)):
        return list(funs)
    binding = Binding()
    for fun in funs:
        binding.note_assigned(fun)
    return [binding.bound(fun) for fun in funs]


def sees_variables(fun: Any) -> bool:
    """Whether a function, or one of those that it is made of, reads variables of functions around it."""
    if type(fun) is FunctionType:
        return fun.__closure__ is not None
    return hasattr(type(fun), "held_functions") and any(map(sees_variables, fun.held_functions()))


class Binding:
    """Copies of functions that see each other, with cells of their own."""

    def __init__(self) -> None:
        self.assigned: set[int] = set()  # cells that stay, by id
        self.seen: set[int] = set()
        self.known: dict[int, Any] = {}

    def note_assigned(self, fun: Any) -> None:
        """Note the variables that a function, or one that it may call, assigns."""
        if id(fun) in self.seen or not sees_variables(fun):
            return
        self.seen.add(id(fun))
        if type(fun) is not FunctionType:
            for each in fun.held_functions():
                self.note_assigned(each)
            return
        names = assigned_by(fun.__code__)
        for name, cell in zip(fun.__code__.co_freevars, fun.__closure__ or (), strict=True):
            if name in names:
                self.assigned.add(id(cell))
            self.note_assigned(content_of(cell))

    def bound(self, fun: Any) -> Any:
        """Return a copy of a function, the same one each time."""
        if id(fun) in self.known or not sees_variables(fun):
            return self.known.get(id(fun), fun)
        if type(fun) is not FunctionType:
            return fun.with_functions(self.bound, functools.partial(self.known.__setitem__, id(fun)))
        closure = fun.__closure__ or ()
        cells = tuple([cell if id(cell) in self.assigned else CellType() for cell in closure])
        out = FunctionType(fun.__code__, fun.__globals__, fun.__name__, fun.__defaults__, cells)
        out.__kwdefaults__, out.__doc__, out.__module__ = fun.__kwdefaults__, fun.__doc__, fun.__module__
        out.__qualname__, out.__annotations__ = fun.__qualname__, fun.__annotations__
        out.__dict__.update(fun.__dict__)
        self.known[id(fun)] = out
        for new, cell in zip(cells, closure, strict=True):
            if new is not cell and (content := content_of(cell)) is not EMPTY:
                new.cell_contents = self.bound(content)
        return out


@functools.lru_cache(maxsize=1024)
def assigned_by(code: CodeType) -> frozenset[str]:
    """Return the free variables that a function, or one that it defines, assigns or deletes."""
    own = {each.argval for each in dis.get_instructions(code) if each.opname in ("STORE_DEREF", "DELETE_DEREF")}
    for const in code.co_consts:
        if isinstance(const, CodeType):
            own |= assigned_by(const)
    return frozenset(own.intersection(code.co_freevars))


def content_of(cell: CellType) -> Any:
    """Return what a variable holds, `EMPTY` before its assignment."""
    try:
        return cell.cell_contents
    except ValueError:
        return EMPTY


#: what a variable holds before its assignment
EMPTY = object()
