"""The scripted provider: answers chat-completions requests as a script says."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from dsh.base.values import changed
from dsh.model.rehearsal import Fault, Line, Play, ScriptError
from dsh.testing.provider.dialect import Dialect, seen_of, whole_reply
from dsh.testing.provider.http import Answer, BadRequest, Request, read_request

__all__ = ["ScriptedServer"]

_PATHS = ("/chat/completions", "/v1/chat/completions")
_MODEL_PATHS = ("/models", "/v1/models")
_SESSION_HEADER = "x-deepseek-harness-session-id"
_MAX_LINE = 1 << 20
_HIDDEN = "[redacted]"


class ScriptedServer:
    """Serves one play on loopback.

    Args:
        play: Gives the replies.
        log: Gets one JSON line an event; ``None`` for no log.
        bodies: Folder that gets the bytes of each request body, ``000001.json`` first.

    Attributes:
        finished: Set once every reply of the script was given.
        mismatches: How many requests were not what the script expects.
    """

    def __init__(self, play: Play, log: IO[str] | None = None, bodies: Path | None = None) -> None:
        self._play = play
        self._log = log
        self._bodies = bodies
        self._count = 0
        self._connections = 0
        self.finished = asyncio.Event()
        self.mismatches = 0

    async def start(self, port: int = 0) -> asyncio.Server:
        """Listen on 127.0.0.1; port 0 takes a free one."""
        return await asyncio.start_server(self._serve, "127.0.0.1", port, limit=_MAX_LINE)

    def note(self, event: str, **facts: Any) -> None:
        """Write a line to the log."""
        if self._log is not None:
            line = {"event": event, "time": time.time(), **facts}
            self._log.write(json.dumps(line) + "\n")
            self._log.flush()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        connection = self._connections
        try:
            while (request := await read_request(reader)) is not None:
                self._count += 1
                turn = _Turn(self, self._count, connection, request, reader, Answer(writer))
                if not await turn.answer() or not request.keeps_alive:
                    break
        except (ConnectionError, asyncio.IncompleteReadError, BadRequest, ValueError) as error:
            self.note("connection-lost", number=self._count, error=repr(error))
        except asyncio.CancelledError:
            pass  # the server stops while a client is connected
        finally:
            writer.close()

    def keep_body(self, number: int, body: bytes) -> None:
        """Write a body to the folder of bodies."""
        if self._bodies is not None:
            (self._bodies / f"{number:06}.json").write_bytes(body)

    @property
    def play(self) -> Play:
        """What is played."""
        return self._play


class _Turn:
    """One request and its answer."""

    def __init__(
        self,
        server: ScriptedServer,
        number: int,
        connection: int,
        request: Request,
        reader: asyncio.StreamReader,
        answer: Answer,
    ) -> None:
        self._server = server
        self._number = number
        self._connection = connection
        self._request = request
        self._reader = reader
        self._answer = answer

    async def answer(self) -> bool:
        """Answer; say whether the connection is still good."""
        request = self._request
        body = self._read_body()
        self._note_request(body)
        if request.method == "GET" and request.path in _MODEL_PATHS:
            models = self._server.play.script.models or ("rehearsal",)
            data = [{"id": model, "object": "model", "owned_by": "script"} for model in models]
            await self._answer.json(200, {"object": "list", "data": data})
            return True
        if request.path not in _PATHS:
            await self._refuse(404, f"no such path: {request.path}", "not_found")
            return True
        if request.method != "POST":
            await self._refuse(405, f"{request.path} takes POST only", "method_not_allowed")
            return True
        key = self._server.play.script.api_key
        if key is not None and request.headers.get("authorization") != f"Bearer {key}":
            await self._refuse(401, "authentication failed: unknown key", "authentication_error")
            return True
        if body is None:
            await self._refuse(400, "the body is not a JSON object", "invalid_request_error")
            return True
        models = self._server.play.script.models
        if models and body.get("model") not in models:
            await self._refuse(400, "Model Not Exist", "invalid_request_error")
            return True
        return await self._play(body)

    async def _play(self, body: Mapping[str, Any]) -> bool:
        server = self._server
        seen = seen_of(body, self._request.headers.get(_SESSION_HEADER))
        try:
            line = server.play.next(seen)
        except ScriptError as error:
            server.mismatches += 1
            server.note("mismatch", number=self._number, problem=error.message, code=error.code)
            await self._refuse(400, f"rehearsal: {error.message}", error.code)
            return True
        server.note("reply", number=self._number, place=line.place)
        try:
            good = await self._speak(line, body)
        finally:
            server.note("sent", number=self._number)
            if not server.play.unplayed:
                server.finished.set()
        return good

    async def _speak(self, line: Line, body: Mapping[str, Any]) -> bool:
        model = str(body.get("model", ""))
        fault = line.fault
        if fault is not None and fault.kind in ("status", "reset", "body"):
            await self._pause(line.first_delay_s, changed(line, comment_s=None))
            return await self._fail_at_once(fault)
        if not body.get("stream"):
            await self._answer.json(200, whole_reply(line, model, self._number))
            return True
        dialect = Dialect(line, model, self._number)
        if line.comment_s is None:
            await self._pause(line.first_delay_s, line)
            self._answer.begin_stream()
        else:
            self._answer.begin_stream()
            await self._pause(line.first_delay_s, line)
        out = _Cutter(self._answer, line.write_bytes, now=line.delay_s > 0)
        if fault is None:
            await out.send(dialect.opening())
            await self._send(out, dialect.pieces(), line)
            await out.send(dialect.closing())
            await out.rest()
            await self._answer.end_stream()
            return True
        return await self._fail_midway(fault, line, dialect, out)

    async def _send(self, out: _Cutter, events: Iterable[bytes], line: Line) -> None:
        for number, event in enumerate(events):
            if number:
                await self._pause(line.delay_s, line)
            await out.send(event)

    async def _fail_at_once(self, fault: Fault) -> bool:
        if fault.kind == "reset":
            self._answer.reset()
            return False
        if fault.kind == "body":
            body = fault.data.encode()
            await self._answer.whole(200, body, content_type=fault.content_type)
            return True
        headers = {}
        if fault.retry_after is not None:
            headers["Retry-After"] = fault.retry_after
        if fault.request_id is not None:
            headers["X-Request-Id"] = fault.request_id
        message = fault.message or "scripted failure"
        await self._refuse(fault.status, message, fault.code or "scripted", headers)
        return True

    async def _fail_midway(self, fault: Fault, line: Line, dialect: Dialect, out: _Cutter) -> bool:
        if fault.kind != "empty":
            await out.send(dialect.opening())
            pieces = [piece for piece, _ in zip(dialect.pieces(), range(fault.after), strict=False)]
            await self._send(out, pieces, line)
        await out.rest()
        await self._answer.flush()
        if fault.kind == "cut":
            self._answer.reset()
            return False
        if fault.kind == "stall":
            return await self._stall(fault, line)
        if fault.kind == "malformed":
            await out.send(dialect.data(fault.data))
            await out.send(dialect.done())
        elif fault.kind == "error":
            error = {"message": fault.message, "code": fault.code, "type": "server_error"}
            await out.send(dialect.event({"error": error}))
            await out.send(dialect.done())
        elif fault.kind == "empty":
            await out.send(dialect.closing())
        await out.rest()
        await self._answer.end_stream()
        return True

    async def _stall(self, fault: Fault, line: Line) -> bool:
        """Say nothing, or only comments, until the client leaves or the time is up."""
        gone = asyncio.ensure_future(self._reader.read(1))
        try:
            await self._wait(fault.seconds, line.comment_s, gone)
            left = gone.done()
        finally:
            gone.cancel()
        if left:
            self._server.note("client-left", number=self._number)
        self._answer.reset()
        return False

    async def _pause(self, seconds: float, line: Line) -> None:
        if seconds > 0:
            await self._answer.flush()
            await self._wait(seconds, line.comment_s, asyncio.get_running_loop().create_future())

    async def _wait(
        self, seconds: float | None, beat_s: float | None, ended: asyncio.Future[Any]
    ) -> None:
        """Wait ``seconds`` or until ``ended``, with a comment every ``beat_s``."""
        loop = asyncio.get_running_loop()
        end = None if seconds is None else loop.time() + seconds
        while not ended.done():
            left = None if end is None else end - loop.time()
            if left is not None and left <= 0:
                return
            waits = [wait for wait in (left, beat_s) if wait is not None]
            await asyncio.wait([ended], timeout=min(waits, default=None))
            if beat_s is not None and not ended.done():
                await self._answer.chunk(b": still here\n\n", now=True)

    async def _refuse(
        self, status: int, message: str, code: str, headers: Mapping[str, str] | None = None
    ) -> None:
        error = {"message": message, "type": code, "code": code}
        await self._answer.json(status, {"error": error}, headers)
        self._server.note("refused", number=self._number, status=status, message=message)

    def _read_body(self) -> dict[str, Any] | None:
        try:
            value = json.loads(self._request.body)
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    def _note_request(self, body: dict[str, Any] | None) -> None:
        request = self._request
        headers = dict(request.headers)
        if "authorization" in headers:
            headers["authorization"] = _HIDDEN
        self._server.keep_body(self._number, request.body)
        self._server.note(
            "request",
            number=self._number,
            connection=self._connection,
            method=request.method,
            path=request.path,
            session=request.headers.get(_SESSION_HEADER),
            headers=headers,
            size=len(request.body),
            body=request.body.decode("utf-8", "replace") if body is None else body,
        )


class _Cutter:
    """Sends events as HTTP chunks, whole or cut at a fixed number of bytes."""

    def __init__(self, answer: Answer, size: int | None, *, now: bool) -> None:
        self._answer = answer
        self._size = size
        self._now = now
        self._rest = b""

    async def send(self, data: bytes) -> None:
        if self._size is None:
            await self._answer.chunk(data, now=self._now)
            return
        data = self._rest + data
        whole = len(data) - len(data) % self._size
        for at in range(0, whole, self._size):
            await self._answer.chunk(data[at : at + self._size], now=self._now)
        self._rest = data[whole:]

    async def rest(self) -> None:
        """Send what is left of the last cut."""
        if self._rest:
            await self._answer.chunk(self._rest, now=self._now)
            self._rest = b""
