"""What every settings provider does alike: layers, checks, order of writes, events."""

from __future__ import annotations

import asyncio
import re
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol, TypeVar

from pydantic import BaseModel

from dsh.base.json import FrozenDict, equal, freeze, snapshot
from dsh.base.text import did_you_mean
from dsh.kernel import Context
from dsh.state.settings.changes import Change, mutation, replacement, update
from dsh.state.settings.events import (
    SETTINGS_DOCUMENT_UPDATED,
    SETTINGS_UPDATED,
    SectionChanged,
    SettingsUpdated,
    Source,
)
from dsh.state.settings.namespace import Namespace
from dsh.state.settings.schema import require_frozen
from dsh.state.settings.service import (
    Applies,
    DuplicateNamespace,
    InvalidSettingsModel,
    SettingsClosed,
    SettingsConflict,
    SettingsDescriptor,
    SettingsProvider,
    SettingsReadOnly,
    SettingsRefused,
    SettingsScope,
    UnknownNamespace,
)

__all__ = ["DocumentSettings", "SectionDraft"]

M = TypeVar("M", bound=BaseModel)

_NAMESPACE: Final = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_NOTHING: Final[Mapping[str, Any]] = FrozenDict()


class SectionDraft(Protocol):
    """The document while nobody else may write it."""

    @property
    def data(self) -> Mapping[str, Any]:
        """All sections, as they are stored now."""

    async def persist(self, ns: str, section: Mapping[str, Any]) -> None:
        """Store a section; an empty one is taken out."""


class DocumentSettings(SettingsProvider):
    """Settings whose sections are members of one document.

    Providers implement `exclusive`, give what is stored at the start to `open`, and what they
    find later to `publish`.
    """

    def __init__(self, ctx: Context, config: Any = None) -> None:
        super().__init__(ctx, config)
        self._document: Mapping[str, Any] = _NOTHING
        self._revisions: dict[str, int] = {}
        self._namespaces: dict[str, Namespace[Any]] = {}
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._told: dict[str, str] = {}
        ctx.defer(self._drain, "settings.drain")

    @property
    def writable(self) -> bool:
        """See `SettingsProvider.writable`."""
        return True

    @abstractmethod
    def exclusive(self) -> AbstractAsyncContextManager[SectionDraft]:
        """Enter the document for one write; entered by one write at a time.

        Raises:
            DshError: the document cannot be read, or another process keeps it.
        """

    def open(self, document: Mapping[str, Any]) -> None:
        """Take what is stored when the provider starts."""
        self._document = snapshot(dict(document))

    def register(
        self,
        ns: str,
        schema: type[M],
        *,
        base: Mapping[str, Any] | None = None,
        applies: Applies = "live",
        validate: Callable[[M], object] | None = None,
    ) -> SettingsScope[M]:
        """See `SettingsProvider.register`."""
        if _NAMESPACE.fullmatch(ns) is None:
            raise InvalidSettingsModel(
                f"{ns!r} is no namespace: use lower-case words joined by hyphens, a letter first"
            )
        require_frozen(schema)
        if ns in self._namespaces:
            raise DuplicateNamespace(ns)
        below = None if base is None else snapshot(dict(base))
        space = Namespace(self, self.caller, ns, schema, below, applies, validate)
        space.value = space.resolve(self._section(ns))

        def setup() -> Callable[[], None]:
            self._namespaces[ns] = space
            return undo

        def undo() -> None:
            self._told.pop(ns, None)
            if self._namespaces.get(ns) is space:
                del self._namespaces[ns]

        self.caller.effect(setup, f"settings.register({ns!r})")
        return space

    def describe(self, *, redact_secrets: bool = False) -> list[SettingsDescriptor]:
        """See `SettingsProvider.describe`."""
        return [self._describe(space, redact_secrets) for space in self._namespaces.values()]

    def get(self, ns: str) -> Any | None:
        """See `SettingsProvider.get`."""
        space = self._namespaces.get(ns)
        return None if space is None else space.value

    def update(
        self, ns: str, patch: Mapping[str, Any], expected_revision: int | None = None
    ) -> Awaitable[None]:
        """See `SettingsProvider.update`."""
        self._refuse_unless_open(ns)
        return self._enqueue(ns, update(ns, patch), expected_revision)

    def replace(
        self, ns: str, section: Mapping[str, Any], expected_revision: int | None = None
    ) -> Awaitable[None]:
        """See `SettingsProvider.replace`."""
        self._refuse_unless_open(ns)
        return self._enqueue(ns, replacement(ns, section), expected_revision)

    def mutate(
        self, ns: str, ops: Sequence[Mapping[str, Any]], expected_revision: int | None = None
    ) -> Awaitable[None]:
        """See `SettingsProvider.mutate`."""
        self._refuse_unless_open(ns)
        return self._enqueue(ns, mutation(ns, ops), expected_revision)

    def publish(self, document: Mapping[str, Any]) -> None:
        """Take what somebody else stored: bump revisions, resolve, tell.

        A section that does not fit leaves what is in force there, and is reported once.
        """
        document = snapshot(dict(document))
        old, self._document = self._document, document
        changed = [
            ns
            for ns in dict.fromkeys((*old, *document))
            if not equal(old.get(ns, _NOTHING), document.get(ns, _NOTHING))
        ]
        for ns in changed:
            self._bump(ns)
        for ns in changed:
            self._announce(ns)
            self._renew(ns, "provider")

    def track(self, task: asyncio.Task[Any]) -> None:
        """Wait for a task before the service is gone."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def turn(self) -> asyncio.Lock:
        """Held while the document is written or read anew, so that neither overtakes another."""
        return self._turn

    # the course of a write

    def _enqueue(self, ns: str, change: Change, expected: int | None) -> Awaitable[None]:
        space = self._namespaces[ns]
        task = asyncio.get_running_loop().create_task(
            self._write(space, change, expected), name=f"settings.write({ns!r})"
        )
        task.add_done_callback(_take_note)
        self.track(task)
        return _Write(task)

    async def _write(self, space: Namespace[Any], change: Change, expected: int | None) -> None:
        ns = space.ns
        async with self._turn, self.exclusive() as draft:
            self.publish(draft.data)
            actual = self._revisions.get(ns, 0)
            if expected is not None and expected != actual:
                raise SettingsConflict(ns, expected, actual)
            old = self._section(ns)
            section = snapshot(dict(change(space.spell(old) if isinstance(old, dict) else {})))
            value = space.resolve(section)
            if equal(section, old):
                return
            await draft.persist(ns, section)
            rest = {key: item for key, item in self._document.items() if key != ns}
            self._document = snapshot({**rest, ns: section} if section else rest)
            self._bump(ns)
            self._announce(ns)
            if self._namespaces.get(ns) is space:
                self._told.pop(ns, None)
                self._commit(space, value, "update")
            else:
                self._renew(ns, "update")

    def _renew(self, ns: str, source: Source) -> None:
        """Bring the present owner of a namespace, if there is one, to what is stored."""
        space = self._namespaces.get(ns)
        if space is None:
            return
        try:
            value = space.resolve(self._section(ns))
        except SettingsRefused as error:
            if self._told.get(ns) != error.message:
                self._told[ns] = error.message
                self.ctx.report(error, label="taking over what was edited")
        else:
            self._told.pop(ns, None)
            self._commit(space, value, source)

    def _commit(self, space: Namespace[Any], value: Any, source: Source) -> None:
        prev = space.value
        if value == prev:
            return
        space.value = value
        self.ctx.emit(SETTINGS_UPDATED, SettingsUpdated(space.ns, value, prev, source))
        space.tell(value, prev)

    def _bump(self, ns: str) -> None:
        self._revisions[ns] = self._revisions.get(ns, 0) + 1

    def _announce(self, ns: str) -> None:
        self.ctx.emit(SETTINGS_DOCUMENT_UPDATED, SectionChanged(ns, self._revisions[ns]))

    def _section(self, ns: str) -> Any:
        section = self._document.get(ns)
        return _NOTHING if section is None else section

    def _refuse_unless_open(self, ns: str) -> None:
        if self._closed:
            raise SettingsClosed("the settings service")
        if not self.writable:
            raise SettingsReadOnly
        if ns not in self._namespaces:
            raise UnknownNamespace(ns, did_you_mean(ns, list(self._namespaces)))

    def _describe(self, space: Namespace[Any], redact: bool) -> SettingsDescriptor:
        schema, user = space.schema, self._document.get(space.ns)
        layers: list[Any] = [
            freeze(space.value.model_dump(mode="json", by_alias=True, warnings=False)),
            space.base,
            user if user is None or not isinstance(user, dict) else freeze(dict(space.spell(user))),
        ]
        secrets = None
        if redact:
            layers, secrets = schema.redact(*layers)
        value, base, user = layers
        return SettingsDescriptor(
            ns=space.ns,
            schema=schema.public,
            value=value,
            revision=self._revisions.get(space.ns, 0),
            applies=space.applies,
            base=base,
            user=user,
            secrets=secrets,
        )

    async def _drain(self) -> None:
        self._closed = True
        here = asyncio.current_task()
        while tasks := [task for task in self._tasks if task is not here]:
            await asyncio.wait(tasks)


class _Write:
    """A write under way; whoever awaits it may be cancelled without stopping it."""

    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def __await__(self) -> Any:
        return asyncio.shield(self._task).__await__()


def _take_note(task: asyncio.Task[None]) -> None:
    """Look at how a write ended, so that one that nobody awaits is not complained about."""
    if not task.cancelled():
        task.exception()
