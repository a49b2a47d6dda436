from __future__ import annotations

import os
from typing import Any

import pytest
from product_support import Person


def rows_of(tree: Any) -> dict[str, Any]:
    return {row["id"]: row for row in tree["rows"]}


def test_the_tree_shows_the_rows_that_run_and_those_that_wait_for_the_app(person: Person) -> None:
    done = person.run("tree", "--profile", "headless")

    assert done.stderr == ""
    assert "wait for the app's command line" in done.stdout.splitlines()[0]
    (startup,) = [line for line in done.stdout.splitlines() if "headless-startup " in line][:1]
    assert startup.split(maxsplit=3)[2:] == ["waits", "for the app's command line"]
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "\x1b" not in done.stdout


def test_json_is_the_documented_shape(person: Person) -> None:
    tree = person.json("tree", "--profile", "headless", "--format", "json")

    assert {"profile", "counts", "rows", "services", "settled", "remarks"} == set(tree)
    rows = rows_of(tree)
    assert set(rows["llm"]) == {
        *("id", "name", "enabled", "disabledBy", "state", "error", "waits", "provides", "needs"),
        *("effects", "plugins", "origin", "patchedBy", "rows"),
    }
    assert rows["llm"]["origin"] == "base"
    assert rows["headless-runner"]["state"] == "app"
    assert (tree["settled"], tree["remarks"]) == (True, [])


def test_the_app_does_not_run_and_nothing_more_than_a_profile_is_written(person: Person) -> None:
    person.env["DEEPSEEK_BASE_URL"] = "http://127.0.0.1:9"
    person.run("tree", "--profile", "headless")

    written = sorted(str(path.relative_to(person.home)) for path in person.home.rglob("*"))
    assert written == [
        "profiles",
        "profiles/headless",
        "profiles/headless/cordis.patch.yml",
        "profiles/headless/profile.json",
    ]


def test_failed_rows_are_shown_beside_those_that_run(person: Person) -> None:
    patch = person.patch(
        "- {id: llm, config: {nonsense: 1}}\n- insert: [{id: gone, name: no.such.module}]\n"
    )

    tree = person.json("tree", "--profile", "headless", "--patch", patch, "--format", "json")

    rows = rows_of(tree)
    assert (rows["llm"]["state"], rows["gone"]["state"]) == ("failed", "failed")
    assert "nonsense" in rows["llm"]["error"]
    assert rows["timer"]["state"] == "active"
    assert rows["llm-deepseek"]["waits"][0]["row"] == "llm"


def test_plugins_are_disposed_of_after_the_look(person: Person) -> None:
    person.profile(
        "mine",
        "- insert: [{id: a, name: ./a}]",
        a_py="import pathlib\n"
        "def apply(ctx):\n"
        "    pathlib.Path('up').touch()\n"
        "    ctx.defer(lambda: pathlib.Path('down').touch())\n",
    )

    person.run("tree", "--profile", "mine")

    assert sorted(os.listdir(person.cwd)) == ["down", "up"]


def test_nobody_is_told_that_the_tree_is_ready(person: Person) -> None:
    person.profile(
        "mine",
        "- insert: [{id: a, name: ./a}]",
        a_py="import pathlib\n"
        "inject = ('loader',)\n"
        "async def main(ctx):\n"
        "    await ctx.loader.ready()\n"
        "    pathlib.Path('ran').touch()\n"
        "def apply(ctx):\n"
        "    ctx.spawn(main(ctx), 'main')\n",
    )

    person.run("tree", "--profile", "mine")

    assert os.listdir(person.cwd) == []


def test_the_host_gives_the_tree_what_it_gives_at_a_start(person: Person) -> None:
    """A service of the host that only a start provides would make its users look broken."""
    person.profile(
        "mine",
        "- insert: [{id: a, name: ./a}]",
        a_py="def apply(ctx):\n"
        "    services = ctx.root.fiber.kernel.services._bindings\n"
        "    print('services', *sorted(services))\n"
        "    if 'cmdline' in services: ctx.get('app_exit').exit(0)\n",
    )

    looked = person.run("tree", "--profile", "mine").stdout.splitlines()[0].split()
    started = person.run("--profile", "mine").stdout.splitlines()[0].split()

    assert set(started) - set(looked) == {"cmdline", "cmdline_args"}


def test_mermaid_has_a_node_a_row_and_an_edge_a_dependant(person: Person) -> None:
    text = person.run("tree", "--profile", "headless", "--format", "mermaid").stdout

    lines = text.splitlines()
    assert lines[0] == "flowchart LR"
    nodes = {line.split('"')[1].split("<")[0]: line.split("[")[0].strip() for line in lines[1:25]}
    assert f'  {nodes["sandbox"]} -->|"sandbox"| {nodes["bash-sandbox"]}' in lines


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "--profile <name> is required"),
        (("--profile",), "--profile <name> needs a value"),
        (("--profile", "x", "--format", "svg"), "--format must be one of text, mermaid, json"),
        (("--profile", "headless", "do it"), "takes no words for the app"),
        (("--profle", "x"), "did you mean '--profile'?"),
        (("--profile", "nobody"), 'profile "nobody" does not exist'),
        (("--profile", "headless", "--patch", "no.yml"), "no such file"),
    ],
)
def test_unusable_words_are_refused(person: Person, words: tuple[str, ...], problem: str) -> None:
    done = person.run("tree", *words, code=1)

    assert done.stderr.startswith("dsh tree: ")
    assert problem in done.stderr
    assert (done.stderr.count("\n"), done.stdout) == (1, "")


def test_no_secret_of_config_or_environment_is_printed(person: Person) -> None:
    person.env["MY_API_KEY"] = "planted-in-env"
    person.profile(
        "mine",
        "- insert: [{id: a, name: ./a, config: {apiKey: planted-in-config}}]",
        a_py="import os\n"
        "def apply(ctx, config):\n"
        "    raise ValueError(f\"{config['apiKey']} {os.environ['MY_API_KEY']} shown\")\n",
    )

    for form in ("text", "json", "mermaid"):
        done = person.run("tree", "--profile", "mine", "--format", form)
        assert "planted" not in done.stdout + done.stderr
    assert "shown" in person.run("tree", "--profile", "mine").stdout


LOOK = """
import sys
from pathlib import Path
from dsh.loader.home import resolve_dsh_home
from dsh.product.tree.live import look_at, prepare

async def look(trial): print("looked")

prepared = prepare("mine", resolve_dsh_home())
look_at(prepared, look, stuck=lambda: print("stuck", flush=True), limit_s=float(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("body", "printed", "code"),
    [
        ("import time\ndef apply(ctx): time.sleep(50)", "stuck", 1),
        ("async def apply(ctx): raise SystemExit(7)", "looked", 0),
    ],
)
def test_what_a_plugin_does_to_the_loop_does_not_hang_or_end_the_look(
    person: Person, body: str, printed: str, code: int
) -> None:
    person.profile("mine", "- insert: [{id: a, name: ./a}]", a_py=body)

    done = person.python(LOOK, "1.5" if code else "30")

    assert (done.returncode, done.stdout) == (code, f"{printed}\n")
