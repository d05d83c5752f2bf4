"""Generated source: a program's equations, one after the other, as calls of NumPy functions.

1. A result is written into an array of the workspace where its operation can do that, over a dying operand where it
   may.
2. Views of such arrays are made with the workspace, once. Rows of stacks are computed where they lie (see `slabs`).
3. What a caller may keep is made anew at each call. Such a result goes when it has been used last: its name is used
   again, or set to None.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from xform.core.aval import Aval
from xform.core.place import Place, place
from xform.ops.joining import Stack, Unstack
from xform.programs.group import Group
from xform.programs.kernels import KERNELS, Kernel, kernel_of, written_by
from xform.programs.liveness import Liveness
from xform.programs.namespace import Namespace, protected
from xform.programs.passes.draft import pinned
from xform.programs.program import Constant, Equation, Literal, Program, Variable
from xform.programs.slabs import Run, Slab, Slabs
from xform.programs.workspace import LARGE, Recycled, Workspace

__all__ = ["GIVE_BACK", "Source"]

#: a line that gives the workspace back before an early return; a function without one leaves it out
GIVE_BACK = "    give(w)"


def no_group(group: Group) -> Any:
    """Refuse a group inside a group."""
    msg = f"{group!r} inside a group"
    raise NotImplementedError(msg)


class Source:
    """The lines of one function, and the objects and arrays that they use."""

    def __init__(
        self,
        program: Program,
        *,
        groups: Callable[[Group], Any] = no_group,
        results: dict[int, str] | None = None,
    ) -> None:
        self.program = program
        self.namespace = Namespace()
        self._groups = groups  # makes the function that runs a group
        self._results = results or {}  # names of arrays that are given for the results
        self.workspace = Workspace()
        self.lines: list[str] = []
        self.sites: list[tuple[Equation, tuple[str, ...]] | None] = []  # equation and operands of each line
        self._liveness = Liveness(program)
        self._names: dict[int, str] = {}
        self._kept: dict[str, int] = {}  # arrays of the workspace by name
        self._blocks: dict[int, int | str] = {}  # of variables
        self._spare = self._spare_results()
        positions = range(len(program.equations) + 1)
        self._leave: list[list[Callable[[], None]]] = [[] for _ in positions]  # what to do behind each equation
        self._ending: list[list[Variable]] = [[] for _ in positions]  # local variables that each equation uses last
        self._locals: list[str] = []  # names that are free
        self._count = 0
        self._current: Equation | None = None
        self._numbers = {v.index for v in program.inputs if v.aval.shape == () and not v.aval.weak}
        self.inputs = {variable.index: f"a{number}" for number, variable in enumerate(program.inputs)}
        self._names |= self.inputs
        self._place_rows()
        for position, equation in enumerate(program.equations):
            self._current = equation
            self._write(position, equation)
            for variable in self._ending[position]:
                if variable.index not in self._numbers:
                    self.line(f"{self._names[variable.index]} = None")
                self._locals.append(self._names[variable.index])
            for leave in self._leave[position]:
                leave()
        self._current = None
        self._leave.clear()  # they hold the source, which would not be freed before the garbage collector runs

    # -------------------------------------------------------------- what kernels write with

    def bind(self, value: Any, hint: str) -> str:
        """Return the name of an object in the source."""
        return self.namespace.bind(value, hint)

    def name(self, operand: Variable | Literal) -> str:
        """Return the text of an operand, as it is."""
        if isinstance(operand, Literal):
            value = operand.value
            plain = type(value) in (bool, int) or (type(value) is float and math.isfinite(value))
            return repr(value) if plain else self.bind(value, "k")
        if isinstance(operand, Constant) and operand.index not in self._names:
            self._names[operand.index] = self.bind(protected(operand.value), "k")
        return self._names[operand.index]

    def number(self, operand: Variable | Literal, dtype: np.dtype[Any]) -> str:
        """Return the text of an operand of an operation on arrays: a number is an array of this dtype."""
        value = operand.value if isinstance(operand, Literal | Constant) else None
        if value is None or np.ndim(value):
            return self.name(operand)
        try:
            with np.errstate(all="raise"):
                array = np.asarray(value, dtype)
        except (ArithmeticError, ValueError):  # NumPy says so at each call
            return self.name(operand)
        return self.namespace.number(array)

    def is_number(self, operand: Variable | Literal) -> bool:
        """Whether an operand is sure to be one of NumPy's numbers, not Python's, which raises where NumPy warns."""
        if isinstance(operand, Constant):
            return not operand.aval.weak
        return isinstance(operand, Variable) and operand.index in self._numbers

    def is_given(self, operand: Variable | Literal) -> bool:
        """Whether an operand is an input, of which the caller may hold an array without axes."""
        return isinstance(operand, Variable) and operand.index in self.inputs

    def leave(self, condition: str, result: str) -> None:
        """Return a result at once where a condition holds: the hook for guards."""
        self.line(f"if {condition}:")
        self.line(f"    out = {result}")
        self.line(GIVE_BACK)
        self.line("    return out")

    def is_kept(self, name: str) -> bool:
        """Whether a name is of an array that the next call uses again."""
        return name in self._kept

    def part(self, array: str, index: Any) -> str:
        """Return the text of a basic selection of an array."""
        view = self._view(array, lambda whole: whole[index])
        return view or f"{array}[{self.bind(index, 'index')}]"

    def line(self, text: str) -> None:
        """Add a line."""
        self.lines.append(text)
        current = self._current
        if current is None:
            self.sites.append(None)
            return
        site = self.sites[-1] if self.sites else None
        if site is None or site[0] is not current:  # once an equation: one of many operands has as many lines
            site = (current, tuple([self._name_of(v) for v in current.inputs if isinstance(v, Variable)]))
        self.sites.append(site)

    def _name_of(self, variable: Variable) -> str:
        return self._names.get(variable.index, "")

    # -------------------------------------------------------------- one equation

    def _write(self, position: int, equation: Equation) -> None:
        op = equation.op
        if pinned(op):
            self._write_pinned(position, equation)
        elif op.multiple_outputs:
            self._write_several(position, equation)
        elif isinstance(op, Stack) and equation.outputs[0].index in self._runs:
            self._write_stack(position, equation)
        else:
            self._write_one(position, equation)

    def _write_one(self, position: int, equation: Equation) -> None:
        kernel = kernel_of(equation)
        (variable,) = equation.outputs
        if kernel.view and self._write_view(position, equation):
            return
        out = self._target(position, equation)
        if out is None and (kernel.fills or is_large(variable)) and written_by(equation):
            out = self._new(variable)
        text = kernel.write(self, equation, out)
        if out is not None:
            self._names[variable.index] = out
            if text is not None:
                self.line(text)
        elif text is not None:
            self._assign(position, [variable], text)
            if not variable.aval.shape and kernel.numbers:
                self._numbers.add(variable.index)

    def _write_view(self, position: int, equation: Equation) -> bool:
        """Make a view of an array of the workspace, or of a constant, with the workspace."""
        operand, (variable,) = equation.inputs[0], equation.outputs
        if isinstance(operand, Literal) or len(equation.inputs) > 1 or variable.index in self._liveness.escapes:
            return False
        op = equation.op
        if isinstance(operand, Constant):
            view: str | None = self.bind(op.evaluate(np, operand.value), "k")
        else:
            view = self._view(self.name(operand), lambda whole: op.evaluate(np, whole))
        if view is not None:
            self._names[variable.index] = view
        return view is not None

    def _write_several(self, position: int, equation: Equation) -> None:
        op = equation.op
        if isinstance(op, Group):
            self._write_group(position, equation)
            return
        if isinstance(op, Unstack) and self._write_rows(position, equation):
            return
        text = kernel_of(equation).write(self, equation, None)
        if text is not None:
            self._assign(position, list(equation.outputs), text, several=True)

    def _write_rows(self, position: int, equation: Equation) -> bool:
        """Make the rows of an array of the workspace with the workspace."""
        axis = equation.op.axis  # type: ignore[attr-defined]
        whole = self.name(equation.inputs[0])
        if whole not in self._kept or not self._liveness.escapes.isdisjoint(v.index for v in equation.outputs):
            return False
        for number, variable in enumerate(equation.outputs):
            if self._liveness.last[variable.index] > position:
                self._names[variable.index] = self.part(whole, (*(slice(None),) * axis, number, ...))
        return True

    def _write_group(self, position: int, equation: Equation) -> None:
        """Call a function that runs a group block by block, with an array for each result but the totals."""
        group: Any = equation.op
        function = self.bind(self._groups(group), "group")
        arguments = [self.name(operand) for operand in equation.inputs]
        totals = [variable for variable in equation.outputs if not variable.aval.shape]
        for variable in equation.outputs:
            if variable.aval.shape and variable.index in self._results:
                self._names[variable.index] = self._results[variable.index]
                arguments.append(self._results[variable.index])
            elif variable.aval.shape and variable.index in self._liveness.escapes:
                arguments.append(self._new(variable))
            elif variable.aval.shape:
                arguments.append(self._array(variable))
        self._assign(position, totals, f"{function}({', '.join(arguments)})", several=True)

    def _write_pinned(self, position: int, equation: Equation) -> None:
        """Run what must stay as it is, at its place in the user's program, or as its own kernel writes it."""
        kernel = KERNELS.get(type(equation.op))
        if isinstance(kernel, Kernel):
            text = kernel.write(self, equation, None)
            if text is not None:
                self._assign(position, list(equation.outputs), text, several=equation.op.multiple_outputs)
            return
        runner = self.bind(placed(equation), equation.op.name.lower())
        text = f"{runner}({', '.join(self.name(operand) for operand in equation.inputs)})"
        self._assign(position, list(equation.outputs), text, several=equation.op.multiple_outputs)

    def _assign(self, position: int, variables: list[Variable], text: str, *, several: bool = False) -> None:
        names = [self._local(variable, self._ending[position]) for variable in variables]
        left = ", ".join(names) + ("," if several and len(names) == 1 else "")
        self.line(f"{left} = {text}" if names else text)

    # -------------------------------------------------------------- where a result goes

    def _target(self, position: int, equation: Equation) -> str | None:
        """Return the array of the workspace that an equation writes into, if any."""
        (variable,) = equation.outputs
        if variable.index in self._results:
            return self._results[variable.index]
        if variable.index in self._rows:
            return self._row(variable)
        if variable.index in self._liveness.escapes or not written_by(equation):
            return None
        over = self._dying(position, equation) if kernel_of(equation).inplace else None
        if over is None:
            return self._array(variable)
        return self._own(variable, self._blocks.pop(over.index), self._names[over.index])

    def _spare_results(self) -> dict[str, tuple[int, Variable]]:
        """Return the given arrays that are free before they are written at last, and where that is."""
        made = {out.index: (n, out) for n, each in enumerate(self.program.equations) for out in each.outputs}
        return {name: made[index] for index, name in self._results.items() if index in made}

    def _fits(self, variable: Variable, name: str) -> bool:
        """Whether a variable can lie in the array of a result while that has not been written."""
        written, result = self._spare[name]
        return self._liveness.last[variable.index] < written and variable.aval == result.aval

    def _array(self, variable: Variable) -> str:
        """Return an array for a variable: that of a result, which is to be in the cache anyway, or of the workspace.

        W4 takes 5 ms of 78 less where the first operation, and not the last one, waits for the memory of the result.
        """
        taken = self._blocks.values()
        for name in self._spare:
            if name not in taken and self._fits(variable, name):
                return self._own(variable, name, name)
        aval = variable.aval
        block = self.workspace.block(aval.size * aval.dtype.itemsize)
        return self._own(variable, block, self._keep(self.workspace.array(block, aval.shape, aval.dtype)))  # type: ignore[arg-type]

    def _own(self, variable: Variable, block: int | str, name: str) -> str:
        """Let a variable have a block until it is needed no more."""
        self._names[variable.index] = name
        self._blocks[variable.index] = block
        self._leave[self._liveness.last[variable.index]].append(lambda: self._release(variable))
        return name

    def _dying(self, position: int, equation: Equation) -> Variable | None:
        """Return an operand of the result's shape and dtype whose memory nothing needs any more."""
        aval = equation.outputs[0].aval
        for operand in equation.inputs:
            if isinstance(operand, Literal) or operand.index not in self._blocks:
                continue
            block, dies = self._blocks[operand.index], self._liveness.last[operand.index] == position
            if dies and operand.aval == aval and (isinstance(block, int) or self._fits(equation.outputs[0], block)):
                return operand
        return None

    def _release(self, variable: Variable) -> None:
        block = self._blocks.pop(variable.index, None)
        if isinstance(block, int):
            self.workspace.release(block)

    def _keep(self, number: int) -> str:
        name = f"b{number}"
        self._kept[name] = number
        return name

    def _view(self, array: str, take: Callable[[Any], Any]) -> str | None:
        """Return the name of a view that is made with the workspace, or None."""
        number = self._kept.get(array)
        if number is None:
            return None
        view = self.workspace.view(number, take)
        return None if view is None else self._keep(view)

    def _new(self, variable: Variable) -> str:
        """Return the name of an array that is made anew at each call."""
        name, aval = self._local(variable, []), variable.aval
        if is_large(variable):
            self.line(f"{name} = {self.bind(Recycled(aval.shape, aval.dtype), 'recycled')}()")  # type: ignore[arg-type]
        else:
            empty, dtype = self.bind(np.empty, "empty"), self.bind(aval.dtype, aval.dtype.name)
            self.line(f"{name} = {empty}({aval.shape}, {dtype})")
        return name

    def _local(self, variable: Variable, ending: list[Variable]) -> str:
        """Return a name for a result that is made at each call: that of a value which ends there, or a free one."""
        if ending:
            self._locals.append(self._names[ending.pop().index])
        elif not self._locals:
            self._locals.append(f"v{self._count}")
            self._count += 1
        name = self._names[variable.index] = self._locals.pop()
        used = self._liveness.used[variable.index]
        if used < len(self.program.equations):
            self._ending[used].append(variable)
        return name

    # -------------------------------------------------------------- stacks

    def _place_rows(self) -> None:
        """Find the stacks whose rows can be computed where they lie."""
        slabs = Slabs()
        equations = self.program.equations
        made = {e.outputs[0].index for e in equations if written_by(e)}
        elsewhere = self._liveness.viewed | self._results.keys()  # must not lie in memory that the next call uses again
        self._runs: dict[int, Run] = {}
        for equation in equations:
            if type(equation.op) is not Stack or equation.op.axis != 0 or not written_by(equation):
                continue
            rows = [row for row in equation.inputs if isinstance(row, Variable)]
            aval = equation.outputs[0].aval
            placeable = all(row.index in made or isinstance(row, Constant) for row in rows)
            placeable = placeable and not any(row.index in self._runs for row in rows)  # these name rows of their own
            placeable = placeable and elsewhere.isdisjoint({each.index for each in (*rows, equation.outputs[0])})
            if len(rows) == len(equation.inputs) and placeable and all(row.aval.dtype == aval.dtype for row in rows):
                run = slabs.place([row.index for row in rows])
                if run is not None:
                    self._runs[equation.outputs[0].index] = run
        self._rows = slabs.places
        self._slabs: dict[int, str] = {}  # names of whole slabs
        self._ends = self._slab_ends()

    def _slab_ends(self) -> dict[int, int]:
        ends: dict[int, int] = {}
        last = self._liveness.last
        for index, (slab, _) in self._rows.items():
            ends[id(slab)] = max(ends.get(id(slab), 0), last.get(index, 0))
        for index, run in self._runs.items():
            ends[id(run.slab)] = max(ends[id(run.slab)], last[index])
        return ends

    def _slab(self, slab: Slab, aval: Aval) -> str:
        """Return the name of a slab whose rows have this aval, making it at its first use."""
        name = self._slabs.get(id(slab))
        if name is None:
            count = slab.last - slab.first + 1
            block = self.workspace.block(count * aval.size * aval.dtype.itemsize)
            name = self._keep(self.workspace.array(block, (count, *aval.shape), aval.dtype))  # type: ignore[arg-type]
            self._slabs[id(slab)] = name
            self._leave[self._ends[id(slab)]].append(lambda: self.workspace.release(block))
        return name

    def _row(self, variable: Variable) -> str:
        slab, position = self._rows[variable.index]
        return self.part(self._slab(slab, variable.aval), position - slab.first)

    def _write_stack(self, position: int, equation: Equation) -> None:
        """Name a run of rows; constants are copied into theirs."""
        run = self._runs[equation.outputs[0].index]
        rows = equation.inputs
        whole = self._slab(run.slab, rows[0].aval)  # type: ignore[union-attr]
        for row in rows:
            if isinstance(row, Constant):
                self.line(f"{self._row(row)}[...] = {self.name(row)}")
        low = min(run.start, run.start + run.step * (len(rows) - 1)) - run.slab.first
        name = self.part(whole, slice(low, low + len(rows)))
        if run.step < 0:
            name = self.part(name, slice(None, None, -1))
        self._names[equation.outputs[0].index] = name


def is_large(variable: Variable) -> bool:
    """Whether a result is so large that its memory is used again."""
    aval = variable.aval
    return None not in aval.shape and aval.size * aval.dtype.itemsize >= LARGE


def placed(equation: Equation) -> Callable[..., Any]:
    """Return a function that runs an operator at its place in the user's program, as a replay does."""
    op = equation.op

    def run(*values: Any) -> Any:
        start = place.get()
        phase = "backward" if "backward" in (start.phase, equation.phase) else "forward"
        place.set(Place((*start.scopes, *equation.scopes), phase, equation.site, start.loop, start.iteration))
        try:
            return op.evaluate(np, *values)
        finally:
            place.set(start)

    return run
