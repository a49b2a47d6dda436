"""Row ``repeat-tool-reminder``: tells the model that it makes the same tool call over and over.

It looks at names and arguments alone and never blocks anything. The row ``stuck-guard`` looks at
results, too, and ends the turn.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from dsh.base.json import canonical, equal
from dsh.base.values import changed, value
from dsh.execution.agent.events import AGENT_PRE_STEP, AgentPreStep, PreStepDecision
from dsh.execution.tools.events import TOOLS_POST_EXECUTE, PostToolDecision, ToolPostExecute
from dsh.kernel.validation import checked_fields
from dsh.model.messages import create_user_message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Sequence
    from typing import Self

    from dsh.base.json import JsonValue
    from dsh.execution.agent.service import Agent
    from dsh.execution.tools.service import ToolExecution
    from dsh.kernel import Context, Next
    from dsh.model.messages import UserMessage

name = "repeat-tool-reminder"


@value
class Config:
    """When to speak, and about which tools."""

    thresholds: Sequence[int] = (3, 5, 8)
    """At how many equal calls in a row the model is told, each once; the least is the gentlest."""
    include: Sequence[str] = ()
    """The tools that count, ``*`` stands for any letters; empty means all."""
    exclude: Sequence[str] = ()
    """Tools that are passed over, as if they were not called."""
    arguments_preview_chars: int = 500
    """How much of the arguments the model is shown."""

    @classmethod
    def validate(cls, raw: object) -> Self:
        """Return the config behind a row's mapping.

        Raises:
            ValidationError: it names every field that does not fit.
        """
        given = dict(checked_fields(raw, _CHECKS))
        if "argumentsPreviewChars" in given:
            given["arguments_preview_chars"] = given.pop("argumentsPreviewChars")
        return cls(**given)


def _are_thresholds(given: Any) -> bool:
    if not isinstance(given, list) or not given or any(type(each) is not int for each in given):
        return False
    return min(given) >= 2 and len(set(given)) == len(given)


def _are_names(given: Any) -> bool:
    return isinstance(given, list) and all(isinstance(each, str) for each in given)


_CHECKS: Final = {
    "thresholds": (_are_thresholds, "different whole numbers of at least 2"),
    "include": (_are_names, "a list of names of tools"),
    "exclude": (_are_names, "a list of names of tools"),
    "argumentsPreviewChars": (
        lambda given: type(given) is int and given >= 1,
        "a whole number of at least 1",
    ),
}


def apply(ctx: Context, config: Config) -> None:
    """Follow the calls of all agents until the plugin unloads."""
    reminder = Reminder(config)
    ctx.on(TOOLS_POST_EXECUTE, reminder.after_call)
    ctx.on(AGENT_PRE_STEP, reminder.before_step)


class _Run:
    """Equal calls in a row."""

    __slots__ = ("arguments", "count", "tool")

    def __init__(self) -> None:
        self.tool = ""
        self.arguments: JsonValue = None
        self.count = 0

    def add(self, call: ToolExecution) -> int:
        """Count a call; return how many equal ones there are now."""
        # Nearly always they differ, and == says so at once; but it takes True for 1.
        same = self.arguments == call.arguments and self.tool == call.name
        if same and equal(self.arguments, call.arguments):
            self.count += 1
        else:
            self.tool, self.arguments, self.count = call.name, call.arguments, 1
        return self.count


class Reminder:
    """Counts the equal calls of each agent, and adds a message when there are too many."""

    def __init__(self, config: Config) -> None:
        self._first = min(config.thresholds)
        self._thresholds = frozenset(config.thresholds)
        self._counts_all = not config.include and not config.exclude
        self._included = _pattern(config.include or ("*",))
        self._excluded = _pattern(config.exclude)
        self._preview = config.arguments_preview_chars
        self._runs: WeakKeyDictionary[Agent, _Run] = WeakKeyDictionary()

    async def after_call(
        self, event: ToolPostExecute, next: Next[PostToolDecision]
    ) -> PostToolDecision:
        """Count a call, whatever became of it, and remind at a threshold."""
        decision = await next()
        call = event.execution
        # What a program repeats the model has asked for once, as the call that runs the program.
        if call.agent is None or call.parent is not None or not self._counts(call.name):
            return decision
        run = self._runs.get(call.agent)
        if run is None:
            run = self._runs[call.agent] = _Run()
        count = run.add(call)
        if count not in self._thresholds:
            return decision
        contexts = (self._message(call, count), *decision.additional_contexts)
        return changed(decision, additional_contexts=contexts)

    def before_step(
        self, event: AgentPreStep, next: Next[PreStepDecision]
    ) -> Awaitable[PreStepDecision]:
        """Begin anew when the user has said something."""
        for message in event.messages:
            if message["source"]["kind"] == "user":
                self._runs.pop(event.agent, None)
                break
        return next()

    def _counts(self, tool: str) -> bool:
        if self._counts_all:
            return True
        included = self._included.fullmatch(tool) is not None
        return included and self._excluded.fullmatch(tool) is None

    def _message(self, call: ToolExecution, count: int) -> UserMessage:
        text = _NUDGE if count == self._first else self._plain_words(call, count)
        source = {
            "kind": "plugin",
            "plugin": name,
            "form": "notice",
            "summary": f"{call.name} × {count}",  # noqa: RUF001 - the sign is part of the wire
        }
        return create_user_message(text, source)

    def _plain_words(self, call: ToolExecution, count: int) -> str:
        arguments = call.arguments if isinstance(call.arguments, str) else canonical(call.arguments)
        shown = arguments[: self._preview]
        if more := len(arguments) - len(shown):
            shown += f"… (+{more} more chars)"
        return (
            f"You have called the tool {call.name} {count} times in a row with these arguments:\n"
            f"{shown}\n"
            "The same call will not tell you anything new. Read what it returned, then change the "
            "arguments, take another tool, or tell the user what is in the way."
        )


_NUDGE = (
    "You are repeating a tool call with the same arguments. Make sure that you use what it "
    "returned before you call it again."
)


def _pattern(globs: Iterable[str]) -> re.Pattern[str]:
    parts = [".*".join(map(re.escape, glob.split("*"))) for glob in globs]
    # Without any glob nothing may match, not even an empty name.
    return re.compile("|".join(parts) if parts else r"(?!)", re.DOTALL)
