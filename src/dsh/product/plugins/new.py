"""``dsh plugin new``: writes a package to start a plugin from."""

from __future__ import annotations

import keyword
import os
import re
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

from dsh.loader.api import API_VERSION
from dsh.product.plugins.errors import PluginError
from dsh.product.plugins.installed import own_places
from dsh.product.plugins.specs import normalised

_MAX_NAME: Final = 40
_TEMPLATE: Final = Path(__file__).parent / "template"
_FILES: Final[dict[str, str]] = {
    "gitignore": ".gitignore",
    "Makefile": "Makefile",
    "README.md": "README.md",
    "pyproject.toml": "pyproject.toml",
    "init.py": "src/@PACKAGE@/__init__.py",
    "bundle.yml": "src/@PACKAGE@/bundle.yml",
    "dsh.toml": "src/@PACKAGE@/dsh.toml",
    "plugin.py": "src/@PACKAGE@/plugin.py",
    "py.typed": "src/@PACKAGE@/py.typed",
    "conftest.py": "tests/conftest.py",
    "test_plugin.py": "tests/test_plugin.py",
}
"""Where each file of the template goes."""


class NameRefused(PluginError, ValueError):
    """A package cannot have this name."""

    code = "NAME"

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"new: a package cannot be called {name!r}: {problem}")
        self.name = name


class FolderTaken(PluginError, FileExistsError):
    """There is something already where the package would be written."""

    code = "FOLDER_TAKEN"

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"new: {folder} is there already and is no empty folder; name another with --dir"
        )
        self.folder = folder


def write_package(name: str, folder: str | None, cwd: Path) -> list[str]:
    """Write the package.

    Args:
        name: What it is called; its import package has underscores for hyphens.
        folder: Where; a folder of its name when None. Must not exist, or be empty.
        cwd: What that is relative to.

    Returns:
        Lines for the user: what was written and what to do next.

    Raises:
        NameRefused: the name is unusable or taken by what dsh has.
        FolderTaken: the folder holds something.
        OSError: it cannot be written; what was begun is removed.
    """
    name = check_name(name)
    shown = folder if folder is not None else name
    target = Path(os.path.normpath(cwd / Path(shown).expanduser()))
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FolderTaken(target)
    files = _filled(name)
    _write(target, files)
    return [f"wrote {len(files)} files to {shown}", f"next: cd {shown} && make check"]


def check_name(name: str) -> str:
    """Return a name in the form that compares equal.

    Raises:
        NameRefused: it is no package's name, or dsh or Python has a package of that name.
    """
    wanted = normalised(name)
    package = wanted.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*", wanted):
        raise NameRefused(name, "use letters, digits and hyphens, and begin with a letter")
    if len(wanted) > _MAX_NAME:
        raise NameRefused(name, f"it is longer than {_MAX_NAME} characters")
    if keyword.iskeyword(package) or keyword.issoftkeyword(package):
        raise NameRefused(name, "it is a word of Python")
    if package in sys.stdlib_module_names:
        raise NameRefused(name, "Python has a module of that name")
    if package in {"dsh", "src", "test", "tests"} or PathFinder.find_spec(package, own_places()):
        raise NameRefused(name, "the installation of dsh has a package of that name")
    return wanted


def _filled(name: str) -> dict[str, str]:
    """Return the text of each file by its path."""
    major = int(API_VERSION.partition(".")[0])
    slots = {
        "@NAME@": name,
        "@PACKAGE@": name.replace("-", "_"),
        "@API@": API_VERSION,
        "@NEXT@": str(major + 1),
    }
    return {
        _fill(path, slots): _fill((_TEMPLATE / f"{source}.tmpl").read_text("utf-8"), slots)
        for source, path in _FILES.items()
    }


def _fill(text: str, slots: dict[str, str]) -> str:
    for slot, value in slots.items():
        text = text.replace(slot, value)
    return text


def _write(target: Path, files: dict[str, str]) -> None:
    made: list[Path] = []
    try:
        for path, text in files.items():
            file = target / path
            made += _missing_parents(file)
            file.parent.mkdir(parents=True, exist_ok=True)
            made.append(file)
            file.write_text(text, "utf-8")
    except BaseException:
        _remove(made)
        raise


def _missing_parents(file: Path) -> list[Path]:
    return [each for each in reversed(file.parents) if not each.exists()]


def _remove(made: Sequence[Path]) -> None:
    for path in reversed(made):
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
