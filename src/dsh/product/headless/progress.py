"""What a person sees while an agent works: words, each tool call, and its result in short."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from dsh.product.headless.brief import brief_call, brief_result

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TextIO

    from rich.console import Console

    from dsh.execution.tools.service import ToolDefinition
    from dsh.state.session.events import SessionEvent

_NAME_WIDTH = 6


class Progress:
    """Prints the events of one session to a terminal, or as plain lines to a file.

    Args:
        stream: Where to; colours only when it is a terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._made: Console | None = None
        self._calls: dict[str, tuple[str, str]] = {}
        self.find_tool: Callable[[str], ToolDefinition | None] = lambda name: None
        """Looks a tool up, for its own short views; set by who runs the agent."""

    def event(self, event: SessionEvent) -> None:
        """Show one event, if it is one that people follow."""
        handler = _HANDLERS.get(event["type"])
        if handler is not None:
            handler(self, cast("Mapping[str, Any]", event["data"]))

    def summary(self, result: Mapping[str, Any]) -> None:
        """Tell what the run took: session, model, tokens, time, and the cost when it is known."""
        usage = result["usage"]
        read = sum(
            usage.get(part, 0) for part in ("inputTokens", "cacheReadTokens", "cacheWriteTokens")
        )
        parts = [
            f"session {result['sessionId']}",
            str(result["model"] or "no model call"),
            f"{read:,} tokens in, {usage.get('outputTokens', 0):,} out",
            f"{result['steps']} steps",
            f"{result['durationMs'] / 1000:.1f} s",
        ]
        if cost := result.get("cost"):
            parts.append(f"{cost['amount']:,.4f} {cost['currency']}")
        self._print(" · ".join(parts), style="dim")

    def _message(self, data: Mapping[str, Any]) -> None:
        for block in data["message"]["content"]:
            if block["type"] == "text" and block["text"].strip():
                self._print(f"● {block['text'].strip()}")
        if data.get("interrupted"):
            self._print("  (interrupted)", style="yellow")

    def _call(self, data: Mapping[str, Any]) -> None:
        self._calls[data["callId"]] = (data["name"], data["arguments"])

    def _result(self, data: Mapping[str, Any]) -> None:
        call_id = data["message"]["source"]["callId"]
        name, arguments = self._calls.pop(call_id, ("?", "{}"))
        tool = self.find_tool(name)
        failed = bool(data["message"]["content"][0].get("isError"))
        line = f"  {'✗' if failed else '✓'} {name:<{_NAME_WIDTH}} {brief_call(tool, arguments)}"
        self._print(line, tail=brief_result(tool, arguments, data), style="red" if failed else None)

    def _retry(self, data: Mapping[str, Any]) -> None:
        failure, delay_s = data["failure"], data["delayMs"] / 1000
        text = f"  … attempt {data['retry'] + 1} in {delay_s:.1f} s: {failure['message']}"
        self._print(text, style="yellow")

    def _stuck(self, data: Mapping[str, Any]) -> None:
        if data["action"] == "nudge":
            text = f"  told that it seems stuck: {data['code']}, {data['count']} times in a row"
            self._print(text, style="yellow")

    def _decided(self, data: Mapping[str, Any]) -> None:
        if data["outcome"] == "unavailable":
            text = "  refused: nobody can be asked here (see DSH_PERMISSION_MODE)"
            self._print(text, style="yellow")

    def _turn_end(self, data: Mapping[str, Any]) -> None:
        reason = data["reason"]
        if reason["kind"] not in ("completed", "error"):
            code = (reason.get("reason") or {}).get("code")
            why = f" ({code})" if code else ""
            self._print(f"  turn ended: {reason['kind']}{why}", style="yellow")

    def _print(self, text: str, *, tail: str = "", style: str | None = None) -> None:
        from rich.text import Text

        line = Text(text, style=style or "")
        if tail:
            line.append(f"   {tail}", style="dim")
        self._console.print(line, soft_wrap=not self._console.is_terminal, highlight=False)

    @property
    def _console(self) -> Console:
        if self._made is None:
            from rich.console import Console

            self._made = Console(file=self._stream)
        return self._made


_HANDLERS = {
    "assistant/message": Progress._message,
    "tool/call": Progress._call,
    "tool/result": Progress._result,
    "llm/retry": Progress._retry,
    "stuck/detected": Progress._stuck,
    "approval/decided": Progress._decided,
    "turn/end": Progress._turn_end,
}
