"""The functions `root` and `fixed_point`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from xform.core.cells import as_they_are
from xform.core.errors import OperandError, OperandTypeError
from xform.core.functions import require_function
from xform.core.source import boundary
from xform.implicit.operator import posed
from xform.implicit.problems import BySeries, ByUser, Equation, FixedPoint, by_matrix
from xform.implicit.systems import Limits
from xform.transforms.operands import is_bare, label_of

__all__ = ["fixed_point", "root"]

Function = Callable[..., Any]


@boundary
def root(f: Function, x0: Any, solver: Function, *args: Any, linear_solve: Function | None = None) -> Any:
    """Return `x` with `f(x, *args) = 0`, as `solver(f, x0)` finds it; differentiable by all that `f` depends on.

    `x0` is an array, a number or a container of them; the solution and what `f` returns have its structure and shapes,
    the solution its dtypes too. The solver is given `f` as a function of `x` alone and plain values, under every
    transformation, so it may use Python's control flow, or SciPy; under `vmap` it runs once for each lane. Derivatives,
    of every order and in both modes, are those of the equation: by `args`, and by the values that `f` closes over; that
    by `x0` is zero. They solve one linear system each, with the Jacobian of `f` as a matrix, or by
    `linear_solve(matvec, b)`, which is given a linear function of containers like `x0` and returns `w` with
    `matvec(w) = b` (in reverse mode the function is the transposed one). A complex `f` must be holomorphic in `x`
    (`GradientError`) where no `linear_solve` is given.

    Nobody checks that `f(x)` is small: that is the solver's to say. Raises `DtypeError` for an `x0` of integers,
    `RuleError` where the solution is not like `x0`, `OperandError` where what `f` returns is not, and for a derivative
    `numpy.linalg.LinAlgError` where the Jacobian is singular.

    >>> import xform as xf
    >>> def newton(f, x):
    ...     while abs(y := f(x)) > 1e-12:
    ...         x = x - y / xf.grad(f)(x)
    ...     return x
    >>> round(xf.grad(lambda a: xf.root(lambda x: x * x - a, 1.0, newton))(4.0), 12)
    0.25
    """
    require_function(f, "root")
    require_function(solver, "root: solver")
    if linear_solve is not None:
        require_function(linear_solve, "root: linear_solve")
    if not is_bare(None):  # a layer may run them later
        f, solver, linear_solve = as_they_are(f, solver, linear_solve)
    method: Function = by_matrix if linear_solve is None else ByUser(linear_solve)
    return posed(lambda closure: Equation(closure, solver, method), f, x0, args, f"root of {label_of(f)}")


@boundary
def fixed_point(
    f: Function,
    x0: Any,
    *args: Any,
    tolerance: float | None = None,
    max_iterations: int = 1000,
    linear_solve: Function | str | None = None,
) -> Any:
    """Return `x` with `f(x, *args) = x`, found by iterating from `x0`; differentiable by all that `f` depends on.

    The iteration stops when no element changes by more than `tolerance * max(1, |x|)`, where `|x|` is the largest
    absolute value in `x`, over all its arrays: a number without a unit, by default the 3/4 power of the dtype's
    precision (1.8e-12 for float64, 6.4e-6 for float32). Under `vmap` all lanes are iterated at once, and each stops by
    itself. Containers, derivatives and `linear_solve` are those of `root`; `linear_solve="neumann"` solves the linear
    systems by iteration too, with the same limits, which needs products with the Jacobian alone.

    Raises `ConvergenceError` where `max_iterations` steps do not suffice or an element is not finite, and what `root`
    raises.

    >>> import numpy as np, xform as xf
    >>> x = xf.fixed_point(np.cos, 1.0)
    >>> round(float(x), 9)
    0.739085133
    >>> slope = xf.grad(lambda a: xf.fixed_point(lambda x: a * np.cos(x), 1.0))(1.0)
    >>> bool(abs(slope - np.cos(x) / (1.0 + np.sin(x))) < 1e-9)
    True
    """
    what = f"fixed_point of {label_of(f)}"
    require_function(f, "fixed_point")
    limits = Limits(checked_tolerance(tolerance, what), checked_count(max_iterations, what))
    if not is_bare(None):
        f, linear_solve = as_they_are(f, linear_solve)
    method: Function = by_matrix
    if isinstance(linear_solve, str):
        if linear_solve != "neumann":
            msg = f'{what}: linear_solve must be a function, "neumann" or None, got {linear_solve!r}'
            raise OperandError(msg, value=linear_solve)
        method = BySeries(Limits(limits.tolerance, limits.iterations, floor=0.0))
    elif linear_solve is not None:
        require_function(linear_solve, f"{what}: linear_solve")
        method = ByUser(linear_solve)
    return posed(lambda closure: FixedPoint(closure, limits, method), f, x0, args, what)


def checked_tolerance(tolerance: Any, what: str) -> float | None:
    """Return a tolerance; raises where it is no number that is not negative."""
    if tolerance is None:
        return None
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float):
        msg = f"{what}: tolerance must be a number or None, got {tolerance!r:.60}"
        raise OperandTypeError(msg, value=tolerance)
    if not 0 <= tolerance < math.inf:
        msg = f"{what}: tolerance must be finite and not negative, got {tolerance}"
        raise OperandError(msg, value=tolerance)
    return float(tolerance)


def checked_count(count: Any, what: str) -> int:
    """Return a number of iterations; raises where it is none."""
    if isinstance(count, bool) or not isinstance(count, int):
        msg = f"{what}: max_iterations must be an int, got {count!r:.60}"
        raise OperandTypeError(msg, value=count)
    if count < 1:
        msg = f"{what}: max_iterations must be at least 1, got {count}"
        raise OperandError(msg, value=count)
    return count
