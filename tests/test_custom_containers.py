"""Custom rules on containers: nested arguments and outputs, None for zero, integers, unused outputs, no outputs."""

import attrs
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import xform as xf
import xform.numpy as xnp
from xform.testing import check_grads

X = np.array([0.3, -1.2, 2.0])


@attrs.frozen
class Layer:
    """Weights and bias, as users keep them."""

    w: object
    b: object


def affine(p, x):
    return {"y": p.w * x["a"] + p.b, "norms": (xnp.sum(p.w**2), [xnp.sum(x["a"] ** 2)])}


def affine_fwd(p, x):
    return affine(p, x), {"p": p, "x": x["a"]}


def affine_bwd(kept, t):
    p, x = kept["p"], kept["x"]
    tw, (tx,) = t["norms"]
    return Layer(t["y"] * x + 2.0 * p.w * tw, xnp.sum(t["y"])), {"a": t["y"] * p.w + 2.0 * x * tx}


def affine_jvp(primals, tangents):
    (p, x), (tp, tx) = primals, tangents
    y = tp.w * x["a"] + p.w * tx["a"] + tp.b
    norms = (xnp.sum(2.0 * p.w * tp.w), [xnp.sum(2.0 * x["a"] * tx["a"])])
    return affine(p, x), {"y": y, "norms": norms}


def made(modes):
    """The affine function with a reverse rule, a forward rule, or both."""
    f = xf.custom_vjp(affine)
    if "rev" in modes:
        f.defvjp(affine_fwd, affine_bwd)
    if "fwd" in modes:
        f.defjvp(affine_jvp)
    return f


ARGS = Layer(X + 1.0, np.array(0.4)), {"a": X * X}


@pytest.mark.parametrize("modes", [("rev",), ("fwd",), ("fwd", "rev")], ids="-".join)
def test_row_59_containers_in_and_out(modes):
    f = made(modes)
    served = ("fwd", "rev") if "fwd" in modes else ("rev",)
    check_grads(lambda p, x: f(Layer(**p), x), ({"w": ARGS[0].w, "b": ARGS[0].b}, ARGS[1]), order=2, modes=served)
    out = f(*ARGS)
    assert_array_equal(out["y"], ARGS[0].w * X * X + 0.4)
    number = lambda g: lambda p, x: xnp.sum(g(p, x)["y"] ** 2) + g(p, x)["norms"][0] * g(p, x)["norms"][1][0]
    for derive in (lambda g: xf.grad(number(g), (0, 1)), lambda g: xf.hessian(number(g), (0, 1))):
        found, want = derive(f)(*ARGS), derive(affine)(*ARGS)
        assert xf.tree.structure(found) == xf.tree.structure(want)
        for a, b in zip(xf.tree.leaves(found), xf.tree.leaves(want), strict=True):
            assert_allclose(a, b, atol=1e-12)


@pytest.mark.parametrize("modes", [("rev",), ("fwd",), ("fwd", "rev")], ids="-".join)
def test_row_59_containers_in_batches(modes):
    f = made(modes)
    p = Layer(np.stack([X, X + 1.0, X - 2.0, X * X]), np.arange(4.0))
    axes = (Layer(0, 0), None)  # the input is shared by the lanes
    summed = lambda g: lambda p, x: sum(xnp.sum(leaf**2) for leaf in xf.tree.leaves(xf.vmap(g, axes)(p, x)))
    found, want = (xf.grad(summed(g), (0, 1))(p, {"a": X}) for g in (f, affine))
    assert_allclose(found[0].w, want[0].w)
    assert_allclose(found[0].b, want[0].b)
    assert_allclose(found[1]["a"], want[1]["a"])
    along = {"w": 1, "b": None}
    g = lambda q, x: f(Layer(**q), x)["y"]
    transposed = {"w": p.w.T, "b": np.array(1.0)}
    out = xf.vmap(g, (along, None), out_axes=-1)(transposed, {"a": X})
    assert_array_equal(out, (p.w * X + 1.0).T)
    pulled = xf.grad(lambda q: xnp.sum(xf.vmap(g, (along, None))(q, {"a": X}) * np.arange(4.0)[:, None]))(transposed)
    assert_allclose(pulled["w"], np.arange(4.0) * X[:, None])
    assert_allclose(pulled["b"], np.arange(4.0).sum() * 3)


# ------------------------------------------------------------------ None for zero


def test_row_59_none_for_an_argument_for_a_part_of_it_and_for_a_tangent():
    f = xf.custom_vjp(lambda x, y: x * np.sin(y))
    f.defvjp(lambda x, y: (f(x, y), np.cos(y)), lambda c, t: (None, 2.0 * c * t))
    assert_allclose(xf.grad(lambda x: f(x, x))(3.0), 2.0 * np.cos(3.0))
    assert_allclose(xf.grad(lambda x: xf.vmap(f)(x, x).sum())(X), 2.0 * np.cos(X))
    assert_allclose(xf.grad(lambda x: xf.vmap(f, (0, None))(x, x[0]).sum())(X), [6.0 * np.cos(0.3), 0.0, 0.0])
    assert_allclose(xf.hessian(lambda x: f(x, x) ** 2)(3.0), (2.0 * np.cos(3.0)) ** 2 * 2.0 - 12.0 * np.sin(3.0) ** 2)

    tree = xf.custom_vjp(lambda xs: xs[0])
    tree.defvjp(lambda xs: (tree(xs), None), lambda _, t: ((t, (None, None)),))
    assert xf.grad(tree)((1.0, (2.0, 3.0))) == (1.0, (0.0, 0.0))
    assert xf.grad(tree)((1.0, (2.0, None))) == (1.0, (0.0, None))
    tree.defvjp(lambda xs: (tree(xs), None), lambda _, t: ((t, None),))
    assert xf.grad(tree)((1.0, (2.0, 3.0))) == (1.0, (0.0, 0.0))
    tree.defvjp(lambda xs: (tree(xs), None), lambda _, t: (None,))
    assert xf.grad(tree)((1.0, (2.0, 3.0))) == (0.0, (0.0, 0.0))

    pair = xf.custom_jvp(lambda x: (x * 2.0, {"a": x * 3.0, "b": x * 4.0}))
    pair.defjvp(lambda primals, tangents: (pair(*primals), (tangents[0] * 2.0, None)))
    assert xf.jvp(pair, (1.0,), (1.0,)) == ((2.0, {"a": 3.0, "b": 4.0}), (2.0, {"a": 0.0, "b": 0.0}))
    assert xf.grad(lambda x: pair(x)[0] + pair(x)[1]["b"])(1.0) == 2.0
    pair.defjvp(lambda primals, tangents: (pair(*primals), None))
    assert xf.grad(lambda x: pair(x)[0])(1.0) == 0.0


def test_an_output_that_nothing_uses():
    seen = []

    def rule(_, *ts):
        seen.append(ts)
        return tuple(ts[0] if len(ts) > 1 else ts[0]["a"] for _ in range(1))

    f = xf.custom_vjp(lambda x: {"a": x * 2.0, "b": x[:2]})
    f.defvjp(lambda x: (f(x), None), rule)
    assert_array_equal(xf.grad(lambda x: f(x)["a"].sum())(X), np.ones(3))
    assert_array_equal(seen.pop()[0]["b"], np.zeros(2))  # as in JAX
    g = xf.custom_gradient(lambda x: ((x * 2.0, x[:2]), None), rule)
    assert_array_equal(xf.grad(lambda x: g(x)[0].sum())(X), np.ones(3))
    assert seen.pop()[1] is None  # as in MegEngine


def test_no_output_at_all():
    f = xf.custom_vjp(lambda x, y: None)
    f.defvjp(lambda x, y: (None, y), lambda kept, t: 1 / 0)
    assert xf.grad(lambda x: (f(x, x), x * 2.0)[1])(1.0) == 2.0
    assert_array_equal(xf.vmap(lambda x: (f(x, x), x * 2.0)[1])(X), X * 2.0)
    assert xf.trace(lambda x: (f(x, x), x * 2.0)[1])(1.0) == 2.0
    assert f(1.0, 2.0) is None


# ------------------------------------------------------------------ integers


def test_integers_in_and_out():
    f = xf.custom_vjp(lambda n, x: (np.sin(x) * n, n + 1))
    f.defvjp(lambda n, x: (f(n, x), (n, np.cos(x))), lambda kept, t: (None, 2.0 * kept[0] * kept[1] * t[0] + t[1]))
    g = xf.custom_jvp(lambda n, x: (np.sin(x) * n, n + 1))

    @g.defjvp
    def rule(primals, tangents):
        n, x = primals
        assert tangents[0] is None
        return g(n, x), (2.0 * n * np.cos(x) * tangents[1], None)

    for fun in (f, g):
        assert_allclose(xf.grad(lambda x, fun=fun: fun(3, x)[0])(0.7), 6.0 * np.cos(0.7))
        want = 2.0 * (6.0 * np.cos(0.7)) ** 2 - 36.0 * np.sin(0.7) ** 2
        assert_allclose(xf.hessian(lambda x, fun=fun: fun(3, x)[0] ** 2)(0.7), want)
        lanes = lambda x, fun=fun: xf.vmap(fun)(np.arange(3), x)
        assert_array_equal(lanes(X)[1], [1, 2, 3])
        assert_allclose(xf.grad(lambda x, lanes=lanes: lanes(x)[0].sum())(X), 2.0 * np.arange(3) * np.cos(X))
    assert xf.jvp(g, (3, 0.0), (None, 1.0)) == ((0.0, 4), (6.0, 0))


# ------------------------------------------------------------------ residuals


def test_residuals_of_every_kind():
    class Kept:
        """No container."""

        def __init__(self, x):
            self.x = x

    for keep, get in (
        (lambda x: Kept(x), lambda kept: kept.x),
        (lambda x: {"x": x, "note": "text", "axis": None, "fun": np.cos}, lambda kept: kept["x"]),
        (lambda x: (lambda: x), lambda kept: kept()),
        (lambda x: [x, (3, "mode")], lambda kept: kept[0]),
    ):
        f = xf.custom_vjp(lambda x: np.sin(x))
        f.defvjp(
            lambda x, keep=keep: (np.sin(x), keep(x)), lambda kept, t, get=get: (2.0 * np.cos(get(kept)) * t,)
        )
        square = lambda x, f=f: (f(x) ** 2).sum()
        second = 2.0 * (2.0 * np.cos(X)) ** 2 - 4.0 * np.sin(X) ** 2
        assert_allclose(xf.grad(square)(X), 4.0 * np.sin(X) * np.cos(X))
        assert_allclose(xf.hessian(square)(X), np.diag(second))
        assert_allclose(xf.grad(lambda x, square=square: xf.grad(square)(x).sum())(X), second)
        assert_allclose(xf.grad(lambda x, f=f: (xf.vmap(f)(x) ** 2).sum())(X), 4.0 * np.sin(X) * np.cos(X))
        assert_allclose(xf.hessian(lambda x, f=f: (xf.vmap(f)(x) ** 2).sum())(X), np.diag(second))
