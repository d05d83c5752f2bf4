"""What the tests of devices share: two devices of array-api-strict, and a small perceptron."""

import numpy as np

import xform as xf
import xform.numpy as xnp
from xform.core.backend import device_of
from xform.core.devices import move

ONE = "array_api_strict:device1"
TWO = "array_api_strict:device2"
rng = np.random.default_rng(0)
PARAMETERS = {
    "w1": rng.normal(size=(4, 5)),
    "b1": rng.normal(size=5),
    "w2": rng.normal(size=(5, 3)),
    "b2": rng.normal(size=3),
}
INPUTS = rng.normal(size=(7, 4))
LABELS = np.eye(3)[rng.integers(0, 3, 7)]


def on(x, device=ONE):
    return move(np.asarray(x), device)


def loss(p, x, y):
    """Cross entropy of a perceptron with one hidden layer."""
    h = xnp.tanh(x @ p["w1"] + p["b1"])
    z = h @ p["w2"] + p["b2"]
    z = z - xnp.max(z, axis=1, keepdims=True)
    logp = z - xnp.log(xnp.sum(xnp.exp(z), axis=1, keepdims=True))
    return -xnp.sum(logp * y) / x.shape[0]


def assert_gradients(found, device, rtol=1e-12):
    value, gradients = xf.value_and_grad(loss)(PARAMETERS, INPUTS, LABELS)
    assert device_of(found[0]) == device
    np.testing.assert_allclose(xf.to_numpy(found[0]), value, rtol=rtol)
    assert found[1].keys() == gradients.keys()
    for name, expected in gradients.items():
        assert device_of(found[1][name]) == device
        np.testing.assert_allclose(xf.to_numpy(found[1][name]), expected, rtol=rtol, atol=rtol)
