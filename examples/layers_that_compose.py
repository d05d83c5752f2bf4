"""Layers that compose: a ten-line transformation above and below `grad`, and a NaN traced to its origin."""

import numpy as np

import xform as xf


class CosForSin(xf.Transformation):
    """Gives `sin` the meaning of `cos`."""

    def interpret(self, op, values):
        if op == xf.ops.Sin():
            op = xf.ops.Cos()
        return xf.apply(op, *values)


def f(x):
    return np.sin(x) * x  # plain NumPy


x, layer = 0.5, CosForSin()
print(f"grad(f)(x)        = {xf.grad(f)(x):.6f}   sin x + x cos x = {np.sin(x) + x * np.cos(x):.6f}")
print(f"grad(layer(f))(x) = {xf.grad(layer(f))(x):.6f}   cos x - x sin x = {np.cos(x) - x * np.sin(x):.6f}")
try:
    with layer:  # the layer stands below grad: the tape would record sin, the numbers would be those of cos
        xf.grad(f)(x)
except xf.XformError as error:
    print(f"\nbelow grad: {error}")


def loss(s):
    return np.log(s) + 2.0 / s  # smallest at s = 2


s, slope = 0.5, 1.0
try:
    with xf.NanGuard(), np.errstate(invalid="ignore"):
        while abs(slope) > 1e-6:
            slope = xf.grad(loss)(s)
            s = s + 0.4 * slope  # a wrong sign: s leaves the domain of log
except xf.XformError as error:
    print(f"\nNaN found: {error}")
