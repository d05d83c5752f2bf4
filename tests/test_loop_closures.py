"""What the functions of a loop take from around them is seen as it is at the call, however it has changed."""

from __future__ import annotations

import gc
import types
import weakref
from collections import deque

import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from xform.loops import bodies, closures

FACTOR = 2.0


def once(body, x=1.0):
    """Run one round of the same function object."""
    return float(xf.fori_loop(0, 1, body, x))


class Slotted:
    __slots__ = ("k",)


class Plain:
    k = 2.0

    def step(self, i, x):
        return x * self.scaled(FACTOR)

    def scaled(self, by):
        return by * self.k


class Called(Plain):
    def __call__(self, i, x):
        return x * self.k * FACTOR


def in_slots():
    box = Slotted()
    box.k = 2.0
    return (lambda i, x: x * box.k), lambda k: setattr(box, "k", k)


def in_a_class():
    kind = type("Kind", (Plain,), {})
    return (lambda i, x: x * kind.k), lambda k: setattr(kind, "k", k)


def in_a_callable():
    call = Called()
    call.k = 1.0

    def change(k):
        call.k = k / 2.0

    return call, change


def in_a_set():
    found = {2.0}
    return (lambda i, x: x * max(found)), found.add


def in_a_deque():
    found = deque([2.0])
    return (lambda i, x: x * found[-1]), found.append


def in_a_namespace():
    found = types.SimpleNamespace(inner=types.SimpleNamespace(k=2.0))
    return (lambda i, x: x * found.inner.k), lambda k: setattr(found.inner, "k", k)


def deep_in_a_model():
    model = types.SimpleNamespace(layers=[types.SimpleNamespace(parts=[{"w": [{"value": np.array(2.0)}]}])])

    def change(k):
        model.layers[0].parts[0]["w"][0]["value"] = np.array(k)

    return (lambda i, x: x * model.layers[0].parts[0]["w"][0]["value"]), change


def in_an_element():
    table = np.array([2.0, 1.0])

    def change(k):
        table[0] = k

    return (lambda i, x: x * table[0]), change


def in_an_element_and_an_operand():
    table = np.array([1.0, 1.0])

    def change(k):
        table[:] = k / 2.0

    return (lambda i, x: x * table[0] + (x * table).sum() * 0.5), change


def in_a_decision():
    table = np.array([2.0])

    def change(k):
        table[0] = k

    return (lambda i, x: x * 3.0 if table[0] > 2.5 else x * 2.0), change


def in_what_numpy_made():
    table = np.array([2.0, 0.0])

    def change(k):
        table[0] = k

    return (lambda i, x: (x * np.abs(table)).sum()), change


def in_a_transformed_function():
    box = [2.0]
    inner = xf.grad(lambda x: x * box[0])
    return (lambda i, x: inner(x)), lambda k: box.__setitem__(0, k)


CASES = [
    in_slots, in_a_class, in_a_callable, in_a_set, in_a_deque, in_a_namespace, deep_in_a_model, in_an_element,
    in_an_element_and_an_operand, in_a_decision, in_what_numpy_made, in_a_transformed_function,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[case.__name__ for case in CASES])
def test_a_change_of_what_a_body_holds(case):
    body, change = case()
    assert once(body) == 2.0
    change(3.0)
    assert once(body) == 3.0


def test_a_change_of_a_global_that_an_inner_function_names(monkeypatch):
    module = types.ModuleType("settings")
    module.k = 1.0
    monkeypatch.setitem(globals(), "settings", module)

    def body(i, x):
        scaled = lambda y: y * FACTOR * settings.k  # noqa: F821  (set above)
        return sum(scaled(each) for each in [x])

    assert once(body) == 2.0
    assert once(Plain().step) == 4.0
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert once(body) == 3.0
    assert once(Plain().step) == 6.0
    module.k = 5.0
    assert once(body) == 15.0


def test_arrays_that_are_operands_are_not_compared(monkeypatch):
    recorded = []
    anew = bodies.recorded_anew
    monkeypatch.setattr(bodies, "recorded_anew", lambda *args: recorded.append(1) or anew(*args))
    table, start = np.ones((2, 2)), np.ones(2)

    def body(i, x):
        return table.T @ x + table[0]

    for _ in range(3):
        np.testing.assert_array_equal(xf.fori_loop(0, 1, body, start), table.T @ start + table[0])
        table += 1.0
    assert len(recorded) == 1

    def made(i, x):  # what NumPy has made of an array is as it was then
        return np.sin(table) @ x

    for _ in range(3):
        np.testing.assert_array_equal(xf.fori_loop(0, 1, made, start), np.sin(table) @ start)
    assert len(recorded) == 2
    table += 1.0
    np.testing.assert_array_equal(xf.fori_loop(0, 1, made, start), np.sin(table) @ start)
    assert len(recorded) == 3


def test_what_is_held_no_more_is_freed():
    box = {"w": np.ones(3), "v": xf.array(np.ones(3))}
    body = lambda i, x: x * box["w"] * box["v"]
    xf.grad(lambda x: xf.fori_loop(0, 2, body, x).sum())(np.ones(3))
    old = [weakref.ref(box["w"]), weakref.ref(box["v"]), weakref.ref(box["v"].data)]
    box.update(w=np.full(3, 2.0), v=xf.array(np.full(3, 3.0)))
    gc.collect()
    assert [ref() for ref in old] == [None, None, None]
    np.testing.assert_array_equal(xf.to_numpy(xf.fori_loop(0, 2, body, np.ones(3))), np.full(3, 36.0))


def test_a_function_that_holds_too_much_is_recorded_at_each_call():
    many = [[k] for k in range(closures.MOST)]
    deep = [2.0]
    for _ in range(closures.DEEPEST):
        deep = [deep]

    def bottom(x):
        while isinstance(x, list):
            x = x[0]
        return x

    body = lambda i, x: x * many[-1][0] + bottom(deep)
    assert once(body) == closures.MOST - 1 + 2.0
    many[-1][0] = 3
    assert once(body) == 5.0
    inner = deep
    while isinstance(inner[0], list):
        inner = inner[0]
    inner[0] = 7.0
    assert once(lambda i, x: x + bottom(deep)) == 8.0
    assert once(body) == 10.0


def test_gradients_see_the_change_too():
    table = np.array([2.0, 5.0])
    f = lambda x: xf.while_loop(lambda y: y < 50.0, body, x)
    body = lambda y: y * table[0] + xnp.sin(y * 0.0)
    assert xf.grad(f)(1.0) == 64.0
    table[0] = 3.0
    assert xf.grad(f)(1.0) == 81.0
