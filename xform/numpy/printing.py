"""NumPy's ways to print an array, on values that hold one."""

from __future__ import annotations

from typing import Any

import numpy as np

from xform.core.aval import aval_of
from xform.core.devices import to_host
from xform.core.stack import concrete

__all__ = ["array2string", "array_repr", "array_str"]


def array2string(a: Any, *args: Any, **kwargs: Any) -> str:
    """Return a text of an array's elements; of a value that holds none, what it prints as.

    >>> array2string(np.array([1.0, 2.0]))
    '[1. 2.]'
    """
    return _printed(np.array2string, a, args, kwargs)


def array_repr(a: Any, *args: Any, **kwargs: Any) -> str:
    """Return the text that makes an array; of a value that holds none, what it prints as.

    >>> array_repr(np.array([1.0, 2.0]))
    'array([1., 2.])'
    """
    return _printed(np.array_repr, a, args, kwargs)


def array_str(a: Any, *args: Any, **kwargs: Any) -> str:
    """Return the elements as text; of a value that holds none, what it prints as.

    >>> array_str(np.array([1.0, 2.0]))
    '[1. 2.]'
    """
    return _printed(np.array_str, a, args, kwargs)


def _printed(show: Any, a: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    raw = concrete(a)
    if raw is None or getattr(raw, "shape", ()) != aval_of(a).shape:
        return repr(a)
    return str(show(np.asarray(to_host(raw)), *args, **kwargs))
