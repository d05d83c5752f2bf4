"""Programs, traced functions, operators and transformed functions pickle and deep-copy."""

from __future__ import annotations

import copy
import functools
import inspect
import multiprocessing
import pickle

import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from tests.operators.collect import families, operations
from tests.zoo import ZOO
from xform.programs.call import Call

HOW = {
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "oldest pickle": lambda value: pickle.loads(pickle.dumps(value, 0)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}
how = pytest.mark.parametrize("how", HOW.values(), ids=HOW)
X = np.array([0.5, -1.0, 2.0])


def loss(x, scale=1.0):
    """The loss."""
    return xnp.sum(xnp.sin(x) * x * scale)


def square(x):
    return x * x


def total_of(fun):
    return lambda x: xnp.sum(fun(x))


def with_aux(x):
    return xnp.sum(x**3), {"x": x}


@xf.grad
def decorated(x):
    return x**3


@xf.vmap
@xf.grad
def twice_decorated(x):
    return x**2


@xf.trace
def traced(x):
    return x * 2.0 + 1.0


class Model:
    w = 3.0

    @staticmethod
    @xf.grad
    def slope(x):
        return x**2

    @xf.trace
    def forward(self, x):
        return x * self.w

    def loss(self, x):
        return xnp.sum(x * x) * self.w


MADE = {
    "grad": (xf.grad(loss), X),
    "grad with options": (xf.grad(with_aux, has_aux=True), X),
    "grad by name": (xf.grad(loss, argnames="x"), None),
    "value_and_grad": (xf.value_and_grad(loss, (0,)), X),
    "vmap": (xf.vmap(square, out_axes=-1), np.ones((2, 3))),
    "vmap in chunks": (xf.vmap(square, chunk_size=2), np.ones((5, 3))),
    "jacfwd": (xf.jacfwd(square), X),
    "jacrev": (xf.jacrev(square), X),
    "jacobian": (xf.jacobian(square), X),
    "hessian": (xf.hessian(loss), X),
    "nested": (xf.vmap(xf.grad(loss), in_axes=0), np.ones((2, 3))),
    "traced": (xf.trace(loss), X),
    "trace of grad": (xf.trace(xf.grad(loss)), X),
    "grad of trace": (xf.grad(xf.trace(loss)), X),
    "make_program": (xf.make_program(loss), X),
    "decorated": (decorated, 2.0),
    "twice decorated": (twice_decorated, X),
    "decorated by trace": (traced, X),
    "static method": (Model.slope, 2.0),
    "a partial": (xf.grad(functools.partial(loss, scale=2.0)), X),
    "a bound method": (xf.grad(Model().loss), X),
}


def outcome(fun, x):
    found = fun(x=X) if x is None else fun(x)
    return str(found) if isinstance(found, xf.Program) else found


@how
@pytest.mark.parametrize("made", MADE)
def test_transformed_functions(made, how):
    fun, x = MADE[made]
    other = how(fun)
    wanted, found = xf.tree.leaves(outcome(fun, x)), xf.tree.leaves(outcome(other, x))
    assert len(wanted) == len(found) > 0
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(a, b)
    assert repr(other) == repr(fun) or "0x" in repr(fun)


def test_what_was_decorated_is_found_by_its_name():
    assert HOW["pickle"](decorated) is decorated
    assert HOW["pickle"](traced) is traced
    assert HOW["deepcopy"](twice_decorated) is twice_decorated
    assert pickle.dumps(decorated, 0) == b"ctests.test_pickling\ndecorated\np0\n."


@how
def test_a_copy_of_a_traced_function_records_anew(how):
    fun = xf.trace(loss)
    fun(X)
    other = how(fun)
    assert len(fun.programs) == 1
    assert other.programs == {}
    assert other(X) == fun(X)
    assert len(other.programs) == 1
    assert other.static is not None


def test_static_arguments_survive():
    fun = xf.trace(loss, static_argnames="scale")
    other = HOW["pickle"](fun)
    assert other(X, scale=2.0) == fun(X, scale=2.0) == 2 * fun(X, scale=1.0)


def test_a_lambda_is_refused_by_pickle_and_copied_by_deepcopy():
    fun = xf.grad(lambda x: x**3)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(fun)
    assert copy.deepcopy(fun)(2.0) == 12.0


def test_another_process_runs_them():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.map(xf.grad(loss), [X, 2 * X])
    for x, gradient in zip([X, 2 * X], found, strict=True):
        np.testing.assert_allclose(gradient, np.cos(x) * x + np.sin(x), rtol=1e-14)


# ------------------------------------------------------------------ what a transformed function looks like


def test_name_docstring_and_signature_are_those_of_the_function():
    fun = xf.grad(loss)
    assert (fun.__name__, fun.__doc__, fun.__wrapped__) == ("loss", "The loss.", loss)
    assert inspect.signature(fun) == inspect.signature(loss)
    assert repr(fun) == "<gradient of loss>"
    assert repr(xf.vmap(xf.hessian(loss))) == "<mapped of loss>"


def test_as_an_attribute_of_a_class_it_is_a_method():
    assert Model.slope(2.0) == 4.0
    assert Model().slope(2.0) == 4.0
    assert Model().forward(2.0) == 6.0

    class Own:
        slope = xf.grad(lambda self, x: x**2 * self.scale, argnums=1)
        scale = 5.0

    assert Own().slope(3.0) == 30.0
    assert Own.slope(Own(), 3.0) == 30.0


def test_keywords_of_the_function_are_its_own():
    """What is bound stands by position alone: a function may have keywords of any name."""

    def fun(x, *, fun=1.0, chosen=1.0, has_aux=1.0, both=1.0, run=1.0, holomorphic=1.0):
        return x * fun * chosen * has_aux * both * run * holomorphic

    names = dict.fromkeys(("fun", "chosen", "has_aux", "both", "run", "holomorphic"), 2.0)
    assert xf.grad(fun)(1.0, **names) == 64.0
    assert xf.jacfwd(fun)(1.0, **names) == 64.0
    assert xf.jacrev(fun)(1.0, **names) == 64.0


# ------------------------------------------------------------------ programs and operators


@how
@pytest.mark.parametrize("specimen", [each for each in ZOO if not (each.reads or each.custom)], ids=lambda s: s.name)
def test_programs(specimen, how):
    args = specimen.args()
    program = xf.make_program(specimen.fun)(*args)
    other = how(program)
    assert other.text(lines=True) == program.text(lines=True)
    assert not xf.diff(program, other)
    for a, b in zip(xf.tree.leaves(program(*args)), xf.tree.leaves(other(*args)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_deep_copy_shares_no_constant():
    table = np.arange(3.0)
    program = xf.make_program(lambda x: x + table)(X)
    other = copy.deepcopy(program)
    other.constants[0].value[:] = 7.0
    np.testing.assert_array_equal(program(np.zeros(3)), table)


def test_a_long_program_does_not_recurse():
    def fun(x):
        for _ in range(1500):
            x = x + 1.0
        return x

    program = xf.make_program(fun)(1.0)
    for way in HOW.values():
        assert way(program)(0.0) == 1500.0


def rounds(x):
    return xf.while_loop(lambda c: xnp.sum(c) < 50.0, lambda c: c * 1.5 + 1.0, x)


@how
@pytest.mark.parametrize("fun", [rounds, xf.grad(total_of(rounds)), xf.vmap(rounds)], ids=["loop", "gradient", "batch"])
def test_programs_with_loops(fun, how):
    x = np.array([[0.5, 1.0], [2.0, 3.0]])
    program = xf.make_program(fun)(x)
    wanted = program(x)
    other = how(program)
    assert not xf.diff(program, other)
    np.testing.assert_array_equal(other(x), wanted)


@how
def test_calls_of_compiled_programs(how):
    op = Call(xf.make_program(loss)(X), level=1)
    wanted = xf.apply(op, X)
    other = how(op)
    assert (other.options, type(other)) == ({"level": 1}, Call)
    np.testing.assert_array_equal(xf.apply(other, X), wanted)


def test_every_operator_of_the_cases():
    seen = set()
    for rows in families().values():
        for row in rows:
            for op, _ in operations(row, "float64"):
                if type(op) not in seen:
                    seen.add(type(op))
                    for way in HOW.values():
                        other = way(op)
                        assert (type(other), repr(other)) == (type(op), repr(op))
                        assert other == op or type(op).__eq__ is object.__eq__
    assert len(seen) > 100
