"""Explaining: what each layer on the stack makes of an operation, as a tree of text."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from xform.core.aval import aval_of
from xform.core.operator import Operator
from xform.core.place import current
from xform.core.source import describe
from xform.core.stack import BOTTOM, Interpret, Level, Transformation, apply

__all__ = ["Explain", "Explanation", "explain_apply"]

#: the longest text of one value or operator
WIDTH = 100


@attrs.define(eq=False)
class Step:
    """An operation as one layer saw it: what it received, what it sent on, what it returned or raised."""

    layer: str
    call: str
    steps: list[Step] = attrs.field(factory=list)
    end: str = ""

    def lines(self, indent: str = "") -> list[str]:
        """Return the step as lines of text; what was sent on stands beneath, indented."""
        head = f"{indent}{self.layer}: {self.call}"
        if not self.steps:
            return [f"{head} {self.end}"]
        inner = [line for step in self.steps for line in step.lines(f"{indent}  ")]
        return [head, *inner, f"{indent}  {self.end}"]


class Explain(Transformation):
    """The layer that writes down what every other one, above it and below it, receives and returns.

    1. Each operation that a program sends becomes a tree: its line, then each layer with what it received, what it sent
       to the layer below, and what it returned or raised. Nothing is changed, and the text alone is kept.
    2. `report()` gives the trees of all operations as text; with `show`, each is given to this function when it has
       ended, and not kept.
    3. A tape, forward or batch layer with nothing below computes on raw arrays by itself: the bottom is not shown. A
       loop or a program that is called is one operation.

    >>> import numpy as np, xform as xf
    >>> class Half(xf.Transformation):
    ...     def interpret(self, op, values):
    ...         return xf.apply(op, *values) * 0.5
    >>> with xf.Explain() as explain, Half():
    ...     y = np.sin(xf.array(0.5))
    >>> print(explain.report())
    Sin at <doctest ...>:...
      Half(): Sin(Array<weak float64[]: 0.5>)
        bottom: Sin(Array<weak float64[]: 0.5>) -> Array<float64[]: 0.47942554>
        bottom: Mul(Array<float64[]: 0.47942554>, 0.5) -> Array<float64[]: 0.23971277>
        -> Array<float64[]: 0.23971277>
    """

    effect = "observes"

    def __init__(self, show: Callable[[str], Any] | None = None) -> None:
        self.show = show
        self.operations: list[str] = []
        self.count = 0
        self._open = threading.local()  # the steps that have not ended, innermost last

    def __reduce__(self) -> tuple[Any, ...]:
        return Explain, (self.show,)  # a copy begins empty

    def place_on(self, below: Level) -> Level:
        """Return the level of this layer: operations go to a copy of the stack below, in which all levels tell."""
        return Told(Level(self, below, self._copied(below).interpret), self)

    def _copied(self, level: Level) -> Level:
        layer, below = level.layer, level.below
        if layer is None or below is None:
            return Level(None, None, self.telling(level))
        bare = below is BOTTOM and type(layer).place_on is not Transformation.place_on
        fresh = layer.place_on(below if bare else self._copied(below))
        return Level(layer, fresh.below, self.telling(fresh, level, " (on raw arrays)" if bare else ""))

    def telling(self, level: Level, origin: Level | None = None, note: str = "") -> Interpret:
        """Return the function that interprets as a level does, and writes down what it received and returned."""
        layer, interpret = level.layer, level.interpret
        seen = getattr((origin or level).interpret, "seen", None)  # an observer warns where it saw no operation

        def run(op: Operator, values: tuple[Any, ...]) -> Any:
            if seen is not None and not seen:
                seen.append(True)
            name = "bottom" if layer is None else f"{text_of(layer)}{note}"
            step = self._begin(name, op, values)
            try:
                out = interpret(op, values)
            except BaseException as error:
                self._finish(step, f"raised {type(error).__name__}: {str(error).partition(chr(10))[0]}")
                raise
            self._finish(step, f"-> {text_of(out)}")
            return out

        vars(run)["seen"] = True if seen is None else seen
        return run

    def _begin(self, layer: str, op: Operator, values: tuple[Any, ...]) -> Step:
        unfinished = vars(self._open).setdefault("steps", [])
        if not unfinished:
            here = current()
            scopes = f" in {'/'.join(here.scopes)}" if here.scopes else ""
            backward = " (backward)" if here.phase == "backward" else ""
            unfinished.append(Step(f"{text_of(op)}{backward} at {describe(here.line)}{scopes}", ""))
        step = Step(layer, f"{text_of(op)}({', '.join(map(text_of, values))})")
        unfinished[-1].steps.append(step)
        unfinished.append(step)
        return step

    def _finish(self, step: Step, end: str) -> None:
        unfinished = vars(self._open)["steps"]
        step.end = end
        unfinished.pop()
        if len(unfinished) == 1:
            root = unfinished.pop()
            self.count += 1
            text = "\n".join([root.layer, *[line for each in root.steps for line in each.lines("  ")]])
            (self.operations.append if self.show is None else self.show)(text)

    def report(self) -> str:
        """Return the trees of all operations, but those that were shown."""
        if not self.count:
            return "no operation reached the stack: track the inputs with xf.array(x)"
        return "\n".join(self.operations)


class Told(Level):
    """The level of an `Explain` layer, and of each layer that is pushed above it: what stands on it tells, too."""

    __slots__ = ("explain",)

    def __init__(self, level: Level, explain: Explain) -> None:
        super().__init__(level.layer, level.below, level.interpret)
        self.explain = explain

    def topped(self, layer: Transformation) -> Level:
        """Return a level that interprets as that of the layer does, and tells."""
        level = layer.place_on(self)
        return Told(Level(layer, self, self.explain.telling(level)), self.explain)


def text_of(x: Any) -> str:
    """Return a value, an operator or a layer as short text, whatever its own text raises.

    >>> text_of(np.zeros((100, 2))), text_of((1.0, None))
    ('float64[100,2]', '(1.0, None)')
    """
    if isinstance(x, tuple):
        return f"({', '.join(map(text_of, x))}{',' * (len(x) == 1)})"
    try:
        if isinstance(x, np.ndarray):
            return repr(aval_of(x))
        text = " ".join(repr(x).split())
        text = text.removesuffix("()") if isinstance(x, Operator) else text
    except Exception:  # noqa: BLE001  (explaining must not change what a program does)
        text = f"<{type(x).__name__}>"
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 3]}..."


# ------------------------------------------------------------------ one operation


@attrs.frozen(eq=False, repr=False)
class Explanation:
    """What the layers made of one operation: text to print, and `result`, which raises where the operation did."""

    text: str
    value: Any = None
    error: BaseException | None = None
    __tree_leaf__ = True

    @property
    def result(self) -> Any:
        """What the operation returned."""
        if self.error is not None:
            raise self.error
        return self.value

    def __repr__(self) -> str:
        return self.text


def explain_apply(op: Operator, *values: Any) -> Explanation:
    """Apply an operation as `apply` does, and return what each layer on the stack received and returned.

    It prints as a tree; `result` is what `apply` returns, and raises what it raises.

    >>> import numpy as np, xform as xf
    >>> with xf.Profile():
    ...     explanation = xf.explain_apply(xf.ops.Add(), np.ones(2), 1.0)
    >>> explanation
    Add at <doctest ...>:...
      Profile(0 operations): Add(float64[2], 1.0)
        bottom: Add(float64[2], 1.0) -> float64[2]
        -> float64[2]
    >>> explanation.result
    array([2., 2.])
    """
    explain = Explain()
    try:
        with explain:
            out = apply(op, *values)
    except Exception as error:  # noqa: BLE001  (it is part of what is explained, and raised by `result`)
        return Explanation(explain.report(), error=error)
    return Explanation(explain.report(), out)
