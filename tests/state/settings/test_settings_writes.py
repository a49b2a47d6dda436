"""Writes: what is refused, in which order they go, who hears of them."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from settings_harness import Limits, Tree, wait_until

from dsh.kernel import Context
from dsh.state.settings import SETTINGS_UPDATED, SettingsConflict, SettingsProvider, SettingsRefused
from dsh.state.settings.engine import DocumentSettings, SectionDraft
from dsh.state.settings.service import SettingsClosed, SettingsReadOnly, UnknownNamespace


async def test_update_merges_and_ignores_none(tree: Tree) -> None:
    scope, _ = await tree.register()
    await scope.update({"timeoutMs": 5, "nested": {"a": {"x": 1}, "b": [1, 2]}})
    await scope.update({"timeoutMs": None, "nested": {"a": {"y": 2, "x": None}, "b": [3]}})
    assert scope.get() == Limits(timeout_ms=5, nested={"a": {"x": 1, "y": 2}, "b": [3]})


async def test_replace_drops_what_it_does_not_name_and_nothing_means_the_row(tree: Tree) -> None:
    scope, _ = await tree.register(base={"timeoutMs": 9})
    await scope.update({"timeoutMs": 5, "tags": ["a"]})
    await scope.replace({"tags": ["b"]})
    assert scope.get() == Limits(timeout_ms=9, tags=["b"])
    await scope.replace({})
    assert scope.get() == Limits(timeout_ms=9)
    assert tree.text() == ""


async def test_mutations_set_and_unset_at_paths_as_one_write(tree: Tree) -> None:
    scope, _ = await tree.register()
    await tree.settings.mutate(
        "limits",
        [
            {"op": "set", "path": ["nested", "a", "b"], "value": 1},
            {"op": "set", "path": ["timeoutMs"], "value": 5},
            {"op": "unset", "path": ["tags"]},
            {"op": "unset", "path": ["nested", "gone", "deep"]},
        ],
    )
    assert scope.get() == Limits(timeout_ms=5, nested={"a": {"b": 1}})
    await tree.settings.mutate("limits", [{"op": "set", "path": [], "value": {"timeoutMs": 6}}])
    assert scope.get() == Limits(timeout_ms=6)
    await tree.settings.mutate("limits", [{"op": "unset", "path": []}])
    assert scope.get() == Limits()
    assert tree.revisions == [("limits", 1), ("limits", 2), ("limits", 3)]


@pytest.mark.parametrize(
    "ops",
    [
        "set",
        [5],
        [{"op": "put", "path": []}],
        [{"op": "set", "path": ["a"]}],
        [{"op": "unset", "path": ["a"], "value": 1}],
        [{"op": "unset", "path": "a"}],
        [{"op": "unset", "path": [1]}],
        [{"op": "unset"}],
        [{"op": "set", "path": [], "value": [1]}],
        [{"op": "set", "path": ["a"], "value": {1, 2}}],
    ],
)
async def test_malformed_operations_are_refused_at_the_call(tree: Tree, ops: Any) -> None:
    await tree.register()
    with pytest.raises(SettingsRefused):
        tree.settings.mutate("limits", ops)


async def test_a_mutation_through_a_value_is_refused_and_writes_nothing(tree: Tree) -> None:
    scope, _ = await tree.register()
    await scope.update({"timeoutMs": 5})
    with pytest.raises(SettingsRefused, match=r"\$\.timeoutMs: has no members"):
        await tree.settings.mutate(
            "limits",
            [
                {"op": "set", "path": ["tags"], "value": ["x"]},
                {"op": "set", "path": ["timeoutMs", "a"], "value": 1},
            ],
        )
    assert tree.text() == "limits:\n  timeoutMs: 5\n"


def cycle() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["me"] = {"again": value}
    return value


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, datetime.date(2024, 1, 1)]}, r"\$\.a\[1\]"),
        ({"a": float("nan")}, r"\$\.a"),
        ({"a": {"b": float("inf")}}, r"\$\.a\.b"),
        ({"a": print}, r"\$\.a"),
        ({"a": (1, 2)}, r"\$\.a"),
        ({1: 2}, r"\$"),
        ({"a": "\ud800"}, r"\$"),
        (cycle(), r"\$\.me\.again"),
    ],
)
async def test_what_is_not_json_is_refused_at_the_call_with_its_place(
    tree: Tree, value: Any, path: str
) -> None:
    await tree.register()
    with pytest.raises(SettingsRefused, match=path + ": cannot be stored"):
        tree.settings.update("limits", value)
    with pytest.raises(SettingsRefused, match=path + ": cannot be stored"):
        tree.settings.replace("limits", value)
    assert not tree.path.exists()


async def test_one_object_in_two_places_is_no_cycle(tree: Tree) -> None:
    scope, _ = await tree.register()
    shared = {"x": 1}
    await scope.update({"nested": {"a": shared, "b": shared}})
    assert scope.get().nested == {"a": {"x": 1}, "b": {"x": 1}}


@pytest.mark.parametrize("patch", [None, 5, [1], "text"])
async def test_a_patch_must_be_an_object(tree: Tree, patch: Any) -> None:
    await tree.register()
    with pytest.raises(SettingsRefused, match="must be an object"):
        tree.settings.update("limits", patch)


async def test_writes_of_namespaces_that_nobody_has_are_refused(tree: Tree) -> None:
    await tree.register()
    with pytest.raises(UnknownNamespace, match="did you mean 'limits'"):
        tree.settings.update("limit", {})


async def test_what_is_given_is_taken_at_the_call(tree: Tree) -> None:
    scope, _ = await tree.register()
    patch = {"tags": ["a"]}
    write = scope.update(patch)
    patch["tags"].append("b")
    await write
    assert scope.get().tags == ["a"]


async def test_writes_go_in_the_order_of_the_calls_also_unawaited(tree: Tree) -> None:
    scope, _ = await tree.register()
    first = scope.replace({"timeoutMs": 1})
    tree.settings.mutate("limits", [{"op": "set", "path": ["tags"], "value": ["a"]}])
    last = scope.update({"timeoutMs": 3})
    await last
    assert scope.get() == Limits(timeout_ms=3, tags=["a"])
    await first


async def test_a_refused_write_does_not_stop_the_next(tree: Tree) -> None:
    scope, _ = await tree.register()
    bad, good = scope.update({"timeoutMs": -1}), scope.update({"timeoutMs": 2})
    with pytest.raises(SettingsRefused, match=r"\$\.timeoutMs"):
        await bad
    await good
    assert scope.get().timeout_ms == 2


async def test_a_cancelled_writer_does_not_cancel_the_write(tree: Tree) -> None:
    scope, _ = await tree.register()

    async def write() -> None:
        await scope.update({"timeoutMs": 2})

    task = asyncio.create_task(write())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await scope.update({"tags": ["x"]})
    assert scope.get() == Limits(timeout_ms=2, tags=["x"])


async def test_the_revision_counts_changes_of_the_section_alone(tree: Tree) -> None:
    scope, _ = await tree.register()
    await scope.update({"timeoutMs": 2})
    await scope.update({"timeoutMs": 2})
    assert tree.revisions == [("limits", 1)]
    await scope.update({"timeoutMs": 100})
    assert tree.revisions[-1] == ("limits", 2)
    tree.write("limits:\n  timeoutMs: 100\nother: {a: 1}\n")
    await tree.file.reload()
    assert tree.revisions[-1] == ("other", 1)
    tree.write("limits:\n  timeoutMs: 101\n")
    await tree.file.reload()
    assert tree.settings.describe()[0].revision == 3


async def test_a_change_of_the_section_without_effect_tells_the_document_alone(tree: Tree) -> None:
    scope, _ = await tree.register(base={"timeoutMs": 5})
    await scope.update({"timeoutMs": 5})
    assert (tree.revisions, tree.updated) == ([("limits", 1)], [])
    await scope.update({"timeoutMs": 6})
    assert tree.updated == [("limits", "update")]
    tree.write("limits: {timeoutMs: 7}\n")
    await tree.file.reload()
    assert tree.updated[1:] == [("limits", "provider")]


async def test_a_stale_writer_is_told_of_the_conflict(tree: Tree) -> None:
    scope, _ = await tree.register()
    await scope.update({"timeoutMs": 2}, 0)
    with pytest.raises(SettingsConflict) as caught:
        await scope.replace({}, 0)
    error = caught.value
    assert (error.code, error.expected, error.actual) == ("SETTINGS_CONFLICT", 0, 1)
    assert scope.get().timeout_ms == 2


async def test_an_edit_that_nobody_read_yet_is_a_conflict_too(tree: Tree) -> None:
    scope, _ = await tree.register()
    tree.write("limits: {timeoutMs: 9}\n")
    with pytest.raises(SettingsConflict):
        await scope.update({"tags": ["a"]}, 0)
    assert scope.get().timeout_ms == 9


async def test_a_write_keeps_an_edit_that_nobody_read_yet(tree: Tree) -> None:
    scope, _ = await tree.register()
    tree.write("# by hand\nlimits:\n  timeoutMs: 9 # nine\nunknown: [1]\n")
    await scope.update({"tags": ["a"]})
    assert tree.text() == (
        "# by hand\nlimits:\n  timeoutMs: 9 # nine\n  tags:\n    - a\nunknown: [1]\n"
    )
    assert scope.get() == Limits(timeout_ms=9, tags=["a"])
    assert tree.updated == [("limits", "provider"), ("limits", "update")]


async def test_watchers_hear_every_change_in_order_one_call_at_a_time(tree: Tree) -> None:
    scope, _ = await tree.register()
    calls: list[tuple[int, int]] = []
    running = 0

    async def watch(now: Limits, before: Limits) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0)
        calls.append((now.timeout_ms, before.timeout_ms))
        running -= 1

    scope.watch(watch)
    for number in (1, 2, 3):
        await scope.update({"timeoutMs": number})
    await wait_until(lambda: len(calls) == 3)
    assert calls == [(1, 100), (2, 1), (3, 2)]


async def test_a_watcher_that_raises_is_reported_and_hears_the_next_change(tree: Tree) -> None:
    scope, _ = await tree.register()
    calls: list[int] = []

    def watch(now: Limits, _: Limits) -> None:
        calls.append(now.timeout_ms)
        raise RuntimeError("no")

    scope.watch(watch)
    scope.watch(lambda now, _: calls.append(-now.timeout_ms))
    await scope.update({"timeoutMs": 1})
    await scope.update({"timeoutMs": 2})
    await wait_until(lambda: sorted(calls) == [-2, -1, 1, 2])
    assert tree.reports == ["no", "no"]


async def test_a_disposed_watcher_drops_what_is_due_and_waits_for_what_runs(tree: Tree) -> None:
    scope, _ = await tree.register()
    entered, go = asyncio.Event(), asyncio.Event()
    calls: list[int] = []

    async def watch(now: Limits, _: Limits) -> None:
        entered.set()
        await go.wait()
        calls.append(now.timeout_ms)

    effect = scope.watch(watch)
    await scope.update({"timeoutMs": 1})
    await scope.update({"timeoutMs": 2})
    await entered.wait()
    disposal = effect.dispose()
    await scope.update({"timeoutMs": 3})
    go.set()
    await disposal
    assert calls == [1]


async def test_unloading_the_owner_waits_for_its_watcher_and_starts_no_other(tree: Tree) -> None:
    scope, owner = await tree.register()
    entered, go = asyncio.Event(), asyncio.Event()
    calls: list[int] = []

    async def watch(now: Limits, _: Limits) -> None:
        entered.set()
        await go.wait()
        calls.append(now.timeout_ms)

    scope.watch(watch)
    await scope.update({"timeoutMs": 1})
    await scope.update({"timeoutMs": 2})
    await entered.wait()
    disposal = asyncio.ensure_future(owner.dispose())
    await asyncio.sleep(0)
    assert not disposal.done()
    go.set()
    await disposal
    assert calls == [1]


async def test_a_listener_that_fails_starves_no_other_and_not_the_writer(tree: Tree) -> None:
    scope, _ = await tree.register()
    heard: list[str] = []

    def fail(_: object) -> None:
        raise RuntimeError("listener")

    tree.root.on(SETTINGS_UPDATED, fail, prepend=True)
    tree.root.on(SETTINGS_UPDATED, lambda event: heard.append(event.ns))
    await scope.update({"timeoutMs": 1})
    assert (heard, tree.reports) == (["limits"], ["listener"])


async def test_a_write_whose_owner_is_gone_is_stored_and_tells_no_reader(tree: Tree) -> None:
    scope, owner = await tree.register()
    heard: list[int] = []
    scope.watch(lambda now, _: heard.append(now.timeout_ms))
    write = scope.update({"timeoutMs": 1})
    await owner.dispose()
    await write
    assert tree.text() == "limits:\n  timeoutMs: 1\n"
    assert (heard, tree.updated, scope.get().timeout_ms) == ([], [], 100)


async def test_a_write_reaches_the_owner_that_reloaded_meanwhile(tree: Tree) -> None:
    scope, owner = await tree.register()
    write = scope.update({"timeoutMs": 1})
    disposal = owner.dispose()
    await disposal
    again, _ = await tree.register()
    await write
    assert again.get().timeout_ms == 1


async def test_disposal_finishes_queued_writes_and_refuses_new_ones(tree: Tree) -> None:
    await tree.register()
    settings = tree.settings
    writes = [settings.update("limits", {"timeoutMs": number}) for number in (1, 2, 3)]
    await tree.provider.dispose()
    for write in writes:
        await write
    assert tree.text() == "limits:\n  timeoutMs: 3\n"
    with pytest.raises(SettingsClosed):
        settings.update("limits", {})


class FixedSettings(DocumentSettings):
    """Settings that cannot be written."""

    writable = False
    document_path = None

    def start(self) -> None:
        self.open({"limits": {"timeoutMs": 3}})

    async def prepare_document(self) -> None:
        return None

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[SectionDraft]:
        raise AssertionError("nobody may write")
        yield


async def test_a_provider_that_stores_nothing_refuses_writes_and_still_serves(
    root: Context,
) -> None:
    await root.plugin(FixedSettings)
    settings = root.require(SettingsProvider)
    scope = settings.register("limits", Limits)
    assert scope.get().timeout_ms == 3
    calls: list[Callable[[], object]] = [
        lambda: settings.update("limits", {}),
        lambda: settings.replace("limits", {}),
        lambda: settings.mutate("limits", []),
    ]
    for call in calls:
        with pytest.raises(SettingsReadOnly):
            call()


def test_events_do_not_show_values() -> None:
    from dsh.state.settings import SettingsUpdated

    payload: Mapping[str, str] = {"key": "sk-secret"}
    assert "secret" not in repr(SettingsUpdated("a", payload, payload, "update"))
