"""Devices by name, backends, device_put and to_numpy, and what may not be mixed."""

import subprocess
import sys

import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from tests.device_cases import ONE, TWO, on
from xform.core.backend import device_of
from xform.core.devices import move, target, to_host
from xform.core.errors import (
    DeviceMismatchError,
    DeviceUnavailableError,
    DtypeError,
    HostReadError,
    OperandTypeError,
)
from xform.core.rules import batch_rule, jvp_of

# ------------------------------------------------------------------ names and backends


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("cpu", "cpu"),
        ("numpy", "cpu"),
        ("numpy:cpu", "cpu"),
        ("array_api_strict", "array_api_strict:CPU_DEVICE"),
        (ONE, ONE),
        ("array_api_strict:no_float64", "array_api_strict:no_float64"),
    ],
)
def test_names(name, canonical):
    assert xf.Device(name).name == target(name).name == canonical
    assert repr(xf.Device(name)) == f"Device({canonical!r})"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("cpu:3", "not '3'"),
        ("array_api_strict:device9", "device9"),
        ("no_such_library:0", "no backend is named 'no_such_library'"),
    ],
)
def test_a_device_that_is_not_at_hand(name, says):
    with pytest.raises(DeviceUnavailableError, match=says) as caught:
        xf.Device(name)
    assert isinstance(caught.value, RuntimeError)
    with pytest.raises(DeviceUnavailableError, match=says):
        xf.device_put(np.ones(2), name)


def test_a_library_that_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "array_api_compat.torch", None)
    with pytest.raises(DeviceUnavailableError, match="pip install torch"):
        xf.Device("torch:cpu")


def test_backends_move_both_ways():
    x = np.arange(6.0).reshape(2, 3)
    there = move(x, ONE)
    assert device_of(there) == ONE
    assert move(there, ONE) is there
    assert device_of(move(there, TWO)) == TWO
    back = to_host(there)
    assert type(back) is np.ndarray
    np.testing.assert_array_equal(back, x)


def test_moves_are_copies():
    x = np.ones(3)
    there = move(x, ONE)
    x[0] = 5.0
    assert to_host(there)[0] == 1.0
    back = to_host(there)
    back[1] = 7.0
    assert to_host(there)[1] == 1.0
    assert move(x, "cpu") is x


def test_what_is_no_array_cannot_move():
    with pytest.raises(OperandTypeError, match="str"):
        xf.device_put("text", ONE)


def test_a_dtype_that_the_device_lacks():
    with pytest.raises(DtypeError, match=r"no_float64 does not take float64.*astype"):
        xf.device_put(np.ones(2), "array_api_strict:no_float64")


def test_a_backend_of_ones_own():
    class Mine(xf.Backend):
        name = "array_api_strict"

    assert Mine().is_available()
    assert Mine().cause() is None

    class Missing(xf.Backend):
        name = "no_such_library_xyz"

    assert not Missing().is_available()
    assert "pip install no_such_library_xyz" in Missing().cause()
    xf.register_backend("no_such_library_xyz", Missing())
    with pytest.raises(DeviceUnavailableError, match="No module named 'no_such_library_xyz'"):
        xf.Device("no_such_library_xyz:0")


def test_registering_again_replaces():
    class First(xf.Backend):
        name = "made_up"

        def cause(self):
            return "first"

    class Second(First):
        def cause(self):
            return "second"

    for kind in (First, Second):
        xf.register_backend("made_up", kind())
        with pytest.raises(DeviceUnavailableError, match=kind().cause()):
            xf.Device("made_up")


# ------------------------------------------------------------------ device_put, to_numpy


def test_device_put_takes_containers_and_numbers():
    out = xf.device_put({"w": np.ones(2), "rest": (1.5, xf.array(np.zeros(3)))}, ONE)
    assert device_of(out["w"]) == ONE
    assert device_of(out["rest"][0]) == ONE
    assert type(out["rest"][1]) is xf.Array
    assert out["rest"][1].device == ONE


def test_to_numpy_takes_containers():
    out = xf.to_numpy({"w": on(np.ones(2)), "rest": [xf.array(on(2.0)), np.ones(1), 3, "text"]})
    assert type(out["w"]) is np.ndarray
    np.testing.assert_array_equal(out["w"], np.ones(2))
    assert [type(each) for each in out["rest"]] == [np.ndarray, np.ndarray, np.ndarray, str]


def test_to_numpy_of_a_tracked_value_names_stop_gradient():
    with pytest.raises(HostReadError, match="stop_gradient"):
        xf.grad(lambda x: x * float(xf.to_numpy(x)))(2.0)
    assert xf.grad(lambda x: x * float(xf.to_numpy(xf.stop_gradient(x))))(2.0) == 2.0


def test_np_asarray_of_a_device_array_names_to_numpy():
    x = xf.array(on(np.ones(2)))
    with pytest.raises(HostReadError, match=r"xf\.to_numpy"):
        np.asarray(x)
    assert x.tolist() == [1.0, 1.0]


def test_device_put_is_differentiable_and_cotangents_go_home():
    x = np.array([0.5, 1.0])

    def f(x):
        return xf.device_put(xnp.sum(xnp.sin(xf.device_put(x, ONE))), "cpu")

    gradient = xf.grad(f)(x)
    assert type(gradient) is np.ndarray
    np.testing.assert_allclose(gradient, np.cos(x))
    second = xf.grad(lambda x: xnp.sum(xf.grad(f)(x)))(x)
    np.testing.assert_allclose(second, -np.sin(x))
    assert xf.grad(lambda x: xf.device_put(xf.device_put(x, ONE) * 2.0, "cpu"))(3.0) == 2.0


def test_one_primal_used_on_two_devices():
    x = np.array([0.5, 1.0])

    def f(x):
        return xnp.sum(x * x) + xf.device_put(xnp.sum(xf.device_put(x, ONE) * 3.0), "cpu")

    np.testing.assert_allclose(xf.grad(f)(x), 2 * x + 3.0)


def test_device_put_keeps_the_gradients_dtype():
    x = np.array([0.5, 1.0], np.float32)
    gradient = xf.grad(lambda x: xf.device_put(xnp.sum(xf.device_put(x, ONE) * 3.0), "cpu"))(x)
    assert gradient.dtype == np.float32


def test_device_put_forward_rule_and_batch_rule():
    op = xf.ops.DevicePut(ONE)
    out, tangent = jvp_of(op)(op, (np.ones(2),), (np.full(2, 3.0),))
    assert device_of(out) == device_of(tangent) == ONE
    assert to_host(tangent)[0] == 3.0
    assert jvp_of(op)(op, (np.ones(2),), (None,))[1] is None
    out, axis = batch_rule.get(op)(op, 2, (np.ones((3, 2)),), (1,))
    assert (device_of(out), axis) == (ONE, 1)
    like = xf.ops.PutLike()
    out, tangent = jvp_of(like)(like, (np.ones(2), on(1.0)), (np.ones(2), None))
    assert device_of(out) == device_of(tangent) == ONE


def test_put_like_is_differentiable():
    x, there = np.array([0.5, 1.0]), on(1.0)

    def f(x):
        return xf.device_put(xnp.sum(xnp.sin(xf.apply(xf.ops.PutLike(), x, there))), "cpu")

    np.testing.assert_allclose(xf.grad(f)(x), np.cos(x))


@pytest.mark.parametrize("x", [1.0, np.float32(2), np.ones((2, 3), np.float32), np.arange(3)])
def test_infer_is_what_evaluate_gives(x):
    for op in (xf.ops.DevicePut(ONE), xf.ops.DevicePut("cpu")):
        assert op.infer(xf.aval_of(x)) == xf.aval_of(xf.apply(op, x))


# ------------------------------------------------------------------ mixing


def methods():
    return [
        lambda a, b: a + b,
        lambda a, b: a - b,
        lambda a, b: a * b,
        lambda a, b: a / b,
        lambda a, b: a**b,
        lambda a, b: a @ b,
        lambda a, b: a // b,
        lambda a, b: a % b,
        lambda a, b: a < b,
        lambda a, b: a >= b,
        lambda a, b: a == b,
        lambda a, b: a != b,
        lambda a, b: np.add(a, b),
        lambda a, b: np.maximum(a, b),
        lambda a, b: xnp.add(a, b),
        lambda a, b: xnp.where(a > 0, a, b),
        lambda a, b: xnp.concatenate([a, b]),
    ]


@pytest.mark.parametrize("method", methods())
@pytest.mark.parametrize("host", [np.ones(2), np.ones(2, np.float32)])
def test_host_and_device_do_not_mix(method, host):
    there = xf.array(on(np.ones(2)))
    for a, b in ((host, there), (there, host), (xf.array(host), there), (there, xf.array(host))):
        with pytest.raises(DeviceMismatchError) as caught:
            method(a, b)
        assert set(caught.value.devices) == {"cpu", ONE}
        assert ONE in str(caught.value)
        assert "xf.device_put" in str(caught.value)
        assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("method", methods())
def test_two_devices_of_one_library_do_not_mix(method):
    one, two = on(np.ones(2)), on(np.ones(2), TWO)
    for a, b in ((xf.array(one), two), (xf.array(one), xf.array(two)), (xf.array(two), xf.array(one))):
        with pytest.raises(DeviceMismatchError) as caught:
            method(a, b)
        assert set(caught.value.devices) == {ONE, TWO}


def test_mixing_is_refused_under_a_tape():
    with pytest.raises(DeviceMismatchError, match="device1"):
        xf.grad(lambda x: xnp.sum(x * on(np.ones(2))))(np.ones(2))


def test_nothing_heavy_is_imported():
    heavy = ["cupy", "torch", "array_api_strict", "array_api_compat"]
    code = f"import sys, xform, xform_cupy; print(*[m for m in {heavy} if m in sys.modules])"
    environment = {"PYTHONPATH": ":".join(sys.path)}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert out.stdout.strip() == ""
