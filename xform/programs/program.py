"""A Program: recorded operations as plain data, which prints and runs through `apply`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import attrs
import numpy as np

from xform import tree
from xform.core.aval import Aval, aval_of
from xform.core.backend import SCALAR_TYPES, is_raw, namespace_of
from xform.core.errors import LayerError, OperandError, OperandTypeError, ProgramError, ShapeError
from xform.core.memory import owner_of, unshared
from xform.core.operator import Operator
from xform.core.place import Place, place
from xform.core.source import Site, describe
from xform.core.stack import BOTTOM, apply, concrete, cursor, levels, on_empty_stack
from xform.core.value import Array, Value
from xform.plugins import loaded

__all__ = ["Constant", "Equation", "Literal", "Program", "Variable"]


@attrs.define(eq=False, repr=False)
class Variable:
    """A value of a program: where it stands in the environment, and its aval."""

    index: int
    aval: Aval
    __tree_leaf__ = True

    def __repr__(self) -> str:
        return f"{letters(self.index)}: {self.aval!r}"


@attrs.define(eq=False, repr=False)
class Constant(Variable):
    """A copy of an outside array as it was when it was captured, or a value of a layer that was active then.

    >>> Constant(1, aval_of(np.ones(2)), np.ones(2))
    b: float64[2] = constant [1. 1.]
    """

    value: Any = None

    def __repr__(self) -> str:
        return f"{letters(self.index)}: {self.aval!r} = constant {shortened(self.value)}"


@attrs.frozen
class Literal:
    """A Python number in the text of a program."""

    value: Any
    __tree_leaf__ = True

    def __repr__(self) -> str:
        return repr(self.value)


def aval_at(operand: Variable | Literal) -> Aval:
    """Return the aval of an operand or output."""
    return aval_of(operand.value) if isinstance(operand, Literal) else operand.aval


@attrs.frozen(eq=False, repr=False)
class Equation:
    """One recorded operation, with the scopes and the line it came from."""

    op: Operator
    inputs: tuple[Variable | Literal, ...]
    outputs: tuple[Variable, ...]
    scopes: tuple[str, ...] = ()
    phase: str = "forward"
    site: Site | None = None
    __tree_leaf__ = True

    @property
    def call(self) -> str:
        """The operation as text, e.g. `Mul(b, 2.0)`."""
        operands = ", ".join(repr(v) if isinstance(v, Literal) else letters(v.index) for v in self.inputs)
        return f"{repr(self.op).removesuffix('()')}({operands})"

    def __repr__(self) -> str:
        return f"{', '.join(map(repr, self.outputs)) or '_'} = {self.call}"


class Program:
    """Inputs, equations, outputs, constants; with the containers of the function it was recorded from.

    `program(*args)` runs it through `apply`, so that every transformation composes with it; `program.eval(*args)` runs
    it at the bottom alone. What a run returns is the caller's: constants among the outputs are copies. Raises
    `ShapeError` for arguments of another shape or dtype than recorded, `OperandTypeError` for what is no array and,
    where a derivative was recorded (`derivative` names its layer), `LayerError` above a layer that rewrites.

    >>> import numpy as np, xform as xf, xform.numpy as xnp
    >>> program = xf.make_program(lambda x: xnp.sin(x) * 2.0)(np.ones(3))
    >>> print(program)
    program(a: float64[3]):
      b: float64[3] = Sin(a)
      c: float64[3] = Mul(b, 2.0)
      return c
    >>> program(np.zeros(3))
    array([0., 0., 0.])
    """

    __tree_leaf__ = True

    def __init__(
        self,
        inputs: Sequence[Variable],
        equations: Sequence[Equation],
        outputs: Sequence[Variable | Literal],
        *,
        structures: tuple[Any, Any] | None = None,
        derivative: str | None = None,
    ) -> None:
        self.inputs = tuple(inputs)
        self.equations = tuple(equations)
        self.outputs = tuple(outputs)
        containers: tuple[Any, Any] = (None, None) if structures is None else structures
        self.in_structure, self.out_structure = containers
        self.constants = tuple(_constants(self.equations, self.outputs))
        backward = any(equation.phase == "backward" for equation in self.equations)
        self.derivative = derivative or ("Grad" if backward else None)
        self.size = 1 + max((v.index for v in self.variables()), default=-1)

    @cached_property
    def dead(self) -> list[list[int]]:
        """The environment slots that nothing reads after each equation."""
        return _last_uses(self.equations, self.outputs)

    def variables(self) -> Iterator[Variable]:
        """Yield all variables: inputs, constants, results."""
        yield from self.inputs
        yield from self.constants
        for equation in self.equations:
            yield from equation.outputs

    def evolve(self, equations: Sequence[Equation], outputs: Sequence[Variable | Literal] | None = None) -> Program:
        """Return a program of the same inputs with other equations, and other variables as outputs.

        It takes and returns the same containers; more or fewer outputs than there were are returned flat.
        """
        outputs = self.outputs if outputs is None else outputs
        structures = (self.in_structure, self.out_structure if len(outputs) == len(self.outputs) else None)
        return Program(self.inputs, equations, outputs, structures=structures, derivative=self.derivative)

    @property
    def in_avals(self) -> tuple[Aval, ...]:
        """The avals of the flat inputs."""
        return tuple(variable.aval for variable in self.inputs)

    @property
    def out_avals(self) -> tuple[Aval, ...]:
        """The avals of the flat outputs."""
        return tuple(map(aval_at, self.outputs))

    def __call__(self, *args: Any) -> Any:
        """Run through `apply`; takes and returns what the recorded function did."""
        flat = self._flat(args)
        keep = any(isinstance(leaf, Value) for leaf in flat)
        results = self.run(flat)
        if self.derivative is not None:
            results = unshared(results, flat)
        if not keep:
            results = [r.data if type(r) is Array else r for r in results]
        if self.out_structure is None:
            return results[0] if len(results) == 1 else tuple(results)
        return tree.unflatten(self.out_structure, results)

    def eval(self, *args: Any) -> Any:
        """Run on raw arrays at the bottom, past all layers."""
        return on_empty_stack(self, *args)

    def source(self, *, level: int = 0) -> str:
        """Return the NumPy source that the program compiles to.

        >>> import numpy as np, xform as xf
        >>> print(xf.make_program(lambda x: x.T.reshape(4, 1) * 2.0)(np.ones((2, 2))).source().rstrip())
        def program(a0):
            v0 = a0.T
            v0 = v0.reshape((4, 1))
            v0 = multiply(v0, k)
            return [v0]
        """
        text: str = loaded("xform.programs.compiler:compile_program", "the compiler")(self, level=level).source
        return text

    def _flat(self, args: tuple[Any, ...]) -> list[Any]:
        flat, structure = tree.flatten(args)
        if self.in_structure is not None and structure != self.in_structure:
            msg = f"the program takes arguments of structure {self.in_structure}, got {structure}"
            raise ProgramError(msg, program=self)
        return flat

    def run(self, flat: Sequence[Any]) -> list[Any]:
        """Run on a flat list of inputs; returns the flat outputs."""
        if len(flat) != len(self.inputs):
            msg = f"the program takes {len(self.inputs)} inputs, got {len(flat)}"
            raise ProgramError(msg, program=self)
        if self.derivative is not None and cursor.get() is not BOTTOM:
            check_derivative(self.derivative)
        environment: list[Any] = [None] * self.size
        for position, (variable, value) in enumerate(zip(self.inputs, flat, strict=True)):
            check_input(position, variable.aval, value)
            environment[variable.index] = value
        for constant in self.constants:
            environment[constant.index] = constant.value
        start = place.get()
        try:
            for equation, dead in zip(self.equations, self.dead, strict=True):
                self._step(equation, environment, start)
                for index in dead:
                    environment[index] = None
        finally:
            place.set(start)
        found = [out.value if isinstance(out, Literal) else environment[out.index] for out in self.outputs]
        return self._unshared(found) if self.constants else found

    def _unshared(self, results: list[Any]) -> list[Any]:
        """Return results with copies of those that are memory of a constant: a caller may write into them."""
        held = {id(constant.value) for constant in self.constants}
        return [copied(each) if id(owner_of(each)) in held else each for each in results]

    @staticmethod
    def _step(equation: Equation, environment: list[Any], start: Place) -> None:
        op = equation.op
        values = [v.value if type(v) is Literal else environment[v.index] for v in equation.inputs]  # type: ignore[union-attr]
        if cursor.get() is not BOTTOM or op.impure:
            phase = "backward" if "backward" in (start.phase, equation.phase) else "forward"
            place.set(Place((*start.scopes, *equation.scopes), phase, equation.site, start.loop, start.iteration))
        try:
            found = apply(op, *values)
        except OverflowError as error:
            raise too_large(op, values, error) from error
        if not op.multiple_outputs:
            found = (found,)
        for variable, value in zip(equation.outputs, found, strict=False):
            environment[variable.index] = value

    def __repr__(self) -> str:
        return self.text()

    def text(self, *, lines: bool = False) -> str:
        """Return the program as text; with `lines`, each equation with its scope and source line."""
        shown = [f"program({', '.join(map(repr, self.inputs))}):"]
        shown += [f"  {constant!r}" for constant in self.constants]
        for equation in self.equations:
            note = ""
            if lines:
                scope = f"[{'/'.join(equation.scopes)}] " if equation.scopes else ""
                note = f"  # {scope}{describe(equation.site)}"
            shown.append(f"  {equation!r}{note}")
        outs = [repr(o) if isinstance(o, Literal) else letters(o.index) for o in self.outputs]
        shown.append(f"  return {', '.join(outs)}")
        return "\n".join(shown)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program to a file, which `xf.load_program` reads: a zip of JSON and of its constants as an npz.

        It holds equations with scopes and lines, constants, and the containers of arguments and results: dicts, lists,
        tuples, None, and classes that `xform.tree` knows, if they stand at the top level of a module. Raises
        `ProgramFormatError` for what a file cannot hold: functions (custom rules, observers), arrays of other libraries
        than NumPy, classes that are made inside functions. Nothing is written then.
        """
        loaded("xform.programs.storage:save_program", "storage")(self, path)

    def to_dot(self, *, limit: int = 400) -> str:
        """Return the program as text for Graphviz: nodes with shapes, scopes as boxes.

        At most `limit` operations are drawn; one more node says how many are not.

        >>> import numpy as np, xform as xf
        >>> print(xf.make_program(lambda x: np.sin(x))(np.ones(3)).to_dot().splitlines()[-2])
          n2 -> n3;
        """
        return str(loaded("xform.programs.drawing:to_dot", "drawing")(self, limit=limit))

    def to_mermaid(self, *, limit: int = 400) -> str:
        """Return the program as text for Mermaid, as `to_dot` does.

        >>> import numpy as np, xform as xf
        >>> print(xf.make_program(lambda x: np.sin(x))(np.ones(3)).to_mermaid().splitlines()[2])
          n2["b = Sin(a)<br/>float64[3]"]
        """
        return str(loaded("xform.programs.drawing:to_mermaid", "drawing")(self, limit=limit))

    def to_svg(self, *, limit: int = 400) -> str:
        """Return the program as a picture in SVG, laid out by xform, without scripts; `limit` is that of `to_dot`.

        >>> import numpy as np, xform as xf
        >>> xf.make_program(lambda x: np.sin(x))(np.ones(3)).to_svg()[:4]
        '<svg'
        """
        return str(loaded("xform.programs.svg:to_svg", "drawing")(self, limit=limit))

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def _repr_html_(self) -> str:
        return str(loaded("xform.programs.svg:to_html", "drawing")(self))


def letters(index: int) -> str:
    """Return the name of a variable: a, b, ..., z, ba, bb, ...

    >>> letters(0), letters(26)
    ('a', 'ba')
    """
    name = ""
    while True:
        index, digit = divmod(index, 26)
        name = chr(97 + digit) + name
        if not index:
            return name


def check_input(position: int, aval: Aval, value: Any) -> None:
    """Raise where an input does not have the recorded shape and dtype."""
    if not isinstance(value, Value) and not is_raw(value):
        msg = f"program input {position} must be an array or a number, got {type(value).__name__}: {value!r:.60}"
        raise OperandTypeError(msg, value=value)
    have = aval_of(value)
    if not fits(aval, have):
        msg = f"program input {position} was recorded as {aval!r}, got {have!r}; record again with make_program"
        raise ShapeError(msg, value=value)


def fits(want: Aval, have: Aval) -> bool:
    """Whether an operand of one aval may stand where another was recorded; an unknown length takes any.

    >>> fits(Aval((None, 2), np.dtype(float)), Aval((3, 2), np.dtype(float)))
    True
    """
    same = len(have.shape) == len(want.shape) and all(
        n is None or m is None or n == m for n, m in zip(have.shape, want.shape, strict=True)
    )
    return same and (have.dtype == want.dtype or (have.weak and have.dtype.kind == want.dtype.kind))


def too_large(op: Operator, values: Sequence[Any], error: OverflowError) -> OperandError:
    """Make the error for a Python int that does not fit into the dtype it would take in an operation."""
    found = [concrete(value) for value in values]
    shown = ", ".join(f"{each:.6g}" if type(each) is int else repr(aval_of(each)) for each in found)
    msg = (
        f"{op!r}: {error} (operands {shown}); Python ints are int64 in a program, or of the dtype of the array beside "
        "them: pass float(n) or an array of another dtype, or mark the argument of xf.trace by static_argnums"
    )
    return OperandError(msg, op=op, operands=tuple(values))


def check_derivative(name: str) -> None:
    """Raise `LayerError` for a layer that rewrites below a recorded derivative, as the layer `name` itself would."""
    for level in levels():
        other = level.layer
        if other is None:
            continue
        if other.effect == "rewrites":
            msg = (
                f"{other!r} rewrites values below a program that holds a derivative, recorded by {name} from the "
                f"operations as they were before the rewriting: it would be of the wrong function. Decorate the "
                f"function instead, so that {type(other).__name__} stands above {name}: grad(layer(f)) with "
                f"layer = {type(other).__name__}()"
            )
            raise LayerError(msg, layer=name, other=other)
        if other.records:
            other.derivative = name


def copied(x: Any) -> Any:
    """Return a copy of a raw array, or of the one in an `Array`; what cannot change is returned as it is."""
    if type(x) is Array:
        out = Array()
        out.data = copied(x.data)
        return out
    if isinstance(x, Value) or type(x) in SCALAR_TYPES or isinstance(x, np.generic):
        return x
    return np.array(x, subok=True) if isinstance(x, np.ndarray) else namespace_of(x).asarray(x, copy=True)


def shortened(value: Any) -> str:
    """Return a constant as one short line of text.

    >>> shortened(np.zeros((100, 100)))
    '[[0. 0. ... 0. 0.] [0. 0. ... 0. 0.] ... [0. 0. ... 0. 0.] [0. 0. ... 0. 0.]]'
    """
    text = np.array2string(value, threshold=16, edgeitems=2) if isinstance(value, np.ndarray) else repr(value)
    text = " ".join(text.split())
    return text if len(text) <= 100 else f"{text[:97]}..."


def _constants(equations: Sequence[Equation], outputs: Sequence[Variable | Literal]) -> list[Constant]:
    found: dict[int, Constant] = {}
    for equation in equations:
        for variable in equation.inputs:
            if isinstance(variable, Constant):
                found[variable.index] = variable
    for out in outputs:
        if isinstance(out, Constant):
            found[out.index] = out
    return list(found.values())


def _last_uses(equations: Sequence[Equation], outputs: Sequence[Variable | Literal]) -> list[list[int]]:
    """Return, for each equation, the environment slots that nothing reads after it."""
    live = {out.index for out in outputs if isinstance(out, Variable)}
    dead: list[list[int]] = []
    for equation in reversed(equations):
        used = {v.index for v in (*equation.inputs, *equation.outputs) if isinstance(v, Variable)}
        dead.append([index for index in used if index not in live])
        live |= used
    dead.reverse()
    return dead


def literal_or_none(value: Any) -> Literal | None:
    """Return a literal for a Python number."""
    return Literal(value) if type(value) in SCALAR_TYPES else None
