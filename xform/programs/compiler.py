"""From a Program to a Python function that NumPy runs: passes, generated source, and the arrays it works in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from xform.core.backend import HOST_TYPES, SCALAR_TYPES
from xform.core.errors import EngineError, OperandTypeError, ProgramError
from xform.core.memory import unshared
from xform.core.source import describe
from xform.ops.placement import DevicePut
from xform.ops.reductions import Reduction
from xform.programs.blocks import Blocks, thread_count
from xform.programs.engines import NUMPY, Engine, find_engine
from xform.programs.group import Group
from xform.programs.liveness import Trail, trails
from xform.programs.passes import optimised
from xform.programs.passes.groups import join_elementwise
from xform.programs.program import Equation, Literal, Program, Variable, aval_at, check_input, copied
from xform.programs.source import Source
from xform.programs.unit import Unit, run_units

__all__ = ["Compiled", "compile_program"]

#: what a caller of a compiled program has to write
FLAT = (
    "give raw arrays one by one, the leaves of the arguments in the order of xf.tree.leaves(args); containers and "
    "values are for program(*args), or for xf.trace(fun), which compiles too"
)


class Compiled:
    """A program as one Python function of flat NumPy arrays; `source` is its text.

    1. `compiled(*flat)` takes the flat inputs of the program and returns the list of its flat outputs.
    2. Arrays between them lie in a workspace that calls use again; each running call has its own, so that threads, and
       calls from inside a call, do not meet. What is returned is the caller's, as from a run of the program: it shares
       memory with an input only where the program's own result does. The memory of large results is used again once
       nobody holds them any more, nor a view of them.
    3. An exception names the operation and its line in the user's program; the generated lines stand in its traceback.
    """

    def __init__(self, program: Program, final: Program, engine: Engine, threads: int, options: dict[str, Any]) -> None:
        self.program = program
        self.final = final
        self.options = options
        self._units: list[Unit] = []
        self._engine = engine
        self._threads = threads
        self.function = engine.program(final, threads) or self._written()
        self.source = "\n".join(unit.text for unit in self._units)

    def _written(self) -> Any:
        """Return the function of generated source."""
        source = Source(self.final, groups=self._group)
        result = f"[{', '.join(returned(self.program, self.final, source))}]"
        self._units.append(Unit(source, "program", list(source.inputs.values()), result, kept=True))
        return self._units[-1].function

    def _group(self, group: Group) -> Any:
        found = self._engine.group(group, self._threads)
        if isinstance(found, Blocks):
            self._units.append(found.unit)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(compile_program, **self.options), (self.program,)

    def __repr__(self) -> str:
        return f"Compiled({len(self.program.inputs)} inputs, {len(self.final.equations)} operations)"

    def __call__(self, *flat: Any) -> Any:
        """Run on flat inputs, checked against the program's; returns the flat outputs, or what a guard left with."""
        found = self.checked(flat)
        return found if self.program.derivative is None else unshared(found, flat)

    def checked(self, flat: Sequence[Any]) -> Any:
        """Run on flat inputs, checked against the program's; derivatives may share memory, as in a tape."""
        if len(flat) != len(self.program.inputs):
            msg = f"the compiled program takes {len(self.program.inputs)} inputs, got {len(flat)}: {FLAT}"
            raise ProgramError(msg, program=self.program)
        for position, (variable, value) in enumerate(zip(self.program.inputs, flat, strict=True)):
            aval = variable.aval
            if type(value) is np.ndarray and value.shape == aval.shape and value.dtype is aval.dtype:
                continue
            if type(value) not in HOST_TYPES and not isinstance(value, np.ndarray):
                kind = type(value).__name__
                msg = f"a compiled program takes NumPy arrays and numbers; input {position} is {kind}: {FLAT}"
                raise OperandTypeError(msg, value=value)
            check_input(position, aval, value)
            if type(value) in SCALAR_TYPES and not aval.weak:
                flat = (*flat[:position], aval.dtype.type(value), *flat[position + 1 :])
        return self.run(flat)

    def run(self, flat: Sequence[Any]) -> Any:
        """Run on flat inputs that are known to have the program's shapes and dtypes."""
        return run_units(self.function, self._units, flat)


def returned(program: Program, final: Program, source: Source) -> list[str]:
    """Return the texts of the outputs; copies of those that a caller must not share, or could not write to."""
    texts = []
    owners: dict[int, int] = {}  # of what is computed: what the program itself returned in that memory first
    paths: dict[Any, int] = {}
    both = zip(final.outputs, trails(program, paths), trails(final, paths), strict=True)
    for position, (out, before, after) in enumerate(both):
        text = source.name(out)
        root = -2 - position if before.reshapes else before.root  # a reshape may have copied, and passes leave it out
        shared = is_lent(before, after, root, source)
        for index in {after.root, *after.may} - source.inputs.keys() - {-1}:
            alike = index != after.root and after.path == before.path and not before.reshapes
            mine = before.reach if alike else root
            shared |= owners.setdefault(index, mine) != mine
        if is_number(out, before, after, source) and (source.is_kept(text) or after.made != before.made):
            text = f"{source.bind(as_number, 'as_number')}({text})"
        elif not isinstance(out, Literal) and (shared or source.is_kept(text) or after.spread > before.spread):
            text = f"{source.bind(copied, 'copied')}({text})"
        texts.append(text)
    return texts


def is_lent(before: Trail, after: Trail, root: int, source: Source) -> bool:
    """Whether an output is, or may be, memory of a constant, or of an input where the program's own result is not."""
    if -1 in after.may:
        return True
    if after.root in source.inputs:
        return after.root != root or before.spread > after.spread  # a view that cannot be written to
    return not after.may.isdisjoint(source.inputs) and (before.reshapes > 0 or after.path != before.path)


def is_number(out: Variable | Literal, before: Trail, after: Trail, source: Source) -> bool:
    """Whether the program's own result is one number, which NumPy's functions return as such."""
    if is_computed_number(out, source):
        return True
    given = type(out) is Variable and out.index in source.inputs  # computed in the program, and left out by passes
    return given and out.aval.shape == () and before.root != after.root  # type: ignore[union-attr]


def is_computed_number(out: Variable | Literal, source: Source) -> bool:
    """Whether an output is one number, which NumPy's functions return as such, whatever array it lies in."""
    computed = type(out) is Variable and out.index not in source.inputs
    return computed and out.aval.shape == () and not source.is_number(out)  # type: ignore[union-attr]


def as_number(x: Any) -> Any:
    """Return what an array without axes holds."""
    return x[()] if type(x) is np.ndarray else x


def refuse(program: Program) -> None:
    """Raise `EngineError` for a program that works on arrays of other libraries than NumPy, naming what does."""
    for constant in program.constants:
        if type(constant.value) not in HOST_TYPES and not isinstance(constant.value, np.ndarray):
            msg = f"the constant {constant!r} is {type(constant.value).__name__}, no NumPy array; run program(*args)"
            raise EngineError(msg, constant=constant)
    for equation in program.equations:
        op = equation.op
        if isinstance(op, DevicePut) and op.device != "cpu":
            msg = f"{equation.call} at {describe(equation.site)} leaves NumPy; run program(*args)"
            raise EngineError(msg, op=op)


def taken(engine: Engine, fallback: bool, equation: Equation) -> bool:
    """Whether an operation joins a group of an engine; raises `EngineError` where it should and the engine refuses."""
    if isinstance(equation.op, Reduction):
        return engine.totals
    inputs = [aval_at(operand) for operand in equation.inputs]
    takes = engine.takes(equation.op, inputs, equation.outputs[0].aval)
    if not takes and not fallback:
        msg = (
            f"engine {engine.name!r} does not take {equation.call} on {inputs} (at {describe(equation.site)}); "
            "with fallback=True NumPy computes it"
        )
        raise EngineError(msg, op=equation.op)
    return takes


def compile_program(
    program: Program,
    *,
    level: int = 0,
    threads: int | None = None,
    engine: str = "numpy",
    fallback: bool = False,
) -> Compiled:
    """Compile a program for NumPy arrays, with the passes of a level.

    At level 0 values are the same up to rounding, and NaN and infinities are where they were, unless a sum of four
    terms or more, which is added in another order, overflows on the way; at level 1 values in between are taken to be
    finite: `y / y` is 1, `log(exp(x))` is `x`; at level 2 products are done in another order. `threads` (default:
    XFORM_NUM_THREADS, or 1) run elementwise operations on large arrays.
    Raises `EngineError` for an operation that the engine does not take, unless `fallback` lets NumPy compute it, and
    `OperandTypeError` for what is no Program.

    >>> import numpy as np, xform as xf
    >>> compiled = xf.compile_program(xf.make_program(lambda x: x * 2.0)(np.ones(3)))
    >>> compiled(np.array([1.0, 2.0, 3.0]))
    [array([2., 4., 6.])]
    """
    if not isinstance(program, Program):
        kind = type(program).__name__
        msg = f"compile_program takes a Program, got {kind}; write compile_program(xf.make_program(fun)(*args))"
        raise OperandTypeError(msg, value=program)
    refuse(program)
    chosen = NUMPY if engine == "numpy" else find_engine(engine)
    count = thread_count(threads)
    final = join_elementwise(optimised(program, level), chosen.smallest, partial(taken, chosen, fallback))
    options = {"level": level, "threads": threads, "engine": engine, "fallback": fallback}
    return Compiled(program, final, chosen, count, options)
