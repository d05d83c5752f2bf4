"""Fit a model of hares and lynxes to counts, through an integrator that chooses its own steps.

    python examples/fit_ode.py

A Runge-Kutta method takes steps as long as a tolerance allows, so only the run itself tells how many there are. That is
`xf.while_loop`, here inside of an `xf.scan` from count to count; the gradient of a loop is a loop again. Then: what the
gradient of a long run keeps, and where hares and lynxes settle, which is `xf.fixed_point`. Takes ten seconds.
"""

import time

import numpy as np

import xform as xf
import xform.numpy as xnp

np.set_printoptions(precision=6, suppress=True, linewidth=200)
NAMES = ("growth", "capacity", "hunting", "yield", "death")
TRUE = np.array([1.2, 4.0, 0.9, 0.8, 0.6])  # hares in thousands, lynxes in hundreds, years
BEGIN = np.array([1.0, 0.5])  # hares and lynxes at the first count
TOLERANCE = 1e-4
ROUNDS, RATE = 100, 0.1


def rates(logs, z):
    """Return how fast hares (limited by food, hunted) and lynxes (fed by hares, mortal) become more."""
    growth, capacity, hunting, gain, death = np.exp(logs)  # logarithms: any step of the fit leaves them positive
    hares, lynxes = z
    caught = hunting * hares * lynxes
    return xnp.stack([growth * hares * (1.0 - hares / capacity) - caught, gain * caught - death * lynxes])


def stepped(logs, z, h):
    """Return the state after a step of length `h` and its error, by Bogacki and Shampine's pair of orders 3 and 2."""
    k1 = rates(logs, z)
    k2 = rates(logs, z + h * k1 / 2)
    k3 = rates(logs, z + h * k2 * 3 / 4)
    new = z + h * (2 * k1 + 3 * k2 + 4 * k3) / 9
    return new, xnp.max(abs(h * (-5 * k1 + 6 * k2 + 8 * k3 - 9 * rates(logs, new)) / 72))


def advance(logs, z, length, span, *, tolerance=TOLERANCE, checkpoint=None):
    """Integrate over a span of time; return the state, the length of the next step and how many steps were tried."""
    begin, end = span

    def try_a_step(carry):
        t, z, length, tried = carry
        is_last = length >= end - t
        h = xnp.where(is_last, end - t, length)
        new, error = stepped(logs, z, h)
        accepted = error <= tolerance
        factor = xnp.clip(0.9 * (error / tolerance + 1e-9) ** (-1 / 3), 0.2, 4.0)
        t = xnp.where(accepted, xnp.where(is_last, end, t + h), t)
        return t, xnp.where(accepted, new, z), h * factor, tried + 1

    start = (begin, z, length, 0)
    _, z, length, tried = xf.while_loop(lambda carry: carry[0] < end, try_a_step, start, checkpoint=checkpoint)
    return z, length, tried


def simulate(logs, years):
    """Return the states at all times, and how many steps were tried on the way."""

    def to_the_next(carry, span):
        z, length, total = carry
        z, length, tried = advance(logs, z, length, span)
        return (z, length, total + tried), z

    (_, _, total), states = xf.scan(to_the_next, (BEGIN, 0.1, 0), np.stack([years[:-1], years[1:]], axis=1))
    return states, total


def loss(logs, years, counts):
    states, total = simulate(logs, years)
    return xnp.mean((np.log(states) - np.log(counts)) ** 2), total


def differences(f, x, width=1e-5):
    """Return the derivatives of `f` by each component of `x`, as central differences."""
    shifts = width * np.eye(len(x))
    return np.stack([(f(x + shift) - f(x - shift)) / (2 * width) for shift in shifts], axis=-1)


def settled(logs):
    """Return how many hares and lynxes there are in the end: as many as after ten more years, 40 steps."""
    return xf.fixed_point(lambda z: xf.fori_loop(0, 40, lambda n, z: stepped(logs, z, 0.25)[0], z), BEGIN)


def fit():
    """Make counts of a system whose parameters are known, and return the logarithms of those that fit best."""
    rng, years = np.random.default_rng(0), np.linspace(0.0, 20.0, 31)
    clean = simulate(np.log(TRUE), years)[0]
    counts = clean * np.exp(0.05 * rng.normal(size=clean.shape))  # 5 percent of noise
    step = xf.trace(xf.value_and_grad(loss, has_aux=True))  # recorded at the first call: loops in loops, 1 program

    print(f"1. {len(TRUE)} parameters from {counts.size} counts, through an integrator that chooses its steps")
    logs = np.log([0.8, 6.0, 0.6, 0.6, 0.8])
    print(f"gradient at the start: {step(logs, years, counts)[1]}")
    print(f"finite differences:    {differences(lambda x: loss(x, years, counts)[0], logs)}")
    mean, square, begun = 0.0, 0.0, time.perf_counter()
    for n in range(1, ROUNDS + 1):
        (value, tried), gradient = step(logs, years, counts)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.99 * square + 0.01 * gradient**2  # Adam
        logs = logs - RATE * 0.5 ** (n / 25) * mean / (1 - 0.9**n) / np.sqrt(square / (1 - 0.99**n))
        if n % 20 == 0:
            print(f"round {n:3d}  loss {value:.6f}  {tried} steps tried", flush=True)
    print(f"fitted in {time.perf_counter() - begun:.1f} s")
    for name, found, true in zip(NAMES, np.exp(logs), TRUE, strict=True):
        print(f"  {name:9s} {found:.3f}  (true {true})")
    return logs


def run_long(logs):
    """Show what the gradient of a long run keeps of it, and what it runs again."""

    def hares_at_last(logs, checkpoint=None):
        return advance(logs, BEGIN, 0.1, (0.0, 20.0), tolerance=1e-8, checkpoint=checkpoint)[0][0]

    print("\n2. a long run: what backward keeps of it, and what it runs again")
    for checkpoint in (None, 10, "sqrt", "log"):
        with xf.loop_reports() as reports:
            slope = xf.grad(hares_at_last)(logs, checkpoint)
        kept, again = max(each.peak_saved_bytes for each in reports), reports[-1].recomputed_rounds
        rounds = f"{reports[0].rounds} rounds, {again:4d} run again, {kept:5d} bytes kept"
        print(f"{f'checkpoint={checkpoint!r}:':19s} {rounds}, gradient {slope}")
    print(f"{'finite differences:':63s} {differences(hares_at_last, logs)}")


def settle(logs):
    """Show where it settles, and the derivatives of that: no iteration is kept for them."""
    growth, capacity, hunting, gain, death = np.exp(logs)
    hares = death / (gain * hunting)
    print("\n3. where it settles, and how that moves with the logarithms of the parameters")
    print(f"settled:     {settled(logs)}")
    print(f"closed form: {np.array([hares, growth / hunting * (1.0 - hares / capacity)])}")
    slopes, others = xf.jacrev(settled)(logs), differences(settled, logs)
    for name, slope, other in zip(("hares", "lynxes"), slopes, others, strict=True):
        print(f"{name + ':':7s} {slope}   finite differences: {other}")


if __name__ == "__main__":
    found = fit()
    run_long(found)
    settle(found)
