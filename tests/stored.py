"""A program of all that a file can hold, and files made from it by changing bytes, members and text."""

from __future__ import annotations

import copy
import io
import json
import zipfile
from typing import Any

import attrs
import numpy as np

import xform as xf
import xform.numpy as xnp
from xform.programs.program import Program


@attrs.frozen(eq=False)
class Runs(xf.Operator):
    """Runs a program."""

    body: Program

    def infer(self, x):
        (wanted,) = self.body.in_avals
        if x != wanted:
            msg = f"Runs: {x!r}, not {wanted!r}"
            raise xf.XformError(msg)
        return self.body.out_avals[0]

    def evaluate(self, xp, x):
        return self.body.run([x])[0]


def network(p, y):
    with xf.named_scope("first"):
        h = np.tanh(p["x"] @ p["w"][0]) + np.arange(3.0)
    return {"out": h.sum(axis=(0,), keepdims=True) * np.float32(2.0), "more": (h[::2, 0], y * (1 + 2j))}


ARGS = ({"x": np.linspace(-1, 1, 8).reshape(4, 2), "w": [np.ones((2, 3))]}, np.array([1.0, -2.0]))


def program() -> Program:
    """A program of all that a file can hold: containers, constants, scopes, a backward phase, an inner program."""
    body = xf.make_program(lambda x: xnp.exp(x) * 0.5)(np.ones(2))
    with xf.Trace() as recorder:
        traced = xf.tree.map(recorder.input, ARGS)
        grads = xf.grad(lambda y: xnp.sum(xnp.sin(y)))(traced[1])
        outputs = (network(*traced), grads, xf.apply(Runs(body), traced[1]))
    return recorder.program(outputs, ARGS)


def members_of(raw: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def document_of(raw: bytes) -> Any:
    return json.loads(members_of(raw)["program.json"])


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def with_document(raw: bytes, document: Any) -> bytes:
    return zipped({**members_of(raw), "program.json": json.dumps(document).encode()})


def edited(document: Any, path: tuple[Any, ...], how: str, value: Any = None) -> Any:
    """Return a document with one value replaced, left out, doubled or renamed."""
    if not path:
        return value
    found = copy.deepcopy(document)
    at = found
    for key in path[:-1]:
        at = at[key]
    key = path[-1]
    if how == "set":
        at[key] = value
    elif how == "drop":
        del at[key]
    elif isinstance(at, list):
        at.insert(key, at[key])
    else:
        at[f"{key}s"] = at[key]
    return found
