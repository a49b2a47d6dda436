"""The plugin API: ranges, declarations, and packages that were made for another one."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh.loader.api import (
    API_VERSION,
    UnsuitableApi,
    api_allows,
    check_api,
    declared_api,
    package_folders,
)
from dsh.loader.errors import ConfigFileError


@pytest.mark.parametrize(
    ("wanted", "version", "allowed"),
    [
        (">=1,<2", "1.0", True),
        (">=1,<2", "1.9", True),
        (">=1,<2", "2.0", False),
        (">=1,<2", "0.9", False),
        (" >= 1.0 , < 2 ", "1.0", True),
        ("==1", "1.0", True),
        ("==1.0.0", "1", True),
        ("==1.1", "1.0", False),
        ("==1.*", "1.7", True),
        ("==1.*", "11.0", False),
        ("==1.0.*", "1", True),
        ("!=1.*", "1.7", False),
        ("!=1.*", "2", True),
        ("!=1.3", "1.3", False),
        ("!=1.3", "1.4", True),
        ("~=1.2", "1.9", True),
        ("~=1.2", "1.1", False),
        ("~=1.2", "2.0", False),
        ("~=1.2.3", "1.2.9", True),
        ("~=1.2.3", "1.3", False),
        (">1.0", "1.0", False),
        (">1", "1.1", True),
        ("<=1", "1.0", True),
        ("<=1", "1.0.1", False),
        ("<1.10", "1.9", True),
        (">=0", "1.0", True),
    ],
)
def test_a_range_holds_when_all_its_clauses_hold(wanted: str, version: str, allowed: bool) -> None:
    assert api_allows(wanted, version) is allowed


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ("", "the range is empty"),
        ("  ", "the range is empty"),
        ("1", "'1' is no comparison with a version"),
        ("^1", "no comparison"),
        (">=1,", "'' is no comparison"),
        (">=1,<", "'<' is no comparison"),
        (">=1 <2", "no comparison"),
        ("=>1", "no comparison"),
        ("==1a", "no comparison"),
        ("==1..0", "no comparison"),
        (">=1.*", ".* goes with == and != alone"),
        ("~=1", "~= needs two numbers"),
        ("==٣", "no comparison"),
        (">=2,x", "'x' is no comparison"),
        (">=" + "9" * 300, "longer than 200"),
        (">=" + "9" * 100, "no comparison"),
    ],
)
def test_a_malformed_range_says_what_is_wrong(wanted: str, problem: str) -> None:
    with pytest.raises(ValueError, match=r"range|version|goes|needs") as caught:
        api_allows(wanted)
    assert problem in str(caught.value)


NUMBERS = st.lists(st.integers(0, 30), min_size=1, max_size=4)


@given(NUMBERS, NUMBERS)
def test_comparisons_agree_with_each_other(one: list[int], two: list[int]) -> None:
    wanted, version = (".".join(map(str, each)) for each in (one, two))
    at_least, below = api_allows(f">={wanted}", version), api_allows(f"<{wanted}", version)
    equal = api_allows(f"=={wanted}", version)
    assert at_least is not below
    assert equal is not api_allows(f"!={wanted}", version)
    assert at_least is (equal or api_allows(f">{wanted}", version))
    assert api_allows(f"<={wanted}", version) is (equal or below)


@given(st.text(max_size=30))
def test_any_text_is_a_range_or_refused(text: str) -> None:
    with suppress(ValueError):
        assert api_allows(text) in {True, False}


def package(folder: Path, declaration: str | bytes | None, name: str = "acme_api") -> Path:
    made = folder / name
    made.mkdir()
    (made / "__init__.py").write_text("raise RuntimeError('imported')\n")
    if isinstance(declaration, str):
        (made / "dsh.toml").write_text(declaration)
    elif declaration is not None:
        (made / "dsh.toml").write_bytes(declaration)
    return made


def test_a_suitable_package_is_let_through_without_being_imported(tmp_path: Path) -> None:
    folder = package(tmp_path, f'# fits\ndsh-api = "~={API_VERSION}"\n')
    assert declared_api(folder) == f"~={API_VERSION}"
    check_api("acme_api.inner:thing", [str(tmp_path)])
    assert "acme_api" not in sys.modules


def test_an_unsuitable_package_is_refused_with_both_versions(tmp_path: Path) -> None:
    package(tmp_path, 'dsh-api = ">=7,<8"\nlater-field = 1\n')
    with pytest.raises(UnsuitableApi) as caught:
        check_api("acme_api.inner", [str(tmp_path)])
    assert 'package "acme_api" was made for dsh API >=7,<8' in str(caught.value)
    assert f"this dsh has {API_VERSION}" in str(caught.value)
    assert (caught.value.package, caught.value.wanted) == ("acme_api", ">=7,<8")
    assert caught.value.code == "PLUGIN_API"


def test_a_package_is_found_where_imports_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, 'dsh-api = ">=7"\n')
    check_api("acme_api")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnsuitableApi):
        check_api("acme_api")


@pytest.mark.parametrize("module", ["dsh.kernel", "json", "sys", "acme_none", "acme_none.x:y", ""])
def test_what_declares_nothing_is_let_through(module: str) -> None:
    check_api(module)


def test_a_package_without_a_declaration_and_a_plain_module_are_let_through(tmp_path: Path) -> None:
    package(tmp_path, None)
    (tmp_path / "acme_plain.py").write_text("raise RuntimeError\n")
    assert declared_api(tmp_path / "acme_api") is None
    check_api("acme_api", [str(tmp_path)])
    check_api("acme_plain", [str(tmp_path)])


@pytest.mark.parametrize(
    ("declaration", "problem"),
    [
        ("", 'dsh-api is missing; write dsh-api = ">=1,<2"'),
        ("dsh-api = 1", "dsh-api must be a text, got 1"),
        ("dsh-api = ''", "the range is empty"),
        ("dsh-api = '^1'", "dsh-api = '^1': '^1' is no comparison"),
        ("dsh_api = '>=1'", "unknown field 'dsh_api' (did you mean 'dsh-api'?)"),
        ("dsh-api = '>=1'\nmore = 1", "unknown field 'more'"),
        ("x = 1\ndsh-api\n", "dsh.toml:2:8: "),
        ("dsh-api = '>=1'\ndsh-api = '>=1'", "failed to parse plugin declaration"),
        (b"a = '\xe9'", "UTF-8"),
        ("dsh-api = " + "[" * 5000, "failed to parse plugin declaration"),
    ],
)
def test_a_malformed_declaration_names_file_and_problem(
    tmp_path: Path, declaration: str | bytes, problem: str
) -> None:
    folder = package(tmp_path, declaration)
    with pytest.raises(ConfigFileError) as caught:
        declared_api(folder)
    assert problem in str(caught.value)
    assert str(folder / "dsh.toml") in str(caught.value)


def test_a_declaration_that_is_no_file_is_named(tmp_path: Path) -> None:
    folder = package(tmp_path, None)
    (folder / "dsh.toml").mkdir()
    with pytest.raises(ConfigFileError, match="is a directory"):
        declared_api(folder)


def test_folders_of_a_package_and_of_its_parts(tmp_path: Path) -> None:
    made = package(tmp_path, None)
    (made / "inner").mkdir()
    assert package_folders("acme_api", [str(tmp_path)]) == (made,)
    assert package_folders("acme_api.inner", [str(tmp_path)]) == (made / "inner",)
    assert package_folders("acme_api.none", [str(tmp_path)]) == ()
    for place in ("a", "b"):
        (tmp_path / place / "acme_ns").mkdir(parents=True)
    places = [str(tmp_path / place) for place in ("a", "b")]
    assert package_folders("acme_ns", places) == (
        tmp_path / "a" / "acme_ns",
        tmp_path / "b" / "acme_ns",
    )
