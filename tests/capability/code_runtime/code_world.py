"""A real code runtime, and functions for programs to call."""

from __future__ import annotations

import asyncio
import os
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsh.base.signal import AbortSignal
from dsh.capability.code_runtime.service import (
    Binding,
    BindingError,
    BindingNamespace,
    CodeError,
    CodeResult,
    CodeRun,
    CodeRuntime,
)
from dsh.kernel import Fiber

FAILURE = BindingError("ToolCallError", "toolName")


@dataclass
class World:
    """The runtime under test, and what programs did to their functions."""

    runtime: CodeRuntime
    fiber: Fiber
    calls: list[Any] = field(default_factory=list)

    async def run(
        self, program: str, signal: AbortSignal | None = None, **functions: Binding
    ) -> CodeResult:
        """Run a program; the functions stand in its namespace ``tools``, beside a few others."""
        own: dict[str, Binding] = {"echo": self.echo, "fail": fail, **functions}
        spaces = (BindingNamespace("tools", own, FAILURE),)
        return await self.runtime.run(CodeRun(textwrap.dedent(program), spaces, signal))

    async def value(self, program: str, **functions: Binding) -> Any:
        result = await self.run(program, **functions)
        assert result.error is None, result.error
        return result.value

    async def error(self, program: str, **functions: Binding) -> CodeError:
        result = await self.run(program, **functions)
        assert result.error is not None, result.value
        assert result.value is None
        return result.error

    async def echo(self, args: Any) -> Any:
        self.calls.append(args)
        return args


async def fail(args: Any) -> Any:
    raise ValueError("it does not work")


@dataclass
class Held:
    """A function that waits until it is let go, and knows that it was called or cancelled."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, args: Any) -> Any:
        self.reached.set()
        try:
            await self.go.wait()
        finally:
            self.ended.set()
        return args


def interpreters() -> list[int]:
    """The processes below this one that run programs at this moment."""
    parents: dict[int, int] = {}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int(
                (folder / "stat").read_bytes().rpartition(b")")[2].split()[1]
            )
            if b"code_runtime/child" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return [pid for pid in found if os.getpid() in _ancestors(pid, parents)]


def _ancestors(pid: int, parents: dict[int, int]) -> list[int]:
    line = []
    while (pid := parents.get(pid, 0)) > 0:
        line.append(pid)
    return line


def frames(*lines: str) -> str:
    """A program that writes lines past its own interpreter, straight to dsh."""
    return f"import os\nfor line in {list(lines)!r}:\n    os.write(3, line.encode() + b'\\n')\n"
