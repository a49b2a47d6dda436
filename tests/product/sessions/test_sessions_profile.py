from __future__ import annotations

import asyncio
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
