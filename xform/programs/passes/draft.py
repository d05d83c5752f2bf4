"""A program in the making: what every pass that rewrites equations is written with.

1. A pass takes the equations of the old program one after the other, in order; what it adds stands after what it needs.
2. A draft never holds one pure operation on the same operands twice: adding it again returns the first result.
3. Operators that are `pinned` (impure, or attribute-like: observers, host reads, guards) are taken as they are, in
   their order: never replaced, shared or dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xform.core.aval import Aval, aval_of, is_static
from xform.core.errors import XformError
from xform.core.operator import Operator
from xform.ops.arithmetic import Add, Mul
from xform.ops.base import Parameterless
from xform.ops.broadcast import BroadcastTo
from xform.ops.indexing import GetItem
from xform.ops.joining import Unstack
from xform.programs.program import Constant, Equation, Literal, Program, Variable, aval_at

__all__ = [
    "LARGEST_STACK", "Draft", "Inputs", "Number", "Operand", "Rules", "aval_at", "is_row", "pinned", "sweep",
    "use_counts",
]  # fmt: skip

Operand = Variable | Literal
Inputs = tuple[Operand, ...]
#: a rewriting of one equation, `rule(draft, op, inputs, aval)`: what stands for its result, or None
Rule = Callable[["Draft", Any, Inputs, Aval], Operand | None]

COMMUTATIVE = frozenset({Add, Mul})  # not Maximum: of 0 and -0 the first is taken
#: constants up to this size are looked up by their bytes, so that equal ones are one
COMPARED_BYTES = 4096
#: elements of an array that is small enough to be stacked with others like it, and of the stack
LARGEST_ROW = 1 << 13
LARGEST_STACK = 1 << 21


def pinned(op: Operator) -> bool:
    """Whether an operator must stay where it is, and be run once each time."""
    return op.impure or op.attribute_like


def is_row(aval: Aval) -> bool:
    """Whether arrays are so small that doing many at once saves more than it costs."""
    return is_static(aval.shape) and aval.size <= LARGEST_ROW


def use_counts(program: Program) -> dict[int, int]:
    """Return how often each variable is used, as an operand or as an output."""
    counts: dict[int, int] = {}
    for equation in program.equations:
        for operand in equation.inputs:
            if type(operand) is not Literal:
                counts[operand.index] = counts.get(operand.index, 0) + 1  # type: ignore[union-attr]
    for out in program.outputs:
        if type(out) is not Literal:
            counts[out.index] = counts.get(out.index, 0) + 1  # type: ignore[union-attr]
    return counts


class Number:
    """Stands for operands that are one known number: literals, constants without axes, and these broadcast."""


class Rules:
    """Rules of one kind, by the class of operators that they are for: `@rules.on(Neg)` declares one.

    With `given` it is asked only where an operand is made by one of these operators, or is a `Constant` or a `Number`.
    """

    def __init__(self) -> None:
        self._table: dict[type, list[tuple[Rule, frozenset[type] | None]]] = {}

    def on(self, *kinds: type[Operator], given: tuple[type, ...] = ()) -> Callable[[Rule], Rule]:
        """Declare a rule for classes of operators, and their subclasses."""

        def declare(rule: Rule) -> Rule:
            for kind in kinds:
                self._table.setdefault(kind, []).append((rule, frozenset(given) or None))
            return rule

        return declare

    def rules_of(self, kind: type[Operator]) -> list[tuple[Rule, frozenset[type] | None]]:
        """Return the rules for a class of operators, the nearest first."""
        return [rule for base in kind.__mro__ for rule in self._table.get(base, ())]


class Draft:
    """Equations to be, what stands for each variable of the old program, and how often each is used."""

    def __init__(self, program: Program, rules: Sequence[Rules] = ()) -> None:
        self.program = program
        self.equations: list[Equation] = []
        self.origin: Equation | None = None  #: whose scopes and line new equations get
        self._uses = use_counts(program)
        self._rules = rules
        self._rules_of: dict[type, list[tuple[Rule, frozenset[type] | None]]] = {}
        self._known: dict[int, Operand] = {}
        self._makers: dict[int, Equation] = {}
        self._parts: dict[int, tuple[Operand, int]] = {}  # what is the row of what
        self._depths: dict[int, int] = {}
        self._seen: dict[Any, tuple[Variable, ...]] = {}
        self._constants: dict[Any, Constant] = {}
        self._labels: dict[int, tuple[Operator, Any]] = {}
        self._next = program.size
        for constant in program.constants:
            kept = self._interned(constant)
            if kept is not constant:
                self.replace(constant, kept)

    # -------------------------------------------------------------- looking

    def operand(self, old: Operand) -> Operand:
        """Return what stands for an operand of the old program."""
        return old if type(old) is Literal else self._known.get(old.index, old)  # type: ignore[union-attr]

    def maker(self, operand: Operand, *kinds: type[Operator]) -> Equation | None:
        """Return the equation that makes an operand, where it is one of these operators."""
        if type(operand) is not Variable:
            return None
        made = self._makers.get(operand.index)
        return made if made is not None and type(made.op) in kinds else None

    def row_of(self, operand: Operand) -> tuple[Operand, int] | None:
        """Return the array and the place along its first axis that an operand was taken from."""
        made = self.maker(operand, GetItem)
        if made is None:
            return self._parts.get(operand.index) if type(operand) is Variable else None
        index: Any = made.op.index  # type: ignore[attr-defined]
        whole = made.inputs[0]
        return (whole, index[0]) if len(index) == 1 and type(index[0]) is int and index[0] >= 0 else None

    def used_once(self, operand: Operand, times: int = 1) -> bool:
        """Whether what an equation made is used once (or so many times), so that it goes when that use goes."""
        return type(operand) is Variable and self._uses.get(operand.index) == times

    def depth(self, operand: Operand) -> int:
        """Return how many operations, one after the other, an operand needs."""
        return 0 if type(operand) is Literal else self._depths.get(operand.index, 0)  # type: ignore[union-attr]

    # -------------------------------------------------------------- adding

    def take(self, equation: Equation) -> None:
        """Add an equation of the old program, or what the rules put in its place."""
        self.origin = equation
        op, outputs = equation.op, equation.outputs
        known = self._known
        inputs = tuple([v if type(v) is Literal else known.get(v.index, v) for v in equation.inputs])  # type: ignore[union-attr]
        if op.impure or op.attribute_like:
            self._append(op, inputs, outputs)
            return
        if not any(self._uses.get(out.index) for out in outputs):
            self._release(inputs)
            return
        key = self._key(op, inputs)
        found: tuple[Operand, ...] | None = self._seen.get(key)
        if found is None and len(outputs) == 1:
            replaced = self._rewritten(op, inputs, outputs[0].aval)
            found = None if replaced is None else (replaced,)
        if found is None:
            self._seen[key] = self._append(op, inputs, outputs)
            return
        for old, new in zip(outputs, found, strict=True):
            self.replace(old, new)
        self._release(inputs)

    def replace(self, old: Variable, new: Operand) -> None:
        """Let an operand stand for a variable of the old program."""
        self._known[old.index] = new
        self._use(new, self._uses.pop(old.index, 0))

    def apply(self, op: Operator, *inputs: Operand) -> Variable:
        """Add an operation, or what the rules put in its place; returns its result."""
        key = self._key(op, inputs)
        found = self._seen.get(key)
        if found is not None:
            return found[0]
        aval = op.infer(*map(aval_at, inputs))
        replaced = self._rewritten(op, inputs, aval)
        if replaced is not None:
            return self.variable(replaced)
        made = self._seen[key] = self._added(op, inputs, (aval,))
        return made[0]

    def apply_many(self, op: Operator, *inputs: Operand) -> tuple[Variable, ...]:
        """Add an operation of several outputs."""
        return self._added(op, inputs, op.infer(*map(aval_at, inputs)))

    def constant(self, value: Any) -> Constant:
        """Return a constant of the program; equal small ones are one."""
        made = Constant(self._next, aval_of(value), value)
        kept = self._interned(made)
        self._next += kept is made
        return kept

    def full(self, number: Any, aval: Aval) -> Variable:
        """Return an array of one number, as a broadcast constant."""
        one = self.constant(np.asarray(number, aval.dtype))
        return self.apply(BroadcastTo(aval.shape), one) if aval.shape else one  # type: ignore[arg-type]

    def variable(self, operand: Operand) -> Variable:
        """Return an operand as a variable: a number becomes a constant."""
        return self.constant(operand.value) if type(operand) is Literal else operand  # type: ignore[return-value]

    def finish(self) -> Program:
        """Return the program, without equations that nothing uses any more."""
        uses = self._uses
        kept = []
        for equation in reversed(self.equations):
            counts = [uses.get(out.index) for out in equation.outputs]
            if pinned(equation.op) or any(counts):
                kept.append(equation)
            elif counts != [0]:  # 0: its operands were let go when its last use went
                self._release(equation.inputs)
        return self.program.evolve(kept[::-1], [self.operand(out) for out in self.program.outputs])

    # -------------------------------------------------------------- inside

    def _rewritten(self, op: Operator, inputs: Inputs, aval: Aval) -> Operand | None:
        """Return what the first rule that fits puts in the place of an operation; it has the same aval."""
        kind = type(op)
        rules = self._rules_of.get(kind)
        if rules is None:
            rules = self._rules_of[kind] = [rule for each in self._rules for rule in each.rules_of(kind)]
        if not rules:
            return None
        kinds = self._kinds(inputs)
        for rule, given in rules:
            if given is not None and given.isdisjoint(kinds):
                continue
            try:
                found = rule(self, op, inputs, aval)
            except XformError:  # what a rule would make has no meaning for these operands
                continue
            if found is not None and aval_at(found) == aval:
                return found
        return None

    def _kinds(self, inputs: Inputs) -> list[type]:
        """Return what operands are made by, or are."""
        kinds: list[type] = []
        for operand in inputs:
            if type(operand) is Variable:
                made = self._makers.get(operand.index)
                if made is not None:
                    kinds.append(type(made.op))
                    if type(made.op) is not BroadcastTo:
                        continue
                    operand = made.inputs[0]  # noqa: PLW2901  (what it is the same number as)
            if type(operand) is Literal or (type(operand) is Constant and not operand.aval.shape):
                kinds.append(Number)
            elif type(operand) is Constant:
                kinds.append(Constant)
        return kinds

    def _added(self, op: Operator, inputs: Inputs, avals: Sequence[Aval]) -> tuple[Variable, ...]:
        """Add a new equation; nothing uses its results yet."""
        first = self._next
        self._next += len(avals)
        for operand in inputs:
            self._use(operand, 1)
        return self._append(op, inputs, tuple([Variable(first + n, aval) for n, aval in enumerate(avals)]))

    def _append(self, op: Operator, inputs: Inputs, outputs: tuple[Variable, ...]) -> tuple[Variable, ...]:
        origin = self.origin
        if origin is None:
            made = Equation(op, inputs, outputs)
        elif origin.op is op and origin.outputs is outputs and origin.inputs == inputs:
            made = origin
        else:
            made = Equation(op, inputs, outputs, origin.scopes, origin.phase, origin.site)
        self.equations.append(made)
        depths = self._depths
        depth = 1 + max([depths.get(v.index, 0) for v in inputs if type(v) is Variable], default=0)
        for out in outputs:
            depths[out.index] = depth
        if len(outputs) == 1:
            self._makers[outputs[0].index] = made
        elif type(op) is Unstack and op.axis == 0:
            self._parts |= {out.index: (inputs[0], row) for row, out in enumerate(outputs)}
        return outputs

    def _release(self, inputs: Inputs) -> None:
        for operand in inputs:
            self._use(operand, -1)

    def _use(self, operand: Operand, count: int) -> None:
        """Count uses; what is used no more lets go of its own operands, and takes them again when it is used again."""
        pending = [(operand, count)]
        while pending:
            operand, count = pending.pop()
            if type(operand) is Literal or not count:
                continue
            index: int = operand.index  # type: ignore[union-attr]
            before = self._uses.get(index, -1)  # -1: new, its operands are counted
            after = self._uses[index] = max(before, 0) + count
            made = self._makers.get(index)
            if made is not None and before >= 0 and (before == 0) != (after == 0) and not pinned(made.op):
                pending += [(each, 1 if after else -1) for each in made.inputs]

    def _interned(self, constant: Constant) -> Constant:
        value = constant.value
        if not isinstance(value, np.ndarray | np.generic) or value.nbytes > COMPARED_BYTES:
            return constant
        return self._constants.setdefault((value.dtype, value.shape, value.tobytes()), constant)

    def _key(self, op: Operator, inputs: Inputs) -> Any:
        """Return what two equal operations have in common."""
        names = [(type(v.value), repr(v.value)) if type(v) is Literal else v.index for v in inputs]  # type: ignore[union-attr]
        if type(op) in COMMUTATIVE and hash(names[0]) > hash(names[1]):
            names.reverse()
        return (self._label(op), *names)

    def _label(self, op: Operator) -> Any:
        """Return an operator as a key; its text tells parameters apart that Python takes for equal (0.0 and -0.0)."""
        if isinstance(op, Parameterless):
            return type(op)
        known = self._labels.get(id(op))
        if known is None:
            try:
                hash(op)
                label: Any = (op, repr(op))
            except TypeError:  # a user's operator with parameters that are no plain data is equal to itself alone
                label = id(op)
            known = self._labels[id(op)] = (op, label)
        return known[1]


def sweep(program: Program, *rules: Rules) -> Program:
    """Take all equations through these rules; without any, common subexpressions become one."""
    draft = Draft(program, rules)
    for equation in program.equations:
        draft.take(equation)
    return draft.finish()
