"""Cases of the elementwise families; safe domains keep a step away from kinks, ties and branch points."""

from __future__ import annotations

import numpy as np

import xform.numpy as xnp
from tests.operators.case import case

X = np.array([[-1.3, -0.4, 0.7], [0.2, 1.1, 2.3]])
Y = np.array([[0.9, -1.7, 0.3], [-0.6, 1.9, -2.2]])
ROW = np.array([0.6, -1.4, 2.1])
COLUMN = np.array([[1.3], [-0.75]])
POSITIVE = np.array([[0.3, 0.8, 1.4], [2.2, 0.5, 3.1]])
UNIT = np.array([-0.85, -0.3, 0.2, 0.6, 0.9])
BEYOND = np.array([1.2, 1.7, 2.4, 5.0])
SCALAR = np.array(0.7)
MASK = np.array([[True, False, True], [False, True, False]])

ARITHMETIC = [
    case("add", xnp.add, X, Y, complex=True),
    case("add_broadcast", xnp.add, COLUMN, ROW, complex=True),
    case("add_number", lambda x: x + 2, X, complex=True),
    case("subtract", xnp.subtract, X, ROW, complex=True),
    case("subtract_from_number", lambda x: 2.5 - x, X, complex=True),
    case("multiply", xnp.multiply, X, Y, complex=True),
    case("multiply_broadcast", xnp.multiply, COLUMN, ROW, complex=True),
    case("multiply_number", lambda x: 3 * x, X, complex=True),
    case("multiply_itself", lambda x: x * x, X, complex=True),
    case("multiply_0d", xnp.multiply, SCALAR, X, complex=True),
    case("multiply_integers", xnp.multiply, X, np.array([2, -3, 4]), complex=True),
    case("multiply_mask", xnp.multiply, X, MASK, complex=True),
    case("divide", xnp.divide, X, Y, complex=True),
    case("divide_broadcast", xnp.divide, ROW, COLUMN, complex=True),
    case("divide_number", lambda x: 1.5 / x, X, complex=True),
    case("divide_by_integers", xnp.divide, X, np.array([2, -3, 4]), complex=True),
    case("divide_integers_by", lambda x: xnp.divide(np.array([2, -3, 4]), x), X, complex=True),
    case("negative", xnp.negative, X, complex=True),
    case("positive", xnp.positive, X, complex=True),
    case("square", xnp.square, X, complex=True),
    case("reciprocal", xnp.reciprocal, X, complex=True),
    case("remainder", xnp.remainder, X, Y),
    case("remainder_broadcast", xnp.remainder, COLUMN, ROW),
    case("remainder_number", lambda x: x % 0.83, X),
    case("fmod", xnp.fmod, X, Y),
    case("fmod_broadcast", xnp.fmod, ROW, COLUMN),
    case("divmod", lambda x, y: xnp.divmod(x, y)[1], X, Y),
    case("modf", lambda x: xnp.modf(x)[0], X),
]

POWERS = [
    *[case(f"power_{n}", lambda x, n=n: xnp.power(x, n), X, complex=True) for n in (-3, -2, -1, 0, 1, 2, 3, 4, 5, 7)],
    *[case(f"power_{n}", lambda x, n=n: x**n, POSITIVE, complex=True) for n in (-1.5, -0.5, 0.5, 1.0, 2.0, 2.5)],
    case("power_array", xnp.power, POSITIVE, Y, complex=True),
    case("power_broadcast", xnp.power, np.array([[0.4], [1.6]]), ROW, complex=True),
    case("power_integers", xnp.power, X, np.array([2, 3, -1]), complex=True),
    case("power_integers_and_zero", xnp.power, X, np.array([0, 1, 2])),
    case("power_of_number", lambda x: 2.0**x, X, complex=True),
    case("power_of_integers", lambda y: xnp.power(np.array([2, 3, 4]), y), Y, complex=True),
    case("power_itself", lambda x: x**x, POSITIVE, complex=True),
    case("float_power", xnp.float_power, POSITIVE, Y, complex=True),
    case("float_power_3", lambda x: xnp.float_power(x, 3), X, x64_only=True),
    case("ldexp", lambda x: xnp.ldexp(x, np.array([2, -1, 0])), X),
    case("sqrt", xnp.sqrt, POSITIVE, complex=True),
    case("cbrt", xnp.cbrt, X),
    case("hypot", xnp.hypot, X, Y),
    case("hypot_broadcast", xnp.hypot, COLUMN, ROW),
]

EXPONENTIAL = [
    case("exp", xnp.exp, X, complex=True),
    case("exp2", xnp.exp2, X, complex=True),
    case("expm1", xnp.expm1, X, complex=True),
    case("log", xnp.log, POSITIVE, complex=True),
    case("log2", xnp.log2, POSITIVE, complex=True),
    case("log10", xnp.log10, POSITIVE, complex=True),
    case("log1p", xnp.log1p, POSITIVE, complex=True),
    case("logaddexp", xnp.logaddexp, X, Y),
    case("logaddexp_broadcast", xnp.logaddexp, COLUMN, ROW),
    case("logaddexp2", xnp.logaddexp2, X, Y),
]

TRIGONOMETRIC = [
    *[
        case(name, getattr(xnp, name), X, complex=True)
        for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "arctan", "arcsinh", "sinc")
    ],
    *[case(name, getattr(xnp, name), UNIT, complex=True) for name in ("arcsin", "arccos", "arctanh")],
    case("arccosh", xnp.arccosh, BEYOND, complex=True),
    case("arctan2", xnp.arctan2, X, Y),
    case("arctan2_broadcast", xnp.arctan2, COLUMN, ROW),
    case("sinc_near_0", xnp.sinc, np.array([0.0, 1e-6, -1e-3, 0.05, 0.3, 0.32]), order=3),
    case("deg2rad", xnp.deg2rad, X),
    case("rad2deg", xnp.rad2deg, X),
    case("radians", np.radians, X),
    case("degrees", np.degrees, X),
]

SELECTION = [
    case("maximum", xnp.maximum, X, Y),
    case("maximum_number", lambda x: xnp.maximum(x, 0.0), X),
    case("maximum_broadcast", xnp.maximum, COLUMN, ROW),
    case("minimum", xnp.minimum, X, Y),
    case("minimum_broadcast", xnp.minimum, COLUMN, ROW),
    case("fmax", xnp.fmax, X, Y),
    case("fmin", xnp.fmin, X, Y),
    case("where", lambda x, y: xnp.where(MASK, x, y), X, Y, complex=True),
    case("where_broadcast", lambda x, y: xnp.where(MASK, x, y), COLUMN, ROW, complex=True),
    case("where_number", lambda x: xnp.where(x > 0, x * x, 1.0), X),
    case("where_0d_condition", lambda x, y: xnp.where(True, x, y), X, Y, complex=True),
    case("clip", lambda x: xnp.clip(x, -1.0, 1.0), X),
    case("clip_bounds", xnp.clip, X, np.array([-0.5, -0.3, 0.1]), np.array([[0.5], [1.5]])),
    case("clip_below", lambda x: xnp.clip(x, 0.1), X),
    case("clip_above", lambda x: xnp.clip(x, max=0.1), X),
    case("clip_crossed", xnp.clip, X, np.array(0.5), np.array(-0.5)),
    case("abs", xnp.abs, X),
    case("fabs", xnp.fabs, X),
    case("sign", lambda x: x * xnp.sign(x), X),
    case("copysign", xnp.copysign, X, Y),
    case("copysign_number", lambda x: xnp.copysign(x, -1.0), X),
    case("heaviside", lambda x, y: xnp.heaviside(np.array([-1, 0, 2]), y) * x, X, Y),
    case("nan_to_num", lambda x: xnp.nan_to_num(x) ** 2, X),
    *[
        case(f"{name}_is_constant", lambda x, name=name: x * getattr(xnp, name)(x), X)
        for name in ("floor", "ceil", "trunc", "rint", "round")
    ],
    case("round_decimals", lambda x: x * xnp.round(x, 1), X + 0.01),
    case("floor_divide_is_constant", lambda x, y: x * y * (x // y), X, Y),
]

COMPLEX = [
    case("real_of_complex", xnp.real, X * (1 + 0.3j), complex=True),
    case("imag_of_complex", lambda x: x * xnp.imag(x), X * (1 + 0.3j), complex=True),
    case("conj_of_complex", lambda x: x * xnp.conj(x), X * (1 + 0.3j), complex=True),
    case("abs_of_complex", lambda x: x * xnp.abs(x), X * (1 + 0.3j), complex=True),
    case("sign_of_complex", lambda x: x * xnp.sign(x), X * (1 + 0.3j), complex=True),
    case("angle_of_complex", xnp.angle, X * (1 + 0.3j), complex=True),
    case("real", lambda x: xnp.real(x * x), X),
    case("imag", lambda x: x * xnp.imag(x * (1 + 2j)), X),
    case("conj", lambda x: xnp.conj(x * x), X),
    case("real_of_turned", lambda x: xnp.real(xnp.exp(x * (0.3 + 0.8j))), X),
    case("conj_of_turned", lambda x: xnp.real(xnp.conj(x * (1 + 2j)) * xnp.exp(x * 1j)), X),
    case("abs_of_turned", lambda x: xnp.abs(x * x + 1j * x), X),
    case("angle_of_turned", lambda x: xnp.angle(x * x + 1j * x + 3.0), X),
    case("angle_in_degrees", lambda x: xnp.angle(x + 1j * x * x, deg=True), X),
    case("sign_of_turned", lambda x: xnp.imag(xnp.sign(x * x + 1j * x + 0.5)), X),
]

WHOLE = np.array([[6, -3, 12], [5, 0, 7]])
J = np.array([3, 2, -4])

CONSTANT = [
    *[
        case(name, getattr(xnp, name), X, ROW, order=0)
        for name in ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal", "floor_divide")
    ],
    *[
        case(name, getattr(xnp, name), MASK, np.array([True, False, False]), order=0)
        for name in ("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor")
    ],
    case("logical_or_of_numbers", xnp.logical_or, X, np.array([0, 1, 2]), order=0),
    case("logical_not", xnp.logical_not, MASK, order=0),
    case("logical_not_of_numbers", xnp.logical_not, np.array([0.0, 1.0, -2.0]), order=0),
    *[
        case(f"{name}_of_integers", getattr(xnp, name), WHOLE, J, order=0)
        for name in ("bitwise_and", "bitwise_or", "bitwise_xor")
    ],
    case("invert", xnp.invert, WHOLE, order=0),
    case("invert_mask", xnp.invert, MASK, order=0),
    case("left_shift", xnp.left_shift, WHOLE, np.array([1, 0, 3]), order=0),
    case("right_shift", xnp.right_shift, WHOLE, np.array([1, 0, 3]), order=0),
    *[
        case(name, getattr(xnp, name), np.array([1.0, np.nan, -np.inf, 0.0]), order=0)
        for name in ("isnan", "isinf", "isfinite")
    ],
    case("signbit", xnp.signbit, np.array([1.0, -2.0, -0.0, 0.0]), order=0),
    case("isclose", xnp.isclose, X, X + 0.5, order=0),
    case("allclose", xnp.allclose, X, X + 0.5, order=0),
    case("array_equal", xnp.array_equal, X, X, order=0),
]

CASES = CONSTANT + ARITHMETIC + POWERS + EXPONENTIAL + TRIGONOMETRIC + SELECTION + COMPLEX
