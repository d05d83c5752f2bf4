"""The operators of custom functions, and the rules by which every layer treats them.

1. `CustomCall` is a user's function as one operator: a black box that the bottom runs on raw arrays.
2. A tape, a forward layer or a batch runs the user's rule with what stands below, so that derivatives of higher order
   are those of the rule's own operations.
3. What a rule gives as the function's output is tied (`SetGradient`) to the user's rules for layers below as well, so
   that they are used at every order, and never the derivative of how the output was computed.
4. Of the two kinds of rules one is enough: the other mode transposes it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import attrs

from xform.core.aval import Aval, aval_of
from xform.core.errors import HostReadError, MissingRuleError
from xform.core.operator import Operator
from xform.core.rules import batch_rule, jvp_rule, vjp_rule
from xform.core.stack import Transformation, apply, levels, on_empty_stack
from xform.core.value import Array, Value
from xform.ops.broadcast import make_lead
from xform.ops.create import zeros_like
from xform.ops.shapes import moveaxis
from xform.ops.structural import StopGradient
from xform.transforms.batch import Batch
from xform.transforms.custom_calls import Definition, Recipe, Saved
from xform.transforms.custom_lanes import Batched, Lanes, Under
from xform.transforms.forward import Forward
from xform.transforms.grad import Grad
from xform.transforms.lanes import lane_by_lane
from xform.transforms.operands import taken_in
from xform.transforms.recording import is_inexact, recording_tape
from xform.transforms.trace import Trace, eval_shape
from xform.transforms.transposition import Transposition, transposed

__all__ = ["CustomCall", "SetGradient", "perform"]

Axes = tuple[int | None, ...]


class OfRecipe(Operator):
    """What the operators of custom functions share; they compare by identity, since they hold functions."""

    __slots__ = ()
    recipe: Recipe
    multiple_outputs = True
    nests = True
    runs_python = True
    backward_name = "CustomBackward"

    @property
    def fills_zeros(self) -> bool:
        """Whether a missing cotangent is given as zeros."""
        return self.recipe.definition.fills_zeros

    def within(self, layer: Transformation) -> Operator:
        """Return the same with its functions run under a layer, which gives the operations in them other meanings.

        To an observer they are one operator; a layer that wraps values does so with what comes out.
        """
        if layer.effect not in ("faithful", "rewrites"):
            return self
        return attrs.evolve(self, recipe=Under(self.recipe, layer))  # type: ignore[misc]


@attrs.frozen(eq=False, repr=False)
class CustomCall(OfRecipe):
    """A user's function with rules of the user's own."""

    recipe: Recipe

    @property
    def name(self) -> str:
        """The function's name."""
        return self.recipe.definition.label

    def __repr__(self) -> str:
        return self.name

    def infer(self, *avals: Aval) -> tuple[Aval, ...]:
        """Trace the function abstractly."""
        return tuple(eval_shape(lambda *xs: self.recipe.call(xs), *avals))

    def evaluate(self, xp: Any, *arrays: Any) -> tuple[Any, ...]:
        """Run the function on raw arrays, at the bottom."""
        outs = on_empty_stack(self.recipe.call, [taken_in(x, bare=True) for x in arrays])
        return tuple([out.data if type(out) is Array else out for out in outs])


@attrs.frozen(eq=False, repr=False)
class SetGradient(OfRecipe):
    """Hands outputs through, with the derivative of a custom function.

    Its operands are the outputs, the arrays of the residuals (none, where `layout` is None: the rule is to be run
    again), and the inputs of the function.
    """

    recipe: Recipe
    outs: int
    arrays: int = 0
    layout: Any = None
    crosses_devices = True

    def __repr__(self) -> str:
        return f"SetGradient[{self.recipe.definition.name}]"

    def infer(self, *avals: Aval) -> tuple[Aval, ...]:
        """The first operands'."""
        return avals[: self.outs]

    def evaluate(self, xp: Any, *arrays: Any) -> tuple[Any, ...]:
        """Return the first operands."""
        return arrays[: self.outs]

    @property
    def before(self) -> int:
        """How many operands stand before the inputs."""
        return self.outs + self.arrays

    def saved(self, operands: Sequence[Any]) -> Saved | None:
        """Return the residuals, where there are."""
        if self.layout is None:
            return None
        return Saved(list(operands[self.outs : self.before]), self.layout, opaque=False)


#: layers that have no part in an operation none of whose operands they own
PASSING = (Batch, Forward, Grad, Trace)


def perform(op: CustomCall, values: Sequence[Any]) -> tuple[Any, ...]:
    """Send a custom function to the stack, or call it where no layer has to know.

    That is the case where no layer owns an operand and all of them pass such operations on (what the function takes
    from around it may be theirs), and on what a transposition records: the inputs of a linear map, behind the point of
    all derivatives.
    """
    owners = [value.owner for value in values if isinstance(value, Value) and value.owner is not None]
    if owners:
        alone = any(isinstance(owner, Transposition) for owner in owners)
    else:
        alone = all(isinstance(level.layer, PASSING) for level in levels())
    if alone:
        return tuple(op.recipe.call(values))
    return apply(op, *values)  # type: ignore[no-any-return]


# ------------------------------------------------------------------ reverse mode


@vjp_rule(CustomCall)
def custom_call_vjp(op: CustomCall, needed: tuple[bool, ...], *primals: Any) -> tuple[Any, Any]:
    """Run the user's rule below this tape."""
    outs, saved, ruled, pullback = reversed_by_rule(op.recipe, needed, primals)
    return outs if ruled else tied(op.recipe, outs, saved, primals), pullback


@vjp_rule(SetGradient)
def set_gradient_vjp(op: SetGradient, needed: tuple[bool, ...], *operands: Any) -> tuple[Any, Any]:
    """The user's rule, for a tape below the layer that ran it."""
    outs = apply(op, *operands)
    primals, saved = operands[op.before :], op.saved(operands)
    if saved is None:
        pullback = reversed_by_rule(op.recipe, needed[op.before :], primals)[-1]
    else:
        pullback = functools.partial(op.recipe.backward, saved, likes=avals_of(primals))
    return outs, lambda cotangents: (*[None] * op.before, *pullback(cotangents))


def reversed_by_rule(recipe: Recipe, needed: tuple[bool, ...], primals: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return outputs, residuals, whether the outputs are ruled, and the pullback; the tape's group sees none of it."""
    definition, tape = recipe.definition, recording_tape.get()
    alone = nullcontext() if tape is None else tape.suspended_siblings()
    if definition.forward is not None:
        with alone:
            outs, saved, ruled = recipe.forward(primals)
        likes = avals_of(primals)
        return tuple(outs), saved, ruled, lambda cotangents: tuple(recipe.backward(saved, cotangents, likes))
    if definition.tangent is None:
        raise missing(definition, "reverse mode")

    def linear(tangents: list[Any]) -> tuple[Any, list[Any]]:
        outs, pushed, ruled = recipe.push(primals, tangents)
        return (tuple(outs), ruled), pushed

    wrong = (
        f"{definition.label}: {definition.rule_name('tangent')} must be linear in its tangents to serve reverse mode "
        "(defvjp gives it a rule of its own), but it"
    )
    varying = [x if need else None for x, need in zip(primals, needed, strict=True)]
    with alone:
        (outs, ruled), pull = transposed(linear, varying, wrong, placed=recipe.placed)
    return outs, None, ruled, lambda cotangents: tuple(pull(cotangents))


# ------------------------------------------------------------------ forward mode


@jvp_rule(CustomCall)
def custom_call_jvp(op: CustomCall, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """Run the user's forward rule, or the transposed reverse rule."""
    recipe, definition = op.recipe, op.recipe.definition
    if definition.tangent is not None:
        outs, pushed, ruled = recipe.push(primals, tangents)
        return tuple(outs) if ruled else tied(recipe, outs, None, primals), tuple(pushed)
    if definition.forward is None:
        raise missing(definition, "forward mode")
    outs, saved, ruled = recipe.forward(primals)
    parts = pushed_by_transposition(recipe, saved, outs, primals, tangents)
    return tuple(outs) if ruled else tied(recipe, outs, saved, primals), parts


@jvp_rule(SetGradient)
def set_gradient_jvp(op: SetGradient, operands: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """The user's rule, for a forward layer below the layer that ran it."""
    outs = apply(op, *operands)
    primals, directions = operands[op.before :], tangents[op.before :]
    if all(t is None for t in directions):
        return outs, None
    if op.recipe.definition.tangent is not None:
        return outs, tuple(op.recipe.push(primals, directions)[1])
    saved = op.saved(operands)
    if saved is None:
        saved = op.recipe.forward(primals)[1]
    return outs, pushed_by_transposition(op.recipe, saved, outs, primals, directions)


def pushed_by_transposition(
    recipe: Recipe, saved: Saved, outs: Sequence[Any], primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Any, ...]:
    """Return the tangents of the outputs: the reverse rule, run backward."""
    likes = avals_of(primals)

    def pullback(cotangents: list[Any]) -> tuple[None, list[Any]]:
        if definition.fills_zeros:
            cotangents = [zeros_like(out) if t is None else t for out, t in zip(outs, cotangents, strict=True)]
        return None, recipe.backward(saved, cotangents, likes)

    definition = recipe.definition
    wrong = (
        f"{definition.label}: {definition.rule_name('backward')} must be linear in its cotangents to serve forward "
        "mode (defjvp gives it a rule of its own), but it"
    )
    return tuple(transposed(pullback, outs, wrong, placed=recipe.placed)[1](tangents))


def missing(definition: Definition, mode: str) -> MissingRuleError:
    """Make the error for a function that lacks a rule."""
    msg = (
        f"{definition.label}: {definition.kind} has no rule; for {mode} give it one with {definition.name}."
        "defjvp(rule), where rule(primals, tangents) returns (out, tangent_out), or defvjp(fwd, bwd); either serves "
        "both modes"
    )
    return MissingRuleError(msg, definition=definition)


# ------------------------------------------------------------------ batches


@batch_rule(CustomCall)
def custom_call_batch(op: CustomCall, size: int, values: tuple[Any, ...], axes: Axes) -> tuple[Any, Any]:
    """Run function and rules on all lanes at once; one that reads what differs between them, lane by lane."""
    recipe = Batched(op.recipe, Lanes(size), axes)
    try:
        return perform(CustomCall(recipe), values), 0
    except HostReadError as error:
        if not recipe.is_read_by(error):
            raise
        return lane_by_lane(op, size, values, axes)


@batch_rule(SetGradient)
def set_gradient_batch(op: SetGradient, size: int, operands: tuple[Any, ...], axes: Axes) -> tuple[Any, Any]:
    """The same, of the rules that run on all lanes at once."""
    outs = [spread(x, axis, size) for x, axis in zip(operands[: op.outs], axes, strict=False)]
    layout = None if op.layout is None else (op.layout, axes[op.outs : op.before])
    recipe = Batched(op.recipe, Lanes(size), axes[op.before :])
    return apply(attrs.evolve(op, recipe=recipe, layout=layout), *outs, *operands[op.outs :]), 0


def spread(x: Any, axis: int | None, size: int) -> Any:
    """Return a value with its lanes along axis 0."""
    if axis is None:
        return apply(make_lead(size), x)
    return moveaxis(x, axis, 0) if axis else x


# ------------------------------------------------------------------ outputs


def tied(recipe: Recipe, outs: Sequence[Any], saved: Saved | None, primals: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return outputs that have the user's rules, for the layers below that know the inputs."""
    if not any(isinstance(x, Value) and x.owner is not None for x in primals) or not any(map(is_inexact, outs)):
        return tuple(outs)
    arrays, layout = ([], None) if saved is None or saved.opaque else (saved.arrays, saved.layout)
    tie = SetGradient(recipe, len(outs), len(arrays), layout)
    return apply(tie, *[apply(StopGradient(), out) for out in outs], *arrays, *primals)  # type: ignore[no-any-return]


def avals_of(values: Sequence[Any]) -> list[Aval]:
    """Return the avals of inputs: all that a pullback keeps of them."""
    return [aval_of(x) for x in values]
