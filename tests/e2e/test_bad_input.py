"""Bad input: one clear line that names the thing and the remedy, exit 1, nothing half-written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support import KEY, Home, Ran, say

from dsh.testing.provider import Provider


def one_line(ran: Ran) -> str:
    assert ran.code == 1
    assert ran.out.strip() == ""
    assert "Traceback" not in ran.err
    (line,) = ran.err.splitlines()
    assert line.startswith("dsh: ")
    assert KEY not in line
    return line


def with_key(home: Home) -> Home:
    home.variables |= {"DEEPSEEK_API_KEY": KEY, "DEEPSEEK_BASE_URL": "http://127.0.0.1:9"}
    return home


def patched(home: Home, text: str) -> Ran:
    (home.workspace / "patch.yml").write_text(text)
    return with_key(home).run("--profile", "headless", "--patch", "patch.yml", "go")


def test_a_missing_key_is_told_before_anything_is_mounted(home: Home) -> None:
    line = one_line(home.headless("go"))
    assert "DEEPSEEK_API_KEY" in line
    assert ".env" in line
    assert home.logs() == []


def test_the_key_may_stand_in_the_homes_env_file(
    home: Home, provide: Callable[..., Provider]
) -> None:
    provider = provide({"api_key": KEY, "replies": [say("ok")]})
    del home.variables["DEEPSEEK_API_KEY"]
    home.folder.mkdir()
    (home.folder / ".env").write_text(f"DEEPSEEK_API_KEY={KEY}\n")
    ran = home.headless("go")
    assert (ran.code, ran.out) == (0, "ok\n")
    assert provider.requests()


def test_an_unreachable_host_names_the_url_that_was_called(home: Home) -> None:
    patch = [{"id": "llm-retry", "disabled": True}]
    line = one_line(patched(home, json.dumps(patch)))
    assert "http://127.0.0.1:9/chat/completions" in line
    assert "TRANSPORT" in line


def test_a_404_names_the_url_that_was_called(home: Home, provide: Callable[..., Provider]) -> None:
    provider = provide({"replies": [say("never")]})
    home.variables["DEEPSEEK_BASE_URL"] = provider.url + "/wrong"
    line = one_line(home.headless("go"))
    assert f"{provider.url}/wrong/chat/completions" in line
    assert "DEEPSEEK_BASE_URL" in line


def test_a_wrong_model_is_told_in_the_providers_words(
    home: Home, provide: Callable[..., Provider]
) -> None:
    provide({"models": ["deepseek-v4-flash"], "replies": [say("never")]})
    line = one_line(home.headless("--model", "no-such-model", "go"))
    assert "no-such-model" in line


def test_a_wrong_key_is_told_without_the_key(home: Home, provide: Callable[..., Provider]) -> None:
    provide({"api_key": "another", "replies": [say("never")]})
    assert "AUTH" in one_line(home.headless("go"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [b", "patch.yml"),
        ("id: x", "must be a"),
        ("", "must be a"),
        ("- 3", "must be a mapping"),
        ("- id: tools\n  config: !!js\n", "patch.yml"),
    ],
)
def test_a_malformed_patch_names_the_file(home: Home, text: str, problem: str) -> None:
    line = one_line(patched(home, text))
    assert problem in line
    assert "patch.yml" in line


def test_a_directory_where_a_patch_belongs_is_told(home: Home) -> None:
    (home.workspace / "patch.yml").mkdir()
    ran = with_key(home).run("--profile", "headless", "--patch", "patch.yml", "go")
    assert "patch.yml" in one_line(ran)


def test_a_missing_patch_is_told(home: Home) -> None:
    ran = with_key(home).run("--profile", "headless", "--patch", "nope.yml", "go")
    assert "nope.yml" in one_line(ran)


def test_a_patch_for_no_row_warns_with_the_nearest_id_and_goes_on(
    home: Home, provide: Callable[..., Provider]
) -> None:
    provide({"replies": [say("ok")]})
    patch = [{"id": "llm-retri", "disabled": True}]
    (home.workspace / "patch.yml").write_text(json.dumps(patch))
    ran = home.run("--profile", "headless", "--patch", "patch.yml", "go")
    assert (ran.code, ran.out) == (0, "ok\n")
    (line,) = ran.err.splitlines()
    assert "llm-retri" in line
    assert "'llm-retry'" in line or '"llm-retry"' in line


@pytest.mark.parametrize(
    ("row", "config", "field"),
    [
        ("bash-sandbox", {"timeoutMs": "soon"}, "timeoutMs"),
        ("sandbox-policy", {"mode": "everything"}, "mode"),
        ("session-persistence-jsonl", {"root": 3}, "root"),
        ("agent-loop", {"maxParallelToolCalls": 0}, "maxParallelToolCalls"),
        ("llm-deepseek", {"maxTokens": -1}, "maxTokens"),
        ("tool-fs", {"readLimits": 3}, "readLimits"),
    ],
)
def test_a_wrong_config_value_names_the_row_and_the_field(
    home: Home, row: str, config: dict[str, object], field: str
) -> None:
    line = one_line(patched(home, json.dumps([{"id": row, "config": config}])))
    assert row in line
    assert field in line


def test_a_wrong_permission_mode_is_refused(home: Home) -> None:
    home.variables["DSH_PERMISSION_MODE"] = "all"
    line = one_line(with_key(home).headless("go"))
    assert "DSH_PERMISSION_MODE" in line
    assert "workspace-write" in line


def test_an_unknown_profile_lists_profiles_and_the_nearest(home: Home) -> None:
    line = one_line(with_key(home).run("--profile", "headles", "go"))
    assert 'profile "headles" does not exist' in line
    assert "web" in line
    assert "did you mean" in line


def plugin(home: Home, name: str, text: str) -> str:
    path = home.workspace / f"{name}.py"
    path.write_text(text)
    return json.dumps([{"insert": [{"id": name, "name": str(path)}]}])


def test_a_plugin_that_raises_while_mounting_is_named(home: Home) -> None:
    patch = plugin(home, "broken", "def apply(ctx):\n    raise ValueError('no luck')\n")
    line = one_line(patched(home, patch))
    assert "broken" in line
    assert "no luck" in line
    assert home.logs() == []


def test_a_plugin_that_does_not_parse_is_named(home: Home) -> None:
    line = one_line(patched(home, plugin(home, "typo", "def apply(ctx:\n")))
    assert "typo" in line


def test_an_unknown_plugin_name_is_named(home: Home) -> None:
    line = one_line(patched(home, '[{"insert": [{"id": "x", "name": "no.such.module"}]}]'))
    assert "no.such.module" in line


def test_a_row_that_waits_for_a_service_says_which(home: Home) -> None:
    patch = plugin(home, "waiting", "inject = ['database']\ndef apply(ctx):\n    pass\n")
    line = one_line(patched(home, patch))
    assert "waiting" in line
    assert "database" in line


def test_the_traceback_is_kept_for_whoever_wants_it(home: Home) -> None:
    patch = plugin(home, "broken", "def apply(ctx):\n    raise ValueError('no luck')\n")
    patched(home, patch)
    logs = [path.read_text() for path in (home.folder / "logs").glob("*")]
    assert any("Traceback" in text and "no luck" in text for text in logs)

    home.variables["DSH_DEBUG"] = "1"
    assert "Traceback" in patched(home, patch).err


def test_the_web_profile_says_that_it_is_not_built_yet(home: Home) -> None:
    line = one_line(with_key(home).run("web"))
    assert "not built yet" in line


def test_a_home_that_cannot_be_written_is_warned_about_once(
    home: Home, provide: Callable[..., Provider], tmp_path: Path
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    home.folder = blocker / "home"
    ran = home.run("--profile", "headless", "--dump-config")
    assert ran.code == 0
    assert len(ran.err.splitlines()) == 1
    assert "llm-deepseek" in ran.out


def test_a_directory_where_a_file_belongs_is_told_to_the_model(
    home: Home, provide: Callable[..., Provider]
) -> None:
    (home.workspace / "folder").mkdir()
    provide(
        {
            "replies": [
                {
                    "calls": [
                        {"name": "read", "arguments": {"file_path": "folder"}},
                        {"name": "write", "arguments": {"file_path": "folder", "content": "x"}},
                    ]
                },
                {"expect": [{"is_error": True}, {"is_error": True}], "text": "told"},
            ]
        }
    )
    ran = home.headless("go")
    assert (ran.code, ran.out) == (0, "told\n")
