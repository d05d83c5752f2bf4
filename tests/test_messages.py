"""What errors tell newcomers: the operand, the line, and what to write instead."""

from __future__ import annotations

import dataclasses
import pydoc
from pathlib import Path

import numpy as np
import pytest
from typeguard import suppress_type_checks

import xform as xf
import xform.numpy as xnp
from xform.core.errors import HostReadError, IndexOperandError, OperandTypeError, ProgramError, ShapeError, WriteError

X = np.ones((2, 3))

AXES = {
    "sum": lambda x: xnp.sum(x, axis=4),  # axis of sum
    "argmax": lambda x: xnp.argmax(x, axis=4),  # axis of argmax
    "cumsum": lambda x: xnp.cumsum(x, axis=4),  # axis of cumsum
    "sort": lambda x: xnp.sort(x, axis=4),  # axis of sort
    "var": lambda x: xnp.var(x, axis=4),  # axis of var
    "quantile": lambda x: xnp.quantile(x, 0.5, axis=4),  # axis of quantile
    "diff": lambda x: xnp.diff(x, axis=4),  # axis of diff
    "squeeze": lambda x: xnp.squeeze(x, 4),  # axis of squeeze
    "swapaxes": lambda x: xnp.swapaxes(x, 0, 4),  # axis of swapaxes
    "take": lambda x: xnp.take(x, [0], axis=4),  # axis of take
    "concatenate": lambda x: xnp.concatenate([x, x], axis=4),  # axis of concatenate
    "norm": lambda x: xnp.linalg.norm(x, axis=4),  # axis of norm
    "tensordot": lambda x: xnp.tensordot(x, x, axes=((4,), (0,))),  # axis of tensordot
    "pad": lambda x: xnp.pad(x, {4: (1, 1)}),  # axis of pad
}


@pytest.mark.parametrize("kind", ["raw", "tracked", "tape", "traced"])
@pytest.mark.parametrize("name", AXES)
def test_an_axis_out_of_bounds_names_function_operand_and_line(name, kind):
    fun = AXES[name]
    runs = {
        "raw": lambda: fun(X),
        "tracked": lambda: fun(xf.array(X)),
        "tape": lambda: xf.grad(lambda x: fun(x).sum())(X),
        "traced": lambda: xf.make_program(fun)(X),
    }
    with pytest.raises(IndexOperandError) as caught:
        runs[kind]()
    assert isinstance(caught.value, ValueError)
    said = str(caught.value)
    want = f"{name}: axis 4 is out of bounds for an array of 2 dimensions (operand: float64[2,3]; at "
    assert said.lower().startswith(want)
    assert Path(__file__).name in said
    assert f"# axis of {name}" in said
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("fun", [lambda x: xnp.sum(x, axis=(0, 0)), lambda x: xnp.transpose(x, (1, -1))])
def test_an_axis_that_is_named_twice(fun):
    with pytest.raises(ShapeError, match=r"names one axis twice \(operand: float64\[2,3\]; at .*test_messages.py"):
        fun(xf.array(X))


@pytest.mark.parametrize(("name", "fun"), [
    ("swapaxes", lambda x: xnp.swapaxes(x, 0, 1.0)), ("flip", lambda x: xnp.flip(x, "a")),
    ("Max", lambda x: xnp.max(x, 1.0)),
])  # fmt: skip
def test_an_axis_that_is_no_int(name, fun):
    with pytest.raises(OperandTypeError, match=rf"{name}: axis must be an int, got .*operand: float64\[2,3\]"):
        fun(xf.array(X))


def chosen(x):
    return x if x > 2.0 else -x


@pytest.mark.parametrize("run", [
    lambda: xf.make_program(chosen)(1.0),
    lambda: xf.eval_shape(chosen, 1.0),
    lambda: xf.while_loop(lambda x: x < 5.0, chosen, 0.0),
    lambda: xf.scan(lambda c, x: (chosen(c), x), 0.0, np.ones(3)),
    lambda: xf.vmap(chosen)(np.ones(3)),
], ids=["make_program", "eval_shape", "while_loop", "scan", "vmap"])  # fmt: skip
def test_a_branch_on_a_value_is_told_of_where_and_cond(run):
    said = r"bool\(\) of .*return x if x > 2\.0.*xnp\.where\(cond, a, b\) or xf\.cond\(pred, true_fun, false_fun, x\)"
    with pytest.raises(HostReadError, match=said) as caught:
        run()
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("mode", [
    lambda f: xf.grad(f)(1.0), lambda f: xf.jvp(f, (1.0,), (1.0,)), lambda f: xf.make_program(f)(1.0),
    lambda f: xf.vmap(f)(np.ones(3)),
], ids=["grad", "jvp", "make_program", "vmap"])  # fmt: skip
@pytest.mark.parametrize(("fill", "error"), [
    (lambda v: np.full((2,), v), HostReadError),
    (lambda v: np.full((2,), v, float), WriteError),
    (lambda v: np.full_like(np.ones(2), v), WriteError),
], ids=["full", "full of a dtype", "full_like"])  # fmt: skip
def test_full_of_numpy_is_told_of_full_of_xform(mode, fill, error):
    with pytest.raises(error, match=r"xnp\.full"):
        mode(lambda v: fill(v).sum())
    np.testing.assert_array_equal(xf.jacfwd(lambda v: xnp.full((2,), v))(1.0), [1.0, 1.0])


@dataclasses.dataclass
class Layer:
    name: str
    w: object


def total(layer):
    return (layer.w * 2.0).sum()


def test_a_field_that_is_no_array_is_told_of_register():
    layer = Layer("first", np.ones(2))
    for run, where in (
        (lambda: xf.grad(total)(layer), r"grad of total: the leaf \.name is str"),
        (lambda: xf.vjp(total, layer), r"vjp of total: argument \[0\]\.name is str"),
        (lambda: xf.jvp(total, (layer,), (layer,)), r"jvp of total: leaf \[0\]\.name: the primal is str"),
        (lambda: xf.vmap(total)(layer), r"vmap of total: args\[0\]\.name is str"),
        (lambda: xf.make_program(total)(layer), "make_program of total: expected an array or a number, got str"),
        (lambda: xf.fori_loop(0, 3, lambda i, c: c, layer), r"the carry \.name is str"),
    ):
        with pytest.raises(OperandTypeError, match=rf"{where}.*xf\.tree\.register"):
            run()


def test_what_the_message_says_works():
    class Dense:
        def __init__(self, name, w):
            self.name, self.w = name, w

    xf.tree.register(Dense, lambda d: ((d.w,), d.name), lambda name, children: Dense(name, *children), ("w",))
    found = xf.grad(total)(Dense("first", np.ones(2)))
    assert found.name == "first"
    np.testing.assert_array_equal(found.w, [2.0, 2.0])


@pytest.mark.parametrize("given", [lambda x: x, xf.trace(lambda x: x), "step.xf"], ids=["function", "trace", "str"])
def test_what_is_no_program_is_not_compiled(given):
    said = r"compile_program takes a Program, got \w+; write compile_program\(xf\.make_program\(fun\)\(\*args\)\)"
    with suppress_type_checks(), pytest.raises(OperandTypeError, match=said):  # typeguard would raise first
        xf.compile_program(given)


def test_a_compiled_program_takes_leaves():
    args = ({"b": np.ones(2), "a": 3.0}, 2.0)
    compiled = xf.compile_program(xf.make_program(lambda d, x: d["a"] * x + d["b"])(*args))
    with pytest.raises(ProgramError, match=r"takes 3 inputs, got 2: .*leaves .* order of xf\.tree\.leaves"):
        compiled(*args)
    one = xf.compile_program(xf.make_program(lambda d: d["a"] * 2.0)({"a": 1.0}))
    with pytest.raises(OperandTypeError, match=r"input 0 is dict: .*xf\.tree\.leaves.*xf\.trace"):
        one({"a": 1.0})
    np.testing.assert_array_equal(compiled(*xf.tree.leaves(args))[0], [7.0, 7.0])


@pytest.mark.parametrize(("name", "signature"), [
    ("vjp_rule", "rule(op, needed, *primals) -> (out, pullback)"),
    ("jvp_rule", "rule(op, primals, tangents) -> (out, out_tangent)"),
    ("batch_rule", "rule(op, size, values, axes) -> (out, axis)"),
])  # fmt: skip
def test_help_on_a_rule_table_tells_its_rule(name, signature):
    table = getattr(xf, name)
    assert signature in pydoc.plain(pydoc.render_doc(table))
    assert xf.RuleTable("mine").__doc__ is xf.RuleTable.__doc__


def test_a_rule_of_a_namespace_without_a_name():
    names = {"xf": xf, "np": np}
    exec(  # a notebook of somebody's, say: its functions have no module
        "class Cube(xf.Operator):\n"
        "    def infer(self, x): return x\n"
        "    def evaluate(self, xp, x): return x * x * x\n"
        "@xf.jvp_rule(Cube)\n"
        "def push(op, primals, tangents): return xf.apply(op, *primals), 3.0 * primals[0] ** 2 * tangents[0]\n"
        "@xf.vjp_rule(Cube)\n"
        "def pull(op, needed, x): return xf.apply(op, x), lambda t: (3.0 * x * x * t,)\n"
        "@xf.batch_rule(Cube)\n"
        "def lanes(op, size, values, axes): return xf.apply(op, *values), axes[0]\n",
        names,
    )

    def cube(x):
        return xf.apply(names["Cube"](), x)

    assert names["push"].__module__ is None
    assert xf.jvp(cube, (2.0,), (1.0,)) == (8.0, 12.0)
    assert xf.grad(cube)(2.0) == 12.0
    np.testing.assert_array_equal(xf.vmap(cube)(np.array([1.0, 2.0])), [1.0, 8.0])
