"""Engines compute programs: all of one, or the groups of elementwise operations in it.

1. `xf.register_engine("name", engine)` makes one known; plugins name theirs in the entry-point group `xform.engines`.
2. An engine says which operations it takes. One that it does not take raises `EngineError`, which names it, unless
   `fallback=True` asks for NumPy to compute it.
3. `NumpyEngine` is the first: it runs groups in blocks that stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from xform.core.aval import Aval
from xform.core.errors import EngineError
from xform.core.operator import Operator
from xform.ops.reductions import Reduction
from xform.plugins import engine
from xform.programs.blocks import Blocks, Geometry
from xform.programs.group import Group
from xform.programs.kernels import REDUCERS
from xform.programs.passes.groups import SMALLEST
from xform.programs.program import Constant, Literal, Program, Variable
from xform.programs.source import Source
from xform.programs.unit import Unit

__all__ = ["NUMPY", "Engine", "NumpyEngine", "find_engine"]


class Engine:
    """Base of engines, which compute compiled programs; one of them overrides `group`, or `program`, or both.

    1. `program(program, threads)` returns a function of the flat inputs that gives the list of flat outputs, or None.
       An engine that takes whole programs needs no more.
    2. Otherwise elementwise operations on arrays of one shape of `smallest` elements or more, which the engine `takes`,
       are joined into groups, with sums and extrema over all elements where `totals` says so. `group(group, threads)`
       returns a function of the inputs of `group.program`, and of one array for each output that has axes, which it
       fills; the tuple of the other outputs is its result. NumPy computes what is in no group.
    3. Inputs are NumPy arrays and numbers of the recorded shapes and dtypes. An operation that an engine does not take
       raises `EngineError`, unless the caller says `fallback=True`.

    >>> import numpy as np, xform as xf
    >>> class Interpreted(xf.Engine):
    ...     name = "interpreted"
    ...     def program(self, program, threads):
    ...         return lambda *flat: program.run(flat)
    >>> xf.register_engine("interpreted", Interpreted())
    >>> program = xf.make_program(lambda x: np.sin(x) * 2.0)(np.zeros(2))
    >>> xf.compile_program(program, engine="interpreted")(np.zeros(2))
    [array([0., 0.])]
    """

    #: in messages; the name that it is asked for by is the one it is registered under
    name = ""
    #: elements of a result from which elementwise operations form groups
    smallest = SMALLEST
    #: whether groups may hold sums and extrema over all elements
    totals = True

    def takes(self, op: Operator, inputs: Sequence[Aval], output: Aval) -> bool:
        """Whether the engine computes an elementwise operation on operands of these avals."""
        return True

    def program(self, program: Program, threads: int) -> Callable[..., list[Any]] | None:
        """Return a function of the flat inputs that computes a whole program; None for an engine of groups alone."""
        return None

    def group(self, group: Group, threads: int) -> Callable[..., tuple[Any, ...]]:
        """Return a function that computes a group.

        Its arguments are the inputs, then an array for each output that has axes, which it fills; it returns the others
        (totals over all elements).
        """
        raise NotImplementedError


class NumpyEngine(Engine):
    """Runs groups in blocks of generated NumPy source, in one thread or several."""

    name = "numpy"

    def group(self, group: Group, threads: int) -> Blocks:
        """Compile the function of one block."""
        geometry = Geometry(group.shape)
        inner = blocked(group.program, geometry)
        arrays = {out.index: f"o{number}" for number, out in enumerate(inner.outputs) if out.aval.shape}  # type: ignore[union-attr]
        source = Source(inner, results=arrays)
        totals = [out for out in inner.outputs if isinstance(out, Variable) and not out.aval.shape]
        made = {equation.outputs[0].index: equation for equation in inner.equations}
        result = f"({''.join(f'{source.name(out)}, ' for out in totals)})"
        unit = Unit(source, "group", [*source.inputs.values(), *arrays.values()], result, kept=False)
        return Blocks(
            geometry=geometry,
            unit=unit,
            avals=[*group.program.in_avals, *[Aval(group.shape, np.dtype(float))] * len(arrays)],
            reducers=[REDUCERS[type(made[out.index].op)] for out in totals],
            threads=threads,
        )


def blocked(program: Program, geometry: Geometry) -> Program:
    """Return the program of one block."""
    known: dict[int, Variable] = {}

    def inside(operand: Variable | Literal) -> Variable | Literal:
        if isinstance(operand, Literal | Constant):
            return operand
        if operand.index not in known:
            known[operand.index] = Variable(operand.index, geometry.block(operand.aval))
        return known[operand.index]

    equations = []
    for equation in program.equations:
        op: Any = equation.op
        inputs = tuple([inside(operand) for operand in equation.inputs])
        if isinstance(op, Reduction):
            op = attrs.evolve(op, axis=tuple(range(inputs[0].aval.ndim)))  # type: ignore[union-attr]
        outputs: Any = tuple([inside(out) for out in equation.outputs])
        equations.append(attrs.evolve(equation, op=op, inputs=inputs, outputs=outputs))
    inputs = [inside(variable) for variable in program.inputs]  # type: ignore[assignment]
    return Program(inputs, equations, [inside(out) for out in program.outputs])  # type: ignore[arg-type]


NUMPY = NumpyEngine()


def find_engine(name: str) -> Engine:
    """Return an engine by name; raises `PluginError` where there is none, or it is no engine."""
    found = engine(name)
    if not isinstance(found, Engine):
        msg = f"engine {name!r} is {found!r}, which is no xf.Engine"
        raise EngineError(msg, engine=found)
    return found
