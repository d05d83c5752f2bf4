"""Scripting with `apply()`: operators are plain data, so a program can be a list that you write, print and change.

    python examples/script_with_apply.py

A formula in reverse Polish notation becomes a list of operators; `apply` runs it, and every transformation works on it.
"""

import pickle

import numpy as np

import xform as xf
from xform import ops

WORDS = {"+": ops.Add(), "-": ops.Sub(), "*": ops.Mul(), "/": ops.Div(), "sin": ops.Sin(), "exp": ops.Exp()}
WORDS["sum"] = ops.Sum(axis=(0,), keepdims=False)  # parameters live on the operator, operands come with apply


def parse(text):
    """Return the words of a formula: operators, numbers, and names of variables."""
    return [WORDS.get(word) or (float(word) if word[0].isdigit() else word) for word in text.split()]


def arity(op):
    """Return how many operands the small language above gives an operator."""
    return 1 if op in (WORDS["sin"], WORDS["exp"], WORDS["sum"]) else 2


def run(formula, **variables):
    """Run a formula on a stack of operands."""
    operands = []
    for word in formula:
        if isinstance(word, xf.Operator):
            count = arity(word)
            operands[-count:] = [xf.apply(word, *operands[-count:])]
        else:
            operands.append(variables.get(word, word))
    (out,) = operands
    return out


formula = parse("x sin x * 0.5 + sum")
x = np.array([0.0, 1.0, 2.0])
print("formula: ", formula)
print("value:   ", run(formula, x=x), "  NumPy:", np.sum(np.sin(x) * x + 0.5))

# Operators compare by their parameters, are hashable, and can be pickled; so can a formula.
assert pickle.loads(pickle.dumps(formula)) == formula  # noqa: S301  (our own bytes)
print("equal:   ", ops.Sum(axis=(0,), keepdims=False) == WORDS["sum"], "  and not:", ops.Sin() == ops.Cos())

# Each operator knows its type rule and its reference meaning; all else is somebody's interpretation.
matrix = xf.Aval((2, 3), np.dtype("float32"))
print("infer:   ", WORDS["sum"].infer(matrix), "  evaluate:", WORDS["sum"].evaluate(np, np.ones((2, 3))))

# A transformation does not ask where an operation came from.
print("gradient:", xf.grad(lambda x: run(formula, x=x))(x), "  by hand:", np.cos(x) * x + np.sin(x))
print(xf.make_program(lambda x: run(formula, x=x))(x))

# Values have Python's operators and NumPy's functions besides: both are the same `apply`.
with xf.Profile() as profile:
    tracked = xf.array(x)
    assert np.array_equal(np.sin(tracked) * tracked, xf.apply(ops.Mul(), xf.apply(ops.Sin(), tracked), tracked))
print("Sin and Mul were applied:", profile.calls("Sin"), "and", profile.calls("Mul"), "times")

# As data, a formula can be rewritten before it runs.
print("sin -> exp:", run([ops.Exp() if word == ops.Sin() else word for word in formula], x=x))

try:
    run(parse("x y *"), x=x, y=np.ones(2))
except xf.XformError as error:
    print("an error names operator, operands and line:", error)
