"""A custom function under a layer that stood above it, and in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from xform.core.aval import Aval
from xform.core.errors import HostReadError
from xform.core.stack import Transformation
from xform.layers import lifted_argument
from xform.ops.create import zeros_like
from xform.ops.reductions import sum
from xform.ops.shapes import moveaxis
from xform.ops.stacking import stack
from xform.transforms.batch import Batch, BatchValue
from xform.transforms.closure import run_under
from xform.transforms.custom_calls import Arrays, Definition, Recipe, Saved
from xform.transforms.lanes import lane_aval, one_lane

__all__ = ["Batched", "Lanes", "Under"]


@attrs.frozen(eq=False)
class Under:
    """A recipe whose functions run under a layer that the operation has passed."""

    inner: Recipe
    layer: Transformation
    placed = True

    @property
    def definition(self) -> Definition:
        """What the user wrote."""
        return self.inner.definition

    def call(self, xs: Arrays) -> list[Any]:
        """Return the outputs."""
        return run_under((self.layer,), self.inner.call, lifted_all(xs))  # type: ignore[no-any-return]

    def forward(self, xs: Arrays) -> tuple[list[Any], Saved, bool]:
        """Return outputs, residuals, and whether the outputs are ruled."""
        return run_under((self.layer,), self.inner.forward, lifted_all(xs))  # type: ignore[no-any-return]

    def backward(self, saved: Saved, cotangents: Arrays, likes: Sequence[Aval]) -> list[Any]:
        """Return a cotangent, or None, per input."""
        given = lifted_all(cotangents)
        return run_under((self.layer,), self.inner.backward, saved, given, likes)  # type: ignore[no-any-return]

    def push(self, xs: Arrays, tangents: Arrays) -> tuple[list[Any], list[Any], bool]:
        """Return outputs, a tangent or None for each, and whether the outputs are ruled."""
        given = lifted_all(xs), lifted_all(tangents)
        return run_under((self.layer,), self.inner.push, *given)  # type: ignore[no-any-return]


def lifted_all(xs: Arrays) -> list[Any]:
    """Lift raw arrays and numbers, so that the layer sees what is done with them."""
    return [lifted_argument(x) for x in xs]


# ------------------------------------------------------------------ in a batch


class Lanes(Batch):
    """A batch that is entered once for each function of a custom rule: residuals may hold values of it."""

    def on_register(self) -> None:
        """It begins again."""

    def on_unregister(self) -> None:
        """It does not end."""


@attrs.frozen(eq=False)
class Batched:
    """A recipe that runs on all lanes at once; inputs hold them along `axes`, outputs along axis 0."""

    inner: Recipe
    lanes: Lanes
    axes: tuple[int | None, ...]

    @property
    def definition(self) -> Definition:
        """What the user wrote."""
        return self.inner.definition

    @property
    def placed(self) -> bool:
        """Whether the functions run under a layer of their own."""
        return self.inner.placed

    def call(self, xs: Arrays) -> list[Any]:
        """Return the outputs."""
        with self.lanes:
            outs = self.inner.call(self._taken(xs, self.axes))
        return self._lowered(outs)

    def forward(self, xs: Arrays) -> tuple[list[Any], Saved, bool]:
        """Return outputs, residuals, and whether the outputs are ruled."""
        with self.lanes:
            outs, saved, ruled = self.inner.forward(self._taken(xs, self.axes))
        axes = tuple([each.axis if self.lanes.owns(each) else None for each in saved.arrays])
        arrays = [self.lanes.unwrap(each) for each in saved.arrays]
        return self._lowered(outs), Saved(arrays, (saved.layout, axes), saved.opaque), ruled

    def backward(self, saved: Saved, cotangents: Arrays, likes: Sequence[Aval]) -> list[Any]:
        """Return a cotangent, or None, per input; where a rule reads what differs in lanes, they run one by one."""
        layout, axes = saved.layout
        inputs = [lane_aval(like, axis) for like, axis in zip(likes, self.axes, strict=True)]
        try:
            with self.lanes:
                kept = Saved(self._taken(saved.arrays, axes), layout, saved.opaque)
                given = self._taken(cotangents, [None if t is None else 0 for t in cotangents])
                found = self.inner.backward(kept, given, inputs)
            parts = [None if part is None else self.lanes.lowered(part) for part in found]
        except HostReadError as error:
            if saved.opaque or not self.is_read_by(error):
                raise
            rows = []
            for k in range(self.lanes.size):
                kept = Saved(lane_of(saved.arrays, axes, k), layout, saved.opaque)
                given = lane_of(cotangents, [None if t is None else 0 for t in cotangents], k)
                rows.append(self.inner.backward(kept, given, inputs))
            parts = [stacked_parts(column) for column in zip(*rows, strict=True)]
        return [self._placed(part, axis) for part, axis in zip(parts, self.axes, strict=True)]

    def push(self, xs: Arrays, tangents: Arrays) -> tuple[list[Any], list[Any], bool]:
        """Return outputs, a tangent or None for each, and whether the outputs are ruled."""
        axes = [None if t is None else axis for t, axis in zip(tangents, self.axes, strict=True)]
        with self.lanes:
            outs, found, ruled = self.inner.push(self._taken(xs, self.axes), self._taken(tangents, axes))
        return self._lowered(outs), [None if t is None else self.lanes.lowered(t) for t in found], ruled

    def is_read_by(self, error: HostReadError) -> bool:
        """Whether an error says that a value was read which differs between these lanes."""
        value = getattr(error, "value", None)
        return type(value) is BatchValue and value.owner is self.lanes

    def _taken(self, xs: Arrays, axes: Sequence[int | None]) -> list[Any]:
        return [x if axis is None else self.lanes.attach(x, axis) for x, axis in zip(xs, axes, strict=True)]

    def _lowered(self, outs: Arrays) -> list[Any]:
        return [self.lanes.lowered(out) for out in outs]

    @staticmethod
    def _placed(part: Any, axis: int | None) -> Any:
        """Return the cotangent of an input: along its axis, or the sum over the lanes that share it."""
        if part is None:
            return None
        return sum(part, axis=0) if axis is None else moveaxis(part, 0, axis) if axis else part


def lane_of(xs: Arrays, axes: Sequence[int | None], k: int) -> list[Any]:
    """Return one lane of each value."""
    return [x if axis is None else one_lane(x, axis, k) for x, axis in zip(xs, axes, strict=True)]


def stacked_parts(column: Sequence[Any]) -> Any:
    """Stack the cotangents that the lanes gave to one input; None where none of them gave any."""
    made = next((part for part in column if part is not None), None)
    return None if made is None else stack([zeros_like(made) if part is None else part for part in column], 0)
