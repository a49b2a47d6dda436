"""Following single configuration files; it needs no library and no roots."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, Final

from dsh.base.clock import SYSTEM_CLOCK, Clock
from dsh.base.errors import message_of
from dsh.kernel import Context, Effect
from dsh.loader.hmr.events import HMR_CONFIG_UPDATE_FAILED, ConfigUpdateFailed
from dsh.loader.hmr.poll import Signature, differs, look
from dsh.loader.hmr.service import Hmr, HmrError, PathTaken, Refresh
from dsh.loader.resolve import base_folder

POLL_S: Final = 0.25
_SETTLE_S: Final = 0.03
_MOST_LOOKS: Final = 20
"""How often a file that changes all the time is looked at before it is taken as it is."""


class RefreshFailed(HmrError):
    """A refresh raised something that is no exception of a program, such as ``SystemExit``."""

    code = "HMR_REFRESH"

    def __init__(self, raised: BaseException) -> None:
        super().__init__(message_of(raised))
        self.__cause__ = raised


class ConfigFiles(Hmr):
    """The service ``hmr`` without roots: it follows registered files, and no code.

    Attributes:
        poll_s: Seconds between two looks at the files.
        clock: Tells whether a time stamp is too fresh to be trusted.
    """

    def __init__(self, ctx: Context, config: Any = None) -> None:
        super().__init__(ctx, config)
        self.base_dir = (base_folder(ctx.base_url) or Path.cwd()).absolute()
        self.poll_s = POLL_S
        self.clock: Clock = SYSTEM_CLOCK
        self._files: dict[str, _File] = {}
        self._looking = asyncio.Lock()
        self._wake = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None

    def start(self) -> Any:
        """Cancel what is due, but not what runs, when the service goes."""
        return self._stop

    def register_config(
        self, path: str | PathLike[str], refresh: Refresh, *, initial: bool = True
    ) -> Effect:
        """See `Hmr.register_config`."""
        caller = self.caller
        place = os.path.abspath(self.base_dir / path)  # noqa: PTH100  # Path keeps ".."
        key = os.path.realpath(place)

        def setup() -> Callable[[], Awaitable[None] | None]:
            if key in self._files:
                raise PathTaken(place)
            file = _File(self, caller, place, refresh, initial)
            self._files[key] = file
            self._begin()
            return lambda: self._unregister(key, file)

        self.ctx.fiber.check_active()
        return caller.effect(setup, f"hmr.register_config({place!r})")

    def linked(self, module: str) -> list[str]:
        """See `Hmr.linked`."""
        return []

    async def scan(self) -> None:
        """See `Hmr.scan`."""
        async with self._looking:
            _take(await self._look())

    async def quiesce(self) -> None:
        """See `Hmr.quiesce`."""
        while busy := [file for file in self._files.values() if file.busy]:
            for file in busy:
                await file.idle()

    def is_registered(self, path: str) -> bool:
        """Tell whether a file is one of those that are followed."""
        return bool(self._files) and os.path.realpath(path) in self._files

    def look_soon(self) -> None:
        """Do not wait for the next look: something may have changed."""
        self._wake.set()

    async def look_again(self, file: _File) -> None:
        """Remember a file as its refresh is about to find it, so that this is no change later."""
        async with self._looking:
            file.signature = await asyncio.to_thread(look, file.path, file.signature, self.clock)

    def _begin(self) -> None:
        self._wake.set()
        if self._poller is None or self._poller.done():
            self._poller = self.ctx.spawn(self._poll(), "hmr: config files")

    def _unregister(self, key: str, file: _File) -> Awaitable[None] | None:
        def forget() -> None:
            if self._files.get(key) is file:
                del self._files[key]

        if not file.busy or file.is_current():
            forget()
            return None
        return self._finish(file, forget)

    async def _finish(self, file: _File, forget: Callable[[], None]) -> None:
        # Still looked at meanwhile: an edit during the last refresh counts.
        await file.idle()
        forget()

    def _stop(self) -> None:
        for file in self._files.values():
            file.cancel()
        self._files.clear()

    async def _poll(self) -> None:
        while self._files:
            self._wake.clear()
            async with self._looking:
                _take(await self._look_settled())
            with suppress(TimeoutError):
                async with asyncio.timeout(self.poll_s):
                    await self._wake.wait()

    async def _look_settled(self) -> dict[_File, Signature]:
        """Look until two looks agree: an editor may be in the middle of a change."""
        found = await self._look()
        for _ in range(_MOST_LOOKS):
            if not any(file.signature is not None for file in found):
                break
            await asyncio.sleep(_SETTLE_S)
            before, found = found, await self._look()
            if before == found:
                break
        return found

    async def _look(self) -> dict[_File, Signature]:
        """Return the files that differ from what was taken last, or were never looked at."""
        files = list(self._files.values())
        if not files:
            return {}
        clock = self.clock
        # In a thread: a file may lie on a network that does not answer.
        seen = await asyncio.to_thread(
            lambda: [look(file.path, file.signature, clock) for file in files]
        )
        found = {}
        for file, signature in zip(files, seen, strict=True):
            if file.signature is None or differs(file.signature, signature):
                found[file] = signature
            else:
                file.signature = signature
        return found


class _File:
    """One registered file, with the refreshes that its changes ask for."""

    def __init__(
        self, service: ConfigFiles, owner: Context, path: str, refresh: Refresh, initial: bool
    ) -> None:
        self.path = path
        self.signature: Signature | None = None
        self._service = service
        self._owner = owner
        self._refresh = refresh
        self._initial = initial
        self._due = False
        self._task: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()

    @property
    def busy(self) -> bool:
        return self._task is not None

    def is_current(self) -> bool:
        """Tell whether the caller is the refresh itself, which cannot wait for its end."""
        return asyncio.current_task() is self._task

    def take(self, signature: Signature) -> None:
        """Accept what the file looks like; ask for a refresh if that is news to the owner."""
        first, self.signature = self.signature is None, signature
        if not first or (self._initial and signature.marks is not None):
            self._due = True
            self._start()

    def cancel(self) -> None:
        """Drop a refresh that is due; one that runs goes on."""
        self._due = False

    async def idle(self) -> None:
        while self._task is not None:
            await self._idle.wait()

    def _start(self) -> None:
        if self._task is None:
            self._idle.clear()
            label = f"hmr refresh of {self.path}"
            self._task = self._owner.fiber.own_task(self._run(), label, cancel=False)

    async def _run(self) -> None:
        try:
            while self._due:
                await self._service.look_again(self)
                # Not before: a change that was seen until here is part of this refresh.
                if self._due:
                    self._due = False
                    await self._refresh_once()
        finally:
            self._task = None
            self._idle.set()

    async def _refresh_once(self) -> None:
        try:
            result = self._refresh()
            if inspect.isawaitable(result):
                await result
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            await self._failed(RefreshFailed(error))
        except Exception as error:
            await self._failed(error)
        except BaseException as error:
            await self._failed(RefreshFailed(error))

    async def _failed(self, error: Exception) -> None:
        self._owner.report(error, label=f"refresh of {self.path}")
        try:
            failure = ConfigUpdateFailed(self.path, error)
            await self._service.ctx.parallel(HMR_CONFIG_UPDATE_FAILED, failure)
        except Exception as raised:
            self._service.ctx.report(raised, label=f'listener of "{HMR_CONFIG_UPDATE_FAILED.name}"')


def _take(found: dict[_File, Signature]) -> None:
    for file, signature in found.items():
        file.take(signature)
