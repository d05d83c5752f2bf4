"""Programs as plain data and back; everything that is read is checked.

1. A variable is defined once, before it is used, and its slot is bounded.
2. An operator holds programs that stand before its own: the last is the program itself.
3. Each equation is inferred anew: the types in the text must be those that its operator gives for its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xform import tree
from xform.core.aval import Aval, aval_of
from xform.core.backend import HOST_TYPES, SCALAR_TYPES
from xform.core.errors import ProgramFormatError
from xform.core.operator import Operator
from xform.core.source import Site, describe
from xform.programs.codec import Decoder, Encoder, parts, sequence_of
from xform.programs.naming import decode_aval, dtype_text, encode_aval, wrong
from xform.programs.program import Constant, Equation, Literal, Program, Variable, aval_at, shortened

__all__ = ["Reader", "Writer"]

FORMAT, VERSION = "xform program", 1
#: slots of a program's environment, the longest name of a file, and how deep scopes nest
MAX_INDEX, MAX_NAME, MAX_SCOPES = 2**22, 4096, 1024


# ------------------------------------------------------------------ writing


class Writer:
    """Collects programs, the arrays of their constants, and the lines that they come from."""

    def __init__(self) -> None:
        self.programs: list[dict[str, Any]] = []
        self.arrays: list[np.ndarray[Any, Any]] = []
        self._numbers: dict[int, tuple[int, Program]] = {}  # the program is held, so that its id stays its own
        self._places: dict[int, int] = {}
        self._sites: dict[Site, int] = {}

    def document(self) -> dict[str, Any]:
        """Return all as one object."""
        return {"format": FORMAT, "version": VERSION, "programs": self.programs, "sites": list(map(list, self._sites))}

    def program(self, program: Program) -> int:
        """Write a program, those that its operators hold before it, and return its number."""
        known = self._numbers.get(id(program))
        if known is not None:
            return known[0]
        table = Table(Encoder(self.program))
        equations = [self._equation(equation, table) for equation in program.equations]
        written = {
            "inputs": list(map(written_variable, program.inputs)),
            "constants": [[written_variable(each), self._constant(each)] for each in program.constants],
            "operators": table.written,
            "equations": equations,
            "outputs": [operand(out, table.encoder) for out in program.outputs],
            "structures": [
                None if each is None else [table.encoder.structure(each)]
                for each in (program.in_structure, program.out_structure)
            ],
            "derivative": program.derivative,
        }
        self.programs.append(written)
        self._numbers[id(program)] = len(self.programs) - 1, program
        return len(self.programs) - 1

    def _equation(self, equation: Equation, table: Table) -> dict[str, Any]:
        written: dict[str, Any] = {
            "operator": table.number(equation.op),
            "inputs": [operand(each, table.encoder) for each in equation.inputs],
            "outputs": list(map(written_variable, equation.outputs)),
        }
        if equation.scopes:
            written["scopes"] = list(equation.scopes)
        if equation.phase != "forward":
            written["phase"] = equation.phase
        if equation.site is not None:
            written["site"] = self._sites.setdefault(equation.site, len(self._sites))
        return written

    def _constant(self, constant: Constant) -> Any:
        value = constant.value
        if type(value) is not np.ndarray:
            if type(value) in HOST_TYPES:
                return Encoder(self.program).value(value)
            msg = (
                f"the constant {constant!r} is {type(value).__name__}, and a file holds NumPy arrays alone; bring it "
                "to the host with xf.to_numpy before it is recorded, or make it an argument"
            )
            raise ProgramFormatError(msg, constant=constant)
        dtype_text(value.dtype)
        number = self._places.setdefault(id(value), len(self.arrays))
        if number == len(self.arrays):
            self.arrays.append(value)
        return {"array": number}


class Table:
    """The operators of one program, each written once: by identity, and where they are alike by what is written."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.written: list[Any] = []
        self._by_identity: dict[int, int] = {}
        self._by_text: dict[str, int] = {}

    def number(self, op: Operator) -> int:
        """Return the number of an operator, written if it is new."""
        known = self._by_identity.get(id(op))
        if known is None:
            written = self.encoder.operator(op)
            # not by `==`: 0.0 equals -0.0; an operator that is compared by identity equals no other one
            text = f"{id(op)}" if type(op).__eq__ is object.__eq__ else repr(written)
            known = self._by_identity[id(op)] = self._by_text.setdefault(text, len(self.written))
            if known == len(self.written):
                self.written.append(written)
        return known


def written_variable(variable: Variable) -> list[Any]:
    """Return slot and type of a variable."""
    return [variable.index, *encode_aval(variable.aval)]


def operand(variable: Variable | Literal, encoder: Encoder) -> Any:
    """Return an operand: the slot of a variable, or a number."""
    return {"literal": encoder.value(variable.value)} if isinstance(variable, Literal) else variable.index


# ------------------------------------------------------------------ reading


class Reader:
    """Reads the programs of a document; raises `ProgramFormatError`, or what an operator's `infer` raises."""

    def __init__(self, document: Any, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
        if type(document) is not dict or document.get("format") != FORMAT:
            raise wrong("it does not say that it is a program of xform")
        version = document.get("version")
        if version != VERSION:
            raise ProgramFormatError(f"it is of version {version!r:.20}, this xform reads {VERSION}; upgrade xform")
        fields(document, ("format", "version", "programs", "sites"))
        self.arrays = arrays
        self.sites = [site_of(each) for each in sequence_of(document["sites"])]
        self._written = sequence_of(document["programs"])
        self._read: list[Program] = []

    def program(self) -> Program:
        """Return the last program, which is the one that was stored."""
        for data in self._written:
            self._read.append(ProgramReader(self, data).program())
        if not self._read:
            raise wrong("it holds no program")
        return self._read[-1]

    def nested(self, number: Any) -> Program:
        """Return a program that was read before."""
        found: Program = at(self._read, number, "program that stands before")
        return found


class ProgramReader:
    """Reads one program."""

    def __init__(self, reader: Reader, data: Any) -> None:
        fields(data, ("inputs", "constants", "operators", "equations", "outputs", "structures", "derivative"))
        self.reader = reader
        self.data = data
        self.decoder = Decoder(reader.nested)
        self.variables: dict[int, Variable] = {}
        self.operators = [self.decoder.operator(each) for each in sequence_of(data["operators"])]

    def program(self) -> Program:
        """Return the program."""
        data = self.data
        inputs = [self._define(each, Variable) for each in sequence_of(data["inputs"])]
        for each in sequence_of(data["constants"]):
            self._constant(*parts(each, 2, "a constant"))
        equations = [self._equation(each) for each in sequence_of(data["equations"])]
        outputs = [self._operand(each) for each in sequence_of(data["outputs"])]
        given, made = parts(data["structures"], 2, "the structures of arguments and results")
        structures = self._structure(given, len(inputs)), self._structure(made, len(outputs))
        derivative = data["derivative"]
        if derivative is not None and type(derivative) is not str:
            raise wrong(f"{derivative!r:.60} is no layer")
        return Program(inputs, equations, outputs, structures=structures, derivative=derivative)

    def _define(self, data: Any, kind: Callable[..., Variable], *more: Any) -> Variable:
        """Make a variable, in a slot that no other one has."""
        index = sequence_of(data)[0] if data else None
        if type(index) is not int or not 0 <= index < MAX_INDEX or index in self.variables:
            raise wrong(f"a variable stands in slot {index!r:.40}, which is taken, or none")
        made = self.variables[index] = kind(index, decode_aval(data[1:]), *more)
        return made

    def _constant(self, variable: Any, content: Any) -> None:
        if type(content) is dict and content.keys() == {"array"}:
            value = at(self.reader.arrays, content["array"], "constant")
        else:
            value = self.decoder.value(content)
            if type(value) not in HOST_TYPES:
                raise wrong(f"the constant {value!r:.60} is no number")
        made = self._define(variable, Constant, value)
        if aval_of(value) != made.aval:
            raise wrong(f"the constant {shortened(value)} is {aval_of(value)!r}, not {made.aval!r}")

    def _operand(self, data: Any) -> Variable | Literal:
        if type(data) is int:
            if data not in self.variables:
                raise wrong(f"an operand stands in slot {data}, where nothing is at that point")
            return self.variables[data]
        fields(data, ("literal",))
        value = self.decoder.value(data["literal"])
        if type(value) not in SCALAR_TYPES:
            raise wrong(f"the literal {value!r:.60} is no number")
        return Literal(value)

    def _equation(self, data: Any) -> Equation:
        fields(data, ("operator", "inputs", "outputs"), ("scopes", "phase", "site"))
        op = at(self.operators, data["operator"], "operator")
        inputs = tuple(self._operand(each) for each in sequence_of(data["inputs"]))
        outputs = tuple(self._define(each, Variable) for each in sequence_of(data["outputs"]))
        scopes, phase = tuple(sequence_of(data.get("scopes", []))), data.get("phase", "forward")
        if (
            phase not in ("forward", "backward")
            or len(scopes) > MAX_SCOPES
            or not all(type(scope) is str for scope in scopes)
        ):
            raise wrong(f"the phase {phase!r:.60} or the scopes {scopes!r:.60} are none")
        site = at(self.reader.sites, data["site"], "line") if "site" in data else None
        equation = Equation(op, inputs, outputs, scopes, phase, site)
        check_equation(equation)
        return equation

    def _structure(self, data: Any, count: int) -> tree.Structure | None:
        if data is None:
            return None
        structure = self.decoder.structure(*parts(data, 1, "a structure"))
        if structure.num_leaves != count:
            raise wrong(f"{structure.num_leaves} arrays belong into {structure!r:.120}, {count} are there")
        if tree.structure(tree.unflatten(structure, range(count))) != structure:  # or it raises
            raise wrong(f"{structure!r:.120} comes out of the file as another one")
        return structure


def check_equation(equation: Equation) -> None:
    """Raise where an equation's results are not of the types that its operator gives for its operands."""
    op = equation.op
    avals = [aval_at(each) for each in equation.inputs]
    stored = tuple(variable.aval for variable in equation.outputs)
    at_line = f"at {describe(equation.site)}"
    try:
        found = op.infer(*avals)
    except Exception as error:
        msg = f"{op!r:.120} takes no {', '.join(map(repr, avals))} {at_line}: {error}"
        raise ProgramFormatError(msg, equation=equation) from error
    inferred = tuple(found) if op.multiple_outputs else (found,)
    if len(inferred) != len(stored) or not all(map(agree, inferred, stored)):
        msg = f"{op!r:.120} of {avals} gives {list(inferred)}, not {list(stored)} as stands there, {at_line}"
        raise ProgramFormatError(msg, equation=equation)


def agree(inferred: Any, stored: Aval) -> bool:
    """Whether a result can have a type: a length that only one of them knows may be any.

    >>> agree(Aval((None,), np.dtype(float)), Aval((3,), np.dtype(float)))
    True
    """
    return (
        isinstance(inferred, Aval)
        and (inferred.dtype, len(inferred.shape)) == (stored.dtype, len(stored.shape))
        and all(n is None or m is None or n == m for n, m in zip(inferred.shape, stored.shape, strict=True))
    )


def fields(data: Any, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    """Raise where an object does not have the fields that it must have, or others."""
    if type(data) is not dict or not set(required) <= data.keys() <= {*required, *optional}:
        raise wrong(f"expected an object of {', '.join(required)}, found {data!r:.60}")


def at(table: Sequence[Any], number: Any, what: str) -> Any:
    """Return an entry of a table by its number."""
    if type(number) is not int or not 0 <= number < len(table):
        raise wrong(f"there is no {what} {number!r:.40}")
    return table[number]


def site_of(data: Any) -> Site:
    """Return a line; a file that is no Python file stands in brackets, so that nobody opens it to show the line."""
    name, line = parts(data, 2, "a line")
    if type(name) is not str or len(name) > MAX_NAME or "\0" in name or type(line) is not int or not 0 <= line < 2**31:
        raise wrong(f"{data!r:.60} is no line")
    is_python = name.endswith(".py") and not name.startswith(("//", "\\\\"))  # the latter would go to the network
    return (name if is_python or (name.startswith("<") and name.endswith(">")) else f"<{name}>", line)
