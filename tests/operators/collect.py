"""All rows of all families, and the operators that each of them goes through."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np

import xform as xf
from tests.operators.case import Case
from xform.core.bottom import evaluate
from xform.core.operator import Operator

HERE = Path(__file__).parent


def families() -> dict[str, list[Case]]:
    """Return the rows by family, as the `cases_*.py` files beside this one list them."""
    names = sorted(path.stem for path in HERE.glob("cases_*.py"))
    return {name.removeprefix("cases_"): importlib.import_module(f"tests.operators.{name}").CASES for name in names}


def in_dtype(x: Any, dtype: str) -> Any:
    """Return an operand in a dtype: floating ones are cast, turned by a small angle where it is complex."""
    if isinstance(x, bool | int):
        return x
    if type(x) is float:  # an np.float64 is a float too, and strong
        return complex(x, 0.2) if dtype == "complex128" else x
    if not isinstance(x, np.ndarray | np.generic) or x.dtype.kind not in "fc":
        return x
    if dtype == "complex128" and x.dtype.kind == "f":
        return x * np.exp(1j * (0.2 + 0.05 * np.cos(np.arange(x.size).reshape(x.shape))))
    if x.dtype.kind == "c":
        return x.astype("complex64" if dtype == "float32" else "complex128")
    return x.astype(dtype)


def operands(row: Case, dtype: str) -> tuple[Any, ...]:
    """Return the operands of a row in a dtype; containers are mapped leaf by leaf."""
    return xf.tree.map(lambda x: in_dtype(x, dtype), row.args)


class Watch(xf.Transformation):
    """Keeps every operation that reaches the bottom, with its raw operands."""

    effect = "observes"

    def __init__(self) -> None:
        self.seen: list[tuple[Operator, tuple[Any, ...]]] = []

    def interpret(self, op: Operator, values: tuple[Any, ...]) -> Any:
        self.seen.append((op, tuple(xf.concrete(v) for v in values)))
        return evaluate(op, values)


def tracked(x: Any) -> Any:
    """Return an array as a tracked one; all else as it is."""
    return xf.array(x) if isinstance(x, np.ndarray) else x


def operations(row: Case, dtype: str, *, backward: bool = False) -> list[tuple[Operator, tuple[Any, ...]]]:
    """Return the operations of a row, each once, with the operands it met first; `backward` runs its pullback too."""
    args = xf.tree.map(tracked, operands(row, dtype))
    with Watch() as watch:
        if backward:
            places = [i for i, leaf in enumerate(xf.tree.leaves(args)) if xf.aval_of(leaf).dtype.kind in "fc"]
            structure = xf.tree.structure(args)
            leaves = xf.tree.leaves(args)

            def floating(*xs: Any) -> Any:
                full = list(leaves)
                for i, x in zip(places, xs, strict=True):
                    full[i] = x
                return row.fun(*xf.tree.unflatten(structure, full))

            out, pullback = xf.vjp(floating, *[leaves[i] for i in places])
            pullback(xf.tree.map(lambda leaf: leaf * 0 + 1, out))
        else:
            row.fun(*args)
    met: dict[tuple[Operator, Any], tuple[Any, ...]] = {}
    for op, values in watch.seen:
        met.setdefault((op, tuple((xf.aval_of(v).shape, xf.aval_of(v).dtype, type(v)) for v in values)), values)
    return [(op, values) for (op, _), values in met.items()]
