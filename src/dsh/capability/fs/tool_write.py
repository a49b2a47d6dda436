"""The ``write`` tool: a whole file at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

from pydantic import BaseModel, ConfigDict, Field, field_validator

from dsh.capability.fs.cards import diff_meta, present_diffs
from dsh.capability.fs.desk import Desk, SandboxRequest, envelope
from dsh.capability.fs.events import Present
from dsh.capability.fs.service import FsError
from dsh.execution.tools.author import define_tool
from dsh.execution.tools.resources import file_resource
from dsh.execution.tools.service import ToolDefinition, ToolRunContext

if TYPE_CHECKING:
    from dsh.base.json import JsonObject, JsonValue

PROMPT = (
    "The write tool replaces a whole file, or creates it with its folders. Read an existing file "
    "before you overwrite it, and prefer edit for changes to a part of a file."
)
"""What the system prompt says of the tool."""


class WriteArgs(BaseModel):
    """What to write where."""

    model_config = ConfigDict(extra="forbid")

    file_path: str = Field(description="The file; relative paths start at the workspace.")
    content: str = Field(description="The whole new content; may be empty.")

    @field_validator("file_path")
    @classmethod
    def _named(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("must not be blank")
        return value


class ConfinedWriteArgs(SandboxRequest, WriteArgs):
    """As `WriteArgs`, where a call may ask for a wider sandbox mode."""


class WriteValue(TypedDict):
    """What a write did."""

    path: str
    operation: Literal["create", "update"]
    before: str | None
    after: str


def write_tool(desk: Desk) -> ToolDefinition:
    """Return the tool, bound to a filesystem."""

    async def body(args: WriteArgs, run: ToolRunContext) -> WriteValue:
        policy = desk.policy_for(run)
        target = await desk.fs.resolve(
            args.file_path, cwd=desk.base_for(run, policy), signal=run.signal
        )
        policy = await desk.granted(run, policy, args)
        try:
            expected = await desk.write_intent(target, run)
            done = await desk.fs.write_text(
                target,
                args.content,
                expected=expected,
                signal=run.signal,
                sandbox_policy=policy,
            )
        except FsError as error:
            raise desk.explained(error, policy) from error
        desk.observed(target, Present(done.version), run)
        return {
            "path": target.display_path,
            "operation": done.operation,
            "before": done.before,
            "after": done.after,
        }

    async def plain(args: WriteArgs, run: ToolRunContext) -> WriteValue:
        return await body(args, run)

    async def confined(args: ConfinedWriteArgs, run: ToolRunContext) -> WriteValue:
        return await body(args, run)

    return define_tool(
        confined if desk.confined else plain,
        name="write",
        description=(
            "Write a whole text file, replacing what it holds or creating it with its folders. "
            "An existing file must have been read before."
        ),
        render=_render,
        presentation_meta=_meta,
        parallel=True,
        resources=lambda args: [file_resource(args.file_path)],
        present_call=_present_call,
        present_result=present_diffs,
    )


def _render(_: object, value: WriteValue) -> str:
    done = "Created file" if value["operation"] == "create" else "Updated file"
    return envelope(value["path"], done)


def _meta(_: object, value: WriteValue) -> JsonValue:
    if value["before"] is None and value["operation"] == "update":
        return {"diffs": []}
    return diff_meta(value["path"], value["before"], value["after"])


def _present_call(args: Any) -> JsonObject:
    return {
        "card": "diff",
        "title": f"Write {args.file_path}",
        "diffs": [{"path": args.file_path, "oldText": None, "newText": args.content}],
        "locations": [{"path": args.file_path}],
    }
