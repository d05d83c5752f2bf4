"""The errors of xform: one family, and each is also the builtin that a caller would catch.

Every message names the operator or the argument, the user's line where one is known, and what to write instead. The
objects that the message speaks of are attributes of the exception.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "CaptureError",
    "ConvergenceError",
    "DeviceMismatchError",
    "DeviceUnavailableError",
    "DtypeError",
    "EngineError",
    "EscapedValueError",
    "GradientError",
    "HostReadError",
    "IndexOperandError",
    "LayerError",
    "LayerOrderError",
    "MissingRuleError",
    "NanError",
    "OperandError",
    "OperandTypeError",
    "PluginError",
    "ProgramError",
    "ProgramFormatError",
    "RuleError",
    "ShapeError",
    "TapeConsumedError",
    "TooManyPathsError",
    "TraceMismatchError",
    "TreeError",
    "WriteError",
    "XformError",
]


class XformError(Exception):
    """Base of all errors that xform raises; keyword arguments become attributes.

    >>> import numpy as np, xform as xf
    >>> try:
    ...     xf.array(np.ones(2)) @ np.ones(3)
    ... except xf.XformError as error:
    ...     print(type(error).__name__, isinstance(error, ValueError), error.op)
    ShapeError True Matmul()
    """

    def __init__(self, message: str, **payload: Any) -> None:
        super().__init__(message)
        self.payload = payload
        for name, value in payload.items():
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self))


def _rebuild(kind: type[XformError], message: str) -> XformError:
    """Unpickle an error: the message survives, objects of the payload may not be picklable."""
    return kind(message)


class OperandError(XformError, ValueError):
    """An operand has a value, shape or count that the operator does not take."""


class ShapeError(OperandError):
    """Shapes that do not fit together."""


class IndexOperandError(OperandError, IndexError):
    """An index that is out of bounds."""


class OperandTypeError(XformError, TypeError):
    """An operand is no array, or of a kind that the operator does not take."""


class DtypeError(OperandTypeError):
    """A dtype that the operation does not take."""


class MissingRuleError(XformError, NotImplementedError):
    """A table has no rule for an operator; the message says which one to write."""


class RuleError(XformError, TypeError):
    """A rule returned something of a wrong structure, shape or dtype."""


class GradientError(XformError, TypeError):
    """A gradient that is not defined: an output that is no scalar, an integer leaf, a wrong cotangent."""


class TapeConsumedError(XformError, RuntimeError):
    """A tape was used for a second backward pass without `retain=True`."""


class SavedArrayError(GradientError):
    """An array that a tape holds for its backward pass was changed by NumPy since."""


class EscapedValueError(XformError, RuntimeError):
    """A value is used where its transformation is not active: after its end, or in another thread."""


class HostReadError(XformError, TypeError):
    """Reading a value on the host here would silently drop what its transformation knows of it."""


class WriteError(XformError, TypeError):
    """Assignment into a value, or writing a value into an array; nothing was written."""


class LayerError(XformError, RuntimeError):
    """A layer that cannot stand at this place of the stack."""


class LayerOrderError(LayerError):
    """Layers were left in another order than they were entered in."""


class DeviceMismatchError(XformError, TypeError):
    """Operands of one operation live in different libraries or on different devices."""


class DeviceUnavailableError(XformError, RuntimeError):
    """A device that is not at hand on this machine."""


class ConvergenceError(XformError, RuntimeError):
    """An iteration did not reach its tolerance."""


class NanError(XformError, FloatingPointError):
    """An operation made a NaN or an infinity."""


class PluginError(XformError, ImportError):
    """A plugin cannot be loaded, or does not fit this version of xform."""


class ProgramError(XformError, RuntimeError):
    """A program cannot be recorded or run as asked."""


class CaptureError(ProgramError):
    """A traced function uses an array that is no argument, where `capture="error"` forbids it."""


class TooManyPathsError(ProgramError):
    """A traced function goes other ways for more outcomes of what it reads than paths may be recorded."""


class TraceMismatchError(ProgramError):
    """A traced function does something else than what was recorded; `reason` tells which of several kinds it is."""


class ProgramFormatError(ProgramError, ValueError):
    """A file that holds no program, or a program that no file can hold."""


class EngineError(ProgramError):
    """An engine that does not take an operation of a program."""


class TreeError(XformError, ValueError):
    """Two containers differ in structure."""
