"""Programs as pictures: a layered drawing in SVG, laid out here, without scripts.

1. Each box is laid out by itself: what it holds stands in rows, every item below those that it takes values from; a box
   inside is one item. Rows are ordered by the places of what they take from, in one pass, so the cost is near linear.
2. A row is broken where it grows wider than a screen.
"""

from __future__ import annotations

import html

import attrs

from xform.programs.drawing import LIMIT, Box, Node, Sketch, printable
from xform.programs.program import Program

__all__ = ["to_html", "to_svg"]

#: sizes in pixels: of a letter, of a line, of the frame of a node, between nodes, inside a box, of a row at most
LETTER, LINE, FRAME, GAP, PADDING, ROW = 6.7, 14.0, 7.0, 22.0, 12.0, 1600.0
_FILLS = {"input": "#dbeafe", "constant": "#fef3c7", "operation": "#f8fafc", "output": "#dcfce7", "note": "#fee2e2"}


@attrs.define(eq=False)
class Place:
    """Where an item stands in its box, and how large it is."""

    width: float
    height: float
    x: float = 0.0
    y: float = 0.0

    @property
    def middle(self) -> float:
        """The place of its middle, from left to right."""
        return self.x + self.width / 2


class Layout:
    """The places of all items of a sketch; those of nodes count from the corner of the picture."""

    def __init__(self, sketch: Sketch) -> None:
        self.places: dict[str, Place] = {}
        self._above: dict[str, list[str]] = {}  # the keys of what holds an item, from the root down
        self._feeds: dict[str, dict[str, set[str]]] = {}  # in each box: from what an item takes values
        self._file(sketch.root, [])
        for source, target in sketch.edges:
            self._lift(source, target)
        self.size = self._arrange(sketch.root)
        self._shift(sketch.root, 0.0, 0.0)

    def _file(self, box: Box, path: list[str]) -> None:
        inner = [*path, box.key]
        self._feeds[box.key] = {item.key: set() for item in box.items}
        for item in box.items:
            self._above[item.key] = inner
            if isinstance(item, Box):
                self._file(item, inner)

    def _lift(self, source: str, target: str) -> None:
        """File an edge in the innermost box that holds both its ends, between what they stand in there."""
        one, other = [*self._above[source], source], [*self._above[target], target]
        depth = next(n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
        self._feeds[one[depth - 1]][other[depth]].add(one[depth])

    def _arrange(self, box: Box) -> Place:
        """Give the items of a box their places in it, and return its own size."""
        for item in box.items:
            self.places[item.key] = self._arrange(item) if isinstance(item, Box) else size_of(item)
        feeds = self._feeds[box.key]
        y, width = PADDING + (LINE if box.label else 0.0), LETTER * len(box.label) + 2 * PADDING
        for row in self._rows(feeds):
            x = PADDING
            for key in row:
                place = self.places[key]
                wanted = [self.places[each].middle for each in feeds[key]]
                place.x = max(x, sum(wanted) / len(wanted) - place.width / 2) if wanted else x
                place.y = y
                x = place.x + place.width + GAP
            y += max(self.places[key].height for key in row) + GAP
            width = max(width, x - GAP + PADDING)
        return Place(width, y - GAP + PADDING)

    def _rows(self, feeds: dict[str, set[str]]) -> list[list[str]]:
        """Return the items row by row, ordered by what they take from; wide rows are broken."""
        ranks: dict[str, int] = {}
        for key in in_order(feeds):
            ranks[key] = 1 + max((ranks[each] for each in feeds[key]), default=-1)
        rows: list[list[str]] = [[] for _ in range(1 + max(ranks.values(), default=-1))]
        for key, rank in ranks.items():
            rows[rank].append(key)
        found: list[list[str]] = []
        column: dict[str, float] = {}
        for row in rows:
            row.sort(key=lambda key: sum(column[each] for each in feeds[key]) / max(len(feeds[key]), 1))
            x = 0.0
            found.append([])
            for key in row:
                if x > ROW:
                    x = 0.0
                    found.append([])
                column[key] = x
                x += self.places[key].width + GAP
                found[-1].append(key)
        return found

    def _shift(self, box: Box, x: float, y: float) -> None:
        for item in box.items:
            place = self.places[item.key]
            place.x += x
            place.y += y
            if isinstance(item, Box):
                self._shift(item, place.x, place.y)


def size_of(node: Node) -> Place:
    """Return the size of a node."""
    return Place(LETTER * max(map(len, node.lines)) + 2 * FRAME, LINE * len(node.lines) + 2 * FRAME)


def in_order(feeds: dict[str, set[str]]) -> list[str]:
    """Return the items such that each stands behind all that it takes from.

    >>> in_order({"c": {"b"}, "a": set(), "b": {"a"}})
    ['a', 'b', 'c']
    """
    missing = {key: len(sources) for key, sources in feeds.items()}
    users: dict[str, list[str]] = {key: [] for key in feeds}
    for key, sources in feeds.items():
        for source in sources:
            users[source].append(key)
    found = [key for key, count in missing.items() if not count]
    for key in found:  # it grows while it is read
        for user in users[key]:
            missing[user] -= 1
            if not missing[user]:
                found.append(user)
    return found


# ------------------------------------------------------------------ the picture


def to_svg(program: Program, *, limit: int = LIMIT) -> str:
    """Return a program as a picture in SVG, see `Program.to_svg`."""
    sketch = Sketch(program, limit)
    layout = Layout(sketch)
    width, height = layout.size.width, layout.size.height
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="monospace" font-size="11">'
    )
    edges = [edge(layout.places[source], layout.places[target]) for source, target in sketch.edges]
    return "\n".join([head, *frames(sketch.root, layout), *edges, *nodes(sketch.root, layout), "</svg>"])


def frames(box: Box, layout: Layout) -> list[str]:
    """Return the frames of the boxes inside a box, outermost first."""
    drawn = []
    for item in box.items:
        if isinstance(item, Box):
            place = layout.places[item.key]
            drawn.append(rectangle(place, 'rx="6" fill="#64748b" fill-opacity="0.08" stroke="#94a3b8"'))
            drawn.append(words(place.x + PADDING, place.y + LINE, item.label, "#64748b"))
            drawn += frames(item, layout)
    return drawn


def nodes(box: Box, layout: Layout) -> list[str]:
    """Return all nodes."""
    drawn = []
    for node in box.nodes():
        place = layout.places[node.key]
        title = f"<title>{escaped(node.title)}</title>" if node.title else ""
        style = f'rx="4" fill="{_FILLS[node.kind]}" stroke="#475569"'
        drawn.append(f"<g>{title}{rectangle(place, style)}")
        for number, line in enumerate(node.lines, 1):
            drawn.append(words(place.x + FRAME, place.y + FRAME - 3 + LINE * number, line, "#0f172a"))
        drawn.append("</g>")
    return drawn


def edge(source: Place, target: Place) -> str:
    """Return a curve from the foot of one node to the head of another, with its point."""
    x, y, to_x, to_y = source.middle, source.y + source.height, target.middle, target.y
    bend = max(12.0, abs(to_y - y) / 2)
    curve = f"M{x:.1f} {y:.1f}C{x:.1f} {y + bend:.1f} {to_x:.1f} {to_y - bend:.1f} {to_x:.1f} {to_y:.1f}"
    return f'<path d="{curve}m-3 -6l3 6l3 -6" fill="none" stroke="#64748b"/>'


def rectangle(place: Place, style: str) -> str:
    """Return a rectangle."""
    size = f'width="{place.width:.1f}" height="{place.height:.1f}"'
    return f'<rect x="{place.x:.1f}" y="{place.y:.1f}" {size} {style}/>'


def words(x: float, y: float, text: str, fill: str) -> str:
    """Return a line of text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" xml:space="preserve">{escaped(text)}</text>'


def escaped(text: str) -> str:
    """Return text as XML holds it.

    >>> escaped("<a & b>")
    '&lt;a &amp; b&gt;'
    """
    return html.escape(printable(text))


def to_html(program: Program, *, limit: int = LIMIT) -> str:
    """Return a program for a notebook: the picture, and beneath it the text to unfold."""
    lines = program.text(lines=True).split("\n")
    text = "\n".join([*lines[:limit], *([f"... {len(lines) - limit} more lines"] if len(lines) > limit else [])])
    return (
        f'<div style="overflow:auto;max-height:50em">{to_svg(program, limit=limit)}</div>'
        f"<details><summary>{len(program.equations)} operations as text</summary><pre>{escaped(text)}</pre></details>"
    )
