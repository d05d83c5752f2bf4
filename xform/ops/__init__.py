"""All built-in operators, by family, and the functions that apply them."""

import importlib as _importlib
from typing import Any as _Any

from xform.ops.arithmetic import *
from xform.ops.batching import *
from xform.ops.broadcast import *
from xform.ops.broadcast_batch import *
from xform.ops.buffers import *
from xform.ops.closeness import *
from xform.ops.comparisons import *
from xform.ops.complexes import *
from xform.ops.create import *
from xform.ops.cumulative import *
from xform.ops.differences import *
from xform.ops.dots import *
from xform.ops.einsum import *
from xform.ops.exponential import *
from xform.ops.extrema import *
from xform.ops.flipping import *
from xform.ops.gather import *
from xform.ops.indexing import *
from xform.ops.interpolation import *
from xform.ops.joining import *
from xform.ops.missing import *
from xform.ops.padding import *
from xform.ops.placement import *
from xform.ops.powers import *
from xform.ops.products import *
from xform.ops.ranks import *
from xform.ops.reductions import *
from xform.ops.rounding import *
from xform.ops.searching import *
from xform.ops.selection import *
from xform.ops.shapes import *
from xform.ops.sinc import *
from xform.ops.softmax import *
from xform.ops.sorting import *
from xform.ops.stacking import *
from xform.ops.stand_ins import *
from xform.ops.statistics import *
from xform.ops.structural import *
from xform.ops.tiling import *
from xform.ops.triangular import *
from xform.ops.trigonometric import *
from xform.ops.updates import *
from xform.ops.updates_nonlinear import *

#: the modules of linear algebra and of draws are loaded when one of their names is first asked for
_LAZY = ("linalg", "determinants", "cofactors", "norms", "factorizations", "decompositions", "draws")


def __getattr__(name: str) -> _Any:
    """Find an operator or a function of linear algebra, or an operator that draws."""
    if name in _LAZY:
        return _importlib.import_module(f"xform.ops.{name}")
    if not name.startswith("_"):
        for module in map(_importlib.import_module, [f"xform.ops.{each}" for each in _LAZY]):
            if name in module.__all__:
                return getattr(module, name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
