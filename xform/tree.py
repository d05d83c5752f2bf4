"""Nested containers: take them apart into leaves and a structure, and put them together again.

What counts as a container:

1. `dict` (leaves in the order of the sorted keys where they can be sorted, else as inserted; rebuilt in the order it
   had), `collections.OrderedDict` (as inserted), `collections.defaultdict` (as `dict`), `list`, `tuple`, named tuples.
2. Instances of dataclasses and of attrs classes: every field is a child. They are rebuilt without `__init__`, so that
   neither a converter nor a validator meets a traced value.
3. `None`, which is empty: it has no leaves.
4. What `register` declared.

All else is a leaf: arrays of every library (also where their class is a dataclass), numbers, strings, functions, and
subclasses of the containers above that were not registered. A class that sets `__tree_leaf__ = True` makes its
instances, and those of its subclasses, leaves.

What a class is, is found once and remembered for the class, so that flattening costs a dict look-up for each node.
"""

import dataclasses
import operator
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from types import NoneType
from typing import Any, TypeVar

import attrs

from xform.core.errors import TreeError

__all__ = [
    "Structure", "flatten", "flatten_up_to", "flatten_with_paths", "leaves", "map", "paths", "register", "structure",
    "unflatten"
]  # fmt: skip

C = TypeVar("C")
IsLeaf = Callable[[Any], bool]

# Structures of flat containers are made once and shared; these bounds keep what is remembered small.
MAX_SHARED_LENGTH, MAX_SHARED_STRUCTURES = 32, 2048


@attrs.define(eq=False)
class _Kind:
    """How one class of containers comes apart and together."""

    container: type | None
    flatten: Callable[[Any], tuple[Iterable[Any], Any]]
    unflatten: Callable[[Any, Sequence[Any]], Any]
    labels: Callable[[Any, int], list[str]]
    keyed: bool = False  # a mapping: its children are matched by key, not by position
    shared: "dict[Any, Structure]" = attrs.field(factory=dict)


@attrs.define(unsafe_hash=True)
class _Keys:
    """Keys of a mapping in the order of its leaves, and its own order where that is another, no part of equality."""

    keys: tuple[Any, ...]
    order: tuple[Any, ...] | None = attrs.field(eq=False)
    pick: Callable[[Sequence[Any]], tuple[Any, ...]] | None = attrs.field(eq=False)  # children in that order
    factory: Any = None


def _keys(order: tuple[Any, ...], factory: Any = None) -> _Keys:
    try:
        keys = tuple(sorted(order))
    except TypeError:  # keys of several types, or of a type without an order
        keys = order
    if keys == order:
        return _Keys(order, None, None, factory)
    places = {key: place for place, key in enumerate(keys)}
    return _Keys(keys, order, operator.itemgetter(*[places[key] for key in order]), factory)


class Structure:
    """What remains of nested containers when their leaves are taken out: immutable, hashable, comparable, picklable.

    `num_leaves` counts the leaves; `container` is the class at the root (None for a leaf), `children` are the
    structures below it, and `aux` is what else the class needs to be rebuilt. Two dicts with the same keys have equal
    structures, whatever order they were filled in. Hashing raises TypeError where a registered `aux` has no hash.

    >>> structure({"w": [1.0, 2.0], "b": None})
    Structure({'b': None, 'w': [*, *]})
    >>> structure({"w": [1.0, 2.0], "b": None}).num_leaves
    2
    """

    __slots__ = ("_hash", "aux", "children", "container", "flat", "kind", "num_leaves")

    def __init__(self, kind: _Kind, aux: Any, children: tuple["Structure", ...], num_leaves: int, flat: bool) -> None:
        self.kind = kind
        self.container = kind.container
        self.aux = aux
        self.children = children
        self.num_leaves = num_leaves
        self.flat = flat  # every child is a leaf
        self._hash: int | None = None

    def paths(self) -> list[str]:
        """The path of each leaf, in the order of the leaves; that of a bare leaf is empty.

        >>> structure([{"w": 1.0, "b": 2.0}, 3.0]).paths()
        ["[0]['b']", "[0]['w']", '[1]']
        """
        if self is LEAF:
            return [""]
        pairs = zip(_labels(self), self.children, strict=True)
        return [label + path for label, child in pairs for path in child.paths()]

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Structure):
            return NotImplemented
        return self.kind is other.kind and self.children == other.children and bool(self.aux == other.aux)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.container, self.aux, self.children))
        return self._hash

    def __repr__(self) -> str:
        return f"Structure({_text(self)})"

    def __reduce__(self) -> str | tuple[Any, ...]:
        return "LEAF" if self is LEAF else (restore, (self.container, self.aux, self.children))


def _labels(node: Structure) -> list[str]:
    return node.kind.labels(node.aux, len(node.children))


def restore(container: type, aux: Any, children: tuple[Structure, ...]) -> Structure:
    """Make a structure from its parts; raises TreeError where the class is no container here."""
    kind = _kind_of(container)
    if kind is _leaf:
        raise TreeError(f"{container.__qualname__} is no container here: call xform.tree.register for it first")
    return _assemble(kind, aux, children)


def _assemble(kind: _Kind, aux: Any, children: tuple[Structure, ...]) -> Structure:
    count, flat = 0, True
    for child in children:
        count += child.num_leaves
        flat = flat and child is LEAF
    return Structure(kind, aux, children, count, flat)


def _text(node: Structure) -> str:
    if node is LEAF:
        return "*"
    container, parts, labels = node.container, [_text(child) for child in node.children], _labels(node)
    if container is None or container is NoneType:
        return "None"
    if container is list:
        return f"[{', '.join(parts)}]"
    if container is tuple:
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
    if node.kind.keyed:
        items = ", ".join([f"{key!r}: {part}" for key, part in zip(node.aux.keys, parts, strict=True)])
        return f"{{{items}}}" if container is dict else f"{container.__name__}({{{items}}})"
    named = [f"{label[1:]}={part}" if label[0] == "." else part for label, part in zip(labels, parts, strict=True)]
    return f"{container.__name__}({', '.join(named)})"


def _positions(aux: Any, count: int) -> list[str]:
    return [f"[{index}]" for index in range(count)]


def _flatten_dict(tree: dict[Any, Any]) -> tuple[list[Any], _Keys]:
    aux = _keys(tuple(tree), getattr(tree, "default_factory", None))
    return [tree[key] for key in aux.keys], aux


def _flatten_ordered(tree: OrderedDict[Any, Any]) -> tuple[list[Any], _Keys]:
    return list(tree.values()), _Keys(tuple(tree), None, None)


def _unflatten_dict(aux: _Keys, children: Sequence[Any]) -> dict[Any, Any]:
    if aux.order is None or aux.pick is None:
        return dict(zip(aux.keys, children, strict=True))
    return dict(zip(aux.order, aux.pick(children), strict=True))


def _record(container: Any, names: tuple[str, ...]) -> _Kind:
    """A class with named fields, rebuilt without `__init__`, which may convert or refuse a traced value."""

    def take(tree: Any) -> tuple[list[Any], None]:
        return [getattr(tree, name) for name in names], None

    def rebuild(aux: None, children: Sequence[Any]) -> Any:
        tree = container.__new__(container)
        for name, child in zip(names, children, strict=True):
            object.__setattr__(tree, name, child)  # frozen classes forbid the plain way
        return tree

    return _Kind(container, take, rebuild, lambda aux, count: [f".{name}" for name in names])


def _named_tuple(container: Any) -> _Kind:
    labels = [f".{name}" for name in container._fields]
    return _Kind(container, lambda tree: (tree, None), lambda aux, parts: container._make(parts), lambda aux, n: labels)


def _nothing(tree: Any) -> tuple[tuple[Any, ...], None]:
    return (), None


_leaf = _Kind(None, _nothing, lambda aux, children: children[0], lambda aux, count: [])
LEAF = Structure(_leaf, None, (), 1, False)


def _mapping(container: Any, take: Callable[[Any], Any], rebuild: Callable[[Any, Sequence[Any]], Any]) -> _Kind:
    return _Kind(container, take, rebuild, lambda aux, count: [f"[{key!r}]" for key in aux.keys], keyed=True)


_dict = _mapping(dict, _flatten_dict, _unflatten_dict)
_kinds: dict[type, _Kind] = {
    NoneType: _Kind(NoneType, _nothing, lambda aux, children: None, lambda aux, count: []),
    tuple: _Kind(tuple, lambda tree: (tree, None), lambda aux, children: tuple(children), _positions),
    list: _Kind(list, lambda tree: (tree, None), lambda aux, children: list(children), _positions),
    dict: _dict,
    OrderedDict: _mapping(OrderedDict, _flatten_ordered, lambda aux, parts: OrderedDict(_unflatten_dict(aux, parts))),
    defaultdict: _mapping(
        defaultdict, _flatten_dict, lambda aux, parts: defaultdict(aux.factory, _unflatten_dict(aux, parts))
    ),
}
_registered: set[type] = set(_kinds)


def _kind_of(container: type) -> _Kind:
    kind = _kinds.get(container)
    if kind is None:
        kind = _kinds[container] = _classify(container)
    return kind


def _classify(container: type) -> _Kind:
    if getattr(container, "__tree_leaf__", False):
        return _leaf
    if any(hasattr(container, name) for name in ("__array_namespace__", "__array_ufunc__", "__array__")):
        return _leaf
    if issubclass(container, tuple) and hasattr(container, "_fields") and hasattr(container, "_make"):
        return _named_tuple(container)
    if attrs.has(container):
        return _record(container, tuple([field.name for field in attrs.fields(container)]))
    if dataclasses.is_dataclass(container):
        return _record(container, tuple([field.name for field in dataclasses.fields(container)]))
    return _leaf


def register(
    cls: type[C],
    flatten: Callable[[C], tuple[Iterable[Any], Any]],
    unflatten: Callable[[Any, tuple[Any, ...]], C],
    keys: Sequence[str | int] | Callable[[Any], Iterable[str | int]] | None = None,
) -> type[C]:
    """Declare that instances of `cls` are containers, and how they come apart; subclasses are not included.

    `flatten(tree)` gives `(children, aux)`, where `aux` is hashable and comparable and holds no leaves;
    `unflatten(aux, children)` is its inverse, and must accept children of any type. `keys` names the children in paths:
    a sequence, or a function of `aux`; without it they are numbered. Raises TreeError where `cls` is declared already,
    or its instances were declared to be leaves by `__tree_leaf__`.

    >>> class Interval:
    ...     def __init__(self, low, high):
    ...         self.low, self.high = low, high
    >>> _ = register(Interval, lambda i: ((i.low, i.high), None), lambda aux, ends: Interval(*ends), ("low", "high"))
    >>> paths([Interval(0.0, 1.0)])
    ['[0].low', '[0].high']
    >>> map(lambda end: 2 * end, Interval(1.0, 2.0)).high
    4.0
    """
    if cls in _registered:
        raise TreeError(f"{cls.__qualname__} is a container already; subclass it to give it another meaning")
    if getattr(cls, "__tree_leaf__", False):
        raise TreeError(f"{cls.__qualname__} says __tree_leaf__ = True, so it cannot be a container too")

    def labels(aux: Any, count: int) -> list[str]:
        if keys is None:
            return _positions(aux, count)
        names = keys(aux) if callable(keys) else keys
        return [f".{name}" if str(name).isidentifier() else f"[{name!r}]" for name in names]

    _kinds[cls] = _Kind(cls, flatten, lambda aux, children: unflatten(aux, tuple(children)), labels)
    _registered.add(cls)
    return cls


def flatten(tree: Any, is_leaf: IsLeaf | None = None) -> tuple[list[Any], Structure]:
    """Take nested containers apart: a list of their leaves, and the structure that `unflatten` needs.

    `is_leaf(node)` is asked at every node, before its class is looked at; where it is true the node is taken whole.

    >>> flatten({"w": (1.0, 2.0), "b": 3.0})
    ([3.0, 1.0, 2.0], Structure({'b': *, 'w': (*, *)}))
    >>> flatten([(1, 2), None], is_leaf=lambda node: isinstance(node, tuple) or node is None)
    ([(1, 2), None], Structure([*, *]))
    """
    found: list[Any] = []
    if is_leaf is not None:
        return found, _flatten_until(tree, found, is_leaf)
    if _kinds.get(type(tree)) is _leaf:
        return [tree], LEAF
    return found, _flatten(tree, found)


def _flatten(tree: Any, found: list[Any]) -> Structure:
    container, kinds, leaf = type(tree), _kinds, _leaf
    if container is tuple or container is list:
        for child in tree:
            if kinds.get(type(child)) is not leaf:
                break
        else:
            found.extend(tree)
            return _flat_sequence(kinds[container], len(tree))
    elif container is dict:
        for key, child in tree.items():
            # Other keys can be equal and yet not the same (1 and True), and a shared structure would mix them up.
            if type(key) is not str or kinds.get(type(child)) is not leaf:
                break
        else:
            shared = _flat_dict(tuple(tree))
            found.extend([tree[key] for key in shared.aux.keys])
            return shared
    kind = kinds.get(container) or _kind_of(container)
    if kind is leaf:
        found.append(tree)
        return LEAF
    nodes, aux = kind.flatten(tree)
    return _assemble(kind, aux, tuple([_flatten(node, found) for node in nodes]))


def _flat_sequence(kind: _Kind, length: int) -> Structure:
    known = kind.shared.get(length)
    if known is None:
        known = Structure(kind, None, (LEAF,) * length, length, True)
        if length <= MAX_SHARED_LENGTH:
            kind.shared[length] = known
    return known


def _flat_dict(order: tuple[str, ...]) -> Structure:
    known = _dict.shared.get(order)
    if known is None:
        known = Structure(_dict, _keys(order), (LEAF,) * len(order), len(order), True)
        if len(order) <= MAX_SHARED_LENGTH:
            if len(_dict.shared) >= MAX_SHARED_STRUCTURES:
                _dict.shared.clear()
            _dict.shared[order] = known
    return known


def _flatten_until(tree: Any, found: list[Any], is_leaf: IsLeaf) -> Structure:
    kind = _leaf if is_leaf(tree) else _kind_of(type(tree))
    if kind is _leaf:
        found.append(tree)
        return LEAF
    nodes, aux = kind.flatten(tree)
    return _assemble(kind, aux, tuple([_flatten_until(node, found, is_leaf) for node in nodes]))


def unflatten(structure: Structure, leaves: Iterable[Any]) -> Any:
    """Put nested containers together again from their structure and as many leaves as it has.

    Raises TreeError where the number of leaves is another.

    >>> values, shape = flatten({"w": (1.0, 2.0), "b": 3.0})
    >>> unflatten(shape, [10 * value for value in values])
    {'w': (10.0, 20.0), 'b': 30.0}
    """
    given = leaves if type(leaves) is list else list(leaves)
    if len(given) != structure.num_leaves:
        raise TreeError(f"{structure!r} has {structure.num_leaves} leaves, but {len(given)} were given")
    if structure is LEAF:
        return given[0]
    if structure.flat:
        return structure.kind.unflatten(structure.aux, given)
    return _build(structure, given, 0)


def _build(node: Structure, given: list[Any], start: int) -> Any:
    children: list[Any] = []
    for child in node.children:
        stop = start + child.num_leaves
        if child is LEAF:
            children.append(given[start])
        elif child.flat:
            children.append(child.kind.unflatten(child.aux, given[start:stop]))
        else:
            children.append(_build(child, given, start))
        start = stop
    return node.kind.unflatten(node.aux, children)


def leaves(tree: Any, is_leaf: IsLeaf | None = None) -> list[Any]:
    """The leaves of nested containers, in the order of `flatten`.

    >>> leaves({"w": [1.0, 2.0], "b": (3.0, None)})
    [3.0, 1.0, 2.0]
    """
    return flatten(tree, is_leaf)[0]


def structure(tree: Any, is_leaf: IsLeaf | None = None) -> Structure:
    """The structure of nested containers, without their leaves.

    >>> structure([1, (2, {})])
    Structure([*, (*, {})])
    """
    return flatten(tree, is_leaf)[1]


def paths(tree: Any, is_leaf: IsLeaf | None = None) -> list[str]:
    """The path to each leaf, as Python would write it after the name of the tree; for messages.

    >>> paths([{"w": 1.0, "b": 2.0}])
    ["[0]['b']", "[0]['w']"]
    """
    return flatten(tree, is_leaf)[1].paths()


def flatten_with_paths(tree: Any, is_leaf: IsLeaf | None = None) -> tuple[list[tuple[str, Any]], Structure]:
    """As `flatten`, with each leaf beside its path.

    >>> flatten_with_paths([1.0, (2.0,)])
    ([('[0]', 1.0), ('[1][0]', 2.0)], Structure([*, (*,)]))
    """
    found, shape = flatten(tree, is_leaf)
    return list(zip(shape.paths(), found, strict=True)), shape


def map(fn: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf | None = None) -> Any:
    """Call `fn` on each leaf of `tree`, and on what each of `rest` has in its place; the results keep the structure.

    The others may go deeper than `tree`: what they have below one of its leaves is passed whole. Raises TreeError,
    naming the path, where one of them lacks what `tree` has.

    >>> map(lambda x, y: x + y, {"a": 1, "b": (2, 3)}, {"b": (20, 30), "a": 10})
    {'a': 11, 'b': (22, 33)}
    """
    found, shape = flatten(tree, is_leaf)
    if not rest:
        return unflatten(shape, [fn(value) for value in found])
    others = [flatten_up_to(shape, other) for other in rest]
    return unflatten(shape, [fn(*row) for row in zip(found, *others, strict=True)])


def flatten_up_to(structure: Structure, tree: Any) -> list[Any]:
    """What `tree` has in the place of each leaf of `structure`; deeper containers are taken whole.

    Raises TreeError where `tree` differs above that; the message names the path.

    >>> flatten_up_to(flatten({"a": 0, "b": 0})[1], {"a": 1.0, "b": (2.0, 3.0)})
    [1.0, (2.0, 3.0)]
    """
    found, shape = flatten(tree)
    if shape is structure or shape == structure:
        return found
    found = []
    _match(structure, tree, "", found)
    return found


def _match(node: Structure, tree: Any, path: str, found: list[Any]) -> None:
    if node is LEAF:
        found.append(tree)
        return
    kind = _kind_of(type(tree))
    nodes, aux = kind.flatten(tree)
    below = tuple(nodes)
    where = f"trees differ at {path or 'the root'}"
    if kind is node.kind and kind.keyed:
        below = _by_key(node.aux.keys, tree, where)
    elif kind is not node.kind or len(below) != len(node.children):
        expected = _sort(node.kind, len(node.children))
        raise TreeError(f"{where}: expected {expected}, found {_sort(kind, len(below), tree)}")
    elif aux != node.aux:
        raise TreeError(f"{where}: expected a {type(tree).__name__} of {node.aux!r}, found one of {aux!r}")
    for label, child, part in zip(_labels(node), node.children, below, strict=True):
        _match(child, part, path + label, found)


def _by_key(keys: tuple[Any, ...], tree: dict[Any, Any], where: str) -> tuple[Any, ...]:
    lacking, surplus = [key for key in keys if key not in tree], [key for key in tree if key not in keys]
    if lacking or surplus:
        parts = [f"{verb} {keys!r}" for verb, keys in (("lacks", lacking), ("has besides", surplus)) if keys]
        raise TreeError(f"{where}: the {type(tree).__name__} {' and '.join(parts)}")
    return tuple([tree[key] for key in keys])


def _sort(kind: _Kind, count: int, leaf: Any = None) -> str:
    """What stands at a place in a tree, in words."""
    if kind.container is None:
        return f"a leaf of type {type(leaf).__name__}"
    if kind.container is NoneType:
        return "None"
    return f"{kind.container.__name__} with {count} {'child' if count == 1 else 'children'}"
