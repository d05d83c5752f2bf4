"""Tracing: functions that record a function into a Program, and replay it."""

from __future__ import annotations

import copyreg
import functools
import threading
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any, NamedTuple, SupportsIndex

import numpy as np

from xform import tree
from xform.core.aval import aval_of
from xform.core.backend import is_raw
from xform.core.errors import OperandTypeError, ProgramError
from xform.core.functions import require_function
from xform.core.memory import unshared
from xform.core.source import describe
from xform.core.stack import BOTTOM, Level, cursor, levels
from xform.core.tables import Rules
from xform.core.transformed import Transformed, global_name
from xform.core.value import Array, Value
from xform.programs.call import Call
from xform.programs.engines import find_engine
from xform.programs.passes import require_level
from xform.programs.program import Program
from xform.transforms.calls import called
from xform.transforms.excluded import DeferredTrace, Stretches
from xform.transforms.guarded import GuardedTrace, Options
from xform.transforms.paths import Paths, Read, Unknown
from xform.transforms.recorder import Trace, TraceValue
from xform.transforms.signature import Static, layout_of, typed

__all__ = ["Trace", "TraceValue", "eval_shape", "make_program", "trace"]


def make_program(fun: Callable[..., Any]) -> Callable[..., Program]:
    """Return a function that records `fun` abstractly: arrays, numbers or `Aval`s in, a Program out.

    Raises what `fun` raises, `HostReadError` where it reads a value, `OperandTypeError` for an output that is no array,
    and `ProgramError` for a region of `xf.exclude_from_trace`.

    >>> import xform as xf, xform.numpy as xnp
    >>> xf.make_program(lambda x: x + 1.0)(xf.Aval((2,), xnp.float32)).out_avals
    (float32[2],)
    """
    require_function(fun, "make_program")

    return Transformed(recording, fun, fun)


def recording(fun: Callable[..., Any], /, *args: Any) -> Program:
    """Record what `make_program` returns the function for."""
    recorder, outputs = recorded(fun, args, "make_program")
    return recorder.program(outputs, args, what=recorder.what)


def recorded(fun: Callable[..., Any], args: tuple[Any, ...], what: str) -> tuple[Trace, Any]:
    """Run a function abstractly; return the recorder and what the function returned."""
    with Trace(abstract=True) as recorder:
        recorder.what = f"{what} of {label_of(fun)}"
        outputs = fun(*tree.map(recorder.input, args))
    return recorder, outputs


def eval_shape(fun: Callable[..., Any], *args: Any) -> Any:
    """Return the avals of what `fun` would return, in its containers; nothing is computed.

    Raises what `fun` raises, `HostReadError` where it reads a value, `OperandTypeError` for an output that is no array.

    >>> import numpy as np, xform as xf
    >>> xf.eval_shape(lambda x: x @ x.T, np.ones((2, 3)))
    float64[2,2]
    """
    require_function(fun, "eval_shape")
    recorder, outputs = recorded(fun, args, "eval_shape")
    leaves, structure = recorder.leaves_of(outputs, recorder.what)
    return tree.unflatten(structure, [aval_of(leaf) for leaf in leaves])


class Arguments(NamedTuple):
    """A call, taken apart: array and other leaves of what is traced, static arguments, and what it is known by."""

    leaves: list[Any]
    structure: tree.Structure
    positions: list[int]  # static ones, in the order of `values`
    names: tuple[str, ...]  # all keywords, as they were given
    values: list[Any]
    named: dict[str, Any]
    key: Any
    refs: list[Any]


class Kept:
    """What is known for one signature: paths, or programs of stretches where the function has regions.

    `refs` are weak references to the objects in its key: it goes when one of them has gone.
    """

    def __init__(self, refs: list[Any]) -> None:
        self.refs = refs
        self.paths: Paths | None = None
        self.stretches: Stretches | None = None
        self.calls: dict[Program, Call] = {}

    def run(self, options: dict[str, Any], program: Program, flat: Sequence[Any]) -> list[Any]:
        """Run one of its programs, compiled where that can be."""
        call = self.calls.get(program)
        if call is None:
            call = self.calls[program] = Call(program, **options)
        return called(call, flat)


class Path(NamedTuple):
    """One way through a traced function: what its reads gave, and its operations as a Program, which reads nothing."""

    outcomes: tuple[str, ...]
    program: Program


_joining = threading.RLock()


class trace:  # noqa: N801  (a function by name in the field)
    """Record a function at the first call for a signature, replay the Program afterwards.

    1. The signature is the structure of the arguments (order of keywords and of keys included), the avals of their
       arrays, and types and values of what is no array; an object without `__eq__` is itself, whatever it holds.
    2. `static_argnums` and `static_argnames` mark arguments that are values of the function, not of the program,
       however they are passed. Raises `OperandError` for one that the function does not have.
    3. What the function reads of a traced value (`bool`, `int`, `float`, `v.item()`, a value as an index or a size, the
       shape of what was selected by values, whether an operation fails) is a guard: a replay reads it too, and goes on
       as recorded for that outcome; for a new one the function runs again. After `max_paths` paths for one signature
       `TooManyPathsError` tells the line that splits. `guards="error"` raises `HostReadError` at the first read, as
       `np.asarray(v)` always does.
    4. What the function takes from elsewhere (a closure, `self.w`) stays in a path as it was at its recording; with
       `capture="error"` an array that is no argument raises `CaptureError`.
    5. `check=True` runs the function at each call and compares: `TraceMismatchError` names the first operation that
       differs from the record, its line, and a `reason`. So does a second path that begins otherwise than the first.
    6. A region of `xf.exclude_from_trace` runs in Python at each call. Whatever else Python does (prints, writes into
       lists, `np.errstate`) happens when a path is recorded, and not in a replay.
    7. A replay on NumPy arrays is compiled (`compile_program` has `level`, `engine`, `threads`, `fallback`), under
       tapes, forward and batch layers too, which derive programs from it; under layers that see operations it is not.
       Levels above 0 are faster, and take values in between as finite.
    8. `trace(grad(f))` and `grad(trace(f))` equal the eager gradient. It decorates methods too. An output that is no
       array raises `OperandTypeError`.

    >>> import numpy as np, xform as xf
    >>> @xf.trace
    ... def halved(x):
    ...     while x.sum() > 1.0:
    ...         x = x / 2.0
    ...     return x
    >>> halved(np.ones(2)), halved(np.ones(2)), halved(np.ones(2) / 4.0)
    (array([0.5, 0.5]), array([0.5, 0.5]), array([0.25, 0.25]))
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        *,
        static_argnums: SupportsIndex | Sequence[SupportsIndex] = (),
        static_argnames: str | Sequence[str] = (),
        guards: str = "record",
        capture: str = "constant",
        check: bool = False,
        max_paths: int = 16,
        level: int = 0,
        engine: str = "numpy",
        threads: int | None = None,
        fallback: bool = False,
    ) -> None:
        require_function(fun, "trace")
        require_level(level)
        find_engine(engine)  # which raises here, not at the second call
        functools.update_wrapper(self, fun)
        self.fun = fun
        self.static = Static(fun, static_argnums, static_argnames, f"trace of {label_of(fun)}")
        self.options = Options(guards, capture, check, max_paths)
        self.compiling = {"level": level, "engine": engine, "threads": threads, "fallback": fallback}
        self._begin()

    def _begin(self) -> None:
        """Know no program yet: at first, and when a rule was replaced, with which derivatives were recorded."""
        self.programs: dict[Any, Kept] = {}
        self.direct: dict[Any, tuple[Callable[..., Any], tree.Structure, bool]] = {}
        self.revision = Rules.revision

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    @property
    def what(self) -> str:
        """What messages call it."""
        return f"trace of {label_of(self.fun)}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        signature = None
        if self.revision != Rules.revision:
            self._begin()
        if not kwargs and cursor.get() is BOTTOM:
            signature = plain_signature(args)
            direct = self.direct.get(signature)
            if direct is not None:
                run, structure, derived = direct
                try:
                    return tree.unflatten(structure, unshared(run(args), args) if derived else run(args))
                except Exception:  # noqa: BLE001, S110  (as in `_replay`, which does it again)
                    pass
        call = self._call(args, kwargs)
        kept = self.programs.get(call.key)
        keep = any(isinstance(leaf, Value) for leaf in call.leaves)
        if kept is not None and kept.stretches is not None:
            out = self._in_stretches(call, kept.stretches)
        elif kept is None or kept.paths is None or self.options.check:
            out = self._record(call, kept)[0]
        else:
            out = self._replay(call, kept, kept.paths)
            if signature is not None and self.static.is_empty and kept.paths is not None:  # there may be regions now
                self._remember(signature, kept, kept.paths)
        return out if keep else tree.map(lambda leaf: leaf.data if type(leaf) is Array else leaf, out)

    def _remember(self, signature: Any, kept: Kept, paths: Paths) -> None:
        """Take the short way for arguments like these (W1: 30 of 180 us): one path, and nothing but NumPy."""
        call = None if paths.single is None else kept.calls.get(paths.single)
        if call is not None and call.is_plain and call.compiled is not None:
            self.direct[signature] = call.compiled.run, call.program.out_structure, paths.derivative is not None

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        static, positions, values, named = self.static, [], [], {}
        refs: list[Any] = []
        names = tuple(kwargs)
        if not static.is_empty:
            positions = sorted(static.positions_in(len(args)))
            if positions:
                values = [args[n] for n in positions]
                args = tuple([None if n in positions else arg for n, arg in enumerate(args)])
            if kwargs:
                named = {name: value for name, value in kwargs.items() if name in static.names}
                kwargs = {name: value for name, value in kwargs.items() if name not in named}
        leaves, structure = tree.flatten((args, kwargs) if kwargs else args)
        fixed = (tuple(positions), tuple([typed(value, refs) for value in (*values, *named.values())]))
        described = tuple([aval_of(leaf) if is_array(leaf) else typed(leaf, refs) for leaf in leaves])
        key = (structure, described, names, layout_of(structure, refs), fixed)
        try:
            hash(key)
        except TypeError as error:
            raise self._unhashable(leaves, structure, error) from error
        return Arguments(leaves, structure, positions, names, values, named, key, refs)

    def _unhashable(self, leaves: list[Any], structure: tree.Structure, error: TypeError) -> OperandTypeError:
        for leaf, path in zip(leaves, structure.paths(), strict=True):
            if not is_array(leaf) and type(leaf).__hash__ is None:
                kind = type(leaf).__name__
                msg = (
                    f"{self.what}: the argument at {path} is {kind}, no array, and cannot be hashed: {leaf!r:.60}; "
                    "a call is known by what is no array among its arguments. Pass arrays and numbers, in containers "
                    "that xf.tree knows, or a tuple, or close over it"
                )
                return OperandTypeError(msg, value=leaf, path=path)
        return OperandTypeError(f"{self.what}: a static argument must be hashable ({error})")

    # -------------------------------------------------------------- three ways to run

    def _apply(self, call: Arguments, recorder: Trace) -> Any:
        """Run the function with traced arguments, under a recorder that is active."""
        traced = [recorder.input(leaf) if is_array(leaf) else leaf for leaf in call.leaves]
        found = tree.unflatten(call.structure, traced)
        args, kwargs = found if len(call.names) > len(call.named) else (found, {})
        args, kwargs = list(args), kwargs | call.named
        for position, value in zip(call.positions, call.values, strict=True):
            args[position] = value
        return self.fun(*args, **{name: kwargs[name] for name in call.names})

    def _record(self, call: Arguments, kept: Kept | None, *, silent: bool = False) -> tuple[Any, GuardedTrace]:
        """Run the function and record it: as a first path, or another one beside those that are known."""
        known = None if kept is None else kept.paths
        with GuardedTrace(self.what, self.options, known, silent=silent) as recorder:
            outputs = self._apply(call, recorder)
        result = recorder.finished(outputs)
        for key in [key for key, each in list(self.programs.items()) if any(ref() is None for ref in each.refs)]:
            self.programs.pop(key, None)
        if not recorder.foreign:
            with _joining:
                kept = self.programs.get(call.key, Kept(call.refs))
                if result is None:
                    kept.paths, kept.stretches = None, Stretches(self.compiling)
                elif kept.stretches is None:
                    kept.paths = recorder.paths(result, kept.paths)
                self.programs[call.key] = kept
        return own(recorder, tree.map(recorder.unwrap, outputs), call.leaves), recorder

    def _replay(self, call: Arguments, kept: Kept, paths: Paths) -> Any:
        """Run the path that the values of this call take; record it if it is not known."""
        flat = [leaf for leaf in call.leaves if is_array(leaf)]
        recorders = [] if cursor.get() is BOTTOM else recorders_of(levels())
        marks = [recorder.mark() for recorder in recorders]
        failed: BaseException | None = None
        try:
            found = paths.run(flat, functools.partial(kept.run, self.compiling))
            if not isinstance(found, Unknown):
                return tree.unflatten(found[0], found[1] if paths.derivative is None else unshared(found[1], flat))
        except Exception as error:  # noqa: BLE001  (the function itself says what comes of it: it may catch it)
            failed = error
        for recorder, mark in zip(recorders, marks, strict=True):
            recorder.rewind(mark)
        out, recorder = self._record(call, kept, silent=True)
        if failed is not None and not recorder.has_met(failed):
            raise failed
        return out

    def _in_stretches(self, call: Arguments, stretches: Stretches) -> Any:
        """Run the function in Python, what stands outside of its regions as Programs."""
        with DeferredTrace(self.what, stretches, self.options) as recorder:
            outputs = self._apply(call, recorder)
        leaves, structure = recorder.leaves_of(outputs, self.what)
        return own(recorder, tree.unflatten(structure, [recorder.unwrap(leaf) for leaf in leaves]), call.leaves)

    # -------------------------------------------------------------- what is recorded

    def program(self, *args: Any, **kwargs: Any) -> Program:
        """Return the Program for these arguments, recording it if need be.

        Raises `ProgramError` where there is none: the function reads values (see `paths`), runs a region in Python,
        captures a value of an active layer, or returns no array.
        """
        paths = self._known(args, kwargs)
        if paths.whole is None:
            read: Any = next(segment.end for segment in paths.segments if isinstance(segment.end, Read))
            msg = (
                f"{self.what}: {read.name} at {describe(read.site)} decides how it goes on, so that no one Program "
                "does what it does; its method paths(...) gives one for each path. Write xnp.where(cond, a, b), or "
                "xf.cond, for if"
            )
            raise ProgramError(msg)
        if not paths.whole.outputs:
            msg = f"{self.what}: it has no outputs, so that a Program of it would compute nothing; return arrays"
            raise ProgramError(msg)
        return paths.whole

    def paths(self, *args: Any, **kwargs: Any) -> list[Path]:
        """Return the paths that are known for arguments like these, recording that of these if there is none.

        >>> import xform as xf
        >>> absolute = xf.trace(lambda x: x if x > 0 else -x)
        >>> [float(absolute(x)) for x in (1.0, -2.0)]
        [1.0, 2.0]
        >>> [len(path.program.equations) for path in absolute.paths(3.0)]
        [1, 2]
        """
        return [Path(outcomes, program) for outcomes, program in self._known(args, kwargs).routes()]

    def _known(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Paths:
        call = self._call(args, kwargs)
        if self.revision != Rules.revision:
            self._begin()
        if call.key not in self.programs:
            self._record(call, None)
        kept = self.programs.get(call.key)
        if kept is not None and kept.paths is not None:
            return kept.paths
        why = "the function captures a value of an active layer" if kept is None else "a region of it runs in Python"
        msg = f"{self.what}: {why}; its program is not kept"
        raise ProgramError(msg)

    def __reduce__(self) -> str | tuple[Any, ...]:
        state = {**vars(self), "programs": {}, "direct": {}}  # a copy records anew
        return global_name(self) or (copyreg.__newobj__, (type(self),), state)  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return f"trace({label_of(self.fun)})"


def plain_signature(args: tuple[Any, ...]) -> Any:
    """Return what tells arguments from others where all are NumPy arrays and floats, else None."""
    found: list[Any] = []
    for arg in args:
        kind = type(arg)
        if kind is np.ndarray:
            found.append((arg.shape, arg.dtype))
        elif kind is float:
            found.append(kind)
        else:
            return None
    return tuple(found)


def own(recorder: Trace, out: Any, given: Sequence[Any]) -> Any:
    """Return results each in memory of its own, as those of a derivative are, where one was recorded."""
    if recorder.derivative is None:
        return out
    leaves, structure = tree.flatten(out)
    return tree.unflatten(structure, unshared(leaves, given))


def recorders_of(stack: list[Level]) -> list[Trace]:
    """Return the recorders of a stack, the topmost first."""
    return [level.layer for level in stack if isinstance(level.layer, Trace)]


def label_of(fun: Callable[..., Any]) -> str:
    """Return a function's name, for messages."""
    return str(getattr(fun, "__name__", repr(fun)))


def is_array(leaf: Any) -> bool:
    """Whether a leaf is traced: an array or a number; the rest is static."""
    return isinstance(leaf, Value) or (not isinstance(leaf, bool) and is_raw(leaf))
