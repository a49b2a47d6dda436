from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh.base.text import Keep
from dsh.capability.subprocess.collect import OutputWindow
from dsh.capability.subprocess.service import Collect, SpawnSpec, Spill, SubprocessRuntime


def window(max_bytes: int, keep: Keep = "tail", spill: Spill | None = None) -> OutputWindow:
    collect = Collect(max_bytes=max_bytes, keep=keep, spill=spill)
    return OutputWindow(collect, "stdout")


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(1, 60))
def test_the_tail_is_byte_exact_across_uneven_chunks(chunks: list[bytes], limit: int) -> None:
    kept = window(limit)
    whole = b"".join(chunks)

    async def feed() -> None:
        for chunk in chunks:
            await kept.feed(chunk)

    asyncio.run(feed())

    assert kept.total_bytes == len(whole)
    assert kept.omitted_bytes == max(0, len(whole) - limit)
    assert kept._kept.tail == whole[-limit:]


@given(st.text(max_size=60), st.integers(1, 80), st.sampled_from(["head", "tail", "head_tail"]))
def test_text_never_splits_a_character(text: str, limit: int, keep: Keep) -> None:
    data = text.encode("utf-8", "replace")
    kept = window(limit, keep)
    asyncio.run(kept.feed(data))
    assert "\ufffd" not in kept.text() or "\ufffd" in data.decode("utf-8")


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=12))
def test_reading_by_offset_gives_every_byte_once(chunks: list[bytes]) -> None:
    kept = window(10_000)
    texts, offset = [], 0

    async def feed() -> None:
        nonlocal offset
        for chunk in [*chunks, b"."]:
            await kept.feed(chunk)
            part = kept.read_from(offset)
            assert not part.lossy
            texts.append(part.text)
            offset = part.next_offset

    asyncio.run(feed())
    whole = b"".join(chunks) + b"."
    assert offset == len(whole)
    assert "".join(texts) == whole.decode("utf-8", "replace")


async def test_a_stream_of_exactly_the_cap_is_whole() -> None:
    kept = window(5)
    await kept.feed(b"12345")
    assert (kept.text(gap="..."), kept.omitted_bytes) == ("12345", 0)


async def test_head_and_tail_stand_around_the_gap() -> None:
    kept = window(6, "head_tail")
    for byte in b"0123456789":
        await kept.feed(bytes([byte]))
    assert kept.text(gap="|") == "012|789"
    assert kept.omitted_bytes == 4


async def test_a_read_of_dropped_bytes_says_so() -> None:
    kept = window(4)
    await kept.feed(b"abcdefgh")
    assert (kept.read_from(0).text, kept.read_from(0).lossy) == ("efgh", True)
    assert (kept.read_from(5).text, kept.read_from(5).lossy) == ("fgh", False)


async def test_a_character_in_two_chunks_is_read_once_it_is_whole() -> None:
    kept = window(100)
    await kept.feed("é".encode()[:1])
    first = kept.read_from(0)
    await kept.feed("é".encode()[1:])
    assert (first.text, first.next_offset) == ("", 0)
    assert kept.read_from(first.next_offset).text == "é"


async def test_no_file_is_made_for_a_stream_that_fits(tmp_path: Path) -> None:
    kept = window(10, spill=Spill(max_bytes=100, folder=tmp_path))
    await kept.feed(b"0123456789")
    await kept.close()
    assert kept.spill_path is None
    assert os.listdir(tmp_path) == []


async def test_a_stream_beyond_the_spill_cap_has_no_file(tmp_path: Path) -> None:
    kept = window(10, spill=Spill(max_bytes=20, folder=tmp_path))
    await kept.feed(b"x" * 15)
    assert kept.spill_path is not None
    await kept.feed(b"x" * 15)
    await kept.feed(b"y")
    await kept.close()
    assert kept.spill_path is None
    assert os.listdir(tmp_path) == []
    assert kept.text() == "x" * 9 + "y"


async def test_a_folder_that_cannot_be_written_costs_only_the_file(tmp_path: Path) -> None:
    kept = window(4, spill=Spill(max_bytes=100, folder=tmp_path / "absent"))
    await kept.feed(b"123456")
    await kept.feed(b"78")
    await kept.close()
    assert (kept.text(), kept.spill_path) == ("5678", None)


@pytest.mark.slow
async def test_a_flood_of_output_stays_in_bounded_memory(
    runtime: SubprocessRuntime, tmp_path: Path
) -> None:
    """R08: 200 MB, the first 50 of them one line."""
    line, flood = 50_000_000, 150_000_000
    command = f"head -c {line} /dev/zero | tr '\\0' x; echo; yes abcdefg | head -c {flood}"
    collect = Collect(
        max_bytes=64_000, keep="head_tail", spill=Spill(max_bytes=1 << 28, folder=tmp_path)
    )
    before = resident_bytes()
    process = runtime.spawn(SpawnSpec(argv=("bash", "-c", command), cwd="/", stdout=collect))
    await process.wait()

    collected = process.collected_stdout
    assert collected is not None
    assert collected.total_bytes == line + 1 + flood
    assert len(collected.text()) == 64_000
    assert collected.spill_path is not None
    assert collected.spill_path.stat().st_size == collected.total_bytes
    assert resident_bytes() - before < 30_000_000
    collected.spill_path.unlink()


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096
