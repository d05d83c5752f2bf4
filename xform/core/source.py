"""The user's line: the nearest frame that is not xform's own; and tracebacks without xform's frames."""

from __future__ import annotations

import dis
import functools
import inspect
import linecache
import os
import sys
import warnings
from collections.abc import Callable
from types import CodeType, FrameType, TracebackType
from typing import Any, TypeVar

import numpy as np

from xform.core.errors import LayerError
from xform.core.functions import is_coroutine

__all__ = [
    "Site", "Spot", "Spots", "boundary", "describe", "hide_frames", "install_hook", "is_internal", "refuse_yield",
    "site_of", "user_site", "warn_user"
]  # fmt: skip

Site = tuple[str, int]
Spot = tuple[CodeType, int]
F = TypeVar("F", bound=Callable[..., Any])

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
#: files whose functions `run` call what layers define
_STACK = {os.path.join(_ROOT, "core", name) for name in ("stack.py", "bases.py")}
_NUMPY = os.path.dirname(os.path.abspath(np.__file__)) + os.sep  # np.r_, np.full_like, ... call back


class Known(dict[str, bool]):
    """What is known of file names, found out at the first look: a frame walk makes dozens of looks."""

    def __init__(self, find_out: Callable[[str], bool]) -> None:
        self.find_out = find_out

    def __missing__(self, filename: str) -> bool:
        found = self[filename] = self.find_out(filename)
        return found


def _is_own(filename: str) -> bool:
    name = os.path.basename(filename)
    return filename.startswith((_ROOT, "<frozen", "<__array_function__")) or (
        name in ("contextlib.py", "functools.py") and os.sep + "python" in filename
    )


_internal = Known(_is_own)
_passed_over = Known(lambda filename: filename.startswith(_NUMPY) or _is_own(filename))


def is_internal(filename: str) -> bool:
    """Whether a file is xform's own, or a part of the interpreter that only passes calls on.

    >>> is_internal(__file__), is_internal(np.__file__)
    (True, False)
    """
    return _internal[filename]


def nearest_frame(frame: FrameType | None) -> FrameType | None:
    """Return the nearest frame that is not of xform or NumPy, from this one outwards."""
    passed_over = _passed_over
    while frame is not None and passed_over[frame.f_code.co_filename]:
        frame = frame.f_back
    return frame


def user_frame(frame: FrameType | None = None) -> FrameType | None:
    """Return the nearest frame of a user's program, from this one outwards, or None at the bottom of a thread.

    Frames of xform and of NumPy are passed over, and frames of a layer's own `interpret` or `observe`.
    """
    internal, frame = _internal, nearest_frame(frame or sys._getframe(1))  # noqa: SLF001  (the documented way to the caller's frame)
    while True:
        above = frame
        for _ in range(8):  # how deep a hook may call functions of its own; a user's stack may be a thousand frames
            if above is None or internal[above.f_code.co_filename]:
                break
            above = above.f_back
        while above is not None and above.f_code.co_filename in _STACK and above.f_code.co_name != "run":
            above = above.f_back
        if above is None or above.f_code.co_filename not in _STACK:
            return frame
        frame = nearest_frame(above)


def user_site() -> Site:
    """Return file and line of the nearest frame outside xform and NumPy.

    >>> user_site()[1] > 0
    True
    """
    frame = user_frame()
    if frame is None:
        return ("<unknown>", 0)
    return (frame.f_code.co_filename, frame.f_lineno)


class Spots:
    """The user's lines for one who asks thousands of times, most often in one function: 0.3 us where a site costs 3."""

    __slots__ = ("code",)

    def __init__(self) -> None:
        self.code: CodeType | None = None  # of the last frame: above it stands no hook of a layer

    def spot(self, depth: int) -> Spot | None:
        """Return code and instruction of the nearest frame outside xform and NumPy, at least so far out."""
        try:
            frame: FrameType | None = sys._getframe(depth)  # noqa: SLF001
        except ValueError:  # no Python code runs this: a thread of C
            return None
        code = self.code
        if frame.f_code is code:  # type: ignore[union-attr]
            return code, frame.f_lasti  # type: ignore[union-attr]
        frame = nearest_frame(frame)
        if frame is None or frame.f_code is not code:
            frame = user_frame(frame)
            self.code = None if frame is None else frame.f_code
        return None if frame is None else (frame.f_code, frame.f_lasti)


def site_of(spot: Spot | None) -> Site | None:
    """Return file and line of an instruction; finding a line takes longer than all else."""
    if spot is None:
        return None
    code, instruction = spot
    lines = (line for start, end, line in code.co_lines() if start <= instruction < end)
    return code.co_filename, next(lines, None) or 0


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the user's line, whatever stands between; each line is told once, as filters say."""
    frame = user_frame()
    if frame is None:
        warnings.warn_explicit(message, category, "<unknown>", 0)
        return
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    module = frame.f_globals.get("__name__") or "<unknown>"
    warnings.warn_explicit(message, category, frame.f_code.co_filename, frame.f_lineno, module, registry)


def describe(site: Site | None) -> str:
    """Return `file:line` with the text of the line where it can be found (notebook cells included).

    >>> describe(None)
    'an unknown line'
    """
    if site is None or not site[1]:
        return "an unknown line"
    filename, line = site
    text = linecache.getline(filename, line).strip()
    shown = os.path.relpath(filename) if os.path.isabs(filename) and filename.startswith(os.getcwd()) else filename
    return f"{shown}:{line}: {text}" if text else f"{shown}:{line}"


def refuse_yield(layer: object, frame: FrameType) -> None:
    """Raise `LayerError` where a generator enters a layer around a `yield`; `frame` runs the `with` statement.

    Such a layer would stay on the stack of whoever runs the generator. A generator that `contextlib` drives is left in
    order, and passes.
    """
    if not frame.f_code.co_flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR):
        return
    driver = frame.f_back
    if driver is not None and os.path.basename(driver.f_code.co_filename) == "contextlib.py":
        return
    if _yields_inside(frame.f_code, frame.f_lasti):
        site = (frame.f_code.co_filename, frame.f_lineno)
        msg = (
            f"{layer!r} stands around a yield at {describe(site)}: it would stay on the stack of whoever runs the "
            "generator. Enter it inside each step, or compute a list inside the block and yield after it"
        )
        raise LayerError(msg, layer=layer)


def _yields_inside(code: CodeType, position: int) -> bool:
    """Whether the `with` block that is entered at bytecode `position` holds a yield."""
    instructions = list(dis.get_instructions(code))
    enter = next((i.offset for i in instructions if i.offset >= position and i.opname in _ENTER), position)
    handlers = getattr(dis, "_parse_exception_table")(code)  # noqa: B009  (no public reader of the table)
    # the block's own entry is the first that starts behind the instruction that enters it
    starts = sorted((entry for entry in handlers if entry.start > enter), key=lambda entry: (entry.start, -entry.end))
    if not starts:
        return False
    target = starts[0].target
    block = [entry for entry in handlers if entry.target == target]
    return any(
        i.opname == "YIELD_VALUE" and any(entry.start <= i.offset < entry.end for entry in block) for i in instructions
    )


_ENTER = ("BEFORE_WITH", "BEFORE_ASYNC_WITH", "LOAD_SPECIAL")


# ------------------------------------------------------------------ tracebacks
# Three places cut xform's frames out: a layer's __exit__, the boundary of grad and its like, and sys.excepthook for
# what is left. XFORM_FULL_TRACEBACK=1, read when an error passes, keeps them. The exception stays the same object.


def wants_full() -> bool:
    """Whether tracebacks are to keep xform's own frames."""
    return os.environ.get("XFORM_FULL_TRACEBACK", "0") not in ("", "0")


def hidden(excinfo: object = None) -> bool:
    """Tell pytest, as a module's `__tracebackhide__`, whether to leave out the module's frames."""
    return not wants_full()


def visible(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without xform's own frames."""
    entries = []
    at = traceback
    while at is not None:
        entries.append(at)
        at = at.tb_next
    kept = [each for each in entries if not is_internal(each.tb_frame.f_code.co_filename)]
    if len(kept) == len(entries):
        return traceback
    for each in reversed(kept):
        at = TracebackType(at, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return at


def hide_frames(error: BaseException) -> None:
    """Cut xform's frames out of the traceback of an error, of its causes, and of the members of a group."""
    if wants_full():
        return
    pending: list[BaseException | None] = [error]
    seen: set[int] = set()
    while pending:
        each = pending.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        each.__traceback__ = visible(each.__traceback__)
        pending += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]


def boundary(fun: F) -> F:
    """Decorate what users call, so that errors leave it without xform's frames.

    A bare `raise` adds no entry for its own frame, so this one vanishes too.
    """
    if is_coroutine(fun):

        @functools.wraps(fun)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = hidden
            try:
                return await fun(*args, **kwargs)
            except BaseException as error:
                hide_frames(error)
                raise

        return awaited  # type: ignore[return-value]

    @functools.wraps(fun)
    def at_boundary(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = hidden
        try:
            return fun(*args, **kwargs)
        except BaseException as error:
            hide_frames(error)
            raise

    return at_boundary  # type: ignore[return-value]


def install_hook() -> None:
    """Put a hook before `sys.excepthook` that cuts xform's frames out of what reaches the top; only once."""
    before = sys.excepthook
    if getattr(before, "cuts_xform_frames", False):
        return

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if visible(traceback) is not None:  # an error of xform alone is shown whole
            hide_frames(error)
        before(kind, error, error.__traceback__)

    hook.cuts_xform_frames = True  # type: ignore[attr-defined]
    sys.excepthook = hook
