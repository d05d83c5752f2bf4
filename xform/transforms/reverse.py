"""Reverse mode as functions: `grad`, `value_and_grad`, `vjp`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, SupportsIndex

from xform import tree
from xform.core.aval import aval_of, dtype_of, shape_of
from xform.core.backend import HOST_TYPES, is_raw
from xform.core.errors import GradientError, OperandTypeError
from xform.core.functions import require_function
from xform.core.source import boundary
from xform.core.transformed import Transformed
from xform.core.value import Array, Value
from xform.layers import lifted
from xform.transforms.grad import Grad, require_inexact
from xform.transforms.operands import DECLARE
from xform.transforms.recording import is_inexact
from xform.transforms.signature import given_names, given_numbers, is_several

__all__ = ["grad", "value_and_grad", "vjp"]

Function = Callable[..., Any]


def grad(
    fun: Function,
    argnums: SupportsIndex | Sequence[SupportsIndex] | None = None,
    has_aux: bool = False,
    *,
    argnames: str | Sequence[str] | None = None,
    holomorphic: bool = False,
) -> Function:
    """Return the function that computes the gradient of a scalar function.

    `argnums` (default 0) and `argnames` say which arguments to differentiate: an int gives one gradient, a tuple a
    tuple, tuple `argnames` a dict; arguments may be containers. With `has_aux`, `fun` returns `(out, aux)` and the
    result is `(gradient, aux)`. A gradient has shape and dtype of its argument. Raises `GradientError` for an output
    that is no real scalar and for integer leaves, `OperandTypeError` for what is no function, number or array.

    Of a complex argument z = x + iy the gradient of a real output f is df/dx - i df/dy: the transpose, not conjugated,
    so that its product with a step dz has the change of f as its real part (descend along the conjugate). With
    `holomorphic`, arguments and output are complex, and the gradient is the complex derivative; `GradientError` where
    one of them is real.

    >>> import xform as xf
    >>> xf.grad(lambda x: x**3)(2.0)
    12.0
    >>> xf.grad(lambda z: abs(z) ** 2)(1 + 2j), xf.grad(lambda z: z**3, holomorphic=True)(1 + 2j)
    ((2-4j), (-9+12j))
    """
    both = value_and_grad(fun, argnums, argnames=argnames, has_aux=has_aux, holomorphic=holomorphic)
    return Transformed(gradient, fun, both, has_aux)


@boundary
def gradient(both: Function, has_aux: bool, /, *args: Any, **kwargs: Any) -> Any:
    """Compute what `grad` returns the function for."""
    value, found = both(*args, **kwargs)
    return (found, value[1]) if has_aux else found


def value_and_grad(
    fun: Function,
    argnums: SupportsIndex | Sequence[SupportsIndex] | None = None,
    has_aux: bool = False,
    *,
    argnames: str | Sequence[str] | None = None,
    holomorphic: bool = False,
) -> Function:
    """Return the function that computes `(value, gradient)`, with aux `((value, aux), gradient)`.

    Arguments and errors are those of `grad`.

    >>> import xform as xf
    >>> value, gradient = xf.value_and_grad(lambda x: x * x)(3.0)
    >>> float(value), gradient
    (9.0, 6.0)
    """
    if argnums is None and argnames is None:
        argnums = 0
    chosen = Chosen(fun, argnums, argnames)
    return Transformed(value_and_gradient, fun, fun, chosen, has_aux, holomorphic)


@boundary
def value_and_gradient(
    fun: Function, chosen: Chosen, has_aux: bool, holomorphic: bool, /, *args: Any, **kwargs: Any
) -> tuple[Any, Any]:
    """Compute what `value_and_grad` returns the function for."""
    keep = holds_value(args) or bool(kwargs and holds_value(kwargs.values()))
    leaves, structure = tree.flatten(chosen.pick(args, kwargs))
    tape = Grad()
    tape.site = chosen.site
    with tape:
        handles = attach_all(tape, leaves, structure, chosen, holomorphic=holomorphic)
        new_args, new_kwargs = chosen.put(args, kwargs, tree.unflatten(structure, handles))
        out = fun(*new_args, **new_kwargs)
        aux = None
        if has_aux:
            out, aux = pair_of(out, fun)
        require_scalar(out, holomorphic=holomorphic)
        found = tree.unflatten(structure, tape.gradients([out], handles))
    if keep:
        value = unwrapped(tape, out)
        return ((value, unwrapped(tape, aux)) if has_aux else value), found
    value = tape.unwrap(out)
    if has_aux:
        value = (value, tree.map(tape.unwrap, aux))
    return lowered(value, keep=False), lowered(found, keep=False)


@boundary
def vjp(fun: Function, *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """Return `(out, vjp_fn)`, with aux `(out, vjp_fn, aux)`; `vjp_fn(cotangent)` gives a tuple, one part per primal.

    `vjp_fn` can be called many times, also after other code has run. It raises `GradientError` for a cotangent whose
    structure, shape or dtype is not that of the output.

    >>> import numpy as np, xform as xf
    >>> out, vjp_fn = xf.vjp(np.sin, np.array(0.0))
    >>> float(vjp_fn(np.array(2.0))[0])
    2.0
    """
    require_function(fun, "vjp")
    label = getattr(fun, "__name__", "fun")
    what = f"vjp of {label}"
    keep = any(isinstance(leaf, Value) for leaf in tree.leaves(primals))
    with Grad() as tape:
        paths = tree.flatten_with_paths(primals)[0]
        for path, leaf in paths:
            require_array(leaf, f"{what}: argument {path}", f"bind it with functools.partial; {DECLARE}")
            require_inexact(leaf, f"{what}: argument {path}")
        handles = tree.map(tape.attach, primals)
        out = fun(*handles)
        aux = None
        if has_aux:
            out, aux = pair_of(out, fun)
    plain = unwrapped(tape, out)
    leaves, structure = tree.flatten(plain)
    outputs, (xs, attached) = tree.leaves(out), tree.flatten(handles)
    for leaf, path in zip(leaves, structure.paths(), strict=True):
        require_array(leaf, f"{what}: the output{path and f' {path}'}", "return it with has_aux=True")
    avals = [aval_of(leaf) for leaf in leaves]

    @boundary
    def vjp_fn(*cotangents: Any) -> tuple[Any, ...]:
        if len(cotangents) != 1:
            msg = (
                f"the pullback of {label} takes one cotangent, of the structure of its output {structure}; "
                f"got {len(cotangents)}"
            )
            raise GradientError(msg)
        given, other = tree.flatten(cotangents[0])
        if other != structure:
            msg = f"the pullback of {label}: the cotangent has structure {other}, the output {structure}"
            raise GradientError(msg)
        for ct, aval in zip(given, avals, strict=True):
            have = aval_of(ct)
            if have.shape != aval.shape or (have.dtype != aval.dtype and not have.weak and aval.dtype.kind in "fc"):
                msg = f"the pullback of {label}: the cotangent is {have!r}, the output {aval!r}"
                raise GradientError(msg)
        found = tree.unflatten(attached, tape.gradients(outputs, xs, given, retain=True))
        stay = keep or any(isinstance(ct, Value) for ct in given)
        return tuple(lowered(found, keep=stay))

    plain = lowered(plain, keep=keep)
    if not has_aux:
        tape.handed_out(plain, "vjp")
        return plain, vjp_fn
    aux = lowered(unwrapped(tape, aux), keep=keep)
    tape.handed_out((plain, aux), "vjp")
    return plain, vjp_fn, aux


# ------------------------------------------------------------------ arguments and results


class Chosen:
    """Which arguments of a function are differentiated."""

    def __init__(
        self,
        fun: Function,
        argnums: SupportsIndex | Sequence[SupportsIndex] | None,
        argnames: str | Sequence[str] | None,
        what: str = "grad",
    ) -> None:
        require_function(fun, what)
        self.what = f"{what} of {getattr(fun, '__name__', repr(fun))}"
        code = getattr(fun, "__code__", None)
        self.site = None if code is None else (code.co_filename, code.co_firstlineno)
        self.single = argnums is not None and argnames is None and not is_several(argnums)
        self.positions: tuple[int, ...] = () if argnums is None else given_numbers(argnums, self.what)
        self.one_name = isinstance(argnames, str)
        self.names: tuple[str, ...] = () if argnames is None else given_names(argnames, self.what)

    def pick(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the chosen arguments: one, a tuple, a dict by name, or both."""
        for position in self.positions:
            if not -len(args) <= position < len(args):
                msg = f"{self.what}: argnums={position}, but it was called with {len(args)} positional arguments"
                raise GradientError(msg)
        if len({position % len(args) for position in self.positions}) < len(self.positions):
            msg = f"{self.what}: argnums={self.positions} names an argument twice (it has {len(args)})"
            raise GradientError(msg)
        for name in self.names:
            if name not in kwargs:
                msg = f"{self.what}: argnames has {name!r}; pass it by keyword (got {sorted(kwargs)})"
                raise GradientError(msg)
        positional = tuple(args[position] for position in self.positions)
        if not self.names:
            return positional[0] if self.single else positional
        named = {name: kwargs[name] for name in self.names}
        by_name = named[self.names[0]] if self.one_name else named
        if not self.positions:
            return by_name
        return positional, by_name

    def put(self, args: tuple[Any, ...], kwargs: dict[str, Any], new: Any) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments with the chosen ones replaced."""
        args_out, kwargs_out = list(args), dict(kwargs)
        if len(args) > len(self.positions):
            own = {position % len(args) for position in self.positions}
            args_out = [arg if i in own else lifted_foreign(arg) for i, arg in enumerate(args)]
        if len(kwargs) > len(self.names):
            kwargs_out = {key: arg if key in self.names else lifted_foreign(arg) for key, arg in kwargs.items()}
        positional = (new,) if self.single else new if not self.names else new[0] if self.positions else ()
        by_name: Any = new if not self.positions else new[1] if self.names else None
        for position, value in zip(self.positions, positional, strict=True):
            args_out[position] = value
        for name in self.names:
            kwargs_out[name] = by_name if self.one_name else by_name[name]
        return args_out, kwargs_out


def lifted_foreign(argument: Any) -> Any:
    """Lift arrays of other libraries than NumPy to `Array`: their operators may not give way to values."""
    return argument if type(argument) in HOST_TYPES else tree.map(_lifted_leaf, argument)


def _lifted_leaf(leaf: Any) -> Any:
    return leaf if type(leaf) in HOST_TYPES else lifted(leaf)


def holds_value(arguments: Iterable[Any]) -> bool:
    """Whether some leaf of the arguments is a value."""
    for each in arguments:
        if isinstance(each, Value):
            return True
        if type(each) not in HOST_TYPES and any(isinstance(leaf, Value) for leaf in tree.leaves(each)):
            return True
    return False


def attach_all(
    tape: Grad, leaves: list[Any], structure: tree.Structure, chosen: Chosen, *, holomorphic: bool = False
) -> list[Any]:
    """Attach every leaf; one that cannot be differentiated raises and names its path."""
    for leaf in leaves:
        if not (isinstance(leaf, Value) or is_raw(leaf)) or not is_inexact(leaf) or holomorphic:
            require_arguments(leaves, structure, chosen, holomorphic=holomorphic)
            break
    return [tape.attach(leaf) for leaf in leaves]


def require_arguments(
    leaves: list[Any], structure: tree.Structure, chosen: Chosen, *, holomorphic: bool, forward: bool = False
) -> None:
    """Raise for arguments that cannot be differentiated, naming the leaf."""
    for position, leaf in enumerate(leaves):
        path = structure.paths()[position]
        what = f"{chosen.what}: the {f'leaf {path}' if path else 'argument'}"
        require_array(leaf, what, f"leave it out of argnums, or close over it; {DECLARE}")
        require_inexact(leaf, what)
        dtype = dtype_of(leaf)
        if holomorphic and dtype.kind != "c":
            raise GradientError(f"{what} has dtype {dtype}; holomorphic=True needs complex arguments", value=leaf)
        if forward and dtype.kind == "c" and not holomorphic:
            msg = f"{what} has dtype {dtype}; pass holomorphic=True, or take jacrev of a real function"
            raise GradientError(msg, value=leaf)


def require_array(leaf: Any, what: str, remedy: str) -> None:
    """Raise `OperandTypeError` for a leaf that is no array."""
    if not isinstance(leaf, Value) and not is_raw(leaf):
        msg = f"{what} is {type(leaf).__name__}, no array: {leaf!r:.60}; {remedy}"
        raise OperandTypeError(msg, value=leaf)


def require_scalar(out: Any, *, holomorphic: bool = False) -> None:
    """Raise `GradientError` where the output is no real scalar; with `holomorphic`, where it is no complex one."""
    kind = "c" if holomorphic else "f"
    if isinstance(out, Value) and shape_of(out) == () and dtype_of(out).kind == kind:
        return
    message = "Gradient only defined for scalar-output functions. Output "
    if not isinstance(out, Value) and not is_raw(out):
        found = f"a {type(out).__name__}: {tree.structure(out)}"
        msg = f"{message}was {found}; return one scalar, or use has_aux=True or vjp"
        raise GradientError(msg, output=out)
    aval = aval_of(out)
    if aval.shape != ():
        single = all(n == 1 for n in aval.shape)
        hint = "take its single element with out[0]" if single else "sum it, or use vjp or jacobian"
        msg = f"{message}had shape: {aval.shape}; {hint}."
        raise GradientError(msg, output=out)
    if aval.dtype.kind == kind:
        return
    if holomorphic:
        hint = "holomorphic=True needs a complex output."
    elif aval.dtype.kind == "c":
        hint = "take its real part or its abs, or pass holomorphic=True."
    else:
        hint = "gradients need a floating point output."
    raise GradientError(f"{message}had dtype {aval.dtype}; {hint}", output=out)


def pair_of(out: Any, fun: Function) -> tuple[Any, Any]:
    """Return `(out, aux)`; raises where the function returned something else."""
    if not isinstance(out, tuple) or len(out) != 2:
        msg = f"has_aux=True: {getattr(fun, '__name__', fun)} must return a pair (out, aux), got {type(out).__name__}"
        raise GradientError(msg, output=out)
    return out


def unwrapped(tape: Grad, results: Any) -> Any:
    """Return results as the layer below knows them; what the tape tracked stays tracked, as an `Array`."""
    if isinstance(results, Value):
        return lifted(tape.unwrap(results)) if tape.is_attached(results) else results
    return tree.map(lambda leaf: lifted(tape.unwrap(leaf)) if tape.is_attached(leaf) else leaf, results)


def lowered(results: Any, *, keep: bool) -> Any:
    """The edge rule: where no argument was a value, strip `Array` from every result."""
    if keep or type(results) in HOST_TYPES:
        return results
    return tree.map(lambda leaf: leaf.data if type(leaf) is Array else leaf, results)
