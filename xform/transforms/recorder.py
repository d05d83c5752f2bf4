"""The layer that records operations into a Program."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import numpy as np

from xform import tree
from xform.core.aval import Aval, as_numpy_dtype, aval_of, is_numeric, is_static
from xform.core.backend import SCALAR_TYPES, is_raw, namespace_of
from xform.core.bottom import escaped, no_array
from xform.core.errors import HostReadError, LayerError, OperandTypeError, ProgramError, XformError
from xform.core.operator import Operator
from xform.core.place import FORWARD, place
from xform.core.source import Site, describe, user_site
from xform.core.stack import Transformation, apply, levels
from xform.core.value import Array, Value
from xform.layers import lifted
from xform.ops.base import Elementwise
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
from xform.transforms.operands import DECLARE
from xform.transforms.substitute import substituted

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
        self.what: str | None = None  # the function that is recorded, for messages
        self.excluded: Site | None = None  # where a region began that a Program cannot hold

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
            found = f"expected an array or a number, got {type(x).__name__}: {x!r:.60}"
            msg = f"{self.what or 'trace'}: {found}; close over it, or give it to xf.trace by static_argnums; {DECLARE}"
            raise OperandTypeError(msg, value=x)
        if isinstance(x, Aval) and not self.abstract:
            msg = f"{self!r} needs data for its inputs, got {x!r}; use Trace(abstract=True), make_program or eval_shape"
            raise ProgramError(msg, value=x)
        if isinstance(x, Aval):  # as users write it: a list, a scalar type or a name will do
            x = Aval(tuple(x.shape), as_numpy_dtype(x.dtype), x.weak)
        aval = aval_of(x)
        if not is_numeric(aval.dtype):
            msg = f"{self.what or 'trace'}: an input has dtype {aval.dtype}, which holds no numbers; close over it"
            raise OperandTypeError(msg, value=x)
        variable = self._variable(aval)
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
            self.foreign = True
            if all(level.layer is not value.owner for level in levels()):
                found = substituted(value)
                if found is value:
                    raise escaped(op or Identity(), value)
                return self.variable_of(found, op)
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
        if self in outside.get():
            return apply(op, *map(self.unwrap, values))
        if isinstance(op, PushScope | PopScope):
            return apply(op, *values)
        if isinstance(op, HostRead):
            return self._read(op, values[0])
        inputs = self.operands(op, values)
        avals, data = self.compute(op, values, inputs)
        outputs = tuple([self._variable(aval) for aval in avals])
        self.append(Equation(op, inputs, outputs, *self._place()))
        found = tuple([self._value(each, variable) for each, variable in zip(data, outputs, strict=True)])
        return found if op.multiple_outputs else found[0]

    def operands(self, op: Operator, values: tuple[Any, ...]) -> tuple[Variable | Literal, ...]:
        """Return the variables of operands; raises `OperandTypeError` for what is no array."""
        try:
            return tuple([self.variable_of(value, op) for value in values])
        except OperandTypeError as error:
            raise no_array(op, values) from error

    def compute(
        self, op: Operator, values: tuple[Any, ...], inputs: tuple[Variable | Literal, ...]
    ) -> tuple[tuple[Aval, ...], tuple[Any, ...]]:
        """Return avals and data of the results, data of None where tracing is abstract."""
        if self.abstract:
            avals = inferred(op, values)
            return avals, (None,) * len(avals)
        plain = [self.unwrap(value) for value in values]
        try:
            data = apply(op, *plain)
        except OverflowError as error:
            raise too_large(op, plain, error) from error
        data = data if op.multiple_outputs else (data,)
        return known_avals(op, values, data), data

    def append(self, equation: Equation) -> None:
        """Take an operation, which has run, into the record."""
        self.equations.append(equation)

    def takes(self, op: Operator) -> bool:
        """Record a loop as one operation, however many rounds it runs."""
        return True

    def _place(self) -> tuple[tuple[str, ...], str, Site | None]:
        """Return scopes and phase within the recording, and the line."""
        here, start = place.get(), self._start
        count = len(start.scopes)
        scopes = here.scopes[count:] if here.scopes[:count] == start.scopes else here.scopes
        site = user_site() if here.site is None else here.site
        return scopes, "forward" if here.phase == start.phase else here.phase, site

    def _read(self, op: HostRead, value: Any) -> Any:
        """Read a value on the host; raises `HostReadError` for one whose outcome a replay would not see."""
        if not self.owns(value):
            self.foreign = self.foreign or getattr(value, "owner", None) is not None
            return apply(op, value)
        if op.kind == "print":
            return apply(op, value.data)
        if op.kind == "shape" and (self.abstract or None not in value.aval.shape):
            return value.aval.shape
        raise self.refused(op, value)

    def owns(self, value: Any) -> bool:
        """Whether a value is one of this recorder's."""
        return type(value) is TraceValue and value.owner is self

    def refused(self, op: HostRead, value: TraceValue) -> HostReadError:
        """Make the error for a read that the record cannot hold."""
        shown = {"asarray": "np.asarray", "shape": "the shape"}.get(op.kind, f"{op.kind}()")
        why = "it has no data" if self.abstract else "the program would keep the outcome of this one call"
        msg = (
            f"{shown} of the traced value {value!r}{f' in {self.what}' if self.what else ''}, at "
            f"{describe(user_site())}: {why}. {REMEDY}"
        )
        if value.aval.dtype.kind in "iu":
            msg += ". To index a raw array B with it, write xnp.take(B, i) or xf.array(B)[i]"
        return HostReadError(msg, value=value, kind=op.kind)

    # -------------------------------------------------------------- records of records

    def mark(self) -> Any:
        """Return a place in the record, for `rewind`."""
        return len(self.equations)

    def rewind(self, mark: Any) -> None:
        """Forget what was recorded after a mark: nothing else holds values of it."""
        del self.equations[mark:]

    def leave_out(self) -> None:
        """Be told that a region begins that is not to be recorded; of what is good for one call it is a part."""
        if self.records:
            self.excluded = self.excluded or user_site()

    # -------------------------------------------------------------- the end

    def program(self, outputs: Any, arguments: Any = None, *, what: str | None = None) -> Program:
        """Return the Program of what was recorded, with these outputs (any container).

        `arguments` gives the structure of its inputs; `what` names the function in errors. Raises `OperandTypeError`,
        naming the path, for an output that is no array.
        """
        leaves, structure = self.leaves_of(outputs, what)
        if self.excluded is not None:
            msg = (
                f"{what or repr(self)}: the region excluded at {describe(self.excluded)} runs in Python, which no "
                "Program can; call the function that xf.trace returns, or end the Program before it"
            )
            raise ProgramError(msg)
        in_structure = None if arguments is None else tree.structure(arguments)
        flat = [self.variable_of(leaf) for leaf in leaves]
        structures = (in_structure, structure)
        return Program(self.inputs, self.equations, flat, structures=structures, derivative=self.derivative)

    def leaves_of(self, outputs: Any, what: str | None) -> tuple[list[Any], tree.Structure]:
        """Return the arrays that a function returned, and their structure; raises as `program`."""
        leaves, structure = tree.flatten(outputs)
        for position, leaf in enumerate(leaves):
            if not isinstance(leaf, Value) and not is_raw(leaf):
                path = structure.paths()[position]
                msg = (
                    f"{what or repr(self)}: the output{path and f' {path}'} is {type(leaf).__name__}, no array: "
                    f"{leaf!r:.60}; return arrays and numbers, and what does not depend on them by another way"
                )
                raise OperandTypeError(msg, output=leaf, path=path)
        return leaves, structure


#: the recorders that pass everything on for the time of a region
outside: ContextVar[tuple[Trace, ...]] = ContextVar("xform recorders passed over", default=())

REMEDY = (
    "Use xnp.where(cond, a, b) or xf.cond(pred, true_fun, false_fun, x) in place of if, x.shape for sizes, np.stack, "
    "xnp.array or xnp.full to build arrays, x.at[i].set(v) in place of a[i] = v; or read it outside the traced function"
)


def inferred(op: Operator, values: tuple[Any, ...]) -> tuple[Aval, ...]:
    """Return the avals of the results; an error tells the user's line."""
    try:
        found = op.infer(*[aval_of(value) for value in values])
    except XformError as error:
        error.add_note(f"while tracing {op!r} at {describe(user_site())}")
        raise
    return found if op.multiple_outputs else (found,)


def known_avals(op: Operator, values: tuple[Any, ...], data: tuple[Any, ...]) -> tuple[Aval, ...]:
    """Return the avals of results, as an abstract look tells them: a length that depends on values is None.

    >>> from xform import ops
    >>> known_avals(ops.Add(), (np.ones(2), 1.0), (np.ones(2),))
    (float64[2],)
    """
    found = tuple(map(aval_of, data))
    if not any(aval.shape for aval in found):
        return found
    given = [aval_of(value) for value in values]
    if isinstance(op, Elementwise) and all(is_static(aval.shape) for aval in given):  # 10 us less
        return found
    try:
        told = op.infer(*given)
    except Exception as error:  # noqa: BLE001  (a user's function, which has run on data, may need them)
        if isinstance(error, XformError) and not isinstance(error, NotImplementedError | HostReadError):
            return found
        return tuple([Aval((None,) * aval.ndim, aval.dtype, aval.weak) for aval in found])
    return tuple(map(opened, found, told if op.multiple_outputs else (told,)))


def opened(have: Aval, told: Aval) -> Aval:
    """Return an aval without the lengths that were not told."""
    if None not in told.shape or have.ndim != told.ndim:
        return have
    shape = tuple([None if length is None else n for n, length in zip(have.shape, told.shape, strict=True)])
    return Aval(shape, have.dtype, have.weak)


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
