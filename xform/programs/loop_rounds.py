"""A loop run round by round on raw arrays: of other libraries than NumPy, of unknown lengths, or with effects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from xform.core.backend import HOST_TYPES
from xform.core.place import Place, place
from xform.programs.compiler import compile_program
from xform.programs.loop_marks import MarkRows
from xform.programs.loop_outputs import All, Last, Marks, Output, Path, Total
from xform.programs.loop_stores import Rows, Sum
from xform.programs.program import Program

__all__ = ["run_rounds"]


class Round(NamedTuple):
    """What one round met and made."""

    counter: int
    before: Sequence[Any]  # the carries
    after: Sequence[Any]
    values: Sequence[Any]


def run_rounds(loop: Any, xp: Any, arrays: Sequence[Any], base: int = 0) -> tuple[Any, ...]:
    """Run a loop; each round calls its body. To those who watch, rounds begin at `base`."""
    carries, constants, count = loop.split(arrays)
    length = loop.length if not count else max(int(count[0]), 0)
    host = xp is np and all(type(x) in HOST_TYPES for x in arrays)
    pairs = [(output, store_of(loop, xp, output, length, constants)) for output in loop.outputs]
    for output, store in pairs:
        if isinstance(output, Path):
            store.set(length if loop.reverse else 0, carries[output.carry])
    rounds = 0
    for made in rounds_of(loop, carries, constants, length, base, host=host):
        rounds += 1
        carries = made.after
        for output, store in pairs:
            note(loop, output, store, made)
    return tuple([
        carries[output.carry] if isinstance(output, Last)
        else store.whole(constants) if isinstance(output, Total)
        else rounds if store is None
        else store.whole()
        for output, store in pairs
    ])  # fmt: skip


def rounds_of(
    loop: Any, carries: Sequence[Any], constants: Sequence[Any], length: int | None, base: int, *, host: bool
) -> Iterator[Round]:
    """Run the rounds of a loop, and yield each as it is done."""
    step = function_of(loop, "body", host=host)
    holds = None if loop.condition is None else function_of(loop, "condition", host=host)
    first, last = (None, holds) if loop.test == "after" else (holds, None)
    start, told = place.get(), loop.impure
    for counter in loop.numbers(length):
        if told:
            place.set(Place(start.scopes, start.phase, start.site, loop.origin, base + counter))
        given = (counter, *carries, *constants)
        if first is not None and not first(given)[0]:
            return
        results = step(given)
        goes_on = last is None or last(given)[0]
        after = results[: loop.carries]
        yield Round(counter, carries, after, results[loop.carries :])
        if not goes_on:
            return
        carries = after


def note(loop: Any, output: Output, store: Any, made: Round) -> None:
    """Add what a round gives to an output."""
    if isinstance(output, All):
        store.set(made.counter, made.values[output.value])
    elif isinstance(output, Total):
        store.add(made.values)
    elif isinstance(output, Path):
        store.set(made.counter if loop.reverse else made.counter + 1, made.after[output.carry])
    elif isinstance(output, Marks):
        store.note(made.before[output.carry])


def store_of(loop: Any, xp: Any, output: Output, length: int | None, constants: Sequence[Any]) -> Any:
    """Return where an output comes together, None where it needs nothing."""
    if isinstance(output, Path):
        return Rows(xp, loop.carry_avals[output.carry], None if length is None else length + 1)
    if isinstance(output, Marks):
        return MarkRows(xp, loop.carry_avals[output.carry], output.plan, length)
    if isinstance(output, All):
        return Rows(xp, loop.value_avals[output.value], length)
    return Sum(xp, output, constants) if isinstance(output, Total) else None


def function_of(loop: Any, which: str, *, host: bool) -> Callable[[Sequence[Any]], list[Any]]:
    """Return the body or the condition as a function of a flat list: compiled for arrays of the host."""
    program: Program = loop.body if which == "body" else loop.condition
    if not host:
        return program.run
    found = loop.derived.get(("compiled", which))
    if found is None:
        found = loop.derived["compiled", which] = compile_program(program, level=0)
    return found.run  # type: ignore[no-any-return]
