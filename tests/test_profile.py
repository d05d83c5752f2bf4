"""xf.Profile: what it counts and measures, what it keeps, and what its trace file looks like."""

import asyncio
import gc
import json
import threading
import time
import weakref

import numpy as np
import pytest

import xform as xf
import xform.numpy as xnp
from xform.core.errors import ShapeError
from xform.transforms.profile_report import Event, lanes_of


class Slow(xf.Operator):
    """Waits as many milliseconds as it is told."""

    def __init__(self, milliseconds):
        self.milliseconds = milliseconds

    def infer(self, x):
        return x

    def evaluate(self, xp, x):
        time.sleep(self.milliseconds / 1e3)
        return x


class Splitting(xf.Transformation):
    """Sends an Add for each Sin, so that a profile below sees both and one above only the Sin."""

    effect = "faithful"

    def interpret(self, op, values):
        if op == xf.ops.Sin():
            xf.apply(xf.ops.Add(), values[0], 1.0)
        return xf.apply(op, *values)


def complete(path):
    document = json.loads(path.read_text(encoding="utf-8"))
    return [event for event in document["traceEvents"] if event["ph"] == "X"]


def assert_nested(events):
    """Chrome's rule: on one track, events follow or contain one another."""
    for track in {(event["pid"], event["tid"]) for event in events}:
        ends = []
        mine = [event for event in events if (event["pid"], event["tid"]) == track]
        for event in sorted(mine, key=lambda e: (e["ts"], -e["dur"])):
            while ends and ends[-1] <= event["ts"] + 1e-6:
                ends.pop()
            end = event["ts"] + event["dur"]
            assert not ends or end <= ends[-1] + 1e-6
            ends.append(end)


def test_counts_operations_by_name():
    with xf.Profile() as profile:
        x = xf.array(np.ones((2, 3)))
        y = xnp.sin(x) + x * 2.0
        y = y + 1.0
    assert (profile.calls("Sin"), profile.calls("Add"), profile.calls("Mul")) == (1, 2, 1)
    assert profile.calls() == 4
    assert profile.calls("Matmul") == 0


def test_shapes_and_bytes():
    with xf.Profile() as profile:
        xnp.sin(xf.array(np.ones((2, 3))))
        xf.array(np.ones((2, 3), np.float32)) + np.ones(3, np.float32)
    rows = {row.name: row for row in profile.rows}
    assert rows["Sin"].shapes == ((2, 3),)
    assert rows["Sin"].size == 48
    assert rows["Add"].shapes == ((2, 3), (3,))
    assert rows["Add"].size == 24


def test_times_are_those_of_the_operation():
    with xf.Profile() as profile:
        xf.apply(Slow(20), xf.array(1.0))
    (row,) = profile.rows
    assert row.total >= 20e6
    assert row.own == row.total
    assert profile.overhead < row.total / 1e9


def test_self_time_of_a_scope_excludes_operations_and_inner_scopes():
    with xf.Profile() as profile, xf.named_scope("a"):
        time.sleep(0.02)
        xf.apply(Slow(30), xf.array(1.0))
        with xf.named_scope("b"):
            xf.apply(Slow(40), xf.array(1.0))
    rows = {(row.kind, *row.path): row for row in profile.rows}
    outer, inner = rows[("scope", "a")], rows[("scope", "a", "b")]
    assert outer.total >= 90e6
    assert 20e6 <= outer.own <= outer.total - 69e6
    assert inner.total >= 40e6
    assert inner.own <= inner.total - 39e6
    assert rows[("operator", "a")].own >= 30e6
    assert rows[("operator", "a", "b")].own >= 40e6


def test_operations_inside_an_operation_count_once():
    """A layer that computes on the profile's own level nests: the outer operation's self time excludes them."""
    profile = xf.Profile()

    class Rounds(xf.Operator):
        def evaluate(self, xp, x):
            inside = carried(lambda: xf.apply(Slow(30), xf.array(1.0)))
            inside()
            time.sleep(0.01)
            return x

    with profile:
        level = xf.core.stack.cursor.get()

        def carried(fun):
            def run():
                token = xf.core.stack.cursor.set(level)
                try:
                    return fun()
                finally:
                    xf.core.stack.cursor.reset(token)

            return run

        xf.apply(Rounds(), xf.array(1.0))
    rows = {row.name: row for row in profile.rows}
    assert rows["Slow"].own >= 30e6
    assert rows["Rounds"].total >= 40e6
    assert 10e6 <= rows["Rounds"].own <= rows["Rounds"].total - 30e6


def test_layers_between_two_profiles():
    with xf.Profile() as below, Splitting(), xf.Profile() as above:
        xnp.sin(xf.array(1.0))
    assert (above.calls("Sin"), above.calls("Add")) == (1, 0)
    assert (below.calls("Sin"), below.calls("Add")) == (1, 1)


def test_nested_profiles_see_the_same_and_measure_each_other_apart():
    with xf.Profile() as first, xf.Profile() as second, xf.named_scope("s"):
        xf.apply(Slow(5), xf.array(1.0))
    for profile in (first, second):
        assert profile.calls("Slow") == 1
        assert {row.path for row in profile.rows} == {("s",)}


def test_forward_and_backward_are_told_apart_below_a_tape():
    x = np.array([0.5, 1.0])
    with xf.Profile() as profile:
        gradient = xf.grad(lambda x: xnp.sum(xnp.sin(x) * 2.0))(x)
    np.testing.assert_allclose(gradient, 2 * np.cos(x))
    assert profile.calls("Sin", phase="forward") == 1
    assert profile.calls("Sin", phase="backward") == 0
    assert profile.calls("Cos", phase="backward") == 1
    assert profile.calls("Cos", phase="backward", scope="Sin.Backward") == 1


def test_above_a_tape_only_the_users_operations():
    with xf.Grad() as tape:
        x = tape.attach(np.array(0.5))
        with xf.Profile() as profile:
            y = xnp.sin(x)
        assert float(tape.gradient(y, x)) == pytest.approx(np.cos(0.5))
    assert profile.calls("Sin") == profile.calls() == 1


def test_a_profile_as_decorator_inside_grad():
    profile = xf.Profile()
    assert xf.grad(profile(lambda x: xnp.sin(x)))(0.5) == pytest.approx(np.cos(0.5))
    assert profile.calls("Sin") == 1


def test_as_decorator_it_adds_up():
    profile = xf.Profile()
    twice = profile(lambda x: np.sin(x) + np.sin(x))
    assert twice(np.array(1.0)) == 2 * np.sin(1.0)
    twice(np.array(2.0))
    assert profile.calls("Sin") == 4


def test_keeps_no_array():
    gc.disable()
    try:
        with xf.Profile() as profile, xf.named_scope("s"):
            raw = np.ones(10)
            x = xf.array(raw)
            y = xnp.sin(x) + raw
            dead = [weakref.ref(each) for each in (raw, x, y, y.data)]
            del raw, x, y
            assert [ref() for ref in dead] == [None] * 4
        assert profile.calls() == 2
    finally:
        gc.enable()


def test_exception_in_an_operation():
    with xf.Profile() as profile:
        with xf.named_scope("s"), pytest.raises(ShapeError):
            xf.array(np.ones(2)) + np.ones(3)
        xnp.sin(xf.array(1.0))
    rows = {row.name: row for row in profile.rows}
    assert rows["Add"].failures == 1
    assert "1 failed" in profile.table()
    assert rows["Sin"].path == ()
    assert rows["s"].calls == 1


def test_exception_through_the_profile_leaves_it_readable(tmp_path):
    path = tmp_path / "trace.json"
    with pytest.raises(ShapeError), xf.Profile(save=path) as profile, xf.named_scope("s"):
        xf.array(np.ones(2)) + np.ones(3)
    assert profile.calls("Add") == 1
    assert xf.stack() == ()
    events = complete(path)
    assert {event["name"] for event in events} == {"s", "Add"}
    assert next(e for e in events if e["name"] == "Add")["args"]["error"] == "ShapeError"


def test_trace_file_nests(tmp_path):
    with xf.Profile() as profile, xf.named_scope("step"):
        xf.grad(lambda x: xnp.sum(xnp.sin(x) * x))(np.ones(3))
    profile.save(tmp_path / "trace.json")
    events = complete(tmp_path / "trace.json")
    assert_nested(events)
    for event in events:
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        assert {"name", "cat", "pid", "tid", "args"} <= event.keys()
    by_name = {event["name"]: event for event in events}
    step, sin, back = by_name["step"], by_name["Sin"], by_name["Sin.Backward"]
    for inside in (sin, back, by_name["Cos"]):
        assert step["ts"] <= inside["ts"]
        assert inside["ts"] + inside["dur"] <= step["ts"] + step["dur"] + 1e-6
    assert back["ts"] <= by_name["Cos"]["ts"]
    assert by_name["Cos"]["cat"] == "operator,backward"
    assert by_name["Cos"]["args"]["scope"] == "step/Sin.Backward"
    assert sin["args"]["shapes"] == "(3)"


def test_lanes_part_what_overlaps():
    def event(name, start, end):
        return Event(name, "scope", (), "forward", start, end, (), 0, 1, None)

    events = [event("a", 0, 10), event("b", 5, 15), event("c", 6, 9), event("d", 10, 20), event("e", 15, 16)]
    lanes = lanes_of(events)
    assert [[each.name for each in lane] for lane in lanes] == [["a", "c", "d", "e"], ["b"]]


def test_several_threads(tmp_path):
    with xf.Profile() as profile:

        def work():
            with xf.named_scope("thread"):
                for _ in range(50):
                    xnp.sin(xf.array(1.0))

        threads = [threading.Thread(target=xf.carry(work)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert profile.calls("Sin") == 200
    assert profile.calls("Sin", scope="thread") == 200
    profile.save(tmp_path / "t.json")
    events = complete(tmp_path / "t.json")
    assert_nested(events)
    assert sum(event["name"] == "thread" for event in events) == 4


def test_one_profile_active_in_two_threads():
    profile = xf.Profile()

    def work():
        with profile:
            for _ in range(20):
                xnp.sin(xf.array(1.0))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert profile.calls("Sin") == 60


def test_tasks_that_take_turns(tmp_path):
    async def work(name, pause):
        with xf.named_scope(name):
            await asyncio.sleep(pause)
            xnp.sin(xf.array(1.0))
            await asyncio.sleep(pause)

    async def both():
        await asyncio.gather(work("one", 0.01), work("two", 0.015))

    with xf.Profile() as profile:
        asyncio.run(both())
    assert profile.calls("Sin", scope="one") == profile.calls("Sin", scope="two") == 1
    profile.save(tmp_path / "t.json")
    assert_nested(complete(tmp_path / "t.json"))
    rows = {row.name: row for row in profile.rows if row.kind == "scope"}
    assert set(rows) == {"one", "two"}


def test_entered_inside_a_scope():
    with xf.named_scope("outer"):
        profile = xf.Profile()
        with profile, xf.named_scope("inner"):
            xnp.sin(xf.array(1.0))
    assert profile.calls("Sin", scope="outer") == 1
    assert {row.path for row in profile.rows} == {("outer", "inner")}


def test_a_scope_that_outlives_the_profile_is_ended():
    profile = xf.Profile()
    with profile:
        xf.apply(xf.ops.PushScope("open"))
    (row,) = profile.rows
    assert (row.name, row.calls) == ("open", 1)


def test_table():
    with xf.Profile() as profile:
        x = xf.array(np.ones((4, 4)))
        for _ in range(3):
            x = x * 2.0
        xf.apply(Slow(80), x)
    lines = profile.table().splitlines()
    assert lines[0].split() == ["operator", "phase", "calls", "self", "ms", "self", "%", "total", "ms", "MB", "shapes"]
    assert lines[1].split()[:3] == ["Slow", "forward", "1"]
    assert lines[2].split()[:3] == ["Mul", "forward", "3"]
    assert lines[2].endswith("(4, 4) ()")
    assert "own overhead" in lines[-1]
    assert profile.table(sort="calls").splitlines()[1].startswith("Mul")
    assert profile.table(sort="name").splitlines()[1].startswith("Mul")
    short = profile.table(limit=1).splitlines()
    assert short[2].startswith("... and 1 more")


def test_table_by_scope_and_by_shape():
    with xf.Profile() as profile:
        for n in (2, 3):
            with xf.named_scope("a"), xf.named_scope("b"):
                xnp.sin(xf.array(np.ones(n)))
    scopes = profile.table(by="scope", sort="total").splitlines()
    assert scopes[1].split()[:3] == ["a", "forward", "2"]
    assert scopes[2].split()[:3] == ["a/b", "forward", "2"]
    assert scopes[2].split()[-1] == "2"
    shapes = profile.table(by="shape").splitlines()
    assert sum(line.startswith("Sin") for line in shapes) == 2
    assert "and 1 others" in profile.table()


@pytest.mark.parametrize("options", [{"sort": "slowest"}, {"by": "line"}])
def test_table_names_what_it_takes(options):
    with pytest.raises(ValueError, match=r"total|scope"):
        xf.Profile().table(**options)


def test_html_escapes_and_has_no_script():
    with xf.Profile() as profile, xf.named_scope("<b>"):
        xnp.sin(xf.array(1.0))
    page = profile._repr_html_()
    assert "Sin" in page
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert "script" not in page
    assert "onclick" not in page


def test_overhead_is_measured():
    with xf.Profile() as profile:
        x = xf.array(np.ones(3))
        for _ in range(200):
            x = x + 1.0
    assert profile.overhead > 0
    assert profile.overhead < (profile._ended - profile._began) / 1e9


def test_max_events_bounds_what_is_kept():
    with xf.Profile(max_events=3) as profile:
        for _ in range(5):
            xnp.sin(xf.array(1.0))
    assert len(profile.events) == 3
    assert profile.calls("Sin") == 5
    assert "counted, not kept" in profile.table()


def test_save_checks_the_folder_at_once(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        xf.Profile(save=tmp_path / "no" / "t.json")


def test_by_name_with_options(tmp_path):
    path = tmp_path / "t.json"
    with xf.layer("profile", save=str(path)):
        xnp.sin(xf.array(1.0))
    assert [event["name"] for event in complete(path)] == ["Sin"]


def test_warns_when_it_saw_nothing():
    with pytest.warns(UserWarning, match="saw no operation"), xf.Profile():
        np.sin(1.0)


def test_several_outputs_and_integers():
    with xf.Profile() as profile:
        x = xf.array(np.arange(6))
        x + 1
    (row,) = profile.rows
    assert row.size == 48
