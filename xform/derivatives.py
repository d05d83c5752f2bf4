"""Compositions of the transformations: Jacobians, Hessians, and products with them.

1. A Jacobian has, for each array of the output and each array of the chosen arguments, a block of shape
   `out.shape + argument.shape`, in the containers of the output and, within each of its leaves, of the arguments.
2. All seeds go through the function at once: `vmap` over the basis of the arguments (`jacfwd`) or of the output
   (`jacrev`). So the cost in Python is that of one or two passes, whatever the number of columns or rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from xform import tree
from xform.core.aval import dtype_of, shape_of
from xform.core.backend import HOST_TYPES
from xform.core.errors import GradientError, ShapeError
from xform.core.memory import unshared
from xform.core.source import boundary
from xform.core.stack import apply
from xform.core.transformed import Transformed
from xform.layers import lifted
from xform.ops.indexing import getitem
from xform.ops.placement import make_put
from xform.ops.shapes import reshape
from xform.transforms.batch import Batch, batched
from xform.transforms.forward import Forward, dual, filled, jvp, results_of
from xform.transforms.grad import Grad
from xform.transforms.operands import delivered, is_bare, taken_in, writeable
from xform.transforms.plans import home_of
from xform.transforms.reverse import (
    Chosen,
    attach_all,
    grad,
    holds_value,
    pair_of,
    require_arguments,
    require_array,
    unwrapped,
)

__all__ = ["hessian", "hvp", "jacfwd", "jacobian", "jacrev"]

Function = Callable[..., Any]
Argnums = int | Sequence[int] | None
Argnames = str | Sequence[str] | None


def jacfwd(
    fun: Function,
    argnums: Argnums = None,
    has_aux: bool = False,
    *,
    argnames: Argnames = None,
    holomorphic: bool = False,
) -> Function:
    """Return the function that computes the Jacobian of `fun` in forward mode: good where the output is the larger.

    `argnums`, `argnames` and `has_aux` are those of `grad`; arguments and output may be containers, and the result has
    a block of shape `out.shape + argument.shape` for each pair of their arrays. A complex argument needs
    `holomorphic=True`; outputs of real arguments may be complex. Raises `GradientError` for integer arguments, and for
    an output that is no array.

    >>> import numpy as np, xform as xf
    >>> xf.jacfwd(lambda x: x * x)(np.array([1.0, 2.0]))
    array([[2., 0.],
           [0., 4.]])
    """
    return forward_jacobian(fun, argnums, argnames, has_aux=has_aux, holomorphic=holomorphic, name="jacfwd")


def forward_jacobian(
    fun: Function, argnums: Argnums, argnames: Argnames, *, has_aux: bool, holomorphic: bool, name: str
) -> Function:
    """Make the function of `jacfwd`."""
    chosen = chosen_of(fun, argnums, argnames, name)
    return Transformed(jacobian_by_columns, fun, fun, chosen, has_aux, holomorphic)


@boundary
def jacobian_by_columns(
    fun: Function, chosen: Chosen, has_aux: bool, holomorphic: bool, /, *args: Any, **kwargs: Any
) -> Any:
    """Compute a Jacobian in forward mode."""
    leaves, structure = tree.flatten(chosen.pick(args, kwargs))
    require_leaves(leaves, structure, chosen)
    require_arguments(leaves, structure, chosen, holomorphic=holomorphic, forward=True)
    keep = holds_value(args) or bool(kwargs and holds_value(kwargs.values()))
    seeds, bare = basis(leaves), is_bare(None)
    with Batch(known_shape(seeds[0])[0], site=chosen.site) as batch, Forward(site=chosen.site) as forward:
        duals = [
            dual(forward, lifted(x), batched(batch, taken_in(seed, bare=bare), 0))
            for x, seed in zip(leaves, seeds, strict=True)
        ]
        new_args, new_kwargs = chosen.put(args, kwargs, tree.unflatten(structure, duals))
        out = fun(*new_args, **new_kwargs)
        aux = None
        if has_aux:
            out, aux = pair_of(out, fun)
    outs, tangents, out_structure = results_of(forward, out, chosen.what)
    require_outputs(outs, chosen.what, holomorphic=holomorphic, kinds="c" if holomorphic else "fc")
    whole = unshared([batch.lowered(tangent, -1) for tangent in filled(outs, tangents)])
    blocks = [tree.unflatten(structure, columns(tangent, leaves)) for tangent in whole]
    found = delivered(tree.unflatten(out_structure, blocks), keep=keep)
    return (found, delivered(tree.map(forward.unwrap, aux), keep=keep)) if has_aux else found


def jacrev(
    fun: Function,
    argnums: Argnums = None,
    has_aux: bool = False,
    *,
    argnames: Argnames = None,
    holomorphic: bool = False,
) -> Function:
    """Return the function that computes the Jacobian of `fun` in reverse mode: good where the arguments are the larger.

    `argnums`, `argnames` and `has_aux` are those of `grad`; arguments and output may be containers, and the result has
    a block of shape `out.shape + argument.shape` for each pair of their arrays. A complex output needs
    `holomorphic=True`. Raises `GradientError` for integer arguments, and for an output that is no array of floats.

    >>> import numpy as np, xform as xf
    >>> xf.jacrev(lambda x: x * x)(np.array([1.0, 2.0]))
    array([[2., 0.],
           [0., 4.]])
    """
    return reverse_jacobian(fun, argnums, argnames, has_aux=has_aux, holomorphic=holomorphic, name="jacrev")


def jacobian(
    fun: Function,
    argnums: Argnums = None,
    has_aux: bool = False,
    *,
    argnames: Argnames = None,
    holomorphic: bool = False,
) -> Function:
    """Return the function that computes the Jacobian of `fun`; the same as `jacrev`.

    >>> import numpy as np, xform as xf
    >>> xf.jacobian(lambda x: x[0] * x)(np.array([1.0, 2.0]))
    array([[2., 0.],
           [2., 1.]])
    """
    return reverse_jacobian(fun, argnums, argnames, has_aux=has_aux, holomorphic=holomorphic, name="jacobian")


def reverse_jacobian(
    fun: Function, argnums: Argnums, argnames: Argnames, *, has_aux: bool, holomorphic: bool, name: str
) -> Function:
    """Make the function of `jacrev` and `jacobian`."""
    chosen = chosen_of(fun, argnums, argnames, name)
    return Transformed(jacobian_by_rows, fun, fun, chosen, has_aux, holomorphic)


@boundary
def jacobian_by_rows(
    fun: Function, chosen: Chosen, has_aux: bool, holomorphic: bool, /, *args: Any, **kwargs: Any
) -> Any:
    """Compute a Jacobian in reverse mode."""
    leaves, structure = tree.flatten(chosen.pick(args, kwargs))
    require_leaves(leaves, structure, chosen)
    keep = holds_value(args) or bool(kwargs and holds_value(kwargs.values()))
    tape = Grad()
    tape.site = chosen.site
    with tape:
        handles = attach_all(tape, leaves, structure, chosen, holomorphic=holomorphic)
        new_args, new_kwargs = chosen.put(args, kwargs, tree.unflatten(structure, handles))
        out = fun(*new_args, **new_kwargs)
        aux = None
        if has_aux:
            out, aux = pair_of(out, fun)
    outs, out_structure = tree.flatten(out)
    require_outputs(outs, chosen.what, holomorphic=holomorphic, kinds="c" if holomorphic else "f")
    blocks = [tree.unflatten(structure, list(row)) for row in rows_of(tape, outs, handles)]
    found = delivered(tree.unflatten(out_structure, blocks), keep=keep)
    return (found, delivered(unwrapped(tape, aux), keep=keep)) if has_aux else found


def rows_of(tape: Grad, outs: list[Any], handles: list[Any]) -> list[Any]:
    """Return, for each array of the output, its block for each argument."""
    if len(outs) == 1 and shape_of(outs[0]) == ():  # a gradient: one seed needs no batch
        return [tape.gradients(outs, handles)]
    seeds, bare = basis([tape.unwrap(out) for out in outs]), is_bare(None)
    if not seeds:
        return []
    with Batch(known_shape(seeds[0])[0], site=tape.site) as batch:
        found = tape.gradients(outs, handles, [batched(batch, taken_in(seed, bare=bare), 0) for seed in seeds])
    whole = unshared([batch.lowered(cotangent) for cotangent in found])
    return list(zip(*[rows(cotangent, outs) for cotangent in whole], strict=True))


def hessian(
    fun: Function,
    argnums: Argnums = None,
    has_aux: bool = False,
    *,
    argnames: Argnames = None,
    holomorphic: bool = False,
) -> Function:
    """Return the function that computes the Hessian of `fun`: the forward Jacobian of its reverse Jacobian.

    For a scalar `fun` of an array the result has shape `argument.shape + argument.shape`; containers nest, first those
    of the output, then those of the arguments, twice. Parameters and errors are those of `jacfwd` and `jacrev`.

    >>> import numpy as np, xform as xf
    >>> xf.hessian(lambda x: (x**3).sum())(np.array([1.0, 2.0]))
    array([[ 6.,  0.],
           [ 0., 12.]])
    """
    first = reverse_jacobian(fun, argnums, argnames, has_aux=has_aux, holomorphic=holomorphic, name="hessian")
    return forward_jacobian(first, argnums, argnames, has_aux=has_aux, holomorphic=holomorphic, name="hessian")


@boundary
def hvp(fun: Function, primals: Any, tangents: Any, *, holomorphic: bool = False) -> Any:
    """Return the product of the Hessian of a scalar function with `tangents`, without making the Hessian.

    `primals` and `tangents` are sequences of the same structure, as for `jvp`. With one primal the result is one
    product, of its shape and dtype; with several a tuple. Forward over reverse: it costs a few gradients. Raises
    `GradientError` for an output that is no real scalar, and for tangents that do not fit. `holomorphic` and the
    derivatives of complex arguments are those of `grad`.

    >>> import numpy as np, xform as xf
    >>> xf.hvp(lambda x: (x**3).sum(), (np.array([1.0, 2.0]),), (np.array([1.0, 0.5]),))
    array([6., 6.])
    """
    if not isinstance(primals, tuple | list):
        msg = f"hvp: primals must be a tuple or list, one entry per argument; got {type(primals).__name__}"
        raise GradientError(msg, value=primals)
    several = len(primals) != 1
    argnums = tuple(range(len(primals))) if several else 0
    return jvp(grad(fun, argnums, holomorphic=holomorphic), primals, tangents)[1]


# ------------------------------------------------------------------ what may be differentiated


def chosen_of(fun: Function, argnums: Argnums, argnames: Argnames, name: str) -> Chosen:
    """Return the choice of arguments: the first, where nothing is said."""
    return Chosen(fun, 0 if argnums is None and argnames is None else argnums, argnames, name)


def require_leaves(leaves: list[Any], structure: tree.Structure, chosen: Chosen) -> None:
    """Raise where there is nothing to differentiate by."""
    if not leaves:
        raise GradientError(f"{chosen.what}: the arguments hold no array to differentiate by", value=structure)


def require_outputs(leaves: list[Any], what: str, *, holomorphic: bool, kinds: str) -> None:
    """Raise for outputs that cannot be differentiated; a complex function of real numbers has tangents alone."""
    for leaf in leaves:
        require_array(leaf, f"{what}: an output", "return it with has_aux=True")
        dtype = dtype_of(leaf)
        if dtype.kind in kinds:
            continue
        found = f"{what}: an output has dtype {dtype}"
        if holomorphic:
            msg = f"{found}; holomorphic=True needs complex outputs"
        elif dtype.kind == "c":
            msg = f"{found}; take its real part, its abs, or pass holomorphic=True; of real numbers, xf.jacfwd gives it"
        else:
            msg = f"{found}; derivatives need floats: return it with has_aux=True"
        raise GradientError(msg, output=leaf)


# ------------------------------------------------------------------ seeds and blocks


def basis(leaves: list[Any]) -> list[Any]:
    """Return, for each leaf, one array with the seeds of all leaves along axis 0: 1 where a seed meets its element."""
    if len(leaves) == 1:
        (leaf,) = leaves
        shape = known_shape(leaf)
        seeds = identity(math.prod(shape), dtype_of(leaf))
        return [put(seeds if len(shape) == 1 else seeds.reshape(len(seeds), *shape), leaf)]
    shapes = [known_shape(leaf) for leaf in leaves]
    total, found = sum(map(math.prod, shapes)), []
    for (cut, shape), leaf in zip(cuts(shapes), leaves, strict=True):
        seeds = np.zeros((total, cut.stop - cut.start), dtype_of(leaf))
        seeds[cut] = identity(cut.stop - cut.start, seeds.dtype)
        found.append(put(seeds.reshape(total, *shape), leaf))
    return found


def identity(size: int, dtype: Any) -> Any:
    """Return an identity matrix (a third of the time of `np.eye`)."""
    seeds = np.zeros((size, size), dtype)
    seeds.reshape(-1)[:: size + 1] = 1
    return seeds


def known_shape(value: Any) -> tuple[int, ...]:
    """Return a shape; raises `ShapeError` where a length is unknown before run time."""
    shape = shape_of(value)
    if None in shape:
        msg = f"the Jacobian of a value {value!r} has as many columns as it has elements, which is not known here"
        raise ShapeError(msg, value=value)
    return shape  # type: ignore[return-value]


def put(seeds: Any, like: Any) -> Any:
    """Return seeds on the device of the value that they vary."""
    if type(like) in HOST_TYPES:
        return seeds
    home = home_of(like)
    return seeds if home == "cpu" else apply(make_put(home), seeds)


def columns(tangent: Any, leaves: list[Any]) -> list[Any]:
    """Split the last axis of a tangent, which the seeds run along, into one block per argument."""
    shapes = [shape_of(leaf) for leaf in leaves]
    if len(shapes) == 1 and len(shapes[0]) == 1:
        return [writeable(tangent)]
    lead = shape_of(tangent)[:-1]
    return [writeable(reshape(getitem(tangent, (..., cut)), (*lead, *shape))) for cut, shape in cuts(shapes)]


def rows(cotangent: Any, outs: list[Any]) -> list[Any]:
    """Split the first axis of a cotangent, which the seeds run along, into one block per output."""
    shapes = [shape_of(out) for out in outs]
    if len(shapes) == 1 and len(shapes[0]) == 1:
        return [writeable(cotangent)]
    rest = shape_of(cotangent)[1:]
    return [writeable(reshape(getitem(cotangent, cut), (*shape, *rest))) for cut, shape in cuts(shapes)]


def cuts(shapes: list[Any]) -> Iterator[tuple[slice, Any]]:
    """Yield for each shape the part of the seeds that belongs to it."""
    start = 0
    for shape in shapes:
        stop = start + math.prod(shape)
        yield slice(start, stop), shape
        start = stop
