"""When expressions are evaluated, against what, and where they are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from loader_support import Shelf, loader_on

from dsh.kernel import Context
from dsh.loader.dump import dump_rows
from dsh.loader.errors import EntryError, ExprError, PatchError
from dsh.loader.expr import Expr, find_expr
from dsh.loader.rows import PATCH_FIELDS, check_fields, check_rows
from dsh.loader.yaml import load_yaml

HERE = Expr("1")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": HERE}, "name is an expression, and these are evaluated in config and"),
        ({"id": HERE}, "id must be a text, got an expression"),
        ({"group": HERE}, "group must be true or false, got an expression"),
        ({"inject": HERE}, "inject must be a list or a mapping of services, got an expression"),
        ({"inject": [HERE]}, "a name in inject must be a text, got an expression"),
        ({"inject": {"timer": HERE}}, "inject.timer must be a mapping or nothing, got an expr"),
        ({"inject": {"timer": {"a": [HERE]}}}, r"inject.timer.a\[0\] is an expression"),
        ({"isolate": {"timer": HERE}}, "isolate.timer must be true or a label, got an expression"),
        ({"intercept": {"logger": {"name": HERE}}}, "intercept.logger.name is an expression"),
        ({"intercept": HERE}, "intercept must be a mapping of services to configs, got an"),
    ],
)
def test_an_expression_where_none_is_evaluated_is_refused(
    fields: Mapping[str, Any], problem: str
) -> None:
    with pytest.raises(PatchError, match=problem):
        check_rows([{"id": "a", "name": "m", **fields}], "f.yml")
    if "name" not in fields:
        with pytest.raises(PatchError, match=problem):
            check_fields(fields, 'patch "a"')


def test_expressions_are_fine_in_config_and_disabled() -> None:
    row = {"id": "a", "name": "m", "config": {"x": [HERE]}, "disabled": HERE}
    assert check_rows([row, {"id": "b", "name": "m", "config": HERE}], "f.yml")
    check_fields({"merge": {"x": HERE}}, "patch")
    assert "merge" in PATCH_FIELDS


def test_the_place_of_an_expression_is_found() -> None:
    assert find_expr({"a": [1, {"b": HERE}]}, "config") == "config.a[1].b"
    assert find_expr({"a": [1, {"b": "1"}]}, "config") is None


TEXT = """\
- id: r
  name: m
  disabled: !!js process.env.NOPE
  config:
    a: !!js >-
      1
      + 1
    b: !!js "`x`"
"""


async def test_a_row_keeps_its_expressions_and_its_text(root: Context, plugins: Shelf) -> None:
    loader = await loader_on(root)
    plugins.recorder("m")
    await loader.mount(load_yaml(TEXT, "f.yml"))
    assert plugins.log == [("m up", {"a": 2, "b": "x"})]
    options = loader.resolve("r").options
    assert options["config"] == {"a": Expr("1 + 1"), "b": Expr("`x`")}
    again = load_yaml(dump_rows([options]), "dump")
    assert again == load_yaml(TEXT, "f.yml")


async def test_a_config_is_evaluated_for_each_activation_and_update(
    root: Context, plugins: Shelf
) -> None:
    loader = await loader_on(root)
    plugins.recorder("m")
    root.provide("counter", {"n": 1})
    row = {"id": "r", "name": "m", "inject": ["counter"], "config": {"n": Expr("ctx.counter.n")}}
    await loader.mount([row])
    root.set("counter", {"n": 2})
    assert plugins.log == [("m up", {"n": 1})]
    fiber = loader.resolve("r").fiber
    assert fiber is not None
    await fiber.restart()
    root.set("counter", {"n": 3})
    await loader.mount([{**row, "config": {"n": Expr("ctx.counter.n"), "more": True}}])
    assert [config for what, config in plugins.log if what == "m up"] == [
        {"n": 1},
        {"n": 2},
        {"n": 3, "more": True},
    ]


async def test_rows_in_a_group_own_their_expressions(root: Context, plugins: Shelf) -> None:
    loader = await loader_on(root)
    plugins.recorder("m")
    plugins.provider("inner", "thing", {"v": "inner"})
    root.provide("thing", {"v": "outer"})
    inside = {"id": "in", "name": "m", "inject": ["thing"], "config": Expr("ctx.thing.v")}
    group = {
        "id": "g",
        "name": "cordis:group",
        "group": True,
        "isolate": {"thing": True},
        "config": [{"id": "p", "name": "inner"}, inside],
    }
    await loader.mount([group, {**inside, "id": "out"}])
    await loader.wait()
    assert sorted(config for what, config in plugins.log if what == "m up") == ["inner", "outer"]


async def test_disabled_is_decided_where_the_loader_stands(root: Context, plugins: Shelf) -> None:
    loader = await loader_on(root)
    plugins.recorder("m")
    plugins.provider("p", "switch", {"off": True})
    row = {"id": "r", "name": "m", "inject": ["switch"]}
    await loader.mount([{"id": "p", "name": "p"}])
    with pytest.raises(EntryError) as caught:
        await loader.mount([{"id": "p", "name": "p"}, {**row, "disabled": Expr("ctx.switch.off")}])
    cause = caught.value.__cause__
    assert isinstance(cause, ExprError)
    assert (cause.row, cause.field, cause.column) == ("r", "disabled", 5)
    await loader.mount(
        [{"id": "p", "name": "p"}, {**row, "disabled": Expr("ctx.get('switch')?.off")}]
    )
    assert plugins.log == []


async def test_a_service_is_never_called_by_an_expression(root: Context, plugins: Shelf) -> None:
    class Danger:
        fired = False

        def fire(self) -> None:
            type(self).fired = True

    loader = await loader_on(root)
    plugins.recorder("m")
    root.provide("danger", Danger())
    row = {"id": "r", "name": "m", "inject": ["danger"], "config": Expr("ctx.danger.fire()")}
    with pytest.raises(EntryError, match=r'row "r", config: .* column 12: \'fire\' is code'):
        await loader.mount([row])
    assert not Danger.fired
