"""The counter of a loop, a Python int, so that the dtype of what it meets stays."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from xform.core.aval import Aval
from xform.core.operator import Operator
from xform.core.rules import batch_rule
from xform.ops.base import constant, elementwise_batch
from xform.programs.kernels import KERNELS, Kernel

__all__ = ["COUNTER", "Offset"]

COUNTER = Aval((), np.dtype(np.int64), weak=True)


@attrs.frozen
class Offset(Operator):
    """A counter that begins elsewhere: a Python int stays one."""

    by: int

    def infer(self, x: Aval) -> Aval:
        """The counter's."""
        return x

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Add."""
        return x + self.by


constant(Offset, why="it counts")
batch_rule(Offset)(elementwise_batch)
KERNELS[Offset] = Kernel(lambda writer, equation, out: f"{writer.name(equation.inputs[0])} + {equation.op.by}")  # type: ignore[attr-defined]
