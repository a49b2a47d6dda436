"""Sinks, logs and a receiver for telemetry tests."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from dsh.model.messages import (
    create_assistant_message,
    create_tool_result_message,
    create_user_message,
)
from dsh.state.session.events import (
    ASSISTANT_CHUNK,
    ASSISTANT_MESSAGE,
    REQUEST_HEADER,
    STEP_END,
    STEP_START,
    TOOL_CALL,
    TOOL_RESULT,
    TURN_END,
    TURN_START,
    USER_MESSAGE,
    EventType,
)
from dsh.state.session.session import Session
from dsh.state.telemetry.service import TelemetryRecord


class ListSink:
    """Keeps records; refuses them while ``refusing``."""

    def __init__(self) -> None:
        self.records: list[TelemetryRecord] = []
        self.refusing = False

    def emit(self, record: TelemetryRecord) -> None:
        if self.refusing:
            raise RuntimeError("the queue is closed")
        self.records.append(record)

    def types(self) -> list[str]:
        return [what(record) for record in self.records]

    def seqs(self, session: Session) -> list[int]:
        ledger = [each for each in self.records if each.channel == "ledger"]
        own = [each for each in ledger if each.attributes["session.id"] == session.id]
        return [int(each.attributes["event.seq"]) for each in own]


class HintSink(ListSink):
    """Wants to hear of flushes."""

    def __init__(self) -> None:
        super().__init__()
        self.hints = 0

    def flush(self) -> None:
        self.hints += 1
        raise RuntimeError("not now")


def what(record: TelemetryRecord) -> str:
    attributes = record.attributes
    return str(attributes.get("event.type") or attributes["telemetry.op"])


def chunk(session: Session, turn: int = 1, step: int = 1, text: str = "a") -> None:
    delta = {"type": "text-delta", "index": 0, "text": text}
    append(session, ASSISTANT_CHUNK, {"turn": turn, "step": step, "chunk": delta})


def say(session: Session, text: str = "hello") -> None:
    append(session, USER_MESSAGE, create_user_message(text), surface_op="append")


def append(session: Session, event_type: EventType[Any], data: Any, **more: Any) -> None:
    session.append(event_type, data, **more)


CONFIG = {"provider": "deepseek-official", "model": "deepseek-v4-flash", "maxTokens": 100}
USAGE = {"inputTokens": 10, "outputTokens": 5, "cacheReadTokens": 3, "reasoningTokens": 2}


def run_turn(
    session: Session,
    turn: int = 1,
    *,
    reason: Any = None,
    tool_error: Any = None,
    within_tool: Callable[[], object] = lambda: None,
) -> None:
    """Log a turn of one step: a model call with two chunks, and one tool."""
    at = {"turn": turn, "step": 1}
    append(session, TURN_START, {"turn": turn})
    append(session, STEP_START, at)
    say(session)
    append(session, REQUEST_HEADER, {"header": {"config": CONFIG}, "reason": "initial"})
    for text in "ab":
        chunk(session, turn, 1, text)
    call: Any = {"type": "tool-call", "id": "c1", "name": "read", "arguments": "{}"}
    message = create_assistant_message([call], "deepseek-official", "v4-0101")
    data = {**at, "message": message, "usage": USAGE}
    append(session, ASSISTANT_MESSAGE, data, surface_op="append")
    called = session.seq
    append(session, TOOL_CALL, {**at, "callId": "c1", "name": "read", "arguments": "{}"})
    within_tool()
    output: Any = [{"type": "text", "text": "SECRET-OUTPUT"}]
    result: dict[str, Any] = {
        **at,
        "message": create_tool_result_message("c1", output, is_error=tool_error is not None),
    }
    if tool_error is not None:
        result["error"] = tool_error
    append(session, TOOL_RESULT, result, surface_op="append", source_event_seqs=[called])
    append(session, STEP_END, at)
    append(session, TURN_END, {"turn": turn, "reason": reason or {"kind": "completed"}})


class Receiver:
    """What an OTLP/HTTP collector got."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.got = threading.Event()
        self.status = 200
        self.hold: threading.Event | None = None
        self.url = ""

    def logs(self) -> list[Any]:
        return [self._read(each, ExportLogsServiceRequest()) for each in self._of("/v1/logs")]

    def traces(self) -> list[Any]:
        return [self._read(each, ExportTraceServiceRequest()) for each in self._of("/v1/traces")]

    def bodies(self) -> bytes:
        return b"".join(self._plain(each) for each in self.requests)

    def _of(self, path: str) -> list[Any]:
        return [request for request in self.requests if request[0] == path]

    def _read(self, request: Any, message: Any) -> Any:
        message.ParseFromString(self._plain(request))
        return message

    def _plain(self, request: Any) -> bytes:
        _, headers, body = request
        return gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Run a collector on this machine."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.requests.append((self.path, headers, body))
            receiver.got.set()
            if receiver.hold is not None:
                receiver.hold.wait(30)
            try:
                self.send_response(receiver.status)
                self.send_header("content-length", "0")
                self.end_headers()
            except OSError:
                self.close_connection = True  # whoever sent it is gone

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_port}/v1/logs"
    try:
        yield receiver
    finally:
        if receiver.hold is not None:
            receiver.hold.set()
        server.shutdown()
        server.server_close()
        thread.join()
