"""What the operators that hold Programs share: loops and switches.

1. They compare by identity. What is derived from their Programs is kept with them, in `derived`.
2. A layer that interprets operation by operation reaches those inside: the Programs are recorded anew under it, which
   stands above this module (`xform.transforms.entering` installs it), or they are run one operation after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from xform.core.errors import HostReadError
from xform.core.operator import Operator
from xform.core.stack import Transformation
from xform.programs.passes.draft import pinned
from xform.programs.program import Program

__all__ = ["NOT_STORED", "HoldsPrograms", "quiet", "set_entrance"]

Programs = tuple[Program, ...]
#: metadata of a field that a file does not hold
NOT_STORED = {"stored": False}


def made_again(kind: type[HoldsPrograms], fields: dict[str, Any]) -> HoldsPrograms:
    """Return an operator from its stored fields: a copy derives anew."""
    return kind(**fields)


class HoldsPrograms(Operator):
    """Base of operators whose parameters are Programs."""

    __slots__ = ()
    derived: dict[Any, Any]
    multiple_outputs = True
    nests = True
    #: outputs that nothing uses have no cotangent, and cost nothing
    fills_zeros = False

    @property
    def programs(self) -> Programs:
        """The Programs that it holds."""
        raise NotImplementedError

    def with_programs(self, programs: Programs, derived: dict[Any, Any]) -> HoldsPrograms:
        """Return the operator with other Programs of the same inputs and outputs, and what was derived from those."""
        raise NotImplementedError

    @property
    def impure(self) -> bool:  # type: ignore[override]
        """Whether a run does something besides computing its outputs."""
        found = self.derived.get("impure")
        if found is None:
            found = any(pinned(equation.op) for program in self.programs for equation in program.equations)
            self.derived["impure"] = found
        return bool(found)

    def __reduce__(self) -> tuple[Any, ...]:
        kind: Any = type(self)
        stored = [each.name for each in attrs.fields(kind) if each.metadata.get("stored", True)]
        return made_again, (kind, {name: getattr(self, name) for name in stored})

    def within(self, layer: Transformation) -> Operator:
        """Return the operator with its Programs recorded anew under a layer; one that wraps values has rules for it."""
        return self if layer.effect == "wraps" else _entrance[0](self, layer)


    def stepped(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Run on values, operation by operation, on top of the current stack."""
        try:
            return self.steps(values)
        except HostReadError as error:
            error.add_note(
                f"{self!r} was run operation by operation, for a layer that wraps values and has no rule for it; where "
                "a program is recorded, give the layer one: takes(op) returns True, and interpret gets the whole"
            )
            raise

    def steps(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Run operation by operation; what decides how it goes on is read."""
        raise NotImplementedError


#: `entered(op, layer)`
_entrance: list[Callable[..., Operator]] = []


def set_entrance(entered: Callable[..., Operator]) -> None:
    """Install the function by which a layer enters an operator."""
    _entrance[:] = [entered]


def quiet(program: Program) -> Program:
    """Return a program that tells nobody of its operations: it is run again where they were seen already."""
    equations = []
    for equation in program.equations:
        op = equation.op
        if pinned(op) and not equation.outputs:
            continue
        if isinstance(op, HoldsPrograms) and op.impure:
            equation = attrs.evolve(equation, op=quieted(op))  # noqa: PLW2901
        equations.append(equation)
    return program.evolve(equations)


def quieted(op: HoldsPrograms) -> HoldsPrograms:
    """Return an operator whose Programs tell nobody of their operations."""
    found = op.derived.get("quiet")
    if found is None:
        found = op.derived["quiet"] = tuple(map(quiet, op.programs)), {}
    return op.with_programs(*found)
