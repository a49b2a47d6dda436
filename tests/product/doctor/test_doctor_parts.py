from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dsh.loader.environment import LaunchEnvironment
from dsh.loader.yaml import load_yaml
from dsh.product.doctor.findings import Case, Finding, examine
from dsh.product.doctor.report import as_data, as_text, has_errors
from dsh.product.doctor.running import _row
from dsh.product.tree.redact import Redactor, redactor, secret_pairs
from dsh.product.tree.text import Page


def case(tmp_path: Path) -> Case:
    environment = LaunchEnvironment({"A_KEY": "planted-here"})
    return Case(
        home=tmp_path / "home",
        cwd=tmp_path / "cwd",
        environment=environment,
        heard=(),
        redact=redactor(tmp_path, environment),
    )


def test_a_look_that_breaks_is_a_finding_and_the_others_go_on(tmp_path: Path) -> None:
    def breaks(_: Case) -> Iterator[Finding]:
        yield Finding("ok", "one", "before")
        raise RuntimeError("planted-here: broken")

    def works(_: Case) -> Iterator[Finding]:
        yield Finding("ok", "two", "after")

    found = list(examine(case(tmp_path), [("one", breaks), ("two", works)]))

    assert [(each.level, each.topic) for each in found] == [
        ("ok", "one"),
        ("warning", "one"),
        ("ok", "two"),
    ]
    assert "RuntimeError: <A_KEY>: broken" in found[1].what


def test_every_part_of_a_finding_is_cleaned(tmp_path: Path) -> None:
    finding = Finding("note", "t", "planted-here", f"{tmp_path}/home/x", f"rm {tmp_path}/cwd/y")
    cleaned = case(tmp_path).cleaned(finding)
    assert cleaned == ("note", "t", "<A_KEY>", "$DSH_HOME/x", "rm ./y")


@pytest.mark.parametrize("id", ["a", "yes", "1", "a, b}", "- x", 'q"\n'])
def test_the_patch_that_a_remedy_shows_means_its_row(id: str) -> None:
    row = {"id": id, "name": "n", "state": "failed", "error": "no"}
    finding = _row("t", row)
    assert finding is not None
    patch = finding.remedy.partition(": - ")[2]
    assert load_yaml(patch, "patch") == {"id": id, "disabled": True}


def test_only_errors_count_as_such() -> None:
    levels = [Finding(level, "t", "x") for level in ("ok", "note", "warning")]
    assert not has_errors(levels)
    assert has_errors([*levels, Finding("error", "t", "x")])
    assert as_data("p", levels)["counts"] == {"ok": 1, "note": 1, "warning": 1, "error": 0}


def test_findings_stand_under_their_topic_with_the_remedy_below() -> None:
    text = as_text(
        [
            Finding("error", "home", "it is gone", "$DSH_HOME", "make it"),
            Finding("ok", "disk", "fine"),
            Finding("warning", "home", "it is odd"),
        ],
        Page(),
    )
    assert text.splitlines() == [
        "home",
        "  ✗ $DSH_HOME: it is gone",
        "    → make it",
        "  ! it is odd",
        "",
        "disk",
        "  ✓ fine",
        "",
        "1 error, 1 warning",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "MY_KEY=the-secret",
        'apiKey: "the-secret"',
        "{'token': 'the-secret'}",
        "password = the-secret",
        "export DB_PASSWD='the-secret' # mine",
    ],
)
def test_a_secret_of_a_file_is_known_by_its_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_text(text)
    redact = redactor(tmp_path, LaunchEnvironment({}), files=[tmp_path / "file"])
    assert "the-secret" not in redact("found the-secret here")


@pytest.mark.parametrize(
    "text",
    [
        "key sk-abcdef123456 is bad",
        "Authorization: Bearer abc.def.ghi",
        "http://user:hunter22@host/path",
    ],
)
def test_what_has_the_shape_of_a_key_is_hidden_without_a_name(text: str) -> None:
    shown = Redactor([])(text)
    assert not any(each in shown for each in ("abcdef123456", "abc.def.ghi", "hunter22"))


def test_a_secret_is_hidden_in_the_spelling_of_a_literal_too() -> None:
    redact = Redactor([("A", "tab\there'quote")])
    assert "tab" not in redact(repr("tab\there'quote"))


def test_the_longer_secret_goes_first() -> None:
    redact = Redactor([("A", "abcdef"), ("B", "abcdefghi")])
    assert redact("abcdefghi") == "<B>"


def test_what_is_no_secret_stays() -> None:
    redact = Redactor(secret_pairs([{"id": "a", "model": "deepseek-v4-flash", "keyring": "x"}]))
    assert redact("deepseek-v4-flash at line 3") == "deepseek-v4-flash at line 3"
