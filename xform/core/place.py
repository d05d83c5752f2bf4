"""Where in the user's program an operation happens: scopes, phase, line, loop, iteration."""

from __future__ import annotations

from contextvars import ContextVar

import attrs

from xform.core.source import Site, user_site

__all__ = ["FORWARD", "Place", "current", "place"]


@attrs.frozen(slots=True)
class Place:
    """What `xf.current()` tells of the operation that is being interpreted."""

    scopes: tuple[str, ...] = ()
    phase: str = "forward"
    site: Site | None = None
    loop: str | None = None
    iteration: int | None = None
    __tree_leaf__ = True

    @property
    def line(self) -> Site:
        """File and line of the user's code; in the backward phase, of the forward operation."""
        return self.site if self.site is not None else user_site()

    def located(self) -> Place:
        """Return this place with the user's line filled in."""
        return self if self.site is not None else attrs.evolve(self, site=user_site())


FORWARD = Place()

place: ContextVar[Place] = ContextVar("xform place", default=FORWARD)


def current() -> Place:
    """Tell scopes, phase ("forward" or "backward"), line, loop and iteration of the current operation.

    >>> import xform as xf
    >>> with xf.named_scope("layer1"):
    ...     xf.current().scopes, xf.current().phase
    (('layer1',), 'forward')
    """
    return place.get().located()
