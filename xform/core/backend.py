"""Array libraries: which namespace computes on an array, and where the array lives."""

from __future__ import annotations

from typing import Any

import numpy as np

from xform.core.errors import DeviceMismatchError, DeviceUnavailableError, OperandTypeError

__all__ = ["HOST_TYPES", "SCALAR_TYPES", "device_of", "is_raw", "library_of", "namespace_of", "shared_namespace"]

#: Python's numbers: weak, at home in every library
SCALAR_TYPES = frozenset({bool, int, float, complex})
#: what NumPy's kernels take directly
HOST_TYPES = SCALAR_TYPES | {np.ndarray} | {np.dtype(code).type for code in "?bhilqBHILQefdgFDG"}

# by type, since array_namespace() of a library costs 900 ns a call and this 40
_namespaces: dict[type, Any] = dict.fromkeys(HOST_TYPES, np)


def namespace_of(array: Any) -> Any:
    """Return the array-API namespace of a raw array (NumPy for Python and NumPy scalars), or None for what is no array.

    Raises `OperandTypeError` for masked arrays and matrices of NumPy, whose operations are others.

    >>> namespace_of(np.ones(2)) is np, namespace_of("text") is None
    (True, True)
    """
    kind = type(array)
    try:
        return _namespaces[kind]
    except KeyError:
        found = _namespaces[kind] = _resolve(array)
        return found


def _resolve(array: Any) -> Any:
    root = type(array).__module__.partition(".")[0]
    if isinstance(array, np.ma.MaskedArray | np.matrix):  # operators mean something else, or drop the mask
        remedy = "x.filled(0), or xnp.where(mask, 0, x)" if isinstance(array, np.ma.MaskedArray) else "np.asarray(x)"
        raise OperandTypeError(f"{type(array).__name__} is no plain array; pass {remedy}", value=array)
    if isinstance(array, np.ndarray):
        return np
    if isinstance(array, type):  # a class has its instances' methods, unbound
        return None
    if root in ("cupy", "torch", "dask"):  # their own namespaces differ from the standard, or they name none
        try:
            import array_api_compat  # noqa: PLC0415  (optional, lazy)
        except ImportError as error:
            msg = f"{root} arrays need array-api-compat: pip install array-api-compat"
            raise DeviceUnavailableError(msg, value=array) from error
        return array_api_compat.array_namespace(array)
    method = getattr(array, "__array_namespace__", None)
    return None if method is None else method()


def is_raw(value: Any) -> bool:
    """Whether a value is a raw array of any library, or a Python or NumPy number."""
    return namespace_of(value) is not None


def library_of(array: Any) -> str:
    """Return the name of the library that an array belongs to.

    >>> library_of(np.ones(2))
    'numpy'
    """
    xp = namespace_of(array)
    name = str(getattr(xp, "__name__", xp)).removeprefix("array_api_compat.")
    return name.partition(".")[0]


def device_of(array: Any) -> str:
    """Return a device as `"library:device"`; `"cpu"` for NumPy.

    >>> device_of(np.ones(2))
    'cpu'
    """
    library = library_of(array)
    if library == "numpy":
        return "cpu"
    device = getattr(array, "device", "cpu")
    name = getattr(device, "id", None)  # cupy.cuda.Device prints as <CUDA Device 0>
    if name is None:
        name = getattr(device, "_device", None) or str(device)
    return f"{library}:{name}"


def shared_namespace(operator: str, arrays: Any) -> Any:
    """Return the one namespace that all operands share.

    Raises `DeviceMismatchError` naming both places, or `OperandTypeError` for what is no array.
    """
    found: Any = None
    first: Any = None
    for position, array in enumerate(arrays):
        if type(array) in SCALAR_TYPES:
            continue
        xp = namespace_of(array)
        if xp is None:
            kind = type(array).__name__
            msg = f"{operator}: operand {position} is {kind}, no array; convert it with xform.numpy.array"
            raise OperandTypeError(msg, value=array, argument=position)
        if found is None:
            found, first = xp, array
        elif xp is not found or (xp is not np and device_of(array) != device_of(first)):
            have, other = device_of(first), device_of(array)
            msg = (
                f"{operator}: operands live on {have} and on {other}; move one with "
                f'xf.device_put(x, "{have}"), or run inside xf.Device("{have if have != "cpu" else other}")'
            )
            raise DeviceMismatchError(msg, devices=(have, other))
    return np if found is None else found
