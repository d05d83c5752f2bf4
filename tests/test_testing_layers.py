"""`check_transformation`: good layers pass, bad ones are caught by name and law."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

import xform as xf
from xform import ops
from xform.core.errors import LayerError
from xform.testing import check_transformation


class Count(xf.Observer):
    def __init__(self):
        self.count = 0

    def observe(self, op, inputs, outputs):
        self.count += 1


class CosForSin(xf.Rewriter):
    def rewrite(self, op, values):
        return ops.cos(*values) if op == ops.Sin() else NotImplemented


class SquareAsProduct(xf.Rewriter):
    effect = "faithful"

    def rewrite(self, op, values):
        return values[0] * values[0] if op == ops.Square() else NotImplemented


class Pass(xf.Transformation):
    effect = "faithful"

    def interpret(self, op, values):
        return xf.apply(op, *values)


@pytest.mark.parametrize("kind", [Count, CosForSin, SquareAsProduct, Pass])
def test_good_layers_pass(kind):
    check_transformation(kind)


BUILT_IN = {
    "Device(cpu)": (lambda: xf.Device("cpu"), True),
    "Device(strict)": (lambda: xf.Device("array_api_strict:device1"), True),
    "Grad": (xf.Grad, False),
    "NanGuard": (xf.NanGuard, True),
    "Profile": (xf.Profile, True),
    "Trace": (xf.Trace, False),
}


@pytest.mark.parametrize("layer", BUILT_IN)
def test_built_in_layers_pass(layer):
    make, reusable = BUILT_IN[layer]
    check_transformation(make, reusable=reusable)


class Liar(CosForSin):
    effect = "faithful"


class Slightly(xf.Transformation):
    effect = "faithful"

    def interpret(self, op, values):
        out = xf.apply(op, *values)
        return out * 1.001 if op == ops.Exp() else out


class Forgetful(Pass):
    def interpret(self, op, values):
        if op.multiple_outputs:
            return xf.apply(op, *values)[0]
        return xf.apply(op, *values)


class Narrows(Pass):
    def interpret(self, op, values):
        out = xf.apply(op, *values)
        return xf.apply(ops.Astype("float64"), out) if op == ops.Exp() else out


class Hides(Pass):
    def interpret(self, op, values):
        try:
            return xf.apply(op, *values)
        except Exception as error:
            raise ValueError("hidden") from error


class Mute(Pass):
    def interpret(self, op, values):
        return np.zeros(()) if op.name in ("PushScope", "PopScope") else xf.apply(op, *values)


class Scoped(Pass):
    def on_unregister(self):
        xf.named_scope("left open").__enter__()


class Quiet(Pass):
    def on_register(self):
        np.seterr(over="raise")


class Detached(Pass):
    """Takes the tangents of forward mode away."""

    def interpret(self, op, values):
        out = xf.apply(op, *values)
        return xf.stop_gradient(out) if op == ops.Tanh() else out


class Collects(xf.Observer):
    kept: ClassVar[list[object]] = []

    def observe(self, op, inputs, outputs):
        self.kept.append(xf.concrete(outputs))


class Swallows(Pass):
    def __exit__(self, *exc_info):
        super().__exit__(*exc_info)
        return True


class Replaces(Pass):
    def __exit__(self, kind, error, traceback):
        super().__exit__(kind, error, traceback)
        if error is not None:
            raise ValueError("another") from error


class Stays(Pass):
    def __exit__(self, kind, error, traceback):
        if error is None:
            super().__exit__(kind, error, traceback)


class Keeps(Count):
    kept: ClassVar[list] = []

    def observe(self, op, inputs, outputs):
        self.kept.append(inputs)


class Shares(xf.Transformation):
    """Remembers the operation on the layer: wrong in a second thread, and when used again."""

    effect = "faithful"

    def __init__(self):
        self.uses = 0

    def on_register(self):
        self.uses += 1

    def interpret(self, op, values):
        out = xf.apply(op, *values)
        return out * 2.0 if self.uses > 1 and op == ops.Exp() else out


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Liar, "Liar: values: program 'elementwise' inside the layer: got"),
        (Slightly, "Slightly: values: program 'elementwise' inside the layer: got"),
        (Forgetful, "Forgetful: structure: raised RuleError: Forgetful.interpret returned one"),
        (Narrows, "Narrows: kinds: program 'elementwise' of single precision inside the layer: got float64"),
        (Hides, "Hides: exceptions: an exception of an operator inside the layer did not come out as it was raised"),
        (Mute, "Mute: structure: of a named_scope inside the layer, [] reached what stands below"),
        (Scoped, "Scoped: values: the scope is not as it was before"),
        (Quiet, "Quiet: values: np.geterr() is not as it was before"),
        (Detached, "Detached: "),
        (Collects, "Collects: leaks: a result is alive after its program has ended"),
        (Swallows, "Swallows: exceptions: an exception inside the layer did not come out as it was raised: None"),
        (Replaces, "Replaces: exceptions: an exception inside the layer did not come out as it was raised: ValueError"),
        (Stays, "Stays: "),
        (Keeps, "Keeps: leaks: an operand is alive after its program has ended"),
        (Shares, "Shares: repetition: used again: got"),
        (dict, "which is no xf.Transformation"),
    ],
)
def test_bad_layers_are_caught_by_name_and_law(kind, message):
    from xform.core.stack import BOTTOM, cursor

    with pytest.raises(AssertionError) as caught:
        check_transformation(kind)
    assert message in str(caught.value)
    assert cursor.get() is BOTTOM
    Keeps.kept.clear()
    Collects.kept.clear()


def test_a_layer_with_an_unknown_effect_is_caught():
    with pytest.raises(LayerError, match=r"Odd.effect is 'odd'; it must be one of 'observes', 'faithful'"):

        class Odd(Pass):
            effect = "odd"

    with pytest.raises(LayerError, match=r"Odd.interpret must be interpret\(self, op, values\)"):

        class Odd(xf.Transformation):
            def interpret(self, op, *values):
                return xf.apply(op, *values)


def test_a_rewriter_whose_gradient_is_wrong_is_caught():
    class Blocks(xf.Rewriter):
        """Gives right values through operations that lose the derivative."""

        def rewrite(self, op, values):
            return xf.stop_gradient(xf.apply(op, *values)) if op == ops.Exp() else NotImplemented

    with pytest.raises(AssertionError, match=r"Blocks: gradients_above: program 'elementwise' under grad: rev mode"):
        check_transformation(Blocks)
