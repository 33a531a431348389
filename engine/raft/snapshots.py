"""Snapshots: images in files beside the event log, so that an image is made from a few events and not from all.

A snapshot is named after the offset that its image stands at. Several are kept, the further back the sparser, for
looking at the past. All of them can be deleted at any time.
"""

from __future__ import annotations

import contextlib
import logging
import re
import struct
from collections.abc import Callable

from dq.engine.errors import StorageError
from dq.engine.files import FileSystem, read_file, replace_file
from dq.engine.raft.image import EMPTY, Image
from dq.engine.raft.image_bytes import decode_image, image_parts
from dq.engine.segments.crc import crc32c

SNAPSHOT_EVERY = 10_000  # events, at least; a large image is written less often

_NAME = re.compile(r"image-(\d{20})\.snapshot")
_FORMER_NAME = "image.snapshot"
_CRC = struct.Struct("<I")

logger = logging.getLogger("dq.engine")


def snapshot_path(directory: str, offset: int) -> str:
    return f"{directory}/image-{offset:020d}.snapshot"


def list_snapshots(files: FileSystem, directory: str) -> list[int]:
    """The offsets that there are snapshots of, in order."""
    matches = map(_NAME.fullmatch, files.list(directory))
    return sorted(int(match[1]) for match in matches if match is not None)


def write_snapshot(
    files: FileSystem,
    directory: str,
    image: Image,
    *,
    durable: bool = False,
    rest: Callable[[], object] = lambda: None,
) -> int:
    """Returns its size in bytes. Calls `rest` every fraction of a millisecond of work, to let others go on."""
    parts = []
    for part in image_parts(image):
        parts.append(part)
        rest()
    body = b"".join(parts)
    replace_file(files, snapshot_path(directory, image.offset), _CRC.pack(crc32c(body)) + body, sync=durable)
    return _CRC.size + len(body)


def read_snapshot(files: FileSystem, directory: str, offset: int) -> Image | None:
    """None when it is not usable; the events make it anew."""
    path = snapshot_path(directory, offset)
    data = read_file(files, path)
    if data is None:
        return None
    try:
        if len(data) < _CRC.size or _CRC.unpack_from(data)[0] != crc32c(data[_CRC.size :]):
            raise StorageError("the CRC does not match")
        image = decode_image(data[_CRC.size :])
        if image.offset != offset:
            raise StorageError(f"it stands at event {image.offset}")
        return image
    except StorageError as error:
        logger.warning("%s is not usable: %s", path, error)
        return None


def nearest_snapshot(files: FileSystem, directory: str, most: int) -> Image:
    """The furthest usable snapshot that stands at or before an offset; the empty image when there is none."""
    for offset in reversed(list_snapshots(files, directory)):
        if offset <= most:
            image = read_snapshot(files, directory, offset)
            if image is not None:
                return image
    return EMPTY


def prune_snapshots(files: FileSystem, directory: str) -> None:
    """Of those that lie about as far back, twice as far for each next one, keeps the oldest."""
    offsets = list_snapshots(files, directory)
    kept: dict[int, int] = {}
    for offset in offsets[:-1]:
        kept.setdefault(((offsets[-1] - offset) // SNAPSHOT_EVERY).bit_length(), offset)
    doomed = [snapshot_path(directory, offset) for offset in offsets[:-1] if offset not in kept.values()]
    for path in [*doomed, f"{directory}/{_FORMER_NAME}"]:
        with contextlib.suppress(OSError):
            files.remove(path)
