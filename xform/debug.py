"""Looking at values where they are computed, under every transformation."""

from __future__ import annotations

from typing import Any

from xform import tree
from xform.core.backend import is_raw
from xform.core.errors import OperandError, OperandTypeError
from xform.core.source import boundary
from xform.core.stack import apply
from xform.core.value import Value
from xform.ops.structural import Print

__all__ = ["print"]


class Anything:
    """Takes every format, attribute and index, so that a template is checked without a value."""

    def __format__(self, spec: str) -> str:
        return ""

    def __getattr__(self, name: str) -> Anything:
        return self

    def __getitem__(self, index: Any) -> Anything:
        return self


@boundary
def print(template: str, *args: Any, **kwargs: Any) -> None:
    """Print `template.format(*args, **kwargs)` with the numbers that tracked values have when the program runs.

    A traced or compiled function prints at each call, a loop in each round, a batch all lanes in one array, as it is
    stored; derivatives print nothing more. Arguments are arrays, numbers, or containers of them; a format such as `.2f`
    holds for each element of an array. Raises `OperandError` where the template asks for an argument that is not there,
    `OperandTypeError` for what is no array.

    >>> import numpy as np, xform as xf
    >>> @xf.trace
    ... def square(x):
    ...     xf.debug.print("x = {}, sum {total:.1f}", x, total=np.sum(x))
    ...     return x * x
    >>> squares = square(np.array([1.0, 2.0])), square(np.array([3.0, 4.0]))
    x = [1. 2.], sum 3.0
    x = [3. 4.], sum 7.0
    """
    if not isinstance(template, str):
        msg = f"debug.print: the template must be a str, got {template!r:.60}; write debug.print('{{}}', x)"
        raise OperandTypeError(msg, value=template)
    try:
        template.format(*[Anything() for _ in args], **dict.fromkeys(kwargs, Anything()))
    except (IndexError, KeyError, ValueError) as error:
        msg = f"debug.print: {template!r} does not fit {len(args)} arguments and the names {sorted(kwargs)}: {error!r}"
        raise OperandError(msg, value=template) from error
    paths, structure = tree.flatten_with_paths((args, kwargs))
    for path, leaf in paths:
        if not isinstance(leaf, Value) and not is_raw(leaf):
            msg = f"debug.print: argument {path} is {type(leaf).__name__}, no array; write it into the template"
            raise OperandTypeError(msg, value=leaf)
    apply(Print(template, structure), *[leaf for _, leaf in paths])
