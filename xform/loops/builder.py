"""Loops written out: `with xf.LoopBuilder() as loop:` records one round, and runs the loop when the block ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from xform.core.aval import aval_of, is_numeric
from xform.core.backend import SCALAR_TYPES, is_raw
from xform.core.errors import DtypeError, LayerError, OperandError, OperandTypeError, ProgramError, ShapeError
from xform.core.operator import Operator
from xform.core.source import describe, hide_frames, user_site
from xform.core.stack import cursor, pop, push
from xform.core.value import Value
from xform.loops.bodies import BodyTrace, Captures, in_dtype, is_truth, round_programs
from xform.loops.placeholders import fill, placeholder
from xform.loops.plans import count_of, plan_for
from xform.loops.templates import shared
from xform.ops.arithmetic import sub
from xform.programs.loop import COUNTER, Loop
from xform.programs.loop_outputs import All, Count, Last, Output, Part, Total, strong
from xform.programs.loop_trim import trimmed
from xform.programs.program import Literal, Program, Variable
from xform.transforms.recorder import TraceValue

__all__ = ["LoopBuilder"]

KINDS = ("last", "all", "sum")


class RoundTrace(BodyTrace):
    """The recorder of a builder: outputs have no value in its block."""

    def __init__(self, builder: LoopBuilder) -> None:
        super().__init__(Captures())
        self.builder = builder
        self._known: dict[int, TraceValue] = {}

    def variable_of(self, value: Any, op: Operator | None = None) -> Variable | Literal:
        """Return the variable of a value; raises for an output, which the loop has yet to give."""
        if any(value is each for each, _ in self.builder.given):
            msg = f"{self.builder!r}: an output has its value after the block; it is used at {describe(user_site())}"
            raise ProgramError(msg, value=value)
        return super().variable_of(value, op)

    def constant_value(self, x: Any) -> TraceValue:
        """Return a value from outside as one of this loop: the same one twice is one constant."""
        variable = self.variable_of(x)
        assert isinstance(variable, Variable)  # noqa: S101  (numbers were made arrays)
        return self._known.setdefault(variable.index, self._value(None, variable))


class LoopBuilder:
    """A loop that is written out: what its block does is one round.

    1. `loop.input(x, assign=True)` is a carry, which begins as `x`; `loop.input(x)` a constant. Other values from
       outside are constants too. `loop.counter` counts the rounds from 0.
    2. `loop.assign(x, new)` gives a carry its next value; all change at once, at the end of the round.
    3. `loop.condition(c)`: the loop goes on while `c` holds, a truth value of the round's inputs. It is asked before
       each round; with `test="after"`, after it, with the inputs that it had, so that one round runs at least.
    4. `loop.output(x, "last")` is a carry after the last round (of the counter, the number of the last round), `"all"`
       a value of every round, stacked, and `"sum"` the sum over all rounds; of a carry, what it was at the start of
       each round. Outputs have their values after the block. What no output needs is not computed.

    `max_steps` stops after so many rounds; `checkpoint` says what backward keeps. Raises errors that name the part: an
    input that is assigned twice, or never; a carry whose shape or dtype would change; no condition; a value of another
    loop.

    >>> import xform as xf
    >>> with xf.LoopBuilder() as loop:
    ...     x = loop.input(1.0, assign=True)
    ...     loop.assign(x, x * 2.0)
    ...     loop.condition(x < 100.0)
    ...     last, steps = loop.output(x, "last"), loop.output(loop.counter, "last")
    >>> float(last), int(steps)
    (128.0, 6)
    """

    def __init__(
        self,
        test: str = "before",
        *,
        max_steps: int | None = None,
        checkpoint: Any = None,
        swap_interval: int | None = None,
    ) -> None:
        if test not in ("before", "after"):
            msg = f'LoopBuilder: test must be "before" or "after", got {test!r}'
            raise OperandError(msg, test=test)
        self.test = test
        self.max_steps = count_of(max_steps, "LoopBuilder: max_steps", 0)
        self.checkpoint = checkpoint
        self.swap_interval = swap_interval
        self.site = user_site()
        self.given: list[tuple[Value, int]] = []  # the outputs as the user has them, and their numbers
        self._trace = RoundTrace(self)
        self._counter: Any = None
        self._starts: list[Any] = []
        self._carries: list[TraceValue] = []
        self._nexts: dict[int, Any] = {}
        self._condition: Any = None
        self._outputs: list[tuple[str, Any]] = []

    def __repr__(self) -> str:
        return f"LoopBuilder(test={self.test!r}) at {describe(self.site)}"

    def __enter__(self) -> Self:
        push(self._trace)
        self._counter = self._trace.input(COUNTER)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            hide_frames(error)
            pop(self._trace)
            return
        try:
            loop = self._loop()
        finally:
            pop(self._trace)
        results = shared(trimmed(loop)).run([*self._starts, *self._trace.captures.objects])
        kinds = [name for name, _ in self._outputs]
        results = [sub(out, 1) if name == "rounds" else out for out, name in zip(results, kinds, strict=True)]
        for value, number in self.given:
            fill(value, results[number])
        self.given = []

    # -------------------------------------------------------------- what the block calls

    @property
    def counter(self) -> Any:
        """The number of the round, from 0."""
        self._require_open("counter")
        return self._counter

    def input(self, x: Any, assign: bool = False) -> Any:
        """Return a value from outside as one of the loop: a carry with `assign`, else a constant."""
        self._require_open("input")
        if not (isinstance(x, Value) or is_raw(x)) or not is_numeric(aval_of(x).dtype):
            msg = f"{self!r}: input takes arrays and numbers, got {type(x).__name__}: {x!r:.60}"
            raise OperandTypeError(msg, value=x)
        aval = strong(aval_of(x))
        if type(x) in SCALAR_TYPES:
            x = aval.dtype.type(x)
        if not assign:
            return self._trace.constant_value(x)
        if getattr(x, "owner", None) is self._trace:
            msg = (
                f"{self!r}: input at {describe(user_site())} takes a start that was computed inside the block, so that "
                "it would be a value of each round; compute it before the block"
            )
            raise ProgramError(msg, value=x)
        carry = self._trace.input(aval)
        self._starts.append(x)
        self._carries.append(carry)
        return carry

    def assign(self, x: Any, new: Any) -> None:
        """Give a carry the value that it has in the next round."""
        self._require_open("assign")
        number = self._number(x, "assign")
        if number in self._nexts:
            msg = f"{self!r}: input {number} is assigned twice; the second time at {describe(user_site())}"
            raise ProgramError(msg, value=x)
        self._require_own(new, "assign")
        if not (isinstance(new, Value) or is_raw(new)):
            msg = f"{self!r}: assign takes arrays and numbers, got {type(new).__name__}: {new!r:.60}"
            raise OperandTypeError(msg, value=new)
        want = self._carries[number].aval
        new = in_dtype(new, want)
        have = aval_of(new)
        pairs = zip(have.shape, want.shape, strict=False)
        if have.ndim != want.ndim or any(n != m and None not in (n, m) for n, m in pairs):
            msg = f"{self!r}: input {number} must keep its shape {want.shape}; it is assigned {have.shape}"
            raise ShapeError(msg, value=new)
        if have.dtype != want.dtype:
            cast = f"x.astype({want.dtype.name!r})"
            said = f"must keep its dtype {want.dtype}; it is assigned {have.dtype}: write {cast}"
            msg = f"{self!r}: input {number} {said}"
            raise DtypeError(msg, value=new)
        self._nexts[number] = new

    def condition(self, holds: Any) -> None:
        """Go on while this truth value of a round's inputs holds."""
        self._require_open("condition")
        if self._condition is not None:
            msg = f"{self!r}: a second condition at {describe(user_site())}; join them with xnp.logical_and"
            raise ProgramError(msg)
        self._require_own(holds, "condition")
        if not is_truth(holds):
            msg = f"{self!r}: the condition must be one boolean, got {holds!r:.60}; e.g. xnp.any(...)"
            raise OperandTypeError(msg, value=holds)
        self._condition = holds

    def output(self, x: Any, kind: str = "last") -> Any:
        """Return a value that the loop gives; it can be used after the block."""
        self._require_open("output")
        if kind not in KINDS:
            msg = f"{self!r}: an output is one of {', '.join(map(repr, KINDS))}, got {kind!r}"
            raise OperandError(msg, kind=kind)
        self._require_own(x, "output")
        if not (isinstance(x, Value) or is_raw(x)):
            msg = f"{self!r}: output takes a value of the loop, got {type(x).__name__}: {x!r:.60}"
            raise OperandTypeError(msg, value=x)
        aval = strong(aval_of(x))
        if kind == "last" and x is self._counter:
            kind, x = "rounds", None
        elif kind == "last":
            x = self._number(x, 'output(..., "last")')
        number = self._place(kind, x)
        level = cursor.get().below
        assert level is not None  # noqa: S101  (the recorder stands on it)
        value = placeholder(level, self._trace, aval)
        self.given.append((value, number))
        return value

    # -------------------------------------------------------------- checks

    def _require_open(self, what: str) -> None:
        if cursor.get().layer is not self._trace:
            open_now = "its block has ended" if self._trace.ended else "it is not the innermost block"
            msg = f"{self!r}: {what} at {describe(user_site())}, where {open_now}; use it directly in its own block"
            raise LayerError(msg, layer=self._trace)

    def _require_own(self, x: Any, what: str) -> None:
        owner = getattr(x, "owner", None)
        if isinstance(owner, RoundTrace) and owner is not self._trace and owner.ended:
            msg = f"{self!r}: {what} at {describe(user_site())} takes a value of another loop, {owner.builder!r}"
            raise ProgramError(msg, value=x)

    def _number(self, x: Any, what: str) -> int:
        for number, carry in enumerate(self._carries):
            if x is carry:
                return number
        self._require_own(x, what)
        owner = getattr(x, "owner", None)
        foreign = isinstance(owner, RoundTrace) and owner is not self._trace
        said = f"an input of another loop, {owner.builder!r}" if foreign else f"no input with assign=True: {x!r:.60}"  # type: ignore[union-attr]
        msg = f"{self!r}: {what} at {describe(user_site())} takes {said}"
        raise ProgramError(msg, value=x)

    def _place(self, kind: str, x: Any) -> int:
        """Return the number of an output; one that is asked for twice is computed once."""
        for number, (have, other) in enumerate(self._outputs):
            if have == kind and other is x:
                return number
        self._outputs.append((kind, x))
        return len(self._outputs) - 1

    # -------------------------------------------------------------- the loop

    def _loop(self) -> Loop:
        for number in range(len(self._carries)):
            if number not in self._nexts:
                msg = f"{self!r}: input {number} has assign=True, but is never assigned; write loop.assign(x, new)"
                raise ProgramError(msg)
        if self._condition is None:
            msg = f"{self!r} has no condition; write loop.condition(c)"
            raise ProgramError(msg)
        values: list[Any] = []
        outputs = [self._output(kind, x, values) for kind, x in self._outputs]
        body, condition = self._programs([self._nexts[n] for n in range(len(self._carries))], values)
        return Loop(
            body=body,
            condition=condition,
            carries=len(self._carries),
            constants=len(self._trace.captures.objects),
            outputs=tuple(outputs),
            test=self.test,
            max_steps=self.max_steps,
            checkpoint=plan_for(self.checkpoint, self.swap_interval, "LoopBuilder", None, self._starts),
        )

    def _output(self, kind: str, x: Any, values: list[Any]) -> Output:
        if kind == "last":
            return Last(x)
        if kind == "rounds":
            return Count()
        values.append(x)
        if kind == "all":
            return All(len(values) - 1)
        return Total((Part(len(values) - 1),), strong(aval_of(x)))

    def _programs(self, nexts: Sequence[Any], values: Sequence[Any]) -> tuple[Program, Program]:
        (body,) = round_programs([self._trace], [[*nexts, *values, self._condition]])
        return body.evolve(body.equations, body.outputs[:-1]), body.evolve(body.equations, body.outputs[-1:])
