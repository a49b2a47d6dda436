"""The loader of rehearsal scripts: checks a document and names the place of every mistake."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dsh.base.json import loads
from dsh.base.values import changed
from dsh.model.rehearsal.reader import Node, ScriptError
from dsh.model.rehearsal.values import (
    FAULT_KINDS,
    QUIRKS,
    Conversation,
    Expectation,
    Fault,
    FaultKind,
    Matcher,
    Reply,
    Script,
    ScriptedCall,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    _D = TypeVar("_D", bound=DataclassInstance)

__all__ = ["load_script", "parse_script"]


def load_script(path: str | Path) -> Script:
    """Read a script from a YAML or JSON file.

    Raises:
        ScriptError: the file cannot be read, or what is wrong and where in it.
    """
    path = Path(path)
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeError) as error:
        raise ScriptError(str(path), f"cannot read the script: {error}") from error
    return parse_script(_document(text, path), str(path))


def parse_script(document: Any, source: str = "script") -> Script:
    """Check a document and return the script it describes.

    Raises:
        ScriptError: names the place and the problem.
    """
    try:
        return _script(Node(document, "script"), source)
    except ScriptError as error:
        if source == "script":
            raise
        raise ScriptError(f"{source}: {error.place}", error.problem) from None


def _document(text: str, path: Path) -> Any:
    if path.suffix == ".json":
        try:
            return loads(text)
        except ValueError as error:
            raise ScriptError(str(path), f"not JSON: {error}") from error
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ScriptError(str(path), f"not YAML: {' '.join(str(error).split())}") from error


def _script(node: Node, source: str) -> Script:
    fields = node.fields(
        "title", "order", "vars", "models", "api_key", "chunk_size", "delay_ms", "replies",
        "conversations",
    )  # fmt: skip
    if ("replies" in fields) == ("conversations" in fields):
        node.fail("needs either 'replies' or 'conversations'")
    if "replies" in fields:
        conversations: tuple[Conversation, ...] = (
            Conversation("script", _replies(fields["replies"])),
        )
    else:
        conversations = tuple(_conversation(item) for item in fields["conversations"].items())
    script = Script(source, conversations)
    variables = fields.get("vars", Node({}, "vars"))
    return _changed(
        script,
        title=fields["title"].text() if "title" in fields else None,
        order=fields["order"].choice("arrival", "history") if "order" in fields else None,
        variables={key: item.text() for key, item in variables.fields(*variables.value).items()},
        models=fields["models"].texts() if "models" in fields else None,
        api_key=fields["api_key"].text() if "api_key" in fields else None,
        chunk_size=fields["chunk_size"].whole(least=1) if "chunk_size" in fields else None,
        delay_ms=fields["delay_ms"].number() if "delay_ms" in fields else None,
    )


def _conversation(node: Node) -> Conversation:
    fields = node.fields("when", "session", "replies")
    if "replies" not in fields:
        node.fail("has no 'replies'")
    return Conversation(
        node.place,
        _replies(fields["replies"]),
        when=_matcher(fields["when"]) if "when" in fields else None,
        session=_pattern(fields["session"]) if "session" in fields else None,
    )


def _replies(node: Node) -> tuple[Reply, ...]:
    replies = [_reply(item) for item in node.items()]
    if not replies:
        node.fail("is empty")
    return tuple(reply for reply in replies for _ in range(reply.repeat))


def _reply(node: Node) -> Reply:
    fields = node.fields(
        "text", "reasoning", "calls", "expect", "chunk_size", "delay_ms", "first_delay_ms",
        "comment_ms", "usage", "finish", "quirks", "write_bytes", "fault", "repeat",
    )  # fmt: skip
    usage = fields.get("usage")
    return _changed(
        Reply(node.place),
        text=fields["text"].texts() if "text" in fields else None,
        reasoning=fields["reasoning"].texts() if "reasoning" in fields else None,
        calls=tuple(map(_call, fields["calls"].items())) if "calls" in fields else None,
        expect=tuple(map(_expectation, fields["expect"].one_or_many()))
        if "expect" in fields
        else None,
        chunk_size=fields["chunk_size"].whole(least=1) if "chunk_size" in fields else None,
        delay_ms=fields["delay_ms"].number() if "delay_ms" in fields else None,
        comment_ms=fields["comment_ms"].number() if "comment_ms" in fields else None,
        first_delay_ms=fields["first_delay_ms"].number() if "first_delay_ms" in fields else None,
        usage={
            key: item.whole()
            for key, item in usage.fields("input", "output", "cache_read", "reasoning").items()
        }
        if usage
        else None,
        finish=fields["finish"].text() if "finish" in fields else None,
        quirks=frozenset(item.choice(*QUIRKS) for item in fields["quirks"].one_or_many())
        if "quirks" in fields
        else None,
        write_bytes=fields["write_bytes"].whole(least=1) if "write_bytes" in fields else None,
        fault=_fault(fields["fault"]) if "fault" in fields else None,
        repeat=fields["repeat"].whole(least=1) if "repeat" in fields else None,
    )


def _call(node: Node) -> ScriptedCall:
    fields = node.fields("name", "arguments", "raw_arguments", "id")
    if "name" not in fields:
        node.fail("has no 'name'")
    if "arguments" in fields and "raw_arguments" in fields:
        node.fail("has both 'arguments' and 'raw_arguments'")
    arguments = fields.get("arguments")
    if arguments is not None and not isinstance(arguments.value, Mapping):
        arguments.fail("must be a mapping; use 'raw_arguments' for other text")
    return ScriptedCall(
        fields["name"].text(),
        arguments.json_object() if arguments is not None else None,
        fields["raw_arguments"].text() if "raw_arguments" in fields else None,
        fields["id"].text() if "id" in fields else None,
    )


_MATCHER_KEYS = ("contains", "not_contains", "matches")


def _expectation(node: Node) -> Expectation:
    fields = node.fields("call", "is_error", *_MATCHER_KEYS)
    call: str | int | None = None
    if "call" in fields:
        named = fields["call"]
        call = named.whole(least=1) if isinstance(named.value, int) else named.text()
    return Expectation(
        node.place,
        call,
        _matcher_of(fields),
        fields["is_error"].flag() if "is_error" in fields else None,
    )


def _matcher(node: Node) -> Matcher:
    if isinstance(node.value, str):
        return Matcher(contains=(node.value,))
    return _matcher_of(node.fields(*_MATCHER_KEYS))


def _matcher_of(fields: Mapping[str, Node]) -> Matcher:
    return Matcher(
        fields["contains"].texts() if "contains" in fields else (),
        fields["not_contains"].texts() if "not_contains" in fields else (),
        _pattern(fields["matches"]) if "matches" in fields else None,
    )


def _pattern(node: Node) -> re.Pattern[str]:
    try:
        return re.compile(node.text(), re.MULTILINE)
    except re.error as error:
        node.fail(f"is no regular expression: {error}")


def _fault(node: Node) -> Fault:
    fields = node.fields(
        *FAULT_KINDS, "after", "message", "code", "retry_after", "request_id", "seconds",
        "content_type",
    )  # fmt: skip
    named = [kind for kind in FAULT_KINDS if kind in fields]
    if len(named) != 1:
        node.fail(f"needs exactly one of {', '.join(FAULT_KINDS)}")
    kind = named[0]
    return _changed(
        Fault(kind),
        **{
            "after": fields["after"].whole() if "after" in fields else None,
            "message": fields["message"].text() if "message" in fields else None,
            **_subject(kind, fields[kind]),
        },
        code=fields["code"].text() if "code" in fields else None,
        retry_after=fields["retry_after"].line() if "retry_after" in fields else None,
        request_id=fields["request_id"].line() if "request_id" in fields else None,
        seconds=fields["seconds"].number() if "seconds" in fields else None,
        content_type=fields["content_type"].line() if "content_type" in fields else None,
    )


def _subject(kind: FaultKind, node: Node) -> dict[str, Any]:
    """Return what the value of the key that names the fault means."""
    if kind == "status":
        status = node.whole(least=200)
        return {"status": status} if status <= 599 else node.fail("must be at most 599")
    if kind in ("cut", "close", "stall"):
        return {"after": node.whole()}
    if kind in ("malformed", "body"):
        return {"data": node.text()}
    if kind == "error":
        return {"message": node.text()}
    if not node.flag():
        node.fail("must be true")
    return {}


def _changed(value: _D, **changes: Any) -> _D:
    """Return ``value`` with the changes that are not ``None``."""
    return changed(value, **{key: item for key, item in changes.items() if item is not None})
