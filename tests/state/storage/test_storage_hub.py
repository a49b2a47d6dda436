"""Backends and forms come and go with the plugins that offer them."""

from __future__ import annotations

from pathlib import Path

import pytest
from storage_support import FailingBackend, StorageHome

from dsh.kernel import Context
from dsh.state.storage import Storage, backend_key
from dsh.state.storage import hub as storage
from dsh.state.storage.errors import (
    BackendNotFound,
    DuplicateBackend,
    DuplicateMount,
    FormNotMounted,
)
from dsh.state.storage.service import InvalidStorageName


async def test_a_backend_goes_with_the_plugin_that_registered_it(root: Context) -> None:
    await root.plugin(storage.plugin)
    backend = FailingBackend()
    owner = await root.inject([Storage], lambda ctx: ctx.require(Storage).register("mine", backend))
    hub = root.require(Storage)
    assert hub.backend("mine") is backend
    assert hub.backend_names() == ["mine"]
    with pytest.raises(DuplicateBackend):
        hub.register("mine", FailingBackend())
    await owner.dispose()
    with pytest.raises(BackendNotFound, match="none is registered"):
        hub.backend("mine")


async def test_a_form_goes_with_the_plugin_that_mounted_it(root: Context) -> None:
    await root.plugin(storage.plugin)
    facility = object()
    owner = await root.inject([Storage], lambda ctx: ctx.require(Storage).mount("blob", facility))
    hub = root.require(Storage)
    assert hub.form("blob") is facility
    with pytest.raises(DuplicateMount):
        hub.mount("blob", object())
    await owner.dispose()
    with pytest.raises(FormNotMounted, match="storage-blob"):
        hub.form("blob")
    with pytest.raises(FormNotMounted):
        _ = hub.domain


async def test_a_backend_needs_a_usable_name(root: Context) -> None:
    await root.plugin(storage.plugin)
    with pytest.raises(InvalidStorageName):
        root.require(Storage).register("No Name", FailingBackend())


async def test_the_domain_facility_is_a_form_too(root: Context, tmp_path: Path) -> None:
    home = await StorageHome(root, tmp_path).open()
    assert home.storage.domain == home.domains


async def test_domains_wait_for_every_backend_that_is_routed_to(
    root: Context, tmp_path: Path
) -> None:
    home = await StorageHome(root, tmp_path).open(routes={"other": "later"}, wait=False)
    assert root.get("storage_domain") is None
    owner = await root.inject(
        [Storage], lambda ctx: ctx.require(Storage).register("later", FailingBackend())
    )
    assert root.get("storage_domain") is None
    provided = root.provide(backend_key("later"), object())
    await home.ready.wait()
    assert root.get("storage_domain") is not None
    await provided.dispose()
    assert root.get("storage_domain") is None
    await owner.dispose()
