"""Random histories of real fibers on a loop of their own; what always holds is checked always."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)
from kernel_support import Reports

from dsh.kernel import Context, DuplicateService, Effect, Fiber, FiberState, InactiveEffect, Label
from dsh.kernel._transition import compute_target
from dsh.kernel.plugins import OptionalNeed

SERVICES = ("red", "green", "blue")
SETTLE_TICKS = 4_000
S = FiberState


class Planned(Exception):
    """The failure that a plugin was told to have."""


@dataclass
class Actor:
    """A plugin under test and what its runs did."""

    needs: tuple[str, ...]
    optional: str | None
    provides: str | None
    load_ticks: int
    undo_ticks: int
    broken: bool = False
    runs: int = 0
    log: list[tuple[str, int]] = field(default_factory=list)
    seen: dict[str, object] = field(default_factory=dict)
    fiber: Fiber | None = None
    violations: list[str] = field(default_factory=list)

    async def body(self, ctx: Context, config: object) -> Callable[[], Any]:
        self.runs += 1
        run = self.runs
        self.seen = {name: ctx.require(name) for name in self.needs}
        if self.optional is not None:
            self.seen[self.optional] = ctx.get(self.optional)
        for step in (1, 2, 3):
            self._register(ctx, run, step)
            await _ticks(self.load_ticks)
        if self.provides is not None:
            ctx.provide(self.provides, object())
        if self.broken:
            raise Planned
        return lambda: self.log.append(("undo", run * 10))

    def _register(self, ctx: Context, run: int, step: int) -> None:
        seen = self.seen

        async def undo() -> None:
            for name in self.needs:
                if ctx.require(name) is not seen[name]:
                    self.violations.append(f"{name} changed before the cleanup ended")
            await _ticks(self.undo_ticks)
            self.log.append(("undo", run * 10 + step))

        ctx.defer(undo)
        self.log.append(("do", run * 10 + step))

    def check_balanced(self, active: bool) -> None:
        """Each registration is undone once, last first within its run."""
        stack: list[int] = []
        for kind, number in self.log:
            if kind == "do":
                stack.append(number)
            elif number % 10:
                assert stack.pop() == number, self.log
        assert bool(stack) == active, (self.log, self.fiber)
        assert not self.violations, self.violations


async def _ticks(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class FiberMachine(RuleBasedStateMachine):
    """Mounts, provides, withdraws, disposes, restarts, updates, breaks and isolates at random."""

    fibers = Bundle("fibers")
    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.root = Context()
        self.start = self.root.census()
        self.reports = Reports()
        self.root.fiber.kernel.reporter = self.reports
        self.label = Label("shared")
        self.places = [
            self.root,
            self.root.isolate("red", self.label),
            self.root.isolate("red", self.label).isolate("green"),
        ]
        self.actors: list[Actor] = []

    def run(self, action: Callable[[], Any]) -> Any:
        async def call() -> Any:
            return action()

        return self.loop.run_until_complete(call())

    @rule(
        target=fibers,
        place=st.integers(0, 2),
        needs=st.sets(st.sampled_from(SERVICES), max_size=2),
        optional=st.none() | st.sampled_from(SERVICES),
        provides=st.none() | st.sampled_from(SERVICES),
        load_ticks=st.integers(0, 3),
        undo_ticks=st.integers(0, 3),
        broken=st.booleans(),
    )
    def mount(self, place: int, needs: set[str], broken: bool, **how: Any) -> Actor:
        return self._mount(self.places[place], needs, broken=broken and len(needs) > 1, **how)

    @rule(
        target=fibers,
        parent=fibers,
        needs=st.sets(st.sampled_from(SERVICES), max_size=1),
        provides=st.none() | st.sampled_from(SERVICES),
        isolate=st.none() | st.sampled_from(SERVICES),
    )
    def mount_below(
        self, parent: Actor, needs: set[str], provides: str | None, isolate: str | None
    ) -> Any:
        fiber = parent.fiber
        assert fiber is not None
        ctx = fiber.ctx if isolate is None else fiber.ctx.isolate(isolate)
        how = {"optional": None, "load_ticks": 1, "undo_ticks": 1, "broken": False}
        try:
            return self._mount(ctx, needs, provides=provides, **how)
        except InactiveEffect:
            return multiple()

    def _mount(self, ctx: Context, needs: set[str], **how: Any) -> Actor:
        if how["optional"] in needs:
            how["optional"] = None
        actor = Actor(needs=tuple(sorted(needs)), **how)
        wants: list[Any] = [*actor.needs]
        if actor.optional is not None:
            wants.append(OptionalNeed(actor.optional))

        async def body(inner: Context, config: object) -> Any:
            return await actor.body(inner, config)

        body.inject = wants  # type: ignore[attr-defined]
        actor.fiber = self.run(lambda: ctx.plugin(body, 0))
        self.actors.append(actor)
        return actor

    @rule(target=held, place=st.integers(0, 2), name=st.sampled_from(SERVICES))
    def provide(self, place: int, name: str) -> Any:
        try:
            return self.run(lambda: self.places[place].provide(name, object()))
        except DuplicateService:
            return multiple()

    @rule(effect=consumes(held))
    def withdraw(self, effect: Effect) -> None:
        self.run(effect.dispose)

    @rule(effect=consumes(held))
    def withdraw_and_provide_again(self, effect: Effect) -> None:
        label = effect.label.split('"')[1]

        def swap() -> None:
            effect.dispose()
            if self.root.get(label, strict=False) is None:
                self.root.provide(label, object())

        self.run(swap)

    @rule(actor=fibers)
    def dispose(self, actor: Actor) -> None:
        assert actor.fiber is not None
        self.run(actor.fiber.dispose)

    @rule(actor=fibers)
    def restart(self, actor: Actor) -> None:
        self._if_alive(actor, lambda fiber: fiber.restart())

    @rule(actor=fibers, config=st.integers(1, 3))
    def update(self, actor: Actor, config: int) -> None:
        self._if_alive(actor, lambda fiber: fiber.update(config))

    @rule(actor=fibers, broken=st.booleans())
    def break_or_mend(self, actor: Actor, broken: bool) -> None:
        actor.broken = broken

    def _if_alive(self, actor: Actor, action: Callable[[Fiber], Any]) -> None:
        fiber = actor.fiber
        assert fiber is not None
        try:
            self.run(lambda: action(fiber))
        except InactiveEffect:
            assert fiber.uid is None

    @rule(count=st.integers(1, 6))
    def let_run(self, count: int) -> None:
        self.loop.run_until_complete(_ticks(count))

    @rule()
    def settle(self) -> None:
        self._settle()
        for actor in self.actors:
            self._check_settled(actor)

    def _settle(self) -> None:
        async def wait() -> None:
            for _ in range(SETTLE_TICKS):
                if not self.root.fiber.kernel.tasks:
                    return
                await asyncio.sleep(0)
            raise AssertionError(f"no end of {self.root.fiber.kernel.tasks}")

        self.loop.run_until_complete(wait())

    def _check_settled(self, actor: Actor) -> None:
        fiber = actor.fiber
        assert fiber is not None
        actor.check_balanced(fiber.state is S.ACTIVE)
        if fiber.uid is None:
            assert fiber.state is S.DISPOSED
            return
        there = all(fiber.ctx.get(name) is not None for name in actor.needs)
        if fiber.state is S.ACTIVE:
            assert compute_target(fiber) == fiber._loaded
            for name in actor.needs:
                assert actor.seen[name] is fiber.ctx.get(name), name
        elif fiber.state is S.FAILED:
            assert isinstance(fiber.error, (Planned, DuplicateService)), repr(fiber.error)
        else:
            assert fiber.state is S.PENDING
            assert not there
            assert {missing.service for missing in fiber.explain()}

    @invariant()
    def active_fibers_have_their_services(self) -> None:
        for actor in self.actors:
            fiber = actor.fiber
            assert fiber is not None
            if fiber.state is S.ACTIVE:
                services = fiber.kernel.services
                for name in actor.needs:
                    binding = services.find(name, fiber.ctx.label_of(name))
                    assert binding is not None, (name, fiber)
                    assert binding.available(fiber.ctx), (name, fiber)
                    assert binding.value is actor.seen[name]

    @invariant()
    def only_planned_failures_are_reported(self) -> None:
        for error in self.reports.errors:
            assert isinstance(error, (Planned, DuplicateService)), repr(error)

    def teardown(self) -> None:
        try:
            self.run(self.root.dispose)
            self._settle()
            for actor in self.actors:
                assert actor.fiber is not None
                assert actor.fiber.state is S.DISPOSED
                actor.check_balanced(active=False)
            assert self.root.census() == self.start
            assert not asyncio.all_tasks(self.loop)
        finally:
            self.loop.close()


TestFiberMachine = pytest.mark.timeout(120)(FiberMachine.TestCase)
TestFiberMachine.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)
