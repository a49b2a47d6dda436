from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tool_harness import Harness, make_tool

from dsh.base.json import snapshot
from dsh.capability.fs import tools as fs_tools
from dsh.capability.fs.local import LocalFileSystem
from dsh.execution.tools.author import define_tool
from dsh.execution.tools.service import ToolDefinition, ToolResultFacts, parse_call
from dsh.execution.tools.views import (
    DiffCall,
    GenericCall,
    TerminalCall,
    call_view,
    normal_call_view,
    normal_result_view,
    result_view,
)

TEXT = [{"type": "text", "text": "said"}]
FACTS = ToolResultFacts(content=cast("Any", TEXT), is_error=False)

CALLS: list[Any] = [
    GenericCall(card="generic", title="Look"),
    GenericCall(
        card="generic",
        title="Look",
        kind="search",
        rawInput={"a": [1]},
        content=cast("Any", TEXT),
        locations=[{"path": "/a"}, {"path": "/b", "line": 3}],
    ),
    TerminalCall(card="terminal", title="ls"),
    TerminalCall(card="terminal", title="ls", description="List", cwd="/"),
    DiffCall(card="diff", title="Edit", diffs=[{"path": "a", "oldText": None, "newText": "x"}]),
]
RESULTS: list[Any] = [
    {"card": "generic"},
    {"card": "generic", "title": "Looked", "content": TEXT},
    {"card": "terminal"},
    {"card": "terminal", "title": "t", "output": "o", "exitCode": 1, "signal": "SIGKILL"},
    {"card": "diff", "diffs": [{"path": "a", "oldText": "y", "newText": "x"}]},
    {
        "card": "search",
        "shape": "matches",
        "files": [{"path": "a", "matches": [{"lineNumber": 1, "line": "x"}]}],
        "truncated": False,
        "total": 1,
    },
    {"card": "search", "shape": "paths", "paths": ["a"], "truncated": True, "total": 9},
    {
        "card": "read",
        "path": "a",
        "offset": 1,
        "lines": [{"number": 1, "text": "x"}],
        "totalLines": 1,
    },
    {
        "card": "read",
        "path": "a",
        "offset": 1,
        "lines": [],
        "totalLines": 0,
        "lang": "python",
        "content": "",
    },
    {
        "card": "web",
        "kind": "search",
        "sources": [{"url": "u"}, {"url": "u", "title": "t", "snippet": "s", "publishedAt": "p"}],
        "answer": "a",
        "truncated": False,
    },
    {"card": "web", "kind": "fetch", "url": "u", "statusCode": 200, "truncated": True},
]


@pytest.mark.parametrize("view", CALLS)
def test_a_view_of_a_call_passes_as_it_is_and_frozen(view: Any) -> None:
    normal = normal_call_view(view)
    assert normal == view
    assert snapshot(normal) is normal
    assert call_view(make_tool(present_call=lambda _: view), {}) == view


@pytest.mark.parametrize("view", RESULTS)
def test_a_view_of_a_result_passes_as_it_is_and_frozen(view: Any) -> None:
    normal = normal_result_view(view)
    assert normal == view
    assert snapshot(normal) is normal
    assert result_view(make_tool(present_result=lambda *_: view), {}, FACTS) == view


@pytest.mark.parametrize("view", [*CALLS, *RESULTS])
def test_fields_that_a_card_does_not_have_are_left_out(view: Any) -> None:
    normal = normal_call_view if view in CALLS else normal_result_view
    assert normal({**view, "secret": 1}) == view


BROKEN: list[Any] = [
    None,
    7,
    "generic",
    [],
    {},
    {"title": "x"},
    {"card": "hologram", "title": "x"},
    {"card": ["generic"], "title": "x"},
    {"card": "generic"},
    {"card": "generic", "title": 1},
    {"card": "generic", "title": "x", "kind": "dance"},
    {"card": "generic", "title": "x", "rawInput": object()},
    {"card": "generic", "title": "x", "locations": [{"line": 1}]},
    {"card": "generic", "title": "x", "content": [{"text": "no type"}]},
    {"card": "terminal", "title": None},
    {"card": "diff", "title": "x"},
    {"card": "diff", "title": "x", "diffs": [{"path": "a", "newText": "x"}]},
]


@pytest.mark.parametrize("view", BROKEN)
def test_a_presenter_that_gives_no_view_of_a_call_is_shown_generically(view: Any) -> None:
    shown = call_view(make_tool("probe", present_call=lambda _: view), {"a": 1})
    assert shown == {"card": "generic", "title": "probe", "rawInput": {"a": 1}}


@pytest.mark.parametrize(
    "view",
    [
        *BROKEN[:8],
        {"card": "generic", "title": 1},
        {"card": "terminal", "exitCode": "1"},
        {"card": "search", "truncated": False, "total": 1},
        {"card": "search", "shape": "paths", "files": [], "truncated": False, "total": 1},
        {"card": "read", "path": "a"},
        {"card": "web", "kind": "browse", "url": "u", "truncated": False},
        {"card": "web", "kind": ["fetch"], "url": "u", "statusCode": 1, "truncated": False},
    ],
)
def test_a_presenter_that_gives_no_view_of_a_result_is_shown_generically(view: Any) -> None:
    shown = result_view(make_tool(present_result=lambda *_: view), {}, FACTS)
    assert shown == {"card": "generic", "content": TEXT}


def test_a_presenter_that_raises_is_shown_generically() -> None:
    def fails(*_: Any) -> Any:
        raise KeyError("gone")

    broken = make_tool("probe", present_call=fails, present_result=fails)
    assert call_view(broken, "{half")["card"] == "generic"
    assert result_view(broken, {}, FACTS)["card"] == "generic"


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit])
def test_a_presenter_cannot_end_whoever_asks_for_a_view(error: type[BaseException]) -> None:
    def leave(*_: Any) -> Any:
        raise error

    definition = make_tool(present_call=leave, present_result=leave)
    facts = ToolResultFacts(content=[], is_error=False)
    assert call_view(definition, {})["card"] == "generic"
    assert result_view(definition, {}, facts)["card"] == "generic"


def test_a_tool_that_is_gone_is_shown_by_the_name_of_the_call() -> None:
    assert call_view(None, {"x": 1}, name="lost") == {
        "card": "generic",
        "title": "lost",
        "rawInput": {"x": 1},
    }
    assert result_view(None, {}, FACTS) == {"card": "generic", "content": TEXT}


class Hostile(dict[str, Any]):
    def get(self, *_: Any) -> Any:
        raise RuntimeError

    __getitem__ = items = __iter__ = get


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["card", "title", "kind", "diffs", "path", "shape", "total"]),
            inner | st.sampled_from(["generic", "diff", "search", "web", "paths"]),
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(json_values | st.just(Hostile()) | st.just(object()))
def test_normalising_is_total(view: Any) -> None:
    for normal in (normal_call_view(view), normal_result_view(view)):
        assert normal is None or normal["card"] == view["card"]


def test_a_deep_view_is_none_or_whole() -> None:
    deep: Any = "x"
    for _ in range(10_000):
        deep = [deep]
    view = normal_call_view({"card": "generic", "title": "t", "rawInput": deep})
    assert view is not None


def tool_with_views() -> ToolDefinition:
    def seek(word: str) -> str:
        """Seek.

        Args:
            word: What.
        """
        return word

    return define_tool(
        seek,
        present_call=lambda args: GenericCall(card="generic", title=f"Seek {args.word}"),
        present_result=lambda args, facts: {"card": "generic", "title": args.word.upper()},
    )


@pytest.mark.parametrize("raw", ["", "{", '{"word": 3}', '{"old": "name"}', "[1]", '"x"'])
def test_arguments_of_an_old_log_that_no_longer_fit_are_shown_generically(raw: str) -> None:
    arguments = parse_call(raw)
    assert call_view(tool_with_views(), arguments) == {
        "card": "generic",
        "title": "seek",
        "rawInput": arguments,
    }
    assert result_view(tool_with_views(), arguments, FACTS)["card"] == "generic"


def test_a_logged_call_gets_the_views_of_its_tool() -> None:
    arguments = parse_call('{"word": "it"}')
    assert call_view(tool_with_views(), arguments) == {"card": "generic", "title": "Seek it"}
    assert result_view(tool_with_views(), arguments, FACTS) == {"card": "generic", "title": "IT"}


async def test_views_of_the_file_tools_are_their_own_cards(
    harness: Harness, tmp_path: Path
) -> None:
    await harness.root.plugin(LocalFileSystem)
    await harness.root.plugin(fs_tools)
    path = str(tmp_path / "f.py")
    asked: list[tuple[str, dict[str, Any], str, str]] = [
        ("write", {"file_path": path, "content": "a = 1\n"}, "diff", "diff"),
        ("edit", {"file_path": path, "old_string": "1", "new_string": "2"}, "diff", "diff"),
        ("read", {"file_path": path}, "generic", "read"),
    ]
    for name, arguments, call_card, result_card in asked:
        definition = harness.tools.get(name)
        result = await harness.call(name, arguments)
        facts = ToolResultFacts(result.content, result.is_error, result.meta)
        assert call_view(definition, arguments)["card"] == call_card
        assert "rawInput" not in call_view(definition, arguments)
        assert result_view(definition, arguments, facts)["card"] == result_card
