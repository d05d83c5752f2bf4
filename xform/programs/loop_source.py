"""Generated source of whole loops: the lines of a round inside of a `for` statement, on NumPy arrays.

1. The next value of a carry is computed where it stays: in the row of its history, or in one of two arrays in turns.
   Stacked values and sums lie where they are returned, too; see `xform.programs.loop_places`.
2. All next carries are assigned at once, at the end of the round. What may share memory that is written again is
   copied.
3. Room for rows whose number is not known grows by a quarter at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np

from xform.core.aval import Aval, is_static
from xform.ops.base import Parameterless, constant
from xform.ops.index_layout import OPERAND
from xform.programs import loop_places as places
from xform.programs.blocks import Blocks, thread_count
from xform.programs.compiler import as_number, is_computed_number
from xform.programs.engines import NUMPY
from xform.programs.group import Group
from xform.programs.kernels import KERNELS, Kernel, Writer, written_by
from xform.programs.liveness import trails
from xform.programs.loop_marks import MarkRows
from xform.programs.loop_outputs import All, Last, Marks, Output, Path, Total
from xform.programs.loop_products import Products, products_of
from xform.programs.loop_stores import resized
from xform.programs.passes import optimised
from xform.programs.passes.groups import join_elementwise
from xform.programs.program import Constant, Equation, Literal, Program, Variable
from xform.programs.source import Source
from xform.programs.unit import Unit, run_units

__all__ = ["LoopSource", "joint", "written_loop"]

#: rows that there is room for at first, where their number is not known
ROOM = 16
ENDLESS = 1 << 62


class Halt(Parameterless):
    """Ends a loop where its operand does not hold; only in programs that are about to be written."""

    impure = True
    multiple_outputs = True

    def infer(self, holds: Aval) -> tuple[Aval, ...]:
        """It gives nothing."""
        return ()

    def evaluate(self, xp: Any, holds: Any) -> tuple[Any, ...]:
        """It has a meaning in a loop alone."""
        return ()


constant(Halt, why="it gives nothing")


def halting(writer: Writer, equation: Equation, out: str | None) -> None:
    """Leave the loop."""
    writer.line(f"if not {writer.name(equation.inputs[0])}: break")


KERNELS[Halt] = Kernel(halting)


def written_loop(loop: Any) -> LoopSource | None:
    """Return a loop as a function of NumPy arrays; None for one of unknown lengths, or that has effects."""
    values = [loop.value_avals[output.value] for output in loop.outputs if isinstance(output, All)]
    totals = [output for output in loop.outputs if isinstance(output, Total)]
    known = all(is_static(aval.shape) for aval in (*loop.carry_avals, *values))
    sums = all(is_static(total.aval.shape) or total.like is not None for total in totals)
    return LoopSource(loop) if known and sums and not loop.impure else None


def joint(loop: Any) -> Program:
    """Return body and condition as one program of the inputs of the body."""
    body: Program = loop.body
    condition: Program | None = loop.condition
    if condition is None:
        return body
    same: dict[int, Variable] = {own.index: v for own, v in zip(condition.inputs, body.inputs, strict=True)}

    def moved(operand: Any) -> Any:
        if isinstance(operand, Literal):
            return operand
        if operand.index not in same:
            at, aval = operand.index + body.size, operand.aval
            fixed = isinstance(operand, Constant)
            same[operand.index] = Constant(at, aval, operand.value) if fixed else Variable(at, aval)
        return same[operand.index]

    asked = [
        attrs.evolve(e, inputs=tuple(map(moved, e.inputs)), outputs=tuple(map(moved, e.outputs)))
        for e in condition.equations
    ]
    holds = moved(condition.outputs[0])
    if loop.test == "after":
        return Program(body.inputs, [*asked, *body.equations], [*body.outputs, holds])
    return Program(body.inputs, [*asked, Equation(Halt(), (holds,), ()), *body.equations], body.outputs)


class LoopSource:
    """A loop as one Python function of NumPy arrays; `source` is its text.

    It serves all loops that differ from this one in their number of rounds alone.
    """

    def __init__(self, loop: Any) -> None:
        self.loop = loop = attrs.evolve(loop, derived={})  # not what is derived, which holds this
        final = join_elementwise(optimised(joint(loop), 0), NUMPY.smallest)
        self.final, self._terms, factors = products_of(final, loop.carries, loop.outputs)
        self.asks = loop.condition is not None
        self.rows = "room_" if self.asks else "n_"
        self.first, self.after = ("n_", "a0") if loop.reverse else ("0", "a0 + 1")
        self._units: list[Unit] = []
        self._targets: dict[int, str] = {}
        self._makers = {out.index: equation for equation in self.final.equations for out in equation.outputs}
        paths = {output.carry for output in loop.outputs if isinstance(output, Path)}
        carries = [self._carry(n, aval, stacked=n in paths) for n, aval in enumerate(loop.carry_avals)]
        outputs = [self._output(k, output) for k, output in enumerate(loop.outputs)]
        items = [*carries, *[item for item in outputs if item is not None]]
        if self._terms:
            products = Products(self, self._terms, factors)
            items.append(products)
            for number, factor in enumerate(factors):
                self._claim(factor, factor.aval, products.row(number))
        self._written = Source(self.final, groups=self._group, results=self._targets)
        self._trails = dict(zip(map(id, self.final.outputs), trails(self.final, {}), strict=True))
        self._assemble(items)
        arguments = ["n_", *list(self._written.inputs.values())[1:]]
        results = [self._result(k, output) for k, output in enumerate(loop.outputs)]
        unit = Unit(self._written, "loop", arguments, f"({''.join(f'{each}, ' for each in results)})", kept=True)
        self._units.append(unit)
        self.function = unit.function
        self.source = "\n".join(each.text for each in self._units)

    def __call__(self, loop: Any, operands: Sequence[Any]) -> tuple[Any, ...]:
        """Run a loop on raw operands."""
        given = (max(int(operands[-1]), 0), *operands[:-1]) if loop.counts else (loop.length, *operands)
        return run_units(self.function, self._units, given)  # type: ignore[no-any-return]

    def _group(self, group: Group) -> Any:
        found = NUMPY.group(group, thread_count(None))
        if isinstance(found, Blocks):
            self._units.append(found.unit)
        return found

    # -------------------------------------------------------------- where results lie

    def _claim(self, out: Variable | Literal, aval: Aval, name: str) -> bool:
        """Let a result be computed in the array of a name, where its operation can do that, unless it is claimed."""
        if type(out) is not Variable or out.index in self._targets or out.aval != aval or not aval.shape:
            return False
        made = self._makers.get(out.index)
        if made is None or not (written_by(made) or isinstance(made.op, Group)):
            return False
        self._targets[out.index] = name
        return True

    def _carry(self, n: int, aval: Aval, *, stacked: bool) -> places.Item:
        out = self.final.outputs[n]
        if stacked:
            self._claim(out, aval, f"p{n}_")
            return places.Path(self, n, aval, out)
        turns = self._claim(out, aval, f"n{n}_")
        return (places.Turns if turns else places.Another)(self, n, aval, out)

    def _output(self, k: int, output: Output) -> places.Item | None:
        if isinstance(output, All):
            aval = self.loop.value_avals[output.value]
            self._claim(self.value(output.value), aval, f"q{k}_")
            return places.Rows(self, k, aval, self.value(output.value))
        if isinstance(output, Marks):
            make = partial(MarkRows, np, self.loop.carry_avals[output.carry], output.plan)
            return places.Marks(self, k, output.carry, make, "None" if self.asks else "n_")
        if not isinstance(output, Total):
            return None
        first = output.parts[0]
        if len(output.parts) == 1 and first.index == (OPERAND,) and self._is_counter(first.operands[0]):
            self._claim(self.value(first.value), Aval(output.aval.shape[1:], output.aval.dtype), f"q{k}_")
        like = "" if output.like is None else f"a{1 + self.loop.carries + output.like}"
        late = {term.part for term in self._terms if term.total == k}
        parts = [part for place, part in enumerate(output.parts) if place not in late]
        return places.Sum(self, k, output, parts, like)

    def _is_counter(self, number: int) -> bool:
        return self.value(number) is self.final.inputs[0]

    def _result(self, k: int, output: Output) -> str:
        if isinstance(output, Last):
            return f"a{1 + output.carry}"
        if isinstance(output, Path):
            return f"P{output.carry}_"
        if isinstance(output, Marks):
            return f"q{k}_.whole()"
        return f"Q{k}_" if isinstance(output, All | Total) else f"{self.bind(np.int64, 'int64')}({self._rounds})"

    @property
    def _rounds(self) -> str:
        """The number of rounds, behind the loop."""
        return "a0" if self.asks else "n_"

    # -------------------------------------------------------------- what items write with

    def bind(self, value: Any, hint: str) -> str:
        """Return the name of an object in the source."""
        return self._written.bind(value, hint)

    def value(self, number: int) -> Variable | Literal:
        """Return a value of the body."""
        out: Variable | Literal = self.final.outputs[self.loop.carries + number]
        return out

    def text(self, out: Variable | Literal) -> str:
        """Return the text of a result of the round."""
        text = self._written.name(out)
        return f"{self.bind(as_number, 'as_number')}({text})" if is_computed_number(out, self._written) else text

    def is_target(self, out: Variable | Literal, name: str) -> bool:
        """Whether a result was computed in the array of this name."""
        return isinstance(out, Variable) and self._targets.get(out.index) == name

    def is_written_again(self, out: Variable | Literal) -> bool:
        """Whether the memory of a result may be written to in a later round."""
        carries = {variable.index for variable in self.final.inputs[1 : 1 + self.loop.carries]}
        trail = self._trails[id(out)]
        written = not {trail.root, *trail.may}.isdisjoint(self._targets.keys() | carries)
        return written or self._written.is_kept(self._written.name(out))

    # -------------------------------------------------------------- lines

    def _assemble(self, items: Sequence[places.Item]) -> None:
        """Put the lines of the round into those of the loop; the sites of its own lines are not known."""
        own = list(zip(self._written.lines, self._written.sites, strict=True))
        stacks = [item for item in items if item.stack]
        before = ["a0 = 0", *([f"room_ = {ROOM}"] if stacks else [])] if self.asks else []
        before += [line for item in items for line in item.begin()]
        opening = [line for item in items for line in item.open()]
        closing = [line for item in items for line in item.close()]
        closing += places.together([pair for item in items for pair in item.assigned()])
        if self.asks:
            opening = [*self._growth(stacks), *opening]
        if self.asks and self.loop.test == "after":
            holds = self.final.outputs[self.loop.carries + len(self.loop.value_avals)]
            closing += [f"if not {self.text(holds)}:", "    a0 += 1", "    break"]
        if not (opening or own or closing):
            closing = ["pass"]
        lines = [
            *[(line, None) for line in [*before, self._head()]],
            *[(f"    {line}", None) for line in opening],
            *[(f"    {line}", site) for line, site in own],
            *[(f"    {line}", None) for line in closing],
            *[(line, None) for line in [*self._end(stacks), *[line for item in items for line in item.end()]]],
        ]
        self._written.lines = [line for line, _ in lines]
        self._written.sites = [site for _, site in lines]

    def _head(self) -> str:
        if self.asks:
            return f"for a0 in range({self._most}):"
        return "for a0 in range(n_ - 1, -1, -1):" if self.loop.reverse else "for a0 in range(n_):"

    @property
    def _most(self) -> int:
        return ENDLESS if self.loop.max_steps is None else int(self.loop.max_steps)

    def _growth(self, stacks: Sequence[places.Item]) -> list[str]:
        """Make more room, with nobody looking at the arrays."""
        if not stacks:
            return []
        paths = [item for item in stacks if isinstance(item, places.Path) and item.view]
        views = [*[item.name for item in paths], *[item.view for item in stacks if item.view]]
        lines = ["room_ += room_ >> 2", f"{' = '.join(views)} = None" if views else "", *self._resized(stacks, "room_")]
        lines += [f"{item.name} = {item.stack}[a0]" for item in paths]
        return ["if a0 == room_:", *[f"    {line}" for line in lines if line]]

    def _resized(self, stacks: Sequence[places.Item], rows: str) -> list[str]:
        lines, bind = [], self.bind(resized, "resized")
        for item in stacks:
            count = f"{rows} + {item.more}" if item.more else rows
            lines += [f"box_, {item.stack} = [{item.stack}], None", f"{item.stack} = {bind}(box_, {count})"]
        return lines

    def _end(self, stacks: Sequence[places.Item]) -> list[str]:
        """Return the lines behind the loop: what is returned belongs to nobody else, and has the rows that it needs."""
        last = {output.carry for output in self.loop.outputs if isinstance(output, Last)}
        paths = [item for item in stacks if isinstance(item, places.Path) and item.view]
        copies = [f"{item.name} = {item.name}.copy()" for item in paths if item.number in last]
        if not self.asks:
            return copies
        views = [item.view for item in stacks if item.view]
        views += [item.name for item in paths if item.number not in last]
        forget = [f"{' = '.join(views)} = None"] if views else []
        return ["else:", f"    a0 = {self._most}", *copies, *forget, *self._resized(stacks, "a0")]
