"""One question while it is open: offered to the answerers until something settles it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from dsh.base.signal import AbortController
from dsh.base.values import changed
from dsh.control.approval.events import APPROVAL_OUTCOMES, APPROVAL_REQUEST
from dsh.kernel import INTERNAL_STATUS, FiberState, scope_target
from dsh.state.session.events import SESSION_EVENT, TURN_END

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsh.base.signal import AbortSignal
    from dsh.control.approval.service import ApprovalOutcome, ApprovalRequest
    from dsh.kernel import Context, Effect, Fiber, StatusChanged
    from dsh.state.session.events import SessionEventAppended
    from dsh.state.session.session import Session

_log = logging.getLogger("dsh.approval")

_STILL_THERE = frozenset({FiberState.ACTIVE, FiberState.UNLOADING})
"""States in which a plugin's listeners are registered; an unloading one may yet answer."""


class Question:
    """One question; the first of all that can settle it counts.

    Args:
        ctx: Of the service, which owns what runs here.
        request: What is asked; its signal withdraws the question.
        grace_s: How long an answerer may go on after the question was withdrawn.
    """

    def __init__(self, ctx: Context, request: ApprovalRequest, grace_s: float) -> None:
        self.request = request
        self._ctx = ctx
        self._grace_s = grace_s
        self._outcome: ApprovalOutcome | None = None
        self._wake: asyncio.Future[None] | None = None
        self._reached: tuple[Fiber, ...] = ()

    async def decide(self) -> ApprovalOutcome:
        """Offer the question until it is settled; ``unavailable`` when nobody answers."""
        signal = self.request.signal
        withdraw = partial(self.settle, "cancelled")
        remove = signal.add_listener(withdraw, now=True) if signal is not None else None
        try:
            while self._outcome is None:
                await self._offer()
            return self._outcome
        finally:
            if remove is not None:
                remove()

    def settle(self, outcome: ApprovalOutcome) -> None:
        """Decide without the answerers; the question is withdrawn from them."""
        if self._outcome is None:
            self._outcome = outcome
        self._look()

    def left(self, fiber: Fiber) -> None:
        """Offer the question again if a plugin that is gone may have been holding it."""
        if fiber in self._reached:
            self._reached = ()
            self._look()

    def _look(self) -> None:
        if self._wake is not None:
            _wake_up(self._wake)

    async def _offer(self) -> None:
        """Put the question once, until it is answered, settled, or to be put again."""
        wake = self._wake = asyncio.get_running_loop().create_future()
        controller = AbortController()
        name = f"approval of {self.request.tool_name} {self.request.call_id or ''}"
        answer = self._ctx.spawn(self._ask(controller.signal), name)
        # Not `_look`: what was withdrawn ends later, while the question is put to others.
        answer.add_done_callback(lambda _: _wake_up(wake))
        try:
            await wake
        finally:
            answered = self._outcome is None and answer.done() and not answer.cancelled()
            if not answered:
                self._withdraw(controller, answer)
        if answered:
            self._outcome = answer.result()
        elif answer.cancelled():
            self.settle("cancelled")

    def _withdraw(self, controller: AbortController, answer: asyncio.Task[ApprovalOutcome]) -> None:
        """Tell the answerers that their answer is of no use any more, and end them if need be."""
        signal = self.request.signal
        controller.abort(None if signal is None else signal.reason)
        timer = asyncio.get_running_loop().call_later(self._grace_s, answer.cancel)
        answer.add_done_callback(lambda _: timer.cancel())

    async def _ask(self, signal: AbortSignal) -> ApprovalOutcome:
        """Ask the answerers; whatever goes wrong with them is ``unavailable``."""
        if self._outcome is not None:
            return self._outcome
        request = changed(self.request, signal=signal)
        carrier = scope_target(None, request.agent)
        # In one step with the dispatch, so that it says who may hold the question.
        self._reached = self._ctx.listening(APPROVAL_REQUEST, carrier)
        try:
            outcome = await self._ctx.waterfall(
                APPROVAL_REQUEST, request, lambda: "unavailable", carrier
            )
        except Exception:
            level = logging.DEBUG if signal.aborted else logging.ERROR
            _log.log(
                level, "an answerer of approval for %r failed", request.tool_name, exc_info=True
            )
            return "unavailable"
        if not isinstance(outcome, str) or outcome not in APPROVAL_OUTCOMES:
            _log.warning("an answerer gave the unknown approval outcome %r", outcome)
            return "unavailable"
        return outcome


class OpenQuestions:
    """The questions of one service that are open, and what from outside settles them.

    Args:
        ctx: The service's.
        grace_s: See `Question`.
        is_never: Whether a session's policy is ``never`` now.
    """

    def __init__(self, ctx: Context, grace_s: float, is_never: Callable[[Session], bool]) -> None:
        self._ctx = ctx
        self._grace_s = grace_s
        self._is_never = is_never
        self._open: dict[Question, None] = {}
        self._following: tuple[Effect, ...] = ()

    async def put(self, request: ApprovalRequest) -> ApprovalOutcome:
        """Ask the answerers and return what comes of it."""
        question = Question(self._ctx, request, self._grace_s)
        with self._watched(question):
            return await question.decide()

    @contextmanager
    def _watched(self, question: Question) -> Iterator[None]:
        # Every event of every session passes there, so nobody listens while nothing is asked.
        if not self._open:
            on = self._ctx.on
            self._following = (
                on(SESSION_EVENT, self._appended, everywhere=True),
                on(INTERNAL_STATUS, self._status, everywhere=True),
            )
        self._open[question] = None
        try:
            yield
        finally:
            del self._open[question]
            if not self._open:
                for effect in self._following:
                    effect.dispose()

    def _appended(self, appended: SessionEventAppended) -> None:
        session = appended.session
        ended = appended.event["type"] == TURN_END.name
        for question in self._open:
            if question.request.agent.session is not session:
                continue
            if ended and not question.request.resumed:
                question.settle("cancelled")
            elif self._is_never(session):
                question.settle("rejected")

    def _status(self, change: StatusChanged) -> None:
        if change.fiber.state not in _STILL_THERE:
            for question in self._open:
                question.left(change.fiber)


def _wake_up(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
