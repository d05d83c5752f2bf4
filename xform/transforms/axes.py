"""The axes that `vmap` maps over: prefixes of the arguments' and results' containers, and the number of lanes."""

from __future__ import annotations

from typing import Any

import numpy as np

from xform import tree
from xform.core.aval import aval_of, dtype_of, is_numeric
from xform.core.backend import is_raw
from xform.core.errors import OperandError, OperandTypeError, ShapeError, TreeError
from xform.core.stack import BOTTOM, cursor
from xform.core.value import Value
from xform.layers import lifted
from xform.ops.indexing import getitem
from xform.transforms.operands import DECLARE

__all__ = ["InAxes", "is_axis", "out_axes_for"]


class InAxes:
    """The flat arguments of a call, and for each the axis that holds its lanes (non-negative, or None)."""

    __slots__ = ("axes", "leaves", "structure", "what")

    def __init__(self, what: str, in_axes: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.what = what
        self.leaves, self.structure = tree.flatten((args, kwargs))
        if type(in_axes) is int and not kwargs:  # the common case: all leaves alike
            given: list[Any] = [in_axes] * len(self.leaves)
        else:
            given = prefix_of_arguments(what, in_axes, args)
            given += [0] * (len(self.leaves) - len(given))
        self.axes = [
            axis if axis is None else self.placed(position, leaf, axis)
            for position, (leaf, axis) in enumerate(zip(self.leaves, given, strict=True))
        ]

    def path(self, position: int) -> str:
        """Return where a leaf stands, as the caller wrote it: `args[0]['w']`."""
        path = self.structure.paths()[position]
        return f"args{path[3:]}" if path.startswith("[0]") else f"kwargs{path[3:]}"

    def placed(self, position: int, leaf: Any, axis: int) -> int:
        """Return an axis counted from the front; raises where the leaf has no such axis."""
        if type(leaf) is np.ndarray:
            ndim = leaf.ndim
        else:
            if not (isinstance(leaf, Value) or is_raw(leaf)):
                msg = (
                    f"{self.what}: {self.path(position)} is {type(leaf).__name__}, no array that could hold lanes; "
                    f"give its in_axes as None, or bind it with functools.partial; {DECLARE}"
                )
                raise OperandTypeError(msg, value=leaf)
            ndim = len(aval_of(leaf).shape)
        if not -ndim <= axis < ndim:
            shape = aval_of(leaf).shape
            hint = "it is a scalar: give its in_axes as None" if not ndim else f"it has {ndim} axes"
            path = self.path(position)
            msg = f"{self.what}: {path} is to be mapped along axis {axis}, but its shape is {shape}; {hint}"
            raise ShapeError(msg, value=leaf)
        dtype = dtype_of(leaf)
        if not is_numeric(dtype):
            msg = f"{self.what}: {self.path(position)} has dtype {dtype}, which holds no numbers; close over it"
            raise OperandTypeError(msg, value=leaf)
        return axis if axis >= 0 else axis + ndim

    def size(self, axis_size: int | None) -> int:
        """Return the number of lanes; raises `ShapeError` where arguments differ, or where none tells."""
        found: dict[int, list[int]] = {}
        for position, (leaf, axis) in enumerate(zip(self.leaves, self.axes, strict=True)):
            if axis is not None:
                length = leaf.shape[axis] if type(leaf) is np.ndarray else aval_of(leaf).shape[axis]
                if length is not None:
                    found.setdefault(length, []).append(position)
        if axis_size is not None:
            found.setdefault(int(axis_size), [])
        if len(found) == 1:
            return next(iter(found))
        if not found:
            raise OperandError(self.nothing())
        listed = "; ".join(f"{length} {self.holders(positions)}" for length, positions in found.items())
        msg = f"{self.what}: arguments differ in their number of lanes: {listed}"
        raise ShapeError(msg)

    def holders(self, positions: list[int]) -> str:
        """Say which leaves have one number of lanes."""
        named = [f"axis {self.axes[p]} of {self.path(p)} {aval_of(self.leaves[p])!r}" for p in positions]
        return f"along {' and '.join(named)}" if named else "by axis_size"

    def nothing(self) -> str:
        """Say why the number of lanes is not known."""
        if not self.leaves:
            return f"{self.what}: it was called without an array; give arguments, or axis_size"
        if all(axis is None for axis in self.axes):
            return f"{self.what}: in_axes is None for all arguments; map at least one, or give axis_size"
        return f"{self.what}: the number of lanes is not known before run time; give axis_size"

    def lanes(self, start: int, stop: int) -> InAxes:
        """Return the same arguments with some of the lanes."""
        part = InAxes.__new__(InAxes)
        part.what, part.structure, part.axes = self.what, self.structure, self.axes
        bare = cursor.get() is BOTTOM
        part.leaves = list(self.leaves)
        for position, axis in enumerate(self.axes):
            if axis is not None:
                leaf = self.leaves[position]
                cut = (slice(None),) * axis + (slice(start, stop),)
                part.leaves[position] = getitem(leaf if bare else lifted(leaf), cut)
        return part


# ------------------------------------------------------------------ prefixes


def prefix_of_arguments(what: str, in_axes: Any, args: tuple[Any, ...]) -> list[int | None]:
    """Return the axis of each leaf of the positional arguments."""
    if in_axes is None or is_axis(in_axes):
        return [None if in_axes is None else int(in_axes)] * len(tree.leaves(args))
    if not isinstance(in_axes, tuple | list):
        msg = (
            f"{what}: in_axes must be an int, None, or a tuple with an entry for each argument; "
            f"got {type(in_axes).__name__}: {in_axes!r:.60}"
        )
        raise OperandTypeError(msg, value=in_axes)
    if len(in_axes) != len(args):
        msg = f"{what}: in_axes has {len(in_axes)} entries, but there are {len(args)} positional arguments"
        raise OperandError(msg, value=in_axes)
    found: list[int | None] = []
    for position, (prefix, argument) in enumerate(zip(in_axes, args, strict=True)):
        found += prefix_leaves(f"{what}: in_axes[{position}]", prefix, argument, f"args[{position}]")
    return found


def out_axes_for(what: str, out_axes: Any, out: Any) -> list[int | None]:
    """Return the axis of each leaf of the results."""
    return prefix_leaves(f"{what}: out_axes", out_axes, out, "the output")


def prefix_leaves(what: str, prefix: Any, whole: Any, of: str) -> list[int | None]:
    """Return the axis of each leaf of a container, from a prefix of it: an int or None stands for all below it."""
    entries, structure = tree.flatten(prefix, is_leaf=lambda node: node is None)
    for entry in entries:
        if entry is not None and not is_axis(entry):
            msg = f"{what} must be an int, None, or a container of them; it holds {type(entry).__name__}: {entry!r:.60}"
            raise OperandTypeError(msg, value=prefix)
    try:
        parts = tree.flatten_up_to(structure, whole)
    except TreeError as error:
        msg = f"{what} = {prefix!r:.60} is not a prefix of {of}, {tree.structure(whole)}: {error}"
        raise TreeError(msg) from error
    found: list[int | None] = []
    for entry, part in zip(entries, parts, strict=True):
        found += [None if entry is None else int(entry)] * len(tree.leaves(part))
    return found


def is_axis(entry: Any) -> bool:
    """Whether an entry is an axis: an int, and no bool."""
    return isinstance(entry, int | np.integer) and not isinstance(entry, bool)
