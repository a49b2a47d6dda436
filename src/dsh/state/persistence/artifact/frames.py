"""Zstandard files as a row of independent frames, each with its own checksum.

The structure of the frames is read here, so that a cut file shows which frames are whole.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any, Protocol

from dsh.base.values import value

_MAGIC = b"\x28\xb5\x2f\xfd"
_DICTIONARY_ID_SIZES = (0, 1, 2, 4)
_CONTENT_SIZES = (0, 2, 4, 8)
_LEVEL = 3
_PART = 1 << 16


class FrameCorruption(ValueError):
    """The bytes are not a row of frames, or a frame fails its checksum."""


class _Truncated(Exception):
    """The data ends inside a frame."""


class _Decoder(Protocol):
    def decompress(self, data: bytes | memoryview, /) -> bytes: ...


@value
class FrameScan:
    """The whole frames of some data, and where a cut one begins."""

    frames: tuple[tuple[int, int], ...]
    torn_start: int | None


def scan_frames(data: bytes, start: int = 0) -> FrameScan:
    """Find the frames by their structure, without decoding them.

    A tail of zero bytes counts as cut: that is how a file looks whose end was never written.

    Raises:
        FrameCorruption: the bytes cannot be frames, not even cut ones.
    """
    frames: list[tuple[int, int]] = []
    at = start
    while at < len(data):
        try:
            end = _frame_end(data, at)
        except _Truncated:
            return FrameScan(tuple(frames), at)
        except FrameCorruption:
            if data.count(0, at) == len(data) - at:
                return FrameScan(tuple(frames), at)
            raise
        frames.append((at, end))
        at = end
    return FrameScan(tuple(frames), None)


def first_frame_end(data: bytes) -> int | None:
    """Return where the first frame ends; ``None`` when the data is a cut one.

    Raises:
        FrameCorruption: the bytes cannot be a frame.
    """
    try:
        return _frame_end(data, 0)
    except _Truncated:
        return None


def _frame_end(data: bytes, at: int) -> int:
    magic = data[at : at + 4]
    if magic != _MAGIC[: len(magic)]:
        raise FrameCorruption(f"no frame begins at byte {at}")
    descriptor = _byte(data, at + 4)
    if descriptor & 0b0000_1000:
        raise FrameCorruption(f"the frame at byte {at} uses a reserved bit")
    single_segment = bool(descriptor & 0b0010_0000)
    content_flag = descriptor >> 6
    content_size = 1 if content_flag == 0 and single_segment else _CONTENT_SIZES[content_flag]
    at += 5 + (not single_segment) + _DICTIONARY_ID_SIZES[descriptor & 0b11] + content_size
    at = _blocks_end(data, at)
    if descriptor & 0b0000_0100:
        at += 4
    if at > len(data):
        raise _Truncated
    return at


def _blocks_end(data: bytes, at: int) -> int:
    last = False
    while not last:
        if at + 3 > len(data):
            raise _Truncated
        block = int.from_bytes(data[at : at + 3], "little")
        last, kind, size = bool(block & 1), block >> 1 & 0b11, block >> 3
        if kind == 3:
            raise FrameCorruption(f"the block at byte {at} has a reserved type")
        at += 3 + (1 if kind == 1 else size)
    return at


def _byte(data: bytes, at: int) -> int:
    if at >= len(data):
        raise _Truncated
    return data[at]


def compress(data: bytes) -> bytes:
    """Return one frame with a checksum."""
    return _codec().compress(data)


def decompress(frame: bytes) -> bytes:
    """Return the content of one whole frame.

    Raises:
        FrameCorruption: the content does not fit its checksum or its structure.
    """
    codec = _codec()
    try:
        return codec.decoder().decompress(frame)
    except codec.error as error:
        raise FrameCorruption(f"a frame does not decode: {error}") from error


def decompressed(frame: bytes) -> Iterator[bytes]:
    """Yield the content of one whole frame in parts.

    Raises:
        FrameCorruption: the content does not fit its checksum or its structure; parts that were
            yielded before are as little to be trusted.
    """
    codec = _codec()
    decoder = codec.decoder()
    view = memoryview(frame)
    try:
        for start in range(0, len(view), _PART):
            if part := decoder.decompress(view[start : start + _PART]):
                yield part
    except codec.error as error:
        raise FrameCorruption(f"a frame does not decode: {error}") from error


def decompress_cut(data: bytes) -> bytes:
    """Return what can be had of a frame whose end is missing."""
    codec = _codec()
    try:
        return codec.decoder().decompress(data)
    except codec.error:
        return b""


class _Codec(Protocol):
    error: type[Exception]

    def compress(self, data: bytes) -> bytes: ...
    def decoder(self) -> _Decoder: ...


class _Zstandard:
    """The package from the index, for interpreters without a codec of their own."""

    def __init__(self) -> None:
        import zstandard

        self.error: type[Exception] = zstandard.ZstdError
        self._compressor: Any = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
        self._decompressor: Any = zstandard.ZstdDecompressor()

    def compress(self, data: bytes) -> bytes:
        compressed: bytes = self._compressor.compress(data)
        return compressed

    def decoder(self) -> _Decoder:
        decoder: _Decoder = self._decompressor.decompressobj()
        return decoder


class _StandardLibrary:
    """``compression.zstd``, from Python 3.14 on."""

    def __init__(self) -> None:
        import importlib

        self._zstd: Any = importlib.import_module("compression.zstd")
        self.error: type[Exception] = self._zstd.ZstdError
        parameter = self._zstd.CompressionParameter
        self._options = {parameter.compression_level: _LEVEL, parameter.checksum_flag: 1}

    def compress(self, data: bytes) -> bytes:
        compressed: bytes = self._zstd.compress(data, options=self._options)
        return compressed

    def decoder(self) -> _Decoder:
        decoder: _Decoder = self._zstd.ZstdDecompressor()
        return decoder


_per_thread = threading.local()  # a compressor serves one thread at a time


def _codec() -> _Codec:
    codec: _Codec | None = getattr(_per_thread, "codec", None)
    if codec is None:
        codec = _StandardLibrary() if sys.version_info >= (3, 14) else _Zstandard()
        _per_thread.codec = codec
    return codec
