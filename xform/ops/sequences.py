"""Lists and tuples as operands: NumPy's spellings take them as arrays, `apply` itself refuses them.

Python's operators convert only after `apply` has refused, so that arrays pay nothing for it.
"""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any

import numpy as np

from xform.core.errors import OperandTypeError
from xform.core.operator import Operator
from xform.core.stack import apply
from xform.ops.comparisons import Equal, NotEqual
from xform.ops.create import make_full_like
from xform.ops.stacking import nested

__all__ = ["as_numpy_would", "fitted_call", "full_name", "unlisted"]

#: how many of the first arguments of a NumPy function are operands of one computation, any of which may be a list
OPERANDS = {
    "allclose": 2, "append": 2, "array_equal": 2, "average": 1, "clip": 3, "compress": 2, "cross": 2, "dot": 2,
    "extract": 2, "inner": 2, "interp": 3, "isclose": 2, "kron": 2, "linspace": 2, "logspace": 2, "outer": 2,
    "searchsorted": 2, "solve": 2, "take_along_axis": 2, "tensordot": 2, "trapezoid": 2, "vdot": 2, "vecdot": 2,
    "where": 3,
}  # fmt: skip
#: keywords of such operands
KEYWORDS = frozenset({
    "a", "a_max", "a_min", "append", "b", "fill_value", "max", "min", "prepend", "to_begin", "to_end", "v", "values",
    "weights", "where", "x", "y",
})  # fmt: skip


def as_numpy_would(op: Operator, x: Any, y: Any, error: TypeError) -> Any:
    """Apply a binary operator to operands that `apply` refused with `error`: lists as arrays, None as equal to nothing.

    Raises that error for what NumPy's operators refuse, too.
    """
    if x is None or y is None:
        if type(op) in (Equal, NotEqual):
            return apply(make_full_like(type(op) is NotEqual, "bool"), x if y is None else y)
    elif isinstance(x, list | tuple) or isinstance(y, list | tuple):
        return apply(op, nested(x), nested(y))
    raise error


def unlisted(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of NumPy's function of this name, with arrays for lists where operands are meant.

    >>> unlisted("dot", ([1, 2], 3.0), {})
    ((array([1, 2]), 3.0), {})
    """
    count = OPERANDS.get(name, 0)
    if name == "einsum" and args and isinstance(args[0], str):
        count = len(args)
    converted = tuple(nested(x) if position < count else x for position, x in enumerate(args))
    return converted, {key: nested(x) if key in KEYWORDS else x for key, x in kwargs.items()}


@functools.lru_cache(maxsize=1024)
def parameters_of(function: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function by name; none of one that does not tell."""
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return {}


def by_place(function: Any, target: Any, count: int) -> int:
    """Return how many of `count` first arguments stand at the same place in both functions; operands may be renamed."""
    theirs, ours = parameters_of(function), parameters_of(target)
    for place, (name, mine) in enumerate(zip(theirs, ours, strict=False)):
        if place >= count or (mine != name and (name in ours or mine in theirs)):
            return min(place, count)
    return min(count, len(ours))


@functools.lru_cache(maxsize=4096)
def is_alike(function: Any, target: Any, count: int, names: tuple[str, ...]) -> bool:
    """Whether a call of NumPy's function is one of ours as it is."""
    theirs, ours = parameters_of(function), parameters_of(target)
    several = any(each.kind is each.VAR_POSITIONAL for each in (*theirs.values(), *ours.values()))
    if not theirs or not ours or several:
        return True
    return by_place(function, target, count) == count and all(name in ours for name in names)


def fitted_call(
    function: Any, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments in NumPy's order and names as those of our function of that name, which `target` is.

    Arguments that only NumPy has are left out where they are its defaults (`out=None`); others raise
    `OperandTypeError`, which names them.

    >>> fitted_call(np.mean, lambda x, axis=None, keepdims=False: x, (1.0, 0, None, None, True), {})
    ((1.0, 0), {'keepdims': True})
    """
    if is_alike(function, target, len(args), tuple(kwargs)):
        return args, kwargs
    theirs, ours = parameters_of(function), parameters_of(target)
    count = by_place(function, target, len(args))
    given = dict(zip(list(theirs)[count:], args[count:], strict=False)) | kwargs
    args = args[:count]
    for name in [name for name in given if name not in ours]:
        value = given.pop(name)
        default = theirs[name].default if name in theirs else inspect.Parameter.empty
        if value is default or (type(value) is type(default) is str and value == default):
            continue
        if not args and name == next(iter(theirs)):  # the operand by NumPy's name: np.sum(a=v)
            args = (value,)
            continue
        msg = (
            f"{full_name(function)} with {name}= has no meaning on values; "
            f"xform.numpy.{function.__name__} takes {', '.join(ours)}"
        )
        raise OperandTypeError(msg, function=function, argument=name)
    return args, given


def full_name(function: Any) -> str:
    """Return the name of a NumPy function, or of another library's ufunc, as users write it.

    >>> full_name(np.fft.fft), full_name(np.spacing)
    ('np.fft.fft', 'np.spacing')
    """
    name = function.__name__
    if isinstance(function, np.ufunc):  # a ufunc does not say where it is from
        homes = [home for home in ("numpy", "scipy.special") if getattr(sys.modules.get(home), name, None) is function]
        module = homes[0] if homes else ""
    else:
        module = function.__module__ or ""
    shown = f"{module}.{name}" if module else name
    return f"np.{shown.removeprefix('numpy.')}" if shown.startswith("numpy.") else shown
