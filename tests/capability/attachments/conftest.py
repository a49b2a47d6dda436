"""A store on a home of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attachment_pictures import MakeStore

from dsh.capability.attachments.local import AttachmentConfig, LocalAttachments
from dsh.capability.attachments.service import AttachmentStore
from dsh.kernel import Context


@pytest.fixture
def attachments_home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def make_store(root: Context, attachments_home: Path) -> MakeStore:
    """Mounts the store, in place of the one before, with these fields of its config."""
    mounted: list[Any] = []

    async def make(**fields: Any) -> AttachmentStore:
        if mounted:
            await mounted.pop().dispose()
        config = AttachmentConfig.model_validate({"dshHome": str(attachments_home), **fields})
        mounted.append(await root.plugin(LocalAttachments, config))
        return root.require(AttachmentStore)

    return make


@pytest.fixture
async def store(make_store: MakeStore) -> AttachmentStore:
    return await make_store()
