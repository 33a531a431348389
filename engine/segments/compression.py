"""Whole-body compression. Codecs are numbers on disk; their packages are optional and loaded on first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dq.engine.errors import CodecUnavailable, DamagedBatch, InvalidConfig
from dq.engine.files import Buffer

NONE, LZ4, ZSTD = 0, 1, 2
NAMES = {"none": NONE, "lz4": LZ4, "zstd": ZSTD}
KNOWN_CODECS = frozenset(NAMES.values())

# What one byte can become at most. An lz4 length grows by 255 a byte; a zstd block is 4 bytes or more and gives
# 128 KiB or less.
_MOST_EXPANSION = {LZ4: 255, ZSTD: 32 << 10}


class _Codec(NamedTuple):
    compress: Callable[[Buffer], bytes]
    decompress: Callable[[Buffer, int], bytes]


def codec_number(name: str) -> int:
    """The number of a codec by its name; raises when its package is not there."""
    if name not in NAMES:
        raise InvalidConfig("compression", name, ", ".join(NAMES))
    number = NAMES[name]
    if number != NONE:
        _load(number)
    return number


def compress(codec: int, body: Buffer) -> Buffer:
    return body if codec == NONE else _load(codec).compress(body)


def decompress(codec: int, body: Buffer, size: int) -> Buffer:
    """The original body, which must be exactly `size` bytes: no more than that is ever allocated."""
    if codec == NONE:
        return body
    if codec in _MOST_EXPANSION and size > len(body) * _MOST_EXPANSION[codec]:
        raise DamagedBatch(f"{len(body)} bytes cannot decompress to {size}")
    try:
        data = _load(codec).decompress(body, size)
    except (CodecUnavailable, MemoryError):
        raise
    except Exception as error:  # each package has its own error types; all of them mean damaged bytes here
        raise DamagedBatch(f"cannot decompress: {error}") from error
    if len(data) != size:
        raise DamagedBatch(f"decompressed to {len(data)} bytes instead of {size}")
    return data


_loaded: dict[int, _Codec] = {}


def _load(codec: int) -> _Codec:
    if codec not in _loaded:
        if codec == LZ4:
            _loaded[codec] = _load_lz4()
        elif codec == ZSTD:
            _loaded[codec] = _load_zstd()
        else:
            raise DamagedBatch(f"unknown compression codec {codec}")
    return _loaded[codec]


def _load_lz4() -> _Codec:
    try:
        import lz4.block
    except ImportError:
        raise CodecUnavailable("lz4") from None
    return _Codec(
        lambda body: bytes(lz4.block.compress(body, store_size=False)),
        lambda body, size: bytes(lz4.block.decompress(body, uncompressed_size=size)),
    )


def _load_zstd() -> _Codec:
    try:
        import zstandard
    except ImportError:
        raise CodecUnavailable("zstd") from None

    # The package's compressors must not be shared between threads; making one costs a few microseconds.
    def decompress_frame(body: Buffer, size: int) -> bytes:
        if zstandard.frame_content_size(body) != size:
            raise DamagedBatch("the zstd frame states another size than the batch header")
        return zstandard.ZstdDecompressor().decompress(body, max_output_size=size, allow_extra_data=False)

    return _Codec(lambda body: zstandard.ZstdCompressor().compress(body), decompress_frame)
