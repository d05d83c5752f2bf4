"""Where a program differs between devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from xform import tree
from xform.core.aval import aval_of
from xform.core.bottom import evaluate
from xform.core.devices import move, target, to_host
from xform.core.errors import OperandError
from xform.core.source import describe
from xform.core.stack import concrete, on_empty_stack
from xform.ops.placement import DevicePut
from xform.programs.program import Equation, Literal, Program, check_input

__all__ = ["Divergence", "replay_compare"]


@attrs.frozen(eq=False, repr=False)
class Divergence:
    """The first operation where devices differ, see `replay_compare`; false where they do not.

    `equation` and its `position`, the two `devices`, `what` differs, and the two results on the host (None where one of
    them raised); `largest` is the largest difference that was met, relative to the largest element beside it.
    """

    devices: tuple[str, ...]
    largest: float
    what: str = ""
    position: int | None = None
    equation: Equation | None = None
    left: Any = None
    right: Any = None
    __tree_leaf__ = True

    def __bool__(self) -> bool:
        return bool(self.what)

    def __repr__(self) -> str:
        names = " and ".join(self.devices)
        if self.equation is None:
            return f"{names} do not differ (by more than {self.largest:.3g} of the largest element of a result)"
        head = f"equation {self.position} differs between {names}: {self.equation!r}"
        return f"{head}\n  at {describe(self.equation.site)}\n  {self.what}"


def replay_compare(
    program: Program,
    args: Sequence[Any],
    devices: Sequence[str] = ("cpu", "array_api_strict:device1"),
    *,
    rtol: float | None = None,
) -> Divergence:
    """Run a program on several devices side by side; return the first operation where one differs from the first.

    Every device goes on with its own values, so that a difference may have grown on the way: the report says what the
    operation makes of equal operands. Results differ where shape or dtype do, where NaN or infinities stand elsewhere,
    and where an element differs by more than `rtol` of the largest one (default: 1000 times the rounding of the dtype,
    nothing for integers and booleans). Moves in the program are left out, and so are its observers. Raises what the
    first device raises, and `DeviceUnavailableError`; what another one raises is a difference.

    >>> import numpy as np, xform as xf
    >>> program = xf.make_program(lambda x: np.sum(np.sin(x)))(np.ones(3))
    >>> bool(xf.replay_compare(program, (np.ones(3),)))
    False
    """
    flat = [concrete(leaf) for leaf in tree.leaves(tuple(args))]
    if len(flat) != len(program.inputs) or len(devices) < 2:
        msg = f"replay_compare: {len(program.inputs)} inputs and two devices are needed; got {len(flat)}, {devices}"
        raise OperandError(msg, program=program)
    for position, (variable, value) in enumerate(zip(program.inputs, flat, strict=True)):
        check_input(position, variable.aval, value)

    def run() -> Divergence:
        first, *others = [Replay(program, flat, name) for name in devices]
        return compared(program, first, others, rtol)

    return on_empty_stack(run)  # type: ignore[no-any-return]


def compared(program: Program, first: Replay, others: list[Replay], rtol: float | None) -> Divergence:
    """Run the equations on all devices."""
    largest = 0.0
    for position, (equation, dead) in enumerate(zip(program.equations, program.dead, strict=True)):
        if equation.op.observes:
            continue
        wanted = first.step(equation)
        for other in others:
            names = (first.name, other.name)
            try:
                found = other.step(equation)
            except Exception as error:  # noqa: BLE001  (whatever a device raises is what differs)
                what = f"{other.name} raises {type(error).__name__}: {error}"
                return Divergence(names, largest, what, position, equation)
            for left, right in zip(wanted, found, strict=True):
                distance, what = difference(left, right, names, rtol)
                if what:
                    what = f"{what}\n  {cause(equation, first, other, rtol)}"
                    return Divergence(names, largest, what, position, equation, to_host(left), to_host(right))
                largest = max(largest, distance)
        for each in (first, *others):
            each.forget(dead)
    return Divergence((first.name, *[other.name for other in others]), largest)


class Replay:
    """A run of a program on one device, operation by operation."""

    def __init__(self, program: Program, flat: Sequence[Any], device: str) -> None:
        self._target = target(device)
        self.name = self._target.name
        given = zip(program.inputs, flat, strict=True)
        self._values: dict[int, Any] = {v.index: self._moved(x) for v, x in given}
        self._values |= {constant.index: self._moved(concrete(constant.value)) for constant in program.constants}

    def _moved(self, x: Any) -> Any:
        return move(x, self.name) if hasattr(x, "dtype") else x

    def operands(self, equation: Equation) -> list[Any]:
        """Return the operands of an equation, as they are on this device."""
        return [v.value if isinstance(v, Literal) else self._values[v.index] for v in equation.inputs]

    def step(self, equation: Equation) -> list[Any]:
        """Run one equation on the values of this device; return its results."""
        found = self.run(equation, self.operands(equation))
        self._values |= {variable.index: value for variable, value in zip(equation.outputs, found, strict=True)}
        return found

    def forget(self, slots: Sequence[int]) -> None:
        """Drop values that nothing reads any more."""
        for slot in slots:
            self._values.pop(slot, None)

    def run(self, equation: Equation, operands: Sequence[Any]) -> list[Any]:
        """Run one equation on these operands, brought here."""
        values = tuple(map(self._moved, operands))
        if isinstance(equation.op, DevicePut):
            return [move(values[0], self.name)]
        with self._target.active():
            out = evaluate(equation.op, values)
        return [self._moved(each) for each in (out if equation.op.multiple_outputs else (out,))]


def difference(left: Any, right: Any, names: tuple[str, str], rtol: float | None) -> tuple[float, str]:
    """Return the largest difference, relative to the largest element, and what differs ("" within the tolerance)."""
    have, other = aval_of(left), aval_of(right)
    if (have.shape, have.dtype) != (other.shape, other.dtype):
        return 0.0, f"it gives {have!r} on {names[0]}, {other!r} on {names[1]}"
    a, b = to_host(left), to_host(right)
    finite = np.isfinite(a) if a.dtype.kind in "fc" else np.zeros(a.shape, bool)
    exact = ~finite & (a != b)
    if a.dtype.kind in "fc":
        exact = (exact & ~(np.isnan(a) & np.isnan(b))) | (finite & ~np.isfinite(b))
    unequal = np.flatnonzero(exact)
    if unequal.size:
        kind = "have NaN or infinity in one of them alone" if a.dtype.kind in "fc" else "differ"
        return 0.0, f"{unequal.size} of {a.size} elements {kind}, first {told(a, b, int(unequal[0]), names)}"
    relative, at = farthest(a, b, finite)
    allowed = rtol if rtol is not None else 1000 * float(np.finfo(a.dtype).eps) if finite.any() else 0.0
    if relative <= allowed:
        return relative, ""
    what = f"elements differ by up to {relative:.3g} of the largest one ({allowed:.3g} is allowed)"
    return relative, f"{what}: {told(a, b, at, names)}"


def farthest(a: Any, b: Any, finite: Any) -> tuple[float, int]:
    """Return the largest difference of finite elements, relative to the largest element, and where it is."""
    if not finite.any():
        return 0.0, 0
    x, y = np.where(finite, a, 0).ravel(), np.where(finite, b, 0).ravel()
    with np.errstate(over="ignore"):  # of numbers near the largest of the dtype
        distances = np.abs(x - y)
        scale = max(np.abs(x).max(), np.abs(y).max())
    at = int(distances.argmax())
    return (float(distances[at] / scale) if distances[at] else 0.0), at


def told(a: Any, b: Any, at: int, names: tuple[str, str]) -> str:
    """Return one element on both devices as text."""
    place = tuple(int(n) for n in np.unravel_index(at, a.shape))
    return f"at {place} {a[place]!s} on {names[0]}, {b[place]!s} on {names[1]}"


def cause(equation: Equation, first: Replay, other: Replay, rtol: float | None) -> str:
    """Return whether the operation differs itself, or its operands did before it: run once more, on equal operands."""
    operands = first.operands(equation)
    wanted, found = first.run(equation, operands), other.run(equation, operands)
    for left, right in zip(wanted, found, strict=True):
        _, what = difference(left, right, (first.name, other.name), rtol)
        if what:
            return f"the operation itself differs: on the operands that {first.name} had, too"
    largest = [
        difference(x, y, (first.name, other.name), np.inf)[0] if hasattr(x, "dtype") else 0.0
        for x, y in zip(operands, other.operands(equation), strict=True)
    ]
    return f"not on equal operands: they differed before it, by {max(largest):.3g} of their largest element"
