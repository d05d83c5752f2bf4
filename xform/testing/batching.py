"""A batch rule against a loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from xform.core.aval import aval_of
from xform.core.backend import SCALAR_TYPES
from xform.core.operator import Operator
from xform.core.rules import batch_rule, jvp_rule, vjp_rule
from xform.testing.gradients import Problem, check_problem, curved, is_floating
from xform.testing.numeric import numbers, require_equal

__all__ = ["check_batch"]

SIZE = 3

Axes = tuple[int | None, ...]


def check_batch(op: Operator, arrays: tuple[Any, ...], order: int = 1) -> None:
    """Hold the batch rule against a loop: operands batched alone and together, along first and last axis; one lane too.

    The rule is checked as a function of its own, up to derivatives of an order.
    """
    for places, last in patterns(arrays):
        axes = tuple((aval_of(x).ndim if last else 0) if i in places else None for i, x in enumerate(arrays))
        lanes = [[lane(x, k) if i in places else x for i, x in enumerate(arrays)] for k in range(SIZE)]
        stacked = tuple(
            x if axis is None else np.stack([each[i] for each in lanes], axis)
            for i, (x, axis) in enumerate(zip(arrays, axes, strict=True))
        )
        check_against_loop(op, stacked, axes, lanes)
        alone = tuple(x if axis is None else np.take(x, [0], axis) for x, axis in zip(stacked, axes, strict=True))
        check_against_loop(op, alone, axes, lanes[:1])
    check_derivatives(op, arrays, order)


def patterns(arrays: tuple[Any, ...]) -> Iterator[tuple[tuple[int, ...], bool]]:
    """Give which operands are batched, and whether along the last axis; Python numbers are never batched."""
    able = tuple(i for i, x in enumerate(arrays) if type(x) not in SCALAR_TYPES)
    for places in [(i,) for i in able] + ([able] if len(able) > 1 else []):
        yield places, False
        yield places, True


def lane(x: Any, k: int) -> Any:
    """Return the operand of one lane: near the operand, in its domain; of other kinds, the same elements elsewhere."""
    x = np.asarray(x)
    if x.dtype.kind in "fc":
        return (x * (1 + 0.01 * k)).astype(x.dtype)
    return np.roll(x.ravel(), k).reshape(x.shape)


def check_against_loop(op: Operator, values: tuple[Any, ...], axes: Axes, lanes: list[list[Any]]) -> None:
    """Compare every result of the rule with the stacked results of the lanes."""
    looped = [op.evaluate(np, *operands) for operands in lanes]
    found = batched(op, len(lanes), values, axes)
    for position, (out, axis) in enumerate(found):
        wanted = np.stack([each[position] if op.multiple_outputs else each for each in looped])
        what = f"{op!r}: batch rule, operands batched at {axes}: result {position}"
        if axis is None:
            got = np.broadcast_to(numbers(out), wanted.shape)
        else:
            if not -aval_of(out).ndim <= axis < aval_of(out).ndim:
                raise AssertionError(f"{what} has no axis {axis}: it is {aval_of(out)!r}")
            got = np.moveaxis(numbers(out), axis, 0)
        require_equal(f"{what}, the batch axis first,", got, wanted, "a loop gives")


def batched(op: Operator, size: int, values: tuple[Any, ...], axes: Axes) -> list[tuple[Any, Any]]:
    """Run the rule; return each result with its batch axis."""
    made = batch_rule.get(op)(op, size, values, axes)
    if not isinstance(made, tuple) or len(made) != 2:
        raise AssertionError(f"{op!r}: the batch rule must return (out, out_axis), got {made!r:.80}")
    out, axis = made
    if not op.multiple_outputs:
        return [(out, axis)]
    return list(zip(out, axis if isinstance(axis, tuple) else [axis] * len(out), strict=True))


def check_derivatives(op: Operator, arrays: tuple[Any, ...], order: int) -> None:
    """Check the derivatives of the rule itself, in double precision, all operands batched."""
    modes = tuple(mode for mode, table in (("fwd", jvp_rule), ("rev", vjp_rule)) if table.state(type(op)) == "rule")
    places = [i for i, x in enumerate(arrays) if is_floating(x) and type(x) not in SCALAR_TYPES]
    if not modes or not places or any(aval_of(arrays[i]).dtype.char not in "dD" for i in places):
        return
    if op.only_composed:
        return
    axes = tuple(0 if i in places else None for i in range(len(arrays)))
    stacked = tuple(np.stack([lane(arrays[i], k) for k in range(SIZE)]) for i in places)

    def flat(*xs: Any) -> tuple[Any, ...]:
        full = list(arrays)
        for i, x in zip(places, xs, strict=True):
            full[i] = x
        return tuple(out for out, _ in batched(op, SIZE, tuple(full), axes) if is_floating(out))

    count = len(flat(*stacked))
    if count:
        labels = tuple(f"operand {i}" for i in places)
        outputs = tuple(f"result {i}" for i in range(count))
        problem = Problem(f"{op!r}: batch rule", flat, stacked, labels, outputs)
        check_problem(problem, order, modes)
        if order > 1:
            check_problem(curved(problem), order, modes)
