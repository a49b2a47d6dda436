"""Results: how failures are worded, and how values become what the model reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dsh.base.errors import DshError, error_chain, message_of
from dsh.base.json import FrozenDict, FrozenList, JsonValue, NotLossless, snapshot
from dsh.base.values import changed
from dsh.execution.tools.schema import validate_json_schema_value
from dsh.execution.tools.service import (
    ABORTED,
    ABORTED_BEFORE_DISPATCH,
    ABORTED_BEFORE_DISPATCH_TEXT,
    ABORTED_TEXT,
    ToolDefinition,
    ToolError,
    ToolErrorInfo,
    ToolFailure,
    ToolOutputError,
    ToolResult,
    ToolSuccess,
)
from dsh.model.messages import ContentBlock, UserMessage


def failure(message: str, info: ToolErrorInfo | None = None) -> ToolFailure:
    """A failure whose content is its message."""
    return ToolFailure(error=ToolError(message, info), content=_text(f"Error: {message}"))


def failure_of(error: BaseException) -> ToolFailure:
    """A failure that says what was raised; only dsh's own errors carry a routable identity."""
    grouped = isinstance(error, BaseExceptionGroup)
    info = ToolErrorInfo(type(error).__name__, error.code) if isinstance(error, DshError) else None
    return failure(error_chain(error) if grouped else message_of(error), info)


def aborted(*, invoked: bool, contexts: tuple[UserMessage, ...] = ()) -> ToolFailure:
    """The failure of a cancelled call, by whether its body had been invoked."""
    text, code = (
        (ABORTED_TEXT, ABORTED)
        if invoked
        else (ABORTED_BEFORE_DISPATCH_TEXT, ABORTED_BEFORE_DISPATCH)
    )
    result = failure(text, ToolErrorInfo("AbortError", code))
    return changed(result, additional_contexts=contexts) if contexts else result


def success(
    definition: ToolDefinition, arguments: JsonValue, value: object, *, nested: bool
) -> ToolSuccess:
    """Make a result of a canonical value: checked, frozen and rendered.

    Args:
        definition: Whose output contract counts.
        arguments: Frozen arguments of the call.
        value: What the body returned.
        nested: The call was made by another one; nobody presents it, so it gets no meta.

    Raises:
        ToolOutputError: the value, its content or its meta does not fit.
        Exception: what ``render`` or ``presentation_meta`` raised.
    """
    output = definition.output
    frozen = _lossless(value, definition.name, "value")
    if violations := validate_json_schema_value(output.schema, frozen, "value"):
        raise ToolOutputError(violations, tool=definition.name)
    content = content_of(output.render(arguments, frozen), definition.name)
    meta = None
    if output.presentation_meta is not None and not nested:
        meta = _lossless(output.presentation_meta(arguments, frozen), definition.name, "meta")
    return ToolSuccess(value=frozen, content=content, meta=meta)


def content_of(blocks: Iterable[ContentBlock], tool: str) -> Sequence[ContentBlock]:
    """Freeze content blocks.

    Raises:
        ToolOutputError: they are not a list of JSON objects with a type.
    """
    if type(blocks) is FrozenList:
        frozen: Any = blocks
    else:
        plain = isinstance(blocks, list | tuple)
        frozen = _lossless(list(blocks) if plain else blocks, tool, "content")
    if not isinstance(frozen, list) or not all(
        isinstance(block, dict) and isinstance(block.get("type"), str) for block in frozen
    ):
        raise ToolOutputError(["content must be a list of content blocks"], tool=tool)
    return frozen


def materialize(result: ToolResult, tool: str) -> ToolResult:
    """Make sure that every part of a result is frozen JSON.

    Raises:
        ToolOutputError: some part is not.
    """
    content = content_of(result.content, tool)
    meta = _lossless(result.meta, tool, "meta")
    if isinstance(result, ToolFailure):
        if content is result.content and meta is result.meta:
            return result
        return changed(result, content=content, meta=meta)
    value = _lossless(result.value, tool, "value")
    if content is result.content and meta is result.meta and value is result.value:
        return result
    return changed(result, content=content, meta=meta, value=value)


def blocked(feedback: Sequence[ContentBlock], contexts: tuple[UserMessage, ...]) -> ToolFailure:
    """The failure that a blocking post-execute decision makes of a result."""
    parts = [
        str(block.get("text", "")) if block["type"] == "text" else f"[{block['type']} content]"
        for block in feedback
    ]
    message = "\n".join(parts) or "a policy blocked this result after the tool had run"
    return ToolFailure(error=ToolError(message), content=feedback, additional_contexts=contexts)


def _text(text: str) -> Sequence[ContentBlock]:
    return FrozenList([FrozenDict({"type": "text", "text": text})])


def _lossless(value: object, tool: str, part: str) -> Any:
    try:
        return snapshot(value)
    except NotLossless as error:
        raise ToolOutputError(
            [f"its {part} is not lossless JSON at {error.path}: {error.problem}"], tool=tool
        ) from error
