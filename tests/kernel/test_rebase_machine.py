"""Random moves of a live tree end where the same tree does when it is mounted afresh."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from kernel_support import Reports

from dsh.kernel import Context, DuplicateService, Fiber, FiberState, Label

NAMES = ("red", "green")
LABELS = {"a": Label("a"), "b": Label("b")}
SETTLE_TICKS = 4_000
Isolate = dict[str, str]


@dataclass
class Node:
    """A row of the tree: a group, or a leaf that may need and provide services."""

    number: int
    parent: Node | None
    isolate: Isolate
    needs: tuple[str, ...] = ()
    provides: str | None = None
    group: bool = False

    def path(self) -> Iterator[Node]:
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    def label(self, name: str) -> str | None:
        return next((node.isolate[name] for node in self.path() if name in node.isolate), None)


@dataclass
class Mounted:
    """What became of a node in one tree."""

    anchor: Context
    fiber: Fiber
    runs: int = 0
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)


class Tree:
    """Mounted nodes under a root of their own."""

    def __init__(self, run: Callable[[Callable[[], Any]], Any]) -> None:
        self.root = Context()
        self.reports = Reports()
        self.root.fiber.kernel.reporter = self.reports
        self.mounted: dict[int, Mounted] = {}
        self._run = run

    def mount(self, node: Node) -> None:
        above = self.root if node.parent is None else self.mounted[node.parent.number].fiber.ctx
        anchor = above.anchor()

        def body(ctx: Context) -> Callable[[], None]:
            found = self.mounted[node.number]
            found.runs += 1
            found.seen = {name: ctx.require(name) for name in node.needs}
            if node.provides is not None:
                ctx.provide(node.provides, (node.number, found.runs))
            return found.seen.clear

        body.inject = node.needs  # type: ignore[attr-defined]

        def begin() -> None:
            anchor.rebase(isolate=labels(node))
            self.mounted[node.number] = Mounted(anchor, anchor.plugin(body))

        self._run(begin)

    def rebase(self, node: Node) -> None:
        above = self.root if node.parent is None else self.mounted[node.parent.number].fiber.ctx
        anchor = self.mounted[node.number].anchor
        self._run(lambda: anchor.rebase(parent=above, isolate=labels(node)))

    def outcome(self) -> dict[int, tuple[FiberState, dict[str, int]]]:
        return {
            number: (found.fiber.state, {name: by for name, (by, _) in found.seen.items()})
            for number, found in self.mounted.items()
        }


def labels(node: Node) -> dict[str, Label]:
    return {name: LABELS[label] for name, label in node.isolate.items()}


isolates = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(sorted(LABELS)), max_size=2)


class RebaseMachine(RuleBasedStateMachine):
    """Adds groups and plugins, moves them and changes their scopes, at random."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.nodes: list[Node] = []
        self.tree = Tree(self.run)

    def run(self, action: Callable[[], Any]) -> Any:
        async def call() -> Any:
            return action()

        return self.loop.run_until_complete(call())

    def settle(self, tree: Tree) -> None:
        async def wait() -> None:
            for _ in range(SETTLE_TICKS):
                if not tree.root.fiber.kernel.tasks:
                    return
                await asyncio.sleep(0)
            raise AssertionError(f"no end of {tree.root.fiber.kernel.tasks}")

        self.loop.run_until_complete(wait())

    @initialize()
    def begin(self) -> None:
        for isolate in ({}, {"red": "a"}, {"green": "a", "red": "b"}):
            self._add(Node(len(self.nodes), None, isolate, group=True))

    @rule(data=st.data(), isolate=isolates)
    def add_group(self, data: st.DataObject, isolate: Isolate) -> None:
        self._add(Node(len(self.nodes), self._pick_group(data), isolate, group=True))

    @rule(data=st.data(), isolate=isolates, name=st.sampled_from(NAMES))
    def add_provider(self, data: st.DataObject, isolate: Isolate, name: str) -> None:
        self._add(Node(len(self.nodes), self._pick_group(data), isolate, provides=name))

    @rule(data=st.data(), needs=st.sets(st.sampled_from(NAMES), min_size=1))
    def add_reader(self, data: st.DataObject, needs: set[str]) -> None:
        self._add(Node(len(self.nodes), self._pick_group(data), {}, needs=tuple(sorted(needs))))

    @rule(data=st.data(), isolate=isolates)
    def add_relay(self, data: st.DataObject, isolate: Isolate) -> None:
        node = Node(len(self.nodes), self._pick_group(data), isolate, ("red",), "green")
        self._add(node)

    def _pick_group(self, data: st.DataObject) -> Node | None:
        return data.draw(st.sampled_from([None, *(node for node in self.nodes if node.group)]))

    def _add(self, node: Node) -> None:
        assume(not self._clashes([*self.nodes, node]))
        self.nodes.append(node)
        self.tree.mount(node)
        self.settle(self.tree)

    @rule(data=st.data(), isolate=st.none() | isolates, move=st.booleans())
    def rebase(self, data: st.DataObject, isolate: Isolate | None, move: bool) -> None:
        node = data.draw(st.sampled_from(self.nodes))
        before = (node.parent, node.isolate)
        parent = self._pick_group(data) if move else node.parent
        assume(parent is None or node not in parent.path())
        node.parent, node.isolate = parent, node.isolate if isolate is None else isolate
        clashes = self._clashes(self.nodes)
        if any(item.needs for item in clashes):
            node.parent, node.isolate = before
            return
        old = {number: (found.runs, dict(found.seen)) for number, found in self._live()}
        if clashes:
            with pytest.raises(DuplicateService):
                self.tree.rebase(node)
            node.parent, node.isolate = before
        else:
            self.tree.rebase(node)
        self.settle(self.tree)
        for number, found in self._live():
            runs, seen = old[number]
            if found.seen == seen and self.nodes[number].needs:
                assert found.runs == runs, (number, seen)
            elif not self.nodes[number].needs:
                assert found.runs == runs == 1

    def _live(self) -> list[tuple[int, Mounted]]:
        return list(self.tree.mounted.items())

    def _clashes(self, nodes: list[Node]) -> list[Node]:
        """The nodes that provide a name in the scope where another one does."""
        slots: dict[tuple[str, str | None], list[Node]] = {}
        for node in nodes:
            if node.provides is not None:
                slots.setdefault((node.provides, node.label(node.provides)), []).append(node)
        return [node for found in slots.values() if len(found) > 1 for node in found]

    @invariant()
    def it_is_as_if_mounted_afresh(self) -> None:
        fresh = Tree(self.run)
        for node in sorted(self.nodes, key=lambda node: len(list(node.path()))):
            fresh.mount(node)
        self.settle(fresh)
        assert self.tree.outcome() == fresh.outcome()
        self.run(fresh.root.dispose)
        self.settle(fresh)

    @invariant()
    def nothing_is_reported(self) -> None:
        assert not self.tree.reports.errors

    @invariant()
    def every_plugin_has_the_owner_that_its_row_says(self) -> None:
        for node in self.nodes:
            fiber = self.tree.mounted[node.number].fiber
            above = node.parent
            owner = self.tree.root.fiber if above is None else self.tree.mounted[above.number].fiber
            assert fiber.parent_fiber is owner
            assert owner._effects[fiber._serial] is fiber

    def teardown(self) -> None:
        try:
            self.run(self.tree.root.dispose)
            self.settle(self.tree)
            assert self.tree.root.census() == Context().census()
            assert not asyncio.all_tasks(self.loop)
        finally:
            self.loop.close()


TestRebaseMachine = pytest.mark.timeout(120)(RebaseMachine.TestCase)
TestRebaseMachine.settings = settings(
    max_examples=40,
    stateful_step_count=20,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
