"""The rows in a real profile: the shipped ones search nothing, a patch switches it on."""

from __future__ import annotations

from pathlib import Path

from dsh.testing.headless import run_headless

DOCUMENTED = """
- id: session-query-sqlite
  config:
    path: !!js dshHomePath('search.db')
    openAt: first-search
- insert:
    - id: tool-session-query
      name: dsh.capability.session_query.tools
"""
REFERENCES = """
- insert:
    - id: session-reference
      name: '@deepseek-ai/dsh-session-reference'
    - id: tool-session-query
      name: '@deepseek-ai/dsh-tool-session-query'
"""


def test_a_patch_gives_search_to_the_model(tmp_path: Path) -> None:
    patch = tmp_path / "search.yml"
    patch.write_text(DOCUMENTED)
    script = {
        "replies": [
            {"calls": [{"name": "session_trace", "arguments": {}}]},
            {
                "expect": {"contains": "this is a root session", "is_error": False},
                "calls": [{"name": "session_event_search", "arguments": {"query": "root SESSION"}}],
            },
            {
                "expect": {"contains": "tool/result", "is_error": False},
                "calls": [{"name": "session_search", "arguments": {"query": "x"}}],
            },
            {"expect": {"contains": "No other session", "is_error": False}, "text": "done"},
        ]
    }
    done = run_headless(script, patches=[patch])
    assert (done.code, done.err) == (0, "")


def test_the_shipped_row_has_no_search_and_all_else(tmp_path: Path) -> None:
    patch = tmp_path / "search.yml"
    patch.write_text(REFERENCES)
    script = {
        "replies": [
            {"calls": [{"name": "session_event_search", "arguments": {"query": "x"}}]},
            {
                "expect": {"contains": "search is switched off", "is_error": True},
                "calls": [{"name": "session_event_read", "arguments": {"seq": 0}}],
            },
            {"expect": {"contains": '"seq": 0', "is_error": False}, "text": "done"},
        ]
    }
    done = run_headless(script, patches=[patch])
    assert (done.code, done.err) == (0, "")
