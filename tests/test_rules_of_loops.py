"""Custom rules that are made of derivatives of loops, branches, equations and checkpoints, in the mode they lack."""

from __future__ import annotations

import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from xform.core.errors import RuleError


def newton(f, x):
    for _ in range(60):
        x = x - f(x) / (2.0 * x)
    return x


def rounds(x):
    return xf.fori_loop(0, 3, lambda i, v: v * xnp.sin(v), x)


def equation(x):
    return xf.root(lambda y: y * y - x, 1.0, newton)


BASES = {
    "fori_loop": rounds,
    "while_loop": lambda x: xf.while_loop(lambda v: v < 50.0, lambda v: v * v + 1.0, x),
    "scan": lambda x: xf.scan(lambda c, y: (c * xnp.sin(y), c + y), x, xnp.array([1.0, 2.0, 3.0]) * x)[1].sum(),
    "map": lambda x: xf.map(lambda y: xnp.sin(y) * x, xnp.array([1.0, 2.0]) * x).sum(),
    "cond": lambda x: xf.cond(x > 1.0, lambda v: v * v * v, lambda v: v, x),
    "root": equation,
    "checkpoint": xf.checkpoint(lambda x: xnp.sin(x) * x),
    "checkpoint of a loop": xf.checkpoint(rounds),
    "checkpoint of an equation": xf.checkpoint(equation),
    "trace": xf.trace(lambda x: xnp.sin(x) * x),
}
TRANSFORMS = {
    "grad": xf.grad,
    "jvp": lambda f: lambda x: xf.jvp(f, (x,), (1.0,))[1],
    "jacfwd": xf.jacfwd,
    "linearize": lambda f: lambda x: xf.linearize(f, x)[1](1.0),
    "grad of grad": lambda f: xf.grad(xf.grad(f)),
    "jacfwd of grad": lambda f: xf.jacfwd(xf.grad(f)),
    "grad of jacfwd": lambda f: xf.grad(xf.jacfwd(f)),
    "vmap of grad": lambda f: lambda x: xf.vmap(xf.grad(f))(np.array([x, x + 0.1])),
    "trace of grad": lambda f: xf.trace(xf.grad(f)),
}


def by_tangents(base):
    """A function whose forward rule alone is given: by `jvp` of another one."""
    f = xf.custom_jvp(lambda x: base(x))
    f.defjvp(lambda primals, tangents: xf.jvp(base, primals, tangents))
    return f


def by_cotangents(base):
    """A function whose reverse rule alone is given: by `vjp` of another one."""
    f = xf.custom_vjp(lambda x: base(x))
    f.defvjp(lambda x: (base(x), x), lambda x, t: xf.vjp(base, x)[1](t))
    return f


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
@pytest.mark.parametrize("ruled", [by_tangents, by_cotangents])
@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_a_rule_that_is_a_derivative_of_a_loop(base, ruled, transform):
    np.testing.assert_allclose(transform(ruled(base))(2.5), transform(base)(2.5), rtol=1e-9)


PRODUCTS = {
    "beside a loop": lambda p, t: (rounds(p[0]), xf.jvp(rounds, p, t)[1] * t[0]),
    "in a loop": lambda p, t: (rounds(p[0]), xf.fori_loop(0, 2, lambda i, v: v * v, t[0])),
    "of one sign": lambda p, t: (rounds(p[0]), xnp.abs(xf.jvp(rounds, p, t)[1])),
    "in a checkpoint": lambda p, t: (rounds(p[0]), xf.checkpoint(lambda v: xnp.sin(v) * v)(t[0])),
    "of an interval": lambda p, t: (rounds(p[0]), xnp.clip(xf.jvp(rounds, p, t)[1], -1.0, 1.0)),
    "of a read": lambda p, t: (rounds(p[0]), xf.cond(t[0] > 0.0, lambda v: v, lambda v: 2.0 * v, t[0])),
}


@pytest.mark.parametrize("rule", PRODUCTS.values(), ids=PRODUCTS)
def test_such_a_rule_that_is_not_linear_is_refused(rule):
    f = xf.custom_jvp(lambda x: rounds(x))
    f.defjvp(rule)
    with pytest.raises(RuleError, match="must be linear in its tangents"):
        xf.grad(f)(2.5)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_arrays_of_any_dtype_and_shape(dtype):
    x = np.linspace(0.5, 1.5, 6).reshape(2, 3).astype(dtype)
    holomorphic = dtype == "complex128"

    def loss(f):
        return xf.grad(lambda v: xnp.sum(f(v) * f(v)), holomorphic=holomorphic)

    have, want = loss(by_tangents(rounds))(x), loss(rounds)(x)
    assert have.dtype == want.dtype
    np.testing.assert_allclose(have, want, rtol=1e-4 if dtype == "float32" else 1e-10)


def test_zeros_for_an_absent_cotangent_read_nothing():
    """A backward switch, or loop, of some cotangents needs no operand for its shape alone: it may not have been kept.

    Found by random programs (KeyError): a loop in a branch of which one output has no cotangent.
    """
    a, b = np.array([0.5, -0.3, 0.2]), np.array([0.1, 0.4, -0.2])

    def rows(a, b):
        (_, second), rows = xf.scan(lambda c, x: ((c[0], c[0]), c[1]), (a, b), length=3)  # rows: b, a, a
        return second, xnp.sum(rows, axis=0)

    def powers(a, b):
        return xf.fori_loop(0, 3, lambda i, v: v * v, a), a * 0.5

    def loss(a, b, index):
        return xnp.sum(xf.switch(index, [rows, lambda a, b: (b, b), powers], a, b)[1] ** 2)

    gradient = xf.grad(loss, (0, 1))
    nothing = np.zeros(3)
    wanted = [(4.0 * (b + 2.0 * a), 2.0 * (b + 2.0 * a)), (nothing, 2.0 * b), (0.5 * a, nothing)]
    for index, want in enumerate(wanted):
        np.testing.assert_allclose(gradient(a, b, index), want)
        np.testing.assert_allclose(xf.trace(gradient)(a, b, index), want)
    every = xf.vmap(gradient, in_axes=(None, None, 0))(a, b, np.arange(3))
    np.testing.assert_allclose(np.stack(every, 1), wanted)
