"""Operands of different dtypes in one operation: a cotangent has its primal's dtype, a tangent its output's.

Every row of every family runs with its operands in single and double precision, real and complex, mixed; the two modes
must agree, and equal what they give where all operands have the widest dtype.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from typeguard import suppress_type_checks

import xform as xf
from tests.operators.case import Case
from tests.operators.collect import families, in_dtype
from xform.core.aval import dtype_of, shape_of
from xform.core.errors import OperandTypeError

ROWS = {
    f"{family}-{row.name}": row
    for family, rows in families().items()
    for row in rows
    if row.order and row.modes == ("fwd", "rev")
}


def cast(leaf: Any, dtype: str) -> Any:
    """Return an operand in a dtype; a complex one stays complex, in the precision of the dtype."""
    leaf = np.asarray(leaf) if isinstance(leaf, np.generic) else leaf  # an np.float64 is a Python float too
    if dtype != "complex64":
        return in_dtype(leaf, dtype)
    turned = in_dtype(leaf, "complex128")
    return turned.astype("complex64") if dtype_of(turned).kind == "c" and hasattr(turned, "astype") else turned


def floating(row: Case) -> list[int]:
    """Return which leaves of a row's operands have a derivative."""
    return [i for i, leaf in enumerate(xf.tree.leaves(row.args)) if dtype_of(leaf).kind in "fc"]


def mixtures(row: Case) -> Iterator[tuple[str, ...]]:
    """Give a dtype for each floating operand: each dtype alone, and of several operands all pairs in turn."""
    names = ["float64"] if row.x64_only else ["float32", "float64"]
    if row.complex:
        names += ["complex128"] if row.x64_only else ["complex64", "complex128"]
    count = len(floating(row))
    if count == 1:
        yield from ((name,) for name in names if name in ("float32", "complex64"))
        return
    for pair in itertools.permutations(names, 2):
        yield tuple(itertools.islice(itertools.cycle(pair), count))


def problem(row: Case) -> Callable[..., Any]:
    """Return a row as a function of its floating leaves, whose result is the tuple of its floating results."""
    leaves, structure = xf.tree.flatten(row.args)
    places = floating(row)

    def fun(*xs: Any) -> Any:
        full = list(leaves)
        for i, x in zip(places, xs, strict=True):
            full[i] = x
        out = row.fun(*xf.tree.unflatten(structure, full))
        return tuple(each for each in xf.tree.leaves(out) if dtype_of(each).kind in "fc")

    return fun


def drawn(likes: Any, seed: int) -> tuple[Any, ...]:
    """Return random arrays like others, of their dtypes."""
    rng = np.random.default_rng(seed)
    found = []
    for like in likes:
        shape, dtype = shape_of(like), dtype_of(like)
        array = rng.normal(size=shape) + (1j * rng.normal(size=shape) if dtype.kind == "c" else 0.0)
        found.append(np.asarray(array).astype(dtype))
    return tuple(found)


def close(got: Any, want: Any, scale: float) -> None:
    """Compare in the dtype of the first; of complex numbers it takes the real part where it is real."""
    want = np.asarray(want)
    want = want.real if np.asarray(got).dtype.kind == "f" else want
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3 * max(scale, 1e-3))


def products(these: Any, those: Any) -> list[Any]:
    return [np.asarray(a).astype(complex) * np.asarray(b) for a, b in zip(these, those, strict=True)]


def total(parts: list[Any]) -> float:
    return sum(float(np.sum(part).real) for part in parts)


@pytest.mark.parametrize("row", [pytest.param(row, id=label) for label, row in ROWS.items()])
def test_derivatives_of_mixed_operands(row: Case):
    fun, places, leaves = problem(row), floating(row), xf.tree.leaves(row.args)
    with suppress_type_checks():
        for names in mixtures(row):
            args = tuple(cast(leaves[i], name) for i, name in zip(places, names, strict=True))
            try:
                outs = fun(*args)
            except (OperandTypeError, np.exceptions.ComplexWarning):  # the mixture would lose an imaginary part
                continue
            check_mixture(fun, args, outs)


def check_mixture(fun: Callable[..., Any], args: tuple[Any, ...], outs: tuple[Any, ...]) -> None:
    cotangents, tangents = drawn(outs, 1), drawn(args, 2)
    found, pullback = xf.vjp(fun, *args)
    pulled = pullback(cotangents)
    primals, pushed = xf.jvp(fun, args, tangents)
    for likes, given in ((outs, found), (outs, primals), (args, pulled), (outs, pushed)):
        want = [(dtype_of(like), shape_of(like)) for like in likes]
        assert [(dtype_of(each), shape_of(each)) for each in given] == want
    left, right = products(cotangents, pushed), products(pulled, tangents)
    size = sum(float(np.sum(np.abs(part))) for part in right)
    assert abs(total(left) - total(right)) <= 2e-3 * max(size, 1e-3)
    check_against_widest(fun, args, (cotangents, pulled), (tangents, pushed))


def check_against_widest(fun: Callable[..., Any], args: tuple[Any, ...], reverse: Any, forward: Any) -> None:
    wide = np.result_type(*map(dtype_of, args), np.float64)
    primals = tuple(np.asarray(x).astype(wide) for x in args)
    outs, pullback = xf.vjp(fun, *primals)
    wanted = pullback(tuple(c.astype(dtype_of(out)) for c, out in zip(reverse[0], outs, strict=True)))
    scale = max((float(np.max(np.abs(each), initial=0.0)) for each in wanted), default=0.0)
    for got, want in zip(reverse[1], wanted, strict=True):
        close(got, want, scale)
    wanted = xf.jvp(fun, primals, tuple(t.astype(wide) for t in forward[0]))[1]
    for got, want in zip(forward[1], wanted, strict=True):
        close(got, want, float(np.max(np.abs(want), initial=0.0)))
