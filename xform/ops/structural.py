"""Operators that carry structure rather than numbers: scopes, names, blocked gradients, reads by the host."""

from __future__ import annotations

import functools
import string
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import attrs
import numpy as np

from xform import tree
from xform.core.aval import Aval, aval_of
from xform.core.bases import Observer
from xform.core.devices import to_host
from xform.core.errors import HostReadError
from xform.core.functions import is_coroutine, refuse_generator, refuse_lazy, require_function
from xform.core.operator import Operator
from xform.core.place import Place, place
from xform.core.rules import batch_rule, jvp_rule, linear, vjp_rule
from xform.core.source import describe, refuse_yield, user_site
from xform.core.stack import BOTTOM, apply, cursor, set_maker
from xform.core.value import Value
from xform.ops.base import Parameterless

__all__ = [
    "HostRead",
    "Identity",
    "Name",
    "Observe",
    "PopScope",
    "Print",
    "PushScope",
    "StopGradient",
    "identity",
    "name",
    "named_scope",
    "refuse_tracked",
    "scoped",
    "stop_gradient",
]


@attrs.frozen
class PushScope(Operator):
    """Opens a named scope; it has no operands, and its result means nothing."""

    scope: str
    attribute_like = True
    impure = True

    def infer(self) -> Aval:
        """A placeholder."""
        return aval_of(0)

    def evaluate(self, xp: Any) -> int:
        """Do nothing: scopes matter to layers."""
        return 0


@attrs.frozen
class PopScope(PushScope):
    """Closes a named scope."""


@attrs.frozen(eq=False)
class Observe(Operator):
    """Tells an observer of an operation in a program: the operands are its inputs and outputs; it has no result."""

    observer: Observer
    op: Operator
    count: int
    attribute_like = True
    impure = True
    multiple_outputs = True
    observes = True
    crosses_devices = True

    def infer(self, *avals: Aval) -> tuple[Aval, ...]:
        """Nothing comes out."""
        return ()

    def evaluate(self, xp: Any, *arrays: Any) -> tuple[Any, ...]:
        """Call the observer's hooks, one after the other: the operation has been computed already."""
        inputs, outputs = arrays[: self.count], arrays[self.count :]
        self.observer.told(self.op, inputs, outputs if self.op.multiple_outputs else outputs[0])
        return ()


set_maker("observe", Observe)


class ElementFormatter(string.Formatter):
    """Formats an array element by element, so that `{:.2f}` holds for a number and for a batch of numbers."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """Return one field of a template as text."""
        if format_spec and isinstance(value, np.ndarray) and value.ndim:
            return np.array2string(value, formatter={"all": lambda each: format(each, format_spec)})
        return str(super().format_field(value, format_spec))


@attrs.frozen
class Print(Operator):
    """Prints a template, filled with its operands in a container of arguments and keywords; it has no result."""

    template: str
    structure: tree.Structure
    attribute_like = True
    impure = True
    multiple_outputs = True
    observes = True
    crosses_devices = True

    def infer(self, *avals: Aval) -> tuple[Aval, ...]:
        """Nothing comes out."""
        return ()

    def evaluate(self, xp: Any, *arrays: Any) -> tuple[Any, ...]:
        """Print the numbers."""
        args, kwargs = tree.unflatten(self.structure, [to_host(x) if hasattr(x, "dtype") else x for x in arrays])
        sys.stdout.write(ElementFormatter().vformat(self.template, args, kwargs) + "\n")
        return ()


class Identity(Parameterless):
    """The operand itself, as another value."""

    def infer(self, x: Aval) -> Aval:
        """The operand's."""
        return x

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Return the operand."""
        return x


linear(Identity, lambda op, t, x: t)


@attrs.frozen
class Name(Operator):
    """The operand itself, under a name that a checkpoint policy or a program can refer to."""

    label: str
    identity_like = True

    def infer(self, x: Aval) -> Aval:
        """The operand's."""
        return x

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Return the operand."""
        return x


linear(Name, lambda op, t, x: t)


class StopGradient(Parameterless):
    """The operand as a constant: no derivative passes, on any tape below either."""

    peels = True

    def infer(self, x: Aval) -> Aval:
        """The operand's."""
        return x

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Return the operand."""
        return x


vjp_rule.none(StopGradient, why="it stops gradients on purpose")
jvp_rule.none(StopGradient, why="it stops tangents on purpose")


@batch_rule(Identity, Name, StopGradient)
def identity_batch(op: Operator, size: int, values: tuple[Any, ...], axes: tuple[Any, ...]) -> tuple[Any, Any]:
    """The operator itself, on the whole batch."""
    return apply(op, *values), axes[0]


_REMEDIES = {
    "float": "float(xf.stop_gradient(v)) for the number alone, np.exp, np.sqrt, ... in place of math.*, x.at[i].set(v) "
    "or xf.buffer in place of a[i] = v",
    "complex": "complex(xf.stop_gradient(v)) for the number alone",
    "item": "xf.stop_gradient(v).item() for the number alone",
    "asarray": "np.stack([...]), xnp.array([...]) or xnp.full(shape, v) to build arrays of values (xnp: xform.numpy), "
    "np.asarray(xf.stop_gradient(v)) for the numbers alone, x.at[i].set(v) or xf.buffer in place of a[i] = v",
    "to_numpy": "xf.to_numpy(xf.stop_gradient(v)) for the numbers alone",
}


@attrs.frozen
class HostRead(Operator):
    """Reads a value on the host.

    `kind` is "bool", "int", "index", "float", "complex", "item", "shape", "asarray", "to_numpy" or "print"; a shape is
    read where an abstract look at the program does not tell it.
    """

    kind: str
    attribute_like = True
    peels = True

    def infer(self, x: Aval) -> Aval:
        """A host read needs the data: an abstract value has none."""
        msg = (
            f"{self.kind}() of an abstract value {x!r} at {describe(user_site())}: it has no data. "
            "Use xf.where(cond, a, b) or xf.cond(pred, true_fun, false_fun, x) in place of if, and xf.eval_shape or "
            "x.shape for sizes"
        )
        raise HostReadError(msg, kind=self.kind)

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Return the Python object."""
        if self.kind in ("asarray", "print"):
            return x
        if self.kind == "to_numpy":
            return to_host(x)
        read = _READERS.get(self.kind)
        return x.__index__() if read is None else read(x)


def refuse_tracked(op: Operator, value: Value) -> None:
    """Raise `HostReadError` where a read of a tracked value would drop a derivative in silence."""
    kind = getattr(op, "kind", "")
    remedy = _REMEDIES.get(kind)
    if remedy is not None:
        shown = "np.asarray or assignment into an array" if kind == "asarray" else f"{kind}()"
        msg = f"{shown} of {value!r} would drop its derivative; use {remedy} (line {describe(user_site())})"
        raise HostReadError(msg, kind=kind, value=value)


vjp_rule.none(HostRead, Observe, Print, PushScope, PopScope, why="it computes no value")
jvp_rule.none(HostRead, Observe, Print, PushScope, PopScope, why="it computes no value")
batch_rule.none(
    HostRead, Observe, Print, PushScope, PopScope, why="it computes no value; a batch layer refuses host reads itself"
)


def _item(x: Any) -> Any:
    return x.item() if hasattr(x, "item") else x


_READERS: dict[str, Callable[[Any], Any]] = {
    "item": _item, "complex": complex, "float": float, "int": int, "bool": bool, "shape": np.shape,
}  # fmt: skip


def identity(x: Any) -> Any:
    """Return the operand as another value; a tape gives it a slot of its own."""
    return apply(Identity(), x)


def name(x: Any, label: str) -> Any:
    """Name a value, for checkpoint policies and programs.

    >>> import xform as xf
    >>> xf.name(2.0, "h")
    2.0
    """
    return apply(Name(label), x)


def stop_gradient(x: Any) -> Any:
    """Return a value as a constant: no derivative passes through it. Takes containers.

    >>> import xform as xf
    >>> xf.grad(lambda x: x * xf.stop_gradient(x))(3.0)
    3.0
    """
    if isinstance(x, Value):  # without `tree.map`, 3 us less a call
        return apply(StopGradient(), x)
    return tree.map(lambda leaf: apply(StopGradient(), leaf), x)


@contextmanager
def scoped(scope: str, forward: Place | None, phase: str) -> Iterator[None]:
    """Run inside a scope below `forward` (default: the current place), in a phase."""
    here = place.get()
    base = here if forward is None else forward
    token = place.set(attrs.evolve(base, scopes=(*base.scopes, scope), phase=phase))
    bare = cursor.get() is BOTTOM
    if not bare:
        apply(PushScope(scope))
    try:
        yield
    finally:
        if not bare:
            apply(PopScope(scope))
        place.reset(token)


class named_scope:  # noqa: N801  (a function by name in the field)
    """Push a scope name for the time of a block or of a function; profiles, traces and reports show it.

    A coroutine function is awaited inside the scope; a block around a `yield`, and a generator function, raise
    `LayerError`.

    >>> import xform as xf
    >>> with xf.named_scope("layer1"):
    ...     xf.current().scopes
    ('layer1',)
    """

    def __init__(self, scope: str) -> None:
        self.scope = scope

    def __repr__(self) -> str:
        return f"named_scope({self.scope!r})"

    def __enter__(self) -> Self:
        refuse_yield(self, sys._getframe(1))  # noqa: SLF001  (who runs `with named_scope(...):`)
        here = place.get()
        place.set(attrs.evolve(here, scopes=(*here.scopes, self.scope)))
        if cursor.get() is not BOTTOM:
            try:
                apply(PushScope(self.scope))
            except BaseException:
                place.set(here)
                raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        here = place.get()
        try:
            if cursor.get() is not BOTTOM:
                apply(PopScope(self.scope))
        finally:
            if self.scope in here.scopes:  # nothing is kept here: one scope may be open in several threads
                inside = here.scopes[::-1].index(self.scope) + 1
                place.set(attrs.evolve(here, scopes=here.scopes[:-inside]))

    def __call__(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        """Run each call of a function inside the scope."""
        require_function(fun, f"{self!r} as a decorator", computes=False)
        refuse_generator(fun, self)
        if is_coroutine(fun):

            @functools.wraps(fun)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                with named_scope(self.scope):
                    return await fun(*args, **kwargs)

            return awaited

        @functools.wraps(fun)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with named_scope(self.scope):
                out = fun(*args, **kwargs)
                refuse_lazy(out, fun, self)
                return out

        return inside
