from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from product_support import Person

from dsh.model.messages import create_user_message
from dsh.state.persistence.artifact.layout import Encoding
from dsh.state.persistence.artifact.store import ArtifactStore
from dsh.state.session.events import USER_MESSAGE
from dsh.state.session.session import Session


def found(report: Any, level: str) -> list[str]:
    """The findings of a level, each as one text."""
    keys = ("where", "what", "remedy")
    return [
        " | ".join(each[key] or "" for key in keys)
        for each in report["findings"]
        if each["level"] == level
    ]


def one(report: Any, level: str, part: str) -> str:
    (text,) = [each for each in found(report, level) if part in each]
    return text


def store_session(home: Path, id: str) -> Path:
    header = {"version": 0, "id": id, "createdAt": 1, "cwd": "/home/ada/app"}
    session = Session.create(id, header=header)
    session.append(USER_MESSAGE, create_user_message("hello"), surface_op="append")
    return (
        ArtifactStore(home / "sessions", Encoding.ZSTD).create(session.header, session.events).path
    )


# without a profile


def test_a_fresh_installation_is_in_order_and_nothing_is_made(person: Person) -> None:
    done = person.run("doctor")

    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "nothing is wrong"
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert not person.home.exists()


def test_json_is_the_documented_shape(person: Person) -> None:
    report = person.json("doctor", "--json")

    assert set(report) == {"profile", "ok", "counts", "findings"}
    assert (report["profile"], report["ok"]) == (None, True)
    assert set(report["counts"]) == {"ok", "note", "warning", "error"}
    assert set(report["findings"][0]) == {"level", "topic", "what", "where", "remedy"}


def test_the_real_path_of_the_home_is_never_printed(person: Person) -> None:
    person.profile("bad", "- {id: nothing, disabled: true}")
    person.write(".env", "X_API_KEY=12345678", mode=0o644)

    for words in ((), ("--json",), ("--profile", "bad")):
        done = person.run("doctor", *words, code=None)
        assert str(person.home) not in done.stdout + done.stderr
        assert "$DSH_HOME" in done.stdout


@pytest.mark.parametrize(
    ("break_it", "where", "remedy"),
    [
        (lambda home: home.write_text(""), "$DSH_HOME", "set DSH_HOME"),
        (lambda home: home.symlink_to("nowhere"), "$DSH_HOME", "set DSH_HOME"),
        (lambda home: home.symlink_to(home), "$DSH_HOME", "set DSH_HOME"),
        (lambda home: _file(home / "sessions"), "$DSH_HOME/sessions", "move it away"),
        (lambda home: _file(home / "profiles"), "$DSH_HOME/profiles", "move it away"),
    ],
)
def test_a_bad_home_is_an_error_with_a_remedy(
    person: Person, break_it: Any, where: str, remedy: str
) -> None:
    break_it(person.home)

    report = person.json("doctor", "--json", code=1)

    assert [each for each in found(report, "error") if each.startswith(where) and remedy in each]
    assert person.run("doctor", "--profile", "headless", code=1).stderr == ""


def _file(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("")


def test_a_home_that_cannot_be_written_is_an_error(person: Person) -> None:
    person.env["DSH_HOME"] = "/proc/dsh"

    report = person.json("doctor", "--json", code=1)

    assert "cannot be written" in one(report, "error", "home folder")


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        ("{nonsense", "$DSH_HOME/profiles/mine/profile.json:1:2"),
        ("[]", "must be a JSON object"),
        ('{"dsh": {"profile": {"bundles": ["bse"]}}}', "did you mean 'base'?"),
        ('{"dsh": {"profile": {"bundles": 3}}}', "must be a list"),
    ],
)
def test_a_profile_that_does_not_compose_is_an_error(
    person: Person, manifest: str, problem: str
) -> None:
    person.write("profiles/mine/profile.json", manifest)

    assert problem in one(person.json("doctor", "--json", code=1), "error", "")
    named = person.json("doctor", "--profile", "mine", "--json", code=1)
    assert problem in one(named, "error", "")


def test_a_manifest_that_is_a_folder_is_an_error(person: Person) -> None:
    (person.home / "profiles" / "mine" / "profile.json").mkdir(parents=True)

    assert "profile.json" in one(person.json("doctor", "--json", code=1), "error", "mine")


def test_a_working_folder_that_is_gone_is_an_error(person: Person) -> None:
    done = person.python(
        "import os\nos.rmdir(os.getcwd())\n"
        "from dsh.product.doctor.cli import main\nraise SystemExit(main(['--json']))"
    )

    assert (done.returncode, done.stderr) == (1, "")
    assert "does not exist any more" in one(json.loads(done.stdout), "error", "")


def test_a_patch_that_targets_nothing_is_a_warning(person: Person) -> None:
    person.write("profiles/mine/profile.json", '{"dsh": {"profile": {"bundles": ["base"]}}}')
    person.write("profiles/mine/cordis.patch.yml", "- {id: timr, disabled: true}")

    warning = one(person.json("doctor", "--json"), "warning", "timr")

    assert "profiles/mine/cordis.patch.yml" in warning


@pytest.mark.parametrize("name", ["settings.yaml", ".credentials.yaml"])
def test_a_document_that_does_not_parse_is_an_error(person: Person, name: str) -> None:
    person.write(name, "{: planted-text")

    report = person.json("doctor", "--json", code=1)

    error = one(report, "error", name)
    assert "planted" not in error
    assert "correct" in error


def test_credentials_that_others_may_read_are_an_error(person: Person) -> None:
    person.write(".credentials.yaml", "version: 1\n", mode=0o640)

    assert "chmod 600" in one(person.json("doctor", "--json", code=1), "error", ".credentials")


def test_keys_in_an_open_env_file_are_a_warning(person: Person) -> None:
    person.write(".env", "MY_API_KEY=something-long\n", mode=0o644)

    assert "chmod 600" in one(person.json("doctor", "--json"), "warning", ".env")


def test_a_fenced_name_of_the_project_is_a_warning(person: Person) -> None:
    (person.cwd / ".env").write_text("HTTPS_PROXY=http://127.0.0.1:1\n")

    assert "./.env" in one(person.json("doctor", "--json"), "warning", "HTTPS_PROXY")


def test_leftovers_of_interrupted_writes_are_told(person: Person) -> None:
    old, fresh = person.write(".settings.yaml.a1.tmp", ""), person.write(".new.b2.tmp", "")
    os.utime(old, (1, 1))

    note = one(person.json("doctor", "--json"), "note", "temporary")

    assert old.name in note
    assert fresh.name not in note


def test_sessions_are_counted_and_damage_comes_with_a_remedy(person: Person) -> None:
    store_session(person.home, "whole")
    store_session(person.home, "junk").write_bytes(b"junk")
    store_session(person.home, "empty").write_bytes(b"")

    report = person.json("doctor", "--json")

    assert "3 sessions stored, 2 damaged" in one(report, "note", "stored")
    assert "move its folder" in one(report, "warning", "junk")
    assert "delete its folder" in one(report, "warning", "empty")


def test_a_session_that_another_process_holds_is_told(person: Person) -> None:
    store_session(person.home, "busy")
    store = ArtifactStore(person.home / "sessions")
    store.hold("busy")
    assert "end it there" in one(person.json("doctor", "--json"), "note", "busy")
    store.close()


def test_sessions_of_other_formats_are_told_as_left_alone(person: Person) -> None:
    (store_session(person.home, "one").parent / "session.v4.json").write_text("{}")

    assert "left alone" in one(person.json("doctor", "--json"), "note", "another format")


def test_what_dsh_keeps_beside_a_log_is_no_other_format(person: Person) -> None:
    log = store_session(person.home, "one")
    for name in ("session.lease", f"{log.name}.lost-20260101T000000", f"{log.name}.0a.tmp"):
        (log.parent / name).write_text("{}")

    assert "another format" not in str(person.json("doctor", "--json"))


def test_missing_programs_are_notes(person: Person) -> None:
    person.env["PATH"] = ""

    notes = found(person.json("doctor", "--json", code=None), "note")

    assert [name for name in ("ripgrep", "git") if not any(name in each for each in notes)] == []


# with a profile


def test_a_profile_that_runs_is_in_order(person: Person) -> None:
    report = person.json("doctor", "--profile", "headless", "--json")

    (rows,) = [each for each in found(report, "ok") if "rows run" in each]
    assert "2 wait for the app's command line" in rows
    assert [each for each in found(report, "ok") if "commands are confined by" in each]


def test_a_missing_key_names_the_variable_and_how_to_store_it(person: Person) -> None:
    del person.env["DEEPSEEK_API_KEY"]

    error = one(person.json("doctor", "--profile", "headless", "--json", code=1), "error", "key")

    assert "dsh credentials set DEEPSEEK_API_KEY" in error
    assert "export DEEPSEEK_API_KEY" in error


def test_failed_rows_are_errors_and_rows_behind_them_are_not(person: Person) -> None:
    patch = person.patch("- {id: llm, config: {nonsense: 1}}\n")

    report = person.json("doctor", "--profile", "headless", "--patch", patch, "--json", code=1)

    error = one(report, "error", "")
    assert error.startswith("row llm (dsh.model.llm.runtime) | failed: config.nonsense")
    assert "disabled: true" in error
    assert "llm-deepseek" in one(report, "note", "in consequence")


def test_a_row_that_waits_for_a_service_of_nobody_is_an_error(person: Person) -> None:
    person.profile(
        "mine", "- insert: [{id: a, name: ./a}]", a_py="inject = ('tea',)\ndef apply(ctx): ...\n"
    )

    report = person.json("doctor", "--profile", "mine", "--json", code=1)

    assert "service tea (no row provides it)" in one(report, "error", "row a")


def test_rows_that_wait_for_each_other_are_errors(person: Person) -> None:
    person.profile(
        "mine",
        "- insert: [{id: a, name: ./a}, {id: b, name: ./b}]",
        a_py="inject = ('tea',)\nprovide = ('cup',)\ndef apply(ctx): ...\n",
        b_py="inject = ('cup',)\nprovide = ('tea',)\ndef apply(ctx): ...\n",
    )

    report = person.json("doctor", "--profile", "mine", "--json", code=1)

    assert "a circle" in one(report, "error", "row a")
    assert "a circle" in one(report, "error", "row b")


def test_what_may_come_with_the_command_line_is_a_note(person: Person) -> None:
    person.profile(
        "mine",
        "- insert: [{id: a, name: ./a}, {id: b, name: ./b}]",
        a_py="inject = ('cmdline',)\ndef apply(ctx): ctx.provide('tea', 1)\n",
        b_py="inject = ('tea',)\ndef apply(ctx): ...\n",
    )

    assert "row b" in one(person.json("doctor", "--profile", "mine", "--json"), "note", "tea")


def test_a_failing_row_of_a_third_party_is_a_warning_as_at_a_start(person: Person) -> None:
    folder = person.profile("mine", "[]")
    (folder / "profile.json").write_text('{"dsh": {"profile": {"bundles": ["odd"]}}}')
    install(folder / "site", "odd", "- insert: [{id: a, name: no.such.module}]\n")

    report = person.json("doctor", "--profile", "mine", "--json")

    assert "no.such.module" in one(report, "warning", "row a")


def install(site: Path, name: str, bundle: str, api: str | None = None) -> None:
    """Put a distribution with a bundle into a site folder."""
    package, info = site / name, site / f"{name}-1.2.dist-info"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "bundle.yml").write_text(bundle)
    if api is not None:
        (package / "dsh.toml").write_text(f'dsh-api = "{api}"\n')
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[dsh.bundle]\n{name} = {name}:bundle.yml\n")


def test_installed_plugins_are_told_with_the_range_they_fit(person: Person) -> None:
    folder = person.profile("mine", "- insert: [{id: t, name: 'dsh.kernel.timer:Timer'}]")
    install(folder / "site", "wide", "[]", api=">=1")
    install(folder / "site", "narrow", "[]", api=">=1,<2")
    install(folder / "site", "alien", "[]", api=">=7")

    report = person.json("doctor", "--profile", "mine", "--json")

    assert "plugin wide 1.2, for dsh API >=1" in one(report, "ok", "wide")
    assert "before you upgrade" in one(report, "note", "narrow")
    assert "made for dsh API >=7" in one(report, "warning", "alien")


def test_a_listed_plugin_that_does_not_fit_is_an_error(person: Person) -> None:
    folder = person.profile("mine", "[]")
    (folder / "profile.json").write_text('{"dsh": {"profile": {"bundles": ["alien"]}}}')
    install(folder / "site", "alien", "[]", api=">=7")

    assert "dsh plugin" in one(person.json("doctor", "--json", code=1), "error", "alien")


def test_names_of_upstream_that_are_not_served_are_told(person: Person) -> None:
    person.profile("mine", "- insert: [{id: a, name: '@deepseek-ai/dsh-tool'}]")

    report = person.json("doctor", "--profile", "mine", "--json", code=1)

    assert "did you mean" in one(report, "warning", "@deepseek-ai/dsh-tool'")


def test_a_template_that_was_changed_is_told(person: Person) -> None:
    person.write("profiles/headless/profile.json", '{"dsh": {"profile": {"bundles": ["base"]}}}')

    assert "its template base, headless" in one(person.json("doctor", "--json"), "note", "lists")


def test_a_profile_that_cannot_be_started_yet_is_an_error(person: Person) -> None:
    report = person.json("doctor", "--profile", "web", "--json", code=1)
    assert "not built yet" in one(report, "error", "")


def test_a_mode_that_does_not_exist_is_an_error(person: Person) -> None:
    person.env["DSH_PERMISSION_MODE"] = "wild"
    report = person.json("doctor", "--profile", "headless", "--json", code=1)
    assert one(report, "error", "DSH_PERMISSION_MODE")


def test_commands_that_nothing_confines_are_a_warning(person: Person) -> None:
    person.env["DSH_PERMISSION_MODE"] = "danger-full-access"
    report = person.json("doctor", "--profile", "headless", "--json")
    assert "workspace-write" in one(report, "warning", "not confined")
    assert not [each for each in found(report, "ok") if "are confined" in each]


def test_a_plugin_that_blocks_everything_still_leaves_a_report(person: Person) -> None:
    person.profile(
        "mine", "- insert: [{id: a, name: ./a}]", a_py="import time\ndef apply(ctx): time.sleep(90)"
    )

    done = person.python(
        "import dsh.product.tree.live as live\n"
        "from dsh.product.doctor import running\n"
        "running.look_at_profile.__defaults__ = (1.5,)\n"
        "from dsh.product.doctor.cli import main\n"
        "main(['--profile', 'mine'])"
    )

    assert done.returncode == 1
    assert "a plugin blocks the event loop" in done.stdout


@pytest.mark.parametrize("words", [("--profile", "mine"), ()])
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_no_secret_is_printed(
    person: Person, words: tuple[str, ...], form: tuple[str, ...]
) -> None:
    person.env["SOME_TOKEN"] = "planted-inherited"
    person.write(".env", "USER_SECRET='planted-user-env'\nURL=http://me:planted-url@here/\n")
    (person.cwd / ".env").write_text("APP_PASSWORD=planted-project-env\nLD_PRELOAD=fenced")
    person.write("settings.yaml", "llm:\n  apiKey: planted-settings\nbroken: {")
    person.write(".credentials.yaml", "refs:\n  A_NAME: planted-credentials\n  - broken", 0o644)
    person.profile(
        "mine",
        "- insert:\n"
        "  - {id: a, name: ./a, config: {nested: {apiKey: planted-patch}}}\n"
        "  - {id: b, name: ./b, config: {authorization: 'Bearer planted-header'}}\n"
        "  - {id: c, name: ./c, config: {token: [planted-list]}}\n"
        "- {id: nothing-there, disabled: true}\n",
        a_py="import os\n"
        "from pathlib import Path\n"
        "home = Path(os.environ['DSH_HOME'])\n"
        "def apply(ctx, config):\n"
        "    texts = [(home / each).read_text() for each in ('.env', 'settings.yaml',\n"
        "        '.credentials.yaml')]\n"
        "    texts += [Path('.env').read_text(), os.environ['SOME_TOKEN'], repr(config)]\n"
        "    raise ValueError(' '.join(texts) + ' sk-planted123456')\n",
        b_py="def apply(ctx, config):\n    ctx.report(ValueError(config['authorization']))\n",
        c_py="def apply(ctx, config):\n    raise KeyError(config['token'][0])\n",
    )

    done = person.run("doctor", *words, *form, code=1)

    assert "planted" not in done.stdout
    assert "nothing-there" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("headless",), "a profile is named by --profile"),
        (("--patch", "x.yml"), "--patch goes with --profile"),
        (("--jsn",), "did you mean '--json'?"),
    ],
)
def test_unusable_words_are_refused(person: Person, words: tuple[str, ...], problem: str) -> None:
    done = person.run("doctor", *words, code=1)
    assert done.stderr.startswith("dsh doctor: ")
    assert problem in done.stderr
    assert done.stdout == ""


def test_an_unknown_profile_is_an_error_with_a_remedy(person: Person) -> None:
    report = person.json("doctor", "--profile", "nobody", "--json", code=1)
    assert "dsh profile new" in one(report, "error", "nobody")
