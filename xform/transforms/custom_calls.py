"""What a custom function and its rules do, on flat lists of arrays.

Whatever a user's function returns is checked here: structure, count, shape and dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, NoReturn, Protocol

import attrs

from xform import tree
from xform.core.aval import Aval
from xform.core.backend import HOST_TYPES
from xform.core.errors import EscapedValueError, RuleError, TreeError
from xform.ops.create import zeros_like
from xform.programs.program import copied
from xform.transforms.operands import is_bare, taken_in
from xform.transforms.recording import is_inexact
from xform.transforms.rule_checks import fitted_part, is_array

__all__ = ["Arrays", "Call", "Definition", "Recipe", "Saved", "running"]

Arrays = Sequence[Any]


class Saved(NamedTuple):
    """Residuals: their arrays, which layers below know, and how to put them together again.

    `opaque` says that `layout` holds objects (a pullback, say) which may hold values of layers below themselves.
    """

    arrays: list[Any]
    layout: Any
    opaque: bool


class Recipe(Protocol):
    """A custom function on flat lists of arrays, with the rules it has.

    `ruled` says of outputs that a rule took them from the function itself, so that they have its derivatives already.
    """

    @property
    def definition(self) -> Definition:
        """What the user wrote."""

    @property
    def placed(self) -> bool:
        """Whether the functions run under a layer of their own."""

    def call(self, xs: Arrays) -> list[Any]:
        """Return the outputs."""

    def forward(self, xs: Arrays) -> tuple[list[Any], Saved, bool]:
        """Return outputs, residuals, and whether the outputs are ruled."""

    def backward(self, saved: Saved, cotangents: Arrays, likes: Sequence[Aval]) -> list[Any]:
        """Return a cotangent, or None, per input; `likes` are the inputs' avals."""

    def push(self, xs: Arrays, tangents: Arrays) -> tuple[list[Any], list[Any], bool]:
        """Return outputs, a tangent or None for each, and whether the outputs are ruled."""


# ------------------------------------------------------------------ what the user wrote


@attrs.define(eq=False)
class Definition:
    """A function and its rules, as the user gave them; without `fun` the outputs of `forward` are the function's."""

    kind: str
    name: str
    fun: Callable[..., Any] | None
    forward: Callable[..., Any] | None = None
    backward: Callable[..., Any] | None = None
    tangent: Callable[..., Any] | None = None
    origin: Definition | None = None  # that this one is a copy of, with variables as they were

    @property
    def identity(self) -> Definition:
        """The definition that all copies share."""
        return self.origin or self

    @property
    def fills_zeros(self) -> bool:
        """Whether the reverse rule gets zeros for outputs that nothing used; else None."""
        return self.kind != "custom_gradient"

    @property
    def label(self) -> str:
        """The function's name, as it appears in messages, profiles and programs."""
        return f"{self.kind.title().replace('_', '')}[{self.name}]"

    def rule_name(self, which: str) -> str:
        """Return the name of a rule, for messages."""
        if self.kind == "custom_gradient" and which != "tangent":
            return which
        shown = {"forward": "fwd", "backward": "bwd", "tangent": "jvp"}[which]
        return f"its {shown} rule {getattr(getattr(self, which), '__name__', 'of no name')}"


@attrs.define(eq=False)
class Running:
    """A rule that runs, of which function, and what that function gave when the rule called it."""

    definition: Definition
    outer: Running | None
    given: list[Any] = attrs.field(factory=list)

    def gave(self, outs: Sequence[Any]) -> bool:
        """Whether outputs of the rule are what the function itself gave to it."""
        return bool(self.given) and all(any(out is each for each in self.given) for out in outs)

    def note(self, definition: Definition, outs: Sequence[Any]) -> None:
        """Remember what a custom function gave to a rule of its own."""
        at: Running | None = self
        while at is not None:
            if at.definition.identity is definition.identity:
                at.given.extend(outs)
            at = at.outer


#: the rule that runs
running: ContextVar[Running | None] = ContextVar("xform custom rule", default=None)


# ------------------------------------------------------------------ one call


@attrs.define(eq=False)
class Call:
    """One call: the structure of the arguments, and those that are not differentiated, by position."""

    definition: Definition
    structure: tree.Structure
    positions: tuple[int, ...]
    fixed: tuple[tuple[int, Any], ...]
    outputs: tree.Structure | None = None
    placed = False

    def call(self, xs: Arrays) -> list[Any]:
        """Run the function itself."""
        fun = self.definition.fun
        if fun is None:
            return self.forward(xs)[0]
        return self._outputs(self._run("it", fun, *self._arguments(xs)), "it")

    def forward(self, xs: Arrays) -> tuple[list[Any], Saved, bool]:
        """Run the first half of the reverse rule."""
        rule, arguments = self.definition.rule_name("forward"), self._arguments(xs)
        if self.definition.fun is None:  # which may write into its arguments
            arguments = tree.map(copied, arguments)
        found, frame = self._rule(rule, self.definition.forward, *arguments)
        out, residuals = self._pair(found, rule, "(outs, residuals)")
        outs = self._outputs(out, rule)
        return outs, saved_of(residuals), frame.gave(outs)

    def backward(self, saved: Saved, cotangents: Arrays, likes: Sequence[Aval]) -> list[Any]:
        """Run the second half of the reverse rule."""
        rule = self.definition.rule_name("backward")
        assert self.outputs is not None  # noqa: S101  (the first half has run)
        cotangent, count = tree.unflatten(self.outputs, list(cotangents)), len(self.positions)
        each = self.definition.fun is None  # gets the cotangents of several outputs one by one
        given = cotangent if each and isinstance(cotangent, tuple | list) else (cotangent,)
        found, _ = self._rule(rule, self.definition.backward, *self._fixed(), residuals_of(saved), *given)
        if each and count == 1 and not isinstance(found, tuple | list):
            found = (found,)
        if not isinstance(found, tuple | list) or len(found) != count:
            got = f"{len(found)} cotangents" if isinstance(found, tuple | list) else type(found).__name__
            self._refuse(f"{rule} must return a tuple of {count}, one cotangent or None per input; got {got}")
        return self._cotangents(found, likes, rule)

    def push(self, xs: Arrays, tangents: Arrays) -> tuple[list[Any], list[Any], bool]:
        """Run the forward rule; it gets zeros for inputs that do not vary, and None for those of integers."""
        rule = self.definition.rule_name("tangent")
        full = [zeros_like(x) if t is None and is_inexact(x) else t for x, t in zip(xs, tangents, strict=True)]
        both = [tuple(tree.unflatten(self.structure, list(each))) for each in (xs, full)]
        found, frame = self._rule(rule, self.definition.tangent, *self._fixed(), *both)
        out, tangent = self._pair(found, rule, "(out, tangent_out)")
        outs = self._outputs(out, rule)
        assert self.outputs is not None  # noqa: S101  (they have been noted)
        parts = self._parts(self.outputs, tangent, f"{rule} returned a tangent that does not fit its output")
        paths = self.outputs.paths()
        fitted = [
            self._fit(part, each, f"{rule} returned for output{path and f' {path}'}", "tangent", exact=True)
            for part, each, path in zip(parts, outs, paths, strict=True)
        ]
        return outs, fitted, frame.gave(outs)

    # -------------------------------------------------------------- what goes in

    def _arguments(self, xs: Arrays) -> list[Any]:
        arguments = list(tree.unflatten(self.structure, list(xs)))
        for position, value in self.fixed:
            arguments.insert(position, value)
        return arguments

    def _fixed(self) -> list[Any]:
        return [value for _, value in self.fixed]

    def _run(self, rule: str, fun: Any, *arguments: Any) -> Any:
        try:
            return fun(*arguments)
        except EscapedValueError as error:
            if getattr(error, "rule", None) is not None:  # said already, by a custom function inside
                raise
            raise self._closed_over(rule, error) from error

    def _rule(self, rule: str, fun: Any, *arguments: Any) -> tuple[Any, Running]:
        frame = Running(self.definition, running.get())
        token = running.set(frame)
        try:
            return self._run(rule, fun, *arguments), frame
        finally:
            running.reset(token)

    def _closed_over(self, rule: str, error: EscapedValueError) -> EscapedValueError:
        """Make the error for a tracked value that a user's function takes from around it."""
        msg = (
            f"{self.definition.label}: {rule} uses {getattr(error, 'value', 'a tracked value')!r} from outside, where "
            f"its layer does not reach: a value that is tracked must be an argument of the function, with a cotangent "
            f"(or None) of its own. {error}"
        )
        return EscapedValueError(msg, **{**error.payload, "rule": rule})

    # -------------------------------------------------------------- what comes out

    def _refuse(self, said: str) -> NoReturn:
        raise RuleError(f"{self.definition.label}: {said}", definition=self.definition)

    def _pair(self, found: Any, rule: str, wanted: str) -> tuple[Any, Any]:
        if not isinstance(found, tuple) or len(found) != 2:
            got = f"a tuple of {len(found)}" if isinstance(found, tuple) else type(found).__name__
            self._refuse(f"{rule} must return {wanted}, got {got}")
        return found

    def _outputs(self, out: Any, rule: str) -> list[Any]:
        leaves, structure = tree.flatten(out)
        for position, leaf in enumerate(leaves):
            if not is_array(leaf):
                path = structure.paths()[position]
                self._refuse(f"output{path and f' {path}'} of {rule} is {type(leaf).__name__}, no array")
        if self.outputs is None:
            self.outputs = structure
        elif structure != self.outputs:
            self._refuse(f"{rule} gives outputs of structure {structure}, but {self.outputs} was given before")
        bare = is_bare(None)
        return [leaf if bare and type(leaf) in HOST_TYPES else taken_in(leaf, bare=bare) for leaf in leaves]

    def _cotangents(self, found: Sequence[Any], likes: Sequence[Aval], rule: str) -> list[Any]:
        parts: list[Any] = []
        names: list[str] = []
        for position, part, structure in zip(self.positions, found, self.structure.children, strict=True):
            where = f"{rule} returned for argument {position} a cotangent that does not fit it"
            parts += self._parts(structure, part, where)
            names += [f"{position}{path}" for path in structure.paths()]
        return [
            self._fit(part, like, f"{rule} returned for argument {name}", "cotangent")
            for part, like, name in zip(parts, likes, names, strict=True)
        ]

    def _parts(self, structure: tree.Structure, given: Any, wrong: str) -> list[Any]:
        """Return what stands for each leaf; a None stands for all leaves below it."""
        if structure.container is None:
            return [given]
        entries, prefix = tree.flatten(given, is_leaf=lambda node: node is None)
        if prefix == structure:
            return entries
        try:
            places = tree.flatten_up_to(prefix, tree.unflatten(structure, list(range(structure.num_leaves))))
        except TreeError as error:
            self._refuse(f"{wrong}: {prefix} for {structure} ({error})")
        parts: list[Any] = []
        for entry, place in zip(entries, places, strict=True):
            if entry is None:
                parts += [None] * len(tree.leaves(place))
            elif type(place) is int:
                parts.append(entry)
            else:
                self._refuse(f"{wrong}: {prefix} for {structure}")
        return parts

    def _fit(self, part: Any, like: Any, wrong: str, kind: str, *, exact: bool = False) -> Any:
        if part is None or not is_inexact(like):
            return None
        return fitted_part(part, like, f"{self.definition.label}: {wrong}", kind, exact=exact)


def saved_of(residuals: Any) -> Saved:
    """Take residuals apart: arrays on one side, containers and all else on the other."""
    leaves, structure = tree.flatten(residuals)
    others = [None if is_array(leaf) else (leaf,) for leaf in leaves]
    opaque = any(others)
    arrays = [leaf for leaf, other in zip(leaves, others, strict=True) if other is None] if opaque else leaves
    return Saved(arrays, (structure, others), opaque)


def residuals_of(saved: Saved) -> Any:
    """Put residuals together."""
    structure, others = saved.layout
    arrays = iter(saved.arrays)
    return tree.unflatten(structure, [next(arrays) if other is None else other[0] for other in others])
