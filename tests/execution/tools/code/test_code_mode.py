"""Who has ``run_code``, what the model is offered, and what a collapsed call gets."""

from __future__ import annotations

from typing import Any, cast

import pytest
from code_desk import Desk, mount_desk
from tool_harness import FakeAgent, code, make_tool, text

from dsh.capability.code_runtime.process import ProcessCodeRuntime
from dsh.capability.code_runtime.service import CodeResult, CodeRun, CodeRuntime
from dsh.execution.prompt.service import PromptError
from dsh.execution.tools.code.errors import NoCodeRuntime, UnknownCodeLanguage
from dsh.execution.tools.events import (
    TOOLS_EXECUTE,
    TOOLS_POST_EXECUTE,
    TOOLS_PRE_EXECUTE,
    TOOLS_RESULT,
)
from dsh.execution.tools.service import (
    PresentationMode,
    ToolRegistrationError,
    ToolRuntime,
)
from dsh.kernel import Context, create_scope
from dsh.loader.aliases import ALIASES
from dsh.loader.audit import audit
from dsh.loader.loader import Loader


def join(desk: Desk, mode: PresentationMode | None = None, parent: object = None) -> FakeAgent:
    """Another agent, maybe with a presentation of its own."""
    agent = FakeAgent()
    agent.scope = create_scope(desk.ctx, agent, parent)
    agent.tools = agent.scope.ctx.require(ToolRuntime)
    if mode is not None:
        agent.tools.present_as(mode)
    return agent


@pytest.mark.parametrize(
    ("mode", "offered"),
    [("native", ["a", "b"]), ("code", ["run_code"]), ("both", ["a", "b", "run_code"])],
)
async def test_the_row_says_what_agents_are_offered(
    root: Context, mode: PresentationMode, offered: list[str]
) -> None:
    desk = await mount_desk(root, mode=mode)
    desk.add("b")
    desk.add("a")
    assert await desk.offered(desk.agent) == offered
    assert await desk.offered() == offered


@pytest.mark.parametrize(
    ("mode", "sdk", "only"),
    [("native", False, False), ("code", True, True), ("both", True, False)],
)
async def test_the_prompt_declares_the_tools_and_says_when_programs_are_the_only_way(
    root: Context, mode: PresentationMode, sdk: bool, only: bool
) -> None:
    desk = await mount_desk(root, mode=mode)
    desk.add("a")
    prompt = await desk.prompt(desk.agent)
    assert ("async def a(self" in prompt) is sdk
    assert ("only tool that you can call directly" in prompt) is only
    if sdk and only:
        assert prompt.index("only tool") < prompt.index("async def a")


async def test_the_sdk_text_is_identical_across_assemblies(desk: Desk) -> None:
    for name in ("b", "a", "c-c"):
        desk.add(name)
    assert await desk.prompt(desk.agent) == await desk.prompt(desk.agent)


async def test_a_tool_that_changes_is_declared_anew(desk: Desk) -> None:
    first = desk.tools.register(make_tool("a", description="The first."))
    assert "The first." in await desk.prompt(desk.agent)
    await first.dispose()
    assert "async def a" not in await desk.prompt(desk.agent)
    desk.tools.register(make_tool("a", description="The second."))
    assert "The second." in await desk.prompt(desk.agent)


async def test_the_nearest_presentation_counts(desk: Desk) -> None:
    preset = join(desk, "native")
    child = join(desk, parent=preset)
    own = join(desk, "both", parent=preset)
    desk.add("a")
    assert await desk.offered(preset) == ["a"]
    assert await desk.offered(child) == ["a"]
    assert await desk.offered(own) == ["a", "run_code"]
    assert await desk.offered(join(desk)) == ["run_code"]


async def test_a_preset_covers_joined_agents_and_one_may_opt_out(root: Context) -> None:
    desk = await mount_desk(root, mode="native")
    preset = join(desk, "code")
    member, rebel = join(desk, parent=preset), join(desk, "native", parent=preset)
    desk.add("a")
    assert await desk.offered(member) == ["run_code"]
    assert await desk.offered(rebel) == ["a"]


async def test_a_native_agent_never_finds_run_code(root: Context) -> None:
    desk = await mount_desk(root, mode="native")
    coder, native = join(desk, "code"), join(desk)
    assert desk.tools.get("run_code", coder) is not None
    assert desk.tools.get("run_code", native) is None
    assert desk.tools.get("run_code") is None
    result = await desk.call("run_code", {"code": "return 1", "description": "x"}, agent=native)
    assert code(result) == "UNKNOWN_TOOL"


async def test_a_presentation_goes_with_its_scope(root: Context) -> None:
    desk = await mount_desk(root, mode="native")
    agent = join(desk, "code")
    await agent.scope.dispose()
    assert desk.tools.get("run_code", agent) is None


async def test_run_code_is_reserved(desk: Desk) -> None:
    agent = join(desk)
    for tools in (desk.tools, agent.tools):
        with pytest.raises(ToolRegistrationError, match="reserved"):
            tools.register(make_tool("run_code"))
    for filters in ({"deny": ["run_code"]}, {"allow": ["run_code"]}):
        with pytest.raises(ToolRegistrationError, match="reserved"):
            agent.tools.restrict(**cast("Any", filters))


async def test_programs_see_what_their_agent_sees(desk: Desk) -> None:
    desk.add("a")
    desk.add("b")
    desk.agent.scope.ctx.require(ToolRuntime).restrict(deny=["b"])
    desk.agent.scope.ctx.require(ToolRuntime).register(make_tool("own"))
    assert await desk.value("return list(tools)") == ["a", "own"]
    prompt = await desk.prompt(desk.agent)
    assert "async def own(self" in prompt
    assert "async def b(self" not in prompt


async def test_the_order_of_tools_may_not_name_what_is_collapsed(root: Context) -> None:
    desk = await mount_desk(root, prompt={"toolOrder": ["a", "<unlisted-tools>"]})
    desk.add("a")
    with pytest.raises(PromptError, match="'a'"):
        await desk.offered(desk.agent)


async def test_a_collapsed_call_is_told_the_way_and_no_policy_sees_it(desk: Desk) -> None:
    seen: list[str] = []

    async def note(event: Any, proceed: Any) -> Any:
        seen.append("policy")
        return await proceed()

    for stage in (TOOLS_PRE_EXECUTE, TOOLS_EXECUTE, TOOLS_POST_EXECUTE):
        desk.ctx.on(cast("Any", stage), note)
    desk.ctx.on(TOOLS_RESULT, lambda event: seen.append(event.execution.name))
    desk.tools.guard(lambda _: seen.append("guard"))  # type: ignore[func-returns-value]
    desk.add("a", lambda *_: seen.append("body"))

    result = await desk.call("a", {})

    assert code(result) == "UNKNOWN_TOOL"
    assert "run_code" in text(result)
    assert "await tools['a']" in text(result)
    assert seen == ["a"]


async def test_a_collapsed_call_that_is_aborted_already_is_that(desk: Desk) -> None:
    desk.add("a")
    desk.controller.abort()
    assert code(await desk.call("a", {})) == "ABORTED_BEFORE_DISPATCH"


async def test_arguments_that_are_no_json_win_over_the_collapse(desk: Desk) -> None:
    desk.add("a")
    desk.controller.abort()
    result = await desk.call("a", {"x": {1, 2}})
    assert "not lossless JSON" in text(result)


async def test_an_unknown_name_is_simply_unknown(desk: Desk) -> None:
    result = await desk.call("nope", {})
    assert text(result) == "Error: unknown tool 'nope'"


async def test_a_direct_call_works_beside_programs(root: Context) -> None:
    desk = await mount_desk(root, mode="both")
    desk.add("a")
    assert text(await desk.call("a", {})) == "done"
    assert await desk.value("return await tools.a()") == "done"


async def test_a_mode_with_programs_needs_a_runtime(root: Context) -> None:
    desk = await mount_desk(root, runtime=None)
    with pytest.raises(NoCodeRuntime, match="code-runtime"):
        await desk.prompt(desk.agent)
    result = await desk.run("return 1")
    assert code(result) == "NO_CODE_RUNTIME"
    (schema,) = [each for each in desk.tools.schemas() if each["name"] == "run_code"]
    assert "Python" in schema["description"]


class Lisp(CodeRuntime):
    """A runtime of a language that nobody can declare tools in."""

    language = "lisp"
    isolation = "none"

    async def run(self, request: CodeRun) -> CodeResult:
        return CodeResult()


async def test_an_unknown_language_fails_loudly(root: Context) -> None:
    desk = await mount_desk(root, runtime=Lisp)
    with pytest.raises(UnknownCodeLanguage, match=r"'lisp'.*python"):
        await desk.prompt(desk.agent)
    with pytest.raises(UnknownCodeLanguage):
        desk.tools.schemas()


@pytest.mark.parametrize("config", [{"mode": "odd"}, {"maxParallelSubCalls": 0}])
async def test_a_row_that_makes_no_sense_is_refused(root: Context, config: Any) -> None:
    with pytest.raises(Exception, match=r"mode|maxParallelSubCalls"):
        await mount_desk(root, **config)


PRESENTATION = "dsh.execution.tools.presentation"


async def present(desk: Desk, mode: str) -> tuple[FakeAgent, Loader]:
    """Mount the row in the scope of an agent, as a preset does."""
    agent = join(desk)
    await agent.scope.ctx.plugin(Loader)
    loader = desk.root.require(Loader)
    row = {"id": "tool-presentation", "name": PRESENTATION, "config": {"mode": mode}}
    await loader.mount([row])
    return agent, loader


async def test_a_row_that_presents_programs_waits_for_what_runs_them(root: Context) -> None:
    desk = await mount_desk(root, mode="native", runtime=None)
    desk.add("a")
    agent, loader = await present(desk, "code")
    (problem,) = audit(loader.entries())
    assert problem.pending
    assert "codeRuntime" in problem.text

    await root.plugin(ProcessCodeRuntime)
    await loader.wait()

    assert audit(loader.entries()) == []
    assert await desk.offered(agent) == ["run_code"]


async def test_a_row_that_presents_natively_waits_for_nothing(root: Context) -> None:
    desk = await mount_desk(root, mode="code", runtime=None)
    desk.add("a")
    agent, loader = await present(desk, "native")
    assert audit(loader.entries()) == []
    assert await desk.offered(agent) == ["a"]


async def test_upstreams_name_of_the_row_is_ours() -> None:
    assert ALIASES["@deepseek-ai/dsh-agent-tool-presentation"] == PRESENTATION
