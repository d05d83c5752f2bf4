"""The layer xf.Device, and gradients of arrays on a device, on array-api-strict's devices."""

import threading

import array_api_strict as strict
import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from tests.device_cases import INPUTS, LABELS, ONE, PARAMETERS, TWO, assert_gradients, loss, on
from xform.core.backend import device_of
from xform.core.devices import backend_named, to_host
from xform.core.errors import DeviceMismatchError

# ------------------------------------------------------------------ arrays of a device, without the layer


def test_gradient_with_raw_device_arrays():
    parameters, x, y = xf.device_put((PARAMETERS, INPUTS, LABELS), ONE)
    found = xf.value_and_grad(loss)(parameters, x, y)
    assert not isinstance(found[1]["w1"], xf.Value)
    assert_gradients(found, ONE)


def test_vjp_and_second_order_with_raw_device_arrays():
    w = np.linspace(-1.0, 1.0, 6).reshape(3, 2)

    def f(w):
        return xnp.sum(xnp.sin(w) * w)

    hessian_times_two = xf.grad(lambda w: xnp.sum(xf.grad(f)(w) * 2.0))(on(w))
    np.testing.assert_allclose(to_host(hessian_times_two), 2 * (2 * np.cos(w) - w * np.sin(w)))
    out, pullback = xf.vjp(xnp.sin, on(w))
    assert device_of(out) == ONE
    (cotangent,) = pullback(on(np.full((3, 2), 2.0)))
    np.testing.assert_allclose(to_host(cotangent), 2 * np.cos(w))


def test_float32_stays_float32():
    p, x, y = xf.tree.map(lambda a: on(a.astype(np.float32)), (PARAMETERS, INPUTS, LABELS))
    found = xf.value_and_grad(loss)(p, x, y)
    assert all(str(leaf.dtype).endswith("float32") for leaf in xf.tree.leaves(found))
    assert_gradients(found, ONE, rtol=2e-5)


class Halves(xf.Operator):
    """Two outputs, of which a gradient may need one."""

    multiple_outputs = True

    def infer(self, x):
        return x, x

    def evaluate(self, xp, x):
        return x * 0.5, x * 0.5


@xf.vjp_rule(Halves)
def halves_vjp(op, needed, x):
    return xf.apply(op, x), lambda ts: (ts[0] * 0.5 + ts[1] * 0.5,)


@pytest.mark.parametrize("layers", [(), (xf.Profile,), (lambda: xf.Device(ONE),)])
def test_zeros_for_an_output_without_cotangent_are_on_its_device(layers):
    x = on(np.array([1.0, 2.0]))
    f = xf.grad(lambda x: xnp.sum(xf.apply(Halves(), x)[1]))
    if layers:
        with layers[0]():
            gradient = f(x)
    else:
        gradient = f(x)
    assert device_of(gradient) == ONE
    assert to_host(gradient).tolist() == [0.5, 0.5]


def test_arguments_that_are_not_differentiated_may_stand_on_the_left():
    """array-api-strict's operators do not give way to values; the arguments of a gradient are lifted."""
    x = on(np.array([1.0, 2.0]))
    gradient = xf.grad(lambda w, data, scale: xnp.sum(data["x"] * w * scale))(x, {"x": x}, scale=x)
    assert to_host(gradient).tolist() == [1.0, 4.0]


def test_a_program_recorded_under_the_layer_moves_its_inputs():
    device = xf.Device(ONE)
    program = xf.make_program(device(lambda x: xnp.sin(x) * 2.0))(np.ones(3))
    out = xf.to_numpy(program(np.ones(3)))
    np.testing.assert_allclose(out, 2 * np.sin(np.ones(3)))


# ------------------------------------------------------------------ the layer


def test_below_a_tape_gradients_leave_on_the_device():
    with xf.Device(ONE) as device:
        found = xf.value_and_grad(loss)(PARAMETERS, INPUTS, LABELS)
    assert_gradients(found, ONE)
    assert device.transfers >= 6
    assert device.host_syncs == 0


def test_above_a_tape_gradients_come_home():
    device = xf.Device(ONE)
    value, gradients = xf.value_and_grad(device(loss))(PARAMETERS, INPUTS, LABELS)
    assert device.transfers == 6
    assert_gradients((xf.to_numpy(value), gradients), "cpu")
    assert all(type(gradient) is np.ndarray for gradient in gradients.values())


def test_parameters_on_the_device_move_once():
    parameters = xf.device_put(PARAMETERS, ONE)
    data = xf.device_put((INPUTS, LABELS), ONE)
    with xf.Device(ONE) as device:
        for _ in range(3):
            _, gradients = xf.value_and_grad(loss)(parameters, *data)
            parameters = xf.tree.map(lambda p, t: p - 0.1 * t, parameters, gradients)
    assert device.transfers == 0
    expected = PARAMETERS
    for _ in range(3):
        gradients = xf.grad(loss)(expected, INPUTS, LABELS)
        expected = xf.tree.map(lambda p, t: p - 0.1 * t, expected, gradients)
    for name in expected:
        np.testing.assert_allclose(xf.to_numpy(parameters[name]), expected[name])


def test_a_device_without_float64():
    p, x, y = xf.tree.map(lambda a: a.astype(np.float32), (PARAMETERS, INPUTS, LABELS))
    with xf.Device("array_api_strict:no_float64"):
        found = xf.value_and_grad(loss)(p, x, y)
    assert all(str(leaf.dtype).endswith("float32") for leaf in xf.tree.leaves(found))
    assert_gradients(found, "array_api_strict:no_float64", rtol=2e-5)


def test_second_order_under_the_layer():
    x = np.array([0.5, 1.0])
    with xf.Device(ONE):
        second = xf.grad(lambda x: xnp.sum(xf.grad(lambda x: xnp.sum(xnp.sin(x)))(x)))(x)
    np.testing.assert_allclose(xf.to_numpy(second), -np.sin(x))


def test_counts_transfers_bytes_and_repeats():
    x, w = xf.array(np.ones(4)), np.ones(4)
    with xf.Device(ONE) as device:
        for _ in range(3):
            y = x * w
    assert y.device == ONE
    assert device.transfers == 6
    assert device.transferred == 6 * 32
    assert device.repeats == 4
    assert "6 transfers" in device.report()
    assert "4 of them" in device.report()


def test_moves_what_it_is_given_now():
    """Arrays change: a copy from before must not be used."""
    w = np.ones(2)
    with xf.Device(ONE):
        first = xf.array(np.ones(2)) * w
        w[:] = 3.0
        second = xf.array(np.ones(2)) * w
    assert (xf.to_numpy(first)[0], xf.to_numpy(second)[0]) == (1.0, 3.0)


def test_counts_host_syncs():
    with xf.Device(ONE) as device:
        x = xf.array(np.ones(1)) * 2.0
        assert device.host_syncs == 0
        assert float(x[0]) == 2.0
        assert bool(x[0] > 1.0)
        assert x.tolist() == [2.0]
        xf.to_numpy(x)
        assert device.host_syncs == 4
        float(xf.array(1.0))  # on the host already
    assert device.host_syncs == 4


def test_python_numbers_stay():
    with xf.Device(ONE) as device:
        y = xf.array(on(np.ones(2, np.float32))) * 2.0 + 1
    assert device.transfers == 0
    assert str(y.dtype) == "float32"


def test_numpy_scalars_move():
    with xf.Device(ONE) as device:
        y = xf.array(on(np.ones(2))) * np.float64(3.0)
    assert device.transfers == 1
    assert xf.to_numpy(y).tolist() == [3.0, 3.0]


def test_what_was_put_elsewhere_stays_there():
    with xf.Device(ONE):
        two = xf.device_put(xf.array(np.ones(2)), TWO)
        assert (two * 2.0).device == TWO
        host = xf.device_put(xf.array(np.ones(2)) * 2.0, "cpu")
        assert host.device == "cpu"
        with pytest.raises(DeviceMismatchError, match="device2"):
            two + xf.array(np.ones(2))


def test_the_upper_of_two_devices_wins():
    with xf.Device(TWO) as below, xf.Device(ONE):
        assert (xf.array(np.ones(2)) + 1.0).device == ONE
    assert below.transfers == 1  # it saw the other's move
    with pytest.raises(xf.XformError, match="on this stack already"), below, below:
        pass


def test_the_cpu_moves_nothing():
    with xf.Device("cpu") as device:
        y = xf.array(np.ones(2)) + 1.0
        assert float(y[0]) == 2.0
    assert (device.transfers, device.host_syncs) == (0, 0)
    assert type(y.data) is np.ndarray


def test_as_decorator_with_plain_numpy_inside():
    device = xf.Device(ONE)
    f = device(lambda x: np.sin(x) * 2.0)
    out = f(np.ones(3))
    assert device_of(out) == ONE
    np.testing.assert_allclose(to_host(out), 2 * np.sin(np.ones(3)))
    assert device.transfers == 1


def test_a_profile_below_sees_the_moves():
    with xf.Profile() as profile, xf.Device(ONE):
        xnp.sin(xf.array(np.ones(3)))
    assert profile.calls("DevicePut") == profile.calls("Sin") == 1


def test_profile_can_wait_for_the_device(monkeypatch):
    waits = []
    kind = type(backend_named("array_api_strict"))
    monkeypatch.setattr(kind, "synchronize", lambda self, device=None: waits.append(device))
    with xf.Profile(sync=True):
        xf.array(on(np.ones(3))) * 2.0
        xf.array(np.ones(3)) * 2.0
    assert waits == [strict.Device("device1")]
    xf.Device(ONE).synchronize()
    assert len(waits) == 2


def test_nan_guard_below_and_above():
    with np.errstate(all="ignore"):
        for layers in ((xf.NanGuard(), xf.Device(ONE)), (xf.Device(ONE), xf.NanGuard())):
            with pytest.raises(xf.core.errors.NanError, match="Log made"), layers[0], layers[1]:
                xnp.log(xf.array(np.array([1.0, -1.0])))


def test_in_several_threads():
    device, found = xf.Device(ONE), []

    def work():
        with device:
            found.append((xf.array(np.ones(2)) + 1.0).device)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [ONE] * 4
    assert device.transfers == 4


def test_an_exception_leaves_the_stack_as_it_was():
    with pytest.raises(xf.XformError), xf.Device(ONE):
        xf.array(np.ones(2)) + np.ones(3)
    assert xf.stack() == ()


def test_by_name():
    with xf.layer("device", name=ONE):
        assert (xf.array(np.ones(2)) + 1.0).device == ONE
