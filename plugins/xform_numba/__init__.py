"""Numba for compiled programs: each group of elementwise operations becomes one machine-code loop.

xform finds this package through its entry point `xform.engines`, when `engine="numba"` is asked for. Numba itself is
imported no earlier. Compiling takes some 0.1 s a group, so it pays where a program runs often. Groups give no warnings
of division by zero or overflow; their results are NumPy's, up to rounding.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import xform as xf
from xform import ops
from xform.core.errors import EngineError

__all__ = ["NumbaEngine", "engine"]

INSTALL = "pip install '.[numba]' in xform's folder"
FLOATS = frozenset({"float32", "float64"})
DTYPES = FLOATS | {"bool"}

#: operands of a NumPy ufunc
MOST_OPERANDS = 60

#: ufuncs that Numba has under the same name, with NumPy's NaN and infinities
UFUNCS = frozenset({
    "absolute", "add", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "ceil", "copysign",
    "cos", "cosh", "deg2rad", "divide", "equal", "exp", "exp2", "expm1", "floor", "fmax", "fmin", "greater",
    "greater_equal", "hypot", "isfinite", "isinf", "isnan", "less", "less_equal", "log", "log10", "log1p", "log2",
    "logaddexp", "logical_and", "logical_not", "logical_or", "maximum", "minimum", "multiply", "negative",
    "not_equal", "positive", "power", "rad2deg", "rint", "sign", "sin", "sinh", "sqrt", "square", "subtract", "tan",
    "tanh", "trunc",
})  # fmt: skip


class NumbaEngine(xf.Engine):
    """Computes groups of elementwise operations in float32 and float64, in one pass over memory."""

    name = "numba"
    smallest = 1
    totals = False

    def takes(self, op: xf.Operator, inputs: Sequence[xf.Aval], output: xf.Aval) -> bool:
        """Floats and booleans, and functions that Numba computes as NumPy does."""
        known = isinstance(op, ops.Where | ops.Share) or getattr(op.kernel, "__name__", "") in UFUNCS
        mixed = {aval.dtype.name for aval in inputs if not aval.weak and aval.dtype.kind == "f"}
        return known and len(mixed) <= 1 and all(aval.weak or aval.dtype.name in DTYPES for aval in (*inputs, output))

    def group(self, group: Any, threads: int) -> Callable[..., tuple[Any, ...]]:
        """Compile a group to NumPy ufuncs: one, unless it has more operands than those may have."""
        program = group.program
        places = {index: n for n, index in enumerate(operands_of(program))}
        parts = [(compile_part(part), [places[index] for index in operands_of(part)]) for part in parts_of(program)]

        def run(*arrays: Any) -> tuple[Any, ...]:
            with np.errstate(all="ignore"):  # LLVM computes both sides of a choice: what it flags may not be meant
                for function, chosen in parts:
                    function(*[arrays[n] for n in chosen])
            return ()

        return run


def operands_of(program: Any) -> list[int]:
    """Return the numbers of the inputs and outputs of a group."""
    return [variable.index for variable in (*program.inputs, *program.outputs)]


def parts_of(program: xf.Program) -> list[xf.Program]:
    """Divide a program by its outputs, so that each part has few enough operands for a ufunc."""
    parts: list[xf.Program] = []
    taken: list[Any] = []
    for out in program.outputs:
        if not fits(needed_for(program, [*taken, out])):
            parts.append(needed_for(program, taken))
            taken = []
        taken.append(out)
    return [*parts, needed_for(program, taken)]


def fits(part: xf.Program) -> bool:
    """Whether NumPy makes a ufunc of so many operands; one output alone must.

    Raises `EngineError` where it does not.
    """
    if len(part.inputs) + len(part.outputs) <= MOST_OPERANDS:
        return True
    if len(part.outputs) == 1:
        msg = f"engine 'numba' does not take {part.equations[-1].call}: it depends on {len(part.inputs)} arrays"
        raise EngineError(msg, program=part)
    return False


def needed_for(program: xf.Program, outputs: Sequence[Any]) -> xf.Program:
    """Return the part of a program that some of its outputs need."""
    live = {out.index for out in outputs}
    kept = []
    for equation in reversed(program.equations):
        if not live.isdisjoint(out.index for out in equation.outputs):
            kept.append(equation)
            live |= {operand.index for operand in equation.inputs if hasattr(operand, "index")}
    return xf.Program([each for each in program.inputs if each.index in live], kept[::-1], outputs)


def compile_part(program: xf.Program) -> Any:
    """Return a function of the inputs, and of arrays for the outputs."""
    numba = imported()
    text, constants = scalar_source(program)
    objects: dict[str, Any] = {"np": np, **constants}
    exec(text, objects)  # noqa: S102  (our own text)
    taken = [aval.dtype.name for aval in program.in_avals]
    given = [aval.dtype.name for aval in program.out_avals]
    if len(given) == 1:
        signature = f"{given[0]}({', '.join(taken)})"
        return numba.vectorize([signature], nopython=True)(objects["function"])
    arrays = ", ".join(f"{name}[:]" for name in given)
    layout = f"{','.join(['()'] * len(taken))}->{','.join(['()'] * len(given))}"
    signature = f"void({', '.join([*taken, arrays])})"
    return numba.guvectorize([signature], layout, nopython=True)(objects["function"])


def imported() -> Any:
    """Import Numba; raises `EngineError` where it is missing."""
    try:
        return importlib.import_module("numba")
    except ImportError as error:
        msg = f"engine 'numba' needs Numba ({error}); {INSTALL}"
        raise EngineError(msg) from error


def scalar_source(program: xf.Program) -> tuple[str, dict[str, Any]]:
    """Return the text of the function of one element, and the constants it refers to."""
    names = {variable.index: f"x{number}" for number, variable in enumerate(program.inputs)}
    constants: dict[str, Any] = {}

    def name_of(operand: Any, dtype: Any) -> str:
        value = getattr(operand, "value", None)
        if value is None:
            return names[operand.index]
        name = f"k{len(constants)}"
        constants[name] = np.asarray(value, dtype)[()] if dtype.kind == "f" else value
        return name

    lines = []
    for number, equation in enumerate(program.equations):
        (out,) = equation.outputs
        dtype = float_dtype([*equation.inputs, out])
        operands = [name_of(operand, dtype) for operand in equation.inputs]
        names[out.index] = f"v{number}"
        lines.append(f"v{number} = {expression(equation.op, operands, dtype)}")
    results = [names[index] for index in operands_of(program)[len(program.inputs) :]]
    arguments = [f"x{number}" for number in range(len(program.inputs))]
    if len(results) == 1:
        lines.append(f"return {results[0]}")
    else:
        arguments += [f"o{number}" for number in range(len(results))]
        lines += [f"o{number}[0] = {name}" for number, name in enumerate(results)]
    return "\n    ".join([f"def function({', '.join(arguments)}):", *lines]) + "\n", constants


def float_dtype(variables: Sequence[Any]) -> Any:
    """Return the floating dtype that an operation computes in."""
    found = [v.aval.dtype for v in variables if hasattr(v, "aval") and v.aval.dtype.kind == "f" and not v.aval.weak]
    return found[0] if found else np.dtype(float)


def expression(op: xf.Operator, operands: list[str], dtype: Any) -> str:
    """Return the text of an operation on one element."""
    if isinstance(op, ops.Where):
        condition, x, y = operands
        return f"({x} if {condition} else {y})"
    if isinstance(op, ops.Share):
        x, y = operands
        one, half, none = (f"np.{dtype.name}({number})" for number in (1.0, 0.5, 0.0))
        return f"({one} if {x} > {y} else ({half} if {x} == {y} else {none}))"
    kernel: Any = op.kernel
    return f"np.{kernel.__name__}({', '.join(operands)})"


engine = NumbaEngine()
