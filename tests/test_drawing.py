"""Programs drawn: text for Graphviz and Mermaid, pictures in SVG and HTML without scripts."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from typing import Any

import attrs
import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from tests.zoo import ZOO
from xform.programs.drawing import Box, Sketch
from xform.programs.program import Equation, Literal, Program, Variable
from xform.programs.svg import Layout, to_html

SVG = "{http://www.w3.org/2000/svg}"
ones = np.ones(3)


def network(x, w):
    with xf.named_scope("first"):
        h = np.tanh(x @ w["a"] + 1.0)
        with xf.named_scope("inner"):
            h = h * np.arange(3.0)
    with xf.named_scope("second"):
        y = h @ w["b"]
    return {"loss": (y * y).sum(), "y": y}


ARGS = (np.ones((4, 2)), {"a": np.ones((2, 3)), "b": np.ones((3, 3))})
PROGRAM = xf.make_program(network)(*ARGS)


def chain(count: int) -> Program:
    """A program of `count` equations."""
    aval = xf.aval_of(ones)
    variables = [Variable(n, aval) for n in range(count + 1)]
    equations = [
        Equation(xf.ops.Mul(), (variables[n], Literal(2.0)), (variables[n + 1],), (f"s{n // 50}",))
        for n in range(count)
    ]
    return Program(variables[:1], equations, variables[-1:])


# ------------------------------------------------------------------ what is drawn


def boxes(box: Box) -> dict[str, Any]:
    return {item.label: boxes(item) for item in box.items if isinstance(item, Box)}


def test_nodes_edges_and_boxes():
    sketch = Sketch(PROGRAM)
    assert boxes(sketch.root) == {"first": {"inner": {}}, "second": {}}
    nodes = {node.key: node for node in sketch.root.nodes()}
    kinds = [node.kind for node in nodes.values()]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "input": 3, "constant": 1, "operation": len(PROGRAM.equations), "output": 2,
    }  # fmt: skip
    shown = {(nodes[a].lines[0], nodes[b].lines[0]) for a, b in sketch.edges}
    assert ("a", "d = Matmul(a, b)") in shown
    assert ("f = Tanh(e)", "h = Mul(f, g)") in shown
    assert ("g = [0. 1. 2.]", "h = Mul(f, g)") in shown
    assert ("i = Matmul(h, c)", "return ['y']: i") in shown
    used = sum(len({v.index for v in e.inputs if isinstance(v, Variable)}) for e in PROGRAM.equations)
    assert len(sketch.edges) == used + 2
    matmul = next(node for node in nodes.values() if node.lines[0] == "d = Matmul(a, b)")
    assert matmul.lines == ["d = Matmul(a, b)", "float64[4,3]"]
    assert re.search(r"test_drawing\.py:\d+: h = np\.tanh\(x @ w", matmul.title)


def test_an_operand_twice_is_one_edge_and_numbers_are_none():
    sketch = Sketch(xf.make_program(lambda x: x * x + 2.0)(ones))
    assert len(sketch.edges) == 3  # x to Mul, Mul to Add, Add to the output


def test_a_scope_that_is_entered_again_is_another_box():
    def fun(x):
        for _ in range(2):
            with xf.named_scope("a"):
                x = np.sin(x)
            x = np.exp(x)
        return x

    sketch = Sketch(xf.make_program(fun)(ones))
    assert [item.label for item in sketch.root.items if isinstance(item, Box)] == ["a", "a"]
    assert Layout(sketch).size.height > 0


@attrs.frozen(eq=False)
class Runs(xf.Operator):
    body: Program

    def infer(self, x):
        return self.body.out_avals[0]

    def evaluate(self, xp, x):
        return self.body.run([x])[0]


def test_programs_inside_operators_are_boxes():
    body = xf.make_program(lambda x: np.sin(x) + 1.0)(ones)
    program = xf.make_program(lambda x: xf.apply(Runs(body), x) * 2.0)(ones)
    sketch = Sketch(program)
    assert boxes(sketch.root) == {"Runs": {"body": {}}}
    assert [node.lines[0] for node in sketch.root.nodes() if "Sin" in node.lines[0]] == ["b = Sin(a)"]
    places = Layout(sketch).places
    (outer,) = [item for item in sketch.root.items if isinstance(item, Box)]
    inner = outer.items[-1]
    inside, around = places[inner.key], places[outer.key]
    assert around.x < inside.x
    assert inside.x + inside.width < around.x + around.width
    assert inside.y + inside.height < around.y + around.height


# ------------------------------------------------------------------ limits


@pytest.mark.parametrize("limit", [1, 10, 400])
def test_more_operations_than_the_limit_are_counted(limit):
    sketch = Sketch(chain(1000), limit)
    operations = [node for node in sketch.root.nodes() if node.kind == "operation"]
    notes = [node.lines for node in sketch.root.nodes() if node.kind == "note"]
    assert len(operations) == limit
    assert notes == [[f"{1000 - limit} more operations", "draw them with limit=1000"]]
    for text in (chain(1000).to_svg(limit=limit), chain(1000).to_dot(limit=limit), chain(1000).to_mermaid(limit=limit)):
        assert f"{1000 - limit} more operations" in text


def test_without_more_there_is_no_note():
    assert not [node for node in Sketch(chain(400)).root.nodes() if node.kind == "note"]


def steps(call) -> int:
    """Count the calls of Python functions: a cost that no other process changes."""
    count = 0

    def tracer(frame, event, arg):
        nonlocal count
        count += 1

    sys.setprofile(tracer)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("draw", [Program.to_svg, Program.to_dot, Program.to_mermaid])
def test_the_cost_is_linear_and_the_default_bounded(draw):
    small, large, huge = chain(100), chain(400), chain(20_000)
    draw(small)
    few, many = steps(lambda: draw(small)), steps(lambda: draw(large))
    assert many < 6 * few
    assert steps(lambda: draw(huge)) < 2 * many


def test_a_wide_program_is_broken_into_rows():
    program = xf.make_program(lambda *xs: sum(xs))(*[ones] * 300)
    layout = Layout(Sketch(program, 1000))
    inputs = [layout.places[node.key] for node in Sketch(program, 1000).root.nodes() if node.kind == "input"]
    assert len({place.y for place in inputs}) > 10
    assert max(place.x for place in inputs) < 2000


# ------------------------------------------------------------------ the layout


def drawable():
    for specimen in ZOO:
        if not specimen.reads:
            yield specimen.name, xf.make_program(specimen.fun)(*specimen.args())
    yield "gradient", xf.make_program(xf.grad(lambda w, x: network(x, w)["loss"]))(ARGS[1], ARGS[0])
    yield "chain", chain(120)
    yield "nothing", xf.make_program(lambda: ())()
    yield "number", xf.make_program(lambda x: (3.0, x))(1.0)


@pytest.mark.parametrize(
    ("name", "program"), list(drawable()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_nothing_overlaps_and_edges_lead_down(name, program):
    sketch = Sketch(program)
    layout = Layout(sketch)
    places = layout.places

    def check(box: Box) -> None:
        items = [(item, places[item.key]) for item in box.items]
        for number, (_, a) in enumerate(items):
            for _, b in items[:number]:
                apart = a.x + a.width <= b.x or b.x + b.width <= a.x or a.y + a.height <= b.y or b.y + b.height <= a.y
                assert apart
        for item, _ in items:
            if isinstance(item, Box):
                check(item)

    check(sketch.root)
    for source, target in sketch.edges:
        assert places[source].y + places[source].height <= places[target].y
    for node in sketch.root.nodes():
        place = places[node.key]
        assert place.x >= 0
        assert place.x + place.width <= layout.size.width
        assert place.y + place.height <= layout.size.height


# ------------------------------------------------------------------ text that must not break out


NASTY = [
    'a "quoted" \\ one',
    "<script>alert(1)</script>",
    "&amp; ]]> --> %%{init: {}}%% end",
    "new\nline\ttab",
    "\0\x1b[31m\ud800",
    "é漢",
]


@attrs.frozen
class Named(xf.Operator):
    label: str

    @property
    def name(self):
        return self.label

    def infer(self, x):
        return x

    def __repr__(self):
        return f"Named[{self.label}]"


def nasty_program(text: str) -> Program:
    a, b = (Variable(n, xf.aval_of(ones)) for n in range(2))
    equation = Equation(Named(text), (a,), (b,), (text,), "forward", (f"<{text}>", 1))
    return Program([a], [equation], [b], structures=(None, xf.tree.structure({text: 1})))


@pytest.mark.parametrize("text", NASTY, ids=range(len(NASTY)))
def test_text_is_escaped(text):
    program = nasty_program(text)
    for picture in (program.to_svg(), program._repr_svg_()):
        root = ET.fromstring(picture)
        assert root.tag == f"{SVG}svg"
        assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
            "svg",
            "rect",
            "text",
            "path",
            "g",
            "title",
        }
        assert any("Named[" in (element.text or "") for element in root.iter(f"{SVG}text"))
    page = ET.fromstring(f"<body>{program._repr_html_()}</body>")
    tags = {element.tag.removeprefix(SVG) for element in page.iter()}
    assert tags == {"body", "div", "svg", "rect", "text", "path", "g", "title", "details", "summary", "pre"}
    assert not any(name.startswith("on") for element in page.iter() for name in element.attrib)
    dot = program.to_dot()
    unquoted = re.sub(r'"(?:[^"\\]|\\.)*"', "Q", dot)  # each quoted string is closed before anything else can be said
    assert re.fullmatch(r"(?:[\w\s{}\[\]=,;>-]|Q)+", unquoted)
    mermaid = program.to_mermaid()
    for line in mermaid.splitlines()[1:]:
        assert re.fullmatch(r'\s*(?:\w+ --> \w+|end|(?:subgraph )?\w+[\[\](]*"[^"]*"[\[\])]*)', line), line
        assert "%%" not in line
        assert "<script" not in line


def test_graphviz_text():
    assert PROGRAM.to_dot().startswith("digraph program {\n")
    assert '[label="d = Matmul(a, b)\\nfloat64[4,3]", shape=box, tooltip="' in PROGRAM.to_dot()
    assert 'label="inner";' in PROGRAM.to_dot()
    lines = PROGRAM.to_dot().splitlines()
    assert sum(line.endswith("{") for line in lines) == sum(line.strip() == "}" for line in lines) == 4


def test_mermaid_text():
    lines = PROGRAM.to_mermaid().splitlines()
    assert lines[0] == "flowchart TD"
    assert '  n1(["a<br/>float64[4,2]"])' in lines
    assert '  subgraph n4["first"]' in lines
    assert sum(line.strip() == "end" for line in lines) == 3


def test_the_page_has_picture_and_text():
    page = to_html(PROGRAM)
    assert "<svg " in page
    assert "Matmul(a, b)" in page
    assert f"{len(PROGRAM.equations)} operations as text" in page
    assert "<script" not in page
    long = ET.fromstring(f"<body>{chain(2000)._repr_html_()}</body>").find(".//pre")
    assert long is not None
    assert long.text is not None
    assert long.text.count("\n") == 400
    assert "more lines" in long.text


def test_nodes_are_cut_to_a_width():
    program = xf.make_program(lambda x: xnp.pad(x.reshape(1, 1, 1, 1, 3), ((1, 1),) * 5))(ones)
    lines = [line for node in Sketch(program).root.nodes() for line in node.lines]
    assert max(map(len, lines)) == 48
    assert any(line.endswith("…") for line in lines)


def test_deep_scopes_are_drawn_to_a_depth():
    a, b = (Variable(n, xf.aval_of(ones)) for n in range(2))
    program = Program([a], [Equation(xf.ops.Sin(), (a,), (b,), ("s",) * 5000)], [b])
    ET.fromstring(program.to_svg())

    def depth(box: Box) -> int:
        return 1 + max((depth(item) for item in box.items if isinstance(item, Box)), default=0)

    assert depth(Sketch(program).root) == 33
