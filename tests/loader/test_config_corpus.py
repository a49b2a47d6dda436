"""Configurations as upstream's users have them: they parse, patch and dump, and say what is served.

The files in ``corpus/`` hold upstream's row ids, plugin names and config fields. The served rows
are in ``corpus/served.txt``, so that a change of what we serve is a change that somebody made.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from loader_support import loader_on

from dsh.base.errors import error_chain
from dsh.kernel import Context
from dsh.loader.aliases import ALIASES, SCOPE, same_plugin, why_unserved
from dsh.loader.dump import dump_rows
from dsh.loader.expr import Expr
from dsh.loader.expr_parser import parse
from dsh.loader.patch import apply_patches
from dsh.loader.resolve_errors import UnservedPlugin
from dsh.loader.rows import check_rows, is_group
from dsh.loader.yaml import load_yaml, read_yaml

CORPUS = Path(__file__).parent / "corpus"
PATCHED = {
    "base": ["base"],
    "headless": ["base", "headless"],
    "web": ["base", "web-app"],
}
PRESETS = {"preset-code": "preset-standard", "preset-cordis": "preset-standard"}
ROWS = ["sdk-default", "sdk-boot", "sdk-minimal", "sdk-custom", "preset-standard", "preset-minimal"]
ALL = [*PATCHED, *ROWS, *PRESETS]


def load(name: str) -> list[Any]:
    found: list[Any] = read_yaml(CORPUS / f"{name}.yml")
    return found


def compose(name: str) -> tuple[list[Any], list[str]]:
    """The rows of one configuration, and what was warned of."""
    warnings: list[str] = []
    if name in ROWS:
        return check_rows(load(name), name), warnings
    rows = load(PRESETS[name]) if name in PRESETS else []
    patches = [patch for file in PATCHED.get(name, [name]) for patch in load(file)]
    rows = apply_patches(rows, patches, warnings.append, same_name=same_plugin)
    return check_rows(rows, name), warnings


def flat(rows: list[Any]) -> Iterator[dict[str, Any]]:
    """All rows, those inside groups too."""
    for row in rows:
        yield row
        if is_group(row):
            yield from flat(row["config"])


def expressions(value: Any) -> Iterator[Expr]:
    if isinstance(value, Expr):
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from expressions(item)


def corpus_names() -> set[str]:
    return {row["name"] for name in ALL for row in flat(compose(name)[0])}


@pytest.mark.parametrize("name", ALL)
def test_a_configuration_composes_without_a_warning(name: str) -> None:
    rows, warnings = compose(name)
    assert warnings == []
    assert rows


@pytest.mark.parametrize("name", ALL)
def test_a_dump_of_it_reloads_to_the_same(name: str) -> None:
    rows, _ = compose(name)
    text = dump_rows(rows)
    again = load_yaml(text, "dump")
    assert again == rows
    assert dump_rows(again) == text


@pytest.mark.parametrize("name", ALL)
def test_its_expressions_are_of_the_language(name: str) -> None:
    rows, _ = compose(name)
    for expr in expressions(rows):
        parse(expr.source)


@pytest.mark.parametrize("name", ALL)
def test_every_plugin_of_it_is_known(name: str) -> None:
    rows, _ = compose(name)
    for row in flat(rows):
        served = row["name"] in ALIASES or row["name"].startswith("cordis:")
        assert served != (why_unserved(row["name"]) is not None), row["name"]


def test_what_is_served_today_is_on_the_list() -> None:
    listed = (CORPUS / "served.txt").read_text().split("\n")
    served = sorted(name for name in corpus_names() if name in ALIASES)
    assert [line for line in listed if line and not line.startswith("#")] == served


def test_a_headless_run_for_upstream_is_patched_by_id() -> None:
    rows = {row["id"]: row for row in flat(compose("headless")[0])}
    assert rows["hmr"]["disabled"] is True
    assert rows["tools"]["config"] == {"mode": Expr("process.env.DSH_TOOLS_MODE")}
    assert rows["headless-runner"]["inject"] == ["headlessStartup"]


def test_a_web_app_for_upstream_switches_off_what_presets_bring() -> None:
    rows = compose("web")[0]
    disabled = {row["id"] for row in rows if row.get("disabled") is True}
    assert {"tool-bash", "tool-fs", "plan-mode", "compaction-basic", "tool-web"} <= disabled
    assert rows[-1]["id"] == "agent-presets"


def shipped(bundle: str) -> list[Any]:
    text = files("dsh.product.bundles").joinpath(f"{bundle}.yml").read_text()
    patches = load_yaml(text, bundle)["patches"]
    return [row for patch in patches for row in patch.get("insert", [])]


OURS = {
    "agent-execution",
    "agent-invariants",
    "approval-invariants",
    "budgets",
    "command-invariants",
    "permission-invariants",
    "session-invariants",
    "stuck-guard",
    "tool-invariants",
}
"""Rows that upstream does not have."""


@pytest.mark.parametrize("bundle", ["base", "headless"])
def test_our_rows_have_the_ids_and_plugins_of_upstreams(bundle: str) -> None:
    theirs = {row["id"]: row["name"] for row in flat(compose(bundle)[0])}
    for row in shipped(bundle):
        if row["id"] not in OURS:
            assert same_plugin(row["name"], theirs[row["id"]]), row["id"]


def test_a_patch_file_for_upstream_fits_our_rows() -> None:
    warnings: list[str] = []
    rows = apply_patches(
        shipped("base"), load("user.patch"), warnings.append, same_name=same_plugin
    )
    after = {row["id"]: row for row in rows}
    assert after["llm-deepseek"]["config"] == {
        "baseURL": Expr("process.env.MY_GATEWAY ?? 'https://gateway.invalid/v1'")
    }
    assert after["agent-default-model"]["config"]["model"] == "deepseek-v4-pro"
    assert after["tool-bash"]["disabled"] == Expr("!!process.env.CI")
    assert after["tool-fs"].get("disabled") is None
    assert after["logger-console"]["name"] == f"{SCOPE}cordis-plugin-logger-console"
    assert [warning.split("(")[0].rstrip() for warning in warnings] == [
        'patch: name mismatch for "tool-fs"',
        'patch: entry "webserver" not found',
    ]


async def test_a_tree_says_which_rows_it_cannot_serve(root: Context) -> None:
    loader = await loader_on(root)
    rows, _ = compose("sdk-default")
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - one error, or a group of them
        await loader.mount(rows)
    text = error_chain(caught.value)
    for row in rows:
        reason = why_unserved(row["name"])
        named = f'cannot resolve plugin "{row["name"]}": this is a plugin of the upstream product'
        assert (named in text) == (reason is not None)
        assert (f"loader entry {row['id']} ({row['name']})" in text) == (reason is not None)
    assert list(loader.entries()) == []


def test_the_refusal_tells_what_to_do() -> None:
    error = UnservedPlugin("@deepseek-ai/dsh-skill", "not built yet")
    assert str(error) == (
        'cannot resolve plugin "@deepseek-ai/dsh-skill": this is a plugin of the upstream product '
        "that this version of dsh does not have (not built yet); disable the row or remove it"
    )
