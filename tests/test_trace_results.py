"""Whose memory the results of traced functions and of derivatives are: a caller's, who may write into them."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import xform as xf
from xform.programs.passes import LEVELS

X = np.arange(1.0, 7.0).reshape(2, 3)


def total(x, y):
    return np.sum((x + y) ** 2)


def factors(x, y):
    return np.sum(np.sum(x, axis=0) * np.sum(y, axis=1)[0])


DERIVED = {
    "grad": lambda f: xf.grad(f, argnums=(0, 1)),
    "value_and_grad": lambda f: xf.value_and_grad(f, argnums=(0, 1)),
    "vmap of grad": lambda f: xf.vmap(xf.grad(lambda x, y: f(x[None] * np.ones((2, 1)), y), argnums=(0, 1)), (0, None)),
    "jvp of grad": lambda f: lambda x, y: xf.jvp(xf.grad(f, argnums=(0, 1)), (x, y), (x, y)),
    "jacrev": lambda f: xf.jacrev(lambda x, y: np.stack([f(x, y), np.sum(x + y)]), argnums=(0, 1)),
    "hessian": lambda f: xf.hessian(f, argnums=(0, 1)),
    "vjp": lambda f: lambda x, y: xf.vjp(f, x, y)[1](1.0),
}


@pytest.mark.parametrize("function", [total, factors])
@pytest.mark.parametrize("name", DERIVED)
def test_derivatives_share_no_memory_and_can_be_written_to(name, function):
    derived = DERIVED[name]
    runs = {
        "eager": derived(function),
        "traced": xf.trace(derived(function)),
        "of traced": derived(xf.trace(function)),
        "program": xf.make_program(derived(function))(X, X),
        "compiled": xf.compile_program(xf.make_program(derived(function))(X, X)),
    }
    near, far = ([np.array(leaf) for leaf in xf.tree.leaves(runs["eager"](x, 2.0 * X))] for x in (X, X + 1.0))
    for kind, run in runs.items():
        for call in range(4):
            x, y = X + call % 2, 2.0 * X
            found = [leaf for leaf in xf.tree.leaves(run(x, y))]
            arrays = [leaf for leaf in found if isinstance(leaf, np.ndarray)]
            for one, other in itertools.combinations([*arrays, x, y], 2):
                assert not np.shares_memory(one, other), (kind, call)
            for have, want in zip(found, far if call % 2 else near, strict=True):
                assert_allclose(have, want, rtol=1e-12)
            for array in arrays:
                array[...] = np.nan


COPIES = {
    "astype": lambda x: x.astype(float),
    "zeros_like": np.zeros_like,
    "full_like": lambda x: np.full_like(x, 2.0),
    "times one": lambda x: np.broadcast_to(np.sum(x), (2, 3)) * 1.0,
    "plus zeros": lambda x: x + np.zeros_like(x),
    "reshaped twice": lambda x: np.reshape(np.reshape(x.T, (6,)), (3, 2)),
    "two of one value": lambda x: (np.sin(x), np.sin(x)),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", COPIES)
def test_what_is_new_memory_in_eager_is_so_in_replays(name, level):
    traced, x = xf.trace(COPIES[name], level=level), X.copy()
    want = [np.array(leaf) for leaf in xf.tree.leaves(COPIES[name](X))]
    for _ in range(4):
        found = xf.tree.leaves(traced(x))
        for have, expected in zip(found, want, strict=True):
            assert_array_equal(have, expected)
        for array in found:
            array[...] = np.nan
    assert_array_equal(x, X)


def test_a_view_of_an_argument_stays_one():
    traced = xf.trace(lambda x: (x.T, x[0], np.broadcast_to(x[0], (2, 3))))
    for _ in range(3):
        assert [np.shares_memory(each, X) for each in traced(X)] == [True, True, True]
        assert [each.flags.writeable for each in traced(X)] == [True, True, False]


@pytest.mark.parametrize("dtype", [">f8", ">i4", "<f4"])
@pytest.mark.parametrize("function", [np.zeros_like, np.ones_like, lambda x: np.full_like(x, 2), np.copy])
def test_results_keep_their_byte_order(function, dtype):
    traced, x = xf.trace(function), np.arange(3).astype(dtype)
    for _ in range(3):
        found = traced(x)
        assert found.dtype.str == function(x).dtype.str
        assert found.tobytes() == function(x).tobytes()


@pytest.mark.parametrize("function", [np.sum, np.mean, lambda x: np.sum(3.0 * x), lambda x: np.sum(x**3)])
@pytest.mark.parametrize("transform", [
    xf.hessian, lambda f: xf.jacfwd(xf.grad(f)), lambda f: xf.jacrev(xf.grad(f)), lambda f: xf.jacfwd(xf.jacfwd(f)),
])  # fmt: skip
def test_second_derivatives_of_a_traced_function_that_may_be_linear(transform, function):
    traced, x = transform(xf.trace(function)), np.array([0.5, -1.0, 2.0])
    want = np.diag(6.0 * x) if function(x) == np.sum(x**3) else np.zeros((3, 3))
    for _ in range(3):
        assert_allclose(traced(x), want, atol=1e-12)


def test_auxiliary_results_of_a_traced_function_are_plain_under_a_batch_of_tangents():
    traced = xf.trace(lambda x: (x**2, np.sum(x)))
    for _ in range(3):
        slope, aux = xf.jacfwd(traced, has_aux=True)(np.array([1.0, 2.0]))
        assert_allclose(slope, np.diag([2.0, 4.0]))
        assert type(aux) is np.float64
        assert aux == 3.0


def test_a_python_number_is_one_of_numpys_after_its_first_operation():
    y = np.ones(2, np.float32)
    weak, strong = xf.trace(lambda n: n * y), xf.trace(lambda n: (n + 1.0) * y)
    for _ in range(3):
        assert (weak(2.0).dtype, strong(2.0).dtype) == (np.float32, np.float64)
    assert xf.value_and_grad(lambda n: np.sum((n + 1.0) * y))(2.0)[0].dtype == np.float64


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("function", [
    lambda x: x[0, 1], lambda x: x[0, ..., 1], lambda x: (x[0, ..., 1], x[0, 1]), lambda x: np.sum(x),
    lambda x: np.reshape(np.sum(x), ()), lambda x: -x[0, ..., 1], lambda x: [row for row in np.sin(x)[0]],
    lambda x: np.stack([np.sum(x), np.max(x)])[1], lambda x: np.mean(x) * 1.0,
])  # fmt: skip
def test_results_without_axes_are_numbers_or_arrays_as_in_eager(function, level):
    traced = xf.trace(function, level=level)
    want = [leaf.data for leaf in xf.tree.leaves(function(xf.array(X)))]
    for _ in range(4):
        found = xf.tree.leaves(traced(X))
        assert [type(each) for each in found] == [type(each) for each in want]
        assert_array_equal(found, want)
