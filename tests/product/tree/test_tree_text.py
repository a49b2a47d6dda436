from __future__ import annotations

from typing import Any

import pytest

from dsh.product.tree.mermaid import flowchart
from dsh.product.tree.text import Page, render, summary

PLAIN = Page(width=80, colour=False, unicode=True)


def row(id: str, state: str = "active", **fields: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {
        "name": f"pkg.{id}",
        "enabled": state != "disabled",
        "disabledBy": None,
        "error": None,
        "waits": [],
        "provides": [],
        "needs": [],
        "effects": [],
        "plugins": [],
        "origin": "base",
        "patchedBy": [],
        "rows": [],
    }
    return {"id": id, "state": state, **empty, **fields}


def tree(*rows: dict[str, Any], services: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    counts: dict[str, int] = {}
    for each in rows:
        counts[each["state"]] = counts.get(each["state"], 0) + 1
    return {"profile": "p", "counts": counts, "rows": list(rows), "services": services or []}


def service(name: str, provider: str | None, *users: str, **fields: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {"scope": None, "state": "active", "available": True, "app": False}
    dependants = [{"row": each, "state": "active", "optional": False} for each in users]
    return {"name": name, "provider": provider, "dependants": dependants, **usual, **fields}


def test_effects_are_listed_when_they_are_asked_for() -> None:
    effects = [{"label": "outer", "children": [{"label": "inner", "children": []}]}]
    shown = tree(row("a", effects=effects))

    assert "1 effect" in render(shown, PLAIN)
    lines = render(shown, PLAIN, effects=True).splitlines()
    assert [line for line in lines if "outer" in line or "inner" in line] == [
        "        outer",
        "          inner",
    ]


def test_services_alone_leave_the_rows_out() -> None:
    shown = render(tree(row("a"), services=[service("s", "a", "b")]), PLAIN, services=True)
    assert "pkg" not in shown
    assert "●" not in shown
    assert shown.splitlines()[-1].split() == ["s", "a", "b"]


def test_a_service_without_provider_is_nobodys() -> None:
    text = render(tree(services=[service("s", None, "b", state="absent")]), PLAIN)
    assert text.splitlines()[-1].split() == ["s", "nobody", "b"]


def test_what_a_terminal_would_act_on_is_shown_escaped() -> None:
    text = render(tree(row("a", "failed", error="bad\x1b[31m\nworse")), PLAIN)
    assert "\x1b" not in text
    assert r"bad\x1b[31m worse" in text


def test_colour_changes_no_column() -> None:
    shown = tree(row("a", "failed", error="bad"), row("b"), services=[service("s", None, "b")])
    coloured = render(shown, Page(width=80, colour=True))
    for code in ("0", "1", "2", "31", "32", "33"):
        coloured = coloured.replace(f"\x1b[{code}m", "")
    assert coloured == render(shown, PLAIN)


def test_a_terminal_without_unicode_gets_ascii() -> None:
    assert render(tree(row("a"), row("b", "failed")), Page(unicode=False)).isascii()


@pytest.mark.parametrize("width", [72, 80, 100])
def test_lines_keep_to_the_width(width: int) -> None:
    shown = tree(row("a" * 28, "failed", error="some words " * 30))
    assert max(map(len, render(shown, Page(width=width)).splitlines())) <= width


def test_the_summary_counts_rows_by_state() -> None:
    shown = tree(row("a"), row("b", "app"), row("c", "pending"), row("d", "failed"))
    assert summary(shown) == (
        "4 rows, 1 active, 1 waits for the app's command line, 1 waits for services, 1 failed"
    )


def test_mermaid_escapes_what_it_would_read() -> None:
    text = flowchart(tree(row('a"] --> x["')))
    assert '"]' not in text.splitlines()[1].removesuffix('"]:::active').partition('["')[2]


def test_mermaid_draws_groups_as_subgraphs() -> None:
    shown = tree(row("g", rows=[row("g:inner")]), services=[service("s", "g:inner", "g:inner")])
    lines = flowchart(shown).splitlines()
    assert lines[1:4] == ['  subgraph r0["g"]', '    r1["inner"]:::active', "  end"]


def test_mermaid_draws_a_service_that_nobody_provides() -> None:
    lines = flowchart(tree(row("a"), services=[service("s", None, "a", state="absent")]))
    assert '  s0 -.->|"s"| r0' in lines
