"""What is known of a value without its data: shape, dtype, and whether it is a weak Python scalar."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from xform.core.errors import OperandTypeError, ShapeError
from xform.core.value import Value

__all__ = [
    "Aval", "alike", "aval_of", "broadcast_shapes", "dtype_of", "is_numeric", "is_static", "result_dtype", "shape_of",
]  # fmt: skip

Shape = tuple[int | None, ...]


@attrs.define(slots=True, unsafe_hash=True, repr=False)
class Aval:
    """Shape and dtype of a value; a dimension that is `None` is unknown until run time.

    `weak` marks a Python scalar, whose dtype gives way to an array's (NEP 50).

    >>> import numpy as np, xform as xf
    >>> xf.Aval((2, None), np.dtype("float32"))
    float32[2,?]
    """

    shape: Shape
    dtype: np.dtype[Any]
    weak: bool = False
    __tree_leaf__ = True

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements; raises where a dimension is unknown."""
        count = 1
        for length in self.shape:
            if length is None:
                msg = f"the size of {self!r} is not known before run time"
                raise ShapeError(msg, aval=self)
            count *= length
        return count

    def __repr__(self) -> str:
        lengths = ",".join("?" if length is None else str(length) for length in self.shape)
        return f"{'weak ' if self.weak else ''}{self.dtype}[{lengths}]"


_WEAK = {
    bool: Aval((), np.dtype(bool)),
    int: Aval((), np.dtype(np.int64), weak=True),
    float: Aval((), np.dtype(np.float64), weak=True),
    complex: Aval((), np.dtype(np.complex128), weak=True),
}


def aval_of(value: Any) -> Aval:
    """Return the aval of a value, a raw array of any library, a scalar, or an aval itself.

    Raises `OperandTypeError` for what is no array.

    >>> import numpy as np, xform as xf
    >>> xf.aval_of(np.zeros((2, 3))), xf.aval_of(1.0)
    (float64[2,3], weak float64[])
    """
    while isinstance(value, Value):
        if value.aval is not None:
            return value.aval  # type: ignore[no-any-return]
        value = value.data
    if type(value) is np.ndarray:
        return Aval(value.shape, value.dtype)
    weak = _WEAK.get(type(value))
    if weak is not None:
        return weak
    if isinstance(value, Aval):
        return value
    try:
        shape, dtype = value.shape, value.dtype
    except AttributeError:
        msg = f"expected an array or a number, got {type(value).__name__}: {value!r:.80}"
        raise OperandTypeError(msg, value=value) from None
    return Aval(tuple(shape), as_numpy_dtype(dtype))


def shape_of(value: Any) -> Shape:
    """Return the shape alone, without making an `Aval` of it, which costs 200 ns.

    >>> shape_of(np.zeros((2, 3))), shape_of(1.0)
    ((2, 3), ())
    """
    while isinstance(value, Value) and value.aval is None:
        value = value.data
    if type(value) is np.ndarray:
        shape: Shape = value.shape
        return shape
    return () if isinstance(value, np.generic) else aval_of(value).shape


def dtype_of(value: Any) -> np.dtype[Any]:
    """Return the dtype alone, without making an `Aval` of it, which costs 200 ns.

    >>> dtype_of(np.zeros(2)), dtype_of(1.0)
    (dtype('float64'), dtype('float64'))
    """
    while isinstance(value, Value) and value.aval is None:
        value = value.data
    return value.dtype if type(value) is np.ndarray or isinstance(value, np.generic) else aval_of(value).dtype


def is_numeric(dtype: np.dtype[Any]) -> bool:
    """Whether elements are numbers or booleans: not text, dates or Python objects.

    >>> is_numeric(np.dtype("float32")), is_numeric(np.dtype(object))
    (True, False)
    """
    return dtype.kind not in "OSUMmT"


def alike(x: Any, out: Any) -> bool:
    """Whether two values are known to have the same shape and dtype, by a look that makes no `Aval` (0.3 us, not 3).

    False says nothing.

    >>> alike(np.ones(2), np.zeros(2)), alike(np.ones(2), np.ones(3))
    (True, False)
    """
    while (kind := type(x)) is type(out):
        if kind is np.ndarray:
            return x.dtype is out.dtype and bool(x.shape == out.shape)
        if not isinstance(x, Value):
            return isinstance(x, np.generic | float | complex)
        if x.owner is not out.owner or x.axis != out.axis:
            return False
        x = x.data
        out = out.data
        if x is None:
            return False
    return False


def as_numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """Return NumPy's dtype of the same name as a library's own dtype object.

    >>> as_numpy_dtype("float32")
    dtype('float32')
    """
    if type(dtype) in _DTYPE_CLASSES:
        return dtype  # type: ignore[no-any-return]
    known = _foreign_dtypes.get(dtype)
    if known is None:
        known = _foreign_dtypes[dtype] = _named_dtype(dtype)
    return known


def _named_dtype(dtype: Any) -> np.dtype[Any]:
    try:
        found: np.dtype[Any] = np.dtype(dtype)
        return found
    except TypeError:
        name = str(getattr(dtype, "name", None) or dtype)
        return np.dtype(name.rsplit(".", 1)[-1].strip("'<> "))


# what other libraries call their dtypes (np.dtype of one raises, which costs 2 us each time)
_foreign_dtypes: dict[Any, np.dtype[Any]] = {}


_DTYPE_CLASSES = frozenset(type(np.dtype(code)) for code in np.typecodes["All"])


def is_static(shape: Shape) -> bool:
    """Whether every dimension is known.

    >>> is_static((2, 3)), is_static((2, None))
    (True, False)
    """
    return None not in shape


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Broadcast shapes as NumPy does; an unknown dimension against 1 or unknown stays unknown.

    Raises `ShapeError` where lengths differ.

    >>> broadcast_shapes((3, 1), (None, 4))
    (3, 4)
    """
    ndim = max((len(shape) for shape in shapes), default=0)
    out: list[int | None] = [1] * ndim
    for shape in shapes:
        offset = ndim - len(shape)
        for axis, length in enumerate(shape, offset):
            have = out[axis]
            if have == 1 or (have is None and length not in (1, None)):
                out[axis] = length
            elif length not in (1, None, have):
                listed = " and ".join(str(shape) for shape in shapes)
                msg = f"shapes {listed} do not broadcast together"
                raise ShapeError(msg, shapes=shapes)
    return tuple(out)


_PYTHON = {"b": bool, "i": int, "f": float, "c": complex}


def result_dtype(*avals: Aval) -> np.dtype[Any]:
    """Promote dtypes as NumPy 2 does (NEP 50): a weak scalar gives way to an array's dtype of its kind.

    >>> result_dtype(Aval((), np.dtype("float32")), aval_of(1.0))
    dtype('float32')
    """
    return np.result_type(*[_PYTHON[a.dtype.kind](0) if a.weak else a.dtype for a in avals])
