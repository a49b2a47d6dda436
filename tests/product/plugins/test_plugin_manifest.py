"""The manifest of a profile, as packages change it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsh.loader.errors import ConfigFileError
from dsh.product.plugins.manifest import open_manifest, reconciled


@pytest.mark.parametrize(
    ("listed", "managed", "declared", "after"),
    [
        (["base"], set(), ["a", "b"], ["base", "a", "b"]),
        (["b", "base"], {"b"}, ["a", "b"], ["b", "base", "a"]),
        (["base", "a"], {"a"}, [], ["base"]),
        (["base", "mine"], {"a"}, ["a"], ["base", "mine", "a"]),
        (["a", "x"], {"a"}, ["a", "a"], ["a", "x"]),
        ([], set(), [], []),
    ],
)
def test_bundles_follow_packages_and_templates_stay(
    listed: list[str], managed: set[str], declared: list[str], after: list[str]
) -> None:
    assert reconciled(listed, managed=managed, declared=declared) == after


def write(folder: Path, text: str, name: str = "profile.json") -> Path:
    (folder / name).write_text(text)
    return folder / name


@pytest.mark.parametrize("indent", ["  ", "    ", "\t"])
@pytest.mark.parametrize("end", ["", "\n"])
def test_indentation_and_end_are_kept(tmp_path: Path, indent: str, end: str) -> None:
    path = write(tmp_path, json.dumps({"b": 1, "a": ["ü"]}, indent=indent) + end)
    manifest = open_manifest(tmp_path)
    manifest.dependencies["acme"] = "*"
    manifest.bundles = ["x"]
    assert manifest.save()
    data = {
        "b": 1,
        "a": ["ü"],
        "dependencies": {"acme": "*"},
        "dsh": {"profile": {"bundles": ["x"]}},
    }
    assert path.read_text() == json.dumps(data, indent=indent, ensure_ascii=False) + end


def test_a_manifest_on_one_line_stays_on_one_line(tmp_path: Path) -> None:
    path = write(tmp_path, '{"dependencies": {}}')
    manifest = open_manifest(tmp_path)
    manifest.dependencies["acme"] = "*"
    manifest.save()
    assert path.read_text() == '{"dependencies": {"acme": "*"}}'


@pytest.mark.parametrize("text", ["{}", '{"dsh": null}', '{\n "dependencies": {"a": "*"}}'])
def test_nothing_is_written_when_nothing_changed(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text)
    before = path.stat()
    assert not open_manifest(tmp_path).save()
    assert path.read_text() == text
    assert path.stat().st_ino == before.st_ino


def test_ours_comes_before_a_package_json(tmp_path: Path) -> None:
    write(tmp_path, "{}", "package.json")
    assert open_manifest(tmp_path).is_foreign
    write(tmp_path, "{}")
    assert not open_manifest(tmp_path).is_foreign


def test_a_missing_manifest_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigFileError, match=r"profile\.json: no such file"):
        open_manifest(tmp_path)
