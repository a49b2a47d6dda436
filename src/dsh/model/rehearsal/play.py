"""Plays a script: finds the reply for each request and checks what the script expects."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from typing import Literal

from dsh.base.json import dumps_str
from dsh.base.values import value
from dsh.model.rehearsal.reader import ScriptError
from dsh.model.rehearsal.template import Filler
from dsh.model.rehearsal.values import Conversation, Expectation, Fault, Reply, Script

__all__ = ["Line", "LineCall", "Play", "Seen", "SeenMessage"]

_SHOWN = 600


@value
class SeenMessage:
    """A message of a request, as far as scripts look at it."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str
    calls: tuple[tuple[str, str], ...] = ()
    """Id and tool name of each call of an assistant message."""
    call_id: str = ""
    is_error: bool | None = None
    """Of a tool result; ``None`` where the wire does not tell."""


@value
class Seen:
    """A request: its conversation and who asks."""

    messages: Sequence[SeenMessage]
    session: str | None = None
    model: str = ""

    def replies_after(self, position: int) -> int:
        """Return how many assistant messages follow the message at ``position``."""
        return sum(message.role == "assistant" for message in self.messages[position + 1 :])

    def last_reply(self) -> int:
        """Return the position of the last assistant message, or -1."""
        return max(
            (at for at, message in enumerate(self.messages) if message.role == "assistant"),
            default=-1,
        )


@value
class LineCall:
    """A tool call as it is sent."""

    id: str
    name: str
    arguments: str


@value
class Line:
    """A reply that is ready to be sent: slots filled, defaults applied."""

    place: str
    text: tuple[str, ...]
    reasoning: tuple[str, ...]
    calls: tuple[LineCall, ...]
    usage: Mapping[str, int]
    finish: str
    chunk_size: int
    delay_s: float
    first_delay_s: float
    comment_s: float | None = None
    quirks: frozenset[str] = frozenset()
    write_bytes: int | None = None
    fault: Fault | None = None
    pieces: tuple[tuple[str, int, str], ...] = field(default=())
    """What is streamed, in order: ``reasoning``, ``text`` or ``call``; number of the call; text."""


class Play:
    """One performance of a script, for any number of sessions at once.

    In the order ``arrival`` each request gets the next reply of its conversation and session. In
    the order ``history`` the number of assistant messages decides, so that sessions need no
    names and a conversation can be resumed with a new performance.

    Args:
        script: What to play.
        variables: Added to those of the script and stronger than they; ``cwd`` and ``python``
            are there without.
    """

    def __init__(self, script: Script, variables: Mapping[str, str] | None = None) -> None:
        self.script = script
        self._variables = {
            "cwd": os.getcwd(),  # noqa: PTH109
            "python": sys.executable,
            **script.variables,
            **(variables or {}),
        }
        self._cursors: dict[tuple[int, str | None], int] = {}
        self._attempts: dict[tuple[int, int], int] = {}
        self._played: set[tuple[int, int]] = set()
        self._sent = 0

    @property
    def unplayed(self) -> list[str]:
        """The places of replies that no request has got yet."""
        return [
            reply.place
            for number, conversation in enumerate(self.script.conversations)
            for at, reply in enumerate(conversation.replies)
            if (number, at) not in self._played
        ]

    def next(self, seen: Seen) -> Line:
        """Return the reply to a request.

        Raises:
            ScriptError: ``REHEARSAL_MISMATCH`` (a result differs from what is expected, or no
                conversation matches), or ``REHEARSAL_EXHAUSTED``. The reply stays the next one.
        """
        number, since = self._conversation(seen)
        conversation = self.script.conversations[number]
        if self.script.order == "history":
            at = self._by_history(number, conversation, seen, since)
        else:
            at = self._cursors.get((number, seen.session), 0)
        if at >= len(conversation.replies):
            raise ScriptError(
                f"{self.script.source}: {conversation.place}",
                f"the script has no reply left: {at} were given",
                code="REHEARSAL_EXHAUSTED",
            )
        reply = conversation.replies[at]
        filler = Filler(self._variables, [message.text for message in seen.messages], reply.place)
        self._check(reply, seen, filler)
        line = self._line(reply, filler, seen)
        self._cursors[number, seen.session] = at + 1
        self._played.add((number, at))
        return line

    def _conversation(self, seen: Seen) -> tuple[int, int]:
        """Return the conversation that answers, and the position of the message it matched."""
        best: tuple[int, int] | None = None
        for number, conversation in enumerate(self.script.conversations):
            if conversation.session is not None and not (
                seen.session and conversation.session.search(seen.session)
            ):
                continue
            at = _matched(conversation, seen)
            if at is not None and (best is None or at > best[1]):
                best = number, at
        if best is None:
            last = next((m.text for m in reversed(seen.messages) if m.role == "user"), "")
            raise ScriptError(
                self.script.source,
                f"no conversation matches; the last user message is {_short(last)!r}",
                code="REHEARSAL_MISMATCH",
            )
        return best

    def _by_history(self, number: int, conversation: Conversation, seen: Seen, since: int) -> int:
        """Return the reply for this length of history; each further attempt passes one fault."""
        starts = [0] + [
            at + 1 for at, reply in enumerate(conversation.replies) if reply.fault is None
        ]
        step = seen.replies_after(since)
        if step >= len(starts) or starts[step] >= len(conversation.replies):
            return len(conversation.replies)
        ends = dict(pairwise([*starts, len(conversation.replies)]))
        key = number, hash((seen.session, tuple(seen.messages)))
        attempt = self._attempts.get(key, 0)
        self._attempts[key] = attempt + 1
        return min(starts[step] + attempt, ends[starts[step]] - 1)

    def _check(self, reply: Reply, seen: Seen, filler: Filler) -> None:
        last = seen.last_reply()
        calls = seen.messages[last].calls if last >= 0 else ()
        results = {m.call_id: m for m in seen.messages[last + 1 :] if m.role == "tool"}
        for number, (call_id, tool) in enumerate(calls, start=1):
            if call_id not in results:
                raise _mismatch(
                    reply.place, f"call {number} ({tool})", "its result", "a request without it"
                )
        for number, expectation in enumerate(reply.expect, start=1):
            found = _called(expectation, number, calls)
            if found is None:
                had = ", ".join(tool for _, tool in calls) or "no call at all"
                wanted = expectation.call or number
                raise _mismatch(expectation.place, f"call {wanted!r}", "its result", had)
            _compare(expectation, found, calls[found - 1][1], results[calls[found - 1][0]], filler)

    def _line(self, reply: Reply, filler: Filler, seen: Seen) -> Line:
        self._sent += 1
        size = reply.chunk_size or self.script.chunk_size
        text = _cut([filler.text(part) for part in reply.text], size)
        reasoning = _cut([filler.text(part) for part in reply.reasoning], size)
        calls = []
        for number, call in enumerate(reply.calls):
            if call.raw_arguments is not None:
                arguments = filler.text(call.raw_arguments)
            else:
                arguments = dumps_str(filler.value(call.arguments or {}))
            call_id = call.id or f"call_{self._sent}_{number}"
            calls.append(LineCall(call_id, filler.text(call.name), arguments))
        pieces = [("reasoning", 0, part) for part in reasoning]
        pieces += [("text", 0, part) for part in text]
        for number, ready in enumerate(calls):
            pieces += [("call", number, part) for part in _cut([ready.arguments], size) or ("",)]
        delay_ms = self.script.delay_ms if reply.delay_ms is None else reply.delay_ms
        return Line(
            place=reply.place,
            text=text,
            reasoning=reasoning,
            calls=tuple(calls),
            usage=_usage(reply, seen, pieces),
            finish=reply.finish or ("tool_calls" if calls else "stop"),
            chunk_size=size,
            delay_s=delay_ms / 1000,
            first_delay_s=(reply.first_delay_ms or 0) / 1000,
            comment_s=None if reply.comment_ms is None else reply.comment_ms / 1000,
            quirks=reply.quirks,
            write_bytes=reply.write_bytes,
            fault=reply.fault,
            pieces=tuple(pieces),
        )


def _matched(conversation: Conversation, seen: Seen) -> int | None:
    """Return the position of the latest user message that matches; -1 where any request does."""
    if conversation.when is None:
        return -1
    for at in range(len(seen.messages) - 1, -1, -1):
        message = seen.messages[at]
        if message.role == "user" and conversation.when.problem(message.text) is None:
            return at
    return None


def _called(expectation: Expectation, number: int, calls: Sequence[tuple[str, str]]) -> int | None:
    """Return which call, from 1, an expectation is about."""
    wanted = number if expectation.call is None else expectation.call
    if isinstance(wanted, int):
        return wanted if wanted <= len(calls) else None
    names = [tool for _, tool in calls]
    return names.index(wanted) + 1 if wanted in names else None


def _compare(
    expectation: Expectation, number: int, tool: str, result: SeenMessage, filler: Filler
) -> None:
    what = f"the result of call {number} ({tool})"
    text = expectation.text
    for part in text.contains:
        if (wanted := filler.text(part)) not in result.text:
            raise _mismatch(expectation.place, what, f"text that contains {wanted!r}", result.text)
    for part in text.not_contains:
        if (unwanted := filler.text(part)) in result.text:
            raise _mismatch(expectation.place, what, f"text without {unwanted!r}", result.text)
    if text.matches is not None and text.matches.search(result.text) is None:
        wanted = f"text that matches {text.matches.pattern!r}"
        raise _mismatch(expectation.place, what, wanted, result.text)
    if expectation.is_error is None or result.is_error is None:
        return
    if expectation.is_error != result.is_error:
        wanted = "an error" if expectation.is_error else "success"
        raise _mismatch(expectation.place, what, wanted, result.text)


def _mismatch(place: str, what: str, expected: str, got: str) -> ScriptError:
    return ScriptError(
        place,
        f"{what} is not what the script expects; expected {expected}, got {_short(got)!r}",
        code="REHEARSAL_MISMATCH",
    )


def _usage(reply: Reply, seen: Seen, pieces: Sequence[tuple[str, int, str]]) -> Mapping[str, int]:
    if reply.usage is not None:
        return reply.usage
    asked = sum(len(message.text) for message in seen.messages)
    said = sum(len(part) for _, _, part in pieces)
    return {"input": asked // 4 + 1, "output": said // 4 + 1}


def _cut(parts: Sequence[str], size: int) -> tuple[str, ...]:
    """Cut one text into chunks; several parts are chunks already."""
    if len(parts) != 1:
        return tuple(parts)
    text = parts[0]
    return tuple(text[at : at + size] for at in range(0, len(text), size))


def _short(text: str) -> str:
    if len(text) <= _SHOWN:
        return text
    half = _SHOWN // 2
    return f"{text[:half]} [...] {text[-half:]}"
