"""Programs as graphs: what is drawn, and its text for Graphviz and Mermaid; `xform.programs.svg` draws it itself."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

import attrs

from xform.core.source import describe
from xform.programs.parameters import programs_in
from xform.programs.program import Constant, Equation, Literal, Program, Variable, aval_at, letters, shortened

__all__ = ["LIMIT", "Box", "Node", "Sketch", "to_dot", "to_mermaid"]

#: how many operations are drawn, unless more are asked for; a picture of more shows nothing
LIMIT = 400
#: the longest line of a node, and how deep scopes are drawn as boxes
WIDTH, DEPTH = 48, 32


@attrs.define(eq=False)
class Node:
    """A node: `kind` is "input", "constant", "operation", "output" or "note"; `title` shows where one points at it."""

    key: str
    kind: str
    lines: list[str]
    title: str = ""


@attrs.define(eq=False)
class Box:
    """A scope, or a program that an operator holds: a frame around nodes and further boxes."""

    key: str
    label: str
    items: list[Node | Box] = attrs.field(factory=list)

    def nodes(self) -> Iterator[Node]:
        """Yield all nodes inside."""
        for item in self.items:
            if isinstance(item, Node):
                yield item
            else:
                yield from item.nodes()


class Sketch:
    """The nodes, boxes and edges of a program: of its first `limit` operations, those of inner programs included."""

    def __init__(self, program: Program, limit: int = LIMIT) -> None:
        self.root = Box("root", "")
        self.edges: list[tuple[str, str]] = []
        self._left = limit
        self._count = 0
        self._draw(program, self.root)

    def _key(self) -> str:
        self._count += 1
        return f"n{self._count}"

    def _node(self, box: Box, kind: str, lines: Sequence[str], title: str = "") -> str:
        node = Node(self._key(), kind, [clipped(line) for line in lines if line], title)
        box.items.append(node)
        return node.key

    def _draw(self, program: Program, box: Box) -> None:
        """Draw a program into a box; equations that follow each other in a scope share its box."""
        made = {v.index: self._node(box, "input", (letters(v.index), repr(v.aval))) for v in program.inputs}
        open_boxes = [box]
        scopes: tuple[str, ...] = ()
        for position, equation in enumerate(program.equations):
            if self._left <= 0:
                self._rest(program, position, box, made)
                break
            self._left -= 1
            entered = equation.scopes[:DEPTH]
            pairs = zip(scopes, entered, strict=False)
            shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            scopes = entered
            del open_boxes[1 + shared :]
            for scope in scopes[shared:]:
                open_boxes.append(self._box(open_boxes[-1], scope))
            self._operation(equation, open_boxes[-1], box, made)
        paths = [""] * len(program.outputs) if program.out_structure is None else program.out_structure.paths()
        for out, path in zip(program.outputs, paths, strict=True):
            shown = repr(out) if isinstance(out, Literal) else letters(out.index)
            aval = aval_at(out)
            end = self._node(box, "output", (f"return{path and f' {path}'}: {shown}", repr(aval)))
            self._edges([out], end, box, made)

    def _box(self, outer: Box, label: str) -> Box:
        inner = Box(self._key(), clipped(label))
        outer.items.append(inner)
        return inner

    def _operation(self, equation: Equation, box: Box, outer: Box, made: dict[int, str]) -> None:
        """Draw an equation; one whose operator holds programs in a box, with a box for each of them."""
        inner = programs_in(equation.op)
        if inner:
            box = self._box(box, equation.op.name)
        left = ", ".join(letters(variable.index) for variable in equation.outputs) or "_"
        avals = ", ".join(repr(variable.aval) for variable in equation.outputs)
        node = self._node(box, "operation", (f"{left} = {equation.call}", avals), describe(equation.site))
        for name, program in inner.items():
            self._draw(program, self._box(box, name))
        self._edges(equation.inputs, node, outer, made)
        made |= {variable.index: node for variable in equation.outputs}

    def _edges(self, sources: Sequence[Variable | Literal], target: str, box: Box, made: dict[int, str]) -> None:
        """Draw edges from what made the operands, one from each; a constant is drawn where it is first used."""
        for index, source in {v.index: v for v in sources if isinstance(v, Variable)}.items():
            if index not in made and isinstance(source, Constant):
                shown = f"{letters(index)} = {shortened(source.value)}"
                made[index] = self._node(box, "constant", (shown, repr(source.aval)))
            self.edges.append((made[index], target))

    def _rest(self, program: Program, position: int, box: Box, made: dict[int, str]) -> None:
        """Draw one node for all operations that are too many; outputs that they make come from it."""
        count = len(program.equations)
        note = self._node(box, "note", (f"{count - position} more operations", f"draw them with limit={count}"))
        for out in program.outputs:
            if isinstance(out, Variable) and not isinstance(out, Constant):
                made.setdefault(out.index, note)


def clipped(text: str) -> str:
    """Return a line of text that fits into a node."""
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"


# ------------------------------------------------------------------ text for Graphviz and Mermaid


def to_dot(program: Program, *, limit: int = LIMIT) -> str:
    """Return a program as text for Graphviz, see `Program.to_dot`."""
    sketch = Sketch(program, limit)
    lines = ["digraph program {", '  node [fontname="monospace", fontsize=10];', '  graph [fontname="monospace"];']
    lines += _dot(sketch.root, "  ")
    return "\n".join([*lines, *[f"  {source} -> {target};" for source, target in sketch.edges], "}"])


_SHAPES = {"input": "ellipse", "constant": "note", "operation": "box", "output": "ellipse", "note": "plaintext"}


def _dot(box: Box, indent: str) -> list[str]:
    lines = []
    for item in box.items:
        if isinstance(item, Node):
            shown = [f"label={dot_text(chr(10).join(item.lines))}", f"shape={_SHAPES[item.kind]}"]
            shown += [f"tooltip={dot_text(item.title)}"] if item.title else []
            lines.append(f"{indent}{item.key} [{', '.join(shown)}];")
        else:
            lines += [f"{indent}subgraph cluster_{item.key} {{", f"{indent}  label={dot_text(item.label)};"]
            lines += [*_dot(item, f"{indent}  "), f"{indent}}}"]
    return lines


def dot_text(text: str) -> str:
    r"""Return text in quotes, as Graphviz reads it.

    >>> print(dot_text('a "b"'))
    "a \"b\""
    """
    for sign, written in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n")):
        text = text.replace(sign, written)
    return f'"{printable(text)}"'


def to_mermaid(program: Program, *, limit: int = LIMIT) -> str:
    """Return a program as text for Mermaid, see `Program.to_mermaid`."""
    sketch = Sketch(program, limit)
    edges = [f"  {source} --> {target}" for source, target in sketch.edges]
    return "\n".join(["flowchart TD", *_mermaid(sketch.root, "  "), *edges])


_BRACKETS = {
    "input": ("([", "])"), "constant": ("[(", ")]"), "operation": ("[", "]"), "output": ("([", "])"),
    "note": ("[", "]"),
}  # fmt: skip


def _mermaid(box: Box, indent: str) -> list[str]:
    lines = []
    for item in box.items:
        if isinstance(item, Node):
            opened, closed = _BRACKETS[item.kind]
            label = "<br/>".join(map(mermaid_text, item.lines))
            lines.append(f'{indent}{item.key}{opened}"{label}"{closed}')
        else:
            lines.append(f'{indent}subgraph {item.key}["{mermaid_text(item.label)}"]')
            lines += [*_mermaid(item, f"{indent}  "), f"{indent}end"]
    return lines


def mermaid_text(text: str) -> str:
    """Return text as Mermaid reads it inside quotes: what might mean something to it stands as its code.

    >>> mermaid_text('f("x")')
    'f(#34;x#34;)'
    """
    return re.sub(r"[^\w .,:=()\[\]+*/-]", lambda found: f"#{ord(found[0])};", printable(text))


def printable(text: str) -> str:
    """Return text without what XML cannot hold and terminals act upon."""
    return re.sub("[^\t\n\r -~\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)
