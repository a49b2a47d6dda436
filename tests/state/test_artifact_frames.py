from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh.state.persistence.artifact.frames import (
    FrameCorruption,
    compress,
    decompress,
    decompress_cut,
    scan_frames,
)

contents = st.lists(st.binary(max_size=400) | st.just(b"a" * 300_000), min_size=1, max_size=4)


@given(contents)
def test_the_structure_shows_every_frame(parts: list[bytes]) -> None:
    frames = [compress(part) for part in parts]
    scan = scan_frames(b"".join(frames))
    assert scan.torn_start is None
    assert [end - start for start, end in scan.frames] == [len(frame) for frame in frames]
    assert [decompress(frame) for frame in frames] == parts


def test_every_cut_shows_the_whole_frames_before_it() -> None:
    first, second = compress(b"first\n" * 5), compress(b"second\n" * 50)
    data = first + second
    for cut in range(len(data) + 1):
        scan = scan_frames(data[:cut])
        whole = (cut >= len(first)) + (cut == len(data))
        assert len(scan.frames) == whole
        at_boundary = cut in (0, len(first), len(data))
        assert scan.torn_start == (None if at_boundary else (0, len(first))[whole])


def test_frames_of_the_command_line_tool_are_read() -> None:
    # One without content size and with a window descriptor, as a streaming writer makes them.
    import zstandard

    compressor = zstandard.ZstdCompressor(write_checksum=True, write_content_size=False)
    frame = compressor.compressobj()
    data = frame.compress(b"line\n" * 1000) + frame.flush()
    assert scan_frames(data).frames == ((0, len(data)),)
    assert decompress(data) == b"line\n" * 1000


def test_a_changed_byte_fails_the_checksum() -> None:
    frame = bytearray(compress(b"some text that is long enough to be changed"))
    frame[-6] ^= 0x20
    with pytest.raises(FrameCorruption):
        decompress(bytes(frame))


@pytest.mark.parametrize("tail", [b"\x28\xb5\x2f\xfe", b"garbage", b"\n"])
def test_bytes_that_begin_no_frame_are_corruption(tail: bytes) -> None:
    with pytest.raises(FrameCorruption, match="no frame begins"):
        scan_frames(compress(b"x\n") + tail)


def test_a_reserved_block_type_is_corruption() -> None:
    frame = bytearray(compress(b"x\n"))
    frame[-4 - 2 - 3] |= 0b110  # the header of the only block, before two bytes and the checksum
    with pytest.raises(FrameCorruption, match="reserved"):
        scan_frames(bytes(frame))


def test_an_end_that_was_never_written_counts_as_cut() -> None:
    frame = compress(b"x\n")
    assert scan_frames(frame + bytes(4096)).torn_start == len(frame)


def test_of_a_cut_frame_the_complete_blocks_are_had() -> None:
    import random

    content = random.Random(1).randbytes(300_000)
    frame = compress(content)
    part = decompress_cut(frame[:-10])
    assert len(part) >= 128 * 1024
    assert content.startswith(part)
    assert decompress_cut(frame[:5]) == b""
