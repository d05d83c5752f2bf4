"""CuPy for xform: the devices `"cupy:0"`, `"cupy:1"`, ...

xform finds this package through its entry point `xform.backends`, when a device of CuPy is asked for. CuPy itself is
imported no earlier: it may be missing, and it imports without complaint where there is no GPU.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from typing import Any

import xform as xf

__all__ = ["CupyBackend", "backend"]

INSTALL = "pip install '.[cupy]' in xform's folder (or the CuPy wheel of your CUDA version, with array-api-compat)"


class CupyBackend(xf.Backend):
    """CuPy's GPUs; a device is named by its number.

    Functions return before their kernels have finished. Moves to the host wait for the stream that they are queued in,
    so values are always right; to measure time, call `synchronize`, as `xf.Profile(sync=True)` does.
    """

    name = "cupy"
    install = INSTALL

    @property
    def namespace(self) -> Any:
        """CuPy under the array API standard's names: CuPy's arrays do not name a namespace themselves."""
        return importlib.import_module("array_api_compat.cupy")

    def cause(self) -> str | None:
        """Tell whether CuPy is missing, or the driver, or the GPU."""
        try:
            cupy = _cupy()
        except ImportError as error:
            return f"CuPy cannot be imported ({error}); {INSTALL}"
        try:
            found = int(cupy.cuda.runtime.getDeviceCount())
        except Exception as error:  # noqa: BLE001  (CUDARuntimeError; without CUDA's libraries also others)
            return (
                f"CuPy {cupy.__version__} is installed but finds no usable GPU ({error}); it needs an NVIDIA GPU and a "
                'driver for its CUDA version: look at nvidia-smi, or run on xf.Device("cpu")'
            )
        if found == 0:
            return f"CuPy {cupy.__version__} finds no GPU; look at nvidia-smi and CUDA_VISIBLE_DEVICES"
        try:
            self.namespace  # noqa: B018  (the import is the test)
        except ImportError as error:
            return f"{error}; {INSTALL}"
        return None

    def device(self, spec: str) -> Any:
        """Return CuPy's device of a number, the current one for `""`; raises ValueError where there is none."""
        cupy = _cupy()
        count = int(cupy.cuda.runtime.getDeviceCount())
        number = int(cupy.cuda.runtime.getDevice()) if not spec else int(spec) if spec.isdecimal() else -1
        if not 0 <= number < count:
            known = ", ".join(f'"cupy:{i}"' for i in range(count))
            msg = f"CuPy knows {known} here, not {spec!r}"
            raise ValueError(msg)
        return current(number)

    def spec(self, device: Any) -> str:
        """Return the device's number."""
        return str(device.id)

    def to_device(self, array: Any, device: Any) -> Any:
        """Copy a NumPy array, or an array of another GPU, to a GPU."""
        with current(device.id):
            return _cupy().array(array, copy=True)

    def to_host(self, array: Any) -> Any:
        """Copy to a NumPy array; waits for what computes the array."""
        with current(array.device.id):
            return _cupy().asnumpy(array)

    def synchronize(self, device: Any = None) -> None:
        """Wait for the current stream of a GPU (default: of the current one)."""
        cupy = _cupy()
        if device is None:
            cupy.cuda.get_current_stream().synchronize()
            return
        with current(device.id):
            cupy.cuda.get_current_stream().synchronize()

    def activate(self, device: Any) -> AbstractContextManager[Any]:
        """Make a GPU the current one: CuPy computes there."""
        context: AbstractContextManager[Any] = current(device.id)
        return context


def current(number: int) -> Any:
    """Return CuPy's device of a number: as a context it makes the GPU current; each thread has objects of its own."""
    return _cupy().cuda.Device(number)


def _cupy() -> Any:
    return importlib.import_module("cupy")


#: what the entry point `xform.backends` names
backend = CupyBackend()
