from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fs_harness import Desk, body, code, mount, names, text

from dsh.capability.fs import change
from dsh.capability.fs.place import Place
from dsh.capability.fs.sandboxed import SandboxedFileSystem
from dsh.capability.fs.service import CreateIfAbsent, FileSystem, FsEdit, FsError
from dsh.capability.fs.worker import Stop
from dsh.control.approval.events import APPROVAL_REQUEST
from dsh.control.approval.policy import PolicyApproval
from dsh.control.approval.service import ApprovalOutcome, ApprovalRequest
from dsh.execution.tools.service import ToolResult
from dsh.kernel import Context
from dsh.state.session.events import TURN_START


async def refused(desk: Desk, path: str, **options: object) -> str:
    """Try both kinds of mutation and return the refusal, which must be the same."""
    target = await desk.fs.resolve(path, cwd=str(desk.root))
    codes = set()
    for attempt in (
        desk.fs.write_text(target, "mine", **options),  # type: ignore[arg-type]
        desk.fs.edit_text(target, FsEdit("theirs", "mine"), **options),  # type: ignore[arg-type]
    ):
        with pytest.raises(FsError) as caught:
            await attempt
        codes.add(caught.value.code)
        message = caught.value.message
    assert codes == {"FS_SANDBOX_DENIED"}
    return message


async def test_the_workspace_and_the_private_folder_are_writable(
    desk: Desk, workspace: Path
) -> None:
    temp = desk.policy.temp_dir(desk.agent.session.id)
    assert body(await desk.call("write", file_path="sub/f", content="x")) == "Created file"
    assert body(await desk.call("write", file_path=f"{temp}/f", content="x")) == "Created file"
    assert (workspace / "sub/f").read_text() == (temp / "f").read_text() == "x"


@pytest.mark.parametrize("place", ["beside", "/tmp/dsh-beside", "../beside"])
async def test_beside_the_workspace_is_denied(
    desk: Desk, workspace: Path, tmp_path: Path, place: str
) -> None:
    path = str(tmp_path / place) if place == "beside" else place
    assert "outside the writable workspace" in await refused(desk, path)
    assert not (tmp_path / "beside").exists()


async def test_a_sibling_with_the_same_prefix_is_outside(desk: Desk, workspace: Path) -> None:
    await refused(desk, f"{workspace}-other/f")


@pytest.mark.parametrize("mode", ["read-only", "workspace-write"])
async def test_a_private_folder_of_another_session_is_closed(desk: Desk, mode: str) -> None:
    other = desk.policy.temp_dir(desk.another_agent().session.id)
    policy = desk.policy.resolve(desk.agent.session, mode)  # type: ignore[arg-type]
    await refused(desk, f"{other}/f", sandbox_policy=policy)


async def test_read_only_leaves_the_disk_alone_and_reads_freely(
    root: Context, workspace: Path
) -> None:
    desk = await mount(root, workspace, mode="read-only")
    (workspace / "f").write_text("theirs")
    assert body(await desk.call("read", file_path="f")).startswith("1: theirs")
    await refused(desk, "f")
    await refused(desk, "new/f")
    assert names(workspace) == ["f"]
    assert (workspace / "f").read_text() == "theirs"


async def test_full_access_has_no_fence(root: Context, workspace: Path, tmp_path: Path) -> None:
    desk = await mount(root, workspace, mode="danger-full-access")
    assert body(await desk.call("write", file_path="../beside/f", content="x")) == "Created file"
    assert (tmp_path / "beside/f").read_text() == "x"


async def test_the_policy_of_a_call_wins(desk: Desk, tmp_path: Path) -> None:
    target = await desk.fs.resolve(str(tmp_path / "f"))
    wider = desk.policy.resolve(desk.agent.session, "danger-full-access")
    await desk.fs.write_text(target, "x", sandbox_policy=wider)
    narrower = desk.policy.resolve(desk.agent.session, "read-only")
    await refused(desk, str(desk.root / "f"), sandbox_policy=narrower)


async def test_the_mode_of_the_session_wins_over_the_default(desk: Desk) -> None:
    desk.policy.set_mode(desk.agent.session, "read-only")
    result = await desk.call("write", file_path="f", content="x")
    assert code(result) == "FS_SANDBOX_DENIED"
    other = desk.another_agent()
    assert body(await desk.call("write", other, file_path="f", content="x")) == "Created file"


@pytest.mark.parametrize("chain", [False, True])
async def test_a_linked_folder_that_leads_out_is_denied(
    desk: Desk, workspace: Path, tmp_path: Path, chain: bool
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/old").write_text("theirs")
    (workspace / "link").symlink_to(tmp_path / "out")
    if chain:
        (workspace / "first").symlink_to("link")
    name = "first" if chain else "link"
    assert f"leads to '{tmp_path}/out/old'" in await refused(desk, f"{name}/old")
    await refused(desk, f"{name}/new")
    await refused(desk, f"{name}/deep/new")
    assert names(tmp_path / "out") == ["old"]
    assert (tmp_path / "out/old").read_text() == "theirs"


async def test_a_linked_file_that_leads_out_is_denied(
    desk: Desk, workspace: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("theirs")
    (workspace / "link").symlink_to(tmp_path / "out")
    assert f"leads to '{tmp_path}/out'" in await refused(desk, "link")
    assert (tmp_path / "out").read_text() == "theirs"


async def test_a_dangling_link_that_leads_out_creates_nothing(
    desk: Desk, workspace: Path, tmp_path: Path
) -> None:
    (workspace / "link").symlink_to(tmp_path / "out")
    (workspace / "folder").symlink_to(tmp_path / "elsewhere")
    for path in ("link", "folder/f"):
        result = await desk.call("write", file_path=path, content="x")
        assert result.is_error
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "elsewhere").exists()


async def test_a_link_inside_the_workspace_is_followed(desk: Desk, workspace: Path) -> None:
    (workspace / "real").mkdir()
    (workspace / "link").symlink_to("real")
    assert body(await desk.call("write", file_path="link/f", content="x")) == "Created file"
    assert (workspace / "real/f").read_text() == "x"


async def test_dot_dot_cannot_climb_out(desk: Desk, workspace: Path, tmp_path: Path) -> None:
    (workspace / "deep/er").mkdir(parents=True)
    (workspace / "link").symlink_to("deep/er")
    assert body(await desk.call("write", file_path="link/../f", content="x")) == "Created file"
    assert (workspace / "deep/f").exists()
    await refused(desk, "sub/../../f")
    await refused(desk, f"{workspace}/../f")


async def test_the_root_itself_fails_only_by_its_type(desk: Desk) -> None:
    with pytest.raises(FsError) as caught:
        await desk.fs.write_text(await desk.fs.resolve(str(desk.root)), "x")
    assert caught.value.code == "FS_NOT_REGULAR_FILE"


async def test_a_workspace_of_everything_grants_everything(
    root: Context, workspace: Path, tmp_path: Path
) -> None:
    desk = await mount(root, Path("/"))
    done = await desk.fs.write_text(await desk.fs.resolve(f"{tmp_path}/f"), "x")
    assert done.operation == "create"
    with pytest.raises(FsError) as caught:
        await desk.fs.write_text(await desk.fs.resolve("/"), "x")
    assert caught.value.code == "FS_NOT_REGULAR_FILE"


@contextlib.contextmanager
def bound(folder: Path, alias: Path) -> Iterator[None]:
    """Give a folder a second path."""
    if subprocess.run(["mount", "--bind", folder, alias], check=False).returncode:
        pytest.skip("this machine does not let root bind folders")
    try:
        yield
    finally:
        subprocess.run(["umount", alias], check=True)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can bind folders")
async def test_another_path_of_the_same_folder_is_inside(
    desk: Desk, workspace: Path, tmp_path: Path
) -> None:
    alias = tmp_path / "alias"
    alias.mkdir()
    (workspace / "sub").mkdir()
    with bound(workspace, alias):
        done = await desk.fs.write_text(await desk.fs.resolve(f"{alias}/sub/f"), "x")
        assert done.operation == "create"
    assert (workspace / "sub/f").read_text() == "x"


def test_a_folder_swapped_after_the_check_is_not_followed(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/f").write_text("theirs")
    (workspace / "sub").mkdir()
    (workspace / "sub/f").write_text("theirs")
    checked = Place(str(workspace), ("sub", "f"), f"{workspace}/sub/f", fenced=True)
    (workspace / "sub").rename(workspace / "moved")
    (workspace / "sub").symlink_to(tmp_path / "out")

    for attempt in (
        lambda: change.write(checked, "mine", None, basis_max=9, stop=Stop(None)),
        lambda: change.edit(checked, FsEdit("theirs", "x"), None, basis_max=9, stop=Stop(None)),
    ):
        with pytest.raises(FsError) as caught:
            attempt()
        assert caught.value.code == "FS_SANDBOX_DENIED"
    assert (tmp_path / "out/f").read_text() == "theirs"


def test_a_file_swapped_after_the_check_is_not_followed(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("theirs")
    (workspace / "f").symlink_to(tmp_path / "out")
    checked = Place(str(workspace), ("f",), f"{workspace}/f", fenced=True)
    for expected in (None, CreateIfAbsent()):
        with pytest.raises(FsError):
            change.write(checked, "mine", expected, basis_max=9, stop=Stop(None))
    assert (tmp_path / "out").read_text() == "theirs"


async def test_nothing_gets_out_while_a_folder_is_swapped_all_the_time(
    desk: Desk, workspace: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (workspace / "real").mkdir()
    swapped, done = workspace / "sub", threading.Event()

    def swap() -> None:
        while not done.is_set():
            with contextlib.suppress(OSError):
                swapped.symlink_to(tmp_path / "out")
                swapped.unlink()
                swapped.mkdir()
                swapped.rmdir()

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for number in range(100):
            with contextlib.suppress(FsError):
                target = await desk.fs.resolve(f"{workspace}/sub/{number}")
                await desk.fs.write_text(target, "x", expected=CreateIfAbsent())
    finally:
        done.set()
        swapper.join()
    assert names(tmp_path / "out") == []


async def test_a_denial_says_so_and_how_to_go_on(desk: Desk, tmp_path: Path) -> None:
    result = await desk.call("write", file_path=f"{tmp_path}/f", content="x")
    assert code(result) == "FS_SANDBOX_DENIED"
    lines = text(result).splitlines()
    assert lines[1] == "[sandbox: file access denied under workspace-write mode]"
    assert lines[2].startswith("[sandbox: ")
    assert "sandbox_permissions" in lines[2]


async def test_an_escalation_nobody_can_answer_runs_nothing(desk: Desk, tmp_path: Path) -> None:
    result = await desk.call(
        "write",
        file_path=f"{tmp_path}/f",
        content="x",
        sandbox_permissions="danger-full-access",
        justification="to show",
    )
    assert code(result) == "SANDBOX_ESCALATION_REFUSED"
    assert not (tmp_path / "f").exists()


async def test_an_escalation_to_the_mode_in_force_is_refused(desk: Desk) -> None:
    result = await desk.call(
        "edit",
        file_path="f",
        old_string="a",
        new_string="b",
        sandbox_permissions="workspace-write",
        justification="to show",
    )
    assert code(result) == "SANDBOX_ESCALATION_REFUSED"


async def test_the_provider_waits_for_its_policy(root: Context) -> None:
    fiber = root.plugin(SandboxedFileSystem)
    assert root.get(FileSystem) is None
    await fiber.dispose()


async def answering(desk: Desk, outcome: ApprovalOutcome) -> list[ApprovalRequest]:
    """Mount the approval policy with somebody who answers; return what is asked."""
    asked: list[ApprovalRequest] = []

    async def answer(request: ApprovalRequest, _: object) -> ApprovalOutcome:
        asked.append(request)
        return outcome

    await desk.ctx.root.plugin(PolicyApproval)
    desk.ctx.on(APPROVAL_REQUEST, answer)
    desk.agent.session.append(TURN_START, {"turn": 1})
    return asked


async def escalated(desk: Desk, path: Path) -> ToolResult:
    return await desk.call(
        "write",
        file_path=str(path),
        content="x",
        sandbox_permissions="danger-full-access",
        justification="the build needs it",
    )


async def test_a_granted_escalation_holds_for_one_call(desk: Desk, tmp_path: Path) -> None:
    asked = await answering(desk, "allowed-once")
    assert body(await escalated(desk, tmp_path / "f")) == "Created file"
    assert (tmp_path / "f").read_text() == "x"
    assert "the build needs it" in (asked[0].reason or "")
    assert code(await desk.call("write", file_path=f"{tmp_path}/g", content="x")) == (
        "FS_SANDBOX_DENIED"
    )


@pytest.mark.parametrize("outcome", ["rejected", "cancelled", "unavailable"])
async def test_a_refused_escalation_runs_nothing(
    desk: Desk, tmp_path: Path, outcome: ApprovalOutcome
) -> None:
    await answering(desk, outcome)
    assert code(await escalated(desk, tmp_path / "f")) == "SANDBOX_ESCALATION_REFUSED"
    assert not (tmp_path / "f").exists()
