"""Merging of tool-call deltas, tolerant of the dialects that gateways speak.

Deltas of one call share a wire ``index``. Beyond that, seen in the wild and accepted: no index;
one index used for several calls; id or name null, empty or repeated; arguments before the name;
two calls with one id. What cannot be told apart safely is an error, never a merged call.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from dsh.base.json import loads
from dsh.model.chunks import StreamChunk, block_end, block_start, tool_call_delta
from dsh.model.failures import LlmError

__all__ = ["ToolCalls"]


class _Call:
    """One call under way."""

    __slots__ = ("arguments", "block", "held", "id", "index", "name", "wire_id")

    def __init__(self, index: object) -> None:
        self.index = index
        self.wire_id: str | None = None
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.block: int | None = None
        """Number of its block once it was announced."""
        self.held = 0
        """How many pieces of ``arguments`` were streamed."""

    def has_whole_arguments(self) -> bool:
        """Say whether its arguments are a JSON object already, so that nothing may follow."""
        text = "".join(self.arguments).strip()
        if not text.endswith("}"):
            return False
        try:
            return isinstance(loads(text), dict)
        except ValueError:
            return False


class ToolCalls:
    """The calls of one reply.

    Args:
        taken: Ids of calls that the conversation has already; a reply that repeats one gets
            another, so that results can be paired.
    """

    def __init__(self, taken: Container[str] = ()) -> None:
        self._taken = taken
        self._calls: list[_Call] = []
        self._by_index: dict[object, _Call] = {}

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
        name = _text_or_none(function, "name")
        arguments = _arguments(function)
        call = self._call_for(entry.get("index"), wire_id, name)
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
            call.held = len(call.arguments)
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

    def _call_for(self, index: object, wire_id: str | None, name: str | None) -> _Call:
        if index is None:
            call = self._without_index(wire_id, name)
        else:
            call = self._by_index.get(index)
            if call is not None and _starts_another(call, wire_id, name):
                call = self._with_id(wire_id)
        if call is None:
            call = _Call(index)
            self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        return call

    def _without_index(self, wire_id: str | None, name: str | None) -> _Call | None:
        if wire_id and (known := self._with_id(wire_id)) is not None:
            return known
        last = self._calls[-1] if self._calls else None
        if last is None or _starts_another(last, wire_id, name):
            return None
        return last

    def _with_id(self, wire_id: str | None) -> _Call | None:
        if not wire_id:
            return None
        return next((call for call in self._calls if call.wire_id == wire_id), None)

    def _announce(self, call: _Call, block: int, out: list[StreamChunk]) -> int:
        call.block = block
        call.id = self._unique_id(call.wire_id or f"call-{block}")
        out.append(block_start(block, "tool-call"))
        out.append(tool_call_delta(block, call.id, "".join(call.arguments), call.name))
        call.held = len(call.arguments)
        return block + 1

    def _unique_id(self, wanted: str) -> str:
        used = {call.id for call in self._calls}
        candidate, number = wanted, 1
        while candidate in used or candidate in self._taken:
            number += 1
            candidate = f"{wanted}-{number}"
        return candidate


def _starts_another(call: _Call, wire_id: str | None, name: str | None) -> bool:
    """Say whether a delta at the place of ``call`` must belong to another call."""
    if wire_id and call.wire_id and wire_id != call.wire_id:
        return True
    if not name or not call.name:
        return False
    same_id = bool(wire_id) and wire_id == call.wire_id
    if name != call.name:
        return not same_id and bool(call.arguments)
    return not same_id and call.has_whole_arguments()


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
