"""xf.NanGuard: who made a NaN or an infinity, where, and who only passed it on."""

import warnings

import array_api_strict as strict
import attrs
import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from xform.core.errors import NanError
from xform.core.place import place
from xform.transforms.nan_guard import contents, is_finite


@pytest.fixture(autouse=True)
def quiet():
    with np.errstate(all="ignore"):
        yield


def here():
    import sys

    return sys._getframe(1).f_lineno


def test_names_operator_phase_and_line():
    x = xf.array(np.array([1.0, 0.0, 2.0]))
    lines = []

    def compute():
        y = x + 1.0
        lines.append(here() + 1)
        z = xnp.log(x)
        return y + z

    with pytest.raises(NanError) as caught, xf.NanGuard():
        compute()
    error = caught.value
    assert error.op == xf.ops.Log()
    assert error.phase == "forward"
    assert error.site == (__file__, lines[0])
    assert isinstance(error, FloatingPointError)
    text = str(error)
    assert "Log made -inf at (1,), in 1 of 3 elements" in text
    assert "forward" in text
    assert "z = xnp.log(x)" in text
    assert "float64[3] from 0 to 2" in text


def test_the_stack_is_as_before():
    with pytest.raises(NanError), xf.NanGuard():
        xnp.log(xf.array(0.0))
    assert xf.stack() == ()


def test_scope_is_named():
    with pytest.raises(NanError, match="scope layer1/head") as caught:  # noqa: SIM117
        with xf.NanGuard(), xf.named_scope("layer1"), xf.named_scope("head"):
            xnp.log(xf.array(0.0))
    assert caught.value.scopes == ("layer1", "head")


def test_backward_names_the_forward_line():
    """sqrt is finite at 0, its derivative is not: the backward of that line made the infinity."""
    lines = []

    def loss(x):
        lines.append(here() + 1)
        h = xnp.sqrt(x)
        return xnp.sum(h * 2.0)

    with pytest.raises(NanError) as caught, xf.NanGuard():
        xf.grad(loss)(np.array([0.0, 1.0]))
    error = caught.value
    assert error.phase == "backward"
    assert error.site == (__file__, lines[0])
    assert error.scopes[-1] == "Sqrt.Backward"
    assert error.op.name == "Div"
    assert "h = xnp.sqrt(x)" in str(error)


def test_above_a_tape_it_sees_the_users_operations():
    def loss(x):
        with xf.NanGuard():
            return xnp.log(x)

    with pytest.raises(NanError, match="Log made"):
        xf.grad(loss)(0.0)


def test_as_decorator():
    guarded = xf.NanGuard()(lambda x: np.log(x))
    assert guarded(np.array(1.0)) == 0.0
    with pytest.raises(NanError, match="Log"):
        guarded(np.array(-1.0))


def test_producers_and_propagators_are_told_apart():
    guard = xf.NanGuard(mode="warn")
    with pytest.warns(RuntimeWarning) as caught:
        guard(lambda x: (np.log(x) + 1.0) * 2.0 + 3.0)(np.array([-1.0, 1.0]))
    assert [origin.op for origin in guard.producers] == ["Log"]
    assert guard.producers[0].kind == "NaN"
    assert dict(guard.propagators) == {"Add": 2, "Mul": 1}
    assert len(caught) == 1
    assert caught[0].filename == __file__
    report = guard.report()
    assert "Log made nan at (0,), in 1 of 2 elements" in report
    assert "passed on by Add 2, Mul 1" in report


def test_warns_once_per_line_and_counts():
    guard = xf.NanGuard(mode="warn")
    with pytest.warns(RuntimeWarning) as caught:
        guard(lambda x: [np.log(x) for _ in range(3)])(np.array(0.0))
    assert len(caught) == 1
    assert len(guard.producers) == 1
    assert "(3 times)" in guard.report()


def test_nan_out_of_infinities_is_a_producer():
    inf = xf.array(np.array(np.inf))
    with pytest.raises(NanError, match="Sub made nan"), xf.NanGuard():
        inf - inf
    with pytest.raises(NanError, match="Sub made nan"), xf.NanGuard(inf=False):
        inf - inf


def test_infinity_that_came_in_is_passed_on():
    with xf.NanGuard() as guard:
        y = xf.array(np.array([np.inf, 1.0])) + 1.0
        assert not np.isfinite(np.asarray(y)).all()
    assert guard.producers == []
    assert dict(guard.propagators) == {"Add": 1}
    assert "inf came in from outside, first to Add at" in guard.report()


def test_a_python_number_is_an_operand():
    with xf.NanGuard() as guard:
        xf.array(np.ones(2)) + float("nan")
    assert dict(guard.propagators) == {"Add": 1}


def test_inf_false_looks_for_nan_alone():
    with xf.NanGuard(inf=False) as guard:
        y = xnp.log(xf.array(0.0))
        assert float(y) == -np.inf
    assert guard.producers == []
    assert guard.report() == "no NaN was made"
    with pytest.raises(NanError), xf.NanGuard(inf=False):
        xnp.log(xf.array(-1.0))


@attrs.frozen
class Fill(xf.Operator):
    fill: float

    def evaluate(self, xp, x):
        return xp.full_like(x, self.fill)


def test_an_infinity_that_was_asked_for_is_none_of_its_business():
    with xf.NanGuard() as guard:
        xf.apply(Fill(np.inf), xf.array(np.ones(2)))
    assert guard.report() == "no NaN and no infinity was made"
    with pytest.raises(NanError, match="Fill"), xf.NanGuard():
        xf.apply(Fill(1e39), xf.array(np.ones(2, np.float32)))


def test_reads_and_scopes_are_ignored():
    x = xf.array(np.array(np.nan))
    with xf.NanGuard() as guard, xf.named_scope("s"):
        assert np.isnan(float(x))
        assert np.isnan(np.asarray(x))
    assert not guard.producers
    assert not guard.propagators


def test_integers_are_ignored():
    with xf.NanGuard() as guard:
        xf.array(np.array([2**62, 2**62])) + 2**62
        xf.array(np.array(1)) > 0
    assert not guard.producers


def test_iteration_is_named():
    token = place.set(attrs.evolve(place.get(), loop="while_loop", iteration=3))
    try:
        with pytest.raises(NanError, match="loop while_loop iteration 3"), xf.NanGuard():
            xnp.log(xf.array(0.0))
    finally:
        place.reset(token)


def test_several_outputs_say_which():
    class Two(xf.Operator):
        multiple_outputs = True

        def evaluate(self, xp, x):
            return x, x / 0.0

    with pytest.raises(NanError, match=r"Two.*made .*inf.* in output 1"), xf.NanGuard():
        xf.apply(Two(), xf.array(np.ones(2)))


def test_other_libraries():
    x = xf.array(strict.asarray(np.array([1.0, 0.0]), device=strict.Device("device1")))
    with pytest.raises(NanError, match="Log made inf"), xf.NanGuard():
        xnp.log(x)
    with xf.NanGuard() as guard:
        x + 1.0
    assert not guard.producers


def test_where_numpy_raises_the_error_is_noted():
    with np.errstate(all="raise"), pytest.raises(FloatingPointError) as caught, xf.NanGuard():
        xnp.log(xf.array(0.0))
    assert "raised by Log() in the forward phase" in caught.value.__notes__[0]
    with np.errstate(all="warn"), warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning) as warned, xf.NanGuard():
            xnp.log(xf.array(0.0))
    assert "raised by Log()" in warned.value.__notes__[0]


def test_a_fit_in_plain_numpy():
    """A while loop in plain NumPy that diverges: the guard names where."""

    def fit(w):
        steps = 0
        while steps < 2000:
            w = w - 10.0 * w * w * w
            steps += 1
        return w

    with pytest.raises(NanError) as caught:
        xf.NanGuard()(fit)(np.array(2.0))
    assert caught.value.op.name in ("Mul", "Sub")
    assert "w = w - 10.0 * w * w * w" in str(caught.value)


@pytest.mark.parametrize("mode", ["print", "Raise"])
def test_mode_is_checked(mode):
    with pytest.raises(ValueError, match="raise"):
        xf.NanGuard(mode=mode)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64, np.complex128])
@pytest.mark.parametrize("size", [0, 1, 5, 20_000])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_is_finite(dtype, size, bad):
    x = np.full(size, np.finfo(dtype).max, dtype)
    assert is_finite(x)
    assert contents(x) == (False, False)
    if size:
        x[size // 2] = bad
        assert not is_finite(x)
        assert contents(x) == (bool(np.isnan(bad)), bool(np.isinf(bad)))


def test_is_finite_of_views_and_scalars():
    x = np.ones((200, 200))
    x[3, 5] = np.nan
    assert is_finite(x[:, ::2])
    assert not is_finite(x.T)
    assert not is_finite(x[:, 5])
    assert not is_finite(np.float32(np.inf))
    assert not is_finite(complex(0, float("nan")))
    assert is_finite(2)
    assert is_finite("text")
    assert is_finite(np.array(["text"]))
