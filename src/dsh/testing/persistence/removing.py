"""Rules of removing: all of a session goes, and nothing else."""

from __future__ import annotations

import pytest

from dsh.state.persistence.errors import SessionConflict, SessionNotFound
from dsh.testing.persistence.logs import whole_turn
from dsh.testing.persistence.medium import Host


class RemovingRules:
    """A session is removed when nobody is at work on it."""

    async def test_a_removed_session_is_gone_and_its_id_is_free(self, one: Host, two: Host) -> None:
        for name in ("s", "child"):
            session = one.store.create(name, meta={"cwd": "/w"})
            whole_turn(session)
        await one.close()
        await two.persistence.inspect("s")
        await two.persistence.delete("s")
        for read in (two.persistence.inspect, two.persistence.prepare, two.persistence.delete):
            with pytest.raises(SessionNotFound):
                await read("s")
        with pytest.raises(SessionNotFound):
            await two.persistence.read_from("s", 0)
        assert [header["id"] for header in await two.persistence.all()] == ["child"]
        again = two.store.create("s", meta={"cwd": "/w"})
        whole_turn(again)
        await two.flush(again)
        assert await two.stored("s") == list(again.events)

    async def test_a_live_or_held_session_is_not_removed(self, one: Host, two: Host) -> None:
        session = one.store.create("s")
        whole_turn(session)
        await one.flush(session)
        with pytest.raises(SessionConflict, match="is live"):
            await one.persistence.delete("s")
        await one.close()
        preparation = await two.persistence.prepare("s")
        with pytest.raises(SessionConflict, match="being resumed"):
            await two.persistence.delete("s")
        preparation.release()
        await two.persistence.delete("s")
        assert await two.persistence.survey() == []
