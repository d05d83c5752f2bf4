"""Products: NumPy's values, types and errors for every rank pair; gradients against closed forms; other libraries."""

from __future__ import annotations

import itertools

import array_api_strict as strict
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import xform as xf
import xform.numpy as xnp
from tests.operators.unknown_shapes import Hide
from xform import ops
from xform.core.aval import Aval, aval_of
from xform.core.errors import DeviceMismatchError, DtypeError, OperandError, ShapeError
from xform.core.stack import apply
from xform.ops.einsum import explicit, make_einsum

DTYPES = ("bool", "int8", "int64", "uint8", "float16", "float32", "float64", "complex64", "complex128")
rng = np.random.default_rng(0)


def sample(*shape, dtype="float64"):
    x = rng.integers(-3, 4, shape)
    return (x * (1 - 0.5j) if np.dtype(dtype).kind == "c" else x % 7 if np.dtype(dtype).kind == "u" else x).astype(
        dtype
    )


def assert_same(got, want):
    assert type(got) is type(want)
    assert np.shape(got) == np.shape(want)
    assert got.dtype == want.dtype
    np.testing.assert_allclose(np.asarray(got, complex), np.asarray(want, complex), rtol=1e-5)


VECTORS = ((0,), (1,), (3,))
SHAPES = (*VECTORS, (3, 1), (2, 3), (3, 2), (0, 3), (3, 0), (4, 2, 3), (1, 3, 2), (2, 1, 2, 3), (2, 4, 3, 2), (0, 3, 2))


@pytest.mark.parametrize(("left", "right"), list(itertools.product(SHAPES, SHAPES)))
def test_matmul_is_numpys_or_raises(left, right):
    x, y = sample(*left), sample(*right)
    try:
        want = np.matmul(x, y)
    except ValueError:
        with pytest.raises(ShapeError, match="Matmul"):
            xnp.matmul(x, y)
        with pytest.raises(ShapeError):
            ops.Matmul().infer(aval_of(x), aval_of(y))
        return
    assert_same(xnp.matmul(x, y), want)
    assert_same((xf.array(x) @ xf.array(y)).data, want)
    assert ops.Matmul().infer(aval_of(x), aval_of(y)) == aval_of(want)


@pytest.mark.parametrize(
    ("left", "right"), [((3,), (3,)), ((2, 3), (3, 2)), ((2, 2, 3), (3, 2)), ((2, 2, 3), (2, 3, 1))]
)
@pytest.mark.parametrize(("one", "other"), list(itertools.product(DTYPES, DTYPES)))
def test_matmul_types(left, right, one, other):
    x, y = sample(*left, dtype=one), sample(*right, dtype=other)
    want = np.matmul(x, y)
    assert_same(xnp.matmul(x, y), want)
    assert ops.Matmul().infer(aval_of(x), aval_of(y)) == aval_of(want)


def test_matmul_of_views():
    x, y = sample(4, 6, 8)[::2, ::-1, ::2], np.broadcast_to(sample(4, 1), (2, 4, 3))
    assert_same(xnp.matmul(x, y), np.matmul(x, y))
    assert_same(xnp.matmul(x, y[0]), np.matmul(x, y[0]))
    assert_same(xnp.matmul(x[0], y[0]), np.matmul(x[0], y[0]))


@pytest.mark.parametrize("scalar", [2.0, np.float64(2.0), np.array(2.0)])
def test_matmul_takes_no_scalar(scalar):
    for pair in ((scalar, np.ones(2)), (np.ones((2, 2)), scalar)):
        with pytest.raises(ShapeError, match="Matmul"):
            xnp.matmul(*pair)
        with pytest.raises(ShapeError, match="no axes"):
            ops.Matmul().infer(*map(aval_of, pair))


@pytest.mark.parametrize("other", [(2,), (2, 2), (2, 2, 2), ()], ids=str)
def test_lanes_of_a_batch_may_not_be_scalars_either(other):
    """Of two operands without axes it multiplied the lanes with one another."""
    y = np.ones(other)
    for fun in (lambda x: x @ y, lambda x: y @ x, lambda x: x @ x):
        for turned in (xf.vmap(fun), xf.vmap(xf.grad(lambda x, fun=fun: xnp.sum(fun(x))))):
            with pytest.raises(ShapeError, match="no axes"):
                turned(np.ones(2))


def test_unknown_lengths():
    f = np.dtype("float64")
    assert ops.Matmul().infer(Aval((None, 3), f), Aval((3, 2), f)) == Aval((None, 2), f)
    assert ops.Matmul().infer(Aval((2, None), f), Aval((3, None), f)) == Aval((2, None), f)
    assert ops.Matmul().infer(Aval((None, 2, 3), f), Aval((4, 3, 2), f)) == Aval((4, 2, 2), f)
    assert make_einsum("ij,jk->ik").infer(Aval((None, 3), f), Aval((None, 2), f)) == Aval((None, 2), f)
    assert make_einsum("i,i->i").infer(Aval((None,), f), Aval((1,), f)) == Aval((None,), f)


def closed_form(x, y, t):
    """The textbook formula on full matrices, the broadcast axes summed."""
    one, other = (x[None, :] if x.ndim == 1 else x), (y[:, None] if y.ndim == 1 else y)
    if x.ndim == 1:
        t = np.expand_dims(t, -1 if y.ndim == 1 else -2)
    if y.ndim == 1:
        t = np.expand_dims(t, -1)
    return (
        ops.SumTo(one.shape).evaluate(np, np.matmul(t, np.swapaxes(other, -1, -2))).reshape(x.shape),
        ops.SumTo(other.shape).evaluate(np, np.matmul(np.swapaxes(one, -1, -2), t)).reshape(y.shape),
    )


ROWS = {1: ((3,),), 2: ((2, 3),), 3: ((4, 2, 3), (1, 2, 3)), 4: ((5, 4, 2, 3), (5, 1, 2, 3))}
COLUMNS = {1: ((3,),), 2: ((3, 2),), 3: ((4, 3, 2),), 4: ((5, 4, 3, 2), (1, 4, 3, 2))}
PAIRS = [(a, b) for m, n in itertools.product(ROWS, COLUMNS) for a, b in itertools.product(ROWS[m], COLUMNS[n])]


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_behaviour_14_matmul_of_every_rank_pair(left, right, transposed):
    x, y = rng.normal(size=left), rng.normal(size=right)
    flip_x, flip_y = (flag and z.ndim > 1 for flag, z in zip(transposed, (x, y), strict=True))
    x, y = (np.swapaxes(x, -1, -2) if flip_x else x), (np.swapaxes(y, -1, -2) if flip_y else y)

    def product(a, b):
        return (a.mT if flip_x else a) @ (b.mT if flip_y else b)

    out, pull = xf.vjp(product, x, y)
    t = rng.normal(size=np.shape(out))
    dx, dy = pull(np.asarray(t) if np.ndim(t) else np.float64(t))
    want_x, want_y = closed_form(x.mT if flip_x else x, y.mT if flip_y else y, t)
    np.testing.assert_allclose(dx, want_x.mT if flip_x else want_x, rtol=1e-10)
    np.testing.assert_allclose(dy, want_y.mT if flip_y else want_y, rtol=1e-10)


def test_cotangent_dtypes_are_the_operands():
    x, y = sample(2, 3, dtype="float32"), sample(3, 2, dtype="float64")
    dx, dy = xf.vjp(xnp.matmul, x, y)[1](np.ones((2, 2)))
    assert (dx.dtype, dy.dtype) == (np.float32, np.float64)
    dx, dy = xf.vjp(lambda a, b: xnp.einsum("ij,jk->k", a, b), x, y + 0j)[1](np.ones(2) * 1j)
    assert (dx.dtype, dy.dtype) == (np.float32, np.complex128)


def test_complex_derivatives_do_not_conjugate():
    z, w = sample(2, 2, dtype="complex128"), sample(2, 2, dtype="complex128")
    t = np.array([[1j, 0], [0, 1]])
    np.testing.assert_allclose(xf.vjp(lambda a: a @ w, z)[1](t)[0], t @ w.T)
    np.testing.assert_allclose(xf.vjp(lambda a: xnp.einsum("ij,jk", a, w), z)[1](t)[0], t @ w.T)


CALLS = [
    (
        "dot",
        [((), (2,)), ((2,), ()), ((3,), (3,)), ((2, 3), (3,)), ((2, 3), (3, 2)), ((4, 2, 3), (3,)), ((3,), (4, 3, 2))],
    ),
    ("dot", [((4, 2, 3), (5, 3, 2)), ((2, 3), (4, 3, 2))]),
    ("inner", [((), (2,)), ((3,), (3,)), ((2, 3), (4, 3)), ((2, 3), (5, 4, 3))]),
    ("outer", [((), ()), ((2,), (3,)), ((2, 2), (3, 1)), ((0,), (3,))]),
    ("vdot", [((3,), (3,)), ((2, 3), (3, 2))]),
    ("kron", [((2,), (3,)), ((2, 2), (3,)), ((3,), (1, 2, 2)), ((2, 1, 2), (2, 3)), ((), (2,))]),
    ("cross", [((3,), (3,)), ((4, 3), (3,)), ((2, 1, 3), (4, 3))]),
    ("tensordot", [((2, 3, 4), (3, 4, 5)), ((2, 3), (2, 3))]),
    ("vecdot", [((3,), (3,)), ((4, 3), (3,)), ((2, 1, 3), (4, 3))]),
]
CALLS = [(name, *pair) for name, pairs in CALLS for pair in pairs]


@pytest.mark.parametrize(("name", "left", "right"), CALLS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "int64"])
def test_made_of_products_are_numpys(name, left, right, dtype):
    x, y = sample(*left, dtype=dtype), sample(*right, dtype=dtype)
    want = getattr(np, name)(x, y)
    for got in (
        getattr(xnp, name)(x, y),
        getattr(np, name)(xf.array(x), y).data,
        getattr(np, name)(x, xf.array(y)).data,
    ):
        assert np.shape(got) == np.shape(want)
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_matvec_vecmat_and_outer_of_ufuncs():
    a, v = sample(2, 4, 3, dtype="complex128"), sample(2, 3, dtype="complex128")
    np.testing.assert_allclose(xnp.matvec(a, v), np.einsum("bij,bj->bi", a, v))
    np.testing.assert_allclose(xnp.vecmat(v, a.mT), np.einsum("bj,bij->bi", v.conj(), a))
    np.testing.assert_allclose(xnp.vecdot(v, v, axis=0), (v.conj() * v).sum(0))
    np.testing.assert_allclose(np.multiply.outer(xf.array(v), a).data, np.multiply.outer(v, a))
    assert xf.grad(lambda x: np.sum(np.vecdot(x, x)))(np.array([1.0, 2.0])).tolist() == [2.0, 4.0]


@pytest.mark.parametrize("axes", [0, 1, 2, (0, 1), ((0, 2), (1, 0)), ((-1,), (0,)), ([], []), ((1, 0, 2), (0, 1, 2))])
def test_tensordot_axes(axes):
    x, y = sample(3, 3, 3), sample(3, 3, 3)
    want = np.tensordot(x, y, axes)
    np.testing.assert_allclose(xnp.tensordot(x, y, axes), want)
    assert aval_of(np.tensordot(xf.array(x), y, axes)) == aval_of(want)


def test_refusals_of_tensordot_and_cross():
    x = np.ones((2, 3))
    with pytest.raises(OperandError, match="2 axes of the first"):
        xnp.tensordot(x, x, ((0, 1), (0,)))
    with pytest.raises(ShapeError, match="lengths 3 and 2"):
        ops.Tensordot((1,), (0,)).infer(aval_of(x), aval_of(x))
    with pytest.raises(ShapeError, match="Tensordot"):
        xnp.tensordot(x, x, 1)
    with pytest.raises(ShapeError, match="axes=3"):
        xnp.tensordot(x, x, 3)
    with pytest.raises(ShapeError, match="operand 1"):
        xnp.cross(np.ones(3), np.ones(2))


# ------------------------------------------------------------------ einsum

SUBSCRIPTS = (
    ("ij,jk", (2, 3), (3, 4)), ("ij,jk->ki", (2, 3), (3, 4)), ("ii", (3, 3)), ("ii->i", (3, 3)), ("ba", (2, 3)),
    ("...ij,...jk->...ik", (5, 2, 3), (3, 4)), ("i...", (2, 3)), ("...i->...", (2, 3)),
    ("ij...,j...->i...", (2, 3, 4), (3, 4)),
    (" i j , j -> i ", (2, 3), (3,)), ("ij,ij->", (2, 3), (2, 3)), (",", (), ()), ("i,->i", (3,), ()),
    ("ijji->j", (2, 3, 3, 2)),
    ("i,i->i", (1,), (3,)), ("ab,bc,cd,de->ae", (2, 3), (3, 4), (4, 2), (2, 3)), ("...,...->...", (3,), (4, 1)),
    ("ij->ij", (0, 3)), ("ij->i", (2, 0)), ("Ab,bA", (2, 3), (3, 2)),
)  # fmt: skip


@pytest.mark.parametrize("optimize", [False, True, "greedy", "optimal"])
@pytest.mark.parametrize("row", SUBSCRIPTS, ids=lambda row: row[0])
def test_einsum_is_numpys(row, optimize):
    subscripts, *shapes = row
    operands = [sample(*shape) for shape in shapes]
    want = np.einsum(subscripts, *operands)
    got = xnp.einsum(subscripts, *operands, optimize=optimize)
    np.testing.assert_allclose(got, want)
    assert (np.shape(got), got.dtype) == (np.shape(want), want.dtype)
    op = make_einsum(explicit(subscripts, tuple(map(np.ndim, operands))))
    assert op.infer(*map(aval_of, operands)) == aval_of(want)
    tracked = np.einsum(subscripts, xf.array(operands[0]), *operands[1:])
    np.testing.assert_allclose(tracked.data, want)


def test_einsum_of_large_operands_takes_a_path():
    a, b, c = rng.normal(size=(40, 50)), rng.normal(size=(50, 60)), rng.normal(size=60)
    np.testing.assert_allclose(xnp.einsum("ij,jk,k->i", a, b, c), a @ b @ c)
    value, pull = xf.vjp(lambda *xs: xnp.einsum("ij,jk,k->i", *xs), a, b, c)
    t = rng.normal(size=40)
    for got, want in zip(pull(t), (np.outer(t, b @ c), np.outer(a.T @ t, c), b.T @ (a.T @ t)), strict=True):
        np.testing.assert_allclose(got, want)
    np.testing.assert_allclose(value, a @ b @ c)


def test_einsum_of_sublists():
    a, b = sample(2, 3, 4), sample(4, 3)
    want = np.einsum(a, [Ellipsis, 0, 1], b, [1, 0], [0, Ellipsis])
    np.testing.assert_allclose(xnp.einsum(a, [Ellipsis, 0, 1], b, [1, 0], [0, Ellipsis]), want)
    np.testing.assert_allclose(xnp.einsum(a, [0, 1, 2], b, [2, 1]), np.einsum(a, [0, 1, 2], b, [2, 1]))


@pytest.mark.parametrize("dtypes", [("float32", "int32"), ("bool", "bool"), ("int8", "int8"), ("float32", "complex64")])
def test_einsum_types(dtypes):
    x, y = (sample(2, 2, dtype=dtype) for dtype in dtypes)
    want = np.einsum("ij,jk->ik", x, y)
    assert (
        xnp.einsum("ij,jk->ik", x, y).dtype == want.dtype == make_einsum("ij,jk->ik").infer(*map(aval_of, (x, y))).dtype
    )


@pytest.mark.parametrize(
    ("subscripts", "shapes", "words"),
    [
        ("ij,jk", ((2, 3),), "1 operands"),
        ("ij", ((2, 3, 4),), "operand 0 has 3 axes"),
        ("ij,jk->ik", ((2, 3), (4, 2)), "operand 1 has length 4"),
        ("ii->i", ((2, 3),), "2 != 3"),
        ("ij->k", ((2, 3),), "'k'"),
        ("ij->ii", ((2, 3),), "'i'"),
        ("...i->i", ((2, 3),), "write '...'"),
        ("i;j", ((2, 3),), "no letters"),
        ("i-j", ((2,),), "cannot read"),
    ],
)
def test_refusals_of_einsum(subscripts, shapes, words):
    with pytest.raises(OperandError, match=words.replace(".", r"\.")):
        xnp.einsum(subscripts, *[np.ones(shape) for shape in shapes])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_einsum_and_its_gradient_for_any_subscripts(data):
    """The gradient of a sum of products by one operand is the einsum of the others; differences are exact."""
    count = data.draw(st.integers(1, 3))
    terms = [data.draw(st.text("ijk", min_size=0, max_size=3)) for _ in range(count)]
    out = "".join(data.draw(st.permutations(sorted(set("".join(terms))))))[: data.draw(st.integers(0, 3))]
    lengths = {"i": 2, "j": 3, "k": 1}
    operands = [rng.normal(size=[lengths[letter] for letter in term]) for term in terms]
    subscripts = f"{','.join(terms)}->{out}"
    want = np.einsum(subscripts, *operands)
    value, pull = xf.vjp(lambda *xs: xnp.einsum(subscripts, *xs), *map(np.asarray, operands))
    np.testing.assert_allclose(value, want, atol=1e-12)
    t = rng.normal(size=want.shape)
    for i, found in enumerate(pull(np.asarray(t))):
        direction = rng.normal(size=operands[i].shape)
        moved = np.einsum(subscripts, *[direction if j == i else x for j, x in enumerate(operands)])
        np.testing.assert_allclose(np.sum(found * direction), np.sum(t * moved), atol=1e-10)


# ------------------------------------------------------------------ unknown shapes, other libraries, storage


@pytest.mark.parametrize(
    "fun",
    [
        lambda a, b: a @ b,
        lambda a, b: (a[None] @ b) @ b[0],
        lambda a, b: xnp.tensordot(a, b, 1),
        lambda a, b: xnp.einsum("ij,jk,jj->k", a, b, b),
        lambda a, b: xnp.einsum("ij,jk->", a, b),
        lambda a, b: xnp.einsum("...ij,...jk->...ik", a[None], b),
        lambda a, b: xnp.outer(a, b),
        lambda a, b: xnp.vecdot(a, b),
    ],
)
def test_rules_bake_no_length(fun):
    a, b = sample(3, 3), sample(3, 3)
    want = xf.grad(lambda x, y: xnp.sum(xnp.sin(fun(x, y))), (0, 1))(a, b)
    with Hide() as hide:
        got = xf.grad(lambda x, y: xnp.sum(xnp.sin(fun(x, y))), (0, 1))(hide.hidden(a), hide.hidden(b))
    for each, wanted in zip(got, want, strict=True):
        np.testing.assert_allclose(hide.shown(each), wanted, atol=1e-12)


@pytest.mark.parametrize(
    "fun",
    [
        xnp.matmul,
        xnp.dot,
        xnp.inner,
        xnp.outer,
        xnp.kron,
        xnp.vdot,
        xnp.vecdot,
        xnp.cross,
        lambda a, b: xnp.tensordot(a, b, ((0, 1), (1, 0))),
        lambda a, b: xnp.einsum("ij,jk->ki", a, b),
        lambda a, b: xnp.einsum("ii,jk,k->kj", a, b, a[0, :]),
        lambda a, b: xnp.einsum("ij,kj->", a, b),
    ],
)
def test_on_another_library(fun):
    device = strict.Device("device1")
    x, y = sample(3, 3), sample(3, 3)
    one, other = (strict.asarray(z, device=device) for z in (x, y))
    out = fun(one, other)
    assert out.device == device
    np.testing.assert_allclose(np.from_dlpack(strict.asarray(out, device=strict.Device("CPU_DEVICE"))), fun(x, y))
    want = xf.grad(lambda a: xnp.sum(fun(a, xf.array(y)) ** 2))(x)
    got = xf.grad(lambda a: xnp.sum(fun(a, xf.array(other)) ** 2))(one)
    assert got.device == device
    np.testing.assert_allclose(np.from_dlpack(strict.asarray(got, device=strict.Device("CPU_DEVICE"))), want, atol=1e-9)
    with pytest.raises(DeviceMismatchError):
        fun(one, y)


def test_operators_print_and_compare():
    assert repr(make_einsum("ij->ji")) == "Einsum(subscripts='ij->ji', optimize=True)"
    assert repr(ops.Tensordot((1,), (0,))) == "Tensordot(x_axes=(1,), y_axes=(0,))"
    assert make_einsum("ij->ji") is make_einsum("ij->ji")
    assert apply(ops.Matmul(), np.ones(2), np.ones(2)) == 2.0
    with pytest.raises(DtypeError):
        ops.Matmul().infer(Aval((2,), np.dtype("M8[s]")), Aval((2,), np.dtype("float64")))
