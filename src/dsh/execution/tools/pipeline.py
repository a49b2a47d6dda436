"""The way of every call: create, prepare, dispatch, post, finish.

Failures are results. What a stage raises ends in the failure of that call; only cancellation of
the surrounding task, and what ends the process, goes on as an exception.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from dsh.base.json import NotLossless, snapshot
from dsh.base.signal import AbortSignal
from dsh.base.text import nearest
from dsh.base.values import changed
from dsh.execution.tools.approval import approve
from dsh.execution.tools.arguments import unusable_arguments
from dsh.execution.tools.bodies import Bodies, BodyStopped
from dsh.execution.tools.call import Call
from dsh.execution.tools.code.errors import CollapsedTool
from dsh.execution.tools.contexts import context_of
from dsh.execution.tools.events import (
    KEEP,
    TOOLS_EXECUTE,
    TOOLS_POST_EXECUTE,
    TOOLS_PRE_EXECUTE,
    TOOLS_RESULT,
    Accept,
    Allow,
    Ask,
    Block,
    Deny,
    PostToolDecision,
    PreToolDecision,
    ToolDispatch,
    ToolPostExecute,
    ToolSettled,
)
from dsh.execution.tools.holds import Holds
from dsh.execution.tools.registry import ToolLayers
from dsh.execution.tools.results import (
    blocked,
    content_of,
    failure,
    failure_of,
    materialize,
    success,
)
from dsh.execution.tools.service import (
    ExecutionToken,
    ToolDefinition,
    ToolError,
    ToolExecution,
    ToolFailure,
    ToolInput,
    ToolNotFound,
    ToolResult,
    ToolRunContext,
    ToolSuccess,
    ToolUnloaded,
)
from dsh.kernel import InactiveEffect, InactiveService, scope_target
from dsh.model.messages import UserMessage

if TYPE_CHECKING:
    from dsh.kernel import Context

NOBODY = ExecutionToken()
"""Scope of calls without an agent: listeners of no agent hear them, untagged ones do."""

_ALLOW = Allow()
_ACCEPT = Accept()


class Pipeline:
    """Runs calls against the layers of one runtime."""

    def __init__(
        self,
        ctx: Context,
        layers: ToolLayers,
        bodies: Bodies,
        holds: Holds,
        *,
        is_collapsed: Callable[[ToolInput], bool] = lambda _: False,
    ) -> None:
        self._ctx = ctx
        self._is_collapsed = is_collapsed
        self._layers = layers
        self._bodies = bodies
        self._holds = holds

    async def prepare(self, input: ToolInput) -> Call:
        """See `ToolRuntime.prepare`."""
        call = self._create(input)
        if call.result is not None:
            return call
        if input.signal.aborted:
            call.settle(call.cancelled(), skip_post=True)
            return call
        try:
            refusal = await self._refusal(call)
        except asyncio.CancelledError as error:
            if _from_outside():
                self.finish(call, call.cancelled())
                raise
            call.settle(failure_of(error), skip_post=True)
        except Exception as error:
            call.settle(failure_of(error), skip_post=True)
        else:
            if refusal is not None:
                call.settle(refusal)
        return call

    def _create(self, input: ToolInput) -> Call:
        problem: NotLossless | None = None
        arguments = None
        try:
            arguments = snapshot(input.arguments)
        except NotLossless as error:
            problem = error
        execution = ToolExecution(
            call_id=input.call_id,
            name=input.name,
            arguments=arguments,
            signal=input.signal,
            agent=input.agent,
            root_call_id=input.call_id if input.root_call_id is None else input.root_call_id,
            parent=input.parent,
            token=ExecutionToken(),
        )
        definition = self._layers.get(input.name, input.agent)
        scope = NOBODY if input.agent is None else input.agent
        call = Call(execution, definition, scope_target(None, scope))
        if problem is not None:
            call.settle(failure_of(problem), skip_post=True)
        elif self._is_collapsed(input):
            aborted = input.signal.aborted
            refusal = call.cancelled() if aborted else failure_of(CollapsedTool(input.name))
            call.settle(refusal, skip_post=True)
        return call

    async def _refusal(self, call: Call) -> ToolFailure | None:
        """Why a call may not be dispatched, if so; parses its arguments otherwise."""
        execution = call.execution
        decision: PreToolDecision = await self._ctx.waterfall(
            TOOLS_PRE_EXECUTE, execution, lambda: _ALLOW, call.carrier
        )
        if isinstance(decision, Deny):
            return failure(_reason(decision.reason))
        if isinstance(decision, Ask):
            if (unfit := self._unfit(call)) is not None:
                return unfit
            if (denial := await approve(self._ctx, execution, decision.reason)) is not None:
                return denial
        elif not isinstance(decision, Allow):
            raise TypeError(
                "a tools/pre-execute listener must return Allow, Deny or Ask, "
                f"got {type(decision).__name__}"
            )
        for guard in self._layers.guards(execution.agent):
            if (reason := guard(execution)) is not None:
                return failure(_reason(reason))
        return call.cancelled() if execution.signal.aborted else self._unfit(call)

    def _unfit(self, call: Call) -> ToolFailure | None:
        """Check and parse the arguments, once for each definition that the call meets.

        An unknown tool fits anything here: the dispatch reports it, after the policies.
        """
        execution = call.execution
        definition = self._layers.get(execution.name, execution.agent)
        if definition is None or definition is call.definition:
            return None
        unusable = unusable_arguments(execution.name, execution.arguments, definition.parameters)
        if unusable is not None:
            return failure_of(unusable)
        call.parsed = execution.arguments
        if definition.parse_arguments is not None:
            try:
                call.parsed = definition.parse_arguments(execution.arguments)
            except Exception as error:
                return failure_of(error)
        call.definition = definition
        return None

    async def dispatch(self, call: Call) -> ToolResult:
        """See `ToolRuntime.dispatch`."""
        if call.dispatched or call.result is not None:
            raise RuntimeError(f"call {call.execution.call_id!r} cannot be dispatched (again)")
        call.dispatched = True
        request = ToolDispatch(call.execution, call.execution.signal)
        try:
            result = await self._ctx.waterfall(
                TOOLS_EXECUTE, request, partial(self._body, call, request), call.carrier
            )
            result = self._accountable(call, result)
            # A value of the body itself that is here was there before any abort.
            call.in_time = call.made(result) or not call.execution.signal.aborted
        except asyncio.CancelledError as error:
            if _from_outside():
                call.settle(call.cancelled(tuple(call.deferred)), skip_post=True)
                raise
            result = failure_of(error)
            call.skip_post = True
        except Exception as error:
            result = failure_of(error)
            call.skip_post = True
        return call.settle(call.unless_cancelled(_completed(call, result)))

    async def _body(self, call: Call, request: ToolDispatch) -> ToolResult:
        caller = call.execution.signal
        if request.signal is caller:
            return await self._run(call, caller)
        fused, unlink = AbortSignal.any_of(caller, request.signal)
        try:
            return await self._run(call, fused)
        finally:
            unlink()

    async def _run(self, call: Call, signal: AbortSignal) -> ToolResult:
        """Run the body once; whatever it raises is a result here."""
        execution = call.execution
        if signal.aborted:
            return call.cancelled()
        definition = self._layers.get(execution.name, execution.agent)
        if definition is None:
            return failure_of(self._not_found(execution))
        if (unfit := self._unfit(call)) is not None:
            return unfit
        call.invoked = True
        run = _run_context(call, signal)
        try:
            value = await self._bodies.run(definition, call.parsed, run)
            nested = execution.parent is not None
            result: ToolResult = success(definition, execution.arguments, value, nested=nested)
        except BodyStopped:
            return call.cancelled()
        except Exception as error:
            return failure_of(self._explained(execution, definition, error))
        call.canonical.append(result)
        return result

    def _accountable(self, call: Call, result: object) -> ToolResult:
        """Hold what a wrapper returned to the contract of the tool that is visible now."""
        if call.made(result):
            return result  # type: ignore[return-value]  # it is one of our own results
        if isinstance(result, ToolFailure):
            return _held_to_its_form(result, call.execution.name)
        if not isinstance(result, ToolSuccess):
            raise TypeError(
                f"a tools/execute listener must return a tool result, got {type(result).__name__}"
            )
        made = self._succeed(call, result.value)
        if made.is_error:
            return made
        return changed(
            made,
            additional_contexts=_contexts(result.additional_contexts),
            concludes_turn=result.concludes_turn,
        )

    def _succeed(self, call: Call, value: object) -> ToolResult:
        execution = call.execution
        definition: ToolDefinition | None = self._layers.get(execution.name, execution.agent)
        if definition is None:
            return failure_of(self._not_found(execution))
        nested = execution.parent is not None
        return success(definition, execution.arguments, value, nested=nested)

    def _explained(
        self, execution: ToolExecution, definition: ToolDefinition, error: Exception
    ) -> Exception:
        """Put what a body met whose plugin was unloaded in words that help the model."""
        of_plugin = isinstance(error, InactiveEffect | InactiveService)
        if of_plugin and self._layers.get(execution.name, execution.agent) is not definition:
            return ToolUnloaded(execution.name, cause=error)
        return error

    def _not_found(self, execution: ToolExecution) -> ToolNotFound | ToolUnloaded:
        if self._holds.is_promised(execution.name, execution.agent):
            return ToolUnloaded(execution.name)
        visible = list(self._layers.visible(execution.agent))
        return ToolNotFound(execution.name, nearest=nearest(execution.name[:200], visible))

    async def finalize(self, call: Call, result: ToolResult) -> ToolResult:
        """See `ToolRuntime.finalize`."""
        call.judge()
        if not call.skip_post:
            try:
                result = await self._judged(call, result)
            except asyncio.CancelledError as error:
                if _from_outside():
                    # Nobody may see what a policy was still judging.
                    contexts = result.additional_contexts
                    self.finish(call, result if result.is_error else call.cancelled(contexts))
                    raise
                result = _failed(error, result)
            except Exception as error:
                result = _failed(error, result)
        return self.finish(call, result)

    async def _judged(self, call: Call, result: ToolResult) -> ToolResult:
        decision: PostToolDecision = await self._ctx.waterfall(
            TOOLS_POST_EXECUTE,
            ToolPostExecute(call.execution, result),
            lambda: _ACCEPT,
            call.carrier,
        )
        if decision is _ACCEPT:
            return call.unless_cancelled(result)
        name = call.execution.name
        if isinstance(decision, Block):
            feedback = content_of(decision.feedback, name)
            return blocked(feedback, _contexts(decision.additional_contexts))
        if not isinstance(decision, Accept):
            raise TypeError(
                "a tools/post-execute listener must return Accept or Block, "
                f"got {type(decision).__name__}"
            )
        contexts = (*result.additional_contexts, *_contexts(decision.additional_contexts))
        decided = self._replaced(call, result, decision)
        if contexts != decided.additional_contexts:
            decided = changed(decided, additional_contexts=contexts)
        return call.unless_cancelled(decided)

    def _replaced(self, call: Call, result: ToolResult, decision: Accept) -> ToolResult:
        if decision.content is not KEEP and decision.value is not KEEP:
            raise ValueError("a post-execute decision may replace content or value, not both")
        if decision.content is not KEEP:
            content = content_of(decision.content, call.execution.name)  # type: ignore[arg-type]
            return changed(result, content=content)
        if decision.value is KEEP:
            return result
        if result.is_error:
            raise ValueError("a post-execute decision cannot give a failed call a value")
        made = self._succeed(call, decision.value)
        return made if made.is_error else changed(made, concludes_turn=result.concludes_turn)

    def finish(self, call: Call, result: ToolResult) -> ToolResult:
        """See `ToolRuntime.finish`."""
        if call.finished:
            raise RuntimeError(f"call {call.execution.call_id!r} was finished already")
        call.finished = True
        name = call.execution.name
        try:
            result = materialize(result, name)
            if call.finalizer is not None:
                content = call.finalizer(call.execution, result)
                if content is not None:
                    result = changed(result, content=content_of(content, name))
        except Exception as error:
            result = _failed(error, result)
        call.settle(result)
        try:
            self._ctx.emit(TOOLS_RESULT, ToolSettled(call.execution, result), call.carrier)
        except (Exception, asyncio.CancelledError) as error:
            self._ctx.report(error, label=f"emit {TOOLS_RESULT.name}")
        return result


def _run_context(call: Call, signal: AbortSignal) -> ToolRunContext:
    execution = call.execution
    call.conclusions = []
    return ToolRunContext(
        call_id=execution.call_id,
        name=execution.name,
        arguments=execution.arguments,
        signal=signal,
        agent=execution.agent,
        root_call_id=execution.root_call_id,
        parent=execution.parent,
        token=execution.token,
        _deferred=call.deferred,
        _conclusions=call.conclusions,
    )


def _completed(call: Call, result: ToolResult) -> ToolResult:
    """Add what the body said beside its value: messages first, then the end of the turn."""
    if call.deferred:
        contexts = (*call.deferred, *result.additional_contexts)
        result = changed(result, additional_contexts=contexts)
    if call.conclusions and isinstance(result, ToolSuccess) and not result.concludes_turn:
        result = changed(result, concludes_turn=True)
    return result


def _contexts(messages: Iterable[UserMessage]) -> tuple[UserMessage, ...]:
    return tuple(context_of(message) for message in messages)


def _held_to_its_form(result: ToolFailure, tool: str) -> ToolResult:
    """Make sure that a failure which a wrapper made can be logged."""
    error = result.error
    if not (isinstance(error, ToolError) and isinstance(error.message, str)):
        raise TypeError(f"a tool failure needs a ToolError with a text, got {error!r}")
    contexts = _contexts(result.additional_contexts)
    return materialize(changed(result, additional_contexts=contexts), tool)


def _reason(reason: object) -> str:
    if not isinstance(reason, str):
        kind = type(reason).__name__
        raise TypeError(f"a tool call is denied with a reason that is text, got {kind}")
    return reason


def _failed(error: BaseException, result: ToolResult) -> ToolFailure:
    return changed(failure_of(error), additional_contexts=result.additional_contexts)


def _from_outside() -> bool:
    """Whether the surrounding task itself is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
