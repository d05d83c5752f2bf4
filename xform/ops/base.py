"""What operators of one family share, and how the functions that users call reach `apply`.

A function such as `sin(x)` computes at once where the stack is empty and `x` is a NumPy array or an `Array` of one;
everything else takes the one path through `level.interpret`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from xform.core.aval import Aval, aval_of, broadcast_shapes
from xform.core.backend import HOST_TYPES, SCALAR_TYPES
from xform.core.errors import DtypeError, ShapeError
from xform.core.operator import Operator
from xform.core.rules import batch_rule, jvp_rule, vjp_rule
from xform.core.stack import BOTTOM, cursor
from xform.core.value import Array

#: the operator of each NumPy ufunc, for NumPy's own functions on values
ufuncs: dict[np.ufunc, Operator] = {}

__all__ = [
    "Binary",
    "Elementwise",
    "Parameterless",
    "Ternary",
    "Unary",
    "binary",
    "constant",
    "fitted",
    "is_complex",
    "native",
    "ufunc_dtype",
    "ufuncs",
    "unary",
]

_get = cursor.get
_ndarray = np.ndarray
_PYTHON = {"b": np.dtype(bool), "i": int, "f": float, "c": complex}
Example = tuple[tuple[Any, ...], Any]


class Parameterless(Operator):
    """An operator without parameters: all of its instances are equal (attrs would cost 0.5 ms of import each)."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


# ------------------------------------------------------------------ elementwise operators


class Elementwise(Operator):
    """Applies a function to operands that broadcast together, element by element.

    A subclass is one row: `kernel, function = np.sin, "sin"`.
    """

    __slots__ = ()
    #: name in the array API standard; empty where the standard has none, then there is a `portable`
    function: ClassVar[str] = ""
    #: the authority on dtypes; the kernel itself, unless that is no ufunc
    ufunc: ClassVar[np.ufunc | None] = None

    def __init_subclass__(cls, *, base: bool = False) -> None:
        kernel = cls.__dict__.get("kernel")
        if isinstance(kernel, np.ufunc) and "ufunc" not in cls.__dict__:
            cls.ufunc = kernel
        if not base:
            batch_rule.rules[cls] = elementwise_batch

    def infer(self, *avals: Aval) -> Aval:
        """Broadcast shapes, and NumPy's dtype of the result."""
        if self.ufunc is None:
            return super().infer(*avals)  # type: ignore[no-any-return]
        return Aval(self.broadcast(*avals), ufunc_dtype(self.ufunc, avals, self.name))

    def broadcast(self, *avals: Aval) -> tuple[int | None, ...]:
        """Broadcast the operands' shapes; the error names the operator."""
        try:
            return broadcast_shapes(*[aval.shape for aval in avals])
        except ShapeError as error:
            msg = f"{self.name}: {error}"
            raise ShapeError(msg, op=self, avals=avals) from None

    def compute(self, xp: Any, *arrays: Any) -> Any:
        """Compute with the library's function, on operands of the dtypes that NumPy's ufunc would compute in."""
        ufunc: Any = self.ufunc
        if follows_numpy(xp):
            native = getattr(xp, ufunc.__name__, None)
            if native is not None:
                return native(*arrays)
        arrays = fitted(xp, ufunc, arrays)
        if aval_of(arrays[0]).dtype.kind == "b":
            if ufunc in _ON_BOOL:
                return getattr(xp, _ON_BOOL[ufunc])(*arrays)
            if ufunc in _ORDERS:
                arrays = tuple(xp.astype(array, xp.uint8) for array in arrays)
        function = getattr(xp, self.function, None) if self.function else None
        return self.portable(xp, *arrays) if function is None else function(*arrays)

    def portable(self, xp: Any, *arrays: Any) -> Any:
        """Compute with functions of the array API standard, where it has none of this name."""
        msg = f"{self.name}: the array library {xp.__name__} has no function {self.function!r}"
        raise NotImplementedError(msg)


class Unary(Parameterless, Elementwise, base=True):
    """An elementwise operator of one operand."""

    __slots__ = ()

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Compute on raw arrays."""
        return self.kernel(x) if xp is np else self.compute(xp, x)  # type: ignore[misc]


class Binary(Parameterless, Elementwise, base=True):
    """An elementwise operator of two operands that broadcast together."""

    __slots__ = ()

    def evaluate(self, xp: Any, x: Any, y: Any) -> Any:
        """Compute on raw arrays."""
        return self.kernel(x, y) if xp is np else self.compute(xp, x, y)  # type: ignore[misc]


class Ternary(Parameterless, Elementwise, base=True):
    """An elementwise operator of three operands that broadcast together; a subclass names them in its `evaluate`."""

    __slots__ = ()


_LIKE_NUMPY = frozenset({"numpy", "cupy", "array_api_compat.cupy"})
#: comparisons and arithmetic of booleans, which the standard refuses
_ORDERS = frozenset({np.less, np.less_equal, np.greater, np.greater_equal})
_ON_BOOL = {
    np.add: "logical_or", np.multiply: "logical_and", np.maximum: "logical_or", np.minimum: "logical_and",
    np.fmax: "logical_or", np.fmin: "logical_and",
}  # fmt: skip


# ------------------------------------------------------------------ dtypes


@functools.lru_cache(maxsize=4096)
def _loop(ufunc: np.ufunc, kinds: tuple[Any, ...], dtype: np.dtype[Any] | None) -> tuple[np.dtype[Any], ...]:
    given = (*kinds, *[None] * ufunc.nout)
    if dtype is None:
        return ufunc.resolve_dtypes(given)
    return ufunc.resolve_dtypes(given, signature=(*[None] * ufunc.nin, *[dtype] * ufunc.nout))


def loop_dtypes(
    ufunc: np.ufunc, avals: tuple[Aval, ...], name: str | None = None, dtype: np.dtype[Any] | None = None
) -> tuple[np.dtype[Any], ...]:
    """Return the dtypes that a ufunc computes in, operands first and the result last, which may be asked for.

    >>> loop_dtypes(np.true_divide, (Aval((), np.dtype("int32")),) * 2)
    (dtype('float64'), dtype('float64'), dtype('float64'))
    """
    if all(aval.weak for aval in avals):
        kinds: tuple[Any, ...] = tuple(aval.dtype for aval in avals)
    else:
        kinds = tuple(_PYTHON[aval.dtype.kind] if aval.weak else aval.dtype for aval in avals)
    try:
        return _loop(ufunc, kinds, dtype)
    except TypeError as error:
        listed = ", ".join(str(aval.dtype) for aval in avals)
        asked = "" if dtype is None else f" with dtype={dtype}"
        msg = f"{name or ufunc.__name__}: no meaning for operands of dtype {listed}{asked}"
        raise DtypeError(msg, avals=avals) from error


def ufunc_dtype(ufunc: np.ufunc, avals: tuple[Aval, ...], name: str | None = None) -> np.dtype[Any]:
    """Return the dtype that a ufunc gives for operands of these avals; raises `DtypeError` where it has none.

    >>> ufunc_dtype(np.true_divide, (Aval((), np.dtype("int32")),) * 2)
    dtype('float64')
    """
    return loop_dtypes(ufunc, avals, name)[-1]


def fitted(xp: Any, ufunc: np.ufunc, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """Cast operands to the dtypes that a ufunc computes in: the standard mixes no kinds of dtypes."""
    avals = tuple(aval_of(array) for array in arrays)
    like = next((array for array in arrays if type(array) not in SCALAR_TYPES), None)
    dtypes = loop_dtypes(ufunc, avals)
    return tuple(cast_raw(xp, a, dtype, like) for a, dtype in zip(arrays, dtypes, strict=False))


def cast_raw(xp: Any, array: Any, dtype: np.dtype[Any], like: Any) -> Any:
    """Bring a raw array or number to a dtype, on the device of `like`; single precision where the library lacks it."""
    found = getattr(xp, dtype.name, None) or getattr(xp, f"{dtype.name}_", None)
    if found is None:
        found = xp.float32 if dtype.kind == "f" else xp.complex64
    if type(array) in SCALAR_TYPES:
        return xp.asarray(array, dtype=found, device=getattr(like, "device", None))
    if array.dtype == found:
        return array
    return xp.astype(array, found) if hasattr(xp, "astype") else array.astype(found)


def follows_numpy(xp: Any) -> bool:
    """Whether a library has NumPy's functions, promotion and use of Python numbers.

    >>> follows_numpy(np)
    True
    """
    return getattr(xp, "__name__", "") in _LIKE_NUMPY


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype in the machine's byte order: what NumPy's reductions take, and all results have.

    >>> native(np.dtype(">f8")) == np.dtype(float)
    True
    """
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def is_complex(x: Any) -> bool:
    """Whether anything that `apply` takes has a complex dtype.

    >>> is_complex(1j), is_complex(np.ones(2))
    (True, False)
    """
    return x.dtype.kind == "c" if type(x) is _ndarray else aval_of(x).dtype.kind == "c"


def constant(*kinds: type[Operator], why: str) -> None:
    """State that operators have no derivative in either mode: their results do not vary with their operands."""
    vjp_rule.none(*kinds, why=why)
    jvp_rule.none(*kinds, why=why)


# ------------------------------------------------------------------ batching

_aligners: list[Callable[[Any, int, int], Any]] = []


def set_aligner(align: Callable[[Any, int, int], Any]) -> None:
    """Install `align(value, axis, ndim)`, which is built on this module: batch axis in front, `ndim` axes behind it."""
    _aligners[:] = [align]


def elementwise_batch(
    op: Operator, size: int, values: tuple[Any, ...], axes: tuple[int | None, ...]
) -> tuple[Any, int]:
    """Batch rule of all elementwise operators: align the operands' batch axes, and apply the operator itself."""
    apply = _get().interpret
    ndims = [len(aval_of(value).shape) for value in values]
    places = {(axis, ndim) for axis, ndim in zip(axes, ndims, strict=True) if axis is not None}
    rest = [ndim for axis, ndim in zip(axes, ndims, strict=True) if axis is None]
    if len(places) == 1:
        ((axis, ndim),) = places
        if max(rest, default=0) < ndim - axis:  # they broadcast against the axes behind the batch axis
            return apply(op, values), axis
    most = max(ndim - (axis is not None) for axis, ndim in zip(axes, ndims, strict=True))
    aligned = tuple(
        value if axis is None else _aligners[0](value, axis, most) for value, axis in zip(values, axes, strict=True)
    )
    return apply(op, aligned), 0


# ------------------------------------------------------------------ functions


def unary(op: Operator, summary: str, example: Example | None = None, name: str | None = None) -> Callable[[Any], Any]:
    """Make the function of a unary elementwise operator; `example` is `((argument,), result)` for its docstring."""
    kernel: Any = op.kernel
    if isinstance(kernel, np.ufunc):
        ufuncs[kernel] = op

    def function(x: Any, /) -> Any:
        level = _get()
        if level is BOTTOM:
            kind = type(x)
            try:
                if kind is _ndarray:
                    return kernel(x)
                if kind is Array and (type(own := x.data) is _ndarray or type(own) in HOST_TYPES):
                    out = Array()
                    out.data = kernel(own)
                    return out
            except (TypeError, ValueError):  # said again by the bottom, with operand and line
                pass
        return level.unary(op, x)

    named(function, op, summary, example, name)
    return function


def binary(
    op: Operator, summary: str, example: Example | None = None, name: str | None = None, *, register: bool = True
) -> Callable[[Any, Any], Any]:
    """Make the function of a binary elementwise operator; without `register` NumPy's ufunc has another operator."""
    kernel: Any = op.kernel
    if register and isinstance(op.ufunc, np.ufunc):  # type: ignore[attr-defined]
        ufuncs[op.ufunc] = op  # type: ignore[attr-defined]

    def function(x: Any, y: Any, /) -> Any:
        level = _get()
        if level is BOTTOM and type(x) is _ndarray and type(y) is _ndarray:
            try:
                return kernel(x, y)
            except (TypeError, ValueError):  # said again by the bottom, with operands and line
                pass
        return level.binary(op, x, y)

    named(function, op, summary, example, name)
    return function


def named(function: Any, op: Operator, summary: str, example: Example | None, name: str | None) -> None:
    """Give a made function its name, and its docstring with an example that runs."""
    ufunc = getattr(op, "ufunc", None)
    called = name or (ufunc.__name__ if ufunc is not None else type(op).__name__.lower())
    function.__name__ = function.__qualname__ = called
    function.__module__ = type(op).__module__
    function.__doc__ = documented(called, summary, example)


def documented(name: str, summary: str, example: Example | None) -> str:
    """Return the docstring of a made function.

    >>> documented("sin", "Sine.", ((0.0,), 0.0)).splitlines()[-2:]
    ['>>> float(xnp.sin(0.0))', '0.0']
    """
    text = f"{summary}\n\nTakes arrays of any shape, which broadcast together, and numbers."
    if example is None:
        return text
    arguments, result = example
    listed = ", ".join(map(repr, arguments))
    call = f"{type(result).__name__}(xnp.{name}({listed}))"
    return f"{text}\n\n>>> import xform.numpy as xnp\n>>> {call}\n{result!r}"
