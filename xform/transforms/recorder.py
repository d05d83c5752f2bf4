"""The layer that records operations into a Program."""

from __future__ import annotations

from typing import Any

import numpy as np

from xform import tree
from xform.core.aval import Aval, as_numpy_dtype, aval_of
from xform.core.backend import SCALAR_TYPES, is_raw, namespace_of
from xform.core.bottom import escaped, no_array
from xform.core.errors import HostReadError, LayerError, OperandTypeError, ProgramError, XformError
from xform.core.operator import Operator
from xform.core.place import FORWARD, place
from xform.core.source import Site, describe, user_site
from xform.core.stack import Transformation, apply, levels
from xform.core.value import Array, Value
from xform.layers import lifted
from xform.ops.structural import HostRead, Identity, PopScope, PushScope
from xform.programs.program import (
    Constant,
    Equation,
    Literal,
    Program,
    Variable,
    copied,
    literal_or_none,
    too_large,
)

__all__ = ["Trace", "TraceValue"]


class TraceValue(Value):
    """A value that a recorder knows as a variable; `data` is the value below, None where tracing is abstract."""

    __slots__ = ("aval", "owner", "variable")
    variable: Variable


class Trace(Transformation):
    """The layer that records every operation that reaches it.

    1. `input(x)` makes a traced value; `program(outputs)` gives the Program, with `outputs` any container.
    2. Concrete (the default): operations also run below, values can be printed. `abstract=True`: shapes and dtypes
       alone, by `infer`; inputs may be `Aval`s.
    3. Arrays from outside become constants: copies, so that a replay uses values as they were when they were recorded.
       An array that is captured again after it has changed (`c += 1` in a loop) becomes another constant.
    4. Python ints are int64, floats float64, both weak: results wrap around as NumPy's do, where eager Python ints
       grow, and an operation that cannot take an int beyond int64 raises `OperandError`.
    5. Scopes and phase of an equation are those within the recording: a replay adds those around it.

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
        self._start = FORWARD  # where recording began
        self._constants: dict[int, tuple[Any, Constant]] = {}  # what was captured, by id, with the last copy of it

    def __repr__(self) -> str:
        return f"Trace({'abstract' if self.abstract else 'concrete'})"

    def on_register(self) -> None:
        """Remember where recording began."""
        if self.ended:
            msg = f"{self!r} has recorded a block already; make another xf.Trace()"
            raise LayerError(msg, layer=self)
        self.site = user_site()
        self._start = place.get()

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
        return self._constant(value.data if type(value) is Array else value)

    def _constant(self, captured: Any) -> Constant:
        known = self._constants.get(id(captured))
        if known is not None and is_unchanged(captured, known[1].value):
            return known[1]
        constant = Constant(self._count, aval_of(captured), copied(captured))
        self._count += 1
        self._constants[id(captured)] = (captured, constant)
        return constant

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
            plain = [self.unwrap(value) for value in values]
            try:
                data = apply(op, *plain)
            except OverflowError as error:
                raise too_large(op, plain, error) from error
            found = tuple(map(aval_of, data)) if op.multiple_outputs else () if data is NOTHING else aval_of(data)
        avals = found if isinstance(found, tuple) else (found,)
        outputs = tuple(self._variable(aval) for aval in avals)
        self.equations.append(Equation(op, inputs, outputs, *self._place()))
        if op.multiple_outputs:
            return tuple(self._value(each, variable) for each, variable in zip(data, outputs, strict=True))
        return self._value(data, outputs[0]) if outputs else data

    def _place(self) -> tuple[tuple[str, ...], str, Site | None]:
        """Return scopes and phase within the recording, and the line."""
        here, start = place.get().located(), self._start
        count = len(start.scopes)
        scopes = here.scopes[count:] if here.scopes[:count] == start.scopes else here.scopes
        return scopes, "forward" if here.phase == start.phase else here.phase, here.site

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

    def program(self, outputs: Any, arguments: Any = None, *, what: str | None = None) -> Program:
        """Return the Program of what was recorded, with these outputs (any container).

        `arguments` gives the structure of its inputs; `what` names the function in errors. Raises `OperandTypeError`,
        naming the path, for an output that is no array.
        """
        leaves, structure = tree.flatten(outputs)
        for position, leaf in enumerate(leaves):
            if not isinstance(leaf, Value) and not is_raw(leaf):
                path = structure.paths()[position]
                msg = (
                    f"{what or repr(self)}: the output{path and f' {path}'} is {type(leaf).__name__}, no array: "
                    f"{leaf!r:.60}; return arrays and numbers, and what does not depend on them by another way"
                )
                raise OperandTypeError(msg, output=leaf, path=path)
        in_structure = None if arguments is None else tree.structure(arguments)
        flat = [self.variable_of(leaf) for leaf in leaves]
        structures = (in_structure, structure)
        return Program(self.inputs, self.equations, flat, structures=structures, derivative=self.derivative)


NOTHING = object()


def inferred(op: Operator, values: tuple[Any, ...]) -> Any:
    """Return the avals of the result; an error tells the user's line."""
    try:
        return op.infer(*[aval_of(value) for value in values])
    except XformError as error:
        error.add_note(f"while tracing {op!r} at {describe(user_site())}")
        raise


def is_unchanged(captured: Any, copy: Any) -> bool:
    """Whether an array still holds what its copy holds, bit for bit: NaN is NaN, and -0.0 is not 0.0.

    >>> is_unchanged(np.array([np.nan, 0.0]), np.array([np.nan, 0.0])), is_unchanged(np.zeros(2), -np.zeros(2))
    (True, False)
    """
    if captured is copy or isinstance(captured, Value) or type(captured) in SCALAR_TYPES:
        return True
    if captured.shape != copy.shape or captured.dtype != copy.dtype:
        return False
    xp = namespace_of(captured)
    if xp is np:
        return bool(captured.tobytes() == copy.tobytes())
    return bool(xp.all((captured == copy) | ((captured != captured) & (copy != copy))))  # noqa: PLR0124  (NaN)
