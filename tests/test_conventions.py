"""The conventions at the hard points, row by row: what a derivative is where mathematics leaves a choice.

Each row is a real function of one or more arrays, with its slope by each of them and, where that means something, its
second derivative by the first: in both modes, both precisions, also under and over vmap and trace.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
from typeguard import suppress_type_checks

import xform as xf
import xform.numpy as xnp
from xform.core.errors import GradientError

INF, NAN = np.inf, np.nan


@attrs.frozen(eq=False)
class Row:
    """A function, a point, its slope by each argument there, and its second derivative by the first one (None: none).

    `pushed` is what forward mode gives, where that is another thing.
    """

    point: str
    fun: Callable[..., Any]
    args: tuple[Any, ...]
    slopes: tuple[Any, ...]
    second: Any
    pushed: tuple[Any, ...]


def row(point, fun, *args, slope, second=None, pushed=None):
    slopes, pushed = (x if isinstance(x, tuple) else (x,) for x in (slope, slope if pushed is None else pushed))
    return Row(point, fun, tuple(map(np.asarray, args)), slopes, second, pushed)


ROWS = [
    row("abs at 0", xnp.abs, 0.0, slope=0, second=0),
    row("abs at -0.0", xnp.abs, -0.0, slope=0, second=0),
    row("fabs at 0", xnp.fabs, 0.0, slope=0, second=0),
    row("sign at 0", xnp.sign, 0.0, slope=0, second=0),
    row("sqrt at 0", xnp.sqrt, 0.0, slope=INF, second=-INF),
    row("x**0.5 at 0", lambda x: x**0.5, 0.0, slope=INF, second=-INF),
    row("maximum of equals", xnp.maximum, 2.0, 2.0, slope=(0.5, 0.5), second=0),
    row("minimum of equals", xnp.minimum, 2.0, 2.0, slope=(0.5, 0.5), second=0),
    row("fmax of equals", xnp.fmax, 2.0, 2.0, slope=(0.5, 0.5), second=0),
    row("maximum of one thing twice", lambda x: xnp.maximum(x * x, x * x), 3.0, slope=6, second=2),
    row("relu at 0", lambda x: xnp.maximum(x, 0.0), 0.0, slope=0.5, second=0),
    row("max with two ties", lambda x: xnp.max(x), [1.0, 3.0, 3.0], slope=[0, 0.5, 0.5], second=np.zeros((3, 3))),
    row("min with three ties", lambda x: xnp.min(x), [1.0, 1.0, 1.0], slope=[1 / 3] * 3, second=np.zeros((3, 3))),
    row("clip at the lower bound", lambda x: xnp.clip(x, -1.0, 1.0), -1.0, slope=1, second=0),
    row("clip at the upper bound", lambda x: xnp.clip(x, -1.0, 1.0), 1.0, slope=1, second=0),
    row("clip at a bound that varies", xnp.clip, 1.0, -1.0, 1.0, slope=(1, 0, 0), second=0),
    row("norm at 0", xnp.linalg.norm, [0.0, 0.0], slope=[0, 0], second=np.zeros((2, 2))),
    row("vector_norm 3 at 0", lambda x: xnp.linalg.vector_norm(x, ord=3), [0.0, 0.0], slope=[0, 0]),
    row("norm of a matrix at 0", xnp.linalg.norm, [[0.0, 0.0]], slope=[[0, 0]], second=np.zeros((1, 2, 1, 2))),
    row("std of constants", lambda x: xnp.std(x), [2.0, 2.0, 2.0], slope=[0, 0, 0], second=np.zeros((3, 3))),
    row("var of constants", lambda x: xnp.var(x), [2.0, 2.0], slope=[0, 0], second=[[0.5, -0.5], [-0.5, 0.5]]),
    row("hypot at 0", xnp.hypot, 0.0, 0.0, slope=(0, 0), second=0),
    row("arctan2 at 0", xnp.arctan2, 0.0, 0.0, slope=(0, 0), second=0),
    row("abs of a complex 0", lambda x: xnp.abs(x * (1 + 2j)), 0.0, slope=0, second=0),
    row("angle of a complex 0", lambda x: xnp.angle(x * (1 + 2j)), 0.0, slope=0, second=0),
    row("prod with one zero", lambda x: xnp.prod(x), [2.0, 0.0, 3.0], slope=[0, 6, 0],
        second=[[0, 3, 0], [3, 0, 2], [0, 2, 0]]),
    row("prod with two zeros", lambda x: xnp.prod(x), [0.0, 5.0, 0.0], slope=[0, 0, 0],
        second=[[0, 0, 5], [0, 0, 0], [5, 0, 0]]),
    row("cumprod with a zero", lambda x: xnp.sum(xnp.cumprod(x) * xnp.astype(np.array([1, 2, 4]), x.dtype)),
        [2.0, 0.0, 3.0], slope=[1, 28, 0], second=[[0, 14, 0], [14, 0, 8], [0, 8, 0]]),
    row("where around log at 0", lambda x: xnp.where(x > 0, xnp.log(x), 0.0), 0.0, slope=NAN, pushed=0),
    row("x**y at (0, 0)", xnp.power, 0.0, 0.0, slope=(0, 0), second=0),
    row("x**y at (0, 1)", xnp.power, 0.0, 1.0, slope=(1, 0), second=0),
    row("x**y at (0, 2)", xnp.power, 0.0, 2.0, slope=(0, 0), second=2),
    row("sinc at 0", xnp.sinc, 0.0, slope=0, second=-np.pi**2 / 3),
    row("safe_where around log at 0", lambda x: xf.safe_where(x > 0, xnp.log, x, 0.0), 0.0, slope=0, second=0),
    row("no dependence", lambda x: np.ones((), x.dtype), [1.0, 2.0], slope=[0, 0], second=np.zeros((2, 2))),
    row("what stop_gradient cuts off", lambda x: xf.stop_gradient(x * x), 3.0, slope=0, second=0),
    row("what a count decides", lambda x: x * xnp.sum(x > 1.0).astype(x.dtype), 3.0, slope=1, second=0),
    row("abs(z)**2", lambda z: xnp.abs(z) ** 2, 1 + 2j, slope=2 - 4j),
    row("real(z * conj(z))", lambda z: xnp.real(z * xnp.conj(z)), 1 + 2j, slope=2 - 4j),
    row("abs(z)**2 at 0", lambda z: xnp.abs(z) ** 2, 0j, slope=0j),
    row("imag(z)", xnp.imag, 1 + 2j, slope=-1j),
]  # fmt: skip


# ------------------------------------------------------------------ the two modes, one seed at a time


def seeds(x):
    """The elements of the basis of an array; of a complex one the real ones."""
    shape, dtype = xf.aval_of(x).shape, xf.aval_of(x).dtype
    return list(np.eye(int(np.prod(shape))).reshape(-1, *shape).astype(dtype))


def reverse(fun):
    def jacobian(x):
        out, pullback = xf.vjp(fun, x)
        return xnp.stack([pullback(seed)[0] for seed in seeds(out)]).reshape((*out.shape, *x.shape))

    return jacobian


def forward(fun):
    def jacobian(x):
        columns = [xf.jvp(fun, (x,), (seed,))[1] for seed in seeds(x)]
        if x.dtype.kind == "c":  # df/dx - i df/dy
            columns = [re - 1j * xf.jvp(fun, (x,), (1j * seed,))[1] for re, seed in zip(columns, seeds(x), strict=True)]
        return xnp.stack(columns, axis=-1).reshape((*columns[0].shape, *x.shape))

    return jacobian


MODES = {"reverse": reverse, "forward": forward}


def slopes(mode):
    """Return what takes a function to the function of its slopes by each argument."""

    def by_each(fun):
        def found(*args):
            one_at_a_time = [lambda x, n=n: fun(*args[:n], x, *args[n + 1 :]) for n in range(len(args))]
            return tuple(MODES[mode](part)(x) for part, x in zip(one_at_a_time, args, strict=True))

        return found

    return by_each


def second(outer, inner):
    """Return what takes a function to its second derivative by the first argument."""
    return lambda fun: lambda x, *rest: MODES[outer](MODES[inner](lambda v: fun(v, *rest)))(x)


def lanes(derivative, args):
    """Return the results for the second of three lanes; the others lie elsewhere."""
    stacked = [np.stack([x + 0.5, x, x - 0.25] if x.dtype.kind in "fc" else [x, x, x]) for x in args]
    return xf.tree.map(lambda y: y[1], xf.vmap(derivative)(*stacked))


def twice(derivative, args):
    """Return the results of a trace when it is replayed."""
    traced = xf.trace(derivative)
    traced(*[x + 0.5 if x.dtype.kind in "fc" else x for x in args])
    return traced(*args)


AROUND = {
    "plain": lambda make, fun, args: make(fun)(*args),
    "vmap": lambda make, fun, args: lanes(make(fun), args),
    "trace": lambda make, fun, args: twice(make(fun), args),
    "of a trace": lambda make, fun, args: make(xf.trace(fun))(*args),
    "of a batch": lambda make, fun, args: make(lambda *xs: xf.vmap(fun)(*[x[None] for x in xs])[0])(*args),
    "trace of vmap": lambda make, fun, args: lanes(xf.trace(make(fun)), args),
    "tracked": lambda make, fun, args: xf.tree.map(xf.concrete, make(fun)(*map(xf.array, args))),
}


def in_dtype(x, dtype):
    return x.astype(np.result_type(dtype, np.complex64) if x.dtype.kind == "c" else dtype)


def require(found, want, dtype):
    assert np.shape(found) == np.shape(want)
    assert np.asarray(found).dtype == dtype
    np.testing.assert_allclose(found, want, rtol=1e-6 if dtype.itemsize < 8 else 1e-13, atol=0)


@pytest.mark.parametrize("each", ROWS, ids=lambda each: each.point)
@pytest.mark.parametrize(("dtype", "around"), [("float32", "plain"), *[("float64", around) for around in AROUND]])
def test_conventions(each, dtype, around):
    args = [in_dtype(x, dtype) for x in each.args]
    with suppress_type_checks(), np.errstate(all="ignore"):
        for mode, expected in (("reverse", each.slopes), ("forward", each.pushed)):
            found = AROUND[around](slopes(mode), each.fun, args)
            for slope, want, x in zip(found, expected, args, strict=True):
                require(slope, want, x.dtype)
        if each.second is not None:
            for outer, inner in itertools.product(MODES, repeat=2):
                require(AROUND[around](second(outer, inner), each.fun, args), each.second, args[0].dtype)


@pytest.mark.parametrize("around", ["plain", "tracked", "trace"])
def test_the_nan_of_where_around_log_is_reported_with_its_name(around):
    """The NaN is born in backward, of an infinite slope and a zero cotangent."""
    wanted = r"Div made nan in the backward.*Log\.Backward"
    with np.errstate(all="ignore"), xf.NanGuard(inf=False), pytest.raises(FloatingPointError, match=wanted):
        AROUND[around](slopes("reverse"), lambda x: xnp.where(x > 0, xnp.log(x), 0.0), [np.array(0.0)])


@pytest.mark.parametrize("around", ["plain", "vmap", "trace"])
@pytest.mark.parametrize("own", ["float16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("other", ["float32", "float64", "complex128", "int64"])
def test_a_gradient_has_the_dtype_of_its_primal_whatever_it_meets(own, other, around):
    x, y = np.array(1.5, own), np.array(2, other)

    def fun(v):
        return xnp.real(v * y) * 1.0 + xnp.real(xnp.stack([v, y])[0]) + xnp.real(v.astype(np.complex64))

    (found,) = AROUND[around](slopes("reverse"), fun, [x])
    assert (found, found.dtype) == (4.0, x.dtype)
    (found,) = AROUND[around](slopes("reverse"), lambda v: fun(v) * fun(v), [x])
    assert (found, found.dtype) == (48.0, x.dtype)


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_an_integer_leaf_is_an_error_that_names_path_and_dtype(dtype, around):
    def times(x, n):
        return x * n

    def gradient(fun):
        return lambda x, n: xf.grad(lambda p: fun(p["x"], p["n"][0]))({"x": x, "n": [n]})

    args = [np.array(1.0), np.array(1, dtype)]
    with pytest.raises(GradientError, match=rf"grad of <lambda>: the leaf \['n'\]\[0\] has dtype {dtype}"):
        AROUND[around](gradient, times, args)
    with pytest.raises(GradientError, match=rf"jvp of .*: leaf \[1\]: the primal has dtype {dtype}, which does not"):
        AROUND[around](lambda fun: lambda x, n: xf.jvp(fun, (x, n), (1.0, 1.0))[1], times, args)
