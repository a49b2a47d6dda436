from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from permission_bench import TABLE, Bench, FakeAgent, ground, stated

from dsh.capability.shell.service import ShellExecutor
from dsh.control.approval.events import set_approval_policy
from dsh.control.approval.service import ApprovalService
from dsh.control.commands.runtime import LayeredCommands
from dsh.control.commands.service import CommandRuntime
from dsh.control.permissions import invariants
from dsh.control.permissions.events import PERMISSION_PRESET, effective_permission_preset
from dsh.control.permissions.presets import TablePresets
from dsh.control.permissions.service import PermissionFacts, UnknownPreset
from dsh.kernel import Context
from dsh.model.messages import text_of
from dsh.state.projections.registry import SessionProjections
from dsh.state.projections.service import ProjectionRegistry
from dsh.state.session.nesting import BrokenInvariant
from dsh.state.session.session import Session
from dsh.state.settings.service import SettingsProvider, SettingsRefused

WORKSPACE = [
    ("permission/preset", "workspace-write"),
    ("sandbox/mode", "workspace-write"),
    ("approval/policy", "ask"),
]
FULL = [
    ("permission/preset", "danger-full-access"),
    ("sandbox/mode", "danger-full-access"),
    ("approval/policy", "never"),
]


@pytest.fixture
async def bench(root: Context) -> Bench:
    return await (await ground(root)).mount()


async def test_without_a_table_there_are_two_presets(root: Context) -> None:
    bench = await ground(root)
    await root.plugin(TablePresets)
    assert bench.presets.names == ["workspace-write", "danger-full-access"]
    assert bench.presets.resolve("danger-full-access").approval == "never"


@pytest.mark.parametrize(
    ("config", "rows", "problem"),
    [
        ({"presets": {**TABLE, "custom": TABLE["read-only"]}}, {}, "'custom'"),
        ({"defaultPreset": "wide"}, {}, r"'wide' is no preset \(available: read-only, "),
        ({}, {"policy": "never"}, "no preset has the configured sandbox mode 'workspace-write'"),
        ({"presets": {}}, {}, "add one or name a defaultPreset"),
        ({"presets": {"x": {"sandbox": "wide", "approval": "ask"}}}, {}, "sandbox"),
        ({"presets": {"x": {"sandbox": "read-only", "approval": "maybe"}}}, {}, "approval"),
        ({"presets": {"x": {"sandbox": "read-only"}}}, {}, "approval"),
        ({"mode": "wide"}, {}, "mode"),
        ({"mode": "danger-full-access"}, {}, "'sandbox-policy' only 'workspace-write'"),
        (
            {"mode": "read-only", "presets": {"x": TABLE["workspace-write"]}},
            {},
            "no preset has the sandbox mode 'read-only', which DSH_PERMISSION_MODE chooses",
        ),
    ],
)
async def test_a_table_that_cannot_serve_does_not_load(
    root: Context, config: Any, rows: Any, problem: str
) -> None:
    bench = await ground(root, **rows)
    with pytest.raises(Exception, match=problem):
        await bench.mount(**config)
    assert root.get(TablePresets) is None


async def test_a_default_that_is_named_serves_where_the_rows_match_no_preset(
    root: Context,
) -> None:
    bench = await ground(root, policy="never")
    await bench.mount(defaultPreset="read-only")
    assert bench.presets.default_preset == "read-only"


async def test_a_shell_that_confines_nothing_has_no_presets(root: Context) -> None:
    bench = await ground(root)

    class Unconfined:
        sandbox_mode = None

    inner = root.isolate(ShellExecutor)
    inner.provide(ShellExecutor, Unconfined())
    with pytest.raises(Exception, match="confines none"):
        await inner.plugin(TablePresets, {"presets": TABLE})
    assert bench.root.get(TablePresets) is None


async def test_an_unknown_preset_is_refused_with_those_there_are(bench: Bench) -> None:
    session = bench.session()
    length = session.seq
    for refused in (
        lambda: bench.presets.resolve("wide"),
        lambda: bench.presets.option_of("wide"),
        lambda: bench.presets.set(session, "wide"),
        lambda: bench.presets.set(session, "custom"),
    ):
        with pytest.raises(UnknownPreset, match=r"available: read-only, workspace-write, danger"):
            refused()
    assert session.seq == length


async def test_menus_show_names_and_descriptions_and_custom(bench: Bench) -> None:
    shown = [bench.presets.option_of(name) for name in (*bench.presets.names, "custom")]
    assert shown[:3] == [
        {"value": "read-only", "name": "read-only"},
        {"value": "workspace-write", "name": "Workspace"},
        {
            "value": "danger-full-access",
            "name": "danger-full-access",
            "description": "Nothing is confined.",
        },
    ]
    assert (shown[3]["value"], shown[3]["name"]) == ("custom", "Custom")


async def test_the_recorded_preset_counts_between_equal_ones(root: Context) -> None:
    twins = {"one": TABLE["workspace-write"], "two": TABLE["workspace-write"]}
    bench = await (await ground(root)).mount(presets=twins)
    session = bench.session()
    assert bench.presets.current(session.events) == "one"
    bench.presets.set(session, "two")
    assert bench.presets.current(session.events) == "two"
    assert stated(session)[3:] == [("permission/preset", "two")]


async def test_a_recorded_preset_that_holds_no_more_gives_way_to_the_table(bench: Bench) -> None:
    session = bench.session()
    bench.sandbox.set_mode(session, "read-only")
    assert effective_permission_preset(session.events) == "workspace-write"
    assert bench.presets.current(session.events) == "read-only"


async def test_settings_that_match_no_preset_are_custom(bench: Bench) -> None:
    session = bench.session()
    set_approval_policy(session, "never")
    assert bench.presets.current(session.events) == "custom"


async def test_what_a_log_does_not_say_the_rows_do(bench: Bench) -> None:
    assert bench.presets.current([]) == "workspace-write"
    session = Session.create("detached", types=[PERMISSION_PRESET])
    session.append(PERMISSION_PRESET, {"preset": "gone"})
    assert bench.presets.current(session.events) == "workspace-write"


async def test_choosing_logs_the_wish_first_and_then_what_differs(bench: Bench) -> None:
    session = bench.session()
    bench.presets.set(session, "read-only")
    assert stated(session)[3:] == [
        ("permission/preset", "read-only"),
        ("sandbox/mode", "read-only"),
    ]
    bench.presets.set(session, "danger-full-access")
    assert stated(session)[5:] == FULL
    assert bench.sandbox.resolve(session).mode == "danger-full-access"
    assert bench.root.require(ApprovalService).override_of(session) == "never"


async def test_choosing_what_is_in_force_logs_nothing(bench: Bench) -> None:
    session = bench.session()
    length = session.seq
    bench.presets.set(session, "workspace-write")
    assert session.seq == length


async def test_choosing_again_repairs_a_session_that_drifted(bench: Bench) -> None:
    session = bench.session()
    set_approval_policy(session, "never")
    bench.presets.set(session, "workspace-write")
    assert stated(session)[4:] == [
        ("permission/preset", "workspace-write"),
        ("approval/policy", "ask"),
    ]


async def test_a_new_session_is_pinned_to_the_default(bench: Bench) -> None:
    assert stated(bench.session()) == WORKSPACE


async def test_a_named_default_is_pinned_whatever_the_rows_say(root: Context) -> None:
    bench = await (await ground(root)).mount(defaultPreset="danger-full-access")
    assert stated(bench.session()) == FULL


async def test_sessions_that_are_live_at_the_mount_are_pinned(root: Context) -> None:
    bench = await ground(root)
    session = bench.session()
    await bench.mount()
    assert stated(session) == WORKSPACE


async def test_a_remount_pins_what_was_created_meanwhile_and_nothing_else(bench: Bench) -> None:
    before = bench.session()
    await bench.fiber.dispose()
    between = bench.session()
    assert stated(between) == []
    await bench.mount(defaultPreset="danger-full-access")
    assert stated(before) == WORKSPACE
    assert stated(between) == FULL


async def test_an_empty_session_that_resumes_keeps_what_the_rows_say(root: Context) -> None:
    bench = await (await ground(root)).mount(defaultPreset="danger-full-access")
    assert stated(bench.session(seed=[])) == WORKSPACE


async def test_facts_that_a_session_brings_are_kept_and_the_others_added(root: Context) -> None:
    bench = await ground(root)
    session = bench.session()
    bench.sandbox.set_mode(session, "read-only", source="delegation")
    await bench.mount(defaultPreset="danger-full-access")
    assert stated(session) == [
        ("sandbox/mode", "read-only"),
        ("permission/preset", "read-only"),
        ("approval/policy", "ask"),
    ]


async def test_custom_is_never_written_down(root: Context) -> None:
    bench = await ground(root)
    session = bench.session()
    set_approval_policy(session, "never")
    await bench.mount()
    assert stated(session) == [("approval/policy", "never"), ("sandbox/mode", "workspace-write")]


async def test_a_fork_keeps_what_its_parent_has(bench: Bench) -> None:
    parent = bench.session()
    bench.presets.set(parent, "read-only")
    child = bench.store.fork(parent)
    assert stated(child) == stated(parent)


async def test_the_users_default_outranks_the_rows_and_spares_existing_sessions(
    root: Context, tmp_path: Path
) -> None:
    bench = await ground(root, settings=tmp_path / "settings.yaml")
    await bench.mount(defaultPreset="read-only")
    old = bench.session()
    assert stated(old)[0] == ("permission/preset", "read-only")
    settings = root.require(SettingsProvider)
    await settings.update("permission", {"defaultPreset": "danger-full-access"})
    assert bench.presets.default_preset == "danger-full-access"
    assert stated(bench.session()) == FULL
    assert len(stated(old)) == 3
    await settings.replace("permission", {})
    assert bench.presets.default_preset == "read-only"


async def test_a_stored_default_that_is_no_preset_does_not_load(
    root: Context, tmp_path: Path
) -> None:
    (tmp_path / "settings.yaml").write_text("permission:\n  defaultPreset: wide\n")
    bench = await ground(root, settings=tmp_path / "settings.yaml")
    with pytest.raises(Exception, match="'wide' is no preset"):
        await bench.mount()


async def test_a_default_that_is_no_preset_is_not_stored(root: Context, tmp_path: Path) -> None:
    bench = await ground(root, settings=tmp_path / "settings.yaml")
    await bench.mount()
    with pytest.raises(SettingsRefused, match="'wide' is no preset"):
        await root.require(SettingsProvider).update("permission", {"defaultPreset": "wide"})
    assert bench.presets.default_preset == "workspace-write"


async def test_the_only_default_cannot_be_taken_away(root: Context, tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text("permission:\n  defaultPreset: read-only\n")
    bench = await ground(root, policy="never", settings=tmp_path / "settings.yaml")
    await bench.mount()
    with pytest.raises(SettingsRefused, match="name a defaultPreset"):
        await root.require(SettingsProvider).replace("permission", {})
    assert bench.presets.default_preset == "read-only"


async def test_a_mode_that_was_chosen_outranks_every_default(root: Context, tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text("permission:\n  defaultPreset: danger-full-access\n")
    bench = await ground(root, mode="read-only", settings=tmp_path / "settings.yaml")
    await bench.mount(defaultPreset="workspace-write", mode="read-only")
    assert bench.presets.default_preset == "read-only"
    assert stated(bench.session())[0] == ("permission/preset", "read-only")
    settings = root.require(SettingsProvider)
    await settings.update("permission", {"defaultPreset": "workspace-write"})
    assert bench.presets.default_preset == "read-only"


async def test_a_mode_that_was_chosen_may_be_narrower_than_the_rows(root: Context) -> None:
    bench = await (await ground(root)).mount(mode="read-only")
    assert stated(bench.session())[1:] == [
        ("sandbox/mode", "read-only"),
        ("approval/policy", "ask"),
    ]


@pytest.mark.parametrize(("policy", "preset"), [("ask", "workspace-write"), ("never", "alone")])
async def test_of_the_presets_with_the_chosen_mode_the_one_that_equals_the_rows_counts(
    root: Context, policy: str, preset: str
) -> None:
    table = {**TABLE, "alone": {"sandbox": "workspace-write", "approval": "never"}}
    bench = await ground(root, policy=policy)
    await bench.mount(presets=table, mode="workspace-write")
    assert bench.presets.default_preset == preset


async def test_a_chosen_mode_serves_where_the_rows_match_no_preset(root: Context) -> None:
    bench = await ground(root, policy="never")
    await bench.mount(mode="workspace-write")
    assert bench.presets.default_preset == "workspace-write"


async def test_a_chosen_mode_leaves_sessions_that_go_on_as_they_are(bench: Bench) -> None:
    parent = bench.session()
    bench.presets.set(parent, "danger-full-access")
    await bench.fiber.dispose()
    await bench.mount(mode="read-only")
    assert stated(parent)[3:] == FULL
    assert bench.presets.current(bench.store.fork(parent).events) == "danger-full-access"


async def test_the_projection_shows_custom_only_while_it_holds(bench: Bench) -> None:
    await bench.root.plugin(SessionProjections)
    projections = bench.root.require(ProjectionRegistry)
    session = bench.session()
    view: Any = projections.snapshot(session)["values"]["permissions"]
    assert view["currentValue"] == "workspace-write"
    assert [option["value"] for option in view["options"]] == list(TABLE)
    set_approval_policy(session, "never")
    view = projections.snapshot(session)["values"]["permissions"]
    assert view["currentValue"] == "custom"
    assert [option["value"] for option in view["options"]] == [*TABLE, "custom"]


async def test_events_of_others_leave_the_projected_state_as_it_is(bench: Bench) -> None:
    await bench.root.plugin(SessionProjections)
    projections = bench.root.require(ProjectionRegistry)
    session = bench.session()
    before = projections.state_of(session, "permissions")
    assert before == {"preset": "workspace-write", "sandbox": "workspace-write", "approval": "ask"}
    bench.store.fork(session)
    session.append(PERMISSION_PRESET, {"preset": "workspace-write"})
    assert projections.state_of(session, "permissions") is before
    checkpoint = projections.checkpoint(session)["permissions"]
    assert (checkpoint["ver"], checkpoint["val"]) == (1, before)


async def test_the_projection_goes_with_the_row(bench: Bench) -> None:
    await bench.root.plugin(SessionProjections)
    projections = bench.root.require(ProjectionRegistry)
    session = bench.session()
    assert "permissions" in projections.snapshot(session)["values"]
    await bench.fiber.dispose()
    assert "permissions" not in projections.snapshot(session)["values"]


async def test_a_menu_can_be_made_of_facts_alone(bench: Bench) -> None:
    facts = PermissionFacts(preset=None, sandbox="danger-full-access", approval="never")
    assert bench.presets.select_for(facts)["currentValue"] == "danger-full-access"


async def enter(bench: Bench, line: str) -> tuple[Any, Any]:
    if bench.root.get(CommandRuntime) is None:
        await bench.root.plugin(LayeredCommands)
        await bench.root.fiber
    agent: Any = FakeAgent(bench.session(), bench.root)
    done = await bench.root.require(CommandRuntime).execute(agent, line)
    assert done is not None
    return done.result, agent


@pytest.mark.parametrize("line", ["/permission", "/permission  \n"])
async def test_the_command_alone_tells_the_preset(bench: Bench, line: str) -> None:
    result, _ = await enter(bench, line)
    assert result.kind == "success"
    assert result.text == (
        "current preset workspace-write (available: read-only, workspace-write, danger-full-access)"
    )


async def test_the_command_refuses_an_unknown_preset_and_changes_nothing(bench: Bench) -> None:
    result, agent = await enter(bench, "/permission wide")
    assert result.kind == "error"
    assert result.text == (
        'unknown preset "wide" (available: read-only, workspace-write, danger-full-access)'
    )
    assert stated(agent.session) == WORKSPACE
    kinds = [event["type"] for event in agent.session.events]
    assert kinds[3:] == ["command/run", "command/done"]


async def test_the_command_switches_and_the_model_is_told(bench: Bench) -> None:
    result, agent = await enter(bench, "/permission danger-full-access")
    assert (result.kind, result.text) == ("success", "preset danger-full-access")
    assert stated(agent.session)[3:] == FULL
    [notice] = agent.told
    assert "from ask to never" in text_of(notice)


async def test_the_command_goes_with_the_row(bench: Bench) -> None:
    _, agent = await enter(bench, "/permission")
    commands = bench.root.require(CommandRuntime)
    assert [each.input and each.input.hint for each in commands.all(agent)] == ["<preset>"]
    await bench.fiber.dispose()
    assert commands.all(agent) == ()


async def test_a_preset_that_nobody_configured_is_refused_in_the_log(bench: Bench) -> None:
    await bench.root.plugin(invariants)
    session = bench.session()
    session.append(PERMISSION_PRESET, {"preset": "read-only"})
    with pytest.raises(BrokenInvariant, match="'wide'"):
        session.append(PERMISSION_PRESET, {"preset": "wide"})
