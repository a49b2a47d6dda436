"""Configuration that would be lost in silence, or would fail far from its cause, is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsh.loader.compose import compose_profile, read_overlay
from dsh.loader.environment import LaunchEnvironment, load_environment
from dsh.loader.errors import ConfigFileError, PatchError, ProfileMissing
from dsh.loader.patch import apply_patches
from dsh.loader.rows import check_rows
from dsh.loader.yaml import MAX_BYTES, load_yaml, read_text


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"inject": [3]}, "a name in inject must be a text, got a number"),
        ({"inject": {"a": "b"}}, "inject.a must be a mapping or nothing, got a text"),
        ({"isolate": {"a": 3}}, "isolate.a must be true or a label, got a number"),
        ({"intercept": {"a": 3}}, "intercept.a must be a mapping or nothing, got a number"),
        ({"id": ""}, "has an empty id"),
    ],
)
def test_a_field_that_the_loader_cannot_read_is_refused(
    fields: dict[str, Any], problem: str
) -> None:
    with pytest.raises(PatchError, match=problem):
        check_rows([{"id": "x", "name": "n", **fields}], "profile")


def test_fields_that_the_loader_reads_pass() -> None:
    row = {
        "name": "n",
        "inject": {"a": None, "b": {}},
        "isolate": {"a": True, "b": "shared"},
        "intercept": {"a": {"x": 1}, "b": None},
    }
    assert check_rows([row, {"name": "n", "inject": ["a"]}], "profile")


def test_an_id_is_there_once_in_the_whole_tree() -> None:
    group = {"id": "g", "name": "n", "group": True, "config": [{"id": "a", "name": "n"}]}
    with pytest.raises(PatchError, match='duplicate row id "a" in group "g"'):
        check_rows([{"id": "a", "name": "n"}, group], "profile")


def test_an_unknown_field_of_an_inserted_row_is_told() -> None:
    warnings: list[str] = []
    apply_patches([], [{"insert": [{"id": "a", "name": "n", "confg": 1}]}], warnings.append)
    assert warnings == ["row \"a\": unknown field 'confg' (did you mean 'config'?)"]


def test_a_message_names_its_file_once(tmp_path: Path) -> None:
    path = tmp_path / "p.yml"
    path.write_text("[1]")
    with pytest.raises(ConfigFileError) as caught:
        read_overlay(path)
    assert str(caught.value) == f"overlay entry 1 in {path} must be a mapping"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("!!js [a]", "!!js takes a text"),
        ("!!python/object:os.system x", "unknown tag"),
        ("!own 1", "unknown tag '!own'"),
    ],
)
def test_a_tag_that_is_not_of_the_dialect_is_named(text: str, problem: str) -> None:
    with pytest.raises(ConfigFileError, match=problem):
        load_yaml(text, "f")


def test_a_file_is_read_up_to_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b" " * MAX_BYTES)
    assert len(read_text(path)) == MAX_BYTES
    path.write_bytes(b" " * (MAX_BYTES + 1))
    with pytest.raises(ConfigFileError, match="larger than"):
        read_text(path)


def test_relative_plugins_of_a_group_are_beside_their_file_with_or_without_its_flag(
    tmp_path: Path,
) -> None:
    (tmp_path / "p.yml").write_text(
        "- insert: [{id: g, name: 'cordis:group', config: [{id: a, name: ./a.py}]}]"
    )
    rows = compose_profile("headless", tmp_path / "home", patches=["p.yml"], cwd=tmp_path).rows
    (group,) = (row for row in rows if row["id"] == "g")
    assert group["config"][0]["name"] == str(tmp_path / "a.py")


def test_a_missing_profile_without_a_near_name_is_still_a_sentence() -> None:
    text = str(ProfileMissing("zz", known=["headless"], near=None))
    assert text.startswith('profile "zz" does not exist; profiles: headless. ')


@pytest.mark.parametrize(
    ("target", "problem"), [("nowhere", "leads to no file"), ("/dev/zero", "larger than")]
)
def test_a_projects_env_link_is_told_and_passed_over(
    tmp_path: Path, target: str, problem: str
) -> None:
    (tmp_path / ".env").symlink_to(target)
    told: list[str] = []
    environment = load_environment(tmp_path / "home", tmp_path, {}, told.append)
    assert environment.layer("project-env") == {}
    (line,) = told
    assert problem in line


def test_secrets_are_redacted_by_the_names_of_their_variables() -> None:
    environment = LaunchEnvironment(
        {"A_API_KEY": "sk-0123456789", "PLAIN": "visible-text", "B_TOKEN": "short"},
        project={"c_password": "hunter2hunter2"},
    )
    text = "sk-0123456789 visible-text short hunter2hunter2"
    assert environment.redact(text) == "<A_API_KEY> visible-text short <c_password>"
