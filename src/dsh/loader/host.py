"""What the host gives to the tree, as plain services on its root."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, final

__all__ = ["AppExit", "CmdlineArgs", "CommandLine"]


_LAST_CODE: Final = 255


@final
class CommandLine:
    """The app's own command line, as the launcher parsed it; service ``cmdline``.

    Attributes:
        argv: The words for the app.
        parsed: What the app's command returned for them; None when the app has no command.
    """

    __slots__ = ("argv", "parsed")

    name: ClassVar[str] = "cmdline"

    def __init__(self, argv: Sequence[str] = (), parsed: Any = None) -> None:
        self.argv = tuple(argv)
        self.parsed = parsed


@final
class CmdlineArgs:
    """The words for the app, unparsed; service ``cmdline_args``."""

    __slots__ = ("_argv",)

    name: ClassVar[str] = "cmdline_args"

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = tuple(argv)

    def get(self) -> tuple[str, ...]:
        """Return the words; every reader gets the same object."""
        return self._argv


@final
class AppExit:
    """Asks the host to end; service ``app_exit``."""

    __slots__ = ("_request",)

    name: ClassVar[str] = "app_exit"

    def __init__(self, request: Callable[[int], None]) -> None:
        self._request = request

    def exit(self, code: int = 0) -> None:
        """Request that the tree is disposed of and the process ends; returns at once.

        The first request's code counts; a signal outranks it. What is no code counts as 1.
        """
        # A code that the system cuts to its low byte could turn a failure into a success.
        fits = isinstance(code, int) and 0 <= code <= _LAST_CODE
        self._request(int(code) if fits else 1)

    __call__ = exit
