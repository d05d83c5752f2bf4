"""The observer that finds out which operation first made a NaN or an infinity."""

from __future__ import annotations

import math
import threading
import warnings
from collections import Counter
from typing import Any

import attrs
import numpy as np

from xform.core.aval import aval_of
from xform.core.backend import namespace_of
from xform.core.bases import Observer
from xform.core.errors import NanError
from xform.core.operator import Operator
from xform.core.place import Place, current
from xform.core.source import describe
from xform.core.stack import concrete
from xform.programs.holding import HoldsPrograms

__all__ = ["NanGuard", "Origin"]


@attrs.frozen(slots=True)
class Origin:
    """Where a NaN or an infinity was made: what (`"NaN"`, `"inf"`), by which operator, where, and from what."""

    kind: str
    op: str
    place: Place
    output: str
    operands: str

    def __str__(self) -> str:
        at = self.place
        phase = "forward phase" if at.phase == "forward" else f"{at.phase} phase of the operation"
        parts = [f"{self.op} made {self.output} in the {phase} at {describe(at.site)}"]
        if at.scopes:
            parts.append(f"scope {'/'.join(at.scopes)}")
        if at.loop is not None or at.iteration is not None:
            parts.append(f"loop {at.loop or ''} iteration {at.iteration}".replace("  ", " "))
        parts.append(f"operands {self.operands or 'none'}")
        return "; ".join(parts)


class NanGuard(Observer):
    """The observer that names the operator that first made a NaN or an infinity, its phase, scope and line.

    1. A *producer* gives NaN although no operand has NaN (inf - inf makes one), or an infinity although all operands
       are finite. A *propagator* was given what it passes on. An operator that was told to make an infinity
       (`FullLike(fill=inf)`) does neither.
    2. `mode="raise"` raises `NanError` (with `op`, `site`, `phase`, `origin`) at the first producer; `mode="warn"`
       warns once per producer and line, and goes on. `inf=False` looks for NaN alone.
    3. `producers` lists the origins in order, `propagators` counts the others by operator, and `report()` prints both.
    4. Above a tape it sees the user's operations; below it the backward's too, with the line of the forward operation.

    Integers and abstract values are ignored. On a device the host waits for every operation.

    >>> import numpy as np, xform as xf, xform.numpy as xnp
    >>> with np.errstate(divide="ignore"), xf.NanGuard(mode="warn", inf=False) as guard:
    ...     y = xnp.log(xf.array(0.0)) + 1.0
    >>> guard.producers
    []
    >>> with np.errstate(divide="ignore"), xf.NanGuard():
    ...     y = xnp.log(xf.array(0.0)) + 1.0  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    xform.core.errors.NanError: Log made -inf in the forward phase at ...
    """

    def __init__(self, mode: str = "raise", inf: bool = True) -> None:
        if mode not in ("raise", "warn"):
            msg = f'NanGuard(mode={mode!r}): mode must be "raise" or "warn"'
            raise ValueError(msg)
        self.mode = mode
        self.inf = inf
        self.producers: list[Origin] = []
        self.propagators: Counter[str] = Counter()
        self.from_outside: Origin | None = None
        self._counts: Counter[tuple[Any, ...]] = Counter()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"NanGuard(mode={self.mode!r}, inf={self.inf})"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def after(self, token: Any, op: Operator, inputs: tuple[Any, ...], outputs: Any) -> None:
        if op.attribute_like or isinstance(op, HoldsPrograms):  # of a loop it sees the operations inside
            return
        for position, out in enumerate(outputs if op.multiple_outputs else (outputs,)):
            raw = concrete(out)
            if not is_finite(raw):
                self._found(op, inputs, raw, position)

    def failed(self, token: Any, op: Operator, inputs: tuple[Any, ...], error: BaseException) -> None:
        """Say which operator it was where NumPy was told to raise (`np.errstate`, warnings as errors)."""
        if isinstance(error, RuntimeWarning | FloatingPointError) and not isinstance(error, NanError):
            at = current()
            error.add_note(f"raised by {op!r} in the {at.phase} phase at {describe(at.site)}")

    def report(self) -> str:
        """Return producers in the order of their first appearance, with counts, and the propagators, as text.

        >>> print(NanGuard(mode="warn").report())
        no NaN and no infinity was made
        """
        lines = []
        for origin in self.producers:
            count = self._counts[_key(origin)]
            lines.append(f"{origin}{f' ({count} times)' if count > 1 else ''}")
        if not lines:
            lines.append("no NaN and no infinity was made" if self.inf else "no NaN was made")
        if self.from_outside is not None:
            first = self.from_outside
            lines.append(f"{first.kind} came in from outside, first to {first.op} at {describe(first.place.site)}")
        if self.propagators:
            counts = ", ".join(f"{name} {count}" for name, count in self.propagators.most_common())
            lines.append(f"passed on by {counts}")
        return "\n".join(lines)

    # -------------------------------------------------------------- producers and propagators

    def _found(self, op: Operator, inputs: tuple[Any, ...], raw: Any, position: int) -> None:
        has_nan, has_inf = contents(raw)
        if not (has_nan or (has_inf and self.inf)) or _was_told(op):
            return
        given = [contents(concrete(value)) for value in inputs]
        nan_in, inf_in = any(nan for nan, _ in given), any(inf for _, inf in given)
        made_nan = has_nan and not nan_in
        made_inf = has_inf and self.inf and not (nan_in or inf_in)
        where = f" in output {position}" if op.multiple_outputs else ""
        kind = "NaN" if made_nan or (has_nan and not made_inf) else "inf"
        origin = Origin(kind, repr(op).removesuffix("()"), current(), described(raw, kind) + where, _operands(inputs))
        if made_nan or made_inf:
            self._produced(origin, op)
        else:
            with self._lock:
                self.propagators[op.name] += 1
                if not self.producers and self.from_outside is None:
                    self.from_outside = origin

    def _produced(self, origin: Origin, op: Operator) -> None:
        with self._lock:
            key = _key(origin)
            self._counts[key] += 1
            known = self._counts[key] > 1
            if not known:
                self.producers.append(origin)
        if self.mode == "raise":
            at = origin.place
            raise NanError(str(origin), op=op, site=at.site, phase=at.phase, scopes=at.scopes, origin=origin)
        if not known:
            filename, line = origin.place.line
            warnings.warn_explicit(str(origin), RuntimeWarning, filename, line)


def _key(origin: Origin) -> tuple[Any, ...]:
    return origin.kind, origin.op, origin.place.site, origin.place.phase


def _operands(inputs: tuple[Any, ...]) -> str:
    return ", ".join(_ranged(value) for value in inputs)


def _ranged(value: Any) -> str:
    """Return an operand's type, with its number or its range where the host has it."""
    raw, text = concrete(value), repr(aval_of(value))
    if isinstance(raw, np.ndarray) and raw.size and raw.dtype.kind in "iuf":
        low, high = np.min(raw), np.max(raw)
        return f"{text} = {low:.6g}" if raw.ndim == 0 else f"{text} from {low:.6g} to {high:.6g}"
    return f"{text} = {raw:.6g}" if isinstance(raw, float | int) else text


def described(raw: Any, kind: str) -> str:
    """Return what was made: the number, and where its first and how many of how many elements, for arrays of the host.

    >>> described(np.array([1.0, -np.inf]), "inf")
    '-inf at (1,), in 1 of 2 elements,'
    """
    if not isinstance(raw, np.ndarray) or raw.ndim == 0:
        return str(raw) if isinstance(raw, float | complex | np.generic | np.ndarray) else kind
    bad = np.isnan(raw) if kind == "NaN" else np.isinf(raw)
    first = tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), raw.shape))
    return f"{raw[first]} at {first}, in {int(np.count_nonzero(bad))} of {raw.size} elements,"


def _was_told(op: Operator) -> bool:
    """Whether an operator has a parameter that is itself no finite number, so that its result is meant."""
    values = (getattr(op, name, None) for name in getattr(type(op), "__match_args__", ()))
    return any(isinstance(value, float | complex) and not is_finite(value) for value in values)


# ------------------------------------------------------------------ what an array holds

#: elements from which on one pass of BLAS is faster than `isfinite`
_LARGE = 10_000


def is_finite(raw: Any) -> bool:
    """Whether a raw array or number holds no NaN and no infinity; true of integers, and of what is no array.

    >>> is_finite(np.ones(3)), is_finite(np.array([1.0, np.nan])), is_finite(3), is_finite(None)
    (True, False, True, True)
    """
    kind = type(raw)
    if kind is float:
        return math.isfinite(raw)
    if kind is np.ndarray:
        return _is_finite_array(raw)
    xp = None if raw is None else namespace_of(raw)
    if xp is None or aval_of(raw).dtype.kind not in "fc":
        return True
    return bool(np.isfinite(raw).all()) if xp is np else bool(xp.all(xp.isfinite(raw)))


def _is_finite_array(raw: np.ndarray[Any, Any]) -> bool:
    if raw.dtype.kind not in "fc":
        return True
    if raw.size > _LARGE and raw.flags.forc and raw.dtype.char in "fd" and _dot_is_finite(raw):
        return True
    return bool(np.isfinite(raw).all())


def _dot_is_finite(raw: np.ndarray[Any, Any]) -> bool:
    """Whether the sum of squares is finite: then every element is; where it is not, it may only have overflowed."""
    flat = raw.ravel(order="K")
    with np.errstate(all="ignore"):
        return math.isfinite(np.dot(flat, flat))


def contents(raw: Any) -> tuple[bool, bool]:
    """Return whether a raw value holds a NaN, and whether an infinity.

    >>> contents(np.array([1.0, np.inf]))
    (False, True)
    """
    if is_finite(raw):
        return False, False
    xp = namespace_of(raw)
    if xp is np:
        return bool(np.isnan(raw).any()), bool(np.isinf(raw).any())
    return bool(xp.any(xp.isnan(raw))), bool(xp.any(xp.isinf(raw)))
