"""Where the carries and outputs of a loop lie in generated source, and the lines that this takes.

`a1`, `a2`, ... are the carries and constants of a round, `a0` its counter; `n_` is the number of rounds, `room_` that
of rows for which there is room. Names end in `_`, so that they are none of the objects that the source refers to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from xform.core.aval import Aval, is_static
from xform.ops.index_layout import is_basic, plain
from xform.ops.positions import add_into
from xform.programs.loop_outputs import Part, Total
from xform.programs.program import Literal, Variable, copied

__all__ = ["Another", "Item", "Marks", "Path", "Rows", "Scribe", "Sum", "Turns", "empty", "together"]

Operand = Variable | Literal


class Scribe(Protocol):
    """What items write with."""

    rows: str  #: how many rounds there are, or room for
    first: str  #: the row of a history where it begins
    after: str  #: the row of a history that a round gives

    def bind(self, value: Any, hint: str) -> str:
        """Return the name of an object in the source."""

    def value(self, number: int) -> Operand:
        """Return a value of the body."""

    def text(self, out: Operand) -> str:
        """Return the text of a result of the round."""

    def is_target(self, out: Operand, name: str) -> bool:
        """Whether a result was computed in the array of this name."""

    def is_written_again(self, out: Operand) -> bool:
        """Whether the memory of a result may be written to in a later round."""


def empty(scribe: Scribe, aval: Aval, rows: str = "") -> str:
    """Return the text of a new array."""
    shape = ", ".join(filter(None, [rows, *map(str, aval.shape)]))
    return f"{scribe.bind(np.empty, 'empty')}(({shape},), {scribe.bind(aval.dtype, aval.dtype.name)})"


class Item:
    """A carry or an output: lines before the loop, at the start and at the end of a round, and behind the loop."""

    #: an array of rows that grows, and how many rows it has more than there are rounds
    stack = ""
    more = 0
    #: the name of a row of it, in a round
    view = ""

    def __init__(self, scribe: Scribe) -> None:
        self.scribe = scribe

    def begin(self) -> list[str]:
        """Return the lines before the loop."""
        return []

    def open(self) -> list[str]:
        """Return the lines at the start of a round."""
        return []

    def close(self) -> list[str]:
        """Return the lines at the end of a round."""
        return []

    def assigned(self) -> list[tuple[str, str]]:
        """Return what is assigned when the round is over, all at once: names and texts."""
        return []

    def end(self) -> list[str]:
        """Return the lines behind the loop."""
        return []


# ------------------------------------------------------------------ carries


class Another(Item):
    """A carry that is made anew in each round."""

    def __init__(self, scribe: Scribe, number: int, aval: Aval, out: Operand) -> None:
        super().__init__(scribe)
        self.number = number
        self.name = f"a{1 + number}"
        self.aval = aval
        self.out = out

    def assigned(self) -> list[tuple[str, str]]:
        """Name what is new."""
        text = self.scribe.text(self.out)
        if self.aval.shape and self.scribe.is_written_again(self.out):
            text = f"{self.scribe.bind(copied, 'copied')}({text})"
        return [] if text == self.name else [(self.name, text)]


class Turns(Another):
    """A carry that is computed in one of two arrays in turns."""

    def begin(self) -> list[str]:
        """Make the array."""
        array = empty(self.scribe, self.aval)
        return [f"n{self.number}_, m{self.number}_ = {array}, {array}"]

    def assigned(self) -> list[tuple[str, str]]:
        """Name what is new."""
        new, other = f"n{self.number}_", f"m{self.number}_"
        return [(self.name, new), (new, other), (other, new)]


class Path(Another):
    """A carry with its history: it lies in a row of it, unless it has no axes."""

    more = 1

    def __init__(self, scribe: Scribe, number: int, aval: Aval, out: Operand) -> None:
        super().__init__(scribe, number, aval, out)
        self.stack = f"P{number}_"
        self.view = f"p{number}_" if aval.shape else ""

    def begin(self) -> list[str]:
        """Make the array."""
        scribe = self.scribe
        made = f"{self.stack} = {empty(scribe, self.aval, f'{scribe.rows} + 1')}"
        return [made, f"{self.stack}[{scribe.first}] = {self.name}"]

    def open(self) -> list[str]:
        """Take the row."""
        return [f"{self.view} = {self.stack}[{self.scribe.after}]"] if self.view else []

    def close(self) -> list[str]:
        """Put the value there."""
        if self.view and self.scribe.is_target(self.out, self.view):
            return []
        place = f"{self.view}[...]" if self.view else f"{self.stack}[{self.scribe.after}]"
        return [f"{place} = {self.scribe.text(self.out)}"]

    def assigned(self) -> list[tuple[str, str]]:
        """Name what is new."""
        return [(self.name, self.view)] if self.view else super().assigned()


# ------------------------------------------------------------------ outputs


class Rows(Item):
    """A value of each round, stacked."""

    def __init__(self, scribe: Scribe, number: int, aval: Aval, out: Operand) -> None:
        super().__init__(scribe)
        self.stack = f"Q{number}_"
        self.view = f"q{number}_"
        self.aval = aval
        self.out = out

    @property
    def lies_there(self) -> bool:
        """Whether the value is computed in its row."""
        return self.scribe.is_target(self.out, self.view)

    def begin(self) -> list[str]:
        """Make the array."""
        return [f"{self.stack} = {empty(self.scribe, self.aval, self.scribe.rows)}"]

    def open(self) -> list[str]:
        """Take the row."""
        return [f"{self.view} = {self.stack}[a0]"] if self.lies_there else []

    def close(self) -> list[str]:
        """Put the value there."""
        return [] if self.lies_there else [f"{self.stack}[a0] = {self.scribe.text(self.out)}"]


class Marks(Item):
    """A carry at the start of some rounds."""

    def __init__(self, scribe: Scribe, number: int, carry: int, make: Callable[[int | None], Any], rounds: str) -> None:
        super().__init__(scribe)
        self.name = f"q{number}_"
        self.carry = f"a{1 + carry}"
        self.make = make
        self.rounds = rounds

    def begin(self) -> list[str]:
        """Make what takes them."""
        return [f"{self.name} = {self.scribe.bind(self.make, 'marks')}({self.rounds})"]

    def close(self) -> list[str]:
        """Give it the carry, which is not assigned yet."""
        return [f"{self.name}.note({self.carry})"]


class Sum(Item):
    """A sum over all rounds; where each round adds to a row of its own alone, its part is computed there."""

    def __init__(self, scribe: Scribe, number: int, total: Total, parts: Sequence[Part], like: str) -> None:
        super().__init__(scribe)
        self.name = f"Q{number}_"
        self.row = f"q{number}_"
        self.total = total
        self.parts = parts  # those that are added in each round
        self.like = like
        self.is_number = not total.aval.shape and all(part.index is None for part in parts)

    @property
    def lies_there(self) -> bool:
        """Whether the only part is computed in its row."""
        return bool(self.parts) and self.scribe.is_target(self.scribe.value(self.parts[0].value), self.row)

    def begin(self) -> list[str]:
        """Make the array."""
        bind, aval = self.scribe.bind, self.total.aval
        if not is_static(aval.shape):
            return [f"{self.name} = {bind(np.zeros_like, 'zeros_like')}({self.like})"]
        if self.is_number:
            return [f"{self.name} = {bind(aval.dtype.type, aval.dtype.name)}(0)"]
        return [f"{self.name} = {bind(np.zeros, 'zeros')}({aval.shape}, {bind(aval.dtype, aval.dtype.name)})"]

    def open(self) -> list[str]:
        """Take the row."""
        return [f"{self.row} = {self.name}[a0]"] if self.lies_there else []

    def close(self) -> list[str]:
        """Put the value there."""
        return [] if self.lies_there else [self.added(part) for part in self.parts]

    def end(self) -> list[str]:
        """Make a number of an array without axes, which was one to be indexed."""
        return [] if self.is_number or self.total.aval.shape != () else [f"{self.name} = {self.name}[()]"]

    def added(self, part: Part) -> str:
        """Return the line that adds a part."""
        bind, text, name = self.scribe.bind, self.scribe.text(self.scribe.value(part.value)), self.name
        if self.is_number:
            return f"{name} = {name} + {text}"
        if part.index is None:
            return f"{bind(np.add, 'add')}({name}, {text}, {name})"
        operands = [self.scribe.text(self.scribe.value(number)) for number in part.operands]
        if not operands and is_basic(part.index):
            return f"{name}[{bind(plain(part.index, ()), 'index')}] += {text}"
        given = f"({', '.join(operands)},)" if operands else "()"
        return f"{bind(add_into, 'add_into')}(np, {name}, {bind(part.index, 'index')}, {given}, {text})"


def together(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return the line of an assignment of all names at once."""
    return [f"{', '.join(name for name, _ in pairs)} = {', '.join(text for _, text in pairs)}"] if pairs else []
