"""Threads: each has a stack of its own, nested gradients run side by side, values stay where they belong."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from typeguard import suppress_type_checks

import xform as xf
import xform.numpy as xnp
from xform.core.errors import EscapedValueError

X = np.array([0.3, -1.2, 2.0])


class Log(xf.Transformation):
    effect = "faithful"

    def __init__(self):
        self.log = []

    def interpret(self, op, values):
        self.log.append(op.name)
        return xf.apply(op, *values)


@pytest.fixture
def hasty():
    """Threads switch after every few bytecodes."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def in_threads(count, work):
    """Run `work(k)` in `count` threads that start together; raise what one of them raised."""
    barrier = threading.Barrier(count)

    def started(k):
        barrier.wait()
        return work(k)

    with ThreadPoolExecutor(count) as pool:
        return [future.result() for future in [pool.submit(started, k) for k in range(count)]]


def third(k):
    """Third derivative of sin(k x) exp(x), by three nested tapes."""
    return xf.grad(xf.grad(xf.grad(lambda x: np.sin(k * x) * np.exp(x))))(0.4)


def exact(k, order):
    """The derivative of that order of sin(k x) exp(x) at 0.4, in closed form."""
    z = 1 + k * 1j
    return (z**order * np.exp(z * 0.4)).imag


def test_nested_gradients_in_eight_threads(hasty):
    """4,000 runs, none of them wrong: each is compared, and leaves the stack empty."""
    runs = 500

    def work(k):
        with suppress_type_checks():  # its own state is shared by the threads, and it would take most of the time
            found = []
            for _ in range(runs):
                found.append(third(k + 1.0))
                assert xf.stack() == ()
        return found

    results = in_threads(8, work)
    assert sum(map(len, results)) == 4000
    for k, found in enumerate(results):
        assert_allclose(found, np.full(runs, exact(k + 1.0, 3)), rtol=1e-11)


def damped(k):
    return lambda x: np.sin(k * x) * np.exp(x)


def batched(derivative):
    """Return the derivative at 0.4, as the second lane of two."""
    return lambda: xf.vmap(derivative)(np.array([0.1, 0.4]))[1]


MIXTURES = {
    "jvp.jvp": (lambda f: xf.jvp(lambda x: xf.jvp(f, (x,), (1.0,))[1], (0.4,), (1.0,))[1], 2),
    "jvp.grad": (lambda f: xf.jvp(xf.grad(f), (0.4,), (1.0,))[1], 2),
    "grad.jvp": (lambda f: xf.grad(lambda x: xf.jvp(f, (x,), (1.0,))[1])(0.4), 2),
    "vmap.grad": (lambda f: batched(xf.grad(f))(), 1),
    "vmap.grad.grad": (lambda f: batched(xf.grad(xf.grad(f)))(), 2),
    "grad.vmap": (lambda f: xf.grad(lambda x: np.sum(xf.vmap(f)(x)))(np.array([0.1, 0.4]))[1], 1),
    "vmap.jvp.grad": (lambda f: batched(lambda x: xf.jvp(xf.grad(f), (x,), (1.0,))[1])(), 2),
    "hessian": (lambda f: xf.hessian(f)(0.4), 2),
    "trace.grad": (lambda f: xf.trace(xf.grad(f))(0.4), 1),
    "grad in a profile": (lambda f: xf.Profile()(xf.grad(f))(0.4), 1),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_nested_mixtures_in_eight_threads(hasty, name):
    make, order = MIXTURES[name]

    def work(k):
        with suppress_type_checks():
            return [make(damped(k + 1.0)) for _ in range(20)]

    for k, found in enumerate(in_threads(8, work)):
        assert_allclose(found, np.full(20, exact(k + 1.0, order)), rtol=1e-11)


def test_different_transformations_in_threads_at_a_time(hasty):
    """Each thread runs another mixture, all at once."""
    names = list(MIXTURES)

    def work(k):
        with suppress_type_checks():
            return [(name, MIXTURES[name][0](damped(1.5))) for name in (names[k:] + names[:k]) * 4]

    for found in in_threads(8, work):
        for name, each in found:
            assert_allclose(each, exact(1.5, MIXTURES[name][1]), rtol=1e-11, err_msg=name)


def test_one_function_and_one_trace_shared_by_threads(hasty):
    slope = xf.grad(lambda x: np.sum(np.sin(x) * x))
    traced = xf.trace(lambda x: np.sum(np.sin(x) * x))
    _, pullback = xf.vjp(np.sin, X)

    def work(k):
        x = X + k
        for _ in range(10):
            assert_allclose(slope(x), np.cos(x) * x + np.sin(x))
            assert_allclose(xf.grad(traced)(x), np.cos(x) * x + np.sin(x))
            assert_allclose(pullback(np.full(3, float(k)))[0], k * np.cos(X))

    in_threads(8, work)


def test_layers_and_scopes_of_threads_are_apart(hasty):
    def work(k):
        for _ in range(20):
            with xf.named_scope(f"thread {k}"), Log() as layer:
                xnp.sin(X)
                assert xf.stack() == (layer,)
                assert xf.current().scopes == (f"thread {k}",)
                xf.grad(lambda x: np.sum(np.cos(x)))(X)
            assert "Cos" in layer.log
        return xf.stack(), xf.current().scopes

    assert in_threads(8, work) == [((), ())] * 8


def test_one_layer_in_several_threads(hasty):
    layer = Log()

    def work(k):
        for _ in range(50):
            with layer:
                assert xf.stack() == (layer,)
                xnp.sin(X)
            assert xf.stack() == ()

    in_threads(4, work)
    assert layer.log == ["Sin"] * 200


@pytest.mark.parametrize("function", [
    lambda v: v + 1.0, np.sin, lambda v: X * v, lambda v: v.sum(), lambda v: xf.grad(lambda x: np.sum(x * v))(X),
])  # fmt: skip
def test_a_value_used_in_a_foreign_thread(function):
    with xf.Grad(name="mine") as tape, ThreadPoolExecutor(1) as pool:
        x = tape.attach(X)
        with pytest.raises(EscapedValueError, match=r"xf\.carry\(fn\)") as caught:
            pool.submit(lambda: function(x)).result()
        assert "mine" in str(caught.value)
        assert xf.stack() == (tape,)
        assert_array_equal(tape.gradient(np.sin(x), x, np.ones(3)), np.cos(X))


def owned(kind):
    """Return a layer of a kind, and what makes a value of it inside its block."""
    return {
        "Grad": lambda: ((layer := xf.Grad()), lambda: layer.attach(X)),
        "Forward": lambda: ((layer := xf.Forward()), lambda: layer.attach(X, X)),
        "Batch": lambda: ((layer := xf.Batch(3)), lambda: layer.attach(X)),
        "Trace": lambda: ((layer := xf.Trace()), lambda: layer.input(X)),
    }[kind]()


@pytest.mark.parametrize("kind", ["Grad", "Forward", "Batch", "Trace"])
def test_a_value_of_every_wrapping_layer_stays_in_its_thread_or_is_carried(kind):
    layer, make = owned(kind)
    with layer, ThreadPoolExecutor(1) as pool:
        value = make()
        for use in (lambda: value * 2.0, lambda: np.sin(value), lambda: xf.grad(lambda x: np.sum(x * value))(X)):
            with pytest.raises(EscapedValueError, match=rf"{kind}.*not active.*in another thread.*xf\.carry\(fn\)"):
                pool.submit(use).result()
        assert pool.submit(lambda: value.shape).result() == value.shape  # what is no operation can be read
        carried = pool.submit(xf.carry(lambda: value * 2.0)).result()
        assert type(carried) is type(value)
        assert pool.submit(xf.stack).result() == ()
        assert xf.stack() == (layer,)
    assert_array_equal(xf.concrete(carried), 2.0 * X)


def test_carry_binds_a_function_to_the_stack():
    with Log() as layer:
        with ThreadPoolExecutor(2) as pool:
            assert pool.submit(xf.stack).result() == ()
            assert pool.submit(xf.carry(xf.stack)).result() == (layer,)
            assert pool.submit(xf.stack).result() == ()
        carried = xf.carry(xf.stack)
    assert carried() == (layer,)
    assert xf.stack() == ()


def test_carried_work_is_recorded_by_the_tape():
    with xf.Grad() as tape, ThreadPoolExecutor(4) as pool, xf.named_scope("s"):
        x = tape.attach(X)
        parts = list(pool.map(xf.carry(lambda k: np.sin(x) * k), [1.0, 2.0, 3.0]))
        assert pool.submit(xf.carry(lambda: xf.current().scopes)).result() == ("s",)
        found = tape.gradient(parts[0] + parts[1] + parts[2], x, np.ones(3))
    assert_allclose(found, 6 * np.cos(X))
    with pytest.raises(KeyError), ThreadPoolExecutor(1) as pool:
        pool.submit(xf.carry(lambda: {}["missing"])).result()


def test_a_pullback_in_another_thread():
    _, pullback = xf.vjp(np.sin, X)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda k: pullback(k * np.ones(3))[0], [1.0, 2.0, 3.0]))
    assert_allclose(found, np.outer([1, 2, 3], np.cos(X)))


# ------------------------------------------------------------------ the first use of all

COLD = """
import sys, threading
import numpy as np
import xform as xf
sys.setswitchinterval(1e-6)
x = np.ones(2)
first = [
    lambda: xf.hessian(lambda x: np.sum(x**3))(x)[0, 0] == 6.0, lambda: xf.vmap(np.sin)(x)[0] == np.sin(1.0),
    lambda: xf.grad(np.sin)(0.0) == 1.0, lambda: xf.trace(np.exp)(0.0) == 1.0,
    lambda: xf.jvp(np.sin, (0.0,), (2.0,))[1] == 2.0, lambda: xf.Profile()(np.sin)(0.0) == 0.0,
    lambda: float(xf.array(1.0) + 1.0) == 2.0, lambda: xf.Device("cpu")(np.cos)(0.0) == 1.0,
]
barrier, found = threading.Barrier(len(first)), []
def work(run):
    barrier.wait()
    found.append(bool(run()))
threads = [threading.Thread(target=work, args=(run,)) for run in first]
[thread.start() for thread in threads], [thread.join() for thread in threads]
assert found == [True] * len(first), found
"""


def test_the_first_use_may_be_in_many_threads_at_a_time():
    """Names load when they are first asked for: no thread may see a module that is half made."""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", COLD], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
