"""Custom rules: functions whose derivatives are the user's own."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any, NoReturn, SupportsIndex, TypeVar

import numpy as np

from xform import tree
from xform.core.backend import HOST_TYPES
from xform.core.cells import as_they_are
from xform.core.errors import OperandTypeError
from xform.core.functions import require_function
from xform.core.source import boundary
from xform.core.value import Value
from xform.transforms.custom_calls import Call, Definition, running
from xform.transforms.custom_rules import CustomCall, perform
from xform.transforms.operands import is_bare, label_of
from xform.transforms.rule_checks import is_array
from xform.transforms.signature import given_numbers

__all__ = ["CustomFunction", "custom_gradient", "custom_jvp", "custom_vjp"]

F = TypeVar("F", bound=Callable[..., Any])


class CustomFunction:
    """A function with derivatives of the user's own, as `custom_vjp`, `custom_jvp` and `custom_gradient` make it.

    1. To every layer it is one operator, named after the function; in a program it stays one operation, which calls the
       function at each replay. Its rules run below the layer that asks for them, on values of the layers there, so that
       the derivative of a derivative is that of the rule's own operations; the output itself has the user's rules at
       every order, true derivatives or not.
    2. `defvjp` and `defjvp` give rules for reverse and for forward mode. One alone serves both: a
       tangent map, linear in its tangents, is recorded and transposed, and so is a reverse rule.
    3. Arguments and outputs are containers (`xf.tree`) of arrays and numbers; keyword arguments become positional. For
       zero a rule may return None in place of an array or of a whole container.
    4. In a batch, function and rules run on all lanes at once; one that reads its values (`if x > 0`) lane by lane,
       where the batch stands above the derivative (`grad(vmap(f))`).
    5. A value that a layer tracks must be an argument. One that is taken from outside works in what runs where its
       layer reaches, else it raises `EscapedValueError`.
    6. A rule that returns a wrong structure, count, shape or dtype raises `RuleError`, which names it and the argument.
    """

    def __init__(self, definition: Definition, shown: Callable[..., Any], fixed: tuple[int, ...] = ()) -> None:
        functools.update_wrapper(self, shown)
        self.definition = definition
        self.shown = shown
        self.fixed = fixed

    def __repr__(self) -> str:
        return f"{self.definition.kind}({self.definition.name})"

    def __reduce__(self) -> str | tuple[Any, ...]:
        name = str(getattr(self, "__qualname__", ""))
        found: Any = sys.modules.get(self.__module__)
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is self:
            return name  # it stands where the function that it decorates would be looked for
        return CustomFunction, (self.definition, self.shown, self.fixed)

    def __deepcopy__(self, seen: dict[int, Any]) -> CustomFunction:
        """Return the function itself, as of other functions."""
        return self

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def held_functions(self) -> list[Any]:
        """Return the functions that this one is made of."""
        definition = self.definition
        return [definition.fun, definition.forward, definition.backward, definition.tangent]

    def with_functions(self, held: Callable[[Any], Any], copy: Callable[[Any], None]) -> CustomFunction:
        """Return the same made of what `held` gives for each function; `copy` is told of it first: they call it."""
        definition = Definition(self.definition.kind, self.definition.name, None, origin=self.definition.identity)
        out = CustomFunction(definition, self.shown, self.fixed)
        copy(out)
        given = map(held, self.held_functions())
        definition.fun, definition.forward, definition.backward, definition.tangent = given
        return out

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        """Set the reverse rule: `fwd(*args) -> (out, residuals)`, `bwd(residuals, cotangent) -> cotangents`.

        `fwd` takes the arguments of the function. `bwd` returns a tuple with one cotangent per argument, in its
        structure and shape; an output that nothing used has zeros as its cotangent. Non-differentiable arguments come
        first in `bwd`, and get no cotangent.

        >>> import numpy as np, xform as xf
        >>> logistic = xf.custom_vjp(lambda x: 1.0 / (1.0 + np.exp(-x)))
        >>> logistic.defvjp(lambda x: (logistic(x),) * 2, lambda y, t: (t * y * (1.0 - y),))
        >>> float(xf.grad(logistic)(0.0))
        0.25
        """
        require_function(fwd, f"defvjp of {self!r}")
        require_function(bwd, f"defvjp of {self!r}")
        self.definition.forward, self.definition.backward = fwd, bwd

    def defjvp(self, rule: F) -> F:
        """Set the forward rule, and return it: `rule(primals, tangents) -> (out, tangent_out)`.

        `primals` and `tangents` are tuples with one entry per argument; an argument that does not vary has zeros, an
        integer has None. The tangent of the output has its structure, shapes and dtypes, and is linear in the tangents.
        Non-differentiable arguments come first.

        >>> import numpy as np, xform as xf
        >>> double = xf.custom_jvp(lambda x: x + x)
        >>> rule = double.defjvp(lambda primals, tangents: (double(*primals), 2.0 * tangents[0]))
        >>> float(xf.grad(double)(1.0))
        2.0
        """
        require_function(rule, f"defjvp of {self!r}")
        self.definition.tangent = rule
        return rule

    @boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call, leaves = self._call(self._positional(args, kwargs))
        frame = running.get()
        outs = perform(CustomCall(call), leaves)
        if frame is not None:
            frame.note(self.definition, outs)
        if call.outputs is None:  # a layer answered in place of the function
            return outs[0] if len(outs) == 1 else outs
        return tree.unflatten(call.outputs, list(outs))

    def _positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return all arguments by position, defaults too: a rule is given each of them."""
        code = getattr(self.shown, "__code__", None)
        if not kwargs and (isinstance(self.shown, np.ufunc) or (code is not None and len(args) == code.co_argcount)):
            return args  # of a ufunc the others are no arguments of its rules: where, casting
        try:
            bound = inspect.signature(self.shown).bind(*args, **kwargs)
        except ValueError:  # a function in C, which tells nothing
            bound = inspect.signature(lambda *args: None).bind(*args, **kwargs)
        except TypeError as error:
            raise OperandTypeError(f"{self!r}: {error}", value=args) from error
        if bound.kwargs:
            names = sorted(bound.kwargs)
            msg = f"{self!r}: keyword-only arguments {names} have no place in its rules; make them positional"
            raise OperandTypeError(msg, value=bound.kwargs)
        bound.apply_defaults()
        return bound.args

    def _call(self, args: tuple[Any, ...]) -> tuple[Call, list[Any]]:
        count = len(args)
        fixed = sorted({n % count if args else n for n in self.fixed}) if self.fixed else []
        positions = tuple([n for n in range(count) if n not in fixed])
        leaves, structure = tree.flatten(tuple([args[n] for n in positions]))
        if not all(type(leaf) in HOST_TYPES or is_array(leaf) for leaf in leaves):
            self._refuse(positions, structure, leaves)
        for n in fixed:
            if any(isinstance(leaf, Value) for leaf in tree.leaves(args[n])):
                msg = (
                    f"{self!r}: argument {n}, one of its nondiff_argnums, is tracked ({args[n]!r:.60}); take it out of "
                    "them, and return None as its cotangent"
                )
                raise OperandTypeError(msg, value=args[n])
        definition = self.definition if is_bare(None) else as_they_are(self)[0].definition  # rules run later
        return Call(definition, structure, positions, tuple([(n, args[n]) for n in fixed])), leaves

    def _refuse(self, positions: tuple[int, ...], structure: tree.Structure, leaves: list[Any]) -> NoReturn:
        names = [f"{n}{path}" for n, part in zip(positions, structure.children, strict=True) for path in part.paths()]
        name, leaf = next((name, leaf) for name, leaf in zip(names, leaves, strict=True) if not is_array(leaf))
        msg = (
            f"{self.definition.kind} of {self.definition.name}: argument {name} is {type(leaf).__name__}, no array; "
            "bind it with functools.partial, or name it by nondiff_argnums; the instance of a method: make the "
            "functions inside of the method"
        )
        raise OperandTypeError(msg, value=leaf)


def custom_vjp(
    fun: Callable[..., Any], nondiff_argnums: SupportsIndex | Sequence[SupportsIndex] = ()
) -> CustomFunction:
    """Return a function whose reverse rule is the user's: `f.defvjp(fwd, bwd)`; `f.defjvp(rule)` adds a forward rule.

    `fwd(*args) -> (out, residuals)`, and `bwd(residuals, cotangent)` returns a tuple with one cotangent, or None, per
    argument. `nondiff_argnums` names arguments that are no arrays. Without a forward rule `bwd` serves forward mode
    too: it is transposed, and raises `RuleError` where it is not linear in the cotangent. A derivative of a function
    without rules raises `MissingRuleError`. Signature and rules are those of JAX.

    >>> import numpy as np, xform as xf
    >>> @xf.custom_vjp
    ... def clipped(x):  # gradients that pass through are at most 1
    ...     return x
    >>> clipped.defvjp(lambda x: (x, None), lambda residuals, t: (np.clip(t, -1.0, 1.0),))
    >>> float(xf.grad(lambda x: 10.0 * clipped(x))(2.0))
    1.0
    """
    return made("custom_vjp", fun, nondiff_argnums)


def custom_jvp(
    fun: Callable[..., Any], nondiff_argnums: SupportsIndex | Sequence[SupportsIndex] = ()
) -> CustomFunction:
    """Return a function whose forward rule is the user's: `f.defjvp(rule)`, which serves reverse mode as well.

    `rule(primals, tangents) -> (out, tangent_out)`; `f.defvjp(fwd, bwd)` adds a reverse rule, without which the rule is
    transposed: `RuleError` where it is not linear in the tangents. `nondiff_argnums` names arguments that are no
    arrays. A derivative of a function without rules raises `MissingRuleError`. Signature and rules are those of JAX.

    >>> import numpy as np, xform as xf
    >>> @xf.custom_jvp
    ... def log1pexp(x):
    ...     return np.log(1.0 + np.exp(x))
    >>> @log1pexp.defjvp
    ... def log1pexp_jvp(primals, tangents):
    ...     (x,), (t,) = primals, tangents
    ...     return log1pexp(x), t * (1.0 - 1.0 / (1.0 + np.exp(x)))
    >>> float(xf.grad(log1pexp)(0.0))
    0.5
    """
    return made("custom_jvp", fun, nondiff_argnums)


def made(kind: str, fun: Callable[..., Any], nondiff_argnums: Any) -> CustomFunction:
    """Make a function whose rules follow."""
    require_function(fun, kind)
    numbers = given_numbers(nondiff_argnums, f"{kind} of {label_of(fun)}")
    return CustomFunction(Definition(kind, label_of(fun), fun), fun, numbers)


def custom_gradient(forward: Callable[..., Any], backward: Callable[..., Any]) -> CustomFunction:
    """Return a function with a reverse rule of its own, in the manner of MegEngine's `Function`.

    `forward(*xs) -> (outs, residuals)` runs on plain values, which it may change; `backward(residuals, *cotangents)`
    returns one cotangent, or None, per input. A cotangent of an unused output is None. The rule is used as it is, true
    derivative or not, on every tape; `hessian` differentiates its operations. A tracked value that either function
    needs must be an argument: one from outside raises `EscapedValueError`. Raises `RuleError` for what does not fit,
    `OperandTypeError` for an argument that is no array.

    >>> import numpy as np, xform as xf
    >>> rounded = xf.custom_gradient(lambda x: (np.round(x), None), lambda residuals, t: t)
    >>> xf.grad(lambda x: rounded(x) * 2.0)(1.3)
    2.0
    """
    require_function(forward, "custom_gradient")
    require_function(backward, "custom_gradient")

    definition = Definition("custom_gradient", label_of(forward), None, forward, backward)
    return CustomFunction(definition, forward)
