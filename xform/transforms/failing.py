"""Operations that may fail for some values of their operands: a program runs them even where nothing uses their result.

`try: np.linalg.cholesky(a)` asks whether `a` is positive definite, and an operation that nobody needs raises too.
"""

from __future__ import annotations

from collections.abc import Sequence

from xform.core.aval import Aval, is_static
from xform.core.operator import Operator
from xform.ops.base import Elementwise
from xform.ops.decompositions import Pinv, Svd
from xform.ops.draws import Draw
from xform.ops.factorizations import Cholesky, Eigh
from xform.ops.linalg import Inv, Solve
from xform.ops.powers import Pow
from xform.programs.program import Equation, Literal, aval_at

__all__ = ["avals_in", "checks", "may_fail"]

#: raise `LinAlgError`, or for bounds that cross
FAILING = (Cholesky, Draw, Eigh, Inv, Pinv, Solve, Svd)


def may_fail(op: Operator, avals: Sequence[Aval]) -> bool:
    """Whether an operation may fail, though shapes and dtypes of its operands fit; True where nothing is known.

    Indices may be out of bounds, lengths that depend on values may differ, integers have no negative powers.

    >>> import xform as xf
    >>> may_fail(xf.ops.Add(), (xf.aval_of(1.0), xf.aval_of(1.0)))
    False
    """
    if not type(op).__module__.startswith("xform.ops."):
        return True
    if isinstance(op, FAILING) or not all(is_static(aval.shape) for aval in avals):
        return True
    integers = [aval.dtype.kind in "iu" for aval in avals]
    if isinstance(op, Elementwise):
        return isinstance(op, Pow) and all(integers)
    return any(integers[1:])


def avals_in(equation: Equation) -> list[Aval]:
    """Return the avals of the operands."""
    return list(map(aval_at, equation.inputs))


def checks(equations: Sequence[Equation], live: set[int]) -> list[int]:
    """Return the numbers of results that nothing uses, of operations that may fail; `live` are results that are used.

    A compiler that leaves out what nothing uses must be told that they are needed.
    """
    live = set(live)
    found = []
    for equation in reversed(equations):
        made = [variable.index for variable in equation.outputs]
        if live.isdisjoint(made) and made and may_fail(equation.op, avals_in(equation)):
            found.append(made[0])
            live.add(made[0])
        if not live.isdisjoint(made) or equation.op.impure or equation.op.attribute_like:
            live.update([v.index for v in equation.inputs if not isinstance(v, Literal)])
    return found[::-1]
