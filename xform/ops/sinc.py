"""sinc and its derivatives of every order, exact at 0 and near it.

With `f(u) = sin(u) / u`, `u f^(n) = sin^(n)(u) - n f^(n-1)` loses digits where `|u| < n`; there the power series
`f^(n)(u) = sum over p = n mod 2, ... of (-1)^((n + p) / 2) u^p / ((n + p + 1) p!)` serves.
"""

from __future__ import annotations

import math
from typing import Any

import attrs
import numpy as np

from xform.core.aval import Aval, aval_of, result_dtype
from xform.core.operator import Operator, interned
from xform.core.rules import batch_rule, partials
from xform.core.stack import apply
from xform.ops.arithmetic import mul
from xform.ops.base import cast_raw, elementwise_batch

__all__ = ["Sinc", "sinc"]


@attrs.frozen
class Sinc(Operator):
    """Derivative of some order of `sin(pi x) / (pi x)`; order 0 is the function itself."""

    order: int

    def infer(self, x: Aval) -> Aval:
        """The operand's shape, and a floating dtype."""
        return Aval(x.shape, floating(x))

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Compute on raw arrays."""
        dtype = floating(aval_of(x))
        if xp is np and self.order == 0:
            return np.sinc(np.asarray(x, dtype))
        x = np.asarray(x, dtype) if xp is np else cast_raw(xp, x, dtype, x)
        u = x * math.pi
        near = xp.abs(u) <= max(self.order, 1)
        inside, outside = xp.where(near, u, xp.zeros_like(u)), xp.where(near, xp.ones_like(u), u)
        found = xp.where(near, by_series(inside, self.order), by_recurrence(xp, outside, self.order))
        return found * math.pi**self.order


def floating(x: Aval) -> np.dtype[Any]:
    """Return the dtype of the result: integers become double precision."""
    return result_dtype(x, aval_of(1.0))


def by_series(u: Any, order: int) -> Any:
    """Sum the power series, for `|u|` up to `max(order, 1)`."""
    first = order % 2
    powers = range(first, first + 22 + 6 * order, 2)
    total = 0.0 * u
    for p in reversed(powers):
        total = total * (u * u) + (-1.0) ** ((order + p) // 2) / ((order + p + 1) * math.factorial(p))
    return total * u if first else total


def by_recurrence(xp: Any, u: Any, order: int) -> Any:
    """Climb from order 0, for `|u|` of at least `order`."""
    sine, cosine = xp.sin(u), xp.cos(u)
    found = sine / u
    for n in range(1, order + 1):
        turned = (sine, cosine, -sine, -cosine)[n % 4]
        found = (turned - n * found) / u
    return found


batch_rule(Sinc)(elementwise_batch)
make_sinc = interned(Sinc)

partials(Sinc, lambda t, op, x: mul(t, apply(make_sinc(op.order + 1), x)))


def sinc(x: Any, /) -> Any:
    """Return `sin(pi x) / (pi x)`, which is 1 at 0; its derivatives of every order are exact near 0.

    >>> float(sinc(0.0))
    1.0
    """
    return apply(make_sinc(0), x)
