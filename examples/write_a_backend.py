"""Write a backend: an array library of your own, on which gradients, traces and profiles then run.

    python examples/write_a_backend.py

A library is arrays that name their namespace (the array API standard's `__array_namespace__`), have operators, and a
namespace of functions. The one below is NumPy in disguise: its arrays live in one of two "banks", and every call is
counted, so that we see where work is done. It has what this script needs; a real one would have the whole standard.
"""

from collections import Counter

import numpy as np

import xform as xf

calls = Counter()


class BankArray(np.lib.mixins.NDArrayOperatorsMixin):
    """An array in a bank: data and device, with operators that call the library's functions."""

    def __init__(self, data, device):
        self.data, self.device = data, device

    shape = property(lambda self: self.data.shape)
    dtype = property(lambda self: self.data.dtype)
    ndim = property(lambda self: self.data.ndim)

    def __array_ufunc__(self, ufunc, method, *inputs):
        return getattr(BANK, ufunc.__name__)(*inputs)

    def __getitem__(self, index):
        return BankArray(np.asarray(self.data[index]), self.device)

    def __array_namespace__(self, api_version=None):
        return BANK

    def to_device(self, device):
        return BankArray(self.data.copy(), device)

    def __repr__(self):
        return f"BankArray({self.data}, {self.device!r})"


class Namespace:
    """The library's functions: NumPy's, found by their names in the standard, on the data of a bank's arrays."""

    __name__ = "bank"

    def __getattr__(self, name):
        function = getattr(np, name)
        if isinstance(function, type) or not callable(function):  # a dtype, a constant
            return function

        def in_bank(*args, device=None, **options):
            calls[name] += 1
            banks = {arg.device for arg in args if isinstance(arg, BankArray)} or {device or "north"}
            out = function(*[arg.data if isinstance(arg, BankArray) else arg for arg in args], **options)
            return BankArray(np.asarray(out), *banks) if isinstance(out, np.ndarray | np.generic) else out

        return in_bank


BANK = Namespace()


class BankBackend(xf.Backend):
    """Says how the library's devices are named, and how arrays get there and back."""

    name = "bank"
    namespace = BANK

    def device(self, spec):
        if spec not in ("", "north", "south"):
            raise ValueError(f"there are the banks north and south, not {spec!r}")
        return spec or "north"

    def to_host(self, array):
        return array.data.copy()


# A distribution would name it in its pyproject: [project.entry-points."xform.backends"]  bank = "module:attribute"
xf.register_backend("bank", BankBackend())


def f(x):
    return np.sum(np.sin(x) * x)  # NumPy's functions, on whatever library the tracked x is of


x = np.array([0.0, 1.0, 2.0])
there = xf.device_put(x, "bank:south")
gradient = xf.grad(f)(there)  # an array of the library in, an array of the library out
print("gradient:", gradient)
print("back on the host:", xf.to_numpy(gradient), "  NumPy's:", xf.grad(f)(x))
assert np.array_equal(xf.to_numpy(gradient), xf.grad(f)(x))
print("calls of the library:", dict(calls))

device = xf.Device("bank:south")  # the layer moves what comes from the host
assert np.array_equal(xf.to_numpy(device(xf.grad(f))(x)), xf.to_numpy(gradient))
print(device.report())
print("traced:", xf.trace(xf.grad(f))(there))
for wrong in (lambda: xf.apply(xf.ops.Mul(), there, x), lambda: xf.Device("bank:east")):
    try:
        wrong()
    except xf.XformError as error:
        print(f"{type(error).__name__}: {error}")
