"""What a model reads about calling tools from a program in Python."""

from __future__ import annotations

import keyword
from collections.abc import Iterable

from dsh.execution.tools.code.python_types import (
    TypeWriter,
    camel_name,
    comment,
    escaped,
    is_plain_name,
    quoted,
)
from dsh.execution.tools.service import RESERVED_TOOL_NAME, ToolDefinition

DESCRIPTION = """\
Run a Python program that can call your tools, and return what it prints and returns.

The program is the body of an async function: `await` and `return` stand at the top level. It \
calls a tool by `await tools.name({...})`. Only what it prints or returns comes back to you, so \
take the parts you need from large results in the program itself. Images in a tool's result are \
attached after the result of this call. Every program starts in a fresh interpreter with the \
standard library and nothing of earlier programs."""

CODE = "The program: the body of an async function in Python."

INSTRUCTIONS = """\
# Calling tools from a program

`run_code` takes two arguments: `code`, the body of an async Python function, and `description`, \
five to ten words in active voice on what the program does. In the program, `tools` holds the \
functions declared below.

- Call a tool with one dictionary: `await tools.name({"key": value})`, or by subscript where its \
name is no identifier: `await tools["name"]({"key": value})`. The result is the value itself, not \
the text that a direct call would show.
- A call that fails raises `ToolCallError`: `error.toolName` names the tool and `str(error)` says \
what went wrong. Catch it where you can go on without the result.
- Independent calls may overlap: `import asyncio`, then \
`await asyncio.gather(tools.a({...}), tools.b({...}))`. Calls that are safe to overlap do; a call \
that changes something runs alone, and all start in the order in which you made them.
- Arguments and the returned value must be lossless JSON: dictionaries with string keys, lists, \
strings, finite numbers, booleans and None. Make tuples and sets into lists.
- You only see what the program prints or returns, so return what you need and leave the rest out. \
Images in a tool's result are attached afterwards.
- The classes below are static stubs that tell you the shapes; they do not exist when the program \
runs. Pass plain dict literals, and read results as plain dictionaries."""


def render(tools: Iterable[ToolDefinition]) -> str:
    """Return the declarations of tools; the same text for the same set, in whatever order."""
    writer = TypeWriter()
    stubs: list[str] = []
    others: list[str] = []
    for tool in sorted(tools, key=lambda tool: tool.name):
        if tool.name == RESERVED_TOOL_NAME:
            continue
        base = camel_name(tool.name)
        args = writer.type_of(tool.parameters, f"{base}Args")
        output = writer.type_of(tool.output.schema, f"{base}Output")
        if _is_method_name(tool.name):
            stubs.append(_stub(tool, args, output))
        else:
            others.append(_mention(tool, args, output))
    parts = [
        "from typing import Any, Literal, NotRequired, Protocol, TypedDict",
        _ERROR,
        *writer.blocks,
        "class Tools(Protocol):\n" + ("\n\n".join(stubs) or "    pass"),
        *(["\n".join(others)] if others else []),
        "tools: Tools",
    ]
    return "```python\n" + "\n\n\n".join(parts) + "\n```"


_ERROR = """\
class ToolCallError(Exception):
    toolName: str
    message: str"""


def _is_method_name(name: str) -> bool:
    return is_plain_name(name) and not name.startswith("_") and not keyword.issoftkeyword(name)


def _stub(tool: ToolDefinition, args: str, output: str) -> str:
    text = escaped(tool.description.strip()).replace("\n", "\n        ")
    lines = [
        f"    async def {tool.name}(self, args: {args}) -> {output}:",
        f'        """{text}"""' if text else "        ...",
    ]
    return "\n".join(line.rstrip() for line in "\n".join(lines).split("\n"))


def _mention(tool: ToolDefinition, args: str, output: str) -> str:
    lines = [f"# tools[{quoted(tool.name)}](args: {args}) -> {output}"]
    if text := comment(tool.description):
        lines.append(f"#     {text}")
    return "\n".join(lines)
