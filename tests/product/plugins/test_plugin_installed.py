"""What is found in a site folder, and what is said to be wrong with it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from plugin_support import RAISES, bundle_wheel, unpack, wheel

from dsh.product.plugins.installed import InstalledPlugin, installed_plugins

BAD_WHEELS: dict[str, tuple[Callable[[Path], object], str]] = {
    "an API that this dsh has not": (
        lambda folder: bundle_wheel(folder, "acme-bad", api='dsh-api = ">=2"\n'),
        'package "acme_bad" was made for dsh API >=2, and this dsh has 1.0',
    ),
    "a malformed API range": (
        lambda folder: bundle_wheel(folder, "acme-bad", api='dsh-api = "^1"\n'),
        "dsh-api = '^1': '^1' is no comparison with a version",
    ),
    "a malformed declaration": (
        lambda folder: bundle_wheel(folder, "acme-bad", api="a = 1\ndsh-api\n"),
        "dsh.toml:2:8: ",
    ),
    "a bundle that is not there": (
        lambda folder: bundle_wheel(folder, "acme-bad", rows=""),
        "failed to read bundle",
    ),
    "a bundle that is not YAML": (
        lambda folder: bundle_wheel(folder, "acme-bad", rows="- {"),
        "acme_bad/bundle.yml:2:1: ",
    ),
    "a bundle that is no list of patches": (
        lambda folder: bundle_wheel(folder, "acme-bad", rows="patches: 1"),
        "patches of a bundle must be a list",
    ),
    "a bundle outside of its package": (
        lambda folder: bundle_wheel(folder, "acme-bad", value="acme_bad:../../profile.json"),
        "its file '../../profile.json' leads out of its package",
    ),
    "a bundle at an absolute path": (
        lambda folder: bundle_wheel(folder, "acme-bad", value="acme_bad:/etc/hostname"),
        "leads out of its package",
    ),
    "a bundle without a file": (
        lambda folder: bundle_wheel(folder, "acme-bad", value="acme_bad"),
        "must be package:file.yml, got 'acme_bad'",
    ),
    "a bundle of a package that it has not": (
        lambda folder: bundle_wheel(folder, "acme-bad", value="acme_none:bundle.yml"),
        "there is no package 'acme_none'",
    ),
    "a bundle of a shipped name": (
        lambda folder: bundle_wheel(
            folder, "acme-bad", points={"dsh.bundle": {"headless": "acme_bad:bundle.yml"}}
        ),
        "its bundle 'headless' has the name of one that comes with dsh",
    ),
    "a package that Python hides": (
        lambda folder: wheel(
            folder,
            "acme-bad",
            files={"json/__init__.py": ""},
            points={"dsh.plugins": {"j": "json"}},
        ),
        "its package 'json' is hidden",
    ),
    "dsh itself": (
        lambda folder: wheel(folder, "dsh", "99.0", files={"acme_x/__init__.py": ""}),
        "it is dsh itself, which a profile must not hold a copy of",
    ),
}


def site_of(tmp_path: Path, make: Callable[[Path], object]) -> list[InstalledPlugin]:
    make(tmp_path / "wheels")
    for file in (tmp_path / "wheels").iterdir():
        unpack(tmp_path / "site", file)
    return installed_plugins(tmp_path / "site")


@pytest.mark.parametrize("kind", BAD_WHEELS)
def test_what_cannot_be_used_says_why(tmp_path: Path, kind: str) -> None:
    make, problem = BAD_WHEELS[kind]
    (found,) = site_of(tmp_path, make)
    assert any(problem in each for each in found.problems)
    assert not found.ok


def both_claim(folder: Path) -> None:
    bundle_wheel(folder, "acme-a", points={"dsh.plugins": {"notes": "acme_a"}})
    bundle_wheel(folder, "acme-b", points={"dsh.plugins": {"notes": "acme_b"}})


def test_two_packages_that_claim_one_name_are_both_told_of(tmp_path: Path) -> None:
    for each in site_of(tmp_path, both_claim):
        assert each.problems == (
            "plugin 'notes' is declared by acme-a and acme-b, so that neither is meant",
        )


def test_a_package_that_writes_over_the_files_of_a_plugin_is_told_of(tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        bundle_wheel(folder, "acme-good")
        wheel(folder, "acme-over", files={"acme_good/__init__.py": "raise SystemExit"})
        wheel(folder, "acme-beside", files={"acme_good/other.py": ""})

    beside, good, over = site_of(tmp_path, make)
    problem = "its file 'acme_good/__init__.py' is one of acme-good and of acme-over"
    assert [problem in str(each.problems) for each in (beside, good, over)] == [False, True, True]


def test_a_good_package_is_described_and_not_imported(tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        bundle_wheel(folder, "acme-a", "1.2", source=RAISES, api='dsh-api = "~=1.0"\n')
        wheel(folder, "acme-lib", "0.1")

    notes, lib = site_of(tmp_path, make)
    assert notes == InstalledPlugin("acme-a", "1.2", ("acme-a",), ("acme-a",), "~=1.0", ())
    assert (notes.ok, notes.is_plugin) == (True, True)
    assert lib == InstalledPlugin("acme-lib", "0.1", (), (), None, ())
    assert (lib.ok, lib.is_plugin) == (True, False)
    assert "acme_a" not in sys.modules


def test_a_declaration_counts_without_an_entry_point(tmp_path: Path) -> None:
    files = {"acme_a/__init__.py": "", "acme_a/dsh.toml": 'dsh-api = ">=9"\n'}
    (found,) = site_of(tmp_path, lambda folder: wheel(folder, "acme-a", files=files))
    assert found.is_plugin
    assert "was made for dsh API >=9" in found.problems[0]


def test_damaged_metadata_hides_no_other_package(tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        bundle_wheel(folder, "acme-a")

    (tmp_path / "site" / "odd-1.0.dist-info").mkdir(parents=True)
    odd = tmp_path / "site" / "bad-1.0.dist-info"
    odd.mkdir()
    (odd / "METADATA").write_text("Name: bad\nVersion: 1.0\n")
    (odd / "entry_points.txt").write_text("[dsh.bundle]\nno equals sign\n")
    assert [(each.name, each.ok) for each in site_of(tmp_path, make)] == [
        ("acme-a", True),
        ("bad", True),
    ]


def test_no_folder_holds_nothing(tmp_path: Path) -> None:
    assert installed_plugins(tmp_path / "none") == []
