"""Passes over a Program: each takes one, and returns an equal one that costs less.

This is the whole list. A pass is linear in the number of equations. The result of `optimised` is for running, not for
differentiation: `StopGradient` and names are gone from it.
"""

from __future__ import annotations

from collections.abc import Callable

from xform.core.errors import ProgramError
from xform.programs.passes.cleaning import drop_dead
from xform.programs.passes.constants import folding
from xform.programs.passes.draft import Rules, sweep
from xform.programs.passes.groups import join_elementwise
from xform.programs.passes.identities import exact, factored, finite, rounded
from xform.programs.passes.products import exactly, nearly
from xform.programs.passes.steps import join_steps
from xform.programs.passes.sums import join_sums
from xform.programs.passes.views import views
from xform.programs.program import Program

__all__ = ["LEVELS", "PASSES", "RULES", "join_elementwise", "optimised", "require_level", "simplify"]

#: levels of optimisation: the same up to rounding, NaN and infinities where they were; values in between are finite;
#: products and sums in another order
LEVELS = (0, 1, 2)

#: rules that rewrite equations one by one, and the level from which they apply
RULES: tuple[tuple[int, Rules], ...] = (
    (0, folding), (0, views), (0, exact), (0, rounded), (0, exactly), (0, nearly), (1, finite), (2, factored)
)  # fmt: skip


def simplify(program: Program, level: int) -> Program:
    """Rewrite equations by the rules of a level; equal ones become one, and those that nothing needs are left out."""
    return sweep(program, *[rules for at, rules in RULES if at <= level])


def join_terms(program: Program, level: int) -> Program:
    """Sum terms of one kind together, and tidy up where that was done."""
    joined = join_sums(program)
    return program if joined is program else simplify(joined, level)


def join_rounds(program: Program, level: int) -> Program:
    """Do together what the steps of an unrolled loop do each for itself."""
    joined = join_steps(program)
    return program if joined is program else drop_dead(joined)


#: passes in their order; the level says which rules they go by
PASSES: tuple[Callable[[Program, int], Program], ...] = (
    lambda program, level: drop_dead(program), simplify, join_terms, join_rounds
)  # fmt: skip


def require_level(level: int) -> None:
    """Raise `ProgramError` for a level that there is not."""
    if level not in LEVELS:
        msg = f"level must be one of {', '.join(map(str, LEVELS))}, got {level!r}"
        raise ProgramError(msg, level=level)


def optimised(program: Program, level: int = 0) -> Program:
    """Return a program that computes the same by fewer operations.

    Raises `ProgramError` for a level that there is not.

    >>> import numpy as np, xform as xf, xform.numpy as xnp
    >>> program = xf.make_program(lambda x: xnp.log(xnp.exp(x)) + x * 1.0)(np.ones(2))
    >>> print(optimised(program, level=1))
    program(a: float64[2]):
      e: float64[2] = Add(a, a)
      return e
    """
    require_level(level)
    for each in PASSES:
        program = each(program, level)
    return program
