"""Live edits: a running tree follows its user's patch files."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Final

from dsh.base.errors import DshError
from dsh.loader.aliases import canonical
from dsh.loader.audit import (
    Problem,
    audit,
    describe,
    leave_out,
    problem_lines,
    problems_of,
)
from dsh.loader.compose import Composition, UserFile
from dsh.loader.errors import ConfigFileError
from dsh.loader.hmr.events import HMR_CONFIG_UPDATE_FAILED, ConfigUpdateFailed
from dsh.loader.hmr.service import Hmr
from dsh.loader.host import AppExit
from dsh.loader.layers import all_rows
from dsh.loader.rows import Row, holds_rows, same

if TYPE_CHECKING:
    from dsh.kernel import Context, Fiber
    from dsh.loader.entry import Entry
    from dsh.loader.journal import Journal
    from dsh.loader.loader import Loader

_WATCHER: Final = "dsh.loader.hmr"
"""Where the plugins live that provide the service ``hmr``."""

_SETTLE_S: Final = 0.03
_MOST_READS: Final = 20


class UserLayers:
    """Applies the user's patch files anew whenever one of them changes.

    Both files are read at each change and composed with fresh copies of all other layers; the
    rows that come of it go to the loader as one transaction. An edit that cannot be used is told
    in one line and leaves the tree as it was. Edits that come meanwhile are taken together,
    afterwards.

    Attributes:
        current: What the tree was last made from.
        left_out: Rows of third parties that are not in the tree, with what is wrong with each.
    """

    def __init__(
        self,
        place: Context,
        loader: Loader,
        composition: Composition,
        journal: Journal,
        *,
        left_out: Sequence[Problem] = (),
        tolerated: Callable[[Composition], frozenset[str]] = lambda _: frozenset(),
        going: Callable[[], bool] = lambda: False,
        abandoned: Callable[[], None] | None = None,
    ) -> None:
        """Take over a tree that has booted.

        Args:
            place: Owns what runs for this; to be disposed of after the tree, so that a change
                which is being applied can come to its end.
            loader: Has the tree.
            composition: What the tree was made from.
            journal: Is told of what changed and of what went wrong.
            left_out: What the boot left out.
            tolerated: Says which rows of a composition may fail without failing an edit.
            going: Tells that the host ends; nothing is applied or told from then on.
            abandoned: Called when an edit took away the last row that could end the run.
        """
        self.current = composition
        self.left_out = {problem.id: problem for problem in left_out}
        self._place = place
        self._loader = loader
        self._journal = journal
        self._tolerated = tolerated
        self._going = going
        self._abandoned = abandoned
        self._again = False
        # A refusal may mount the watcher again, which looks at its files then.
        self._refused_texts: list[str | None] = []
        self._task: asyncio.Task[None] | None = None
        self._watcher: Fiber | None = None
        # An edit is no part of the refresh or the plugin that noticed it.
        self._context = copy_context()

    async def watch(self) -> None:
        """Begin to follow the files, also where neither they nor their folders exist yet.

        Where no row provides the service ``hmr``, one that follows no code is mounted. What goes
        wrong is told: a tree without live edits is better than none.
        """
        with self._journal.holding() as told:
            try:
                await self._provide_watcher()
                await self._place.inject([Hmr], self._register)
            except Exception as error:
                told += _causes(error)
                self._not_followed(error)

    def request(self) -> None:
        """Have the files looked at soon."""
        self._again = True
        if self._task is None or self._task.done():
            own = self._place.fiber.own_task
            self._task = self._context.copy().run(
                lambda: own(self._drain(), "user layers", cancel=False)
            )

    async def idle(self) -> None:
        """Wait until nothing is being applied."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    def _not_followed(self, error: Exception) -> None:
        if not self._going():
            self._journal.record([error])
            self._journal.remark(f"edits of patch files are not followed: {describe(error)}")

    def _register(self, ctx: Context) -> None:
        hmr = ctx.require(Hmr)
        # Two layers may be one file, by a link.
        for path in {
            os.path.realpath(each.path): each.path for each in self.current.files
        }.values():
            hmr.register_config(path, self.request)
        if any(each.text is not None and not each.path.exists() for each in self.current.files):
            self.request()

    async def _drain(self) -> None:
        while self._again and not self._going():
            self._again = False
            await self._refresh()

    async def _refresh(self) -> None:
        changed: list[UserFile] = []
        try:
            files = await self._read_settled()
            texts = [each.text for each in files]
            if texts == self._refused_texts:
                return
            self._refused_texts = []
            changed = [each for each in files if each not in self.current.files]
            if changed:
                self._refused_texts = texts
                fresh = await asyncio.to_thread(self.current.with_files, files)
                await self._apply(fresh, changed)
                self._refused_texts = []
        except Exception as error:
            if not self._going():
                await self._refused(error, changed)

    async def _read_settled(self) -> tuple[UserFile, ...]:
        """Read until two readings agree: whoever writes may be in the middle of it."""
        before = await self._read()
        for _ in range(_MOST_READS):
            if not isinstance(before, Exception) and before == self.current.files:
                break
            await asyncio.sleep(_SETTLE_S)
            found = await self._read()
            if found == before or str(found) == str(before):
                break
            before = found
        if isinstance(before, Exception):
            raise before
        return before

    async def _read(self) -> tuple[UserFile, ...] | Exception:
        try:
            # In a thread: a file may lie where reading takes long.
            return await asyncio.to_thread(self.current.read_files)
        except Exception as error:
            return error

    async def _apply(self, fresh: Composition, changed: list[UserFile]) -> None:
        loader = self._loader
        tolerated = self._tolerated(fresh)
        now = [entry.options for entry in loader.group.entries]
        rows = carried(self.current.rows, now, fresh.rows, self._may_come_in)
        known = {problem.id for problem in audit(loader.entries())}
        could_end = _can_end(loader.entries())
        await self._make_way(rows)
        with self._journal.holding() as told:
            try:
                await loader.mount(rows, may_leave_out=lambda entry: entry.id in tolerated)
                await loader.quiesce()
            except Exception as error:
                told += _causes(error)
                raise
            finally:
                await self._provide_watcher()
            out = await leave_out(loader)
            told += [each.cause for each in out if each.cause is not None]
        if self._going():
            return
        self._tell(fresh, changed, out, known)
        tried = {str(row["id"]) for row in rows}
        still = {str(row["id"]) for row in fresh.rows} - tried
        stay = [each for each in self.left_out.values() if each.id in still]
        self.left_out = {problem.id: problem for problem in (*stay, *out)}
        self.current = fresh
        if could_end and self._abandoned is not None and not _can_end(loader.entries()):
            self._journal.remark("no row is left that could end the run, so it ends here")
            self._abandoned()

    def _may_come_in(self, row: Row) -> bool:
        """Whether a row was left out only because it waited for something."""
        problem = self.left_out.get(str(row.get("id")))
        return problem is not None and problem.pending

    def _tell(
        self,
        fresh: Composition,
        changed: list[UserFile],
        out: list[Problem],
        known: set[str],
    ) -> None:
        """Say what an edit did, and what it leaves to be desired."""
        journal = self._journal
        for warning in fresh.warnings:
            if warning not in self.current.warnings:
                journal.remark(warning)
        if summary := _summary(self.current.rows, fresh.rows):
            paths = ", ".join(str(each.path) for each in changed)
            journal.remark(f"applied {paths}: {summary}")
        for problem in out:
            former = self.left_out.get(problem.id)
            if former is None or former.text != problem.text:
                journal.remark(f"{problem}; it is left out")
        # What failed was reported when it did.
        for line in problem_lines(
            [
                problem
                for problem in audit(self._loader.entries())
                if problem.pending and problem.id not in known
            ]
        ):
            journal.remark(line)

    async def _refused(self, error: Exception, changed: list[UserFile]) -> None:
        self._journal.record([error])
        text = _sentence(error, changed)
        self._journal.remark(f"{text}; the last good configuration goes on")
        path = str(changed[-1].path) if changed else ""
        if isinstance(error, ConfigFileError):
            path = error.path
        try:
            event = ConfigUpdateFailed(path, error)
            await self._place.parallel(HMR_CONFIG_UPDATE_FAILED, event)
        except Exception as raised:
            self._place.report(raised, label=f'listener of "{HMR_CONFIG_UPDATE_FAILED.name}"')

    async def _provide_watcher(self) -> None:
        """Mount a watcher of our own where no row is one, or is to become one."""
        if self._going() or self._place.get(Hmr) is not None:
            return
        watchers = [each for each in self._loader.entries() if _is_watcher(each.options)]
        if any(_is_on(each) for each in watchers):
            return
        from dsh.loader.hmr.config_files import ConfigFiles

        self._watcher = self._place.plugin(ConfigFiles)
        await self._watcher

    async def _make_way(self, rows: list[Row]) -> None:
        """Unmount our own watcher for a row that may provide the same service."""
        coming = any(_is_watcher(row) and row.get("disabled") is not True for row in all_rows(rows))
        if coming and self._watcher is not None:
            watcher, self._watcher = self._watcher, None
            await watcher.dispose()


def carried(
    before: Sequence[Row], now: Sequence[Row], fresh: Sequence[Row], retry: Callable[[Row], bool]
) -> list[Row]:
    """Return what a tree is to be: what it is now, changed as its configuration was.

    What plugins did to rows at run time outlives an edit that is not about them: rows that they
    added, removed, switched off or configured anew stay so.

    Args:
        before: The configuration that the tree came from.
        now: The rows of the tree.
        fresh: The configuration as it is to be.
        retry: Whether a row that is not in the tree, and did not change, is tried again.
    """
    was, live = _by_id(before), _by_id(now)
    rows: list[Row] = []
    for row in fresh:
        key = str(row["id"])
        old, here = was.get(key), live.get(key)
        if old is not None and same(old, row):
            if here is not None or retry(row):
                rows.append(here if here is not None else row)
        elif old is not None and here is not None and _are_groups(old, here, row):
            inner = carried(old["config"], here["config"], row["config"], retry)
            rows.append({**row, "config": inner})
        else:
            rows.append(row)
    wanted = _by_id(fresh)
    return rows + [row for key, row in live.items() if key not in was and key not in wanted]


def _by_id(rows: Iterable[Row]) -> dict[str, Row]:
    return {str(row["id"]): row for row in rows}


def _are_groups(*rows: Row) -> bool:
    return all(
        holds_rows(row)
        and isinstance(row.get("config"), list)
        and all(isinstance(each, dict) and "id" in each for each in row["config"])
        for row in rows
    )


def _can_end(entries: Iterable[Entry]) -> bool:
    """Tell whether there is a row, be it one that waits, which may ask the host to end."""
    return any(AppExit.name in entry.fiber.inject for entry in entries if entry.fiber is not None)


def _is_watcher(row: Row) -> bool:
    return canonical(str(row.get("name"))).startswith(_WATCHER)


def _is_on(entry: Entry) -> bool:
    try:
        return entry.should_run and entry.fiber is not None
    except Exception:
        return False


def _causes(error: BaseException) -> list[BaseException]:
    """Return an error with all that it stands for."""
    found: list[BaseException] = []
    stack: list[BaseException | None] = [error]
    while stack:
        here = stack.pop()
        if here is None or any(here is each for each in found):
            continue
        found.append(here)
        stack += [here.__cause__, *getattr(here, "exceptions", ())]
    return found


def _sentence(error: Exception, changed: Sequence[UserFile]) -> str:
    """Return what is wrong with an edit: file, line and row as far as they are known."""
    problems = problems_of(error)
    if not problems:
        return str(error) if isinstance(error, DshError) else describe(error)
    return "; ".join(
        f'{_where(changed, problem.id)}row "{problem.id}" ({problem.name}): {problem.text}'
        for problem in problems
    )


def _where(changed: Sequence[UserFile], id: str) -> str:
    """Return ``file:line: `` of the last place that names a row; the file alone if none does."""
    pattern = re.compile(rf"(?<![\w-])id:\s*[\"']?{re.escape(id)}(?![\w.-])")
    for file in reversed(changed):
        places = [*pattern.finditer(file.text or "")]
        if places:
            line = (file.text or "").count("\n", 0, places[-1].start()) + 1
            return f"{file.path}:{line}: "
    return f"{changed[-1].path}: " if changed else ""


def _summary(before: Iterable[Row], after: Iterable[Row]) -> str:
    """Return which rows an edit changed, by id."""
    old, new = _by_id(before), _by_id(after)
    kinds = {
        "changed": [key for key in new if key in old and not same(new[key], old[key])],
        "added": [key for key in new if key not in old],
        "removed": [key for key in old if key not in new],
    }
    return "; ".join(f"{kind} {', '.join(ids)}" for kind, ids in kinds.items() if ids)
