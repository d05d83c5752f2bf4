"""Loops, each with the same in Python, and layers of users, for the tests of layers that enter loops."""

from __future__ import annotations

import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from xform import ops

X = np.array([0.4, 1.3])
W = np.array([0.9, 0.6])


# ------------------------------------------------------------------ loops, and the same in Python


def step(x, w):
    return xnp.sin(x * w) + 0.1 * x


def while_(x, w):
    def body(carry):
        n, y = carry
        return n + 1, step(y, w)

    return xf.while_loop(lambda carry: carry[0] < 4, body, (0, x))[1]


def fori(x, w):
    return xf.fori_loop(0, 4, lambda i, y: step(y, w), x)


def scan_back(x, w):
    return xf.scan(lambda y, _: (step(y, w), None), x, length=4, reverse=True)[0]


def python_(x, w):
    for _ in range(4):
        x = step(x, w)
    return x


def nested(x, w):
    def inner(i, y):
        return xf.while_loop(lambda c: c[0] < i, lambda c: (c[0] + 1, step(c[1], w)), (0, y))[1]

    return xf.fori_loop(0, 4, inner, x)


def python_nested(x, w):
    for i in range(4):
        for _ in range(i):
            x = step(x, w)
    return x


def branching(x, w):
    def body(i, y):
        return xf.cond(xnp.sum(y) > 1.2, lambda y: step(y, w), lambda y: xnp.sin(y) + 0.9, y)

    return xf.fori_loop(0, 4, body, x)


def python_branching(x, w):
    for _ in range(4):
        x = step(x, w) if float(np.sum(xf.concrete(x))) > 1.2 else xnp.sin(x) + 0.9
    return x


def loop_in_branch(x, w):
    return xf.switch(xnp.floor(xnp.sum(x)).astype(int), [xnp.cos, lambda x: fori(x, w), xnp.sin], x)


PAIRS = {
    "while": (while_, python_), "fori": (fori, python_), "scan": (scan_back, python_),
    "nested": (nested, python_nested), "branching": (branching, python_branching),
    "loop in branch": (loop_in_branch, python_),
}  # fmt: skip
WRAPS = {"eager": lambda f: f, "traced": xf.trace, "traced twice": lambda f: xf.trace(xf.trace(f))}
pairs = pytest.mark.parametrize(("loop", "unrolled"), PAIRS.values(), ids=PAIRS)
wraps = pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)


def total(f):
    return lambda x, w: xnp.sum(f(x, w) ** 2)


# ------------------------------------------------------------------ layers


class Seen(xf.Observer):
    """Writes down what it sees of Sin and Cos."""

    def __init__(self):
        self.seen = []

    def observe(self, op, inputs, outputs):
        at = xf.current()
        if op.name in ("Sin", "Cos"):
            self.seen.append((op.name, at.phase, at.loop, at.iteration, np.array(xf.concrete(inputs[0]))))

    def rounds(self, name, phase="forward"):
        return [each[3] for each in self.seen if each[:2] == (name, phase)]


class CosForSin(xf.Rewriter):
    """Puts a cosine in the place of each sine."""

    def rewrite(self, op, values):
        return xnp.cos(values[0]) if op == ops.Sin() else NotImplemented


class HalfSin(xf.Transformation):
    """A plain layer: half of each sine."""

    def interpret(self, op, values):
        out = xf.apply(op, *values)
        return out * 0.5 if op == ops.Sin() else out


class Pair(xf.Value):
    """A value with a bound of its rounding errors, counted in operations."""

    __slots__ = ("count", "owner")


class Operations(xf.Transformation):
    """Wraps: carries the number of operations that led to a value. It has no rule for loops."""

    effect = "wraps"

    def track(self, x, count=0):
        value = Pair()
        value.data, value.owner, value.count = x, self, count
        return value

    def interpret(self, op, values):
        out = xf.apply(op, *map(self.unwrap, values))
        mine = [value.count for value in values if isinstance(value, Pair) and value.owner is self]
        if not mine or op.attribute_like:
            return out
        if op.multiple_outputs:
            return tuple(self.track(each, max(mine) + 1) for each in out)
        return self.track(out, max(mine) + 1)
