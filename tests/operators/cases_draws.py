"""Rows of the operators that draw from a key; they have no derivatives."""

from __future__ import annotations

import numpy as np

from tests.operators.case import case
from xform import random

KEY = np.array([12345, 678], np.uint64)
LOW, HIGH = np.array([-3, 0, 5]), np.array([[4], [20]])

CASES = [
    case("split", lambda k: random.split(k, 3), KEY, order=0),
    case("split_in_a_shape", lambda k: random.split(k, (2, 2)), KEY, order=0),
    case("fold_in", random.fold_in, KEY, np.array(7), order=0),
    case("uniform", lambda k: random.uniform(k, (2, 3)), KEY, order=0),
    case("uniform_of_half_words", lambda k: random.uniform(k, (5,), np.float32), KEY, order=0),
    case(
        "uniform_within", lambda k, a: random.uniform(k, (2, 3), minval=a, maxval=2.0), KEY, np.array([0.5, -1.0, 0.0])
    ),
    case("normal", lambda k: random.normal(k, (3,)), KEY, order=0),
    case("normal_in_halves", lambda k: random.normal(k, (2, 2), np.float16), KEY, order=0),
    case("randint", lambda k, a, b: random.randint(k, (2, 3), a, b), KEY, LOW, HIGH + 2, order=0),
    case("randint_of_bytes", lambda k: random.randint(k, (4,), 0, 256, np.uint8), KEY, order=0),
    case("permutation", lambda k: random.permutation(k, 6), KEY, order=0),
    case(
        "permutation_of", lambda k, x: random.permutation(k, x * x, axis=1), KEY, np.linspace(0.5, 2.0, 6).reshape(2, 3)
    ),
    case(
        "permutation_of_each",
        lambda k, x: random.permutation(k, x * x, 1, independent=True),
        KEY,
        np.linspace(0.5, 2.0, 6).reshape(2, 3),
    ),
]
