"""`dq doctor`: looks at everything around the data that can make it slow or unsafe."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import typer

import dq
from dq.cli.errors import FAILED
from dq.cli.options import DEFAULT_DATA, Data, Directory, Json, open_to_read
from dq.cli.output import number, out, plural, print_json, seconds, size, table
from dq.engine.embedded.directory import topic_directory
from dq.engine.embedded.store import orphaned_directories
from dq.engine.embedded.verify import lock_holder
from dq.engine.files import OsFiles
from dq.engine.index.environment import IndexEnvironment
from dq.engine.raft.event_log import METADATA_TOPIC, METADATA_TOPIC_ID
from dq.engine.segments import crc
from dq.engine.segments.checkpoint import read_checkpoints
from dq.engine.segments.compression import NAMES, codec_number
from dq.engine.segments.recovery import list_segments

_REMOTE = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "fuse.sshfs"}
_VOLATILE = {"tmpfs", "ramfs"}
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}


class Check(NamedTuple):
    name: str
    state: Literal["ok", "warn", "fail"]
    detail: str
    advice: str = ""


def doctor(directory: Directory = None, data: Data = DEFAULT_DATA, as_json: Json = False) -> None:
    """Check the installation, the machine and the data directory.

    Changes nothing, and works beside a running writer. Whether the data itself is intact is for `dq verify`.
    """
    path = directory or data
    checks = [*_installation(), *_machine(path), *_directory(path)]
    if as_json:
        print_json([check._asdict() for check in checks])
    else:
        listing = table("", "check", "found")
        for check in checks:
            advice = f"\n[dim]{check.advice}[/]" if check.advice else ""
            colour = _COLOURS[check.state]
            listing.add_row(f"[{colour}]{check.state}[/]", check.name, check.detail.replace("[", r"\[") + advice)
        out.print(listing)
    if any(check.state == "fail" for check in checks):
        raise typer.Exit(FAILED)


# ---------------------------------------------------------------- the installation


def _installation() -> Iterator[Check]:
    yield Check("versions", "ok", f"dq {dq.__version__}, Python {platform.python_version()}, {_packages()}")
    if crc.implementation == "crc32c":
        yield Check("CRC-32C", "ok", "by the crc32c package")
    else:
        advice = "pip install crc32c: it is tens of times faster"
        yield Check("CRC-32C", "warn", f"by the {crc.implementation} package", advice)
    missing = [name for name in NAMES if not _available(name)]
    present = ", ".join(name for name in NAMES if name not in missing)
    if missing:
        advice = "topics that use them cannot be read: pip install 'dqsegments\\[compression]'"
        yield Check("compression", "warn", f"{present}; not {', '.join(missing)}", advice)
    else:
        yield Check("compression", "ok", present)


def _packages() -> str:
    names = ("msgpack", "lmdb", "crc32c")
    versions = []
    for name in names:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"no {name}")
    return ", ".join(versions)


def _available(codec: str) -> bool:
    try:
        codec_number(codec)
    except dq.CodecUnavailable:
        return False
    return True


# ---------------------------------------------------------------- the machine


def _machine(path: Path) -> Iterator[Check]:
    place = _nearest(path)
    yield _file_system(place)
    yield _free_space(place)
    yield _sync_latency(place)
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY or limit >= 1024:
        shown = "no limit" if limit == resource.RLIM_INFINITY else number(limit)
        yield Check("open files", "ok", f"{shown} at most")
    else:
        advice = "ulimit -n 4096, or dq.open(..., max_open_partitions=...) with a smaller number than 256"
        yield Check("open files", "warn", f"{limit} at most", advice)


def _nearest(path: Path) -> Path:
    """The directory itself, or the one it would be made in."""
    path = path.absolute()
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path


def _file_system(place: Path) -> Check:
    kind = _kind_of(place)
    if kind in _REMOTE:
        advice = "locks and syncs may not mean there what they mean on a disk: use a local one"
        return Check("file system", "warn", kind, advice)
    if kind in _VOLATILE:
        return Check("file system", "warn", kind, "nothing in it survives a restart of the machine")
    return Check("file system", "ok", kind)


def _kind_of(place: Path) -> str:
    """The type of the file system, from the mount with the longest path above the place."""
    found, longest = "unknown", -1
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
            for line in mounts:
                _, mount, kind, *_ = line.split()
                mount = mount.replace("\\040", " ")
                if (place == Path(mount) or Path(mount) in place.parents) and len(mount) >= longest:
                    found, longest = kind, len(mount)
    except (OSError, ValueError):
        pass
    return found


def _free_space(place: Path) -> Check:
    usage = shutil.disk_usage(place)
    detail = f"{size(usage.free)} of {size(usage.total)}"
    if usage.free < 100 << 20:
        return Check("free space", "fail", detail, "writes are about to be refused: make room, or set --retention")
    if usage.free < 1 << 30 or usage.free < usage.total * 0.03:
        return Check("free space", "warn", detail, "make room, or set --retention for some topics")
    return Check("free space", "ok", detail)


def _sync_latency(place: Path) -> Check:
    """How long it takes until 4 KiB are on stable storage: what every append with flush="always" waits for."""
    times = []
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            for number_of_write in range(20):
                os.pwrite(file.fileno(), bytes(4096), number_of_write * 4096)
                begin = time.perf_counter()
                os.fsync(file.fileno())
                times.append(time.perf_counter() - begin)
    except OSError as error:
        return Check("sync", "warn", f"not measured: {error.strerror}", "reading works, writing will not")
    median = statistics.median(times)
    detail = f"{seconds(median)} for 4 KiB, {seconds(max(times))} at worst"
    if median > 0.02:
        advice = "a slow disk: append many records at once, or use a producer, so that they share a sync"
        return Check("sync", "warn", detail, advice)
    return Check("sync", "ok", detail)


# ---------------------------------------------------------------- the data directory


def _directory(path: Path) -> Iterator[Check]:
    if not path.exists():
        yield Check("data directory", "warn", f"{path} does not exist", "`dq topics create NAME` makes it")
        return
    try:
        log = open_to_read(path)
    except dq.DQError as error:
        yield Check("data directory", "fail", str(error))
        return
    with log:
        holder = lock_holder(OsFiles(), log.path)
        yield Check("data directory", "ok", log.path)
        yield Check("writer", "ok", "none" if holder is None else f"{holder} has it open")
        try:
            topics = log.topics()
        except (dq.DQError, LookupError) as error:
            yield Check("metadata", "fail", str(error), "`dq verify` shows all damage, `dq repair` passes over it")
            return
        partitions = sum(topic.partitions for topic in topics)
        yield Check("topics", "ok", f"{plural(len(topics), 'topic')}, {plural(partitions, 'partition')}")
        yield from _codecs_in_use(topics)
        yield _index(log.path)
        yield _orphans(log)
        yield _checkpoints(log.path, topics, in_use=holder is not None)


def _codecs_in_use(topics: list[dq.Topic]) -> Iterator[Check]:
    for codec in sorted({topic.config.compression for topic in topics}):
        if not _available(codec):
            names = ", ".join(topic.name for topic in topics if topic.config.compression == codec)
            yield Check("codec in use", "fail", f"{codec}, by {names}", "pip install 'dqsegments\\[compression]'")


def _index(root: str) -> Check:
    index = IndexEnvironment(f"{root}/index", OsFiles().boot_id, read_only=True)
    try:
        found = index.statistics()
    finally:
        index.close()
    if not found.entries:
        return Check("index", "ok", "empty: look-ups read a little more")
    return Check("index", "ok", f"{plural(found.entries, 'entry').replace('entrys', 'entries')}, {size(found.bytes)}")


def _orphans(log: dq.EmbeddedLog) -> Check:
    orphans = orphaned_directories(log)
    if not orphans:
        return Check("unknown topics", "ok", "none")
    names = ", ".join(orphans[:3]) + (", ..." if len(orphans) > 3 else "")
    advice = "directories that the metadata does not know: `dq cat` shows what is in them; move away what is not needed"
    return Check("unknown topics", "warn", f"{number(len(orphans))}: {names}", advice)


def _checkpoints(root: str, topics: list[dq.Topic], *, in_use: bool) -> Check:
    """What opening for writing would have to read again."""
    unclean, tail = 0, 0
    metadata = topic_directory(METADATA_TOPIC, METADATA_TOPIC_ID)
    names = [(metadata, 1), *((topic.directory_name, topic.partitions) for topic in topics)]
    for name, partitions in names:
        for partition in range(partitions):
            left = _unchecked_bytes(f"{root}/topics/{name}/{partition}")
            unclean += left > 0
            tail += left
    if in_use:
        return Check("checkpoints", "ok", f"in use; {size(tail)} written since")
    if not unclean:
        return Check("checkpoints", "ok", "closed cleanly")
    detail = f"{plural(unclean, 'partition')} not closed cleanly, {size(tail)} to be read again"
    return Check("checkpoints", "warn", detail, "nothing to do: the next opening for writing reads it")


def _unchecked_bytes(directory: str) -> int:
    """How much of a partition stands behind its furthest checkpoint."""
    files = OsFiles()
    segments = list_segments(files, directory)
    checkpoint = next((item for item in read_checkpoints(files, directory) if item.segment in segments), None)
    total = 0
    for base in segments:
        if checkpoint is None or base >= checkpoint.segment:
            total += os.path.getsize(f"{directory}/{base:020d}.seg")
    return max(total - (0 if checkpoint is None else checkpoint.position), 0)
