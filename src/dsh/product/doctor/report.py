"""The findings as text for people, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Any, Final

from dsh.loader.say import flat
from dsh.product.doctor.findings import LEVELS, Finding, Level
from dsh.product.tree.text import Page

_MARKS: Final[dict[Level, tuple[str, str, str]]] = {
    "ok": ("✓", "+", "32"),
    "note": ("•", "-", "2"),
    "warning": ("!", "!", "33"),
    "error": ("✗", "x", "31"),
}


def as_data(profile: str | None, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return ``profile``, ``ok`` (no error), ``counts`` by level, and ``findings``."""
    return {
        "profile": profile,
        "ok": not has_errors(findings),
        "counts": {level: _count(findings, level) for level in LEVELS},
        "findings": [finding._asdict() for finding in findings],
    }


def has_errors(findings: Sequence[Finding]) -> bool:
    """Tell whether anything keeps dsh, or the profile, from running."""
    return any(finding.level == "error" for finding in findings)


def as_text(findings: Sequence[Finding], page: Page) -> str:
    """Return a section a topic, and the count of what needs attention last."""
    lines: list[str] = []
    for topic in dict.fromkeys(finding.topic for finding in findings):
        lines += [page.paint(topic, "1")]
        for finding in findings:
            if finding.topic == topic:
                lines += _finding(finding, page)
        lines.append("")
    lines.append(_summary(findings, page))
    return "\n".join(lines) + "\n"


def _finding(finding: Finding, page: Page) -> Iterator[str]:
    rich, plain, style = _MARKS[finding.level]
    mark = page.paint(rich if page.unicode else plain, style)
    where = f"{flat(finding.where)}: " if finding.where else ""
    lines = _wrapped(where + flat(finding.what), page, 4)
    yield f"  {mark} {lines[0].strip() if lines else ''}"
    yield from lines[1:]
    if finding.remedy:
        arrow = "→" if page.unicode else "->"
        first, *rest = _wrapped(flat(finding.remedy), page, 6 + len(arrow) - 1)
        yield f"    {page.paint(arrow, '36')} {first.strip()}"
        yield from rest


def _summary(findings: Sequence[Finding], page: Page) -> str:
    parts = []
    for level, noun, style in (("error", "error", "31"), ("warning", "warning", "33")):
        number = _count(findings, level)
        if number:
            parts.append(page.paint(f"{number} {noun}{'' if number == 1 else 's'}", style))
    return ", ".join(parts) if parts else page.paint("nothing is wrong", "32")


def _count(findings: Sequence[Finding], level: str) -> int:
    return sum(finding.level == level for finding in findings)


def _wrapped(text: str, page: Page, indent: int) -> list[str]:
    lines = wrap(text, max(20, page.width - indent), break_on_hyphens=False)
    return [f"{' ' * indent}{line}" for line in lines]
