"""Bodies of loops in a batch: of rounds that all lanes run, and of rounds that some lanes sit out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from xform.core.aval import Aval
from xform.core.errors import ShapeError
from xform.core.place import place
from xform.core.stack import apply
from xform.ops.arithmetic import add
from xform.ops.broadcast import astype
from xform.ops.comparisons import less, logical_and
from xform.ops.create import zeros_like
from xform.ops.extrema import argmax
from xform.ops.index_batch import batched as index_in_lanes
from xform.ops.indexing import GetItem, getitem
from xform.ops.reductions import any as any_of
from xform.ops.selection import where
from xform.ops.shapes import front
from xform.ops.structural import stop_gradient
from xform.programs.loop import Loop, Offset
from xform.programs.loop_outputs import All, Count, Last, Marks, Output, Part, Path, Total, strong
from xform.programs.program import Literal, Program
from xform.transforms.batch import Batch, batched
from xform.transforms.loop_bodies import recorded
from xform.transforms.recorder import Trace

__all__ = ["Lanes", "StoppingLanes"]

BOOLS = np.dtype(bool)
INTS = np.dtype(np.int64)


class Lanes:
    """The body for lanes that all run the same rounds.

    `carries` and `constants` say which of them are batched; a round may batch further carries. `axes` are those of the
    outputs.
    """

    stops = False

    def __init__(self, op: Loop, size: int, carries: Sequence[bool], constants: Sequence[bool]) -> None:
        self.op = op
        self.size = size
        self.carries = list(carries)
        self.constants = list(constants)
        self.outputs: list[Output] = []
        self.axes: list[int | None] = []
        self._values: list[Any] = []

    def loop(self) -> Loop:
        """Record the body until no further carry becomes batched; return the loop."""
        while True:
            before = list(self.carries)
            body = recorded(self._round, self.avals())
            if before == self.carries:
                break
        return attrs.evolve(
            self.op,
            body=body,
            condition=self.condition(),
            carries=len(self.start_avals()),
            constants=len(body.inputs) - 1 - len(self.start_avals()),
            outputs=tuple(self.outputs),
            test="before" if self.stops else self.op.test,
            derived={},
        )

    # -------------------------------------------------------------- inputs

    def start_avals(self) -> list[Aval]:
        """Return the avals of the carries."""
        pairs = zip(self.op.carry_avals, self.carries, strict=True)
        return [self.lane_aval(aval) if each else aval for aval, each in pairs]

    def constant_avals(self) -> list[Aval]:
        """Return the avals of the constants."""
        pairs = zip(self.op.constant_avals, self.constants, strict=True)
        return [self.lane_aval(aval) if each else aval for aval, each in pairs]

    def lane_aval(self, aval: Aval) -> Aval:
        """Return the aval of all lanes."""
        return Aval((self.size, *aval.shape), strong(aval).dtype)

    def avals(self) -> list[Aval]:
        """Return the avals of the inputs of the body."""
        return [self.op.body.in_avals[0], *self.start_avals(), *self.constant_avals()]

    def attached(self, layer: Batch, values: Sequence[Any], flags: Sequence[bool]) -> list[Any]:
        """Return the values as the batch knows them."""
        return [batched(layer, x, 0) if each else x for x, each in zip(values, flags, strict=True)]

    def condition(self) -> Program | None:
        """Return the condition; it is the same for all lanes."""
        if self.op.condition is None:
            return None
        return recorded(lambda recorder, inputs: self._holds(inputs)[0], self.avals())

    def is_condition_batched(self) -> bool:
        """Whether lanes may differ in what the condition says."""
        if self.op.condition is None:
            return False
        found: list[bool] = []

        def ask(recorder: Trace, inputs: list[Any]) -> list[Any]:
            holds, differs = self._holds(inputs)
            found.append(differs)
            return holds

        recorded(ask, self.avals())
        return found[0]

    def _holds(self, inputs: list[Any]) -> tuple[list[Any], bool]:
        count = self.op.carries
        with Batch(self.size) as layer:
            xs = self.attached(layer, inputs[1 : 1 + count], self.carries)
            ks = self.attached(layer, inputs[1 + count :], self.constants)
            (holds,) = self.op.condition.run([inputs[0], *xs, *ks])  # type: ignore[union-attr]
        return [layer.unwrap(holds)], layer.owns(holds)

    # -------------------------------------------------------------- one round

    def _round(self, recorder: Trace, inputs: list[Any]) -> list[Any]:
        count = self.op.carries
        with Batch(self.size) as layer:
            xs = self.attached(layer, inputs[1 : 1 + count], self.carries)
            ks = self.attached(layer, inputs[1 + count :], self.constants)
            outs = self.op.body.run([inputs[0], *xs, *ks])
            self.carries = [
                each or layer.owns(out) for each, out in zip(self.carries, outs[:count], strict=True)
            ]
            pairs = zip(outs[:count], self.carries, strict=True)
            nexts = [layer.lowered(out) if each else layer.unwrap(out) for out, each in pairs]
            self._place_outputs(layer, outs[count:])
        return [*nexts, *self._values]

    # -------------------------------------------------------------- outputs

    def _place_outputs(self, layer: Batch, values: Sequence[Any]) -> None:
        """Find the outputs of the new loop, the values of its body that they need, and their axes."""
        self.outputs, self.axes, self._values = [], [], []
        for output in self.op.outputs:
            made, axis = self._output(layer, output, values)
            self.outputs.append(made)
            self.axes.append(axis)

    def _output(self, layer: Batch, output: Output, values: Sequence[Any]) -> tuple[Output, int | None]:
        if isinstance(output, Last):
            return output, 0 if self.carries[output.carry] else None
        if isinstance(output, Path | Marks):
            return output, 1 if self.carries[output.carry] else None
        if isinstance(output, All):
            value = values[output.value]
            if not layer.owns(value):
                return attrs.evolve(output, value=self._value(layer.unwrap(value))), None
            return attrs.evolve(output, value=self._value(layer.lowered(value))), 1
        return self._total(layer, output, values) if isinstance(output, Total) else (output, None)

    def _value(self, value: Any) -> int:
        self._values.append(value)
        return len(self._values) - 1

    def _total(self, layer: Batch, total: Total, values: Sequence[Any]) -> tuple[Total, int | None]:
        numbers = {n for part in total.parts for n in (part.value, *part.operands)}
        if not self.stops and not any(layer.owns(values[n]) for n in numbers):
            parts = [
                Part(self._value(values[p.value]), p.index, tuple([self._value(values[n]) for n in p.operands]))
                for p in total.parts
            ]
            return attrs.evolve(total, parts=tuple(parts)), None
        parts = [self._part(layer, part, total.aval, values) for part in total.parts]
        return Total(tuple(parts), self.lane_aval(total.aval), total.like), 0

    def _part(self, layer: Batch, part: Part, aval: Aval, values: Sequence[Any]) -> Part:
        value = self.masked(values[part.value])
        if part.index is None:
            return Part(self._value(layer.lowered(value)))
        operands = [values[n] for n in part.operands]
        axes = [each.axis if layer.owns(each) else None for each in operands]
        plain = [layer.unwrap(each) for each in operands]
        found = index_in_lanes(part.index, self.size, len(aval.shape), plain, axes)
        placed = found.from_lanes(layer.unwrap(value), value.axis if layer.owns(value) else None)
        return Part(self._value(placed), found.index, tuple(map(self._value, found.operands)))

    def masked(self, value: Any) -> Any:
        """Return what a value adds to a sum."""
        return value


class StoppingLanes(Lanes):
    """The body for lanes that sit out some rounds: all carries are batched.

    A loop with a condition gets two carries more: which lanes live, and how many rounds each has run; one that counts
    gets a constant more: how many rounds each lane runs.
    """

    stops = True

    def __init__(self, op: Loop, size: int, constants: Sequence[bool]) -> None:
        super().__init__(op, size, [True] * op.carries, constants)
        self.asks = op.condition is not None
        self._live: Any = None

    def start_avals(self) -> list[Aval]:
        extra = [Aval((self.size,), BOOLS), Aval((self.size,), INTS)] if self.asks else []
        return [*super().start_avals(), *extra]

    def constant_avals(self) -> list[Aval]:
        extra = [] if self.asks else [Aval((self.size,), INTS)]
        return [*super().constant_avals(), *extra]

    def condition(self) -> Program | None:
        """Go on while a lane lives."""
        if not self.asks:
            return None
        return recorded(lambda recorder, inputs: [any_of(inputs[1 + self.op.carries])], self.avals())

    def _round(self, recorder: Trace, inputs: list[Any]) -> list[Any]:
        op, count = self.op, self.op.carries
        counter = inputs[0]
        live, rounds = inputs[1 + count : 3 + count] if self.asks else (less(counter, inputs[-1]), None)
        constants = inputs[3 + count :] if self.asks else inputs[1 + count : -1]
        with Batch(self.size) as layer:
            self._live = batched(layer, live, 0)
            feed = Feed(layer, self._live, argmax(live) if self.size else None)
            xs = self.attached(layer, inputs[1 : 1 + count], self.carries)
            ks = self.attached(layer, constants, self.constants)
            fed = [feed(x) for x in xs]
            outs = feed.run(op.body, [counter, *fed], ks)
            nexts = [layer.lowered(where(self._live, out, x)) for out, x in zip(outs[:count], xs, strict=True)]
            self._place_outputs(layer, outs[count:])
            if self.asks:
                asked = [apply(Offset(1), counter), *outs[:count]] if op.test == "before" else [counter, *fed]
                (holds,) = feed.run(op.condition, asked, ks)  # type: ignore[arg-type]
                nexts.append(layer.lowered(logical_and(self._live, holds)))
        if self.asks:
            nexts.append(add(rounds, astype(live, INTS)))
        return [*nexts, *self._values]

    def _output(self, layer: Batch, output: Output, values: Sequence[Any]) -> tuple[Output, int | None]:
        if isinstance(output, Count):
            return Last(self.op.carries + 1), 0
        if isinstance(output, All | Path) and output.shown:
            msg = (
                f"{self.op.name}: an output stacks what every round gives ('all'), but under vmap the lanes may run "
                "different numbers of rounds; take the last value or the sum, or a loop of a fixed number of rounds"
            )
            raise ShapeError(msg, op=self.op)
        if isinstance(output, All):
            return attrs.evolve(output, value=self._value(layer.lowered(self.masked(values[output.value])))), 1
        return super()._output(layer, output, values)

    def masked(self, value: Any) -> Any:
        """Return zeros for lanes that sit the round out."""
        return where(self._live, value, zeros_like(value))


class Feed:
    """What lanes that sit a round out are fed: the state of one that lives, which carries no derivative."""

    def __init__(self, layer: Batch, live: Any, pick: Any) -> None:
        self.layer = layer
        self.live = live
        self.pick = pick

    def __call__(self, x: Any) -> Any:
        """Return a batched value, with that of a live lane in the place of others; without lanes no round runs."""
        if self.pick is None or not self.layer.owns(x):
            return x
        return where(self.live, x, stop_gradient(getitem(front(x.data, x.axis), self.pick)))

    def run(self, program: Program, inputs: Sequence[Any], constants: Sequence[Any]) -> list[Any]:
        """Run a body or a condition; of a constant that it reads at an index, what was read is fed."""
        environment: list[Any] = [None] * program.size
        for variable, value in zip(program.inputs, inputs, strict=False):
            environment[variable.index] = value
        plain = dict(zip([v.index for v in program.inputs[len(inputs) :]], constants, strict=True))
        for constant in program.constants:
            environment[constant.index] = constant.value
        start = place.get()
        try:
            for equation in program.equations:
                self._step(program, equation, environment, plain, start)
        finally:
            place.set(start)
        return [
            out.value if isinstance(out, Literal) else self._fed(out.index, environment, plain)
            for out in program.outputs
        ]

    def _step(self, program: Program, equation: Any, environment: list[Any], plain: dict[int, Any], start: Any) -> None:
        inputs = [each for each in equation.inputs if not isinstance(each, Literal)]
        reads = type(equation.op) is GetItem and inputs[0].index in plain
        for each in inputs[reads:]:
            self._fed(each.index, environment, plain)
        if not reads:
            program._step(equation, environment, start)  # noqa: SLF001  (one step of its own run)
            return
        whole = inputs[0].index
        before, environment[whole] = environment[whole], plain[whole]
        program._step(equation, environment, start)  # noqa: SLF001
        environment[whole] = before
        out = equation.outputs[0].index
        environment[out] = self(environment[out])

    def _fed(self, index: int, environment: list[Any], plain: dict[int, Any]) -> Any:
        """Return a variable's value, a constant's as it is fed."""
        if environment[index] is None and index in plain:
            environment[index] = self(plain[index])
        return environment[index]

