"""Messages that a call hands to the model beside its result."""

from __future__ import annotations

from typing import Any

from dsh.base.json import snapshot
from dsh.model.messages import UserMessage


def context_of(message: object) -> UserMessage:
    """Return a message frozen, if the log can take it.

    Raises:
        TypeError: it is no user message.
        NotLossless: it is not JSON.
    """
    frozen: Any = snapshot(message)
    if not (isinstance(frozen, dict) and _is_user_message(frozen)):
        raise TypeError(
            "a context must be a user message as create_user_message() makes it, "
            f"got {type(message).__name__}"
        )
    return frozen  # type: ignore[return-value]  # checked just now


def _is_user_message(message: dict[str, Any]) -> bool:
    content, source = message.get("content"), message.get("source")
    return (
        isinstance(message.get("id"), str)
        and message.get("role") == "user"
        and isinstance(content, list)
        and all(isinstance(block, dict) and "type" in block for block in content)
        and isinstance(source, dict)
        and isinstance(source.get("kind"), str)
    )
