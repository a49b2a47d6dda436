from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dsh.loader.compose import compose_profile
from dsh.loader.errors import BundleError, ProfileError, ProfileMissing
from dsh.loader.profile import create_profile, delete_profile, list_profiles, open_profile


def test_a_made_profile_has_its_bundles_and_can_be_composed(tmp_path: Path) -> None:
    folder = create_profile("mine", tmp_path, ["base", "headless"])
    assert folder == tmp_path / "profiles" / "mine"
    assert sorted(each.name for each in folder.iterdir()) == ["cordis.patch.yml", "profile.json"]
    manifest = json.loads((folder / "profile.json").read_text())
    assert manifest["name"] == "dsh-profile-mine"
    assert open_profile("mine", tmp_path).bundles == ("base", "headless")
    assert compose_profile("mine", tmp_path).oneshot
    assert list_profiles(tmp_path) == ["headless", "mine", "web"]


def test_a_made_profile_starts_with_the_base(tmp_path: Path) -> None:
    create_profile("mine", tmp_path)
    assert open_profile("mine", tmp_path).bundles == ("base",)


def test_a_profile_that_exists_is_not_made_again(tmp_path: Path) -> None:
    folder = create_profile("mine", tmp_path)
    (folder / "cordis.patch.yml").write_text("# mine\n[]\n")
    with pytest.raises(ProfileError, match='profile "mine" exists already'):
        create_profile("mine", tmp_path)
    assert (folder / "cordis.patch.yml").read_text() == "# mine\n[]\n"


def test_a_bundle_that_cannot_be_found_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no-such"):
        create_profile("mine", tmp_path, ["base", "no-such"])
    assert not (tmp_path / "profiles").exists()


@pytest.mark.parametrize("name", ["", "..", "a/b", "node_modules", ".x.tmp", "a\nb"])
def test_a_name_that_is_none_makes_and_deletes_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises(ProfileError, match="invalid profile name"):
        create_profile(name, tmp_path)
    with pytest.raises(ProfileError, match="invalid profile name"):
        delete_profile(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "profiles").write_text("a file")
    with pytest.raises(ProfileError, match=r"cannot be made: .*: (not a directory|file exists)"):
        create_profile("mine", tmp_path)


MAKER = """
import sys
from pathlib import Path
from dsh.loader.errors import ProfileError
from dsh.loader.profile import create_profile
sys.stdin.readline()
try:
    create_profile("mine", Path(sys.argv[1]))
    print("made")
except ProfileError as error:
    print("exists" if "exists already" in str(error) else error)
"""


def test_of_several_processes_one_makes_the_profile(tmp_path: Path) -> None:
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", MAKER, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for maker in makers:
        assert maker.stdin is not None
        maker.stdin.write("go\n")
        maker.stdin.flush()
    answers = sorted(maker.communicate(timeout=20)[0].strip() for maker in makers)
    assert answers == ["exists", "exists", "exists", "made"]
    assert [each.name for each in (tmp_path / "profiles").iterdir()] == ["mine"]


def test_a_deleted_profile_is_gone_whole(tmp_path: Path) -> None:
    folder = create_profile("mine", tmp_path)
    (folder / "site" / "deep").mkdir(parents=True)
    (folder / "site" / "deep" / "file").write_text("x")
    assert delete_profile("mine", tmp_path) == folder
    assert list((tmp_path / "profiles").iterdir()) == []
    with pytest.raises(ProfileMissing, match='profile "mine" does not exist'):
        delete_profile("mine", tmp_path)


def test_a_templates_profile_is_made_anew_after_it_was_deleted(tmp_path: Path) -> None:
    folder = open_profile("headless", tmp_path).folder
    (folder / "cordis.patch.yml").write_text("- {id: x, disabled: true}\n")
    delete_profile("headless", tmp_path)
    assert "headless" in list_profiles(tmp_path)
    assert open_profile("headless", tmp_path).bundles == ("base", "headless")
    assert (folder / "cordis.patch.yml").read_text().endswith("[]\n")


def test_a_template_without_a_folder_has_nothing_to_delete(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="has no folder yet"):
        delete_profile("web", tmp_path)


def test_deletion_does_not_follow_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    folder = create_profile("mine", tmp_path)
    (folder / "link").symlink_to(outside)
    delete_profile("mine", tmp_path)
    assert (outside / "kept").read_text() == "kept"


def test_a_link_in_a_profiles_place_is_refused(tmp_path: Path) -> None:
    real = create_profile("real", tmp_path)
    (tmp_path / "profiles" / "alias").symlink_to(real)
    with pytest.raises(ProfileError, match="is a link"):
        delete_profile("alias", tmp_path)
    assert (real / "profile.json").exists()


@pytest.mark.parametrize("content", ["file", "folder"])
def test_what_is_no_profile_is_left_alone(tmp_path: Path, content: str) -> None:
    place = tmp_path / "profiles" / "mine"
    place.parent.mkdir()
    if content == "file":
        place.write_text("x")
    else:
        place.mkdir()
        (place / "notes").write_text("x")
    with pytest.raises(ProfileError, match=r"has no profile\.json or package\.json"):
        delete_profile("mine", tmp_path)
    assert place.exists()


def test_what_a_broken_deletion_left_behind_is_no_profile(tmp_path: Path) -> None:
    folder = create_profile("mine", tmp_path)
    folder.rename(folder.with_name(".mine.12345678.tmp"))
    assert list_profiles(tmp_path) == ["headless", "web"]
