"""What a tool's callbacks must be, so that a mistake fails its plugin and no call."""

from __future__ import annotations

from collections.abc import Mapping

from dsh.execution.tools.bodies import is_async
from dsh.execution.tools.errors import ToolRegistrationError


def check_callbacks(tool: str, callbacks: Mapping[str, object]) -> None:
    """Refuse callbacks that cannot be called, or whose answer would have to be awaited.

    Raises:
        ToolRegistrationError: names the tool and the callback.
    """
    for field, callback in callbacks.items():
        if not callable(callback):
            raise ToolRegistrationError(f"tool {tool!r}: {field} must be callable")
        if is_async(callback):
            raise ToolRegistrationError(
                f"tool {tool!r}: {field} must not be async, its answer is needed at once"
            )
