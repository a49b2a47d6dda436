"""All rules of a store in one class."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

_RULES = ("breaking", "holding", "reading", "removing", "writing")
pytest.register_assert_rewrite(*(f"dsh.testing.persistence.{name}" for name in _RULES))

from dsh.testing.persistence.breaking import BreakingRules  # noqa: E402
from dsh.testing.persistence.holding import HoldingRules  # noqa: E402
from dsh.testing.persistence.medium import Host, Hosts, Medium  # noqa: E402
from dsh.testing.persistence.reading import ReadingRules  # noqa: E402
from dsh.testing.persistence.removing import RemovingRules  # noqa: E402
from dsh.testing.persistence.writing import WritingRules  # noqa: E402

__all__ = ["Host", "Hosts", "Medium", "PersistenceContract"]


class PersistenceContract(WritingRules, ReadingRules, HoldingRules, BreakingRules, RemovingRules):
    """Every test that a store must pass. A subclass gives the fixture ``medium``."""

    @pytest.fixture
    def medium(self) -> Medium:
        """The store under test, empty."""
        raise NotImplementedError("give a fixture that returns the store under test")

    @pytest.fixture
    async def hosts(self, medium: Medium) -> AsyncIterator[Hosts]:
        """Processes that use the store."""
        hosts = Hosts(medium)
        yield hosts
        await hosts.close()

    @pytest.fixture
    async def one(self, hosts: Hosts) -> Host:
        """The process that a test looks at."""
        return await hosts.open()

    @pytest.fixture
    async def two(self, hosts: Hosts) -> Host:
        """Another process on the same storage."""
        return await hosts.open()
