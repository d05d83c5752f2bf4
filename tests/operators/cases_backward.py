"""Cases of operators that no public function applies: only rules do, so that derivatives of theirs are second ones."""

from __future__ import annotations

import numpy as np

from tests.operators.case import case
from xform import ops
from xform.core.stack import apply

x = np.array([[0.5, -1.25, 2.0], [1.5, 0.75, -0.25]])
v = np.array([0.5, -1.5, 2.0, 0.75])
eight = np.linspace(-1.0, 1.6, 8) ** 3 + 0.1
cube = np.linspace(-1.0, 1.6, 24).reshape(2, 3, 4) ** 3 + 0.1
ties = np.array([[1.0, 2.0, 2.0], [0.5, 0.5, 0.5]])
square = np.array([[2.0, 0.3, -0.1], [0.2, 1.5, 0.4], [-0.3, 0.1, 1.2]])

TRANSPOSES = [
    case("fold", lambda a: apply(ops.Fold((1, 3), inner=False), a * a), x, complex=True),
    case("fold inner", lambda a: apply(ops.Fold((2, 1, 2), inner=True), a * a), cube, complex=True),
    case("sum each", lambda a: apply(ops.SumEach((2, 0, 1), axis=1), a * a), x, complex=True),
    case("unpad", lambda a: apply(ops.Unpad(((0, 1), (1, 1))), a * a), x, complex=True),
    case("unpad edge", lambda a: apply(ops.Unpad(((0, 0), (1, 0), (1, 2)), "edge"), a * a), cube, complex=True),
    case("unpad reflect", lambda a: apply(ops.Unpad(((2, 1),), "reflect"), a * a), eight, complex=True),
    case("unpad symmetric", lambda a: apply(ops.Unpad(((1, 2),), "symmetric"), a * a), eight, complex=True),
    case("unpad wrap", lambda a: apply(ops.Unpad(((1, 1),), "wrap"), a * a), v, complex=True),
    case("shift", lambda a: apply(ops.Shift(1), a * a), x, complex=True),
    case("shift backward", lambda a: apply(ops.Shift(0, backward=True, fill=1), a * a), cube, complex=True),
]

SHARES = [
    case("share", lambda a, b: apply(ops.Share(), a, b), x, x[:1] * 1.0, order=0),
    case("constant", lambda a: apply(ops.Constant((1,)), a), ties, order=0),
    case("softmax", lambda a: apply(ops.Softmax((1,)), a), x, complex=True),
    case("softmax axes", lambda a: apply(ops.Softmax((0, 2)), a), cube, complex=True),
    case("cofactor", lambda a: apply(ops.Cofactor(), a), square, x64_only=True),
    case("cofactor stack", lambda a: apply(ops.Cofactor(), a), np.stack([square, square.T]), order=1, x64_only=True),
]

CASES = TRANSPOSES + SHARES
