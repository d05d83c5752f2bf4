"""The loss of `examples/digits.py` as it is, on a device that refuses what NumPy alone would take: equal to NumPy."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import array_api_strict as strict
import numpy as np
import pytest

import xform as xf

PATH = Path(__file__).parent.parent / "examples" / "digits.py"
DEVICE = strict.Device("device1")


@pytest.fixture(scope="module")
def digits():
    """The example as a module; it sets a variable for BLAS, which is taken back."""
    before = os.environ.get("OMP_NUM_THREADS")
    spec = importlib.util.spec_from_file_location("digits_example", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if before is None:
        os.environ.pop("OMP_NUM_THREADS", None)
    return module


@pytest.fixture(scope="module")
def batch(digits):
    (images, labels), _ = digits.data()
    parameters = [digits.layer(64, 16), digits.layer(16, 12), digits.layer(12, 10)]
    return parameters, images[:32], np.eye(10, dtype=np.float32)[labels[:32]]


def moved(values):
    return xf.tree.map(lambda x: strict.asarray(x, device=DEVICE), values)


def assert_on_device_and_equal(found, want, rtol):
    assert xf.tree.structure(found) == xf.tree.structure(want)
    for have, each in zip(xf.tree.leaves(found), xf.tree.leaves(want), strict=True):
        assert isinstance(have, type(strict.asarray(1.0)))
        assert have.device == DEVICE
        assert str(have.dtype).endswith("float32")
        on_host = np.asarray(have.to_device(strict.Device("CPU_DEVICE")))
        np.testing.assert_allclose(on_host, each, rtol=rtol, atol=1e-6)


def test_the_gradient_is_that_of_finite_differences(digits, batch):
    parameters, images, targets = xf.tree.map(lambda x: np.asarray(x, float), batch)
    value, slope = xf.value_and_grad(digits.loss)(parameters, images, targets)
    step = 1e-6
    rng = np.random.default_rng(1)
    direction = xf.tree.map(lambda x: rng.normal(size=x.shape), parameters)
    ahead, behind = (
        digits.loss(xf.tree.map(lambda x, d, s=sign: x + s * step * d, parameters, direction), images, targets)
        for sign in (1, -1)
    )
    inner = sum(np.sum(a * b) for a, b in zip(xf.tree.leaves(slope), xf.tree.leaves(direction), strict=True))
    assert value == digits.loss(parameters, images, targets)
    np.testing.assert_allclose(inner, (ahead - behind) / (2 * step), rtol=1e-6)


@pytest.mark.parametrize("wrap", [lambda step: step, xf.trace], ids=["eager", "traced"])
def test_loss_and_gradient_on_another_device_equal_numpy(digits, batch, wrap):
    step = wrap(xf.value_and_grad(digits.loss))
    want = xf.value_and_grad(digits.loss)(*batch)
    for _ in range(2):  # recorded, then replayed
        assert_on_device_and_equal(step(*moved(batch)), want, rtol=2e-5)
    value, slope = step(*batch)  # NumPy again, through the same function
    np.testing.assert_allclose(value, want[0], rtol=1e-6)
    assert type(slope[0]["weight"]) is np.ndarray


def test_one_program_runs_on_either_device(digits, batch):
    step = xf.trace(xf.value_and_grad(digits.loss))
    want = step(*batch)
    program = step.program(*batch)
    leaves = xf.tree.leaves(batch)
    found = program.run(moved(leaves))
    found = [each.data if isinstance(each, xf.Array) else each for each in found]
    assert_on_device_and_equal(found, xf.tree.leaves(want), rtol=2e-5)


def test_the_layer_moves_the_loss_to_the_device(digits, batch):
    want = xf.value_and_grad(digits.loss)(*batch)
    value, slope = xf.value_and_grad(xf.Device("array_api_strict:device1")(digits.loss))(*batch)
    np.testing.assert_allclose(np.asarray(xf.to_numpy(value)), want[0], rtol=2e-6)
    for have, each in zip(xf.tree.leaves(slope), xf.tree.leaves(want[1]), strict=True):
        np.testing.assert_allclose(xf.to_numpy(have), each, rtol=2e-5, atol=1e-6)
