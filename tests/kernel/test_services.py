"""Services: provide, read, withdraw, isolate, views, checks, config layers."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from kernel_support import Reports, join, provider, quiet, ticks

from dsh.kernel import (
    AGENT,
    INTERNAL_SERVICE,
    Context,
    ContextKey,
    ContextReadOnly,
    DuplicateService,
    Effect,
    FiberState,
    InactiveService,
    Label,
    NotServiceOwner,
    Service,
    ServiceKey,
    ServiceNotProvided,
    UndeclaredService,
    inject,
    plugin,
)

S = FiberState


class Book(Service):
    """A registry whose entries belong to whoever adds them."""

    name = "book"

    def __init__(self, ctx: Context, config: Any = None) -> None:
        super().__init__(ctx, config)
        self.entries: list[str] = []

    def add(self, entry: str) -> Effect:
        def setup() -> Callable[[], None]:
            self.entries.append(entry)
            return lambda: self.entries.remove(entry)

        return self.caller.effect(setup, f"book.add({entry!r})")

    def own(self, entry: str) -> Effect:
        return self.ctx.defer(lambda: None, f"own {entry}")


# readiness


async def test_dependants_wait_for_a_class_service_whose_start_waits(
    root: Context, log: list[object]
) -> None:
    gate = asyncio.Event()

    class Slow(Service):
        name = "slow"

        async def start(self) -> Callable[[], None]:
            await gate.wait()
            log.append("started")
            return lambda: log.append("stopped")

    user = root.inject([Slow], lambda ctx: log.append("user"))
    giver = root.plugin(Slow)
    await ticks()
    assert (user.state, root.get(Slow), log) == (S.PENDING, None, [])
    assert isinstance(root.get(Slow, strict=False), Slow)
    gate.set()
    await giver
    await user
    await giver.dispose()
    assert log == ["started", "user", "stopped"]


@pytest.mark.parametrize("order", ["fbq", "qbf", "bqf", "qfb", "fqb", "bfq"])
async def test_a_chain_mounted_in_any_order_starts_each_once(
    root: Context, log: list[object], order: str
) -> None:
    def makes(name: str, needs: list[str]) -> Callable[[Context], None]:
        def body(ctx: Context) -> None:
            log.append(name)
            ctx.provide(name, name)

        return plugin(name=name, inject=needs)(body)

    plugins = {
        "f": makes("foo", ["qux"]),
        "b": makes("bar", ["foo", "qux"]),
        "q": makes("qux", []),
    }
    fibers = [root.plugin(plugins[letter]) for letter in order]
    await ticks(20)
    assert sorted(map(str, log)) == ["bar", "foo", "qux"]
    assert all(fiber.state is S.ACTIVE for fiber in fibers)


async def test_all_of_several_services_are_needed(root: Context, log: list[object]) -> None:
    user = root.inject(["foo", "bar"], lambda ctx: log.append((ctx.foo, ctx.bar)))
    foo = root.provide("foo", 1)
    await user
    assert user.state is S.PENDING
    root.provide("bar", 2)
    await user
    await foo.dispose()
    assert (user.state, log) == (S.PENDING, [(1, 2)])


async def test_dependants_finish_before_the_provider_frees_its_own_resources(
    root: Context, log: list[object]
) -> None:
    async def flush() -> None:
        await ticks(5)
        log.append("flushed")

    def database(ctx: Context) -> Callable[[], None]:
        ctx.provide("db", "open")
        return lambda: log.append("closed")

    giver = await root.plugin(database)
    await root.inject(["db"], lambda ctx: flush)
    await giver.dispose()
    assert log == ["flushed", "closed"]


async def test_withdrawal_alone_is_joined_by_awaiting_the_effect(
    root: Context, log: list[object]
) -> None:
    async def flush() -> None:
        await ticks(5)
        log.append("flushed")

    held = root.provide("db", "open")
    await root.inject(["db"], lambda ctx: flush)
    disposal = held.dispose()
    assert root.get("db") is None
    await disposal
    assert log == ["flushed"]


# provide and set


async def test_providing_a_name_twice_names_the_owner(root: Context) -> None:
    def body(ctx: Context) -> None:
        ctx.provide("foo", 1)
        with pytest.raises(DuplicateService, match='"foo" has been registered at giver') as caught:
            ctx.provide("foo", 2)
        assert caught.value.code == "DUPLICATE"

    await root.plugin(plugin(name="giver")(body))
    with pytest.raises(DuplicateService, match="registered at giver"):
        root.provide("foo", 3)


async def test_a_withdrawn_name_is_free_again(root: Context) -> None:
    root.provide("foo", 1).dispose()
    root.provide("foo", 2)
    assert root.get("foo") == 2


async def test_set_replaces_for_everyone_and_wakes_nobody(root: Context, log: list[object]) -> None:
    root.provide("foo", 1)
    user = await root.inject(["foo"], lambda ctx: log.append(ctx.foo))
    root.set("foo", 2)
    await ticks()
    assert (log, user.ctx.foo) == ([1], 2)


async def test_set_needs_a_provided_name_and_its_owner(root: Context) -> None:
    with pytest.raises(ServiceNotProvided, match='cannot set service "foo"'):
        root.set("foo", 1)
    root.provide("foo", 1)
    fiber = await root.plugin(plugin(name="thief")(lambda ctx: None))
    with pytest.raises(NotServiceOwner, match="'thief': it belongs to 'root'") as caught:
        fiber.ctx.set("foo", 2)
    assert caught.value.code == "NOT_OWNER"


async def test_assigning_to_a_context_is_refused(root: Context) -> None:
    with pytest.raises(ContextReadOnly, match=r"property 'foo'.*must be provided"):
        root.foo = 1
    with pytest.raises(AttributeError):
        root.fiber = None  # type: ignore[assignment]


# reading


async def test_ancestor_s_service_is_readable_undeclared_and_a_sibling_s_is_not(
    root: Context,
) -> None:
    seen: list[object] = []

    @plugin(name="parent")
    async def parent(ctx: Context) -> None:
        ctx.provide("foo", 1)

        @plugin(name="child")
        def child(inner: Context) -> None:
            seen.append(inner.foo)
            inner.provide("private", 2)

        await ctx.plugin(child)

    await root.plugin(parent)
    sibling = await root.plugin(plugin(name="sibling")(lambda ctx: None))
    assert seen == [1]
    declared = r"\"foo\" without inject.*'sibling'.*'parent'"
    with pytest.raises(UndeclaredService, match=declared) as c:
        _ = sibling.ctx.foo
    assert c.value.code == "UNDECLARED"
    with pytest.raises(UndeclaredService, match="no mounted plugin provides it"):
        sibling.ctx.require("nothing")
    assert sibling.ctx.get("foo") == 1


async def test_reading_through_a_disposed_context_names_the_inactive_context(
    root: Context,
) -> None:
    root.provide("foo", 1)
    fiber = await root.inject(["foo"], lambda ctx: None)
    await fiber.dispose()
    with pytest.raises(InactiveService, match='required service "foo" in inactive context') as c:
        fiber.ctx.require("foo")
    assert c.value.code == "INACTIVE"


async def test_get_of_what_is_no_service_is_none(root: Context) -> None:
    fiber = await root.plugin(lambda ctx: None)
    for name in ("nothing", "fiber", "plugin", "agent", "timeout"):
        assert root.get(name) is None
        assert fiber.ctx.get(name) is None


async def test_root_reads_are_unchecked(root: Context) -> None:
    await root.plugin(provider(1))
    assert root.foo == 1
    assert root.require("foo") == 1
    with pytest.raises(AttributeError, match="not provided"):
        _ = root.nothing
    with pytest.raises(LookupError):
        root.require("nothing")
    assert not hasattr(root, "nothing")


async def test_optional_read_works_from_a_plugin_and_from_root_alike(root: Context) -> None:
    fiber = await root.plugin(lambda ctx: None)
    await root.plugin(provider(1))
    assert (fiber.ctx.get("foo"), root.get("foo")) == (1, 1)


async def test_own_service_is_readable_at_once_and_others_wait(root: Context) -> None:
    seen: list[object] = []
    gate = asyncio.Event()

    async def body(ctx: Context) -> None:
        ctx.provide("foo", 1)
        seen.extend([ctx.foo, ctx.get("foo"), root.get("foo"), root.get("foo", strict=False)])
        await gate.wait()

    fiber = root.plugin(body)
    await ticks()
    gate.set()
    await fiber
    assert seen == [1, 1, None, 1]


async def test_private_names_are_never_services(root: Context) -> None:
    root.provide("_hidden", 1)
    with pytest.raises(AttributeError):
        _ = root._hidden
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        pickle.dumps(root)
    assert not hasattr(root, "__deepcopy__")
    assert copy is not None


async def test_keys_are_classes_service_keys_and_names(root: Context) -> None:
    key = ServiceKey[int]("number")
    root.provide(key, 3)
    await root.plugin(Book)
    assert (root.get(key), root.require("number"), root.number) == (3, 3, 3)
    assert root.require(Book) is root.require("book")
    assert root.require(Book) == root.book
    with pytest.raises(TypeError, match="not a service key"):
        root.get(object())  # type: ignore[call-overload]


# isolation


async def test_isolated_children_and_root_are_three_scopes(
    root: Context, log: list[object]
) -> None:
    scopes = {"root": root, "a": root.isolate("foo"), "b": root.isolate("foo")}

    def user(name: str) -> Callable[[Context], Callable[[], None]]:
        def body(ctx: Context) -> Callable[[], None]:
            log.append((name, ctx.foo))
            return lambda: log.append((name, "gone"))

        return body

    fibers = {name: ctx.inject(["foo"], user(name)) for name, ctx in scopes.items()}
    held = {}
    for number, (name, ctx) in enumerate(scopes.items()):
        held[name] = ctx.provide("foo", number)
        await ticks()
        assert log == [(name, number)]
        log.clear()
    for name in scopes:
        assert scopes[name].foo == list(scopes).index(name)
        await held[name].dispose()
        assert log == [(name, "gone")]
        assert fibers[name].state is S.PENDING
        log.clear()


async def test_equal_labels_share_a_scope(root: Context, log: list[object]) -> None:
    label = Label("shared")
    one, two = root.isolate("foo", label), root.isolate("foo", label)
    users = [ctx.inject(["foo"], lambda ctx: log.append(ctx.foo)) for ctx in (one, two)]
    one.provide("foo", 5)
    for user in users:
        await user
    assert (log, two.foo, root.get("foo")) == ([5, 5], 5, None)


async def test_isolation_is_inherited_and_changes_no_owner(root: Context) -> None:
    below = root.isolate("foo")
    fiber = await below.plugin(provider(1))
    assert (fiber.parent_fiber, below.fiber) == (root.fiber, root.fiber)
    assert (below.extend().get("foo"), root.get("foo")) == (1, None)


async def test_a_name_isolated_below_a_provider_is_not_its_own(root: Context) -> None:
    seen: list[object] = []

    async def body(ctx: Context) -> None:
        ctx.provide("foo", 1)
        inner = await ctx.isolate("foo").plugin(lambda c: None)
        seen.append(inner.ctx.get("foo"))
        with pytest.raises(UndeclaredService):
            _ = inner.ctx.foo

    await root.plugin(body)
    assert seen == [None]


# views


async def test_effects_made_for_a_caller_die_with_the_caller(root: Context) -> None:
    service = await root.plugin(Book)
    author = await root.inject([Book], lambda ctx: ctx.require(Book).add("todo"))
    root.require(Book).add("kept")
    assert root.require(Book).entries == ["todo", "kept"]
    assert [info.label for info in author.effects()] == ["book.add('todo')"]
    await author.dispose()
    assert root.require(Book).entries == ["kept"]
    assert [info.label for info in service.effects()] == ['ctx.provide("book")']


async def test_effects_made_on_the_service_s_own_context_die_with_the_service(
    root: Context,
) -> None:
    service = await root.plugin(Book)

    def body(ctx: Context) -> None:
        ctx.require(Book).own("x")

    user = await root.inject([Book], body)
    await user.dispose()
    assert [info.label for info in service.effects()] == ['ctx.provide("book")', "own x"]


async def test_reads_of_the_caller_context_resolve_as_the_service(root: Context) -> None:
    class Outer(Service):
        name = "outer"
        inject = ("secret",)

        def secret(self) -> object:
            return self.caller.secret

        def owner(self) -> str:
            return self.caller.fiber.name

    def secret_plugin(ctx: Context) -> None:
        ctx.provide("secret", 42)

    await root.plugin(secret_plugin)
    await root.plugin(Outer)
    user = await root.inject([Outer], lambda ctx: None)
    view = user.ctx.require(Outer)
    assert (view.secret(), view.owner()) == (42, user.name)
    with pytest.raises(UndeclaredService):
        _ = user.ctx.secret


async def test_a_service_that_calls_another_passes_its_caller_on(root: Context) -> None:
    class Front(Service):
        name = "front"
        inject = (Book,)

        def add(self, entry: str) -> None:
            self.caller.require(Book).add(entry)

        def add_own(self, entry: str) -> None:
            self.ctx.require(Book).add(entry)

    await root.plugin(Book)
    front = await root.plugin(Front)
    user = await root.inject([Front], lambda ctx: None)
    user.ctx.require(Front).add("caller's")
    user.ctx.require(Front).add_own("front's")
    assert [info.label for info in user.effects()] == ['book.add("caller\'s")']
    assert [info.label for info in front.effects()][1:] == ['book.add("front\'s")']
    await user.dispose()
    assert root.require(Book).entries == ["front's"]


async def test_views_are_equal_share_state_and_are_cached(root: Context) -> None:
    await root.plugin(Book)
    first, second = root.require(Book), root.extend().require(Book)
    assert first is root.require(Book)
    assert first is not second
    assert (first == second, hash(first) == hash(second)) == (True, True)
    assert isinstance(second, Book)
    second.entries = ["new"]
    assert first.entries == ["new"]


async def test_a_view_of_a_replaced_service_is_not_reused(root: Context) -> None:
    held = await root.plugin(Book)
    before = root.require(Book)
    await held.dispose()
    await root.plugin(Book)
    assert root.require(Book) != before


async def test_the_caller_s_data_comes_along(root: Context) -> None:
    key = ContextKey[str]("who", default="nobody")

    class Who(Service):
        name = "who"

        def ask(self) -> str | None:
            return self.caller[key]

    await root.plugin(Who)
    assert root.require(Who).ask() == "nobody"
    assert root.extend(meta={key: "me"}).require(Who).ask() == "me"


def test_slots_of_a_service_class_are_refused() -> None:
    with pytest.raises(TypeError, match="cannot share"):

        class Slotted(Service):
            __slots__ = ("value",)


# check, refresh, events


async def test_check_gates_dependants_and_is_seen_on_refresh(
    root: Context, log: list[object]
) -> None:
    class Shy(Service):
        name = "shy"
        ready = False

        def check(self) -> bool:
            return self.ready

    await root.plugin(Shy)
    user = root.inject([Shy], lambda ctx: lambda: log.append("lost"))
    shy = root.get(Shy, strict=False)
    assert shy is not None
    assert (user.state, root.get(Shy)) == (S.PENDING, None)
    shy.ready = True
    shy.refresh()
    await user
    assert user.state is S.ACTIVE
    shy.ready = False
    shy.refresh()
    await user
    assert (user.state, log) == (S.PENDING, ["lost"])


async def test_check_may_depend_on_who_asks(root: Context) -> None:
    key = ContextKey[bool]("allowed", default=False)

    class Picky(Service):
        name = "picky"

        def check(self) -> bool:
            return bool(self.caller[key])

    await root.plugin(Picky)
    refused = root.inject([Picky], lambda ctx: None)
    admitted = root.extend(meta={key: True}).inject([Picky], lambda ctx: None)
    await admitted
    assert (refused.state, admitted.state) == (S.PENDING, S.ACTIVE)


async def test_a_check_that_raises_counts_as_no_and_is_reported(
    root: Context, reports: Reports
) -> None:
    def check() -> bool:
        raise ValueError("check broke")

    root.provide("foo", 1, check=check)
    user = root.inject(["foo"], lambda ctx: None)
    assert user.state is S.PENDING
    assert "check broke" in reports.texts


async def test_service_changes_are_told_to_listeners_of_the_same_scope(root: Context) -> None:
    inside = root.isolate("foo")
    seen: list[object] = []
    root.on(INTERNAL_SERVICE, lambda event: seen.append(("outer", event.name, event.value)))
    inside.on(INTERNAL_SERVICE, lambda event: seen.append(("inner", event.name, event.value)))
    held = root.provide("foo", 1)
    inside.provide("foo", 2)
    held.dispose()
    assert seen == [("outer", "foo", 1), ("inner", "foo", 2), ("outer", "foo", None)]


# injected methods, config layers


async def test_injected_method_runs_with_the_service_and_is_cleaned_up_without(
    root: Context, log: list[object]
) -> None:
    class Host:
        def __init__(self, ctx: Context) -> None:
            log.append("host")

        @inject("foo")
        def with_foo(self, ctx: Context) -> Callable[[], None]:
            log.append(f"foo {ctx.foo}")
            return lambda: log.append("foo gone")

        @inject("foo")
        @inject("bar")
        def with_both(self) -> None:
            log.append("both")

    fiber = await root.plugin(Host)
    held = root.provide("foo", 1)
    await ticks()
    await held.dispose()
    root.provide("foo", 2)
    await ticks()
    root.provide("bar", 3)
    await ticks()
    assert log == ["host", "foo 1", "foo gone", "foo 2", "both"]
    await fiber.dispose()
    assert log[-1] == "foo gone"


async def test_inject_of_base_classes_is_merged(root: Context) -> None:
    class Base:
        inject = ("foo",)

        def __init__(self, ctx: Context) -> None: ...

    class Derived(Base):
        inject = ("bar",)

    fiber = root.plugin(Derived)
    assert list(fiber.inject) == ["foo", "bar"]


async def test_config_layers_merge_root_first_between_base_and_head(root: Context) -> None:
    await root.plugin(Book)
    outer = root.intercept(Book, {"a": "outer", "b": "outer"})
    inner = outer.intercept("book", {"b": "inner"})
    service = inner.require(Book)
    assert service.resolve_config({"a": 0, "z": 0}, {"h": 1}) == {
        "a": "outer",
        "z": 0,
        "b": "inner",
        "h": 1,
    }
    assert root.require(Book).resolve_config() == {}


async def test_inject_mapping_adds_a_config_layer_for_the_plugin(root: Context) -> None:
    await root.plugin(Book)
    fiber = await root.inject({Book: {"a": 1}, "book": {"a": 1}}, lambda ctx: None)
    assert fiber.ctx.require(Book).resolve_config() == {"a": 1}
    assert fiber.parent.require(Book).resolve_config() == {}


async def test_config_class_decides_how_layers_merge(root: Context) -> None:
    class Merging:
        @staticmethod
        def validate(value: Any) -> Any:
            return value

        @staticmethod
        def merge(layers: list[dict[str, list[int]]]) -> dict[str, list[int]]:
            return {"all": [item for layer in layers for item in layer["all"]]}

    class Merged(Service):
        name = "merged"
        Config = Merging

    await root.plugin(Merged)
    ctx = root.intercept("merged", {"all": [1]}).intercept("merged", {"all": [2]})
    assert ctx.require(Merged).resolve_config() == {"all": [1, 2]}


# context data


async def test_data_is_inherited_nearest_wins_and_the_parent_is_untouched(root: Context) -> None:
    key = ContextKey[int]("number", default=0)
    one = root.extend(meta={key: 1})
    two = one.extend(meta={key: 2})
    fiber = await two.plugin(lambda ctx: None)
    assert (root[key], one[key], two[key], fiber.ctx[key]) == (0, 1, 2, 2)
    assert (root.agent, root.extend(meta={AGENT: "me"}).agent) == (None, "me")
    assert (two.parent, two.root, two.fiber) == (one, root, root.fiber)


async def test_base_url_is_inherited(root: Context) -> None:
    child = root.extend(base_url="file:///srv/app/")
    fiber = await child.plugin(lambda ctx: None)
    assert (root.base_url, fiber.ctx.base_url) == (None, "file:///srv/app/")


async def test_any_subclass_counts_as_a_context(root: Context) -> None:
    class Special(Context):
        __slots__ = ()

    assert Context.is_(Special())
    assert not Context.is_(object())


async def test_service_that_goes_while_its_dependant_fails_frees_everything(
    root: Context, reports: Reports
) -> None:
    def body(ctx: Context) -> None:
        raise ValueError("dependant broke")

    giver = await root.plugin(provider(1))
    user = root.inject(["foo"], body)
    await quiet(user)
    await asyncio.wait_for(join(giver.dispose()), 2)
    assert user.state is S.FAILED
