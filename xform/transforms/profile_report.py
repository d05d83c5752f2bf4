"""What a profile measured, as text, as HTML, and as a Chrome trace."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable
from typing import Any, NamedTuple

import attrs

__all__ = ["Event", "Line", "Row", "chrome_events", "html_of", "rows_by", "text_of"]

Shapes = tuple[tuple[int | None, ...] | str, ...]


class Event(NamedTuple):
    """One operation or scope that ended; times in nanoseconds."""

    name: str
    kind: str
    path: tuple[str, ...]
    phase: str
    start: int
    end: int
    shapes: Shapes
    size: int
    thread: int
    error: str | None
    loop: str | None = None
    iteration: int | None = None

    @property
    def calls(self) -> int:
        """It happened once."""
        return 1


@attrs.define(slots=True)
class Row:
    """Sums over all calls of one operator (or scope) in one scope, phase and loop, on operands of the same shapes."""

    kind: str
    name: str
    path: tuple[str, ...]
    phase: str
    shapes: Shapes
    loop: str | None = None
    calls: int = 0
    total: int = 0
    own: int = 0
    size: int = 0
    failures: int = 0


@attrs.define(slots=True)
class Line:
    """One line of a table: rows that belong together."""

    label: str
    phase: str
    calls: int = 0
    total: int = 0
    own: int = 0
    size: int = 0
    failures: int = 0
    operations: int = 0
    shapes: dict[Shapes, int] = attrs.field(factory=dict)

    def add(self, row: Row) -> None:
        """Add a row."""
        self.calls += row.calls
        self.total += row.total
        self.own += row.own
        self.size += row.size
        self.failures += row.failures
        self.shapes[row.shapes] = self.shapes.get(row.shapes, 0) + row.calls

    @property
    def detail(self) -> str:
        """The shapes that came most often, and how many others there were."""
        if not self.shapes:
            return ""
        most = max(self.shapes, key=lambda shapes: self.shapes[shapes])
        text = shown(most)
        text = f"{text} and {len(self.shapes) - 1} others" if len(self.shapes) > 1 else text
        return f"{text}; {self.failures} failed" if self.failures else text


def shown(shapes: Shapes) -> str:
    """Return shapes as text.

    >>> shown(((2, 3), (), (None,)))
    '(2, 3) () (?)'
    """
    return " ".join(
        shape if isinstance(shape, str) else "(" + ", ".join("?" if n is None else str(n) for n in shape) + ")"
        for shape in shapes
    )


def rows_by(rows: Iterable[Row], by: str) -> list[Line]:
    """Gather rows by "operator", "shape" (operator and shapes), "scope" or "loop"; each forward and backward apart."""
    if by not in ("operator", "scope", "shape", "loop"):
        msg = f'by={by!r}: a table is by "operator", "scope", "shape", "loop" or "round"'
        raise ValueError(msg)
    lines: dict[tuple[Any, ...], Line] = {}
    for row in rows:
        if by == "scope":
            _gather_scope(lines, row)
        elif by == "loop":
            if row.kind == "operator" and row.loop is not None:
                line = lines.setdefault((row.loop, row.phase), Line(row.loop, row.phase))
                line.add(row)
                line.operations += row.calls
        elif row.kind == "operator":
            key = (row.name, row.phase) if by == "operator" else (row.name, row.phase, row.shapes)
            lines.setdefault(key, Line(row.name, row.phase)).add(row)
    return list(lines.values())


def rounds_of(events: Iterable[Event]) -> list[Line]:
    """Gather the operations inside loops by loop and round; forward and backward apart."""
    lines: dict[tuple[Any, ...], Line] = {}
    for event in events:
        if event.kind != "operator" or event.iteration is None:
            continue
        label = f"{event.loop} [{event.iteration}]"
        line = lines.setdefault((event.loop, event.iteration, event.phase), Line(label, event.phase))
        line.calls += 1
        line.operations += 1
        line.total += event.end - event.start
        line.own += event.end - event.start
        line.size += event.size
        line.failures += event.error is not None
    return list(lines.values())


def _gather_scope(lines: dict[tuple[Any, ...], Line], row: Row) -> None:
    label = "/".join(row.path)
    if row.kind == "operator" and not label:
        return
    line = lines.setdefault((label, row.phase), Line(label, row.phase))
    if row.kind == "scope":
        line.add(row)
        line.shapes.clear()
    else:
        line.operations += row.calls
        line.size += row.size
        line.failures += row.failures


# ------------------------------------------------------------------ tables

ORDERS = {
    "self": lambda line: -line.own,
    "total": lambda line: -line.total,
    "calls": lambda line: -line.calls,
    "bytes": lambda line: -line.size,
    "name": lambda line: line.label,
}


def cells_of(lines: list[Line], by: str) -> list[list[str]]:
    """Return the table's cells, its head first."""
    whole = sum(line.own for line in lines) or 1
    first = by if by in ("scope", "loop", "round") else "operator"
    last = "shapes" if first == "operator" else "operations"
    cells = [[first, "phase", "calls", "self ms", "self %", "total ms", "MB", last]]
    for line in lines:
        detail = line.detail if first == "operator" else str(line.operations)
        times = [f"{line.own / 1e6:.3f}", f"{100 * line.own / whole:.1f}", f"{line.total / 1e6:.3f}"]
        cells.append([line.label, line.phase, str(line.calls), *times, f"{line.size / 1e6:.3f}", detail])
    return cells


def text_of(lines: list[Line], by: str, sort: str, limit: int | None, summary: str) -> str:
    """Return a table as text."""
    order: Any = ORDERS.get(sort)
    if order is None:
        msg = f"sort={sort!r}: a table is sorted by {', '.join(ORDERS)}"
        raise ValueError(msg)
    cells = cells_of(sorted(lines, key=order), by)
    left = 0 if limit is None else max(0, len(cells) - 1 - limit)
    cells = cells[: len(cells) - left]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    text = [
        "  ".join(
            cell.ljust(width) if column in (0, 1, len(row) - 1) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    if left:
        text.append(f"... and {left} more (limit=None shows all)")
    return "\n".join([*text, summary])


def html_of(operators: list[Line], scopes: list[Line], summary: str) -> str:
    """Return both tables as HTML without scripts."""
    parts = [f"<p>{html.escape(summary)}</p>", _html_table(operators, "operator")]
    if scopes:
        parts.append(f"<details><summary>{len(scopes)} scopes</summary>{_html_table(scopes, 'scope')}</details>")
    return f'<div class="xform-profile">{"".join(parts)}</div>'


def _html_table(lines: list[Line], by: str) -> str:
    head, *rows = cells_of(sorted(lines, key=ORDERS["self"]), by)
    out = ["<table><thead><tr>", *[f"<th>{html.escape(cell)}</th>" for cell in head], "</tr></thead><tbody>"]
    for row in rows:
        out.append("<tr>")
        for name, cell in zip(head, row, strict=True):
            bar = f' style="background:linear-gradient(90deg,#9cf8 {cell}%,transparent {cell}%)"'
            out.append(f"<td{bar if name == 'self %' else ''}>{html.escape(cell)}</td>")
        out.append("</tr>")
    return "".join([*out, "</tbody></table>"])


# ------------------------------------------------------------------ Chrome trace


def chrome_events(events: list[Event], began: int) -> list[dict[str, Any]]:
    """Return complete events, nested properly on each track: what overlaps in one thread (tasks) gets another track."""
    pid = os.getpid()
    found: list[dict[str, Any]] = []
    track = 0
    for number, thread in enumerate(dict.fromkeys(event.thread for event in events), 1):
        lanes = lanes_of([event for event in events if event.thread == thread])
        for position, lane in enumerate(lanes):
            track += 1
            label = f"thread {number}" + (f", task {position}" if position else "")
            found.append({"name": "thread_name", "ph": "M", "pid": pid, "tid": track, "args": {"name": label}})
            found.extend(_complete(event, began, pid, track) for event in lane)
    return found


def lanes_of(events: list[Event]) -> list[list[Event]]:
    """Share events out over as few lanes as keep each one nested: events either follow or contain one another."""
    lanes: list[list[Event]] = []
    open_ends: list[list[int]] = []
    for event in sorted(events, key=lambda each: (each.start, -each.end)):
        for ends in open_ends:
            while ends and ends[-1] <= event.start:
                ends.pop()
        fits = [not ends or ends[-1] >= event.end for ends in open_ends]
        if True not in fits:
            lanes.append([])
            open_ends.append([])
            fits.append(True)
        lane = fits.index(True)
        lanes[lane].append(event)
        open_ends[lane].append(event.end)
    return lanes


def _complete(event: Event, began: int, pid: int, track: int) -> dict[str, Any]:
    args: dict[str, Any] = {"phase": event.phase, "scope": "/".join(event.path)}
    if event.kind == "operator":
        args |= {"shapes": shown(event.shapes), "bytes": event.size}
    if event.iteration is not None:
        args |= {"loop": event.loop, "iteration": event.iteration}
    if event.error is not None:
        args["error"] = event.error
    return {
        "name": event.name,
        "cat": f"{event.kind},{event.phase}",
        "ph": "X",
        "ts": (event.start - began) / 1e3,
        "dur": (event.end - event.start) / 1e3,
        "pid": pid,
        "tid": track,
        "args": args,
    }
