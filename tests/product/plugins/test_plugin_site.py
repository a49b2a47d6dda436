"""The site folder of a profile: one generation follows another in one step."""

from __future__ import annotations

import io
import sys
import threading
from pathlib import Path

import pytest

from dsh.product.plugins.site import Site


def filled(site: Site, text: str) -> None:
    with site.staged() as folder:
        (folder / "what").write_text(text)
        site.publish(folder)


def what(site: Site) -> str:
    return (site.link / "what").read_text()


def test_a_generation_takes_over_and_the_former_one_goes(tmp_path: Path) -> None:
    site = Site(tmp_path)
    for text in ("one", "two"):
        with site.locked():
            filled(site, text)
            site.tidy()
        assert what(site) == text
    assert len(list(tmp_path.glob(".sites/*"))) == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == [".sites", "site", "site.lock"]


def test_a_generation_that_fails_leaves_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path)
    filled(site, "one")
    with pytest.raises(NotADirectoryError), site.staged():
        (site.link / "what" / "two").touch()
    assert what(site) == "one"
    assert len(list(tmp_path.glob(".sites/*"))) == 1


def test_a_step_can_be_taken_back(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with site.staged() as folder:
        site.publish(folder)()
        assert not site.link.exists()
    filled(site, "one")
    with site.staged() as folder:
        (folder / "what").write_text("two")
        take_back = site.publish(folder)
        assert what(site) == "two"
        take_back()
    assert what(site) == "one"


def test_what_a_killed_command_left_is_swept(tmp_path: Path) -> None:
    site = Site(tmp_path)
    filled(site, "one")
    (tmp_path / ".sites" / "left").mkdir()
    (tmp_path / ".site.left").symlink_to("x")
    (tmp_path / ".sites" / "kept-1").mkdir()
    with site.locked():
        assert what(site) == "one"
    assert not (tmp_path / ".sites" / "left").exists()
    assert not (tmp_path / ".site.left").is_symlink()
    assert (tmp_path / ".sites" / "kept-1").exists()


def test_readers_always_find_a_whole_generation(tmp_path: Path) -> None:
    site = Site(tmp_path)
    filled(site, "0")
    stop, seen = threading.Event(), set[str]()

    def read() -> None:
        while not stop.is_set():
            seen.add(what(site))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(200):
            filled(site, str(number))
    finally:
        stop.set()
        reader.join()
    assert seen


def test_a_waiting_command_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, inside, done = Site(tmp_path), threading.Event(), threading.Event()
    # Unlike what pytest captures, this may be read while another thread writes it.
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)

    def hold() -> None:
        with site.locked():
            inside.set()
            done.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait(20)
    order: list[str] = []

    def follow() -> None:
        with Site(tmp_path).locked():
            order.append("second")

    follower = threading.Thread(target=follow)
    follower.start()
    while "waiting for another" not in said.getvalue():
        assert follower.is_alive()
    order.append("first")
    done.set()
    for each in (holder, follower):
        each.join()
    assert order == ["first", "second"]


def test_a_link_of_somebody_else_is_replaced_and_what_it_leads_to_is_left_alone(
    tmp_path: Path,
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "what").write_text("theirs")
    site = Site(tmp_path)
    site.link.symlink_to(other)
    with site.locked(), site.staged() as folder:
        take_back = site.publish(folder)
        take_back()
        assert what(site) == "theirs"
    with site.locked():
        filled(site, "ours")
        site.tidy()
    assert (what(site), (other / "what").read_text()) == ("ours", "theirs")
