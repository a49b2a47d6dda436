"""The stored sessions of a home, opened for one command."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dsh.base.errors import DshError
from dsh.base.text import did_you_mean
from dsh.base.values import value
from dsh.state.persistence.artifact.layout import decode_segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dsh.kernel import Context
    from dsh.state.log_export.archive import ReadImage
    from dsh.state.persistence.service import SessionPersistence, StoredSession


class NoSuchSession(DshError, LookupError):
    """A word names no session, or several."""

    code = "SESSION_NOT_FOUND"

    def __init__(self, word: str, problem: str) -> None:
        super().__init__(problem)
        self.word = word


@value
class Found:
    """A stored session that was asked for.

    Attributes:
        id: Its id.
        stored: What the store says of it.
    """

    id: str
    stored: StoredSession


class NoStore(DshError, LookupError):
    """A profile has no row that keeps sessions, or it does not run."""

    code = "SESSION_STORE_MISSING"

    def __init__(self, profile: str, problem: str) -> None:
        super().__init__(f"profile {profile!r} {problem}")
        self.profile = profile
        self.problem = problem


@asynccontextmanager
async def opened(home: Path, profile: str | None = None) -> AsyncIterator[SessionPersistence]:
    """Open the sessions of a home without an app around them.

    Args:
        home: The home folder.
        profile: Whose store to open; the files in the home when absent.

    Raises:
        NoStore: the profile keeps no sessions.
        LoaderError: the profile cannot be used.
    """
    from dsh.kernel import Context
    from dsh.state.persistence.service import SessionPersistence

    context = Context()
    try:
        if profile is None:
            await _mount_files(context, home)
        else:
            await _mount_rows(context, home, profile)
        yield context.require(SessionPersistence)
    finally:
        await context.dispose()


async def _mount_files(context: Context, home: Path) -> None:
    from dsh.state.persistence.jsonl import JsonlPersistence
    from dsh.state.session.store import LocalSessionStore

    await context.plugin(LocalSessionStore)
    await context.plugin(JsonlPersistence, {"root": str(home / "sessions")})


async def _mount_rows(context: Context, home: Path, profile: str) -> None:
    """Mount the rows of a profile that keep sessions, and no others."""
    from dsh.loader.boot import prepare
    from dsh.loader.compose import compose_profile
    from dsh.loader.environment import load_environment, publish_user_values
    from dsh.loader.host import AppExit
    from dsh.state.persistence.service import SessionPersistence

    composition = compose_profile(profile, home)
    rows = [each for each in composition.rows if _keeps_sessions(str(each["id"]))]
    environment = load_environment(home, Path.cwd(), warn=lambda _: None)
    publish_user_values(environment)
    folder = composition.profile.folder
    loader = await prepare(context, folder, home, environment, AppExit(lambda _: None))
    await loader.mount(rows)
    await loader.quiesce()
    if context.get(SessionPersistence) is None:
        failed = [each.fiber.error for each in loader.entries() if each.fiber is not None]
        problem = next((f"has a store that does not run: {each}" for each in failed if each), None)
        raise NoStore(profile, problem or "has no row that keeps sessions")


def _keeps_sessions(row_id: str) -> bool:
    return row_id == "session" or row_id.startswith("session-persistence")


@asynccontextmanager
async def images(home: Path) -> AsyncIterator[ReadImage]:
    """Open the images of a home; nothing is read before one is asked for."""
    from dsh.capability.attachments.local import LocalAttachments
    from dsh.kernel import Context

    context = Context()
    try:
        await context.plugin(LocalAttachments, {"dshHome": str(home)})
        yield context.require(LocalAttachments).read_image
    finally:
        await context.dispose()


async def find(persistence: SessionPersistence, words: Sequence[str]) -> list[Found]:
    """Return the sessions that some words name: ids, beginnings of ids, or ``last``.

    Raises:
        NoSuchSession: a word names none, or several; says which are near.
    """
    stored = await persistence.survey()
    # A damaged copy must not stand for the session itself.
    known = {id_of(each): each for each in sorted(stored, key=lambda each: each.damage is None)}
    ids = [await _resolved(persistence, word, known) for word in words]
    return [Found(each, known[each]) for each in dict.fromkeys(ids)]


def id_of(stored: StoredSession) -> str:
    """Return the id of a stored session, by its folder when its header is not to be trusted."""
    path = stored.path
    if stored.damage is not None and path is not None and path.name.startswith("session."):
        return decode_segment(path.parent.name)
    return "" if stored.header is None else stored.header["id"]


async def _resolved(persistence: SessionPersistence, word: str, known: Iterable[str]) -> str:
    if word in known:
        return word
    if word == "last":
        newest = await persistence.newest(str(Path.cwd()))
        if newest is None:
            raise NoSuchSession(
                word, "no session of this folder is stored; dsh sessions list shows all"
            )
        return newest["id"]
    begun = sorted(each for each in known if _begins(each, word))
    if len(begun) == 1:
        return begun[0]
    if begun:
        some = ", ".join(begun[:3]) + (", ..." if len(begun) > 3 else "")
        raise NoSuchSession(word, f"{word!r} begins the ids of {len(begun)} sessions: {some}")
    near = did_you_mean(word, [*known]) or "; dsh sessions list shows all"
    raise NoSuchSession(word, f"no stored session is called {word!r}{near}")


def _begins(id: str, word: str) -> bool:
    return id.startswith(word) or id.removeprefix("session-").startswith(word)
