"""Storage of values; what they can do (operators, NumPy protocols) is installed by `xform.values`."""

from __future__ import annotations

from typing import Any

__all__ = ["Array", "Value"]


class Value:
    """Base of all tracked values: what a transformation wraps around a value of the layer below.

    1. A value has Python's operators, an ndarray's attributes and methods, and NumPy's protocols; all of them send
       operations through `xf.apply`, and give results of the shape and dtype that NumPy gives. Values do not change in
       place (`WriteError`), and are read by the host only where nothing is lost by it (`HostReadError`).
    2. `data` is the value as the layer below knows it, `owner` the layer that made it (None for an `Array`); `aval` is
       its type where that is not the data's (an abstract value, a batch).
    3. A layer that wraps values has a subclass of its own, with `owner` and what it keeps beside the data as slots; it
       takes those that it owns apart with `self.unwrap(value)`. A value whose owner is not active raises
       `EscapedValueError`.

    >>> import numpy as np, xform as xf
    >>> class Named(xf.Value):
    ...     __slots__ = ("label", "owner")
    >>> class Names(xf.Transformation):
    ...     effect = "wraps"
    ...     def named(self, data, label):
    ...         value = Named()
    ...         value.data, value.label, value.owner = data, label, self
    ...         return value
    ...     def interpret(self, op, values):
    ...         if op.attribute_like or not any(getattr(value, "owner", None) is self for value in values):
    ...             return xf.apply(op, *map(self.unwrap, values))  # what the host reads, or none of ours
    ...         label = f"{op.name}({', '.join(getattr(value, 'label', 'constant') for value in values)})"
    ...         return self.named(xf.apply(op, *map(self.unwrap, values)), label)
    >>> with Names() as names:
    ...     y = np.sin(names.named(np.zeros(2), "x")) + 1.0
    >>> y.label, names.unwrap(y)
    ('Add(Sin(x), constant)', array([1., 1.]))
    """

    __slots__ = ("__weakref__", "data")
    data: Any
    owner: Any = None
    aval: Any = None
    axis: Any = None  # where the lanes of a batch lie


class Array(Value):
    """A tracked concrete array: no layer owns it, its operators go through `apply`, so that layers see them.

    `xf.array(x)` makes one of an array, a number or nested lists, without a copy. `data` is the raw array, of any
    library; `xf.to_numpy(v)` gives it as a NumPy array, `float(v)` and `v.item()` as a number. Nothing writes into one:
    `v.at[i].set(x)` gives another. (`Array()` takes no arguments: `__init__` would cost 70 ns an operation.)

    >>> import xform as xf
    >>> with xf.Profile() as profile:
    ...     y = xf.array([1.0, 2.0]) * 2.0
    >>> y, y.data, profile.calls("Mul")
    (Array<float64[2]: [2. 4.]>, array([2., 4.]), 1)
    """

    __slots__ = ()
