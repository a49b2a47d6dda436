"""What is sent is valid text of bounded depth, whatever the log holds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common._internal import _encode_value
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from dsh.state.telemetry.safe import safe_attributes, safe_body, safe_text

TEXT = st.text(st.characters(exclude_categories=()))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=20,
)


@given(JSON)
def test_every_json_value_can_be_sent(body: Any) -> None:
    _encode_value(safe_body(body)).SerializeToString()


def test_lone_surrogates_are_escapes_and_other_text_is_as_it_was() -> None:
    assert safe_text("a\ud800b") == "a\\ud800b"
    assert safe_text("\N{SNOWMAN}") == "\N{SNOWMAN}"
    assert safe_attributes({"cwd\udfff": "x\ud800", "n": 1}) == {"cwd\\udfff": "x\\ud800", "n": 1}


def test_what_is_nested_too_deep_becomes_text_that_receivers_read() -> None:
    deep: Any = "end"
    for _ in range(60):
        deep = {"k": deep}
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add()
    record.body.CopyFrom(_encode_value(safe_body(deep)))
    read = ExportLogsServiceRequest.FromString(request.SerializeToString())
    assert read == request
    kept = safe_body(deep)
    for _ in range(20):
        kept = kept["k"]
    assert json.loads(kept)["k"]["k"]


def test_what_is_not_json_is_refused() -> None:
    with pytest.raises(TypeError, match="set is not JSON"):
        safe_body({"a": {1}})
