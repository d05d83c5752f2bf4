"""Hostile files: each is refused with a word on what is wrong, and no code of theirs runs."""

from __future__ import annotations

import io
import json
import re
import struct
import sys
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from tests.stored import document_of, edited, members_of, program, with_document, zipped
from xform.core.errors import ProgramFormatError
from xform.programs import storage
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


def changed(stored, *path, value):
    return with_document(stored, edited(document_of(stored), path, "set", value))


MAIN = ("programs", 1)
CASES = {
    "another format": (("format",), "npz", "it does not say that it is a program of xform"),
    "a later version": (("version",), 2, "it is of version 2, this xform reads 1; upgrade xform"),
    "no programs": (("programs",), [], "it holds no program"),
    "another field": ((*MAIN, "more"), 1, "expected an object of inputs, constants"),
    "a program that stands behind": (
        ("programs", 0, "operators", 0, 1),
        {"p": {"program": 1}},
        "there is no program that stands",
    ),
    "an unknown operator": ((*MAIN, "operators", 0, 0), "os:system", "there is no operator 'os:system' here"),
    "an operator that takes no parameters": (
        (*MAIN, "operators", 1, 1),
        {"x": 1},
        "does not take the parameters {'x': 1}",
    ),
    "a record of another module": (
        (*MAIN, "operators", 0, 1),
        {"x": {"record": ["xform.core.place:Place", {}]}},
        "is no record of parameters",
    ),
    "a variable from later": ((*MAIN, "equations", 0, "inputs", 0), 9, "an operand stands in slot 9, where nothing is"),
    "a variable twice": ((*MAIN, "equations", 1, "outputs", 0, 0), 0, "stands in slot 0, which is taken"),
    "a slot far away": (
        (*MAIN, "equations", 1, "outputs", 0, 0),
        2**22,
        "stands in slot 4194304, which is taken, or none",
    ),
    "another shape": (
        (*MAIN, "equations", 0, "outputs", 0, 2),
        [4, 4],
        r"gives \[float64\[2\]\], not \[float64\[4,4\]\]",
    ),
    "another dtype": (
        (*MAIN, "equations", 0, "outputs", 0, 1),
        "float32",
        r"gives \[float64\[2\]\], not \[float32\[2\]\]",
    ),
    "a dtype of objects": ((*MAIN, "inputs", 0, 1), "object", "there is no dtype 'object'"),
    "a dtype of fields": ((*MAIN, "inputs", 0, 1), "i4,O", "there is no dtype 'i4,O'"),
    "a huge array": ((*MAIN, "inputs", 0, 2), [2**30, 2**30], "larger than a program may have"),
    "a negative length": ((*MAIN, "inputs", 0, 2), [-1, 2], "is no shape"),
    "too many axes": ((*MAIN, "inputs", 0, 2), [1] * 65, "is no shape"),
    "no such line": ((*MAIN, "equations", 0, "site"), 99, "there is no line 99"),
    "a line before the first": (("sites", 0, 1), -1, "is no line"),
    "no phase": ((*MAIN, "equations", 0, "phase"), "sideways", "the phase 'sideways'"),
    "no scopes": ((*MAIN, "equations", 0, "scopes"), ["a"] * 2000, "the scopes"),
    "a literal that is text": ((*MAIN, "equations", 0, "inputs", 0), {"literal": "x"}, "the literal 'x' is no number"),
    "no such constant": ((*MAIN, "constants", 0, 1), {"array": 5}, "there is no constant 5"),
    "a constant of another type": ((*MAIN, "constants", 0, 0, 2), [4], r"is float64\[3\], not float64\[4\]"),
    "too few leaves": ((*MAIN, "structures", 0), [{"tuple": ["*"]}], "1 arrays belong into"),
    "a container that is a function": (
        (*MAIN, "structures", 0),
        [{"class": ["os:system", None, ["*"]]}],
        "no container 'os:system'",
    ),
    "a container that is none": (
        (*MAIN, "structures", 0),
        [{"class": ["pathlib:Path", None, ["*"] * 3]}],
        "no container here",
    ),
    "a class with other fields": (
        (*MAIN, "structures", 0),
        [{"class": ["xform.core.place:Place", None, ["*"] * 3]}],
        "TypeError|ValueError|no container",
    ),
    "keys that are equal": (
        (*MAIN, "structures", 0),
        [{"dict": ["None", [[1, "*"], [True, "*"], [2, "*"]]]}],
        "is no mapping",
    ),
    "deep containers": ((*MAIN, "structures", 0), [None], "3 are there"),
    "no layer": ((*MAIN, "derivative"), 5, "5 is no layer"),
}


@pytest.mark.parametrize("what", CASES)
def test_what_is_wrong_is_said(what, stored, load):
    path, value, message = CASES[what]
    document = document_of(stored)
    at = document
    for key in path[:-1]:
        at = at[key]
    if isinstance(at, dict) and path[-1] not in at:
        at[path[-1]] = value
        raw = with_document(stored, document)
    else:
        raw = changed(stored, *path, value=value)
    with pytest.raises(ProgramFormatError, match=message) as caught:
        load(raw)
    assert re.match(r".*p\.xf: ", str(caught.value))
    assert isinstance(caught.value, ValueError | RuntimeError)


def test_text_that_nests_without_end(stored, load):
    members = members_of(stored)
    for text in ('{"format":' * 100_000, "[" * 1_000_000, json.dumps({"format": "xform program"})[:-1] + ',"x":NaN}'):
        with pytest.raises(ProgramFormatError):
            load(zipped({**members, "program.json": text.encode()}))
    value: Any = 1
    for _ in range(100):
        value = [value]
    raw = changed(stored, *MAIN, "operators", 0, 1, value={"x": value})
    with pytest.raises(ProgramFormatError, match="nests deeper than 64"):
        load(raw)


HEADER = "{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }"
HEADERS = {
    "objects": HEADER.replace("<f8", "|O"),
    "a pickle behind": HEADER.replace("'<f8'", "'|O'").replace("(3,)", "()"),
    "fields": HEADER.replace("'<f8'", "[('a', '<f8')]"),
    "a huge shape": HEADER.replace("(3,)", "(1000000000000,)"),
    "a negative shape": HEADER.replace("(3,)", "(-1, -3)"),
    "a shape of floats": HEADER.replace("(3,)", "(3.0,)"),
    "no shape": "{'descr': '<f8', 'fortran_order': False}",
    "a call": "__import__('os').system('touch xform-was-here')",
    "no end": "{" * 300,
}


@pytest.mark.parametrize("what", HEADERS)
def test_headers_of_arrays(what, stored, load, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    members = members_of(stored)
    header = HEADERS[what].encode()
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + np.arange(3.0).tobytes()
    with pytest.raises(ProgramFormatError):
        load(zipped({**members, "constants/0.npy": content}))
    assert not Path("xform-was-here").exists()


@pytest.mark.parametrize("cut", [0, 6, 9, 20, -1, -8])
def test_arrays_with_fewer_or_more_bytes(cut, stored, load):
    members = members_of(stored)
    content = members["constants/0.npy"]
    for changed_content in (content[:cut] if cut else b"", content + b"\0"):
        with pytest.raises(ProgramFormatError):
            load(zipped({**members, "constants/0.npy": changed_content}))


def test_booleans_are_0_or_1(tmp_path, load):
    mask = np.array([True, False, True])
    xf.make_program(lambda x: xnp.where(mask, x, 0.0))(np.ones(3)).save(tmp_path / "q.xf")
    members = members_of((tmp_path / "q.xf").read_bytes())
    content = members["constants/0.npy"][:-1] + b"\x07"
    with pytest.raises(ProgramFormatError, match="other bytes than 0 and 1"):
        load(zipped({**members, "constants/0.npy": content}))


# ------------------------------------------------------------------ zips


def renamed(members, **names):
    return {names.get(name.replace("/", "_").replace(".", "_"), name): content for name, content in members.items()}


def test_members_have_their_names_and_no_others(stored, load):
    members = members_of(stored)
    text, *_ = members
    strange = {
        "absolute": {**members, "/etc/passwd": b""},
        "upward": {**members, "../x": b""},
        "more": {**members, "x.txt": b""},
        "a gap": renamed(members, constants_0_npy="constants/7.npy"),
        "no text": {"constants/0.npy": members["constants/0.npy"]},
        "nothing": {},
        "a folder": {**members, "constants/": b""},
    }
    for found in strange.values():
        with pytest.raises(ProgramFormatError, match="it has the members"):
            load(zipped(found))
    out = io.BytesIO(stored)
    with zipfile.ZipFile(out, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr(text, b"{}")
    with pytest.raises(ProgramFormatError, match="it has the members"):
        load(out.getvalue())


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_ways_to_pack(method, stored, load):
    with pytest.raises(ProgramFormatError, match="is packed by a method"):
        load(zipped(members_of(stored), method))


def test_packed_anew_by_any_tool_it_is_the_same(stored, load):
    assert load(zipped(members_of(stored), zipfile.ZIP_DEFLATED)).text() == load(stored).text()


def peak_of(call) -> int:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def bomb(size: int, said: int | None = None) -> bytes:
    """A text of spaces that unpacks to `size` bytes, and says that it does to `said`."""
    raw = bytearray(zipped({"program.json": b" " * size}, zipfile.ZIP_DEFLATED))
    if said is not None:
        for signature, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
            at = raw.index(signature) + offset
            raw[at : at + 4] = struct.pack("<I", said)
    return bytes(raw)


def test_bombs_are_not_unpacked(load):
    size = 2**27
    large, liar = bomb(size), bomb(size, said=100)  # the second says less than it holds
    assert len(large) < 200_000

    def loads(raw, **options):
        with pytest.raises(ProgramFormatError):
            load(raw, **options)

    assert peak_of(lambda: loads(large)) < 2**22
    assert peak_of(lambda: loads(large, max_bytes=2**20)) < 2**22
    assert peak_of(lambda: loads(liar)) < 2**22
    many = zipped({"program.json": b"", **{f"constants/{n}.npy": b"" for n in range(70_000)}})
    with pytest.raises(ProgramFormatError, match="it has the members"):
        load(many)


def test_what_is_unpacked_is_bounded(stored, load):
    assert load(stored, max_bytes=len(stored) * 10).equations
    with pytest.raises(ProgramFormatError, match="it is larger than max_bytes=1000"):
        load(stored, max_bytes=1000)
    table = np.zeros(10_000)
    raw = zipped({"program.json": b"{}", "constants/0.npy": table.tobytes()}, zipfile.ZIP_DEFLATED)
    with pytest.raises(ProgramFormatError, match="it is larger than max_bytes=5000"):
        load(raw, max_bytes=5000)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no endless file here")
def test_an_endless_file_is_read_as_far_as_is_allowed():
    with pytest.raises(ProgramFormatError):
        xf.load_program("/dev/zero", max_bytes=2**20)


def test_files_that_cannot_be_opened(tmp_path):
    with pytest.raises(FileNotFoundError):
        xf.load_program(tmp_path / "nowhere.xf")
    with pytest.raises(OSError, match="directory"):
        xf.load_program(tmp_path)


def test_bounds_hold_for_what_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "MAX_TEXT", 100)
    with pytest.raises(ProgramFormatError, match="bytes of text and 1 constants are too many"):
        program().save(tmp_path / "p.xf")


# ------------------------------------------------------------------ lines


def test_files_of_lines_are_opened_only_where_they_are_python(stored, load):
    """Showing a line reads the file that it names: a device, or one on the network, must not be."""
    document = document_of(stored)
    names = {
        "/dev/zero": "</dev/zero>",
        "train": "<train>",
        "//host/share/x.py": "<//host/share/x.py>",
        "\\\\host\\x.py": "<\\\\host\\x.py>",
        "/home/me/x.py": "/home/me/x.py",
        "<stdin>": "<stdin>",
    }
    for name, shown in names.items():
        document["sites"] = [[name, 3]] * len(document["sites"])
        loaded = load(with_document(stored, document))
        assert {equation.site for equation in loaded.equations} == {(shown, 3)}
        assert shown in loaded.text(lines=True)
    for name in ("a\0.py", "x" * 5000, 3, None):
        document["sites"] = [[name, 3]] * len(document["sites"])
        with pytest.raises(ProgramFormatError, match="is no line"):
            load(with_document(stored, document))


def test_loading_imports_nothing(stored, load):
    load(stored)
    before = set(sys.modules)
    for name in ("antigravity:fly", "this:d", "lib2to3:x", "xform_cupy:backend"):
        for path in ((*MAIN, "operators", 0, 0), (*MAIN, "structures", 0, 0)):
            value = name if "operators" in path else {"class": [name, None, ["*"] * 3]}
            with pytest.raises(ProgramFormatError):
                load(changed(stored, *path, value=value))
    assert set(sys.modules) == before
