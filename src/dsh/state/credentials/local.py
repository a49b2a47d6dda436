"""Credentials of this machine: environment, a private file, and ``.env``: row ``credentials``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from dsh.base.json import equal
from dsh.loader.environment import LaunchEnvironment
from dsh.state.credentials.document import FILE_NAME, CredentialDraft, CredentialsDocument, Stored
from dsh.state.credentials.events import (
    CREDENTIALS_RECORD_UPDATED,
    CREDENTIALS_REFERENCE_UPDATED,
    RecordUpdated,
    ReferenceUpdated,
)
from dsh.state.credentials.layers import inherited, resolve_in
from dsh.state.credentials.service import (
    CredentialError,
    CredentialProvider,
    CredentialRecord,
    CredentialsClosed,
    CredentialShadowed,
    CredentialState,
    RecordState,
    ResolvedCredential,
    check_record_key,
    check_reference,
)
from dsh.state.documents import DocumentError
from dsh.state.documents.config import DocumentConfig
from dsh.state.documents.live import enter_in_thread, follow, home_file

if TYPE_CHECKING:
    from dsh.kernel import Context

__all__ = ["LocalCredentials", "plugin"]


class LocalCredentials(CredentialProvider):
    """Looks a secret up when it is asked for; the store on disk is looked at each time.

    A store that cannot be used, or that others may open, fails the start. Later, such a store is
    reported once, what was read before goes on, and writes are refused.
    """

    Config: ClassVar[Any] = DocumentConfig

    def __init__(self, ctx: Context, config: DocumentConfig | None = None) -> None:
        super().__init__(ctx, config)
        self._config = config or DocumentConfig()
        home = self._config.dsh_home
        self._document = CredentialsDocument(home_file(ctx, self._config.path, home, FILE_NAME))
        self._environment = ctx.get(LaunchEnvironment) or LaunchEnvironment(os.environ)
        self._stored = Stored()
        self._stamp: object = None
        self._told = ""
        self._turn = asyncio.Lock()
        self._writer: asyncio.Task[Any] | None = None  # who holds the document for a write
        self._closed = False
        ctx.defer(self._drain, "credentials.drain")

    def start(self) -> None:
        """Read the store, and follow it from then on."""
        self._stamp = self._document.stamp()
        self._stored = self._document.load()
        if self._config.watch:
            settle_s = self._config.debounce_ms / 1000
            follow(self.ctx, self._document.path, self.reload, settle_s)

    async def resolve(self, ref: str) -> ResolvedCredential | None:
        """See `CredentialProvider.resolve`."""
        check_reference(ref)
        await self._look()
        return resolve_in(self._environment, self._stored.refs, ref)

    async def describe(self, ref: str) -> CredentialState:
        """See `CredentialProvider.describe`."""
        found = await self.resolve(ref)
        writable = not inherited(self._environment, ref)
        return CredentialState(found is not None, writable, None if found is None else found.source)

    async def set(self, ref: str, value: str) -> None:
        """See `CredentialProvider.set`."""
        self._refuse_shadowed(ref)
        async with self._draft() as draft:
            await self._write(draft, lambda: draft.set_ref(ref, value))

    async def unset(self, ref: str) -> bool:
        """See `CredentialProvider.unset`."""
        self._refuse_shadowed(ref)
        async with self._draft() as draft:
            there = ref in draft.stored.refs
            await self._write(draft, lambda: draft.unset_ref(ref))
        return there

    async def read_record(self, key: str) -> CredentialRecord | None:
        """See `CredentialProvider.read_record`."""
        check_record_key(key)
        await self._look()
        return self._stored.record(key)

    async def describe_record(self, key: str) -> RecordState:
        """See `CredentialProvider.describe_record`."""
        record = await self.read_record(key)
        return RecordState(key, record is not None, kind=None if record is None else record.kind)

    async def list_records(self) -> list[RecordState]:
        """See `CredentialProvider.list_records`."""
        await self._look()
        records = self._stored.records
        return [RecordState(key, True, kind=item["kind"]) for key, item in records.items()]

    async def modify_record(
        self,
        key: str,
        mutate: Callable[[CredentialRecord | None], Awaitable[CredentialRecord | None]],
    ) -> CredentialRecord | None:
        """See `CredentialProvider.modify_record`."""
        check_record_key(key)
        async with self._draft() as draft:
            record = await mutate(draft.stored.record(key))
            await self._write(draft, lambda: draft.put_record(key, record))
            return draft.stored.record(key)

    async def delete_record(self, key: str) -> bool:
        """See `CredentialProvider.delete_record`."""
        check_record_key(key)
        async with self._draft() as draft:
            there = key in draft.stored.records
            await self._write(draft, lambda: draft.put_record(key, None))
        return there

    async def reload(self) -> None:
        """Take over the store as it is on disk; one without changes has no effect.

        Raises:
            DocumentError: it cannot be used; what was read before stays.
        """
        async with self._turn:
            stamp = self._document.stamp()
            self._take(await asyncio.to_thread(self._document.read))
            self._stamp, self._told = stamp, ""

    async def _look(self) -> None:
        """Read the store again if it is another than the one that was read."""
        if self._closed:
            raise CredentialsClosed
        # During a write it was read already. Waiting would hold up every request while a login
        # is renewed, and for ever who asks from inside of that.
        if self._writer is not None or self._document.stamp() == self._stamp:
            return
        try:
            await self.reload()
        except DocumentError as error:
            if error.message != self._told:
                self._told = error.message
                self.ctx.report(error, label="reading the credentials again")

    @asynccontextmanager
    async def _draft(self) -> AsyncIterator[CredentialDraft]:
        if self._closed:
            raise CredentialsClosed
        here = asyncio.current_task()
        if self._writer is here:
            raise CredentialError("a credential cannot be written while one is being modified")
        async with self._turn, enter_in_thread(self._document.draft()) as draft:
            self._take(draft.stored)
            self._writer = here
            try:
                yield draft
            finally:
                self._writer = None

    async def _write(self, draft: CredentialDraft, change: Callable[[], Stored]) -> None:
        """Carry a change out; once begun, it is finished whatever becomes of the caller."""
        writing = asyncio.ensure_future(asyncio.to_thread(change))
        try:
            await asyncio.shield(writing)
        finally:
            if not writing.done():
                await asyncio.wait([writing])
            # Whoever asks next looks at the file itself: it may have been edited since.
            self._stamp, self._told = None, ""
            self._take(draft.stored)

    def _take(self, stored: Stored) -> None:
        """Go on with what is stored now, and tell what changed, names alone."""
        old, self._stored = self._stored, stored
        for ref in _changed(old.refs, stored.refs):
            self.ctx.emit(CREDENTIALS_REFERENCE_UPDATED, ReferenceUpdated(ref))
        for key in _changed(old.records, stored.records):
            self.ctx.emit(CREDENTIALS_RECORD_UPDATED, RecordUpdated(key))

    def _refuse_shadowed(self, ref: str) -> None:
        check_reference(ref)
        if inherited(self._environment, ref):
            raise CredentialShadowed(ref)

    async def _drain(self) -> None:
        self._closed = True
        async with self._turn:
            return


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    keys = dict.fromkeys((*old, *new))
    return [key for key in keys if not equal(old.get(key), new.get(key))]


plugin = LocalCredentials
