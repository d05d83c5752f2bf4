"""Branches as functions: `cond`, `switch`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from xform import tree
from xform.core.aval import Aval, aval_of, is_numeric
from xform.core.backend import is_raw
from xform.core.errors import OperandError, OperandTypeError, XformError
from xform.core.functions import require_function
from xform.core.source import boundary
from xform.core.stack import apply
from xform.core.value import Array, Value
from xform.loops.bodies import BodyTrace, Captures, round_programs
from xform.ops.comparisons import not_equal
from xform.programs.branches import Switch, common_aval, with_avals
from xform.transforms import branch_rules, entering  # noqa: F401  (the rules)
from xform.transforms.forward import DualValue
from xform.transforms.operands import delivered, label_of
from xform.transforms.straight import GradValue

__all__ = ["cond", "switch"]

Function = Callable[..., Any]


@boundary
def cond(pred: Any, true_fun: Function, false_fun: Function, *operands: Any) -> Any:
    """Return `true_fun(*operands)` where `pred` holds, else `false_fun(*operands)`.

    1. `pred` is one truth value, or one number, which holds unless it is 0. Where it is a Python bool or number, the
       function is called and no more.
    2. Elsewhere both functions run once, in Python, to be recorded, and one of them is computed: of the other there is
       no value, no derivative, and no warning. They must return the same structure, shapes and dtypes.
    3. Operands are containers of arrays and numbers. What the functions take from around them may be tracked by any
       layer, and has its derivative.
    4. In a batch whose lanes differ both are computed, each on operands of lanes that take it; one that no lane takes
       is not.

    Raises `OperandTypeError`, which shows both, where the functions return different things, and for a `pred` that is
    no single truth value; `HostReadError` where a function reads a value.

    >>> import numpy as np, xform as xf
    >>> f = lambda x: xf.cond(x > 0.0, np.log, lambda x: 0.0 * x, x)
    >>> xf.grad(f)(2.0), xf.grad(f)(0.0)
    (0.5, 0.0)
    """
    require_function(true_fun, "cond: true_fun")
    require_function(false_fun, "cond: false_fun")
    if type(pred) in (bool, int, float):
        return (true_fun if pred else false_fun)(*operands)
    aval = require_scalar(pred, "cond: pred", "biuf", "one truth value, e.g. x.sum() > 0")
    if aval.dtype.kind != "b":
        pred = not_equal(pred, 0)
    return branched("cond", pred, {"false_fun": false_fun, "true_fun": true_fun}, operands)


@boundary
def switch(index: Any, branches: Sequence[Function], *operands: Any) -> Any:
    """Return `branches[index](*operands)`, with an index out of range clamped to the first or the last.

    `index` is one integer; everything else is said at `cond`. Raises `OperandError` where there are no branches.

    >>> import numpy as np, xform as xf, xform.numpy as xnp
    >>> xf.vmap(lambda i, x: xf.switch(i, [xnp.sin, xnp.cos], x))(np.arange(3), np.zeros(3))
    array([0., 1., 1.])
    """
    if not isinstance(branches, list | tuple) or not branches:
        msg = f"switch: branches must be a list of at least one function, got {branches!r:.60}"
        raise (OperandError if isinstance(branches, list | tuple) else OperandTypeError)(msg, value=branches)
    for number, branch in enumerate(branches):
        require_function(branch, f"switch: branch {number}")
    if type(index) is int:
        return branches[min(max(index, 0), len(branches) - 1)](*operands)
    require_scalar(index, "switch: index", "iu", "one integer; convert it with x.astype(int)")
    return branched("switch", index, {f"branch {n}": branch for n, branch in enumerate(branches)}, operands)


def require_scalar(x: Any, what: str, kinds: str, wanted: str) -> Aval:
    """Return the aval of what chooses a branch; raises `OperandTypeError` where it is none."""
    if isinstance(x, Value) or is_raw(x):
        aval = aval_of(x)
        if aval.shape == () and aval.dtype.kind in kinds:
            return aval
    shown = f"{aval_of(x)!r}" if isinstance(x, Value) or is_raw(x) else f"{type(x).__name__}: {x!r:.60}"
    msg = f"{what} must be {wanted}; got {shown}"
    raise OperandTypeError(msg, value=x)


def branched(what: str, index: Any, functions: dict[str, Function], operands: tuple[Any, ...]) -> Any:
    """Return the result of one of several functions, as a value of the current stack."""
    leaves, structure = tree.flatten(operands)
    for leaf, path in zip(leaves, structure.paths(), strict=True):
        if not (isinstance(leaf, Value) or is_raw(leaf)) or not is_numeric(aval_of(leaf).dtype):
            msg = f"{what}: operand {path} is {type(leaf).__name__}, no array of numbers: {leaf!r:.60}; close over it"
            raise OperandTypeError(msg, value=leaf)
    op, captured, results = recorded_switch(what, functions, leaves, structure)
    keep = any(isinstance(leaf, Value) for leaf in (index, *leaves))
    given = [*leaves, *captured]
    number = known_number(index)
    outs = apply(op, index, *given) if number is None else op.branches[op.chosen(number)].run(given)
    return delivered(tree.unflatten(results, outs), keep=keep)


def known_number(index: Any) -> int | None:
    """Return the number that is the same whenever the program runs, None where layers have to know of it."""
    value = index
    while type(value) in (Array, GradValue, DualValue):
        value = value.data
    if isinstance(value, Value):
        return None
    return int(index)


# ------------------------------------------------------------------ recording


class BranchTrace(BodyTrace):
    """The recorder of one branch."""

    remedy = "Inside a branch a value has no data: where Python has to decide by it, write another cond, or a Python if"


def recorded_switch(
    what: str, functions: dict[str, Function], leaves: Sequence[Any], structure: tree.Structure
) -> tuple[Switch, list[Any], tree.Structure]:
    """Record functions of the same operands; return the switch, what they take from around them, and their results."""
    captures = Captures()
    recorders, found = [], []
    for name, function in functions.items():
        with BranchTrace(captures) as recorder:
            recorder.what = f"{name} ({label_of(function)}) of {what}"
            out = function(*tree.unflatten(structure, [recorder.input(aval_of(leaf)) for leaf in leaves]))
        recorders.append(recorder)
        found.append(recorder.leaves_of(out, recorder.what))
    names = list(functions)
    results = found[0][1]
    for name, (outs, other) in zip(names, found, strict=True):
        if other != results:
            given = [f"{names[0]} returns {shown(*found[0])}", f"{name} returns {shown(outs, other)}"]
            refuse(what, given, "the same structure")
    programs = round_programs(recorders, [outs for outs, _ in found])
    columns = zip(*[program.out_avals for program in programs], strict=True)
    avals = [shared_aval(what, names, each, path) for each, path in zip(columns, results.paths(), strict=True)]
    branches = tuple([with_avals(program, avals) for program in programs])
    label = "/".join(label_of(function) for function in functions.values())
    return Switch(branches, label), captures.objects, results


def shown(leaves: Sequence[Any], structure: tree.Structure) -> str:
    """Return what a branch returned, as text."""
    return repr(tree.unflatten(structure, [aval_of(leaf) for leaf in leaves]))


def shared_aval(what: str, names: Sequence[str], avals: Sequence[Aval], path: str) -> Aval:
    """Return the aval that all branches give; raises `OperandTypeError` where they differ."""
    for name, aval in zip(names, avals, strict=True):
        try:
            common_aval([avals[0], aval])
        except XformError:
            at = f" at {path}" if path else ""
            given = [f"{names[0]} returns {avals[0]!r}{at}", f"{name} returns {aval!r}{at}"]
            refuse(what, given, "the same shapes and dtypes")
    return common_aval(avals)


def refuse(what: str, given: Sequence[str], wanted: str) -> NoReturn:
    """Raise for branches that return different things."""
    msg = f"{what}: {', and '.join(given)}; branches must return {wanted}"
    raise OperandTypeError(f"{msg}: cast with x.astype(dtype), fill with zeros of the other's shape")
