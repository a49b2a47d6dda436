"""Fixtures of the end-to-end tests; what they use is in `support`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from support import KEY, Home

from dsh.testing.provider import Provider, start_provider


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give whole processes more time than the rest of the suite has: a machine may be slow."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(90))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A user with an empty home and an empty workspace."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    user = Home(tmp_path / "home", workspace)
    yield user
    user.close()


@pytest.fixture
def provide(home: Home) -> Iterator[Callable[..., Provider]]:
    """Start a provider that plays a script, and point the user's environment at it."""
    with ExitStack() as stack:

        def start(script: Any, **options: Any) -> Provider:
            provider = stack.enter_context(start_provider(script, cwd=home.workspace, **options))
            home.variables |= {"DEEPSEEK_BASE_URL": provider.url, "DEEPSEEK_API_KEY": KEY}
            return provider

        yield start
