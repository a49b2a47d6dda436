"""Start the agents that the loop's own configuration names."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dsh.execution.agent.events import AGENT_DISPOSED
from dsh.execution.agent.service import AgentOptions, AgentRegistry, CreateAgent, ResumeAgent
from dsh.execution.loop.events import AGENT_LOOP_CONFIG_START_FAILED, ConfiguredAgentFailed
from dsh.model.messages import SessionId
from dsh.state.persistence.service import SessionPersistence
from dsh.state.session.events import SESSION_DISPOSED
from dsh.state.session.service import SessionStore

if TYPE_CHECKING:
    from dsh.execution.loop.config import ConfiguredAgent
    from dsh.execution.loop.service import AgentIdentity, AgentLoop
    from dsh.kernel import Context

_log = logging.getLogger("dsh.agent")


def identified(
    rows: Sequence[ConfiguredAgent], identities: Mapping[str, AgentIdentity]
) -> list[ConfiguredAgent]:
    """Return the rows with the identities that the launcher chose; those outrank their own."""
    for label in identities.keys() - {row.id for row in rows}:
        _log.warning("no configured agent has the id %r, for which an identity was given", label)
    return [_with(row, identities[row.id]) if row.id in identities else row for row in rows]


def _with(row: ConfiguredAgent, identity: AgentIdentity) -> ConfiguredAgent:
    stored = identity.id if identity.resume else None
    exact = None if identity.resume else identity.id
    return row.model_copy(update={"session_id": exact, "resume_session_id": stored})


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
    persistence = await _persistence(ctx, row)
    if persistence is not None:
        await _until_free(ctx, session_id)
        try:
            await loop.resume_agent(
                ctx, ResumeAgent(resume_session_id=session_id, agent_options=options)
            )
        except Exception:
            if row.resume_session_id or await _is_stored(persistence, session_id):
                raise
        else:
            return
    meta = {} if row.cwd is None else {"cwd": row.cwd}
    await loop.create_agent(
        ctx, CreateAgent(session_id=session_id, meta=meta, agent_options=options)
    )


async def _persistence(ctx: Context, row: ConfiguredAgent) -> SessionPersistence | None:
    """Return the store that may hold the row's session; waits for the one it cannot do without."""
    if row.resume_session_id:
        return await _mounted_persistence(ctx)
    if row.session_id is None:
        return None
    loader = ctx.get("loader")
    if ctx.get(SessionPersistence) is None and loader is not None:
        # Rows load side by side: a store that is about to come may hold the session.
        await loader.quiesce()
    return ctx.get(SessionPersistence)


async def _mounted_persistence(ctx: Context) -> SessionPersistence:
    mounted: asyncio.Future[SessionPersistence] = asyncio.get_running_loop().create_future()

    def found(inner: Context) -> None:
        if not mounted.done():
            mounted.set_result(inner.require(SessionPersistence))

    waiting = ctx.inject([SessionPersistence], found)
    try:
        return await mounted
    finally:
        waiting.dispose()


async def _until_free(ctx: Context, session_id: SessionId) -> None:
    """Wait until no live agent or session has the id, such as one that is still draining."""
    agents, sessions = ctx.require(AgentRegistry), ctx.require(SessionStore)
    gone = asyncio.Event()
    watches = [
        ctx.on(AGENT_DISPOSED, lambda _: gone.set(), everywhere=True),
        ctx.on(SESSION_DISPOSED, lambda _: gone.set(), everywhere=True),
    ]
    try:
        while agents.get(session_id) is not None or sessions.get(session_id) is not None:
            _log.info("a configured agent waits until session %s is free", session_id)
            gone.clear()
            await gone.wait()
    finally:
        for watch in watches:
            watch.dispose()


async def _is_stored(persistence: SessionPersistence, session_id: SessionId) -> bool:
    return any(header["id"] == session_id for header in await persistence.all())
