"""Numbers: a linear system with a Jacobian, and the iteration of a function to its fixed point."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from xform.core.aval import aval_of, dtype_of, shape_of
from xform.core.devices import to_host
from xform.core.errors import ConvergenceError, GradientError
from xform.core.stack import concrete
from xform.derivatives import jacfwd, jacrev
from xform.ops.arithmetic import sub
from xform.ops.broadcast import astype
from xform.ops.comparisons import logical_or
from xform.ops.complexes import abs as abs_
from xform.ops.create import zeros
from xform.ops.extrema import max as max_
from xform.ops.indexing import getitem
from xform.ops.linalg import solve
from xform.ops.reductions import all as all_
from xform.ops.selection import maximum, where
from xform.ops.shapes import expand_dims, matrix_transpose, ravel, reshape
from xform.ops.stacking import concatenate
from xform.transforms.forward import jvp
from xform.transforms.reverse import vjp

__all__ = ["Limits", "dense", "in_dtypes", "iterated"]

Leaves = Sequence[Any]


def in_dtypes(values: Leaves, likes: Leaves) -> tuple[Any, ...]:
    """Return values in the dtypes of others.

    >>> in_dtypes([np.ones(1)], [np.ones(1, np.float32)])
    (array([1.], dtype=float32),)
    """
    pairs = zip(values, likes, strict=True)
    return tuple([v if dtype_of(v) == dtype_of(like) else astype(v, dtype_of(like)) for v, like in pairs])


# ------------------------------------------------------------------ a linear system


def dense(fun: Callable[..., Any], xs: Leaves, sides: Leaves, *, transposed: bool) -> list[Any]:
    """Solve the system with the Jacobian of `fun` at `xs`, made as one matrix.

    Raises `LinAlgError` where it is singular, `GradientError` where some unknowns are complex and some real, and where
    complex ones have no complex derivative.

    >>> dense(lambda x: (x * x,), [np.array([1.0, 2.0])], [np.array([2.0, 2.0])], transposed=False)
    [array([1. , 0.5])]
    """
    kinds = {dtype_of(x).kind for x in xs}
    if len(kinds) > 1:
        msg = "some unknowns are real and some complex: make all of them complex, or two equations of each complex one"
        raise GradientError(msg, value=xs)

    def flat(vector: Any) -> Any:
        return packed(fun(*unpacked(vector, xs)))

    if "c" in kinds:
        require_holomorphic(flat, packed(xs), transposed=transposed)
    jacobian = (jacrev if transposed else jacfwd)(flat, holomorphic="c" in kinds)(packed(xs))
    try:
        found = solve(matrix_transpose(jacobian) if transposed else jacobian, packed(sides))
    except np.linalg.LinAlgError as error:
        error.add_note("the Jacobian is singular at the solution, where that is no function of the parameters")
        raise
    return unpacked(found, xs)


def require_holomorphic(flat: Callable[..., Any], x: Any, *, transposed: bool) -> None:
    """Raise `GradientError` where a function of complex numbers has no complex derivative: `abs`, `conj`, `real`.

    Its derivative along a direction times 1j would be 1j times that along the direction, in either mode.
    """
    direction = np.exp(1j * np.arange(1, 1 + aval_of(x).size)).astype(dtype_of(x))
    pull = vjp(flat, x)[1] if transposed else None
    found = [jvp(flat, (x,), (d,))[1] if pull is None else pull(d)[0] for d in (direction, direction * 1j)]
    if any(concrete(each) is None for each in found):  # inside of what is recorded
        return
    along, turned = (np.asarray(to_host(concrete(each))) for each in found)
    size = np.abs(along) + np.abs(turned)
    small = (1e-3, 1e-6) if along.dtype.char == "F" else (1e-6, 1e-12)  # of each, and of all: rounding
    if np.any(np.abs(along * 1j - turned) > small[0] * size + small[1] * np.max(size, initial=0.0)):
        msg = (
            "the equation is not holomorphic in its unknowns (abs, conj, real, imag): it has no complex Jacobian. "
            "Write one equation for the real and one for the imaginary part, or give a linear_solve (fixed_point knows "
            '"neumann")'
        )
        raise GradientError(msg, value=x)


def packed(leaves: Leaves) -> Any:
    """Return leaves as one vector."""
    parts = [ravel(leaf) for leaf in leaves]
    return parts[0] if len(parts) == 1 else concatenate(parts)


def unpacked(vector: Any, likes: Leaves) -> list[Any]:
    """Return the parts of a vector, in the shapes and dtypes of others."""
    found, start = [], 0
    for like in likes:
        shape: Any = shape_of(like)
        stop = start + math.prod(shape)
        if shape:
            part = vector if len(likes) == 1 else getitem(vector, slice(start, stop))
            found.append(reshape(part, shape))
        else:
            found.append(getitem(vector, start))
        start = stop
    return list(in_dtypes(found, likes))


# ------------------------------------------------------------------ an iteration


@attrs.frozen
class Limits:
    """When an iteration stops: at a change of `tolerance * max(floor, |x|)` in the maximum norm, or with an error."""

    tolerance: float | None  # None: by the dtype
    iterations: int
    floor: float = 1.0

    def relative(self, xs: Leaves) -> float:
        """Return the tolerance for arrays of these dtypes.

        >>> f"{Limits(None, 10).relative([np.ones(2)]):.1e}"
        '1.8e-12'
        """
        if self.tolerance is not None:
            return self.tolerance
        return max([float(np.finfo(dtype_of(x)).eps) ** 0.75 for x in xs], default=0.0)


def iterated(step: Callable[[Leaves], Leaves], xs: Leaves, limits: Limits, lanes: int, what: str) -> list[Any]:
    """Iterate from `xs` until the change is small; on plain arrays, whose first `lanes` axes are those of batches.

    A lane that is done stays as it is. Raises `ConvergenceError` where some lane is not done in time, or leaves the
    finite numbers.

    >>> iterated(lambda xs: [0.5 * xs[0] + 1.0], [np.zeros(2)], Limits(0.1, 20), 0, "half")
    [array([1.875, 1.875])]
    """
    tolerance = limits.relative(xs)
    done: Any = False
    change: Any = math.inf
    for count in range(limits.iterations):
        new = step(xs)
        change = norm([sub(x, y) for x, y in zip(xs, new, strict=True)], lanes)
        xs = [chosen(done, x, y) for x, y in zip(xs, new, strict=True)] if count and lanes else list(new)
        done = logical_or(done, change <= tolerance * maximum(norm(xs, lanes), limits.floor))
        if bool(all_(done)):
            return list(xs)
        if not bool(all_(logical_or(done, change < math.inf))):
            break
    worst = float(max_(where(done, 0.0, change)))
    msg = (
        f"{what}: after {count + 1} iterations x changes by {worst:.3g} (maximum norm), which is more than "
        f"{tolerance:.3g} * max({limits.floor:g}, |x|); iterate on a contraction, e.g. a damped x + 0.5 * (f(x) - x), "
        "start nearer to the solution, or give another tolerance or max_iterations"
    )
    raise ConvergenceError(msg, iterations=count + 1, change=worst, tolerance=tolerance)


def norm(leaves: Leaves, lanes: int) -> Any:
    """Return the largest absolute value in each lane, over all leaves."""
    found: Any = None
    for leaf in leaves:
        shape: Any = shape_of(leaf)
        size = math.prod(shape[lanes:])
        if size:
            part = max_(reshape(abs_(leaf), (*shape[:lanes], size)), axis=-1)
            found = part if found is None else maximum(found, part)
    return zeros(shape_of(leaves[0])[:lanes] if leaves else (), np.float64) if found is None else found


def chosen(done: Any, x: Any, y: Any) -> Any:
    """Return `x` in the lanes that are done, `y` in the others."""
    missing = len(shape_of(x)) - len(shape_of(done))
    return where(expand_dims(done, tuple(range(-missing, 0))) if missing else done, x, y)
