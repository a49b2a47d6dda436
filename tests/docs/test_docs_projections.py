"""The examples of docs/projections.md run as they are printed."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from types import ModuleType
from typing import Any

from dsh.kernel import Context
from dsh.model.messages import create_user_message
from dsh.state.projections import ProjectionRegistry
from dsh.state.projections.registry import SessionProjections
from dsh.state.session.events import USER_MESSAGE
from dsh.state.session.store import LocalSessionStore
from dsh.state.storage import DomainFacility
from dsh.state.storage import hub as storage
from dsh.state.storage import json_files as storage_json
from dsh.state.storage.domain import facility as storage_domain

PAGE = Path(__file__).parents[2] / "docs" / "projections.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def example(number: int) -> Any:
    module = ModuleType(f"example_{number}")
    exec(BLOCKS[number], vars(module))
    return module


async def test_the_projection_of_the_page_counts_prompts(root: Context) -> None:
    await root.plugin(LocalSessionStore)
    await root.plugin(SessionProjections)
    await root.plugin(example(0))
    session = root.require(LocalSessionStore).create()
    for text in ("one", "two"):
        session.append(USER_MESSAGE, create_user_message(text), surface_op="append")
    values = root.require(ProjectionRegistry).snapshot(session)["values"]
    assert values == {"prompts": 2}


async def test_the_domain_of_the_page_keeps_a_note(root: Context, tmp_path: Path) -> None:
    await root.plugin(storage.plugin)
    await root.plugin(storage_json, {"root": str(tmp_path)})
    await root.plugin(storage_domain, {"backend": "json"})
    ready = asyncio.Event()
    root.inject([DomainFacility], lambda _: ready.set())
    await ready.wait()
    await root.plugin(example(1))
    domain = root.require(DomainFacility).get("notes")
    assert domain is not None
    assert domain.table("notes").get("todo") == "write the tests"
