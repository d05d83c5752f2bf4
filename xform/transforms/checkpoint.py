"""Checkpoints: functions whose intermediate values are computed again in backward, in place of being kept.

The function runs once, in Python; a tape notes its operations (`transforms.regions`), and does them again when backward
asks for their results (`transforms.recomputation`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from xform.core.aval import aval_of
from xform.core.errors import OperandTypeError
from xform.core.functions import require_function
from xform.core.source import boundary
from xform.ops.structural import Name
from xform.transforms.operands import label_of
from xform.transforms.recomputation import nothing, unrecorded
from xform.transforms.regions import Policy

__all__ = ["checkpoint"]


def policy_of(policy: Any, what: str) -> Policy:
    """Return a policy as a function of an operation and its operands."""
    if policy is None:
        return nothing
    if callable(policy):
        return lambda op, operands: bool(policy(op, *map(aval_of, operands)))
    names = (policy,) if isinstance(policy, str) else tuple(policy) if isinstance(policy, Iterable) else (None,)
    if not all(isinstance(name, str) for name in names):
        msg = (
            f"{what}: policy is names that xf.name(v, name) gives, or a function (op, *avals) -> bool; "
            f"got {policy!r:.60}"
        )
        raise OperandTypeError(msg, value=policy)
    labels = frozenset(names)
    return lambda op, operands: isinstance(op, Name) and op.label in labels


def checkpoint(fun: Callable[..., Any], *, policy: Any = None) -> Callable[..., Any]:
    """Return `fun` with its intermediate values computed again in backward, so that no tape keeps them.

    Values and derivatives, of all orders and in both modes, are those of `fun`; what it takes from around it has its
    derivative too. A tape keeps of a call only those arguments and captured values that backward needs. Backward runs
    again the operations whose results it needs, each once: more time for less memory, in a loop over `n` bodies that
    of their `n` carries. It nests. A program records operations alone: write `checkpoint(trace(f))`.

    `policy` says what is kept in place of being computed again: names that `xf.name(v, name)` gives inside of `fun`, or
    a function `(op, *avals) -> bool` of operations and the avals of their operands.

    `fun` itself runs once, when it is called. Backward repeats its operations and not its Python code: random numbers
    and branches are those of the call, side effects happen once. Arrays that plain NumPy makes of untracked ones inside
    of `fun` are kept as they are; where that is much, track what they are made of: `xf.array(w)`. Raises
    `OperandTypeError` for what is no function and for a policy of another kind; errors of backward name the function.

    >>> import numpy as np, xform as xf
    >>> layer = xf.checkpoint(lambda x: np.sin(np.sin(x)))
    >>> with xf.Profile() as profile:
    ...     gradient = xf.grad(layer)(1.0)
    >>> round(gradient, 6), profile.calls("Sin"), profile.calls("Cos")  # Sin: twice forward, once more in backward
    (0.360039, 3, 2)

    Source: A. Griewank and A. Walther, Algorithm 799: Revolve, ACM TOMS 26 (2000); T. Chen et al., arXiv:1604.06174.
    """
    require_function(fun, "checkpoint")
    label = label_of(fun)
    keeps = policy_of(policy, f"checkpoint of {label}")

    @boundary
    @functools.wraps(fun)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        return unrecorded(label, keeps, fun, *args, **kwargs)

    return checkpointed
