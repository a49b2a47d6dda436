"""Random edits of a living tree against a tree that is mounted from scratch.

After every accepted edit the living tree equals a fresh one of the same rows; after every refused
edit it equals the one before. Rows that an edit does not touch keep their fibers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from loader_support import Shelf

from dsh.kernel import Context, Inject, ServiceKey
from dsh.loader.errors import LoaderError
from dsh.loader.expr import Expr
from dsh.loader.loader import Loader

Row = dict[str, Any]
IDS = [f"r{n}" for n in range(7)]
GROUPS = ["g0", "g1", "g2"]
SEEN: dict[Context, dict[str, str]] = {}
STORE: ServiceKey[str] = ServiceKey("store")
RESPELLED = "@deepseek-ai/cordis-plugin-group"
ON, OFF = Expr("1 > 2"), Expr("1 < 2")


def note(ctx: Context, text: str) -> None:
    """Keep what a plugin got, for as long as it runs; a listener shows leaks in the census."""
    seen, own = SEEN[ctx.root], ctx.fiber.entry.id
    seen[own] = text
    ctx.on("tests/anything", lambda _: None)
    ctx.defer(lambda: seen.pop(own))


def provide(kind: str) -> Callable[[Context, Any], None]:
    def apply(ctx: Context, config: Any) -> None:
        ctx.provide(STORE, f"{kind}:{config}")
        note(ctx, kind)

    return apply


def chain(ctx: Context, config: Any) -> None:
    ctx.provide(f"other_{ctx.fiber.entry.id}", f"{ctx.require(STORE)}>{config}")
    note(ctx, f"chain of {ctx.require(STORE)}")


def consume(ctx: Context, config: Any) -> None:
    layers = [*ctx.intercepts("store")]
    note(ctx, f"{config} with {ctx.require(STORE)} under {layers}")


def consume_chain(ctx: Context, config: Any) -> None:
    note(ctx, f"{ctx.require(STORE)} and {ctx.require('other_r0')}")


def look(ctx: Context, config: Any) -> None:
    note(ctx, f"perhaps {ctx.get(STORE)}")


def break_down(ctx: Context, config: Any) -> None:
    ctx.on("tests/anything", lambda _: None)
    raise RuntimeError("no luck")


class OnlyNumbers:
    @staticmethod
    def validate(value: object) -> object:
        if isinstance(value, str):
            raise TypeError("a number is needed")
        return value


def fill(shelf: Shelf) -> list[str]:
    """Add the plugins that rows may name."""
    return [
        shelf.module("one", apply=provide("one")),
        shelf.module("two", apply=provide("two")),
        shelf.module("chain", apply=chain, inject=["store"]),
        shelf.module("consume", apply=consume, inject=["store"]),
        shelf.module("consume_chain", apply=consume_chain, inject=["store", "other_r0"]),
        shelf.module("look", apply=look, inject=[Inject.optional("store")]),
        shelf.module("numbers", apply=lambda ctx, config: note(ctx, "n"), Config=OnlyNumbers),
        shelf.module("break_down", apply=break_down),
        "no.such.module",
    ]


NAMES = fill(Shelf())
name = st.sampled_from(NAMES)
working = st.sampled_from(NAMES[:7])
config = st.sampled_from([None, 1, 2, "text"])
label = st.sampled_from([None, True, "x", "y"])
ids = st.sampled_from(IDS)
groups = st.sampled_from(GROUPS)
parents = st.sampled_from([None, *GROUPS])
positions = st.integers(0, 4)


def bare(row: Row) -> Row:
    """A row without fields that say nothing."""
    return {key: value for key, value in row.items() if value is not None}


@st.composite
def leaf(draw: st.DrawFn, id: str) -> Row:
    return made(id, draw(name), draw(config), draw(label), draw(st.booleans()))


def made(id: str, name: str, config: Any, label: Any, disabled: bool) -> Row:
    isolate = None if label is None else {"store": label}
    return bare(
        {
            "id": id,
            "name": name,
            "config": config,
            "isolate": isolate,
            "disabled": disabled or None,
        }
    )


def new_group(id: str, rows: list[Row], label: Any = None, disabled: bool = False) -> Row:
    return {**made(id, "cordis:group", rows, label, disabled), "group": True}


def walk(rows: list[Row], parent: str | None = None) -> Iterator[tuple[Row, list[Row], str | None]]:
    for row in rows:
        yield row, rows, parent
        if row.get("group"):
            yield from walk(row["config"], row["id"])


def find(rows: list[Row], id: str) -> tuple[Row, list[Row], str | None]:
    return next(each for each in walk(rows) if each[0]["id"] == id)


def list_of(rows: list[Row], parent: str | None) -> list[Row]:
    found: list[Row] = rows if parent is None else find(rows, parent)[0]["config"]
    return found


def contents(rows: list[Row]) -> dict[str, Any]:
    """What decides on a row's fiber: the row, and the groups around it."""
    found: dict[str, Any] = {}
    for row, _, parent in walk(rows):
        own = {
            key: value for key, value in row.items() if not (row.get("group") and key == "config")
        }
        found[row["id"]] = (own, found.get(parent) if parent else None)
    return found


def view(loader: Loader) -> dict[str, Any]:
    """What a tree looks like from outside."""
    root = loader.ctx.root
    return {
        "rows": deepcopy(loader.group.rows),
        "states": {
            entry.id: entry.fiber.state.label if entry.running and entry.fiber else None
            for entry in loader.entries()
        },
        "labels": {
            entry.id: getattr(entry.fiber.ctx.label_of("store"), "name", None)
            for entry in loader.entries()
            if entry.fiber is not None
        },
        "parents": {
            entry.id: entry.fiber.parent_fiber.entry and entry.fiber.parent_fiber.entry.id
            for entry in loader.entries()
            if entry.fiber is not None and entry.fiber.parent_fiber is not None
        },
        "seen": dict(SEEN[root]),
        "census": root.census(),
        "realms": len(loader.realms),
    }


def difference(left: dict[str, Any], right: dict[str, Any] | None) -> str:
    """What differs between two views, in full."""
    return "\n".join(
        f"{key}: {left[key]}\n  not {right and right[key]}"
        for key in left
        if right is None or left[key] != right[key]
    )


async def settled(loader: Loader) -> None:
    await loader.quiesce()
    await asyncio.sleep(0)
    await loader.quiesce()


async def fresh(rows: list[Row]) -> dict[str, Any] | None:
    """The view of a new tree of these rows; None when it is refused."""
    root = Context()
    SEEN[root] = {}
    root.set_reporter(lambda *_: None)
    await root.plugin(Loader)
    loader = root.require(Loader)
    try:
        await loader.mount(rows)
        await settled(loader)
        return view(loader)
    except (LoaderError, ExceptionGroup):
        return None
    finally:
        await root.dispose()
        del SEEN[root]


class LivingTree(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.shelf = Shelf()
        fill(self.shelf)
        self.runner = asyncio.Runner()
        self.rows: list[Row] = []
        self.root = self.runner.run(self._open())

    async def _open(self) -> Context:
        root = Context()
        SEEN[root] = {}
        root.set_reporter(lambda *_: None)
        await root.plugin(Loader)
        self.loader = root.require(Loader)
        return root

    def teardown(self) -> None:
        async def close() -> None:
            await self.root.dispose()
            assert self.root.census() == Context().census()
            assert SEEN.pop(self.root) == {}

        try:
            self.runner.run(close())
        finally:
            self.runner.close()
            self.shelf.clear()

    # what edits are made of

    def edit(self, after: list[Row], work: Callable[[], Awaitable[object]]) -> None:
        self.runner.run(self._edit(after, work))

    async def _edit(self, after: list[Row], work: Callable[[], Awaitable[object]]) -> None:
        loader = self.loader
        before = view(loader)
        fibers = {entry.id: entry.fiber for entry in loader.entries()}
        try:
            async with asyncio.timeout(10):
                await work()
        except (LoaderError, ExceptionGroup) as error:
            refused = str(error)
        else:
            refused = None
        await settled(loader)
        if refused is not None:
            assert not difference(view(loader), before), f"refused {after}: {refused}"
            # Only what a fresh tree refuses is refused, or an exchange of labels.
            assert await fresh(after) is None or "cannot go to" in refused
        else:
            assert loader.group.rows == after, f"{loader.group.rows} is not {after}"
            assert not difference(view(loader), await fresh(after))
        untouched = contents(self.rows).items()
        wanted = contents(after)
        for own, content in untouched:
            if wanted.get(own) == content and fibers[own] is not None:
                assert loader.resolve(own).fiber is fibers[own], f"{own} was mounted again"
        self.rows = deepcopy(loader.group.rows)

    def has(self, id: str) -> bool:
        return any(row["id"] == id for row, _, _ in walk(self.rows))

    def change(self, id: str, **fields: Any) -> None:
        assume(self.has(id))
        after = deepcopy(self.rows)
        row, _, _ = find(after, id)
        merged = bare({**row, **fields})
        row.clear()
        row.update(merged)
        self.edit(after, lambda: self.loader.update(id, fields))

    # edits

    @initialize(disabled=st.booleans(), kind=working)
    def begin(self, disabled: bool, kind: str) -> None:
        rows = [
            made("r0", "one", 1, None, False),
            new_group("g0", [made("r1", kind, 1, None, False)], disabled=disabled),
            new_group("g1", []),
        ]
        self.edit(rows, lambda: self.loader.mount(rows))

    @rule(id=ids, parent=parents, position=positions, data=st.data())
    def add(self, id: str, parent: str | None, position: int, data: st.DataObject) -> None:
        assume(parent is None or self.has(parent))
        row = data.draw(leaf(id))
        after = deepcopy(self.rows)
        if self.has(id):
            after.append(row)  # refused: the id is taken
        else:
            list_of(after, parent).insert(position, row)
        self.edit(after, lambda: self.loader.create(row, parent, position))

    @rule(id=groups, parent=parents, kind=label)
    def add_group(self, id: str, parent: str | None, kind: Any) -> None:
        assume(not self.has(id) and (parent is None or self.has(parent)))
        row = new_group(id, [], kind)
        after = deepcopy(self.rows)
        list_of(after, parent).append(row)
        self.edit(after, lambda: self.loader.create(row, parent))

    @rule(id=st.one_of(ids, groups))
    def remove(self, id: str) -> None:
        assume(self.has(id))
        after = deepcopy(self.rows)
        row, rows, _ = find(after, id)
        rows.remove(row)
        self.edit(after, lambda: self.loader.remove(id))

    @rule(id=st.one_of(ids, groups), parent=parents, position=positions)
    def move(self, id: str, parent: str | None, position: int) -> None:
        assume(self.has(id) and (parent is None or self.has(parent)))
        after = deepcopy(self.rows)
        row, rows, _ = find(after, id)
        inside = {each["id"] for each, _, _ in walk([row])}
        rows.remove(row)
        if parent in inside:
            after = [row, row]  # refused: it is inside of itself
        else:
            list_of(after, parent).insert(position, row)
        self.edit(after, lambda: self.loader.update(id, {}, parent=parent, position=position))

    @rule(id=ids, kind=name, parent=parents)
    def move_and_rename(self, id: str, kind: str, parent: str | None) -> None:
        assume(self.has(id) and (parent is None or self.has(parent)))
        after = deepcopy(self.rows)
        row, rows, above = find(after, id)
        row["name"] = kind
        if parent != above:
            rows.remove(row)
            list_of(after, parent).append(row)
        self.edit(after, lambda: self.loader.update(id, {"name": kind}, parent=parent))

    @rule(id=st.one_of(ids, groups), disabled=st.sampled_from([None, True, ON, OFF]))
    def switch(self, id: str, disabled: Any) -> None:
        self.change(id, disabled=disabled)

    @rule(id=groups, kind=st.sampled_from(["cordis:group", RESPELLED, "no.such.module"]))
    def replace_group(self, id: str, kind: str) -> None:
        """The plugin of a group is another, and with it all rows inside are mounted again."""
        self.change(id, name=kind)

    @rule(id=st.one_of(ids, groups), kind=label)
    def isolate(self, id: str, kind: Any) -> None:
        self.change(id, isolate=None if kind is None else {"store": kind})

    @rule(id=st.one_of(ids, groups), layer=st.sampled_from([None, 1, 2]))
    def intercept(self, id: str, layer: Any) -> None:
        # Seen when a plugin runs the next time; so have it run.
        assume(self.has(id) and find(self.rows, id)[0]["name"] != "consume")
        assume(not find(self.rows, id)[0].get("group"))
        self.change(id, intercept=None if layer is None else {"store": {"n": layer}})

    @rule(id=ids, kind=name)
    def rename(self, id: str, kind: str) -> None:
        self.change(id, name=kind)

    @rule(id=ids, value=config)
    def configure(self, id: str, value: Any) -> None:
        self.change(id, config=value)

    @rule(id=ids, kind=working, needs=st.sampled_from([None, ["store"], ["nobody"]]))
    def require(self, id: str, kind: str, needs: Any) -> None:
        assume(kind not in {"one", "two", "chain"})
        self.change(id, name=kind, inject=needs)

    @rule(data=st.data())
    def rewrite(self, data: st.DataObject) -> None:
        """Another list of rows: shuffled, regrouped, some gone, some changed, some new."""
        self.mount(self.rearranged(data))

    @precondition(lambda self: any(self.has(each) for each in GROUPS))
    @rule(id=groups, data=st.data())
    def rewrite_group(self, id: str, data: st.DataObject) -> None:
        assume(self.has(id))
        after = deepcopy(self.rows)
        row = find(after, id)[0]
        rows = row["config"]
        free = [each for each in IDS if not self.has(each)]
        kept = data.draw(st.permutations([each for each in rows if data.draw(st.booleans())]))
        new = [data.draw(leaf(each)) for each in free[: data.draw(st.integers(0, 2))]]
        row["config"] = [*kept, *new]
        config = deepcopy(row["config"])
        self.edit(after, lambda: self.loader.update(id, {"config": config}))

    @rule(one=ids, other=ids)
    def exchange(self, one: str, other: str) -> None:
        """Two rows change their plugins with each other."""
        assume(one != other and self.has(one) and self.has(other))
        after = deepcopy(self.rows)
        left, right = find(after, one)[0], find(after, other)[0]
        left["name"], right["name"] = right["name"], left["name"]
        self.mount(after)

    @rule(id=ids, fresh_id=ids)
    def renew(self, id: str, fresh_id: str) -> None:
        """A row of another id takes over."""
        assume(self.has(id) and not self.has(fresh_id))
        after = deepcopy(self.rows)
        find(after, id)[0]["id"] = fresh_id
        self.mount(after)

    def mount(self, after: list[Row]) -> None:
        self.edit(after, lambda: self.loader.mount(after))

    def rearranged(self, data: st.DataObject) -> list[Row]:
        leaves = [row for row, _, _ in walk(deepcopy(self.rows)) if not row.get("group")]
        leaves = [row for row in leaves if data.draw(st.integers(0, 5))]
        for row in leaves:
            if not data.draw(st.integers(0, 5)):
                row.update(data.draw(leaf(row["id"])))
        taken = {row["id"] for row in leaves}
        free = [each for each in IDS if each not in taken]
        leaves += [data.draw(leaf(each)) for each in free[: data.draw(st.integers(0, 1))]]
        after: list[Row] = []
        places = [after]
        for own in GROUPS[: data.draw(st.integers(0, 3))]:
            row = new_group(own, [], data.draw(label), data.draw(st.booleans()))
            data.draw(st.sampled_from(places)).append(row)
            places.append(row["config"])
        for row in data.draw(st.permutations(leaves)):
            data.draw(st.sampled_from(places)).append(row)
        return after

    @invariant()
    def every_row_is_found_by_its_id(self) -> None:
        for row, _, parent in walk(self.rows):
            entry = self.loader.resolve(row["id"])
            assert entry.options == row
            assert entry.fiber is None or entry.running
            owner = entry.group.owner
            assert (owner.id if owner else None) == parent
        assert len(self.loader.tree.store) == len(list(walk(self.rows)))


TestLivingTree = LivingTree.TestCase
TestLivingTree.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestLivingTree.pytestmark = [pytest.mark.timeout(120)]
