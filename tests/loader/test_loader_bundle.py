"""Bundles of installed packages: found by metadata, refused whole, never imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dsh.loader.bundle import load_bundle
from dsh.loader.errors import BundleError, ConfigFileError, LoaderError

ROWS = "- insert: [{id: x, name: acme}]\n"


def install(
    profile: Path, name: str = "acme", points: str = "", files: dict[str, str] | None = None
) -> Path:
    """Put a distribution into a profile's site; its package must not be imported."""
    package = profile / "site" / name
    for path, text in {"__init__.py": "raise RuntimeError('imported')\n", **(files or {})}.items():
        (package / path).parent.mkdir(parents=True, exist_ok=True)
        (package / path).write_text(text)
    info = profile / "site" / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points)
    return package


def point(value: str, name: str = "acme") -> str:
    return f"[dsh.bundle]\n{name} = {value}\n"


def test_a_bundle_is_found_by_its_name_or_its_packages_name(tmp_path: Path) -> None:
    package = install(tmp_path, points=point("acme:b.yml", "notes"), files={"b.yml": ROWS})
    for name in ("notes", "acme"):
        bundle = load_bundle(name, "p", tmp_path)
        assert (bundle.name, bundle.path, bundle.shipped) == (name, package / "b.yml", False)
    assert "acme" not in sys.modules


def test_a_name_of_a_bundle_comes_before_a_name_of_a_package(tmp_path: Path) -> None:
    install(tmp_path, "acme", files={"b.yml": ROWS})
    other = install(tmp_path, "zeta", point("zeta:b.yml", "acme"), {"b.yml": ROWS})
    assert load_bundle("acme", "p", tmp_path).path == other / "b.yml"


def test_a_bundle_may_be_in_a_folder_of_its_package(tmp_path: Path) -> None:
    files = {"sub/b.yml": ROWS}
    package = install(tmp_path, points=point("acme:sub/b.yml"), files=files)
    assert load_bundle("acme", "p", tmp_path).path == package / "sub" / "b.yml"
    other = install(tmp_path, "beta", point("beta.sub:b.yml", "beta"), files)
    assert load_bundle("beta", "p", tmp_path).path == other / "sub" / "b.yml"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("acme:../../secret.yml", "its file '../../secret.yml' leads out of its package"),
        ("acme:sub/../../x.yml", "leads out of its package"),
        ("acme:/etc/hostname", "leads out of its package"),
        ("acme:..\\x.yml", "leads out of its package"),
        ("acme:link.yml", "leads out of its package"),
        ("acme", "must be package:file.yml, got 'acme'"),
        ("acme:", "must be package:file.yml"),
        ("../x:b.yml", "must be package:file.yml"),
        (":b.yml", "must be package:file.yml"),
        ("acme_none:b.yml", "there is no package 'acme_none'"),
    ],
)
def test_a_bundle_outside_of_its_package_is_refused(
    tmp_path: Path, value: str, problem: str
) -> None:
    package = install(tmp_path, points=point(value), files={"b.yml": ROWS})
    (tmp_path / "secret.yml").write_text(ROWS)
    (package / "link.yml").symlink_to(tmp_path / "secret.yml")
    with pytest.raises(BundleError) as caught:
        load_bundle("acme", "p", tmp_path)
    assert problem in str(caught.value)
    assert "run dsh plugin --profile p install" in str(caught.value)


def test_a_bundle_whose_file_is_gone_is_named(tmp_path: Path) -> None:
    package = install(tmp_path, points=point("acme:b.yml"))
    with pytest.raises(ConfigFileError) as caught:
        load_bundle("acme", "p", tmp_path)
    assert f"failed to read bundle {package / 'b.yml'}: no such file" in str(caught.value)


def test_a_bundle_for_another_api_is_refused(tmp_path: Path) -> None:
    files = {"b.yml": ROWS, "dsh.toml": 'dsh-api = ">=7"\n'}
    install(tmp_path, points=point("acme:b.yml"), files=files)
    with pytest.raises(
        BundleError, match=r'profile bundle "acme": .* made for dsh API >=7'
    ) as caught:
        load_bundle("acme", "p", tmp_path)
    assert caught.value.code == "PLUGIN_API"


@pytest.mark.parametrize("damage", ["[dsh.bundle]\nno equals sign\n", "\xff", "[[["])
def test_damaged_metadata_of_one_package_hides_no_other(tmp_path: Path, damage: str) -> None:
    install(tmp_path, "aaa")
    (tmp_path / "site/aaa-1.0.dist-info/entry_points.txt").write_bytes(damage.encode("latin-1"))
    (tmp_path / "site" / "bbb-1.0.dist-info").mkdir()
    install(tmp_path, points=point("acme:b.yml"), files={"b.yml": ROWS})
    assert load_bundle("acme", "p", tmp_path).patches
    with pytest.raises(LoaderError, match="cannot resolve profile bundle"):
        load_bundle("none", "p", tmp_path)
