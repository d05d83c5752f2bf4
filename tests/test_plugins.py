"""Layers, operators and backends by name: built in, registered, and from installed distributions."""

from __future__ import annotations

import sys
import textwrap

import numpy as np
import pytest
from typeguard import suppress_type_checks

import xform as xf
from xform import plugins
from xform.core.errors import OperandTypeError, PluginError


@pytest.fixture(autouse=True)
def _registries_as_before():
    tables = [plugins._transformations.registered, plugins._operators.registered, plugins._backends.registered]
    before = [dict(table) for table in tables]
    yield
    for table, was in zip(tables, before, strict=True):
        table.clear()
        table.update(was)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that puts a fake distribution on sys.path."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(distribution, module, code, entry_points, version="1.2"):
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(code))
        info = tmp_path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        lines = [f"[xform.{group}]\n{name} = {value}\n" for group, name, value in entry_points]
        (info / "entry_points.txt").write_text("\n".join(lines))
        monkeypatch.delitem(sys.modules, module, raising=False)
        return module

    yield make
    for name in [name for name in sys.modules if name.startswith("xform_fake")]:
        del sys.modules[name]


GOOD = """
import xform as xf

class Twice(xf.Rewriter):
    layer_api = 1

    def __init__(self, factor=2.0):
        self.factor = factor

    def rewrite(self, op, values):
        return xf.apply(op, *values) * self.factor if op == xf.ops.Sin() else NotImplemented
"""


# ------------------------------------------------------------------ built in and registered


def test_built_in_names():
    found = xf.transformations()
    assert {name for name, source in found.items() if source == "built-in"} == {
        "batch", "device", "explain", "forward", "grad", "nan_guard", "profile", "trace"
    }  # fmt: skip


@pytest.mark.parametrize("name", ["forward", "grad", "nan_guard", "profile", "trace"])
def test_built_in_layers_are_made_by_name(name):
    made = xf.layer(name)
    assert isinstance(made, xf.Transformation)
    assert type(made) is getattr(xf, {"nan_guard": "NanGuard"}.get(name, name.capitalize()))


def test_a_layer_by_name_is_a_context_manager_and_a_decorator():
    class Count(xf.Observer):
        def __init__(self, start=0):
            self.count = start

        def observe(self, op, inputs, outputs):
            self.count += 1

    xf.register("count", Count)
    assert xf.transformations()["count"] == "registered"
    with xf.layer("count", start=10) as layer:
        xf.array(np.ones(2)) + 1.0
    assert layer.count == 11
    decorated = xf.layer("count")(lambda x: x * 2.0)
    np.testing.assert_array_equal(decorated(np.ones(2)), [2.0, 2.0])


def test_registering_again_replaces_but_never_a_built_in():
    class First(xf.Observer):
        pass

    class Second(xf.Observer):
        pass

    xf.register("mine", First)
    xf.register("mine", Second)
    assert type(xf.layer("mine")) is Second
    with pytest.raises(PluginError, match=r"layer 'grad' is built in; register yours under another name"):
        xf.register("grad", First)


def test_a_name_may_be_registered_as_text_and_is_then_imported_when_asked_for(install):
    install("xform-fake-lazy", "xform_fake_lazy", GOOD, [])
    xf.register("lazy", "xform_fake_lazy:Twice")
    assert "xform_fake_lazy" not in sys.modules
    assert type(xf.layer("lazy")).__name__ == "Twice"
    xf.register("lost", "xform_fake_lost:Twice")
    with pytest.raises(PluginError, match=r"registered layer 'lost' cannot be loaded from 'xform_fake_lost:Twice'"):
        xf.layer("lost")


def test_unknown_names_list_the_known_ones():
    with pytest.raises(PluginError, match=r"there is no layer 'profiel'; known are: .*profile"):
        xf.layer("profiel")
    with pytest.raises(ImportError):  # the builtin that a caller would catch
        xf.layer("profiel")


def test_options_that_the_class_does_not_take():
    with pytest.raises(OperandTypeError, match=r"layer 'grad' \(built-in\): .*'nmae'; it is made as Grad\(name"):
        xf.layer("grad", nmae="x")


def test_what_is_no_layer_is_named():
    xf.register("dict", dict)
    with pytest.raises(PluginError, match=r"layer 'dict' \(registered\) gave dict, which is no xf.Transformation"):
        xf.layer("dict")


# ------------------------------------------------------------------ installed distributions


def test_a_plugin_is_found_by_name_and_not_before(install):
    install("xform-fake-good", "xform_fake_good", GOOD, [("transformations", "twice", "xform_fake_good:Twice")])
    assert xf.transformations()["twice"] == "xform-fake-good 1.2"
    assert "xform_fake_good" not in sys.modules
    with xf.layer("twice", factor=3.0):
        assert float(xf.ops.sin(xf.array(np.array(1.0)))) == 3.0 * np.sin(1.0)
    assert "xform_fake_good" in sys.modules


def test_a_broken_plugin_is_named_with_its_distribution_and_harms_no_other(install):
    install("xform-fake-broken", "xform_fake_broken", "1 / 0", [("transformations", "broken", "xform_fake_broken:X")])
    install("xform-fake-empty", "xform_fake_empty", "", [("transformations", "empty", "xform_fake_empty:X")])
    install("xform-fake-good", "xform_fake_good", GOOD, [("transformations", "twice", "xform_fake_good:Twice")])
    assert {"broken", "empty", "twice"} <= set(xf.transformations())
    with pytest.raises(PluginError, match=r"'broken' of xform-fake-broken 1.2 cannot be loaded .*ZeroDiv") as caught:
        xf.layer("broken")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(PluginError, match=r"layer 'empty' of xform-fake-empty 1.2 cannot be loaded .*AttributeError"):
        xf.layer("empty")
    assert type(xf.layer("twice")).__name__ == "Twice"


def test_a_name_claimed_twice_names_both(install):
    for which in ("a", "b"):
        module = f"xform_fake_{which}"
        install(f"xform-fake-{which}", module, GOOD, [("transformations", "same", f"{module}:Twice")])
    with pytest.raises(PluginError, match=r"'same' is claimed by xform-fake-. 1.2 and xform-fake-. 1.2; uninstall one"):
        xf.layer("same")


@pytest.mark.parametrize(("stated", "remedy"), [(2, "upgrade xform"), (0, "upgrade the plugin")])
def test_another_layer_api_is_named(install, stated, remedy):
    code = GOOD.replace("layer_api = 1", f"layer_api = {stated}")
    install("xform-fake-api", "xform_fake_api", code, [("transformations", "twice", "xform_fake_api:Twice")])
    pattern = rf"'twice' \(xform-fake-api 1.2\) was written for layer API {stated}, .*LAYER_API = 1; {remedy}"
    with pytest.raises(PluginError, match=pattern):
        xf.layer("twice")

    class Other(xf.Observer):
        layer_api = stated

    with pytest.raises(PluginError, match=remedy):
        xf.register("other", Other)
    assert xf.LAYER_API == 1


def test_an_entry_point_that_names_no_class(install):
    install("xform-fake-odd", "xform_fake_odd", "X = 3", [("transformations", "odd", "xform_fake_odd:X")])
    with pytest.raises(PluginError, match=r"layer 'odd' \(xform-fake-odd 1.2\) is 3; an entry point must name"):
        xf.layer("odd")


def test_operators_and_backends_of_plugins(install):
    code = """
    import xform as xf

    class Softplus(xf.Operator):
        def evaluate(self, xp, x):
            return xp.log1p(xp.exp(x))

    class Mine(xf.Backend):
        name = "mine"

    backend, none = Mine(), {"name": "mine"}
    """
    install(
        "xform-fake-more",
        "xform_fake_more",
        code,
        [
            ("operators", "softplus", "xform_fake_more:Softplus"),
            ("operators", "wrong", "xform_fake_more:backend"),
            ("backends", "mine", "xform_fake_more:backend [extra]"),
            ("backends", "kind", "xform_fake_more:Mine"),
            ("backends", "none", "xform_fake_more:none"),
        ],
    )
    assert plugins.operators() == {"softplus": "xform-fake-more 1.2", "wrong": "xform-fake-more 1.2"}
    assert xf.apply(plugins.operator("softplus")(), 0.0) == np.log(2.0)
    with pytest.raises(PluginError, match=r"operator 'wrong' of xform-fake-more 1\.2 is .* no subclass"):
        plugins.operator("wrong")
    assert plugins.backend("mine").name == "mine"
    for wrong, said in (("kind", r"it must be an instance: Mine\(\)"), ("none", "no instance of xf.Backend")):
        with pytest.raises(PluginError, match=rf"backend '{wrong}' of xform-fake-more 1\.2 is .*{said}"):
            plugins.backend(wrong)
    assert plugins.backends()["mine"] == "xform-fake-more 1.2"
    plugins.register_backend("here", "xform_fake_more:backend")
    assert plugins.backend("here") is plugins.backend("mine")
    with pytest.raises(PluginError, match=r"there is no backend 'nowhere'"):
        plugins.backend("nowhere")


@pytest.mark.parametrize("name", ["", "a:b", 3, None])
def test_names_that_no_command_line_could_give_are_refused(name):
    for register in (xf.register, xf.register_backend, xf.register_engine):
        with suppress_type_checks(), pytest.raises(PluginError, match="it must be text, without the colon"):
            register(name, xf.Profile)


def test_a_plugin_that_exits_and_one_that_names_an_instance(install):
    exits = [("transformations", "exits", "xform_fake_exit:Layer")]
    install("xform-fake-exit", "xform_fake_exit", "import sys; sys.exit(4)", exits)
    with pytest.raises(PluginError, match=r"layer 'exits' of xform-fake-exit 1\.2 cannot be loaded.*SystemExit: 4"):
        xf.layer("exits")
    code = "import xform as xf\nmade = xf.Profile()"
    install("xform-fake-made", "xform_fake_made", code, [("transformations", "made", "xform_fake_made:made")])
    with pytest.raises(PluginError, match="an entry point must name a layer class"):
        xf.layer("made")


def test_an_unknown_engine_is_told_where_the_function_is_traced():
    with pytest.raises(PluginError, match="there is no engine 'zzz'"):
        xf.trace(np.sin, engine="zzz")
