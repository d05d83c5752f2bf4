"""How each operator is written in generated NumPy source.

1. A kernel gives an expression, and with `out` one that writes its result there. What has no kernel of its own calls
   the operator's `evaluate`.
2. Kernels compute exactly what `evaluate` does on NumPy arrays: dtypes, NaN, warnings and errors included.
3. The table at the end is the whole list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from xform.core.aval import Aval
from xform.core.operator import Operator
from xform.ops.arithmetic import Add, Div, Mul, Neg, Sub
from xform.ops.base import Elementwise, loop_dtypes
from xform.ops.broadcast import BroadcastTo, broadcast_view
from xform.ops.comparisons import Equal, Greater, GreaterEqual, Less, LessEqual, NotEqual
from xform.ops.extrema import Max, Min
from xform.ops.index_layout import OPERAND, is_basic, operand_count, plain
from xform.ops.indexing import GetItem, ScatterAdd
from xform.ops.joining import Concatenate, Stack
from xform.ops.positions import add_into
from xform.ops.products import Matmul
from xform.ops.reductions import AllTrue, AnyTrue, Reduction, Sum
from xform.ops.selection import Share, Where
from xform.ops.shapes import ExpandDims, Reshape, Squeeze, Transpose
from xform.ops.structural import Identity, Name, StopGradient
from xform.programs.group import Group
from xform.programs.program import Equation, Literal, Variable, aval_at

__all__ = ["Kernel", "Writer", "kernel_of", "written_by"]


class Writer(Protocol):
    """What a kernel writes with."""

    def bind(self, value: Any, hint: str) -> str:
        """Return the name of an object in the source."""

    def name(self, operand: Variable | Literal) -> str:
        """Return the text of an operand, as it is."""

    def number(self, operand: Variable | Literal, dtype: Any) -> str:
        """Return the text of an operand of an operation on arrays: a number is an array of this dtype."""

    def is_number(self, operand: Variable | Literal) -> bool:
        """Whether an operand is sure to be one of NumPy's numbers, not Python's, which raises where NumPy warns."""

    def is_given(self, operand: Variable | Literal) -> bool:
        """Whether an operand is an input, of which the caller may hold an array without axes."""

    def leave(self, condition: str, result: str) -> None:
        """Return a result at once where a condition holds."""

    def part(self, array: str, index: Any) -> str:
        """Return the text of a basic selection of an array."""

    def line(self, text: str) -> None:
        """Add a line."""


Write = Callable[[Writer, Equation, str | None], str | None]


class Kernel(NamedTuple):
    """How an operator is written: an expression, or None where it has written lines of its own into `out`."""

    write: Write
    writes: bool = False  #: whether it can write into `out`
    inplace: bool = False  #: whether `out` may be an operand of the same shape and dtype
    fills: bool = False  #: whether it is best given an array, even a new one
    view: bool = False  #: whether its result is memory of its first operand
    fresh: bool = True  #: whether its result is no memory of any operand
    numbers: bool = False  #: whether a result without axes is one of NumPy's numbers


def operands(writer: Writer, equation: Equation) -> list[str]:
    """Return the texts of all operands."""
    return [writer.name(operand) for operand in equation.inputs]


def call(function: str, arguments: list[str], out: str | None) -> str:
    """Return the text of a call, `out` last."""
    return f"{function}({', '.join(arguments if out is None else [*arguments, out])})"


def evaluated(writer: Writer, equation: Equation, out: str | None) -> str:
    """Call the operator's own `evaluate`."""
    op = equation.op
    return f"{writer.bind(op.evaluate, op.name.lower())}({', '.join(['np', *operands(writer, equation)])})"


# ------------------------------------------------------------------ elementwise


#: on numbers Python's operators take 60 ns, a ufunc 1000 (not on integers, which would warn where they overflow)
SIGNS = {Add: "+", Sub: "-", Mul: "*", Div: "/"}
COMPARISONS = {Less: "<", LessEqual: "<=", Greater: ">", GreaterEqual: ">=", Equal: "==", NotEqual: "!="}
#: NumPy takes their `out` by name alone
NAMED_OUT = frozenset({np.maximum, np.minimum})


def ufunc(writer: Writer, equation: Equation, out: str | None) -> str:
    """Call the ufunc, or write an arithmetic operator between numbers."""
    op: Any = equation.op
    aval = equation.outputs[0].aval
    avals = tuple([aval_at(operand) for operand in equation.inputs])
    if aval.shape == () and any(map(writer.is_number, equation.inputs)):
        names = operands(writer, equation)
        if type(op) in COMPARISONS:
            return f"{names[0]} {COMPARISONS[type(op)]} {names[1]}"
        if type(op) in SIGNS and aval.dtype.kind in "fc":
            return f"{names[0]} {SIGNS[type(op)]} {names[1]}"
        if type(op) is Neg and aval.dtype.kind in "fc":
            return f"-{names[0]}"
    function = writer.bind(op.kernel, op.kernel.__name__)
    if aval.shape == ():
        return call(function, operands(writer, equation), None)
    dtypes = loop_dtypes(op.kernel, avals)
    names = [writer.number(operand, dtype) for operand, dtype in zip(equation.inputs, dtypes, strict=False)]
    if out is not None and op.kernel in NAMED_OUT:
        out = f"out={out}"
    return call(function, names, out)


def select(condition: Any, x: Any, y: Any, out: Any) -> None:
    """Write what `np.where` returns into `out`, which is none of the operands."""
    np.copyto(out, y)
    np.copyto(out, x, where=condition)


def where(writer: Writer, equation: Equation, out: str | None) -> str:
    """Choose by `np.where`, between numbers in Python, or by masked copies into `out`."""
    names = operands(writer, equation)
    aval = equation.outputs[0].aval
    if aval.shape == ():
        x, y = (one(writer, operand, aval.dtype) for operand in equation.inputs[1:])
        if x is not None and y is not None:
            text = f"{x} if {names[0]} else {y}"
            return f"({text})[()]" if any(map(writer.is_given, equation.inputs[1:])) else text
        return f"{call(writer.bind(np.where, 'where'), names, None)}[()]"
    if out is None or aval_at(equation.inputs[0]).dtype.kind != "b":
        text = call(writer.bind(np.where, "where"), names, None)
        return text if out is None else f"{writer.bind(np.copyto, 'copyto')}({out}, {text})"
    return call(writer.bind(select, "select"), names, out)


def one(writer: Writer, operand: Variable | Literal, dtype: np.dtype[Any]) -> str | None:
    """Return the text of an operand that is one of NumPy's numbers, of this dtype; None for another one."""
    if isinstance(operand, Literal):
        return writer.bind(dtype.type(operand.value), "k")
    return writer.name(operand) if writer.is_number(operand) and operand.aval.dtype == dtype else None


def share(x: Any, y: Any, out: Any) -> None:
    """Write what `Share` computes into `out`."""
    np.greater(x, y, out)
    equal = np.equal(x, y)
    if np.count_nonzero(equal):
        out[equal] = 0.5


def shares(writer: Writer, equation: Equation, out: str | None) -> str:
    """Compute a share, into `out` if given."""
    if out is None:
        return evaluated(writer, equation, None)
    dtypes = loop_dtypes(np.greater, tuple([aval_at(operand) for operand in equation.inputs]))
    names = [writer.number(operand, dtype) for operand, dtype in zip(equation.inputs, dtypes, strict=False)]
    return call(writer.bind(share, "share"), names, out)


# ------------------------------------------------------------------ reductions and products

REDUCERS: dict[type, Any] = {
    Sum: np.add.reduce, Max: np.maximum.reduce, Min: np.minimum.reduce, AllTrue: np.logical_and.reduce,
    AnyTrue: np.logical_or.reduce,
}  # fmt: skip


def reducer(writer: Writer, equation: Equation, out: str | None) -> str:
    """Reduce by a ufunc's method."""
    op: Any = equation.op
    (x,) = operands(writer, equation)
    name = f"{type(op).__name__.lower()}_over"
    axis = op.axis[0] if len(op.axis) == 1 else None if len(op.axis) == aval_at(equation.inputs[0]).ndim else op.axis
    function = writer.bind(REDUCERS[type(op)], name)
    if out is not None or op.keepdims:
        return f"{function}({x}, {axis}, None, {out}{', True' if op.keepdims else ''})"
    return f"{function}({x}, {axis})"


def product(writer: Writer, equation: Equation, out: str | None) -> str:
    """Multiply up to two axes by `dot` (half the time of `matmul` where operands are small)."""
    x, y = operands(writer, equation)
    return f"{writer.bind(np.dot, 'dot')}({x}, {y}, {out})" if out is not None else f"{x}.dot({y})"


def multiplied(equation: Equation) -> Kernel:
    """Return the kernel of a matrix product: `dot`, or the operator's own for more axes."""
    ranks = [aval_at(operand).ndim for operand in equation.inputs]
    return Kernel(product, writes=True, numbers=True) if min(ranks) and max(ranks) <= 2 else COMPUTED


# ------------------------------------------------------------------ views


def viewed(text: Callable[[Writer, Equation, str], str]) -> Write:
    """Make a kernel of a view; a Python number has no methods, so it goes through `evaluate`."""

    def write(writer: Writer, equation: Equation, out: str | None) -> str:
        operand = equation.inputs[0]
        if aval_at(operand).weak:
            return evaluated(writer, equation, None)
        return text(writer, equation, writer.name(operand))

    return write


def reshaped(writer: Writer, equation: Equation, x: str) -> str:
    """Give an array another shape."""
    shape = equation.outputs[0].aval.shape
    return f"{x}.reshape({equation.op.shape if None in shape else shape})"  # type: ignore[attr-defined]


def transposed(writer: Writer, equation: Equation, x: str) -> str:
    """Permute the axes."""
    axes: tuple[int, ...] = equation.op.axes  # type: ignore[attr-defined]
    return f"{x}.T" if axes == tuple(range(len(axes)))[::-1] else f"{x}.transpose({axes})"


def broadcast(writer: Writer, equation: Equation, out: str | None) -> str:
    """Make a view of a shape."""
    x = writer.name(equation.inputs[0])
    return f"{writer.bind(broadcast_view, 'broadcast_view')}({x}, {equation.op.shape})"  # type: ignore[attr-defined]


def selected(writer: Writer, equation: Equation, x: str) -> str:
    """Select by a basic index."""
    return writer.part(x, plain(equation.op.index, ()))  # type: ignore[attr-defined]


def picked(writer: Writer, equation: Equation, out: str | None) -> str:
    """Select by an index with arrays, written out."""
    x, *others = operands(writer, equation)
    left = iter(others)
    index: Any = equation.op.index  # type: ignore[attr-defined]
    parts = [
        next(left) if entry == OPERAND else writer.bind(plain((entry,), ())[0], "index")
        for entry in index
    ]
    return f"{x}[{', '.join(parts)}{',' if len(parts) == 1 else ''}]"


def indexed(equation: Equation) -> Kernel:
    """Return the kernel of an index: a view, a selection by arrays, or `evaluate` where bounds are operands."""
    index: Any = equation.op.index  # type: ignore[attr-defined]
    number = is_element(index, [aval_at(operand) for operand in equation.inputs])
    if not operand_count(index) and is_basic(index):
        return Kernel(viewed(selected), view=not number, numbers=number)
    bounds = any(type(entry) is tuple and OPERAND in entry for entry in index)
    if bounds or aval_at(equation.inputs[0]).weak:
        return Kernel(evaluated, fresh=False)
    scalar = not any(aval_at(operand).ndim for operand in equation.inputs[1:])  # x[i] with a 0-d i is a view
    return Kernel(picked, fresh=number or not scalar, numbers=number)


def is_element(index: Any, avals: list[Aval]) -> bool:
    """Whether an index takes one element of an array: NumPy gives it as a number, which is no view."""
    whole = all(entry == OPERAND or type(entry) is int for entry in index)
    integers = all(aval.shape == () and aval.dtype.kind in "iu" for aval in avals[1:])
    return whole and integers and 0 < len(index) == avals[0].ndim


def itself(writer: Writer, equation: Equation, out: str | None) -> str:
    """Name the operand anew."""
    return writer.name(equation.inputs[0])


# ------------------------------------------------------------------ several parts into one array


def scattered(writer: Writer, equation: Equation, out: str | None) -> str | None:
    """Add parts into zeros."""
    if out is None:
        return evaluated(writer, equation, None)
    names = operands(writer, equation)
    writer.line(f"{out}.fill(0)")
    at, last = 0, ""
    for index in equation.op.of:  # type: ignore[attr-defined]
        count = operand_count(index)
        part, others = names[at], names[at + 1 : at + 1 + count]
        at += 1 + count
        if count == 0 and is_basic(index):
            last = added(writer, out, (plain(index, ()), part), last, equation.outputs[0].aval)
        else:
            rest = f"({', '.join(others)}{',' if others else ''})"
            function = writer.bind(add_into, "add_into")
            writer.line(f"{function}(np, {out}, {writer.bind(index, 'index')}, {rest}, {part})")
    return None


def added(writer: Writer, out: str, part: tuple[Any, str], last: str, aval: Aval) -> str:
    """Add into a basic selection, which a line before may have named `part`; return the text of the selection."""
    index, x = part
    place = writer.part(out, index)
    whole: Any = np.broadcast_to(0, aval.shape)  # type: ignore[arg-type]
    if np.ndim(whole[index]) == 0:  # a number is no view
        writer.line(f"{place} += {x}")
        return place
    if not place.isidentifier() and place != last:
        writer.line(f"part = {place}")
    name = place if place.isidentifier() else "part"
    writer.line(f"{writer.bind(np.add, 'add')}({name}, {x}, {name})")
    return place


def stacked(writer: Writer, equation: Equation, out: str | None) -> str | None:
    """Copy arrays into the rows of another."""
    if out is None:
        return evaluated(writer, equation, None)
    before = (slice(None),) * equation.op.axis  # type: ignore[attr-defined]
    for position, name in enumerate(operands(writer, equation)):
        writer.line(f"{out}[{writer.bind((*before, position), 'index') if before else position}] = {name}")
    return None


def concatenated(writer: Writer, equation: Equation, out: str | None) -> str:
    """Copy arrays one after the other."""
    if out is None:
        return evaluated(writer, equation, None)
    names = ", ".join(operands(writer, equation))
    return f"{writer.bind(np.concatenate, 'concatenate')}(({names},), {equation.op.axis}, {out})"  # type: ignore[attr-defined]


# ------------------------------------------------------------------ the table

FALLBACK = Kernel(evaluated, fresh=False)
COMPUTED = Kernel(evaluated)
UFUNC = Kernel(ufunc, writes=True, inplace=True, numbers=True)
REDUCER = Kernel(reducer, writes=True, numbers=True)

KERNELS: dict[type[Operator], Kernel | Callable[[Equation], Kernel]] = {
    Where: Kernel(where, writes=True, numbers=True),
    Share: Kernel(shares, writes=True),
    Matmul: multiplied,
    Reshape: Kernel(viewed(reshaped), view=True),
    ExpandDims: Kernel(evaluated, view=True),
    Squeeze: Kernel(evaluated, view=True),
    Transpose: Kernel(viewed(transposed), view=True),
    BroadcastTo: Kernel(broadcast, view=True),
    GetItem: indexed,
    Identity: Kernel(itself, view=True),
    Name: Kernel(itself, view=True),
    StopGradient: Kernel(itself, view=True),
    ScatterAdd: Kernel(scattered, writes=True, fills=True),
    Stack: Kernel(stacked, writes=True),
    Concatenate: Kernel(concatenated, writes=True),
    Group: COMPUTED,
    **dict.fromkeys(REDUCERS, REDUCER),
}


_by_class = dict(KERNELS)


def kernel_of(equation: Equation) -> Kernel:
    """Return the kernel of an equation."""
    op = equation.op
    known = _by_class.get(type(op))
    if known is None:
        known = _by_class[type(op)] = kernel_of_class(type(op))
    return known if type(known) is Kernel else known(equation)  # type: ignore[operator]


def kernel_of_class(kind: type[Operator]) -> Kernel | Callable[[Equation], Kernel]:
    """Return the kernel of an operator that the table does not list."""
    if issubclass(kind, Elementwise):
        return UFUNC if isinstance(kind.kernel, np.ufunc) and kind.kernel.nout == 1 else FALLBACK
    return COMPUTED if issubclass(kind, Reduction) else FALLBACK


def written_by(equation: Equation) -> bool:
    """Whether the result of an equation can be written into an array that is given: its shape is known, and not ()."""
    if len(equation.outputs) != 1:
        return False
    shape = equation.outputs[0].aval.shape
    return shape != () and None not in shape and 0 not in shape and kernel_of(equation).writes
