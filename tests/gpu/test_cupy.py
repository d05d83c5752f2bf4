"""CuPy on a GPU. `python tests/gpu/run.py` runs these; elsewhere they are skipped with the cause."""

import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
import xform_cupy
from xform.core.backend import device_of
from xform.core.errors import DeviceMismatchError, DeviceUnavailableError, NanError

pytestmark = pytest.mark.gpu
CAUSE = xform_cupy.backend.cause()
rng = np.random.default_rng(0)
PARAMETERS = {"w1": rng.normal(size=(4, 5)), "b1": rng.normal(size=5), "w2": rng.normal(size=(5, 3))}
INPUTS = rng.normal(size=(7, 4))
LABELS = np.eye(3)[rng.integers(0, 3, 7)]


@pytest.fixture(autouse=True)
def gpu():
    if CAUSE is not None:
        pytest.skip(CAUSE)
    xf.register_backend("cupy", xform_cupy.backend)


def loss(p, x, y):
    h = xnp.tanh(x @ p["w1"] + p["b1"])
    z = h @ p["w2"]
    z = z - xnp.max(z, axis=1, keepdims=True)
    logp = z - xnp.log(xnp.sum(xnp.exp(z), axis=1, keepdims=True))
    return -xnp.sum(logp * y) / x.shape[0]


def assert_same(found, rtol=1e-10):
    value, gradients = xf.value_and_grad(loss)(PARAMETERS, INPUTS, LABELS)
    np.testing.assert_allclose(xf.to_numpy(found[0]), value, rtol=rtol)
    for name, expected in gradients.items():
        np.testing.assert_allclose(xf.to_numpy(found[1][name]), expected, rtol=rtol, atol=rtol)


def test_moves_both_ways():
    x = rng.normal(size=(3, 4)).astype(np.float32)
    there = xf.device_put(x, "cupy:0")
    assert device_of(there) == "cupy:0"
    back = xf.to_numpy(there)
    assert type(back) is np.ndarray
    np.testing.assert_array_equal(back, x)
    x[0, 0] = 9.0
    assert float(xf.to_numpy(there)[0, 0]) != 9.0


def test_a_gpu_that_is_not_there():
    with pytest.raises(DeviceUnavailableError, match="CuPy knows"):
        xf.Device("cupy:99")


def test_host_and_gpu_do_not_mix():
    there = xf.array(xf.device_put(np.ones(2), "cupy:0"))
    for a, b in ((np.ones(2), there), (there, np.ones(2)), (xf.array(np.ones(2)), there)):
        with pytest.raises(DeviceMismatchError, match="cupy:0"):
            a + b


def test_gradient_with_raw_cupy_arrays():
    found = xf.value_and_grad(loss)(*xf.device_put((PARAMETERS, INPUTS, LABELS), "cupy:0"))
    assert device_of(found[1]["w1"]) == "cupy:0"
    assert_same(found)


def test_device_below_grad():
    with xf.Device("cupy:0") as device:
        found = xf.value_and_grad(loss)(PARAMETERS, INPUTS, LABELS)
    assert device_of(found[1]["w1"]) == "cupy:0"
    assert device.transfers >= 5
    assert device.host_syncs == 0
    assert_same(found)


def test_device_above_grad_brings_gradients_home():
    device = xf.Device("cupy:0")
    found = xf.value_and_grad(device(loss))(PARAMETERS, INPUTS, LABELS)
    assert type(found[1]["w1"]) is np.ndarray
    assert_same(found)


def test_float32_stays_float32():
    cast = xf.tree.map(lambda a: a.astype(np.float32), (PARAMETERS, INPUTS, LABELS))
    with xf.Device("cupy:0"):
        found = xf.value_and_grad(loss)(*cast)
    assert all(leaf.dtype == np.float32 for leaf in xf.tree.leaves(found))
    assert_same(found, rtol=2e-4)


def test_second_order():
    x = np.linspace(0.1, 1.0, 5)
    with xf.Device("cupy:0"):
        second = xf.grad(lambda x: xnp.sum(xf.grad(lambda x: xnp.sum(xnp.sin(x)))(x)))(x)
    np.testing.assert_allclose(xf.to_numpy(second), -np.sin(x), rtol=1e-12)


def test_host_syncs_are_counted():
    with xf.Device("cupy:0") as device:
        x = xf.array(np.ones(3)) * 2.0
        assert float(xnp.sum(x)) == 6.0
        assert bool(xnp.sum(x) > 1.0)
    assert device.host_syncs == 2


def test_np_asarray_names_to_numpy():
    with pytest.raises(xf.core.errors.HostReadError, match=r"xf\.to_numpy"):
        np.asarray(xf.array(xf.device_put(np.ones(2), "cupy:0")))


def test_nan_guard():
    with pytest.raises(NanError, match="Log made"), xf.NanGuard(), xf.Device("cupy:0"):
        xnp.log(xf.array(np.array([1.0, -1.0])))


def test_profile_waits_for_the_gpu():
    x = xf.device_put(rng.normal(size=(4096, 4096)), "cupy:0")
    xf.array(x) @ x
    times = {}
    for sync in (False, True):
        with xf.Profile(sync=sync) as profile:
            y = xf.array(x) @ x
        xf.Device("cupy:0").synchronize()
        times[sync] = next(row.total for row in profile.rows if row.name == "Matmul")
    assert y.device == "cupy:0"
    assert times[True] > 2 * times[False]


UNARY = ["sin", "cos", "tan", "exp", "expm1", "log", "log1p", "sqrt", "square", "abs", "sign", "tanh", "arctan", "sinh"]


@pytest.mark.parametrize("name", UNARY)
def test_elementwise_functions_and_their_gradients(name):
    x = np.linspace(0.2, 0.9, 6)
    function = getattr(xnp, name)
    expected = xf.value_and_grad(lambda x: xnp.sum(function(x)))(x)
    with xf.Device("cupy:0"):
        found = xf.value_and_grad(lambda x: xnp.sum(function(x)))(x)
    for have, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(xf.to_numpy(have), want, rtol=1e-10)


STRUCTURE = {
    "where": lambda x: xnp.where(x > 0.5, x, 0.0),
    "maximum": lambda x: xnp.maximum(x, 0.5),
    "mean": lambda x: xnp.mean(x, axis=0),
    "var": lambda x: xnp.var(x, axis=1),
    "max": lambda x: xnp.max(x, axis=1),
    "cumsum": lambda x: xnp.cumsum(x, axis=0),
    "reshape": lambda x: x.reshape(-1)[::2],
    "transpose": lambda x: x.T @ x,
    "concatenate": lambda x: xnp.concatenate([x, x * 2.0], axis=1),
    "index": lambda x: x[1:, 0] * x[:-1, 1],
    "take": lambda x: x[np.array([0, 2, 0])],
    "clip": lambda x: xnp.clip(x, 0.3, 0.6),
    "logsumexp": lambda x: xnp.logsumexp(x, axis=1),
}


@pytest.mark.parametrize("name", STRUCTURE)
def test_structural_functions_and_their_gradients(name):
    x = rng.uniform(0.1, 0.9, size=(4, 4))
    function = STRUCTURE[name]
    expected = xf.value_and_grad(lambda x: xnp.sum(function(x) ** 2))(x)
    with xf.Device("cupy:0"):
        found = xf.value_and_grad(lambda x: xnp.sum(function(x) ** 2))(x)
    for have, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(xf.to_numpy(have), want, rtol=1e-10)
