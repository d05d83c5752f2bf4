"""A thousand damaged files: a clean error or a right load each time."""

from __future__ import annotations

import copy
import random
import warnings
from typing import Any

import numpy as np
import pytest

import xform as xf
from tests.stored import document_of, edited, members_of, program, with_document, zipped
from xform.core.errors import ProgramFormatError
from xform.programs import documents
from xform.programs.program import Program


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("stored") / "p.xf"
    program().save(path)
    return path.read_bytes()


@pytest.fixture
def load(tmp_path):
    def loading(raw: bytes, **options: Any) -> Program:
        path = tmp_path / "p.xf"
        path.write_bytes(raw)
        return xf.load_program(path, **options)

    return loading


def outcome(load, raw: bytes) -> str:
    """Load, and check that what comes out keeps its word: it prints, draws, and gives what its types say."""
    try:
        loaded = load(raw)
    except ProgramFormatError:
        return "refused"
    assert loaded.text(lines=True)
    if any(None in aval.shape for aval in loaded.in_avals):
        return "loaded"
    flat = [np.ones(aval.shape, aval.dtype) for aval in loaded.in_avals]
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = loaded.run(flat)
    except (xf.XformError, ArithmeticError):  # a parameter that is refused when it is used, such as an axis twice
        return "fails cleanly"
    for value, aval in zip(found, loaded.out_avals, strict=True):
        assert documents.agree(xf.aval_of(value), aval), (xf.aval_of(value), aval)
    return "runs"


def test_flipped_bits(stored, load):
    rng = random.Random(0)
    outcomes = []
    for _ in range(400):
        raw = bytearray(stored)
        place = rng.randrange(8 * len(raw))
        raw[place // 8] ^= 1 << place % 8
        outcomes.append(outcome(load, bytes(raw)))
    assert outcomes.count("refused") > 300
    assert set(outcomes) <= {"refused", "runs"}


def test_flipped_bits_behind_a_right_checksum(stored, load):
    """The zip is sound, so that the bits reach the reader of the text and of the arrays."""
    rng = random.Random(1)
    members = members_of(stored)
    outcomes = []
    for _ in range(400):
        name = rng.choice(sorted(members))
        content = bytearray(members[name])
        place = rng.randrange(8 * len(content))
        content[place // 8] ^= 1 << place % 8
        outcomes.append(outcome(load, zipped({**members, name: bytes(content)})))
    assert outcomes.count("refused") > 150
    assert outcomes.count("runs") > 50  # the bits of a constant are numbers, too


def test_truncated_files(stored, load):
    for length in range(0, len(stored), 7):
        assert outcome(load, stored[:length]) == "refused"


def nodes(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value of a document."""
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [path, *[each for key, value in items for each in nodes(value, (*path, key))]]


OTHERS = [
    None,
    True,
    -1,
    0,
    1,
    3,
    2**70,
    1.5,
    "x",
    "",
    [],
    [[]],
    {},
    {"list": []},
    {"float": "7ff0000000000000"},
    {"float": "zz"},
    {"slice": [None, None, None]},
    {"program": 0},
    {"program": 1},
    {"operator": ["xform.ops.trigonometric:Sin", {}]},
    {"ellipsis": None},
    {"structure": "*"},
    [1, 2],
    {"number": ["float64", "00"]},
    {"class": ["builtins:list", None, []]},
]


def test_every_value_of_the_text_edited(stored, load):
    document = document_of(stored)
    rng = random.Random(2)
    paths = nodes(document)
    outcomes = {how: [] for how in ("set", "drop", "twice")}
    for path in paths:
        for value in rng.sample(OTHERS, 2):
            outcomes["set"].append(outcome(load, with_document(stored, edited(document, path, "set", value))))
        outcomes["drop"].append(outcome(load, with_document(stored, edited(document, path, "drop"))))
        outcomes["twice"].append(outcome(load, with_document(stored, edited(document, path, "twice"))))
    counts = {how: len(found) for how, found in outcomes.items()}
    refused = {how: found.count("refused") for how, found in outcomes.items()}
    assert sum(counts.values()) > 1500
    assert all(refused[how] > 0.85 * counts[how] for how in counts), (refused, counts)


def test_every_equation_with_other_operands_and_operators(stored, load):
    document = document_of(stored)
    rng = random.Random(3)
    (_, main) = document["programs"]
    slots = [v[0] for v in main["inputs"]] + [v[0] for each in main["equations"] for v in each["outputs"]]
    for number, equation in enumerate(main["equations"]):
        for what, choices in (("inputs", slots), ("operator", range(len(main["operators"])))):
            found = copy.deepcopy(document)
            at = found["programs"][1]["equations"][number]
            if what == "inputs" and equation["inputs"]:
                at["inputs"][rng.randrange(len(at["inputs"]))] = rng.choice(choices)
            else:
                at["operator"] = rng.choice(choices)
            outcome(load, with_document(stored, found))
