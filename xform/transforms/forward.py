"""Forward mode: the layer that carries a tangent beside every value, and its functions `jvp` and `linearize`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from xform import tree
from xform.core.aval import alike, aval_of, dtype_of
from xform.core.backend import HOST_TYPES, SCALAR_TYPES
from xform.core.errors import GradientError, LayerError
from xform.core.memory import unshared
from xform.core.operator import Operator
from xform.core.rules import Linear, NoRule, Partials, jvp_of, jvp_rule, settle
from xform.core.source import Site, boundary
from xform.core.stack import Interpret, Level, apply, check_rewriters, cursor
from xform.core.tables import is_builtin
from xform.core.value import Value
from xform.layers import lifted
from xform.ops.create import zeros, zeros_like
from xform.ops.structural import refuse_tracked
from xform.transforms.operands import OneBlock, delivered, for_rule, is_bare, label_of, site_of, taken_in
from xform.transforms.plans import NOTHING, home_of
from xform.transforms.recorder import Trace, TraceValue
from xform.transforms.recording import is_inexact
from xform.transforms.reverse import holds_value, pair_of
from xform.transforms.rule_checks import checked_jvp, is_array
from xform.transforms.tangents import fitted_tangent, tangents_for

__all__ = ["DualValue", "Forward", "jvp", "linearize", "zeros_for"]

_get = cursor.get
_set = cursor.set
_counter = itertools.count(1)
Function = Callable[..., Any]


class DualValue(Value):
    """A value with the tangent that goes with it; both are values of the layer below."""

    __slots__ = ("owner", "tangent")
    owner: Any
    tangent: Any


class Forward(OneBlock):
    """The layer that computes, with every value, its tangent: the derivative along one direction.

    1. `attach(x, tangent)` makes a dual value; an operation on dual values becomes its forward rule, whose operations
       go to the layer below. `tangent(y)` and `unwrap(y)` read a result, inside the block and after it.
    2. An operation without a dual operand passes on; an operator without a forward rule on purpose gives a constant.
    3. Identity is the layer itself: a dual value of another forward layer is a constant here, so that nested
       derivatives do not mix.

    >>> import xform as xf, xform.numpy as xnp
    >>> with xf.Forward() as forward:
    ...     y = xnp.sin(forward.attach(0.0, 2.0))
    >>> float(forward.unwrap(y)), float(forward.tangent(y))
    (0.0, 2.0)
    """

    def __init__(self, name: str | None = None, *, site: Site | None = None) -> None:
        super().__init__(f"forward#{next(_counter)}" if name is None else name, site)

    def __repr__(self) -> str:
        return f"Forward({self.name})"

    def place_on(self, below: Level) -> Level:
        """Return the level at which this layer interprets."""
        return _level(self, below)

    def attach(self, x: Any, tangent: Any) -> Any:
        """Return a dual value of a raw array, a number, or a value of a layer below, and its tangent.

        The tangent has shape and dtype of `x`; None is a zero tangent, and so is any array of zeros for an integer.
        Raises `GradientError` where it does not fit, `LayerError` outside the block.
        """
        found = fitted_tangent(x, tangent, "Forward.attach")
        level = self._level()
        if level is None:
            msg = f"{self!r}.attach: the layer is not active; attach inside its with block"
            raise LayerError(msg, layer=self)
        return made(self, x, found, bare=is_bare(level.below))

    def tangent(self, value: Any) -> Any:
        """Return the tangent of a value; zeros of its shape and dtype where it does not vary."""
        return value.tangent if self.owns(value) else zeros_like(value)

    def owns(self, value: Any) -> bool:
        """Whether a value carries a tangent of this layer."""
        return type(value) is DualValue and value.owner is self

    def _level(self) -> Level | None:
        level: Level | None = _get()
        while level is not None and level.layer is not self:
            level = level.below
        return level


def made(layer: Forward, x: Any, tangent: Any, *, bare: bool) -> Any:
    """Return a dual value of what lies below, or the plain value where it does not vary."""
    data = taken_in(x, bare=bare)
    return data if tangent is None else dual(layer, data, taken_in(tangent, bare=bare))


def dual(layer: Forward, data: Any, tangent: Any) -> DualValue:
    """Return a value of a forward layer."""
    value = DualValue()
    value.data = data
    value.owner = layer
    value.tangent = tangent
    return value


def _bind(layer: Forward, below: Level) -> Interpret:
    """Return the function that interprets any operation at this place: unwrap, the rule below, rewrap."""
    interpret, bare = below.interpret, is_bare(below)

    def general(op: Operator, values: tuple[Any, ...]) -> Any:
        own = None
        primals: list[Any] = []
        tangents: list[Any] = []
        for value in values:
            if type(value) is DualValue and value.owner is layer:
                own = value
                primals.append(value.data)
                tangents.append(value.tangent)
            else:
                primals.append(value)
                tangents.append(None)
        if own is None:
            return interpret(op, values)
        if op.attribute_like:
            refuse_tracked(op, own)
            return interpret(op, tuple(primals))
        rule = jvp_of(op)
        if isinstance(rule, NoRule):
            return interpret(op, for_rule(primals, bare=bare))
        here = _get()
        _set(below)
        try:
            if op.identity_like:
                return dual(layer, apply(op, *for_rule(primals, bare=bare)), own.tangent)
            if bare:  # the tangents of what was just put on a device
                tangents = [t if type(t) in HOST_TYPES else lifted(t) for t in tangents]
            found = rule(op, for_rule(primals, bare=bare), tuple(tangents))
            if not is_builtin(rule):
                found = checked_jvp(op, found)
        finally:
            _set(here)
        return _paired(layer, op, *found)

    return general


def _level(layer: Forward, below: Level) -> Level:  # noqa: C901, PLR0915  (straight paths: a call costs 60 ns)
    """Return the level, with straight paths for operators of one or two operands that are declared by their partials.

    A hot path: one call an operation less is 3 % of a Hessian.
    """
    general = _bind(layer, below)
    below_unary, below_binary, bare, rules = below.unary, below.binary, is_bare(below), jvp_rule.rules

    def unary(op: Operator, x: Any) -> Any:
        if type(x) is not DualValue or x.owner is not layer:
            return below_unary(op, x)
        rule = rules.get(type(op))
        data = x.data
        if bare and type(data) not in HOST_TYPES:
            return general(op, (x,))
        if type(rule) is Partials and rule.builtin:  # what a user's rule gives is checked
            if rule.functions[0] is None:
                return below_unary(op, data)
            here = _get()
            _set(below)
            try:
                out = below_unary(op, data)
                part = pushed(op, rule, 0, x.tangent, (data, out))
                if not alike(data, out):
                    part = settle(part, out)
            finally:
                _set(here)
        elif type(rule) is Linear and not (op.multiple_outputs or op.identity_like or op.attribute_like):
            out = below_unary(op, data)
            part = below_unary(op, x.tangent)
        else:
            return general(op, (x,))
        value = DualValue()
        value.data = out
        value.owner = layer
        value.tangent = part
        return value

    def binary(op: Operator, x: Any, y: Any) -> Any:
        left, right = type(x) is DualValue and x.owner is layer, type(y) is DualValue and y.owner is layer
        if not left and not right:
            return below_binary(op, x, y)
        rule = rules.get(type(op))
        if type(rule) is not Partials or not rule.builtin:
            return general(op, (x, y))
        a, b = x.data if left else x, y.data if right else y
        fixed = None if left and right else b if left else a
        if fixed is not None and type(fixed) not in SCALAR_TYPES and dtype_of(fixed).kind in "biu":
            return general(op, (x, y))  # constants of a rule may make it wider than the result
        if not bare:
            a, b = lifted(a), lifted(b)
        elif type(a) not in HOST_TYPES or type(b) not in HOST_TYPES:
            return general(op, (x, y))
        total = None
        here = _get()
        _set(below)
        try:
            out = below_binary(op, a, b)
            fits = False
            if left and rule.functions[0] is not None:
                total = pushed(op, rule, 0, x.tangent, (a, b, out))
                fits = alike(a, out)
            if right and rule.functions[1] is not None:
                part = pushed(op, rule, 1, y.tangent, (a, b, out))
                total = part if total is None else total + part
                fits = fits or alike(b, out)
            if total is None:
                return out
            if not fits:
                total = settle(total, out)
        finally:
            _set(here)
        value = DualValue()
        value.data = out
        value.owner = layer
        value.tangent = total
        return value

    def interpret(op: Operator, values: tuple[Any, ...]) -> Any:
        count = len(values)
        if count == 1:
            return unary(op, values[0])
        return binary(op, *values) if count == 2 else general(op, values)

    return Level(layer, below, interpret, unary, binary)


def pushed(op: Operator, rule: Partials, operand: int, tangent: Any, known: tuple[Any, ...]) -> Any:
    """Return one operand's part of a tangent, linear in its own; `known` are the operands and the result."""
    fn: Any = rule.functions[operand]
    plan = op.plan
    if plan is None or plan.rule is not rule:
        return fn(tangent, *rule.residual(operand, op, known[:-1], known[-1]))
    save = plan.saves[operand]  # as a tape reads it: 1 us less
    if save >= 0:
        return fn(tangent, known[save])
    if save == NOTHING:
        return fn(tangent)
    return fn(tangent, *rule.residual(operand, op, known[:-1], known[-1]))


def _paired(layer: Forward, op: Operator, out: Any, tangent: Any) -> Any:
    """Return results with their tangents; those that do not vary are plain."""
    if tangent is None:
        return out
    if not op.multiple_outputs:
        return dual(layer, out, tangent)
    return tuple(
        each if t is None or not is_inexact(each) else dual(layer, each, t)
        for each, t in zip(out, tangent, strict=True)
    )


def results_of(layer: Forward, out: Any, what: str) -> tuple[list[Any], list[Any], tree.Structure]:
    """Return the results of a function, their tangents (None: zero), and their structure."""
    leaves, structure = tree.flatten(out)
    for position, leaf in enumerate(leaves):
        if not is_array(leaf):
            named = " ".join(filter(None, ["the output", structure.paths()[position]]))
            msg = f"{what}: {named} is {type(leaf).__name__}, no array; return it with has_aux=True"
            raise GradientError(msg, output=leaf)
    tangents = [leaf.tangent if layer.owns(leaf) else None for leaf in leaves]
    return [layer.unwrap(leaf) for leaf in leaves], tangents, structure


def filled(values: list[Any], tangents: list[Any]) -> list[Any]:
    """Return tangents with zeros, which one can add to, where a result does not vary."""
    return [zeros_for(value) if t is None else t for value, t in zip(values, tangents, strict=True)]


def zeros_for(value: Any) -> Any:
    """Return zeros like a value, which may be of a layer that has ended: it is read where its shape is not known."""
    aval = aval_of(value)
    if getattr(value, "owner", None) is None or None in aval.shape or home_of(value) != "cpu":
        return zeros_like(value)
    return lifted(zeros(aval.shape, aval.dtype))


# ------------------------------------------------------------------ functions


@boundary
def jvp(fun: Function, primals: Any, tangents: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """Return `(out, out_tangent)` of `fun(*primals)` along `tangents`, with aux `(out, out_tangent, aux)`.

    `primals` and `tangents` are sequences of the same structure; arguments may be containers. A tangent has shape and
    dtype of its primal (a Python number takes the primal's dtype); None is a zero tangent. Integer and boolean
    arguments do not vary: their tangents are None or zeros. A result that does not vary has zeros of its shape and
    dtype as its tangent. Raises `GradientError` for tangents that do not fit, naming the leaf.

    >>> import numpy as np, xform as xf
    >>> xf.jvp(np.sin, (np.zeros(2),), (np.array([1.0, 2.0]),))
    (array([0., 0.]), array([1., 2.]))
    """
    what = f"jvp of {label_of(fun)}"
    for name, given in (("primals", primals), ("tangents", tangents)):
        if not isinstance(given, tuple | list):
            msg = f"{what}: {name} must be a tuple or list, one entry per argument; got {type(given).__name__}"
            raise GradientError(msg, value=given)
    leaves, structure = tree.flatten(tuple(primals))
    directions = tangents_for(structure, leaves, tuple(tangents), what)
    keep = holds_value(leaves) or holds_value(directions)
    bare = is_bare(None)
    with Forward(site=site_of(fun)) as layer:
        duals = [made(layer, x, t, bare=bare) for x, t in zip(leaves, directions, strict=True)]
        out = fun(*tree.unflatten(structure, duals))
        aux = None
        if has_aux:
            out, aux = pair_of(out, fun)
    values, found, shape = results_of(layer, out, what)
    found = unshared(filled(values, found), directions)
    results = [tree.unflatten(shape, unshared(values)), tree.unflatten(shape, found)]
    if has_aux:
        results.append(tree.map(layer.unwrap, aux))
    return tuple([delivered(each, keep=keep) for each in results])


class LinearTrace(Trace):
    """A recorder of operations on tangents alone: those on primals pass on, and what they give is a constant."""

    records = False

    def interpret(self, op: Operator, values: tuple[Any, ...]) -> Any:
        """Record an operation that has a tangent among its operands."""
        for value in values:
            if type(value) is TraceValue and value.owner is self:
                return super().interpret(op, values)
        return apply(op, *values)


@boundary
def linearize(fun: Function, *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """Return `(out, jvp_fn)`, with aux `(out, jvp_fn, aux)`; `jvp_fn(*tangents)` is the derivative at `primals`.

    `fun` runs once: the operations on tangents are recorded, and `jvp_fn` runs them alone, as often as is wanted. It
    takes tangents as `jvp` does, one per primal, and gives the tangent of the output. Raises `GradientError` as `jvp`.

    >>> import numpy as np, xform as xf
    >>> out, jvp_fn = xf.linearize(np.exp, 0.0)
    >>> float(out), float(jvp_fn(2.0)), float(jvp_fn(3.0))
    (1.0, 2.0, 3.0)
    """
    what = f"linearize of {label_of(fun)}"
    leaves, structure = tree.flatten(primals)
    for leaf, path in zip(leaves, structure.paths(), strict=True):
        fitted_tangent(leaf, None, f"{what}: leaf {path}")
    keep = holds_value(leaves)
    varies = [is_inexact(leaf) for leaf in leaves]
    with LinearTrace(abstract=True) as recorder, Forward(site=site_of(fun)) as layer:
        directions = [recorder.input(aval_of(x)) if each else None for x, each in zip(leaves, varies, strict=True)]
        duals = [made(layer, x, t, bare=False) for x, t in zip(leaves, directions, strict=True)]
        out = fun(*tree.unflatten(structure, duals))
        aux = None
        if has_aux:
            out, aux = pair_of(out, fun)
    values, found, shape = results_of(layer, out, what)
    program = recorder.program([t for t in found if t is not None])
    if any(map(recorder.owns, tree.leaves((values, tree.map(layer.unwrap, aux))))):  # a loop is one operation of both
        out = fun(*primals)
        if has_aux:
            out, aux = pair_of(out, fun)
        values = tree.leaves(out)

    @boundary
    def jvp_fn(*tangents: Any) -> Any:
        check_rewriters(layer)
        given = tangents_for(structure, leaves, tangents, f"the linear map of {label_of(fun)}")
        stay = keep or holds_value(given)
        full = [zeros_like(x) if t is None else t for x, t, each in zip(leaves, given, varies, strict=True) if each]
        results = iter(program.run(full if is_bare(None) else [taken_in(t, bare=False) for t in full]))
        pushed = [zeros_like(value) if t is None else next(results) for value, t in zip(values, found, strict=True)]
        return delivered(tree.unflatten(shape, unshared(pushed, given)), keep=stay)

    plain = delivered(tree.unflatten(shape, unshared(values)), keep=keep)
    if has_aux:
        return plain, jvp_fn, delivered(tree.map(layer.unwrap, aux), keep=keep)
    return plain, jvp_fn
