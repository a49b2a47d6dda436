from __future__ import annotations

from pathlib import Path

from fs_harness import Desk, FakeAgent, body, code, text, unload

from dsh.capability.fs import observation
from dsh.capability.fs.events import FS_OBSERVED, FS_WRITE_INTENT, FsObserved, FsWriteIntent
from dsh.capability.fs.service import WriteExpectation
from dsh.kernel import Context, Next
from dsh.state.session.service import SessionStore


async def test_an_unseen_file_may_only_be_created(desk: Desk, workspace: Path) -> None:
    (workspace / "f").write_text("theirs")
    result = await desk.call("write", file_path="f", content="mine")
    assert code(result) == "FS_NOT_OBSERVED"
    assert "read the file first" in text(result)
    assert (workspace / "f").read_text() == "theirs"
    assert body(await desk.call("write", file_path="g", content="mine")) == "Created file"


async def test_an_unseen_file_is_not_edited(desk: Desk, workspace: Path) -> None:
    (workspace / "f").write_text("theirs")
    result = await desk.call("edit", file_path="f", old_string="theirs", new_string="mine")
    assert code(result) == "FS_NOT_OBSERVED"


async def test_a_file_that_was_missing_is_not_edited(desk: Desk) -> None:
    assert code(await desk.call("read", file_path="f")) == "FS_NOT_FOUND"
    result = await desk.call("edit", file_path="f", old_string="a", new_string="b")
    assert code(result) == "FS_NOT_FOUND"


async def test_a_read_allows_a_chain_of_changes(desk: Desk, workspace: Path) -> None:
    (workspace / "f").write_text("a\n" * 10 + "b")
    await desk.call("read", file_path="f", limit=1)
    assert body(await desk.call("edit", file_path="f", old_string="b", new_string="c"))
    assert body(await desk.call("edit", file_path="f", old_string="c", new_string="d"))
    assert body(await desk.call("write", file_path="f", content="e")) == "Updated file"
    assert (workspace / "f").read_text() == "e"


async def test_a_change_by_others_makes_the_knowledge_stale(desk: Desk, workspace: Path) -> None:
    (workspace / "f").write_text("a")
    await desk.call("read", file_path="f")
    (workspace / "f").write_text("b")
    for result in (
        await desk.call("write", file_path="f", content="mine"),
        await desk.call("edit", file_path="f", old_string="b", new_string="c"),
    ):
        assert code(result) == "FS_STALE_VERSION"
        assert "read the file again" in text(result)
    assert (workspace / "f").read_text() == "b"


async def test_a_deleted_file_can_be_made_again_after_a_look(desk: Desk, workspace: Path) -> None:
    (workspace / "f").write_text("a")
    await desk.call("read", file_path="f")
    (workspace / "f").unlink()
    assert code(await desk.call("write", file_path="f", content="b")) == "FS_STALE_VERSION"
    assert code(await desk.call("read", file_path="f")) == "FS_NOT_FOUND"
    assert body(await desk.call("write", file_path="f", content="b")) == "Created file"


async def test_knowledge_is_by_identity_not_by_name(desk: Desk, workspace: Path) -> None:
    (workspace / "f").write_text("a")
    (workspace / "link").symlink_to("f")
    await desk.call("read", file_path="link")
    assert body(await desk.call("write", file_path=f"{workspace}/f", content="b"))


async def test_sessions_do_not_share_what_they_saw(desk: Desk, workspace: Path) -> None:
    (workspace / "f").write_text("a")
    await desk.call("read", file_path="f")
    other = desk.another_agent()
    result = await desk.call("write", other, file_path="f", content="b")
    assert code(result) == "FS_NOT_OBSERVED"


async def test_direct_calls_observe_nothing(desk: Desk, workspace: Path) -> None:
    (workspace / "f").write_text("a")
    await desk.fs.read_text(await desk.fs.resolve(f"{workspace}/f"))
    assert code(await desk.call("write", file_path="f", content="b")) == "FS_NOT_OBSERVED"


async def test_a_throwing_observer_fails_the_call_after_the_change(
    desk: Desk, workspace: Path
) -> None:
    def fail(_: FsObserved) -> None:
        raise RuntimeError("not today")

    desk.ctx.on(FS_OBSERVED, fail)
    result = await desk.call("write", file_path="f", content="b")
    assert result.is_error
    assert (workspace / "f").read_text() == "b"


async def test_the_first_decider_is_the_only_one(desk: Desk, workspace: Path) -> None:
    asked: list[FsWriteIntent] = []

    async def late(intent: FsWriteIntent, next: Next[WriteExpectation]) -> WriteExpectation:
        asked.append(intent)
        return await next()

    desk.ctx.on(FS_WRITE_INTENT, late)
    await desk.call("write", file_path="f", content="b")
    assert asked == []


async def test_an_aborted_call_never_reaches_the_disk(desk: Desk, workspace: Path) -> None:
    desk.controller.abort()
    result = await desk.call("write", file_path="f", content="b")
    assert code(result) == "ABORTED_BEFORE_DISPATCH"
    assert not (workspace / "f").exists()


async def test_without_the_policy_writes_are_unconditional(
    desk: Desk, root: Context, workspace: Path
) -> None:
    (workspace / "f").write_text("theirs")
    await unload(root, observation)
    assert body(await desk.call("write", file_path="f", content="b")) == "Updated file"


async def test_a_resumed_session_knows_what_it_saw(desk: Desk, workspace: Path) -> None:
    for name in ("same", "changed", "gone"):
        (workspace / name).write_text("a")
        await desk.call("read", file_path=name)
    await desk.call("read", file_path="missing")
    events = list(desk.agent.session.events)
    (workspace / "changed").write_text("b")
    (workspace / "gone").unlink()
    await unload(desk.ctx.root, observation)
    await desk.ctx.root.plugin(observation)
    sessions = desk.ctx.require(SessionStore)
    resumed = FakeAgent(sessions.create(seed=events, meta={"cwd": str(workspace)}))

    async def write(name: str) -> str | None:
        result = await desk.call("write", resumed, file_path=name, content="new")
        return code(result) if result.is_error else None

    assert await write("same") is None
    assert await write("changed") == "FS_STALE_VERSION"
    assert await write("gone") == "FS_STALE_VERSION"
    assert await write("missing") is None
    assert await write("new") is None


async def test_only_news_are_logged(desk: Desk, workspace: Path) -> None:
    (workspace / "f").write_text("a")
    for _ in range(3):
        await desk.call("read", file_path="f")
    assert [event["type"] for event in desk.agent.session.events] == ["fs/observation"]
    assert desk.agent.session.events[0]["ignorable"] is True
