from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from dsh.loader.environment import LaunchEnvironment
from dsh.loader.errors import BundleError
from dsh.loader.expr import Expr
from dsh.loader.layers import Layer, apply_layers
from dsh.loader.static import static_scope
from dsh.product.cli.app import Parsed, parse_app_args
from dsh.product.cli.overlays import launcher_overlays
from dsh.product.cli.preflight import check_route

asked: list[tuple[str, Mapping[str, Any]]] = []


@pytest.fixture
def routes() -> Iterator[None]:
    """Two adapter modules in memory: one with fixed routes, one whose config names them."""
    fixed, chosen = ModuleType("fixed_adapter"), ModuleType("chosen_adapter")

    def answer(name: str) -> Any:
        def preflight(config: Mapping[str, Any], environment: LaunchEnvironment) -> str | None:
            asked.append((name, config))
            return None if environment.value("KEY") else f"{name} has no key"

        return preflight

    vars(fixed).update(routes=("official",), preflight=answer("fixed"))
    vars(chosen).update(routes=lambda config: config["providers"], preflight=answer("chosen"))
    for module in (fixed, chosen):
        sys.modules[module.__name__] = module
    asked.clear()
    yield
    for module in (fixed, chosen):
        del sys.modules[module.__name__]


ROWS: list[dict[str, Any]] = [
    {
        "id": "agent-default-model",
        "name": "@deepseek-ai/dsh-agent-default-model",
        "config": {"provider": Expr("process.env.ROUTE ?? 'official'"), "model": "m"},
    },
    {"id": "f", "name": "fixed_adapter", "config": {"key": Expr("process.env.KEY ?? 'none'")}},
    {
        "id": "g",
        "name": "cordis:group",
        "group": True,
        "config": [{"id": "c", "name": "chosen_adapter", "config": {"providers": ["local"]}}],
    },
    {"id": "unknown", "name": "no.such.module"},
]


def check(rows: list[dict[str, Any]] | None = None, **facts: Any) -> str | None:
    environment = LaunchEnvironment(facts.pop("env", {}))
    scope = static_scope(environment, Path("/home"))
    return check_route(ROWS if rows is None else rows, scope, environment, **facts)


@pytest.mark.usefixtures("routes")
def test_only_the_selected_route_is_asked() -> None:
    assert check() == "fixed has no key"
    assert asked == [("fixed", {"key": "none"})]


@pytest.mark.usefixtures("routes")
@pytest.mark.parametrize(
    ("facts", "answer"),
    [
        ({"env": {"KEY": "k"}}, None),
        ({"env": {"ROUTE": "local"}}, "chosen has no key"),
        ({"model": "local/m"}, "chosen has no key"),
        ({"model": "vendor/m"}, "fixed has no key"),
        ({"model": "m"}, "fixed has no key"),
        ({"provider": "local"}, "chosen has no key"),
        ({"provider": "elsewhere"}, None),
    ],
)
def test_the_command_line_outranks_the_default(facts: dict[str, Any], answer: str | None) -> None:
    assert check(**facts) == answer


@pytest.mark.usefixtures("routes")
def test_disabled_rows_are_not_asked() -> None:
    off = [{**row, "disabled": Expr("!process.env.KEY")} for row in ROWS if row["id"] == "f"]
    assert check([ROWS[0], *off]) is None
    assert check([ROWS[0], {**ROWS[1], "disabled": True}]) is None


@pytest.mark.usefixtures("routes")
def test_what_cannot_be_known_before_the_boot_is_left_to_it() -> None:
    row = {"id": "f", "name": "fixed_adapter", "config": Expr("ctx.later.config")}
    assert check([ROWS[0], row]) is None
    assert asked == []


@click.command()
@click.argument("words", nargs=-1)
@click.option("--count", type=int, default=0)
def sample(words: tuple[str, ...], count: int) -> tuple[tuple[str, ...], int]:
    """Sample."""
    return words, count


def other(argv: list[str]) -> str:
    if argv == ["exit"]:
        raise SystemExit("no luck")
    return ",".join(argv)


HERE = __name__


def test_a_click_command_gives_the_parsed_value() -> None:
    sys.modules.setdefault(HERE, sys.modules[__name__])
    parsed = parse_app_args(f"{HERE}:sample", ["a", "--count", "2"], "p")
    assert parsed == Parsed((("a",), 2))


@pytest.mark.parametrize(
    ("argv", "code", "out", "err"),
    [
        (["--help"], 0, "Usage: dsh --profile p", ""),
        (["--count", "x"], 1, "", "dsh: Invalid value for '--count'"),
        (["--bogus"], 1, "", "(see dsh --profile p --help)"),
    ],
)
def test_help_and_usage_errors_start_nothing(
    argv: list[str], code: int, out: str, err: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parsed = parse_app_args(f"{HERE}:sample", argv, "p")
    shown = capsys.readouterr()
    assert parsed.exit_code == code
    assert shown.out.startswith(out)
    assert err in shown.err
    assert shown.err.count("\n") == (1 if code else 0)


def test_a_plain_callable_will_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_app_args(f"{HERE}:other", ["a", "b"], "p") == Parsed("a,b")
    assert parse_app_args(f"{HERE}:other", ["exit"], "p").exit_code == 1
    assert capsys.readouterr().err == "dsh: no luck\n"


def test_a_profile_without_a_command_line_ignores_its_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert parse_app_args(None, ["a", "--bogus"], "p") == Parsed()
    assert parse_app_args(None, ["--help"], "p").exit_code == 0
    assert "no command line of its own" in capsys.readouterr().out


@pytest.mark.parametrize("spec", ["no.such.module:command", f"{HERE}:nothing"])
def test_a_command_line_that_does_not_exist_is_named(spec: str) -> None:
    with pytest.raises(BundleError, match="is missing"):
        parse_app_args(spec, [], "p")


def test_the_shipped_presets_are_merged_over_the_rows_own_config(tmp_path: Path) -> None:
    row = {"id": "agent-presets", "name": "n", "config": {"default": "standard", "roots": []}}
    overlays = launcher_overlays(LaunchEnvironment({}), presets=tmp_path)
    rows, _, _ = apply_layers([Layer("bundle", [{"insert": [row]}]), *overlays], _no_warning)
    roots = [{"path": str(tmp_path), "trust": "system"}]
    assert rows[0]["config"] == {"default": "standard", "roots": roots}


def test_the_launcher_adds_nothing_where_nothing_is_to_be_added(tmp_path: Path) -> None:
    assert launcher_overlays(LaunchEnvironment({}), presets=tmp_path / "none") == []
    overlays = launcher_overlays(LaunchEnvironment({}), presets=tmp_path)
    assert apply_layers(overlays, _no_warning).rows == []


def _no_warning(text: str) -> None:
    raise AssertionError(text)
