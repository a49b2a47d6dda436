from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from dsh.base.signal import AbortController
from dsh.kernel import Context
from dsh.model.adapters import rehearsal
from dsh.model.assembler import BlockAssembler
from dsh.model.llm import GenerateOptions, LlmRuntime, NormalRetry
from dsh.model.llm.runtime import plugin as runtime_plugin
from dsh.model.messages import (
    create_assistant_message,
    create_tool_result_message,
    create_user_message,
)

CALL: Any = {"type": "tool-call", "id": "c1", "name": "bash", "arguments": "{}"}


class Stage:
    """The runtime with the rehearsal adapter on one script."""

    def __init__(self, root: Context, folder: Path) -> None:
        self.root = root
        self.folder = folder
        self.chunks: list[Any] = []

    async def mount(self, *replies: Any, **config: Any) -> None:
        path = self.folder / "script.json"
        path.write_text(json.dumps({"replies": replies}))
        await self.root.plugin(runtime_plugin, {"checkGrammar": True})
        await self.root.plugin(rehearsal, {"script": str(path), **config})

    async def ask(self, *messages: Any, **more: Any) -> BlockAssembler:
        options = GenerateOptions(
            "rehearsal", "any", list(messages) or [create_user_message("hi")], **more
        )
        assembler = BlockAssembler()
        async with aclosing(self.root.require(LlmRuntime).stream(options)) as stream:
            async for chunk in stream:
                self.chunks.append(chunk)
                assembler.push(chunk)
        return assembler


@pytest.fixture
def stage(root: Context, tmp_path: Path) -> Stage:
    return Stage(root, tmp_path)


def failure(assembler: BlockAssembler) -> Any:
    return assembler.finish.get("failure")


async def test_a_scripted_reply_streams_chunk_by_chunk(stage: Stage) -> None:
    await stage.mount(
        {
            "reasoning": "hm",
            "text": "abcdef",
            "calls": [{"name": "bash", "arguments": {"command": "ls"}, "id": "k"}],
            "chunk_size": 4,
            "usage": {"input": 10, "output": 4, "cache_read": 6, "reasoning": 1},
        }
    )
    got = await stage.ask()
    assert got.blocks() == [
        {"type": "reasoning", "text": "hm"},
        {"type": "text", "text": "abcdef"},
        {"type": "tool-call", "id": "k", "name": "bash", "arguments": '{"command":"ls"}'},
    ]
    assert got.finish == {"kind": "tool-calls"}
    assert got.usage == {
        "inputTokens": 4,
        "outputTokens": 4,
        "cacheReadTokens": 6,
        "reasoningTokens": 1,
    }
    assert [chunk["text"] for chunk in stage.chunks if chunk["type"] == "text-delta"] == [
        "abcd",
        "ef",
    ]


async def test_results_are_checked_and_a_difference_fails_loudly(stage: Stage) -> None:
    await stage.mount({"text": "done", "expect": {"contains": "2 passed", "is_error": False}})
    asked, called = create_user_message("go"), create_assistant_message([CALL], "p", "m")

    wrong = await stage.ask(
        asked,
        called,
        create_tool_result_message("c1", [{"type": "text", "text": "1 failed"}], is_error=False),
    )
    right = await stage.ask(
        asked,
        called,
        create_tool_result_message("c1", [{"type": "text", "text": "2 passed"}], is_error=False),
    )

    assert failure(wrong)["code"] == "REHEARSAL_MISMATCH"
    for part in ("replies[0]", "bash", "2 passed", "1 failed"):
        assert part in failure(wrong)["message"]
    assert right.blocks() == [{"type": "text", "text": "done"}]
    policy = stage.root.require(LlmRuntime).provider_retry_policy("rehearsal")
    assert isinstance(policy, NormalRetry)
    assert failure(wrong)["code"] not in policy.retryable_codes


async def test_whether_a_result_is_an_error_is_checked(stage: Stage) -> None:
    await stage.mount({"text": "x", "expect": {"is_error": True}})
    got = await stage.ask(
        create_user_message("go"),
        create_assistant_message([CALL], "p", "m"),
        create_tool_result_message("c1", [], is_error=False),
    )
    assert "expected an error" in failure(got)["message"]


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ({"status": 429, "retry_after": "3"}, "RATE_LIMIT"),
        ({"status": 401}, "AUTH"),
        ({"reset": True}, "TRANSPORT"),
        ({"cut": 1}, "TRANSPORT"),
        ({"close": 1}, "STREAM_CLOSED"),
        ({"stall": 1, "seconds": 0.01}, "TIMEOUT"),
        ({"malformed": "{"}, "MALFORMED_RESPONSE"),
        ({"error": "busy", "code": "503"}, "SERVER"),
        ({"empty": True}, "EMPTY_RESPONSE"),
        ({"body": "<html>"}, "INVALID_RESPONSE"),
    ],
)
async def test_each_fault_has_the_class_it_has_over_http(
    stage: Stage, fault: dict[str, Any], code: str
) -> None:
    await stage.mount({"text": "abcd", "chunk_size": 2, "fault": fault}, {"text": "next"})
    got = await stage.ask()
    text = "".join(chunk["text"] for chunk in stage.chunks if chunk["type"] == "text-delta")
    assert failure(got)["code"] == code
    assert text == ("ab" if {"cut", "close", "stall"} & fault.keys() else "")
    assert (await stage.ask()).blocks() == [{"type": "text", "text": "next"}]


async def test_a_scripted_stall_ends_with_an_abort(stage: Stage) -> None:
    controller = AbortController()
    await stage.mount({"text": "abcd", "fault": {"stall": 0}})
    asyncio.get_running_loop().call_soon(controller.abort)
    got = await stage.ask(signal=controller.signal)
    assert got.finish["kind"] == "aborted"


async def test_limits_and_other_ends_are_what_the_script_says(stage: Stage) -> None:
    await stage.mount({"text": "x", "finish": "length"}, {"text": "x", "finish": "content_filter"})
    assert (await stage.ask()).finish == {"kind": "max-tokens"}
    assert failure(await stage.ask())["code"] == "CONTENT_FILTER"


async def test_a_request_after_the_last_reply_fails(stage: Stage) -> None:
    await stage.mount({"text": "x"})
    await stage.ask()
    assert failure(await stage.ask())["code"] == "REHEARSAL_EXHAUSTED"


async def test_variables_of_the_row_fill_the_script(stage: Stage) -> None:
    await stage.mount({"text": "{{cwd}}"}, variables={"cwd": "/elsewhere"})
    assert (await stage.ask()).blocks() == [{"type": "text", "text": "/elsewhere"}]


async def test_a_script_that_is_wrong_fails_the_plugin(root: Context, tmp_path: Path) -> None:
    await root.plugin(runtime_plugin)
    with pytest.raises(Exception, match="cannot read the script"):
        await root.plugin(rehearsal, {"script": str(tmp_path / "absent.yml")})


class Nothing:
    def value(self, name: str) -> str | None:
        return None


def test_preflight_tells_of_a_script_that_is_not_there(tmp_path: Path) -> None:
    script = tmp_path / "s.yml"
    check: Any = rehearsal.preflight
    assert "not a file" in check({"script": str(script)}, Nothing())
    assert "'script'" in check({}, Nothing())
    script.write_text("x")
    assert check({"script": str(script)}, Nothing()) is None
