"""Cases of reductions, extrema, statistics, running sums and products, sorting, broadcasting and casts."""

from __future__ import annotations

import numpy as np

import xform.numpy as xnp
from tests.operators.case import case
from xform import ops
from xform.core.aval import aval_of
from xform.core.stack import apply

x = np.array([[0.5, -1.25, 2.0], [1.5, 0.75, -0.25]])
v = np.array([0.5, -1.5, 2.0, 0.75, 1.25])
cube = np.random.default_rng(3).permutation(np.linspace(-1.0, 1.6, 24)).reshape(2, 3, 4)
zeros = np.array([[2.0, 0.0, 3.0, 0.5], [0.0, 1.5, 0.0, 2.0]])  # one zero in a row, two in a row

SUMS = [
    case("sum", xnp.sum, x, complex=True),
    case("sum of squares", lambda a: xnp.sum(a * a, axis=1), x, complex=True),
    case("sum axis", lambda a: xnp.sum(a * a, axis=-1, keepdims=True), x, complex=True),
    case("sum axes", lambda a: xnp.sum(a * a, axis=(0, 2)), cube, complex=True),
    case("sum no axes", lambda a: xnp.sum(a * a, axis=()), x, complex=True),
    case("sum of a number", lambda a: xnp.sum(a * a), np.float64(1.5), complex=True),
    case("sum initial where", lambda a: xnp.sum(a * a, 0, initial=1.0, where=x > 0), x, complex=True),
    case("mean", lambda a: xnp.mean(a * a), x, complex=True),
    case("mean axis", lambda a: xnp.mean(a * a, axis=0), x, complex=True),
    case("mean axes kept", lambda a: xnp.mean(a * a, axis=(-1, 0), keepdims=True), cube, complex=True),
    case("mean where", lambda a: xnp.mean(a * a, where=x > 0), x, complex=True),
    case("average", lambda a, w: xnp.average(a, weights=w * w), v, v + 3.0, complex=True),
    case("average axis", lambda a, w: xnp.average(a, axis=1, weights=w), x, np.array([1.0, 2.0, 0.5]), complex=True),
]

PRODUCTS = [
    case("prod", xnp.prod, v, complex=True),
    case("prod axis", lambda a: xnp.prod(a, axis=1), x, complex=True),
    case("prod axes", lambda a: xnp.prod(a, axis=(0, 2), keepdims=True), cube, complex=True),
    case("prod zeros", lambda a: xnp.prod(a, axis=1), zeros, complex=True),
    case("prod all zeros", xnp.prod, zeros, complex=True),
    case("prod one element", xnp.prod, np.array([2.5]), complex=True),
    case("cumsum", lambda a: xnp.cumsum(a * a), x, complex=True),
    case("cumsum axis", lambda a: xnp.cumsum(a * a, axis=0), x, complex=True),
    case("cumprod", xnp.cumprod, v, complex=True),
    case("cumprod axis", lambda a: xnp.cumprod(a, axis=-1), cube, complex=True),
    case("cumprod zeros", lambda a: xnp.cumprod(a, axis=1), zeros, complex=True),
    case("cumprod third order", xnp.cumprod, np.array([1.5, 0.0, -0.5, 0.0, 2.0]), order=3, x64_only=True),
    case("recurrence", lambda a, b: apply(ops.Recurrence(0), a, b), v, v + 1.0, complex=True),
    case(
        "recurrence from the end", lambda a, b: apply(ops.Recurrence(0, reverse=True), a, b), v, v + 1.0, complex=True
    ),
    case("diff", lambda a: xnp.diff(a * a, n=2), v, complex=True),
    case("diff edges", lambda a: xnp.diff(a * a, axis=0, prepend=0.0, append=a[:1]), x, complex=True),
    case("trapezoid", lambda a: xnp.trapezoid(a * a, dx=0.5, axis=0), x, complex=True),
    case("trapezoid points", lambda a, p: xnp.trapezoid(a * a, p * p, axis=0), x, np.array([1.0, 2.0]), complex=True),
]

EXTREMA = [
    case("argmax", lambda a: xnp.argmax(a, axis=1), x, order=0),
    case("argmin", xnp.argmin, x, order=0),
    case("argsort", lambda a: xnp.argsort(a, axis=0), x, order=0),
    case("sort of integers", lambda a: xnp.sort(a, axis=0), np.array([[3, 1], [2, 2], [0, 5]]), order=0),
    case("all", lambda a: xnp.all(a, axis=0), x > 0, order=0),
    case("any", lambda a: xnp.any(a, axis=0), x > 1, order=0),
    case("count_nonzero", lambda a: xnp.count_nonzero(a, axis=1), zeros, order=0),
    case("max", lambda a: xnp.max(a * a), x),
    case("max axis", lambda a: xnp.max(a**3, axis=0), x),
    case("max axes kept", lambda a: xnp.max(a**3, axis=(0, 2), keepdims=True), cube),
    case("min axis", lambda a: xnp.min(a**3, axis=-1), x),
    case("max initial", lambda a: xnp.max(a**3, axis=0, initial=1.0), x),
    case("min where", lambda a: xnp.min(a**3, axis=1, initial=5.0, where=x > 0), x),
    case("ptp", lambda a: xnp.ptp(a**3, axis=1), x),
    case("sort", lambda a: xnp.sort(a**3, axis=0), x),
    case("sort falling", lambda a: xnp.sort(a + a**3, descending=True), cube),
    case("sort flat", lambda a: xnp.sort(a**3, axis=None), x),
    case("top_k", lambda a: ops.top_k(a**3, 2)[0], v),
    case("median", lambda a: xnp.median(a**3, axis=1), x),
    case("median even", lambda a: xnp.median(a**3), x),
    case("quantile", lambda a: xnp.quantile(a**3, [0.1, 0.6], axis=(0, 1)), cube),
]

STATISTICS = [
    case("var", xnp.var, x, complex=True),
    case("var axis", lambda a: xnp.var(a * a, axis=1, ddof=1), x, complex=True),
    case("var axes kept", lambda a: xnp.var(a, axis=(0, 2), keepdims=True), cube, complex=True),
    case("var correction", lambda a: xnp.var(a, correction=0.5), x, complex=True),
    case("std", xnp.std, x, complex=True),
    case("std axis", lambda a: xnp.std(a * a, axis=0, keepdims=True), x, complex=True),
    case("std axes", lambda a: xnp.std(a, axis=(0, 2), ddof=1), cube, complex=True),
    case("logsumexp", xnp.logsumexp, x, complex=True),
    case("logsumexp axis", lambda a: xnp.logsumexp(a, axis=-1), x, complex=True),
    case("logsumexp axes kept", lambda a: xnp.logsumexp(a, axis=(0, 2), keepdims=True), cube, complex=True),
    case("logsumexp large", lambda a: xnp.logsumexp(a * a + 30.0), v, x64_only=True),
]

BROADCASTS = [
    case("broadcast_to", lambda a: xnp.broadcast_to(a * a, (2, 2, 3)), x, complex=True),
    case("broadcast_to rows", lambda a: xnp.broadcast_to(a * a, (4, 2, 3)), x[:, :1], complex=True),
    case("sum_to_like", lambda a: ops.sum_to_like(a * a, aval_of(x[:, :1])), cube[:, :2, 1:], complex=True),
    case("broadcast like", lambda a: apply(ops.BroadcastLike(), a * a, np.ones((2, 2, 3))), x, complex=True),
    case("sum like", lambda a: apply(ops.SumLike(), a * a, np.ones((2, 1))), x, complex=True),
    case("astype", lambda a: xnp.astype(a * a, np.complex128), x),
]

CASES = [*SUMS, *PRODUCTS, *EXTREMA, *STATISTICS, *BROADCASTS]
