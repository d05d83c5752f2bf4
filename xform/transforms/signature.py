"""What a traced function remembers a call by: which arguments are static, and what of a call makes it another one."""

from __future__ import annotations

import dataclasses
import inspect
import operator
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, SupportsIndex

import attrs
import numpy as np

from xform import tree
from xform.core.errors import OperandError, OperandTypeError

__all__ = ["Static", "given_names", "given_numbers", "is_several", "layout_of", "typed"]

_Parameter = inspect.Parameter


class Static:
    """Which arguments are static, by position and by name: an argument named one way may be passed the other way.

    Numbers count the parameters of the function (`self` of a method is 0), negative ones from the end; they count the
    arguments of a call where the function takes `*args`. Raises `OperandError` for a number or a name that the function
    does not have.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        numbers: SupportsIndex | Sequence[SupportsIndex],
        names: str | Sequence[str],
        what: str,
    ) -> None:
        self.positions: set[int] = set()
        self.from_end: set[int] = set()  # of a function with *args, where the call says what they are
        self.names: set[str] = set()
        numbers = given_numbers(numbers, what)
        names = given_names(names, what)
        self.is_empty = not numbers and not names
        if not self.is_empty:
            self._resolve(parameters_of(fun), numbers, names, what)

    def _resolve(
        self, parameters: list[_Parameter], numbers: tuple[int, ...], names: tuple[str, ...], what: str
    ) -> None:
        kinds = {parameter.kind for parameter in parameters}
        positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        by_name = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        for number in numbers:
            if number < 0 and _Parameter.VAR_POSITIONAL in kinds:
                self.from_end.add(number)
                continue
            position = number + len(positional) if number < 0 else number
            if position < 0 or (position >= len(positional) and _Parameter.VAR_POSITIONAL not in kinds):
                msg = f"{what}: static_argnums={number}, but it takes {len(positional)} positional arguments"
                raise OperandError(msg, argument=number)
            self.positions.add(position)
            self.names.update(by_name.intersection(positional[position : position + 1]))
        for name in names:
            if name in positional:
                self.positions.add(positional.index(name))
            elif name not in by_name and _Parameter.VAR_KEYWORD not in kinds:
                msg = f"{what}: static_argnames={name!r}, but it has the parameters {[p.name for p in parameters]}"
                raise OperandError(msg, argument=name)
            self.names.add(name)

    def positions_in(self, count: int) -> set[int]:
        """Return the static positions of a call with `count` positional arguments."""
        ours = {n for n in self.positions if n < count}
        return ours | {n + count for n in self.from_end if n + count >= 0} if self.from_end else ours


def given_numbers(numbers: Any, what: str) -> tuple[int, ...]:
    """Return argument numbers as a tuple of ints; raises `OperandTypeError` for what is none."""
    try:
        return tuple([operator.index(number) for number in (numbers if is_several(numbers) else (numbers,))])
    except TypeError:
        msg = f"{what}: argument numbers are an int or a tuple of ints, got {numbers!r:.60}; names go to *argnames"
        raise OperandTypeError(msg, value=numbers) from None


def given_names(names: Any, what: str) -> tuple[str, ...]:
    """Return argument names as a tuple of strings; raises `OperandTypeError` for what is none."""
    several = tuple(names) if is_several(names) else (names,)
    if not all(isinstance(name, str) for name in several):
        msg = f"{what}: argument names are a string or a tuple of strings, got {names!r:.60}"
        raise OperandTypeError(msg, value=names)
    return several


def is_several(given: Any) -> bool:
    """Whether several numbers or names are given, in a container.

    >>> is_several("name"), is_several(np.int64(1)), is_several((1,))
    (False, False, True)
    """
    return isinstance(given, Iterable) and not isinstance(given, str)


def parameters_of(fun: Callable[..., Any]) -> list[_Parameter]:
    """Return the parameters of a function; of one that tells none (in C), those of `(*args, **kwargs)`."""
    try:
        return list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        return [_Parameter("args", _Parameter.VAR_POSITIONAL), _Parameter("kwargs", _Parameter.VAR_KEYWORD)]


# ------------------------------------------------------------------ keys of a cache


def typed(value: Any, refs: list[Any]) -> Any:
    """Return what tells a static value from all others: 1, 1.0 and True differ, and so do 0.0 and -0.0, nested too.

    An object that compares by identity stands there as a weak reference, appended to `refs`: the cache must not keep
    it alive.
    """
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return kind, value
    if isinstance(value, np.generic):
        return kind, value.dtype, value.tobytes()
    if isinstance(value, float | complex):
        return kind, value.real.hex(), value.imag.hex()
    parts = (value.start, value.stop, value.step) if kind is slice else value
    if isinstance(parts, tuple | frozenset):
        return kind, (frozenset if isinstance(parts, frozenset) else tuple)([typed(each, refs) for each in parts])
    return _typed_object(kind, value, refs)


#: modules of types whose equal values may be told apart by their text
EXACT_BY_TEXT = frozenset({"builtins", "decimal", "datetime"})


def _typed_object(kind: Any, value: Any, refs: list[Any]) -> Any:
    if kind.__hash__ is object.__hash__:
        try:
            refs.append(weakref.ref(value))
        except TypeError:
            return kind, value
        return kind, refs[-1]
    if attrs.has(kind):
        names: Iterable[str] = [field.name for field in attrs.fields(kind)]
    elif dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
    else:  # Decimal("1.0") equals Decimal("1.00"), and range(0, 3, 2) range(0, 4, 2)
        return (kind, value, repr(value)) if kind.__module__ in EXACT_BY_TEXT else (kind, value)
    return kind, value, tuple([typed(getattr(value, name), refs) for name in names])


def layout_of(structure: tree.Structure, refs: list[Any]) -> tuple[Any, ...]:
    """Return what two equal structures may differ in: the order of the keys of dicts, and the types of keys."""
    if structure.flat and structure.aux is None:
        return ()
    found: list[Any] = []
    pending = [structure]
    while pending:
        node = pending.pop()
        if node.kind.keyed:
            keys = node.aux.keys if node.aux.order is None else node.aux.order
            found.append(keys if all(type(key) is str for key in keys) else typed(tuple(keys), refs))
        elif node.aux is not None:
            found.append(typed(node.aux, refs))
        if not node.flat:
            pending.extend(node.children)
    return tuple(found)
