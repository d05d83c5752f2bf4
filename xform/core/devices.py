"""Devices by name, and the backends that move arrays to them and back.

1. A device is named `"library:device"`: `"cupy:0"`, `"array_api_strict:device1"`; `"cpu"` is NumPy's.
2. A `Backend` is one array library. Built in are NumPy, array-api-strict and (through array-api-compat) torch; others
   are registered, or found by name through the entry-point group `xform.backends`, when they are asked for.
3. Nothing is moved unless `move` or `to_host` is called: by the operators `DevicePut` and `HostRead`, that is by
   `xf.device_put`, `xf.to_numpy` and the layer `xf.Device`.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from xform.core.backend import device_of, library_of, namespace_of
from xform.core.errors import DeviceUnavailableError, DtypeError, OperandTypeError

__all__ = ["Backend", "Target", "backend_named", "forget_backend", "move", "target", "to_host"]

class Backend:
    """An array library: how its devices are named, and how arrays get there and back.

    A subclass sets `name`, as it stands before the colon of a device's name; the methods here do with the array API
    standard alone, and are overridden where a library has better ways. Importing a backend must not import its library:
    `namespace` does.

    >>> import xform as xf
    >>> class Mine(xf.Backend):
    ...     name = "array_api_strict"
    >>> Mine().is_available()
    True
    """

    #: the library, as `"library:device"` begins
    name: str = ""
    #: what installs it, for the message where it is missing
    install: str = ""

    @property
    def namespace(self) -> Any:
        """The library's array-API namespace; imports the library."""
        return importlib.import_module(self.name)

    def cause(self) -> str | None:
        """Tell why this backend cannot compute on this machine and what to do about it; None where it can."""
        try:
            self.namespace  # noqa: B018  (the import is the test)
        except ImportError as error:
            return f"{error}; {self.install or f'pip install {self.name}'}"
        return None

    def is_available(self) -> bool:
        """Whether this backend can compute on this machine; `cause` tells why not."""
        return self.cause() is None

    def device(self, spec: str) -> Any:
        """Return the library's device of this name, its default one for `""`; raises ValueError where there is none."""
        return spec or None

    def spec(self, device: Any) -> str:
        """Return the name of one of the library's devices, as it stands behind the colon."""
        return device_of(self.namespace.zeros(1, device=device)).partition(":")[2]

    def to_device(self, array: Any, device: Any) -> Any:
        """Copy a NumPy array, or an array of this library, to a device."""
        if isinstance(array, np.ndarray | np.generic):
            return self.namespace.asarray(np.asarray(array), device=device, copy=True)
        return array.to_device(device)

    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        """Copy an array of this library to a NumPy array."""
        return np.from_dlpack(array, device="cpu", copy=True)

    def synchronize(self, device: Any = None) -> None:
        """Wait until what was started on a device has finished; nothing to do where functions return when done."""

    def activate(self, device: Any) -> AbstractContextManager[Any] | None:
        """Return a context in which new arrays land on a device, or None where operands alone decide that."""
        return None

    def __repr__(self) -> str:
        return f"<backend {self.name}>"


class NumpyBackend(Backend):
    """NumPy, on the host."""

    name = "numpy"

    def device(self, spec: str) -> Any:
        """There is one."""
        if spec not in ("", "cpu"):
            msg = f'NumPy has the device "cpu" alone, not {spec!r}'
            raise ValueError(msg)
        return "cpu"

    def spec(self, device: Any) -> str:
        """There is one."""
        return "cpu"

    def to_device(self, array: Any, device: Any) -> Any:
        """Return a NumPy array."""
        return np.asarray(array)

    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        """Return it as it is."""
        return np.asarray(array)


class StrictBackend(Backend):
    """array-api-strict: devices that compute on the host, and refuse to be mixed; they stand in for a GPU in tests."""

    name = "array_api_strict"
    install = "pip install '.[devices]'"

    def device(self, spec: str) -> Any:
        """Return array-api-strict's device object."""
        return self.namespace.Device(spec or "CPU_DEVICE")

    def spec(self, device: Any) -> str:
        """Return the name that the device was made with."""
        return str(device._device)  # noqa: SLF001  (it has no public name)

    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        """Go through the one device that NumPy may read."""
        return np.array(array.to_device(self.namespace.Device("CPU_DEVICE")), copy=True)


class TorchBackend(Backend):
    """PyTorch's tensors, through array-api-compat."""

    name = "torch"
    install = "pip install torch '.[devices]'"

    @property
    def namespace(self) -> Any:
        """PyTorch under the standard's names."""
        return importlib.import_module("array_api_compat.torch")

    def device(self, spec: str) -> Any:
        """Return PyTorch's device object."""
        torch = importlib.import_module("torch")
        try:
            return torch.empty(0, device=spec or "cpu").device  # with its index, and only where it is at hand
        except (RuntimeError, AssertionError) as error:  # the latter where PyTorch was built without CUDA
            raise ValueError(str(error)) from error

    def spec(self, device: Any) -> str:
        """PyTorch prints a device as it is named."""
        return str(device)

    def to_device(self, array: Any, device: Any) -> Any:
        """PyTorch takes NumPy arrays and tensors alike."""
        return importlib.import_module("torch").asarray(array, device=device, copy=True)

    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        """Go through the CPU."""
        return np.array(array.detach().cpu().numpy(), copy=True)

    def synchronize(self, device: Any = None) -> None:
        """Wait for CUDA."""
        if device is not None and device.type == "cuda":
            importlib.import_module("torch").cuda.synchronize(device)


class ForeignBackend(Backend):
    """A library that nobody registered, known by one of its arrays; it can be read on the host."""

    def __init__(self, namespace: Any, name: str) -> None:
        self._namespace = namespace
        self.name = name

    @property
    def namespace(self) -> Any:
        """The namespace that the array named."""
        return self._namespace


NUMPY, STRICT, TORCH = NumpyBackend(), StrictBackend(), TorchBackend()
_backends: dict[str, Backend] = {backend.name: backend for backend in (NUMPY, STRICT, TORCH)}
_targets: dict[str, Target] = {}
#: where the others are looked up by name; it stands above this module, and is imported when a name is asked for
_REGISTRY = "xform.plugins"


def forget_backend(name: str) -> None:
    """Look a backend up anew when it is asked for again: its name was given to another one."""
    if name not in (NUMPY.name, STRICT.name, TORCH.name):
        _backends.pop(name, None)
        _targets.clear()


def find_backend(name: str) -> Backend | None:
    """Return the backend of this name, or None."""
    backend = _backends.get(name)
    if backend is None:
        backend = importlib.import_module(_REGISTRY).find_backend(name)
        if backend is not None:
            _backends[name] = backend
    return backend


def backend_named(name: str) -> Backend:
    """Return the backend of this name; raises `DeviceUnavailableError` where nobody offers it."""
    backend = find_backend(name)
    if backend is None:
        package = "pip install '.[cupy]' in xform's folder" if name == "cupy" else "install a package that offers it"
        msg = (
            f"no backend is named {name!r}; known are {', '.join(sorted(_backends))}: {package}, "
            f"or call xf.register_backend({name!r}, backend); packages are found by their entry points xform.backends"
        )
        raise DeviceUnavailableError(msg, device=name)
    return backend


def backend_of(array: Any) -> Backend:
    """Return the backend of a raw array's library.

    >>> backend_of(np.ones(2))
    <backend numpy>
    """
    library = library_of(array)
    return find_backend(library) or ForeignBackend(namespace_of(array), library)


class Target:
    """A device that is at hand: its canonical name, the backend, and the library's own object."""

    __slots__ = ("backend", "device", "name")

    def __init__(self, name: str, backend: Backend, device: Any) -> None:
        self.name = name
        self.backend = backend
        self.device = device

    @property
    def is_host(self) -> bool:
        """Whether this is NumPy's."""
        return self.name == "cpu"

    def active(self) -> AbstractContextManager[Any]:
        """Return a context in which new arrays land here."""
        return self.backend.activate(self.device) or nullcontext()


def target(name: str) -> Target:
    """Return the device of a name.

    Raises `DeviceUnavailableError`, with the cause and the fix, where it is not at hand, `OperandTypeError` for what is
    no name.

    >>> target("cpu").name, target("numpy:cpu").name
    ('cpu', 'cpu')
    """
    if not isinstance(name, str):
        msg = f'a device is named by text such as "cupy:0" or "cpu", got {type(name).__name__}: {name!r:.60}'
        raise OperandTypeError(msg, value=name)
    known = _targets.get(name)
    if known is not None:
        return known
    library, _, spec = name.partition(":")
    if library == "cpu":
        library = "numpy"
    backend = backend_named(library)
    cause = backend.cause()
    if cause is not None:
        msg = f"the device {name!r} is not at hand: {cause}"
        raise DeviceUnavailableError(msg, device=name, backend=backend)
    try:
        device = backend.device(spec)
    except ValueError as error:
        msg = f"the device {name!r} is not at hand: {error}"
        raise DeviceUnavailableError(msg, device=name, backend=backend) from error
    canonical = "cpu" if library == "numpy" else f"{library}:{backend.spec(device)}"
    made = _targets[name] = Target(canonical, backend, device)
    return made


def move(array: Any, name: str) -> Any:
    """Return a raw array on the device of this name: itself where it is there already, else a copy.

    Raises `DtypeError` for a dtype that the device lacks, and what `target` raises.
    """
    if namespace_of(array) is None:
        msg = f"device_put: expected an array or a number, got {type(array).__name__}"
        raise OperandTypeError(msg, value=array)
    there = target(name)
    if not hasattr(array, "dtype"):  # a Python number
        array = np.asarray(array)
    if device_of(array) == there.name:
        return array
    own = backend_of(array)
    if own.name not in (there.backend.name, "numpy"):
        array = own.to_host(array)
    if there.is_host:
        return array
    try:
        return there.backend.to_device(array, there.device)
    except (TypeError, ValueError) as error:
        msg = f"device_put: {there.name} does not take {array.dtype}: {error}; cast first, e.g. x.astype('float32')"
        raise DtypeError(msg, device=there.name, value=array) from error


def to_host(array: Any) -> np.ndarray[Any, Any]:
    """Return a raw array or number of any library as a NumPy array; NumPy's own as it is.

    >>> to_host(2.0)
    array(2.)
    """
    return np.asarray(array) if namespace_of(array) is np else backend_of(array).to_host(array)
