"""Appends to several sessions at once, and says after each flush what is durable by then.

The first line it writes says that it is about to open the store. Each line after that is an
answer: the session, how many of its events are durable, and their digest.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import sys
from collections.abc import AsyncIterator
from typing import Any

from dsh.base.json import dumps
from dsh.model.chunks import text_delta
from dsh.model.messages import create_assistant_message, create_tool_result_message
from dsh.state.persistence.errors import SessionNotFound
from dsh.state.session.events import (
    ASSISTANT_MESSAGE,
    TOOL_CALL,
    TOOL_RESULT,
    AssistantMessageData,
    ToolCallData,
    ToolResultData,
)
from dsh.state.session.session import Session
from dsh.testing.persistence.logs import chunk, close_turn, open_turn, say
from dsh.testing.persistence.medium import Host, Medium

_LARGE = 300  # times a thousand characters that compress badly


async def main(plugin: str, config: str, seed: str, sessions: str) -> None:
    medium = Medium(plugin, json.loads(config))
    medium.load()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    host = await Host(medium).open()
    async with asyncio.TaskGroup() as writers:
        for number in range(int(sessions)):
            writers.create_task(write(host, f"s{number}", random.Random(f"{seed} {number}")))


async def write(host: Host, id: str, dice: random.Random) -> None:
    """Resume or create a session and let it grow for ever."""
    try:
        session = await host.resume(id)
    except SessionNotFound:
        session = host.store.create(id, meta={"cwd": f"/{id}"})
    digest, told = hashlib.sha256(), 0
    turn = sum(event["type"] == "turn/start" for event in session.events)
    while True:
        turn += 1
        async for _ in grow(session, turn, dice):
            await host.flush(session)
            for event in session.events[told:]:
                digest.update(dumps(event))
            told = session.seq
            sys.stdout.write(f"{id} {told} {digest.hexdigest()}\n")
            sys.stdout.flush()


async def grow(session: Session, turn: int, dice: random.Random) -> AsyncIterator[None]:
    """Append a turn with a tool call; yields where an agent would make the log durable."""
    open_turn(session, turn)
    say(session, f"question {turn}")
    if dice.random() < 0.1:
        # What is large is written in many steps, between which a kill can come.
        say(session, "".join(chr(dice.randrange(0x20, 0x2000)) for _ in range(1000)) * _LARGE)
    first = session.seq
    for number in range(dice.randrange(1, 100)):
        chunk(session, text_delta(0, f"word {number} "), turn)
        if dice.random() < 0.05:
            await asyncio.sleep(dice.random() * 0.002)  # the write-behind gets its turn
    call = {"id": f"c{turn}", "name": "bash", "arguments": "{}"}
    blocks: Any = [{"type": "tool-call", **call}]
    session.append(
        ASSISTANT_MESSAGE,
        AssistantMessageData(
            turn=turn, step=1, message=create_assistant_message(blocks, "rehearsal", "m1")
        ),
        surface_op="append",
        source_event_seqs=range(first, session.seq),
    )
    if dice.random() < 0.5:
        yield
    started = session.append(
        TOOL_CALL,
        ToolCallData(turn=turn, step=1, callId=call["id"], name="bash", arguments="{}"),
    )
    yield
    message = create_tool_result_message(call["id"], [{"type": "text", "text": "ok"}], False)
    session.append(
        TOOL_RESULT,
        ToolResultData(turn=turn, step=1, message=message),
        surface_op="append",
        source_event_seqs=[started["seq"]],
    )
    close_turn(session, turn)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
