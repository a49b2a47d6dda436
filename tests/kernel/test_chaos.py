"""Random plugins that do everything at once, at the wrong moment: nothing hangs or is left."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from dsh.base.signal import AbortedError
from dsh.kernel import (
    INTERNAL_CONFIG,
    INTERNAL_PLUGIN,
    INTERNAL_SERVICE,
    INTERNAL_STATUS,
    INTERNAL_UPDATE,
    Context,
    DuplicateService,
    Emit,
    Fiber,
    FiberState,
    InactiveEffect,
    Inject,
    InvalidEffect,
    Label,
    ReentrantAwait,
    ServiceError,
    StrayExit,
)

PING = Emit[None]("chaos/ping")
NAMES = ("red", "green", "blue")
HEARD = (PING, INTERNAL_STATUS, INTERNAL_PLUGIN, INTERNAL_SERVICE)
MOVING = {FiberState.LOADING, FiberState.UNLOADING}


class Planned(Exception):
    """What chaos raises on purpose."""


class Odd(BaseException):
    """The same, as no ordinary error."""


FAILURES = (Planned, SystemExit, KeyboardInterrupt, GeneratorExit, Odd, asyncio.CancelledError)
EXPECTED = (
    Planned,
    StrayExit,
    InactiveEffect,
    InvalidEffect,
    DuplicateService,
    ReentrantAwait,
    ServiceError,
    AbortedError,
    ExceptionGroup,
)


async def _ticks(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class World:
    """A root, and random things to do to it."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.root = Context()
        self.start = self.root.census()
        self.kernel = self.root.fiber.kernel
        self.kernel.reporter = lambda error, _, label: self.reports.append((error, label))
        self.reports: list[tuple[BaseException, str]] = []
        self.fibers: list[Fiber] = []
        self.held: list[Any] = []
        self.waiters: list[asyncio.Task[None]] = []
        self.labels = [Label("x"), Label("y"), None]
        self.acts_left = 800

    def happens(self, chance: float) -> bool:
        return self.dice.random() < chance

    def may_raise(self, chance: float) -> None:
        if self.happens(chance):
            raise self.dice.choice(FAILURES)

    def place(self) -> Context:
        return self.dice.choice([self.root, *(fiber.ctx for fiber in self.fibers)])

    # what may be done at any moment

    def act(self, ctx: Context | None = None) -> None:
        if self.acts_left <= 0:
            return
        self.acts_left -= 1
        acts = [self.dispose, self.restart, self.update, self.mount, self.mount, self.provide]
        acts += [self.withdraw, self.wait, self.cancel_waiter, self.dispose_root]
        try:
            if self.happens(0.2):
                (ctx or self.root).effect(self.setup(ctx or self.root), "chaos")
            elif self.happens(0.1):
                self.root.emit(PING, None)
            else:
                self.dice.choice(acts)()
        except EXPECTED:
            pass
        except RuntimeError as error:
            if "ignored GeneratorExit" not in str(error):
                raise

    def any_fiber(self) -> Fiber:
        return self.dice.choice(self.fibers or [self.root.fiber])

    def dispose(self) -> None:
        self.held.append(self.any_fiber().dispose())

    def restart(self) -> None:
        self.any_fiber().restart()

    def update(self) -> None:
        self.any_fiber().update(self.dice.random())

    def provide(self) -> None:
        self.held.append(self.place().provide(self.dice.choice(NAMES), object()))

    def withdraw(self) -> None:
        if self.held:
            getattr(self.dice.choice(self.held), "dispose", lambda: None)()

    def dispose_root(self) -> None:
        if self.happens(0.3):
            self.root.dispose()

    def wait(self) -> None:
        fiber = self.any_fiber()
        work: Awaitable[Any] = fiber.dispose() if self.happens(0.5) else fiber

        async def wait() -> None:
            await _ticks(self.dice.randrange(3))
            try:
                await work
            except EXPECTED:
                pass

        self.waiters.append(asyncio.get_running_loop().create_task(wait()))

    def cancel_waiter(self) -> None:
        if self.waiters:
            self.dice.choice(self.waiters).cancel()

    async def act_later(self, ctx: Context, chance: float = 0.1) -> None:
        for _ in range(self.dice.randrange(3)):
            await _ticks(self.dice.randrange(3))
            self.act(ctx)
            if self.happens(0.25):
                fiber = self.any_fiber()
                try:
                    await (fiber.dispose() if self.happens(0.5) else fiber)
                except EXPECTED:
                    pass
        self.may_raise(chance)

    # effects

    def setup(self, ctx: Context) -> Callable[[], Any]:
        def undo() -> Any:
            self.act(ctx)
            self.may_raise(0.2)
            return self.act_later(ctx, 0.2) if self.happens(0.3) else None

        def items() -> Iterator[Any]:
            try:
                for _ in range(self.dice.randrange(4)):
                    self.act(ctx)
                    self.may_raise(0.1)
                    yield undo
            finally:
                self.may_raise(0.2)
                if self.happens(0.1):
                    yield undo

        async def items_later() -> AsyncIterator[Any]:
            try:
                for _ in range(self.dice.randrange(4)):
                    await self.act_later(ctx)
                    yield undo
            finally:
                await asyncio.sleep(0)
                self.may_raise(0.2)
                if self.happens(0.1):
                    yield undo

        async def fixture() -> AsyncIterator[None]:
            await self.act_later(ctx)
            yield
            await self.act_later(ctx, 0.2)
            if self.happens(0.2):
                yield

        async def later() -> Any:
            await self.act_later(ctx, 0.2)
            return self.dice.choice([undo, items, items_later])()

        def nested() -> Any:
            return 42 if self.happens(0.2) else ctx.effect(self.setup(ctx), "nested")

        return self.dice.choice([lambda: undo, items, items_later, fixture, later, nested])

    # plugins

    def mount(self) -> None:
        if len(self.fibers) > 40:
            return
        ctx = self.place()
        if self.happens(0.4):
            ctx = ctx.isolate(self.dice.choice(NAMES), self.dice.choice(self.labels))
        if self.happens(0.3):
            ctx = ctx.intercept(self.dice.choice(NAMES), {"key": 1})
        body: Any = self.body()
        needs = [name for name in NAMES if self.happens(0.3)]
        body.inject = [Inject.optional(name) if self.happens(0.3) else name for name in needs]
        body.cancel_setup = self.happens(0.2)
        self.fibers.append(ctx.plugin(body, 0))

    def body(self) -> Callable[..., Any]:
        def plain(ctx: Context) -> None:
            self.register(ctx)

        async def later(ctx: Context) -> Any:
            self.register(ctx)
            await self.act_later(ctx)
            return lambda: self.act(ctx)

        def items(ctx: Context) -> Iterator[Any]:
            self.register(ctx)
            yield lambda: self.act(ctx)
            self.may_raise(0.1)
            yield lambda: self.act_later(ctx)

        async def items_later(ctx: Context) -> AsyncIterator[Any]:
            self.register(ctx)
            yield lambda: self.act(ctx)
            await self.act_later(ctx)
            yield lambda: self.act_later(ctx)

        return self.dice.choice([plain, later, items, items_later])

    def register(self, ctx: Context) -> None:
        if self.happens(0.5):
            check = self.check if self.happens(0.5) else None
            try:
                ctx.provide(self.dice.choice(NAMES), object(), check=check)
            except DuplicateService:
                pass
        for _ in range(self.dice.randrange(3)):
            ctx.effect(self.setup(ctx), "chaos")
        if self.happens(0.3):
            event: Any = self.dice.choice(HEARD)
            ctx.on(event, lambda _: self.hear(ctx), everywhere=self.happens(0.3))
        if self.happens(0.2):
            ctx.on(PING, lambda _: self.act_later(ctx))
        if self.happens(0.2):
            ctx.on(INTERNAL_UPDATE, lambda _, go_on: self.hear(ctx) or go_on())
        if self.happens(0.2):
            ctx.on(INTERNAL_CONFIG, lambda _, go_on: self.hear(ctx) or go_on())
        if self.happens(0.2):
            ctx.spawn(self.act_later(ctx), "chaos", critical=self.happens(0.4))
        self.act(ctx)
        self.may_raise(0.1)

    def check(self) -> bool:
        self.hear(self.root)
        return self.happens(0.95)

    def hear(self, ctx: Context) -> None:
        if self.happens(0.3):
            self.act(ctx)
        self.may_raise(0.1)

    # the end

    async def settle(self) -> None:
        for _ in range(30_000):
            if not self.kernel.tasks:
                return
            await asyncio.sleep(0)
        raise AssertionError(f"no end of {self.kernel.tasks}")

    async def end_of_loop(self, rounds: int) -> None:
        """Cancel all tasks again and again, as a loop that ends does."""
        others: set[asyncio.Task[Any]] = set()
        for _ in range(rounds):
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await _ticks(self.dice.randrange(4))
        if others:
            await asyncio.wait(others)


@pytest.mark.parametrize("seed", range(60))
async def test_chaos_ends_with_nothing_left(seed: int) -> None:
    world = World(seed)
    problems: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, problem: problems.append(problem))
    for _ in range(150):
        try:
            world.act()
        except BaseException as error:
            assert type(error) in FAILURES  # noqa: PT017  # a sync setup's, for who made it
        await _ticks(world.dice.randrange(4))
    if seed % 3 == 0:
        await world.end_of_loop(1 + seed % 2)
    world.acts_left = 0
    await world.settle()
    assert not [fiber for fiber in world.fibers if fiber.state in MOVING]

    await world.root.dispose()
    await world.settle()
    for waiter in world.waiters:
        waiter.cancel()
    await asyncio.gather(*world.waiters, return_exceptions=True)

    assert {fiber.state for fiber in world.fibers} <= {FiberState.DISPOSED}
    assert world.root.census() == world.start
    assert problems == []
    for error, label in world.reports:
        assert label != "transition"
        assert isinstance(error, EXPECTED) or "ignored GeneratorExit" in str(error), repr(error)
