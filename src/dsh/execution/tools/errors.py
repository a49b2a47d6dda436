"""What can be wrong with a tool, and with a call of one."""

from __future__ import annotations

from collections.abc import Sequence

from dsh.base.errors import DshError, message_of

_NAME_SHOWN = 200

VIOLATIONS_SHOWN = 20
"""How much of what is wrong with arguments or a value the model is told."""


class ToolNotFound(DshError, LookupError):
    """A call names a tool that its caller cannot see."""

    code = "UNKNOWN_TOOL"

    def __init__(self, tool: str, *, nearest: str | None = None) -> None:
        hint = f"; did you mean {nearest!r}?" if nearest else ""
        shown = tool if len(tool) <= _NAME_SHOWN else f"{tool[:_NAME_SHOWN]}..."
        super().__init__(f"unknown tool {shown!r}{hint}")
        self.tool, self.nearest = tool, nearest


class ToolUnloaded(DshError, LookupError):
    """The plugin of a tool went away under a call of a step that counted on it.

    Attributes:
        started: Whether the body had been invoked, and may have done part of its work.
    """

    code = "TOOL_UNLOADED"

    def __init__(self, tool: str, *, cause: BaseException | None = None) -> None:
        if cause is None:
            text = "before this call could start, so nothing was done; call it again if it is back"
        else:
            text = (
                "while this call ran, so it may have done part of its work; look at the state "
                f"before repeating it ({message_of(cause)})"
            )
        super().__init__(f"tool {tool!r} was unloaded {text}")
        self.tool, self.started = tool, cause is not None


class ToolArgsError(DshError, ValueError):
    """The arguments of a call do not fit the tool; its body was not run.

    Attributes:
        violations: One sentence each, naming the parameter and what was expected.
    """

    code = "INVALID_ARGS"

    def __init__(self, violations: Sequence[str], *, tool: str | None = None) -> None:
        subject = f"tool {tool!r} was not run: its arguments are invalid" if tool else ""
        shown = _shown(violations)
        super().__init__("\n- ".join([subject, *shown]) if subject else "; ".join(shown))
        self.violations, self.tool = tuple(violations), tool


class ToolOutputError(DshError, ValueError):
    """A body returned a value that does not fit the output its tool declares."""

    code = "INVALID_TOOL_OUTPUT"

    def __init__(self, violations: Sequence[str], *, tool: str) -> None:
        problems = "; ".join(_shown(violations))
        super().__init__(f"tool {tool!r} returned an invalid value: {problems}")
        self.violations, self.tool = tuple(violations), tool


class JsonSchemaError(DshError, ValueError):
    """A schema says something that the supported subset of JSON Schema cannot."""

    code = "UNSUPPORTED_SCHEMA"

    def __init__(self, violations: Sequence[str], *, of: str | None = None) -> None:
        subject = f"{of}: " if of else ""
        super().__init__(f"{subject}unsupported JSON schema: {'; '.join(violations)}")
        self.violations = tuple(violations)


class ToolRegistrationError(DshError, ValueError):
    """A tool, restriction, guard or presentation cannot be registered as given."""

    code = "INVALID_TOOL"


def _shown(violations: Sequence[str]) -> list[str]:
    """Bound what the model reads: a long list may be wrong in every item."""
    more = ["and more of the kind"] if len(violations) > VIOLATIONS_SHOWN else []
    return [*violations[:VIOLATIONS_SHOWN], *more]
