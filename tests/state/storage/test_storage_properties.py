"""A domain is a dict: under any writes, any failures of the backend, and any restarts."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from storage_support import KINDS, make_backend

from dsh.base.json import equal
from dsh.kernel import Context
from dsh.state.storage import (
    Domain,
    DomainFacility,
    DomainSpec,
    KvFacet,
    KvUnit,
    Storage,
    StorageBackend,
    UnitContent,
    UnitDescriptor,
    backend_key,
)
from dsh.state.storage import hub as storage
from dsh.state.storage.domain import facility as storage_domain
from dsh.state.storage.errors import MissingKey
from dsh.state.storage.service import record_key


def anything(value: Any) -> None:
    if value is None:
        raise ValueError("null")


SPEC = DomainSpec(
    "model", 4, {"one": anything, "two": anything}, global_schema=anything, global_initial=0
)
TABLES = st.sampled_from(["one", "two"])
KEYS = st.sampled_from(
    ["", "a", "b", "__proto__", "\ud83d\ude00", "\U0001f600", "\udfff"]
) | st.text(st.characters(), max_size=3)
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(st.characters(), max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), TABLES, KEYS, VALUES),
        st.tuples(st.just("delete"), TABLES, KEYS, st.none()),
        st.tuples(st.just("update"), TABLES, KEYS, VALUES),
        st.tuples(st.just("global"), TABLES, KEYS, VALUES),
    ).flatmap(lambda step: st.tuples(st.just(step), st.sampled_from(["ok", "ok", "ok", "fail"])))
    | st.just((("restart", "one", "", None), "ok")),
    max_size=25,
)


class FlakyBackend(StorageBackend, KvFacet):
    """A real backend whose writes fail while it is told to."""

    def __init__(self, inner: StorageBackend) -> None:
        assert inner.kv is not None
        self.kv = self
        self.inner = inner.kv
        self.fails = False

    async def open(self, descriptor: UnitDescriptor) -> KvUnit:
        return FlakyUnit(await self.inner.open(descriptor), self)

    async def discard(self, name: str) -> None:
        raise AssertionError("nothing here is damaged")


class FlakyUnit(KvUnit):
    def __init__(self, inner: KvUnit, backend: FlakyBackend) -> None:
        self.inner = inner
        self.backend = backend

    async def load_all(self) -> UnitContent:
        return await self.inner.load_all()

    async def put_record(self, table: str, key: str, value: Any) -> None:
        self._check()
        await self.inner.put_record(table, key, value)

    async def delete_record(self, table: str, key: str) -> None:
        self._check()
        await self.inner.delete_record(table, key)

    async def set_global(self, value: Any) -> None:
        self._check()
        await self.inner.set_global(value)

    async def close(self) -> None:
        await self.inner.close()

    def _check(self) -> None:
        if self.backend.fails:
            raise OSError("told to fail")


class Model:
    """The domain beside a dict that had the same done to it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.tables: dict[str, dict[str, Any]] = {"one": {}, "two": {}}
        self.global_value: Any = 0
        self.domain: Domain

    async def run(self, steps: list[Any]) -> None:
        rest = list(steps)
        while True:
            rest = await self.one_process(rest)
            if not rest:
                break
        await self.one_process([])

    async def one_process(self, steps: list[Any]) -> list[Any]:
        root = Context()
        real = make_backend(self.kind, self.folder)
        self.backend = FlakyBackend(real)
        await root.plugin(storage.plugin)
        root.require(Storage).register("flaky", self.backend)
        root.provide(backend_key("flaky"), self.backend)
        ready = asyncio.Event()
        root.inject([DomainFacility], lambda _: ready.set())
        await root.plugin(storage_domain, {"backend": "flaky"})
        await ready.wait()
        self.domain = await root.require(DomainFacility).open(SPEC)
        self.compare()
        try:
            for position, (step, fate) in enumerate(steps):
                if step[0] == "restart":
                    return steps[position + 1 :]
                self.backend.fails = fate == "fail"
                await self.step(*step)
                self.backend.fails = False
                self.compare()
            return []
        finally:
            await root.dispose()
            await real.close()

    async def step(self, operation: str, table: str, key: str, value: Any) -> None:
        there = self.domain.table(table)
        model, name = self.tables[table], record_key(key)
        try:
            if operation == "put":
                await there.put(key, value)
                model[name] = there.get(key)
            elif operation == "delete":
                assert await there.delete(key) is (name in model)
                model.pop(name, None)
            elif operation == "update":
                model[name] = await there.update(key, lambda old: [value, old])
            else:
                await self.domain.global_.set(value)
                self.global_value = self.domain.global_.get()
        except OSError:
            assert self.backend.fails
        except MissingKey:
            assert name not in model

    def compare(self) -> None:
        for name, model in self.tables.items():
            assert equal(dict(self.domain.table(name).entries()), model)
        assert equal(self.domain.global_.get(), self.global_value)


@pytest.mark.parametrize("kind", KINDS)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS)
def test_a_domain_is_a_dict_through_failures_and_restarts(kind: str, steps: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(Model(kind, Path(folder)).run(steps))
