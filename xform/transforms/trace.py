"""Tracing: a layer that records operations into a Program, and the functions over it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from xform import tree
from xform.core.aval import Aval, as_numpy_dtype, aval_of
from xform.core.backend import is_raw
from xform.core.bottom import escaped, no_array
from xform.core.errors import HostReadError, LayerError, OperandTypeError, ProgramError, XformError
from xform.core.operator import Operator
from xform.core.place import place
from xform.core.source import Site, describe, user_site
from xform.core.stack import Transformation, apply, levels
from xform.core.value import Array, Value
from xform.layers import lifted
from xform.ops.structural import HostRead, Identity, PopScope, PushScope
from xform.programs.program import Constant, Equation, Literal, Program, Variable, literal_or_none

__all__ = ["Trace", "TraceValue", "eval_shape", "make_program", "trace"]


class TraceValue(Value):
    """A value that a recorder knows as a variable; `data` is the value below, None where tracing is abstract."""

    __slots__ = ("aval", "owner", "variable")
    variable: Variable


class Trace(Transformation):
    """The layer that records every operation that reaches it.

    1. `input(x)` makes a traced value; `program(outputs)` gives the Program, with `outputs` any container.
    2. Concrete (the default): operations also run below, values can be printed. `abstract=True`: shapes and dtypes
       alone, by `infer`; inputs may be `Aval`s.
    3. Arrays from outside become constants, held and not copied.

    >>> import numpy as np, xform as xf
    >>> with xf.Trace() as recorder:
    ...     x = recorder.input(np.ones(2))
    ...     y = x * 2.0
    >>> print(recorder.program(y))
    program(a: float64[2]):
      b: float64[2] = Mul(a, 2.0)
      return b
    """

    effect = "wraps"
    records = True

    def __init__(self, *, abstract: bool = False) -> None:
        self.abstract = abstract
        self.site: Site | None = None
        self.inputs: list[Variable] = []
        self.equations: list[Equation] = []
        self.foreign = False  # a value of a layer below was captured: the program is good for this call alone
        self._count = 0
        self._constants: dict[int, Constant] = {}

    def __repr__(self) -> str:
        return f"Trace({'abstract' if self.abstract else 'concrete'})"

    def on_register(self) -> None:
        """Remember where recording began."""
        if self.ended:
            msg = f"{self!r} has recorded a block already; make another xf.Trace()"
            raise LayerError(msg, layer=self)
        self.site = user_site()

    def on_unregister(self) -> None:
        """End the record."""
        self.ended = True

    def _variable(self, aval: Aval) -> Variable:
        variable = Variable(self._count, aval)
        self._count += 1
        return variable

    def _value(self, data: Any, variable: Variable) -> TraceValue:
        value = TraceValue()
        value.data = data
        value.owner = self
        value.aval = variable.aval
        value.variable = variable
        return value

    def input(self, x: Any) -> TraceValue:
        """Return a traced value for an input: a raw array, a number, a value below, or (abstract) an aval."""
        if not isinstance(x, Aval | Value) and not is_raw(x):
            msg = f"trace: expected an array or a number, got {type(x).__name__}: {x!r:.60}; give it by static_argnums"
            raise OperandTypeError(msg, value=x)
        if isinstance(x, Aval) and not self.abstract:
            msg = f"{self!r} needs data for its inputs, got {x!r}; use Trace(abstract=True), make_program or eval_shape"
            raise ProgramError(msg, value=x)
        if isinstance(x, Aval):  # as users write it: a list, a scalar type or a name will do
            x = Aval(tuple(x.shape), as_numpy_dtype(x.dtype), x.weak)
        variable = self._variable(aval_of(x))
        self.inputs.append(variable)
        return self._value(None if self.abstract else lifted(x), variable)

    def variable_of(self, value: Any, op: Operator | None = None) -> Variable | Literal:
        """Return the variable of a value; what comes from outside becomes a constant."""
        if type(value) is TraceValue and value.owner is self:
            return value.variable
        literal = literal_or_none(value)
        if literal is not None:
            return literal
        if isinstance(value, Value) and value.owner is not None:
            if all(level.layer is not value.owner for level in levels()):
                raise escaped(op or Identity(), value)
            self.foreign = True
        key = value.data if type(value) is Array else value
        known = self._constants.get(id(key))
        if known is None:
            known = self._constants[id(key)] = Constant(self._count, aval_of(value), key)
            self._count += 1
        return known

    def interpret(self, op: Operator, values: tuple[Any, ...]) -> Any:
        """Record the operation; run it below, or infer it."""
        if isinstance(op, PushScope | PopScope):
            return apply(op, *values)
        if isinstance(op, HostRead):
            return self._read(op, values[0])
        try:
            inputs = tuple(self.variable_of(value, op) for value in values)
        except OperandTypeError as error:
            raise no_array(op, values) from error
        if self.abstract:
            found = inferred(op, values)
            data: Any = [None] * len(found) if op.multiple_outputs else None
        else:
            data = apply(op, *[self.unwrap(value) for value in values])
            found = tuple(map(aval_of, data)) if op.multiple_outputs else () if data is NOTHING else aval_of(data)
        avals = found if isinstance(found, tuple) else (found,)
        outputs = tuple(self._variable(aval) for aval in avals)
        here = place.get().located()
        self.equations.append(Equation(op, inputs, outputs, here.scopes, here.phase, here.site))
        if op.multiple_outputs:
            return tuple(self._value(each, variable) for each, variable in zip(data, outputs, strict=True))
        return self._value(data, outputs[0]) if outputs else data

    def _read(self, op: HostRead, value: Any) -> Any:
        plain = self.unwrap(value)
        if op.kind == "print" or type(value) is not TraceValue:
            return apply(op, plain)
        shown = "np.asarray" if op.kind == "asarray" else f"{op.kind}()"
        msg = (
            f"{shown} of the traced value {value!r} at {describe(user_site())}: the program would keep the outcome of "
            "this one call. Use xnp.where(cond, a, b) in place of if, x.shape for sizes, np.stack or xnp.array to "
            "build arrays, x.at[i].set(v) in place of a[i] = v; or read it outside the traced function"
        )
        if value.aval.dtype.kind in "iu":
            msg += ". To index a raw array B with it, write xnp.take(B, i) or xf.array(B)[i]"
        raise HostReadError(msg, value=value, kind=op.kind)

    def program(self, outputs: Any, arguments: Any = None) -> Program:
        """Return the Program of what was recorded, with these outputs (any container).

        `arguments` gives the structure of its inputs.
        """
        leaves, structure = tree.flatten(outputs)
        in_structure = None if arguments is None else tree.structure(arguments)
        flat = [self.variable_of(leaf) for leaf in leaves]
        return Program(self.inputs, self.equations, flat, structures=(in_structure, structure))


NOTHING = object()


def inferred(op: Operator, values: tuple[Any, ...]) -> Any:
    """Return the avals of the result; an error tells the user's line."""
    try:
        return op.infer(*[aval_of(value) for value in values])
    except XformError as error:
        error.add_note(f"while tracing {op!r} at {describe(user_site())}")
        raise


def make_program(fun: Callable[..., Any]) -> Callable[..., Program]:
    """Return a function that records `fun` abstractly: arrays, numbers or `Aval`s in, a Program out.

    Raises what `fun` raises, and `HostReadError` where it reads a value.

    >>> import xform as xf, xform.numpy as xnp
    >>> xf.make_program(lambda x: x + 1.0)(xf.Aval((2,), xnp.float32)).out_avals
    (float32[2],)
    """

    @functools.wraps(fun)
    def record(*args: Any) -> Program:
        with Trace(abstract=True) as recorder:
            traced = tree.map(recorder.input, args)
            outputs = fun(*traced)
        return recorder.program(outputs, args)

    return record


def eval_shape(fun: Callable[..., Any], *args: Any) -> Any:
    """Return the avals of what `fun` would return, in its containers; nothing is computed.

    >>> import numpy as np, xform as xf
    >>> xf.eval_shape(lambda x: x @ x.T, np.ones((2, 3)))
    float64[2,2]
    """
    program = make_program(fun)(*args)
    return tree.unflatten(program.out_structure, list(program.out_avals))


class trace:  # noqa: N801  (a function by name in the field)
    """Record a function at the first call for a signature, replay the Program afterwards.

    The signature is the structure of the arguments, the avals of their arrays, and the values of what is no array.
    `static_argnums` and `static_argnames` mark arguments that are values of the function, not of the program. Reading a
    traced value raises `HostReadError`. `trace(grad(f))` and `grad(trace(f))` equal the eager gradient.

    >>> import numpy as np, xform as xf
    >>> double = xf.trace(lambda x: x * 2.0)
    >>> double(np.ones(2)), double(np.zeros(2))
    (array([2., 2.]), array([0., 0.]))
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        *,
        static_argnums: int | Sequence[int] = (),
        static_argnames: str | Sequence[str] = (),
    ) -> None:
        functools.update_wrapper(self, fun)
        self.fun = fun
        self.static_argnums = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
        self.static_argnames = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
        self.programs: dict[Any, tuple[Program, Any]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, structure, static = self._arguments(args, kwargs)
        dynamic = [leaf for leaf in leaves if is_array(leaf)]
        key = self._key(leaves, structure, static)
        known = self.programs.get(key)
        keep = any(isinstance(leaf, Value) for leaf in dynamic)
        if known is None:
            out = self._record(leaves, structure, static, key)
        else:
            out = tree.unflatten(known[1], known[0].run(dynamic))
        return out if keep else tree.map(lambda leaf: leaf.data if type(leaf) is Array else leaf, out)

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Any, Any]:
        positions = {n % len(args) for n in self.static_argnums if -len(args) <= n < len(args)}
        static = (
            tuple((n, args[n]) for n in sorted(positions)),
            tuple((name, kwargs[name]) for name in self.static_argnames if name in kwargs),
        )
        traced = tuple(None if n in positions else a for n, a in enumerate(args))
        named = {name: v for name, v in kwargs.items() if name not in self.static_argnames}
        leaves, structure = tree.flatten((traced, named))
        return leaves, structure, static

    def _key(self, leaves: list[Any], structure: Any, static: Any) -> Any:
        described = tuple(aval_of(leaf) if is_array(leaf) else (type(leaf), leaf) for leaf in leaves)
        key = (structure, described, static)
        try:
            hash(key)
        except TypeError as error:
            msg = f"trace of {self._label()}: an argument that is no array must be hashable ({error})"
            raise OperandTypeError(msg) from error
        return key

    def _record(self, leaves: list[Any], structure: Any, static: Any, key: Any) -> Any:
        with Trace() as recorder:
            traced = [recorder.input(leaf) if is_array(leaf) else leaf for leaf in leaves]
            args, kwargs = tree.unflatten(structure, traced)
            args = list(args)
            for position, value in static[0]:
                args[position] = value
            outputs = self.fun(*args, **kwargs, **dict(static[1]))
        program = recorder.program(outputs)
        if not recorder.foreign:
            self.programs[key] = (program, program.out_structure)
        return tree.map(recorder.unwrap, outputs)

    def _label(self) -> str:
        return getattr(self.fun, "__name__", repr(self.fun))

    def program(self, *args: Any, **kwargs: Any) -> Program:
        """Return the Program for these arguments, recording it if need be."""
        leaves, structure, static = self._arguments(args, kwargs)
        key = self._key(leaves, structure, static)
        if key not in self.programs:
            self(*args, **kwargs)
        if key not in self.programs:
            msg = f"trace of {self._label()}: the function captures a value of an active layer; its program is not kept"
            raise ProgramError(msg)
        return self.programs[key][0]

    def __repr__(self) -> str:
        return f"trace({self._label()})"


def is_array(leaf: Any) -> bool:
    """Whether a leaf is traced: an array or a number; the rest is static."""
    return isinstance(leaf, Value) or (not isinstance(leaf, bool) and is_raw(leaf))
