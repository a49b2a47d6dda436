"""The OpenTelemetry backend: what each mode sends, to a real receiver."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import ValidationError
from telemetry_parts import Receiver, append, chunk, receiving, run_turn, say

from dsh import __version__
from dsh.base.values import changed
from dsh.kernel import Context, Fiber
from dsh.loader.anonymous import FILE_NAME
from dsh.state.feedback.events import FEEDBACK_RECORD
from dsh.state.session.events import SESSION_EVENT, TODO_WRITE, SessionEventAppended
from dsh.state.session.service import SessionStore
from dsh.state.session.store import LocalSessionStore
from dsh.state.telemetry.config import OtelConfig
from dsh.state.telemetry.events import TELEMETRY_RECORD
from dsh.state.telemetry.otel import OtelTelemetry, TelemetryPackagesMissing
from dsh.state.telemetry.pipeline import Exporters
from dsh.state.telemetry.service import SessionTelemetryBackend, TelemetryRecord


@pytest.fixture
async def sessions(root: Context) -> SessionStore:
    await root.plugin(LocalSessionStore)
    store = root.require(SessionStore)
    store.declare(FEEDBACK_RECORD)
    return store


@pytest.fixture(autouse=True)
def telemetry_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DSH_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def config(mode: str, url: str, **fields: Any) -> OtelConfig:
    exporter = {"url": url, "timeoutMillis": 2000, **fields.pop("exporter", {})}
    return OtelConfig.model_validate({"mode": mode, "exporter": exporter, **fields})


async def mount(root: Context, cfg: OtelConfig | None) -> Fiber:
    plugin = root.plugin(OtelTelemetry, cfg)
    await plugin
    return plugin


def records(receiver: Receiver) -> list[tuple[str, Any]]:
    """Each record with the scope it came by, in the order of sending."""
    return [
        (scope.scope.name, record)
        for request in receiver.logs()
        for resource in request.resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]


def attribute(record: Any, name: str) -> Any:
    for item in record.attributes:
        if item.key == name:
            return getattr(item.value, item.value.WhichOneof("value"))
    return None


def sent(receiver: Receiver) -> list[str]:
    names = ("event.type", "telemetry.op")
    return [
        next(filter(None, (attribute(record, name) for name in names)))
        for _, record in records(receiver)
    ]


# DISABLED


def test_a_disabled_backend_imports_nothing_of_opentelemetry() -> None:
    code = """
import asyncio, sys
from dsh.kernel import Context
from dsh.state.session.store import LocalSessionStore
from dsh.state.telemetry.otel import OtelTelemetry
async def main():
    root = Context()
    await root.plugin(LocalSessionStore)
    await root.plugin(OtelTelemetry, None)
    await root.fiber.dispose()
asyncio.run(main())
print([name for name in sys.modules if name.startswith(("opentelemetry", "google", "requests"))])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


async def test_disabled_is_the_default_and_takes_no_record(
    root: Context, sessions: SessionStore, telemetry_home: Path
) -> None:
    threads = threading.active_count()
    await mount(root, None)
    backend = root.require(SessionTelemetryBackend)
    backend.emit(TelemetryRecord("ops", 1, "info", {}, {}))
    say(sessions.create("s1"))
    await backend.shutdown()
    assert backend.sharing == "disabled"
    assert threading.active_count() == threads
    assert [path.name for path in telemetry_home.parent.iterdir()] == []


def test_a_disabled_backend_reads_no_setting_of_its_transport() -> None:
    rubbish = {"exporter": {"url": 7}, "processor": [], "shutdownTimeoutMillis": "x", "traces": 1}
    assert OtelConfig.model_validate({**rubbish, "mode": "DISABLED"}).exporter.url is None
    assert OtelConfig.model_validate(rubbish).mode == "DISABLED"


async def test_feedback_that_stays_here_is_told(
    root: Context, sessions: SessionStore, caplog: pytest.LogCaptureFixture
) -> None:
    await mount(root, None)
    session = sessions.create("s1")
    say(session)
    assert caplog.records == []
    append(session, FEEDBACK_RECORD, {"text": "SECRET"})
    (record,) = caplog.records
    assert "feedback in session s1 stays on this machine" in record.message
    assert "SECRET" not in record.message


# validation


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"exporter": {}}, "mode FULL needs exporter.url.*DSH_TELEMETRY_OTLP_URL"),
        ({"exporter": {"url": ""}}, r"needs exporter\.url"),
        ({"exporter": {"url": "ftp://key@host"}}, r"exporter\.url is not an address"),
        ({"exporter": {"url": "http:///v1/logs"}}, r"exporter\.url is not an address"),
        ({"exporter": {"url": "http://["}}, r"exporter\.url is not an address"),
        ({"exporter": {"url": "http://h:port/"}}, r"exporter\.url is not an address"),
        ({"exporter": {"url": "http://h", "compression": "zip"}}, "compression"),
        ({"processor": {"maxExportBatchSize": 0}}, "maxExportBatchSize"),
        ({"processor": {"maxQueueSize": 5, "maxExportBatchSize": 6}}, "more than maxQueueSize"),
        ({"shutdownTimeoutMillis": 0}, "shutdownTimeoutMillis"),
        ({"shutdownTimeoutMillis": 2_147_483_648}, "shutdownTimeoutMillis"),
        ({"shutdownTimeoutMillis": float("nan")}, "shutdownTimeoutMillis"),
        ({"exporter": {"url": "http://h/x"}, "traces": {"enabled": True}}, r"set traces\.url"),
        ({"traces": {"enabled": True, "url": "file:///x"}}, r"traces\.url is not an address"),
        ({"mode": "SOME"}, "mode"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_an_uploading_mode_refuses_what_cannot_work(fields: dict[str, Any], problem: str) -> None:
    given = {"mode": "FULL", "exporter": {"url": "http://h/v1/logs"}, **fields}
    with pytest.raises(ValidationError, match=problem) as caught:
        OtelConfig.model_validate(given)
    assert "key@" not in str(caught.value.errors()[0]["msg"])


@pytest.mark.parametrize(
    "fields",
    [
        {"exporter": {"url": "ftp://u:SECRET@h"}},
        {"exporter": {"url": "http://h", "headers": {"authorization": ["SECRET"]}}},
        {"exporter": {"url": "http://h", "header": {"authorization": "SECRET"}}},
        {"exporter": {"headers": {"authorization": "SECRET"}}},
    ],
)
def test_no_key_of_a_receiver_is_in_an_error(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        OtelConfig.model_validate({"mode": "FULL", **fields})
    assert "SECRET" not in str(caught.value)


async def test_no_key_of_a_receiver_is_shown_or_logged_when_sending_fails(
    root: Context, sessions: SessionStore, caplog: pytest.LogCaptureFixture
) -> None:
    with receiving() as gone:
        where = gone.url.replace("http://", "http://user:SECRET@") + "?key=SECRET"
    cfg = config(
        "FULL",
        where,
        exporter={"headers": {"authorization": "SECRET"}, "timeoutMillis": 10_000},
        traces={"enabled": True, "url": where},
        shutdownTimeoutMillis=300,
    )
    assert "SECRET" not in repr(cfg)
    plugin = await mount(root, cfg)
    run_turn(sessions.create("s1"))
    await plugin.dispose()
    assert any(record.name.startswith("opentelemetry.") for record in caplog.records)
    assert "SECRET" not in caplog.text


def test_the_address_of_spans_follows_from_that_of_logs() -> None:
    made = config("FULL", "https://h:1/otlp/v1/logs", traces={"enabled": True})
    assert made.traces_url == "https://h:1/otlp/v1/traces"


async def test_a_missing_package_is_one_sentence_with_the_command(
    root: Context, sessions: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "dsh.state.telemetry.pipeline", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    plugin = root.plugin(OtelTelemetry, config("FULL", "http://127.0.0.1:9/v1/logs"))
    with pytest.raises(TelemetryPackagesMissing, match=r"pip install 'dsh\[telemetry\]'"):
        await plugin


# FULL


async def test_records_reach_a_receiver_with_their_scope_resource_and_values(
    root: Context, sessions: SessionStore, receiver: Receiver, telemetry_home: Path
) -> None:
    headers = {"authorization": "Bearer k"}
    cfg = config("FULL", receiver.url, exporter={"compression": "gzip", "headers": headers})
    plugin = await mount(root, cfg)
    session = sessions.create("s1")
    append(session, TODO_WRITE, {"todos": [{"content": "a\ud800", "status": "pending"}]})
    await plugin.dispose()

    assert receiver.requests[0][1]["content-encoding"] == "gzip"
    assert receiver.requests[0][1]["authorization"] == "Bearer k"
    (scope, todo), (ops_scope, end) = records(receiver)
    assert (scope, ops_scope) == ("dsh.session.ledger", "dsh.session.ops")
    assert attribute(todo, "event.type") == "todo/write"
    assert attribute(todo, "event.seq") == 0
    assert todo.time_unix_nano == session.events[0]["time"] * 1_000_000
    assert (todo.severity_text, todo.severity_number) == ("INFO", 9)
    (todos,) = todo.body.kvlist_value.values
    (item,) = todos.value.array_value.values
    texts = {pair.key: pair.value.string_value for pair in item.kvlist_value.values}
    assert texts == {"content": "a\\ud800", "status": "pending"}
    assert attribute(end, "telemetry.op") == "shutdown"

    resource = receiver.logs()[0].resource_logs[0].resource
    assert attribute(resource, "service.name") == "dsh"
    assert attribute(resource, "service.version") == __version__
    user_id = (telemetry_home / FILE_NAME).read_text().strip()
    assert attribute(resource, "user.id") == user_id
    assert receiver.traces() == []


async def test_what_is_queued_during_an_export_is_sent_before_the_plugin_is_gone(
    root: Context, sessions: SessionStore, receiver: Receiver
) -> None:
    receiver.hold = threading.Event()
    cfg = config("FULL", receiver.url, processor={"scheduledDelayMillis": 1})
    plugin = await mount(root, cfg)
    session = sessions.create("s1")
    say(session)
    assert await asyncio.to_thread(receiver.got.wait, 10)
    say(session)
    chunk(session)
    disposing = asyncio.ensure_future(plugin.dispose())
    await asyncio.sleep(0)
    receiver.hold.set()
    await disposing
    types = ["user/message", "user/message", "assistant/chunk", "shutdown"]
    assert sent(receiver) == types


async def test_an_unload_waits_no_longer_than_its_bound(
    root: Context, sessions: SessionStore, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.hold = threading.Event()
    plugin = await mount(root, config("FULL", receiver.url, shutdownTimeoutMillis=200))
    say(sessions.create("s1"))
    began = time.monotonic()
    await plugin.dispose()
    assert time.monotonic() - began < 1.5
    assert "telemetry could not be sent within 0.2 s" in caplog.text
    receiver.hold.set()


async def test_a_receiver_that_fails_costs_the_session_nothing(
    root: Context, sessions: SessionStore, receiver: Receiver
) -> None:
    receiver.status = 400
    plugin = await mount(root, config("FULL", receiver.url))
    session = sessions.create("s1")
    run_turn(session)
    await plugin.dispose()
    assert session.seq == 11
    assert len(receiver.requests) == 1


async def test_redaction_changes_what_is_sent_and_not_the_log(
    root: Context, sessions: SessionStore, receiver: Receiver
) -> None:
    root.on(TELEMETRY_RECORD, lambda record, _: changed(record, body={1, 2}))
    plugin = await mount(root, config("FULL", receiver.url))
    session = sessions.create("s1")
    say(session, "SECRET-WORD")
    await plugin.dispose()
    assert b"SECRET-WORD" not in receiver.bodies()
    assert sent(receiver) == ["user/message", "shutdown"]
    assert "SECRET-WORD" in str(session.events[0]["data"])


async def test_a_reload_continues_the_session(
    root: Context, sessions: SessionStore, receiver: Receiver
) -> None:
    plugin = await mount(root, config("FULL", receiver.url))
    session = sessions.create("s1")
    say(session)
    await plugin.update(config("FULL", receiver.url, shutdownTimeoutMillis=2000))
    say(session)
    await plugin.dispose()
    assert sent(receiver) == ["user/message", "shutdown", "user/message", "shutdown"]


async def test_after_its_shutdown_a_backend_refuses_records(
    root: Context, sessions: SessionStore, receiver: Receiver
) -> None:
    await mount(root, config("FULL", receiver.url))
    backend = root.require(SessionTelemetryBackend)
    assert backend.sharing == "full"
    await asyncio.gather(backend.shutdown(), backend.shutdown())
    with pytest.raises(Exception, match="telemetry has been shut down"):
        backend.emit(TelemetryRecord("ops", 1, "info", {}, {}))
    say(sessions.create("s1"))


# FEEDBACK_ONLY


async def test_feedback_takes_the_session_along_and_nothing_else_leaves(
    root: Context, sessions: SessionStore, receiver: Receiver
) -> None:
    plugin = await mount(root, config("FEEDBACK_ONLY", receiver.url, traces={"enabled": True}))
    backend = root.require(SessionTelemetryBackend)
    rated, quiet = sessions.create("rated"), sessions.create("quiet")
    run_turn(rated)
    run_turn(quiet)
    append(rated, FEEDBACK_RECORD, {"text": "good"})
    say(rated)
    backend.emit(TelemetryRecord("ops", 1, "info", {"telemetry.op": "mine"}, {}))
    await plugin.dispose()
    assert backend.sharing == "feedback-only"
    assert {attribute(record, "session.id") for _, record in records(receiver)} == {"rated"}
    assert sent(receiver)[-1] == "feedback/record"
    assert len(sent(receiver)) == 11
    assert receiver.traces() == []


async def test_an_event_that_only_looks_like_feedback_shares_nothing(
    root: Context, sessions: SessionStore, receiver: Receiver
) -> None:
    plugin = await mount(root, config("FEEDBACK_ONLY", receiver.url))
    session = sessions.create("s1")
    say(session)
    forged: Any = {"type": "feedback/record", "seq": 0, "time": 1, "data": {"text": "x"}}
    root.emit(SESSION_EVENT, SessionEventAppended(session, forged))
    root.emit(SESSION_EVENT, SessionEventAppended(session, {**forged, "seq": 9}))
    await plugin.dispose()
    assert receiver.requests == []


async def test_feedback_later_takes_along_only_what_is_new(
    root: Context, sessions: SessionStore, receiver: Receiver
) -> None:
    plugin = await mount(root, config("FEEDBACK_ONLY", receiver.url))
    session = sessions.create("s1")
    for _ in range(2):
        say(session)
        append(session, FEEDBACK_RECORD, {"text": "good"})
    await plugin.dispose()
    seqs = [attribute(record, "event.seq") for _, record in records(receiver)]
    assert seqs == [0, 1, 2, 3]


# spans


async def test_spans_are_sent_where_they_are_asked_for_and_logs_name_them(
    root: Context, sessions: SessionStore, receiver: Receiver
) -> None:
    plugin = await mount(root, config("FULL", receiver.url, traces={"enabled": True}))
    run_turn(sessions.create("s1"))
    await plugin.dispose()
    spans = [
        span
        for request in receiver.traces()
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    names = {"invoke_agent", "step", "chat deepseek-v4-flash", "execute_tool read", "session"}
    assert {span.name for span in spans} == names
    by_name = {span.name: span for span in spans}
    logged = {attribute(record, "event.type"): record for _, record in records(receiver)}
    assert logged["turn/start"].span_id == by_name["invoke_agent"].span_id
    assert logged["tool/result"].span_id == by_name["execute_tool read"].span_id
    assert logged["tool/result"].trace_id == by_name["session"].trace_id


class InMemory(OtelTelemetry):
    """Sends to lists."""

    logs = InMemoryLogRecordExporter()
    spans = InMemorySpanExporter()

    def exporters(self) -> Exporters:
        return Exporters(self.logs, self.spans)


async def test_a_subclass_may_send_elsewhere(root: Context, sessions: SessionStore) -> None:
    plugin = root.plugin(InMemory, config("FULL", "http://127.0.0.1:9/v1/logs"))
    await plugin
    run_turn(sessions.create("s1"))
    await plugin.dispose()
    kept = [
        item.log_record.attributes["event.type"] for item in InMemory.logs.get_finished_logs()[:2]
    ]
    assert kept == ["turn/start", "step/start"]
    assert InMemory.spans.get_finished_spans()[-1].name == "session"
