"""`safe_where`: a function applied only where it is defined, in its derivatives too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xform.core.aval import Aval
from xform.core.backend import is_raw
from xform.core.devices import to_host
from xform.core.errors import HostReadError, OperandTypeError
from xform.core.functions import require_function
from xform.core.source import boundary
from xform.core.stack import concrete, levels
from xform.core.value import Value
from xform.ops.reductions import any as any_true
from xform.ops.selection import where
from xform.ops.stand_ins import stand_in
from xform.ops.structural import stop_gradient
from xform.transforms.operands import label_of
from xform.transforms.plans import home_of
from xform.transforms.tape import zeros_of
from xform.transforms.trace import eval_shape

__all__ = ["safe_where"]


@boundary
def safe_where(cond: Any, fn: Callable[[Any], Any], x: Any, otherwise: Any) -> Any:
    """Return `where(cond, fn(x), otherwise)`, where neither value nor derivatives see `x` outside of `cond`.

    In `where(x > 0, log(x), 0)` the logarithm and its derivative are computed everywhere: a warning, an infinity, and
    0 * inf = nan in the gradient. Here `fn` is given, in place of the elements outside of `cond`, elements from inside:

    1. `fn` takes one array and returns one; it works element by element, or along axes that `cond` does not have (or
       has with length 1): `cond` of shape (n, 1) chooses rows of an (n, k) array.
    2. Where `cond` is false everywhere, `fn` computes nothing (its shape is found as `eval_shape` does). Only where
       that cannot be known, in a recorded program, does it see ones; what it gives for them is thrown away.
    3. In a batch an element of another lane may stand in.

    `cond`, `x` and `otherwise` broadcast together. Derivatives reach `x`, `otherwise` and what `fn` closes over. Raises
    `OperandTypeError` where `fn` returns no array.

    >>> import numpy as np, xform as xf
    >>> x = np.array([0.0, 2.0, -1.0])
    >>> xf.safe_where(x > 0, np.sqrt, x, 0.0)
    array([0.        , 1.41421356, 0.        ])
    >>> xf.grad(lambda x: xf.safe_where(x > 0, np.log, x, 0.0).sum())(x)
    array([0. , 0.5, 0. ])
    """
    require_function(fn, "safe_where")
    safe = stand_in(cond, x)
    out = fn(safe) if may_hold(cond) else unused(fn, safe)
    if not isinstance(out, Value) and not is_raw(out):
        msg = f"safe_where: {label_of(fn)} returned {type(out).__name__}, no array: {out!r:.60}; return one array"
        raise OperandTypeError(msg, output=out)
    return where(cond, out, otherwise)


def may_hold(cond: Any) -> bool:
    """Whether a condition is true somewhere, in any lane; True where a program is recorded for other conditions too."""
    if any(level.layer is not None and level.layer.records for level in levels()):
        return True
    found = any_true(cond)
    try:
        return bool(found)
    except HostReadError:
        raw = concrete(found)
        return raw is None or bool(to_host(raw).any())


def unused(fn: Callable[[Any], Any], safe: Any) -> Any:
    """Return zeros of what a function would give, or what it gives for ones if that takes numbers to know."""
    try:
        found = eval_shape(fn, safe)
    except HostReadError:
        found = None
    if isinstance(found, Aval) and None not in found.shape:
        return zeros_of(found, home_of(safe), raw=not isinstance(safe, Value))
    return stop_gradient(fn(safe))
