"""What a second round of breakers found: numbers that were wrong in silence, each with the right one, or the error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import xform as xf
from xform.core.errors import LayerError, OperandError, SavedArrayError, ShapeError

X = np.array([0.3, 0.5, -0.2])

BODIES: dict[str, Callable[[Any, Any], Any]] = {
    "fori_loop": lambda sine, x: xf.fori_loop(0, 1, lambda i, y: y * sine(y), x),
    "scan": lambda sine, x: xf.scan(lambda c, r: (c * sine(x) * r, None), x, np.ones(1))[0],
    "while_loop": lambda sine, x: xf.while_loop(
        lambda c: c[0] < 1.0, lambda c: (c[0] + 1.0, c[1] * sine(x)), (np.array(0.0), x)
    )[1],
    "map": lambda sine, x: xf.map(lambda row: row * sine(row), x),
    "cond": lambda sine, x: xf.cond(x[0] > 0.0, lambda y: y * sine(y), lambda y: y, x),
    "trace": lambda sine, x: xf.trace(lambda y: y * sine(y))(x),
    "make_program": lambda sine, x: xf.make_program(lambda y: y * sine(y))(x)(x),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_tape_is_not_suppressed_in_a_function_that_is_recorded(name: str) -> None:
    with xf.Grad() as tape:
        x = tape.attach(X)

        def sine(y: Any) -> Any:
            with tape.suppressed():
                return np.sin(y)

        with pytest.raises(LayerError, match=r"suppressed\(\) at .*Write xf\.stop_gradient"):
            BODIES[name](sine, x)
        total = np.sum(BODIES[name](lambda y: xf.stop_gradient(np.sin(y)), x))
        assert tape.paused == 0
    np.testing.assert_allclose(tape.gradient(total, x), np.sin(X))  # of x sin(x) where the sine is a constant


def test_a_tape_is_not_frozen_in_the_body_of_a_loop() -> None:
    with xf.Grad() as tape:
        x = tape.attach(X)
        with pytest.raises(LayerError, match=r"freeze\(\)"):
            xf.fori_loop(0, 1, lambda i, y: (tape.freeze(), y)[1], x)
        total = np.sum(x * x)
    np.testing.assert_allclose(tape.gradient(total, x), 2 * X)


def test_a_tape_is_suppressed_below_a_batch_and_where_its_own_function_is_traced() -> None:
    def of_sine_as_constant(v: Any) -> Any:
        with xf.Grad() as tape:
            x = tape.attach(v)
            with tape.suppressed():
                sine = xf.vmap(np.sin)(x)
            total = np.sum(x * sine)
        return tape.gradient(total, x)

    traced = xf.trace(of_sine_as_constant)
    for v in (X, X + 1.0):
        np.testing.assert_allclose(of_sine_as_constant(v), np.sin(v))
        np.testing.assert_allclose(traced(v), np.sin(v))


@pytest.mark.parametrize("function", [np.exp, np.sqrt, np.tanh, lambda x: np.linalg.inv(np.eye(3) + x)], ids=range(4))
def test_the_result_of_vjp_may_not_change_before_the_pullback(function: Callable[[Any], Any]) -> None:
    out, pull = xf.vjp(function, abs(X))
    seed = np.ones_like(out)
    first = pull(seed)[0]
    np.testing.assert_array_equal(pull(seed)[0], first)
    out[...] = 0.0
    with pytest.raises(SavedArrayError, match="first saved by vjp"):
        pull(seed)


def test_aux_of_vjp_may_not_change_before_the_pullback() -> None:
    _, pull, aux = xf.vjp(lambda x: (np.sum(y := np.exp(x)), y), X, has_aux=True)
    aux *= 2.0
    with pytest.raises(SavedArrayError, match="Exp"):
        pull(1.0)


def test_a_result_of_vjp_that_no_rule_reads_may_change() -> None:
    out, pull = xf.vjp(np.sin, X)
    out[...] = 0.0
    np.testing.assert_allclose(pull(np.ones(3))[0], np.cos(X))


@pytest.mark.parametrize("layer", [None, xf.Profile], ids=["tape", "tape_over_profile"])
def test_an_array_that_stop_gradient_gave_away_may_not_change_before_backward(layer: Any) -> None:
    def run() -> None:
        with xf.Grad() as tape:
            x = tape.attach(X)
            y = np.exp(x)
            seen = xf.to_numpy(xf.stop_gradient(y))
            total = np.sum(y)
        seen[...] = 0.0
        with pytest.raises(SavedArrayError, match="Exp"):
            tape.gradient(total, x)

    if layer is None:
        run()
    else:
        with layer():
            run()


COPIES: dict[str, Callable[[Any], Any]] = {
    "np.copy": np.copy,
    "method": lambda x: x.copy(),
    "flatten": lambda x: x.flatten(),
}
WRAPPED: dict[str, Callable[..., Any]] = {
    "layer": lambda f: xf.NanGuard()(f),
    "trace": xf.trace,
    "vjp": lambda f: lambda x: xf.vjp(f, x)[0],
    "jvp": lambda f: lambda x: xf.jvp(f, (x,), (x,))[0],
    "vmap": xf.vmap,
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("wrapped", WRAPPED)
def test_a_copy_is_of_its_own_memory(name: str, wrapped: str) -> None:
    function = WRAPPED[wrapped](COPIES[name])
    given = np.stack([X, X])
    for _ in range(2):  # a traced function is replayed the second time
        out = function(given)
        assert not np.shares_memory(out, given)
        out[...] = 7.0
        np.testing.assert_array_equal(given, np.stack([X, X]))


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_differentiates(name: str) -> None:
    np.testing.assert_allclose(xf.grad(lambda x: np.sum(x * COPIES[name](x)))(X), 2 * X)
    assert xf.array(2.0).copy().dtype == np.float64
    assert (xf.array(2.0).copy() * np.ones(2, np.float32)).dtype == np.float32  # a Python number stays one


MASKED: dict[str, Callable[..., Any]] = {
    "sum": np.sum,
    "prod": np.prod,
    "mean": np.mean,
    "any": np.any,
    "all": np.all,
    "max": lambda x, where: np.max(x, where=where, initial=-9.0),
    "min": lambda x, where: np.min(x, where=where, initial=9.0),
}


@pytest.mark.parametrize("name", MASKED)
def test_a_mask_that_is_larger_than_the_array_is_refused(name: str) -> None:
    mask = np.array([[True, False, True]])
    for shape in ((1, 1), (3,), ()):
        with pytest.raises(ValueError, match=r"broadcast|dimensions"):
            MASKED[name](np.ones(shape), where=mask)  # NumPy
        with pytest.raises(ShapeError, match="mask"):
            MASKED[name](xf.array(np.ones(shape)), where=mask)
    rows = np.arange(6.0).reshape(2, 3)
    np.testing.assert_allclose(MASKED[name](xf.array(rows), where=mask).tolist(), MASKED[name](rows, where=mask))
    np.testing.assert_allclose(
        xf.vmap(lambda row: MASKED[name](row, where=mask[0]))(rows), [MASKED[name](row, where=mask[0]) for row in rows]
    )


@pytest.mark.parametrize("function", [np.var, np.std], ids=["var", "std"])
def test_a_spread_in_whole_numbers_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(OperandError, match="dtype=int64"):
        function(xf.array(X), dtype=np.int64)
    np.testing.assert_allclose(float(function(xf.array(X), dtype=np.float32)), function(X), rtol=1e-6)


@pytest.mark.parametrize("checkpoint", [2, "sqrt", "log"])
def test_a_device_moves_what_a_rewound_loop_closes_over(checkpoint: Any) -> None:
    w = np.array([0.3, -0.7, 1.1])

    def total(x: Any) -> Any:
        return np.sum(xf.fori_loop(0, 6, lambda i, y: 0.5 * y * np.cos(w * y), x, checkpoint=checkpoint))

    x, slope = X, np.ones(3)
    for _ in range(6):
        slope = slope * 0.5 * (np.cos(w * x) - w * x * np.sin(w * x))
        x = 0.5 * x * np.cos(w * x)
    with xf.Device("array_api_strict:device1") as device:
        found = xf.grad(total)(xf.device_put(X, device.name))
    np.testing.assert_allclose(xf.to_numpy(found), slope, rtol=1e-12)
