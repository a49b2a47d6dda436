"""Merging of tool-call deltas, tolerant of the dialects that gateways speak.

Deltas of one call share a wire ``index``. Beyond that, seen in the wild and accepted: no index;
one index used for several calls; id or name null, empty or repeated; arguments before the name;
two calls with one id. What cannot be told apart safely is an error, never a merged call.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import Any

from dsh.base.json import loads
from dsh.model.chunks import StreamChunk, block_end, block_start, tool_call_delta
from dsh.model.failures import LlmError

__all__ = ["ToolCalls"]

_NUMBER = re.compile(r"[0-9]{1,9}")


class _Call:
    """One call under way."""

    __slots__ = ("arguments", "block", "id", "name", "wire_id")

    def __init__(self) -> None:
        self.wire_id: str | None = None
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.block: int | None = None
        """Number of its block once it was announced."""

    def has_whole_arguments(self) -> bool:
        """Say whether its arguments are a JSON object already, so that nothing may follow."""
        last = next((piece for piece in reversed(self.arguments) if not piece.isspace()), "")
        if not last.rstrip().endswith("}"):  # the usual case, without joining the pieces
            return False
        return _is_object("".join(self.arguments))


class ToolCalls:
    """The calls of one reply.

    Args:
        taken: Ids of calls that the conversation has already; a reply that repeats one gets
            another, so that results can be paired.
    """

    def __init__(self, taken: Container[str] = ()) -> None:
        self._taken = taken
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def push(self, entry: Mapping[str, Any], next_block: int, out: list[StreamChunk]) -> int:
        """Take one delta, append the chunks it gives to ``out``, return the next free block.

        Raises:
            LlmError: ``MALFORMED_RESPONSE``, a field has the wrong type.
        """
        function = entry.get("function") or {}
        if not isinstance(function, Mapping):
            raise _malformed("function", function)
        wire_id = _text_or_none(entry, "id")
        name = (_text_or_none(function, "name") or "").strip()
        arguments = _arguments(function)
        index = _index(entry.get("index"))
        call = self._call_for(index, wire_id, name, arguments)
        if call is None:
            return next_block
        if wire_id and call.wire_id is None:
            call.wire_id = wire_id
        if name:
            _extend_name(call, name)
        if arguments:
            call.arguments.append(arguments)
        if call.block is None:
            if not call.name or not (call.wire_id or call.arguments):
                return next_block
            next_block = self._announce(call, next_block, out)
        elif arguments:
            out.append(tool_call_delta(call.block, call.id, arguments))
        return next_block

    def close(self, next_block: int, out: list[StreamChunk], ends: list[StreamChunk]) -> int:
        """Announce to ``out`` what is not announced yet, put the end of each call into ``ends``.

        Returns:
            The next free block.

        Raises:
            LlmError: ``MALFORMED_RESPONSE``, a call has no name.
        """
        for position, call in enumerate(self._calls):
            if not call.name:
                raise LlmError(
                    f"the reply calls a tool without naming it (call {position + 1} of "
                    f"{len(self._calls)})",
                    code="MALFORMED_RESPONSE",
                )
            if call.block is None:
                next_block = self._announce(call, next_block, out)
        for call in self._calls:
            assert call.block is not None  # announced above
            ends.append(
                block_end(
                    call.block,
                    {
                        "type": "tool-call",
                        "id": call.id,
                        "name": call.name,
                        "arguments": "".join(call.arguments),
                    },
                )
            )
        return next_block

    def _call_for(
        self, index: int | None, wire_id: str | None, name: str | None, arguments: str
    ) -> _Call | None:
        """Return the call that a delta belongs to; ``None`` when it only repeats one."""
        if index is not None:
            call = self._by_index.get(index)
        else:
            call = self._with_id(wire_id) or (self._calls[-1] if self._calls else None)
        if call is not None and _has_another_id(call, wire_id):
            call = self._with_id(wire_id)
        if call is not None and name and call.name:
            if _repeats(call, wire_id, name, arguments):
                return None
            if _starts_another(call, wire_id, name, arguments):
                call = None
        if call is None:
            call = _Call()
            self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        return call

    def _with_id(self, wire_id: str | None) -> _Call | None:
        if not wire_id:
            return None
        return next((call for call in reversed(self._calls) if call.wire_id == wire_id), None)

    def _announce(self, call: _Call, block: int, out: list[StreamChunk]) -> int:
        call.block = block
        call.id = self._unique_id(call.wire_id or f"call-{block}")
        out.append(block_start(block, "tool-call"))
        out.append(tool_call_delta(block, call.id, "".join(call.arguments), call.name))
        return block + 1

    def _unique_id(self, wanted: str) -> str:
        used = {call.id for call in self._calls}
        candidate, number = wanted, 1
        while candidate in used or candidate in self._taken:
            number += 1
            candidate = f"{wanted}-{number}"
        return candidate


def _has_another_id(call: _Call, wire_id: str | None) -> bool:
    return bool(wire_id) and call.wire_id is not None and wire_id != call.wire_id


def _repeats(call: _Call, wire_id: str | None, name: str, arguments: str) -> bool:
    """Say whether a delta is a call, known in full, once more word for word."""
    same = bool(wire_id) and wire_id == call.wire_id and name == call.name
    return same and arguments == "".join(call.arguments) and _is_object(arguments)


def _starts_another(call: _Call, wire_id: str | None, name: str, arguments: str) -> bool:
    """Say whether a delta with a name, at the place of ``call``, must belong to another call.

    Raises:
        LlmError: ``MALFORMED_RESPONSE``, it may be either.
    """
    if name != call.name:
        return bool(call.arguments)
    if not call.has_whole_arguments():
        return False
    same_id = bool(wire_id) and wire_id == call.wire_id
    if not same_id:
        return True
    if not arguments or arguments.isspace():
        return False
    if _is_object(arguments):
        return True
    raise LlmError(
        f"the reply goes on with a call of {name!r} that was complete already",
        code="MALFORMED_RESPONSE",
    )


def _is_object(text: str) -> bool:
    try:
        return isinstance(loads(text), dict)
    except ValueError:
        return False


def _index(value: object) -> int | None:
    """Return the place that a delta names; some gateways send it as text."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return int(value)
    if value is None:
        return None
    if type(value) is int:
        return value
    raise _malformed("index", value)


def _extend_name(call: _Call, name: str) -> None:
    if name == call.name or (call.name and call.arguments):
        return
    call.name = name if name.startswith(call.name) else call.name + name


def _text_or_none(entry: Mapping[str, Any], key: str) -> str | None:
    value = entry.get(key)
    if value is None or isinstance(value, str):
        return value
    raise _malformed(key, value)


def _arguments(function: Mapping[str, Any]) -> str:
    value = function.get("arguments")
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    raise _malformed("arguments", value)


def _malformed(key: str, value: object) -> LlmError:
    return LlmError(
        f"a tool call of the reply has a {key!r} of type {type(value).__name__}",
        code="MALFORMED_RESPONSE",
    )
