"""How a layer enters operators that hold Programs: each Program is recorded anew under it.

1. A layer that rewrites, or puts operations on a device, interprets each operation of a Program, and what it sends on
   is the new Program. An observer leaves operators in it that tell it of each operation, also on replay, in every round
   of a loop, and in what is derived from it.
2. That happens once for a Program and a layer; the layer keeps it, so that both can go.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Self

from xform.core.aval import Aval
from xform.core.errors import HostReadError, LayerError
from xform.core.stack import Transformation
from xform.programs.holding import HoldsPrograms, Programs, set_entrance
from xform.programs.program import Program
from xform.transforms.closure import run_under
from xform.transforms.loop_bodies import recorded
from xform.transforms.substitute import Substitute

__all__ = ["entered", "recorded_under"]

#: operators that a layer remembers
MOST = 256


class Entered:
    """What a layer made of the operators that it has entered; a copy of the layer begins without."""

    def __init__(self) -> None:
        self._found: OrderedDict[int, tuple[dict[Any, Any], Programs, dict[Any, Any]]] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Entered, ()

    def __deepcopy__(self, seen: dict[int, Any]) -> Self:
        return type(self)()

    def find(self, derived: dict[Any, Any]) -> tuple[Programs, dict[Any, Any]] | None:
        """Return what was made of an operator, which is known by what was derived from it."""
        found = self._found.get(id(derived))
        return None if found is None else found[1:]

    def keep(self, derived: dict[Any, Any], programs: Programs) -> tuple[Programs, dict[Any, Any]]:
        """Remember what was made of an operator; what was there first stays."""
        with self._lock:
            while len(self._found) >= MOST:
                self._found.popitem(last=False)
            found = self._found.setdefault(id(derived), (derived, programs, {}))
        return found[1:]


def entered(op: HoldsPrograms, layer: Transformation) -> HoldsPrograms:
    """Return an operator whose Programs were recorded anew under a layer; none of them captures anything."""
    if isinstance(layer, Substitute):
        return op
    memory: Entered = vars(layer).setdefault("_entered", Entered())
    found = memory.find(op.derived)
    if found is None:
        programs = tuple([recorded_under(layer, program) for program in op.programs])
        for before, after in zip(op.programs, programs, strict=True):
            require_alike(op, layer, before.out_avals, after.out_avals)
        found = memory.keep(op.derived, programs)
    return op.with_programs(*found)


def recorded_under(layer: Transformation, program: Program) -> Program:
    """Return a Program of what a layer makes of the operations of another one."""
    try:
        return recorded(lambda recorder, inputs: run_under((layer,), program.run, inputs), program.in_avals)
    except HostReadError as error:
        error.add_note(
            f"{layer!r} was given the operations inside a loop or a branch, where values have no data; an xf.Observer "
            "sees each operation with its data as it runs"
        )
        raise


def require_alike(op: HoldsPrograms, layer: Transformation, before: tuple[Aval, ...], after: tuple[Aval, ...]) -> None:
    """Raise `LayerError` where a layer changes the shape or the dtype of what a loop or a branch gives."""
    for have, found in zip(before, after, strict=True):
        same = have.dtype == found.dtype and len(have.shape) == len(found.shape)
        if not same or any(n != m and None not in (n, m) for n, m in zip(have.shape, found.shape, strict=True)):
            msg = (
                f"{layer!r} makes {found!r} of a value {have!r} that {op!r} hands on; inside a loop or a branch a "
                "layer must keep shapes and dtypes: cast the result back, or decorate what is called inside"
            )
            raise LayerError(msg, layer=layer, op=op)


set_entrance(entered)
