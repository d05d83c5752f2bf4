"""Bodies of loops as Programs: what a user's functions do in one round, recorded on top of the current stack.

1. What a body takes from around it, of any layer, becomes a constant of the loop: an operand, as it is at the call.
2. A carry has one shape and one dtype in all rounds. A Python number at the start takes the dtype that the body gives
   it.
3. A body is recorded again where its functions, or what they hold, are other objects; see `xform.loops.closures`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from xform import tree
from xform.core.aval import Aval, aval_of, is_numeric
from xform.core.backend import SCALAR_TYPES, is_raw
from xform.core.errors import DtypeError, HostReadError, OperandTypeError, ShapeError
from xform.core.value import Value
from xform.loops.closures import Content, contents_read, held, is_as_read, references
from xform.loops.templates import shared
from xform.ops.broadcast import astype
from xform.ops.structural import HostRead
from xform.programs.loop import COUNTER, Loop
from xform.programs.loop_outputs import All, Last, strong
from xform.programs.loop_trim import Trimmed, trimmed
from xform.programs.program import Literal, Program, Variable
from xform.transforms import entering, loop_batch, loop_checkpoints, loop_forward  # noqa: F401  (the rules)
from xform.transforms.operands import DECLARE
from xform.transforms.recorder import Trace

__all__ = [
    "BodyTrace",
    "Captures",
    "Kind",
    "Recorded",
    "flat_carry",
    "in_dtype",
    "is_truth",
    "recorded_loop",
    "round_programs",
]

#: recordings of one function, for different arguments
MOST = 16


class Captures:
    """What the functions of one loop take from around them: each object once."""

    def __init__(self) -> None:
        self.objects: list[Any] = []
        self._numbers: dict[int, int] = {}

    def number(self, captured: Any) -> int:
        """Return the number of an object."""
        if id(captured) not in self._numbers:
            self._numbers[id(captured)] = len(self.objects)
            self.objects.append(captured)
        return self._numbers[id(captured)]


class BodyTrace(Trace):
    """The recorder of one round: what comes from outside becomes an input of the program, and is not copied."""

    #: what to do where Python reads a value
    remedy = (
        "Inside a loop the number is another one in each round: where Python has to decide by it, write a plain Python "
        "loop, which a tape differentiates as it is"
    )

    def __init__(self, captures: Captures) -> None:
        super().__init__(abstract=True)
        self.captures = captures
        self._own: dict[int, Variable] = {}

    def _constant(self, captured: Any) -> Variable:  # type: ignore[override]
        number = self.captures.number(captured)
        if number not in self._own:
            self._own[number] = self._variable(aval_of(captured))
        return self._own[number]

    def _read(self, op: HostRead, value: Any) -> Any:
        try:
            return super()._read(op, value)
        except HostReadError as error:
            raise HostReadError(f"{error}. {self.remedy}", **error.payload) from None

    def round_program(self, outs: Sequence[Variable | Literal]) -> Program:
        """Return the program; its inputs are the counter, carries, given constants, and all that was captured."""
        captured = [
            self._own.get(number) or self._variable(aval_of(each)) for number, each in enumerate(self.captures.objects)
        ]
        return Program([*self.inputs, *captured], self.equations, outs, derivative=self.derivative)


def round_programs(recorders: Sequence[BodyTrace], outputs: Sequence[Sequence[Any]]) -> list[Program]:
    """Return the programs of recorders that share their captures, with the same inputs behind their own.

    An output may be a value from outside, so all are looked at before the first program is made.
    """
    outs = [[recorder.variable_of(out) for out in each] for recorder, each in zip(recorders, outputs, strict=True)]
    return [recorder.round_program(each) for recorder, each in zip(recorders, outs, strict=True)]


class Kind(NamedTuple):
    """What a loop is made of.

    `body(counter, carries, constants)` returns the leaves of the next carries with their structure, and a container of
    values; `condition` takes the same, and may be None. `names` are the paths of the carries, for messages.
    """

    what: str
    label: str
    body: Callable[[Any, list[Any], list[Any]], tuple[list[Any], tree.Structure, Any]]
    condition: Callable[[Any, list[Any], list[Any]], Any] | None
    structure: tree.Structure
    reverse: bool = False
    test: str = "before"
    max_steps: int | None = None
    checkpoint: Any = None


class Recorded(NamedTuple):
    """A loop that was recorded: its operands are starts, given constants and what was captured."""

    loop: Trimmed
    captured: list[Any]
    values: tree.Structure  # of the container of values

    def run(self, starts: Sequence[Any], constants: Sequence[Any], *count: Any, length: int | None = None) -> Any:
        """Run the loop; return the leaves of the last carries, and the container of stacked values."""
        outs = self.loop.run([*starts, *constants, *self.captured, *count], length)
        return outs[: len(starts)], tree.unflatten(self.values, outs[len(starts) :])


def flat_carry(init: Any, what: str) -> tuple[list[Any], tree.Structure]:
    """Return the leaves of a container of carries; raises `OperandTypeError` for one that is no array."""
    leaves, structure = tree.flatten(init)
    for position, leaf in enumerate(leaves):
        if not (isinstance(leaf, Value) or is_raw(leaf)) or not is_numeric(aval_of(leaf).dtype):
            path = structure.paths()[position]
            which = f"the carry{path and f' {path}'} is {type(leaf).__name__}, no array of numbers: {leaf!r:.60}"
            msg = f"{what}: {which}; close over it; {DECLARE}"
            raise OperandTypeError(msg, value=leaf)
    return leaves, structure


# ------------------------------------------------------------------ memory


class Memory(NamedTuple):
    """A recording that is remembered as long as what its functions hold; it keeps none of these objects alive."""

    made: Recorded
    captured: list[Callable[[], Any]]
    refs: list[Callable[[], Any]]
    read: tuple[Content, ...]

    @property
    def lives(self) -> bool:
        """Whether all that functions hold is still there."""
        return all(ref() is not None for ref in self.refs)

    def recalled(self) -> Recorded | None:
        """Return the recording, None where it holds no more."""
        captured = [get() for get in self.captured]
        return self.made._replace(captured=captured) if self.lives and is_as_read(self.read) else None


_memories: weakref.WeakKeyDictionary[Any, dict[Any, Memory]] = weakref.WeakKeyDictionary()


def recorded_loop(
    kind: Kind, functions: tuple[Callable[..., Any], ...], starts: Sequence[Any], constants: Sequence[Any], key: Any
) -> Recorded:
    """Return the loop of a user's functions, recorded anew where there is none for these arguments."""
    avals = tuple([aval_of(x) for x in starts]), tuple([aval_of(x) for x in constants])
    full = (kind.what, kind.structure, kind.reverse, kind.max_steps, kind.checkpoint, key, *avals)
    home = functions[-1]
    home = getattr(home, "__func__", home)
    try:
        known = _memories.setdefault(home, {})
        memory = known.get((full, held(functions)[0]))
    except TypeError:  # something in it has no hash, or there is too much
        return recorded_anew(kind, *avals)[0]
    found = None if memory is None else memory.recalled()
    if found is None:
        found, foreign = recorded_anew(kind, *avals)
        if not foreign:
            remember(known, full, functions, found)
    return found


def remember(known: dict[Any, Memory], key: Any, functions: tuple[Callable[..., Any], ...], made: Recorded) -> None:
    """Remember a recording by what its functions hold now, which a body may have changed: a counter, say."""
    try:
        name, refs = held(functions)
    except TypeError:  # too much
        return
    for each in [each for each, memory in list(known.items()) if not memory.lives]:
        known.pop(each, None)
    while len(known) >= MOST:
        known.pop(next(iter(known)))
    captured = references(made.captured, refs)
    known[key, name] = Memory(made._replace(captured=[]), captured, refs, contents_read(refs, made.captured))


# ------------------------------------------------------------------ recording


def recorded_anew(kind: Kind, carries: tuple[Aval, ...], constants: tuple[Aval, ...]) -> tuple[Recorded, bool]:
    """Record a loop; return it, and whether it captures values of active layers."""
    count = len(carries)
    while True:
        captures = Captures()
        with BodyTrace(captures) as body:
            inputs = [body.input(COUNTER), *[body.input(aval) for aval in (*carries, *constants)]]
            nexts, structure, values = kind.body(inputs[0], inputs[1 : 1 + count], inputs[1 + count :])
            check_structure(kind, structure)
            nexts = [in_dtype(x, aval) for x, aval in zip(nexts, carries, strict=True)]
        fixed = [out is x for out, x in zip(nexts, inputs[1 : 1 + count], strict=True)]
        settled = tuple([
            settle(kind, n, aval, out, fixed=fixed[n])
            for n, (aval, out) in enumerate(zip(carries, nexts, strict=True))
        ])  # fmt: skip
        if settled == carries:  # nothing but Python numbers is left to decide
            settled = tuple([aval if each else strong(aval) for aval, each in zip(carries, fixed, strict=True)])
        if settled == carries:
            break
        carries = settled
    leaves, value_structure = tree.flatten(values)
    check_values(kind, leaves, value_structure)
    test = None
    if kind.condition is not None:
        with BodyTrace(captures) as test:
            inputs = [test.input(COUNTER), *[test.input(aval) for aval in (*carries, *constants)]]
            holds = kind.condition(inputs[0], inputs[1 : 1 + count], inputs[1 + count :])
            check_condition(kind, holds)
    recorders, given = ([body], []) if test is None else ([body, test], [[holds]])
    programs = round_programs(recorders, [[*nexts, *leaves], *given])
    loop = Loop(
        body=programs[0],
        condition=programs[1] if programs[1:] else None,
        carries=count,
        constants=len(constants) + len(captures.objects),
        outputs=(*[Last(n) for n in range(count)], *[All(n) for n in range(len(leaves))]),
        test=kind.test,
        reverse=kind.reverse,
        max_steps=kind.max_steps,
        checkpoint=kind.checkpoint,
        label=kind.label,
    )
    foreign = body.foreign or (test is not None and test.foreign)
    return Recorded(shared(trimmed(loop)), captures.objects, value_structure), foreign


def in_dtype(x: Any, aval: Aval) -> Any:
    """Return a Python number that a body gives for a carry as a number of the carry's dtype, where it fits."""
    have = aval_of(x) if isinstance(x, Value) or is_raw(x) else None
    if have is None or not have.weak or aval.weak or not promotes(have, aval):
        return x
    return aval.dtype.type(x) if type(x) in SCALAR_TYPES else astype(x, aval.dtype)


KINDS = "biufc"


def promotes(have: Aval, want: Aval) -> bool:
    """Whether a Python number may become an array of another dtype."""
    return have.shape == want.shape and KINDS.index(have.dtype.kind) <= KINDS.index(want.dtype.kind)


def settle(kind: Kind, number: int, aval: Aval, out: Any, *, fixed: bool) -> Aval:
    """Return the aval of a carry for the next recording; raises where the body changes it."""
    if not (isinstance(out, Value) or is_raw(out)):
        refuse(kind, number, f"the body returns {type(out).__name__} for it, no array: {out!r:.60}", OperandTypeError)
    found = aval_of(out)
    if aval.weak:
        if fixed or (found.weak and promotes(found, aval)):
            return aval
        if promotes(aval, found):
            return found
    if len(aval.shape) != len(found.shape) or any(
        n is not None and m is not None and n != m for n, m in zip(aval.shape, found.shape, strict=True)
    ):
        refuse(kind, number, f"its shape is {aval.shape}, and the body returns {found.shape}", ShapeError)
    if found.dtype != aval.dtype:
        cast = f"start with .astype({found.dtype.name!r}), or return x.astype({aval.dtype.name!r})"
        refuse(kind, number, f"its dtype is {aval.dtype}, and the body returns {found.dtype}; {cast}", DtypeError)
    shape = tuple([None if m is None else n for n, m in zip(aval.shape, found.shape, strict=True)])
    return Aval(shape, aval.dtype)


def refuse(kind: Kind, number: int, said: str, error: type[Exception]) -> NoReturn:
    """Raise for a carry, by its path."""
    path = kind.structure.paths()[number]
    raise error(f"{kind.what}: the carry{path and f' {path}'} must stay as it is: {said}")


def check_structure(kind: Kind, structure: tree.Structure) -> None:
    """Raise `OperandTypeError` where the next carries have another structure."""
    if structure != kind.structure:
        msg = f"{kind.what}: the carry has structure {kind.structure}, and the body returns {structure}"
        raise OperandTypeError(msg)


def check_values(kind: Kind, leaves: Sequence[Any], structure: tree.Structure) -> None:
    """Raise `OperandTypeError` for a value that is no array."""
    for leaf, path in zip(leaves, structure.paths(), strict=True):
        if not (isinstance(leaf, Value) or is_raw(leaf)):
            msg = f"{kind.what}: the output{path and f' {path}'} is {type(leaf).__name__}, no array: {leaf!r:.60}"
            raise OperandTypeError(msg, value=leaf)


def check_condition(kind: Kind, holds: Any) -> None:
    """Raise `OperandTypeError` where a condition gives no single truth value."""
    remedy = "return one boolean, e.g. xnp.any(...)"
    if not is_truth(holds):
        array = isinstance(holds, Value) or is_raw(holds)
        shown = repr(strong(aval_of(holds))) if array else type(holds).__name__
        msg = f"{kind.what}: the condition returns {shown}, no boolean; {remedy}"
        raise OperandTypeError(msg, value=holds)


def is_truth(holds: Any) -> bool:
    """Whether a value is a single boolean."""
    if not (isinstance(holds, Value) or is_raw(holds)):
        return False
    aval = aval_of(holds)
    return aval.shape == () and aval.dtype == np.dtype(bool)
