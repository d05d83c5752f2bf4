"""Loops as functions: `while_loop`, `fori_loop`, `scan`, `map`."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from xform import tree
from xform.core.aval import aval_of
from xform.core.backend import is_raw
from xform.core.errors import OperandError, OperandTypeError, ShapeError
from xform.core.functions import require_function
from xform.core.source import boundary
from xform.core.stack import apply
from xform.core.value import Value
from xform.loops.bodies import Kind, flat_carry, recorded_loop
from xform.loops.plans import count_of, plan_for
from xform.ops.arithmetic import sub
from xform.ops.broadcast import astype
from xform.ops.index_layout import OPERAND
from xform.ops.indexing import make_getitem
from xform.ops.selection import maximum
from xform.programs.loop import Offset
from xform.transforms.operands import label_of

__all__ = ["fori_loop", "map", "scan", "while_loop"]

ROW = make_getitem((OPERAND,))


@boundary
def while_loop(
    cond_fun: Callable[[Any], Any],
    body_fun: Callable[[Any], Any],
    init: Any,
    *,
    max_steps: int | None = None,
    checkpoint: Any = None,
    swap_interval: int | None = None,
) -> Any:
    """Return the carry after `carry = body_fun(carry)` was repeated while `cond_fun(carry)` held.

    The carry is a container of arrays and numbers, whose shapes and dtypes stay; the number of rounds is known at run
    time only, and may be 0. Both functions run once, in Python, to be recorded; what they take from around them may be
    tracked by any layer. Derivatives of every order and in both modes, batches and traces go through it. `max_steps`
    stops after so many rounds though the condition still holds.

    `checkpoint` says which carries are kept for backward, which runs the rounds between them again: None, all of them;
    `k`, every k-th; "sqrt", about the root of the number of rounds, each of which runs once more; "log", a few dozen of
    100,000, each of which runs some four times more; or a function of the number of rounds (None where it is not known
    beforehand) and of the bytes of a carry, which gives one of these. With `swap_interval` carries of another device
    move to the host, so many at a time. Derivatives of higher order keep all. `xf.loop_reports` tells what was kept.

    Raises `OperandTypeError`, `DtypeError` and `ShapeError`, which name the component, for a carry that changes or a
    condition that is no boolean, `HostReadError` where a function reads a value.

    >>> import xform as xf
    >>> xf.grad(lambda x: xf.while_loop(lambda y: y < 100.0, lambda y: y * y, x))(3.0)
    17496.0
    """
    require_function(cond_fun, "while_loop: cond_fun")
    require_function(body_fun, "while_loop: body_fun")
    what = f"while_loop of {label_of(body_fun)}"
    leaves, structure = flat_carry(init, what)

    def body(counter: Any, carries: list[Any], constants: list[Any]) -> tuple[list[Any], tree.Structure, Any]:
        return *tree.flatten(body_fun(tree.unflatten(structure, carries))), ()

    def condition(counter: Any, carries: list[Any], constants: list[Any]) -> Any:
        return cond_fun(tree.unflatten(structure, carries))

    plan = plan_for(checkpoint, swap_interval, what, None, leaves)
    most = count_of(max_steps, f"{what}: max_steps", 0)
    kind = Kind(what, label_of(body_fun), body, condition, structure, max_steps=most, checkpoint=plan)
    loop = recorded_loop(kind, (cond_fun, body_fun), leaves, [], "while_loop")
    return tree.unflatten(structure, loop.run(leaves, [])[0])


@boundary
def fori_loop(
    lower: Any,
    upper: Any,
    body_fun: Callable[[Any, Any], Any],
    init: Any,
    *,
    checkpoint: Any = None,
    swap_interval: int | None = None,
) -> Any:
    """Return the carry after `for i in range(lower, upper): carry = body_fun(i, carry)`.

    Bounds are integers, traced or batched ones too; where `upper <= lower` the carry is `init`. Carry, functions and
    errors are those of `while_loop`.

    >>> import xform as xf
    >>> int(xf.fori_loop(0, 5, lambda i, x: x + i, 0))
    10
    """
    require_function(body_fun, "fori_loop: body_fun")
    what = f"fori_loop of {label_of(body_fun)}"
    leaves, structure = flat_carry(init, what)
    first, begins = start_of(lower, what)
    length = length_of(lower, upper, what)

    def body(counter: Any, carries: list[Any], constants: list[Any]) -> tuple[list[Any], tree.Structure, Any]:
        at = counter if first == 0 else apply(Offset(first), counter) if begins is None else constants[0] + counter
        return *tree.flatten(body_fun(at, tree.unflatten(structure, carries))), ()

    given = [] if begins is None else [begins]
    plan = plan_for(checkpoint, swap_interval, what, length if type(length) is int else None, leaves)
    kind = Kind(what, label_of(body_fun), body, None, structure, checkpoint=plan)
    loop = recorded_loop(kind, (body_fun,), leaves, given, ("fori_loop", first))
    if type(length) is int:
        return tree.unflatten(structure, loop.run(leaves, given, length=length)[0])
    return tree.unflatten(structure, loop.run(leaves, given, length)[0])


def start_of(lower: Any, what: str) -> tuple[int, Any]:
    """Return the first number as an int, and None; or, where that is a value, 1 and the value."""
    check_bound(lower, "lower", what)
    return (1, astype(lower, np.int64)) if isinstance(lower, Value) else (operator.index(lower), None)


def length_of(lower: Any, upper: Any, what: str) -> Any:
    """Return the number of rounds: an int, or a value of integers."""
    check_bound(upper, "upper", what)
    if isinstance(lower, Value) or isinstance(upper, Value):
        return maximum(sub(astype(upper, np.int64), astype(lower, np.int64)), 0)
    return max(operator.index(upper) - operator.index(lower), 0)


def check_bound(bound: Any, name: str, what: str) -> None:
    """Raise where a bound is no integer."""
    if not (isinstance(bound, Value) or is_raw(bound)) or aval_of(bound).dtype.kind not in "iu":
        shown = f"{aval_of(bound)!r}" if isinstance(bound, Value) or is_raw(bound) else type(bound).__name__
        msg = f"{what}: {name} must be an integer, got {shown}; convert it with int(x) or x.astype(int)"
        raise OperandTypeError(msg, value=bound)
    if aval_of(bound).shape != ():
        msg = f"{what}: {name} must be one integer, got shape {aval_of(bound).shape}"
        raise ShapeError(msg, value=bound)


# ------------------------------------------------------------------ scan


@boundary
def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    *,
    checkpoint: Any = None,
    swap_interval: int | None = None,
) -> tuple[Any, Any]:
    """Return `(carry, ys)` of `carry, y = f(carry, x)` for each `x` along the first axis of `xs`, the `y` stacked.

    `xs` is a container of arrays whose first axes have one length, or None with `length` given; `x` has its structure.
    With `reverse` the rounds run from the last `x` to the first, and `ys` lie where their `x` did. Carry and errors are
    those of `while_loop`; `f` must return a pair.

    >>> import numpy as np, xform as xf
    >>> carry, ys = xf.scan(lambda total, x: (total + x, total + x), 0.0, np.array([1.0, 2.0, 3.0]))
    >>> float(carry), ys
    (6.0, array([1., 3., 6.]))
    """
    require_function(f, "scan: f")
    what = f"scan of {label_of(f)}"
    leaves, structure = flat_carry(init, what)
    rows, row_structure = tree.flatten(xs)
    count = scanned_length(rows, row_structure, length, what)

    def body(counter: Any, carries: list[Any], constants: list[Any]) -> tuple[list[Any], tree.Structure, Any]:
        given = [apply(ROW, each, counter) for each in constants]
        found = f(tree.unflatten(structure, carries), tree.unflatten(row_structure, given))
        if not isinstance(found, tuple) or len(found) != 2:
            got = f"a tuple of {len(found)}" if isinstance(found, tuple) else type(found).__name__
            msg = f"{what}: the body must return a pair (carry, y), got {got}"
            raise OperandTypeError(msg, output=found)
        return *tree.flatten(found[0]), found[1]

    plan = plan_for(checkpoint, swap_interval, what, count, leaves)
    kind = Kind(what, label_of(f), body, None, structure, reverse=bool(reverse), checkpoint=plan)
    loop = recorded_loop(kind, (f,), leaves, rows, ("scan", row_structure))
    outs, ys = loop.run(leaves, rows, length=count)
    return tree.unflatten(structure, outs), ys


def scanned_length(rows: list[Any], structure: tree.Structure, length: int | None, what: str) -> int:
    """Return the length of the first axis that all leaves share; raises where they differ or have none."""
    found: dict[int, str] = {}
    if length is not None:
        found[operator.index(length)] = "length"
    for leaf, path in zip(rows, structure.paths(), strict=True):
        name = f"xs{path}"
        if not (isinstance(leaf, Value) or is_raw(leaf)):
            msg = f"{what}: {name} is {type(leaf).__name__}, no array: {leaf!r:.60}"
            raise OperandTypeError(msg, value=leaf)
        shape = aval_of(leaf).shape
        if not shape:
            msg = f"{what}: {name} has no axis to scan along: it is {aval_of(leaf)!r}; join numbers with xnp.array(xs)"
            raise ShapeError(msg, value=leaf)
        if shape[0] is not None:
            found.setdefault(shape[0], name)
    if not found:
        msg = f"{what}: without xs the number of rounds is not known; give length"
        raise OperandError(msg)
    if len(found) > 1:
        listed = ", ".join(f"{name} has {count}" for count, name in found.items())
        msg = f"{what}: the lengths of first axes differ: {listed}"
        raise ShapeError(msg)
    return max(next(iter(found)), 0)


@boundary
def map(f: Callable[[Any], Any], xs: Any) -> Any:
    """Return `f(x)` for each `x` along the first axis of `xs`, stacked: one by one, where `vmap` runs all at once.

    Arguments and errors are those of `scan`.

    >>> import numpy as np, xform as xf
    >>> xf.map(lambda x: x * x, np.array([1.0, 2.0, 3.0]))
    array([1., 4., 9.])
    """
    require_function(f, "map: f")
    what = f"map of {label_of(f)}"
    rows, row_structure = tree.flatten(xs)
    count = scanned_length(rows, row_structure, None, what)

    def body(counter: Any, carries: list[Any], constants: list[Any]) -> tuple[list[Any], tree.Structure, Any]:
        given = [apply(ROW, each, counter) for each in constants]
        return [], tree.structure(()), f(tree.unflatten(row_structure, given))

    kind = Kind(what, label_of(f), body, None, tree.structure(()))
    return recorded_loop(kind, (f,), [], rows, ("map", row_structure)).run([], rows, length=count)[1]
