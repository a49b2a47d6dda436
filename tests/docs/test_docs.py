"""The documentation: its commands run, its links lead somewhere, its figures of speech exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dsh.testing.provider import start_provider

HERE = Path(__file__).parents[2]
PAGES = sorted([*HERE.glob("*.md"), *HERE.glob("docs/*.md")])
BIN = Path(sys.executable).parent
ANY_REPLY = {"replies": [{"text": "done", "repeat": 50}]}


def shell_blocks(page: Path) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Each command of each shell block, without its comment."""
    lines = [line for page in PAGES for block in shell_blocks(page) for line in block.splitlines()]
    bare = [re.sub(r"\s+#.*$", "", line).strip() for line in lines]
    return sorted({line for line in bare if line})


def is_dsh(command: str) -> bool:
    return re.search(r"(^|\| )(\.venv/bin/)?dsh ", command) is not None


@pytest.mark.parametrize("command", [each for each in commands() if is_dsh(each)])
def test_every_dsh_command_in_the_docs_runs(command: str, tmp_path: Path) -> None:
    script = f"set -eo pipefail\ncd {tmp_path}\n"
    with start_provider(ANY_REPLY) as provider:
        kept = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
        env = kept | {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "DSH_HOME": str(tmp_path / "home"),
            "DEEPSEEK_API_KEY": "sk-docs",
            "DEEPSEEK_BASE_URL": provider.url,
        }
        if "--resume" in command:
            script += 'dsh --profile headless "first" >first.txt\n'
        done = subprocess.run(
            ["bash", "-c", script + command.replace(".venv/bin/dsh", "dsh")],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.parametrize("command", [each for each in commands() if each.startswith("make ")])
def test_every_make_target_in_the_docs_exists(command: str) -> None:
    done = subprocess.run(
        ["make", "--dry-run", *command.split()[1:]], cwd=HERE, capture_output=True, check=False
    )
    assert done.returncode == 0


def test_every_other_command_in_the_docs_is_known_here() -> None:
    others = [each for each in commands() if not is_dsh(each) and not each.startswith("make ")]
    assert others == [
        ".venv/bin/python -m pytest tests/kernel -q",
        "export DEEPSEEK_API_KEY=...",
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_house_in_the_docs_is_the_house() -> None:
    text = (HERE / "docs" / "architecture.md").read_text()
    source = HERE / "src" / "dsh"
    for floor in ("product", "capability", "control", "execution"):
        row = next(line for line in text.splitlines() if f"`{floor}/`" in line)
        rooms = {
            path.name for path in (source / floor).iterdir() if (path / "__init__.py").exists()
        }
        assert {room for room in rooms if f"{room}/" not in row} == set()


def test_every_shipped_row_names_a_plugin_that_exists() -> None:
    bundles = source_rows()
    assert bundles
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    subprocess.run([sys.executable, "-c", code, *bundles], check=True)


def source_rows() -> list[str]:
    folder = HERE / "src" / "dsh" / "product" / "bundles"
    texts = [path.read_text() for path in folder.glob("*.yml")]
    return sorted({name for text in texts for name in re.findall(r"name: (dsh\.[\w.]+)", text)})
