"""Rules of damage: what a crash cost is told, repaired once, and never spreads."""

from __future__ import annotations

import pytest

from dsh.state.persistence.errors import SessionPersistenceCorruptionError
from dsh.testing.persistence.logs import whole_turn
from dsh.testing.persistence.medium import Host, Hosts, Medium


class BreakingRules:
    """A torn end is cut off by the next writer; damage before it is refused."""

    async def test_a_torn_end_is_read_around_and_repaired_once(
        self, medium: Medium, hosts: Hosts, one: Host
    ) -> None:
        if medium.tear is None:
            pytest.skip("a commit of this store is a whole or nothing")
        session = one.store.create("s")
        whole_turn(session)
        await one.close()
        medium.tear("s")

        two = await hosts.open()
        seen = await two.persistence.inspect("s")
        assert list(seen.events) == list(session.events)
        assert seen.damage is not None
        assert await two.stored("s") == list(session.events)
        torn = await two.persistence.list_snapshots()
        loaded = await two.persistence.load("s")
        assert loaded.damage is not None
        assert await two.persistence.list_snapshots() != torn
        again = await two.persistence.load("s")
        assert again.damage is None
        resumed = await two.resume("s")
        whole_turn(resumed, 2)
        await two.flush(resumed)
        assert await two.stored("s") == list(resumed.events)

    async def test_damage_before_the_last_turn_is_refused_and_stays_as_it_is(
        self, medium: Medium, hosts: Hosts, one: Host
    ) -> None:
        if medium.spoil is None:
            pytest.skip("a test cannot damage this store")
        for name in ("s", "other"):
            session = one.store.create(name)
            whole_turn(session)
            await one.flush(session)
            whole_turn(session, 2)
            await one.flush(session)
        await one.close()
        medium.spoil("s")

        two = await hosts.open()
        for _ in range(2):
            for read in (two.persistence.inspect, two.persistence.load, two.persistence.prepare):
                with pytest.raises(SessionPersistenceCorruptionError):
                    await read("s")
        with pytest.raises(SessionPersistenceCorruptionError):
            await two.persistence.read_from("s", 0)
        ids = [item.header and item.header["id"] for item in await two.persistence.survey()]
        assert "other" in ids
        assert (await two.resume("other")).seq > 20
        await two.persistence.delete("s")
        assert [header["id"] for header in await two.persistence.all()] == ["other"]
