"""Arrays that a Python loop fills: `out = xf.buffer(shape, dtype)`, `out[i] = v`, `y = out.value()`.

1. A write keeps the value and where it goes; `value()` makes the array of all of them in one operation, `Fill`. So a
   tape, a trace, a batch or a device sees one operation, whatever they made of the values, and N writes and their
   cotangents cost O(N) together, where N functional updates `x.at[i].set(v)` cost O(N^2).
2. No slot is written twice. Slots that were not written are 0.
3. An index decides where a value goes, so it is read at the write: one that is traced or batched raises.
"""

from __future__ import annotations

import operator
from typing import Any, NoReturn

import numpy as np

from xform.core.aval import Aval, as_numpy_dtype, aval_of
from xform.core.backend import SCALAR_TYPES, is_raw, namespace_of
from xform.core.devices import to_host
from xform.core.errors import DtypeError, IndexOperandError, OperandError, OperandTypeError, ShapeError, WriteError
from xform.core.rules import batch_rule, jvp_rule, vjp_rule
from xform.core.source import Site, describe, user_site
from xform.core.stack import apply, concrete
from xform.core.value import Array, Value
from xform.ops.base import native
from xform.ops.index_layout import Index, encode, from_sequence, plain
from xform.ops.indexing import (
    ScatterAdd,
    blank,
    parts_of,
    scatter_add_batch,
    scatter_add_jvp,
    scatter_add_vjp,
)
from xform.ops.positions import copied, may_repeat, set_into
from xform.ops.shapes import reshape
from xform.ops.stacking import nested
from xform.ops.structural import HostRead

__all__ = ["Buffer", "Fill", "buffer"]


class Fill(ScatterAdd):
    """Zeros with parts set at disjoint places: what `ScatterAdd` gives there, bit for bit the parts themselves."""

    __slots__ = ()

    def evaluate(self, xp: Any, *operands: Any) -> Any:
        """Set all parts into one array."""
        out = blank(xp, self.shape, self.dtype, operands)
        for index, part, others in parts_of(self.of, operands):
            out = set_into(xp, out, index, others, part)
        return out


vjp_rule(Fill)(scatter_add_vjp)
jvp_rule(Fill)(scatter_add_jvp)
batch_rule(Fill)(scatter_add_batch)

READ = HostRead("asarray")


class Buffer:
    """An array under construction, see `buffer`."""

    __slots__ = ("_kept", "_of", "_sites", "_whole", "_written", "dtype", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.shape = shape
        self.dtype = dtype
        self._of: list[Index] = []
        self._kept: list[Any] = []  # for each write its value and the index arrays
        self._sites: list[Site] = []
        self._written = np.zeros(shape, np.int32)  # the number of the write, from 1
        self._whole: Any = None

    def __repr__(self) -> str:
        state = f"{len(self._of)} writes" if self._whole is None else "finished"
        return f"Buffer<{Aval(self.shape, self.dtype)!r}, {state}>"

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __len__(self) -> int:
        if not self.shape:
            msg = f"len() of {self!r}: it has no axes"
            raise OperandTypeError(msg, value=self)
        return self.shape[0]

    def __setitem__(self, index: Any, value: Any) -> None:
        site = user_site()
        if self._whole is not None:
            msg = f"{slot(index)} at {describe(site)}: the buffer is finished, value() was called; write before that"
            raise WriteError(msg, value=self)
        of, operands, before = self._place(index, site)
        value = self._fitting(index, value, before.shape, site)
        if before.any():
            self._refuse_overlap(index, (of, operands), site)
        where = plain(of, operands)
        if may_repeat(of, operands):
            self._refuse_repeats(index, where, site)
        self._of.append(of)
        self._sites.append(site)
        self._kept += [value, *operands]
        self._written[where] = len(self._of)

    def _place(self, index: Any, site: Site) -> tuple[Index, tuple[Any, ...], Any]:
        """Return entries and arrays of an index, and which writes its slots have seen."""
        try:
            of, operands = encode(read_index(index), None)
            arrays = tuple(map(np.array, operands))
            before = self._written[plain(of, arrays)]
        except IndexError as error:
            msg = f"{slot(index)} at {describe(site)}, of {self!r}: {error}"
            raise IndexOperandError(msg, index=index, value=self) from error
        return of, arrays, before

    def _fitting(self, index: Any, value: Any, shape: tuple[int, ...], site: Site) -> Any:
        """Return a value to keep for slots of this shape: plain arrays are copied, as an assignment does."""
        value = nested(value)
        if not (isinstance(value, Value) or is_raw(value)) or aval_of(value).dtype.kind not in KINDS:
            hint = "its value()" if isinstance(value, Buffer) else "an array of numbers, or a number"
            msg = f"{slot(index)} = {type(value).__name__} at {describe(site)}: write {hint}"
            raise OperandTypeError(msg, value=value)
        aval = aval_of(value)
        self._require_dtype(index, value, aval, site)
        own = aval.shape
        extra = len(own) - len(shape)
        if extra > 0 and all(length == 1 for length in own[:extra]):
            value, own, extra = reshape(value, own[extra:]), own[extra:], 0
        ends = zip(own, shape[len(shape) - len(own) :], strict=True) if extra <= 0 else ()
        if extra > 0 or any(length not in (1, None, want) for length, want in ends):
            msg = f"{slot(index)} at {describe(site)}: a value of shape {own} does not fit slots of shape {shape}"
            raise ShapeError(msg, value=value)
        return kept(value)

    def _require_dtype(self, index: Any, value: Any, aval: Aval, site: Site) -> None:
        """Raise where a value would lose its imaginary part, its fraction, or its range if it is a Python int."""
        have, own = aval.dtype, self.dtype
        if KINDS[have.kind] > KINDS[own.kind]:
            msg = (
                f"{slot(index)} at {describe(site)}: a value of dtype {have} does not fit a buffer of dtype {own}; "
                f"make it with xf.buffer(shape, {have.name!r}), or write v.astype({own.name!r})"
            )
            raise DtypeError(msg, value=value)
        if type(value) is int and own.kind in "iu" and not np.iinfo(own).min <= value <= np.iinfo(own).max:
            msg = f"{slot(index)} at {describe(site)}: {value} is out of bounds for a buffer of dtype {own}"
            raise OperandError(msg, value=value)

    def _refuse_overlap(self, index: Any, at: tuple[Index, tuple[Any, ...]], site: Site) -> NoReturn:
        where = plain(*at)
        numbers = np.arange(self._written.size).reshape(self.shape)[where]
        taken = np.asarray(self._written[where]) > 0
        first = int(np.asarray(numbers)[taken][0])
        element = tuple(map(int, np.unravel_index(first, self.shape))) if self.shape else ()
        earlier = self._sites[int(self._written[element]) - 1]
        msg = (
            f"{slot(index)} at {describe(site)}: the element {element} was written already at {describe(earlier)}; a "
            "slot of a buffer is written once: compute the final value first, e.g. total = total + v"
        )
        raise WriteError(msg, value=self, index=index, element=element)

    def _refuse_repeats(self, index: Any, where: tuple[Any, ...], site: Site) -> None:
        """Raise where index arrays name a slot twice: of the numbers -1, -2, ... that are set, one is lost."""
        order = -1 - np.arange(self._written[where].size, dtype=np.int32).reshape(self._written[where].shape)
        self._written[where] = order
        found = self._written[where]
        self._written[where] = 0
        if not np.array_equal(found, order):
            lost = np.argwhere(found != order)[0]
            msg = (
                f"{slot(index)} at {describe(site)}: the index names a slot twice (entry {tuple(map(int, lost))} and a "
                "later one); a slot of a buffer is written once"
            )
            raise WriteError(msg, value=self, index=index)

    def value(self) -> Any:
        """Return the array: raw where all values were, else tracked; the same object at every call."""
        if self._whole is None:
            fill = Fill(tuple(self._of), self.shape, self.dtype.name)
            self._whole = apply(fill, *self._operands())
            self._of, self._kept, self._sites = [], [], []
        return self._whole

    def _operands(self) -> list[Any]:
        """Return values and index arrays, those in the library and on the device of the values."""
        raws = [concrete(each) for each in self._kept]
        home = next((raw for raw in raws if raw is not None and namespace_of(raw) is not np), None)
        if home is None:
            return self._kept
        operands = []
        for _, value, others in parts_of(tuple(self._of), self._kept):
            operands += [value, *[from_sequence(each, home) for each in others]]
        return operands

    def __getitem__(self, index: Any) -> NoReturn:
        msg = (
            f"reading {slot(index)} at {describe(user_site())}: a buffer is written only, and complete at out.value(); "
            "keep what the loop still needs in a variable: h = f(h); out[i] = h"
        )
        raise OperandTypeError(msg, value=self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        msg = f"{self!r} is no array yet, at {describe(user_site())}: take out.value()"
        raise OperandTypeError(msg, value=self)


#: which kinds of numbers hold which
KINDS = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}


def kept(value: Any) -> Any:
    """Return a value that changes of plain arrays do not reach: an assignment copies."""
    if type(value) is Array:
        out = Array()
        out.data = kept(value.data)
        return out
    return value if isinstance(value, Value) or type(value) in SCALAR_TYPES else copied(namespace_of(value), value)


def read_index(index: Any) -> Any:
    """Return an index with the numbers of what is a value in it; raises where a layer would lose it."""
    return tuple(map(read_item, index)) if type(index) is tuple else read_item(index)


def read_item(item: Any) -> Any:
    """Return one part of an index with the numbers of what is a value in it."""
    if isinstance(item, slice):
        return slice(read_item(item.start), read_item(item.stop), read_item(item.step))
    if isinstance(item, tuple | list):
        item = nested(item)
    return to_host(apply(READ, item)) if isinstance(item, Value) else item


def slot(index: Any) -> str:
    """Return an index as it is written.

    >>> slot((0, slice(1, None), ...)), slot(np.array([1, 2]))
    ('out[0, 1:, ...]', 'out[[1, 2]]')
    """
    items = index if type(index) is tuple else (index,)
    return f"out[{', '.join(map(shown, items)) or '()'}]"


def shown(item: Any) -> str:
    """Return one part of an index as it is written."""
    if item is Ellipsis:
        return "..."
    if isinstance(item, slice):
        bounds = [item.start, item.stop] if item.step is None else [item.start, item.stop, item.step]
        return ":".join("" if bound is None else str(bound) for bound in bounds)
    return f"{item.tolist() if isinstance(item, np.ndarray) and item.size < 10 else item!r:.60}"


def buffer(shape: Any, dtype: Any = float) -> Buffer:
    """Return a buffer of a shape and dtype, to be filled in a loop: `out[i] = v`, then `out.value()`.

    `i` is any index of ints, slices, `...`, None and integer or boolean arrays; `v` an array, a number or a value of
    any layer that broadcasts to the slots, and of a dtype that fits as in a NumPy assignment, except that nothing is
    cut off: no complex number fits into floats, no float into integers. Slots that are not written are 0. Nothing is
    read back before `value()`, which can be called again for the same array and ends the writing. Filling and its
    derivatives cost O(N) for N elements.

    Raises `WriteError` for a slot that was written already, naming both lines, and for a write after `value()`;
    `ShapeError`, `DtypeError` and `IndexOperandError` for what does not fit, naming slot and line.

    >>> import numpy as np, xform as xf
    >>> def powers(x):
    ...     out, h = xf.buffer(3), 1.0
    ...     for i in range(3):
    ...         h = h * x
    ...         out[i] = h
    ...     return out.value()
    >>> powers(2.0), xf.grad(lambda x: powers(x).sum())(2.0)
    (array([2., 4., 8.]), 17.0)
    """
    lengths = shape if isinstance(shape, tuple | list) else (shape,)
    if any(length is None for length in lengths):
        msg = f"buffer at {describe(user_site())}: the shape {tuple(lengths)} is not known before run time"
        raise ShapeError(msg, shape=shape)
    sizes = tuple(map(operator.index, lengths))
    if min(sizes, default=0) < 0:
        msg = f"buffer at {describe(user_site())}: the shape {sizes} has a negative length"
        raise ShapeError(msg, shape=shape)
    found = as_numpy_dtype(dtype)
    if found.kind not in KINDS:
        msg = f"buffer at {describe(user_site())}: values are numbers and booleans, got dtype {found}"
        raise DtypeError(msg, dtype=found)
    return Buffer(sizes, native(found))
