"""What a context hands down: the scopes of service names, config layers, data, a base address.

Contexts that change none of it share the place of the one they came from. A place below an
anchor is known to those above it, so that it can follow when the anchor is moved; every other
place is fixed for good, and the plain context has none at all.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from dsh.kernel.keys import ContextKey, Label

Labels: TypeAlias = "Mapping[str, Label] | None"
Layers: TypeAlias = "Mapping[str, tuple[Mapping[str, Any], ...]] | None"
Meta: TypeAlias = "Mapping[ContextKey[Any], Any] | None"


class Place:
    """One change to what is handed down, and the sum of it and all changes above.

    Attributes:
        up: Where the rest comes from.
        scope: Where labels come from; another place than ``up`` for who reads as someone else.
        labels: The sum of the labels, as ``layers``, ``meta`` and ``base_url`` are of theirs.
        movable: Whether it can change, because an anchor is above or it is one.
    """

    __slots__ = (
        "__weakref__",
        "_below",
        "_own_base",
        "_own_layers",
        "_own_meta",
        "base_url",
        "labels",
        "layers",
        "meta",
        "movable",
        "own_labels",
        "scope",
        "up",
    )

    labels: Labels
    layers: Layers
    meta: Meta
    base_url: str | None

    def __init__(
        self,
        up: Place | None,
        *,
        scope: Place | None = None,
        labels: Labels = None,
        layers: Layers = None,
        meta: Meta = None,
        base_url: str | None = None,
        movable: bool = False,
    ) -> None:
        self.up = up
        self.scope = up if scope is None else scope
        self.own_labels = labels
        self._own_layers = layers
        self._own_meta = meta
        self._own_base = base_url
        self._below: weakref.WeakSet[Place] | None = None
        self.movable = movable
        for above in (up, scope):
            if above is not None and above.movable:
                above.add_below(self)
                self.movable = True
        self.sum_up()

    def sum_up(self) -> None:
        """Compute the sums anew, from those of the places above."""
        up, scope = self.up, self.scope
        self.labels = _over(scope.labels if scope is not None else None, self.own_labels)
        self.layers = _stacked(up.layers if up is not None else None, self._own_layers)
        self.meta = _over(up.meta if up is not None else None, self._own_meta)
        above = up.base_url if up is not None else None
        self.base_url = above if self._own_base is None else self._own_base

    def put(self, up: Place | None, labels: Labels, layers: Layers) -> None:
        """Give an anchor's place another content and place above, and let all below follow."""
        if self.up is not None and self.up._below is not None:
            self.up._below.discard(self)
        self.up = self.scope = up
        if up is not None and up.movable:
            up.add_below(self)
        self.own_labels, self._own_layers = labels or None, layers or None
        # a place with two above comes twice; the last time, both are up to date
        for place in self.walk():
            place.sum_up()

    def walk(self) -> Iterator[Place]:
        """Yield this place and all below, each after those above it."""
        stack = [self]
        while stack:
            place = stack.pop()
            yield place
            stack.extend(place._below or ())

    def inherits(self, name: str, anchor: Place) -> bool:
        """Whether the label of a name comes from ``anchor``, or from above by way of it."""
        place: Place | None = self
        while place is not None and place is not anchor:
            if place.own_labels is not None and name in place.own_labels:
                return False
            place = place.scope
        return place is anchor

    def is_below(self, other: Place) -> bool:
        """Whether it would follow when ``other`` is moved."""
        place: Place | None = self
        while place is not None:
            if place is other or (place.scope is not place.up and _below(place.scope, other)):
                return True
            place = place.up
        return False

    def add_below(self, place: Place) -> None:
        """Note a place that follows this one for as long as it is used."""
        if self._below is None:
            self._below = weakref.WeakSet()
        self._below.add(place)


def joined(place: Place | None, scope: Place | None) -> Place | None:
    """Return a place like ``place``, where service names mean what they mean at ``scope``."""
    if place is scope or (_fixed(place) and _fixed(scope) and _labels(place) == _labels(scope)):
        return place
    return Place(place, scope=_NOWHERE if scope is None else scope)


def _fixed(place: Place | None) -> bool:
    return place is None or not place.movable


def _labels(place: Place | None) -> Labels:
    return None if place is None else place.labels


def _below(place: Place | None, other: Place) -> bool:
    return place is not None and place.is_below(other)


def _over(above: Any, own: Any) -> Any:
    if not own:
        return above
    return {**above, **own} if above else dict(own)


def _stacked(above: Layers, own: Layers) -> Layers:
    if not own:
        return above
    found = dict(above or {})
    for name, layers in own.items():
        found[name] = (*found.get(name, ()), *layers)
    return found


_NOWHERE = Place(None)
"""Stands for the plain context, which has no place, as where labels come from."""
