from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh.model.adapters.deepseek import sse
from dsh.model.adapters.deepseek.sse import DONE, SseParser
from dsh.model.failures import LlmError


def parse(*reads: bytes) -> list[bytes]:
    parser = SseParser()
    events = [event for read in reads for event in parser.feed(read)]
    return events + parser.close()


payloads = st.text(
    st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), min_size=1, max_size=20
).filter(lambda text: not text.startswith(("[DONE]", " ")))


@given(
    st.lists(payloads, max_size=5),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_the_same_events_come_whatever_the_line_ends_and_wherever_reads_are_cut(
    texts: list[str], end: str, comments: bool, space: bool, data: st.DataObject
) -> None:
    lines = []
    for text in texts:
        comment = f": ping{end}" if comments else ""
        lines.append(f"{comment}data:{' ' if space else ''}{text}{end}{end}")
    stream = ("".join(lines) + f"data: [DONE]{end}{end}").encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reads = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    assert parse(*reads) == [text.encode() for text in texts] + [DONE]


def test_data_lines_of_one_event_are_joined_by_line_feeds() -> None:
    assert parse(b"data: a\ndata:  b\ndata:\ndata:c\n\n") == [b"a\n b\n\nc"]


def test_fields_other_than_data_are_dropped() -> None:
    assert parse(b"event: x\nid: 1\nretry: 5\ndata: y\n\n") == [b"y"]


def test_blank_lines_and_comments_alone_are_no_events() -> None:
    assert parse(b"\n\n: a\n\n:\n\n") == []


@pytest.mark.parametrize(
    "stream",
    [
        b"data: x\n\ndata: [DONE]\n\n",
        b"data: x\n\ndata: [DONE]\n",
        b"data: x\n\ndata: [DONE]",
        b"data: x\n\ndata:[DONE]\r",
        b"data: x\ndata: [DONE]\n\n",
        b"data: x\ndata: [DONE]",
    ],
)
def test_the_end_mark_counts_without_blank_lines_around_it(stream: bytes) -> None:
    assert parse(stream) == [b"x", DONE]


def test_the_end_mark_is_told_as_soon_as_its_line_is_there() -> None:
    assert SseParser().feed(b"data: [DONE]\n") == [DONE]


def test_an_event_that_lacks_its_blank_line_at_the_end_is_dropped() -> None:
    assert parse(b"data: a\n\ndata: b\n") == [b"a"]
    assert parse(b"data: a\n\ndata: b") == [b"a"]


def test_a_byte_order_mark_is_skipped() -> None:
    assert parse(b"\xef\xbb\xbfdata: a\n\n") == [b"a"]


def test_an_endless_event_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    parser = SseParser()
    parser.feed(b"data: " + b"x" * 90)
    with pytest.raises(LlmError) as raised:
        parser.feed(b"xxxxx")
    assert raised.value.code == "MALFORMED_RESPONSE"


def test_an_event_of_endless_lines_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    parser = SseParser()
    for _ in range(12):
        parser.feed(b"data: x\n")
    with pytest.raises(LlmError, match="more than 100 bytes"):
        parser.feed(b"data: x\n")


def test_many_events_are_no_endless_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    parser = SseParser()
    assert sum(len(parser.feed(b"\ndata: x\n")) for _ in range(100)) == 99
