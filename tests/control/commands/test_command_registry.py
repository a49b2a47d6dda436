"""Which commands an agent's user has."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from command_bench import Bench, done

from dsh.control.commands import (
    Command,
    CommandInput,
    CommandRegistrationError,
    CommandRuntime,
    CommandSuccess,
)
from dsh.control.commands.events import COMMANDS_CHANGE
from dsh.kernel import Context


def names(bench: Bench, agent: Any = None) -> list[str]:
    return [found.name for found in bench.commands.all(agent or bench.agent)]


@pytest.mark.parametrize("name", ["", "Do", "1x", "-x", "a b", "/do", "do\n", "dö", None])
async def test_a_name_outside_the_pattern_is_refused(bench: Bench, name: Any) -> None:
    with pytest.raises(CommandRegistrationError, match="cannot name a command"):
        bench.add(name=name)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"description": " "}, "description"),
        ({"description": None}, "description"),
        ({"handler": "x"}, "handler"),
        ({"record_input": 1}, "record_input"),
        ({"input": {"hint": "x"}}, "input"),
        ({"input": CommandInput(" ")}, r"input\.hint"),
        ({"input": CommandInput("<x>", images=1)}, r"input\.images"),  # type: ignore[arg-type]
    ],
)
async def test_a_field_that_cannot_be_used_is_refused_by_name(
    bench: Bench, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(CommandRegistrationError, match=f"command /do: {field}"):
        bench.add(**changes)
    assert names(bench) == []


async def test_a_duplicate_in_a_layer_is_refused(bench: Bench) -> None:
    bench.add()
    with pytest.raises(CommandRegistrationError, match="registered in this scope already"):
        bench.add()
    bench.agent.commands.register(Command("do", "Mine.", done))
    with pytest.raises(CommandRegistrationError):
        bench.agent.commands.register(Command("do", "Mine again.", done))


async def test_a_scoped_command_shadows_for_its_agent_and_goes_with_its_scope(
    bench: Bench,
) -> None:
    other = bench.new_agent()
    bench.add()
    bench.agent.commands.register(Command("do", "Mine.", done))
    bench.agent.commands.register(Command("own", "Mine alone.", done))
    assert [found.description for found in bench.commands.all(bench.agent)] == [
        "Mine.",
        "Mine alone.",
    ]
    assert names(bench, other) == ["do"]
    assert bench.commands.find(other, "own") is None
    await bench.agent.scope.dispose()
    assert [found.description for found in bench.commands.all(bench.agent)] == ["Does it."]


async def test_a_foreign_scoped_command_does_not_run(bench: Bench) -> None:
    bench.agent.commands.register(Command("own", "Mine alone.", done))
    assert await bench.run("/own", agent=bench.new_agent()) is None
    assert await bench.run("/own") is not None


async def test_the_list_is_sorted_and_does_not_change(bench: Bench) -> None:
    for name in ("b", "a-2", "c", "a"):
        bench.add(name=name)
    listed = bench.commands.all(bench.agent)
    assert isinstance(listed, tuple)
    assert [found.name for found in listed] == ["a", "a-2", "b", "c"]
    with pytest.raises(AttributeError, match="does not change"):
        listed[0].name = "x"  # type: ignore[misc]
    bench.add(name="d")
    assert len(listed) == 4


async def test_a_client_reads_images_only_where_they_may_come(bench: Bench) -> None:
    bench.add(name="a")
    bench.add(name="b", input=CommandInput("<text>"))
    bench.add(name="c", input=CommandInput("<text>", images=True))
    assert [found.wire() for found in bench.commands.all(bench.agent)] == [
        {"name": "a", "description": "Does it."},
        {"name": "b", "description": "Does it.", "input": {"hint": "<text>"}},
        {"name": "c", "description": "Does it.", "input": {"hint": "<text>", "images": True}},
    ]


async def test_a_command_goes_with_the_plugin_that_registered_it(bench: Bench) -> None:
    def body(ctx: Context) -> None:
        ctx.require(CommandRuntime).register(Command("mine", "Mine.", done))

    plugin = bench.root.inject([CommandRuntime], body)
    await plugin
    assert names(bench) == ["mine"]
    await plugin.dispose()
    assert names(bench) == []
    assert await bench.run("/mine") is None


async def test_every_change_is_announced_to_everybody(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []

    def broken(_: object) -> None:
        heard.append("broken")
        raise RuntimeError("no")

    bench.root.on(COMMANDS_CHANGE, broken)
    bench.root.on(COMMANDS_CHANGE, lambda _: heard.append("root"))
    bench.agent.scope.ctx.on(COMMANDS_CHANGE, lambda _: heard.append("scoped"))
    with caplog.at_level(logging.CRITICAL):
        effect = bench.new_agent().commands.register(Command("x", "X.", done))
        assert heard == ["broken", "root", "scoped"]
        await effect.dispose()
    assert heard == ["broken", "root", "scoped"] * 2


async def test_a_refused_registration_changes_nothing(bench: Bench) -> None:
    bench.add()
    heard: list[object] = []
    bench.root.on(COMMANDS_CHANGE, heard.append)
    with pytest.raises(CommandRegistrationError):
        bench.add(handler=lambda _: CommandSuccess("other"))
    execution = await bench.run()
    assert execution is not None
    assert execution.result == CommandSuccess("done")
    assert names(bench) == ["do"]
