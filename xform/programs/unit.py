"""One generated function: its text, compiled, shown in tracebacks, and able to tell where an error happened."""

from __future__ import annotations

import itertools
import linecache
import re
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

from xform.core.bottom import explain
from xform.core.source import describe
from xform.programs.program import Equation, Literal
from xform.programs.source import GIVE_BACK, Source

__all__ = ["Unit", "run_units"]

_numbers = itertools.count(1)


class Unit:
    """A function `name(arguments)` with the lines of a source, which returns the texts of `results`.

    With `kept` its arrays come from a pool that all calls share; otherwise they are its last arguments.
    """

    def __init__(self, source: Source, name: str, arguments: Sequence[str], result: str, *, kept: bool) -> None:
        pairs = list(zip(source.lines, source.sites, strict=True))
        names = sorted(set(re.findall(r"\bb\d+\b", "\n".join([*source.lines, result]))), key=lambda each: int(each[1:]))
        self.arrays = [int(each[1:]) for each in names]
        self.workspace = source.workspace
        self._namespace = source.namespace.objects
        head, tail = [], [f"return {result}"]
        if kept and names:
            head = ["try:", "    w = take()", "except IndexError:", "    w = another()", f"{', '.join(names)}, = w"]
            # given back when the result, which may be copied out of them, is there: another thread takes them at once
            tail = [f"out = {result}", "give(w)", "return out"]
            pool = [source.workspace.first(self.arrays)]
            self._namespace |= {"take": pool.pop, "give": pool.append, "another": self.another}
        elif not kept:
            arguments = [*arguments, *names]
        if not (kept and names):
            pairs = [(line, site) for line, site in pairs if line != GIVE_BACK]
        body, sites = [line for line, _ in pairs], [site for _, site in pairs]
        lines = [f"def {name}({', '.join(arguments)}):", *[f"    {line}" for line in (*head, *body, *tail)]]
        self.text = "\n".join(lines) + "\n"
        self._sites = [*[None] * (1 + len(head)), *sites, *[None] * len(tail)]
        self._filename = f"<xform {name} {next(_numbers)}>"
        self.function = self._compiled(name)

    def _compiled(self, name: str) -> Any:
        exec(compile(self.text, self._filename, "exec"), self._namespace)  # noqa: S102  (our own text)
        lines = self.text.splitlines(keepends=True)
        linecache.cache[self._filename] = (len(self.text), None, lines, self._filename)
        weakref.finalize(self, linecache.cache.pop, self._filename, None).atexit = False
        return self._namespace.pop(name)

    @property
    def another(self) -> Any:
        """Return a function that makes another set of the arrays that the function works in."""
        return partial(self.workspace.another, self.arrays)

    def explained(self, error: Exception) -> tuple[Equation, Exception | None] | None:
        """Return the operation of this function that raised an error, and what it raises outside of a program.

        None where the error did not come from here; the second is None where the error must pass as it is.
        """
        at = error.__traceback__
        while at is not None and at.tb_frame.f_code.co_filename != self._filename:
            at = at.tb_next
        site = None if at is None else self._sites[at.tb_lineno - 1]
        if site is None or at is None:
            return None
        equation, names = site
        if not isinstance(error, ValueError | TypeError | IndexError):
            return equation, None
        known = self._namespace | at.tb_frame.f_locals
        return equation, explain(equation.op, arrays_of(equation, names, known), error, equation.site)


def run_units(function: Any, units: Sequence[Unit], arguments: Sequence[Any]) -> Any:
    """Call a function that is made of units.

    An error is told where it happened, and is what the same operation raises outside of a program.
    """
    try:
        return function(*arguments)
    except Exception as error:
        explained = noted(error, units)
        if explained is None:
            raise
        raise explained from error


def noted(error: Exception, units: Sequence[Unit]) -> Exception | None:
    """Note at an error of one of the units where it happened; return what stands for it, None if it passes as it is."""
    for unit in units:
        found = unit.explained(error)
        if found is not None:
            equation, explained = found
            error.add_note(f"in {equation.op!r} at {describe(equation.site)}")
            return explained
    return None


def arrays_of(equation: Equation, names: Sequence[str], known: dict[str, Any]) -> list[Any]:
    """Return the operands of an equation, by the names of those that are variables."""
    values = iter([known.get(name) for name in names])
    return [operand.value if isinstance(operand, Literal) else next(values) for operand in equation.inputs]
