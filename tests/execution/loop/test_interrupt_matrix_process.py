"""The interrupt matrix, processes: a sample of moments, a real signal, and the files it leaves."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest
from interrupt_world import ROUTE, TIMEOUT_S, mount_world
from loop_harness import reasons

from dsh.execution.agent.service import ResumeAgent
from dsh.kernel import Context
from dsh.model.messages import SessionId
from dsh.state.persistence.jsonl import JsonlPersistence

pytestmark = pytest.mark.timeout(TIMEOUT_S)

CHILD = Path(__file__).with_name("interrupt_child.py")
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


async def interrupted_process(folder: Path, number: int, sent: signal.Signals) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, CHILD, folder, str(number), str(int(sent)), stderr=asyncio.subprocess.PIPE
    )
    _, errors = await child.communicate()
    assert (child.returncode, errors) == (EXIT_CODES[sent], b"")


@pytest.mark.parametrize("sent", list(EXIT_CODES), ids=lambda each: each.name)
async def test_a_signal_to_the_process_leaves_files_to_go_on_from(
    root: Context, tmp_path: Path, sent: signal.Signals
) -> None:
    moments = (1, 30, 60, 90, 120, 150)
    folders = {number: tmp_path / str(number) for number in moments}
    await asyncio.gather(
        *(interrupted_process(folder, number, sent) for number, folder in folders.items())
    )
    world = await mount_world(root)
    for folder in folders.values():
        store = await root.plugin(JsonlPersistence, {"root": str(folder)})
        options = ResumeAgent(resume_session_id=SessionId("s"), agent_options=ROUTE)
        handle = await world.agents.resume(options)
        (reason,) = reasons(handle.agent)
        assert reason == {"kind": "aborted", "reason": {"kind": "disposed"}}
        await world.goes_on(handle.agent)
        await handle.dispose()
        await store.dispose()
