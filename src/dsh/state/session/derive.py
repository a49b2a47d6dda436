"""From log to messages: what the model gets is a projection of the surface, nothing more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from dsh.model.messages import Message
    from dsh.state.session.events import SessionEvent
    from dsh.state.session.surface import SurfaceManager


def derive_event_message(event: Mapping[str, Any]) -> Message | None:
    """Return the message that a surface event stands for; ``None`` when it has none.

    An assistant message without content carries only its usage and is no message.
    """
    name = event["type"]
    if name == "user/message":
        return cast("Message", event["data"])
    if name == "tool/result":
        return cast("Message", event["data"]["message"])
    if name == "assistant/message" and event["data"]["message"]["content"]:
        return cast("Message", event["data"]["message"])
    return None


class MessageDerivation:
    """The messages of a growing log; each node is projected once.

    Args:
        log: The events, from 0.
        surface: The surface of the same log.
    """

    __slots__ = ("_generation", "_log", "_messages", "_seen", "_surface")

    def __init__(self, log: Sequence[SessionEvent], surface: SurfaceManager) -> None:
        self._log = log
        self._surface = surface
        self._messages: list[Message] = []
        self._seen = 0
        self._generation = 0

    def messages(self) -> list[Message]:
        """Return a fresh list of the shared, frozen messages."""
        if self._generation != self._surface.replace_generation:
            self._generation = self._surface.replace_generation
            self._messages, self._seen = [], 0
        if self._seen < len(self._surface):
            fresh = [
                derive_event_message(self._log[seq]) for seq in self._surface.since(self._seen)
            ]
            self._messages += [message for message in fresh if message is not None]
            self._seen = len(self._surface)
        return list(self._messages)
