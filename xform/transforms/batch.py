"""Batching: `Batch` is the layer that runs a program on many lanes at once; `vmap` is its function."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from xform import tree
from xform.core.aval import Aval, aval_of
from xform.core.backend import HOST_TYPES, is_raw
from xform.core.errors import HostReadError, LayerError, MissingRuleError, OperandTypeError, ShapeError
from xform.core.memory import unshared
from xform.core.operator import Operator
from xform.core.rules import NoRule, batch_rule
from xform.core.source import Site, boundary, describe, user_site
from xform.core.stack import Interpret, Level, apply, cursor
from xform.core.tables import is_builtin
from xform.core.transformed import Transformed
from xform.core.value import Array, Value
from xform.layers import lifted
from xform.ops.base import elementwise_batch
from xform.ops.broadcast import make_lead
from xform.ops.shapes import moveaxis
from xform.ops.stacking import concatenate
from xform.transforms.axes import InAxes, out_axes_for
from xform.transforms.lanes import lane_by_lane
from xform.transforms.operands import OneBlock, delivered, for_rule, is_bare, label_of, site_of, taken_in
from xform.transforms.reverse import holds_value
from xform.transforms.rule_checks import checked_batch

__all__ = ["Batch", "BatchValue", "vmap"]

_get = cursor.get
_set = cursor.set
_counter = itertools.count(1)
Function = Callable[..., Any]
PLAIN = HOST_TYPES


class BatchValue(Value):
    """A value of every lane at once: `data` has them along `axis`; shape and dtype are those of one lane."""

    __slots__ = ("axis", "owner")
    axis: int
    owner: Any

    @property
    def aval(self) -> Any:
        """The aval of one lane."""
        whole = aval_of(self.data)
        axis, shape = self.axis, whole.shape
        return Aval(shape[:axis] + shape[axis + 1 :], whole.dtype)


class Batch(OneBlock):
    """The layer that runs operations on `size` lanes at once.

    1. `attach(x, axis)` makes a batched value, which looks like one lane; an operation on batched values becomes
       its batch rule, whose operations go to the layer below. `lowered(y, axis)` gives the whole batch of a result.
    2. An operation without a batched operand passes on: it is computed once for all lanes.
    3. An operator that has no batch rule is run lane by lane; one that states why it has none raises
       `MissingRuleError`.
    4. Reading a batched value on the host raises `HostReadError`: lanes may differ.

    >>> import numpy as np, xform as xf
    >>> with xf.Batch(3) as batch:
    ...     x = batch.attach(np.arange(6.0).reshape(3, 2))
    ...     y = (x * 2.0).sum()
    >>> x.shape, batch.lowered(y)
    ((2,), array([ 2., 10., 18.]))
    """

    def __init__(self, size: int, name: str | None = None, *, site: Site | None = None) -> None:
        self.size = size
        super().__init__(f"batch#{next(_counter)}" if name is None else name, site)

    def __repr__(self) -> str:
        return f"Batch({self.size}, {self.name})"

    def place_on(self, below: Level) -> Level:
        """Return the level at which this layer interprets."""
        return _level(self, below)

    def attach(self, x: Any, axis: int = 0) -> BatchValue:
        """Return a batched value of an array that holds the lanes along an axis.

        Raises `ShapeError` where that axis has another length than the batch, `LayerError` outside the block.
        """
        shape = aval_of(x).shape
        if not -len(shape) <= axis < len(shape) or shape[axis] not in (self.size, None):
            msg = f"{self!r}.attach: an array of shape {shape} does not hold {self.size} lanes along axis {axis}"
            raise ShapeError(msg, value=x)
        level: Level | None = _get()
        while level is not None and level.layer is not self:
            level = level.below
        if level is None:
            msg = f"{self!r}.attach: the layer is not active; attach inside its with block"
            raise LayerError(msg, layer=self)
        return batched(self, taken_in(x, bare=is_bare(level.below)), axis % len(shape))

    def owns(self, value: Any) -> bool:
        """Whether a value is batched by this layer."""
        return type(value) is BatchValue and value.owner is self

    def lowered(self, value: Any, axis: int = 0) -> Any:
        """Return all lanes of a value, along an axis; one that is the same in all lanes is repeated."""
        data, at = (value.data, value.axis) if self.owns(value) else (apply(make_lead(self.size), value), 0)
        return data if at == axis else moveaxis(data, at, axis)


def batched(layer: Batch, data: Any, axis: int) -> BatchValue:
    """Return a value of a batch layer."""
    value = BatchValue()
    value.data = data
    value.owner = layer
    value.axis = axis
    return value


# ------------------------------------------------------------------ interpreting


def _level(layer: Batch, below: Level) -> Level:  # noqa: C901  (straight paths: a call costs 60 ns)
    """Return the level, with straight paths for elementwise operators on NumPy arrays and what need not be aligned."""
    general = _bind(layer, below)
    below_unary, below_binary, bare, rules = below.unary, below.binary, is_bare(below), batch_rule.rules

    def unary(op: Operator, x: Any) -> Any:
        if type(x) is not BatchValue or x.owner is not layer:
            return below_unary(op, x)
        if rules.get(type(op)) is not elementwise_batch or (bare and type(x.data) is not np.ndarray):
            return general(op, (x,))
        value = BatchValue()
        value.data = below_unary(op, x.data)
        value.owner = layer
        value.axis = x.axis
        return value

    def binary(op: Operator, x: Any, y: Any) -> Any:  # noqa: C901, PLR0912  (one straight path: a call costs 60 ns)
        left, right = type(x) is BatchValue and x.owner is layer, type(y) is BatchValue and y.owner is layer
        if not left and not right:
            return below_binary(op, x, y)
        a, b = x.data if left else x, y.data if right else y
        if type(a) is Array:
            a = a.data
        if type(b) is Array:
            b = b.data
        if rules.get(type(op)) is not elementwise_batch or type(a) not in PLAIN or type(b) not in PLAIN:
            return general(op, (x, y))
        if left and right:
            if x.axis != y.axis or a.ndim != b.ndim:
                return general(op, (x, y))
            axis = x.axis
        elif left:
            axis = x.axis
            if type(b) is np.ndarray and b.ndim >= a.ndim - axis:
                return general(op, (x, y))
        else:
            axis = y.axis
            if type(a) is np.ndarray and a.ndim >= b.ndim - axis:
                return general(op, (x, y))
        value = BatchValue()
        if not bare:
            value.data = below_binary(op, lifted(a), lifted(b))
        else:
            try:
                value.data = op.kernel(a, b)  # type: ignore[misc]
            except (TypeError, ValueError):  # no kernel; or said again with operator, operands and line
                value.data = below_binary(op, a, b)
        value.owner = layer
        value.axis = axis
        return value

    def interpret(op: Operator, values: tuple[Any, ...]) -> Any:
        count = len(values)
        if count == 1:
            return unary(op, values[0])
        return binary(op, *values) if count == 2 else general(op, values)

    return Level(layer, below, interpret, unary, binary)


def _bind(layer: Batch, below: Level) -> Interpret:  # noqa: C901  (it holds `general`)
    """Return the function that interprets any operation at this place: unwrap, the rule below, rewrap."""
    interpret, bare, size, rules = below.interpret, is_bare(below), layer.size, batch_rule.rules

    def general(op: Operator, values: tuple[Any, ...]) -> Any:
        own = None
        data: list[Any] = []
        axes: list[int | None] = []
        for value in values:
            if type(value) is BatchValue and value.owner is layer:
                own = value
                data.append(value.data)
                axes.append(value.axis)
            else:
                data.append(value)
                axes.append(None)
        if own is None:
            return interpret(op, values)
        if op.attribute_like:
            if getattr(op, "kind", "") == "shape":  # which all lanes share
                return without(interpret(op, (own.data,)), own.axis)
            return interpret(op, tuple(data)) if op.observes else refuse_batched(op, own)
        rule = rules.get(type(op))
        operands = for_rule(data, bare=bare)
        here = _get()
        _set(below)
        try:
            if rule is None:
                found = lane_by_lane(op, size, operands, tuple(axes))
            elif isinstance(rule, NoRule):
                msg = f"{op!r} cannot run in a batch ({describe(user_site())}): {rule.why}"
                raise MissingRuleError(msg, op=op, table=batch_rule)
            else:
                lane = None
                if rule is not elementwise_batch and not op.runs_python and not op.nests:
                    lane = op.infer(*map(aval_of, values))  # a rule might take the batch for an axis it lacks
                found = rule(op, size, operands, tuple(axes))
                if not is_builtin(rule):
                    found = checked_batch(op, size, found, lane)
        finally:
            _set(here)
        return _rewrapped(layer, op, *found)

    return general


def _rewrapped(layer: Batch, op: Operator, out: Any, axis: Any) -> Any:
    """Return results with their batch axes; those that are the same in all lanes are plain."""
    if not op.multiple_outputs:
        return _along(layer, out, axis)
    axes = axis if isinstance(axis, tuple | list) else (axis,) * len(out)
    return tuple([_along(layer, each, at) for each, at in zip(out, axes, strict=True)])


def _along(layer: Batch, out: Any, axis: int | None) -> Any:
    if axis is None:
        return out
    return batched(layer, out, axis if axis >= 0 else axis + len(aval_of(out).shape))


def without(shape: Any, axis: int) -> Any:
    """Return the shape of one lane."""
    return (*shape[:axis], *shape[axis + 1 :])


def refuse_batched(op: Operator, value: BatchValue) -> Any:
    """Raise `HostReadError`: what the host reads would have to be the same in all lanes."""
    kind = getattr(op, "kind", op.name)
    if kind == "print":
        return value
    shown = "np.asarray or assignment into an array" if kind == "asarray" else f"{kind}()"
    remedy = {
        "bool": "xnp.where(cond, a, b) or xf.cond(pred, true_fun, false_fun, x) in place of if",
        "index": "xnp.take(B, i) or xf.array(B)[i] to index a raw array B with it",
        "int": "xnp.take(B, i) or xf.array(B)[i] to index a raw array B with it, x.astype(int) for a cast",
        "asarray": "np.stack([...]), xnp.array([...]) or xnp.full(shape, v) to build arrays of values, "
        "x.at[i].set(v) in place of a[i] = v",
    }.get(kind, "functions of xform.numpy in place of math.*, x.at[i].set(v) in place of a[i] = v")
    if kind == "asarray" and value.aval.dtype.kind in "iu":
        remedy += ", xnp.take(B, i) or xf.array(B)[i] to index a raw array B with it"
    msg = (
        f"{shown} of the batched value {value!r} at {describe(user_site())}: its {value.owner.size} lanes may differ. "
        f"Use {remedy}; or read it outside the batched function"
    )
    raise HostReadError(msg, value=value, kind=kind)


# ------------------------------------------------------------------ vmap


def vmap(
    fun: Function,
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_size: Any = None,
    chunk_size: Any = None,
) -> Function:
    """Return a function that runs `fun` on every lane of its arguments at once.

    `in_axes` says where each argument holds its lanes: an int, None (the same for all lanes), or a tuple with one entry
    per argument, each an int, None or a container of them that is a prefix of the argument; keyword arguments hold them
    along axis 0. `out_axes` says the same of the results. `axis_size` gives the number of lanes where no argument does.
    With `chunk_size`, so many lanes are run at a time. An operator without a batch rule is run lane by lane. Raises
    `ShapeError` where arguments differ in their number of lanes, `HostReadError` where `fun` reads a batched value.

    >>> import numpy as np, xform as xf
    >>> xf.vmap(np.dot)(np.ones((3, 2)), np.ones((3, 2)))
    array([2., 2., 2.])
    """
    what = f"vmap of {label_of(fun)}"
    require_count(axis_size, f"{what}: axis_size")
    require_count(chunk_size, f"{what}: chunk_size", least=1)

    return Transformed(mapped, fun, fun, in_axes, out_axes, axis_size, chunk_size)


@boundary
def mapped(
    fun: Function, in_axes: Any, out_axes: Any, axis_size: Any, chunk_size: Any, /, *args: Any, **kwargs: Any
) -> Any:
    """Compute what `vmap` returns the function for."""
    what = f"vmap of {label_of(fun)}"
    inputs = InAxes(what, in_axes, args, kwargs)
    size = inputs.size(axis_size)
    keep = holds_value(inputs.leaves)
    if chunk_size is None or size <= chunk_size:
        return run_lanes(fun, inputs, size, out_axes, keep=keep)
    parts = []
    for start in range(0, size, chunk_size):
        stop = min(start + chunk_size, size)
        parts.append(run_lanes(fun, inputs.lanes(start, stop), stop - start, out_axes, keep=keep))
    return joined(what, parts, out_axes)


def run_lanes(fun: Function, inputs: InAxes, size: int, out_axes: Any, *, keep: bool) -> Any:
    """Run a function on all lanes at once; return its results with the lanes along their axes."""
    bare = is_bare(None)
    with Batch(size, site=site_of(fun)) as layer:
        leaves = [
            leaf if axis is None else batched(layer, taken_in(leaf, bare=bare), axis)
            for leaf, axis in zip(inputs.leaves, inputs.axes, strict=True)
        ]
        args, kwargs = tree.unflatten(inputs.structure, leaves)
        out = fun(*args, **kwargs)
    results, structure = tree.flatten(out)
    axes = out_axes_for(inputs.what, out_axes, out)
    lowered = [lower(layer, leaf, axis, inputs.what) for leaf, axis in zip(results, axes, strict=True)]
    return delivered(tree.unflatten(structure, unshared(lowered)), keep=keep)


def lower(layer: Batch, leaf: Any, axis: int | None, what: str) -> Any:
    """Return one result with its lanes along an axis (None: it must be the same in all lanes)."""
    if axis is None:
        if layer.owns(leaf):
            msg = f"{what}: an output differs between lanes ({leaf!r}), but its out_axes is None; give it an axis"
            raise ShapeError(msg, output=leaf)
        return leaf
    if not isinstance(leaf, Value) and not is_raw(leaf):
        msg = f"{what}: an output is {type(leaf).__name__}, no array; give its out_axes as None"
        raise OperandTypeError(msg, output=leaf)
    ndim = 1 + len(aval_of(leaf).shape)
    if not -ndim <= axis < ndim:
        shape = aval_of(leaf).shape
        msg = f"{what}: out_axes has {axis}, but an output has shape {shape} and the batch axis: {ndim} axes"
        raise ShapeError(msg, output=leaf)
    return layer.lowered(leaf, axis)


def joined(what: str, parts: list[Any], out_axes: Any) -> Any:
    """Join the results of chunks of lanes along their batch axes."""
    axes = out_axes_for(what, out_axes, parts[0])
    columns = zip(*map(tree.leaves, parts), strict=True)
    whole = [
        column[0] if axis is None else concatenate(column, axis) for column, axis in zip(columns, axes, strict=True)
    ]
    return tree.unflatten(tree.structure(parts[0]), whole)


def require_count(count: Any, what: str, least: int = 0) -> None:
    """Raise where a number of lanes is no such number."""
    if count is None:
        return
    if isinstance(count, bool) or not isinstance(count, int | np.integer):
        msg = f"{what} must be an int, got {count!r}"
        raise OperandTypeError(msg, value=count)
    if count < least:
        msg = f"{what} must be at least {least}, got {count}"
        raise ShapeError(msg, value=count)
