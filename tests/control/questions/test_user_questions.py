"""Who may ask, who answers, and how a question ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from question_bench import COLOURS, OPEN, SEVERAL, Bench, FakeAgent, Screen

from dsh.base.signal import AbortController, AbortedError
from dsh.control.questions import (
    Answer,
    Question,
    QuestionIntent,
    QuestionOption,
    QuestionRequest,
    UserQuestionError,
    UserQuestionService,
)
from dsh.control.questions.runtime import UserQuestions
from dsh.kernel import Context
from dsh.state.session.service import SessionStore

PLAN = Question(
    "plan",
    "Go on?",
    detail="# The plan",
    options=(QuestionOption("Approve"), QuestionOption("Keep planning")),
    intent=QuestionIntent("plan-review", "Approve"),
)


def aborted() -> Any:
    controller = AbortController()
    controller.abort()
    return controller.signal


# who may ask


async def test_a_root_agent_gets_the_answer(desk: Bench) -> None:
    screen, _ = await desk.show(Screen([Answer("open", custom="dsh")]))
    assert await desk.ask(OPEN) == (Answer("open", custom="dsh"),)
    [request] = screen.shown
    assert (request.questions, request.agent) == ((OPEN,), desk.agent)


async def test_without_an_interface_asking_fails_at_once_and_says_what_to_do(desk: Bench) -> None:
    error = await desk.refused()
    assert error.code == "NO_PROVIDER"
    assert "no user interface is attached" in error.message
    assert "make it yourself" in error.message
    assert "end your turn with the open question" in error.message


async def test_what_is_wrong_is_told_in_one_order(desk: Bench) -> None:
    """Each row breaks all rules from its own on; the first one counts."""
    stale: Any = FakeAgent(desk.agent.session, desk.ctx)
    child = desk.new_agent(owner=desk.agent)
    bad_intent = Question("", "Go on?", intent=QuestionIntent("plan-review", "no"))
    bad_question = Question("", "Go on?")
    rows: list[tuple[str, tuple[Question, ...], dict[str, Any]]] = [
        ("ASK_ABORTED", (), {"agent": stale, "signal": aborted()}),
        ("EMPTY_QUESTIONS", (), {"agent": stale}),
        ("CALLER_NOT_LIVE", (bad_intent,), {"agent": stale}),
        ("DELEGATED_CALLER", (bad_intent,), {"agent": child}),
        ("BAD_INTENT", (bad_intent,), {}),
        ("BAD_QUESTION", (bad_question,), {}),
        ("NO_PROVIDER", (OPEN,), {}),
    ]
    for code, questions, changes in rows:
        fields = {"agent": desk.agent, "signal": None, **changes}
        with pytest.raises(UserQuestionError) as caught:
            await desk.questions.ask(QuestionRequest(questions, **fields))
        assert caught.value.code == code


async def test_a_stale_object_with_a_live_id_may_not_ask(desk: Bench) -> None:
    screen, _ = await desk.show()
    twin: Any = FakeAgent(desk.agent.session, desk.ctx)
    assert (await desk.refused(agent=twin)).code == "CALLER_NOT_LIVE"
    desk.agent.detach()
    assert (await desk.refused()).code == "CALLER_NOT_LIVE"
    assert screen.shown == []


async def test_an_agent_without_a_registry_may_not_ask(root: Context) -> None:
    await root.plugin(UserQuestions)
    reader: list[Context] = []
    await root.inject([UserQuestionService], reader.append)
    agent: Any = FakeAgent.__new__(FakeAgent)
    agent.id = "a"
    with pytest.raises(UserQuestionError) as caught:
        await reader[0].require(UserQuestionService).ask(QuestionRequest((OPEN,), agent))
    assert caught.value.code == "CALLER_NOT_LIVE"


async def test_an_agent_that_works_for_another_is_told_to_hand_the_question_up(
    desk: Bench,
) -> None:
    screen, _ = await desk.show()
    error = await desk.refused(agent=desk.new_agent(owner=desk.agent))
    assert error.code == "DELEGATED_CALLER"
    assert "in your final result" in error.message
    assert screen.shown == []


async def test_ownership_at_run_time_counts_and_not_where_a_session_comes_from(
    desk: Bench,
) -> None:
    """A child's session that is resumed by nobody's agent is a root like any other."""
    await desk.show(Screen([Answer("open")]))
    child = desk.ctx.require(SessionStore).create(
        meta={"parentSession": desk.agent.id, "origin": "subagent", "delegationDepth": 1}
    )
    resumed: Any = FakeAgent(child, desk.ctx)
    desk.ctx.defer(desk.agents.enter(resumed, None))
    assert await desk.ask(agent=resumed) == (Answer("open"),)


async def test_the_program_itself_may_ask(desk: Bench) -> None:
    await desk.show(Screen([Answer("open", custom="yes")]))
    assert await desk.ask(agent=None) == (Answer("open", custom="yes"),)


# the interface


async def test_there_is_one_interface(desk: Bench) -> None:
    screen, plugin = await desk.show(Screen([Answer("open")]))
    with pytest.raises(UserQuestionError) as caught:
        desk.questions.register_provider(Screen())
    assert caught.value.code == "DUPLICATE_PROVIDER"
    await desk.ask()
    await plugin.dispose()
    await desk.show(Screen([Answer("open", custom="the next one")]))
    assert await desk.ask() == (Answer("open", custom="the next one"),)
    assert len(screen.shown) == 1


async def test_an_interface_goes_with_its_plugin(desk: Bench) -> None:
    _, plugin = await desk.show()
    await plugin.dispose()
    assert (await desk.refused()).code == "NO_PROVIDER"


async def test_an_interface_that_goes_takes_its_open_questions_along(desk: Bench) -> None:
    screen, plugin = await desk.show()
    asking = asyncio.create_task(desk.refused())
    await screen.asked.wait()
    await plugin.dispose()
    error = await asking
    assert error.code == "NO_PROVIDER"
    assert "has gone" in error.message
    assert screen.withdrawn == screen.shown
    await screen.ended.wait()


async def test_an_interface_has_taken_its_questions_off_the_screen_when_it_is_gone(
    desk: Bench,
) -> None:
    class Slow(Screen):
        async def ask(self, request: QuestionRequest) -> Any:
            try:
                return await super().ask(request)
            finally:
                for _ in range(20):
                    await asyncio.sleep(0)
                self.told.set()

    screen, plugin = await desk.show(Slow())
    asking = [asyncio.create_task(desk.refused()) for _ in range(2)]
    await screen.asked.wait()
    await plugin.dispose()
    assert screen.told.is_set()
    assert [(await asked).code for asked in asking] == ["NO_PROVIDER"] * 2


async def test_an_interface_that_unloads_itself_while_it_is_asked_waits_for_nothing(
    desk: Bench,
) -> None:
    async def leave() -> Any:
        await plugin.dispose()

    class Leaving(Screen):
        async def ask(self, request: QuestionRequest) -> Any:
            return await leave()

    _, plugin = await desk.show(Leaving())
    assert (await desk.refused()).code == "NO_PROVIDER"
    await plugin.dispose()


@pytest.mark.parametrize("is_bound", [True, False])
async def test_unloading_the_service_ends_the_open_questions(desk: Bench, is_bound: bool) -> None:
    """Whether the interface goes with the service, or outlives it."""
    screen = Screen()
    if is_bound:
        await desk.show(screen)
    else:
        desk.root.require(UserQuestionService).register_provider(screen)
    asking = asyncio.create_task(desk.refused())
    await screen.asked.wait()
    await desk.fiber.dispose()
    assert (await asking).code == "NO_PROVIDER"
    assert screen.ended.is_set()


# withdrawing


async def test_an_aborted_caller_reaches_no_interface(desk: Bench) -> None:
    screen, _ = await desk.show()
    desk.controller.abort()
    assert (await desk.refused()).code == "ASK_ABORTED"
    assert screen.shown == []


async def test_an_abort_while_waiting_withdraws_the_question(desk: Bench) -> None:
    screen, _ = await desk.show()
    asking = asyncio.create_task(desk.refused())
    await screen.asked.wait()
    desk.controller.abort()
    assert (await asking).code == "ASK_ABORTED"
    assert screen.withdrawn == screen.shown
    await screen.ended.wait()


async def test_an_abort_does_not_wait_for_an_interface_that_will_not_stop(
    desk: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    class Stubborn(Screen):
        async def ask(self, request: QuestionRequest) -> Any:
            self.asked.set()
            while not self.told.is_set():
                try:
                    await self.told.wait()
                except asyncio.CancelledError:
                    continue
            self.ended.set()
            raise RuntimeError("late")

    screen, _ = await desk.show(Stubborn())
    asking = asyncio.create_task(desk.refused())
    await screen.asked.wait()
    desk.controller.abort()
    assert (await asking).code == "ASK_ABORTED"
    assert not screen.ended.is_set()
    screen.told.set()
    await screen.ended.wait()
    await asyncio.sleep(0)
    assert caplog.records == []


async def test_what_an_interface_says_to_a_withdrawn_question_is_no_answer(desk: Bench) -> None:
    class Quick(Screen):
        async def ask(self, request: QuestionRequest) -> Any:
            assert request.signal is not None
            closed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            request.signal.add_listener(lambda: closed.set_result([Answer("open")]))
            self.asked.set()
            return await closed

    screen, _ = await desk.show(Quick())
    asking = asyncio.create_task(desk.refused())
    await screen.asked.wait()
    desk.controller.abort()
    assert (await asking).code == "ASK_ABORTED"


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_an_abort_from_inside_the_interface_is_observed(
    desk: Bench, is_cancelled: bool
) -> None:
    def abort() -> Any:
        desk.controller.abort()
        if is_cancelled:
            _cancel_own_task()
        return [Answer("open")]

    await desk.show(Screen(abort))
    error = await desk.refused()
    assert (error.code, "withdrawn" in error.message) == ("ASK_ABORTED", True)


async def test_an_interface_may_wait_on_the_signal_it_is_given(
    desk: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    class Waiting(Screen):
        async def ask(self, request: QuestionRequest) -> Any:
            assert request.signal is not None
            self.asked.set()
            try:
                return await request.signal.run(self.told.wait())
            finally:
                self.ended.set()

    screen, plugin = await desk.show(Waiting())
    asking = asyncio.create_task(desk.refused())
    await screen.asked.wait()
    desk.controller.abort()
    assert (await asking).code == "ASK_ABORTED"
    await screen.ended.wait()
    await plugin.dispose()
    assert caplog.records == []


async def test_a_caller_that_is_cancelled_withdraws_the_question(desk: Bench) -> None:
    screen, _ = await desk.show()
    asking = asyncio.create_task(desk.ask())
    await screen.asked.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert screen.withdrawn == screen.shown
    await screen.ended.wait()


async def test_two_rounds_answered_in_reverse_keep_their_answers(desk: Bench) -> None:
    loop = asyncio.get_running_loop()
    answers: dict[str, asyncio.Future[Any]] = {"a": loop.create_future(), "b": loop.create_future()}

    class Two:
        async def ask(self, request: QuestionRequest) -> Any:
            return await answers[request.questions[0].id]

    await desk.show(Two())
    first = asyncio.create_task(desk.ask(Question("a", "A?")))
    second = asyncio.create_task(desk.ask(Question("b", "B?"), agent=desk.new_agent()))
    await asyncio.sleep(0)
    answers["b"].set_result([Answer("b", custom="2")])
    assert await second == (Answer("b", custom="2"),)
    answers["a"].set_result([Answer("a", custom="1")])
    assert await first == (Answer("a", custom="1"),)


async def test_nothing_is_left_on_the_callers_signal(desk: Bench) -> None:
    await desk.show(Screen([Answer("open")]))
    for _ in range(3):
        await desk.ask()
    assert not desk.controller.signal._listeners


# an interface that fails


def _refuse() -> Any:
    raise UserQuestionError("ASK_ABORTED", "the user closed the question")


def _missing_agent() -> Any:
    raise UserQuestionError("ASK_MISSING_AGENT", "this interface shows questions of agents only")


def _break() -> Any:
    raise KeyError("card")


def _abort_itself() -> Any:
    raise AbortedError


def _cancel_itself() -> Any:
    raise asyncio.CancelledError


def _cancel_own_task() -> Any:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


class _Trap(Sequence[Any]):
    """A list that cannot be read."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: Any) -> Any:
        raise KeyError("trap")


@pytest.mark.parametrize(
    ("failure", "code", "text"),
    [
        (_refuse, "ASK_ABORTED", "the user closed the question"),
        (_missing_agent, "ASK_MISSING_AGENT", "of agents only"),
        (_break, "PROVIDER_FAILED", "the user interface failed to put the question: 'card'"),
        (_Trap, "PROVIDER_FAILED", "the user interface failed to put the question: 'trap'"),
        (_cancel_itself, "ASK_ABORTED", "gave the question up"),
        (_cancel_own_task, "ASK_ABORTED", "gave the question up"),
        (_abort_itself, "ASK_ABORTED", "gave the question up"),
    ],
)
async def test_an_interface_that_fails_is_told_as_an_error(
    desk: Bench, failure: Any, code: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    await desk.show(Screen(failure))
    error = await desk.refused()
    assert error.code == code
    assert text in error.message
    assert caplog.records == []


# intents


async def test_a_plan_review_goes_through_unchanged(desk: Bench) -> None:
    screen, _ = await desk.show(Screen([Answer("plan", ("Approve",))]))
    assert await desk.ask(PLAN) == (Answer("plan", ("Approve",)),)
    assert screen.shown[0].questions == (PLAN,)


@pytest.mark.parametrize(
    "question",
    [
        Question("p", "?", detail="x", intent=QuestionIntent("plan-review", "Approve")),
        Question("p", "?", detail="x", intent=QuestionIntent("plan-review")),
        Question("p", "?", options=PLAN.options, intent=QuestionIntent("plan-review", "Approve")),
        Question(
            "p",
            "?",
            detail="",
            options=PLAN.options,
            intent=QuestionIntent("plan-review", "Approve"),
        ),
    ],
    ids=["no such option", "no approval", "no detail", "empty detail"],
)
async def test_a_plan_review_needs_its_option_and_its_plan(desk: Bench, question: Question) -> None:
    screen, _ = await desk.show()
    assert (await desk.refused(OPEN, question)).code == "BAD_INTENT"
    assert screen.shown == []


async def test_an_unknown_intent_is_only_a_hint(desk: Bench) -> None:
    await desk.show(Screen([Answer("x", custom="fine")]))
    question = Question("x", "?", intent=QuestionIntent("mood-ring", "no such option"))
    assert await desk.ask(question) == (Answer("x", custom="fine"),)


# questions


@pytest.mark.parametrize(
    "questions",
    [
        (Question("", "Which?"),),
        (Question("a", " "),),
        (Question("a", "A?"), Question("a", "B?")),
        (Question("a", "A?", options=(QuestionOption("x"), QuestionOption("x"))),),
        (Question("a", "A?", options=(QuestionOption(""),)),),
    ],
    ids=["no id", "no text", "one id twice", "one label twice", "no label"],
)
async def test_questions_whose_answers_could_not_be_told_apart_are_refused(
    desk: Bench, questions: tuple[Question, ...]
) -> None:
    screen, _ = await desk.show()
    assert (await desk.refused(*questions)).code == "BAD_QUESTION"
    assert screen.shown == []


def test_a_question_leaves_out_what_is_absent_on_the_wire() -> None:
    assert OPEN.wire() == {"id": "open", "question": "What is it called?"}
    assert SEVERAL.wire()["multiSelect"] is True
    assert COLOURS.wire()["options"] == [{"label": "red"}, {"label": "blue"}]
    assert QuestionOption("a", "b").wire() == {"label": "a", "description": "b"}
    assert PLAN.wire() == {
        "id": "plan",
        "question": "Go on?",
        "detail": "# The plan",
        "options": [{"label": "Approve"}, {"label": "Keep planning"}],
        "intent": {"kind": "plan-review", "approve": "Approve"},
    }
    assert Question("h", "?", header="Head").wire()["header"] == "Head"
