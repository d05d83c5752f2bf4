"""Functions that join sequences of arrays, and that split an array into a list."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import numpy as np

from xform.core.aval import shape_of
from xform.core.errors import OperandError, ShapeError
from xform.core.stack import BOTTOM, apply, cursor
from xform.core.value import Value
from xform.ops.axes import axis_of
from xform.ops.broadcast import astype
from xform.ops.joining import make_concatenate, make_split, make_stack, make_unstack
from xform.ops.ranks import atleast_1d, atleast_2d, atleast_3d
from xform.ops.shapes import expand_dims, ravel, read_shape, reshape

__all__ = [
    "append",
    "array_split",
    "block",
    "column_stack",
    "concat",
    "concatenate",
    "dsplit",
    "dstack",
    "hsplit",
    "hstack",
    "nested",
    "split",
    "stack",
    "unstack",
    "vsplit",
    "vstack",
]

_get = cursor.get


def nested(x: Any) -> Any:
    """Return nested lists of arrays, numbers and values as one array or value; anything else as it is.

    >>> nested([[1.0, 2.0], [3.0, 4.0]]).shape
    (2, 2)
    """
    if not isinstance(x, tuple | list):
        return x
    if not holds_array(x):
        return np.asarray(x)
    lengths, leaves = [len(x)], list(x)
    while leaves and all(isinstance(each, tuple | list) and len(each) == len(leaves[0]) for each in leaves):
        lengths.append(len(leaves[0]))
        leaves = list(itertools.chain.from_iterable(leaves))
    out = apply(make_stack(0), *[nested(each) for each in leaves])
    return out if len(lengths) == 1 else reshape(out, (*lengths, *shape_of(out)[1:]))


def holds_array(x: Any) -> bool:
    """Whether nested lists hold a value, or an array that is not NumPy's."""
    if isinstance(x, tuple | list):
        return any(holds_array(each) for each in x)
    return isinstance(x, Value) or (hasattr(x, "__array_namespace__") and not isinstance(x, np.ndarray | np.generic))


def plain(arrays: Any) -> bool:
    """Whether a sequence holds NumPy arrays alone, and nothing stands on the stack."""
    return isinstance(arrays, tuple | list) and _get() is BOTTOM and all(type(x) is np.ndarray for x in arrays)


def sequence_of(name: str, arrays: Any) -> list[Any]:
    """Return the operands of a joining function: a sequence, or the rows of an array."""
    found = [nested(x) for x in arrays] if isinstance(arrays, tuple | list) else list(unstack(arrays))
    if not found:
        msg = f"{name}: needs at least one array"
        raise OperandError(msg)
    return found


def concatenate(arrays: Any, axis: int | None = 0, dtype: Any = None) -> Any:
    """Join arrays along an axis they have; with `axis=None`, all their elements.

    `arrays` is a sequence; each may be a nested list of values. Raises `ShapeError` where the other axes differ.

    >>> concatenate([np.ones((2, 3)), np.ones((1, 3))]).shape
    (3, 3)
    """
    if dtype is None and plain(arrays):
        try:
            return np.concatenate(arrays, axis)
        except (TypeError, ValueError):  # said again below, in our words
            pass
    parts = sequence_of("concatenate", arrays)
    if axis is None:
        parts, axis = [ravel(x) for x in parts], 0
    ndim = len(shape_of(parts[0]))
    if ndim == 0:
        msg = "concatenate: operand 0 has no axes; use stack for scalars"
        raise ShapeError(msg)
    out = apply(make_concatenate(axis_of("concatenate", axis, ndim, parts[0])), *parts)
    return out if dtype is None else astype(out, dtype)


def concat(arrays: Any, axis: int | None = 0, dtype: Any = None) -> Any:
    """Join arrays along an axis, under the name of the array API standard.

    >>> concat([np.ones(2), np.ones(1)]).shape
    (3,)
    """
    return concatenate(arrays, axis, dtype)


def append(arr: Any, values: Any, axis: int | None = None) -> Any:
    """Join two arrays along an axis; without one, all elements of both.

    >>> append(np.array([1.0, 2.0]), 3.0)
    array([1., 2., 3.])
    """
    return concatenate((arr, values), axis)


def block(arrays: Any) -> Any:
    """Join nested lists of blocks: the innermost along the last axis, those around along the one before, and so on.

    Raises `ShapeError` where blocks do not fit together or lists differ in depth.

    >>> block([[np.eye(1), np.zeros((1, 1))], [np.ones((1, 2))]])
    array([[1., 0.],
           [1., 1.]])
    """
    depth = depth_of(arrays)
    ndim = max(depth, *(len(shape_of(leaf)) for leaf in leaves_of(arrays)))
    return _blocks(arrays, depth, ndim)


def depth_of(arrays: Any) -> int:
    """Return how deep lists are nested.

    >>> depth_of([[1.0], [2.0]])
    2
    """
    if not isinstance(arrays, list):
        return 0
    depths = {depth_of(each) for each in arrays}
    if len(depths) != 1:
        msg = f"block: the lists must have the same depth, and be not empty; found depths {sorted(depths)}"
        raise ShapeError(msg)
    return 1 + depths.pop()


def leaves_of(arrays: Any) -> list[Any]:
    """Return what nested lists hold.

    >>> leaves_of([[1.0], [2.0]])
    [1.0, 2.0]
    """
    return [leaf for each in arrays for leaf in leaves_of(each)] if isinstance(arrays, list) else [arrays]


def _blocks(arrays: Any, depth: int, ndim: int) -> Any:
    if not isinstance(arrays, list):
        missing = ndim - len(shape_of(arrays))
        return expand_dims(arrays, tuple(range(missing))) if missing else arrays
    return concatenate([_blocks(each, depth - 1, ndim) for each in arrays], axis=-depth)


def stack(arrays: Any, axis: int = 0, dtype: Any = None) -> Any:
    """Join arrays of one shape, or numbers, along a new axis; raises `ShapeError` where shapes differ.

    >>> stack([np.ones(3), np.zeros(3)], axis=-1).shape
    (3, 2)
    """
    if dtype is None and plain(arrays):
        try:
            return np.stack(arrays, axis)
        except (TypeError, ValueError):  # said again below, in our words
            pass
    parts = sequence_of("stack", arrays)
    axis = axis_of("stack", axis, len(shape_of(parts[0])) + 1, parts[0])
    out = apply(make_stack(axis), *parts)
    return out if dtype is None else astype(out, dtype)


def unstack(x: Any, axis: int = 0) -> tuple[Any, ...]:
    """Return the arrays that lie along an axis, as a tuple.

    >>> len(unstack(np.ones((2, 3)), axis=1))
    3
    """
    shape = shape_of(x)
    axis = axis_of("unstack", axis, len(shape), x)
    return apply(make_unstack(axis), x) if shape[axis] != 0 else ()


def hstack(arrays: Any, dtype: Any = None) -> Any:
    """Join along the second axis, arrays of one axis along that.

    >>> hstack([np.ones((2, 1)), np.ones((2, 2))]).shape
    (2, 3)
    """
    parts = [atleast_1d(x) for x in sequence_of("hstack", arrays)]
    return concatenate(parts, 0 if len(shape_of(parts[0])) == 1 else 1, dtype)


def vstack(arrays: Any, dtype: Any = None) -> Any:
    """Join along the first axis, arrays of one axis as rows.

    >>> vstack([np.ones(3), np.ones((2, 3))]).shape
    (3, 3)
    """
    return concatenate([atleast_2d(x) for x in sequence_of("vstack", arrays)], 0, dtype)


def dstack(arrays: Any) -> Any:
    """Join along the third axis.

    >>> dstack([np.ones((2, 3)), np.ones((2, 3))]).shape
    (2, 3, 2)
    """
    return concatenate([atleast_3d(x) for x in sequence_of("dstack", arrays)], 2)


def column_stack(arrays: Any) -> Any:
    """Join along the second axis, arrays of one axis as columns.

    >>> column_stack([np.ones(3), np.ones((3, 2))]).shape
    (3, 3)
    """
    parts = [atleast_1d(x) for x in sequence_of("column_stack", arrays)]
    return concatenate([expand_dims(x, 1) if len(shape_of(x)) == 1 else x for x in parts], 1)


# ------------------------------------------------------------------ functions that split


def split(x: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Split into equal sections (an int), or at these indices of an axis; returns a list.

    Raises `OperandError` where the length is no multiple of the number of sections.

    >>> [part.shape for part in split(np.arange(6), 3)], [part.shape for part in split(np.arange(6), [1, 3])]
    ([(2,), (2,), (2,)], [(1,), (2,), (3,)])
    """
    return _split("split", x, indices_or_sections, axis, even=True)


def array_split(x: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Split as `split` does, into sections that need not be equal: the first ones are longer by one.

    >>> [part.shape for part in array_split(np.arange(5), 2)]
    [(3,), (2,)]
    """
    return _split("array_split", x, indices_or_sections, axis, even=False)


def hsplit(x: Any, indices_or_sections: Any) -> list[Any]:
    """Split along the second axis, an array of one axis along that.

    >>> [part.shape for part in hsplit(np.ones((2, 4)), 2)]
    [(2, 2), (2, 2)]
    """
    ndim = len(shape_of(x))
    if ndim == 0:
        msg = "hsplit: the operand has no axes"
        raise ShapeError(msg)
    return _split("hsplit", x, indices_or_sections, 0 if ndim == 1 else 1, even=True)


def vsplit(x: Any, indices_or_sections: Any) -> list[Any]:
    """Split along the first of at least two axes.

    >>> [part.shape for part in vsplit(np.ones((4, 2)), 2)]
    [(2, 2), (2, 2)]
    """
    return _split("vsplit", x, indices_or_sections, 0, even=True, least=2)


def dsplit(x: Any, indices_or_sections: Any) -> list[Any]:
    """Split along the third axis.

    >>> [part.shape for part in dsplit(np.ones((2, 2, 4)), 2)]
    [(2, 2, 2), (2, 2, 2)]
    """
    return _split("dsplit", x, indices_or_sections, 2, even=True, least=3)


def _split(name: str, x: Any, sections: Any, axis: int, *, even: bool, least: int = 1) -> list[Any]:
    shape = shape_of(x)
    if len(shape) < least:
        msg = f"{name}: the operand has shape {shape}; it needs {least} axes"
        raise ShapeError(msg)
    axis = axis_of(name, axis, len(shape), x)
    length = shape[axis]
    try:
        count = operator.index(sections)
    except TypeError:
        points = [operator.index(point) for point in sections]
    else:
        length = read_shape(x)[axis]
        points = even_points(name, count, length, even=even)
    if length is None and points != sorted(points):
        length = read_shape(x)[axis]
    if length is not None:
        cuts = [slice(start, stop).indices(length)[:2] for start, stop in itertools.pairwise([0, *points, None])]
        points = [start for start, _ in cuts[1:]]
        if points != sorted(points):  # parts that overlap, as slices do
            return [apply(make_split((start, max(start, stop)), axis), x)[1] for start, stop in cuts]
    elif points != sorted(points) or min(points, default=0) < 0:
        msg = f"{name}: the length of the axis is not known before run time; split at ascending indices, not {points}"
        raise ShapeError(msg)
    return list(apply(make_split(tuple(points), axis), x))


def even_points(name: str, count: int, length: int | None, *, even: bool) -> list[int]:
    """Return where to split an axis into `count` sections."""
    if length is None:
        msg = f"{name}: the length of the axis is not known before run time; give the indices to split at"
        raise ShapeError(msg)
    if count <= 0 or (even and length % count):
        msg = f"{name}: an axis of length {length} has no {count} equal sections; array_split takes unequal ones"
        raise OperandError(msg, sections=count)
    short, longer = divmod(length, count)
    sizes = [short + 1] * longer + [short] * (count - longer)
    return list(itertools.accumulate(sizes))[:-1]
