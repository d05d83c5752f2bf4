"""xform.tree: every container apart and together, paths and errors, and optree as an independent witness."""

import copy
import dataclasses
import doctest
import operator
import pickle
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import attrs
import numpy as np
import optree
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xform import tree
from xform.core.errors import TreeError, XformError


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Layer:
    weight: Any
    bias: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenLayer:
    weight: Any
    scale: Any = dataclasses.field(init=False, default=2.0)
    kind: dataclasses.InitVar[str] = "dense"

    def __post_init__(self, kind):
        if isinstance(self.weight, str):
            raise TypeError("a weight is not a string")


@attrs.frozen
class State:
    mean: Any = attrs.field(converter=float)
    _count: Any = attrs.field(validator=attrs.validators.instance_of(int))


class Interval:
    def __init__(self, low, high, closed):
        self.low, self.high, self.closed = low, high, closed


class Opaque(NamedTuple):
    value: Any


class Whole:
    __tree_leaf__ = True


@attrs.frozen
class WholeRecord(Whole):
    value: Any


@dataclasses.dataclass
class ArrayLike:
    data: Any

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.data, dtype=dtype)


class Keyed:
    def __init__(self, **entries):
        self.entries = entries


tree.register(
    Interval, lambda i: (iter((i.low, i.high)), i.closed), lambda closed, ends: Interval(*ends, closed), ("low", "high")
)
tree.register(
    Keyed,
    lambda k: (k.entries.values(), tuple(k.entries)),
    lambda names, values: Keyed(**dict(zip(names, values, strict=True))),
    keys=lambda names: [f"{name} " for name in names],
)


def roundtrip(value):
    return tree.unflatten(tree.structure(value), tree.leaves(value))


ROUNDTRIPS = [
    (1.0, [1.0]),
    ("text", ["text"]),
    (None, []),
    ((), []),
    ([], []),
    ({}, []),
    ((1,), [1]),
    ([1, 2], [1, 2]),
    ({"b": 1, "a": 2}, [2, 1]),
    ({2: "two", 1: "one"}, ["one", "two"]),
    ({"x": 1, 3: 2, None: 3}, [1, 2, 3]),
    (OrderedDict(b=1, a=(2, None)), [1, 2]),
    (defaultdict(list, b=1, a=[2, 3]), [2, 3, 1]),
    (Point(1, Point(2, 3)), [1, 2, 3]),
    (Layer([1, 2]), [1, 2]),
    (Layer(1, {"b": 2}), [1, 2]),
    (FrozenLayer((1, 2)), [1, 2, 2.0]),
    (State(1, 2), [1.0, 2]),
    ([{"w": (1, 2), "b": [None, 3]}, ((), {}), 4], [3, 1, 2, 4]),
    (tuple(range(100)), list(range(100))),
    ({str(n): n for n in range(40)}, [n for _, n in sorted((str(n), n) for n in range(40))]),
]


@pytest.mark.parametrize(("value", "expected"), ROUNDTRIPS, ids=lambda v: repr(v)[:40])
def test_apart_and_together(value, expected):
    leaves, structure = tree.flatten(value)
    assert leaves == expected
    assert structure.num_leaves == len(leaves)
    again = tree.unflatten(structure, iter(leaves))
    assert again == value
    assert type(again) is type(value)
    if isinstance(value, Mapping):
        assert list(again) == list(value)
    assert tree.flatten(again) == (leaves, structure)
    assert structure.paths() == tree.paths(value)
    assert tree.flatten_with_paths(value) == (list(zip(structure.paths(), leaves, strict=True)), structure)


@pytest.mark.parametrize(("value", "expected"), ROUNDTRIPS, ids=lambda v: repr(v)[:40])
def test_structures_are_values(value, expected):
    structure, same = tree.structure(value), tree.structure(copy.deepcopy(value))
    assert structure == same
    assert hash(structure) == hash(same)
    for other in (pickle.loads(pickle.dumps(structure)), copy.deepcopy(structure), copy.copy(structure)):
        assert other == structure
        assert hash(other) == hash(structure)
        assert tree.unflatten(other, expected) == value
    assert structure != tree.structure([value])
    assert structure != "something else"


def test_the_structure_of_a_leaf_stays_one_object():
    assert pickle.loads(pickle.dumps(tree.structure(1))) is tree.structure("leaf")


def test_arrays_are_not_compared_or_copied():
    array = np.ones(3)
    assert tree.leaves([array, (array,)])[1] is array
    assert tree.map(lambda leaf: leaf, {"a": array})["a"] is array


def test_a_list_is_rebuilt_as_a_new_list():
    leaves, structure = tree.flatten([1, 2])
    assert tree.unflatten(structure, leaves) is not leaves


def test_records_are_rebuilt_without_conversion_or_validation():
    traced = tree.map(lambda leaf: f"traced {leaf}", (State(1, 2), FrozenLayer(3)))
    assert traced[0].mean == "traced 1.0"
    assert traced[0]._count == "traced 2"
    assert traced[1].weight == "traced 3"
    assert traced[1].scale == "traced 2.0"
    with pytest.raises(dataclasses.FrozenInstanceError):
        traced[1].weight = 1


def test_order_of_keys_is_kept_but_takes_no_part_in_equality():
    one, two = {"b": 1, "a": 2}, {"a": 2, "b": 1}
    assert tree.structure(one) == tree.structure(two)
    assert hash(tree.structure(one)) == hash(tree.structure(two))
    assert list(roundtrip(one)) == ["b", "a"]
    assert list(roundtrip(two)) == ["a", "b"]
    assert tree.structure(OrderedDict(a=1, b=2)) != tree.structure(OrderedDict(b=1, a=2))


def test_equal_keys_of_other_types_are_kept_apart():
    assert [type(key) for key in roundtrip({1: "a"})] == [int]
    assert [type(key) for key in roundtrip({True: "a"})] == [bool]
    assert [type(key) for key in roundtrip({"k": "a"})] == [str]
    assert [type(key) for key in roundtrip({np.str_("k"): "a"})] == [np.str_]


def test_class_and_factory_belong_to_a_structure():
    assert tree.structure((1, 2)) != tree.structure([1, 2])
    assert tree.structure((1, 2)) != tree.structure(Point(1, 2))
    assert tree.structure({"a": 1}) != tree.structure(OrderedDict(a=1))
    assert tree.structure(defaultdict(list, a=1)) != tree.structure(defaultdict(int, a=1))
    assert roundtrip(defaultdict(list, a=1))["new"] == []


def test_what_is_a_leaf():
    class Words(dict):
        pass

    class Pair(tuple):
        __slots__ = ()

    for value in (Words(a=1), Pair((1, 2)), {1, 2}, range(3), print, Layer, State, WholeRecord(1), ArrayLike([1.0])):
        assert tree.leaves(value) == [value]
        assert tree.structure(value) is tree.structure(0)


def test_is_leaf_is_asked_before_the_class():
    value = [(1, 2), None, {"a": [3]}]
    assert tree.leaves(value, lambda node: node is None) == [1, 2, None, 3]
    assert tree.leaves(value, lambda node: isinstance(node, tuple)) == [(1, 2), 3]
    assert tree.leaves(value, lambda node: True) == [value]
    assert tree.leaves(7, is_leaf=lambda node: False) == [7]
    assert tree.structure(value, lambda node: isinstance(node, dict)).num_leaves == 3
    assert tree.paths(value, lambda node: node is None) == ["[0][0]", "[0][1]", "[1]", "[2]['a'][0]"]
    assert tree.map(str, value, is_leaf=lambda node: node is None) == [("1", "2"), "None", {"a": ["3"]}]


def test_registered_containers():
    value = {"i": Interval(1, (2, 3), closed=True), "k": Keyed(a=4, b=5)}
    leaves, structure = tree.flatten(value)
    assert leaves == [1, 2, 3, 4, 5]
    assert structure.paths() == ["['i'].low", "['i'].high[0]", "['i'].high[1]", "['k']['a ']", "['k']['b ']"]
    again = tree.unflatten(structure, leaves)
    assert (again["i"].high, again["i"].closed, again["k"].entries) == ((2, 3), True, {"a": 4, "b": 5})
    assert structure != tree.structure({**value, "i": Interval(1, (2, 3), closed=False)})
    assert repr(structure) == "Structure({'i': Interval(low=*, high=(*, *)), 'k': Keyed(*, *)})"


def test_a_registration_overrides_what_the_class_would_be():
    assert tree.leaves(Opaque((1, 2))) == [1, 2]
    assert tree.register(Opaque, lambda o: ((), o.value), lambda value, _: Opaque(value)) is Opaque
    assert tree.leaves(Opaque((1, 2))) == []
    assert roundtrip(Opaque((1, 2))) == Opaque((1, 2))


def test_registering_twice_or_a_declared_leaf_is_refused():
    for cls in (Interval, dict, type(None)):
        with pytest.raises(TreeError, match=f"{cls.__name__} is a container already"):
            tree.register(cls, lambda value: ((), None), lambda aux, children: None)
    with pytest.raises(TreeError, match="__tree_leaf__"):
        tree.register(Whole, lambda value: ((), None), lambda aux, children: Whole())


def test_a_structure_whose_class_is_unknown_here_cannot_be_restored():
    restore, (_, aux, children) = tree.structure(Interval(1, 2, closed=True)).__reduce__()
    with pytest.raises(TreeError, match=r"Whole is no container here"):
        restore(Whole, aux, children)


def test_paths_read_like_python():
    value = [{"w": Layer(1, (2, State(3, 4))), 5: {}}, Point(6, None), 7]
    assert tree.paths(value) == [
        "[0]['w'].weight",
        "[0]['w'].bias[0]",
        "[0]['w'].bias[1].mean",
        "[0]['w'].bias[1]._count",
        "[1].x",
        "[2]",
    ]
    assert tree.paths(1.0) == [""]
    for path, leaf in tree.flatten_with_paths(value)[0]:
        assert eval(f"value{path}", {"value": value}) == leaf


def test_structures_print_as_what_they_describe():
    value = [{"b": (1,), "a": None}, Layer(1, ()), Point(1, [2]), OrderedDict(z=1), 3]
    text = "[{'a': None, 'b': (*,)}, Layer(weight=*, bias=()), Point(x=*, y=[*]), OrderedDict({'z': *}), *]"
    assert repr(tree.structure(value)) == f"Structure({text})"


def test_map_over_several_trees():
    assert tree.map(operator.add, 1, 2) == 3
    assert tree.map(operator.add, {"a": 1, "b": [2]}, {"b": [20], "a": 10}) == {"a": 11, "b": [22]}
    assert tree.map(lambda *row: row, (1, None, [2]), (3, None, [4]), (5, None, [6])) == ((1, 3, 5), None, [(2, 4, 6)])
    assert tree.map(lambda leaf, below: (leaf, below), [1, 2], [(3, 4), None]) == [(1, (3, 4)), (2, None)]
    assert tree.map(operator.add, {1: 1, "a": 2}, {"a": 20, 1: 10}) == {1: 11, "a": 22}
    assert list(tree.map(operator.neg, {"b": 1, "a": 2})) == ["b", "a"]


DIFFERENCES = [
    ((1, 2), 3, "trees differ at the root: expected tuple with 2 children, found a leaf of type int"),
    ((1, 2), [1, 2], "trees differ at the root: expected tuple with 2 children, found list with 2 children"),
    ((1, 2), (1,), "trees differ at the root: expected tuple with 2 children, found tuple with 1 child"),
    ([1, (2, 3)], [1, (2, 3, 4)], r"trees differ at \[1\]: expected tuple with 2 children, found tuple with 3"),
    ({"a": {"b": 1}}, {"a": {"c": 1}}, r"trees differ at \['a'\]: the dict lacks \['b'\] and has besides \['c'\]"),
    ({"a": 1}, {}, r"trees differ at the root: the dict lacks \['a'\]"),
    ([Layer(1, [None])], [Layer(1, [2])], r"trees differ at \[0\].bias\[0\]: expected None, found a leaf of type int"),
    (Layer(1), None, "trees differ at the root: expected Layer with 2 children, found None"),
    ([Interval(1, 2, closed=True)], [Interval(1, 2, closed=False)], r"at \[0\]: .* of True, found one of False"),
]


@pytest.mark.parametrize(("one", "two", "message"), DIFFERENCES)
def test_a_difference_is_named_with_its_path(one, two, message):
    with pytest.raises(TreeError, match=message):
        tree.map(lambda *row: row, one, two)
    with pytest.raises(XformError, match=message):
        tree.flatten_up_to(tree.structure(one), two)


@pytest.mark.parametrize("leaves", [[], [1], [1, 2, 3]])
def test_a_wrong_number_of_leaves_is_an_error(leaves):
    with pytest.raises(TreeError, match=rf"Structure\(\[\*, \*\]\) has 2 leaves, but {len(leaves)} were given"):
        tree.unflatten(tree.structure([0, 0]), leaves)
    with pytest.raises(ValueError, match="were given"):
        tree.unflatten(tree.structure([[0], 0]), leaves)


def test_shared_structures_stay_bounded():
    for number in range(3000):
        assert roundtrip({f"key{number}": number}) == {f"key{number}": number}
    assert len(tree._dict.shared) <= tree.MAX_SHARED_STRUCTURES


def test_examples_in_docstrings():
    result = doctest.testmod(tree)
    assert result.attempted > 10
    assert result.failed == 0


# ---- optree as witness ----


def dictionaries(below):
    one_type = st.sampled_from([st.text("abc", max_size=2), st.integers(0, 3)]).flatmap(
        lambda keys: st.dictionaries(keys, below, max_size=3)
    )
    return st.one_of(one_type, one_type.map(OrderedDict), one_type.map(lambda found: defaultdict(int, found)))


nests = st.recursive(
    st.one_of(st.none(), st.integers(), st.floats(allow_nan=False), st.booleans(), st.text(max_size=3)),
    lambda below: st.one_of(
        st.lists(below, max_size=4),
        st.lists(below, max_size=4).map(tuple),
        st.builds(Point, below, below),
        dictionaries(below),
    ),
    max_leaves=25,
)


@given(nests)
def test_leaves_as_optree_finds_them(value):
    leaves, structure = tree.flatten(value)
    witness, spec = optree.tree_flatten(value)
    assert leaves == witness
    assert structure.num_leaves == spec.num_leaves
    assert tree.unflatten(structure, leaves) == value == optree.tree_unflatten(spec, leaves)
    assert tree.map(repr, value) == optree.tree_map(repr, value)
    assert tree.leaves(value, lambda node: node is None) == optree.tree_leaves(value, none_is_leaf=True)
    assert pickle.loads(pickle.dumps(structure)) == structure


@given(nests, nests)
def test_structures_are_equal_exactly_where_optree_says_so(one, two):
    equal = optree.tree_structure(one) == optree.tree_structure(two)
    assert (tree.structure(one) == tree.structure(two)) is equal
    if equal:
        assert hash(tree.structure(one)) == hash(tree.structure(two))


@given(nests)
def test_paths_lead_to_their_leaves(value):
    for path, leaf in tree.flatten_with_paths(value)[0]:
        assert eval(f"value{path}", {"value": value}) is leaf


@given(nests, st.data())
def test_a_tree_may_go_deeper_than_the_first(value, data):
    deeper = tree.map(lambda leaf: data.draw(nests), value)
    expected = optree.tree_structure(value).flatten_up_to(deeper)
    assert tree.flatten_up_to(tree.structure(value), deeper) == expected
