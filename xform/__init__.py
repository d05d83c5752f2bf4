"""xform: NumPy programs through a stack of interpreters.

Every operation is `apply(op, *values)`; each active transformation gives it its meaning, the bottom computes it.

Names load when they are first asked for: `import xform` costs little, the first use of a name loads the core, the
operators and `xform.numpy` together, and the heavier transformations each on their own.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xform import layers, ops, tree, values
    from xform.core.aval import Aval, aval_of
    from xform.core.devices import Backend
    from xform.core.errors import XformError
    from xform.core.operator import Operator
    from xform.core.place import current
    from xform.core.rules import RuleTable, batch_rule, bilinear, jvp_rule, linear, partials, vjp_rule
    from xform.core.stack import Observer, Rewriter, Transformation, apply, carry, concrete, stack
    from xform.core.value import Array, Value
    from xform.derivatives import hessian, hvp, jacfwd, jacobian, jacrev
    from xform.numpy import array, where
    from xform.ops.placement import device_put, to_numpy
    from xform.ops.structural import name, named_scope, stop_gradient
    from xform.plugins import LAYER_API, layer, register, register_backend, transformations
    from xform.programs.program import Program
    from xform.transforms.batch import Batch, vmap
    from xform.transforms.custom import custom_gradient
    from xform.transforms.device import Device
    from xform.transforms.forward import Forward, jvp, linearize
    from xform.transforms.grad import Grad
    from xform.transforms.nan_guard import NanGuard
    from xform.transforms.profile import Profile
    from xform.transforms.reverse import grad, value_and_grad, vjp
    from xform.transforms.trace import Trace, eval_shape, make_program, trace

__version__ = "0.1.0"

#: where each public name comes from
_HOME = {
    "Aval": "core.aval",
    "aval_of": "core.aval",
    "Backend": "core.devices",
    "XformError": "core.errors",
    "Operator": "core.operator",
    "current": "core.place",
    "RuleTable": "core.rules",
    "batch_rule": "core.rules",
    "bilinear": "core.rules",
    "jvp_rule": "core.rules",
    "linear": "core.rules",
    "partials": "core.rules",
    "vjp_rule": "core.rules",
    "Observer": "core.stack",
    "Rewriter": "core.stack",
    "Transformation": "core.stack",
    "apply": "core.stack",
    "carry": "core.stack",
    "concrete": "core.stack",
    "stack": "core.stack",
    "Array": "core.value",
    "Value": "core.value",
    "hessian": "derivatives",
    "hvp": "derivatives",
    "jacfwd": "derivatives",
    "jacobian": "derivatives",
    "jacrev": "derivatives",
    "array": "numpy",
    "where": "numpy",
    "device_put": "ops.placement",
    "to_numpy": "ops.placement",
    "name": "ops.structural",
    "named_scope": "ops.structural",
    "stop_gradient": "ops.structural",
    "LAYER_API": "plugins",
    "layer": "plugins",
    "register": "plugins",
    "register_backend": "plugins",
    "transformations": "plugins",
    "Program": "programs.program",
    "Batch": "transforms.batch",
    "vmap": "transforms.batch",
    "custom_gradient": "transforms.custom",
    "Device": "transforms.device",
    "Forward": "transforms.forward",
    "jvp": "transforms.forward",
    "linearize": "transforms.forward",
    "Grad": "transforms.grad",
    "NanGuard": "transforms.nan_guard",
    "Profile": "transforms.profile",
    "grad": "transforms.reverse",
    "value_and_grad": "transforms.reverse",
    "vjp": "transforms.reverse",
    "Trace": "transforms.trace",
    "eval_shape": "transforms.trace",
    "make_program": "transforms.trace",
    "trace": "transforms.trace",
}
_MODULES = ("core", "layers", "numpy", "ops", "plugins", "programs", "testing", "transforms", "tree", "values")

__all__ = [
    "LAYER_API", "Array", "Aval", "Backend", "Batch", "Device", "Forward", "Grad", "NanGuard", "Observer", "Operator",
    "Profile", "Program", "Rewriter", "RuleTable", "Trace", "Transformation", "Value", "XformError", "apply", "array",
    "aval_of", "batch_rule", "bilinear", "carry", "concrete", "current", "custom_gradient", "device_put", "eval_shape",
    "grad", "hessian", "hvp", "jacfwd", "jacobian", "jacrev", "jvp", "jvp_rule", "layer", "layers", "linear",
    "linearize", "make_program", "name", "named_scope", "ops", "partials", "register", "register_backend", "stack",
    "stop_gradient", "to_numpy", "trace", "transformations", "tree", "value_and_grad", "values", "vjp", "vjp_rule",
    "vmap", "where",
]  # fmt: skip


def __getattr__(attribute: str) -> Any:
    """Load a name from where it is defined, and with the first one what all of them need."""
    if attribute in _MODULES:
        return importlib.import_module(f"xform.{attribute}")
    home = _HOME.get(attribute)
    if home is None:
        msg = f"module 'xform' has no attribute {attribute!r}"
        raise AttributeError(msg)
    importlib.import_module("xform.layers")
    found = globals()[attribute] = getattr(importlib.import_module(f"xform.{home}"), attribute)
    return found


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*__all__, *_MODULES})
