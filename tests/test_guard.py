"""The guard of saved arrays: what NumPy changes between forward and backward is noticed."""

import copy
import gc
import weakref

import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from xform.core.errors import GradientError, SavedArrayError

MODES = ("sample", "full")
B = np.array([2.0, 3.0, 4.0])

SAVING = {  # operations that keep the attached array, or one that they take in
    "Mul": lambda x: xnp.sum(x * x),
    "Sin": lambda x: xnp.sum(xnp.sin(x)),
    "Prod": lambda x: xnp.prod(x),
    "Power": lambda x: xnp.sum(x**3),
    "Matmul": lambda x: xnp.sum(xnp.outer(x, x) @ np.ones((3, 2))),
    "Norm": lambda x: xnp.linalg.norm(x),
    "Where": lambda x: xnp.sum(xnp.where(x > 1.5, x * x, x)),
    "plain numpy": lambda x: np.sum(np.multiply(x, x)),
}
LINEAR = {
    "Add": lambda x: xnp.sum(x + 1.0),
    "Sum": lambda x: xnp.mean(x),
    "Index": lambda x: x[1],
    "Concatenate": lambda x: xnp.sum(xnp.concatenate([x, x])),
    "Neg": lambda x: xnp.sum(-x),
}
USES = [lambda x, b: x * b, lambda x, b: b * x, lambda x, b: x / b, lambda x, b: b @ x, lambda x, b: x**b]


def record(fun, x0, mode):
    with xf.Grad(guard=mode) as tape:
        x = tape.attach(x0)
        y = fun(x)
    return tape, x, y


def x_of(size=3):
    return np.arange(1.0, size + 1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SAVING)
def test_a_changed_input_is_an_error_that_names_it(name, mode):
    xf.grad(SAVING[name])(x_of())  # the first use of an operator takes the general path
    x0 = x_of()
    tape, x, y = record(SAVING[name], x0, mode)
    x0[...] = 0
    with pytest.raises(SavedArrayError, match="was changed since") as caught:
        tape.gradient(y, x)
    assert "tests/test_guard.py:" in str(caught.value)
    assert "float64[3" in str(caught.value)
    assert np.shares_memory(caught.value.value, x0)
    assert isinstance(caught.value, GradientError)


@pytest.mark.parametrize("mode", MODES)
def test_the_error_names_operator_and_saving_line(mode):
    x0 = x_of()
    with xf.Grad(guard=mode) as tape:
        x = tape.attach(x0)
        z = x + 1.0
        y = xnp.sum(z * B * x)  # this line saves
    x0[0] = 9.0
    with pytest.raises(SavedArrayError, match=r"that Mul has saved .*saved at .*sum\(z \* B \* x\)"):
        tape.gradient(y, x)


@pytest.mark.parametrize("mode", [*MODES, "off"])
@pytest.mark.parametrize("name", LINEAR)
def test_what_nothing_saves_may_change(name, mode):
    x0 = x_of()
    want = xf.grad(LINEAR[name])(x_of())
    tape, x, y = record(LINEAR[name], x0, mode)
    x0[...] = 0
    np.testing.assert_array_equal(tape.gradient(y, x), want)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("use", USES)
def test_an_operand_that_is_not_tracked_is_guarded_too(use, mode):
    b = B.copy()
    tape, x, y = record(lambda x: xnp.sum(use(x, b)), x_of(), mode)
    b += 1.0
    with pytest.raises(SavedArrayError, match="was changed"):
        tape.gradient(y, x)


@pytest.mark.parametrize("mode", MODES)
def test_an_array_that_the_walk_does_not_read_may_change(mode):
    x0, b = x_of(), B.copy()
    with xf.Grad(guard=mode) as tape:
        x = tape.attach(x0)
        dead = x * b  # no output depends on it
        y = xnp.sum(x * 2.0)
    b[...] = 0.0
    np.testing.assert_array_equal(tape.gradient(y, x), [2.0, 2.0, 2.0])
    assert dead is not None


def test_off_looks_at_nothing():
    x0 = x_of()
    tape, x, y = record(SAVING["Mul"], x0, "off")
    x0[...] = 0.0
    np.testing.assert_array_equal(tape.gradient(y, x), np.zeros(3))


def test_full_sees_one_element_of_many_and_sample_sees_a_rewritten_array():
    for index, seen in ((np.s_[501], "full"), (np.s_[...], "sample")):
        for mode in MODES:
            x0 = np.ones((100, 100))
            tape, x, y = record(SAVING["Mul"], x0, mode)
            x0.reshape(-1)[index] = 5.0
            if mode in ("full", seen):
                with pytest.raises(SavedArrayError):
                    tape.gradient(y, x)


def test_full_guards_results_of_operations_too():
    with xf.Grad(guard="full") as tape:
        x = tape.attach(x_of())
        h = xnp.exp(x)
        y = xnp.sum(h * h)
    xf.concrete(h)[0] = 0.0
    with pytest.raises(SavedArrayError, match=r"Exp|Mul"):
        tape.gradient(y, x)


@pytest.mark.parametrize("mode", MODES)
def test_a_change_through_a_view_or_the_base_is_seen(mode):
    base = np.zeros((3, 3))
    base[1] = x_of()
    tape, x, y = record(SAVING["Mul"], base[1], mode)
    base[:, 2] = -1.0
    with pytest.raises(SavedArrayError):
        tape.gradient(y, x)


@pytest.mark.parametrize("mode", MODES)
def test_after_the_error_the_array_can_be_put_back(mode):
    x0 = x_of()
    tape, x, y = record(SAVING["Mul"], x0, mode)
    kept = x0.copy()
    x0[...] = 0.0
    with pytest.raises(SavedArrayError):
        tape.gradient(y, x)
    assert xf.stack() == ()
    x0[...] = kept
    np.testing.assert_array_equal(tape.gradient(y, x), 2 * kept)


def test_a_pullback_looks_at_each_call():
    x0 = x_of()
    _, pull = xf.vjp(SAVING["Mul"], x0)
    np.testing.assert_array_equal(pull(1.0)[0], 2 * x0)
    x0 += 1.0
    with pytest.raises(SavedArrayError):
        pull(1.0)


def test_training_in_place_is_no_fault():
    w = x_of()
    step = xf.value_and_grad(SAVING["Mul"])
    for _ in range(3):
        w -= 0.1 * step(w)[1]
    np.testing.assert_allclose(w, x_of() * 0.8**3)


@pytest.mark.parametrize("layer", [xf.Profile, xf.NanGuard, xf.Grad, xf.Forward, xf.Trace])
@pytest.mark.parametrize("mode", MODES)
def test_above_other_layers(layer, mode):
    x0 = x_of()
    with layer():
        tape, x, y = record(SAVING["Mul"], x0, mode)
        x0[...] = 0.0
        with pytest.raises(SavedArrayError, match="Mul"):
            tape.gradient(y, x)


@pytest.mark.parametrize("mode", MODES)
def test_below_other_layers(mode):
    x0 = x_of()
    with xf.Grad(guard=mode) as tape:
        x = tape.attach(x0)
        with xf.Grad():
            y = SAVING["Mul"](x)
    x0[...] = 0.0
    with pytest.raises(SavedArrayError):
        tape.gradient(y, x)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.complex128])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 70)])
@pytest.mark.parametrize("mode", MODES)
def test_dtypes_and_shapes(dtype, shape, mode):
    x0 = np.ones(shape, dtype)
    tape, x, y = record(lambda x: x * x, x0, mode)
    assert tape.gradient(y, x, np.ones(shape, dtype), retain=True).dtype == dtype
    x0[...] = 3
    if x0.size:
        with pytest.raises(SavedArrayError):
            tape.gradient(y, x, np.ones(shape, dtype))


def test_nan_is_no_change():
    x0 = np.array([np.nan, 1.0])
    tape, x, y = record(SAVING["Mul"], x0, "sample")
    np.testing.assert_array_equal(tape.gradient(y, x), [np.nan, 2.0])


@pytest.mark.parametrize("mode", MODES)
def test_the_guard_keeps_no_array_alive(mode):
    b = B.copy()
    alive = weakref.ref(b)
    with xf.Grad(guard=mode) as tape:
        x = tape.attach(x_of())
        y = x * b
    del b, y
    gc.collect()
    assert alive() is None
    assert tape is not None


def test_an_unknown_guard_is_an_error():
    with pytest.raises(GradientError, match="'sample'"):
        xf.Grad(guard="always")


def test_a_guarded_gradient_is_the_same():
    for name, fun in (SAVING | LINEAR).items():
        want = xf.grad(fun)(x_of())
        tape, x, y = record(fun, x_of(), "full")
        np.testing.assert_array_equal(copy.copy(tape.gradient(y, x)), want, err_msg=name)


@pytest.mark.parametrize("guard", ["sample", "full"])
def test_residuals_of_a_users_rule_that_are_no_operands(guard):
    w = np.array([2.0, 3.0])
    scaled = xf.custom_gradient(lambda a: (a * w, w), lambda kept, t: t * kept)
    with xf.Grad(guard=guard) as tape:
        x = tape.attach(np.ones(2))
        y = scaled(x).sum()
    w *= 10.0
    with pytest.raises(SavedArrayError, match="that CustomBackward has saved"):
        tape.gradient(y, x)


@pytest.mark.parametrize("read", [np.asarray, xf.to_numpy, xf.stop_gradient, lambda y: xf.stop_gradient(y)[:1]])
@pytest.mark.parametrize("guard", ["sample", "full"])
def test_a_value_that_is_read_after_the_block_and_written_to(read, guard):
    with xf.Grad(guard=guard) as tape:
        x = tape.attach(np.array([1.0, 2.0]))
        y = x * 3.0
        z = (y * y).sum()
    read(y)[...] = 0.0
    with pytest.raises(SavedArrayError):
        tape.gradient(z, x)
