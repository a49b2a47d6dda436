"""The runtime context as messages: told when it changed, and only then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from dsh.execution.prompt.service import (
    CONTEXT_CLEARED,
    RUNTIME_CONTEXT_SOURCE,
    join_context_sections,
    render_context_sections,
)
from dsh.model.messages import create_user_message

if TYPE_CHECKING:
    from dsh.execution.prompt.service import PromptAssembly
    from dsh.model.messages import UserMessage
    from dsh.state.session.events import SessionEvent
    from dsh.state.session.session import Session


class SnapshotProjection:
    """Remembers the last runtime-context message that the model still sees."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._told = False
        self._seq: int | None = None
        self._text: str | None = None
        self._generation = session.surface.replace_generation
        self._restore()

    def candidate(self, assembly: PromptAssembly) -> UserMessage | None:
        """Return the message to propose for a step, or ``None`` when the model is up to date."""
        self._follow_surface()
        parts = render_context_sections(assembly)
        if not parts:
            return self._cleared() if self._told else None
        text = join_context_sections(parts)
        if self._seq is not None and text == self._text:
            return None
        source = {
            "kind": "plugin",
            "plugin": RUNTIME_CONTEXT_SOURCE,
            "form": "snapshot",
            "sections": [{"name": part.name, "text": part.text} for part in parts],
        }
        return create_user_message(text, source)

    def observe(self, event: SessionEvent) -> None:
        """Take note of a logged ``user/message``."""
        data = cast("Mapping[str, Any]", event["data"])
        if _is_owned(data):
            self._told = True
            self._seq = event["seq"]
            self._text = _only_text(data)

    def _cleared(self) -> UserMessage | None:
        if self._seq is not None and self._text == CONTEXT_CLEARED:
            return None
        source = {"kind": "plugin", "plugin": RUNTIME_CONTEXT_SOURCE}
        return create_user_message(CONTEXT_CLEARED, source)

    def _restore(self) -> None:
        for event in reversed(self._session.events):
            if event["type"] == "user/message":
                self.observe(event)
                if self._told:
                    self._forget_shadowed()
                    return

    def _follow_surface(self) -> None:
        generation = self._session.surface.replace_generation
        if generation != self._generation:
            self._generation = generation
            self._forget_shadowed()

    def _forget_shadowed(self) -> None:
        if self._seq is not None and self._seq not in self._session.surface.nodes:
            self._seq = self._text = None


def _is_owned(message: Mapping[str, Any]) -> bool:
    source = message["source"]
    return bool(source["kind"] == "plugin" and source.get("plugin") == RUNTIME_CONTEXT_SOURCE)


def _only_text(message: Mapping[str, Any]) -> str | None:
    content = message["content"]
    if len(content) == 1 and content[0]["type"] == "text":
        return cast("str", content[0]["text"])
    return None
