"""What a domain promises to the plugin that opened it, and to those who listen."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from storage_support import AWKWARD_KEYS, FailingBackend, StorageHome

from dsh.kernel import Context
from dsh.state.storage import (
    DOMAIN_CHANGED,
    Domain,
    DomainChanged,
    DomainFacility,
    DomainSpec,
    Storage,
    backend_key,
)
from dsh.state.storage import hub as storage
from dsh.state.storage.domain import facility as storage_domain
from dsh.state.storage.errors import (
    DomainOpen,
    FacetUnsupported,
    InvalidRecord,
    MalformedMedium,
    MissingKey,
    StorageClosed,
    VersionMismatch,
)
from dsh.state.storage.service import StorageBackend


def is_number(value: Any) -> None:
    if type(value) is not int:
        raise ValueError("it is no number")


SPEC = DomainSpec(
    "scores", version=1, tables={"players": is_number}, global_schema=is_number, global_initial=7
)


@pytest.fixture(params=["json", "sqlite"])
async def home(request: pytest.FixtureRequest, root: Context, tmp_path: Path) -> StorageHome:
    return await StorageHome(root, tmp_path / "storages").open(request.param)


class Faulty:
    """A domain on a backend whose writes can be made to fail."""

    def __init__(self, root: Context) -> None:
        self.root = root
        self.backend = FailingBackend("players")
        self.heard: list[DomainChanged] = []

    async def open(self) -> Faulty:
        await self.root.plugin(storage.plugin)
        self.root.require(Storage).register("faulty", self.backend)
        self.root.provide(backend_key("faulty"), self.backend)
        await self.root.plugin(storage_domain, {"backend": "faulty"})
        ready = asyncio.Event()
        self.root.inject([DomainFacility], lambda _: ready.set())
        await ready.wait()
        self.root.on(DOMAIN_CHANGED, self.heard.append)
        self.domain = await self.root.require(DomainFacility).open(SPEC)
        return self


@pytest.fixture
async def faulty(root: Context) -> Faulty:
    return await Faulty(root).open()


async def test_records_are_read_from_memory_and_stay(home: StorageHome) -> None:
    domain = await home.domains.open(SPEC)
    players = domain.table("players")
    await players.put("ann", 3)
    await players.put("bob", 4)
    assert players.get("ann") == 3
    assert players.get("nobody") is None
    assert "bob" in players
    assert 5 not in players
    assert len(players) == 2
    assert dict(players.entries()) == {"ann": 3, "bob": 4}
    assert await players.update("ann", lambda score: score + 1) == 4
    assert await players.delete("bob")
    assert not await players.delete("bob")
    assert domain.global_.get() == 7
    await domain.global_.set(8)
    await domain.close()
    again = await home.domains.open(SPEC)
    assert dict(again.table("players").entries()) == {"ann": 4}
    assert again.global_.get() == 8


async def test_each_change_is_announced_after_it_is_durable(home: StorageHome) -> None:
    domain = await home.domains.open(SPEC)
    await domain.table("players").put("ann", 3)
    await domain.table("players").delete("ann")
    await domain.table("players").delete("ann")
    await domain.global_.set(1)
    assert home.heard == [
        DomainChanged("scores", "players", "ann", "put", 3),
        DomainChanged("scores", "players", "ann", "deleted"),
        DomainChanged("scores", "", "", "put", 1),
    ]


@pytest.mark.parametrize("key", AWKWARD_KEYS)
async def test_any_string_names_a_record(key: str, home: StorageHome) -> None:
    domain = await home.domains.open(SPEC)
    players = domain.table("players")
    await players.put(key, 1)
    assert players.get(key) == 1
    await domain.close()
    players = (await home.domains.open(SPEC)).table("players")
    assert key in players
    assert await players.delete(key)
    assert len(players) == 0


async def test_a_write_that_the_backend_rejects_changes_nothing(faulty: Faulty) -> None:
    players = faulty.domain.table("players")
    await players.put("ann", 1)
    with faulty.backend.unit.failing(OSError("no space")):
        for write in (
            players.put("ann", 2),
            players.put("bob", 2),
            players.update("ann", lambda score: score + 5),
            players.delete("ann"),
            faulty.domain.global_.set(3),
        ):
            with pytest.raises(OSError, match="no space"):
                await write
    assert dict(players.entries()) == {"ann": 1}
    assert faulty.domain.global_.get() == 7
    assert [(change.key, change.value) for change in faulty.heard] == [("ann", 1)]
    await players.put("bob", 2)
    assert dict(players.entries()) == {"ann": 1, "bob": 2}


async def test_a_failing_listener_does_not_reject_the_write(faulty: Faulty, root: Context) -> None:
    reported: list[BaseException] = []
    root.set_reporter(lambda error, owner, label: reported.append(error))

    def fail(_: object) -> None:
        raise RuntimeError("listener")

    root.on(DOMAIN_CHANGED, fail, prepend=True)
    await faulty.domain.table("players").put("ann", 1)
    assert faulty.domain.table("players").get("ann") == 1
    assert [change.key for change in faulty.heard] == ["ann"]
    assert [str(error) for error in reported] == ["listener"]


async def test_queued_writes_drain_on_close(faulty: Faulty) -> None:
    players = faulty.domain.table("players")
    writes = [asyncio.ensure_future(players.put(str(n), n)) for n in range(5)]
    await asyncio.sleep(0)
    await faulty.domain.close()
    assert [write.done() for write in writes] == [True] * 5
    assert faulty.backend.unit.content == {"players": {str(n): n for n in range(5)}}
    assert len(faulty.heard) == 5
    for late in (players.put("late", 1), players.delete("0"), faulty.domain.global_.set(1)):
        with pytest.raises(StorageClosed):
            await late


async def test_a_cancelled_writer_leaves_a_whole_write(faulty: Faulty) -> None:
    players = faulty.domain.table("players")
    write = asyncio.ensure_future(players.put("ann", 1))
    await asyncio.sleep(0)
    write.cancel()
    await asyncio.gather(write, return_exceptions=True)
    await players.put("bob", 2)
    assert dict(players.entries()) == {"ann": 1, "bob": 2}


async def test_an_update_sees_the_writes_before_it(faulty: Faulty) -> None:
    players = faulty.domain.table("players")
    results = await asyncio.gather(
        players.put("ann", 1),
        *(players.update("ann", lambda score: score * 2) for _ in range(4)),
    )
    assert results == [None, 2, 4, 8, 16]


async def test_an_update_of_nothing_names_it(faulty: Faulty) -> None:
    with pytest.raises(MissingKey, match=r"'players'.*'ann'") as raised:
        await faulty.domain.table("players").update("ann", lambda score: score)
    assert (raised.value.code, raised.value.table, raised.value.key) == (
        "missing-key",
        "players",
        "ann",
    )


@pytest.mark.parametrize("value", ["3", None, True, float("nan"), {1}, 2**60])
async def test_a_value_that_does_not_fit_is_refused(value: Any, faulty: Faulty) -> None:
    players = faulty.domain.table("players")
    await players.put("ann", 1)
    with pytest.raises(InvalidRecord, match="'ann'") as raised:
        await players.put("ann", value)
    assert raised.value.code == "invalid-record"
    with pytest.raises(InvalidRecord):
        await players.update("ann", lambda _: value)
    with pytest.raises(InvalidRecord, match="global value"):
        await faulty.domain.global_.set(value)
    assert faulty.backend.unit.content == {"players": {"ann": 1}}


async def test_what_is_stored_does_not_follow_its_maker(root: Context, tmp_path: Path) -> None:
    home = await StorageHome(root, tmp_path).open()
    domain = await home.domains.open(DomainSpec("bags", 0, {"bags": lambda value: value}))
    mine: dict[str, Any] = {"items": [1]}
    await domain.table("bags").put("a", mine)
    mine["items"].append(2)
    found = domain.table("bags").get("a")
    assert found == {"items": [1]}
    with pytest.raises(TypeError):
        found["items"].append(3)


async def test_a_domain_has_one_holder(home: StorageHome) -> None:
    first, second = await asyncio.gather(
        home.domains.open(SPEC), home.domains.open(SPEC), return_exceptions=True
    )
    assert isinstance(first, Domain)
    assert isinstance(second, DomainOpen)
    assert home.domains.get("scores") is first
    await first.close()
    assert home.domains.get("scores") is None
    await home.domains.open(SPEC)


async def test_a_domain_goes_with_the_plugin_that_opened_it(home: StorageHome) -> None:
    async def body(ctx: Context) -> None:
        await ctx.require(DomainFacility).open(SPEC)

    owner = await home.root.inject([DomainFacility], body)
    assert home.domains.get("scores") is not None
    await owner.dispose()
    assert home.domains.get("scores") is None


async def test_writes_finish_before_their_backend_ends(home: StorageHome) -> None:
    if home.domains.get("scores") is not None:
        raise AssertionError
    domain = await home.domains.open(SPEC)
    writes = [asyncio.ensure_future(domain.table("players").put(str(n), n)) for n in range(9)]
    await asyncio.sleep(0)
    await home.json.dispose()
    await home.sqlite.dispose()
    done = await asyncio.gather(*writes, return_exceptions=True)
    assert done == [None] * 9


async def test_a_table_that_is_not_in_the_spec_is_named(home: StorageHome) -> None:
    domain = await home.domains.open(DomainSpec("bare", 0))
    with pytest.raises(LookupError, match="'missing'"):
        domain.table("missing")
    with pytest.raises(LookupError, match="no global"):
        _ = domain.global_


async def test_a_global_schema_that_takes_null_is_refused(home: StorageHome) -> None:
    with pytest.raises(ValueError, match="takes None"):
        await home.domains.open(DomainSpec("loose", 0, global_schema=lambda value: value))
    with pytest.raises(InvalidRecord):
        await home.domains.open(DomainSpec("loose", 0, global_schema=is_number))


async def test_a_backend_without_records_is_refused(root: Context) -> None:
    await root.plugin(storage.plugin)
    root.require(Storage).register("blobs", StorageBackend())
    root.provide(backend_key("blobs"), object())
    await root.plugin(storage_domain, {"backend": "blobs"})
    ready = asyncio.Event()
    root.inject([DomainFacility], lambda _: ready.set())
    await ready.wait()
    with pytest.raises(FacetUnsupported, match="'blobs'"):
        await root.require(DomainFacility).open(SPEC)
    assert root.require(DomainFacility).get("scores") is None


async def test_a_route_decides_where_a_domain_is(root: Context, tmp_path: Path) -> None:
    home = await StorageHome(root, tmp_path).open("json", routes={"scores": "sqlite"})
    await (await home.domains.open(SPEC)).table("players").put("ann", 1)
    await (
        (await home.domains.open(DomainSpec("bags", 0, {"bags": is_number})))
        .table("bags")
        .put("a", 1)
    )
    assert (tmp_path / "records.db").exists()
    assert "bags.json" in os.listdir(tmp_path)


async def test_a_stored_record_that_does_not_fit_refuses_the_domain(
    home: StorageHome,
) -> None:
    loose = DomainSpec("scores", 1, {"players": lambda value: value})
    domain = await home.domains.open(loose)
    await domain.table("players").put("ann", "many")
    await domain.close()
    with pytest.raises(InvalidRecord, match=r"'ann' of table 'players'") as raised:
        await home.domains.open(SPEC)
    assert (raised.value.table, raised.value.key) == ("players", "ann")
    again = await home.domains.open(loose)
    assert again.table("players").get("ann") == "many"


async def test_whatever_a_schema_raises_means_that_the_record_does_not_fit(
    home: StorageHome,
) -> None:
    domain = await home.domains.open(
        DomainSpec(
            "names", 0, {"names": lambda value: value.strip()}, lambda value: value.strip(), ""
        )
    )
    with pytest.raises(InvalidRecord, match="'ann'"):
        await domain.table("names").put("ann", 5)
    with pytest.raises(InvalidRecord, match="global value"):
        await domain.global_.set(5)


async def test_a_stored_global_value_that_does_not_fit_refuses_the_domain(
    home: StorageHome,
) -> None:
    def is_text(value: Any) -> None:
        if not isinstance(value, str):
            raise ValueError("no text")

    loose = DomainSpec("scores", 1, global_schema=is_text, global_initial="")
    domain = await home.domains.open(loose)
    await domain.global_.set("x")
    await domain.close()
    with pytest.raises(InvalidRecord) as raised:
        await home.domains.open(DomainSpec("scores", 1, global_schema=is_number, global_initial=1))
    assert (raised.value.table, raised.value.key) == ("", "")


# Damaged media


def derived(name: str = "scores", version: int = 1) -> DomainSpec:
    return DomainSpec(name, version, {"players": is_number}, recovery="reset")


async def test_a_damaged_medium_refuses_and_says_what_to_do(root: Context, tmp_path: Path) -> None:
    (tmp_path / "scores.json").write_text('{"unit":')
    home = await StorageHome(root, tmp_path).open()
    with pytest.raises(MalformedMedium, match=r"scores\.json.*move it away") as raised:
        await home.domains.open(SPEC)
    assert raised.value.code == "malformed-medium"
    assert (tmp_path / "scores.json").read_text() == '{"unit":'
    assert home.domains.get("scores") is None


async def test_a_damaged_medium_of_derived_data_is_reset(
    root: Context, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "scores.json").write_text('{"unit":')
    home = await StorageHome(root, tmp_path).open()
    with caplog.at_level(logging.WARNING, "dsh.storage"):
        domain = await home.domains.open(derived())
    assert "scores.json" in caplog.text
    await domain.table("players").put("ann", 1)
    assert json.loads((tmp_path / "scores.json").read_text())["tables"]["players"] == {"ann": 1}
    assert (tmp_path / "scores.json.damaged").read_text() == '{"unit":'


async def test_derived_data_of_another_version_is_reset(home: StorageHome) -> None:
    domain = await home.domains.open(derived(version=2))
    await domain.table("players").put("ann", 1)
    await domain.close()
    with pytest.raises(VersionMismatch):
        await home.domains.open(SPEC)
    again = await home.domains.open(derived())
    assert len(again.table("players")) == 0
    await again.table("players").put("bob", 2)
    await again.close()
    assert dict((await home.domains.open(derived())).table("players").entries()) == {"bob": 2}


async def test_a_derived_record_that_does_not_fit_is_left_out(home: StorageHome) -> None:
    domain = await home.domains.open(DomainSpec("scores", 1, {"players": lambda value: value}))
    await domain.table("players").put("ann", "many")
    await domain.table("players").put("bob", 2)
    await domain.close()
    again = await home.domains.open(derived())
    assert dict(again.table("players").entries()) == {"bob": 2}


@pytest.mark.parametrize("backend", ["json", "sqlite"])
async def test_derived_data_is_kept_in_memory_where_nothing_can_be_stored(
    backend: str, root: Context, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "storages"
    folder.mkdir()
    if backend == "json":
        (folder / "scores.json").mkdir()
        (folder / "scores.json.damaged").mkdir()
        (folder / "scores.json.damaged" / "file").write_text("")
    else:
        (folder / "records.db").write_bytes(b"no database at all, but long enough")
    home = await StorageHome(root, folder).open(backend)
    domain = await home.domains.open(derived())
    await domain.table("players").put("ann", 1)
    assert domain.table("players").get("ann") == 1
    assert "in memory only" in caplog.text
