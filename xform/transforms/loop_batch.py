"""The batch rule of loops: the same rounds, on all lanes at once.

1. Carries become batched where a round makes them so, to a fixed point.
2. Where lanes differ in their number of rounds, each stops on its own: a carry says which lanes live. One that has
   stopped (or, where the loop counts down, not begun) is fed the state of one that lives, and its results are thrown
   away, so that the body never sees a state that the loop would not have met, nor does its derivative.
3. Lanes share the counter: those that have fewer rounds stop earlier, or begin later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from xform.core.rules import batch_rule
from xform.ops.extrema import max as largest
from xform.ops.shapes import lanes
from xform.programs.loop import Loop
from xform.programs.loop_outputs import Total
from xform.programs.loop_trim import Trimmed, trimmed
from xform.transforms.batch import Batch, batched
from xform.transforms.loop_bodies import once
from xform.transforms.loop_lanes import Lanes, StoppingLanes

__all__ = ["loop_batch"]

Axes = Sequence[int | None]


class BatchedLoop(NamedTuple):
    """A loop over all lanes: which carries are batched, whether lanes stop each on its own, the axes of the outputs."""

    loop: Trimmed
    carries: tuple[bool, ...]
    stops: bool
    axes: tuple[int | None, ...]


@batch_rule(Loop)
def loop_batch(op: Loop, size: int, values: tuple[Any, ...], axes: Axes) -> tuple[Any, Any]:
    """Run all lanes at once."""
    starts, constants, count = op.split(values)
    likes = {output.like for output in op.outputs if isinstance(output, Total)}
    flags = [axis is not None for axis in axes[: op.carries]]
    fixed = [axis is not None or n in likes for n, axis in enumerate(axes[op.carries :][: op.constants])]
    differ = bool(count) and axes[-1] is not None
    key = ("batch", size, *flags, *fixed, differ)
    found: BatchedLoop = once(op, key, lambda: batched_loop(op, size, flags, fixed, differ=differ))
    first = in_front(size, starts, axes, found.carries)
    rest = in_front(size, constants, axes[op.carries :], fixed)
    if found.stops and op.condition is not None:
        first += [alive(op, size, first, rest, fixed), np.zeros(size, np.int64)]
    elif found.stops:
        numbers = lanes(size, count[0], axes[-1])
        rest.append(numbers)
        count = [largest(numbers) if size else 0]
    return tuple(found.loop.run([*first, *rest, *count], op.length)), found.axes


def batched_loop(
    op: Loop, size: int, carries: Sequence[bool], constants: Sequence[bool], *, differ: bool
) -> BatchedLoop:
    """Make the loop over all lanes."""
    made: Lanes = Lanes(op, size, carries, constants)
    loop = None if differ else made.loop()
    if differ or made.is_condition_batched():
        made = StoppingLanes(op, size, constants)
        loop = made.loop()
    assert loop is not None  # noqa: S101  (one of the two has made it)
    return BatchedLoop(trimmed(loop), tuple(made.carries), made.stops, tuple(made.axes))


def in_front(size: int, values: Sequence[Any], axes: Axes, flags: Sequence[bool]) -> list[Any]:
    """Return values with their lanes along axis 0, where they are batched."""
    return [lanes(size, x, axis) if each else x for x, axis, each in zip(values, axes, flags, strict=False)]


def alive(op: Loop, size: int, starts: Sequence[Any], constants: Sequence[Any], fixed: Sequence[bool]) -> Any:
    """Return which lanes run the first round."""
    if op.test == "after":
        return np.ones(size, bool)
    with Batch(size) as layer:
        ks = [batched(layer, k, 0) if each else k for k, each in zip(constants, fixed, strict=True)]
        (holds,) = op.condition.run([0, *[batched(layer, x, 0) for x in starts], *ks])  # type: ignore[union-attr]
        return layer.lowered(holds)
