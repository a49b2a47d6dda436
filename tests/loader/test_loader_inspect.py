from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from loader_support import Shelf, loader_on

from dsh.kernel import Context, Service
from dsh.loader.inspect import snapshot
from dsh.loader.layers import Provenance
from dsh.loader.loader import Loader
from dsh.loader.yaml import load_yaml


class Store(Service):
    name = "my_store"


async def mounted(root: Context, rows: str) -> Loader:
    loader = await loader_on(root)
    await loader.mount(load_yaml(rows, "rows"), may_leave_out=lambda _: True)
    await loader.quiesce()
    return loader


def row(tree: dict[str, Any], id: str) -> dict[str, Any]:
    def all_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [each for row in rows for each in (row, *all_rows(row["rows"]))]

    (found,) = [each for each in all_rows(tree["rows"]) if each["id"] == id]
    return found


async def test_rows_of_groups_are_nested_below_them(root: Context, plugins: Shelf) -> None:
    name = plugins.recorder("shelf_rec")
    loader = await mounted(
        root,
        f"""
        - id: outer
          name: cordis:group
          group: true
          config:
            - {{id: inner, name: {name}}}
            - {{id: off, name: {name}, disabled: true}}
        - id: dark
          name: cordis:group
          group: true
          disabled: true
          config:
            - {{id: below, name: {name}}}
        """,
    )

    tree = snapshot(loader)

    assert row(tree, "inner")["state"] == "active"
    assert row(tree, "off")["disabledBy"] == "its own row"
    assert row(tree, "below")["disabledBy"] == "group dark"
    assert tree["counts"]["disabled"] >= 2


async def test_a_row_tells_effects_services_and_who_provides_what_it_needs(
    root: Context, plugins: Shelf
) -> None:
    def user(ctx: Context, config: Any) -> None:
        ctx.defer(lambda: None, "user.thing")

    store = plugins.module("shelf_store", plugin=Store)
    needs = plugins.module("shelf_user", apply=user, inject=("my_store",))
    loader = await mounted(root, f"- {{id: s, name: {store}}}\n- {{id: u, name: {needs}}}")

    tree = snapshot(loader, provenance={"s": Provenance("base", ("mine.yml",))})

    assert row(tree, "s")["provides"] == ["myStore"]
    assert (row(tree, "s")["origin"], row(tree, "s")["patchedBy"]) == ("base", ["mine.yml"])
    assert row(tree, "u")["needs"] == [{"service": "myStore", "by": "s", "optional": False}]
    assert [each["label"] for each in row(tree, "u")["effects"]] == ["user.thing"]
    (service,) = [each for each in tree["services"] if each["name"] == "myStore"]
    assert (service["provider"], service["dependants"]) == (
        "s",
        [{"row": "u", "state": "active", "optional": False}],
    )


async def test_a_waiting_row_names_the_row_that_is_to_provide_the_service(
    root: Context, plugins: Shelf
) -> None:
    class Broken(Store):
        def start(self) -> None:
            raise ValueError("no disk")

    store = plugins.module("shelf_store", plugin=Broken)
    needs = plugins.module("shelf_user", apply=lambda ctx, config: None, inject=("my_store",))
    loader = await mounted(root, f"- {{id: s, name: {store}}}\n- {{id: u, name: {needs}}}")

    tree = snapshot(loader)

    assert (row(tree, "s")["state"], row(tree, "s")["error"]) == ("failed", "ValueError: no disk")
    (wait,) = row(tree, "u")["waits"]
    assert (wait["service"], wait["row"], wait["app"]) == ("myStore", "s", False)


async def test_rows_that_wait_for_the_command_line_are_told_apart(
    root: Context, plugins: Shelf
) -> None:
    start = plugins.module(
        "shelf_start", apply=lambda ctx, config: None, inject=("cmdline",), provide=("words",)
    )
    run = plugins.module("shelf_run", apply=lambda ctx, config: None, inject=("words",))
    loader = await mounted(root, f"- {{id: a, name: {start}}}\n- {{id: b, name: {run}}}")

    tree = snapshot(loader)

    assert [(row(tree, of)["state"], row(tree, of)["waits"][0]["app"]) for of in ("a", "b")] == [
        ("app", True),
        ("app", True),
    ]


async def test_what_an_app_row_does_not_promise_may_still_come_from_it(
    root: Context, plugins: Shelf
) -> None:
    start = plugins.module("shelf_start", apply=lambda ctx, config: None, inject=("cmdline",))
    run = plugins.module("shelf_run", apply=lambda ctx, config: None, inject=("words",))
    loader = await mounted(root, f"- {{id: a, name: {start}}}\n- {{id: b, name: {run}}}")

    tree = snapshot(loader)

    assert (row(tree, "b")["state"], row(tree, "b")["waits"][0]["app"]) == ("pending", True)


@pytest.mark.parametrize("value", ["sk-planted-1", {"deep": ["sk-planted-1"]}])
async def test_no_value_of_a_config_is_in_the_picture(
    root: Context, plugins: Shelf, value: Any
) -> None:
    name = plugins.recorder("shelf_rec")
    loader = await loader_on(root)
    await loader.mount([{"id": "a", "name": name, "config": {"apiKey": value}}])

    assert "sk-planted" not in json.dumps(snapshot(loader))


async def test_texts_of_errors_go_through_the_redaction(root: Context, plugins: Shelf) -> None:
    name = plugins.failing("shelf_bad", ValueError("bad key sk-planted-1"))
    loader = await mounted(root, f"- {{id: a, name: {name}}}")

    tree = snapshot(loader, redact=lambda text: text.replace("sk-planted-1", "<key>"))

    assert row(tree, "a")["error"] == "ValueError: bad key <key>"


async def test_rows_of_an_included_file_are_nested_like_those_of_a_group(
    root: Context, plugins: Shelf, tmp_path: Path
) -> None:
    store = plugins.module("shelf_store", plugin=Store)
    needs = plugins.module("shelf_user", apply=lambda ctx, config: None, inject=("my_store",))
    (tmp_path / "more.yml").write_text(f"- {{id: s, name: {store}}}\n")
    loader = await mounted(
        root,
        f"- {{id: file, name: 'cordis:include', config: {{path: {tmp_path}/more.yml}}}}\n"
        f"- {{id: u, name: {needs}}}\n",
    )

    tree = snapshot(loader)

    assert row(tree, "file:s")["state"] == "active"
    assert row(tree, "u")["needs"][0]["by"] == "file:s"
