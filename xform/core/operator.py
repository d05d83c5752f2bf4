"""An operator is its parameters, its type rule and its reference meaning."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import attrs

__all__ = ["Operator", "interned", "is_negative_zero"]


class Operator:
    """Base of all operators; subclasses are `@attrs.frozen` with their parameters as fields.

    1. Operands are positional values; parameters are plain hashable data on the operator.
    2. `infer(*avals)` gives the aval of the result (a tuple with `multiple_outputs`), from shapes and dtypes alone.
    3. `evaluate(xp, *arrays)` computes on raw arrays of the library whose namespace is `xp`.
    4. Everything else (derivatives, batching) is a rule in a table, see `xform.core.rules`.

    There are no attrs fields on this base: an inherited `__eq__` would make all operators equal.

    >>> import attrs, xform as xf
    >>> @attrs.frozen
    ... class Double(xf.Operator):
    ...     def infer(self, x):
    ...         return x
    ...     def evaluate(self, xp, x):
    ...         return x + x
    >>> xf.apply(Double(), 3.0)
    6.0
    """

    __slots__ = ()
    multiple_outputs: ClassVar[bool] = False
    #: never folded, merged, repeated or dropped
    impure: ClassVar[bool] = False
    #: reads a property of a value and computes nothing that a derivative could reach (`HostRead`, scopes)
    attribute_like: ClassVar[bool] = False
    #: tells an observer of another operation; observers ignore it
    observes: ClassVar[bool] = False
    #: returns its operand itself: a tape shares the operand's slot
    identity_like: ClassVar[bool] = False
    #: computes on NumPy arrays and scalars directly, e.g. a ufunc; `evaluate` serves where this is None
    kernel: ClassVar[Callable[..., Any] | None] = None
    #: takes operands that live on different devices (`DevicePut`)
    crosses_devices: ClassVar[bool] = False
    #: of an operator that crosses devices and computes on the others: the operands that stay where they are
    staying: ClassVar[range | None] = None
    #: how a tape records the operators of this class, made at first use and forgotten when their rule changes (an
    #: attribute, since a look-up by class costs 75 ns an operation more)
    plan: ClassVar[Any] = None
    #: takes a value of a layer that has ended, as its plain value (`StopGradient`, `HostRead`)
    peels: ClassVar[bool] = False
    #: its derivative holds for functions that keep to symmetric operands (`Cholesky`) or do not see a choice of vectors
    #: (`Svd`), so finite differences of the operator alone do not show it
    only_composed: ClassVar[bool] = False
    #: holds functions, which a layer that the operation passes must reach: see `within`
    nests: ClassVar[bool] = False
    #: calls functions of the user, which may need data and branch on them: a program of it is derived as it runs
    runs_python: ClassVar[bool] = False
    __tree_leaf__ = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.plan = None

    @property
    def name(self) -> str:
        """Name as it appears in messages, profiles and programs."""
        return type(self).__name__

    def infer(self, *avals: Any) -> Any:
        """Return the aval of the result; raises `ShapeError` or `DtypeError` where operands do not fit."""
        msg = f"{self.name} has no infer(self, *avals); write it to trace or batch this operator"
        raise NotImplementedError(msg)

    def within(self, layer: Any) -> Operator:
        """Return the operator with the functions that it holds run under `layer`; asked where it `nests`."""
        return self

    def stepped(self, values: tuple[Any, ...]) -> Any:
        """Run on values, operation by operation, on top of the current stack; `NotImplemented` where it is one."""
        return NotImplemented

    def pruned(self, used: tuple[bool, ...]) -> tuple[Operator, tuple[int, ...]] | None:
        """Return an operator of the outputs that are used, and which operands it takes; None: it stays as it is."""
        return None

    def evaluate(self, xp: Any, *arrays: Any) -> Any:
        """Compute on raw arrays of the array library `xp`."""
        msg = f"{self.name} has no evaluate(self, xp, *arrays)"
        raise NotImplementedError(msg)


T = TypeVar("T", bound=Operator)


def is_negative_zero(number: Any) -> bool:
    """Whether a number is -0.0, or a complex zero with such a part.

    >>> is_negative_zero(-0.0), is_negative_zero(0.0), is_negative_zero(0)
    (True, False, False)
    """
    return type(number) in (float, complex) and not number and "-" in repr(number)


def interned(kind: type[T]) -> Callable[..., T]:
    """Return a constructor that gives the same operator for the same parameters (80 ns instead of 400).

    The memory is bounded: an operator that falls out is made anew, and equal to the old one. A number that is compared
    by `repr`, since 0.0 is not -0.0, is not mistaken here either.
    """
    cached = functools.lru_cache(maxsize=4096, typed=True)(kind)
    if not any(field.eq_key is repr for field in attrs.fields(kind)):  # type: ignore[arg-type]
        return cached

    def make(*parameters: Any) -> T:
        # -0.0 would be found as 0.0
        return kind(*parameters) if any(map(is_negative_zero, parameters)) else cached(*parameters)

    return make
