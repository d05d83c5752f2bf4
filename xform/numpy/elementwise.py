"""NumPy's names of elementwise functions, and those of the array API standard."""

from xform.ops.arithmetic import add, div, mul, neg, positive, reciprocal, square, sub
from xform.ops.closeness import allclose, array_equal, isclose, iscomplex, isneginf, isposinf, isreal, nan_to_num
from xform.ops.comparisons import (
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    equal,
    greater,
    greater_equal,
    invert,
    isfinite,
    isinf,
    isnan,
    left_shift,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    not_equal,
    right_shift,
    signbit,
)
from xform.ops.complexes import abs, angle, conj, copysign, fabs, heaviside, imag, real, sign
from xform.ops.exponential import exp, exp2, expm1, log, log1p, log2, log10, logaddexp, logaddexp2
from xform.ops.powers import cbrt, float_power, hypot, ldexp, power, sqrt
from xform.ops.rounding import around, ceil, divmod, fix, floor, floor_divide, fmod, modf, remainder, rint, round, trunc
from xform.ops.selection import clip, fmax, fmin, maximum, minimum, where
from xform.ops.sinc import sinc
from xform.ops.trigonometric import (
    arccos,
    arccosh,
    arcsin,
    arcsinh,
    arctan,
    arctan2,
    arctanh,
    cos,
    cosh,
    deg2rad,
    rad2deg,
    sin,
    sinh,
    tan,
    tanh,
)

__all__ = [
    "abs", "absolute", "acos", "acosh", "add", "allclose", "angle", "arccos", "arccosh", "arcsin", "arcsinh",
    "arctan", "arctan2", "arctanh", "around", "array_equal", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and",
    "bitwise_invert", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "cbrt",
    "ceil", "clip", "conj", "conjugate", "copysign", "cos", "cosh", "deg2rad", "degrees", "divide", "divmod", "equal",
    "exp", "exp2", "expm1", "fabs", "fix", "float_power", "floor", "floor_divide", "fmax", "fmin", "fmod", "greater",
    "greater_equal", "heaviside", "hypot", "imag", "invert", "isclose", "iscomplex", "isfinite", "isinf", "isnan",
    "isneginf", "isposinf", "isreal", "ldexp", "left_shift", "less", "less_equal", "log", "log1p", "log2", "log10",
    "logaddexp", "logaddexp2", "logical_and", "logical_not", "logical_or", "logical_xor", "maximum", "minimum", "mod",
    "modf", "multiply", "nan_to_num", "negative", "not_equal", "positive", "pow", "power", "rad2deg", "radians", "real",
    "reciprocal", "remainder", "right_shift", "rint", "round", "sign", "signbit", "sin", "sinc", "sinh", "sqrt",
    "square", "subtract", "tan", "tanh", "true_divide", "trunc", "where",
]  # fmt: skip

subtract, multiply, divide, true_divide, negative = sub, mul, div, div, neg
absolute, pow, mod, conjugate = abs, power, remainder, conj
degrees, radians = rad2deg, deg2rad
acos, asin, atan, atan2 = arccos, arcsin, arctan, arctan2
acosh, asinh, atanh = arccosh, arcsinh, arctanh
bitwise_not = bitwise_invert = invert
bitwise_left_shift, bitwise_right_shift = left_shift, right_shift
