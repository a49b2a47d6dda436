"""Packages as people and manifests write them."""

from __future__ import annotations

from pathlib import Path

import pytest
from plugin_support import wheel

from dsh.product.plugins.errors import SpecError
from dsh.product.plugins.specs import (
    bare_address,
    normalised,
    options_of,
    parse_spec,
    recorded_spec,
)


@pytest.mark.parametrize(
    ("text", "name", "requirement", "recorded"),
    [
        ("acme", "acme", "acme", "*"),
        ("Acme_Notes", "acme-notes", "Acme_Notes", "*"),
        ("acme>=1,<2", "acme", "acme>=1,<2", ">=1,<2"),
        ("acme == 1.0.*", "acme", "acme== 1.0.*", "== 1.0.*"),
        ("acme[fast,x]~=1.2", "acme", "acme[fast,x]~=1.2", "[fast,x]~=1.2"),
        ('acme; python_version>"3"', "acme", 'acme; python_version>"3"', '; python_version>"3"'),
    ],
)
def test_a_name_with_a_range(text: str, name: str, requirement: str, recorded: str) -> None:
    spec = parse_spec(text, Path("/"))
    assert (spec.name, spec.requirement, spec.recorded) == (name, requirement, recorded)
    assert spec.source == ""
    again = recorded_spec(name, recorded, Path("/"))
    assert again.name == name
    assert normalised(again.requirement) == normalised(requirement)


@pytest.mark.parametrize("prefix", ["", "file:", "link:", "./", "file:./"])
def test_a_wheel_beside_the_command(tmp_path: Path, prefix: str) -> None:
    made = wheel(tmp_path, "acme-notes")
    spec = parse_spec(f"{prefix}{made.name}", tmp_path)
    kept = "link:" if prefix == "link:" else "file:"
    assert (spec.name, spec.requirement) == ("acme-notes", str(made))
    assert (spec.recorded, spec.source) == (f"{kept}{made}", "")
    assert parse_spec(f"{made}[fast]", Path("/")).requirement == f"{made}[fast]"
    assert parse_spec(f"file://{made}", Path("/")).requirement == str(made)
    assert parse_spec(f"acme-notes @ file://{made}", Path("/")).requirement == str(made)
    assert recorded_spec("acme-notes", spec.recorded, Path("/")).requirement == str(made)


@pytest.mark.parametrize("text", [".", "..", "./x/..", "file:.", "link:../p", "file:"])
def test_a_folder_is_source_with_the_name_of_its_project(tmp_path: Path, text: str) -> None:
    (tmp_path / "p").mkdir()
    for folder in (tmp_path, tmp_path / "p"):
        (folder / "pyproject.toml").write_text('[project]\nname = "Acme.Notes"\n')
    spec = parse_spec(text, tmp_path / "p")
    assert (spec.name, spec.source) == ("acme-notes", "a folder")
    assert Path(spec.requirement) in {tmp_path, tmp_path / "p"}


@pytest.mark.parametrize(
    "content", ["", "[project]\n", "project = 1\n", "{", "[project]\nname = 1\n"]
)
def test_a_folder_that_hides_its_name_is_still_a_project(tmp_path: Path, content: str) -> None:
    (tmp_path / "pyproject.toml").write_text(content)
    spec = parse_spec(".", tmp_path)
    assert (spec.name, spec.source) == (None, "a folder")


@pytest.mark.parametrize(
    ("text", "name", "source"),
    [
        ("https://127.0.0.1/d/acme_notes-1.0-py3-none-any.whl?x=1#h", "acme-notes", ""),
        ("acme @ https://127.0.0.1/acme-1.0.tar.gz", "acme", "a source archive"),
        ("acme[x] @ git+ssh://git@127.0.0.1/acme.git@v1", "acme", "a repository"),
        ("git+https://127.0.0.1/acme.git", None, "a repository"),
    ],
)
def test_an_address(text: str, name: str | None, source: str) -> None:
    spec = parse_spec(text, Path("/"))
    assert (spec.name, spec.source) == (name, source)
    assert spec.recorded == text.rpartition(" ")[2]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is neither a package's name"),
        ("a b", "is neither"),
        ("-x", "is neither"),
        ("acme@1.2", "write acme==1.2"),
        ("acme>=", "is neither"),
        ("@acme/notes", "is an npm package"),
        ("github:acme", "write git+https://"),
        ("acme @ ftp://127.0.0.1/x.whl", "must begin with https:"),
        ("./none", "there is no file or folder"),
        ("none-1.0-py3-none-any.whl", "there is no file or folder"),
        ("./plain.txt", "is neither a wheel"),
        ("./odd.whl", "is not named as a wheel is"),
        ("./empty", "holds no pyproject.toml"),
    ],
)
def test_what_cannot_be_installed_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "plain.txt").write_text("")
    (tmp_path / "odd.whl").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SpecError) as caught:
        parse_spec(text, tmp_path)
    assert problem in str(caught.value)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("recorded", "requirement"),
    [("1.2.3", "acme==1.2.3"), ("latest", "acme"), ("", "acme"), (" >=1 ", "acme>=1")],
)
def test_how_other_managers_write_a_version(recorded: str, requirement: str) -> None:
    assert recorded_spec("acme", recorded, Path("/")).requirement == requirement


def test_names_addresses_and_options_compare_in_one_form() -> None:
    assert normalised("A__b.-C") == "a-b-c"
    wanted = "ssh://127.0.0.1/a b.git"
    assert bare_address("git+ssh://git@127.0.0.1/a%20b.git@v1#egg=a") == wanted
    assert bare_address("ssh://git@127.0.0.1/a%20b.git") == wanted
    assert bare_address("file:///a@b/c%23.whl#sha256=1") == "file:///a@b/c#.whl"
    assert options_of("[a,b]>=1; x") == ("[a,b]", "x")
    assert options_of("file:/x/y.whl[a]") == ("[a]", "")
    assert options_of("*") == ("", "")
