from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

from sessions_home import SessionsHome, conversation

from dsh.kernel import Context
from dsh.state.persistence.service import SessionPersistence
from dsh.state.persistence.sqlite import plugin as sqlite
from dsh.state.session.session import Session
from dsh.state.session.store import LocalSessionStore

PATCH = """\
- id: session-persistence-jsonl
  disabled: true
- insert:
    - id: session-persistence-sqlite
      name: dsh.state.persistence.sqlite
      config:
        path: !!js dshHomePath('log/sessions.db')
"""


def patch(home: Path, text: str) -> None:
    home.mkdir(parents=True, exist_ok=True)
    (home / "cordis.patch.yml").write_text(text)


def keep(home: Path, *sessions: Session) -> None:
    async def work() -> None:
        context = Context()
        await context.plugin(LocalSessionStore)
        await context.plugin(sqlite, {"path": str(home / "log" / "sessions.db")})
        persistence = context.require(SessionPersistence)
        for session in sessions:
            await persistence.create(session.header)
            await persistence.append(session.id, session.events)
        await context.dispose()

    asyncio.run(work())


def test_the_store_of_a_profile_is_tended_whatever_its_medium(here: SessionsHome) -> None:
    patch(here.folder, PATCH)
    keep(here.folder, conversation("one", 2), conversation("two", created=2_000))
    of = ("--profile", "headless")
    assert [row["id"] for row in here.rows("list", *of)] == ["two", "one"]
    assert here.rows("list") == []
    assert "question 2" in here.run("show", "one", *of)
    child = here.run("fork", "one", "--at", "0", *of).strip()
    (row,) = here.rows("show", child, *of)
    assert (row["parentSession"], row["events"]) == ("one", 9)
    assert here.run("repair", *of) == "all sessions are whole\n"
    assert here.run("export", "one", "--format", "jsonl", *of) == "dsh-session-one.jsonl\n"
    assert here.run("delete", "one", "--yes", *of) == "deleted one\n"
    assert {row["id"] for row in here.rows("list", *of)} == {"two", child}


def test_a_profile_without_a_store_says_so(here: SessionsHome) -> None:
    patch(here.folder, "- id: session-persistence-jsonl\n  disabled: true\n")
    said = here.refused("list", "--profile", "headless")
    assert "profile 'headless' has no row that keeps sessions" in said


def test_a_store_that_does_not_run_says_why(here: SessionsHome) -> None:
    patch(here.folder, PATCH.replace("path: !!js dshHomePath('log/sessions.db')", "paths: x"))
    assert "path" in here.refused("list", "--profile", "headless")
    assert "nobody" in here.refused("list", "--profile", "nobody")


def test_a_session_that_has_lost_its_header_is_told_of_and_hides_no_other(
    here: SessionsHome,
) -> None:
    patch(here.folder, PATCH)
    keep(here.folder, conversation("one"), conversation("two"))
    with closing(sqlite3.connect(here.folder / "log" / "sessions.db")) as database:
        database.execute("UPDATE sessions SET created_at = -5 WHERE id = 'one'")
        database.commit()
    of = ("--profile", "headless")
    assert [row["id"] for row in here.rows("list", *of)] == ["two", None]
    problem = "session header field 'createdAt' is not a non-negative integer"
    (line,) = here.run("repair", *of, code=1).splitlines()
    assert line.endswith(f"log/sessions.db: cannot be repaired: {problem}")
    told = {row["id"]: row["damage"] for row in here.rows("repair", *of, code=1)}
    assert told == {None: problem, "two": None}


def test_the_patch_of_the_documentation_works(here: SessionsHome) -> None:
    page = Path(__file__).parents[3] / "docs" / "persistence.md"
    text = page.read_text("utf-8")
    patch(here.folder, text.split("```yaml\n")[1].split("```")[0])
    assert here.rows("list", "--profile", "headless") == []
