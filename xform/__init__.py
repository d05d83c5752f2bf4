"""xform: NumPy programs through a stack of interpreters.

Every operation is `apply(op, *values)`; each active transformation gives it its meaning, the bottom computes it.

Names load when they are first asked for: `import xform` costs little, the first use of a name loads the core, the
operators and `xform.numpy` together, and the heavier transformations each on their own.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xform import debug, layers, ops, random, tree, values
    from xform.core.aval import Aval, aval_of
    from xform.core.bases import Observer, Rewriter
    from xform.core.devices import Backend
    from xform.core.errors import XformError
    from xform.core.operator import Operator
    from xform.core.place import current
    from xform.core.rules import RuleTable, batch_rule, bilinear, jvp_rule, linear, partials, vjp_rule
    from xform.core.stack import Transformation, apply, carry, concrete, stack
    from xform.core.value import Array, Value
    from xform.derivatives import hessian, hvp, jacfwd, jacobian, jacrev
    from xform.implicit import fixed_point, root
    from xform.loops import LoopBuilder, cond, fori_loop, map, scan, switch, while_loop
    from xform.numpy import array, where
    from xform.ops.buffers import buffer
    from xform.ops.placement import device_put, to_numpy
    from xform.ops.structural import name, named_scope, stop_gradient
    from xform.plugins import LAYER_API, layer, register, register_backend, register_engine, transformations
    from xform.programs.compare import diff
    from xform.programs.compiler import compile_program
    from xform.programs.engines import Engine
    from xform.programs.loop_reports import loop_reports
    from xform.programs.program import Program
    from xform.programs.replay import replay_compare
    from xform.programs.storage import load_program
    from xform.transforms.batch import Batch, vmap
    from xform.transforms.checkpoint import checkpoint
    from xform.transforms.custom import custom_gradient, custom_jvp, custom_vjp
    from xform.transforms.device import Device
    from xform.transforms.excluded import exclude_from_trace
    from xform.transforms.explain import Explain, explain_apply
    from xform.transforms.forward import Forward, jvp, linearize
    from xform.transforms.grad import Grad
    from xform.transforms.nan_guard import NanGuard
    from xform.transforms.profile import Profile
    from xform.transforms.reverse import grad, value_and_grad, vjp
    from xform.transforms.safe_where import safe_where
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
    "Observer": "core.bases",
    "Rewriter": "core.bases",
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
    "fixed_point": "implicit",
    "root": "implicit",
    "LoopBuilder": "loops",
    "cond": "loops",
    "fori_loop": "loops",
    "map": "loops",
    "scan": "loops",
    "switch": "loops",
    "while_loop": "loops",
    "array": "numpy",
    "where": "numpy",
    "buffer": "ops.buffers",
    "device_put": "ops.placement",
    "to_numpy": "ops.placement",
    "name": "ops.structural",
    "named_scope": "ops.structural",
    "stop_gradient": "ops.structural",
    "LAYER_API": "plugins",
    "layer": "plugins",
    "register": "plugins",
    "register_backend": "plugins",
    "register_engine": "plugins",
    "transformations": "plugins",
    "diff": "programs.compare",
    "compile_program": "programs.compiler",
    "Engine": "programs.engines",
    "loop_reports": "programs.loop_reports",
    "Program": "programs.program",
    "replay_compare": "programs.replay",
    "load_program": "programs.storage",
    "Batch": "transforms.batch",
    "vmap": "transforms.batch",
    "checkpoint": "transforms.checkpoint",
    "custom_gradient": "transforms.custom",
    "custom_jvp": "transforms.custom",
    "custom_vjp": "transforms.custom",
    "Device": "transforms.device",
    "exclude_from_trace": "transforms.excluded",
    "Explain": "transforms.explain",
    "explain_apply": "transforms.explain",
    "Forward": "transforms.forward",
    "jvp": "transforms.forward",
    "linearize": "transforms.forward",
    "Grad": "transforms.grad",
    "NanGuard": "transforms.nan_guard",
    "Profile": "transforms.profile",
    "grad": "transforms.reverse",
    "value_and_grad": "transforms.reverse",
    "vjp": "transforms.reverse",
    "safe_where": "transforms.safe_where",
    "Trace": "transforms.trace",
    "eval_shape": "transforms.trace",
    "make_program": "transforms.trace",
    "trace": "transforms.trace",
}
_MODULES = (
    "core", "debug", "layers", "loops", "numpy", "ops", "plugins", "programs", "random", "testing", "transforms",
    "tree", "values",
)  # fmt: skip

__all__ = [
    "LAYER_API", "Array", "Aval", "Backend", "Batch", "Device", "Engine", "Explain", "Forward", "Grad", "LoopBuilder",
    "NanGuard", "Observer", "Operator", "Profile", "Program", "Rewriter", "RuleTable", "Trace", "Transformation",
    "Value", "XformError", "apply", "array", "aval_of", "batch_rule", "bilinear", "buffer", "carry", "checkpoint",
    "compile_program", "concrete", "cond", "current", "custom_gradient", "custom_jvp", "custom_vjp", "debug",
    "device_put", "diff", "eval_shape", "exclude_from_trace", "explain_apply", "fixed_point", "fori_loop", "grad",
    "hessian", "hvp", "jacfwd", "jacobian", "jacrev", "jvp", "jvp_rule", "layer", "layers", "linear", "linearize",
    "load_program", "loop_reports", "make_program", "map", "name", "named_scope", "ops", "partials", "random",
    "register", "register_backend", "register_engine", "replay_compare", "root", "safe_where", "scan", "stack",
    "stop_gradient", "switch", "to_numpy", "trace", "transformations", "tree", "value_and_grad", "values", "vjp",
    "vjp_rule", "vmap", "where", "while_loop",
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
