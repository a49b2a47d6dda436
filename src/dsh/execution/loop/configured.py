"""Start the agents that the loop's own configuration names."""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import TYPE_CHECKING

from dsh.execution.agent.service import AgentOptions, CreateAgent, ResumeAgent
from dsh.execution.loop.events import AGENT_LOOP_CONFIG_START_FAILED, ConfiguredAgentFailed
from dsh.model.messages import SessionId
from dsh.state.persistence.service import SessionPersistence

if TYPE_CHECKING:
    from dsh.execution.loop.config import ConfiguredAgent
    from dsh.execution.loop.service import AgentLoop
    from dsh.kernel import Context

_log = logging.getLogger("dsh.agent")


async def start_configured(loop: AgentLoop, ctx: Context, row: ConfiguredAgent) -> None:
    """Start one configured agent; a failure is logged and told, and goes no further."""
    session_id = SessionId(row.identity or f"{row.id}-session-{uuid.uuid4()}")
    try:
        await _start(loop, ctx, row, session_id)
    except Exception as error:
        if ctx.stop.aborted:
            return
        _log.exception("configured agent %r (session %s) did not start", row.id, session_id)
        ctx.emit(AGENT_LOOP_CONFIG_START_FAILED, ConfiguredAgentFailed(session_id, error))


async def _start(
    loop: AgentLoop, ctx: Context, row: ConfiguredAgent, session_id: SessionId
) -> None:
    options = AgentOptions(provider=row.provider, model=row.model, max_tokens=row.max_tokens)
    if row.resume_session_id:
        await _persistence_mounted(ctx)
    if row.resume_session_id or await _is_stored(ctx, row):
        await loop.resume_agent(
            ctx, ResumeAgent(resume_session_id=session_id, agent_options=options)
        )
        return
    meta = {} if row.cwd is None else {"cwd": row.cwd}
    await loop.create_agent(
        ctx, CreateAgent(session_id=session_id, meta=meta, agent_options=options)
    )


async def _persistence_mounted(ctx: Context) -> None:
    mounted = asyncio.Event()
    waiting = ctx.inject([SessionPersistence], lambda _: mounted.set())
    try:
        await mounted.wait()
    finally:
        waiting.dispose()


async def _is_stored(ctx: Context, row: ConfiguredAgent) -> bool:
    persistence = ctx.get(SessionPersistence)
    if row.session_id is None or persistence is None:
        return False
    return any(header["id"] == row.session_id for header in await persistence.all())
