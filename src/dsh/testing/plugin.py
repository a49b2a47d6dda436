"""The pytest plugin of dsh: the census around every test, and a ``root`` context.

Profiles that run under it, in child processes too, check the rules of session logs, unless
``DSH_SESSION_INVARIANTS`` says otherwise.

Load it with ``pytest_plugins = ["dsh.testing.plugin"]``.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Iterator

import pytest

from dsh.kernel import Context
from dsh.testing import census


def pytest_configure() -> None:
    """Switch the row ``session-invariants`` on."""
    os.environ.setdefault("DSH_SESSION_INVARIANTS", "1")


@pytest.fixture(autouse=True)
def process_census() -> Iterator[None]:
    """Fail a test that leaves a thread or a child process."""
    threads, children = census.live_threads(), census.child_pids()
    yield
    leaked = [f"thread {name}" for name in census.leaked_threads(threads)]
    leaked += [f"child process {child}" for child in census.leaked_children(children)]
    if leaked:
        pytest.fail("left behind: " + ", ".join(leaked), pytrace=False)


@pytest.fixture(autouse=True)
def loop_census(request: pytest.FixtureRequest, process_census: None) -> None:
    """Fail a coroutine test that leaves a task."""
    if inspect.iscoroutinefunction(getattr(request, "function", None)):
        request.getfixturevalue("task_census")


@pytest.fixture
async def task_census() -> AsyncIterator[None]:
    """Compare the tasks of the loop before and after the test."""
    before = asyncio.all_tasks()
    yield
    here = asyncio.current_task()
    leaked = {task for task in asyncio.all_tasks() - before if task is not here}
    if leaked:
        await asyncio.wait(leaked, timeout=0.05)
    if names := census.task_names(leaked):
        pytest.fail("left behind: " + ", ".join(f"task {name}" for name in names), pytrace=False)


@pytest.fixture
async def root() -> AsyncIterator[Context]:
    """A fresh root context; after the test it is disposed and must hold nothing."""
    context = Context()
    empty = context.census()
    yield context
    await context.dispose()
    if (left := context.census()) != empty:
        pytest.fail(f"left on the root context: {left}", pytrace=False)
