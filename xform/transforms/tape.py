"""The tape of reverse mode: what an entry is, and the walk backward.

1. An entry is a nested tuple `(sequence, code, residual, site, *parent entries)`. Children hold their parents and
   nothing else holds entries, so a dead branch is freed at once; a tuple of ints, raw arrays and such tuples is
   untracked by the garbage collector (an entry that holds values or operators costs 500 ns more on a long tape);
   nothing recurses.
2. `code` selects the step: `steps[code](cotangent, residual)` gives the cotangent of the one tracked operand. Codes
   below `FIRST` are structural (leaf, pass, several operands, a pullback, an output of several, scatter).
3. `site` is None where nothing stands below, else the forward `Place`: scopes and line.
4. The walk lists the reachable entries by sequence number and visits them in reverse. A cotangent is stored without a
   copy the first time; a buffer that the walk itself made by adding is added to in place.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np

from xform.core.aval import Aval, dtype_of
from xform.core.backend import HOST_TYPES, SCALAR_TYPES
from xform.core.errors import GradientError
from xform.core.place import Place
from xform.core.rules import settle_dtype
from xform.core.source import Site, describe, is_internal, warn_user
from xform.core.stack import apply
from xform.core.value import Value
from xform.layers import lifted
from xform.ops.arithmetic import add
from xform.ops.base import native
from xform.ops.create import zeros
from xform.ops.placement import make_put
from xform.ops.structural import scoped
from xform.transforms.plans import (
    AROUND,
    ARRAY_TYPES,
    CALL,
    LEAF,
    MANY,
    OUTPUT,
    PASS,
    SCATTER,
    Entry,
    names,
    steps,
)
from xform.transforms.rule_checks import checked_cotangents

__all__ = ["Walk", "collect", "first_consumers", "follow", "in_dtype_of", "release", "scope_of", "tell_untracked"]

# ------------------------------------------------------------------ backward


def collect(roots: Iterable[Entry]) -> list[Entry | None]:
    """Return the entries that are reachable from the roots, at their sequence numbers."""
    pending = list(roots)
    found: list[Entry | None] = [None] * (1 + max((entry[0] for entry in pending), default=-1))
    while pending:
        entry = pending.pop()
        sequence = entry[0]
        while found[sequence] is None:
            found[sequence] = entry
            if len(entry) != 5:
                if len(entry) == 4:
                    break
                pending.extend(entry[5:])
            entry = entry[4]
            sequence = entry[0]
    return found


def follow(entry: Entry, cotangent: Any) -> tuple[Entry, Any]:
    """Walk back on raw arrays from the only output, as long as each operation has one tracked operand.

    Nothing else leads to these entries, so that none has to be listed (W1: 30 us of 190). Returns where that ends.
    """
    try:
        while len(entry) == 5:
            code = entry[1]
            if code > SCATTER:
                cotangent = steps[code](cotangent, entry[2])  # type: ignore[misc]
            elif code != PASS:
                break
            entry = entry[4]
    except Exception as error:
        note(error, entry)
        raise
    return entry, cotangent


def first_consumers(entries: list[Entry | None], watched: Iterable[int]) -> dict[int, int]:
    """Return, for each watched sequence number, that of its earliest reachable consumer."""
    left = set(watched)
    found: dict[int, int] = {}
    for entry in entries:
        if entry is None:
            continue
        for parent in entry[4:]:
            if parent[0] in left:
                left.discard(parent[0])
                found[parent[0]] = entry[0]
        if not left:
            break
    return found


class Walk:
    """One backward pass: the cotangents by sequence number, and how contributions are added to them."""

    __slots__ = ("cotangents", "entries", "leaves", "owned", "pending", "raw", "watched")

    def __init__(self, entries: list[Entry | None], *, raw: bool, watched: bool) -> None:
        self.entries = entries
        self.cotangents: list[Any] = [None] * len(entries)
        self.owned: set[int] = set()  # buffers that this walk made, and nobody else has seen
        self.pending: dict[int, list[Any]] = {}  # scatters that wait, with something below
        self.leaves: dict[int, Any] = {}  # finished cotangents of what was attached, where nobody watches
        self.raw = raw
        self.watched = watched  # whether something below sees scopes and lines

    def seed(self, sequence: int, cotangent: Any) -> None:
        """Give an output its cotangent; repeated outputs add."""
        have = self.cotangents[sequence]
        self.cotangents[sequence] = cotangent if have is None else add(have, cotangent)

    def take(self, sequence: int) -> Any:
        """Return the finished cotangent of an entry, its waiting scatters added."""
        have = self.cotangents[sequence]
        if sequence in self.pending:
            have = self.cotangents[sequence] = self.scattered(sequence, have)
        return have

    def leaf(self, sequence: int) -> Any:
        """Return the finished cotangent of what was attached, after a walk that nobody watched."""
        have = self.leaves.get(sequence)
        return self.scattered(sequence, have) if sequence in self.pending else have

    def scattered(self, sequence: int, have: Any) -> Any:
        """Return a cotangent with the waiting scatters of its entry added."""
        waiting = self.pending.pop(sequence)
        rule, like = waiting[0][2], waiting[0][1][0]
        total = rule.scatter([(op, cotangent, likes[1:]) for op, likes, _, cotangent in waiting], like)
        return total if have is None else add(have, total)

    def run(self, start: int, stop: int) -> None:
        """Visit the entries `start, start - 1, ..., stop`."""
        if self.watched:
            self.run_watched(start, stop)
        else:
            self.run_unwatched(start, stop)

    def run_unwatched(self, start: int, stop: int) -> None:  # noqa: C901, PLR0912, PLR0915  (one straight path: a call costs 60 ns)
        """Visit entries where nobody sees scopes and lines: with nothing below, or layers that differentiate.

        Both lists lose their ends in step: what was visited is freed. Where no entry is, no cotangent is either.
        """
        cotangents, owned, next_entry, next_cotangent, pending, raw = (
            self.cotangents, self.owned, self.entries.pop, self.cotangents.pop, self.pending, self.raw
        )  # fmt: skip
        entry: Entry | None = None
        try:
            for _ in range(start - stop + 1):
                entry = next_entry()
                cotangent = next_cotangent()
                if cotangent is None or pending:
                    if entry is not None and entry[0] in pending and entry[1] != LEAF:
                        cotangent = self.scattered(entry[0], cotangent)
                    if cotangent is None:
                        continue
                code = entry[1]  # type: ignore[index]
                if code > SCATTER:
                    part = steps[code](cotangent, entry[2])  # type: ignore[misc, index]
                elif code == PASS:
                    part = cotangent
                elif code == MANY and len(entry[2]) == 4:  # type: ignore[index]
                    first, kept, code, other = entry[2]  # type: ignore[index]
                    step = steps[first]
                    part = cotangent if step is None else step(cotangent, kept)
                    parent = entry[4][0]  # type: ignore[index]
                    have = cotangents[parent]
                    if have is None:
                        cotangents[parent] = part
                    elif not raw:
                        cotangents[parent] = add(have, part)
                    elif parent in owned:
                        have += part
                        cotangents[parent] = have
                    else:
                        cotangents[parent] = have + part
                        owned.add(parent)
                    step = steps[code]
                    part = cotangent if step is None else step(cotangent, other)
                elif code == LEAF:
                    self.leaves[entry[0]] = cotangent  # type: ignore[index]
                    continue
                else:
                    self.structural(entry, cotangent)  # type: ignore[arg-type]
                    continue
                parent = entry[-1][0]  # type: ignore[index]
                have = cotangents[parent]
                if have is None:
                    cotangents[parent] = part
                elif not raw:
                    cotangents[parent] = add(have, part)
                elif parent in owned:
                    have += part
                    cotangents[parent] = have
                else:
                    cotangents[parent] = have + part
                    owned.add(parent)
        except Exception as error:
            note(error, entry)
            raise

    def run_watched(self, start: int, stop: int) -> None:
        """Visit entries where something below sees each step in its scope, with the forward line."""
        entries, cotangents = self.entries, self.cotangents
        entry: Entry | None = None
        try:
            for sequence in range(start, stop - 1, -1):
                entry = entries[sequence]
                if entry is None:
                    continue
                entries[sequence] = None
                if entry[1] == LEAF:
                    continue
                with backward_place(entry):
                    cotangent = self.take(sequence)
                    cotangents[sequence] = None
                    if cotangent is not None:
                        self.structural(entry, cotangent)
        except Exception as error:
            note(error, entry)
            raise

    def structural(self, entry: Entry, cotangent: Any) -> None:
        """Visit one entry of any kind."""
        code, residual = entry[1], entry[2]
        if code == LEAF:
            return
        if code == MANY:
            for position, parent in enumerate(entry[4:]):
                self.add(parent[0], step_of(residual[2 * position], cotangent, residual[2 * position + 1]))
        elif code == CALL:
            self.call(entry, cotangent)
        elif code == OUTPUT:
            position, count = residual
            slot = self.cotangents[entry[4][0]]
            if slot is None:
                slot = self.cotangents[entry[4][0]] = [None] * count
            slot[position] = cotangent
        elif code == SCATTER:
            self.scatter(entry[4][0], residual, cotangent)
        else:
            self.add(entry[4][0], step_of(code, cotangent, residual))

    def call(self, entry: Entry, cotangent: Any) -> None:
        """Call a pullback; what that of a user's rule returns is checked."""
        pullback, operands, op, fill, likes = entry[2]
        if op.multiple_outputs:
            if fill is not None:
                cotangent = tuple(
                    zeros_of(*like, raw=self.raw) if each is None else each
                    for each, like in zip(cotangent, fill, strict=True)
                )
            else:
                cotangent = tuple(cotangent)
        if likes is not None:  # a user's rule: other slots may share the array
            cotangent = tuple(map(shielded, cotangent)) if op.multiple_outputs else shielded(cotangent)
        found = pullback(cotangent)
        if likes is not None:
            found = tuple(map(shielded, checked_cotangents(op, found, likes)))
        for operand, parent in zip(operands, entry[4:], strict=True):
            part = found[operand]
            if part is not None:
                self.add(parent[0], part)

    def add(self, sequence: int, part: Any) -> None:
        """Add a contribution: existing + new."""
        have = self.cotangents[sequence]
        if have is None:
            self.cotangents[sequence] = part
        elif not self.raw:
            self.cotangents[sequence] = add(have, part)
        elif sequence in self.owned:
            have += part
            self.cotangents[sequence] = have
        else:
            self.cotangents[sequence] = have + part
            self.owned.add(sequence)

    def scatter(self, sequence: int, residual: Any, cotangent: Any) -> None:
        """Add the cotangent of an indexed value into the one buffer: O(k), not O(N)."""
        op, likes, rule = residual
        like = likes[0]
        if not (self.raw and isinstance(like, Aval) and type(cotangent) in HOST_TYPES):
            self.pending.setdefault(sequence, []).append((op, likes, rule, cotangent))
            return
        have = self.cotangents[sequence]
        if sequence not in self.owned or not isinstance(have, np.ndarray):
            have = np.zeros(like.shape, like.dtype) if have is None else np.array(have, like.dtype)
            self.owned.add(sequence)
            self.cotangents[sequence] = have
        rule.accumulate(op, have, cotangent, *likes[1:])


def shielded(x: Any) -> Any:
    """Return a read-only view of a raw array that passes to or from a user's code: who writes into it gets an error."""
    if type(x) is not np.ndarray or not x.flags.writeable:
        return x
    view = x.view()
    view.flags.writeable = False
    return view


def in_dtype_of(cotangent: Any, own: Any) -> Any:
    """Return a cotangent in the dtype of its primal, byte order and Python type included; of complex the real part."""
    kind = type(own)
    if kind in SCALAR_TYPES:
        found = cotangent if type(cotangent) in SCALAR_TYPES or isinstance(cotangent, Value) else cotangent.item()
        if type(found) is kind or isinstance(found, Value):
            return found
        return kind(found.real if kind is not complex else found)
    if kind not in ARRAY_TYPES or type(cotangent) not in ARRAY_TYPES:
        same = native(dtype_of(own)) == native(dtype_of(cotangent))
        return cotangent if same or type(cotangent) in SCALAR_TYPES else settle_dtype(cotangent, own)
    want, have = own.dtype, cotangent.dtype
    if have is want or have == want:
        return cotangent
    return (cotangent.real if have.kind == "c" and want.kind != "c" else cotangent).astype(want)


def step_of(code: int, cotangent: Any, residual: Any) -> Any:
    """Run one step."""
    step = steps[code]
    return cotangent if step is None else step(cotangent, residual)


def zeros_of(like: Any, home: str, *, raw: bool) -> Any:
    """Return zeros of an aval, or of a value of unknown shape, on a device; lifted where something stands below."""
    out = zeros(like.shape, like.dtype) if isinstance(like, Aval) else like * 0
    out = out if home == "cpu" else apply(make_put(home), out)
    return out if raw else lifted(out)


def entry_name(entry: Entry) -> str:
    """Return the name of the operator that an entry records."""
    code: int = entry[1]
    residual = entry[2]
    if code == CALL:
        return str(getattr(residual[2], "backward_name", residual[2].name))
    if code == SCATTER:
        return str(residual[0].name)
    if code in AROUND:
        code = residual[0]
    elif code == MANY:
        code = residual[1][0] if residual[0] in AROUND else residual[0]
    return names[code]


def scope_of(entry: Entry | None) -> tuple[str, Place | None]:
    """Return the scope of an entry's backward step, and the place of its forward operation."""
    assert entry is not None  # noqa: S101  (only reachable ones have consumers)
    name = entry_name(entry)
    return name if name == "CustomBackward" else f"{name}.Backward", entry[3]


def backward_place(entry: Entry) -> Any:
    """Return a context: the phase is backward, scopes and line are those of the forward operation.

    One of several outputs only hands its cotangent to the operation: that has the scope.
    """
    return nullcontext() if entry[1] == OUTPUT else scoped(*scope_of(entry), "backward")


def release(error: BaseException) -> None:
    """Free what the walk's own frames hold, which the traceback of an error would keep alive."""
    trace = error.__traceback__
    while trace is not None:
        if is_internal(trace.tb_frame.f_code.co_filename):
            with suppress(RuntimeError):  # those that still run
                trace.tb_frame.clear()
        trace = trace.tb_next


def note(error: Exception, entry: Entry | None) -> None:
    """Tell in an error of the backward phase which operation it belongs to, and its forward line where that is kept.

    With nothing below, operations of built-in operators keep no line (500 ns each); a layer below, `xf.Profile()` say,
    makes the tape keep it.
    """
    if entry is None:
        return
    if entry[3] is None:
        error.add_note(f"in the backward of {entry_name(entry)}; with xf.NanGuard() around, its line is known")
        return
    site: Site | None = entry[3].site
    error.add_note(f"in the backward of {entry_name(entry)}, recorded at {describe(site)}")


def tell_untracked(tape: Any, lost: list[bool], *, missed: bool) -> None:
    """Tell of outputs that a tape does not track: they are ignored, which would be zeros in silence.

    Raises `GradientError` where none of them is tracked and operations came after the first walk, which ended the
    record; warns where some are not then, and where none is at all.
    """
    if not any(lost) or not (missed or all(lost)):
        return
    numbers = [n for n, each in enumerate(lost) if each]
    if missed:
        msg = (
            f"{tape!r} does not track the outputs {numbers}: what is computed after its first walk is not recorded. "
            "Compute them before it, or with a Grad() of their own"
        )
        if all(lost):
            raise GradientError(msg, layer=tape)
        warn_user(msg)
    else:
        warn_user(f"{tape!r}: none of the outputs depends on what it has attached: nothing flows, gradients are zeros")
