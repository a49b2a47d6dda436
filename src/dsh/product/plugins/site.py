"""A profile's site folder: a link to one of its generations, replaced in one step."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dsh.base.files import FileLock, LockTimeout, fsync_dir
from dsh.loader.say import write

SITE: Final = "site"
"""Where a profile's packages are found; the launcher puts it behind the installation."""

_STORE: Final = ".sites"
_KEPT: Final = "kept-"
_LOCK_S: Final = 600.0


class Site:
    """The site of one profile.

    Attributes:
        link: What programs use; may be missing.
    """

    def __init__(self, profile: Path) -> None:
        self.link = profile / SITE
        self._store = profile / _STORE

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other ``dsh plugin`` commands of the profile out while entered.

        Raises:
            LockTimeout: another one took longer than anybody waits.
            OSError: the profile cannot be written.
        """
        with self._lock():
            self._sweep()
            yield

    @contextmanager
    def _lock(self) -> Iterator[None]:
        try:
            lock = FileLock(self.link, timeout_s=0).__enter__()
        except LockTimeout:
            write("dsh plugin: waiting for another dsh plugin command of this profile")
            lock = FileLock(self.link, timeout_s=_LOCK_S).__enter__()
        try:
            yield
        finally:
            lock.__exit__(None, None, None)

    @contextmanager
    def staged(self) -> Iterator[Path]:
        """Provide an empty folder for the next generation; it is gone afterwards if unused."""
        self._store.mkdir(exist_ok=True)
        folder = self._store / secrets.token_hex(6)
        folder.mkdir()
        try:
            yield folder
        finally:
            if folder != self._current():
                shutil.rmtree(folder, ignore_errors=True)

    def publish(self, folder: Path) -> Callable[[], None]:
        """Let the link lead to a staged generation, in one step.

        Returns:
            Takes the step back. The former generation is kept until the next `locked`.

        Raises:
            OSError: the profile cannot be written; the former generation is still there.
        """
        former = self._former()
        self._point(_target(folder))

        def take_back() -> None:
            if former is None:
                self.link.unlink()
            else:
                self._point(former)

        return take_back

    def tidy(self) -> None:
        """Delete generations that the link does not lead to."""
        self._sweep()

    def _former(self) -> str | None:
        """Return where the link leads; a plain folder, which somebody else made, gets a link."""
        if self.link.is_dir() and not self.link.is_symlink():
            adopted = self._store / f"{_KEPT}{secrets.token_hex(6)}"
            self.link.rename(adopted)
            self._point(_target(adopted))
            write(f"dsh plugin: the former site was not made by dsh plugin; it is kept: {adopted}")
        return str(self.link.readlink()) if self.link.is_symlink() else None

    def _current(self) -> Path | None:
        """Return the generation that serves; None when there is none, or it is no one's of ours."""
        if not self.link.is_symlink():
            return None
        folder = self._store / self.link.readlink().name
        return folder if str(self.link.readlink()) == _target(folder) else None

    def _point(self, target: str) -> None:
        passing = self.link.with_name(f".{SITE}.{secrets.token_hex(6)}")
        passing.symlink_to(target)
        try:
            passing.replace(self.link)
        except BaseException:
            passing.unlink(missing_ok=True)
            raise
        fsync_dir(self.link.parent)

    def _sweep(self) -> None:
        """Delete what interrupted commands left, and the generation before this one."""
        current = self._current()
        if not self._store.is_dir():
            return
        for folder in self._store.iterdir():
            if folder != current and not folder.name.startswith(_KEPT):
                shutil.rmtree(folder, ignore_errors=True)
        for passing in self.link.parent.glob(f".{SITE}.*"):
            if passing.is_symlink():
                passing.unlink(missing_ok=True)


def _target(folder: Path) -> str:
    """Return what the link to a generation says; relative, so that a profile can be moved."""
    return f"{_STORE}/{folder.name}"
