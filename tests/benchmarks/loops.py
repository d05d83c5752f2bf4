"""Time and memory of the gradient of a loop of 100,000 rounds, by what is kept of it for backward.

    OMP_NUM_THREADS=1 python tests/benchmarks/loops.py [rounds]

Each candidate runs in processes of its own, which take turns. The second call in a process gives the CPU time: printed
is the median of its ratios to hand-written NumPy. Another process gives the peak of the memory that a call allocates.
"""

import gc
import json
import os
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

import xform as xf
import xform.numpy as xnp

ROUNDS, PROCESSES = 100_000, 3
rng = np.random.default_rng(2)
X, C = rng.normal(size=100), 0.5 + rng.random(100)


def by_hand(rounds: int) -> Callable[[], object]:
    """Keep each state in a list."""

    def run():
        x, states = X, []
        for _ in range(rounds):
            states.append(x)
            x = x - 0.1 * (x - C * np.sin(x))
        value, cotangent = x.sum(), np.ones(100)
        for x in reversed(states):
            cotangent = cotangent - 0.1 * (cotangent - cotangent * C * np.cos(x))
        return value, cotangent

    return run


def unrolled(rounds: int) -> Callable[[], object]:
    """Let a tape see each operation of a Python loop."""

    def f(x):
        for _ in range(rounds):
            x = x - 0.1 * (x - C * xnp.sin(x))
        return xnp.sum(x)

    return lambda: xf.value_and_grad(f)(X)


def planned(checkpoint: object) -> Callable[[int], Callable[[], object]]:
    """Return how a loop whose number of rounds is known keeps what a plan says."""

    def make(rounds):
        def f(x):
            return xnp.sum(
                xf.fori_loop(0, rounds, lambda i, x: x - 0.1 * (x - C * xnp.sin(x)), x, checkpoint=checkpoint)
            )

        traced = xf.trace(xf.value_and_grad(f))
        return lambda: traced(X)

    return make


def met(checkpoint: object) -> Callable[[int], Callable[[], object]]:
    """Return how a loop keeps what a plan says, when the number of rounds shows at the end only."""

    def make(rounds):
        def step(carry):
            i, x = carry
            return i + 1, x - 0.1 * (x - C * xnp.sin(x))

        def f(x):
            return xnp.sum(xf.while_loop(lambda carry: carry[0] < rounds, step, (0, x), checkpoint=checkpoint)[1])

        traced = xf.trace(xf.value_and_grad(f))
        return lambda: traced(X)

    return make


CANDIDATES: dict[str, Callable[[int], Callable[[], object]]] = {
    "NumPy, by hand": by_hand,
    "Python loop, unrolled on a tape": unrolled,
    "fori_loop": planned(None),
    "fori_loop, checkpoint=100": planned(100),
    'fori_loop, checkpoint="sqrt"': planned("sqrt"),
    'fori_loop, checkpoint="log"': planned("log"),
    "while_loop": met(None),
    'while_loop, checkpoint="sqrt"': met("sqrt"),
    'while_loop, checkpoint="log"': met("log"),
}


def timed(run: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    start = time.process_time()
    run()
    return time.process_time() - start


def peak_bytes(run: Callable[[], object]) -> int:
    """Return the bytes that a call has allocated at its peak, by Python and by NumPy."""
    tracemalloc.start()
    run()
    return tracemalloc.get_traced_memory()[1]


def worker(name: str, rounds: int, measure: str) -> None:
    """Measure one candidate, in this process; the first call records and compiles."""
    run = CANDIDATES[name](rounds)
    value, cotangent = run()
    gc.collect()
    found = {"timed": timed, "peak_bytes": peak_bytes}[measure](run)
    print(json.dumps([found, float(value), *map(float, cotangent)]))


def asked(name: str, rounds: int, measure: str) -> list[float]:
    """Return what a process of its own has measured, and what it computed."""
    command = [sys.executable, __file__, str(rounds), name, measure]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main(rounds: int) -> None:
    """Let processes take turns, check that candidates agree, print a table."""
    base = next(iter(CANDIDATES))
    turns = [{name: asked(name, rounds, "timed") for name in CANDIDATES} for _ in range(PROCESSES)]
    for turn in turns:
        for name, (_, *computed) in turn.items():
            np.testing.assert_allclose(computed, turn[base][1:], rtol=1e-9, atol=1e-12, err_msg=name)
    seconds = statistics.median(turn[base][0] for turn in turns)
    print(f"gradient of {rounds} rounds on 100 numbers; by hand {seconds / rounds * 1e6:.1f} us a round\n")
    print("| | time | peak memory, MB |\n|---|---|---|")
    for name in CANDIDATES:
        ratio = statistics.median(turn[name][0] / turn[base][0] for turn in turns)
        print(f"| {name} | {ratio:.2f} | {asked(name, rounds, 'peak_bytes')[0] / 1e6:.2f} |", flush=True)


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    if len(sys.argv) > 2:
        worker(sys.argv[2], count, sys.argv[3])
    else:
        main(count)
