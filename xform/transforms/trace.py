"""Tracing: functions that record a function into a Program, and replay it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any, NamedTuple, SupportsIndex

from xform import tree
from xform.core.aval import aval_of
from xform.core.backend import is_raw
from xform.core.errors import OperandTypeError, ProgramError
from xform.core.functions import require_function
from xform.core.value import Array, Value
from xform.programs.program import Program
from xform.transforms.recorder import Trace, TraceValue
from xform.transforms.signature import Static, layout_of, typed

__all__ = ["Trace", "TraceValue", "eval_shape", "make_program", "trace"]


def make_program(fun: Callable[..., Any]) -> Callable[..., Program]:
    """Return a function that records `fun` abstractly: arrays, numbers or `Aval`s in, a Program out.

    Raises what `fun` raises, `HostReadError` where it reads a value, and `OperandTypeError` for an output that is no
    array.

    >>> import xform as xf, xform.numpy as xnp
    >>> xf.make_program(lambda x: x + 1.0)(xf.Aval((2,), xnp.float32)).out_avals
    (float32[2],)
    """
    require_function(fun, "make_program")

    @functools.wraps(fun)
    def record(*args: Any) -> Program:
        return recorded(fun, args, "make_program")

    return record


def recorded(fun: Callable[..., Any], args: tuple[Any, ...], what: str) -> Program:
    """Return the Program of a function, recorded abstractly."""
    with Trace(abstract=True) as recorder:
        traced = tree.map(recorder.input, args)
        outputs = fun(*traced)
    return recorder.program(outputs, args, what=f"{what} of {label_of(fun)}")


def eval_shape(fun: Callable[..., Any], *args: Any) -> Any:
    """Return the avals of what `fun` would return, in its containers; nothing is computed.

    >>> import numpy as np, xform as xf
    >>> xf.eval_shape(lambda x: x @ x.T, np.ones((2, 3)))
    float64[2,2]
    """
    require_function(fun, "eval_shape")
    program = recorded(fun, args, "eval_shape")
    return tree.unflatten(program.out_structure, list(program.out_avals))


class Call(NamedTuple):
    """A call, taken apart: array and other leaves of what is traced, static arguments, and what it is known by."""

    leaves: list[Any]
    structure: tree.Structure
    positions: list[int]  # static ones, in the order of `values`
    names: tuple[str, ...]  # all keywords, as they were given
    values: list[Any]
    named: dict[str, Any]
    key: Any
    refs: list[Any]


class Kept(NamedTuple):
    """A Program, and weak references to the objects in its key: it goes when one of them has gone."""

    program: Program
    refs: list[Any]


class trace:  # noqa: N801  (a function by name in the field)
    """Record a function at the first call for a signature, replay the Program afterwards.

    1. The signature is the structure of the arguments (order of keywords and of keys included), the avals of their
       arrays, and types and values of what is no array; an object without `__eq__` is itself, whatever it holds.
    2. `static_argnums` and `static_argnames` mark arguments that are values of the function, not of the program,
       however they are passed. Raises `OperandError` for one that the function does not have.
    3. What the function takes from elsewhere (a closure, `self.w`) stays in the program as it was at the recording.
    4. Reading a traced value raises `HostReadError`, an output that is no array `OperandTypeError`.
    5. `trace(grad(f))` and `grad(trace(f))` equal the eager gradient. It decorates methods too.

    >>> import numpy as np, xform as xf
    >>> double = xf.trace(lambda x: x * 2.0)
    >>> double(np.ones(2)), double(np.zeros(2))
    (array([2., 2.]), array([0., 0.]))
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        *,
        static_argnums: SupportsIndex | Sequence[SupportsIndex] = (),
        static_argnames: str | Sequence[str] = (),
    ) -> None:
        require_function(fun, "trace")
        functools.update_wrapper(self, fun)
        self.fun = fun
        self.static = Static(fun, static_argnums, static_argnames, f"trace of {label_of(fun)}")
        self.programs: dict[Any, Kept] = {}

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = self._call(args, kwargs)
        known = self.programs.get(call.key)
        keep = any(isinstance(leaf, Value) for leaf in call.leaves)
        if known is None:
            out = self._record(call)
        else:
            found = known.program.run([leaf for leaf in call.leaves if is_array(leaf)])
            out = tree.unflatten(known.program.out_structure, found)
        return out if keep else tree.map(lambda leaf: leaf.data if type(leaf) is Array else leaf, out)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        static, positions, values, named = self.static, [], [], {}
        refs: list[Any] = []
        names = tuple(kwargs)
        if not static.is_empty:
            positions = sorted(static.positions_in(len(args)))
            if positions:
                values = [args[n] for n in positions]
                args = tuple([None if n in positions else arg for n, arg in enumerate(args)])
            if kwargs:
                named = {name: value for name, value in kwargs.items() if name in static.names}
                kwargs = {name: value for name, value in kwargs.items() if name not in named}
        leaves, structure = tree.flatten((args, kwargs) if kwargs else args)
        fixed = (tuple(positions), tuple([typed(value, refs) for value in (*values, *named.values())]))
        described = tuple([aval_of(leaf) if is_array(leaf) else typed(leaf, refs) for leaf in leaves])
        key = (structure, described, names, layout_of(structure, refs), fixed)
        try:
            hash(key)
        except TypeError as error:
            msg = f"trace of {label_of(self.fun)}: an argument that is no array must be hashable ({error})"
            raise OperandTypeError(msg) from error
        return Call(leaves, structure, positions, names, values, named, key, refs)

    def _record(self, call: Call) -> Any:
        with Trace() as recorder:
            traced = [recorder.input(leaf) if is_array(leaf) else leaf for leaf in call.leaves]
            found = tree.unflatten(call.structure, traced)
            args, kwargs = found if len(call.names) > len(call.named) else (found, {})
            args, kwargs = list(args), kwargs | call.named
            for position, value in zip(call.positions, call.values, strict=True):
                args[position] = value
            outputs = self.fun(*args, **{name: kwargs[name] for name in call.names})
        program = recorder.program(outputs, what=f"trace of {label_of(self.fun)}")
        for key in [key for key, kept in list(self.programs.items()) if any(ref() is None for ref in kept.refs)]:
            self.programs.pop(key, None)
        if not recorder.foreign:
            self.programs[call.key] = Kept(program, call.refs)
        return tree.map(recorder.unwrap, outputs)

    def program(self, *args: Any, **kwargs: Any) -> Program:
        """Return the Program for these arguments, recording it if need be."""
        call = self._call(args, kwargs)
        if call.key not in self.programs:
            self._record(call)
        if call.key not in self.programs:
            label = label_of(self.fun)
            msg = f"trace of {label}: the function captures a value of an active layer; its program is not kept"
            raise ProgramError(msg)
        return self.programs[call.key].program

    def __repr__(self) -> str:
        return f"trace({label_of(self.fun)})"


def label_of(fun: Callable[..., Any]) -> str:
    """Return a function's name, for messages."""
    return str(getattr(fun, "__name__", repr(fun)))


def is_array(leaf: Any) -> bool:
    """Whether a leaf is traced: an array or a number; the rest is static."""
    return isinstance(leaf, Value) or (not isinstance(leaf, bool) and is_raw(leaf))
