"""What values can do: Python's operators, NumPy's protocols, reading on the host.

1. Every operator and method goes through `apply`; on an `Array` with an empty stack it computes at once.
2. NumPy's functions on values come back here (`__array_ufunc__`, `__array_function__`), so that a function written with
   plain `import numpy as np` differentiates, traces and profiles unchanged.
3. Reading a value is the operator `HostRead`; where it would drop what a layer knows, the layer raises.
"""

from __future__ import annotations

import copy
import importlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from xform import ops, tree
from xform.core.aval import aval_of
from xform.core.backend import HOST_TYPES, SCALAR_TYPES, device_of, namespace_of
from xform.core.devices import to_host
from xform.core.errors import HostReadError, OperandTypeError, WriteError
from xform.core.operator import Operator
from xform.core.source import describe, user_site
from xform.core.stack import BOTTOM, apply, concrete, cursor
from xform.core.value import Array, Value
from xform.ops.base import loop_dtypes, ufuncs
from xform.ops.reductions import cast_back
from xform.ops.sequences import as_numpy_would, fitted_call, full_name, parameters_of, unlisted
from xform.ops.stacking import nested
from xform.ops.structural import HostRead

__all__ = ["Array", "Value"]

_get = cursor.get
_ndarray = np.ndarray
MISSING = object()
Method = Callable[..., Any]


# ------------------------------------------------------------------ Python's operators


def binary_methods(op: Operator) -> tuple[Method, Method]:
    """Make the method of a binary operator and its reflection."""

    def method(self: Value, other: Any) -> Any:
        try:
            return _get().binary(op, self, other)
        except OperandTypeError as refused:
            return as_numpy_would(op, self, other, refused)

    def reflected(self: Value, other: Any) -> Any:
        try:
            return _get().binary(op, other, self)
        except OperandTypeError as refused:
            return as_numpy_would(op, other, self, refused)

    return method, reflected


def at_once(op: Operator, general: Method) -> Method:
    """Make an `Array`'s method of a binary operator, with the empty stack inlined: NumPy's own time and 250 ns."""
    kernel: Any = op.kernel

    def method(self: Array, other: Any) -> Any:
        level = _get()
        if level is BOTTOM:
            own = self.data
            plain = other.data if type(other) is Array else other
            if (type(own) is _ndarray or type(own) in HOST_TYPES) and (
                type(plain) is _ndarray or type(plain) in HOST_TYPES
            ):
                out = Array()
                try:
                    out.data = kernel(own, plain)
                except (TypeError, ValueError):  # said again by the bottom, with operands and line
                    return general(self, other)
                return out
        elif type(other) is Array:  # two calls less, where a user's layer takes 800 ns
            try:
                return level.interpret(op, (self, other))
            except OperandTypeError as refused:
                return as_numpy_would(op, self, other, refused)
        return general(self, other)

    return method


def unary_method(function: Method) -> Method:
    """Make the method of a unary operator."""

    def method(self: Value) -> Any:
        return function(self)

    return method


BINARY = {
    "add": ops.Add(), "sub": ops.Sub(), "mul": ops.Mul(), "truediv": ops.Div(), "pow": ops.Pow(),
    "floordiv": ops.FloorDivide(), "mod": ops.Remainder(), "and": ops.BitwiseAnd(), "or": ops.BitwiseOr(),
    "xor": ops.BitwiseXor(), "lshift": ops.LeftShift(), "rshift": ops.RightShift(),
}  # fmt: skip
COMPARISONS = {
    "lt": ops.Less(), "le": ops.LessEqual(), "gt": ops.Greater(), "ge": ops.GreaterEqual(), "eq": ops.Equal(),
    "ne": ops.NotEqual(),
}  # fmt: skip
UNARY = {"neg": ops.neg, "abs": ops.abs, "invert": ops.invert, "pos": ops.positive}


def _divmod(self: Value, other: Any) -> tuple[Any, Any]:
    return self // other, self % other


# ------------------------------------------------------------------ indexing, iteration


def _setitem(self: Value, index: Any, value: Any) -> None:
    msg = (
        f"assignment into {self!r} at {describe(user_site())}: values do not change in place; "
        "write x = x.at[i].set(v), or fill out = xf.buffer(shape, dtype) in a loop"
    )
    raise WriteError(msg, value=self)


def _delitem(self: Value, index: Any) -> None:
    msg = f"del of an element of {self!r} at {describe(user_site())}: values do not change; select what stays: x[keep]"
    raise WriteError(msg, value=self)


def _len(self: Value) -> int:
    shape = _shape(self)
    if not shape:
        msg = f"len() of {self!r}: it has no axes"
        raise OperandTypeError(msg, value=self)
    if shape[0] is None:
        msg = f"len() of {self!r}: the length is not known before run time"
        raise HostReadError(msg, value=self)
    return shape[0]  # type: ignore[no-any-return]


def _iter(self: Value) -> Iterator[Any]:
    return (self[i] for i in range(_len(self)))  # type: ignore[index]


# ------------------------------------------------------------------ reading on the host


def _read(kind: str) -> Method:
    read = HostRead(kind)

    def method(self: Value) -> Any:
        return apply(read, self)

    return method


def _array(self: Value, dtype: Any = None, copy: bool | None = None) -> Any:
    raw = apply(READ_ARRAY, self)
    try:
        return np.array(raw, dtype=dtype, copy=copy) if copy else np.asarray(raw, dtype=dtype)
    except (RuntimeError, TypeError) as error:
        if namespace_of(raw) is np:
            raise
        msg = f"np.asarray of {self!r} on {device_of(raw)} would copy it to the host in silence; write xf.to_numpy(v)"
        raise HostReadError(msg, kind="asarray", value=self) from error


READ_ARRAY, READ_SHAPE = HostRead("asarray"), HostRead("shape")


def _tolist(self: Value) -> Any:
    return to_host(apply(READ_ARRAY, self)).tolist()


def _repr(self: Value) -> str:
    aval = aval_of(self)
    if type(self) is Array:
        data = f": {np.array2string(np.asarray(self.data), threshold=8)}" if _host(self) else ""
        return f"Array<{aval!r}{data}>"
    return f"{type(self).__name__}<{aval!r}, {getattr(self.owner, 'name', self.owner)}>"


def _host(self: Value) -> bool:
    return type(self.data) in HOST_TYPES


def _shown(self: Value) -> Any:
    """Return the array to print, None where there is no one array: an abstract value, or the lanes of a batch."""
    raw = concrete(self)
    have, want = getattr(raw, "shape", ()), aval_of(self).shape
    fits = len(have) == len(want) and all(m in (None, n) for n, m in zip(have, want, strict=True))
    return raw if fits else None


def _str(self: Value) -> str:
    raw = _shown(self)
    return repr(self) if raw is None else str(raw)


def _format(self: Value, spec: str) -> str:
    raw = _shown(self)
    if raw is None or not spec:
        return _str(self)
    raw = raw if type(raw) in SCALAR_TYPES else to_host(raw)
    return format(raw.item() if hasattr(raw, "item") else raw, spec)


# ------------------------------------------------------------------ NumPy's protocols


def namespace() -> Any:
    """Return `xform.numpy`, which stands above this module and loads when NumPy's protocols first ask for it."""
    return importlib.import_module("xform.numpy")


def _array_ufunc(
    self: Value, ufunc: np.ufunc, method: str, x: Any, y: Any = MISSING, *more: Any, **kwargs: Any
) -> Any:
    op = ufuncs.get(ufunc)
    if op is None or method != "__call__" or kwargs:
        return _other_ufunc(ufunc, method, (x,) if y is MISSING else (x, y, *more), kwargs)
    if y is MISSING:
        return _get().unary(op, x)
    if more:
        return _get().interpret(op, (x, y, *more))
    try:
        return _get().binary(op, x, y)
    except OperandTypeError as refused:
        return as_numpy_would(op, x, y, refused)


REDUCTIONS = {
    "add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min", "logical_and": "all", "logical_or": "any",
}  # fmt: skip
ACCUMULATIONS = {"add": "cumsum", "multiply": "cumprod"}
LISTED = "xform.numpy lists what has (wrap other code in xf.custom_gradient)"


def _other_ufunc(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = ufunc.__name__
    if kwargs.get("out") is not None or method == "at":
        written = inputs[0] if method == "at" else kwargs["out"]
        return _write(f"np.{name}", getattr(ufunc, method), inputs, kwargs, written)
    kwargs.pop("out", None)
    inputs = tuple(map(nested, inputs))
    target: Any = None
    if method == "__call__":
        dtype = kwargs.pop("dtype", None)
        inputs = inputs if dtype is None else computed_in(ufunc, inputs, dtype)
        target = getattr(namespace(), name, None)
        if target is not None and kwargs.keys() <= parameters_of(target).keys():
            out = target(*inputs, **kwargs)
            return out if dtype is None else tree.map(lambda each: cast_back(each, dtype), out)
    elif method == "reduce" and name in REDUCTIONS:
        kwargs.setdefault("axis", 0)
        target = getattr(ops, REDUCTIONS[name])
    elif method == "accumulate" and name in ACCUMULATIONS:
        kwargs.setdefault("axis", 0)
        target = getattr(ops, ACCUMULATIONS[name])
    elif method == "outer" and name == "multiply":
        target = ops.multiply_outer
    if target is None or (method == "__call__" and kwargs):
        extra = f" with {', '.join(kwargs)}=" if kwargs else ""
        shown = full_name(ufunc) if method == "__call__" else f"{full_name(ufunc)}.{method}"
        msg = f"{shown}{extra} has no meaning on values; {LISTED}"
        raise OperandTypeError(msg, ufunc=ufunc)
    return target(*inputs, **kwargs)


def computed_in(ufunc: np.ufunc, inputs: tuple[Any, ...], dtype: Any) -> tuple[Any, ...]:
    """Return operands in the dtypes in which a ufunc computes results of a dtype; raises `DtypeError` for none."""
    avals = tuple(map(aval_of, inputs))
    found = loop_dtypes(ufunc, avals, full_name(ufunc), np.dtype(dtype))
    return tuple([
        x if type(x) in SCALAR_TYPES or aval.dtype == kind else ops.astype(x, kind)
        for x, aval, kind in zip(inputs, avals, found, strict=False)
    ])  # fmt: skip


#: functions of NumPy that write into their first argument
WRITERS = ("copyto", "fill_diagonal", "place", "put", "put_along_axis", "putmask")


def _write(shown: str, call: Method, args: Any, kwargs: dict[str, Any], written: Any) -> Any:
    """Let NumPy write plain arrays into an ndarray; raise first where a layer would lose a value."""
    into = any(isinstance(leaf, Value) for leaf in tree.leaves(written))
    if into or any(isinstance(leaf, Value) and type(leaf) is not Array for leaf in tree.leaves((args, kwargs))):
        what = "into a value" if into else "a value into an array (out=, or an augmented assignment such as a += v)"
        msg = (
            f"{shown} would write {what}, at {describe(user_site())}; nothing was written. Write a = a + v, "
            "x = x.at[i].set(v), np.stack([...]), xnp.full(shape, v), or fill out = xf.buffer(shape, dtype)"
        )
        raise WriteError(msg, function=call)
    args, kwargs = tree.map(lambda leaf: apply(READ_ARRAY, leaf) if type(leaf) is Array else leaf, (args, kwargs))
    return call(*args, **kwargs)


def _array_function(self: Value, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs.get("out") is not None:
        return _write(f"np.{func.__name__}", func, args, kwargs, kwargs["out"])
    if func.__name__ in WRITERS:
        return _write(f"np.{func.__name__}", func, args, kwargs, args[0] if args else next(iter(kwargs.values())))
    home = func.__module__
    module = namespace() if home == "numpy" else namespace().linalg if home == "numpy.linalg" else None
    target = getattr(module, func.__name__, None)
    if target is None:
        msg = f"{full_name(func)} has no meaning on values yet; {LISTED}"
        raise OperandTypeError(msg, function=func)
    args, kwargs = unlisted(func.__name__, args, kwargs)
    args, kwargs = fitted_call(func, target, args, kwargs)
    return target(*args, **kwargs)


def _array_namespace(self: Value, *, api_version: str | None = None) -> Any:
    return namespace()


# ------------------------------------------------------------------ attributes and methods


def _shape(self: Value) -> Any:
    if type(self) is Array and type(self.data) is np.ndarray:
        return self.data.shape
    shape = aval_of(self).shape
    return apply(READ_SHAPE, self) if None in shape else shape


def _size(self: Value) -> int:
    shape = _shape(self)
    return aval_of(self).size if None in shape else math.prod(shape)  # which raises


def _device(self: Value) -> str:
    raw = concrete(self)
    return "abstract" if raw is None else device_of(raw)


ATTRIBUTES: dict[str, Method] = {
    "shape": _shape,
    "dtype": lambda self: aval_of(self).dtype,
    "ndim": lambda self: len(aval_of(self).shape),
    "size": _size,
    "itemsize": lambda self: aval_of(self).dtype.itemsize,
    "nbytes": lambda self: _size(self) * aval_of(self).dtype.itemsize,
    "T": ops.transpose,
    "mT": ops.matrix_transpose,
    "real": ops.real,
    "imag": ops.imag,
    "at": ops.At,
    "device": _device,
}

METHODS = (
    "all", "any", "argmax", "argmin", "argsort", "astype", "choose", "clip", "conj", "cumprod", "cumsum", "diagonal",
    "dot", "max", "mean", "min", "nonzero", "prod", "ravel", "repeat", "round", "searchsorted", "squeeze", "std", "sum",
    "swapaxes", "take", "trace", "var",
)  # fmt: skip
#: those of them whose other operands may be lists
SEQUENCED = ("clip", "dot", "searchsorted")
#: methods of an ndarray that write into it, and what to write instead
IN_PLACE = {
    "fill": "x = np.full_like(x, value)",
    "partition": "x = np.sort(x), which sorts all of it",
    "put": "x = x.at[indices].set(values)",
    "resize": "x = np.reshape(x, shape)",
    "setfield": "x = x.at[i].set(values), or x.astype(dtype)",
    "sort": "x = np.sort(x)",
}


def _named_method(name: str) -> Method:
    function, theirs = getattr(ops, name), getattr(np, name, None)

    def method(self: Value, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = fitted_call(theirs, function, (self, *args), kwargs)
        return function(*args, **kwargs)

    def sequenced(self: Value, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = unlisted(name, (self, *args), kwargs)
        args, kwargs = fitted_call(theirs, function, args, kwargs)
        return function(*args, **kwargs)

    method = sequenced if name in SEQUENCED else method
    method.__name__ = name
    method.__doc__ = f"As `xform.numpy.{name}`."
    return method


def _in_place(name: str, remedy: str) -> Method:
    def method(self: Value, *args: Any, **kwargs: Any) -> Any:
        msg = f"{self!r}.{name} at {describe(user_site())}: values do not change in place; write {remedy}"
        raise WriteError(msg, value=self)

    method.__name__ = name
    method.__doc__ = f"Raise `WriteError`: write `{remedy}`."
    return method


def _compress(self: Value, condition: Any, axis: Any = None) -> Any:
    return ops.compress(condition, self, axis)


def _reshape(self: Value, *shape: Any, **kwargs: Any) -> Any:
    return ops.reshape(self, shape[0] if len(shape) == 1 else shape, **kwargs)


def _flatten(self: Value, order: str = "C") -> Any:
    return _copy(ops.ravel(self, order))


def _transpose(self: Value, *axes: Any) -> Any:
    return ops.transpose(self, axes[0] if len(axes) == 1 else axes or None)


def _copy(self: Value, order: str = "K") -> Value:
    aval = aval_of(self)
    return self if aval.weak else ops.astype(self, aval.dtype)


def _deepcopy(self: Value, seen: dict[int, Any]) -> Value:
    """Return the value itself, since a copy of its layer would not be on the stack; of an `Array` a copy."""
    if type(self) is not Array:
        return self
    out = Array()
    out.data = copy.deepcopy(self.data, seen)
    return out


def install() -> None:
    """Give `Value` its behaviour; `core` holds the storage alone."""
    table: dict[str, Any] = {}
    of_arrays: dict[str, Any] = {}
    for name, op in (BINARY | COMPARISONS | {"matmul": ops.Matmul()}).items():
        method, reflected = binary_methods(op)
        table[f"__{name}__"], of_arrays[f"__{name}__"] = method, at_once(op, method)
        if name not in COMPARISONS:  # Python reflects those itself
            table[f"__r{name}__"] = reflected
    for name, function in UNARY.items():
        table[f"__{name}__"] = unary_method(function)
    for kind in ("bool", "int", "float", "complex", "index"):
        table[f"__{kind}__"] = _read(kind)
    table |= {name: property(getter, doc=f"As an ndarray's `{name}`.") for name, getter in ATTRIBUTES.items()}
    table |= {name: _named_method(name) for name in METHODS}
    table |= {name: _in_place(name, remedy) for name, remedy in IN_PLACE.items()}
    table |= {
        "__divmod__": _divmod, "__getitem__": ops.getitem, "__setitem__": _setitem, "__delitem__": _delitem,
        "__len__": _len, "__iter__": _iter, "__hash__": None,
        "__array__": _array, "__array_ufunc__": _array_ufunc, "__array_function__": _array_function,
        "__array_namespace__": _array_namespace, "__repr__": _repr, "__str__": _str, "__format__": _format,
        "item": _read("item"), "tolist": _tolist, "reshape": _reshape, "transpose": _transpose, "copy": _copy,
        "__deepcopy__": _deepcopy, "flatten": _flatten, "compress": _compress, "conjugate": table["conj"],
    }  # fmt: skip
    for owner, behaviours in ((Value, table), (Array, of_arrays)):
        for name, behaviour in behaviours.items():
            setattr(owner, name, behaviour)


install()
