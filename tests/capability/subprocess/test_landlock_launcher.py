from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dsh.capability.subprocess import supervisor
from dsh.capability.subprocess.supervisor import landlock, launcher

FOLDER = str(Path(supervisor.__file__).parent)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-S", FOLDER, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )


@pytest.fixture
def needs_landlock() -> None:
    if landlock.abi_version() == 0:
        pytest.skip("Landlock is missing")


@pytest.mark.parametrize(
    "arguments",
    [[], ["--"], ["--ro", "/", "true"], ["--ro", "--", "true"], ["--xx", "/", "--", "true"],
     ["--ro", "/", "--", "no-such-program"]],
)  # fmt: skip
def test_every_failure_of_the_launcher_is_125_with_its_name(arguments: list[str]) -> None:
    ended = run(*arguments)
    assert ended.returncode == 125
    assert ended.stderr.startswith("landlock-run: ")
    assert ended.stdout == ""


def test_a_missing_grant_fails_closed(needs_landlock: None) -> None:
    ended = run("--ro", "/", "--rw", "/no/such/path", "--", "echo", "ran")
    assert (ended.returncode, ended.stdout) == (125, "")


def test_probe_tells_how_much_is_enforced(needs_landlock: None) -> None:
    ended = run("--probe")
    assert ended.returncode == 0
    assert ended.stdout in (
        "landlock: fully enforced\n",
        "landlock: partially enforced (older ABI)\n",
    )


def test_the_program_takes_the_launchers_place(needs_landlock: None, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    script = f"echo a > {tmp_path}/in/a && echo ok; echo b > {tmp_path}/b; exit 9"
    ended = run("--ro", "/", "--rw", f"{tmp_path}/in", "--", "sh", "-c", script)
    assert (ended.returncode, ended.stdout) == (9, "ok\n")
    assert (tmp_path / "in" / "a").read_text() == "a\n"
    assert not (tmp_path / "b").exists()


def test_a_kernel_without_landlock_fails_closed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(landlock, "abi_version", lambda: 0)
    assert launcher.main(["--probe"]) == 125
    with pytest.raises(OSError, match="does not offer Landlock"):
        landlock.restrict(["/"], [])
    assert capsys.readouterr().err.startswith("landlock-run: ")


def test_an_older_kernel_is_partial(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(landlock, "abi_version", lambda: 3)
    assert launcher.main(["--probe"]) == 0
    assert capsys.readouterr().out == "landlock: partially enforced (older ABI)\n"


def test_the_supervisor_does_not_import_dsh() -> None:
    code = (
        "import sys, runpy; sys.argv = ['x', '--probe']\n"
        f"try: runpy.run_path({FOLDER!r}, run_name='__main__')\n"
        "except SystemExit: pass\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('dsh', 'asyncio')))"
    )
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert ended.stdout.splitlines()[-1] == "[]"
