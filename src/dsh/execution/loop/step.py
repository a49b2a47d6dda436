"""One step: ask the model, log its reply as it streams, run the tools it asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, aclosing
from dataclasses import field
from typing import TYPE_CHECKING, Any

from dsh.base.values import record, value
from dsh.execution.agent.dispatch import assemble_context_for
from dsh.execution.agent.events import AGENT_REQUEST_ERROR, AgentRequestError, Retry
from dsh.execution.agent.service import DISPOSED_CANCEL
from dsh.execution.loop.phase import is_outer_cancel
from dsh.execution.loop.scheduler import ToolCalls
from dsh.execution.prompt.service import render_prompt
from dsh.model.assembler import BlockAssembler
from dsh.model.chunks import failure_of
from dsh.model.failures import LlmError, is_valid_failure
from dsh.model.messages import create_assistant_message, tool_calls_of
from dsh.state.session.events import ASSISTANT_CHUNK, ASSISTANT_MESSAGE

if TYPE_CHECKING:
    from dsh.execution.loop.agent import LoopAgent
    from dsh.execution.loop.phase import Running
    from dsh.execution.loop.request import LoopRequest
    from dsh.execution.prompt.service import PromptAssembly
    from dsh.model.chunks import FinishReason
    from dsh.model.messages import AssistantMessage
    from dsh.state.session.events import AssistantChunkData, AssistantMessageData


_ASSEMBLIES = 3
"""How often a step's prompt is made, at most, when tools of the one before have gone."""


@value
class StepOutcome:
    """What a finished step means for its turn."""

    truncated: bool = False
    """The reply hit its token limit."""
    owes_request: bool = False
    """The model has not seen the results of its tools."""


@record
class _Reply:
    """One attempt's chunks: assembled, and where they are in the log."""

    request: LoopRequest
    assembler: BlockAssembler = field(default_factory=BlockAssembler)
    seqs: list[int] = field(default_factory=list)
    finished: bool = False

    @property
    def source(self) -> dict[str, str]:
        options = self.request.options
        return {"kind": "model", "provider": options.provider, "model": options.model}


class Step:
    """The model call and the tools of one step that is open in the log."""

    def __init__(self, agent: LoopAgent, phase: Running) -> None:
        self._agent = agent
        self._phase = phase
        self._signal = phase.abort.signal
        self._session = agent.session

    async def run(self, assembly: PromptAssembly) -> StepOutcome:
        """Carry the step through.

        Raises:
            LlmError: the provider failed and nobody recovered.
            AbortedError: the turn was cancelled; what was streamed and done is logged.
        """
        self._signal.throw_if_aborted()
        # The tools that the model is told of are there until what it asks of them has settled.
        with ExitStack() as tools:
            reply = await self._attempt(assembly, tools)
            while reply is None:
                reply = await self._attempt(assembly, tools)
            message = reply.assembler.message(reply.source)
            self._log_message(message, reply)
            truncated = reply.assembler.finish["kind"] == "max-tokens"
            calls = tool_calls_of(message)
            if not calls:
                return StepOutcome(truncated)
            concluded = await ToolCalls(self._agent, self._phase, calls).run()
        return StepOutcome(truncated, owes_request=not concluded)

    async def _attempt(self, assembly: PromptAssembly, tools: ExitStack) -> _Reply | None:
        """Ask the model once; ``None`` asks for another attempt.

        ``tools`` holds the tools of the request after a reply, and nothing after a failure.
        """
        with ExitStack() as adapter:
            request = await self._prepare(assembly, adapter, tools)
            reply = _Reply(request)
            await self._consume(reply)
        failure = failure_of(reply.assembler.finish)
        if failure is None:
            return reply
        tools.close()
        self._signal.throw_if_aborted()
        error = _error_of(reply.assembler.finish)
        agent, phase = self._agent, self._phase
        question = AgentRequestError(
            agent=agent,
            turn=phase.turn,
            step=phase.step,
            provider=request.options.provider,
            failure=error.failure,
            retry_policy=request.retry_policy,
            signal=self._signal,
        )
        with agent.patience(self._signal):
            answer = await agent.events.waterfall(AGENT_REQUEST_ERROR, question, lambda: None)
        self._signal.throw_if_aborted()
        if isinstance(answer, Retry):
            return None
        raise error

    async def _prepare(
        self, assembly: PromptAssembly, adapter: ExitStack, tools: ExitStack
    ) -> LoopRequest:
        """Build a request whose adapter and tools are held.

        The adapter first: whoever swaps it may be waiting for tools to be let go. What went while
        it was waited for is waited for in turn, with nothing held, and the prompt made anew.
        """
        agent, signal = self._agent, self._signal
        for rest in reversed(range(_ASSEMBLIES)):
            route = await agent.requests.route(self._phase, adapter)
            lost = tools.enter_context(self._hold(assembly))
            if not lost or not rest:
                break
            tools.close()
            adapter.close()
            with agent.patience(signal):
                await agent.services.tools.settle(scope=agent, signal=signal)
                assembly = await agent.services.system_prompt.assemble(
                    assemble_context_for(agent, signal)
                )
            signal.throw_if_aborted()
        return agent.requests.build(self._phase, route, assembly, render_prompt(assembly))

    def _hold(self, assembly: PromptAssembly) -> AbstractContextManager[tuple[str, ...]]:
        agent = self._agent
        names = [schema["name"] for schema in assembly.tools]
        return agent.services.tools.hold(names, scope=agent, owner=agent.services.ctx.fiber)

    async def _consume(self, reply: _Reply) -> None:
        try:
            with self._agent.patience(self._signal):
                await self._log_chunks(reply)
        except BaseException as error:
            if is_outer_cancel(error):
                self._phase.abort.abort(DISPOSED_CANCEL)
            if not self._signal.aborted:
                raise
            if reply.finished and not is_outer_cancel(error):
                return  # the reply was complete before the abort; it is not thrown away
            if failure_of(reply.assembler.finish) is None:
                self._log_prefix(reply)
            if is_outer_cancel(error) or not isinstance(error, Exception):
                raise
            raise self._signal.error() from error

    async def _log_chunks(self, reply: _Reply) -> None:
        signal, append = self._signal, self._session.append
        push, note = reply.assembler.push, reply.seqs.append
        turn, step = self._phase.turn, self._phase.step
        task = asyncio.current_task()
        assert task is not None  # nothing can be awaited without
        # Closed in this task, so that the provider ends here and not whenever it is collected.
        async with aclosing(self._agent.requests.stream(reply.request)) as chunks:
            async for chunk in chunks:
                if signal.aborted:
                    signal.throw_if_aborted()
                if task.cancelling():  # the provider swallowed it
                    raise asyncio.CancelledError
                data: AssistantChunkData = {"turn": turn, "step": step, "chunk": chunk}
                event = append(ASSISTANT_CHUNK, data)
                note(event["seq"])
                push(chunk)
                if chunk["type"] == "finish":
                    reply.finished = failure_of(chunk["reason"]) is None

    def _log_prefix(self, reply: _Reply) -> None:
        blocks = reply.assembler.interrupted_blocks()
        if blocks:
            options = reply.request.options
            message = create_assistant_message(blocks, options.provider, options.model)
            self._log_message(message, reply, interrupted=True)

    def _log_message(
        self, message: AssistantMessage, reply: _Reply, *, interrupted: bool = False
    ) -> None:
        data: AssistantMessageData = {
            "turn": self._phase.turn,
            "step": self._phase.step,
            "message": message,
        }
        if reply.assembler.usage is not None:
            data["usage"] = reply.assembler.usage
        if interrupted:
            data["interrupted"] = True
        self._session.append(
            ASSISTANT_MESSAGE,
            data,
            surface_op="append",
            source_event_seqs=reply.seqs,
        )


def _error_of(finish: FinishReason) -> LlmError:
    failure: Mapping[str, Any] = finish.get("failure") or {}  # type: ignore[assignment]  # a union member
    aborted = finish["kind"] == "aborted"
    if is_valid_failure(failure):
        return LlmError.of(failure)  # type: ignore[arg-type]  # checked
    message = failure.get("message")
    return LlmError(
        message if isinstance(message, str) and message else "the model call failed",
        code="ABORTED" if aborted else "UNKNOWN",
    )
