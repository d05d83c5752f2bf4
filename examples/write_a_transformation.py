"""Write a transformation: values that carry a physical unit, in twenty lines, with a rule table of their own.

    python examples/write_a_transformation.py

The layer wraps values, says by rules what each operator does to units, and sends the numbers to the layer below. It
knows nothing of gradients; but what a gradient computes are operations too, so it comes out with its right unit.
"""

import numpy as np

import xform as xf
from xform.testing import check_transformation

unit_rule = xf.RuleTable("unit")  # operator -> the unit of its result, as exponents of (metre, second)


class Quantity(xf.Value):
    """A value with a unit: `data` is the value as the layer below knows it, `owner` the layer that made it."""

    __slots__ = ("owner", "unit")


class Units(xf.Transformation):
    """Tracks units. It makes values of its own, and changes no number: its effect is "wraps"."""

    effect = "wraps"

    def quantity(self, data, metre=0, second=0):
        """Return a number or an array with a unit."""
        out = Quantity()
        out.data, out.owner, out.unit = data, self, np.array([metre, second])
        return out

    def interpret(self, op, values):
        """Compute below on plain values; then the rule of the operator says the unit of the result."""
        own = [isinstance(value, Quantity) and value.owner is self for value in values]
        out = xf.apply(op, *map(self.unwrap, values))
        if not any(own) or op.attribute_like:  # nothing of ours; or a scope, or a read by the host
            return out
        units = [v.unit if mine else np.zeros(2, int) for v, mine in zip(values, own, strict=True)]
        return self.quantity(out, *unit_rule.get(op)(op, *units))


unit_rule(xf.ops.Mul)(lambda op, x, y: x + y)
unit_rule(xf.ops.Div)(lambda op, x, y: x - y)
unit_rule(xf.ops.Square)(lambda op, x: 2 * x)
unit_rule(xf.ops.Neg)(lambda op, x: x)
unit_rule(xf.ops.FullLike)(lambda op, x: 0 * x)  # ones_like, with which a gradient begins: a number without a unit


@unit_rule(xf.ops.Add, xf.ops.Sub)
def add_unit(op, x, y):
    if (x != y).any():
        raise ValueError(f"{op.name} of {text(x)} and {text(y)}")
    return x


def text(unit):
    return " ".join(f"{name}^{power}" for name, power in zip("ms", unit, strict=True) if power) or "1"


def show(label, quantity):
    print(f"{label}{quantity:.4g} {text(quantity.unit)}")


def height(t, speed, gravity):
    return speed * t - gravity * np.square(t) / 2.0


with Units() as units:
    t, speed, gravity = units.quantity(0.5, second=1), units.quantity(8.0, 1, -1), units.quantity(9.81, 1, -2)
    show("height:             ", height(t, speed, gravity))
    try:
        speed + gravity
    except ValueError as error:
        print("nonsense raises:    ", error)
    try:
        np.exp(t)
    except xf.XformError as error:
        print("no rule for it:     ", error)
    show("d height / d t:     ", xf.grad(height)(t, speed, gravity))
    show("d2 height / d t2:   ", xf.grad(xf.grad(height))(t, speed, gravity))
    traced = xf.trace(xf.grad(height))
    traced(t, speed, gravity)
    show("the same, replayed: ", traced(t, speed, gravity))
    with xf.Profile() as profile:  # above Units: it sees what you wrote
        height(t, speed, gravity)
    print("profiled operations:", profile.calls())

check_transformation(Units)
print("check_transformation(Units): passed")
