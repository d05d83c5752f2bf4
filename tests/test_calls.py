"""A compiled program is one operation with reverse, forward and batch rules of its own, over the zoo."""

import numpy as np
import pytest

import xform as xf
from tests.zoo import ZOO
from xform.programs.call import Call
from xform.transforms.calls import called

STRAIGHT = [each for each in ZOO if not each.reads]


class OfProgram:
    """A function that calls one compiled program."""

    def __init__(self, specimen, args):
        self.structure = xf.tree.structure(args)
        program = xf.make_program(specimen.fun)(*args)
        self.out = program.out_structure
        self.call = Call(program)

    def __call__(self, *args):
        return xf.tree.unflatten(self.out, called(self.call, xf.tree.leaves(args)))


def floating(args):
    """Positions of arguments whose leaves are all floating."""
    return tuple(n for n, arg in enumerate(args) if all(x.dtype.kind == "f" for x in xf.tree.leaves(arg)))


def total(fun):
    def scalar(*args):
        return sum((leaf * leaf).sum() for leaf in xf.tree.leaves(fun(*args)))

    return scalar


def same(got, want, dtype="float64"):
    rtol, atol = (1e-9, 1e-11) if dtype == "float64" else (2e-3, 2e-4)
    for a, b in zip(xf.tree.leaves(got), xf.tree.leaves(want), strict=True):
        assert xf.aval_of(a).dtype == xf.aval_of(b).dtype
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("specimen", STRAIGHT, ids=lambda each: each.name)
def test_values_and_gradients_on_other_inputs(specimen, dtype):
    made, args = OfProgram(specimen, specimen.args(0, dtype)), specimen.args(1, dtype)
    same(made(*args), specimen.fun(*args), dtype)
    which = floating(args)
    same(xf.grad(total(made), argnums=which)(*args), xf.grad(total(specimen.fun), argnums=which)(*args), dtype)


@pytest.mark.parametrize("specimen", STRAIGHT, ids=lambda each: each.name)
def test_forward_mode_batches_and_second_order(specimen):
    made, args = OfProgram(specimen, specimen.args(0)), specimen.args(1)
    which = floating(args)
    chosen = [args[n] for n in which]

    def of(fun):
        def some(*moved):
            full = list(args)
            for n, x in zip(which, moved, strict=True):
                full[n] = x
            return total(fun)(*full)

        return some

    tangents = xf.tree.map(np.cos, tuple(chosen))
    same(xf.jvp(of(made), chosen, tangents), xf.jvp(of(specimen.fun), chosen, tangents))
    lanes = xf.tree.map(lambda x: np.stack([x, 0.99 * x]), tuple(chosen))
    same(xf.vmap(xf.grad(of(made)))(*lanes), xf.vmap(xf.grad(of(specimen.fun)))(*lanes))
    same(xf.hvp(of(made), chosen, tangents), xf.hvp(of(specimen.fun), chosen, tangents))


def shapes():
    x = np.linspace(0.1, 1.0, 5)

    def fun(x):
        h = np.sin(x) * x
        return h, np.exp(h).sum(), 2.0 * np.ones(3)

    program = xf.make_program(fun)(x)
    return Call(program), fun, x


def test_derivatives_are_derived_once_and_run_compiled():
    call, _, x = shapes()
    gradient = xf.grad(lambda x: called(call, [x])[1])
    first = gradient(x)
    derived = dict(call.derived)
    (_, halves, (backward, reached)) = derived.values()  # the second for the one output that is used
    assert reached == halves.reached == (0,)
    assert halves.forward.compiled is not None
    assert backward.compiled is not None
    assert halves.backward.compiled is None
    np.testing.assert_array_equal(gradient(x), first)
    assert call.derived == derived


def test_outputs_that_nothing_reaches_and_inputs_that_nothing_needs():
    call, fun, x = shapes()
    np.testing.assert_array_equal(xf.grad(lambda x: called(call, [x])[2].sum())(x), np.zeros(5))
    with xf.Grad() as tape:
        tape.attach(x)
        found = called(call, [x])
    for got, want in zip(found, fun(x), strict=True):
        np.testing.assert_allclose(got, want)


@pytest.mark.parametrize("layer", [xf.Profile, xf.NanGuard, xf.Trace])
def test_layers_that_see_operations_see_those_inside(layer):
    call, fun, x = shapes()
    with layer():
        found = called(call, [xf.array(x)])
    np.testing.assert_allclose(xf.concrete(found[1]), fun(x)[1])


def test_a_profile_around_a_gradient_sees_both_directions():
    call, _, x = shapes()
    with xf.Profile() as profile:
        xf.grad(lambda x: called(call, [x])[1])(x)
    names = str([row for row in profile.rows])
    assert "Sin" in names
    assert "Cos" in names


def test_threads_share_a_call():
    from concurrent.futures import ThreadPoolExecutor

    call, _, x = shapes()
    gradient = xf.grad(lambda x: called(call, [x])[1])
    want = [gradient(x * n) for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for got, expected in zip(pool.map(lambda n: gradient(x * n), list(range(8)) * 20), want * 20, strict=True):
            np.testing.assert_array_equal(got, expected)
