"""The stack: `apply`, and the layers that interpret.

1. `apply(op, *values)` hands the operation to the top of the stack, the layer that was activated last.
2. While a layer interprets, the cursor stands one lower: what it applies goes to the layer below.
3. The bottom computes on raw arrays.
4. The stack is an immutable chain of `Level`s in a `ContextVar`; nothing about a push is stored on the layer, so one
   layer may be in use in several threads.
5. Raw in, raw out: a result is tracked only where an operand is, or where a recorder owns it.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, Self

from xform.core.bottom import evaluate
from xform.core.errors import LayerError, LayerOrderError, RuleError
from xform.core.functions import is_coroutine, refuse_generator
from xform.core.operator import Operator
from xform.core.place import place
from xform.core.source import describe, hidden, hide_frames, install_hook, refuse_yield, user_site, warn_user
from xform.core.value import Value

__all__ = [
    "BOTTOM", "EFFECTS", "Level", "Transformation", "apply", "carry", "concrete", "cursor", "is_watched", "makers",
    "on_empty_stack", "stack",
]  # fmt: skip

__tracebackhide__ = hidden

Interpret = Callable[[Operator, tuple[Any, ...]], Any]
#: what layers do to values
EFFECTS = ("observes", "faithful", "rewrites", "wraps")


def apply(op: Operator, *values: Any) -> Any:
    """Send an operation to the top of the current stack.

    Takes raw arrays of any library, Python numbers and values; returns one value, or a tuple for an operator with
    several outputs. Raises what the layers and the operator raise; the stack is then as before.

    >>> import numpy as np, xform as xf
    >>> xf.apply(xf.ops.Sin(), np.zeros(2))
    array([0., 0.])
    """
    return _get().interpret(op, values)


class Transformation:
    """Base of all layers; a user's own layer writes `interpret` and is done.

    1. `interpret(op, values)` runs with the cursor one level lower; the simplest is `return xf.apply(op, *values)`.
    2. A layer is a context manager and a decorator.
    3. `effect` says what the layer does to values: `"observes"`, `"faithful"` (other operations, the same values),
       `"rewrites"` (other values) or `"wraps"` (values of its own). A layer that rewrites is refused below one that
       differentiates: the derivative would be of the wrong function.
    4. `above` and `below` name layers (by class name) that must not stand on the other side.

    >>> import xform as xf, xform.numpy as xnp
    >>> class CosForSin(xf.Transformation):
    ...     def interpret(self, op, values):
    ...         return xf.apply(xf.ops.Cos() if op == xf.ops.Sin() else op, *values)
    >>> with CosForSin():
    ...     print(float(xnp.sin(0.0)))
    1.0
    """

    effect: ClassVar[str] = "rewrites"
    above: ClassVar[tuple[str, ...]] = ()
    below: ClassVar[tuple[str, ...]] = ()
    #: effects that may not stand below this layer
    refuses: ClassVar[tuple[str, ...]] = ()
    #: whether operations are recorded for a replay
    records: ClassVar[bool] = False
    #: of a layer that records: the class of a layer above it that refuses others below, as its replays must
    derivative: str | None = None
    #: whether scopes and lines of operations matter to it; a layer that differentiates only sends on what it is told
    watches: ClassVar[bool] = True
    #: whether values of this layer can only be read any more
    ended: bool = False
    __tree_leaf__ = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_words(cls, cls.__name__)
        code = getattr(vars(cls).get("interpret"), "__code__", None)
        if code is not None and code.co_argcount != 3:
            msg = f"{cls.__name__}.interpret must be interpret(self, op, values), where values is a tuple"
            raise LayerError(msg, layer=cls)

    def interpret(self, op: Operator, values: tuple[Any, ...]) -> Any:
        """Give the operation its meaning; operations sent from here go to the layer below."""
        msg = f"{type(self).__name__} must define interpret(self, op, values)"
        raise NotImplementedError(msg)

    def bind(self, below: Level) -> Interpret:
        """Return the function that interprets above `below`; built-in hot layers override this."""
        interpret = self.interpret
        name = type(self).__name__

        def run(op: Operator, values: tuple[Any, ...]) -> Any:
            if op.nests:
                op = op.within(self)
                if not self.takes(op):
                    token = _set(self.place_on(below))  # no name of `run` in itself: that would be a cycle
                    try:
                        out = op.stepped(values)
                    finally:
                        _reset(token)
                    if out is not NotImplemented:
                        return out
            token = _set(below)
            try:
                out = interpret(op, values)
            finally:
                _reset(token)  # 40 ns less than to get and set what was there
            if out is None or (op.multiple_outputs and not isinstance(out, tuple)):
                got = "None" if out is None else f"one {type(out).__name__}"
                wanted = "a tuple of its results" if op.multiple_outputs else "a value"
                msg = f"{name}.interpret returned {got} for {op!r}; return xf.apply(op, *values), or {wanted}"
                raise RuleError(msg, op=op, layer=self)
            return out

        return run

    def takes(self, op: Operator) -> bool:
        """Whether `interpret` knows what to do with an operator that holds Programs, a loop say.

        A layer that wraps values and has no rule for it is given the operations of its rounds, one after the other.
        """
        return self.effect != "wraps"

    def place_on(self, below: Level) -> Level:
        """Return the level of this layer on top of `below`."""
        return Level(self, below, self.bind(below))

    def unwrap(self, value: Any) -> Any:
        """Return the value as the layer below knows it."""
        return value.data if isinstance(value, Value) and value.owner is self else value

    def rewrap(self, value: Any, data: Any) -> Any:
        """Return a value of this layer with other data below, and the same link to the layer."""
        rewrapped = copy.copy(value)
        rewrapped.data = data
        return rewrapped

    def handed_out(self, results: Any, by: str) -> None:
        """Learn that a user gets plain values of this layer from the operator `by`: a tape may hold the same arrays."""

    def on_register(self) -> None:
        """Run when the layer is pushed, with the cursor below it."""

    def on_unregister(self) -> None:
        """Run when the layer was popped; an exception here does not stop the pop."""

    def __enter__(self) -> Self:
        push(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            hide_frames(error)
        pop(self)

    def __call__(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a function: array leaves of its arguments are lifted, its results lowered."""
        return decorate(self, fun)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


# ------------------------------------------------------------------ places


class Level:
    """A place in the stack: a layer, what stands below it, and the function that interprets there.

    `unary(op, x)` and `binary(op, x, y)` are the same function without the tuple of operands; a hot layer gives its own
    (W1 value and gradient: 0.28 x hand-written NumPy).
    """

    __slots__ = ("below", "binary", "interpret", "layer", "unary")

    def __init__(
        self,
        layer: Transformation | None,
        below: Level | None,
        interpret: Interpret,
        unary: Callable[[Operator, Any], Any] | None = None,
        binary: Callable[[Operator, Any, Any], Any] | None = None,
    ) -> None:
        self.layer = layer
        self.below = below
        self.interpret = interpret
        self.unary = unary or (lambda op, x: interpret(op, (x,)))
        self.binary = binary or (lambda op, x, y: interpret(op, (x, y)))

    def topped(self, layer: Transformation) -> Level:
        """Return the level of a layer that is pushed on top of this one."""
        return layer.place_on(self)


BOTTOM = Level(None, None, evaluate)

#: the current place; `default` makes `get` unable to fail
cursor: ContextVar[Level] = ContextVar("xform stack", default=BOTTOM)
_get = cursor.get
_set = cursor.set
_reset = cursor.reset


# ------------------------------------------------------------------ push, pop, look


def levels(level: Level | None = None) -> list[Level]:
    """Return the levels from the given one (default: the cursor) down to, not including, the bottom."""
    found = []
    at: Level = _get() if level is None else level
    while at.below is not None:
        found.append(at)
        at = at.below
    return found


def is_watched(level: Level | None = None) -> bool:
    """Whether at a place, or below it, something sees scopes and lines: telling them costs 10 us an operation."""
    at: Level | None = _get() if level is None else level
    while at is not None and at.layer is not None:
        if at.layer.watches:
            return True
        at = at.below
    return False


def on_empty_stack(fun: Callable[..., Any], *args: Any) -> Any:
    """Call a function on an empty stack."""
    here = _get()
    _set(BOTTOM)
    try:
        return fun(*args)
    finally:
        _set(here)


def stack() -> tuple[Transformation, ...]:
    """Return the active layers, top first.

    >>> import xform as xf
    >>> with xf.Profile() as profile, xf.named_scope("a"):
    ...     xf.stack() == (profile,)
    True
    """
    return tuple(level.layer for level in levels() if level.layer is not None)


def push(layer: Transformation) -> Level:
    """Push a layer on top of the current stack; raises `LayerError` where it may not stand."""
    refuse_yield(layer, sys._getframe(2))  # noqa: SLF001  (who runs `with layer:`)
    below = _get()
    check_place(layer, below)
    try:
        layer.on_register()
    finally:
        _set(below)  # a layer that was entered there would stay
    level = below.topped(layer)
    _set(level)
    return level


def check_words(layer: Any, name: str) -> None:
    """Raise `LayerError` for an unknown effect: a check that looks for another word would not find it, in silence."""
    for attribute, words in (("effect", (layer.effect,)), ("refuses", layer.refuses)):
        if isinstance(words, str) or not set(words) <= set(EFFECTS):
            wanted = "one of " if attribute == "effect" else "a tuple of "
            wanted += ", ".join(map(repr, EFFECTS))
            msg = f"{name}.{attribute} is {getattr(layer, attribute)!r}; it must be {wanted}"
            raise LayerError(msg, layer=layer)
    for attribute in ("above", "below"):
        if isinstance(getattr(layer, attribute), str):
            msg = f"{name}.{attribute} must be a tuple of names of layers, got {getattr(layer, attribute)!r}"
            raise LayerError(msg, layer=layer)


def check_place(layer: Transformation, below: Level) -> None:
    """Raise `LayerError` where `layer` may not stand on top of `below`."""
    name = type(layer).__name__
    if layer.effect not in EFFECTS:
        check_words(layer, name)
    for other in [level.layer for level in levels(below) if level.layer is not None]:
        if other is layer:
            msg = f"{layer!r} is on this stack already; make another {name}() for a second one"
            raise LayerError(msg, layer=layer)
        check_below(layer, other)
        if type(other).__name__ in layer.below or name in other.above:
            msg = f"{layer!r} must stand below {other!r}: enter it first"
            raise LayerError(msg, layer=layer, other=other)


def check_below(layer: Transformation, other: Transformation) -> None:
    """Raise where `layer` refuses a layer below it; tell one that records, whose replays must refuse the same."""
    if other.effect in layer.refuses:
        refuse_rewriter(layer, other)
    if layer.refuses and other.records:
        other.derivative = type(layer).__name__


def refuse_rewriter(layer: Transformation, other: Transformation) -> None:
    """Raise for a layer that rewrites below one that differentiates."""
    name, other_name = type(layer).__name__, type(other).__name__
    words = {"Forward": ("jvp", "take", "derivatives"), "Batch": ("vmap", "take", "lanes")}
    call, take, wrong = words.get(name, ("grad", "record", "derivatives"))
    msg = (
        f"{other!r} rewrites values below {layer!r}, which would {take} the operations as they were before the "
        f"rewriting: {wrong} would be of the wrong function. Decorate the function instead, so that {other_name} "
        f"stands above {name}: {call}(layer(f)) with layer = {other_name}()"
    )
    raise LayerError(msg, layer=layer, other=other)


def check_rewriters(layer: Transformation) -> None:
    """Raise `LayerError` when the current stack holds a layer that `layer` refuses to compute above."""
    for level in levels():
        if level.layer is not None and level.layer is not layer:
            check_below(layer, level.layer)


def pop(layer: Transformation) -> None:
    """Leave a layer: the stack becomes what was below it, whatever was raised."""
    at = _get()
    if at.layer is layer:
        assert at.below is not None  # noqa: S101  (only the bottom has none, and it has no layer)
        _set(at.below)
        _unregister(layer)
        return
    for level in levels():
        if level.layer is layer and level.below is not None:
            _set(level.below)
            _unregister(layer)
            msg = f"{layer!r} was left while {at.layer!r} stood above it; leave layers in reverse order of entering"
            raise LayerOrderError(msg, layer=layer, other=at.layer)
    msg = f"{layer!r} was left, but it is not on this stack (line {describe(user_site())})"
    raise LayerOrderError(msg, layer=layer)


def _unregister(layer: Transformation) -> None:
    try:
        layer.on_unregister()
    except Exception as error:  # noqa: BLE001  (it must never stop the pop)
        warn_user(f"{layer!r}.on_unregister raised {error!r}")


def carry(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Bind a function to the current stack, for a thread pool or a task.

    >>> import threading, numpy as np, xform as xf
    >>> with xf.Profile() as profile:
    ...     work = xf.carry(lambda: xf.array(1.0) + 1.0)
    ...     thread = threading.Thread(target=work); thread.start(); thread.join()
    >>> profile.calls("Add")
    1
    """
    refuse_generator(fun, "xf.carry")
    level, here = _get(), place.get()

    @contextmanager
    def there() -> Iterator[None]:
        before, was = _get(), place.get()
        _set(level)
        place.set(here)
        try:
            yield
        finally:
            _set(before)
            place.set(was)

    if is_coroutine(fun):

        @functools.wraps(fun)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with there():
                return await fun(*args, **kwargs)

        return awaited

    @functools.wraps(fun)
    def carried(*args: Any, **kwargs: Any) -> Any:
        with there():
            return fun(*args, **kwargs)

    return carried


def concrete(value: Any) -> Any:
    """Peel a value to the raw array beneath, or give None where there is none (an abstract value).

    >>> import xform as xf
    >>> xf.concrete(xf.array(2.0))
    2.0
    """
    while isinstance(value, Value):
        value = value.data
    return value


#: what the core needs of modules above it: "decorate" of `xform.layers`, "observe" of `xform.ops.structural`
makers: dict[str, Callable[..., Any]] = {}


def set_maker(name: str, make: Callable[..., Any]) -> None:
    """Install what stands above the core: `decorate(layer, fun)`, and `observe(observer, op, count)`."""
    makers[name] = make


def decorate(layer: Transformation, fun: Callable[..., Any]) -> Callable[..., Any]:
    """Make `layer(fun)`."""
    return makers["decorate"](layer, fun)  # type: ignore[no-any-return]


install_hook()
