"""Explaining: what each layer received and returned, with every layer, and with the same results as without."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from xform.core.errors import ShapeError
from xform.testing import check_transformation
from xform.transforms.explain import text_of

ones = np.ones(2)


class Half(xf.Transformation):
    """A user's layer that sends two operations for one."""

    def interpret(self, op, values):
        out = xf.apply(op, *values)
        return out if op.multiple_outputs or op.attribute_like else out * 0.5


class CosForSin(xf.Rewriter):
    def rewrite(self, op, values):
        return xf.apply(xf.ops.Cos(), *values) if op == xf.ops.Sin() else NotImplemented


class Names(xf.Observer):
    def __init__(self):
        self.seen = []

    def observe(self, op, inputs, outputs):
        self.seen.append(op.name)


def layers_of(text: str) -> list[str]:
    """Return the layers of the lines of a report, in order."""
    return [
        line.strip().split("(")[0].split(":")[0] for line in text.splitlines()[1:] if not line.strip().startswith("->")
    ]


# ------------------------------------------------------------------ the layer


def test_it_keeps_the_manners_of_a_layer():
    check_transformation(xf.Explain)


def test_the_tree_of_two_layers():
    with xf.Explain() as explain, Half(), Names():
        y = np.sin(xf.array(ones))
    line, *rest = explain.report().splitlines()
    assert line.startswith("Sin at ")
    assert "test_explain.py" in line
    assert line.endswith(": y = np.sin(xf.array(ones))")
    out, half = "Array<float64[2]: [0.84147098 0.84147098]>", "Array<float64[2]: [0.42073549 0.42073549]>"
    assert rest == [
        "  Names(): Sin(Array<float64[2]: [1. 1.]>)",
        "    Half(): Sin(Array<float64[2]: [1. 1.]>)",
        f"      bottom: Sin(Array<float64[2]: [1. 1.]>) -> {out}",
        f"      bottom: Mul({out}, 0.5) -> {half}",
        f"      -> {half}",
        f"    -> {half}",
    ]
    np.testing.assert_array_equal(xf.concrete(y), np.sin(ones) * 0.5)


def program(x):
    with xf.named_scope("layer"):
        h = np.tanh(x * 2.0)
    a, b = np.split(h, 2)  # several results
    return xnp.sum(xnp.where(a > 0, a, 0.5 * b)) + h[1]


LAYERS = {
    "half": Half, "rewriter": CosForSin, "observer": Names, "profile": xf.Profile, "nan guard": xf.NanGuard,
    "host": lambda: xf.Device("cpu"), "explain": xf.Explain,
}  # fmt: skip
FUNCTIONS = {
    "itself": lambda fun: fun,
    "grad": xf.grad,
    "value_and_grad": xf.value_and_grad,
    "jvp": lambda fun: lambda x: xf.jvp(fun, (x,), (x * 0.5,)),
    "hessian": xf.hessian,
    "vmap": lambda fun: lambda x: xf.vmap(fun)(np.stack([x, 2 * x])),
    "grad of vmap": lambda fun: xf.grad(lambda x: xf.vmap(fun)(xnp.stack([x, 2 * x])).sum()),
    "trace": xf.trace,
    "grad of trace": lambda fun: xf.grad(xf.trace(fun)),
    "trace of grad": lambda fun: xf.trace(xf.grad(fun)),
    "make_program": lambda fun: lambda x: xf.make_program(fun)(x)(x),
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("layer", LAYERS)
def test_nothing_is_changed(layer, function):
    """Explained from below and from above, with every layer between: the numbers are those of the plain run."""
    x = np.array([0.3, -0.7])
    with np.errstate(all="ignore"):
        wanted = FUNCTIONS[function](LAYERS[layer]()(program))(x)
        with xf.Explain() as explain:
            below = FUNCTIONS[function](LAYERS[layer]()(program))(x)
        above = FUNCTIONS[function](LAYERS[layer]()(xf.Explain()(program)))(x)
    for found in (below, above):
        for a, b in zip(xf.tree.leaves(wanted), xf.tree.leaves(found), strict=True):
            assert type(a) is type(b)
            np.testing.assert_array_equal(a, b)
    assert explain.count > 5
    assert "bottom: " in explain.report()


@pytest.mark.parametrize("device", ["array_api_strict:device1"])
def test_devices(device):
    pytest.importorskip("array_api_strict")
    with xf.Explain() as explain, xf.Device(device):
        y = np.sin(xf.array(ones)) * 2.0
    assert str(xf.concrete(y).device) == "array_api_strict.Device('device1')"
    text = explain.report()
    assert f"bottom: DevicePut(device='{device}')(Array<float64[2]: [1. 1.]>) -> Array<float64[2]>" in text


def test_errors_are_shown_and_pass_unchanged():
    with pytest.raises(ShapeError) as caught, xf.Explain() as explain, Half():
        xf.array(ones) + np.ones(3)
    text = explain.report()
    first = str(caught.value).splitlines()[0]
    assert f"    bottom: Add(Array<float64[2]: [1. 1.]>, float64[3]) raised ShapeError: {first}" in text
    assert text.splitlines()[-1] == f"    raised ShapeError: {first}"
    assert xf.stack() == ()

    class Own(Exception):  # noqa: N818  (a user may name it so)
        pass

    class Raises(xf.Transformation):
        def interpret(self, op, values):
            raise error

    error = Own("mine")
    with pytest.raises(Own) as own, xf.Explain() as explain, Raises():
        np.sin(xf.array(1.0))
    assert own.value is error
    assert "Raises(): Sin(Array<weak float64[]: 1.>) raised Own: mine" in explain.report()


def test_scopes_and_the_backward_phase_are_told():
    def loss(x):
        with xf.named_scope("outer"):
            return xnp.sum(x * x)

    with xf.Explain() as explain:
        xf.grad(loss)(ones)
    heads = [line for line in explain.report().splitlines() if not line.startswith(" ")]
    assert any(line.startswith("Mul at ") and line.endswith(" in outer") for line in heads)
    backward = [line for line in heads if line.startswith("Mul (backward) at ")]
    assert backward
    assert all("return xnp.sum(x * x)" in line for line in backward)


def test_without_operations_it_says_what_to_do():
    with xf.Explain() as explain:
        np.sin(ones)
    assert explain.report() == "no operation reached the stack: track the inputs with xf.array(x)"


def test_each_operation_can_be_shown_when_it_has_ended():
    shown = []
    with xf.Explain(shown.append) as explain:
        y = xf.array(2.0) * 3.0
        assert len(shown) == 1
        y = y + 1.0
    assert [text.split(" at ")[0] for text in shown] == ["Mul", "Add"]
    assert (explain.report(), explain.operations, explain.count) == ("", [], 2)
    assert float(y) == 7.0


def test_it_keeps_text_alone_and_copies_begin_empty():
    with xf.Explain() as explain:
        np.sin(xf.array(ones))
    assert all(type(each) is str for each in explain.operations)
    for other in (copy.deepcopy(explain), pickle.loads(pickle.dumps(xf.Explain(print)))):
        assert (other.operations, other.count) == ([], 0)


def test_observers_do_not_warn_that_they_saw_nothing():
    """Their levels are made anew in the copy of the stack; what these saw, the true ones have seen."""
    with Names() as below, xf.Explain(), Names() as above:
        np.sin(xf.array(ones))
    assert below.seen == above.seen == ["Sin"]
    with pytest.warns(UserWarning, match="saw no operation"), xf.Explain(), Names():
        pass


def test_several_threads():
    with xf.Explain() as explain:
        work = xf.carry(lambda: [np.sin(xf.array(ones)) for _ in range(50)])
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert explain.count == 200
    assert all(layers_of(text) == ["bottom"] for text in explain.operations)


def test_text_whatever_happens():
    class Odd:
        def __repr__(self):
            raise RuntimeError("no text")

    assert text_of(Odd()) == "<Odd>"
    assert text_of((1, (ones, None))) == "(1, (float64[2], None))"
    assert len(text_of("x" * 1000)) == 100
    assert text_of(xf.ops.Sum((0,), keepdims=False)) == "Sum(axis=(0,), keepdims=False)"


# ------------------------------------------------------------------ one operation


def test_on_the_empty_stack():
    explanation = xf.explain_apply(xf.ops.Add(), ones, 1.0)
    assert repr(explanation).splitlines()[1:] == ["  bottom: Add(float64[2], 1.0) -> float64[2]"]
    np.testing.assert_array_equal(explanation.result, ones + 1.0)
    assert type(explanation.result) is np.ndarray


def test_several_results():
    explanation = xf.explain_apply(xf.ops.Split((1,), 0), np.arange(3.0))
    assert "-> (float64[1], float64[2])" in repr(explanation)
    assert [part.tolist() for part in explanation.result] == [[0.0], [1.0, 2.0]]


def test_an_operation_that_fails_is_explained_and_its_result_raises():
    with Half():
        explanation = xf.explain_apply(xf.ops.Add(), ones, np.ones(3))
        assert "raised ShapeError" in repr(explanation)
        with pytest.raises(ShapeError, match="could not be broadcast"):
            explanation.result
    assert isinstance(explanation.error, ShapeError)


def stacks():
    return {
        "tape": [xf.Grad],
        "tape on a user's observer": [Names, xf.Grad],
        "user's layer on a tape": [xf.Grad, Half],
        "profile, tape, guard": [xf.Profile, xf.Grad, xf.NanGuard],
        "two tapes": [xf.Grad, xf.Grad],
        "forward on tape": [xf.Grad, xf.Forward],
    }


@pytest.mark.parametrize("names", stacks())
def test_values_of_a_tape_go_on_as_if_nothing_had_been_explained(names):
    """The values that come out are recorded, and as raw as the tape keeps them: the walk back uses them."""

    def run(apply):
        layers = [make() for make in stacks()[names]]
        tape = next(layer for layer in layers if isinstance(layer, xf.Grad))
        for layer in layers:
            layer.__enter__()
        try:
            x = tape.attach(np.array([0.5, 1.5]))
            y = apply(xf.ops.Mul(), apply(xf.ops.Sin(), x), x)
            z = xnp.sum(apply(xf.ops.Exp(), y) + x[::-1])
            gradient = tape.gradient(z, x)
        finally:
            for layer in reversed(layers):
                layer.__exit__(None, None, None)
        return y, gradient

    texts = []

    def explained(op, *values):
        explanation = xf.explain_apply(op, *values)
        texts.append(repr(explanation))
        return explanation.result

    (y, gradient), (wanted_y, wanted) = run(explained), run(xf.apply)
    assert type(gradient) is type(wanted)
    np.testing.assert_array_equal(xf.concrete(gradient), xf.concrete(wanted))
    kinds = []
    for value in (y, wanted_y):
        chain = [value]
        while isinstance(chain[-1], xf.Value):
            chain.append(chain[-1].data)
        kinds.append([type(each).__name__ for each in chain])
    assert kinds[0] == kinds[1]
    assert len(texts) == 3
    assert all("Grad(" in text for text in texts)


def test_a_tape_with_nothing_below_computes_by_itself():
    with xf.Grad(name="mine") as tape:
        x = tape.attach(ones)
        explanation = xf.explain_apply(xf.ops.Sin(), x)
    (line,) = repr(explanation).splitlines()[1:]
    assert line == "  Grad(mine) (on raw arrays): Sin(GradValue<float64[2], mine>) -> GradValue<float64[2], mine>"


def test_a_program_that_is_recorded_holds_each_operation_once():
    with xf.Trace() as recorder:
        x = recorder.input(ones)
        out = xf.explain_apply(xf.ops.Sin(), x).result * 2.0
    assert [equation.op.name for equation in recorder.program(out).equations] == ["Sin", "Mul"]


def test_by_name():
    assert isinstance(xf.layer("explain"), xf.Explain)
