"""Jacobians, Hessians and products with them; all pairs of grad, jvp, vmap and trace."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import array_api_strict
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import xform as xf
import xform.numpy as xnp
from xform.core.errors import GradientError, HostReadError, OperandTypeError, ShapeError

X = np.array([0.4, -1.1, 1.7, 0.9])
JACOBIANS = [xf.jacfwd, xf.jacrev, xf.jacobian]
both_modes = pytest.mark.parametrize("jac", JACOBIANS, ids=["jacfwd", "jacrev", "jacobian"])


def rosenbrock(x):
    a = x[1:] - x[:-1] * x[:-1]
    e = 1.0 - x[:-1]
    return np.sum(100.0 * a * a + e * e)


def rosenbrock_hessian(x):
    n, i = x.size, np.arange(x.size - 1)
    found = np.zeros((n, n))
    found[i, i] += 1200 * x[:-1] ** 2 - 400 * x[1:] + 2
    found[i + 1, i + 1] += 200
    found[i, i + 1] += -400 * x[:-1]
    found[i + 1, i] += -400 * x[:-1]
    return found


def quotients(fun, x, eps=1e-6):
    """The Jacobian by central finite differences: one column for each element."""
    columns = []
    for i in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[i] = eps
        columns.append((np.asarray(fun(x + step)) - np.asarray(fun(x - step))) / (2 * eps))
    return np.stack(columns, -1).reshape(*columns[0].shape, *x.shape)


FUNCTIONS = [
    np.sin,
    np.sum,
    lambda x: x[1],
    lambda x: np.outer(x, np.exp(x)),
    lambda x: np.cumsum(x * x)[::2],
    lambda x: np.linalg.inv(np.outer(x, x) + 2 * np.eye(4)) @ x,
    lambda x: np.sort(x) * np.where(x > 0, x, 1.0),
    lambda x: x.reshape(2, 2) @ x.reshape(2, 2).T,
    lambda x: np.stack([x.max(), x.prod(), np.linalg.norm(x)]),
]


@both_modes
@pytest.mark.parametrize("fun", FUNCTIONS)
def test_jacobians_are_those_of_finite_differences(jac, fun):
    found = jac(fun)(X)
    assert type(found) is np.ndarray
    assert_allclose(found, quotients(fun, X), rtol=1e-6, atol=1e-8)
    found[...] = 0.0  # the receiver's own


@both_modes
@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (0,), (2, 0)])
def test_shapes_of_arguments(jac, shape):
    x = np.random.default_rng(1).normal(size=shape)
    found = jac(lambda x: np.stack([x, x * x]))(x)
    assert found.shape == (2, *shape, *shape)
    size = x.size
    want = np.stack([np.eye(size), np.diag(2 * x.ravel())]).reshape(found.shape)
    assert_allclose(found, want)
    assert float(jac(lambda x: x**3)(2.0)) == 12.0


@both_modes
def test_a_constant_has_a_zero_jacobian(jac):
    assert_array_equal(jac(lambda x: np.ones(3))(X), np.zeros((3, 4)))
    assert_array_equal(jac(lambda x: x.astype(int).astype(float))(X), np.zeros((4, 4)))
    assert_array_equal(jac(lambda x: {"a": x, "b": 2.0})(X)["b"], np.zeros(4))


# ------------------------------------------------------------------ row 46: containers, aux, argnums


class Pair(NamedTuple):
    a: object
    b: object


@both_modes
def test_row_46_blocks_of_containers(jac):
    def fun(p, s):
        return {"y": p["w"] @ p["b"] * s, "z": Pair(p["b"], s * s)}

    p = {"w": np.arange(6.0).reshape(2, 3), "b": np.array([1.0, -1.0, 2.0])}
    found = jac(fun, argnums=(0, 1))(p, 3.0)
    y, z = found["y"], found["z"]
    assert_allclose(y[0]["w"], 3 * np.einsum("ij,k->ijk", np.eye(2), p["b"]))
    assert_allclose(y[0]["b"], 3 * p["w"])
    assert_allclose(y[1], p["w"] @ p["b"])
    assert isinstance(z, Pair)
    assert_array_equal(z.a[0]["b"], np.eye(3))
    assert_array_equal(z.a[0]["w"], np.zeros((3, 2, 3)))
    assert_array_equal(z.b[0]["w"], np.zeros((2, 3)))
    assert z.b[1] == 6.0


@both_modes
def test_row_46_mixed_precision(jac):
    x, y = np.array([2.0], np.float16), np.array([3.0], np.float32)
    found = jac(lambda t: (t[0], t[1], t[0] + t[1]))((x, y))
    want = [[1, 0], [0, 1], [1, 1]]
    columns, rows = [np.float16, np.float32], [np.float16, np.float32, np.float32]
    for i, j in itertools.product(range(3), range(2)):
        assert_array_equal(found[i][j], [[want[i][j]]])
        assert found[i][j].dtype == (rows[i] if jac is xf.jacfwd else columns[j])


@both_modes
def test_row_46_aux(jac):
    found, aux = jac(lambda x: (x * x, {"sum": x.sum(), "text": "kept"}), has_aux=True)(X)
    assert_allclose(found, np.diag(2 * X))
    assert aux["sum"] == X.sum()
    assert aux["text"] == "kept"
    hessian, aux = xf.hessian(lambda x: (np.sum(x**3), x * 2), has_aux=True)(X)
    assert_allclose(hessian, np.diag(6 * X))
    assert_array_equal(aux, 2 * X)


@both_modes
def test_row_38_argnums_and_argnames(jac):
    def fun(x, y, *, z=2.0, n=1):
        return x * y * z * n

    x, y = np.array([1.0, 2.0]), np.array([3.0, 5.0])
    assert_allclose(jac(fun)(x, y), np.diag(2 * y))
    assert_allclose(jac(fun, argnums=-1)(x, y), np.diag(2 * x))
    first, second = jac(fun, (1, 0))(x, y, n=3)
    assert_allclose(first, np.diag(6 * x))
    assert_allclose(second, np.diag(6 * y))
    assert_allclose(jac(fun, argnames="z")(x, y, z=4.0), x * y)
    both = jac(fun, argnums=0, argnames=("z",))(x, y, z=4.0)
    assert_allclose(both[0][0], np.diag(4 * y))
    assert_allclose(both[1]["z"], x * y)
    with pytest.raises(GradientError, match=rf"{jac.__name__} of fun: argnums=2"):
        jac(fun, 2)(x, y)
    with pytest.raises(GradientError, match=rf"{jac.__name__} of fun: argnames has 'z'"):
        jac(fun, argnames="z")(x, y)


# ------------------------------------------------------------------ hessians: row 47


def test_row_47_hessian_of_containers():
    def fun(p):
        return p["a"] @ p["a"] * p["b"] + p["b"] ** 3

    a, b = np.array([1.0, 2.0, 3.0]), 0.5
    found = xf.hessian(fun)({"a": a, "b": b})
    assert_allclose(found["a"]["a"], 2 * b * np.eye(3))
    assert_allclose(found["a"]["b"], 2 * a)
    assert_allclose(found["b"]["a"], 2 * a)
    assert_allclose(found["b"]["b"], 6 * b)
    blocks = xf.hessian(lambda x, y: np.sum(x * y * y), argnums=(0, 1))(a, a + 1)
    assert_allclose(blocks[0][0], np.zeros((3, 3)))
    assert_allclose(blocks[0][1], np.diag(2 * (a + 1)))
    assert_allclose(blocks[1][1], np.diag(2 * a))


def test_row_47_holomorphic_hessian():
    z = np.array([1 + 2j, 0.5j])
    found = xf.hessian(lambda z: np.sum(z**3) + z[0] * z[1], holomorphic=True)(z)
    assert_allclose(found, np.diag(6 * z) + np.array([[0, 1], [1, 0]]))


def test_hessian_of_several_outputs():
    found = xf.hessian(lambda x: {"c": x**3, "s": x[0] * x[1]})(X)
    want = np.zeros((4, 4, 4))
    want[range(4), range(4), range(4)] = 6 * X
    assert_allclose(found["c"], want)
    assert_allclose(found["s"], [[0, 1, 0, 0], [1, 0, 0, 0], *np.zeros((2, 4))])


@pytest.mark.parametrize("outer", JACOBIANS)
@pytest.mark.parametrize("inner", [*JACOBIANS, xf.grad])
def test_hessian_by_every_composition(outer, inner):
    assert_allclose(outer(inner(rosenbrock))(X), rosenbrock_hessian(X), atol=1e-9)


def test_hessian_takes_a_few_passes_whatever_the_dimension():
    counts = []
    for n in (5, 40):
        x = np.random.default_rng(0).normal(size=n)
        with xf.Profile() as profile:
            found = xf.hessian(rosenbrock)(x)
        assert_allclose(found, rosenbrock_hessian(x))
        counts.append(profile.calls("Mul"))
    assert counts[0] == counts[1]


def test_third_order():
    x = np.array([0.5, 1.5])
    found = xf.jacfwd(xf.hessian(lambda x: np.sum(x**4) + x[0] ** 2 * x[1]))(x)
    want = np.zeros((2, 2, 2))
    want[0, 0, 0], want[1, 1, 1] = 24 * x
    want[0, 0, 1] = want[0, 1, 0] = want[1, 0, 0] = 2.0
    assert_allclose(found, want)


def test_hvp():
    v = np.array([1.0, -2.0, 0.5, 3.0])
    assert_allclose(xf.hvp(rosenbrock, (X,), (v,)), rosenbrock_hessian(X) @ v)
    first, second = xf.hvp(lambda x, y: np.sum(x * y * y), (X, v), (v, X))
    assert_allclose(first, 2 * v * X)
    assert_allclose(second, 2 * v * v + 2 * X * X)
    tree = xf.hvp(lambda p: p["a"] ** 2 * p["b"], ({"a": 2.0, "b": 3.0},), ({"a": 1.0, "b": 10.0},))
    assert {key: float(value) for key, value in tree.items()} == {"a": 46.0, "b": 4.0}
    assert xf.hvp(lambda x: np.sum(x**3), (X.astype("float32"),), (v.astype("float32"),)).dtype == np.float32
    with pytest.raises(GradientError, match="scalar-output"):
        xf.hvp(np.sin, (X,), (v,))
    with pytest.raises(GradientError, match="shape"):
        xf.hvp(rosenbrock, (X,), (v[:2],))


# ------------------------------------------------------------------ complex numbers, errors: rows 43, 44


@both_modes
def test_row_43_holomorphic(jac):
    z = np.array([1 + 2j, -0.5j])
    assert_allclose(jac(lambda z: z**2 + z[0], holomorphic=True)(z), np.diag(2 * z) + np.array([[1, 0], [1, 0]]))
    with pytest.raises(GradientError, match="holomorphic=True"):
        jac(lambda z: z**2)(z)


def test_row_43_real_functions_of_complex_numbers():
    found = xf.jacrev(lambda z: np.abs(z) ** 2)(np.array([1 + 1j, 2j]))
    assert_allclose(found, np.diag([2 - 2j, -4j]))


@both_modes
def test_row_44_holomorphic_of_real_numbers(jac):
    with pytest.raises(GradientError, match="holomorphic=True needs complex"):
        jac(np.sin, holomorphic=True)(X)
    with pytest.raises(GradientError, match="holomorphic=True needs complex outputs"):
        jac(np.abs, holomorphic=True)(X + 1j)


@both_modes
@pytest.mark.parametrize(
    ("argument", "kind", "message"),
    [
        (np.arange(3), GradientError, "dtype int64.*astype"),
        ({"n": 3}, GradientError, r"\['n'\] has dtype int64"),
        (True, GradientError, "dtype bool"),
        ("text", OperandTypeError, "is str, no array"),
    ],
)
def test_row_41_arguments_that_do_not_vary(jac, argument, kind, message):
    with pytest.raises(kind, match=f"{jac.__name__} of <lambda>: the (argument|leaf) ?.*{message}"):
        jac(lambda x: x)(argument)


@both_modes
def test_outputs_that_cannot_be_differentiated(jac):
    with pytest.raises((GradientError, OperandTypeError), match=r"<lambda>.* output is str"):
        jac(lambda x: "text")(X)
    with pytest.raises(GradientError, match=r"an output has dtype int64.*has_aux"):
        jac(lambda x: x.astype(int))(X)
    with pytest.raises(HostReadError, match="would drop its derivative"):
        jac(lambda x: x * float(x[0]))(X)


def test_a_size_that_is_not_known():
    with pytest.raises(ShapeError, match="not known"):
        xf.make_program(lambda x: xf.jacfwd(np.sin)(x[x > 0]))(X)


# ------------------------------------------------------------------ other layers


@both_modes
def test_tracked_in_tracked_out(jac):
    assert type(jac(np.sin)(xf.array(X))) is xf.Array
    assert type(jac(lambda x: x * xf.array(2.0))(X)) is np.ndarray


@both_modes
def test_other_devices(jac):
    device = array_api_strict.Device("device1")
    x = array_api_strict.asarray(X, device=device)
    found = jac(lambda x: xnp.sin(x) * 2.0)(x)
    assert found.device == device
    assert_allclose(xf.to_numpy(found), np.diag(2 * np.cos(X)))


@both_modes
def test_under_other_transformations(jac):
    def fun(x):
        return np.outer(x, np.sin(x))

    want = quotients(fun, X)
    assert_allclose(xf.trace(jac(fun))(X), want, rtol=1e-6, atol=1e-8)
    traced = xf.trace(jac(fun))
    traced(X)
    assert_allclose(traced(X + 0.5), quotients(fun, X + 0.5), rtol=1e-6, atol=1e-8)
    rows = np.stack([X, X + 0.5])
    assert_allclose(xf.vmap(jac(fun))(rows), [jac(fun)(x) for x in rows])
    assert_allclose(xf.grad(lambda x: jac(fun)(x).sum())(X), quotients(lambda x: jac(fun)(x).sum(), X), rtol=1e-6)
    assert_allclose(xf.make_program(jac(fun))(X)(X), jac(fun)(X))


def test_hessians_under_other_transformations():
    rows = np.stack([X, X * 0.5])
    want = np.stack([rosenbrock_hessian(x) for x in rows])
    assert_allclose(xf.vmap(xf.hessian(rosenbrock))(rows), want)
    assert_allclose(xf.trace(xf.hessian(rosenbrock))(X), want[0])
    assert_allclose(xf.hessian(xf.trace(rosenbrock))(X), want[0])
    with xf.Profile(), xf.Grad() as tape:
        x = tape.attach(X)
        trace = np.trace(xf.hessian(rosenbrock)(x))
        found = tape.gradient(trace, x)
    assert_allclose(found, quotients(lambda x: np.trace(rosenbrock_hessian(x)), X), rtol=1e-6)


# ------------------------------------------------------------------ all pairs


def chain(x):
    for _ in range(3):
        x = np.tanh(x * 1.5) + 0.1 * x
    return x


def attention(x):
    scores = np.outer(x, x) / 2.0
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights @ x / weights.sum(axis=1)


def indexing(x):
    return np.concatenate([x[::-1] * x[0], x[np.array([1, 1, 3])], np.sort(x)])


def branches(x):
    return np.where(x > 0, np.sqrt(np.abs(x) + 1.0), x**2) * np.maximum(x, 0.37)


ZOO = {"chain": chain, "attention": attention, "indexing": indexing, "branches": branches}
T = np.array([0.3, -1.0, 2.0, 0.7])
EPS = 1e-5


def total(fun):
    """A number out of whatever a program returns, with a weight for each element."""

    def number(x):
        out = fun(x)
        return (out * out).sum() + (out * 0.5).sum()

    return number


def batch_of(x):
    return np.stack([x * 1.0, x * 0.5 + 0.1, x * 2.0])


# each takes a program from an array to an array, and gives another; beside it what it means, by the program alone
TRANSFORMATIONS = {
    "grad": (
        lambda fun: xf.grad(total(fun)),
        lambda fun: lambda x: quotients(total(fun), x, EPS),
    ),
    "jvp": (
        lambda fun: lambda x: xf.jvp(fun, (x,), (T,))[1],
        lambda fun: lambda x: (np.asarray(fun(x + EPS * T)) - np.asarray(fun(x - EPS * T))) / (2 * EPS),
    ),
    "linearize": (
        lambda fun: lambda x: xf.linearize(fun, x)[1](T),
        lambda fun: lambda x: (np.asarray(fun(x + EPS * T)) - np.asarray(fun(x - EPS * T))) / (2 * EPS),
    ),
    "vmap": (
        lambda fun: lambda x: xf.vmap(fun)(xnp.stack([x * 1.0, x * 0.5 + 0.1, x * 2.0])).sum(axis=0),
        lambda fun: lambda x: np.sum([fun(row) for row in batch_of(x)], axis=0),
    ),
    "trace": (xf.trace, lambda fun: fun),
}
PAIRS = list(itertools.product(TRANSFORMATIONS, repeat=2))
TRIPLES = list(itertools.permutations(["grad", "jvp", "vmap", "trace"], 3))


@pytest.mark.parametrize("program", ZOO.values(), ids=ZOO)
@pytest.mark.parametrize("names", [*((name,) for name in TRANSFORMATIONS), *PAIRS], ids=".".join)
def test_all_pairs(names, program):
    found, exact, rough = program, program, program
    for name in reversed(names):
        make, meaning = TRANSFORMATIONS[name]
        # the meaning is taken of the transformation below it, which was checked on its own: one difference at a time
        rough = meaning(exact)
        found = exact = make(found)
    for x in (X, X * 0.7 + 0.05):
        assert_allclose(found(x), rough(x), rtol=2e-5, atol=2e-7)


@pytest.mark.parametrize("program", [attention, indexing], ids=["attention", "indexing"])
@pytest.mark.parametrize("names", TRIPLES, ids=".".join)
def test_triples(names, program):
    found, rough = program, program
    for name in reversed(names):
        make, meaning = TRANSFORMATIONS[name]
        rough, found = meaning(found), make(found)
    assert_allclose(found(X), rough(X), rtol=2e-5, atol=2e-7)


@pytest.mark.parametrize("derivative", [xf.jacfwd, xf.jacrev, xf.jacobian, xf.hessian])
def test_has_aux_stands_third_as_in_grad(derivative):
    x = np.array([1.0, 2.0])
    found, aux = derivative(lambda v: (np.sum(v**3), v + 1.0), 0, True)(x)
    want = np.diag(6 * x) if derivative is xf.hessian else 3 * x**2
    np.testing.assert_allclose(found, want)
    np.testing.assert_array_equal(aux, x + 1.0)


@pytest.mark.parametrize("primals", [2.0, np.ones(2), None], ids=["number", "array", "None"])
def test_hvp_says_that_its_primals_are_a_sequence(primals):
    with pytest.raises(GradientError, match="hvp: primals must be a tuple or list, one entry per argument"):
        xf.hvp(lambda x: x**3, primals, (1.0,))
