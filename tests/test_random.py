"""Random numbers: frozen values, distributions, independence, batches, replays, devices."""

from __future__ import annotations

import itertools
import pickle
import threading

import numpy as np
import pytest
import scipy.stats
from numpy.testing import assert_allclose, assert_array_equal

import xform as xf
import xform.numpy as xnp
from xform import random
from xform.core.errors import DtypeError, OperandError, OperandTypeError, ShapeError
from xform.ops.philox import DRAW, FOLD, philox, words
from xform.testing import check_grads

KEY = random.key(2026)
DEVICE = "array_api_strict:device1"

DRAWS = {
    "uniform": lambda k: random.uniform(k, (3, 2)),
    "uniform32": lambda k: random.uniform(k, (5,), np.float32),
    "uniform16": lambda k: random.uniform(k, (5,), np.float16),
    "uniform_within": lambda k: random.uniform(k, (3,), float, -1.0, np.array([1.0, 2.0, 3.0])),
    "uniform_long": lambda k: random.uniform(k, (1001,)),
    "normal": lambda k: random.normal(k),
    "normal_odd": lambda k: random.normal(k, (3, 3)),
    "normal32": lambda k: random.normal(k, (7,), np.float32),
    "normal16": lambda k: random.normal(k, (7,), np.float16),
    "normal_complex": lambda k: random.normal(k, (2,), complex),
    "normal_long": lambda k: random.normal(k, (1001,)),
    "randint": lambda k: random.randint(k, (4,), -5, np.array([0, 10, 100, 2**40])),
    "permutation": lambda k: random.permutation(k, 7),
    "permutation_of": lambda k: random.permutation(k, np.arange(12.0).reshape(3, 4), 1),
    "permutation_of_each": lambda k: random.permutation(k, np.arange(12.0).reshape(3, 4), independent=True),
    "split": lambda k: random.split(k, 3),
    "fold_in": lambda k: random.fold_in(k, -3),
}
draws = pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)


# ------------------------------------------------------------------ the generator


@pytest.mark.parametrize(("counter", "key", "block"), [
    ([0] * 4, [0] * 2, "16554d9eca36314c db20fe9d672d0fdc d7e772cee186176b 7e68b68aec7ba23b"),
    ([2**64 - 1] * 4, [2**64 - 1] * 2, "87b092c3013fe90b 438c3c67be8d0224 9cc7d7c69cd777b6 a09caebf594f0ba0"),
    (
        [0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89],
        [0x452821E638D01377, 0xBE5466CF34E90C6C],
        "a528f45403e61d95 38c72dbd566e9788 a5a1610e72fd18b5 57bd43b5e52b7fe6",
    ),
])  # fmt: skip
def test_philox_against_the_known_answers_of_its_authors(counter, key, block):
    found = philox(*(tuple(np.array([word], np.uint64) for word in part) for part in (counter, key)))
    assert " ".join(f"{int(word[0]):016x}" for word in found) == block


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 16])
@pytest.mark.parametrize("purpose", [DRAW, FOLD])
def test_both_ways_to_compute_words_give_the_same(count, purpose):
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 2**64, (9000, 2), dtype=np.uint64)
    for data in (None, rng.integers(0, 2**64, 9000, dtype=np.uint64)):
        found = words(keys, count, purpose, data)
        for row in (0, 1, 8191, 8192, 8999):
            given = None if data is None else data[row : row + 1]
            assert_array_equal(found[row : row + 1], words(keys[row : row + 1], count, purpose, given))


def test_values_stay_as_they_are():
    assert_array_equal(random.key(7), np.array([7, 0], np.uint64))
    assert_array_equal(random.key(-1), np.array([2**64 - 1, 0], np.uint64))
    assert_array_equal(
        random.split(KEY), [[7953921423127246179, 12098631299510748662], [11000253899923799518, 4692034629168441700]]
    )
    assert_array_equal(random.fold_in(KEY, 3), [10289479370435895070, 5502940993496544606])
    assert_array_equal(random.randint(KEY, (6,), 0, 1000), [7, 8, 262, 880, 477, 608])
    assert_array_equal(random.permutation(KEY, 8), [2, 6, 1, 7, 0, 4, 5, 3])
    assert_array_equal(random.uniform(KEY, (3,)), [0.422034180346073, 0.34249750953111324, 0.11181606179138992])
    assert_array_equal(random.uniform(KEY, (3,), np.float32), np.array([0.38054943, 0.42203414, 0.3975799], np.float32))
    assert_allclose(
        random.normal(KEY, (4,)),
        [0.7991589001617075, 0.881317220233156, 0.6766285151415643, -0.2487838652817481],
        rtol=1e-13,
    )
    assert_allclose(random.normal(KEY, (4,), np.float32), [-0.7829427, -0.57488436, 0.5872355, 0.8752079], rtol=1e-5)


@draws
def test_the_same_key_gives_the_same(draw):
    first = draw(KEY)
    assert_array_equal(draw(KEY.copy()), first)
    assert_array_equal(draw(pickle.loads(pickle.dumps(KEY))), first)
    assert_array_equal(draw(xf.array(KEY)).data, first)
    assert type(draw(xf.array(KEY))) is xf.Array
    assert not np.array_equal(draw(random.key(2027)), first)
    first[...] = 0  # the receiver's own
    assert np.any(draw(KEY) != 0)


def test_threads_do_not_mix():
    want = {seed: random.normal(random.key(seed), (100,)) for seed in range(8)}
    wrong = []

    def work(seed):
        wrong.extend(
            seed for _ in range(100) if not np.array_equal(random.normal(random.key(seed), (100,)), want[seed])
        )

    threads = [threading.Thread(target=work, args=(seed,)) for seed in want]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ------------------------------------------------------------------ distributions

MANY = 200_000


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_uniform_numbers(dtype):
    x = random.uniform(KEY, (MANY,), dtype)
    assert x.dtype == dtype
    assert x.min() >= 0.0
    assert x.max() < 1.0
    assert_array_equal(x * 2.0 ** (np.finfo(dtype).nmant + 1) % 1.0, 0.0)
    if dtype != np.float16:
        assert scipy.stats.kstest(x, "uniform").pvalue > 0.01
    x = x.astype(float)
    grain = 0.5 * 2.0 ** -(np.finfo(dtype).nmant + 1)
    assert abs(x.mean() - 0.5 + grain) < 4 / np.sqrt(12 * MANY)
    assert abs(12 * x.var() - 1) < 4 * np.sqrt(0.8 / MANY)
    assert abs(np.corrcoef(x[1:], x[:-1])[0, 1]) < 4 / np.sqrt(MANY)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_normal_numbers(dtype):
    x = random.normal(KEY, (MANY,), dtype)
    assert x.dtype == dtype
    if dtype != np.float16:
        assert scipy.stats.kstest(x, "norm").pvalue > 0.01
    x = x.astype(float)
    for moment, want, spread in ((1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)):
        assert abs(np.mean(x**moment) - want) < 4 * np.sqrt(spread / MANY)
    half = MANY // 2
    pairs = x[:half], x[half:]  # made of the same two uniform numbers
    assert abs(np.corrcoef(*pairs)[0, 1]) < 4 / np.sqrt(half)
    assert abs(np.corrcoef(pairs[0] ** 2, pairs[1] ** 2)[0, 1]) < 4 / np.sqrt(half)
    assert abs(np.mean(np.abs(x) > 3.0) - 2.6998e-3) < 4 * np.sqrt(2.7e-3 / MANY)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_normal_numbers(dtype):
    z = random.normal(KEY, (MANY,), dtype)
    assert z.dtype == dtype
    for part in (z.real, z.imag):
        assert scipy.stats.kstest(part * 2**0.5, "norm").pvalue > 0.01
    assert abs(np.corrcoef(z.real, z.imag)[0, 1]) < 4 / np.sqrt(MANY)


@pytest.mark.parametrize(("low", "high", "dtype"), [
    (0, 2, int), (-3, 4, np.int8), (0, 256, np.uint8), (-128, 128, np.int8), (10, 11, np.int32), (5, 1005, np.uint64),
])  # fmt: skip
def test_integers(low, high, dtype):
    x = random.randint(KEY, (MANY,), low, high, dtype)
    assert x.dtype == dtype
    counts = np.bincount(x.astype(int) - low, minlength=high - low)
    assert counts.size == high - low
    assert scipy.stats.chisquare(counts).pvalue > 0.01 or high - low == 1


def test_integers_of_all_64_bits():
    for dtype, low, high in ((np.int64, -(2**63), 2**63), (np.uint64, 0, 2**64)):
        x = random.randint(KEY, (MANY,), low, high, dtype)
        assert scipy.stats.kstest((x.astype(float) - low) / 2.0**64, "uniform").pvalue > 0.01
    x = random.randint(KEY, (MANY,), -(2**62) - 5, 2**62, np.int64)
    assert scipy.stats.kstest((x.astype(float) + 2.0**62) / 2.0**63, "uniform").pvalue > 0.01


def test_every_order_is_as_likely_as_any():
    found = xf.vmap(lambda k: random.permutation(k, 4))(random.split(KEY, 24_000))
    counts = np.unique(found @ 4 ** np.arange(4), return_counts=True)[1]
    assert counts.size == 24
    assert scipy.stats.chisquare(counts).pvalue > 0.01


def test_permutations_of_arrays():
    x = np.arange(12.0).reshape(3, 4)
    assert_array_equal(random.permutation(KEY, x), x[random.permutation(KEY, 3)])
    assert_array_equal(random.permutation(KEY, x, axis=-1), x[:, random.permutation(KEY, 4)])
    for axis in (0, 1, -1):
        each = random.permutation(KEY, x, axis, independent=True)
        assert_array_equal(np.sort(each, axis), x)
    big = np.tile(np.arange(50), (2, 1))
    first, second = random.permutation(KEY, big, 1, independent=True)
    assert not np.array_equal(first, second)
    assert random.permutation(KEY, 0).shape == (0,)
    check_grads(lambda x: random.permutation(KEY, x * x, 1, independent=True), (x + 1.0,), order=2)


# ------------------------------------------------------------------ keys


def correlations(rows):
    """The off-diagonal correlations of rows, in units of their expected spread."""
    found = np.corrcoef(rows)
    return found[~np.eye(len(rows), dtype=bool)] * np.sqrt(rows.shape[1])


@pytest.mark.parametrize("keys", [
    random.split(KEY, 20),
    np.stack([random.key(seed) for seed in range(20)]),
    np.stack([random.fold_in(KEY, n) for n in range(20)]),
    np.concatenate([KEY[None], random.split(KEY, 9), *[random.split(k, 5) for k in random.split(KEY)]]),
], ids=["split", "seeds", "fold_in", "generations"])  # fmt: skip
def test_streams_of_different_keys_are_independent(keys):
    rows = xf.vmap(lambda k: random.normal(k, (10_000,)))(keys)
    found = correlations(rows)
    assert np.max(np.abs(found)) < 4.5
    assert abs(found.std() - 1.0) < 0.2
    assert scipy.stats.kstest(rows.mean(1) * 100, "norm").pvalue > 0.01


def test_new_keys_differ_and_are_random_bits():
    keys = random.split(KEY, 100_000)
    assert len(np.unique(keys, axis=0)) == 100_000
    ones = np.unpackbits(keys.view(np.uint8), axis=1).mean(0)
    assert np.max(np.abs(ones - 0.5)) < 5 / np.sqrt(4 * 100_000)
    folded = xf.vmap(random.fold_in, (None, 0))(KEY, np.arange(-500, 500))
    assert len(np.unique(np.concatenate([keys, folded, KEY[None]]), axis=0)) == 101_001
    assert_array_equal(folded[507], random.fold_in(KEY, 7))
    assert_array_equal(folded[3], random.fold_in(KEY, 2**64 - 497))
    assert random.split(KEY, (2, 3)).shape == (2, 3, 2)
    assert_array_equal(random.split(KEY, (2, 3)).reshape(6, 2), random.split(KEY, 6))
    assert_array_equal(random.split(KEY, 8)[:3], random.split(KEY, 3))


def test_seeds_may_be_traced_or_batched():
    assert_array_equal(xf.trace(random.key)(np.array(7)), random.key(7))
    assert_array_equal(xf.vmap(random.key)(np.array([3, -1], np.int32)), [random.key(3), random.key(-1)])


# ------------------------------------------------------------------ transformations


@draws
def test_a_batch_of_keys_is_the_loop(draw):
    keys = random.split(KEY, 100)
    want = np.stack([draw(k) for k in keys])
    assert_array_equal(xf.vmap(draw)(keys), want)
    assert_array_equal(xf.vmap(draw, in_axes=1)(keys.T[:, :3]), want[:3])
    assert_array_equal(xf.vmap(draw, chunk_size=7)(keys), want)
    assert_array_equal(xf.vmap(xf.vmap(draw))(keys.reshape(20, 5, 2)), want.reshape(20, 5, *want.shape[1:]))
    assert xf.vmap(draw)(keys[:0]).shape == (0, *want.shape[1:])


@draws
def test_a_replay_draws_from_the_keys_it_is_given(draw):
    traced = xf.trace(draw)
    for seed in (1, 2, 3):
        assert_array_equal(traced(random.key(seed)), draw(random.key(seed)))
    assert len(traced.programs) == 1
    program = xf.make_program(draw)(xf.Aval((2,), np.dtype(np.uint64)))
    want = draw(KEY)
    assert program.out_avals == (xf.aval_of(want),)
    assert_array_equal(program(KEY), want)
    assert_array_equal(xf.vmap(program)(random.split(KEY, 3)), [draw(k) for k in random.split(KEY, 3)])


def test_row_51_random_operators_have_known_shapes_in_a_trace():
    def f(k):
        a, b = random.split(k)
        x = random.normal(a, (4, 3), np.float32)
        n = random.randint(b, (), 1, x.shape[0])
        return x, random.uniform(b, x.shape[1:]), n, random.permutation(a, x), random.permutation(b, 5)

    avals = xf.eval_shape(f, xf.Aval((2,), np.dtype(np.uint64)))
    assert [aval.shape for aval in avals] == [(4, 3), (3,), (), (4, 3), (5,)]
    assert [aval.dtype for aval in avals] == [np.float32, np.float64, np.int64, np.float32, np.int64]


def test_a_captured_key_is_a_constant_and_draws_are_reused():
    traced = xf.trace(lambda x: x + random.normal(KEY, (3,)))
    first = traced(np.zeros(3))
    assert_array_equal(traced(np.zeros(3)), first)
    assert_array_equal(traced(np.ones(3)), first + 1.0)
    assert_array_equal(first, random.normal(KEY, (3,)))


def test_bounds_in_a_batch():
    lows, highs = np.array([[0, 5, -3], [1, 2, 3]]), np.array([10, 20])
    keys = random.split(KEY)

    def draw(k, a, b):
        return random.randint(k, (4, 3), a, b)

    for axes in itertools.product((0, None), repeat=3):
        given = [x if axis == 0 else x[0] for x, axis in zip((keys, lows, highs), axes, strict=True)]
        if any(axis == 0 for axis in axes):
            lanes = [[x[i] if axis == 0 else x for x, axis in zip(given, axes, strict=True)] for i in (0, 1)]
            assert_array_equal(xf.vmap(draw, axes)(*given), [draw(*lane) for lane in lanes])


def test_gradients_take_draws_as_constants():
    def sample(mean, spread):
        return mean + spread * random.normal(KEY, (3,))

    noise = random.normal(KEY, (3,))
    mean, spread = np.zeros(3), np.ones(3)
    assert_array_equal(xf.grad(lambda s: np.sum(sample(mean, s)))(spread), noise)
    assert_array_equal(xf.jvp(sample, (mean, spread), (mean, spread))[1], noise)
    by_low, by_high = xf.grad(lambda a, b: np.sum(random.uniform(KEY, (4,), float, a, b)), (0, 1))(-1.0, 2.0)
    assert_allclose((by_low, by_high), (np.sum(1 - random.uniform(KEY, (4,))), np.sum(random.uniform(KEY, (4,)))))
    batched = xf.vmap(xf.grad(lambda s, k: np.sum(s * random.normal(k, (3,)))), (None, 0))(2.0, random.split(KEY))
    assert_allclose(batched, [np.sum(random.normal(k, (3,))) for k in random.split(KEY)])
    assert xf.grad(lambda x: x * random.uniform(random.fold_in(KEY, 1)))(1.0) == random.uniform(random.fold_in(KEY, 1))
    with xf.Profile() as profile:
        random.normal(xf.array(KEY), (2,))
    assert profile.calls("Normal") == 1


@pytest.mark.parametrize("name", [name for name in DRAWS if "16" not in name])  # array-api-strict has no half floats
def test_every_device_gets_the_same_numbers(name):
    draw, want = DRAWS[name], DRAWS[name](KEY)
    with xf.Device(DEVICE):
        found = draw(xf.array(KEY))
    assert found.device == DEVICE
    assert_array_equal(xf.to_numpy(found), want)
    if name not in ("uniform_within", "randint", "permutation_of", "permutation_of_each"):  # have operands of the host
        raw = draw(xf.device_put(KEY, DEVICE))
        assert not isinstance(raw, xf.Value)
        assert_array_equal(xf.to_numpy(raw), want)


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(("call", "kind", "message"), [
    (lambda: random.normal(0), DtypeError, r"random\.normal: a key is uint64\[2\], got weak int64\[\]; make one with"),
    (lambda: random.normal("key"), OperandTypeError, "expected a key, got str"),
    (lambda: random.normal(np.zeros(2)), DtypeError, r"got float64\[2\]"),
    (lambda: random.normal(np.zeros(3, np.uint64)), DtypeError, r"got uint64\[3\]"),
    (lambda: random.uniform(random.split(KEY)), ShapeError, r"takes one key, .* xf\.vmap a function of one"),
    (lambda: random.split(KEY, -1), ShapeError, "split: num must not be negative"),
    (lambda: random.split(KEY, 1.5), OperandTypeError, "must be an int or a tuple of ints"),
    (lambda: random.normal(KEY, (2, -3)), ShapeError, r"normal: shape must not be negative, got \(2, -3\)"),
    (lambda: random.normal(KEY, (), int), DtypeError, "dtype must be one of float16.*complex128, got int64"),
    (lambda: random.uniform(KEY, (), complex), DtypeError, "float64, got complex128"),
    (lambda: random.uniform(KEY, (), np.longdouble), DtypeError, "got"),
    (lambda: random.uniform(KEY, (3,), float, np.zeros(2)), ShapeError, r"\(2,\) and \(3,\) do not broadcast"),
    (lambda: random.uniform(KEY, (), float, np.zeros(2)), ShapeError, r"minval has shape \(2,\)"),
    (lambda: random.randint(KEY, (), 0, 2, float), DtypeError, "dtype must be one of integers, got float64"),
    (lambda: random.randint(KEY, (), 0.0, 2), DtypeError, "expected integers, got float64"),
    (lambda: random.randint(KEY, (), 2, 2), OperandError, "low < high"),
    (lambda: random.randint(KEY, (), -1, 2, np.uint8), OperandError, "in the range of uint8, got -1 and 2"),
    (lambda: random.randint(KEY, (), 0, 257, np.uint8), OperandError, "in the range of uint8"),
    (lambda: random.randint(KEY, (2,), np.array([0, 5]), np.array([1, 5])), OperandError, "low < high"),
    (lambda: random.key(1.5), DtypeError, "the seed must be one integer"),
    (lambda: random.key(np.array([1, 2])), DtypeError, "the seed must be one integer"),
    (lambda: random.key(2**64), OperandError, "must fit into 64 bits"),
    (lambda: random.fold_in(KEY, 1.0), DtypeError, "expected integers"),
    (lambda: random.permutation(KEY, -1), ShapeError, "must not be negative"),
    (lambda: random.permutation(KEY, 1.5), Exception, "permutation"),
])  # fmt: skip
def test_errors_name_what_is_wrong(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_a_length_that_is_unknown_is_named():
    with pytest.raises(ShapeError, match="is not known before run time"):
        xf.make_program(lambda x: random.permutation(KEY, x))(xf.Aval((None, 3), np.dtype(float)))
    assert xf.eval_shape(lambda x: random.permutation(KEY, x, 1), xf.Aval((None, 3), np.dtype(float))).shape == (
        None,
        3,
    )
    assert xnp.sum(random.permutation(KEY, np.ones((0, 2)))) == 0.0
