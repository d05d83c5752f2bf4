"""The recorder of `xf.trace`: what the function reads becomes a guard, never a constant."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from xform.core.aval import Aval, aval_of
from xform.core.backend import SCALAR_TYPES
from xform.core.errors import (
    CaptureError,
    HostReadError,
    OperandError,
    OperandTypeError,
    TooManyPathsError,
    TraceMismatchError,
    XformError,
)
from xform.core.operator import Operator
from xform.core.source import describe, user_site
from xform.core.stack import apply, concrete, levels
from xform.ops.structural import HostRead
from xform.programs.program import Constant, Equation, Literal, Variable
from xform.transforms.departures import Follower
from xform.transforms.paths import Event, Paths, Read, Result, failure_key, outcome_key
from xform.transforms.recorder import Trace, TraceValue

__all__ = ["GuardedTrace", "Options"]


@attrs.frozen
class Options:
    """How a function is traced: see `xf.trace`."""

    guards: str = "record"
    capture: str = "constant"
    check: bool = False
    max_paths: int = 16

    def __attrs_post_init__(self) -> None:
        for name, allowed in (("guards", ("record", "error")), ("capture", ("constant", "error"))):
            if getattr(self, name) not in allowed:
                msg = f"trace: {name} must be {' or '.join(map(repr, allowed))}, got {getattr(self, name)!r}"
                raise OperandError(msg, argument=name)
        if isinstance(self.max_paths, bool) or not isinstance(self.max_paths, int) or self.max_paths < 1:
            msg = f"trace: max_paths must be a positive int, got {self.max_paths!r}"
            raise OperandError(msg, argument="max_paths")


class GuardedTrace(Trace):
    """A recorder that keeps, beside operations, what the function has seen of values.

    1. `bool(v)`, `int(v)`, a value as an index, `float(v)`, `v.item()`, and the shape of what has another one for other
       values, are asked of the layers below, and recorded as reads. So is an operation that fails, since the function
       may catch the error; not where shapes and dtypes alone make it fail.
    2. A second read of the same value gives what the first one gave.
    3. Everything is compared with what is `known` of the function. `silent` says that what is known was run already for
       this call: observers are not told of it again.
    """

    def __init__(self, what: str, options: Options, known: Paths | None = None, *, silent: bool = False) -> None:
        super().__init__()
        self.what = what
        self.options = options
        self.events: list[Event] = []
        self.raised: XformError | None = None  # a refusal, which the function may have caught
        self.hushed = False  # records what observers are told, and does not tell them
        self._follower = None if known is None else Follower(known, what, options.max_paths)
        self._silent = silent
        self._outcomes: dict[tuple[int, str], Any] = {}

    # -------------------------------------------------------------- what is recorded

    def compute(
        self, op: Operator, values: tuple[Any, ...], inputs: tuple[Variable | Literal, ...]
    ) -> tuple[tuple[Aval, ...], tuple[Any, ...]]:
        """Run the operation below, unless an observer knows of it; note an error that depends on values."""
        if op.observes and self._is_silent():
            self._tell_recorder(op, values)
            return (), ()
        try:
            return super().compute(op, values, inputs)
        except Exception as error:
            if not is_settled(op, values):
                self._note(Read(op, inputs, failure_key(error), f"{type(error).__name__}", user_site()))
            raise

    def _is_silent(self) -> bool:
        """Whether observers know of what happens now: a replay that was broken off has told them."""
        in_prefix = self._silent and self._follower is not None and self._follower.branch is None
        return in_prefix or self.hushed

    def _tell_recorder(self, op: Operator, values: tuple[Any, ...]) -> None:
        """Leave the operation with the next recorder below: it has forgotten the replay that was broken off."""
        below = [level.layer for level in levels() if isinstance(level.layer, Trace)][:1]
        for recorder in below:
            if isinstance(recorder, GuardedTrace):
                recorder.hushed = True
                try:
                    apply(op, *[self.unwrap(value) for value in values])
                finally:
                    recorder.hushed = False

    def append(self, equation: Equation) -> None:
        super().append(equation)
        self._note(equation)

    def _note(self, event: Event) -> None:
        self.events.append(event)
        if self._follower is not None and self.excluded is None:
            try:
                self._follower.take(event)
            except (TraceMismatchError, TooManyPathsError) as error:
                self.raised = error
                raise

    # -------------------------------------------------------------- what is read

    def _read(self, op: HostRead, value: Any) -> Any:
        """Read a value on the host, as a guard."""
        if not self.owns(value):
            self._refuse_capture(value)
            return super()._read(op, value)
        if op.kind == "print" or (op.kind == "shape" and None not in value.aval.shape):
            return super()._read(op, value)
        known = (value.variable.index, op.kind)
        if known in self._outcomes:
            return self._outcomes[known]
        if op.kind in ("asarray", "to_numpy") or self.options.guards == "error":
            self.raised = self.refused(op, value)
            raise self.raised
        inputs, site = (value.variable,), user_site()
        try:
            outcome = apply(op, value.data)
        except Exception as error:
            self._note(Read(op, inputs, failure_key(error), type(error).__name__, site))
            raise
        self._note(Read(op, inputs, outcome_key(outcome), repr(outcome), site))
        self._outcomes[known] = outcome
        return outcome

    def refused(self, op: HostRead, value: TraceValue) -> HostReadError:
        error = super().refused(op, value)
        if self.options.guards == "error":
            error.add_note('with guards="record", the default, xf.trace records a path for each outcome')
        return error

    # -------------------------------------------------------------- what comes from outside

    def _constant(self, captured: Any) -> Constant:
        self._refuse_capture(captured)
        return super()._constant(captured)

    def _refuse_capture(self, captured: Any) -> None:
        """Raise `CaptureError` for an array, where the options say so; numbers are no arrays."""
        raw = concrete(captured)
        if self.options.capture != "error" or self.excluded is not None:
            return
        if type(raw) in SCALAR_TYPES or isinstance(raw, np.generic):
            return
        msg = (
            f"{self.what} uses an array that is neither an argument nor made from one, {aval_of(captured)!r}; its "
            f"program would keep it as it is now (at {describe(user_site())}). Pass it as an argument, make it from "
            'one (np.zeros_like(x)), or take capture="constant", the default, if it never changes'
        )
        self.raised = CaptureError(msg, value=captured, function=self.what)
        raise self.raised

    # -------------------------------------------------------------- records of records

    def mark(self) -> Any:
        followed = None if self._follower is None else self._follower.mark()
        return super().mark(), len(self.events), len(self._outcomes), followed

    def rewind(self, mark: Any) -> None:
        equations, events, outcomes, followed = mark
        super().rewind(equations)
        del self.events[events:]
        for known in list(self._outcomes)[outcomes:]:
            del self._outcomes[known]
        if self._follower is not None:
            self._follower.rewind(followed)

    # -------------------------------------------------------------- the end

    def finished(self, outputs: Any) -> Result | None:
        """Return the outputs as variables, None of a function with regions; raises what the function was told."""
        if self.raised is not None:
            raise self.raised
        leaves, structure = self.leaves_of(outputs, self.what)
        if self.excluded is not None:
            return None
        return Result(tuple([self.variable_of(leaf) for leaf in leaves]), structure)

    def paths(self, result: Result, known: Paths | None) -> Paths:
        """Return what is known of the function, with this recording."""
        if known is None:
            return Paths.recorded(self.inputs, self.events, result, self._count, self.derivative)
        follower = self._follower
        if follower is None or follower.paths is not known:  # another thread has recorded meanwhile
            follower = Follower(known, str(self.what), self.options.max_paths)
            for event in self.events:
                follower.take(event)
        return follower.finish(result, self.derivative)

    def has_met(self, error: BaseException) -> bool:
        """Whether the function has caught an error of this class that an operation raised."""
        return any(isinstance(event, Read) and event.key == failure_key(error) for event in self.events)


def is_settled(op: Operator, values: tuple[Any, ...]) -> bool:
    """Whether shapes and dtypes of the operands alone make an operation fail.

    >>> from xform import ops
    >>> is_settled(ops.Add(), (np.ones(2), np.ones(3)))
    True
    """
    try:
        op.infer(*[aval_of(value) for value in values])
    except (OperandError, OperandTypeError):
        return True
    except (XformError, NotImplementedError):
        return False
    return False
