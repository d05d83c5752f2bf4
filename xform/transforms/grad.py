"""Reverse mode: `Grad` is the layer that records a tape; the functions over it are in `transforms.reverse`."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar

import numpy as np

from xform import tree
from xform.core.aval import Aval, aval_of, dtype_of, shape_of
from xform.core.backend import HOST_TYPES, SCALAR_TYPES, is_raw
from xform.core.errors import GradientError, LayerError, OperandTypeError, ShapeError, TapeConsumedError, TreeError
from xform.core.memory import unshared
from xform.core.place import FORWARD, Place, place
from xform.core.source import Site, describe, user_site
from xform.core.stack import BOTTOM, Level, Transformation, check_rewriters, concrete, cursor, is_watched, levels, stack
from xform.core.value import Array, Value
from xform.layers import lifted
from xform.ops.broadcast import astype
from xform.ops.create import ones_like, zeros_like
from xform.ops.structural import scoped
from xform.transforms.guard import Guard, no_note
from xform.transforms.plans import ARRAY_TYPES, LEAF, PASS, Entry
from xform.transforms.recording import GradValue, place_on, tracked
from xform.transforms.tape import (
    Walk,
    collect,
    first_consumers,
    follow,
    in_dtype_of,
    release,
    scope_of,
    shielded,
    tell_untracked,
)  # fmt: skip

__all__ = ["Grad", "GradValue"]

_get = cursor.get
_set = cursor.set
_counter = itertools.count(1)
BACKWARD = Place(phase="backward")


class Grad(Transformation):
    """The layer that records a tape.

    1. `attach` gives a tracked handle; operations on tracked values are recorded; `gradient` or `backward` walk the
       tape once, inside the block (then below the tape) or after it (on the current stack).
    2. The first walk freezes the tape and consumes it, unless `retain=True`: what is computed after it is not recorded,
       and has no gradient (`GradientError`).
    3. `group=other`: the tapes of a group do not see each other's backward.
    4. `guard` says how it is noticed that NumPy has changed an array which the tape holds, which would give a wrong
       gradient: `"sample"` (the default) compares elements of the arrays that users have hold of, `"full"` checksums of
       all, `"off"` none. Raises `SavedArrayError`.

    >>> import numpy as np, xform as xf
    >>> with xf.Grad() as tape:
    ...     x = tape.attach(np.array([1.0, 2.0]))
    ...     y = (x * x).sum()
    >>> tape.gradient(y, x)
    array([2., 4.])
    """

    effect = "wraps"
    refuses: ClassVar[tuple[str, ...]] = ("rewrites",)
    watches = False

    def __init__(self, name: str | None = None, group: Grad | None = None, *, guard: str = "sample") -> None:
        self.name = f"grad#{next(_counter)}" if name is None else name
        # weak: a tape that held itself would live until the collector runs
        self.group: list[weakref.ref[Grad]] = [] if group is None else group.group
        self.group.append(weakref.ref(self, self.group.remove))
        self.paused = 0
        self.foreign = False  # whether arrays of other libraries than NumPy were recorded
        self.site: Site | None = None
        self.guard = Guard(guard) if guard != "off" else None
        # what remembers an array that an operation saves, and what it remembers, by number
        self.note: Callable[..., None] = no_note if self.guard is None else self.guard.note
        self.noted: dict[int, Any] = {} if self.guard is None else self.guard.saved
        self.straight: Level | None = None  # where operations on values take the straight paths
        self._state = "new"
        self.walked = self.missed = False  # after the first walk nothing is recorded, and whether something would be
        self._bare = False  # whether nothing stands below
        self.sequence = itertools.count().__next__
        self._kinds: dict[int, str] = {}
        self._callbacks: dict[int, list[Callable[[Any], Any]]] = {}
        self._markers: dict[int, Callable[[], Any]] = {}

    def __repr__(self) -> str:
        return f"Grad({self.name})"

    def __getstate__(self) -> None:
        msg = f"{self!r} cannot be pickled or copied: it holds the record of one block; make another xf.Grad()"
        raise OperandTypeError(msg, value=self)

    # -------------------------------------------------------------- the stack

    def on_register(self) -> None:
        """Start the record; a tape records one block."""
        if self._state != "new":
            msg = f"{self!r} has recorded a block already; a tape records once: make another Grad()"
            raise LayerError(msg, layer=self)
        self._state = "recording"
        if self.site is None:  # functions that make tapes give their own: a frame walk costs 1 us
            self.site = user_site()

    def on_unregister(self) -> None:
        """End the record: values can still be read, and be given to `gradient`."""
        self.ended = True
        self.paused += 1
        self.straight = None  # it holds the tape
        if self._state == "recording":
            self._state = "ended"

    def place_on(self, below: Level) -> Level:
        """Return the level at which this tape records."""
        self._bare = below is BOTTOM
        return place_on(self, below)

    # -------------------------------------------------------------- what users call

    def attach(self, x: Any, callback: Callable[[Any], Any] | None = None) -> Any:
        """Return a tracked handle of a value; `callback(cotangent)` runs in backward, once.

        Takes a raw array, a Python float or a value of a layer below; a value that this tape tracks gets a handle of
        its own in mid-recording. Raises `GradientError` for integers, `OperandTypeError` for what is no array.
        """
        if self._state != "recording":
            msg = f"{self!r}.attach: the tape is not recording; attach inside its with block"
            raise LayerError(msg, layer=self)
        if type(x) is np.ndarray and callback is None and self._bare and x.dtype.kind == "f":  # 1 us less a leaf
            entry: Entry = (self.sequence(), LEAF, None, None)
            self._kinds[entry[0]] = "raw"
            return tracked(self, x, entry)
        if isinstance(x, Value) and x.owner is not None and x.owner is not self and self._is_above(x.owner):
            return x.owner.rewrap(x, self.attach(x.data, callback))
        if type(x) is GradValue and x.owner is self:
            entry = (self.sequence(), PASS, None, None, x.entry)
            data = x.data
            self.note(concrete(data), "attach")
        else:
            if not isinstance(x, Value) and not is_raw(x):
                found = type(x).__name__
                msg = f"attach: expected an array or a number, got {found}; convert it with xform.numpy.array"
                raise OperandTypeError(msg, value=x)
            require_inexact(x, "attach: the value")
            entry = (self.sequence(), LEAF, None, None)
            kind = "raw" if not isinstance(x, Value) else "array" if type(x) is Array else "value"
            if type(x) in SCALAR_TYPES:
                kind = "scalar"
            self._kinds[entry[0]] = kind
            raw = self._bare
            data = x.data if raw and type(x) is Array else x if raw else lifted(x)
        if callback is not None:
            self._callbacks.setdefault(entry[0], []).append(callback)
        return tracked(self, data, entry)

    def is_attached(self, value: Any) -> bool:
        """Whether this tape tracks a value, also beneath what layers above made of it."""
        return self._own(value) is not None

    def _own(self, value: Any) -> GradValue | None:
        """Return the value as this tape made it, beneath what layers above made of it; None where there is none."""
        while isinstance(value, Value):
            if type(value) is GradValue and value.owner is self:
                return value
            value = value.data
        return None

    def on_backward(self, fun: Callable[[], Any]) -> None:
        """Run `fun()` when a walk passes this point of the record; kept though nothing refers to it."""
        if self._state != "recording":
            msg = f"{self!r}.on_backward: the tape is not recording; call it inside its with block"
            raise LayerError(msg, layer=self)
        self._markers[self.sequence()] = fun

    def freeze(self) -> None:
        """Stop recording: values of this tape act as their plain values from here on.

        Raises `LayerError` in a function that is recorded, as `suppressed` does.
        """
        self._refuse_recorded("freeze")
        self._end_recording()

    def _end_recording(self) -> None:
        if self._state == "recording":
            self._state = "frozen"
            self.paused += 1

    @contextmanager
    def suppressed(self) -> Iterator[None]:
        """Record nothing inside the block, in any thread: values of this tape act as their plain values. Nests.

        Raises `LayerError` in a function that is recorded, a loop's body say: `xf.stop_gradient` does it there.
        """
        self._refuse_recorded("suppressed")
        self.paused += 1
        try:
            yield
        finally:
            self.paused -= 1

    def _refuse_recorded(self, method: str) -> None:
        """Raise where a layer above records for later: its record holds operations, not what a tape took of them."""
        layers = stack()
        above = layers[: layers.index(self)] if self in layers else ()
        recorder = next((layer for layer in above if layer.records), None)
        if recorder is not None:
            msg = (
                f"{self!r}.{method}() at {describe(user_site())}, in a function that {recorder!r} records (a loop, a "
                "branch, an equation, a traced function), would not last: the record holds the operations alone. "
                "Write xf.stop_gradient(v) there"
            )
            raise LayerError(msg, layer=self, other=recorder)

    @contextmanager
    def suspended_siblings(self, *, own: bool = False) -> Iterator[None]:
        """Suspend the tapes of this group (with `own`, this one too)."""
        members = [tape for each in list(self.group) if (tape := each()) is not None and (own or tape is not self)]
        for tape in members:
            tape.paused += 1
        try:
            yield
        finally:
            for tape in members:
                tape.paused -= 1

    def handed_out(self, results: Any, by: str) -> None:
        """Let the guard remember arrays that a user gets while this tape may still walk: it may have saved them."""
        if self.guard is not None:
            for leaf in tree.leaves(results):
                self.guard.note(concrete(leaf), by)

    def gradient(self, ys: Any, xs: Any, dys: Any = None, retain: bool = False) -> Any:
        """Return the cotangents of `xs`, in their structure; zeros where nothing flows.

        `ys` are one or several outputs (containers are taken), `dys` their cotangents; a scalar needs none. Raises
        `TapeConsumedError` on a second call without `retain=True`.
        """
        leaves, structure = tree.flatten(xs)
        outputs, given = self._paired(ys, dys)
        tell_untracked(self, [self._own(y) is None for y in outputs], missed=self.missed)
        return tree.unflatten(structure, self.gradients(outputs, leaves, given, retain=retain))

    def gradients(
        self, ys: list[Any], xs: list[Any], dys: list[Any] | None = None, *, retain: bool = False
    ) -> list[Any]:
        """Return the cotangents of a flat list of handles, from flat lists of outputs and cotangents."""
        handles = []
        for x in xs:
            handle = self._own(x)
            if handle is None:
                msg = f"{self!r}.gradient: {x!r} is not tracked by this tape; take the handle that attach returned"
                raise GradientError(msg, value=x)
            handles.append(handle)
        wanted = [handle.entry[0] for handle in handles]
        found = self._backward(ys, dys, wanted, retain=retain)
        delivered = [self._delivered(x, found.get(sequence)) for x, sequence in zip(handles, wanted, strict=True)]
        return unshared(delivered, () if dys is None else tree.leaves(dys))

    def backward(self, ys: Any, dys: Any = None, retain: bool = False) -> None:
        """Walk back from `ys`; the callbacks of attached values receive their cotangents."""
        outputs, given = self._paired(ys, dys)
        tell_untracked(self, [self._own(y) is None for y in outputs], missed=self.missed)
        self._backward(outputs, given, [], retain=retain)

    def backward_closure(self, ys: Any) -> Callable[..., None]:
        """Freeze the tape and return `closure(dys=None)`, which walks back from `ys`; it can be called many times."""
        self._end_recording()

        def closure(dys: Any = None) -> None:
            self._backward(*self._paired(ys, dys), [], retain=True)

        return closure

    # -------------------------------------------------------------- the walk

    def _paired(self, ys: Any, dys: Any) -> tuple[list[Any], list[Any] | None]:
        """Return flat lists of outputs and of their cotangents, None where one is missing."""
        leaves, structure = tree.flatten(ys)
        if dys is None:
            return leaves, None
        try:
            given = tree.flatten_up_to(structure, dys)
            deeper = tree.leaves(given, is_leaf=lambda dy: dy is None)
            if len(deeper) == len(leaves) or all(type(dy) in SCALAR_TYPES for dy in deeper):
                return leaves, given
            msg = f"{self!r}: {len(leaves)} outputs but {len(deeper)} cotangents"
            raise GradientError(msg)
        except TreeError as error:
            given = tree.leaves(dys, is_leaf=lambda dy: dy is None)  # a tuple of cotangents for a list of outputs
            if len(given) == len(leaves):
                return leaves, given
            msg = f"{self!r}: the cotangents must have the structure of the {len(leaves)} outputs, {structure}: {error}"
            raise GradientError(msg) from error

    def _backward(self, ys: list[Any], dys: list[Any] | None, wanted: list[int], *, retain: bool) -> dict[int, Any]:
        if self._state == "consumed":
            msg = f"{self!r} was consumed by an earlier backward pass; give that one retain=True to walk again"
            raise TapeConsumedError(msg, layer=self)
        seeds = self._seeds(ys, dys)
        if self.guard is not None and (changed := self.guard.changes()):
            self.guard.refuse(changed, collect([y.entry for y, _ in seeds]), self)
        self._end_recording()
        self.walked = True
        level = self._level()
        below = _get() if level is None else level.below
        here = _get()
        raw = below is BOTTOM and not self.foreign
        where = place.get()
        _set(below)  # type: ignore[arg-type]
        place.set(
            BACKWARD if where is FORWARD else Place(where.scopes, "backward", where.site, where.loop, where.iteration)
        )
        try:
            if not raw:
                check_rewriters(self)
            starts = [(y.entry, dy if dy is not None else one_like(y.data, raw=raw)) for y, dy in seeds]
            if not retain:
                self._state = "consumed"
                for y, _ in seeds:
                    y.entry = (y.entry[0], LEAF, None, None)
            if len(self.group) == 1:
                return self._walk(starts, wanted, raw=raw)
            with self.suspended_siblings():
                return self._walk(starts, wanted, raw=raw)
        except BaseException as error:
            release(error)
            raise
        finally:
            _set(here)
            place.set(where)

    def _walk(self, starts: list[tuple[Entry, Any]], wanted: list[int], *, raw: bool) -> dict[int, Any]:
        """Walk back from `starts`, entries and their cotangents, which are taken out of the list."""
        watched = not raw and is_watched()
        leaves = [] if watched else [sequence for sequence in wanted if sequence in self._kinds]
        if leaves:  # they are kept as they are met, 1 us less each
            wanted = [sequence for sequence in wanted if sequence not in self._kinds]
        if raw and len(starts) == 1 and not (wanted or self._callbacks or self._markers):
            entry, cotangent = follow(*starts.pop())
            if entry[1] == LEAF:
                return {entry[0]: cotangent}
            starts.append((entry, cotangent))
        entries = collect([entry for entry, _ in starts])
        walk = Walk(entries, raw=raw, watched=watched)
        for entry, cotangent in starts:
            walk.seed(entry[0], cotangent if raw else lifted(cotangent))
        starts.clear()
        entry = cotangent = None  # type: ignore[assignment]  # what was walked is freed
        found: dict[int, Any] = {}
        at = len(entries) - 1
        for stop, actions in self._stops(entries, wanted, found):
            walk.run(at, stop)
            at = min(at, stop - 1)
            for action in actions:
                action(walk)
        walk.run(at, 0)
        for sequence in leaves:
            found[sequence] = walk.leaf(sequence)
        return found

    def _stops(self, entries: list[Entry | None], wanted: list[int], found: dict[int, Any]) -> list[tuple[int, Any]]:
        """Return what is done between the steps, in the order of the walk: `(after which entry, actions)`.

        A wanted cotangent is taken when the walk reaches its value; a callback runs after the earliest reachable
        consumer of its value, in the scope of that step; a marker where it stands in the record.
        """
        stops: dict[int, list[Callable[[Walk], None]]] = {}
        size = len(entries)
        for sequence in set(wanted):
            if sequence < size:
                stops.setdefault(sequence + 1, []).append(functools.partial(take_into, found, sequence))
        if self._callbacks:
            consumers = first_consumers(entries, self._callbacks)
            for sequence, callbacks in self._callbacks.items():
                if sequence < size:
                    consumer = consumers.get(sequence)
                    scope = None if consumer is None else scope_of(entries[consumer])
                    at = sequence + 1 if consumer is None else consumer
                    stops.setdefault(at, []).append(functools.partial(call_back, callbacks, sequence, scope))
        for sequence, marker in self._markers.items():
            stops.setdefault(sequence + 1, []).append(functools.partial(call_marker, marker))
        return sorted(stops.items(), reverse=True)

    def _seeds(self, leaves: list[Any], dys: list[Any] | None) -> list[tuple[GradValue, Any]]:
        given = [None] * len(leaves) if dys is None else dys
        seeds = []
        for leaf, dy in zip(leaves, given, strict=True):
            y = self._own(leaf)
            if y is None:
                continue
            if dys is None:
                shape = shape_of(y.data)
                if shape != ():
                    msg = f"gradient of an output of shape {shape} needs its cotangent: pass dys of that shape"
                    raise GradientError(msg, value=y)
                seeds.append((y, None))
            elif dy is not None:
                seeds.append((y, _fitting(dy, aval_of(y.data))))
        return seeds

    def _delivered(self, leaf: GradValue, cotangent: Any) -> Any:
        """Return a cotangent as the kind that was attached; zeros where nothing flowed."""
        kind = self._kinds.get(leaf.entry[0], "value")
        own = leaf.data
        if kind == "raw" and type(cotangent) is type(own) is np.ndarray and cotangent.dtype is own.dtype:
            return cotangent
        if cotangent is None:
            cotangent = zeros_like(leaf.data)
        made = type(cotangent)
        if kind == "value" or (made is not np.ndarray and made is not Array and isinstance(cotangent, Value)):
            return in_dtype_of(cotangent, leaf.data)
        own = leaf.data.data if type(leaf.data) is Array else leaf.data
        raw = cotangent.data if made is Array else cotangent
        if type(raw) is not np.ndarray or type(own) is not np.ndarray or raw.dtype is not own.dtype:
            raw = in_dtype_of(raw, own)
        if kind == "array":
            out = Array()
            out.data = raw
            return out
        if kind == "scalar":
            return raw
        if type(own) is np.ndarray:  # NumPy's operators make scalars of 0-d arrays
            return raw if type(raw) not in HOST_TYPES else np.asarray(raw, own.dtype)
        return raw[()] if type(raw) is np.ndarray else raw

    def _level(self) -> Level | None:
        level: Level | None = _get()
        while level is not None and level.layer is not self:
            level = level.below
        return level

    def _is_above(self, owner: Any) -> bool:
        """Whether a layer stands above this one on the current stack."""
        order = [level.layer for level in levels()]
        return owner in order and self in order and order.index(owner) < order.index(self)


def one_like(y: Any, *, raw: bool) -> Any:
    """Return the cotangent of a scalar output that has been given none."""
    return y.dtype.type(1) if raw and type(y) in ARRAY_TYPES else ones_like(y)


def take_into(found: dict[int, Any], sequence: int, walk: Walk) -> None:
    """Keep the finished cotangent of a wanted value."""
    found[sequence] = walk.take(sequence)


def call_back(
    callbacks: list[Callable[[Any], Any]], sequence: int, step: tuple[str, Place | None] | None, walk: Walk
) -> None:
    """Call the callbacks of an attached value with its finished cotangent, in scope and place of a step.

    Without a cotangent none is called.
    """
    cotangent = walk.take(sequence)
    if cotangent is not None:
        with nullcontext() if step is None else scoped(*step, "backward"):
            for callback in callbacks:
                callback(shielded(cotangent))


def call_marker(marker: Callable[[], Any], walk: Walk) -> None:
    """Call what `on_backward` left at this point."""
    marker()


def require_inexact(x: Any, what: str) -> None:
    """Raise `GradientError` for a value that has no derivative."""
    dtype = dtype_of(x)
    if dtype.kind not in "fc":
        remedy = "float(x)" if type(x) in SCALAR_TYPES else "x.astype(float)"
        msg = f"{what} has dtype {dtype}; gradients need floating point: pass {remedy}, or leave it out of argnums"
        raise GradientError(msg, value=x)


def _fitting(dy: Any, aval: Aval) -> Any:
    """Return a cotangent of the output's shape and dtype; raises `ShapeError` where it does not fit."""
    if not isinstance(dy, Value) and not is_raw(dy):
        dy = np.asarray(dy)
    have = aval_of(dy)
    if have.shape != aval.shape:
        msg = f"the cotangent has shape {have.shape}, its output {aval.shape}"
        raise ShapeError(msg, value=dy)
    if have.dtype != aval.dtype:
        if have.dtype.kind == "c" and aval.dtype.kind != "c":
            msg = f"the cotangent has dtype {have.dtype}, its output {aval.dtype}"
            raise GradientError(msg, value=dy)
        return dy if have.weak and aval.weak else astype(dy, aval.dtype)
    return dy
