"""The file provider: start, edits, other processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from settings_harness import Limits, Tree, wait_until

from dsh.base.files import FileLock, LockTimeout
from dsh.kernel import Context, Fiber
from dsh.loader.home import resolve_dsh_home
from dsh.state.documents import DocumentError
from dsh.state.settings import SettingsProvider
from dsh.state.settings.file import FileSettings

CHILD = str(Path(__file__).with_name("writing_child.py"))


async def open_file(root: Context, path: Path, **config: Any) -> Fiber:
    return await root.plugin(FileSettings, {"path": str(path), **config})


@pytest.mark.parametrize("name", ["settings.toml", "settings", "settings.yaml.bak"])
async def test_other_kinds_of_files_are_refused(root: Context, tmp_path: Path, name: str) -> None:
    with pytest.raises(DocumentError, match=r"must end in \.yaml, \.yml, \.json"):
        await open_file(root, tmp_path / name)


async def test_the_document_is_in_the_home_unless_the_row_says_otherwise(
    root: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSH_HOME", str(tmp_path / "env"))
    fiber = await root.plugin(FileSettings)
    assert root.require(SettingsProvider).document_path == resolve_dsh_home() / "settings.yaml"
    await fiber.dispose()
    root.provide("dsh_home_path", lambda name: str(tmp_path / "launch" / name))
    fiber = await root.plugin(FileSettings)
    path = root.require(SettingsProvider).document_path
    assert path == tmp_path / "launch" / "settings.yaml"
    await fiber.dispose()
    await root.plugin(FileSettings, {"dshHome": str(tmp_path / "row")})
    assert root.require(SettingsProvider).document_path == tmp_path / "row" / "settings.yaml"


@pytest.mark.parametrize("text", ["a: [1\n", "- 1\n", "a: 1\na: 2\n"])
async def test_a_document_that_cannot_be_read_fails_the_start_and_stays(
    root: Context, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    with pytest.raises(DocumentError, match="settings document"):
        await open_file(root, path)
    assert path.read_text() == text


async def test_an_edit_that_breaks_the_document_changes_nothing_and_stops_writes(
    tree: Tree,
) -> None:
    scope, _ = await tree.register()
    await scope.update({"timeoutMs": 5})
    tree.write("limits: [\n")
    with pytest.raises(DocumentError):
        await tree.file.reload()
    with pytest.raises(DocumentError):
        await scope.update({"timeoutMs": 6})
    assert (scope.get().timeout_ms, tree.text()) == (5, "limits: [\n")
    tree.write("limits: {timeoutMs: 7}\n")
    await scope.update({"tags": ["a"]})
    assert scope.get() == Limits(timeout_ms=7, tags=["a"])


async def test_a_deleted_document_is_an_empty_one(tree: Tree) -> None:
    scope, _ = await tree.register()
    await scope.update({"timeoutMs": 5})
    tree.path.unlink()
    await tree.file.reload()
    assert scope.get() == Limits()


async def test_own_writes_are_no_edits(tree: Tree) -> None:
    scope, _ = await tree.register()
    await scope.update({"timeoutMs": 5})
    await tree.file.reload()
    assert (tree.revisions, tree.updated) == ([("limits", 1)], [("limits", "update")])


async def test_preparing_makes_an_empty_document_and_leaves_one_that_is_there(tree: Tree) -> None:
    assert await tree.settings.prepare_document() == tree.path
    assert (tree.text(), tree.path.stat().st_mode & 0o777) == ("", 0o600)
    tree.write("# mine\n")
    await tree.settings.prepare_document()
    assert tree.text() == "# mine\n"


async def test_a_lock_that_another_process_keeps_fails_the_write_in_time(tree: Tree) -> None:
    scope, _ = await tree.register()
    tree.path.parent.mkdir()
    lock = FileLock(tree.path.with_name("settings.yaml.write"))
    with lock, pytest.raises(LockTimeout, match="waited 2 s"):
        await scope.update({"timeoutMs": 5})
    await scope.update({"timeoutMs": 6})
    assert scope.get().timeout_ms == 6


async def test_a_folder_that_cannot_be_written_refuses_the_write(
    root: Context, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    tree = await Tree(root, tmp_path / "file" / "settings.yaml").open()
    scope, _ = await tree.register()
    with pytest.raises(DocumentError, match="settings document"):
        await scope.update({"timeoutMs": 5})
    assert scope.get() == Limits()


def test_two_processes_that_write_different_namespaces_keep_both(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("# both\nkept: {a: 1} # by hand\n")
    children = [
        subprocess.Popen(
            [sys.executable, CHILD, str(path), ns, "30"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for ns in ("left", "right")
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    ended = [child.communicate("go\n") for child in children]
    assert [(child.returncode, err) for child, (_, err) in zip(children, ended, strict=True)] == [
        (0, "")
    ] * 2
    head, _, sections = path.read_text().partition("# by hand\n")
    assert head == "# both\nkept: {a: 1} "
    assert sections in (
        "left:\n  number: 30\nright:\n  number: 30\n",
        "right:\n  number: 30\nleft:\n  number: 30\n",
    )


async def test_edits_take_effect_while_something_follows_files(tree: Tree) -> None:
    from dsh.loader.hmr.config_files import ConfigFiles

    scope, _ = await tree.register()
    tree.write("limits: {timeoutMs: 1}\n")
    await tree.root.plugin(ConfigFiles)
    await wait_until(lambda: scope.get().timeout_ms == 1)
    tree.write("limits: {timeoutMs: 2}\n")
    await wait_until(lambda: scope.get().timeout_ms == 2)
    tree.write("limits: {timeoutMs: [\n")
    await wait_until(lambda: tree.reports)
    assert scope.get().timeout_ms == 2
    tree.path.unlink()
    await wait_until(lambda: scope.get().timeout_ms == 100)


def test_the_definitions_import_no_validation_and_no_yaml() -> None:
    code = """
import sys
import dsh.state.settings, dsh.state.settings.service, dsh.state.credentials.service
heavy = {"pydantic", "yaml", "click", "rich", "httpx"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)
