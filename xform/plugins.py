"""Layers, operators, backends and engines by name: built-in, registered, and of installed distributions.

1. A name is looked up when it is asked for, never at import: first among the built-in, then the registered, then the
   entry points of the groups `xform.transformations`, `xform.operators`, `xform.backends` and `xform.engines`.
2. A plugin that cannot be loaded raises `PluginError` naming its distribution, and harms no other.
3. A layer class states `layer_api = 1`, the version of the layer API that it was written for; another one than
   `LAYER_API` is refused. A class that states none is taken as it is.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from xform.core.devices import Backend, forget_backend
from xform.core.errors import OperandTypeError, PluginError
from xform.core.operator import Operator
from xform.core.stack import Transformation

__all__ = [
    "LAYER_API", "backend", "backends", "engine", "engines", "layer", "operator", "operators", "register",
    "register_backend", "register_engine", "transformations"
]  # fmt: skip

#: version of the API between a layer and xform; it changes after two minor releases of deprecation
LAYER_API = 1


@attrs.define(eq=False)
class Registry:
    """Names of one kind; a target is an object, or `"module:attribute"` that is imported when asked for."""

    kind: str
    group: str
    built_in: dict[str, Any] = attrs.field(factory=dict)
    registered: dict[str, Any] = attrs.field(factory=dict)

    def register(self, name: str, target: Any) -> None:
        """Give a target a name; a registered name may be given anew, a built-in one may not."""
        if not isinstance(name, str) or not name or ":" in name:
            msg = f"{name!r} is no name for a {self.kind}: it must be text, without the colon that begins its options"
            raise PluginError(msg, name=name)
        if name in self.built_in:
            msg = f"{self.kind} {name!r} is built in; register yours under another name"
            raise PluginError(msg, name=name)
        self.registered[name] = target

    def entry_points(self) -> dict[str, list[Any]]:
        """Return the entry points of installed distributions by name, two where two claim one name."""
        from importlib.metadata import entry_points  # noqa: PLC0415  (3 ms that no import of xform needs)

        found: dict[str, list[Any]] = {}
        for entry in entry_points(group=self.group):
            found.setdefault(entry.name, []).append(entry)
        return found

    def names(self) -> dict[str, str]:
        """Return where each name comes from."""
        listed = {name: " and ".join(map(origin, entries)) for name, entries in self.entry_points().items()}
        listed |= dict.fromkeys(self.registered, "registered") | dict.fromkeys(self.built_in, "built-in")
        return dict(sorted(listed.items()))

    def find(self, name: str) -> tuple[Any, str]:
        """Return the object of a name and where it comes from; raises `PluginError` where it cannot."""
        for source, table in (("built-in", self.built_in), ("registered", self.registered)):
            if name in table:
                return loaded(table[name], f"{source} {self.kind} {name!r}"), source
        entries = self.entry_points().get(name, [])
        if not entries:
            known = ", ".join(self.names()) or "none"
            msg = f"there is no {self.kind} {name!r}; known are: {known}"
            raise PluginError(msg, name=name)
        if len(entries) > 1:
            msg = f"{self.kind} {name!r} is claimed by {' and '.join(map(origin, entries))}; uninstall one"
            raise PluginError(msg, name=name)
        source = origin(entries[0])
        return loaded(f"{entries[0].module}:{entries[0].attr}", f"{self.kind} {name!r} of {source}"), source


def origin(entry: Any) -> str:
    """Return the distribution of an entry point, with its version."""
    return f"{entry.dist.name} {entry.dist.version}"


def loaded(target: Any, what: str) -> Any:
    """Return a target, imported where it is the text `"module:attribute"`."""
    if not isinstance(target, str):
        return target
    module, _, path = target.partition(":")
    try:
        found: Any = importlib.import_module(module.strip())
        for part in filter(None, path.strip().split(".")):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:
        msg = f"{what} cannot be loaded from {target!r}: {type(error).__name__}: {error}"
        raise PluginError(msg, target=target) from error
    return found


_transformations = Registry(
    "layer",
    "xform.transformations",
    {
        "batch": "xform.transforms.batch:Batch",
        "device": "xform.transforms.device:Device",
        "explain": "xform.transforms.explain:Explain",
        "forward": "xform.transforms.forward:Forward",
        "grad": "xform.transforms.grad:Grad",
        "nan_guard": "xform.transforms.nan_guard:NanGuard",
        "profile": "xform.transforms.profile:Profile",
        "trace": "xform.transforms.trace:Trace",
    },
)
_operators = Registry("operator", "xform.operators")
_backends = Registry(
    "backend",
    "xform.backends",
    {
        "array_api_strict": "xform.core.devices:STRICT",
        "numpy": "xform.core.devices:NUMPY",
        "torch": "xform.core.devices:TORCH",
    },
)
_engines = Registry("engine", "xform.engines", {"numpy": "xform.programs.engines:NUMPY"})


def register(name: str, kind: Callable[..., Transformation] | str) -> None:
    """Make a layer class (or any function that returns a layer) known by name.

    Takes `"module:Class"` too, imported when the name is asked for. Raises `PluginError` for a built-in name and for a
    class of another layer API.

    >>> import xform as xf
    >>> class Quiet(xf.Observer):
    ...     layer_api = 1
    >>> xf.register("quiet", Quiet)
    >>> xf.layer("quiet")
    Quiet()
    """
    if not isinstance(kind, str):
        check_api(kind, f"layer {name!r}")
    _transformations.register(name, kind)


def transformations() -> dict[str, str]:
    """Return the names of all layers, and where each comes from; loads none of them.

    >>> import xform as xf
    >>> xf.transformations()["grad"]
    'built-in'
    """
    return _transformations.names()


def layer(name: str, /, *given: Any, **options: Any) -> Transformation:
    """Make a layer by name; `given` and `options` are the arguments of its class.

    Raises `PluginError` where the name is unknown or its plugin does not load, `OperandTypeError` for arguments that
    the class does not take.

    >>> import xform as xf
    >>> xf.layer("grad", name="mine")
    Grad(mine)
    """
    kind, source = _transformations.find(name)
    what = f"layer {name!r} ({source})"
    check_api(kind, what)
    if not callable(kind) or isinstance(kind, Transformation):
        msg = f"{what} is {kind!r}; an entry point must name a layer class"
        raise PluginError(msg, name=name)
    check_options(kind, what, given, options)
    made = kind(*given, **options)
    if not isinstance(made, Transformation):
        msg = f"{what} gave {type(made).__name__}, which is no xf.Transformation"
        raise PluginError(msg, name=name)
    return made


def check_api(kind: Any, what: str) -> None:
    """Raise `PluginError` where a class was written for another version of the layer API."""
    stated = getattr(kind, "layer_api", LAYER_API)
    if stated != LAYER_API:
        remedy = "upgrade xform" if isinstance(stated, int) and stated > LAYER_API else "upgrade the plugin"
        msg = f"{what} was written for layer API {stated!r}, this xform has LAYER_API = {LAYER_API}; {remedy}"
        raise PluginError(msg, layer_api=stated)


def check_options(kind: Callable[..., Any], what: str, given: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Raise `OperandTypeError` where a class does not take these arguments."""
    try:
        signature = inspect.signature(kind)
    except ValueError:  # a class written in C tells no signature
        return
    try:
        signature.bind(*given, **options)
    except TypeError as error:
        msg = f"{what}: {error}; it is made as {getattr(kind, '__name__', kind)}{signature}"
        raise OperandTypeError(msg, options=options) from None


def operators() -> dict[str, str]:
    """Return the names of the operators that plugins bring, and where each comes from."""
    return _operators.names()


def operator(name: str) -> type[Operator]:
    """Return an operator class of a plugin by name; raises `PluginError` where there is none."""
    kind, source = _operators.find(name)
    if not (isinstance(kind, type) and issubclass(kind, Operator)):
        msg = f"operator {name!r} of {source} is {kind!r}, which is no subclass of xf.Operator"
        raise PluginError(msg, name=name)
    return kind


def register_backend(name: str, target: Any) -> None:
    """Make an array library known by name, so that `"name:device"` names its devices.

    `target` is an instance of `xf.Backend`, or the text `"module:attribute"` that is imported when the name is asked
    for. The entry-point group `xform.backends` does the same for an installed distribution. A registered name may be
    given anew; raises `PluginError` for a built-in one.

    >>> import numpy as np, xform as xf
    >>> class Host(xf.Backend):  # NumPy under another name: a library of your own is named by its arrays
    ...     name, namespace = "host", np
    ...     def to_device(self, array, device):
    ...         return np.array(array)
    >>> xf.register_backend("host", Host())
    >>> xf.device_put(np.ones(2), "host")
    array([1., 1.])
    """
    _backends.register(name, target)
    forget_backend(name)


def backends() -> dict[str, str]:
    """Return the names of all backends, and where each comes from."""
    return _backends.names()


def backend(name: str) -> Any:
    """Return a backend by name; raises `PluginError` where the name is unknown or its plugin does not load."""
    found, source = _backends.find(name)
    if not isinstance(found, Backend):
        remedy = f"; it must be an instance: {found.__name__}()" if isinstance(found, type) else ""
        msg = f"backend {name!r} of {source} is {found!r}, which is no instance of xf.Backend{remedy}"
        raise PluginError(msg, name=name)
    return found


def register_engine(name: str, target: Any) -> None:
    """Make an engine known by name, for `xf.compile_program(program, engine=name)` and `xf.trace(fun, engine=name)`.

    `target` is an instance of `xf.Engine`, or the text `"module:attribute"` that is imported when the name is asked
    for. The entry-point group `xform.engines` does the same for an installed distribution. A registered name may be
    given anew; raises `PluginError` for a built-in one. What is no `xf.Engine` raises `EngineError` when it is used.

    >>> import numpy as np, xform as xf
    >>> class Interpreted(xf.Engine):
    ...     def program(self, program, threads):
    ...         return lambda *flat: program.run(flat)
    >>> xf.register_engine("interpreted", Interpreted())
    >>> xf.trace(np.sin, engine="interpreted")(np.zeros(2))
    array([0., 0.])
    """
    _engines.register(name, target)


def engines() -> dict[str, str]:
    """Return the names of all engines, and where each comes from."""
    return _engines.names()


def engine(name: str) -> Any:
    """Return an engine by name; raises `PluginError` where the name is unknown or its plugin does not load."""
    return _engines.find(name)[0]


def find_backend(name: str) -> Any:
    """Return a backend by name, or None where nobody offers it; raises `PluginError` where its plugin does not load.

    >>> find_backend("no_such_library") is None
    True
    """
    return backend(name) if name in backends() else None


def listing() -> Iterable[tuple[str, str, str]]:
    """Give kind, name and source of all that can be had by name."""
    for registry in (_transformations, _operators, _backends, _engines):
        for name, source in registry.names().items():
            yield registry.kind, name, source
