"""When a session gets which title, and what makes work on one void."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest
from state_logs import whole_turn
from title_support import (
    Provider,
    Titles,
    first_turn,
    main_request,
    open_llm,
    request,
    settle,
    titles_of,
    write,
)

from dsh.kernel import AGENT, Context, ValidationError
from dsh.state.projections import ProjectionRegistry
from dsh.state.projections.registry import SessionProjections
from dsh.state.session.errors import SessionNotLive
from dsh.state.session.session import Session
from dsh.state.titles import SessionTitleInvalidError
from dsh.state.titles.keeper import TitleKeeper
from dsh.state.titles.service import (
    SessionTitleProviderTaken,
    SessionTitleSuperseded,
    TitleResultInvalid,
)


@pytest.fixture
async def titles(root: Context) -> Titles:
    return await Titles(root).open()


def fallback(title: str, seq: int) -> dict[str, Any]:
    return {"title": title, "messageSeqs": [seq], "source": {"kind": "fallback"}}


# The first words


async def test_the_first_words_are_the_first_title(titles: Titles) -> None:
    session = titles.session()
    said = write(session, "Please fix the failing tests of the parser")
    assert titles_of(session) == []
    await settle()
    assert titles_of(session) == [fallback("Please fix the failing tests", said["seq"])]
    assert titles.service.get(session) == titles_of(session)[0]


async def test_only_the_first_message_is_cut_into_a_title(titles: Titles) -> None:
    session = titles.session()
    write(session, "one")
    write(session, "two")
    await settle()
    write(session, "three")
    await settle()
    assert [title["title"] for title in titles_of(session)] == ["one"]


async def test_injected_context_never_becomes_a_title(titles: Titles) -> None:
    session = titles.session()
    write(session, "You are in /secret", kind="agent-instructions", form="instructions")
    await settle()
    write(session, [{"type": "image", "attachment": {"attachmentId": "x"}}])
    write(session, " \n\u200b")
    await settle()
    assert titles_of(session) == []
    said = write(session, "the question")
    await settle()
    assert titles_of(session) == [fallback("the question", said["seq"])]


async def test_a_cap_below_the_first_character_appends_nothing(root: Context) -> None:
    titles = await Titles(root, fallbackMaxBytes=3).open()
    session = titles.session()
    write(session, "😀")
    await settle()
    assert titles_of(session) == []
    assert titles.service.get(session) is None
    assert await titles.service.regenerate(session) is None


async def test_a_session_that_has_a_title_keeps_it(titles: Titles) -> None:
    parent = titles.session()
    write(parent, "the parent")
    await settle()
    child = titles.session(seed=list(parent.events), parentSession=parent.id)
    write(child, "the child")
    await settle()
    assert [title["title"] for title in titles_of(child)] == ["the parent"]


async def test_a_session_that_left_at_once_gets_no_title(titles: Titles) -> None:
    session = titles.session()
    write(session, "hello")
    titles.leave(session)
    await settle()
    assert titles_of(session) == []


async def test_a_service_that_unloads_appends_nothing(titles: Titles) -> None:
    session = titles.session()
    write(session, "hello")
    await titles.fiber.dispose()
    await settle()
    assert titles_of(session) == []


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"fallbackMaxWords": 5, "fallbackMaxBytes": 40},
        {"fallbackMaxWords": 0, "fallbackMaxBytes": 40, "maxTitleBytes": 80},
        {"fallbackMaxWords": 5, "fallbackMaxBytes": 81, "maxTitleBytes": 80},
        {"fallbackMaxWords": True, "fallbackMaxBytes": 40, "maxTitleBytes": 80},
        {"fallbackMaxWords": 5, "fallbackMaxBytes": 40, "maxTitleBytes": 80, "more": 1},
    ],
)
async def test_a_config_that_does_not_fit_is_refused(config: Any, root: Context) -> None:
    root.provide("sessions", object())
    with pytest.raises(ValidationError):
        await root.plugin(TitleKeeper, config)


# The user's own


async def test_a_title_that_the_user_gives_is_pinned(titles: Titles) -> None:
    provider = Provider(automatic="all-prompts")
    titles.register(provider)
    session = titles.session()
    given = titles.service.rename(session, " \x1b[1mMy   title\x1b[0m ")
    assert given == {"title": "My title", "messageSeqs": [], "source": {"kind": "user"}}
    first_turn(session)
    await settle()
    assert titles_of(session) == [given]
    assert provider.requests == []


@pytest.mark.parametrize("title", ["", "  ", "\x1b[0m", "\u200b"])
async def test_a_title_without_visible_text_is_refused(title: str, titles: Titles) -> None:
    session = titles.session()
    with pytest.raises(SessionTitleInvalidError):
        titles.service.rename(session, title)
    assert session.seq == 0


async def test_only_a_live_session_is_renamed(titles: Titles) -> None:
    session = titles.session()
    titles.leave(session)
    with pytest.raises(SessionNotLive):
        titles.service.rename(session, "x")
    with pytest.raises(SessionNotLive):
        await titles.service.regenerate(session)
    with pytest.raises(SessionNotLive):
        titles.service.rename(Session.create("never"), "x")


async def test_a_title_is_cut_to_size(titles: Titles) -> None:
    given = titles.service.rename(titles.session(), "ä" * 100)
    assert given["title"] == "ä" * 40


async def test_a_renaming_makes_work_void(titles: Titles) -> None:
    provider = Provider()
    titles.register(provider)
    session = titles.session()
    said = first_turn(session)
    await provider.asked.wait()
    titles.service.rename(session, "mine")
    provider.answer("late", said["seq"])
    await settle()
    assert titles.service.get(session) == titles_of(session)[-1]
    assert titles_of(session)[-1]["title"] == "mine"
    assert provider.requests[0].signal.aborted


async def test_without_a_provider_the_first_words_come_back(titles: Titles) -> None:
    session = titles.session()
    said = write(session, "first words")
    await settle()
    titles.service.rename(session, "mine")
    assert await titles.service.regenerate(session) == fallback("first words", said["seq"])
    assert len(titles_of(session)) == 3
    assert await titles.service.regenerate(session) == fallback("first words", said["seq"])
    assert len(titles_of(session)) == 3


# A provider, by itself


async def test_a_provider_is_asked_once_the_request_is_on_its_way(titles: Titles) -> None:
    provider = Provider()
    titles.register(provider)
    session = titles.session()
    said = write(session, "Please fix the tests")
    await settle()
    assert provider.requests == []
    request(session)
    await provider.asked.wait()
    assert [(m.seq, m.text) for m in provider.requests[0].messages] == [
        (said["seq"], "Please fix the tests")
    ]
    provider.answer(" Fix\nthe tests ", said["seq"], model={"provider": "p", "model": "m"})
    await settle()
    assert titles_of(session)[-1] == {
        "title": "Fix the tests",
        "messageSeqs": [said["seq"]],
        "source": {
            "kind": "provider",
            "provider": "told",
            "model": {"provider": "p", "model": "m"},
        },
    }


async def test_with_an_unchanged_header_the_stream_itself_is_the_sign(
    titles: Titles, root: Context
) -> None:
    await open_llm(root)
    provider = Provider(automatic="all-prompts")
    titles.register(provider)
    session = titles.session()
    request(session)
    write(session, "a second message")
    await settle()
    assert provider.requests == []
    await main_request(root, session, model="another")
    await settle()
    assert provider.requests == []
    await main_request(root, session)
    await provider.asked.wait()


async def test_a_header_before_the_message_is_not_its_request(titles: Titles) -> None:
    provider = Provider()
    titles.register(provider)
    session = titles.session()
    request(session)
    write(session, "hello")
    await settle()
    assert provider.requests == []


async def test_a_first_prompt_provider_names_a_session_once(titles: Titles) -> None:
    provider = Provider()
    titles.register(provider)
    session = titles.session()
    said = first_turn(session)
    await provider.asked.wait()
    provider.answer("named", said["seq"])
    await settle()
    write(session, "another message")
    request(session, model="m2")
    await settle()
    assert len(provider.requests) == 1
    assert titles_of(session)[-1]["title"] == "named"


async def test_a_second_message_before_the_request_keeps_a_first_prompt_provider_out(
    titles: Titles,
) -> None:
    provider = Provider()
    titles.register(provider)
    session = titles.session()
    write(session, "one")
    write(session, "two")
    request(session)
    await settle()
    assert provider.requests == []


async def test_a_child_session_is_not_named_from_its_first_prompt(titles: Titles) -> None:
    provider = Provider()
    titles.register(provider)
    session = titles.session(parentSession="parent")
    first_turn(session)
    await settle()
    assert provider.requests == []


async def test_an_all_prompts_provider_is_asked_with_each_message(titles: Titles) -> None:
    provider = Provider(automatic="all-prompts")
    titles.register(provider)
    session = titles.session()
    first = first_turn(session, "one")
    await provider.asked.wait()
    provider.answer("about one", first["seq"])
    await settle()
    provider.asked.clear()
    second = write(session, "two")
    request(session, model="m2")
    await provider.asked.wait()
    assert [m.text for m in provider.requests[1].messages] == ["one", "two"]
    provider.answer("about both", first["seq"], second["seq"])
    await settle()
    assert titles_of(session)[-1]["title"] == "about both"


async def test_a_newer_message_makes_work_void(titles: Titles) -> None:
    provider = Provider(automatic="all-prompts")
    titles.register(provider)
    session = titles.session()
    first_turn(session, "one")
    await provider.asked.wait()
    second = write(session, "two")
    assert provider.requests[0].signal.aborted
    provider.asked.clear()
    request(session, model="m2")
    await provider.asked.wait()
    provider.answer("both", second["seq"])
    await settle()
    assert [title["title"] for title in titles_of(session)] == ["one", "both"]
    assert provider.ended == 2


async def test_title_work_does_not_carry_an_agent(titles: Titles) -> None:
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")
    seen: list[str] = []

    class Curious(Provider):
        async def make_title(self, request: Any) -> Any:
            seen.append(who.get())
            return await super().make_title(request)

    provider = Curious()
    titles.register(provider)
    session = titles.session()

    def as_agent() -> None:
        who.set("agent")
        first_turn(session)

    contextvars.copy_context().run(as_agent)
    await provider.asked.wait()
    assert seen == ["nobody"]
    assert titles.root[AGENT] is None


async def test_a_failing_provider_only_warns(
    titles: Titles, caplog: pytest.LogCaptureFixture
) -> None:
    provider = Provider()
    titles.register(provider)
    session = titles.session()
    first_turn(session, "hello")
    await provider.asked.wait()
    provider.answers.put_nowait(RuntimeError("no model"))
    await settle()
    assert [title["title"] for title in titles_of(session)] == ["hello"]
    assert "no model" in caplog.text


@pytest.mark.parametrize(
    ("title", "seqs"),
    [
        ("", [2]),
        (" \u200b", [2]),
        ("fine", []),
        ("fine", [2, 2]),
        ("fine", [3, 2]),
        ("fine", [2, 99]),
        ("fine", [0]),
    ],
)
async def test_an_answer_that_is_no_title_of_the_request_is_refused(
    title: str, seqs: list[int], titles: Titles
) -> None:
    provider = Provider(automatic="all-prompts")
    titles.register(provider)
    session = titles.session()
    whole_turn(session)
    write(session, "two")
    await settle()
    before = titles_of(session)
    work = asyncio.ensure_future(titles.service.regenerate(session))
    await provider.asked.wait()
    provider.answer(title, *seqs)
    with pytest.raises(TitleResultInvalid, match="'told'"):
        await work
    assert titles_of(session) == before


# A provider, on demand


async def test_an_explicit_request_unpins_and_returns_the_title(titles: Titles) -> None:
    provider = Provider()
    titles.register(provider)
    session = titles.session()
    said = write(session, "hello")
    titles.service.rename(session, "mine")
    work = asyncio.ensure_future(titles.service.regenerate(session))
    await provider.asked.wait()
    provider.answer("made", said["seq"])
    made = await work
    assert made is not None
    assert made["title"] == "made"
    assert titles.service.get(session) == made


async def test_an_explicit_request_raises_what_the_provider_raises(titles: Titles) -> None:
    provider = Provider()
    titles.register(provider)
    session = titles.session()
    write(session, "hello")
    work = asyncio.ensure_future(titles.service.regenerate(session))
    await provider.asked.wait()
    provider.answers.put_nowait(RuntimeError("no model"))
    with pytest.raises(RuntimeError, match="no model"):
        await work


async def test_the_newest_of_overlapping_requests_wins(titles: Titles) -> None:
    provider = Provider()
    titles.register(provider)
    session = titles.session()
    said = write(session, "hello")
    await settle()
    older = asyncio.ensure_future(titles.service.regenerate(session))
    await provider.asked.wait()
    newer = asyncio.ensure_future(titles.service.regenerate(session))
    await settle()
    provider.answer("newest", said["seq"])
    made = await newer
    assert made is not None
    assert made["title"] == "newest"
    with pytest.raises(SessionTitleSuperseded, match="asked for again"):
        await older
    assert [title["title"] for title in titles_of(session)] == ["hello", "newest"]


async def test_a_request_without_a_message_makes_nothing(titles: Titles) -> None:
    provider = Provider()
    titles.register(provider)
    assert await titles.service.regenerate(titles.session()) is None
    assert provider.requests == []


async def test_a_session_that_leaves_makes_work_void(titles: Titles) -> None:
    provider = Provider()
    titles.register(provider)
    session = titles.session()
    said = write(session, "hello")
    await settle()
    work = asyncio.ensure_future(titles.service.regenerate(session))
    await provider.asked.wait()
    titles.leave(session)
    provider.answer("late", said["seq"])
    with pytest.raises(SessionTitleSuperseded, match="it left"):
        await work
    assert [title["title"] for title in titles_of(session)] == ["hello"]


async def test_a_caller_that_stops_waiting_stops_the_work(titles: Titles) -> None:
    provider = Provider()
    titles.register(provider)
    session = titles.session()
    write(session, "hello")
    work = asyncio.ensure_future(titles.service.regenerate(session))
    await provider.asked.wait()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    await settle()
    assert provider.ended == 1
    assert provider.requests[0].signal.aborted


async def test_a_service_that_unloads_ends_its_work(titles: Titles) -> None:
    provider = Provider()
    titles.register(provider)
    session = titles.session()
    write(session, "hello")
    work = asyncio.ensure_future(titles.service.regenerate(session))
    await provider.asked.wait()
    await titles.fiber.dispose()
    assert provider.ended == 1
    with pytest.raises(SessionTitleSuperseded):
        await work


# Providers come and go


async def test_there_is_one_provider_at_most(titles: Titles) -> None:
    titles.register(Provider("one"))
    with pytest.raises(SessionTitleProviderTaken, match=r"'two'.*'one'"):
        titles.register(Provider("two"))


async def test_a_provider_that_goes_ends_its_work_before_another_comes(titles: Titles) -> None:
    provider = Provider("one")
    provider.holds = asyncio.Event()
    registered = titles.register(provider)
    running, waiting = titles.session("running"), titles.session("waiting")
    first_turn(running, "one")
    await provider.asked.wait()
    write(waiting, "two")
    ending = registered.dispose()
    await settle()
    assert provider.requests[0].signal.aborted
    with pytest.raises(SessionTitleProviderTaken):
        titles.register(Provider("two"))
    request(waiting)
    await settle()
    assert len(provider.requests) == 1
    provider.holds.set()
    await ending
    assert provider.ended == 1
    second = Provider("two")
    titles.register(second)
    said = write(running, "three")
    work = asyncio.ensure_future(titles.service.regenerate(running))
    await second.asked.wait()
    second.answer("by two", said["seq"])
    made = await work
    assert made is not None
    assert made["source"] == {"kind": "provider", "provider": "two"}


# What readers see


async def test_the_title_is_a_projection(titles: Titles, root: Context) -> None:
    session = titles.session()
    write(session, "hello there")
    await settle()
    await root.plugin(SessionProjections)
    await settle()
    registry = root.require(ProjectionRegistry)
    assert registry.snapshot(session)["values"] == {"title": "hello there"}
    changes: list[Any] = []
    registry.on_changed(lambda session, key, view, seq: changes.append(view))
    titles.service.rename(session, "mine")
    assert changes == ["mine"]
    assert registry.checkpoint(session)["title"]["val"] == "mine"
    assert registry.snapshot(titles.session())["values"] == {"title": None}
