"""What the rules of loops share: programs recorded on an empty stack, and what depends on what in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from xform.core.aval import Aval
from xform.core.rules import Linear, NoRule, Partials, vjp_rule
from xform.core.stack import on_empty_stack
from xform.core.tables import Rules
from xform.programs.program import Equation, Literal, Program
from xform.transforms.recorder import Trace

__all__ = ["active_carries", "dependencies", "once", "recorded", "varying"]


def recorded(fun: Callable[[Trace, list[Any]], Sequence[Any]], avals: Iterable[Aval]) -> Program:
    """Record a function of a recorder and a flat list on an empty stack, abstractly."""

    def record() -> Program:
        with Trace(abstract=True) as recorder:
            outs = fun(recorder, [recorder.input(aval) for aval in avals])
        return recorder.program(list(outs))

    return on_empty_stack(record)  # type: ignore[no-any-return]


def once(op: Any, key: Any, make: Callable[[], Any]) -> Any:
    """Return what rules derive from an operator that holds Programs: made once, and again when a rule was replaced."""
    if op.derived.setdefault("revision", Rules.revision) != Rules.revision:
        op.derived.clear()
        op.derived["revision"] = Rules.revision
    found = op.derived.get(key)
    if found is None:
        found = op.derived[key] = make()
    return found


def dependencies(program: Program) -> list[frozenset[int]]:
    """Return for each output the inputs along which it may have a derivative."""
    nothing: frozenset[int] = frozenset()
    found = {
        variable.index: frozenset([n]) if variable.aval.dtype.kind in "fc" else nothing
        for n, variable in enumerate(program.inputs)
    }
    for equation in program.equations:
        along = [found.get(equation.inputs[n].index, nothing) for n in varying(equation)]  # type: ignore[union-attr]
        reached = nothing.union(*along)
        for out in equation.outputs:
            found[out.index] = reached if out.aval.dtype.kind in "fc" else nothing
    return [nothing if isinstance(out, Literal) else found.get(out.index, nothing) for out in program.outputs]


def varying(equation: Equation) -> list[int]:
    """Return the operands along which an operation has a derivative."""
    op = equation.op
    rule = vjp_rule.rules.get(type(op))
    if isinstance(rule, NoRule) or op.attribute_like:
        return []
    operands = [n for n, each in enumerate(equation.inputs) if not isinstance(each, Literal)]
    if isinstance(rule, Partials):
        return [n for n in operands if rule.functions[n] is not None]
    if isinstance(rule, Linear):
        return [n for n in operands if rule.is_linear(n)]
    return operands


def active_carries(
    depends: Sequence[frozenset[int]], count: int, carries: Iterable[int], constants: Iterable[int]
) -> set[int]:
    """Return the carries that come to vary, in some round, where these carries and constants vary at the start.

    `depends` is of a body with `count` carries, whose inputs are the counter, the carries and the constants.
    """
    fixed = {1 + count + n for n in constants}
    found = set(carries)
    while True:
        inputs = fixed | {1 + n for n in found}
        more = {n for n in range(count) if not inputs.isdisjoint(depends[n])} - found
        if not more:
            return found
        found |= more
