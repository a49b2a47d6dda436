"""``dsh plugin list``: what a profile has installed, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dsh.product.plugins.installed import InstalledPlugin, installed_plugins
from dsh.product.plugins.manifest import Manifest
from dsh.product.plugins.specs import normalised


def list_plugins(manifest: Manifest | None, profile: str) -> list[dict[str, Any]]:
    """Return a mapping for each plugin and each dependency of a profile, in JSON's shape.

    Args:
        manifest: The profile's; None while it has no folder.
        profile: Its name, for remedies.
    """
    if manifest is None:
        return []
    keys = {normalised(name) for name in manifest.dependencies}
    found = installed_plugins(manifest.path.parent / "site")
    rows = [
        _row(each, each.key in keys, manifest)
        for each in found
        if each.is_plugin or each.key in keys
    ]
    there = {each.key for each in found}
    rows += [
        _missing(name, profile) for name in manifest.dependencies if normalised(name) not in there
    ]
    return sorted(rows, key=lambda row: normalised(row["name"]))


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return lines for people: a plugin each, with its problems below it."""
    if not rows:
        return ["no plugins"]
    heads = ("NAME", "VERSION", "BUNDLE", "PLUGINS", "DSH-API")
    cells = [heads, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(heads))]
    lines = [_line(heads, widths)]
    for row, line in zip(rows, cells[1:], strict=True):
        lines.append(_line(line, widths))
        lines += [f"  not usable: {problem}" for problem in row["problems"]]
    return lines


def _row(plugin: InstalledPlugin, direct: bool, manifest: Manifest) -> dict[str, Any]:
    return {
        "name": plugin.name,
        "version": plugin.version,
        "dependency": direct,
        "bundles": [{"name": each, "listed": each in manifest.bundles} for each in plugin.bundles],
        "plugins": list(plugin.plugins),
        "dshApi": plugin.api,
        "ok": plugin.ok,
        "problems": list(plugin.problems),
    }


def _missing(name: str, profile: str) -> dict[str, Any]:
    problem = f"it is not installed; run dsh plugin --profile {profile} install"
    row: dict[str, Any] = {
        "name": name,
        "version": None,
        "dependency": True,
        "bundles": [],
        "plugins": [],
    }
    return {**row, "dshApi": None, "ok": False, "problems": [problem]}


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    bundles = ", ".join(
        each["name"] + ("" if each["listed"] else " (not listed)") for each in row["bundles"]
    )
    plugins = ", ".join(row["plugins"])
    cells = (row["name"], row["version"], bundles, plugins, row["dshApi"])
    return tuple(each or "-" for each in cells)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return "  ".join(padded).rstrip()
