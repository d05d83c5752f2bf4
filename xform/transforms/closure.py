"""Functions that close over values: what they take from around them becomes operands, so that every layer sees it.

1. A function such as the `f` of `xf.root` may use values of any active layer. To run it where those layers are
   suspended, or at other values of theirs, each captured value needs something to stand in its place.
2. `Substitute` is the layer that puts it there, by identity, when an operation uses the captured value. A function may
   thus run on other values without being rewritten, with Python control flow and all.
3. What a function captures is found by one run on stand-ins: plain values (of one lane of a batch), or abstract ones
   where a value has no data. Without a layer that wraps values nothing can be captured, and no such run takes place.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from xform import tree
from xform.core.aval import aval_of, shape_of
from xform.core.errors import OperandError, XformError
from xform.core.stack import Transformation, cursor, levels, on_empty_stack
from xform.core.value import Array, Value
from xform.layers import lifted, lifted_argument
from xform.transforms.batch import BatchValue
from xform.transforms.lanes import one_lane
from xform.transforms.operands import is_bare, label_of
from xform.transforms.recorder import Trace
from xform.transforms.recording import is_foreign
from xform.transforms.substitute import Substitute, is_captured

__all__ = ["Closure", "run_under", "uncovered"]

_get = cursor.get
_set = cursor.set


def run_under(layers: Sequence[Transformation], fun: Callable[..., Any], *args: Any) -> Any:
    """Call a function with layers on top of the current stack, the first of them topmost."""
    here = level = _get()
    for layer in reversed(layers):
        level = layer.place_on(level)
    _set(level)
    try:
        return fun(*args)
    finally:
        _set(here)


@attrs.frozen(eq=False)
class Closure:
    """A user's function of a container and further arguments, with what it closes over made explicit.

    `closure(xs, params)` runs it on the leaves of the container; `params` are the arrays among its arguments, then one
    value for each captured one. It returns leaves of the same container.
    """

    fun: Callable[..., Any]
    what: str  # for messages
    structure: tree.Structure
    arguments: tree.Structure
    fixed: tuple[Any, ...]  # leaves of the arguments; `OPERAND` stands for one of `params`
    tracked: bool  # whether it was called with values, and so is given values
    captured: tuple[Value, ...] = ()
    layers: tuple[Transformation, ...] = ()  # what stands around each call, the first topmost

    def __call__(self, xs: Sequence[Any], params: Sequence[Any]) -> list[Any]:
        return self.run(self.substitute(params), xs, params)

    def substitute(self, params: Sequence[Any]) -> Substitute:
        """Return the layer that puts parameters in the place of captured values."""
        given = params[len(params) - len(self.captured) :]
        return Substitute({id(value): lifted(p) for value, p in zip(self.captured, given, strict=True)})

    def run(self, substitute: Substitute, xs: Sequence[Any], params: Sequence[Any]) -> list[Any]:
        """Run the function under its layers."""
        given = iter(params)
        leaves = [next(given) if leaf is OPERAND else leaf for leaf in self.fixed]
        if self.tracked or self.layers or any(map(is_foreign, (*xs, *leaves))):
            xs, leaves = [lifted_argument(x) for x in xs], [lifted_argument(leaf) for leaf in leaves]
        x, args = tree.unflatten(self.structure, xs), tree.unflatten(self.arguments, leaves)
        out = run_under((substitute, *self.layers), self.fun, x, *args)
        active = frozenset([id(level.layer) for level in levels()])
        return [substitute.replaced(y, active) for y in self.leaves_of(out, xs)]

    def leaves_of(self, out: Any, xs: Sequence[Any]) -> list[Any]:
        """Return the leaves of a result; raises `OperandError` where it is not like the container that was given."""
        leaves, structure = tree.flatten(out)
        if structure != self.structure:
            msg = f"{self.what}: the function must return the structure of x0, {self.structure}"
            raise OperandError(f"{msg}; it returned {structure}", output=out)
        for x, y, path in zip(xs, leaves, structure.paths(), strict=True):
            if shape_of(x) != shape_of(y):
                where = f"{self.what}{path and f', at {path}'}"
                msg = f"{where}: the function returned {aval_of(y)!r} for {aval_of(x)!r}; shapes must be alike"
                raise OperandError(msg, output=out)
        return leaves

    def plain(self, params: Sequence[Any]) -> Callable[[Any], Any]:
        """Return the function of the container alone, as a solver on plain values calls it: raw in, raw out."""

        def function(x: Any) -> Any:
            xs, structure = tree.flatten(x)
            if structure != self.structure:
                msg = f"{self.what}: the function takes the structure {self.structure}; it was called with {structure}"
                raise OperandError(msg, value=x)
            ys = self(xs, params)
            if not any(isinstance(leaf, Value) for leaf in xs):
                ys = [y.data if type(y) is Array else y for y in ys]
            return tree.unflatten(self.structure, ys)

        function.__name__ = label_of(self.fun)
        return function

    def within(self, layer: Transformation) -> Closure:
        """Return the same function with a further layer below those around it."""
        return attrs.evolve(self, layers=(*self.layers, layer))

    # -------------------------------------------------------------- what it captures

    def discovered(self, xs: Sequence[Any], params: Sequence[Any]) -> Closure:
        """Return the function with the values that it captures, found by one run on stand-ins for its operands."""
        layers = [level.layer for level in levels() if level.layer is not None]
        if is_bare(None) or not any(layer.effect == "wraps" for layer in layers):
            return self
        around = tuple([layer for layer in layers if layer.effect in ("faithful", "rewrites")])
        found: dict[int, Value] = {}
        try:
            on_empty_stack(self._look, found, stand_in, around, xs, params)
        except NoStandInError:
            with_trace = functools.partial(self._look_abstractly, found, around, xs, params)
            on_empty_stack(with_trace)
        return attrs.evolve(self, captured=tuple(found.values()))

    def _look(
        self,
        found: dict[int, Value],
        stand: Callable[[Any], Any],
        around: tuple[Transformation, ...],
        xs: Sequence[Any],
        params: Sequence[Any],
    ) -> None:
        table: dict[int, Any] = {}

        def missing(value: Value) -> Any:
            found[id(value)] = value
            table[id(value)] = lifted(stand(value))
            return table[id(value)]

        under = attrs.evolve(self, layers=(*self.layers, *around), tracked=True)
        under.run(Substitute(table, missing), [stand(x) for x in xs], [stand(p) for p in params])

    def _look_abstractly(
        self, found: dict[int, Value], around: tuple[Transformation, ...], xs: Sequence[Any], params: Sequence[Any]
    ) -> None:
        with Trace(abstract=True) as recorder:
            self._look(found, lambda value: recorder.input(aval_of(value)), around, xs, params)


#: stands for a leaf of the arguments that is an operand
OPERAND = object()


class NoStandInError(XformError):
    """A value has no plain value that looks like it."""


def stand_in(value: Any) -> Any:
    """Return a raw array with the shape and dtype of a value: its plain value, of the first lane of a batch."""
    if not isinstance(value, Value):
        return value
    if value.data is None or (type(value) is BatchValue and not value.owner.size):
        raise NoStandInError(f"{value!r} has no data", value=value)
    plain = stand_in(value.data)
    if type(value) is BatchValue:
        plain = one_lane(plain, value.axis, 0)
    if shape_of(plain) != shape_of(value):
        raise NoStandInError(f"{value!r} is not what is below it", value=value)
    return plain


def uncovered(error: BaseException, captured: Sequence[Value]) -> Any:
    """Return the captured value that an error of a run complains of, None where it is another error."""
    value = getattr(error, "value", None)
    return value if is_captured(value) and all(value is not each for each in captured) else None
