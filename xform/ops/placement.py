"""Operators that move values between devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from xform import tree
from xform.core.aval import Aval
from xform.core.backend import device_of
from xform.core.devices import move, target
from xform.core.operator import Operator, interned
from xform.core.rules import batch_rule, jvp_rule, vjp_rule
from xform.core.stack import apply, concrete
from xform.core.value import Value
from xform.ops.base import Parameterless
from xform.ops.structural import HostRead

__all__ = ["DevicePut", "PutLike", "device_put", "to_numpy"]


@attrs.frozen
class DevicePut(Operator):
    """The operand on a device; the cotangent goes back to where the operand was."""

    device: str
    crosses_devices = True

    def infer(self, x: Aval) -> Aval:
        """The operand's; a number becomes an array."""
        return Aval(x.shape, x.dtype)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Move the array."""
        return move(x, self.device)


class PutLike(Parameterless):
    """The first operand on the device of the second, where that is known only when the program runs."""

    crosses_devices = True

    def infer(self, x: Aval, like: Aval) -> Aval:
        """The first operand's; a number becomes an array."""
        return Aval(x.shape, x.dtype)

    def evaluate(self, xp: Any, x: Any, like: Any) -> Any:
        """Move the array."""
        return move(x, device_of(like))


make_put = interned(DevicePut)
PUT_LIKE = PutLike()


def homeward(x: Any) -> Callable[[Any], Any]:
    """Return what brings a cotangent to the device where `x` is."""
    raw = concrete(x)
    if raw is None:
        return lambda t: apply(PUT_LIKE, t, x)
    home = make_put(device_of(raw))
    return lambda t: apply(home, t)


@vjp_rule(DevicePut)
def device_put_vjp(op: DevicePut, needed: tuple[bool, ...], x: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Linear; the transpose moves the other way."""
    back = homeward(x)
    return apply(op, x), lambda t: (back(t),)


@vjp_rule(PutLike)
def put_like_vjp(op: PutLike, needed: tuple[bool, ...], x: Any, like: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Linear in the first operand; the second gives its device alone."""
    back = homeward(x)
    return apply(op, x, like), lambda t: (back(t) if needed[0] else None, None)


@jvp_rule(DevicePut, PutLike)
def device_put_jvp(op: Operator, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """The tangent goes the same way."""
    out = apply(op, *primals)
    return out, None if tangents[0] is None else apply(op, tangents[0], *primals[1:])


@batch_rule(DevicePut, PutLike)
def device_put_batch(op: Operator, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> tuple[Any, Any]:
    """The batch axis stays where it is."""
    return apply(op, *values), axes[0]


def device_put(x: Any, device: Any) -> Any:
    """Return an array, or a container of arrays, on a device, e.g. `"cupy:0"`; differentiable.

    `device` is a name or a `Device`. Raises `DeviceUnavailableError`, with the cause and the fix, where it is not at
    hand.

    >>> import numpy as np, xform as xf
    >>> xf.device_put({"w": np.ones(2)}, "array_api_strict:device1")["w"].device
    array_api_strict.Device('device1')
    """
    op = make_put(target(getattr(device, "name", device)).name)
    return tree.map(lambda leaf: apply(op, leaf), x)


def to_numpy(x: Any) -> Any:
    """Return an array of any library or device, or a container of arrays, as NumPy arrays; other leaves stay.

    Raises `HostReadError` where that would drop a derivative: take `xf.to_numpy(xf.stop_gradient(v))`.

    >>> import numpy as np, xform as xf
    >>> xf.to_numpy(xf.device_put(np.ones(2), "array_api_strict:device1"))
    array([1., 1.])
    """
    return tree.map(_leaf_to_numpy, x)


READ_NUMPY = HostRead("to_numpy")


def _leaf_to_numpy(leaf: Any) -> Any:
    numeric = isinstance(leaf, Value | bool | int | float | complex) or hasattr(leaf, "dtype")
    return apply(READ_NUMPY, leaf) if numeric else leaf

