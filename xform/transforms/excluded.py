"""Regions of a traced function that run in Python at each call, and the recorder of functions that have one.

1. A `with` block cannot be run by itself: a function that enters a region is run by Python at each call, as it stands.
2. Outside of its regions operations are put off, but those that may fail for some values. What was put off runs as one
   Program where data is needed: when a region begins, when a value is read, at the end. Programs are kept by what they
   do, so that calls that do the same run the same ones; others need no record of the whole function to agree with.
3. A stretch gives the values that are still alive, whoever holds them: nothing else can be asked for later.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any, Self

from xform.core.aval import Aval, aval_of
from xform.core.bottom import escaped
from xform.core.errors import OperandError, OperandTypeError, XformError
from xform.core.functions import is_coroutine, refuse_generator, refuse_lazy, require_function
from xform.core.operator import Operator
from xform.core.source import describe, refuse_yield, user_site
from xform.core.stack import BOTTOM, apply, cursor, levels
from xform.core.value import Array, Value
from xform.layers import lifted
from xform.ops.structural import HostRead, Identity, PopScope, PushScope
from xform.programs.call import Call
from xform.programs.program import Equation, Literal, Program, Variable, copied, literal_or_none
from xform.transforms.calls import called
from xform.transforms.failing import may_fail
from xform.transforms.guarded import Options
from xform.transforms.recorder import Trace, TraceValue, is_unchanged, outside

__all__ = ["DeferredTrace", "Stretches", "exclude_from_trace"]


class exclude_from_trace:  # noqa: N801  (a function by name in the field)
    """Run a region of a traced function in Python at each call: branches on Python state, prints, logs, files.

    1. Inside the region values can be read as plain arrays, and operations are computed as they come; they are part of
       no Program. What the region gives is used as it is at that call, and so is every outside array that the function
       uses after a region has begun.
    2. A function that enters a region is run by Python at each call. Outside of the region its operations are put off
       and run as Programs, from one region to the next; those that may fail for some values run at once, so that their
       errors come where they belong. Each operation costs what Python needs to send it, about as much as an eager one
       on a small array: a region is for functions whose arrays are large.
    3. Control flow outside of the regions is Python's too: there are no guards, and no paths to record.
    4. Derivatives pass through a region, as they do without `xf.trace`. `program()` of such a function, and
       `make_program`, raise `ProgramError`. Where nothing is traced a region does nothing.

    It also decorates functions: each call is a region.

    >>> import numpy as np, xform as xf
    >>> count = 0
    >>> @xf.trace
    ... def f(x):
    ...     global count
    ...     y = x * 2.0
    ...     with xf.exclude_from_trace():
    ...         count += 1
    ...         if count % 2:
    ...             y = -y
    ...     return y + 1.0
    >>> [float(f(1.0)) for call in range(4)]
    [-1.0, 3.0, -1.0, 3.0]
    """

    def __init__(self) -> None:
        self._open: list[Any] = []

    def __repr__(self) -> str:
        return "exclude_from_trace()"

    def __enter__(self) -> Self:
        refuse_yield(self, sys._getframe(1))  # noqa: SLF001  (who runs the `with` statement)
        self._open.append(outside.set((*outside.get(), *passed_over())))
        return self

    def __exit__(self, *exc_info: object) -> None:
        outside.reset(self._open.pop())

    def __call__(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        """Run each call of a function as a region."""
        require_function(fun, f"{self!r} as a decorator", computes=False)
        refuse_generator(fun, self)
        if is_coroutine(fun):

            @functools.wraps(fun)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                with exclude_from_trace():
                    return await fun(*args, **kwargs)

            return awaited

        @functools.wraps(fun)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with exclude_from_trace():
                out = fun(*args, **kwargs)
                refuse_lazy(out, fun, self)
                return out

        return inside


def passed_over() -> list[Trace]:
    """Tell the recorders of the stack, the topmost first, that a region begins; return those that it passes over."""
    found = []
    here = cursor.get()
    try:
        for level in levels(here):
            if isinstance(level.layer, Trace):
                cursor.set(level.below or BOTTOM)
                level.layer.leave_out()
                if not level.layer.abstract:
                    found.append(level.layer)
    finally:
        cursor.set(here)
    return found


# ------------------------------------------------------------------ operations that are put off

#: how many programs are kept for one signature
MOST_PROGRAMS = 64


class Stretches:
    """The programs of a function that runs in Python, by what they do; `compiling` are options of `compile_program`."""

    def __init__(self, compiling: dict[str, Any]) -> None:
        self.compiling = compiling
        self.programs: dict[Any, Call] = {}
        self.avals: dict[Any, tuple[Aval, ...] | None] = {}

    def run(
        self, inputs: list[Variable], equations: list[Equation], outputs: list[Variable], bound: list[Any]
    ) -> list[Any]:
        """Run a stretch; one that comes again is compiled."""
        steps = tuple(
            [
                (e.op, tuple([v.index for v in e.inputs]), len(e.outputs), e.scopes, e.phase, e.site)  # type: ignore[union-attr]
                for e in equations
            ]
        )
        key = (tuple([(v.index, v.aval) for v in inputs]), steps, tuple([v.index for v in outputs]))
        known = self.programs.get(key)
        if known is not None:
            return called(known, bound)
        program = Program(inputs, equations, outputs)
        self.programs[key] = Call(program, **self.compiling)
        if len(self.programs) > MOST_PROGRAMS:
            self.programs.pop(next(iter(self.programs)), None)
        return program.run(bound)

    def inferred(self, op: Operator, avals: tuple[Aval, ...]) -> tuple[Aval, ...] | None:
        """Return the avals of results, None where they take data; raises for operands that do not fit."""
        key = (op, avals)
        if key not in self.avals:
            if len(self.avals) > 64 * MOST_PROGRAMS:
                self.avals.clear()
            self.avals[key] = told(op, avals)
        return self.avals[key]


def told(op: Operator, avals: tuple[Aval, ...]) -> tuple[Aval, ...] | None:
    """Return the avals that an operator infers, None where it tells no lengths, or may fail for some values."""
    try:
        found = op.infer(*avals)
    except (OperandError, OperandTypeError):
        raise
    except (XformError, NotImplementedError):
        return None
    results = found if op.multiple_outputs else (found,)
    return None if any(None in aval.shape for aval in results) or may_fail(op, avals) else results


class DeferredTrace(Trace):
    """The recorder of a function that has regions: it puts operations off, and runs them stretch by stretch.

    Variables are numbered within their stretch; numbers and outside arrays are inputs of it.
    """

    def __init__(self, what: str, stretches: Stretches, options: Options) -> None:
        super().__init__()
        self.what = what
        self.stretches = stretches
        self.options = options
        self._bound: list[Any] = []  # the data of the inputs
        self._made: dict[int, weakref.ref[TraceValue]] = {}
        self._taken: dict[int, tuple[Any, Variable]] = {}  # values of earlier stretches, by the id of their variable
        self._captured: dict[int, tuple[Any, Any, Variable]] = {}  # outside arrays, by id, with their copies

    def interpret(self, op: Operator, values: tuple[Any, ...]) -> Any:
        """Put the operation off; run at once what tells no shapes."""
        if self in outside.get():
            return apply(op, *map(self.unwrap, values))
        if isinstance(op, PushScope | PopScope):
            return apply(op, *values)
        if isinstance(op, HostRead):
            return self._read(op, values[0])
        avals = self._expected(op, values)
        if avals is None:
            return self._at_once(op, values)
        inputs = self.operands(op, values)
        outputs = tuple([self._variable(aval) for aval in avals])
        self.equations.append(Equation(op, inputs, outputs, *self._place()))
        found = tuple([self._value(None, variable) for variable in outputs])
        self._made.update({v.variable.index: weakref.ref(v) for v in found})
        return found if op.multiple_outputs else found[0]

    def _expected(self, op: Operator, values: tuple[Any, ...]) -> tuple[Aval, ...] | None:
        try:
            return self.stretches.inferred(op, tuple([aval_of(value) for value in values]))
        except XformError as error:
            error.add_note(f"while tracing {op!r} at {describe(user_site())}")
            raise

    def _at_once(self, op: Operator, values: tuple[Any, ...]) -> Any:
        plain = [lifted(self.unwrap(value)) for value in values]
        self.force()
        out = apply(op, *plain)
        if op.multiple_outputs:
            return tuple([self.known(each) for each in out])
        return self.known(out)

    def known(self, data: Any) -> TraceValue:
        """Return a traced value that has its data."""
        return self._value(lifted(data), Variable(-1, aval_of(data)))

    # -------------------------------------------------------------- a stretch

    def input(self, x: Any) -> TraceValue:
        """Return a traced value of an argument; it is an input of the stretches that use it."""
        return self.known(x)

    def variable_of(self, value: Any, op: Operator | None = None) -> Variable | Literal:
        """Return the variable of a value in this stretch; what comes from outside of it becomes an input."""
        if self.owns(value):
            variable: Variable = value.variable
            if value.data is None:
                return variable
            known = self._taken.get(id(variable))
            if known is None:
                known = self._taken[id(variable)] = (variable, self._input(value.data))
            return known[1]
        if literal_or_none(value) is not None:
            return self._input(value)
        if isinstance(value, Value) and value.owner is not None:
            if all(level.layer is not value.owner for level in levels()):
                raise escaped(op or Identity(), value)
            return self._input(value)
        return self._copy_of(value.data if type(value) is Array else value)

    def _input(self, data: Any) -> Variable:
        variable = self._variable(aval_of(data))
        self.inputs.append(variable)
        self._bound.append(data)
        return variable

    def _copy_of(self, captured: Any) -> Variable:
        """Return the input of an outside array: a copy, which what the function writes later does not reach."""
        known = self._captured.get(id(captured))
        if known is not None and is_unchanged(captured, known[1]):
            return known[2]
        copy = copied(captured)
        variable = self._input(lifted(copy))
        self._captured[id(captured)] = (captured, copy, variable)
        return variable

    def force(self) -> None:
        """Run what was put off, and give the values that are alive their data."""
        equations, inputs, bound, made = self.equations, self.inputs, self._bound, self._made
        self.equations, self.inputs, self._bound, self._made = [], [], [], {}
        self._taken, self._captured, self._count = {}, {}, 0
        if not equations:
            return
        alive = [value for ref in made.values() if (value := ref()) is not None]
        found = self.stretches.run(inputs, equations, [value.variable for value in alive], bound)
        for value, data in zip(alive, found, strict=True):
            value.data = lifted(data)
            value.variable = Variable(-1, value.aval)

    # -------------------------------------------------------------- reading

    def unwrap(self, value: Any) -> Any:
        """Return the value as the layer below knows it, computed if it was put off."""
        if self.owns(value) and value.data is None:
            self.force()
        return super().unwrap(value)

    def _read(self, op: HostRead, value: Any) -> Any:
        """Read a value on the host: the function goes on in Python."""
        if not self.owns(value) or op.kind == "shape":
            return super()._read(op, value)
        if op.kind in ("asarray", "to_numpy") or (self.options.guards == "error" and op.kind != "print"):
            raise self.refused(op, value)
        return apply(op, self.unwrap(value))

    def leave_out(self) -> None:
        """Compute what was put off: the region may look at any value."""
        self.force()

    def mark(self) -> Any:
        """Return nothing: what is put off in vain has been run when it could be rewound, or is never asked for."""
        return None

    def rewind(self, mark: Any) -> None:
        """Keep what was recorded."""
