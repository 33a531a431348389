"""CRC-32C (Castagnoli). The `crc32c` wheel uses the processor's instruction; crcmod is the portable fallback."""

from __future__ import annotations

from collections.abc import Callable

from dq.engine.files import Buffer

_crcmod_function: Callable[[Buffer], int] | None = None


def crcmod_crc32c(data: Buffer) -> int:
    """The definition, by crcmod; its table is made on first use."""
    global _crcmod_function
    if _crcmod_function is None:
        import crcmod.predefined

        _crcmod_function = crcmod.predefined.mkCrcFun("crc-32c")
    return _crcmod_function(data)


crc32c: Callable[[Buffer], int]
try:
    from crc32c import crc32c as _fast

    crc32c = _fast
    implementation = "crc32c"
except ImportError:
    crc32c = crcmod_crc32c
    implementation = "crcmod"
