"""The ``edit`` tool: a literal replacement in a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypedDict

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from dsh.capability.fs.cards import diff_meta, present_diffs
from dsh.capability.fs.desk import Desk, SandboxRequest, envelope
from dsh.capability.fs.events import Present
from dsh.capability.fs.service import FsEdit, FsError
from dsh.capability.fs.text import lf
from dsh.execution.tools.author import define_tool
from dsh.execution.tools.resources import file_resource
from dsh.execution.tools.service import ToolDefinition, ToolRunContext

if TYPE_CHECKING:
    from dsh.base.json import JsonObject, JsonValue

PROMPT = (
    "The edit tool replaces a literal piece of a file that you have read. Quote old_string exactly "
    "as read shows it, without the line numbers, with enough lines around it to occur only once; "
    "or set replace_all to change every occurrence. Line ends need no care: the file keeps its own."
)
"""What the system prompt says of the tool."""


class EditArgs(BaseModel):
    """What to replace where."""

    model_config = ConfigDict(extra="forbid")

    file_path: str = Field(description="The file; relative paths start at the workspace.")
    old_string: str = Field(description="The text to replace, exactly as it is in the file.")
    new_string: str = Field(description="What takes its place; empty to delete.")
    replace_all: bool = Field(
        default=False, description="Replace every occurrence; otherwise there must be just one."
    )

    @field_validator("file_path")
    @classmethod
    def _named(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("must not be blank")
        return value

    @field_validator("old_string")
    @classmethod
    def _something(cls, value: str) -> str:
        if not value:
            raise ValueError("must not be empty; use write to create a file")
        return value

    @model_validator(mode="after")
    def _changes(self) -> Self:
        if lf(self.old_string) == lf(self.new_string):
            raise ValueError("old_string and new_string are the same, so nothing would change")
        return self


class ConfinedEditArgs(SandboxRequest, EditArgs):
    """As `EditArgs`, where a call may ask for a wider sandbox mode."""


class EditValue(TypedDict):
    """What an edit did."""

    path: str
    before: str | None
    after: str


def edit_tool(desk: Desk) -> ToolDefinition:
    """Return the tool, bound to a filesystem."""

    async def body(args: EditArgs, run: ToolRunContext) -> EditValue:
        policy = desk.policy_for(run)
        target = await desk.fs.resolve(
            args.file_path, cwd=desk.base_for(run, policy), signal=run.signal
        )
        policy = await desk.granted(run, policy, args)
        try:
            expected = await desk.edit_intent(target, run)
            done = await desk.fs.edit_text(
                target,
                FsEdit(args.old_string, args.new_string, args.replace_all),
                expected=expected,
                signal=run.signal,
                sandbox_policy=policy,
            )
        except FsError as error:
            raise desk.explained(error, policy) from error
        desk.observed(target, Present(done.version), run)
        return {"path": target.display_path, "before": done.before, "after": done.after}

    async def plain(args: EditArgs, run: ToolRunContext) -> EditValue:
        return await body(args, run)

    async def confined(args: ConfinedEditArgs, run: ToolRunContext) -> EditValue:
        return await body(args, run)

    return define_tool(
        confined if desk.confined else plain,
        name="edit",
        description=(
            "Replace a literal piece of a text file that has been read before. Everything outside "
            "of the replaced text stays byte for byte as it is."
        ),
        render=_render,
        presentation_meta=_meta,
        parallel=True,
        resources=lambda args: [file_resource(args.file_path)],
        present_call=_present_call,
        present_result=present_diffs,
    )


def _render(_: object, value: EditValue) -> str:
    return envelope(value["path"], "Updated file")


def _meta(_: object, value: EditValue) -> JsonValue:
    if value["before"] is None:
        return {"diffs": []}
    return diff_meta(value["path"], value["before"], value["after"])


def _present_call(args: Any) -> JsonObject:
    return {
        "card": "diff",
        "title": f"Edit {args.file_path}",
        "diffs": [{"path": args.file_path, "oldText": args.old_string, "newText": args.new_string}],
        "locations": [{"path": args.file_path}],
    }
