"""Long sums of terms of one kind become one operation on a stack: a sum of outer products is one product.

    acc = acc + Transpose(h_t) @ t_t   for each t      ->      Transpose(Stack(h_t)) @ Stack(t_t)

What is summed, and its gradient, are the same up to rounding: a sum that overflows on the way may do so elsewhere, and
one of nothing but -0 is 0. Only small terms are stacked: where each one fills a
cache by itself there is nothing to win.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from xform.core.aval import Aval, is_static
from xform.ops.arithmetic import Add, Mul, Neg, Sub
from xform.ops.joining import make_stack
from xform.ops.products import MATMUL, Matmul
from xform.ops.reductions import make_sum
from xform.ops.shapes import Reshape, Transpose, make_reshape, make_transpose
from xform.programs.passes.constants import folding
from xform.programs.passes.draft import LARGEST_STACK, Draft, Operand, is_row, use_counts
from xform.programs.passes.views import views
from xform.programs.program import Constant, Equation, Literal, Program, Variable, aval_at

__all__ = ["join_sums"]

#: terms of one kind that are worth a stack
FEWEST = 4


class Term(NamedTuple):
    """A term of a sum: what terms of its kind have in common, and its factors, of which the first may be transposed."""

    kind: tuple[Any, ...]
    factors: tuple[Variable, ...]
    turned: bool = False


class Sums:
    """The sums of a program: which equation ends one, and what its terms are."""

    def __init__(self, program: Program) -> None:
        self.uses = use_counts(program)
        self.makers = {e.outputs[0].index: e for e in program.equations if len(e.outputs) == 1}
        self.positions = {out.index: n for n, e in enumerate(program.equations) for out in e.outputs}
        self.inside: dict[int, int] = {}  # which sum a partial sum belongs to: the variable at its end
        self.terms: dict[int, list[tuple[Operand, bool]]] = {}  # of the equation that ends a sum, with their signs
        for equation in reversed(program.equations):
            if self._adds(equation) and equation.outputs[0].index not in self.inside:
                self.terms[equation.outputs[0].index] = self._flattened(equation)

    def maker(self, operand: Operand, *kinds: type) -> Equation | None:
        """Return the equation that makes an operand, where it is one of these operators."""
        made = None if isinstance(operand, Literal) else self.makers.get(operand.index)
        return made if made is not None and type(made.op) in kinds else None

    def _adds(self, equation: Equation) -> bool:
        aval = equation.outputs[0].aval if equation.outputs else None
        return type(equation.op) in (Add, Sub) and aval.dtype.kind in "fc" and is_static(aval.shape)  # type: ignore[union-attr]

    def _flattened(self, last: Equation) -> list[tuple[Operand, bool]]:
        """Return the terms of a sum with their signs, True for what is subtracted."""
        aval = last.outputs[0].aval
        terms: list[tuple[Operand, bool]] = []
        pending: list[tuple[Operand, bool]] = [(last.outputs[0], False)]
        while pending:
            operand, minus = pending.pop()
            made = self.maker(operand, Add, Sub, Neg)
            partial = made is last or (aval_at(operand) == aval and self._once(operand))
            if made is None or not partial:
                terms.append((operand, minus))
                continue
            self.inside[operand.index] = last.outputs[0].index  # type: ignore[union-attr]
            signs = (not minus,) if type(made.op) is Neg else (minus, minus ^ (type(made.op) is Sub))
            pending += zip(made.inputs, signs, strict=True)
        return terms

    def _once(self, operand: Operand) -> bool:
        return isinstance(operand, Variable) and self.uses.get(operand.index) == 1

    def term(self, operand: Operand, aval: Aval) -> Term | None:
        """Take a term apart; None for one that cannot be stacked: a number, or what is broadcast."""
        if isinstance(operand, Literal) or operand.aval != aval:
            return None
        made = self.maker(operand, Matmul, Mul, Reshape) if self._once(operand) else None
        found = None if made is None else READERS[type(made.op)](self, made)
        return found or Term(("sum", operand.aval), (operand,))

    def position(self, term: Term) -> int:
        """Return where the last factor of a term is made."""
        return max(self.positions.get(factor.index, -1) for factor in term.factors)


def product_term(sums: Sums, made: Equation) -> Term | None:
    """Transpose(a) @ b, of matrices; what is constant on the left is its own transpose's transpose."""
    left, b = made.inputs
    if isinstance(left, Literal) or isinstance(b, Literal) or left.aval.ndim != 2 or b.aval.ndim != 2:
        return None
    if isinstance(left, Constant):
        return Term(("product", Aval(left.aval.shape[::-1], left.aval.dtype), b.aval), (left, b), turned=True)
    made_left = sums.maker(left, Transpose)
    a = None if made_left is None else made_left.inputs[0]
    return Term(("product", a.aval, b.aval), (a, b)) if isinstance(a, Variable) else None


def outer_term(sums: Sums, made: Equation) -> Term | None:
    """A column times a row; any other elementwise product is a term as it is."""
    for column, row in (made.inputs, made.inputs[::-1]):
        tall, wide = sums.maker(column, Reshape), sums.maker(row, Reshape)
        x = None if tall is None else tall.inputs[0]
        y = row if wide is None else wide.inputs[0]
        if not isinstance(x, Variable) or not isinstance(y, Variable) or (x.aval.ndim, y.aval.ndim) != (1, 1):
            continue
        if aval_at(column).shape == (*x.aval.shape, 1) and aval_at(row).shape in (y.aval.shape, (1, *y.aval.shape)):
            return Term(("outer", x.aval, y.aval), (x, y))
    return None


def reshaped_term(sums: Sums, made: Equation) -> Term | None:
    """A term in another shape."""
    (x,) = made.inputs
    return None if isinstance(x, Literal) else Term(("sum", x.aval), (x,))


READERS: dict[type, Callable[[Sums, Equation], Term | None]] = {
    Matmul: product_term,
    Mul: outer_term,
    Reshape: reshaped_term,
}


# ------------------------------------------------------------------ the pass


def join_sums(program: Program) -> Program:
    """Sum terms of one kind by one operation on a stack of them."""
    sums = Sums(program)
    long = {index: terms for index, terms in sums.terms.items() if len(terms) >= FEWEST}
    groups = {index: grouped(sums, terms, sums.makers[index].outputs[0].aval) for index, terms in long.items()}
    groups = {index: found for index, found in groups.items() if found[0]}
    if not groups:
        return program
    draft = Draft(program, (folding, views))
    for equation in program.equations:
        index = equation.outputs[0].index if len(equation.outputs) == 1 else -1
        if index in groups:
            draft.replace(equation.outputs[0], total(draft, equation, *groups[index]))
        elif sums.inside.get(index) not in groups:
            draft.take(equation)
    return draft.finish()


Signed = tuple[Any, bool]


def grouped(
    sums: Sums, terms: list[tuple[Operand, bool]], aval: Aval
) -> tuple[list[tuple[list[Term], bool]], list[tuple[Operand, bool]]]:
    """Return the groups of terms that are worth a stack, each with its sign, and the terms that are left."""
    kinds: dict[Any, list[tuple[Term, Operand]]] = {}
    rest: list[tuple[Operand, bool]] = []
    for operand, minus in terms:
        term = sums.term(operand, aval)
        if term is None:
            rest.append((operand, minus))
        else:
            kinds.setdefault((term.kind, minus), []).append((term, operand))
    groups = []
    for (_, minus), members in kinds.items():
        if len(members) >= FEWEST and fits([factor.aval for factor in members[0][0].factors], len(members)):
            groups.append((sorted((term for term, _ in members), key=sums.position), minus))
        else:
            rest += [(operand, minus) for _, operand in members]
    return groups, rest


def fits(avals: list[Any], count: int) -> bool:
    """Whether so many of each of these arrays are small enough to be stacked."""
    return all(is_row(aval) and aval.size * count <= LARGEST_STACK for aval in avals)


def total(
    draft: Draft, last: Equation, groups: list[tuple[list[Term], bool]], rest: list[tuple[Operand, bool]]
) -> Variable:
    """Add the equations of a sum: one for each group, and one for each term that is left."""
    draft.origin = last
    aval = last.outputs[0].aval
    signed: list[Signed] = [(stacked(draft, group, aval.shape), minus) for group, minus in groups]  # type: ignore[arg-type]
    signed += [(draft.operand(operand), minus) for operand, minus in rest]
    signed.sort(key=lambda each: each[1])  # begin with what is added
    out, minus = signed[0]
    if minus:
        out = draft.apply(Neg(), out)
    for operand, negative in signed[1:]:
        out = draft.apply(Sub() if negative else Add(), out, operand)
    return draft.variable(out)


def stacked(draft: Draft, group: list[Term], shape: tuple[int, ...]) -> Variable:
    """Return the sum of a group of terms, computed on a stack of their factors."""
    columns = [[draft.operand(factor) for factor in column] for column in zip(*[t.factors for t in group], strict=True)]
    for place, term in enumerate(group):
        if term.turned:
            columns[0][place] = draft.apply(make_transpose((1, 0)), columns[0][place])
    stacks = [draft.apply(make_stack(0), *column) for column in columns]
    if group[0].kind[0] == "sum":
        out = draft.apply(make_sum((0,), keepdims=False), stacks[0])
    else:
        flat = [draft.apply(make_reshape((-1, stack.aval.shape[-1])), stack) for stack in stacks]
        out = draft.apply(MATMUL, draft.apply(make_transpose((1, 0)), flat[0]), flat[1])
    return draft.apply(make_reshape(shape), out)
