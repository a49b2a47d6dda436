"""Wheels written by hand, and the ``dsh`` command that installs them without a network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE_S = 100
SIDE_EFFECT = """
import os, pathlib
pathlib.Path(os.environ["DSH_HOME"], "imported").touch()
"""
RAISES = "raise RuntimeError('imported')\n"
PLUGIN = """
def apply(ctx):
    print("up")
    ctx.app_exit.exit(0)
"""


def wheel(
    folder: Path,
    name: str,
    version: str = "1.0",
    *,
    files: Mapping[str, str] | None = None,
    requires: Sequence[str] = (),
    extras: Sequence[str] = (),
    points: Mapping[str, Mapping[str, str]] | None = None,
) -> Path:
    """Write a wheel; without files its package is an empty one."""
    package = name.replace("-", "_")
    info = f"{package}-{version}.dist-info"
    groups = (
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in values.items())
        for group, values in (points or {}).items()
    )
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Provides-Extra: {each}\n" for each in extras)
    content = {
        **({f"{package}/__init__.py": ""} if files is None else files),
        f"{info}/METADATA": metadata + "".join(f"Requires-Dist: {each}\n" for each in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "\n".join(groups),
    }
    record = "".join(f"{path},,\n" for path in (*content, f"{info}/RECORD"))
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{package}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for path, text in {**content, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
    return target


def bundle_wheel(
    folder: Path,
    name: str,
    version: str = "1.0",
    *,
    source: str = "",
    rows: str | None = None,
    api: str | None = None,
    value: str | None = None,
    **options: Any,
) -> Path:
    """Write a wheel whose package is a plugin with a bundle of one row."""
    package = name.replace("-", "_")
    files = {f"{package}/__init__.py": source}
    if rows != "":
        files[f"{package}/bundle.yml"] = rows or f"- insert: [{{id: {name}, name: {package}}}]\n"
    if api is not None:
        files[f"{package}/dsh.toml"] = api
    points = {
        "dsh.bundle": {name: value or f"{package}:bundle.yml"},
        "dsh.plugins": {name: package},
    }
    return wheel(
        folder, name, version, files=files, points=options.pop("points", points), **options
    )


class User:
    """Somebody with a home, a working folder, and a folder of wheels that pip looks in."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.cwd = folder / "cwd"
        self.wheels = folder / "wheels"
        for each in (self.cwd, self.wheels):
            each.mkdir(parents=True)
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        self.env = {
            **kept,
            "HOME": str(folder),
            "DSH_HOME": str(self.home),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_NO_CACHE_DIR": "1",
            "PIP_FIND_LINKS": str(self.wheels),
        }

    @property
    def profile(self) -> Path:
        return self.home / "profiles" / "p"

    @property
    def site(self) -> Path:
        return self.profile / "site"

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "dsh", *words],
            env={**self.env, **env},
            cwd=self.cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def plugin(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return self.run("plugin", "--profile", "p", *words, **env)

    def done(self, *words: str) -> str:
        """Run a verb that must succeed in silence; return what it told, without pip's lines."""
        done = self.plugin(*words)
        assert (done.returncode, done.stderr) == (0, ""), (done.stdout, done.stderr)
        own = ("added ", "removed ", "changed ", "installed ", "nothing ")
        return "".join(
            line for line in done.stdout.splitlines(keepends=True) if line.startswith(own)
        )

    @contextmanager
    def started(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [sys.executable, "-m", "dsh", "plugin", "--profile", "p", *words],
            env=self.env,
            cwd=self.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def made(self, **fields: Any) -> None:
        """Make the profile, without bundles unless a manifest is given."""
        self.profile.mkdir(parents=True)
        manifest = {"dependencies": {}, "dsh": {"profile": {"bundles": []}}, **fields}
        (self.profile / "profile.json").write_text(json.dumps(manifest, indent=2) + "\n")
        (self.profile / "cordis.patch.yml").write_text("[]\n")

    def manifest(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.profile / "profile.json").read_text())
        return data

    def bundles(self) -> list[str]:
        listed: list[str] = self.manifest()["dsh"]["profile"]["bundles"]
        return listed

    def installed(self) -> list[str]:
        """The distributions in the site, with their versions."""
        return sorted(
            each.name.removesuffix(".dist-info") for each in self.site.glob("*.dist-info")
        )

    def picture(self) -> dict[str, bytes]:
        """Every file of the profile but the lock, with its bytes."""
        return {
            str(path.relative_to(self.profile)): path.read_bytes()
            for path in sorted(self.profile.rglob("*"))
            if path.is_file() and path.name != "site.lock"
        }


def unpack(site: Path, file: Path) -> None:
    """Put a wheel's files where pip would."""
    with zipfile.ZipFile(file) as archive:
        archive.extractall(site)


def refused(done: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """The one line that a refusal is."""
    assert done.returncode == code, (done.stdout, done.stderr)
    (line,) = done.stderr.splitlines()
    assert line.startswith("dsh")
    return line
