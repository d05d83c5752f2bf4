"""The observer that measures time: per operator, per scope, forward and backward told apart."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from contextvars import ContextVar
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

from xform.core.aval import aval_of
from xform.core.backend import HOST_TYPES, namespace_of
from xform.core.bases import Observer
from xform.core.devices import backend_of
from xform.core.errors import OperandTypeError, ShapeError
from xform.core.operator import Operator
from xform.core.place import Place, place
from xform.core.stack import concrete
from xform.core.value import Array
from xform.ops.structural import PopScope, PushScope
from xform.transforms.profile_report import Event, Row, chrome_events, html_of, rounds_of, rows_by, text_of

__all__ = ["Profile"]

_place = place.get
_now = perf_counter_ns
_thread = threading.get_ident


class Frame:
    """An operation or a scope that has begun and not ended; frames of one context are a chain."""

    __slots__ = ("entered", "iteration", "last", "loop", "nested", "owner", "parent", "path", "phase", "scope", "start")

    def __init__(self, owner: Profile, parent: Frame | None, entered: int, at: Place, scope: str | None) -> None:
        self.owner = owner
        self.parent = parent
        self.entered = entered
        self.path = at.scopes if scope is None or at.scopes[-1:] == (scope,) else (*at.scopes, scope)
        self.phase = at.phase
        self.scope = scope
        self.loop = at.loop
        self.iteration = at.iteration
        self.nested = 0  # time of scopes and operations inside, this profile's own time included
        self.last = 0  # when the last of them had ended
        self.start = 0


#: what has begun in this thread or task: a task inherits a chain and cannot disturb the one it came from
_open: ContextVar[Frame | None] = ContextVar("xform profile", default=None)


class Profile(Observer):
    """The observer that measures every operation, and the scopes around them.

    1. Above a tape it sees the user's operations; below it the backward's too, with `phase` "backward" and scopes such
       as `Sin.Backward`.
    2. The self time of an operation excludes the operations inside it; that of a scope is the time outside operations
       and inner scopes, which is Python's.
    3. It keeps names, shapes and times, never arrays. `max_events` bounds what `save` can write; counts go on after it.
    4. `overhead` is the time in seconds that the profile itself took; the times of operations do not contain it.
    5. `sync=True` waits for the device of an operation's results (CuPy returns before a kernel has finished).
    6. `save="trace.json"` writes the trace when the layer is left, also by an exception.
    7. Of operations inside loops it knows the loop and the round. It is told of them when they have run: their time is
       what has passed since the one before.

    >>> import xform as xf, xform.numpy as xnp
    >>> with xf.Profile() as profile, xf.named_scope("layer1"):
    ...     y = xnp.sin(xf.array(1.0)) + 1.0
    >>> profile.calls("Sin"), profile.calls()
    (1, 2)
    """

    def __init__(self, save: str | Path | None = None, *, sync: bool = False, max_events: int = 1_000_000) -> None:
        if save is not None and not Path(save).absolute().parent.is_dir():
            msg = f"Profile(save={str(save)!r}): the folder {Path(save).absolute().parent} does not exist"
            raise FileNotFoundError(msg)
        self.save_to = save
        self.sync = sync
        self.max_events = max_events
        self.events: list[Event] = []
        self._lock = threading.Lock()
        self._rows: dict[tuple[Any, ...], Row] = {}
        self._overhead = 0
        self._began: int | None = None
        self._ended = 0

    def __repr__(self) -> str:
        return f"Profile({self.calls()} operations)"

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return {**vars(self), "_lock": None, "_rows": dict(self._rows), "events": list(self.events)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    # -------------------------------------------------------------- watching

    def before(self, op: Operator, inputs: tuple[Any, ...]) -> Frame | None:
        entered = _now()
        if type(op) is PopScope:
            return None
        scope = op.scope if type(op) is PushScope else None
        frame = Frame(self, _open.get(), entered, _place(), scope)
        if self._began is None:
            self._began = entered
        _open.set(frame)
        frame.start = _now()
        return frame

    def after(self, token: Frame | None, op: Operator, inputs: tuple[Any, ...], outputs: Any) -> None:
        if token is None:
            self._close_scope(op.scope)  # type: ignore[attr-defined]
        elif token.scope is None:
            if self.sync:
                synchronize(outputs)
            found = outputs if op.multiple_outputs else (outputs,)
            self._close(token, op.name, inputs, found, error=None)

    def told(self, op: Operator, inputs: tuple[Any, ...], outputs: Any) -> None:
        frame = self.before(op, inputs)
        around = self._around(frame)
        if frame is not None and frame.iteration is not None and around is not None and around.last:
            frame.entered = frame.start = around.last
        self.after(frame, op, inputs, outputs)

    def failed(self, token: Frame | None, op: Operator, inputs: tuple[Any, ...], error: BaseException) -> None:
        if token is not None:
            self._close(token, op.name, inputs, (), error=type(error).__name__)

    def on_unregister(self) -> None:
        """End what is still open here: a scope that outlives the profile."""
        while (frame := self._innermost()) is not None:
            self._close(frame, frame.scope or "unfinished", (), (), error=None)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        try:
            super().__exit__(kind, error, traceback)
        finally:
            if self.save_to is not None:
                self.save(self.save_to)

    def _innermost(self) -> Frame | None:
        frame = _open.get()
        return frame if frame is None or frame.owner is self else self._around(frame)

    def _around(self, frame: Frame | None) -> Frame | None:
        """Return the frame of this profile that a frame is in."""
        frame = None if frame is None else frame.parent
        while frame is not None and frame.owner is not self:
            frame = frame.parent
        return frame

    def _close_scope(self, scope: str) -> None:
        """End the innermost open scope of this name; where the profile began inside of it, there is none."""
        frame = self._innermost()
        while frame is not None and (frame.owner is not self or frame.scope != scope):
            frame = frame.parent
        if frame is not None:
            self._close(frame, scope, (), (), error=None)

    def _close(self, frame: Frame, name: str, inputs: Any, outputs: Any, error: str | None) -> None:
        end = _now()
        kind = "operator" if frame.scope is None else "scope"
        path, phase, start = frame.path, frame.phase, frame.start
        shapes = tuple([shape_of(value) for value in inputs])
        size = 0
        for value in outputs:
            size += nbytes(value)
        key = (kind, name, path, phase, shapes, frame.loop)
        if _open.get() is frame:
            _open.set(frame.parent)
        else:
            _unlink(frame)
        parent = self._around(frame)
        at = frame.loop, frame.iteration
        with self._lock:
            row = self._rows.get(key)
            if row is None:
                row = self._rows[key] = Row(*key)
            total = end - start
            row.calls += 1
            row.total += total
            row.own += max(0, total - frame.nested)
            row.size += size
            if error is not None:
                row.failures += 1
            if len(self.events) < self.max_events:
                self.events.append(Event(name, kind, path, phase, start, end, shapes, size, _thread(), error, *at))
            ended = self._ended = _now()
            self._overhead += ended - end + start - frame.entered
            if parent is not None:
                parent.nested += ended - frame.entered
                parent.last = ended

    # -------------------------------------------------------------- what was measured

    @property
    def overhead(self) -> float:
        """Seconds that this profile itself took."""
        return self._overhead / 1e9

    @property
    def rows(self) -> list[Row]:
        """What was measured: one row for each operator (or scope), scope path, phase, and shapes of operands."""
        with self._lock:
            return list(self._rows.values())

    def calls(
        self,
        name: str | None = None,
        *,
        phase: str | None = None,
        scope: str | None = None,
        loop: str | None = None,
        iteration: int | None = None,
    ) -> int:
        """Return how often an operator was applied (default: all), in a phase, inside a scope, in a loop, in a round.

        Rounds count from 0; of operations beyond `max_events` it is not known in which one they were.

        >>> Profile().calls("Add")
        0
        """
        found: Iterable[Row | Event] = self.rows
        if iteration is not None:
            found = [event for event in list(self.events) if event.iteration == iteration]
        return sum(
            each.calls
            for each in found
            if each.kind == "operator"
            and name in (None, each.name)
            and phase in (None, each.phase)
            and loop in (None, each.loop)
            and (scope is None or scope in each.path)
        )

    def table(self, sort: str = "self", limit: int | None = 20, by: str = "operator") -> str:
        """Return a table as text, one line per operator and phase.

        `sort` is "self", "total", "calls", "bytes" or "name"; `limit` is the number of lines, None for all; `by` is
        "operator", "scope", "shape" (operator and shapes), "loop" or "round" (of a loop; events beyond `max_events` are
        not in it). Raises ValueError for anything else.

        >>> print(Profile().table().splitlines()[0])
        operator  phase  calls  self ms  self %  total ms  MB  shapes
        """
        lines = rounds_of(self.events) if by == "round" else rows_by(self.rows, by)
        return text_of(lines, by, sort, limit, self._summary())

    def report(self) -> str:
        """Return the table, with its summary; `python -m xform run --with profile` prints it at the end."""
        return self.table()

    def save(self, path: str | Path) -> None:
        """Write the events in Chrome's trace format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

        Source: "Trace Event Format", Google, 2016; complete events (`"ph": "X"`), times in microseconds.
        """
        began = self._began or 0
        with self._lock:
            events = list(self.events)
        document = {
            "traceEvents": chrome_events(events, began),
            "displayTimeUnit": "ms",
            "otherData": {"overhead_s": self.overhead},
        }
        Path(path).write_text(json.dumps(document), encoding="utf-8")

    def _repr_html_(self) -> str:
        return html_of(rows_by(self.rows, "operator"), rows_by(self.rows, "scope"), self._summary())

    def _summary(self) -> str:
        wall = 0 if self._began is None else self._ended - self._began
        inside = sum(row.own for row in self.rows if row.kind == "operator")
        share = f" ({100 * self._overhead / wall:.1f} %)" if wall else ""
        text = (
            f"{self.calls()} operations: {inside / 1e6:.3f} ms in operators, {wall / 1e6:.3f} ms from first to last; "
            f"the profile's own overhead {self._overhead / 1e6:.3f} ms{share}"
        )
        kept = len(self.events)
        return text if kept < self.max_events else f"{text}; events after the first {kept} are counted, not kept"


def _unlink(frame: Frame) -> None:
    """Take a frame out of the chain of this context; those that began later and go on stay."""
    chain, kept = _open.get(), []
    at = chain
    while at is not None and at is not frame:
        kept.append(at)
        at = at.parent
    if at is None:
        return
    if not kept or frame.scope is None:  # what an operation left open inside of it ends with it
        _open.set(frame.parent)
        return
    kept[-1].parent = frame.parent


def shape_of(value: Any) -> tuple[int | None, ...] | str:
    """Return the shape of a value, or the name of its class for what is no array.

    >>> shape_of(1.0), shape_of(slice(3))
    ((), 'slice')
    """
    if type(value) is Array:
        value = value.data
    if type(value) is np.ndarray:
        return value.shape  # type: ignore[no-any-return]
    try:
        return aval_of(value).shape
    except OperandTypeError:
        return type(value).__name__


def nbytes(value: Any) -> int:
    """Return the bytes of a value, 0 where a length is unknown, and for what is no array.

    >>> nbytes(1.0)
    8
    """
    if type(value) is Array:
        value = value.data
    if type(value) is np.ndarray:
        return value.nbytes
    try:
        aval = aval_of(value)
        return aval.size * aval.dtype.itemsize
    except (OperandTypeError, ShapeError):
        return 0


def synchronize(outputs: Any) -> None:
    """Wait for the devices that compute results."""
    for value in outputs if isinstance(outputs, tuple) else (outputs,):
        raw: Any = concrete(value)
        if type(raw) not in HOST_TYPES and namespace_of(raw) is not None:
            backend_of(raw).synchronize(getattr(raw, "device", None))
