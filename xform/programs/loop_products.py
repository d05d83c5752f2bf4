"""Sums over rounds of products of small matrices, in generated source: the factors of many rounds, then one product.

In place of `total += Transpose(x) @ t` and `bias += Sum(t)` in each round, rows of `x` and `t` are computed where they
lie together, and after 64 rounds comes `total += Transpose(X) @ T` and `bias += Sum(T)`: the same up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from xform.ops.arithmetic import Mul
from xform.ops.products import Matmul
from xform.ops.reductions import Sum
from xform.ops.shapes import Reshape, Transpose
from xform.programs.loop_outputs import All, Part, Total
from xform.programs.loop_places import Item, Scribe, empty
from xform.programs.passes.cleaning import drop_dead
from xform.programs.passes.draft import is_row
from xform.programs.program import Equation, Literal, Program, Variable

__all__ = ["Products", "Term", "products_of"]

#: rounds of which the factors are kept, and bytes that they may take
MOST_ROUNDS, MOST_BYTES = 64, 1 << 16
FEWEST_ROUNDS = 4


class Term(NamedTuple):
    """A part of a total: the sum of products of two factors, or of one factor along its leading axes.

    Outputs, the parts of each, values and factors are known by their numbers.
    """

    total: int
    part: int
    value: int
    factors: tuple[int, ...]


class Products(Item):
    """The factors of one loop, by number, and what is made of them."""

    def __init__(self, scribe: Scribe, terms: Sequence[Term], factors: Sequence[Variable]) -> None:
        super().__init__(scribe)
        self.terms = terms
        self.factors = factors
        size = sum(factor.aval.size * factor.aval.dtype.itemsize for factor in factors)
        self.rounds = max(FEWEST_ROUNDS, min(MOST_ROUNDS, MOST_BYTES // size))

    def row(self, number: int) -> str:
        """Return the name of the row of a factor."""
        return f"e{number}_"

    def begin(self) -> list[str]:
        """Make the arrays of factors."""
        arrays = [empty(self.scribe, factor.aval, str(self.rounds)) for factor in self.factors]
        return ["r_ = 0", *[f"E{number}_ = {array}" for number, array in enumerate(arrays)]]

    def open(self) -> list[str]:
        """Take the rows that are computed where they lie."""
        own = [n for n, out in enumerate(self.factors) if self.scribe.is_target(out, self.row(n))]
        return [f"{self.row(n)} = E{n}_[r_]" for n in own]

    def close(self) -> list[str]:
        """Copy the other rows; multiply when there is no more room."""
        others = [n for n, out in enumerate(self.factors) if not self.scribe.is_target(out, self.row(n))]
        copies = [f"E{n}_[r_] = {self.scribe.text(self.factors[n])}" for n in others]
        return [*copies, "r_ += 1", f"if r_ == {self.rounds}:", *[f"    {line}" for line in self.added()], "    r_ = 0"]

    def end(self) -> list[str]:
        """Multiply what is left."""
        return ["if r_:", *[f"    {line}" for line in self.added()]]

    def added(self) -> list[str]:
        """Return the lines that add the terms to their totals."""
        bind, lines = self.scribe.bind, []
        for term in self.terms:
            function = bind(add_products, "add_products") if len(term.factors) == 2 else bind(add_rows, "add_rows")
            lines.append(f"{function}(Q{term.total}_, {', '.join(f'E{n}_' for n in term.factors)}, r_)")
        return lines


def add_products(total: Any, left: Any, right: Any, rounds: int) -> None:
    """Add the products of transposed matrices, or of columns and rows, to a total."""
    flat = left[:rounds].reshape(-1, left.shape[-1]).T.dot(right[:rounds].reshape(-1, right.shape[-1]))
    total += flat.reshape(total.shape)


def add_rows(total: Any, rows: Any, rounds: int) -> None:
    """Add up rows along all axes that a total does not have."""
    total += rows[:rounds].reshape(-1, total.size).sum(0).reshape(total.shape)


# ------------------------------------------------------------------ what is worth it


def products_of(program: Program, carries: int, outputs: Sequence[Any]) -> tuple[Program, list[Term], list[Variable]]:
    """Find the terms that are worth keeping the factors of; return a program that gives the factors in their place."""
    makers = {out.index: equation for equation in program.equations for out in equation.outputs}
    found = Found(makers)
    for look in (found.product, found.rows):
        for k, place, part in dense_parts(outputs):
            factors = None if found.has(k, place) else look(program.outputs[carries + part.value])
            if factors is not None:
                found.terms.append(Term(k, place, part.value, tuple(map(found.number, factors))))
    if not found.terms:
        return program, [], []
    outs: list[Any] = list(program.outputs)
    for value in {term.value for term in found.terms} - used_otherwise(outputs, found):
        outs[carries + value] = Literal(0)
    return drop_dead(program.evolve(program.equations, [*outs, *found.factors])), found.terms, found.factors


def dense_parts(outputs: Sequence[Any]) -> list[tuple[int, int, Part]]:
    """Return the parts of totals that are added to all of them, with their numbers."""
    totals = [(k, output) for k, output in enumerate(outputs) if isinstance(output, Total)]
    return [(k, n, part) for k, output in totals for n, part in enumerate(output.parts) if part.index is None]


def used_otherwise(outputs: Sequence[Any], found: Found) -> set[int]:
    """Return the values that outputs need besides those of the terms."""
    used: set[int] = set()
    for k, output in enumerate(outputs):
        if isinstance(output, Total):
            rest = [part for n, part in enumerate(output.parts) if not found.has(k, n)]
            used |= {number for part in rest for number in (part.value, *part.operands)}
        elif isinstance(output, All):
            used.add(output.value)
    return used


class Found:
    """The terms that were found, and their factors."""

    def __init__(self, makers: dict[int, Equation]) -> None:
        self.makers = makers
        self.terms: list[Term] = []
        self.factors: list[Variable] = []

    def maker(self, operand: Any, *kinds: type) -> Equation | None:
        """Return the equation that makes an operand, where it is one of these operators."""
        made = self.makers.get(operand.index) if isinstance(operand, Variable) else None
        return made if made is not None and type(made.op) in kinds else None

    def has(self, total: int, part: int) -> bool:
        """Whether a part was found to be a term."""
        return any((term.total, term.part) == (total, part) for term in self.terms)

    def number(self, factor: Variable) -> int:
        """Return the number of a factor."""
        for number, each in enumerate(self.factors):
            if each is factor:
                return number
        self.factors.append(factor)
        return len(self.factors) - 1

    def product(self, out: Any) -> tuple[Variable, ...] | None:
        """Return the factors of a product of matrices, or of a column and a row."""
        made = self.maker(out, Matmul, Mul)
        pair = None if made is None else self._matrices(made) if type(made.op) is Matmul else self._outer(made)
        if pair is None or out.aval.dtype.kind not in "fc" or any(each.aval.dtype != out.aval.dtype for each in pair):
            return None
        small = all(is_row(each.aval) for each in pair) and is_row(out.aval)
        return pair if small and sum(each.aval.size for each in pair) <= 2 * out.aval.size else None

    def rows(self, out: Any) -> tuple[Variable, ...] | None:
        """Return what is kept anyway, and summed along leading axes."""
        factor = out
        while isinstance(factor, Variable) and all(factor is not each for each in self.factors):
            made = self.maker(factor, Reshape, Sum)
            if made is None or (isinstance(made.op, Sum) and made.op.axis != tuple(range(len(made.op.axis)))):
                return None
            factor = made.inputs[0]
        fits = isinstance(factor, Variable) and out.aval.size and factor.aval.size % out.aval.size == 0
        return (factor,) if fits else None

    def _matrices(self, made: Equation) -> tuple[Variable, Variable] | None:
        """Transpose(a) @ b."""
        turned, right = self.maker(made.inputs[0], Transpose), made.inputs[1]
        left = None if turned is None else turned.inputs[0]
        if isinstance(left, Variable) and isinstance(right, Variable) and left.aval.ndim == right.aval.ndim == 2:
            return left, right
        return None

    def _outer(self, made: Equation) -> tuple[Variable, Variable] | None:
        """A column times a row."""
        column, row = (self.maker(operand, Reshape) for operand in made.inputs)
        if column is None or row is None:
            return None
        x, y = column.inputs[0], row.inputs[0]
        if not (isinstance(x, Variable) and isinstance(y, Variable)) or x.aval.ndim != 1 or y.aval.ndim != 1:
            return None
        shapes = column.outputs[0].aval.shape, row.outputs[0].aval.shape
        return (x, y) if shapes == ((*x.aval.shape, 1), (1, *y.aval.shape)) else None
