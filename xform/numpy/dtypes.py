"""Constants, dtypes, and questions about dtypes and shapes, under NumPy's names; values are taken as arrays are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy import (
    bool,
    complex64,
    complex128,
    e,
    euler_gamma,
    float16,
    float32,
    float64,
    inf,
    int8,
    int16,
    int32,
    int64,
    nan,
    newaxis,
    pi,
    promote_types,
    uint8,
    uint16,
    uint32,
    uint64,
)

from xform.core.aval import Aval, aval_of, broadcast_shapes
from xform.core.backend import is_raw
from xform.core.errors import ShapeError
from xform.core.value import Value
from xform.ops.shapes import read_shape
from xform.ops.stacking import nested

__all__ = [
    "bool",
    "bool_",
    "broadcast_shapes",
    "can_cast",
    "complex64",
    "complex128",
    "double",
    "dtype",
    "e",
    "euler_gamma",
    "finfo",
    "float16",
    "float32",
    "float64",
    "iinfo",
    "inf",
    "int8",
    "int16",
    "int32",
    "int64",
    "iscomplexobj",
    "isdtype",
    "isrealobj",
    "issubdtype",
    "nan",
    "ndim",
    "newaxis",
    "pi",
    "promote_types",
    "result_type",
    "shape",
    "size",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]

bool_ = np.bool
double = np.float64
dtype = np.dtype
issubdtype = np.issubdtype

_PYTHON = {"b": False, "i": 0, "f": 0.0, "c": 0j}


def _dtype_of(x: Any) -> Any:
    """Return the dtype of an array or a value, a plain number for a weak scalar; a dtype as it is."""
    if isinstance(x, Value | Aval) or (is_raw(x) and not isinstance(x, np.generic)):
        aval = aval_of(x)
        return _PYTHON[aval.dtype.kind] if aval.weak else aval.dtype
    return x


def result_type(*arrays_and_dtypes: Any) -> np.dtype[Any]:
    """Return the dtype that NumPy promotes arrays, values, numbers and dtypes to.

    >>> result_type(np.ones(2, "float32"), 1.0), result_type("int32", "float32")
    (dtype('float32'), dtype('float64'))
    """
    return np.result_type(*[_dtype_of(x) for x in arrays_and_dtypes])


def can_cast(from_: Any, to: Any, casting: Any = "safe") -> Any:
    """Whether a dtype, or that of an array or value, casts to another under a rule.

    >>> can_cast(np.ones(2), "float32"), can_cast("int32", "float64")
    (False, True)
    """
    have = from_ if not isinstance(from_, Value) and not is_raw(from_) else aval_of(from_).dtype
    return np.can_cast(have, to, casting)


def isdtype(dtype: Any, kind: Any) -> Any:
    """Whether a dtype is of a kind of the array API standard, or one of several.

    >>> isdtype(np.dtype("float32"), "real floating"), isdtype(np.int32, ("bool", "real floating"))
    (True, False)
    """
    return np.isdtype(np.dtype(dtype), kind)


def finfo(dtype: Any) -> Any:
    """Return the limits of a floating dtype, or of that of an array or value.

    >>> float(finfo("float32").eps)
    1.1920928955078125e-07
    """
    return np.finfo(_limits_of(dtype))


def iinfo(dtype: Any) -> Any:
    """Return the limits of an integer dtype, or of that of an array or value.

    >>> iinfo("int8").max
    127
    """
    return np.iinfo(_limits_of(dtype))


def _limits_of(x: Any) -> Any:
    return aval_of(x).dtype if isinstance(x, Value) or is_raw(x) else x


def iscomplexobj(x: Any) -> Any:
    """Whether an array or value has a complex dtype.

    >>> iscomplexobj(np.ones(2)), iscomplexobj(1j)
    (False, True)
    """
    return _aval(x).dtype.kind == "c"


def isrealobj(x: Any) -> Any:
    """Whether an array or value has a dtype that is not complex.

    >>> isrealobj(np.ones(2))
    True
    """
    return not iscomplexobj(x)


def _aval(x: Any) -> Aval:
    """Return the aval of an array, a value, or nested lists of them."""
    if isinstance(x, tuple | list):
        x = nested(x)
    return aval_of(x)


def ndim(a: Any) -> int:
    """Return the number of axes.

    >>> ndim([[1, 2], [3, 4]])
    2
    """
    return _aval(a).ndim


def shape(a: Any) -> tuple[int | None, ...]:
    """Return the shape; a length that is not known before run time is None.

    >>> shape([[1, 2], [3, 4]])
    (2, 2)
    """
    return read_shape(a) if isinstance(a, Value) else _aval(a).shape


def size(a: Any, axis: Any = None) -> int:
    """Return the number of elements, in all or along some axes; raises `ShapeError` where it is not known.

    >>> size(np.ones((2, 3))), size(np.ones((2, 3)), 1)
    (6, 3)
    """
    lengths = shape(a)
    if axis is not None:
        lengths = tuple(lengths[each] for each in (axis if isinstance(axis, tuple) else (axis,)))
    if None in lengths:
        msg = f"size: shape {lengths} has a length that is not known before run time"
        raise ShapeError(msg)
    return math.prod(length for length in lengths if length is not None)
