"""Arrays like another value: of its shape, dtype and device."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from xform.core.aval import Aval, aval_of
from xform.core.backend import SCALAR_TYPES
from xform.core.operator import Operator, interned, is_negative_zero
from xform.core.rules import batch_rule, jvp_rule, vjp_rule
from xform.core.stack import apply

__all__ = ["FullLike", "ones_like", "zeros", "zeros_like"]


@attrs.frozen
class FullLike(Operator):
    """An array of one number, of the device of the operand, and of its dtype and shape where none are given."""

    fill: float | complex = attrs.field(eq=repr)  # 0.0 is not -0.0
    dtype: str | None = None
    shape: tuple[int, ...] | None = attrs.field(default=None, repr=False)

    def infer(self, x: Aval) -> Aval:
        """The operand's shape."""
        dtype = x.dtype if self.dtype is None else np.dtype(self.dtype)
        if self.shape is not None:
            return Aval(self.shape, dtype)
        return Aval(x.shape, dtype, x.weak and self.dtype is None)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Make the array; of a Python number, a Python number."""
        if self.dtype is None and self.shape is None and type(x) in SCALAR_TYPES:
            return type(x)(self.fill)
        if xp is not np:
            dtype = x.dtype if self.dtype is None else getattr(xp, self.dtype)
            return xp.full(x.shape if self.shape is None else self.shape, self.fill, dtype=dtype, device=x.device)
        x = np.asarray(x)
        shape, dtype = x.shape if self.shape is None else self.shape, x.dtype if self.dtype is None else self.dtype
        filled = self.fill or is_negative_zero(self.fill)  # zeros cost nothing before they are touched
        return np.full(shape, self.fill, dtype) if filled else np.zeros(shape, dtype)


make_full_like = interned(FullLike)
vjp_rule.none(FullLike, why="its numbers do not depend on the operand's")
jvp_rule.none(FullLike, why="its numbers do not depend on the operand's")


@batch_rule(FullLike)
def full_like_batch(op: FullLike, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> tuple[Any, Any]:
    """The same, of the batched operand; of a given shape it is the same in all lanes."""
    return apply(op, values[0]), axes[0] if op.shape is None else None


def zeros(shape: Any, dtype: Any) -> Any:
    """Return raw zeros of a shape."""
    return np.zeros(shape, dtype)


def zeros_like(x: Any, dtype: Any = None) -> Any:
    """Return zeros of the shape, dtype and device of `x`.

    >>> zeros_like(np.ones(2))
    array([0., 0.])
    """
    return apply(make_full_like(0, None if dtype is None else np.dtype(dtype).name), x)


def zeros_beside(x: Any, like: Any) -> Any:
    """Return zeros like `like` on the device of `x`; `like` is not read where its shape is known.

    >>> zeros_beside(2.0, np.ones(2, np.float32))
    array([0., 0.], dtype=float32)
    """
    aval = aval_of(like)
    if None in aval.shape:
        return zeros_like(like)
    return apply(make_full_like(0, aval.dtype.name, aval.shape), x)


def ones_like(x: Any, dtype: Any = None) -> Any:
    """Return ones of the shape, dtype and device of `x`.

    >>> ones_like(np.zeros(2))
    array([1., 1.])
    """
    return apply(make_full_like(1, None if dtype is None else np.dtype(dtype).name), x)
