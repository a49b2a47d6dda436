"""Namespaces: what they resolve to, and which are refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict
from settings_harness import Frozen, Limits, Tree, wait_until

from dsh.kernel import Context
from dsh.state.settings.service import (
    DuplicateNamespace,
    InvalidSettingsModel,
    LiveSection,
    SettingsProvider,
    SettingsRefused,
)


async def test_the_section_goes_over_the_row_and_the_row_over_the_defaults(tree: Tree) -> None:
    scope, _ = await tree.register(base={"tags": ["row"], "nested": {"a": 1, "b": 1}})
    assert scope.get() == Limits(tags=["row"], nested={"a": 1, "b": 1})
    await tree.settings.update("limits", {"nested": {"b": 2}, "tags": ["user"]})
    assert scope.get() == Limits(tags=["user"], nested={"a": 1, "b": 2})


async def test_a_stored_section_is_in_force_from_the_registration(tree: Tree) -> None:
    tree.write("limits:\n  timeoutMs: 7\n")
    await tree.file.reload()
    scope, _ = await tree.register()
    assert scope.get().timeout_ms == 7


async def test_fields_may_be_spelled_in_either_way_in_every_layer(tree: Tree) -> None:
    tree.write("limits:\n  timeout_ms: 7\n")
    await tree.file.reload()
    scope, _ = await tree.register(base={"timeoutMs": 5})
    assert scope.get().timeout_ms == 7
    await scope.update({"timeoutMs": 8})
    assert tree.text() == "limits:\n  timeoutMs: 8\n"


async def test_what_readers_get_cannot_be_changed_down_to_the_bottom(tree: Tree) -> None:
    scope, _ = await tree.register(base={"tags": ["a"], "nested": {"deep": {"list": [1]}}})
    value = scope.get()
    with pytest.raises(ValueError, match="frozen"):
        value.timeout_ms = 5
    for change in (
        lambda: value.tags.append("b"),
        lambda: value.nested.update(x=1),
        lambda: value.nested["deep"]["list"].append(2),
    ):
        with pytest.raises(TypeError, match="read-only"):
            change()


async def test_the_same_object_is_returned_until_something_changes(tree: Tree) -> None:
    scope, _ = await tree.register()
    assert scope.get() is scope.get()
    assert tree.settings.get("limits") is scope.get()
    assert tree.settings.get("other") is None


@pytest.mark.parametrize("ns", ["", "UI", "9lives", "a_b", "-lead", "a-", "a--b", "a.b"])
async def test_names_that_are_no_namespace_are_refused(tree: Tree, ns: str) -> None:
    with pytest.raises(InvalidSettingsModel, match="is no namespace"):
        tree.settings.register(ns, Limits)


@pytest.mark.parametrize("ns", ["a", "ui-theme", "web-search-2"])
async def test_names_that_are_one_are_taken(tree: Tree, ns: str) -> None:
    await tree.register(ns)


async def test_a_namespace_has_one_owner_until_it_unloads(tree: Tree) -> None:
    _, owner = await tree.register()
    with pytest.raises(DuplicateNamespace, match="limits"):
        tree.settings.register("limits", Limits)
    await owner.dispose()
    assert tree.settings.describe() == []
    await tree.register()


class Loose(BaseModel):
    inner: int = 1


class Holder(Frozen):
    many: dict[str, list[Loose]] | None = None


@pytest.mark.parametrize("model", [Loose, Holder])
async def test_models_whose_instances_could_change_are_refused(tree: Tree, model: Any) -> None:
    with pytest.raises(InvalidSettingsModel, match="Loose is not frozen"):
        tree.settings.register("limits", model)


async def test_a_stored_section_that_does_not_fit_fails_the_registration(tree: Tree) -> None:
    tree.write("limits:\n  timeoutMs: soon\n")
    await tree.file.reload()
    with pytest.raises(SettingsRefused, match=r"limits.*\$\.timeoutMs: .*integer"):
        await tree.register()
    assert tree.settings.describe() == []


@pytest.mark.parametrize("section", ["5", "[1]", "text"])
async def test_a_section_must_be_a_mapping(tree: Tree, section: str) -> None:
    tree.write(f"limits: {section}\n")
    await tree.file.reload()
    with pytest.raises(SettingsRefused, match=r"\$: must be a mapping"):
        await tree.register()


def only_even(limits: Limits) -> None:
    if limits.timeout_ms % 2:
        raise ValueError("the timeout must be even")


async def test_the_owners_check_runs_after_the_schema(tree: Tree) -> None:
    scope, _ = await tree.register(validate=only_even)
    with pytest.raises(SettingsRefused, match="must be even"):
        await scope.update({"timeoutMs": 3})
    assert (scope.get().timeout_ms, tree.path.exists()) == (100, False)


async def test_the_owners_check_of_what_is_stored_fails_the_registration(tree: Tree) -> None:
    tree.write("limits: {timeoutMs: 3}\n")
    await tree.file.reload()
    with pytest.raises(SettingsRefused, match="must be even"):
        await tree.register(validate=only_even)


async def test_an_edit_that_does_not_fit_leaves_the_last_good_value_and_is_told_once(
    tree: Tree,
) -> None:
    scope, _ = await tree.register(validate=only_even)
    tree.write("limits: {timeoutMs: 4}\n")
    await tree.file.reload()
    tree.write("limits: {timeoutMs: 5}\n")
    await tree.file.reload()
    tree.write("limits: {timeoutMs: 5}\nother: {}\n")
    await tree.file.reload()
    assert scope.get().timeout_ms == 4
    assert len(tree.reports) == 1
    tree.write("limits: {timeoutMs: 6}\n")
    await tree.file.reload()
    assert scope.get().timeout_ms == 6


async def test_descriptors_have_layers_schema_and_revision(tree: Tree) -> None:
    scope, _ = await tree.register(base={"timeoutMs": 5}, applies="restart")
    await scope.update({"tags": ["a"]})
    (found,) = tree.settings.describe()
    assert found.to_json() == {
        "ns": "limits",
        "schema": found.schema,
        "value": {"timeoutMs": 5, "tags": ["a"], "nested": {}},
        "revision": 1,
        "applies": "restart",
        "base": {"timeoutMs": 5},
        "user": {"tags": ["a"]},
    }
    assert found.schema["properties"]["timeoutMs"]["default"] == 100  # type: ignore[index,call-overload]


class Section(Frozen):
    model_config = ConfigDict(extra="forbid", frozen=True)
    size: int = 1


class Reader:
    """A plugin that goes on with and without settings."""

    def __init__(self) -> None:
        self.loads = 0
        self.seen: list[tuple[int, int]] = []

    def __call__(self, ctx: Context) -> None:
        self.loads += 1
        self.section = LiveSection(
            ctx,
            "section",
            Section,
            row={"size": 2},
            on_change=lambda now, before: self.seen.append((now.size, before.size)),
        )


async def test_a_live_section_follows_its_provider_without_a_reload(tree: Tree) -> None:
    reader = Reader()
    await tree.root.plugin(reader)
    assert reader.section.get().size == 2
    await reader.section.replace({"size": 3})
    assert reader.section.get().size == 3
    await wait_until(lambda: reader.seen == [(3, 2)])

    await tree.provider.dispose()
    await wait_until(lambda: reader.seen == [(3, 2), (2, 3)])
    assert reader.section.get().size == 2
    await reader.section.replace({"size": 9})

    await tree.mount()
    await wait_until(lambda: reader.section.get().size == 3)
    assert reader.seen[-1] == (3, 2)
    await tree.settings.update("section", {"size": 4})
    await wait_until(lambda: reader.seen[-1] == (4, 3))
    assert reader.loads == 1


async def test_a_live_section_with_an_unfit_section_fails_the_load(tree: Tree) -> None:
    tree.write("section: {size: x}\n")
    await tree.file.reload()
    with pytest.raises(SettingsRefused):
        await tree.root.plugin(Reader())


async def test_a_provider_that_comes_later_with_an_unfit_section_is_reported(tree: Tree) -> None:
    await tree.provider.dispose()
    reader = Reader()
    await tree.root.plugin(reader)
    tree.write("section: {size: x}\n")
    await tree.mount()
    await wait_until(lambda: tree.reports)
    assert "$.size" in tree.reports[0]
    assert reader.section.get().size == 2


async def test_the_settings_are_optional(root: Context) -> None:
    reader = Reader()
    await root.plugin(reader)
    assert root.get(SettingsProvider) is None
    assert reader.section.get().size == 2
