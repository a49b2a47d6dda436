"""How a headless run is printed: the answer alone, one JSON object, or every event."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dsh.base.json import dumps
from dsh.base.text import replace_surrogates
from dsh.product.headless.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import BinaryIO

    from dsh.execution.agent.service import Agent
    from dsh.execution.tools.service import ToolRuntime
    from dsh.product.headless.options import OutputFormat
    from dsh.product.headless.result import RunFold
    from dsh.state.session.events import SessionEvent, SessionHeader


class Output:
    """Prints one run: a method is called for its beginning, each event, and its end.

    This one prints nothing; a format overrides what it shows.
    """

    def bind(self, agent: Agent, tools: ToolRuntime) -> None:
        """Say whose run it is, and where short views of its tool calls come from."""

    def begin(self, header: SessionHeader) -> None:
        """The session is open."""

    def event(self, event: SessionEvent) -> None:
        """An event was logged."""

    def end(self, fold: RunFold, result: Mapping[str, Any]) -> None:
        """The run is over, or was interrupted; ``fold`` has all that is known."""


class TextOutput(Output):
    """The answer on standard output; on a terminal, each step on standard error."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress

    def bind(self, agent: Agent, tools: ToolRuntime) -> None:
        """Let the shown steps use the tools' own views."""
        if self._progress is not None:
            self._progress.find_tool = lambda name: tools.get(name, agent)

    def event(self, event: SessionEvent) -> None:
        """Show a step, when somebody watches."""
        if self._progress is not None:
            self._progress.event(event)

    def end(self, fold: RunFold, result: Mapping[str, Any]) -> None:
        """Print the answer and one newline, even when there is no answer."""
        write_text(sys.stdout, fold.text + "\n")
        if self._progress is not None:
            self._progress.summary(result)


class ShownOutput(TextOutput):
    """Everything a person wants to follow, on standard output."""

    def end(self, fold: RunFold, result: Mapping[str, Any]) -> None:
        """Tell what the run took; the answer was shown as it came."""
        if self._progress is not None:
            self._progress.summary(result)


class JsonOutput(Output):
    """One JSON object at the end."""

    def end(self, fold: RunFold, result: Mapping[str, Any]) -> None:
        """Print the result."""
        _write_line(dumps(result))


class StreamJsonOutput(Output):
    """A header line, each event as it is logged, and a result line; all are JSON."""

    def begin(self, header: SessionHeader) -> None:
        """Print the header line."""
        _write_line(dumps({"type": "session", **header}))

    def event(self, event: SessionEvent) -> None:
        """Print the event."""
        _write_line(dumps(event))

    def end(self, fold: RunFold, result: Mapping[str, Any]) -> None:
        """Print the result line."""
        _write_line(dumps({"type": "result", **result}))


def make_output(output_format: OutputFormat) -> Output:
    """Return the printer of a format."""
    if output_format == "json":
        return JsonOutput()
    if output_format == "stream-json":
        return StreamJsonOutput()
    if output_format == "show":
        return ShownOutput(Progress(sys.stdout))
    return TextOutput(Progress(sys.stderr) if sys.stderr.isatty() else None)


def write_text(stream: Any, text: str) -> None:
    """Write text to a standard stream whatever its encoding can hold, and flush it."""
    data = replace_surrogates(text).encode(stream.encoding or "utf-8", "replace")
    stream.flush()
    stream.buffer.write(data)
    stream.buffer.flush()


def _write_line(data: bytes) -> None:
    out: BinaryIO = sys.stdout.buffer
    out.write(data + b"\n")
    out.flush()
