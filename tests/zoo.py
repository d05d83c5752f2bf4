"""Small programs as users write them: pure functions of arrays, for tests of transformations, passes and compilers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

import xform as xf
import xform.numpy as xnp
from xform import ops


@attrs.frozen(eq=False)
class Specimen:
    """A pure program with the arguments it is run on; floating arrays are differentiated, integers and masks are not.

    `domain` says within what the program is smooth and its arguments lie; a change of them by a hundredth stays there.
    `reads` marks one whose control flow reads values: it cannot run in a batch. `custom` marks one with a rule of its
    own, which is a function: no file holds it.
    """

    name: str
    fun: Callable[..., Any]
    make: Callable[[np.random.Generator], tuple[Any, ...]]
    domain: str = "all numbers"
    reads: bool = False
    custom: bool = False

    def args(self, seed: int = 0, dtype: str = "float64") -> tuple[Any, ...]:
        """Return arguments for a seed, with floating arrays in a dtype."""
        made = self.make(np.random.default_rng(seed))
        return xf.tree.map(lambda x: x.astype(dtype) if x.dtype.kind == "f" else x, made)


def spread(rng, *shape):
    """Numbers of which no two are alike, and none is near 0."""
    return rng.permutation(np.linspace(-1.2, 1.4, np.prod(shape)) + 0.03).reshape(shape)


def perceptron(parameters, x, y):
    h = np.tanh(x @ parameters["hidden"]["w"] + parameters["hidden"]["b"])
    return np.mean((h @ parameters["out"] - y) ** 2)


def recurrent(weights, xs):
    w, u = weights
    states = [np.zeros_like(xs[0])]
    for x in xs:
        states.append(np.tanh(w @ states[-1] + u * x))
    return np.stack(states[1:])


def cross_entropy(logits, labels):
    picked = xnp.take_along_axis(logits - xnp.logsumexp(logits, axis=1, keepdims=True), labels[:, None], 1)
    return -np.mean(picked)


def stable_logsumexp(x):
    top = x.max(axis=-1, keepdims=True)
    return np.log(np.sum(np.exp(x - top), axis=-1)) + top[..., 0]


def gaussian(m, b):
    covariance = m @ m.T + 2.0 * np.eye(3, dtype=m.dtype)
    logdet = 2.0 * np.sum(np.log(np.diagonal(xnp.linalg.cholesky(covariance))))
    return 0.5 * (b @ xnp.linalg.solve(covariance, b) + logdet)


def attention(q, k, v):
    scores = np.einsum("qd,kd->qk", q, k) / 1.5
    weights = np.exp(scores - np.max(scores, axis=1, keepdims=True))
    return np.einsum("qk,kd->qd", weights / np.sum(weights, axis=1, keepdims=True), v)


def convolution(x, kernel):
    padded = np.pad(x, 1)
    taps = [kernel[i, j] * padded[i : i + 3 : 2, j : j + 4 : 2] for i in range(2) for j in range(2)]
    return np.tanh(sum(taps[1:], taps[0]))


def hardest(x, targets):
    return xnp.sum(ops.top_k((x - targets) ** 2, 2)[0]) + np.sort(x)[1] * np.median(x)


def spectrum(x):
    n = x.shape[0]
    turns = xnp.exp(np.outer(np.arange(n), np.arange(n)).astype(x.dtype) * (-2j * np.pi / n))
    coefficients = turns @ (x * (1.0 + 0.5j))
    return xnp.log(xnp.abs(coefficients + 8.0) ** 2) + xnp.real(coefficients * xnp.conj(turns[1]))


def newton_root(x):
    root, rounds = x, 0
    while np.max(np.abs(root * root * root - x)) > 1e-4 * np.max(x) and rounds < 30:
        root, rounds = root - (root * root * root - x) / (3.0 * root * root), rounds + 1
    return root


def tournament(xs):
    if len(xs) == 1:
        return xs[0]
    left, right = tournament(xs[: len(xs) // 2]), tournament(xs[len(xs) // 2 :])
    return xnp.hypot(left, right) + np.sin(left * right)


def histogram(values, bins, weights):
    counts = xnp.zeros(3, values.dtype).at[bins].add(values * values)
    return (counts * weights).at[1].set(counts[0] * weights[2]) / (1.0 + counts)


def normalise(x):
    centred = x - np.mean(x, axis=1, keepdims=True)
    return {"normed": centred / (0.1 + np.std(x, axis=1, keepdims=True)), "length": xnp.linalg.norm(x, axis=0)}


softplus = xf.custom_gradient(lambda x: (xnp.log1p(xnp.exp(x)), x), lambda x, t: t / (1.0 + xnp.exp(-x)))


def mixture(x, means, mask):
    far = -((x[:, None] - means) ** 2)
    near = np.where(mask, np.logaddexp(far[:, 0], far[:, 1]), np.maximum(far[:, 0], far[:, 1]))
    return near * np.clip(x, -5.0, 5.0) + np.abs(x) ** 1.5


ZOO = [
    Specimen("perceptron", perceptron, lambda rng: (
        {"hidden": {"w": spread(rng, 2, 3), "b": spread(rng, 3)}, "out": spread(rng, 3)},
        spread(rng, 3, 2), spread(rng, 3),
    )),
    Specimen("recurrent", recurrent, lambda rng: ((spread(rng, 2, 2), spread(rng, 2)), spread(rng, 3, 2))),
    Specimen("cross entropy", cross_entropy, lambda rng: (spread(rng, 3, 4), rng.integers(0, 4, 3))),
    Specimen("rosenbrock", lambda x: np.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2),
             lambda rng: (spread(rng, 4),)),
    Specimen("logsumexp", stable_logsumexp, lambda rng: (spread(rng, 2, 3),), "one largest in each row"),
    Specimen("gaussian", gaussian, lambda rng: (spread(rng, 3, 3), spread(rng, 3))),
    Specimen("attention", attention, lambda rng: (spread(rng, 2, 2), spread(rng, 3, 2), spread(rng, 3, 2))),
    Specimen("convolution", convolution, lambda rng: (spread(rng, 3, 4), spread(rng, 2, 2))),
    Specimen("discounted", lambda rewards, rates: np.cumsum(np.cumprod(rates) * rewards)[::-1],
             lambda rng: (spread(rng, 4), spread(rng, 4) * 0.5)),
    Specimen("hardest", hardest, lambda rng: (spread(rng, 5), np.linspace(0.2, 0.4, 5)), "no two losses alike"),
    Specimen("spectrum", spectrum, lambda rng: (spread(rng, 4),)),
    Specimen("newton root", newton_root, lambda rng: (rng.uniform(1.0, 2.0, 3),), "positive", reads=True),
    Specimen("tournament", tournament, lambda rng: (list(spread(rng, 5)),), "away from 0"),
    Specimen("histogram", histogram, lambda rng: (spread(rng, 4), rng.integers(0, 3, 4), spread(rng, 3))),
    Specimen("normalise", normalise, lambda rng: (spread(rng, 2, 3),), "rows that are not constant"),
    Specimen("softplus", lambda x: softplus(x) * x, lambda rng: (spread(rng, 3),), custom=True),
    Specimen("mixture", mixture, lambda rng: (spread(rng, 4), spread(rng, 2), rng.random(4) < 0.5), "away from 0"),
]  # fmt: skip
