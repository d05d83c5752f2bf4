"""Two further bases of layers: those that replace operations, and those that watch."""

from __future__ import annotations

from typing import Any

from xform.core.errors import LayerError
from xform.core.operator import Operator
from xform.core.source import warn_user
from xform.core.stack import Interpret, Level, Transformation, apply, cursor, levels, makers

__all__ = ["Observer", "Rewriter"]

_get = cursor.get
_set = cursor.set


class Rewriter(Transformation):
    """A layer that replaces operations: `rewrite(op, values)` returns the result, or `NotImplemented` to pass on.

    >>> import xform as xf, xform.numpy as xnp
    >>> class Square(xf.Rewriter):
    ...     def rewrite(self, op, values):
    ...         return values[0] * values[0] if op == xf.ops.Sin() else NotImplemented
    >>> with Square():
    ...     xnp.sin(3.0)
    9.0
    """

    def rewrite(self, op: Operator, values: tuple[Any, ...]) -> Any:
        """Return the result of the operation, or `NotImplemented`."""
        msg = f"{type(self).__name__} must define rewrite(self, op, values)"
        raise NotImplementedError(msg)

    def interpret(self, op: Operator, values: tuple[Any, ...]) -> Any:
        """Rewrite the operation, or send it on as it is."""
        out = self.rewrite(op, values)
        return apply(op, *values) if out is NotImplemented else out


class Observer(Transformation):
    """A layer that watches: it changes no operation and no value.

    A simple one writes `observe(op, inputs, outputs)`; the full protocol is `before`, `after`, `failed`. Hooks run with
    the cursor below. An observer that saw no operation warns when it is left. Above a recorder it leaves an operator in
    the program, which calls `before` and `after` once the operation has run, now and on each replay: what they see is
    right, but a time between them is not the operation's.

    >>> import xform as xf, xform.numpy as xnp
    >>> class Names(xf.Observer):
    ...     def observe(self, op, inputs, outputs):
    ...         print(op.name)
    >>> with Names():
    ...     y = xnp.sin(xf.array(0.0)) + 1.0
    Sin
    Add
    """

    effect = "observes"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "interpret" in vars(cls):
            msg = (
                f"{cls.__name__}.interpret would never be called: an Observer has hooks (observe; before, after, "
                'failed). Derive it from xf.Transformation, with effect = "observes" if it changes no value'
            )
            raise LayerError(msg, layer=cls)

    def before(self, op: Operator, inputs: tuple[Any, ...]) -> Any:
        """Run before the operation; what it returns is given to `after` and `failed`."""

    def after(self, token: Any, op: Operator, inputs: tuple[Any, ...], outputs: Any) -> None:
        """Run after the operation; `outputs` is one value, or a tuple for several."""
        self.observe(op, inputs, outputs)

    def failed(self, token: Any, op: Operator, inputs: tuple[Any, ...], error: BaseException) -> None:
        """Run when the operation raised."""

    def observe(self, op: Operator, inputs: tuple[Any, ...], outputs: Any) -> None:
        """See one finished operation."""

    def told(self, op: Operator, inputs: tuple[Any, ...], outputs: Any) -> None:
        """Be told, by an operator that was left in a program, of an operation that has run."""
        self.after(self.before(op, inputs), op, inputs, outputs)

    def bind(self, below: Level) -> Interpret:
        """Return the function that calls the hooks around the operation."""
        before, after, failed, interpret = self.before, self.after, self.failed, below.interpret
        seen: list[bool] = []  # of this push alone: the layer may be in use elsewhere
        if any(level.layer is not None and level.layer.records for level in levels(below)):
            return self._bind_recorded(interpret, seen)

        def run(op: Operator, values: tuple[Any, ...]) -> Any:
            if not seen:
                seen.append(True)
            if op.observes:
                return interpret(op, values)
            op = op.within(self) if op.nests else op
            here = _get()
            _set(below)
            try:
                token = before(op, values)
                try:
                    out = interpret(op, values)
                except BaseException as error:
                    failed(token, op, values, error)
                    raise
                after(token, op, values, out)
            finally:
                _set(here)
            return out

        vars(run)["seen"] = seen
        return run

    def _bind_recorded(self, interpret: Interpret, seen: list[bool]) -> Interpret:
        """Return the function for a place above a recorder: it leaves an operator that observes, now and on replay."""

        def run(op: Operator, values: tuple[Any, ...]) -> Any:
            if not seen:
                seen.append(True)
            op = op.within(self) if op.nests else op
            out = interpret(op, values)
            if not op.observes and not op.attribute_like:
                outputs = out if op.multiple_outputs else (out,)
                interpret(makers["observe"](self, op, len(values)), (*values, *outputs))
            return out

        vars(run)["seen"] = seen
        return run

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        level = cursor.get()
        super().__exit__(kind, error, traceback)
        if error is None and level.layer is self and not getattr(level.interpret, "seen", True):
            warn_user(
                f"{self!r} saw no operation: raw NumPy arrays compute past the stack. Track the inputs with "
                "xf.array(x), or decorate the function with the layer"
            )
