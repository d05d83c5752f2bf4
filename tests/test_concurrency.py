"""Threads and tasks: each has a stack of its own, nested gradients run side by side, values stay where they belong."""

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

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


def test_nested_gradients_in_eight_threads(hasty):
    def work(k):
        found = []
        for _ in range(10):
            found.append(third(k + 1.0))
            assert xf.stack() == ()
        return found

    for k, found in enumerate(in_threads(8, work)):
        z = 1 + (k + 1.0) * 1j
        assert_allclose(found, (z**3 * np.exp(z * 0.4)).imag, rtol=1e-11)


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


# ------------------------------------------------------------------ asyncio


def test_tasks_have_stacks_of_their_own():
    async def task(k):
        with Log() as layer, xf.named_scope(f"task {k}"):
            for _ in range(5):
                await asyncio.sleep(0)
                xnp.sin(X)
                assert xf.stack() == (layer,)
                assert xf.current().scopes == (f"task {k}",)
        return layer.log.count("Sin")

    async def run():
        with Log() as outer:
            counts = await asyncio.gather(*[task_above(outer, k) for k in range(5)])
            assert xf.stack() == (outer,)
        return counts

    async def task_above(outer, k):
        assert xf.stack() == (outer,)  # a task starts on the stack of its maker
        return await asyncio.create_task(task_on(outer, k))

    async def task_on(outer, k):
        with Log() as layer:
            await asyncio.sleep(0)
            xnp.cos(X)
            assert xf.stack() == (layer, outer)
        return layer.log.count("Cos")

    async def main():
        return await asyncio.gather(*[task(k) for k in range(5)]), await run()

    assert asyncio.run(main()) == ([5] * 5, [1] * 5)
    assert xf.stack() == ()


def test_gradients_in_interleaved_tasks():
    async def slope(k):
        with xf.Grad() as tape:
            x = tape.attach(X)
            y = np.sin(x)
            await asyncio.sleep(0)
            y = y * k
            await asyncio.sleep(0)
            assert xf.stack() == (tape,)
            found = tape.gradient(y, x, np.ones(3))
        await asyncio.sleep(0)
        return found

    async def main():
        return await asyncio.gather(*[slope(float(k)) for k in range(5)])

    assert_allclose(asyncio.run(main()), np.outer(range(5), np.cos(X)))


def test_a_value_used_in_a_foreign_task():
    async def main():
        started, values = asyncio.Event(), []

        async def owner():
            with xf.Grad() as tape:
                values.append(tape.attach(X))
                started.set()
                await asyncio.sleep(0.01)

        async def other():
            await started.wait()
            with pytest.raises(EscapedValueError, match=r"xf\.carry"):
                values[0] + 1.0

        await asyncio.gather(owner(), other())

    asyncio.run(main())


def test_to_thread_carries_the_stack_as_context_variables_do():
    async def main():
        with Log() as layer:
            return layer, await asyncio.to_thread(xf.stack)

    layer, found = asyncio.run(main())
    assert found == (layer,)
