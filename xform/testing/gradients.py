"""`check_grads`: derivatives in both modes and of any order against finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import attrs
import numpy as np

from xform import tree
from xform.core.aval import aval_of
from xform.core.backend import SCALAR_TYPES
from xform.ops.broadcast import astype
from xform.testing.numeric import Flat, cotangent_like, directional, numbers, tangent_at, tolerance
from xform.transforms.forward import jvp
from xform.transforms.reverse import vjp

__all__ = ["Problem", "check_grads", "check_problem", "curved", "flattened"]

MODES = ("fwd", "rev")


@attrs.frozen(eq=False)
class Problem:
    """A function of flat floating operands with flat floating results, and what to call it in messages."""

    name: str
    fun: Flat
    args: tuple[Any, ...]
    labels: tuple[str, ...]
    outputs: tuple[str, ...]
    #: modes that made this function from the first one, the last at the end
    made_by: tuple[str, ...] = ()
    atol: float | None = None
    rtol: float | None = None
    eps: float | None = None

    @property
    def order(self) -> int:
        """Which derivative of the first function the next one is."""
        return len(self.made_by) + 1

    def fail(self, mode: str, what: str) -> NoReturn:
        """Raise, saying where."""
        of = f" (of the {' of the '.join(reversed(self.made_by))} derivative)" if self.made_by else ""
        raise AssertionError(f"{self.name}: {mode} mode, order {self.order}{of}: {what}")


def check_grads(
    fun: Callable[..., Any],
    args: Sequence[Any],
    order: int = 2,
    modes: Sequence[str] = MODES,
    *,
    atol: float | None = None,
    rtol: float | None = None,
    eps: float | None = None,
) -> None:
    """Check the derivatives of a function against finite differences; raises `AssertionError` where they differ.

    `args` is the tuple of the arguments, containers of NumPy arrays (float or complex; other leaves are constants).
    Every leaf gets random directions with fixed seeds, every mode is checked, then the derivatives themselves, up to
    `order`. `rtol` defaults to 1e-6 (3e-4 in single precision), `eps` is the step relative to the leaf. The error names
    function, mode, order and leaf.

    >>> import numpy as np, xform as xf, xform.numpy as xnp
    >>> check_grads(lambda x: xnp.sin(x).sum(), (np.array([0.5, 1.0]),))
    >>> check_grads(lambda x: x + xf.stop_gradient(x), (np.array(1.0),), order=1, modes=("rev",))
    Traceback (most recent call last):
    ...
    AssertionError: <lambda>: rev mode, order 1: cotangent of args[0] along a random direction: got ...
    """
    unknown = set(modes) - set(MODES)
    if unknown:
        msg = f"check_grads: modes are 'fwd' and 'rev', got {sorted(unknown)}"
        raise ValueError(msg)
    if order < 1 or not modes:
        msg = f"check_grads: order={order} with modes={tuple(modes)} would check nothing; order is at least 1"
        raise ValueError(msg)
    name = getattr(fun, "__name__", None) or repr(fun)
    problem = flattened(name, fun, tuple(args))
    check_problem(attrs.evolve(problem, atol=atol, rtol=rtol, eps=eps), order, modes)


def flattened(name: str, fun: Callable[..., Any], args: tuple[Any, ...]) -> Problem:
    """Return a function of containers as one of its floating leaves alone."""
    paths, structure = tree.flatten_with_paths(args)
    leaves = [leaf for _, leaf in paths]
    places = [i for i, leaf in enumerate(leaves) if is_floating(leaf)]
    if not places:
        raise AssertionError(f"{name}: no argument is floating, there is nothing to differentiate")

    def flat(*xs: Any) -> tuple[Any, ...]:
        full = list(leaves)
        for i, x in zip(places, xs, strict=True):
            full[i] = x
        return tuple(leaf for leaf in tree.leaves(fun(*tree.unflatten(structure, full))) if is_floating(leaf))

    picked = tuple(leaves[i] for i in places)
    found = tree.flatten_with_paths(fun(*args))[0]
    outputs = tuple(f"output{path}" for path, leaf in found if is_floating(leaf))
    if not outputs:
        raise AssertionError(f"{name}: no result is floating, there is nothing to differentiate")
    return Problem(name, flat, picked, tuple(f"args{paths[i][0]}" for i in places), outputs)


def is_floating(leaf: Any) -> bool:
    """Whether a leaf has a derivative."""
    return type(leaf) in SCALAR_TYPES - {int, bool} or (hasattr(leaf, "dtype") and aval_of(leaf).dtype.kind in "fc")


def check_problem(problem: Problem, order: int, modes: Sequence[str]) -> None:
    """Check the derivatives of a flat function, then its derivatives' derivatives."""
    if order < 1:
        return
    for seed in range(2 if problem.order == 1 else 1):
        check_directions(problem, modes, np.random.default_rng(seed))
    for mode in modes if order > 1 else ():
        check_problem(derived(problem, mode), order - 1, modes)


def curved(problem: Problem) -> Problem:
    """Return the function between two that are curved, at the same point: squares of roots before it, y + y²/2 behind.

    A rule of a linear operator whose derivative is wrong, say by a cotangent that it lets nobody differentiate, shows
    at second order only where what comes to it varies: before it in forward mode, behind it in reverse.
    """
    signs = tuple(map(sign, problem.args))

    def between(*roots: Any) -> tuple[Any, ...]:
        found = problem.fun(*[each * (root * root) for each, root in zip(signs, roots, strict=True)])
        return tuple([out + out * out * 0.5 for out in found])

    return attrs.evolve(
        problem, name=f"{problem.name}, curved before and behind", fun=between, args=tuple(map(root, problem.args))
    )


def root(x: Any) -> Any:
    """Return the square root of the magnitude of a real operand, of a complex one a square root."""
    found = np.sqrt(numbers(x) if aval_of(x).dtype.kind == "c" else np.abs(numbers(x)))
    return type(x)(found) if type(x) in SCALAR_TYPES else found.astype(aval_of(x).dtype)


def sign(x: Any) -> Any:
    """Return the sign that a square of `root(x)` lacks."""
    if aval_of(x).dtype.kind == "c":
        return 1.0
    found = np.where(numbers(x) < 0, -1.0, 1.0)
    return float(found) if type(x) in SCALAR_TYPES else found.astype(aval_of(x).dtype)


@attrs.frozen(eq=False)
class Direction:
    """A direction of one operand, and the finite difference along it, with its uncertainty, for every output."""

    operand: int
    tangent: Any
    wanted: Sequence[Any]
    doubt: Sequence[Any]


def check_directions(problem: Problem, modes: Sequence[str], rng: np.random.Generator) -> None:
    """Check every mode along one random direction for each operand."""
    args = problem.args
    cotangents = tuple(cotangent_like(out, rng) for out in problem.fun(*args))
    pulled = pull(problem, args, cotangents) if "rev" in modes else ()
    for operand, x in enumerate(args):
        if not aval_of(x).size:
            continue
        tangent = tangent_at(x, rng)
        tangents = tuple(tangent if i == operand else other * 0 for i, other in enumerate(args))
        along = Direction(operand, tangent, *directional(problem.fun, args, tangents, problem.eps))
        if "fwd" in modes:
            check_tangents(problem, along, push(problem, args, tangents))
        if "rev" in modes:
            check_cotangent(problem, along, pulled[operand], cotangents)


def check_tangents(problem: Problem, along: Direction, found: Sequence[Any]) -> None:
    """Hold the tangents of all outputs against the finite difference, element by element."""
    for output, tangent, want, unsure in zip(problem.outputs, found, along.wanted, along.doubt, strict=True):
        got = numbers(tangent)
        bound = bounds(problem, np.max(np.abs(want), initial=0.0), [*problem.args, got], want)
        wrong = ~(np.abs(got - want) <= bound)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            what = f"tangent of {output}{list(at) or ''} along {problem.labels[along.operand]}"
            problem.fail("fwd", f"{what}: got {got[at]}, expected {want[at]}{uncertain(unsure[at], np.max(bound))}")


def check_cotangent(problem: Problem, along: Direction, found: Any, cotangents: Sequence[Any]) -> None:
    """Hold <pulled cotangent, direction> against <cotangent, finite difference>."""
    got = np.sum(numbers(found) * numbers(along.tangent)).real
    parts = [numbers(ct) * want for ct, want in zip(cotangents, along.wanted, strict=True)]
    want = sum(np.sum(part).real for part in parts)
    bound = bounds(problem, sum(float(np.sum(np.abs(part))) for part in parts), [*problem.args, found], want)
    if not abs(got - want) <= bound:
        unsure = sum(float(np.sum(np.abs(ct) * each)) for ct, each in zip(cotangents, along.doubt, strict=True))
        what = f"cotangent of {problem.labels[along.operand]} along a random direction"
        problem.fail("rev", f"{what}: got {got}, expected {want}{uncertain(unsure, bound)}")


def bounds(problem: Problem, scale: Any, values: Sequence[Any], want: Any) -> Any:
    """Return how far a result may lie from what is expected."""
    rtol = tolerance([v for v in values if is_floating(v)]) if problem.rtol is None else problem.rtol
    atol = rtol * 1e-3 if problem.atol is None else problem.atol
    return atol + rtol * np.maximum(np.abs(want), scale)


def uncertain(unsure: float, bound: float) -> str:
    """Say so where the finite difference itself may be wrong."""
    if unsure <= bound:
        return ""
    return (
        f" (the finite difference is itself uncertain by {unsure:.1g}: the point lies near a kink or the edge of the "
        "domain; pass a smaller eps, or check elsewhere)"
    )


# ------------------------------------------------------------------ the two modes, with their contract


def fitted(like: Any, x: Any) -> Any:
    """Return a constant in the dtype that the function computes in at this call."""
    dtype = aval_of(like).dtype
    return x if type(x) in SCALAR_TYPES or x.dtype == dtype else astype(x, dtype)


def pull(problem: Problem, args: tuple[Any, ...], cotangents: Sequence[Any]) -> tuple[Any, ...]:
    """Return the cotangents of all operands; each must have shape and dtype of its primal."""
    out, pullback = vjp(problem.fun, *args)
    found: tuple[Any, ...] = pullback(tuple(map(fitted, out, cotangents)))
    for label, x, each in zip(problem.labels, args, found, strict=True):
        same_aval(problem, "rev", f"the cotangent of {label}", each, x)
    return found


def push(problem: Problem, args: tuple[Any, ...], tangents: Sequence[Any]) -> tuple[Any, ...]:
    """Return the tangents of all outputs; each must have shape and dtype of its output."""
    out, found = jvp(problem.fun, args, tuple(map(fitted, args, tangents)))
    for label, x, each in zip(problem.outputs, out, found, strict=True):
        same_aval(problem, "fwd", f"the tangent of {label}", each, x)
    return tuple(found)


def same_aval(problem: Problem, mode: str, what: str, got: Any, primal: Any) -> None:
    """Raise where a derivative has another shape or dtype than its primal."""
    have, want = aval_of(got), aval_of(primal)
    if have.shape != want.shape or have.dtype != want.dtype:
        problem.fail(mode, f"{what} is {have!r}, its primal {want!r}")


def derived(problem: Problem, mode: str) -> Problem:
    """Return the derivative of a problem as the problem of the next order."""
    rng = np.random.default_rng(17)
    made_by = (*problem.made_by, mode)
    if mode == "rev":
        cotangents = tuple(cotangent_like(out, rng) for out in problem.fun(*problem.args))
        outputs = tuple(f"the cotangent of {label}" for label in problem.labels)
        return attrs.evolve(problem, fun=lambda *xs: pull(problem, xs, cotangents), outputs=outputs, made_by=made_by)
    tangents = tuple(tangent_at(x, rng) for x in problem.args)
    outputs = tuple(f"the tangent of {label}" for label in problem.outputs)
    return attrs.evolve(problem, fun=lambda *xs: push(problem, xs, tangents), outputs=outputs, made_by=made_by)
