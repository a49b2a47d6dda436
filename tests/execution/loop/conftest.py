from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from loop_harness import Loop, ScriptedModel, assert_balanced, mount

from dsh.kernel import Context
from dsh.state.session.events import SESSION_CREATED
from dsh.state.session.session import Session


@pytest.fixture
def model() -> ScriptedModel:
    return ScriptedModel()


@pytest.fixture
async def loop(root: Context, model: ScriptedModel) -> AsyncIterator[Loop]:
    """The mounted loop; whatever a test did, each log it made must be balanced in the end."""
    sessions: list[Session] = []
    root.on(SESSION_CREATED, lambda event: sessions.append(event.session), everywhere=True)
    yield await mount(root, model)
    await root.fiber.dispose()
    for session in sessions:
        assert_balanced(session)
