from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from loader_support import Shelf

from dsh.kernel import Context, Service
from dsh.loader.boot import Launch, boot, host
from dsh.loader.compose import Composition, compose_profile
from dsh.loader.environment import LaunchEnvironment
from dsh.loader.errors import BootFailed
from dsh.loader.events import HOST_EXIT, HostExit
from dsh.loader.host import AppExit, CommandLine
from dsh.loader.shutdown import ShutdownController

Rows = list[dict[str, Any]]


@dataclass
class Sized:
    size: int = 1


class Stage:
    """Profiles made of rows, and what the host said about them."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.said: list[str] = []

    def compose(self, rows: Rows) -> Composition:
        folder = self.home / "profiles" / "p"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "profile.json").write_text("{}")
        (folder / "cordis.patch.yml").write_text(json.dumps([{"insert": rows}]))
        return compose_profile("p", self.home)

    def launch(self, rows: Rows, **changes: Any) -> Launch:
        facts: dict[str, Any] = {
            "composition": self.compose(rows),
            "home": self.home,
            "environment": LaunchEnvironment({"FROM": "env"}),
            "cmdline": CommandLine(["a", "b"], "parsed"),
            "say": self.said.append,
        }
        return Launch(**{**facts, **changes})


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "home")


async def failure(root: Context, launch: Launch) -> list[str]:
    root.set_reporter(lambda *_: None)
    with pytest.raises(BootFailed) as caught:
        await boot(root, launch, AppExit(lambda _: None))
    return caught.value.problems


async def test_the_host_gives_the_tree_its_services(
    root: Context, plugins: Shelf, stage: Stage
) -> None:
    seen: dict[str, Any] = {}

    def apply(ctx: Context, config: Any) -> None:
        seen.update(
            argv=ctx.cmdline_args.get(),
            same=ctx.cmdline_args.get() is ctx.cmdline_args.get(),
            parsed=ctx.cmdline.parsed,
            env=ctx.require(LaunchEnvironment).value("FROM"),
            home=ctx.dsh_home_path("sessions"),
            base=ctx.base_url,
            config=config,
        )

    row = {"id": "a", "name": plugins.module("m", apply=apply)}
    launch = stage.launch([row], cwd="/chosen")
    launch.composition.rows[0]["config"] = _expressions()
    assert await boot(root, launch, AppExit(lambda _: None)) == []
    assert seen == {
        "argv": ("a", "b"),
        "same": True,
        "parsed": "parsed",
        "env": "env",
        "home": str(stage.home / "sessions"),
        "base": (stage.home / "profiles" / "p").as_uri() + "/",
        "config": {"env": "env", "cwd": "/chosen", "home": str(stage.home / "x")},
    }


def _expressions() -> dict[str, Any]:
    from dsh.loader.expr import Expr

    return {
        "env": Expr("process.env.FROM"),
        "cwd": Expr("process.cwd()"),
        "home": Expr("dshHomePath('x')"),
    }


async def test_a_row_that_raises_is_one_line_with_its_deepest_cause(
    root: Context, plugins: Shelf, stage: Stage
) -> None:
    def apply(ctx: Context, config: Any) -> None:
        try:
            raise OSError("disk\nfull")
        except OSError as error:
            raise RuntimeError("cannot start") from error

    lines = await failure(
        root, stage.launch([{"id": "a", "name": plugins.module("m", apply=apply)}])
    )
    assert lines == ['row "a" (m) did not activate: cannot start: OSError: disk full']


async def test_a_wrong_config_value_names_row_and_field(
    root: Context, plugins: Shelf, stage: Stage
) -> None:
    from pydantic import BaseModel

    class Config(BaseModel):
        size: int

    name = plugins.module("m", apply=lambda ctx, config: None, Config=Config)
    (line,) = await failure(
        root, stage.launch([{"id": "a", "name": name, "config": {"size": "many"}}])
    )
    assert line.startswith('row "a" (m) did not activate: config.size: ')
    assert "integer" in line


async def test_a_pending_row_names_services_and_the_remedy(
    root: Context, plugins: Shelf, stage: Stage
) -> None:
    row = {"id": "a", "name": plugins.recorder("m"), "inject": ["webStartup", "loader"]}
    lines = await failure(root, stage.launch([row]))
    (line,) = lines
    assert line == (
        'row "a" (m) did not activate: pending (waiting for service(s): webStartup): '
        "no row provides webStartup. add a row that provides what is missing, "
        "or set disabled: true where it is not needed"
    )


async def test_rows_that_wait_in_consequence_are_one_line(
    root: Context, plugins: Shelf, stage: Stage
) -> None:
    gate = plugins.provider("gate", "opened", True)
    bad = plugins.failing("bad", RuntimeError("no luck"))
    waits = plugins.recorder("waits")
    rows: Rows = [
        {"id": "bad", "name": bad, "inject": ["opened"]},
        {"id": "one", "name": waits, "inject": ["fromBad"]},
        {"id": "two", "name": waits, "inject": ["fromBad"]},
        {"id": "gate", "name": gate},
    ]
    lines = await failure(root, stage.launch(rows))
    assert lines == [
        'row "bad" (bad) did not activate: RuntimeError: no luck',
        "2 more rows wait for services in consequence: one, two",
    ]


async def test_a_missing_service_is_one_line_however_many_rows_wait_for_it(
    root: Context, plugins: Shelf, stage: Stage
) -> None:
    class Middle(Service):
        name = "middle"
        inject = ("store",)

    waits = plugins.recorder("waits")
    rows: Rows = [
        {"id": "one", "name": waits, "inject": ["store"]},
        {"id": "two", "name": waits, "inject": ["store"]},
        {"id": "middle", "name": plugins.module("middle", plugin=Middle)},
        {"id": "three", "name": waits, "inject": ["middle"]},
    ]
    lines = await failure(root, stage.launch(rows))
    assert len(lines) == 2
    assert lines[0].startswith('rows "one", "two", "middle" did not activate: pending (waiting')
    assert lines[1] == "1 more row waits for services in consequence: three"


async def test_rows_that_wait_for_each_other_are_all_named(
    root: Context, plugins: Shelf, stage: Stage
) -> None:
    class Left(Service):
        name = "left"
        inject = ("right",)

    class Right(Service):
        name = "right"
        inject = ("left",)

    rows: Rows = [
        {"id": "l", "name": plugins.module("l", plugin=Left)},
        {"id": "r", "name": plugins.module("r", plugin=Right)},
    ]
    lines = await failure(root, stage.launch(rows))
    assert lines[0] == "2 entries did not activate"
    assert ["right" in lines[1], "left" in lines[2]] == [True, True]


async def test_several_failures_are_counted_and_listed(
    root: Context, plugins: Shelf, stage: Stage
) -> None:
    lines = await failure(
        root,
        stage.launch([{"id": "a", "name": "no.such.a"}, {"id": "b", "name": "no.such.b"}]),
    )
    assert lines[0] == "2 entries did not activate"
    assert ['"no.such.a"' in lines[1], '"no.such.b"' in lines[2]] == [True, True]


async def test_disabled_rows_are_no_problem(root: Context, plugins: Shelf, stage: Stage) -> None:
    rows = [{"id": "a", "name": "no.such.thing", "disabled": True}]
    assert await boot(root, stage.launch(rows), AppExit(lambda _: None)) == []


async def test_a_problem_inside_a_group_is_told_once(
    root: Context, plugins: Shelf, stage: Stage
) -> None:
    bad = {"id": "bad", "name": plugins.failing("bad", RuntimeError("no luck"))}
    group = {"id": "g", "name": "cordis:group", "group": True, "config": [bad]}
    lines = await failure(root, stage.launch([group]))
    assert lines == ['row "bad" (bad) did not activate: RuntimeError: no luck']


def _third_party(launch: Launch) -> Launch:
    """The same launch, with all its rows from a bundle that somebody else installed."""
    from dsh.base.values import changed
    from dsh.loader.bundle import Bundle

    composition = launch.composition
    origin = composition.provenance[0].origin
    bundle = Bundle(name=origin, path=Path("x"), patches=[], shipped=False)
    return changed(launch, composition=composition._replace(bundles=(bundle,)))


async def test_rows_of_third_parties_are_left_out_and_told(
    root: Context, plugins: Shelf, stage: Stage
) -> None:
    root.set_reporter(lambda *_: None)
    rows = [
        {"id": "good", "name": plugins.recorder("good")},
        {"id": "missing", "name": "no.such.thing"},
        {"id": "waits", "name": plugins.recorder("waits"), "inject": ["nothing"]},
        {"id": "bad", "name": plugins.failing("bad", RuntimeError("no luck"))},
    ]
    left_out = await boot(root, _third_party(stage.launch(rows)), AppExit(lambda _: None))
    assert sorted(problem.id for problem in left_out) == ["bad", "missing", "waits"]
    assert [entry.id for entry in root.loader.entries()] == ["good"]


async def test_strict_makes_rows_of_third_parties_fatal(
    root: Context, plugins: Shelf, stage: Stage
) -> None:
    rows = [{"id": "missing", "name": "no.such.thing"}]
    lines = await failure(root, _third_party(stage.launch(rows, strict=True)))
    assert "no.such.thing" in lines[0]


async def test_the_app_ends_the_host_with_its_code(plugins: Shelf, stage: Stage) -> None:
    order: list[str] = []

    def apply(ctx: Context, config: Any) -> None:
        ctx.defer(lambda: order.append("down"))
        ctx.on(HOST_EXIT, lambda event: order.append(f"exit {event.signal} {event.code}"))

        async def work() -> None:
            await ctx.loader.ready()
            ctx.app_exit.exit(7)
            ctx.app_exit(8)

        ctx.spawn(work(), "work")

    code = await host(stage.launch([{"id": "a", "name": plugins.module("m", apply=apply)}]))
    assert code == 7
    assert order == ["exit None 7", "down"]
    assert stage.said == []


async def test_an_app_may_end_the_host_while_it_boots(plugins: Shelf, stage: Stage) -> None:
    def apply(ctx: Context, config: Any) -> None:
        ctx.app_exit.exit(3)

    assert await host(stage.launch([{"id": "a", "name": plugins.module("m", apply=apply)}])) == 3
    assert stage.said == []


async def test_work_that_waits_for_readiness_never_starts_after_a_failure(
    plugins: Shelf, stage: Stage
) -> None:
    started: list[str] = []

    def apply(ctx: Context, config: Any) -> None:
        async def work() -> None:
            await ctx.loader.ready()
            started.append("work")

        ctx.spawn(work(), "work")

    rows = [
        {"id": "a", "name": plugins.module("m", apply=apply)},
        {"id": "b", "name": plugins.recorder("b"), "inject": ["nothing"]},
    ]
    assert await host(stage.launch(rows)) == 1
    assert started == []
    assert len(stage.said) == 1


async def test_a_failed_boot_leaves_one_line_and_the_traceback_in_the_log(
    plugins: Shelf, stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    def apply(ctx: Context, config: Any) -> None:
        ctx.defer(lambda: plugins.log.append(("undone", None)))
        raise RuntimeError("no luck")

    code = await host(stage.launch([{"id": "a", "name": plugins.module("m", apply=apply)}]))
    assert code == 1
    assert stage.said == ['row "a" (m) did not activate: RuntimeError: no luck']
    assert plugins.did() == ["undone"]
    (log,) = (stage.home / "logs").iterdir()
    assert log.read_text().count("Traceback") == 1
    assert capsys.readouterr() == ("", "")


async def test_debug_shows_the_traceback(
    plugins: Shelf, stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"id": "a", "name": plugins.failing("m", RuntimeError("no luck"))}]
    await host(stage.launch(rows, debug=True))
    shown = capsys.readouterr()
    assert "Traceback" in shown.err
    assert shown.out == ""


async def test_a_failure_at_run_time_stays_in_its_row_and_is_told(
    plugins: Shelf, stage: Stage
) -> None:
    def apply(ctx: Context, config: Any) -> None:
        async def break_later() -> None:
            await ctx.loader.ready()
            raise RuntimeError("no luck")

        async def end_later() -> None:
            await asyncio.wait([ctx.spawn(break_later(), "break")])
            ctx.app_exit.exit(0)

        ctx.spawn(end_later(), "end")

    name = plugins.module("m", apply=apply, name="frail")
    assert await host(stage.launch([{"id": "a", "name": name}])) == 0
    assert stage.said == ['row "a" (m): ctx.spawn("break") failed: RuntimeError: no luck']


async def test_a_task_that_nobody_waits_for_is_fatal(plugins: Shelf, stage: Stage) -> None:
    def apply(ctx: Context, config: Any) -> None:
        async def orphan() -> None:
            raise RuntimeError("no luck")

        async def lose() -> None:
            await ctx.loader.ready()
            task = asyncio.create_task(orphan())
            await asyncio.wait([task])
            del task

        ctx.spawn(lose(), "lose")

    code = await host(stage.launch([{"id": "a", "name": plugins.module("m", apply=apply)}]))
    assert code == 1
    assert stage.said == ["fatal load failure: RuntimeError: no luck"]


async def test_only_the_first_such_task_is_told(plugins: Shelf, stage: Stage) -> None:
    async def fail(text: str) -> None:
        raise RuntimeError(text)

    def apply(ctx: Context, config: Any) -> None:
        async def lose() -> None:
            await ctx.loader.ready()
            tasks = [asyncio.create_task(fail(text)) for text in ("first", "second")]
            await asyncio.wait(tasks)
            for task in tasks:
                task.get_loop().call_exception_handler(
                    {"message": "lost", "exception": task.exception(), "task": task}
                )

        ctx.spawn(lose(), "lose")

    assert await host(stage.launch([{"id": "a", "name": plugins.module("m", apply=apply)}])) == 1
    assert stage.said == ["fatal load failure: RuntimeError: first"]


async def test_a_slow_start_names_the_rows_that_it_waits_for(plugins: Shelf, stage: Stage) -> None:
    go, slow = asyncio.Event(), asyncio.Event()
    asked: list[float] = []

    async def sleep(seconds: float) -> None:
        asked.append(seconds)
        if len(asked) > 2:
            go.set()
            await asyncio.Event().wait()
        await slow.wait()

    async def apply(ctx: Context, config: Any) -> None:
        slow.set()
        await go.wait()
        ctx.app_exit.exit(0)

    inner = {"id": "slow", "name": plugins.module("m", apply=apply)}
    group = {"id": "g", "name": "cordis:group", "group": True, "config": [inner]}
    quick = {"id": "quick", "name": plugins.recorder("quick")}
    assert await host(stage.launch([quick, group], sleep=sleep)) == 0
    assert asked == [10.0, 10.0, 10.0]
    assert stage.said == [
        'the start waits for row "slow" (m), which is still loading after 10 s',
    ]


async def test_a_start_in_time_says_nothing(plugins: Shelf, stage: Stage) -> None:
    def apply(ctx: Context, config: Any) -> None:
        ctx.app_exit.exit(0)

    assert await host(stage.launch([{"id": "a", "name": plugins.module("m", apply=apply)}])) == 0
    assert stage.said == []


async def test_a_row_that_fails_when_it_is_activated_again_is_told_and_the_host_goes_on(
    plugins: Shelf, stage: Stage
) -> None:
    def frail(ctx: Context, config: Any) -> None:
        if ctx.get("thing") != 1:
            raise RuntimeError("no luck")

    def apply(ctx: Context, config: Any) -> None:
        async def change() -> None:
            await ctx.loader.ready()
            await ctx.loader.update("provider", {"config": 2})
            await ctx.loader.quiesce()
            assert ctx.loader.resolve("frail").fiber.state.label == "failed"
            ctx.app_exit.exit(0)

        ctx.spawn(change(), "change")

    def provide(ctx: Context, config: Any) -> None:
        ctx.provide("thing", config)

    rows = [
        {"id": "provider", "name": plugins.module("provider", apply=provide), "config": 1},
        {"id": "frail", "name": plugins.module("frail", apply=frail, inject=("thing",))},
        {"id": "driver", "name": plugins.module("driver", apply=apply)},
    ]
    assert await host(stage.launch(rows)) == 0
    assert stage.said == ['row "frail" (frail): apply failed: RuntimeError: no luck']


def controller(forced: list[int], grace_s: float = 5.0) -> ShutdownController:
    return ShutdownController(sigterm=143, grace_s=grace_s, force=forced.append)


async def test_normal_requests_coalesce_and_never_escalate(root: Context) -> None:
    forced: list[int] = []
    ends = controller(forced)
    ends.attach(root)
    ends.shutdown(4)
    ends.shutdown(5)
    assert await ends.finished() == 4
    assert forced == []


async def test_a_second_signal_forces_the_exit(root: Context) -> None:
    forced: list[int] = []
    ends = controller(forced)
    ends.attach(root)
    ends.interrupt(130, "SIGINT")
    ends.interrupt(143, "SIGTERM")
    assert forced == [143]
    assert await ends.finished() == 130
    assert ends.signal == "SIGINT"


async def test_a_first_signal_during_a_normal_end_forces_the_exit(root: Context) -> None:
    forced: list[int] = []
    ends = controller(forced)
    ends.attach(root)
    ends.shutdown(0)
    ends.interrupt(130)
    assert forced == [130]
    await ends.finished()


async def test_a_disposal_that_hangs_is_forced(root: Context) -> None:
    release = asyncio.Event()
    forced: list[int] = []
    ends = controller(forced, grace_s=0.01)
    ends.attach(root)
    root.defer(release.wait)
    ends.shutdown(0)
    assert await ends.finished() == 0
    assert forced == [0]
    release.set()
    await root.dispose()


async def test_a_disposal_that_fails_is_forced() -> None:
    class Stubborn(Context):
        async def dispose(self) -> None:  # type: ignore[override]
            raise RuntimeError("no luck")

    complaints: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    forced: list[int] = []
    ends = controller(forced)
    ends.attach(Stubborn())
    ends.shutdown(3)
    assert await ends.finished() == 3
    loop.set_exception_handler(None)
    assert forced == [3]
    assert [each["message"] for each in complaints] == ["the disposal of the tree failed"]


async def test_a_fatal_failure_has_less_patience_than_a_stop(root: Context) -> None:
    release = asyncio.Event()
    forced: list[int] = []
    ends = controller(forced, grace_s=60)
    ends.attach(root)
    root.defer(release.wait)
    ends.fail(1)
    assert await ends.finished() == 1
    assert forced == [1]
    release.set()
    await root.dispose()


async def test_listeners_of_the_end_hear_the_signal_and_cannot_stop_it(root: Context) -> None:
    heard: list[HostExit] = []
    root.on(HOST_EXIT, heard.append)

    async def refuse(_: HostExit) -> None:
        raise RuntimeError("no")

    root.on(HOST_EXIT, refuse)
    ends = controller([])
    ends.attach(root)
    ends.interrupt(143, "SIGTERM")
    assert await ends.finished() == 143
    assert [(event.signal, event.code) for event in heard] == [("SIGTERM", 143)]
