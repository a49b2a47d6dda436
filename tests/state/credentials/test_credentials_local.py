"""The local provider: the order of sources, writes, edits, events."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dsh.kernel import Context, Fiber
from dsh.loader.environment import LaunchEnvironment
from dsh.state.credentials import (
    CREDENTIALS_RECORD_UPDATED,
    CREDENTIALS_REFERENCE_UPDATED,
    ApiKeyRecord,
    CredentialProvider,
    CredentialState,
    Grant,
    RecordState,
    ResolvedCredential,
)
from dsh.state.credentials.local import LocalCredentials
from dsh.state.credentials.service import (
    CredentialError,
    CredentialsClosed,
    CredentialShadowed,
    InvalidCredentialName,
    InvalidCredentialValue,
)
from dsh.state.documents import DocumentError, OpenToOthers

SECRET = "sk-hidden-0123"


class Store:
    """A mounted provider; what is told is written down."""

    def __init__(self, root: Context, path: Path) -> None:
        self.root, self.path = root, path
        self.told: list[str] = []
        self.reports: list[str] = []
        root.set_reporter(lambda error, *_: self.reports.append(str(error)))
        root.on(CREDENTIALS_REFERENCE_UPDATED, lambda event: self.told.append(event.ref))
        root.on(CREDENTIALS_RECORD_UPDATED, lambda event: self.told.append(event.key))
        self.fiber: Fiber

    async def open(self, **config: Any) -> Store:
        self.fiber = await self.root.plugin(LocalCredentials, {"path": str(self.path), **config})
        return self

    @property
    def keys(self) -> CredentialProvider:
        return self.root.require(CredentialProvider)

    def write(self, text: str) -> None:
        self.path.write_text(text)
        self.path.chmod(0o600)

    async def value(self, ref: str) -> tuple[str, str] | None:
        found = await self.keys.resolve(ref)
        return None if found is None else (found.value, found.source)


@pytest.fixture
async def store(root: Context, tmp_path: Path) -> Store:
    root.provide(
        LaunchEnvironment,
        LaunchEnvironment(
            {"IN_ENV": "env", "EMPTY": ""},
            project={"IN_PROJECT": "project", "IN_ENV": "x", "IN_STORE": "x", "EMPTY": "project"},
            user={"IN_USER": "user", "IN_PROJECT": "x"},
        ),
    )
    return await Store(root, tmp_path / ".credentials.yaml").open()


async def test_sources_are_asked_in_the_order_of_trust(store: Store) -> None:
    await store.keys.set("IN_STORE", "store")
    await store.keys.set("IN_PROJECT", "store")
    assert await store.value("IN_ENV") == ("env", "env")
    assert await store.value("IN_STORE") == ("store", "file")
    assert await store.value("IN_PROJECT") == ("store", "file")
    await store.keys.unset("IN_PROJECT")
    assert await store.value("IN_PROJECT") == ("project", "project-env")
    assert await store.value("IN_USER") == ("user", "user-env")
    assert await store.value("EMPTY") == ("project", "project-env")
    assert await store.value("NOWHERE") is None


async def test_without_a_launch_the_process_is_the_only_environment(
    root: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FROM_PROCESS", "p")
    store = await Store(root, tmp_path / "c.yaml").open()
    assert await store.value("FROM_PROCESS") == ("p", "env")


async def test_descriptions_say_where_from_and_whether_a_write_would_count(store: Store) -> None:
    await store.keys.set("IN_STORE", SECRET)
    describe = store.keys.describe
    assert await describe("IN_ENV") == CredentialState(True, False, "env")
    assert await describe("IN_STORE") == CredentialState(True, True, "file")
    assert await describe("IN_USER") == CredentialState(True, True, "user-env")
    assert await describe("NOWHERE") == CredentialState(False, True)


async def test_a_name_that_the_environment_has_is_not_written(store: Store) -> None:
    with pytest.raises(CredentialShadowed, match="IN_ENV is set in the environment"):
        await store.keys.set("IN_ENV", "x")
    with pytest.raises(CredentialShadowed):
        await store.keys.unset("IN_ENV")
    assert not store.path.exists()


async def test_unset_tells_whether_something_was_there(store: Store) -> None:
    await store.keys.set("A", "a")
    assert (await store.keys.unset("A"), await store.keys.unset("A")) == (True, False)


async def test_bad_names_and_values_are_refused(store: Store) -> None:
    for call in (store.keys.resolve, store.keys.describe, store.keys.unset):
        with pytest.raises(InvalidCredentialName):
            await call("not a name")
    for record in (store.keys.read_record, store.keys.describe_record, store.keys.delete_record):
        with pytest.raises(InvalidCredentialName):
            await record("A_KEY")
    with pytest.raises(InvalidCredentialValue):
        await store.keys.set("A", "")


async def test_each_change_is_told_once_by_its_name(store: Store) -> None:
    await store.keys.set("A", "1")
    await store.keys.set("A", "1")
    await store.keys.set("A", "2")
    await store.keys.unset("A")
    assert store.told == ["A", "A", "A"]


async def test_an_edit_is_seen_by_the_next_request_and_told_for_each_name(store: Store) -> None:
    await store.keys.set("A", "1")
    await store.keys.set("B", "1")
    store.told.clear()
    store.write("version: 1\nrefs: {A: '2', C: '3'}\nrecords: {x/y: {kind: api-key}}\n")
    assert await store.value("A") == ("2", "file")
    assert await store.value("B") is None
    assert store.told == ["A", "B", "C", "x/y"]


async def test_an_edit_that_breaks_the_store_is_told_once_and_changes_nothing(
    store: Store,
) -> None:
    await store.keys.set("A", SECRET)
    store.write(f"version: 1\nrefs: {{A: {SECRET}, A: x}}\n")
    assert await store.value("A") == (SECRET, "file")
    assert await store.value("A") == (SECRET, "file")
    assert len(store.reports) == 1
    assert SECRET not in store.reports[0]
    with pytest.raises(DocumentError):
        await store.keys.set("B", "b")
    store.write("version: 1\nrefs: {A: x}\n")
    await store.keys.set("B", "b")
    assert await store.value("A") == ("x", "file")


async def test_a_store_that_others_may_open_fails_the_start(root: Context, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("version: 1\n")
    path.chmod(0o644)
    with pytest.raises(OpenToOthers, match="chmod 600"):
        await Store(root, path).open()


async def test_a_write_keeps_an_edit_that_nobody_read_yet(store: Store) -> None:
    await store.keys.set("A", "1")
    store.write("# mine\nversion: 1\nrefs:\n  A: '1'\n  B: '2'\n")
    await store.keys.set("C", "3")
    assert store.path.read_text() == "# mine\nversion: 1\nrefs:\n  A: '1'\n  B: '2'\n  C: \"3\"\n"
    assert store.told == ["A", "B", "C"]


async def test_one_failed_write_does_not_stop_the_next(store: Store) -> None:
    failing = asyncio.create_task(store.keys.set("A", "\n"))
    good = asyncio.create_task(store.keys.set("B", "b"))
    with pytest.raises(InvalidCredentialValue):
        await failing
    await good
    assert await store.value("B") == ("b", "file")


async def test_records_are_modified_with_nobody_between(store: Store) -> None:
    keys = store.keys

    async def add(record: Any) -> Grant:
        count = record.payload["n"] if record is not None else 0
        await asyncio.sleep(0)
        return Grant({"n": count + 1})

    await asyncio.gather(*(keys.modify_record("mcp/server", add) for _ in range(5)))
    assert await keys.read_record("mcp/server") == Grant({"n": 5})
    assert await keys.list_records() == [RecordState("mcp/server", True, kind="grant")]
    assert await keys.describe_record("mcp/other") == RecordState("mcp/other", False)
    assert (await keys.delete_record("mcp/server"), await keys.delete_record("mcp/server")) == (
        True,
        False,
    )
    assert store.told == ["mcp/server"] * 6


async def test_a_modification_may_read_and_holds_up_no_reader_but_cannot_write(
    store: Store,
) -> None:
    keys = store.keys
    await keys.set("CLIENT", "secret")
    entered, go = asyncio.Event(), asyncio.Event()

    async def renew(_: Any) -> Grant:
        found = await keys.resolve("CLIENT")
        assert found is not None
        with pytest.raises(CredentialError, match="being modified"):
            await keys.set("CLIENT", "other")
        entered.set()
        await go.wait()
        return Grant(found.value)

    renewing = asyncio.create_task(keys.modify_record("a/b", renew))
    await entered.wait()
    assert await store.value("CLIENT") == ("secret", "file")
    assert await keys.read_record("a/b") is None
    go.set()
    assert await renewing == Grant("secret")


async def test_a_record_without_a_key_is_configured(store: Store) -> None:
    async def ambient(_: Any) -> ApiKeyRecord:
        return ApiKeyRecord()

    await store.keys.modify_record("a/b", ambient)
    assert (await store.keys.describe_record("a/b")).configured


async def test_a_mutation_that_fails_leaves_the_record(store: Store) -> None:
    async def fine(_: Any) -> ApiKeyRecord:
        return ApiKeyRecord("k")

    async def fail(_: Any) -> None:
        raise RuntimeError("no")

    await store.keys.modify_record("a/b", fine)
    with pytest.raises(RuntimeError, match="no"):
        await store.keys.modify_record("a/b", fail)
    assert await store.keys.read_record("a/b") == ApiKeyRecord("k")


async def test_disposal_finishes_what_runs_and_refuses_the_rest(store: Store) -> None:
    keys = store.keys
    entered, go = asyncio.Event(), asyncio.Event()

    async def slow(_: Any) -> ApiKeyRecord:
        entered.set()
        await go.wait()
        return ApiKeyRecord("k")

    writing = asyncio.create_task(keys.modify_record("a/b", slow))
    await entered.wait()
    disposal = asyncio.ensure_future(store.fiber.dispose())
    await asyncio.sleep(0)
    go.set()
    await disposal
    assert writing.done()
    assert "key: k" in store.path.read_text()
    with pytest.raises(CredentialsClosed):
        await keys.resolve("A")
    with pytest.raises(CredentialsClosed):
        await keys.set("A", "a")


async def test_edits_are_told_while_something_follows_files(store: Store) -> None:
    from dsh.loader.hmr.config_files import ConfigFiles

    await store.root.plugin(ConfigFiles)
    store.write("version: 1\nrefs: {A: '2'}\n")
    async with asyncio.timeout(10):
        while store.told != ["A"]:  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.001)


def test_a_resolved_credential_does_not_print_its_value() -> None:
    found = ResolvedCredential(SECRET, "file")
    assert SECRET not in repr(found) + str(found) + f"{found}"
    assert SECRET not in repr(ApiKeyRecord(SECRET, {"A": SECRET})) + repr(Grant(SECRET))
