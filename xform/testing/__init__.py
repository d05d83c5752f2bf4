"""The kit for authors of operators and layers: check derivatives, an operator's contract, a layer's manners."""

from xform.testing.gradients import check_grads
from xform.testing.layers import check_transformation
from xform.testing.operators import check_operator

__all__ = ["check_grads", "check_operator", "check_transformation"]
