"""Running commands: what is logged, what comes back, and what an abort does."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_bench import Bench, mount

from dsh.base.signal import AbortedError
from dsh.capability.attachments.local import AttachmentConfig, LocalAttachments
from dsh.capability.attachments.service import AttachmentError
from dsh.control.commands import (
    Command,
    CommandFailure,
    CommandInput,
    CommandInterrupted,
    CommandInvocation,
    CommandRuntime,
    CommandSuccess,
    InvalidCommandResult,
)
from dsh.control.commands.runtime import LayeredCommands
from dsh.kernel import INTERNAL_DISPATCH, Context, Dispatching, StrayExit
from dsh.model.messages import create_user_message
from dsh.state.session.events import (
    SESSION_EVENT,
    STEP_END,
    STEP_START,
    TURN_END,
    TURN_START,
    USER_MESSAGE,
    StepData,
    TurnEndData,
    TurnStartData,
)


class Held:
    """A handler that waits to be let go."""

    def __init__(self, then: Callable[[], Any] = CommandSuccess) -> None:
        self.entered, self.go, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.then = then

    async def __call__(self, invocation: CommandInvocation) -> Any:
        self.entered.set()
        try:
            await self.go.wait()
            return self.then()
        finally:
            self.ended.set()


def png(width: int = 2) -> dict[str, str]:
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (width, 2), "red").save(out, "PNG")
    return {"mediaType": "image/png", "data": base64.b64encode(out.getvalue()).decode()}


@pytest.mark.parametrize("line", ["hello", "/nothing", " /do", "/Do", "/do/it", "/"])
async def test_a_line_that_names_no_command_is_left_alone(bench: Bench, line: str) -> None:
    bench.add()
    assert await bench.run(line) is None
    bench.controller.abort()
    assert await bench.run(line) is None
    assert bench.log() == []


async def test_an_aborted_caller_runs_nothing_and_logs_nothing(bench: Bench) -> None:
    ran: list[object] = []
    bench.add(ran.append)  # type: ignore[arg-type]
    bench.controller.abort(ValueError("changed my mind"))
    with pytest.raises(ValueError, match="changed my mind"):
        await bench.run()
    assert (ran, bench.log()) == ([], [])


async def test_a_use_is_logged_as_a_pair(bench: Bench) -> None:
    bench.add(input=CommandInput("<text>"))
    execution = await bench.run("/do  this\n")
    assert execution is not None
    used = execution.command_id
    assert bench.log() == [
        (
            "command/run",
            {"commandId": used, "name": "do", "args": "  this\n", "source": {"kind": "user"}},
        ),
        ("command/done", {"commandId": used, "kind": "success", "text": "done"}),
    ]
    assert execution.wire() == {"commandId": used, "result": {"kind": "success", "text": "done"}}


async def test_private_input_reaches_the_handler_and_not_the_log(bench: Bench) -> None:
    seen: list[str] = []

    def handler(invocation: CommandInvocation) -> CommandSuccess:
        seen.append(invocation.raw_input)
        return CommandSuccess()

    bench.add(handler, record_input=False)
    await bench.run("/do secret")
    assert seen == [" secret"]
    assert "secret" not in str(bench.log())
    assert "args" not in bench.log()[0][1]


async def test_a_handler_sees_what_it_needs_and_cannot_change_it(bench: Bench) -> None:
    seen: list[CommandInvocation] = []

    async def handler(invocation: CommandInvocation) -> CommandSuccess:
        seen.append(invocation)
        return CommandSuccess()

    bench.add(handler)
    execution = await bench.run("/do x")
    assert execution is not None
    [invocation] = seen
    assert invocation.command_id == execution.command_id
    assert invocation.agent is bench.agent
    assert (invocation.raw_input, invocation.attachments) == (" x", ())
    assert invocation.signal is bench.controller.signal
    with pytest.raises(AttributeError, match="does not change"):
        invocation.raw_input = "y"  # type: ignore[misc]


async def test_the_signal_may_be_left_out(bench: Bench) -> None:
    bench.add()
    execution = await bench.commands.execute(bench.agent, "/do")
    assert execution is not None
    assert execution.result == CommandSuccess("done")


async def test_a_failure_is_a_result_and_no_exception(bench: Bench) -> None:
    bench.add(lambda _: CommandFailure("usage: /do <text>"))
    execution = await bench.run()
    assert execution is not None
    assert execution.result == CommandFailure("usage: /do <text>")
    assert bench.ends() == [
        {"commandId": execution.command_id, "kind": "error", "text": "usage: /do <text>"}
    ]


async def test_a_result_may_point_at_what_the_command_logged(bench: Bench) -> None:
    def handler(invocation: CommandInvocation) -> CommandSuccess:
        event = invocation.agent.session.append(TURN_START, TurnStartData(turn=1))
        return CommandSuccess(source_event_seq=event["seq"])

    bench.add(handler)
    execution = await bench.run()
    assert execution is not None
    assert execution.wire()["result"] == {"kind": "success", "sourceEventSeq": 1}
    assert bench.ends()[0]["sourceEventSeq"] == 1


@pytest.mark.parametrize("seq", [-1, 1, 2, 3, 4, 99, False, 0.0, "0"])
async def test_a_result_may_not_point_at_a_command_or_at_nothing(bench: Bench, seq: Any) -> None:
    bench.agent.session.append(TURN_START, TurnStartData(turn=1))
    bench.add(name="before")
    await bench.run("/before")
    bench.add(lambda _: CommandSuccess(source_event_seq=seq))
    with pytest.raises(InvalidCommandResult, match="source_event_seq"):
        await bench.run()
    assert [end["kind"] for end in bench.ends()] == ["success", "error"]


@pytest.mark.parametrize(
    "junk",
    [
        None,
        "done",
        {"kind": "success"},
        ValueError("x"),
        CommandSuccess(1),
        CommandFailure(None),
        CommandSuccess,
    ],  # type: ignore[arg-type]
)
async def test_what_is_no_result_is_a_type_error_that_names_the_command(
    bench: Bench, junk: Any
) -> None:
    bench.add(lambda _: junk)
    with pytest.raises(TypeError, match="/do returned no valid result"):
        await bench.run()
    assert [end["kind"] for end in bench.ends()] == ["error"]


def _raise(_: object) -> Any:
    raise KeyError("broken")


async def _raise_later(_: object) -> Any:
    await asyncio.sleep(0)
    raise KeyError("broken")


@pytest.mark.parametrize("handler", [_raise, _raise_later])
async def test_what_a_handler_raises_is_logged_and_reaches_the_caller(
    bench: Bench, handler: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bench.add(handler)
    with pytest.raises(KeyError, match="broken"):
        await bench.run()
    assert [(end["kind"], end["text"]) for end in bench.ends()] == [("error", "'broken'")]
    assert caplog.records == []


def refuse(bench: Bench, type: str) -> None:
    """Let the log take no event of a type."""

    def veto(dispatching: Dispatching) -> None:
        if dispatching.name == SESSION_EVENT.name and dispatching.payload.event["type"] == type:
            raise OSError("disk full")

    bench.root.on(INTERNAL_DISPATCH, veto)


async def test_a_log_that_refuses_the_run_stops_the_command(bench: Bench) -> None:
    ran: list[object] = []
    bench.add(ran.append)  # type: ignore[arg-type]
    refuse(bench, "command/run")
    with pytest.raises(OSError, match="disk full"):
        await bench.run()
    assert (ran, bench.log()) == ([], [])


async def test_a_log_that_refuses_the_end_does_not_hide_the_failure(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.add(_raise)
    refuse(bench, "command/done")
    with pytest.raises(KeyError, match="broken"):
        await bench.run()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_a_log_that_refuses_the_end_of_a_success_is_loud(bench: Bench) -> None:
    bench.add()
    refuse(bench, "command/done")
    with pytest.raises(OSError, match="disk full"):
        await bench.run()


async def test_an_abort_ends_the_wait_and_the_handler_runs_on(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def late() -> Any:
        raise RuntimeError("late")

    held = Held(late)
    bench.add(held)
    with caplog.at_level(logging.INFO):
        running = asyncio.create_task(bench.run())
        await held.entered.wait()
        bench.controller.abort()
        with pytest.raises(AbortedError):
            await running
        assert not held.ended.is_set()
        assert [end["kind"] for end in bench.ends()] == ["error"]
        held.go.set()
        await held.ended.wait()
        await asyncio.sleep(0)
    assert len(bench.ends()) == 1
    assert caplog.records == []


async def test_the_reason_of_an_abort_is_what_the_caller_gets(bench: Bench) -> None:
    held = Held()
    bench.add(held)
    running = asyncio.create_task(bench.run())
    await held.entered.wait()
    bench.controller.abort(ValueError("enough"))
    with pytest.raises(ValueError, match="enough"):
        await running
    assert bench.ends()[0]["text"] == "enough"
    held.go.set()
    await held.ended.wait()


@pytest.mark.parametrize("is_async", [False, True])
async def test_an_abort_from_inside_the_handler_is_observed(bench: Bench, is_async: bool) -> None:
    def abort(invocation: CommandInvocation) -> CommandSuccess:
        bench.controller.abort()
        return CommandSuccess("never told")

    async def abort_later(invocation: CommandInvocation) -> CommandSuccess:
        return abort(invocation)

    bench.add(abort_later if is_async else abort)
    with pytest.raises(AbortedError):
        await bench.run()
    assert [end["kind"] for end in bench.ends()] == ["error"]


def _cancel_own_task(_: object) -> Any:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


@pytest.mark.parametrize("reason", [ValueError("enough"), KeyboardInterrupt("enough")])
@pytest.mark.parametrize("end", [_raise, _cancel_own_task])
async def test_the_reason_of_an_abort_counts_more_than_what_the_handler_makes_of_it(
    bench: Bench, reason: BaseException, end: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(invocation: CommandInvocation) -> Any:
        bench.controller.abort(reason)
        return end(invocation)

    bench.add(handler)
    with pytest.raises(type(reason), match="enough"):
        await bench.run()
    assert [end["text"] for end in bench.ends()] == ["enough"]
    assert caplog.records == []


async def test_an_abort_before_the_handler_begins_keeps_it_from_running(bench: Bench) -> None:
    ran: list[object] = []
    bench.add(ran.append)  # type: ignore[arg-type]
    bench.root.on(SESSION_EVENT, lambda _: bench.controller.abort())
    with pytest.raises(AbortedError):
        await bench.run()
    for _ in range(5):
        await asyncio.sleep(0)
    assert (ran, [end["kind"] for end in bench.ends()]) == ([], ["error"])


async def test_an_abort_after_the_handler_ended_changes_nothing(bench: Bench) -> None:
    def handler(invocation: CommandInvocation) -> CommandSuccess:
        # Runs after this task has ended, and before the caller is resumed.
        asyncio.current_task().add_done_callback(  # type: ignore[union-attr]
            lambda _: bench.controller.abort()
        )
        return CommandSuccess("kept")

    bench.add(handler)
    execution = await bench.run()
    assert execution is not None
    assert bench.controller.signal.aborted
    assert execution.result == CommandSuccess("kept")


async def test_a_caller_that_is_cancelled_takes_the_handler_along(bench: Bench) -> None:
    held = Held()
    bench.add(held)
    running = asyncio.create_task(bench.run())
    await held.entered.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await held.ended.wait()
    assert [(end["kind"], end["text"]) for end in bench.ends()] == [
        ("error", "the command was cancelled")
    ]


async def _lose_what_it_waits_for(_: object) -> Any:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("handler", "why"),
    [(_lose_what_it_waits_for, "something it waited for"), (_cancel_own_task, "it was cancelled")],
)
async def test_a_handler_that_is_cancelled_from_elsewhere_does_not_cancel_the_caller(
    bench: Bench, handler: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench.add(handler)
    with pytest.raises(CommandInterrupted, match=f"/do was cut short: {why}"):
        await bench.run()
    assert [end["kind"] for end in bench.ends()] == ["error"]
    assert caplog.records == []


async def test_an_exception_that_would_end_the_process_ends_the_command_alone(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def leave(_: object) -> Any:
        raise SystemExit(3)

    bench.add(leave)
    with caplog.at_level(logging.CRITICAL), pytest.raises(StrayExit, match="SystemExit"):
        await bench.run()
    assert [end["kind"] for end in bench.ends()] == ["error"]


async def test_unloading_the_runtime_ends_the_commands_that_run(bench: Bench) -> None:
    held = Held()
    bench.add(held)
    running = asyncio.create_task(bench.run())
    await held.entered.wait()
    await bench.fiber.dispose()
    assert held.ended.is_set()
    with pytest.raises(CommandInterrupted, match="was unloaded"):
        await running
    assert [end["kind"] for end in bench.ends()] == ["error"]


async def test_a_command_may_unload_its_own_plugin_and_the_runtime(bench: Bench) -> None:
    plugins: list[Any] = []

    async def leave(_: object) -> CommandSuccess:
        await plugins.pop().dispose()
        return CommandSuccess("gone")

    def body(ctx: Context) -> None:
        ctx.require(CommandRuntime).register(Command("leave", "Leaves.", leave))

    plugins.append(bench.root.inject([CommandRuntime], body))
    await plugins[0]
    execution = await bench.run("/leave")
    assert execution is not None
    assert execution.result == CommandSuccess("gone")
    bench.add(leave)
    plugins.append(bench.fiber)
    with pytest.raises(CommandInterrupted, match="was unloaded"):
        await bench.run()
    assert [end["kind"] for end in bench.ends()] == ["success", "error"]


async def test_a_plugin_stays_until_its_command_has_ended(bench: Bench) -> None:
    held = Held(lambda: CommandSuccess("whole"))

    def body(ctx: Context) -> None:
        ctx.require(CommandRuntime).register(Command("mine", "Mine.", held))

    plugin = bench.root.inject([CommandRuntime], body)
    await plugin
    running = asyncio.create_task(bench.run("/mine"))
    await held.entered.wait()
    leaving = asyncio.ensure_future(plugin.dispose())
    for _ in range(20):
        await asyncio.sleep(0)
    assert bench.commands.find(bench.agent, "mine") is not None
    held.go.set()
    execution = await running
    await leaving
    assert bench.commands.find(bench.agent, "mine") is None
    assert execution is not None
    assert execution.result == CommandSuccess("whole")


async def test_a_command_runs_inside_an_open_turn_and_splits_nothing(bench: Bench) -> None:
    session = bench.agent.session
    bench.add()
    session.append(TURN_START, TurnStartData(turn=1))
    session.append(USER_MESSAGE, create_user_message("hi"), surface_op="append")
    session.append(STEP_START, StepData(turn=1, step=1))
    nodes = list(session.surface.nodes)
    await bench.run()
    session.append(STEP_END, StepData(turn=1, step=1))
    session.append(TURN_END, TurnEndData(turn=1, reason={"kind": "completed"}))
    await bench.run()
    assert [event["type"] for event in session.events] == [
        "turn/start", "user/message", "step/start", "command/run", "command/done",
        "step/end", "turn/end", "command/run", "command/done",
    ]  # fmt: skip
    assert list(session.surface.nodes) == nodes


async def test_two_instances_over_one_log_never_repeat_an_id(bench: Bench) -> None:
    bench.add()
    first = [await bench.run() for _ in range(3)]
    await bench.fiber.dispose()
    await bench.root.plugin(LayeredCommands)
    reader: list[Context] = []
    await bench.root.inject([CommandRuntime], reader.append)
    bench.commands = reader[0].require(CommandRuntime)
    bench.add()
    second = [await bench.run() for _ in range(3)]
    ids = [execution.command_id for execution in first + second if execution is not None]
    assert len(set(ids)) == 6
    tokens = {used.rsplit("-", 1)[0] for used in ids}
    assert len(tokens) == 2
    assert [used.rsplit("-", 1)[1] for used in ids] == ["1", "2", "3"] * 2
    assert all(len(token) == len("cmd-12345678") for token in tokens)


# pictures


@pytest.fixture
async def gallery(root: Context, tmp_path: Path) -> Bench:
    """A bench with a real attachment store that takes two images."""
    bench = await mount(root)
    fields = {"dshHome": str(tmp_path), "maxImagesPerMessage": 2}
    await root.plugin(LocalAttachments, AttachmentConfig.model_validate(fields))
    return bench


def stored(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]


TAKES_IMAGES = CommandInput("<text>", images=True)


async def test_pictures_reach_the_handler_as_stored_references(gallery: Bench) -> None:
    seen: list[Any] = []

    def handler(invocation: CommandInvocation) -> CommandSuccess:
        seen.extend(invocation.attachments)
        return CommandSuccess()

    gallery.add(handler, input=TAKES_IMAGES)
    await gallery.run(images=[png(2), png(3)])
    assert [block["type"] for block in seen] == ["image", "image"]
    assert [block["attachment"]["width"] for block in seen] == [2, 3]


@pytest.mark.parametrize("input", [None, CommandInput("<text>")])
async def test_a_command_that_takes_no_pictures_says_so(gallery: Bench, input: Any) -> None:
    ran: list[object] = []
    gallery.add(ran.append, input=input)  # type: ignore[arg-type]
    execution = await gallery.run(images=[png()])
    assert execution is not None
    assert execution.result == CommandFailure("/do takes no images; send it without")
    assert (ran, [end["kind"] for end in gallery.ends()]) == ([], ["error"])


async def test_without_a_store_pictures_are_refused(bench: Bench) -> None:
    bench.add(input=TAKES_IMAGES)
    execution = await bench.run(images=[png()])
    assert execution is not None
    assert isinstance(execution.result, CommandFailure)
    assert "no attachment store" in execution.result.text
    assert len(bench.ends()) == 1


@pytest.mark.parametrize(
    "images",
    [
        [png(2), png(3), png(4)],
        [png(), {"mediaType": "image/png", "data": "no base64"}],
        [png(), {"mediaType": "image/png", "data": base64.b64encode(b"no png").decode()}],
    ],
    ids=["too many", "not encoded", "not an image"],
)
async def test_a_refused_batch_is_an_error_result_and_stores_nothing(
    gallery: Bench, tmp_path: Path, images: Any
) -> None:
    ran: list[object] = []
    gallery.add(ran.append, input=TAKES_IMAGES)  # type: ignore[arg-type]
    before = stored(tmp_path)
    execution = await gallery.run(images=images)
    assert execution is not None
    assert isinstance(execution.result, CommandFailure)
    assert execution.result.text == gallery.ends()[0]["text"]
    assert (ran, stored(tmp_path)) == ([], before)


async def test_a_store_that_cannot_write_is_an_error_of_the_caller(
    gallery: Bench, tmp_path: Path
) -> None:
    (tmp_path / "attachments").write_text("in the way")
    gallery.add(input=TAKES_IMAGES)
    with pytest.raises(AttachmentError) as caught:
        await gallery.run(images=[png()])
    assert caught.value.code == "ATTACHMENT_WRITE_FAILED"
    assert [end["kind"] for end in gallery.ends()] == ["error"]


async def test_an_abort_while_pictures_are_stored_keeps_the_handler_from_running(
    gallery: Bench,
) -> None:
    ran: list[object] = []
    gallery.add(ran.append, input=TAKES_IMAGES)  # type: ignore[arg-type]
    logged = asyncio.Event()
    gallery.root.on(SESSION_EVENT, lambda _: logged.set())
    running = asyncio.create_task(gallery.run(images=[png()]))
    await logged.wait()
    gallery.controller.abort()
    with pytest.raises(AbortedError):
        await running
    assert (ran, [end["kind"] for end in gallery.ends()]) == ([], ["error"])


async def test_an_abort_as_the_last_picture_is_stored_keeps_the_handler_from_running(
    root: Context, tmp_path: Path
) -> None:
    bench = await mount(root)

    class Late(LocalAttachments):
        async def save_images(self, images: Any) -> Any:
            refs = await super().save_images(images)
            asyncio.get_running_loop().call_soon(bench.controller.abort)
            return refs

    await root.plugin(Late, AttachmentConfig.model_validate({"dshHome": str(tmp_path)}))
    ran: list[object] = []
    bench.add(ran.append, input=TAKES_IMAGES)  # type: ignore[arg-type]
    with pytest.raises(AbortedError):
        await bench.run(images=[png()])
    for _ in range(5):
        await asyncio.sleep(0)
    assert (ran, [end["kind"] for end in bench.ends()]) == ([], ["error"])


async def keep(bench: Bench, folder: Path, saves: Callable[[], Any]) -> asyncio.Event:
    """Mount a store that saves as it is told; return what says that it began."""
    began = asyncio.Event()

    class Keeper(LocalAttachments):
        async def save_images(self, images: Any) -> Any:
            began.set()
            return await saves()

    await bench.root.plugin(Keeper, AttachmentConfig.model_validate({"dshHome": str(folder)}))
    return began


async def test_a_store_that_is_cancelled_does_not_cancel_the_caller(
    bench: Bench, tmp_path: Path
) -> None:
    async def lose() -> Any:
        raise asyncio.CancelledError

    await keep(bench, tmp_path, lose)
    bench.add(input=TAKES_IMAGES)
    with pytest.raises(CommandInterrupted, match="something it waited for"):
        await bench.run(images=[png()])
    assert [end["kind"] for end in bench.ends()] == ["error"]


async def test_unloading_the_runtime_while_pictures_are_stored_settles_the_command(
    bench: Bench, tmp_path: Path
) -> None:
    began = await keep(bench, tmp_path, asyncio.Event().wait)
    bench.add(input=TAKES_IMAGES)
    running = asyncio.create_task(bench.run(images=[png()]))
    await began.wait()
    await bench.fiber.dispose()
    with pytest.raises(CommandInterrupted, match="was unloaded"):
        await running
    assert [end["kind"] for end in bench.ends()] == ["error"]


async def test_an_abort_does_not_wait_for_a_store_that_will_not_stop(
    bench: Bench, tmp_path: Path
) -> None:
    go, ended = asyncio.Event(), asyncio.Event()

    async def linger() -> Any:
        while not go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go.wait()
        ended.set()
        return []

    ran: list[object] = []
    began = await keep(bench, tmp_path, linger)
    bench.add(ran.append, input=TAKES_IMAGES)  # type: ignore[arg-type]
    running = asyncio.create_task(bench.run(images=[png()]))
    await began.wait()
    bench.controller.abort()
    with pytest.raises(AbortedError):
        await running
    assert not ended.is_set()
    go.set()
    await ended.wait()
    for _ in range(5):
        await asyncio.sleep(0)
    assert (ran, [end["kind"] for end in bench.ends()]) == ([], ["error"])
