"""The layer that runs operations on a device."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from xform import tree
from xform.core.backend import SCALAR_TYPES, device_of, is_raw
from xform.core.devices import Target, target
from xform.core.functions import is_coroutine, refuse_generator, require_function
from xform.core.operator import Operator
from xform.core.stack import Transformation, apply, concrete, decorate
from xform.core.value import Value
from xform.layers import lifted
from xform.ops.placement import DevicePut, make_put

__all__ = ["Device"]


class Device(Transformation):
    """The layer that moves host inputs to a device, runs operations there, and leaves the results there.

    1. A move is the operator `DevicePut`, sent below: a tape below brings cotangents back to where their primals were,
       a recorder below writes it down. Above a tape as well as below one, the values are those of the host.
    2. Python numbers stay. Arrays on another device stay too: what was put there by `xf.device_put` was meant, and
       mixing it with an operand from here raises `DeviceMismatchError`.
    3. As a decorator it moves the arguments once; inside a block an array of the host is moved every time it is used,
       since it may have changed. `transfers`, `transferred` (bytes) and `repeats` (moves of an array that had been
       moved before) count them; `host_syncs` counts reads by the host (`float(x)`, `bool(x)`, `xf.to_numpy(x)`).

    Raises `DeviceUnavailableError`, with the cause and the fix, where the device is not at hand, `OperandTypeError` for
    what is no name.

    >>> import numpy as np, xform as xf, xform.numpy as xnp
    >>> device = xf.Device("array_api_strict:device1")
    >>> y = device(lambda x: xnp.sin(x) * 2.0)(np.zeros(3))
    >>> str(y.device), device.transfers
    ("array_api_strict.Device('device1')", 1)
    """

    effect = "faithful"

    def __init__(self, name: str) -> None:
        self._target: Target = target(name)
        self._put = make_put(self._target.name)
        self._lock = threading.Lock()
        self._moved: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._abstract: weakref.WeakValueDictionary[int, Value] = weakref.WeakValueDictionary()
        self.transfers = 0
        self.transferred = 0
        self.repeats = 0
        self.host_syncs = 0

    @property
    def name(self) -> str:
        """The canonical name of the device, e.g. `"cupy:0"`."""
        return self._target.name

    def __repr__(self) -> str:
        return f"Device({self.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name,)  # the counts of a copy begin at 0

    def __call__(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a function: its arguments are moved once, at the call."""
        require_function(fun, f"{self!r} as a decorator", computes=False)
        refuse_generator(fun, self)
        if is_coroutine(fun):

            @functools.wraps(fun)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                args, kwargs = tree.map(self._argument, (args, kwargs))
                return await fun(*args, **kwargs)

            return decorate(self, awaited)

        @functools.wraps(fun)
        def placed(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = tree.map(self._argument, (args, kwargs))
            return fun(*args, **kwargs)

        return decorate(self, placed)

    def interpret(self, op: Operator, values: tuple[Any, ...]) -> Any:
        stay = op.staying
        if op.crosses_devices and stay is None:
            self._note_move(op, values[0])
            return apply(op, *values)
        if op.attribute_like:
            self._note_read(values)
            return apply(op, *values)
        placed = [x if stay is not None and i in stay else self._place(x) for i, x in enumerate(values)]
        with self._target.active():
            out = apply(op, *placed)
        if op.multiple_outputs:
            return tuple(self._place_result(each) for each in out)
        return self._place_result(out)

    def synchronize(self) -> None:
        """Wait until everything that was started on the device has finished."""
        self._target.backend.synchronize(self._target.device)

    def report(self) -> str:
        """Return the counts as one line of text."""
        return (
            f"{self!r}: {self.transfers} transfers ({self.transferred / 1e6:.3f} MB), {self.repeats} of them of an "
            f"array moved before (put it there once with xf.device_put); {self.host_syncs} host syncs"
        )

    # -------------------------------------------------------------- where values are

    def _argument(self, x: Any) -> Any:
        return apply(self._put, x) if self._is_elsewhere(x, HOST_ARRAYS) else x

    def _place(self, value: Any) -> Any:
        if type(value) in SCALAR_TYPES or not self._is_elsewhere(value, HOST_ARRAYS):
            return value
        self._note_move(self._put, value)
        return self._known(lifted(apply(self._put, value)))  # what it meets next may be a value: libraries refuse it

    def _place_result(self, out: Any) -> Any:
        """Put what an operator without operands made (zeros, a range) on the device."""
        if concrete(out) is None or not self._is_elsewhere(out, np.ndarray):
            return self._known(out)
        return self._place(out)

    def _is_elsewhere(self, value: Any, kinds: Any) -> bool:
        """Whether a value is of the host, and this device is another; an abstract one is until it was put here."""
        if self._target.is_host:
            return False
        raw = concrete(value)
        if raw is None:
            return self._abstract.get(id(value)) is not value
        return isinstance(raw, kinds)

    def _known(self, value: Any) -> Any:
        """Remember an abstract value as one of this device: it has no data that could tell."""
        if isinstance(value, Value) and concrete(value) is None:
            self._abstract[id(value)] = value
        return value

    # -------------------------------------------------------------- counts

    def _note_read(self, values: tuple[Any, ...]) -> None:
        raws = [concrete(value) for value in values]
        if any(is_raw(raw) and device_of(raw) != "cpu" for raw in raws):
            with self._lock:
                self.host_syncs += 1

    def _note_move(self, op: Operator, value: Any) -> None:
        raw = concrete(value)
        if not isinstance(op, DevicePut) or not hasattr(raw, "dtype") or device_of(raw) == op.device:
            return
        with self._lock:
            self.transfers += 1
            self.transferred += getattr(raw, "nbytes", 0)
            if self._moved.get(id(raw)) is raw:
                self.repeats += 1
            elif isinstance(raw, np.ndarray):
                self._moved[id(raw)] = raw


HOST_ARRAYS = (np.ndarray, np.generic)
