"""What `xf.cond` and `xf.switch` refuse, and what errors say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typeguard import suppress_type_checks

import xform as xf
import xform.numpy as xnp
from tests.test_branches import X
from xform import cond, switch
from xform.core.errors import HostReadError, OperandError, OperandTypeError


@pytest.mark.parametrize(
    ("true_fun", "false_fun", "words"),
    [
        (lambda x: x, lambda x: (x, x), ("float64[2]", "(float64[2], float64[2])", "same structure")),
        (lambda x: {"a": x}, lambda x: {"b": x}, ("'a'", "'b'", "same structure")),
        (lambda x: x, lambda x: x[:1], ("float64[2]", "float64[1]", "same shapes and dtypes")),
        (lambda x: x, lambda x: x.astype("float32"), ("float64[2]", "float32[2]", "astype")),
        (lambda x: (x, x), lambda x: (x, x > 0.0), ("float64[2]", "bool[2]", "[1]")),
    ],
)
def test_branches_must_return_the_same(true_fun, false_fun, words):
    for run in (
        lambda x: cond(np.bool_(True), true_fun, false_fun, x),
        xf.trace(lambda x: cond(x.sum() > 0.0, true_fun, false_fun, x)),
    ):
        with pytest.raises(OperandTypeError) as caught:
            run(X)
        for word in ("cond", "true_fun", "false_fun", *words):
            assert word in str(caught.value)


def test_a_switch_names_its_branches():
    with pytest.raises(TypeError, match=r"switch: branch 0 returns .* and branch 2 returns"):
        switch(np.array(1), [xnp.sin, xnp.cos, lambda x: x > 0.0], X)


@pytest.mark.parametrize("pred", [X > 0.0, "yes", None, [True], (True,), np.array(1j)])
def test_what_is_no_truth_value(pred):
    with pytest.raises(OperandTypeError, match="cond: pred must be one truth value"):
        cond(pred, xnp.sin, xnp.cos, X)


@pytest.mark.parametrize("index", [1.0, np.array(0.5), True, np.bool_(True), np.array([1]), "1", None])
def test_what_is_no_index(index):
    with pytest.raises(OperandTypeError, match="switch: index must be one integer"):
        switch(index, [xnp.sin, xnp.cos], X)


@suppress_type_checks
def test_other_arguments_that_are_wrong():
    with pytest.raises(OperandTypeError, match="cond: false_fun takes a function, got float"):
        cond(True, xnp.sin, 1.0)
    with pytest.raises(OperandTypeError, match="switch: branch 1 takes a function"):
        switch(0, [xnp.sin, None])
    with pytest.raises(OperandError, match="at least one"):
        switch(0, [])
    with pytest.raises(OperandTypeError, match="list of at least one"):
        switch(0, xnp.sin)
    with pytest.raises(OperandTypeError, match=r"operand \[1\]\['a'\] is str"):
        cond(np.bool_(True), lambda x, y: x, lambda x, y: x, 1.0, {"a": "text"})
    with pytest.raises(OperandTypeError, match=r"false_fun .* of cond.* is str"):
        cond(np.bool_(True), lambda x: x, lambda x: "text", 1.0)


def test_a_branch_that_reads_its_values():
    def f(x):
        return x if x > 0.0 else -x

    for run in (lambda x: cond(np.bool_(True), f, xnp.sin, x), xf.trace(lambda x: cond(x > 0.0, f, xnp.sin, x))):
        with pytest.raises(HostReadError, match=r"true_fun \(f\) of cond.*another cond") as caught:
            run(1.0)
        assert xf.stack() == ()
        assert Path(__file__).name in str(caught.value)


def test_an_error_inside_of_a_branch_passes():
    mine = KeyError("mine")

    def f(x):
        raise mine

    with xf.Grad() as tape:
        x = tape.attach(2.0)
        with pytest.raises(KeyError) as caught:
            cond(x > 0.0, lambda x: x, f, x)
        assert caught.value is mine
        assert xf.stack() == (tape,)
        assert tape.gradient(cond(x > 0.0, lambda x: x * x, xnp.exp, x), x) == 4.0
