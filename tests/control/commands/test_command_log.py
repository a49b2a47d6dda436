"""What every log may say of commands, whatever happened to them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from command_bench import Bench, mount
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh.base.signal import AbortController
from dsh.control.commands import Command, CommandFailure, CommandRuntime, CommandSuccess
from dsh.control.commands.events import COMMAND_DONE, COMMAND_RUN, CommandDone, CommandRun
from dsh.control.commands.log import CommandLog
from dsh.control.commands.runtime import LayeredCommands
from dsh.kernel import Context
from dsh.state.session.events import TURN_START, TurnStartData
from dsh.state.session.nesting import BrokenInvariant


def run(id: str) -> CommandRun:
    return CommandRun(commandId=id, name="do", args="", source={"kind": "user"})


def end(id: str, **fields: Any) -> CommandDone:
    fields = {"kind": "success", **fields}
    return CommandDone(commandId=id, **fields)  # type: ignore[typeddict-item]


async def test_an_id_is_used_once(bench: Bench) -> None:
    session = bench.agent.session
    session.append(COMMAND_RUN, run("a"))
    session.append(COMMAND_DONE, end("a"))
    with pytest.raises(BrokenInvariant, match="'a' is taken"):
        session.append(COMMAND_RUN, run("a"))


async def test_an_end_needs_its_run_and_comes_once(bench: Bench) -> None:
    session = bench.agent.session
    with pytest.raises(BrokenInvariant, match="no run of the command id 'a' is open"):
        session.append(COMMAND_DONE, end("a"))
    session.append(COMMAND_RUN, run("a"))
    session.append(COMMAND_DONE, end("a"))
    with pytest.raises(BrokenInvariant, match="is open"):
        session.append(COMMAND_DONE, end("a"))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"sourceEventSeq": 1}, "no earlier event"),
        ({"sourceEventSeq": 2}, "no earlier event"),
        ({"sourceEventSeq": -1}, "no earlier event"),
        ({"sourceEventSeq": 0, "kind": "error", "text": "x"}, "an error has no source event"),
    ],
)
async def test_an_end_names_an_earlier_event_or_none(
    bench: Bench, fields: dict[str, Any], problem: str
) -> None:
    session = bench.agent.session
    session.append(TURN_START, TurnStartData(turn=1))
    session.append(COMMAND_RUN, run("a"))
    with pytest.raises(BrokenInvariant, match=problem):
        session.append(COMMAND_DONE, end("a", **fields))
    session.append(COMMAND_DONE, end("a", sourceEventSeq=0))


async def test_a_run_that_was_never_settled_is_no_fault(bench: Bench) -> None:
    session = bench.agent.session
    session.append(COMMAND_RUN, run("a"))
    session.append(COMMAND_RUN, run("b"))
    session.append(COMMAND_DONE, end("b"))
    log = CommandLog()
    for event in session.events:
        assert log.problem(event) is None
        log.read(event)
    assert (log.count, log.unsettled) == (3, {"a"})


async def _succeed(_: object) -> Any:
    return CommandSuccess()


async def _point(invocation: Any) -> Any:
    turns = [e["seq"] for e in invocation.agent.session.events if e["type"] == "turn/start"]
    return CommandSuccess("see there", turns[-1] if turns else None)


async def _fail(_: object) -> Any:
    await asyncio.sleep(0)
    return CommandFailure("no")


async def _raise(_: object) -> Any:
    raise RuntimeError("broken")


async def _point_wrong(_: object) -> Any:
    return CommandSuccess(source_event_seq=10_000)


async def _junk(_: object) -> Any:
    await asyncio.sleep(0)
    return 7


async def _long(_: object) -> Any:
    for _turn in range(5):
        await asyncio.sleep(0)
    return CommandSuccess("long")


HANDLERS = {
    "succeed": _succeed,
    "point": _point,
    "fail": _fail,
    "raise": _raise,
    "point-wrong": _point_wrong,
    "junk": _junk,
    "long": _long,
}
ENTERED = st.tuples(
    st.sampled_from(sorted(HANDLERS)), st.booleans(), st.sampled_from(["", "abort", "cancel"])
)
"""A command, which of two instances runs it, and what is done to it while it may run."""


async def play(root: Context, entered: list[tuple[str, bool, str]]) -> list[Any]:
    """Enter commands at two instances over one session, all at once; return the log."""
    bench = await mount(root)
    both = (bench.commands, await second_instance(bench))
    for commands in both:
        for name, handler in HANDLERS.items():
            commands.register(Command(name, "A handler.", handler))
    bench.agent.session.append(TURN_START, TurnStartData(turn=1))
    running = []
    for name, at_other, fate in entered:
        controller = AbortController()
        entering = both[at_other].execute(bench.agent, f"/{name} x", (), controller.signal)
        running.append(asyncio.create_task(entering))
        await asyncio.sleep(0)
        if fate == "abort":
            controller.abort()
        elif fate == "cancel":
            running[-1].cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return list(bench.agent.session.events)


async def second_instance(bench: Bench) -> CommandRuntime:
    """Another runtime in a realm of its own, as another process would be over the same log."""
    realm = bench.root.isolate("commands")
    await realm.plugin(_Declared)
    reader: list[Context] = []
    await realm.inject([CommandRuntime], reader.append)
    return reader[0].require(CommandRuntime)


class _Declared(LayeredCommands):
    """Its session events are declared by the first instance."""

    def start(self) -> None:
        return None


@settings(max_examples=40, deadline=None)
@given(st.lists(ENTERED, max_size=12))
def test_every_log_pairs_its_runs_and_repeats_no_id(entered: list[tuple[str, bool, str]]) -> None:
    async def main() -> list[Any]:
        root = Context()
        try:
            return await play(root, entered)
        finally:
            await root.dispose()

    events = asyncio.run(main())
    log = CommandLog()
    for event in events:
        assert log.problem(event) is None
        log.read(event)
    assert log.unsettled == frozenset()
    ids = [event["data"]["commandId"] for event in events if event["type"] == "command/run"]
    assert len(set(ids)) == len(ids) == len(entered)
