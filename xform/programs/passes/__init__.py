"""Passes over a Program: each takes one, and returns an equal one that costs less.

This is the whole list. A pass is linear in the number of equations. The result of `optimised` is for running, not for
differentiation: `StopGradient` and names are gone from it.
"""

from __future__ import annotations

from collections.abc import Callable

from xform.programs.passes.cleaning import drop_dead
from xform.programs.passes.constants import folding
from xform.programs.passes.draft import Rules, sweep
from xform.programs.passes.groups import join_elementwise
from xform.programs.passes.identities import exact, factored, finite
from xform.programs.passes.products import exactly, nearly
from xform.programs.passes.steps import join_steps
from xform.programs.passes.sums import join_sums
from xform.programs.passes.views import views
from xform.programs.program import Program

__all__ = ["LEVELS", "PASSES", "RULES", "join_elementwise", "optimised", "simplify"]

#: levels of optimisation: exact up to rounding; finite values in between; steps of unrolled loops together
LEVELS = (0, 1, 2)

#: rules that rewrite equations one by one, and the level from which they apply
RULES: tuple[tuple[int, Rules], ...] = (
    (0, folding), (0, views), (0, exact), (0, exactly), (1, finite), (1, nearly), (2, factored)
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


#: passes in their order, and the level from which they apply
PASSES: tuple[tuple[int, Callable[[Program, int], Program]], ...] = (
    (0, lambda program, level: drop_dead(program)),
    (0, simplify),
    (1, join_terms),
    (2, join_rounds),
)


def optimised(program: Program, level: int = 2) -> Program:
    """Return a program that computes the same by fewer operations.

    >>> import numpy as np, xform as xf, xform.numpy as xnp
    >>> program = xf.make_program(lambda x: xnp.log(xnp.exp(x)) + x * 1.0)(np.ones(2))
    >>> print(optimised(program, level=1))
    program(a: float64[2]):
      e: float64[2] = Add(a, a)
      return e
    """
    for at, each in PASSES:
        if at <= level:
            program = each(program, level)
    return program
