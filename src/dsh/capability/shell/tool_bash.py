"""The ``bash`` tool: one command line in a fresh shell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from dsh.base.errors import DshError
from dsh.base.json import JsonObject, JsonValue
from dsh.capability.sandbox.service import EscalationRequest, ResolvedPolicy, SandboxPolicy
from dsh.capability.shell.rendering import ForegroundValue, parse_exit_status, render, to_value
from dsh.capability.shell.service import ShellEnv, ShellExecutor, ShellRequest
from dsh.execution.prompt.service import PromptSection, SystemPrompt
from dsh.execution.tools.author import define_tool
from dsh.execution.tools.service import ToolResultFacts, ToolRunContext, ToolRuntime

if TYPE_CHECKING:
    from dsh.kernel import Context
    from dsh.model.messages import ContentBlock

name = "tool-bash"
inject = (ToolRuntime, SystemPrompt, ShellExecutor, ShellEnv, SandboxPolicy)

_ORDER = 105

_DESCRIPTION = """\
Run a command line with bash and return what it prints.

Every call starts a fresh, non-interactive shell in the working directory: no variable, alias, \
`cd` or background process of an earlier call is left. Processes that a command leaves behind are \
ended when it returns. There is no terminal and no input.

After the output, lines in square brackets tell how the command ended: `[exit code: N]` when it \
is not 0, `[killed by signal: NAME]`, `[timed out after Nms]`. Long output keeps its beginning and \
its end, and a line names the file with all of it. Some `$DSH_*` variables are set, such as \
`$DSH_SESSION_ID`; put temporary files below `$TMPDIR`. A command is ended after {default_ms} ms \
unless `timeoutMs` says otherwise, and after {most_ms} ms at the latest."""

_CONFINED = """

Commands are confined: `[sandbox: file access denied under MODE mode]` means that the policy in \
force refused to change a file, not that the command is wrong. Do not try to get around it. Where \
the access is really needed, repeat the call with `sandbox_permissions` and `justification`; the \
user then decides about this one call."""

_PROMPT = """\
bash: look at the bracketed lines at the end of a result before you rely on it; a command that \
failed still returns its output. Prefer the file and search tools to cat, sed, find and grep."""


class ToolAborted(DshError):
    """The call was cancelled while its command ran; the command has been ended."""

    code = "TOOL_ABORTED"


class BashArgs(BaseModel):
    """Parameters of the tool where nothing is confined."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    command: str = Field(min_length=1, description="The command line, as bash takes it.")
    description: str = Field(
        description="What the command does, in five to ten words, for the person who watches."
    )
    timeout_ms: int | None = Field(
        default=None,
        gt=0,
        alias="timeoutMs",
        description="End the command after this many milliseconds.",
    )
    workdir: str | None = Field(
        default=None,
        description="Directory to run in; a relative one starts at the session's directory.",
    )


class ConfinedBashArgs(BashArgs):
    """Parameters of the tool where commands are confined."""

    sandbox_permissions: Literal["workspace-write", "danger-full-access"] | None = Field(
        default=None,
        description="Wider file access for this call alone; needs a justification.",
    )
    justification: str | None = Field(
        default=None,
        description="Why the call needs the wider access, in one sentence for the user.",
    )


def apply(ctx: Context) -> None:
    """Offer the tool; its parameters depend on whether the mounted shell confines."""
    shell = ctx.require(ShellExecutor)
    confined = shell.sandbox_mode is not None
    default_ms, most_ms = (round(seconds * 1000) for seconds in shell.timeouts)
    description = _DESCRIPTION.format(default_ms=default_ms, most_ms=most_ms)

    async def run(args: BashArgs, run: ToolRunContext) -> ForegroundValue:
        return await _run(ctx, args, run)

    async def run_confined(args: ConfinedBashArgs, run: ToolRunContext) -> ForegroundValue:
        return await _run(ctx, args, run)

    ctx.require(ToolRuntime).register(
        define_tool(
            run_confined if confined else run,
            name="bash",
            description=description + (_CONFINED if confined else ""),
            render=lambda _, value: render(value, escalation=confined),
            present_call=_present_call,
            present_result=_present_result,
            cancel="signal",
        )
    )
    ctx.require(SystemPrompt).section(PromptSection("tool:bash", _ORDER, _PROMPT))


async def _run(ctx: Context, args: BashArgs, run: ToolRunContext) -> ForegroundValue:
    policy = await _policy(ctx, args, run)
    shell = ctx.require(ShellExecutor)
    spec = shell.resolve(
        ShellRequest(
            command=args.command,
            workdir=args.workdir,
            timeout_s=None if args.timeout_ms is None else args.timeout_ms / 1000,
            signal=run.signal,
            dsh_env=ctx.require(ShellEnv).collect(run),
            policy=policy,
        )
    )
    value = to_value(await shell.run(spec))
    if value["aborted"]:
        raise ToolAborted(
            f"the command was cancelled. Until then:\n{render(value, escalation=False)}"
        )
    return value


async def _policy(ctx: Context, args: BashArgs, run: ToolRunContext) -> ResolvedPolicy:
    policies = ctx.require(SandboxPolicy)
    policy = policies.resolve(run.agent.session if run.agent else None)
    if not isinstance(args, ConfinedBashArgs):
        return policy
    return await policies.escalate(
        EscalationRequest(
            tool_name=run.name,
            policy=policy,
            sandbox_permissions=args.sandbox_permissions,
            justification=args.justification,
            agent=run.agent,
            call_id=run.call_id,
            signal=run.signal,
        )
    )


def _present_call(args: BashArgs) -> JsonObject:
    view: dict[str, str] = {
        "card": "terminal",
        "title": args.command,
        "description": args.description,
    }
    if args.workdir is not None:
        view["cwd"] = args.workdir
    return view


def _present_result(args: BashArgs, facts: ToolResultFacts) -> JsonObject | None:
    if facts.is_error:
        return None
    output = "\n".join(_text(block) for block in facts.content)
    view: dict[str, JsonValue] = {"card": "terminal", "output": output}
    view.update(parse_exit_status(output))
    return view


def _text(block: ContentBlock) -> str:
    return block["text"] if block["type"] == "text" else ""
