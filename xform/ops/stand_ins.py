"""A stand-in for elements that a function must not see, for `xf.safe_where`."""

from __future__ import annotations

from typing import Any

import numpy as np

from xform.core.aval import Aval
from xform.core.backend import SCALAR_TYPES
from xform.core.rules import partials
from xform.core.stack import apply
from xform.ops.base import Elementwise, Parameterless
from xform.ops.selection import where

__all__ = ["StandIn", "stand_in"]


class StandIn(Parameterless, Elementwise):
    """The second operand where the first is true, elsewhere a constant: elements of it from where the first is true.

    Along an axis that the condition does not have (or has with length 1) the operand keeps its elements: of a condition
    that chooses rows, a whole row stands in. Where nothing is true, ones do. In a batch another lane may stand in.
    """

    __slots__ = ()
    only_composed = True  # its result varies with what stands in, which nobody is to see

    def infer(self, *avals: Aval) -> Aval:
        """Broadcast shapes, and the dtype of the second operand."""
        condition, x = avals
        return Aval(self.broadcast(condition, x), x.dtype)

    def evaluate(self, xp: Any, condition: Any, x: Any) -> Any:
        """Choose."""
        like = condition if type(x) in SCALAR_TYPES else x
        device = {} if xp is np or type(like) in SCALAR_TYPES else {"device": like.device}
        x = xp.asarray(x, **device)
        condition = xp.asarray(condition, **device)
        condition = condition if condition.dtype == xp.asarray(True).dtype else condition != 0
        first = first_true(xp, condition)
        if first is None:
            return xp.where(condition, x, xp.ones_like(x))
        extra = len(x.shape) - len(condition.shape)
        place: list[Any] = [*[0] * extra, *np.unravel_index(first, condition.shape)][max(0, -extra) :]
        widths = [*[1] * extra, *condition.shape][max(0, -extra) :]
        index = tuple(
            slice(int(at), int(at) + 1) if width > 1 and length > 1 else slice(None)
            for at, width, length in zip(place, widths, x.shape, strict=True)
        )
        return xp.where(condition, x, x[index])


def first_true(xp: Any, condition: Any) -> int | None:
    """Return the position of the first true element of a flattened raw array, None where there is none.

    >>> first_true(np, np.array([[False, False], [True, True]])), first_true(np, np.zeros(0, bool))
    (2, None)
    """
    flat = xp.reshape(condition, (-1,))
    if xp is np:  # it stops at the first
        at = int(flat.argmax()) if flat.size else 0
        return at if flat.size and flat[at] else None
    found = xp.nonzero(flat)[0]
    return int(found[0]) if found.shape[0] else None


partials(StandIn, None, lambda t, condition: where(condition, t, 0))


def stand_in(condition: Any, x: Any) -> Any:
    """Return `x` where the condition is true, elsewhere elements from there: the same shape, and nothing unsafe.

    >>> stand_in(np.array([False, True, True]), np.array([0.0, 2.0, 3.0]))
    array([2., 2., 3.])
    """
    return apply(STAND_IN, condition, x)


STAND_IN = StandIn()
