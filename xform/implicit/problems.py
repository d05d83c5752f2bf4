"""Equations: how each kind is solved, and how their linear systems are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from xform import tree
from xform.core.aval import dtype_of
from xform.core.errors import GradientError, RuleError
from xform.core.stack import Transformation, apply
from xform.core.value import Array
from xform.implicit.operator import Root, posed
from xform.implicit.records import recorded
from xform.implicit.systems import Limits, dense, in_dtypes, iterated
from xform.layers import lifted
from xform.ops.arithmetic import add, neg, sub
from xform.ops.create import zeros_like
from xform.ops.shapes import front, lanes
from xform.transforms.batch import vmap
from xform.transforms.closure import Closure, run_under
from xform.transforms.forward import jvp
from xform.transforms.lanes import lane_by_lane
from xform.transforms.operands import label_of
from xform.transforms.recording import is_foreign
from xform.transforms.reverse import vjp
from xform.transforms.substitute import Substitute

__all__ = ["BySeries", "ByUser", "Equation", "FixedPoint", "by_matrix"]

Function = Callable[..., Any]
Leaves = Sequence[Any]


class Problem:
    """What `Root` asks of an equation `r(x, p) = 0`; all methods take and give leaves of `x`."""

    __slots__ = ()
    #: what a derivative needs of the user's functions is recorded, with copies of arrays: see `recorded`
    opaque = True
    title: str

    @property
    def label(self) -> str:
        """The name of the user's function."""
        raise NotImplementedError

    def residual(self, xs: Leaves, params: Leaves) -> Leaves:
        """Return `r(x, p)`."""
        raise NotImplementedError

    def equations(self, xs: Leaves, params: Leaves) -> tuple[Any, ...]:
        """Return `r(x, p)` for a derivative; raises `GradientError` where it is not of the kind of `x`."""
        ys = self.residual(xs, params)
        for x, y in zip(xs, ys, strict=True):
            if dtype_of(y).kind != dtype_of(x).kind:
                msg = f"{self.title} of {self.label}: the function gives {dtype_of(y)} for an x of {dtype_of(x)}"
                raise GradientError(f"{msg}; both must be real, or both complex", value=y)
        return tuple(ys)

    def recorded(self, xs: Leaves, params: Leaves) -> Any:
        """Return what stands for this problem in a derivative at a point, where it may be taken later."""
        raise NotImplementedError

    def product(self, xs: Leaves, params: Leaves, *, transposed: bool) -> Callable[[Leaves], Leaves]:
        """Return the product with the Jacobian, or with its transpose."""

        def fun(*each: Any) -> tuple[Any, ...]:
            return self.equations(each, params)

        if not transposed:
            return lambda vs: jvp(fun, xs, vs)[1]
        ys, pull = vjp(fun, *xs)
        return lambda ws: pull(in_dtypes(ws, ys))


class Single(Problem):
    """A problem with a user's function, and a method for its linear systems."""

    __slots__ = ()
    closure: Any  # a Closure; in a derivative its Record
    method: Function

    @property
    def label(self) -> str:
        """The name of the user's function."""
        return label_of(self.closure.fun)

    def within(self, layer: Transformation) -> Any:
        """Return the same with a further layer below those around the function."""
        return attrs.evolve(self, closure=self.closure.within(layer))  # type: ignore[misc]

    def recorded(self, xs: Leaves, params: Leaves) -> Any:
        """Return the same with the function's operations at a point in place of its Python code."""
        return attrs.evolve(self, closure=recorded(self.closure, xs, params))  # type: ignore[misc]

    def linear(self, xs: Leaves, params: Leaves, sides: Leaves, *, transposed: bool) -> Leaves:
        """Solve the system with the Jacobian at `xs`, or with its transpose."""
        return self.method(self, xs, params, sides, transposed=transposed)  # type: ignore[no-any-return]


# ------------------------------------------------------------------ a root


@attrs.frozen(eq=False)
class Equation(Single):
    """The equation `f(x) = 0`, and a user's solver of it."""

    closure: Closure
    solver: Function
    method: Function
    title = "Root"

    def residual(self, xs: Leaves, params: Leaves) -> Leaves:
        """Return `f(x)`."""
        return self.closure(xs, params)

    def solved(self, xs: Leaves, params: Leaves) -> Leaves:
        """Run the solver on plain values; it may use captured values too."""
        closure = self.closure
        substitute = closure.substitute(params)
        around = [layer for layer in closure.layers if isinstance(layer, Substitute)]
        start = [lifted(x) for x in xs] if closure.tracked or any(map(is_foreign, xs)) else xs
        x0 = tree.unflatten(closure.structure, start)
        found = run_under((substitute, *around), self.solver, closure.plain(params), x0)
        leaves, structure = tree.flatten(found)
        if structure != closure.structure:
            msg = f"root of {self.label}: the solver must return the structure of x0, {closure.structure}"
            raise RuleError(f"{msg}; it returned {structure}", output=found)
        return [substitute.replaced(leaf) for leaf in leaves]

    def batched(self, op: Root, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> tuple[Any, Any]:
        """Run the user's solver once for each lane."""
        return lane_by_lane(op, size, values, axes)


# ------------------------------------------------------------------ a fixed point


class Iteration(Problem):
    """A problem that is solved by iterating on its `step`, in all lanes at once."""

    __slots__ = ()
    title = "FixedPoint"
    depth: int
    limits: Limits

    def step(self, xs: Leaves, params: Leaves) -> Leaves:
        """Return `f(x)`."""
        raise NotImplementedError

    def residual(self, xs: Leaves, params: Leaves) -> Leaves:
        """Return `x - f(x)`."""
        return [sub(x, y) for x, y in zip(xs, self.step(xs, params), strict=True)]

    def solved(self, xs: Leaves, params: Leaves) -> Leaves:
        """Iterate on plain values."""

        def step(xs: Leaves) -> Leaves:
            return [y.data if type(y) is Array else y for y in self.step(xs, params)]

        return iterated(step, xs, self.limits, self.depth, f"fixed_point of {self.label}")

    def batched(self, op: Root, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> tuple[Any, Any]:
        """Iterate on all lanes at once."""
        count = op.count
        xs = [lanes(size, x, axis) for x, axis in zip(values[:count], axes[:count], strict=True)]
        placed = zip(values[count:], axes[count:], strict=True)
        params = [p if axis is None else front(p, axis) for p, axis in placed]
        at = tuple([None if axis is None else 0 for axis in axes[count:]])
        return apply(Root(Lanes(self, size, at), count), *xs, *params), 0


@attrs.frozen(eq=False)
class FixedPoint(Single, Iteration):
    """The equation `x = f(x)`."""

    closure: Closure
    limits: Limits
    method: Function
    depth = 0

    def step(self, xs: Leaves, params: Leaves) -> Leaves:
        """Return `f(x)`."""
        return self.closure(xs, params)


@attrs.frozen(eq=False)
class Lanes(Iteration):
    """An iteration in every lane of a batch: `x` has the lanes along axis 0, parameters where `axes` says so."""

    inner: Any
    size: int
    axes: tuple[int | None, ...]
    layers: tuple[Transformation, ...] = ()  # below the batch

    @property
    def depth(self) -> int:  # type: ignore[override]
        """The number of batch axes in front."""
        return int(self.inner.depth) + 1

    @property
    def limits(self) -> Limits:  # type: ignore[override]
        """When a lane stops."""
        return self.inner.limits  # type: ignore[no-any-return]

    @property
    def label(self) -> str:
        """The name of the user's function."""
        return str(self.inner.label)

    def within(self, layer: Transformation) -> Lanes:
        """Return the same with a further layer below the batch."""
        return attrs.evolve(self, layers=(*self.layers, layer))

    def step(self, xs: Leaves, params: Leaves) -> Leaves:
        """Return `f(x)` of every lane."""
        return self.mapped(self.inner.step, xs, params)

    def recorded(self, xs: Leaves, params: Leaves) -> Lanes:
        """Return the same with a record of the problem of one lane: the operations are those of every lane."""
        records: list[Any] = []

        def of_lane(*given: Leaves) -> tuple[()]:
            records.append(self.inner.recorded(*given))
            return ()

        self.mapped(of_lane, xs, params)
        return attrs.evolve(self, inner=records[0])

    def linear(self, xs: Leaves, params: Leaves, sides: Leaves, *, transposed: bool) -> Leaves:
        """Solve the system of every lane."""

        def of_lane(*given: Leaves) -> Leaves:
            return self.inner.linear(*given, transposed=transposed)  # type: ignore[no-any-return]

        return self.mapped(of_lane, xs, params, sides)

    def mapped(self, fun: Function, xs: Leaves, params: Leaves, *sides: Leaves) -> Leaves:
        """Run a function of one lane on all lanes."""
        run = vmap(fun, (0, list(self.axes), *[0] * len(sides)), axis_size=self.size)
        given = [list(xs), list(params), *map(list, sides)]
        return run_under(self.layers, run, *(tree.map(lifted, given) if self.layers else given))  # type: ignore[no-any-return]


# ------------------------------------------------------------------ methods for linear systems


def by_matrix(problem: Single, xs: Leaves, params: Leaves, sides: Leaves, *, transposed: bool) -> Leaves:
    """Solve with the Jacobian as one matrix."""
    return dense(lambda *each: problem.equations(each, params), xs, sides, transposed=transposed)


@attrs.frozen(eq=False)
class ByUser:
    """Solves by a user's function of a product and a right side: an equation again, with derivatives of its own."""

    linear_solve: Function

    def __call__(self, problem: Single, xs: Leaves, params: Leaves, sides: Leaves, *, transposed: bool) -> Leaves:
        """Solve the system with the Jacobian at `xs`, or with its transpose."""
        structure, matvec = problem.closure.structure, problem.product(xs, params, transposed=transposed)
        b = tree.unflatten(structure, list(sides))

        def linear(w: Any, b: Any) -> Any:
            return tree.map(sub, tree.unflatten(structure, list(matvec(tree.leaves(w)))), b)

        def solver(residual: Function, w0: Any) -> Any:
            side = tree.map(neg, residual(w0))  # w0 is zero
            return self.linear_solve(lambda w: tree.map(add, residual(w), side), side)

        w0 = tree.map(zeros_like, b)
        found = posed(lambda closure: Equation(closure, solver, self), linear, w0, (b,), "linear_solve")
        return tree.leaves(found)


@attrs.frozen(eq=False)
class BySeries:
    """Solves the systems of a fixed point by their Neumann series `w = b + f_x w`: a fixed point again."""

    limits: Limits

    def __call__(self, problem: Single, xs: Leaves, params: Leaves, sides: Leaves, *, transposed: bool) -> Leaves:
        """Solve the system with the Jacobian at `xs`, or with its transpose."""
        matvec = problem.product(xs, params, transposed=transposed)

        def series(w: list[Any], b: list[Any]) -> list[Any]:
            return [add(each, sub(v, a)) for each, v, a in zip(b, w, matvec(w), strict=True)]

        b = list(sides)
        found: Leaves = posed(lambda c: FixedPoint(c, self.limits, self), series, b, (b,), "linear_solve")
        return found
