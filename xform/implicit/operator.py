"""The operator that stands for the solution of an equation, and its rules."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from xform import tree
from xform.core.aval import Aval, aval_of, dtype_of
from xform.core.backend import SCALAR_TYPES, is_raw
from xform.core.errors import DtypeError, EscapedValueError, OperandTypeError, RuleError
from xform.core.operator import Operator
from xform.core.rules import batch_rule, jvp_rule, vjp_rule
from xform.core.stack import Transformation, apply, on_empty_stack
from xform.core.value import Array, Value
from xform.implicit.systems import in_dtypes
from xform.ops.arithmetic import neg
from xform.ops.broadcast import astype
from xform.transforms.closure import OPERAND, Closure, uncovered
from xform.transforms.forward import jvp
from xform.transforms.recording import is_inexact
from xform.transforms.reverse import vjp

__all__ = ["Root", "posed"]

Leaves = Sequence[Any]


@attrs.frozen(eq=False, repr=False)
class Root(Operator):
    """The solution of an equation; operands are the leaves of `x0`, then the parameters.

    `problem` tells how to solve it, and what its derivatives need. Compares by identity, since it holds functions.
    """

    problem: Any
    count: int
    multiple_outputs = True
    nests = True

    @property
    def name(self) -> str:
        """The kind of equation, and the name of the user's function."""
        return f"{self.problem.title}[{self.problem.label}]"

    def __repr__(self) -> str:
        return self.name

    def within(self, layer: Transformation) -> Root:
        """Return the operator whose function runs under a layer; one that wraps values has rules of its own."""
        return self if layer.effect == "wraps" else Root(self.problem.within(layer), self.count)

    def infer(self, *avals: Aval) -> tuple[Aval, ...]:
        """The solution is like `x0`."""
        return tuple([Aval(aval.shape, aval.dtype) for aval in avals[: self.count]])

    def evaluate(self, xp: Any, *arrays: Any) -> tuple[Any, ...]:
        """Run the solver on an empty stack."""
        return on_empty_stack(self._solved, arrays[: self.count], arrays[self.count :])  # type: ignore[no-any-return]

    def _solved(self, xs: Leaves, params: Leaves) -> tuple[Any, ...]:
        found = self.problem.solved(xs, params)
        return tuple([self._fitted(y.data if type(y) is Array else y, x) for y, x in zip(found, xs, strict=True)])

    def _fitted(self, y: Any, x: Any) -> Any:
        """Return an array of the solution in the dtype of `x0`; raises `RuleError` where it is not like it."""
        if isinstance(y, Value) or not is_raw(y):
            msg = f"{self!r}: the solver returned {type(y).__name__}, no plain array"
            raise RuleError(msg, op=self, output=y)
        have, want = aval_of(y), aval_of(x)
        if have.shape != want.shape or (have.dtype.kind == "c" and want.dtype.kind != "c"):
            msg = f"{self!r}: the solver returned {have!r}, but x0 is {want!r}; give an x0 like the solution"
            raise RuleError(msg, op=self, output=y)
        if type(y) in SCALAR_TYPES:
            return want.dtype.type(y)
        return y if have.dtype == want.dtype else astype(y, want.dtype)


@vjp_rule(Root)
def root_vjp(op: Root, needed: tuple[bool, ...], *operands: Any) -> tuple[Any, Any]:
    """Solve the transposed system, and pull the result back through the dependence on the parameters."""
    count = op.count
    outs = apply(op, *operands)
    params = operands[count:]
    wanted = [i for i, param in enumerate(params) if needed[count + i] and is_inexact(param)]
    problem = op.problem.recorded(outs, params) if wanted else op.problem

    def pullback(cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        found: list[Any] = [None] * len(operands)
        if wanted:
            ws = problem.linear(outs, params, cotangents, transposed=True)
            depends = functools.partial(of_parameters, problem, outs, params, wanted)
            ys, pull = vjp(depends, *[params[i] for i in wanted])
            for i, part in zip(wanted, pull(in_dtypes([neg(w) for w in ws], ys)), strict=True):
                found[count + i] = part
        return tuple(found)

    return outs, pullback


@jvp_rule(Root)
def root_jvp(op: Root, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """Push the tangents of the parameters forward, and solve the system."""
    problem, count = op.problem, op.count
    outs = apply(op, *primals)
    params, given = primals[count:], tangents[count:]
    wanted = [i for i, tangent in enumerate(given) if tangent is not None]
    if not wanted:
        return outs, None
    depends = functools.partial(of_parameters, problem, outs, params, wanted)
    pushed = jvp(depends, [params[i] for i in wanted], [given[i] for i in wanted])[1]
    sides = in_dtypes([neg(t) for t in pushed], outs)
    return outs, tuple(problem.linear(outs, params, sides, transposed=False))


def of_parameters(problem: Any, xs: Leaves, params: Leaves, wanted: Sequence[int], *given: Any) -> tuple[Any, ...]:
    """Return what vanishes at the solution, as a function of some of the parameters."""
    full = list(params)
    for i, param in zip(wanted, given, strict=True):
        full[i] = param
    return problem.equations(xs, full)  # type: ignore[no-any-return]


@batch_rule(Root)
def root_batch(op: Root, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> tuple[Any, Any]:
    """As the problem says: lane by lane, or on all lanes at once."""
    return op.problem.batched(op, size, values, axes)  # type: ignore[no-any-return]


def posed(make: Callable[[Closure], Any], f: Callable[..., Any], x0: Any, args: tuple[Any, ...], what: str) -> Any:
    """Return the solution of the problem that `make` gives for a function, as a value of the current stack.

    Raises `OperandTypeError` or `DtypeError` for an `x0` that is not made of floating arrays.
    """
    xs, structure = tree.flatten(x0)
    for path, x in zip(structure.paths(), xs, strict=True):
        where = f"{what}: x0{path}"
        if not isinstance(x, Value) and not is_raw(x):
            msg = f"{where} is {type(x).__name__}, no array: {x!r:.60}"
            raise OperandTypeError(msg, value=x)
        if not is_inexact(x):
            remedy = "float(x0)" if type(x) in SCALAR_TYPES else "x0.astype(float)"
            msg = f"{where} has dtype {dtype_of(x)}; a solution is made of floating point numbers: pass {remedy}"
            raise DtypeError(msg, value=x)
    leaves, arguments = tree.flatten(args)
    varies = [isinstance(leaf, Value) or (type(leaf) not in SCALAR_TYPES and is_raw(leaf)) for leaf in leaves]
    params = [leaf for leaf, each in zip(leaves, varies, strict=True) if each]
    fixed = tuple([OPERAND if each else leaf for leaf, each in zip(leaves, varies, strict=True)])
    tracked = any(isinstance(leaf, Value) for leaf in (*xs, *params))
    closure = Closure(f, what, structure, arguments, fixed, tracked).discovered(xs, params)
    while True:
        try:
            found = apply(Root(make(closure), len(xs)), *xs, *params, *closure.captured)
        except EscapedValueError as error:  # captured where the first run did not come by
            value = uncovered(error, closure.captured)
            if value is None:
                raise
            closure = attrs.evolve(closure, captured=(*closure.captured, value))
        else:
            return tree.unflatten(structure, found)
