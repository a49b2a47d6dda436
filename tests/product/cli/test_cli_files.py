"""Files that cannot be used: one line with file and remedy, code 1, an empty stdout."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_support import Command

ROWS = "- insert: [{id: app, name: ./app.py}]\n"
APP = "def apply(ctx):\n    print('up', flush=True)\n    ctx.app_exit.exit(0)\n"

PATCHES: list[tuple[str, bytes, str]] = [
    ("malformed YAML", b"- {id: app\n  x", "failed to parse patches {path}:3:1: did not find"),
    ("a cycle", b"- &x {id: app, config: [*x]}\n", "failed to parse patches {path}"),
    (
        "not UTF-8",
        b"- {id: app, config: \xe4}\n",
        "failed to read patches {path}:1:21: byte 20 is not",
    ),
    ("empty", b"", "patches must be a top-level YAML array of loader patch entries ([] for none)"),
    ("only a comment", b"# nothing\n", "([] for none)"),
    ("a mapping", b"id: app\n", "([] for none)"),
    ("a text for an entry", b"- {id: app}\n- app\n", "patches entry 2 in {path} must be a mapping"),
    ("a wrong type", b"- {id: app, group: 3}\n", '[{path}] patch "app": group must be true or'),
    ("a wrong merge", b"- {id: app, merge: [1]}\n", '[{path}] patch "app": merge must be a map'),
    ("a duplicate id", b"- insert: [{id: app, name: x}]\n", '[{path}] duplicate row id "app"'),
    ("a duplicate key", b"- {id: app, id: b}\n", "{path}:1:13: duplicate key 'id'"),
    ("an empty expression", b"- {id: app, config: !!js ''}\n", "!!js needs an expression"),
    ("a row without a name", b"- insert: [{id: x}]\n", "needs a name"),
    ("an unknown tag", b"- {id: app, config: !!py 1}\n", "{path}:1:21: unknown tag"),
]


@pytest.mark.parametrize(("content", "problem"), [each[1:] for each in PATCHES])
@pytest.mark.parametrize("layer", ["profile", "home", "--patch"])
def test_a_patch_file_that_cannot_be_used_ends_the_start(
    dsh: Command, layer: str, content: bytes, problem: str
) -> None:
    path = lay(dsh, layer, content)
    given = ["--patch", str(path)] if layer == "--patch" else []
    done = dsh.run("--profile", "p", *given)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("dsh: ")
    if layer == "--patch":
        problem = problem.replace("patches", "overlay", 1)
    assert problem.format(path=path) in line
    assert str(path) in line


def lay(dsh: Command, layer: str, content: bytes) -> Path:
    """Write a profile with an app, and a file of one layer above it."""
    inner = dsh.profile("p", APP, "[]")
    dsh.install(inner / "site", "rows", ROWS.replace("./app.py", str(inner / "app.py")))
    (inner / "profile.json").write_text('{"dsh": {"profile": {"bundles": ["rows"]}}}')
    paths = {
        "profile": inner / "cordis.patch.yml",
        "home": dsh.home / "cordis.patch.yml",
        "--patch": dsh.cwd / "given.yml",
    }
    paths[layer].write_bytes(content)
    return paths[layer]


@pytest.mark.parametrize("place", ["profiles/p/cordis.patch.yml", "cordis.patch.yml"])
def test_a_folder_at_a_patch_files_path_ends_the_start(dsh: Command, place: str) -> None:
    dsh.profile("p", APP, ROWS)
    path = dsh.home / place
    path.unlink(missing_ok=True)
    path.mkdir()
    done = dsh.run("--profile", "p")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"dsh: failed to read patches {path}: is a directory\n"


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", None])
def test_a_manifest_that_cannot_be_used_is_named(dsh: Command, content: bytes | None) -> None:
    path = dsh.profile("p", APP, ROWS) / "profile.json"
    if content is None:
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(content)
    done = dsh.run("--profile", "p")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert str(path) in line or "must be a JSON object" in line


def test_a_byte_order_mark_and_an_absent_file_are_no_failure(dsh: Command) -> None:
    folder = dsh.profile("p", APP, "")
    (folder / "cordis.patch.yml").write_bytes(b"\xef\xbb\xbf" + ROWS.encode())
    done = dsh.run("--profile", "p")
    assert (done.returncode, done.stdout, done.stderr) == (0, "up\n", "")


@pytest.mark.parametrize(
    ("patch", "warning"),
    [
        ("- {id: ap, disabled: true}\n", 'patch: entry "ap" not found, did you mean "app"?'),
        ("- {id: app, name: other, config: 1}\n", 'patch: name mismatch for "app"'),
        ("- {disabled: true}\n", "patch: id is required for non-insert patches"),
        ("- {id: app, insert: []}\n", 'patch insert: entry "app" is not a group'),
        ("- {id: app, configg: 1}\n", "unknown field 'configg' (did you mean 'config'?)"),
    ],
)
def test_a_patch_that_changes_nothing_is_a_warning(dsh: Command, patch: str, warning: str) -> None:
    dsh.profile("p", APP, ROWS)
    path = dsh.home / "cordis.patch.yml"
    path.write_text(patch)
    done = dsh.run("--profile", "p")
    assert (done.returncode, done.stdout) == (0, "up\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"dsh: [{path}] ")
    assert warning in line


def test_a_dump_shows_expressions_and_no_value_of_a_variable(dsh: Command) -> None:
    secret = "sk-do-not-show"
    dsh.env["SOME_API_KEY"] = secret
    dsh.profile("p", APP, ROWS)
    patch = "- {id: app, merge: {key: !!js process.env.SOME_API_KEY}}\n"
    (dsh.home / "cordis.patch.yml").write_text(patch)
    done = dsh.run("--profile", "p", "--dump-config")
    assert (done.returncode, done.stderr) == (0, "")
    assert "    key: !!js process.env.SOME_API_KEY\n" in done.stdout
    assert secret not in done.stdout


TELEMETRY = """
- insert: [{id: app, name: ./app.py}]
- insert: [{id: session-telemetry-otel, name: ./telemetry.py}]
"""


@pytest.mark.parametrize("switch", ["1", "0", "false"])
def test_any_value_of_the_telemetry_switch_disables_the_row(dsh: Command, switch: str) -> None:
    folder = dsh.profile("p", APP, TELEMETRY)
    (folder / "telemetry.py").write_text("def apply(ctx):\n    print('telemetry', flush=True)\n")
    assert sorted(dsh.run("--profile", "p").stdout.split()) == ["telemetry", "up"]
    dsh.env["DSH_TELEMETRY_DISABLED"] = switch
    done = dsh.run("--profile", "p")
    assert (done.returncode, done.stdout, done.stderr) == (0, "up\n", "")


def test_a_tree_without_telemetry_takes_the_switch_in_silence(dsh: Command) -> None:
    dsh.profile("p", APP, ROWS)
    dsh.env["DSH_TELEMETRY_DISABLED"] = "1"
    done = dsh.run("--profile", "p")
    assert (done.returncode, done.stdout, done.stderr) == (0, "up\n", "")


def test_a_projects_file_cannot_switch_telemetry_off(dsh: Command) -> None:
    folder = dsh.profile("p", APP, TELEMETRY)
    (folder / "telemetry.py").write_text("def apply(ctx):\n    print('telemetry', flush=True)\n")
    (dsh.cwd / ".env").write_text("DSH_TELEMETRY_DISABLED=1\n")
    done = dsh.run("--profile", "p")
    assert "telemetry" in done.stdout
    assert "ignored DSH_TELEMETRY_DISABLED in" in done.stderr
    (dsh.home / ".env").write_text("DSH_TELEMETRY_DISABLED=1\n")
    assert "telemetry" not in dsh.run("--profile", "p").stdout


@pytest.mark.parametrize("mode", ["readonly", ""])
def test_the_demo_checks_the_permission_mode_before_all_else(dsh: Command, mode: str) -> None:
    dsh.env["DSH_PERMISSION_MODE"] = mode
    done = dsh.run("demo", "--into", "made")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("dsh: DSH_PERMISSION_MODE must be one of read-only, ")
    assert not (dsh.cwd / "made").exists()
    assert dsh.run("demo", "--help").returncode == 0
