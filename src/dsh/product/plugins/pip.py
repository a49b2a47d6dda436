"""Pip, run as a child of the interpreter that dsh runs in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from dsh.loader.say import write
from dsh.product.plugins.errors import PipFailed, PipMissing, UvFailed

_OURS_TO_DECIDE: Final = frozenset(
    f"PIP_{each}"
    for each in (
        *("TARGET", "PREFIX", "ROOT", "USER", "EDITABLE", "SRC", "REQUIREMENT", "PYTHON"),
        *("NO_BINARY", "ONLY_BINARY", "NO_DEPS", "IGNORE_INSTALLED", "FORCE_REINSTALL"),
        *("DRY_RUN", "REPORT", "UPGRADE", "QUIET", "VERBOSE", "REQUIRE_VIRTUALENV"),
    )
)
"""Variables that would send packages elsewhere, or let source be built."""

_ALWAYS: Final = ("--disable-pip-version-check", "--no-input")


class Pip:
    """A pip that can be run.

    Args:
        where: How errors call the profile's folder.
        path: What the child finds modules in besides its own environment; where pip is, when
            that is not its environment.
        allow_build: Let pip run the code of packages to make wheels of them.
    """

    def __init__(self, where: str, path: str | None = None, *, allow_build: bool = False) -> None:
        self._where = where
        self._path = path
        self._allow_build = allow_build

    def run(self, *words: str, hushed: bool = False) -> None:
        """Run pip to its end; what it says goes where ours goes.

        Args:
            words: Pip's command and its arguments.
            hushed: Let it tell what it does only if it fails; warnings and errors are shown.

        Raises:
            PipFailed: it ended with another code than 0.
        """
        command, *rest = words
        guard: Sequence[str] = () if self._allow_build else ("--only-binary", ":all:")
        program = ["-m", "pip"] if self._allow_build else [str(_GUARDED)]
        done = subprocess.run(
            # -P: the working folder may hold a module that is called like one of pip's.
            [sys.executable, "-P", *program, command, *_ALWAYS, *rest, *guard],
            env=self._environment(),
            stdout=subprocess.PIPE if hushed else None,
            check=False,
        )
        if done.returncode != 0:
            _tell((done.stdout or b"").decode("utf-8", "replace"))
            raise PipFailed(self._where, done.returncode, allow_build=self._allow_build)

    def _environment(self) -> Mapping[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in _OURS_TO_DECIDE}
        # Nothing goes into the environment itself, so its owner need not be asked.
        kept["PIP_BREAK_SYSTEM_PACKAGES"] = "1"
        if self._path is not None:
            former = kept.get("PYTHONPATH")
            kept["PYTHONPATH"] = os.pathsep.join((self._path, *((former,) if former else ())))
        return kept


def _tell(said: str) -> None:
    """Show what pip said before it failed, without what went well."""
    for line in said.splitlines():
        if not line.startswith("Requirement already satisfied"):
            write(line)


_GUARDED: Final = Path(__file__).parent / "wheels_only.py"


@contextmanager
def find_pip(where: str, options: Sequence[str], *, allow_build: bool) -> Iterator[Pip]:
    """Provide a pip: the environment's, else the one that Python brings, else one by uv.

    Args:
        where: How errors call the profile's folder.
        options: For pip; uv gets those that say where packages come from.
        allow_build: As in `Pip`.

    Raises:
        PipMissing: there is none of them.
        UvFailed: uv could not fetch it.
    """
    from importlib.util import find_spec

    if find_spec("pip") is not None:
        yield Pip(where, allow_build=allow_build)
        return
    if (bundled := _bundled_pip()) is not None:
        yield Pip(where, str(bundled), allow_build=allow_build)
        return
    with TemporaryDirectory(prefix="dsh-pip-") as folder:
        _fetch_pip(folder, options)
        yield Pip(where, folder, allow_build=allow_build)


def _bundled_pip() -> Path | None:
    """Return the wheel of pip that Python keeps to set up new environments."""
    from importlib.util import find_spec

    spec = find_spec("ensurepip")
    for folder in (spec and spec.submodule_search_locations) or ():
        wheels = sorted(Path(folder, "_bundled").glob("pip-*.whl"))
        if wheels:
            return wheels[-1]
    return None


def _fetch_pip(folder: str, options: Sequence[str]) -> None:
    import shutil

    uv = shutil.which("uv")
    if uv is None:
        raise PipMissing
    words = ["pip", "install", "--quiet", "--python", sys.executable, "--target", folder, "pip"]
    done = subprocess.run([uv, *words, *_sources(options)], check=False)
    if done.returncode != 0:
        raise UvFailed(done.returncode)


def _sources(options: Sequence[str]) -> Iterator[str]:
    """Yield the options that say where packages come from, which uv has too."""
    rest = list(options)
    while rest:
        word = rest.pop(0)
        if word == "--no-index" or word.startswith(_PLACES_WITH_VALUE):
            yield word
        elif word in _PLACES:
            yield from (word, *rest[:1])
            del rest[:1]


_PLACES: Final = ("-i", "--index-url", "--extra-index-url", "-f", "--find-links")
_PLACES_WITH_VALUE: Final = ("--index-url=", "--extra-index-url=", "--find-links=")
