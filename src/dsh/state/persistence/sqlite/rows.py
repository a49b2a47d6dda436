"""Events as rows of a table: runs of chunks share a row, large data is compressed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from dsh.base.json import dumps, loads
from dsh.state.persistence.artifact.frames import FrameCorruption, compress, decompress
from dsh.state.session.codec import decode_storage_record, pack_chunk_runs
from dsh.state.session.vocabulary import CHUNK_ROW_TYPES

if TYPE_CHECKING:
    from dsh.state.persistence.scan import RowScanner

_MOST_MEMBERS = 1024
_MOST_BYTES = 1024 * 1024
_FEWEST_MEMBERS = 3
_WORTH_COMPRESSING = 4096
_MAGIC = b"\x28\xb5\x2f\xfd"  # no JSON text begins like this
_PACKED = 0

Row: TypeAlias = "tuple[int, bytes, int, str | bytes, bytes | None, str | None, int | None]"
"""seq, type, time, data, source_event_seqs, surface_op, ignorable"""
StoredRow: TypeAlias = "tuple[Any, ...]"
"""The same columns as they are read: texts are bytes, and anything may be wrong."""


def encode_rows(events: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return the rows of a batch of events."""
    return [row for record in pack_chunk_runs(events) for row in _rows(record)]


def take_row(scanner: RowScanner, row: StoredRow) -> str | None:
    """Give the next row to a scanner; return why it does not continue the log."""
    try:
        value = decode_row(row)
    except ValueError as error:
        return str(error)
    return scanner.take(value, packed=row[6] == _PACKED)


def decode_row(row: StoredRow) -> dict[str, Any]:
    """Return the record of a row: an event, or a run of chunks.

    Raises:
        ValueError: the columns hold no record.
    """
    seq, type_, time, data, sources, surface_op, ignorable = row
    content = _content(data)
    name = type_.decode("utf-8", "surrogatepass")
    if ignorable == _PACKED:
        return {"type": name, "seq0": seq, "time0": time, "data": content}
    event = {"type": name, "seq": seq, "time": time, "data": content}
    if sources is not None:
        event["sourceEventSeqs"] = decode_seqs(sources)
    if surface_op is not None:
        event["surfaceOp"] = loads(surface_op)
    if ignorable is not None:
        event["ignorable"] = True
    return event


def ends_turn(row: StoredRow) -> bool:
    """Tell whether a row that does not continue the log is a whole end of a turn."""
    if row[1] != b"turn/end":
        return False
    try:
        decode_row(row)
    except ValueError:
        return False
    return True


def size_of(row: StoredRow) -> int:
    """Return roughly how many bytes a row holds."""
    return sum(len(column) for column in row if isinstance(column, (bytes, str)))


def encode_seqs(seqs: Iterable[int]) -> bytes:
    """Return event numbers as variable-length integers: the first, then signed differences."""
    out = bytearray()
    last: int | None = None
    for seq in seqs:
        step = seq if last is None else seq - last
        number = step if last is None else (step << 1 if step >= 0 else (-step << 1) - 1)
        while number > 0x7F:
            out.append(number & 0x7F | 0x80)
            number >>= 7
        out.append(number)
        last = seq
    return bytes(out)


def decode_seqs(data: bytes) -> list[int]:
    """Return the event numbers that `encode_seqs` wrote.

    Raises:
        ValueError: it did not write this.
    """
    seqs: list[int] = []
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte & 0x80:
            continue
        if byte == 0 and shift > 7:
            raise ValueError("an event number is written in more bytes than it needs")
        step = number >> 1 if number & 1 == 0 else -((number + 1) >> 1)
        seqs.append(seqs[-1] + step if seqs else number)
        number = shift = 0
    if shift:
        raise ValueError("the event numbers end inside one")
    return seqs


def _rows(record: Mapping[str, Any]) -> Iterator[Row]:
    if record["type"] in CHUNK_ROW_TYPES and "seq0" in record:
        yield from _packed_rows(record)
    else:
        yield _event_row(record)


def _event_row(event: Mapping[str, Any]) -> Row:
    sources = event.get("sourceEventSeqs")
    surface_op = event.get("surfaceOp")
    return (
        event["seq"],
        event["type"].encode("utf-8", "surrogatepass"),
        event["time"],
        _data(dumps(event["data"])),
        None if sources is None else encode_seqs(sources),
        None if surface_op is None else dumps(surface_op).decode(),
        1 if "ignorable" in event else None,
    )


def _packed_rows(record: Mapping[str, Any]) -> Iterator[Row]:
    data = dumps(record["data"])
    members = len(record["data"]["dt"]) + 1
    if members <= _MOST_MEMBERS and len(data) <= _MOST_BYTES:
        yield _packed_row(record, data)
        return
    for part in _parts(record, members):
        if len(part["data"]["dt"]) + 1 < _FEWEST_MEMBERS:
            yield from map(_event_row, decode_storage_record(part))
        else:
            yield _packed_row(part, dumps(part["data"]))


def _packed_row(record: Mapping[str, Any], data: bytes) -> Row:
    type_ = record["type"].encode()
    return (record["seq0"], type_, record["time0"], _data(data), None, None, _PACKED)


def _parts(record: Mapping[str, Any], members: int) -> Iterator[dict[str, Any]]:
    """Cut a run that is too long for one row."""
    data = record["data"]
    key = "texts" if "texts" in data else "args"
    gaps: Sequence[int] = [0, *data["dt"]]
    shared = {name: value for name, value in data.items() if name not in ("dt", key)}
    budget = _MOST_BYTES - len(dumps(shared)) - 64
    start, time = 0, record["time0"]
    while start < members:
        end, size = start, 0
        while end < members and end - start < _MOST_MEMBERS:
            size += len(dumps(data[key][end])) + len(str(gaps[end])) + 2
            if size > budget and end > start:
                break
            end += 1
        part = {**shared, "dt": list(gaps[start + 1 : end]), key: list(data[key][start:end])}
        yield {
            "type": record["type"],
            "seq0": record["seq0"] + start,
            "time0": time,
            "data": part,
        }
        time += sum(gaps[start + 1 : end + 1])
        start = end


def _content(data: object) -> Any:
    try:
        if isinstance(data, bytes):
            return loads(decompress(data) if data.startswith(_MAGIC) else data)
    except FrameCorruption as error:
        raise ValueError(str(error)) from error
    raise ValueError("the data is neither text nor compressed text")


def _data(text: bytes) -> str | bytes:
    if len(text) >= _WORTH_COMPRESSING:
        packed = compress(text)
        if len(packed) < len(text):
            return packed
    return text.decode()
