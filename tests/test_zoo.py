"""The zoo under every pair of transformations, and under the triples that mean something.

1. Three transformations change what a program computes: grad, jvp, vmap. A chain of these alone is held against
   independent values: finite differences, and a loop over the lanes.
2. The others (trace, profile, checkpoint, device) change nothing: a chain that holds some of them gives what it gives
   without them, which for a chain of nothing else is the plain run on NumPy arrays.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from typeguard import suppress_type_checks

import xform as xf
import xform.numpy as xnp
from tests.zoo import ZOO
from xform.core.errors import HostReadError
from xform.testing.numeric import directional

NAMES = {specimen.name: specimen for specimen in ZOO}
DEVICE = "array_api_strict:device1"
LANES = (1.0, 1.003, 0.995)


@pytest.fixture(autouse=True, scope="module")
def _types_are_checked_elsewhere():
    with suppress_type_checks():
        yield


# ------------------------------------------------------------------ transformations of programs


def floating(x):
    return xf.aval_of(x).dtype.kind == "f"


def total(fun):
    """A number out of whatever a program returns; every element of it counts, and counts differently."""

    def number(*args):
        leaves = xf.tree.leaves(fun(*args))
        return sum(xnp.sum(leaf * leaf * 0.5) + xnp.sum(leaf) * (0.7 + 0.2 * n) for n, leaf in enumerate(leaves))

    return number


def direction(x):
    """A tangent for an argument: a number for each element, a part of it large."""
    shape = xf.aval_of(x).shape
    return np.cos(1.0 + 2.0 * np.arange(np.prod(shape, dtype=int))).reshape(shape).astype(xf.aval_of(x).dtype)


def differentiable(args):
    return tuple(n for n, arg in enumerate(args) if all(map(floating, xf.tree.leaves(arg))))


def grad(fun):
    return lambda *args: xf.grad(total(fun), differentiable(args))(*args)


def jvp(fun):
    def pushed(*args):
        tangents = tuple(xf.tree.map(lambda x: direction(x) if floating(x) else None, arg) for arg in args)
        return xf.jvp(fun, args, tangents)[1]

    return pushed


def lane(x, k):
    """The argument of a lane: a little other, but in the domain; labels and masks in another order."""
    return x * LANES[k] if floating(x) else x[::-1] if k == 1 else x


def vmap(fun):
    def lanes(*args):
        stacked = xf.tree.map(lambda x: xnp.stack([lane(x, k) for k in range(3)]), args)
        return xf.tree.map(lambda y: xnp.sum(y, axis=0), xf.vmap(fun)(*stacked))

    return lanes


def profile(fun):
    def watched(*args):
        layer = xf.Profile()
        out = layer(fun)(*args)
        assert layer.calls() > 0
        return out

    return watched


def device(fun):
    def placed(*args):
        out = xf.Device(DEVICE)(fun)(*args)
        return xf.tree.map(lambda y: xf.device_put(y, "cpu"), out)

    return placed


CHANGING = {"grad": grad, "jvp": jvp, "vmap": vmap}
FAITHFUL = {"trace": xf.trace, "profile": profile, "checkpoint": xf.checkpoint, "device": device}
ALL = CHANGING | FAITHFUL


def made(chain, fun):
    """Return `first(second(...(fun)))`."""
    for name in reversed(chain):
        fun = ALL[name](fun)
    return fun


# ------------------------------------------------------------------ what they must give


def arrays(out):
    """Return the leaves of a result on the host, as NumPy arrays."""
    return [np.asarray(xf.to_numpy(leaf)) for leaf in xf.tree.leaves(out)]


def require_same(found, want, rtol):
    found, want = arrays(found), arrays(want)
    assert len(found) == len(want)
    for have, each in zip(found, want, strict=True):
        assert (have.shape, have.dtype) == (each.shape, each.dtype)
        np.testing.assert_allclose(have, each, rtol=rtol, atol=rtol * np.max(np.abs(each), initial=1e-3))


def along(fun, args, tangents):
    """The derivative of a function along tangents (None: it does not vary), by finite differences."""
    leaves, structure = xf.tree.flatten(args)
    places = [n for n, x in enumerate(leaves) if floating(x)]
    slopes = [xf.tree.leaves(tangents)[n] for n in places]

    def flat(*xs):
        full = dict(enumerate(leaves)) | dict(zip(places, xs, strict=True))
        return arrays(fun(*xf.tree.unflatten(structure, list(full.values()))))

    return directional(flat, [leaves[n] for n in places], slopes, 2e-3)[0]


def slopes(args):
    return xf.tree.map(lambda x: direction(x) if floating(x) else x * 0, args)


def check_grad(found, below, args):
    """<gradient, tangent> is the derivative along the tangent, for two tangents."""
    chosen = differentiable(args)
    for turn in (1.0, 2.5):
        tangents = xf.tree.map(lambda x, turn=turn: np.asarray(np.sin(turn + direction(x)) if floating(x) else 0), args)
        picked = [t for n in chosen for t in xf.tree.leaves(tangents[n])]
        products = [np.sum(have * t) for have, t in zip(arrays(found), picked, strict=True)]
        (want,) = along(total(below), args, tangents)
        np.testing.assert_allclose(sum(products), want, rtol=1e-6, atol=1e-6 * sum(map(np.abs, products)))


def check_jvp(found, below, args):
    require_same(found, along(below, args, slopes(args)), 1e-6)


def check_vmap(found, below, args):
    lanes = [below(*xf.tree.map(lambda x, k=k: lane(x, k), args)) for k in range(3)]
    require_same(found, [sum(each[1:], each[0]) for each in zip(*map(arrays, lanes), strict=True)], 1e-9)


CHECKS = {"grad": check_grad, "jvp": check_jvp, "vmap": check_vmap}


@functools.cache
def plain(name, chain, seed):
    """Return what a chain of changing transformations gives; of none, what NumPy gives."""
    specimen = NAMES[name]
    return arrays(made(chain, specimen.fun)(*specimen.args(seed)))


def check(name, chain):
    specimen = NAMES[name]
    fun = made(chain, specimen.fun)
    changing = tuple(each for each in chain if each in CHANGING)
    for seed in (0, 1) if "trace" in chain else (0,):  # the second time it is replayed
        args = specimen.args(seed)
        found = fun(*args)
        if changing == chain:
            CHECKS[chain[0]](found, made(chain[1:], specimen.fun), args)
        else:
            require_same(found, plain(name, changing, seed), 1e-9)


def applies(specimen, chain):
    """Whether a program can run under a chain: what reads values has no batch."""
    return not (specimen.reads and "vmap" in chain)


def cases(chains, programs):
    """Return each chain with so many programs that it applies to, not the same ones for each."""
    found = []
    for n, chain in enumerate(chains):
        able = [specimen.name for specimen in ZOO[n % len(ZOO) :] + ZOO[: n % len(ZOO)] if applies(specimen, chain)]
        found += [pytest.param(name, chain, id=f"{name}-{'.'.join(chain)}") for name in able[:programs]]
    return found


PAIRS = [(each,) for each in ALL] + list(itertools.product(ALL, repeat=2))
CHANGING_TRIPLES = list(itertools.product(CHANGING, repeat=3))
MIXED_TRIPLES = [each for each in itertools.product(ALL, repeat=3) if CHANGING.keys() & each and FAITHFUL.keys() & each]
OTHER_TRIPLES = [each for each in MIXED_TRIPLES if len({*each}) == 3]
TRIPLES_THAT_REPEAT = [each for each in MIXED_TRIPLES if len({*each}) < 3]


@pytest.mark.parametrize(("name", "chain"), cases(PAIRS, len(ZOO)))
def test_all_pairs(name, chain):
    check(name, chain)


@pytest.mark.parametrize(("name", "chain"), cases(CHANGING_TRIPLES, 6))
def test_triples_that_change(name, chain):
    check(name, chain)


@pytest.mark.parametrize(("name", "chain"), cases(OTHER_TRIPLES, 2))
def test_triples_with_layers_between(name, chain):
    check(name, chain)


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "chain"), cases(TRIPLES_THAT_REPEAT, 1))
def test_triples_with_one_transformation_twice(name, chain):
    check(name, chain)


def test_every_program_is_in_pairs_and_triples():
    for specimen in ZOO:
        for chains, count in ((PAIRS, len(ZOO)), (CHANGING_TRIPLES, 6), (OTHER_TRIPLES, 2)):
            assert any(specimen.name == case.values[0] for case in cases(chains, count)), specimen.name


# ------------------------------------------------------------------ what does not apply is refused


@pytest.mark.parametrize("specimen", [each for each in ZOO if each.reads], ids=lambda each: each.name)
def test_a_program_that_reads_values_has_no_batch_and_a_trace_for_every_path(specimen):
    with pytest.raises(HostReadError, match=r"bool\(\) of the batched value"):
        vmap(specimen.fun)(*specimen.args())
    traced = xf.trace(specimen.fun)
    for scale, seed in itertools.product((1.0, 0.1, 8.0), range(3)):  # other numbers of rounds
        args = [x * scale for x in specimen.args(seed)]
        require_same(traced(*args), specimen.fun(*args), 1e-12)


# ------------------------------------------------------------------ single precision, tracked arguments


@pytest.mark.parametrize("name", NAMES)
def test_single_precision_stays_single(name):
    specimen = NAMES[name]
    for chain in ((), ("grad",), ("jvp",), ("grad", "grad"), ("jvp", "grad"), ("grad", "vmap")):
        if applies(specimen, chain):
            found = arrays(made(chain, specimen.fun)(*specimen.args(0, "float32")))
            for have, want in zip(found, plain(name, chain, 0), strict=True):
                assert have.dtype == np.float32, chain
                np.testing.assert_allclose(have, want, rtol=2e-3, atol=2e-3 * np.max(np.abs(want), initial=1e-3))


@pytest.mark.parametrize("name", NAMES)
def test_tracked_arguments_give_tracked_results(name):
    specimen = NAMES[name]
    for chain in ((), ("grad",), ("profile",), ("jvp",), ("trace",), ("vmap",)):
        if applies(specimen, chain):
            found = made(chain, specimen.fun)(*xf.tree.map(xf.array, specimen.args()))
            assert all(type(leaf) is xf.Array for leaf in xf.tree.leaves(found)), chain
            require_same(found, plain(name, tuple(each for each in chain if each in CHANGING), 0), 1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_programs_are_pure(name):
    specimen = NAMES[name]
    args, again = specimen.args(), specimen.args()
    first = arrays(xf.grad(total(specimen.fun))(*args))
    for have, want in zip(xf.tree.leaves(args), xf.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(have, want)
    for have, want in zip(arrays(xf.grad(total(specimen.fun))(*again)), first, strict=True):
        np.testing.assert_array_equal(have, want)
