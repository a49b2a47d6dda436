from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from dsh.loader.bundle import load_bundle, shipped_bundles
from dsh.loader.compose import Layer, compose_profile
from dsh.loader.errors import (
    BundleError,
    ConfigFileError,
    LoaderError,
    ProfileError,
    ProfileMissing,
)
from dsh.loader.profile import init_profile, list_profiles, open_profile
from dsh.loader.yaml import load_yaml

AS_ROOT = os.geteuid() == 0


def write_profile(home: Path, name: str, bundles: object = (), patch: str | None = None) -> Path:
    folder = home / "profiles" / name
    folder.mkdir(parents=True)
    manifest = {"dsh": {"profile": {"bundles": list(bundles)}}}  # type: ignore[call-overload]
    (folder / "profile.json").write_text(json.dumps(manifest))
    if patch is not None:
        (folder / "cordis.patch.yml").write_text(patch)
    return folder


@pytest.mark.parametrize(
    ("name", "bundles"), [("web", ("base", "web-app")), ("headless", ("base", "headless"))]
)
def test_templates_are_made_on_first_use(
    tmp_path: Path, name: str, bundles: tuple[str, ...]
) -> None:
    profile = open_profile(name, tmp_path)
    folder = tmp_path / "profiles" / name
    assert profile.bundles == bundles
    assert profile.notices == ()
    assert sorted(each.name for each in folder.iterdir()) == ["cordis.patch.yml", "profile.json"]
    manifest = json.loads((folder / "profile.json").read_text())
    assert manifest == {
        "name": f"dsh-profile-{name}",
        "private": True,
        "dependencies": {},
        "dsh": {"profile": {"bundles": list(bundles)}},
    }
    patch = (folder / "cordis.patch.yml").read_text()
    assert patch.startswith("#")
    assert load_yaml(patch, "f") == []


def test_what_exists_is_never_overwritten(tmp_path: Path) -> None:
    folder = write_profile(tmp_path, "headless", ["base"])
    before = (folder / "profile.json").read_bytes()
    assert open_profile("headless", tmp_path).bundles == ("base",)
    (folder / "cordis.patch.yml").write_text("# mine\n[]\n")
    init_profile(folder, "headless", ("other",))
    assert (folder / "profile.json").read_bytes() == before
    assert (folder / "cordis.patch.yml").read_text() == "# mine\n[]\n"


def test_two_first_runs_at_once_agree(tmp_path: Path) -> None:
    folder = tmp_path / "profiles" / "p"
    start = threading.Barrier(8)
    errors: list[BaseException] = []

    def make(number: int) -> None:
        try:
            start.wait()
            init_profile(folder, "p", (f"bundle-{number}",))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=make, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(each.name for each in folder.iterdir()) == ["cordis.patch.yml", "profile.json"]
    assert len(json.loads((folder / "profile.json").read_text())["dsh"]["profile"]["bundles"]) == 1


def test_a_package_json_is_accepted(tmp_path: Path) -> None:
    folder = tmp_path / "profiles" / "old"
    folder.mkdir(parents=True)
    (folder / "package.json").write_text('{"dsh": {"profile": {"bundles": ["base"]}}}')
    assert open_profile("old", tmp_path).bundles == ("base",)
    assert list_profiles(tmp_path) == ["headless", "old", "web"]


def test_a_manifest_without_our_section_has_no_layers(tmp_path: Path) -> None:
    folder = tmp_path / "profiles" / "plain"
    folder.mkdir(parents=True)
    (folder / "package.json").write_text('{"name": "x"}')
    assert open_profile("plain", tmp_path).bundles == ()
    assert compose_profile("plain", tmp_path).rows == []


@pytest.mark.parametrize("name", ["", " ", "a/b", "a\\b", ".", "..", "node_modules", "a\0b"])
def test_unusable_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ProfileError, match="invalid profile name"):
        open_profile(name, tmp_path)


def test_a_missing_profile_lists_what_there_is(tmp_path: Path) -> None:
    write_profile(tmp_path, "mine")
    with pytest.raises(ProfileMissing) as caught:
        open_profile("headles", tmp_path)
    text = str(caught.value)
    assert 'profile "headles" does not exist' in text
    assert "did you mean 'headless'?" in text
    assert "headless, mine, web" in text
    assert "dsh plugin --profile headles add <package>" in text
    assert not (tmp_path / "profiles" / "headles").exists()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", r"failed to parse profile manifest .*profile\.json:1:2: "),
        ("[]", "must be a JSON object"),
        ('{"dsh": []}', "must be an object"),
        ('{"dsh": {"profile": {"bundles": "base"}}}', "must be a list of names"),
    ],
)
def test_an_unusable_manifest_is_named(tmp_path: Path, content: str, problem: str) -> None:
    folder = tmp_path / "profiles" / "p"
    folder.mkdir(parents=True)
    (folder / "profile.json").write_text(content)
    with pytest.raises(ConfigFileError, match=problem):
        open_profile("p", tmp_path)


def test_a_directory_for_a_manifest_is_named(tmp_path: Path) -> None:
    (tmp_path / "profiles" / "p" / "profile.json").mkdir(parents=True)
    with pytest.raises(ConfigFileError, match=r"failed to read .*profile\.json: is a directory"):
        open_profile("p", tmp_path)


@pytest.mark.skipif(AS_ROOT, reason="root may write everywhere")
def test_an_unwritable_home_composes_in_memory(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        composition = compose_profile("headless", tmp_path)
    finally:
        tmp_path.chmod(0o700)
    assert composition.rows
    assert len(composition.profile.notices) == 1


def test_a_home_that_is_a_file_composes_in_memory(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("")
    composition = compose_profile("headless", home)
    assert composition.rows
    assert len(composition.profile.notices) == 1
    assert "used without being saved" in composition.profile.notices[0]
    assert home.read_text() == ""


def test_layers_apply_in_order_and_the_home_beats_the_profile(tmp_path: Path) -> None:
    write_profile(
        tmp_path,
        "p",
        [],
        "- insert: [{id: a, name: n, config: 1}, {id: b, name: n}]\n- {id: b, config: 2}\n",
    )
    (tmp_path / "cordis.patch.yml").write_text("- {id: b, config: 3}\n- {id: a, config: 3}\n")
    (tmp_path / "late.yml").write_text("- {id: a, config: 4}\n")
    (tmp_path / "later.yml").write_text("- {id: a, config: 5}\n")
    composition = compose_profile(
        "p",
        tmp_path,
        patches=["late.yml", "later.yml"],
        cwd=tmp_path,
        overlays=[Layer("launcher", [{"id": "b", "disabled": True}])],
    )
    assert [row["config"] for row in composition.rows] == [5, 3]
    profile, home = (tmp_path / "profiles/p/cordis.patch.yml", tmp_path / "cordis.patch.yml")
    assert [str(each) for each in composition.provenance] == [
        f"{profile}, patched by {home}, {tmp_path / 'late.yml'}, {tmp_path / 'later.yml'}",
        f"{profile}, patched by {home}, launcher",
    ]
    assert load_yaml(composition.dump(), "dump") == composition.rows


def test_the_default_dump_reads_no_user_file(tmp_path: Path) -> None:
    write_profile(tmp_path, "p", ["base"], "{ not yaml")
    (tmp_path / "cordis.patch.yml").write_text("{ not yaml")
    assert compose_profile("p", tmp_path, user_layers=False).rows
    with pytest.raises(ConfigFileError, match="failed to parse patches"):
        compose_profile("p", tmp_path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "must be a top-level YAML array of loader patch entries"),
        ("# nothing\n", "must be a top-level YAML array"),
        ("a: 1", "must be a top-level YAML array"),
        ("- 1", r"overlay entry 1 in .* must be a mapping"),
        ("- {}\n- [x]", r"overlay entry 2 in .* must be a mapping"),
        ("- insert: {id: a}", "insert must list rows"),
        ("- {", r"failed to parse overlay .*:\d+:\d+: "),
    ],
)
def test_an_unusable_patch_file_is_fatal(tmp_path: Path, content: str, problem: str) -> None:
    write_profile(tmp_path, "p")
    (tmp_path / "x.yml").write_text(content)
    with pytest.raises(ConfigFileError, match=problem):
        compose_profile("p", tmp_path, patches=["x.yml"], cwd=tmp_path)


def test_a_missing_or_unreadable_patch_file_is_fatal(tmp_path: Path) -> None:
    write_profile(tmp_path, "p")
    with pytest.raises(ConfigFileError, match=r"failed to read overlay .*: no such file"):
        compose_profile("p", tmp_path, patches=["no.yml"], cwd=tmp_path)
    with pytest.raises(ConfigFileError, match=r"failed to read overlay .*: is a directory"):
        compose_profile("p", tmp_path, patches=["profiles"], cwd=tmp_path)
    (tmp_path / "cordis.patch.yml").mkdir()
    with pytest.raises(ConfigFileError, match=r"failed to read patches .*: is a directory"):
        compose_profile("p", tmp_path)


def test_rows_that_make_no_tree_are_refused_when_composed(tmp_path: Path) -> None:
    write_profile(tmp_path, "p", [], "- insert: [{id: a, name: n}, {id: a, name: n}]\n")
    with pytest.raises(LoaderError, match='duplicate row id "a" in profile p'):
        compose_profile("p", tmp_path)


def test_relative_plugin_files_are_beside_the_file_that_names_them(tmp_path: Path) -> None:
    write_profile(tmp_path, "p", [], "- insert: [{id: a, name: ./a.py}]\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "x.yml").write_text(
        "- insert:\n  - {id: g, name: n, group: true, config: [{id: b, name: ../b.py}]}\n"
    )
    composition = compose_profile("p", tmp_path, patches=["sub/x.yml"], cwd=tmp_path)
    assert composition.rows[0]["name"] == str(tmp_path / "profiles/p/a.py")
    assert composition.rows[1]["config"][0]["name"] == str(tmp_path / "b.py")


def test_two_compositions_do_not_share_or_repeat_rows(tmp_path: Path) -> None:
    first = compose_profile("headless", tmp_path)
    second = compose_profile("headless", tmp_path)
    assert first.rows == second.rows
    first.rows[0]["config"] = "changed"
    assert second.rows[0].get("config") != "changed"


def test_shipped_bundles_have_a_section_each_and_their_facts(tmp_path: Path) -> None:
    headless = compose_profile("headless", tmp_path)
    web = compose_profile("web", tmp_path)
    assert "# == base\n" in headless.dump()
    assert "# == base, patched by headless\n" in headless.dump()
    assert "# == headless\n" in headless.dump()
    assert headless.oneshot
    assert headless.cli == "dsh.product.headless.cli:command"
    assert headless.unavailable is None
    assert web.unavailable is not None
    assert not web.oneshot
    assert headless.warnings == web.warnings == []
    ids = [row["id"] for row in headless.rows]
    assert not [each for each in ids if each.startswith(("web", "client", "ui", "host"))]
    assert len(ids) == len(set(ids))


def test_upstreams_bundle_names_are_known(tmp_path: Path) -> None:
    bundle = load_bundle("@deepseek-ai/dsh-base", "p", tmp_path)
    assert (bundle.name, bundle.shipped) == ("base", True)
    assert bundle.path == shipped_bundles() / "base.yml"


@pytest.mark.parametrize("name", ["bsae", "../base", "/etc/base", "nothing"])
def test_a_bundle_that_is_not_installed_is_named_with_the_remedy(tmp_path: Path, name: str) -> None:
    with pytest.raises(BundleError) as caught:
        load_bundle(name, "p", tmp_path)
    assert f'cannot resolve profile bundle "{name}"' in str(caught.value)
    assert str(tmp_path / "site") in str(caught.value)
    assert "dsh plugin --profile p install" in str(caught.value)


def install(site: Path, name: str, entry: str | None, bundle: str) -> None:
    package = site / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / "patch.yml").write_text(bundle)
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    if entry is not None:
        (info / "entry_points.txt").write_text(f"[dsh.bundle]\n{entry}\n")


def test_an_installed_bundle_is_found_without_importing_it(tmp_path: Path) -> None:
    folder = write_profile(tmp_path, "p", ["acme"])
    install(folder / "site", "acme", "acme = acme:patch.yml", "- insert: [{id: x, name: acme}]\n")
    composition = compose_profile("p", tmp_path)
    assert [row["id"] for row in composition.rows] == ["x"]
    assert not composition.is_shipped(0)
    assert str(composition.provenance[0]) == "acme"


def test_an_installed_package_without_a_bundle_is_refused(tmp_path: Path) -> None:
    folder = write_profile(tmp_path, "p", ["plain"])
    install(folder / "site", "plain", None, "")
    with pytest.raises(BundleError, match=r"declares no dsh\.bundle"):
        compose_profile("p", tmp_path)


def test_a_profile_never_shadows_a_shipped_bundle(tmp_path: Path) -> None:
    folder = write_profile(tmp_path, "p", ["base"])
    install(folder / "site", "base", "base = base:patch.yml", "- insert: [{id: x, name: evil}]\n")
    assert "evil" not in compose_profile("p", tmp_path).dump()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("1", "must be a mapping or a list"),
        ("{cil: x}", "unknown field 'cil' of a bundle .*'cli'"),
        ("{cli: 1}", "cli of a bundle must be a text"),
        ("{patches: {}}", "patches of a bundle must be a list"),
    ],
)
def test_an_unusable_bundle_file_is_named(tmp_path: Path, content: str, problem: str) -> None:
    folder = write_profile(tmp_path, "p", ["acme"])
    install(folder / "site", "acme", "acme = acme:patch.yml", content)
    with pytest.raises(ConfigFileError, match=problem):
        compose_profile("p", tmp_path)
