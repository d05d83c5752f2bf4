"""Write an operator: what it computes, its type, its derivative; then it works under every transformation.

    python examples/write_an_operator.py

The example is softplus, a smooth max(x, 0), with its sharpness as a parameter.
"""

import attrs
import numpy as np

import xform as xf
from xform.testing import check_operator


@attrs.frozen
class Softplus(xf.Operator):
    """log(1 + exp(sharpness x)) / sharpness. Parameters are fields; operands come with `apply`."""

    sharpness: float = 1.0

    def infer(self, x):
        """Shape and dtype of the result: those of the operand."""
        return x

    def evaluate(self, xp, x):
        """Compute with the array library `xp`: NumPy, CuPy, or any other that follows the array API standard."""
        scaled = self.sharpness * x
        return (xp.log1p(xp.exp(-abs(scaled))) + (scaled + abs(scaled)) / 2) / self.sharpness  # no overflow


def softplus_partial(t, op, x):
    """The derivative times `t`, for both modes. The names say what a tape has to keep: the operator and `x`."""
    return t * (0.5 + 0.5 * np.tanh(0.5 * op.sharpness * x))  # the logistic function; itself differentiable


xf.partials(Softplus, softplus_partial)


@xf.batch_rule(Softplus)
def softplus_batch(op, size, values, axes):
    """Elementwise: the batch axis stays where it is."""
    return xf.apply(op, *values), axes[0]


def softplus(x, sharpness=1.0):
    """Return a smooth max(x, 0)."""
    return xf.apply(Softplus(sharpness), x)


x = np.array([-2.0, 0.0, 3.0])
print("softplus(x)   =", softplus(x))
print("no overflow   =", softplus(np.array([-1000.0, 1000.0])))
print("gradient      =", xf.grad(lambda x: softplus(x).sum())(x), "  logistic:", 1 / (1 + np.exp(-x)))
print("second, at 0  =", xf.grad(xf.grad(softplus))(0.0), "  exactly 1/4")

program = xf.make_program(xf.grad(lambda x: softplus(x, 2.0).sum()))(x)
print(program)  # it traces, forward and backward
assert np.array_equal(program(x), xf.grad(lambda x: softplus(x, 2.0).sum())(x))

with xf.Profile() as profile:
    xf.grad(lambda x: softplus(x).sum())(x)
print("profiled      =", profile.calls("Softplus"), "call of Softplus")

# Types, both modes at orders 1 and 2 against finite differences, batching, another array library where it is installed.
check_operator(Softplus(), x)
check_operator(Softplus(2.0), x.reshape(3, 1))
print("check_operator: passed")
