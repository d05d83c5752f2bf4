"""Ratios of xform to hand-written NumPy, interleaved in one process; no assertion depends on the clock.

    OMP_NUM_THREADS=1 python tests/benchmarks/run.py [W1 W2 W3 W4 W6 W7 W8]

Candidates of a workload are first checked against the hand-written result, then timed in random order, round by round;
printed is the median of CPU times, and its ratio to hand-written NumPy. W6 and W7 need processes of their own.
"""

import contextlib
import gc
import itertools
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

import xform as xf
import xform.numpy as xnp

Candidates = dict[str, Callable[[], object]]


class Identity(xf.Transformation):
    """The simplest user layer."""

    def interpret(self, op, values):
        return xf.apply(op, *values)


def interleaved(candidates: Candidates, rounds: int = 41, target: float = 0.002) -> dict[str, float]:
    """Return the median CPU seconds of a call, candidates in random order in each round."""
    repeats, samples = {}, {name: [] for name in candidates}
    for name, run in candidates.items():
        run()
        start = time.perf_counter()
        run()
        repeats[name] = max(1, round(target / (time.perf_counter() - start)))
    gc.collect()
    order, rng = list(candidates), random.Random(0)
    for _ in range(rounds):
        rng.shuffle(order)
        for name in order:
            run, count = candidates[name], repeats[name]
            start = time.process_time()
            for _ in range(count):
                run()
            samples[name].append((time.process_time() - start) / count)
    return {name: statistics.median(times) for name, times in samples.items()}


def report(
    title: str, candidates: Candidates, base: str, targets: dict[str, str] | None = None, rounds: int = 41
) -> None:
    """Check that all candidates agree, time them, print a table."""
    reference = [np.asarray(part) for part in flat(candidates[base]())]
    for name, run in candidates.items():
        for have, want in zip(flat(run()), reference, strict=True):
            found = np.squeeze(np.asarray(have))
            np.testing.assert_allclose(found, np.squeeze(want), rtol=1e-4, atol=1e-9, err_msg=name)
    times = interleaved(candidates, rounds)
    print(f"\n{title}")
    for name, seconds in times.items():
        goal = (targets or {}).get(name, "")
        print(f"  {name:34s} {seconds * 1e6:10.1f} us   x {seconds / times[base]:5.2f}   {goal}")


def flat(result: object) -> list[object]:
    """Return the arrays of a result."""
    return xf.tree.leaves(result)


def compiled(fun: Callable[..., object], *args: object) -> Callable[..., list]:
    """Return a function of flat arguments as one compiled program."""
    return xf.compile_program(xf.make_program(fun)(*args))


# ------------------------------------------------------------------ workloads


def chain(library, x, b, c):
    """100 small operations."""
    for _ in range(25):
        x = x + b
        x = x * c
        x = library.tanh(x)
        x = x - b
    return x


def w1() -> None:
    """100 operations on 10 numbers: forward, under layers, and the gradient."""
    rng = np.random.default_rng(0)
    x, b, c = rng.normal(size=10), rng.normal(size=10) * 0.1, 1 + rng.normal(size=10) * 0.1
    tracked = [xf.array(each) for each in (x, b, c)]

    def hand():
        y, saved = x, []
        for _ in range(25):
            y = y + b
            y = y * c
            t = np.tanh(y)
            saved.append(t)
            y = t - b
        cotangent = np.ones(10)
        for t in reversed(saved):
            cotangent = cotangent * (1 - t * t)
            cotangent = cotangent * c
        return y.sum(), cotangent

    def under(layers):
        def run():
            with contextlib.ExitStack() as block:
                for _ in range(layers):
                    block.enter_context(Identity())
                return chain(xnp, *tracked)

        return run

    def observed():
        with Quiet():
            return chain(xnp, *tracked)

    report(
        "W1 forward, 100 operations on (10,)",
        {
            "NumPy": lambda: chain(np, x, b, c),
            "xform, empty stack": lambda: chain(xnp, *tracked),
            "xform, 1 user layer": under(1),
            "xform, 3 user layers": under(3),
            "xform, 1 observer": observed,
        },
        "NumPy",
        {
            "xform, empty stack": "<= 1.8",
            "xform, 1 user layer": "<= +2.5",
            "xform, 3 user layers": "<= +1.5 each further",
        },
    )
    gradient = xf.value_and_grad(lambda y: xnp.sum(chain(xnp, y, *tracked[1:])))
    program = compiled(xf.value_and_grad(lambda y: xnp.sum(chain(xnp, y, b, c))), x)
    report(
        "W1 value and gradient",
        {
            "hand-written": hand,
            "xform, eager": lambda: gradient(tracked[0]),
            "xform, compiled": lambda: program(x),
        },
        "hand-written",
        {"xform, eager": "<= 2.3", "xform, compiled": "<= 0.8"},
    )


class Quiet(xf.Observer):
    """An observer that does nothing."""

    def observe(self, op, inputs, outputs):
        """Look away."""


def w2() -> None:
    """Value and gradient of a three-layer perceptron, float32, batch of 128, and the update."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(128, 784)).astype(np.float32)
    targets = np.eye(10, dtype=np.float32)[rng.integers(0, 10, 128)]
    sizes = [784, 256, 128, 10]
    start = []
    for inputs, outputs in itertools.pairwise(sizes):
        weights = rng.normal(size=(inputs, outputs)) * np.sqrt(2 / inputs)
        start += [weights.astype(np.float32), np.zeros(outputs, np.float32)]
    rate, count = np.float32(0.01), np.float32(1 / 128)

    def hand(w1, b1, w2, b2, w3, b3):  # noqa: PLR0917  (as users write it)
        z1 = images @ w1
        z1 += b1
        np.maximum(z1, 0, out=z1)
        z2 = z1 @ w2
        z2 += b2
        np.maximum(z2, 0, out=z2)
        z3 = z2 @ w3
        z3 += b3
        z3 -= z3.max(1, keepdims=True)
        e = np.exp(z3)
        total = e.sum(1, keepdims=True)
        value = (np.log(total).sum() - (z3 * targets).sum()) * count
        e /= total
        e -= targets
        e *= count
        t2 = e @ w3.T
        t2 *= z2 > 0
        t1 = t2 @ w2.T
        t1 *= z1 > 0
        return value, (images.T @ t1, t1.sum(0), z1.T @ t2, t2.sum(0), z2.T @ e, e.sum(0))

    def loss(w1, b1, w2, b2, w3, b3):  # noqa: PLR0917  (as users write it)
        h = xnp.maximum(images @ w1 + b1, 0)
        h = xnp.maximum(h @ w2 + b2, 0)
        z = h @ w3 + b3
        s = z - xf.stop_gradient(xnp.max(z, axis=1, keepdims=True))
        return xnp.mean(xnp.log(xnp.sum(xnp.exp(s), axis=1)) - xnp.sum(s * targets, axis=1))

    def stepper(both):
        parameters = [each.copy() for each in start]

        def step():
            _, found = both(*parameters)
            for parameter, cotangent in zip(parameters, found, strict=True):
                parameter -= rate * np.asarray(cotangent)  # noqa: PLW2901  (in place)
            return ()

        return step

    eager = xf.value_and_grad(loss, argnums=tuple(range(6)))
    program = compiled(eager, *start)

    def fast(*parameters):
        value, *found = program(*parameters)
        return value, found

    for each in (eager, fast):
        for have, want in zip(flat(each(*start)), flat(hand(*start)), strict=True):
            np.testing.assert_allclose(have, want, rtol=2e-3, atol=1e-5)
    report(
        "W2 step of a perceptron 784-256-128-10, float32",
        {"hand-written": stepper(hand), "xform, eager": stepper(eager), "xform, compiled": stepper(fast)},
        "hand-written",
        {"xform, eager": "<= 1.12", "xform, compiled": "<= 1.05"},
    )


def w3() -> None:
    """Value and gradients of a recurrent network, 200 steps of width 16."""
    rng = np.random.default_rng(0)
    xs = list(rng.normal(size=(200, 1, 8)))
    weights = [
        rng.normal(size=(8, 16)) * 0.3,
        rng.normal(size=(16, 16)) * 0.25,
        np.zeros(16),
        rng.normal(size=(16, 1)) * 0.3,
    ]
    target, first = np.array([[0.7]]), np.zeros((1, 16))

    def hand():
        wx, wh, b, wo = weights
        h, states = first, [first]
        for x in xs:
            h = np.tanh(x @ wx + h @ wh + b)
            states.append(h)
        error = h @ wo - target
        e2 = 2 * error
        gwo, t = h.T @ e2, e2 @ wo.T
        gwx, gwh, gb, whT = np.zeros_like(wx), np.zeros_like(wh), np.zeros_like(b), wh.T
        for step in range(len(xs) - 1, -1, -1):
            h = states[step + 1]
            t = t * (1 - h * h)
            gb = gb + t.sum(0)
            gwx = gwx + xs[step].T @ t
            gwh = gwh + states[step].T @ t
            t = t @ whT
        return (error * error).sum(), (gwx, gwh, gb, gwo)

    def loss(wx, wh, b, wo):
        h = first
        for x in xs:
            h = xnp.tanh(x @ wx + h @ wh + b)
        d = h @ wo - target
        return xnp.sum(d * d)

    eager = xf.value_and_grad(loss, argnums=(0, 1, 2, 3))
    program = compiled(eager, *weights)
    report(
        "W3 recurrent network, 200 steps",
        {
            "hand-written": hand,
            "xform, eager": lambda: eager(*weights),
            "xform, compiled": lambda: program(*weights),
        },
        "hand-written",
        {"xform, eager": "<= 1.4", "xform, compiled": "<= 0.6"},
    )


def w4() -> None:
    """Gradient of an elementwise function on 10 million numbers: hand-written plainly, and in blocks."""
    x = np.random.default_rng(1).normal(size=10_000_000)
    kept, block = np.empty_like(x), 16384

    def hand():
        t = np.tanh(x)
        cotangent = t + x * (1 - t * t)
        cotangent -= 2 * x * np.exp(-x * x)
        cotangent -= 0.5 * np.sign(x) / np.sqrt(np.abs(x) + 1)
        return cotangent

    def blocked():
        first, second = np.empty(block), np.empty(block)
        for start in range(0, x.size, block):
            a, t = x[start : start + block], kept[start : start + block]
            w, u = first[: a.size], second[: a.size]
            np.tanh(a, t)
            np.multiply(t, t, w)
            np.subtract(1.0, w, w)
            np.multiply(w, a, w)
            np.add(t, w, t)
            np.multiply(a, a, w)
            np.negative(w, w)
            np.exp(w, w)
            np.multiply(w, a, w)
            np.multiply(w, 2.0, w)
            np.subtract(t, w, t)
            np.abs(a, w)
            np.add(w, 1.0, w)
            np.sqrt(w, w)
            np.sign(a, u)
            np.divide(u, w, u)
            np.multiply(u, 0.5, u)
            np.subtract(t, u, t)
        return kept

    def loss(x):
        return xnp.sum(xnp.tanh(x) * x + xnp.exp(-x * x) - xnp.sqrt(xnp.abs(x) + 1.0))

    program = compiled(xf.grad(loss), x)
    report(
        "W4 gradient of an elementwise function, 10M numbers",
        {"hand-written": hand, "hand-written, blocks": blocked, "xform, compiled": lambda: program(x)},
        "hand-written, blocks",
        {"xform, compiled": "<= 1.15 x jax.jit"},
        rounds=7,
    )


def w8() -> None:
    """Hessian of Rosenbrock's function of 20 variables."""
    x = np.random.default_rng(0).normal(size=20) * 0.5 + 1

    def hand():
        found, i = np.zeros((20, 20)), np.arange(19)
        found[i, i] += 1200 * x[:-1] ** 2 - 400 * x[1:] + 2
        found[i + 1, i + 1] += 200
        found[i, i + 1] += -400 * x[:-1]
        found[i + 1, i] += -400 * x[:-1]
        return found

    def rosenbrock(x):
        a, e = x[1:] - x[:-1] * x[:-1], 1.0 - x[:-1]
        return xnp.sum(100.0 * a * a + e * e)

    eager = xf.hessian(rosenbrock)
    program = compiled(eager, x)
    report(
        "W8 Hessian, 20 variables",
        {"hand-written": hand, "xform, eager": lambda: eager(x), "xform, compiled": lambda: program(x)},
        "hand-written",
        {"xform, compiled": "<= 10"},
    )


W6_SCRIPT = """
import gc, time, numpy as np, xform as xf
def record(count):
    a, b = np.array(1.0000001), np.array(1e-7)
    with xf.Grad() as tape:
        x = x0 = tape.attach(np.array(1.0))
        for _ in range(count // 2):
            x = x * a; x = x + b
    return tape, x, x0
def rss():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
t, y, x = record(1000); t.gradient(y, x); del t, y, x
gc.collect(); base = rss(); clock = time.process_time
t0 = clock(); t, y, x = record(1_000_000); t1 = clock(); size = rss() - base
t2 = clock(); found = t.gradient(y, x); t3 = clock(); del t, y, x; t4 = clock()
took = f"record {t1 - t0:.3f} us, backward {t3 - t2:.3f} us, free {t4 - t3:.3f} us"
print(f"  {took}, {size / 1e6:.0f} bytes a node; gradient {float(found):.6f}")
"""


def w6() -> None:
    """A tape of 1,000,000 scalar operations, in a process of its own."""
    print("\nW6 1M scalar nodes (target: <= 200 bytes a node)", flush=True)
    subprocess.run([sys.executable, "-c", W6_SCRIPT], check=True)


def w7() -> None:
    """Import time against NumPy's, alternating processes."""
    times: dict[str, list[float]] = {"numpy": [], "xform": []}
    for _ in range(9):
        for module, samples in times.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
            samples.append(time.perf_counter() - start)
    ratio = statistics.median(times["xform"]) / statistics.median(times["numpy"])
    print(f"\nW7 import xform / import numpy = {ratio:.2f} (target: <= 1.25)")


WORKLOADS = {"W1": w1, "W2": w2, "W3": w3, "W4": w4, "W6": w6, "W7": w7, "W8": w8}

if __name__ == "__main__":
    for name in sys.argv[1:] or WORKLOADS:
        WORKLOADS[name]()
