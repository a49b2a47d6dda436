"""Random edits of an included file, of its patches and of its rows against a fresh mount.

After every accepted edit the living tree equals a fresh one of the same file and rows, and the
file holds what the tree's own rows are; after every refused edit all is as before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from loader_support import Shelf
from test_loader_stateful import (
    SEEN,
    Row,
    bare,
    config,
    difference,
    fill,
    label,
    leaf,
    name,
    new_group,
    settled,
    view,
    walk,
    working,
)
from tree_support import include, wait_until

from dsh.kernel import Context
from dsh.loader.config_file import parse_rows, render_rows
from dsh.loader.errors import LoaderError
from dsh.loader.loader import Loader, folder_url

INNER = [f"r{n}" for n in range(4)]
OUTER = ["r5", "r6"]
inner, outer = st.sampled_from(INNER), st.sampled_from(OUTER)
garbage = st.sampled_from(
    [
        "",
        "a: 1\n",
        "- {",
        "- {id: r0, name: one}\n- {id: r0, name: two}\n",
        "- {id: r0, nam: one}\n",
    ]
)


@st.composite
def lists(draw: st.DrawFn) -> list[Row]:
    """Rows of a file, some of them in a group."""
    ids = draw(st.permutations(INNER))[: draw(st.integers(0, 4))]
    rows = [draw(leaf(each)) for each in ids]
    if rows and draw(st.booleans()):
        kept = draw(st.integers(0, len(rows)))
        rows = [*rows[:kept], new_group("g0", rows[kept:], draw(label), draw(st.booleans()))]
    return rows


@st.composite
def overlays(draw: st.DrawFn) -> list[Row]:
    """Patches of one row, of rows that may not be there, and new rows."""
    fields = {"disabled": draw(st.sampled_from([None, True])), "config": draw(config)}
    patches = [{"id": draw(inner), **bare(fields)}]
    if draw(st.booleans()):
        patches.append({"insert": [{"id": "r4", "name": draw(working), "config": 1}]})
    return patches[draw(st.integers(0, len(patches))) :]


class World:
    """A loader whose tree includes a file of a folder."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "rows.yml"
        self.root = Context()
        SEEN[self.root] = {}
        self.root.set_reporter(lambda *_: None)

    async def open(self) -> None:
        await self.root.extend(base_url=folder_url(self.file.parent)).plugin(Loader)
        self.loader = self.root.require(Loader)

    async def close(self) -> None:
        await self.root.dispose()
        assert self.root.census() == Context().census()
        assert SEEN.pop(self.root) == {}

    def own_rows(self) -> list[Row] | None:
        tree = self.loader.resolve("inc").subtree
        return None if tree is None else deepcopy(tree.root.rows)

    def view(self) -> dict[str, Any]:
        return {**view(self.loader), "inside": self.own_rows()}


async def fresh(rows: list[Row], file: list[Row]) -> dict[str, Any] | None:
    """The view of a new tree with such a file; None when it is refused."""
    with TemporaryDirectory() as folder:
        world = World(Path(folder))
        world.file.write_text(render_rows(file, world.file))
        await world.open()
        try:
            await world.loader.mount(rows)
            await settled(world.loader)
            return world.view()
        except (LoaderError, ExceptionGroup):
            return None
        finally:
            await world.close()


class IncludedFile(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.shelf = Shelf()
        fill(self.shelf)
        self.folder = TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.world = World(Path(self.folder.name))
        self.runner.run(self.world.open())
        self.rows: list[Row] = []
        self.file: list[Row] = []

    def teardown(self) -> None:
        try:
            self.runner.run(self.world.close())
        finally:
            self.runner.close()
            self.shelf.clear()
            self.folder.cleanup()

    @initialize(rows=lists(), kind=working)
    def begin(self, rows: list[Row], kind: str) -> None:
        top = [{"id": "r5", "name": kind}, include("inc", "rows.yml")]
        self.world.file.write_text(render_rows(rows, self.world.file))
        # Until a list is taken there is nothing that a refusal could leave.
        assume(self.runner.run(fresh(top, rows)) is not None)
        self.runner.run(self.world.loader.mount(top))
        self.rows, self.file = deepcopy(self.world.loader.group.rows), rows

    # what edits are made of

    def edit(self, rows: list[Row], file: list[Row], work: Callable[[], Awaitable[object]]) -> bool:
        return self.runner.run(self._edit(rows, file, work))

    async def _edit(
        self, rows: list[Row], file: list[Row], work: Callable[[], Awaitable[object]]
    ) -> bool:
        world, refused = self.world, None
        before = world.view()
        try:
            async with asyncio.timeout(10):
                await work()
        except (LoaderError, ExceptionGroup) as error:
            refused = str(error)
        await settled(world.loader)
        if refused is not None:
            await self._written()
            assert not difference(world.view(), before), f"refused {rows} {file}: {refused}"
            assert await fresh(rows, file) is None or "cannot go to" in refused, refused
            return False
        self.rows, self.file = deepcopy(rows), deepcopy(file)
        await self._written()
        assert parse_rows(world.file.read_text(), world.file) == file
        assert not difference(world.view(), await fresh(rows, file))
        return True

    async def _written(self) -> None:
        """Wait until no change of rows is on its way into the file."""

        def quiet() -> bool:
            return not any(each.get_name().startswith("save ") for each in asyncio.all_tasks())

        await wait_until(quiet)
        await settled(self.world.loader)

    async def _rewrite(self, text: str) -> None:
        self.world.file.write_text(text)
        tree = self.world.loader.resolve("inc").subtree
        await tree.refresh()  # type: ignore[union-attr]

    def runs(self) -> bool:
        return self.world.loader.resolve("inc").subtree is not None

    def patches(self) -> list[Row]:
        found: list[Row] = next(each for each in self.rows if each["id"] == "inc")["config"].get(
            "patches", []
        )
        return found

    def change(self, id: str, **fields: Any) -> None:
        after = deepcopy(self.rows)
        row = next((each for each in after if each["id"] == id), None)
        assume(row is not None)
        assert row is not None
        merged = bare({**row, **fields})
        row.clear()
        row.update(merged)
        self.edit(after, self.file, lambda: self.world.loader.update(id, fields))

    # edits of the file

    @rule(rows=lists())
    def write(self, rows: list[Row]) -> None:
        assume(self.runs())
        text = render_rows(rows, self.world.file)
        if not self.edit(self.rows, rows, lambda: self._rewrite(text)):
            self._back()

    @rule(text=garbage)
    def spoil(self, text: str) -> None:
        """What is no list of rows is refused, and the last good one goes on."""
        assume(self.runs())
        before = self.world.view()
        with pytest.raises(LoaderError):
            self.runner.run(self._rewrite(text))
        assert self.world.view() == before
        self._back()

    def _back(self) -> None:
        self.runner.run(self._rewrite(render_rows(self.file, self.world.file)))

    # edits of its rows, which are written back

    @rule(id=inner, row=st.fixed_dictionaries({"name": name, "config": config}))
    def configure(self, id: str, row: Row) -> None:
        self.inside(id)
        after = deepcopy(self.file)
        own = next(each for each, _, _ in walk(after) if each["id"] == id)
        merged = bare({**own, **row})
        own.clear()
        own.update(merged)
        self.edit(self.rows, after, lambda: self.world.loader.update(f"inc:{id}", row))

    @rule(id=inner)
    def remove(self, id: str) -> None:
        self.inside(id)
        after = deepcopy(self.file)
        own, rows, _ = next(each for each in walk(after) if each[0]["id"] == id)
        rows.remove(own)
        self.edit(self.rows, after, lambda: self.world.loader.remove(f"inc:{id}"))

    @rule(id=inner, data=st.data())
    def add(self, id: str, data: st.DataObject) -> None:
        assume(self.runs() and not self.patches())
        assume(all(each["id"] != id for each, _, _ in walk(self.file)))
        row = data.draw(leaf(id))
        after = [*deepcopy(self.file), row]
        self.edit(self.rows, after, lambda: self.world.loader.create(row, "inc"))

    def inside(self, id: str) -> None:
        """Take only rows of the file that no patch is about: others are saved differently."""
        assume(self.runs() and not self.patches())
        assume(any(each["id"] == id for each, _, _ in walk(self.file)))

    # edits of what is around it

    @rule(patches=overlays())
    def patch(self, patches: list[Row]) -> None:
        config = {"path": "rows.yml"} | ({"patches": patches} if patches else {})
        self.change("inc", config=config)

    @rule(disabled=st.sampled_from([None, True]))
    def switch(self, disabled: Any) -> None:
        self.change("inc", disabled=disabled)

    @rule(kind=label)
    def isolate(self, kind: Any) -> None:
        self.change("inc", isolate=None if kind is None else {"store": kind})

    @rule(id=outer, kind=working)
    def rename(self, id: str, kind: str) -> None:
        self.change(id, name=kind)


TestIncludedFile = IncludedFile.TestCase
TestIncludedFile.settings = settings(
    max_examples=30,
    stateful_step_count=15,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestIncludedFile.pytestmark = [pytest.mark.timeout(120)]
