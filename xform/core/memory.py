"""Whose memory an array is, and results that share none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from xform.core.value import Array, Value

__all__ = ["owner_of", "unshared"]


def owner_of(x: Any) -> Any:
    """Return the array that owns the memory of a view.

    >>> whole = np.ones((2, 3))
    >>> owner_of(whole.T[0]) is whole
    True
    """
    x = x.data if type(x) is Array else x
    while not isinstance(x, Value) and (base := getattr(x, "base", None)) is not None:
        x = base
    return x


def unshared(results: Iterable[Any], given: Iterable[Any] = ()) -> list[Any]:
    """Return results with copies of what is read-only, and of memory of another one, or of what was given.

    A derivative hands one array to several places, as a rule; what users get is theirs to change.

    >>> first, second = unshared([given := np.ones(2), given])
    >>> first is given, second is given
    (True, False)
    """
    seen = {id(owner_of(x)) for x in given}
    out = []
    for result in results:
        raw = result.data if type(result) is Array else result
        if type(raw) is np.ndarray:
            base = id(raw if raw.base is None else owner_of(raw))
            if base in seen or not raw.flags.writeable:
                raw = raw.copy()
                if type(result) is Array:
                    result = Array()  # noqa: PLW2901
                    result.data = raw
                else:
                    result = raw  # noqa: PLW2901
            else:
                seen.add(base)
        out.append(result)
    return out
