"""The slash commands of a process: row ``commands``."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from inspect import isawaitable
from typing import TYPE_CHECKING, cast

from dsh.base.errors import message_of
from dsh.base.signal import AbortController, AbortSignal
from dsh.base.values import changed
from dsh.control.commands.events import (
    COMMAND_DONE,
    COMMAND_RUN,
    COMMANDS_CHANGE,
    CommandDone,
    CommandRun,
    CommandsChanged,
)
from dsh.control.commands.registry import CommandLayers, Registered
from dsh.control.commands.service import (
    Command,
    CommandDescriptor,
    CommandExecution,
    CommandFailure,
    CommandInterrupted,
    CommandInvocation,
    CommandResult,
    CommandRuntime,
    CommandSuccess,
    InvalidCommandResult,
    parse_command,
)
from dsh.kernel import InactiveEffect
from dsh.state.session.service import SessionStore

if TYPE_CHECKING:
    from dsh.capability.attachments.service import EncodedImage
    from dsh.execution.agent.service import Agent
    from dsh.kernel import Context, Effect
    from dsh.model.messages import ImageBlock
    from dsh.state.session.session import Session

__all__ = ["LayeredCommands", "plugin"]

_log = logging.getLogger("dsh.commands")


class LayeredCommands(CommandRuntime):
    """The registry by scope, and what runs its commands."""

    inject = (SessionStore,)

    def __init__(self, ctx: Context, config: object = None) -> None:
        super().__init__(ctx, config)
        self._layers = CommandLayers(self._announce)
        # Ids must not repeat in a log that another instance wrote before.
        self._token = os.urandom(4).hex()
        self._count = 0

    def start(self) -> None:
        """Declare the session events."""
        sessions = self.ctx.require(SessionStore)
        for event_type in (COMMAND_RUN, COMMAND_DONE):
            sessions.declare(event_type)

    def register(self, command: Command) -> Effect:
        """See `CommandRuntime.register`."""
        return self._layers.register(self.caller, command)

    def all(self, agent: Agent) -> tuple[CommandDescriptor, ...]:
        """See `CommandRuntime.all`."""
        seen = self._layers.visible(agent)
        return tuple(_descriptor(seen[name].command) for name in sorted(seen))

    def find(self, agent: Agent, name: str) -> Command | None:
        """See `CommandRuntime.find`."""
        entry = self._layers.visible(agent).get(name)
        return None if entry is None else entry.command

    async def execute(
        self,
        agent: Agent,
        line: str,
        images: Sequence[EncodedImage] = (),
        signal: AbortSignal | None = None,
    ) -> CommandExecution | None:
        """See `CommandRuntime.execute`."""
        parsed = parse_command(line)
        entry = None if parsed is None else self._layers.visible(agent).get(parsed.name)
        if parsed is None or entry is None:
            return None
        signal = signal if signal is not None else AbortController().signal
        signal.throw_if_aborted()
        command_id = self._next_id()
        agent.session.append(COMMAND_RUN, _run_data(command_id, entry.command, parsed.raw_input))
        invocation = CommandInvocation(command_id, agent, parsed.raw_input, (), signal)
        try:
            given = await self._run(entry, invocation, images)
            result = _checked(parsed.name, given, agent.session)
        except BaseException as error:
            _log_failure(agent.session, command_id, error)
            raise
        agent.session.append(COMMAND_DONE, _done_data(command_id, result))
        return CommandExecution(command_id, result)

    def _announce(self) -> None:
        self.ctx.emit(COMMANDS_CHANGE, CommandsChanged())

    def _next_id(self) -> str:
        self._count += 1
        return f"cmd-{self._token}-{self._count}"

    async def _run(
        self, entry: Registered, invocation: CommandInvocation, images: Sequence[EncodedImage]
    ) -> object:
        """Do the work in a task of its own, and wait for it no longer than the signal says."""
        signal, stop = invocation.signal, self.ctx.stop
        work = self._outcome(entry, invocation, images)
        task = self.ctx.spawn(work, f"command {invocation.command_id}")
        try:
            if not await signal.until(task):
                raise signal.error()
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.cancelled():
            signal.throw_if_aborted()
            why = "the commands plugin was unloaded" if stop.aborted else "it was cancelled"
            raise CommandInterrupted(entry.command.name, why)
        given, raised = task.result()
        if raised is not None:
            raise raised
        return given

    async def _outcome(
        self, entry: Registered, invocation: CommandInvocation, images: Sequence[EncodedImage]
    ) -> tuple[object, BaseException | None]:
        """Use a command; what is raised is returned as the second, for whoever still waits."""
        name, signal = entry.command.name, invocation.signal
        given: object = None
        raised: Exception | None = None
        with ExitStack() as held:
            try:
                held.enter_context(entry.ctx.fiber.lease(f"command /{name}"))
            except InactiveEffect:
                return CommandFailure(
                    f"/{name} is being unloaded; enter it again in a moment"
                ), None
            try:
                given = await self._use(entry.command, invocation, images)
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                raised = CommandInterrupted(name, "something it waited for was cancelled")
                raised.__cause__ = error
            except Exception as error:
                raised = error
        # An abort that came before the end counts, whatever the handler made of it.
        if signal.aborted:
            _log.debug("command /%s ended after it was aborted", name, exc_info=raised)
            return None, signal.error()
        return given, raised

    async def _use(
        self, command: Command, invocation: CommandInvocation, images: Sequence[EncodedImage]
    ) -> object:
        """Call the handler with the pictures that came along, unless they cannot be taken."""
        if images:
            admitted = await self._admit(command, images, invocation.signal)
            if isinstance(admitted, CommandFailure):
                return admitted
            invocation = changed(invocation, attachments=admitted)
        # The signal may abort between the log's entry and this task's first step, too.
        if invocation.signal.aborted:
            return None
        given = command.handler(invocation)
        return await given if isawaitable(given) else given

    async def _admit(
        self, command: Command, images: Sequence[EncodedImage], signal: AbortSignal
    ) -> CommandFailure | tuple[ImageBlock, ...]:
        """Store pictures, or say what the person can do about those that cannot be taken."""
        if command.input is None or not command.input.images:
            return CommandFailure(f"/{command.name} takes no images; send it without")
        from dsh.capability.attachments.service import (
            AttachmentStore,
            admit_encoded_images,
            is_image_admission_error,
        )

        store = self.ctx.get(AttachmentStore)
        if store is None:
            return CommandFailure(
                f"/{command.name} cannot take images: no attachment store is mounted"
            )
        try:
            refs = await signal.run(admit_encoded_images(store, images))
        except Exception as error:
            if not is_image_admission_error(error):
                raise
            return CommandFailure(message_of(error))
        return tuple({"type": "image", "attachment": ref} for ref in refs)


plugin = LayeredCommands


def _checked(name: str, given: object, session: Session) -> CommandResult:
    """Return a handler's result as a value of ours.

    Raises:
        InvalidCommandResult: it is none.
    """
    from dsh.control.commands.log import names_a_cause

    if isinstance(given, CommandFailure):
        if not isinstance(given.text, str):
            raise InvalidCommandResult(name, f"text must be a string, got {given.text!r}")
        return CommandFailure(given.text)
    if not isinstance(given, CommandSuccess):
        raise InvalidCommandResult(
            name, f"expected CommandSuccess or CommandFailure, got {type(given).__name__}"
        )
    text, seq = given.text, given.source_event_seq
    if text is not None and not isinstance(text, str):
        raise InvalidCommandResult(name, f"text must be a string or None, got {text!r}")
    if seq is not None and not names_a_cause(session.events, seq):
        raise InvalidCommandResult(
            name,
            f"source_event_seq must be the seq of an event of session {session.id!r} that is not "
            f"a command's own, got {seq!r}",
        )
    return CommandSuccess(text, seq)


def _descriptor(command: Command) -> CommandDescriptor:
    return CommandDescriptor(command.name, command.description, command.input)


def _run_data(command_id: str, command: Command, raw_input: str) -> CommandRun:
    data = CommandRun(commandId=command_id, name=command.name, source={"kind": "user"})
    if command.record_input:
        data["args"] = raw_input
    return data


def _done_data(command_id: str, result: CommandResult) -> CommandDone:
    return cast("CommandDone", {"commandId": command_id, **result.wire()})


def _log_failure(session: Session, command_id: str, error: BaseException) -> None:
    """Settle a command that raised; a log that refuses must not hide the error itself."""
    cancelled = isinstance(error, asyncio.CancelledError)
    text = "the command was cancelled" if cancelled else message_of(error)
    try:
        session.append(COMMAND_DONE, CommandDone(commandId=command_id, kind="error", text=text))
    except Exception:
        _log.warning("the end of command %s could not be logged", command_id, exc_info=True)
