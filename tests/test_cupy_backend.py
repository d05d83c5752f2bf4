"""The backend of xform_cupy against a stand-in for CuPy; tests/gpu has what needs a GPU."""

import sys
import types

import numpy as np
import pytest

import xform as xf
import xform_cupy
from tests.device_cases import ONE
from xform.core.backend import device_of
from xform.core.errors import DeviceMismatchError, DeviceUnavailableError


class FakeArray:
    """An array of a library that says it is CuPy: NumPy's array, with a device."""

    __module__ = "cupy"

    def __init__(self, data, number):
        self.data, self.device = data, FakeDevice(number)
        self.shape, self.dtype, self.nbytes = data.shape, data.dtype, data.nbytes

    def __array_namespace__(self, api_version=None):
        return sys.modules["array_api_compat.cupy"]


class FakeDevice:
    current = 0

    def __init__(self, number=None):
        self.id = FakeDevice.current if number is None else number

    def __enter__(self):
        self.before, FakeDevice.current = FakeDevice.current, self.id
        return self

    def __exit__(self, *exc_info):
        FakeDevice.current = self.before

    def __eq__(self, other):
        return self.id == other.id

    __hash__ = None


@pytest.fixture
def cupy(monkeypatch):
    """A stand-in for CuPy with two GPUs."""

    def array(x, copy=None):
        return FakeArray(np.array(x.data if isinstance(x, FakeArray) else x), FakeDevice.current)

    waits = []
    stream = types.SimpleNamespace(synchronize=lambda: waits.append(FakeDevice.current))
    fake = types.ModuleType("cupy")
    fake.__version__ = "14.2.0"
    fake.array = array
    fake.asnumpy = lambda x: x.data.copy()
    fake.add = lambda x, y: FakeArray(x.data + getattr(y, "data", y), FakeDevice.current)
    fake.waits = waits
    fake.cuda = types.SimpleNamespace(
        Device=FakeDevice,
        get_current_stream=lambda: stream,
        runtime=types.SimpleNamespace(getDeviceCount=lambda: 2, getDevice=lambda: FakeDevice.current),
    )
    compat = types.ModuleType("array_api_compat")
    compat.array_namespace = lambda x: fake
    compat.cupy = fake
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setitem(sys.modules, "array_api_compat", compat)
    monkeypatch.setitem(sys.modules, "array_api_compat.cupy", fake)
    xf.register_backend("cupy", xform_cupy.backend)
    yield fake
    xf.core.devices.forget_backend("cupy")
    xf.core.backend._namespaces.pop(FakeArray, None)


def test_cupy_devices(cupy):
    assert xf.Device("cupy:1").name == "cupy:1"
    assert xf.Device("cupy").name == "cupy:0"
    with pytest.raises(DeviceUnavailableError, match='knows "cupy:0", "cupy:1" here'):
        xf.Device("cupy:2")
    with pytest.raises(DeviceUnavailableError, match="not 'first'"):
        xf.Device("cupy:first")


def test_cupy_moves_both_ways(cupy):
    there = xf.device_put(np.ones(2), "cupy:1")
    assert device_of(there) == "cupy:1"
    assert FakeDevice.current == 0
    back = xf.to_numpy(there)
    assert type(back) is np.ndarray
    assert device_of(xf.device_put(there, "cupy:0")) == "cupy:0"
    assert device_of(xf.device_put(there, ONE)) == ONE


def test_cupy_layer_computes_on_its_gpu(cupy):
    with xf.Device("cupy:1") as device:
        y = xf.array(np.ones(2)) + 1.0
    assert y.device == "cupy:1"
    assert device.transfers == 1
    device.synchronize()
    assert cupy.waits == [1]
    with xf.Profile(sync=True), xf.Device("cupy:1"):
        xf.array(np.ones(2)) + 1.0
    assert 1 in cupy.waits[1:]
    with pytest.raises(DeviceMismatchError, match="cupy:1"):
        y + np.ones(2)


def test_cupy_without_a_gpu(cupy):
    def no_driver():
        raise RuntimeError("cudaErrorInsufficientDriver")

    cupy.cuda.runtime.getDeviceCount = no_driver
    with pytest.raises(DeviceUnavailableError, match=r"cudaErrorInsufficientDriver.*driver.*nvidia-smi"):
        xf.Device("cupy:0")
    cupy.cuda.runtime.getDeviceCount = lambda: 0
    with pytest.raises(DeviceUnavailableError, match="CUDA_VISIBLE_DEVICES"):
        xf.Device("cupy:0")


def test_cupy_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    xf.register_backend("cupy", xform_cupy.backend)
    with pytest.raises(DeviceUnavailableError, match=r"CuPy cannot be imported.*pip install '\.\[cupy\]'"):
        xf.Device("cupy:0")
    xf.core.devices.forget_backend("cupy")


def test_cupy_arrays_without_array_api_compat(monkeypatch):
    monkeypatch.setitem(sys.modules, "array_api_compat", None)
    with pytest.raises(DeviceUnavailableError, match="pip install array-api-compat"):
        xf.core.backend.namespace_of(FakeArray(np.ones(2), 0))
