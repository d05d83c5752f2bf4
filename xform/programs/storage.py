"""Programs in files: `program.save(path)` and `xf.load_program(path)`.

A file is a zip of `program.json` and `constants/0.npy`, `constants/1.npy`, ...: NumPy opens it as an npz. It holds
plain data alone, so that reading one runs no code of whoever wrote it:

1. The size of what is read is bounded before it is read. Members have the names above and no others; an array's bytes
   are as many as its header says.
2. Operators and containers are looked up among the classes that are loaded, see `xform.programs.codec`.
3. Every variable, operand and type of the text is checked, see `xform.programs.documents`.

Whatever is wrong with a file is a `ProgramFormatError`.
"""

from __future__ import annotations

import ast
import io
import json
import math
import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from xform.core.errors import ProgramFormatError
from xform.programs.documents import Reader, Writer
from xform.programs.naming import DTYPES, wrong
from xform.programs.program import Program

__all__ = ["load_program", "save_program"]

TEXT, CONSTANT = "program.json", "constants/{}.npy"
#: bounds of a file: bytes of its text, number of members
MAX_TEXT, MAX_MEMBERS = 2**26, 2**16
#: what `load_program` unpacks at most, unless it is told otherwise, and how much it reads at a time
MAX_BYTES, CHUNK = 2**30, 2**20
#: the first bytes of an array, with the version of NumPy's format, and the longest header that one has here
_MAGIC, _HEADER = b"\x93NUMPY\x01\x00", 1024
_CODES = {dtype.str: dtype for dtype in DTYPES.values()}


def save_program(program: Program, path: str | os.PathLike[str]) -> None:
    """Write a program to a file, see `Program.save`; what cannot be read again is not written."""
    with told("the program cannot be stored"):
        writer = Writer()
        writer.program(program)
        text = json.dumps(writer.document(), allow_nan=False, separators=(",", ":")).encode()
        if len(text) > MAX_TEXT or len(writer.arrays) >= MAX_MEMBERS:
            raise ProgramFormatError(f"{len(text)} bytes of text and {len(writer.arrays)} constants are too many")
        Reader(json.loads(text), writer.arrays).program()
    Path(path).write_bytes(packed(text, writer.arrays))


def load_program(path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> Program:
    """Read a program that `Program.save` wrote; runs no code of the file, whoever wrote it.

    Operators and containers of your own are found if the modules that define them are imported. Raises
    `ProgramFormatError` for a file that is damaged, made by another program, or larger than `max_bytes` when unpacked,
    and `OSError` for one that cannot be opened.

    >>> import tempfile, numpy as np, xform as xf
    >>> program = xf.make_program(lambda x: np.sin(x) * 2.0)(np.ones(3))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     program.save(f"{folder}/f.xf")
    ...     loaded = xf.load_program(f"{folder}/f.xf")
    >>> loaded(np.zeros(3))
    array([0., 0., 0.])
    """
    raw = bytearray()
    with Path(path).open("rb") as file:
        while len(raw) <= max_bytes and (more := file.read(CHUNK)):  # a read of all would take the memory first
            raw += more
    with told(os.fspath(path)):
        text, arrays = unpacked(raw, max_bytes)
        return Reader(json.loads(text, parse_constant=refuse_constant), arrays).program()


@contextmanager
def told(what: str) -> Iterator[None]:
    """Raise what goes wrong inside as a `ProgramFormatError` that begins with `what`."""
    try:
        yield
    except ProgramFormatError as error:
        raise ProgramFormatError(f"{what}: {error}", **error.payload) from error.__cause__
    except Exception as error:  # zipfile, zlib, json and an operator's `infer` raise many kinds for hostile bytes
        raise ProgramFormatError(f"{what}: {wrong(f'{type(error).__name__}: {error}')}") from error


def refuse_constant(text: str) -> NoReturn:
    """Raise for NaN and Infinity, which JSON lacks."""
    raise wrong(f"{text} is no JSON")


# ------------------------------------------------------------------ the zip


def packed(text: bytes, arrays: Sequence[np.ndarray[Any, Any]]) -> bytes:
    """Return the bytes of a file; the same program gives the same bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(zipfile.ZipInfo(TEXT), text, zipfile.ZIP_DEFLATED)
        for number, array in enumerate(arrays):
            content = io.BytesIO()
            np.lib.format.write_array(content, array, version=(1, 0), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(CONSTANT.format(number)), content.getbuffer(), zipfile.ZIP_STORED)
    return out.getvalue()


def unpacked(raw: bytearray, max_bytes: int) -> tuple[bytes, list[np.ndarray[Any, Any]]]:
    """Return text and constants of the bytes of a file, without unpacking more than allowed."""
    if len(raw) > max_bytes:
        raise ProgramFormatError(f"it is larger than max_bytes={max_bytes}")
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        members = archive.infolist()
        names = [member.filename for member in members]
        wanted = [TEXT, *map(CONSTANT.format, range(len(names) - 1))]
        if len(names) > MAX_MEMBERS or sorted(names) != sorted(wanted):
            raise wrong(f"it has the members {', '.join(map(repr, names[:4]))}")
        if sum(member.file_size for member in members) > max_bytes:
            raise ProgramFormatError(f"it is larger than max_bytes={max_bytes}")
        by_name = dict(zip(names, members, strict=True))
        if by_name[TEXT].file_size > MAX_TEXT:
            raise wrong(f"its text is longer than {MAX_TEXT} bytes")
        return content_of(archive, by_name[TEXT]), [array_of(content_of(archive, by_name[name])) for name in wanted[1:]]


def content_of(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """Return the bytes of a member, never more than it says it has."""
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise wrong(f"{member.filename!r} is packed by a method {member.compress_type}")
    with archive.open(member) as file:
        content = file.read(member.file_size + 1)  # without a count, zipfile unpacks first and cuts afterwards
    if len(content) != member.file_size:
        raise wrong(f"{member.filename!r} has {len(content)} bytes, not {member.file_size}")
    return content


def array_of(content: bytes) -> np.ndarray[Any, Any]:
    """Return the array of a member in NumPy's format, which holds as many bytes as its header says."""
    if not content.startswith(_MAGIC):
        raise wrong("a constant is no array in NumPy's format 1.0")
    start = len(_MAGIC) + 2
    stop = start + int.from_bytes(content[len(_MAGIC) : start], "little")
    if stop - start > _HEADER:
        raise wrong("the header of a constant is too long")
    header = ast.literal_eval(content[start:stop].decode("latin1").strip())
    dtype, shape = _CODES[header["descr"]], header["shape"]
    if not all(type(length) is int and length >= 0 for length in shape):
        raise wrong(f"a constant has shape {shape!r:.60}")
    if len(content) - stop != math.prod(shape) * dtype.itemsize:
        raise wrong(f"a constant of shape {shape} and dtype {dtype} has {len(content) - stop} bytes")
    if dtype.kind == "b" and any(each not in (0, 1) for each in set(content[stop:])):
        raise wrong("a constant of bools holds other bytes than 0 and 1")
    flat = np.frombuffer(content, dtype, offset=stop)
    return flat.reshape(shape[::-1]).T.copy("F") if header["fortran_order"] else flat.reshape(shape).copy()
