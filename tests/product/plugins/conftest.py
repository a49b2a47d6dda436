from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from plugin_support import PLUGIN, User, bundle_wheel


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give whole processes more time than the rest of the suite has: a machine may be slow."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(120))


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


@pytest.fixture(scope="session")
def settled_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a user whose profile holds one good plugin; made once, never changed."""
    user = User(tmp_path_factory.mktemp("settled"))
    user.made()
    bundle_wheel(user.wheels, "acme-good", source=PLUGIN)
    user.done("add", "acme-good")
    return user.home


@pytest.fixture
def settled(user: User, settled_home: Path) -> User:
    """A user whose profile holds the good plugin, and nothing to install it from."""
    shutil.copytree(settled_home, user.home, symlinks=True)
    return user
