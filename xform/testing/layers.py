"""`check_transformation`: the manners of a layer, each a law with a name."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import numpy as np

from xform.core.bases import Observer
from xform.core.errors import LayerError
from xform.core.operator import Operator
from xform.core.place import place
from xform.core.rules import batch_rule, jvp_rule, vjp_rule
from xform.core.stack import Transformation, apply, concrete, cursor
from xform.core.value import Array, Value
from xform.loops.functions import fori_loop
from xform.ops.placement import to_numpy
from xform.ops.structural import PopScope, PushScope, name, named_scope
from xform.testing.gradients import check_problem, flattened
from xform.testing.programs import KINDS, POINT, PROGRAMS, scalar
from xform.transforms.batch import vmap
from xform.transforms.forward import jvp
from xform.transforms.reverse import grad
from xform.transforms.trace import trace

__all__ = ["check_transformation"]

Program = Callable[..., Any]


@attrs.frozen(eq=False)
class Subject:
    """The layer under test: how to make one, what it states, and whether one instance may be entered again."""

    make: Callable[[], Transformation]
    name: str
    effect: str
    reusable: bool

    def __call__(self, program: Program) -> Program:
        """Return a program that runs under a new layer at each call."""

        def under(*args: Any) -> Any:
            return self.make()(program)(*args)

        return under


def check_transformation(make: Callable[[], Transformation], *, reusable: bool = True) -> None:
    """Check the manners of a layer; raises `AssertionError` naming the layer and the law that it breaks.

    `make` is the layer's class, or a function without arguments that returns a new layer. `reusable=False` is for a
    layer that may be entered once. The laws:

    1. Values: a layer that observes or wraps changes no value, one that is faithful none beyond rounding, one that
       rewrites gives the same twice; dtypes too, and in batches, in forward mode and in loops.
    2. Structure: operators with several results, scopes, names and host reads pass.
    3. Gradients above it are right; below it they are too, or refused where it rewrites.
    4. Traces above and below it give what the eager program gives.
    5. It stands above and below another of its kind, and not twice on one stack.
    6. An exception leaves the stack, the scopes and NumPy's error handling as they were, and passes unchanged.
    7. It works in several threads, and again and again.
    8. It keeps nothing alive: neither itself nor the values of a program that has ended.

    >>> import xform as xf
    >>> class CosForSin(xf.Rewriter):
    ...     def rewrite(self, op, values):
    ...         return xf.ops.cos(*values) if op == xf.ops.Sin() else NotImplemented
    >>> check_transformation(CosForSin)
    """
    made = make()
    if not isinstance(made, Transformation):
        raise AssertionError(  # noqa: TRY004  (every finding of the kit is an AssertionError)
            f"{make!r} gave {type(made).__name__}, which is no xf.Transformation"
        )
    label = type(made).__name__
    subject = Subject(make, label, made.effect, reusable)
    del made
    for law in LAWS:
        before, scopes, errors = cursor.get(), place.get().scopes, np.geterr()
        try:
            law(subject)
        except AssertionError as error:
            raise AssertionError(f"{label}: {law.__name__}: {error}") from error
        except Exception as error:
            raise AssertionError(f"{label}: {law.__name__}: raised {type(error).__name__}: {error}") from error
        finally:
            left = cursor.get(), place.get().scopes, np.seterr(**errors)
            cursor.set(before)
            place.set(attrs.evolve(place.get(), scopes=scopes))
        kept = ("the stack", before), ("the scope", scopes), ("np.geterr()", errors)
        for (what, was), now in zip(kept, left, strict=True):
            if was is not now and was != now:
                raise AssertionError(f"{label}: {law.__name__}: {what} is not as it was before")


# ------------------------------------------------------------------ comparing


def host(value: Any) -> np.ndarray[Any, Any]:
    """Return a result as a NumPy array, wherever it is and whatever is around it."""
    raw = concrete(value)
    if raw is None:
        raise AssertionError(f"the result {value!r} has no data")
    return np.asarray(to_numpy(raw))


def require_same(what: str, got: Any, want: Any, *, exact: bool = False) -> None:
    """Raise where two results differ: at all, or by more than rounding."""
    a, b = host(got), host(want)
    if a.shape != b.shape or a.dtype != b.dtype:
        raise AssertionError(f"{what}: got {a.dtype}{list(a.shape)}, expected {b.dtype}{list(b.shape)}")
    if not (np.array_equal(a, b) if exact else np.allclose(a, b, rtol=1e-6, atol=1e-9)):
        raise AssertionError(f"{what}: got {a!r}, expected {b!r}")


def lifted(x: Any) -> Any:
    """Return a tracked array."""
    out = Array()
    out.data = x
    return out


def tracked() -> tuple[Any, ...]:
    """Return the operands of the programs as tracked arrays."""
    return tuple(map(lifted, POINT))


@contextmanager
def entered(layer: Transformation) -> Iterator[Transformation]:
    """Enter a layer; an observer that rightly saw nothing may say so."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*saw no operation.*", UserWarning)
        with layer:
            yield layer


# ------------------------------------------------------------------ the laws


def values(subject: Subject) -> None:
    """Law 1."""
    exact = subject.effect != "faithful"
    for label, program in PROGRAMS.items():
        with entered(subject.make()):
            inside = program(*tracked())
        plain = program(*POINT) if subject.effect != "rewrites" else subject(program)(*tracked())
        require_same(f"program {label!r} inside the layer", inside, plain, exact=exact)
        decorated = subject(program)(*POINT)
        if isinstance(decorated, Value):
            msg = f"program {label!r}: the decorated function got raw arrays and gave {decorated!r}"
            raise AssertionError(msg)  # noqa: TRY004
        require_same(f"program {label!r} decorated with the layer", decorated, plain, exact=exact)
        with entered(subject.make()):
            program(*POINT)  # raw operands


def kinds(subject: Subject) -> None:
    """Law 1, of other dtypes."""
    exact = subject.effect != "faithful"
    for kind, point in KINDS.items():
        for label in ("elementwise", "reduction", "product"):
            program = PROGRAMS[label]
            with entered(subject.make()):
                inside = program(*map(lifted, point))
            plain = program(*point) if subject.effect != "rewrites" else subject(program)(*map(lifted, point))
            require_same(f"program {label!r} of {kind} inside the layer", inside, plain, exact=exact)


MODES: dict[str, Callable[[Program], Program]] = {
    "vmap": lambda program: lambda x, y: vmap(program, in_axes=(0, None))(np.stack([x, x * 0.5]), y),
    "jvp": lambda program: lambda x, y: jvp(program, (x, y), (POINT[1], POINT[0]))[1],
    "fori_loop": lambda program: lambda x, y: fori_loop(0, 2, lambda i, carry: program(carry, y), x),
}


def modes(subject: Subject) -> None:
    """Law 1, in batches, forward mode and loops: of a function under the layer, and inside of it."""
    for mode, through in MODES.items():
        for label in ("elementwise", "recurrence", "mixed"):
            program = PROGRAMS[label]
            under = subject(program)
            want = through(program)(*POINT)
            if subject.effect == "rewrites":
                x, y = POINT
                rows = (under(x, y), under(x * 0.5, y)) if mode == "vmap" else ()
                want = np.stack(list(map(host, rows))) if rows else under(under(x, y), y)
                if mode == "jvp":  # the derivative is held against finite differences
                    check_problem(flattened(f"program {label!r} under jvp", under, POINT), 1, ("fwd",))
                    continue
            if (mode, subject.effect) != ("fori_loop", "faithful"):  # whose results may be elsewhere than its operands
                require_same(f"{mode}(layer(program {label!r}))", through(under)(*POINT), want)
            if subject.effect == "rewrites":  # a batch and a loop may stand above it, or be refused
                continue
            with entered(subject.make()):
                got = through(program)(*tracked())
            require_same(f"{mode}(program {label!r}) inside the layer", got, want)


class HalfAndDouble(Operator):
    """Two results of one operand, for the laws below."""

    multiple_outputs = True

    def infer(self, x: Any) -> Any:
        """The operand's, twice."""
        return x, x

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Compute on raw arrays."""
        return x * 0.5, x * 2.0


@vjp_rule(HalfAndDouble)
def half_and_double_vjp(op: Operator, needed: Any, x: Any) -> Any:
    """The reverse rule."""
    return apply(op, x), lambda cotangents: (cotangents[0] * 0.5 + cotangents[1] * 2.0,)


@jvp_rule(HalfAndDouble)
def half_and_double_jvp(op: Operator, primals: Any, tangents: Any) -> Any:
    """The forward rule."""
    return apply(op, *primals), None if tangents[0] is None else apply(op, *tangents)


@batch_rule(HalfAndDouble)
def half_and_double_batch(op: Operator, size: int, operands: Any, axes: Any) -> Any:
    """The batch rule."""
    return apply(op, *operands), (axes[0], axes[0])


class Scopes(Observer):
    """Sees the scopes that reach the place below the layer under test."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def observe(self, op: Operator, inputs: tuple[Any, ...], outputs: Any) -> None:
        """Note what opens and closes a scope."""
        if isinstance(op, PushScope | PopScope):
            self.seen.append(f"{op.name} {op.scope}")


def structure(subject: Subject) -> None:
    """Law 2."""
    x = POINT[0]
    with Scopes() as below, entered(subject.make()):
        with named_scope("a scope"):
            half, double = apply(HalfAndDouble(), lifted(x))
        labelled = name(half + double, "a name")
        number = float(lifted(np.array(3.0)))
    if below.seen != ["PushScope a scope", "PopScope a scope"]:
        raise AssertionError(f"of a named_scope inside the layer, {below.seen} reached what stands below")
    require_same("an operator with two results, in a scope", labelled, x * 2.5)
    if number != 3.0:
        raise AssertionError(f"float() of a value inside the layer: got {number}, expected 3.0")


def gradients_above(subject: Subject) -> None:
    """Law 3: `grad(layer(f))`."""
    for label, program in PROGRAMS.items():
        total = scalar(program)
        if subject.effect == "rewrites":
            check_problem(flattened(f"program {label!r} under grad", subject(total), POINT), 2, ("rev",))
            continue
        both = tuple(range(len(POINT)))
        for got, want in zip(grad(subject(total), both)(*POINT), grad(total, both)(*POINT), strict=True):
            require_same(f"grad(layer(program {label!r}))", got, want)


def gradients_below(subject: Subject) -> None:
    """Law 3: `grad(f)` inside the layer."""
    for label, program in PROGRAMS.items():
        total = scalar(program)
        if subject.effect == "rewrites":
            refused(subject, total)
            continue
        with entered(subject.make()):
            got = grad(total)(*tracked())
        require_same(f"grad(program {label!r}) inside the layer", got, grad(total)(*POINT))


def refused(subject: Subject, total: Program) -> None:
    """A gradient above a layer that rewrites is of the wrong function: the error names both."""
    try:
        with entered(subject.make()):
            grad(total)(*tracked())
    except LayerError as error:
        if subject.name not in str(error) or "Grad" not in str(error):
            raise AssertionError(f"the error does not name {subject.name} and Grad: {error}") from error
        return
    raise AssertionError("it rewrites, and a gradient inside it was not refused")


def traces(subject: Subject) -> None:
    """Law 4: `trace(layer(f))`, and `trace(f)` inside the layer, each recorded and replayed."""
    for label, program in PROGRAMS.items():
        want = subject(program)(*POINT)
        above, below = trace(subject(program)), trace(program)
        for round_ in ("recorded", "replayed"):
            require_same(f"trace(layer(program {label!r})), {round_}", above(*POINT), want)
            with entered(subject.make()):
                got = below(*tracked())
            require_same(f"trace(program {label!r}) inside the layer, {round_}", got, want)


def nesting(subject: Subject) -> None:
    """Law 5."""
    program = PROGRAMS["elementwise"]
    with entered(subject.make()) as layer, entered(subject.make()):
        program(*tracked())
        before = cursor.get()
        try:
            with layer:
                program(*tracked())
        except LayerError:
            if cursor.get() is not before:
                raise AssertionError("refused a second time on one stack, it left the stack changed") from None
        else:
            raise AssertionError("one instance stood twice on one stack")


class Unforeseen(Exception):  # noqa: N818  (it is no error of anybody)
    """What the laws raise inside a layer."""


def exceptions(subject: Subject) -> None:
    """Law 6."""
    before, mine = cursor.get(), Unforeseen("raised inside the layer")

    def throw() -> None:
        raise mine

    def evaluate() -> None:
        apply(Throws(mine), lifted(POINT[0]))

    cases = (("an exception", throw), ("an exception of an operator", evaluate), ("an operation that fails", mismatch))
    for label, failing in cases:
        caught: BaseException | None = None
        try:
            with entered(subject.make()):
                failing()
        except (Unforeseen, ValueError) as error:
            caught = error
        if not (caught is mine if failing is not mismatch else isinstance(caught, ValueError)):
            raise AssertionError(f"{label} inside the layer did not come out as it was raised: {caught!r}")
        if cursor.get() is not before:
            raise AssertionError(f"after {label} the stack is not as it was before")
    values(subject)


@attrs.frozen(eq=False)
class Throws(Operator):
    """Raises when it is computed."""

    error: BaseException

    def infer(self, x: Any) -> Any:
        """The operand's."""
        return x

    def evaluate(self, xp: Any, x: Any) -> Any:
        """Raise."""
        raise self.error


for _table in (vjp_rule, jvp_rule, batch_rule):
    _table.none(Throws, why="it gives nothing")


def mismatch() -> None:
    """Apply an operation whose shapes do not fit."""
    lifted(np.ones(2)) + lifted(np.ones(3))


def repetition(subject: Subject) -> None:
    """Law 7: one instance, block after block."""
    program = PROGRAMS["elementwise"]
    want = subject(program)(*POINT)
    layer = subject.make()
    for _ in range(3 if subject.reusable else 1):
        with entered(layer):
            got = program(*tracked())
        require_same("used again", got, want)


def threads(subject: Subject) -> None:
    """Law 7: the same instance (where it is reusable) in several threads at a time."""
    program = PROGRAMS["elementwise"]
    want, shared = subject(program)(*POINT), subject.make()
    wrong: list[str] = []
    barrier = threading.Barrier(4)

    def work() -> None:
        try:
            barrier.wait(timeout=10)
            for _ in range(5):
                with shared if subject.reusable else subject.make():
                    got = program(*tracked())
                require_same("in a thread", got, want)
        except Exception as error:  # noqa: BLE001  (told to the main thread, whatever it is)
            wrong.append(f"{type(error).__name__}: {error}")

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if wrong:
        raise AssertionError(f"four threads at a time: {wrong[0]}")


def leaks(subject: Subject) -> None:
    """Law 8."""
    program = PROGRAMS["elementwise"]

    def run() -> tuple[Any, Any, Any]:
        layer, operand = subject.make(), lifted(POINT[0] * 1.0)
        with entered(layer):
            out = concrete(program(operand, *POINT[1:]))
        arrays = weakref.ref(operand.data), weakref.ref(out)
        try:
            return weakref.ref(layer), *arrays
        except TypeError:  # a class with __slots__ may refuse
            return weakref.ref(operand), *arrays

    run()
    gc.collect()
    alive = census()
    for _ in range(3):
        layer, array, result = run()
    gc.collect()
    for what, reference in (("the layer", layer), ("an operand", array), ("a result", result)):
        if reference() is not None:
            raise AssertionError(f"{what} is alive after its program has ended: {holders(reference())}")
    if census() > alive:
        raise AssertionError(f"three programs left {census() - alive} layers or values behind")


def census() -> int:
    """Count the layers and values that are alive."""
    return sum(issubclass(type(each), Value | Transformation) for each in gc.get_objects())


def holders(found: Any) -> str:
    """Say what refers to an object."""
    return ", ".join(sorted({type(each).__name__ for each in gc.get_referrers(found)})) or "a frame"


LAWS = (
    values, kinds, structure, gradients_above, gradients_below, traces, modes, nesting, exceptions, repetition, threads,
    leaks,
)  # fmt: skip
