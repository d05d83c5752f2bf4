"""NumPy's names on values: `import xform.numpy as xnp`."""

import importlib as _importlib
from typing import Any as _Any

from xform import layers as _layers  # gives values their behaviour, where nothing else has loaded it
from xform.numpy.creation import *
from xform.numpy.dtypes import *
from xform.numpy.elementwise import *
from xform.numpy.printing import *
from xform.numpy.products import *
from xform.numpy.shaping import *
from xform.ops.broadcast import astype, broadcast_to
from xform.ops.cumulative import cumprod, cumsum, prod
from xform.ops.differences import cumulative_sum, diff, ediff1d, trapezoid
from xform.ops.extrema import amax, amin, argmax, argmin, max, min, ptp
from xform.ops.gather import (
    choose,
    compress,
    extract,
    ix_,
    one_hot,
    select,
    take,
    take_along_axis,
    unravel_index,
)
from xform.ops.interpolation import interp
from xform.ops.missing import nanmax, nanmean, nanmin, nansum
from xform.ops.reductions import all, any, count_nonzero, mean, sum
from xform.ops.searching import argwhere, flatnonzero, nonzero, searchsorted
from xform.ops.softmax import logsumexp
from xform.ops.sorting import argsort, sort
from xform.ops.statistics import average, median, percentile, quantile, std, var


def __getattr__(name: str) -> _Any:
    """Load `xform.numpy.linalg` when it is first asked for."""
    if name == "linalg":
        return _importlib.import_module("xform.numpy.linalg")
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
