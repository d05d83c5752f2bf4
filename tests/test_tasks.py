"""Tasks of asyncio: each has a stack of its own, layers interleave, threads of a loop get a stack or bring one."""

import asyncio

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import xform as xf
import xform.numpy as xnp
from tests.test_concurrency import Log, X
from xform.core.errors import EscapedValueError, LayerError


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


def test_a_carried_function_takes_its_stack_along_to_threads_of_a_loop():
    """`run_in_executor` gives a thread no stack, `to_thread` that of its caller; a carried function brings its own."""

    async def main():
        loop = asyncio.get_running_loop()
        with Log() as layer:
            carried = xf.carry(lambda x: (xf.stack(), np.sin(xf.array(x))))
            bare = await loop.run_in_executor(None, xf.stack)
        with Log() as other:
            found = [
                await asyncio.to_thread(carried, X), await loop.run_in_executor(None, carried, X), carried(X),
            ]  # fmt: skip
            return layer, other, bare, found, xf.stack(), await asyncio.to_thread(xf.stack)

    layer, other, bare, found, here, there = asyncio.run(main())
    assert bare == ()
    assert here == there == (other,)
    assert [stack for stack, _ in found] == [(layer,)] * 3
    assert layer.log == ["Sin"] * 3
    assert other.log == []
    for _, value in found:
        assert_array_equal(value.data, np.sin(X))


def test_carried_work_in_threads_of_a_loop_is_recorded_by_the_tape():
    async def main():
        with xf.Grad() as tape:
            x = tape.attach(X)
            work = xf.carry(lambda k: np.sin(x) * k)
            loop = asyncio.get_running_loop()
            parts = await asyncio.gather(
                asyncio.to_thread(work, 1.0), loop.run_in_executor(None, work, 2.0), asyncio.to_thread(work, 3.0)
            )
            return tape.gradient(sum(parts[1:], parts[0]), x, np.ones(3))

    assert_allclose(asyncio.run(main()), 6 * np.cos(X))


def test_layers_interleave_across_tasks():
    """Layers of many kinds are held over every switch; each task finds its own, in its own order."""

    async def forward(k):
        with xf.named_scope(f"forward {k}"), xf.Forward() as layer:
            y = layer.attach(X, np.ones(3))
            for _ in range(4):
                y = np.sin(y) * k
                await asyncio.sleep(0)
                assert xf.stack() == (layer,)
                assert xf.current().scopes == (f"forward {k}",)
            return layer.tangent(y)

    async def backward(k):
        with xf.Profile() as profile, xf.Grad() as tape:
            y = x = tape.attach(X)
            for _ in range(4):
                y = np.sin(y) * k
                await asyncio.sleep(0)
                assert xf.stack() == (tape, profile)
            found = tape.gradient(y, x, np.ones(3))
        assert profile.calls("Sin") == 4
        return found

    async def nested(k):
        with xf.Grad() as below:
            x = below.attach(X)
            await asyncio.sleep(0)
            with xf.Forward() as above:
                y = np.sin(above.attach(x, np.ones(3))) * k
                await asyncio.sleep(0)
                assert xf.stack() == (above, below)
                slope = above.tangent(y)
            await asyncio.sleep(0)
            return below.gradient(slope, x, np.ones(3))

    async def main():
        tasks = [work(k) for k in (0.5, 1.0, 1.5) for work in (forward, backward, nested)]
        return await asyncio.gather(*tasks)

    found = asyncio.run(main())
    for n, k in enumerate((0.5, 1.0, 1.5)):
        y, slope = X, np.ones(3)
        for _ in range(4):
            slope, y = slope * np.cos(y) * k, np.sin(y) * k
        assert_allclose(found[3 * n], slope)
        assert_allclose(found[3 * n + 1], slope)
        assert_allclose(found[3 * n + 2], -k * np.sin(X))
    assert xf.stack() == ()


def test_carry_binds_a_coroutine_function_and_refuses_a_generator():
    async def work(x):
        await asyncio.sleep(0)
        return len(xf.stack()), float(x * 2.0)

    with xf.Grad():
        carried = xf.carry(work)
        with pytest.raises(LayerError, match=r"xf\.carry cannot decorate the generator function"):
            xf.carry(lambda: (yield))
    assert asyncio.run(carried(xf.array(1.0))) == (1, 2.0)
    assert xf.stack() == ()
