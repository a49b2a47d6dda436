"""Where pip comes from when the environment of dsh has none."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import NamedTuple

import pip
import pytest
from plugin_support import PATIENCE_S, User, bundle_wheel, refused

import dsh

LEFT_OUT = ("pip", "setuptools", "_distutils_hack", "distutils-precedence", "ensurepip")
UV = """#!{python}
import pathlib, shutil, sys
words = sys.argv[1:]
assert words[:2] == ["pip", "install"], words
assert words[-2:] == ["--index-url", "http://127.0.0.1/"], words
target = pathlib.Path(words[words.index("--target") + 1])
shutil.copytree({pip!r}, target / "pip")
"""


class Bare(NamedTuple):
    """An environment that has everything dsh needs, and no pip."""

    python: Path
    path: Path

    def plugin(self, user: User, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.python), "-m", "dsh", "plugin", "--profile", "p", *words],
            env={**user.env, "PYTHONPATH": str(self.path), **env},
            cwd=user.cwd,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )


@pytest.fixture
def bare(tmp_path: Path) -> Bare:
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    path = tmp_path / "path"
    path.mkdir()
    for place in [Path(each) for each in sys.path if each.endswith("site-packages")]:
        for each in place.iterdir():
            if not each.name.startswith(LEFT_OUT) and each.suffix != ".pth":
                (path / each.name).symlink_to(each)
    (path / "dsh").unlink(missing_ok=True)
    (path / "dsh").symlink_to(Path(dsh.__file__).parent)
    return Bare(tmp_path / "venv" / "bin" / "python", path)


def hide_bundled_pip(bare: Bare) -> None:
    (bare.path / "ensurepip.py").write_text("")


def test_without_any_pip_the_exit_code_is_127_and_the_remedy_is_told(
    user: User, bare: Bare
) -> None:
    user.made()
    hide_bundled_pip(bare)
    line = refused(bare.plugin(user, "add", "acme-a", PATH="/nowhere"), 127)
    assert "there is no pip in the environment that dsh runs in" in line
    assert "install pip there (python -m ensurepip), or install uv" in line
    assert user.installed() == []
    # What needs no pip works all the same.
    assert bare.plugin(user, "list", PATH="/nowhere").stdout == "no plugins\n"


def test_uv_provides_a_pip(user: User, bare: Bare) -> None:
    user.made()
    hide_bundled_pip(bare)
    bundle_wheel(user.wheels, "acme-a", requires=["pydantic"])
    programs = user.cwd / "programs"
    programs.mkdir()
    (programs / "uv").write_text(UV.format(python=sys.executable, pip=str(Path(pip.__path__[0]))))
    (programs / "uv").chmod(0o755)
    words = ("add", "acme-a", "--no-cache-dir", "--index-url", "http://127.0.0.1/")
    done = bare.plugin(user, *words, PATH=str(programs))
    assert (done.returncode, done.stderr) == (0, "")
    assert user.installed() == ["acme_a-1.0"]
    (programs / "uv").write_text("#!/bin/sh\nexit 9\n")
    assert bare.plugin(user, *words, PATH=os.pathsep.join((str(programs), "/bin"))).returncode == 9


def test_the_pip_that_python_brings_is_used(user: User, bare: Bare) -> None:
    ensurepip = pytest.importorskip("ensurepip")
    if not list(Path(ensurepip.__path__[0]).glob("_bundled/pip-*.whl")):
        pytest.skip("this Python brings no pip")
    user.made()
    bundle_wheel(user.wheels, "acme-a")
    done = bare.plugin(user, "add", "acme-a", PATH="/nowhere")
    assert (done.returncode, done.stderr) == (0, "")
    assert user.installed() == ["acme_a-1.0"]
